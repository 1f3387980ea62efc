"""The 14 atomics end to end: values against plain Python integers, result cells, refusals, contention.

Sweep: every atomic x int32, uint32, int64, uint64 x schedules x versions x driver generations, random and
corner operands. Stimulus: programs on the golden NICs. Checks: each returned old value, the word and its
neighbours afterwards, the bytes of the result cell, what an errored atomic gives. Timing: none. Does not
prove: the RTL's atomic unit; the WQEs are `test_device_wqe`'s.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from pymodel import device
from pymodel.device import AtomicOpTraits, DeviceTrap, Generation, Pe
from tests.model import wqe_expect as expect
from tests.model.model_programs import SCHEDULES, Schedule, model_run, only

TYPES = (np.int32, np.uint32, np.int64, np.uint64)
GENERATIONS = tuple(Generation)
NAMES = tuple(expect.ATOMICS)


def one(**override: Any) -> dict[str, Any]:
    """Config of a fabric whose QP (0, 1, 0) has these properties."""
    return {"overrides": {(0, 1, 0): override}}


def value_of(kind: Any, bits: int) -> int:
    """A number without sign as the type shows it."""
    return int(np.array(bits, np.uint64).astype(kind))


async def call(pe: Pe, name: str, dst: int, value: int, cond: int, kind: Any) -> int | None:
    """One atomic by its name on `Pe.atomic`."""
    short = {"and": "and_", "or": "or_"}.get(name, name)
    args = {"fetch": (), "inc": (), "fetch_inc": (), "compare_swap": (cond, value)}.get(name, (value,))
    result: int | None = await getattr(pe.atomic, short)(dst, *args, 1, dtype=kind)
    return result


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", TYPES)
def test_each_atomic_against_plain_integers(
    kind: Any, version: int, generation: Generation, schedule: Schedule
) -> None:
    """Every atomic on corner and random values: what it returns, what stands there, what stands beside it."""
    size = np.dtype(kind).itemsize
    bits = 8 * size
    info = np.iinfo(kind)
    rng = random.Random(f"{kind} {version} {generation}")
    corners = [
        0,
        1,
        int(info.min),
        int(info.max),
        value_of(kind, 1 << bits - 1),
        value_of(kind, (1 << bits) - 1),
    ]

    def draw() -> int:
        return rng.choice([*corners, rng.randint(int(info.min), int(info.max))])

    plan = [(name, draw(), draw(), rng.random() < 0.5) for _ in range(6) for name in NAMES]

    async def main(pe: Pe) -> None:
        block = pe.alloc(64)
        word = block + 24
        stands = int.from_bytes(bytes(range(size)), "little")
        for name, value, cond, matching in plan:
            known = value_of(kind, stands)
            cond = known if matching else cond
            got = await call(pe, name, word, value, cond, kind)
            assert (got is not None) == (name in expect.SYNCHRONOUS)
            if got is None:
                await pe.quiet(1)
            else:
                assert got == known, (name, value, cond)
                assert type(got) is int
            stands = expect.new_value(name, stands, value, cond, bits)
        # the word as the peer has it, between its neighbours
        await pe.get_nbi(block, block, 64, 1)
        await pe.quiet(1)
        after = pe.memory(block, 64).tobytes()
        assert after[24 : 24 + size] == stands.to_bytes(size, "little")
        assert after[:24] == b"\xa5" * 24 and after[24 + size :] == b"\xa5" * (40 - size)

    async def both(pe: Pe) -> None:
        if pe.rank == 0:
            await main(pe)

    run = model_run(both, schedule, generation=generation, **one(version=version))
    peer = run.fabric.pes[1]
    content = b"\xa5" * 24 + bytes(range(size)) + b"\xa5" * (40 - size)
    run.model.memories[1].view(peer.heap_base + (1 << 20), 64)[:] = np.frombuffer(content, np.uint8)
    assert run.run().problems == []


# ------------------------------------------------------------------ result cell
@pytest.mark.parametrize("kind", TYPES)
def test_byte_order_of_the_result_cell(kind: Any) -> None:
    """5.4 and 1.5: 8-byte results little-endian, 4-byte results big-endian; nothing beyond them changes."""
    size = np.dtype(kind).itemsize
    stands = 0x01020304 if size == 4 else 0x0102030405060708

    async def main(pe: Pe) -> bytes:
        word = pe.alloc(8)
        await pe.atomic.set(word, stands, 1, dtype=kind)
        await pe.atomic.add(word, 1, 1, dtype=kind)
        await pe.quiet(1)
        cell = device.aclshmemi_roce_get_atomic_fetch_addr(pe, 1, 0)
        assert device.aclshmemi_roce_get_atomic_fetch_data(pe, 1, 0, dtype=kind) == stands
        return pe.memory(cell, 16).tobytes()

    run = model_run(only(0, main))
    raw = run.run().returns[0]
    order = "01020304" if size == 4 else "0807060504030201"
    assert raw.hex() == order.ljust(32, "0")
    assert run.pes[0].qp(1).amo_addr == run.fabric.pes[0].amo_base + 1024


def test_one_cell_per_peer_and_asynchronous_atomics_write_it_too() -> None:
    """5.4 and 8.1 row 12: of two atomics without a quiet the later one's old value stays, a cell a peer."""

    async def main(pe: Pe) -> None:
        word = pe.alloc(8)
        for peer, first in ((1, 100), (2, 200)):
            await pe.atomic.set(word, first, peer)
            await pe.atomic.add(word, 5, peer)
            await pe.atomic.inc(word, peer)
        await pe.quiet(1)
        await pe.quiet(2)
        got = [device.aclshmemi_roce_get_atomic_fetch_data(pe, peer, 0, dtype=np.int64) for peer in (1, 2)]
        assert got == [105, 205]

    for schedule in SCHEDULES:
        assert model_run(only(0, main), schedule, n_pes=3).run().problems == []


