"""Channel entities read back from device memory, and the queue-information block filled from them.

Rules: device page, section 7.3, partial tables included: what cannot be read of a peer is logged and skipped,
and its entry keeps what it had by then, at worst an SQ of depth 0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pymodel.generation import Generation
from pymodel.host.driver import Driver
from pymodel.host.errors import HcommError, HostError, HostErrorCode
from pymodel.host.hcomm import (
    CHANNEL_ENTITY_BYTES,
    QUEUE_CONTEXT_BYTES,
    REGED_BUFFER_BYTES,
    ChannelCq,
    ChannelEntity,
    ChannelSq,
    ContextForm,
    RegedBuffer,
)
from pymodel.host.queue_info import ATOMIC, ATOMIC_AT, CqContext, QueueInfo, SqContext, mr_entry
from pymodel.host.ranks import RankInfo, channel_index

log = logging.getLogger(__name__)

AMO_BYTES_PER_RANK: Final = 128 * 8
"""Bytes of the atomic result buffer per rank (device page 7.3)."""
AMO_ALIGN: Final = {Generation.G1: 512, Generation.G2: 4096, Generation.G3: 4096}
"""Alignment of that buffer and of its size (device page 7.3)."""
HW_DB: Final = 0
SW_DB: Final = 1
"""db_mode that hosts with split doorbells set in every queue (device page 3.3); XSCALE never looks at it."""
HOST_BLOCK: Final = 0x7F00_0000_0000
"""Where the block stands while it is filled; its pointers are turned to device memory before the copy."""


def amo_bytes(ranks: int, generation: Generation) -> int:
    """Size of the atomic result buffer: 1024 bytes a rank, rounded up to the generation's alignment."""
    align = AMO_ALIGN[generation]
    return -(-AMO_BYTES_PER_RANK * ranks // align) * align


def read_entity(driver: Driver, channel: int) -> ChannelEntity:
    """The struct behind a channel handle. Raises HcommError where it cannot be read."""
    return ChannelEntity.unpack(driver.copy_from_device(channel, CHANNEL_ENTITY_BYTES))


def read_buffer(driver: Driver, addr: int, index: int) -> RegedBuffer:
    """Region ``index`` of the array at ``addr``."""
    return RegedBuffer.unpack(driver.copy_from_device(addr + REGED_BUFFER_BYTES * index, REGED_BUFFER_BYTES))


def read_sqs(
    driver: Driver, entity: ChannelEntity, form: ContextForm, only: int | None = None
) -> list[ChannelSq]:
    """All send queues of a channel, one copy, or that of number ``only``."""
    parts = _contexts(driver, entity.sq_context_addr, entity.sq_num, only)
    return [ChannelSq.unpack(part, form) for part in parts]


def read_cqs(
    driver: Driver, entity: ChannelEntity, form: ContextForm, only: int | None = None
) -> list[ChannelCq]:
    """All completion queues of a channel, one copy, or that of number ``only``."""
    parts = _contexts(driver, entity.cq_context_addr, entity.cq_num, only)
    return [ChannelCq.unpack(part, form) for part in parts]


def _contexts(driver: Driver, addr: int, count: int, only: int | None) -> list[bytes]:
    size = QUEUE_CONTEXT_BYTES
    if only is not None:
        return [driver.copy_from_device(addr + size * only, size)]
    raw = driver.copy_from_device(addr, size * count)
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def sq_entry(sq: ChannelSq, form: ContextForm) -> SqContext:
    """WQ entry of a send queue, without its atomic cell. The split forms force SW_DB (7.4)."""
    return SqContext(
        wqn=sq.qpn,
        buf_addr=sq.sq_va,
        wqe_size=sq.wqe_size,
        depth=sq.depth,
        head_addr=sq.head_addr,
        tail_addr=sq.tail_addr,
        db_mode=_db_mode(sq.db_mode, form),
        db_addr=sq.db_hw_va,
        sl=sq.sl,
        db_sw_addr=sq.db_sw_va,
        mtu_shift=sq.mtu_shift,
        db_cos=sq.cos,
    )


def cq_entry(cq: ChannelCq, form: ContextForm) -> CqContext:
    """CQ entry of a completion queue."""
    return CqContext(
        cqn=cq.cqn,
        buf_addr=cq.cq_va,
        cqe_size=cq.cqe_size,
        depth=cq.depth,
        head_addr=cq.head_addr,
        tail_addr=cq.tail_addr,
        db_mode=_db_mode(cq.db_mode, form),
        db_addr=cq.db_hw_va,
        db_sw_addr=cq.db_sw_va,
        cq_attr_flags=cq.attr_flags,
    )


def _db_mode(mode: int, form: ContextForm) -> int:
    return HW_DB if form is ContextForm.OLD and mode == HW_DB else SW_DB


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Whose block it is and where it will stand. ``qp_num``: QPs per rank; the original has 1."""

    rank: int
    rank_count: int
    qp_num: int
    address: int
    atomic_base: int
    generation: Generation
    form: ContextForm

    @property
    def size(self) -> int:
        """Bytes of the block (device page 7.2)."""
        return QueueInfo.layout(0, self.rank_count, self.qp_num, self.generation).total(0, self.rank_count)


class BlockFiller:
    """Fills one block on the host. ``build`` gives its bytes as they are to stand in device memory."""

    def __init__(self, driver: Driver, plan: BlockPlan) -> None:
        self.driver, self.plan = driver, plan
        self._info = QueueInfo.layout(HOST_BLOCK, plan.rank_count, plan.qp_num, plan.generation)
        self._block = bytearray(plan.size)
        self._atomic_lkey = 0

    def build(self, ranks: Mapping[int, RankInfo], channels: Sequence[int]) -> bytes:
        """Raises HostError CHANNEL_FAILED without local keys, or without any remote one (R > 1)."""
        plan = self.plan
        own = self._read_local(channels)
        sizes = {rank: info.memories[0] for rank, info in ranks.items() if info.memories}
        for rank in [rank for rank in sizes if not 0 <= rank < plan.rank_count]:
            # only a role whose options nobody checked can have it; the original writes past the block then
            log.error("rank %d: there is no rank %d of %d", plan.rank, rank, plan.rank_count)
            del sizes[rank]
        self._put_mr(plan.rank, sizes.get(plan.rank, (0, 0)), own.lkey, own.rkey)
        remote_read = False
        for rank, memory in sizes.items():
            if rank != plan.rank:
                self._put_mr(rank, memory, 0, 0)
                try:
                    remote_read |= self._fill_peer(rank, memory, channels)
                except HcommError as error:
                    log.error("rank %d: channel to rank %d: %s", plan.rank, rank, error)
        if not remote_read and plan.rank_count > 1:
            raise HostError(HostErrorCode.CHANNEL_FAILED, "no remote buffer of any channel could be read")
        device = QueueInfo.layout(plan.address, plan.rank_count, plan.qp_num, plan.generation)
        self._put(HOST_BLOCK, device.pack())
        return bytes(self._block)

    def _put(self, addr: int, data: bytes) -> None:
        self._block[addr - HOST_BLOCK : addr - HOST_BLOCK + len(data)] = data

    def _put_mr(self, rank: int, memory: tuple[int, int], lkey: int, rkey: int) -> None:
        self._put(self._info.mr_addr(rank), mr_entry(lkey, rkey, *memory))

    def _read_local(self, channels: Sequence[int]) -> RegedBuffer:
        """Own keys and the atomic lkey, of the first channel that can be read: its regions 0 and 1."""
        own: RegedBuffer | None = None
        for channel in channels:
            if channel == 0:
                continue
            try:
                entity = read_entity(self.driver, channel)
            except HcommError as error:
                log.error("rank %d: channel at %#x: %s", self.plan.rank, channel, error)
                continue
            try:
                if entity.local_buffer_num > 0 and entity.local_buffer_addr:
                    own = read_buffer(self.driver, entity.local_buffer_addr, 0)
                if entity.local_buffer_num > 1:
                    # whatever was registered second: the atomic buffer only if there is one heap region
                    self._atomic_lkey = read_buffer(self.driver, entity.local_buffer_addr, 1).lkey
            except HcommError as error:
                log.error("rank %d: own regions: %s", self.plan.rank, error)
            break
        if own is None:
            raise HostError(HostErrorCode.CHANNEL_FAILED, "no local buffer of any channel could be read")
        return own

    def _fill_peer(self, rank: int, memory: tuple[int, int], channels: Sequence[int]) -> bool:
        """Entries of a peer; False without its keys, HcommError where reading ended early."""
        plan, index = self.plan, channel_index(self.plan.rank, rank)
        channel = channels[index] if index < len(channels) else 0
        if channel == 0:
            raise HcommError(f"there is no channel {index}")
        entity = read_entity(self.driver, channel)
        if not (entity.remote_buffer_num and entity.remote_buffer_addr):
            raise HcommError("no remote buffers")
        remote = read_buffer(self.driver, entity.remote_buffer_addr, 0)
        self._put_mr(rank, memory, remote.lkey, remote.rkey)
        try:
            self._fill_queues(rank, entity)
        except HcommError as error:
            log.error("rank %d: queues to rank %d: %s", plan.rank, rank, error)
        return True

    def _fill_queues(self, rank: int, entity: ChannelEntity) -> None:
        plan, generation = self.plan, self.plan.generation
        sqs: list[ChannelSq] = []
        if entity.sq_num and entity.sq_context_addr:
            sqs = read_sqs(self.driver, entity, plan.form)
        else:
            log.error("rank %d: channel to rank %d has no SQ", plan.rank, rank)
        for qp, sq in enumerate(sqs[: plan.qp_num]):
            self._put(self._info.entry(rank, qp)[0], sq_entry(sq, plan.form).pack(generation))
        if entity.cq_num and entity.cq_context_addr:
            for qp, cq in enumerate(read_cqs(self.driver, entity, plan.form)[: plan.qp_num]):
                self._put(self._info.entry(rank, qp)[2], cq_entry(cq, plan.form).pack(generation))
        else:
            log.error("rank %d: channel to rank %d has no CQ", plan.rank, rank)
        amo = plan.atomic_base + AMO_BYTES_PER_RANK * rank
        for qp in range(plan.qp_num):
            at_sq, at_rq, _ = self._info.entry(rank, qp)
            for at in (at_sq, at_rq):
                self._put(at + ATOMIC_AT, ATOMIC.pack(amo, self._atomic_lkey))
