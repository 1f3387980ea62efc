"""Receive queue of a golden NIC: doorbells, SEND and WRITE with immediate, receive CQEs (nic.md 3, 5, 6)."""

from __future__ import annotations

from typing import Final

import numpy as np

from pymodel.formats import recv
from pymodel.formats.cqe import CqeError
from pymodel.formats.packet import Bth, Syndrome
from pymodel.nic import rules
from pymodel.nic.context import QpState
from pymodel.nic.golden.completion import Completer
from pymodel.nic.golden.core import Buffer, Packet, Qp
from pymodel.nic.golden.responder import Responder
from pymodel.nic.params import AsyncKind, Cnt
from pymodel.platform import UnmappedError

_STARTS: Final = (Bth.SEND_FIRST, Bth.SEND_ONLY, Bth.SEND_ONLY_IMM)
_ENDS: Final = (Bth.SEND_LAST, Bth.SEND_LAST_IMM, Bth.SEND_ONLY, Bth.SEND_ONLY_IMM)
_WRITE_IMM: Final = (Bth.WRITE_LAST_IMM, Bth.WRITE_ONLY_IMM)
_IMM: Final = (Bth.SEND_LAST_IMM, Bth.SEND_ONLY_IMM, *_WRITE_IMM)
_MASK64: Final = (1 << 64) - 1


class Receiver(Responder, Completer):
    """Messages that take a receive WQE."""

    # ------------------------------------------------------------------ doorbell
    def _rq_doorbell(self, qp: Qp, pid: int) -> None:
        depth = qp.context.rq_depth
        outstanding = qp.rq_producer - qp.rq_done
        verdict = rules.DbVerdict(
            int(rules.rq_doorbell(pid, qp.rq_producer, outstanding, depth, self.params.stale_ignored))
        )
        if verdict in rules.DB_COUNTER:
            self.count(rules.DB_COUNTER[verdict])
        if verdict is rules.DbVerdict.ACCEPTED:
            qp.rq_producer += (pid - qp.rq_producer) % (1 << recv.RQ_INDEX_BITS)
            self._wake(qp)
        elif verdict is rules.DbVerdict.OVERRUN:
            self._async(AsyncKind.RQ_OVERRUN, qp.qpn)
            if qp.state is QpState.RTS:
                self._to_error(qp)

    def _unready(self, qp: Qp, packet: Packet) -> bool:
        """Whether a request packet needs a receive WQE that its QP does not have (nic.md 5)."""
        if packet.bth not in (*_STARTS, *_WRITE_IMM):
            return False
        waiting = sum(buffer.whole for buffer in qp.buffers)
        return qp.rq_taken == qp.rq_producer or waiting >= self.params.max_received

    # ------------------------------------------------------------------ messages
    def _take(self, qp: Qp) -> Buffer:
        """The next receive WQE; one that cannot be read has its code."""
        buffer = Buffer(qp.rq_taken)
        addr = qp.context.rq_base + recv.RECV_BYTES * (qp.rq_taken % qp.context.rq_depth)
        qp.rq_taken += 1
        qp.buffers.append(buffer)
        try:
            raw = self.memory.nic_read(addr, recv.RECV_BYTES)
        except UnmappedError:
            self.count(Cnt.BUS_FETCH)
            buffer.error = CqeError.RCV_WQE_DMA
            return buffer
        row = recv.unpack(np.frombuffer(raw, np.uint8))[0]
        buffer.size, buffer.lkey, buffer.addr = int(row["length"]), int(row["lkey"]), int(row["addr"])
        return buffer

    def _end(self, qp: Qp, buffer: Buffer, packet: Packet, op: int, length: int) -> None:
        buffer.whole, buffer.op, buffer.length = True, op, length
        buffer.with_imm, buffer.imm, buffer.se = packet.bth in _IMM, packet.imm, packet.se
        self._wake(qp)

    def _received_write(self, qp: Qp, packet: Packet) -> None:
        """The last packet of a WRITE with immediate was executed."""
        if packet.bth in _WRITE_IMM:
            self._end(qp, self._take(qp), packet, 1, qp.dma_len)

    def _receive(self, qp: Qp, packet: Packet) -> None:
        """A SEND packet that passed its checks."""
        buffer = self._take(qp) if packet.bth in _STARTS else qp.buffers[-1]
        size = len(packet.payload)
        addr = buffer.addr + buffer.length & _MASK64
        syndrome = Syndrome.NAK_REM_OP
        if not buffer.error and buffer.length + size > buffer.size:
            buffer.error, syndrome = CqeError.RCV_WQE_SIZE_RC, Syndrome.NAK_INV_REQ
        elif not buffer.error:
            access = self._access(buffer.lkey, False, rules.Right.LOC_WRITE, addr, size)
            if access is not rules.MrVerdict.OK:
                buffer.error = CqeError.LOCAL_MR_RSP
        if buffer.error:
            self._nak(qp, packet.psn, syndrome)
            return
        if not self._land(qp, packet, addr):
            return
        buffer.length += size
        self._executed(qp, packet, packet.bth in _ENDS)
        if size:
            self.on_write(addr, size)
        if packet.bth in _ENDS:
            self._end(qp, buffer, packet, 0, buffer.length)
        if packet.ack_req:
            self._ack(qp, packet.psn)

    # ------------------------------------------------------------------ completion
    def _can_complete_receive(self, qp: Qp) -> bool:
        if qp.rq_done == qp.rq_producer:
            return False
        first = qp.buffers[0] if qp.buffers else None
        if qp.state is QpState.RTS and not (first is not None and first.whole):
            return False
        cq = self._cqs[qp.context.recv_cq]
        if self._takes(cq):
            qp.rq_waits_since = None
            return True
        if qp.rq_waits_since is None:
            qp.rq_waits_since = self.now()
        return bool(self.cq_wait) and self.now() >= qp.rq_waits_since + self.cq_wait

    def _complete_receive(self, qp: Qp) -> None:
        buffer = qp.buffers.popleft() if qp.buffers else None
        index, cq = qp.rq_done, self._cqs[qp.context.recv_cq]
        error = CqeError.FLUSH if buffer is None or not (buffer.whole or buffer.error) else buffer.error
        if error == CqeError.FLUSH:
            self.count(Cnt.FLUSH)
        if not self._takes(cq):
            self._overrun(cq)
        if cq.overrun:
            self.count(Cnt.CQE_DISCARD)
        else:
            told = Buffer(index) if error or buffer is None else buffer
            context = cq.context
            fields = rules.receive_cqe(
                index, qp.qpn, error, told.op, told.with_imm, told.imm, told.length, told.se, cq.producer,
                context.depth, qp.context.version, context.ignore_overrun,
            )  # fmt: skip
            self._put_cqe(qp, cq, fields, bool(error) or bool(told.se))
        qp.rq_done += 1
        qp.rq_taken = max(qp.rq_taken, qp.rq_done)
        qp.rq_waits_since = None
        self.count(Cnt.WQE)
        self._wake(qp)
