"""XSCALE CQE, versions 1 and 2 (device.md section 2, nic.md section 6)."""

from enum import IntEnum
from typing import Final

import numpy as np

from pymodel.formats.arrays import U8, U64, Fields, Rec, check_version, get_bits, put_bits, to_fields

#: bytes of the payload; a slot is 64 or 32 bytes with the payload at its start (device.md 2.1)
CQE_BYTES: Final = 32
STRIDES: Final = (32, 64)


class CqeError(IntEnum):
    """error_code values that this NIC gives (device.md 2.5; which cause gives which: nic.md 4 to 6)."""

    OK = 0x00
    ATOMIC_VA_REQ = 0x89  # NAK 1 for an atomic whose remote address is misaligned
    SND_WQE_LEN = 0x9F  # lengths of the WQE
    RTO_REQ = 0xA2  # transport retries exhausted
    NAK_RNR = 0xA3  # RNR retries exhausted
    NAK_INV_REQ = 0xA4  # NAK 1
    NAK_MR = 0xA5  # NAK 2
    NAK_REMOTE_OPER_ERR = 0xA6  # NAK 3
    LOCAL_MR_REQ = 0xA7  # local key, right or range
    READ_RSP_LEN = 0xA8  # READ response of a wrong length
    READ_RSP_OPCODE = 0xAA  # READ response of a wrong opcode
    SND_WQE_FORMAT = 0xAB  # malformed WQE
    SND_WQE_DMA = 0xAC  # bus error on the WQE fetch
    RCV_WQE_DMA = 0xAF  # receive: bus error on the read of the receive WQE
    DATA_DMA_RD_REQ = 0xB2  # bus error on a gather
    DATA_DMA_WR_REQ = 0xB3  # bus error on the scatter of a READ response or atomic result
    RCV_WQE_SIZE_RC = 0xC0  # receive: the message is longer than the buffer
    LOCAL_MR_RSP = 0xD6  # receive: local key, right or range of the buffer
    FLUSH = 0xFF


#: one decoded CQE. ts: 48 bits, cycles. rsv0: bit 23 of dword 0. rsv1: V2, upper half of ts_h. rsv2: V2,
#: bits 11:8 of dword 6; V1, bits 31:8. rsv3: bits 30:0 of dword 7. The NIC writes every reserved bit as 0.
CQE_FIELDS: Final[np.dtype[np.void]] = np.dtype(
    [
        ("ts", "<u8"), ("imm_data", "<u4"), ("msg_len", "<u4"), ("vni", "<u4"), ("wqe_id", "<u4"),
        ("rsv2", "<u4"), ("rsv3", "<u4"), ("qp_id", "<u2"), ("rsv1", "<u2"), ("error_code", "u1"),
        ("msg_opcode", "u1"), ("rsv0", "u1"), ("se", "u1"), ("has_pph", "u1"), ("type", "u1"),
        ("with_imm", "u1"), ("csum_err", "u1"), ("owner", "u1"),
    ]
)  # fmt: skip

_WIDTHS: Final = {
    "ts": 48, "qp_id": 15, "rsv0": 1, "se": 1, "has_pph": 1, "type": 1, "with_imm": 1, "csum_err": 4,
    "rsv3": 31, "owner": 1,
}  # fmt: skip
_WIDTHS_V: Final = {1: {"wqe_id": 16, "rsv1": 0, "rsv2": 24}, 2: {"wqe_id": 20, "rsv1": 16, "rsv2": 4}}


