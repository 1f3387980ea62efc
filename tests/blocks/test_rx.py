"""Receive checks of the data path (rtl/wire/rx_strip.sv, rx_parse.sv, rx_verdict.sv, first rules of
rtl/responder).

Sweep: each check of wire.md 1 broken alone, and together with every later one; frames of 1 to 80 bytes, of
one beat back to back, far longer than any packet; bytes behind the IP length; opcodes of all kinds; reserved
syndromes; fields that are ignored (source port, TTL, TOS, UDP checksum, SE, MigReq, Ethernet source,
identification).
Stimulus: frames on the link, with and without gaps.
Checks: exactly one counter moves for each frame, a dropped frame writes nothing, a good WRITE behind it still
works.
Timing: frames of one beat and small WRITEs 5 cycles each; 4 KiB WRITEs at the link's pace.
Not proved here: sequences of packets (test_rx_responder.py).
"""

import random

import cocotb

from tests.blocks import rx_driver
from tests.blocks.rx_driver import ACK, FIRST, ONLY, ONLY_IMM, Bench, Frame, Peer, aeth, good, reth

BENCH = rx_driver.BENCH
TARGET = 0x8000


async def ready(dut, **knobs: int) -> tuple[Bench, int]:
    """A bench with QPs 0 to 3 in RTS and one region for all of the memory."""
    bench = Bench(dut)
    await bench.start(**knobs)
    for qpi in range(4):
        await bench.set_qp(qpi, Peer(sport=0xC000 + qpi, peer_qpn=100 + qpi))
    return bench, await bench.set_mr(7, 0, rx_driver.SIZE)


def write(rkey: int, psn: int, data: bytes, **changes: object) -> Frame:
    """A WRITE Only of `data` to TARGET."""
    return good(
        **{"psn": psn, "payload": data, "ext": reth(TARGET, rkey, len(data)), "ack_req": True} | changes
    )


#: each check in its order: name of the counter and what breaks it
BREAKS: list[tuple[str, dict[str, object]]] = [
    ("mac", {"dst_mac": rx_driver.MAC ^ 1}),
    ("ethertype", {"ethertype": 0x86DD}),
    ("ipv4", {"bad_checksum": True}),
    ("ip_dst", {"dst_ip": rx_driver.IP ^ 0x8000_0000}),
    ("udp_port", {"dport": 4790}),
    ("length", {"udp_length": 100}),
    ("icrc", {"bad_icrc": True}),
    ("tver", {"tver": 1}),
    ("opcode", {"opcode": 0x15}),
    ("pkey", {"pkey": 0x7FFF}),
    ("qp", {"dest_qpn": 2 + 9}),
    ("ip_src", {"src_ip": rx_driver.PEER_IP ^ 1}),
]
#: other ways to fail a check
MORE: list[tuple[str, dict[str, object]]] = [
    ("mac", {"dst_mac": 0xFFFF_FFFF_FFFF}),
    ("mac", {"dst_mac": rx_driver.MAC ^ 1 << 47}),
    ("ipv4", {"version_ihl": 0x46}),
    ("ipv4", {"version_ihl": 0x65}),
    ("ipv4", {"fragment": 0x2000}),
    ("ipv4", {"fragment": 0x4001}),
    ("ipv4", {"protocol": 6}),
    ("length", {"ip_length": 76 + 4}),  # longer than the frame
    ("length", {"ip_length": 44, "udp_length": 24}),  # too short for a RETH
    ("length", {"payload": b"", "ext": reth(TARGET, 0, 0), "pad": 3}),
    ("length", {"opcode": ACK, "ext": aeth(0x1F, 0), "payload": b"1234"}),
    ("length", {"payload": bytes(4100)}),
    ("length", {"payload": bytes(9000)}),
    ("qp", {"dest_qpn": 0}),
    ("qp", {"dest_qpn": 1}),
    ("qp", {"dest_qpn": 66}),
    ("qp", {"dest_qpn": 2 + 64}),
    ("qp", {"dest_qpn": 2 | 1 << 23}),
    ("syndrome", {"opcode": ACK, "ext": aeth(0x40, 0), "payload": b""}),
    ("syndrome", {"opcode": ACK, "ext": aeth(0x80, 0), "payload": b""}),
    ("syndrome", {"opcode": ACK, "ext": aeth(0xE0, 0), "payload": b""}),
    ("syndrome", {"opcode": ACK, "ext": aeth(0x64, 0), "payload": b""}),
    ("syndrome", {"opcode": 0x12, "ext": aeth(0x7F, 0) + bytes(8), "payload": b""}),
]


