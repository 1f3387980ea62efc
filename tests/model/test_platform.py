"""Scheduling core and awaitables.

Sweep: seeds; watches, deadlines, full mailboxes, tasks. Stimulus: small programs over a scripted backend
(time and writes made by the test) and over golden NICs. Checks: order of arm, test and sleep; what each
wake-up does; posted writes in order; hang report. Timing: the backend's clock is set by hand. Does not
prove: anything about a NIC.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pymodel.device import Pe
from pymodel.platform import Watch, join, mmio_write, now, sleep, spawn, store, wait
from pymodel.runner import MAILBOX_RETRY, Core, HangError
from tests.model.model_programs import model_run, only


class Scripted:
    """Backend with one 4 KiB memory per PE, a clock set by the test and a log of the calls."""

    def __init__(self, pes: int = 2, mailbox: int = 1 << 30) -> None:
        self.time, self.room = 0, mailbox
        self.bytes = [np.zeros(4096, np.uint8) for _ in range(pes)]
        self.log: list[tuple[Any, ...]] = []
        self.armed: dict[int, list[int]] = {}
        self.hits: list[int] = []
        self.number = 0

    def now(self) -> int:
        return self.time

    def memory(self, pe: int, addr: int, length: int) -> NDArray[np.uint8]:
        return self.bytes[pe][addr : addr + length]

    def store(self, pe: int, addr: int, data: Any) -> None:
        self.log.append(("store", pe, addr, bytes(data)))
        self.bytes[pe][addr : addr + len(data)] = np.frombuffer(data, np.uint8)

    def mmio_write(self, pe: int, addr: int, data: int) -> bool:
        if self.room == 0:
            self.log.append(("full", pe))
            return False
        self.room -= 1
        self.log.append(("mmio", pe, addr, data))
        return True

    def watch(self, pe: int, addr: int, length: int, hits: int) -> int:
        self.number += 1
        self.armed[self.number] = [pe, addr, addr + length, hits]
        self.log.append(("arm", pe, addr))
        return self.number

    def unwatch(self, watch: int) -> None:
        self.armed.pop(watch, None)
        self.log.append(("disarm", watch))

    def fired(self) -> list[int]:
        out, self.hits = self.hits, []
        return out

    def nic_write(self, pe: int, addr: int, value: int) -> None:
        """One beat of one byte."""
        self.bytes[pe][addr] = value
        for number, watch in list(self.armed.items()):
            if watch[0] == pe and watch[1] <= addr < watch[2]:
                watch[3] -= 1
                if watch[3] == 0:
                    del self.armed[number]
                    self.hits.append(number)


def _core(backend: Scripted, *programs: Any, seed: int = 0, **options: Any) -> Core:
    core = Core(backend, seed, **options)
    for pe, program in enumerate(programs):
        core.start(pe, program)
    return core


def test_arm_test_sleep_in_this_order() -> None:
    """Arm test sleep in this order."""
    backend, seen = Scripted(), []

    def until() -> bool:
        seen.append([entry[0] for entry in backend.log])
        return bool(backend.bytes[0][8])

    async def program() -> Any:
        return await wait((Watch(8, 1),), None, until)

    core = _core(backend, program())
    core.run_ready()
    assert seen == [["arm"]], "memory is tested once, after the watch is armed"
    core.run_ready()
    assert len(seen) == 1, "a predicate is evaluated only on a wake-up"
    backend.nic_write(0, 8, 0)
    core.run_ready()
    assert len(seen) == 2 and seen[1][-1] == "arm", "armed again before the second test"
    backend.nic_write(0, 8, 1)
    assert core.run_ready() is None and core.tasks[0].result is True
    assert not backend.armed


def test_no_sleep_where_the_condition_holds_already() -> None:
    """No sleep where the condition holds already."""
    backend = Scripted()
    backend.bytes[0][8] = 1

    async def program() -> Any:
        return await wait((Watch(8, 1),), None, lambda: bool(backend.bytes[0][8]))

    core = _core(backend, program())
    assert core.run_ready() is None and core.tasks[0].result is True
    assert not backend.armed, "the watch does not stay behind"


@pytest.mark.parametrize(
    ("at", "value", "answer"), [(99, 0, None), (100, 0, False), (100, 1, True), (101, 1, True)]
)
def test_deadline_tests_memory_once_more(at: int, value: int, answer: bool | None) -> None:
    """A write that no watch saw but that stands at the deadline still counts.

    The last try is at the deadline.
    """
    backend = Scripted()

    async def program() -> Any:
        return await wait((Watch(8, 1),), 100, lambda: bool(backend.bytes[0][9]))

    core = _core(backend, program())
    assert core.run_ready() == 100
    backend.time, backend.bytes[0][9] = at, value
    due = core.run_ready()
    assert core.tasks[0].result is answer
    assert due == (100 if answer is None else None)


def test_hits_count_beats() -> None:
    """Hits count beats."""
    backend = Scripted()

    async def program() -> Any:
        return await wait((Watch(0, 64, hits=3),))

    core = _core(backend, program())
    for beat in range(3):
        core.run_ready()
        assert not core.finished
        backend.nic_write(0, beat, 1)
    assert core.run_ready() is None


def test_order_comes_from_the_seed_and_changes_between_wakeups() -> None:
    """Order comes from the seed and changes between wakeups."""

    def orders(seed: int) -> list[list[int]]:
        backend = Scripted(8)

        async def program(pe: int) -> None:
            for step in range(6):
                await wait((), 10 * (step + 1))
                await store(0, bytes([pe]))

        core = _core(backend, *(program(pe) for pe in range(8)), seed=seed)
        while (due := core.run_ready()) is not None:
            backend.time = due
        pes = [entry[1] for entry in backend.log]
        return [pes[i : i + 8] for i in range(0, len(pes), 8)]

    first = orders(1)
    assert first == orders(1)
    assert first != orders(2)
    assert len({tuple(order) for order in first}) > 1
    assert all(sorted(order) == list(range(8)) for order in first)


def test_ready_programs_alternate_request_by_request() -> None:
    """Ready programs alternate request by request."""
    backend = Scripted()

    async def program() -> None:
        for step in range(4):
            await store(step, b"x")

    core = _core(backend, program(), program())
    core.run_ready()
    pes = [entry[1] for entry in backend.log]
    assert pes in ([0, 1] * 4, [1, 0] * 4)


def test_full_mailbox_blocks_and_keeps_the_order() -> None:
    """Full mailbox blocks and keeps the order."""
    backend = Scripted(1, mailbox=2)

    async def side() -> None:
        await mmio_write(100, 100)

    async def program() -> None:
        for value in range(4):
            await mmio_write(value, value)
        await join(await spawn(side(), "side"))
        await store(0, b"end")

    core = _core(backend, program())
    assert core.run_ready() == MAILBOX_RETRY
    assert [e for e in backend.log if e[0] == "mmio"] == [("mmio", 0, 0, 0), ("mmio", 0, 1, 1)]
    backend.time = MAILBOX_RETRY
    core.run_ready()
    backend.room = 1
    core.run_ready()
    assert backend.log[-1] == ("full", 0)
    backend.room = 9
    assert core.run_ready() is None
    assert [e[2] for e in backend.log if e[0] == "mmio"] == [0, 1, 2, 3, 100]
    assert backend.log[-1][0] == "store"


def test_two_tasks_behind_a_full_mailbox_stay_in_order() -> None:
    """Two tasks behind a full mailbox stay in order."""
    backend = Scripted(1, mailbox=0)

    async def task(first: int) -> None:
        await mmio_write(first, 0)
        await mmio_write(first + 1, 0)

    core = Core(backend)
    core.start(0, task(10))
    core.start(0, task(20))
    core.run_ready()
    blocked = [t.blocked.addr for t in core._mailbox if t.blocked]
    backend.room = 1
    core.run_ready()
    done = [e[2] for e in backend.log if e[0] == "mmio"]
    assert done == [blocked[0]], "the one that came first goes first, and no later write of the PE overtakes"
    backend.room = 9
    assert core.run_ready() is None


class Moody(Scripted):
    """A mailbox that refuses the calls named in ``refuse``, counted from 0."""

    def __init__(self, refuse: set[int]) -> None:
        super().__init__(1)
        self.refuse, self.calls = refuse, 0

    def mmio_write(self, pe: int, addr: int, data: int) -> bool:
        self.calls += 1
        return self.calls - 1 not in self.refuse and super().mmio_write(pe, addr, data)


@pytest.mark.parametrize("refuse", [{0}, {0, 1}])
def test_no_write_overtakes_one_that_was_refused(refuse: set[int]) -> None:
    """Even where room appears between two calls: the order of one PE's writes stands."""
    backend, order = Moody(refuse), []

    async def task(number: int) -> None:
        order.append(number)
        await mmio_write(number, 0)

    core = Core(backend)
    core.start(0, task(0))
    core.start(0, task(1))
    while core.run_ready() is not None:
        pass
    assert [entry[2] for entry in backend.log] == order


