"""Golden NIC: doorbell rules, WQE checks, responder, errors and flush, CQ room, counters, events.

Sweep: each rule of NIC page 3, 4 and 6 that this scope has, V1 and V2. Stimulus: WQEs and doorbells made by
the test through the BAR and memory of two NICs, no device API. Checks: CQEs field by field, counters (each
stimulus shows in exactly the expected ones), asynchronous events, memory. Timing: only the CQ waiting time.
Does not prove: wire bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymodel.formats import cqe, wqe
from pymodel.host.table import Region, set_ops
from pymodel.nic.context import CmdObj, CmdOp, QpState, command, command_writes
from pymodel.nic.params import CMD_REG, CMD_STAGE, CMD_STATUS, AsyncKind, Cnt, Csr
from tests.model.golden_bench import Bench


# ------------------------------------------------------------------ the good path
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("stride", [32, 64])
@pytest.mark.parametrize("start", [0, 8190, (1 << 14) - 1, (1 << 18) - 2, (1 << 32) - 1])
def test_cqe_field_by_field(version: int, stride: int, start: int) -> None:
    """NIC page 6, over the wraps of index, owner and slot."""
    bench = Bench(version=version, cq_stride=stride, start_index=start, start_cq=start)
    for step in range(40):
        length = step * 37
        bench.post(msg_len=length, r_len=length, l_len=length)
        (got,) = bench.cqes()
        index = (start + step) & 0xFFFF_FFFF
        assert int(got["wqe_id"]) == int(wqe.wqe_id_of(index, version))
        assert (int(got["error_code"]), int(got["qp_id"]), int(got["msg_opcode"])) == (0, bench.plan.qpn, 1)
        assert int(got["msg_len"]) == length and int(got["type"]) == 0
        assert not any(int(got[n]) for n in ("imm_data", "vni", "se", "has_pph", "with_imm", "csum_err"))
        assert not any(int(got[n]) for n in ("rsv0", "rsv1", "rsv2", "rsv3"))
        bench.consume(bench.tail)
    assert bench.counters() == {} and bench.counters(1) == {}
    assert bench.nic.counters[Cnt.WQE] == bench.nic.counters[Cnt.CQE] == 40
    bench.nic.bar_write(CMD_REG, command(CmdOp.QUERY, CmdObj.QP, bench.plan.qpn))
    index = (start + 40) % (1 << (14 if version == 1 else 18))
    assert bench.nic.bar_read(CMD_STAGE + 80) == index << 32 | index


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 4096, 4097, 70000])
def test_packets_and_acknowledgements(mtu: int, length: int) -> None:
    """Wire page 2 and 5.

    Number of packets, AckReq every 16 packets and on the last, bytes at any alignment.
    """
    bench = Bench(config={"mtus": (mtu,)})
    data = np.random.default_rng(length).integers(0, 256, length).astype(np.uint8)
    bench.backend.store(0, bench.src + 3, data)
    guard = bench.backend.memory(1, bench.dst, length + 64).copy()
    bench.post(msg_len=length, r_len=length, l_len=length, laddr=bench.src + 3, raddr=bench.dst + 5)
    guard[5 : 5 + length] = data
    assert (bench.backend.memory(1, bench.dst, length + 64) == guard).all()
    packets = max(1, -(-length // mtu))
    assert bench.nic.counters[Cnt.TX_REQUEST] == bench.peer.counters[Cnt.RX_PACKET] == packets
    assert bench.peer.counters[Cnt.TX_RESPONSE] == packets // 16 + (packets % 16 != 0)


def test_unsignalled_wqes_complete_silently() -> None:
    """NIC page 6: ce = 0 gives no CQE, retires in order, and is counted as a WQE."""
    bench = Bench()
    for ce in (0, 0, 1, 0):
        bench.post(ce=ce)
    assert [int(c["wqe_id"]) >> 3 for c in bench.cqes()] == [2]
    assert (bench.nic.counters[Cnt.WQE], bench.nic.counters[Cnt.CQE]) == (4, 1)


def test_dirty_bits_change_nothing() -> None:
    """NIC page 4: csum_en, reserved bits, opcode_data, mask, se, fence of a WRITE."""
    bench = Bench()
    bench.post(csum_en=3, rsv=31, rsv1=0xFFFF, opcode_data=0xFFFF_FFFF, mask=3, se=1, fence_mode=1)
    (got,) = bench.cqes()
    assert int(got["error_code"]) == int(got["se"]) == int(got["imm_data"]) == 0


# ------------------------------------------------------------------ doorbells
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("start", [0, 5, (1 << 14) - 9, (1 << 18) - 9])
def test_sq_doorbell_distances(version: int, start: int) -> None:
    """NIC page 3: equal, up to room, beyond, half of the width, behind; exactly depth is legal."""
    width = 14 if version == 1 else 18
    half = 1 << width - 1

    def after(distance: int) -> tuple[dict[str, int], QpState, list[tuple[int, int]], int]:
        bench = Bench("lazy", version=version, start_index=start, start_cq=start)
        for _ in range(16):
            bench.post(ring=False)
        bench.ring(start + 4)
        bench.ring(start + 4 + distance)
        qp = bench.nic._qps[bench.plan.qpn]
        return bench.counters(), bench.state(), bench.asyncs(), (qp.producer - start) % (1 << width)

    assert after(0) == ({}, QpState.RTS, [], 4)
    assert after(1) == ({}, QpState.RTS, [], 5)
    assert after(12) == ({}, QpState.RTS, [], 16), "exactly depth outstanding"
    qpn = Bench(version=version).plan.qpn
    for distance in (13, half - 1, half):
        overrun = ({"DB_OVERRUN": 1}, QpState.ERR, [(AsyncKind.SQ_OVERRUN, qpn)], 4)
        assert after(distance) == overrun, distance
    for distance in (half + 1, -1):
        assert after(distance) == ({"DB_STALE": 1}, QpState.RTS, [], 4), distance


@pytest.mark.parametrize(
    ("addr", "data", "strobe", "counter"),
    [
        (0, 9, 0xFF, "DB_PID"),
        (0, 8, 0x0F, "DB_PARTIAL"),
        (8, 0, 0xFF, "DB_PAGE"),
        (8, None, 0xFF, "DB_RQ"),
        (24, 8, 0xFF, None),
    ],
)
def test_ignored_doorbells_show_in_one_counter(
    addr: int, data: int | None, strobe: int, counter: str | None
) -> None:
    """NIC page 3 and 7. Data is the low part of a V2 SQ doorbell; None: a whole one of the RQ."""
    bench = Bench()
    word = bench.plan.qpn << 17 if data is None else data | bench.plan.qpn << 21
    bench.nic.bar_write(0x0800_0000 + 4096 * bench.plan.qpn + addr, word, strobe)
    assert bench.counters() == ({counter: 1} if counter else {})
    assert bench.nic._qps[bench.plan.qpn].producer == 0


def test_doorbells_on_wrong_pages() -> None:
    """NIC page 3: another QP's page, a page that is no QP's, a QP in RESET, a CQ of another QP."""
    bench = Bench()
    free = next(q for q in range(2, 66) if q != bench.plan.qpn)
    bench.ring(1, qpn=free)
    assert bench.counters() == {"DB_PAGE": 1}
    bench.ring(1, page=free)
    assert bench.counters() == {"DB_PAGE": 1, "DB_RESET": 1}
    bench.ring(1, page=66)
    bench.ring(1, page=1)
    assert bench.counters() == {"DB_PAGE": 3, "DB_RESET": 1}
    bench.consume(0, cqn=(bench.plan.cqn + 1) % 64)
    assert bench.counters() == {"DB_PAGE": 4, "DB_RESET": 1}


def test_cq_doorbells() -> None:
    """NIC page 3: up to the producer accepted, beyond refused, behind ignored; 23 bits."""
    for start in (0, (1 << 23) - 2):
        bench = Bench(start_index=start, start_cq=start)
        for _ in range(4):
            bench.post()
        cq = bench.nic._cqs[bench.plan.cqn]
        bench.consume(start + 5)
        assert bench.counters() == {"DB_CQ_BEYOND": 1} and cq.consumer == start
        bench.consume(start + 3, sta=1)
        bench.consume(start + 3)
        assert cq.consumer == start + 3
        bench.consume(start + 2)
        assert bench.counters() == {"DB_CQ_BEYOND": 1, "DB_CQ_BACKWARD": 1} and cq.consumer == start + 3


# ------------------------------------------------------------------ WQE errors
ERRORS: list[tuple[str, dict[str, Any], int]] = [
    ("wqe_id", {"wqe_id": 8 * 9}, 0xAB),
    ("opcode", {"msg_opcode": 99}, 0xAB),
    ("segments of a SEND", {"msg_opcode": 0, "ds_data_num": 2}, 0xAB),
    ("length of a SEND", {"msg_opcode": 0, "ds_data_num": 1, "l_len": 99}, 0x9F),
    ("ds_data_num of a READ", {"msg_opcode": 2, "ds_data_num": 3}, 0xAB),
    ("in_line of an atomic", {"msg_opcode": 27, "in_line": 0}, 0xAB),
    ("segments of a wide masked swap", {"msg_opcode": 31, "ds_data_num": 3}, 0xAB),
    ("immediate of an atomic", {"msg_opcode": 34, "with_imm": 1}, 0xAB),
    ("length of a narrow add", {"msg_opcode": 34, "msg_len": 16}, 0x9F),
    ("local length of a narrow swap", {"msg_opcode": 33, "l_len": 8}, 0x9F),
    ("local length of a READ", {"msg_opcode": 2, "l_len": 99}, 0x9F),
    ("immediate of a READ", {"msg_opcode": 2, "with_imm": 1}, 0xAB),
    ("in_line", {"in_line": 1}, 0xAB),
    ("ds_data_num", {"ds_data_num": 3}, 0xAB),
    ("too long", {"msg_len": (1 << 31) + 1}, 0x9F),
    ("local length", {"l_len": 99}, 0x9F),
    ("remote length", {"r_len": 101}, 0x9F),
    ("lkey", {"lkey": 0xFFFFFF}, 0xA7),
    ("local range", {"laddr": 0}, 0xA7),
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("what", "fields", "code"), ERRORS, ids=[e[0] for e in ERRORS])
def test_wqe_errors(what: str, fields: dict[str, Any], code: int, version: int) -> None:
    """NIC page 4 and 6.

    Earlier WQEs complete, the bad one gets its code, later ones ff in order; QP in ERR.
    """
    bench = Bench("lazy", version=version)
    for step in range(5):
        bench.post(ring=False, **(fields if step == 2 else {}))
    bench.ring(bench.head)
    bench.backend.advance(100_000)
    got = bench.cqes()
    assert [int(c["error_code"]) for c in got] == [0, 0, code, 0xFF, 0xFF]
    assert [int(c["wqe_id"]) >> 3 for c in got] == [0, 1, 2, 3, 4]
    assert [int(c["msg_len"]) for c in got] == [100, 100, 0, 0, 0]
    assert [int(c["msg_opcode"]) for c in got][2:] == [fields.get("msg_opcode", 1), 0, 0]
    assert bench.state() is QpState.ERR and bench.counters() == {"FLUSH": 2} and bench.asyncs() == []
    assert bench.peer.counters[Cnt.RX_PACKET] == 2, "nothing behind the bad WQE was sent"
    bench.post()
    bench.backend.advance(200_000)
    assert [int(c["error_code"]) for c in bench.cqes()] == [0xFF], "a doorbell in ERR leads to a flush"


def test_fetch_and_gather_bus_errors() -> None:
    """NIC page 4 and 5: ac (opcode and length 0 in the CQE) and b2; packets already sent stand."""
    bench = Bench()
    ring = next(i for i, b in enumerate(bench.backend.memories[0]._bases) if b == bench.plan.sq_base)
    bench.post(ring=False)
    for store in (bench.backend.memories[0]._bases, bench.backend.memories[0]._arrays):
        del store[ring]  # type: ignore[attr-defined]
    bench.ring(bench.head)
    (got,) = bench.cqes()
    assert (int(got["error_code"]), int(got["msg_opcode"]), int(got["msg_len"])) == (0xAC, 0, 0)
    assert bench.counters() == {"BUS_FETCH": 1}

    bench = Bench(config={"mtus": (1024,)})
    whole = bench.fabric.pes[0].mrs[bench.fabric.pes[0].heap_lkey >> 8]
    bigger = type(whole)(whole.base, whole.length + (1 << 20), ltag=whole.ltag, rtag=whole.rtag)
    bench.backend.bring_up(0, set_ops(CmdObj.MR, bench.fabric.pes[0].heap_lkey >> 8, bigger))
    end = whole.base + whole.length
    bench.post(laddr=end - 2048, msg_len=4096, r_len=4096, l_len=4096)
    (got,) = bench.cqes()
    assert int(got["error_code"]) == 0xB2 and int(got["msg_opcode"]) == 1
    assert bench.counters() == {"BUS_GATHER": 1} and bench.peer.counters[Cnt.RX_PACKET] == 2


# ------------------------------------------------------------------ responder
@pytest.mark.parametrize(
    ("what", "fields", "override", "code", "counters"),
    [
        ("remote key", {"rkey": 0xFFFFFF}, {}, 0xA5, "NAK_ACC"),
        ("remote range", {"raddr": 16}, {}, 0xA5, "NAK_ACC"),
        ("QP right", {}, {"rem_write": False}, 0xA4, "NAK_INV"),
        ("zero length still needs the QP right", {"msg_len": 0}, {"rem_write": False}, 0xA4, "NAK_INV"),
        ("MTU of the responder too small", {"msg_len": 3000}, {"mtu_code": 3}, 0xA4, "NAK_INV"),
    ],
)
def test_naks(what: str, fields: dict[str, Any], override: dict[str, Any], code: int, counters: str) -> None:
    """Wire page 5.

    NAK, both QPs to ERR, nothing written by the offending packet, asynchronous event at the responder.
    """
    bench = Bench("lazy", peer=override)
    before = bench.backend.memory(1, bench.dst, 4096).copy()
    bench.backend.store(0, bench.src, b"\x55" * 4096)
    bench.post(ring=False, **fields)
    bench.post(ring=False)
    bench.ring(bench.head)
    bench.backend.advance(100_000)
    assert [int(c["error_code"]) for c in bench.cqes()] == [code, 0xFF]
    assert (bench.backend.memory(1, bench.dst, 4096) == before).all()
    assert bench.state(0) is bench.state(1) is QpState.ERR
    assert bench.counters() == {f"{counters}_RX": 1, "FLUSH": 1}
    # the second request was on its way: it meets a QP in ERR and is dropped
    left = bench.counters(1)
    left.pop("DROP_QP", None)
    assert left == {f"{counters}_TX": 1}
    assert bench.asyncs(1) == [(AsyncKind.QP_ERR, bench.peer_plan.qpn)] and bench.asyncs(0) == []


def test_responder_bus_error_is_nak_3() -> None:
    """NIC page 5: NAK 3, a6 at the requester, no CQE at the responder."""
    bench = Bench()
    index = bench.fabric.pes[1].heap_rkey >> 8
    mr = bench.fabric.pes[1].mrs[index]
    bigger = type(mr)(mr.base, mr.length + (1 << 20), ltag=mr.ltag, rtag=mr.rtag)
    bench.backend.bring_up(1, set_ops(CmdObj.MR, index, bigger))
    bench.post(raddr=mr.base + mr.length + 4096)
    assert [int(c["error_code"]) for c in bench.cqes()] == [0xA6]
    assert bench.counters() == {"NAK_OP_RX": 1} and bench.counters(1) == {"NAK_OP_TX": 1, "BUS_INBOUND": 1}


def test_psn_ahead_gets_one_nak_and_behind_a_duplicate_ack() -> None:
    """Wire page 5: ahead is answered once, duplicates are acknowledged and not executed."""
    for shift, counter, answers in ((-5, "PSN_AHEAD", 1), (5, "DUPLICATE", 2)):
        bench = Bench(rq_psn=0)
        plan = bench.peer_plan
        words = bench.fabric.pes[1].qp_contexts[plan.qpn].stage_words()
        words[3] = (bench.plan.sq_psn + shift) % (1 << 24) << 32 | words[3] & 0xFF_FFFF
        bench.peer.bar_write(CMD_REG, command(CmdOp.RESET, CmdObj.QP, plan.qpn))
        for addr, data in command_writes(CmdOp.SET, CmdObj.QP, plan.qpn, words):
            bench.peer.bar_write(addr, data)
        bench.backend.store(0, bench.src, b"\x11" * 100)
        bench.post()
        bench.post()
        assert not bench.backend.memory(1, bench.dst, 100).any() and bench.cqes() == []
        assert bench.counters(1)[counter] == 2
        assert bench.peer.counters[Cnt.TX_RESPONSE] == answers
        assert bench.counters(1).get("NAK_SEQ_TX", 0) == (shift < 0)


def test_packets_to_a_qp_in_reset_or_err_are_dropped() -> None:
    """NIC page 6 and wire page 1."""
    bench = Bench()
    bench.peer.bar_write(CMD_REG, command(CmdOp.RESET, CmdObj.QP, bench.peer_plan.qpn))
    bench.post()
    assert bench.counters(1) == {"DROP_QP": 1} and bench.cqes() == []


# ------------------------------------------------------------------ CQ room
def test_completions_wait_for_room_for_ever() -> None:
    """NIC page 6: room changes only by CQ doorbells; nothing is lost."""
    bench = Bench("lazy")
    for _ in range(16):
        bench.post()
    bench.backend.advance(10_000)
    assert len(bench.cqes()) == 16
    for _ in range(4):
        bench.post()
    bench.backend.advance(500_000)
    assert bench.cqes() == [] and bench.nic.counters[Cnt.CQE] == 16
    bench.consume(3)
    bench.backend.advance(600_000)
    assert len(bench.cqes()) == 3
    bench.consume(16)
    bench.backend.advance(700_000)
    assert len(bench.cqes()) == 1 and bench.counters() == {} and bench.asyncs() == []


def test_overrun_after_cq_wait() -> None:
    """NIC page 6: event, QP to ERR, completions discarded and counted."""
    bench = Bench("lazy", config={"cq_wait": 1000})
    for _ in range(16):
        bench.post()
    bench.backend.advance(10_000)
    for _ in range(3):
        bench.post()
    bench.backend.advance(10_900)
    assert bench.counters() == {}
    bench.backend.advance(20_000)
    assert bench.counters() == {"CQ_OVERRUN": 1, "CQE_DISCARD": 3}
    assert bench.asyncs() == [(AsyncKind.CQ_OVERRUN, bench.plan.cqn)] and bench.state() is QpState.ERR
    bench.consume(16)
    bench.backend.advance(30_000)
    assert bench.nic.counters[Cnt.CQE] == 16, "takes no CQE until programmed again"


def test_cqe_write_bus_error() -> None:
    """NIC page 5: asynchronous event, the CQ counts as overrun."""
    bench = Bench()
    ring = next(i for i, b in enumerate(bench.backend.memories[0]._bases) if b == bench.plan.cq_base)
    for store in (bench.backend.memories[0]._bases, bench.backend.memories[0]._arrays):
        del store[ring]  # type: ignore[attr-defined]
    bench.post()
    bench.post()
    assert bench.counters() == {"BUS_CQE": 1, "CQE_DISCARD": 1, "FLUSH": 1}
    assert bench.asyncs() == [(AsyncKind.CQE_BUS_ERR, bench.plan.cqn)]
    assert bench.state() is QpState.ERR


def test_ignore_overrun_writes_slot_0() -> None:
    """NIC page 2: every CQE to slot 0, owner = (WQE index / CQ depth) & 1, no room check."""
    bench = Bench(ignore_overrun=True)
    for step in range(50):
        bench.post()
        raw = bench.backend.memory(0, bench.plan.cq_base, 64)
        got = cqe.unpack(raw, 2)[0]
        assert (int(got["wqe_id"]) >> 3, int(got["owner"])) == (step, step // 16 & 1)


# ------------------------------------------------------------------ commands, states, events
def test_modify_to_err_flushes_and_reset_starts_anew() -> None:
    """NIC page 2 and 6: host's modify; query gives the indices; after RESET everything is 0."""
    bench = Bench("lazy")
    for _ in range(3):
        bench.post()
    words = bench.fabric.pes[0].qp_contexts[bench.plan.qpn].stage_words()
    words[8] = QpState.ERR
    for addr, data in command_writes(CmdOp.MODIFY, CmdObj.QP, bench.plan.qpn, words):
        bench.nic.bar_write(addr, data)
    bench.backend.advance(1000)
    assert [int(c["error_code"]) for c in bench.cqes()] == [0xFF] * 3 and bench.counters() == {"FLUSH": 3}
    bench.nic.bar_write(CMD_REG, command(CmdOp.QUERY, CmdObj.QP, bench.plan.qpn))
    stage = [bench.nic.bar_read(CMD_STAGE + 8 * w) for w in range(16)]
    assert stage[8] == QpState.ERR and stage[10] == 3 << 32 | 3 and stage[4] == bench.plan.sq_base
    bench.nic.bar_write(CMD_REG, command(CmdOp.RESET, CmdObj.QP, bench.plan.qpn))
    assert bench.state() is QpState.RESET
    bench.ring(4)
    assert bench.counters() == {"FLUSH": 3, "DB_RESET": 1}


