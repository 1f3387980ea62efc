"""Programs without races do the same on the golden NICs and on the RTL (programs.md 3).

Sweep: driver generations 1 to 3, V1 in one direction and V2 in the other, every MTU, rings of 16 to 64,
both strides, indices near their wraps, dirty UB and rings, ignore_overrun; the model under its three
schedules, the RTL under stalls. Sync and barriers: test_model_equality_sync.py.
Stimulus: both PEs at once: all 14 atomics on four types; puts and gets mixed on three QPs; batches of G3 with
completion by wqe_id.
Checks: `tests.nic.equal`: heaps, results, doorbells in order; old and new values of the atomics by plain
Python integers, landed bytes by slices; floats are refused without a post; the judge's.
Timing: none. Not proved: races (test_contended_atomics.py), errors, and what the rings hold.
"""

from __future__ import annotations

import random
from typing import Any

import cocotb
import numpy as np
import pytest

from pymodel.device import (
    Generation,
    Pe,
    aclshmemx_roce_qp_get_defer,
    aclshmemx_roce_qp_get_submit,
    aclshmemx_roce_qp_put_defer,
    aclshmemx_roce_qp_put_submit,
)
from pymodel.host.table import FabricConfig
from pymodel.run import with_fault_timers
from tests.model import wqe_expect as expect
from tests.nic.equal import Outcome, equal

PES = 2
TYPES = (np.int32, np.uint32, np.int64, np.uint64)
STALLS = {
    "mem_latency": 40, "mem_latency_jitter": 200, "mem_ooo": 20000, "commit_delay": 100,
    "link_stall_rx": 2000,
}  # fmt: skip


def config(generation: Generation, qps: int, **overrides: Any) -> FabricConfig:
    """Everything mixed but the generation; QP q is V1 from PE 0 and V2 from PE 1, or the other way round."""
    own: dict[tuple[int, int, int], dict[str, Any]] = {
        (pe, 1 - pe, qp): {"version": 1 + (pe + qp) % 2} for pe in (0, 1) for qp in range(qps)
    }
    for (_, _, qp), changes in own.items():
        changes |= overrides.get(f"qp{qp}", {})
    return FabricConfig.mixed(
        2, qps, cocotb.RANDOM_SEED, sq_depths=(16, 32, 64), generation=generation, ub_fill="dirty",
        heap_bytes=2 << 20, overrides=own,
    )  # fmt: skip


# ------------------------------------------------------------------ atomics
ROUNDS = 3


def atomic_plan(seed: int, rank: int, kind: Any) -> list[tuple[str, int, int, bool]]:
    """(name, value, compare value, compare with what is there) of what PE ``rank`` does to one word."""
    rng, info = random.Random(f"equality {seed} {rank} {np.dtype(kind)}"), np.iinfo(kind)

    def draw() -> int:
        low, high = int(info.min), int(info.max)
        return rng.choice((0, 1, low, high, high - 1, rng.randint(low, high), rng.randint(low, high)))

    names = [name for name in expect.ATOMICS for _ in range(ROUNDS)]
    rng.shuffle(names)
    return [(name, draw(), draw(), rng.random() < 0.5) for name in names]


def typed(kind: Any, bits: int) -> int:
    """A number without sign as the type shows it."""
    return int(np.array(bits, np.uint64).astype(kind))


