"""Rules of the NIC as pure functions over arrays: spec/nic.md sections 3, 4, 6 and spec/wire.md section 5.

Every argument that is not named otherwise is a scalar or an array; arguments of one call broadcast against
each other, and results have the broadcast shape (0-d for scalars). Nothing here keeps state.
"""

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from pymodel.formats.arrays import I64, U8, Bools, IntLike, Rec, as_u64
from pymodel.formats.cqe import CQE_FIELDS, CqeError
from pymodel.formats.packet import ATOMIC_BTH, IS_REQUEST, Bth, Syndrome, derive, new
from pymodel.formats.wqe import ATOMIC_MSG_LEN, ATOMIC_OPS, ATOMIC_SIZE, DS_NUM, WqeOp
from pymodel.nic.context import MrContext, QpContext
from pymodel.nic.params import DEFAULT_PARAMS, Cnt, Params

#: longest message (nic.md 4)
MAX_MESSAGE: Final = 1 << 31
PSN_MOD: Final = 1 << 24
CID_MOD: Final = 1 << 23


def as_i64(value: IntLike) -> I64:
    """`value` as an int64 array (0-d for a scalar)."""
    return np.asarray(value).astype(np.int64)


# ------------------------------------------------------------------------------- doorbells (nic.md 3)


class DbVerdict(IntEnum):
    """What an SQ doorbell does; judged in the order PARTIAL, RESET, PAGE, PID, then by distance."""

    NO_WORK = 0  # same index: accepted, no work
    ACCEPTED = 1  # the producer moves
    OVERRUN = 2  # the index does not move, the QP goes to ERR, asynchronous event
    STALE = 3  # beyond half of the width: ignored
    PID = 4  # low three bits of next_pid set: ignored
    PAGE = 5  # page of another QP, or no QP: ignored
    PARTIAL = 6  # partial strobe: ignored
    RESET = 7  # QP in RESET: ignored


#: counter of each verdict that is not accepted (nic.md 7)
DB_COUNTER: Final[Mapping[DbVerdict, Cnt]] = {
    DbVerdict.OVERRUN: Cnt.DB_OVERRUN, DbVerdict.STALE: Cnt.DB_STALE, DbVerdict.PID: Cnt.DB_PID,
    DbVerdict.PAGE: Cnt.DB_PAGE, DbVerdict.PARTIAL: Cnt.DB_PARTIAL, DbVerdict.RESET: Cnt.DB_RESET,
}  # fmt: skip


class CqDbVerdict(IntEnum):
    """What a CQ doorbell does."""

    ACCEPTED = 0
    BACKWARD = 1  # ignored; nothing is armed
    BEYOND = 2  # refused; nothing is armed


def index_mask(version: IntLike) -> I64:
    """Mask of a producer index: 14 bits (V1), 18 bits (V2) (nic.md 3)."""
    return as_i64(np.where(np.asarray(version) == 1, (1 << 14) - 1, (1 << 18) - 1))


def sq_doorbell(
    next_pid: IntLike,
    current: IntLike,
    outstanding: IntLike,
    depth: IntLike,
    version: IntLike,
    stale_ignored: bool = True,
) -> U8:
    """DbVerdict of an SQ doorbell to a QP in RTS or ERR, on the right page, whole (nic.md 3).

    next_pid: as in the doorbell, in 16-byte units. current: producer index (any number of bits). outstanding:
    WQEs that count as such. stale_ignored: K; False treats a distance beyond half as overrun.
    """
    pid, mask = as_i64(next_pid), index_mask(version)
    distance = ((pid >> 3) - as_i64(current)) & mask
    room = as_i64(depth) - as_i64(outstanding)
    half = (mask + 1) >> 1
    beyond = DbVerdict.STALE if stale_ignored else DbVerdict.OVERRUN
    return np.select(
        [pid & 7 != 0, distance == 0, distance <= room, distance <= half],
        [DbVerdict.PID, DbVerdict.NO_WORK, DbVerdict.ACCEPTED, DbVerdict.OVERRUN],
        beyond,
    ).astype(np.uint8)