@pytest.mark.parametrize("generation", [Generation.G1, Generation.G2])
def test_an_errored_atomic_returns_the_stale_cell(generation: Generation) -> None:
    """5.4: the value does not depend on the status; G1 and G2 say nothing."""

    async def main(pe: Pe) -> None:
        word = pe.alloc(16)
        pe.expect_errors(1, 0, 0x89)
        assert await pe.atomic.fetch_add(word, 7, 1) == 0
        assert await pe.atomic.fetch_add(word, 7, 1) == 7
        assert await pe.atomic.fetch_add(word + 4, 9, 1) == 7, "misaligned: stale"
        assert pe.qp(1).errors == [(2, 0x89)]

    run = model_run(only(0, main), generation=generation)
    result = run.run()
    assert result.problems == [] and result.errors_provoked == 1
    word = run.model.memory(1, run.fabric.pes[1].heap_base + (1 << 20), 16)
    assert word.tobytes() == (14).to_bytes(16, "little")


def test_an_errored_atomic_traps_in_g3() -> None:
    """4.3: the caller gets no value; the trap names peer, QP, WQE and code."""

    async def main(pe: Pe) -> None:
        word = pe.alloc(16)
        assert await pe.atomic.fetch_add(word, 7, 1) == 0
        with pytest.raises(DeviceTrap) as caught:
            await pe.atomic.fetch_add(word + 4, 9, 1)
        trap = caught.value
        assert (trap.pe, trap.peer, trap.qp_idx, trap.wqe, trap.code) == (0, 1, 0, 1, 0x89)
        assert str(trap) == "PE 0: trap: WQE 1 to PE 1, QP 0: 0x89 (ATOMIC_VA_REQ)"
        assert pe.qp(1).cq_tail == 1

    result = model_run(only(0, main), generation=Generation.G3).run()
    assert "WQE 1 completed with error 0x89 (ATOMIC_VA_REQ): an atomic at an addr" in result.problems[0]


# ------------------------------------------------------------------ refusals
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "kind", [np.float32, np.float64, np.float16, np.int16, np.bool_, np.complex64, ">i4"]
)
def test_other_types_are_refused(kind: Any, name: str) -> None:
    """Floats would be converted numerically, other sizes do not compile (5.3): one clear error, no post."""

    async def main(pe: Pe) -> None:
        word = pe.alloc(8)
        with pytest.raises(TypeError) as caught:
            await call(pe, name, word, 1, 1, kind)
        assert (
            str(caught.value) == f"atomic on {np.dtype(kind)}: RDMA atomics take int32, uint32, int64, uint64"
        )
        assert pe.qp(1).posts == 0

    assert model_run(only(0, main)).run().good


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("fetch", "inc", "fetch_inc")])
@pytest.mark.parametrize("kind", TYPES)
def test_values_that_are_no_value_of_the_type(kind: Any, name: str) -> None:
    """A float is no integer; a number beyond the type is not cut in silence."""
    info = np.iinfo(kind)

    async def main(pe: Pe) -> None:
        word = pe.alloc(8)
        for bad in (1.0, np.float32(1), True, "1"):
            with pytest.raises(TypeError, match="an atomic takes integers"):
                await call(pe, name, word, bad, 1, kind)  # type: ignore[arg-type]
        for bad in (int(info.max) + 1, int(info.min) - 1):
            with pytest.raises(OverflowError, match=f"{bad} does not fit {np.dtype(kind)}"):
                await call(pe, name, word, bad, 1, kind)
        await call(pe, name, word, np.uint8(3), 1, kind)  # type: ignore[arg-type]
        assert pe.qp(1).posts == 1
        await pe.quiet(1)

    assert model_run(only(0, main)).run().problems == []


def test_condition_of_compare_swap_is_a_value_too() -> None:
    """Of the type, like the new value."""

    async def main(pe: Pe) -> None:
        word = pe.alloc(8)
        with pytest.raises(OverflowError, match="cond -1 does not fit uint32"):
            await pe.atomic.compare_swap(word, -1, 1, 1, dtype=np.uint32)
        with pytest.raises(TypeError, match="cond"):
            await pe.atomic.compare_swap(word, 1.5, 1, 1)  # type: ignore[arg-type]

    assert model_run(only(0, main)).run().good


