"""Batch engine, executions of atomics one event at a time: a loop over plain integers (nic.md 5).

It keeps the order of the exact engine: a read names an address, not a request, and each execution keeps the
requests that it can be of until the value written, and then the old value in an ATOMIC ACK, tell which one it
was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Any, Final

from pymodel.nic import judge_frames as frames
from pymodel.nic.batch_held import Table
from pymodel.nic.batch_rows import Odd, need
from pymodel.nic.batch_view import View
from pymodel.nic.judge_entries import Execution, Request

_M32: Final = 0xFFFFFFFF
_M64: Final = (1 << 64) - 1
_LINE: Final = ~63 & _M64
#: kinds of events
ARRIVAL, ASK, WRITE, COMMIT, RESPONSE, ANSWER, PATCH, BURST, ANSWERED, PASS = range(10)


def effect(op: int, old: int, operands: tuple[int, int, int, int]) -> int | None:
    """What an atomic writes where it finds `old`; None: a failed compare writes nothing (device.md 1.5)."""
    value, third, swap_mask, compare_mask = operands
    width = _M32 if op in (frames.MCAS32, frames.MFA32) else _M64
    old &= width
    if op == frames.FETCH_ADD:
        return old + value & width
    if op == frames.CMP_SWAP:
        return value if old == third else None
    if op in (frames.MFA64, frames.MFA32):
        # the top bit of each field is added without carry
        low = ~third & width
        return ((old & low) + (value & low) ^ (old ^ value) & third) & width
    if (old ^ third) & compare_mask:
        return None
    return old & ~swap_mask & width | value & swap_mask


class Unit:
    """What the replay knows of one PE's atomic unit."""

    def __init__(self, runs: deque[Execution], last: Execution | None) -> None:
        copies = {id(run): _copy(run) for run in (*runs, *([last] if last else []))}
        self.runs = deque(copies[id(run)] for run in runs)
        self.last = copies[id(last)] if last else None
        #: inbound bursts on words of atomics: (address, bytes) of the open ones; the others with the cycle of
        #: their response
        self.open: dict[int, tuple[int, int]] = {}
        self.answered: list[tuple[int, int, int]] = []
        #: atomics without answer: how many by address and QP
        self.waiting: dict[int, dict[int, int]] = {}
        self.answers = 0

    def settle(self) -> None:
        """An execution whose time to write is over: without a write its compare must have failed."""
        run = self.last
        if run is None or run.new is not None or run.done >= 0:
            return
        run.done = run.read
        run.of = [e for e in run.of if effect(e.op, run.old, e.operands) is None]
        need(bool(run.of), "atomic without its write")

    def each_its_own(self) -> None:
        """Each execution that no answer named finds a request of its own."""
        owner: dict[int, Execution] = {}

        def place(run: Execution, tried: set[int]) -> bool:
            for request in run.of:
                key = id(request)
                if key not in tried:
                    tried.add(key)
                    if key not in owner or place(owner[key], tried):
                        owner[key] = run
                        return True
            return False

        need(all(place(run, set()) for run in self.runs), "atomic executed twice")


def _copy(run: Execution) -> Execution:
    out = Execution(run.addr, run.old, run.asked, run.read)
    for name in ("new", "size", "visible", "done", "fault"):
        setattr(out, name, getattr(run, name))
    out.of = list(run.of)
    return out


