"""A QP that goes back in the middle of a message, and whose peer then acknowledges all that was sent of it.

What is left begins in the middle of the message, though nothing is to be sent again.
Sweep: the READ before the message loses its answer, or has it passed by later packets; MTU 256 and 1024.
The mixed program, cut down, at 1 % loss. Stimulus: a short READ, then a WRITE of 64 KiB on the same QP.
Checks: the programs' and the judge's. Timing: none. Not proved: messages of more than one pass.
"""

from __future__ import annotations

import cocotb

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from pymodel.run import load, with_fault_timers
from tb.sim.platform import Rig
from tb.sim.sim import PROGRAMS
from tests.nic.test_programs_mixed import SHORT

PES = 2
BYTES = 1 << 16
#: programs of lossy links wait for the timer of the last retry
PATIENCE = 400_000


@cocotb.test()
@cocotb.parametrize(fault=["drop once", "reorder 1 once", "reorder 3 once"], mtu=[256, 1024])
async def test_the_rest_goes_on(dut, fault: str, mtu: int) -> None:
    """The answer of the READ comes late, behind ACKs of the WRITE."""

    async def main(pe: Pe) -> None:
        source, target, cell = pe.alloc(BYTES), pe.alloc(BYTES), pe.alloc(64)
        if pe.rank == 0:
            await pe.get_nbi(cell, source, 8, 1)
            await pe.put_nbi(target, source, BYTES, 1)
            await pe.quiet(1)

    config = with_fault_timers(FabricConfig(n_pes=2, seed=cocotb.RANDOM_SEED, mtus=(mtu,)))
    rig = Rig(dut, Fabric.build(config), faults=[f"opcode read_response_only: {fault}"])
    await rig.start()
    result = await rig.run(main)
    await rig.check(result)
    assert rig.total(Cnt.RETRY) >= 1 and rig.summary.bytes == BYTES + 8


@cocotb.test()
async def test_mixed(dut) -> None:
    """Everything at once over a link that loses one packet in a hundred."""
    program = load(PROGRAMS / "mixed.py")
    program.main.__globals__.update(SHORT)
    assert program.fabric is not None
    fabric = Fabric.build(with_fault_timers(program.fabric(2, cocotb.RANDOM_SEED)))
    rig = Rig(dut, fabric, faults=["every 1/100: drop"], stall_limit=PATIENCE)
    await rig.start()
    result = await rig.run(program.main, hang_after=PATIENCE)
    await rig.check(result)
    assert rig.total(Cnt.RETRY) > 10 and result.errors_provoked > 0