@pytest.mark.parametrize("kind", [np.int32, np.uint32])
def test_plain_4_byte_atomics_do_not_exist(kind: Any) -> None:
    """1.5: a compile-time error there; the traits of 8 bytes have both forms."""
    with pytest.raises(TypeError, match="4-byte atomics exist in masked form only"):
        AtomicOpTraits(kind, masked=False)
    assert int(AtomicOpTraits(kind, masked=True).fetch_and_add) == 34
    assert int(AtomicOpTraits(np.int64, masked=False).compare_and_swap) == 26


def test_an_atomic_on_the_own_rank_divides_by_zero() -> None:
    """7.3: as every other call does there."""

    async def main(pe: Pe) -> None:
        with pytest.raises(ZeroDivisionError):
            await pe.atomic.inc(pe.alloc(8), pe.rank)

    assert model_run(only(0, main)).run().good


# ------------------------------------------------------------------ fine-grained
def test_fine_grained_atomics_return_0_on_any_qp() -> None:
    """5.2: not the fetched value; the masks and boundaries are free, and so is the QP."""

    async def main(pe: Pe) -> None:
        word = pe.alloc(8)
        remote = pe.ptr(word, 1)
        add, cas = device.aclshmemi_roce_amo_add, device.aclshmemi_roce_amo_cas
        data = device.aclshmemi_roce_get_atomic_fetch_data
        assert await add(pe, remote, 0, 1, 1, 0x00FF_00FF, 0, dtype=np.uint64, masked=True) == 0
        # two 16-bit fields: the carry out of bit 15 is dropped
        assert await add(pe, remote, 0, 1, 1, 0x0001_FFFF, 0x8000, dtype=np.uint64, masked=True) == 0
        await pe.quiet(1, 1)
        assert data(pe, 1, 1, dtype=np.uint64) == 0x00FF_00FF
        # compare under a mask that holds, swap the low byte only
        assert (
            await cas(pe, remote, 0, 1, 1, 0x77, 0x0100_0000, 0xFF, 0xFF00_0000, dtype=np.uint64, masked=True)
            == 0
        )
        await pe.quiet(1, 1)
        assert data(pe, 1, 1, dtype=np.uint64) == 0x0100_00FE
        # one that does not hold writes nothing
        await device.aclshmemi_roce_atomic_compare_and_swap(
            pe, remote, 1, 0, 1, 1, 0, 0, dtype=np.uint64, masked=False
        )
        await device.aclshmemi_roce_atomic_fetch_and_add(
            pe, remote, 1, 0, 0, 0, dtype=np.uint64, masked=False
        )
        await pe.quiet(1, 0)
        assert data(pe, 1, 0, dtype=np.uint64) == 0x0100_0077

    run = model_run(only(0, main), qps=2)
    assert run.run().problems == []


# ------------------------------------------------------------------ contention
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", TYPES)
def test_contended_fetch_add_hands_out_each_number_once(kind: Any, schedule: Schedule) -> None:
    """Every PE but the target draws tickets from one word: no number twice, none left out."""
    pes, tickets = 4, 12

    async def main(pe: Pe) -> list[int]:
        word = pe.alloc(8)
        if pe.rank == 0:
            return []
        return [await pe.atomic.fetch_add(word, 1, 0, dtype=kind) for _ in range(tickets)]

    result = model_run(main, schedule, n_pes=pes).run()
    assert result.problems == []
    drawn = [mine for mine in result.returns if mine]
    assert all(mine == sorted(mine) for mine in drawn)
    assert sorted(sum(drawn, [])) == list(range((pes - 1) * tickets))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_lock_by_compare_swap_keeps_the_others_out(schedule: Schedule) -> None:
    """A counter read and written by get and put under a lock word: every increment survives."""
    pes, rounds = 3, 4

    async def main(pe: Pe) -> None:
        lock, counter, mine = pe.alloc(8), pe.alloc(8), pe.alloc(8)
        if pe.rank == 0:
            return
        for _ in range(rounds):
            while await pe.atomic.compare_swap(lock, 0, pe.rank, 0):
                pass
            await pe.get_nbi(mine, counter, 8, 0)
            await pe.quiet(0)
            value = int.from_bytes(pe.memory(mine, 8).tobytes(), "little")
            await pe.store(mine, (value + 1).to_bytes(8, "little"))
            await pe.put_nbi(counter, mine, 8, 0)
            await pe.quiet(0)
            await pe.atomic.set(lock, 0, 0)
            await pe.quiet(0)

    run = model_run(main, schedule, n_pes=pes)
    assert run.run().problems == []
    at = run.fabric.pes[0].heap_base + (1 << 20)
    words = np.frombuffer(run.model.memory(0, at, 128).tobytes(), "<i8")
    assert words[0] == 0 and words[8] == (pes - 1) * rounds
