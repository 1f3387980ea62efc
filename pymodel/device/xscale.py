"""The XSCALE backend of the device API, driver generation G1: what runs on the device for each call.

The flow is the one of the device page, sections 4.1 (post_send), 4.2 (poll_cq) and 4.5 (quiet), defects
included: the full test is equality only with threshold 16, the SQ tail cell is never written, a failed
drain drops the post without a word (counted here as `QpState.dropped`, where a test can see it), and every
poll rings the CQ doorbell. Head and tail cells are 32-bit cells in device memory that the NIC does not
know.

The driver writes WQEs and doorbells one at a time by plain integer arithmetic, as the device code does; the
vectorised codecs of `pymodel.formats` are the judge of it in the tests.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from pymodel.host.table import QP_INFO_ADDR
from pymodel.platform import PostInfo, Watch, mmio_write, store, wait

if TYPE_CHECKING:
    from pymodel.device.pe import Pe, QpState

U32 = 0xFFFF_FFFF
SQ_THRESHOLD = 16
"""Slots before the ring is full at which post_send drains (4.1)."""
STATUS_TIMEOUT = 0x1_0000
"""poll_cq's status when its tries are used up, outside the 8-bit error code (2.5, 4.2)."""
WQE_FLUSH_BYTES = 128
"""What every fill function returns: bytes to flush (1.5)."""

_WQE = struct.Struct("<4I2IQ2IQ")
_CELL = struct.Struct("<I")

# Bits of the control segment that the driver writes; the others keep what the slot held (1.2, 1.6).
_DW0_WRITTEN = {1: 0xFFFF_F9FF, 2: 0x0000_F9FF}
_DW3_WRITTEN = {1: 0x0000_0006, 2: 0xFFFF_F006}
_CE = 1 << 1
_DS_READ_WRITE = 2 << 11


class Opcode(IntEnum):
    """msg_opcode values that the driver posts here (1.4)."""

    WRITE = 1


# an enumeration's own name attribute costs more than the rest of a post's record
_NAMES = {opcode: opcode.name for opcode in Opcode}


@dataclass(slots=True)
class SendWr:
    """One work request.

    Addresses are virtual addresses, ``length`` bytes; the WQE keeps 32 bits of it (4.1).
    """

    local: int
    remote: int
    length: int
    opcode: Opcode = Opcode.WRITE
    lkey: int = 0
    rkey: int = 0


def aclshmemi_qp_info_fetch(pe: Pe) -> int:
    """Address of the queue-information block in device memory (5.2; programs page, section 7)."""
    return QP_INFO_ADDR


def aclshmem_roce_ptr(pe: Pe, ptr: int, peer: int) -> int:
    """Translate the local symmetric address ``ptr`` to PE ``peer``: its heap base plus the offset (5.1).

    No check, as in the original: an address outside the heap gives an address outside the peer's heap.
    """
    try:
        return pe.heap_bases[peer] + (ptr - pe.heap_base)
    except IndexError:
        raise IndexError(f"PE {peer} of {pe.n_pes}") from None


def build_wqe(qp: QpState, wr: SendWr, head: int) -> bytes:
    """The 48 meaningful bytes of a READ or WRITE WQE over the present content of slot ``head % depth``.

    G1 builds in place by bit-field writes, so bits that no field covers keep the slot's previous content.
    """
    ring, first = qp.sq_words, qp.slot_words * (head % qp.depth)
    length = wr.length & U32
    if qp.version == 2:
        dw0 = wr.opcode | _DS_READ_WRITE
        dw3 = _CE | (head << 3 & 0xF_FFFF) << 12
    else:
        dw0 = wr.opcode | _DS_READ_WRITE | (head << 3 & 0xFFFF) << 16
        dw3 = _CE
    dw0 |= ring[first] & ~qp.dw0_written
    dw3 |= ring[first + 3] & ~qp.dw3_written
    return _WQE.pack(dw0, length, ring[first + 2], dw3, length, wr.rkey, wr.remote, length, wr.lkey, wr.local)


