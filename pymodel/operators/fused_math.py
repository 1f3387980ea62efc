"""Routing and numbers of the fused operator; nothing here communicates.

Every step is one float32 operation in the order of operators page 6.2; ``exp`` in float64 rounded once
(programs page, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pymodel.operators.common import ProtocolError
from pymodel.operators.fused_types import (
    CORE_STRIDE,
    F32_ONE,
    FLAG_BYTES,
    Array,
    Expert,
    FusedArgs,
    FusedMap,
    Numerics,
    undefined,
)
from pymodel.operators.quant import quantise

BLOCK: Final = 1024
"""Depth of a float32 product of int8 values: its sums stay within 2^24, so each of them is exact."""
_F32: Final = np.float32


@dataclass(frozen=True)
class Route:
    """Slots (t, k) of one rank that are sent, sorted by expert, then by flat slot.

    ``token``, ``slot``, ``expert``: int64 [n]; ``counts``, ``starts``: int64 [E], rows per expert and its
    first row. The j-th row of an expert has expandIdx j (operators page 6.2).
    """

    token: NDArray[np.int64]
    slot: NDArray[np.int64]
    expert: NDArray[np.int64]
    counts: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, args: FusedArgs) -> Route:
        """Active tokens only; experts of -1 are skipped (operators page 6.5)."""
        ids = args.expert_ids[: args.active].astype(np.int64)
        token, slot = np.nonzero(ids >= 0)
        expert = ids[token, slot]
        order = np.argsort(expert, kind="stable")
        counts = np.bincount(expert, minlength=args.moe_expert_num)
        return cls(token[order], slot[order], expert[order], counts, np.cumsum(counts) - counts)


def quantised_rows(args: FusedArgs, route: Route) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 [n, h] and float32 [n] of the rows of ``route``: once a token, or once a row where smoothed."""
    if args.expert_smooth_scales is None:
        q, scale = quantise(args.x[: args.active].astype(_F32), False)
        return q[route.token], scale[route.token]
    rows = args.x.astype(_F32)[route.token] * args.expert_smooth_scales.astype(_F32)[route.expert]
    return quantise(rows, False)


def records(
    places: FusedMap, q: NDArray[np.int8], scale: NDArray[np.float32], token_flag: int
) -> NDArray[np.uint8]:
    """uint8 [n, record]: payload, scale, token flag, zeros (operators page 6.4)."""
    hidden = places.hidden
    out = np.zeros((len(q), places.record), np.uint8)
    out[:, :hidden] = q.view(np.uint8)
    out[:, hidden : hidden + 4] = scale.reshape(-1, 1).view(np.uint8)
    out[:, hidden + 4 : hidden + 8] = np.frombuffer(token_flag.to_bytes(4, "little"), np.uint8)
    return out


