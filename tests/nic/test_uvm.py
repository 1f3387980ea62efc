"""The UVM environment on two NICs.

Stimulus: random WRITEs on every QP through the agents' sequencers, with random latencies and stalls.
Checks: the judge's, reported by the scoreboards; a planted finding and an unjudged run fail the test.
Timing: none. Not proved here: the device API (other tests post through it).
"""

from __future__ import annotations

import cocotb
import pytest
from pyuvm import uvm_root

from pymodel.host.table import FabricConfig
from pymodel.nic.judge import Check, Finding
from tb.uvm.base_test import RdmaTest
from tb.uvm.sequences import KnobSequence, WriteTraffic

PES = 2


class Traffic(RdmaTest):
    """Random WRITEs on two QPs in each direction."""

    knobs = {"mem_latency": 40, "mem_latency_jitter": 60, "link_latency": 30}
    wqes = 60

    def config(self) -> FabricConfig:
        """Both formats, every MTU, small rings near their wraps."""
        return FabricConfig.mixed(2, 2, cocotb.RANDOM_SEED)

    async def traffic(self) -> None:
        """Stalls set through the agents, then the traffic."""
        await KnobSequence("stalls", {"mem_stall": 2000, "mem_ooo": 8000}).start(self.env.memory.sequencer)
        await KnobSequence("stalls", {"link_stall_tx": 2000}).start(self.env.link.sequencer)
        await WriteTraffic("traffic", self.env, self.fabric, cocotb.RANDOM_SEED, self.wqes, (0, 6000)).start(
            None
        )


class PlantedFinding(Traffic):
    """A finding of the judge must fail the test."""

    wqes = 4

    async def traffic(self) -> None:
        """As if the judge had found something."""
        await super().traffic()
        self.rig.judge._report(Finding(Check.CQE_OWNER, 0, 2, 5, -1, 100, "owner", "0", "1"))


class Unjudged(Traffic):
    """A run that no scoreboard saw must fail."""

    async def traffic(self) -> None:
        """Nothing."""
        self.rig.sinks.clear()


@cocotb.test()
async def test_write_traffic(dut: object) -> None:
    """Green under random traffic."""
    await uvm_root().run_test(Traffic)


@cocotb.test()
async def test_finding_fails(dut: object) -> None:
    """One logged error turns the test red."""
    with pytest.raises(AssertionError, match="1 errors logged|2 errors logged"):
        await uvm_root().run_test(PlantedFinding)


@cocotb.test()
async def test_unjudged_fails(dut: object) -> None:
    """No batch, no verdict."""
    with pytest.raises(AssertionError, match="nothing was checked"):
        await uvm_root().run_test(Unjudged)
