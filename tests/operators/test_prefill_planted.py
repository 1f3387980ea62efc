"""Planted faults of prefill: flags, adds, rows, order and halves. Each turns red what is there for it.

Sweep: lost and doubled flags and adds, swapped rows, flags and adds before their data, stuck halves.
Stimulus: three layers on four ranks, the fault put in by replacing one step of a kernel or of the device API
on one rank towards one other. Checks: the hang report names rank and peer, the sanitizer names the race, the
golden differs, a counter is out of its range. Timing: none. Does not prove: faults of the NIC.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pymodel.device.atomics import Atomics
from pymodel.device.pe import Pe
from pymodel.operators import prefill_rows, prefill_shmem, prefill_window
from pymodel.operators.common import MB, ProtocolError
from pymodel.operators.world import Rank
from pymodel.runner import HangError
from pymodel.sanitizer import RaceError
from tests.operators.prefill_faults import (
    CASES,
    FLAGS,
    NAMED,
    SOURCE,
    TARGET,
    check,
    drop,
    flags_first,
    in_combine,
    replace_puts,
    rows_back,
    swap,
)
from tests.operators.prefill_harness import (
    check_dispatched,
    check_posts,
    dispatch,
    layer,
    make_world,
    run_layers,
    run_shmem,
    told_by_golden,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from garbage that is compared


@pytest.mark.parametrize("signalling", ["flags", "atomics"])
@pytest.mark.parametrize("sanitize", [True, False])
def test_without_a_fault(signalling: str, sanitize: bool) -> None:
    """What the faults are planted in is good."""
    check(sanitize=sanitize, signalling=signalling, schedule="lazy")


# -------------------------------------------------------------------------------------------- flags and adds
@pytest.mark.parametrize("flag", FLAGS)
def test_a_lost_flag(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    """The hang names who waits, for what and from whom."""
    replace_puts(monkeypatch, FLAGS[flag], 1, drop, "put_nbi")
    with pytest.raises(HangError, match=NAMED.format(flag)):
        check()


@pytest.mark.parametrize(
    ("length", "text"), [(8, "notify flag"), (32, "dispatch statuses"), (32, "combine flag of token")]
)
def test_a_lost_flag_in_window_mode(monkeypatch: pytest.MonkeyPatch, length: int, text: str) -> None:
    """The first store of SOURCE to TARGET's slot is lost."""
    original, lost = prefill_window.own, []
    base = {"notify flag": 102 * MB + 32 * SOURCE, "dispatch statuses": 32 * SOURCE}

    def own(array: Any, offset: int, size: int) -> Any:
        view = original(array, offset, size)
        window = worlds[0].windows[TARGET]
        where = window.exp if text == "dispatch statuses" else window.win
        slot = offset == base[text] if text in base else offset >= 204 * MB
        if array is where and size == length and slot and not lost:
            lost.append(offset)
            return view.copy()
        return view

    worlds = [make_world(CASES, "window")]

    async def program(rank: Rank) -> list[Any]:
        return [await layer(prefill_window, rank, case, False) for case in CASES]

    monkeypatch.setattr(prefill_window, "own", own)
    with pytest.raises(HangError, match=rf"rank {TARGET}: waits for the {text}.*, from rank"):
        worlds[0].run(program)