def doorbell_gate(
    page_qpn: IntLike, qp_id: IntLike, in_reset: IntLike, strobe: IntLike = 0xFF, known: IntLike = True
) -> U8:
    """What stands before `sq_doorbell`: DbVerdict PARTIAL, PAGE or RESET, else NO_WORK (go on).

    page_qpn: QP number of the page. known: that number has a context. in_reset: its QP is in RESET (then
    there is no version to decode qp_id by, so RESET is judged first). qp_id: as decoded. strobe: 8-bit byte
    strobe.
    """
    return np.select(
        [np.asarray(strobe) != 0xFF, ~np.asarray(known, np.bool_), np.asarray(in_reset, np.bool_),
         as_i64(qp_id) != as_i64(page_qpn) & 0xFFFF],
        [DbVerdict.PARTIAL, DbVerdict.PAGE, DbVerdict.RESET, DbVerdict.PAGE],
        DbVerdict.NO_WORK,
    ).astype(np.uint8)  # fmt: skip


def cq_doorbell(next_cid: IntLike, ci: IntLike, producer: IntLike) -> U8:
    """CqDbVerdict (nic.md 3). ci, producer: consumer and producer index, of 23 bits or free-running."""
    distance = (as_i64(next_cid) - as_i64(ci)) & (CID_MOD - 1)
    filled = (as_i64(producer) - as_i64(ci)) & (CID_MOD - 1)
    return np.select(
        [distance <= filled, distance <= filled + (CID_MOD >> 1)],
        [CqDbVerdict.ACCEPTED, CqDbVerdict.BEYOND],
        CqDbVerdict.BACKWARD,
    ).astype(np.uint8)


def cq_arms(cq_sta: IntLike) -> Bools:
    """True where an accepted CQ doorbell also arms (nic.md 3: cq_sta 2 and 3)."""
    return np.asarray(np.asarray(cq_sta) >= 2)


# ------------------------------------------------------------------------------- memory regions (nic.md 2)


class Right(IntEnum):
    """Right that an access needs (nic.md 2, 4)."""

    NONE = 0  # local source: a valid lkey is enough
    LOC_WRITE = 1
    REM_WRITE = 2
    REM_READ = 3
    REM_ATOMIC = 4


class MrVerdict(IntEnum):
    """Outcome of an access check; the first that fails."""

    OK = 0
    KEY = 1  # index, valid bit or tag
    RIGHT = 2
    RANGE = 3


#: one MR. length is 65 bits: whole = it is exactly 2^64 and `length` is 0. rights: bit r = Right r is given
MR_ROW: Final[np.dtype[np.void]] = np.dtype(
    [("base", "<u8"), ("length", "<u8"), ("whole", "?"), ("valid", "?"), ("rights", "u1"), ("ltag", "u1"),
     ("rtag", "u1")]
)  # fmt: skip


def mr_table(mrs: Mapping[int, MrContext], num_mr: int = DEFAULT_PARAMS.num_mr) -> Rec:
    """MRs by index as an MR_ROW array [num_mr]; indices that are missing are invalid."""
    table: Rec = np.zeros(num_mr, MR_ROW)
    for index, mr in mrs.items():
        rights = 1 << Right.NONE | mr.loc_write << Right.LOC_WRITE | mr.rem_write << Right.REM_WRITE
        rights |= mr.rem_read << Right.REM_READ | mr.rem_atomic << Right.REM_ATOMIC
        length = mr.length & ((1 << 64) - 1)
        table[index] = (mr.base, length, bool(mr.length >> 64), mr.valid, rights, mr.ltag, mr.rtag)
    return table