async def aclshmemi_roce_fill_wqe(pe: Pe, wr: SendWr, peer: int, qp_idx: int, head: int) -> int:
    """Build the WQE of index ``head`` in its slot; gives the number of bytes to flush."""
    qp = pe.qp(peer, qp_idx)
    await store(qp.sq_addr + qp.wqe_size * (head % qp.depth), build_wqe(qp, wr, head), True)
    return WQE_FLUSH_BYTES


async def aclshmemi_roce_ring_sq_doorbell(pe: Pe, peer: int, qp_idx: int, new_head: int) -> None:
    """Write the head cell (4 bytes), then the 8-byte doorbell: next_pid in 16-byte units (3.1, 3.2)."""
    qp = pe.qp(peer, qp_idx)
    await store(qp.sq_head_addr, _CELL.pack(new_head), True)
    if qp.version == 2:
        doorbell = (new_head << 3 & 0x1F_FFFF) | (qp.wqn & 0xFFFF) << 21
    else:
        doorbell = (new_head << 3 & 0x1_FFFF) | (qp.wqn & 0xFFFF) << 17
    await mmio_write(qp.sq_db_addr, doorbell)


async def aclshmemi_roce_ring_cq_doorbell(pe: Pe, peer: int, qp_idx: int, tail: int) -> None:
    """Write the CQ tail cell (4 bytes), then the 8-byte CQ doorbell with cq_sta 0 (3.1, 3.2)."""
    qp = pe.qp(peer, qp_idx)
    await store(qp.cq_tail_addr, _CELL.pack(tail), True)
    await mmio_write(qp.cq_db_addr, (tail & 0x7F_FFFF) | (qp.cqn & 0xFFFF) << 23)


async def aclshmemi_roce_poll_cq(pe: Pe, peer: int, qp_idx: int, target: int) -> int:
    """Consume CQEs until the free-running CQ tail equals ``target`` (4.2).

    Gives 0, the error code of the CQE that ended it (consumed), or 0x10000 when ``poll_limit`` tries for
    one CQE were not enough. Writes the tail cell and rings the CQ doorbell once per call, progress or not.
    """
    qp = pe.qp(peer, qp_idx)
    pe.use(qp, "poll")
    tail = qp.cq_tail
    status = 0
    ring, stride, depth, log = qp.cq_bytes, qp.cqe_size, qp.cq_depth, qp.cq_log
    while tail != target:
        slot = tail & (depth - 1)
        if ring[slot * stride + 31] >> 7 != tail >> log & 1 and not await _spin(pe, qp, tail, target):
            status = STATUS_TIMEOUT
            qp.timeouts += 1
            break
        status = ring[slot * stride]
        tail = (tail + 1) & U32
        if status:
            qp.errors.append((tail - 1 & U32, status))
            break
    qp.polls += 1
    for polled in pe.core.hooks.polled:
        polled(pe.rank, peer, qp_idx, target, tail, status)
    await aclshmemi_roce_ring_cq_doorbell(pe, peer, qp_idx, tail)
    return status


async def _spin(pe: Pe, qp: QpState, tail: int, target: int) -> bool:
    """Wait until the CQE of index ``tail`` is valid; False when the tries are used up.

    ``poll_limit`` counts one try at entry and one per ``poll_period`` NIC cycles asleep, so the last try of
    L is L - 1 periods after the entry. With ``poll_batch`` > 1 the sleeper wakes once for several CQEs, and
    the tries of the later ones start at that wake-up.
    """
    options = pe.options
    deadline = None
    if options.poll_limit is not None:
        deadline = pe.core.backend.now() + options.poll_period * (options.poll_limit - 1)
    ring = qp.cq_bytes
    owner = (tail & (qp.cq_depth - 1)) * qp.cqe_size + 31
    phase = tail >> qp.cq_log & 1
    hits = min(target - tail & U32, options.poll_batch, qp.cq_depth)
    watch = Watch(qp.cq_addr, qp.cq_depth * qp.cqe_size, hits)
    return await wait(
        (watch,),
        deadline,
        lambda: ring[owner] >> 7 == phase,
        what=f"CQE {tail} (to reach {target}) on QP {qp.qp_idx} (QPN {qp.wqn}, CQN {qp.cqn})",
        peer=qp.peer,
    )


