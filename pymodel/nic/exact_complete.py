"""Exact engine, completion: every field of every CQE, its place and its time (nic.md 6)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymodel.formats.cqe import CqeError
from pymodel.nic.exact_core import SETTLE, SLVERR, Core, Part
from pymodel.nic.exact_cqe import Cqes, Written
from pymodel.nic.exact_events import Events
from pymodel.nic.exact_received import Received
from pymodel.nic.exact_regions import Regions
from pymodel.nic.exact_retry import RNR, SEQ, Retry
from pymodel.nic.judge_records import Check
from pymodel.nic.judge_state import ERR, RESET, RTS, WRITE
from pymodel.nic.params import AsyncKind, Cnt

#: codes of WQEs that were sent too often
_SPENT = {int(CqeError.RTO_REQ): SEQ, int(CqeError.NAK_RNR): RNR}


class Complete(Part):
    """CQEs."""

    def __init__(self, core: Core, events: Events, regions: Regions, retry: Retry) -> None:
        super().__init__(core)
        self.events, self.regions, self.retry = events, regions, retry
        self.cqes = Cqes(core, events)
        self.received = Received(core, self.cqes, regions)

    def cqe(self, r: Any) -> None:
        """A CQE is written."""
        s, w = self.s, self.cqes.parse(r)
        if w is None:
            return
        pe, c = w.pe, w.c
        senders = np.flatnonzero((s.q_pe == pe) & (s.q_cq == c)).tolist()
        owners = [g for g in senders if int(s.q_qpn[g]) & 0x7FFF == w.qpn15]
        takers = [g for g in self.core.receivers(c) if int(s.q_qpn[g]) & 0x7FFF == w.qpn15]
        receive = bool(takers) and (w.responder or not owners)
        # a CQE that was formed before the write response that ends its CQ is still written
        if not (owners or takers) or (s.c_dead[c] and w.formed > self.cqes.refused.get(c, -1)):
            self.events.written(pe, False)
            due = "none, the CQ is in overrun" if s.c_dead[c] else f"a QP of CQ {int(s.c_cqn[c])}"
            self.find(Check.CQE_UNEXPECTED, pe, "qp_id", due, f"{w.qpn15}")
            return
        g = takers[0] if receive else owners[0]
        # a responder's CQE with SE fires as one with an error does
        self.events.written(pe, bool(w.code) or (receive and bool(w.words[0] >> 24 & 1)))
        if w.code == CqeError.FLUSH and s.q_state[g] == RTS:
            self._refused_request(g)
        if receive:
            self.received.cqe(w, g)
        else:
            self._sent(w, g)
        self.core.overdue.discard(c)
        self.core.watch_room(c, self.core.time)

    def _sent(self, w: Written, g: int) -> None:
        """The CQE of a send WQE."""
        s, pe, c, code, prod = self.s, w.pe, w.c, w.code, int(self.s.c_prod[w.c])
        v1 = bool(s.q_version[g] == 1)
        wqe_id = w.wqe_id(v1)
        idx, allowed = self._due(g, wqe_id, code)
        if code == CqeError.LOCAL_MR_REQ and code not in allowed and idx < s.q_pi[g]:
            self.regions.lost(pe, g, idx)
            idx, allowed = self._due(g, wqe_id, code)
        if code in _SPENT and code not in allowed and idx < s.q_pi[g] and s.q_state[g] == RTS:
            if self.retry.exhausted(g, idx, _SPENT[code]):
                self.core.fail(g, idx, code)
                idx, allowed = self._due(g, wqe_id, code)
        elif code == 0 and not allowed and idx < s.q_pi[g]:
            self.retry.revive(g, int(s.q_tx[g]))
            idx, allowed = self._due(g, wqe_id, code)
        named = w.named(idx, v1)
        # a reset waits for what completes while its command is taken
        gone = s.q_state[g] == RESET and w.formed > int(s.q_err_time[g]) + SETTLE
        if gone or idx >= s.q_pi[g] or (named < idx and w.start != self.cqes.slot_of(c, prod)):
            due = f"WQE {idx}" if not gone and idx < s.q_pi[g] else "no WQE is outstanding"
            self.find(Check.CQE_UNEXPECTED, pe, "wqe_id", due, f"WQE {named}, code {code:#x}", g, named)
            return
        in_order = named == idx and not wqe_id & 7
        row = s.row(g, idx)
        if not in_order:
            want = idx << 3 & (0xFFFF if v1 else 0xFFFFF)
            self.find(Check.CQE_ORDER, pe, "wqe_id", f"{want:#x} (WQE {idx})", f"{wqe_id:#x}", g, idx)
            if abs(named - idx) < int(s.c_depth[c]) and named < s.q_pi[g]:
                # the other fields are those of the WQE that it names
                row = s.row(g, named)
                skipped = int(s.w_ceno[row] - s.w_ceno[s.row(g, idx)])
                if skipped > 0 and w.start == self.cqes.slot_of(c, prod + skipped):
                    # the CQEs between are missing
                    prod += skipped
                    idx = named
        if in_order and code not in allowed:
            if code == 0 and not s.w_err[row] and s.q_state[g] == RTS:
                self._early(pe, g, idx, row)
            else:
                names = " or ".join(f"{x:#04x}" for x in sorted(allowed)) or "no CQE yet"
                self.find(Check.CQE_STATUS, pe, "error_code", names, f"{code:#04x}", g, idx)
                code = min(allowed, default=0)
        self.cqes.place(w, g, idx, prod)
        blind = code in (CqeError.FLUSH, CqeError.SND_WQE_DMA)
        own = {
            "msg_opcode": 0 if blind else int(s.w_op[row]), "with_imm": 0 if blind else int(s.w_imm[row]),
            "msg_len": 0 if code else int(s.w_len[row]), "type": 0, "se": 0, "imm_data": 0,
        }  # fmt: skip
        self.cqes.content(w, g, idx, prod, int(s.w_time[row]), own.items())
        self.cqes.stand(w, prod)
        before = int(s.q_ret[g])
        s.q_ret[g] = idx + 1
        s.q_ce_done[g] = s.w_ceno[s.row(g, idx)]
        if code:
            s.w_done[s.row(g, idx)] = self.core.time
        elif g in self.retry.of:
            s.w_done[s.q_row[g] + (np.arange(before, idx + 1) & s.q_mask[g])] = self.core.time
        if code == CqeError.FLUSH:
            self.count(pe, Cnt.FLUSH)
            s.q_flush[g] = True
        elif code and s.q_state[g] == RTS:
            s.q_state[g] = ERR
            s.q_err_time[g] = self.core.time
            s.q_odd[g] = True
            self.core.stop_results(g)
            self.core.stop_inbound(g)

    def _early(self, pe: int, g: int, idx: int, row: int) -> None:
        """A good CQE before its WQE is complete."""
        s = self.s
        last = self.core.sq_psn(g, int(s.w_first[row] + s.w_np[row]) - 1)
        if s.w_first[row] + s.w_np[row] <= s.q_ack[g]:
            missing = sum(e.length for e in s.results[pe] if e.gq == g and e.wqe == idx)
            self.find(Check.CQE_DATA, pe, "completion", "after the write responses of its result bytes",
                      f"{missing} bytes are on their way", g, idx, last)  # fmt: skip
            return
        what = "ACK" if s.w_kind[row] == WRITE else "response"
        acked = self.core.sq_psn(g, int(s.q_ack[g]))
        self.find(Check.CQE_EARLY, pe, "completion", f"after the {what} of PSN {last:#08x}",
                  f"acknowledged below {acked:#08x}", g, idx, last)  # fmt: skip

    def _refused_request(self, g: int) -> None:
        """A flush tells that a contested request found the responder's table full."""
        for request in self.s.r_reads.get(g, ()):
            if request.contested:
                self.core.roll_back(request)
                return

    def _due(self, g: int, wqe_id: int, code: int) -> tuple[int, set[int]]:
        """The WQE whose CQE is due and the codes that it may carry; empty: it is not complete yet."""
        s = self.s
        idx, pi = int(s.q_ret[g]), int(s.q_pi[g])
        ids = 0x1FFF if s.q_version[g] == 1 else 0x1FFFF
        while idx < pi:
            row = s.row(g, idx)
            err, acked = int(s.w_err[row]), s.complete(row, int(s.q_ack[g]))
            allowed: set[int] = set()
            if not s.q_flush[g] and (s.q_state[g] != ERR or s.q_err_race[g]):
                allowed = {err} if err else {0} if acked else set()
            if s.q_state[g] != RTS and (s.q_err_race[g] or not allowed):
                allowed = allowed | {int(CqeError.FLUSH)}
            silent = 0 in allowed and not s.w_ce[row]
            if not silent or (code and idx & ids == wqe_id >> 3):
                return idx, allowed
            idx += 1
        return idx, set()

    def response(self, pe: int, response: int) -> None:
        """The write response of the oldest CQE."""
        s, bad = self.s, bool(response)
        if not s.cqe_bursts[pe]:
            self.find(Check.WRITE_ORDER, pe, "write response of id 4", "a write before it", "none")
            return
        c = s.cqe_bursts[pe].popleft()
        at, old, new = s.cqe_slots[pe].popleft()
        if response == SLVERR and at >= 0 and s.memory.view[at : at + len(new)] == new:
            s.memory.view[at : at + len(new)] = old
        if c < 0:
            return
        self.events.answered(pe, c, bad)
        if bad:
            self.count(pe, Cnt.BUS_CQE)
            if not s.c_dead[c]:
                # one event for an overrun, however many of its CQEs are refused
                s.asyncs[pe].append((AsyncKind.CQE_BUS_ERR, int(s.c_cqn[c])))
                self.core.cq_overrun(c)
                self.cqes.refused[c] = self.core.time

    # ------------------------------------------------------------------ room
    def wait_over(self, c: int, pe: int, moved: bool) -> None:
        """Room comes, or the test ends: whether the CQ went into overrun before."""
        s = self.s
        since, limit = int(s.c_since[c]), s.cq_wait[pe]
        if since < 0 or s.c_dead[c]:
            return
        waited = max(self.core.time, s.cycle) - since
        if waited > limit + SETTLE:
            self.count(pe, Cnt.CQ_OVERRUN)
            s.asyncs[pe].append((AsyncKind.CQ_OVERRUN, int(s.c_cqn[c])))
            self.core.cq_overrun(c)
        elif waited > limit and not moved:
            self.find(Check.DB_AMBIGUOUS, pe, f"room in CQ {int(s.c_cqn[c])}",
                       f"well before or after {limit} cycles", f"after {waited} cycles")  # fmt: skip
        elif moved:
            if waited > limit:
                self.core.overdue.add(c)
            s.c_since[c] = -1

    def overran(self, pe: int, cqn: int) -> None:
        """An event says that a CQ is in overrun: it is, where its time is over or where that is open."""
        s, core = self.s, self.core
        for c in np.flatnonzero((s.c_pe == pe) & (s.c_cqn == cqn) & ~s.c_dead).tolist():
            since = int(s.c_since[c])
            if c in core.overdue or (since >= 0 and core.time - since > s.cq_wait[pe]):
                core.overdue.discard(c)
                self.count(pe, Cnt.CQ_OVERRUN)
                s.asyncs[pe].append((AsyncKind.CQ_OVERRUN, cqn))
                core.cq_overrun(c)

    def overruns(self) -> None:
        """CQs whose completions have waited too long by now."""
        for c in np.flatnonzero(self.s.c_since >= 0).tolist():
            self.wait_over(c, int(self.s.c_pe[c]), False)
        for c in sorted(self.core.overdue):
            self.find(Check.DB_AMBIGUOUS, int(self.s.c_pe[c]), f"room in CQ {int(self.s.c_cqn[c])}",
                       "an event or a CQE that tells whether it came in time", "neither")  # fmt: skip
        self.core.overdue.clear()
