"""Requester half of a golden NIC: fetch, start, send, and what responses do (nic.md 4 and 5, wire.md 5)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from pymodel.formats import wqe
from pymodel.formats.cqe import CqeError
from pymodel.formats.packet import Bth, Syndrome
from pymodel.formats.wqe import WqeOp
from pymodel.nic import rules
from pymodel.nic.context import QpState
from pymodel.nic.golden.core import NAKS, PSN_MASK, Core, Packet, Qp, Work, psn_ahead
from pymodel.nic.params import Cnt
from pymodel.platform import UnmappedError

_NAK_RX: Final = dict(zip(NAKS, (Cnt.NAK_SEQ_RX, Cnt.NAK_INV_RX, Cnt.NAK_ACC_RX, Cnt.NAK_OP_RX), strict=True))
_RNR: Final = range(0x20, 0x40)
_MASK64: Final = (1 << 64) - 1


class Requester(Core):
    """Sends the WQEs of each QP and takes their responses."""

    # ------------------------------------------------------------------ sending
    def _can_send(self, qp: Qp) -> bool:
        if qp.state is not QpState.RTS or qp.hold is not None:
            return False
        if qp.sending is not None:
            return qp.resuming or self._unacked(qp) + 1 < self.params.psn_window
        if qp.stopped:
            return False
        if len(qp.inflight) >= self.params.max_inflight:
            return False
        return self._may_start(qp, qp.waiting) if qp.waiting is not None else qp.fetched != qp.producer

    @staticmethod
    def _sent_psn(qp: Qp) -> int:
        """The PSN after the last one that is on its way."""
        return qp.sent_psn

    def _unacked(self, qp: Qp) -> int:
        return (self._sent_psn(qp) - qp.unacked_psn) & PSN_MASK

    def _may_start(self, qp: Qp, work: Work) -> bool:
        f, context = work.wqe[0], qp.context
        psns = int(rules.psn_count(f["msg_len"], context.mtu)) if f["msg_opcode"] == WqeOp.READ else 1
        return bool(
            rules.may_start(
                f["msg_opcode"], f["fence_mode"], self._unacked(qp), psns, len(qp.reads),
                context.max_rd_atomic, self.params.psn_window,
            )
        )  # fmt: skip

    def _send(self, qp: Qp) -> int:
        """Fetch and start the next WQE where it may, then send one packet; gives the cycles."""
        if qp.resuming:
            self._catch_up(qp)
        elif qp.sending is None:
            if qp.waiting is None:
                self._fetch(qp)
            if qp.waiting is not None and self._may_start(qp, qp.waiting):
                self._start(qp, qp.waiting)
        work = qp.sending
        if work is None:
            return 2
        f = work.wqe[0]
        at, length, bth, ack_req = work.packets[work.sent]
        try:
            payload = self.memory.nic_read(int(f["laddr"]) + at, length) if length else b""
        except UnmappedError:
            self.count(Cnt.BUS_GATHER)
            self._fail(qp, work, CqeError.DATA_DMA_RD_REQ)
            return 2
        packet = self._packet(qp, bth, work.first_psn + work.sent)
        packet.ack_req, packet.payload, packet.index = ack_req, payload, work.index
        if work.sent == 0:
            packet.va, packet.rkey, packet.dma_len = int(f["raddr"]), int(f["rkey"]), int(f["msg_len"])
            if work.resumed:
                # the rest of a READ, as a READ of its own
                done = work.resumed * qp.context.mtu
                packet.psn = (packet.psn + work.resumed) & PSN_MASK
                packet.va, packet.dma_len = packet.va + done & _MASK64, packet.dma_len - done
            # FetchAdd carries 0 as compare (wire.md 2)
            third = 0 if bth == Bth.FETCH_ADD else int(f["compare"])
            packet.operands = int(f["swap_add"]), third, int(f["swap_mask"]), int(f["compare_mask"])
        takes = f["msg_opcode"] == WqeOp.SEND or f["with_imm"]
        if takes and work.sent == len(work.packets) - 1:
            packet.imm, packet.se = int(f["opcode_data"]) if f["with_imm"] else 0, bool(f["se"])
        self._requests[qp.qpn].append(packet)
        self.count(Cnt.TX_REQUEST)
        work.sent += 1
        if work.sent > work.top:
            if qp.unacked_psn == qp.sent_psn:
                qp.since = self.now()
            work.top = work.sent
            qp.sent_psn = (work.first_psn + work.outstanding) & PSN_MASK
        if work.sent == len(work.packets):
            qp.sending = qp.again.popleft() if qp.again else None
            qp.resuming = qp.resuming and qp.sending is not None
        return 2 + length // self.params.data_bytes

    def _fetch(self, qp: Qp) -> None:
        """Read the next WQE; whether it is good is judged when it starts."""
        index = qp.fetched
        qp.fetched = (index + 1) & qp.mask
        work = Work(index, np.zeros(1, wqe.WQE_FIELDS))
        try:
            raw = self.memory.nic_read(qp.slot(index), wqe.WQE_BYTES)
        except UnmappedError:
            self.count(Cnt.BUS_FETCH)
            qp.inflight.append(work)
            self._fail(qp, work, CqeError.SND_WQE_DMA)
            return
        plain_le = self.params.plain_atomics_le
        work.wqe = wqe.unpack(np.frombuffer(raw, np.uint8), qp.context.version, plain_le)
        qp.waiting = work

    def _start(self, qp: Qp, work: Work) -> None:
        """Check the WQE and give it its PSNs; one that fails stops the QP's issue."""
        context, f = qp.context, work.wqe[0]
        qp.waiting = None
        qp.inflight.append(work)
        error = int(
            rules.wqe_check(
                work.wqe, work.index, context.version, mrs=self._mrs, max_rd_atomic=context.max_rd_atomic,
                params=self.params,
            )[0]
        )  # fmt: skip
        if error != CqeError.OK:
            self._fail(qp, work, error)
            return
        op, length = WqeOp(f["msg_opcode"]), int(f["msg_len"])
        if op in (WqeOp.WRITE, WqeOp.SEND):
            kind = "send" if op is WqeOp.SEND else "write"
            with_imm = bool(f["with_imm"])
            work.packets = _packets(length, context.mtu, self.params.ack_interval, kind, with_imm)
            work.psns = len(work.packets)
        else:
            read = op is WqeOp.READ
            work.packets = ((0, 0, Bth.READ_REQUEST if read else int(rules.BTH_OF[op]), True),)
            work.psns = int(rules.psn_count(length, context.mtu)) if read else 1
            work.needs_response = True
            qp.reads.append(work)
        work.first_psn = qp.next_psn
        qp.next_psn = (qp.next_psn + work.psns) & PSN_MASK
        qp.sending = work

    def _fail(self, qp: Qp, work: Work, error: int) -> None:
        work.error = error
        qp.stopped = True
        qp.sending = None
        qp.resuming = False
        qp.again.clear()
        self._wake(qp)

    def _catch_up(self, qp: Qp) -> None:
        raise NotImplementedError

    def _lost(self, qp: Qp) -> None:
        raise NotImplementedError

    def _not_ready(self, qp: Qp, syndrome: int) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------ responses
    def _response(self, qp: Qp, packet: Packet) -> None:
        """One response to this QP."""
        if not _syndrome_ok(packet.bth, packet.syndrome):
            self.count(Cnt.DROP_SYNDROME)
        elif packet.bth == Bth.ACK:
            self._acknowledged(qp, packet)
        else:
            self._data(qp, packet)
        self._wake(qp)

    def _acknowledged(self, qp: Qp, packet: Packet) -> None:
        """ACK, NAK or RNR NAK.

        None of them completes a READ or atomic: what passes one that is unanswered acknowledges only up to it
        and says no more.
        """
        psn, syndrome = packet.psn, packet.syndrome
        if rules.ack_class(psn, qp.unacked_psn, self._sent_psn(qp)) != rules.PsnClass.EXPECTED:
            self.count(Cnt.DROP_RESPONSE)
            return
        self.count(Cnt.RX_PACKET)
        negative = syndrome in _NAK_RX or syndrome in _RNR
        if syndrome in _NAK_RX:
            self.count(_NAK_RX[Syndrome(syndrome)])
        elif syndrome in _RNR:
            self.count(Cnt.RNR_RX)
        # a NAK acknowledges what stands before its PSN
        good = psn if negative else (psn + 1) & PSN_MASK
        if qp.reads and psn_ahead(good, qp.reads[0].expected):
            self._advance(qp, qp.reads[0].expected)
            # its response is lost, if it was asked for since the QP last went back
            if not qp.told_passed and qp.reads[0].sent:
                self._lost(qp)
                qp.told_passed = True
            return
        self._advance(qp, good)
        if syndrome == Syndrome.NAK_SEQ:
            self._lost(qp)
        elif syndrome in _RNR:
            self._not_ready(qp, syndrome)
        elif syndrome in _NAK_RX:
            for work in qp.inflight:
                inside = (psn - work.first_psn) & PSN_MASK < work.outstanding
                if not work.done and not work.error and inside:
                    f = work.wqe[0]
                    self._fail(qp, work, int(rules.nak_error(syndrome, f["msg_opcode"], f["raddr"])))
                    break

    def _data(self, qp: Qp, packet: Packet) -> None:
        """READ response or ATOMIC Acknowledge: only the one that is due is taken."""
        work = qp.reads[0] if qp.reads else None
        # between a loss and the request that is sent again for it nothing is due
        if work is None or work.error or not work.sent or packet.psn != work.expected:
            self.count(Cnt.DROP_RESPONSE)
            if work is not None and not work.error and work.sent and not qp.told_ahead:
                last = (qp.sent_psn - packet.psn) & PSN_MASK
                if psn_ahead(packet.psn, work.expected) and 0 < last < 1 << 23:
                    self._lost(qp)
                    qp.told_ahead = True
            return
        self.count(Cnt.RX_PACKET)
        qp.told_ahead = False
        # that it came shows that everything before it was executed
        self._advance(qp, packet.psn)
        f, mtu, at = work.wqe[0], qp.context.mtu, work.answered * qp.context.mtu
        atomic = bool(rules.IS_ATOMIC[f["msg_opcode"]])
        # what is left beyond one more packet makes no difference
        left = min(int(f["msg_len"]) - at, mtu + 1)
        first, size = work.answered == work.resumed, len(packet.payload)
        error = _response_error(packet.bth, size, mtu, atomic, left, first)
        if error and first and work.resumed:
            # of the answer to an earlier request
            error = _response_error(packet.bth, size, mtu, atomic, left, False)
        if error == CqeError.OK:
            data = packet.payload
            if atomic:
                size = int(rules.OPERAND_BYTES[f["msg_opcode"]])
                data = rules.result_bytes(f["msg_opcode"], packet.orig)[:size].tobytes()
            error = self._result(work, int(f["laddr"]) + at, data)
        if error != CqeError.OK:
            self._fail(qp, work, error)
            return
        work.answered += 1
        if work.answered == work.psns:
            work.done = True
            qp.reads.popleft()
        self._advance(qp, (packet.psn + 1) & PSN_MASK)

    def _result(self, work: Work, addr: int, data: bytes) -> int:
        """Put result bytes in place; gives the error code."""
        key = int(work.wqe["lkey"][0])
        if self._access(key, False, rules.Right.LOC_WRITE, addr, len(data)) is not rules.MrVerdict.OK:
            return CqeError.LOCAL_MR_REQ
        if data:
            try:
                self.memory.nic_write(addr, data)
            except UnmappedError:
                self.count(Cnt.BUS_RESULT)
                return CqeError.DATA_DMA_WR_REQ
            self.on_write(addr, len(data))
        return CqeError.OK

    def _advance(self, qp: Qp, psn: int) -> None:
        """Everything before `psn` is acknowledged, which never passes an unanswered READ or atomic."""
        if psn != qp.unacked_psn:
            qp.unacked_psn = psn
            qp.since = self.now()
            qp.retries = qp.rnr_tries = 0
            qp.told_passed = False
        for work in qp.inflight:
            if work.error:
                break
            if not work.done and not work.needs_response and work.packets:
                if work.top < len(work.packets):
                    break
                work.done = not psn_ahead((work.first_psn + work.psns) & PSN_MASK, psn)


# The rules work on arrays; asked for one item at a time they cost tens of microseconds, and traffic repeats.
@lru_cache(maxsize=1 << 12)
def _packets(
    length: int, mtu: int, ack_interval: int, kind: str, with_imm: bool
) -> tuple[tuple[int, int, int, bool], ...]:
    """(offset, bytes, BTH opcode, AckReq) of each packet of a WRITE or SEND."""
    cut = rules.segment(length, mtu, kind, with_imm, ack_interval)
    columns = cut.offset.tolist(), cut.length.tolist(), cut.opcode.tolist(), cut.ackreq.astype(bool).tolist()
    return tuple(zip(*columns, strict=True))


@lru_cache(maxsize=1 << 12)
def _syndrome_ok(bth: int, syndrome: int) -> bool:
    """`rules.response_syndrome_ok` of one packet."""
    return bool(rules.response_syndrome_ok(bth, syndrome))


@lru_cache(maxsize=1 << 12)
def _response_error(bth: int, length: int, mtu: int, atomic: bool, remaining: int, first: bool) -> int:
    """`rules.response_error` of one packet."""
    return int(rules.response_error(bth, length, mtu, atomic, remaining, first))
