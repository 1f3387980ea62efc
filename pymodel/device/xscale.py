"""The fine-grained functions of the device API over XSCALE (device page 5.2): what runs on the device.

The flow is the one of the device page, sections 4.1 (post_send), 4.2 and 4.3 (poll_cq) and 4.5 (quiet),
defects included: the full test is equality only with threshold 16, in G1 and G2 the SQ tail cell is never
written and a failed drain drops the post without a word (counted here as `QpState.dropped`, where a test can
see it). Head and tail cells are 32-bit cells in device memory that the NIC does not know. What differs
between the generations is in `pymodel.device.driver`.

``ub64`` and ``ub32`` are the scratch words in UB, ``sync_id`` the event: where they are left out, those of
`rdma_config` are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymodel.device.driver import ring_cq, ring_sq
from pymodel.device.queues import STATUS_TIMEOUT as STATUS_TIMEOUT
from pymodel.device.queues import DeviceAbort, NoQueueError, QpState
from pymodel.device.ub import LocalTensor, Words
from pymodel.device.wqe import ATOMIC_BYTES, U32, U64
from pymodel.device.wr import KIND, Opcode, SendWr
from pymodel.host.queue_info import QP_INFO_ADDR
from pymodel.platform import PostInfo, sleep, store

if TYPE_CHECKING:
    from pymodel.device.pe import Pe

SQ_THRESHOLD = 16
"""Slots before the ring is full at which post_send drains (4.1)."""
WQE_FLUSH_BYTES = 128
"""What every fill function returns: bytes to flush (1.5)."""


def words_of(pe: Pe, ub64: LocalTensor | None, ub32: LocalTensor | None) -> Words:
    """UB offsets of a call's scratch words.

    Raises ValueError for one too small: 8 bytes, and 4, or 128 where WQEs are staged from ``ub32`` on.
    """
    default = pe.words
    if ub64 is not None and ub64.nbytes < 8:
        raise ValueError(f"64-bit scratch word of {ub64.nbytes} bytes")
    if ub32 is not None and ub32.nbytes < (128 if pe.driver.staged else 4):
        raise ValueError(f"32-bit scratch word of {ub32.nbytes} bytes: this driver generation stages there")
    return Words(default.ub64 if ub64 is None else ub64.offset, default.ub32 if ub32 is None else ub32.offset)


# ---------------------------------------------------------------------- tables and addresses
def aclshmemi_qp_info_fetch(pe: Pe) -> int:
    """Address of the queue-information block in device memory (5.2; programs page, section 7)."""
    return QP_INFO_ADDR


def aclshmem_roce_ptr(pe: Pe, ptr: int, peer: int) -> int:
    """Translate the local symmetric address ``ptr`` to PE ``peer``: its heap base plus the offset (5.1).

    No check, as in the original: an address outside the heap gives an address outside the peer's heap.
    """
    if not 0 <= peer < pe.n_pes:
        raise IndexError(f"PE {peer} of {pe.n_pes}")
    return pe.heap_bases[peer] + (ptr - pe.heap_base) & U64


# ---------------------------------------------------------------------- posting
async def aclshmemi_roce_fill_wqe(pe: Pe, wr: SendWr, peer: int, qp_idx: int, head: int) -> int:
    """Bring the WQE of index ``head`` into its slot; gives the number of bytes to flush."""
    qp = pe.qp(peer, qp_idx)
    raw = pe.driver.wqe(pe, qp, wr, head, pe.words)
    await store(qp.sq_addr + qp.wqe_size * (head % qp.depth), raw, True)
    return WQE_FLUSH_BYTES


async def aclshmemi_roce_ring_sq_doorbell(
    pe: Pe,
    peer: int,
    qp_idx: int,
    new_head: int,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
) -> None:
    """Write the head cell (4 bytes), then the 8-byte doorbell: next_pid in 16-byte units (3.1, 3.2)."""
    await ring_sq(pe, pe.qp(peer, qp_idx), new_head, words_of(pe, ub64, ub32))


async def aclshmemi_roce_ring_cq_doorbell(
    pe: Pe,
    peer: int,
    qp_idx: int,
    tail: int,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
) -> None:
    """Write the CQ tail cell (4 bytes), then the 8-byte CQ doorbell with cq_sta 0 (3.1, 3.2)."""
    await ring_cq(pe, pe.qp(peer, qp_idx), tail, words_of(pe, ub64, ub32))


async def aclshmemi_roce_poll_cq(
    pe: Pe,
    peer: int,
    qp_idx: int,
    target: int,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
) -> int:
    """Consume CQEs until everything before index ``target`` is complete (4.2, 4.3).

    Gives 0, an error code, or 0x10000 when ``poll_limit`` tries for one CQE were not enough; the driver of
    G3 raises `DeviceTrap` instead of the last two.
    """
    return await pe.driver.poll(pe, pe.qp(peer, qp_idx), target, words_of(pe, ub64, ub32))


async def aclshmemi_roce_post_send(
    pe: Pe,
    wr: SendWr,
    peer: int,
    qp_idx: int,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
) -> None:
    """Post one work request (4.1).

    Void: in G1 and G2 a post whose drain failed is silently dropped (`QpState.dropped`).
    """
    await post(pe, pe.qp(peer, qp_idx), wr, words_of(pe, ub64, ub32))


def _filled(pe: Pe, qp: QpState, action: str) -> int:
    """SQ depth of an entry that was filled.

    Raises NoQueueError where it is 0: the own rank, or a peer whose entry was never read (device page
    7.3); DeviceAbort in debug builds of G3, which assert it.
    """
    if qp.depth == 0:
        error = NoQueueError(pe.rank, action, qp.peer, qp.qp_idx)
        raise DeviceAbort(str(error)) if pe.options.debug and pe.driver.by_id else error
    return qp.depth


async def post(pe: Pe, qp: QpState, wr: SendWr, words: Words) -> None:
    """`aclshmemi_roce_post_send` with everything looked up.

    Raises NoQueueError where the SQ depth is 0: the own rank, or an entry that was never filled (7.3).
    """
    pe.use(qp, "post")
    depth = _filled(pe, qp, "post")
    if pe.options.post_cycles:
        await sleep(pe.options.post_cycles)
    head = qp.sq_head
    if (head + SQ_THRESHOLD) % depth == (depth + qp.sq_tail) % depth:
        qp.drains.append(head)
        status = await pe.driver.poll(pe, qp, head, words)
        if status:
            qp.dropped += 1
            info = post_info(pe, qp, wr, head)
            for dropped in pe.core.hooks.dropped:
                dropped(info, status)
            return
    if pe.options.debug and pe.driver.by_id and head - qp.sq_tail & U32 >= depth:
        raise DeviceAbort(f"PE {pe.rank}: SQ of QP {qp.qp_idx} to PE {qp.peer} is full: {depth} WQEs")
    set_keys(pe, qp, wr)
    raw = pe.driver.wqe(pe, qp, wr, head, words)
    await store(qp.sq_addr + qp.wqe_size * (head % depth), raw, True)
    announce(pe, qp, wr, head)
    qp.awaited += 1
    await ring_sq(pe, qp, head + 1 & U32, words)


def set_keys(pe: Pe, qp: QpState, wr: SendWr) -> None:
    """Keys from the tables; the local address of an atomic is its peer's result cell (1.5, 4.1)."""
    wr.rkey = qp.rkey
    if wr.operands is None:
        wr.lkey = pe.lkey
    else:
        wr.local, wr.lkey = qp.amo_addr, qp.amo_lkey


