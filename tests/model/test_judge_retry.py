"""The judge on a link that loses packets: what is legal is accepted, each planted fault is named.

Stimulus: legal streams of one QP whose last answer comes late: the request is sent again when the timer has
expired, and reaches its responder as a duplicate. Each stream is damaged in one place.
Checks: exactly the check of the fault turns red, in both engines; counters; limits of retries.
Timing: the transport timer. Not proved here: anything about RTL (tests/nic/test_link_loss.py).
"""

from __future__ import annotations

import struct

import numpy as np
import pytest

from pymodel.nic import judge_frames as frames
from pymodel.nic.judge import RECORD, Check, Judge, Kind
from pymodel.nic.params import AxiId, Cnt
from tests.model.judge_mutants import SMALL, Mutant, run_mutant, simulate
from tests.model.stream_base import Knobs
from tests.model.stream_send import SendSim

C = Check
#: cycles of the transport timer of the streams' QPs
WAIT = 64 << 14
#: packets of the READ, and how many of its responses arrive before it is resumed
PACKETS, ARRIVED = 4, 2
OPS = ("write", "read", "fa64", "send_imm", "write_imm")
BOTH = pytest.mark.parametrize("exact", [True, False], ids=["exact", "batch"])


def simulate_send(**changes: object) -> SendSim:
    """The same with receive queues."""
    sim = SendSim(Knobs(**{**SMALL.__dict__, **changes}))  # type: ignore[arg-type]
    sim.run()
    return sim


