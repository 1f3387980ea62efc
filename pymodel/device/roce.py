"""The public put, get and quiet calls (device page 5.1).

Pointer forms take addresses and the element type beside them (``dtype``, the T of the original's template);
tensor forms take `GlobalTensor`, which bring their type. ``buf`` is the call's scratch in UB, ``sync_id`` the
event; without it the value of `rdma_config` is used. The target PE is called ``peer`` here, as ``pe`` is the
calling one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from pymodel.device.ub import GlobalTensor, LocalTensor, Words, scratch_words
from pymodel.device.wr import Opcode, SendWr
from pymodel.device.xscale import aclshmem_roce_ptr, post, quiet

if TYPE_CHECKING:
    from pymodel.device.pe import Pe


def _call_words(pe: Pe, buf: LocalTensor | None) -> Words:
    return pe.words if buf is None else scratch_words(buf, pe.driver.staged)


def resolve(
    dst: int | GlobalTensor, src: int | GlobalTensor, elem_size: int, dtype: DTypeLike
) -> tuple[int, int, int]:
    """(dst address, src address, bytes) of a pointer or tensor form.

    Raises TypeError where one is a pointer and the other a tensor, or their types differ: the original has
    no such overload. Raises ValueError for a negative number of elements.
    """
    if elem_size < 0:
        raise ValueError(f"{elem_size} elements")
    if isinstance(dst, GlobalTensor) and isinstance(src, GlobalTensor):
        if np.dtype(dst.dtype) != np.dtype(src.dtype):
            raise TypeError(f"tensors of {np.dtype(dst.dtype)} and {np.dtype(src.dtype)}")
        return dst.addr, src.addr, elem_size * dst.itemsize
    if isinstance(dst, GlobalTensor) or isinstance(src, GlobalTensor):
        raise TypeError("one of dst and src is a tensor, the other a pointer")
    return dst, src, elem_size * np.dtype(dtype).itemsize


async def aclshmemx_roce_put_nbi(
    pe: Pe,
    dst: int | GlobalTensor,
    src: int | GlobalTensor,
    buf: LocalTensor | None,
    elem_size: int,
    peer: int,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike = np.uint8,
) -> None:
    """RDMA WRITE of ``elem_size`` elements from local ``src`` to symmetric ``dst`` on PE ``peer``, QP 0.

    Non-blocking: only a quiet to that peer allows the source to change.
    """
    await aclshmemx_roce_qp_put(pe, dst, src, buf, elem_size, peer, 0, sync_id, dtype=dtype)


async def aclshmemx_roce_get_nbi(
    pe: Pe,
    dst: int | GlobalTensor,
    src: int | GlobalTensor,
    buf: LocalTensor | None,
    elem_size: int,
    peer: int,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike = np.uint8,
) -> None:
    """RDMA READ of ``elem_size`` elements from symmetric ``src`` on PE ``peer`` to local ``dst``, QP 0.

    Non-blocking: only after a quiet to that peer may ``dst`` be read.
    """
    await aclshmemx_roce_qp_get(pe, dst, src, buf, elem_size, peer, 0, sync_id, dtype=dtype)


async def aclshmemx_roce_quiet(
    pe: Pe, peer: int, buf: LocalTensor | None = None, sync_id: int | None = None
) -> None:
    """Quiet all QPs of PE ``peer`` (4.5)."""
    words = _call_words(pe, buf)
    for qp_idx in range(pe.qp_num):
        await quiet(pe, pe.qp(peer, qp_idx), words)


async def aclshmemx_roce_qp_put(
    pe: Pe,
    dst: int | GlobalTensor,
    src: int | GlobalTensor,
    buf: LocalTensor | None,
    elem_size: int,
    peer: int,
    qp_idx: int,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike = np.uint8,
) -> None:
    """`aclshmemx_roce_put_nbi` on QP ``qp_idx``, one of at most 32 to that peer."""
    to, local, nbytes = resolve(dst, src, elem_size, dtype)
    wr = SendWr(local, aclshmem_roce_ptr(pe, to, peer), nbytes)
    await post(pe, pe.qp(peer, qp_idx), wr, _call_words(pe, buf))


async def aclshmemx_roce_qp_get(
    pe: Pe,
    dst: int | GlobalTensor,
    src: int | GlobalTensor,
    buf: LocalTensor | None,
    elem_size: int,
    peer: int,
    qp_idx: int,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike = np.uint8,
) -> None:
    """`aclshmemx_roce_get_nbi` on QP ``qp_idx``, one of at most 32 to that peer."""
    local, there, nbytes = resolve(dst, src, elem_size, dtype)
    wr = SendWr(local, aclshmem_roce_ptr(pe, there, peer), nbytes, Opcode.READ)
    await post(pe, pe.qp(peer, qp_idx), wr, _call_words(pe, buf))


async def aclshmemx_roce_qp_quiet(
    pe: Pe, peer: int, qp_idx: int, buf: LocalTensor | None = None, sync_id: int | None = None
) -> None:
    """Quiet one QP."""
    await quiet(pe, pe.qp(peer, qp_idx), _call_words(pe, buf))
