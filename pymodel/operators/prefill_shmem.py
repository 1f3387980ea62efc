"""Prefill kernels in SHMEM mode: device programs over put_nbi, get_nbi, atomics and quiet.

The protocols of `prefill_window` at the same offsets of the heap's windows, as programs page 4 and operators
page 10.5 map them: notify = flag WRITE and READ a peer; dispatch = status WRITE an expert and one READ per
(local expert, source) with rows; combine = a WRITE of the row and one of its flag a row, on one QP. What goes
to the own rank is stored, payload before flag. With atomic counters no flag or status is sent. Every kernel
quiets all its peers before it returns. Nothing is checked here that the host layer checks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pymodel.operators import prefill_rows as rows
from pymodel.operators.common import KB, ProtocolError
from pymodel.operators.prefill_types import Dispatched, Ints, Matrix, Notified, Octets
from pymodel.operators.world import Rank

# Of the heap's sync area, from its base; barriers and signals have what stands before 128 KiB.
STATUS_WORD: Final = 128 * KB
"""Read-only source of dispatch statuses, 32 bytes."""
FLAG_WORD: Final = STATUS_WORD + 64
"""Read-only source of combine flags, 32 bytes."""
NOTIFY_SLOTS: Final = 129 * KB
"""Sources of notify flags, one slot per (parity, peer)."""
NOTIFY_LANDING: Final = 132 * KB
"""Where notify's READs land: 12 bytes an expert."""
MAX_RANKS: Final = 16
SLOT_STRIDE: Final = 64


def _peers(rank: Rank) -> list[int]:
    """The other ranks, the next one first, so that not all ranks turn to the same one."""
    return [(rank.rank + step) % rank.ranks for step in range(1, rank.ranks)]


async def _quiet_peers(rank: Rank) -> None:
    for peer in _peers(rank):
        await rank.device.quiet(peer)


async def _toggle(rank: Rank, offset: int) -> int:
    """The half that the int32 word at ``offset`` of windowsExp names; the next call gets the other."""
    pe = rank.device
    word = pe.heap_base + rank.layout.exp + offset
    half = int(pe.memory(word, 4).view(np.int32)[0])
    await pe.store(word, np.array([1 - half], np.int32).view(np.uint8))
    return half


async def _next_magic(rank: Rank) -> int:
    pe = rank.device
    word = pe.heap_base + rank.layout.exp + rows.NOTIFY_MAGIC
    magic = int(pe.memory(word, 8).view(np.uint64)[0]) + 1
    await pe.store(word, magic.to_bytes(8, "little"))
    return magic


async def _constant(rank: Rank, offset: int, value: Octets) -> int:
    """Address of a read-only source in the sync area; written once."""
    address = rank.device.heap_base + offset
    if rank.state.get(f"prefill.constant {offset}") is None:
        rank.state[f"prefill.constant {offset}"] = True
        await rank.device.store(address, value)
    return address


# -------------------------------------------------------------------------------------------- atomic counters
async def _await_counter(rank: Rank, kind: str, parity: int, before: int, remote: int) -> None:
    """Wait until the own counter is ``before`` + ``remote``. Raises ProtocolError where it becomes more."""
    expected = rank.bases[kind, parity] = before + remote
    address = rank.counter(kind, parity)
    seen = before

    def arrived(view: Octets) -> bool:
        nonlocal seen
        seen = int(view.view(np.int64)[0])
        return seen >= expected

    what = f"the {kind} counter of parity {parity} to become {expected} (it was {before})"
    await rank.device.wait_until(address, 8, arrived, what=what)
    if seen > expected:
        raise ProtocolError(f"rank {rank.rank}: {kind} counter of parity {parity} is {seen}, not {expected}")


async def _count_peers(rank: Rank, kind: str) -> None:
    """Add 1 to the counter of every peer, then wait until all of them have added theirs here.

    All ranks have made the same calls, so a peer's counter lies between the old base and the new one.
    """
    parity = rank.call(kind) & 1
    before = rank.bases.get((kind, parity), 0)
    pe = rank.device
    for peer in _peers(rank):
        old = await pe.atomic.fetch_add(rank.counter(kind, parity), 1, peer)
        pe.atomics_checked += 1
        if not before <= old < before + rank.ranks - 1:
            raise ProtocolError(
                f"rank {rank.rank}: {kind} counter of parity {parity} of rank {peer} was {old}, not in"
                f" [{before}, {before + rank.ranks - 2}]"
            )
    await _await_counter(rank, kind, parity, before, rank.ranks - 1)


