"""Synthetic record streams for the judge's own tests: a small scalar simulator of NICs that do WRITEs.

Written for readability and apart from the judge (own packing of WQE, CQE, frames; shared: contexts and the
parameter table). It emits what the monitors of a legal run would emit, with random latencies and order;
`Knobs.faults` adds illegal work on which NICs must answer with errors. Times in cycles.
"""

from __future__ import annotations

import functools
import heapq
import random
import struct
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pymodel.nic.context import CqContext, MrContext, QpContext
from pymodel.nic.judge import RECORD, Kind, PeConfig, Region
from pymodel.nic.params import AsyncKind, Cnt

M64 = (1 << 64) - 1


@dataclass
class Knobs:
    """What to generate. `faults`: {(pe, peer, WQE number counted from 0): fault name}."""

    seed: int = 1
    n_pes: int = 2
    qps: int = 2  # per ordered pair
    wqes: int = 40  # per QP
    sizes: tuple[int, int] = (0, 3000)
    depth: int = 16
    cq_depth: int = 16
    mtus: tuple[int, ...] = (1, 2, 3, 4, 5)
    versions: tuple[int, ...] = (1, 2)
    strides: tuple[int, ...] = (32, 64)
    silent: float = 0.0  # share of WQEs with ce = 0 (the last of a burst always asks)
    burst: int = 8  # most WQEs per doorbell
    near_wrap: bool = True
    dirty: bool = True
    pieces: bool = False  # WQEs are stored in pieces
    shared_cq: bool = False  # QPs of a PE to one peer share a CQ
    latency: int = 40
    one_way: bool = False  # only the lower PE of a pair posts
    lazy_cq: int = 1  # CQEs per CQ doorbell at the least
    faults: dict[tuple[int, int, int], str] = field(default_factory=dict)


class Memory:
    """Regions of one PE."""

    def __init__(self, regions: list[Region]) -> None:
        self.parts = [(r.base, np.full(r.size, r.fill, np.uint8)) for r in regions]

    def view(self, addr: int, length: int) -> np.ndarray:
        for base, data in self.parts:
            if base <= addr and addr + length <= base + data.size:
                return data[addr - base : addr - base + length]
        raise KeyError(f"{addr:#x}+{length}")

    def mapped(self, addr: int, length: int) -> bool:
        return any(base <= addr and addr + length <= base + data.size for base, data in self.parts)


@dataclass
class Wqe:
    """One posted WQE and how far it is."""

    index: int
    length: int
    laddr: int
    raddr: int
    rkey: int
    ce: bool
    posted: int
    error: int = 0
    nak: int = 0  # NAK code that the peer will answer with
    packets: int = 1
    first: int = -1  # number of its first packet; -1: not started
    acked: bool = False


class Qp:
    """Both roles of one QP and the program that drives it."""

    def __init__(self, sim: Sim, pe: int, peer: int, qpn: int, cq: Cq, ctx: QpContext) -> None:
        self.sim, self.pe, self.peer, self.qpn, self.cq, self.ctx = sim, pe, peer, qpn, cq, ctx
        self.remote: Qp | None = None
        self.src = self.dst = 0  # slots of max size for sources here and targets at the peer
        self.head = self.tail = ctx.sq_start_index  # program's view
        self.posted = 0
        self.start = ctx.sq_start_index
        self.live: deque[Wqe] = deque()  # announced, not completed
        self.unfetched: deque[Wqe] = deque()
        self.unsent: deque[Wqe] = deque()
        self.state = "RTS"
        self.flush_from = -1
        self.stopped = False
        self.psn = 0  # packets started
        self.expected = 0
        self.msn = 0
        self.pending_ack: tuple[int, int, int] | None = None  # number, syndrome, msn
        self.unlanded: list[int] = []
        self.ack_busy = False
        self.failed = False
        self.kicked = False


class Cq:
    """One CQ: producer, consumer as the NIC and as the program know it."""

    def __init__(self, pe: int, cqn: int, ctx: CqContext) -> None:
        self.pe, self.cqn, self.ctx = pe, cqn, ctx
        self.prod = self.ci = self.seen = self.rung = ctx.start_index
        self.qps: list[Qp] = []
        self.busy = False