def test_spawn_join_and_time() -> None:
    """Spawn join and time."""
    backend = Scripted()

    async def child(cycles: int) -> int:
        await sleep(cycles)
        return await now()

    async def program() -> Any:
        one, two = await spawn(child(50), "one"), await spawn(child(20), "two")
        return [await join(one), await join(two)]

    core = _core(backend, program())
    while (due := core.run_ready()) is not None:
        backend.time = due
    assert core.tasks[0].result == [50, 20]


def test_an_exception_names_the_task_and_closes_nothing_silently() -> None:
    """An exception names the task and closes nothing silently."""

    async def program() -> None:
        await sleep(5)
        raise KeyError("planted")

    backend = Scripted()
    core = _core(backend, program())
    core.run_ready()
    backend.time = 5
    with pytest.raises(KeyError) as caught:
        core.run_ready()
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"in main of PE 0, cycle 5, line \d+ of test_platform\.py", note)


def test_a_foreign_awaitable_is_refused() -> None:
    """A foreign awaitable is refused."""

    class Foreign:
        def __await__(self) -> Any:
            yield "something"

    async def program() -> None:
        await Foreign()

    with pytest.raises(TypeError, match="which no awaitable of pymodel.platform yields"):
        _core(Scripted(), program()).run_ready()


def test_hang_after_counts_from_the_last_progress() -> None:
    """Hang after counts from the last progress."""
    backend = Scripted()

    async def program() -> None:
        await sleep(600)
        await wait((Watch(0, 4),), what="the flag", peer=3)

    core = _core(backend, program(), hang_after=1000)
    while backend.time < 1600:
        due = core.run_ready()
        assert due is not None
        backend.time = due
    with pytest.raises(HangError, match="PE 0: waits for the flag from PE 3 since cycle 600; last WQE: none"):
        core.run_ready()


