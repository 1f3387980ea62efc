"""Receive parser (rtl/wire/rx_strip.sv, rx_parse.sv, rx_verdict.sv) against two decoders.

Sweep: every opcode of wire.md 2 with random fields of all widths, payload 0 to 4096 bytes around each beat
border and each pad; READ responses, ATOMIC acknowledges and the six atomics among WRITEs, SENDs and frames
that are dropped; bytes behind the IP length.
Stimulus: frames packed by hand from wire.md, with and without gaps; headers taken late or at once, the buffer
read back and released as scatter does it.
Checks: every field of every header, operands of atomics as integers, against what was packed and against the
golden codec (pymodel.formats.packet); payload of WRITEs and READ responses in the buffer, in order; the two
byte orders of an atomic's original value; nothing kept of other opcodes and of dropped frames; counters.
Timing: one-beat frames 5 cycles each, 4 KiB READ responses at the link's pace.
Not proved here: each check alone (test_rx.py).
"""

import random
from collections import deque
from dataclasses import dataclass, field

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, Timer

from pymodel.formats import packet
from tests.blocks.rx_driver import COUNTERS, IP, MAC, Frame
from tests.blocks.test_tx import ACK, ATOMIC_ACK, ATOMICS, EMPTY, OPERANDS, READ_RESPONSES, RETH, Packet

BENCH = {
    "top": "rx_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/*.sv",
        "rtl/wire/icrc_pkg.sv",
        "rtl/wire/rx_*.sv",
        "tests/blocks/sv/rx_bench.sv",
    ],
}
DEPTH = 512
#: opcodes whose payload has a place in memory: SEND, WRITE, READ responses
KEPT = (*range(0x0C), *READ_RESPONSES)
IMMEDIATE = (0x03, 0x05, 0x09, 0x0B)
OPCODES = (*range(0x15), 0xC0, 0xC1, 0xC2, 0xC3)