async def aclshmemi_roce_post_send(pe: Pe, wr: SendWr, peer: int, qp_idx: int) -> None:
    """Post one work request (4.1).

    Void: a post whose drain failed is silently dropped (`QpState.dropped`).
    """
    qp = pe.qp(peer, qp_idx)
    pe.use(qp, "post")
    depth = qp.depth
    if depth == 0:
        # the device divides by zero here: own rank, or a table entry that was never filled (7.3)
        raise ZeroDivisionError(f"PE {pe.rank}: post to PE {peer}, QP {qp_idx}, whose SQ depth is 0")
    head = qp.sq_head
    if (head + SQ_THRESHOLD) % depth == (depth + qp.sq_tail) % depth:
        qp.drains.append(head)
        status = await aclshmemi_roce_poll_cq(pe, peer, qp_idx, head)
        if status:
            qp.dropped += 1
            for dropped in pe.core.hooks.dropped:
                dropped(_info(pe, qp, wr, head), status)
            return
    wr.rkey = qp.rkey
    wr.lkey = pe.lkey
    await store(qp.sq_addr + qp.wqe_size * (head % depth), build_wqe(qp, wr, head), True)
    # what observers see is in the ring; the doorbell is still to come
    post = _info(pe, qp, wr, head)
    qp.posts += 1
    pe.last_post = post
    task = pe.core.current
    if task is not None:
        for posted in pe.core.hooks.posted:
            posted(post, task)
    await aclshmemi_roce_ring_sq_doorbell(pe, peer, qp_idx, head + 1 & U32)


def _info(pe: Pe, qp: QpState, wr: SendWr, head: int) -> PostInfo:
    now = pe.core.backend.now()
    return PostInfo(pe.rank, qp.peer, qp.qp_idx, head, _NAMES[wr.opcode], wr.length, wr.local, wr.remote, now)


async def aclshmemi_roce_write(pe: Pe, dst: int, src: int, peer: int, qp_idx: int, length: int) -> None:
    """RDMA WRITE of ``length`` bytes from local ``src`` to ``dst``, an address of PE ``peer`` (5.2)."""
    await aclshmemi_roce_post_send(pe, SendWr(src, dst, length), peer, qp_idx)


async def aclshmemi_roce_quiet(pe: Pe, peer: int, qp_idx: int) -> None:
    """Wait for everything posted on one QP; the status of the poll is discarded (4.5)."""
    qp = pe.qp(peer, qp_idx)
    pe.use(qp, "quiet")
    target = qp.sq_head
    status = await aclshmemi_roce_poll_cq(pe, peer, qp_idx, target)
    qp.quiets += 1
    for quieted in pe.core.hooks.quieted:
        quieted(pe.rank, peer, qp_idx, target, qp.cq_tail, status)


async def aclshmemx_roce_put_nbi(
    pe: Pe, dst: int, src: int, elem_size: int, peer: int, elem_bytes: int = 1
) -> None:
    """Put ``elem_size`` elements of ``elem_bytes`` bytes from local ``src`` to symmetric ``dst`` on ``peer``.

    QP 0, non-blocking: only a quiet to that peer allows the source to change (5.1).
    """
    await aclshmemi_roce_write(pe, aclshmem_roce_ptr(pe, dst, peer), src, peer, 0, elem_size * elem_bytes)


async def aclshmemx_roce_quiet(pe: Pe, peer: int) -> None:
    """Quiet all QPs of PE ``peer`` (4.5, 5.1)."""
    for qp_idx in range(pe.qp_num):
        await aclshmemi_roce_quiet(pe, peer, qp_idx)


async def aclshmemx_roce_qp_put(
    pe: Pe, dst: int, src: int, elem_size: int, peer: int, qp_idx: int, elem_bytes: int = 1
) -> None:
    """`aclshmemx_roce_put_nbi` on QP ``qp_idx`` (5.1, multi-QP form)."""
    remote = aclshmem_roce_ptr(pe, dst, peer)
    await aclshmemi_roce_write(pe, remote, src, peer, qp_idx, elem_size * elem_bytes)


async def aclshmemx_roce_qp_quiet(pe: Pe, peer: int, qp_idx: int) -> None:
    """Quiet one QP (5.1, multi-QP form)."""
    await aclshmemi_roce_quiet(pe, peer, qp_idx)
