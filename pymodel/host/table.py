"""Direct table builder: rings, keys, contexts and device tables of a fabric, without a transport manager.

One `Fabric` serves the golden NICs and the RTL alike: it says which regions a PE's memory has, what stands
in them before the programs start, which BAR writes bring the NIC up, and what the device API reads. Layout
of the device tables: `pymodel.host.queue_info`; heap layout: programs page 2; contexts: NIC page 2.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from pymodel.generation import Generation
from pymodel.host.config import HEAP_SYNC_BYTES as HEAP_SYNC_BYTES
from pymodel.host.config import FabricConfig as FabricConfig
from pymodel.host.queue_info import CQ_IGNORE_OVERRUN, CqContext, QueueInfo, SqContext, mr_entry
from pymodel.host.queue_info import QP_INFO_ADDR as QP_INFO_ADDR
from pymodel.nic import context as nic
from pymodel.nic.params import Csr

AMO_BYTES_PER_RANK: Final = 128 * 8
"""Bytes of the atomic result buffer per rank (device page 7.3)."""
AMO_ALIGN: Final = {Generation.G1: 512, Generation.G2: 4096, Generation.G3: 4096}
"""Alignment of that buffer and of its size (device page 7.3)."""
SW_DB: Final = 1
"""db_mode that hosts with split doorbells set in every queue (device page 3.3); XSCALE never looks at it."""
WQE_BYTES: Final = 128
CELL_BYTES: Final = 8
START_WRAPS: Final = (1 << 13, 1 << 14, 1 << 17, 1 << 18, 1 << 23, 1 << 32)
"""Indices at which a counter wraps: wqe_id V1, next_pid V1, wqe_id V2, next_pid V2, next_cid, 32-bit head."""

_U32 = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that exists: ``size`` bytes from ``base``, all ``fill`` at first."""

    name: str
    base: int
    size: int
    fill: int = 0


@dataclass(frozen=True, slots=True)
class BarOp:
    """One step of bringing a NIC up: a 64-bit write, or waiting until STATUS is idle with code 0."""

    kind: Literal["write", "idle"]
    addr: int = 0
    data: int = 0
    what: str = ""


@dataclass(frozen=True, slots=True)
class QpPlan:
    """One direction of one QP pair: numbers, properties and addresses.

    ``mtu`` in bytes; indices are free-running and of 32 bits.
    """

    pe: int
    peer: int
    qp_idx: int
    qpn: int
    cqn: int
    version: int
    mtu: int
    sq_depth: int
    cq_depth: int
    cq_stride: int
    start_index: int
    sq_psn: int
    rq_psn: int = 0
    peer_qpn: int = 0
    sl: int = 0
    tc: int = 132
    ttl: int = 64
    udp_sport: int = 0
    retry_cnt: int = 7
    rnr_retry: int = 7
    timer: int = 14
    rem_write: bool = True
    rem_read: bool = True
    rem_atomic: bool = True
    max_rd_atomic: int = 16
    """READs and atomics outstanding as requester."""
    max_dest_rd_atomic: int = 16
    """READs and atomics held as responder."""
    ignore_overrun: bool = False
    sq_base: int = 0
    cq_base: int = 0
    sq_head_addr: int = 0
    sq_tail_addr: int = 0
    cq_head_addr: int = 0
    cq_tail_addr: int = 0
    start_cq: int = 0
    """First CQE index (u32). Equal to ``start_index``: G1 counts CQEs against WQEs (device page 2.4)."""


@dataclass(slots=True)
class PePlan:
    """Everything of one PE.

    ``contents``: (address, uint8[n]) that stand in memory before programs start. ``mrs``, ``cq_contexts`` and
    ``qp_contexts``: NIC contexts by MR index, CQN and QPN; ``bringup`` programs them.
    """

    rank: int
    mac: int
    ip: int
    heap_base: int
    heap_size: int
    heap_lkey: int
    heap_rkey: int
    amo_base: int
    amo_size: int
    amo_lkey: int
    generation: Generation = Generation.G1
    regions: list[Region] = field(default_factory=list)
    contents: list[tuple[int, NDArray[np.uint8]]] = field(default_factory=list)
    qps: list[QpPlan] = field(default_factory=list)
    mrs: dict[int, nic.MrContext] = field(default_factory=dict)
    cq_contexts: dict[int, nic.CqContext] = field(default_factory=dict)
    qp_contexts: dict[int, nic.QpContext] = field(default_factory=dict)
    bringup: list[BarOp] = field(default_factory=list)


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