def pack(fields: Fields, version: int) -> U8:
    """Encode CQE payloads: CQE_FIELDS array or mapping (missing names 0) to uint8[n, 32]."""
    check_version(version)
    f = to_fields(CQE_FIELDS, fields, {**_WIDTHS, **_WIDTHS_V[version]})
    words = np.zeros((f.size, 4), np.uint64)
    w0, w1, w2, w3 = (words[:, i] for i in range(4))
    put_bits(w0, f["error_code"], 0)
    put_bits(w0, f["qp_id"], 8)
    put_bits(w0, f["rsv0"], 23)
    put_bits(w0, f["se"], 24)
    put_bits(w0, f["has_pph"], 25)
    put_bits(w0, f["type"], 26)
    put_bits(w0, f["with_imm"], 27)
    put_bits(w0, f["csum_err"], 28)
    put_bits(w0, f["imm_data"], 32)
    put_bits(w1, f["msg_len"], 0)
    put_bits(w1, f["vni"], 32)
    put_bits(w2, f["ts"], 0)
    put_bits(w2, f["wqe_id"] if version == 1 else f["rsv1"], 48)
    put_bits(w3, f["msg_opcode"], 0)
    put_bits(w3, f["rsv2"], 8)
    if version == 2:
        put_bits(w3, f["wqe_id"], 12)
    put_bits(w3, f["rsv3"], 32)
    put_bits(w3, f["owner"], 63)
    out: U8 = words.astype("<u8", copy=False).view(np.uint8)
    return out


def unpack(slots: U8, version: int) -> Rec:
    """Decode CQEs, uint8[n, 32 or more] (only 32 are looked at) or one [32], to CQE_FIELDS [n]."""
    check_version(version)
    raw = np.atleast_2d(slots)
    if raw.shape[1] < CQE_BYTES:
        raise ValueError(f"a CQE has {CQE_BYTES} bytes, not {raw.shape[1]}")
    words: U64 = np.ascontiguousarray(raw[:, :CQE_BYTES], np.uint8).view("<u8")
    w0, w1, w2, w3 = (words[:, i] for i in range(4))
    f: Rec = np.empty(words.shape[0], CQE_FIELDS)
    f["error_code"] = get_bits(w0, 0, 8)
    f["qp_id"] = get_bits(w0, 8, 15)
    f["rsv0"] = get_bits(w0, 23, 1)
    f["se"] = get_bits(w0, 24, 1)
    f["has_pph"] = get_bits(w0, 25, 1)
    f["type"] = get_bits(w0, 26, 1)
    f["with_imm"] = get_bits(w0, 27, 1)
    f["csum_err"] = get_bits(w0, 28, 4)
    f["imm_data"] = get_bits(w0, 32, 32)
    f["msg_len"] = get_bits(w1, 0, 32)
    f["vni"] = get_bits(w1, 32, 32)
    f["ts"] = get_bits(w2, 0, 48)
    f["msg_opcode"] = get_bits(w3, 0, 8)
    if version == 1:
        f["wqe_id"] = get_bits(w2, 48, 16)
        f["rsv1"] = 0
        f["rsv2"] = get_bits(w3, 8, 24)
    else:
        f["rsv1"] = get_bits(w2, 48, 16)
        f["rsv2"] = get_bits(w3, 8, 4)
        f["wqe_id"] = get_bits(w3, 12, 20)
    f["rsv3"] = get_bits(w3, 32, 31)
    f["owner"] = get_bits(w3, 63, 1)
    return f


def to_slots(payload: U8, stride: int) -> U8:
    """Payloads uint8[n, 32] as the NIC writes them: uint8[n, stride], bytes from 32 on zero (nic.md 6)."""
    check_stride(stride)
    out = np.zeros((payload.shape[0], stride), np.uint8)
    out[:, :CQE_BYTES] = payload
    return out


def ring_view(ring: U8, stride: int) -> U8:
    """A CQ ring, uint8[depth * stride], as uint8[depth, stride] without a copy."""
    check_stride(stride)
    return ring.reshape(-1, stride)


def check_stride(stride: int) -> None:
    """Raise ValueError unless `stride` is 32 or 64 (nic.md 2)."""
    if stride not in STRIDES:
        raise ValueError(f"CQE stride must be 32 or 64, not {stride}")
