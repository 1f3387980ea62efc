"""Completions of a golden NIC: retirement, CQ room, CQEs, overrun (nic.md 6)."""

from __future__ import annotations

import numpy as np

from pymodel.formats import cqe as cqe_format
from pymodel.formats import doorbell, wqe
from pymodel.formats.arrays import Rec
from pymodel.formats.cqe import CqeError
from pymodel.nic import rules
from pymodel.nic.context import QpState
from pymodel.nic.golden.core import U32, Core, Cq, Qp, Work
from pymodel.nic.params import AsyncKind, Cnt
from pymodel.platform import UnmappedError


class Completer(Core):
    """Retires the WQEs of each QP in posting order."""

    def next_timer(self) -> int | None:
        """Cycle at which a completion gives up waiting for CQ room, None if none does (NIC page 6)."""
        if not self.cq_wait:
            return None
        since = [t for qp in self._qps.values() for t in (qp.waits_since, qp.rq_waits_since) if t is not None]
        return min(since) + self.cq_wait if since else None

    def _can_complete(self, qp: Qp) -> bool:
        if not qp.outstanding:
            return False
        oldest = qp.inflight[0] if qp.inflight else None
        if qp.state is QpState.RTS:
            if oldest is None or not (oldest.done or oldest.error):
                return False
            if oldest.silent:
                return True
        cq = self._cqs[qp.context.send_cq]
        if self._takes(cq):
            qp.waits_since = None
            return True
        if qp.waits_since is None:
            qp.waits_since = self.now()
        return bool(self.cq_wait) and self.now() >= qp.waits_since + self.cq_wait

    def _complete(self, qp: Qp) -> None:
        work = qp.inflight.popleft() if qp.inflight else None
        index = qp.retired
        cq = self._cqs[qp.context.send_cq]
        error = work.error if work is not None else 0
        if qp.state is QpState.ERR and (work is None or not work.done):
            error = CqeError.FLUSH
            self.count(Cnt.FLUSH)
        if error or work is None or not work.silent:
            if not self._takes(cq):
                self._overrun(cq)
            if cq.overrun:
                self.count(Cnt.CQE_DISCARD)
            else:
                self._write_cqe(qp, cq, work, index, error)
        qp.retired = (index + 1) & qp.mask
        qp.waits_since = None
        self.count(Cnt.WQE)
        if qp.state is QpState.RTS and error:
            # an answer may have come for what stands behind it: that is flushed all the same
            for later in qp.inflight:
                later.done = False
            self._to_error(qp)
        self._wake(qp)

    @staticmethod
    def _takes(cq: Cq) -> bool:
        """A completion need not wait: there is room, or the CQ looks for none, or takes none any more."""
        context = cq.context
        return (
            cq.overrun
            or context.ignore_overrun
            or bool(rules.cq_has_room(cq.producer, cq.consumer, context.depth))
        )

    def _write_cqe(self, qp: Qp, cq: Cq, work: Work | None, index: int, error: int) -> None:
        context, version = cq.context, qp.context.version
        f = np.zeros(1, wqe.WQE_FIELDS) if work is None else work.wqe
        fields = rules.requester_cqe(
            f, index, qp.qpn, error, cq.producer, context.depth, version, context.ignore_overrun
        )
        self._put_cqe(qp, cq, fields, bool(error))

    def _put_cqe(self, qp: Qp, cq: Cq, fields: Rec, solicited: bool) -> None:
        """Write a CQE of either side; solicited: it fires an arm for solicited ones."""
        context, version = cq.context, qp.context.version
        fields["ts"] = self.now() & 0xFFFF_FFFF_FFFF
        payload = cqe_format.pack(fields, version)
        slot = 0 if context.ignore_overrun else int(rules.cqe_slot(cq.producer, context.depth))
        data = cqe_format.to_slots(payload, context.stride).tobytes()
        addr = context.base + slot * context.stride
        cq.producer = (cq.producer + 1) & U32
        try:
            self.memory.nic_write(addr, data)
        except UnmappedError:
            self.count(Cnt.BUS_CQE)
            self._async(AsyncKind.CQE_BUS_ERR, cq.cqn)
            self._overrun(cq, announce=False)
            return
        self.count(Cnt.CQE)
        if cq.armed == doorbell.CqSta.ARM_NEXT or (cq.armed and solicited):
            cq.armed = 0
            self.cq_events |= 1 << cq.cqn
        self.on_write(addr, len(data))

    def _overrun(self, cq: Cq, announce: bool = True) -> None:
        cq.overrun = True
        if announce:
            self.count(Cnt.CQ_OVERRUN)
            self._async(AsyncKind.CQ_OVERRUN, cq.cqn)
        for qp in self._qps.values():
            if qp.state is QpState.RTS and cq.cqn in (qp.context.send_cq, qp.context.recv_cq):
                self._to_error(qp)
