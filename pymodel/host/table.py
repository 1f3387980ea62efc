"""A fabric: the transport managers of all PEs over a simulated HCOMM, and what NICs and memories start with.

One `Fabric` serves the golden NICs and the RTL alike: it says which regions a PE's memory has, what stands
in them before the programs start, which BAR writes bring the NIC up, and what the device API reads. The seed
draws addresses, keys and numbers (`pymodel.host.drawing`); the simulated HCOMM makes channels of them; each
PE's `RdmaTransportManagerV2` reads the channel entities back and leaves the queue-information block in device
memory. The NIC contexts are programmed from the same entities. Heap layout: programs page 2; contexts: NIC
page 2.

Beyond the original: several QPs per peer are several queues of one channel; service levels are drawn per QP
instead of taken from the channel's descriptor; a single PE makes a channel to itself to learn its keys.
"""

from __future__ import annotations

import random
from dataclasses import replace
from ipaddress import IPv4Address

import numpy as np

from pymodel.host.config import HEAP_SYNC_BYTES as HEAP_SYNC_BYTES
from pymodel.host.config import FabricConfig as FabricConfig
from pymodel.host.drawing import START_WRAPS as START_WRAPS
from pymodel.host.drawing import draw_qps, lay_out
from pymodel.host.driver import MrAccess
from pymodel.host.fill import read_buffer, read_cqs, read_entity, read_sqs
from pymodel.host.hcomm import ChannelCq, ChannelSq, ContextForm, RegedBuffer, default_form
from pymodel.host.plans import WQE_BYTES as WQE_BYTES
from pymodel.host.plans import BarOp as BarOp
from pymodel.host.plans import PePlan as PePlan
from pymodel.host.plans import QpPlan as QpPlan
from pymodel.host.plans import Region as Region
from pymodel.host.queue_info import CQ_IGNORE_OVERRUN
from pymodel.host.queue_info import QP_INFO_ADDR as QP_INFO_ADDR
from pymodel.host.ranks import RankOptions, channel_index
from pymodel.host.simulated import HcommNetwork, SimulatedDriver
from pymodel.host.transport import RdmaTransportManagerV2
from pymodel.host.transport_types import MemoryRegion, TransportOptions
from pymodel.nic import context as nic
from pymodel.nic.params import Csr


