"""WQE codec, V1 and V2.

Sweep: every field over its whole width, all opcodes, both versions; stimulus: hypothesis and the worked
vectors. Checks: bytes equal those of an encoder written here from the bit table of device.md 1.2, decoding
gives back the fields, the vectors of device.md 1.7 both ways. Timing: none. Does not prove what a NIC does
with a WQE.
"""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.formats import wqe
from pymodel.formats.wqe import WQE_FIELDS, WqeOp
from pymodel.nic import rules

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=150)

# device.md 1.2, absolute bit numbers (high, low) in the 128-bit control segment
CTRL = {
    "msg_opcode": (7, 0), "with_imm": (8, 8), "csum_en": (10, 9), "ds_data_num": (15, 11),
    "msg_len": (63, 32),
    "opcode_data": (95, 64), "se": (96, 96), "ce": (97, 97), "in_line": (98, 98), "fence_mode": (100, 99),
    "mask": (102, 101),
}  # fmt: skip
CTRL_V = {
    1: {"wqe_id": (31, 16), "rsv": (127, 103)},
    2: {"rsv1": (31, 16), "rsv": (107, 103), "wqe_id": (127, 108)},
}


def reference(f: dict[str, int], version: int) -> bytes:
    """Scalar encoder, straight from the tables of device.md 1.2, 1.3 and 1.5."""
    word = 0
    for name, (high, low) in {**CTRL, **CTRL_V[version]}.items():
        assert f[name] < 1 << (high - low + 1)
        word |= f[name] << low
    out = word.to_bytes(16, "little")
    remote = (
        f["r_len"].to_bytes(4, "little") + f["rkey"].to_bytes(4, "little") + f["raddr"].to_bytes(8, "little")
    )
    local = (
        f["l_len"].to_bytes(4, "little") + f["lkey"].to_bytes(4, "little") + f["laddr"].to_bytes(8, "little")
    )
    op = f["msg_opcode"]
    out += local if op == 0 else remote + local
    a, c, am, cm = f["swap_add"], f["compare"], f["swap_mask"], f["compare_mask"]
    operands = {
        26: [(a, 8), (c, 8)], 27: [(a, 8), (c, 8)], 32: [(a, 8), (c, 8)], 34: [(a, 4), (c, 4)],
        31: [(a, 8), (c, 8), (am, 8), (cm, 8)], 33: [(a, 4), (c, 4), (am, 4), (cm, 4)],
    }.get(op, [])  # fmt: skip
    out += b"".join((value & (1 << 8 * size) - 1).to_bytes(size, "big") for value, size in operands)
    return out.ljust(128, b"\0")


@st.composite
def one_wqe(draw: Any, version: int) -> dict[str, int]:
    """Fields of one WQE, all of them arbitrary but those that the opcode does not have, which are 0."""
    bits = {name: high - low + 1 for name, (high, low) in {**CTRL, **CTRL_V[version]}.items()}
    for name in ("r_len", "rkey", "l_len", "lkey"):
        bits[name] = 32
    for name in ("raddr", "laddr", "swap_add", "compare", "swap_mask", "compare_mask"):
        bits[name] = 64
    f = dict.fromkeys(WQE_FIELDS.names or (), 0)
    f |= {name: draw(st.integers(0, (1 << n) - 1)) for name, n in bits.items()}
    op = f["msg_opcode"] = draw(st.sampled_from([*WqeOp, 3, 25, 28, 35, 255]))
    if op == WqeOp.SEND:
        f["r_len"] = f["rkey"] = f["raddr"] = 0
    has = {26: 2, 27: 2, 31: 4, 32: 2, 33: 4, 34: 2}.get(op, 0)
    for name in ("swap_add", "compare", "swap_mask", "compare_mask")[has:]:
        f[name] = 0
    if op in (33, 34):
        for name in ("swap_add", "compare", "swap_mask", "compare_mask"):
            f[name] &= 0xFFFF_FFFF
    return f


@pytest.mark.parametrize("version", [1, 2])
def test_both_directions_equal_the_bit_table(version: int) -> None:
    """Encoding equals the tables, decoding gives back the fields."""

    @SETTINGS
    @given(st.lists(one_wqe(version), min_size=1, max_size=6))
    def check(many: list[dict[str, int]]) -> None:
        slots = wqe.pack({name: [f[name] for f in many] for name in WQE_FIELDS.names or ()}, version)
        assert slots.shape == (len(many), 128)
        assert [row.tobytes() for row in slots] == [reference(f, version) for f in many]
        back = wqe.unpack(slots, version)
        for got, f in zip(back, many, strict=True):
            assert {name: int(got[name]) for name in f} == f
        assert (wqe.pack(back, version) == slots).all()

    check()


