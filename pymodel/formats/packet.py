"""RoCEv2 frames (wire.md sections 1 to 3): header builder and parser over many packets at once.

All header fields are big-endian. A frame on the link is Ethernet, IPv4, UDP, BTH, extended headers, payload,
pad and ICRC; there is no Ethernet FCS.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from pymodel.formats.arrays import U8, U32, Bools, Fields, IntLike, Rec, to_fields
from pymodel.formats.icrc import icrc_packets

ETH_BYTES: Final = 14
IP_BYTES: Final = 20
UDP_BYTES: Final = 8
BTH_BYTES: Final = 12
ICRC_BYTES: Final = 4
#: Ethernet to BTH, without extended headers
FIXED_BYTES: Final = ETH_BYTES + IP_BYTES + UDP_BYTES + BTH_BYTES
#: the longest extended header, that of C0 (wire.md 2)
MAX_EXT_BYTES: Final = 44
MAX_HEADER_BYTES: Final = FIXED_BYTES + MAX_EXT_BYTES
#: the shortest frame: no extended header, no payload
MIN_FRAME_BYTES: Final = FIXED_BYTES + ICRC_BYTES
#: IPv4 total length of a packet without extended header and payload
MIN_IP_LEN: Final = IP_BYTES + UDP_BYTES + BTH_BYTES + ICRC_BYTES

#: the largest MTU; a frame with more payload cannot be right for any QP
MAX_PAYLOAD: Final = 4096

ETHERTYPE_IPV4: Final = 0x0800
ROCE_PORT: Final = 4791
PKEY: Final = 0xFFFF
IP_DF: Final = 0x4000


class Bth(IntEnum):
    """BTH opcodes (wire.md 2)."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_IMM = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_IMM = 0x05
    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_LAST_IMM = 0x09
    WRITE_ONLY = 0x0A
    WRITE_ONLY_IMM = 0x0B
    READ_REQUEST = 0x0C
    READ_FIRST = 0x0D
    READ_MIDDLE = 0x0E
    READ_LAST = 0x0F
    READ_ONLY = 0x10
    ACK = 0x11
    ATOMIC_ACK = 0x12
    CMP_SWAP = 0x13
    FETCH_ADD = 0x14
    MCAS64 = 0xC0
    MFA64 = 0xC1
    MCAS32 = 0xC2
    MFA32 = 0xC3


class Syndrome(IntEnum):
    """AETH syndromes that this NIC sends (wire.md 3)."""

    ACK = 0x1F
    NAK_SEQ = 0x60
    NAK_INV_REQ = 0x61
    NAK_ACCESS = 0x62
    NAK_REM_OP = 0x63


class RxReason(IntEnum):
    """Receive checks in their order (wire.md 1). A frame is dropped by the first that fails.

    The counter of a reason other than OK is `reason + 2` (Cnt.DROP_SHORT ... Cnt.DROP_IP_SRC).
    """

    OK = 0
    SHORT = 1
    MAC = 2
    ETHERTYPE = 3
    IPV4 = 4
    IP_DST = 5
    UDP_PORT = 6
    LENGTH = 7
    ICRC = 8
    TVER = 9
    OPCODE = 10
    PKEY = 11
    QP = 12
    IP_SRC = 13


#: one packet. Operands: swap_add = swap or add, compare = compare or field boundary; 4-byte operands are
#: zero-extended; orig = AtomicAckETH. Fields of headers that the opcode does not have are 0 and not written.
PACKET_FIELDS: Final[np.dtype[np.void]] = np.dtype(
    [
        ("dst_mac", "<u8"), ("src_mac", "<u8"), ("va", "<u8"), ("swap_add", "<u8"), ("compare", "<u8"),
        ("swap_mask", "<u8"), ("compare_mask", "<u8"), ("orig", "<u8"),
        ("src_ip", "<u4"), ("dst_ip", "<u4"), ("dest_qp", "<u4"), ("psn", "<u4"), ("rkey", "<u4"),
        ("dma_len", "<u4"), ("imm", "<u4"), ("msn", "<u4"), ("payload_len", "<u4"),
        ("ethertype", "<u2"), ("ip_len", "<u2"), ("ip_id", "<u2"), ("ip_frag", "<u2"), ("ip_csum", "<u2"),
        ("udp_sport", "<u2"), ("udp_dport", "<u2"), ("udp_len", "<u2"), ("udp_csum", "<u2"), ("pkey", "<u2"),
        ("ver_ihl", "u1"), ("tos", "u1"), ("ttl", "u1"), ("proto", "u1"), ("opcode", "u1"), ("se", "u1"),
        ("migreq", "u1"), ("pad", "u1"), ("tver", "u1"), ("rsv8", "u1"), ("ackreq", "u1"), ("rsv7", "u1"),
        ("syndrome", "u1"),
    ]
)  # fmt: skip

