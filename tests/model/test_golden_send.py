"""Golden NIC: SEND, WRITE with immediate, receive queues.

Sweep: V1 and V2, lengths from 0 to several packets, immediate and SE, RQ indices over every wrap, receive CQ
of its own and shared, all schedules. Stimulus: WQEs, receive WQEs and doorbells made by the test.
Checks: every CQE field by field against what the test posted, buffers byte for byte, codes of receive WQEs
that fail, flush of both queues, counters, asynchronous events, arms. Timing: none. Not proved: RNR NAKs,
which golden NICs do not send.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from pymodel.formats import cqe, doorbell, recv
from pymodel.nic.context import CmdObj, CmdOp, QpState, command_writes
from pymodel.nic.params import AsyncKind, Cnt, Csr
from tests.model.golden_bench import HEAP, Bench, Queue

#: where buffers are in the receiver's heap, and how far apart
BUFFERS, ROOM = 6 << 20, 16 << 10


class Ends(Bench):
    """PE 0 receives, PE 1 sends."""

    def __init__(
        self, schedule: Any = "eager", config: dict[str, Any] | None = None, **override: Any
    ) -> None:
        super().__init__(schedule, config, **{"rq_depth": 8, "recv_cq_depth": 16, **override})
        self.sender: Queue = self.queue(1, 0)
        self.rq_head = self.plan.rq_start
        plan, own = self.plan, bool(self.plan.recv_cq_depth)
        self.rcq = (plan.recv_cq_base, plan.recv_cq_depth) if own else (plan.cq_base, plan.cq_depth)
        self.rcqn = plan.recv_cqn if own else plan.cqn
        self.rtail = plan.start_cq

    def buffer(self, index: int) -> int:
        """Address of a receive WQE's buffer."""
        return self.fabric.pes[0].heap_base + BUFFERS + index % 16 * ROOM

    def receive(self, ring: bool = True, **fields: int) -> int:
        """A receive WQE with fields changed; gives its index."""
        index = self.rq_head
        good = {"length": ROOM, "lkey": self.fabric.pes[0].heap_lkey, "addr": self.buffer(index)}
        slot = recv.pack({name: [value] for name, value in {**good, **fields}.items()})
        self.backend.store(0, self.plan.rq_base + 16 * (index % self.plan.rq_depth), slot.reshape(-1))
        self.rq_head += 1
        if ring:
            self.ring_rq(self.rq_head)
        return index

    def ring_rq(self, head: int) -> None:
        """RQ doorbell."""
        data = int(doorbell.rq_encode(head, self.plan.qpn))
        self.backend.mmio_write(0, 0x0800_0008 + 4096 * self.plan.qpn, data)

    def received(self, ring: bool = True) -> list[Any]:
        """New CQEs of the receive CQ."""
        out, (base, depth), stride = [], self.rcq, self.plan.cq_stride
        while True:
            raw = self.backend.memory(0, base + self.rtail % depth * stride, stride)
            got = cqe.unpack(raw, self.plan.version)[0]
            if int(got["owner"]) != self.rtail // depth & 1 or len(out) == depth:
                break
            out.append(got)
            self.rtail += 1
        if ring and out:
            self.consume(self.rtail, cqn=self.rcqn)
        return out

    def send(self, length: int, **fields: Any) -> bytes:
        """A SEND of random bytes; gives them."""
        data = self.fill(
            1, self.sender.src, max(length, 1), seed=random.Random(self.sender.head).randrange(99)
        )
        self.sender.post(
            msg_opcode=0, ds_data_num=1, msg_len=length, l_len=length, laddr=self.sender.src, **fields
        )
        return data[:length].tobytes()


