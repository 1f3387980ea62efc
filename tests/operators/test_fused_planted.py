"""Planted faults of the fused operator: each turns the check red that is there for it.

Sweep: lost, doubled, early, swapped and stale rows, flags and adds; missing quiets; halves and polarities
that do not change. Stimulus: three calls, the fault put in by replacing one step of a kernel or of the device
API. Checks: the hang report names rank and peer, the sanitizer names the race, the numbers or windows differ.
Timing: none. Does not prove: faults of the NIC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pymodel.device.atomics import Atomics
from pymodel.device.pe import Pe
from pymodel.operators import fused_shmem, fused_window
from pymodel.operators.common import ProtocolError
from pymodel.operators.fused_types import Polarity
from pymodel.operators.world import WorldError
from pymodel.platform import sleep
from pymodel.runner import HangError
from pymodel.sanitizer import RaceError
from tests.operators.fused_runs import run_cases, slow_qp
from tests.operators.golden_fused import Case, GoldenWindows, golden
from tests.operators.test_fused_modes import check_numbers

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from garbage that is compared

# payload, tail and answer differ in length
CASES = [Case(top_k=4, call=n, batches=(3, 4, 4, 3), hidden=768) for n in range(3)]
HIDDEN = CASES[0].hidden
SOURCE, TARGET = 1, 2
MB = 1 << 20


def filter_puts(
    monkeypatch: pytest.MonkeyPatch, chosen: Callable[[int, int, int], bool], does: Callable[..., Any]
) -> None:
    """The first put from SOURCE to TARGET for which ``chosen(nbytes, offset from windowsExp, earlier such
    puts)`` holds is handed to ``does(put, dst, src, nbytes)`` with all that follow.
    """
    original, state = Pe.put_nbi, {"seen": 0, "hit": False}

    async def put_nbi(self: Pe, dst: int, src: int, nbytes: int, peer: int, qp_idx: int = 0) -> None:
        async def put(*args: int) -> None:
            await original(self, *args, peer, qp_idx)

        if (self.rank, peer) == (SOURCE, TARGET) and chosen(nbytes, dst - self.heap_base - MB, state["seen"]):
            state["seen"] += 1
            await does(put, dst, src, nbytes)
        else:
            await put(dst, src, nbytes)

    monkeypatch.setattr(Pe, "put_nbi", put_nbi)


async def dropped(put: Any, dst: int, src: int, nbytes: int) -> None:
    """Nothing is posted."""


def check(kind: str = "flags", cases: list[Case] = CASES, **options: Any) -> None:
    """Numbers of all calls, then the windows."""
    outcome = run_cases(cases, kind, **options)
    windows = GoldenWindows(cases[0].ranks, MB)
    for number, case in enumerate(cases):
        result = golden(case)
        check_numbers(case, result, outcome, number)
        windows.apply(case, result)
    for rank in range(cases[0].ranks):
        assert np.array_equal(outcome.win[rank], windows.win[rank]), "windowsIn"
        assert kind == "atomics" or np.array_equal(outcome.exp[rank], windows.exp[rank]), "windowsExp"


@pytest.mark.parametrize("kind", ["window", "flags", "atomics"])
def test_without_a_fault(kind: str) -> None:
    """The calls that the faults are planted in are good."""
    check(kind)


# ---------------------------------------------------------------------- what does not come
@pytest.mark.parametrize(
    ("nbytes", "low", "text"),
    [
        (32, 512 << 10, "its combine flag"),
        (32, 0, "its 2 count words"),
        (512, MB, r"\d rows for local expert \d"),
    ],
)
def test_a_lost_flag_hangs_with_rank_and_peer(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, low: int, text: str
) -> None:
    """Combine flag, count word, tail of a row."""
    filter_puts(
        monkeypatch,
        lambda n, at, seen: n == nbytes and (at >= low if low else at < 512 << 10) and not seen,
        dropped,
    )
    with pytest.raises(HangError, match=rf"PE {TARGET}: waits for {text} from PE {SOURCE} "):
        check()


def test_a_lost_store_hangs_in_window_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count word that stays as it was."""
    original = fused_window._Call._send_counts

    def send_counts(self: Any, half: int, polarity: Polarity) -> None:
        original(self, half, polarity)
        if self.rank.rank == SOURCE:
            self.rank.windows[TARGET].exp[self.places.status(half, SOURCE, 1) :][:4] = 0

    monkeypatch.setattr(fused_window._Call, "_send_counts", send_counts)
    with pytest.raises(HangError, match=rf"rank {TARGET}: waits for its 2 count words, from rank {SOURCE}"):
        check("window")


