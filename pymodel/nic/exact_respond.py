"""Exact engine, responses sent: ACKs as a legal set, NAKs when due, READ responses and ATOMIC ACKs byte for
byte (wire.md 3, 5, 6)."""

from __future__ import annotations

import numpy as np

from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.exact_atomic import Atomics
from pymodel.nic.exact_core import MASK24, NEVER, RNR_NAK, Core, Part, ends, signed24
from pymodel.nic.exact_duplicates import Duplicates
from pymodel.nic.exact_regions import Regions
from pymodel.nic.exact_transmit import Transmit
from pymodel.nic.judge_entries import READ, Request
from pymodel.nic.judge_records import Check
from pymodel.nic.judge_state import RTS
from pymodel.nic.params import AsyncKind, Cnt

_NAK_TX = {0: Cnt.NAK_SEQ_TX, 1: Cnt.NAK_INV_TX, 2: Cnt.NAK_ACC_TX, 3: Cnt.NAK_OP_TX, RNR_NAK: Cnt.RNR_TX}


class Respond(Part):
    """Packets of responders."""

    def __init__(
        self, core: Core, transmit: Transmit, atomics: Atomics, regions: Regions, duplicates: Duplicates
    ) -> None:
        super().__init__(core)
        self.duplicates = duplicates
        self.transmit, self.atomics, self.regions = transmit, atomics, regions

    def response(self, pe: int, g: int, frame: bytes) -> None:
        """A response packet left the NIC."""
        self.count(pe, Cnt.TX_RESPONSE)
        opcode = frame[42]
        if g in self.core.silent:
            psn = int.from_bytes(frame[51:54], "big")
            self.find(Check.TX_UNEXPECTED, pe, "response packet", "none behind a NAK that ends the QP",
                      f"opcode {opcode:#04x}", g, psn=psn)  # fmt: skip
            return
        if opcode == frames.ACK:
            self._acknowledge(pe, g, frame)
            return
        psn = int.from_bytes(frame[51:54], "big")
        self._skip_duplicates(pe, g, psn, opcode)
        while not self.s.r_reads.get(g) and self.core.accept(g):
            pass
        held = self.s.r_reads.get(g)
        if not held:
            self.find(Check.TX_UNEXPECTED, pe, "response packet", "no READ or atomic is held",
                      f"opcode {opcode:#04x}", g, psn=psn)  # fmt: skip
            return
        request = held[0]
        due = self.core.rq_psn(g, request.number + request.sent)
        if psn != due:
            self.find(Check.RESPONSE_PSN, pe, "PSN", f"{due:#08x}", f"{psn:#08x}", g, psn=psn)
            other = self._named(g, psn)
            if self._alike(pe, request, frame):
                # taken as the due one with a wrong PSN, so that one fault gives one finding
                frame = frame[:51] + due.to_bytes(3, "big") + frame[54:-4]
                frame += frames.icrc(frame)
            elif other is None:
                return
            else:
                # what is between is missing
                self.core.drop_requests(g, [e for e in held if e.number < other.number])
                request, request.sent = other, signed24(psn - self.core.rq_psn(g, other.number))
        if request.since == NEVER:
            self._before_writes(pe, g, request.number, "response")
        if request.kind == READ:
            self._read_response(pe, g, request, frame)
        else:
            self._atomic_ack(pe, g, request, frame)
        self._names(g, request.number + request.sent - 1)
        if request.sent >= request.packets:
            held.remove(request)
            self.core.tidy(g)

    def _skip_duplicates(self, pe: int, g: int, psn: int, opcode: int) -> None:
        """Duplicates in front that may have been dropped, where the response is none of theirs."""
        while held := self.s.r_reads.get(g):
            head, kind = held[0], opcode == frames.ATOMIC_ACK
            mine = psn == self.core.rq_psn(g, head.number + head.sent) and kind == (head.kind != READ)
            if mine or not head.dup or not head.optional or head.sent:
                return
            self.duplicates.vanish(pe, head)

    def _names(self, g: int, c: int) -> None:
        """A response names packet `c`, and stands for all before it."""
        self.s.r_sent[g] = max(int(self.s.r_sent[g]), c)
        if c >= self.core.dup_due.get(g, NEVER):
            del self.core.dup_due[g]

    def _msn_of(self, request: Request, frame: bytes) -> int:
        """MSN that a data response must carry: that of its request, for a duplicate any one since."""
        if request.dup and frame[42] != frames.READ_MIDDLE:
            low, got = self._msn_at(request.gq, request.number), int.from_bytes(frame[55:58], "big")
            if 0 <= signed24(got - low) <= int(self.s.r_msn[request.gq]) - low:
                return low + signed24(got - low)
        return request.msn

    def _named(self, g: int, psn: int) -> Request | None:
        """The held request that a PSN belongs to, if that packet is still to come."""
        for request in self.s.r_reads[g]:
            if request.sent <= signed24(psn - self.core.rq_psn(g, request.number)) < request.packets:
                return request
        return None

    def _alike(self, pe: int, request: Request, frame: bytes) -> bool:
        """Whether a frame is the data response that is due, but for its PSN."""
        k, mtu = request.sent, int(self.s.q_mtu[request.gq])
        if request.kind != READ:
            return frame[42] == frames.ATOMIC_ACK and frame[55:58] == (request.msn & MASK24).to_bytes(
                3, "big"
            )
        opcode = frames.read_opcode(k, request.packets)
        head = frames.BASE + frames.EXT[opcode]
        payload = self.core.look(pe, request.va + k * mtu, min(mtu, request.length - k * mtu))
        return frame[42] == opcode and frame[head : len(frame) - 4 - (frame[43] >> 4 & 3)] == payload

    # ------------------------------------------------------------------ READ
    def _read_response(self, pe: int, g: int, request: Request, frame: bytes) -> None:
        s, k = self.s, request.sent
        mtu = int(s.q_mtu[g])
        va, size = request.va + k * mtu, min(mtu, request.length - k * mtu)
        opcode = frames.read_opcode(k, request.packets)
        ext = b""
        if opcode != frames.READ_MIDDLE:
            ext = frames.aeth(frames.SYN_ACK, self._msn_of(request, frame))
        psn, head = self.core.rq_psn(g, request.number + k), frames.BASE + len(ext)
        payload = self.core.look(pe, va, size)
        got = frame[head : head + size]
        if got != payload and len(got) == size:
            payload = self._versions(pe, request, va, payload, got)
        request.sent += 1
        fault = s.r_nak.get(g)
        if fault and fault[1] == 3 and fault[0] == request.number + k:
            self.find(Check.NAK, pe, "READ response", "NAK 3: its memory answers with an error", "a response",
                      g, psn=psn)  # fmt: skip
        expected = frames.build(s.flows[g], opcode, psn, 0, ext, payload)
        self.transmit.compare(pe, g, -1, psn, expected, frame, head, head + size)

    def _versions(self, pe: int, request: Request, va: int, golden: bytes, got: bytes) -> bytes:
        """Payload as it may be: each byte that of any version live since the READ could execute."""
        want, have = np.frombuffer(golden, np.uint8), np.frombuffer(got, np.uint8)
        wrong = want != have
        for addr, flat, length in self.s.memory.clip(pe, va, len(golden)):
            for position, at, old in reversed(self.s.overwritten[pe]):
                if position <= request.position or not wrong.any():
                    break
                low, high = max(at, flat), min(at + len(old), flat + length)
                if low < high:
                    part = slice(addr - va + low - flat, addr - va + high - flat)
                    wrong[part] &= have[part] != np.frombuffer(old, np.uint8)[low - at : high - at]
        return np.where(wrong, want, have).astype(np.uint8).tobytes()

    # ------------------------------------------------------------------ atomics
    def _atomic_ack(self, pe: int, g: int, request: Request, frame: bytes) -> None:
        s = self.s
        psn, value = self.core.rq_psn(g, request.number), int.from_bytes(frame[58:66], "big")
        run = None if request.dup else self.atomics.claim(pe, request, value)
        request.sent += 1
        word = f"atomic on {request.va:#x}"
        if request.dup:
            saved = s.saved.get(g, {}).get(request.number)
            if saved != value:
                want = "none" if saved is None else f"{saved:#x}"
                self.find(Check.ATOMIC_OLD, pe, f"saved value, {word}", want, f"{value:#x}", g, psn=psn)
        elif run is None:
            self.find(Check.ATOMIC_NOT_RUN, pe, "ATOMIC ACK", f"after the {word}", "none", g, psn=psn)
        elif run.done < 0:
            self.find(Check.ATOMIC_ACK_EARLY, pe, "ATOMIC ACK", f"after the end of the {word}", "before", g,
                      psn=psn)  # fmt: skip
        if run is not None:
            self.count(pe, Cnt.ATOMIC)
            s.save(g, request.number, run.old & (1 << 8 * request.length) - 1)
            old = run.old & (1 << 8 * request.length) - 1
            if old != value:
                self.find(Check.ATOMIC_OLD, pe, f"original value, {word}", f"{old:#x}", f"{value:#x}", g,
                          psn=psn)  # fmt: skip
        ext = frames.aeth(frames.SYN_ACK, self._msn_of(request, frame)) + value.to_bytes(8, "big")
        expected = frames.build(s.flows[g], frames.ATOMIC_ACK, psn, 0, ext)
        self.transmit.compare(pe, g, -1, psn, expected, frame, len(expected) - 4, len(expected) - 4)

    # ------------------------------------------------------------------ ACK, NAK
    def _before_writes(self, pe: int, g: int, c: int, what: str) -> None:
        """An answer left before the write responses of the inbound WRITEs that it stands for."""
        wait = self.core.missing(g, c)
        if wait is not None:
            state = f"{wait.done} of {wait.length} bytes written, {wait.unanswered} bursts without response"
            first = self.core.rq_psn(g, wait.cum)
            self.find(Check.ACK_EARLY, pe, what, f"after the write responses of PSN {first:#08x}",
                      state, g, psn=self.core.rq_psn(g, c))  # fmt: skip

    def _acknowledge(self, pe: int, g: int, frame: bytes) -> None:
        s = self.s
        psn, syndrome = int.from_bytes(frame[51:54], "big"), frame[54]
        msn = int.from_bytes(frame[55:58], "big")
        expected = frames.build(s.flows[g], frames.ACK, psn, 0, frames.aeth(syndrome, msn))
        self.transmit.compare(pe, g, -1, psn, expected, frame, len(expected) - 4, len(expected) - 4)
        executed = int(s.r_exp[g])
        c = executed + signed24(psn - executed - int(s.q_rq_psn[g]))
        takes = syndrome in (frames.SYN_ACK, *range(0x61, 0x64))
        # it tells of packets that wait for receive WQEs: they were taken
        while c >= s.r_exp[g] + (not takes) and self.core.accept(g):
            pass
        if syndrome != frames.SYN_ACK:
            self._nak(pe, g, psn, syndrome, msn, c)
        elif self._ack_psn(pe, g, psn, c):
            self._in_order(pe, g, c + 1)
            want = self._msn_at(g, c)
            self._msn(pe, g, psn, msn, want, want)
            self._before_writes(pe, g, c, "acknowledge")
            self._names(g, c)

    def _in_order(self, pe: int, g: int, number: int) -> None:
        """Responses leave in PSN order: nothing passes an unanswered READ or atomic (wire.md 5)."""
        head = next((e for e in self.s.r_reads.get(g, ()) if not e.dup), None)
        if head is not None and head.number < number:
            first = self.core.rq_psn(g, head.number + head.sent)
            self.find(Check.RESPONSE_ORDER, pe, "acknowledge", f"after the response of PSN {first:#08x}",
                      "before", g, psn=self.core.rq_psn(g, number - 1))  # fmt: skip

    def _msn(self, pe: int, g: int, psn: int, msn: int, low: int, high: int) -> None:
        if not 0 <= signed24(msn - low) <= high - low:
            self.find(Check.ACK_MSN, pe, "MSN", f"{low & MASK24}", f"{msn}", g, psn=psn)

    def _ack_psn(self, pe: int, g: int, psn: int, c: int) -> bool:
        """Whether an ACK speaks of a packet that was executed; it may go back only for a duplicate."""
        s = self.s
        executed, due = int(s.r_exp[g]), s.r_nak.get(g)
        if due and not ends(due[1]) and due[0] <= c < executed:
            # the expected packet came before the NAK left: the newest response wins
            s.r_nak_before.setdefault(g, set()).add(due)
            del s.r_nak[g]
            due = None
        limit = due[0] if due and ends(due[1]) else executed
        if c >= limit:
            self.find(Check.ACK_PSN, pe, "ACK", f"below {self.core.rq_psn(g, limit):#08x}",
                      f"{psn:#08x}", g, psn=psn)  # fmt: skip
            return False
        if (c < int(s.r_sent[g]) or c < 0) and not self._duplicate(g, c):
            least = self.core.rq_psn(g, int(s.r_sent[g]))
            self.find(Check.ACK_PSN, pe, "ACK", f"not below {least:#08x}", f"{psn:#08x}", g, psn=psn)
        return True

    def _nak(self, pe: int, g: int, psn: int, syndrome: int, msn: int, n: int) -> None:
        """A NAK of packet n: due since the packet came, or a held READ or atomic failed."""
        s = self.s
        code = syndrome & 31 if syndrome >> 5 == 3 else -1
        if syndrome == frames.SYN_RNR << 5 | s.params.rnr_timer:
            code = RNR_NAK
        held = s.r_reads.get(g, ())
        contested = next((e for e in held if code == 1 and e.contested and e.number == n), None)
        if contested is not None:
            self.core.roll_back(contested)
        held = s.r_reads.get(g, ())
        head = held[0] if held and held[0].number + held[0].sent == n else None
        due, before = s.r_nak.get(g), s.r_nak_before.get(g, set())
        ours = (n, code) == due or (n, code) in before
        fails = (n, code) == self.core.maybe.get(g) or (head is not None and self._fails(pe, head, code))
        fails |= code in (2, 3) and self.regions.refused(pe, g, n, code)
        if not ours and not fails:
            name = "RNR" if due and due[1] == RNR_NAK else f"code {due[1]}" if due else ""
            want = f"{name} at PSN {self.core.rq_psn(g, due[0]):#08x}" if due else "none is due"
            self.find(Check.NAK, pe, f"NAK, syndrome {syndrome:#04x}", want, f"PSN {psn:#08x}", g, psn=psn)
            return
        if head is not None and head.kind != READ:
            early = self.atomics.claim(pe, head, None) is None
        else:
            early = s.q_err_time[g] == NEVER and g not in self.core.failed
        if code == 3 and early:
            self.find(Check.ACK_EARLY, pe, "NAK 3", "after the response with the error", "before", g, psn=psn)
        if head is None:
            self._in_order(pe, g, n)
        if (n, code) == due:
            del s.r_nak[g]
        before.discard((n, code))
        self.count(pe, _NAK_TX[code])
        low = high = self._msn_at(g, n - 1)
        if head is not None and head.kind != READ and code == 3:
            low = high = head.msn - 1
        elif head is not None and ends(code):
            low, high = head.msn - (head.kind != READ or head.contested_key), int(s.r_msn[g])
        elif code == 3:
            # a bus error comes back when the request, and others after it, may have been counted
            high = int(s.r_msn[g]) + 1
        self._msn(pe, g, psn, msn, low, high)
        self._before_writes(pe, g, n - 1, "acknowledge")
        self._names(g, n - (code == RNR_NAK))
        if code == RNR_NAK:
            self._refused(g, psn)
        if ends(code):
            if s.q_state[g] == RTS:
                s.asyncs[pe].append((AsyncKind.QP_ERR, int(s.q_qpn[g])))
                self.core.to_err(g, self.core.time)
            s.r_nak.pop(g, None)
            # what is behind it belongs to WQEs that flush: it may be executed or not (nic.md 6), but is not
            # answered
            self.core.silent.add(g)
            for request in s.r_reads.get(g, ()):
                request.optional = True
            if s.q_err_time[g] == NEVER:
                s.q_err_time[g] = self.core.time
            self.core.failed.discard(g)
            if head is not None:
                self.core.drop_requests(g, [head])

    def _refused(self, g: int, psn: int) -> None:
        """An RNR NAK left: what waits was refused, but for what came from another copy of the packet on."""
        waiting = self.core.waiting.pop(g, [])
        again = next((i for i, (got, *_) in enumerate(waiting) if i and got.psn == psn), len(waiting))
        if again < len(waiting):
            self.core.waiting[g] = waiting[again:]
            self.s.r_nak_before.setdefault(g, set()).add((int(self.s.r_exp[g]), RNR_NAK))

    def _fails(self, pe: int, head: Request, code: int) -> bool:
        """Whether the oldest READ or atomic may end in this NAK though nobody knew when it came."""
        if code == 3:
            return head.kind != READ and any(run.fault and head in run.of for run in self.s.runs[pe])
        if code != 2:
            return False
        mtu = int(self.s.q_mtu[head.gq])
        va, size, right = head.va, head.length, rules.Right.REM_ATOMIC
        if head.kind == READ:
            at = head.sent * mtu
            va, size, right = va + at, min(mtu, size - at), rules.Right.REM_READ
        verdict = rules.mr_check(self.s.mr_rows, head.rkey, True, right, [va], [size], pe)
        return int(verdict[0]) != rules.MrVerdict.OK

    def _duplicate(self, g: int, c: int) -> bool:
        """Whether a duplicate allows an ACK of packet `c` that goes back behind a response before it."""
        allowed = self.s.r_dup.get(g)
        if not allowed or c not in allowed:
            return False
        # ACKs leave in order, and one may stand for several
        while allowed.popleft() != c:
            pass
        return True

    def _msn_at(self, g: int, c: int) -> int:
        """Messages counted by packet `c`: at the last one of a WRITE, at the first PSN of a READ."""
        s = self.s
        msn = int(s.r_msn[g])
        floor = max(0, msn - s.e_rows)
        while msn > floor and s.e_end[g, (msn - 1) % s.e_rows] > c:
            msn -= 1
        return msn