#: what the parser delivers beside PACKET_FIELDS. payload_off: absolute, in the buffer; hdr_len: bytes before
#: the payload; l2_len: bytes up to the IP total length; icrc: as received; fails: bit r set = receive check r
#: fails (bits after the first one are of no account); reason: RxReason
PARSED_FIELDS: Final[np.dtype[np.void]] = np.dtype(
    [
        *[(name, PACKET_FIELDS[name]) for name in PACKET_FIELDS.names or ()],
        ("payload_off", "<i8"), ("hdr_len", "<u4"), ("l2_len", "<u4"), ("icrc", "<u4"), ("fails", "<u2"),
        ("reason", "u1"),
    ]
)  # fmt: skip

_WIDTHS: Final = {
    "dst_mac": 48, "src_mac": 48, "dest_qp": 24, "psn": 24, "msn": 24, "se": 1, "migreq": 1, "pad": 2,
    "tver": 4, "ackreq": 1, "rsv7": 7,
}  # fmt: skip

_RETH_OPS: Final = (Bth.WRITE_FIRST, Bth.WRITE_ONLY, Bth.WRITE_ONLY_IMM, Bth.READ_REQUEST)
_AETH_OPS: Final = (Bth.READ_FIRST, Bth.READ_LAST, Bth.READ_ONLY, Bth.ACK, Bth.ATOMIC_ACK)
#: offset of ImmDt in the extended headers
_IMM_OPS: Final = {Bth.SEND_LAST_IMM: 0, Bth.SEND_ONLY_IMM: 0, Bth.WRITE_LAST_IMM: 0, Bth.WRITE_ONLY_IMM: 16}
#: (field, offset in the extended headers, bytes) of the operands of each atomic, behind VA and R_Key
_ATOMIC_OPS: Final = {
    Bth.CMP_SWAP: (("swap_add", 12, 8), ("compare", 20, 8)),
    Bth.FETCH_ADD: (("swap_add", 12, 8), ("compare", 20, 8)),
    Bth.MCAS64: (("swap_add", 12, 8), ("compare", 20, 8), ("swap_mask", 28, 8), ("compare_mask", 36, 8)),
    Bth.MFA64: (("swap_add", 12, 8), ("compare", 20, 8)),
    Bth.MCAS32: (("swap_add", 12, 4), ("compare", 16, 4), ("swap_mask", 20, 4), ("compare_mask", 24, 4)),
    Bth.MFA32: (("swap_add", 12, 4), ("compare", 16, 4)),
}
ATOMIC_BTH: Final = frozenset(_ATOMIC_OPS)
_PAYLOAD_OPS: Final = (
    *range(Bth.SEND_FIRST, Bth.WRITE_ONLY_IMM + 1),
    *range(Bth.READ_FIRST, Bth.READ_ONLY + 1),
)

_BIG_OPERAND: Final = {4: ">u4", 8: ">u8"}


class _Tables(NamedTuple):
    """Properties of all 256 opcodes, indexed by opcode."""

    ext: U8
    known: Bools
    payload: Bools
    reth: Bools
    aeth: Bools


def _opcode_tables() -> _Tables:
    ext = np.zeros(256, np.uint8)
    flags = {name: np.zeros(256, np.bool_) for name in ("known", "payload", "reth", "aeth")}
    flags["known"][list(Bth)] = True
    flags["payload"][list(_PAYLOAD_OPS)] = True
    flags["reth"][list(_RETH_OPS)] = True
    flags["aeth"][list(_AETH_OPS)] = True
    ext[list(_RETH_OPS)] = 16
    ext[list(_AETH_OPS)] = 4
    ext[Bth.ATOMIC_ACK] = 12
    for imm_op in _IMM_OPS:
        ext[imm_op] += 4
    for op, operands in _ATOMIC_OPS.items():
        ext[op] = 12 + sum(size for _, _, size in operands)
    return _Tables(ext, **flags)


