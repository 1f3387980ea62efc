"""Fabrics over the transport manager: one source for device tables and NIC contexts.

Sweep: fabrics of every kind. Stimulus: seeds; channel entities and blocks changed in memory. Checks: digests
frozen when tables were still built directly; contexts follow the entities; the device API follows the block
and has nothing else to read; huge heaps cost nothing. Timing: none. Does not prove that a NIC works with it:
the platform tests do.
"""

from __future__ import annotations

import ast
import hashlib
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pymodel.device
from pymodel.device.pe import Pe
from pymodel.generation import Generation
from pymodel.host.hcomm import ChannelEntity, ContextForm
from pymodel.host.queue_info import QP_INFO_ADDR
from pymodel.host.ranks import channel_index
from pymodel.host.table import Fabric, FabricConfig
from pymodel.host.transport_types import TransportState
from pymodel.model import ModelBackend
from pymodel.nic import context as nic
from pymodel.nic.params import Csr
from tests.model.model_programs import model_run, only

G1, G2, G3 = Generation
ONE_WAY = {
    "peer_qpn": 77, "rq_psn": 5, "sq_depth": 8, "cq_depth": 8, "start_index": 3, "tc": 4, "rem_write": False,
    "max_rd_atomic": 3,
}  # fmt: skip
OTHER_WAY = {"cq_stride": 32, "sl": 6, "version": 1, "mtu": 256}
CONFIGS = {
    "default": FabricConfig(),
    "alone": FabricConfig(n_pes=1, seed=3),
    "mixed G1": FabricConfig.mixed(4, 3, 7),
    "mixed G2": FabricConfig.mixed(3, 2, 8, generation=G2, high_addresses=True, cq_wait=5),
    "G3 overrun": FabricConfig(n_pes=3, qps=4, seed=9, generation=G3, ignore_overrun=True, start="random"),
    "generations mixed": FabricConfig(n_pes=4, qps=2, seed=10, generation=(G1, G2, G3, G1), ub_fill="dirty"),
    "sixteen": FabricConfig(n_pes=16, qps=4, seed=11, cq_fill=0, sls=(0, 7)),
    "overrides": FabricConfig(seed=12, overrides={(0, 1, 0): ONE_WAY, (1, 0, 0): OTHER_WAY}),
}
FROZEN = {
    "default": "2cb518871f618928e8ea76ea9dbaf92208b998eff7d049b2922140dbe29c9226",
    "alone": "fd4ff9ddc76882fb80d71f410edf296d8650d96274df37df0f28126357a74225",
    "mixed G1": "8af776e1f0b4b03d657226489f101278b55dbaa7848826091ea6f6177285b9ec",
    "mixed G2": "31e2ed60eb1a1d9f85658d4057f6d3c06a5275857f1a1c1577a84a617d34b943",
    "G3 overrun": "804967efea8c519ec6804c9b83f2e3c1baea01c3ea3b9e631556c57beb802f2e",
    "generations mixed": "3cb18c2196fd47595f0ce20120fca5a056b2e1c08ef2f0c4c1782d2f4d3a2a00",
    "sixteen": "66d698764e24be5fc579ca0313704dbf6d5cb9ca81728b08b7d5cfbdbe6ccd48",
    "overrides": "dfb9d6be1dcf414e189a2d120ac8188b099d00df5390c5b9f7d501949f4b096c",
}
"""Taken from the builder that wrote tables and contexts straight from its draws."""


class Text(str):
    """A representation of plans as they were when they had no receive queue."""

    LATER = ", rq_depth=0, rq_start=0, recv_cq_depth=0, rq_base=0, recv_cqn=-1, recv_cq_base=0"

    def __repr__(self) -> str:
        return self.replace(self.LATER, "")


def digest(config: FabricConfig) -> str:
    """Everything that a run starts from: plans, regions, contents, contexts, bring-up."""
    total = hashlib.sha256()

    def add(value: object) -> None:
        total.update(repr(value).encode())

    fabric = Fabric.build(config)
    for pe in fabric.pes:
        add((
            pe.rank, pe.mac, pe.ip, pe.heap_base, pe.heap_size, pe.heap_lkey, pe.heap_rkey, pe.amo_base,
            pe.amo_size, pe.amo_lkey, int(pe.generation),
        ))  # fmt: skip
        add([(r.name, r.base, r.size, r.fill) for r in pe.regions])
        for addr, data in pe.contents:
            add((addr, len(data)))
            total.update(data.tobytes())
        for contexts in (pe.mrs, pe.cq_contexts, pe.qp_contexts):
            add([(index, context.stage_words()) for index, context in contexts.items()])  # type: ignore[attr-defined]
        add([(op.kind, op.addr, op.data, op.what) for op in pe.bringup])
        add(Text(repr(pe.qps)))
    add(Text(repr(list(fabric.qps.items()))))
    add(list(fabric.by_qpn))
    return total.hexdigest()


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_has_changed(name: str) -> None:
    """The way through manager and entities gives the same as the direct one did, bit for bit."""
    assert digest(CONFIGS[name]) == FROZEN[name]


