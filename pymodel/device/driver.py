"""The XSCALE driver of each generation: how WQEs reach the ring, and how completions are found.

One small class per generation over the flow of `pymodel.device.xscale`; `driver_of` is the only place that
chooses. Rules: device page, sections 1.6, 2.4, 2.6, 4.2 to 4.4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from pymodel.device.queues import STATUS_TIMEOUT, DeviceTrap, QpState
from pymodel.device.ub import Words
from pymodel.device.wqe import U32, WQE_BYTES, build
from pymodel.device.wr import SendWr
from pymodel.generation import Generation
from pymodel.platform import Watch, mmio_write, store, wait

if TYPE_CHECKING:
    from pymodel.device.pe import Pe

CELL: Final = struct.Struct("<I")
DOORBELL: Final = struct.Struct("<Q")
_CTRL: Final = struct.Struct("<4I")


async def ring_sq(pe: Pe, qp: QpState, new_head: int, words: Words) -> None:
    """Write the head cell (4 bytes), then the 8-byte doorbell: next_pid in 16-byte units (3.1, 3.2)."""
    CELL.pack_into(pe.ub, words.ub32, new_head)
    await store(qp.sq_head_addr, CELL.pack(new_head), True)
    if qp.version == 2:
        doorbell = (new_head << 3 & 0x1F_FFFF) | (qp.wqn & 0xFFFF) << 21
    else:
        doorbell = (new_head << 3 & 0x1_FFFF) | (qp.wqn & 0xFFFF) << 17
    DOORBELL.pack_into(pe.ub, words.ub64, doorbell)
    await mmio_write(qp.sq_db_addr, doorbell)


async def ring_cq(pe: Pe, qp: QpState, tail: int, words: Words) -> None:
    """Write the CQ tail cell (4 bytes), then the 8-byte CQ doorbell with cq_sta 0 (3.1, 3.2)."""
    CELL.pack_into(pe.ub, words.ub32, tail)
    await store(qp.cq_tail_addr, CELL.pack(tail), True)
    doorbell = (tail & 0x7F_FFFF) | (qp.cqn & 0xFFFF) << 23
    DOORBELL.pack_into(pe.ub, words.ub64, doorbell)
    await mmio_write(qp.cq_db_addr, doorbell)


def in_place(qp: QpState, wr: SendWr, head: int) -> bytes:
    """The WQE over the present content of slot ``head % depth``: what a build by bit-field writes leaves."""
    ring, first = qp.sq_words, qp.slot_words * (head % qp.depth)
    return build(wr, qp.version, head, ring[first], ring[first + 2], ring[first + 3])


def stage(ub: bytearray, at: int, wr: SendWr, version: int, head: int, ce: bool = True) -> None:
    """The WQE over the present content of UB ``[at, at + 128)``, which stays there (1.6)."""
    dw0, _, dw2, dw3 = _CTRL.unpack_from(ub, at)
    raw = build(wr, version, head, dw0, dw2, dw3, ce)
    ub[at : at + len(raw)] = raw


def _is_owner(ring: memoryview, owner: int, phase: int) -> Callable[[], bool]:
    """The owner rule of one slot (2.3), to be asked again and again."""
    return lambda: ring[owner] >> 7 == phase


def _is_fresh(qp: QpState, tail: int) -> Callable[[], bool]:
    """Whether slot 0 of an ignore_overrun CQ holds a CQE that leads beyond ``tail`` (2.6)."""
    ring, log, mask = qp.cq_bytes, qp.cq_log, qp.id_mask

    def fresh() -> bool:
        index = qp.cqe_index(0)
        return ring[31] >> 7 == index >> log & 1 and (index + 1 - tail) & mask != 0

    return fresh


class DriverG1:
    """In place, completion by count, errors forgotten."""

    generation: Generation = Generation.G1
    staged = False
    """READ and WRITE WQEs are staged in the caller's scratch."""
    by_id = False
    """Completion by wqe_id; the SQ tail cell is kept."""

    def try_limit(self, nominal: int | None) -> int | None:
        """Tries of poll_cq per CQE that ``nominal`` comes to: 64-bit arithmetic (4.2)."""
        return nominal

    def wqe(self, pe: Pe, qp: QpState, wr: SendWr, head: int, words: Words) -> bytes:
        """Bytes that the driver brings into the slot of WQE ``head``, from its first byte on."""
        return in_place(qp, wr, head)

    async def poll(self, pe: Pe, qp: QpState, target: int, words: Words) -> int:
        """Consume CQEs until the free-running CQ tail equals ``target`` (4.2).

        Gives 0, the error code of the CQE that ended it (consumed), or 0x10000. Tail cell and CQ doorbell
        are written once per call, progress or not.
        """
        pe.use(qp, "poll")
        first = tail = qp.cq_tail
        status = 0
        ring, stride, mask, log = qp.cq_bytes, qp.cqe_size, qp.cq_depth - 1, qp.cq_log
        while tail != target:
            owner, phase = (tail & mask) * stride + 31, tail >> log & 1
            if ring[owner] >> 7 != phase and not await self._spin(
                pe, qp, tail, target, target - tail & U32, _is_owner(ring, owner, phase)
            ):
                status = STATUS_TIMEOUT
                qp.timeouts += 1
                break
            status = ring[owner - 31]
            tail = (tail + 1) & U32
            if status:
                qp.errors.append((tail - 1 & U32, status))
                break
        self._polled(pe, qp, (first, tail), target, tail, status)
        await ring_cq(pe, qp, tail, words)
        return status

    async def _spin(
        self, pe: Pe, qp: QpState, tail: int, target: int, hits: int, until: Callable[[], bool]
    ) -> bool:
        """Wait for the next CQE; False when the tries are used up.

        ``poll_limit`` counts one try at entry and one per ``poll_period`` NIC cycles asleep, so the last try
        of L is L - 1 periods after the entry. With ``poll_batch`` > 1 the sleeper wakes once for several
        CQEs (``hits`` at most), and the tries of the later ones start at that wake-up.
        """
        options = pe.options
        limit, deadline = self.try_limit(options.poll_limit), None
        if limit is not None:
            deadline = pe.core.backend.now() + options.poll_period * (limit - 1)
        hits = max(1, min(hits, options.poll_batch, qp.cq_depth))
        return await wait(
            (Watch(qp.cq_addr, qp.cqe_size * (1 if qp.overrun else qp.cq_depth), hits),),
            deadline,
            until,
            what=f"CQE {tail} (to reach {target}) on QP {qp.qp_idx} (QPN {qp.wqn}, CQN {qp.cqn})",
            peer=qp.peer,
        )

    @staticmethod
    def _polled(pe: Pe, qp: QpState, seen: tuple[int, int], target: int, done: int, status: int) -> None:
        qp.polls += 1
        qp.seen = seen
        qp.awaited = max(0, qp.awaited - (seen[1] - seen[0] & U32))
        for polled in pe.core.hooks.polled:
            polled(pe.rank, qp.peer, qp.qp_idx, target, done, status)