@dataclass
class Sent:
    """A frame, what stands in it, and the check that drops it ('' if none does)."""

    item: Packet
    frame: bytes
    dest_qpn: int
    src_ip: int
    drop: str = ""

    def check(self, got: dict[str, int]) -> None:
        """Compares the header that came out, by hand and with the golden codec."""
        item = self.item
        (model,) = packet.parse_headers(np.frombuffer(self.frame, np.uint8), 0, len(self.frame))
        assert model["reason"] == 0
        want = {
            "bth": item.opcode,
            "ack_req": item.ack_req,
            "dest_qpn": self.dest_qpn,
            "psn": item.psn,
            "src_ip": self.src_ip,
            "pay_len": len(item.payload),
        }
        decoded = {"pay_len": model["payload_len"], "dest_qpn": model["dest_qp"], "psn": model["psn"]}
        if item.opcode in RETH or item.opcode in ATOMICS:
            want |= {"raddr": item.raddr, "rkey": item.rkey}
            decoded |= {"raddr": model["va"], "rkey": model["rkey"]}
        if item.opcode in RETH:
            want["dma_len"], decoded["dma_len"] = item.dma_len, model["dma_len"]
        if item.opcode in (ACK, ATOMIC_ACK, 0x0D, 0x0F, 0x10):
            want |= {"syndrome": item.syndrome, "msn": item.msn}
            decoded |= {"syndrome": model["syndrome"], "msn": model["msn"]}
        want["se"], decoded["se"] = item.se, model["se"]
        if item.opcode in IMMEDIATE:
            want["imm"], decoded["imm"] = item.imm_data, model["imm"]
        operands = [0, 0, 0, 0]
        if item.opcode in ATOMICS:
            form = ATOMICS[item.opcode]
            mask = (1 << (32 if "I" in form else 64)) - 1
            for n in range(1 if item.opcode == 0x14 else len(form) - 1):
                operands[n] = item.amo[n] & mask
            # the codec shows what stands in the frame; the compare of an ordinary FetchAdd means nothing
            decoded |= {n: model[n] for n in OPERANDS if (item.opcode, n) != (0x14, "compare")}
        want |= dict(zip(OPERANDS, operands, strict=True))
        kept = item.opcode in KEPT and item.payload
        want["beats"] = -(-(40 + len(item.ext()) + len(item.payload)) // 64) if kept else 0
        if kept:
            want["pay_off"] = 40 + len(item.ext())
            # pad may add a beat of its own
            want["beats"] = -(-(want["pay_off"] + len(item.payload) + -len(item.payload) % 4) // 64)
        if item.opcode == ATOMIC_ACK:
            want["beats"] = 1
        for name, value in want.items():
            assert got[name] == value, f"{name} {got[name]:#x}, want {value:#x}: {item}"
        for name, value in decoded.items():
            assert got[name] == int(value), f"{name} {got[name]:#x}, model {int(value):#x}: {item}"

    def check_beats(self, beats: bytes, offset: int) -> None:
        """Compares what was kept of the packet."""
        if self.item.opcode == ATOMIC_ACK:
            value = self.item.value
            assert beats[44:52] == value.to_bytes(8, "little"), f"{beats.hex()} for {value:#x}"
            assert beats[56:60] == (value & 0xFFFF_FFFF).to_bytes(4, "big"), f"{beats.hex()} for {value:#x}"
            return
        payload = self.item.payload
        assert beats[offset : offset + len(payload)] == payload, f"payload of {self.item.opcode:#x}"


@dataclass
class Bench:
    """Drives frames, takes headers and beats; inputs change and outputs are read at falling edges."""

    dut: object
    gap: float = 0.0
    stall: float = 0.0
    wire: deque[tuple[bytes, bool]] = field(default_factory=deque)
    expect: deque[Sent] = field(default_factory=deque)
    at: int = 0  # next beat of the buffer
    cycles: int = 0
    reading: tuple[Sent, int, int] | None = None  # packet, payload offset, beats to come
    data: bytes = b""

    async def start(self) -> None:
        """Resets."""
        dut = self.dut
        for name in ("rx_valid_i", "hdr_ready_i", "rd_en_i", "release_i"):
            getattr(dut, name).value = 0
        dut.mac_i.value, dut.ip_i.value = MAC, IP
        dut.rst_ni.value = 0
        await Timer(10, "ns")
        dut.rst_ni.value = 1
        await FallingEdge(dut.clk_i)

    def send(self, sent: Sent) -> None:
        """Queues a frame."""
        for at in range(0, len(sent.frame), 64):
            self.wire.append((sent.frame[at : at + 64], at + 64 >= len(sent.frame)))
        if not sent.drop:
            self.expect.append(sent)

    async def cycle(self) -> None:
        """One clock cycle."""
        dut = self.dut
        offer = bool(self.wire) and random.random() >= self.gap
        dut.rx_valid_i.value = offer
        if offer:
            data, last = self.wire[0]
            noise = random.getrandbits(512) << 8 * len(data) & (1 << 512) - 1
            dut.rx_data_i.value = int.from_bytes(data, "little") | noise
            dut.rx_keep_i.value = (1 << len(data)) - 1
            dut.rx_last_i.value = last
            if dut.rx_ready_o.value == 1:
                self.wire.popleft()
        # beats of the packet taken before, one a cycle, then the next header
        read = self.reading is not None and self.reading[2] > 0
        dut.rd_en_i.value = read
        dut.release_i.value = read
        dut.rd_addr_i.value = self.at % DEPTH
        ready = self.reading is None and random.random() >= self.stall
        dut.hdr_ready_i.value = ready
        if ready and dut.hdr_valid_o.value == 1:
            self._header()
        await FallingEdge(dut.clk_i)
        self.cycles += 1
        if read and self.reading is not None:
            self.data += int(dut.rd_data_o.value).to_bytes(64, "little")
            sent, offset, left = self.reading
            self.at += 1
            self.reading = (sent, offset, left - 1)
            if left == 1:
                sent.check_beats(self.data, offset)
                self.reading, self.data = None, b""

    def _header(self) -> None:
        names = ("bth", "ack_req", "dest_qpn", "psn", "src_ip", "raddr", "rkey", "dma_len", "syndrome", "msn")
        names += ("pay_len", "pay_off", "beats", "se", "imm", *OPERANDS)
        got = {name: int(getattr(self.dut, f"{name}_o").value) for name in names}
        assert self.expect, f"a packet that nobody sent: {got}"
        sent = self.expect.popleft()
        sent.check(got)
        if got["beats"]:
            self.reading = (sent, got["pay_off"], got["beats"])

    async def drain(self, limit: int) -> None:
        """Until every frame is in and every header and beat out, and a while after."""
        end = self.cycles + limit
        while self.wire or self.expect or self.reading:
            await self.cycle()
            assert self.cycles < end, f"{len(self.expect)} packets missing, {len(self.wire)} beats not taken"
        for _ in range(12):
            await self.cycle()

    def counts(self) -> dict[str, int]:
        """Counters that are not zero, by name."""
        value = int(self.dut.counts_o.value)
        pairs = ((name, value >> 16 * n & 0xFFFF) for n, name in enumerate(COUNTERS))
        return {name: count for name, count in pairs if count}


#: what drops a frame: counter and change of the frame
DROPS: list[tuple[str, dict[str, object]]] = [
    ("icrc", {"bad_icrc": True}),
    ("mac", {"dst_mac": MAC ^ 2}),
    ("ipv4", {"bad_checksum": True}),
    ("pkey", {"pkey": 0x7FFF}),
]


def make(item: Packet, drop: tuple[str, dict[str, object]] | None = None, trailer: bytes = b"") -> Sent:
    """The frame of `item`, with the AckReq that it says also on responses, which receivers have to stand."""
    name, changes = drop or ("", {})
    dest, src = random.getrandbits(24), random.getrandbits(32)
    ext = item.ext()
    if item.opcode in (0x0D, 0x0F, 0x10):
        ext = bytes([item.syndrome]) + ext[1:]
    if item.opcode == 0x14:
        ext = ext[:20] + random.randbytes(8)  # its compare value means nothing
    fields: dict[str, object] = {
        "opcode": item.opcode,
        "dest_qpn": dest,
        "psn": item.psn,
        "payload": item.payload,
        "ack_req": bool(item.ack_req),
        "se": bool(item.se),
        "ext": ext,
        "src_ip": src,
        "trailer": trailer,
    }
    return Sent(item, Frame(**(fields | changes)).pack(), dest, src, name)


def random_item(n: int) -> Packet:
    """Packet number `n`: every opcode in turn, then at random."""
    opcode = OPCODES[n] if n < len(OPCODES) else random.choice(OPCODES)
    if opcode in (*EMPTY, ACK, ATOMIC_ACK):
        return Packet(opcode, syndrome=random.getrandbits(8))
    length = random.choice([0, n % 260, 256, 1024, random.randrange(4097), 4093, 4095, 4096])
    return Packet(opcode, random.randbytes(length), syndrome=random.getrandbits(8))


@cocotb.test()
@cocotb.parametrize(knobs=[(0.0, 0.0), (0.0, 0.8), (0.5, 0.0), (0.3, 0.3)])
async def test_every_opcode(dut, knobs: tuple[float, float]) -> None:
    """All opcodes with random fields, one in five frames dropped, some with bytes behind their end."""
    bench = Bench(dut, *knobs)
    await bench.start()
    want: dict[str, int] = {}
    for n in range(500):
        drop = random.choice(DROPS) if n >= len(OPCODES) and random.random() < 0.2 else None
        trailer = random.randbytes(random.choice([0, 0, 0, 1, 4, 60, 200]))
        sent = make(random_item(n), drop, trailer)
        if drop:
            want[drop[0]] = want.get(drop[0], 0) + 1
        bench.send(sent)
    await bench.drain(300 * 500)
    assert bench.counts() == want


@cocotb.test()
@cocotb.parametrize(opcode=[0x0D, 0x0E, 0x07, 0x0A])
async def test_every_length(dut, opcode: int) -> None:
    """Payload behind 40, 44 and 56 bytes of headers, each length up to four beats, short ones between."""
    bench = Bench(dut)
    await bench.start()
    for length in range(260):
        bench.send(make(Packet(opcode, random.randbytes(length))))
        bench.send(make(Packet(random.choice([ATOMIC_ACK, 0xC0, 0xC3, 0x13]))))
    await bench.drain(20000)
    assert not bench.counts()


@cocotb.test()
@cocotb.parametrize(opcode=[*ATOMICS, ACK, ATOMIC_ACK, 0x10])
async def test_rate(dut, opcode: int) -> None:
    """Packets without payload, and READ responses of 64 bytes, at most 5 cycles each."""
    bench = Bench(dut)
    await bench.start()
    for _ in range(200):
        bench.send(make(Packet(opcode, random.randbytes(64 if opcode == 0x10 else 0))))
    await bench.drain(1100)


@cocotb.test()
async def test_rate_responses(dut) -> None:
    """READ responses of 4 KiB at the link's pace."""
    bench = Bench(dut)
    await bench.start()
    for _ in range(30):
        bench.send(make(Packet(0x0E, random.randbytes(4096))))
    beats, start = len(bench.wire), bench.cycles
    while bench.wire:
        await bench.cycle()
    assert beats >= 0.97 * (bench.cycles - start) - 8, f"{bench.cycles - start} cycles for {beats} beats"
    await bench.drain(1000)
