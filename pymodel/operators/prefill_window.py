"""Prefill kernels in window mode: stores into and loads from the windows of all ranks.

notify_dispatch, moe_dispatch_normal and moe_combine_normal as operators page 4.1, 4.2 and 5 give them, by one
core: its words are those of core 0. Nothing is checked here that the host layer checks.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from pymodel.operators import prefill_rows as rows
from pymodel.operators.prefill_types import Dispatched, Ints, Matrix, Notified, Octets
from pymodel.operators.window import poll
from pymodel.operators.world import Rank, own


def _toggle(rank: Rank, offset: int) -> int:
    """The half that the int32 word at ``offset`` of windowsExp names; the next call gets the other."""
    word = own(rank.windows[rank.rank].exp, offset, 4).view(np.int32)
    half = int(word[0])
    word[0] = 1 - half
    return half


def _announced(slot: Octets, magic: int) -> bool:
    return rows.notify_here(int(slot.view(np.uint64)[0]), magic)


def _sum_is(slots: Octets, value: int) -> bool:
    return float(slots.view(np.float32).sum(dtype=np.float32)) == value


async def notify(rank: Rank, counts: Ints, num_tokens: int) -> Notified:
    """Tell every rank how many rows of ``counts`` int32[E] it gets, and learn what it is to send here."""
    me, windows = rank.rank, rank.windows
    word = own(windows[me].exp, rows.NOTIFY_MAGIC, 8).view(np.uint64)
    word[0] += np.uint64(1)
    magic = int(word[0])
    base = rows.notify_half(magic)
    table = rows.send_table(counts, num_tokens)
    size = table.nbytes // rank.ranks
    own(windows[me].win, base + rows.NOTIFY_DATA, table.nbytes)[:] = table.view(np.uint8).ravel()
    flag = np.array([rows.notify_value(magic)], np.uint64).view(np.uint8)
    for target in windows:
        own(target.win, base + rows.SLOT * me, 8)[:] = flag
    received = np.empty((rank.ranks, counts.size // rank.ranks, 3), np.int32)
    for source, window in enumerate(windows):
        slot = own(windows[me].win, base + rows.SLOT * source, 8)
        await poll(partial(_announced, slot, magic), f"the notify flag of call {magic}", source)
        there = own(window.win, base + rows.NOTIFY_DATA + size * me, size)
        received[source] = there.view(np.int32).reshape(-1, 3)
    return rows.notified(table, received)


async def dispatch(
    rank: Rank,
    x: Matrix,
    topk_idx: Ints,
    send_offset: Ints,
    send_token_idx: Ints,
    recv_offset: Ints,
    recv_count: Ints,
    *,
    quant: bool,
    max_bs: int,
) -> Dispatched:
    """Stage the rows of x [T, h] here, announce them to the experts' ranks, pull what they have for this one.

    ``topk_idx``, ``send_token_idx`` int32[T, K]; ``send_offset``, ``recv_offset``, ``recv_count`` int32[E].
    """
    me, ranks, windows = rank.rank, rank.ranks, rank.windows
    top_k, hidden, local = topk_idx.shape[1], x.shape[1], recv_count.size // ranks
    half = _toggle(rank, rows.DISPATCH_TOGGLE)
    base = rows.staging_offset(half, windows[me].size, max_bs, top_k, hidden, x.dtype.itemsize)
    staged = rows.pack_rows(x, topk_idx, send_offset, send_token_idx, me, quant)
    own(windows[me].win, base, staged.size)[:] = staged.ravel()
    status = half * rows.STATUS_HALF
    for expert in range(recv_count.size):
        slot = status + rows.SLOT * (me + expert % local * ranks)
        own(windows[expert // local].exp, slot, rows.SLOT)[:] = rows.DISPATCH_STATUS
    slots = own(windows[me].exp, status, rows.SLOT * recv_count.size).reshape(local, ranks, rows.SLOT)
    for source in range(ranks):
        what = f"the dispatch statuses of {local} experts in half {half}"
        await poll(lambda s=source: _sum_is(slots[:, s], local), what, source)  # type: ignore[misc]
    slots[:] = 0
    stride = staged.shape[1]
    landed = np.empty((int(recv_count[-1]), stride), np.uint8)
    for slot, start in enumerate(rows.row_starts(recv_count)):
        count = int(recv_count[slot] - start)
        there = own(windows[slot % ranks].win, base + int(recv_offset[slot]) * stride, count * stride)
        landed[start : start + count] = there.reshape(count, stride)
    rank.state["prefill.owner"] = topk_idx // local
    return rows.unpack_rows(landed, hidden, x.dtype, quant)


async def combine(
    rank: Rank,
    x: Matrix,
    token_src_info: Ints,
    recv_count: Ints,
    topk_weights: NDArray[np.float32],
    *,
    tokens: int,
    max_bs: int,
) -> Matrix:
    """Push the rows x [A, h] back to where they came from; the weighted sums [T, h] of the own tokens.

    ``token_src_info`` int32[3 A], ``recv_count`` int32[E], ``topk_weights`` float32[T, K]; ``max_bs`` places
    nothing (operators page, section 5).
    """
    me, windows = rank.rank, rank.windows
    top_k, hidden = topk_weights.shape[1], x.shape[1]
    stride, size = rows.slot_stride(hidden, x.dtype.itemsize), hidden * x.dtype.itemsize
    half = _toggle(rank, rows.COMBINE_TOGGLE)
    state = rows.half_offset(half, windows[me].size)
    data = state + rows.STATE_BYTES
    total = int(recv_count[-1])
    triples = token_src_info[: 3 * total].reshape(-1, 3)
    payload = np.ascontiguousarray(x[:total]).view(np.uint8).reshape(total, size)
    for row, (source, token, k) in zip(payload, triples.tolist(), strict=True):
        own(windows[source].win, data + stride * (token * top_k + k), size)[:] = row
    for source, token, k in triples.tolist():
        own(windows[source].win, state + rows.SLOT * (token * top_k + k), rows.SLOT)[:] = rows.COMBINE_FLAG
    owner = rank.state.get("prefill.owner")
    out = np.empty((tokens, hidden), x.dtype)
    for token in range(tokens):
        flags = own(windows[me].win, state + rows.SLOT * token * top_k, rows.SLOT * top_k)
        # slot by slot, so that a hang names who has not sent; all K of them have the sum 8 K then
        for k in range(top_k):
            peer = None if owner is None else int(owner[token, k])
            slot = flags[rows.SLOT * k : rows.SLOT * (k + 1)]
            await poll(partial(_sum_is, slot, 8), f"the combine flag of token {token}, slot {k}", peer)
        flags[:] = 0
        rows_of = own(windows[me].win, data + stride * token * top_k, stride * top_k)
        out[token] = rows.combine_rows(rows_of, topk_weights[token : token + 1], hidden, x.dtype)[0]
    return out
