"""Exact engine, host side: doorbells, CSRs, context commands, asynchronous events (nic.md 2, 3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymodel.formats import doorbell
from pymodel.formats.wqe import WqeOp
from pymodel.nic import rules
from pymodel.nic.context import CmdObj, CmdOp, CmdStatus, ContextStore, QpContext, QpState
from pymodel.nic.exact_complete import Complete
from pymodel.nic.exact_core import MASK24, Core, Part
from pymodel.nic.exact_events import Events
from pymodel.nic.exact_queue import Queue
from pymodel.nic.exact_regions import Regions
from pymodel.nic.judge_records import Check
from pymodel.nic.judge_state import ERR, READ, RESET, RTS
from pymodel.nic.judge_wqe import announce, settle
from pymodel.nic.params import CMD_REG, CMD_STAGE, CMD_STATUS, STAGE_WORDS, AsyncKind, Cnt, Csr


class Host(Part):
    """Accesses to the BAR."""

    def __init__(
        self, core: Core, complete: Complete, events: Events, regions: Regions, queue: Queue
    ) -> None:
        super().__init__(core)
        self.complete, self.events, self.regions, self.queue = complete, events, regions, queue
        #: contexts by PE, as the last good commands left them
        self._contexts = [
            ContextStore(self.s.params, dict(p.qps), {}, dict(p.cqs), dict(p.mrs)) for p in self.s.pes
        ]

    def write(self, r: Any) -> None:
        """A register or doorbell was written."""
        s, p, pe, addr, data = self.s, self.s.params, int(r["pe"]), int(r["addr"]), int(r["data"])
        if addr < p.db_base:
            self._csr(pe, addr, data, int(r["flags"]))
            return
        qpn, offset = divmod(addr - p.db_base, p.db_page_bytes)
        if offset & ~7 not in (p.db_sq, p.db_rq, p.db_cq):
            return
        index = qpn - p.first_qpn
        known = 0 <= index < p.num_qp
        g = int(s.qp_lut[pe, index]) if known else -1
        if int(r["flags"]) != 0xFF or offset & 7:
            self.count(pe, Cnt.DB_PARTIAL)
        elif not known:
            self.count(pe, Cnt.DB_PAGE)
        elif g < 0 or s.q_state[g] == RESET:
            self.count(pe, Cnt.DB_RESET)
        elif offset == p.db_sq:
            self._sq_doorbell(pe, g, data)
        elif offset == p.db_rq:
            self.queue.doorbell(pe, g, data)
        else:
            self._cq_doorbell(pe, g, data)

    def _sq_doorbell(self, pe: int, g: int, data: int) -> None:
        s = self.s
        version, depth, pi = int(s.q_version[g]), int(s.q_depth[g]), int(s.q_pi[g])
        fields = doorbell.sq_decode(data, version)
        if int(fields.qp_id) != int(s.q_qpn[g]):
            self.count(pe, Cnt.DB_PAGE)
            return
        pid = int(fields.next_pid)
        # completions on their way may or may not have been counted by the NIC
        most, least = pi - s.retired(g), pi - self.core.completing(g)
        verdict, other = (
            int(rules.sq_doorbell(pid, pi, n, depth, version, s.params.stale_ignored)) for n in (most, least)
        )
        forward = ((pid >> 3) - pi) % (1 << int(s.q_bits[g]))
        if verdict != other:
            self.find(Check.DB_AMBIGUOUS, pe, "SQ doorbell",
                       f"at most {depth - most} WQEs, or no completion on its way",
                       f"{forward} WQEs", g, pi)  # fmt: skip
        elif verdict == rules.DbVerdict.ACCEPTED:
            self._announce(pe, g, pi + forward)
        elif verdict != rules.DbVerdict.NO_WORK:
            self.count(pe, rules.DB_COUNTER[rules.DbVerdict(verdict)])
            if verdict == rules.DbVerdict.OVERRUN:
                s.asyncs[pe].append((AsyncKind.SQ_OVERRUN, int(s.q_qpn[g])))
                self.core.to_err(g, self.core.time)

    def _announce(self, pe: int, g: int, new: int) -> None:
        s = self.s
        idx = np.arange(int(s.q_pi[g]), new, dtype=np.int64)
        raw = np.zeros((idx.size, 128), np.uint8)
        mapped = np.ones(idx.size, np.bool_)
        for k, i in enumerate(idx.tolist()):
            addr = int(s.q_base[g]) + i % int(s.q_depth[g]) * 128
            at = s.memory.flat(pe, addr, 128)
            mapped[k] = not s.memory.beats_fault(pe, addr, 128)
            if at >= 0:
                raw[k] = s.memory.bytes[at : at + 128]
        group = np.full(idx.size, g, np.int64)
        time = np.full(idx.size, self.core.time, np.int64)
        good = announce(s, group, idx, raw, mapped, time, np.full(idx.size, s.position, np.int64))
        settle(s, group, idx)
        rows = s.q_row[g] + (idx & s.q_mask[g])
        if (s.w_imm[rows] | (s.w_op[rows] == WqeOp.SEND)).any():
            # both ends are the exact engine's from now on
            s.q_odd[g] = True
            if s.q_peer[g] >= 0:
                s.q_odd[s.q_peer[g]] = True
        if not good:
            s.q_odd[g] = True
            if s.q_bad[g] < 0:
                s.q_bad[g] = int(idx[np.flatnonzero(s.w_err[rows])[0]])

    def _cq_doorbell(self, pe: int, g: int, data: int) -> None:
        s = self.s
        fields = doorbell.cq_decode(data)
        c = int(s.q_cq[g])
        cqn = int(fields.cq_id)
        if c < 0 or cqn not in (int(s.c_cqn[c]), s.qp_ctx[g].recv_cq):
            self.count(pe, Cnt.DB_PAGE)
            return
        if cqn != int(s.c_cqn[c]):
            c = int(s.cq_lut[pe, cqn])
        prod, ci = int(s.c_prod[c]), int(s.c_ci[c])
        cid = int(fields.next_cid)
        ahead = sum(self.core.completing(q) - int(s.q_ret[q]) for q in np.flatnonzero(s.q_cq == c).tolist())
        ahead += sum(self.core.receives(q) - s.rq[q].done for q in self.core.receivers(c))
        verdict, other = (int(rules.cq_doorbell(cid, ci, n)) for n in (prod, prod + ahead))
        if verdict != other:
            self.find(Check.DB_AMBIGUOUS, pe, "CQ doorbell",
                       f"at most CQE {prod}, or no completion on its way", f"next_cid {cid}", g)  # fmt: skip
        elif verdict == rules.CqDbVerdict.ACCEPTED:
            self.complete.wait_over(c, pe, cid != ci)
            s.c_ci[c] = ci + (cid - ci) % (1 << 23)
            if rules.cq_arms(fields.cq_sta):
                self.events.armed(c, int(fields.cq_sta))
        else:
            beyond = verdict == rules.CqDbVerdict.BEYOND
            self.count(pe, Cnt.DB_CQ_BEYOND if beyond else Cnt.DB_CQ_BACKWARD)

    def _csr(self, pe: int, addr: int, data: int, strobe: int) -> None:
        s = self.s
        word = addr - CMD_STAGE >> 3
        if addr >= CMD_STAGE and word < STAGE_WORDS:
            keep = sum(0xFF << 8 * i for i in range(8) if strobe >> i & 1)
            s.stage[pe, word] = np.uint64((int(s.stage[pe, word]) & ~keep) | (data & keep))
        elif addr == Csr.CQ_WAIT:
            s.cq_wait[pe] = data & 0xFFFFFFFF
        elif addr in (Csr.EVENT_MASK, Csr.CQ_EVENT):
            self.events.write(pe, addr, data)
        elif addr == CMD_REG and strobe == 0xFF:
            self._command(pe, data)

    def _command(self, pe: int, cmd: int) -> None:
        """Commands that change what the judge expects; contexts as first programmed are configuration."""
        s, op, obj, index = self.s, cmd & 15, cmd >> 4 & 15, cmd >> 8 & 0xFFFFFF
        g = int(s.qp_lut[pe, index - s.params.first_qpn]) if self._names_qp(obj, index) else -1
        store, words = self._store(pe), s.stage[pe].tolist()
        if store.execute(cmd, words) is not CmdStatus.OK:
            return
        if g >= 0 and op == CmdOp.MODIFY:
            s.set_qp(g, store.qps[index])
            s.q_odd[g] |= s.short_timer(store.qps[index])
            if store.states[index] == ERR:
                self.core.to_err(g, self.core.time)
        elif g >= 0 and op == CmdOp.RESET:
            self._reset(pe, g)
        elif g >= 0 and op == CmdOp.SET:
            self._set(pe, g, store.qps[index])
        elif obj == CmdObj.CQ and op == CmdOp.SET and s.cq_lut[pe, index] >= 0:
            c = int(s.cq_lut[pe, index])
            s.set_cq(c, store.cqs[index])
            s.c_dead[c] = False
            s.c_since[c] = -1
            self.core.overdue.discard(c)
            s.c_prod[c] = s.c_ci[c] = s.c_start[c]
            self.events.programmed(c)
        elif obj == CmdObj.MR and op == CmdOp.SET:
            region = store.mrs.get(index)
            if region is not None:
                self.regions.program(pe, index, region)
            elif index in s.mrs[pe]:
                self.regions.invalidate(pe, index)

    def _names_qp(self, obj: int, index: int) -> bool:
        return obj == CmdObj.QP and 0 <= index - self.s.params.first_qpn < self.s.params.num_qp

    def _store(self, pe: int) -> ContextStore:
        """The contexts of a PE as a command finds them."""
        s, store = self.s, self._contexts[pe]
        for g in np.flatnonzero(s.q_pe == pe).tolist():
            store.states[int(s.q_qpn[g])] = QpState(int(s.q_state[g]))
        return store

    def _reset(self, pe: int, g: int) -> None:
        """RESET: what is under way may still come, what is left of it goes with the next set (nic.md 6)."""
        s, c = self.s, int(self.s.q_cq[g])
        s.q_ret[g] = s.retired(g)
        if s.q_pi[g] > s.q_ret[g]:
            self.core.loose.add((pe, int(Cnt.WQE)))
        if c >= 0 and s.c_dead[c] and s.q_state[g] != RESET:
            self.count(pe, Cnt.CQE_DISCARD, int(s.q_pi[g] - s.q_ret[g]))
            s.q_ret[g] = s.q_pi[g]
            self.core.loose |= {(pe, int(n)) for n in (Cnt.FLUSH, Cnt.CQ_OVERRUN)}
        if g in s.rq and s.rq[g].pi > s.rq[g].done:
            queue, c = s.rq[g], int(s.q_rcq[g])
            self.core.loose.add((pe, int(Cnt.WQE)))
            if c >= 0 and s.c_dead[c] and s.q_state[g] != RESET:
                self.count(pe, Cnt.CQE_DISCARD, queue.pi - queue.done)
                queue.done = queue.pi
                self.core.loose |= {(pe, int(n)) for n in (Cnt.FLUSH, Cnt.CQ_OVERRUN)}
        s.q_state[g] = RESET
        s.q_err_time[g] = self.core.time
        self.core.stop_results(g)
        self.core.stop_inbound(g)

    def _set(self, pe: int, g: int, ctx: QpContext) -> None:
        """A QP leaves RESET with a new context: indices, MSN and saved state are 0 again."""
        s = self.s
        s.q_gone[g] += s.q_ret[g] - s.q_start[g]
        s.set_qp(g, ctx)
        s.set_rq(g)
        start = s.q_start[g]
        for column in (s.q_pi, s.q_ret, s.q_fetch, s.q_txw):
            column[g] = start
        for column in (s.q_ann, s.q_tx, s.q_ack, s.q_ce, s.q_ce_done, s.r_exp, s.r_msn, s.r_left):
            column[g] = 0
        for flags in (s.q_flush, s.q_err_race, s.r_open, s.r_ahead, s.q_odd):
            flags[g] = False
        s.q_odd[g] = s.short_timer(ctx)
        for column in (s.q_bad, s.q_err_time, s.r_req, s.r_sent):
            column[g] = -1
        self.core.silent.discard(g)
        held = list(s.r_reads.get(g, ()))
        if any(request.kind != READ for request in held):
            # executed or not, it was never answered
            self.core.loose.add((pe, int(Cnt.ATOMIC)))
        self.core.drop_requests(g, held)
        core = self.core
        for due in (
            s.r_nak, s.r_nak_before, s.r_dup, s.saved, s.q_reads,
            core.early, core.maybe, core.recovery, core.dup_due, core.waiting,
        ):  # fmt: skip
            due.pop(g, None)
        # packets that met its change to ERR and were not executed after all
        for queue in (s.inbound[pe], s.results[pe]):
            for entry in [e for e in queue if e.gq == g and e.optional and not e.done]:
                queue.remove(entry)
        s.q_state[g] = RTS

    def read(self, r: Any) -> None:
        """A register was read."""
        pe, data = int(r["pe"]), int(r["data"])
        if int(r["addr"]) == Csr.CQ_EVENT:
            self.events.read(pe, data)
        if int(r["addr"]) == CMD_STATUS and not data & 1:
            self.regions.answered(pe)
        if int(r["addr"]) == Csr.ASYNC_POP and data >> 63:
            event = (data >> 32 & 0xFF, data & MASK24)
            if event not in self.s.asyncs[pe] and event[0] == AsyncKind.QP_ERR:
                self._told(pe, event[1])
            if event[0] == AsyncKind.CQ_OVERRUN:
                self.complete.overran(pe, event[1])
            if event in self.s.asyncs[pe]:
                self.s.asyncs[pe].remove(event)
            else:
                due = ", ".join(f"kind {k} number {n}" for k, n in self.s.asyncs[pe]) or "none"
                self.find(Check.ASYNC, pe, "asynchronous event", due, f"kind {event[0]} number {event[1]}")

    def _told(self, pe: int, qpn: int) -> None:
        """An event tells how an open question about a QP was decided: it is in ERR."""
        s, index = self.s, qpn - self.s.params.first_qpn
        g = int(s.qp_lut[pe, index]) if 0 <= index < s.params.num_qp else -1
        contested = next((e for e in s.r_reads.get(g, ()) if e.contested), None)
        if contested is not None:
            self.core.roll_back(contested)
        elif g in self.core.doubt:
            s.asyncs[pe].append((AsyncKind.QP_ERR, qpn))
            self.core.to_err(g, self.core.time)
