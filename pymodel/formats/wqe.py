"""XSCALE send WQE, versions 1 and 2 (device.md section 1).

A WQE slot is 128 bytes: control segment, then data segments (remote before local; SEND has the local one
only, nic.md section 5), then the atomic operand segment(s). Everything is little-endian but the operands,
which are big-endian.
"""

from enum import IntEnum
from typing import Final

import numpy as np

from pymodel.formats.arrays import (
    U8,
    U64,
    Fields,
    IntLike,
    Rec,
    as_u64,
    check_version,
    get_bits,
    put_bits,
    to_fields,
)

#: bytes of a slot, of a segment, and segments per slot (device.md 1.1)
WQE_BYTES: Final = 128
DS_BYTES: Final = 16
DS_PER_WQE: Final = 8


class WqeOp(IntEnum):
    """ctrl.msg_opcode of the operations of this NIC (device.md 1.4)."""

    SEND = 0
    WRITE = 1
    READ = 2
    CAS64 = 26
    FA64 = 27
    MCAS64 = 31
    MFA64 = 32
    MCAS32 = 33
    MFA32 = 34


ATOMIC_OPS: Final = frozenset((WqeOp.CAS64, WqeOp.FA64, WqeOp.MCAS64, WqeOp.MFA64, WqeOp.MCAS32, WqeOp.MFA32))
#: ds_data_num, the number of segments after the control segment, by opcode (device.md 1.2, 1.5; nic.md 5)
DS_NUM: Final = {
    WqeOp.SEND: 1, WqeOp.WRITE: 2, WqeOp.READ: 2, WqeOp.CAS64: 3, WqeOp.FA64: 3,
    WqeOp.MCAS64: 4, WqeOp.MFA64: 3, WqeOp.MCAS32: 3, WqeOp.MFA32: 3,
}  # fmt: skip
#: msg_len of atomics by opcode (device.md 1.5)
ATOMIC_MSG_LEN: Final = {
    WqeOp.CAS64: 16, WqeOp.FA64: 16, WqeOp.MCAS64: 32, WqeOp.MFA64: 16, WqeOp.MCAS32: 16, WqeOp.MFA32: 8,
}  # fmt: skip
#: bytes of memory that an atomic works on, by opcode (device.md 1.5)
ATOMIC_SIZE: Final = {
    WqeOp.CAS64: 8, WqeOp.FA64: 8, WqeOp.MCAS64: 8, WqeOp.MFA64: 8, WqeOp.MCAS32: 4, WqeOp.MFA32: 4,
}  # fmt: skip

#: one decoded WQE. `r_*`: remote segment, `l_*`: local segment; the last four are the operands of atomics:
#: swap_add = swap or add, compare = compare or field boundary. 4-byte operands are zero-extended.
WQE_FIELDS: Final[np.dtype[np.void]] = np.dtype(
    [
        ("raddr", "<u8"), ("laddr", "<u8"),
        ("swap_add", "<u8"), ("compare", "<u8"), ("swap_mask", "<u8"), ("compare_mask", "<u8"),
        ("wqe_id", "<u4"), ("msg_len", "<u4"), ("opcode_data", "<u4"), ("rsv", "<u4"),
        ("r_len", "<u4"), ("rkey", "<u4"), ("l_len", "<u4"), ("lkey", "<u4"),
        ("rsv1", "<u2"), ("msg_opcode", "u1"), ("with_imm", "u1"), ("csum_en", "u1"), ("ds_data_num", "u1"),
        ("se", "u1"), ("ce", "u1"), ("in_line", "u1"), ("fence_mode", "u1"), ("mask", "u1"),
    ]
)  # fmt: skip

_WIDTHS: Final = {
    "with_imm": 1, "csum_en": 2, "ds_data_num": 5, "se": 1, "ce": 1, "in_line": 1, "fence_mode": 2, "mask": 2,
}  # fmt: skip
#: per version: fields whose width differs. V1 has no rsv1 (wqe_id stands there), V2 a wider wqe_id
_WIDTHS_V: Final = {1: {"wqe_id": 16, "rsv1": 0, "rsv": 25}, 2: {"wqe_id": 20, "rsv1": 16, "rsv": 5}}

