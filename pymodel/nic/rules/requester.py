"""What a requester makes of a response, a scoreboard of an acknowledgement (wire.md 3, 5, 6)."""

from enum import IntEnum

import numpy as np

from pymodel.formats.arrays import I64, U8, Bools, IntLike, as_u64
from pymodel.formats.cqe import CqeError
from pymodel.formats.packet import Bth, Syndrome
from pymodel.nic.rules.atomics import OPERAND_BYTES
from pymodel.nic.rules.common import PSN_MOD, as_i64
from pymodel.nic.rules.wire import psn_diff


def syndrome_known(syndrome: IntLike) -> Bools:
    """False for AETH syndromes that are dropped and counted (wire.md 3).

    Known are 000 ACK, 001 RNR NAK and 011 NAK with codes 0 to 3; 010 and everything with bit 7 are reserved.
    """
    s = as_i64(syndrome)
    return np.asarray((s < 0x40) | ((s >= Syndrome.NAK_SEQ) & (s <= Syndrome.NAK_REM_OP)))


def response_syndrome_ok(opcode: IntLike, syndrome: IntLike) -> Bools:
    """False for responses that are dropped and counted for their syndrome.

    Only an Acknowledge may carry NAK and RNR; other responses with an AETH are dropped unless it says ACK,
    whatever its credits (wire.md 3).
    """
    op, s = as_i64(opcode), as_i64(syndrome)
    return np.where(op == Bth.ACK, syndrome_known(s), (op == Bth.READ_MIDDLE) | (s < 0x20))


def response_error(
    opcode: IntLike,
    payload: IntLike,
    mtu: IntLike,
    expects_atomic: IntLike,
    remaining: IntLike,
    first: IntLike,
) -> U8:
    """CqeError that a data response (0D to 10, 12) at the expected PSN gives to its WQE, OK for a good one.

    expects_atomic: the oldest WQE that waits is an atomic, otherwise a READ. remaining: bytes of the READ not
    received before this response. first: none of its responses was received. A wrong opcode (aa) goes before
    a wrong length (a8) (wire.md 5).
    """
    op, left, most = as_i64(opcode), as_i64(remaining), as_i64(mtu)
    last, head = left <= most, np.asarray(first, np.bool_)
    fits = np.select(
        [last & head, head, last], [Bth.READ_ONLY, Bth.READ_FIRST, Bth.READ_LAST], Bth.READ_MIDDLE
    )
    atomic = np.asarray(expects_atomic, np.bool_)
    wrong = op != np.where(atomic, Bth.ATOMIC_ACK, fits)
    length = np.where(atomic, 0, np.minimum(left, most))
    return np.select(
        [wrong, as_i64(payload) != length], [CqeError.READ_RSP_OPCODE, CqeError.READ_RSP_LEN], CqeError.OK
    ).astype(np.uint8)


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
    last_offsets: sorted, those of the PSNs at which a request counts: a WRITE's last, a READ's first, an
    atomic's only one.
    """
    return np.searchsorted(as_i64(last_offsets), as_i64(psn_offset), side="right").astype(np.int64)


def ack_verdict(
    psn: IntLike,
    syndrome: IntLike,
    msn: IntLike,
    previous: IntLike,
    executed: IntLike,
    msn_expected: IntLike,
    late_access: IntLike = False,
) -> U8:
    """AckVerdict of acknowledgements (wire.md 3, 6).

    previous: PSN of the QP's response before, -1 for none. executed: the expected PSN of the responder, i.e.
    the first that is not executed. msn_expected: MSN at the acknowledged PSN (for a NAK the current one), see
    `msn_at`. late_access: a READ or atomic is accepted and not answered whole, so a NAK 2 may name one of its
    PSNs.
    """
    s, before = as_i64(syndrome), as_i64(previous)
    behind = (before >= 0) & (psn_diff(psn, np.maximum(before, 0)) < 0)
    ahead = psn_diff(psn, executed) - (s != Syndrome.ACK) >= 0
    # the failing packet of a NAK 3 may have been followed by others before its bus error came back
    nak_psn = np.isin(s, (Syndrome.NAK_SEQ, Syndrome.NAK_INV_REQ))
    nak_psn |= (s == Syndrome.NAK_ACCESS) & ~np.asarray(late_access, np.bool_)
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
