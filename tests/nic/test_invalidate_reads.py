"""Regions invalidated under READs and atomics, on both sides: the command ends when no access is left.

Sweep: the region that READs come from, that their bytes go to, that atomics work on, that original values go
to; each at three moments of a stream, each on a region and a QP of its own, all in one run; then the same
regions once more while nothing is under way.
Stimulus: twelve streams at the same time, six in each direction, on slow memory with jitter.
Checks: no access under the old entry after STATUS is idle again: no payload read, no access of the atomic
unit, no result that becomes visible; codes: good, then a5 (own side: a7), then flushes; what is behind the
last good result is as it was; the judge's in the second test.
Timing: memory latency 100 to 250 cycles. The judge takes no part in the first test: it judges keys where a
packet arrives, and here they change behind that.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import cocotb
import numpy as np

from pymodel.formats.wqe import WqeOp
from pymodel.host.table import Fabric, FabricConfig, set_ops
from pymodel.nic.context import CmdObj, MrContext
from pymodel.nic.params import CMD_STATUS, AxiId
from tb.sim.records import Kind
from tests.nic.raw import FLUSH, RawQp
from tests.nic.stage import Stage, add_region, error

PES = 2
#: side and opcode: who loses the region, and which accesses there must have ended
VICTIMS = {
    "source of READs": ("peer", WqeOp.READ, Kind.AXI_R, AxiId.GATHER),
    "sink of READs": ("own", WqeOp.READ, Kind.COMMIT, AxiId.RESULT),
    "word of atomics": ("peer", WqeOp.FA64, Kind.AXI_R, AxiId.ATOMIC),
    "sink of values": ("own", WqeOp.FA64, Kind.COMMIT, AxiId.RESULT),
}
MOMENTS = (1500, 4000, 8001)
CASES = [(victim, moment) for moment in MOMENTS for victim in VICTIMS]
DEPTH = 64
SIZE = {WqeOp.READ: 12_000, WqeOp.FA64: 8}
#: each case's part of both heaps
PART = 1 << 20


def place(qp: RawQp, pe: int, case: int) -> int:
    """First byte of a case's part of a heap."""
    return qp.fabric.pes[pe].heap_base + (16 << 20) + case * PART


def build(seed: int) -> tuple[Fabric, dict[tuple[int, int], int]]:
    """A QP for each case and a region for its part on each PE; MR index by (pe, case)."""
    fabric = Fabric.build(
        FabricConfig(
            n_pes=2, qps=len(CASES), seed=seed, versions=(1, 2), strides=(32, 64), mtus=(1024,),
            sq_depths=(DEPTH,), heap_bytes=32 << 20,
        )
    )  # fmt: skip
    rng, regions = random.Random(f"regions {seed}"), {}
    for pe in fabric.pes:
        for case in range(len(CASES)):
            at = pe.heap_base + (16 << 20) + case * PART
            ltag, rtag = rng.sample(range(256), 2)
            regions[pe.rank, case] = add_region(fabric, pe.rank, MrContext(at, PART, ltag=ltag, rtag=rtag))
    return fabric, regions


def items(qp: RawQp, case: int, regions: dict[tuple[int, int], int], count: int) -> list[dict[str, Any]]:
    """WQEs of a case under its own keys, results one behind the other in the case's part."""
    op, (pe, peer) = VICTIMS[CASES[case][0]][1], (qp.plan.pe, qp.plan.peer)
    mine, theirs = qp.fabric.pes[pe].mrs, qp.fabric.pes[peer].mrs
    index, other = regions[pe, case], regions[peer, case]
    keys = {"lkey": mine[index].lkey(index), "rkey": theirs[other].rkey(other)}
    found = []
    for k in range(count):
        at = {"laddr": place(qp, pe, case) + k * SIZE[op], "raddr": place(qp, peer, case)}
        found.append(qp.read(SIZE[op], **keys, **at) if op == WqeOp.READ else qp.atomic(op, **keys, **at))
        found[-1]["swap_add"] = int(op != WqeOp.READ)
    return found


async def invalidate(stage: Stage, pe: int, index: int) -> int:
    """The command; cycle in which STATUS is idle again."""
    lib, region = stage.rig.lib, stage.rig.fabric.pes[pe].mrs[index]
    for op in set_ops(CmdObj.MR, index, dataclasses.replace(region, valid=False)):
        if op.kind == "write":
            assert lib.mmio_write(pe, op.addr, op.data)
    while (status := await lib.read(pe, CMD_STATUS)) & 1:
        pass
    assert status == 0
    return lib.cycle


