"""The judge of prefill: dispatch and combine of a whole group from their definition, for tests only.

A third formulation: it knows neither windows nor offsets. Rows are tuples in one sorted list; every float32
step is done in float64 and rounded once, which gives the float32 result (53 >= 2 x 24 + 2 bits); bfloat16 is
made by integer arithmetic. Sizes in elements; ranks R, experts E, tokens T, top-k K, hidden h.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """What all ranks bring: ``x`` [T, h], float32 values of the data type; ``topk``, ``weights`` [T, K]."""

    experts: int
    x: list[Any]
    topk: list[Any]
    weights: list[Any]
    half: str = "bf16"

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return len(self.x)

    @property
    def local(self) -> int:
        """Experts of a rank."""
        return self.experts // self.ranks

    @property
    def top_k(self) -> int:
        """Experts of a token."""
        return int(self.topk[0].shape[1])

    @property
    def hidden(self) -> int:
        """Elements of a row."""
        return int(self.x[0].shape[1])


def to_half(values: Any, half: str) -> Any:
    """float32 values as the uint16 patterns of bfloat16 or float16, nearest even; values are finite."""
    single = np.asarray(values, np.float32)
    if half == "fp16":
        with np.errstate(over="ignore"):
            return single.astype(np.float64).astype(np.float16).view(np.uint16)
    bits = single.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_half(patterns: Any, half: str) -> Any:
    """float32 values of uint16 patterns."""
    if half == "fp16":
        return np.asarray(patterns, np.uint16).view(np.float16).astype(np.float32)
    return (np.asarray(patterns, np.uint32) << 16).astype(np.uint32).view(np.float32)


def sent_rows(case: Case) -> list[tuple[int, int, int, int, int]]:
    """(expert, source, flat slot, token, k) of every row of the group, in the order of the outputs."""
    return sorted(
        (int(expert), source, token * case.top_k + k, token, k)
        for source, topk in enumerate(case.topk)
        for token, experts in enumerate(topk)
        for k, expert in enumerate(experts)
    )


def layout(topk: Any, experts: int, ranks: int) -> tuple[Any, Any, Any, Any]:
    """The four outputs of dispatch_layout, by their formulas, slot by slot."""
    per_rank, per_expert = np.zeros(ranks, int), np.zeros(experts, int)
    in_rank, arrival = np.zeros((len(topk), ranks), int), np.zeros(np.shape(topk), int)
    for token, row in enumerate(topk):
        for k, expert in enumerate(row):
            arrival[token, k] = per_expert[expert]
            per_expert[expert] += 1
            in_rank[token, expert // (experts // ranks)] = 1
        for rank in range(ranks):
            per_rank[rank] += in_rank[token, rank]
    return per_rank, per_expert, in_rank, arrival


def notified(case: Case, rank: int) -> dict[str, Any]:
    """The outputs of notify_dispatch on ``rank``, counted from the list of all rows."""
    ranks, local, experts = case.ranks, case.local, case.experts
    every = sent_rows(case)
    count = np.zeros((ranks, experts), int)
    for expert, source, *_ in every:
        count[source, expert] += 1
    before = [list(accumulate(count[s, :-1].tolist(), initial=0)) for s in range(ranks)]
    tokens = [len(x) for x in case.x]
    mine = range(rank * local, (rank + 1) * local)
    table = [[[count[s, e], before[s][e], tokens[s]] for e in range(experts)] for s in range(ranks)]
    pairs = [(e, s) for e in mine for s in range(ranks)]
    return {
        "send_data": table[rank],
        "send_data_offset": before[rank],
        "recv_data": [table[s][mine.start : mine.stop] for s in range(ranks)],
        "recv_count": list(accumulate(int(count[s, e]) for e, s in pairs)),
        "recv_offset": [before[s][e] for e, s in pairs],
        "total_recv_tokens": sum(e in mine for e, *_ in every),
        "max_bs": max(tokens),
        "recv_tokens_per_expert": [sum(count[:, e]) for e in mine],
    }


def _single(value: Any) -> Any:
    return np.asarray(value, np.float64).astype(np.float32).astype(np.float64)


def quantised(row: Any, epsilon: bool) -> tuple[Any, float]:
    """int8 values and scale of one row."""
    exact = np.asarray(row, np.float64)
    largest = max(abs(float(value)) for value in row)
    below = float(_single(largest + float(np.float32(1e-12)))) if epsilon else largest
    if largest == 0 or 127 / below > float(np.finfo(np.float32).max):
        return np.zeros(len(row), np.int8), 0.0
    factor = float(_single(127 / below))
    product = _single(exact * factor)
    floor = np.floor(product)
    over = product - floor
    # ties go to the even neighbour
    up = (over > 0.5) | ((over == 0.5) & (floor % 2 == 1))
    return (floor + up).astype(np.int8), float(_single(1 / factor))


def dispatched(case: Case, rank: int, quant: bool) -> tuple[Any, Any, Any]:
    """recv_x (uint16 patterns or int8) [A, h], scales [A] (None without quantisation), triples [A, 3]."""
    mine = [row for row in sent_rows(case) if row[0] // case.local == rank]
    triples = np.array([(source, token, k) for _, source, _, token, k in mine], np.int32).reshape(-1, 3)
    if not quant:
        rows = [to_half(case.x[source][token], case.half) for _, source, _, token, _ in mine]
        return np.array(rows, np.uint16).reshape(-1, case.hidden), None, triples
    pairs = [quantised(case.x[source][token], True) for _, source, _, token, _ in mine]
    return (
        np.array([values for values, _ in pairs], np.int8).reshape(-1, case.hidden),
        np.array([scale for _, scale in pairs], np.float32),
        triples,
    )


def expert_rows(case: Case, rank: int, quant: bool) -> Any:
    """What the experts of ``rank`` make of their rows, uint16 patterns [A, h].

    Expert e multiplies by a constant, a quantised row by its scale before; that product is rounded once.
    """
    values, scales, _ = dispatched(case, rank, quant)
    mine = [row[0] for row in sent_rows(case) if row[0] // case.local == rank]
    out = np.zeros(values.shape, np.uint16)
    for at, expert in enumerate(mine):
        row = values[at] * np.float64(scales[at]) if quant else from_half(values[at], case.half)
        out[at] = to_half(_single(_single(row) * constant(expert)), case.half)
    return out


def constant(expert: int) -> float:
    """The factor of an expert, exact in few bits, one of its own each."""
    return 0.5 + (expert + 1) / 1024


def combined(case: Case, made: list[Any], rank: int) -> Any:
    """uint16 patterns [T, h]: ``made`` are the experts' rows of all ranks, in the order of `dispatched`."""
    found: dict[tuple[int, int, int], Any] = {}
    for home in range(case.ranks):
        mine = [row for row in sent_rows(case) if row[0] // case.local == home]
        for at, (_, source, _, token, k) in enumerate(mine):
            found[source, token, k] = from_half(made[home][at], case.half).astype(np.float64)
    out = []
    for token, weights in enumerate(case.weights[rank]):
        total = np.zeros(case.hidden)
        for k, weight in enumerate(weights):
            total = _single(total + _single(float(weight) * found[rank, token, k]))
        out.append(to_half(total, case.half))
    return np.array(out, np.uint16).reshape(-1, case.hidden)


def posts(case: Case, rank: int, atomics: bool) -> dict[str, dict[str, int]]:
    """WQEs of ``rank`` by operator and opcode, from the routing alone."""
    peers = case.ranks - 1
    every = [(row[0] // case.local, row[0], row[1]) for row in sent_rows(case)]
    reads = len({(expert, source) for home, expert, source in every if home == rank and source != rank})
    away = [source for home, _, source in every if home == rank and source != rank]
    return {
        "notify": {"WRITE": 0 if atomics else peers, "READ": peers, "ATOMIC": peers if atomics else 0},
        "dispatch": {
            "WRITE": 0 if atomics else case.experts - case.local,
            "READ": reads,
            "ATOMIC": peers if atomics else 0,
        },
        "combine": {
            "WRITE": len(away) if atomics else 2 * len(away),
            "READ": 0,
            "ATOMIC": len(set(away)) if atomics else 0,
        },
    }


def calc_diff(left: Any, right: Any) -> float:
    """The vendor's measure: 1 - 2 sum(x y) / sum(x^2 + y^2), of the values plus 1."""
    x, y = np.asarray(left, np.float64) + 1, np.asarray(right, np.float64) + 1
    return float(1 - 2 * (x * y).sum() / (x * x + y * y).sum())
