"""Table builder: device tables, contexts, rings, layout.

Sweep: sizes, seeds, start indices, fills. Stimulus: fabrics. Checks: offsets of the device page 7.2 read
back by hand, programming accepted by the command engine, owner bits of a ring, no two regions meet, bad
configurations are refused. Timing: none. Does not prove: the transport manager behind it, which has tests of
its own (test_host_*).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymodel.generation import Generation
from pymodel.host.queue_info import QP_INFO_ADDR, CqContext, QueueInfo, SqContext
from pymodel.host.table import Fabric, FabricConfig
from pymodel.model import BringUpError, ModelBackend


def _u(raw: np.ndarray[Any, Any], at: int, size: int) -> int:
    return int.from_bytes(raw[at : at + size].tobytes(), "little")


def _info(fabric: Fabric, rank: int) -> np.ndarray[Any, Any]:
    return next(data for addr, data in fabric.pes[rank].contents if addr == QP_INFO_ADDR)


def test_sizes_of_generation_g1() -> None:
    """Device page 7.2: 48, 80, 56, 24 bytes; R = 2 takes 640 bytes; tables at 48, 48+80R, 48+160R, ..."""
    g1 = Generation.G1
    assert (QueueInfo.SIZE, SqContext.size(g1), CqContext.size(g1)) == (48, 80, 56)
    info = QueueInfo.layout(0, 2, 1, g1)
    assert info.total(0, 2) == 640
    for pes in (2, 7, 16):
        info = QueueInfo.layout(1000, pes, 1, g1)
        got = [p - 1000 for p in (info.sq_ptr, info.rq_ptr, info.scq_ptr, info.rcq_ptr, info.mr_ptr)]
        assert got == [48, 48 + 80 * pes, 48 + 160 * pes, 48 + 216 * pes, 48 + 272 * pes]


def test_fields_stand_where_the_device_reads_them() -> None:
    """Device page 7.2 and 7.3, byte offsets taken from the page, not from the code under test."""
    fabric = Fabric.build(FabricConfig(n_pes=3, seed=5, start="random"))
    raw, pe = _info(fabric, 0), fabric.pes[0]
    assert (
        _u(raw, 0, 4) == 1
        and _u(raw, 8, 8) == QP_INFO_ADDR + 48
        and _u(raw, 40, 8) == QP_INFO_ADDR + 48 + 272 * 3
    )
    for peer in range(3):
        sq, scq, mr, rq = (
            48 + 80 * peer,
            48 + 160 * 3 + 56 * peer,
            48 + 272 * 3 + 24 * peer,
            48 + 80 * 3 + 80 * peer,
        )
        assert _u(raw, mr, 8) == _u(raw, mr + 8, 8) == 0, "size and address are zero: only keys are usable"
        assert _u(raw, mr + 20, 4) == fabric.pes[peer].heap_rkey
        if peer == 0:
            assert not raw[sq : sq + 80].any() and not raw[scq : scq + 56].any()
            assert _u(raw, mr + 16, 4) == pe.heap_lkey
            continue
        assert _u(raw, mr + 16, 4) == 0, "nobody has another PE's lkey"
        plan = fabric.qps[0, peer, 0]
        assert (_u(raw, sq, 4), _u(raw, sq + 8, 8)) == (plan.qpn, plan.sq_base)
        assert (_u(raw, sq + 16, 4), _u(raw, sq + 20, 4)) == (128, plan.sq_depth)
        assert (_u(raw, sq + 24, 8), _u(raw, sq + 32, 8)) == (plan.sq_head_addr, plan.sq_tail_addr)
        assert _u(raw, sq + 48, 8) == 0x0800_0000 + 4096 * plan.qpn
        assert _u(raw, sq + 56, 4) == plan.sl
        assert (_u(raw, sq + 64, 8), _u(raw, sq + 72, 4)) == (pe.amo_base + 1024 * peer, pe.amo_lkey)
        assert (_u(raw, rq, 8), _u(raw, rq + 64, 8)) == (0, pe.amo_base + 1024 * peer)
        assert (_u(raw, scq, 4), _u(raw, scq + 8, 8)) == (plan.cqn, plan.cq_base)
        assert (_u(raw, scq + 16, 4), _u(raw, scq + 20, 4)) == (plan.cq_stride, plan.cq_depth)
        assert (_u(raw, scq + 24, 8), _u(raw, scq + 32, 8)) == (plan.cq_head_addr, plan.cq_tail_addr)
        assert _u(raw, scq + 48, 8) == 0x0800_0010 + 4096 * plan.qpn


@pytest.mark.parametrize(
    ("generation", "wq", "cq", "total"), [(1, 80, 56, 640), (2, 96, 64, 736), (3, 96, 72, 768)]
)
@pytest.mark.parametrize("qps", [1, 3])
def test_tables_of_each_generation(generation: int, wq: int, cq: int, total: int, qps: int) -> None:
    """Device page 7.2: sizes, offsets of the fields that G2 and G3 add, R = 2 takes 736 bytes in G2.

    ignore_overrun reaches the device as bit 1 of cq_attr_flags (2.6); the amo buffer is 4096-aligned (7.3).
    """
    kind = Generation(generation)
    assert (SqContext.size(kind), CqContext.size(kind)) == (wq, cq)
    assert QueueInfo.layout(0, 2, 1, kind).total(0, 2) == total
    pes = 3
    overrun = {"ignore_overrun": True} if generation == 3 else {}
    fabric = Fabric.build(FabricConfig(n_pes=pes, seed=6, qps=qps, generation=kind, **overrun))  # type: ignore[arg-type]
    raw, pe = _info(fabric, 1), fabric.pes[1]
    n = pes * qps
    places = [48, 48 + wq * n, 48 + 2 * wq * n, 48 + (2 * wq + cq) * n, 48 + 2 * (wq + cq) * n]
    assert [_u(raw, 8 + 8 * i, 8) - QP_INFO_ADDR for i in range(5)] == places and _u(raw, 0, 4) == qps
    for (rank, peer, qp), plan in fabric.qps.items():
        if rank != 1:
            continue
        sq = 48 + wq * (peer * qps + qp)
        scq = places[2] + cq * (peer * qps + qp)
        assert (_u(raw, sq, 4), _u(raw, sq + 20, 4), _u(raw, sq + 40, 4)) == (
            plan.qpn, plan.sq_depth, int(generation > 1),
        )  # fmt: skip
        assert (_u(raw, sq + 64, 8), _u(raw, sq + 72, 4)) == (pe.amo_base + 1024 * peer, pe.amo_lkey)
        assert (_u(raw, scq, 4), _u(raw, scq + 40, 4)) == (plan.cqn, int(generation > 1))
        assert _u(raw, scq + 48, 8) == 0x0800_0010 + 4096 * plan.qpn
        if generation == 3:
            assert _u(raw, scq + 56, 4) == 2 and _u(raw, scq + 64, 8) == 0
    align = 512 if generation == 1 else 4096
    assert pe.amo_base % align == pe.amo_size % align == 0 and pe.amo_size >= 1024 * pes
    amo = next(mr for mr in pe.mrs.values() if mr.base == pe.amo_base)
    assert (amo.loc_write, amo.rem_write, amo.rem_read, amo.rem_atomic) == (True, False, False, False)
    heap = next(mr for mr in pe.mrs.values() if mr.base == pe.heap_base)
    assert heap.loc_write and heap.rem_write and heap.rem_read and heap.rem_atomic


def test_limits_of_reads_and_atomics_reach_the_context() -> None:
    """Both K of the NIC page, section 2, by override."""
    fabric = Fabric.build(FabricConfig(overrides={(0, 1, 0): {"max_rd_atomic": 3, "max_dest_rd_atomic": 5}}))
    context = fabric.pes[0].qp_contexts[fabric.qps[0, 1, 0].qpn]
    assert (context.max_rd_atomic, context.max_dest_rd_atomic) == (3, 5)
    other = fabric.pes[1].qp_contexts[fabric.qps[1, 0, 0].qpn]
    assert (other.max_rd_atomic, other.max_dest_rd_atomic) == (16, 16)


def test_pack_and_unpack_are_inverse() -> None:
    """Entries read back as written."""
    for generation, sq_fields, cq_fields in ((1, 11, 8), (2, 13, 9), (3, 14, 10)):
        kind = Generation(generation)
        sq, cq = SqContext(*range(1, 1 + sq_fields)), CqContext(*range(1, 1 + cq_fields))
        assert SqContext.unpack(sq.pack(kind), kind) == sq
        assert CqContext.unpack(cq.pack(kind), kind) == cq


def test_fields_of_later_generations_by_offset() -> None:
    """Device page 7.2: dbSwVa at 80 and mtuShift at 88 of a WQ, dbSwVa at 56 of a CQ; G3's by field order."""
    where, there = 0x1122_3344_5566_7788, (0x1122_3344_5566_7788).to_bytes(8, "little")
    sq = SqContext(db_sw_addr=where, mtu_shift=0x55, db_cos=7)
    assert sq.pack(Generation.G2) == bytes(80) + there + b"\x55" + bytes(7)
    assert sq.pack(Generation.G3) == bytes(80) + there + b"\x55\x07" + bytes(6)
    cq = CqContext(db_sw_addr=where, cq_attr_flags=2)
    assert cq.pack(Generation.G1) == bytes(56)
    assert cq.pack(Generation.G2) == bytes(56) + there
    assert cq.pack(Generation.G3) == bytes(56) + b"\x02" + bytes(7) + there


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("high", [False, True])
def test_random_fabrics_come_up(seed: int, high: bool) -> None:
    """Every context is accepted, both ends of a pair agree, keys differ, regions do not meet."""
    fabric = Fabric.build(FabricConfig.mixed(4, 3, seed, high_addresses=high))
    backend = ModelBackend(fabric)
    for pe in fabric.pes:
        spans = sorted((r.base, r.base + r.size) for r in pe.regions)
        assert all(hi <= lo for (_, hi), (lo, _) in zip(spans, spans[1:], strict=False))
        assert all(r.base + r.size <= 1 << 64 for r in pe.regions)
        assert len({q.qpn for q in pe.qps}) == len({q.cqn for q in pe.qps}) == 9
        assert backend.nics[pe.rank].contexts.qps == pe.qp_contexts
        assert backend.nics[pe.rank].contexts.cqs == pe.cq_contexts
        assert backend.nics[pe.rank].contexts.mrs == pe.mrs
        assert high == (pe.heap_base >= 1 << 63)
    for (pe_rank, peer, qp), plan in fabric.qps.items():
        other = fabric.qps[peer, pe_rank, qp]
        assert (plan.peer_qpn, plan.rq_psn, plan.mtu) == (other.qpn, other.sq_psn, other.mtu)
    assert len({pe.heap_rkey for pe in fabric.pes}) == len({pe.mac for pe in fabric.pes}) == 4