class Fabric:
    """All PEs of a run. ``pes[rank]``; ``qps[(pe, peer, qp_idx)]``; ``by_qpn[(pe, qpn)]``."""

    def __init__(self, config: FabricConfig) -> None:
        self.config = config
        self.n_pes = config.n_pes
        self.pes: list[PePlan] = []
        self.qps: dict[tuple[int, int, int], QpPlan] = {}
        self.by_qpn: dict[tuple[int, int], QpPlan] = {}

    @classmethod
    def build(cls, config: FabricConfig) -> Fabric:
        """Draw and lay out everything; the same config gives the same fabric."""
        fabric = cls(config)
        rng = random.Random(f"fabric {config.seed}")
        macs = rng.sample(range(1, 1 << 24), config.n_pes)
        hosts = rng.sample(range(1, 1 << 16), config.n_pes)
        plans = fabric._draw_qps(rng)
        for rank in range(config.n_pes):
            mine = [plan for plan in plans if plan.pe == rank]
            fabric._lay_out(rank, 0x02_43_41 << 24 | macs[rank], 10 << 24 | hosts[rank], mine, rng)
        for pe in fabric.pes:
            fabric._device_tables(pe)
            fabric._bring_up(pe)
        return fabric

    def version(self, pe: int, peer: int, qp_idx: int) -> int:
        """Format version of a QP; 2 (the driver's constant) for the own rank, which has no QP."""
        plan = self.qps.get((pe, peer, qp_idx))
        return 2 if plan is None else plan.version

    def rank_of(self, mac: int) -> int | None:
        """PE with this MAC address."""
        return next((pe.rank for pe in self.pes if pe.mac == mac), None)

    # ------------------------------------------------------------------ drawing
    def _draw_qps(self, rng: random.Random) -> list[QpPlan]:
        config, params = self.config, self.config.params
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
            start, psn = self._start(rng, depth)
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
            changes.update(
                {k: v for k, v in self.config.overrides.get((pe, peer, qp), {}).items() if k in changes}
            )
            done.append(replace(plan, **changes))
        return done

    def _start(self, rng: random.Random, depth: int) -> tuple[int, int]:
        if self.config.start == "zero":
            return 0, 0
        if self.config.start == "random":
            return rng.getrandbits(32), rng.getrandbits(24)
        before = rng.randrange(1, 2 * depth)
        return (rng.choice(START_WRAPS) - before) & _U32, (1 << 24) - rng.randrange(1, 64)

    # ------------------------------------------------------------------ layout of one PE
    def _lay_out(self, rank: int, mac: int, ip: int, mine: list[QpPlan], rng: random.Random) -> None:
        config = self.config
        if config.high_addresses:
            heaps = _Places(rng, 1 << 63, (1 << 64) - (1 << 32))
        else:
            heaps = _Places(rng, 1 << 36, 1 << 44)
        queues = _Places(rng, 1 << 45, 1 << 46)
        heap = heaps.take(config.heap_bytes, 2 << 20)
        generation = config.generation_of(rank)
        align = AMO_ALIGN[generation]
        amo_size = -(-AMO_BYTES_PER_RANK * config.n_pes // align) * align
        amo = queues.take(amo_size, align)
        heap_index, amo_index = rng.sample(range(config.params.num_mr), 2)
        tags = rng.sample(range(256), 4)
        heap_mr = nic.MrContext(heap, config.heap_bytes, ltag=tags[0], rtag=tags[1])
        amo_mr = nic.MrContext(
            amo, amo_size, rem_write=False, rem_read=False, rem_atomic=False, ltag=tags[2], rtag=tags[3]
        )
        pe = PePlan(
            rank=rank,
            mac=mac,
            ip=ip,
            heap_base=heap,
            heap_size=config.heap_bytes,
            heap_lkey=heap_mr.lkey(heap_index),
            heap_rkey=heap_mr.rkey(heap_index),
            amo_base=amo,
            amo_size=amo_size,
            amo_lkey=amo_mr.lkey(amo_index),
            generation=generation,
            mrs={heap_index: heap_mr, amo_index: amo_mr},
        )
        pe.regions += [Region("heap", heap, config.heap_bytes), Region("atomic results", amo, amo_size)]
        for plan in mine:
            sq_bytes, cq_bytes = plan.sq_depth * WQE_BYTES, plan.cq_depth * plan.cq_stride
            sq = queues.take(sq_bytes, WQE_BYTES)
            cq = queues.take(cq_bytes, plan.cq_stride)
            cells = queues.take(4 * CELL_BYTES, CELL_BYTES)
            name = f"to PE {plan.peer}, QP {plan.qp_idx}"
            pe.regions += [
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
            self.qps[plan.pe, plan.peer, plan.qp_idx] = placed
            self.by_qpn[plan.pe, plan.qpn] = placed
            pe.qps.append(placed)
            if config.sq_fill == "dirty":
                dirt = np.frombuffer(rng.randbytes(sq_bytes), np.uint8)
                pe.contents.append((sq, dirt))
            pe.contents.append((cq, _cq_ring(placed, config.cq_fill)))
            cell = np.zeros(4 * CELL_BYTES, np.uint8)
            words = cell.view("<u4")
            words[0] = words[2] = placed.start_index
            words[4] = words[6] = placed.start_cq
            pe.contents.append((cells, cell))
        info = QueueInfo.layout(QP_INFO_ADDR, config.n_pes, config.qps, generation)
        size = -(-info.total(QP_INFO_ADDR, config.n_pes) // 64) * 64
        pe.regions.append(Region("queue information", QP_INFO_ADDR, size))
        self.pes.append(pe)

    def _device_tables(self, pe: PePlan) -> None:
        """Fill the queue-information block as the transport manager does (device page 7.3)."""
        config, generation = self.config, pe.generation
        info = QueueInfo.layout(QP_INFO_ADDR, config.n_pes, config.qps, generation)
        block = bytearray(info.total(QP_INFO_ADDR, config.n_pes))
        db_mode = 0 if generation is Generation.G1 else SW_DB

        def put(addr: int, data: bytes) -> None:
            block[addr - QP_INFO_ADDR : addr - QP_INFO_ADDR + len(data)] = data

        put(QP_INFO_ADDR, info.pack())
        for plan in pe.qps:
            amo = pe.amo_base + plan.peer * AMO_BYTES_PER_RANK
            sq = SqContext(
                wqn=plan.qpn,
                buf_addr=plan.sq_base,
                wqe_size=WQE_BYTES,
                depth=plan.sq_depth,
                head_addr=plan.sq_head_addr,
                tail_addr=plan.sq_tail_addr,
                db_mode=db_mode,
                db_addr=config.params.db_address(plan.qpn, config.params.db_sq),
                sl=plan.sl,
                amo_addr=amo,
                amo_lkey=pe.amo_lkey,
            )
            cq = CqContext(
                cqn=plan.cqn,
                buf_addr=plan.cq_base,
                cqe_size=plan.cq_stride,
                depth=plan.cq_depth,
                head_addr=plan.cq_head_addr,
                tail_addr=plan.cq_tail_addr,
                db_mode=db_mode,
                db_addr=config.params.db_address(plan.qpn, config.params.db_cq),
                cq_attr_flags=CQ_IGNORE_OVERRUN if plan.ignore_overrun else 0,
            )
            sq_entry, rq_entry, cq_entry = info.entry(plan.peer, plan.qp_idx)
            put(sq_entry, sq.pack(generation))
            put(rq_entry, SqContext(amo_addr=amo, amo_lkey=pe.amo_lkey).pack(generation))
            put(cq_entry, cq.pack(generation))
        for other in self.pes:
            put(info.mr_addr(other.rank), mr_entry(pe.heap_lkey if other is pe else 0, other.heap_rkey))
        pe.contents.append((QP_INFO_ADDR, np.frombuffer(bytes(block), np.uint8)))

    # ------------------------------------------------------------------ bringing a NIC up
    def contexts(self, plan: QpPlan) -> tuple[nic.QpContext, nic.CqContext]:
        """NIC contexts of a QP and its CQ."""
        peer = self.pes[plan.peer]
        qp = nic.QpContext(
            peer_qpn=plan.peer_qpn, peer_mac=peer.mac, peer_ip=peer.ip, sq_base=plan.sq_base,
            sq_depth=plan.sq_depth, send_cq=plan.cqn, recv_cq=plan.cqn, version=plan.version,
            mtu_code=plan.mtu.bit_length() - 8, sl=plan.sl, rem_write=plan.rem_write, rem_read=plan.rem_read,
            rem_atomic=plan.rem_atomic, tc=plan.tc, ttl=plan.ttl, udp_sport=plan.udp_sport,
            retry_cnt=plan.retry_cnt, rnr_retry=plan.rnr_retry, timer=plan.timer, sq_psn=plan.sq_psn,
            rq_psn=plan.rq_psn, sq_start_index=plan.start_index, max_rd_atomic=plan.max_rd_atomic,
            max_dest_rd_atomic=plan.max_dest_rd_atomic,
        )  # fmt: skip
        cq = nic.CqContext(plan.cq_base, plan.cq_depth, plan.cq_stride, plan.ignore_overrun, plan.start_cq)
        return qp, cq

    def _bring_up(self, pe: PePlan) -> None:
        ops = pe.bringup
        ops.append(BarOp("write", Csr.MAC, pe.mac, "MAC"))
        ops.append(BarOp("write", Csr.IP, pe.ip, "IP"))
        if self.config.cq_wait:
            ops.append(BarOp("write", Csr.CQ_WAIT, self.config.cq_wait, "CQ_WAIT"))
        for index, mr in pe.mrs.items():
            ops.extend(set_ops(nic.CmdObj.MR, index, mr))
        for plan in pe.qps:
            qp, cq = self.contexts(plan)
            pe.cq_contexts[plan.cqn], pe.qp_contexts[plan.qpn] = cq, qp
            ops.extend(set_ops(nic.CmdObj.CQ, plan.cqn, cq))
            ops.extend(set_ops(nic.CmdObj.QP, plan.qpn, qp))


def set_ops(
    obj: nic.CmdObj, index: int, context: nic.QpContext | nic.CqContext | nic.MrContext
) -> list[BarOp]:
    """BAR steps that stage a context, set it and wait until it is accepted."""
    what = f"{obj.name} {index}"
    writes = nic.command_writes(nic.CmdOp.SET, obj, index, context.stage_words())
    return [BarOp("write", addr, data, what) for addr, data in writes] + [BarOp("idle", what=what)]


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