@pytest.mark.parametrize("schedule", ["eager", "random", "lazy"])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("start", [0, (1 << 13) - 5, (1 << 17) - 5])
def test_messages(start: int, version: int, own: bool, schedule: str) -> None:
    """CQE and bytes of each message, over the wraps."""
    ends = Ends(
        schedule, {"mtus": (256,)}, version=version, rq_start=start, recv_cq_depth=16 * own, cq_stride=32
    )
    rng = random.Random(f"{start} {version} {own}")
    for step in range(30):
        length = rng.choice((0, 1, 255, 256, 257, 1000))
        imm, se, with_imm, op = rng.getrandbits(32), rng.randrange(2), rng.randrange(2), rng.randrange(2)
        index = ends.receive()
        if op:
            with_imm = 1
            data = ends.fill(1, ends.sender.src, max(length, 1), seed=step)[:length].tobytes()
            ends.sender.post(msg_len=length, r_len=length, l_len=length, with_imm=1, opcode_data=imm, se=se)
        else:
            data = ends.send(length, with_imm=with_imm, opcode_data=imm, se=se)
        ends.work()
        (got,) = ends.received()
        assert {n: int(got[n]) for n in got.dtype.names or () if n not in ("ts", "owner")} == {
            "error_code": 0, "qp_id": ends.plan.qpn, "type": 1, "msg_opcode": op, "with_imm": with_imm,
            "imm_data": imm if with_imm else 0, "msg_len": length, "se": se,
            "wqe_id": index << 3 & (0xFFFF if version == 1 else 0xFFFFF), "vni": 0, "rsv0": 0, "rsv1": 0,
            "rsv2": 0, "rsv3": 0, "has_pph": 0, "csum_err": 0,
        }  # fmt: skip
        where = ends.fabric.pes[0].heap_base + HEAP if op else ends.buffer(index)
        assert ends.backend.memory(0, where, length).tobytes() == data
        assert ends.sender.codes() == [0]
        ends.sender.consume(ends.sender.tail)
    assert ends.counters() == {} and ends.counters(1) == {}


def test_a_message_waits_for_its_receive_wqe() -> None:
    """And everything behind it, by RNR NAKs; what was posted before goes on."""
    ends = Ends()
    for length in (10, 20, 30):
        ends.send(length, ce=1)
    ends.work(100)
    assert ends.received() == [] and ends.sender.codes() == []
    told = ends.counters()["RNR_TX"]
    assert told == ends.counters(1)["RNR_RX"] > 0
    ends.work(1000)
    assert ends.counters()["RNR_TX"] >= told + 1000 // 70
    ends.receive()
    ends.work(100)
    assert [int(c["msg_len"]) for c in ends.received()] == [10] and ends.sender.codes() == [0]
    ends.receive()
    ends.receive()
    ends.work(200)
    assert [int(c["msg_len"]) for c in ends.received()] == [20, 30] and ends.sender.codes() == [0, 0]


def test_rnr_limit() -> None:
    """rnr_retry RNR NAKs are followed, the next one ends the WQE with a3 (wire.md 5)."""
    ends = Ends(peer={})
    ends.program(1, ends.peer_plan.qpn, rnr_retry=2)
    ends.send(10, ce=1)
    ends.work(10_000)
    assert ends.sender.codes() == [0xA3]
    assert ends.counters()["RNR_TX"] == 3 and ends.received() == []


def test_sixteen_messages_may_wait_for_room() -> None:
    """CQ full: completions wait, sixteen at most, and the next message is told to come again."""
    ends = Ends(rq_depth=64, recv_cq_depth=2, cq_depth=16)
    for _ in range(40):
        ends.receive()
    for step in range(12):
        ends.send(step)
    ends.sender.cqes()
    ends.sender.consume(ends.sender.tail)
    for step in range(12, 24):
        ends.send(step)
    ends.work(1000)
    assert len(ends.sender.codes()) == 18 - 12
    lengths: list[int] = []
    while found := ends.received():
        lengths += [int(c["msg_len"]) for c in found]
        ends.work(200)
    assert lengths == list(range(24))


#: fields of the receive WQE that fails, code, NAK counter, the sender's code
FAILS: dict[str, tuple[dict[str, int], int, str, int]] = {
    "too short": ({"length": 99}, 0xC0, "NAK_INV_TX", 0xA4),
    "key": ({"lkey": 0xFFFFFF}, 0xD6, "NAK_OP_TX", 0xA6),
    "range": ({"addr": 0}, 0xD6, "NAK_OP_TX", 0xA6),
}


@pytest.mark.parametrize("name", FAILS)
def test_receive_wqe_fails(name: str) -> None:
    """Its code, those before good, those behind flushed; the send queue flushes on its own CQ."""
    fields, code, counter, answer = FAILS[name]
    ends = Ends(config={"mtus": (256,)})
    for step in range(5):
        ends.receive(ring=False, **(fields if step == 2 else {}))
    ends.ring_rq(ends.rq_head)
    for _ in range(4):
        ends.send(300)
    assert [int(c["error_code"]) for c in ends.received()] == [0, 0, code, 0xFF, 0xFF]
    assert ends.sender.codes() == [0, 0, answer, 0xFF]
    assert ends.state() is QpState.ERR and ends.asyncs() == [(AsyncKind.QP_ERR, ends.plan.qpn)]
    assert ends.counters() == {counter: 1, "FLUSH": 2}
    ends.receive()
    ends.post()
    assert [int(c["error_code"]) for c in ends.received()] == [0xFF] and ends.codes() == [0xFF]


