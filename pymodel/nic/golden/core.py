"""State of a golden NIC and what all its parts do to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pymodel.formats import wqe
from pymodel.formats.arrays import Rec
from pymodel.formats.packet import Bth, Syndrome
from pymodel.nic import rules
from pymodel.nic.context import ContextStore, CqContext, QpContext, QpState
from pymodel.nic.params import AsyncKind, Cnt, Params

if TYPE_CHECKING:
    from pymodel.model import PeMemory

PSN_MASK: Final = 0xFF_FFFF
U32: Final = 0xFFFF_FFFF
NAKS: Final = (Syndrome.NAK_SEQ, Syndrome.NAK_INV_REQ, Syndrome.NAK_ACCESS, Syndrome.NAK_REM_OP)
_PSN_HALF: Final = 1 << 23

Operands = tuple[int, int, int, int]
"""swap or add, compare or field boundary, swap mask, compare mask."""


def psn_ahead(a: int, b: int) -> bool:
    """True if PSN a is behind b in time, i.e. later (`rules.psn_diff` of two numbers)."""
    return 0 < (a - b) & PSN_MASK < _PSN_HALF


@dataclass(slots=True)
class Packet:
    """One packet between golden NICs. ``index`` is the WQE's, for observers only; nothing decides by it."""

    dst_mac: int
    dst_ip: int
    src_ip: int
    qpn: int
    bth: int
    psn: int
    ack_req: bool = False
    va: int = 0
    rkey: int = 0
    dma_len: int = 0
    operands: Operands = (0, 0, 0, 0)
    payload: bytes = b""
    syndrome: int = 0
    msn: int = 0
    orig: int = 0
    """Old value of an ATOMIC Acknowledge."""
    index: int = 0
    imm: int = 0
    se: bool = False


@dataclass(slots=True)
class Buffer:
    """One receive WQE that a message has taken, until its CQE."""

    index: int
    addr: int = 0
    size: int = 0
    lkey: int = 0
    length: int = 0
    """Bytes of the message, so far."""
    op: int = 0
    """msg_opcode of the sender's WQE."""
    with_imm: bool = False
    imm: int = 0
    se: bool = False
    whole: bool = False
    error: int = 0
    """What its CQE says; 0: nothing of its own."""


@dataclass(slots=True)
class Work:
    """One WQE between fetch and completion."""

    index: int
    wqe: Rec
    """WQE_FIELDS, shape (1,); all zero where the fetch failed."""
    error: int = 0
    done: bool = False
    first_psn: int = 0
    psns: int = 0
    packets: tuple[tuple[int, int, int, bool], ...] = ()
    """(offset, bytes, BTH opcode, AckReq) of each request packet."""
    sent: int = 0
    """Request packets sent, of those that are to be sent (again)."""
    top: int = 0
    """The most that were ever sent."""
    needs_response: bool = False
    """A READ or atomic that has started."""
    answered: int = 0
    """Its data responses whose bytes are in memory."""
    resumed: int = 0
    """Responses that a READ had when it was last asked for."""

    @property
    def silent(self) -> bool:
        """Completes without a CQE."""
        return not self.error and not int(self.wqe["ce"][0])

    @property
    def expected(self) -> int:
        """PSN of the next data response."""
        return (self.first_psn + self.answered) & PSN_MASK

    @property
    def outstanding(self) -> int:
        """PSNs that are on their way: all of a request that is sent, of a part what is."""
        return self.psns if self.top == len(self.packets) else self.top


@dataclass(slots=True)
class Entry:
    """One READ or atomic in a responder's table, from acceptance until its last response has left."""

    bth: int
    psn: int
    psns: int
    va: int
    rkey: int
    length: int
    """Bytes of the READ, or 8 or 4."""
    msn: int
    """The number that all its responses carry."""
    operands: Operands
    index: int
    answered: int = 0
    orig: int | None = None
    """Old value of an atomic that is executed and not yet answered."""
    duplicate: bool = False
    """Executed before: it moves nothing on."""


