"""Outside judges of packets: a reader of pcapng, tshark, and the ICRC by zlib.

Nothing here shares code with the codec of `pymodel`, with the testbench's writer or with the RTL.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LUA = Path(__file__).resolve().parents[1] / "tools" / "camhil.lua"

#: fields of Wireshark's dissectors and their names in PACKET_FIELDS (pymodel/formats/packet.py)
FIELDS = {
    "eth.dst": "dst_mac", "eth.src": "src_mac", "ip.src": "src_ip", "ip.dst": "dst_ip", "ip.len": "ip_len",
    "ip.dsfield": "tos", "ip.ttl": "ttl", "udp.srcport": "udp_sport", "udp.dstport": "udp_dport",
    "udp.length": "udp_len", "infiniband.bth.opcode": "opcode", "infiniband.bth.se": "se",
    "infiniband.bth.m": "migreq", "infiniband.bth.padcnt": "pad", "infiniband.bth.tver": "tver",
    "infiniband.bth.p_key": "pkey", "infiniband.bth.destqp": "dest_qp", "infiniband.bth.a": "ackreq",
    "infiniband.bth.psn": "psn", "infiniband.reth.va": "va", "infiniband.reth.r_key": "rkey",
    "infiniband.reth.dmalen": "dma_len", "infiniband.aeth.syndrome": "syndrome", "infiniband.aeth.msn": "msn",
    "infiniband.immdt": "imm",
    "infiniband.atomiceth.swapdt": "swap_add", "infiniband.atomiceth.cmpdt": "compare",
    "infiniband.atomicacketh.origremdt": "orig",
}  # fmt: skip
#: the same for what tools/camhil.lua adds: masked atomics, C0 to C3
LUA_FIELDS = {
    "camhil.opcode": "opcode", "camhil.va": "va", "camhil.rkey": "rkey", "camhil.add": "swap_add",
    "camhil.swap": "swap_add", "camhil.compare": "compare", "camhil.boundary": "compare",
    "camhil.swap_mask": "swap_mask", "camhil.compare_mask": "compare_mask",
}  # fmt: skip


@dataclass(frozen=True)
class Packet:
    """One packet of a capture: its interface, its time in ns, its bytes."""

    interface: int
    ns: int
    raw: bytes


def read_pcapng(path: Path) -> tuple[list[str], list[Packet]]:
    """(names of the interfaces, packets) of a little-endian pcapng, times in ns. Asserts its structure."""
    data = path.read_bytes()
    names: list[str] = []
    packets: list[Packet] = []
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        assert size % 4 == 0 and struct.unpack_from("<I", data, at + size - 4) == (size,), at
        if kind == 0x0A0D0D0A:
            assert at == 0 and struct.unpack_from("<IHH", data, at + 8) == (0x1A2B3C4D, 1, 0)
        elif kind == 1:
            assert struct.unpack_from("<HHI", data, at + 8) == (1, 0, 0)
            options, place = {}, at + 16
            while (head := struct.unpack_from("<HH", data, place)) != (0, 0):
                options[head[0]] = data[place + 4 : place + 4 + head[1]]
                place += 4 + (head[1] + 3 & ~3)
            assert options[9] == b"\x09"
            names.append(options[2].decode())
        else:
            assert kind == 6
            interface, high, low, length, original = struct.unpack_from("<5I", data, at + 8)
            assert length == original and size == 32 + (length + 3 & ~3)
            packets.append(Packet(interface, high << 32 | low, data[at + 28 : at + 28 + length]))
        at += size
    assert at == len(data)
    return names, packets


def write_pcap(path: Path, frames: Sequence[bytes]) -> None:
    """Classic pcap of frames, a second apart."""
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for i, raw in enumerate(frames):
            out.write(struct.pack("<IIII", i, 0, len(raw), len(raw)) + raw)


def icrc(frame: bytes) -> bytes:
    """The last 4 bytes that a frame from Ethernet to ICRC must have (wire.md 4): zlib's CRC.

    Over eight bytes of ones and IPv4 to pad, with TOS, TTL, both checksums and the fifth byte of the BTH as
    ones.
    """
    length = struct.unpack_from(">H", frame, 16)[0]
    covered = bytearray(frame[14 : 14 + length - 4])
    for i in (1, 8, 10, 11, 20 + 6, 20 + 7, 20 + 8 + 4):
        covered[i] = 0xFF
    return zlib.crc32(b"\xff" * 8 + covered).to_bytes(4, "little")


def tshark(path: Path, names: Sequence[str], *options: str) -> list[list[str]]:
    """One row a packet, one text a field, as tshark prints them ('' where the packet has no such field)."""
    program = shutil.which("tshark")
    assert program, "tshark is part of the set-up"
    # payload that looks like RPC over RDMA is none
    command = [program, "-r", str(path), "-o", "ip.check_checksum:TRUE", "--disable-protocol", "rpcordma"]
    command += ["-T", "fields", "-E", "separator=;", "-E", "occurrence=f", *options]
    for name in names:
        command += ["-e", name]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Lua" not in run.stderr and "cut short" not in run.stderr, run.stderr
    return [line.split(";") for line in run.stdout.splitlines()]


def number(name: str, text: str) -> int:
    """A field as tshark prints it: bare hexadecimal bytes, MAC, IPv4 address, prefixed number, truth."""
    if name == "infiniband.immdt":
        return int(text, 16)
    if text in ("True", "False"):
        return int(text == "True")
    if text.count(":") == 5:
        return int(text.replace(":", ""), 16)
    if text.count(".") == 3:
        return int.from_bytes(bytes(int(part) for part in text.split(".")), "big")
    return int(text, 0)


def headers(path: Path) -> list[dict[str, int]]:
    """What Wireshark and tools/camhil.lua see of each packet: names of PACKET_FIELDS and their values.

    ``crc``: the ICRC's four bytes as a big-endian number; ``ip_csum_good``: 1 where the checksum is right.
    """
    extra = {"ip.checksum.status": "ip_csum_good", "infiniband.invariant.crc": "crc", "camhil.icrc": "crc"}
    fields = {**FIELDS, **LUA_FIELDS, **extra}
    rows = tshark(path, list(fields), "-X", f"lua_script:{LUA}")
    seen = []
    for row in rows:
        values: dict[str, int] = {}
        for (name, field), text in zip(fields.items(), row, strict=True):
            if text:
                value = number(name, text)
                assert values.setdefault(field, value) == value, (name, row)
        seen.append(values)
    return seen
