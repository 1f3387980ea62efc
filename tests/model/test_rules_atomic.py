"""Rules of atomics: what they make of memory, what they return, their packets.

Sweep: all six operations by WQE and BTH opcode, 4 and 8 bytes; boundary 0, all ones and every mask of one to
three bits; every swap and compare mask of up to two bits beside random ones; stimulus: hypothesis and whole
sweeps. Checks: plain Python integers field by field, and a ripple-carry adder bit by bit, both written here.
Timing: none. Does not prove that a NIC executes an atomic once and indivisibly.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pymodel.formats import packet, wqe
from pymodel.formats.packet import Bth
from pymodel.formats.wqe import WqeOp
from pymodel.nic import rules
from pymodel.nic.context import QpContext

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=600)
#: (WQE opcode, BTH opcode) by (is a swap, masked, bytes), typed in from device.md 1.4 and wire.md 2
OPS = {
    (True, False, 8): (26, 0x13), (False, False, 8): (27, 0x14), (True, True, 8): (31, 0xC0),
    (False, True, 8): (32, 0xC1), (True, True, 4): (33, 0xC2), (False, True, 4): (34, 0xC3),
}  # fmt: skip
NAMES = list(OPS.values())


def fields_of(boundary: int, bits: int) -> list[tuple[int, int]]:
    """(lowest bit, width) of each field: every set bit ends one, and so does the last bit."""
    out, low = [], 0
    for bit in range(bits):
        if boundary >> bit & 1 or bit == bits - 1:
            out.append((low, bit + 1 - low))
            low = bit + 1
    return out


def add_by_fields(old: int, add: int, boundary: int, bits: int) -> int:
    """Each field is a Python integer of its own, added modulo its width."""
    new = 0
    for low, width in fields_of(boundary, bits):
        mask = (1 << width) - 1
        new |= ((old >> low & mask) + (add >> low & mask)) % (1 << width) << low
    return new


def add_bit_by_bit(old: Any, add: Any, boundary: Any, bits: int) -> Any:
    """Ripple carry over arrays: the carry out of a boundary bit is dropped."""
    one = np.uint64(1)
    new = np.zeros(np.broadcast_shapes(np.shape(old), np.shape(add), np.shape(boundary)), np.uint64)
    carry = np.zeros_like(new)
    for bit in range(bits):
        at = np.uint64(bit)
        a, b, end = (np.asarray(x, np.uint64) >> at & one for x in (old, add, boundary))
        new |= (a ^ b ^ carry) << at
        carry = np.where(end == 1, np.uint64(0), a & b | a & carry | b & carry)
    return new


def swap_bit_by_bit(
    old: int, swap: int, compare: int, s_mask: int, c_mask: int, bits: int
) -> tuple[int, bool]:
    """Compare and swap as two walks over the bits."""
    for bit in range(bits):
        if c_mask >> bit & 1 and old >> bit & 1 != compare >> bit & 1:
            return old, False
    new = 0
    for bit in range(bits):
        new |= ((swap if s_mask >> bit & 1 else old) >> bit & 1) << bit
    return new, True


def words(bits: int) -> Any:
    """Integers of that many bits, with corners."""
    top = (1 << bits) - 1
    corners = [0, 1, top, top - 1, 1 << bits - 1, (1 << bits - 1) - 1, 0x5555_5555_5555_5555 & top]
    return st.sampled_from(corners) | st.integers(0, top)


@SETTINGS
@given(st.data())
def test_fetch_and_add(data: st.DataObject) -> None:
    """Any operands and boundaries; what lies above a 4-byte operand does not count."""
    size = data.draw(st.sampled_from([4, 8]))
    bits = 8 * size
    old, add, boundary = (data.draw(words(bits)) for _ in range(3))
    boundary = data.draw(st.sampled_from([boundary, 0, (1 << bits) - 1]))
    want = add_by_fields(old, add, boundary, bits)
    assert want == int(add_bit_by_bit(old, add, boundary, bits))
    dirt = [data.draw(st.integers(0, (1 << 64 - bits) - 1)) << bits for _ in range(3)]
    for opcode in OPS[False, True, size]:
        new, writes = rules.atomic(opcode, old | dirt[0], add | dirt[1], boundary | dirt[2], 3, 5)
        assert (int(new), bool(writes)) == (want, True)
    if boundary == 0:
        assert want == (old + add) % (1 << bits)
    if boundary == (1 << bits) - 1:
        assert want == old ^ add


@SETTINGS
@given(words(64), words(64), words(64))
@example((1 << 64) - 1, 1, (1 << 64) - 1)
def test_plain_fetch_and_add_has_no_boundary(old: int, add: int, boundary: int) -> None:
    """wire.md 2: FetchAdd carries 0 as compare; the slot of opcode 27 does not matter."""
    for opcode in OPS[False, False, 8]:
        new, writes = rules.atomic(opcode, old, add, boundary)
        assert (int(new), bool(writes)) == ((old + add) % (1 << 64), True)


@pytest.mark.parametrize("size", [4, 8])
def test_every_boundary_of_one_to_three_bits(size: int) -> None:
    """All of them, with operands that make carries at every place, and random ones."""
    bits = 8 * size
    masks = np.array(
        [sum(1 << b for b in pick) for n in (1, 2, 3) for pick in itertools.combinations(range(bits), n)],
        np.uint64,
    )
    assert masks.size == {4: 32 + 496 + 4960, 8: 64 + 2016 + 41664}[size]
    rng = np.random.default_rng(size)
    top = np.uint64((1 << bits) - 1)
    pairs = [(top, np.uint64(1)), (top, top), (np.uint64(0), top), (top >> np.uint64(1), np.uint64(1))]
    random = rng.integers(0, 1 << 64, (12, 2), dtype=np.uint64) & top
    pairs += [(row[0], row[1]) for row in random]
    for old, add in pairs:
        new, writes = rules.atomic(OPS[False, True, size][1], old, add, masks)
        assert writes.all() and (new == add_bit_by_bit(old, add, masks, bits)).all()
    for mask in rng.choice(masks, 300):
        old, add = (int(x) for x in random[0])
        assert int(rules.atomic(OPS[False, True, size][0], old, add, mask)[0]) == add_by_fields(
            old, add, int(mask), bits
        )


@SETTINGS
@given(st.data())
def test_compare_and_swap(data: st.DataObject) -> None:
    """Any operands and masks; compare is drawn near old, so that both outcomes are frequent."""
    masked, size = data.draw(st.sampled_from([(True, 4), (True, 8), (False, 8)]))
    bits = 8 * size
    old, swap, s_mask, c_mask = (data.draw(words(bits)) for _ in range(4))
    flips = data.draw(st.sampled_from([0, 0, 1, 1 << bits - 1]) | words(bits))
    compare = old ^ flips
    ones = (1 << bits) - 1
    masks = (s_mask, c_mask) if masked else (ones, ones)
    want = swap_bit_by_bit(old, swap, compare, *masks, bits)
    if not masked:
        assert want == ((swap, True) if old == compare else (old, False))
    dirt = data.draw(st.integers(0, (1 << 64 - bits) - 1)) << bits
    for opcode in OPS[True, masked, size]:
        new, writes = rules.atomic(opcode, old | dirt, swap | dirt, compare, s_mask | dirt, c_mask | dirt)
        assert (int(new), bool(writes)) == want


@pytest.mark.parametrize("size", [4, 8])
def test_every_swap_and_compare_mask_of_up_to_two_bits(size: int) -> None:
    """One bit of compare differs from old, at each place in turn: it decides if, and only if, compared."""
    bits = 8 * size
    few = [
        0,
        *(1 << b for b in range(bits)),
        *(1 << a | 1 << b for a, b in itertools.combinations(range(bits), 2)),
    ]
    ones, masks = (1 << bits) - 1, np.array(few, np.uint64)
    old, swap = 0x0123_4567_89AB_CDEF & ones, 0xFEDC_BA98_7654_3210 & ones
    for bit in range(bits):
        new, writes = rules.atomic(OPS[True, True, size][0], old, swap, old ^ 1 << bit, ones, masks)
        compared = masks >> np.uint64(bit) & np.uint64(1) == 1
        assert (writes == ~compared).all() and (
            new == np.where(compared, np.uint64(old), np.uint64(swap))
        ).all()
    new, writes = rules.atomic(OPS[True, True, size][1], old, swap, old, masks, ones)
    assert writes.all() and new.tolist() == [old ^ (old ^ swap) & m for m in few]


def test_api_shorthands() -> None:
    """device.md 5.3: set, and, or, xor, fetch as the API makes them of the two masked operations."""
    ones, old, v = (1 << 64) - 1, 0x00FF_0F0F_3333_5555, 0x0F0F_0F0F_1234_8765
    for size, mcas, mfa in ((8, 31, 32), (4, 33, 34)):
        low = (1 << 8 * size) - 1
        cases = [
            (mcas, (v, 0, ones, 0), v), (mcas, (v, 0, ~v & ones, 0), old & v), (mcas, (v, 0, v, 0), old | v),
            (mfa, (v, ones, 0, 0), old ^ v), (mfa, (0, 0, 0, 0), old), (mfa, (1, 0, 0, 0), old + 1),
        ]  # fmt: skip
        for opcode, operands, want in cases:
            new, writes = rules.atomic(opcode, old, *operands)
            assert (int(new), bool(writes)) == (want & low, True), (opcode, operands)


def test_arrays_of_mixed_operations() -> None:
    """One call, broadcast, opcodes of both kinds."""
    op = np.array([[26, 27, 31, 32, 33, 34], [0x13, 0x14, 0xC0, 0xC1, 0xC2, 0xC3]])
    new, writes = rules.atomic(op, 5, 7, 5, 0xF, 0xFF)
    want = [7, 12, 7, add_by_fields(5, 7, 5, 64), 7, add_by_fields(5, 7, 5, 32)]
    assert new.tolist() == [want, want] and writes.all() and new.dtype == np.uint64
    assert [bool(w) for w in rules.atomic(op[0], 4, 7, 5, 0xF, 0xFF)[1]] == [False, True] * 3
    for bad in (0, 1, 2, 28, 0x15, 0xC4):
        with pytest.raises(ValueError, match=f"opcode {bad} "):
            rules.atomic([27, bad], 0, 0, 0)


def test_results_in_the_local_buffer() -> None:
    """device.md 1.5: 8 bytes little-endian, 4 bytes big-endian, zero-extended or not."""
    old = 0x0102_0304_0506_0708
    got = rules.result_bytes([26, 27, 31, 32, 33, 34, 0xC3, 0xC1], old)
    assert got.shape == (8, 8) and got.dtype == np.uint8
    for row, opcode in zip(got, [26, 27, 31, 32, 33, 34, 0xC3, 0xC1], strict=True):
        four = opcode in (33, 34, 0xC3)
        assert row.tobytes().hex() == ("0506070800000000" if four else "0807060504030201")
    assert rules.result_bytes(34, 0xA1B2C3D4)[:4].tobytes() == (0xA1B2C3D4).to_bytes(4, "big")
    # what the API makes of them (device.md 5.4)
    for opcode, size in ((27, 8), (34, 4)):
        raw = rules.result_bytes(opcode, 0x1234_5678)[:size].tobytes()
        assert int.from_bytes(raw, "little" if size == 8 else "big") == 0x1234_5678


QP = QpContext(peer_qpn=9, peer_mac=1, peer_ip=2, sq_base=0, sq_depth=16, send_cq=0, recv_cq=0)
RANDOM = {"swap_add": 0x0102_0304_0506_0708, "compare": 0x1112_1314_1516_1718,
          "swap_mask": 0x2122_2324_2526_2728, "compare_mask": 0x3132_3334_3536_3738}  # fmt: skip
#: BTH opcode, extended header behind VA and R_Key as wire.md 2 and 3 lay it out
PACKETS = {
    26: ("13", "0102030405060708 1112131415161718"),
    27: ("14", "0102030405060708 0000000000000000"),
    31: ("c0", "0102030405060708 1112131415161718 2122232425262728 3132333435363738"),
    32: ("c1", "0102030405060708 1112131415161718"),
    33: ("c2", "05060708 15161718 25262728 35363738"),
    34: ("c3", "05060708 15161718"),
}


@pytest.mark.parametrize("op", PACKETS)
def test_request_packets(op: int) -> None:
    """From the WQE's bytes to the packet's: operands are big-endian in both."""
    raw = wqe.pack({"msg_opcode": op, "raddr": 0xA1A2_A3A4_A5A6_A7A8, "rkey": 0xB1B2B3B4, **RANDOM}, 2)
    head = rules.atomic_headers(wqe.unpack(raw, 2), 0xFFFFFF, rules.flow(5, QP, 3, 4))
    opcode, operands = PACKETS[op]
    frame = packet.frames(head, [b""])[0]
    want = bytes.fromhex(f"{opcode}40ffff 00000009 80ffffff a1a2a3a4a5a6a7a8 b1b2b3b4" + operands)
    assert frame[42:-4].hex() == want.hex()
    assert len(want) - 12 == {0x13: 28, 0x14: 28, 0xC0: 44, 0xC1: 28, 0xC2: 28, 0xC3: 20}[want[0]]


def test_atomic_ack_packets() -> None:
    """wire.md 3: AETH with the number of the request, then the old value."""
    head = rules.atomic_ack_headers(
        [5, 6], [3, (1 << 24) + 4], [0x0102_0304_0506_0708, 7], rules.flow(5, QP, 3, 4)
    )
    assert [f[42:-4].hex() for f in packet.frames(head, [b"", b""])] == [
        "1240ffff00000009000000051f0000030102030405060708",
        "1240ffff00000009000000061f0000040000000000000007",
    ]


def test_tables() -> None:
    """Both names of each operation, and nothing else."""
    assert {(int(w), int(b)) for w, b in rules.ATOMIC_REQUEST.items()} == set(NAMES)
    assert np.nonzero(rules.OPERAND_BYTES)[0].tolist() == sorted(x for pair in NAMES for x in pair)
    for (_, _, size), (op, bth) in OPS.items():
        assert rules.OPERAND_BYTES[op] == rules.OPERAND_BYTES[bth] == size and rules.BTH_OF[op] == bth
    assert np.nonzero(rules.IS_ATOMIC)[0].tolist() == sorted(w for w, _ in NAMES)
    assert set(rules.ATOMIC_REQUEST) == set(WqeOp) - {WqeOp.SEND, WqeOp.WRITE, WqeOp.READ}
    assert packet.ATOMIC_BTH == {Bth(b) for _, b in NAMES}