def mr_check(
    mrs: Rec, key: IntLike, remote: IntLike, right: IntLike, va: IntLike, length: IntLike, bank: IntLike = 0
) -> U8:
    """MrVerdict of accesses (nic.md 2, wire.md 5). Zero length: OK without looking (nic.md 5).

    mrs: MR_ROW [num_mr], or [n_bank, num_mr] with `bank` = the row of each access (several NICs at once).
    key: lkey or rkey. remote: True compares the rkey tag. right: Right. va: 64-bit. length: bytes, < 2^64.
    Exact at the top of the address space: nothing here is computed beyond 64 bits.
    """
    rows = np.atleast_2d(mrs)
    k, address, size = as_u64(key), as_u64(va), as_u64(length)
    index = (k >> np.uint64(8)).astype(np.int64)
    inside = index < rows.shape[1]
    row = rows[as_i64(bank), np.where(inside, index, 0)]
    tag = np.where(np.asarray(remote, np.bool_), row["rtag"], row["ltag"])
    key_ok = inside & row["valid"] & (tag == k & np.uint64(0xFF))
    right_ok = (row["rights"] >> np.asarray(right, np.uint8)) & 1 != 0
    fits = np.where(row["whole"], True, size <= row["length"])
    # A region never goes beyond 2^64, so modulo 2^64 will do: an address below base wraps to an offset behind
    # every legal one, and 2^64 - size is 0 - size. The difference is not used where size does not fit.
    with np.errstate(over="ignore"):
        range_ok = fits & (address - row["base"] <= row["length"] - size)
    return np.select(
        [size == 0, ~key_ok, ~right_ok, ~range_ok],
        [MrVerdict.OK, MrVerdict.KEY, MrVerdict.RIGHT, MrVerdict.RANGE],
        MrVerdict.OK,
    ).astype(np.uint8)


# ------------------------------------------------------------------------------- WQEs (nic.md 4)

#: opcodes that this version executes
BUILT: Final = frozenset((WqeOp.WRITE,))

_KNOWN: Final[Bools] = np.isin(np.arange(256), list(WqeOp))
IS_ATOMIC: Final[Bools] = np.isin(np.arange(256), list(ATOMIC_OPS))


def _by_opcode(values: Mapping[WqeOp, int]) -> I64:
    table = np.zeros(256, np.int64)
    table[list(values)] = list(values.values())
    return table


_DS_NUM: Final = _by_opcode(DS_NUM)
_MSG_LEN: Final = _by_opcode(ATOMIC_MSG_LEN)
#: bytes that an atomic works on by WQE opcode, 0 for others: int64[256]
OPERAND_BYTES: Final = _by_opcode(ATOMIC_SIZE)


def wqe_check(
    wqe: Rec,
    index: IntLike,
    version: IntLike,
    bus_error: IntLike = False,
    mrs: Rec | None = None,
    bank: IntLike = 0,
    supported: Collection[WqeOp] = BUILT,
    imm_supported: bool = False,
    params: Params = DEFAULT_PARAMS,
) -> U8:
    """CqeError code of the first check that each WQE fails, CqeError.OK for none (nic.md 4, in its order).

    wqe: WQE_FIELDS [n] (formats.wqe.unpack). index: the slot's free-running index. version: 1 or 2.
    bus_error: the fetch met one. mrs, bank: as in `mr_check`; None leaves the local key unjudged. supported:
    operations that are built; one that is not counts as an unknown opcode (ab). imm_supported: WRITE and SEND
    with immediate are built; otherwise they are ab like an unknown opcode.
    """
    op = wqe["msg_opcode"]
    atomic, send = IS_ATOMIC[op], op == WqeOp.SEND
    data = np.isin(op, (WqeOp.SEND, WqeOp.WRITE))
    imm = wqe["with_imm"] != 0
    id_mask = np.where(np.asarray(version) == 1, 0xFFFF, 0xFFFFF)
    wrong_id = wqe["wqe_id"] != (as_i64(index) << 3 & id_mask)
    unknown = ~_KNOWN[op] | ~np.isin(op, list(supported))
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
    ]
    codes = [CqeError.SND_WQE_DMA, CqeError.SND_WQE_FORMAT, CqeError.SND_WQE_LEN, CqeError.SND_WQE_LEN]
    if mrs is not None:
        right = np.where(data, Right.NONE, Right.LOC_WRITE)
        local = mr_check(mrs, wqe["lkey"], False, right, wqe["laddr"], wqe["l_len"], bank)
        checks.append(local != MrVerdict.OK)
        codes.append(CqeError.LOCAL_MR_REQ)
    return np.select(checks, codes, CqeError.OK).astype(np.uint8)


