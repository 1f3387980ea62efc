"""Host front of a golden NIC: BAR, context commands, doorbells (nic.md 1 to 3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pymodel.formats import doorbell
from pymodel.nic import rules
from pymodel.nic.context import CmdObj, CmdOp, CmdStatus, QpState
from pymodel.nic.golden.core import U32, Core, Cq, Qp
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

if TYPE_CHECKING:
    from pymodel.model import PeMemory


class Front(Core):
    """Takes what the host writes."""

    def __init__(
        self,
        memory: PeMemory,
        on_write: Callable[[int, int], None],
        now: Callable[[], int],
        params: Params,
    ) -> None:
        super().__init__(memory, on_write, now, params)
        self._event_mask = 0
        self._sl_weight = 0x0101_0101_0101_0101
        self._stage = [0] * STAGE_WORDS
        self._status = 0

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
            self.ip = data & U32
        elif addr == Csr.CQ_WAIT:
            self.cq_wait = data & U32
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
            self._cqs[index] = Cq(index, context, context.start_index & U32, context.start_index & U32)
        elif obj is CmdObj.QP and op is CmdOp.SET:
            context_qp = self.contexts.qps[index]
            width = doorbell.SQ_INDEX_BITS[context_qp.version]
            start = context_qp.sq_start_index & (1 << width) - 1
            self._qps[index] = Qp(
                index, context_qp, width, start, start, start, context_qp.sq_psn, context_qp.sq_psn,
                context_qp.rq_psn, sent_psn=context_qp.sq_psn,
            )  # fmt: skip
            first = context_qp.rq_start_index % (1 << doorbell.RQ_PID_BITS)
            qp = self._qps[index]
            qp.rq_producer = qp.rq_taken = qp.rq_done = first
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
            self._rq_doorbell(qp, int(doorbell.rq_decode(data).next_pid))

    def _rq_doorbell(self, qp: Qp, pid: int) -> None:
        raise NotImplementedError

    def _sq_doorbell(self, qp: Qp, pid: int) -> None:
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
            self._wake(qp)
        elif verdict is rules.DbVerdict.OVERRUN:
            self._async(AsyncKind.SQ_OVERRUN, qp.qpn)
            if qp.state is QpState.RTS:
                self._to_error(qp)

    def _cq_doorbell(self, qp: Qp, data: int) -> None:
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
        cq.consumer = (cq.consumer + (cid - cq.consumer & 0x7F_FFFF)) & U32
        if rules.cq_arms(sta):
            cq.armed = sta
        for other in self._qps.values():
            pending = other.context.recv_cq == cqn and other.rq_done != other.rq_producer
            if pending or (other.context.send_cq == cqn and other.outstanding):
                self._wake(other)
