"""What a device program is given: its PE, with memory, the symmetric heap and the device API bound to it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pymodel.device import roce, sync, xscale
from pymodel.device.atomics import Atomics
from pymodel.device.driver import driver_of
from pymodel.device.queues import QpState
from pymodel.device.sync import SignalOp, Team
from pymodel.device.ub import UB_BYTES, LocalTensor, RdmaConfig, Words, scratch_words
from pymodel.host.config import HEAP_SYNC_BYTES, MAX_QPS
from pymodel.host.queue_info import QP_INFO_ADDR, QueueInfo
from pymodel.platform import Bytes, PostInfo, Program, Watch, join, now, sleep, spawn, store, wait

if TYPE_CHECKING:
    from pymodel.host.table import Fabric
    from pymodel.runner import Core, Task


POLL_LIMIT = 300_000_000 * 1000
"""Tries of poll_cq per CQE in the original; from G2 on the product has 32 bits (device page 4.2)."""


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Knobs of the device API.

    ``poll_limit``: tries of poll_cq per CQE, before G2 and G3 cut it to 32 bits (None: for ever; device page
    4.2). ``poll_period``: NIC cycles per try while asleep (programs page, section 1). ``poll_batch``: CQEs
    after which a sleeping poll_cq wakes at the latest; 1 gives exact tries per CQE. ``signal_write``: a
    signal is a 4-byte WRITE instead of an atomic set (programs page, section 7). ``debug``: the assertions
    of debug builds of G3 raise `DeviceAbort` (device page 4.1, 4.4). ``post_cycles``: NIC cycles that the
    device takes for each post (programs page, section 6).
    """

    poll_limit: int | None = POLL_LIMIT
    poll_period: int = 64
    poll_batch: int = 1 << 22
    signal_write: bool = False
    debug: bool = False
    post_cycles: int = 0


