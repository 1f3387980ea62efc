"""The fine-grained atomics of the device API over XSCALE (device page 1.5, 5.2, 5.4).

An atomic has no local address of its own: its old value goes to one result cell per peer, which every
further atomic to that peer overwrites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from pymodel.device.ub import LocalTensor, Words
from pymodel.device.wr import Opcode, Operands, SendWr
from pymodel.device.xscale import aclshmemi_roce_fill_wqe, post, words_of

if TYPE_CHECKING:
    from pymodel.device.pe import Pe

IntType: TypeAlias = "np.dtype[Any]"
"""An element type T that atomics have."""
_INTEGERS: Final[dict[Any, str]] = {
    np.dtype(kind): kind.__name__ for kind in (np.int32, np.uint32, np.int64, np.uint64)
}


def atomic_type(dtype: DTypeLike) -> IntType:
    """The element type T of an atomic.

    Raises TypeError for anything but int32, uint32, int64 and uint64: other sizes do not compile in the
    original, and it converts floats numerically, which makes nonsense of them (device page 5.3).
    """
    kind = np.dtype(dtype)
    if kind not in _INTEGERS:
        raise TypeError(f"atomic on {kind}: RDMA atomics take {', '.join(_INTEGERS.values())}")
    return kind


def atomic_value(kind: IntType, value: int, name: str) -> int:
    """``value`` as a Python integer. Raises TypeError for a float, OverflowError beyond type ``kind``."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} {value!r}: an atomic takes integers, not {type(value).__name__}")
    limits, number = np.iinfo(kind), int(value)
    if not limits.min <= number <= limits.max:
        raise OverflowError(f"{name} {number} does not fit {kind}")
    return number


class AtomicOpTraits:
    """`aclshmemi_backend_traits<XSCALE>::atomic_op_traits<T, MASKED>`: the WQEs of one type.

    Raises TypeError for what the original refuses to compile: a type that atomics do not have, and plain
    (not masked) operations on 4 bytes (1.5).
    """

    def __init__(self, dtype: DTypeLike, masked: bool) -> None:
        self.dtype = atomic_type(dtype)
        self.masked = masked
        wide = self.dtype.itemsize == 8
        if not wide and not masked:
            raise TypeError(f"atomic on {self.dtype}: 4-byte atomics exist in masked form only")
        self.fetch_and_add = Opcode.MFA32 if not wide else Opcode.MFA64 if masked else Opcode.FA64
        self.compare_and_swap = Opcode.MCAS32 if not wide else Opcode.MCAS64 if masked else Opcode.CAS64

    async def fill_wqe(self, pe: Pe, wr: SendWr, peer: int, qp_idx: int, head: int) -> int:
        """Build the atomic of index ``head`` in its slot; gives the number of bytes to flush."""
        return await aclshmemi_roce_fill_wqe(pe, wr, peer, qp_idx, head)

    async def post_send(self, pe: Pe, wr: SendWr, peer: int, qp_idx: int, words: Words) -> None:
        """Post the atomic; its result goes to the cell of its peer."""
        await post(pe, pe.qp(peer, qp_idx), wr, words)


async def aclshmemi_roce_atomic_fetch_and_add(
    pe: Pe,
    dst: int,
    peer: int,
    qp_idx: int,
    add: int,
    boundary: int,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike,
    masked: bool,
) -> None:
    """Fetch-and-add at ``dst``, an address of PE ``peer``; each bit of ``boundary`` ends a field (1.5)."""
    traits = AtomicOpTraits(dtype, masked)
    wr = SendWr(0, dst, 0, traits.fetch_and_add, operands=Operands(add, boundary))
    await traits.post_send(pe, wr, peer, qp_idx, words_of(pe, ub64, ub32))


async def aclshmemi_roce_atomic_compare_and_swap(
    pe: Pe,
    dst: int,
    peer: int,
    qp_idx: int,
    swap: int,
    comp: int,
    swap_mask: int,
    comp_mask: int,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike,
    masked: bool,
) -> None:
    """Compare-and-swap at ``dst``, an address of PE ``peer``; a plain one has no masks (1.5)."""
    traits = AtomicOpTraits(dtype, masked)
    wr = SendWr(0, dst, 0, traits.compare_and_swap, operands=Operands(swap, comp, swap_mask, comp_mask))
    await traits.post_send(pe, wr, peer, qp_idx, words_of(pe, ub64, ub32))


async def aclshmemi_roce_amo_add(
    pe: Pe,
    dst: int,
    unused: int,
    peer: int,
    qp_idx: int,
    add: int,
    boundary: int,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike,
    masked: bool,
) -> int:
    """`aclshmemi_roce_atomic_fetch_and_add`; gives 0, not the fetched value."""
    await aclshmemi_roce_atomic_fetch_and_add(
        pe, dst, peer, qp_idx, add, boundary, ub64, ub32, sync_id, dtype=dtype, masked=masked
    )
    return 0


async def aclshmemi_roce_amo_cas(
    pe: Pe,
    dst: int,
    unused: int,
    peer: int,
    qp_idx: int,
    swap: int,
    comp: int,
    swap_mask: int,
    comp_mask: int,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
    *,
    dtype: DTypeLike,
    masked: bool,
) -> int:
    """`aclshmemi_roce_atomic_compare_and_swap`; gives 0, not the fetched value."""
    await aclshmemi_roce_atomic_compare_and_swap(
        pe,
        dst,
        peer,
        qp_idx,
        swap,
        comp,
        swap_mask,
        comp_mask,
        ub64,
        ub32,
        sync_id,
        dtype=dtype,
        masked=masked,
    )
    return 0


def aclshmemi_roce_get_atomic_fetch_addr(pe: Pe, peer: int, qp_idx: int) -> int:
    """Address of the result cell: one per peer, whatever the QP (5.4)."""
    return pe.qp(peer, qp_idx).amo_addr


def aclshmemi_roce_get_atomic_fetch_data(pe: Pe, peer: int, qp_idx: int, *, dtype: DTypeLike) -> int:
    """What stands in the result cell, as a ``dtype``: 8 bytes as they are, 4 bytes swapped (5.4).

    The old value of the atomic to that peer that completed last. No validation: after an errored atomic the
    cell is stale. The race sanitizer counts it as a read.
    """
    kind = atomic_type(dtype)
    raw = pe.memory(aclshmemi_roce_get_atomic_fetch_addr(pe, peer, qp_idx), kind.itemsize).tobytes()
    signed = kind.kind == "i"
    return int.from_bytes(raw, "little" if kind.itemsize == 8 else "big", signed=signed)
