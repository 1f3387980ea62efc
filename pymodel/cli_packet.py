"""``camhil decode packet``: a frame from Ethernet on, layer by layer (wire.md sections 1 to 4)."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from pymodel.cli_input import InputError
from pymodel.cli_report import Report, Row
from pymodel.formats import packet
from pymodel.formats.icrc import icrc
from pymodel.formats.packet import (
    ETH_BYTES,
    ETHERTYPE_IPV4,
    EXT_BYTES,
    FIXED_BYTES,
    ICRC_BYTES,
    IP_BYTES,
    IS_RESPONSE,
    MIN_FRAME_BYTES,
    ROCE_PORT,
    UDP_BYTES,
    Bth,
    RxReason,
)

_CHECK_TEXT: Final = {
    RxReason.SHORT: f"shorter than {MIN_FRAME_BYTES} bytes",
    RxReason.ETHERTYPE: "no IPv4 behind Ethernet",
    RxReason.IPV4: "IPv4 header: version, IHL, checksum, fragment or protocol",
    RxReason.UDP_PORT: f"UDP destination port is not {ROCE_PORT}",
    RxReason.LENGTH: "lengths: frame, IP, UDP, pad, or payload where the opcode has none",
    RxReason.ICRC: "ICRC",
    RxReason.TVER: "TVer is not 0",
    RxReason.OPCODE: "opcode is undefined",
    RxReason.PKEY: "P_Key is not 0xffff",
}
_ETHERTYPES: Final = {0x0800: "IPv4", 0x8100: "VLAN", 0x86DD: "IPv6", 0x8915: "RoCEv1"}
_NAKS: Final = ("PSN sequence error", "invalid request", "remote access error", "remote operational error")
_CAS: Final = {"swap_add": "swap", "compare": "compare"}
_MCAS: Final = {**_CAS, "swap_mask": "swap_mask", "compare_mask": "compare_mask"}
_FA: Final = {"swap_add": "add", "compare": "boundary"}
#: operands by opcode: bits, {field of PACKET_FIELDS: name shown} (wire.md 2, 3)
_OPERANDS: Final = {
    Bth.CMP_SWAP: (64, _CAS),
    Bth.FETCH_ADD: (64, {"swap_add": "add", "compare": "compare"}),
    Bth.MCAS64: (64, _MCAS),
    Bth.MFA64: (64, _FA),
    Bth.MCAS32: (32, _MCAS),
    Bth.MFA32: (32, _FA),
}
_RETH: Final = (Bth.WRITE_FIRST, Bth.WRITE_ONLY, Bth.WRITE_ONLY_IMM, Bth.READ_REQUEST)
_IMM: Final = (Bth.SEND_LAST_IMM, Bth.SEND_ONLY_IMM, Bth.WRITE_LAST_IMM, Bth.WRITE_ONLY_IMM)
_AETH: Final = (Bth.READ_FIRST, Bth.READ_LAST, Bth.READ_ONLY, Bth.ACK, Bth.ATOMIC_ACK)
#: bytes of payload that the text shows
_SHOWN: Final = 16


def syndrome_text(syndrome: int) -> str:
    """An AETH syndrome in words (wire.md 3)."""
    kind, value = syndrome >> 5, syndrome & 31
    if kind == 0:
        return "ACK" if value == 31 else f"ACK, credit code {value}"
    if kind == 1:
        return f"RNR NAK, timer code {value}"
    if kind == 3 and value < len(_NAKS):
        return f"NAK {value}: {_NAKS[value]}"
    return "reserved: dropped and counted"


def decode_packet(raw: bytes) -> Report:
    """A frame of any length from the Ethernet header on. Raises `InputError` for less than that header.

    Layers are shown as far as one leads to the next: no bytes are named after a layer that is not there.
    """
    if len(raw) < ETH_BYTES:
        raise InputError(f"{len(raw)} bytes: a frame begins with an Ethernet header of {ETH_BYTES}")
    f = packet.parse_headers(np.frombuffer(raw, np.uint8), 0, len(raw))[0]
    value = {name: int(f[name]) for name in f.dtype.names or ()}
    report = Report("")
    report.title = f"frame of {len(raw)} bytes: {_layers(report, raw, value)}"
    reason = RxReason(value["reason"])
    if reason == RxReason.OK:
        report.notes.append("receive checks: good, as far as the frame alone shows")
    else:
        report.notes.append(f"dropped by receive check {reason.name}: {_CHECK_TEXT[reason]}")
    report.notes.append("not judged: MAC, IP destination, QP, IP source, PSN (they need the receiver)")
    report.extra["first_failing_check"] = None if reason == RxReason.OK else reason.name
    return report


def _layers(report: Report, raw: bytes, value: dict[str, int]) -> str:
    """Add the sections of all layers that are there; gives the title."""
    report.add(
        "Ethernet",
        [
            Row("dst_mac", _mac(value["dst_mac"])),
            Row("src_mac", _mac(value["src_mac"])),
            Row("ethertype", value["ethertype"], 16, _ETHERTYPES.get(value["ethertype"], "")),
        ],
    )
    if value["ethertype"] != ETHERTYPE_IPV4 or len(raw) < ETH_BYTES + IP_BYTES:
        return "no IPv4 header" if value["ethertype"] == ETHERTYPE_IPV4 else "no IPv4"
    checksum_good = _checksum_good(raw)
    report.add(
        "IPv4",
        [
            Row("ver_ihl", value["ver_ihl"], 8, "version and header length in words"),
            Row("tos", value["tos"], 8),
            Row("ip_len", value["ip_len"], 16, "bytes from here to the ICRC's end"),
            Row("ip_id", value["ip_id"], 16),
            Row("ip_frag", value["ip_frag"], 16, "DF" if value["ip_frag"] == packet.IP_DF else ""),
            Row("ttl", value["ttl"], 8),
            Row("proto", value["proto"], 8, "UDP" if value["proto"] == 17 else ""),
            Row("ip_csum", value["ip_csum"], 16, "good" if checksum_good else "bad"),
            Row("src_ip", _ip(value["src_ip"])),
            Row("dst_ip", _ip(value["dst_ip"])),
        ],
    )
    report.extra["ip_csum_good"] = checksum_good
    if value["ver_ihl"] != 0x45 or value["proto"] != 17:
        return "IPv4 with options" if value["proto"] == 17 and value["ver_ihl"] >> 4 == 4 else "no UDP"
    if len(raw) < ETH_BYTES + IP_BYTES + UDP_BYTES:
        return "no whole UDP header"
    report.add(
        "UDP",
        [
            Row("udp_sport", value["udp_sport"], 16),
            Row("udp_dport", value["udp_dport"], 16, "RoCEv2" if value["udp_dport"] == ROCE_PORT else ""),
            Row("udp_len", value["udp_len"], 16),
            Row("udp_csum", value["udp_csum"], 16, "not used" if not value["udp_csum"] else ""),
        ],
    )
    if value["udp_dport"] != ROCE_PORT:
        return "no RoCEv2"
    if len(raw) < FIXED_BYTES:
        return "no whole BTH"
    return _roce(report, raw, value)


def _roce(report: Report, raw: bytes, value: dict[str, int]) -> str:
    """BTH, extended headers, payload and ICRC."""
    code = value["opcode"]
    op = Bth(code) if code in list(Bth) else None
    name = op.name if op is not None else "undefined"
    report.add(
        "BTH",
        [
            Row("opcode", code, 8, name),
            Row("se", value["se"], 1),
            Row("migreq", value["migreq"], 1),
            Row("pad", value["pad"], 2, "bytes of pad behind the payload"),
            Row("tver", value["tver"], 4),
            Row("pkey", value["pkey"], 16),
            Row("rsv8", value["rsv8"], 8, "FECN, BECN, reserved"),
            Row("dest_qp", value["dest_qp"], 24),
            Row("ackreq", value["ackreq"], 1),
            Row("rsv7", value["rsv7"], 7),
            Row("psn", value["psn"], 24),
        ],
    )
    report.extra["opcode_name"] = name
    title = f"{name}, QP {value['dest_qp']}, PSN {value['psn']}"
    ext = int(EXT_BYTES[code])
    if op is not None and len(raw) >= FIXED_BYTES + ext:
        _extended(report, op, value)
        if code in _AETH:
            title += f", {syndrome_text(value['syndrome'])}" if op == Bth.ACK else ""
    _payload(report, raw, value, FIXED_BYTES + ext)
    kind = "response" if IS_RESPONSE[code] else "request"
    return f"{kind} {title}" if op is not None else title


def _extended(report: Report, op: Bth, value: dict[str, int]) -> None:
    if op in _OPERANDS:
        bits, names = _OPERANDS[op]
        size = bits // 8
        aligned = "" if value["va"] % size == 0 else f"not a multiple of {size}: refused with NAK 1"
        rows = [Row("va", value["va"], 64, aligned), Row("rkey", value["rkey"], 32)]
        rows += [Row(shown, value[name], bits) for name, shown in names.items()]
        report.add("AtomicETH" if op < Bth.MCAS64 else "AtomicETH of this design (wire page 2)", rows)
    if op in _RETH:
        rows = [Row("va", value["va"], 64), Row("rkey", value["rkey"], 32)]
        report.add("RETH", [*rows, Row("dma_len", value["dma_len"], 32, "bytes of the message")])
    if op in _AETH:
        rows = [Row("syndrome", value["syndrome"], 8, syndrome_text(value["syndrome"]))]
        report.add("AETH", [*rows, Row("msn", value["msn"], 24)])
        report.extra["syndrome_text"] = syndrome_text(value["syndrome"])
    if op == Bth.ATOMIC_ACK:
        report.add("AtomicAckETH", [Row("orig", value["orig"], 64, "value before the atomic")])
    if op in _IMM:
        report.add("ImmDt", [Row("imm", value["imm"], 32)])


def _payload(report: Report, raw: bytes, value: dict[str, int], start: int) -> None:
    """Payload and ICRC, where IP length and frame length leave room for them."""
    end = ETH_BYTES + value["ip_len"]
    if not start + ICRC_BYTES <= end <= len(raw):
        report.notes.append(f"note: IP length {value['ip_len']} does not fit the frame; no payload, no ICRC")
        return
    payload = raw[start : start + value["payload_len"]]
    shown = payload[:_SHOWN].hex(" ") + (" ..." if len(payload) > _SHOWN else "")
    sent, right = raw[end - ICRC_BYTES : end], icrc(raw[ETH_BYTES : end - ICRC_BYTES])
    good = sent == right
    report.add(
        "payload and ICRC",
        [
            Row("payload_len", len(payload), 16, shown),
            Row("icrc", sent.hex(), 32, "good" if good else f"bad: these bytes have {right.hex()}"),
        ],
    )
    report.extra.update(payload=payload.hex(), icrc_good=good, icrc_computed=right.hex())
    if len(raw) > end:
        report.notes.append(f"note: {len(raw) - end} bytes behind the ICRC are ignored")


def _checksum_good(raw: bytes) -> bool:
    """Whether the ten words of the IPv4 header add up to ones."""
    total = sum(struct.unpack_from(">10H", raw, ETH_BYTES))
    return bool(total % 0xFFFF == 0 and total != 0)


def _mac(value: int) -> str:
    return value.to_bytes(6, "big").hex(":")


def _ip(value: int) -> str:
    return ".".join(str(byte) for byte in value.to_bytes(4, "big"))