class Sim:
    """Runs the whole workload; afterwards `records`, `side`, `configs`, `memory`, `counters` are there."""

    def __init__(self, knobs: Knobs) -> None:
        self.k = knobs
        self.rng = random.Random(knobs.seed)
        self.now = 100
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._seq = 0
        self._rows: list[tuple[int, ...]] = []
        self._side = bytearray()
        n = knobs.n_pes
        self.macs = [0x020000000000 + self.rng.getrandbits(24) * 256 + i for i in range(n)]
        self.ips = [0x0A000000 + self.rng.getrandbits(16) * 256 + i for i in range(n)]
        self.counters = [[0] * 64 for _ in range(n)]
        self.asyncs: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        self.link_free = [0] * n
        self.last_psn: dict[tuple[int, int, int], int] = {}  # (PE, QPN, WQE index) -> PSN of its last packet
        self.arrive: dict[tuple[int, int], int] = {}
        self.axi: dict[tuple[int, int, str], int] = {}
        self._build()

    # ------------------------------------------------------------------ set-up
    def _build(self) -> None:
        k, rng = self.k, self.rng
        self.qps: list[Qp] = []
        regions: list[list[Region]] = []
        self.mrs: list[dict[int, MrContext]] = []
        heap_bytes = 4096 * (1 + -(-2 * k.qps * (k.n_pes - 1) * k.depth * self._slot() // 4096))
        self.heaps = [(1 + pe) * (1 << 40) + rng.randrange(1 << 20) * 4096 for pe in range(k.n_pes)]
        self.mr_index = [rng.randrange(1, 255) for _ in range(k.n_pes)]
        for pe in range(k.n_pes):
            regions.append([Region(self.heaps[pe], heap_bytes, 0)])
            self.mrs.append(
                {self.mr_index[pe]: MrContext(self.heaps[pe], heap_bytes, ltag=rng.randrange(256),
                                              rtag=rng.randrange(256)),
                 0: MrContext(0x7000_0000_0000, 1 << 20, ltag=5, rtag=6)}  # no memory behind it
            )  # fmt: skip
        pairs = [(a, b, q) for a in range(k.n_pes) for b in range(k.n_pes) if a != b for q in range(k.qps)]
        free = {pe: rng.sample(range(2, 66), 64) for pe in range(k.n_pes)}
        cq_free = {pe: rng.sample(range(64), 64) for pe in range(k.n_pes)}
        qpns = {key: free[key[0]].pop() for key in pairs}
        psns = {key: (1 << 24) - rng.randrange(1, 60) if k.near_wrap else 0 for key in pairs}
        mtu = {tuple(sorted(key[:2])) + (key[2],): rng.choice(k.mtus) for key in pairs}
        place = [0x1000_0000 + pe * 0x10000000 for pe in range(k.n_pes)]
        used = [0] * k.n_pes
        cqs: dict[tuple[int, int, int], Cq] = {}
        self.cqs: list[Cq] = []
        for a, b, q in pairs:
            version = rng.choice(k.versions)
            start = (
                (rng.choice((1 << 13, 1 << 14, 1 << 17, 1 << 18)) - rng.randrange(1, 40))
                if k.near_wrap
                else 0
            )
            bits = 14 if version == 1 else 18
            cq = cqs.get((a, b, 0)) if k.shared_cq else None
            if cq is None:
                stride = rng.choice(k.strides)
                ctx = CqContext(place[a], k.cq_depth, stride, False, start)
                regions[a].append(Region(place[a], -(-k.cq_depth * stride // 4096) * 4096, 0xFF))
                place[a] += 0x100000
                cq = cqs[a, b, q] = Cq(a, cq_free[a].pop(), ctx)
                self.cqs.append(cq)
            sq_bytes = k.depth * 128
            regions[a].append(
                Region(place[a], -(-sq_bytes // 4096) * 4096, rng.randrange(256) if k.dirty else 0)
            )
            context = QpContext(
                peer_qpn=qpns[b, a, q], peer_mac=self.macs[b], peer_ip=self.ips[b], sq_base=place[a],
                sq_depth=k.depth, send_cq=cq.cqn, recv_cq=cq.cqn, version=version,
                mtu_code=mtu[tuple(sorted((a, b))) + (q,)], sq_psn=psns[a, b, q], rq_psn=psns[b, a, q],
                sq_start_index=start & (1 << bits) - 1, tc=rng.randrange(256), ttl=rng.randrange(1, 256),
            )  # fmt: skip
            place[a] += 0x1000000
            qp = Qp(self, a, b, qpns[a, b, q], cq, context)
            cq.qps.append(qp)
            self.qps.append(qp)
        for pe in range(k.n_pes):
            regions[pe].append(Region(place[pe], 4096, 0))
        self.cells = place
        self.memory = [Memory(r) for r in regions]
        by_key = dict(zip(pairs, self.qps, strict=True))
        for (a, b, q), qp in by_key.items():
            qp.remote = by_key[b, a, q]
            qp.src = self.heaps[a] + used[a]
            used[a] += k.depth * self._slot()
        for qp in self.qps:
            qp.dst = self.heaps[qp.peer] + used[qp.peer]
            used[qp.peer] += k.depth * self._slot()
        self.configs = [
            PeConfig(
                self.macs[pe], self.ips[pe], regions[pe], {q.qpn: q.ctx for q in self.qps if q.pe == pe},
                {c.cqn: c.ctx for c in self.cqs if c.pe == pe}, self.mrs[pe],
            )
            for pe in range(k.n_pes)
        ]  # fmt: skip
        self.by_qpn = {(q.pe, q.qpn): q for q in self.qps}

    def _slot(self) -> int:
        return self.k.sizes[1] + 64 & ~63 or 64

    # ------------------------------------------------------------------ records and events
    def emit(self, kind: Kind, pe: int, raw: bytes = b"", **f: int) -> None:
        off = len(self._side)
        self._side += raw
        length = f.get("len", len(raw))
        self._rows.append(
            (self.now, kind, pe, f.get("id", 0), f.get("flags", 0), length, f.get("addr", 0),
             f.get("data", 0), off, f.get("aux0", 0), f.get("aux1", 0), 0)
        )  # fmt: skip

    def at(self, delay: int, fn: Callable[[], None]) -> None:
        self._seq += 1
        heapq.heappush(self._events, (self.now + max(1, delay), self._seq, fn))

    def lat(self) -> int:
        return self.rng.randrange(2, 2 + self.k.latency)

    def in_order(self, pe: int, ident: int, what: str) -> int:
        """Delay that keeps order on an ID: never before the one before it."""
        key = pe, ident, what
        due = max(self.now + self.lat(), self.axi.get(key, 0) + 1)
        self.axi[key] = due
        return due - self.now

    def count(self, pe: int, counter: int) -> None:
        self.counters[pe][counter] += 1

    def run(self) -> Sim:
        for qp in self.qps:
            if qp.pe < qp.peer or not self.k.one_way:
                self.at(self.lat(), lambda qp=qp: self.program(qp))
        self.run_on()
        self.records = np.array(self._rows, RECORD)
        self.side = np.frombuffer(bytearray(bytes(self._side) + bytes(256)), np.uint8)
        return self

    def run_on(self) -> None:
        """Serve events until none is left."""
        while self._events:
            self.now, _, fn = heapq.heappop(self._events)
            fn()

    # ------------------------------------------------------------------ program
    def store(self, pe: int, addr: int, data: bytes) -> None:
        self.memory[pe].view(addr, len(data))[:] = np.frombuffer(data, np.uint8)
        self.emit(Kind.STORE, pe, data, addr=addr)

    def mmio(self, pe: int, addr: int, data: int, strobe: int = 0xFF) -> None:
        self.emit(Kind.MMIO_W, pe, addr=addr, data=data, flags=strobe)

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
        cell = self.cells[qp.pe] + 8 * self.qps.index(qp)
        self.store(qp.pe, cell, struct.pack("<I", qp.head & 0xFFFFFFFF))
        bits = 17 if qp.ctx.version == 1 else 21
        word = (qp.head << 3 & (1 << bits) - 1) | qp.qpn << bits
        self.mmio(qp.pe, 0x08000000 + 4096 * qp.qpn, word)
        for w in new:
            w.posted = self.now
        if qp.state == "ERR":
            qp.live.extend(new)
            self.at(self.lat(), lambda: self.complete(qp))
            return
        qp.live.extend(new)
        qp.unfetched.extend(new)
        self.at(self.lat(), lambda: self.fetch(qp))

    def post(self, qp: Qp, last: bool) -> Wqe:
        k, rng = self.k, self.rng
        lo, hi = k.sizes
        length = lo if lo == hi else min(hi, lo + int(2 ** rng.uniform(0, max(1, hi - lo).bit_length())) - 1)
        slot = qp.posted % k.depth
        shift = rng.randrange(0, 64) if hi > 64 and length < hi - 64 else 0
        laddr = qp.src + slot * self._slot() + shift
        shift = rng.randrange(0, 64) if hi > 64 and length < hi - 64 else 0
        raddr = qp.dst + slot * self._slot() + shift
        index, lkey_mr, peer_mr = qp.head, self.mr_index[qp.pe], self.mr_index[qp.peer]
        lkey = lkey_mr << 8 | self.mrs[qp.pe][lkey_mr].ltag
        rkey = peer_mr << 8 | self.mrs[qp.peer][peer_mr].rtag
        ce = last or rng.random() >= k.silent
        w = Wqe(index, length, laddr, raddr, rkey, ce, self.now, packets=max(1, -(-length // qp.ctx.mtu)))
        if length:
            self.store(qp.pe, laddr, rng.randbytes(length))
        opcode, ds, r_len, with_imm, in_line, wqe_id = 1, 2, length, 0, 0, index << 3
        fault = k.faults.get((qp.pe, qp.peer, qp.posted), "")
        match fault:
            case "wqe_id":
                wqe_id += 8
                w.error = 0xAB
            case "opcode":
                opcode, w.error = 77, 0xAB
            case "length":
                r_len, w.error = length + 1, 0x9F
            case "lkey":
                lkey ^= 1
                w.error = 0xA7
            case "gather":
                # an MR without memory behind it
                laddr, lkey, w.error = 0x7000_0000_0000, 5, 0xB2
                w.laddr = laddr
                w.packets = 0
            case "rkey":
                rkey ^= 1
                w.rkey, w.nak = rkey, 2
            case "target":
                w.raddr, w.rkey, w.nak = 0x7000_0000_0000, 6, 3
                raddr, rkey = w.raddr, w.rkey
        if w.error in (0xAB, 0x9F, 0xA7):
            w.packets = 0
        if w.error and fault == "gather" and not length:
            raise AssertionError("a gather fault needs a length")
        junk = rng.getrandbits(32) if k.dirty else 0
        lo_word = opcode | with_imm << 8 | (junk & 3) << 9 | ds << 11 | length << 32
        hi_word = junk | (junk & 1) << 32 | ce << 33 | in_line << 34
        if qp.ctx.version == 1:
            lo_word |= (wqe_id & 0xFFFF) << 16
        else:
            lo_word |= (junk & 0xFFFF) << 16
            hi_word |= (wqe_id & 0xFFFFF) << 44
        raw = struct.pack("<QQIIQIIQ", lo_word, hi_word, r_len, rkey, raddr, length, lkey, laddr)
        raw += rng.randbytes(80) if k.dirty else bytes(80)
        addr = qp.ctx.sq_base + (index % k.depth) * 128
        if k.pieces:
            # in the order of segments, as a device program that builds the WQE in place
            cuts = sorted(rng.sample((16, 32, 48, 64, 100), rng.randrange(0, 4)))
            for a, b in zip([0, *cuts], [*cuts, 128], strict=True):
                if a < 48 or rng.random() < 0.5:
                    self.store(qp.pe, addr + a, raw[a:b])
        else:
            self.store(qp.pe, addr, raw)
        qp.head += 1
        qp.posted += 1
        return w

    # ------------------------------------------------------------------ requester
    def fetch(self, qp: Qp) -> None:
        if not qp.unfetched or qp.state != "RTS":
            return
        k, first = self.k, qp.unfetched[0].index
        addr = qp.ctx.sq_base + first % k.depth * 128
        n = min(len(qp.unfetched), 8, k.depth - first % k.depth, (4096 - addr % 4096) // 128)
        got = [qp.unfetched.popleft() for _ in range(n)]
        since = self.now
        delay = self.in_order(qp.pe, 0, "r")

        def done() -> None:
            self.emit(Kind.AXI_R, qp.pe, id=0, addr=addr, len=2 * n, aux0=since)
            for w in got:
                if qp.stopped:
                    break
                w.first = qp.psn
                if w.error:
                    qp.stopped = True
                    if w.error == 0xB2:
                        self.gather_error(qp, w)
                    break
                qp.psn += w.packets
                qp.unsent.append(w)
            self.send(qp)
            self.complete(qp)

        self.at(delay, done)
        if qp.unfetched:
            self.at(self.lat(), lambda: self.fetch(qp))

    def gather_error(self, qp: Qp, w: Wqe) -> None:
        self.count(qp.pe, Cnt.BUS_GATHER)
        self.emit(Kind.AXI_R, qp.pe, id=1, addr=w.laddr & ~63, len=1, flags=2, aux0=self.now)

    def send(self, qp: Qp) -> None:
        """Start every packet of what is unsent: gather, then the link in order."""
        while qp.unsent:
            w = qp.unsent.popleft()
            mtu = qp.ctx.mtu
            for i in range(w.packets):
                size = min(mtu, w.length - i * mtu)
                self.packet(qp, w, i, size)

    def packet(self, qp: Qp, w: Wqe, i: int, size: int) -> None:
        va = w.laddr + i * qp.ctx.mtu
        since = self.now
        addr, end = va & ~63, (va + size + 63) & ~63
        while size and addr < end:
            stop = min(end, (addr | 4095) + 1)

            def read(addr: int = addr, stop: int = stop) -> None:
                self.emit(Kind.AXI_R, qp.pe, id=1, addr=addr, len=(stop - addr) // 64, aux0=since)

            self.at(self.in_order(qp.pe, 1, "r"), read)
            addr = stop
        ready = max(self.axi.get((qp.pe, 1, "r"), 0), self.now) + self.lat()
        payload = self.memory[qp.pe].view(va, size).tobytes() if size else b""
        only, last = w.packets == 1, i == w.packets - 1
        opcode = 0x0A if only else 0x06 if i == 0 else 0x08 if last else 0x07
        ack = last or (i + 1) % 16 == 0
        ext = struct.pack(">QII", w.raddr, w.rkey, w.length) if i == 0 else b""
        psn = (qp.ctx.sq_psn + w.first + i) & 0xFFFFFF
        frame = self.frame(qp, opcode, psn, ack, ext, payload)
        if last:
            self.last_psn[qp.pe, qp.qpn, w.index] = psn
        self.transmit(qp, frame, ready)

    def frame(self, qp: Qp, opcode: int, psn: int, ack: bool, ext: bytes, payload: bytes) -> bytes:
        pad = -len(payload) % 4
        body = ext + payload + bytes(pad)
        length = 44 + len(body)
        ip = bytearray(struct.pack(">BBHHHBBHII", 0x45, qp.ctx.tc, length, 0, 0x4000, qp.ctx.ttl, 17, 0,
                                   self.ips[qp.pe], self.ips[qp.peer]))  # fmt: skip
        total = sum(struct.unpack(">10H", ip))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        ip[10:12] = struct.pack(">H", total ^ 0xFFFF)
        udp = struct.pack(">HHHH", 0xC000 | qp.qpn, 4791, length - 20, 0)
        bth = struct.pack(">BBHII", opcode, 0x40 | pad << 4, 0xFFFF, qp.ctx.peer_qpn, psn | ack << 31)
        ones = bytearray(ip)
        ones[1] = ones[8] = ones[10] = ones[11] = 255
        crc = zlib.crc32(b"\xff" * 8 + ones + udp[:6] + b"\xff\xff" + bth[:4] + b"\xff" + bth[5:] + body)
        eth = self.macs[qp.peer].to_bytes(6, "big") + self.macs[qp.pe].to_bytes(6, "big") + b"\x08\x00"
        return eth + ip + udp + bth + body + struct.pack("<I", crc)

    def transmit(self, qp: Qp, frame: bytes, ready: int) -> None:
        """Queue for the link of the PE: first come, first served, one beat a cycle."""
        start = max(ready, self.link_free[qp.pe])
        end = start + -(-len(frame) // 64)
        self.link_free[qp.pe] = end
        peer = qp.peer

        def sent() -> None:
            self.emit(Kind.TXPKT, qp.pe, frame, aux0=start)
            self.count(qp.pe, Cnt.TX_RESPONSE if frame[42] == 0x11 else Cnt.TX_REQUEST)
            due = max(self.now + self.lat(), self.arrive.get((qp.pe, peer), 0) + 1)
            self.arrive[qp.pe, peer] = due
            self.at(due - self.now, lambda: self.receive(peer, frame))

        self.at(end - self.now, sent)

    def complete(self, qp: Qp) -> None:
        """CQEs in posting order as far as the QP's WQEs are done and the CQ has room."""
        cq = qp.cq
        while qp.live:
            w = qp.live[0]
            code = 0
            if qp.state == "ERR":
                code = 0xFF
            elif w.error and (w.index == self.oldest(qp)):
                code = w.error
            elif not w.acked:
                return
            if not code and not w.ce:
                qp.live.popleft()
                continue
            if cq.prod - cq.ci >= cq.ctx.depth or cq.busy:
                return
            qp.live.popleft()
            cq.busy = True
            number = cq.prod
            ts = self.now
            delay = self.in_order(qp.pe, 4, "w")
            if code and qp.state == "RTS":
                qp.state = "ERR"
            self.at(delay, functools.partial(self.write_cqe, qp, w, code, number, ts))
            return

    def oldest(self, qp: Qp) -> int:
        return qp.live[0].index if qp.live else -1

    def write_cqe(self, qp: Qp, w: Wqe, code: int, number: int, ts: int) -> None:
        cq, k = qp.cq, self.k
        wqe_id = w.index << 3
        opcode = (
            0 if code == 0xFF else 77 if k.faults.get((qp.pe, qp.peer, w.index - qp.start)) == "opcode" else 1
        )
        owner = (number // cq.ctx.depth) & 1
        v1 = qp.ctx.version == 1
        body = struct.pack(
            "<IIIIQII", code | (qp.qpn & 0x7FFF) << 8, 0, 0 if code else w.length, 0,
            ts | ((wqe_id & 0xFFFF) << 48 if v1 else 0), opcode | (0 if v1 else (wqe_id & 0xFFFFF) << 12),
            owner << 31,
        )  # fmt: skip
        addr = cq.ctx.base + number % cq.ctx.depth * cq.ctx.stride
        row = body.ljust(cq.ctx.stride, b"\0")
        lane = addr & 63
        beat = (bytes(lane) + row).ljust(64, b"\0")
        self.emit(Kind.AXI_W, qp.pe, beat, id=4, addr=addr & ~63, len=1, aux0=((1 << len(row)) - 1) << lane,
                  aux1=len(row))  # fmt: skip
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
            self.at(self.in_order(qp.pe, 4, "b"), lambda: self.emit(Kind.AXI_B, qp.pe, id=4))
            self.at(self.lat(), lambda: self.poll(qp, w))

        self.at(self.in_order(qp.pe, 4, "c"), commit)

    def poll(self, qp: Qp, w: Wqe) -> None:
        """The program saw a CQE: retire up to its WQE, ring the CQ, go on."""
        cq = qp.cq
        qp.tail = max(qp.tail, w.index + 1)
        cq.seen += 1
        idle = all(not q.live for q in cq.qps)
        if cq.seen - cq.rung >= self.k.lazy_cq or idle or cq.prod - cq.ci >= cq.ctx.depth:
            cq.rung = cq.seen
            cell = self.cells[qp.pe] + 2048 + 8 * self.cqs.index(cq)
            self.store(qp.pe, cell, struct.pack("<I", cq.seen & 0xFFFFFFFF))
            sta = self.rng.randrange(2)
            self.mmio(qp.pe, 0x08000010 + 4096 * qp.qpn, (cq.seen & 0x7FFFFF) | cq.cqn << 23 | sta << 39)
            cq.ci = cq.seen
            for other in cq.qps:
                self.at(self.lat(), lambda other=other: self.complete(other))
        self.at(self.lat(), lambda: self.program(qp))

    # ------------------------------------------------------------------ responder
    def receive(self, pe: int, frame: bytes) -> None:
        self.emit(Kind.RXPKT, pe, frame, aux0=self.now - len(frame) // 64)
        qp = self.by_qpn[pe, int.from_bytes(frame[47:50], "big")]
        if qp.state == "ERR":
            self.count(pe, Cnt.DROP_QP)
            return
        self.count(pe, Cnt.RX_PACKET)
        psn = int.from_bytes(frame[51:54], "big")
        if frame[42] == 0x11:
            self.acked(qp, psn, frame[54])
            return
        opcode, ext = frame[42], 16 if frame[42] in (6, 10) else 0
        number = qp.expected
        assert psn == (qp.ctx.rq_psn + number) & 0xFFFFFF, "the synthetic link loses nothing"
        payload = frame[54 + ext : len(frame) - 4 - (frame[43] >> 4 & 3)]
        if ext:
            qp.va, key, _ = struct.unpack(">QII", frame[54:70])
            mr = self.mrs[pe].get(key >> 8)
            if payload and (mr is None or mr.rtag != key & 255):
                self.nak(qp, number, 0x62)
                return
        va = qp.va
        qp.va += len(payload)
        qp.expected += 1
        last = opcode in (8, 10)
        if payload and not self.memory[pe].mapped(va, len(payload)):
            qp.unlanded.append(number)
            qp.failed = True
            self.write(qp, number, va, payload, True)
            return
        if last:
            qp.msn += 1
        if payload:
            qp.unlanded.append(number)
            self.write(qp, number, va, payload, False)
        if frame[50] >> 7:
            qp.pending_ack = number, 0x1F, qp.msn
            self.at(self.lat(), lambda: self.try_ack(qp))

    def nak(self, qp: Qp, number: int, syndrome: int) -> None:
        if qp.state == "ERR":
            return
        qp.pending_ack = number, syndrome, qp.msn
        self.asyncs[qp.pe].append((AsyncKind.QP_ERR, qp.qpn))
        qp.state = "ERR"
        qp.stopped = True
        self.count(qp.pe, {0x61: Cnt.NAK_INV_TX, 0x62: Cnt.NAK_ACC_TX, 0x63: Cnt.NAK_OP_TX}[syndrome])
        self.at(self.lat(), lambda: self.try_ack(qp))
        self.at(self.lat(), lambda: self.complete(qp))

    def write(self, qp: Qp, number: int, va: int, payload: bytes, fault: bool) -> None:
        pe, done = qp.pe, 0
        pieces: list[tuple[int, int]] = []
        while done < len(payload):
            size = min(len(payload) - done, 4096 - (va + done) % 4096)
            pieces.append((done, size))
            done += size
        for i, (start, size) in enumerate(pieces):
            addr = va + start

            def data(
                addr: int = addr, start: int = start, size: int = size, last: bool = i == len(pieces) - 1
            ) -> None:
                lane = addr & 63
                strobe = ((1 << min(64 - lane, size)) - 1) << lane
                self.emit(
                    Kind.AXI_W,
                    pe,
                    id=3,
                    addr=addr & ~63,
                    len=(lane + size + 63) // 64,
                    aux0=strobe,
                    aux1=size,
                )

                def answer() -> None:
                    if not fault:
                        self.memory[pe].view(addr, size)[:] = np.frombuffer(
                            payload[start : start + size], np.uint8
                        )
                    self.emit(Kind.COMMIT, pe, id=3, addr=addr)
                    self.emit(Kind.AXI_B, pe, id=3, flags=2 if fault else 0)
                    if fault:
                        self.count(pe, Cnt.BUS_INBOUND)
                    if last:
                        qp.unlanded.remove(number)
                        if fault:
                            self.nak(qp, number, 0x63)
                        else:
                            self.try_ack(qp)

                self.at(self.in_order(pe, 3, "b"), answer)

            self.at(self.in_order(pe, 3, "w"), data)

    def try_ack(self, qp: Qp) -> None:
        if qp.pending_ack is None:
            return
        number, syndrome, msn = qp.pending_ack
        if any(u <= number for u in qp.unlanded):
            return
        qp.pending_ack = None
        psn = (qp.ctx.rq_psn + number) & 0xFFFFFF
        self.transmit(
            qp, self.frame(qp, 0x11, psn, False, struct.pack(">I", syndrome << 24 | msn), b""), self.now + 1
        )

    def acked(self, qp: Qp, psn: int, syndrome: int) -> None:
        oldest = next((w.first for w in qp.live if not w.acked and w.first >= 0), qp.psn)
        number = oldest + ((psn - qp.ctx.sq_psn - oldest + (1 << 23)) % (1 << 24)) - (1 << 23)
        for w in qp.live:
            if w.error or w.first < 0:
                break
            if w.first + w.packets <= number + (syndrome == 0x1F):
                w.acked = True
            elif syndrome != 0x1F and w.first <= number:
                w.error = {1: 0xA4, 2: 0xA5, 3: 0xA6}[syndrome & 31]
                qp.stopped = True
                self.count(qp.pe, {1: Cnt.NAK_INV_RX, 2: Cnt.NAK_ACC_RX, 3: Cnt.NAK_OP_RX}[syndrome & 31])
        self.complete(qp)
