"""Base of all UVM tests: counts logged errors, and fails on them at the end.

pyuvm's `logger.error` does not fail a test, so a handler on every component counts what is logged as ERROR or
above.
"""

from __future__ import annotations

import logging
from typing import Any

import cocotb
from pyuvm import ConfigDB, uvm_test

from pymodel.host.table import Fabric, FabricConfig
from tb.sim.platform import Rig
from tb.uvm.env import RdmaEnv


class ErrorCounter(logging.Handler):
    """Counts error records and keeps the first few messages."""

    KEEP = 20

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.count = 0
        self.first: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Count one."""
        self.count += 1
        if len(self.first) < self.KEEP:
            self.first.append(record.getMessage())


class RdmaTest(uvm_test):
    """Builds the rig and the environment; `traffic` is what a test writes; the closing checks always run.

    Hooks: `config` (fabric), `knobs`, `traffic`. Each test derives its randomness from cocotb's seed.
    """

    #: knobs of memory, link and mailbox
    knobs: dict[str, int] = {}

    def config(self) -> FabricConfig:
        """Fabric of the run."""
        return FabricConfig(n_pes=2, seed=cocotb.RANDOM_SEED)

    def make_rig(self) -> Any:
        """What drives the simulation."""
        return Rig(cocotb.top, self.fabric, knobs=self.knobs)

    def build_phase(self) -> None:
        """Rig and environment."""
        self.fabric = Fabric.build(self.config())
        self.rig = self.make_rig()
        ConfigDB().set(None, "*", "RIG", self.rig)
        self.env = RdmaEnv.create("env", self)

    def end_of_elaboration_phase(self) -> None:
        """Count the errors of every component."""
        self.errors = ErrorCounter()
        self.add_logging_handler_hier(self.errors)

    async def run_phase(self) -> None:
        """Bring up, traffic, closing checks."""
        self.raise_objection()
        try:
            await self.rig.start()
            await self.traffic()
            await self.rig.finish()
        finally:
            # an exception ends the test by itself; the objection must not turn it into a hang
            self.drop_objection()

    async def traffic(self) -> None:
        """What the test does between bring-up and closing checks."""
        raise NotImplementedError

    def check_phase(self) -> None:
        """Illegal accesses that the testbench itself saw."""
        if self.rig.lib.faults:
            self.logger.error(f"the testbench saw {self.rig.lib.faults} illegal accesses")

    def final_phase(self) -> None:
        """Fail on any logged error, and where nothing was judged."""
        boards = self.env.scoreboards
        assert all(board.batches for board in boards), "a scoreboard saw no batch: nothing was checked"
        assert not self.errors.count, f"{self.errors.count} errors logged:\n" + "\n".join(self.errors.first)