def test_mixed_fabrics_reach_everything() -> None:
    """Over a few seeds each choice is drawn."""
    plans = [p for seed in range(6) for p in Fabric.build(FabricConfig.mixed(4, 2, seed)).qps.values()]
    assert {p.version for p in plans} == {1, 2} and {p.cq_stride for p in plans} == {32, 64}
    assert {p.mtu for p in plans} == {256, 512, 1024, 2048, 4096}
    assert {p.sq_depth for p in plans} == {16, 32, 64, 128}
    assert {p.cq_depth // p.sq_depth for p in plans} == {1, 2, 4}


def test_same_seed_same_fabric() -> None:
    """Everything is drawn from the seed."""
    one, two, other = (Fabric.build(FabricConfig.mixed(3, 2, seed)) for seed in (1, 1, 2))
    assert one.qps == two.qps and one.qps != other.qps
    assert [pe.bringup for pe in one.pes] == [pe.bringup for pe in two.pes]
    assert all((a[1] == b[1]).all() for a, b in zip(one.pes[0].contents, two.pes[0].contents, strict=True))


@pytest.mark.parametrize("start", [0, 1, 5, 8, 13, 16, 0xFFFF_FFFB])
@pytest.mark.parametrize("stride", [32, 64])
def test_no_slot_of_a_fresh_cq_is_valid(start: int, stride: int) -> None:
    """Device page 2.3: for each index of two laps the owner bit stands at "not yet" until written."""
    depth = 8
    config = FabricConfig(
        overrides={(0, 1, 0): {"sq_depth": 8, "cq_depth": depth, "cq_stride": stride, "start_index": start}}
    )
    fabric = Fabric.build(config)
    plan = fabric.qps[0, 1, 0]
    ring = next(d for a, d in fabric.pes[0].contents if a == plan.cq_base).reshape(depth, stride).copy()
    for index in range(start, start + 2 * depth):
        wide = index & 0xFFFF_FFFF
        slot, phase = wide % depth, wide // depth & 1
        assert ring[slot, 31] >> 7 != phase, f"slot {slot} is valid before CQE {wide} is written"
        ring[slot, 31] = phase << 7
    if start == 0:
        assert (next(d for a, d in fabric.pes[0].contents if a == plan.cq_base) == 0xFF).all()


def test_dirty_sq_slots() -> None:
    """The knob fills the rings; without it they are zero."""
    for fill in ("zero", "dirty"):
        fabric = Fabric.build(FabricConfig(sq_fill=fill))  # type: ignore[arg-type]
        plan = fabric.qps[0, 1, 0]
        view = ModelBackend(fabric).memory(0, plan.sq_base, plan.sq_depth * 128)
        assert bool(view.any()) == (fill == "dirty")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"n_pes": 0}, "0 PEs: a fabric has 1 to 16"),
        ({"n_pes": 17}, "17 PEs"),
        ({"qps": 0}, "0 QPs per peer"),
        ({"n_pes": 16, "qps": 5}, "5 QPs to each of 15 peers: a NIC has 64 QPs"),
        ({"heap_bytes": 4096}, "heap of 4096 bytes"),
        ({"cq_fill": 1}, "CQ fill 0x1"),
        ({"overrides": {(0, 2, 0): {}}}, "no such"),
    ],
)
def test_bad_configurations_are_refused(bad: dict[str, Any], message: str) -> None:
    """With the reason."""
    with pytest.raises(ValueError, match=message):
        Fabric.build(FabricConfig(**bad))


def test_a_refused_context_is_reported() -> None:
    """The NIC's code reaches the user: an SQ deeper than its CQ."""
    fabric = Fabric.build(FabricConfig(overrides={(0, 1, 0): {"cq_depth": 32}}))
    with pytest.raises(BringUpError, match=r"PE 0: QP \d+ refused with code 9"):
        ModelBackend(fabric)
