"""Packet codec: builder, parser, receive checks.

Sweep: all 25 opcodes, all header fields, payloads 0 to 4096, each receive check; stimulus: hypothesis,
planted faults, captured frames where the reference folder exists. Checks: a scalar encoder written here with
struct, zlib's CRC, tshark as third party, and that the first failing check in the order of wire.md 1 is
named. Timing: none. Does not prove what a NIC does with a good packet.
"""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.formats import packet
from pymodel.formats.packet import PACKET_FIELDS, Bth, RxReason
from tests import capture

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=150)
FRAMES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "roce_frames.json"

# wire.md 2 and 3: extended headers by opcode, in order, as (field, bytes)
RETH = [("va", 8), ("rkey", 4), ("dma_len", 4)]
AETH = [("syndrome", 1), ("msn", 3)]
IMM = [("imm", 4)]
ATOMIC = [("va", 8), ("rkey", 4), ("swap_add", 8), ("compare", 8)]
EXT: dict[int, list[tuple[str, int]]] = {
    0x00: [], 0x01: [], 0x02: [], 0x03: IMM, 0x04: [], 0x05: IMM, 0x06: RETH, 0x07: [], 0x08: [], 0x09: IMM,
    0x0A: RETH, 0x0B: RETH + IMM, 0x0C: RETH, 0x0D: AETH, 0x0E: [], 0x0F: AETH, 0x10: AETH, 0x11: AETH,
    0x12: [*AETH, ("orig", 8)], 0x13: ATOMIC, 0x14: ATOMIC,
    0xC0: [*ATOMIC, ("swap_mask", 8), ("compare_mask", 8)], 0xC1: ATOMIC,
    0xC2: [("va", 8), ("rkey", 4), ("swap_add", 4), ("compare", 4), ("swap_mask", 4), ("compare_mask", 4)],
    0xC3: [("va", 8), ("rkey", 4), ("swap_add", 4), ("compare", 4)],
}  # fmt: skip
WITH_PAYLOAD = [*range(0x0C), *range(0x0D, 0x11)]


def ip_checksum(header: bytes) -> int:
    """Checksum of 20 bytes."""
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def reference_header(f: dict[str, int]) -> bytes:
    """Scalar encoder of what the fields say."""
    eth = (
        f["dst_mac"].to_bytes(6, "big") + f["src_mac"].to_bytes(6, "big") + struct.pack(">H", f["ethertype"])
    )
    ip = struct.pack(
        ">BBHHHBBHII", f["ver_ihl"], f["tos"], f["ip_len"], f["ip_id"], f["ip_frag"], f["ttl"], f["proto"],
        f["ip_csum"], f["src_ip"], f["dst_ip"],
    )  # fmt: skip
    udp = struct.pack(">HHHH", f["udp_sport"], f["udp_dport"], f["udp_len"], f["udp_csum"])
    flags = f["se"] << 7 | f["migreq"] << 6 | f["pad"] << 4 | f["tver"]
    bth = struct.pack(
        ">BBHII", f["opcode"], flags, f["pkey"], f["rsv8"] << 24 | f["dest_qp"],
        f["ackreq"] << 31 | f["rsv7"] << 24 | f["psn"],
    )  # fmt: skip
    return eth + ip + udp + bth + b"".join(f[name].to_bytes(size, "big") for name, size in EXT[f["opcode"]])


BITS = {name: 8 * PACKET_FIELDS[name].itemsize for name in PACKET_FIELDS.names or ()} | {
    "dst_mac": 48, "src_mac": 48, "dest_qp": 24, "psn": 24, "msn": 24, "se": 1, "migreq": 1, "pad": 2,
   "tver": 4,
    "ackreq": 1, "rsv7": 7,
}  # fmt: skip


#: fields that not every opcode has
OPTIONAL = [
    "va", "rkey", "dma_len", "imm", "orig", "swap_add", "compare", "swap_mask", "compare_mask", "msn",
    "syndrome",
]  # fmt: skip


