"""Exact engine, requests at their responder: PSN, sequence, lengths, rights, and what becomes of them
(wire.md 5)."""

from __future__ import annotations

from collections import deque

from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.exact_atomic import Atomics
from pymodel.nic.exact_core import NEVER, RNR_NAK, SETTLE, Core, Part, signed24
from pymodel.nic.exact_duplicates import Duplicates
from pymodel.nic.exact_memory import Memory
from pymodel.nic.exact_queue import Queue
from pymodel.nic.exact_regions import GOING, Regions
from pymodel.nic.judge_entries import InboundWrite, Message, Request
from pymodel.nic.judge_state import RTS
from pymodel.nic.params import AsyncKind, Cnt

#: a request is refused because the table is full: NAK 1 with a counter of its own
_FULL = -1
#: counters of packets that are duplicates or not
_COPIES = (
    Cnt.RX_PACKET, Cnt.DUPLICATE, Cnt.PSN_AHEAD, Cnt.READ, Cnt.RD_TOO_MANY, Cnt.ATOMIC_NO_SAVE,
)  # fmt: skip


class Requests(Part):
    """Packets at responders."""

    def __init__(self, core: Core, memory: Memory, atomics: Atomics, regions: Regions, queue: Queue) -> None:
        super().__init__(core)
        self.memory, self.atomics, self.regions, self.queue = memory, atomics, regions, queue
        self.duplicates = Duplicates(core, memory)
        core.accept = self.accept
        #: what seems to be a duplicate may be none
        self.doubtful = False

    def request(self, pe: int, g: int, got: frames.Received, late: bool, time: int = -1) -> None:
        """A request packet; time: cycle of its arrival, where that is not now."""
        s = self.s
        number = int(s.r_exp[g])
        ahead = signed24(got.psn - number - int(s.q_rq_psn[g]))
        time = self.core.time if time < 0 else time
        waits = self.core.waiting.get(g)
        if ahead > 0:
            self.count(pe, Cnt.PSN_AHEAD)
            if waits:
                waits.append((got, time, Cnt.PSN_AHEAD))
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
        # while it is open what became of a packet, its copies are decided with it
        code = RNR_NAK if waits else self._refuse(pe, g, got)
        if code == RNR_NAK:
            self.core.waiting.setdefault(g, []).append((got, time, Cnt.RX_PACKET))
            s.q_odd[g] = s.r_ahead[g] = True
            if late:
                s.r_nak_before.setdefault(g, set()).add((number, RNR_NAK))
            else:
                self.core.nak_due(g, number, RNR_NAK)
            return
        if code == _FULL:
            self.count(pe, Cnt.RD_TOO_MANY)
            code = 1
            self.core.full[g] = number, code
        going = code == GOING
        if going:
            code = 0
            s.q_odd[g] = True
        if code:
            if self.queue.cause:
                self.queue.fail(g, got.opcode in frames.STARTS, late)
            if not late:
                self._fatal(pe, g, number, code, -SETTLE)  # in the receive path itself: no race
            elif g in self.core.doubt:
                self.core.maybe.setdefault(g, (number, code))
            return
        s.r_ahead[g] = False
        if got.opcode in frames.SENDS:
            self._send(pe, g, got, number, late, going, time)
        elif got.opcode in frames.WRITES:
            self._write(pe, g, got, number, late, going, time)
        else:
            self._hold(pe, g, got, number, late, going)

    def accept(self, g: int) -> bool:
        """Something shows that a packet was taken that waits for a receive WQE; those behind it follow."""
        s, pe = self.s, int(self.s.q_pe[g])
        if g not in self.core.waiting or not self.queue.possible(g):
            return False
        number = int(s.r_exp[g])
        if s.r_nak.get(g) == (number, RNR_NAK):
            del s.r_nak[g]
        s.r_ahead[g] = False
        late = bool(s.q_state[g] != RTS)
        waiting = self.core.waiting.pop(g)
        waiting = waiting[self.queue.first_taken(g, waiting) :]
        # a copy of it that came since may have been the one: what follows that one is then no duplicate
        psn = waiting[0][0].psn
        second = next((i for i, (got, *_) in enumerate(waiting) if i and got.psn == psn), len(waiting))
        if second < len(waiting):
            self.core.open_counters(pe, len(waiting) - second, _COPIES)
        for i, (got, time, counter) in enumerate(waiting):
            self.doubtful = i >= second
            self.count(pe, counter, -1)
            self.queue.taken = not i
            self.request(pe, g, got, late, time)
            self.queue.taken = False
        self.doubtful = False
        return True

    def _again(self, pe: int, g: int, got: frames.Received, number: int, late: bool) -> None:
        """A duplicate; number: of its PSN."""
        s, late = self.s, late or self.doubtful
        if got.opcode in frames.OPERANDS:
            self.duplicates.atomic(pe, g, got, number, late)
            return
        if got.opcode != frames.READ_REQUEST:
            self.duplicates.write(g, late)
            return
        va, key = int.from_bytes(got.ext[:8], "big"), int.from_bytes(got.ext[8:12], "big")
        size = int.from_bytes(got.ext[12:16], "big")
        packets = max(1, -(-size // int(s.q_mtu[g])))
        code = self.regions.allows(pe, key, True, rules.Right.REM_READ, va, size)
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

    def _write(
        self, pe: int, g: int, got: frames.Received, number: int, late: bool, going: bool, time: int
    ) -> None:
        """A WRITE packet is executed."""
        s, size = self.s, len(got.payload)
        s.r_send[g] = False
        if got.opcode in frames.STARTS:
            s.r_va[g] = int.from_bytes(got.ext[:8], "big")
            s.r_rkey[g] = int.from_bytes(got.ext[8:12], "big")
            s.r_left[g] = s.r_len[g] = int.from_bytes(got.ext[12:16], "big")
        va = int(s.r_va[g])
        s.r_va[g] = va + size & (1 << 64) - 1
        s.r_left[g] -= size
        message = self.queue.take(g, 1) if got.opcode in frames.IMMEDIATE else None
        whole = self._land(pe, g, got, number, (va, int(s.r_rkey[g])), late, going)
        if message is not None:
            message.maybe, message.failed = late, not whole
            self.queue.end(g, message, got, number, int(s.r_len[g]), time)

    def _send(
        self, pe: int, g: int, got: frames.Received, number: int, late: bool, going: bool, time: int
    ) -> None:
        """A SEND packet is executed: into the buffer of its receive WQE."""
        self.s.r_send[g] = True
        message = self.queue.take(g, 0) if got.opcode in frames.STARTS else self.s.rq[g].open()
        assert message is not None
        va = message.slot.addr + message.length & (1 << 64) - 1
        message.length += len(got.payload)
        message.maybe |= late
        message.failed |= not self._land(pe, g, got, number, (va, message.slot.lkey), late, going, message)
        if got.opcode in frames.ENDS:
            self.queue.end(g, message, got, number, message.length, time)

    def _land(
        self,
        pe: int,
        g: int,
        got: frames.Received,
        number: int,
        at: tuple[int, int],
        late: bool,
        going: bool,
        message: Message | None = None,
    ) -> bool:
        """The payload of a packet at (address, key), and what it means to the QP; False: a bus error."""
        s, size, (va, key) = self.s, len(got.payload), at
        last = got.opcode in frames.ENDS
        s.r_open[g] = not last
        s.r_exp[g] = number + 1
        fault = size > 0 and s.memory.beats_fault(pe, va, size, True)
        if size:
            entry = InboundWrite(g, number, va, size, got.payload, -1, late or fault, key)
            entry.message = message
            s.inbound[pe].append(entry)
            if going:
                self.regions.contest(entry)
        if fault and not late:
            self._fatal(pe, g, number, 3, NEVER)
            return False
        if got.ack_req and not late:
            s.r_req[g] = number
        if last:
            s.e_end[g, int(s.r_msn[g]) % s.e_rows] = number
            s.r_msn[g] += 1
        return not fault

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
        if op in frames.SENDS:
            self.s.q_odd[g] = True
            return self.queue.refuse(pe, g, got)
        if op in frames.WRITES:
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
        return self.regions.allows(pe, key, True, right, va, size)

    def _refuse_write(self, pe: int, g: int, got: frames.Received) -> int:
        s, op, size = self.s, got.opcode, len(got.payload)
        start, last = op in frames.STARTS, op in frames.ENDS
        if bool(s.r_open[g]) == start or (not start and s.r_send[g]) or not s.q_write[g]:
            return 1
        mtu = int(s.q_mtu[g])
        va, key = int.from_bytes(got.ext[:8], "big"), int.from_bytes(got.ext[8:12], "big")
        length = int.from_bytes(got.ext[12:16], "big")
        left = length if start else int(s.r_left[g])
        if last and (size != left or size > mtu or (not start and not size)):
            return 1
        # a First or Middle leaves a byte for the Last; a message has at most 2^31 bytes
        if not last and (size != mtu or left <= size or left > 1 << 31):
            return 1
        if op in frames.IMMEDIATE and not self.queue.room(g):
            return RNR_NAK
        if not start:
            # the key alone: right and range were judged at the First
            va, key, right = int(s.r_va[g]), int(s.r_rkey[g]), rules.Right.NONE
            verdict = int(rules.mr_check(s.mr_rows, key, True, right, [va], [size], pe)[0])
            if verdict != rules.MrVerdict.KEY:
                return 0
            return GOING if self.core.was_allowed(pe, key, True, right, va, size) else 2
        return self.regions.allows(pe, key, True, rules.Right.REM_WRITE, va, length)
