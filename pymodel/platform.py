"""The one interface between device programs and what runs them.

A device program is an ``async def`` that awaits the awaitables of this module; each yields one small
request object that a runner serves by ``send()``. Neither asyncio nor a simulator's scheduler takes part,
so the same program runs over the golden NICs alone and over the RTL. Rules: programs page, section 1.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pymodel.device.wr import Operands
    from pymodel.runner import Task

Bytes: TypeAlias = "bytes | bytearray | memoryview | NDArray[np.uint8]"
"""What a store accepts: n bytes, one dimension."""

Program: TypeAlias = "Coroutine[Request, Any, Any]"
"""A started device program, or a part of one."""


@dataclass(slots=True)
class Store:
    """Write ``data`` at ``addr`` of the own PE's memory.

    ``device`` marks stores of the device API itself (WQE slots, head and tail cells): those are recorded
    like any other, but the race sanitizer judges only the program's own.
    """

    addr: int
    data: Bytes
    device: bool = False


@dataclass(slots=True)
class MmioWrite:
    """Posted 64-bit write ``data`` to the own NIC's BAR at ``addr``.

    Blocks only while the mailbox is full.
    """

    addr: int
    data: int


@dataclass(slots=True)
class Watch:
    """Count of NIC write beats into ``[addr, addr + length)`` of the own memory; fires at ``hits``."""

    addr: int
    length: int
    hits: int = 1


@dataclass(slots=True)
class Wait:
    """Sleep until ``until()`` holds (answer True) or ``deadline`` has passed (answer False).

    ``deadline`` is an absolute time in NIC cycles. Without ``until`` the first watch that fires ends the
    sleep with True. The runner arms ``watches``, calls ``until`` (which looks at memory), and only then
    sleeps; it calls ``until`` again on each wake-up. ``what`` and ``peer`` go into the hang report. What
    ``until`` reads synchronises with the writer, so the race sanitizer does not count it.
    """

    watches: tuple[Watch, ...]
    deadline: int | None = None
    until: Callable[[], bool] | None = None
    what: str = "an event"
    peer: int | None = None


@dataclass(slots=True)
class Spawn:
    """Start ``program`` as a further task of the own PE; the answer is its task."""

    program: Program
    name: str = ""


@dataclass(slots=True)
class Join:
    """Wait for the end of ``task``; the answer is what it returned."""

    task: Task


@dataclass(slots=True)
class Now:
    """The answer is the current time in NIC cycles."""


Request: TypeAlias = "Store | MmioWrite | Wait | Spawn | Join | Now"


@types.coroutine
def store(addr: int, data: Bytes, device: bool = False) -> Generator[Store, None, None]:
    """Write ``data`` (n bytes) at ``addr`` of the own memory; visible and recorded when it returns."""
    yield Store(addr, data, device)


@types.coroutine
def mmio_write(addr: int, data: int) -> Generator[MmioWrite, None, None]:
    """Post one aligned 64-bit BAR write; writes of one PE arrive in order."""
    yield MmioWrite(addr, data)


@types.coroutine
def wait(
    watches: Iterable[Watch],
    deadline: int | None = None,
    until: Callable[[], bool] | None = None,
    *,
    what: str = "an event",
    peer: int | None = None,
) -> Generator[Wait, bool, bool]:
    """Sleep until ``until()`` holds; False if ``deadline`` passed first. See `Wait`."""
    return (yield Wait(tuple(watches), deadline, until, what, peer))


@types.coroutine
def spawn(program: Program, name: str = "") -> Generator[Spawn, Task, Task]:
    """Run ``program`` beside the caller, on the same PE."""
    return (yield Spawn(program, name))


@types.coroutine
def join(task: Task) -> Generator[Join, Any, Any]:
    """Wait for the end of a spawned task and give its result."""
    return (yield Join(task))


@types.coroutine
def now() -> Generator[Now, int, int]:
    """Time in NIC cycles since reset."""
    return (yield Now())


async def sleep(cycles: int) -> None:
    """Wait for ``cycles`` NIC cycles."""
    start = await now()
    await wait((), start + cycles, what=f"{cycles} cycles to pass")


class Platform(Protocol):
    """What runs a program, seen from outside the program: read-only memory and the clock."""

    def memory(self, pe: int, addr: int, length: int) -> NDArray[np.uint8]:
        """Read-only live view, shape (length,), of PE ``pe``'s memory.

        Raises `UnmappedError` outside its regions.
        """
        ...

    def now(self) -> int:
        """Time in NIC cycles since reset."""
        ...


class UnmappedError(LookupError):
    """An access to an address that no region of the PE holds."""

    def __init__(self, pe: int, addr: int, length: int) -> None:
        super().__init__(f"PE {pe}: no region holds {length} bytes at {addr:#x}")
        self.pe, self.addr, self.length = pe, addr, length


@dataclass(slots=True)
class PostInfo:
    """One work request as the device API posted it, for observers and reports."""

    pe: int
    peer: int
    qp: int
    index: int
    """32-bit head before the post: the WQE's own index."""
    opcode: str
    """``WRITE``, ``READ`` or ``ATOMIC``."""
    length: int
    """Bytes moved: 8 or 4 for atomics."""
    local: int
    remote: int
    time: int
    msg_opcode: int = 0
    """The WQE's own opcode."""
    operands: Operands | None = None
    """Of atomics."""

    def __str__(self) -> str:
        way = {"WRITE": "->", "READ": "<-"}.get(self.opcode, "<->")
        return (
            f"{self.opcode} {self.index} of PE {self.pe} to PE {self.peer}, QP {self.qp}"
            f" ({self.length} bytes, {self.local:#x} {way} {self.remote:#x}, posted at {self.time})"
        )


class Observer:
    """What watches a run without taking part; each hook does nothing unless overridden.

    The race sanitizer is one, the golden check of `quiet` on the model another.
    """

    def started(self, pe: int, task: Task) -> None:
        """A task exists."""

    def ended(self, pe: int, task: Task) -> None:
        """A task returned."""

    def stored(self, pe: int, addr: int, length: int, task: Task) -> None:
        """The program (not the device API) is about to write own memory."""

    def read(self, pe: int, addr: int, length: int, task: Task | None) -> None:
        """The program took a view of own memory."""

    def owned(self, pe: int, peer: int, qp: int, task: Task, action: str) -> None:
        """A task uses a QP (``action``: post, quiet, poll)."""

    def posted(self, post: PostInfo, task: Task) -> None:
        """A WQE stands in the ring and is about to be announced."""

    def dropped(self, post: PostInfo, status: int) -> None:
        """The drain before a post failed with ``status``: the WQE was silently not posted."""

    def polled(self, pe: int, peer: int, qp: int, target: int, tail: int, status: int) -> None:
        """poll_cq has found everything before WQE ``tail`` (32-bit) complete; it was to reach ``target``."""

    def quieted(self, pe: int, peer: int, qp: int, target: int, tail: int, status: int) -> None:
        """A quiet returned (its status is discarded by the API)."""

    def fetched(self, pe: int, peer: int, qp: int, index: int, value: int) -> None:
        """A synchronous atomic (WQE ``index``) gave its caller ``value``."""

    def executed(self, pe: int, peer: int, qp: int, index: int) -> None:
        """What the WRITE or atomic with SQ index ``index`` (NIC width) does stands in ``peer``'s memory.

        Only platforms that know it call this: the golden NICs.
        """

    def finished(self) -> None:
        """All programs ended."""