class Replay:
    """The executions of a batch."""

    def __init__(self, view: View, table: Table, words: list[int], since: int) -> None:
        """words: flat offsets of the 8-byte words of atomics, ascending. since: cycle of the first read."""
        s = view.s
        self.memory = s.memory
        self._words = words
        self.units = [Unit(runs, last) for runs, last in zip(s.runs, s.last_run, strict=True)]
        for unit, answered in zip(self.units, view.exact.atomics.bursts_answered, strict=True):
            unit.answered = [burst for burst in answered if burst[0] >= since]
            # the table's requests stand for those of the state
            for run in {id(x): x for x in (*unit.runs, *([unit.last] if unit.last else []))}.values():
                run.of = [table.copies.get(id(e), e) for e in run.of]
        #: bytes of the words as they are now
        self._now: dict[int, bytearray] = {}
        #: visible writes: (PE, flat offset, bytes, size, position)
        self.shown: list[tuple[int, int, bytes, int, int]] = []
        #: where an atomic may execute
        ready = zip(table.objects, table.ready.tolist(), strict=True)
        self._ready = {id(e): position for e, position in ready if e is not None}
        #: atomics without answer by QP, in order of arrival
        self.held: dict[int, list[Request]] = {}

    def step(self, pos: int, kind: int, pe: int, what: Any) -> None:
        """One event."""
        unit = self.units[pe]
        if kind == ARRIVAL:
            waiting = unit.waiting.setdefault(what.va, {})
            waiting[what.gq] = waiting.get(what.gq, 0) + 1
            self.held.setdefault(what.gq, []).append(what)
        elif kind == ASK:
            self._read(unit, pe, pos, *what)
        elif kind == WRITE:
            self._write(unit, *what)
        elif kind == COMMIT:
            self._commit(unit, pe, pos)
        elif kind == RESPONSE:
            run = unit.last
            if run is None or not run.visible or run.done >= 0:
                raise Odd("response without an atomic")
            run.done = what
        elif kind == ANSWER:
            self._answer(unit, *what)
        elif kind == PATCH:
            self._patch(*what)
        elif kind == BURST:
            self._burst(unit, pos, *what)
        elif kind == PASS:
            need(self._may_be_over(unit, what), "inbound write before an atomic of its QP")
        else:
            i, time = what
            unit.answered.append((time, *unit.open.pop(i)))

    # ------------------------------------------------------------------ memory
    def _word(self, flat: int) -> bytearray:
        word = self._now.get(flat)
        if word is None:
            word = self._now[flat] = bytearray(self.memory.view[flat : flat + 8])
        return word

    def _patch(self, flat: int, data: bytes) -> None:
        """Bytes become visible in the words that they touch."""
        stop = flat + len(data)
        for word in self._words[bisect_left(self._words, flat - 7) :]:
            if word >= stop:
                break
            low, high = max(word, flat), min(word + 8, stop)
            self._word(word)[low - word : high - word] = data[low - flat : high - flat]

    def _old(self, pe: int, addr: int, flat: int) -> int:
        """Eight bytes from an address on, as far as they are mapped."""
        word = self._word(flat & ~7)
        if not flat & 7:
            return int.from_bytes(word, "little")
        old = int.from_bytes(word[4:], "little")
        if self.memory.flat(pe, addr, 8) >= 0:
            behind = flat + 4
            known = self._now.get(behind)
            view = self.memory.view[behind : behind + 4] if known is None else known[:4]
            old |= int.from_bytes(view, "little") << 32
        return old

    # ------------------------------------------------------------------ executions
    def _read(self, unit: Unit, pe: int, pos: int, addr: int, asked: int, time: int) -> None:
        last = unit.last
        if last is not None:
            unit.settle()
            need(last.done >= 0 and asked > last.done, "atomics overlap")
        flat = self.memory.flat(pe, addr, 4)
        need(flat >= 0 and not addr & 3, "atomic read")
        run = Execution(addr, self._old(pe, addr, flat), asked, time)
        run.of = self._candidates(unit, addr, asked, pos)
        need(bool(run.of), "atomic that nobody asked for")
        word = addr & ~7
        late = [(a, n) for cycle, a, n in unit.answered if cycle >= asked]
        for a, n in (*unit.open.values(), *late):
            need(a >= word + 8 or a + n <= word, "atomic on a word under an inbound write")
        unit.last = run
        unit.runs.append(run)

    def _burst(self, unit: Unit, pos: int, i: int, va: int, size: int) -> None:
        """Inbound payload is written to a word: not while an atomic on it is under way."""
        unit.open[i] = va, size
        run = unit.last
        if pos < 0 or run is None or run.done >= 0:
            return
        if run.new is None and any(effect(e.op, run.old, e.operands) is None for e in run.of):
            return  # it may be over: nothing was to be written
        word = run.addr & ~7
        need(va >= word + 8 or va + size <= word, "inbound write on a locked word")

    def _candidates(self, unit: Unit, addr: int, asked: int, pos: int) -> list[Request]:
        """Atomics on an address that may be the oldest ones of their QPs by now."""
        out = []
        for g in sorted(unit.waiting.get(addr, ())):
            for request in self.held[g]:
                if request.va == addr and request.since < asked and self._ready[id(request)] < pos:
                    out.append(request)
                if not self._may_be_over(unit, request):
                    break
        return out

    @staticmethod
    def _may_be_over(unit: Unit, request: Request) -> bool:
        return any(request in run.of and (run.done >= 0 or run.new is None) for run in unit.runs)

    def _write(self, unit: Unit, addr: int, strobe: int, count: int, beat: Any) -> None:
        run = unit.last
        if run is None or run.done >= 0 or run.new is not None:
            raise Odd("atomic write without a read")
        lane = (strobe & -strobe).bit_length() - 1
        need(strobe == ((1 << count) - 1) << lane and (addr & _LINE) + lane == run.addr, "place of an atomic")
        data = int.from_bytes(beat[lane : lane + count].tobytes(), "little")
        run.of = [e for e in run.of if e.length == count and effect(e.op, run.old, e.operands) == data]
        need(bool(run.of), "value of an atomic")
        run.new, run.size = data, count

    def _commit(self, unit: Unit, pe: int, pos: int) -> None:
        run = unit.last
        if run is None or run.new is None or run.visible:
            raise Odd("COMMIT without an atomic")
        run.visible = True
        flat, data = self.memory.flat(pe, run.addr, run.size), run.new.to_bytes(run.size, "little")
        self._word(flat & ~7)[flat & 7 : (flat & 7) + run.size] = data
        self.shown.append((pe, flat, data, run.size, pos))

    # ------------------------------------------------------------------ answers
    def _answer(self, unit: Unit, request: Request, value: int) -> None:
        """The execution that an ATOMIC ACK names by its old value."""
        mask = (1 << 8 * request.length) - 1
        # of equal ones the earliest: whoever is answered later has been there longer
        run = next((x for x in unit.runs if x.done >= 0 and request in x.of and x.old & mask == value), None)
        last = unit.last
        if run is None and last is not None and last in unit.runs and request in last.of:
            unit.settle()
            over = request in last.of and last.done >= 0
            run = last if over and last.old & mask == value else None
        if run is None:
            raise Odd("answer of no execution")
        unit.runs.remove(run)
        unit.answers += 1
        for other in unit.runs:
            if request in other.of:
                other.of.remove(request)
        held = self.held[request.gq]
        held.remove(request)
        for later in held:
            if later.since < run.done:
                later.since = run.done
            for other in unit.runs:
                if later in other.of and other.asked <= run.done:
                    other.of.remove(later)
        waiting = unit.waiting[request.va]
        waiting[request.gq] -= 1
        if not waiting[request.gq]:
            del waiting[request.gq]
