"""The 14 public atomics (device page 5.3): each posts exactly the WQE that the page gives for its type.

``dst`` is a symmetric address, ``dtype`` the T of the original's template: int32, uint32, int64 or uint64.
All go over QP 0 of ``peer`` with the scratch of `rdma_config`. Those that return a value are synchronous:
post, quiet of QP 0, result cell. The others only post. Old values come back as Python integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import DTypeLike

from pymodel.device.amo import (
    IntType,
    aclshmemi_roce_amo_add,
    aclshmemi_roce_amo_cas,
    aclshmemi_roce_get_atomic_fetch_data,
    atomic_type,
    atomic_value,
)
from pymodel.device.wqe import U64
from pymodel.device.xscale import aclshmem_roce_ptr, quiet

if TYPE_CHECKING:
    from pymodel.device.pe import Pe

_QP: Final = 0


async def _add(pe: Pe, dst: int, peer: int, kind: IntType, add: int, boundary: int, masked: bool) -> None:
    remote = aclshmem_roce_ptr(pe, dst, peer)
    # 4-byte operations exist masked only (1.5)
    masked = masked or kind.itemsize == 4
    await aclshmemi_roce_amo_add(pe, remote, 0, peer, _QP, add, boundary, dtype=kind, masked=masked)


async def _cas(
    pe: Pe,
    dst: int,
    peer: int,
    kind: IntType,
    swap: int,
    comp: int,
    swap_mask: int,
    comp_mask: int,
    masked: bool,
) -> None:
    remote = aclshmem_roce_ptr(pe, dst, peer)
    masked = masked or kind.itemsize == 4
    await aclshmemi_roce_amo_cas(
        pe, remote, 0, peer, _QP, swap, comp, swap_mask, comp_mask, dtype=kind, masked=masked
    )


async def _fetched(pe: Pe, peer: int, kind: IntType) -> int:
    qp = pe.qp(peer, _QP)
    await quiet(pe, qp, pe.words)
    value = aclshmemi_roce_get_atomic_fetch_data(pe, peer, _QP, dtype=kind)
    for fetched in pe.core.hooks.fetched:
        fetched(pe.rank, peer, _QP, qp.sq_head - 1 & 0xFFFF_FFFF, value)
    return value


async def aclshmemx_roce_atomic_fetch(pe: Pe, src: int, peer: int, *, dtype: DTypeLike = np.int64) -> int:
    """The value at ``src``: an add of 0."""
    kind = atomic_type(dtype)
    await _add(pe, src, peer, kind, 0, 0, masked=True)
    return await _fetched(pe, peer, kind)


async def _set(pe: Pe, dst: int, value: int, peer: int, kind: IntType) -> None:
    number = atomic_value(kind, value, "value")
    # the compare mask of 0 makes it unconditional
    await _cas(pe, dst, peer, kind, number, 0, U64, 0, masked=True)


async def aclshmemx_roce_atomic_set(
    pe: Pe, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> None:
    """Set ``dst`` to ``value``."""
    await _set(pe, dst, value, peer, atomic_type(dtype))


async def aclshmemx_roce_atomic_compare_swap(
    pe: Pe, dst: int, cond: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> int:
    """Set ``dst`` to ``value`` if it holds ``cond``; gives the old value."""
    kind = atomic_type(dtype)
    old, new = atomic_value(kind, cond, "cond"), atomic_value(kind, value, "value")
    await _cas(pe, dst, peer, kind, new, old, U64, U64, masked=False)
    return await _fetched(pe, peer, kind)


async def aclshmemx_roce_atomic_swap(
    pe: Pe, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> int:
    """Set ``dst`` to ``value``; gives the old value."""
    kind = atomic_type(dtype)
    await _set(pe, dst, value, peer, kind)
    return await _fetched(pe, peer, kind)


async def aclshmemx_roce_atomic_add(
    pe: Pe, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> None:
    """Add ``value`` to ``dst``, modulo 2^32 or 2^64."""
    kind = atomic_type(dtype)
    await _add(pe, dst, peer, kind, atomic_value(kind, value, "value"), 0, masked=True)


async def aclshmemx_roce_atomic_inc(pe: Pe, dst: int, peer: int, *, dtype: DTypeLike = np.int64) -> None:
    """Add 1 to ``dst``."""
    await aclshmemx_roce_atomic_add(pe, dst, 1, peer, dtype=dtype)


async def aclshmemx_roce_atomic_fetch_add(
    pe: Pe, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> int:
    """Add ``value`` to ``dst``; gives the old value."""
    kind = atomic_type(dtype)
    await _add(pe, dst, peer, kind, atomic_value(kind, value, "value"), 0, masked=False)
    return await _fetched(pe, peer, kind)


async def aclshmemx_roce_atomic_fetch_inc(pe: Pe, dst: int, peer: int, *, dtype: DTypeLike = np.int64) -> int:
    """Add 1 to ``dst``; gives the old value."""
    return await aclshmemx_roce_atomic_fetch_add(pe, dst, 1, peer, dtype=dtype)


async def aclshmemx_roce_atomic_and(
    pe: Pe, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> None:
    """And ``value`` into ``dst``: a swap of the bits that are 0 in it."""
    kind = atomic_type(dtype)
    number = atomic_value(kind, value, "value")
    await _cas(pe, dst, peer, kind, number, 0, ~number, 0, masked=True)


async def aclshmemx_roce_atomic_fetch_and(
    pe: Pe, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> int:
    """And ``value`` into ``dst``; gives the old value."""
    await aclshmemx_roce_atomic_and(pe, dst, value, peer, dtype=dtype)
    return await _fetched(pe, peer, atomic_type(dtype))


async def aclshmemx_roce_atomic_or(
    pe: Pe, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> None:
    """Or ``value`` into ``dst``: a swap of the bits that are 1 in it."""
    kind = atomic_type(dtype)
    number = atomic_value(kind, value, "value")
    await _cas(pe, dst, peer, kind, number, 0, number, 0, masked=True)


async def aclshmemx_roce_atomic_fetch_or(
    pe: Pe, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> int:
    """Or ``value`` into ``dst``; gives the old value."""
    await aclshmemx_roce_atomic_or(pe, dst, value, peer, dtype=dtype)
    return await _fetched(pe, peer, atomic_type(dtype))


async def aclshmemx_roce_atomic_xor(
    pe: Pe, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> None:
    """Exclusive-or ``value`` into ``dst``: an add whose every bit is a field of its own."""
    kind = atomic_type(dtype)
    await _add(pe, dst, peer, kind, atomic_value(kind, value, "value"), U64, masked=True)


async def aclshmemx_roce_atomic_fetch_xor(
    pe: Pe, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
) -> int:
    """Exclusive-or ``value`` into ``dst``; gives the old value."""
    await aclshmemx_roce_atomic_xor(pe, dst, value, peer, dtype=dtype)
    return await _fetched(pe, peer, atomic_type(dtype))


class Atomics:
    """The atomics of one PE without the long names: ``await pe.atomic.fetch_add(dst, 1, peer)``."""

    def __init__(self, pe: Pe) -> None:
        self._pe = pe

    async def fetch(self, src: int, peer: int, *, dtype: DTypeLike = np.int64) -> int:
        """`aclshmemx_roce_atomic_fetch`."""
        return await aclshmemx_roce_atomic_fetch(self._pe, src, peer, dtype=dtype)

    async def set(self, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64) -> None:
        """`aclshmemx_roce_atomic_set`."""
        await aclshmemx_roce_atomic_set(self._pe, dst, value, peer, dtype=dtype)

    async def compare_swap(
        self, dst: int, cond: int, value: int, peer: int, *, dtype: DTypeLike = np.int64
    ) -> int:
        """`aclshmemx_roce_atomic_compare_swap`."""
        return await aclshmemx_roce_atomic_compare_swap(self._pe, dst, cond, value, peer, dtype=dtype)

    async def swap(self, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64) -> int:
        """`aclshmemx_roce_atomic_swap`."""
        return await aclshmemx_roce_atomic_swap(self._pe, dst, value, peer, dtype=dtype)

    async def add(self, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64) -> None:
        """`aclshmemx_roce_atomic_add`."""
        await aclshmemx_roce_atomic_add(self._pe, dst, value, peer, dtype=dtype)

    async def inc(self, dst: int, peer: int, *, dtype: DTypeLike = np.int64) -> None:
        """`aclshmemx_roce_atomic_inc`."""
        await aclshmemx_roce_atomic_inc(self._pe, dst, peer, dtype=dtype)

    async def fetch_add(self, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64) -> int:
        """`aclshmemx_roce_atomic_fetch_add`."""
        return await aclshmemx_roce_atomic_fetch_add(self._pe, dst, value, peer, dtype=dtype)

    async def fetch_inc(self, dst: int, peer: int, *, dtype: DTypeLike = np.int64) -> int:
        """`aclshmemx_roce_atomic_fetch_inc`."""
        return await aclshmemx_roce_atomic_fetch_inc(self._pe, dst, peer, dtype=dtype)

    async def and_(self, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64) -> None:
        """`aclshmemx_roce_atomic_and`."""
        await aclshmemx_roce_atomic_and(self._pe, dst, value, peer, dtype=dtype)

    async def fetch_and(self, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64) -> int:
        """`aclshmemx_roce_atomic_fetch_and`."""
        return await aclshmemx_roce_atomic_fetch_and(self._pe, dst, value, peer, dtype=dtype)

    async def or_(self, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64) -> None:
        """`aclshmemx_roce_atomic_or`."""
        await aclshmemx_roce_atomic_or(self._pe, dst, value, peer, dtype=dtype)

    async def fetch_or(self, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64) -> int:
        """`aclshmemx_roce_atomic_fetch_or`."""
        return await aclshmemx_roce_atomic_fetch_or(self._pe, dst, value, peer, dtype=dtype)

    async def xor(self, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64) -> None:
        """`aclshmemx_roce_atomic_xor`."""
        await aclshmemx_roce_atomic_xor(self._pe, dst, value, peer, dtype=dtype)

    async def fetch_xor(self, dst: int, value: int, peer: int, *, dtype: DTypeLike = np.int64) -> int:
        """`aclshmemx_roce_atomic_fetch_xor`."""
        return await aclshmemx_roce_atomic_fetch_xor(self._pe, dst, value, peer, dtype=dtype)
