"""Exact engine, packets received: requests at their responder, responses at their requester (wire.md 5)."""

from __future__ import annotations

from collections import deque
from typing import Any

from pymodel.formats.cqe import CqeError
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.exact_atomic import Atomics
from pymodel.nic.exact_core import NEVER, SETTLE, Core, Part, signed24
from pymodel.nic.exact_duplicates import Duplicates
from pymodel.nic.exact_memory import Memory
from pymodel.nic.exact_regions import Regions
from pymodel.nic.exact_retry import LAG, Retry
from pymodel.nic.judge_entries import ATOMIC, InboundWrite, Request
from pymodel.nic.judge_state import RTS
from pymodel.nic.params import AsyncKind, Cnt

#: CQE error code by NAK code (nic.md 4)
_NAK_CODE = {1: CqeError.NAK_INV_REQ, 2: CqeError.NAK_MR, 3: CqeError.NAK_REMOTE_OPER_ERR}
_NAK_RX = {0: Cnt.NAK_SEQ_RX, 1: Cnt.NAK_INV_RX, 2: Cnt.NAK_ACC_RX, 3: Cnt.NAK_OP_RX}
_WRITES = (frames.WRITE_FIRST, frames.WRITE_MIDDLE, frames.WRITE_LAST, frames.WRITE_ONLY)
#: a request is refused because the table is full: NAK 1 with a counter of its own
_FULL = -1
#: its region goes: executed, or refused with NAK 2
_GOING = -2


