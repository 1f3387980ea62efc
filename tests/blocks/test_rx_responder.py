"""Responder (rtl/responder) behind the receive checks, against the rules of wire.md 5 written here again.

Sweep: WRITEs of one and several packets, all MTUs, PSNs across the wrap; packets behind and ahead of the
expected PSN; opcode sequence, length, right, key and range errors; SEND and WRITE with immediate without a
receive WQE; regions
changed in mid-message; write errors; a transmit side that stands still; latency 10 to 400.
Stimulus: frames on the link, one at a time or back to back over several QPs.
Checks: one at a time: the exact answer, counter, state change and event of every packet; back to back:
answers are the expected ones in order, with gaps only where a newer one covers the older; always: the whole
memory at the end.
Timing: no answer before the write responses of its packet and of all before it.
Not proved here: the checks before the PSN (test_rx.py), READ and atomics (test_rx_reads.py), messages that
have a receive WQE (nic/test_send.py).
"""

import random
from dataclasses import dataclass

import cocotb

from tests.blocks import rx_driver
from tests.blocks.rx_driver import (
    BUS_INBOUND,
    FIRST,
    LAST,
    MIDDLE,
    NAK_TX,
    ONLY,
    Answer,
    Bench,
    Frame,
    Peer,
    good,
    reth,
)

BENCH = rx_driver.BENCH
MOD = 1 << 24
ACK, RNR, NAK_SEQ, NAK_INV, NAK_ACC, NAK_OP = 0x1F, 0x21, 0x60, 0x61, 0x62, 0x63
RNR_TX = 55
SEND_FIRST, SEND_ONLY, SEND_ONLY_IMM, LAST_IMM, ONLY_IMM = 0x00, 0x04, 0x05, 0x09, 0x0B
REGION = (0x2000, 0x30000)  # base and length of the region that QPs write to
MRN = 9


@dataclass
class Responder:
    """Responder state of one QP and what a packet does to it."""

    qpi: int
    mtu: int
    psn: int
    write_right: bool = True
    msn: int = 0
    nak_sent: bool = False
    left: int = 0  # of the message under way, 0: none
    addr: int = 0
    rkey: int = 0
    dead: bool = False

    def receive(
        self, frame: Frame, key_ok: dict[int, tuple[int, int, bool]], memory: bytearray
    ) -> tuple[list[Answer], str]:
        """Answers and the counter that moves. `key_ok`: rkey -> base, length, remote write of the region."""
        if len(frame.payload) > 4096:
            return [], "length"
        if self.dead:
            return [], "qp"
        ahead = (frame.psn - self.psn) % MOD
        if ahead >= MOD // 2:
            return ([self.answer(ACK, self.psn - 1)] if frame.opcode <= 0x0B else []), "duplicate"
        if ahead:
            first, self.nak_sent = not self.nak_sent, True
            return ([self.answer(NAK_SEQ, self.psn)] if first else []), "ahead"
        size, mtu = len(frame.payload), 128 << self.mtu
        if frame.opcode <= SEND_ONLY_IMM:
            # no SEND is under way, as none is let in
            begins = frame.opcode in (SEND_FIRST, SEND_ONLY, SEND_ONLY_IMM)
            right = size == mtu if frame.opcode == SEND_FIRST else size <= mtu
            if not begins or self.left or not right:
                return self.fatal(NAK_INV, frame.psn), "rx_packet"
            return self.not_ready(), "rx_packet"
        begins = frame.opcode in (FIRST, ONLY, ONLY_IMM)
        va, rkey, length = self.addr, self.rkey, self.left
        if begins:
            va = int.from_bytes(frame.ext[:8], "big")
            rkey = int.from_bytes(frame.ext[8:12], "big")
            length = int.from_bytes(frame.ext[12:16], "big")
        fits = {
            FIRST: size == mtu and mtu < length <= 1 << 31,
            MIDDLE: size == mtu and length > mtu,
            LAST: 0 < size <= mtu and size == length,
            LAST_IMM: 0 < size <= mtu and size == length,
            ONLY: size <= mtu and size == length,
            ONLY_IMM: size <= mtu and size == length,
        }.get(frame.opcode, False)
        if not fits or begins != (self.left == 0) or not self.write_right:
            return self.fatal(NAK_INV, frame.psn), "rx_packet"
        if frame.opcode in (LAST_IMM, ONLY_IMM):
            return self.not_ready(), "rx_packet"
        if length:
            region = key_ok.get(rkey)
            if region is None or (
                begins and not (region[2] and region[0] <= va and va + length <= region[0] + region[1])
            ):
                return self.fatal(NAK_ACC, frame.psn), "rx_packet"
        memory[va : va + size] = frame.payload
        self.psn = (self.psn + 1) % MOD
        self.nak_sent = False
        self.addr, self.rkey, self.left = va + size, rkey, length - size
        self.msn = (self.msn + (self.left == 0)) % MOD
        return ([self.answer(ACK, frame.psn)] if frame.ack_req else []), "rx_packet"

    def answer(self, syndrome: int, psn: int) -> Answer:
        """An answer with the current MSN."""
        return Answer(self.qpi, psn % MOD, syndrome, self.msn)

    def not_ready(self) -> list[Answer]:
        """An RNR NAK: the packet has to come again, packets ahead get no answer."""
        self.nak_sent = True
        return [self.answer(RNR, self.psn)]

    def fatal(self, syndrome: int, psn: int) -> list[Answer]:
        """A NAK that takes the QP to ERR."""
        self.dead = True
        return [self.answer(syndrome, psn)]