def wrong_add(monkeypatch: pytest.MonkeyPatch, number: int, extra: int | None) -> None:
    """Add ``number`` from SOURCE to TARGET is lost, or adds ``extra`` more."""
    original, seen = Atomics.add, [0]

    async def add(self: Atomics, dst: int, value: int, peer: int, **more: Any) -> None:
        if (self._pe.rank, peer) == (SOURCE, TARGET):
            seen[0] += 1
            if seen[0] - 1 == number:
                if extra is None:
                    return
                value += extra
        await original(self, dst, value, peer, **more)

    monkeypatch.setattr(Atomics, "add", add)


@pytest.mark.parametrize(("number", "kind"), [(0, "fused_dispatch"), (1, "fused_combine")])
def test_a_lost_add_hangs_with_the_counter(monkeypatch: pytest.MonkeyPatch, number: int, kind: str) -> None:
    """The report names the counter and the ranks whose rows it counts."""
    wrong_add(monkeypatch, number, None)
    with pytest.raises(HangError, match=rf"PE {TARGET}: waits for counter {kind}, .*{SOURCE}: \d"):
        check("atomics")


@pytest.mark.parametrize(("number", "kind"), [(0, "fused_dispatch"), (1, "fused_combine")])
def test_an_add_of_too_much(monkeypatch: pytest.MonkeyPatch, number: int, kind: str) -> None:
    """More than the counts allow is no completion."""
    wrong_add(monkeypatch, number, 1000)
    with pytest.raises(ProtocolError, match=f"rank {TARGET}: counter {kind}"):
        check("atomics")


def test_an_impossible_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than a rank has tokens."""
    original = fused_shmem.status_words
    monkeypatch.setattr(fused_shmem, "status_words", lambda counts, status: original(counts + 9, status))
    with pytest.raises(ProtocolError, match="rows for local expert"):
        check()


# ---------------------------------------------------------------------- what comes wrong
@pytest.mark.parametrize("nbytes", [HIDDEN, 2 * HIDDEN])
def test_two_rows_swapped(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """The payloads of two rows, in dispatch and in combine."""
    held: list[tuple[int, int]] = []

    async def swapped(put: Any, dst: int, src: int, length: int) -> None:
        held.append((dst, src))
        if len(held) == 2:
            await put(held[0][0], held[1][1], length)
            await put(held[1][0], held[0][1], length)

    filter_puts(monkeypatch, lambda n, at, seen: n == nbytes and seen < 2, swapped)
    with pytest.raises(AssertionError, match="int8 rows" if nbytes == HIDDEN else ""):
        check(cases=CASES[:1])
    assert len(held) == 2


@pytest.mark.parametrize(("row", "low"), [(HIDDEN, 0), (2 * HIDDEN, 512 << 10)])
@pytest.mark.parametrize("local", [1, 2])
def test_a_flag_before_its_row(monkeypatch: pytest.MonkeyPatch, row: int, low: int, local: int) -> None:
    """The last payload or answer follows the word that says it is there: count word or combine flag."""
    case = replace(CASES[0], local=local, top_k=3)
    held: list[tuple[int, int, int]] = []
    flags = local if row == HIDDEN else 1
    if local == 1 and row == HIDDEN:
        row += 128

    async def late(put: Any, dst: int, src: int, nbytes: int) -> None:
        nonlocal flags
        if nbytes == row:
            if held:
                await put(*held.pop())
            held.append((dst, src, nbytes))
        else:
            await put(dst, src, nbytes)
            flags -= 1
            if not flags:
                await sleep(20_000)
                await put(*held.pop())

    def chosen(nbytes: int, at: int, seen: int) -> bool:
        return nbytes == row or (nbytes == 32 and (at >= 512 << 10) == bool(low))

    filter_puts(monkeypatch, chosen, late)
    with pytest.raises((RaceError, AssertionError)):
        check(cases=[case])


@pytest.mark.parametrize("nbytes", [HIDDEN, 512, 2 * HIDDEN])
def test_an_add_before_its_row(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """The last row of a peer follows the add that counts it."""
    held: list[Any] = []
    original, put_nbi = Atomics.add, Pe.put_nbi

    async def late(put: Any, dst: int, src: int, length: int) -> None:
        for before in held:
            await put(*before)
        held[:] = [(dst, src, length)]

    async def add(self: Atomics, dst: int, value: int, peer: int, **more: Any) -> None:
        await original(self, dst, value, peer, **more)
        if (self._pe.rank, peer) == (SOURCE, TARGET):
            await sleep(20_000)
            for before in held:
                await put_nbi(self._pe, *before, peer)
            held.clear()

    filter_puts(monkeypatch, lambda n, at, seen: n == nbytes, late)
    monkeypatch.setattr(Atomics, "add", add)
    with pytest.raises((RaceError, AssertionError)):
        check("atomics", cases=CASES[:1])


def test_one_half_for_both_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """dataState that nobody toggles: answers go where rows come."""

    async def take_half(self: Any) -> int:
        return 0

    monkeypatch.setattr(fused_shmem._Call, "take_half", take_half)
    with pytest.raises((AssertionError, HangError)):
        check()


def test_a_stale_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers read from the half of the rows."""
    original = fused_shmem._Call.take_answers
    monkeypatch.setattr(fused_shmem._Call, "take_answers", lambda self, half: original(self, 1 - half))
    with pytest.raises(AssertionError):
        check(cases=CASES[:1])