RKEY, RVA, LKEY = 0xA1A2A3A4, 0x1122334455667788, 0xB1B2B3B4
ADD = 0x0102030405060708
ONES64 = 0xFFFF_FFFF_FFFF_FFFF
ATOMIC = {"in_line": 1, "ce": 1, "ds_data_num": 3, "msg_len": 16, "wqe_id": 7 << 3, "swap_add": ADD}
# device.md 1.7: version, fields, {byte offset: bytes as printed there}
VECTORS: dict[str, tuple[int, dict[str, int], dict[int, str]]] = {
    "write_v2": (
        2,
        {"msg_opcode": 1, "ds_data_num": 2, "ce": 1, "wqe_id": 5 << 3, "msg_len": 1024, "r_len": 1024,
         "rkey": RKEY, "raddr": RVA, "l_len": 1024, "lkey": LKEY, "laddr": 0x0000_0123_4567_8000},
        {0: "01100000 00040000 00000000 02800200", 16: "00040000 a4a3a2a1 88776655 44332211",
         32: "00040000 b4b3b2b1 00806745 23010000"},
    ),
    "write_v1": (
        1, {"msg_opcode": 1, "ds_data_num": 2, "ce": 1, "wqe_id": 5 << 3, "msg_len": 1024},
        {0: "01102800 00040000 00000000 02000000"},
    ),
    "read_v2_131071": (
        2, {"msg_opcode": 2, "ds_data_num": 2, "ce": 1, "wqe_id": 131071 << 3 & 0xFFFFF, "msg_len": 64},
        {0: "02100000 40000000 00000000 0280ffff"},
    ),
    "read_v2_131072": (
        2, {"msg_opcode": 2, "ds_data_num": 2, "ce": 1, "wqe_id": 131072 << 3 & 0xFFFFF, "msg_len": 64},
        {0: "02100000 40000000 00000000 02000000"},
    ),
    "fa64": (
        2, {**ATOMIC, "msg_opcode": 27},
        {0: "1b180000 10000000 00000000 06800300", 48: "01020304 05060708 00000000 00000000"},
    ),
    "fa64_masked": (
        2, {**ATOMIC, "msg_opcode": 32, "compare": ONES64},
        {0: "20180000 10000000 00000000 06800300", 48: "01020304 05060708 ffffffff ffffffff"},
    ),
    "fa32_masked": (
        2, {**ATOMIC, "msg_opcode": 34, "msg_len": 8, "swap_add": 0x01020304, "compare": 0xFFFFFFFF},
        {0: "22180000 08000000 00000000 06800300", 48: "01020304 ffffffff"},
    ),
    "cas64": (
        2, {**ATOMIC, "msg_opcode": 26, "compare": 0x1112131415161718},
        {0: "1a180000 10000000 00000000 06800300", 48: "01020304 05060708 11121314 15161718"},
    ),
    "cas64_masked": (
        2, {**ATOMIC, "msg_opcode": 31, "ds_data_num": 4, "msg_len": 32, "swap_mask": ONES64},
        {0: "1f200000 20000000 00000000 06800300", 48: "01020304 05060708 00000000 00000000",
         64: "ffffffff ffffffff 00000000 00000000"},
    ),
    "cas32_masked": (
        2, {**ATOMIC, "msg_opcode": 33, "swap_add": 0x01020304, "compare": 0x11121314,
            "swap_mask": 0xFFFFFFFF, "compare_mask": 0xFFFFFFFF},
        {0: "21180000 10000000 00000000 06800300", 48: "01020304 11121314 ffffffff ffffffff"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_worked_vectors(name: str) -> None:
    """Both ways."""
    version, fields, parts = VECTORS[name]
    slot = wqe.pack(fields, version)[0].tobytes()
    for offset, text in parts.items():
        raw = bytes.fromhex(text)
        assert slot[offset : offset + len(raw)].hex() == raw.hex()
    back = wqe.unpack(np.frombuffer(slot, np.uint8), version)[0]
    assert {k: int(back[k]) for k in fields} == fields


#: the two data segments of each operation with the keys and addresses of device.md 1.7: (bytes, lkey)
SEGMENTS = {1: (1024, LKEY), 2: (64, LKEY), 26: (8, 0xC1C2C3C4), 27: (8, 0xC1C2C3C4), 31: (8, 0xC1C2C3C4),
            32: (8, 0xC1C2C3C4), 33: (4, 0xC1C2C3C4), 34: (4, 0xC1C2C3C4)}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_worked_vectors_as_whole_slots(name: str) -> None:
    """With data segments laid out here (device.md 1.3), both ways; the NIC's checks find nothing wrong."""
    version, fields, parts = VECTORS[name]
    length, lkey = SEGMENTS[fields["msg_opcode"]]
    slot = bytearray(128)
    for offset, text in parts.items():
        raw = bytes.fromhex(text)
        slot[offset : offset + len(raw)] = raw
    slot[16:32] = struct.pack("<IIQ", length, RKEY, RVA)
    slot[32:48] = struct.pack("<IIQ", length, lkey, 0x0000_0123_4567_8000)
    whole = {**fields, "r_len": length, "rkey": RKEY, "raddr": RVA, "l_len": length, "lkey": lkey,
             "laddr": 0x0000_0123_4567_8000}  # fmt: skip
    assert wqe.pack(whole, version)[0].tobytes().hex() == slot.hex()
    back = wqe.unpack(np.frombuffer(bytes(slot), np.uint8), version)
    assert {k: int(back[k][0]) for k in WQE_FIELDS.names or ()} == dict.fromkeys(
        WQE_FIELDS.names or (), 0
    ) | whole
    assert int(rules.wqe_check(back, fields["wqe_id"] >> 3, version)[0]) == 0


def test_bytes_behind_the_last_segment_stay_as_they_were() -> None:
    """device.md 1.6: a slot keeps what no segment covers, in FA32 also bytes 56..63."""
    dirty = np.full((9, 128), 0xA5, np.uint8)
    ops = list(WqeOp)
    slots = wqe.pack({"msg_opcode": ops}, 2, base=dirty)
    end = {0: 32, 1: 48, 2: 48, 26: 64, 27: 64, 31: 80, 32: 64, 33: 64, 34: 56}
    for op, slot in zip(ops, slots, strict=True):
        assert (slot[end[op] :] == 0xA5).all() and not (slot[16 : end[op]] == 0xA5).any()
    assert (dirty == 0xA5).all()


def test_plain_atomics_little_endian_is_a_knob_of_26_and_27_only() -> None:
    """K of nic.md 4."""
    ops = [26, 27, 31, 32]
    fields = {"msg_opcode": ops, "swap_add": ADD, "compare": 0x1112131415161718}
    big, little = wqe.pack(fields, 2), wqe.pack(fields, 2, plain_le=True)
    assert little[0, 48:64].tobytes().hex() == "08070605040302011817161514131211"
    assert [(a == b).all() for a, b in zip(big, little, strict=True)] == [False, False, True, True]
    back = wqe.unpack(little, 2, plain_le=True)
    assert back["swap_add"].tolist() == [ADD] * 4 and back["compare"].tolist() == [0x1112131415161718] * 4


def test_wqe_id_wraps() -> None:
    """device.md 1.2: after 8192 (V1) or 131072 (V2) WQEs."""
    assert wqe.wqe_id_of([5, 8191, 8192, 131071, 131072], 1).tolist() == [40, 0xFFF8, 0, 0xFFF8, 0]
    assert wqe.wqe_id_of([5, 8191, 8192, 131071, 131072], 2).tolist() == [40, 0xFFF8, 0x10000, 0xFFFF8, 0]


@pytest.mark.parametrize(
    ("version", "fields"),
    [(1, {"wqe_id": 1 << 16}), (2, {"wqe_id": 1 << 20}), (2, {"ce": 2}), (1, {"rsv1": 1}),
     (2, {"msg_len": 1 << 32}), (2, {"raddr": 1 << 64}), (2, {"lkey": -1})],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(version: int, fields: dict[str, int]) -> None:
    """No silent truncation."""
    with pytest.raises((ValueError, OverflowError)):
        wqe.pack(fields, version)


def test_unknown_names_and_versions_are_refused() -> None:
    """A typing error does not become a zero."""
    with pytest.raises(KeyError):
        wqe.pack({"opcode": 1}, 2)
    with pytest.raises(ValueError, match="version"):
        wqe.pack({}, 3)
    with pytest.raises(ValueError, match="128"):
        wqe.unpack(np.zeros((1, 64), np.uint8), 2)