def announce(pe: Pe, qp: QpState, wr: SendWr, head: int) -> None:
    """Tell the observers of a WQE that stands in the ring, while its doorbell is still to come."""
    info = post_info(pe, qp, wr, head)
    qp.posts += 1
    pe.last_post = info
    task = pe.core.current
    if task is not None:
        for posted in pe.core.hooks.posted:
            posted(info, task)


def post_info(pe: Pe, qp: QpState, wr: SendWr, head: int) -> PostInfo:
    """What observers and reports learn of a post."""
    opcode = wr.opcode
    length = wr.length if wr.operands is None else ATOMIC_BYTES[opcode]
    now = pe.core.backend.now()
    return PostInfo(
        pe.rank,
        qp.peer,
        qp.qp_idx,
        head,
        KIND[opcode],
        length,
        wr.local,
        wr.remote,
        now,
        int(opcode),
        wr.operands,
    )


async def aclshmemi_roce_write(
    pe: Pe,
    dst: int,
    src: int,
    peer: int,
    qp_idx: int,
    length: int,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
) -> None:
    """RDMA WRITE of ``length`` bytes from local ``src`` to ``dst``, an address of PE ``peer``."""
    await post(pe, pe.qp(peer, qp_idx), SendWr(src, dst, length), words_of(pe, ub64, ub32))


async def aclshmemi_roce_read(
    pe: Pe,
    dst: int,
    src: int,
    peer: int,
    qp_idx: int,
    length: int,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
) -> None:
    """RDMA READ of ``length`` bytes from ``src``, an address of PE ``peer``, to local ``dst``."""
    await post(pe, pe.qp(peer, qp_idx), SendWr(dst, src, length, Opcode.READ), words_of(pe, ub64, ub32))


async def aclshmemi_roce_quiet(
    pe: Pe,
    peer: int,
    qp_idx: int | None = None,
    ub64: LocalTensor | None = None,
    ub32: LocalTensor | None = None,
    sync_id: int | None = None,
) -> None:
    """Wait for everything posted on one QP, or on all to that peer; the poll's status is discarded (4.5)."""
    words = words_of(pe, ub64, ub32)
    for index in range(pe.qp_num) if qp_idx is None else (qp_idx,):
        await quiet(pe, pe.qp(peer, index), words)


async def quiet(pe: Pe, qp: QpState, words: Words) -> None:
    """`aclshmemi_roce_quiet` with everything looked up."""
    pe.use(qp, "quiet")
    _filled(pe, qp, "quiet")
    target = qp.sq_head
    status = await pe.driver.poll(pe, qp, target, words)
    qp.quiets += 1
    for quieted in pe.core.hooks.quieted:
        quieted(pe.rank, qp.peer, qp.qp_idx, target, qp.done, status)
