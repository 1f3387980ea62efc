"""What each call of the device API must post, written down from device.md 1.2, 1.3, 1.5, 3.1 and 5.3 alone.

Nothing here imports the device API or the codecs: fields are set by their bit numbers in one 128-bit number,
and each atomic is a row of the page's table. `overlay` gives the slot after a build over an old content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ONES = (1 << 64) - 1

#: 1.2: (lowest bit, width) of what SHMEM writes, by version
_COMMON = {"msg_opcode": (0, 8), "with_imm": (8, 1), "ds_data_num": (11, 5), "msg_len": (32, 32)}
_FLAGS = {"ce": (97, 1), "in_line": (98, 1)}
CTRL = {
    1: {**_COMMON, **_FLAGS, "wqe_id": (16, 16)},
    2: {**_COMMON, **_FLAGS, "wqe_id": (108, 20)},
}


def be(value: int, nbytes: int) -> bytes:
    """Big-endian, cut to its low bytes."""
    return (value & (1 << 8 * nbytes) - 1).to_bytes(nbytes, "big")


def data_segment(length: int, key: int, addr: int) -> bytes:
    """1.3: length, key, address, little-endian."""
    return length.to_bytes(4, "little") + key.to_bytes(4, "little") + addr.to_bytes(8, "little")


@dataclass(frozen=True)
class Wqe:
    """One WQE to come: the control fields, both data segments, the atomic segment."""

    opcode: int
    ds: int
    msg_len: int
    length: int
    rkey: int
    raddr: int
    lkey: int
    laddr: int
    atomic: bytes = b""
    ce: int = 1

    def overlay(self, old: bytes, head: int, version: int) -> bytes:
        """The 128 bytes of a slot that held ``old`` before."""
        word = int.from_bytes(old[:16], "little")
        values = {
            "msg_opcode": self.opcode, "with_imm": 0, "ds_data_num": self.ds, "msg_len": self.msg_len,
            "ce": self.ce, "in_line": int(bool(self.atomic)), "wqe_id": head * 8,
        }  # fmt: skip
        for name, (low, width) in CTRL[version].items():
            mask = (1 << width) - 1
            word = word & ~(mask << low) | (values[name] & mask) << low
        new = word.to_bytes(16, "little")
        new += data_segment(self.length, self.rkey, self.raddr) + data_segment(
            self.length, self.lkey, self.laddr
        )
        new += self.atomic
        return new + old[len(new) :]


# ---------------------------------------------------------------------- 1.5
def fa64(opcode: int, add: int, boundary: int) -> tuple[int, int, int, int, bytes]:
    """(opcode, ds_data_num, msg_len, length, atomic segment)."""
    return opcode, 3, 16, 8, be(add, 8) + be(boundary, 8)


def fa32(add: int, boundary: int) -> tuple[int, int, int, int, bytes]:
    """Bytes 56..63 are not written."""
    return 34, 3, 8, 4, be(add, 4) + be(boundary, 4)


def cas64_plain(swap: int, compare: int) -> tuple[int, int, int, int, bytes]:
    """The unmasked one."""
    return 26, 3, 16, 8, be(swap, 8) + be(compare, 8)


def cas64(swap: int, compare: int, swap_mask: int, compare_mask: int) -> tuple[int, int, int, int, bytes]:
    """Two segments: {swap, compare}, {swap_mask, compare_mask}."""
    return 31, 4, 32, 8, be(swap, 8) + be(compare, 8) + be(swap_mask, 8) + be(compare_mask, 8)


def cas32(swap: int, compare: int, swap_mask: int, compare_mask: int) -> tuple[int, int, int, int, bytes]:
    """One segment of four."""
    return 33, 3, 16, 4, be(swap, 4) + be(compare, 4) + be(swap_mask, 4) + be(compare_mask, 4)


# ---------------------------------------------------------------------- 5.3
Row = tuple[int, int, int, int, bytes]


def _add(size: int, v: int, boundary: int) -> Row:
    return fa32(v, boundary) if size == 4 else fa64(32, v, boundary)


def _fetch_add(size: int, v: int) -> Row:
    return fa32(v, 0) if size == 4 else fa64(27, v, 0)


def _cas(size: int, swap: int, swap_mask: int) -> Row:
    return (cas32 if size == 4 else cas64)(swap, 0, swap_mask, 0)


#: API name -> what it posts for a type of ``size`` bytes, value ``v``, condition ``c``
ATOMICS: dict[str, Callable[[int, int, int], Row]] = {
    "fetch": lambda size, v, c: _add(size, 0, 0),
    "set": lambda size, v, c: _cas(size, v, ONES),
    "compare_swap": lambda size, v, c: cas32(v, c, ONES, ONES) if size == 4 else cas64_plain(v, c),
    "swap": lambda size, v, c: _cas(size, v, ONES),
    "add": lambda size, v, c: _add(size, v, 0),
    "inc": lambda size, v, c: _add(size, 1, 0),
    "fetch_add": lambda size, v, c: _fetch_add(size, v),
    "fetch_inc": lambda size, v, c: _fetch_add(size, 1),
    "and": lambda size, v, c: _cas(size, v, ~v),
    "fetch_and": lambda size, v, c: _cas(size, v, ~v),
    "or": lambda size, v, c: _cas(size, v, v),
    "fetch_or": lambda size, v, c: _cas(size, v, v),
    "xor": lambda size, v, c: _add(size, v, ONES),
    "fetch_xor": lambda size, v, c: _add(size, v, ONES),
}
#: which return the old value, so they contain a quiet
SYNCHRONOUS = {
    "fetch",
    "compare_swap",
    "swap",
    "fetch_add",
    "fetch_inc",
    "fetch_and",
    "fetch_or",
    "fetch_xor",
}


def new_value(name: str, old: int, v: int, c: int, bits: int) -> int:
    """What plain integers say that stands there afterwards, as a number of ``bits`` bits without sign."""
    mask = (1 << bits) - 1
    kind = name.removeprefix("fetch_")
    return {
        "fetch": old, "set": v, "swap": v, "compare_swap": v if (old - c) & mask == 0 else old,
        "add": old + v, "inc": old + 1, "and": old & v, "or": old | v, "xor": old ^ v,
    }[kind] & mask  # fmt: skip


# ---------------------------------------------------------------------- 3.1
def sq_doorbell(head: int, qpn: int, version: int) -> int:
    """next_pid in 16-byte units, then qp_id."""
    bits = 17 if version == 1 else 21
    return head * 8 % (1 << bits) + (qpn << bits)


def cq_doorbell(tail: int, cqn: int) -> int:
    """next_cid, then cq_id; cq_sta 0."""
    return tail % (1 << 23) + (cqn << 23)
