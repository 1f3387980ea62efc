"""The framer (rtl/wire/tx_header.sv, tx_merge.sv, tx_icrc.sv, tx_eth.sv) against two encoders.

Sweep: every packet that the NIC sends: WRITE and SEND opcodes with and without immediate, READ requests, the
six atomics, READ responses (with AETH and without), ACK, NAK and ATOMIC acknowledges; random fields of all
widths, payload 0 to 4096 bytes around each beat border and each pad; 64 contexts.
Stimulus: packets, payload and acknowledgements at the block's ports, each with gaps; an output that stalls.
Checks: each frame byte for byte against a frame packed by hand from wire.md (ICRC by zlib) and against the
golden codec (pymodel.formats.packet); packets and acknowledgements each in their order; fields that a packet
does not have may hold anything; counters; nothing left for a reset.
Timing: packets without payload and of 64 bytes at most 5 cycles each, 4 KiB responses at the link's pace.
Not proved here: that payload is what memory holds (test_gather.py).
"""

import random
import struct
from collections import deque
from dataclasses import dataclass, field

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, Timer

from pymodel.formats import packet
from tests.blocks.rx_driver import IP, MAC, Frame, aeth, reth

BENCH = {
    "top": "tx_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/*.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/wire/icrc_pkg.sv",
        "rtl/wire/tx_*.sv",
        "tests/blocks/sv/tx_bench.sv",
    ],
}
RETH = (0x06, 0x0A, 0x0B, 0x0C)
IMM = (0x03, 0x05, 0x09, 0x0B)
READ_RESPONSES = (0x0D, 0x0E, 0x0F, 0x10)
ACK, ATOMIC_ACK = 0x11, 0x12
#: struct format of the operands behind VA and R_Key, in the order of wire.md 2
ATOMICS = {0x13: ">QQ", 0x14: ">QQ", 0xC0: ">QQQQ", 0xC1: ">QQ", 0xC2: ">IIII", 0xC3: ">II"}
OPERANDS = ("swap_add", "compare", "swap_mask", "compare_mask")
#: opcodes that the requester hands over, and READ responses
PACKETS = (*range(0x0D), *READ_RESPONSES, *ATOMICS)
EMPTY = (0x0C, *ATOMICS)


@dataclass
class Peer:
    """Context of a QP."""

    tc: int = field(default_factory=lambda: random.getrandbits(8))
    ttl: int = field(default_factory=lambda: random.getrandbits(8))
    udp_sport: int = field(default_factory=lambda: random.getrandbits(16))
    peer_qpn: int = field(default_factory=lambda: random.getrandbits(24))
    peer_ip: int = field(default_factory=lambda: random.getrandbits(32))
    peer_mac: int = field(default_factory=lambda: random.getrandbits(48))


