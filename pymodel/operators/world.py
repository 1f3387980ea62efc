"""Ranks that run operators together: a group, in window or in SHMEM mode (programs page, 4 and 7)."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from pymodel.device.pe import DeviceOptions, Pe
from pymodel.generation import Generation
from pymodel.host.config import HEAP_SYNC_BYTES, FabricConfig
from pymodel.host.table import Fabric
from pymodel.model import Schedule
from pymodel.operators import checks
from pymodel.operators.common import OperatorError
from pymodel.operators.heap import HeapLayout, counter_offset
from pymodel.operators.window import Window, poll, run_window
from pymodel.run import ModelRun, RunResult

Mode: TypeAlias = Literal["window", "shmem"]
Signalling: TypeAlias = Literal["flags", "atomics"]
Program: TypeAlias = "Callable[[Rank], Awaitable[Any]]"
"""A program of a rank; the same in both modes."""

QUEUE_DEPTH: Final = 1024
"""SQ and CQ depth of operator runs (programs page, section 6)."""

_WORLDS: weakref.WeakValueDictionary[str, World] = weakref.WeakValueDictionary()
_NUMBER = itertools.count()


class WorldError(RuntimeError):
    """A run of operators is not good; the text has one problem a line."""


@dataclass(eq=False)
class Rank:
    """One rank of a world. Window mode: ``windows`` of all ranks; SHMEM mode: ``pe`` and the heap's layout.

    ``calls`` counts the calls of each kind: their parity selects halves and counters. ``bases`` are the
    private bases of the atomic counters, by (kind, parity). ``state`` is for the operators' own words that a
    core keeps between calls and that stand in no window.
    """

    world: World
    rank: int
    pe: Pe | None = None
    heap: HeapLayout | None = None
    calls: dict[str, int] = field(default_factory=dict)
    bases: dict[tuple[str, int], int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    combine_due: bool = False
    """A dispatch has been since the last combine (programs page, section 4)."""
    _round: int = 0

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return self.world.ranks

    @property
    def windows(self) -> list[Window]:
        """Window mode: those of all ranks."""
        return self.world.windows

    @property
    def atomics(self) -> bool:
        """SHMEM mode: completion is signalled by remote atomic counters instead of flag WRITEs."""
        return self.world.signalling == "atomics"

    @property
    def device(self) -> Pe:
        """SHMEM mode: the PE."""
        assert self.pe is not None, "window mode has no device"
        return self.pe

    @property
    def layout(self) -> HeapLayout:
        """SHMEM mode: the heap's layout."""
        assert self.heap is not None, "window mode has no heap"
        return self.heap

    def call(self, kind: str) -> int:
        """Number of this call of ``kind``, from 0 on; its lowest bit is the parity."""
        number = self.calls.get(kind, 0)
        self.calls[kind] = number + 1
        return number

    def counter(self, kind: str, parity: int) -> int:
        """SHMEM mode: local (symmetric) address of an atomic counter."""
        return self.device.heap_base + self.layout.exp + counter_offset(kind, parity)

    def check_heap(self, operator: str, layout: HeapLayout) -> None:
        """SHMEM mode: refuse a call that needs more than the heap has. Raises OperatorError."""
        if self.heap is not None and self.pe is not None:
            layout.check(operator, self.pe.heap_size)
            if layout.stage_size > self.heap.stage_size or layout.landing_size > self.heap.landing_size:
                raise OperatorError(operator, f"the heap was prepared for less: {layout} in {self.heap}")

    async def barrier(self) -> None:
        """All ranks have come here."""
        if self.pe is not None:
            await self.pe.barrier_all()
            return
        self._round += 1
        arrived, mine = self.world.arrived, self._round
        arrived[self.rank] = mine
        await poll(lambda: min(arrived) >= mine, "the barrier")