def test_bus_errors() -> None:
    """A slot that cannot be read: af; a buffer that cannot be written: NAK 3, the receive WQE flushes."""
    ends = Ends()
    context = ends.fabric.pes[0].qp_contexts[ends.plan.qpn]
    assert context.rq_depth == 8
    ends.program(0, ends.plan.qpn, rq_base=1 << 60)
    ends.ring_rq(1)
    ends.send(10)
    assert [int(c["error_code"]) for c in ends.received()] == [0xAF] and ends.sender.codes() == [0xA6]
    assert ends.counters() == {"BUS_FETCH": 1, "NAK_OP_TX": 1}
    ends = Ends()
    ends.receive(addr=ends.grow(0))
    ends.receive()
    ends.send(10)
    assert [int(c["error_code"]) for c in ends.received()] == [0xFF] * 2 and ends.sender.codes() == [0xA6]
    assert ends.counters() == {"BUS_INBOUND": 1, "NAK_OP_TX": 1, "FLUSH": 2}


def test_rq_doorbells() -> None:
    """Exactly depth, no work, stale, overrun; a QP without a receive queue ignores it."""
    ends = Ends()
    for _ in range(8):
        ends.receive(ring=False)
    ends.ring_rq(8)
    ends.ring_rq(8)
    ends.ring_rq(7)
    assert ends.counters() == {"DB_STALE": 1} and ends.state() is QpState.RTS
    ends.ring_rq(9)
    assert [int(c["error_code"]) for c in ends.received()] == [0xFF] * 8
    assert ends.counters() == {"DB_STALE": 1, "DB_OVERRUN": 1, "FLUSH": 8}
    assert ends.asyncs() == [(AsyncKind.RQ_OVERRUN, ends.plan.qpn)]
    bench = Bench()
    data = int(doorbell.rq_encode(1, bench.plan.qpn))
    bench.backend.mmio_write(0, 0x0800_0008 + 4096 * bench.plan.qpn, data)
    assert bench.counters() == {"DB_RQ": 1} and bench.state() is QpState.RTS


def test_solicited() -> None:
    """cq_sta 3 fires on SE at the responder, and on errors."""
    ends = Ends()
    for _ in range(4):
        ends.receive()
    ends.consume(ends.rtail, sta=3, cqn=ends.rcqn)
    ends.send(1, with_imm=1)
    assert not ends.nic.bar_read(Csr.CQ_EVENT)
    ends.send(1, se=1)
    assert ends.nic.bar_read(Csr.CQ_EVENT) == 1 << ends.rcqn
    ends.nic.bar_write(Csr.CQ_EVENT, 1 << ends.rcqn)
    ends.received()
    ends.consume(ends.rtail, sta=3, cqn=ends.rcqn)
    words = ends.fabric.pes[0].qp_contexts[ends.plan.qpn].stage_words()
    words[8] = 2
    for addr, data in command_writes(CmdOp.MODIFY, CmdObj.QP, ends.plan.qpn, words):
        ends.backend.mmio_write(0, addr, data)
    assert [int(c["error_code"]) for c in ends.received()] == [0xFF] * 2
    assert ends.nic.bar_read(Csr.CQ_EVENT) == 1 << ends.rcqn
    assert ends.nic.counters[Cnt.WQE] == 4


def test_only_a_send_goes_on_with_a_send() -> None:
    """Opcode sequence: a WRITE in the middle of a SEND is NAK 1, and the open receive WQE flushes."""
    ends = Ends(config={"mtus": (256,)})
    ends.receive()
    first = ends.plan.rq_psn
    ends.raw(0, 0x00, first, payload=b"\x07" * 256)
    ends.raw(0, 0x08, first + 1, payload=bytes(10), ack_req=True)
    ends.work()
    assert [int(c["error_code"]) for c in ends.received()] == [0xFF]
    assert ends.counters() == {"NAK_INV_TX": 1, "FLUSH": 1} and ends.state() is QpState.ERR
    # the SEND's packet stands
    assert ends.backend.memory(0, ends.buffer(0), 256).tobytes() == b"\x07" * 256
