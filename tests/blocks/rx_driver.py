"""Driver of tests/blocks/sv/datapath_bench.sv; frames built by hand from wire.md, ICRC by the library."""

import random
import struct
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cocotb.triggers import FallingEdge, Timer

BENCH = {
    "top": "datapath_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/*.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/context/mr_fence.sv",
        "rtl/memory/*.sv",
        "rtl/wire/*.sv",
        "rtl/responder/*.sv",
        "rtl/receive/*.sv",
        "rtl/atomic/*.sv",
        "rtl/datapath.sv",
        "tests/blocks/sv/axi_ram_model.sv",
        "tests/blocks/sv/datapath_bench.sv",
    ],
    "args": ["-Wno-PINCONNECTEMPTY"],
}

MAC, IP = 0x02_C0_FF_EE_00_01, 0x0A00_0001
PEER_MAC, PEER_IP = 0x02_C0_FF_EE_00_02, 0x0A00_0002
SIZE = 256 * 1024  # bytes of the memory that tests fill and compare
FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM, ACK = 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x11
#: numbers of the counters (nic.md 7, in the order of the NIC's list)
COUNTERS = (
    "tx_request tx_response rx_packet short mac ethertype ipv4 ip_dst udp_port length icrc tver opcode pkey "
    "qp ip_src syndrome response duplicate ahead"
).split()
NAK_TX = 29  # NAK code c sent: counter NAK_TX + c
BUS_GATHER, BUS_INBOUND = 42, 43
RD_TOO_MANY, BUS_ATOMIC, BUS_RESULT, ATOMIC, READ = 47, 51, 52, 53, 54
#: READ and atomic requests, their responses (wire.md 2)
READ_REQ, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY, ATOMIC_ACK = 0x0C, 0x0D, 0x0E, 0x0F, 0x10, 0x12
CAS64, FA64, MCAS64, MFA64, MCAS32, MFA32 = 0x13, 0x14, 0xC0, 0xC1, 0xC2, 0xC3
#: bytes that routers may change count as ones (wire.md 4)
VARIANT = (1, 8, 10, 11, 26, 27, 32)


def checksum(header: bytes) -> int:
    """IPv4 header checksum over a header whose own field is zero."""
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def icrc(packet: bytes) -> bytes:
    """The four ICRC bytes behind `packet`, which starts with the IP header."""
    masked = bytearray(packet)
    for at in VARIANT:
        masked[at] = 0xFF
    return zlib.crc32(b"\xff" * 8 + masked).to_bytes(4, "little")


@dataclass
class Frame:
    """Fields of one frame, good by default; what is not None overrides what the rest implies."""

    opcode: int = ONLY
    dest_qpn: int = 2
    psn: int = 0
    payload: bytes = b""
    ack_req: bool = False
    se: bool = False
    ext: bytes = b""
    dst_mac: int = MAC
    src_mac: int = PEER_MAC
    ethertype: int = 0x0800
    version_ihl: int = 0x45
    tos: int = 132
    ident: int = 0
    fragment: int = 0x4000
    ttl: int = 64
    protocol: int = 17
    src_ip: int = PEER_IP
    dst_ip: int = IP
    ip_length: int | None = None
    bad_checksum: bool = False
    sport: int = 0xC002
    dport: int = 4791
    udp_length: int | None = None
    udp_checksum: int = 0
    migreq: bool = True
    pad: int | None = None
    tver: int = 0
    pkey: int = 0xFFFF
    bad_icrc: bool = False
    trailer: bytes = b""

    def pack(self) -> bytes:
        """The frame as on the link."""
        pad = -len(self.payload) % 4
        body = self.ext + self.payload + bytes(pad)
        length = 20 + 8 + 12 + len(body) + 4
        ip_length = length if self.ip_length is None else self.ip_length
        ip = struct.pack(
            ">BBHHHBBHII",
            self.version_ihl,
            self.tos,
            ip_length,
            self.ident,
            self.fragment,
            self.ttl,
            self.protocol,
            0,
            self.src_ip,
            self.dst_ip,
        )
        ip = ip[:10] + (checksum(ip) ^ (self.bad_checksum << 5)).to_bytes(2, "big") + ip[12:]
        udp_length = length - 20 if self.udp_length is None else self.udp_length
        udp = struct.pack(">HHHH", self.sport, self.dport, udp_length, self.udp_checksum)
        flags = self.se << 7 | self.migreq << 6 | (pad if self.pad is None else self.pad) << 4 | self.tver
        bth = struct.pack(
            ">BBHII", self.opcode, flags, self.pkey, self.dest_qpn, self.ack_req << 31 | self.psn
        )
        packet = ip + udp + bth + body
        crc = icrc(packet)
        if self.bad_icrc:
            crc = bytes([crc[0] ^ 1]) + crc[1:]
        eth = (
            self.dst_mac.to_bytes(6, "big")
            + self.src_mac.to_bytes(6, "big")
            + self.ethertype.to_bytes(2, "big")
        )
        return eth + packet + crc + self.trailer


