"""Quiets and halves of prefill: what they protect breaks when one is taken away. Planted faults.

Sweep: each kernel called alone, four times without a barrier, with flags and with atomic counters; a quiet,
the parity of a half or that of a counter removed; one QP, or only its completions, as late as the fabric can
make them. Stimulus: four ranks of which every two exchange rows. Checks: good with everything in place, then
the sanitizer names the race, the golden differs, or the run's verdict names the quiet. Timing: none. Does not
prove: that layers need the parity of combine; the notify and dispatch of the next layer protect it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pymodel.device.pe import Pe
from pymodel.model import ModelBackend
from pymodel.nic.golden.nic import StepKind
from pymodel.operators import prefill_rows, prefill_shmem
from pymodel.operators.common import ProtocolError
from pymodel.operators.world import Rank
from pymodel.run import RunResult
from pymodel.runner import HangError
from pymodel.sanitizer import RaceError
from tests.operators import golden_prefill as golden
from tests.operators.fused_runs import slow_qp
from tests.operators.golden_prefill import Case
from tests.operators.prefill_harness import (
    DTYPES,
    check_dispatched,
    check_layers,
    check_notified,
    dispatch,
    layer,
    make_case,
    make_world,
    run_shmem,
    same,
    told_by_golden,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from garbage that is compared

CASES = [make_case(s, 4, 8, 6, [4, 5, 5, 4]) for s in range(4)]
SOURCE, TARGET = 3, 2
"""TARGET comes last where SOURCE turns to all its peers."""


async def notify_alone(rank: Rank, case: Case) -> Any:
    """One notify."""
    told = told_by_golden(case, rank.rank)
    return await prefill_shmem.notify(rank, told.send_data[:, 0].copy(), len(case.x[rank.rank]))


async def dispatch_alone(rank: Rank, case: Case) -> Any:
    """One dispatch."""
    return await dispatch(prefill_shmem, rank, case, told_by_golden(case, rank.rank), False)


async def combine_alone(rank: Rank, case: Case) -> Any:
    """One combine of what the golden's experts make."""
    me = rank.rank
    return await prefill_shmem.combine(
        rank,
        golden.expert_rows(case, me, False).view(DTYPES[case.half]),
        golden.dispatched(case, me, False)[2].ravel(),
        told_by_golden(case, me).recv_count,
        case.weights[me],
        tokens=len(case.x[me]),
        max_bs=0,
    )


async def layer_alone(rank: Rank, case: Case) -> Any:
    """All three."""
    return await layer(prefill_shmem, rank, case, False)


ALONE = {"notify": notify_alone, "dispatch": dispatch_alone, "combine": combine_alone, "layer": layer_alone}


def run(
    kind: str, signalling: str, cases: Sequence[Case] = CASES, *, sanitize: bool = True, **options: Any
) -> RunResult:
    """Calls of ``kind`` one after the other, their outputs against the golden; the run's own verdict."""
    world = make_world(cases, "shmem", signalling=signalling, **options)

    async def program(rank: Rank) -> list[Any]:
        return [await ALONE[kind](rank, case) for case in cases]

    result = run_shmem(world, program, sanitize=sanitize)
    if kind == "layer":
        check_layers(cases, False, result.returns)
        return result
    for number, case in enumerate(cases):
        made = [golden.expert_rows(case, rank, False) for rank in range(4)] if kind == "combine" else []
        for rank in range(4):
            got = result.returns[rank][number]
            if kind == "notify":
                check_notified(case, rank, got)
            elif kind == "dispatch":
                check_dispatched(case, rank, False, got)
            else:
                same("combined", got.view(np.uint16), golden.combined(case, made, rank), np.uint16)
    return result


def late_completions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """SOURCE learns that something to TARGET is complete only when nothing else can move.

    Gives the list of the times at which it did.
    """
    seen: list[int] = []

    def step_any(self: ModelBackend) -> bool:
        every = [(nic, step) for nic in self.nics for step in nic.steps()]
        late = (StepKind.COMPLETE, self.fabric.qps[SOURCE, TARGET, 0].qpn)
        others = [(nic, step) for nic, step in every if nic is not self.nics[SOURCE] or step != late]
        if every:
            nic, step = self._rng.choice(others or every)
            self._now += nic.run(step)
            if not others:
                seen.append(self._now)
        return bool(every)

    monkeypatch.setattr(ModelBackend, "_step_any", step_any)
    return seen


def without_quiet(monkeypatch: pytest.MonkeyPatch, peers: Sequence[int] = (TARGET,)) -> None:
    """No kernel of SOURCE quiets these peers."""
    quiet = Pe.quiet

    async def quieted(self: Pe, peer: int, qp_idx: int | None = None) -> None:
        if self.rank != SOURCE or peer not in peers:
            await quiet(self, peer, qp_idx)

    monkeypatch.setattr(Pe, "quiet", quieted)


@pytest.mark.parametrize("signalling", ["flags", "atomics"])
@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("delay", ["QP", "completions"])
def test_one_qp_is_late(monkeypatch: pytest.MonkeyPatch, delay: str, kind: str, signalling: str) -> None:
    """All is good, however late it is."""
    moments = None
    if delay == "QP":
        slow_qp(monkeypatch, SOURCE, TARGET)
    else:
        moments = late_completions(monkeypatch)
    result = run(kind, signalling, schedule="random")
    assert result.good, result.problems
    assert moments is None or len(moments) >= len(CASES), "it was late in every call"