class DriverG2(DriverG1):
    """As G1, but READ and WRITE are staged in UB, and the product of the try limit is one of 32 bits."""

    generation = Generation.G2
    staged = True

    def try_limit(self, nominal: int | None) -> int | None:
        """300,000,000 x 1000 wraps to 3,647,256,576 (4.2)."""
        return None if nominal is None else nominal & U32

    def wqe(self, pe: Pe, qp: QpState, wr: SendWr, head: int, words: Words) -> bytes:
        """READ and WRITE: all 128 staged bytes. Atomics are built in place here too."""
        if wr.operands is not None:
            return in_place(qp, wr, head)
        stage(pe.ub, words.ub32, wr, qp.version, head)
        return bytes(pe.ub[words.ub32 : words.ub32 + WQE_BYTES])


class DriverG3(DriverG2):
    """Completion by wqe_id, the SQ tail cell is kept, an error or a time-out traps (4.3)."""

    generation = Generation.G3
    by_id = True

    async def poll(self, pe: Pe, qp: QpState, target: int, words: Words) -> int:
        """Consume CQEs up to the one that names the WQE before ``target``; gives 0 or raises `DeviceTrap`.

        Nothing at all happens where the SQ tail cell says ``target`` already.
        """
        pe.use(qp, "poll")
        if target == qp.sq_tail:
            return 0
        if qp.overrun:
            return await self._poll_overrun(pe, qp, target, words)
        first = tail = qp.cq_tail
        ring, stride, mask, log = qp.cq_bytes, qp.cqe_size, qp.cq_depth - 1, qp.cq_log
        wanted = target - 1 & qp.id_mask
        while True:
            slot, phase = tail & mask, tail >> log & 1
            owner = slot * stride + 31
            if ring[owner] >> 7 != phase and not await self._spin(
                pe, qp, tail, target, qp.awaited - (tail - first & U32), _is_owner(ring, owner, phase)
            ):
                self._trap(pe, qp, (first, tail), target, target - 1 & U32, STATUS_TIMEOUT)
            tail = (tail + 1) & U32
            index, status = qp.cqe_index(slot), ring[owner - 31]
            if status:
                self._trap(pe, qp, (first, tail), target, qp.posted_index(index), status)
            if index == wanted:
                break
        self._polled(pe, qp, (first, tail), target, target, 0)
        CELL.pack_into(pe.ub, words.ub32, target)
        await store(qp.sq_tail_addr, CELL.pack(target), True)
        await ring_cq(pe, qp, tail, words)
        return 0

    async def _poll_overrun(self, pe: Pe, qp: QpState, target: int, words: Words) -> int:
        """ignore_overrun: every CQE comes to slot 0, and its owner bit goes by its own wqe_id (2.6).

        The 32-bit tail is rebuilt from the logical index; CQEs may be skipped. No CQ doorbell, and the SQ
        tail stays. The CQE consumed last still stands in the slot and still looks valid: one that leads to
        the present tail is not taken again.
        """
        ring, mask = qp.cq_bytes, qp.id_mask
        first = tail = qp.cq_tail
        while 0 < target - tail & U32 < 1 << 31:
            fresh = _is_fresh(qp, tail)
            # CQEs that others have overwritten are not counted: any may be the last
            if not fresh() and not await self._spin(pe, qp, tail, target, 1, fresh):
                self._trap(pe, qp, (tail, tail), target, target - 1 & U32, STATUS_TIMEOUT)
            index, status = qp.cqe_index(0), ring[0]
            if status:
                self._trap(pe, qp, (tail, tail), target, qp.posted_index(index), status)
            generation = (tail & ~mask) + (mask + 1 if index + 1 < tail & mask else 0)
            tail = (generation | index) + 1 & U32
        self._polled(pe, qp, (first, tail), target, tail, 0)
        CELL.pack_into(pe.ub, words.ub32, tail)
        await store(qp.cq_tail_addr, CELL.pack(tail), True)
        return 0

    def _trap(self, pe: Pe, qp: QpState, seen: tuple[int, int], target: int, wqe: int, code: int) -> NoReturn:
        if code == STATUS_TIMEOUT:
            qp.timeouts += 1
        elif (wqe, code) not in qp.errors:
            # the tail is not published, so a program that goes on sees the same CQE again
            qp.errors.append((wqe, code))
        self._polled(pe, qp, seen, target, qp.done, code)
        raise DeviceTrap(pe.rank, qp.peer, qp.qp_idx, wqe, code)


Driver = DriverG1
"""What all drivers are."""
_DRIVERS: Final = {driver.generation: driver for driver in (DriverG1(), DriverG2(), DriverG3())}


def driver_of(generation: Generation) -> Driver:
    """The driver of a generation."""
    return _DRIVERS[generation]
