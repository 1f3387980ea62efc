"""The RTL platform: device programs over the NICs in simulation, judged while they run.

:class:`RtlBackend` is what the scheduling core of ``pymodel.runner`` needs; :class:`Rig` is one run:
memories, reset, bring-up of the NICs through their BARs, programs, draining of the record stream into the
judge, and the closing checks. Rules: programs.md 1-3.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
import numpy.typing as npt

from pymodel.causes import blame
from pymodel.device.pe import DeviceOptions, Pe
from pymodel.faults import AnyRule, as_rules
from pymodel.host.table import Fabric
from pymodel.nic.judge import Finding, Judge, PeConfig
from pymodel.nic.params import CMD_STATUS, AxiId, Cnt, Csr
from pymodel.platform import Bytes, Observer
from pymodel.run import Main, Run, RunResult
from pymodel.unawaited import UnawaitedError
from tb.sim.lib import SimLib
from tb.sim.records import Kind

#: byte offset of counter 0 in the CSR space (docs/formats.md)
COUNTERS = 0x1000
#: seconds of wall clock between two lines of progress
PROGRESS_S = 1.0
#: cycles in which a NIC with nothing to do must have become quiet after the programs ended
SETTLE = 20_000
#: cycles between two looks at whether anything happens
STEP = 256

Sink = Callable[[npt.NDArray[np.void], npt.NDArray[np.uint8]], None]


class RunFailed(AssertionError):
    """The run is not good; the text says why, one finding a block."""


class BringUpError(RuntimeError):
    """A NIC refused a context command."""


class RtlBackend:
    """``pymodel.runner.Backend`` over :class:`SimLib`."""

    def __init__(self, lib: SimLib) -> None:
        self._lib = lib

    def now(self) -> int:
        """Clock cycles since the start of the simulation."""
        return self._lib.cycle

    def memory(self, pe: int, addr: int, length: int) -> npt.NDArray[np.uint8]:
        """Read-only live view, uint8[length]."""
        return self._lib.memory(pe, addr, length)

    def store(self, pe: int, addr: int, data: Bytes) -> None:
        """Store of a program: written and recorded."""
        self._lib.store(pe, addr, data if isinstance(data, np.ndarray) else bytes(data))

    def mmio_write(self, pe: int, addr: int, data: int) -> bool:
        """Posted BAR write; False when the mailbox is full."""
        return self._lib.mmio_write(pe, addr, data)

    def watch(self, pe: int, addr: int, length: int, hits: int) -> int:
        """Arm a watch on NIC write beats."""
        return self._lib.watch(pe, addr, length, hits)

    def unwatch(self, watch: int) -> None:
        """Disarm a watch."""
        self._lib.unwatch(watch)

    def fired(self) -> Sequence[int]:
        """Watches that fired since the last call."""
        return self._lib.fired()


@dataclass(slots=True)
class Summary:
    """What a run did, in figures; ``mismatches`` counts findings of the judge, leaks and hangs included.

    ``bytes``: payload written by WRITEs and READs. ``reads`` and ``atomics_checked``: executed by responders,
    each judged in every byte and value. ``errors_provoked``: error CQEs that the programs had announced.
    """

    wqes: int = 0
    reads: int = 0
    atomics_checked: int = 0
    errors_provoked: int = 0
    packets: int = 0
    bytes: int = 0
    cqes: int = 0
    mismatches: int = 0
    cycles: int = 0
    cycles_per_second: int = 0
    wakeups_per_1000_cycles: float = 0.0
    seed: int = 0
    figures: dict[str, int | float] = field(default_factory=dict)
    """What the programs counted (`Pe.count`), and what follows from it."""

    def save(self, path: Path) -> None:
        """Write JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