def victim(case: int, qp: RawQp) -> int:
    """PE that loses the region."""
    return qp.plan.peer if VICTIMS[CASES[case][0]][0] == "peer" else qp.plan.pe


@cocotb.test()
async def test_under_load(dut):
    """Each case's region goes at its moment; one command after the other on a PE."""
    fabric, regions = build(cocotb.RANDOM_SEED)
    knobs = {"mem_latency": 100, "mem_latency_jitter": 150, "commit_delay": 60}
    stage = Stage(dut, fabric, (), knobs=knobs, judge=False)
    await stage.start()
    batches: list[np.ndarray] = []
    stage.rig.sinks.append(lambda records, _side: batches.append(records))
    qps = [stage.ends[case % 2, 1 - case % 2, case] for case in range(len(CASES))]
    ended: dict[int, int] = {}
    begun = stage.rig.lib.cycle
    counts = {WqeOp.READ: DEPTH, WqeOp.FA64: DEPTH}

    async def commands(pe: int) -> None:
        for case, (_, moment) in enumerate(CASES):
            if victim(case, qps[case]) == pe:
                await stage.rig.lib.cycles(max(1, begun + moment - stage.rig.lib.cycle))
                ended[case] = await invalidate(stage, pe, regions[pe, case])

    async def stream(qp: RawQp, case: int) -> list[int]:
        op, codes = VICTIMS[CASES[case][0]][1], []
        while not codes or not codes[-1]:
            # atomics again and again, so that they are still under way at the last moment
            await qp.post(*items(qp, case, regions, counts[op]))
            codes += (await qp.collect(counts[op], 200_000))["error_code"].tolist()
            await qp.ring_cq()
        return codes

    tasks = [cocotb.start_soon(commands(pe)) for pe in (0, 1)]
    answers = await stage.beside(*[(qp, stream(qp, case)) for case, qp in enumerate(qps)])
    for task in tasks:
        await task
    stage.rig.drain()
    records = np.concatenate(batches)
    under_way = 0
    for case, (qp, codes) in enumerate(zip(qps, answers, strict=True)):
        name, moment = CASES[case]
        side, op, kind, ident = VICTIMS[name]
        pe = victim(case, qp)
        low = place(qp, pe, case)
        of = (records["pe"] == pe) & (records["kind"] == kind) & (records["id"] == ident)
        mine = records[of & (records["addr"] >= low & ~63) & (records["addr"] < low + PART)]
        late = mine[mine["time"] > ended[case]]
        assert not late.size, f"{name} at {moment}: {late.size} accesses after cycle {ended[case]}"
        good = codes.index(0xA5 if side == "peer" else 0xA7)
        assert codes == [0] * good + [codes[good]] + [FLUSH] * (len(codes) - good - 1), f"{name}: {codes}"
        recent = mine[mine["time"] > begun + moment]
        under_way += bool(recent.size)
        if side == "own":
            # what its results would be written to is as it was behind the failing WQE
            lap = good // DEPTH
            memory = stage.rig.lib.memory(pe, low, PART)
            if not lap:
                assert not memory[(good + 1) * SIZE[op] :].any(), f"{name}: written behind the failing WQE"
    assert under_way >= len(CASES) // 2, f"only {under_way} commands met an access"


@cocotb.test()
async def test_at_rest(dut):
    """Each region goes while its QP is idle: the next WQE fails, whatever the bus would have answered."""
    fabric, regions = build(cocotb.RANDOM_SEED)
    stage = Stage(dut, fabric, ())
    await stage.start()
    qps = [stage.ends[case % 2, 1 - case % 2, case] for case in range(len(CASES))]

    async def stream(qp: RawQp, case: int, count: int) -> list[int]:
        await qp.post(*items(qp, case, regions, count))
        return await qp.complete(count)

    answers = await stage.beside(*[(qp, stream(qp, case, 4)) for case, qp in enumerate(qps)])
    assert answers == [[0] * 4] * len(CASES)
    await stage.rig.settle()
    for case, qp in enumerate(qps):
        pe = victim(case, qp)
        await invalidate(stage, pe, regions[pe, case])
        if case % 3 == 0:
            error(stage.rig, pe, place(qp, pe, case), PART, "rw")
    answers = await stage.beside(*[(qp, stream(qp, case, 3)) for case, qp in enumerate(qps)])
    for (name, _), codes in zip(CASES, answers, strict=True):
        assert codes == [0xA5 if VICTIMS[name][0] == "peer" else 0xA7, FLUSH, FLUSH], f"{name}: {codes}"
    await stage.rig.check()