class Fabric:
    """All PEs of a run.

    ``pes[rank]``; ``qps[(pe, peer, qp_idx)]``; ``by_qpn[(pe, qpn)]``; ``managers[rank]``: transport managers.
    """

    def __init__(self, config: FabricConfig) -> None:
        self.config = config
        self.n_pes = config.n_pes
        self.pes: list[PePlan] = []
        self.qps: dict[tuple[int, int, int], QpPlan] = {}
        self.by_qpn: dict[tuple[int, int], QpPlan] = {}
        self.managers: list[RdmaTransportManagerV2] = []
        self._network = HcommNetwork()

    @classmethod
    def build(cls, config: FabricConfig) -> Fabric:
        """Draw and lay out everything, connect, program; the same config gives the same fabric."""
        fabric = cls(config)
        rng = random.Random(f"fabric {config.seed}")
        macs = rng.sample(range(1, 1 << 24), config.n_pes)
        hosts = rng.sample(range(1, 1 << 16), config.n_pes)
        plans = draw_qps(config, rng)
        for rank in range(config.n_pes):
            mine = [plan for plan in plans if plan.pe == rank]
            fabric._open(rank, 0x02_43_41 << 24 | macs[rank], 10 << 24 | hosts[rank], mine, rng)
        fabric._connect()
        for pe in fabric.pes:
            fabric._regions_of(pe)
            fabric._bring_up(pe)
        return fabric

    def version(self, pe: int, peer: int, qp_idx: int) -> int:
        """Format version of a QP: a constant of the compiled driver, in no table; 2 for the own rank."""
        plan = self.qps.get((pe, peer, qp_idx))
        return 2 if plan is None else plan.version

    def rank_of(self, mac: int) -> int | None:
        """PE with this MAC address."""
        return next((pe.rank for pe in self.pes if pe.mac == mac), None)

    # ------------------------------------------------------------------ transport managers
    def _open(self, rank: int, mac: int, ip: int, mine: list[QpPlan], rng: random.Random) -> None:
        """Draw a PE, open its device, register its heap."""
        config, generation = self.config, self.config.generation_of(rank)
        drawn = lay_out(config, rank, mine, rng)
        driver = SimulatedDriver(self._network, rank, IPv4Address(ip), drawn.chip, default_form(generation))
        # an empty environment: a fabric is a function of its config alone
        manager = RdmaTransportManagerV2(driver, generation, {})
        overrun = CQ_IGNORE_OVERRUN if config.ignore_overrun else 0
        alone = config.n_pes == 1
        manager.open_device(
            TransportOptions(rank, config.n_pes, qp_count=config.qps, cq_attr_flags=overrun, loopback=alone)
        )
        manager.register_memory_region(MemoryRegion(drawn.chip.heap_base, config.heap_bytes))
        self.managers.append(manager)
        device = manager.state.device
        assert device is not None
        pe = PePlan(
            rank=rank,
            mac=mac,
            ip=int(device.ip),
            heap_base=drawn.chip.heap_base,
            heap_size=config.heap_bytes,
            amo_base=device.atomic_base,
            amo_size=device.atomic_size,
            generation=generation,
            regions=drawn.regions,
            contents=drawn.contents,
            qps=drawn.chip.qps,
        )
        pe.regions.append(Region("queue information", device.qp_info, -(-device.qp_info_size // 64) * 64))
        self.pes.append(pe)
        for plan in pe.qps:
            self.qps[plan.pe, plan.peer, plan.qp_idx] = plan
            self.by_qpn[plan.pe, plan.qpn] = plan

    def _connect(self) -> None:
        """All heaps are registered by now: make the channels and take over the blocks that come of it."""
        nics = {pe.rank: RankOptions(self.managers[pe.rank].get_nic()) for pe in self.pes}
        for manager in self.managers:
            manager.prepare(nics)
        for pe, manager in zip(self.pes, self.managers, strict=True):
            manager.connect()
            device = manager.state.device
            assert device is not None
            block = manager.driver.copy_from_device(device.qp_info, device.qp_info_size)
            pe.contents.append((manager.get_qp_info(), np.frombuffer(block, np.uint8)))

    def channel_queue(self, pe: int, peer: int, qp_idx: int) -> tuple[ChannelSq, ChannelCq]:
        """Queues of a QP as they stand in the channel entity in the memory of PE ``pe``."""
        manager = self.managers[pe]
        entity = read_entity(manager.driver, manager.state.channels[channel_index(pe, peer)])
        return (
            read_sqs(manager.driver, entity, manager.form, qp_idx)[0],
            read_cqs(manager.driver, entity, manager.form, qp_idx)[0],
        )

    def channel_regions(self, pe: int) -> list[RegedBuffer]:
        """Registered regions of PE ``pe`` as its first channel entity shows them: heap, atomic results."""
        manager = self.managers[pe]
        entity = read_entity(manager.driver, manager.state.channels[0])
        return [
            read_buffer(manager.driver, entity.local_buffer_addr, index)
            for index in range(entity.local_buffer_num)
        ]

    # ------------------------------------------------------------------ bringing a NIC up
    def _regions_of(self, pe: PePlan) -> None:
        """MR contexts and keys from the channel entity; the rights are those of the registration."""
        registered = self.managers[pe.rank].state.regions
        heap, amo = self.channel_regions(pe.rank)
        pe.heap_lkey, pe.heap_rkey, pe.amo_lkey = heap.lkey, heap.rkey, amo.lkey
        for region in (heap, amo):
            known = registered.get(region.addr)
            access = MrAccess.LOCAL_WRITE if known is None else known[1].access
            # the host library has no right for atomics: they go with remote write (programs page, section 2)
            write = bool(access & MrAccess.REMOTE_WRITE)
            pe.mrs[region.lkey >> 8] = nic.MrContext(
                region.addr,
                region.size,
                loc_write=bool(access & MrAccess.LOCAL_WRITE),
                rem_write=write,
                rem_read=bool(access & MrAccess.REMOTE_READ),
                rem_atomic=write,
                ltag=region.lkey & 0xFF,
                rtag=region.rkey & 0xFF,
            )

    def contexts(self, plan: QpPlan) -> tuple[nic.QpContext, nic.CqContext]:
        """NIC contexts of a QP and its CQ.

        Rings, numbers and service level are those of the channel entities, the address is the one that the
        transport manager knows of the peer; what HCOMM's structs do not carry comes from the plan. A peer QPN
        in the plan that is not the peer's stays: a configuration error on purpose.
        """
        sq, cq = self.channel_queue(plan.pe, plan.peer, plan.qp_idx)
        peer_qpn = plan.peer_qpn
        if peer_qpn == self.qps[plan.peer, plan.pe, plan.qp_idx].qpn:
            peer_qpn = self.channel_queue(plan.peer, plan.pe, plan.qp_idx)[0].qpn
        qp = nic.QpContext(
            peer_qpn=peer_qpn, peer_mac=self.pes[plan.peer].mac,
            peer_ip=int(self.managers[plan.pe].state.ranks[plan.peer].ip), sq_base=sq.sq_va,
            sq_depth=sq.depth, send_cq=cq.cqn, recv_cq=plan.recv_cqn if plan.recv_cq_depth else cq.cqn,
            rq_base=plan.rq_base, rq_depth=plan.rq_depth, rq_start_index=plan.rq_start, version=plan.version,
            mtu_code=plan.mtu.bit_length() - 8, sl=sq.sl, rem_write=plan.rem_write, rem_read=plan.rem_read,
            rem_atomic=plan.rem_atomic, tc=plan.tc, ttl=plan.ttl, udp_sport=plan.udp_sport,
            retry_cnt=plan.retry_cnt, rnr_retry=plan.rnr_retry, timer=plan.timer, sq_psn=plan.sq_psn,
            rq_psn=plan.rq_psn, sq_start_index=plan.start_index, max_rd_atomic=plan.max_rd_atomic,
            max_dest_rd_atomic=plan.max_dest_rd_atomic,
        )  # fmt: skip
        overrun = bool(cq.attr_flags & CQ_IGNORE_OVERRUN)
        if self.managers[plan.pe].form is not ContextForm.NEWEST:
            # only a test by override asks for it where the entities have no word for it
            overrun = plan.ignore_overrun
        return qp, nic.CqContext(cq.cq_va, cq.depth, cq.cqe_size, overrun, plan.start_cq)

    def recv_cq(self, plan: QpPlan) -> nic.CqContext | None:
        """NIC context of the CQ that a QP's receives complete to; None: that of its sends."""
        if not plan.recv_cq_depth:
            return None
        return replace(self.contexts(plan)[1], base=plan.recv_cq_base, depth=plan.recv_cq_depth)

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
            cqn, qpn = qp.send_cq, self.channel_queue(plan.pe, plan.peer, plan.qp_idx)[0].qpn
            pe.cq_contexts[cqn], pe.qp_contexts[qpn] = cq, qp
            ops.extend(set_ops(nic.CmdObj.CQ, cqn, cq))
            received = self.recv_cq(plan)
            if received is not None:
                pe.cq_contexts[qp.recv_cq] = received
                ops.extend(set_ops(nic.CmdObj.CQ, qp.recv_cq, received))
            ops.extend(set_ops(nic.CmdObj.QP, qpn, qp))


def set_ops(
    obj: nic.CmdObj, index: int, context: nic.QpContext | nic.CqContext | nic.MrContext
) -> list[BarOp]:
    """BAR steps that stage a context, set it and wait until it is accepted."""
    what = f"{obj.name} {index}"
    writes = nic.command_writes(nic.CmdOp.SET, obj, index, context.stage_words())
    return [BarOp("write", addr, data, what) for addr, data in writes] + [BarOp("idle", what=what)]