def test_events() -> None:
    """NIC page 6: arm by cq_sta 2; 3 fires on an error CQE only; mask; write 1 to clear."""
    bench = Bench()
    bench.nic.bar_write(Csr.EVENT_MASK, 1)
    bench.consume(0, sta=2)
    assert not bench.nic.event
    bench.post()
    assert bench.nic.event and bench.nic.bar_read(Csr.CQ_EVENT) == 1 << bench.plan.cqn
    bench.nic.bar_write(Csr.CQ_EVENT, 1 << bench.plan.cqn)
    bench.post()
    assert not bench.nic.event, "an event needs a new arm"
    bench.consume(2, sta=3)
    bench.post()
    assert not bench.nic.event
    bench.post(lkey=0)
    assert bench.nic.event


def test_csrs() -> None:
    """BAR map: identification, read-write registers, unmapped addresses and doorbell pages read 0."""
    bench = Bench()
    nic = bench.nic
    assert nic.bar_read(Csr.ID) == 0x43414D48494C0001
    assert nic.bar_read(Csr.CONFIG) == 256 << 32 | 64 << 16 | 64
    assert nic.bar_read(Csr.MAC) == bench.fabric.pes[0].mac and nic.bar_read(Csr.IP) == bench.fabric.pes[0].ip
    assert (
        nic.bar_read(0x0800_0000 + 4096 * bench.plan.qpn)
        == nic.bar_read(0x7000_0000)
        == nic.bar_read(0x70)
        == 0
    )
    nic.bar_write(CMD_REG, 0)
    assert nic.bar_read(CMD_STATUS) >> 8 == 1


def test_memory_port_faults_only_where_a_beat_has_no_byte() -> None:
    """NIC page 1."""
    bench = Bench()
    memory = bench.backend.memories[0]
    memory.add(Region("odd", 0x1_0020, 16, 7))
    assert memory.nic_read(0x1_0000, 64) == bytes(32) + b"\x07" * 16 + bytes(16)
    memory.nic_write(0x1_0018, b"\x09" * 24)
    assert memory.nic_read(0x1_0020, 32) == b"\x09" * 16 + bytes(16)
    for addr, length in ((0x1_0000, 65), (0xFFFF, 2)):
        with pytest.raises(LookupError):
            memory.nic_read(addr, length)
    with pytest.raises(ValueError, match="overlaps"):
        memory.add(Region("again", 0x1_002F, 4))