class Receive(Part):
    """What a NIC makes of a frame."""

    def __init__(self, core: Core, memory: Memory, atomics: Atomics, regions: Regions, retry: Retry) -> None:
        super().__init__(core)
        self.memory, self.atomics, self.regions, self.retry = memory, atomics, regions, retry
        self.duplicates = Duplicates(core, memory)

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
            self._request(pe, g, got, late)
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
            refused = self._key(pe, key, False, rules.Right.LOC_WRITE, va, len(payload))
            going = refused == _GOING
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

    # ------------------------------------------------------------------ responder
    def _request(self, pe: int, g: int, got: frames.Received, late: bool) -> None:
        s = self.s
        number = int(s.r_exp[g])
        ahead = signed24(got.psn - number - int(s.q_rq_psn[g]))
        if ahead > 0:
            self.count(pe, Cnt.PSN_AHEAD)
            if not s.r_ahead[g] and not late:
                s.r_ahead[g] = True
                self.core.nak_due(g, number, 0)
                s.q_odd[g] = True
            return
        if ahead < 0:
            self.count(pe, Cnt.DUPLICATE)
            s.q_odd[g] = True
            self._again(pe, g, got, number + ahead, late)
            return
        # duplicates and packets from ahead have counters of their own, and only those (nic.md 7)
        self.count(pe, Cnt.RX_PACKET)
        code = self._refuse(pe, g, got)
        if code == _FULL:
            self.count(pe, Cnt.RD_TOO_MANY)
            code = 1
            self.core.full[g] = number, code
        going = code == _GOING
        if going:
            code = 0
            s.q_odd[g] = True
        if code:
            if not late:
                self._fatal(pe, g, number, code, -SETTLE)  # in the receive path itself: no race
            elif g in self.core.doubt:
                self.core.maybe.setdefault(g, (number, code))
            return
        s.r_ahead[g] = False
        if got.opcode in _WRITES:
            self._write(pe, g, got, number, late, going)
        else:
            self._hold(pe, g, got, number, late, going)

    def _again(self, pe: int, g: int, got: frames.Received, number: int, late: bool) -> None:
        """A duplicate; number: of its PSN."""
        s = self.s
        if got.opcode in frames.OPERANDS:
            self.duplicates.atomic(pe, g, got, number, late)
            return
        if got.opcode != frames.READ_REQUEST:
            self.duplicates.write(g, late)
            return
        va, key = int.from_bytes(got.ext[:8], "big"), int.from_bytes(got.ext[8:12], "big")
        size = int.from_bytes(got.ext[12:16], "big")
        packets = max(1, -(-size // int(s.q_mtu[g])))
        code = self._key(pe, key, True, rules.Right.REM_READ, va, size)
        # responses up to the expected PSN belong to no READ that was executed
        if size > 1 << 31 or not s.q_read[g] or number + packets > s.r_exp[g]:
            code = 1
        if code > 0 and not late:
            self._fatal(pe, g, number, code, -SETTLE)
        elif not code:
            self.duplicates.read(pe, g, got, number, late)

    def _fatal(self, pe: int, g: int, number: int, code: int, since: int) -> None:
        """A NAK that sends the QP to ERR becomes due."""
        self.core.nak_due(g, number, code)
        self.s.asyncs[pe].append((AsyncKind.QP_ERR, int(self.s.q_qpn[g])))
        self.core.to_err(g, since)

    def _write(self, pe: int, g: int, got: frames.Received, number: int, late: bool, going: bool) -> None:
        """A WRITE packet is executed."""
        s, size = self.s, len(got.payload)
        last = got.opcode in (frames.WRITE_LAST, frames.WRITE_ONLY)
        if got.opcode in (frames.WRITE_FIRST, frames.WRITE_ONLY):
            s.r_va[g] = int.from_bytes(got.ext[:8], "big")
            s.r_rkey[g] = int.from_bytes(got.ext[8:12], "big")
            s.r_left[g] = int.from_bytes(got.ext[12:16], "big")
        va = int(s.r_va[g])
        s.r_va[g] = va + size & (1 << 64) - 1
        s.r_left[g] -= size
        s.r_open[g] = not last
        s.r_exp[g] = number + 1
        fault = size > 0 and s.memory.beats_fault(pe, va, size, True)
        if size:
            entry = InboundWrite(g, number, va, size, got.payload, -1, late or fault, int(s.r_rkey[g]))
            s.inbound[pe].append(entry)
            if going:
                self.regions.contest(entry)
        if fault and not late:
            self._fatal(pe, g, number, 3, NEVER)
            return
        if got.ack_req and not late:
            s.r_req[g] = number
        if last:
            s.e_end[g, int(s.r_msn[g]) % s.e_rows] = number
            s.r_msn[g] += 1

    def _hold(self, pe: int, g: int, got: frames.Received, number: int, late: bool, going: bool) -> None:
        """A READ or atomic enters the table; a READ counts as executed (wire.md 3)."""
        s = self.s
        va, key = int.from_bytes(got.ext[:8], "big"), int.from_bytes(got.ext[8:12], "big")
        read, mtu = got.opcode == frames.READ_REQUEST, int(s.q_mtu[g])
        length = int.from_bytes(got.ext[12:16], "big") if read else frames.OPERANDS[got.opcode][0]
        packets = max(1, -(-length // mtu)) if read else 1
        s.e_end[g, int(s.r_msn[g]) % s.e_rows] = number
        s.r_msn[g] += 1
        s.r_exp[g] = number + packets
        request = Request(g, number, got.opcode, va, key, length, packets, int(s.r_msn[g]))
        request.optional = late
        request.contested = sum(not e.dup for e in s.r_reads.get(g, ())) >= s.r_max_rd[g]
        request.since = NEVER
        if going:
            request.contested_key = True
            self.core.doubt.add(g)
            self.core.open_counters(pe, 1, (Cnt.READ,))
        if not read:
            request.operands = frames.operands_of(got.opcode, got.ext)
        s.r_reads.setdefault(g, deque()).append(request)
        self.memory.free_requests(pe, g)
        fails = -1
        if read:
            self.count(pe, Cnt.READ)
            sizes = ((k, min(mtu, length - k * mtu)) for k in range(packets) if length)
            fails = next((k for k, n in sizes if s.memory.beats_fault(pe, va + k * mtu, n)), -1)
        elif s.memory.narrow_fault(pe, va, length, False):
            fails = 0
        if fails >= 0 and not late:
            self._fatal(pe, g, number + fails, 3, NEVER)

    def _refuse(self, pe: int, g: int, got: frames.Received) -> int:
        """NAK code of a request at the expected PSN, 0: execute (wire.md 5)."""
        op = got.opcode
        if op in _WRITES:
            return self._refuse_write(pe, g, got)
        s, atomic = self.s, op in frames.OPERANDS
        if (op != frames.READ_REQUEST and not atomic) or s.r_open[g]:
            return 1
        va, key = int.from_bytes(got.ext[:8], "big"), int.from_bytes(got.ext[8:12], "big")
        size = frames.OPERANDS[op][0] if atomic else int.from_bytes(got.ext[12:16], "big")
        if size > 1 << 31 or not (s.q_atomic[g] if atomic else s.q_read[g]) or (atomic and va % size):
            return 1
        held = [e for e in s.r_reads.get(g, ()) if not e.dup]
        over = next((i for i, e in enumerate(held) if not self.atomics.may_be_over(pe, e)), len(held))
        if len(held) - over >= s.r_max_rd[g]:
            return _FULL
        right = rules.Right.REM_ATOMIC if atomic else rules.Right.REM_READ
        return self._key(pe, key, True, right, va, size)

    def _key(self, pe: int, key: int, remote: bool, right: rules.Right, va: int, size: int) -> int:
        """0: the region allows it, 2: it does not, _GOING: it did until a command that is not answered."""
        verdict = rules.mr_check(self.s.mr_rows, key, remote, right, [va], [size], pe)
        if int(verdict[0]) == rules.MrVerdict.OK:
            return 0
        return _GOING if self.core.was_allowed(pe, key, remote, right, va, size) else 2

    def _refuse_write(self, pe: int, g: int, got: frames.Received) -> int:
        s, op, size = self.s, got.opcode, len(got.payload)
        start = op in (frames.WRITE_FIRST, frames.WRITE_ONLY)
        last = op in (frames.WRITE_LAST, frames.WRITE_ONLY)
        if bool(s.r_open[g]) == start or not s.q_write[g]:
            return 1
        mtu = int(s.q_mtu[g])
        va, key = int.from_bytes(got.ext[:8], "big"), int.from_bytes(got.ext[8:12], "big")
        length = int.from_bytes(got.ext[12:16], "big")
        left = length if start else int(s.r_left[g])
        if last and (size != left or size > mtu or (op == frames.WRITE_LAST and not size)):
            return 1
        # a First or Middle leaves a byte for the Last; a message has at most 2^31 bytes
        if not last and (size != mtu or left <= size or left > 1 << 31):
            return 1
        if not start:
            # the key alone: right and range were judged at the First
            va, key, right = int(s.r_va[g]), int(s.r_rkey[g]), rules.Right.NONE
            verdict = int(rules.mr_check(s.mr_rows, key, True, right, [va], [size], pe)[0])
            if verdict != rules.MrVerdict.KEY:
                return 0
            return _GOING if self.core.was_allowed(pe, key, True, right, va, size) else 2
        return self._key(pe, key, True, rules.Right.REM_WRITE, va, length)