@pytest.mark.parametrize("flag", FLAGS)
def test_a_doubled_flag(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    """Under the eager schedule it does no harm: the number of WQEs tells."""

    async def twice(held: list[tuple[int, ...]], post: Callable[..., Awaitable[None]]) -> None:
        await post(*held[0])
        await post(*held[0])

    replace_puts(monkeypatch, FLAGS[flag], 1, twice, "put_nbi")
    _, counted = run_layers(CASES, "shmem", False)
    with pytest.raises(AssertionError, match=rf"\({SOURCE}, '{flag.split()[0]}', 'WRITE'\)"):
        check_posts(CASES, False, counted)


ADDS = {"notify": ("fetch_add", 0), "dispatch": ("fetch_add", 1), "combine": ("add", 0)}


def replace_add(monkeypatch: pytest.MonkeyPatch, kind: str, times: int) -> None:
    """One add of SOURCE to TARGET's counter is done ``times`` times."""
    name, number = ADDS[kind]
    original, seen = getattr(Atomics, name), [0]

    async def replaced(self: Atomics, dst: int, value: int, peer: int, **options: Any) -> int | None:
        here = (self._pe.rank, peer) == (SOURCE, TARGET)
        seen[0] += here
        old = 0
        for _ in range(times if here and seen[0] == number + 1 else 1):
            old = await original(self, dst, value, peer, **options)
        return old

    monkeypatch.setattr(Atomics, name, replaced)


@pytest.mark.parametrize("kind", ADDS)
def test_a_lost_add(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A counter does not tell whose add is missing: the hang names the rank, the counter and its value."""
    replace_add(monkeypatch, kind, 0)
    with pytest.raises(
        HangError, match=rf"PE {TARGET}: waits for the {kind} counter of parity 0 to become \d"
    ):
        check(signalling="atomics")


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_doubled_add(monkeypatch: pytest.MonkeyPatch, kind: str, seed: int) -> None:
    """A counter beyond its base, or an old value out of range, whoever sees it first.

    Rows of others may be missing where the sum is right too early: then the sanitizer sees them.
    """
    replace_add(monkeypatch, kind, 2)
    counter = rf"{kind} counter of parity 0 (of rank {TARGET} was|is) \d+, not"
    with pytest.raises((ProtocolError, RaceError), match=rf"{counter}|PE {TARGET}.*looks at the destination"):
        check(signalling="atomics", schedule="random", seed=seed)


# ------------------------------------------------------------------------------------------------------ rows
@pytest.mark.parametrize("signalling", ["flags", "atomics"])
def test_two_rows_swapped_in_combine(monkeypatch: pytest.MonkeyPatch, signalling: str) -> None:
    """Within one token or between two: the weighted sums differ."""
    replace_puts(monkeypatch, in_combine, 4 if signalling == "flags" else 2, swap, "put_nbi")
    with pytest.raises(AssertionError, match="combined"):
        check(signalling=signalling)


def test_two_rows_swapped_in_the_staging_area(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows 0 and 1 of rank SOURCE, triples and all: experts' rows are not in the order of the slots."""
    original = prefill_rows.pack_rows

    def pack_rows(*args: Any) -> Any:
        staged = original(*args)
        if args[4] == SOURCE:
            staged[[0, 1]] = staged[[1, 0]]
        return staged

    monkeypatch.setattr(prefill_rows, "pack_rows", pack_rows)
    for mode in ("window", "shmem"):
        with pytest.raises(AssertionError, match=r"(recv_x|expand_idx)\["):
            check(mode=mode)


def test_two_landed_rows_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of one READ of dispatch land the wrong way round."""

    async def crossed(held: list[tuple[int, ...]], post: Callable[..., Awaitable[None]]) -> None:
        dst, src, nbytes = held[0]
        await post(dst, src + 512, 512)
        await post(dst + 512, src, 512)
        if nbytes > 1024:
            await post(dst + 1024, src + 1024, nbytes - 1024)

    replace_puts(monkeypatch, lambda nbytes, at: nbytes >= 1024, 1, crossed, "get_nbi")
    with pytest.raises(AssertionError, match=r"(recv_x|expand_idx)\["):
        check()


# ----------------------------------------------------------------------------------------------------- order
def rows_after_the_signal(monkeypatch: pytest.MonkeyPatch, signalling: str) -> None:
    """In the first combine, SOURCE sends its rows for TARGET behind their flags or their add."""
    rows = rows_back(CASES[0])
    assert rows
    if signalling == "flags":
        replace_puts(monkeypatch, in_combine, 2 * rows, flags_first, "put_nbi")
        return
    late: list[Any] = []
    add = Atomics.add

    async def hold(held: list[tuple[int, ...]], post: Callable[..., Awaitable[None]]) -> None:
        late.extend((post, args) for args in held)

    async def add_first(self: Atomics, dst: int, value: int, peer: int, **options: Any) -> None:
        await add(self, dst, value, peer, **options)
        if (self._pe.rank, peer) == (SOURCE, TARGET):
            for post, args in late:
                await post(*args)
            late.clear()

    replace_puts(monkeypatch, in_combine, rows, hold, "put_nbi")
    monkeypatch.setattr(Atomics, "add", add_first)


@pytest.mark.parametrize("schedule", ["lazy", "random"])
@pytest.mark.parametrize("signalling", ["flags", "atomics"])
def test_rows_after_their_signal(monkeypatch: pytest.MonkeyPatch, signalling: str, schedule: str) -> None:
    """The sanitizer sees rows under way; one of a few random schedules is enough for it."""
    with pytest.raises(
        RaceError, match=rf"race on PE {TARGET}.*looks at the destination of WRITE.* of PE {SOURCE}"
    ):
        for seed in range(8):
            with monkeypatch.context() as patch:
                rows_after_the_signal(patch, signalling)
                check(signalling=signalling, schedule=schedule, seed=seed)


@pytest.mark.parametrize("signalling", ["flags", "atomics"])
def test_rows_after_their_signal_give_wrong_sums(monkeypatch: pytest.MonkeyPatch, signalling: str) -> None:
    """Nor does it pass without the sanitizer, where the schedule is lazy."""
    rows_after_the_signal(monkeypatch, signalling)
    with pytest.raises(AssertionError, match="combined"):
        check(sanitize=False, signalling=signalling, schedule="lazy")


@pytest.mark.parametrize("signalling", ["flags", "atomics"])
def test_statuses_before_the_rows_are_staged(monkeypatch: pytest.MonkeyPatch, signalling: str) -> None:
    """SOURCE stages its first rows only when its own READs are out."""
    store, quieted, late = Pe.store, Pe.quiet, []
    staged = CASES[0].x[SOURCE].shape[0] * CASES[0].top_k * 512

    async def store_later(self: Pe, addr: int, data: Any) -> None:
        if self.rank == SOURCE and len(data) == staged and not late:
            late.append((addr, data.copy()))
        else:
            await store(self, addr, data)

    async def quiet(self: Pe, peer: int, qp_idx: int | None = None) -> None:
        if self.rank == SOURCE and late and late[0]:
            (addr, data), late[0] = late[0], None
            await store(self, addr, data)
        await quieted(self, peer, qp_idx)

    monkeypatch.setattr(Pe, "store", store_later)
    monkeypatch.setattr(Pe, "quiet", quiet)
    world = make_world(CASES, "shmem", schedule="random", signalling=signalling)

    async def program(rank: Rank) -> Any:
        return await dispatch(prefill_shmem, rank, CASES[0], told_by_golden(CASES[0], rank.rank), False)

    with pytest.raises((RaceError, AssertionError), match=r"changes what is read by READ|recv_x\["):
        for rank, got in enumerate(run_shmem(world, program).returns):
            check_dispatched(CASES[0], rank, False, got)


# ---------------------------------------------------------------------------------------------------- halves
WORDS = {"dispatch statuses": prefill_rows.DISPATCH_TOGGLE, "combine flag": prefill_rows.COMBINE_TOGGLE}


@pytest.mark.parametrize("text", WORDS)
@pytest.mark.parametrize("mode", ["window", "shmem"])
def test_a_stale_half(monkeypatch: pytest.MonkeyPatch, mode: str, text: str) -> None:
    """SOURCE does not change halves: its second call's flags stand where nobody looks."""
    if mode == "window":
        kept = prefill_window._toggle

        def toggle(rank: Rank, offset: int) -> int:
            return 0 if (rank.rank, offset) == (SOURCE, WORDS[text]) else kept(rank, offset)

        monkeypatch.setattr(prefill_window, "_toggle", toggle)
    else:
        original = prefill_shmem._toggle

        async def toggled(rank: Rank, offset: int) -> int:
            return 0 if (rank.rank, offset) == (SOURCE, WORDS[text]) else await original(rank, offset)

        monkeypatch.setattr(prefill_shmem, "_toggle", toggled)
    with pytest.raises(
        HangError, match=rf"(PE|rank) {TARGET}: waits for the {text}.* from (PE|rank) {SOURCE}"
    ):
        check(mode=mode)


def test_a_stale_notify_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """SOURCE's count of calls stands still after the first: its flags are old news."""
    original = prefill_shmem._next_magic

    async def next_magic(rank: Rank) -> int:
        magic = await original(rank)
        return 1 if rank.rank == SOURCE else magic

    monkeypatch.setattr(prefill_shmem, "_next_magic", next_magic)
    with pytest.raises(HangError, match=NAMED.format("the notify flag of call 2")):
        check()
