"""Runs the fused operator on cases of `golden_fused`, in either mode, and keeps what can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pymodel.model import ModelBackend
from pymodel.operators import fused_shmem, fused_window, w4a8
from pymodel.operators.fused_math import W8A8
from pymodel.operators.fused_types import Expert, Fused, FusedArgs
from pymodel.operators.heap import HeapLayout
from pymodel.operators.world import Rank, World
from pymodel.run import RunResult
from tests.operators.golden_fused import Case

KINDS = ("window", "flags", "atomics")


class Recorder:
    """Numerics that keep the int8 rows that go through them."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.first_rows: list[tuple[Any, Any]] = []
        self.second_rows: list[tuple[Any, Any]] = []

    def first(self, expert: Expert, q: Any, scale: Any) -> Any:
        self.first_rows.append((q, scale))
        return self.inner.first(expert, q, scale)

    def second(self, expert: Expert, q: Any, scale: Any) -> Any:
        self.second_rows.append((q, scale))
        return self.inner.second(expert, q, scale)


def arguments(case: Case, rank: int, as_list: bool = False) -> FusedArgs:
    """A rank's inputs; a list of tensors has 2-D ones, the single tensor's slices are views of it."""
    mine = [case.expert(rank * case.local + local) for local in range(case.local)]
    w1, s1, w2, s2 = (
        [m[i] for m in mine] if as_list else list(np.stack([m[i] for m in mine])) for i in range(4)
    )
    more: dict[str, Any] = {}
    if case.int4:
        more["gmm1_bias"] = [w4a8.compensation(w, s) for w, s in zip(w1, s1, strict=True)]
        more["gmm2_bias"] = [w4a8.compensation(w, s) for w, s in zip(w2, s2, strict=True)]
        w1, w2 = [w4a8.pack(w) for w in w1], [w4a8.pack(w) for w in w2]
    if case.shared:
        a, b, c, d = case.expert(-1)
        if case.int4:
            more["share_gmm1_bias"], more["share_gmm2_bias"] = (
                w4a8.compensation(a, b),
                w4a8.compensation(c, d),
            )
            a, c = w4a8.pack(a), w4a8.pack(c)
        more |= {
            "share_gmm1_weight": a[None] if as_list else a,
            "share_gmm1_weight_scale": b[None] if as_list else b,
            "share_gmm2_weight": c,
            "share_gmm2_weight_scale": d,
        }
    return FusedArgs(
        case.x[rank],
        case.expert_ids[rank],
        w1,
        s1,
        w2,
        s2,
        case.weights[rank],
        moe_expert_num=case.experts,
        global_bs=case.max_bs * case.ranks,
        expert_smooth_scales=case.smooth_scales,
        share_smooth_scales=case.share_smooth,
        x_active_mask=case.mask(rank),
        **more,
    )


def slow_qp(monkeypatch: pytest.MonkeyPatch, pe: int, peer: int) -> None:
    """What ``pe`` posts to ``peer`` moves only when nothing else in the fabric can."""

    def step_any(self: ModelBackend) -> bool:
        every = [(nic, step) for nic in self.nics for step in nic.steps()]
        qp = self.nics[pe], self.fabric.qps[pe, peer, 0].qpn
        others = [(nic, step) for nic, step in every if nic.requester_of(step, self._route) != qp]
        if every:
            nic, step = self._rng.choice(others or every)
            self._now += nic.run(step)
        return bool(every)

    monkeypatch.setattr(ModelBackend, "_step_any", step_any)


@dataclass
class Call:
    """One call on one rank."""

    result: Fused
    first: list[tuple[Any, Any]]
    second: list[tuple[Any, Any]]


@dataclass
class Outcome:
    """``calls`` by call, then rank; windows by rank at the end; SHMEM mode: the run's counts of WQEs."""

    calls: list[list[Call]]
    win: list[Any]
    exp: list[Any]
    run: RunResult | None = field(default=None, repr=False)


def world_of(cases: Sequence[Case], kind: str, **options: Any) -> World:
    """A world with a heap for all ``cases`` and windows of 1 MB."""
    case = cases[0]
    heap = HeapLayout.prepare(
        1,
        tokens=max(c.max_bs for c in cases),
        top_k=max(c.top_k for c in cases),
        hidden=case.hidden,
        rows=max(int(c.copies().sum(axis=0).max(initial=0)) for c in cases),
        row_bytes=0,
    )
    if kind == "window":
        return World(case.ranks, "window", hccl_buffsize=1, seed=options.get("seed", 0))
    return World(case.ranks, "shmem", signalling=kind, hccl_buffsize=1, heap=heap, **options)  # type: ignore[arg-type]


def run_cases(
    cases: Sequence[Case], kind: str = "window", *, as_list: bool = False, between: Any = None, **options: Any
) -> Outcome:
    """The cases one after the other on one group. ``between(rank, number)``: awaited before each call."""
    world = world_of(cases, kind, **options)
    numerics = w4a8.W4A8() if cases[0].int4 else W8A8()

    async def program(rank: Rank) -> Any:
        calls = []
        for number, case in enumerate(cases):
            if between is not None:
                await between(rank, number)
            recorder, args = Recorder(numerics), arguments(case, rank.rank, as_list)
            operator = fused_window.fused if kind == "window" else fused_shmem.fused
            calls.append(
                Call(await operator(rank, args, recorder), recorder.first_rows, recorder.second_rows)
            )
        if rank.pe is None:
            window = rank.windows[rank.rank]
            return calls, window.win, window.exp
        pe, layout = rank.pe, rank.layout
        win = pe.view(pe.heap_base + layout.win, layout.win_size).copy()
        return calls, win, pe.view(pe.heap_base + layout.exp, 1 << 20).copy()

    run = None
    if kind == "window":
        returns = world.run(program)
    else:
        run = world.run_model([program] * world.ranks)
        returns = run.returns
    calls = [[returned[0][number] for returned in returns] for number in range(len(cases))]
    return Outcome(calls, [r[1] for r in returns], [r[2] for r in returns], run)
