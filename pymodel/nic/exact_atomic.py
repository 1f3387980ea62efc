"""Exact engine, atomic unit: ID-2 accesses against the atomics that the responders hold (nic.md 5).

The order of ID-2 reads is the execution order. A read names an address, not a request: where several QPs
wait for one word, the value written, and in the end the old value in the ATOMIC ACK, tell which one it was.
So each execution keeps the requests it can be of, and at all times each must find a request of its own.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from pymodel.nic import rules
from pymodel.nic.exact_core import NEVER, SLVERR, Core, Part, strobes
from pymodel.nic.exact_regions import Regions
from pymodel.nic.judge_entries import READ, Execution, InboundWrite, Request
from pymodel.nic.judge_records import Check
from pymodel.nic.params import AsyncKind, Cnt

_WORD = 8


def effect(request: Request, old: int) -> int | None:
    """What an atomic writes where it finds `old`; None: a failed compare writes nothing (device.md 1.5)."""
    new, written = rules.atomic(request.op, old & (1 << 8 * request.length) - 1, *request.operands)
    return int(new) if written else None


class Atomics(Part):
    """The atomic unit of every PE."""

    def __init__(self, core: Core, regions: Regions) -> None:
        super().__init__(core)
        self.regions = regions
        #: (cycle of the response, address, bytes) of the last inbound bursts of each PE
        self.bursts_answered: list[deque[tuple[int, int, int]]] = [deque(maxlen=64) for _ in self.s.pes]

    # ------------------------------------------------------------------ memory port
    def read(self, pe: int, addr: int, beats: int, asked: int, bad: bool) -> None:
        """An ID-2 read: the next execution."""
        last = self.s.last_run[pe]
        if last is not None:
            self._settle(pe, last)
            if last.done < 0 or asked <= last.done:
                self.find(Check.ATOMIC_OVERLAP, pe, f"read of {addr:#x}",
                          f"after the end of the atomic on {last.addr:#x}", f"in cycle {asked}")  # fmt: skip
        old = int.from_bytes(self.core.look(pe, addr, _WORD), "little")
        run = Execution(addr, old, asked, self.core.time)
        self.s.last_run[pe] = run
        early: Request | None = None
        gone: Request | None = None
        for request in self._heads(pe):
            if request.va != addr:
                continue
            if self.core.is_gone(pe, request.rkey):
                gone = request
            elif request.since < asked:
                run.of.append(request)
            else:
                early = request
        if beats != 1:
            self.find(Check.ATOMIC_PLACE, pe, f"read of {addr:#x}", "one narrow beat", f"{beats} beats")
        if bad:
            self.count(pe, Cnt.BUS_ATOMIC)
            run.fault, run.done = True, self.core.time
        if not run.of:
            if gone is not None:
                self.regions.read_after(pe, f"read of {addr:#x} by the atomic unit", gone.gq)
                run.of.append(gone)
            elif early is not None:
                what = "after its arrival and the write responses of the WRITEs before it"
                self.find(Check.ATOMIC_EARLY, pe, f"read of {addr:#x}", what, f"in cycle {asked}", early.gq,
                          psn=self.core.rq_psn(early.gq, early.number))  # fmt: skip
                run.of.append(early)
            else:
                due = ", ".join(f"{r.va:#x}" for r in self._heads(pe)[:4]) or "none is due"
                self.find(Check.ATOMIC_UNEXPECTED, pe, "read of the atomic unit", due, f"{addr:#x}")
                return
        faults = {self.s.memory.narrow_fault(pe, addr, r.length, False) for r in run.of}
        if bad not in faults:
            self.find(Check.AXI_RESP, pe, f"read of {addr:#x}", f"fault {not bad}", f"fault {bad}")
        self._lock_began(pe, run)
        self.s.runs[pe].append(run)
        self._once(pe, run)
        if bad:
            self._failed(pe, run)

    def write(self, r: Any) -> None:
        """An ID-2 write: the new value, exactly at the word."""
        pe = int(r["pe"])
        run = self.s.last_run[pe]
        start, count, good = strobes(r)
        data = int.from_bytes(self.core.bytes_of(r, 64)[start & 63 :][:count], "little")
        if run is None or run.done >= 0 or run.new is not None:
            self.find(Check.ATOMIC_WRITE, pe, f"write to {start:#x}", "an ID-2 read before it", f"{data:#x}")
            self.s.last_run[pe] = run = Execution(start, 0, 0, self.core.time)
        elif not good or start != run.addr or int(r["len"]) != 1 or count not in {e.length for e in run.of}:
            sizes = " or ".join(str(n) for n in sorted({e.length for e in run.of}))
            self.find(Check.ATOMIC_PLACE, pe, "write of the atomic unit", f"{sizes} bytes at {run.addr:#x}",
                      f"{count} bytes at {start:#x}, {int(r['len'])} beats")  # fmt: skip
        else:
            self._value(pe, run, data, count)
        run.addr, run.new, run.size = start, data, count

    def _value(self, pe: int, run: Execution, data: int, count: int) -> None:
        """Which of the requests write this value; none: a finding."""
        results = [(request, effect(request, run.old)) for request in run.of]
        fit = [request for request, new in results if new == data and request.length == count]
        if fit:
            run.of = fit
            self._once(pe, run)
            return
        first = run.of[0]
        values = sorted({new for _, new in results if new is not None})
        if not values:
            self.find(Check.ATOMIC_COMPARE, pe, f"write to {run.addr:#x}",
                      f"none, the compare with {run.old & (1 << 8 * count) - 1:#x} fails", f"{data:#x}",
                      first.gq, psn=self.core.rq_psn(first.gq, first.number))  # fmt: skip
        else:
            self.find(Check.ATOMIC_NEW, pe, f"value written to {run.addr:#x}",
                      " or ".join(f"{v:#x}" for v in values), f"{data:#x}", first.gq,
                      psn=self.core.rq_psn(first.gq, first.number))  # fmt: skip

    def commit(self, pe: int, response: int) -> None:
        """The write became visible."""
        run = self.s.last_run[pe]
        if run is not None and run.new is not None and not run.visible:
            run.visible = True
            if response != SLVERR:
                self.core.deposit(pe, run.addr, run.new.to_bytes(run.size, "little"))

    def response(self, pe: int, bad: bool) -> None:
        """The write response: the atomic is over."""
        run = self.s.last_run[pe]
        if run is None or run.new is None or run.done >= 0:
            self.find(Check.WRITE_ORDER, pe, "write response of id 2", "a write before it", "none")
            return
        self.commit(pe, SLVERR if bad else 0)
        run.done = self.core.time
        if bad != self.s.memory.narrow_fault(pe, run.addr, run.size, True):
            self.find(Check.AXI_RESP, pe, f"write to {run.addr:#x}", f"fault {not bad}", f"fault {bad}")
        if bad:
            self.count(pe, Cnt.BUS_ATOMIC)
            run.fault = True
            self._failed(pe, run)

    # ------------------------------------------------------------------ the lock
    def locked(self, pe: int, start: int, count: int) -> None:
        """Inbound payload is written: not into the word of the atomic under way."""
        run = self.s.last_run[pe]
        if run is None or run.done >= 0:
            return
        if run.new is None and any(effect(e, run.old) is None for e in run.of):
            return  # it may be over: nothing was to be written
        word = run.addr & ~(_WORD - 1)
        if start < word + _WORD and word < start + count:
            self.find(Check.ATOMIC_LOCK, pe, f"inbound write to {start:#x}, {count} bytes",
                      f"after the atomic on {run.addr:#x}", "while it is under way")  # fmt: skip

    def overtaken(self, pe: int, entry: InboundWrite, start: int, count: int) -> None:
        """Inbound payload is written: after the atomics before it on its QP (nic.md 5, PSN order)."""
        if entry.gq in self.core.doubt:
            return  # its key went: it may have failed
        for request in self.s.r_reads.get(entry.gq, ()):
            # of a QP that failed neither need happen
            if request.dup:
                continue
            if request.number >= entry.cum or entry.optional or request.optional:
                break
            if request.kind != READ and not request.dup and not self.may_be_over(pe, request):
                self.find(Check.ATOMIC_OVERTAKEN, pe, f"inbound write to {start:#x}, {count} bytes",
                          f"after the atomic on {request.va:#x} before it", "before its execution", entry.gq,
                          psn=self.core.rq_psn(request.gq, request.number))  # fmt: skip
                return

    def answered(self, pe: int, start: int, count: int) -> None:
        """An inbound burst has its response."""
        self.bursts_answered[pe].append((self.core.time, start, count))

    def _lock_began(self, pe: int, run: Execution) -> None:
        """No inbound burst on the word was open when the read was asked for."""
        word = run.addr & ~(_WORD - 1)
        open_now = [(e.va + at, n) for e in self.s.inbound[pe] for at, n in e.open]
        late = [(start, n) for cycle, start, n in self.bursts_answered[pe] if cycle >= run.asked]
        for start, n in open_now + late:
            if start < word + _WORD and word < start + n:
                self.find(Check.ATOMIC_LOCK, pe, f"read of {run.addr:#x}",
                          f"after the write response of {start:#x}, {n} bytes",
                          f"in cycle {run.asked}")  # fmt: skip

    # ------------------------------------------------------------------ requests
    def _heads(self, pe: int) -> list[Request]:
        """Atomics that may be the oldest of their QP by now; READs before them hold none up (nic.md 5)."""
        out: list[Request] = []
        for g, queue in sorted(self.s.r_reads.items()):
            if self.s.q_pe[g] != pe:
                continue
            for request in queue:
                if request.kind == READ or request.dup:
                    continue
                out.append(request)
                if not self.may_be_over(pe, request):
                    break
        return out

    def may_be_over(self, pe: int, request: Request) -> bool:
        """Whether the last response of a request may have been handed to the framer."""
        if request.kind == READ:
            return (request.gathered or not request.length) and request.since < NEVER
        return any(request in run.of and (run.done >= 0 or run.new is None) for run in self.s.runs[pe])

    def _settle(self, pe: int, run: Execution) -> None:
        """An execution whose time to write is over: without a write its compare must have failed."""
        if run.new is not None or run.done >= 0:
            return
        run.done = run.read
        failed = [request for request in run.of if effect(request, run.old) is None]
        if not run.of:
            return
        if failed:
            run.of = failed
            self._once(pe, run)
            return
        first = run.of[0]
        self.find(Check.ATOMIC_MISSING, pe, f"atomic on {run.addr:#x}",
                  f"a write of {effect(first, run.old):#x}", "none", first.gq,
                  psn=self.core.rq_psn(first.gq, first.number))  # fmt: skip

    def _once(self, pe: int, run: Execution) -> None:
        """Each execution on the word that no answer named needs a request of its own."""
        runs = [other for other in self.s.runs[pe] if other.addr == run.addr and other.of]
        owner: dict[int, Execution] = {}

        def place(one: Execution, tried: set[int]) -> bool:
            for request in one.of:
                key = id(request)
                if key in tried:
                    continue
                tried.add(key)
                if key not in owner or place(owner[key], tried):
                    owner[key] = one
                    return True
            return False

        if all(place(one, set()) for one in runs):
            return
        first = run.of[0]
        self.find(Check.ATOMIC_TWICE, pe, f"atomic on {run.addr:#x}", "one execution per request",
                  f"{len(runs)} for {len({id(e) for one in runs for e in one.of})} requests", first.gq,
                  psn=self.core.rq_psn(first.gq, first.number))  # fmt: skip
        run.of = []
        self.s.runs[pe].remove(run)

    def _failed(self, pe: int, run: Execution) -> None:
        """A bus error: the request is answered by NAK 3 and its QP goes to ERR."""
        s = self.s
        known = [e for e in run.of if s.r_nak.get(e.gq) == (e.number, 3) and s.q_err_time[e.gq] == NEVER]
        for request in known[:1] or (run.of if len(run.of) == 1 else []):
            # inbound payload that waits for it is dropped
            for entry in s.inbound[pe]:
                if entry.gq == request.gq and entry.cum > request.number:
                    entry.optional = True
        if known:
            s.q_err_time[known[0].gq] = self.core.time
        elif len(run.of) == 1:
            request = run.of[0]
            self.core.nak_due(request.gq, request.number, 3)
            s.asyncs[pe].append((AsyncKind.QP_ERR, int(s.q_qpn[request.gq])))
            self.core.to_err(request.gq, self.core.time)
        else:
            self.core.doubt |= {e.gq for e in run.of}

    # ------------------------------------------------------------------ answers
    def claim(self, pe: int, request: Request, value: int | None) -> Execution | None:
        """The execution that an ATOMIC ACK (its old value) or a NAK 3 (None) of a request speaks of."""
        mine = [run for run in self.s.runs[pe] if request in run.of and run.fault == (value is None)]
        mask = (1 << 8 * request.length) - 1

        def fits(run: Execution) -> bool:
            return run.done >= 0 and (value is None or run.old & mask == value)

        # of equal ones the earliest: whoever is answered later has been there longer
        run = next((run for run in mine if fits(run)), None)
        last = self.s.last_run[pe]
        if run is None and last is not None and last in mine and last.done < 0 and last.new is None:
            self._settle(pe, last)
            run = last if request in last.of else None
        run = run or next((run for run in mine if run.done >= 0 and request in run.of), None)
        run = run or (mine[0] if mine else None)
        if run is None:
            return None
        self.s.runs[pe].remove(run)
        for other in self.s.runs[pe]:
            if request in other.of:
                other.of.remove(request)
        for later in self.s.r_reads[request.gq]:
            if later is not request and later.kind != READ and run.done >= 0:
                later.since = max(later.since, run.done)
                for other in self.s.runs[pe]:
                    if later in other.of and other.asked <= run.done:
                        other.of.remove(later)
        return run

    def unanswered(self, pe: int) -> int:
        """Executions whose answer never left, as a NAK before it ended the QP: nobody counted them."""
        last = self.s.last_run[pe]
        if last is not None:
            self._settle(pe, last)
        return sum(run.done >= 0 and not run.fault for run in self.s.runs[pe])

    def finish(self) -> None:
        """The end of the test: executions whose time to write is over."""
        for pe, run in enumerate(self.s.last_run):
            if run is not None:
                self._settle(pe, run)
