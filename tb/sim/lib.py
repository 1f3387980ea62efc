"""SimLib: what Python does with the C++ testbench (memory, MMIO, watches, records, knobs) inside a
simulation.

Python and C++ share one process, so memory and records are numpy views without a copy, and a call is a
plain function call.
Python sleeps in :meth:`SimLib.wake` until the C++ side has a reason; it never runs per cycle.
"""

from __future__ import annotations

import bisect
import ctypes
import enum
from collections.abc import Iterable
from typing import Any

import cocotb
import numpy as np
import numpy.typing as npt
from cocotb.triggers import Timer, ValueChange

from pymodel.faults import AnyRule, MemoryAction, MemoryRule, Rule, as_rules
from pymodel.faults.log import LOG, MEMORY_LOG
from pymodel.faults.memory import keyed
from tb.sim.fault_rule import MEMORY_RULE, RULE, compile_memory, compile_rules
from tb.sim.records import RECORD
from tb.sim.workload import ALL_PES, Op, Workload

Bytes = npt.NDArray[np.uint8]

#: ns per clock cycle (nic.md 1)
PERIOD_NS = 2
#: time for "no deadline"
NEVER = (1 << 64) - 1


class Reason(enum.IntFlag):
    """Why :meth:`SimLib.wake` returned; tb/cpp/tb.h has the same bits."""

    WATCH = 1
    RING = 2
    DEADLINE = 4
    MAILBOX = 8
    READ = 16
    EVENT = 32
    STALL = 64


class _Ctl(enum.IntEnum):
    """Index of each field of TbControl (tb/cpp/tb.h)."""

    CYCLE = 0
    ATTENTION = 1
    REASONS = 2
    DEADLINE = 3
    WAKEUPS = 4
    REC_HEAD = 5
    REC_TAIL = 6
    SIDE_HEAD = 7
    SIDE_TAIL = 8
    OVERFLOW = 9
    ACTIVE = 10
    RST_N = 11
    WORK = 12
    WORK_DUE = 13
    STALL_LIMIT = 14
    MOVED = 15
    EVENT_WAKES = 16
    LINK_DROPPED = 17
    FAULTS = 18
    LINK_FAULTS = 19


class SimStalled(Exception):
    """Nothing happened in the whole bench for ``stall_limit`` cycles."""


class RecordOverflow(Exception):
    """Records or their bytes were lost: the test did not drain in time, or one cycle made too many."""


class UnmappedAccess(Exception):
    """A range does not lie inside one region of the PE."""


_U8, _U32, _U64, _INT, _PTR = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p
_PE = ctypes.c_uint
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "tb_control": (_PTR, []),
    "tb_records": (_PTR, []),
    "tb_record_count": (_U64, []),
    "tb_side": (_PTR, []),
    "tb_side_size": (_U64, []),
    "tb_note": (None, [_PE, _U64, _U64, _U64]),
    "tb_seed": (None, [_U64]),
    "tb_set_knob": (ctypes.c_bool, [_INT, ctypes.c_char_p, _U32]),
    "tb_add_region": (_INT, [_PE, _U64, _U64, _U8]),
    "tb_pointer": (_PTR, [_PE, _U64, _U64]),
    "tb_stored": (None, [_PE, _U64, _U64]),
    "tb_dirty": (_U64, [_PE, _PTR, _U64, ctypes.c_bool]),
    "tb_watch": (_U32, [_PE, _U64, _U64, _U64]),
    "tb_unwatch": (ctypes.c_bool, [_U32]),
    "tb_fired": (_U64, [_PTR, _U64]),
    "tb_add_error": (None, [_PE, _U64, _U64, ctypes.c_bool, ctypes.c_bool, _U8]),
    "tb_clear_errors": (None, [_PE]),
    "tb_mmio_write": (ctypes.c_bool, [_PE, _U32, _U64, _U8]),
    "tb_mmio_read": (_U64, [_PE, _U32]),
    "tb_mmio_result": (ctypes.c_bool, [_U64, _PTR, _PTR]),
    "tb_mmio_pending": (_U64, [_PE]),
    "tb_mmio_bad_responses": (_U64, [_PE]),
    "tb_set_mac": (None, [_PE, _U64]),
    "tb_inject": (ctypes.c_bool, [_PE, ctypes.c_char_p, _U64]),
    "tb_link_pending": (_U64, [_PE]),
    "tb_set_faults": (None, [_PTR, _U64]),
    "tb_fault_log": (_U64, [_PTR, _U64]),
    "tb_fault_log_lost": (_U64, []),
    "tb_fault_sizes": (_U64, []),
    "tb_set_memory_faults": (None, [_PTR, _U64]),
    "tb_memory_fault_log": (_U64, [_PTR, _U64]),
    "tb_memory_fault_log_lost": (_U64, []),
    "tb_memory_fault_sizes": (_U64, []),
}


