"""Functional golden NIC: what one NIC does, step by step, without cycles, bytes on the wire or AXI.

It keeps contexts, doorbell state, the send queues, the responder and the CQs of NIC page sections 2 to 7
and acts in steps (a packet sent, a packet or acknowledgement delivered, a CQE written) whose order its
owner chooses; packets are objects and are not lost. The rules themselves come from `pymodel.nic.rules`.
Valid opcodes that are not built yet (READ, atomics, SEND) complete with error ab.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from pymodel.formats import cqe as cqe_format
from pymodel.formats import doorbell, wqe
from pymodel.formats.arrays import Rec
from pymodel.formats.cqe import CqeError
from pymodel.formats.packet import Bth, Syndrome
from pymodel.nic import rules
from pymodel.nic.context import CmdObj, CmdOp, CmdStatus, ContextStore, CqContext, QpContext, QpState
from pymodel.nic.params import (
    CMD_REG,
    CMD_STAGE,
    CMD_STATUS,
    CSR_ID_VALUE,
    STAGE_WORDS,
    AsyncKind,
    Cnt,
    Csr,
    Params,
)
from pymodel.platform import UnmappedError

if TYPE_CHECKING:
    from pymodel.model import PeMemory

_PSN_MASK: Final = 0xFF_FFFF
_PSN_HALF: Final = 1 << 23
_U32: Final = 0xFFFF_FFFF
#: what this model executes so far
_EXECUTED: Final = frozenset((wqe.WqeOp.WRITE,))
_NAK_TX: Final = {
    Syndrome.NAK_SEQ: Cnt.NAK_SEQ_TX,
    Syndrome.NAK_INV_REQ: Cnt.NAK_INV_TX,
    Syndrome.NAK_ACCESS: Cnt.NAK_ACC_TX,
    Syndrome.NAK_REM_OP: Cnt.NAK_OP_TX,
}
_NAK_RX: Final = {
    Syndrome.NAK_SEQ: Cnt.NAK_SEQ_RX,
    Syndrome.NAK_INV_REQ: Cnt.NAK_INV_RX,
    Syndrome.NAK_ACCESS: Cnt.NAK_ACC_RX,
    Syndrome.NAK_REM_OP: Cnt.NAK_OP_RX,
}


class StepKind(IntEnum):
    """What a step does; the QP of a step belongs to the NIC that offers it."""

    COMPLETE = 0
    """Retire the oldest WQE of the QP."""
    RESPONSE = 1
    """Deliver the oldest response that the QP sent."""
    REQUEST = 2
    """Deliver the oldest request packet that the QP sent."""
    SEND = 3
    """Fetch and send the next packet of the QP."""


Step = tuple[StepKind, int]
"""(kind, QPN)."""


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
    payload: bytes = b""
    syndrome: int = 0
    msn: int = 0
    index: int = 0


@dataclass(slots=True)
class _Work:
    """One WQE between fetch and completion."""

    index: int
    wqe: Rec
    """WQE_FIELDS, shape (1,); all zero where the fetch failed."""
    error: int = 0
    done: bool = False
    first_psn: int = 0
    packets: tuple[tuple[int, int, int, bool], ...] = ()
    """(offset, bytes, BTH opcode, AckReq) of each packet."""
    sent: int = 0

    @property
    def silent(self) -> bool:
        return not self.error and not int(self.wqe["ce"][0])


@dataclass(slots=True)
class _Qp:
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
    stopped: bool = False
    inflight: deque[_Work] = field(default_factory=deque)
    sending: _Work | None = None
    # responder: the last request packet executed and the message that it belongs to
    previous: int = -1
    va: int = 0
    rkey: int = 0
    dma_len: int = 0
    received: int = 0
    nak_sent: bool = False
    waits_since: int | None = None

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1

    @property
    def outstanding(self) -> int:
        return (self.producer - self.retired) & self.mask


@dataclass(slots=True)
class _Cq:
    cqn: int
    context: CqContext
    producer: int
    consumer: int
    overrun: bool = False
    armed: int = 0


class GoldenNic:
    """One NIC.

    ``memory``: the PE's memory as the NIC's port reaches it. ``on_write(addr, length)``: called after each
    write. ``now()``: time in cycles, for time stamps and waiting. ``route(mac)``: the NIC with that MAC
    address. ``on_executed(qpn, index)``: the last packet of the message ``index`` that the peer of QP
    ``qpn`` sent is executed.
    """

    def __init__(
        self,
        memory: PeMemory,
        on_write: Callable[[int, int], None],
        now: Callable[[], int],
        params: Params,
    ) -> None:
        self.memory, self.on_write, self.now, self.params = memory, on_write, now, params
        self.route: Callable[[int], GoldenNic | None] = lambda mac: None
        self.on_executed: Callable[[int, int], None] = lambda qpn, index: None
        self.mac = self.ip = 0
        self.cq_wait = params.cq_wait
        self.contexts = ContextStore(params)
        self.counters = [0] * (max(Cnt) + 1)
        self.async_events: deque[tuple[int, int]] = deque()
        self.async_overflow = False
        self.cq_events = 0
        self._event_mask = 0
        self._sl_weight = 0x0101_0101_0101_0101
        self._stage = [0] * STAGE_WORDS
        self._status = 0
        self._mrs = rules.mr_table({}, params.num_mr)
        self._qps: dict[int, _Qp] = {}
        self._cqs: dict[int, _Cq] = {}
        self._requests: dict[int, deque[Packet]] = {}
        self._responses: dict[int, deque[Packet]] = {}
        self._active: dict[int, None] = {}

    # ------------------------------------------------------------------ BAR
    def bar_write(self, addr: int, data: int, strobe: int = 0xFF) -> None:
        """One AXI-Lite write: CSR, command window or doorbell (NIC page 1). Unmapped addresses do nothing."""
        params = self.params
        if addr >= params.db_base:
            page, offset = divmod(addr - params.db_base, params.db_page_bytes)
            self._doorbell(page, offset, data, strobe)
        elif addr == CMD_REG:
            self._command(data)
        elif CMD_STAGE <= addr < CMD_STAGE + 8 * STAGE_WORDS:
            self._stage[(addr - CMD_STAGE) // 8] = data
        elif addr == Csr.MAC:
            self.mac = data & 0xFFFF_FFFF_FFFF
        elif addr == Csr.IP:
            self.ip = data & _U32
        elif addr == Csr.CQ_WAIT:
            self.cq_wait = data & _U32
        elif addr == Csr.SL_WEIGHT:
            self._sl_weight = data
        elif addr == Csr.EVENT_MASK:
            self._event_mask = data & 7
        elif addr == Csr.EVENT_CAUSE and data & 4:
            self.async_overflow = False
        elif addr == Csr.CQ_EVENT:
            self.cq_events &= ~data

    def bar_read(self, addr: int) -> int:
        """One AXI-Lite read; doorbell pages and unmapped addresses give 0."""
        counter, odd = divmod(addr - Csr.COUNTERS, 8)
        if not odd and 0 <= counter < len(self.counters):
            return self.counters[counter]
        if CMD_STAGE <= addr < CMD_STAGE + 8 * STAGE_WORDS:
            return self._stage[(addr - CMD_STAGE) // 8]
        params = self.params
        states = [
            sum(1 << qpn - params.first_qpn for qpn, qp in self._qps.items() if qp.state is state)
            for state in (QpState.RTS, QpState.ERR)
        ]
        if addr == Csr.ASYNC_POP:
            if not self.async_events:
                return 0
            kind, number = self.async_events.popleft()
            return 1 << 63 | kind << 32 | number
        return {
            int(Csr.ID): CSR_ID_VALUE,
            int(Csr.CONFIG): params.num_mr << 32 | params.num_cq << 16 | params.num_qp,
            int(Csr.MAC): self.mac,
            int(Csr.IP): self.ip,
            int(Csr.TIME): self.now() & 0xFFFF_FFFF_FFFF,
            int(Csr.EVENT_CAUSE): bool(self.cq_events)
            | bool(self.async_events) << 1
            | self.async_overflow << 2,
            int(Csr.EVENT_MASK): self._event_mask,
            int(Csr.CQ_EVENT): self.cq_events,
            int(Csr.SL_WEIGHT): self._sl_weight,
            int(Csr.CQ_WAIT): self.cq_wait,
            int(Csr.QP_STATE_RTS): states[0],
            int(Csr.QP_STATE_ERR): states[1],
            CMD_STATUS: self._status,
        }.get(addr, 0)

    @property
    def event(self) -> bool:
        """Level of the event output (NIC page 6)."""
        return bool(self.bar_read(Csr.EVENT_CAUSE) & self._event_mask)

    def count(self, counter: Cnt, n: int = 1) -> None:
        """Add to a 32-bit saturating counter."""
        self.counters[counter] = min(self.counters[counter] + n, _U32)

    def state(self, qpn: int) -> QpState:
        """State of a QP."""
        return self.contexts.state(qpn)

    def completed(self, qpn: int, index: int) -> bool:
        """True if the WQE with the free-running index ``index`` has retired; for a recent index."""
        qp = self._qps[qpn]
        return (qp.retired - 1 - index) & qp.mask < 1 << qp.width - 1

    def _command(self, data: int) -> None:
        code = self.contexts.execute(data, self._stage)
        self._status = code << 8
        if code is not CmdStatus.OK:
            return
        op, obj, index = CmdOp(data & 15), CmdObj(data >> 4 & 15), data >> 8
        if op is CmdOp.QUERY:
            qp = self._qps.get(index)
            numbers = (qp.producer, qp.retired) if qp and obj is CmdObj.QP else (0, 0)
            self._stage = self.contexts.query_words(obj, index, *numbers)
        elif obj is CmdObj.MR:
            self._mrs = rules.mr_table(self.contexts.mrs, self.params.num_mr)
        elif obj is CmdObj.CQ:
            context = self.contexts.cqs[index]
            self._cqs[index] = _Cq(index, context, context.start_index & _U32, context.start_index & _U32)
        elif obj is CmdObj.QP and op is CmdOp.SET:
            context_qp = self.contexts.qps[index]
            width = doorbell.SQ_INDEX_BITS[context_qp.version]
            start = context_qp.sq_start_index & (1 << width) - 1
            self._qps[index] = _Qp(
                index, context_qp, width, start, start, start, context_qp.sq_psn, context_qp.sq_psn,
                context_qp.rq_psn,
            )  # fmt: skip
            self._requests.setdefault(index, deque())
            self._responses.setdefault(index, deque())
        elif obj is CmdObj.QP and op is CmdOp.MODIFY:
            qp = self._qps[index]
            qp.context = self.contexts.qps[index]
            if self.contexts.state(index) is QpState.ERR and qp.state is QpState.RTS:
                self._to_error(qp)
        elif obj is CmdObj.QP and op is CmdOp.RESET:
            self._qps.pop(index, None)

    # ------------------------------------------------------------------ doorbells (NIC page 3)
    def _doorbell(self, qpn: int, offset: int, data: int, strobe: int) -> None:
        params = self.params
        if offset not in (params.db_sq, params.db_rq, params.db_cq) and strobe == 0xFF:
            return
        known = params.first_qpn <= qpn < params.first_qpn + params.num_qp
        qp = self._qps.get(qpn)
        bits = 0 if qp is None else doorbell.SQ_PID_BITS[qp.context.version]
        qp_id = qpn & 0xFFFF
        if offset == params.db_sq:
            qp_id = data >> bits & 0xFFFF
        elif offset == params.db_rq:
            qp_id = int(doorbell.rq_decode(data).qp_id)
        gate = rules.DbVerdict(int(rules.doorbell_gate(qpn, qp_id, qp is None, strobe, known)))
        if gate is not rules.DbVerdict.NO_WORK or qp is None:
            self.count(rules.DB_COUNTER[gate])
        elif offset == params.db_sq:
            self._sq_doorbell(qp, data & (1 << bits) - 1)
        elif offset == params.db_cq:
            self._cq_doorbell(qp, data)
        else:
            self.count(Cnt.DB_RQ)

    def _sq_doorbell(self, qp: _Qp, pid: int) -> None:
        context = qp.context
        verdict = rules.DbVerdict(
            int(
                rules.sq_doorbell(
                    pid,
                    qp.producer,
                    qp.outstanding,
                    context.sq_depth,
                    context.version,
                    self.params.stale_ignored,
                )
            )
        )
        if verdict in rules.DB_COUNTER:
            self.count(rules.DB_COUNTER[verdict])
        if verdict is rules.DbVerdict.ACCEPTED:
            qp.producer = pid >> 3
            self._active[qp.qpn] = None
        elif verdict is rules.DbVerdict.OVERRUN:
            self._async(AsyncKind.SQ_OVERRUN, qp.qpn)
            if qp.state is QpState.RTS:
                self._to_error(qp)

    def _cq_doorbell(self, qp: _Qp, data: int) -> None:
        bell = doorbell.cq_decode(data)
        cid, cqn, sta = int(bell.next_cid), int(bell.cq_id), int(bell.cq_sta)
        if cqn not in (qp.context.send_cq, qp.context.recv_cq):
            self.count(Cnt.DB_PAGE)
            return
        cq = self._cqs[cqn]
        verdict = rules.CqDbVerdict(int(rules.cq_doorbell(cid, cq.consumer, cq.producer)))
        if verdict is rules.CqDbVerdict.BEYOND:
            self.count(Cnt.DB_CQ_BEYOND)
            return
        if verdict is rules.CqDbVerdict.BACKWARD:
            self.count(Cnt.DB_CQ_BACKWARD)
            return
        cq.consumer = (cq.consumer + (cid - cq.consumer & 0x7F_FFFF)) & _U32
        if rules.cq_arms(sta):
            cq.armed = sta
        for other in self._qps.values():
            if other.context.send_cq == cqn and other.outstanding:
                self._active[other.qpn] = None

    # ------------------------------------------------------------------ steps
    def steps(self) -> Iterator[Step]:
        """Everything that can happen next, in no order that means anything."""
        for qpn in list(self._active):
            offered = False
            qp = self._qps.get(qpn)
            if qp is not None and self._can_complete(qp):
                offered = True
                yield StepKind.COMPLETE, qpn
            if self._responses[qpn]:
                offered = True
                yield StepKind.RESPONSE, qpn
            if self._requests[qpn]:
                offered = True
                yield StepKind.REQUEST, qpn
            if qp is not None and self._can_send(qp):
                offered = True
                yield StepKind.SEND, qpn
            if not offered and (qp is None or qp.waits_since is None):
                self._active.pop(qpn, None)

    def run(self, step: Step) -> int:
        """Do one step that `steps` has just offered; gives the cycles that it takes."""
        kind, qpn = step
        if kind is StepKind.COMPLETE:
            self._complete(self._qps[qpn])
            return 2
        if kind is StepKind.SEND:
            return self._send(self._qps[qpn])
        queue = self._responses[qpn] if kind is StepKind.RESPONSE else self._requests[qpn]
        packet = queue.popleft()
        peer = self.route(packet.dst_mac)
        if peer is not None:
            peer.receive(packet)
        return 2 + len(packet.payload) // self.params.data_bytes

    def next_timer(self) -> int | None:
        """Cycle at which a completion gives up waiting for CQ room, None if none does (NIC page 6)."""
        if not self.cq_wait:
            return None
        waits = [qp.waits_since + self.cq_wait for qp in self._qps.values() if qp.waits_since is not None]
        return min(waits, default=None)

    # ------------------------------------------------------------------ requester (NIC page 4, 5)
    def _can_send(self, qp: _Qp) -> bool:
        if qp.state is not QpState.RTS or qp.stopped:
            return False
        return qp.sending is not None or (
            qp.fetched != qp.producer and len(qp.inflight) < self.params.max_inflight
        )

    def _send(self, qp: _Qp) -> int:
        if qp.sending is None:
            self._start(qp)
        work = qp.sending
        if work is None:
            return 2
        f, context = work.wqe[0], qp.context
        at, length, bth, ack_req = work.packets[work.sent]
        try:
            payload = self.memory.nic_read(int(f["laddr"]) + at, length) if length else b""
        except UnmappedError:
            self.count(Cnt.BUS_GATHER)
            self._fail(qp, work, CqeError.DATA_DMA_RD_REQ)
            return 2
        packet = Packet(
            dst_mac=context.peer_mac,
            dst_ip=context.peer_ip,
            src_ip=self.ip,
            qpn=context.peer_qpn,
            bth=bth,
            psn=(work.first_psn + work.sent) & _PSN_MASK,
            ack_req=ack_req,
            payload=payload,
            index=work.index,
        )
        if work.sent == 0:
            packet.va, packet.rkey, packet.dma_len = int(f["raddr"]), int(f["rkey"]), int(f["msg_len"])
        self._requests[qp.qpn].append(packet)
        self.count(Cnt.TX_REQUEST)
        work.sent += 1
        if work.sent == len(work.packets):
            qp.sending = None
        return 2 + length // self.params.data_bytes

    def _start(self, qp: _Qp) -> None:
        """Fetch, check and start the next WQE; a WQE that fails stops the QP's issue."""
        context, index = qp.context, qp.fetched
        qp.fetched = (index + 1) & qp.mask
        work = _Work(index, np.zeros(1, wqe.WQE_FIELDS))
        qp.inflight.append(work)
        try:
            raw = self.memory.nic_read(self._slot(qp, index), wqe.WQE_BYTES)
        except UnmappedError:
            self.count(Cnt.BUS_FETCH)
            self._fail(qp, work, CqeError.SND_WQE_DMA)
            return
        work.wqe = wqe.unpack(np.frombuffer(raw, np.uint8), context.version)
        error = int(
            rules.wqe_check(
                work.wqe, index, context.version, mrs=self._mrs, supported=_EXECUTED, params=self.params
            )[0]
        )
        if error != CqeError.OK:
            self._fail(qp, work, error)
            return
        work.packets = _packets(int(work.wqe["msg_len"][0]), context.mtu, self.params.ack_interval)
        work.first_psn = qp.next_psn
        qp.next_psn = (qp.next_psn + len(work.packets)) & _PSN_MASK
        qp.sending = work

    @staticmethod
    def _slot(qp: _Qp, index: int) -> int:
        return qp.context.sq_base + wqe.WQE_BYTES * int(rules.wqe_slot(index, qp.context.sq_depth))

    def _fail(self, qp: _Qp, work: _Work, error: int) -> None:
        work.error = error
        qp.stopped = True
        qp.sending = None
        self._active[qp.qpn] = None

    # ------------------------------------------------------------------ receive (wire page 1, 5)
    def receive(self, packet: Packet) -> None:
        """Deliver one packet that the link carried to this NIC."""
        if packet.dst_ip != self.ip:
            self.count(Cnt.DROP_IP_DST)
            return
        qp = self._qps.get(packet.qpn)
        if qp is None or qp.state is not QpState.RTS:
            self.count(Cnt.DROP_QP)
            return
        if packet.src_ip != qp.context.peer_ip:
            self.count(Cnt.DROP_IP_SRC)
            return
        self.count(Cnt.RX_PACKET)
        if packet.bth == Bth.ACK:
            self._acknowledged(qp, packet)
        else:
            self._respond(qp, packet)

    def _acknowledged(self, qp: _Qp, packet: Packet) -> None:
        end = qp.next_psn
        if qp.sending is not None:
            end = (qp.sending.first_psn + qp.sending.sent) & _PSN_MASK
        syndrome = Syndrome(packet.syndrome)
        if rules.ack_class(packet.psn, qp.unacked_psn, end) != rules.PsnClass.EXPECTED:
            self.count(Cnt.DROP_RESPONSE)
            return
        # a NAK acknowledges what stands before its PSN
        good = packet.psn if syndrome in _NAK_RX else (packet.psn + 1) & _PSN_MASK
        qp.unacked_psn = good
        for work in qp.inflight:
            if not work.done and not work.error and work.packets and work.sent == len(work.packets):
                work.done = (good - work.first_psn - len(work.packets)) & _PSN_MASK < _PSN_HALF
        if syndrome in _NAK_RX:
            self.count(_NAK_RX[syndrome])
            for work in qp.inflight:
                inside = (packet.psn - work.first_psn) & _PSN_MASK < max(work.sent, 1)
                # NAK 0 asks for a retransmission, which does not exist without loss
                if syndrome is not Syndrome.NAK_SEQ and work.packets and not work.done and inside:
                    f = work.wqe[0]
                    self._fail(qp, work, int(rules.nak_error(syndrome, f["msg_opcode"], f["raddr"])))
                    break
        self._active[qp.qpn] = None

    def _respond(self, qp: _Qp, packet: Packet) -> None:
        place = rules.psn_class(packet.psn, qp.epsn)
        if place == rules.PsnClass.BEHIND:
            self.count(Cnt.DUPLICATE)
            self._answer(qp, (qp.epsn - 1) & _PSN_MASK, Syndrome.ACK)
            return
        if place == rules.PsnClass.AHEAD:
            self.count(Cnt.PSN_AHEAD)
            if not qp.nak_sent:
                qp.nak_sent = True
                self._nak(qp, qp.epsn, Syndrome.NAK_SEQ)
            return
        qp.nak_sent = False
        first = packet.bth in (Bth.WRITE_FIRST, Bth.WRITE_ONLY)
        if first:
            qp.va, qp.rkey, qp.dma_len, qp.received = packet.va, packet.rkey, packet.dma_len, 0
        length, context = len(packet.payload), qp.context
        access = rules.MrVerdict(
            int(
                rules.mr_check(
                    self._mrs, qp.rkey, True, rules.Right.REM_WRITE, qp.va, qp.dma_len if first else length
                )
            )
        )
        if not first and access is not rules.MrVerdict.KEY:
            # judged for the whole message at its start; only the key may be gone since
            access = rules.MrVerdict.OK
        rights = context.rem_write, context.rem_read, context.rem_atomic
        verdict = _request_verdict(
            packet.bth, qp.previous, length, context.mtu, qp.dma_len - qp.received, rights, access
        )
        if verdict is Syndrome.ACK and length:
            try:
                self.memory.nic_write(qp.va + qp.received, packet.payload)
            except UnmappedError:
                self.count(Cnt.BUS_INBOUND)
                verdict = Syndrome.NAK_REM_OP
        if verdict is not Syndrome.ACK:
            self._nak(qp, packet.psn, verdict)
            return
        at, qp.received, qp.previous = qp.va + qp.received, qp.received + length, packet.bth
        qp.epsn = (qp.epsn + 1) & _PSN_MASK
        if packet.bth in (Bth.WRITE_LAST, Bth.WRITE_ONLY):
            qp.msn = (qp.msn + 1) & _PSN_MASK
            self.on_executed(qp.qpn, packet.index)
        if length:
            self.on_write(at, length)
        if packet.ack_req:
            self._answer(qp, packet.psn, Syndrome.ACK)

    def _nak(self, qp: _Qp, psn: int, syndrome: Syndrome) -> None:
        self.count(_NAK_TX[syndrome])
        self._answer(qp, psn, syndrome)
        if syndrome is not Syndrome.NAK_SEQ:
            self._async(AsyncKind.QP_ERR, qp.qpn)
            self._to_error(qp)

    def _answer(self, qp: _Qp, psn: int, syndrome: Syndrome) -> None:
        context = qp.context
        self._responses[qp.qpn].append(
            Packet(
                dst_mac=context.peer_mac,
                dst_ip=context.peer_ip,
                src_ip=self.ip,
                qpn=context.peer_qpn,
                bth=Bth.ACK,
                psn=psn,
                syndrome=syndrome,
                msn=qp.msn,
            )
        )
        self.count(Cnt.TX_RESPONSE)
        self._active[qp.qpn] = None

    # ------------------------------------------------------------------ completion (NIC page 6)
    def _can_complete(self, qp: _Qp) -> bool:
        if not qp.outstanding:
            return False
        oldest = qp.inflight[0] if qp.inflight else None
        if qp.state is QpState.RTS:
            if oldest is None or not (oldest.done or oldest.error):
                return False
            if oldest.silent:
                return True
        cq = self._cqs[qp.context.send_cq]
        if self._takes(cq):
            qp.waits_since = None
            return True
        if qp.waits_since is None:
            qp.waits_since = self.now()
        return bool(self.cq_wait) and self.now() >= qp.waits_since + self.cq_wait

    def _complete(self, qp: _Qp) -> None:
        work = qp.inflight.popleft() if qp.inflight else None
        index = qp.retired
        cq = self._cqs[qp.context.send_cq]
        error = work.error if work is not None else 0
        if qp.state is QpState.ERR and (work is None or not work.done):
            error = CqeError.FLUSH
            self.count(Cnt.FLUSH)
        if error or work is None or not work.silent:
            if not self._takes(cq):
                self._overrun(cq)
            if cq.overrun:
                self.count(Cnt.CQE_DISCARD)
            else:
                self._write_cqe(qp, cq, work, index, error)
        qp.retired = (index + 1) & qp.mask
        qp.waits_since = None
        self.count(Cnt.WQE)
        if qp.state is QpState.RTS and error:
            self._to_error(qp)
        self._active[qp.qpn] = None

    @staticmethod
    def _takes(cq: _Cq) -> bool:
        """A completion need not wait: there is room, or the CQ looks for none, or takes none any more."""
        context = cq.context
        return (
            cq.overrun
            or context.ignore_overrun
            or bool(rules.cq_has_room(cq.producer, cq.consumer, context.depth))
        )

    def _write_cqe(self, qp: _Qp, cq: _Cq, work: _Work | None, index: int, error: int) -> None:
        context, version = cq.context, qp.context.version
        f = np.zeros(1, wqe.WQE_FIELDS) if work is None else work.wqe
        fields = rules.requester_cqe(
            f, index, qp.qpn, error, cq.producer, context.depth, version, context.ignore_overrun
        )
        fields["ts"] = self.now() & 0xFFFF_FFFF_FFFF
        payload = cqe_format.pack(fields, version)
        slot = 0 if context.ignore_overrun else int(rules.cqe_slot(cq.producer, context.depth))
        data = cqe_format.to_slots(payload, context.stride).tobytes()
        addr = context.base + slot * context.stride
        cq.producer = (cq.producer + 1) & _U32
        try:
            self.memory.nic_write(addr, data)
        except UnmappedError:
            self.count(Cnt.BUS_CQE)
            self._async(AsyncKind.CQE_BUS_ERR, cq.cqn)
            self._overrun(cq, announce=False)
            return
        self.count(Cnt.CQE)
        # solicited events of requester CQEs: any error CQE
        if cq.armed == doorbell.CqSta.ARM_NEXT or (cq.armed and error):
            cq.armed = 0
            self.cq_events |= 1 << cq.cqn
        self.on_write(addr, len(data))

    def _overrun(self, cq: _Cq, announce: bool = True) -> None:
        cq.overrun = True
        if announce:
            self.count(Cnt.CQ_OVERRUN)
            self._async(AsyncKind.CQ_OVERRUN, cq.cqn)
        for qp in self._qps.values():
            if qp.state is QpState.RTS and cq.cqn in (qp.context.send_cq, qp.context.recv_cq):
                self._to_error(qp)

    def _to_error(self, qp: _Qp) -> None:
        """ERR.

        What was acknowledged completes, the rest is flushed in order; nothing more is fetched or sent.
        """
        qp.state = QpState.ERR
        self.contexts.states[qp.qpn] = QpState.ERR
        qp.sending = None
        self._active[qp.qpn] = None

    def _async(self, kind: AsyncKind, number: int) -> None:
        if len(self.async_events) >= self.params.async_fifo:
            self.async_overflow = True
        else:
            self.async_events.append((kind, number))

    # ------------------------------------------------------------------ what the lazy schedule asks
    def requester_of(
        self, step: Step, route: Callable[[int], GoldenNic | None]
    ) -> tuple[GoldenNic, int] | None:
        """The NIC and QPN whose WQEs a step moves forward."""
        kind, qpn = step
        if kind is not StepKind.RESPONSE:
            return self, qpn
        packet = self._responses[qpn][0]
        peer = route(packet.dst_mac)
        return None if peer is None or packet.qpn not in peer._qps else (peer, packet.qpn)

    def cq_spans(self, qpn: int) -> list[tuple[int, int]]:
        """(address, bytes) of the ring that the QP's WQEs complete to."""
        qp = self._qps.get(qpn)
        if qp is None:
            return []
        context = self._cqs[qp.context.send_cq].context
        return [(context.base, context.depth * context.stride)]

    def write_spans(self, qpn: int, limit: int) -> Iterator[tuple[int, int, int]]:
        """(peer's MAC, address, bytes) that the QP's next ``limit`` uncompleted WQEs will write."""
        qp = self._qps.get(qpn)
        if qp is None:
            return
        for step in range(min(qp.outstanding, limit)):
            index = (qp.retired + step) & qp.mask
            try:
                raw = self.memory.nic_read(self._slot(qp, index), 48)
            except UnmappedError:
                return
            yield (
                qp.context.peer_mac,
                int.from_bytes(raw[24:32], "little"),
                int.from_bytes(raw[4:8], "little"),
            )


# The rules work on arrays; asked for one item at a time they cost tens of microseconds, and traffic repeats.
@lru_cache(maxsize=1 << 12)
def _packets(length: int, mtu: int, ack_interval: int) -> tuple[tuple[int, int, int, bool], ...]:
    """(offset, bytes, BTH opcode, AckReq) of each packet of a WRITE."""
    cut = rules.segment(length, mtu, ack_interval=ack_interval)
    columns = cut.offset.tolist(), cut.length.tolist(), cut.opcode.tolist(), cut.ackreq.astype(bool).tolist()
    return tuple(zip(*columns, strict=True))


@lru_cache(maxsize=1 << 14)
def _request_verdict(
    bth: int,
    previous: int,
    length: int,
    mtu: int,
    remaining: int,
    rights: tuple[bool, bool, bool],
    access: rules.MrVerdict,
) -> Syndrome:
    """`rules.request_verdict` of one packet."""
    return Syndrome(int(rules.request_verdict(bth, previous, length, mtu, remaining, *rights, access)))