@dataclass
class Packet:
    """One packet for the framer. What its opcode does not have is drawn as well: it must not show."""

    opcode: int
    payload: bytes = b""
    qpi: int = field(default_factory=lambda: random.randrange(64))
    psn: int = field(default_factory=lambda: random.getrandbits(24))
    ack_req: int = field(default_factory=lambda: random.getrandbits(1))
    se: int = field(default_factory=lambda: random.getrandbits(1))
    raddr: int = field(default_factory=lambda: random.getrandbits(64))
    rkey: int = field(default_factory=lambda: random.getrandbits(32))
    dma_len: int = field(default_factory=lambda: random.getrandbits(32))
    imm_data: int = field(default_factory=lambda: random.getrandbits(32))
    msn: int = field(default_factory=lambda: random.getrandbits(24))
    syndrome: int = field(default_factory=lambda: random.choice([0x1F, 0x60, 0x61, 0x62, 0x63]))
    value: int = field(default_factory=lambda: random.getrandbits(64))
    amo: list[int] = field(default_factory=lambda: [random.getrandbits(64) for _ in OPERANDS])

    @property
    def response(self) -> bool:
        """READ responses and acknowledgements."""
        return 0x0D <= self.opcode <= 0x12

    def ext(self) -> bytes:
        """Extended headers by hand (wire.md 2, 3)."""
        if self.opcode in ATOMICS:
            form = ATOMICS[self.opcode]
            width = 32 if "I" in form else 64
            operands = [v & (1 << width) - 1 for v in self.amo[: len(form) - 1]]
            if self.opcode == 0x14:
                operands[1] = 0
            return struct.pack(">QI", self.raddr, self.rkey) + struct.pack(form, *operands)
        if self.opcode == ATOMIC_ACK:
            return aeth(self.syndrome, self.msn) + struct.pack(">Q", self.value)
        if self.opcode == ACK:
            return aeth(self.syndrome, self.msn)
        if self.opcode in READ_RESPONSES:
            return b"" if self.opcode == 0x0E else aeth(0x1F, self.msn)
        found = reth(self.raddr, self.rkey, self.dma_len) if self.opcode in RETH else b""
        return found + (struct.pack(">I", self.imm_data) if self.opcode in IMM else b"")

    def by_hand(self, peer: Peer) -> bytes:
        """The frame packed from wire.md."""
        return Frame(
            opcode=self.opcode,
            dest_qpn=peer.peer_qpn,
            psn=self.psn,
            payload=self.payload,
            ack_req=bool(self.ack_req and not self.response),
            se=bool(self.se and not self.response),
            ext=self.ext(),
            dst_mac=peer.peer_mac,
            src_mac=MAC,
            tos=peer.tc,
            ttl=peer.ttl,
            src_ip=IP,
            dst_ip=peer.peer_ip,
            sport=peer.udp_sport,
        ).pack()

    def by_model(self, peer: Peer) -> bytes:
        """The frame of the golden codec."""
        swap_add, compare, swap_mask, compare_mask = self.amo
        four = self.opcode in (0xC2, 0xC3)
        operands = [v & 0xFFFF_FFFF if four else v for v in (swap_add, compare, swap_mask, compare_mask)]
        if self.opcode == 0x14:
            operands[1] = 0
        fields = packet.new(
            dst_mac=peer.peer_mac,
            src_mac=MAC,
            src_ip=IP,
            dst_ip=peer.peer_ip,
            tos=peer.tc,
            ttl=peer.ttl,
            udp_sport=peer.udp_sport,
            dest_qp=peer.peer_qpn,
            opcode=self.opcode,
            psn=self.psn,
            ackreq=0 if self.response else self.ack_req,
            se=0 if self.response else self.se,
            va=self.raddr,
            rkey=self.rkey,
            dma_len=self.dma_len,
            imm=self.imm_data,
            msn=self.msn,
            syndrome=0x1F if self.opcode in READ_RESPONSES else self.syndrome,
            orig=self.value,
            payload_len=len(self.payload),
            **dict(zip(OPERANDS, (np.uint64(v) for v in operands), strict=True)),
        )
        (found,) = packet.frames(packet.derive(fields), [self.payload])
        return found


