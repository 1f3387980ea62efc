"""Batched posts of G3: WQEs are collected in UB and handed over with one doorbell (device page 4.4).

The batch lives in the caller's UB buffer: a cache of 64 bytes with what submit needs, then one WQE of 128
bytes per request. WQE ``index`` of a batch is deferred with ce = 0, the last one submitted with ce = 1. WQEs
are built over whatever the buffer holds, as all staged WQEs are.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from pymodel.device.driver import ring_sq, stage
from pymodel.device.queues import DeviceAbort, NoQueueError, QpState
from pymodel.device.roce import resolve
from pymodel.device.ub import GlobalTensor, LocalTensor
from pymodel.device.wqe import U32, WQE_BYTES
from pymodel.device.wr import Opcode, SendWr
from pymodel.device.xscale import SQ_THRESHOLD, aclshmem_roce_ptr, announce, post_info
from pymodel.platform import store

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pymodel.device.pe import Pe

CACHE_BYTES: Final = 64
_CACHE: Final = struct.Struct("<4Q5I")
"""SQ base, head, tail and doorbell address; depth, wqn, base head, rkey, lkey."""
_STAGED: Final = struct.Struct("<4I2IQ2IQ")


async def aclshmemx_roce_qp_put_defer(
    pe: Pe,
    dst: int | GlobalTensor,
    src: int | GlobalTensor,
    buf: LocalTensor,
    elem_size: int,
    peer: int,
    qp_idx: int,
    index: int,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike = "u1",
) -> None:
    """Put request ``index`` of the batch in ``buf``: nothing is posted yet. Index 0 begins a batch."""
    to, local, nbytes = resolve(dst, src, elem_size, dtype)
    wr = SendWr(local, aclshmem_roce_ptr(pe, to, peer), nbytes)
    _defer(pe, _qp(pe, peer, qp_idx), wr, buf, index, ce=False)


async def aclshmemx_roce_qp_get_defer(
    pe: Pe,
    dst: int | GlobalTensor,
    src: int | GlobalTensor,
    buf: LocalTensor,
    elem_size: int,
    peer: int,
    qp_idx: int,
    index: int,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike = "u1",
) -> None:
    """Get request ``index`` of the batch in ``buf``: nothing is posted yet. Index 0 begins a batch."""
    local, there, nbytes = resolve(dst, src, elem_size, dtype)
    wr = SendWr(local, aclshmem_roce_ptr(pe, there, peer), nbytes, Opcode.READ)
    _defer(pe, _qp(pe, peer, qp_idx), wr, buf, index, ce=False)


async def aclshmemx_roce_qp_put_submit(
    pe: Pe,
    dst: int | GlobalTensor,
    src: int | GlobalTensor,
    buf: LocalTensor,
    elem_size: int,
    peer: int,
    qp_idx: int,
    index: int,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike = "u1",
) -> None:
    """Put request ``index``, the last of the batch in ``buf``, and post them all with one doorbell."""
    to, local, nbytes = resolve(dst, src, elem_size, dtype)
    qp = _qp(pe, peer, qp_idx)
    _defer(pe, qp, SendWr(local, aclshmem_roce_ptr(pe, to, peer), nbytes), buf, index, ce=True)
    await _submit(pe, qp, buf, index + 1)


async def aclshmemx_roce_qp_get_submit(
    pe: Pe,
    dst: int | GlobalTensor,
    src: int | GlobalTensor,
    buf: LocalTensor,
    elem_size: int,
    peer: int,
    qp_idx: int,
    index: int,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike = "u1",
) -> None:
    """Get request ``index``, the last of the batch in ``buf``, and post them all with one doorbell."""
    local, there, nbytes = resolve(dst, src, elem_size, dtype)
    qp = _qp(pe, peer, qp_idx)
    wr = SendWr(local, aclshmem_roce_ptr(pe, there, peer), nbytes, Opcode.READ)
    _defer(pe, qp, wr, buf, index, ce=True)
    await _submit(pe, qp, buf, index + 1)


def _qp(pe: Pe, peer: int, qp_idx: int) -> QpState:
    if not pe.driver.by_id:
        raise NotImplementedError(f"batched posts: the driver of {pe.driver.generation.name} has none")
    qp = pe.qp(peer, qp_idx)
    if qp.depth == 0:
        raise NoQueueError(pe.rank, "batch", peer, qp_idx)
    return qp


def _defer(pe: Pe, qp: QpState, wr: SendWr, buf: LocalTensor, index: int, ce: bool) -> None:
    place = buf.part(CACHE_BYTES + WQE_BYTES * index, WQE_BYTES)
    pe.use(qp, "defer")
    if index == 0:
        addresses = qp.sq_addr, qp.sq_head_addr, qp.sq_tail_addr, qp.sq_db_addr
        _CACHE.pack_into(pe.ub, buf.offset, *addresses, qp.depth, qp.wqn, qp.sq_head, qp.rkey, pe.lkey)
    *_, base, wr.rkey, wr.lkey = _CACHE.unpack_from(pe.ub, buf.offset)
    if base != qp.sq_head or index != qp.deferred:
        raise ValueError(
            f"request {index} of a batch to PE {qp.peer}, QP {qp.qp_idx}, begun at head {base} and"
            f" {qp.deferred} requests long: the head is {qp.sq_head}"
        )
    stage(pe.ub, place.offset, wr, qp.version, base + index & U32, ce)
    qp.deferred = index + 1


async def _submit(pe: Pe, qp: QpState, buf: LocalTensor, total: int) -> None:
    sq_base, _, _, _, depth, _, head, rkey, lkey = _CACHE.unpack_from(pe.ub, buf.offset)
    qp.deferred = 0
    wqes = buf.offset + CACHE_BYTES
    requests = [_request(pe.ub, wqes + WQE_BYTES * index, rkey, lkey) for index in range(total)]
    if total >= depth:
        if pe.options.debug:
            raise DeviceAbort(f"PE {pe.rank}: batch of {total} WQEs for an SQ of {depth}")
        # a release build returns without a word
        qp.dropped += total
        for index, wr in enumerate(requests):
            for dropped in pe.core.hooks.dropped:
                dropped(post_info(pe, qp, wr, head + index & U32), 0)
        return
    if head + total - qp.sq_tail + SQ_THRESHOLD & U32 >= depth:
        qp.drains.append(head)
        await pe.driver.poll(pe, qp, head, pe.words)
    first = min(total, depth - head % depth)
    middle, end = wqes + WQE_BYTES * first, wqes + WQE_BYTES * total
    await store(sq_base + WQE_BYTES * (head % depth), bytes(pe.ub[wqes:middle]), True)
    if middle < end:
        await store(sq_base, bytes(pe.ub[middle:end]), True)
    for index, wr in enumerate(requests):
        announce(pe, qp, wr, head + index & U32)
    qp.awaited += 1
    await ring_sq(pe, qp, head + total & U32, pe.words)


def _request(ub: bytearray, at: int, rkey: int, lkey: int) -> SendWr:
    """The request that a staged WQE stands for."""
    dw0, length, _, _, _, _, remote, _, _, local = _STAGED.unpack_from(ub, at)
    return SendWr(local, remote, length, Opcode(dw0 & 0xFF), lkey, rkey)