# ---------------------------------------------------------------------------------------------------- quiets
@pytest.mark.parametrize("signalling", ["flags", "atomics"])
@pytest.mark.parametrize("kind", ["notify", "dispatch", "layer"])
def test_no_quiet_after_reads(monkeypatch: pytest.MonkeyPatch, kind: str, signalling: str) -> None:
    """The sanitizer names the READ whose result is looked at too early."""
    without_quiet(monkeypatch)
    with pytest.raises(
        RaceError, match=f"looks at the result of READ .* of PE {SOURCE} to PE {TARGET}, .*no quiet"
    ):
        run(kind, signalling)


@pytest.mark.parametrize("signalling", ["flags", "atomics"])
@pytest.mark.parametrize("kind", ["notify", "dispatch"])
def test_no_quiet_gives_stale_rows(monkeypatch: pytest.MonkeyPatch, kind: str, signalling: str) -> None:
    """Without the sanitizer the outputs differ where that QP is late."""
    slow_qp(monkeypatch, SOURCE, TARGET)
    without_quiet(monkeypatch)
    with pytest.raises(AssertionError, match=r"(recv_data|recv_count|recv_x)\["):
        run(kind, signalling, sanitize=False, schedule="random")


@pytest.mark.parametrize("signalling", ["flags", "atomics"])
def test_no_quiet_after_combine(monkeypatch: pytest.MonkeyPatch, signalling: str) -> None:
    """The next call stages its rows where those of this one are still sent from."""
    late_completions(monkeypatch)
    without_quiet(monkeypatch)
    with pytest.raises(
        RaceError, match=f"store .* changes the source of WRITE .* of PE {SOURCE} to PE {TARGET}"
    ):
        run("combine", signalling, schedule="random")


def test_no_quiet_for_more_than_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """SOURCE has nothing to read from TARGET: four calls pass while nothing it posted there is complete.

    Its statuses come from a read-only word, so nothing is overwritten; the verdict still names the first.
    """

    def route(rng: np.random.Generator, rank: int, tokens: int) -> Any:
        experts = 6 if rank == TARGET else 8  # 6 and 7 live on SOURCE
        return np.array([rng.permutation(experts)[:4] for _ in range(tokens)])

    cases = [make_case(s, 4, 8, 4, [3, 2, 3, 4], route=route) for s in range(4)]
    moments = late_completions(monkeypatch)
    result = run("dispatch", "flags", cases, schedule="random")
    assert result.good and moments
    without_quiet(monkeypatch)
    moments.clear()
    result = run("dispatch", "flags", cases, schedule="random")
    # two experts a call
    lines = [line for line in result.problems if "missing quiet" in line]
    assert len(lines) == 2 * 4 == len(result.problems)
    assert f"PE {SOURCE} ended without a quiet after WRITE 0 of PE {SOURCE} to PE {TARGET}" in lines[0]


@pytest.mark.parametrize("signalling", ["flags", "atomics"])
def test_no_quiet_at_the_end(monkeypatch: pytest.MonkeyPatch, signalling: str) -> None:
    """Of the last combine: the run's verdict."""
    original, calls = prefill_shmem._quiet_peers, [0]

    async def quiet_peers(rank: Rank) -> None:
        calls[0] += rank.rank == SOURCE
        if rank.rank != SOURCE or calls[0] < 3 * len(CASES):
            await original(rank)

    monkeypatch.setattr(prefill_shmem, "_quiet_peers", quiet_peers)
    result = run("layer", signalling)
    assert result.problems
    assert all(f"missing quiet: PE {SOURCE} ended" in line for line in result.problems)


# ---------------------------------------------------------------------------------------------------- halves
def one_half(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """All calls of all ranks use the same half."""
    word = {"dispatch": prefill_rows.DISPATCH_TOGGLE, "combine": prefill_rows.COMBINE_TOGGLE}.get(kind)
    original = prefill_shmem._toggle

    async def toggle(rank: Rank, offset: int) -> int:
        return 0 if offset == word else await original(rank, offset)

    monkeypatch.setattr(prefill_shmem, "_toggle", toggle)
    if kind == "notify":
        monkeypatch.setattr(prefill_rows, "notify_half", lambda magic: 0)


def red_in_some_seed(action: Callable[[int], Any]) -> None:
    """``action`` with a few seeds; one of them is enough to raise."""
    for seed in range(6):
        action(seed)


@pytest.mark.parametrize("signalling", ["flags", "atomics"])
@pytest.mark.parametrize("kind", ["notify", "dispatch", "combine"])
def test_no_parity_of_the_half(monkeypatch: pytest.MonkeyPatch, kind: str, signalling: str) -> None:
    """A rank that is one call ahead writes over what a slower one still reads."""
    slow_qp(monkeypatch, SOURCE, TARGET)
    one_half(monkeypatch, kind)
    with pytest.raises((RaceError, HangError)):
        red_in_some_seed(lambda seed: run(kind, signalling, schedule="random", seed=seed))


@pytest.mark.parametrize("kind", ["notify", "dispatch", "combine"])
def test_no_parity_of_the_counter(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """An add of the next call is taken for one of this call."""
    slow_qp(monkeypatch, SOURCE, TARGET)
    number = Rank.call
    monkeypatch.setattr(Rank, "call", lambda self, kind: 2 * number(self, kind))
    with pytest.raises((ProtocolError, RaceError)):
        red_in_some_seed(lambda seed: run(kind, "atomics", schedule="random", seed=seed))
