"""CQE codec, V1 and V2, both strides.

Sweep: every field over its whole width, both versions; stimulus: hypothesis and the worked vectors. Checks:
bytes equal those of an encoder written here from the byte table of device.md 2.1, decoding gives back the
fields, the owner bit is byte 31 bit 7 in both versions. Timing: none. Does not prove when a CQE is written.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.formats import cqe
from pymodel.formats.cqe import CQE_FIELDS

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=150)

# device.md 2.1: name -> (byte of the little-endian unit, its first bit, width)
COMMON = {
    "error_code": (0, 0, 8), "qp_id": (0, 8, 15), "rsv0": (0, 23, 1), "se": (0, 24, 1), "has_pph": (0, 25, 1),
    "type": (0, 26, 1), "with_imm": (0, 27, 1), "csum_err": (0, 28, 4), "imm_data": (4, 0, 32),
    "msg_len": (8, 0, 32), "vni": (12, 0, 32), "ts": (16, 0, 48), "msg_opcode": (24, 0, 8),
    "rsv3": (28, 0, 31),
}  # fmt: skip
LAYOUT = {
    1: {**COMMON, "wqe_id": (22, 0, 16), "rsv2": (25, 0, 24), "owner": (30, 15, 1)},
    2: {**COMMON, "rsv1": (22, 0, 16), "rsv2": (24, 8, 4), "wqe_id": (24, 12, 20), "owner": (28, 31, 1)},
}


def reference(f: dict[str, int], version: int) -> bytes:
    """Scalar encoder from the table above."""
    word = 0
    for name, (byte, low, width) in LAYOUT[version].items():
        assert f[name] < 1 << width
        word |= f[name] << 8 * byte + low
    return word.to_bytes(32, "little")


@st.composite
def one_cqe(draw: Any, version: int) -> dict[str, int]:
    """Arbitrary fields of one CQE."""
    f = dict.fromkeys(CQE_FIELDS.names or (), 0)
    return f | {name: draw(st.integers(0, (1 << w) - 1)) for name, (_, _, w) in LAYOUT[version].items()}


@pytest.mark.parametrize("stride", [32, 64])
@pytest.mark.parametrize("version", [1, 2])
def test_both_directions_equal_the_byte_table(version: int, stride: int) -> None:
    """Encoding equals the table, decoding gives back the fields, slots are padded with zeros."""

    @SETTINGS
    @given(st.lists(one_cqe(version), min_size=1, max_size=6))
    def check(many: list[dict[str, int]]) -> None:
        payload = cqe.pack({name: [f[name] for f in many] for name in CQE_FIELDS.names or ()}, version)
        assert [row.tobytes() for row in payload] == [reference(f, version) for f in many]
        slots = cqe.to_slots(payload, stride)
        assert slots.shape == (len(many), stride) and not slots[:, 32:].any()
        back = cqe.unpack(cqe.ring_view(slots.reshape(-1), stride), version)
        for got, f in zip(back, many, strict=True):
            assert {name: int(got[name]) for name in f} == f

    check()


GOOD = {"qp_id": 0x2A, "msg_len": 1024, "msg_opcode": 1, "wqe_id": 5 << 3}
VECTORS = {
    # device.md 2.1
    "good": (2, GOOD, "002a0000 00000000 00040000 00000000 00000000 00000000 01800200 00000000"),
    "error_second_pass": (
        2, {**GOOD, "error_code": 0xA5, "owner": 1},
        "a52a0000 00000000 00040000 00000000 00000000 00000000 01800200 00000080",
    ),
    # by the V1 column: wqe_id in bytes 22..23, opcode alone in byte 24
    "good_v1": (1, GOOD, "002a0000 00000000 00040000 00000000 00000000 00002800 01000000 00000000"),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_worked_vectors(name: str) -> None:
    """Both ways."""
    version, fields, text = VECTORS[name]
    raw = bytes.fromhex(text)
    assert cqe.pack(fields, version)[0].tobytes().hex() == raw.hex()
    back = cqe.unpack(np.frombuffer(raw, np.uint8), version)[0]
    assert {k: int(back[k]) for k in CQE_FIELDS.names or ()} == dict.fromkeys(
        CQE_FIELDS.names or (), 0
    ) | fields


@pytest.mark.parametrize("version", [1, 2])
def test_owner_is_the_last_bit(version: int) -> None:
    """device.md 2.1: byte 31 bit 7 in both versions."""
    raw = cqe.pack({"owner": [0, 1]}, version)
    assert raw[0].tobytes() == bytes(32) and raw[1].tobytes() == bytes(31) + b"\x80"


def test_a_ring_of_ones_reads_as_owner_one() -> None:
    """device.md 2.3: what software fills a ring with."""
    ring = np.full(4 * 64, 0xFF, np.uint8)
    assert cqe.unpack(cqe.ring_view(ring, 64), 2)["owner"].tolist() == [1] * 4


def test_what_does_not_fit_is_refused() -> None:
    """No silent truncation."""
    for version, fields in (
        (2, {"qp_id": 1 << 15}),
        (2, {"ts": 1 << 48}),
        (1, {"wqe_id": 1 << 16}),
        (1, {"rsv1": 1}),
    ):
        with pytest.raises(ValueError, match="fit"):
            cqe.pack(fields, version)
    with pytest.raises(ValueError, match="stride"):
        cqe.to_slots(np.zeros((1, 32), np.uint8), 48)
