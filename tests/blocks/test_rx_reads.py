"""READ and atomic requests at the responder (rtl/responder, rtl/atomic), against rules from wire.md.

Sweep: READs of every size class x alignment x MTU, PSNs across the wrap; READs, atomics and WRITEs mixed on
several QPs, up to 16 open on each; table sizes 0 to 16; every refusal; bus errors in mid-READ, on read and on
write of atomics; invalidation in mid-READ; reset and ERR in the middle; a transmit side that stands still.
Stimulus: frames on the link, one at a time or back to back.
Checks: every byte, PSN, syndrome and MSN of every response, their order within a QP; returned values of
atomics; counters and events; the whole memory; no access after an invalidation; inbound WRITEs of a contended
word: every value fits one serial order.
Timing: none but that answers wait for write responses.
Not proved here: duplicates (test_rx_duplicates.py), the requester's side of responses (test_rx_expected.py),
speed (bench).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import cocotb

from tests.blocks import rx_driver
from tests.blocks.rx_driver import ACK as ACK_OP
from tests.blocks.rx_driver import (
    ATOMIC,
    ATOMIC_ACK,
    BUS_ATOMIC,
    BUS_GATHER,
    CAS64,
    FA64,
    FIRST,
    LAST,
    MCAS32,
    MCAS64,
    MFA32,
    MFA64,
    NAK_TX,
    RD_TOO_MANY,
    READ,
    READ_FIRST,
    READ_LAST,
    READ_MIDDLE,
    READ_ONLY,
    READ_REQ,
    Bench,
    Frame,
    Peer,
    Reply,
    atomic_eth,
    good,
    reth,
)

BENCH = rx_driver.BENCH
MOD = 1 << 24
ACK, NAK_SEQ, NAK_INV, NAK_ACC, NAK_OP = 0x1F, 0x60, 0x61, 0x62, 0x63
REGION = (0x400, 0x3F000)  # base and length of the region that QPs use
MRN = 9
ALL_RIGHTS = 15


@dataclass
class Target:
    """Responder state of one QP; its methods make good requests and say what has to come back."""

    bench: Bench
    qpi: int
    mtu: int  # code, 1..5
    psn: int
    rkey: int
    msn: int = 0
    due: list[Reply] = field(default_factory=list)  # READ responses, ATOMIC ACKs and NAKs, in order
    last_psn: int = -1  # of the newest packet that something has to acknowledge
    ack_msn: dict[int, int] = field(default_factory=dict)  # PSN of an executed packet -> MSN there

    @property
    def size(self) -> int:
        """MTU in bytes."""
        return 128 << self.mtu

    def read(self, va: int, length: int, rkey: int | None = None) -> Frame:
        """A READ and what it gives; its data is that of the bench's memory now."""
        frame = good(
            self.qpi,
            opcode=READ_REQ,
            psn=self.psn,
            ext=reth(va, self.rkey if rkey is None else rkey, length),
            ack_req=True,
        )
        self.msn = (self.msn + 1) % MOD
        count = max(1, -(-length // self.size))
        for k in range(count):
            opcode = (
                READ_ONLY
                if count == 1
                else READ_FIRST
                if k == 0
                else READ_LAST
                if k == count - 1
                else READ_MIDDLE
            )
            data = bytes(self.bench.memory[va + k * self.size : va + min(length, (k + 1) * self.size)])
            head = (-1, -1) if opcode == READ_MIDDLE else (ACK, self.msn)
            self.due.append(Reply(self.qpi, opcode, (self.psn + k) % MOD, *head, data))
        self.psn = (self.psn + count) % MOD
        self.last_psn = -1
        return frame

    def atomic(
        self, opcode: int, va: int, swap_add: int, compare: int = 0, masks: tuple[int, int] = (0, 0)
    ) -> Frame:
        """An atomic, executed on the bench's memory, and its answer."""
        size = 4 if opcode in (MCAS32, MFA32) else 8
        ones = (1 << 8 * size) - 1
        old = int.from_bytes(self.bench.memory[va : va + size], "little")
        new = old
        if opcode in (CAS64, MCAS64, MCAS32):
            swap_mask, compare_mask = (ones, ones) if opcode == CAS64 else masks
            if not (old ^ compare) & compare_mask & ones:
                new = old & ~swap_mask | swap_add & swap_mask
        elif opcode == FA64 or not compare:
            new = old + swap_add
        else:
            new = old ^ swap_add if compare == ones else boundary_add(old, swap_add, compare, 8 * size)
        self.bench.memory[va : va + size] = (new & ones).to_bytes(size, "little")
        frame = good(
            self.qpi,
            opcode=opcode,
            psn=self.psn,
            ext=atomic_eth(opcode, va, self.rkey, swap_add, compare, masks),
            ack_req=True,
        )
        self.msn = (self.msn + 1) % MOD
        self.due.append(Reply(self.qpi, ATOMIC_ACK, self.psn, ACK, self.msn, old.to_bytes(8, "big")))
        self.psn = (self.psn + 1) % MOD
        self.last_psn = -1
        return frame

    def write(self, va: int, data: bytes, ack_req: bool = True) -> Frame:
        """A WRITE of one packet, executed on the bench's memory."""
        frame = good(
            self.qpi, psn=self.psn, payload=data, ext=reth(va, self.rkey, len(data)), ack_req=ack_req
        )
        self.bench.memory[va : va + len(data)] = data
        self.msn = (self.msn + 1) % MOD
        self.ack_msn[self.psn] = self.msn
        if ack_req:
            self.last_psn = self.psn
        self.psn = (self.psn + 1) % MOD
        return frame

    def judge(self, replies: list[Reply], whole: bool = True) -> None:
        """All replies of the QP: those due in order, ACKs between them in PSN order with their MSN."""
        due = iter(list(self.due))
        place = None
        newest = -1
        for reply in replies:
            if place is not None:
                assert 0 <= (reply.psn - place) % MOD < MOD // 2, f"QP {self.qpi}: {reply} behind {place:#x}"
                assert reply.psn != place or reply.opcode == ACK_OP
            place = reply.psn
            if reply.opcode == ACK_OP and reply.syndrome == ACK:
                assert self.ack_msn.get(reply.psn) == reply.msn, f"QP {self.qpi}: {reply}"
                newest = reply.psn
                continue
            want = next(due, None)
            assert reply == want, f"QP {self.qpi}: {reply}, want {want}"
        if whole:
            left = list(due)
            assert not left, f"QP {self.qpi}: {len(left)} responses missing, first {left[0]}"
            assert self.last_psn in (-1, newest), f"QP {self.qpi}: no ACK of {self.last_psn:#x}"
            self.due.clear()


def boundary_add(old: int, add: int, boundary: int, bits: int) -> int:
    """Sum without carry out of the boundary's bits (device.md 1.5)."""
    carry, new = 0, 0
    for bit in range(bits):
        total = (old >> bit & 1) + (add >> bit & 1) + carry
        new |= (total & 1) << bit
        carry = 0 if boundary >> bit & 1 else total >> 1
    return new


async def program(bench: Bench, qpi: int, rkey: int, mtu: int | None = None, **changes: object) -> Target:
    """Programs a QP with a random start PSN, often before the wrap."""
    mtu = random.randrange(1, 6) if mtu is None else mtu
    psn = random.choice([0, MOD - 1, MOD - 5, random.randrange(MOD)])
    peer = Peer(mtu=mtu, rq_psn=psn, peer_qpn=500 + qpi, sport=0xC000 + qpi, **changes)  # type: ignore[arg-type]
    await bench.set_qp(qpi, peer)
    return Target(bench, qpi, mtu, psn, rkey)


async def ready(dut, latency: int = 10, stall: int = 0, **knobs: float) -> tuple[Bench, int]:
    """A bench with one region with all rights; its rkey."""
    bench = Bench(dut, **knobs)
    await bench.start(latency=latency, stall=stall)
    return bench, await bench.set_mr(MRN, *REGION, rights=ALL_RIGHTS)


def count(bench: Bench, number: int) -> int:
    """A counter by its number."""
    return bench.counts().get(str(number), 0)


@cocotb.test()
@cocotb.parametrize(mtu=[1, 2, 3, 4, 5])
async def test_reads(dut, mtu: int) -> None:
    """Every size class at changing alignments; one READ at a time and several open."""
    bench, rkey = await ready(dut)
    target = await program(bench, 0, rkey, mtu)
    size = target.size
    sizes = [
        0,
        1,
        2,
        3,
        4,
        5,
        63,
        64,
        65,
        127,
        128,
        size - 1,
        size,
        size + 1,
        2 * size - 1,
        2 * size,
        3 * size + 7,
    ]
    offsets = random.sample(range(64), 64)
    reads = 0
    for n, length in enumerate(sizes * 6):
        base = random.choice([REGION[0], REGION[0] + REGION[1] - length, 0x2000 + 4096 * (n % 8)])
        va = base + (offsets[n % 64] if base == 0x2000 + 4096 * (n % 8) else 0)
        bench.send(target.read(va, length, None if length else random.getrandbits(32)))
        reads += 1
        if n % 6 == 5 or n < len(sizes):
            await bench.until(lambda: len(bench.frames) == len(target.due), 8000)
            target.judge(bench.replies())
    await bench.settle()
    assert not bench.frames
    assert count(bench, READ) == reads == bench.counts()["rx_packet"]
    assert int(dut.errs_o.value) == 0
    await bench.compare()


#: (latency, memory stall, gaps on the receive side, stalls of the transmit side)
CASES = [(5, 0, 0.0, 0.0), (200, 0, 0.0, 0.0), (40, 120, 0.2, 0.3), (0, 60, 0.5, 0.8)]


@cocotb.test()
@cocotb.parametrize(case=CASES)
async def test_mixed(dut, case: tuple[int, int, float, float]) -> None:
    """READs, atomics and WRITEs of several QPs back to back, up to 16 READs and atomics open on each."""
    latency, stall, gap, tx_stall = case
    bench, rkey = await ready(dut, latency, stall, rx_gap=gap, tx_stall=tx_stall)
    targets = [await program(bench, qpi, rkey) for qpi in range(6)]
    seen: dict[int, list[Reply]] = {t.qpi: [] for t in targets}
    answered = dict.fromkeys(seen, 0)  # READs and atomics whose last response is here
    sent = dict.fromkeys(seen, 0)
    total = {"reads": 0, "atomics": 0, "writes": 0}

    def take() -> None:
        for reply in bench.replies():
            seen[reply.qpi].append(reply)
            answered[reply.qpi] += reply.opcode in (READ_LAST, READ_ONLY, ATOMIC_ACK)

    for _ in range(600):
        target = random.choice(targets)
        kind = random.choice(["read", "atomic", "write", "write"])
        if kind != "write":
            while sent[target.qpi] - answered[target.qpi] >= 16:
                await bench.cycle()
                take()
            sent[target.qpi] += 1
        # READs have the lower part of the memory, WRITEs a part of each QP, atomics a word or two of each
        if kind == "read":
            length = random.choice([0, 1, 64, 256, 257, 1000, random.randrange(5000)])
            va = random.randrange(0x400, 0x10000 - length)
            bench.send(target.read(va, length))
            total["reads"] += 1
        elif kind == "atomic":
            va = 0x30000 + 16 * target.qpi + 8 * random.randrange(2)
            opcode = random.choice([CAS64, FA64, MCAS64, MFA64, MCAS32, MFA32])
            if opcode in (MCAS32, MFA32):
                va += random.choice([0, 4])
            size = 4 if opcode in (MCAS32, MFA32) else 8
            ones = (1 << 8 * size) - 1
            old = int.from_bytes(bench.memory[va : va + size], "little")
            compare = random.choice([old, random.getrandbits(64)]) & ones
            if opcode in (FA64, MFA64, MFA32):
                compare = random.choice([0, ones, random.getrandbits(64) & ones]) if opcode != FA64 else 0
            masks = (random.getrandbits(64) & ones, random.choice([0, ones, 0xFF]) & ones)
            bench.send(target.atomic(opcode, va, random.getrandbits(64) & ones, compare, masks))
            total["atomics"] += 1
        else:
            data = random.randbytes(random.randrange(1, min(target.size, 700)))
            va = 0x12000 + 0x2000 * target.qpi + random.randrange(0x1000)
            bench.send(target.write(va, data, random.random() < 0.7))
            total["writes"] += 1
        take()
    await bench.until(lambda: not bench.wire, 200_000)
    for _ in range(300):
        await bench.idle(200)
        take()
        if all(sent[q] == answered[q] for q in sent):
            break
    await bench.idle(3 * latency + 500)
    take()
    for target in targets:
        target.judge(seen[target.qpi])
    assert count(bench, READ) == total["reads"] and count(bench, ATOMIC) == total["atomics"]
    assert bench.counts()["rx_packet"] == sum(total.values())
    assert int(dut.errs_o.value) == 0
    assert count(bench, RD_TOO_MANY) == 0
    await bench.compare()


@cocotb.test()
async def test_refusals(dut) -> None:
    """Every reason for which a READ or atomic is refused: NAK, its counter, no access; the QP goes to ERR."""
    bench, rkey = await ready(dut)
    base, room = REGION
    poor = await bench.set_mr(MRN + 1, base, room, rights=3)  # neither remote read nor remote atomic
    huge = (1 << 31) + 1

    def read(va: int = 0x2000, key: int = rkey, length: int = 100) -> tuple[int, bytes]:
        return READ_REQ, reth(va, key, length)

    def atomic(opcode: int = FA64, va: int = 0x2000, key: int = rkey) -> tuple[int, bytes]:
        return opcode, atomic_eth(opcode, va, key, 1)

    cases: list[tuple[str, tuple[int, bytes], int, dict[str, object]]] = [
        ("read too long", read(length=huge), NAK_INV, {}),
        ("QP without read right", read(), NAK_INV, {"rem_read": False}),
        ("QP without atomic right", atomic(), NAK_INV, {"rem_atomic": False}),
        ("read key tag", read(key=rkey ^ 1), NAK_ACC, {}),
        ("read key index", read(key=rkey ^ 1 << 20), NAK_ACC, {}),
        ("read region right", read(key=poor), NAK_ACC, {}),
        ("read below", read(base - 1), NAK_ACC, {}),
        ("read above", read(base + room - 99), NAK_ACC, {}),
        ("read wraps", read((1 << 64) - 50), NAK_ACC, {}),
        ("atomic key", atomic(key=rkey ^ 1), NAK_ACC, {}),
        ("atomic region right", atomic(key=poor), NAK_ACC, {}),
        ("atomic above", atomic(va=base + room), NAK_ACC, {}),
        ("atomic below", atomic(va=base - 8), NAK_ACC, {}),
    ]
    for opcode in (CAS64, FA64, MCAS64, MFA64, MCAS32, MFA32):
        step = 2 if opcode in (MCAS32, MFA32) else 4
        for off in (1, step, 2 * step - 1):
            cases.append((f"{opcode:#x} misaligned by {off}", atomic(opcode, 0x2000 + off), NAK_INV, {}))
        cases.append((f"{opcode:#x} misaligned and wrong key", atomic(opcode, 0x2001, rkey ^ 1), NAK_INV, {}))
    for n, (name, (opcode, ext), syndrome, changes) in enumerate(cases):
        target = await program(bench, n % 8, rkey, **changes)
        bench.send(target.write(0x3000, b"before"))
        await bench.settle()
        before = bench.counts()
        target.judge(bench.replies())
        bench.send(good(target.qpi, opcode=opcode, psn=target.psn, ext=ext, ack_req=True))
        await bench.settle()
        assert bench.replies() == [Reply(target.qpi, ACK_OP, target.psn, syndrome, target.msn)], name
        moved = {k: v - before.get(k, 0) for k, v in bench.counts().items() if v != before.get(k, 0)}
        assert moved == {"rx_packet": 1, "tx_response": 1, str(NAK_TX + syndrome - NAK_SEQ): 1}, name
        assert int(dut.errs_o.value) == int(dut.asyncs_o.value) == n + 1, name
        assert int(dut.err_qpi_o.value) == target.qpi, name
        await bench.stop_qp(target.qpi)
    assert int(dut.gathers_o.value) == int(dut.atomics_o.value) == 0, "a refused request reads nothing"
    await bench.compare()


@cocotb.test()
async def test_inside_a_write(dut) -> None:
    """READ or atomic in the middle of a WRITE: a sequence error; what was written stands."""
    bench, rkey = await ready(dut)
    for opcode in (READ_REQ, FA64, MCAS32):
        target = await program(bench, 3, rkey, 1)
        data = random.randbytes(256)
        bench.memory[0x2000:0x2100] = data
        bench.send(
            good(3, opcode=FIRST, psn=target.psn, payload=data, ext=reth(0x2000, rkey, 300), ack_req=False)
        )
        ext = reth(0x2000, rkey, 8) if opcode == READ_REQ else atomic_eth(opcode, 0x2000, rkey, 1)
        psn = (target.psn + 1) % MOD
        bench.send(good(3, opcode=opcode, psn=psn, ext=ext, ack_req=True))
        # what comes behind the NAK is dropped
        bench.send(good(3, opcode=LAST, psn=psn, payload=bytes(44), ack_req=True))
        await bench.settle()
        assert bench.replies() == [Reply(3, ACK_OP, psn, NAK_INV, 0)]
        await bench.stop_qp(3)
    assert bench.counts()["qp"] == 3
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(places=[0, 1, 3, 16])
async def test_table_full(dut, places: int) -> None:
    """One READ or atomic more than the table holds: NAK 1 behind the answers to those in it."""
    bench, rkey = await ready(dut)
    for kinds in ("read", "atomic", "both"):
        bench.tx_stall = 1.0
        target = await program(bench, 5, rkey, 5, max_dest_rd=places)
        other = await program(bench, 6, rkey, 5)
        # the framer is full, so that no place gets free
        bench.send(other.read(0x10000, 30_000))
        await bench.idle(300)
        before, errs = count(bench, RD_TOO_MANY), int(dut.errs_o.value)
        for n in range(places):
            if kinds == "read" or (kinds == "both" and n % 2):
                bench.send(target.read(0x2000 + 3 * n, 40))
            else:
                bench.send(target.atomic(FA64, 0x30000, n + 1))
        bench.send(good(5, opcode=READ_REQ, psn=target.psn, ext=reth(0x2000, rkey, 8)))
        target.due.append(Reply(5, ACK_OP, target.psn, NAK_INV, target.msn))
        # nothing leaves, yet the other QP's requests are taken
        for n in range(40):
            bench.send(other.write(0x8000 + 100 * n, random.randbytes(90)))
        bench.send(other.read(0x4000, 10))
        await bench.until(lambda: not bench.wire, 5000)
        await bench.idle(300)
        assert not bench.frames
        assert count(bench, RD_TOO_MANY) == before + 1
        bench.tx_stall = 0.0
        await bench.idle(1500)
        replies = bench.replies()
        target.judge([r for r in replies if r.qpi == 5])
        other.judge([r for r in replies if r.qpi == 6])
        assert int(dut.errs_o.value) == errs + 1
        await bench.reset_qp(5)
        await bench.reset_qp(6)
    # a place is free again when the last response is with the framer: as many as the table holds, for ever
    if places:
        target = await program(bench, 5, rkey, 5, max_dest_rd=places)
        for _ in range(5):
            for n in range(places):
                bench.send(target.read(0x2000 + n, 30) if n % 2 else target.atomic(FA64, 0x30000, 1))
            await bench.until(lambda: len(bench.frames) == len(target.due), 8000)
            target.judge(bench.replies())
    await bench.compare()


@cocotb.test()
async def test_acks_between(dut) -> None:
    """ACKs of WRITEs before, between and behind READs and atomics leave in their place, or are covered."""
    bench, rkey = await ready(dut, 150)
    target = await program(bench, 0, rkey, 1)
    for _ in range(12):
        for _ in range(random.randrange(1, 6)):
            way = random.random()
            if way < 0.4:
                bench.send(target.read(random.randrange(0x400, 0x8000), random.randrange(1500)))
            elif way < 0.6:
                bench.send(target.atomic(FA64, 0x30000, random.getrandbits(60)))
            for _ in range(random.randrange(3)):
                bench.send(target.write(0x12000 + random.randrange(0x4000), random.randbytes(200)))
        await bench.until(lambda: not bench.wire, 5000)
        await bench.idle(1800)
        target.judge(bench.replies())
    # a NAK 0 and what is executed behind it
    bench.send(target.read(0x2000, 1000))
    bench.send(good(0, psn=(target.psn + 3) % MOD, payload=b"lost", ext=reth(0x9000, rkey, 4)))
    target.due.append(Reply(0, ACK_OP, target.psn, NAK_SEQ, target.msn))
    await bench.settle(400)
    replies = bench.replies()
    assert replies == target.due
    target.due.clear()
    bench.send(target.atomic(FA64, 0x30000, 5))
    await bench.settle(400)
    target.judge(bench.replies())
    await bench.compare()


@cocotb.test()
async def test_wait_for_writes(dut) -> None:
    """READ and atomic of a QP see its WRITEs: they begin after the write responses of all of them."""
    bench, rkey = await ready(dut, 300)
    target = await program(bench, 0, rkey, 5)
    for n in range(6):
        at = 0x8000 + 0x200 * n
        bench.send(target.write(at, random.randbytes(300), ack_req=False))
        bench.send(target.atomic(FA64, at + 8, 77) if n % 2 else target.read(at + 1, 200))
    reads = int(dut.gathers_o.value) + int(dut.atomics_o.value)
    await bench.until(lambda: int(dut.inbounds_o.value) == 1)
    for _ in range(300):
        await bench.cycle()
        assert int(dut.gathers_o.value) + int(dut.atomics_o.value) == reads, "before the write response"
    await bench.until(lambda: len(bench.frames) >= 6, 10_000)
    await bench.settle(600)
    target.judge(bench.replies())
    await bench.compare()


def split(length: int, size: int) -> Iterator[tuple[int, int]]:
    """Offset and bytes of each packet."""
    for at in range(0, length, size):
        yield at, min(size, length - at)


@cocotb.test()
@cocotb.parametrize(stall=[0, 100])
async def test_bus_error_in_a_read(dut, stall: int) -> None:
    """The packet that failed is NAK 3, earlier ones stand, later answers of the QP do not leave."""
    bench, rkey = await ready(dut, 60, stall)
    dut.fault_i.value = 1
    dut.fault_beat_i.value = 0x6000 // 64
    errs = 0
    for bad in range(6):
        target = await program(bench, 1, rkey, 2)
        other = await program(bench, 2, rkey, 2)
        bench.send(target.write(0x20000, b"early"))
        start = 0x6000 - 512 * bad - 7
        bench.send(target.read(start, 6 * 512))
        del target.due[bad + (bad == 0) :]  # the failing beat is in packet `bad`, or in the first two pages
        parts = list(split(6 * 512, 512))
        failing = next(
            k for k, (at, n) in enumerate(parts) if start + at + n > 0x6000 and start + at < 0x6040
        )
        del target.due[failing:]
        psn = (target.psn - 6 + failing) % MOD
        target.due.append(Reply(1, ACK_OP, psn, NAK_OP, target.msn))
        due = list(target.due)
        # all behind it: another READ, an atomic, a WRITE that asks for its ACK
        memory = bytes(bench.memory)
        frames = [target.read(0x2000, 700), target.atomic(FA64, 0x30000, 1), target.write(0x21000, b"late")]
        bench.memory[:] = memory
        for frame in frames:
            bench.send(frame)
        bench.send(other.read(0x2000, 3000))
        bench.send(other.write(0x22000, b"beside"))
        await bench.until(lambda: not bench.wire, 3000)
        await bench.idle(2500)
        replies = bench.replies()
        mine = [r for r in replies if r.qpi == 1]
        acks = [r for r in mine if r.opcode == ACK_OP and r.syndrome == ACK]
        assert [r for r in mine if r not in acks] == due, f"packet {bad}: {mine}"
        assert all(r.psn == (psn - failing - 1) % MOD for r in acks), f"an ACK behind the failure: {acks}"
        other.judge([r for r in replies if r.qpi == 2])
        errs += 1
        assert int(dut.errs_o.value) == int(dut.asyncs_o.value) == errs and int(dut.err_qpi_o.value) == 1
        assert count(bench, BUS_GATHER) >= errs and count(bench, NAK_TX + 3) == errs
        # the WRITE and the atomic behind it were executed or not, as they came before or after the NAK: both
        # may overtake the memory reads of the READ
        word = int.from_bytes(memory[0x30000:0x30008], "little")
        allowed = {0x21000: b"late", 0x30000: (word + 1 & (1 << 64) - 1).to_bytes(8, "little")}
        for at, done in allowed.items():
            end = at + len(done)
            dut.peek_beat_i.value = at // 64
            await bench.cycle()
            bench.memory[at:end] = int(dut.peek_data_o.value).to_bytes(64, "little")[: len(done)]
            assert bytes(bench.memory[at:end]) in (done, memory[at:end])
        await bench.reset_qp(1)
        await bench.reset_qp(2)
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(on_write=[False, True])
async def test_bus_error_of_an_atomic(dut, on_write: bool) -> None:
    """NAK 3 with the atomic's PSN and the count before it; those behind it are not executed."""
    bench, rkey = await ready(dut, 30)
    dut.fault_i.value = 1
    dut.fault_writes_i.value = on_write
    dut.fault_beat_i.value = 0x6000 // 64
    for n in range(4):
        target = await program(bench, 1, rkey, 2)
        other = await program(bench, 2, rkey, 2)
        for _ in range(n):
            bench.send(target.atomic(FA64, 0x30000, 3) if n % 2 else target.read(0x2000, 600))
        memory, psn, msn = bytes(bench.memory), target.psn, target.msn
        due = list(target.due)
        bench.send(target.atomic(FA64, 0x6008, 1))
        bench.send(target.atomic(FA64, 0x30000, 1))
        bench.send(target.read(0x2000, 10))
        bench.send(target.atomic(MFA32, 0x30008, 1))
        bench.memory[:] = memory
        bench.send(other.atomic(FA64, 0x30010, 9))
        await bench.until(lambda: not bench.wire, 3000)
        await bench.idle(1500)
        replies = bench.replies()
        mine = [r for r in replies if r.qpi == 1]
        assert mine == [*due, Reply(1, ACK_OP, psn, NAK_OP, msn)], f"{mine}"
        other.judge([r for r in replies if r.qpi == 2])
        assert count(bench, BUS_ATOMIC) == n + 1
        assert int(dut.errs_o.value) == int(dut.asyncs_o.value) == n + 1
        await bench.reset_qp(1)
        await bench.reset_qp(2)
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(latency=[3, 100])
async def test_invalidated_in_a_read(dut, latency: int) -> None:
    """A region goes in mid-READ: NAK 2 at the next packet; no access once the invalidation is over."""
    bench, rkey = await ready(dut, latency)
    for n in range(12):
        # a transmit side that stands still keeps the READ in its middle
        bench.tx_stall = 0.9 if n % 2 else 0.0
        target = await program(bench, 1, rkey, 2)
        other = await program(bench, 2, await bench.set_mr(MRN + 1, *REGION, rights=ALL_RIGHTS), 2)
        length = 0x20000
        first = target.psn
        bench.send(target.read(0x1000, length))
        due = list(target.due)
        target.due.clear()
        bench.send(target.atomic(FA64, 0x30000, 0) if n % 3 else target.read(0x2000, 10))
        await bench.until(lambda k=n: len(bench.frames) > 3 * k, 20_000)
        dut.mr_drain_i.value = 1
        await bench.set_mr(MRN, *REGION, rights=ALL_RIGHTS, valid=False)
        await bench.idle(2)
        await bench.until(lambda: dut.mr_drain_busy_o.value == 0, 20_000)
        dut.mr_drain_i.value = 0
        reads, atomics = int(dut.gathers_o.value), int(dut.atomics_o.value)
        await bench.idle(600 + 4 * latency)
        assert (int(dut.gathers_o.value), int(dut.atomics_o.value)) == (reads, atomics), "read afterwards"
        # the other region works on
        bench.tx_stall = 0.0
        bench.send(other.read(0x1000, 2000))
        await bench.idle(3000 + 4 * latency)
        replies = bench.replies()
        mine = [r for r in replies if r.qpi == 1]
        assert mine[:-1] == due[: len(mine) - 1], "data before the NAK"
        want = Reply(1, ACK_OP, (first + len(mine) - 1) % MOD, NAK_ACC, 1)
        assert mine[-1] == want and len(mine) < len(due), f"{mine[-1]}, want {want}"
        other.judge([r for r in replies if r.qpi == 2])
        assert int(dut.errs_o.value) == int(dut.asyncs_o.value) == n + 1
        await bench.reset_qp(1)
        await bench.reset_qp(2)
        assert await bench.set_mr(MRN, *REGION, rights=ALL_RIGHTS) == rkey
    await bench.compare()


@cocotb.test()
async def test_invalidated_before_an_atomic(dut) -> None:
    """The key is judged again when an atomic is executed: NAK 2 with the count before it."""
    bench, rkey = await ready(dut, 40)
    target = await program(bench, 1, rkey, 2)
    other = await program(bench, 2, rkey, 2)
    memory = bytes(bench.memory)
    # each takes two round trips of the memory, so most of them still wait when the region changes
    for _ in range(10):
        bench.send(other.atomic(FA64, 0x30040, 1))
    due = list(other.due)
    psn, msn = target.psn, target.msn
    bench.send(target.atomic(FA64, 0x30000, 5))
    bench.memory[:] = memory
    await bench.until(lambda: not bench.wire, 500)
    await bench.set_mr(MRN, *REGION, rights=7)
    before = int(dut.atomics_o.value)
    await bench.idle(3000)
    done = int(dut.atomics_o.value)
    # one is under way and two wait in the unit, under the old entry
    assert 0 < before <= done <= before + 3 < 10
    replies = bench.replies()
    assert [r for r in replies if r.qpi == 1] == [Reply(1, ACK_OP, psn, NAK_ACC, msn)]
    refused = Reply(2, ACK_OP, due[done].psn, NAK_ACC, (due[done].msn - 1) % MOD)
    assert [r for r in replies if r.qpi == 2] == [*due[:done], refused]
    word = int.from_bytes(memory[0x30040:0x30048], "little") + done & (1 << 64) - 1
    bench.memory[0x30040:0x30048] = word.to_bytes(8, "little")
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(latency=[0, 20, 120], stall=[0, 80])
async def test_contended_word(dut, latency: int, stall: int) -> None:
    """Atomics of several QPs and WRITEs of others on one word: all values fit one serial order."""
    bench, rkey = await ready(dut, latency, stall)
    adders = [await program(bench, qpi, rkey, 5) for qpi in range(3)]
    writers = [await program(bench, 8 + qpi, rkey, 5) for qpi in range(2)]
    word = 0x30008
    seen: dict[int, list[Reply]] = {q: [] for q in (0, 1, 2, 8, 9)}
    # a WRITE sets {its number, 0}, an addition adds 1: a value tells after which WRITE, as which, it came
    start = int.from_bytes(bench.memory[word : word + 8], "little")
    values = {0: start}
    sent = dict.fromkeys(range(3), 0)

    def take() -> None:
        for reply in bench.replies():
            seen[reply.qpi].append(reply)

    for n in range(160):
        adder = random.choice(adders)
        while sent[adder.qpi] - len(seen[adder.qpi]) >= 12:
            await bench.cycle()
            take()
        sent[adder.qpi] += 1
        bench.send(adder.atomic(FA64, word, 1))
        if n % 4 == 3:
            number = len(values)
            values[number] = number << 32
            # the word alone, or at the end of a longer packet, whose other bytes do not change
            data = values[number].to_bytes(8, "little")
            before = random.choice([0, 8, 100])
            packet = bytes(bench.memory[word - before : word]) + data
            bench.send(random.choice(writers).write(word - before, packet))
        if random.random() < 0.2:
            await bench.idle(random.randrange(200))
            take()
    await bench.until(lambda: not bench.wire, 200_000)
    for _ in range(400):
        await bench.idle(100)
        take()
        if all(sent[q] == len(seen[q]) for q in sent):
            break
    found: dict[int, list[int]] = {}
    for qpi in sent:
        for reply in seen[qpi]:
            assert reply.opcode == ATOMIC_ACK and reply.syndrome == ACK, f"{reply}"
            value = int.from_bytes(reply.data, "big")
            number = value >> 32 if value >> 32 in values and value & 0xFFFF_FFFF < 1000 else 0
            found.setdefault(number, []).append(value - values[number])
    for number, steps in found.items():
        assert sorted(steps) == list(range(len(steps))), f"after WRITE {number}: {sorted(steps)}"
    assert sum(map(len, found.values())) == sum(sent.values())
    await bench.idle(3 * latency + 300)
    dut.peek_beat_i.value = word // 64
    await bench.cycle()
    final = int(dut.peek_data_o.value) >> 8 * (word % 64) & (1 << 64) - 1
    ends = {values[n] + len(found.get(n, [])) for n in values}
    assert final in ends, f"{final:#x} is the end of no WRITE's run"
    bench.memory[word : word + 8] = final.to_bytes(8, "little")
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(latency=[3, 150])
async def test_reset_in_the_middle(dut, latency: int) -> None:
    """A QP is reset with READs, atomics and ACKs under way: it drains, others go on, and it works again."""
    bench, rkey = await ready(dut, latency)
    other = await program(bench, 2, rkey, 3)
    others: list[Reply] = []
    for n in range(16):
        bench.tx_stall = random.choice([0.0, 0.7])
        target = await program(bench, 1, rkey, 1)
        memory = bytes(bench.memory)
        for _ in range(random.randrange(1, 10)):
            way = random.random()
            if way < 0.5:
                bench.send(target.read(0x1000, random.choice([10, 2000, 30_000])))
            elif way < 0.8:
                bench.send(target.atomic(CAS64, 0x30000, 0, 1))  # changes nothing: the word is never 1
            else:
                bench.send(target.write(0x21000, b"data"))
        assert bytes(bench.memory[0x30000:0x30008]) == memory[0x30000:0x30008]
        bench.send(other.read(0x5000, 3000))
        bench.send(other.write(0x22000 + n, b"other"))
        if n % 2:
            await bench.until(lambda: not bench.wire, 5000)
        await bench.idle(random.randrange(300))
        await bench.until(lambda: not bench.wire, 5000)
        await bench.reset_qp(1, 20_000)
        replies = bench.replies()
        mine = [r for r in replies if r.qpi == 1]
        target.judge(mine, whole=False)
        others += [r for r in replies if r.qpi == 2]
        # nothing of before comes later
        again = await program(bench, 1, rkey, 4)
        bench.send(again.atomic(FA64, 0x30100, 7))
        bench.send(again.read(0x2000, 3000))
        bench.send(again.write(0x23000, b"again"))
        bench.tx_stall = 0.0
        await bench.idle(1200 + 6 * latency)
        replies = bench.replies()
        again.judge([r for r in replies if r.qpi == 1])
        others += [r for r in replies if r.qpi == 2]
        await bench.reset_qp(1)
        # the first WRITE of the reset QP was executed or not
        dut.peek_beat_i.value = 0x21000 // 64
        await bench.cycle()
        bench.memory[0x21000:0x21004] = int(dut.peek_data_o.value).to_bytes(64, "little")[:4]
    other.judge(others)
    assert int(dut.errs_o.value) == 0
    await bench.compare()


@cocotb.test()
async def test_responses_leave_in_err(dut) -> None:
    """A QP that goes to ERR answers what it had accepted; what comes after is dropped."""
    bench, rkey = await ready(dut, 100)
    target = await program(bench, 4, rkey, 1)
    bench.send(target.write(0x20000, b"first"))
    bench.send(target.read(0x1000, 5000))
    bench.send(target.atomic(FA64, 0x30000, 1))
    bench.send(target.read(0x2000, 700))
    await bench.until(lambda: not bench.wire)
    await bench.idle(12)
    await bench.stop_qp(4)
    bench.send(good(4, opcode=READ_REQ, psn=target.psn, ext=reth(0x2000, rkey, 8)))
    await bench.idle(2500)
    target.judge(bench.replies())
    assert bench.counts()["qp"] == 1 and int(dut.errs_o.value) == 0
    await bench.compare()