class World:
    """``ranks`` ranks in one HCCL group, whose name is `group_ep`.

    ``mode``: "window" (plain memory) or "shmem" (device programs over RDMA). ``signalling`` (SHMEM mode):
    completion by ordered flag WRITEs or by remote atomic counters. ``hccl_buffsize``: window size in MB, by
    default what HCCL_BUFFSIZE says.
    ``heap`` (SHMEM mode): its layout. ``generation``, ``versions``: driver and formats. ``schedule``: of the
    golden NICs when `run` runs over them. One group serves one family of operators: prefill and fused words
    overlap (operators page, section 7).
    """

    def __init__(
        self,
        ranks: int,
        mode: Mode = "shmem",
        *,
        signalling: Signalling = "flags",
        generation: int = 1,
        hccl_buffsize: int | None = None,
        heap: HeapLayout | None = None,
        seed: int = 0,
        versions: Sequence[int] = (2,),
        mtus: Sequence[int] = (4096,),
        depth: int = QUEUE_DEPTH,
        schedule: Schedule = "eager",
        options: DeviceOptions | None = None,
    ) -> None:
        if ranks < 1 or mode not in get_args(Mode) or signalling not in get_args(Signalling):
            # anything else would quietly be the other mode or variant
            raise ValueError(f"no world of {ranks} ranks, mode {mode!r}, signalling {signalling!r}")
        hccl_buffsize = checks.hccl_buffsize(hccl_buffsize)
        if mode == "shmem" and heap is None:
            raise ValueError("SHMEM mode needs the heap's layout (HeapLayout.prepare)")
        if heap is not None and heap.win_size != hccl_buffsize << 20:
            raise ValueError(f"the heap has a window of {heap.win_size} bytes, not {hccl_buffsize} MB")
        self.ranks, self.mode, self.signalling = ranks, mode, signalling
        self.generation, self.hccl_buffsize, self.heap, self.seed = generation, hccl_buffsize, heap, seed
        self.versions, self.mtus, self.depth = tuple(versions), tuple(mtus), depth
        self.schedule, self.options = schedule, options
        self.windows: list[Window] = []
        self._renew()
        self.members: list[Rank] = []
        self.arrived = [0] * ranks
        self.family: str | None = None
        self.group_ep = f"camhil_group_{next(_NUMBER)}"
        _WORLDS[self.group_ep] = self

    def _renew(self) -> None:
        """Windows as they are before the first call."""
        if self.mode == "window":
            self.windows = [Window(rank, self.hccl_buffsize) for rank in range(self.ranks)]

    def claim(self, operator: str, family: str) -> None:
        """The group serves ``family`` from now on. Raises OperatorError where it serves another."""
        if self.family not in (None, family):
            raise OperatorError(operator, f"group {self.group_ep} serves {self.family} operators already")
        self.family = family

    def bind(self, pe: Pe) -> Rank:
        """SHMEM mode: the rank that ``pe`` is; call it once, before any other allocation on that PE."""
        assert self.heap is not None
        if pe.heap_size < self.heap.total:
            raise OperatorError("prepare", f"the heap has {pe.heap_size} bytes, {self.heap.total} are needed")
        pe.alloc(self.heap.total - HEAP_SYNC_BYTES, 1)
        member = Rank(self, pe.rank, pe, self.heap)
        # ranks of another fabric are those of an earlier run: nothing may be compared with them
        peers = [
            m for m in self.members if m.pe is not None and m.pe.fabric is pe.fabric and m.rank != pe.rank
        ]
        self.members = [*peers, member]
        return member

    def fabric(self) -> FabricConfig:
        """SHMEM mode: what the fabric is to be, for the golden NICs and for the RTL."""
        assert self.heap is not None
        return FabricConfig(
            n_pes=self.ranks,
            seed=self.seed,
            heap_bytes=self.heap.total,
            versions=self.versions,
            mtus=self.mtus,
            sq_depths=(self.depth,),
            generation=Generation(self.generation),
        )

    def run(self, programs: Program | Sequence[Program]) -> list[Any]:
        """Run a program on every rank, over plain memory or over the golden NICs; gives what they return.

        The only blocking call. Raises what programs raise, HangError, and WorldError for a run whose posts,
        completions or quiets are not as they must be. Runs follow one another as calls on one group do; after
        one that failed the windows are as new. In SHMEM mode each run has a heap of its own.
        """
        todo = [programs] * self.ranks if callable(programs) else list(programs)
        if len(todo) != self.ranks:
            raise ValueError(f"{len(todo)} programs for {self.ranks} ranks")
        if self.mode == "window":
            self.members = [Rank(self, rank) for rank in range(self.ranks)]
            self.arrived = [0] * self.ranks
            try:
                return run_window(
                    [lambda p=p, m=m: p(m) for p, m in zip(todo, self.members, strict=True)],  # type: ignore[misc]
                    self.seed,
                )
            except BaseException:
                self._renew()
                # flags and toggles of calls that ended half-way would deceive the next run
                raise
        return self.run_model(todo).returns

    def run_model(self, todo: Sequence[Program]) -> RunResult:
        """SHMEM mode over the golden NICs: the run's result. Raises as `run`."""

        def main(pe: Pe) -> Awaitable[Any]:
            return todo[pe.rank](self.bind(pe))

        run = ModelRun(Fabric.build(self.fabric()), main, self.schedule, seed=self.seed, options=self.options)
        result = run.run()
        if not result.good:
            raise WorldError("\n".join(result.problems))
        return result


def resolve(group_ep: str, rank: int) -> Rank:
    """The rank of a group by its name. Raises OperatorError for a name or rank that does not exist."""
    world = _WORLDS.get(group_ep)
    member = None if world is None else next((m for m in world.members if m.rank == rank), None)
    if member is None:
        raise OperatorError("group", f"no rank {rank} in group '{group_ep}'")
    return member


def own(window_bytes: np.ndarray[Any, np.dtype[np.uint8]], offset: int, length: int) -> Any:
    """A view of ``length`` bytes of a window from ``offset``; bounds are checked."""
    if not 0 <= offset <= offset + length <= window_bytes.size:
        raise IndexError(f"{length} bytes at {offset} of a window of {window_bytes.size}")
    return window_bytes[offset : offset + length]
