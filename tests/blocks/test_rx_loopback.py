"""The data path sends to itself: gather, framer, receive checks, responder, scatter and the acknowledgements
back.

Sweep: WRITE and READ messages of many QPs with all MTUs, lengths 0 to several packets, any alignment on both
sides, packets of the QPs interleaved; memory latency and stalls on memory and link; all forms of request
packets on the link alone.
Stimulus: request packets as the requester cuts them; the link is looped back, or watched.
Checks: each frame on the link byte for byte (headers, checksum, pad, ICRC by the library); the whole memory
at the end; the acknowledgements of each QP (PSNs not decreasing, MSN the count at that PSN, the last request
covered); the READ responses of each QP as the requester sees them (each PSN once and in order, slot, last);
tkeep, stable beats (in the bench); counters; nothing left for a reset.
Timing: 4 KiB WRITEs keep the link at least 97 % busy without a gap inside a frame, at 200 cycles of memory
latency, 4 KiB READs 95 %; 64-byte WRITEs at most 5 cycles each.
Not proved here: errors (test_rx.py, test_rx_responder.py, test_gather.py, test_scatter.py).
"""

import random

import cocotb
from cocotb.triggers import FallingEdge

from tests.blocks import rx_driver
from tests.blocks.rx_driver import (
    FIRST,
    IP,
    LAST,
    LAST_IMM,
    MAC,
    MIDDLE,
    ONLY,
    ONLY_IMM,
    SIZE,
    Bench,
    Frame,
    Job,
    Peer,
    reth,
)

BENCH = rx_driver.BENCH
SOURCE, TARGET = 0, SIZE // 2  # the lower half of the memory is read, the upper one is written
QPS = 8


def partner(qpi: int) -> int:
    """QPs talk in pairs."""
    return qpi ^ 1