def wqe_slot(index: IntLike, depth: IntLike) -> I64:
    """Slot number of a WQE index (device.md 1.1)."""
    return as_i64(index) & (as_i64(depth) - 1)


# ------------------------------------------------------------------------------- segmentation (wire.md 2, 5)


class Segments(NamedTuple):
    """Packets of n messages, m in all, message after message.

    packets: int64[n], of each message. The others are [m]. message: which of the n. number: inside its
    message, which is also its PSN less the message's first. offset: first byte inside the message. length:
    payload bytes.
    opcode: BTH opcode. last: ends its message. ackreq: AckReq bit.
    """

    packets: I64
    message: I64
    number: I64
    offset: I64
    length: I64
    opcode: U8
    last: Bools
    ackreq: U8


#: kind -> opcodes of Only, First, Middle, Last
_SEGMENT_OPS: Final[Mapping[str, tuple[Bth, Bth, Bth, Bth]]] = {
    "send": (Bth.SEND_ONLY, Bth.SEND_FIRST, Bth.SEND_MIDDLE, Bth.SEND_LAST),
    "write": (Bth.WRITE_ONLY, Bth.WRITE_FIRST, Bth.WRITE_MIDDLE, Bth.WRITE_LAST),
    "read_response": (Bth.READ_ONLY, Bth.READ_FIRST, Bth.READ_MIDDLE, Bth.READ_LAST),
}


