"""What a responder makes of a request: wire.md section 5, nic.md section 5."""

from collections.abc import Collection
from enum import IntEnum
from typing import Final

import numpy as np

from pymodel.formats.arrays import U8, Bools, IntLike, as_u64
from pymodel.formats.packet import ATOMIC_BTH, IS_REQUEST, Bth, Syndrome
from pymodel.nic.rules.atomics import OPERAND_BYTES
from pymodel.nic.rules.common import MAX_MESSAGE, as_i64
from pymodel.nic.rules.regions import MrVerdict, Right

#: BTH opcodes of requests that this version executes
BUILT_REQUESTS: Final = frozenset((*range(Bth.SEND_FIRST, Bth.READ_REQUEST + 1), *ATOMIC_BTH))
#: Right of the MR that a request needs, by BTH opcode (Right.NONE where it needs none): uint8[256]
REQUEST_RIGHT: Final[U8] = np.zeros(256, np.uint8)
REQUEST_RIGHT[range(Bth.WRITE_FIRST, Bth.WRITE_ONLY_IMM + 1)] = Right.REM_WRITE
REQUEST_RIGHT[Bth.READ_REQUEST] = Right.REM_READ
REQUEST_RIGHT[list(ATOMIC_BTH)] = Right.REM_ATOMIC
#: takes an entry of the table of READs and atomics, by BTH opcode: bool[256]
TAKES_ENTRY: Final[Bools] = np.isin(REQUEST_RIGHT, (Right.REM_READ, Right.REM_ATOMIC))

_SENDING: Final = (Bth.SEND_FIRST, Bth.SEND_MIDDLE)
_WRITING: Final = (Bth.WRITE_FIRST, Bth.WRITE_MIDDLE)
_SEND_NEXT: Final = (Bth.SEND_MIDDLE, Bth.SEND_LAST, Bth.SEND_LAST_IMM)
_WRITE_NEXT: Final = (Bth.WRITE_MIDDLE, Bth.WRITE_LAST, Bth.WRITE_LAST_IMM)
_STARTS_MESSAGE: Final[Bools] = IS_REQUEST & ~np.isin(np.arange(256), _SEND_NEXT + _WRITE_NEXT)
_WRITES: Final = range(Bth.WRITE_FIRST, Bth.WRITE_ONLY_IMM + 1)
_FULL: Final = _SENDING + _WRITING
_LAST: Final = (Bth.SEND_LAST, Bth.SEND_LAST_IMM, Bth.WRITE_LAST, Bth.WRITE_LAST_IMM)


def sequence_ok(previous: IntLike, opcode: IntLike) -> Bools:
    """True where `opcode` may follow `previous`, the last executed request packet of the QP (-1: none)."""
    before, op = as_i64(previous), as_i64(opcode)
    return np.select(
        [np.isin(before, _SENDING), np.isin(before, _WRITING)],
        [np.isin(op, _SEND_NEXT), np.isin(op, _WRITE_NEXT)],
        _STARTS_MESSAGE[op],
    )


def length_ok(opcode: IntLike, payload: IntLike, mtu: IntLike, remaining: IntLike) -> Bools:
    """Length rules of a request packet: First and Middle = MTU, Last 1..MTU, Only 0..MTU, sum = DMA length.

    remaining: WRITE, bytes of the DMA length not yet received before this packet; READ, its DMA length; else
    not looked at. Last and Only must end exactly there; First and Middle must leave a byte for the Last, in a
    message of at most 2^31, which also bounds a READ.
    """
    op, size, most, left = as_i64(opcode), as_i64(payload), as_i64(mtu), as_i64(remaining)
    full = np.isin(op, _FULL)
    shape = np.where(full, size == most, (size <= most) & (~np.isin(op, _LAST) | (size >= 1)))
    total = np.where(full, (size < left) & (left <= MAX_MESSAGE), size == left)
    read_ok = (op != Bth.READ_REQUEST) | (left <= MAX_MESSAGE)
    return np.asarray(shape & (~np.isin(op, _WRITES) | total) & read_ok)


class RequestFault(IntEnum):
    """Why a request at its expected PSN is not executed; the first that applies."""

    OK = 0
    OPCODE = 1  # not built: NAK 1
    SEQUENCE = 2  # opcode sequence: NAK 1
    LENGTH = 3  # NAK 1
    QP_RIGHT = 4  # NAK 1
    MISALIGNED = 5  # address of an atomic: NAK 1
    TOO_MANY = 6  # table of READs and atomics full: NAK 1, counts RD_TOO_MANY too
    ACCESS = 7  # MR key, right or range: NAK 2


#: Syndrome that answers each RequestFault: uint8[8]
FAULT_SYNDROME: Final[U8] = np.array(
    [Syndrome.ACK, *[Syndrome.NAK_INV_REQ] * 6, Syndrome.NAK_ACCESS], np.uint8
)


def request_fault(
    opcode: IntLike,
    previous: IntLike,
    payload: IntLike,
    mtu: IntLike,
    remaining: IntLike,
    rem_write: IntLike,
    rem_read: IntLike,
    rem_atomic: IntLike,
    mr: IntLike,
    va: IntLike = 0,
    table_full: IntLike = False,
    supported: Collection[int] = BUILT_REQUESTS,
) -> U8:
    """RequestFault of a request at its expected PSN (wire.md 5).

    previous, remaining: as in `sequence_ok` and `length_ok`. rem_*: rights of the QP. mr: MrVerdict for the
    whole DMA length (First, Only, READ), the operand (atomics) or of the key (others). va: of atomics, which
    must be aligned (nic.md 4). table_full: as many READs and atomics as max_dest_rd_atomic are held.
    """
    op = as_i64(opcode)
    size = np.maximum(OPERAND_BYTES[op], 1).astype(np.uint64)
    atomic = np.isin(op, list(ATOMIC_BTH))
    misaligned = atomic & (as_u64(va) & (size - np.uint64(1)) != 0)
    no_right = np.isin(op, _WRITES) & ~np.asarray(rem_write, np.bool_)
    no_right |= (op == Bth.READ_REQUEST) & ~np.asarray(rem_read, np.bool_)
    no_right |= atomic & ~np.asarray(rem_atomic, np.bool_)
    return np.select(
        [~np.isin(op, list(supported)), ~sequence_ok(previous, op), ~length_ok(op, payload, mtu, remaining),
         no_right, misaligned, TAKES_ENTRY[op] & np.asarray(table_full, np.bool_),
         np.asarray(mr) != MrVerdict.OK],
        list(RequestFault)[1:],
        RequestFault.OK,
    ).astype(np.uint8)  # fmt: skip


def request_verdict(
    opcode: IntLike,
    previous: IntLike,
    payload: IntLike,
    mtu: IntLike,
    remaining: IntLike,
    rem_write: IntLike,
    rem_read: IntLike,
    rem_atomic: IntLike,
    mr: IntLike,
    va: IntLike = 0,
    table_full: IntLike = False,
    supported: Collection[int] = BUILT_REQUESTS,
) -> U8:
    """Syndrome that answers such a request, Syndrome.ACK where it is executed; see `request_fault`."""
    fault = request_fault(
        opcode, previous, payload, mtu, remaining, rem_write, rem_read, rem_atomic, mr, va, table_full,
        supported,
    )  # fmt: skip
    out: U8 = FAULT_SYNDROME[fault]
    return out
