"""One run of a device program: PEs, core, sanitizer and verdict over a backend, and its configuration.

The model's loop is here (`run_on_model`); the RTL platform builds the same `Run` over its own backend and
drives `Run.core` from a simulator's coroutine.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from pymodel.causes import blame, error_text, place
from pymodel.device.pe import POLL_LIMIT, DeviceOptions, Pe
from pymodel.device.queues import QpState, code_text
from pymodel.faults import AnyRule, from_sources, link_only
from pymodel.faults.log import counts
from pymodel.generation import Generation
from pymodel.host.config import FabricConfig
from pymodel.host.table import Fabric
from pymodel.model import SCHEDULES, ModelBackend, Schedule
from pymodel.nic.params import Cnt
from pymodel.nic.rules import MAX_MESSAGE
from pymodel.platform import Observer, PostInfo
from pymodel.run_checks import CompletionCheck, CqeCheck
from pymodel.runner import Backend, Core, Task
from pymodel.sanitizer import RaceSanitizer

Main: TypeAlias = "Callable[[Pe], Awaitable[Any]]"
"""What a program file defines: ``async def main(pe: Pe)``."""


FAULT_TIMER: Final = 9
"""Transport timer of runs with link faults (wire page 5): 2^9 units of 64 cycles, longer than an incast holds
up an answer."""


def with_fault_timers(config: FabricConfig, timer: int = FAULT_TIMER) -> FabricConfig:
    """The fabric with this transport timer on each QP for which it does not name one."""
    ranks = range(config.n_pes)
    ends = [(a, b, q) for a in ranks for b in ranks for q in range(config.qps) if a != b]
    timers = {end: {"timer": timer, **config.overrides.get(end, {})} for end in ends}
    return replace(config, overrides={**config.overrides, **timers})


class ProgramError(ValueError):
    """A program file that cannot be run; the text says why in one line."""


@dataclass(frozen=True)
class RunConfig:
    """A run in plain values, so that it can be handed to another process (`to_json`, `from_json`)."""

    program: str
    pes: int = 2
    on: str = "model"
    seed: int = 0
    schedule: str = "eager"
    qps: int = 1
    mixed: bool = False
    version: int = 2
    mtu: int = 4096
    depth: int = 64
    heap_mib: int = 16
    poll_limit: int | None = POLL_LIMIT
    hang_after: int = 2_000_000
    sanitize: bool = True
    generation: int = 1
    dirty_ub: bool = False
    signal_write: bool = False
    post_cycles: int = 0
    faults: Sequence[tuple[str, str]] = ()
    """Rules of the link: (what errors call the text, text)."""

    def options(self) -> DeviceOptions:
        """The knobs of the device API in this run."""
        return DeviceOptions(
            poll_limit=self.poll_limit, signal_write=self.signal_write, post_cycles=self.post_cycles
        )

    def fabric_config(self, program: Loaded | None = None) -> FabricConfig:
        """The fabric of this run: the program's own where it has one, else what the options say.

        Where the link has faults, QPs have FAULT_TIMER unless the fabric says otherwise: with the default a
        lost tail would cost a million cycles. Raises ValueError for what no fabric can be.
        """
        own = None if program is None else program.fabric
        config = self._fabric_of_options() if own is None else self._own_fabric(own)
        return with_fault_timers(config) if self.faults else config

    def _fabric_of_options(self) -> FabricConfig:
        generation = Generation(self.generation)
        if self.mixed:
            return FabricConfig.mixed(
                self.pes,
                self.qps,
                self.seed,
                heap_bytes=self.heap_mib << 20,
                generation=generation,
                ub_fill="dirty" if self.dirty_ub else "zero",
            )
        return FabricConfig(
            n_pes=self.pes,
            qps=self.qps,
            seed=self.seed,
            heap_bytes=self.heap_mib << 20,
            versions=(self.version,),
            mtus=(self.mtu,),
            sq_depths=(self.depth,),
            generation=generation,
            ub_fill="dirty" if self.dirty_ub else "zero",
        )

    def _own_fabric(self, fabric: Callable[[int, int], Any]) -> FabricConfig:
        try:
            config = fabric(self.pes, self.seed)
        except ValueError:
            raise
        except (Exception, SystemExit) as error:
            text = f"program {self.program}: fabric(n_pes, seed): {type(error).__name__}: {error}"
            raise ProgramError(text.splitlines()[0]) from error
        if not isinstance(config, FabricConfig):
            raise ProgramError(f"program {self.program}: fabric(n_pes, seed) gives no FabricConfig")
        if config.n_pes != self.pes:
            raise ProgramError(
                f"program {self.program}: its fabric has {config.n_pes} PEs where {self.pes} were asked for"
            )
        return config

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """The inverse of `to_json`."""
        values = json.loads(text)
        return cls(**{**values, "faults": tuple(map(tuple, values.get("faults", ())))})


class Loaded(NamedTuple):
    """What a program file defines: ``main(pe)`` and, if it needs its own, ``fabric(n_pes, seed)``."""

    main: Main
    fabric: Callable[[int, int], FabricConfig] | None = None


def load_program(path: str | Path) -> Main:
    """``main`` of a program file; see `load`."""
    return load(path).main


def load(path: str | Path) -> Loaded:
    """``main`` and ``fabric`` of a program file. Raises `ProgramError` where no main can run."""
    file = Path(path)
    if not file.is_file():
        raise ProgramError(f"program {path}: no such file")
    spec = importlib.util.spec_from_file_location(f"camhil_program_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ProgramError(f"program {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ProgramError(f"program {path}: {type(error).__name__}: {error}".splitlines()[0]) from error
    main = getattr(module, "main", None)
    if not inspect.iscoroutinefunction(main):
        raise ProgramError(f"program {path}: no 'async def main(pe)'")
    try:
        inspect.signature(main).bind(object())
    except TypeError as error:
        raise ProgramError(f"program {path}: main must take the PE as its only argument") from error
    return Loaded(main, getattr(module, "fabric", None))


@dataclass(slots=True)
class RunResult:
    """Outcome of a run.

    ``posts``: WQEs posted through the API, of which ``reads`` and ``atomics``; ``put_bytes`` and
    ``get_bytes``: payload of WRITEs and READs. ``atomics_checked``: old values that the programs compared.
    ``errors_provoked``: error CQEs that the programs had announced (`Pe.expect_errors`). ``problems``: what
    makes it a failure, one line each; ``returns``: of main, per PE; ``figures``: what the programs counted
    of their own work (`Pe.count`), summed.
    """

    cycles: int
    posts: int
    put_bytes: int
    get_bytes: int = 0
    reads: int = 0
    atomics: int = 0
    atomics_checked: int = 0
    errors_provoked: int = 0
    figures: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    returns: list[Any] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    """Applied faults by kind, and how often QPs went back: of the model's link."""
    retries: int = 0

    @property
    def good(self) -> bool:
        """No problem was found."""
        return not self.problems