def _pack(entity: Any, form: ContextForm | None = None) -> bytes:
    return entity.pack() if form is None else entity.pack(form)


@pytest.mark.parametrize("generation", Generation)
def test_contexts_follow_the_entities(generation: Generation) -> None:
    """Change a channel's SQ, CQ and regions in device memory: the NIC contexts change, the plans do not."""
    fabric = Fabric.build(FabricConfig(n_pes=3, qps=2, seed=4, generation=generation))
    plan, back = fabric.qps[1, 2, 1], fabric.qps[2, 1, 1]
    sq, cq = fabric.channel_queue(1, 2, 1)
    manager = fabric.managers[1]
    memory = manager.driver
    channel = manager.state.channels[channel_index(1, 2)]
    entity = ChannelEntity.unpack(memory.copy_from_device(channel, 256))
    flags = {"attr_flags": 2} if generation is G3 else {}
    other_sq = replace(sq, sq_va=0x1000, depth=16, sl=1, qpn=9)
    other_cq = replace(cq, cq_va=0x2000, depth=32, cqe_size=32, cqn=11, **flags)
    memory.copy_to_device(entity.sq_context_addr + 128, _pack(other_sq, manager.form))
    memory.copy_to_device(entity.cq_context_addr + 128, _pack(other_cq, manager.form))
    qp, cqc = fabric.contexts(plan)
    assert (qp.sq_base, qp.sq_depth, qp.sl, qp.send_cq, qp.recv_cq) == (0x1000, 16, 1, 11, 11)
    assert (cqc.base, cqc.depth, cqc.stride, cqc.ignore_overrun) == (0x2000, 32, 32, generation is G3)
    assert fabric.contexts(back)[0].peer_qpn == 9
    first = ChannelEntity.unpack(memory.copy_from_device(manager.state.channels[0], 256))
    heap, amo = fabric.channel_regions(1)
    moved = replace(heap, addr=4096, size=8192, lkey=0x501, rkey=0x502)
    memory.copy_to_device(first.local_buffer_addr, _pack(moved))
    memory.copy_to_device(first.local_buffer_addr + 64, _pack(replace(amo, lkey=0x603)))
    pe = fabric.pes[1]
    pe.mrs.clear()
    fabric._regions_of(pe)
    assert (pe.heap_lkey, pe.heap_rkey, pe.amo_lkey) == (0x501, 0x502, 0x603)
    want = nic.MrContext(4096, 8192, True, False, False, False, 1, 2)
    assert pe.mrs[5] == want, "no region is registered at 4096: no rights but local write"
    pe.bringup.clear()
    fabric._bring_up(pe)
    assert 9 in pe.qp_contexts and 11 in pe.cq_contexts and pe.qp_contexts[9] == qp


def test_addresses_come_from_the_managers() -> None:
    """IP of the device as the topology says; of the peer as it was exchanged."""
    fabric = Fabric.build(FabricConfig(n_pes=2, seed=4))
    for pe, manager in zip(fabric.pes, fabric.managers, strict=True):
        assert manager.get_nic() == f"tcp://10.0.{pe.ip >> 8 & 255}.{pe.ip & 255}:{60032 + pe.rank}"
        assert manager.get_qp_info() == QP_INFO_ADDR == 0x17FFBE000000
        other = fabric.pes[1 - pe.rank]
        assert next(iter(pe.qp_contexts.values())).peer_ip == other.ip
        assert (op := pe.bringup[1]).addr == Csr.IP and op.data == pe.ip
        desc = next(iter(manager.driver.channels.values())).desc  # type: ignore[attr-defined]
        plan = fabric.qps[pe.rank, other.rank, 0]
        assert (desc.traffic_class, desc.retry_count) == (plan.tc, None)


def test_a_fabric_can_be_closed() -> None:
    """Nothing is left of its channels; closing does not touch what the run has taken over."""
    fabric = Fabric.build(FabricConfig(n_pes=3, qps=2, generation=G2))
    block = fabric.pes[0].contents[-1][1].copy()
    for manager in fabric.managers:
        manager.close_device()
        driver: Any = manager.driver
        assert manager.state == TransportState() and not driver.channels and not driver.memory.pieces()
    assert (fabric.pes[0].contents[-1][1] == block).all()


# ---------------------------------------------------------------------- the device API reads the block
def _stub(fabric: Fabric, backend: ModelBackend) -> tuple[Any, Any]:
    """What the device API may know beside its memory: constants of its build, and the symmetric heaps."""
    pes = [
        SimpleNamespace(heap_base=pe.heap_base, heap_size=pe.heap_size, generation=pe.generation)
        for pe in fabric.pes
    ]
    config = SimpleNamespace(seed=fabric.config.seed, ub_fill=fabric.config.ub_fill)
    known = SimpleNamespace(pes=pes, n_pes=fabric.n_pes, config=config, version=fabric.version)
    return known, SimpleNamespace(backend=backend, current=None)


