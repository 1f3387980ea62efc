"""What a fabric draws with its seed: numbers, addresses, keys, and the first content of the rings.

`DrawnChip` hands the draws of one PE to the simulated HCOMM, as a chip and its driver would choose them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pymodel.formats.recv import RECV_BYTES
from pymodel.host.config import FabricConfig
from pymodel.host.driver import ChannelDesc, MemoryDesc, QueueRequest
from pymodel.host.errors import HcommError
from pymodel.host.fill import AMO_ALIGN, amo_bytes
from pymodel.host.hcomm import ChannelCq, ChannelSq
from pymodel.host.plans import CELL_BYTES, WQE_BYTES, QpPlan, Region
from pymodel.host.queue_info import CQ_IGNORE_OVERRUN, QP_INFO_ADDR
from pymodel.host.transport_types import ATOMIC_TAG
from pymodel.nic import context as nic
from pymodel.nic.params import Params

START_WRAPS: Final = (1 << 13, 1 << 14, 1 << 17, 1 << 18, 1 << 23, 1 << 32)
"""Indices at which a counter wraps: wqe_id V1, next_pid V1, wqe_id V2, next_pid V2, next_cid, 32-bit head."""

_U32 = 0xFFFF_FFFF


class _Places:
    """Hands out non-overlapping random places inside a window of a PE's address space."""

    def __init__(self, rng: random.Random, low: int, high: int) -> None:
        self.rng, self.low, self.high = rng, low, high
        self.used: list[tuple[int, int]] = []

    def take(self, size: int, align: int) -> int:
        while True:
            base = self.rng.randrange(self.low // align, (self.high - size) // align) * align
            # a page between neighbours, so that an overrun never lands in somebody else's region
            if all(base + size + 4096 <= lo or hi + 4096 <= base for lo, hi in self.used):
                self.used.append((base, base + size))
                return base


def draw_qps(config: FabricConfig, rng: random.Random) -> list[QpPlan]:
    """Numbers and properties of every QP, without addresses.

    Raises ValueError for an override of a QP that does not exist.
    """
    params = config.params
    keys = [
        (pe, peer, qp)
        for pe in range(config.n_pes)
        for peer in range(config.n_pes)
        for qp in range(config.qps)
        if pe != peer
    ]
    qpns: dict[int, list[int]] = {}
    cqns: dict[int, list[int]] = {}
    for pe in range(config.n_pes):
        qpns[pe] = rng.sample(range(params.first_qpn, params.first_qpn + params.num_qp), params.num_qp)
        cqns[pe] = rng.sample(range(params.num_cq), params.num_cq)
    mtus = {
        key: rng.choice(list(config.mtus)) for key in keys if key[0] < key[1]
    }  # both directions of a pair must agree (wire page 5: First and Middle = MTU)
    drawn: dict[tuple[int, int, int], QpPlan] = {}
    for key in keys:
        pe, peer, qp = key
        version = rng.choice(list(config.versions))
        depth = rng.choice(list(config.sq_depths))
        start, psn = _start(config, rng, depth)
        plan = QpPlan(
            pe=pe,
            peer=peer,
            qp_idx=qp,
            qpn=qpns[pe].pop(),
            cqn=cqns[pe].pop(),
            version=version,
            mtu=mtus[min(pe, peer), max(pe, peer), qp],
            sq_depth=depth,
            cq_depth=max(2, depth * rng.choice(list(config.cq_factors))),
            cq_stride=rng.choice(list(config.strides)),
            start_index=start,
            sq_psn=psn,
            sl=rng.choice(list(config.sls)),
            start_cq=start,
            ignore_overrun=config.ignore_overrun,
        )
        changes = dict(config.overrides.get(key, {}))
        if "start_index" in changes:
            changes.setdefault("start_cq", changes["start_index"])
        drawn[key] = replace(plan, **changes)
    for key in config.overrides:
        if key not in drawn:
            raise ValueError(f"override for {key}: no such (pe, peer, qp)")
    done: list[QpPlan] = []
    for (pe, peer, qp), plan in drawn.items():
        other = drawn[peer, pe, qp]
        changes = {"peer_qpn": other.qpn, "rq_psn": other.sq_psn}
        changes.update({k: v for k, v in config.overrides.get((pe, peer, qp), {}).items() if k in changes})
        if plan.recv_cq_depth and plan.recv_cqn < 0:
            changes["recv_cqn"] = cqns[pe].pop()
        done.append(replace(plan, **changes))
    return done


def _start(config: FabricConfig, rng: random.Random, depth: int) -> tuple[int, int]:
    if config.start == "zero":
        return 0, 0
    if config.start == "random":
        return rng.getrandbits(32), rng.getrandbits(24)
    before = rng.randrange(1, 2 * depth)
    return (rng.choice(START_WRAPS) - before) & _U32, (1 << 24) - rng.randrange(1, 64)


@dataclass(slots=True)
class DrawnChip:
    """The draws of one PE, as the `Chip` of a `SimulatedDriver`.

    ``places``: address and size of the device allocations to come, in order. ``heap`` and ``amo``: (MR index,
    tags) of the two regions.
    """

    params: Params
    heap_base: int
    places: list[tuple[int, int]]
    heap: tuple[int, int, int]
    amo: tuple[int, int, int]
    qps: list[QpPlan]

    def place(self, size: int, align: int) -> int:
        """The queue-information block, then the atomic buffer. Raises MemoryError for what was not drawn."""
        for number, (base, room) in enumerate(self.places):
            if size <= room and base % align == 0:
                del self.places[number]
                return base
            break
        raise MemoryError(f"no place for {size} bytes, aligned to {align}")

    def keys(self, desc: MemoryDesc) -> tuple[int, int]:
        """Keys of the MR index that was drawn for the region."""
        index, ltag, rtag = self.amo if desc.tag == ATOMIC_TAG else self.heap
        region = nic.MrContext(desc.addr, desc.size, ltag=ltag, rtag=rtag)
        return region.lkey(index), region.rkey(index)

    def queues(self, desc: ChannelDesc, request: QueueRequest) -> list[tuple[ChannelSq, ChannelCq]]:
        """The QPs to a peer. Depths are the drawn ones, not the requested; so is the service level."""
        mine = [plan for plan in self.qps if plan.peer == desc.remote_rank]
        if mine and len(mine) != desc.queue_num:
            raise HcommError(f"{desc.queue_num} queues to rank {desc.remote_rank}: {len(mine)} were drawn")
        return [(self._sq(plan), self._cq(plan)) for plan in mine]

    def _sq(self, plan: QpPlan) -> ChannelSq:
        return ChannelSq(
            sq_va=plan.sq_base,
            head_addr=plan.sq_head_addr,
            tail_addr=plan.sq_tail_addr,
            db_hw_va=self.params.db_address(plan.qpn, self.params.db_sq),
            qpn=plan.qpn,
            wqe_size=WQE_BYTES,
            depth=plan.sq_depth,
            sl=plan.sl,
        )

    def _cq(self, plan: QpPlan) -> ChannelCq:
        return ChannelCq(
            cq_va=plan.cq_base,
            head_addr=plan.cq_head_addr,
            tail_addr=plan.cq_tail_addr,
            db_hw_va=self.params.db_address(plan.qpn, self.params.db_cq),
            cqn=plan.cqn,
            cqe_size=plan.cq_stride,
            depth=plan.cq_depth,
            attr_flags=CQ_IGNORE_OVERRUN if plan.ignore_overrun else 0,
        )


@dataclass(slots=True)
class Drawn:
    """Layout of one PE: its chip, regions and first contents (address, uint8[n])."""

    chip: DrawnChip
    regions: list[Region]
    contents: list[tuple[int, NDArray[np.uint8]]]


def lay_out(config: FabricConfig, rank: int, mine: list[QpPlan], rng: random.Random) -> Drawn:
    """Place heap, atomic buffer, rings and cells of a PE; ``mine``: its QPs, without addresses."""
    if config.high_addresses:
        heaps = _Places(rng, 1 << 63, (1 << 64) - (1 << 32))
    else:
        heaps = _Places(rng, 1 << 36, 1 << 44)
    queues = _Places(rng, 1 << 45, 1 << 46)
    heap = heaps.take(config.heap_bytes, 2 << 20)
    generation = config.generation_of(rank)
    amo_size = amo_bytes(config.n_pes, generation)
    amo = queues.take(amo_size, AMO_ALIGN[generation])
    heap_index, amo_index = rng.sample(range(config.params.num_mr), 2)
    tags = rng.sample(range(256), 4)
    chip = DrawnChip(
        config.params,
        heap,
        [(QP_INFO_ADDR, 1 << 32), (amo, amo_size)],
        (heap_index, tags[0], tags[1]),
        (amo_index, tags[2], tags[3]),
        [],
    )
    regions = [Region("heap", heap, config.heap_bytes), Region("atomic results", amo, amo_size)]
    drawn = Drawn(chip, regions, [])
    for plan in mine:
        _lay_out_qp(config, plan, drawn, queues.take, rng)
    return drawn


def _lay_out_qp(
    config: FabricConfig, plan: QpPlan, drawn: Drawn, take: Callable[[int, int], int], rng: random.Random
) -> None:
    sq_bytes, cq_bytes = plan.sq_depth * WQE_BYTES, plan.cq_depth * plan.cq_stride
    sq = take(sq_bytes, WQE_BYTES)
    cq = take(cq_bytes, plan.cq_stride)
    cells = take(4 * CELL_BYTES, CELL_BYTES)
    name = f"to PE {plan.peer}, QP {plan.qp_idx}"
    drawn.regions += [
        Region(f"SQ {name}", sq, sq_bytes),
        Region(f"CQ {name}", cq, cq_bytes),
        Region(f"cells {name}", cells, 4 * CELL_BYTES),
    ]
    placed = replace(
        plan,
        sq_base=sq,
        cq_base=cq,
        sq_head_addr=cells,
        sq_tail_addr=cells + CELL_BYTES,
        cq_head_addr=cells + 2 * CELL_BYTES,
        cq_tail_addr=cells + 3 * CELL_BYTES,
    )
    drawn.chip.qps.append(placed)
    if config.sq_fill == "dirty":
        drawn.contents.append((sq, np.frombuffer(rng.randbytes(sq_bytes), np.uint8)))
    drawn.contents.append((cq, _cq_ring(placed, config.cq_fill)))
    cell = np.zeros(4 * CELL_BYTES, np.uint8)
    words = cell.view("<u4")
    words[0] = words[2] = placed.start_index
    words[4] = words[6] = placed.start_cq
    drawn.contents.append((cells, cell))
    if placed.rq_depth:
        drawn.chip.qps[-1] = _lay_out_receives(config, placed, drawn, take, rng)


def _lay_out_receives(
    config: FabricConfig, plan: QpPlan, drawn: Drawn, take: Callable[[int, int], int], rng: random.Random
) -> QpPlan:
    """The receive queue of a QP, and its CQ if it has one of its own."""
    name, size = f"to PE {plan.peer}, QP {plan.qp_idx}", plan.rq_depth * RECV_BYTES
    plan = replace(plan, rq_base=take(size, RECV_BYTES))
    drawn.regions.append(Region(f"RQ {name}", plan.rq_base, size))
    if config.sq_fill == "dirty":
        drawn.contents.append((plan.rq_base, np.frombuffer(rng.randbytes(size), np.uint8)))
    if plan.recv_cq_depth:
        size = plan.recv_cq_depth * plan.cq_stride
        plan = replace(plan, recv_cq_base=take(size, plan.cq_stride))
        drawn.regions.append(Region(f"receive CQ {name}", plan.recv_cq_base, size))
        ring = _cq_ring(replace(plan, cq_depth=plan.recv_cq_depth), config.cq_fill)
        drawn.contents.append((plan.recv_cq_base, ring))
    return plan


def _cq_ring(plan: QpPlan, fill: int) -> NDArray[np.uint8]:
    """Ring content before the first CQE, uint8[depth * stride].

    0xFF: no slot is valid. For a start index in mid-ring that takes the owner bits of a ring that was in
    use: the slots behind the start were written in the present lap, the others in the one before (device
    page 2.3). An ignore_overrun CQ judges slot 0 by the wqe_id that stands in it (2.6), so there the owner
    bit is the one that the all-ones wqe_id does not have: plain 0xFF would look like an error CQE.
    """
    ring = np.full((plan.cq_depth, plan.cq_stride), fill, np.uint8)
    if fill:
        log = plan.cq_depth.bit_length() - 1
        first = plan.start_cq & (plan.cq_depth - 1)
        phase = plan.start_cq >> log & 1
        owner = np.full(plan.cq_depth, 1 - phase, np.uint8)
        owner[:first] = phase
        if plan.ignore_overrun:
            last = 0x1FFF if plan.version == 1 else 0x1_FFFF
            owner[:] = 1 - (last >> log & 1)
        ring[:, 31] = 0x7F | owner << 7
    return ring.reshape(-1)