class Rig:
    """One run on the NICs of ``dut`` (tb_top).

    ``knobs``: of memory, link and mailbox, and ``faults``, rules (docs/faults.md), are set before the NICs
    come up. ``sinks`` get each drained batch after the judge. ``judge`` may be switched off for
    figures only. The summary counts what the record stream shows.
    """

    def __init__(
        self,
        dut: Any,
        fabric: Fabric,
        *,
        knobs: Mapping[str, int] | None = None,
        judge: bool = True,
        sinks: Sequence[Sink] = (),
        seed: int | None = None,
        stall_limit: int = 200_000,
        faults: str | AnyRule | Sequence[str | AnyRule] = (),
    ) -> None:
        self.lib = SimLib(dut)
        self.fabric = fabric
        self.seed = cocotb.RANDOM_SEED if seed is None else seed
        if self.lib.n_pes < fabric.n_pes:
            raise ValueError(f"{fabric.n_pes} PEs, but the simulation has {self.lib.n_pes}")
        self.backend = RtlBackend(self.lib)
        self.knobs = dict(knobs or {})
        self.faults = as_rules(faults)
        self._memory_log: list[npt.NDArray[np.void]] = []
        self._fault_log: list[npt.NDArray[np.void]] = []
        self.sinks = list(sinks)
        self.judge: Judge | None = None
        self._judged = judge
        self._stall_limit = stall_limit
        self.summary = Summary(seed=self.seed)
        self._totals: list[list[int]] = []
        self.pes: list[Pe] = []
        """Those of the last run."""
        self._progress = os.environ.get("CAMHIL_PROGRESS")
        self._shown = time.monotonic()
        self._start = (0, 0, 0.0)

    # ----------------------------------------------------------------------------------- before
    async def start(self) -> None:
        """Memories, reset, bring-up. Raises BringUpError where a NIC refuses a context."""
        lib = self.lib
        lib.set_knob("seed", self.seed)
        for name, value in self.knobs.items():
            lib.set_knob(name, value)
        if self.faults:
            lib.set_faults(self.faults)
        for pe in self.fabric.pes:
            lib.set_mac(pe.rank, pe.mac)
            for region in pe.regions:
                lib.add_region(pe.rank, region.base, region.size, region.fill)
            for addr, data in pe.contents:
                lib.store(pe.rank, addr, data)
            lib.dirty(pe.rank, clear=True)
        lib.drain()
        lib.set_event_wakes(False)
        await lib.reset()
        origin = await self._time_origin()
        if self._judged:
            configs = [PeConfig.of(pe) for pe in self.fabric.pes]
            config = self.fabric.config
            # the bring-up, which programs it, is over before the judge looks
            params = replace(config.params, cq_wait=config.cq_wait)
            self.judge = Judge(configs, params, time_origin=origin)
            self.judge.set_memory_faults(self.faults, self.seed)
        for step in [cocotb.start_soon(self._bring_up(pe.rank)) for pe in self.fabric.pes]:
            await step
        lib.drain()
        lib.stall_limit = self._stall_limit
        self._start = (lib.cycle, lib.wakeups, time.monotonic())

    async def _time_origin(self) -> int:
        """Cycle at which the NICs' time stamp was 0: they all left reset together."""
        ticket = self.lib.mmio_read(0, Csr.TIME)
        while (stamp := self.lib.result(ticket)) is None:
            await self.lib.cycles(1)
        read = next(r for r in self.lib.drain() if r["kind"] == Kind.MMIO_R)
        return int(read["time"]) - stamp

    async def _bring_up(self, pe: int) -> None:
        for op in self.fabric.pes[pe].bringup:
            if op.kind == "write":
                while not self.lib.mmio_write(pe, op.addr, op.data):
                    await self.lib.cycles(16)
                continue
            while (status := await self.lib.read(pe, CMD_STATUS)) & 1:
                pass
            if status >> 8 & 0xFF:
                raise BringUpError(f"PE {pe}: {op.what} refused with code {status >> 8 & 0xFF}")

    # ----------------------------------------------------------------------------------- during
    async def run(
        self,
        mains: Main | Sequence[Main | None],
        *,
        options: DeviceOptions | None = None,
        sanitize: bool = True,
        hang_after: int = 100_000,
        observers: Sequence[Observer] = (),
    ) -> RunResult:
        """Run programs to their end.

        Raises what they raise, RaceError, HangError (with what is outstanding).
        """
        run = Run(
            self.fabric, mains, self.backend, seed=self.seed, options=options, sanitize=sanitize,
            hang_after=hang_after, observers=observers,
        )  # fmt: skip
        lib, core, self.pes = self.lib, run.core, run.pes
        try:
            while (due := core.run_ready()) is not None:
                lib.set_deadline(due)
                await lib.wake()
                self.drain()
                # judge and sinks are done with the bytes
                lib.release()
                self._show()
        except Exception as error:
            self.drain()
            blame(error, run.pes)
            if self.judge is not None:
                # the first thing that went wrong comes first: what hangs later mostly follows from it
                for finding in self.judge.findings[:8]:
                    error.add_note(finding.render())
                # a forgotten await says nothing about what is under way
                waiting = [] if isinstance(error, UnawaitedError) else self.judge.outstanding()
                for line in waiting:
                    error.add_note(line)
            raise
        finally:
            core.close()
            lib.set_deadline(None)
        self.drain()
        cycles = max(lib.cycle - self._start[0], 1)
        self.summary.cycles = cycles
        self.summary.cycles_per_second = round(cycles / (time.monotonic() - self._start[2]))
        self.summary.wakeups_per_1000_cycles = round((lib.wakeups - self._start[1]) * 1000 / cycles, 3)
        result = run.result()
        self.summary.errors_provoked += result.errors_provoked
        self.summary.figures.update(result.figures)
        return result

    def drain(self) -> npt.NDArray[np.void]:
        """Take what the monitors have, hand it to the judge and the sinks; gives the records."""
        lib, summary = self.lib, self.summary
        records = lib.drain()
        if not records.size:
            return records
        if self.judge is not None:
            self.judge.feed(records, lib.side)
        for sink in self.sinks:
            sink(records, lib.side)
        kind = np.ascontiguousarray(records["kind"])
        summary.packets += int(np.count_nonzero(kind == Kind.TXPKT))
        writes = np.flatnonzero(kind == Kind.AXI_W)
        ident = records["id"][writes]
        summary.cqes += int(np.count_nonzero(ident == AxiId.CQE))
        payload = (ident == AxiId.INBOUND) | (ident == AxiId.RESULT)
        summary.bytes += int(records["aux1"][writes[payload]].sum())
        return records

    def fault_log(self) -> npt.NDArray[np.void]:
        """Everything that fault rules did on the link so far (dtype `pymodel.faults.log.LOG`)."""
        self._fault_log.append(self.lib.fault_log())
        return np.concatenate(self._fault_log)

    def memory_log(self) -> npt.NDArray[np.void]:
        """Everything that rules of memory did so far (dtype `pymodel.faults.log.MEMORY_LOG`)."""
        self._memory_log.append(self.lib.memory_fault_log())
        return np.concatenate(self._memory_log)

    def set_faults(self, rules: str | AnyRule | Iterable[str | AnyRule]) -> None:
        """These rules in place of all others, for link, memory and judge; while memory is quiet (`settle`).

        What is posted already was judged under the error rules of before.
        """
        new = as_rules(rules)
        self.drain()
        self.lib.set_faults(new)
        if self.judge is not None:
            self.judge.set_memory_faults(new, self.seed)

    def _show(self) -> None:
        """Progress for whoever started this process."""
        if self._progress is None or time.monotonic() - self._shown < PROGRESS_S:
            return
        self._shown = time.monotonic()
        found = 0 if self.judge is None else sum(self.judge.counts.values())
        text = f"cycle {self.lib.cycle:,}: {self.summary.packets:,} packets,"
        text += f" {self.summary.cqes:,} CQEs, {found} mismatches"
        path = Path(self._progress)
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)

    # ------------------------------------------------------------------------------------ after
    async def settle(self) -> None:
        """Let everything in flight arrive: until nothing is recorded any more for longer than any latency.

        Where something that was sent is unacknowledged, the transport gets its bound, too: as long as a timer
        or an RNR wait can still act, at most what all retries take.
        """
        quiet, longest = 0, max(self.lib.longest_wait(pe) for pe in range(self.fabric.n_pes))
        enough = max(3, -(-longest // STEP) + 1)
        # as many accesses one after the other as fit in between on memory as it is by default
        steps, due, extended = SETTLE // STEP * max(1, longest // STEP), enough, False
        while steps > 0:
            steps -= 1
            await self.lib.cycles(STEP)
            busy = self.drain().size or any(
                self.lib.mmio_pending(pe) or self.lib.link_pending(pe) for pe in range(self.fabric.n_pes)
            )
            quiet = 0 if busy else quiet + 1
            if not quiet:
                due = enough
            if quiet < due:
                continue
            timer, bound = (0, 0) if self.judge is None else self.judge.patience()
            due = enough + -(-timer // STEP)
            if quiet >= due:
                return
            if not extended:
                extended, steps = True, steps + -(-bound // STEP)

    async def counters(self, pe: int) -> list[int]:
        """All counters of a NIC, read over its BAR."""
        tickets = []
        for counter in range(max(Cnt) + 1):
            while not (ticket := self.lib.mmio_read(pe, COUNTERS + 8 * counter)):
                await self.lib.cycles(16)
            tickets.append(ticket)
        values = []
        for ticket in tickets:
            while (value := self.lib.result(ticket)) is None:
                await self.lib.cycles(16)
            values.append(value)
        return values

    def total(self, counter: Cnt) -> int:
        """A counter of all NICs together, as :meth:`finish` read it."""
        return sum(values[counter] for values in self._totals)

    async def finish(self) -> list[Finding]:
        """The closing checks: counters, memory of every touched page, nothing outstanding.

        Gives all findings of the run.
        """
        await self.settle()
        n_pes = self.fabric.n_pes
        totals = self._totals = [await self.counters(pe) for pe in range(n_pes)]
        self.drain()
        self.summary.wqes = self.total(Cnt.WQE)
        self.summary.reads = self.total(Cnt.READ)
        self.summary.atomics_checked = self.total(Cnt.ATOMIC)
        if self.judge is None:
            return []
        for pe in range(n_pes):
            self.judge.check_counters(pe, totals[pe])
            self.judge.check_memory(pe, self.lib.dirty(pe), self.lib.memory)
        findings = self.judge.finish()
        self.summary.mismatches = sum(self.judge.counts.values())
        return findings

    async def check(self, result: RunResult | None = None) -> Summary:
        """:meth:`finish`, and raise RunFailed unless judge and programs are content."""
        findings = await self.finish()
        problems = [] if result is None else list(result.problems)
        if self.lib.faults:
            problems.append(f"the testbench saw {self.lib.faults} illegal accesses (FAULT records)")
        bad = [pe for pe in range(self.fabric.n_pes) if self.lib.mmio_bad_responses(pe)]
        if bad:
            problems.append(f"BAR writes of PEs {bad} were not answered OKAY")
        if findings or problems:
            self.summary.mismatches += len(problems)
            report = self.judge.report() if self.judge is not None and findings else ""
            raise RunFailed("\n".join([*problems, report]).strip())
        return self.summary