def reth(va: int, rkey: int, length: int) -> bytes:
    """RETH (wire.md 3)."""
    return struct.pack(">QII", va, rkey, length)


def aeth(syndrome: int, msn: int) -> bytes:
    """AETH (wire.md 3)."""
    return struct.pack(">I", syndrome << 24 | msn)


def atomic_eth(
    opcode: int, va: int, rkey: int, swap_add: int, compare: int = 0, masks: tuple[int, int] = (0, 0)
) -> bytes:
    """Extended header of an atomic (wire.md 2, 3): VA, R_Key, operands; `masks`: swap mask, compare mask."""
    head = struct.pack(">QI", va, rkey)
    if opcode in (MCAS32, MFA32):
        values = [swap_add, compare, *(masks if opcode == MCAS32 else ())]
        return head + b"".join(struct.pack(">I", v) for v in values)
    values = [swap_add, compare, *(masks if opcode == MCAS64 else ())]
    return head + b"".join(struct.pack(">Q", v) for v in values)


@dataclass
class Reply:
    """A response packet that the NIC sent, of any kind; no AETH: syndrome and MSN are -1."""

    qpi: int
    opcode: int
    psn: int
    syndrome: int
    msn: int
    data: bytes = b""


@dataclass
class Expected:
    """What a READ (kind 0) or atomic (1: 8 bytes, 2: 4 bytes) of the requester waits for."""

    qpi: int
    slot: int
    kind: int
    first: int
    last: int
    laddr: int
    lkey: int
    length: int


@dataclass
class Event:
    """A response as the requester sees it (kind 0 ACK, 1 NAK, 2 RNR, 3 data)."""

    qpi: int
    kind: int
    psn: int
    slot: int
    last: bool
    fail: int


@dataclass
class Answer:
    """A response packet that the NIC sent."""

    qpi: int
    psn: int
    syndrome: int
    msn: int


@dataclass
class Job:
    """One request packet for the transmit side."""

    qpi: int
    opcode: int
    psn: int
    laddr: int
    length: int
    ack_req: bool = False
    reth: tuple[int, int, int] | None = None
    imm: int | None = None
    se: bool = False


@dataclass
class Peer:
    """What the bench programs into a QP: its own index is what the tests call it."""

    mtu: int = 5
    rem_write: bool = True
    tc: int = 132
    ttl: int = 64
    sport: int = 0xC000
    peer_qpn: int = 0
    peer_ip: int = PEER_IP
    peer_mac: int = PEER_MAC
    rq_psn: int = 0
    rem_read: bool = True
    rem_atomic: bool = True
    max_dest_rd: int = 16