class Bench:
    """Drives the three inputs and collects frames; inputs change and outputs are read at falling edges."""

    def __init__(self, dut, gap: float = 0.0, stall: float = 0.0) -> None:
        self.dut = dut
        self.gap, self.stall = gap, stall
        self.packets: deque[Packet] = deque()
        self.acks: deque[Packet] = deque()
        self.payload: deque[tuple[bytes, bool]] = deque()
        self.frames: list[bytes] = []
        self.frame = b""
        self.cycles = 0
        self.beats = 0

    async def start(self, peers: list[Peer]) -> None:
        """Resets, then programs all QPs."""
        dut = self.dut
        for name in ("qp_set_i", "drain_valid_i", "pkt_valid_i", "pay_valid_i", "ack_valid_i", "tx_ready_i"):
            getattr(dut, name).value = 0
        dut.mac_i.value = MAC
        dut.ip_i.value = IP
        dut.rst_ni.value = 0
        await Timer(10, "ns")
        dut.rst_ni.value = 1
        await FallingEdge(dut.clk_i)
        for qpi, peer in enumerate(peers):
            dut.qp_set_i.value = 1
            dut.qpi_i.value = qpi
            for name, value in vars(peer).items():
                getattr(dut, f"{name}_i").value = value
            await FallingEdge(dut.clk_i)
        dut.qp_set_i.value = 0

    def send(self, item: Packet) -> None:
        """Queues a packet with its payload, or an acknowledgement."""
        if item.opcode in (ACK, ATOMIC_ACK):
            self.acks.append(item)
            return
        self.packets.append(item)
        for at in range(0, len(item.payload), 64):
            self.payload.append((item.payload[at : at + 64], at + 64 >= len(item.payload)))

    async def cycle(self) -> None:
        """One clock cycle; what is offered stays until it is taken."""
        dut = self.dut
        offers = []
        for queue, kind in ((self.packets, "pkt"), (self.payload, "pay"), (self.acks, "ack")):
            valid = getattr(dut, f"{kind}_valid_i")
            held = valid.value == 1
            offer = bool(queue) and (held or random.random() >= self.gap)
            valid.value = offer
            offers.append((queue, kind, offer))
            if not offer or held and kind not in self.taken:
                continue
            head = queue[0]
            if kind == "pay":
                dut.pay_data_i.value = int.from_bytes(head[0], "little")
                dut.pay_last_i.value = head[1]
            elif kind == "ack":
                for name in ("qpi", "psn", "syndrome", "msn", "value"):
                    getattr(dut, f"ack_{name}_i").value = getattr(head, name)
                dut.ack_atomic_i.value = head.opcode == ATOMIC_ACK
            else:
                names = ("qpi", "psn", "ack_req", "se", "raddr", "rkey", "dma_len", "imm_data", "msn")
                for name in names:
                    getattr(dut, f"pkt_{name}_i").value = getattr(head, name)
                for name, value in zip(OPERANDS, head.amo, strict=True):
                    getattr(dut, f"pkt_{name}_i").value = value
                dut.pkt_bth_i.value = head.opcode
                dut.pkt_reth_i.value = head.opcode in RETH
                dut.pkt_imm_i.value = head.opcode in IMM
                dut.pkt_rsp_i.value = head.response
                dut.pkt_len_i.value = len(head.payload)
        ready = random.random() >= self.stall
        dut.tx_ready_i.value = ready
        await Timer(1, "ps")  # which input is taken follows from what is offered
        self.taken = set()
        for queue, kind, offer in offers:
            if offer and getattr(dut, f"{kind}_ready_o").value == 1:
                queue.popleft()
                self.taken.add(kind)
        if ready and dut.tx_valid_o.value == 1:
            keep = int(dut.tx_keep_o.value)
            self.frame += int(dut.tx_data_o.value).to_bytes(64, "little")[: keep.bit_length()]
            self.beats += 1
            if dut.tx_last_o.value == 1:
                self.frames.append(self.frame)
                self.frame = b""
        await FallingEdge(dut.clk_i)
        self.cycles += 1

    taken: set[str] = set()

    async def until(self, frames: int, limit: int) -> None:
        """Cycles until that many frames have left."""
        end = self.cycles + limit
        while len(self.frames) < frames:
            await self.cycle()
            assert self.cycles < end, f"{len(self.frames)} of {frames} frames after {limit} cycles"


def random_packet(n: int) -> Packet:
    """Packet number `n`: every opcode in turn, then at random."""
    opcodes = (*PACKETS, ACK, ATOMIC_ACK)
    opcode = opcodes[n] if n < len(opcodes) else random.choice(opcodes)
    if opcode in (*EMPTY, ACK, ATOMIC_ACK):
        return Packet(opcode)
    length = random.choice([0, n % 260, 256, 1024, random.randrange(4097), 4093, 4095, 4096])
    return Packet(opcode, random.randbytes(length))


def compare(frames: list[bytes], sent: list[Packet], peers: list[Peer]) -> None:
    """Packets and acknowledgements each in their order, all of them, byte for byte by both encoders."""
    queues = {False: deque(p for p in sent if p.opcode not in (ACK, ATOMIC_ACK))}
    queues[True] = deque(p for p in sent if p.opcode in (ACK, ATOMIC_ACK))
    for n, frame in enumerate(frames):
        want = queues[frame[42] in (ACK, ATOMIC_ACK)].popleft()
        for name in ("by_hand", "by_model"):
            bytes_ = getattr(want, name)(peers[want.qpi])
            assert frame == bytes_, f"frame {n} {name}, {want}:\n{frame.hex()}\nwant {bytes_.hex()}"
    assert not any(queues.values())