class Traffic:
    """Random packets of one QP: mostly what a requester would send, now and then something else."""

    def __init__(self, responder: Responder, rkey: int, fatal: bool) -> None:
        self.qp = responder
        self.rkey = rkey
        self.fatal = fatal  # whether packets may kill the QP

    def next(self) -> Frame:
        """The next packet."""
        qp, mtu = self.qp, 128 << self.qp.mtu
        kind = random.random()
        if qp.left:
            size = min(mtu, qp.left)
            frame = self.frame(MIDDLE if qp.left > mtu else LAST, size)
        else:
            length = random.choice([0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, random.randrange(3 * mtu)])
            base, room = REGION
            va = base + random.choice([0, room - length, random.randrange(room - length + 1)])
            key = self.rkey if length else random.getrandbits(32)
            frame = self.frame(FIRST if length > mtu else ONLY, min(mtu, length), reth(va, key, length))
        if kind < 0.1:
            frame.psn = (qp.psn - random.choice([1, 2, 100, MOD // 2])) % MOD
        elif kind < 0.2:
            frame.psn = (qp.psn + random.choice([1, 2, 100, MOD // 2 - 1])) % MOD
        elif kind < 0.3 and self.fatal:
            self.spoil(frame)
        return frame

    def frame(self, opcode: int, size: int, ext: bytes = b"") -> Frame:
        """A packet with the expected PSN."""
        return good(
            self.qp.qpi,
            opcode=opcode,
            psn=self.qp.psn,
            payload=random.randbytes(size),
            ext=ext,
            ack_req=random.random() < 0.6,
        )

    def spoil(self, frame: Frame) -> None:
        """Makes something wrong with a packet of the expected PSN."""
        base, room = REGION
        length = int.from_bytes(frame.ext[12:16], "big")
        va = int.from_bytes(frame.ext[:8], "big")
        ways = ["sequence", "size", "request"]
        ways += ["key", "index", "below", "above", "wrap", "dma", "huge"] if frame.ext else []
        way = random.choice(ways)
        if way == "sequence":
            frame.opcode = random.choice([op for op in (FIRST, MIDDLE, LAST, ONLY) if op != frame.opcode])
            frame.ext = reth(base, self.rkey, len(frame.payload)) if frame.opcode in (FIRST, ONLY) else b""
        elif way == "size":
            frame.payload += b"more"
        elif way == "request":
            # SEND, WRITE with immediate: there is no receive queue
            frame.opcode, head = random.choice(
                [
                    (0x00, 0),
                    (0x01, 0),
                    (0x02, 0),
                    (0x04, 0),
                    (0x05, 4),
                    (0x09, 4),
                    (0x0B, 20),
                ]
            )
            frame.ext = random.randbytes(head)
            frame.payload = random.randbytes(self.qp.left) if frame.opcode == LAST_IMM else b"1234"
            if frame.opcode == ONLY_IMM:
                frame.ext = reth(va, random.getrandbits(32), 4) + b"imm!"
            if frame.opcode == SEND_FIRST:
                frame.payload = random.randbytes(128 << self.qp.mtu)
        elif way == "key":
            frame.ext = reth(va, self.rkey ^ 1, length)
        elif way == "index":
            frame.ext = reth(va, self.rkey ^ 1 << random.choice([8, 16, 31]), length)
        elif way == "below":
            frame.ext = reth(base - 1, self.rkey, length)
        elif way == "above":
            frame.ext = reth(base + room - length + 1, self.rkey, length)
        elif way == "wrap":
            frame.ext = reth((1 << 64) - 1, self.rkey, length)
        elif way == "dma":
            frame.ext = reth(va, self.rkey, length + 1)
        elif way == "huge":
            frame.ext = reth(base, self.rkey, (1 << 31) + 1)


async def program(bench: Bench, qpi: int, write_right: bool = True) -> Responder:
    """Programs a QP with a random MTU and start PSN."""
    mtu = random.randrange(1, 6)
    psn = random.choice([0, 1, MOD - 1, MOD - 3, random.randrange(MOD)])
    await bench.set_qp(
        qpi, Peer(mtu=mtu, rq_psn=psn, peer_qpn=500 + qpi, sport=0xC000 + qpi, rem_write=write_right)
    )
    return Responder(qpi, mtu, psn, write_right)


@cocotb.test()
@cocotb.parametrize(latency=[0, 70])
async def test_one_at_a_time(dut, latency: int) -> None:
    """Random packets with all kinds of errors: the exact answer and effect of each."""
    bench = Bench(dut)
    await bench.start(latency=latency)
    rkey = await bench.set_mr(MRN, *REGION)
    regions = {rkey: (*REGION, True)}
    qps = [await program(bench, qpi) for qpi in range(3)]
    errs, seen = 0, {NAK_SEQ: 0, NAK_INV: 0, NAK_ACC: 0, ACK: 0, RNR: 0}
    for n in range(900):
        qp = random.choice(qps)
        before, killed = bench.counts(), qp.dead
        frame = Traffic(qp, rkey, True).next()
        answers, counter = qp.receive(frame, regions, bench.memory)
        bench.send(frame)
        await bench.until(lambda: not bench.wire)
        count = len(answers)
        await bench.until(lambda want=count: len(bench.frames) >= want)
        await bench.idle(25)
        got = bench.answers()
        assert got == answers, f"packet {n} {frame}: answers {got}, want {answers}"
        moved = {k: v - before.get(k, 0) for k, v in bench.counts().items() if v != before.get(k, 0)}
        want = {counter: 1} | ({"tx_response": 1} if answers else {})
        if answers and answers[0].syndrome == RNR:
            want[str(RNR_TX)] = 1
        elif answers and answers[0].syndrome != ACK:
            want[str(NAK_TX + answers[0].syndrome - NAK_SEQ)] = 1
        assert moved == want, f"packet {n}: counters {moved}, want {want}"
        for answer in answers:
            seen[answer.syndrome] += 1
        errs += qp.dead and not killed
        assert int(dut.errs_o.value) == int(dut.asyncs_o.value) == errs, f"packet {n}: QPs to ERR"
        if qp.dead and (killed or random.random() < 0.5):
            assert int(dut.err_qpi_o.value) == qp.qpi or killed
            await bench.stop_qp(qp.qpi)
            qps[qp.qpi] = await program(bench, qp.qpi, random.random() < 0.9)
    assert min(seen.values()) > 5, f"an answer is rare: {seen}"
    await bench.until(lambda: True)
    await bench.idle(latency + 100)
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(latency=[10, 300], stall=[0, 100])
async def test_back_to_back(dut, latency: int, stall: int) -> None:
    """Packets of several QPs without a gap; duplicates and packets ahead among them."""
    bench = Bench(dut, rx_gap=stall / 500)
    await bench.start(latency=latency, stall=stall)
    rkey = await bench.set_mr(MRN, *REGION)
    regions = {rkey: (*REGION, True)}
    qps = [await program(bench, qpi) for qpi in range(6)]
    expected: dict[int, list[Answer]] = {qp.qpi: [] for qp in qps}
    counts: dict[str, int] = {}
    for _ in range(500):
        qp = random.choice(qps)
        frame = Traffic(qp, rkey, False).next()
        answers, counter = qp.receive(frame, regions, bench.memory)
        expected[qp.qpi] += answers
        counts[counter] = counts.get(counter, 0) + 1
        bench.send(frame)
    await bench.until(lambda: not bench.wire, 100000)
    await bench.idle(3 * latency + 3000)
    got = bench.answers()
    for qp in qps:
        mine, rest = [a for a in got if a.qpi == qp.qpi], iter(expected[qp.qpi])
        for answer in mine:
            assert answer in rest, f"QP {qp.qpi}: {answer} is not expected or out of order"
        assert mine[-1] == expected[qp.qpi][-1], (
            f"QP {qp.qpi}: last answer {mine[-1]}, want {expected[qp.qpi][-1]}"
        )
        # a NAK still waiting when the next one comes gives way to it; no ACK ever replaces one
        naks, sent = ([a for a in some if a.syndrome != ACK] for some in (expected[qp.qpi], mine))
        assert sent[-1:] == naks[-1:], f"QP {qp.qpi}: last NAK {sent[-1:]}, want {naks[-1:]}"
        assert len(sent) >= 0.8 * len(naks), f"QP {qp.qpi}: {len(sent)} of {len(naks)} NAKs sent"
    found = bench.counts()
    assert {k: found.get(k, 0) for k in counts} == counts
    await bench.compare()


@cocotb.test()
async def test_answers_wait_for_writes(dut) -> None:
    """Every kind of answer leaves only after the write responses of what was before it."""
    latency = 400
    bench = Bench(dut)
    await bench.start(latency=latency)
    rkey = await bench.set_mr(MRN, *REGION)
    for follower in (None, "nak", "empty", "duplicate"):
        await bench.set_qp(0, Peer(peer_qpn=9, rq_psn=0))
        data = random.randbytes(100)
        bench.memory[0x2000:0x2064] = data
        bench.send(good(0, psn=0, payload=data, ext=reth(0x2000, rkey, 100), ack_req=follower is None))
        if follower == "nak":
            bench.send(good(0, psn=1, payload=b"1234", ext=reth(0, 0, 4)))
        elif follower == "empty":
            bench.send(good(0, psn=1, ext=reth(0, 0, 0), ack_req=True))
        elif follower == "duplicate":
            bench.send(good(0, psn=0, payload=data, ext=reth(0x2000, rkey, 100)))
        await bench.until(lambda: not bench.wire)
        start = bench.cycles
        await bench.until(lambda: bool(bench.frames))
        assert latency < bench.cycles - start < latency + 60, (
            f"{follower}: answer after {bench.cycles - start} cycles"
        )
        want = {None: (0, ACK, 1), "nak": (1, NAK_ACC, 1), "empty": (1, ACK, 2), "duplicate": (0, ACK, 1)}[
            follower
        ]
        assert [(a.psn, a.syndrome, a.msn) for a in bench.answers()] == [want]
        await bench.stop_qp(0)
    await bench.compare()


@cocotb.test()
async def test_region_changes(dut) -> None:
    """The key is judged on every packet: invalidated or with a new tag, NAK 2; right and range are not."""
    bench = Bench(dut)
    await bench.start()
    cases = [
        ({"valid": False}, NAK_ACC),
        ({"tag": 0x77}, NAK_ACC),
        ({"length": 16}, ACK),
        ({"rights": 0}, ACK),
        ({}, ACK),
    ]
    for change, syndrome in cases:
        rkey = await bench.set_mr(MRN, *REGION)
        await bench.set_qp(0, Peer(mtu=1, peer_qpn=9, rq_psn=0))
        first, last = random.randbytes(256), random.randbytes(50)
        bench.memory[0x2000:0x2100] = first
        bench.send(good(0, opcode=FIRST, psn=0, payload=first, ext=reth(0x2000, rkey, 306), ack_req=True))
        await bench.settle()
        await bench.set_mr(MRN, **{"base": REGION[0], "length": REGION[1], **change})
        bench.send(good(0, opcode=LAST, psn=1, payload=last, ack_req=True))
        await bench.settle()
        if syndrome == ACK:
            bench.memory[0x2100:0x2132] = last
        want = [(0, ACK, 0), (1, syndrome, int(syndrome == ACK))]
        assert [(a.psn, a.syndrome, a.msn) for a in bench.answers()] == want, f"{change}"
        await bench.stop_qp(0)
    # a region that cannot be written from afar
    rkey = await bench.set_mr(MRN, *REGION, rights=1 | 4 | 8)
    await bench.set_qp(0, Peer(peer_qpn=9, rq_psn=0))
    bench.send(good(0, psn=0, payload=b"1234", ext=reth(0x2000, rkey, 4)))
    await bench.settle()
    assert [(a.psn, a.syndrome, a.msn) for a in bench.answers()] == [(0, NAK_ACC, 0)]
    await bench.compare()


@cocotb.test()
async def test_write_error(dut) -> None:
    """A failed write: NAK 3 with its packet's PSN and the count before it, ERR, silence; others go on."""
    bench = Bench(dut)
    await bench.start(latency=60)
    rkey = await bench.set_mr(MRN, *REGION)
    for qpi in range(2):
        await bench.set_qp(qpi, Peer(peer_qpn=9 + qpi, rq_psn=0, sport=0xC000 + qpi))
    dut.fault_i.value = 1
    dut.fault_beat_i.value = 0x4000 // 64
    for psn, addr in enumerate((0x2000, 0x3000, 0x4000 - 10, 0x5000, 0x6000)):
        for qpi in range(2):
            data = random.randbytes(40)
            at = addr + 0x8000 * qpi
            if (qpi, psn) == (0, 2):
                bench.memory[at : at + 10] = data[:10]  # the first page's burst stands
            else:
                bench.memory[at : at + 40] = data
            bench.send(good(qpi, psn=psn, payload=data, ext=reth(at, rkey, 40), ack_req=True))
    await bench.settle(60)
    await bench.idle(200)
    answers = bench.answers()
    mine = [(a.psn, a.syndrome, a.msn) for a in answers if a.qpi == 0]
    assert mine[-1] == (2, NAK_OP, 2), f"answers {mine}"
    assert all(a[1] == ACK and a[2] == a[0] + 1 for a in mine[:-1])
    assert [(a.psn, a.syndrome, a.msn) for a in answers if a.qpi == 1][-1] == (4, ACK, 5)
    assert int(dut.errs_o.value) == int(dut.asyncs_o.value) == 1 and int(dut.err_qpi_o.value) == 0
    counts = bench.counts()
    assert counts[str(BUS_INBOUND)] == 1 and counts[str(NAK_TX + 3)] == 1
    bench.send(good(0, psn=5, payload=b"1234", ext=reth(0x2000, rkey, 4), ack_req=True))
    await bench.settle(60)
    assert not bench.frames and bench.counts()["qp"] == 1, "a QP that gave NAK 3 takes no packet"
    await bench.compare()


@cocotb.test()
async def test_transmit_stands_still(dut) -> None:
    """Nothing leaves, yet all WRITEs are executed; then the newest ACK of each QP, a NAK before it.

    Of the QP that a RESET waits for only what the framer had taken leaves: the rest is dropped.
    """
    bench = Bench(dut, tx_stall=1.0)
    await bench.start()
    rkey = await bench.set_mr(MRN, *REGION)
    regions = {rkey: (*REGION, True)}
    qps = [await program(bench, qpi) for qpi in range(8)]
    for qp in qps:
        qp.mtu = 5
        await bench.set_qp(qp.qpi, Peer(mtu=5, rq_psn=qp.psn, peer_qpn=500, sport=0xC000 + qp.qpi))
    last: dict[int, Answer] = {}
    for n in range(300):
        qp = qps[n % 8]
        frame = good(
            qp.qpi,
            psn=qp.psn,
            payload=random.randbytes(30),
            ext=reth(0x2000 + 64 * n, rkey, 30),
            ack_req=True,
        )
        for answer in qp.receive(frame, regions, bench.memory)[0]:
            last[qp.qpi] = answer
        bench.send(frame)
        if n == 100:
            # QP 2 misses a packet; its NAK has to survive the ACKs behind it
            lost = good(2, psn=(qps[2].psn + 1) % MOD, payload=b"x", ext=reth(0, 0, 1))
            nak = qps[2].receive(lost, regions, bench.memory)[0][0]
            bench.send(lost)
    await bench.until(lambda: not bench.wire, 20000)
    await bench.idle(200)
    assert bench.counts()["rx_packet"] == 300
    dut.drain_valid_i.value = 1
    dut.drain_qpi_i.value = 7
    await bench.idle(20)
    assert dut.drain_busy_o.value == 1, "an answer that waits is something left"
    assert not bench.frames
    bench.tx_stall = 0.0
    await bench.idle(200)
    answers = bench.answers()
    for qp in qps:
        mine = [a for a in answers if a.qpi == qp.qpi]
        if qp.qpi == 7:
            assert last[7] not in mine, f"QP 7: {mine[-1]} left although a RESET waits"
        else:
            assert mine[-1] == last[qp.qpi], f"QP {qp.qpi}: last {mine[-1]}, want {last[qp.qpi]}"
        # what the framer had taken before it stood still, the NAK, and the newest
        assert len(mine) <= 8 and (qp.qpi != 2 or nak in mine), f"QP {qp.qpi}: {mine}"
    assert len(answers) < 30
    assert dut.drain_busy_o.value == 0
    await bench.compare()
