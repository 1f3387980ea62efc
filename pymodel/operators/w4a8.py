"""Numbers of the fused operator with 4-bit weights (operators page 6.6).

An int8 activation is split into two int4 rows, ``q = 16 hi + lo + 8``; the term 8 x (sum of a weight column)
comes from the compensation that the caller gives, already times the weight scale.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pymodel.operators.fused_math import int8_product
from pymodel.operators.fused_types import Array, Expert

NIBBLES: Final = 8
"""Weights in an int32 word: nibble j of word c is column 8 c + j."""
_SHIFTS: Final = 4 * np.arange(NIBBLES, dtype=np.uint32)


def pack(weight: NDArray[np.int8]) -> NDArray[np.int32]:
    """int32 [..., N/8] of weights [..., N] in [-8, 7]. Raises ValueError for others or another N."""
    if weight.shape[-1] % NIBBLES:
        raise ValueError(f"{weight.shape[-1]} columns: not a multiple of {NIBBLES}")
    if weight.size and not -8 <= int(weight.min()) <= int(weight.max()) <= 7:
        raise ValueError("weights outside [-8, 7]")
    nibbles = (weight.astype(np.int64) & 15).astype(np.uint32).reshape(*weight.shape[:-1], -1, NIBBLES)
    words: NDArray[np.uint32] = np.bitwise_or.reduce(nibbles << _SHIFTS, axis=-1)
    return words.view(np.int32)


def unpack(words: NDArray[np.int32]) -> NDArray[np.int8]:
    """int8 [..., N] of int32 [..., N/8], two's complement nibbles."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    out = np.empty((*raw.shape, 2), np.int8)
    # a nibble shifted to the top and back takes its sign along
    out[..., 0] = (raw << 4).view(np.int8) >> 4
    out[..., 1] = raw.view(np.int8) >> 4
    return out.reshape(*words.shape[:-1], words.shape[-1] * NIBBLES)


def split(q: NDArray[np.int8]) -> NDArray[np.int8]:
    """int8 [2 n, K] in [-8, 7] of [n, K]: for each row its hi row, then its lo row."""
    out = np.empty((q.shape[0], 2, q.shape[1]), np.int8)
    out[:, 0] = q >> 4
    out[:, 1] = (q & 15) - 8
    return out.reshape(2 * q.shape[0], q.shape[1])


def compensation(weight: NDArray[np.int8], scale: Array) -> NDArray[np.float32]:
    """The bias float32 [N] that belongs to int4 weights [K, N] with scales [N]: 8 x column sum x scale."""
    total = 8 * weight.astype(np.int64).sum(axis=0)
    out: NDArray[np.float32] = total.astype(np.float32) * scale.astype(np.float32)
    return out


class W4A8:
    """Packed int4 weights with compensations; as a `Numerics`."""

    def first(self, expert: Expert, q: NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.float32]:
        """((hi x 16 + lo) + compensation) x row scale."""
        return self._product(expert.w1, expert.s1, expert.b1, q, scale)

    def second(self, expert: Expert, q: NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.float32]:
        """As `first`, with the second weights."""
        return self._product(expert.w2, expert.s2, expert.b2, q, scale)

    @staticmethod
    def _product(
        words: Array, weight_scale: Array, bias: Array | None, q: NDArray[np.int8], scale: Array
    ) -> NDArray[np.float32]:
        assert bias is not None, "W4A8 needs its compensations"
        factor = weight_scale.astype(np.float32)
        both = int8_product(split(q), unpack(words)).astype(np.float32) * factor
        high, low = both[0::2], both[1::2]
        out: NDArray[np.float32] = (high * np.float32(16) + low + bias.astype(np.float32)) * scale[:, None]
        return out
