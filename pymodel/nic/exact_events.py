"""Exact engine, events: arming of CQs, their pending bits, the event output (nic.md 3, 6)."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from pymodel.nic.exact_core import Core, Part
from pymodel.nic.judge_records import Check
from pymodel.nic.params import Csr

#: cycles between a record and its effect inside the NIC, or back: what lies closer may come in either order
_NEAR: Final = 64
#: an event or an arm: none, maybe, surely
_NONE, _MAYBE, _SURE = 0, 1, 2
_ARM_NEXT = 2


class Events(Part):
    """CQ events of every PE. An arm fires at the write response of a CQE that comes after it."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        #: of the CQEs without write response, by PE, whether an arm for solicited ones fires
        self._solicited: list[deque[bool]] = [deque() for _ in self.s.pes]
        self._mask: list[tuple[int, int, int]] = [(0, 0, 0) for _ in self.s.pes]  # now, before, cycle
        self._level = [0 for _ in self.s.pes]

    def armed(self, c: int, sta: int) -> None:
        """A CQ doorbell with cq_sta 2 or 3 was accepted."""
        s = self.s
        s.c_arm[c], s.c_arm_time[c], s.c_arm_open[c] = sta, self.core.time, False

    def written(self, pe: int, solicited: bool) -> None:
        """A CQE was written; solicited: an error, or SE at a responder (nic.md 6)."""
        self._solicited[pe].append(solicited)

    def answered(self, pe: int, c: int, bad: bool) -> None:
        """A CQE's write response; one that was refused fires nothing."""
        s, arm = self.s, int(self.s.c_arm[c])
        solicited = self._solicited[pe].popleft() if self._solicited[pe] else False
        if not arm or bad or (arm != _ARM_NEXT and not solicited):
            return
        event = int(s.c_event[c])
        if self.core.time - int(s.c_arm_time[c]) <= _NEAR:
            # which came first inside the NIC is open, so whether the arm is still there
            s.c_arm_open[c] = True
            s.c_event[c] = max(event, _MAYBE)
        else:
            # an open arm fired before or fires now; if before, its event may have been cleared since
            s.c_event[c] = max(event, _MAYBE) if s.c_arm_open[c] else _SURE
            s.c_arm[c] = 0
        s.c_event_time[c] = self.core.time

    def passed(self, pe: int, written: int, answered: int) -> None:
        """CQEs without error that the batch engine judged."""
        open_ones = self._solicited[pe]
        left = len(open_ones) + written - answered
        for _ in range(min(answered, len(open_ones))):
            open_ones.popleft()
        open_ones.extend([False] * (left - len(open_ones)))

    def programmed(self, c: int) -> None:
        """A CQ was programmed again: armed state 0."""
        self.s.c_arm[c] = 0

    def write(self, pe: int, addr: int, data: int) -> None:
        """A CSR write."""
        s = self.s
        if addr == Csr.EVENT_MASK:
            self._mask[pe] = data & 7, self._mask[pe][0], self.core.time
        elif addr == Csr.CQ_EVENT:
            for c in self._cqs(pe):
                if data >> int(s.c_cqn[c]) & 1 and s.c_event[c]:
                    near = self.core.time - int(s.c_event_time[c]) <= _NEAR
                    s.c_event[c] = _MAYBE if near else _NONE

    def read(self, pe: int, data: int) -> None:
        """CQ_EVENT was read."""
        s = self.s
        for c in self._cqs(pe):
            bit, event, name = data >> int(s.c_cqn[c]) & 1, int(s.c_event[c]), f"CQ {int(s.c_cqn[c])}"
            if bit and not event:
                due = "no event: no CQE since it was armed has its response"
                self.find(Check.CQ_EVENT, pe, name, due, "pending")
            elif not bit and event == _SURE and self.core.time - int(s.c_event_time[c]) > _NEAR:
                self.find(Check.CQ_EVENT, pe, name, f"pending since {int(s.c_event_time[c])}", "none")
            elif event == _MAYBE and self.core.time - int(s.c_event_time[c]) > _NEAR:
                s.c_event[c] = _SURE if bit else _NONE

    def level(self, r: Any) -> None:
        """The event output changed."""
        s, pe = self.s, int(r["pe"])
        self._level[pe] = int(r["flags"])
        now, before, since = self._mask[pe]
        mask = now | before if self.core.time - since <= _NEAR else now
        rings = bool(mask & 1) and any(s.c_event[c] for c in self._cqs(pe))
        rings |= bool(mask & 6) and bool(s.asyncs[pe] or self._undecided(pe))
        if self._level[pe] and not rings:
            self.find(Check.CQ_EVENT, pe, "event output", "low: nothing is pending and enabled", "high")

    def _undecided(self, pe: int) -> bool:
        """Whether an asynchronous event may be there that only later records tell of."""
        s = self.s
        waits = (s.c_pe == pe) & (s.c_since >= 0) & (self.core.time - s.c_since > s.cq_wait[pe])
        contested = any(e.contested for g, q in s.r_reads.items() if s.q_pe[g] == pe for e in q)
        return bool(self.core.doubt or self.core.overdue) or contested or bool(waits.any())

    def finish(self) -> None:
        """The end of the test: events that the output does not show."""
        s = self.s
        for pe, (mask, _, _) in enumerate(self._mask):
            for c in self._cqs(pe):
                late = s.cycle - int(s.c_event_time[c]) > _NEAR
                if mask & 1 and s.c_event[c] == _SURE and late and not self._level[pe]:
                    self.find(Check.CQ_EVENT, pe, "event output", f"high for CQ {int(s.c_cqn[c])}", "low")

    def _cqs(self, pe: int) -> list[int]:
        return [int(c) for c in self.s.cq_lut[pe] if c >= 0]