def test_a_long_sleep_is_no_hang() -> None:
    """A long sleep is no hang."""

    async def program(pe: Pe) -> None:
        await pe.sleep(5000)

    assert model_run(program, hang_after=100).run().good


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_hang_report_has_a_line_per_pe(schedule: Any) -> None:
    """PE 0 waits for a flag that PE 1 never sends; PE 2 has ended; PE 1 waits for PE 0."""

    async def program(pe: Pe) -> None:
        flag, src = pe.alloc(4), pe.alloc(64)
        if pe.rank == 0:
            await pe.put_nbi(src, src, 40, 2)
            await pe.quiet(2)
            await pe.wait_value(flag, 7, peer=1)
        elif pe.rank == 1:
            await pe.wait_until(flag, 4, lambda view: bool(view.any()), peer=0, what="the answer", hits=1)

    with pytest.raises(HangError) as caught:
        model_run(program, schedule, n_pes=3).run()
    lines = str(caught.value).splitlines()
    assert len(lines) == 4 and lines[0].startswith("hang: nothing moved for 2000000 cycles")
    assert lines[1].startswith("PE 0: waits for the 4-byte value at 0x")
    assert "to become 7 from PE 1 since cycle" in lines[1]
    assert "last WQE: WRITE 0 of PE 0 to PE 2, QP 0 (40 bytes" in lines[1]
    assert lines[1].endswith("its CQE was consumed")
    assert lines[2].startswith("PE 1: waits for the answer from PE 0 since cycle")
    assert lines[3].startswith("PE 2: its program has ended; last WQE: none")


def test_hang_report_of_a_quiet_that_never_ends() -> None:
    """The peer's QP goes to ERR behind our back: no acknowledgement ever comes."""

    async def program(pe: Pe) -> None:
        src = pe.alloc(64)
        await pe.put_nbi(src, src, 40, 1)
        await pe.quiet(1)

    run = model_run(only(0, program), n_pes=2)
    qpn = run.fabric.qps[1, 0, 0].qpn
    run.model.nics[1]._to_error(run.model.nics[1]._qps[qpn])
    with pytest.raises(HangError) as caught:
        run.run()
    line = str(caught.value).splitlines()[1]
    plan = run.fabric.qps[0, 1, 0]
    assert f"PE 0: waits for CQE 0 (to reach 1) on QP 0 (QPN {plan.qpn}, CQN {plan.cqn}) from PE 1" in line
    assert line.endswith("no CQE yet")


def test_memory_views_are_read_only() -> None:
    """Memory views are read only."""

    async def program(pe: Pe) -> None:
        view = pe.memory(pe.alloc(8), 8)
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1

    assert model_run(program).run().good


def test_pymodel_imports_neither_asyncio_nor_cocotb() -> None:
    """Pymodel imports neither asyncio nor cocotb."""
    import subprocess
    import sys

    code = (
        "import sys, pymodel.run, pymodel.cli\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('cocotb', 'tb', 'pyuvm')]\n"
        "mine = [m for n, m in sys.modules.items() if n.startswith('pymodel') and hasattr(m, 'asyncio')]\n"
        "assert not bad and not mine, (bad, mine)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


Program = Callable[[Pe], Awaitable[None]]