class Late(Mutant):
    """The last answer of the requester on PE 0 is late: its request is sent again before, `passes` times.

    wait: cycles between passes. deed: changes what the last pass does, by name. cause: AETH syndrome of a NAK
    (WRITE only) that comes `wait` cycles before each pass.
    """

    def __init__(
        self, op: str, passes: int = 1, wait: int = WAIT + 100, deed: str = "", cause: int = 0
    ) -> None:
        size = (PACKETS - 1) * 256 + 40 if op == "read" else 200
        wqes = 9 if deed == "long acknowledged" else 1
        make = simulate_send if op in ("send_imm", "write_imm") else simulate
        super().__init__(
            make(ops=(op,), qps=1, one_way=True, sizes=(size, size), mtus=(1,), wqes=wqes, words=1)
        )
        answers = self.packets(0, Kind.RXPKT)
        last = answers[-(PACKETS - ARRIVED) if op == "read" else -1]
        request = self.packets(0, Kind.TXPKT)[-1]
        response = self.packets(1, Kind.TXPKT)[-1]
        self.op, self.new, self.time = op, [], int(self.rec["time"][last]) - 1
        for number in range(passes):
            if cause:
                nak = self.frame(response)[:-4].tobytes()
                nak = nak[:54] + bytes([cause]) + nak[55:]
                self.add(Kind.RXPKT, 0, nak + frames.icrc(nak))
                for counter in (Cnt.RX_PACKET, Cnt.RNR_RX if cause < 0x60 else Cnt.NAK_SEQ_RX):
                    self.counters[0][counter] += 1
            self.time += wait
            self.once(self.frame(request).tobytes(), self.frame(response).tobytes(),
                      deed if number == passes - 1 else "")  # fmt: skip
        before, after = self.rec[:last], self.rec[last:].copy()
        after["time"] += np.uint64(self.time + 1 - int(after["time"][0]))
        self.rec = np.concatenate([before, *self.new, after])
        self.counters[0][Cnt.RETRY] += passes

    def packets(self, pe: int, kind: Kind) -> list[int]:
        """Records of packets of a PE, without those that carry no last packet of a WRITE."""
        return [int(i) for i in self.rows(kind) if self.rec["pe"][i] == pe]

    def add(self, kind: Kind, pe: int, frame: bytes = b"", **fields: int) -> None:
        """One more record."""
        new = np.zeros(1, RECORD)
        self.time += 1
        new["time"], new["kind"], new["pe"], new["off"] = self.time, kind, pe, self.side.size
        new["len"] = len(frame)
        for name, value in fields.items():
            new[name] = value
        self.side = np.concatenate([self.side, np.frombuffer(frame, np.uint8)])
        self.new.append(new)

    def again(self, i: int) -> None:
        """A record again."""
        new = self.rec[i : i + 1].copy()
        new["time"] = self.time + 1
        if new["kind"][0] == Kind.AXI_R:
            new["aux0"] = self.time
        self.time += 1
        self.new.append(new)

    def once(self, request: bytes, response: bytes, deed: str) -> None:
        """One pass: the request once more, what its responder makes of it, an answer that is lost."""
        answers = [response]
        if self.op == "read":
            va, key, length = struct.unpack(">QII", request[54:70])
            psn = int.from_bytes(request[51:54], "big") + ARRIVED & 0xFFFFFF
            skip = ARRIVED * 256
            va += 64 if deed == "wrong VA" else 0
            request = (
                request[:51] + psn.to_bytes(3, "big") + struct.pack(">QII", va + skip, key, length - skip)
            )
            request += frames.icrc(request)
            answers = self.answers(response, psn, va + skip)
        if deed == "long acknowledged":
            # the oldest WQE
            request = self.frame(self.packets(0, Kind.TXPKT)[0]).tobytes()
        self.add(Kind.TXPKT, 0, request)
        self.counters[0][Cnt.TX_REQUEST] += 1
        self.add(Kind.RXPKT, 1, request)
        self.counters[1][Cnt.DUPLICATE] += 1
        self.counters[1][Cnt.READ] += self.op == "read"
        if deed == "executed twice":
            for kind in (Kind.AXI_R, Kind.AXI_W, Kind.COMMIT, Kind.AXI_B):
                self.again(int(self.rows(kind, AxiId.ATOMIC)[-1]))
        if deed == "written twice":
            for kind in (Kind.AXI_W, Kind.COMMIT, Kind.AXI_B):
                self.again(int(self.rows(kind, AxiId.INBOUND)[-1]))
        if deed == "completed twice":
            for kind in (Kind.AXI_W, Kind.COMMIT, Kind.AXI_B):
                self.again(int(self.rows(kind, AxiId.CQE)[0]))
        if deed == "other value":
            answers = [response[:65] + bytes([response[65] ^ 1]) + response[66:-4]]
            answers[0] += frames.icrc(answers[0])
        for answer in answers if deed != "no answer" else ():
            self.add(Kind.TXPKT, 1, answer)
            self.counters[1][Cnt.TX_RESPONSE] += 1

    def answers(self, last: bytes, psn: int, va: int) -> list[bytes]:
        """Responses of the READ that was resumed; last: of the first request."""
        base, out = self.sim.heaps[1], []
        for k, opcode in enumerate((frames.READ_FIRST, frames.READ_LAST)):
            size = 256 if k == 0 else 40
            data = self.sim.memory[1].view(va + 256 * k, size).tobytes()
            assert va >= base
            head = bytearray(last[:54])
            head[42], head[43] = opcode, 0x40
            head[16:18], head[38:40] = (44 + 4 + size).to_bytes(2, "big"), (24 + 4 + size).to_bytes(2, "big")
            head[24:26] = bytes(2)
            head[24:26] = frames.checksum(bytes(head[14:34])).to_bytes(2, "big")
            head[51:54] = (psn + k & 0xFFFFFF).to_bytes(3, "big")
            frame = bytes(head) + last[54:58] + data
            out.append(frame + frames.icrc(frame))
        return out

    def judged(self, exact: bool) -> Judge:
        """The verdict."""
        return run_mutant(self, exact)


@BOTH
@pytest.mark.parametrize("passes", [1, 3, 7])
@pytest.mark.parametrize("op", OPS)
def test_timer_passes_are_legal(op: str, passes: int, exact: bool) -> None:
    """As many passes as retry_cnt allows, each after the timer; the duplicates are answered."""
    judge = Late(op, passes).judged(exact)
    assert not judge.counts, judge.report()