# ----------------------------------------------------------------------------------------------------- notify
async def notify(rank: Rank, counts: Ints, num_tokens: int) -> Notified:
    """`prefill_window.notify` over RDMA."""
    pe, me = rank.device, rank.rank
    magic = await _next_magic(rank)
    base = pe.heap_base + rank.layout.win + rows.notify_half(magic)
    table = rows.send_table(counts, num_tokens)
    size = table.nbytes // rank.ranks
    slices = base + rows.NOTIFY_DATA
    await pe.store(slices, table.view(np.uint8).ravel())
    if rank.atomics:
        await _count_peers(rank, "notify")
    else:
        await _notify_flags(rank, magic, base)
    landing = pe.heap_base + NOTIFY_LANDING
    for peer in _peers(rank):
        await pe.get_nbi(landing + size * peer, slices + size * me, size, peer)
    await pe.store(landing + size * me, pe.memory(slices + size * me, size))
    await _quiet_peers(rank)
    received = pe.memory(landing, table.nbytes).view(np.int32).reshape(rank.ranks, -1, 3)
    return rows.notified(table, received.copy())


async def _notify_flags(rank: Rank, magic: int, base: int) -> None:
    pe, me = rank.device, rank.rank
    flag = rows.notify_value(magic).to_bytes(8, "little")
    slots = pe.heap_base + NOTIFY_SLOTS + (magic & 1) * MAX_RANKS * SLOT_STRIDE
    for peer in _peers(rank):
        await pe.store(slots + peer * SLOT_STRIDE, flag)
        await pe.put_nbi(base + rows.SLOT * me, slots + peer * SLOT_STRIDE, 8, peer)
        pe.count("flags")
    await pe.store(base + rows.SLOT * me, flag)
    for peer in _peers(rank):
        await pe.wait_until(
            base + rows.SLOT * peer,
            8,
            lambda view: rows.notify_here(int(view.view(np.uint64)[0]), magic),
            what=f"the notify flag of call {magic}",
            peer=peer,
        )


# --------------------------------------------------------------------------------------------------- dispatch
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
    """`prefill_window.dispatch` over RDMA; rows land in the order of the output."""
    pe, me, ranks = rank.device, rank.rank, rank.ranks
    top_k, hidden, local = topk_idx.shape[1], x.shape[1], recv_count.size // ranks
    half = await _toggle(rank, rows.DISPATCH_TOGGLE)
    staging = rows.staging_offset(half, rank.layout.win_size, max_bs, top_k, hidden, x.dtype.itemsize)
    staging += pe.heap_base + rank.layout.win
    staged = rows.pack_rows(x, topk_idx, send_offset, send_token_idx, me, quant)
    stride = staged.shape[1]
    if staged.size:
        await pe.store(staging, staged.ravel())
    rank.state["prefill.owner"] = topk_idx // local
    if rank.atomics:
        await _count_peers(rank, "dispatch")
    else:
        await _dispatch_statuses(rank, half, local)
    landing = pe.heap_base + rank.layout.landing
    starts = rows.row_starts(recv_count)
    for source in [*_peers(rank), me]:
        for slot in range(source, recv_count.size, ranks):
            nbytes = int(recv_count[slot] - starts[slot]) * stride
            there, here = staging + int(recv_offset[slot]) * stride, landing + int(starts[slot]) * stride
            if nbytes and source == me:
                await pe.store(here, pe.memory(there, nbytes))
            elif nbytes:
                await pe.get_nbi(here, there, nbytes, source)
    await _quiet_peers(rank)
    landed = pe.memory(landing, int(recv_count[-1]) * stride).reshape(-1, stride)
    return rows.unpack_rows(landed, hidden, x.dtype, quant)


async def _dispatch_statuses(rank: Rank, half: int, local: int) -> None:
    """A status an expert to its rank; then wait for those of all ranks, and clear them."""
    pe, me, ranks = rank.device, rank.rank, rank.ranks
    statuses = pe.heap_base + rank.layout.exp + half * rows.STATUS_HALF
    source = await _constant(rank, STATUS_WORD, rows.DISPATCH_STATUS)
    for expert in range(local):
        slot = statuses + rows.SLOT * (me + expert * ranks)
        for peer in _peers(rank):
            await pe.put_nbi(slot, source, rows.SLOT, peer)
            pe.count("flags")
        await pe.store(slot, rows.DISPATCH_STATUS)
    for peer in _peers(rank):
        await pe.wait_until(
            statuses + rows.SLOT * peer,
            rows.SLOT * ((local - 1) * ranks + 1),
            # the first word of each of the peer's slots
            lambda view: view.view(np.float32)[:: 8 * ranks].sum() == local,
            what=f"the dispatch statuses of {local} experts in half {half}",
            peer=peer,
        )
    await pe.store(statuses, bytes(rows.SLOT * local * ranks))