class _Tally(Observer):
    """Posts by kind."""

    def __init__(self) -> None:
        self.count = {"WRITE": 0, "READ": 0, "ATOMIC": 0}
        self.bytes = {"WRITE": 0, "READ": 0, "ATOMIC": 0}

    def posted(self, post: PostInfo, task: Task) -> None:
        self.count[post.opcode] += 1
        length = post.length & 0xFFFF_FFFF
        # what is longer is refused
        self.bytes[post.opcode] += length if length <= MAX_MESSAGE else 0


class Run:
    """PEs and core of one run over ``backend``.

    ``mains``: one program for all PEs, or one per PE (None: that PE runs nothing). ``track_inbound``: the
    backend calls ``executed`` of the observers. ``sanitize``: races raise `RaceError`.
    """

    def __init__(
        self,
        fabric: Fabric,
        mains: Main | Sequence[Main | None],
        backend: Backend,
        *,
        seed: int = 0,
        options: DeviceOptions | None = None,
        sanitize: bool = True,
        track_inbound: bool = False,
        hang_after: int = 2_000_000,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.fabric, self.backend = fabric, backend
        self._tally = _Tally()
        self._cqes = CqeCheck(fabric, lambda pe, peer, qp: self.pes[pe].qp(peer, qp))
        self.sanitizer = RaceSanitizer(fabric.n_pes, track_inbound) if sanitize else None
        extra = (self.sanitizer,) if self.sanitizer is not None else ()
        self.core = Core(
            backend,
            seed,
            (*extra, self._tally, self._cqes, *observers),
            hang_after,
            last_wqe=lambda pe: self.pes[pe].last_wqe(),
        )
        self.pes = [Pe(fabric, rank, self.core, options) for rank in range(fabric.n_pes)]
        programs = [mains] * fabric.n_pes if callable(mains) else list(mains)
        if len(programs) != fabric.n_pes:
            raise ValueError(f"{len(programs)} programs for {fabric.n_pes} PEs")
        self.tasks = [
            None if main is None else self.core.start(pe.rank, _call(main, pe))
            for main, pe in zip(programs, self.pes, strict=True)
        ]

    def result(self) -> RunResult:
        """The verdict after the programs have ended (programs page, section 3): what must be 0 and is not."""
        count, size = self._tally.count, self._tally.bytes
        out = RunResult(
            self.backend.now(),
            sum(count.values()),
            size["WRITE"],
            size["READ"],
            count["READ"],
            count["ATOMIC"],
        )
        out.returns = [None if task is None else task.result for task in self.tasks]
        out.atomics_checked = sum(pe.atomics_checked for pe in self.pes)
        errors: list[str] = []
        for pe in self.pes:
            for figure, number in pe.figures.items():
                out.figures[figure] = out.figures.get(figure, 0) + number
            for qp in pe.qps():
                out.errors_provoked += sum(code in qp.provoked for _, code in qp.errors)
                # errors before what follows from them, on whatever QP
                errors += [
                    f"{place(pe, qp)}: {error_text(pe, qp, index, code)}"
                    for index, code in qp.errors
                    if code not in qp.provoked
                ]
                out.problems += [f"{place(pe, qp)}: {problem}" for problem in _problems(qp)]
        out.problems = [*errors, *out.problems]
        out.problems += self._cqes.findings
        if self.sanitizer is not None:
            for post in self.sanitizer.open_posts():
                if not self.pes[post.pe].qp(post.peer, post.qp).provoked:
                    out.problems.append(f"missing quiet: PE {post.pe} ended without a quiet after {post}")
        return out


def _problems(qp: QpState) -> list[str]:
    """What is wrong with a QP at the end of a run besides error CQEs, one line each."""
    out = []
    if qp.dropped and not qp.provoked:
        out.append(f"{qp.dropped} posts dropped silently")
    if qp.deferred:
        out.append(f"{qp.deferred} requests deferred and never submitted")
    if qp.timeouts:
        out.append(f"poll_cq timed out {qp.timeouts} times")
    if qp.provoked and not qp.errors:
        out.append(f"none of the errors announced came: {', '.join(map(code_text, sorted(qp.provoked)))}")
    return out


async def _call(main: Main, pe: Pe) -> Any:
    return await main(pe)


class _Executions(Observer):
    """Hands what the golden NICs execute to the observers of a run, in their terms."""

    def __init__(self, run: Run, backend: ModelBackend) -> None:
        for rank, nic in enumerate(backend.nics):
            nic.on_executed = self._hook(run, rank)

    @staticmethod
    def _hook(run: Run, rank: int) -> Callable[[int, int], None]:
        def executed(qpn: int, index: int) -> None:
            plan = run.fabric.by_qpn.get((rank, qpn))
            if plan is not None:
                for hook in run.core.hooks.executed:
                    hook(plan.peer, rank, plan.qp_idx, index)

        return executed


class ModelRun(Run):
    """A run over golden NICs; `run` is the whole of it."""

    def __init__(
        self,
        fabric: Fabric,
        mains: Main | Sequence[Main | None],
        schedule: Schedule = "eager",
        *,
        seed: int = 0,
        options: DeviceOptions | None = None,
        sanitize: bool = True,
        hang_after: int = 2_000_000,
        observers: Sequence[Observer] = (),
        faults: Sequence[AnyRule] = (),
    ) -> None:
        self.model = ModelBackend(fabric, schedule, seed, faults)
        self.completions = CompletionCheck(fabric, self.model)
        super().__init__(
            fabric,
            mains,
            self.model,
            seed=seed,
            options=options,
            sanitize=sanitize,
            track_inbound=True,
            hang_after=hang_after,
            observers=(self.completions, *observers),
        )
        _Executions(self, self.model)

    def run(self) -> RunResult:
        """Run to the end. Raises what a program raises, `RaceError` and `HangError`."""
        try:
            while (due := self.core.run_ready()) is not None:
                self.model.advance(due)
        except Exception as error:
            blame(error, self.pes)
            raise
        finally:
            self.core.close()
        self.model.settle()
        out = self.result()
        out.problems += self.completions.findings
        return out


def run_on_model(config: RunConfig, program: Loaded | None = None) -> RunResult:
    """Run a configuration under its schedule; ``program`` instead of loading its file where given."""
    if config.schedule not in SCHEDULES:
        raise ValueError(f"schedule {config.schedule!r} is not one of {', '.join(SCHEDULES)}")
    loaded = program or load(config.program)
    rules = from_sources(config.faults)
    link_only(rules)
    run = ModelRun(
        Fabric.build(config.fabric_config(loaded)),
        loaded.main,
        config.schedule,
        seed=config.seed,
        options=config.options(),
        sanitize=config.sanitize,
        # a QP whose packets are all lost takes eight timer periods to give up
        hang_after=config.hang_after * (2 if rules else 1),
        faults=rules,
    )
    result = run.run()
    if run.model.link is not None:
        result.faults = {kind: n for kind, n in counts(run.model.link.log()).items() if n}
        result.retries = sum(nic.counters[Cnt.RETRY] for nic in run.model.nics)
    return result
