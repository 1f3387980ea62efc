"""Synthetic record streams, requester: the program that posts, fetch, sending, responses, completion."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import numpy as np

from pymodel.nic.judge import Kind
from pymodel.nic.params import Cnt
from tests.model.stream_base import ATOMIC_NAMES, NOWHERE, OPS, PAYLOAD, Qp, Stream, Wqe

#: errors that a WQE has before any packet of it is sent
_AT_ONCE = (0xAB, 0x9F, 0xA7, 0xAC)
#: cycles between an arm or a CQE's response and what they change at the output
_EVENT_LATENCY = 3


class Requester(Stream):
    """What posts WQEs and what a NIC does with them."""

    def transmit(self, qp: Qp, frame: bytes, ready: int) -> None:
        """Queue for the link of the PE; the responder's module has it."""
        raise NotImplementedError

    # ------------------------------------------------------------------ program
    def program(self, qp: Qp) -> None:
        """Post a burst when there is room, ring once."""
        k, rng = self.k, self.rng
        room = k.depth - (qp.head - qp.tail)
        burst = min(room, rng.randrange(1, k.burst + 1), k.wqes - qp.posted)
        if burst <= 0:
            return
        new = [self.post(qp, last=i == burst - 1) for i in range(burst)]
        self.ring(qp, new)
        if qp.posted < k.wqes:
            self.at(self.lat(), lambda: self.program(qp))

    def ring(self, qp: Qp, new: list[Wqe]) -> None:
        """Head cell and doorbell for the WQEs that were posted."""
        cell = self.cells[qp.pe] + 8 * self.qps.index(qp)
        self.store(qp.pe, cell, struct.pack("<I", qp.head & 0xFFFFFFFF))
        bits = 17 if qp.ctx.version == 1 else 21
        word = (qp.head << 3 & (1 << bits) - 1) | qp.qpn << bits
        self.mmio(qp.pe, 0x08000000 + 4096 * qp.qpn, word)
        for w in new:
            w.posted = self.now
        qp.live.extend(new)
        if qp.state == "ERR":
            self.at(self.lat(), lambda: self.complete(qp))
            return
        qp.unfetched.extend(new)
        self.at(self.lat(), lambda: self.fetch(qp))

    def _place(self, qp: Qp, op: str) -> tuple[int, int, int, int]:
        """(length, local address, remote address, whether it goes to a word)."""
        k, rng = self.k, self.rng
        slot, words = qp.posted % k.depth, self.words[qp.peer]
        laddr = qp.src + slot * self.slot()
        if op in ATOMIC_NAMES:
            size = OPS[op][2]
            raddr = rng.choice(words) if words else qp.dst + slot * self.slot() & ~7
            return size, laddr + rng.randrange(0, 64 - size), raddr + rng.randrange(0, 8, size), 1
        if words and rng.random() < k.word_writes:
            start = rng.randrange(0, 8 * len(words))
            length = rng.randrange(0, min(12, 8 * len(words) - start) + 1)
            return length, laddr + rng.randrange(0, 48), words[0] + start, 1
        if op == "read" and qp.last_target and rng.random() < k.same_place:
            return qp.last_target[1], laddr, qp.last_target[0], 0
        lo, hi = k.sizes
        length = lo if lo == hi else min(hi, lo + int(2 ** rng.uniform(0, max(1, hi - lo).bit_length())) - 1)
        wide = hi > 64 and length < hi - 64
        laddr += rng.randrange(0, 64) if wide else 0
        raddr = qp.dst + slot * self.slot() + (rng.randrange(0, 64) if wide else 0)
        return length, laddr, raddr, 0

    def _operands(self, qp: Qp, op: str) -> tuple[int, int, int, int]:
        """Random ones that often meet: small numbers, corner values, masks with holes."""
        rng, size = self.rng, OPS[op][2]
        top = (1 << 8 * size) - 1
        corner = [0, 1, 2, 3, top, top >> 1, 1 << 8 * size - 1]
        values = [rng.choice(corner) if rng.random() < 0.7 else rng.getrandbits(8 * size) for _ in range(4)]
        if op in ("mcas64", "mcas32") and rng.random() < 0.5:
            values[3] = rng.choice((0, 0xFF, 0xFF00))
        return values[0], values[1], values[2], values[3]

    def post(self, qp: Qp, last: bool) -> Wqe:
        """Store one WQE into its slot, and its source."""
        k, rng = self.k, self.rng
        fault = k.faults.get((qp.pe, qp.peer, qp.posted), "")
        op = rng.choice(k.ops)
        if ":" in fault:
            op, fault = fault.split(":")
        length, laddr, raddr, on_word = self._place(qp, op)
        if fault and not length:
            length = 64
        index, lkey_mr, peer_mr = qp.head, self.mr_index[qp.pe], self.mr_index[qp.peer]
        lkey = lkey_mr << 8 | self.mrs[qp.pe][lkey_mr].ltag
        rkey = peer_mr << 8 | self.mrs[qp.peer][peer_mr].rtag
        ce = last or rng.random() >= k.silent
        opcode, _, _, count, msg_len, ds = OPS[op]
        atomic = op in ATOMIC_NAMES
        w = Wqe(index, op, length, laddr, raddr, rkey, ce, self.now, opcode=opcode, fault=fault)
        w.fence = rng.random() < k.fence
        w.packets = 1 if atomic else max(1, -(-length // qp.ctx.mtu))
        if op in PAYLOAD:
            if length:
                self.store(qp.pe, laddr, rng.randbytes(length))
            if not on_word and opcode:
                qp.last_target = (raddr, length)
        if atomic:
            w.operands = self._operands(qp, op)
        r_len, with_imm, in_line, wqe_id = length, 0, int(atomic), index << 3
        match fault:
            case "wqe_id":
                wqe_id += 8
                w.error = 0xAB
            case "opcode":
                opcode = w.opcode = 77
                w.error = 0xAB
            case "in_line":
                in_line ^= 1
                w.error = 0xAB
            case "ds":
                ds += 1
                w.error = 0xAB
            case "imm":
                with_imm, w.error = 1, 0xAB
            case "fetch":
                # in the first lap of the ring: a slot fails for good
                self.errors.append((qp.pe, qp.ctx.sq_base + index % k.depth * 128, 128, "r"))
                w.error = 0xAC
            case "length":
                r_len, w.error = length + 1, 0x9F
            case "lkey":
                lkey ^= 1
                w.error = 0xA7
            case "gather" | "sink":
                # no memory behind the local segment
                w.laddr = laddr = NOWHERE + 3
                lkey = 5
                if fault == "gather":
                    w.error, w.packets = 0xB2, 0
            case "rkey":
                w.rkey = rkey = rkey ^ 1
            case "target":
                w.raddr, w.rkey = NOWHERE, 6
                raddr, rkey = w.raddr, w.rkey
            case "misaligned":
                w.raddr = raddr = raddr + 1
        if w.error in _AT_ONCE:
            w.packets = 0
        junk = rng.getrandbits(32) if k.dirty else 0
        with_imm |= op.endswith("_imm")
        w.imm, w.se = junk, junk & 1
        fence = 1 if w.fence else rng.choice((0, 2, 3)) if k.dirty else 0
        lo_word = opcode | with_imm << 8 | (junk & 3) << 9 | ds << 11 | (msg_len or length) << 32
        hi_word = junk | (junk & 1) << 32 | ce << 33 | in_line << 34 | fence << 35
        if qp.ctx.version == 1:
            lo_word |= (wqe_id & 0xFFFF) << 16
        else:
            lo_word |= (junk & 0xFFFF) << 16
            hi_word |= (wqe_id & 0xFFFFF) << 44
        if opcode == 0:
            # the local segment alone
            rest = rng.getrandbits(64), rng.getrandbits(64)
            raw = struct.pack("<QQIIQQQ", lo_word, hi_word, r_len, lkey, laddr, *rest)
        else:
            raw = struct.pack("<QQIIQIIQ", lo_word, hi_word, r_len, rkey, raddr, length, lkey, laddr)
        raw += b"".join(x.to_bytes(OPS[op][2], "big") for x in w.operands[:count])
        raw += (rng.randbytes(80) if k.dirty else bytes(80))[: 128 - len(raw)]
        addr = qp.ctx.sq_base + (index % k.depth) * 128
        if k.pieces:
            # in the order of segments, as a device program that builds the WQE in place
            cuts = sorted(rng.sample((16, 32, 48, 64, 100), rng.randrange(0, 4)))
            for a, b in zip([0, *cuts], [*cuts, 128], strict=True):
                if a < 48 or atomic or rng.random() < 0.5:
                    self.store(qp.pe, addr + a, raw[a:b])
        else:
            self.store(qp.pe, addr, raw)
        qp.head += 1
        qp.posted += 1
        return w

    # ------------------------------------------------------------------ fetch and send
    def fetch(self, qp: Qp) -> None:
        """One burst of WQEs."""
        if not qp.unfetched or qp.state != "RTS":
            return
        k, first = self.k, qp.unfetched[0].index
        addr = qp.ctx.sq_base + first % k.depth * 128
        n = min(len(qp.unfetched), 8, k.depth - first % k.depth, (4096 - addr % 4096) // 128)
        got = [qp.unfetched.popleft() for _ in range(n)]
        since = self.now
        delay = self.in_order(qp.pe, 0, "r")

        def done() -> None:
            bad = any(w.error == 0xAC for w in got)
            self.emit(Kind.AXI_R, qp.pe, id=0, addr=addr, len=2 * n, aux0=since, flags=2 * bad)
            if bad:
                self.count(qp.pe, Cnt.BUS_FETCH)
            for w in got:
                if qp.stopped:
                    break
                if w.error:
                    qp.stopped = True
                    if w.error == 0xB2:
                        self.count(qp.pe, Cnt.BUS_GATHER)
                        self.emit(Kind.AXI_R, qp.pe, id=1, addr=w.laddr & ~63, len=1, flags=3, aux0=self.now)
                    break
                qp.unsent.append(w)
            self.send(qp)
            self.complete(qp)

        self.at(delay, done)
        if qp.unfetched:
            self.at(self.lat(), lambda: self.fetch(qp))

    def may_start(self, qp: Qp, w: Wqe) -> bool:
        """Fence, limits of READs and atomics and of WQEs in flight."""
        if w.index - qp.live[0].index >= 16 or (w.fence and qp.reads):
            return False
        return w.op in PAYLOAD or len(qp.reads) < qp.ctx.max_rd_atomic

    def send(self, qp: Qp) -> None:
        """Start what may start: every packet of it, gather, then the link in order."""
        while qp.unsent and qp.state == "RTS" and self.may_start(qp, qp.unsent[0]):
            w = qp.unsent.popleft()
            w.first = qp.psn
            qp.psn += w.packets
            psn = (qp.ctx.sq_psn + w.first) & 0xFFFFFF
            self.last_psn[qp.pe, qp.qpn, w.index] = (psn + w.packets - 1) & 0xFFFFFF
            if w.op in PAYLOAD:
                for i in range(w.packets):
                    self.packet(qp, w, i, min(qp.ctx.mtu, w.length - i * qp.ctx.mtu))
                continue
            qp.reads.append(w)
            ext = struct.pack(">QI", w.raddr, w.rkey)
            _, bth, size, count, _, _ = OPS[w.op]
            given = (w.operands[0], 0) if w.op == "fa64" else w.operands[:count]
            ext += b"".join(x.to_bytes(size, "big") for x in given) if size else struct.pack(">I", w.length)
            self.transmit(qp, self.frame(qp, bth, psn, True, ext, b""), self.now + self.lat())

    def packet(self, qp: Qp, w: Wqe, i: int, size: int) -> None:
        """One WRITE packet."""
        va = w.laddr + i * qp.ctx.mtu
        if size:
            self.gathers(qp.pe, va, size, lambda data, bad: None)
        ready = max(self.axi.get((qp.pe, 1, "r"), 0), self.now) + self.lat()
        payload = self.memory[qp.pe].view(va, size).tobytes() if size else b""
        only, last = w.packets == 1, i == w.packets - 1
        opcode = 0x0A if only else 0x06 if i == 0 else 0x08 if last else 0x07
        ack = last or (i + 1) % 16 == 0
        send, imm = w.op.startswith("send"), w.op.endswith("_imm")
        opcode += (last and imm) - 6 * send
        ext = struct.pack(">QII", w.raddr, w.rkey, w.length) if i == 0 and not send else b""
        ext += struct.pack(">I", w.imm) if last and imm else b""
        psn = (qp.ctx.sq_psn + w.first + i) & 0xFFFFFF
        se = w.se if last and (send or imm) else 0
        self.transmit(qp, self.frame(qp, opcode, psn, ack, ext, payload, se), ready)

    # ------------------------------------------------------------------ responses
    def fail(self, qp: Qp, w: Wqe, code: int) -> None:
        """A WQE fails on the way: nothing behind it starts."""
        w.error = code
        qp.stopped = True
        qp.unsent.clear()

    def acked(self, qp: Qp, psn: int, syndrome: int) -> None:
        """ACK or NAK: WRITEs up to it are done, READs and atomics are not by this."""
        oldest = next((w.first for w in qp.live if not w.acked and w.first >= 0), qp.psn)
        number = oldest + ((psn - qp.ctx.sq_psn - oldest + (1 << 23)) % (1 << 24)) - (1 << 23)
        self.writes_done(qp, number + (syndrome == 0x1F))
        if syndrome != 0x1F:
            for w in qp.live:
                if not w.acked and 0 <= w.first <= number < w.first + w.packets:
                    code = {1: 0xA4, 2: 0xA5, 3: 0xA6}[syndrome & 31]
                    if code == 0xA4 and w.op in ATOMIC_NAMES and w.raddr % OPS[w.op][2]:
                        code = 0x89
                    self.fail(qp, w, code)
            self.count(qp.pe, {1: Cnt.NAK_INV_RX, 2: Cnt.NAK_ACC_RX, 3: Cnt.NAK_OP_RX}[syndrome & 31])
        self.complete(qp)

    def writes_done(self, qp: Qp, number: int) -> None:
        """Everything below packet `number` is acknowledged."""
        for w in qp.live:
            if w.error or w.first < 0:
                break
            if w.op in PAYLOAD and w.first + w.packets <= number:
                w.acked = True

    def data(self, qp: Qp, frame: bytes) -> None:
        """READ response or ATOMIC ACK: its bytes go to memory."""
        w = next(w for w in qp.reads if w.got < w.packets)
        number = w.first + w.got
        psn = int.from_bytes(frame[51:54], "big")
        assert psn == (qp.ctx.sq_psn + number) & 0xFFFFFF, "the synthetic link loses nothing"
        opcode, pad = frame[42], frame[43] >> 4 & 3
        payload = frame[54 + (0 if opcode == 0x0E else 4) : len(frame) - 4 - pad]
        due = 0x12 if w.op != "read" else read_opcode(w.got, w.packets)
        size = 8 if opcode == 0x12 else min(qp.ctx.mtu, w.length - w.got * qp.ctx.mtu)
        if opcode != due or len(payload) != size:
            self.fail(qp, w, 0xAA if opcode != due else 0xA8)
            self.complete(qp)
            return
        if opcode == 0x12:
            payload = payload[::-1] if w.length == 8 else payload[4:]
        va = w.laddr + w.got * qp.ctx.mtu
        w.got += 1
        self.writes_done(qp, number)
        if payload:
            self.result(qp, w, va, payload)
        else:
            self.landed(qp, w)
        self.complete(qp)

    def result(self, qp: Qp, w: Wqe, va: int, payload: bytes) -> None:
        """Write result bytes on ID 5."""
        pe, bad = qp.pe, not self.memory[qp.pe].mapped(va, len(payload))
        pieces = self.pieces_of(va, len(payload))
        for start, size in pieces:

            def data(start: int = start, size: int = size) -> None:
                self.burst_written(pe, 5, va + start, size)

                def commit() -> None:
                    if not bad:
                        self.memory[pe].view(va + start, size)[:] = np.frombuffer(
                            payload[start : start + size], np.uint8
                        )
                    self.emit(Kind.COMMIT, pe, id=5, addr=va + start, flags=3 * bad)
                    self.at(self.in_order(pe, 5, "b"), answer)

                def answer() -> None:
                    self.emit(Kind.AXI_B, pe, id=5, flags=3 * bad)
                    if bad:
                        self.count(pe, Cnt.BUS_RESULT)
                        if not w.error:
                            self.fail(qp, w, 0xB3)
                            self.complete(qp)
                    elif (start, size) == pieces[-1]:
                        self.landed(qp, w)

                self.at(self.in_order(pe, 5, "c"), commit)

            self.at(self.in_order(pe, 5, "w"), data)

    def landed(self, qp: Qp, w: Wqe) -> None:
        """One more response of a WQE is in memory."""
        w.landed += 1
        if w.landed == w.packets:
            w.acked = True
            qp.reads.remove(w)
            self.complete(qp)
            self.send(qp)

    # ------------------------------------------------------------------ completion
    def complete(self, qp: Qp) -> None:
        """CQEs in posting order as far as the QP's WQEs are done and the CQ has room."""
        cq = qp.cq
        while qp.live:
            w = qp.live[0]
            code = 0
            if qp.state == "ERR":
                code = 0xFF
            elif w.error:
                code = w.error
            elif not w.acked:
                return
            if not code and not w.ce:
                qp.live.popleft()
                self.send(qp)
                continue
            if (cq.prod - cq.ci >= cq.ctx.depth and not cq.ctx.ignore_overrun) or cq.busy:
                return
            qp.live.popleft()
            cq.busy = True
            number = cq.prod
            ts = self.now
            delay = self.in_order(qp.pe, 4, "w")
            if code and qp.state == "RTS":
                qp.state = "ERR"
            self.at(delay, functools.partial(self.write_cqe, qp, w, code, number, ts))
            self.send(qp)
            return

    def write_cqe(self, qp: Qp, w: Wqe, code: int, number: int, ts: int) -> None:
        """The CQE of a WQE, its response, and the program that sees it."""
        cq, ignore, v1 = qp.cq, qp.cq.ctx.ignore_overrun, qp.ctx.version == 1
        wqe_id = w.index << 3
        blind = code in (0xFF, 0xAC)
        opcode = 0 if blind else w.opcode
        imm = (w.fault == "imm" or w.op.endswith("_imm")) and not blind
        phase = w.index & (0x1FFF if v1 else 0x1FFFF) if ignore else number
        body = struct.pack(
            "<IIIIQII", code | (qp.qpn & 0x7FFF) << 8 | imm << 27, 0, 0 if code else w.length, 0,
            ts | ((wqe_id & 0xFFFF) << 48 if v1 else 0), opcode | (0 if v1 else (wqe_id & 0xFFFFF) << 12),
            (phase // cq.ctx.depth & 1) << 31,
        )  # fmt: skip
        addr = cq.ctx.base + (0 if ignore else number % cq.ctx.depth * cq.ctx.stride)
        row = body.ljust(cq.ctx.stride, b"\0")
        lane = addr & 63
        self.burst_written(qp.pe, 4, addr, len(row), (bytes(lane) + row).ljust(64, b"\0"))
        self.count(qp.pe, Cnt.CQE)
        if code == 0xFF:
            self.count(qp.pe, Cnt.FLUSH)
        cq.prod += 1
        cq.busy = False
        for other in cq.qps:
            self.at(1, lambda other=other: self.complete(other))

        def commit() -> None:
            self.memory[qp.pe].view(addr, len(row))[:] = np.frombuffer(row, np.uint8)
            self.emit(Kind.COMMIT, qp.pe, id=4, addr=addr)
            self.at(self.in_order(qp.pe, 4, "b"), lambda: self.cqe_answered(cq, code))
            self.at(self.lat(), lambda: self.poll(qp, w))

        self.at(self.in_order(qp.pe, 4, "c"), commit)

    def cqe_answered(self, cq: object, code: int) -> None:
        """The write response of a CQE; the responder's module has the events."""
        raise NotImplementedError

    def poll(self, qp: Qp, w: Wqe) -> None:
        """The program saw a CQE: retire up to its WQE, ring the CQ, go on."""
        cq, rng = qp.cq, self.rng
        qp.tail = max(qp.tail, w.index + 1)
        cq.seen += 1
        idle = all(not q.live for q in cq.qps)
        full = cq.prod - cq.ci >= cq.ctx.depth
        if not cq.ctx.ignore_overrun and (cq.seen - cq.rung >= self.k.lazy_cq or idle or full):
            cq.rung = cq.seen
            cell = self.cells[qp.pe] + 2048 + 8 * self.cqs.index(cq)
            self.store(qp.pe, cell, struct.pack("<I", cq.seen & 0xFFFFFFFF))
            sta = rng.choice((2, 3)) if rng.random() < self.k.arm else rng.randrange(2)
            self.mmio(qp.pe, 0x08000010 + 4096 * qp.qpn, (cq.seen & 0x7FFFFF) | cq.cqn << 23 | sta << 39)
            if sta > 1:
                cq.armed, cq.armed_at = sta, self.now
            cq.ci = cq.seen
            for other in cq.qps:
                self.at(self.lat(), lambda other=other: self.complete(other))
        self.at(self.lat(), lambda: self.program(qp))

    # ------------------------------------------------------------------ help for the other side
    def each(self, pe: int, fn: Callable[[Qp], None]) -> None:
        """Do something for all QPs of a PE."""
        for qp in self.qps:
            if qp.pe == pe:
                fn(qp)


def read_opcode(k: int, packets: int) -> int:
    """BTH opcode of READ response k."""
    if packets == 1:
        return 0x10
    return 0x0D if k == 0 else 0x0F if k == packets - 1 else 0x0E
