"""Exact engine, CQEs of receive WQEs: in the order of the RQ, behind their messages' data (nic.md 5, 6)."""

from __future__ import annotations

from pymodel.formats.cqe import CqeError
from pymodel.nic.exact_core import SETTLE, Core, Part
from pymodel.nic.exact_cqe import Cqes, Written
from pymodel.nic.exact_regions import Regions
from pymodel.nic.judge_entries import InboundWrite, Message, ReceiveQueue
from pymodel.nic.judge_records import Check
from pymodel.nic.judge_state import RESET, RTS
from pymodel.nic.params import Cnt


class Received(Part):
    """CQEs of responders."""

    def __init__(self, core: Core, cqes: Cqes, regions: Regions) -> None:
        super().__init__(core)
        self.cqes, self.regions = cqes, regions

    def cqe(self, w: Written, g: int) -> None:
        """The CQE of a receive WQE."""
        s, pe, code, queue = self.s, w.pe, w.code, self.s.rq[g]
        v1, idx, prod = bool(s.q_version[g] == 1), queue.done, int(s.c_prod[w.c])
        message, allowed = self._due(g, queue)
        while code not in allowed and self.core.accept(g):
            message, allowed = self._due(g, queue)
        if code == CqeError.LOCAL_MR_RSP and code not in allowed and message is not None:
            self.regions.lost_buffer(pe, message)
            message, allowed = self._due(g, queue)
        wqe_id, named = w.wqe_id(v1), w.named(idx, v1)
        gone = s.q_state[g] == RESET and w.formed > int(s.q_err_time[g]) + SETTLE
        if gone or idx >= queue.pi:
            self.find(Check.CQE_UNEXPECTED, pe, "wqe_id", "no receive WQE is outstanding",
                      f"receive WQE {named}, code {code:#x}", g, named)  # fmt: skip
            return
        if named != idx or wqe_id & 7:
            want = idx << 3 & (0xFFFF if v1 else 0xFFFFF)
            self.find(Check.CQE_ORDER, pe, "wqe_id", f"{want:#x} (receive WQE {idx})", f"{wqe_id:#x}", g, idx)
        early = code == 0 and not allowed
        if code not in allowed:
            if early:
                self.find(Check.CQE_EARLY, pe, "completion of a receive WQE", "after its whole message",
                          "a message that has begun" if message else "no message", g, idx)  # fmt: skip
            else:
                names = " or ".join(f"{x:#04x}" for x in sorted(allowed)) or "no CQE yet"
                self.find(Check.CQE_STATUS, pe, "error_code", names, f"{code:#04x}", g, idx)
            code = min(allowed, default=0)
        good = message if message is not None and not code else None
        wait = self._missing(g, good.last) if good else None
        if wait is not None:
            state = f"{wait.done} of {wait.length} bytes, {wait.unanswered} bursts without response"
            due = "after the write responses of its data"
            self.find(Check.CQE_DATA, pe, "completion of a receive WQE", due,
                      f"PSN {self.core.rq_psn(g, wait.cum):#08x}: {state}", g, idx)  # fmt: skip
        self.cqes.place(w, g, idx, prod)
        own = {"msg_opcode": 0, "with_imm": 0, "msg_len": 0, "type": 1, "se": 0, "imm_data": 0}
        if good:
            own |= {
                "msg_opcode": good.op, "with_imm": good.with_imm, "msg_len": good.length, "se": good.se,
                "imm_data": good.imm,
            }  # fmt: skip
        since = max(queue.slots[idx].time, good.time if good else 0)
        self.cqes.content(w, g, idx, prod, since, own.items())
        self.cqes.stand(w, prod)
        queue.done += 1
        queue.times.append((idx, self.core.time))
        if not early:
            queue.take = max(queue.take, queue.done)
            del queue.slots[idx]
            if message is not None:
                queue.messages.popleft()
        if code == CqeError.FLUSH:
            self.count(pe, Cnt.FLUSH)
            queue.flushed = True

    def _missing(self, g: int, number: int) -> InboundWrite | None:
        """Payload up to a packet that is not in memory; that of a packet which may have been dropped as well,
        since the CQE says that it was not."""
        inbound = self.s.inbound[int(self.s.q_pe[g])]
        return next((e for e in inbound if e.gq == g and e.cum <= number), None)

    def _due(self, g: int, queue: ReceiveQueue) -> tuple[Message | None, set[int]]:
        """(message of the next receive WQE without CQE, codes that its CQE may carry); empty: not due yet."""
        while queue.messages and queue.messages[0].whole and queue.messages[0].index < queue.done:
            # its CQE came too early
            del queue.slots[queue.messages.popleft().index]
        message, flush = queue.messages[0] if queue.messages else None, {int(CqeError.FLUSH)}
        if queue.flushed:
            return message, flush
        allowed: set[int] = set()
        if message is not None and message.code:
            allowed = {message.code}
        elif message is not None and message.whole and not message.failed:
            allowed = {0}
        if self.s.q_state[g] != RTS and (not allowed or (message is not None and message.maybe)):
            allowed |= flush
        return message, allowed