_OPS64: Final = (WqeOp.CAS64, WqeOp.FA64, WqeOp.MCAS64, WqeOp.MFA64)
#: opcodes for which the vendor's plain post path stores little-endian operands (device.md 1.5, K)
_OPS_PLAIN: Final = (WqeOp.CAS64, WqeOp.FA64)


def wqe_id_of(index: IntLike, version: int) -> U64:
    """wqe_id of the WQE with free-running `index`: index << 3 in 16 (V1) or 20 (V2) bits (device.md 1.2)."""
    check_version(version)
    mask = np.uint64(0xFFFF if version == 1 else 0xFFFFF)
    out: U64 = (as_u64(index) << np.uint64(3)) & mask
    return out


def pack(fields: Fields, version: int, base: U8 | None = None, plain_le: bool = False) -> U8:
    """Encode WQEs.

    fields: structured array of WQE_FIELDS, or a mapping of field name to scalar or array; missing names
        are 0.
    base: uint8[n, 128] previous content of the slots (device.md 1.6: bytes that no segment covers keep it);
        zero if None. Segments that the opcode does not have are not written either.
    plain_le: K, operands of opcodes 26 and 27 little-endian (device.md 1.5).
    Returns uint8[n, 128]. Raises ValueError for a value wider than its bits.
    """
    check_version(version)
    f = to_fields(WQE_FIELDS, fields, {**_WIDTHS, **_WIDTHS_V[version]})
    n = f.size
    if base is None:
        out = np.zeros((n, WQE_BYTES), np.uint8)
    else:
        out = np.array(np.broadcast_to(base, (n, WQE_BYTES)), np.uint8)
    lo = np.zeros(n, np.uint64)
    put_bits(lo, f["msg_opcode"], 0)
    put_bits(lo, f["with_imm"], 8)
    put_bits(lo, f["csum_en"], 9)
    put_bits(lo, f["ds_data_num"], 11)
    put_bits(lo, f["wqe_id"] if version == 1 else f["rsv1"], 16)
    put_bits(lo, f["msg_len"], 32)
    hi = np.zeros(n, np.uint64)
    put_bits(hi, f["opcode_data"], 0)
    put_bits(hi, f["se"], 32)
    put_bits(hi, f["ce"], 33)
    put_bits(hi, f["in_line"], 34)
    put_bits(hi, f["fence_mode"], 35)
    put_bits(hi, f["mask"], 37)
    put_bits(hi, f["rsv"], 39)
    if version == 2:
        put_bits(hi, f["wqe_id"], 44)
    out[:, 0:8] = _bytes(lo, "<u8")
    out[:, 8:16] = _bytes(hi, "<u8")

    op = f["msg_opcode"]
    send = op == WqeOp.SEND
    remote = _data_segment(f, "r_len", "rkey", "raddr")
    local = _data_segment(f, "l_len", "lkey", "laddr")
    out[:, 16:32] = np.where(send[:, None], local, remote)
    out[~send, 32:48] = local[~send]

    wide = np.isin(op, _OPS64)
    if wide.any():
        out[wide, 48:56] = _bytes(f["swap_add"][wide], ">u8")
        out[wide, 56:64] = _bytes(f["compare"][wide], ">u8")
    if plain_le:
        plain = np.isin(op, _OPS_PLAIN)
        out[plain, 48:56] = _bytes(f["swap_add"][plain], "<u8")
        out[plain, 56:64] = _bytes(f["compare"][plain], "<u8")
    mcas64 = op == WqeOp.MCAS64
    if mcas64.any():
        out[mcas64, 64:72] = _bytes(f["swap_mask"][mcas64], ">u8")
        out[mcas64, 72:80] = _bytes(f["compare_mask"][mcas64], ">u8")
    # 4-byte operands are the low halves of the 64-bit arguments (device.md 1.5)
    narrow = (op == WqeOp.MCAS32) | (op == WqeOp.MFA32)
    if narrow.any():
        out[narrow, 48:52] = _bytes(f["swap_add"][narrow].astype(np.uint32), ">u4")
        out[narrow, 52:56] = _bytes(f["compare"][narrow].astype(np.uint32), ">u4")
    mcas32 = op == WqeOp.MCAS32
    if mcas32.any():
        out[mcas32, 56:60] = _bytes(f["swap_mask"][mcas32].astype(np.uint32), ">u4")
        out[mcas32, 60:64] = _bytes(f["compare_mask"][mcas32].astype(np.uint32), ">u4")
    return out


