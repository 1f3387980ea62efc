"""Frames as the judge expects them, written for its own use: header rows of many packets, one frame, ICRC.

The CRC is `zlib.crc32`, so that the check shares no code with codec and RTL (wire.md section 4).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, U8, U32
from pymodel.nic.params import Cnt

#: bytes of Ethernet, IPv4, UDP and BTH (wire.md 1)
BASE: Final = 54
RETH: Final = 16
AETH: Final = 4
ICRC: Final = 4
#: rows that the vectorised compare looks at: all headers of a WRITE First or Only
ROW: Final = BASE + RETH
ETH: Final = 14
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY = 0x00, 0x01, 0x02, 0x04
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY = 0x06, 0x07, 0x08, 0x0A
#: a Last or Only with immediate is the one without, plus 1
SENDS: Final = frozenset(range(0x06))
WRITES: Final = frozenset(range(0x06, 0x0C))
IMMEDIATE: Final = frozenset((0x03, 0x05, 0x09, 0x0B))
#: first and last packets of messages
STARTS: Final = frozenset((0x00, 0x04, 0x05, 0x06, 0x0A, 0x0B))
ENDS: Final = frozenset((0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0A, 0x0B))
READ_REQUEST: Final = 0x0C
READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY = 0x0D, 0x0E, 0x0F, 0x10
ACK: Final = 0x11
ATOMIC_ACK: Final = 0x12
CMP_SWAP, FETCH_ADD, MCAS64, MFA64, MCAS32, MFA32 = 0x13, 0x14, 0xC0, 0xC1, 0xC2, 0xC3
#: atomic requests: (bytes of an operand, how many there are) (wire.md 2)
OPERANDS: Final = {
    CMP_SWAP: (8, 2), FETCH_ADD: (8, 2), MCAS64: (8, 4), MFA64: (8, 2), MCAS32: (4, 4), MFA32: (4, 2),
}  # fmt: skip
SYN_ACK: Final = 0x1F
#: upper three bits of an RNR NAK's syndrome; the others are its timer code
SYN_RNR: Final = 1
#: extended header bytes by BTH opcode (wire.md 2, 3); absent: undefined opcode
EXT: Final = {
    0x00: 0, 0x01: 0, 0x02: 0, 0x03: 4, 0x04: 0, 0x05: 4, 0x06: 16, 0x07: 0, 0x08: 0, 0x09: 4, 0x0A: 16,
    0x0B: 20, 0x0C: 16, 0x0D: 4, 0x0E: 0, 0x0F: 4, 0x10: 4, 0x11: 4, 0x12: 12, 0x13: 28, 0x14: 28,
    0xC0: 44, 0xC1: 28, 0xC2: 28, 0xC3: 20,
}  # fmt: skip
RESPONSES: Final = frozenset((0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12))
#: defined opcodes that may carry payload: SEND, WRITE, READ responses (wire.md 2)
PAYLOAD: Final = frozenset((*range(0x0C), *range(0x0D, 0x11)))
#: the largest MTU
MAX_PAYLOAD: Final = 4096
#: header bytes in frame order, to name a differing byte: (end, name)
_LAYOUT: Final = (
    (6, "Ethernet destination"), (12, "Ethernet source"), (14, "EtherType"), (15, "IPv4 version, IHL"),
    (16, "IPv4 TOS"), (18, "IPv4 length"), (20, "IPv4 identification"), (22, "IPv4 flags"), (23, "IPv4 TTL"),
    (24, "IPv4 protocol"), (26, "IPv4 checksum"), (30, "IPv4 source"), (34, "IPv4 destination"),
    (36, "UDP source port"), (38, "UDP destination port"), (40, "UDP length"), (42, "UDP checksum"),
    (43, "BTH opcode"), (44, "BTH SE, MigReq, PadCnt, TVer"), (46, "BTH P_Key"), (47, "BTH FECN, BECN"),
    (50, "BTH DestQP"), (51, "BTH AckReq"), (54, "BTH PSN"),
)  # fmt: skip
_LAYOUT_RETH: Final = ((62, "RETH VA"), (66, "RETH R_Key"), (70, "RETH DMA length"))
_LAYOUT_AETH: Final = ((55, "AETH syndrome"), (58, "AETH MSN"), (66, "AtomicAckETH original value"))
_OPERAND_NAMES: Final = ("swap or add", "compare or boundary", "swap mask", "compare mask")


def byte_name(offset: int, opcode: int) -> str:
    """Name of the header field at a frame offset."""
    layout: tuple[tuple[int, str], ...] = _LAYOUT
    if opcode in OPERANDS:
        size, count = OPERANDS[opcode]
        layout += ((62, "AtomicETH VA"), (66, "AtomicETH R_Key"))
        layout += tuple((66 + size * (i + 1), f"AtomicETH {_OPERAND_NAMES[i]}") for i in range(count))
    elif opcode in IMMEDIATE:
        layout += _LAYOUT_RETH if EXT[opcode] > RETH else ()
        layout += ((BASE + EXT[opcode], "ImmDt"),)
    elif EXT.get(opcode, 0) >= RETH:
        layout += _LAYOUT_RETH
    elif opcode in RESPONSES:
        layout += _LAYOUT_AETH
    return next((name for end, name in layout if offset < end), "payload")


def aeth(syndrome: int, msn: int) -> bytes:
    """AETH."""
    return struct.pack(">I", syndrome << 24 | msn & 0xFFFFFF)


def atomic_eth(opcode: int, va: int, rkey: int, operands: tuple[int, int, int, int]) -> bytes:
    """Extended header of an atomic request.

    operands: swap or add, compare or boundary, swap mask, compare mask. FetchAdd (14) carries 0 as compare
    (wire.md 2).
    """
    size, count = OPERANDS[opcode]
    given = (operands[0], 0) if opcode == FETCH_ADD else operands[:count]
    return struct.pack(">QI", va, rkey) + b"".join(x.to_bytes(size, "big") for x in given)


def operands_of(opcode: int, ext: bytes) -> tuple[int, int, int, int]:
    """Operands in the extended header of an atomic request, those that it lacks as 0."""
    size, count = OPERANDS[opcode]
    given = [int.from_bytes(ext[12 + size * i : 12 + size * (i + 1)], "big") for i in range(count)]
    given += [0] * (4 - count)
    return given[0], given[1], given[2], given[3]


def read_opcode(k: int, count: int) -> int:
    """BTH opcode of READ response k of count."""
    if count == 1:
        return READ_ONLY
    return READ_FIRST if k == 0 else READ_LAST if k == count - 1 else READ_MIDDLE


@dataclass(frozen=True)
class Flow:
    """What all frames that one QP sends have in common (wire.md 1, 2)."""

    src_mac: int
    dst_mac: int
    src_ip: int
    dst_ip: int
    tos: int
    ttl: int
    sport: int
    peer_qpn: int


def checksum(header: bytes) -> int:
    """IPv4 header checksum over 20 bytes whose checksum field is 0."""
    total = int(sum(struct.unpack(">10H", header)))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def header(flow: Flow, opcode: int, psn: int, ack_req: int, pad: int, body: int, se: int = 0) -> bytes:
    """Ethernet to BTH, 54 bytes; body: bytes of extended headers, payload and pad; se: solicited event."""
    length = 20 + 8 + 12 + body + ICRC
    ip = struct.pack(
        ">BBHHHBBHII", 0x45, flow.tos, length, 0, 0x4000, flow.ttl, 17, 0, flow.src_ip, flow.dst_ip
    )
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return (
        flow.dst_mac.to_bytes(6, "big")
        + flow.src_mac.to_bytes(6, "big")
        + b"\x08\x00"
        + ip
        + struct.pack(">HHHH", flow.sport, 4791, length - 20, 0)
        + struct.pack(">BBHII", opcode, se << 7 | 0x40 | pad << 4, 0xFFFF, flow.peer_qpn, ack_req << 31 | psn)
    )


def icrc(frame: bytes) -> bytes:
    """ICRC of a frame up to, and without, its ICRC (wire.md 4)."""
    masked = bytearray(b"\xff" * 8 + frame[ETH:BASE])
    masked[9] = masked[16] = masked[18] = masked[19] = 0xFF  # TOS, TTL, checksum
    masked[34] = masked[35] = 0xFF  # UDP checksum
    masked[40] = 0xFF  # BTH byte 4
    return zlib.crc32(frame[BASE:], zlib.crc32(masked)).to_bytes(4, "little")


def build(
    flow: Flow, opcode: int, psn: int, ack_req: int, ext: bytes, payload: bytes = b"", se: int = 0
) -> bytes:
    """A whole frame with pad and ICRC; ext: bytes between BTH and payload."""
    pad = -len(payload) & 3
    body = ext + payload + bytes(pad)
    frame = header(flow, opcode, psn, ack_req, pad, len(body), se) + body
    return frame + icrc(frame)


@dataclass(frozen=True)
class Received:
    """A frame taken apart."""

    opcode: int
    pad: int
    dst_qpn: int
    ack_req: int
    psn: int
    src_ip: int
    ext: bytes
    payload: bytes
    se: int = 0

    @property
    def imm(self) -> int:
        """The immediate, 0 where there is none."""
        return int.from_bytes(self.ext[-4:], "big") if self.opcode in IMMEDIATE else 0


def receive(frame: bytes, mac: int, ip: int) -> Received | Cnt:
    """Receive checks of wire.md 1 up to P_Key: the frame, or the counter of the first check that fails."""
    if len(frame) < BASE + ICRC:
        return Cnt.DROP_SHORT
    if int.from_bytes(frame[0:6], "big") != mac:
        return Cnt.DROP_MAC
    if frame[12:14] != b"\x08\x00":
        return Cnt.DROP_ETHERTYPE
    # version and IHL, more fragments or an offset, protocol, checksum
    head = frame[14:34]
    fragment = int.from_bytes(head[6:8], "big") & 0x3FFF
    if head[0] != 0x45 or fragment or head[9] != 17 or checksum(head):
        return Cnt.DROP_IPV4
    if int.from_bytes(head[16:20], "big") != ip:
        return Cnt.DROP_IP_DST
    sport, dport, udp_len, _ = struct.unpack(">HHHH", frame[34:42])
    if dport != 4791:
        return Cnt.DROP_UDP_PORT
    total = int.from_bytes(head[2:4], "big")
    opcode, flags, pkey, dest, word = struct.unpack(">BBHII", frame[42:54])
    ext = EXT.get(opcode, 0)
    pad = flags >> 4 & 3
    body = total - 44
    if total + ETH > len(frame) or udp_len != total - 20 or total & 3 or body < ext + pad:
        return Cnt.DROP_LENGTH
    # an undefined opcode has no extended header: all of its body is payload
    if body - ext - pad > MAX_PAYLOAD or (body > ext and opcode in EXT and opcode not in PAYLOAD):
        return Cnt.DROP_LENGTH
    end = ETH + total - ICRC
    if icrc(frame[:end]) != frame[end : end + ICRC]:
        return Cnt.DROP_ICRC
    if flags & 15:
        return Cnt.DROP_TVER
    if opcode not in EXT:
        return Cnt.DROP_OPCODE
    if pkey != 0xFFFF:
        return Cnt.DROP_PKEY
    return Received(
        opcode, pad, dest & 0xFFFFFF, word >> 31, word & 0xFFFFFF, int.from_bytes(head[12:16], "big"),
        frame[BASE : BASE + ext], frame[BASE + ext : end - pad], flags >> 7,
    )  # fmt: skip


def _crc_tables() -> U32:
    """table[i, v]: what byte value v at place i of a 52-byte message changes in its CRC.

    A CRC is affine over XOR: crc(m) = crc(0) ^ the changes of its bytes. Every entry comes from zlib.
    """
    zero = zlib.crc32(bytes(52))
    table = np.zeros((52, 256), np.uint32)
    message = bytearray(52)
    for place in range(52):
        for bit in range(8):
            message[place] = 1 << bit
            change = zlib.crc32(message) ^ zero
            values = np.arange(256) >> bit & 1 == 1
            table[place, values] ^= np.uint32(change)
        message[place] = 0
    return table


class FlowRows:
    """Header rows and CRC bases of all flows, for many packets at once.

    flows: one per sending QP. A row holds the first ROW bytes of a frame.
    """

    def __init__(self, flows: list[Flow]) -> None:
        count = max(1, len(flows))
        self.rows: U8 = np.zeros((count, ROW), np.uint8)
        #: CRC of the masked 48-byte head whose lengths, opcode, flags, AckReq and PSN are 0
        self.head_crc: U32 = np.zeros(count, np.uint32)
        #: CRC of the masked 52 bytes of an ACK with PSN and AETH 0
        self.ack_crc: U32 = np.zeros(count, np.uint32)
        #: ones' complement sum of the IPv4 header without length and checksum
        self.ip_sum: I64 = np.zeros(count, np.int64)
        for i, flow in enumerate(flows):
            row = bytearray(header(flow, 0, 0, 0, 0, 0))
            row[16:18] = row[24:26] = row[38:40] = bytes(2)
            self.ip_sum[i] = sum(struct.unpack(">10H", row[14:34]))
            self.rows[i, :BASE] = np.frombuffer(row, np.uint8)
            masked = bytearray(b"\xff" * 8 + row[ETH:])
            masked[9] = masked[16] = masked[18] = masked[19] = 0xFF
            masked[34] = masked[35] = masked[40] = 0xFF
            masked[37] = 0
            self.head_crc[i] = zlib.crc32(masked)
            ack = bytearray(masked)
            ack[10:12] = struct.pack(">H", 48)
            ack[32:34] = struct.pack(">H", 28)
            ack[36], ack[37] = ACK, 0x40
            self.ack_crc[i] = zlib.crc32(bytes(ack) + bytes(4))
        self._table52 = _crc_tables()
        # the same for 48-byte messages: a change at place i of 48 is one at place i + 4 of 52
        self._table48 = self._table52[4:]

    def build(self, flow: I64, opcode: I64, pad: I64, ack_req: I64, psn: I64, body: I64) -> U8:
        """Expected header rows uint8[n, ROW] of n frames; the extended headers are left 0.

        flow: index of the sending QP; body: bytes of extended headers, payload and pad.
        """
        rows = self.rows[flow]
        length = body + 44
        _be(rows, 16, length, 2)
        total = self.ip_sum[flow] + length
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        _be(rows, 24, ~total & 0xFFFF, 2)
        _be(rows, 38, length - 20, 2)
        rows[:, 42] = opcode
        rows[:, 43] = 0x40 | pad << 4
        rows[:, 50] = ack_req << 7
        _be(rows, 51, psn, 3)
        return rows

    def head_crcs(self, flow: I64, rows: U8) -> U32:
        """CRC state after the masked head of each row, to go on with over the bytes after the BTH.

        The rows' fixed bytes must be those of the flow; that is the caller's check.
        """
        crc = self.head_crc[flow]
        for place, column in ((10, 16), (11, 17), (32, 38), (33, 39), (36, 42), (37, 43), (44, 50), (45, 51),
                              (46, 52), (47, 53)):  # fmt: skip
            crc ^= self._table48[place].take(rows[:, column])
        return crc

    def ack_crcs(self, flow: I64, rows: U8) -> U32:
        """ICRC values of ACK rows; the rows' fixed bytes must be those of the flow."""
        crc = self.ack_crc[flow]
        for place in range(45, 52):
            crc ^= self._table52[place].take(rows[:, place + 6])
        return crc


def _be(rows: U8, column: int, values: I64, count: int) -> None:
    """Write big-endian integers of `count` bytes into `rows` from `column` on."""
    for i in range(count):
        rows[:, column + i] = values >> (8 * (count - 1 - i)) & 0xFF


def fill_reth(rows: U8, at: I64, va: I64, rkey: I64, length: I64) -> None:
    """Write the RETH into the rows with numbers `at`; va is a uint64 pattern in int64."""
    ext = np.empty((at.size, RETH), np.uint8)
    ext[:, 0:8] = va.astype(">i8").view(np.uint8).reshape(-1, 8)
    ext[:, 8:12] = rkey.astype(">i8").view(np.uint8).reshape(-1, 8)[:, 4:]
    ext[:, 12:16] = length.astype(">i8").view(np.uint8).reshape(-1, 8)[:, 4:]
    rows[at, BASE:ROW] = ext