@BOTH
@pytest.mark.parametrize("cause, wait, passes, red", [
    (0x60, 50, 7, set()), (0x60, 50, 8, {C.TX_RETRY_LIMIT}),
    (0x34, 66_000, 12, set()), (0x34, 65_000, 1, {C.TX_RETRY}),
    (0x21, 100, 20, set()), (0x21, 50, 1, {C.TX_RETRY}),
])  # fmt: skip
def test_nak_and_rnr(cause: int, wait: int, passes: int, red: set[Check], exact: bool) -> None:
    """NAK 0 counts against retry_cnt; RNR codes 20 and 1 ask for 1024 units of 64 cycles, and for one."""
    judge = Late("write", passes, wait, cause=cause).judged(exact)
    assert set(judge.counts) == red, judge.report()


#: (operation, passes, cycles between them, deed, checks that turn red, checks that may)
FAULTS: dict[str, tuple[str, int, int, str, set[Check], set[Check]]] = {
    "no cause": ("write", 1, 100, "", {C.TX_RETRY}, set()),
    "no cause, READ": ("read", 1, 100, "", {C.TX_RETRY}, set()),
    "no cause the second time": ("fa64", 2, WAIT * 5 // 8, "", {C.TX_RETRY}, set()),
    "not the oldest": ("read", 1, WAIT + 100, "long acknowledged", {C.TX_RETRY},
                       {C.RESPONSE_PSN, C.RESPONSE_MISSING}),
    "one retry too many": ("write", 8, WAIT + 100, "", {C.TX_RETRY_LIMIT}, set()),
    "one retry too many, READ": ("read", 8, WAIT + 100, "", {C.TX_RETRY_LIMIT}, set()),
    "resumed at a wrong VA": ("read", 1, WAIT + 100, "wrong VA", {C.TX_HEADER}, set()),
    "atomic executed twice": ("fa64", 1, WAIT + 100, "executed twice", {C.ATOMIC_UNEXPECTED},
                              {C.ATOMIC_TWICE, C.CONTENT, C.COUNTER, C.ATOMIC_WRITE, C.ATOMIC_PLACE}),
    "another value for a duplicate": ("fa64", 1, WAIT + 100, "other value", {C.ATOMIC_OLD}, set()),
    "SEND written twice": ("send_imm", 1, WAIT + 100, "written twice", {C.WRITE_OUTSIDE}, set()),
    "SEND completed twice": ("send_imm", 1, WAIT + 100, "completed twice", {C.CQE_EARLY},
                             {C.CQE_ORDER, C.CQE_SLOT, C.CQE_FIELD, C.CQE_TS, C.COUNTER, C.CONTENT,
                              C.CQE_OWNER, C.DB_AMBIGUOUS}),
    "duplicate SEND without an ACK": ("send_imm", 1, WAIT + 100, "no answer", {C.ACK_MISSING}, set()),
    "WRITE written twice": ("write", 1, WAIT + 100, "written twice", {C.WRITE_OUTSIDE}, set()),
    "duplicate WRITE without an ACK": ("write", 1, WAIT + 100, "no answer", {C.ACK_MISSING}, set()),
    "duplicate READ without an answer": ("read", 1, WAIT + 100, "no answer", {C.RESPONSE_MISSING}, set()),
    "duplicate atomic without an answer": ("fa64", 1, WAIT + 100, "no answer", {C.RESPONSE_MISSING}, set()),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault(name: str, exact: bool) -> None:
    """Exactly the check of the fault turns red."""
    op, passes, wait, deed, red, also = FAULTS[name]
    judge = Late(op, passes, wait, deed).judged(exact)
    assert red <= set(judge.counts) <= red | also, judge.report()


@BOTH
@pytest.mark.parametrize("op", OPS)
def test_lost_completion(op: str, exact: bool) -> None:
    """A WQE that was sent again, answered, and gets no CQE."""
    m = Late(op)
    m.drop(*(int(i) for kind in (Kind.AXI_W, Kind.COMMIT, Kind.AXI_B) for i in m.rows(kind, AxiId.CQE)))
    m.drop(*(int(i) for i in m.rows(Kind.MMIO_W) if m.rec["addr"][i] & 0xFFF == 16))
    judge = m.judged(exact)
    assert {C.OUTSTANDING} <= set(judge.counts) <= {C.OUTSTANDING, C.COUNTER, C.CONTENT}, judge.report()