_T: Final = _opcode_tables()
#: bytes of extended headers by opcode, uint8[256]; 0 for undefined opcodes
EXT_BYTES: Final = _T.ext
#: opcodes of requests, of responses (wire.md 2), bool[256]
IS_RESPONSE: Final[Bools] = np.isin(np.arange(256), range(Bth.READ_FIRST, Bth.ATOMIC_ACK + 1))
IS_REQUEST: Final[Bools] = _T.known & ~IS_RESPONSE

#: big-endian view of a header row: fixed part, and the extended headers laid over each other
_ROW: Final[np.dtype[np.void]] = np.dtype(
    {
        "names": [
            "dst_hi", "dst_lo", "src_hi", "src_lo", "ethertype", "ver_ihl", "tos", "ip_len", "ip_id",
            "ip_frag", "ttl", "proto", "ip_csum", "src_ip", "dst_ip", "udp_sport", "udp_dport", "udp_len",
            "udp_csum", "opcode", "flags", "pkey", "qp_word", "psn_word", "va", "rkey", "dma_len",
            "aeth_word", "orig",
        ],
        "formats": [
            ">u2", ">u4", ">u2", ">u4", ">u2", "u1", "u1", ">u2", ">u2", ">u2",
            "u1", "u1", ">u2", ">u4", ">u4", ">u2", ">u2", ">u2", ">u2",
            "u1", "u1", ">u2", ">u4", ">u4", ">u8", ">u4", ">u4", ">u4", ">u8",
        ],
        "offsets": [
            0, 2, 6, 8, 12, 14, 15, 16, 18, 20,
            22, 23, 24, 26, 30, 34, 36, 38, 40,
            42, 43, 44, 46, 50, 54, 62, 66, 54, 58,
        ],
        "itemsize": MAX_HEADER_BYTES,
    }
)  # fmt: skip
#: fields that stand in the row as they stand in PACKET_FIELDS
_PLAIN: Final = (
    "ethertype", "ver_ihl", "tos", "ip_len", "ip_id", "ip_frag", "ttl", "proto", "ip_csum", "src_ip",
    "dst_ip", "udp_sport", "udp_dport", "udp_len", "udp_csum", "opcode", "pkey",
)  # fmt: skip


def new(**fields: Any) -> Rec:
    """Packets with the constants of wire.md 1 and 2 filled in; `fields` are scalars or arrays of n.

    Everything may be overridden. Lengths, pad and IPv4 checksum come from `derive`. Gives PACKET_FIELDS [n].
    """
    constants = {
        "ethertype": ETHERTYPE_IPV4, "ver_ihl": 0x45, "tos": 132, "ip_frag": IP_DF, "ttl": 64, "proto": 17,
        "udp_dport": ROCE_PORT, "migreq": 1, "pkey": PKEY,
    }  # fmt: skip
    return to_fields(PACKET_FIELDS, {**constants, **fields}, _WIDTHS)


def derive(fields: Rec) -> Rec:
    """A copy of `fields` with pad, IP and UDP length and IPv4 checksum as opcode and payload_len ask."""
    out = fields.copy()
    payload = out["payload_len"].astype(np.int64)
    out["pad"] = -payload % 4
    total = MIN_IP_LEN + EXT_BYTES[out["opcode"]] + payload + out["pad"]
    if out.size and int(total.max()) > 0xFFFF:
        raise ValueError("payload does not fit an IPv4 packet")
    out["ip_len"] = total
    out["udp_len"] = total - IP_BYTES
    out["ip_csum"] = 0
    rows, _ = build_headers(out)
    out["ip_csum"] = ~_ip_sum(rows).astype(np.uint16)
    return out