# ---------------------------------------------------------------------------------------------------- combine
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
    """`prefill_window.combine` over RDMA; rows go out of the transmit stage."""
    pe = rank.device
    top_k, hidden = topk_weights.shape[1], x.shape[1]
    stride, size = rows.slot_stride(hidden, x.dtype.itemsize), hidden * x.dtype.itemsize
    half = await _toggle(rank, rows.COMBINE_TOGGLE)
    state = pe.heap_base + rank.layout.win + rows.half_offset(half, rank.layout.win_size)
    data = state + rows.STATE_BYTES
    total = int(recv_count[-1])
    triples = token_src_info[: 3 * total].reshape(-1, 3)
    source, slots = triples[:, 0], triples[:, 1] * top_k + triples[:, 2]
    if total:
        await pe.store(
            pe.heap_base + rank.layout.stage, np.ascontiguousarray(x[:total]).view(np.uint8).ravel()
        )
    await _push_rows(rank, source, slots, size, stride, state)
    own = np.flatnonzero(source == rank.rank)
    payload = np.ascontiguousarray(x).view(np.uint8)
    for row, slot in zip(own.tolist(), slots[own].tolist(), strict=True):
        await pe.store(data + stride * slot, payload[row])
        if not rank.atomics:
            await pe.store(state + rows.SLOT * slot, rows.COMBINE_FLAG)
    if rank.atomics:
        parity = rank.call("combine") & 1
        for peer in _peers(rank):
            if sent := int((source == peer).sum()):
                await pe.atomic.add(rank.counter("combine", parity), sent, peer)
        before = rank.bases.get(("combine", parity), 0)
        await _await_counter(rank, "combine", parity, before, tokens * top_k - own.size)
    else:
        await _await_rows(rank, state, tokens * top_k)
        await pe.store(state, bytes(rows.SLOT * tokens * top_k))
    out = rows.combine_rows(pe.memory(data, stride * tokens * top_k), topk_weights, hidden, x.dtype)
    await _quiet_peers(rank)
    return out


async def _push_rows(rank: Rank, source: Ints, slots: Ints, size: int, stride: int, state: int) -> None:
    """The staged rows to their ranks, the n-th rows of all peers together; each flag follows its row."""
    pe = rank.device
    flag = 0 if rank.atomics else await _constant(rank, FLAG_WORD, rows.COMBINE_FLAG)
    stage, data = pe.heap_base + rank.layout.stage, state + rows.STATE_BYTES
    mine = [np.flatnonzero(source == peer) for peer in _peers(rank)]
    turn = np.concatenate([np.arange(part.size) for part in mine])
    order = np.concatenate(mine)[np.argsort(turn, kind="stable")]
    for row, peer, slot in zip(order.tolist(), source[order].tolist(), slots[order].tolist(), strict=True):
        await pe.put_nbi(data + stride * slot, stage + size * row, size, peer)
        if not rank.atomics:
            await pe.put_nbi(state + rows.SLOT * slot, flag, rows.SLOT, peer)
            pe.count("flags")


async def _await_rows(rank: Rank, state: int, slots: int) -> None:
    """Wait for the flags of all own slots, peer by peer, so that a hang names who has not sent."""
    known: Ints | None = rank.state.get("prefill.owner")
    owner = np.full(slots, -1) if known is None or known.size != slots else known.ravel()
    for peer in np.unique(owner).tolist():
        mine = np.flatnonzero(owner == peer)
        first, last = int(mine[0]), int(mine[-1])
        places = mine - first

        def arrived(view: Octets, places: NDArray[np.intp] = places) -> bool:
            words = view.view(np.float32).reshape(-1, 8)
            return bool(words[places].sum(dtype=np.float32) == 8 * places.size)

        await rank.device.wait_until(
            state + rows.SLOT * first,
            rows.SLOT * (last - first + 1),
            arrived,
            what=f"the combine flags of {mine.size} rows",
            peer=None if peer < 0 else peer,
        )
