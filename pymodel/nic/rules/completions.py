"""Completion queue entries: nic.md section 6."""

import numpy as np

from pymodel.formats.arrays import I64, U8, Bools, IntLike, Rec
from pymodel.formats.cqe import CQE_FIELDS, CqeError
from pymodel.nic.rules.atomics import IS_ATOMIC, OPERAND_BYTES
from pymodel.nic.rules.common import CID_MOD, as_i64


def cqe_slot(producer: IntLike, depth: IntLike) -> I64:
    """Slot that the CQE with free-running number `producer` goes to."""
    return as_i64(producer) & (as_i64(depth) - 1)


def cqe_owner(producer: IntLike, depth: IntLike) -> U8:
    """Owner bit of that CQE: (producer / depth) & 1 (nic.md 6)."""
    owner: U8 = (as_i64(producer) // as_i64(depth) & 1).astype(np.uint8)
    return owner


def cq_has_room(producer: IntLike, ci: IntLike, depth: IntLike) -> Bools:
    """True where another CQE fits (nic.md 6: room changes only by CQ doorbells)."""
    return np.asarray((as_i64(producer) - as_i64(ci)) & (CID_MOD - 1) < as_i64(depth))


def requester_cqe(
    wqe: Rec,
    index: IntLike,
    qpn: IntLike,
    error: IntLike,
    producer: IntLike,
    depth: IntLike,
    version: IntLike,
    ignore_overrun: IntLike = False,
) -> Rec:
    """CQE_FIELDS [n] that the NIC writes for these WQEs, but for ts, which is 0 here (nic.md 6).

    error: CqeError code. producer: CQE number in its CQ. depth: of the CQ. ignore_overrun: G3's mode, owner
    by the WQE index as the driver finds it in the CQE, wqe_id >> 3 (device.md 2.6).
    """
    out: Rec = np.zeros(wqe.shape, CQE_FIELDS)
    code, number = np.broadcast_to(np.asarray(error), wqe.shape), as_i64(index)
    # the slot was not read: nothing of it is known
    blind = (code == CqeError.FLUSH) | (code == CqeError.SND_WQE_DMA)
    op = wqe["msg_opcode"]
    out["error_code"] = code
    out["qp_id"] = as_i64(qpn) & 0x7FFF
    out["msg_opcode"] = np.where(blind, 0, op)
    out["with_imm"] = np.where(blind, 0, wqe["with_imm"])
    out["wqe_id"] = number << 3 & np.where(np.asarray(version) == 1, 0xFFFF, 0xFFFFF)
    out["msg_len"] = np.where(code != 0, 0, np.where(IS_ATOMIC[op], OPERAND_BYTES[op], wqe["msg_len"]))
    told = as_i64(out["wqe_id"]) >> 3
    out["owner"] = cqe_owner(np.where(np.asarray(ignore_overrun, np.bool_), told, as_i64(producer)), depth)
    return out


def receive_cqe(
    index: IntLike,
    qpn: IntLike,
    error: IntLike,
    msg_opcode: IntLike,
    with_imm: IntLike,
    imm_data: IntLike,
    msg_len: IntLike,
    se: IntLike,
    producer: IntLike,
    depth: IntLike,
    version: IntLike,
    ignore_overrun: IntLike = False,
) -> Rec:
    """CQE_FIELDS [n] of receive WQEs, but for ts (nic.md 5, 6). One with an error tells nothing but that.

    index: of the RQ. msg_opcode: of the sender's WQE. imm_data: as ImmDt carried it. se: of the last packet.
    producer, depth, ignore_overrun: as in `requester_cqe`, with the RQ index.
    """
    number, code = np.atleast_1d(as_i64(index)), np.asarray(error)
    out: Rec = np.zeros(number.shape, CQE_FIELDS)
    good = code == 0
    out["error_code"], out["qp_id"], out["type"] = code, as_i64(qpn) & 0x7FFF, 1
    for name, value in (
        ("msg_opcode", msg_opcode), ("with_imm", with_imm), ("msg_len", msg_len), ("se", se),
    ):  # fmt: skip
        out[name] = np.where(good, value, 0)
    out["imm_data"] = np.where(good & (np.asarray(with_imm) != 0), imm_data, 0)
    out["wqe_id"] = number << 3 & np.where(np.asarray(version) == 1, 0xFFFF, 0xFFFFF)
    told = as_i64(out["wqe_id"]) >> 3
    out["owner"] = cqe_owner(np.where(np.asarray(ignore_overrun, np.bool_), told, as_i64(producer)), depth)
    return out