def unpack(slots: U8, version: int, plain_le: bool = False) -> Rec:
    """Decode WQE slots, uint8[n, 128] (or [128] for one), to a structured array [n] of WQE_FIELDS.

    Every reserved bit of the control segment is delivered, so that pack(unpack(x)) gives back all segments.
    Segments that the opcode does not have read as 0; opcodes outside WqeOp are decoded like READ and WRITE.
    """
    check_version(version)
    raw = np.ascontiguousarray(np.atleast_2d(slots), np.uint8)
    if raw.shape[1] != WQE_BYTES:
        raise ValueError(f"a WQE slot has {WQE_BYTES} bytes, not {raw.shape[1]}")
    f: Rec = np.zeros(raw.shape[0], WQE_FIELDS)
    words: U64 = raw.view("<u8")
    lo, hi = words[:, 0], words[:, 1]
    f["msg_opcode"] = get_bits(lo, 0, 8)
    f["with_imm"] = get_bits(lo, 8, 1)
    f["csum_en"] = get_bits(lo, 9, 2)
    f["ds_data_num"] = get_bits(lo, 11, 5)
    f["msg_len"] = get_bits(lo, 32, 32)
    f["opcode_data"] = get_bits(hi, 0, 32)
    f["se"] = get_bits(hi, 32, 1)
    f["ce"] = get_bits(hi, 33, 1)
    f["in_line"] = get_bits(hi, 34, 1)
    f["fence_mode"] = get_bits(hi, 35, 2)
    f["mask"] = get_bits(hi, 37, 2)
    if version == 1:
        f["wqe_id"] = get_bits(lo, 16, 16)
        f["rsv"] = get_bits(hi, 39, 25)
    else:
        f["rsv1"] = get_bits(lo, 16, 16)
        f["rsv"] = get_bits(hi, 39, 5)
        f["wqe_id"] = get_bits(hi, 44, 20)

    op = f["msg_opcode"]
    send = op == WqeOp.SEND
    f["r_len"] = np.where(send, 0, get_bits(words[:, 2], 0, 32))
    f["rkey"] = np.where(send, 0, get_bits(words[:, 2], 32, 32))
    f["raddr"] = np.where(send, np.uint64(0), words[:, 3])
    local_lo = np.where(send, words[:, 2], words[:, 4])
    f["l_len"] = get_bits(local_lo, 0, 32)
    f["lkey"] = get_bits(local_lo, 32, 32)
    f["laddr"] = np.where(send, words[:, 3], words[:, 5])

    atomic = op >= WqeOp.CAS64
    if not atomic.any():
        return f
    big: U64 = raw.view(">u8")
    wide = np.isin(op, _OPS64)
    f["swap_add"][wide] = big[wide, 6]
    f["compare"][wide] = big[wide, 7]
    if plain_le:
        plain = np.isin(op, _OPS_PLAIN)
        f["swap_add"][plain] = words[plain, 6]
        f["compare"][plain] = words[plain, 7]
    mcas64 = op == WqeOp.MCAS64
    f["swap_mask"][mcas64] = big[mcas64, 8]
    f["compare_mask"][mcas64] = big[mcas64, 9]
    big32 = raw.view(">u4")
    narrow = (op == WqeOp.MCAS32) | (op == WqeOp.MFA32)
    f["swap_add"][narrow] = big32[narrow, 12]
    f["compare"][narrow] = big32[narrow, 13]
    mcas32 = op == WqeOp.MCAS32
    f["swap_mask"][mcas32] = big32[mcas32, 14]
    f["compare_mask"][mcas32] = big32[mcas32, 15]
    return f


def _bytes(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], order: str) -> U8:
    """values[n] as uint8[n, itemsize] in the byte order that the dtype string gives."""
    raw: U8 = np.ascontiguousarray(values.astype(order)).view(np.uint8).reshape(values.size, -1)
    return raw


def _data_segment(f: Rec, length: str, key: str, addr: str) -> U8:
    """Data segment (device.md 1.3), uint8[n, 16]: 32-bit unshifted length, key, 64-bit address."""
    out = np.empty((f.size, DS_BYTES), np.uint8)
    out[:, 0:4] = _bytes(f[length], "<u4")
    out[:, 4:8] = _bytes(f[key], "<u4")
    out[:, 8:16] = _bytes(f[addr], "<u8")
    return out
