"""PSNs, segmentation and headers of requests and responses: wire.md sections 2, 3 and 5."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from pymodel.formats.arrays import I64, U8, Bools, IntLike, Rec
from pymodel.formats.packet import Bth, Syndrome, derive, new
from pymodel.nic.context import QpContext
from pymodel.nic.params import DEFAULT_PARAMS
from pymodel.nic.rules.atomics import BTH_OF
from pymodel.nic.rules.common import PSN_MOD, as_i64


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


# ------------------------------------------------------------------------------- segmentation


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


def read_segment(length: IntLike, mtu: IntLike) -> Segments:
    """Responses of READs of `length` bytes; the PSN of each is its request's plus `number` (wire.md 5)."""
    return segment(length, mtu, "read_response")


# ------------------------------------------------------------------------------- headers

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


def read_headers(wqe: Rec, first_psn: IntLike, flows: Rec) -> Rec:
    """PACKET_FIELDS [n] of the requests of n READ WQEs, complete. Arguments as in `write_headers`."""
    head = new(**_flow_columns(np.broadcast_to(flows, wqe.shape)), opcode=Bth.READ_REQUEST, psn=first_psn,
               ackreq=1, va=wqe["raddr"], rkey=wqe["rkey"], dma_len=wqe["msg_len"])  # fmt: skip
    return derive(head)


def atomic_headers(wqe: Rec, psn: IntLike, flows: Rec) -> Rec:
    """PACKET_FIELDS [n] of the requests of n atomic WQEs, complete. Arguments as in `write_headers`.

    FetchAdd (27) has no boundary: its packet carries 0 as compare, whatever the WQE does (wire.md 2).
    """
    opcode = BTH_OF[wqe["msg_opcode"]]
    head = new(
        **_flow_columns(np.broadcast_to(flows, wqe.shape)),
        opcode=opcode,
        psn=psn,
        ackreq=1,
        va=wqe["raddr"],
        rkey=wqe["rkey"],
        swap_add=wqe["swap_add"],
        compare=np.where(opcode == Bth.FETCH_ADD, np.uint64(0), wqe["compare"]),
        swap_mask=wqe["swap_mask"],
        compare_mask=wqe["compare_mask"],
    )
    return derive(head)


def read_response_headers(first_psn: IntLike, msn: IntLike, flows: Rec, segments: Segments) -> Rec:
    """PACKET_FIELDS [m] of the responses to n READs, complete.

    first_psn: of each READ. msn: the number that each READ got when it was accepted. flows: FLOW [n] or one,
    of the responder's QP. segments: of these n, by `read_segment`. Middle has no AETH (wire.md 3).
    """
    who, n = segments.message, segments.packets.size
    aeth = segments.opcode != Bth.READ_MIDDLE
    head = new(
        **_flow_columns(np.broadcast_to(flows, n)[who]),
        opcode=segments.opcode,
        psn=psn_add(np.broadcast_to(as_i64(first_psn), n)[who], segments.number),
        payload_len=segments.length,
        syndrome=np.where(aeth, Syndrome.ACK, 0),
        msn=np.where(aeth, np.broadcast_to(as_i64(msn) % PSN_MOD, n)[who], 0),
    )
    return derive(head)


def atomic_ack_headers(psn: IntLike, msn: IntLike, orig: IntLike, flows: Rec) -> Rec:
    """PACKET_FIELDS [n] of ATOMIC Acknowledges, complete. orig: old value, zero-extended if 4 bytes."""
    return derive(
        new(**_flow_columns(flows), opcode=Bth.ATOMIC_ACK, psn=psn, syndrome=Syndrome.ACK,
            msn=as_i64(msn) % PSN_MOD, orig=orig)
    )  # fmt: skip