@st.composite
def any_header(draw: Any) -> dict[str, int]:
    """All fields arbitrary, those that the opcode does not have 0."""
    f = {name: draw(st.integers(0, (1 << bits) - 1)) for name, bits in BITS.items()}
    f["opcode"] = draw(st.sampled_from(sorted(EXT)))
    present = dict(EXT[f["opcode"]])
    for name in OPTIONAL:
        f[name] &= (1 << 8 * present.get(name, 0)) - 1
    f["payload_len"] = 0
    return f


def columns(many: list[dict[str, int]]) -> dict[str, list[int]]:
    """Fields by name, as the codec takes them."""
    return {name: [f[name] for f in many] for name in PACKET_FIELDS.names or ()}


def flat(frames: list[bytes]) -> tuple[Any, Any, Any]:
    """Frames as buffer, offsets, lengths."""
    size = np.array([len(f) for f in frames])
    return np.frombuffer(b"".join(frames), np.uint8), np.cumsum(size) - size, size


@SETTINGS
@given(st.lists(any_header(), min_size=1, max_size=8))
def test_header_bytes_both_ways(many: list[dict[str, int]]) -> None:
    """Even nonsense in every field: the builder writes what it is told, the parser reads what is there."""
    rows, lengths = packet.build_headers(columns(many))
    want = [reference_header(f) for f in many]
    assert [row[:n].tobytes() for row, n in zip(rows, lengths, strict=True)] == want
    assert not any(row[n:].any() for row, n in zip(rows, lengths, strict=True))
    parsed = packet.parse_headers(*flat(want), check_icrc=False)
    for got, f in zip(parsed, many, strict=True):
        assert {n: int(got[n]) for n in f if n != "payload_len"} == {
            n: v for n, v in f.items() if n != "payload_len"
        }


def test_every_opcode_has_its_headers() -> None:
    """Tables of the module against those above."""
    assert sorted(EXT) == sorted(Bth)
    assert {int(op): int(packet.EXT_BYTES[op]) for op in Bth} == {
        op: sum(n for _, n in e) for op, e in EXT.items()
    }
    assert [int(packet.EXT_BYTES[op]) for op in (0xC0, 0xC1, 0xC2, 0xC3)] == [44, 28, 28, 20]
    assert np.nonzero(packet.IS_RESPONSE)[0].tolist() == [0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12]
    assert packet.IS_REQUEST.sum() + 6 == len(Bth)


BASE = {
    "dst_mac": 0x02AABBCCDDEE, "src_mac": 0x021122334455, "dst_ip": 0x0A000002, "src_ip": 0x0A000001,
    "udp_sport": 0xC02A, "dest_qp": 3,
}  # fmt: skip


