"""What the parts of the exact engine share: state, findings, counters, golden bytes, a QP's way to ERR."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pymodel.formats.arrays import U8
from pymodel.nic import rules
from pymodel.nic.judge_entries import InboundWrite, Request
from pymodel.nic.judge_records import Check, Finding
from pymodel.nic.judge_state import ERR, READ, RTS, State
from pymodel.nic.params import AsyncKind, Cnt

if TYPE_CHECKING:
    from pymodel.nic.exact_retry import Recovery
    from pymodel.nic.judge_frames import Received

MASK24: Final = 0xFFFFFF
#: cycles in which a change to ERR that came from elsewhere may still race with a packet on its way in
SETTLE: Final = 256
NEVER: Final = 1 << 62
#: write response of a burst that leaves memory as it was
SLVERR: Final = 2
#: counters of which a packet moves one or another, where it is open whether its QP is in RTS
PACKET_COUNTERS: Final = (
    Cnt.DROP_QP, Cnt.RX_PACKET, Cnt.DROP_IP_SRC, Cnt.DROP_RESPONSE, Cnt.DUPLICATE, Cnt.PSN_AHEAD, Cnt.READ,
    Cnt.DROP_SYNDROME, Cnt.RD_TOO_MANY,
)  # fmt: skip

#: of these and of the plain drops each received frame moves exactly one (nic.md 7)
FRAME_COUNTERS: Final = tuple(n for n in Cnt if Cnt.RX_PACKET <= n <= Cnt.PSN_AHEAD)
#: cycles that an ACK or NAK may wait in the receive path, for memory that is slow to take what is before it
ACK_WAIT: Final = 8192
#: packets that the receive path of a NIC holds at most
RECEIVE_PATH: Final = 32
#: in place of a NAK code: an RNR NAK. Like code 0 it does not end the QP
RNR_NAK: Final = 4


def ends(code: int) -> bool:
    """Whether a NAK of this code sends its QP to ERR."""
    return 0 < code < RNR_NAK


def signed24(value: int) -> int:
    """Difference of two PSNs as -2^23..2^23-1."""
    return (value + 0x800000 & MASK24) - 0x800000


def strobes(r: Any) -> tuple[int, int, bool]:
    """(address of the first strobed byte, bytes, whether strobe and count fit one contiguous range)."""
    strobe, count, beats = int(r["aux0"]), int(r["aux1"]), int(r["len"])
    lane = (strobe & -strobe).bit_length() - 1 if strobe else 0
    in_first = min(64 - lane, count)
    good = strobe == ((1 << in_first) - 1) << lane and count > 0 and beats == (lane + count + 63) // 64
    return (int(r["addr"]) & ~63) + lane, count, good


class Core:
    """State of the judge and the record that is being judged."""

    def __init__(self, state: State, report: Callable[[Finding], None], time_origin: int) -> None:
        self.s = state
        self.report = report
        #: record time at which the NICs' time stamp is 0
        self.time_origin = time_origin
        #: (PE, counter) whose value a race leaves open
        self.loose: set[tuple[int, int]] = set()
        #: PE -> packets that may have moved another of PACKET_COUNTERS than the one that was counted
        self.open_packets: Counter[int] = Counter()
        #: g -> (WQE, cycle, PSN) of packets whose WQE's fetch has not been recorded yet
        self.early: dict[int, list[tuple[int, int, int]]] = {}
        #: QPs that may or may not be in ERR by now: a NAK on its way will tell
        self.doubt: set[int] = set()
        #: g -> (packet, code) of the NAK that a QP in doubt sends if it is still in RTS
        self.maybe: dict[int, tuple[int, int]] = {}
        #: g -> (packet, code) of the NAK that a full table made due
        self.full: dict[int, tuple[int, int]] = {}
        #: QPs whose responder sent a NAK that ends it: nothing leaves behind it
        self.silent: set[int] = set()
        #: QPs of which a READ may have met its bus error
        self.failed: set[int] = set()
        #: READs whose QP failed: gathers that were under way; with the cycle until which they may come
        self.gone: deque[tuple[Request, int]] = deque(maxlen=64)
        #: (PE, MR index) -> row before, of regions whose invalidation is not answered: accesses are judged
        #: under the old or the new entry
        self.going: dict[tuple[int, int], Any] = {}
        #: (PE, MR index) of regions whose invalidation was answered -> cycle of its command
        self.went: dict[tuple[int, int], int] = {}
        #: g -> loss recovery of a requester that has met a fault
        self.recovery: dict[int, Recovery] = {}
        #: PE -> passes that may have been counted though nothing was sent, or those that were not
        self.retry_open: Counter[int] = Counter()
        #: CQs to which room came so late that they may be in overrun: their event or next CQE tells
        self.overdue: set[int] = set()
        #: g -> (cycle, counter of the NAK or -1) of ACKs and NAKs that came while the receive path waited
        self.behind: dict[int, deque[tuple[int, int]]] = {}
        #: g -> packet that an ACK must name since a duplicate WRITE came
        self.dup_due: dict[int, int] = {}
        #: g -> packets, with the cycles of their arrival and their counters, from one on that a NIC without
        #: receive WQE refuses, while its RNR NAK has not left: a doorbell by then may let it take them
        self.waiting: dict[int, list[tuple[Received, int, Cnt]]] = {}
        #: takes the waiting packets of a QP since the NIC shows that it did; False: it cannot have
        self.accept: Callable[[int], bool] = lambda g: False
        self.time = 0
        self.side: U8 = np.zeros(1, np.uint8)

    def bytes_of(self, r: Any, length: int) -> bytes:
        """Bytes that belong to a record."""
        at = int(r["off"]) % self.side.size
        return self.side[at : at + length].tobytes()

    def find(
        self,
        check: Check,
        pe: int,
        field: str,
        expected: str,
        got: str,
        g: int = -1,
        wqe: int = -1,
        psn: int = -1,
    ) -> None:
        """Report a finding at the record that is being judged."""
        qpn = int(self.s.q_qpn[g]) if g >= 0 else -1
        self.report(Finding(check, pe, qpn, wqe, psn, self.time, field, expected, got, self.s.position))

    def count(self, pe: int, counter: int, by: int = 1) -> None:
        """The NIC must have counted."""
        self.s.counters[pe, counter] += by

    def sq_psn(self, g: int, number: int) -> int:
        """PSN of a packet of the requester."""
        return number + int(self.s.q_sq_psn[g]) & MASK24

    def rq_psn(self, g: int, number: int) -> int:
        """PSN of a packet at the responder."""
        return number + int(self.s.q_rq_psn[g]) & MASK24

    def open_counters(self, pe: int, packets: int, counters: Iterable[int] = PACKET_COUNTERS) -> None:
        """How so many packets are counted is open."""
        self.loose |= {(pe, int(n)) for n in counters}
        self.open_packets[pe] += packets

    # ------------------------------------------------------------------ golden memory
    def put(self, pe: int, at: int, data: bytes) -> None:
        """Write golden bytes at a flat offset; what they replace is kept while a READ of the PE is held."""
        memory, size = self.s.memory, len(data)
        if any(self.s.q_pe[g] == pe and any(e.kind == READ for e in q) for g, q in self.s.r_reads.items()):
            self.s.overwritten[pe].append((self.s.position, at, memory.view[at : at + size].tobytes()))
        memory.view[at : at + size] = data
        memory.touch(at, size)

    def deposit(self, pe: int, va: int, data: bytes) -> None:
        """Write golden bytes at an address, as far as it is mapped."""
        for addr, at, length in self.s.memory.clip(pe, va, len(data)):
            self.put(pe, at, data[addr - va : addr - va + length])

    def look(self, pe: int, va: int, size: int) -> bytes:
        """Golden bytes; those that are unmapped inside a mapped beat read as 0."""
        at = self.s.memory.flat(pe, va, size) if size else 0
        if at >= 0:
            return self.s.memory.view[at : at + size].tobytes()
        out = bytearray(size)
        for addr, flat, length in self.s.memory.clip(pe, va, size):
            out[addr - va : addr - va + length] = self.s.memory.view[flat : flat + length]
        return bytes(out)

    def forget(self, pe: int) -> None:
        """Drop the overwritten bytes that no READ of the PE can have read any more."""
        log, queues = self.s.overwritten[pe], self.s.r_reads.items()
        mine = [e for g, queue in queues if self.s.q_pe[g] == pe for e in queue]
        first = min((e.position for e in mine if e.kind == READ), default=NEVER)
        while log and log[0][0] <= first:
            log.popleft()

    # ------------------------------------------------------------------ ERR
    def to_err(self, g: int, since: int) -> None:
        """A change to ERR that no WQE of the QP caused; since: cycle of its cause."""
        s = self.s
        self.doubt.discard(g)
        if s.q_state[g] == RTS:
            self._retire(g)
            s.q_state[g] = ERR
            s.q_err_time[g] = since
            s.q_err_race[g] = True
            s.q_odd[g] = True
            self.stop_results(g)
            self.stop_inbound(g, since == -SETTLE)

    def _retire(self, g: int) -> None:
        """Silent WQEs of a QP that goes to ERR: complete, but for those whose ACK may not have been seen.

        An ACK may wait in the receive path; its WQEs flush, or have ended well.
        """
        s, pe, c, done = self.s, int(self.s.q_pe[g]), int(self.s.q_cq[g]), self.s.retired(g)
        fresh = self.time - int(s.q_ack_time[g]) < SETTLE or self.path_holds(pe)
        if done == s.q_ret[g] or not fresh:
            s.q_ret[g] = done
        elif c >= 0 and s.c_dead[c]:
            # discarded or not: no CQE tells
            s.q_ret[g] = done
            self.loose.add((pe, int(Cnt.CQE_DISCARD)))

    def path_holds(self, pe: int) -> bool:
        """Whether packets may wait in the receive path of a PE: for memory, or for an atomic before them."""
        s = self.s
        if any(not e.done for queue in (s.inbound[pe], s.results[pe]) for e in queue):
            return True
        held = (e for q, queue in s.r_reads.items() if s.q_pe[q] == pe for e in queue)
        return any(e.kind != READ and not e.dup for e in held)

    def stop_results(self, g: int) -> None:
        """Results of a QP in ERR: target bytes of flushed WQEs may be old or new (nic.md 6)."""
        for entry in self.s.results[int(self.s.q_pe[g])]:
            if entry.gq == g:
                entry.optional = True

    def ack_came(self, pe: int, g: int, counter: int) -> None:
        """An ACK, or a NAK with its counter, was taken as heard; it may wait in the receive path."""
        if self.path_holds(pe):
            self.behind.setdefault(g, deque(maxlen=RECEIVE_PATH)).append((self.time, counter))

    def stop_inbound(self, g: int, own: bool = False) -> None:
        """Packets of a QP that leaves RTS may wait in the receive path: they are executed or dropped.

        own: the receive path itself ends it, so that all before is executed.
        """
        s, pe = self.s, int(self.s.q_pe[g])
        late = [n for time, n in self.behind.pop(g, ()) if self.time - time <= ACK_WAIT]
        if late:
            # the requester drops them, or they meet a QP in ERR
            self.open_counters(pe, len(late), (Cnt.DROP_RESPONSE, Cnt.DROP_QP, Cnt.RX_PACKET))
            self.loose |= {(pe, n) for n in late if n >= 0}
        held = s.r_reads.get(g, ())
        if g in self.waiting and g in s.r_nak:
            # dropped, refused or taken
            s.r_nak_before.setdefault(g, set()).add(s.r_nak.pop(g))
        if g in s.rq:
            s.rq[g].ended = self.time
        if g in s.rq and not own:
            for message in s.rq[g].messages:
                message.maybe |= self.time - message.time < SETTLE or self.path_holds(pe)
        if not self.path_holds(pe) and all(e.sent for e in held):
            return
        self.open_counters(pe, RECEIVE_PATH)
        for entry in s.inbound[pe]:
            if entry.gq == g and not entry.done:
                entry.optional = True
        for request in held:
            if not request.sent:
                request.optional = True

    def cq_overrun(self, c: int) -> None:
        """The CQ takes no CQE until programmed again; its QPs go to ERR (nic.md 6)."""
        self.s.c_dead[c] = True
        for g in np.flatnonzero((self.s.q_cq == c) | (self.s.q_rcq == c)).tolist():
            self.to_err(g, self.time)

    def nak_due(self, g: int, number: int, code: int) -> None:
        """A NAK becomes due; a NAK 0 or RNR NAK that was due before may be on its way out."""
        s = self.s
        due = s.r_nak.get(g)
        if due and not ends(due[1]):
            s.r_nak_before.setdefault(g, set()).add(due)
        s.r_nak[g] = (number, code)

    # ------------------------------------------------------------------ the responder's table
    def tidy(self, g: int) -> None:
        """Requests of a QP left the table."""
        if not self.s.r_reads.get(g):
            self.s.r_reads.pop(g, None)
            self.doubt.discard(g)
        self.forget(int(self.s.q_pe[g]))

    def drop_requests(self, g: int, requests: list[Request]) -> None:
        """Held READs and atomics that are not served any more."""
        s, pe = self.s, int(self.s.q_pe[g])
        for request in requests:
            s.r_reads[g].remove(request)
            if request.kind == READ:
                self.gone.append((request, self.time + SETTLE))
            for run in s.runs[pe]:
                if request in run.of:
                    run.of.remove(request)
        self.tidy(g)

    def roll_back(self, request: Request) -> None:
        """The table had no place for a contested request after all: nothing from it on was executed."""
        s, g, pe = self.s, request.gq, int(self.s.q_pe[request.gq])
        behind = int(s.r_exp[g]) - request.number + 2 * RECEIVE_PATH  # duplicates and packets ahead, too
        s.r_exp[g], s.r_msn[g], s.r_open[g] = request.number, request.msn - 1, False
        s.r_req[g] = min(int(s.r_req[g]), int(s.r_sent[g]))
        for entry in [e for e in s.inbound[pe] if e.gq == g and e.cum > request.number]:
            s.inbound[pe].remove(entry)
        if request.kind == READ:
            self.count(pe, Cnt.READ, -1)
        self.count(pe, Cnt.RD_TOO_MANY)
        others = (Cnt.RX_PACKET, Cnt.DROP_QP, Cnt.READ, Cnt.DUPLICATE, Cnt.PSN_AHEAD)
        self.open_counters(pe, behind, others)
        self.drop_requests(g, [e for e in s.r_reads[g] if e.number >= request.number])
        later, event = s.r_nak.pop(g, (-1, 0)), (AsyncKind.QP_ERR, int(s.q_qpn[g]))
        if later[0] > request.number and ends(later[1]):
            # refused for a table that was said to be full of what was not there
            self.count(pe, Cnt.RD_TOO_MANY, -int(later == self.full.get(g)))
        else:
            s.asyncs[pe].append(event)
        self.nak_due(g, request.number, 1)
        self.to_err(g, self.time)

    # ------------------------------------------------------------------ regions
    def was_allowed(self, pe: int, key: int, remote: bool, right: int, va: int, size: int) -> bool:
        """Whether a region whose invalidation is not answered yet allowed an access before the command."""
        row = self.going.get((pe, key >> 8))
        if row is None:
            return False
        verdict = rules.mr_check(row, key & 0xFF, remote, right, [va], [size])
        return int(verdict[0]) == rules.MrVerdict.OK

    def is_gone(self, pe: int, key: int) -> bool:
        """Whether no access under a key may be left: the invalidation of its region was answered."""
        return (pe, key >> 8) in self.went and (pe, key >> 8) not in self.going

    # ------------------------------------------------------------------ completion
    def completing(self, g: int) -> int:
        """First WQE that cannot have completed yet inside the NIC."""
        s = self.s
        idx, pi = int(s.q_ret[g]), int(s.q_pi[g])
        if s.q_state[g] == ERR:
            return pi
        while idx < pi:
            row = s.row(g, idx)
            if not s.w_err[row] and not s.complete(row, int(s.q_ack[g])):
                break
            idx += 1
        return idx

    def receives(self, g: int) -> int:
        """First receive WQE that cannot have completed yet inside the NIC."""
        queue = self.s.rq[g]
        return queue.pi if self.s.q_state[g] == ERR else queue.done + queue.unwritten()

    def receivers(self, c: int) -> list[int]:
        """QPs with a receive queue that completes to a CQ."""
        return [g for g in self.s.rq if self.s.q_rcq[g] == c]

    def watch_room(self, c: int, now: int) -> None:
        """With cq_wait: note since when a completion waits for room in a CQ (nic.md 6)."""
        s = self.s
        if not s.cq_wait[int(s.c_pe[c])] or s.c_ignore[c] or s.c_since[c] >= 0:
            return
        full = s.c_prod[c] - s.c_ci[c] >= s.c_depth[c]
        waits = full and any(self.completing(q) > s.q_ret[q] for q in np.flatnonzero(s.q_cq == c).tolist())
        if waits or (full and any(self.landed(q) for q in self.receivers(c))):
            s.c_since[c] = now

    def landed(self, g: int) -> bool:
        """Whether the oldest receive WQE without CQE can have it: its message, and all before, in memory."""
        s, queue = self.s, self.s.rq[g]
        if s.q_state[g] == ERR and queue.pi > queue.done:
            return True
        return (
            bool(queue.messages)
            and queue.messages[0].whole
            and self.missing(g, queue.messages[0].last) is None
        )

    def missing(self, g: int, number: int) -> InboundWrite | None:
        """The first payload up to a packet of a responder that is not written and answered."""
        inbound = self.s.inbound[int(self.s.q_pe[g])]
        return next((e for e in inbound if e.gq == g and e.cum <= number and not e.optional), None)

    def fail(self, g: int, idx: int, code: int, nak: bool = False) -> None:
        """A WQE fails on the way: its CQE must carry the code. A NAK wins over another failure."""
        s = self.s
        row = s.row(g, idx)
        if not s.w_err[row] or nak:
            s.w_err[row] = code
            s.w_local[row] = False
        s.q_odd[g] = True
        if s.q_bad[g] < 0 or s.q_bad[g] > idx:
            s.q_bad[g] = idx


class Part:
    """One data path of the exact engine."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.s = core.s
        self.find = core.find
        self.count = core.count
