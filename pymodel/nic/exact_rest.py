"""Exact engine, end of test: what is still due, and what it waits for."""

from __future__ import annotations

import numpy as np

from pymodel.nic.exact_core import RNR_NAK, Core, Part, ends
from pymodel.nic.exact_waits import Waits
from pymodel.nic.judge_entries import READ
from pymodel.nic.judge_records import Check, Finding
from pymodel.nic.judge_state import RESET, RTS


class Rest(Part):
    """Everything that is outstanding."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.waits = Waits(core)

    def findings(self) -> list[Finding]:
        """WQEs, writes and responses that are still due, each with what it waits for."""
        s = self.s
        out: list[Finding] = []

        def add(check: Check, g: int, wqe: int, psn: int, field: str, expected: str, got: str) -> None:
            out.append(
                Finding(check, int(s.q_pe[g]), int(s.q_qpn[g]), wqe, psn, s.cycle, field, expected, got)
            )

        for g, idx in self.waits.outstanding():
            row = s.row(g, idx)
            add(Check.OUTSTANDING, g, idx, self.core.sq_psn(g, int(s.w_first[row])),
                f"completion of {self.waits.name(g, idx)}", "a CQE" if s.w_ce[row] else "an ACK",
                self.waits.place(g, idx))  # fmt: skip
        for g, receives in s.rq.items():
            whole = receives.unwritten() if s.q_state[g] == RTS else receives.pi - receives.done
            if s.q_state[g] == RESET or s.c_dead[s.q_rcq[g]]:
                continue
            for idx in range(receives.done, receives.done + whole):
                state = "its message arrived" if s.q_state[g] == RTS else "the QP is in ERR"
                add(Check.OUTSTANDING, g, idx, -1, "completion of a receive WQE", "a CQE", state)
        for g, packets in self.core.early.items():
            for idx, cycle, psn in packets:
                add(Check.TX_EARLY, g, idx, psn, "request packet", f"after the fetch of WQE {idx}",
                    f"in cycle {cycle}, no fetch")  # fmt: skip
        for pe, queue in [*enumerate(s.inbound), *enumerate(s.results)]:
            for entry in [e for e in queue if not e.optional]:
                result, state = entry.wqe >= 0, f"{entry.done} of {entry.length} bytes"
                psn = (self.core.sq_psn if result else self.core.rq_psn)(entry.gq, entry.cum)
                add(Check.RESULT_MISSING if result else Check.WRITE_MISSING, entry.gq, entry.wqe, psn,
                    f"{'result' if result else 'inbound payload'} of PE {pe}", f"written to {entry.va:#x}",
                    f"{state}, {entry.unanswered} bursts without response")  # fmt: skip
        for g in np.flatnonzero((s.r_req > s.r_sent) & (s.q_state == RTS)).tolist():
            add(
                Check.ACK_MISSING, g, -1, self.core.rq_psn(g, int(s.r_req[g])), "AckReq", "a response", "none"
            )
        for g, number in self.core.dup_due.items():
            if s.q_state[g] == RTS:
                add(Check.ACK_MISSING, g, -1, self.core.rq_psn(g, number), "duplicate", "an ACK", "none")
        for g, (number, code) in s.r_nak.items():
            if s.q_state[g] != RESET:
                nak = "RNR" if code == RNR_NAK else f"code {code}"
                add(Check.NAK_MISSING, g, -1, self.core.rq_psn(g, number), "NAK", nak, "none")
        for g, held in s.r_reads.items():
            due = next((e for e in held if not e.optional), None)
            if due is not None and s.q_state[g] != RESET and not (g in s.r_nak and ends(s.r_nak[g][1])):
                what = "READ responses" if due.kind == READ else "ATOMIC ACK"
                add(Check.RESPONSE_MISSING, g, -1, self.core.rq_psn(g, due.number + due.sent), what,
                    f"{due.packets} packets", f"{due.sent} sent, {len(held)} requests are held")  # fmt: skip
        return out

    def lines(self) -> list[str]:
        """The drain report: at most ten lines and how many more there are."""
        found, receive = self.findings(), "completion of a receive WQE"
        return self.waits.lines([f for f in found if f.check is not Check.OUTSTANDING or f.field == receive])