async def atomics(pe: Pe) -> list[int]:
    """Every atomic on a word of each type at the peer; gives the old values."""
    peer, block = 1 - pe.rank, pe.alloc(256)
    await pe.store(block, b"\xa5" * 256)
    await pe.barrier_all()
    olds, words = [], {}
    for number, kind in enumerate(TYPES):
        bits = 8 * np.dtype(kind).itemsize
        # the upper and the lower half of a word, then two whole ones
        word = block + 64 * number + (4, 16, 24, 56)[number]
        stands = 0xA5A5_A5A5_A5A5_A5A5 & (1 << bits) - 1
        for name, value, cond, matching in atomic_plan(pe.seed, pe.rank, kind):
            cond = typed(kind, stands) if matching else cond
            call = getattr(pe.atomic, {"and": "and_", "or": "or_"}.get(name, name))
            special = {"fetch": (), "inc": (), "fetch_inc": (), "compare_swap": (cond, value)}
            old = await call(word, *special.get(name, (value,)), peer, dtype=kind)
            assert (old is not None) == (name in expect.SYNCHRONOUS)
            if old is not None:
                assert old == typed(kind, stands), f"{name} of {value}, {cond} on {kind} at {stands:#x}"
                olds.append(old)
            stands = expect.new_value(name, stands, value, cond, bits)
        words[word - block] = stands.to_bytes(bits // 8, "little")
    posts = pe.qp(peer).posts
    for kind in (np.float32, np.float64, np.int16):
        with pytest.raises(TypeError, match="atomics take int32, uint32, int64, uint64"):
            await pe.atomic.fetch_add(block, 1, peer, dtype=kind)
    with pytest.raises(TypeError, match="takes integers, not float"):
        await pe.atomic.set(block, 1.0, peer)  # type: ignore[arg-type]
    assert pe.qp(peer).posts == posts
    # the peer's block as it is now, between its neighbours
    copy = pe.alloc(256)
    await pe.get_nbi(copy, block, 256, peer)
    await pe.quiet(peer)
    content = bytearray(b"\xa5" * 256)
    for at, value in words.items():
        content[at : at + len(value)] = value
    assert pe.memory(copy, 256).tobytes() == content
    await pe.barrier_all()
    return olds


@cocotb.test()
@cocotb.parametrize(generation=[1, 2, 3])
async def test_atomics(dut, generation: int) -> None:
    rtl = await equal(dut, config(Generation(generation), 1), lambda: atomics, **STALLS)
    assert all(len(olds) == len(TYPES) * ROUNDS * len(expect.SYNCHRONOUS) for olds in rtl.returns)


# ------------------------------------------------------------------ puts and gets
async def meet(pe: Pe) -> None:
    """Barrier in a task of its own, which owns the QPs for that long only."""
    await pe.join(await pe.spawn(pe.barrier_all(), "barrier"))


POOL, SPAN = 16 << 10, 24 << 10


def sizes(rng: random.Random, count: int) -> list[int]:
    """Mostly small, now and then of several packets."""
    limits = [rng.choice((1, 2, 9, 200, 200, 9000)) for _ in range(count)]
    return [rng.randrange(limit) for limit in limits]


async def moves(pe: Pe) -> None:
    """Puts and gets on every QP, a quiet now and then; each lands in a place of its own."""
    peer, source = 1 - pe.rank, pe.alloc(POOL)
    windows = [(pe.alloc(SPAN), pe.alloc(SPAN)) for _ in range(pe.qp_num)]
    pools = [random.Random(f"pool {pe.seed} {rank}").randbytes(POOL) for rank in (0, 1)]
    await pe.store(source, pools[pe.rank])
    await meet(pe)

    async def one(qp: int) -> None:
        rng = random.Random(f"moves {pe.seed} {pe.rank} {qp}")
        got = bytearray(SPAN)
        for size in sizes(rng, 90):
            start, at = rng.randrange(POOL - size), rng.randrange(SPAN - size)
            if rng.random() < 0.5:
                await pe.put_nbi(windows[qp][0] + at, source + start, size, peer, qp)
            else:
                await pe.get_nbi(windows[qp][1] + at, source + start, size, peer, qp)
                got[at : at + size] = pools[peer][start : start + size]
            if rng.random() < 0.08:
                await pe.quiet(peer, qp)
        await pe.quiet(peer, qp)
        assert pe.memory(windows[qp][1], SPAN).tobytes() == got

    for task in [await pe.spawn(one(qp), f"QP {qp}") for qp in range(pe.qp_num)]:
        await pe.join(task)


@cocotb.test()
@cocotb.parametrize(generation=[1, 2, 3])
async def test_puts_and_gets(dut, generation: int) -> None:
    """Rings are lapped, so that drains ring CQ doorbells between the quiets."""
    rtl = await equal(dut, config(Generation(generation), 3), lambda: moves, **STALLS)
    assert all(len(rtl.doorbells[pe, 1 - pe, qp, "SQ"]) >= 90 for pe in (0, 1) for qp in range(3))
    assert all(len(rtl.doorbells[pe, 1 - pe, qp, "CQ"]) > 1 for pe in (0, 1) for qp in range(3))


@cocotb.test()
async def test_under_the_same_faults(dut) -> None:
    """Both platforms recover from what the same rules do, each to packets of its own."""
    rules = "every 1/30: drop\nevery 1/40: duplicate\nevery 1/60: reorder 2\nevery 1/60: corrupt 2 bits"
    await equal(dut, with_fault_timers(config(Generation(1), 1)), lambda: atomics, faults=rules)


# ------------------------------------------------------------------ batches
async def batches(pe: Pe) -> None:
    """Batches and single posts, puts and gets, on each QP."""
    peer, source = 1 - pe.rank, pe.alloc(POOL)
    windows = [(pe.alloc(SPAN), pe.alloc(SPAN)) for _ in range(pe.qp_num)]
    pools = [random.Random(f"pool {pe.seed} {rank}").randbytes(POOL) for rank in (0, 1)]
    await pe.store(source, pools[pe.rank])
    await meet(pe)

    async def one(qp: int) -> None:
        rng = random.Random(f"batches {pe.seed} {pe.rank} {qp}")
        depth, got = pe.qp(peer, qp).depth, bytearray(SPAN)
        # a longer one would take single posts past the point where they look for room (device page 4.1)
        most = min(15, 15 if depth == 16 else depth - 16)
        buf = pe.local_tensor(4096 * (1 + qp), 64 + 128 * most)
        for turn in range(24):
            total = rng.choice((1, 2, rng.randint(1, most), most)) if turn % 4 else 0
            # of a batch only the last asks for a CQE
            for index in range(max(total, 1)):
                (size,) = sizes(rng, 1)
                start, at = rng.randrange(POOL - size), rng.randrange(SPAN - size)
                put = rng.random() < 0.5
                to = windows[qp][0 if put else 1] + at
                if not put:
                    got[at : at + size] = pools[peer][start : start + size]
                if not total:
                    await (pe.put_nbi if put else pe.get_nbi)(to, source + start, size, peer, qp)
                    continue
                if index == total - 1:
                    call = aclshmemx_roce_qp_put_submit if put else aclshmemx_roce_qp_get_submit
                else:
                    call = aclshmemx_roce_qp_put_defer if put else aclshmemx_roce_qp_get_defer
                await call(pe, to, source + start, buf, size, peer, qp, index)
            if rng.random() < 0.2:
                await pe.quiet(peer, qp)
        await pe.quiet(peer, qp)
        assert pe.memory(windows[qp][1], SPAN).tobytes() == got

    for task in [await pe.spawn(one(qp), f"QP {qp}") for qp in range(pe.qp_num)]:
        await pe.join(task)


@cocotb.test()
async def test_batches(dut) -> None:
    """QPs 1 and 3 write every CQE to slot 0 and get no CQ doorbell."""
    overrun = {"ignore_overrun": True}
    rtl = await equal(dut, config(Generation.G3, 4, qp1=overrun, qp3=overrun), lambda: batches, **STALLS)
    check_batches(rtl)


def check_batches(rtl: Outcome) -> None:
    """Fewer doorbells than WQEs; none for CQs without an end."""
    for pe in (0, 1):
        for qp in range(4):
            assert len(rtl.doorbells[pe, 1 - pe, qp, "SQ"]) >= 24
            assert ((pe, 1 - pe, qp, "CQ") in rtl.doorbells) == (qp % 2 == 0)