def _load() -> ctypes.CDLL:
    """The simulator executable itself, with the signature of each function set once."""
    lib = ctypes.CDLL(None)
    for name, (result, args) in _SIGNATURES.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise RuntimeError("SimLib works only inside a simulation with tb/cpp/main.cpp") from None
        function.restype = result
        function.argtypes = args
    return lib


def _view(address: int, size: int, dtype: Any) -> npt.NDArray[Any]:
    buffer = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(buffer, dtype=dtype)


#: knobs that an access waits for, with their defaults (tb/cpp/tb.h)
_WAITS = {
    "mem_latency": 20, "mem_latency_jitter": 0, "commit_delay": 0, "link_latency": 20,
    "link_latency_jitter": 0, "stall_max": 8,
}  # fmt: skip


class SimLib:
    """The testbench of one simulation. One instance per test; ``dut`` is cocotb's top handle (its ``evt_i``
    wakes us).
    """

    def __init__(self, dut: Any) -> None:
        self._lib = _load()
        self._ctl: npt.NDArray[np.uint64] = _view(self._lib.tb_control(), 8 * len(_Ctl), np.uint64)
        self._ring = _view(self._lib.tb_records(), self._lib.tb_record_count() * RECORD.itemsize, RECORD)
        side: Bytes = _view(self._lib.tb_side(), self._lib.tb_side_size(), np.uint8)
        side.flags.writeable = False
        #: the side buffer, read-only; a record's bytes start at ``off % len(side)``
        self.side = side
        self._evt = dut.evt_i
        self._side_held = 0
        self._rec_next = 0
        self._region_bases: list[list[int]] = []
        self._regions: list[list[tuple[int, int, Bytes, Bytes]]] = []
        self._fired = np.zeros(1024, np.uint32)
        self._result = (ctypes.c_uint64(), ctypes.c_uint32())
        self._workload: Workload | None = None
        #: every fault rule that was ever set; the log's rule numbers are indexes
        self.fault_rules: list[AnyRule] = []
        self._longest_stall = 0
        self._seed = cocotb.RANDOM_SEED
        sizes = self._lib.tb_fault_sizes(), self._lib.tb_memory_fault_sizes()
        if sizes != (RULE.itemsize << 32 | LOG.itemsize, MEMORY_RULE.itemsize << 32 | MEMORY_LOG.itemsize):
            raise RuntimeError("tb/sim/fault_rule.py and pymodel/faults/log.py do not fit tb/cpp/tb.h")
        #: NICs out of reset; PEs are numbered from 0
        self.n_pes = int(self._ctl[_Ctl.ACTIVE]).bit_count()
        self._region_bases = [[] for _ in range(self.n_pes)]
        self._regions = [[] for _ in range(self.n_pes)]
        #: largest value of each knob so far, by PE and name
        self._longest: dict[tuple[int, str], int] = {}
        self._ctl[_Ctl.EVENT_WAKES] = 1

    # --------------------------------------------------------------------------------------------------- time
    @property
    def cycle(self) -> int:
        """Rising clock edges since the start of the simulation."""
        return int(self._ctl[_Ctl.CYCLE])

    @property
    def wakeups(self) -> int:
        """How often Python was woken by the C++ side."""
        return int(self._ctl[_Ctl.WAKEUPS])

    async def wake(self) -> Reason:
        """Sleeps until the C++ side has a reason and returns it; returns at once where one came since the
        last call.

        One task may sleep here. Raises SimStalled when the watchdog fired.
        """
        if not self._ctl[_Ctl.REASONS]:
            await ValueChange(self._evt)
        reasons = Reason(int(self._ctl[_Ctl.REASONS]))
        self._ctl[_Ctl.REASONS] = 0
        if reasons & Reason.STALL:
            raise SimStalled(f"no record and no activity for {self.stall_limit} cycles (cycle {self.cycle})")
        return reasons

    def set_deadline(self, cycle: int | None) -> None:
        """Wakes with Reason.DEADLINE at that cycle (None: never). There is one deadline; a new one replaces
        it.
        """
        self._ctl[_Ctl.DEADLINE] = NEVER if cycle is None else cycle

    @property
    def stall_limit(self) -> int:
        """Cycles without a record or Python activity after which wake() raises SimStalled; 0: never (the
        default).
        """
        return int(self._ctl[_Ctl.STALL_LIMIT])

    @stall_limit.setter
    def stall_limit(self, cycles: int) -> None:
        self._ctl[_Ctl.STALL_LIMIT] = cycles

    async def cycles(self, count: int) -> None:
        """Waits for ``count`` clock cycles; ends beside a falling edge."""
        await Timer(PERIOD_NS * count, "ns")

    async def reset(self, count: int = 8) -> None:
        """Holds all NICs in reset for ``count`` cycles; returns 8 cycles after the release."""
        self._set_reset(0)
        await self.cycles(count)
        self._set_reset(1)
        await self.cycles(8)

    def _set_reset(self, level: int) -> None:
        self._ctl[_Ctl.RST_N] = level
        self._log(Op.RESET, 0, level, int(self._ctl[_Ctl.ACTIVE]))

    # ------------------------------------------------------------------------------------------------- memory
    def add_region(self, pe: int, base: int, size: int, fill: int = 0) -> None:
        """Gives PE ``pe`` memory at [base, base + size), filled with a byte. Raises ValueError where that
        cannot be.
        """
        self._check_pe(pe)
        code = self._lib.tb_add_region(pe, base, size, fill)
        if code:
            cause = {1: "is empty or ends beyond 2**64", 2: "overlaps another region", 3: "cannot be mapped"}[
                code
            ]
            raise ValueError(f"region {base:#x} + {size:#x} of PE {pe} {cause}")
        view: Bytes = _view(self._lib.tb_pointer(pe, base, size), size, np.uint8)
        public = view[:]
        public.flags.writeable = False
        at = bisect.bisect(self._region_bases[pe], base)
        self._region_bases[pe].insert(at, base)
        self._regions[pe].insert(at, (base, size, view, public))
        self._log(Op.REGION, pe, base, size, fill)

    def _find(self, pe: int, addr: int, length: int) -> tuple[int, int, Bytes, Bytes]:
        at = bisect.bisect(self._region_bases[pe], addr) - 1
        if at >= 0:
            region = self._regions[pe][at]
            if addr + length <= region[0] + region[1]:
                return region
        raise UnmappedAccess(f"[{addr:#x}, +{length:#x}) of PE {pe} is not inside one region")

    def memory(self, pe: int, addr: int, length: int) -> Bytes:
        """Read-only view of bytes, shape (length,): shows what the NIC writes later. Raises
        UnmappedAccess.
        """
        base, _, _, view = self._find(pe, addr, length)
        return view[addr - base : addr - base + length]

    def store(self, pe: int, addr: int, data: bytes | Bytes) -> None:
        """Writes bytes and appends a STORE record; marks pages dirty. Raises UnmappedAccess."""
        source = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        base, _, view, _ = self._find(pe, addr, len(source))
        view[addr - base : addr - base + len(source)] = source
        self._lib.tb_stored(pe, addr, len(source))
        if self._workload is not None:
            self._log(Op.STORE, pe, addr, data=source.tobytes())

    def dirty(self, pe: int, clear: bool = False) -> npt.NDArray[np.uint64]:
        """Base addresses of the 4 KiB pages that NIC writes or stores touched, ascending; ``clear`` forgets
        them.
        """
        count = self._lib.tb_dirty(pe, None, 0, False)
        pages = np.zeros(count, np.uint64)
        self._lib.tb_dirty(pe, pages.ctypes.data, count, clear)
        return pages

    def add_error(self, pe: int, addr: int, length: int, on: str = "rw", resp: int = 2) -> None:
        """NIC accesses that touch the range answer ``resp`` (2 SLVERR, 3 DECERR); a failing write with
        SLVERR writes nothing.
        """
        if not set(on) <= {"r", "w"} or not on or resp not in (2, 3):
            raise ValueError(f"add_error(on={on!r}, resp={resp})")
        self._lib.tb_add_error(pe, addr, length, "r" in on, "w" in on, resp)

    def clear_errors(self, pe: int) -> None:
        """Forgets all error ranges of the PE."""
        self._lib.tb_clear_errors(pe)

    # ------------------------------------------------------------------------------------------------ watches
    def watch(self, pe: int, addr: int, length: int, hits: int = 1) -> int:
        """Arms a one-shot watch: fires after ``hits`` NIC write beats into [addr, addr + length) became
        visible.
        """
        self._check_pe(pe)
        number: int = self._lib.tb_watch(pe, addr, length, hits)
        if not number:
            raise ValueError(f"watch of {length} bytes, {hits} hits: both must be positive")
        return number

    def unwatch(self, number: int) -> bool:
        """Disarms; False: it had fired (its id may still be in :meth:`fired`) or never existed."""
        done: bool = self._lib.tb_unwatch(number)
        return done

    def fired(self) -> list[int]:
        """Ids of the watches that fired since the last call, in the order in which they fired."""
        result: list[int] = []
        while True:
            count = self._lib.tb_fired(self._fired.ctypes.data, len(self._fired))
            result += self._fired[:count].tolist()
            if count < len(self._fired):
                return result

    # --------------------------------------------------------------------------------------------------- MMIO
    def mmio_write(self, pe: int, addr: int, data: int, strb: int = 0xFF) -> bool:
        """Posts a 64-bit write to the BAR. False: the mailbox is full; Reason.MAILBOX comes when it has
        room again.
        """
        done: bool = self._lib.tb_mmio_write(pe, addr, data, strb)
        if done:
            self._log(Op.WRITE, pe, addr, data, strb)
        return done

    def mmio_read(self, pe: int, addr: int) -> int:
        """Posts a read; returns a ticket for :meth:`result`, 0 where the mailbox is full."""
        ticket: int = self._lib.tb_mmio_read(pe, addr)
        if ticket:
            self._log(Op.READ, pe, addr)
        return ticket

    def result(self, ticket: int) -> int | None:
        """Data of a read, handed out once; None: not there yet. Raises OSError where the NIC did not answer
        OKAY.
        """
        data, resp = self._result
        if not self._lib.tb_mmio_result(ticket, ctypes.addressof(data), ctypes.addressof(resp)):
            return None
        if resp.value:
            raise OSError(f"MMIO read answered with response {resp.value}")
        return data.value

    def mmio_pending(self, pe: int) -> int:
        """MMIO requests that wait in the mailbox or are on the bus."""
        return int(self._lib.tb_mmio_pending(pe))

    def mmio_bad_responses(self, pe: int) -> int:
        """Write responses other than OKAY so far."""
        return int(self._lib.tb_mmio_bad_responses(pe))

    async def read(self, pe: int, addr: int) -> int:
        """Reads the BAR and waits for the answer, polling every few cycles: for set-up and checks, not for
        hot paths.
        """
        while not (ticket := self.mmio_read(pe, addr)):
            await self.cycles(8)
        while (data := self.result(ticket)) is None:
            await self.cycles(4)
        return data

    async def write(self, pe: int, addr: int, data: int, strb: int = 0xFF) -> None:
        """Writes the BAR and waits until all MMIO of the PE is answered: for set-up, not for hot paths."""
        while not self.mmio_write(pe, addr, data, strb):
            await self.cycles(8)
        while self.mmio_pending(pe):
            await self.cycles(4)

    # --------------------------------------------------------------------------------------------------- link
    def set_mac(self, pe: int, mac: int) -> None:
        """The link delivers packets to this MAC (bits 47:40 first on the wire) to PE ``pe``."""
        self._check_pe(pe)
        self._lib.tb_set_mac(pe, mac)
        self._log(Op.MAC, pe, mac)

    def inject(self, pe: int, packet: bytes) -> None:
        """Sends a frame from outside to the PE's port, whatever its MAC says; link latency
        applies, fault rules do not.
        """
        if not self._lib.tb_inject(pe, packet, len(packet)):
            raise ValueError(f"packet of {len(packet)} bytes")

    def link_pending(self, pe: int) -> int:
        """Packets on their way to the PE, those that a fault rule holds back included."""
        return int(self._lib.tb_link_pending(pe))

    @property
    def link_dropped(self) -> int:
        """Packets that had no route."""
        return int(self._ctl[_Ctl.LINK_DROPPED])

    def set_faults(self, rules: str | AnyRule | Iterable[str | AnyRule]) -> None:
        """These fault rules in place of all others (docs/faults.md): text, rules, or a sequence of both.

        They start anew, with their counts at 0 and their draws from the run's seed; an empty sequence takes
        all away. Packets that are held back, and accesses that are stalled, stay so. Errors of memory are
        drawn from the seed that the knob `seed` set last; who judges must be told (`Rig.set_faults`). Raises
        RuleError; RuntimeError while a workload is being recorded, which does not hold rules.
        """
        new = as_rules(rules)
        if self._workload is not None:
            raise RuntimeError("a recorded workload does not hold fault rules")
        first, places = len(self.fault_rules), [n for n, rule in enumerate(new) if isinstance(rule, Rule)]
        table = compile_rules([rule for rule in new if isinstance(rule, Rule)])
        table["id"] = [first + n for n in places]
        self._lib.tb_set_faults(table.ctypes.data, len(table))
        memory = compile_memory(keyed(new, self._seed), first)
        self._lib.tb_set_memory_faults(memory.ctypes.data, len(memory))
        stalls = [r.amount for r in new if isinstance(r, MemoryRule) and r.action == MemoryAction.STALL]
        self._longest_stall = max([self._longest_stall, *stalls])
        self.fault_rules += new

    def fault_log(self) -> npt.NDArray[np.void]:
        """What rules of the link did since the last call (dtype LOG), in order. Raises RecordOverflow."""
        if lost := self._lib.tb_fault_log_lost():
            raise RecordOverflow(f"{lost} entries of the fault log were lost")
        log = np.zeros(self._lib.tb_fault_log(None, 0), LOG)
        self._lib.tb_fault_log(log.ctypes.data, len(log))
        return log

    def memory_fault_log(self) -> npt.NDArray[np.void]:
        """What rules of memory did since the last call (dtype MEMORY_LOG). Raises RecordOverflow."""
        if lost := self._lib.tb_memory_fault_log_lost():
            raise RecordOverflow(f"{lost} entries of the log of memory faults were lost")
        log = np.zeros(self._lib.tb_memory_fault_log(None, 0), MEMORY_LOG)
        self._lib.tb_memory_fault_log(log.ctypes.data, len(log))
        return log

    @property
    def link_faults(self) -> int:
        """Faults that rules applied so far."""
        return int(self._ctl[_Ctl.LINK_FAULTS])

    # ------------------------------------------------------------------------------------------------ records
    def drain(self) -> npt.NDArray[np.void]:
        """All records since the last call, as a copy (dtype RECORD). Their bytes stay valid until the next
        call.

        Raises RecordOverflow where any were lost.
        """
        if self._ctl[_Ctl.OVERFLOW]:
            raise RecordOverflow(
                f"{int(self._ctl[_Ctl.OVERFLOW])} records or byte blocks were lost before cycle {self.cycle}"
            )
        head, tail, size = int(self._ctl[_Ctl.REC_HEAD]), self._rec_next, len(self._ring)
        first, last = tail % size, head % size
        if head - tail == 0:
            records = np.empty(0, RECORD)
        elif first < last:
            records = self._ring[first:last].copy()
        else:
            records = np.concatenate((self._ring[first:], self._ring[:last]))
        self._ctl[_Ctl.REC_TAIL] = self._rec_next = head
        # the bytes of the batch before this one are given back now, those of this one with the next call
        self._ctl[_Ctl.SIDE_TAIL] = self._side_held
        self._side_held = int(self._ctl[_Ctl.SIDE_HEAD])
        return records

    def release(self) -> None:
        """Give back the bytes of the last drain() at once: who rarely wakes up fills the buffer."""
        self._ctl[_Ctl.SIDE_TAIL] = self._side_held

    def payload(self, record: np.void) -> Bytes:
        """Read-only view of the bytes of a record of the last drain(), shape (len,) (64 for AXI_W with ID
        2 or 4).
        """
        length = 64 if record["kind"] == 7 else int(record["len"])
        start = int(record["off"]) % len(self.side)
        return self.side[start : start + length]

    def note(self, pe: int, data: int, aux0: int = 0, aux1: int = 0) -> None:
        """Appends a NOTE record: a mark of the test in the ordered stream."""
        self._lib.tb_note(pe, data, aux0, aux1)

    @property
    def faults(self) -> int:
        """FAULT records so far."""
        return int(self._ctl[_Ctl.FAULTS])

    # -------------------------------------------------------------------------------------------------- knobs
    def set_knob(self, name: str, value: int, pe: int | None = None) -> None:
        """Sets a knob of memory, link or mailbox (tb/cpp/tb.h lists them) for one PE or all.

        Probabilities are in 1/65536, times in cycles. ``seed`` starts all generators anew (default: the
        test's seed).
        Raises ValueError on an unknown name.
        """
        if name == "seed":
            self._lib.tb_seed(value)
            self._seed = value
            self._log(Op.SEED, 0, value)
            return
        if not self._lib.tb_set_knob(-1 if pe is None else pe, name.encode(), value):
            raise ValueError(f"unknown knob '{name}'")
        for one in range(self.n_pes) if pe is None else (pe,):
            self._longest[one, name] = max(value, self._longest.get((one, name), 0))
        self._log(Op.KNOB, ALL_PES if pe is None else pe, value, data=name.encode())

    def longest_wait(self, pe: int) -> int:
        """Cycles that one access of a PE and its packet can take at most, as the knobs were so far.

        An access may be under way since before a knob was lowered, so the largest value counts.
        """
        times = {name: self._longest.get((pe, name), usual) for name, usual in _WAITS.items()}
        # a pause on each channel on the way
        return sum(times.values()) + 7 * times["stall_max"] + self._longest_stall

    def set_event_wakes(self, on: bool) -> None:
        """Whether a rising event_o wakes Python (default: yes)."""
        self._ctl[_Ctl.EVENT_WAKES] = int(on)

    # ---------------------------------------------------------------------------------------------- recording
    def record(self) -> Workload:
        """From now on every action goes into the returned workload, which the bare loop can run again.

        Call it before the first region and the reset, so that the workload is complete.
        """
        self._workload = Workload()
        return self._workload

    def _log(self, op: Op, pe: int, a: int = 0, b: int = 0, c: int = 0, data: bytes = b"") -> None:
        if self._workload is not None:
            self._workload.add(op, pe, a, b, c, data, at=self.cycle)

    def end_record(self) -> Workload:
        """Stops recording; the workload ends in the present cycle."""
        workload = self._workload
        if workload is None:
            raise RuntimeError("nothing is being recorded")
        workload.add(Op.AT, a=self.cycle)
        self._workload = None
        return workload

    def _check_pe(self, pe: int) -> None:
        if not 0 <= pe < self.n_pes:
            raise ValueError(f"PE {pe}: this model has {self.n_pes}")


def seeded(stream: int = 0) -> np.random.Generator:
    """A numpy generator from the test's seed; different streams are independent."""
    return np.random.default_rng([cocotb.RANDOM_SEED, stream])
