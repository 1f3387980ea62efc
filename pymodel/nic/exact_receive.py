"""Exact engine, packets received: whose they are, and responses at their requester (wire.md 5)."""

from __future__ import annotations

from typing import Any

from pymodel.formats.cqe import CqeError
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.exact_core import NEVER, SETTLE, Core, Part, signed24
from pymodel.nic.exact_memory import Memory
from pymodel.nic.exact_regions import GOING, Regions
from pymodel.nic.exact_requests import Requests
from pymodel.nic.exact_retry import LAG, Retry
from pymodel.nic.judge_entries import ATOMIC, InboundWrite
from pymodel.nic.judge_state import RTS
from pymodel.nic.params import Cnt

#: CQE error code by NAK code (nic.md 4)
_NAK_CODE = {1: CqeError.NAK_INV_REQ, 2: CqeError.NAK_MR, 3: CqeError.NAK_REMOTE_OPER_ERR}
_NAK_RX = {0: Cnt.NAK_SEQ_RX, 1: Cnt.NAK_INV_RX, 2: Cnt.NAK_ACC_RX, 3: Cnt.NAK_OP_RX}


class Receive(Part):
    """What a NIC makes of a frame."""

    def __init__(
        self, core: Core, memory: Memory, regions: Regions, retry: Retry, requests: Requests
    ) -> None:
        super().__init__(core)
        self.memory, self.regions, self.retry, self.requests = memory, regions, retry, requests

    def packet(self, r: Any) -> None:
        """A frame arrived."""
        s, pe, time = self.s, int(r["pe"]), self.core.time
        s.rx_frames[pe] += 1
        got = frames.receive(self.core.bytes_of(r, int(r["len"])), s.pes[pe].mac, s.pes[pe].ip)
        if isinstance(got, Cnt):
            self.count(pe, got)
            return
        index = got.dst_qpn - s.params.first_qpn
        g = int(s.qp_lut[pe, index]) if 0 <= index < s.params.num_qp else -1
        if g < 0 or (s.q_state[g] != RTS and time - int(s.q_err_time[g]) >= SETTLE):
            self.count(pe, Cnt.DROP_QP)
            return
        # whether the change to ERR or RESET comes first is open: memory tells what was executed
        late = bool(s.q_state[g] != RTS or (s.q_bad[g] >= 0 and s.retired(g) >= s.q_bad[g]))
        late |= g in self.core.doubt
        if late:
            self.core.open_counters(pe, 1)
        if got.src_ip != s.flows[g].dst_ip:
            self.count(pe, Cnt.DROP_IP_SRC)
        elif got.opcode not in frames.RESPONSES:
            self.requests.request(pe, g, got, late)
        elif got.opcode != frames.ACK:
            self._data(pe, g, got, late)
        elif not late:
            self._acknowledge(pe, g, got)
        elif s.q_err_race[g] and got.ext[0] >> 5 == 0:
            # its WQEs flush or end well
            c = int(s.q_ack[g]) + signed24(got.psn - int(s.q_ack[g]) - int(s.q_sq_psn[g]))
            if s.q_ack[g] <= c < s.q_tx[g]:
                s.q_ack[g] = min(c + 1, self.retry.answer_due(g)[1])

    # ------------------------------------------------------------------ requester
    def _acknowledge(self, pe: int, g: int, got: frames.Received) -> None:
        s = self.s
        syndrome = got.ext[0]
        kind, code = syndrome >> 5, syndrome & 31
        if kind not in (0, 1, 3) or (kind == 3 and code > 3) or syndrome >> 7:
            self.count(pe, Cnt.DROP_SYNDROME)
            return
        self.count(pe, Cnt.RX_PACKET)
        self.core.ack_came(pe, g, (-1, int(Cnt.RNR_RX), -1, int(_NAK_RX.get(code, -1)))[kind])
        acked, sent = int(s.q_ack[g]), int(s.q_tx[g])
        c = acked + signed24(got.psn - acked - int(s.q_sq_psn[g]))
        recovery = self.retry.of.get(g)
        guess = NEVER
        if recovery is not None:
            guess = min(recovery.low, *recovery.guess) if recovery.guess else recovery.low
            if c < sent:
                recovery.heard = max(recovery.heard, c + (kind == 0))
        if c < acked or c >= sent:
            self.count(pe, Cnt.DROP_RESPONSE)
            if recovery is not None and c < sent and self.core.time - recovery.marks[-1][1] <= LAG:
                # the data that acknowledged it may have come to the NIC at a time when it expected none
                self.core.open_counters(pe, 1, (Cnt.DROP_RESPONSE,))
            if guess <= c < sent:
                self.retry.event(g)
            return
        self.retry.before_advance(g)
        # nothing passes a READ or atomic without its answer: that is retried
        answer = self.retry.answer_due(g)[1]
        s.q_ack[g] = min(c + (kind == 0), answer)
        s.q_ack_time[g] = self.core.time
        self.retry.advanced(g)
        passes = c + (kind == 0) > min(answer, guess)
        if passes or (kind == 3 and not code):
            self.retry.event(g)
        if kind == 0:
            self.core.watch_room(int(s.q_cq[g]), self.core.time)
            return
        if kind == 1:
            self.count(pe, Cnt.RNR_RX)
            if not c > answer:
                self.retry.event(g, code)
            return
        self.count(pe, _NAK_RX[code])
        if not code or c > answer:
            return
        for idx in range(int(s.q_ret[g]), int(s.q_pi[g])):
            row = s.row(g, idx)
            if s.w_first[row] <= c < s.w_first[row] + s.w_np[row]:
                fault = int(_NAK_CODE[code])
                if code == 1 and s.w_kind[row] == ATOMIC and int(s.w_raddr[row]) % int(s.w_len[row]):
                    fault = int(CqeError.ATOMIC_VA_REQ)
                self.core.fail(g, idx, fault, nak=True)
                break

    def _data(self, pe: int, g: int, got: frames.Received, late: bool) -> None:
        """READ response or ATOMIC ACK: that of the oldest READ or atomic, or dropped (wire.md 5)."""
        s = self.s
        if got.opcode != frames.READ_MIDDLE and got.ext[0] >> 5:
            self.count(pe, Cnt.DROP_SYNDROME)
            return
        idx, due = self.retry.answer_due(g)
        ahead = signed24(got.psn - self.core.sq_psn(g, due)) if idx >= 0 else 0
        if ahead > 0 and self.retry.revive(g, due + ahead):
            ahead += due
            idx, due = self.retry.answer_due(g)
            ahead -= due if idx >= 0 else 0
        if idx < 0 or ahead:
            self.count(pe, Cnt.DROP_RESPONSE)
            if idx >= 0 and 0 < ahead < s.q_tx[g] - due and not late:
                self.retry.event(g)
            return
        row = s.row(g, idx)
        if s.w_err[row]:
            # behind a response that failed: dropped, how it is counted is open
            self.core.open_counters(pe, 1, (Cnt.DROP_RESPONSE, Cnt.RX_PACKET))
            return
        self.count(pe, Cnt.RX_PACKET)
        at, atomic = int(s.w_got[row]) * int(s.q_mtu[g]), s.w_kind[row] == ATOMIC
        unsure = not late and self.retry.unsure(g, due)
        if unsure:
            # where it was dropped and is asked for again by now, what follows is ahead
            self.retry.event(g)
        recovery = self.retry.of.get(g)
        va = int(s.w_laddr[row]) + at
        # a READ that was resumed here begins again; a late answer of its first request goes on
        resumed = recovery is not None and due in recovery.resumed
        fault = min(
            int(
                rules.response_error(
                    got.opcode, len(got.payload), s.q_mtu[g], atomic, s.w_len[row] - at, first
                )
            )
            for first in {bool(s.w_got[row] == 0), bool(s.w_got[row] == 0) or resumed}
        )
        payload = got.payload
        if atomic:
            value, size = int.from_bytes(got.ext[4:12], "big"), int(s.w_len[row])
            # 8-byte results land little-endian, 4-byte results big-endian (device.md 1.5)
            payload = value.to_bytes(8, "little") if size == 8 else got.ext[8:12]
        key, going = int(s.w_lkey[row]), False
        if not fault:
            refused = self.regions.allows(pe, key, False, rules.Right.LOC_WRITE, va, len(payload))
            going = refused == GOING
            fault = int(CqeError.LOCAL_MR_REQ) if refused == 2 else 0
        if fault:
            if not late:
                # that it came shows that everything before it was executed
                s.q_ack[g] = due
                self.core.watch_room(int(s.q_cq[g]), self.core.time)
                self.core.fail(g, idx, fault)
            return
        self.retry.before_advance(g)
        s.w_got[row] += 1
        s.q_ack[g], s.q_ack_time[g] = due + 1, self.core.time
        self.retry.advanced(g)
        self.core.watch_room(int(s.q_cq[g]), self.core.time)
        if payload:
            entry = InboundWrite(g, due, va, len(payload), payload, idx, late, key)
            s.results[pe].append(entry)
            self.retry.take(g, due, idx, True, unsure)
            if going:
                self.regions.contest(entry)
        else:
            self.memory.result_landed(g, idx)
            self.retry.take(g, due, idx, False, unsure)