@pytest.mark.parametrize(("generation", "wq", "cq"), [(G1, 80, 56), (G2, 96, 64), (G3, 96, 72)])
def test_the_device_api_reads_the_block_and_nothing_else(generation: Generation, wq: int, cq: int) -> None:
    """Without the builder's objects at hand; every field that is changed in memory arrives changed."""
    fabric = Fabric.build(FabricConfig(n_pes=3, seed=6, generation=generation))
    backend = ModelBackend(fabric)
    plan, amo = fabric.qps[0, 2, 0], fabric.pes[0].amo_base
    sq, scq, mr = 48 + 2 * wq, 48 + 6 * wq + 2 * cq, 48 + 6 * (wq + cq)
    known, core = _stub(fabric, backend)
    qp = Pe(known, 0, core).qp(2)
    assert (qp.wqn, qp.sq_addr, qp.depth, qp.amo_addr) == (plan.qpn, plan.sq_base, plan.sq_depth, amo + 2048)
    block = backend.memories[0].view(QP_INFO_ADDR, mr + 72)

    def put(at: int, size: int, value: int) -> None:
        block[at : at + size] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)

    # another QP's rings, so that there is memory where they point
    other = fabric.qps[0, 1, 0]
    changes = {
        "wqn": (sq, 4, 1001), "sq_addr": (sq + 8, 8, other.sq_base), "wqe_size": (sq + 16, 4, 64),
        "depth": (sq + 20, 4, 16), "sq_head_addr": (sq + 24, 8, other.sq_head_addr),
        "sq_tail_addr": (sq + 32, 8, other.sq_tail_addr), "sq_db_addr": (sq + 48, 8, 0x1234),
        "amo_addr": (sq + 64, 8, 0x5678), "amo_lkey": (sq + 72, 4, 0x9ABC), "cqn": (scq, 4, 1002),
        "cq_addr": (scq + 8, 8, other.cq_base), "cqe_size": (scq + 16, 4, 32), "cq_depth": (scq + 20, 4, 8),
        "cq_tail_addr": (scq + 32, 8, other.cq_tail_addr), "cq_db_addr": (scq + 48, 8, 0xDEF0),
        "rkey": (mr + 2 * 24 + 20, 4, 0x777),
    }  # fmt: skip
    for at, size, value in changes.values():
        put(at, size, value)
    put(mr + 16, 4, 0x888)
    pe = Pe(known, 0, core)
    state = pe.qp(2)
    assert {name: getattr(state, name) for name in changes} == {name: c[2] for name, c in changes.items()}
    assert pe.lkey == 0x888
    put(sq + 20, 4, 0)
    assert Pe(known, 0, core).qp(2).depth == 0, "a partial table"
    put(8, 8, QP_INFO_ADDR + 48 + wq)  # sq and scq table one entry further on
    put(24, 8, QP_INFO_ADDR + 48 + 6 * wq + cq)
    state = Pe(known, 0, core).qp(0)
    assert (state.wqn, state.cqn) == (other.qpn, other.cqn)


def test_a_post_to_a_peer_that_was_skipped() -> None:
    """Device page 7.3: a partial table has SQ depth 0 there; the post divides by it, as to oneself."""
    fabric = Fabric.build(FabricConfig(n_pes=3))
    addr, block = fabric.pes[0].contents.pop()
    block = block.copy()
    block[48 + 160 : 48 + 240] = 0
    fabric.pes[0].contents.append((addr, block))

    async def main(pe: Pe) -> None:
        src = pe.alloc(8)
        await pe.put_nbi(src, src, 8, 1)
        await pe.quiet(1)
        for peer in (0, 2):
            with pytest.raises(ZeroDivisionError, match=f"post to PE {peer}, QP 0, whose SQ depth is 0"):
                await pe.put_nbi(src, src, 8, peer)

    model_run(only(0, main), fabric=fabric).run()


def test_what_the_device_api_takes_from_a_fabric() -> None:
    """In its sources: sizes and constants; no queue, key or context."""
    allowed = {"pes", "n_pes", "config", "version", "generation", "heap_base", "heap_size", "seed", "ub_fill"}
    taken = set()
    for path in Path(pymodel.device.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and "fabric" in ast.unparse(node.value):
                taken.add(node.attr)
    assert taken and taken <= allowed, taken - allowed


def test_a_huge_heap_is_only_an_address() -> None:
    """16 heaps of 32 GiB: building the fabric takes a few MiB."""
    tracemalloc.start()
    fabric = Fabric.build(FabricConfig(n_pes=16, heap_bytes=32 << 30))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20, f"{peak >> 20} MiB"
    assert all(heap.length == 32 << 30 for pe in fabric.pes for heap in pe.mrs.values() if heap.rem_write)
