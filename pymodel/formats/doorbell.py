"""Doorbell registers: one 64-bit little-endian store each (device.md section 3.1).

Next indices count 16-byte units for SQ and RQ, CQEs for the CQ. The RQ layout is the same in both versions.
"""

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from pymodel.formats.arrays import U64, IntLike, as_u64, check_version, get_bits

#: width of next_pid by version, and of qp_id, cq_id, next_cid, cq_sta (device.md 3.1)
SQ_PID_BITS: Final = {1: 17, 2: 21}
RQ_PID_BITS: Final = 17
QP_ID_BITS: Final = 16
CID_BITS: Final = 23
CQ_ID_BITS: Final = 16
#: width of the SQ producer index by version: next_pid without its three low bits (nic.md 3)
SQ_INDEX_BITS: Final = {1: 14, 2: 18}


class CqSta(IntEnum):
    """cq_sta (device.md 3.1): 0 and 1 only update the index, 2 and 3 also arm."""

    FIRED = 0
    KEEP = 1
    ARM_NEXT = 2
    ARM_SOLICITED = 3


class QueueDoorbell(NamedTuple):
    """SQ or RQ doorbell, decoded; arrays of the input's shape. rest: bits above qp_id, 0 from software."""

    next_pid: U64
    qp_id: U64
    rest: U64


class CqDoorbell(NamedTuple):
    """CQ doorbell, decoded; arrays of the input's shape. rest: the bits above cq_sta, 0 from software."""

    next_cid: U64
    cq_id: U64
    cq_sta: U64
    rest: U64


def sq_encode(head: IntLike, qpn: IntLike, version: int) -> U64:
    """SQ doorbell for producer index `head` (free-running): next_pid = head << 3, truncated."""
    check_version(version)
    return _queue_encode(as_u64(head) << np.uint64(3), qpn, SQ_PID_BITS[version])


def sq_decode(data: IntLike, version: int) -> QueueDoorbell:
    """Take an SQ doorbell apart. next_pid is in 16-byte units: the producer index is next_pid >> 3."""
    check_version(version)
    return _queue_decode(data, SQ_PID_BITS[version])


def rq_encode(head: IntLike, qpn: IntLike) -> U64:
    """RQ doorbell for producer index `head`: a slot is one 16-byte unit, so next_pid = head (nic.md 5)."""
    return _queue_encode(as_u64(head), qpn, RQ_PID_BITS)


def rq_decode(data: IntLike) -> QueueDoorbell:
    """Take an RQ doorbell apart."""
    return _queue_decode(data, RQ_PID_BITS)


def cq_encode(tail: IntLike, cqn: IntLike, sta: IntLike = 0) -> U64:
    """CQ doorbell for the free-running consumer index `tail` (next CQE to look at), truncated to 23 bits."""
    out: U64 = (
        _low(as_u64(tail), CID_BITS)
        | _low(as_u64(cqn), CQ_ID_BITS) << np.uint64(CID_BITS)
        | _low(as_u64(sta), 2) << np.uint64(CID_BITS + CQ_ID_BITS)
    )
    return out


def cq_decode(data: IntLike) -> CqDoorbell:
    """Take a CQ doorbell apart."""
    word = as_u64(data)
    return CqDoorbell(
        get_bits(word, 0, 23), get_bits(word, 23, 16), get_bits(word, 39, 2), get_bits(word, 41, 23)
    )


def _low(value: U64, bits: int) -> U64:
    out: U64 = value & np.uint64((1 << bits) - 1)
    return out


def _queue_encode(pid: U64, qpn: IntLike, pid_bits: int) -> U64:
    out: U64 = _low(pid, pid_bits) | _low(as_u64(qpn), QP_ID_BITS) << np.uint64(pid_bits)
    return out


def _queue_decode(data: IntLike, pid_bits: int) -> QueueDoorbell:
    word = as_u64(data)
    top = pid_bits + QP_ID_BITS
    return QueueDoorbell(
        get_bits(word, 0, pid_bits), get_bits(word, pid_bits, QP_ID_BITS), get_bits(word, top, 64 - top)
    )