async def pairs(dut, mtus: list[int], **knobs: int) -> tuple[Bench, int, list[int]]:
    """A looped bench with QPS QPs in pairs; returns it, the rkey of its memory, the next PSN of each."""
    bench = Bench(dut)
    await bench.start(loop=True, **knobs)
    rkey = await bench.set_mr(3, TARGET, SIZE // 2, rights=3)
    psns = [random.choice([0, 1, 0xFFFFF0, random.getrandbits(24)]) for _ in range(QPS)]
    for qpi in range(QPS):
        peer = Peer(
            mtu=mtus[qpi],
            peer_qpn=2 + partner(qpi),
            peer_ip=IP,
            peer_mac=MAC,
            rq_psn=psns[partner(qpi)],
            sport=0xC000 + qpi,
        )
        await bench.set_qp(qpi, peer)
    return bench, rkey, psns


def cut(qpi: int, psn: int, mtu: int, laddr: int, raddr: int, rkey: int, length: int) -> list[Job]:
    """A WRITE as the requester cuts it (wire.md 2: AckReq on the last packet and on every 16th)."""
    size = 128 << mtu
    count = max(1, -(-length // size))
    jobs = []
    for k in range(count):
        part = min(size, length - k * size)
        opcode = ONLY if count == 1 else FIRST if k == 0 else LAST if k == count - 1 else MIDDLE
        jobs.append(
            Job(
                qpi,
                opcode,
                (psn + k) % (1 << 24),
                laddr + k * size,
                part,
                k == count - 1 or (k + 1) % 16 == 0,
                (raddr, rkey, length) if k == 0 else None,
            )
        )
    return jobs


@cocotb.test()
@cocotb.parametrize(case=[(10, 0, 0), (200, 0, 0), (40, 100, 60), (0, 40, 160), (300, 128, 0)])
async def test_writes(dut, case: tuple[int, int, int]) -> None:
    """Random WRITEs of all QPs; targets are disjoint slots with guard bytes between them."""
    latency, stall, link_stall = case
    mtus = [1, 2, 3, 4, 5, 5, 3, 1]
    mtus = [mtus[q & ~1] for q in range(QPS)]
    bench, rkey, psns = await pairs(dut, mtus, latency=latency, stall=stall, link_stall=link_stall)
    first = list(psns)
    streams: list[list[Job]] = [[] for _ in range(QPS)]
    ends: list[list[int]] = [[] for _ in range(QPS)]  # PSN of each message's last packet
    at = TARGET
    while True:
        qpi = random.randrange(QPS)
        length = random.choice(
            [0, 1, 63, 64, 65, 255, 256, 257, 4096, random.randrange(9000), random.randrange(300)]
        )
        raddr = at + random.randrange(1, 130)
        if raddr + length + 1 > SIZE:
            break
        at = raddr + length
        laddr = random.randrange(SOURCE, SIZE // 2 - length)
        bench.memory[raddr : raddr + length] = bench.memory[laddr : laddr + length]
        jobs = cut(
            qpi, psns[qpi], mtus[qpi], laddr, raddr, rkey if length else random.getrandbits(32), length
        )
        psns[qpi] = (psns[qpi] + len(jobs)) % (1 << 24)
        streams[qpi] += jobs
        ends[qpi].append(jobs[-1].psn)
    packets = sum(map(len, streams))
    while any(streams):
        stream = random.choice([s for s in streams if s])
        bench.jobs.append(stream.pop(0))
    used = [q for q in range(QPS) if ends[q]]
    last: dict[int, int] = {}

    def covered() -> bool:
        for answer in bench.responses:
            last[answer.qpi] = answer.psn
        return not bench.jobs and all(last.get(q) == ends[q][-1] for q in used)

    await bench.until(covered, 400 * packets)
    await bench.settle(latency)
    for q in used:
        seen, before = [a for a in bench.responses if a.qpi == q], 0
        for answer in seen:
            assert answer.syndrome == 0x1F, f"QP {q}: {answer}"
            offset = (answer.psn - first[q]) % (1 << 24)
            assert before <= offset, f"QP {q}: PSN {answer.psn:#x} after a later one"
            before = offset
            msn = sum((end - first[q]) % (1 << 24) <= offset for end in ends[q])
            assert answer.msn == msn, f"QP {q}: {answer}, want MSN {msn}"
    acks = len(bench.responses)
    assert bench.counts() == {"tx_request": packets, "tx_response": acks, "rx_packet": packets + acks}
    assert int(dut.tx_frames_o.value) == packets + acks
    for q in range(QPS):
        dut.drain_valid_i.value = 1
        dut.drain_qpi_i.value = q
        await bench.idle(4)
        assert dut.drain_busy_o.value == 0, f"QP {q}: something is left"
    await bench.compare()


@cocotb.test()
async def test_rate(dut) -> None:
    """Long and short WRITEs on one link."""
    bench, rkey, psns = await pairs(dut, [5] * QPS, latency=200)
    jobs = []
    for n in range(100):
        jobs += cut(
            0, (psns[0] + n) % (1 << 24), 5, SOURCE + 3 + 64 * n, TARGET + 4096 * (n % 24) + 8, rkey, 4096
        )
    for n in range(76, 100):
        a, b = SOURCE + 3 + 64 * n, TARGET + 4096 * (n % 24) + 8
        bench.memory[b : b + 4096] = bench.memory[a : a + 4096]
    bench.jobs.extend(jobs)
    # from the 10th frame to the 90th
    await bench.until(lambda: int(dut.tx_frames_o.value) >= 10)
    start, beats = bench.cycles, int(dut.tx_beats_o.value)
    await bench.until(lambda: int(dut.tx_frames_o.value) >= 90, 20000)
    busy = (int(dut.tx_beats_o.value) - beats) / (bench.cycles - start)
    assert busy >= 0.97, f"link busy {busy:.3f}"
    assert int(dut.tx_gaps_o.value) == 0, "gaps inside frames"
    await bench.until(lambda: bool(bench.responses) and bench.responses[-1].msn == 100)
    await bench.settle(200)
    await bench.compare()
    frames = int(dut.tx_frames_o.value)
    small = 800
    for n in range(small):
        qpi = n % QPS
        bench.jobs.extend(
            cut(
                qpi,
                (psns[qpi] + (100 if qpi == 0 else 0) + n // QPS) % (1 << 24),
                5,
                SOURCE + 64 * (n % 1000),
                TARGET + 0x19000 + 64 * (n % 256),
                rkey,
                64,
            )
        )
    await bench.until(lambda: int(dut.tx_frames_o.value) >= frames + 60)
    start, frames = bench.cycles, int(dut.tx_frames_o.value)
    await bench.until(lambda: int(dut.tx_frames_o.value) >= frames + 600, 20000)
    # each WRITE brings at most one acknowledgement on the same link
    writes = bench.counts()["tx_request"]
    assert writes > 100 and bench.cycles - start <= 5 * 600, f"{bench.cycles - start} cycles for 600 frames"
    await bench.settle(200)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def test_frames(dut, stall: float) -> None:
    """Each form of request packet on the link, byte for byte; the framer takes any mix."""
    bench = Bench(dut, tx_stall=stall)
    await bench.start(latency=20, stall=int(100 * stall))
    peers = [
        Peer(
            tc=random.getrandbits(8),
            ttl=random.getrandbits(8),
            sport=random.getrandbits(16),
            peer_qpn=random.getrandbits(24),
            peer_ip=random.getrandbits(32),
            peer_mac=random.getrandbits(48),
        )
        for _ in range(64)
    ]
    # QP 0: the checksum of an empty packet is one whose carry gives a carry again
    edge = peers[0]
    edge.tc, edge.ttl = 255, 255
    words = [0x4500 | edge.tc, 44, 0x4000, edge.ttl << 8 | 17, IP >> 16, IP & 0xFFFF, edge.peer_ip >> 16]
    edge.peer_ip = edge.peer_ip & ~0xFFFF | (0xFFFF - sum(words)) & 0xFFFF
    for qpi, peer in enumerate(peers):
        await bench.set_qp(qpi, peer)
    want = []
    for n in range(400):
        opcode = random.choice([FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM, 0x00, 0x03, 0x05, 0x0C])
        qpi = random.randrange(64)
        length = (
            0
            if opcode == 0x0C
            else random.choice([n % 70, 256, 1024, 4096, 4095, 4093, random.randrange(4097)])
        )
        laddr = random.randrange(SIZE - 4096)
        if n % 40 == 0:
            opcode, qpi, length = MIDDLE, 0, 0
        head = (random.getrandbits(64), random.getrandbits(32), random.getrandbits(32))
        job = Job(
            qpi,
            opcode,
            random.getrandbits(24),
            laddr,
            length,
            random.random() < 0.5,
            head if opcode in (FIRST, ONLY, ONLY_IMM, 0x0C) else None,
            random.getrandbits(32) if opcode in (LAST_IMM, ONLY_IMM, 0x03, 0x05) else None,
            random.random() < 0.5,
        )
        bench.jobs.append(job)
        ext = reth(*head) if job.reth else b""
        ext += job.imm.to_bytes(4, "big") if job.imm is not None else b""
        peer = peers[qpi]
        frame = Frame(
            opcode=opcode,
            dest_qpn=peer.peer_qpn,
            psn=job.psn,
            payload=bytes(bench.memory[laddr : laddr + length]),
            ack_req=job.ack_req,
            se=job.se,
            ext=ext,
            dst_mac=peer.peer_mac,
            src_mac=MAC,
            tos=peer.tc,
            ttl=peer.ttl,
            src_ip=IP,
            dst_ip=peer.peer_ip,
            sport=peer.sport,
        )
        want.append(frame.pack())
    await bench.until(lambda: len(bench.frames) == len(want), 200 * len(want))
    for n, (got, expected) in enumerate(zip(bench.frames, want, strict=True)):
        assert got == expected, f"frame {n}: {got.hex()}\nwant {expected.hex()}"
    await bench.idle(4)
    assert bench.counts() == {"tx_request": len(want)}


READ_REQ = 0x0C
#: kinds of responses as the requester sees them
DATA = 3


class Reader:
    """The requester's side of READs: at most 16 a QP under way, each with its place and its PSNs."""

    def __init__(self, bench: Bench, mtus: list[int], psns: list[int], rkey: int, lkey: int) -> None:
        self.bench, self.mtus, self.psns, self.rkey, self.lkey = bench, mtus, psns, rkey, lkey
        self.due: list[list[tuple[int, int, bool]]] = [[] for _ in range(QPS)]  # PSN, slot, last of its READ
        self.open = [0] * QPS
        self.count = 0
        cocotb.start_soon(self.watch())

    async def start(self, qpi: int, laddr: int, raddr: int, length: int) -> None:
        """Announces a READ and queues its request."""
        bench, dut = self.bench, self.bench.dut
        await bench.until(lambda: self.open[qpi] < 16, 20000)
        count = max(1, -(-length // (128 << self.mtus[qpi])))
        first, slot = self.psns[qpi], self.count % 16
        self.psns[qpi] = (first + count) % (1 << 24)
        self.count += 1
        self.open[qpi] += 1
        self.due[qpi] += [((first + k) % (1 << 24), slot, k == count - 1) for k in range(count)]
        dut.expect_valid_i.value = 1
        dut.expect_qpi_i.value, dut.expect_slot_i.value, dut.expect_kind_i.value = qpi, slot, 0
        dut.expect_first_i.value = first
        dut.expect_last_i.value = (first + count - 1) % (1 << 24)
        dut.expect_laddr_i.value, dut.expect_lkey_i.value = laddr, self.lkey
        dut.expect_len_i.value = length
        bench.jobs.append(Job(qpi, READ_REQ, first, 0, 0, True, (raddr, self.rkey, length)))
        await bench.cycle()
        dut.expect_valid_i.value = 0

    async def watch(self) -> None:
        """Every data response is the next one of its QP."""
        dut = self.bench.dut
        while True:
            await FallingEdge(dut.clk_i)
            if dut.rsp_valid_o.value == 1 and int(dut.rsp_kind_o.value) == DATA:
                names = ("psn", "slot", "last", "fail")
                psn, slot, last, fail = (int(getattr(dut, f"rsp_{n}_o").value) for n in names)
                qpi = int(dut.rsp_qpi_o.value)
                assert self.due[qpi], f"QP {qpi}: a response with PSN {psn:#x} that nobody waits for"
                assert (psn, slot, bool(last), fail) == (*self.due[qpi].pop(0), 0), f"QP {qpi}"
                self.open[qpi] -= last

    def done(self) -> bool:
        """Nothing is due."""
        return not self.bench.jobs and not any(self.due)


async def readers(dut, mtus: list[int], **knobs: int) -> tuple[Reader, int]:
    """Pairs with a region to be read below, and one to be written above, whose rkey is returned."""
    bench, rkey, psns = await pairs(dut, mtus, **knobs)
    source = await bench.set_mr(9, SOURCE, SIZE // 2, rights=4)
    return Reader(bench, mtus, psns, source, rkey & ~0xFF | ~rkey & 0xFF), rkey


@cocotb.test()
@cocotb.parametrize(case=[(10, 0, 0), (40, 100, 60), (200, 0, 0), (300, 128, 0)])
async def test_reads(dut, case: tuple[int, int, int]) -> None:
    """Random READs among WRITEs of all QPs; targets are disjoint slots with guard bytes between them."""
    latency, stall, link_stall = case
    mtus = [mtu for mtu in (1, 3, 5, 2) for _ in range(2)]
    reader, rkey = await readers(dut, mtus, latency=latency, stall=stall, link_stall=link_stall)
    bench, at, requests, answers = reader.bench, TARGET, 0, 0
    while True:
        qpi = random.randrange(QPS)
        length = random.choice(
            [0, 1, 63, 64, 65, 255, 256, 257, 4096, random.randrange(9000), random.randrange(300)]
        )
        to = at + random.randrange(1, 130)
        if to + length + 1 > SIZE:
            break
        at = to + length
        source = random.randrange(SOURCE, SIZE // 2 - length)
        bench.memory[to:at] = bench.memory[source : source + length]
        if random.random() < 0.6:
            await reader.start(qpi, to, source, length)
            requests += 1
            answers += max(1, -(-length // (128 << mtus[qpi])))
            continue
        jobs = cut(qpi, reader.psns[qpi], mtus[qpi], source, to, rkey, length)
        reader.psns[qpi] = (reader.psns[qpi] + len(jobs)) % (1 << 24)
        bench.jobs.extend(jobs)
        requests += len(jobs)
    await bench.until(reader.done, 400 * (requests + answers))
    await bench.settle(latency)
    counts = bench.counts()
    acks = counts["tx_response"] - answers
    assert 0 < acks <= requests
    expected = {"tx_request": requests, "tx_response": answers + acks, "54": reader.count}
    assert counts == expected | {"rx_packet": requests + answers + acks}
    for q in range(QPS):
        dut.drain_valid_i.value = 1
        dut.drain_qpi_i.value = q
        await bench.idle(4)
        assert dut.drain_busy_o.value == 0, f"QP {q}: something is left"
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(qps=[2, 4])
async def test_read_rate(dut, qps: int) -> None:
    """4 KiB READs keep the link of their responder 95 % busy at 200 cycles of memory latency. Requests wait
    behind the responses that the same side gathers, so the 16 READs of one QP would not fill the loop.
    """
    reader, _ = await readers(dut, [5] * QPS, latency=200)
    bench = reader.bench

    async def feed() -> None:
        for n in range(120):
            to, source = TARGET + 4096 * (n % 28) + 5, SOURCE + 4096 * (n % 28) + n % 64
            bench.memory[to : to + 4096] = bench.memory[source : source + 4096]
            await reader.start(n % qps, to, source, 4096)

    started = 0
    beats = 0

    async def measure() -> None:
        nonlocal started, beats
        while int(dut.tx_frames_o.value) < 40:
            await FallingEdge(dut.clk_i)
        started, beats = bench.cycles, int(dut.tx_beats_o.value)
        while int(dut.tx_frames_o.value) < 200:
            await FallingEdge(dut.clk_i)
        beats = int(dut.tx_beats_o.value) - beats
        started = bench.cycles - started

    task = cocotb.start_soon(measure())
    await feed()
    await bench.until(reader.done, 20000)
    await task
    assert beats >= 0.95 * started, f"link busy {beats / started:.3f}"
    await bench.settle(200)
    await bench.compare()
