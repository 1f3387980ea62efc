"""The model platform: golden NICs in place of RTL, under one of three schedules, without a simulator.

eager: whatever a doorbell makes possible happens at once. lazy: nothing happens until every program sleeps,
then as little as wakes one of them, and what nobody waits for last. random: seeded, packet by packet. A
program has to be right under all three (programs page, section 1).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pymodel.faults.link import FaultyLink
from pymodel.faults.memory import link_only
from pymodel.faults.rule import Rule
from pymodel.faults.text import AnyRule
from pymodel.host.table import BarOp, Fabric, Region
from pymodel.nic.golden import GoldenNic, Step
from pymodel.nic.params import CMD_STATUS
from pymodel.platform import Bytes, UnmappedError

Schedule: TypeAlias = Literal["eager", "lazy", "random"]
SETTLE: Final = 1 << 24
"""Cycles that a link with faults gets after the programs' end: all retries of the longest timer."""
SCHEDULES: tuple[Schedule, ...] = ("eager", "lazy", "random")


class PeMemory:
    """Sparse 64-bit memory of one PE: regions, lazily committed by the operating system."""

    def __init__(self, pe: int, regions: Sequence[Region] = ()) -> None:
        self.pe = pe
        self._bases: list[int] = []
        self._arrays: list[NDArray[np.uint8]] = []
        for region in regions:
            self.add(region)

    def add(self, region: Region) -> None:
        """Add a region; raises ValueError where it meets another one."""
        at = bisect_right(self._bases, region.base)
        below = at > 0 and self._bases[at - 1] + self._arrays[at - 1].size > region.base
        above = at < len(self._bases) and region.base + region.size > self._bases[at]
        if below or above:
            raise ValueError(f"PE {self.pe}: region {region.name!r} at {region.base:#x} overlaps another one")
        array = np.zeros(region.size, np.uint8)
        if region.fill:
            array[:] = region.fill
        self._bases.insert(at, region.base)
        self._arrays.insert(at, array)

    def view(self, addr: int, length: int) -> NDArray[np.uint8]:
        """Writable live view of shape (length,); raises `UnmappedError` unless one region holds all of it."""
        at = bisect_right(self._bases, addr) - 1
        if at >= 0 and length >= 0:
            offset = addr - self._bases[at]
            array = self._arrays[at]
            if offset + length <= array.size:
                return array[offset : offset + length]
        raise UnmappedError(self.pe, addr, length)

    def has_byte(self, addr: int, length: int) -> bool:
        """True if any byte of ``[addr, addr + length)`` is in a region."""
        at = bisect_right(self._bases, addr + length - 1) - 1
        return at >= 0 and self._bases[at] + self._arrays[at].size > addr

    # The NIC's port: beats of 64 bytes, a fault only where a beat has no byte in any region (NIC page 1).
    def nic_read(self, addr: int, length: int) -> bytes:
        """Bytes as the NIC reads them.

        What is in no region reads as 0. Raises `UnmappedError` for a faulting beat.
        """
        try:
            return self.view(addr, length).tobytes()
        except UnmappedError:
            out = bytearray(length)
            for low, high in self._parts(addr, length):
                out[low - addr : high - addr] = self.view(low, high - low).tobytes()
            return bytes(out)

    def nic_write(self, addr: int, data: bytes) -> None:
        """Write as the NIC does; bytes in no region are lost. Raises `UnmappedError` for a faulting beat."""
        try:
            self.view(addr, len(data))[:] = np.frombuffer(data, np.uint8)
        except UnmappedError:
            for low, high in self._parts(addr, len(data)):
                self.view(low, high - low)[:] = np.frombuffer(data[low - addr : high - addr], np.uint8)

    def _parts(self, addr: int, length: int) -> list[tuple[int, int]]:
        for beat in range(addr & ~63, addr + length, 64):
            if not self.has_byte(beat, 64):
                raise UnmappedError(self.pe, addr, length)
        parts = []
        for base, array in zip(self._bases, self._arrays, strict=True):
            low, high = max(addr, base), min(addr + length, base + array.size)
            if low < high:
                parts.append((low, high))
        return parts


@dataclass(slots=True)
class _Watch:
    addr: int
    end: int
    hits: int


class BringUpError(RuntimeError):
    """A NIC refused a context command."""