def build_headers(fields: Fields) -> tuple[U8, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Encode headers as they are given (see `new` and `derive` for what makes them right).

    Returns (rows, lengths): uint8[n, 98] with zeros after each header, and int64[n] bytes of each header.
    Raises ValueError for a value wider than its field.
    """
    f = to_fields(PACKET_FIELDS, fields, _WIDTHS)
    rows = np.zeros((f.size, MAX_HEADER_BYTES), np.uint8)
    row = rows.view(_ROW)[:, 0]
    for name in _PLAIN:
        row[name] = f[name]
    for mac, high, low in (("dst_mac", "dst_hi", "dst_lo"), ("src_mac", "src_hi", "src_lo")):
        row[high] = f[mac] >> np.uint64(32)
        row[low] = f[mac] & np.uint64(0xFFFF_FFFF)
    row["flags"] = f["se"] << 7 | f["migreq"] << 6 | f["pad"] << 4 | f["tver"]
    row["qp_word"] = f["rsv8"].astype(np.uint32) << 24 | f["dest_qp"]
    row["psn_word"] = f["ackreq"].astype(np.uint32) << 31 | f["rsv7"].astype(np.uint32) << 24 | f["psn"]

    op = f["opcode"]
    atomic = np.isin(op, list(ATOMIC_BTH))
    has_va = _T.reth[op] | atomic
    row["va"][has_va] = f["va"][has_va]
    row["rkey"][has_va] = f["rkey"][has_va]
    reth = _T.reth[op]
    row["dma_len"][reth] = f["dma_len"][reth]
    aeth = _T.aeth[op]
    row["aeth_word"][aeth] = (f["syndrome"].astype(np.uint32) << 24 | f["msn"])[aeth]
    orig = op == Bth.ATOMIC_ACK
    row["orig"][orig] = f["orig"][orig]
    for pick, name, offset, size in _optional(op):
        at = FIXED_BYTES + offset
        value = np.ascontiguousarray(f[name][pick].astype(_BIG_OPERAND[size]))
        rows[pick, at : at + size] = value.view(np.uint8).reshape(-1, size)
    return rows, FIXED_BYTES + EXT_BYTES[op].astype(np.int64)


def parse_headers(buf: U8, off: IntLike, length: IntLike, check_icrc: bool = True) -> Rec:
    """Decode frames and run the receive checks that need no knowledge of the receiver.

    buf: uint8, 1-D. off: int[n], first byte of each frame in buf. length: int[n], bytes of each on the link.
    check_icrc: False leaves the ICRC unjudged (a scoreboard that has its own oracle).
    Returns PARSED_FIELDS [n]; reason is the first failing check of those done here, `receive_check` adds the
    rest.
    Bytes beyond a frame's end read as 0. Raises ValueError for a frame outside the buffer.
    """
    start = np.atleast_1d(np.asarray(off, np.int64))
    size = np.broadcast_to(np.asarray(length, np.int64), start.shape)
    out: Rec = np.zeros(start.size, PARSED_FIELDS)
    if not start.size:
        return out
    if int(start.min()) < 0 or int(size.min()) < 0 or int((start + size).max()) > buf.size:
        raise ValueError("frame outside the buffer")
    rows = _header_rows(buf, start, size)
    row = rows.view(_ROW)[:, 0]
    for name in _PLAIN:
        out[name] = row[name]
    out["dst_mac"] = row["dst_hi"].astype(np.uint64) << np.uint64(32) | row["dst_lo"]
    out["src_mac"] = row["src_hi"].astype(np.uint64) << np.uint64(32) | row["src_lo"]
    flags, qp_word, psn_word = row["flags"], row["qp_word"].astype("<u4"), row["psn_word"].astype("<u4")
    out["se"] = flags >> 7
    out["migreq"] = flags >> 6 & 1
    out["pad"] = flags >> 4 & 3
    out["tver"] = flags & 15
    out["rsv8"] = qp_word >> 24
    out["dest_qp"] = qp_word & 0xFF_FFFF
    out["ackreq"] = psn_word >> 31
    out["rsv7"] = psn_word >> 24 & 0x7F
    out["psn"] = psn_word & 0xFF_FFFF

    op = out["opcode"]
    reth, aeth = _T.reth[op], _T.aeth[op]
    has_va = reth | np.isin(op, list(ATOMIC_BTH))
    out["va"] = np.where(has_va, row["va"], 0)
    out["rkey"] = np.where(has_va, row["rkey"], 0)
    out["dma_len"] = np.where(reth, row["dma_len"], 0)
    aeth_word = np.where(aeth, row["aeth_word"], 0)
    out["syndrome"] = aeth_word >> 24
    out["msn"] = aeth_word & 0xFF_FFFF
    out["orig"] = np.where(op == Bth.ATOMIC_ACK, row["orig"], 0)
    for pick, name, offset, width in _optional(op):
        at = FIXED_BYTES + offset
        raw = np.ascontiguousarray(rows[pick, at : at + width])
        out[name][pick] = raw.view(_BIG_OPERAND[width])[:, 0]

    ext = EXT_BYTES[op].astype(np.int64)
    rest = out["ip_len"].astype(np.int64) - MIN_IP_LEN - ext
    out["hdr_len"] = FIXED_BYTES + ext
    out["payload_off"] = start + out["hdr_len"]
    out["payload_len"] = np.maximum(rest - out["pad"], 0)
    out["l2_len"] = ETH_BYTES + out["ip_len"].astype(np.uint32)

    fails = np.zeros(start.size, np.uint16)
    _mark(fails, RxReason.SHORT, size < MIN_FRAME_BYTES)
    _mark(fails, RxReason.ETHERTYPE, out["ethertype"] != ETHERTYPE_IPV4)
    # 0x3fff: fragment offset and "more fragments"
    bad_ip = (out["ver_ihl"] != 0x45) | (_ip_sum(rows) != 0xFFFF) | (out["ip_frag"] & 0x3FFF != 0)
    _mark(fails, RxReason.IPV4, bad_ip | (out["proto"] != 17))
    _mark(fails, RxReason.UDP_PORT, out["udp_dport"] != ROCE_PORT)
    bad_len = (out["l2_len"] > size) | (out["ip_len"] != out["udp_len"].astype(np.uint32) + IP_BYTES)
    bad_len |= (out["ip_len"] & 3 != 0) | (rest < out["pad"]) | (out["payload_len"] > MAX_PAYLOAD)
    bad_len |= (rest != 0) & _T.known[op] & ~_T.payload[op]
    _mark(fails, RxReason.LENGTH, bad_len)
    _read_icrc(buf, start, out, fails, check_icrc)
    _mark(fails, RxReason.TVER, out["tver"] != 0)
    _mark(fails, RxReason.OPCODE, ~_T.known[op])
    _mark(fails, RxReason.PKEY, out["pkey"] != PKEY)
    out["fails"] = fails
    out["reason"] = first_fail(fails)
    return out


def receive_check(
    parsed: Rec, mac: IntLike, ip: IntLike, rts: Bools, peer_ip: U32, first_qpn: int = 2, pe: IntLike = 0
) -> U8:
    """RxReason of each parsed frame at its receiver, all checks before the PSN in the order of wire.md 1.

    mac, ip: own addresses, scalar or one per PE. rts: bool[num_qp] or [n_pe, num_qp], QP is in RTS. peer_ip:
    uint32 of the same shape, its peer's address. pe: int[n], the receiver of each frame, index into those.
    Updates parsed["fails"] and parsed["reason"] in place and returns the latter.
    """
    who = np.broadcast_to(np.asarray(pe, np.int64), parsed.shape)
    states, peers = np.atleast_2d(rts), np.atleast_2d(peer_ip)
    fails = parsed["fails"]
    _mark(fails, RxReason.MAC, parsed["dst_mac"] != np.atleast_1d(np.asarray(mac, np.uint64))[who])
    _mark(fails, RxReason.IP_DST, parsed["dst_ip"] != np.atleast_1d(np.asarray(ip, np.uint32))[who])
    index = parsed["dest_qp"].astype(np.int64) - first_qpn
    inside = (index >= 0) & (index < states.shape[1])
    index = np.where(inside, index, 0)
    _mark(fails, RxReason.QP, ~inside | ~states[who, index])
    _mark(fails, RxReason.IP_SRC, parsed["src_ip"] != peers[who, index])
    parsed["reason"] = first_fail(fails)
    reason: U8 = parsed["reason"]
    return reason


def first_fail(fails: np.ndarray[Any, np.dtype[np.uint16]]) -> U8:
    """Number of the lowest set bit of each fail mask, 0 (RxReason.OK) for none: uint8[n]."""
    lowest = fails & (~fails + np.uint16(1))
    # exact: a float64 holds every power of two
    out: U8 = np.log2(np.maximum(lowest, 1)).astype(np.uint8)
    return out


def frames(fields: Fields, payloads: Sequence[bytes | U8]) -> list[bytes]:
    """Whole frames: headers as given, payload, zero pad (fields' `pad` bytes), ICRC.

    Raises ValueError where a payload's length is not the field's payload_len.
    """
    f = to_fields(PACKET_FIELDS, fields, _WIDTHS)
    rows, lengths = build_headers(f)
    parts = []
    for row, length, payload, want, pad in zip(
        rows, lengths.tolist(), payloads, f["payload_len"].tolist(), f["pad"].tolist(), strict=True
    ):
        data = bytes(payload)
        if len(data) != want:
            raise ValueError(f"payload of {len(data)} bytes, header says {want}")
        parts.append(row[:length].tobytes() + data + bytes(pad))
    sizes = np.array([len(part) for part in parts], np.int64)
    starts = np.cumsum(sizes) - sizes
    crc = icrc_packets(np.frombuffer(b"".join(parts), np.uint8), starts + ETH_BYTES, sizes - ETH_BYTES)
    return [part + int(c).to_bytes(4, "little") for part, c in zip(parts, crc, strict=True)]


def frame(fields: Rec | Mapping[str, Any], payload: bytes | U8 = b"") -> bytes:
    """One whole, right frame: constants, lengths, pad, checksum and ICRC are filled in.

    fields: mapping over `new`'s constants, or a PACKET_FIELDS array of one element, taken as it is.
    """
    if isinstance(fields, np.ndarray):
        return frames(fields, [payload])[0]
    return frames(derive(new(**{**fields, "payload_len": len(payload)})), [payload])[0]


def _mark(fails: np.ndarray[Any, np.dtype[np.uint16]], reason: RxReason, where: Bools) -> None:
    """Set the bit of `reason` in `fails`, in place."""
    fails |= where.astype(np.uint16) << np.uint16(reason)


def _optional(op: U8) -> list[tuple[Bools, str, int, int]]:
    """(packets, field, offset in the extended headers, bytes) of immediates and operands that are present."""
    found: list[tuple[Bools, str, int, int]] = []
    present = np.bincount(op, minlength=256) > 0
    for imm_op, offset in _IMM_OPS.items():
        if present[imm_op]:
            found.append((op == imm_op, "imm", offset, 4))
    for atomic, operands in _ATOMIC_OPS.items():
        if present[atomic]:
            found += [(op == atomic, name, offset, size) for name, offset, size in operands]
    return found


def _ip_sum(rows: U8) -> U32:
    """Ones' complement sum, folded to 16 bits, of the ten words of the IPv4 header in each row."""
    words = rows[:, :MAX_HEADER_BYTES].view(">u2")[:, ETH_BYTES // 2 : (ETH_BYTES + IP_BYTES) // 2]
    total: U32 = words.sum(axis=1, dtype=np.uint32)
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)


def _header_rows(buf: U8, start: np.ndarray[Any, np.dtype[np.int64]], size: np.ndarray[Any, Any]) -> U8:
    """uint8[n, 98]: the first bytes of each frame, zeros beyond its end."""
    last = int(start.max()) + MAX_HEADER_BYTES
    if last > buf.size:
        # only the tail is copied: windows must not leave the buffer
        cut = max(0, buf.size - MAX_HEADER_BYTES)
        tail = np.concatenate([buf[cut:], np.zeros(last - buf.size, np.uint8)])
        rows = np.empty((start.size, MAX_HEADER_BYTES), np.uint8)
        inner = start + MAX_HEADER_BYTES <= buf.size
        if inner.any():
            rows[inner] = np.lib.stride_tricks.sliding_window_view(buf, MAX_HEADER_BYTES)[start[inner]]
        rows[~inner] = np.lib.stride_tricks.sliding_window_view(tail, MAX_HEADER_BYTES)[start[~inner] - cut]
    else:
        rows = np.lib.stride_tricks.sliding_window_view(buf, MAX_HEADER_BYTES)[start]
    short = np.nonzero(size < MAX_HEADER_BYTES)[0]
    if short.size:
        beyond = np.arange(MAX_HEADER_BYTES) >= size[short][:, None]
        rows[short] = np.where(beyond, np.uint8(0), rows[short])
    return rows


def _read_icrc(
    buf: U8, start: np.ndarray[Any, Any], out: Rec, fails: np.ndarray[Any, np.dtype[np.uint16]], check: bool
) -> None:
    """Fill in the received ICRC of frames that passed the checks before it, and judge it where asked."""
    before = np.uint16((1 << RxReason.ICRC) - 1)
    whole = np.nonzero(fails & before == 0)[0]
    if not whole.size:
        return
    at = start[whole] + out["l2_len"][whole] - ICRC_BYTES
    got = np.lib.stride_tricks.sliding_window_view(buf, ICRC_BYTES)[at].view("<u4")[:, 0]
    out["icrc"][whole] = got
    if check:
        covered = out["l2_len"][whole].astype(np.int64) - ETH_BYTES - ICRC_BYTES
        bad = icrc_packets(buf, start[whole] + ETH_BYTES, covered) != got
        fails[whole[bad]] |= np.uint16(1 << RxReason.ICRC)
