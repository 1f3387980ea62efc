"""Checks of a WQE before it starts: nic.md sections 4 and 5."""

from collections.abc import Collection
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, U8, Bools, IntLike, Rec
from pymodel.formats.cqe import CqeError
from pymodel.formats.wqe import ATOMIC_MSG_LEN, DS_NUM, WqeOp
from pymodel.nic.params import DEFAULT_PARAMS, Params
from pymodel.nic.rules.atomics import IS_ATOMIC, OPERAND_BYTES, by_opcode
from pymodel.nic.rules.common import MAX_MESSAGE, as_i64
from pymodel.nic.rules.regions import MrVerdict, Right, mr_check

#: opcodes that this version executes
BUILT: Final = frozenset(WqeOp)

_KNOWN: Final[Bools] = np.isin(np.arange(256), list(WqeOp))
#: a READ or atomic, which a response with data completes, by msg_opcode: bool[256]
NEEDS_RESPONSE: Final[Bools] = IS_ATOMIC | (np.arange(256) == WqeOp.READ)

_DS_NUM: Final = by_opcode(DS_NUM)
_MSG_LEN: Final = by_opcode(ATOMIC_MSG_LEN)


def wqe_check(
    wqe: Rec,
    index: IntLike,
    version: IntLike,
    bus_error: IntLike = False,
    mrs: Rec | None = None,
    bank: IntLike = 0,
    supported: Collection[WqeOp] = BUILT,
    imm_supported: bool | None = None,
    max_rd_atomic: IntLike = DEFAULT_PARAMS.max_rd_atomic,
    params: Params = DEFAULT_PARAMS,
) -> U8:
    """CqeError code of the first check that each WQE fails, CqeError.OK for none (nic.md 4, in its order).

    wqe: WQE_FIELDS [n] (formats.wqe.unpack). index: the slot's free-running index. version: 1 or 2.
    bus_error: the fetch met one. mrs, bank: as in `mr_check`; None leaves the local key unjudged. supported:
    operations that are built; one that is not counts as an unknown opcode (ab). imm_supported: WRITE and SEND
    with immediate are built (None: if SEND is); otherwise they are ab like an unknown opcode. max_rd_atomic:
    of the QP; where it is 0 a READ or atomic can never start: ab, found when it would, so behind the lengths.
    """
    op = wqe["msg_opcode"]
    atomic, send = IS_ATOMIC[op], op == WqeOp.SEND
    data = np.isin(op, (WqeOp.SEND, WqeOp.WRITE))
    imm = wqe["with_imm"] != 0
    id_mask = np.where(np.asarray(version) == 1, 0xFFFF, 0xFFFFF)
    wrong_id = wqe["wqe_id"] != (as_i64(index) << 3 & id_mask)
    unknown = ~_KNOWN[op] | ~np.isin(op, list(supported))
    if imm_supported is None:
        imm_supported = WqeOp.SEND in supported
    wrong_imm = imm & (~data | (not imm_supported))
    size = OPERAND_BYTES[op]
    r_len = wqe["r_len"].astype(np.int64)
    if params.shifted_remote_len:
        masked = atomic & (op >= WqeOp.MCAS64)
        r_len = np.where(masked, r_len >> 1, r_len)
    msg_len, l_len = wqe["msg_len"].astype(np.int64), wqe["l_len"].astype(np.int64)
    bad_len = np.where(
        atomic,
        (msg_len != _MSG_LEN[op]) | (l_len != size) | (r_len != size),
        (msg_len != l_len) | (~send & (msg_len != r_len)),
    )
    checks = [
        np.broadcast_to(np.asarray(bus_error, np.bool_), op.shape),
        wrong_id
        | unknown
        | wrong_imm
        | ((wqe["in_line"] != 0) != atomic)
        | (wqe["ds_data_num"] != _DS_NUM[op]),
        msg_len > MAX_MESSAGE,
        bad_len,
        NEEDS_RESPONSE[op] & (as_i64(max_rd_atomic) == 0),
    ]
    codes = [
        CqeError.SND_WQE_DMA,
        CqeError.SND_WQE_FORMAT,
        CqeError.SND_WQE_LEN,
        CqeError.SND_WQE_LEN,
        CqeError.SND_WQE_FORMAT,
    ]
    if mrs is not None:
        right = np.where(data, Right.NONE, Right.LOC_WRITE)
        local = mr_check(mrs, wqe["lkey"], False, right, wqe["laddr"], wqe["l_len"], bank)
        checks.append(local != MrVerdict.OK)
        codes.append(CqeError.LOCAL_MR_REQ)
    return np.select(checks, codes, CqeError.OK).astype(np.uint8)


def wqe_slot(index: IntLike, depth: IntLike) -> I64:
    """Slot number of a WQE index (device.md 1.1)."""
    return as_i64(index) & (as_i64(depth) - 1)


def may_start(
    msg_opcode: IntLike,
    fence_mode: IntLike,
    unacked: IntLike,
    psns: IntLike,
    rd_outstanding: IntLike,
    max_rd_atomic: IntLike,
    window: int = DEFAULT_PARAMS.psn_window,
) -> Bools:
    """True where the next WQE of a QP need not wait before its first packet (nic.md 5, wire.md 5).

    unacked: PSNs of the QP that are not acknowledged. psns: of the WQE (`psn_count`, 1 for an atomic).
    rd_outstanding: READs and atomics of the QP whose results are not all in memory: as many as max_rd_atomic
    hold back another one (0 holds nothing back: `wqe_check` refuses), and any holds back a WQE with
    fence_mode 1. The PSN window is left only by a WQE that is alone; a WRITE looks at it packet by packet,
    which for its start means one PSN.
    """
    op, held = np.asarray(msg_opcode), as_i64(rd_outstanding)
    asks = np.where(NEEDS_RESPONSE[op], as_i64(psns), 1)
    room = (as_i64(unacked) == 0) | (as_i64(unacked) + asks < window)
    fenced = (np.asarray(fence_mode) == 1) & (held > 0)
    return np.asarray(room & ~fenced & (~NEEDS_RESPONSE[op] | (held < np.maximum(as_i64(max_rd_atomic), 1))))