class ModelBackend:
    """`pymodel.runner.Backend` over golden NICs.

    Memory is built from ``fabric`` and every NIC is brought up through its BAR before the constructor
    returns. ``seed`` draws the random schedule and what rules of the link (``faults``) leave open.
    """

    def __init__(
        self, fabric: Fabric, schedule: Schedule = "eager", seed: int = 0, faults: Sequence[AnyRule] = ()
    ) -> None:
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule {schedule!r} is not one of {', '.join(SCHEDULES)}")
        self.fabric, self.schedule = fabric, schedule
        self._seed = seed
        self._rng = random.Random(f"schedule {seed}")
        self._now = 0
        self._watches: list[dict[int, _Watch]] = [{} for _ in fabric.pes]
        self._watch_pe: dict[int, int] = {}
        self._fired: list[int] = []
        self._next_watch = 0
        # what somebody waits for does not change while all programs sleep
        self._wants: dict[tuple[int, int], int] = {}
        self.mmio_log: list[tuple[int, int, int]] = []
        """(pe, BAR address, data) of every write of the programs, in order."""
        self.memories = [PeMemory(pe.rank, pe.regions) for pe in fabric.pes]
        self.nics: list[GoldenNic] = []
        for pe in fabric.pes:
            nic = GoldenNic(
                memory=self.memories[pe.rank],
                on_write=self._watcher(pe.rank),
                now=self.now,
                params=fabric.config.params,
            )
            self.nics.append(nic)
        for nic in self.nics:
            nic.route = self._route
        for pe in fabric.pes:
            for addr, data in pe.contents:
                self.memories[pe.rank].view(addr, data.size)[:] = data
            self.bring_up(pe.rank, pe.bringup)
        self.link: FaultyLink | None = None
        if faults:
            self.set_faults(faults)

    def set_faults(self, rules: Sequence[AnyRule]) -> None:
        """Rules of the link in place of all others; without any the link loses nothing and costs nothing.

        Held packets of earlier rules go on at once. Raises ValueError for rules of memory.
        """
        link_only(rules)
        link = [rule for rule in rules if isinstance(rule, Rule)]
        if self.link is not None:
            self.link.flush()
        self.link = FaultyLink(link, self.nics, self.now, self._seed) if link else None
        for nic in self.nics:
            nic.link = None if self.link is None else self.link.send

    # ------------------------------------------------------------------ Backend
    def now(self) -> int:
        """Model time in NIC cycles: moved by the NICs' steps and by sleeping."""
        return self._now

    def memory(self, pe: int, addr: int, length: int) -> NDArray[np.uint8]:
        """Read-only live view, uint8[length]."""
        view = self.memories[pe].view(addr, length)
        view.flags.writeable = False
        return view

    def store(self, pe: int, addr: int, data: Bytes) -> None:
        """Store of a program."""
        self.memories[pe].view(addr, len(data))[:] = np.frombuffer(data, np.uint8)

    def mmio_write(self, pe: int, addr: int, data: int) -> bool:
        """BAR write; the model's mailbox is never full."""
        self.mmio_log.append((pe, addr, data))
        self._now += 1
        self.nics[pe].bar_write(addr, data)
        if self.schedule == "eager":
            while self._step_any():
                pass
        elif self.schedule == "random":
            while self._rng.random() < 0.5 and self._step_any():
                pass
        return True

    def watch(self, pe: int, addr: int, length: int, hits: int) -> int:
        """Arm a watch."""
        number = self._next_watch
        self._next_watch += 1
        self._watches[pe][number] = _Watch(addr, addr + length, hits)
        self._watch_pe[number] = pe
        return number

    def unwatch(self, watch: int) -> None:
        """Disarm a watch."""
        pe = self._watch_pe.pop(watch, None)
        if pe is not None:
            self._watches[pe].pop(watch, None)

    def fired(self) -> Sequence[int]:
        """Watches that fired since the last call."""
        out, self._fired = self._fired, []
        return out

    # ------------------------------------------------------------------ time
    def advance(self, due: int) -> None:
        """Let the NICs work until a watch fires or cycle ``due`` comes; called when every program sleeps."""
        self._wants.clear()
        while not self._fired and self._now < due:
            if not self._step_any():
                if not self._next_timer(due):
                    self._now = due
        if self.schedule == "random" and self._fired:
            while self._rng.random() < 0.7 and self._step_any():
                pass

    def settle(self) -> None:
        """Let the NICs finish what they can, as time would after the programs' end; lazy NICs never do."""
        if self.schedule != "lazy":
            end = self._now + SETTLE
            while self._step_any() or (self._sends_again() and self._next_timer(end)):
                pass

    def _sends_again(self) -> bool:
        """Something that did not arrive may still come again: lost on the link, or refused by RNR NAK."""
        return self.link is not None or any(nic.holds for nic in self.nics)

    def _next_timer(self, due: int) -> bool:
        """Nothing can move: go to the next cycle in which something does by itself; False if none up to due.

        So a transport timer expires only where nothing is on its way any more: what a schedule merely delays
        is not lost.
        """
        times = [t for nic in self.nics if (t := nic.next_timer()) is not None]
        if self.link is not None and (t := self.link.next_time()) is not None:
            times.append(t)
        if any(t <= self._now for t in times) and self._expire():
            return True
        at = min((t for t in times if t > self._now), default=None)
        if at is None or at > due:
            return False
        self._now = at
        self._expire()
        return True

    def _expire(self) -> bool:
        return sum(nic.expire(self._now) for nic in self.nics) > 0

    def _step_any(self) -> bool:
        """One packet, acknowledgement or CQE somewhere; False when nothing can move."""
        if self.link is not None and self.link.deliver():
            return True
        if self.schedule == "eager":
            for nic in self.nics:
                for step in nic.steps():
                    self._now += nic.run(step)
                    return True
            return False
        if self.schedule == "random":
            every = [(nic, step) for nic in self.nics for step in nic.steps()]
            if not every:
                return False
            nic, step = self._rng.choice(every)
            self._now += nic.run(step)
            return True
        best: tuple[int, GoldenNic, Step] | None = None
        for nic in self.nics:
            for step in nic.steps():
                rank = self._wanted(nic, step)
                if best is None or rank < best[0]:
                    best = (rank, nic, step)
        if best is None:
            return False
        self._now += best[1].run(best[2])
        return True

    def _wanted(self, nic: GoldenNic, step: Step) -> int:
        """What waits for the QP that a step moves forward: 0 its WRITEs, 1 its CQEs, 2 nothing does.

        WRITEs first: so a flag overtakes whatever its sender did not wait for.
        """
        target = nic.requester_of(step, self._route)
        if target is None:
            return 2
        requester, qpn = target
        rank = self.nics.index(requester)
        known = self._wants.get((rank, qpn))
        if known is None:
            known = 1 if any(self._meets(rank, *span) for span in requester.cq_spans(qpn)) else 2
            for mac, addr, length in requester.write_spans(qpn, limit=64):
                peer = self._route(mac)
                if peer is not None and self._meets(self.nics.index(peer), addr, length):
                    known = 0
                    break
            self._wants[rank, qpn] = known
        return known

    def _meets(self, pe: int, addr: int, length: int) -> bool:
        return any(w.addr < addr + length and addr < w.end for w in self._watches[pe].values())

    # ------------------------------------------------------------------ wiring
    def _route(self, mac: int) -> GoldenNic | None:
        return next((nic for nic in self.nics if nic.mac == mac), None)

    def _watcher(self, pe: int) -> Callable[[int, int], None]:
        def on_write(addr: int, length: int) -> None:
            for number, watch in list(self._watches[pe].items()):
                low, high = max(addr, watch.addr), min(addr + length, watch.end)
                if low < high:
                    watch.hits -= (high - 1 >> 6) - (low >> 6) + 1
                    if watch.hits <= 0:
                        del self._watches[pe][number]
                        self._watch_pe.pop(number, None)
                        self._fired.append(number)

        return on_write

    def bring_up(self, pe: int, ops: Sequence[BarOp]) -> None:
        """Play BAR steps; raises `BringUpError` with the refusal code."""
        nic = self.nics[pe]
        for op in ops:
            if op.kind == "write":
                nic.bar_write(op.addr, op.data)
            else:
                code = nic.bar_read(CMD_STATUS) >> 8 & 0xFF
                if code:
                    raise BringUpError(f"PE {pe}: {op.what} refused with code {code}")
