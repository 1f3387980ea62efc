"""Pure parts of prefill that both data paths share: offsets, staged rows, tables, reduction.

Offsets are those of operators page 4.1, 4.2, 5 and 7. The protocols stand in `prefill_window` and
`prefill_shmem`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pymodel.operators.common import KB, MB, align
from pymodel.operators.prefill_types import Dispatched, Ints, Matrix, Notified, Octets
from pymodel.operators.quant import quantise

UNDEFINED: Final = 0xA5
"""Every byte of an element that nobody defines (programs page, section 4)."""

NOTIFY_MAGIC: Final = 900 * KB
"""Words of core 0 in windowsExp: a u64 that counts notify calls, ..."""
DISPATCH_TOGGLE: Final = 950 * KB
COMBINE_TOGGLE: Final = 975 * KB
"""... and int32 words that name the half of the next dispatch and combine."""

NOTIFY_HALF: Final = 102 * MB
NOTIFY_DATA: Final = 2 * MB
"""Of the slices within a half; the flags stand before them."""
SLOT: Final = 32
"""Bytes of a flag's slot."""
STATUS_HALF: Final = 500 * KB
"""Of dispatch statuses in windowsExp."""
STATE: Final = 204 * MB
"""Of the combine flags within a half of windowsIn; what stands before belongs to notify."""
STATE_BYTES: Final = 4 * MB

DISPATCH_STATUS: Final = np.array([1, 0, 0, 0, 0, 0, 0, 0], np.float32).view(np.uint8)
COMBINE_FLAG: Final = np.ones(8, np.float32).view(np.uint8)


# ---------------------------------------------------------------------------------------------------- offsets
def notify_half(magic: int) -> int:
    """Offset in windowsIn of the flags of the notify call ``magic`` (from 1 on)."""
    return (magic & 1) * NOTIFY_HALF


def notify_value(magic: int) -> int:
    """The u64 flag of a notify call."""
    return magic * 2 + 1


def notify_here(seen: int, magic: int) -> bool:
    """A slot that holds ``seen`` announces call ``magic``: same high word, and not an older value."""
    value = notify_value(magic)
    return seen >> 32 == value >> 32 and seen >= value


def half_offset(half: int, win_size: int) -> int:
    """Offset in windowsIn of what dispatch and combine have in half ``half``: the combine flags."""
    return half * (win_size // 2) + STATE


def slot_stride(hidden: int, itemsize: int) -> int:
    """Bytes from row to row of the combine data."""
    return align(hidden * itemsize, 512)


def staging_offset(half: int, win_size: int, max_bs: int, top_k: int, hidden: int, itemsize: int) -> int:
    """Offset in windowsIn of a rank's staged rows; ``itemsize`` is that of x."""
    return half_offset(half, win_size) + STATE_BYTES + max_bs * top_k * slot_stride(hidden, itemsize)


def scale_offset(payload: int) -> int:
    """Offset of the scale in a staged row of ``payload`` bytes; the triple stands 32 bytes behind it."""
    return align(payload, 32)


def row_stride(hidden: int, itemsize: int) -> int:
    """Bytes of a staged row; ``itemsize`` is that of what is sent (1 for int8)."""
    return align(scale_offset(hidden * itemsize) + 32 + 12, 512)


# ----------------------------------------------------------------------------------------------------- notify
def send_table(counts: Ints, num_tokens: int) -> Ints:
    """int32[E, 3] (count, exclusive prefix, tokens): what a rank has for each expert."""
    table = np.empty((counts.size, 3), np.int32)
    table[:, 0] = counts
    table[:, 1] = np.cumsum(counts) - counts
    table[:, 2] = num_tokens
    return table


def notified(send_data: Ints, recv_data: Ints) -> Notified:
    """Everything that follows from the own table int32[E, 3] and the slices int32[R, El, 3] of all ranks."""
    counts = recv_data[:, :, 0].T.astype(np.int64)  # (local expert, source)
    return Notified(
        send_data,
        send_data[:, 1].copy(),
        recv_data,
        np.cumsum(counts.ravel()).astype(np.int32),
        np.ascontiguousarray(recv_data[:, :, 1].T).ravel(),
        int(counts.sum()),
        int(recv_data[:, :, 2].max()),
        counts.sum(axis=1),
    )


def row_starts(recv_count: Ints) -> Ints:
    """int32[E]: first output row of each (local expert, source), from the inclusive sums."""
    return np.concatenate((np.zeros(1, np.int32), recv_count[:-1]))


# ------------------------------------------------------------------------------------------------------- rows
def pack_rows(
    x: Matrix, topk_idx: Ints, send_offset: Ints, send_token_idx: Ints, rank: int, quant: bool
) -> Octets:
    """Staged rows uint8[T K, stride] of x [T, h]: payload, scale (quantised only), triple (rank, t, k).

    Slot (t, k) stands at row send_offset[expert] + send_token_idx[t, k].
    """
    tokens, top_k = topk_idx.shape
    sent, scales = quantise(x.astype(np.float32), epsilon=True) if quant else (x, None)
    payload = np.ascontiguousarray(sent).view(np.uint8).reshape(tokens, -1)
    size = payload.shape[1]
    at = (send_offset[topk_idx] + send_token_idx).ravel()
    rows = np.full((tokens * top_k, row_stride(x.shape[1], sent.dtype.itemsize)), UNDEFINED, np.uint8)
    rows[at, :size] = np.repeat(payload, top_k, axis=0)
    field = scale_offset(size)
    if scales is not None:
        rows[at, field : field + 4] = np.repeat(scales, top_k).view(np.uint8).reshape(-1, 4)
    triple = np.empty((tokens, top_k, 3), np.int32)
    triple[..., 0] = rank
    triple[..., 1] = np.arange(tokens)[:, None]
    triple[..., 2] = np.arange(top_k)
    rows[at, field + 32 : field + 44] = triple.view(np.uint8).reshape(-1, 12)
    return rows


def unpack_rows(rows: Octets, hidden: int, dtype: np.dtype[Any], quant: bool) -> Dispatched:
    """The outputs from landed rows uint8[A, stride], copied; ``dtype`` is that of x."""
    kind = np.dtype(np.int8) if quant else dtype
    size = hidden * kind.itemsize
    field = scale_offset(size)
    if not rows.shape[0]:
        rows = np.full((1, field + 44), UNDEFINED, np.uint8)
    scales = np.full((rows.shape[0], 4), UNDEFINED, np.uint8)
    if quant:
        scales[:] = rows[:, field : field + 4]
    return Dispatched(
        rows[:, :size].copy().view(kind),
        scales.view(np.float32).ravel(),
        rows[:, field + 32 : field + 44].copy().view(np.int32).ravel(),
    )


# ---------------------------------------------------------------------------------------------------- combine
def combine_rows(data: Octets, weights: NDArray[np.float32], hidden: int, dtype: np.dtype[Any]) -> Matrix:
    """Weighted sums [T, h] of the slots' rows: uint8[T K, stride], weights float32[T, K].

    Sum in float32, k ascending, a product and then an addition, at last round to nearest even to ``dtype``.
    """
    tokens, top_k = weights.shape
    slots = data.reshape(tokens, top_k, -1)[:, :, : hidden * dtype.itemsize]
    total = np.zeros((tokens, hidden), np.float32)
    for k in range(top_k):
        row = np.ascontiguousarray(slots[:, k]).view(dtype).astype(np.float32)
        total = total + weights[:, k, None] * row
    with np.errstate(over="ignore"):
        return total.astype(dtype)
