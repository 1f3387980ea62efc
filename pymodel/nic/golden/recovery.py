"""Loss recovery of a golden NIC's requester: go-back-N, transport timer, RNR wait, limits (wire.md 5)."""

from __future__ import annotations

from typing import Final

from pymodel.formats.cqe import CqeError
from pymodel.nic import rules
from pymodel.nic.context import QpState
from pymodel.nic.golden.core import PSN_MASK, Qp, Work
from pymodel.nic.golden.requester import Requester
from pymodel.nic.params import RNR_UNITS, Cnt

FOR_EVER: Final = 7
"""rnr_retry that sets no limit."""


class Recovery(Requester):
    """Sends again what was lost."""

    # ------------------------------------------------------------------ time
    def next_retry(self) -> int | None:
        """Cycle in which the next transport timer expires or RNR wait ends, None if none runs.

        The owner asks when nothing else can move: what still waits to be delivered is not late.
        """
        times = [t for qp in self._qps.values() if (t := self._due(qp)) is not None]
        return min(times, default=None)

    @property
    def holds(self) -> bool:
        """A QP waits for the time that an RNR NAK named."""
        return any(qp.hold is not None for qp in self._qps.values())

    def expire(self, now: int) -> bool:
        """Do what is due at cycle `now`; False if nothing was."""
        due = [qp for qp in self._qps.values() if (t := self._due(qp)) is not None and t <= now]
        for qp in due:
            if qp.hold is not None:
                qp.hold = None
                qp.since = now
                self._wake(qp)
            else:
                self._lost(qp)
        return bool(due)

    def _due(self, qp: Qp) -> int | None:
        if qp.state is not QpState.RTS:
            return None
        if qp.hold is not None or qp.unacked_psn == qp.sent_psn:
            return qp.hold
        oldest = self._oldest(qp)
        if not qp.context.timer or oldest is None or oldest.error:
            return None
        return qp.since + (1 << qp.context.timer) * self.params.timer_unit

    @staticmethod
    def _oldest(qp: Qp) -> Work | None:
        """The oldest WQE that is neither acknowledged nor answered."""
        return next((work for work in qp.inflight if not work.done), None)

    # ------------------------------------------------------------------ what tells of a loss
    def _lost(self, qp: Qp) -> None:
        """A NAK 0, what counts as one, or the transport timer: one counter, one limit (a2)."""
        if qp.hold is not None or qp.unacked_psn == qp.sent_psn:
            return
        if qp.retries >= qp.context.retry_cnt:
            self._give_up(qp, CqeError.RTO_REQ)
            return
        qp.retries += 1
        self._go_back(qp)

    def _not_ready(self, qp: Qp, syndrome: int) -> None:
        """An RNR NAK: wait for the time that it names, then send again; limit rnr_retry (a3)."""
        if qp.hold is not None or qp.unacked_psn == qp.sent_psn:
            return
        limit = qp.context.rnr_retry
        if limit != FOR_EVER and qp.rnr_tries >= limit:
            self._give_up(qp, CqeError.NAK_RNR)
            return
        qp.rnr_tries += 1
        self._go_back(qp)
        qp.hold = self.now() + RNR_UNITS[syndrome & 31] * self.params.rnr_unit

    def _give_up(self, qp: Qp, error: CqeError) -> None:
        work = self._oldest(qp)
        if work is not None and not work.error:
            self._fail(qp, work, error)

    # ------------------------------------------------------------------ sending again
    def _go_back(self, qp: Qp) -> None:
        """Set the position of the QP back to its oldest unacknowledged PSN."""
        qp.again.clear()
        for work in qp.inflight:
            if work.error:
                break  # it stays where it failed
            if work.done or not work.packets:
                continue
            # the part that is acknowledged is not sent again
            done = (qp.unacked_psn - work.first_psn) & PSN_MASK
            work.sent = 0 if work.needs_response or not 0 < done <= work.psns else done
            work.resumed = work.answered
            qp.again.append(work)
        if not qp.again:
            return
        self.count(Cnt.RETRY)
        qp.since = self.now()
        qp.sending = qp.again.popleft()
        qp.resuming = True
        self._wake(qp)

    def _catch_up(self, qp: Qp) -> None:
        """An answer may have come meanwhile for what was about to be sent again: go forward over it.

        A WQE is checked again before its first packet, as one that is fetched again.
        """
        while (work := qp.sending) is not None:
            done = (qp.unacked_psn - work.first_psn) & PSN_MASK
            if not work.done and not work.needs_response and work.sent < done <= work.psns:
                work.sent = done
            if not work.done and work.sent < len(work.packets):
                break
            qp.sending = qp.again.popleft() if qp.again else None
        # behind the last packet that was ever sent everything is new again
        qp.resuming = work is not None and (bool(qp.again) or work.sent < work.top)
        if work is None or work.sent:
            return
        error = int(
            rules.wqe_check(
                work.wqe, work.index, qp.context.version, mrs=self._mrs,
                max_rd_atomic=qp.context.max_rd_atomic, params=self.params,
            )[0]
        )  # fmt: skip
        if error != CqeError.OK:
            self._fail(qp, work, error)
