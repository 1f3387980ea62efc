"""tb/sim/pcap.py: the capture of a run.

Sweep: frames of every opcode and each NAK, one to several batches, one to sixteen NICs, limits and windows
that cut anywhere. Stimulus: record batches as the testbench drains them, bytes anywhere in the side buffer.
Checks: a reader of pcapng of the tests' own, and tshark: bytes, times, interfaces, every header field as the
golden codec built it, the ICRC by zlib. Timing: none. Does not prove that a run's hook calls it
(tests/nic/test_capture).
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pymodel.formats import packet
from pymodel.formats.packet import Bth, Syndrome
from tb.sim.pcap import PcapWriter
from tb.sim.records import RECORD, Kind
from tests import capture

BASE = {"dst_mac": 0x02AABBCCDDEE, "src_mac": 0x021122334455, "dst_ip": 0x0A000002, "src_ip": 0x0A000001,
        "udp_sport": 0xC02A, "dest_qp": 3}  # fmt: skip
ALWAYS = ["dst_mac", "src_mac", "src_ip", "dst_ip", "ip_len", "tos", "ttl", "udp_sport", "udp_dport",
          "udp_len", "opcode", "se", "migreq", "pad", "tver", "pkey", "dest_qp", "ackreq", "psn"]  # fmt: skip
#: extended headers (wire.md 2, 3)
RETH, AETH, ATOMIC = ["va", "rkey", "dma_len"], ["syndrome", "msn"], ["va", "rkey", "swap_add", "compare"]
EXT = {
    **dict.fromkeys((0x06, 0x0A, 0x0C), RETH), 0x0B: [*RETH, "imm"],
    **dict.fromkeys((0x03, 0x05, 0x09), ["imm"]),
    **dict.fromkeys((0x0D, 0x0F, 0x10, 0x11), AETH), 0x12: [*AETH, "orig"],
    **dict.fromkeys((0x13, 0x14, 0xC1, 0xC3), ATOMIC),
    **dict.fromkeys((0xC0, 0xC2), [*ATOMIC, "swap_mask", "compare_mask"]),
}  # fmt: skip


def build(seed: int, count: int) -> tuple[list[dict[str, int]], list[bytes]]:
    """Headers and frames: every opcode, every syndrome of an Acknowledge, then random ones."""
    rng = np.random.default_rng(seed)
    kinds = [(int(op), int(Syndrome.ACK)) for op in Bth] + [(int(Bth.ACK), int(s)) for s in (*Syndrome, 0x25)]
    while len(kinds) < count:
        kinds.append((int(rng.choice(list(Bth))), int(Syndrome.ACK)))
    fields, frames = [], []
    for op, syndrome in kinds:
        carries = op < 0x0C or 0x0D <= op <= 0x10
        payload = rng.integers(0, 256, int(rng.choice([0, 1, 5, 64, 4096])) if carries else 0, np.uint8)
        f = {
            "opcode": op,
            "syndrome": syndrome,
            "psn": int(rng.integers(1 << 24)),
            "ackreq": int(rng.integers(2)),
        }
        f |= {"msn": int(rng.integers(1 << 24)), "imm": int(rng.integers(1 << 32))}
        f |= {name: int(rng.integers(1 << 63)) for name in ("va", "orig")}
        f |= {n: int(rng.integers(1 << 32)) for n in ("rkey", "dma_len", "swap_add", "compare", "swap_mask")}
        f |= {"compare_mask": int(rng.integers(1 << 32))}
        full = packet.derive(packet.new(**BASE, **f, payload_len=payload.size))
        fields.append({n: int(full[n][0]) for n in full.dtype.names or ()})
        frames.append(packet.frames(full, [payload])[0])
    return fields, frames


class Stream:
    """Batches of records with the bytes of frames in a side buffer that wraps."""

    def __init__(self, seed: int, n_pes: int, first_cycle: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.side = np.zeros(1 << 18, np.uint8)
        # it wraps soon
        self._head = (int(self.rng.integers(1, 1 << 20)) << 18) - 5000
        self._cycle = first_cycle
        self._n_pes = n_pes
        #: (PE, ns, bytes) of all packets so far
        self.sent: list[tuple[int, int, bytes]] = []

    def batch(self, frames: list[bytes]) -> np.ndarray:
        """TXPKT records of these frames between records of other kinds."""
        records = []
        for frame in frames:
            for kind in self.rng.choice([k for k in Kind if k != Kind.TXPKT], self.rng.integers(3)):
                # RXPKT and others have bytes as well: those of no packet that was sent
                records.append((kind, int(self.rng.integers(self._n_pes)), 60, self._head, self._cycle))
            room = len(self.side) - self._head % len(self.side)
            self._head += room if room < len(frame) else 0
            place = self._head % len(self.side)
            self.side[place : place + len(frame)] = np.frombuffer(frame, np.uint8)
            pe = int(self.rng.integers(self._n_pes))
            self._cycle += int(self.rng.integers(1, 100))
            records.append((Kind.TXPKT, pe, len(frame), self._head, self._cycle))
            self.sent.append((pe, 2 * self._cycle, frame))
            self._head += len(frame)
        out = np.zeros(len(records), RECORD)
        for name, column in zip(
            ("kind", "pe", "len", "off", "time"), zip(*records, strict=True), strict=True
        ):
            out[name] = column
        return out


def read(path: Path) -> list[tuple[int, int, bytes]]:
    """Packets of a capture as :attr:`Stream.sent` has them."""
    return [(p.interface, p.ns, p.raw) for p in capture.read_pcapng(path)[1]]


@pytest.mark.parametrize(("n_pes", "batch"), [(1, 1), (2, 7), (16, 3)])
def test_every_packet_as_it_was_sent(tmp_path: Path, n_pes: int, batch: int) -> None:
    """Own reader: bytes, NIC and time of each; nothing of other records; any length; times beyond 32 bits."""
    _, frames = build(n_pes, 60)
    frames += [bytes([size]) * size for size in range(1, 61)]
    stream = Stream(n_pes, n_pes, first_cycle=(1 << 33) - 1000)
    path = tmp_path / "run.pcapng"
    writer = PcapWriter(path, n_pes)
    for i in range(0, len(frames), batch):
        writer(stream.batch(frames[i : i + batch]), stream.side)
        # complete after each batch: what a killed run leaves can be read
        assert read(path) == stream.sent
    assert writer.close() == f"{len(frames)} packets in {path}"
    assert capture.read_pcapng(path)[0] == [f"NIC {pe}" for pe in range(n_pes)]
    assert stream.sent[-1][1] >> 32


def test_tshark_reads_every_kind(tmp_path: Path) -> None:
    """An outside decoder sees the golden codec's fields, interface and time; zlib agrees on the ICRC."""
    fields, frames = build(5, 150)
    stream = Stream(5, 4)
    path = tmp_path / "run.pcapng"
    writer = PcapWriter(path, 4)
    for i in range(0, len(frames), 5):
        writer(stream.batch(frames[i : i + 5]), stream.side)
    writer.close()
    seen = capture.headers(path)
    for f, frame, values in zip(fields, frames, seen, strict=True):
        want = {name: f[name] for name in [*ALWAYS, *EXT.get(f["opcode"], [])]}
        assert values == {**want, "ip_csum_good": 1, "crc": int.from_bytes(frame[-4:], "big")}
    for got in capture.read_pcapng(path)[1]:
        assert capture.icrc(got.raw) == got.raw[-4:]
    rows = capture.tshark(path, ["frame.interface_name", "frame.time_epoch", "frame.len"])
    want_rows = [(f"NIC {pe}", ns, len(raw)) for pe, ns, raw in stream.sent]
    assert [(name, round(float(epoch) * 1e9), int(size)) for name, epoch, size in rows] == want_rows
    assert {f["opcode"] for f in fields} == set(Bth)