async def dropped(bench: Bench, frame: Frame | bytes, counter: str, number: int) -> None:
    """Sends a frame that has to move exactly one counter and nothing else."""
    before = bench.counts()
    bench.send(frame)
    await bench.settle()
    moved = {k: v - before.get(k, 0) for k, v in bench.counts().items() if v != before.get(k, 0)}
    assert moved == {counter: 1}, f"frame {number}: counters {moved}, want only {counter}"
    assert not bench.frames and not bench.responses, "a dropped frame is answered"


@cocotb.test()
async def test_each_check(dut) -> None:
    """Every check alone, and with every later check broken as well: the first one counts."""
    bench, rkey = await ready(dut)
    psn = 0
    for n, (counter, change) in enumerate(BREAKS):
        together: dict[str, object] = {}
        for _, later in reversed(BREAKS[n:]):
            together |= later
        for changes in (change, together):
            await dropped(bench, write(rkey, psn, random.randbytes(16), **changes), counter, n)
        # and the data path still works
        data = random.randbytes(random.randrange(1, 200))
        bench.memory[TARGET : TARGET + len(data)] = data
        bench.send(write(rkey, psn, data))
        await bench.settle()
        psn += 1
        assert [(a.psn, a.syndrome, a.msn) for a in bench.answers()] == [(psn - 1, 0x1F, psn)]
    for n, (counter, change) in enumerate(MORE):
        await dropped(bench, write(rkey, psn, random.randbytes(16), **change), counter, n)
    await bench.compare()


@cocotb.test()
async def test_every_opcode(dut) -> None:
    """Opcodes that wire.md does not name are dropped; the NIC knows all others."""
    bench, _ = await ready(dut)
    known = {*range(0x15), 0xC0, 0xC1, 0xC2, 0xC3}
    sizes = {
        0x06: 16,
        0x0A: 16,
        0x0C: 16,
        0x0B: 20,
        0xC3: 20,
        0x12: 12,
        0x13: 28,
        0x14: 28,
        0xC1: 28,
        0xC2: 28,
        0xC0: 44,
    }
    sizes |= dict.fromkeys((0x03, 0x05, 0x09, 0x0D, 0x0F, 0x10, 0x11), 4)
    for opcode in range(256):
        # ahead of the expected PSN, so that requests count as that and change nothing
        frame = good(opcode=opcode, psn=5, ext=bytes(sizes.get(opcode, 0)))
        bench.send(frame)
        await bench.until(lambda: not bench.wire)
        await bench.idle(20)
    counts = bench.counts()
    responses = range(0x0D, 0x13)
    assert counts["opcode"] == 256 - len(known)
    assert counts["ahead"] == len(known) - len(responses)
    # an ACK is the requester's to judge; nobody waits for the data of the others
    assert counts["rx_packet"] == len(bench.responses) == 1
    assert counts["response"] == len(responses) - 1
    assert "length" not in counts


@cocotb.test()
async def test_ignored_fields(dut) -> None:
    """Fields that a receiver ignores, and bytes behind the IP length."""
    bench, rkey = await ready(dut)
    changes: list[dict[str, object]] = [
        {"sport": 1},
        {"ttl": 1},
        {"tos": 255},
        {"udp_checksum": 0x1234},
        {"se": True},
        {"migreq": False},
        {"src_mac": 0},
        {"ident": 0xABCD},
        {"fragment": 0},
        {"trailer": b"x"},
        {"trailer": random.randbytes(46)},
        {"trailer": random.randbytes(5000)},
    ]
    for psn, change in enumerate(changes):
        data = random.randbytes(random.randrange(1, 300))
        bench.memory[TARGET : TARGET + len(data)] = data
        bench.send(write(rkey, psn, data, **change))
        await bench.settle()
        assert [(a.psn, a.syndrome, a.msn) for a in bench.answers()] == [(psn, 0x1F, psn + 1)], f"{change}"
    await bench.compare()