def psn_count(length: IntLike, mtu: IntLike) -> I64:
    """PSNs of a message, for a READ those of its responses: max(1, ceil(length / MTU)) (wire.md 5)."""
    size = as_i64(mtu)
    count: I64 = np.maximum((as_i64(length) + size - 1) // size, 1)
    return count


def segment(
    length: IntLike,
    mtu: IntLike,
    kind: str = "write",
    with_imm: IntLike = False,
    ack_interval: int = DEFAULT_PARAMS.ack_interval,
) -> Segments:
    """Cut messages into packets (wire.md 2, 5; nic.md 5).

    length: int[n] bytes. mtu: bytes, scalar or [n]. kind: "write", "send" or "read_response". with_imm:
    scalar or [n], the last packet carries ImmDt. Zero length is one Only packet.
    """
    size, step = np.broadcast_arrays(np.atleast_1d(as_i64(length)), as_i64(mtu))
    count = psn_count(size, step)
    message = np.repeat(np.arange(size.size), count)
    index = np.arange(message.size) - np.repeat(np.cumsum(count) - count, count)
    offset = index * step[message]
    last = index == count[message] - 1
    only, first, middle, final = _SEGMENT_OPS[kind]
    opcode = np.select([last & (index == 0), index == 0, last], [only, first, final], middle).astype(np.uint8)
    opcode += (last & np.broadcast_to(np.asarray(with_imm, np.bool_), size.shape)[message]).astype(np.uint8)
    ackreq = (last | ((index + 1) % ack_interval == 0)).astype(np.uint8)
    if kind == "read_response":
        ackreq[:] = 0
    return Segments(
        count, message, index, offset, np.minimum(size[message] - offset, step[message]), opcode, last, ackreq
    )


#: what every packet of a QP has in common. d*: peer, s*: own
FLOW: Final[np.dtype[np.void]] = np.dtype(
    [("dst_mac", "<u8"), ("src_mac", "<u8"), ("dst_ip", "<u4"), ("src_ip", "<u4"), ("dest_qp", "<u4"),
     ("mtu", "<u4"), ("udp_sport", "<u2"), ("tos", "u1"), ("ttl", "u1")]
)  # fmt: skip


def flow(qpn: int, qp: QpContext, mac: int, ip: int) -> Rec:
    """FLOW of one QP as a 0-d array: index an array of them to have one a packet. mac, ip: of the own NIC."""
    return np.array(
        (qp.peer_mac, mac, qp.peer_ip, ip, qp.peer_qpn, qp.mtu, qp.sport(qpn), qp.tc, qp.ttl), FLOW
    )


def _flow_columns(rows: Rec) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    return {name: rows[name] for name in FLOW.names or () if name != "mtu"}


def write_headers(wqe: Rec, first_psn: IntLike, flows: Rec, segments: Segments) -> Rec:
    """PACKET_FIELDS [m] of the packets of n WRITE WQEs, complete with lengths and checksum.

    wqe: WQE_FIELDS [n]. first_psn: PSN of each WQE's first packet. flows: FLOW [n] or one. segments: of these
    n.
    """
    who = segments.message
    flows_n = np.broadcast_to(flows, wqe.shape)
    head = new(
        **_flow_columns(flows_n[who]),
        opcode=segments.opcode,
        psn=psn_add(np.broadcast_to(as_i64(first_psn), wqe.shape)[who], segments.number),
        ackreq=segments.ackreq,
        payload_len=segments.length,
        se=segments.last & (wqe["with_imm"][who] != 0) & (wqe["se"][who] != 0),
    )
    has_reth = segments.number == 0
    head["va"] = np.where(has_reth, wqe["raddr"][who], 0)
    head["rkey"] = np.where(has_reth, wqe["rkey"][who], 0)
    head["dma_len"] = np.where(has_reth, wqe["msg_len"][who], 0)
    with_imm = segments.last & (wqe["with_imm"][who] != 0)
    head["imm"] = np.where(with_imm, wqe["opcode_data"][who], 0)
    return derive(head)


def ack_headers(psn: IntLike, syndrome: IntLike, msn: IntLike, flows: Rec) -> Rec:
    """PACKET_FIELDS [n] of Acknowledge packets, complete. flows: FLOW [n] or one, of the responder's QP."""
    return derive(
        new(**_flow_columns(flows), opcode=Bth.ACK, psn=psn, syndrome=syndrome, msn=as_i64(msn) % PSN_MOD)
    )


# ------------------------------------------------------------------------------- completions (nic.md 6)


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
    by the WQE index.
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
    out["owner"] = cqe_owner(np.where(np.asarray(ignore_overrun, np.bool_), number, as_i64(producer)), depth)
    return out


# ------------------------------------------------------------------------------- PSNs (wire.md 5)


class PsnClass(IntEnum):
    """Place of a request PSN at the responder, or of a response PSN at the requester."""

    EXPECTED = 0
    AHEAD = 1
    BEHIND = 2


def psn_add(psn: IntLike, count: IntLike) -> I64:
    """psn + count modulo 2^24."""
    return (as_i64(psn) + as_i64(count)) & (PSN_MOD - 1)


def psn_diff(a: IntLike, b: IntLike) -> I64:
    """Signed distance from b to a, in -2^23 .. 2^23 - 1: negative where a is behind b."""
    half = PSN_MOD >> 1
    return ((as_i64(a) - as_i64(b) + half) & (PSN_MOD - 1)) - half


def psn_class(psn: IntLike, expected: IntLike) -> U8:
    """PsnClass of a request at its responder: behind within 2^23 is a duplicate, else ahead (wire.md 5)."""
    d = psn_diff(psn, expected)
    return np.select([d == 0, d > 0], [PsnClass.EXPECTED, PsnClass.AHEAD], PsnClass.BEHIND).astype(np.uint8)


def ack_class(psn: IntLike, oldest: IntLike, next_psn: IntLike) -> U8:
    """PsnClass of an ACK or NAK at its requester.

    oldest: oldest unacknowledged PSN. next_psn: the one after the last sent. EXPECTED: it speaks of a PSN
    that is outstanding; AHEAD: of one never sent; BEHIND: of one acknowledged before. The last two are
    dropped.
    """
    d = psn_diff(psn, oldest)
    outstanding = (as_i64(next_psn) - as_i64(oldest)) & (PSN_MOD - 1)
    return np.where(
        d < 0, PsnClass.BEHIND, np.where(d < outstanding, PsnClass.EXPECTED, PsnClass.AHEAD)
    ).astype(np.uint8)


# ------------------------------------------------------------------------------- responder (wire.md 5)

#: BTH opcodes of requests that this version executes
BUILT_REQUESTS: Final = frozenset((Bth.WRITE_FIRST, Bth.WRITE_MIDDLE, Bth.WRITE_LAST, Bth.WRITE_ONLY))

_SENDING: Final = (Bth.SEND_FIRST, Bth.SEND_MIDDLE)
_WRITING: Final = (Bth.WRITE_FIRST, Bth.WRITE_MIDDLE)
_SEND_NEXT: Final = (Bth.SEND_MIDDLE, Bth.SEND_LAST, Bth.SEND_LAST_IMM)
_WRITE_NEXT: Final = (Bth.WRITE_MIDDLE, Bth.WRITE_LAST, Bth.WRITE_LAST_IMM)
_STARTS_MESSAGE: Final[Bools] = IS_REQUEST & ~np.isin(np.arange(256), _SEND_NEXT + _WRITE_NEXT)
_WRITES: Final = range(Bth.WRITE_FIRST, Bth.WRITE_ONLY_IMM + 1)
_FULL: Final = _SENDING + _WRITING
_LAST: Final = (Bth.SEND_LAST, Bth.SEND_LAST_IMM, Bth.WRITE_LAST, Bth.WRITE_LAST_IMM)


def sequence_ok(previous: IntLike, opcode: IntLike) -> Bools:
    """True where `opcode` may follow `previous`, the last executed request packet of the QP (-1: none)."""
    before, op = as_i64(previous), as_i64(opcode)
    return np.select(
        [np.isin(before, _SENDING), np.isin(before, _WRITING)],
        [np.isin(op, _SEND_NEXT), np.isin(op, _WRITE_NEXT)],
        _STARTS_MESSAGE[op],
    )


def length_ok(opcode: IntLike, payload: IntLike, mtu: IntLike, remaining: IntLike) -> Bools:
    """Length rules of a request packet: First and Middle = MTU, Last 1..MTU, Only 0..MTU, sum = DMA length.

    remaining: WRITE only, bytes of the DMA length not yet received before this packet. Last and Only must end
    exactly there; First and Middle must leave a byte for the Last, in a message of at most 2^31.
    """
    op, size, most, left = as_i64(opcode), as_i64(payload), as_i64(mtu), as_i64(remaining)
    full = np.isin(op, _FULL)
    shape = np.where(full, size == most, (size <= most) & (~np.isin(op, _LAST) | (size >= 1)))
    total = np.where(full, (size < left) & (left <= MAX_MESSAGE), size == left)
    return np.asarray(shape & (~np.isin(op, _WRITES) | total))


def request_verdict(
    opcode: IntLike,
    previous: IntLike,
    payload: IntLike,
    mtu: IntLike,
    remaining: IntLike,
    rem_write: IntLike,
    rem_read: IntLike,
    rem_atomic: IntLike,
    mr: IntLike,
    va: IntLike = 0,
    supported: Collection[Bth] = BUILT_REQUESTS,
) -> U8:
    """Syndrome that answers a request at its expected PSN (wire.md 5); Syndrome.ACK where it is executed.

    previous, remaining: as in `sequence_ok` and `length_ok`. rem_*: rights of the QP. mr: MrVerdict for the
    whole DMA length (First, Only, READ, atomics) or of the key (others). va: of atomics, which must be
    aligned (nic.md 4). A request that is not built yet is an invalid request. NAK 1 has precedence over NAK
    2.
    """
    op = as_i64(opcode)
    atomic = np.isin(op, list(ATOMIC_BTH))
    narrow = np.isin(op, (Bth.MCAS32, Bth.MFA32))
    misaligned = atomic & (as_u64(va) & np.where(narrow, np.uint64(3), np.uint64(7)) != 0)
    no_right = np.isin(op, _WRITES) & ~np.asarray(rem_write, np.bool_)
    no_right |= (op == Bth.READ_REQUEST) & ~np.asarray(rem_read, np.bool_)
    no_right |= atomic & ~np.asarray(rem_atomic, np.bool_)
    invalid = ~sequence_ok(previous, op) | ~length_ok(op, payload, mtu, remaining)
    invalid |= ~np.isin(op, list(supported)) | no_right | misaligned
    return np.select(
        [invalid, np.asarray(mr) != MrVerdict.OK],
        [Syndrome.NAK_INV_REQ, Syndrome.NAK_ACCESS],
        Syndrome.ACK,
    ).astype(np.uint8)


def syndrome_known(syndrome: IntLike) -> Bools:
    """False for AETH syndromes that are dropped and counted (wire.md 3).

    Known are 000 ACK, 001 RNR NAK and 011 NAK with codes 0 to 3; 010 and everything with bit 7 are reserved.
    """
    s = as_i64(syndrome)
    return np.asarray((s < 0x40) | ((s >= Syndrome.NAK_SEQ) & (s <= Syndrome.NAK_REM_OP)))


# ------------------------------------------------------------------------------- acknowledgements (wire.md 3,
# 6)


class AckVerdict(IntEnum):
    """Why an ACK or NAK is illegal; the first that fits."""

    OK = 0
    SYNDROME = 1  # none that this NIC sends
    BACKWARD = 2  # PSN behind that of the response before
    AHEAD = 3  # acknowledges what was not executed
    NAK_PSN = 4  # a NAK names another PSN than the one that failed or is expected
    MSN = 5  # not the count at that PSN


def msn_at(psn_offset: IntLike, last_offsets: IntLike) -> I64:
    """MSN after everything up to and including a PSN was executed (wire.md 3).

    psn_offset: distance of the PSN from the QP's start PSN, not wrapped (-1: nothing executed yet).
    last_offsets: sorted, those of the last PSNs of the requests.
    """
    return np.searchsorted(as_i64(last_offsets), as_i64(psn_offset), side="right").astype(np.int64)


def ack_verdict(
    psn: IntLike, syndrome: IntLike, msn: IntLike, previous: IntLike, executed: IntLike, msn_expected: IntLike
) -> U8:
    """AckVerdict of acknowledgements (wire.md 3, 6).

    previous: PSN of the QP's response before, -1 for none. executed: the expected PSN of the responder, i.e.
    the first that is not executed. msn_expected: MSN at the acknowledged PSN (for a NAK the current one), see
    `msn_at`.
    """
    s, before = as_i64(syndrome), as_i64(previous)
    behind = (before >= 0) & (psn_diff(psn, np.maximum(before, 0)) < 0)
    ahead = psn_diff(psn, executed) - (s != Syndrome.ACK) >= 0
    # the failing packet of a NAK 3 may have been followed by others before its bus error came back
    nak_psn = np.isin(s, (Syndrome.NAK_SEQ, Syndrome.NAK_INV_REQ, Syndrome.NAK_ACCESS))
    nak_psn &= psn_diff(psn, executed) != 0
    wrong_msn = (as_i64(msn) - as_i64(msn_expected)) & (PSN_MOD - 1) != 0
    return np.select(
        [~np.isin(s, list(Syndrome)), behind, ahead, nak_psn, wrong_msn],
        [AckVerdict.SYNDROME, AckVerdict.BACKWARD, AckVerdict.AHEAD, AckVerdict.NAK_PSN, AckVerdict.MSN],
        AckVerdict.OK,
    ).astype(np.uint8)


def nak_error(syndrome: IntLike, msg_opcode: IntLike, raddr: IntLike) -> U8:
    """CqeError that a fatal NAK (code 1, 2 or 3) gives to its WQE (nic.md 4); OK for any other syndrome."""
    s, op = as_i64(syndrome), as_i64(msg_opcode)
    size = np.maximum(OPERAND_BYTES[op], 1)
    misaligned = as_u64(raddr) & (size - 1).astype(np.uint64) != 0
    return np.select(
        [(s == Syndrome.NAK_INV_REQ) & misaligned, s == Syndrome.NAK_INV_REQ, s == Syndrome.NAK_ACCESS,
         s == Syndrome.NAK_REM_OP],
        [CqeError.ATOMIC_VA_REQ, CqeError.NAK_INV_REQ, CqeError.NAK_MR, CqeError.NAK_REMOTE_OPER_ERR],
        CqeError.OK,
    ).astype(np.uint8)  # fmt: skip