@dataclass
class Bench:
    """Inputs change and outputs are read at falling edges; one beat a cycle where the NIC is ready."""

    dut: object
    memory: bytearray = field(default_factory=lambda: bytearray(random.randbytes(SIZE)))
    frames: list[bytes] = field(default_factory=list)
    responses: list[Answer] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    on_event: Callable[[Event], None] | None = None
    jobs: deque[Job] = field(default_factory=deque)
    wire: deque[tuple[bytes, bool]] = field(default_factory=deque)
    cycles: int = 0
    rx_gap: float = 0.0
    tx_stall: float = 0.0
    watch_tx: bool = True

    async def start(self, latency: int = 10, stall: int = 0, link_stall: int = 0, loop: bool = False) -> None:
        """Resets everything and fills the memory."""
        dut = self.dut
        for name in (
            "qp_set_i",
            "qp_reset_i",
            "mr_set_i",
            "drain_valid_i",
            "job_valid_i",
            "tx_ready_i",
            "rx_valid_i",
            "fault_i",
            "fault_writes_i",
            "mr_drain_i",
            "expect_valid_i",
            "expect_resumed_i",
            "rewind_valid_i",
            "qp_rts_i",
        ):
            getattr(dut, name).value = 0
        dut.rsp_ready_i.value = 1
        dut.mac_i.value = MAC
        dut.ip_i.value = IP
        dut.latency_i.value = latency
        dut.stall_i.value = stall
        dut.link_stall_i.value = link_stall
        dut.loop_i.value = loop
        dut.seed_i.value = random.getrandbits(32)
        dut.rst_ni.value = 0
        await FallingEdge(dut.clk_i)
        dut.poke_i.value = 1
        for beat in range(SIZE // 64):
            dut.poke_beat_i.value = beat
            dut.poke_data_i.value = int.from_bytes(self.memory[64 * beat : 64 * beat + 64], "little")
            await FallingEdge(dut.clk_i)
        dut.poke_i.value = 0
        dut.rst_ni.value = 1
        await FallingEdge(dut.clk_i)
        self.rts = 0
        self.loop = loop

    async def set_qp(self, qpi: int, peer: Peer) -> None:
        """Programs a QP and takes it to RTS."""
        dut = self.dut
        dut.qp_set_i.value = 1
        dut.qpi_i.value = qpi
        dut.mtu_i.value = peer.mtu
        dut.rem_write_i.value = peer.rem_write
        dut.rem_read_i.value = peer.rem_read
        dut.rem_atomic_i.value = peer.rem_atomic
        dut.max_dest_rd_i.value = peer.max_dest_rd
        dut.tc_i.value = peer.tc
        dut.ttl_i.value = peer.ttl
        dut.udp_sport_i.value = peer.sport
        dut.peer_qpn_i.value = peer.peer_qpn
        dut.peer_ip_i.value = peer.peer_ip
        dut.peer_mac_i.value = peer.peer_mac
        dut.rq_psn_i.value = peer.rq_psn
        await self.cycle()
        dut.qp_set_i.value = 0
        self.rts |= 1 << qpi
        dut.qp_rts_i.value = self.rts
        await self.cycle()

    async def expect(self, expected: Expected) -> None:
        """The requester starts a READ or atomic."""
        dut = self.dut
        dut.expect_valid_i.value = 1
        dut.expect_qpi_i.value = expected.qpi
        dut.expect_slot_i.value = expected.slot
        dut.expect_kind_i.value = expected.kind
        dut.expect_first_i.value = expected.first
        dut.expect_last_i.value = expected.last
        dut.expect_laddr_i.value = expected.laddr
        dut.expect_lkey_i.value = expected.lkey
        dut.expect_len_i.value = expected.length
        await self.cycle()
        dut.expect_valid_i.value = 0

    async def reset_qp(self, qpi: int, limit: int = 2000) -> None:
        """Out of RTS, drained, RESET."""
        dut = self.dut
        await self.stop_qp(qpi)
        dut.drain_valid_i.value = 1
        dut.drain_qpi_i.value = qpi
        await self.idle(6)
        await self.until(lambda: dut.drain_busy_o.value == 0, limit)
        dut.qp_reset_i.value = 1
        dut.qpi_i.value = qpi
        await self.cycle()
        dut.qp_reset_i.value = 0
        dut.drain_valid_i.value = 0
        await self.cycle()

    async def stop_qp(self, qpi: int) -> None:
        """Takes a QP out of RTS."""
        self.rts &= ~(1 << qpi)
        self.dut.qp_rts_i.value = self.rts
        await self.cycle()

    async def set_mr(
        self, mrn: int, base: int, length: int, rights: int = 3, tag: int = 0x5A, valid: bool = True
    ) -> int:
        """Programs a region (rights from bit 0: local write, remote write, read, atomic); its rkey."""
        dut = self.dut
        dut.mr_set_i.value = 1
        dut.mrn_i.value = mrn
        dut.mr_valid_i.value = valid
        dut.mr_base_i.value = base
        dut.mr_length_i.value = length
        dut.mr_rights_i.value = rights
        dut.mr_rtag_i.value = tag
        await self.cycle()
        dut.mr_set_i.value = 0
        return mrn << 8 | tag

    def send(self, frame: Frame | bytes) -> None:
        """Queues a frame for the receive side."""
        data = frame.pack() if isinstance(frame, Frame) else frame
        for at in range(0, len(data), 64):
            self.wire.append((data[at : at + 64], at + 64 >= len(data)))

    async def cycle(self) -> None:
        """One clock cycle: drives jobs and frames, records frames and responses."""
        dut = self.dut
        if self.jobs:
            job = self.jobs[0]
            dut.job_valid_i.value = 1
            dut.job_qpi_i.value = job.qpi
            dut.job_bth_i.value = job.opcode
            dut.job_psn_i.value = job.psn
            dut.job_ack_req_i.value = job.ack_req
            dut.job_reth_i.value = job.reth is not None
            va, rkey, length = job.reth or (
                random.getrandbits(64),
                random.getrandbits(32),
                random.getrandbits(32),
            )
            dut.job_raddr_i.value = va
            dut.job_rkey_i.value = rkey
            dut.job_dma_len_i.value = length
            dut.job_imm_i.value = job.imm is not None
            dut.job_imm_data_i.value = random.getrandbits(32) if job.imm is None else job.imm
            dut.job_se_i.value = job.se
            dut.job_laddr_i.value = job.laddr
            dut.job_len_i.value = job.length
            if dut.job_ready_o.value == 1:
                self.jobs.popleft()
        else:
            dut.job_valid_i.value = 0
        if not self.loop:
            offer = bool(self.wire) and random.random() >= self.rx_gap
            dut.rx_valid_i.value = offer
            if offer:
                data, last = self.wire[0]
                dut.rx_data_i.value = (
                    int.from_bytes(data, "little") | random.getrandbits(512) << 8 * len(data) & (1 << 512) - 1
                )
                dut.rx_keep_i.value = (1 << len(data)) - 1
                dut.rx_last_i.value = last
                if dut.rx_ready_o.value == 1:
                    self.wire.popleft()
            ready = random.random() >= self.tx_stall
            dut.tx_ready_i.value = ready
            if ready and dut.tx_valid_o.value == 1:
                self._beat()
        elif self.watch_tx:
            await Timer(1, "ps")
        if dut.rsp_valid_o.value == 1 and dut.rsp_ready_i.value == 1:
            fields = (dut.rsp_qpi_o, dut.rsp_psn_o, dut.rsp_syndrome_o, dut.rsp_msn_o)
            self.responses.append(Answer(*(int(f.value) for f in fields)))
            fields = (
                dut.rsp_qpi_o,
                dut.rsp_kind_o,
                dut.rsp_psn_o,
                dut.rsp_slot_o,
                dut.rsp_last_o,
                dut.rsp_fail_o,
            )
            event = Event(*(int(f.value) for f in fields))
            self.events.append(event)
            if self.on_event is not None:
                self.on_event(event)
        await FallingEdge(dut.clk_i)
        self.cycles += 1

    _frame: bytes = b""

    def _beat(self) -> None:
        keep = int(self.dut.tx_keep_o.value)
        self._frame += int(self.dut.tx_data_o.value).to_bytes(64, "little")[: keep.bit_length()]
        if self.dut.tx_last_o.value == 1:
            self.frames.append(self._frame)
            self._frame = b""

    async def until(self, condition: Callable[[], bool], limit: int = 5000) -> None:
        """Cycles until the condition holds."""
        for _ in range(limit):
            if condition():
                return
            await self.cycle()
        raise AssertionError(f"nothing happened in {limit} cycles")

    async def idle(self, cycles: int) -> None:
        """Lets time pass."""
        for _ in range(cycles):
            await self.cycle()

    async def settle(self, latency: int = 10) -> None:
        """Until everything queued is judged and answered."""
        await self.until(lambda: not self.wire and not self.jobs)
        await self.idle(2 * latency + 160)

    def counts(self) -> dict[str, int]:
        """Counters that are not zero, by name or number."""
        value = int(self.dut.counts_o.value)
        found = {}
        for n in range(64):
            if count := value >> 16 * n & 0xFFFF:
                found[COUNTERS[n] if n < len(COUNTERS) else str(n)] = count
        return found

    def answers(self) -> list[Answer]:
        """Takes the frames that left, all of which have to be good acknowledgements to the peer."""
        found = []
        for frame in self.frames:
            assert len(frame) == 62 and frame[42] == ACK, f"not an acknowledgement: {frame.hex()}"
            want = Frame(
                opcode=ACK,
                dst_mac=PEER_MAC,
                src_mac=MAC,
                src_ip=IP,
                dst_ip=PEER_IP,
                sport=int.from_bytes(frame[34:36], "big"),
                dest_qpn=int.from_bytes(frame[47:50], "big"),
                psn=int.from_bytes(frame[51:54], "big"),
                ext=frame[54:58],
            )
            assert frame == want.pack(), f"acknowledgement {frame.hex()}, want {want.pack().hex()}"
            found.append(
                Answer(want.sport - 0xC000, want.psn, frame[54], int.from_bytes(frame[55:58], "big"))
            )
        self.frames.clear()
        return found

    def replies(self) -> list[Reply]:
        """Takes the frames that left, all of which have to be good responses to the peer."""
        found = []
        for frame in self.frames:
            opcode, pad = frame[42], frame[43] >> 4 & 3
            aeth_bytes = 0 if opcode == READ_MIDDLE else 12 if opcode == ATOMIC_ACK else 4
            assert opcode in range(READ_FIRST, ATOMIC_ACK + 1), f"not a response: {frame.hex()}"
            body = frame[54 + aeth_bytes : -4 - pad] if READ_FIRST <= opcode <= READ_ONLY else b""
            ext = frame[54 : 54 + aeth_bytes]
            want = Frame(
                opcode=opcode,
                dst_mac=PEER_MAC,
                src_mac=MAC,
                src_ip=IP,
                dst_ip=PEER_IP,
                sport=int.from_bytes(frame[34:36], "big"),
                dest_qpn=int.from_bytes(frame[47:50], "big"),
                psn=int.from_bytes(frame[51:54], "big"),
                ext=ext,
                payload=body,
            )
            assert frame == want.pack(), f"response {frame.hex()}, want {want.pack().hex()}"
            syndrome, msn = (ext[0], int.from_bytes(ext[1:4], "big")) if ext else (-1, -1)
            data = ext[4:] if opcode == ATOMIC_ACK else body
            found.append(Reply(want.sport - 0xC000, opcode, want.psn, syndrome, msn, data))
        self.frames.clear()
        return found

    async def compare(self) -> None:
        """Every byte of the memory that tests use."""
        got = bytearray()
        for beat in range(SIZE // 64):
            self.dut.peek_beat_i.value = beat
            await FallingEdge(self.dut.clk_i)
            got += int(self.dut.peek_data_o.value).to_bytes(64, "little")
        wrong = [i for i in range(SIZE) if got[i] != self.memory[i]]
        assert not wrong, f"{len(wrong)} bytes wrong, first at {[hex(i) for i in wrong[:8]]}"


def good(qpi: int = 0, **changes: object) -> Frame:
    """A frame to QP index `qpi`."""
    return replace(Frame(dest_qpn=2 + qpi), **changes)  # type: ignore[arg-type]
