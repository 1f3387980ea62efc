"""Atomic operations and the byte order of their results: device.md section 1.5, nic.md section 5.

An opcode here is msg_opcode of a WQE or the BTH opcode of its request packet; the two sets have nothing in
common.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, U8, U64, Bools, IntLike, as_u64
from pymodel.formats.packet import Bth
from pymodel.formats.wqe import ATOMIC_OPS, ATOMIC_SIZE, WqeOp

#: BTH opcode of the request packet of each atomic (wire.md 2)
ATOMIC_REQUEST: Final[Mapping[WqeOp, Bth]] = {
    WqeOp.CAS64: Bth.CMP_SWAP, WqeOp.FA64: Bth.FETCH_ADD, WqeOp.MCAS64: Bth.MCAS64, WqeOp.MFA64: Bth.MFA64,
    WqeOp.MCAS32: Bth.MCAS32, WqeOp.MFA32: Bth.MFA32,
}  # fmt: skip


def by_opcode(values: Mapping[WqeOp, int]) -> I64:
    """{opcode: number} as int64[256], 0 for the others."""
    table = np.zeros(256, np.int64)
    table[list(values)] = list(values.values())
    return table


#: msg_opcode of an atomic: bool[256]
IS_ATOMIC: Final[Bools] = np.isin(np.arange(256), list(ATOMIC_OPS))
#: BTH opcode by msg_opcode of an atomic, 0 for others: int64[256]
BTH_OF: Final = by_opcode(ATOMIC_REQUEST)
#: bytes that an atomic works on, by WQE or BTH opcode, 0 for others: int64[256]
OPERAND_BYTES: Final = by_opcode(ATOMIC_SIZE)
OPERAND_BYTES[list(ATOMIC_REQUEST.values())] = [ATOMIC_SIZE[op] for op in ATOMIC_REQUEST]


def _either(*ops: WqeOp) -> Bools:
    return np.isin(np.arange(256), [*ops, *(ATOMIC_REQUEST[op] for op in ops)])


_SWAPS: Final = _either(WqeOp.CAS64, WqeOp.MCAS64, WqeOp.MCAS32)
_UNMASKED: Final = _either(WqeOp.CAS64, WqeOp.FA64)


def atomic(
    opcode: IntLike,
    old: IntLike,
    swap_add: IntLike,
    compare_or_boundary: IntLike,
    swap_mask: IntLike = 0,
    compare_mask: IntLike = 0,
) -> tuple[U64, Bools]:
    """What an atomic makes of memory: (new value, whether it is written) (device.md 1.5).

    opcode: WQE or BTH opcode of an atomic, else ValueError. old: memory as a little-endian integer; of a
    4-byte operation only the low 32 bits of every argument count. Compare and swap writes where old and
    compare agree in all bits of compare_mask, and then the bits of swap_mask. Fetch and add writes always:
    a set bit of the boundary is the most significant of a field whose carry is dropped, so boundary 0 is one
    add of the whole width and all ones is exclusive or. The unmasked opcodes 26 and 27 compare and swap all
    bits, and add without boundary: what stands in their other operands does not matter.
    """
    op = np.asarray(opcode).astype(np.int64)
    if op.size and (OPERAND_BYTES[op] == 0).any():
        raise ValueError(f"opcode {int(op[OPERAND_BYTES[op] == 0].ravel()[0])} is no atomic")
    width = np.where(OPERAND_BYTES[op] == 4, np.uint64(0xFFFF_FFFF), np.uint64(0xFFFF_FFFF_FFFF_FFFF))
    before, value, third = as_u64(old) & width, as_u64(swap_add) & width, as_u64(compare_or_boundary) & width
    s_mask = np.where(_UNMASKED[op], width, as_u64(swap_mask) & width)
    c_mask = np.where(_UNMASKED[op], width, as_u64(compare_mask) & width)
    equal = (before ^ third) & c_mask == 0
    swapped = np.where(equal, before & ~s_mask | value & s_mask, before)
    # The top bit of each field is added without carry: it takes the carry from below and passes none on.
    top = np.where(_UNMASKED[op], np.uint64(0), third)
    with np.errstate(over="ignore"):
        added = (((before & ~top) + (value & ~top)) ^ (before ^ value) & top) & width
    new: U64 = np.where(_SWAPS[op], swapped, added)
    return new, np.asarray(equal | ~_SWAPS[op])


def result_bytes(opcode: IntLike, old: IntLike) -> U8:
    """The old value as the requester writes it to the local buffer: uint8[..., 8] (device.md 1.5, 5.4).

    8-byte results are little-endian; 4-byte results stand big-endian in the first four bytes, the rest is 0
    and not written.
    """
    op, value = np.broadcast_arrays(np.asarray(opcode).astype(np.int64), as_u64(old))
    narrow = (OPERAND_BYTES[op] == 4)[..., None]
    wide = np.array(value, "<u8")[..., None].view(np.uint8)
    small = np.zeros_like(wide)
    small[..., :4] = wide[..., 3::-1]
    out: U8 = np.where(narrow, small, wide)
    return out
