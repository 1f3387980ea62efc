"""The fused operator told a third time, from the page alone: no windows, no flags, nothing of the project.

Everything is computed from the inputs of all ranks together, slot by slot, with int64 products and scalar
routing loops. `Case` makes inputs that differ per (rank, token, k) and per expert.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

F32 = np.float32
BF16, FP16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)


@functools.cache
def _weights(seed: int, expert: int, hidden: int, width: int, int4: bool, scale_type: Any) -> tuple[Any, ...]:
    rng = np.random.default_rng((seed, 7, expert + 1))
    low, high = (-8, 8) if int4 else (-16, 17)
    w1 = rng.integers(low, high, (hidden, width), np.int8)
    w2 = rng.integers(low, high, (width // 2, hidden), np.int8)
    own = 1 + 0.125 * (expert + 1)
    s1 = ((0.0015 + 0.003 * rng.random(width)) * own).astype(scale_type)
    s2 = ((0.0015 + 0.003 * rng.random(hidden)) * own).astype(scale_type)
    for array in (w1, s1, w2, s2):
        array.flags.writeable = False
    return w1, s1, w2, s2


@dataclass
class Case:
    """Inputs of one call on all ranks. ``ids``: "random", "none" (all -1), "holes" (some -1), "own" rank."""

    ranks: int = 4
    local: int = 2
    top_k: int = 4
    batches: tuple[int, ...] = (4, 3, 2, 4)
    hidden: int = 512
    width: int = 256
    dtype: Any = BF16
    ids: str = "random"
    smooth: bool = False
    shared: bool = False
    masked: tuple[int, ...] | None = None
    """Active tokens per rank; None: no mask."""
    scale_type: Any = np.float32
    int4: bool = False
    seed: int = 1
    call: int = 0
    x: list[Any] = field(init=False)
    expert_ids: list[Any] = field(init=False)
    weights: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        assert len(self.batches) == self.ranks
        self.x, self.expert_ids, self.weights = [], [], []
        for rank, batch in enumerate(self.batches):
            rng = np.random.default_rng((self.seed, self.call, rank))
            self.x.append(rng.standard_normal((batch, self.hidden)).astype(self.dtype))
            self.expert_ids.append(self._ids(rank, batch, rng))
            self.weights.append((0.1 + rng.random((batch, self.top_k))).astype(F32))
        rng = np.random.default_rng((self.seed, self.call, 1000))
        self.smooth_scales = (
            (0.5 + rng.random((self.experts, self.hidden))).astype(F32) if self.smooth else None
        )
        both = self.smooth and self.shared
        self.share_smooth = (0.5 + rng.random(self.hidden)).astype(F32) if both else None

    @property
    def experts(self) -> int:
        return self.ranks * self.local

    @property
    def max_bs(self) -> int:
        return max(self.batches)

    def _ids(self, rank: int, batch: int, rng: np.random.Generator) -> Any:
        if self.ids == "own":
            pool = np.arange(rank * self.local, (rank + 1) * self.local)
        elif self.ids == "one":
            pool = np.array([self.experts - 1])
        else:
            pool = np.arange(self.experts)
        rows = [rng.permutation(pool)[: self.top_k] for _ in range(batch)]
        ids = np.array(rows, np.int32).reshape(batch, self.top_k)
        if self.ids == "none":
            ids[:] = -1
        if self.ids == "holes":
            ids[rng.random(ids.shape) < 0.3] = -1
        return ids

    def active(self, rank: int) -> int:
        return self.batches[rank] if self.masked is None else self.masked[rank]

    def mask(self, rank: int) -> Any:
        return None if self.masked is None else np.arange(self.batches[rank]) < self.masked[rank]

    def expert(self, expert: int) -> tuple[Any, ...]:
        """Weights and scales of an expert (-1: the shared one), from (seed, expert) alone."""
        return _weights(self.seed, expert, self.hidden, self.width, self.int4, np.dtype(self.scale_type))

    def slots(self, rank: int) -> list[tuple[int, int, int]]:
        """(token, k, expert) of what a rank sends, in flat order."""
        ids = self.expert_ids[rank]
        flat = [(t, k, int(ids[t, k])) for t in range(self.active(rank)) for k in range(self.top_k)]
        return [slot for slot in flat if slot[2] >= 0]

    def rows_of(self, expert: int) -> list[tuple[int, int, int]]:
        """(source rank, token, k) of the rows of an expert, in the order in which it works on them."""
        return [(src, t, k) for src in range(self.ranks) for t, k, e in self.slots(src) if e == expert]

    def copies(self) -> Any:
        """int [R, R]: rows that one rank sends to another."""
        out = np.zeros((self.ranks, self.ranks), int)
        for src in range(self.ranks):
            for _, _, expert in self.slots(src):
                out[src, expert // self.local] += 1
        return out

    def counts(self, rank: int) -> Any:
        """expert_token_nums."""
        return np.array([len(self.rows_of(rank * self.local + le)) for le in range(self.local)], np.int64)


# ---------------------------------------------------------------------- numbers of one row
def quantised(row: Any) -> tuple[Any, Any]:
    """int8 [h] and scale of a float32 row [h]."""
    top = F32(np.max(np.abs(row)))
    if top == 0:
        return np.zeros(row.size, np.int8), F32(0)
    s = F32(127) / top
    return np.array([int(v) for v in np.rint(row * s)], np.int8), F32(1) / s


def activated(d: Any) -> Any:
    """SwiGLU of one float32 row [N1]."""
    half = d.size // 2
    out = np.empty(half, F32)
    for n in range(half):
        left = F32(d[n])
        with np.errstate(over="ignore"):
            power = F32(np.exp(np.float64(-left)))
        out[n] = F32(F32(left / F32(F32(1) + power)) * F32(d[half + n]))
    return out


def requantised(y: Any) -> tuple[Any, Any]:
    """int8 and scale of one float32 row between the products."""
    m = F32(np.max(np.abs(y)))
    if m == 0:
        return np.zeros(y.size, np.int8), F32(0)
    return np.rint((y * F32(127)) * (F32(1) / m)).astype(np.int8), m * F32(1 / np.float64(127))


def product(case: Case, q: Any, scale: Any, w: Any, s: Any) -> Any:
    """Dequantised product of one int8 row, W8A8 or W4A8."""
    wide, s = w.astype(np.int64), s.astype(F32)
    if not case.int4:
        return (np.dot(q.astype(np.int64), wide).astype(F32) * s) * scale
    high = np.array([v // 16 for v in q.tolist()], np.int64)
    low = np.array([v % 16 - 8 for v in q.tolist()], np.int64)
    aux = (8 * wide.sum(axis=0)).astype(F32) * s
    return (np.dot(high, wide).astype(F32) * s * F32(16) + np.dot(low, wide).astype(F32) * s + aux) * scale


@dataclass
class Row:
    """Stages of one row at its expert."""

    q: Any
    scale: Any
    q2: Any
    scale2: Any
    out: Any
    exact: Any
    """float64, never quantised."""


def staged(case: Case, row: Any, weights: tuple[Any, ...]) -> Row:
    """A float32 row [h] through an expert."""
    w1, s1, w2, s2 = weights
    q, scale = quantised(row)
    q2, scale2 = requantised(activated(product(case, q, scale, w1, s1)))
    out = product(case, q2, scale2, w2, s2).astype(case.dtype)
    d = row.astype(np.float64) @ (w1 * s1.astype(np.float64))
    left, right = np.split(d, 2)
    exact = (left / (1 + np.exp(-left)) * right) @ (w2 * s2.astype(np.float64))
    return Row(q, scale, q2, scale2, out, exact)


@dataclass
class Golden:
    """Results of a call: ``rows`` by (expert, source, token, k), outputs per rank, shared rows per rank."""

    rows: dict[tuple[int, int, int, int], Row]
    output: list[Any]
    exact: list[Any]
    """float64 [active, h]."""
    shared: list[list[Row]]


def golden(case: Case) -> Golden:
    """The whole call on all ranks."""
    rows: dict[tuple[int, int, int, int], Row] = {}
    for expert in range(case.experts):
        todo = case.rows_of(expert)
        weights = case.expert(expert) if todo else None
        for src, t, k in todo:
            x = case.x[src][t].astype(F32)
            if case.smooth_scales is not None:
                x = x * case.smooth_scales[expert]
            rows[expert, src, t, k] = staged(case, x, weights)
    output, exact, shared = [], [], []
    for rank in range(case.ranks):
        out = np.zeros((case.active(rank), case.hidden), case.dtype)
        far = np.zeros(out.shape)
        for t in range(case.active(rank)):
            acc = np.zeros(case.hidden, F32)
            for k in range(case.top_k):
                expert = int(case.expert_ids[rank][t, k])
                if expert >= 0:
                    row, weight = rows[expert, rank, t, k], case.weights[rank][t, k]
                    acc = acc + row.out.astype(F32) * weight
                    far[t] += row.exact * np.float64(weight)
            out[t] = acc.astype(case.dtype)
        output.append(out)
        exact.append(far)
        mine = []
        if case.shared:
            for t in range(case.batches[rank]):
                x = case.x[rank][t].astype(F32)
                mine.append(
                    staged(case, x if case.share_smooth is None else x * case.share_smooth, case.expert(-1))
                )
        shared.append(mine)
    return Golden(rows, output, exact, shared)


# ---------------------------------------------------------------------- bytes and posts
class GoldenWindows:
    """windowsIn and windowsExp of all ranks, call after call, as the page's addresses give them."""

    def __init__(self, ranks: int, size: int) -> None:
        self.win = [np.zeros(size, np.uint8) for _ in range(ranks)]
        self.exp = [np.zeros(1 << 20, np.uint8) for _ in range(ranks)]
        self.calls = 0

    def _word(self, rank: int, offset: int, value: int) -> None:
        self.exp[rank][offset : offset + 4] = np.frombuffer(value.to_bytes(4, "little"), np.uint8)

    def apply(self, case: Case, result: Golden) -> None:
        """One more call on a group that only this operator uses: dispatch in half 0, combine in half 1."""
        kib, el, h = 1024, case.local, case.hidden
        p = case.max_bs * h * 2
        even = self.calls % 2 == 0
        value, record = (0x3F800000 if even else 0), h + (512 if el > 1 else 128)
        for src in range(case.ranks):
            seen = [0] * case.experts
            for t, k, expert in case.slots(src):
                dst, le = divmod(expert, el)
                row, idx = result.rows[expert, src, t, k], seen[expert]
                seen[expert] += 1
                at = dst * 512 + p * (src * el + le) + record * idx
                field_ = np.zeros(record, np.uint8)
                field_[:h] = row.q.view(np.uint8)
                field_[h : h + 4] = np.frombuffer(row.scale.tobytes(), np.uint8)
                self.win[dst][at : at + record] = field_
                back = case.ranks * el * p + src * 512 + p * (dst * el + le) + idx * 2 * h
                self.win[src][back : back + 2 * h] = np.frombuffer(row.out.tobytes(), np.uint8)
            for expert in range(case.experts):
                dst, le = divmod(expert, el)
                at = 512 * (src + le * case.ranks)
                self._word(dst, at, value)
                self._word(dst, at + 4, seen[expert])
            for dst in range(case.ranks):
                self._word(dst, 512 * kib + src * 512, value)
        for rank in range(case.ranks):
            for half in (0, 1):
                for core in range(48):
                    self._word(rank, half * 512 * kib + 256 * kib + core * 128, 0x3F800000 if even else 0)
        self.calls += 1


def closed_form(case: Case, atomics: bool, before: Case | None = None) -> tuple[int, int, int]:
    """(WRITEs, atomics, bytes of WRITEs) of one call on all ranks, from the routing alone.

    A call whose addresses differ from the one ``before`` starts with a barrier: 4 bytes a rank and round.
    """
    copies = case.copies()
    np.fill_diagonal(copies, 0)
    rows, pairs, r = int(copies.sum()), int((copies > 0).sum()), case.ranks
    status = r * (case.experts - case.local)
    flags = 0 if atomics else r * (r - 1)
    tail = 512 if case.local > 1 else 128
    writes = rows * (3 if case.local > 1 else 2) + status + flags
    size = rows * (case.hidden + tail + 2 * case.hidden) + 32 * (status + flags)
    if before is not None and (before.max_bs, before.hidden) != (case.max_bs, case.hidden):
        rounds = (r - 1).bit_length()
        writes, size = writes + r * rounds, size + 4 * r * rounds
    return writes, 2 * pairs if atomics else 0, size