def unpack_records(places: FusedMap, raw: NDArray[np.uint8]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Copies of payload int8 [n, h] and scale float32 [n] of records [n, record]."""
    hidden = places.hidden
    scale = np.ascontiguousarray(raw[:, hidden : hidden + 4]).view(_F32).reshape(-1)
    return raw[:, :hidden].copy().view(np.int8), scale


def status_words(counts: Array, status: int) -> NDArray[np.uint8]:
    """uint8 [n, 32]: count status words {float32 status, int32 count, zeros}."""
    words = np.zeros((len(counts), FLAG_BYTES // 4), np.uint32)
    words[:, 0], words[:, 1] = status, counts
    return words.view(np.uint8)


def checked_counts(places: FusedMap, counts: Array) -> NDArray[np.int64]:
    """Counts [El, R] as they came. Raises ProtocolError where a rank claims more rows than it can have."""
    out = counts.astype(np.int64)
    if out.size and int(out.max()) > places.max_bs:
        local, src = np.unravel_index(int(out.argmax()), out.shape)
        raise ProtocolError(f"rank {src} has {out.max()} rows for local expert {local}, {places.max_bs} fit")
    return out


def core_words(value: int, cores: int) -> NDArray[np.uint8]:
    """uint8 [cores x 128]: a state word for each core, zeros between."""
    words = np.zeros((cores, CORE_STRIDE // 4), np.uint32)
    words[:, 0] = value
    return words.view(np.uint8).reshape(-1)


def flipped(state: int) -> int:
    """The "state" word after this use of its half."""
    return F32_ONE if state == 0 else 0


# ---------------------------------------------------------------------- an expert
def int8_product(a: NDArray[np.int8], b: NDArray[np.int8]) -> NDArray[np.int32]:
    """Exact int32 [n, N] of int8 [n, K] and [K, N].

    float32 BLAS in blocks; only one block of ``b`` is there as float32 at a time.
    """
    out = np.zeros((a.shape[0], b.shape[1]), np.int32)
    if out.size:
        for low in range(0, a.shape[1], BLOCK):
            part = a[:, low : low + BLOCK].astype(_F32) @ b[low : low + BLOCK].astype(_F32)
            out += part.astype(np.int32)
    return out


def swiglu(d: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [n, N1/2] of [n, N1]: the left half activated, times the right half."""
    middle = d.shape[1] // 2
    left, right = d[:, :middle], d[:, middle:]
    with np.errstate(over="ignore"):
        # an overflow gives infinity, and the quotient -0: meant so (operators page 6.2)
        power = np.exp(-left.astype(np.float64)).astype(_F32)
    return (left / (_F32(1) + power)) * right


def requantise(y: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 [n, m] and float32 [n] between the products (operators page 6.2): times 127, then times 1/max.

    Rows whose maximum is 0 or has no finite reciprocal: 0 and scale 0 (programs page, section 5).
    """
    top = np.abs(y).max(axis=1, initial=0).astype(_F32)
    with np.errstate(divide="ignore", over="ignore"):
        reciprocal = _F32(1) / top
    good = np.isfinite(reciprocal)
    factor = np.where(good, reciprocal, _F32(0))
    q = np.rint((y * _F32(127)) * factor[:, None]).astype(np.int8)
    return q, np.where(good, top * (_F32(1) / _F32(127)), _F32(0))


class W8A8:
    """int8 weights (operators page 6.2)."""

    def first(self, expert: Expert, q: NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.float32]:
        """(acc x weight scale) x row scale."""
        return self._dequantised(int8_product(q, expert.w1), expert.s1, scale)

    def second(self, expert: Expert, q: NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.float32]:
        """As `first`, with the second weights."""
        return self._dequantised(int8_product(q, expert.w2), expert.s2, scale)

    @staticmethod
    def _dequantised(acc: NDArray[np.int32], weight: Array, scale: Array) -> NDArray[np.float32]:
        out: NDArray[np.float32] = (acc.astype(_F32) * weight.astype(_F32)) * scale[:, None]
        return out


# what overflows becomes infinite, or no number, as on the device: nothing to warn of
_QUIET = np.errstate(over="ignore", invalid="ignore")


@_QUIET
def run_expert(
    numerics: Numerics, expert: Expert, q: NDArray[np.int8], scale: NDArray[np.float32], dtype: np.dtype[Any]
) -> Array:
    """Rows [n, h] of type ``dtype`` that an expert makes of int8 rows [n, h] with scales [n]."""
    if not len(q):
        return np.empty((0, q.shape[1]), dtype)
    q2, scale2 = requantise(swiglu(numerics.first(expert, q, scale)))
    return numerics.second(expert, q2, scale2).astype(dtype)


def shared_output(args: FusedArgs, numerics: Numerics) -> Array:
    """The shared expert over all tokens, masked ones too [bs, h]; undefined without one."""
    expert = args.shared()
    if expert is None:
        return undefined(args.x)
    rows = args.x.astype(_F32)
    if args.share_smooth_scales is not None:
        rows = rows * args.share_smooth_scales.astype(_F32).reshape(1, -1)
    q, scale = quantise(rows, False)
    return run_expert(numerics, expert, q, scale, args.x.dtype)


@_QUIET
def reduced(args: FusedArgs, route: Route, rows: Array) -> Array:
    """Output [bs, h] of the experts' rows [n, h] in the order of ``route``: k ascending, mul then add."""
    active, hidden = args.active, args.x.shape[1]
    place = np.full(args.expert_ids.shape, -1, np.int64)
    place[route.token, route.slot] = np.arange(len(route.token))
    acc = np.zeros((active, hidden), _F32)
    for k in range(args.expert_ids.shape[1]):
        tokens = np.flatnonzero(place[:active, k] >= 0)
        product = rows[place[tokens, k]].astype(_F32) * args.expert_scales[tokens, k, None].astype(_F32)
        acc[tokens] = acc[tokens] + product
    out = undefined(args.x)
    out[:active] = acc.astype(args.x.dtype)
    return out
