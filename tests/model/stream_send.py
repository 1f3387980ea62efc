"""Synthetic record streams, receive queues: SEND and WRITE with immediate at their responder.

A program posts receive WQEs as their CQEs come. Unless `Knobs.rnr`, the requesters know how many are posted
and begin no message without one, since the synthetic link has no loss recovery.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from pymodel.nic.context import MrContext
from pymodel.nic.judge import Kind, Region
from pymodel.nic.params import CMD_REG, CMD_STAGE, Cnt, Csr
from tests.model.judge_stream import Burst, Sim
from tests.model.stream_base import Cq, Qp, Wqe

#: MR of the buffers; those of the base have lower numbers
BUFFERS = 255
_TAKERS = ("send", "send_imm", "write_imm")


@dataclass
class Buffer:
    """One receive WQE."""

    index: int
    addr: int
    size: int
    fault: str
    posted: int
    got: int = 0
    last: int = -1
    code: int = -1  # of its CQE, -1: its message is not whole
    op: int = 0
    imm: int = 0
    with_imm: int = 0
    se: int = 0


class SendSim(Sim):
    """A run with receive queues on every QP."""

    def _build(self) -> None:
        super()._build()
        k, rng = self.k, self.rng
        size = self.slot() + 64
        self.posted: dict[int, deque[Buffer]] = {}  # without CQE, by id of QP
        self.taken: dict[int, Buffer | None] = {}
        self.heads: dict[int, int] = {}
        self.seen: dict[int, int] = {}  # CQEs of receives that the program saw
        self.promised: dict[int, int] = {}  # receive WQEs that messages under way will take
        self.rcq: dict[int, Cq] = {}
        self.peers = {id(q): self.by_qpn[q.peer, q.ctx.peer_qpn] for q in self.qps}
        self.bad_beats: set[tuple[int, int]] = set()
        place = [0x9000_0000_0000 + pe * (1 << 40) for pe in range(k.n_pes)]
        for pe in range(k.n_pes):
            n = sum(q.pe == pe for q in self.qps)
            region = Region(place[pe], -(-n * k.rq_depth * size // 4096) * 4096, 0)
            self._map(pe, region)
            self.mrs[pe][BUFFERS] = MrContext(place[pe], region.size, ltag=rng.randrange(256))
        for number, qp in enumerate(self.qps):
            start = (1 << 17) - rng.randrange(1, 40) if k.near_wrap else 0
            base = 0xA000_0000_0000 + number * (1 << 24) + 16 * rng.randrange(4)
            self._map(qp.pe, Region(base, 16 * k.rq_depth, 0x5A))
            cq = qp.cq
            if k.own_cq:
                used = {c.cqn for c in self.cqs if c.pe == qp.pe}
                cqn = next(n for n in range(64) if n not in used)
                at = 0xB000_0000_0000 + number * (1 << 24)
                self._map(qp.pe, Region(at, 4096 * 16, 0xFF))
                ctx = replace(qp.cq.ctx, base=at, depth=k.recv_cq or k.cq_depth, start_index=0)
                cq = Cq(qp.pe, cqn, ctx)
                self.cqs.append(cq)
                self.configs[qp.pe].cqs[cqn] = ctx  # type: ignore[index]
            qp.ctx = replace(qp.ctx, rq_base=base, rq_depth=k.rq_depth, rq_start_index=start, recv_cq=cq.cqn)
            self.configs[qp.pe].qps[qp.qpn] = qp.ctx  # type: ignore[index]
            for (pe, peer, n), fault in k.recv_faults.items():
                at = base + 16 * ((start + n) % max(k.rq_depth, 1))
                if (pe, peer) == (qp.pe, qp.peer) and fault == "slot":
                    self.errors.append((pe, at, 16, "r"))
                    self.bad_beats.add((pe, at & ~63))
            self.rcq[id(qp)] = cq
            self.posted[id(qp)], self.taken[id(qp)] = deque(), None
            self.heads[id(qp)], self.promised[id(qp)], self.seen[id(qp)] = start, 0, 0
            self.at(rng.randrange(1, 30), lambda qp=qp: self.supply(qp))
        self.size, self.place = size, place
        self.completing: dict[int, deque[Buffer]] = {id(q): deque() for q in self.qps}
        self.refused: dict[int, bytes] = {}
        self.total: dict[int, int] = {}  # bytes of the WRITE that is received

    def _map(self, pe: int, region: Region) -> None:
        self.configs[pe].regions.append(region)  # type: ignore[attr-defined]
        self.memory[pe].parts.append((region.base, np.full(region.size, region.fill, np.uint8)))

    def invalidate(self, pe: int) -> None:
        """The host invalidates the region of the buffers."""
        self.mmio(pe, CMD_STAGE + 16, 0)
        self.mmio(pe, CMD_REG, 1 | 3 << 4 | BUFFERS << 8)
        self.gone.add((pe, BUFFERS))

    # ------------------------------------------------------------------ program
    def supply(self, qp: Qp) -> None:
        """Post what fits, ring once; later reads of the slots."""
        k, rng, posted = self.k, self.rng, self.posted[id(qp)]
        room = k.rq_depth - (self.heads[id(qp)] - qp.ctx.rq_start_index - self.seen[id(qp)])
        burst = rng.randrange(1, room + 1) if room else 0
        # what is posted in ERR comes back at once: some of it is enough
        if not burst or (qp.state == "ERR" and rng.random() < 0.7):
            return
        number, mr = self.qps.index(qp), self.mrs[qp.pe][BUFFERS]
        mine = sum(q.pe == qp.pe for q in self.qps[:number])
        new = []
        for _ in range(burst):
            head = self.heads[id(qp)]
            slot = head % k.rq_depth
            fault = k.recv_faults.get((qp.pe, qp.peer, head - qp.ctx.rq_start_index), "")
            size, lkey = self.size - 64, BUFFERS << 8 | mr.ltag
            addr = self.place[qp.pe] + (mine * k.rq_depth + slot) * self.size + rng.randrange(64)
            if fault == "short":
                size = 3
            elif fault == "lkey":
                lkey ^= 1
            if (qp.pe, qp.ctx.rq_base + 16 * slot & ~63) in self.bad_beats:
                fault = "slot"
            self.store(qp.pe, qp.ctx.rq_base + 16 * slot, struct.pack("<IIQ", size, lkey, addr))
            new.append(Buffer(head, addr, size, fault, self.now))
            self.heads[id(qp)] = head + 1
        word = self.heads[id(qp)] & 0x1FFFF | qp.qpn << 17
        self.mmio(qp.pe, 0x08000008 + 4096 * qp.qpn, word)
        posted.extend(new)
        if qp.state == "ERR":
            self.at(self.lat(), lambda: self.complete(qp))
        else:
            since = self.now
            for b in new:
                self.at(self.in_order(qp.pe, 0, "r"), lambda b=b: self.read_slot(qp, b, since))
        self.at(self.lat(), lambda: self.send(self.peers[id(qp)]))

    def read_slot(self, qp: Qp, b: Buffer, since: int) -> None:
        """The NIC reads the beat of a slot."""
        addr = qp.ctx.rq_base + 16 * (b.index % self.k.rq_depth) & ~63
        bad = (qp.pe, addr) in self.bad_beats
        self.emit(Kind.AXI_R, qp.pe, id=0, addr=addr, len=1, aux0=since, flags=2 * bad)
        if bad:
            self.count(qp.pe, Cnt.BUS_FETCH)

    # ------------------------------------------------------------------ requester
    def may_start(self, qp: Qp, w: Wqe) -> bool:
        """A message waits for a receive WQE at the peer."""
        if not super().may_start(qp, w) or (self.k.rnr and w.index != qp.live[0].index):
            return False
        peer = self.peers[id(qp)]
        if w.op not in _TAKERS or self.k.rnr:
            return True
        free = self.heads[id(peer)] - peer.ctx.rq_start_index - self.promised[id(peer)]
        # at most 16 may wait for their CQEs
        if free <= 0 or self.promised[id(peer)] - self.seen[id(peer)] >= 16:
            return False
        self.promised[id(peer)] += 1
        return True

    def acked(self, qp: Qp, psn: int, syndrome: int) -> None:
        """RNR NAK: the packet goes out again after its time."""
        if syndrome >> 5 != 1:
            super().acked(qp, psn, syndrome)
            return
        self.count(qp.pe, Cnt.RNR_RX)
        again = self.refused[id(self.peers[id(qp)])]

        def resend() -> None:
            self.count(qp.pe, Cnt.RETRY)
            self.transmit(qp, again, self.now)

        self.at(64 * 64 + self.lat(), resend)

    # ------------------------------------------------------------------ responder
    def request(self, pe: int, qp: Qp, frame: bytes) -> None:
        """SEND, WRITE with immediate; all others as before."""
        opcode, number = frame[42], qp.expected
        if opcode in (6, 10, 11):
            self.total[id(qp)] = int.from_bytes(frame[66:70], "big")
        imm = opcode in (3, 5, 9, 11)
        if opcode > 5 and not imm:
            super().request(pe, qp, frame)
            return
        ready = self.posted[id(qp)]
        b = self.taken[id(qp)]
        if b is None:
            b = next((x for x in ready if x.code < 0), None)
            if b is None or sum(x.code == 0 for x in ready) >= 16:
                assert self.k.rnr
                self.refused[id(qp)] = frame
                self.count(pe, Cnt.RNR_TX)
                psn = (qp.ctx.rq_psn + number) & 0xFFFFFF
                answer = self.frame(qp, 0x11, psn, False, struct.pack(">I", 0x21 << 24 | qp.msn), b"")
                self.transmit(qp, answer, self.now + self.lat())
                return
        ext = (16 if opcode == 11 else 0) + 4 * imm
        payload = frame[54 + ext : len(frame) - 4 - (frame[43] >> 4 & 3)]
        if opcode == 11:
            qp.va, qp.key, _ = struct.unpack(">QII", frame[54:70])
        if opcode > 5:
            va = qp.va
            b.got = self.total[id(qp)]
        else:
            va = b.addr + b.got
            code, syndrome = 0, 0
            if b.fault == "slot":
                code, syndrome = 0xAF, 0x63
            elif b.got + len(payload) > b.size:
                code, syndrome = 0xC0, 0x61
            elif payload and (b.fault == "lkey" or (pe, BUFFERS) in self.gone):
                code, syndrome = 0xD6, 0x63
            if code:
                b.code = code
                self.nak(qp, number, syndrome)
                return
            b.got += len(payload)
        self.taken[id(qp)] = b
        qp.va += len(payload) if opcode > 5 else 0
        qp.expected += 1
        if opcode in (2, 3, 4, 5, 9, 11):
            qp.msn += 1
            b.last, b.code, b.op = number, 0, int(opcode > 5)
            b.imm, b.with_imm = int.from_bytes(frame[54 + ext - 4 : 54 + ext], "big") if imm else 0, int(imm)
            b.se = frame[43] >> 7
            self.taken[id(qp)] = None
            self.completing[id(qp)].append(b)
        if payload:
            qp.unlanded.append(number)
            pieces = self.pieces_of(va, len(payload))
            for start, size in pieces:
                data, last = payload[start : start + size], (start, size) == pieces[-1]
                self.scatter[pe].append(Burst(qp, number, va + start, data, False, last))
            self.pump(pe)
        if frame[50] >> 7:
            qp.pending_ack = number, 0x1F, qp.msn
            self.at(self.lat(), lambda: self.try_ack(qp))
        self.at(self.lat(), lambda: self.complete(qp))

    def try_ack(self, qp: Qp) -> None:
        """Data that landed may complete a message."""
        super().try_ack(qp)
        self.at(1, lambda: self.complete(qp))

    # ------------------------------------------------------------------ completion
    def complete(self, qp: Qp) -> None:
        """CQEs of both queues."""
        super().complete(qp)
        cq, posted = self.rcq[id(qp)], self.posted[id(qp)]
        if not posted or cq.busy or (cq.prod - cq.ci >= cq.ctx.depth and not cq.ctx.ignore_overrun):
            return
        b = posted[0]
        whole = b.code == 0 and b in self.completing[id(qp)]
        if whole and any(u <= b.last for u in qp.unlanded):
            return
        if not whole and (qp.state != "ERR" or self.scattering[qp.pe]):
            return
        posted.popleft()
        code = b.code if b.code >= 0 else 0xFF
        cq.busy = True
        self.at(self.in_order(qp.pe, 4, "w"), lambda: self.write_recv(qp, b, code, cq.prod, self.now))

    def write_recv(self, qp: Qp, b: Buffer, code: int, number: int, ts: int) -> None:
        """The CQE of a receive WQE."""
        cq, v1, good = self.rcq[id(qp)], qp.ctx.version == 1, not code
        ignore = cq.ctx.ignore_overrun
        wqe_id = b.index << 3
        phase = b.index & (0x1FFF if v1 else 0x1FFFF) if ignore else number
        first = code | (qp.qpn & 0x7FFF) << 8 | (good and b.se) << 24 | 1 << 26 | (good and b.with_imm) << 27
        body = struct.pack(
            "<IIIIQII", first, b.imm if good else 0, b.got if good else 0, 0,
            ts | ((wqe_id & 0xFFFF) << 48 if v1 else 0),
            (b.op if good else 0) | (0 if v1 else (wqe_id & 0xFFFFF) << 12),
            (phase // cq.ctx.depth & 1) << 31,
        )  # fmt: skip
        addr = cq.ctx.base + (0 if ignore else number % cq.ctx.depth * cq.ctx.stride)
        row = body.ljust(cq.ctx.stride, b"\0")
        self.burst_written(qp.pe, 4, addr, len(row), (bytes(addr & 63) + row).ljust(64, b"\0"))
        self.count(qp.pe, Cnt.CQE)
        if code == 0xFF:
            self.count(qp.pe, Cnt.FLUSH)
        cq.prod += 1
        cq.busy = False
        for other in self.qps:
            if other.pe == qp.pe:
                self.at(1, lambda other=other: self.complete(other))

        def commit() -> None:
            self.memory[qp.pe].view(addr, len(row))[:] = np.frombuffer(row, np.uint8)
            self.emit(Kind.COMMIT, qp.pe, id=4, addr=addr)
            fires = code or (good and self.solicits(b))
            self.at(self.in_order(qp.pe, 4, "b"), lambda: self.cqe_answered(cq, int(fires)))
            self.at(self.lat(), lambda: self.see_recv(qp, cq))

        self.at(self.in_order(qp.pe, 4, "c"), commit)

    def see_recv(self, qp: Qp, cq: Cq) -> None:
        """The program saw the CQE of a receive: CQ doorbell, another buffer."""
        cq.seen += 1
        self.seen[id(qp)] += 1
        self.at(self.lat(), lambda: self.send(self.peers[id(qp)]))
        self.at(self.lat() * self.k.slow_cq, lambda: self.ring_cq(qp, cq))
        self.at(self.lat() * (40 if self.k.rnr else 1), lambda: self.supply(qp))

    def ring_cq(self, qp: Qp, cq: Cq) -> None:
        """The CQ doorbell for what was seen by now."""
        cq.rung = cq.ci = cq.seen
        if not cq.ctx.ignore_overrun:
            sta = self.rng.choice((2, 3)) if self.rng.random() < self.k.arm else 0
            sta = 3 if self.rng.random() < self.k.arm_recv else sta
            self.mmio(qp.pe, 0x08000010 + 4096 * qp.qpn, (cq.seen & 0x7FFFFF) | cq.cqn << 23 | sta << 39)
            if sta and not self.mask[qp.pe]:
                self.mask[qp.pe] = 1
                self.mmio(qp.pe, Csr.EVENT_MASK, 1)
            if sta:
                cq.armed, cq.armed_at = sta, self.now
        for other in self.qps:
            if other.pe == qp.pe:
                self.at(self.lat(), lambda other=other: self.complete(other))

    def solicits(self, b: Buffer) -> bool:
        """Whether a good CQE fires an arm for solicited ones."""
        return bool(b.se)
