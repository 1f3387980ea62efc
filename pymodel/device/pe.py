"""What a device program is given: its PE, with memory, the symmetric heap and the device API bound to it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pymodel.device import xscale
from pymodel.host.table import HEAP_SYNC_BYTES, QP_INFO_ADDR, CqContext, QueueInfo, SqContext
from pymodel.platform import Bytes, PostInfo, Program, Watch, join, now, sleep, spawn, store, wait

if TYPE_CHECKING:
    from pymodel.host.table import Fabric
    from pymodel.runner import Core, Task


POLL_LIMIT = 300_000_000_000
"""Tries of poll_cq per CQE in the original, G1 (device page 4.2)."""


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Knobs of the device API.

    ``poll_limit``: tries of poll_cq per CQE (None: for ever; the original: 3.0e11 iterations, device page
    4.2). ``poll_period``: NIC cycles per try while asleep (programs page, section 1). ``poll_batch``: CQEs
    after which a sleeping poll_cq wakes at the latest; 1 gives exact tries per CQE.
    """

    poll_limit: int | None = POLL_LIMIT
    poll_period: int = 64
    poll_batch: int = 1 << 22


class QpState:
    """The queues of one (peer, qp_idx) as the device code sees them: contexts from the table, cells, rings.

    Memory views are live. ``dropped``, ``drains``, ``timeouts`` and ``errors`` are for tests and reports
    only; the API itself never looks at them.
    """

    __slots__ = (
        "_cq_tail", "_sq_head", "_sq_tail", "cq_addr", "cq_bytes", "cq_db_addr", "cq_depth", "cq_log",
        "cq_tail_addr", "cqe_size", "cqn", "depth", "drains", "dropped", "dw0_written", "dw3_written",
        "errors", "owner", "peer", "polls", "posts", "qp_idx", "quiets", "rkey", "slot_words", "sq_addr",
        "sq_db_addr", "sq_head_addr", "sq_tail_addr", "sq_words", "timeouts", "version", "wqe_size", "wqn",
    )  # fmt: skip

    def __init__(
        self,
        view: Callable[[int, int], NDArray[np.uint8]],
        peer: int,
        qp_idx: int,
        sq: SqContext,
        cq: CqContext,
        rkey: int,
        version: int,
    ) -> None:
        self.peer, self.qp_idx, self.version, self.rkey = peer, qp_idx, version, rkey
        self.depth, self.wqe_size, self.wqn = sq.depth, sq.wqe_size, sq.wqn
        self.sq_addr, self.sq_db_addr = sq.buf_addr, sq.db_addr
        self.sq_head_addr, self.sq_tail_addr = sq.head_addr, sq.tail_addr
        self.cqn, self.cq_depth, self.cqe_size = cq.cqn, cq.depth, cq.cqe_size
        self.cq_addr, self.cq_db_addr, self.cq_tail_addr = cq.buf_addr, cq.db_addr, cq.tail_addr
        self.cq_log = max(cq.depth.bit_length() - 1, 0)
        self.slot_words = sq.wqe_size // 4
        self.dw0_written = xscale._DW0_WRITTEN[version]
        self.dw3_written = xscale._DW3_WRITTEN[version]
        self.posts = self.polls = self.quiets = self.dropped = self.timeouts = 0
        self.drains: list[int] = []
        self.errors: list[tuple[int, int]] = []
        self.owner: Task | None = None
        if sq.depth:
            # plain memory views: an element costs a quarter of what numpy takes for it
            self.sq_words = view(sq.buf_addr, sq.depth * sq.wqe_size).data.cast("I")
            self.cq_bytes = view(cq.buf_addr, cq.depth * cq.cqe_size).data
            self._sq_head = view(sq.head_addr, 4).data.cast("I")
            self._sq_tail = view(sq.tail_addr, 4).data.cast("I")
            self._cq_tail = view(cq.tail_addr, 4).data.cast("I")

    @property
    def sq_head(self) -> int:
        """Head cell: 32-bit index of the next WQE."""
        return self._sq_head[0]

    @property
    def sq_tail(self) -> int:
        """SQ tail cell, which nobody writes in G1."""
        return self._sq_tail[0]

    @property
    def cq_tail(self) -> int:
        """CQ tail cell: 32-bit index of the next CQE to look at."""
        return self._cq_tail[0]

    def cqe(self, index: int) -> tuple[bool, int]:
        """(valid, error_code) of CQE ``index`` by the owner rule (device page 2.3), without consuming it.

        Right for the CQE of a WQE only while fewer than depth CQEs came after it.
        """
        base = (index & (self.cq_depth - 1)) * self.cqe_size
        return self.cq_bytes[base + 31] >> 7 == index >> self.cq_log & 1, self.cq_bytes[base]


class Pe:
    """One processing element. Its methods apply to its own memory and NIC only.

    Attributes: ``rank``, ``n_pes``, ``qp_num`` (QPs per peer), ``heap_base``, ``heap_size``, ``rng`` (a
    generator of its own, from the run seed), ``seed``.
    """

    def __init__(self, fabric: Fabric, rank: int, core: Core, options: DeviceOptions | None = None) -> None:
        self.fabric, self.rank, self.core = fabric, rank, core
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
        self._info = QueueInfo.read(self._view, QP_INFO_ADDR, self.n_pes)
        self.qp_num = self._info.qp_num
        self.lkey = self._info.keys(rank)[0]

    def __repr__(self) -> str:
        return f"PE {self.rank} of {self.n_pes}"

    def _view(self, addr: int, length: int) -> NDArray[np.uint8]:
        return self.core.backend.memory(self.rank, addr, length)

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
        return self._view(addr, length)

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
        view = self._view(addr, length)
        deadline = None if timeout is None else await now() + timeout
        return await wait(
            (Watch(addr, length, hits),),
            deadline,
            lambda: until(view),
            what=what or f"{length} bytes at {addr:#x} to change",
            peer=peer,
        )

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
            sq, cq = self._info.contexts(self._view, peer, qp_idx)
            rkey = self._info.keys(peer)[1]
            version = self.fabric.version(self.rank, peer, qp_idx)
            state = QpState(self._view, peer, qp_idx, sq, cq, rkey, version)
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
        await xscale.aclshmemi_roce_write(self, self.ptr(dst, peer), src, peer, qp_idx, nbytes)

    async def quiet(self, peer: int, qp_idx: int | None = None) -> None:
        """`aclshmemx_roce_quiet`, or of one QP: wait until everything posted to ``peer`` is complete."""
        if qp_idx is None:
            await xscale.aclshmemx_roce_quiet(self, peer)
        else:
            await xscale.aclshmemi_roce_quiet(self, peer, qp_idx)

    async def quiet_all(self) -> None:
        """Quiet every QP that the program has used."""
        for qp in self.qps():
            await xscale.aclshmemi_roce_quiet(self, qp.peer, qp.qp_idx)

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
    def last_wqe(self) -> str:
        """State of the WQE posted last, for the hang report."""
        post = self.last_post
        if post is None:
            return "none"
        qp = self.qp(post.peer, post.qp)
        ahead = post.index - qp.cq_tail & xscale.U32
        if ahead >= 1 << 31:
            state = "its CQE was consumed"
        else:
            valid, code = qp.cqe(post.index)
            state = "no CQE yet" if not valid else "CQE good" if code == 0 else f"CQE with error {code:#04x}"
        return f"{post}: {state}"
