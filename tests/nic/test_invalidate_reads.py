"""Regions invalidated under READs and atomics, on both sides: the command ends when no access is left.

Sweep: the region that READs come from, that their bytes go to, that atomics work on, that original values go
to; each at three moments of a stream, each on a region and a QP of its own, all in one run; then the same
regions once more while nothing is under way.
Stimulus: one stream at a time, in either direction, on slow memory with jitter and late commits.
Checks: no access under the old entry after STATUS is idle again: no payload read, no access of the atomic
unit, no result that becomes visible; codes: good, then a5 (own side: a7), then flushes; what is behind the
failing WQE is as it was; the judge's.
Timing: memory latency 250 to 400 cycles.
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
MOMENTS = (1200, 2500, 4001)
CASES = [(victim, moment) for moment in MOMENTS for victim in VICTIMS]
#: PE of each case's requester
SIDES = [(case + case // len(VICTIMS)) % 2 for case in range(len(CASES))]
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


async def stream(stage: Stage, qp: RawQp, case: int, regions: dict[tuple[int, int], int]) -> list[int]:
    """Rings full of WQEs again and again until one fails; all codes."""
    codes: list[int] = []
    while not codes or not codes[-1]:
        await qp.post(*items(qp, case, regions, DEPTH))
        codes += (await qp.collect(DEPTH, 200_000))["error_code"].tolist()
        await qp.ring_cq()
    return codes


@cocotb.test()
async def test_under_load(dut):
    """Case by case: a stream, and its region goes."""
    fabric, regions = build(cocotb.RANDOM_SEED)
    knobs = {"mem_latency": 250, "mem_latency_jitter": 150, "commit_delay": 400}
    stage = Stage(dut, fabric, (), knobs=knobs)
    await stage.start()
    batches: list[np.ndarray] = []
    stage.rig.sinks.append(lambda records, _side: batches.append(records))
    qps = [stage.ends[pe, 1 - pe, case] for case, pe in enumerate(SIDES)]
    #: cycle of the command, cycle in which STATUS is idle again
    given: dict[int, tuple[int, int]] = {}

    async def under_way(pe: int, low: int) -> None:
        """Wait for a result that is written and not visible yet: of values there is seldom one."""
        for _ in range(2000):
            stage.rig.drain()
            recent = np.concatenate(batches[-64:])
            recent = recent[(recent["pe"] == pe) & (recent["id"] == AxiId.RESULT)]
            recent = recent[(recent["addr"] >= low & ~63) & (recent["addr"] < low + PART)]
            kinds = recent["kind"][np.isin(recent["kind"], (Kind.AXI_W, Kind.COMMIT))]
            if kinds.size and kinds[-1] == Kind.AXI_W:
                return
            await stage.rig.lib.cycles(4)

    async def command(case: int, begun: int) -> None:
        pe, region = victim(case, qps[case]), regions[victim(case, qps[case]), case]
        await stage.rig.lib.cycles(begun + CASES[case][1] - stage.rig.lib.cycle)
        if VICTIMS[CASES[case][0]][0] == "own":
            await under_way(pe, place(qps[case], pe, case))
        given[case] = stage.rig.lib.cycle, await invalidate(stage, pe, region)

    answers: list[list[int]] = []
    for case, qp in enumerate(qps):
        # one alone: the command also waits for what others have in the same stages
        task = cocotb.start_soon(command(case, stage.rig.lib.cycle))
        answers += await stage.beside((qp, stream(stage, qp, case, regions)))
        await task
    stage.rig.drain()
    records = np.concatenate(batches)
    met = dict.fromkeys(VICTIMS, False)
    for case, (name, moment) in enumerate(CASES):
        codes, (side, op, kind, ident) = answers[case], VICTIMS[name]
        pe, (since, ended) = victim(case, qps[case]), given[case]
        low = place(qps[case], pe, case)
        of = (records["pe"] == pe) & (records["kind"] == kind) & (records["id"] == ident)
        mine = records[of & (records["addr"] >= low & ~63) & (records["addr"] < low + PART)]
        late = mine[mine["time"] > ended]
        assert not late.size, f"{name} at {moment}: {late.size} accesses after cycle {ended}"
        met[name] |= bool((mine["time"] > since).any())
        good = codes.index(0xA5 if side == "peer" else 0xA7)
        assert codes == [0] * good + [codes[good]] + [FLUSH] * (len(codes) - good - 1), f"{name}: {codes}"
        if side == "own" and good < DEPTH:
            memory = stage.rig.lib.memory(pe, low, PART)
            assert not memory[(good + 1) * SIZE[op] :].any(), f"{name}: written behind the failing WQE"
    assert all(met.values()), f"commands that met no access: {met}"
    await stage.rig.check()


@cocotb.test()
async def test_at_rest(dut):
    """Each region goes while its QP is idle: the next WQE fails, whatever the bus would have answered."""
    fabric, regions = build(cocotb.RANDOM_SEED)
    stage = Stage(dut, fabric, ())
    await stage.start()
    qps = [stage.ends[pe, 1 - pe, case] for case, pe in enumerate(SIDES)]

    async def some(qp: RawQp, case: int, count: int) -> list[int]:
        await qp.post(*items(qp, case, regions, count))
        return await qp.complete(count)

    answers = await stage.beside(*[(qp, some(qp, case, 4)) for case, qp in enumerate(qps)])
    assert answers == [[0] * 4] * len(CASES)
    await stage.rig.settle()
    for case, qp in enumerate(qps):
        pe = victim(case, qp)
        await invalidate(stage, pe, regions[pe, case])
        if case % 3 == 0:
            error(stage.rig, pe, place(qp, pe, case), PART, "rw")
    answers = await stage.beside(*[(qp, some(qp, case, 3)) for case, qp in enumerate(qps)])
    for (name, _), codes in zip(CASES, answers, strict=True):
        assert codes == [0xA5 if VICTIMS[name][0] == "peer" else 0xA7, FLUSH, FLUSH], f"{name}: {codes}"
    await stage.rig.check()
