"""Kinds of failures on whole NICs that no other file is about (docs/failure-kinds.md).

Sweep: a doorbell for WQEs that are not written yet, at each place of a doorbell's WQEs, over slots of the lap
before and over noise; an error while the CQ, as deep as the SQ, is full, with another receive CQ; atomics on
words whose offsets differ in one bit, up to 4 MiB, and round the borders of 8 KiB and 64 KiB.
Stimulus: WQEs by hand. Checks: error codes and order of all CQEs, bytes of CQ rings that must not change,
original values and words by plain Python; the judge's. Timing: none. Does not prove: a WQE of which only the
first segment is new when it is fetched (nothing in a WQE tells).
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.formats.wqe import ATOMIC_SIZE, WqeOp
from pymodel.host.table import WQE_BYTES, Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp
from pymodel.platform import sleep, store
from tb.sim.platform import Rig
from tests.nic.raw import FLUSH, TARGET, Console, RawQp, fill_sources, renew

PES = 2
DEPTH = 8
FORMAT_ERROR, REMOTE_ACCESS = 0xAB, 0xA5


def fabric(qps: int, **changes: Any) -> Fabric:
    """Rings of one depth, V1 and V2 in turn."""
    overrides = {
        (pe, 1 - pe, q): {"version": 1 + q % 2, "start_index": 5 * q} for pe in (0, 1) for q in range(qps)
    }
    config = FabricConfig(
        n_pes=2, qps=qps, seed=cocotb.RANDOM_SEED, sq_depths=(DEPTH,), cq_factors=(1,), heap_bytes=32 << 20,
        overrides=overrides, **changes,
    )  # fmt: skip
    return Fabric.build(config)


async def alone(rig: Rig, *jobs: Any) -> list[Any]:
    """Run jobs at the same time on PE 0; their answers."""
    answers: list[Any] = [None] * len(jobs)

    async def one(number: int, job: Any) -> None:
        answers[number] = await job

    async def main(pe: Pe) -> None:
        for task in [await pe.spawn(one(number, job), f"job {number}") for number, job in enumerate(jobs)]:
            await pe.join(task)

    result = await rig.run([main, None])
    assert result.good, result.problems
    return answers


@cocotb.test()
async def test_doorbell_before_its_wqe(dut) -> None:
    """The slot still holds the WQE of the lap before, or noise: ab, flushes behind it, nothing of it done."""
    places = range(4)
    net = fabric(2 * len(places))
    rig = Rig(dut, net)
    await rig.start()
    await fill_sources(rig, cocotb.RANDOM_SEED)
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    ends = [RawQp(rig, 0, 1, q) for q in range(2 * len(places))]
    backs = [RawQp(rig, 1, 0, q) for q in range(2 * len(places))]

    async def early(qp: RawQp, written: int, noise: bool) -> list[int]:
        codes = []
        for _ in range(2):
            await qp.post(*[qp.fields(64, 64 * k) for k in range(DEPTH)])
            codes += await qp.complete(DEPTH)
        assert codes == [0] * 2 * DEPTH
        await qp.put(*[qp.fields(64, 4096 + 64 * k) for k in range(written)])
        if noise:
            # nothing that was ever a WQE, at the very slot
            slot = rng.integers(0, 256, WQE_BYTES, np.uint8)
            await store(qp.plan.sq_base + qp.head % DEPTH * WQE_BYTES, slot, True)
        await qp.ring_sq(qp.head - written + 4)
        codes = await qp.complete(4)
        # written now: too late, the QP is in ERR
        qp.head += 4 - written
        await qp.post(qp.fields(64, 8192))
        return codes + await qp.complete(1)

    jobs = [early(ends[2 * k + n], k, bool(n)) for k in places for n in (0, 1)]
    for (k, _), codes in zip([(k, n) for k in places for n in (0, 1)], await alone(rig, *jobs), strict=True):
        assert codes == [0] * k + [FORMAT_ERROR] + [FLUSH] * (4 - k)
    for qp, back in zip(ends, backs, strict=True):
        assert await Console(rig, 0).states(qp.plan.qpn) == "ERR"
        await renew(rig, qp, back, (3, 4))

    async def again(qp: RawQp) -> list[int]:
        await qp.post(*[qp.fields(64, 64 * k) for k in range(DEPTH)])
        return await qp.complete(DEPTH)

    assert await alone(rig, *[again(qp) for qp in ends]) == [[0] * DEPTH] * len(ends)
    await rig.check()


@cocotb.test()
async def test_full_cq_at_an_error(dut) -> None:
    """CQ as deep as the SQ and full: error and flushes wait for room, all come, and only to the send CQ."""
    net = fabric(4)
    rig = Rig(dut, net)
    await rig.start()
    await fill_sources(rig, cocotb.RANDOM_SEED)
    rng = random.Random(f"full {cocotb.RANDOM_SEED}")
    console = Console(rig, 0)
    ends = [RawQp(rig, 0, 1, q) for q in range(4)]
    # QPs 0 and 1 name the CQs of QPs 2 and 3 as their receive CQs
    for qp, other in zip(ends[:2], ends[2:], strict=True):
        context, _ = net.contexts(qp.plan)
        assert await console.command(CmdOp.RESET, CmdObj.QP, qp.plan.qpn) == 0
        words = replace(context, recv_cq=other.plan.cqn).stage_words()
        assert await console.command(CmdOp.SET, CmdObj.QP, qp.plan.qpn, words) == 0
    before = [end.cell.copy() for end in ends[2:]]

    async def job(qp: RawQp, bad: int) -> list[int]:
        codes = []
        await qp.post(*[qp.fields(64, 64 * k) for k in range(DEPTH)])
        assert await qp.until(DEPTH)
        full = qp.cell.copy()
        await qp.post(*[qp.fields(64, **({"rkey": 0xFFFF_FF00} if k == bad else {})) for k in range(DEPTH)])
        await sleep(3000)
        assert (qp.cell == full).all(), "no CQE without room"
        while len(codes) < 2 * DEPTH:
            codes += qp.take(rng.randrange(1, qp.visible() + 1))["error_code"].tolist()
            await qp.ring_cq()
            await sleep(600)
            # as many as there is room for, and no more
            assert qp.visible() == min(DEPTH, 2 * DEPTH - len(codes))
        return codes

    bads = (0, 5)
    found = await alone(rig, *[job(qp, bad) for qp, bad in zip(ends[:2], bads, strict=True)])
    for bad, codes in zip(bads, found, strict=True):
        assert codes == [0] * (DEPTH + bad) + [REMOTE_ACCESS] + [FLUSH] * (DEPTH - 1 - bad)
    assert all((end.cell == ring).all() for end, ring in zip(ends[2:], before, strict=True))
    assert await console.asyncs() == []
    await rig.check()


@cocotb.test()
async def test_far_words(dut) -> None:
    """A word for each bit of the offset, and round 8 KiB and 64 KiB: an atomic changes its own word alone."""
    net = fabric(1)
    rig = Rig(dut, net)
    await rig.start()
    rng = random.Random(f"far {cocotb.RANDOM_SEED}")
    qp = RawQp(rig, 0, 1)
    base = net.pes[1].heap_base + TARGET
    offsets = [0, *(1 << k for k in range(3, 23))]
    offsets += [at + d for at in (8192, 65536, 1 << 22) for d in (-8, 8) if at + d not in offsets]
    words = {at: rng.getrandbits(64) for at in offsets}
    for at, value in words.items():
        rig.lib.store(1, base + at, value.to_bytes(8, "little"))

    async def job() -> int:
        done = 0
        mine = rig.lib.memory(0, qp.fabric.pes[0].heap_base + TARGET + qp.window, 4096)
        for _ in range(6):
            order = offsets[:]
            rng.shuffle(order)
            for first in range(0, len(order), DEPTH):
                items, olds = [], []
                for k, at in enumerate(order[first : first + DEPTH]):
                    op = rng.choice((WqeOp.FA64, WqeOp.MFA64, WqeOp.MFA32, WqeOp.MCAS64, WqeOp.MCAS32))
                    size, old = ATOMIC_SIZE[op], words[at]
                    ones = (1 << 8 * size) - 1
                    operand = rng.getrandbits(8 * size)
                    changes = {"swap_add": operand, "raddr": base + at}
                    if op in (WqeOp.MCAS64, WqeOp.MCAS32):
                        changes["swap_mask"] = ones
                        new = operand
                    else:
                        new = (old & ones) + operand & ones
                    words[at] = old & ~ones | new
                    items.append(qp.atomic(op, 0, 64 * k, **changes))
                    olds.append((old & ones).to_bytes(size, "little" if size == 8 else "big"))
                await qp.post(*items)
                assert await qp.complete(len(items)) == [0] * len(items)
                assert [bytes(mine[64 * k : 64 * k + len(old)]) for k, old in enumerate(olds)] == olds
                done += len(items)
        return done

    assert await alone(rig, job()) == [6 * len(offsets)]
    memory = rig.lib.memory(1, base, (1 << 22) + 64)
    for at, value in words.items():
        assert int.from_bytes(bytes(memory[at : at + 8]), "little") == value, hex(at)
    touched = np.flatnonzero(memory) & ~7
    assert set(touched.tolist()) <= set(words)
    await rig.check()
