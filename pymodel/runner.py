"""The scheduling core that drives device programs, the same over the golden NICs and over the RTL.

`Core.run_ready` is one synchronous step: it wakes what is due, lets every ready task run until it sleeps,
and says when it must be called again at the latest. A loop (model) or a simulator's coroutine (RTL) calls
it, lets time pass and calls it again. Rules: programs page, section 1.
"""

from __future__ import annotations

import random
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymodel import unawaited
from pymodel.platform import (
    Bytes,
    Join,
    MmioWrite,
    Now,
    Observer,
    Program,
    Request,
    Spawn,
    Store,
    Wait,
)

MAILBOX_RETRY = 32
"""NIC cycles after which a write that met a full mailbox is tried again."""

UNARMED = -1


class Backend(Protocol):
    """What a platform provides; every call returns at once and simulation time stands still meanwhile."""

    def now(self) -> int:
        """NIC cycles since reset."""
        ...

    def memory(self, pe: int, addr: int, length: int) -> NDArray[np.uint8]:
        """Read-only live view of shape (length,); raises on unmapped addresses."""
        ...

    def store(self, pe: int, addr: int, data: Bytes) -> None:
        """Write and record a store of the program."""
        ...

    def mmio_write(self, pe: int, addr: int, data: int) -> bool:
        """Post one 64-bit BAR write; False when the mailbox is full (nothing was posted)."""
        ...

    def watch(self, pe: int, addr: int, length: int, hits: int) -> int:
        """Arm a one-shot count of NIC write beats into a range; the answer names it."""
        ...

    def unwatch(self, watch: int) -> None:
        """Disarm; unknown or fired watches are ignored."""
        ...

    def fired(self) -> Sequence[int]:
        """Watches that fired since the last call."""
        ...


class Hooks:
    """Per hook of `Observer` the methods of those observers that override it: the others cost nothing."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.started = [o.started for o in observers if _overrides(o, "started")]
        self.ended = [o.ended for o in observers if _overrides(o, "ended")]
        self.stored = [o.stored for o in observers if _overrides(o, "stored")]
        self.read = [o.read for o in observers if _overrides(o, "read")]
        self.owned = [o.owned for o in observers if _overrides(o, "owned")]
        self.posted = [o.posted for o in observers if _overrides(o, "posted")]
        self.dropped = [o.dropped for o in observers if _overrides(o, "dropped")]
        self.polled = [o.polled for o in observers if _overrides(o, "polled")]
        self.quieted = [o.quieted for o in observers if _overrides(o, "quieted")]
        self.fetched = [o.fetched for o in observers if _overrides(o, "fetched")]
        self.executed = [o.executed for o in observers if _overrides(o, "executed")]
        self.finished = [o.finished for o in observers if _overrides(o, "finished")]


def _overrides(observer: Observer, hook: str) -> bool:
    return getattr(type(observer), hook) is not getattr(Observer, hook)


class HangError(RuntimeError):
    """Nothing moves any more; the text has one line per PE."""


@dataclass(slots=True, eq=False)
class Task:
    """One coroutine of one PE."""

    pe: int
    name: str
    program: Program
    number: int
    done: bool = False
    result: Any = None
    wait: Wait | None = None
    since: int = 0
    value: Any = None
    armed: list[int] = field(default_factory=list)
    blocked: MmioWrite | None = None
    joining: Task | None = None
    joined: list[Task] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name} of PE {self.pe}"


def _place(error: BaseException) -> str:
    """The innermost line of the program's own file that ``error`` came through."""
    own = Path(__file__).parent
    frames = [f for f in traceback.extract_tb(error.__traceback__) if own not in Path(f.filename).parents]
    lines = [frame.lineno for frame in frames if frame.filename == frames[0].filename]
    return f", line {lines[-1]} of {Path(frames[0].filename).name}" if lines else ""


def _noted(error: BaseException, note: str) -> BaseException:
    """``error`` with a note; a program that exits would end the whole run, so that becomes an error."""
    if isinstance(error, SystemExit):
        error = RuntimeError(f"the program called exit({error.code!r})")
    error.add_note(note)
    return error


def _no_last_wqe(pe: int) -> str:
    return ""


