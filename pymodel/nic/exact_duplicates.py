"""Exact engine, duplicates at the responder: answered again; only READs are executed again (wire.md 5)."""

from __future__ import annotations

from collections import deque

from pymodel.nic import judge_frames as frames
from pymodel.nic.exact_core import NEVER, Core, Part
from pymodel.nic.exact_memory import Memory
from pymodel.nic.judge_entries import READ, Request
from pymodel.nic.judge_state import DUPLICATES
from pymodel.nic.params import Cnt


class Duplicates(Part):
    """Requests behind the expected PSN.

    One of a READ or atomic takes a place in the table where one is left, and is dropped where none is. A NIC
    frees a place a little before its last response is seen on the link, so then either may happen.
    """

    def __init__(self, core: Core, memory: Memory) -> None:
        super().__init__(core)
        self.memory = memory

    def write(self, g: int, late: bool) -> None:
        """A SEND or WRITE: an ACK of what is before the expected packet."""
        last = int(self.s.r_exp[g]) - 1
        self.s.r_dup.setdefault(g, deque(maxlen=DUPLICATES)).append(last)
        if not late:
            self.core.dup_due[g] = last

    def read(self, pe: int, g: int, got: frames.Received, number: int, late: bool) -> None:
        """A READ, whole or resumed, is executed again; its QP, key and range are judged already."""
        va, key = int.from_bytes(got.ext[:8], "big"), int.from_bytes(got.ext[8:12], "big")
        length = int.from_bytes(got.ext[12:16], "big")
        packets = max(1, -(-length // int(self.s.q_mtu[g])))
        self.count(pe, Cnt.READ)
        request = Request(g, number, got.opcode, va, key, length, packets, int(self.s.r_msn[g]))
        self._hold(pe, request, late)

    def atomic(self, pe: int, g: int, got: frames.Received, number: int, late: bool) -> None:
        """An atomic: its saved result, nothing where none is saved or it is not executed yet."""
        s = self.s
        answered = s.saved.get(g, {})
        held = [e.number for e in s.r_reads.get(g, ()) if e.kind != READ and not e.dup]
        if number not in sorted({*answered, *held})[-int(s.r_max_rd[g]) :]:
            self.count(pe, Cnt.ATOMIC_NO_SAVE)
            return
        va, key = int.from_bytes(got.ext[:8], "big"), int.from_bytes(got.ext[8:12], "big")
        request = Request(g, number, got.opcode, va, key, frames.OPERANDS[got.opcode][0], 1, int(s.r_msn[g]))
        request.operands = frames.operands_of(got.opcode, got.ext)
        self._hold(pe, request, late or number not in answered)

    def _hold(self, pe: int, request: Request, late: bool) -> None:
        s, g = self.s, request.gq
        held = s.r_reads.get(g, ())
        # one that may have been dropped makes it open which of two alike is answered
        request.dup = True
        request.optional = late or len(held) >= s.r_max_rd[g] or any(e.dup and e.optional for e in held)
        request.since = NEVER
        s.r_reads.setdefault(g, deque()).append(request)
        self.memory.free_requests(pe, g)

    def vanish(self, pe: int, request: Request) -> None:
        """A duplicate that may have been dropped was dropped."""
        self.core.drop_requests(request.gq, [request])
        if request.kind == READ:
            self.count(pe, Cnt.READ, -1)
            self.count(pe, Cnt.RD_TOO_MANY)
        else:
            self.core.open_counters(pe, 1, (Cnt.RD_TOO_MANY,))

    def dropped(self, pe: int) -> tuple[int, int]:
        """(READs, atomics) among the duplicates that nobody answered; at the end they were dropped."""
        queues = [queue for g, queue in self.s.r_reads.items() if self.s.q_pe[g] == pe]
        left = [e.kind for queue in queues for e in queue if e.dup and e.optional and not e.sent]
        return left.count(READ), len(left) - left.count(READ)
