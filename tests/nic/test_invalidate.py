"""Invalidating a region under load: the command completes when no access is left, on both sides (nic.md 2).

Sweep: the target's region or the source's region x three moments inside a stream of 64 KiB messages.
Stimulus: slow memory with jitter, so that many accesses are on their way when the command is given.
Checks: no inbound write becomes visible (source: no payload read ends) after STATUS is idle again; the WQEs
from the refused one on end with a5 (source: a7) and ff, in order, one CQE each.
Also the judge's: packets on their way when the command is given are judged under the old or the new entry.
Timing: memory latency 150 to 250 cycles.
"""

from __future__ import annotations

import dataclasses

import cocotb
import numpy as np

from pymodel.host.table import Fabric, FabricConfig, set_ops
from pymodel.nic.context import CmdObj
from pymodel.nic.params import CMD_STATUS
from tb.sim.platform import Rig
from tb.sim.records import Kind

PES = 2
MESSAGES = 12
SIZE = 65536


@cocotb.test()
@cocotb.parametrize(side=["target", "source"], moment=[1000, 2500, 5001])
async def test_no_access_after_invalidate(dut, side, moment):
    fabric = Fabric.build(FabricConfig(n_pes=2, seed=cocotb.RANDOM_SEED, heap_bytes=4 << 20))
    rig = Rig(dut, fabric, knobs={"mem_latency": 150, "mem_latency_jitter": 100})
    await rig.start()
    lib = rig.lib
    victim = 1 if side == "target" else 0
    ident, kind = (3, Kind.COMMIT) if side == "target" else (1, Kind.AXI_R)
    batches: list[np.ndarray] = []
    rig.sinks.append(lambda records, _side: batches.append(records))

    async def main(pe) -> None:
        source, target = pe.alloc(SIZE), pe.alloc(SIZE)
        if pe.rank == 0:
            for _ in range(MESSAGES):
                await pe.put_nbi(target, source, SIZE, 1)
            await pe.sleep(30_000)

    ended = 0

    async def invalidate() -> None:
        nonlocal ended
        await lib.cycles(moment)
        plan = fabric.pes[victim]
        index = plan.heap_lkey >> 8
        region = plan.mrs[index]
        for op in set_ops(CmdObj.MR, index, dataclasses.replace(region, valid=False)):
            if op.kind == "write":
                assert lib.mmio_write(victim, op.addr, op.data)
        while (status := await lib.read(victim, CMD_STATUS)) & 1:
            pass
        assert status == 0
        ended = lib.cycle

    task = cocotb.start_soon(invalidate())
    await rig.run(main, sanitize=False)
    await task
    rig.drain()
    records = np.concatenate(batches)
    mine = records[(records["pe"] == victim) & (records["kind"] == kind) & (records["id"] == ident)]
    assert mine.size > 4, "the command came before the traffic"
    late = mine[mine["time"] > ended]
    assert not late.size, f"{late.size} accesses after cycle {ended}, the last at {late['time'].max()}"
    cqes = records[(records["pe"] == 0) & (records["kind"] == Kind.AXI_W) & (records["id"] == 4)]
    plan = fabric.qps[0, 1, 0]
    ring = lib.memory(0, plan.cq_base, plan.cq_depth * plan.cq_stride).reshape(-1, plan.cq_stride)
    codes = ring[:MESSAGES, 0].tolist()
    assert cqes.size == MESSAGES
    good = codes.count(0)
    assert good < MESSAGES and codes == [0] * good + [0xA5 if side == "target" else 0xA7] + [0xFF] * (
        MESSAGES - good - 1
    ), [hex(c) for c in codes]
    await rig.check()
