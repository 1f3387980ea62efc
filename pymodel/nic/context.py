"""QP, CQ and MR contexts, their staging words, and the judgement of commands (nic.md section 2).

A command that breaks several rules is refused with the lowest code that applies; a refused command changes
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, Self

from pymodel.nic.params import CMD_REG, CMD_STAGE, DEFAULT_PARAMS, STAGE_WORDS, Params, mtu_bytes

_MASK64: Final = (1 << 64) - 1


class QpState(IntEnum):
    """State of a QP (nic.md 2)."""

    RESET = 0
    RTS = 1
    ERR = 2


class CmdOp(IntEnum):
    """CMD [3:0]."""

    SET = 1
    MODIFY = 2
    RESET = 3
    QUERY = 4


class CmdObj(IntEnum):
    """CMD [7:4]."""

    QP = 1
    CQ = 2
    MR = 3


class CmdStatus(IntEnum):
    """STATUS [15:8]: result of the last command."""

    OK = 0
    BAD_OP = 1  # no such operation
    BAD_OBJECT = 2  # no such object, or it has no such operation
    BAD_INDEX = 3
    BAD_STATE = 4
    BAD_DEPTH = 5
    BAD_BASE = 6  # not a multiple of the slot size
    BAD_MTU = 7
    BAD_CQ = 8  # no such CQ, or not programmed
    CQ_TOO_SMALL = 9  # shallower than the SQ
    BAD_STRIDE = 10
    BAD_RANGE = 11  # MR ends beyond 2^64
    BAD_RIGHTS = 12  # remote write or atomic without local write
    BAD_RD_ATOMIC = 13
    CQ_IN_USE = 14
    RESERVED = 15  # a reserved bit is set


@dataclass(frozen=True)
class QpContext:
    """Context of one QP. Times and depths as staged; the defaults are those of nic.md and wire.md."""

    peer_qpn: int
    peer_mac: int  # [47:40] is the first byte on the wire
    peer_ip: int
    sq_base: int
    sq_depth: int
    send_cq: int
    recv_cq: int
    version: int = 2
    mtu_code: int = 5  # 1..5: 256..4096 bytes
    sl: int = 0
    rem_write: bool = True
    rem_read: bool = True
    rem_atomic: bool = True
    tc: int = 132
    ttl: int = 64
    udp_sport: int = 0  # 0: 0xC000 | QPN[13:0]
    retry_cnt: int = 7
    rnr_retry: int = 7
    timer: int = 14
    sq_psn: int = 0  # first PSN to send
    rq_psn: int = 0  # first PSN to expect
    rq_base: int = 0
    rq_depth: int = 0  # 0: no receive queue
    sq_start_index: int = 0  # taken modulo the index width
    rq_start_index: int = 0
    max_rd_atomic: int = 16
    max_dest_rd_atomic: int = 16

    @property
    def mtu(self) -> int:
        """MTU in bytes."""
        return mtu_bytes(self.mtu_code)

    def sport(self, qpn: int) -> int:
        """UDP source port of QP number `qpn` (nic.md 2)."""
        return self.udp_sport or 0xC000 | (qpn & 0x3FFF)

    def stage_words(self) -> list[int]:
        """The 16 staging words. Raises ValueError for a value that does not fit its field."""
        if self.version not in (1, 2):
            raise ValueError(f"format version must be 1 or 2, not {self.version}")
        return _stage(
            {
                0: (
                    (self.version == 2, 0, 1), (self.mtu_code, 1, 3), (self.sl, 4, 3), (self.rem_write, 7, 1),
                    (self.rem_read, 8, 1), (self.rem_atomic, 9, 1), (self.tc, 16, 8), (self.ttl, 24, 8),
                    (self.udp_sport, 32, 16), (self.retry_cnt, 48, 3), (self.rnr_retry, 51, 3),
                    (self.timer, 54, 5),
                ),
                1: ((self.peer_qpn, 0, 24), (self.peer_ip, 32, 32)),
                2: ((self.peer_mac, 0, 48),),
                3: ((self.sq_psn, 0, 24), (self.rq_psn, 32, 24)),
                4: ((self.sq_base, 0, 64),),
                5: ((self.rq_base, 0, 64),),
                6: ((self.sq_start_index & 0xFFFF_FFFF, 0, 32), (self.rq_start_index & 0xFFFF_FFFF, 32, 32)),
                7: (
                    (self.send_cq, 0, 16), (self.recv_cq, 16, 16), (self.max_rd_atomic, 32, 8),
                    (self.max_dest_rd_atomic, 40, 8),
                ),
                9: ((self.sq_depth, 0, 24), (self.rq_depth, 32, 24)),
            }
        )  # fmt: skip

    @classmethod
    def from_words(cls, words: Sequence[int]) -> Self:
        """The context that staged words describe; reserved bits are dropped."""
        w = list(words)
        return cls(
            version=2 if w[0] & 1 else 1,
            mtu_code=_bits(w[0], 1, 3),
            sl=_bits(w[0], 4, 3),
            rem_write=bool(_bits(w[0], 7, 1)),
            rem_read=bool(_bits(w[0], 8, 1)),
            rem_atomic=bool(_bits(w[0], 9, 1)),
            tc=_bits(w[0], 16, 8),
            ttl=_bits(w[0], 24, 8),
            udp_sport=_bits(w[0], 32, 16),
            retry_cnt=_bits(w[0], 48, 3),
            rnr_retry=_bits(w[0], 51, 3),
            timer=_bits(w[0], 54, 5),
            peer_qpn=_bits(w[1], 0, 24),
            peer_ip=_bits(w[1], 32, 32),
            peer_mac=_bits(w[2], 0, 48),
            sq_psn=_bits(w[3], 0, 24),
            rq_psn=_bits(w[3], 32, 24),
            sq_base=w[4],
            rq_base=w[5],
            sq_start_index=_bits(w[6], 0, 32),
            rq_start_index=_bits(w[6], 32, 32),
            send_cq=_bits(w[7], 0, 16),
            recv_cq=_bits(w[7], 16, 16),
            max_rd_atomic=_bits(w[7], 32, 8),
            max_dest_rd_atomic=_bits(w[7], 40, 8),
            sq_depth=_bits(w[9], 0, 24),
            rq_depth=_bits(w[9], 32, 24),
        )

    def modified(self, other: "QpContext") -> "QpContext":
        """This context after a modify with `other`: only what may change in RTS is taken over."""
        return replace(
            self, sl=other.sl, tc=other.tc, ttl=other.ttl, rem_write=other.rem_write, rem_read=other.rem_read,
            rem_atomic=other.rem_atomic, retry_cnt=other.retry_cnt, rnr_retry=other.rnr_retry,
            timer=other.timer,
        )  # fmt: skip


@dataclass(frozen=True)
class CqContext:
    """Context of one CQ."""

    base: int
    depth: int
    stride: int = 64
    ignore_overrun: bool = False  # G3's mode: every CQE to slot 0, no room check
    start_index: int = 0  # cq_start_index: producer = consumer at programming

    def stage_words(self) -> list[int]:
        """The 16 staging words. Raises ValueError for a value that does not fit its field."""
        return _stage(
            {
                0: ((self.base, 0, 64),),
                1: ((self.depth, 0, 24), (self.stride, 32, 8), (self.ignore_overrun, 40, 1)),
                2: ((self.start_index & 0xFFFF_FFFF, 0, 32),),
            }
        )

    @classmethod
    def from_words(cls, words: Sequence[int]) -> Self:
        """The context that staged words describe; reserved bits are dropped."""
        return cls(
            base=words[0],
            depth=_bits(words[1], 0, 24),
            stride=_bits(words[1], 32, 8),
            ignore_overrun=bool(_bits(words[1], 40, 1)),
            start_index=_bits(words[2], 0, 32),
        )


@dataclass(frozen=True)
class MrContext:
    """Context of one memory region. length may be up to exactly 2^64 - base (a 65-bit number)."""

    base: int
    length: int
    loc_write: bool = True
    rem_write: bool = True
    rem_read: bool = True
    rem_atomic: bool = True
    ltag: int = 0  # lkey[7:0]
    rtag: int = 0  # rkey[7:0]
    valid: bool = True

    def lkey(self, index: int) -> int:
        """lkey of this region as MR number `index` (nic.md 2)."""
        return index << 8 | self.ltag

    def rkey(self, index: int) -> int:
        """rkey of this region as MR number `index` (nic.md 2)."""
        return index << 8 | self.rtag

    def stage_words(self) -> list[int]:
        """The 16 staging words. Raises ValueError for a value that does not fit its field."""
        return _stage(
            {
                0: ((self.base, 0, 64),),
                1: ((self.length & _MASK64, 0, 64),),
                2: (
                    (self.length >> 64, 0, 1), (self.loc_write, 1, 1), (self.rem_write, 2, 1),
                    (self.rem_read, 3, 1), (self.rem_atomic, 4, 1), (self.ltag, 8, 8), (self.rtag, 16, 8),
                    (self.valid, 24, 1),
                ),
            }
        )  # fmt: skip

    @classmethod
    def from_words(cls, words: Sequence[int]) -> Self:
        """The context that staged words describe; reserved bits are dropped."""
        return cls(
            base=words[0],
            length=_bits(words[2], 0, 1) << 64 | words[1],
            loc_write=bool(_bits(words[2], 1, 1)),
            rem_write=bool(_bits(words[2], 2, 1)),
            rem_read=bool(_bits(words[2], 3, 1)),
            rem_atomic=bool(_bits(words[2], 4, 1)),
            ltag=_bits(words[2], 8, 8),
            rtag=_bits(words[2], 16, 8),
            valid=bool(_bits(words[2], 24, 1)),
        )


def command(op: CmdOp, obj: CmdObj, index: int) -> int:
    """Value of CMD; index is a QPN, CQN or MR index."""
    if not 0 <= index < 1 << 24:
        raise ValueError(f"index {index} does not fit 24 bits")
    return index << 8 | obj << 4 | op


def command_writes(op: CmdOp, obj: CmdObj, index: int, words: Sequence[int] = ()) -> list[tuple[int, int]]:
    """The (BAR address, data) writes that stage `words` and start the command, in order."""
    writes = [(CMD_STAGE + 8 * i, word) for i, word in enumerate(words)]
    return [*writes, (CMD_REG, command(op, obj, index))]


@dataclass
class ContextStore:
    """Contexts of one NIC and the judgement of commands. A reset is done at once: draining is time."""

    params: Params = DEFAULT_PARAMS
    qps: dict[int, QpContext] = field(default_factory=dict)  # by QPN; also after a reset
    states: dict[int, QpState] = field(default_factory=dict)  # by QPN; absent = RESET
    cqs: dict[int, CqContext] = field(default_factory=dict)  # by CQN, programmed ones
    mrs: dict[int, MrContext] = field(default_factory=dict)  # by MR index, valid ones

    def state(self, qpn: int) -> QpState:
        """State of a QP."""
        return self.states.get(qpn, QpState.RESET)

    def cq_users(self, cqn: int) -> list[int]:
        """QPNs in RTS or ERR that complete to the CQ."""
        return [
            qpn
            for qpn, qp in self.qps.items()
            if self.state(qpn) is not QpState.RESET and cqn in (qp.send_cq, qp.recv_cq)
        ]

    def execute(self, cmd: int, words: Sequence[int]) -> CmdStatus:
        """Judge a write of CMD with the staging words as they are, carry it out if it is good; its code.

        query changes nothing here: see `query_words` for what it fills in.
        """
        status = self.judge(cmd, words)
        if status is not CmdStatus.OK:
            return status
        op, obj, index = CmdOp(cmd & 15), CmdObj(cmd >> 4 & 15), cmd >> 8
        match op, obj:
            case CmdOp.SET, CmdObj.QP:
                self.qps[index] = QpContext.from_words(words)
                self.states[index] = QpState.RTS
            case CmdOp.MODIFY, CmdObj.QP:
                self.qps[index] = self.qps[index].modified(QpContext.from_words(words))
                self.states[index] = QpState(words[8] & 3)
            case CmdOp.RESET, CmdObj.QP:
                self.states[index] = QpState.RESET
            case CmdOp.SET, CmdObj.CQ:
                self.cqs[index] = CqContext.from_words(words)
            case CmdOp.SET, CmdObj.MR:
                mr = MrContext.from_words(words)
                if mr.valid:
                    self.mrs[index] = mr
                else:
                    self.mrs.pop(index, None)
            case _:
                pass
        return status

    def judge(self, cmd: int, words: Sequence[int]) -> CmdStatus:
        """The code that a write of CMD gives; nothing changes."""
        op, obj, index = cmd & 15, cmd >> 4 & 15, cmd >> 8 & 0xFF_FFFF
        bad = {CmdStatus.RESERVED} if cmd >> 32 else set()
        if op not in list(CmdOp):
            bad.add(CmdStatus.BAD_OP)
        # only a QP has states: nothing else is modified or reset
        if obj not in list(CmdObj) or (op in (CmdOp.MODIFY, CmdOp.RESET) and obj != CmdObj.QP):
            bad.add(CmdStatus.BAD_OBJECT)
        first = self.params.first_qpn if obj == CmdObj.QP else 0
        count = {int(CmdObj.QP): self.params.num_qp, int(CmdObj.CQ): self.params.num_cq}.get(
            obj, self.params.num_mr
        )
        if not first <= index < first + count:
            bad.add(CmdStatus.BAD_INDEX)
        if not bad & {CmdStatus.BAD_OP, CmdStatus.BAD_OBJECT, CmdStatus.BAD_INDEX}:
            match op, obj:
                case CmdOp.SET, CmdObj.QP:
                    bad |= self._bad_qp(index, words)
                case CmdOp.MODIFY, CmdObj.QP:
                    bad |= self._bad_modify(index, words)
                case CmdOp.SET, CmdObj.CQ:
                    bad |= self._bad_cq(index, words)
                case CmdOp.SET, CmdObj.MR:
                    bad |= _bad_mr(words)
        return min(bad, default=CmdStatus.OK)

    def query_words(self, obj: CmdObj, index: int, producer: int = 0, retired: int = 0) -> list[int]:
        """What query leaves in the staging words; producer and retired are indices of the SQ (QP only)."""
        match obj:
            case CmdObj.QP:
                qp = self.qps.get(index)
                words = qp.stage_words() if qp else [0] * STAGE_WORDS
                words[8] = self.state(index)
                words[10] = retired << 32 | producer
                return words
            case CmdObj.CQ:
                cq = self.cqs.get(index)
                return cq.stage_words() if cq else [0] * STAGE_WORDS
            case CmdObj.MR:
                mr = self.mrs.get(index)
                return mr.stage_words() if mr else [0] * STAGE_WORDS

    def _bad_qp(self, qpn: int, words: Sequence[int]) -> set[CmdStatus]:
        """Codes that apply to set QP. Word 8 (state of query and modify) means nothing to it."""
        qp = QpContext.from_words(words)
        bad = set()
        if self.state(qpn) is not QpState.RESET:
            bad.add(CmdStatus.BAD_STATE)
        # wqe_id holds 13 (V1) or 17 (V2) bits of an index; half of the 17-bit RQ index bounds the RQ of V2
        sq_most, rq_most = (1 << 13, 1 << 13) if qp.version == 1 else (1 << 17, 1 << 16)
        if not _depth_ok(qp.sq_depth, sq_most) or (qp.rq_depth and not _depth_ok(qp.rq_depth, rq_most)):
            bad.add(CmdStatus.BAD_DEPTH)
        if qp.sq_base % 128 or (qp.rq_depth and qp.rq_base % 16):
            bad.add(CmdStatus.BAD_BASE)
        if not 1 <= qp.mtu_code <= 5:
            bad.add(CmdStatus.BAD_MTU)
        send, recv = self.cqs.get(qp.send_cq), self.cqs.get(qp.recv_cq)
        if send is None or recv is None:
            bad.add(CmdStatus.BAD_CQ)
        if send is not None and send.depth < qp.sq_depth:
            bad.add(CmdStatus.CQ_TOO_SMALL)
        most = self.params.max_rd_atomic, self.params.max_dest_rd_atomic
        if qp.max_rd_atomic > most[0] or qp.max_dest_rd_atomic > most[1]:
            bad.add(CmdStatus.BAD_RD_ATOMIC)
        for cqn, cq in ((qp.send_cq, send), (qp.recv_cq, recv)):
            # a CQ without room check serves one QP
            if cq is not None and cq.ignore_overrun and set(self.cq_users(cqn)) - {qpn}:
                bad.add(CmdStatus.CQ_IN_USE)
        if _reserved(words, _QP_RESERVED):
            bad.add(CmdStatus.RESERVED)
        return bad

    def _bad_modify(self, qpn: int, words: Sequence[int]) -> set[CmdStatus]:
        state, target = self.state(qpn), words[8] & 3
        legal = {QpState.RTS: (QpState.RTS, QpState.ERR), QpState.ERR: (QpState.ERR,), QpState.RESET: ()}
        bad = set()
        if target not in legal[state]:
            bad.add(CmdStatus.BAD_STATE)
        if words[0] & _QP_RESERVED[0] or words[8] >> 2:
            bad.add(CmdStatus.RESERVED)
        return bad

    def _bad_cq(self, cqn: int, words: Sequence[int]) -> set[CmdStatus]:
        cq = CqContext.from_words(words)
        bad = set()
        if not _depth_ok(cq.depth, 1 << 22):
            bad.add(CmdStatus.BAD_DEPTH)
        if cq.stride not in (32, 64):
            bad.add(CmdStatus.BAD_STRIDE)
        elif cq.base % cq.stride:
            bad.add(CmdStatus.BAD_BASE)
        if self.cq_users(cqn):
            bad.add(CmdStatus.CQ_IN_USE)
        if _reserved(words, _CQ_RESERVED):
            bad.add(CmdStatus.RESERVED)
        return bad


#: reserved bits per word
_QP_RESERVED: Final = {
    0: 0xF800_0000_0000_FC00, 1: 0xFF00_0000, 2: 0xFFFF_0000_0000_0000, 3: 0xFF00_0000_FF00_0000,
    7: 0xFFFF_0000_0000_0000, 9: 0xFF00_0000_FF00_0000,
}  # fmt: skip
_CQ_RESERVED: Final = {1: 0xFFFF_FE00_FF00_0000, 2: 0xFFFF_FFFF_0000_0000}
_MR_RESERVED: Final = {2: 0xFFFF_FFFF_FE00_00E0}


def _bad_mr(words: Sequence[int]) -> set[CmdStatus]:
    """Codes that apply to set MR; an MR that is being invalidated may hold anything."""
    mr = MrContext.from_words(words)
    bad: set[CmdStatus] = set()
    if not mr.valid:
        return bad
    if mr.base + mr.length > 1 << 64:
        bad.add(CmdStatus.BAD_RANGE)
    if (mr.rem_write or mr.rem_atomic) and not mr.loc_write:
        bad.add(CmdStatus.BAD_RIGHTS)
    if _reserved(words, _MR_RESERVED):
        bad.add(CmdStatus.RESERVED)
    return bad


def _reserved(words: Sequence[int], masks: dict[int, int]) -> bool:
    return any(words[i] & mask for i, mask in masks.items())


def _depth_ok(depth: int, most: int) -> bool:
    """Power of two, 2..most (nic.md 2)."""
    return 2 <= depth <= most and depth & (depth - 1) == 0


def _bits(word: int, low: int, width: int) -> int:
    return word >> low & ((1 << width) - 1)


def _stage(layout: dict[int, tuple[tuple[int, int, int], ...]]) -> list[int]:
    """16 words from {word: ((value, low bit, width), ...)}; words that are not named are 0."""
    words = [0] * STAGE_WORDS
    for index, parts in layout.items():
        for value, low, width in parts:
            if not 0 <= value < 1 << width:
                raise ValueError(f"{value:#x} does not fit bits [{low + width - 1}:{low}] of word {index}")
            words[index] |= int(value) << low
    return words