@cocotb.test()
async def test_sizes(dut) -> None:
    """Frames of every size from 1 byte, cut or padded, between good ones and without a gap."""
    bench, rkey = await ready(dut)
    psn, short, other = 0, 0, 0
    whole = write(rkey, 0, random.randbytes(200)).pack()
    for size in [*range(1, 140), 200, 272, 273]:
        bench.send(whole[:size])
        if size < 58:
            short += 1
        elif size < len(whole):
            other += 1
        else:
            raise AssertionError("the cut frame is whole")
        if size % 8 == 0:
            data = random.randbytes(size)
            bench.memory[TARGET : TARGET + size] = data
            bench.send(write(rkey, psn, data))
            psn += 1
    await bench.settle()
    counts = bench.counts()
    assert (counts["short"], counts["length"], counts["rx_packet"]) == (short, other, psn), counts
    answers = bench.answers()
    assert (answers[-1].psn, answers[-1].msn) == (psn - 1, psn)
    await bench.compare()


@cocotb.test()
async def test_line_rate(dut) -> None:
    """Frames of one beat and small WRITEs 5 cycles each; 4 KiB WRITEs at the link's pace."""
    bench, rkey = await ready(dut, latency=200)
    for n in range(200):
        bench.send(good(n % 4, opcode=ACK, psn=n, ext=aeth(n % 32, n)))
    start = bench.cycles
    await bench.until(lambda: len(bench.responses) == 200)
    assert bench.cycles - start < 5 * 200 + 30, f"{bench.cycles - start} cycles for 200 acknowledgements"
    assert [(a.qpi, a.psn, a.syndrome, a.msn) for a in bench.responses] == [
        (n % 4, n, n % 32, n) for n in range(200)
    ]
    for n in range(60):
        data = random.randbytes(4096)
        addr = 4096 * (n % 32)
        bench.memory[addr : addr + 4096] = data
        bench.send(good(0, psn=n, payload=data, ext=reth(addr, rkey, 4096), ack_req=True))
    beats, start = len(bench.wire), bench.cycles
    await bench.until(lambda: not bench.wire, 10000)
    assert bench.cycles - start < beats / 0.97 + 10, f"{bench.cycles - start} cycles for {beats} beats"
    for n in range(300):
        addr = 0x30000 + 64 * n
        data = random.randbytes(64)
        bench.memory[addr : addr + 64] = data
        qpi = 1 + n % 3
        bench.send(good(qpi, psn=n // 3, payload=data, ext=reth(addr, rkey, 64)))
    start = bench.cycles
    await bench.until(lambda: not bench.wire, 10000)
    assert bench.cycles - start < 5 * 300 + 10, f"{bench.cycles - start} cycles for 300 small WRITEs"
    await bench.settle(200)
    assert bench.counts()["rx_packet"] == 560
    await bench.compare()


@cocotb.test()
async def test_first_packets(dut) -> None:
    """A WRITE First alone, an Only with immediate but no receive queue (RNR NAK), each length of pad."""
    bench, rkey = await ready(dut)
    for pad in range(4):
        data = random.randbytes(13 + pad)
        bench.memory[TARGET : TARGET + len(data)] = data
        bench.send(write(rkey, pad, data))
    first = random.randbytes(4096)
    bench.memory[0x4000 : 0x4000 + 4096] = first
    bench.send(good(1, opcode=FIRST, psn=0, payload=first, ext=reth(0x4000, rkey, 5000), ack_req=True))
    bench.send(
        good(2, opcode=ONLY_IMM, psn=0, payload=b"data", ext=reth(0x6000, rkey, 4) + b"imm!", ack_req=True)
    )
    bench.send(good(3, opcode=ONLY, psn=0, ext=reth(1 << 63, 0xFFFF_FFFF, 0), ack_req=True))
    await bench.settle()
    answers = [(a.qpi, a.psn, a.syndrome, a.msn) for a in bench.answers()]
    assert [a for a in answers if a[0]] == [(1, 0, 0x1F, 0), (2, 0, 0x21, 0), (3, 0, 0x1F, 1)], answers
    assert int(dut.errs_o.value) == int(dut.asyncs_o.value) == 0
    await bench.compare()