def random_packets(seed: int, n: int, opcodes: list[int]) -> tuple[Any, list[bytes]]:
    """Right packets of random opcodes and payloads."""
    rng = np.random.default_rng(seed)
    op = rng.choice(opcodes, n)
    payload = np.where(np.isin(op, WITH_PAYLOAD), rng.integers(0, 300, n), 0)
    payload[: n // 8] = np.where(np.isin(op[: n // 8], WITH_PAYLOAD), 4096, 0)
    word = {
        name: rng.integers(0, 1 << BITS[name], n, dtype=np.uint64)
        for name in ("rkey", "dma_len", "imm", "psn")
    }
    word |= {name: rng.integers(0, 1 << 63, n, dtype=np.uint64) for name in ("va", "orig")}
    for name in ("swap_add", "compare", "swap_mask", "compare_mask"):
        word[name] = rng.integers(0, 1 << 32, n, dtype=np.uint64)
    fields = packet.derive(
        packet.new(
            **BASE, **word, opcode=op, payload_len=payload, ackreq=rng.integers(0, 2, n), msn=7, syndrome=0x1F
        )
    )
    # what the opcode has not got is 0 after parsing
    for name in OPTIONAL:
        fields[name][[name not in dict(EXT[int(o)]) for o in op]] = 0
    data = [rng.integers(0, 256, int(size), dtype=np.uint8).tobytes() for size in payload]
    return fields, data


def test_whole_frames_both_ways() -> None:
    """Frames of every opcode, built, taken apart here, and parsed."""
    fields, data = random_packets(1, 400, sorted(EXT))
    frames = packet.frames(fields, data)
    for f, raw, payload in zip(fields, frames, data, strict=True):
        head = reference_header({n: int(f[n]) for n in PACKET_FIELDS.names or ()})
        body = head + payload + bytes(-len(payload) % 4)
        masked = bytearray(body[14:])
        for i in (1, 8, 10, 11, 26, 27, 32):
            masked[i] = 0xFF
        assert raw == body + zlib.crc32(b"\xff" * 8 + masked).to_bytes(4, "little")
        assert struct.unpack(">H", raw[16:18])[0] == len(raw) - 14
        assert struct.unpack(">H", raw[38:40])[0] == len(raw) - 34
        assert raw[24:26] == ip_checksum(raw[14:24] + b"\0\0" + raw[26:34]).to_bytes(2, "big")
    buf, off, size = flat(frames)
    parsed = packet.parse_headers(buf, off, size)
    assert not parsed["reason"].any() and not parsed["fails"].any()
    for name in PACKET_FIELDS.names or ():
        assert (parsed[name] == fields[name]).all(), name
    for got, payload in zip(parsed, data, strict=True):
        assert buf[got["payload_off"] :][: got["payload_len"]].tobytes() == payload
    assert (parsed["l2_len"] == size).all()


def test_constants_of_a_frame() -> None:
    """Typed in from wire.md 1 and 2: a WRITE Only of one byte."""
    raw = packet.frame({**BASE, "opcode": Bth.WRITE_ONLY, "psn": 0x123456, "ackreq": 1,
                        "va": 0x1122334455667788, "rkey": 0xA1A2A3A4, "dma_len": 1}, b"\x5a")  # fmt: skip
    assert raw[:14].hex() == "02aabbccddee" + "021122334455" + "0800"
    assert raw[14:34].hex() == "45840040" + "00004000" + "4011" + raw[24:26].hex() + "0a0000010a000002"
    assert raw[34:42].hex() == "c02a12b7002c0000"
    assert raw[42:54].hex() == "0a70ffff" + "00000003" + "80123456"
    assert raw[54:70].hex() == "1122334455667788" + "a1a2a3a4" + "00000001"
    assert raw[70:74].hex() == "5a000000" and len(raw) == 78


LOCAL = {
    "mac": BASE["dst_mac"], "ip": BASE["dst_ip"], "rts": np.array([False, True, False]),
    "peer_ip": np.array([BASE["src_ip"]] * 3, np.uint32),
}  # fmt: skip


def planted(reason: RxReason) -> list[bytes]:
    """Frames that fail this check; the right one elsewhere."""

    def make(payload: bytes = b"abcde", derive: bool = True, **change: int) -> bytes:
        f = packet.new(**{**BASE, "opcode": Bth.WRITE_ONLY, "payload_len": len(payload), **change})
        if derive:
            f = packet.derive(f)
        return packet.frames(f, [payload])[0]

    def after(**change: int) -> bytes:
        """Changed behind `derive`, checksum made right again."""
        f = packet.derive(packet.new(**{**BASE, "opcode": Bth.WRITE_ONLY, "payload_len": 5}))
        for name, value in change.items():
            f[name] = value
        if "ip_csum" not in change:
            f["ip_csum"] = 0
            f["ip_csum"] = ip_checksum(packet.build_headers(f)[0][0, 14:34].tobytes())
        return packet.frames(f, [b"abcde"])[0]

    good = make()
    ack = packet.frame({**BASE, "opcode": Bth.ACK, "syndrome": 0x1F})
    match reason:
        case RxReason.OK:
            return [
                good, ack, make(b""), make(tos=0), make(ttl=1), make(udp_sport=1), make(udp_csum=0x1234),
                make(bytes(4096)), make(bytes(4095)), make(migreq=0), make(rsv8=0xC0), make(rsv7=0x7F),
                make(se=1), make(ip_id=9), make(ip_frag=0),
                good + b"trailing bytes", make(src_mac=1), ack + bytes(2),
            ]  # fmt: skip
        case RxReason.SHORT:
            return [good[:57], b"", good[:1], good[:14], ack[:57]]
        case RxReason.MAC:
            return [make(dst_mac=BASE["dst_mac"] ^ 1 << bit) for bit in (0, 31, 32, 47)]
        case RxReason.ETHERTYPE:
            return [make(ethertype=e) for e in (0x8100, 0x86DD, 0x8915, 0x0801, 0x0900)]
        case RxReason.IPV4:
            broken = [
                after(ip_csum=0),
                make(ver_ihl=0x46),
                make(ver_ihl=0x65),
                make(ver_ihl=0x44),
                make(proto=6),
            ]
            return [*broken, make(ip_frag=0x2000), make(ip_frag=0x4001), make(ip_frag=0x1000)]
        case RxReason.IP_DST:
            return [make(dst_ip=BASE["dst_ip"] ^ 1 << bit) for bit in (0, 31)]
        case RxReason.UDP_PORT:
            return [make(udp_dport=4790), make(udp_dport=0x12B7 ^ 0x8000)]
        case RxReason.LENGTH:
            wrong = [after(udp_len=n) for n in (43, 45, 47, 49, 52)]
            wrong += [after(ip_len=n, udp_len=n - 20) for n in (40, 56, 65, 66, 67, 72, 0xFFFC)]
            wrong += [make(bytes(4097)), make(bytes(4100), opcode=Bth.SEND_MIDDLE), make(bytes(8192))]
            # pad greater than what is left, payload where the opcode has none
            wrong += [make(b"", derive=False, pad=1, **whole(60)), make(b"abcd", opcode=Bth.ACK)]
            return [
                *wrong,
                make(b"abcd", opcode=Bth.READ_REQUEST),
                make(b"abcd", opcode=Bth.MFA32),
                good[:-1],
            ]
        case RxReason.ICRC:
            flipped = [
                bytes(b ^ (i == at) for i, b in enumerate(good)) for at in (45, 54, 62, 70, 74, 77, 78, 81)
            ]
            return [*flipped, good[:-4] + good[-1:-5:-1]]
        case RxReason.TVER:
            return [make(tver=1), make(tver=8)]
        case RxReason.OPCODE:
            return [make(opcode=op) for op in (0x15, 0x16, 0x17, 0x64, 0x81, 0xBF, 0xC4, 0xFF)]
        case RxReason.PKEY:
            return [make(pkey=0x7FFF), make(pkey=0xFFFE), make(pkey=0)]
        case RxReason.QP:
            return [make(dest_qp=q) for q in (0, 1, 2, 4, 5, 0x10003, 0xFFFFFF)]
        case RxReason.IP_SRC:
            return [make(src_ip=BASE["src_ip"] ^ 1 << bit) for bit in (0, 31)]


def whole(ip_len: int) -> dict[str, int]:
    """IP length, UDP length and a right checksum for a packet that `derive` must not touch."""
    f = packet.new(**{**BASE, "opcode": Bth.WRITE_ONLY, "ip_len": ip_len, "udp_len": ip_len - 20})
    return {
        "ip_len": ip_len, "udp_len": ip_len - 20,
        "ip_csum": ip_checksum(packet.build_headers(f)[0][0, 14:34].tobytes()),
    }  # fmt: skip


def judge(frames: list[bytes]) -> list[RxReason]:
    """All receive checks on frames sent to LOCAL."""
    parsed = packet.parse_headers(*flat(frames))
    packet.receive_check(parsed, **LOCAL)
    return [RxReason(r) for r in parsed["reason"]]


@pytest.mark.parametrize("reason", RxReason)
def test_each_receive_check(reason: RxReason) -> None:
    """Every planted frame is named by its check, in one batch and alone at the end of a buffer."""
    frames = planted(reason)
    assert judge(frames) == [reason] * len(frames)
    assert [judge([f])[0] for f in frames] == [reason] * len(frames)


ORDER = list(RxReason)[1:]
CHANGES: dict[RxReason, dict[str, int]] = {
    RxReason.MAC: {"dst_mac": 1}, RxReason.ETHERTYPE: {"ethertype": 0x8915}, RxReason.IPV4: {"proto": 6},
    RxReason.IP_DST: {"dst_ip": 1}, RxReason.UDP_PORT: {"udp_dport": 53}, RxReason.LENGTH: {"udp_len": 8},
    RxReason.TVER: {"tver": 2}, RxReason.OPCODE: {"opcode": 0x40}, RxReason.PKEY: {"pkey": 1},
    RxReason.QP: {"dest_qp": 9}, RxReason.IP_SRC: {"src_ip": 2},
}  # fmt: skip


@pytest.mark.parametrize("first", ORDER)
@pytest.mark.parametrize("second", ORDER)
def test_the_first_of_two_failing_checks_is_named(first: RxReason, second: RxReason) -> None:
    """wire.md 1: the order of the checks, pair by pair."""
    if ORDER.index(first) >= ORDER.index(second):
        first, second = second, first
    opcode = CHANGES[RxReason.OPCODE]["opcode"] if RxReason.OPCODE in (first, second) else Bth.WRITE_ONLY
    f = packet.derive(packet.new(**{**BASE, "opcode": opcode, "payload_len": 5}))
    for reason in {first, second}:
        for name, value in CHANGES.get(reason, {}).items():
            f[name] = value
    f["ip_csum"] = 0
    f["ip_csum"] = ip_checksum(packet.build_headers(f)[0][0, 14:34].tobytes())
    raw = bytearray(packet.frames(f, [b"abcde"])[0])
    if RxReason.ICRC in (first, second):
        raw[-1] ^= 1
    if RxReason.SHORT in (first, second):
        del raw[50:]
    assert judge([bytes(raw)]) == [first]


def test_several_receivers_at_once() -> None:
    """Frames of several NICs in one call."""
    frames = [packet.frame({**BASE, "opcode": Bth.SEND_ONLY, "dst_mac": m, "dst_ip": i, "dest_qp": q})
              for m, i, q in ((10, 20, 2), (11, 21, 2), (11, 21, 3), (10, 21, 2))]  # fmt: skip
    parsed = packet.parse_headers(*flat(frames))
    rts = np.array([[True, False], [False, True]])
    peer = np.full((2, 2), BASE["src_ip"], np.uint32)
    reason = packet.receive_check(parsed, [10, 11], [20, 21], rts, peer, pe=[0, 1, 1, 1])
    assert [RxReason(r).name for r in reason] == ["OK", "QP", "OK", "MAC"]


def test_reason_numbers_fit_the_counters() -> None:
    """Each drop has the counter of its name."""
    from pymodel.nic.params import Cnt

    for reason in ORDER:
        assert Cnt(reason + 2).name == f"DROP_{reason.name}"


def test_first_fail_is_exact_for_every_bit() -> None:
    """Lowest bit of a mask."""
    masks = np.array([0, *(1 << b for b in range(1, 16)), 0xFFFE, 0x3000], np.uint16)
    assert packet.first_fail(masks).tolist() == [0, *range(1, 16), 1, 12]


def test_refusals() -> None:
    """Empty input and refusals."""
    buf = np.zeros(60, np.uint8)
    assert packet.parse_headers(buf, np.zeros(0, np.int64), np.zeros(0, np.int64)).size == 0
    for off, size in ((0, 61), (-1, 10), (59, 2)):
        with pytest.raises(ValueError, match="outside"):
            packet.parse_headers(buf, off, size)
    with pytest.raises(ValueError, match="fit"):
        packet.new(psn=1 << 24)
    with pytest.raises(ValueError, match="payload"):
        packet.derive(packet.new(payload_len=65536))
    with pytest.raises(ValueError, match="says"):
        packet.frames(packet.new(payload_len=4), [b"abc"])


@pytest.mark.skipif(not FRAMES.exists(), reason="captured frames are not part of the repository")
def test_captured_frames() -> None:
    """Real adapters' frames: fields as published with them, and the ICRC judged good."""
    entries = [e for e in json.loads(FRAMES.read_text()) if e["layer"] == "eth" and not e["vlan"]]
    assert len(entries) == 56
    parsed = packet.parse_headers(*flat([bytes.fromhex(e["hex"]) for e in entries]))
    for e, p in zip(entries, parsed, strict=True):
        known = int(e["opcode"], 16) in EXT
        assert RxReason(p["reason"]) == (RxReason.OK if known else RxReason.OPCODE), e["id"]
        assert not p["fails"] >> RxReason.ICRC & 1, e["id"]
        want = {name: e[name] for name in ("udp_sport", "ttl", "psn", "se", "migreq", "ackreq", "pad")}
        published = {"opcode": "opcode", "tos": "tos", "dest_qp": "qpn", "rsv8": "bth_byte4", "pkey": "pkey"}
        want |= {name: int(e[key], 16) for name, key in published.items()}
        want["icrc"] = int.from_bytes(bytes.fromhex(e["icrc"]), "little")
        assert {n: int(p[n]) for n in want} == want, e["id"]
        if known and "aeth_msn" in e:
            assert (int(p["syndrome"]), int(p["msn"])) == (int(e["aeth_syndrome"], 16), e["aeth_msn"]), e[
                "id"
            ]
        # taken apart and put together again: the same bytes
        if known:
            raw = bytes.fromhex(e["hex"])
            again = np.zeros(1, PACKET_FIELDS)
            for name in PACKET_FIELDS.names or ():
                again[name] = p[name]
            payload = raw[int(p["hdr_len"]) :][: int(p["payload_len"])]
            assert packet.frames(again, [payload])[0] == raw, e["id"]


def test_tshark_decodes_what_we_build(tmp_path: Path) -> None:
    """A third party's dissector on every opcode: each field, nothing else, payload, place of the ICRC.

    It does not calculate the ICRC. tools/camhil.lua, which names the masked atomics for it, is judged too.
    """
    fields, data = random_packets(5, 240, sorted(EXT))
    frames = packet.frames(fields, data)
    pcap = tmp_path / "built.pcap"
    capture.write_pcap(pcap, frames)
    always = [name for name in capture.FIELDS.values() if name not in OPTIONAL]
    seen: set[int] = set()
    payloads = capture.tshark(pcap, ["data.data"])
    for f, payload, raw, values, shown in zip(
        fields, data, frames, capture.headers(pcap), payloads, strict=True
    ):
        want = {name: int(f[name]) for name in [*always, *(name for name, _ in EXT[int(f["opcode"])])]}
        want |= {"ip_csum_good": 1, "crc": int.from_bytes(raw[-4:], "big")}
        assert values == want
        assert bytes.fromhex(shown[0]) == payload + bytes(-len(payload) % 4)
        assert capture.icrc(raw) == raw[-4:]
        seen.add(int(f["opcode"]))
    assert seen == set(EXT)


def test_our_dissector_says_what_is_wrong(tmp_path: Path) -> None:
    """tools/camhil.lua: a misaligned address or a frame that ends too soon is marked, the opcode named."""
    base = {**BASE, "va": 4}
    good = [packet.frame({**base, "opcode": op, "va": 8}) for op in (0xC0, 0xC1, 0xC2, 0xC3)]
    odd = [
        packet.frame({**base, "opcode": op, "va": va})
        for op, va in ((0xC0, 4), (0xC1, 9), (0xC2, 6), (0xC3, 4))
    ]
    short = [frame[: -1 - i] for i, frame in enumerate(good)] + [good[3][:60]]
    pcap = tmp_path / "built.pcap"
    capture.write_pcap(pcap, good + odd + short + [packet.frame({**BASE, "opcode": 0x13})])
    names = ["_ws.col.Info", "camhil.misaligned", "camhil.short", "camhil.rkey"]
    rows = capture.tshark(pcap, names, "-X", f"lua_script:{capture.LUA}")
    kinds = ["Masked Compare Swap, 8", "Masked Fetch Add, 8", "Masked Compare Swap, 4", "Masked Fetch Add, 4"]
    for row, kind in zip(rows, [*kinds, *kinds, *kinds, kinds[3]], strict=False):
        assert row[0].startswith(f"RC {kind} bytes QP=0x000003")
    assert [bool(row[1]) for row in rows] == [False] * 4 + [True] * 3 + [False] * 7
    assert [bool(row[2]) for row in rows] == [False] * 8 + [True] * 5 + [False]
    assert [bool(row[3]) for row in rows] == [True] * 8 + [False] * 6
    assert rows[-1][0].startswith("RC Compare Swap")
