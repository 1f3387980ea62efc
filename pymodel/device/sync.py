"""Teams, sync, barrier and signals over RDMA (device page 4.5 and addenda; operators page 10.2).

A barrier is a dissemination: in the round of shift 1, 2, 4, ... a member writes its count to the slot of its
own index in the pool of the member ``shift`` ahead, by a 4-byte RDMA WRITE from its counter word, quiets
that, and waits for the count of the member ``shift`` behind. Slots are per source, so nothing is reset.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from pymodel.device.atomics import aclshmemx_roce_atomic_set
from pymodel.device.driver import CELL
from pymodel.device.roce import aclshmemx_roce_quiet
from pymodel.device.ub import LocalTensor, Words, scratch_words
from pymodel.device.wqe import U32
from pymodel.device.wr import SendWr
from pymodel.device.xscale import aclshmem_roce_ptr, post, quiet
from pymodel.host.config import (
    MAX_TEAMS,
    SIGNAL_OFFSET,
    SYNC_COUNTER_OFFSET,
    SYNC_SLOT_BYTES,
    SYNC_TEAM_BYTES,
)
from pymodel.platform import Watch, store, wait

if TYPE_CHECKING:
    from pymodel.device.pe import Pe


@dataclass(frozen=True, slots=True)
class Team:
    """``size`` PEs: ``start``, ``start + stride``, ... ``number`` picks their pool in the sync area."""

    number: int
    start: int
    stride: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < MAX_TEAMS:
            raise ValueError(f"team {self.number}: there are {MAX_TEAMS} sync pools")
        if self.start < 0 or self.stride < 1 or self.size < 1:
            raise ValueError(f"team of {self.size} PEs from PE {self.start} on, stride {self.stride}")

    def pe(self, index: int) -> int:
        """Rank of the member with this index."""
        return self.start + index * self.stride

    def index(self, pe: int) -> int:
        """Index of PE ``pe`` in the team.

        Raises ValueError for a PE outside. The original gives -1 to one that passes its stride test, and
        that PE then signals 64 bytes below the pool (device page, addenda 7).
        """
        index, rest = divmod(pe - self.start, self.stride)
        if rest or not 0 <= index < self.size:
            raise ValueError(
                f"PE {pe} is not in the team of {self.size} from PE {self.start}, stride {self.stride}"
            )
        return index


def pool_addr(pe: Pe, team: Team) -> int:
    """Local address of a team's sync pool: 16 slots of 64 bytes, then the counter."""
    return pe.heap_base + team.number * SYNC_TEAM_BYTES


async def _rounds(pe: Pe, team: Team, words: Words) -> None:
    me, size = team.index(pe.rank), team.size
    pool = pool_addr(pe, team)
    counter = pool + SYNC_COUNTER_OFFSET
    count = int.from_bytes(pe.view(counter, 4).tobytes(), "little") + 1 & U32
    await store(counter, CELL.pack(count), True)
    # a neighbour may be one barrier ahead already, never two
    ready = {CELL.pack(count), CELL.pack(count + 1 & U32)}
    shift = 1
    while shift < size:
        ahead, behind = team.pe((me + shift) % size), (me - shift) % size
        qp = pe.qp(ahead, 0)
        slot = aclshmem_roce_ptr(pe, pool + SYNC_SLOT_BYTES * me, ahead)
        await post(pe, qp, SendWr(counter, slot, 4), words)
        await quiet(pe, qp, words)
        at = pool + SYNC_SLOT_BYTES * behind
        view = pe.view(at, 4)
        await wait(
            (Watch(at, 4),),
            None,
            lambda view=view: view.tobytes() in ready,  # type: ignore[misc]
            what=f"barrier {count} of team {team.number}, shift {shift}",
            peer=team.pe(behind),
        )
        shift <<= 1


def _words(pe: Pe, buf: LocalTensor | None) -> Words:
    return pe.words if buf is None else scratch_words(buf, pe.driver.staged)


async def aclshmemx_roce_team_sync(
    pe: Pe, team: Team, buf: LocalTensor | None = None, sync_id: int | None = None
) -> int:
    """Wait until every member has come here; 0 always. Says nothing about what they posted before.

    The original has it from G2 on. Raises ValueError where this PE is outside the team.
    """
    await _rounds(pe, team, _words(pe, buf))
    return 0


async def aclshmemx_roce_barrier(
    pe: Pe, team: Team, buf: LocalTensor | None = None, sync_id: int | None = None
) -> int:
    """Quiet every other member, then sync: what members put to each other before has arrived. 0 always."""
    me = team.index(pe.rank)
    for index in range(team.size):
        if index != me:
            await aclshmemx_roce_quiet(pe, team.pe(index), buf, sync_id)
    return await aclshmemx_roce_team_sync(pe, team, buf, sync_id)


async def aclshmemx_roce_sync_all(pe: Pe, buf: LocalTensor | None = None, sync_id: int | None = None) -> None:
    """`aclshmemx_roce_team_sync` of all PEs."""
    await aclshmemx_roce_team_sync(pe, pe.team_world, buf, sync_id)


async def aclshmemx_roce_barrier_all(
    pe: Pe, buf: LocalTensor | None = None, sync_id: int | None = None
) -> None:
    """`aclshmemx_roce_barrier` of all PEs."""
    await aclshmemx_roce_barrier(pe, pe.team_world, buf, sync_id)


class SignalOp(IntEnum):
    """What a signal does to its word."""

    SET = 0
    ADD = 1


async def aclshmemx_signal_op(pe: Pe, sig_addr: int, signal: int, sig_op: SignalOp, peer: int) -> None:
    """Set the 4-byte word at symmetric ``sig_addr`` on PE ``peer`` to ``signal``, then quiet QP 0.

    By an atomic set, or by a 4-byte WRITE from a registered word where `DeviceOptions.signal_write` says so
    (device page, addenda 4). ADD is refused: the original stores it to the translated remote address
    without RDMA (addenda 5), which reaches nobody here. Raises OverflowError beyond 32 bits.
    """
    if sig_op is not SignalOp.SET:
        raise NotImplementedError("signal ADD does not go over RDMA: use an atomic add")
    if not -(1 << 31) <= signal <= U32:
        raise OverflowError(f"signal {signal} has more than 32 bits")
    qp = pe.qp(peer, 0)
    if pe.options.signal_write:
        word = pe.heap_base + SIGNAL_OFFSET + SYNC_SLOT_BYTES * peer
        await store(word, CELL.pack(signal & U32), True)
        await post(pe, qp, SendWr(word, aclshmem_roce_ptr(pe, sig_addr, peer), 4), pe.words)
    else:
        await aclshmemx_roce_atomic_set(pe, sig_addr, signal & U32, peer, dtype=np.uint32)
    await quiet(pe, qp, pe.words)
