"""The queues of one (peer, qp_idx) as the device code sees them, and what a driver's trap says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pymodel.device.wqe import U32
from pymodel.formats.cqe import CqeError
from pymodel.host.queue_info import CQ_IGNORE_OVERRUN, CqContext, SqContext

STATUS_TIMEOUT = 0x1_0000
"""poll_cq's status when its tries are used up, outside the 8-bit error code (device page 2.5, 4.2)."""
_NAMES = {int(code): code.name for code in CqeError}


def code_text(code: int) -> str:
    """A status of poll_cq for people: the number, and its name where the NIC gives that code."""
    if code == STATUS_TIMEOUT:
        return f"{code:#x} (no CQE in time)"
    return f"{code:#04x} ({_NAMES[code]})" if code in _NAMES else f"{code:#04x}"


class DeviceTrap(RuntimeError):
    """`trap()` of the G3 driver: the kernel of this PE is over (device page 4.3).

    ``wqe``: 32-bit index of the WQE that the CQE names, or that was waited for at a time-out. ``code``: the
    CQE's error_code, or 0x10000. The CQ tail is not published.
    """

    def __init__(self, pe: int, peer: int, qp_idx: int, wqe: int, code: int) -> None:
        super().__init__(f"PE {pe}: trap: WQE {wqe} to PE {peer}, QP {qp_idx}: {code_text(code)}")
        self.pe, self.peer, self.qp_idx, self.wqe, self.code = pe, peer, qp_idx, wqe, code


class NoQueueError(ZeroDivisionError):
    """A post or quiet to a PE for which the queue table has no entry: the original divides by its depth, 0.

    The own PE never has one, as a NIC has no QP to itself (device page 7.3).
    """

    def __init__(self, pe: int, action: str, peer: int, qp_idx: int) -> None:
        own = "no PE has a QP to itself: use pe.store" if peer == pe else "its entry was never filled"
        super().__init__(f"PE {pe}: {action} to PE {peer}, QP {qp_idx}, whose SQ depth is 0: {own}")


class DeviceAbort(AssertionError):
    """An assertion that only debug builds of the driver have (device page 4.1, 4.4)."""