@dataclass(slots=True)
class Qp:
    """One QP: send queue, requester, responder."""

    qpn: int
    context: QpContext
    width: int
    producer: int
    fetched: int
    retired: int
    next_psn: int
    unacked_psn: int
    epsn: int
    state: QpState = QpState.RTS
    msn: int = 0
    # requester
    stopped: bool = False
    inflight: deque[Work] = field(default_factory=deque)
    waiting: Work | None = None
    """Fetched, but not to be started yet."""
    sending: Work | None = None
    reads: deque[Work] = field(default_factory=deque)
    """READs and atomics whose results are not all in memory, in order."""
    # loss recovery of the requester
    sent_psn: int = -1
    """The PSN after the last one that was ever sent."""
    again: deque[Work] = field(default_factory=deque)
    """What is to be sent again behind `sending`."""
    resuming: bool = False
    since: int = 0
    """Cycle in which the transport timer started."""
    hold: int | None = None
    """Cycle until which an RNR NAK holds the QP back."""
    retries: int = 0
    rnr_tries: int = 0
    told_ahead: bool = False
    """Data ahead of what is due has told of a loss, and nothing was taken since."""
    told_passed: bool = False
    """An answer that passes a READ or atomic has told of a loss, and nothing was acknowledged since."""
    # responder: the last request packet executed and the message that it belongs to
    previous: int = -1
    va: int = 0
    rkey: int = 0
    dma_len: int = 0
    received: int = 0
    nak_sent: bool = False
    table: deque[Entry] = field(default_factory=deque)
    mixed: bool = False
    """The table has, or had since it was empty, duplicates."""
    saved: deque[Entry] = field(default_factory=deque)
    """The newest atomics, in the order of arrival: their results answer duplicates."""
    pending_nak: Packet | None = None
    pending_ack: Packet | None = None
    # receive queue: free-running indices, messages without CQE
    rq_producer: int = 0
    rq_taken: int = 0
    rq_done: int = 0
    buffers: deque[Buffer] = field(default_factory=deque)
    # completion
    waits_since: int | None = None
    rq_waits_since: int | None = None

    @property
    def mask(self) -> int:
        """Of an SQ index."""
        return (1 << self.width) - 1

    @property
    def outstanding(self) -> int:
        """WQEs that are announced and not retired."""
        return (self.producer - self.retired) & self.mask

    def slot(self, index: int) -> int:
        """Address of a WQE."""
        return self.context.sq_base + wqe.WQE_BYTES * int(rules.wqe_slot(index, self.context.sq_depth))


@dataclass(slots=True)
class Cq:
    """One CQ."""

    cqn: int
    context: CqContext
    producer: int
    consumer: int
    overrun: bool = False
    armed: int = 0


class Core:
    """What the parts of a golden NIC share; see `GoldenNic` for the arguments."""

    def __init__(
        self,
        memory: PeMemory,
        on_write: Callable[[int, int], None],
        now: Callable[[], int],
        params: Params,
    ) -> None:
        self.memory, self.on_write, self.now, self.params = memory, on_write, now, params
        self.on_executed: Callable[[int, int], None] = lambda qpn, index: None
        self.mac = self.ip = 0
        self.cq_wait = params.cq_wait
        self.contexts = ContextStore(params)
        self.counters = [0] * (max(Cnt) + 1)
        self.async_events: deque[tuple[int, int]] = deque()
        self.async_overflow = False
        self.cq_events = 0
        self._mrs = rules.mr_table({}, params.num_mr)
        self._qps: dict[int, Qp] = {}
        self._cqs: dict[int, Cq] = {}
        self._requests: dict[int, deque[Packet]] = {}
        self._responses: dict[int, deque[Packet]] = {}
        self._active: dict[int, None] = {}

    def count(self, counter: Cnt, n: int = 1) -> None:
        """Add to a 32-bit saturating counter."""
        self.counters[counter] = min(self.counters[counter] + n, U32)

    def _wake(self, qp: Qp) -> None:
        """Something changed: look at the QP's steps again."""
        self._active[qp.qpn] = None

    def _access(self, key: int, remote: bool, right: rules.Right, va: int, length: int) -> rules.MrVerdict:
        return rules.mr_check_one(self.contexts.mrs, key, remote, right, va, length)

    def _packet(self, qp: Qp, bth: Bth | int, psn: int) -> Packet:
        """A packet to the QP's peer."""
        context = qp.context
        return Packet(context.peer_mac, context.peer_ip, self.ip, context.peer_qpn, bth, psn & PSN_MASK)

    def _to_error(self, qp: Qp) -> None:
        """ERR.

        What was acknowledged completes, the rest is flushed in order; nothing more is fetched or sent. READs
        and atomics that the responder has accepted are still answered, like queued responses.
        """
        qp.state = QpState.ERR
        self.contexts.states[qp.qpn] = QpState.ERR
        qp.sending = qp.waiting = qp.hold = None
        qp.again.clear()
        self._wake(qp)

    def _async(self, kind: AsyncKind, number: int) -> None:
        if len(self.async_events) >= self.params.async_fifo:
            self.async_overflow = True
        else:
            self.async_events.append((kind, number))
