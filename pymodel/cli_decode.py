"""``camhil decode``: WQE, CQE, doorbells and frames in words (device.md sections 1 to 3, wire.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from pymodel.cli_input import InputError, hex_bytes, hex_number
from pymodel.cli_packet import decode_packet
from pymodel.cli_report import Report, Row
from pymodel.formats import cqe, doorbell, recv, wqe
from pymodel.formats.cqe import CQE_BYTES, STRIDES
from pymodel.formats.doorbell import (
    CID_BITS,
    CQ_ID_BITS,
    QP_ID_BITS,
    RQ_PID_BITS,
    SQ_INDEX_BITS,
    SQ_PID_BITS,
    CqSta,
)
from pymodel.formats.error_codes import error_name, verbs_class
from pymodel.formats.recv import RECV_BYTES
from pymodel.formats.wqe import ATOMIC_MSG_LEN, ATOMIC_OPS, ATOMIC_SIZE, DS_NUM, WQE_BYTES, WqeOp
from pymodel.nic.rules import MAX_MESSAGE

_OP_TEXT: Final = {
    WqeOp.SEND: "SEND",
    WqeOp.WRITE: "RDMA WRITE",
    WqeOp.READ: "RDMA READ",
    WqeOp.CAS64: "compare and swap, 8 bytes",
    WqeOp.FA64: "fetch and add, 8 bytes",
    WqeOp.MCAS64: "masked compare and swap, 8 bytes",
    WqeOp.MFA64: "masked fetch and add, 8 bytes",
    WqeOp.MCAS32: "masked compare and swap, 4 bytes",
    WqeOp.MFA32: "masked fetch and add, 4 bytes",
}
_CAS: Final = (("swap", "swap_add"), ("compare", "compare"))
_MCAS: Final = (*_CAS, ("swap_mask", "swap_mask"), ("compare_mask", "compare_mask"))
_FA: Final = (("add", "swap_add"), ("boundary", "compare"))
#: (name shown, field of WQE_FIELDS) of the operands of each atomic (device.md 1.5)
_OPERANDS: Final = {
    WqeOp.CAS64: _CAS, WqeOp.FA64: _FA, WqeOp.MCAS64: _MCAS, WqeOp.MFA64: _FA, WqeOp.MCAS32: _MCAS,
    WqeOp.MFA32: _FA,
}  # fmt: skip
_WQE_ID_BITS: Final = {1: 16, 2: 20}
_CQ_STA: Final = {
    CqSta.FIRED: "FIRED: updates the index",
    CqSta.KEEP: "KEEP: updates the index",
    CqSta.ARM_NEXT: "ARM_NEXT: also arms, for the next CQE",
    CqSta.ARM_SOLICITED: "ARM_SOLICITED: also arms, for the next solicited or error CQE",
}


def op_of(code: int) -> str:
    """Name of a msg_opcode of a WQE or CQE."""
    return WqeOp(code).name if code in _OP_TEXT else "unknown"


class Fault(NamedTuple):
    """A check of nic.md 4 that a WQE fails: error_code of its CQE, and why."""

    code: int
    reason: str


def wqe_faults(f: np.void) -> list[Fault]:
    """Checks that one WQE (WQE_FIELDS) fails for what it says itself, in the order of nic.md 4.

    The first decides the CQE. The slot's index is not known here: of wqe_id only the low three bits, which
    are 0 in every index, are judged.
    """
    value = {name: int(f[name]) for name in f.dtype.names or ()}
    code = value["msg_opcode"]
    op = WqeOp(code) if code in _OP_TEXT else None
    atomic = op in ATOMIC_OPS
    faults: list[tuple[bool, int, str]] = [
        (value["wqe_id"] & 7 != 0, 0xAB, f"wqe_id {value['wqe_id']:#x} is not a multiple of 8"),
        (op is None, 0xAB, f"opcode {code:#04x} is unknown"),
    ]
    if op is not None:
        length, local, remote = value["msg_len"], value["l_len"], value["r_len"]
        size = ATOMIC_SIZE.get(op, 0)
        faults += [
            (
                value["with_imm"] != 0 and op not in (WqeOp.SEND, WqeOp.WRITE),
                0xAB,
                f"with_imm does not exist for {op.name}",
            ),
            (value["in_line"] != atomic, 0xAB, f"in_line is {value['in_line']}, {op.name} has {atomic:d}"),
            (
                value["ds_data_num"] != DS_NUM[op],
                0xAB,
                f"ds_data_num is {value['ds_data_num']}, {op.name} has {DS_NUM[op]}",
            ),
            (length > MAX_MESSAGE, 0x9F, f"msg_len {length} is above 2^31"),
        ]
        if atomic:
            want = ATOMIC_MSG_LEN[op]
            faults += [
                (length != want, 0x9F, f"msg_len is {length}, {op.name} has {want}"),
                (remote != size, 0x9F, f"remote_length is {remote}, {op.name} has {size}"),
                (local != size, 0x9F, f"local_length is {local}, {op.name} has {size}"),
            ]
        else:
            faults += [
                (op != WqeOp.SEND and remote != length, 0x9F, f"remote_length {remote}, msg_len {length}"),
                (local != length, 0x9F, f"local_length {local}, msg_len {length}"),
            ]
    return [Fault(code, reason) for fails, code, reason in faults if fails]


def decode_wqe(raw: bytes, version: int) -> Report:
    """A WQE slot of 128 bytes. Raises `InputError` for another length."""
    if len(raw) != WQE_BYTES:
        raise InputError(f"{len(raw)} bytes: a WQE slot has {WQE_BYTES} ({2 * WQE_BYTES} hexadecimal digits)")
    f = wqe.unpack(np.frombuffer(raw, np.uint8), version)[0]
    value = {name: int(f[name]) for name in f.dtype.names or ()}
    code = value["msg_opcode"]
    op = WqeOp(code) if code in _OP_TEXT else None
    index = value["wqe_id"] >> 3
    span = 1 << _WQE_ID_BITS[version] - 3
    wqe_id = Row("wqe_id", value["wqe_id"], _WQE_ID_BITS[version], f"WQE index {index} modulo {span}")
    ignored = "ignored by the NIC"
    control = [
        Row("msg_opcode", code, 8, _OP_TEXT[op] if op is not None else "unknown"),
        Row("with_imm", value["with_imm"], 1, "opcode_data is the immediate" if value["with_imm"] else ""),
        Row("csum_en", value["csum_en"], 2, ignored),
        Row("ds_data_num", value["ds_data_num"], 5, "segments behind the control segment"),
        wqe_id if version == 1 else Row("rsv1", value["rsv1"], 16, ignored),
        Row("msg_len", value["msg_len"], 32, "bytes of operands" if op in ATOMIC_OPS else "bytes"),
        Row("opcode_data", value["opcode_data"], 32, "immediate" if value["with_imm"] else ignored),
        Row("se", value["se"], 1, "matters for SEND and WRITE with immediate only"),
        Row("ce", value["ce"], 1, "CQE in any case" if value["ce"] else "CQE only if it fails"),
        Row("in_line", value["in_line"], 1, "1 for every atomic, else 0"),
        Row("fence_mode", value["fence_mode"], 2, "fences" if value["fence_mode"] == 1 else "no fence"),
        Row("mask", value["mask"], 2, ignored),
        Row("rsv", value["rsv"], 25 if version == 1 else 5, ignored),
    ]
    if version == 2:
        control.append(wqe_id)
    report = Report(f"WQE, version {version}: {op_of(code)}, index {index}")
    report.add("control segment", control)
    if op != WqeOp.SEND:
        source = {WqeOp.READ: "source", WqeOp.WRITE: "target"}.get(op, "") if op is not None else ""
        report.add(
            f"remote segment{f' ({source})' if source else ''}",
            [
                Row("remote_length", value["r_len"], 32, "bytes"),
                Row("rkey", value["rkey"], 32, _key(value["rkey"])),
                Row("remote_addr", value["raddr"], 64),
            ],
        )
    sink = "source" if op in (WqeOp.SEND, WqeOp.WRITE) else "sink" if op is not None else ""
    report.add(
        f"local segment{f' ({sink})' if sink else ''}",
        [
            Row("local_length", value["l_len"], 32, "bytes"),
            Row("lkey", value["lkey"], 32, _key(value["lkey"])),
            Row("local_addr", value["laddr"], 64),
        ],
    )
    if op in _OPERANDS:
        bits = 8 * ATOMIC_SIZE[op]
        report.add(
            "atomic operands (big-endian)",
            [Row(name, value[field], bits, _signed(value[field], bits)) for name, field in _OPERANDS[op]],
        )
    faults = wqe_faults(f)
    for i, fault in enumerate(faults):
        what = "fails: " if i == 0 else "also:  "
        report.notes.append(f"{what}{fault.code:02x} {error_name(fault.code)}: {fault.reason}")
    if not faults:
        report.notes.append("checks: good, as far as the WQE alone shows (not judged: slot index, local key)")
    size = ATOMIC_SIZE.get(op, 1) if op is not None else 1
    if value["raddr"] % size:
        report.notes.append(
            f"note: remote_addr is not a multiple of {size}: refused by the responder, CQE 89"
        )
    report.extra.update(
        op=op_of(code),
        version=version,
        index=index,
        checks=[{"error_code": c, "error": error_name(c), "reason": reason} for c, reason in faults],
    )
    return report


def decode_recv_wqe(raw: bytes, version: int) -> Report:
    """A slot of a receive queue, 16 bytes, alike in both versions. Raises `InputError` for another length."""
    if len(raw) != RECV_BYTES:
        raise InputError(
            f"{len(raw)} bytes: a receive WQE has {RECV_BYTES} ({2 * RECV_BYTES} hexadecimal digits)"
        )
    f = recv.unpack(np.frombuffer(raw, np.uint8))[0]
    report = Report(f"receive WQE: a buffer of {int(f['length'])} bytes")
    report.add(
        "data segment",
        [
            Row("length", int(f["length"]), 32, "bytes"),
            Row("lkey", int(f["lkey"]), 32, _key(int(f["lkey"]))),
            Row("addr", int(f["addr"]), 64),
        ],
    )
    report.extra["version"] = version
    return report


def decode_cqe(raw: bytes, version: int) -> Report:
    """A CQE of 32 or 64 bytes. Raises `InputError` for another length."""
    if len(raw) not in STRIDES:
        raise InputError(f"{len(raw)} bytes: a CQE slot has {' or '.join(str(s) for s in STRIDES)}")
    f = cqe.unpack(np.frombuffer(raw, np.uint8), version)[0]
    value = {name: int(f[name]) for name in f.dtype.names or ()}
    code, index = value["error_code"], value["wqe_id"] >> 3
    reserved = "reserved, 0 from this NIC"
    queue = "receive WQE" if value["type"] else "WQE"
    wqe_id = Row("wqe_id", value["wqe_id"], _WQE_ID_BITS[version], f"{queue} index {index}")
    rows = [
        Row("error_code", code, 8, f"{error_name(code)}, verbs class {verbs_class(code)}"),
        Row("qp_id", value["qp_id"], 15, "low 15 bits of the QPN"),
        Row("rsv0", value["rsv0"], 1, reserved),
        Row("se", value["se"], 1),
        Row("has_pph", value["has_pph"], 1, "0 from this NIC"),
        Row("type", value["type"], 1, "responder" if value["type"] else "requester"),
        Row("with_imm", value["with_imm"], 1),
        Row("csum_err", value["csum_err"], 4, "0 from this NIC"),
        Row("imm_data", value["imm_data"], 32),
        Row("msg_len", value["msg_len"], 32, "bytes moved"),
        Row("vni", value["vni"], 32, "0 from this NIC"),
        Row("ts", value["ts"], 48, "cycles since reset"),
        wqe_id if version == 1 else Row("rsv1", value["rsv1"], 16, reserved),
        Row("msg_opcode", value["msg_opcode"], 8, op_of(value["msg_opcode"])),
        Row("rsv2", value["rsv2"], 24 if version == 1 else 4, reserved),
    ]
    if version == 2:
        rows.append(wqe_id)
    rows += [
        Row("rsv3", value["rsv3"], 31 if version == 2 else 15, reserved),
        Row("owner", value["owner"], 1, f"valid on {'odd' if value['owner'] else 'even'} laps of the ring"),
    ]
    report = Report(f"CQE, version {version}: {error_name(code)}, {queue} index {index}")
    report.add("CQE", rows)
    if any(raw[CQE_BYTES:]):
        report.notes.append("note: bytes 32 to 63 are not all 0, as this NIC writes them")
    report.extra.update(
        error=error_name(code),
        verbs_class=verbs_class(code),
        op=op_of(value["msg_opcode"]),
        version=version,
        index=index,
    )
    return report


def decode_sq_doorbell(number: int, version: int) -> Report:
    """SQ doorbell, a number of at most 64 bits."""
    next_pid, qp_id, rest = (int(v) for v in doorbell.sq_decode(number, version))
    bits = SQ_PID_BITS[version]
    head = next_pid >> 3
    report = Report(f"SQ doorbell, version {version}: QP {qp_id}, new head {head}")
    report.add(
        f"0x{number:016x}",
        [
            Row("next_pid", next_pid, bits, "first free WQE in units of 16 bytes"),
            Row("head", head, SQ_INDEX_BITS[version], f"producer index modulo {1 << SQ_INDEX_BITS[version]}"),
            Row("qp_id", qp_id, QP_ID_BITS, f"its page is at 0x{0x0800_0000 + 4096 * qp_id:08x} of the BAR"),
            Row("rest", rest, 64 - bits - QP_ID_BITS, "0 from software"),
        ],
    )
    if next_pid & 7:
        report.notes.append("note: the low three bits of next_pid are not 0: ignored and counted (DB_PID)")
    report.extra["version"] = version
    return report


def decode_rq_doorbell(number: int, version: int) -> Report:
    """RQ doorbell, a number of at most 64 bits; the layout is the same in both versions."""
    next_pid, qp_id, rest = (int(v) for v in doorbell.rq_decode(number))
    report = Report(f"RQ doorbell: QP {qp_id}, new head {next_pid}")
    report.add(
        f"0x{number:016x}",
        [
            Row("next_pid", next_pid, RQ_PID_BITS, f"producer index, in slots, modulo {1 << RQ_PID_BITS}"),
            Row("qp_id", qp_id, QP_ID_BITS, f"its page is at 0x{0x0800_0000 + 4096 * qp_id:08x} of the BAR"),
            Row("rest", rest, 64 - RQ_PID_BITS - QP_ID_BITS, "0 from software"),
        ],
    )
    report.extra["version"] = version
    return report


def decode_cq_doorbell(number: int, version: int) -> Report:
    """CQ doorbell, a number of at most 64 bits; the layout is the same in both versions."""
    next_cid, cq_id, sta, rest = (int(v) for v in doorbell.cq_decode(number))
    report = Report(f"CQ doorbell: CQ {cq_id}, new tail {next_cid}")
    report.add(
        f"0x{number:016x}",
        [
            Row("next_cid", next_cid, CID_BITS, f"consumer index in CQEs modulo {1 << CID_BITS}"),
            Row("cq_id", cq_id, CQ_ID_BITS),
            Row("cq_sta", sta, 2, _CQ_STA[CqSta(sta)]),
            Row("rest", rest, 64 - CID_BITS - CQ_ID_BITS - 2, "0 from software"),
        ],
    )
    report.extra["version"] = version
    return report


_DECODERS: Final[dict[str, Callable[[list[str], int], Report]]] = {
    "wqe": lambda words, version: decode_wqe(hex_bytes(words), version),
    "recv-wqe": lambda words, version: decode_recv_wqe(hex_bytes(words), version),
    "cqe": lambda words, version: decode_cqe(hex_bytes(words), version),
    "sq-doorbell": lambda words, version: decode_sq_doorbell(hex_number(words, 64), version),
    "rq-doorbell": lambda words, version: decode_rq_doorbell(hex_number(words, 64), version),
    "cq-doorbell": lambda words, version: decode_cq_doorbell(hex_number(words, 64), version),
    "packet": lambda words, version: decode_packet(hex_bytes(words)),
}
KINDS: Final = tuple(_DECODERS)


def decode(kind: str, words: list[str], version: int) -> Report:
    """What HEX arguments `words` mean as one of `KINDS`. Raises `InputError`."""
    return _DECODERS[kind](words, version)


def _key(key: int) -> str:
    return f"MR index {key >> 8}, tag {key & 0xFF:#04x}"


def _signed(value: int, bits: int) -> str:
    return f"signed {value - (1 << bits)}" if value >> bits - 1 else ""