class QpState:
    """Contexts from the table, cells and rings of one (peer, qp_idx).

    Memory views are live. ``by_id``: the driver completes by wqe_id (G3). For tests and reports only, the API
    itself never looks at them: ``posts``; ``drains``, heads at which a post drained; ``dropped`` posts;
    ``timeouts``; ``errors``, (WQE index, code) of consumed CQEs; ``deferred`` WQEs of a batch not submitted;
    ``seen``, CQ indices (first, end) that the last poll went over; ``provoked``, codes that the program
    means to get. ``awaited``: CQEs of posted WQEs that no poll has consumed, a hint for sleeping.
    """

    __slots__ = (
        "_cq_tail", "_sq_head", "_sq_tail", "amo_addr", "amo_lkey", "awaited", "by_id", "cq_addr", "cq_bytes",
        "cq_db_addr", "cq_depth", "cq_log", "cq_tail_addr", "cqe_size", "cqn", "deferred", "depth", "drains",
        "dropped", "errors", "id_mask", "overrun", "peer", "polls", "posts", "provoked", "qp_idx", "quiets",
        "rkey", "seen", "slot_words", "sq_addr", "sq_db_addr", "sq_head_addr", "sq_tail_addr", "sq_words",
        "timeouts", "version", "wqe_size", "wqn",
    )  # fmt: skip

    def __init__(
        self,
        view: Callable[[int, int], NDArray[np.uint8]],
        peer: int,
        qp_idx: int,
        sq: SqContext,
        cq: CqContext,
        rkey: int,
        version: int,
        by_id: bool,
    ) -> None:
        self.peer, self.qp_idx, self.version, self.rkey = peer, qp_idx, version, rkey
        self.depth, self.wqe_size, self.wqn = sq.depth, sq.wqe_size, sq.wqn
        self.sq_addr, self.sq_db_addr = sq.buf_addr, sq.db_addr
        self.sq_head_addr, self.sq_tail_addr = sq.head_addr, sq.tail_addr
        self.amo_addr, self.amo_lkey = sq.amo_addr, sq.amo_lkey
        self.cqn, self.cq_depth, self.cqe_size = cq.cqn, cq.depth, cq.cqe_size
        self.cq_addr, self.cq_db_addr, self.cq_tail_addr = cq.buf_addr, cq.db_addr, cq.tail_addr
        self.overrun = bool(cq.cq_attr_flags & CQ_IGNORE_OVERRUN)
        self.cq_log = max(cq.depth.bit_length() - 1, 0)
        self.slot_words = sq.wqe_size // 4
        self.id_mask = 0x1FFF if version == 1 else 0x1_FFFF
        self.by_id = by_id
        self.posts = self.polls = self.quiets = self.dropped = self.timeouts = 0
        self.deferred = self.awaited = 0
        self.seen = (0, 0)
        self.drains: list[int] = []
        self.errors: list[tuple[int, int]] = []
        self.provoked: frozenset[int] = frozenset()
        if sq.depth:
            # plain memory views: an element costs a quarter of what numpy takes for it
            self.sq_words = view(sq.buf_addr, sq.depth * sq.wqe_size).data.cast("I")
            self.cq_bytes = view(cq.buf_addr, cq.depth * cq.cqe_size).data
            self._sq_head = view(sq.head_addr, 4).data.cast("I")
            self._sq_tail = view(sq.tail_addr, 4).data.cast("I")
            self._cq_tail = view(cq.tail_addr, 4).data.cast("I")

    @property
    def sq_head(self) -> int:
        """Head cell: 32-bit index of the next WQE."""
        return self._sq_head[0]

    @property
    def sq_tail(self) -> int:
        """SQ tail cell: written by nobody in G1 and G2, by poll_cq in G3."""
        return self._sq_tail[0]

    @property
    def cq_tail(self) -> int:
        """CQ tail cell: 32-bit index of the next CQE to look at."""
        return self._cq_tail[0]

    @property
    def done(self) -> int:
        """First WQE that the driver does not know to be complete.

        G1 and G2 count: one CQE per WQE (2.4). G3 keeps the SQ tail, in overrun mode a CQ tail in WQE units.
        """
        return self.sq_tail if self.by_id and not self.overrun else self.cq_tail

    def cqe(self, index: int) -> tuple[bool, int]:
        """(valid, error_code) of CQE ``index`` by the owner rule (device page 2.3), without consuming it.

        Right for the CQE of a WQE only while fewer than depth CQEs came after it, and where each WQE has one.
        """
        base = (index & (self.cq_depth - 1)) * self.cqe_size
        return self.cq_bytes[base + 31] >> 7 == index >> self.cq_log & 1, self.cq_bytes[base]

    def cqe_index(self, slot: int) -> int:
        """Logical WQE index, of 13 (V1) or 17 bits, that the CQE in ``slot`` names (device page 2.2)."""
        at = slot * self.cqe_size
        ring = self.cq_bytes
        if self.version == 1:
            return (ring[at + 22] | ring[at + 23] << 8) >> 3
        return (ring[at + 25] >> 4 | ring[at + 26] << 4 | ring[at + 27] << 12) >> 3

    def posted_index(self, index: int) -> int:
        """32-bit index of the newest posted WQE whose low bits are ``index``."""
        newest = self.sq_head - 1 & U32
        return newest - (newest - index & self.id_mask) & U32

    def state_of(self, index: int) -> str:
        """What the driver can know of WQE ``index``, for the hang report."""
        if index - self.done & U32 >= 1 << 31:
            return "its CQE was consumed"
        if self.by_id:
            # not every WQE has a CQE of its own
            return "not known to be complete"
        valid, code = self.cqe(index)
        return "no CQE yet" if not valid else "CQE good" if code == 0 else f"CQE with error {code:#04x}"