@cocotb.test()
@cocotb.parametrize(knobs=[(0.0, 0.0), (0.0, 0.5), (0.5, 0.0), (0.4, 0.4)])
async def test_every_packet(dut, knobs: tuple[float, float]) -> None:
    """All opcodes with random fields, in any mix."""
    bench = Bench(dut, *knobs)
    peers = [Peer() for _ in range(64)]
    await bench.start(peers)
    sent = [random_packet(n) for n in range(500)]
    for item in sent:
        bench.send(item)
    await bench.until(len(sent), 200 * len(sent))
    compare(bench.frames, sent, peers)
    await bench.cycle()
    await bench.cycle()
    responses = sum(p.response for p in sent)
    assert int(dut.responses_o.value) == responses
    assert int(dut.requests_o.value) == len(sent) - responses


@cocotb.test()
@cocotb.parametrize(opcode=[0x06, 0x07, 0x0D, 0x0B])
async def test_every_length(dut, opcode: int) -> None:
    """Headers of 40, 44, 56 and 60 bytes before each payload length up to four beats, empty ones between."""
    bench = Bench(dut)
    peers = [Peer() for _ in range(64)]
    await bench.start(peers)
    sent = []
    for length in range(260):
        sent += [Packet(opcode, random.randbytes(length)), Packet(random.choice(EMPTY))]
    for item in sent:
        bench.send(item)
    await bench.until(len(sent), 20 * len(sent))
    compare(bench.frames, sent, peers)


@cocotb.test()
@cocotb.parametrize(opcode=[*EMPTY, ACK, ATOMIC_ACK, 0x10, 0x0A])
async def test_rate_small(dut, opcode: int) -> None:
    """Packets without payload, and READ responses and WRITEs of 64 bytes, at most 5 cycles each."""
    bench = Bench(dut)
    peers = [Peer() for _ in range(64)]
    await bench.start(peers)
    payload = random.randbytes(64 if opcode in (0x10, 0x0A) else 0)
    sent = [Packet(opcode, payload) for _ in range(200)]
    for item in sent:
        bench.send(item)
    await bench.until(len(sent), 2000)
    compare(bench.frames, sent, peers)
    assert bench.cycles <= 5 * len(sent) + 12, f"{bench.cycles} cycles for {len(sent)} packets"


@cocotb.test()
async def test_rate_responses(dut) -> None:
    """READ responses of 4 KiB keep the link busy, with acknowledgements between them."""
    bench = Bench(dut)
    peers = [Peer() for _ in range(64)]
    await bench.start(peers)
    sent = [Packet(0x0E, random.randbytes(4096)) for _ in range(30)]
    sent += [Packet(ATOMIC_ACK) for _ in range(30)]
    for item in sent:
        bench.send(item)
    await bench.until(len(sent), 4000)
    compare(bench.frames, sent, peers)
    assert bench.beats >= 0.97 * bench.cycles - 12, f"{bench.beats} beats in {bench.cycles} cycles"


@cocotb.test()
async def test_drain(dut) -> None:
    """A reset waits for the QP's packets, responses and acknowledgements included, and for no other's."""
    bench = Bench(dut)
    peers = [Peer() for _ in range(64)]
    await bench.start(peers)
    dut.drain_valid_i.value = 1
    dut.drain_qpi_i.value = 9
    for opcode in (0x13, 0xC0, 0x0E, 0x10, ACK, ATOMIC_ACK):
        bench.stall = 1.0
        bench.frames.clear()
        bench.send(Packet(opcode, qpi=9))
        bench.send(Packet(opcode, qpi=8))
        for _ in range(12):
            await bench.cycle()
        assert dut.drain_busy_o.value == 1, f"opcode {opcode:#x} is forgotten"
        bench.stall = 0.0
        await bench.until(2, 40)
        for _ in range(4):
            await bench.cycle()
        assert dut.drain_busy_o.value == 0, f"opcode {opcode:#x} never leaves"
        bench.stall = 1.0
        bench.send(Packet(opcode, qpi=8))
        for _ in range(12):
            await bench.cycle()
        assert dut.drain_busy_o.value == 0, "busy with a packet of another QP"
        bench.stall = 0.0
        await bench.until(3, 40)
