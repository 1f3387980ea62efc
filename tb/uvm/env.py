"""The environment: agents, scoreboards, and the pump that turns drained records into batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from pyuvm import ConfigDB, uvm_analysis_port, uvm_component, uvm_env

from tb.uvm.agents import DoorbellAgent, LinkAgent, MemoryAgent
from tb.uvm.items import Batch
from tb.uvm.scoreboards import SCOREBOARDS, JudgeScoreboard

#: cycles after which the pump drains though nothing asked for it
DRAIN_EVERY = 4096


class Publisher(uvm_component):
    """Writes each drained batch to its analysis port."""

    def build_phase(self) -> None:
        """Analysis port."""
        self.ap = uvm_analysis_port("ap", self)

    def publish(self, records: npt.NDArray[np.void], side: npt.NDArray[np.uint8]) -> None:
        """One drained batch; the judge has seen it."""
        if records.size:
            self.ap.write(Batch(records, side))


class RdmaEnv(uvm_env):
    """All NICs of a run. The rig (`tb.sim.platform.Rig`, or what has its parts) comes from ConfigDB as "RIG".

    Findings of a batch are logged by the scoreboards as soon as the batch was drained.
    """

    def build_phase(self) -> None:
        """Components."""
        self.rig: Any = ConfigDB().get(self, "", "RIG")
        ConfigDB().set(self, "*", "LIB", self.rig.lib)
        ConfigDB().set(self, "*", "JUDGE", lambda: self.rig.judge)
        self.publisher = Publisher("publisher", self)
        self.doorbells = DoorbellAgent.create("doorbell_agent", self)
        self.memory = MemoryAgent.create("memory_agent", self)
        self.link = LinkAgent.create("link_agent", self)
        self.scoreboards: list[JudgeScoreboard] = [
            kind.create(f"{kind.part}_scoreboard", self) for kind in SCOREBOARDS
        ]

    def connect_phase(self) -> None:
        """Records to monitors and scoreboards."""
        for agent in (self.doorbells, self.memory, self.link):
            self.publisher.ap.connect(agent.mon.analysis_export)
        for board in self.scoreboards:
            self.publisher.ap.connect(board.analysis_export)
        self.rig.sinks.append(self.publisher.publish)

    async def pump(self, until: Callable[[], bool], deadline: int) -> bool:
        """Drain whenever the testbench wakes us, until `until()` holds; False: the deadline (a cycle) passed.

        Only one pump runs at a time, and none beside a device program.
        """
        lib = self.rig.lib
        while True:
            self.rig.drain()
            if until():
                return True
            if lib.cycle >= deadline:
                return False
            lib.set_deadline(min(deadline, lib.cycle + DRAIN_EVERY))
            await lib.wake()