@pytest.mark.parametrize("kind", ["flags", "atomics"])
def test_a_polarity_that_never_changes(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The words of the call before are taken for those of this one."""

    async def use_half(self: Any, half: int) -> Polarity:
        return Polarity.of(0)

    monkeypatch.setattr(fused_shmem._Call, "use_half", use_half)
    with pytest.raises((AssertionError, HangError, ProtocolError, RaceError)):
        check(kind, schedule="random")


def test_token_flags_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags that are not cleared would be taken for those of the call after next."""
    original = Pe.store

    async def store(self: Pe, addr: int, data: Any) -> None:
        if len(data) != 4:
            await original(self, addr, data)

    monkeypatch.setattr(Pe, "store", store)
    with pytest.raises(AssertionError, match="windowsIn"):
        check(cases=CASES[:1])


def run_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with and without rows between ranks, one QP as slow as it can be."""
    slow_qp(monkeypatch, SOURCE, TARGET)
    cases = [replace(case, ids=("own", "random")[case.call % 2], top_k=2) for case in CASES]
    for seed in range(4):
        run_cases(cases, "atomics", schedule="random", seed=seed)


def test_one_place_for_all_count_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """With counters a rank can be a call ahead: its counts must not go where those of this call stand."""
    monkeypatch.setattr(fused_shmem, "count_half", lambda rank, number, half: half)
    with pytest.raises((RaceError, HangError)):
        run_apart(monkeypatch)


def test_one_counter_for_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor may its adds go to the counter of this call."""
    monkeypatch.setattr(fused_shmem._Call, "parity", 0)
    with pytest.raises(ProtocolError, match="counter fused_dispatch"):
        run_apart(monkeypatch)


@pytest.mark.parametrize("kind", ["window", "flags", "atomics"])
def test_no_barrier_where_addresses_change(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A fast rank's rows land where a slow one still reads."""

    async def settle(rank: Any, places: Any) -> None:
        pass

    kernel = fused_window if kind == "window" else fused_shmem
    monkeypatch.setattr(kernel, "settle", settle)
    slow_qp(monkeypatch, SOURCE, TARGET)
    batches = [(1, 1, 1, 1), (4, 4, 4, 4), (1, 2, 1, 1), (4, 4, 4, 4)]
    cases = [replace(CASES[0], call=n, top_k=3, batches=b) for n, b in enumerate(batches)]
    results = [golden(case) for case in cases]
    with pytest.raises((AssertionError, RaceError, HangError, ProtocolError)):
        for seed in range(6):
            outcome = run_cases(cases, kind, schedule="random", seed=seed)
            for number, (case, result) in enumerate(zip(cases, results, strict=True)):
                check_numbers(case, result, outcome, number)


def test_calls_apart_without_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same runs are good."""
    run_apart(monkeypatch)


# ---------------------------------------------------------------------- quiets
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_quiet(monkeypatch: pytest.MonkeyPatch, number: int, schedule: str) -> None:
    """Of the stage between dispatch and combine, and at the end of a call, before the next one."""
    original, seen = fused_shmem._Call.quiet, [0]

    async def quiet(self: Any) -> None:
        if self.rank.rank == SOURCE:
            seen[0] += 1
            if seen[0] - 1 == number:
                return
        await original(self)

    monkeypatch.setattr(fused_shmem._Call, "quiet", quiet)
    with pytest.raises(RaceError, match="changes the source of"):
        check(schedule=schedule)


def test_a_missing_last_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator leaves no outstanding post behind."""

    async def quiet(self: Any) -> None:
        pass

    monkeypatch.setattr(fused_shmem._Call, "quiet", quiet)
    with pytest.raises(WorldError, match=f"missing quiet: PE {SOURCE} "):
        check(cases=[replace(CASES[0], ids="none")])