class Core:
    """Ready set, sleepers, deadlines and the hang report of one run.

    ``seed`` decides the order of the ready tasks on each wake-up. ``hang_after`` is the number of NIC
    cycles without any task resuming after which the run counts as hung. ``last_wqe`` gives the state of a
    PE's last WQE as text.
    """

    def __init__(
        self,
        backend: Backend,
        seed: int = 0,
        observers: Sequence[Observer] = (),
        hang_after: int = 2_000_000,
        last_wqe: Callable[[int], str] = _no_last_wqe,
    ) -> None:
        self.backend = backend
        self.hooks = Hooks(observers)
        self.hang_after = hang_after
        self.last_wqe = last_wqe
        self.current: Task | None = None
        self.tasks: list[Task] = []
        self.wakeups = 0
        self._rng = random.Random(f"order {seed}")
        self._ready: deque[Task] = deque()
        self._sleeping: dict[int, Task] = {}
        self._by_watch: dict[int, Task] = {}
        self._mailbox: list[Task] = []
        self._progress = 0
        self._live = 0
        self._unawaited = unawaited.Watch(self._where)

    # ------------------------------------------------------------------ tasks
    def start(self, pe: int, program: Program, name: str = "main") -> Task:
        """Add a task; it runs at the next `run_ready` (or in the running one)."""
        task = Task(pe, name or f"task {len(self.tasks)}", program, len(self.tasks))
        self.tasks.append(task)
        self._live += 1
        self._ready.append(task)
        for started in self.hooks.started:
            started(pe, task)
        return task

    @property
    def finished(self) -> bool:
        """True when every task has returned."""
        return self._live == 0

    def close(self) -> None:
        """Close the coroutines of unfinished tasks (after an error)."""
        for task in self.tasks:
            if not task.done:
                task.program.close()

    # ------------------------------------------------------------------ the step
    def run_ready(self) -> int | None:
        """Wake what is due and run until every task sleeps.

        Gives the absolute cycle at which it must run again even if no watch fires; None when all tasks ended.
        Raises what a program raises (with a note that names the task), `HangError`, and `UnawaitedError` for
        a forgotten ``await``, whatever else followed from it.
        """
        with self._unawaited as watch:
            try:
                due = self._advance()
                watch.check()
                return due
            except Exception as error:
                if watch.found and not isinstance(error, unawaited.UnawaitedError):
                    raise unawaited.UnawaitedError(watch.found[0]) from error
                raise

    def _advance(self) -> int | None:
        now = self.backend.now()
        self._wake(now)
        ready = self._ready
        if ready:
            self._progress = now
            self.wakeups += 1
            if len(ready) > 1:
                order = list(ready)
                self._rng.shuffle(order)
                ready.clear()
                ready.extend(order)
            # Each round lets every ready task run to its next request, so that stores and doorbells of
            # several PEs interleave in the drawn order.
            while ready:
                task = ready.popleft()
                if self._step(task):
                    ready.append(task)
                self._unawaited.check()
        if self._live == 0:
            for task in self.tasks:
                # ``return pe.quiet(1)`` instead of ``return await``
                if unawaited.is_unstarted(task.result):
                    self.current = task
                    self._unawaited.note(task.result)
                    task.result.close()
            return None
        # Time that a program asked to pass is no hang.
        timed = any(not t.wait.watches for t in self._sleeping.values() if t.wait and t.wait.deadline)
        if now - self._progress >= self.hang_after and not timed:
            raise HangError(self.hang_report())
        due = max(self._progress, now if timed else 0) + self.hang_after
        for task in self._sleeping.values():
            wait = task.wait
            if wait is not None and wait.deadline is not None and wait.deadline < due:
                due = wait.deadline
        if self._mailbox:
            due = min(due, now + MAILBOX_RETRY)
        return max(due, now + 1)

    def _wake(self, now: int) -> None:
        touched: dict[int, Task] = {}
        for watch in self.backend.fired():
            task = self._by_watch.pop(watch, None)
            if task is not None:
                task.armed[task.armed.index(watch)] = UNARMED
                touched[task.number] = task
        for number, task in self._sleeping.items():
            wait = task.wait
            if wait is not None and wait.deadline is not None and wait.deadline <= now:
                touched[number] = task
        for task in touched.values():
            wait = task.wait
            assert wait is not None
            if wait.until is None:
                self._rouse(task, UNARMED in task.armed)
                continue
            if wait.deadline is None or wait.deadline > now:
                self._arm(task, wait)
            if self._holds(task, wait.until):
                self._rouse(task, True)
            elif wait.deadline is not None and wait.deadline <= now:
                self._rouse(task, False)
        if self._mailbox:
            blocked, self._mailbox = self._mailbox, []
            full: set[int] = set()
            for task in blocked:
                write = task.blocked
                assert write is not None
                # a PE whose first write does not fit keeps the order of the later ones
                if task.pe in full or not self.backend.mmio_write(task.pe, write.addr, write.data):
                    full.add(task.pe)
                    self._mailbox.append(task)
                else:
                    task.blocked = None
                    self._ready.append(task)

    def _holds(self, task: Task, until: Callable[[], bool]) -> bool:
        # no task is current here, so what the condition reads counts as synchronised
        try:
            return bool(until())
        except BaseException as error:
            note = f"in a wait of {task}, cycle {self.backend.now()}{_place(error)}"
            raise _noted(error, note) from error.__cause__

    def _arm(self, task: Task, wait: Wait) -> None:
        if not task.armed:
            task.armed = [UNARMED] * len(wait.watches)
        for place, watch in enumerate(wait.watches):
            if task.armed[place] == UNARMED:
                number = self.backend.watch(task.pe, watch.addr, watch.length, watch.hits)
                task.armed[place] = number
                self._by_watch[number] = task

    def _disarm(self, task: Task) -> None:
        for watch in task.armed:
            if watch != UNARMED:
                self._by_watch.pop(watch, None)
                self.backend.unwatch(watch)
        task.armed = []

    def _rouse(self, task: Task, value: Any) -> None:
        self._disarm(task)
        task.wait = None
        task.value = value
        del self._sleeping[task.number]
        self._ready.append(task)

    def _step(self, task: Task) -> bool:
        """Run ``task`` to its next request and serve it; True if the task can go on at once."""
        self.current = task
        value, task.value = task.value, None
        try:
            request: Request = task.program.send(value)
        except StopIteration as stop:
            self._end(task, stop.value)
            return False
        except BaseException as error:
            task.done = True
            self._live -= 1
            noted = _noted(error, f"in {self._where()}{_place(error)}")
            for text in unawaited.kept_by(error):
                noted.add_note(text)
            raise noted from error.__cause__
        finally:
            self.current = None
        if isinstance(request, Store):
            if not request.device:
                for stored in self.hooks.stored:
                    stored(task.pe, request.addr, len(request.data), task)
            self.backend.store(task.pe, request.addr, request.data)
            return True
        if isinstance(request, MmioWrite):
            # behind a blocked write of the same PE the order has to be kept
            waiting = self._mailbox and any(other.pe == task.pe for other in self._mailbox)
            if not waiting and self.backend.mmio_write(task.pe, request.addr, request.data):
                return True
            task.blocked = request
            task.since = self.backend.now()
            self._mailbox.append(task)
            return False
        if isinstance(request, Wait):
            return self._sleep(task, request)
        if isinstance(request, Now):
            task.value = self.backend.now()
            return True
        if isinstance(request, Spawn):
            task.value = self.start(task.pe, request.program, request.name)
            return True
        if isinstance(request, Join):
            if request.task.done:
                task.value = request.task.result
                return True
            task.joining = request.task
            task.since = self.backend.now()
            request.task.joined.append(task)
            return False
        raise TypeError(f"{task} awaited {request!r}, which no awaitable of pymodel.platform yields")

    def _sleep(self, task: Task, wait: Wait) -> bool:
        now = self.backend.now()
        task.wait = wait
        if wait.deadline is None or wait.deadline > now:
            self._arm(task, wait)
        if wait.until is not None and self._holds(task, wait.until):
            task.value = True
        elif wait.deadline is not None and wait.deadline <= now:
            task.value = False
        else:
            task.since = now
            self._sleeping[task.number] = task
            return False
        self._disarm(task)
        task.wait = None
        return True

    def _end(self, task: Task, result: Any) -> None:
        task.done, task.result = True, result
        self._live -= 1
        for waiter in task.joined:
            waiter.value, waiter.joining = result, None
            self._ready.append(waiter)
        for ended in self.hooks.ended:
            ended(task.pe, task)
        if self._live == 0:
            for finished in self.hooks.finished:
                finished()

    # ------------------------------------------------------------------ reports
    def _where(self) -> str:
        return f"{self.current or 'a wait'}, cycle {self.backend.now()}"

    def hang_report(self) -> str:
        """One line per unfinished task, so at least one per waiting PE.

        What it waits for, from whom, its last WQE.
        """
        now = self.backend.now()
        lines = [f"hang: nothing moved for {now - self._progress} cycles (cycle {now})"]
        for pe in sorted({task.pe for task in self.tasks}):
            mine = [task for task in self.tasks if task.pe == pe]
            open_tasks = [task for task in mine if not task.done]
            if not open_tasks:
                lines.append(f"PE {pe}: its program has ended; {self._last(pe)}")
            for task in open_tasks:
                lines.append(f"PE {pe}: {self._state(task)}; {self._last(pe)}")
        return "\n".join(lines)

    def _last(self, pe: int) -> str:
        return f"last WQE: {self.last_wqe(pe) or 'none'}"

    @staticmethod
    def _state(task: Task) -> str:
        name = "" if task.name == "main" else f"{task.name} "
        if task.wait is not None:
            source = "" if task.wait.peer is None else f" from PE {task.wait.peer}"
            limit = "" if task.wait.deadline is None else f", until cycle {task.wait.deadline}"
            return f"{name}waits for {task.wait.what}{source} since cycle {task.since}{limit}"
        if task.blocked is not None:
            return f"{name}waits for room in the mailbox since cycle {task.since}"
        if task.joining is not None:
            return f"{name}waits for the end of {task.joining.name} since cycle {task.since}"
        return f"{name}is ready to run"