def test_what_the_docs_say_about_wireshark(tmp_path: Path) -> None:
    """docs/packets.md: every field of a column and every display filter is one that Wireshark knows."""
    text = (Path(__file__).parents[2] / "docs" / "packets.md").read_text()
    columns = text[text.index("| Column |") : text.index("## Display filters")]
    filters = text[text.index("## Display filters") : text.index("Wireshark shows the ICRC")]
    names = [name for cell in re.findall("`([^`]+)`", columns) for name in cell.split(" or ")]
    questions = [
        f for line in filters.splitlines()[4:] for f in re.findall("`([^`]+)`", line.split(" | ", 1)[-1])
    ]
    assert len(names) >= 10 and len(questions) >= 11
    path = tmp_path / "some.pcap"
    _, frames = build(2, 40)
    capture.write_pcap(path, frames)
    every = " or ".join(f"({question})" for question in questions)
    rows = capture.tshark(path, names, "-X", f"lua_script:{capture.LUA}", "-Y", every)
    assert rows and all(
        any(row[i] for row in rows) for i, n in enumerate(names) if n != "frame.interface_name"
    )


def test_no_packets(tmp_path: Path) -> None:
    """A run without packets has a capture without packets, which opens."""
    path = tmp_path / "run.pcapng"
    writer = PcapWriter(path, 2)
    writer(np.zeros(3, RECORD), np.zeros(8, np.uint8))
    assert writer.close() == f"0 packets in {path}"
    assert capture.tshark(path, ["frame.len"]) == [] and read(path) == []