@dataclass(frozen=True, slots=True)
class Waited:
    """A wait of a program that was satisfied: bytes, peer it came from, from when to when (cycles)."""

    addr: int
    length: int
    what: str
    peer: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a program, from when to when (cycles)."""

    name: str
    start: int
    end: int


class Pe:
    """One processing element. Its methods apply to its own memory and NIC only.

    Attributes: ``rank``, ``n_pes``, ``qp_num`` (QPs per peer), ``heap_base``, ``heap_size``, ``rng`` (a
    generator of its own, from the run seed), ``seed``; ``ub``, the core's UB, ``rdma_config``, scratch and
    event of calls that bring none; ``atomic``, the atomics; ``team_world``; ``driver``, that of the PE's
    generation.
    """

    def __init__(self, fabric: Fabric, rank: int, core: Core, options: DeviceOptions | None = None) -> None:
        self.fabric, self.rank, self.core = fabric, rank, core
        self.driver = driver_of(fabric.pes[rank].generation)
        self.options = options or DeviceOptions()
        self.n_pes = fabric.n_pes
        self.seed = fabric.config.seed
        self.rng = random.Random(f"pe {rank} {fabric.config.seed}")
        self.heap_bases = [pe.heap_base for pe in fabric.pes]
        self.heap_base, self.heap_size = fabric.pes[rank].heap_base, fabric.pes[rank].heap_size
        self._top = HEAP_SYNC_BYTES
        self._qps: dict[tuple[int, int], QpState] = {}
        self.last_post: PostInfo | None = None
        # The tables come from device memory, as in the original, not from the builder's objects.
        self._info = QueueInfo.read(self.view, QP_INFO_ADDR, self.n_pes, self.driver.generation)
        self.qp_num = self._info.qp_num
        self.lkey = self._info.keys(rank)[0]
        dirty = fabric.config.ub_fill == "dirty"
        dirt = random.Random(f"UB {rank} {self.seed}")
        self.ub = bytearray(dirt.randbytes(UB_BYTES) if dirty else UB_BYTES)
        self.rdma_config = RdmaConfig()
        self.atomic = Atomics(self)
        self.atomics_checked = 0
        """Old values of atomics that the program compared with what they must be; it adds to this itself."""
        self.figures: Counter[str] = Counter()
        """What the program counts of its own work, for the run's table (`count`)."""
        self.steps: list[Step] = []
        self.waits: list[Waited] = []
        self.team_world = Team(0, 0, 1, self.n_pes)
        self._teams = 1

    def __repr__(self) -> str:
        return f"PE {self.rank} of {self.n_pes}"

    def view(self, addr: int, length: int) -> NDArray[np.uint8]:
        """Read-only live view, uint8[length], of own memory, as the driver takes it: no read to observers."""
        return self.core.backend.memory(self.rank, addr, length)

    @property
    def words(self) -> Words:
        """Scratch words of calls that bring none."""
        return scratch_words(self.rdma_config.aclshmem_ub, self.driver.staged)

    # ------------------------------------------------------------------ memory
    def alloc(self, nbytes: int, align: int = 64) -> int:
        """Symmetric allocation: the local address of ``nbytes`` at the same heap offset on every PE.

        All PEs must allocate in the same order. Raises MemoryError when the heap is full.
        """
        if align <= 0 or align & (align - 1):
            raise ValueError(f"alignment {align} is not a power of two")
        offset = -(-self._top // align) * align
        if offset + nbytes > self.heap_size:
            raise MemoryError(f"heap of {self.heap_size} bytes is full: {nbytes} more at offset {offset}")
        self._top = offset + nbytes
        return self.heap_base + offset

    def memory(self, addr: int, length: int) -> NDArray[np.uint8]:
        """Read-only live view, uint8[length], of own memory.

        The race sanitizer counts it as a read here and now.
        """
        for read in self.core.hooks.read:
            read(self.rank, addr, length, self.core.current)
        return self.view(addr, length)

    async def store(self, addr: int, data: Bytes) -> None:
        """Write ``data`` to own memory."""
        await store(addr, data)

    async def wait_until(
        self,
        addr: int,
        length: int,
        until: Callable[[NDArray[np.uint8]], bool],
        *,
        peer: int | None = None,
        what: str | None = None,
        timeout: int | None = None,
        hits: int = 1,
    ) -> bool:
        """Sleep until ``until(view of [addr, addr + length))`` holds; False after ``timeout`` NIC cycles.

        The one way to read memory that a peer may be writing: the read synchronises with the writer.
        """
        view = self.view(addr, length)
        start = self.core.backend.now()
        deadline = None if timeout is None else start + timeout
        what = what or f"{length} bytes at {addr:#x} to change"
        watch = (Watch(addr, length, hits),)
        held = await wait(watch, deadline, lambda: until(view), what=what, peer=peer)
        if held:
            self.waits.append(Waited(addr, length, what, peer, start, self.core.backend.now()))
        return held

    async def wait_value(self, addr: int, value: int, nbytes: int = 4, *, peer: int | None = None) -> None:
        """Sleep until the little-endian integer of ``nbytes`` bytes at ``addr`` equals ``value``."""
        expect = value.to_bytes(nbytes, "little")
        await self.wait_until(
            addr,
            nbytes,
            lambda view: view.tobytes() == expect,
            peer=peer,
            what=f"the {nbytes}-byte value at {addr:#x} to become {value}",
        )

    # ------------------------------------------------------------------ device API
    def qp(self, peer: int, qp_idx: int = 0) -> QpState:
        """Queues of (peer, qp_idx). Raises IndexError for a peer or QP that the tables do not have."""
        state = self._qps.get((peer, qp_idx))
        if state is None:
            if not 0 <= peer < self.n_pes:
                raise IndexError(f"PE {peer} of {self.n_pes}")
            if not 0 <= qp_idx < self.qp_num:
                raise IndexError(f"QP {qp_idx} of {self.qp_num} per peer")
            if qp_idx >= MAX_QPS:
                raise IndexError(f"QP {qp_idx} to PE {peer}: the device API has at most {MAX_QPS}")
            sq, cq = self._info.contexts(self.view, peer, qp_idx)
            rkey = self._info.keys(peer)[1]
            version = self.fabric.version(self.rank, peer, qp_idx)
            state = QpState(self.view, peer, qp_idx, sq, cq, rkey, version, self.driver.by_id)
            self._qps[(peer, qp_idx)] = state
        return state

    def qps(self) -> list[QpState]:
        """Every QP that the program has used so far."""
        return list(self._qps.values())

    def use(self, qp: QpState, action: str) -> None:
        """The current task is about to use ``qp``; the observers may object."""
        task = self.core.current
        if task is not None:
            for owned in self.core.hooks.owned:
                owned(self.rank, qp.peer, qp.qp_idx, task, action)

    def ptr(self, addr: int, peer: int) -> int:
        """`aclshmem_roce_ptr`."""
        return xscale.aclshmem_roce_ptr(self, addr, peer)

    async def put_nbi(self, dst: int, src: int, nbytes: int, peer: int, qp_idx: int = 0) -> None:
        """`aclshmemx_roce_qp_put` of bytes: start a put of local ``src`` to symmetric ``dst`` on ``peer``."""
        await roce.aclshmemx_roce_qp_put(self, dst, src, None, nbytes, peer, qp_idx)

    async def get_nbi(self, dst: int, src: int, nbytes: int, peer: int, qp_idx: int = 0) -> None:
        """`aclshmemx_roce_qp_get` of bytes: start a get of symmetric ``src`` on ``peer`` to local ``dst``."""
        await roce.aclshmemx_roce_qp_get(self, dst, src, None, nbytes, peer, qp_idx)

    async def quiet(self, peer: int, qp_idx: int | None = None) -> None:
        """`aclshmemx_roce_quiet`, or of one QP: wait until everything posted to ``peer`` is complete."""
        if qp_idx is None:
            await roce.aclshmemx_roce_quiet(self, peer)
        else:
            await roce.aclshmemx_roce_qp_quiet(self, peer, qp_idx)

    async def quiet_all(self) -> None:
        """Quiet every QP that the program has used."""
        for qp in self.qps():
            await xscale.quiet(self, qp, self.words)

    async def signal_set(self, sig_addr: int, signal: int, peer: int) -> None:
        """`aclshmemx_signal_op` SET: the 4-byte word at ``sig_addr`` on ``peer`` becomes ``signal``."""
        await sync.aclshmemx_signal_op(self, sig_addr, signal, SignalOp.SET, peer)

    def team_split_strided(self, start: int, stride: int, size: int) -> Team:
        """A team of PEs ``start``, ``start + stride``, ...: collective, all PEs make teams in the same order.

        Raises ValueError for members that do not exist, and when there are no sync pools left.
        """
        team = Team(self._teams, start, stride, size)
        if team.pe(size - 1) >= self.n_pes:
            raise ValueError(f"team of {size} from PE {start}, stride {stride}: there are {self.n_pes} PEs")
        self._teams += 1
        return team

    async def barrier(self, team: Team) -> None:
        """`aclshmemx_roce_barrier`."""
        await sync.aclshmemx_roce_barrier(self, team)

    async def barrier_all(self) -> None:
        """`aclshmemx_roce_barrier_all`: everything put before has arrived, and all PEs have come here."""
        await sync.aclshmemx_roce_barrier_all(self)

    async def sync_all(self) -> None:
        """`aclshmemx_roce_sync_all`: all PEs have come here; says nothing about puts."""
        await sync.aclshmemx_roce_sync_all(self)

    def local_tensor(self, offset: int, nbytes: int) -> LocalTensor:
        """``nbytes`` bytes of the UB from ``offset`` on, as scratch or batch buffer of a call."""
        return LocalTensor(offset, nbytes)

    def expect_errors(self, peer: int, qp_idx: int, *codes: int) -> None:
        """The program means to get CQEs with these error codes on a QP: they are no problems of the run.

        A run in which none comes is one. Posts that the driver drops there afterwards are expected too.
        """
        self.qp(peer, qp_idx).provoked |= frozenset(codes)

    # ------------------------------------------------------------------ tasks and time
    async def spawn(self, program: Program, name: str = "") -> Task:
        """Run ``program`` beside the caller on this PE."""
        return await spawn(program, name)

    async def join(self, task: Task) -> Any:
        """Wait for a spawned task and give its result."""
        return await join(task)

    async def now(self) -> int:
        """NIC cycles since reset."""
        return await now()

    async def sleep(self, cycles: int) -> None:
        """Let ``cycles`` NIC cycles pass."""
        await sleep(cycles)

    # ------------------------------------------------------------------ reports
    def count(self, figure: str, number: int = 1) -> None:
        """Add to a figure of the run's table, for example tokens; the table shows the sum over the PEs."""
        self.figures[figure] += number

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """What runs inside is a step of the program, shown as such in the timeline."""
        start = self.core.backend.now()
        try:
            yield
        finally:
            self.steps.append(Step(name, start, self.core.backend.now()))

    def last_wqe(self) -> str:
        """State of the WQE posted last, for the hang report."""
        post = self.last_post
        if post is None:
            return "none"
        return f"{post}: {self.qp(post.peer, post.qp).state_of(post.index)}"
