"""Synthetic record streams for the judge's own tests: a small scalar simulator of NICs.

It emits what the monitors of a legal run would emit, with random latencies and order; `Knobs.faults` adds
illegal work on which NICs must answer with errors. This module has the responder with its atomic unit.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

import numpy as np

from pymodel.nic.judge import Kind
from pymodel.nic.params import CMD_REG, CMD_STAGE, AsyncKind, Cnt, Csr
from tests.model.stream_base import ATOMIC_NAMES, BY_BTH, M64, OPS, Cq, Held, Knobs, Memory, Qp, Wqe
from tests.model.stream_requester import Requester, read_opcode

__all__ = ["ATOMIC_NAMES", "M64", "OPS", "Knobs", "Memory", "Qp", "Sim", "Wqe", "new_value"]

_RESPONSES = range(0x0D, 0x13)


def new_value(op: str, old: int, operands: tuple[int, int, int, int]) -> int | None:
    """What an atomic writes, bit by bit; None: a failed compare (device.md 1.5)."""
    bits = 8 * OPS[op][2]
    swap, third, swap_mask, compare_mask = operands
    if op in ("cas64", "fa64"):
        swap_mask = compare_mask = (1 << bits) - 1
    if "cas" in op:
        for i in range(bits):
            if compare_mask >> i & 1 and old >> i & 1 != third >> i & 1:
                return None
        return sum(((swap if swap_mask >> i & 1 else old) >> i & 1) << i for i in range(bits))
    new = carry = 0
    for i in range(bits):
        total = (old >> i & 1) + (swap >> i & 1) + carry
        new |= (total & 1) << i
        carry = 0 if op != "fa64" and third >> i & 1 else total >> 1
    return new


@dataclass
class Burst:
    """One ID-3 burst that waits for its turn."""

    qp: Qp
    number: int
    addr: int
    data: bytes
    fault: bool
    last: bool


class Sim(Requester):
    """Runs the whole workload; afterwards `records`, `side`, `configs`, `memory`, `counters` are there."""

    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs)
        n = knobs.n_pes
        self.scatter: list[deque[Burst]] = [deque() for _ in range(n)]
        self.scattering = [False] * n
        self.bursts_begun, self.bursts_over = [0] * n, [0] * n  # of ID 3
        self.lock: list[int | None] = [None] * n  # word
        self.unit_busy = [False] * n
        self.gone: set[tuple[int, int]] = set()  # regions that were invalidated
        self.pending = [0] * n  # CQ events
        self.mask = [0] * n

    def run(self) -> Sim:
        """Everything that the knobs ask for."""
        if self.k.arm:
            for pe in range(self.k.n_pes):
                self.mask[pe] = 1
                self.mmio(pe, Csr.EVENT_MASK, 1)
        if self.k.invalidate:
            self.at(self.k.invalidate, lambda: self.invalidate(1))
        for qp in self.qps:
            if qp.pe < qp.peer or not self.k.one_way:
                self.at(self.lat(), lambda qp=qp: self.program(qp))
        self.run_on()
        self.freeze()
        return self

    def invalidate(self, pe: int) -> None:
        """The host invalidates the region of the heap; what is held under it fails when it is served."""
        index = self.mr_index[pe]
        self.mmio(pe, CMD_STAGE + 16, 0)
        self.mmio(pe, CMD_REG, 1 | 3 << 4 | index << 8)
        self.gone.add((pe, index))

    # ------------------------------------------------------------------ link
    def transmit(self, qp: Qp, frame: bytes, ready: int) -> None:
        """Queue for the link of the PE: first come, first served, one beat a cycle."""
        start = max(ready, self.link_free[qp.pe])
        end = start + -(-len(frame) // 64)
        self.link_free[qp.pe] = end
        peer = qp.peer

        def sent() -> None:
            if qp.state == "ERR" and frame[42] not in _RESPONSES:
                return
            self.emit(Kind.TXPKT, qp.pe, frame, aux0=start)
            self.count(qp.pe, Cnt.TX_RESPONSE if frame[42] in _RESPONSES else Cnt.TX_REQUEST)
            due = max(self.now + self.lat(), self.arrive.get((qp.pe, peer), 0) + 1)
            self.arrive[qp.pe, peer] = due
            self.at(due - self.now, lambda: self.receive(peer, frame))

        self.at(end - self.now, sent)

    def receive(self, pe: int, frame: bytes) -> None:
        """A frame arrives."""
        qp = self.by_qpn[pe, int.from_bytes(frame[47:50], "big")]
        frame = self.spoil(qp, frame)
        self.emit(Kind.RXPKT, pe, frame, aux0=self.now - len(frame) // 64)
        if qp.state == "ERR":
            self.count(pe, Cnt.DROP_QP)
            return
        opcode = frame[42]
        if opcode in _RESPONSES and opcode != 0x11 and (qp.stopped and any(w.error for w in qp.reads)):
            self.count(pe, Cnt.DROP_RESPONSE)
            return
        self.count(pe, Cnt.RX_PACKET)
        if opcode == 0x11:
            self.acked(qp, int.from_bytes(frame[51:54], "big"), frame[54])
        elif opcode in _RESPONSES:
            self.data(qp, frame)
        else:
            self.request(pe, qp, frame)

    def spoil(self, qp: Qp, frame: bytes) -> bytes:
        """Faults of a responder that is none of ours: a response with another opcode or length."""
        if frame[42] not in _RESPONSES or frame[42] == 0x11 or not qp.reads:
            return frame
        w = next((w for w in qp.reads if w.got < w.packets), None)
        if w is None or w.got != w.packets // 2 or w.fault not in ("rsp_opcode", "rsp_length"):
            return frame
        peer = next(q for q in self.qps if q.pe == qp.peer and q.qpn == qp.ctx.peer_qpn)
        opcode, ext, payload = frame[42], frame[54:58], b""
        if opcode == 0x12:
            opcode = 0x10
        elif w.fault == "rsp_opcode":
            opcode = 0x12 if self.rng.random() < 0.5 else 0x10 if frame[42] != 0x10 else 0x0D
            ext = frame[54:58] + (bytes(8) if opcode == 0x12 else b"")
        else:
            ext = b"" if opcode == 0x0E else ext
            payload = frame[54 + len(ext) : len(frame) - 8 - (frame[43] >> 4 & 3)]
        return self.frame(peer, opcode, int.from_bytes(frame[51:54], "big"), False, ext, payload)

    # ------------------------------------------------------------------ requests
    def request(self, pe: int, qp: Qp, frame: bytes) -> None:
        """A request at its responder."""
        opcode, psn = frame[42], int.from_bytes(frame[51:54], "big")
        number = qp.expected
        assert psn == (qp.ctx.rq_psn + number) & 0xFFFFFF, "the synthetic link loses nothing"
        if opcode in BY_BTH:
            self.hold(pe, qp, frame, number)
            return
        ext = 16 if opcode in (6, 10) else 0
        payload = frame[54 + ext : len(frame) - 4 - (frame[43] >> 4 & 3)]
        if ext:
            qp.va, qp.key, _ = struct.unpack(">QII", frame[54:70])
        if payload and not self.key_ok(pe, qp.key):
            self.nak(qp, number, 0x62)
            return
        va = qp.va
        qp.va += len(payload)
        qp.expected += 1
        fault = bool(payload) and not self.memory[pe].mapped(va, len(payload))
        if opcode in (8, 10) and not fault:
            qp.msn += 1
        if payload:
            qp.unlanded.append(number)
            pieces = self.pieces_of(va, len(payload))
            for start, size in pieces:
                data, last = payload[start : start + size], (start, size) == pieces[-1]
                self.scatter[pe].append(Burst(qp, number, va + start, data, fault, last))
            self.pump(pe)
        if frame[50] >> 7 and not fault:
            qp.pending_ack = number, 0x1F, qp.msn
            self.at(self.lat(), lambda: self.try_ack(qp))

    def key_ok(self, pe: int, key: int) -> bool:
        """Whether an rkey is one of the PE."""
        mr = self.mrs[pe].get(key >> 8)
        return mr is not None and mr.rtag == key & 255 and (pe, key >> 8) not in self.gone

    def hold(self, pe: int, qp: Qp, frame: bytes, number: int) -> None:
        """A READ or atomic: into the table, or refused."""
        op = BY_BTH[frame[42]]
        va, key = struct.unpack(">QI", frame[54:66])
        _, _, size, count, _, _ = OPS[op]
        length = size or int.from_bytes(frame[66:70], "big")
        if size and va % size:
            self.nak(qp, number, 0x61)
            return
        if len(qp.table) >= qp.ctx.max_dest_rd_atomic:
            self.count(pe, Cnt.RD_TOO_MANY)
            self.nak(qp, number, 0x61)
            return
        if length and not self.key_ok(pe, key):
            self.nak(qp, number, 0x62)
            return
        packets = 1 if size else max(1, -(-length // qp.ctx.mtu))
        qp.msn += 1
        qp.expected += packets
        held = Held(number, op, va, length, packets, qp.msn, key)
        given = [int.from_bytes(frame[66 + size * i : 66 + size * (i + 1)], "big") for i in range(count)]
        given += [0] * (4 - count)
        held.operands = (given[0], given[1], given[2], given[3])
        qp.table.append(held)
        if not size:
            self.count(pe, Cnt.READ)
        self.at(self.lat(), lambda: self.serve(qp))

    def serve(self, qp: Qp) -> None:
        """The oldest request of the table begins when the WRITEs before it have their responses.

        Atomics execute whatever is unanswered before them; the answer waits for its turn.
        """
        self.unit(qp.pe)
        if not qp.table:
            return
        held = qp.table[0]
        if held.old >= 0:
            self.answer(qp, held)
        if held.op != "read" or held.begun or any(u < held.number for u in qp.unlanded):
            return
        held.begun = True
        self.at(1, lambda: self.begin(qp, held))

    def begin(self, qp: Qp, held: Held) -> None:
        """A READ reads its bytes."""
        if not held.length:
            self.respond(qp, held, 0, b"", False)
        for k in range(held.packets if held.length else 0):
            at = k * qp.ctx.mtu
            self.gathers(
                qp.pe, held.va + at, min(qp.ctx.mtu, held.length - at),
                lambda data, bad, k=k: self.respond(qp, held, k, data, bad),
            )  # fmt: skip

    def respond(self, qp: Qp, held: Held, k: int, payload: bytes, bad: bool) -> None:
        """READ response k."""
        if bad:
            self.count(qp.pe, Cnt.BUS_GATHER)
        if held not in qp.table:
            return
        if payload and not self.key_ok(qp.pe, held.key):
            qp.table.remove(held)
            self.nak(qp, held.number + k, 0x62)
            return
        if bad:
            qp.table.remove(held)
            self.nak(qp, held.number + k, 0x63)
            return
        opcode = read_opcode(k, held.packets)
        ext = b"" if opcode == 0x0E else struct.pack(">I", 0x1F << 24 | held.msn)
        psn = (qp.ctx.rq_psn + held.number + k) & 0xFFFFFF
        self.ack_before(qp, held)
        frame = self.frame(qp, opcode, psn, False, ext, payload)
        self.transmit(qp, frame, self.now + self.rng.randrange(1, 9))
        if k == held.packets - 1:
            self.over(qp)

    def ack_before(self, qp: Qp, held: Held) -> None:
        """A pending ACK of something before a data response leaves before it, or not at all."""
        if qp.pending_ack is not None and qp.pending_ack[0] < held.number:
            if self.rng.random() < 0.5:
                self.try_ack(qp)
            qp.pending_ack = None

    def over(self, qp: Qp) -> None:
        """The oldest request of the table has all its responses on their way."""
        qp.table.popleft()
        self.try_ack(qp)
        self.serve(qp)

    def nak(self, qp: Qp, number: int, syndrome: int, msn: int = -1) -> None:
        """A NAK becomes due, unless an earlier one is; the QP goes to ERR."""
        due = qp.pending_ack
        if qp.state == "ERR" and (due is None or due[1] == 0x1F or due[0] < number):
            return
        qp.pending_ack = number, syndrome, qp.msn if msn < 0 else msn
        # nothing behind it is answered
        qp.table = deque(h for h in qp.table if h.number < number)
        self.pump(qp.pe)
        if qp.state != "ERR":
            self.asyncs[qp.pe].append((AsyncKind.QP_ERR, qp.qpn))
        qp.state = "ERR"
        qp.stopped = True
        self.at(self.lat(), lambda: self.try_ack(qp))
        self.at(self.lat(), lambda: self.complete(qp))

    def try_ack(self, qp: Qp) -> None:
        """The pending ACK or NAK leaves when nothing before it is under way."""
        if qp.pending_ack is None:
            return
        number, syndrome, msn = qp.pending_ack
        if any(u <= number for u in qp.unlanded) or any(h.number <= number for h in qp.table):
            return
        qp.pending_ack = None
        if syndrome != 0x1F:
            self.count(qp.pe, {0x61: Cnt.NAK_INV_TX, 0x62: Cnt.NAK_ACC_TX, 0x63: Cnt.NAK_OP_TX}[syndrome])
        psn = (qp.ctx.rq_psn + number) & 0xFFFFFF
        self.transmit(
            qp, self.frame(qp, 0x11, psn, False, struct.pack(">I", syndrome << 24 | msn), b""), self.now + 1
        )

    # ------------------------------------------------------------------ payload
    def pump(self, pe: int) -> None:
        """The next ID-3 burst, in order of arrival; one on the locked word waits."""
        if self.scattering[pe] or not self.scatter[pe]:
            return
        self.scattering[pe] = True
        self.at(self.rng.randrange(1, 4), lambda: self.scatter_one(pe))

    def waits(self, b: Burst) -> bool:
        """A WRITE keeps behind the atomics of its QP before it."""
        return any(h.op != "read" and h.old < 0 and h.number < b.number for h in b.qp.table)

    def scatter_one(self, pe: int) -> None:
        """Write a burst, then its response."""
        b, word = self.scatter[pe][0], self.lock[pe]
        locked = word is not None and b.addr < word + 8 and word < b.addr + len(b.data)
        if locked or self.waits(b):
            self.scattering[pe] = False
            return
        self.scatter[pe].popleft()
        self.bursts_begun[pe] += 1
        self.burst_written(pe, 3, b.addr, len(b.data))

        def commit() -> None:
            if not b.fault:
                self.memory[pe].view(b.addr, len(b.data))[:] = np.frombuffer(b.data, np.uint8)
            self.emit(Kind.COMMIT, pe, id=3, addr=b.addr, flags=3 * b.fault)
            self.at(self.in_order(pe, 3, "b"), answer)

        def answer() -> None:
            self.emit(Kind.AXI_B, pe, id=3, flags=3 * b.fault)
            self.bursts_over[pe] += 1
            if b.fault:
                self.count(pe, Cnt.BUS_INBOUND)
            if b.last:
                b.qp.unlanded.remove(b.number)
                if b.fault:
                    self.nak(b.qp, b.number, 0x63)
                else:
                    self.try_ack(b.qp)
                    self.serve(b.qp)

        self.at(self.in_order(pe, 3, "c"), commit)
        self.scattering[pe] = False
        self.pump(pe)

    # ------------------------------------------------------------------ atomic unit
    def unit(self, pe: int) -> None:
        """One of the atomics that are the oldest of their table, with all WRITEs before them in memory."""
        if self.unit_busy[pe]:
            return
        ready = []
        for q in self.qps:
            first = next((h for h in q.table if h.op != "read" and h.old < 0), None) if q.pe == pe else None
            if first is None or first.begun or any(u < first.number for u in q.unlanded):
                continue
            if self.key_ok(pe, first.key) or first is q.table[0]:
                ready.append((q, first))
        if not ready:
            return
        qp, held = self.rng.choice(ready)
        if not self.key_ok(pe, held.key):
            qp.table.remove(held)
            self.nak(qp, held.number, 0x62)
            self.at(1, lambda: self.unit(pe))
            return
        held.begun = self.unit_busy[pe] = True
        self.lock[pe] = held.va & ~7
        begun = self.bursts_begun[pe]
        self.at(1, lambda: self.when_quiet(qp, held, begun))

    def when_quiet(self, qp: Qp, held: Held, begun: int) -> None:
        """Every inbound burst that began before the lock has its response: read."""
        pe = qp.pe
        if self.bursts_over[pe] < begun:
            self.at(1, lambda: self.when_quiet(qp, held, begun))
            return
        asked = self.now + 1
        bad = not self.memory[pe].mapped(held.va, held.length)

        def read() -> None:
            self.emit(Kind.AXI_R, pe, id=2, addr=held.va, len=1, aux0=asked, flags=3 * bad)
            if bad:
                self.count(pe, Cnt.BUS_ATOMIC)
                self.unlock(pe)
                qp.table.remove(held)
                self.nak(qp, held.number, 0x63, held.msn - 1)
                return
            old = int.from_bytes(self.memory[pe].view(held.va, held.length).tobytes(), "little")
            new = new_value(held.op, old, held.operands)
            if new is None:
                self.executed(qp, held, old)
            else:
                self.at(self.lat(), lambda: self.write_word(qp, held, old, new))

        self.at(self.lat(), read)

    def write_word(self, qp: Qp, held: Held, old: int, new: int) -> None:
        """The new value, its response, then the answer."""
        pe, row = qp.pe, new.to_bytes(held.length, "little")
        lanes = (bytes(held.va & 63) + row).ljust(64, b"\x5a")
        self.burst_written(pe, 2, held.va, held.length, lanes)

        def commit() -> None:
            self.memory[pe].view(held.va, held.length)[:] = np.frombuffer(row, np.uint8)
            self.emit(Kind.COMMIT, pe, id=2, addr=held.va)
            self.at(self.lat(), over)

        def over() -> None:
            self.emit(Kind.AXI_B, pe, id=2)
            self.executed(qp, held, old)

        self.at(self.lat(), commit)

    def unlock(self, pe: int) -> None:
        """The atomic unit is free again."""
        self.lock[pe] = None
        self.unit_busy[pe] = False
        self.pump(pe)
        self.at(1, lambda: self.unit(pe))

    def executed(self, qp: Qp, held: Held, old: int) -> None:
        """An atomic is over: its answer leaves when it is the oldest of its table."""
        held.old = old
        self.count(qp.pe, Cnt.ATOMIC)
        self.unlock(qp.pe)
        self.serve(qp)

    def answer(self, qp: Qp, held: Held) -> None:
        """ATOMIC ACK."""
        if held not in qp.table:
            return
        ext = struct.pack(">IQ", 0x1F << 24 | held.msn, held.old)
        psn = (qp.ctx.rq_psn + held.number) & 0xFFFFFF
        self.ack_before(qp, held)
        self.transmit(qp, self.frame(qp, 0x12, psn, False, ext, b""), self.now + self.lat())
        self.over(qp)

    # ------------------------------------------------------------------ events
    def cqe_answered(self, cq: object, code: int) -> None:
        """The write response of a CQE: an arm fires."""
        assert isinstance(cq, Cq)
        self.emit(Kind.AXI_B, cq.pe, id=4)
        if cq.armed and (cq.armed == 2 or code):
            cq.armed = 0
            raised = not self.pending[cq.pe]
            self.pending[cq.pe] |= 1 << cq.cqn
            if raised:
                self.at(3, lambda: self.emit(Kind.EVENT, cq.pe, flags=1))
                self.at(200 + self.lat(), lambda: self.clear(cq.pe))

    def clear(self, pe: int) -> None:
        """The host reads the events and clears them."""
        seen = self.pending[pe]
        self.emit(Kind.MMIO_R, pe, addr=Csr.CQ_EVENT, data=seen)
        self.mmio(pe, Csr.CQ_EVENT, seen)
        self.pending[pe] = 0
        self.emit(Kind.EVENT, pe, flags=0)
