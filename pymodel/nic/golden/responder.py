"""Responder half of a golden NIC: requests, the table of READs and atomics, answers (nic.md 5, wire.md 5)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from pymodel.formats.packet import ATOMIC_BTH, Bth, Syndrome
from pymodel.nic import rules
from pymodel.nic.context import QpState
from pymodel.nic.golden.core import NAKS, PSN_MASK, Core, Entry, Packet, Qp, psn_ahead
from pymodel.nic.params import AsyncKind, Cnt
from pymodel.platform import UnmappedError

#: syndrome 001ttttt: not ready, the code of the time to wait (wire.md 5)
_RNR_NAK: Final = 0x20
#: faults that are found behind the receive WQE: whether one is there is asked first
_BEHIND_RECEIVE: Final = (rules.RequestFault.OK, rules.RequestFault.ACCESS)
_NAK_TX: Final[dict[int, Cnt]] = dict(
    zip(NAKS, (Cnt.NAK_SEQ_TX, Cnt.NAK_INV_TX, Cnt.NAK_ACC_TX, Cnt.NAK_OP_TX), strict=True)
)
_FATAL: Final = NAKS[1:]
_WRITE_STARTS: Final = (Bth.WRITE_FIRST, Bth.WRITE_ONLY, Bth.WRITE_ONLY_IMM)
_WRITE_ENDS: Final = (Bth.WRITE_LAST, Bth.WRITE_ONLY, Bth.WRITE_LAST_IMM, Bth.WRITE_ONLY_IMM)


class Responder(Core):
    """Executes the requests of the peers' QPs."""

    # ------------------------------------------------------------------ requests
    def _request(self, qp: Qp, packet: Packet) -> None:
        """One request to this QP."""
        place = rules.psn_class(packet.psn, qp.epsn)
        if place == rules.PsnClass.BEHIND:
            self.count(Cnt.DUPLICATE)
            self._duplicate(qp, packet)
        elif place == rules.PsnClass.AHEAD:
            self.count(Cnt.PSN_AHEAD)
            if not qp.nak_sent:
                qp.nak_sent = True
                self._nak(qp, qp.epsn, Syndrome.NAK_SEQ)
        else:
            self.count(Cnt.RX_PACKET)
            if qp.nak_sent:
                qp.nak_sent = False
                if qp.pending_nak is not None and qp.pending_nak.syndrome not in _FATAL:
                    qp.pending_nak = None  # what it was to ask for is here
            fault = self._judge(qp, packet)
            if fault in _BEHIND_RECEIVE and self._unready(qp, packet):
                qp.nak_sent = True
                self._nak(qp, packet.psn, _RNR_NAK | self.params.rnr_timer)
            elif fault is not rules.RequestFault.OK:
                if fault is rules.RequestFault.TOO_MANY:
                    self.count(Cnt.RD_TOO_MANY)
                self._nak(qp, packet.psn, Syndrome(int(rules.FAULT_SYNDROME[fault])))
            elif rules.TAKES_ENTRY[packet.bth]:
                self._enter(qp, packet)
            elif packet.bth <= Bth.SEND_ONLY_IMM:
                self._receive(qp, packet)
            else:
                self._write(qp, packet)

    def _unready(self, qp: Qp, packet: Packet) -> bool:
        raise NotImplementedError

    def _receive(self, qp: Qp, packet: Packet) -> None:
        raise NotImplementedError

    def _received_write(self, qp: Qp, packet: Packet) -> None:
        raise NotImplementedError

    def _judge(self, qp: Qp, packet: Packet) -> rules.RequestFault:
        """Checks at the expected PSN; a First or Only opens its message here, whatever becomes of it."""
        context, bth, length = qp.context, packet.bth, len(packet.payload)
        right = rules.Right(int(rules.REQUEST_RIGHT[bth]))
        if bth in _WRITE_STARTS:
            qp.va, qp.rkey, qp.dma_len, qp.received = packet.va, packet.rkey, packet.dma_len, 0
        remaining = qp.dma_len - qp.received
        if bth == Bth.READ_REQUEST:
            remaining = packet.dma_len
            access = self._access(packet.rkey, True, right, packet.va, packet.dma_len)
        elif bth in ATOMIC_BTH:
            access = self._access(packet.rkey, True, right, packet.va, int(rules.OPERAND_BYTES[bth]))
        elif bth <= Bth.SEND_ONLY_IMM:
            access = rules.MrVerdict.OK  # its receive WQE is judged apart
        elif bth in _WRITE_STARTS:
            access = self._access(qp.rkey, True, right, qp.va, qp.dma_len)
        else:
            # judged for the whole message at its start; only the key may be gone since
            access = self._access(qp.rkey, True, right, qp.va, length)
            if access is not rules.MrVerdict.KEY:
                access = rules.MrVerdict.OK
        rights = context.rem_write, context.rem_read, context.rem_atomic
        entry = bool(rules.TAKES_ENTRY[bth])
        full = entry and self._fresh(qp) >= context.max_dest_rd_atomic
        low_va = packet.va & 7 if bth in ATOMIC_BTH else 0
        size, left = _shape(length, remaining, context.mtu)
        return _request_fault(bth, qp.previous, size, left, context.mtu, rights, access, low_va, full)

    def _write(self, qp: Qp, packet: Packet) -> None:
        """A WRITE packet that passed its checks."""
        at, length = qp.va + qp.received, len(packet.payload)
        if not self._land(qp, packet, at):
            return
        qp.received += length
        self._executed(qp, packet, packet.bth in _WRITE_ENDS)
        if packet.bth in _WRITE_ENDS:
            self.on_executed(qp.qpn, packet.index)
        if length:
            self.on_write(at, length)
        self._received_write(qp, packet)
        if packet.ack_req:
            self._ack(qp, packet.psn)

    def _land(self, qp: Qp, packet: Packet, at: int) -> bool:
        """Write the payload of a SEND or WRITE; False where that fails.

        It may overtake the memory reads of an earlier READ of its QP, but no earlier atomic: those are
        executed first.
        """
        while (entry := self._due_atomic(qp)) is not None:
            if not self._execute(qp, entry):
                return False
        if packet.payload:
            try:
                self.memory.nic_write(at, packet.payload)
            except UnmappedError:
                self.count(Cnt.BUS_INBOUND)
                self._nak(qp, packet.psn, Syndrome.NAK_REM_OP)
                return False
        return True

    def _executed(self, qp: Qp, packet: Packet, ends: bool) -> None:
        """The expected PSN and, at the end of a message, the MSN move on."""
        qp.previous = packet.bth
        qp.epsn = (qp.epsn + 1) & PSN_MASK
        qp.msn = (qp.msn + ends) & PSN_MASK

    def _enter(self, qp: Qp, packet: Packet) -> None:
        """Accept a READ or atomic: it counts from here on."""
        read = packet.bth == Bth.READ_REQUEST
        length = packet.dma_len if read else int(rules.OPERAND_BYTES[packet.bth])
        psns = int(rules.psn_count(length, qp.context.mtu)) if read else 1
        qp.previous = packet.bth
        qp.epsn = (qp.epsn + psns) & PSN_MASK
        qp.msn = (qp.msn + 1) & PSN_MASK
        if read:
            self.count(Cnt.READ)
        entry = Entry(
            packet.bth,
            packet.psn,
            psns,
            packet.va,
            packet.rkey,
            length,
            qp.msn,
            packet.operands,
            packet.index,
        )
        qp.table.append(entry)
        if not read:
            qp.saved.append(entry)
            if len(qp.saved) > qp.context.max_dest_rd_atomic:
                qp.saved.popleft()
        self._wake(qp)

    # ------------------------------------------------------------------ duplicates (wire.md 5)
    def _duplicate(self, qp: Qp, packet: Packet) -> None:
        """A request that was executed before; it moves nothing on and no atomic is executed again."""
        if not rules.TAKES_ENTRY[packet.bth]:
            self._ack(qp, qp.epsn - 1)
        elif packet.bth == Bth.READ_REQUEST:
            self._read_again(qp, packet)
        else:
            self._answer_again(qp, packet)

    def _read_again(self, qp: Qp, packet: Packet) -> None:
        """A READ is judged and made again; where the table has no place for it, it is dropped."""
        context, length = qp.context, packet.dma_len
        behind = (qp.epsn - packet.psn) & PSN_MASK
        psns = int(rules.psn_count(min(length, rules.MAX_MESSAGE), context.mtu))
        if length > rules.MAX_MESSAGE or packet.payload or not context.rem_read or psns > behind:
            self._nak(qp, packet.psn, Syndrome.NAK_INV_REQ)
        elif len(qp.table) >= context.max_dest_rd_atomic:
            self.count(Cnt.RD_TOO_MANY)
        elif (
            self._access(packet.rkey, True, rules.Right.REM_READ, packet.va, length) is not rules.MrVerdict.OK
        ):
            self._nak(qp, packet.psn, Syndrome.NAK_ACCESS)
        else:
            self._enter_again(
                qp,
                Entry(
                    packet.bth, packet.psn, psns, packet.va, packet.rkey, length, qp.msn, packet.operands,
                    packet.index, duplicate=True,
                ),
            )  # fmt: skip

    def _answer_again(self, qp: Qp, packet: Packet) -> None:
        """An atomic is answered from its saved result, if there is one."""
        saved = next((entry for entry in reversed(qp.saved) if entry.psn == packet.psn), None)
        if saved is None:
            self.count(Cnt.ATOMIC_NO_SAVE)
        elif saved.orig is None:
            pass  # not executed yet: its answer is still to come
        elif len(qp.table) >= qp.context.max_dest_rd_atomic:
            self.count(Cnt.RD_TOO_MANY)
        else:
            self._enter_again(qp, replace(saved, bth=packet.bth, msn=qp.msn, answered=0, duplicate=True))

    def _enter_again(self, qp: Qp, entry: Entry) -> None:
        qp.table.append(entry)
        qp.mixed = True
        self._wake(qp)

    @staticmethod
    def _fresh(qp: Qp) -> int:
        """Entries of the table that are no duplicates: those leave their places to fresh requests."""
        return sum(not e.duplicate for e in qp.table) if qp.mixed else len(qp.table)

    # ------------------------------------------------------------------ the table
    @staticmethod
    def _due_atomic(qp: Qp) -> Entry | None:
        """The oldest atomic of the QP that is not executed: those of one QP go in order."""
        for entry in qp.table:
            if entry.bth != Bth.READ_REQUEST and entry.orig is None:
                return entry
        return None

    def _run_atomic(self, qp: Qp) -> int:
        """Execute it; gives the cycles."""
        entry = self._due_atomic(qp)
        assert entry is not None, "a step that is on offer"
        self._execute(qp, entry)
        return 2

    @staticmethod
    def _can_serve(qp: Qp) -> bool:
        """The oldest entry has a response to make."""
        return bool(qp.table) and (qp.table[0].bth == Bth.READ_REQUEST or qp.table[0].orig is not None)

    def _serve(self, qp: Qp) -> int:
        """The next response of the oldest READ or atomic; gives the cycles."""
        entry = qp.table[0]
        read = entry.bth == Bth.READ_REQUEST
        packet = self._read_response(qp, entry) if read else self._atomic_ack(qp, entry)
        if packet is None:
            return 2
        packet.msn = entry.msn
        entry.answered += 1
        if entry.answered == entry.psns:
            qp.table.popleft()
            qp.mixed = qp.mixed and bool(qp.table)
            if read and not entry.duplicate:
                self.on_executed(qp.qpn, entry.index)
        self._emit(qp, packet)
        self._release(qp)
        return 2 + len(packet.payload) // self.params.data_bytes

    def _read_response(self, qp: Qp, entry: Entry) -> Packet | None:
        at = entry.answered * qp.context.mtu
        length = min(entry.length - at, qp.context.mtu)
        packet = self._packet(qp, _read_opcodes(entry.psns)[entry.answered], entry.psn + entry.answered)
        access = self._access(entry.rkey, True, rules.Right.REM_READ, entry.va + at, length)
        if access is not rules.MrVerdict.OK:
            self._table_nak(qp, entry, Syndrome.NAK_ACCESS)
            return None
        try:
            packet.payload = self.memory.nic_read(entry.va + at, length) if length else b""
        except UnmappedError:
            self.count(Cnt.BUS_GATHER)
            self._table_nak(qp, entry, Syndrome.NAK_REM_OP)
            return None
        packet.syndrome = Syndrome.ACK if packet.bth != Bth.READ_MIDDLE else 0
        return packet

    def _atomic_ack(self, qp: Qp, entry: Entry) -> Packet:
        packet = self._packet(qp, Bth.ATOMIC_ACK, entry.psn)
        packet.syndrome, packet.orig = Syndrome.ACK, entry.orig or 0
        return packet

    def _execute(self, qp: Qp, entry: Entry) -> bool:
        """An atomic, as one step against everything else; False where it failed."""
        size = entry.length
        access = self._access(entry.rkey, True, rules.Right.REM_ATOMIC, entry.va, size)
        if access is not rules.MrVerdict.OK:
            self._table_nak(qp, entry, Syndrome.NAK_ACCESS)
            return False
        try:
            old = int.from_bytes(self.memory.nic_read(entry.va, size), "little")
            value, writes = rules.atomic(entry.bth, old, *entry.operands)
            if writes:
                self.memory.nic_write(entry.va, int(value).to_bytes(size, "little"))
        except UnmappedError:
            self.count(Cnt.BUS_ATOMIC)
            self._table_nak(qp, entry, Syndrome.NAK_REM_OP)
            return False
        self.count(Cnt.ATOMIC)
        entry.orig = old
        self.on_executed(qp.qpn, entry.index)
        if writes:
            self.on_write(entry.va, size)
        return True

    def _table_nak(self, qp: Qp, entry: Entry, syndrome: Syndrome) -> None:
        """The entry cannot be served: it and all that was accepted behind it go, answers included."""
        while qp.table.pop() is not entry:
            pass
        qp.pending_nak = None
        if qp.pending_ack is not None and psn_ahead(qp.pending_ack.psn, entry.psn):
            qp.pending_ack = None
        # an atomic that failed does not count; a READ did when it was accepted
        msn = qp.msn if entry.bth == Bth.READ_REQUEST else entry.msn - 1
        self._nak(qp, entry.psn + entry.answered, syndrome, msn)

    # ------------------------------------------------------------------ answers
    def _ack(self, qp: Qp, psn: int) -> None:
        """Answer with an ACK; the newest wins."""
        packet = self._packet(qp, Bth.ACK, psn)
        packet.syndrome, packet.msn = Syndrome.ACK, qp.msn
        qp.pending_ack = packet
        self._release(qp)

    def _nak(self, qp: Qp, psn: int, syndrome: int, msn: int | None = None) -> None:
        """Answer with a NAK; all but NAK 0 and RNR NAK end the QP."""
        packet = self._packet(qp, Bth.ACK, psn)
        packet.syndrome, packet.msn = syndrome, (qp.msn if msn is None else msn) & PSN_MASK
        qp.pending_nak = packet
        # it acknowledges what a waiting ACK would
        if qp.pending_ack is not None and not psn_ahead(qp.pending_ack.psn, packet.psn):
            qp.pending_ack = None
        self._release(qp)
        if syndrome in _FATAL and qp.state is QpState.RTS:
            self._async(AsyncKind.QP_ERR, qp.qpn)
            self._to_error(qp)

    def _release(self, qp: Qp) -> None:
        """Let waiting answers go that no READ or atomic stands before: responses leave in PSN order."""
        head = qp.table[0].psn if qp.table else None
        if qp.mixed:
            # a duplicate stands behind what is newer
            head = (
                qp.epsn - max((qp.epsn - entry.psn & PSN_MASK for entry in qp.table), default=0)
            ) & PSN_MASK
        nak, ack = qp.pending_nak, qp.pending_ack
        if nak is not None and (head is None or not psn_ahead(nak.psn, head)):
            self._emit(qp, nak)
            self.count(_NAK_TX.get(nak.syndrome, Cnt.RNR_TX))
            qp.pending_nak = nak = None
        if ack is not None and nak is None and (head is None or psn_ahead(head, ack.psn)):
            self._emit(qp, ack)
            qp.pending_ack = None

    def _emit(self, qp: Qp, packet: Packet) -> None:
        self._responses[qp.qpn].append(packet)
        self.count(Cnt.TX_RESPONSE)
        self._wake(qp)


# The rules work on arrays; asked for one item at a time they cost tens of microseconds, and traffic repeats.
def _shape(length: int, remaining: int, mtu: int) -> tuple[int, int]:
    """Lengths that every rule answers as it answers these, but few different ones."""
    short = length if length in (0, mtu) else 1 if length < mtu else mtu + 1
    if remaining > rules.MAX_MESSAGE:
        return short, rules.MAX_MESSAGE + 1
    return short, short + (remaining > length) - (remaining < length)


@lru_cache(maxsize=1 << 14)
def _request_fault(
    bth: int,
    previous: int,
    length: int,
    remaining: int,
    mtu: int,
    rights: tuple[bool, bool, bool],
    access: rules.MrVerdict,
    low_va: int,
    table_full: bool,
) -> rules.RequestFault:
    """`rules.request_fault` of one packet."""
    return rules.RequestFault(
        int(
            rules.request_fault(
                bth, previous, length, mtu, remaining, *rights, access, va=low_va, table_full=table_full
            )
        )
    )


@lru_cache(maxsize=1 << 8)
def _read_opcodes(count: int) -> bytes:
    """BTH opcode of each response of a READ that takes `count` of them."""
    return rules.read_segment(count, 1).opcode.tobytes()