@pytest.mark.parametrize("batch", [1, 4, 60])
def test_limit(tmp_path: Path, batch: int) -> None:
    """The file ends at the limit with whole packets, the first ones, and says so; it has no holes."""
    _, frames = build(7, 60)
    whole = tmp_path / "whole.pcapng"
    path = tmp_path / "run.pcapng"
    # head of the file, and the first packet exactly
    exact = 28 + 2 * 44 + 32 + (len(frames[0]) + 3 & ~3)
    for limit in (0, 200, exact - 1, exact, 1500, 9000, 1 << 20):
        stream = Stream(7, 2)
        writer, everything = PcapWriter(path, 2, limit=limit), PcapWriter(whole, 2)
        for i in range(0, len(frames), batch):
            records = stream.batch(frames[i : i + batch])
            writer(records, stream.side)
            everything(records, stream.side)
        text = writer.close()
        everything.close()
        got = read(path)
        assert got == stream.sent[: len(got)]
        assert limit not in (exact - 1, exact) or len(got) == limit - exact + 1
        assert (writer.packets, writer.left_out) == (len(got), 60 - len(got))
        assert (
            path.stat().st_size <= max(limit, 128)
            and path.read_bytes() == whole.read_bytes()[: path.stat().st_size]
        )
        if len(got) < 60:
            # one more would not have fitted
            assert path.stat().st_size + 32 + (len(stream.sent[len(got)][2]) + 3 & ~3) > limit
            assert (
                f"{len(got)} packets in {path}, which ends at 0 MiB: {60 - len(got)} more were sent" in text
            )
        else:
            assert limit == 1 << 20 and text == f"60 packets in {path}"


def test_window(tmp_path: Path) -> None:
    """Both ends count."""
    _, frames = build(9, 60)
    stream = Stream(9, 2)
    records = stream.batch(frames[:40])
    times = [ns for _, ns, _ in stream.sent]
    for first, last in (
        (times[3], times[17]),
        (times[3] + 1, times[17] - 1),
        (0, times[0]),
        (times[-1] + 1, 1 << 50),
    ):
        path = tmp_path / "run.pcapng"
        writer = PcapWriter(path, 2, (first, last))
        writer(records, stream.side)
        writer.close()
        assert read(path) == [sent for sent in stream.sent if first <= sent[1] <= last]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """An error at once, not a run without its capture."""
    with pytest.raises(OSError, match="No such file"):
        PcapWriter(tmp_path / "no" / "run.pcapng", 1)
    writer = PcapWriter(Path("/dev/full"), 1)
    _, frames = build(1, 31)
    stream = Stream(1, 1)
    with pytest.raises(OSError, match="No space left"):
        writer(stream.batch(frames[:1]), stream.side)
    with pytest.raises(OSError, match="No space left"):
        writer.close()
