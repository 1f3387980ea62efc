"""ICRC.

Sweep: packet lengths from 40 to 4400 bytes, alone and mixed, at every alignment; stimulus: random bytes and
the captured frames of the reference folder where it exists. Checks: zlib.crc32 over bytes masked here, and
the ICRC that real adapters sent. Timing: a floor on the bulk rate, far below what was measured, so that it
fails on a change of kind and not on a busy machine. Does not prove that the parser uses it
(test_formats_packet).
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pymodel.formats import icrc

FRAMES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "roce_frames.json"


def oracle(l3: bytes) -> int:
    """wire.md 4 with the library's CRC; l3: IPv4 header to pad."""
    masked = bytearray(l3)
    for i in (1, 8, 10, 11, 26, 27, 32):
        masked[i] = 0xFF
    return zlib.crc32(b"\xff" * 8 + masked)


@pytest.mark.parametrize("size", [4, 5, 6, 7, 8, 12, 63, 64, 65, 1000, 4096, 4097])
def test_plain_crc_of_rows(size: int) -> None:
    """Against the library, all lengths modulo the word size."""
    rows = np.random.default_rng(size).integers(0, 256, (9, size), dtype=np.uint8)
    assert icrc.crc32_rows(rows).tolist() == [zlib.crc32(row.tobytes()) for row in rows]


def test_one_bit_at_a_time() -> None:
    """Every bit of a row reaches the result as in the library: 64 bytes, 512 bits."""
    rows = np.packbits(np.eye(512, dtype=np.uint8), axis=1)
    assert icrc.crc32_rows(rows).tolist() == [zlib.crc32(row.tobytes()) for row in rows]


@pytest.mark.parametrize("seed", range(8))
def test_mixed_lengths(seed: int) -> None:
    """Packets of all lengths beside each other, without and with gaps, the first at offset 0."""
    rng = np.random.default_rng(seed)
    size = np.concatenate([rng.integers(40, 4400, 60), np.arange(40, 110), [40, 4140, 4400]])
    rng.shuffle(size)
    gap = rng.integers(0, 9, size.size) * (seed % 2)
    off = np.cumsum(size + gap) - size - gap[0]
    buf = rng.integers(0, 256, int((off + size).max()), dtype=np.uint8)
    before = buf.copy()
    got = icrc.icrc_packets(buf, off, size)
    want = [oracle(buf[o : o + n].tobytes()) for o, n in zip(off.tolist(), size.tolist(), strict=True)]
    assert got.tolist() == want
    assert (buf == before).all()


def test_many_more_than_one_chunk() -> None:
    """Work is cut into pieces."""
    rng = np.random.default_rng(1)
    buf = rng.integers(0, 256, 300 * 4140, dtype=np.uint8)
    got = icrc.icrc_packets(buf, np.arange(300) * 4140, 4140)
    assert got.tolist() == [oracle(row.tobytes()) for row in buf.reshape(300, 4140)]


def test_masked_bytes_do_not_count_and_all_others_do() -> None:
    """wire.md 4: exactly seven bytes count as ones."""
    l3 = np.random.default_rng(2).integers(0, 256, 60, dtype=np.uint8)
    good = icrc.icrc(l3.tobytes())
    assert good == oracle(l3.tobytes()).to_bytes(4, "little")
    ignored = set()
    for i in range(60):
        l3[i] ^= 0x10
        if icrc.icrc(l3) == good:
            ignored.add(i)
        l3[i] ^= 0x10
    assert ignored == {1, 8, 10, 11, 26, 27, 32}


def test_limits() -> None:
    """Empty input and refusals."""
    buf = np.zeros(100, np.uint8)
    assert icrc.icrc_packets(buf, np.zeros(0, np.int64), np.zeros(0, np.int64)).shape == (0,)
    with pytest.raises(ValueError, match="covers"):
        icrc.icrc_packets(buf, 0, 39)
    for off, size in ((60, 41), (-1, 50)):
        with pytest.raises(ValueError, match="outside"):
            icrc.icrc_packets(buf, off, size)
    with pytest.raises(ValueError, match="register"):
        icrc.crc32_rows(np.zeros((1, 3), np.uint8))


def load_frames() -> list[dict[str, Any]]:
    """The captured frames."""
    frames: list[dict[str, Any]] = json.loads(FRAMES.read_text())
    return frames


@pytest.mark.skipif(not FRAMES.exists(), reason="captured frames are not part of the repository")
def test_captured_frames() -> None:
    """All 65: over IPv4 the module's own rule, for two RoCEv1 frames the bare CRC over its mask."""
    frames = load_frames()
    assert len(frames) == 65
    parts, sizes, want = [], [], []
    for f in frames:
        raw = bytes.fromhex(f["hex"])
        skip = {"eth": 18 if f["vlan"] else 14, "ip": 0, "eth-rocev1-grh": 14}[f["layer"]]
        l3, sent = raw[skip:-4], int.from_bytes(raw[-4:], "little")
        assert raw[-4:].hex() == f["icrc"]
        if f["layer"] == "eth-rocev1-grh":
            # GRH: traffic class and flow label, hop limit count as ones, and BTH byte 4
            grh = bytearray(l3)
            grh[0] |= 0x0F
            for i in (1, 2, 3, 7, 44):
                grh[i] = 0xFF
            row = np.frombuffer(b"\xff" * 8 + grh, np.uint8)
            assert int(icrc.crc32_rows(row[None])[0]) == sent, f["id"]
        else:
            parts.append(l3)
            sizes.append(len(l3))
            want.append(sent)
    off = np.cumsum(sizes) - sizes
    got = icrc.icrc_packets(np.frombuffer(b"".join(parts), np.uint8), off, sizes)
    assert got.tolist() == want and len(want) == 63
