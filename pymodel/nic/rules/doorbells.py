"""Doorbells: nic.md section 3."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, U8, Bools, IntLike
from pymodel.formats.recv import RQ_INDEX_BITS
from pymodel.nic.params import Cnt
from pymodel.nic.rules.common import CID_MOD, as_i64


class DbVerdict(IntEnum):
    """What an SQ doorbell does; judged in the order PARTIAL, RESET, PAGE, PID, then by distance."""

    NO_WORK = 0  # same index: accepted, no work
    ACCEPTED = 1  # the producer moves
    OVERRUN = 2  # the index does not move, the QP goes to ERR, asynchronous event
    STALE = 3  # beyond half of the width: ignored
    PID = 4  # low three bits of next_pid set: ignored
    PAGE = 5  # page of another QP, or no QP: ignored
    PARTIAL = 6  # partial strobe: ignored
    RESET = 7  # QP in RESET: ignored
    RQ = 8  # RQ doorbell to a QP without a receive queue: ignored


#: counter of each verdict that is not accepted (nic.md 7)
DB_COUNTER: Final[Mapping[DbVerdict, Cnt]] = {
    DbVerdict.OVERRUN: Cnt.DB_OVERRUN, DbVerdict.STALE: Cnt.DB_STALE, DbVerdict.PID: Cnt.DB_PID,
    DbVerdict.PAGE: Cnt.DB_PAGE, DbVerdict.PARTIAL: Cnt.DB_PARTIAL, DbVerdict.RESET: Cnt.DB_RESET,
    DbVerdict.RQ: Cnt.DB_RQ,
}  # fmt: skip


class CqDbVerdict(IntEnum):
    """What a CQ doorbell does."""

    ACCEPTED = 0
    BACKWARD = 1  # ignored; nothing is armed
    BEYOND = 2  # refused; nothing is armed


def index_mask(version: IntLike) -> I64:
    """Mask of a producer index: 14 bits (V1), 18 bits (V2) (nic.md 3)."""
    return as_i64(np.where(np.asarray(version) == 1, (1 << 14) - 1, (1 << 18) - 1))


def sq_doorbell(
    next_pid: IntLike,
    current: IntLike,
    outstanding: IntLike,
    depth: IntLike,
    version: IntLike,
    stale_ignored: bool = True,
) -> U8:
    """DbVerdict of an SQ doorbell to a QP in RTS or ERR, on the right page, whole (nic.md 3).

    next_pid: as in the doorbell, in 16-byte units. current: producer index (any number of bits). outstanding:
    WQEs that count as such. stale_ignored: K; False treats a distance beyond half as overrun.
    """
    pid, mask = as_i64(next_pid), index_mask(version)
    distance = ((pid >> 3) - as_i64(current)) & mask
    room = as_i64(depth) - as_i64(outstanding)
    half = (mask + 1) >> 1
    beyond = DbVerdict.STALE if stale_ignored else DbVerdict.OVERRUN
    return np.select(
        [pid & 7 != 0, distance == 0, distance <= room, distance <= half],
        [DbVerdict.PID, DbVerdict.NO_WORK, DbVerdict.ACCEPTED, DbVerdict.OVERRUN],
        beyond,
    ).astype(np.uint8)


def rq_doorbell(
    next_pid: IntLike,
    current: IntLike,
    outstanding: IntLike,
    depth: IntLike,
    stale_ignored: bool = True,
) -> U8:
    """DbVerdict of an RQ doorbell to a QP in RTS or ERR, on the right page, whole (nic.md 3, 5).

    A slot is one 16-byte unit, so next_pid is the producer index, of 17 bits in both versions. Arguments as
    in `sq_doorbell`; depth 0: the QP has no receive queue.
    """
    width = 1 << RQ_INDEX_BITS
    distance = (as_i64(next_pid) - as_i64(current)) & (width - 1)
    room = as_i64(depth) - as_i64(outstanding)
    beyond = DbVerdict.STALE if stale_ignored else DbVerdict.OVERRUN
    return np.select(
        [as_i64(depth) == 0, distance == 0, distance <= room, distance <= width >> 1],
        [DbVerdict.RQ, DbVerdict.NO_WORK, DbVerdict.ACCEPTED, DbVerdict.OVERRUN],
        beyond,
    ).astype(np.uint8)


def doorbell_gate(
    page_qpn: IntLike, qp_id: IntLike, in_reset: IntLike, strobe: IntLike = 0xFF, known: IntLike = True
) -> U8:
    """What stands before `sq_doorbell`: DbVerdict PARTIAL, PAGE or RESET, else NO_WORK (go on).

    page_qpn: QP number of the page. known: that number has a context. in_reset: its QP is in RESET (then
    there is no version to decode qp_id by, so RESET is judged first). qp_id: as decoded. strobe: 8-bit byte
    strobe.
    """
    return np.select(
        [np.asarray(strobe) != 0xFF, ~np.asarray(known, np.bool_), np.asarray(in_reset, np.bool_),
         as_i64(qp_id) != as_i64(page_qpn) & 0xFFFF],
        [DbVerdict.PARTIAL, DbVerdict.PAGE, DbVerdict.RESET, DbVerdict.PAGE],
        DbVerdict.NO_WORK,
    ).astype(np.uint8)  # fmt: skip


def cq_doorbell(next_cid: IntLike, ci: IntLike, producer: IntLike) -> U8:
    """CqDbVerdict (nic.md 3). ci, producer: consumer and producer index, of 23 bits or free-running."""
    distance = (as_i64(next_cid) - as_i64(ci)) & (CID_MOD - 1)
    filled = (as_i64(producer) - as_i64(ci)) & (CID_MOD - 1)
    return np.select(
        [distance <= filled, distance <= filled + (CID_MOD >> 1)],
        [CqDbVerdict.ACCEPTED, CqDbVerdict.BEYOND],
        CqDbVerdict.BACKWARD,
    ).astype(np.uint8)


def cq_arms(cq_sta: IntLike) -> Bools:
    """True where an accepted CQ doorbell also arms (nic.md 3: cq_sta 2 and 3)."""
    return np.asarray(np.asarray(cq_sta) >= 2)
