"""Synthetic record streams, base: what to generate, the tables of the run, records, events and frames.

Written for readability and apart from the judge (own packing of WQE, CQE, frames; shared: contexts and the
parameter table). Times in cycles.
"""

from __future__ import annotations

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

M64 = (1 << 64) - 1
#: an MR without memory behind it: base, index, lkey tag, rkey tag
NOWHERE = 0x7000_0000_0000
#: name -> (msg_opcode, BTH opcode of the request, bytes, operands, msg_len, ds_data_num)
OPS = {
    "write": (1, 0x06, 0, 0, 0, 2), "read": (2, 0x0C, 0, 0, 0, 2),
    "send": (0, 0x00, 0, 0, 0, 1), "send_imm": (0, 0x00, 0, 0, 0, 1), "write_imm": (1, 0x06, 0, 0, 0, 2),
    "cas64": (26, 0x13, 8, 2, 16, 3), "fa64": (27, 0x14, 8, 2, 16, 3), "mcas64": (31, 0xC0, 8, 4, 32, 4),
    "mfa64": (32, 0xC1, 8, 2, 16, 3), "mcas32": (33, 0xC2, 4, 4, 16, 3), "mfa32": (34, 0xC3, 4, 2, 8, 3),
}  # fmt: skip
#: operations whose packets carry payload and are completed by an ACK
PAYLOAD = ("write", "send", "send_imm", "write_imm")
ATOMIC_NAMES = tuple(name for name in OPS if name not in (*PAYLOAD, "read"))
BY_BTH = {bth: name for name, (_, bth, *_) in OPS.items() if name not in PAYLOAD}


@dataclass
class Knobs:
    """What to generate. `faults`: {(pe, peer, WQE number counted from 0): fault name}.

    A fault name may begin with the operation that the WQE must be: "read:rkey".
    """

    seed: int = 1
    n_pes: int = 2
    qps: int = 2  # per ordered pair
    wqes: int = 40  # per QP
    sizes: tuple[int, int] = (0, 3000)
    ops: tuple[str, ...] = ("write",)
    depth: int = 16
    cq_depth: int = 16
    mtus: tuple[int, ...] = (1, 2, 3, 4, 5)
    versions: tuple[int, ...] = (1, 2)
    strides: tuple[int, ...] = (32, 64)
    silent: float = 0.0  # share of WQEs with ce = 0 (the last of a burst always asks)
    fence: float = 0.0  # share of fenced WQEs
    burst: int = 8  # most WQEs per doorbell
    near_wrap: bool = True
    dirty: bool = True
    pieces: bool = False  # WQEs are stored in pieces
    shared_cq: bool = False  # QPs of a PE to one peer share a CQ
    ignore: bool = False  # ignore_overrun CQs
    arm: float = 0.0  # share of CQ doorbells that arm
    latency: int = 40
    one_way: bool = False  # only the lower PE of a pair posts
    lazy_cq: int = 1  # CQEs per CQ doorbell at the least
    max_rd: int = 16
    max_dest: int = 16
    words: int = 2  # words per PE that atomics of all QPs go to
    word_writes: float = 0.0  # share of WRITEs and READs that go to these words
    invalidate: int = 0  # cycle at which PE 1 invalidates its heap's region; 0: never
    same_place: float = 0.0  # share of READs whose source is what the last WRITE of the QP wrote
    faults: dict[tuple[int, int, int], str] = field(default_factory=dict)
    # receive queues (tests/model/stream_send.py)
    rq_depth: int = 16
    own_cq: bool = False  # receives complete to a CQ of their own
    recv_cq: int = 0  # its depth, 0: cq_depth
    rnr: bool = False  # SENDs do not wait for receive WQEs; one WQE under way, one packet a message
    arm_recv: float = 0.0  # share of CQ doorbells of receives that arm for solicited ones
    slow_cq: int = 1  # latencies until the CQ doorbell of a receive
    #: {(PE, peer, receive WQE counted from 0): fault name}
    recv_faults: dict[tuple[int, int, int], str] = field(default_factory=dict)


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
    op: str
    length: int
    laddr: int
    raddr: int
    rkey: int
    ce: bool
    posted: int
    operands: tuple[int, int, int, int] = (0, 0, 0, 0)
    fence: bool = False
    error: int = 0
    opcode: int = 1  # msg_opcode as posted
    packets: int = 1
    first: int = -1  # number of its first packet; -1: not started
    got: int = 0  # READ, atomic: responses that arrived
    landed: int = 0  # and are in memory
    acked: bool = False  # complete
    fault: str = ""
    imm: int = 0
    se: int = 0


class Qp:
    """Both roles of one QP and the program that drives it."""

    def __init__(self, pe: int, peer: int, qpn: int, cq: Cq, ctx: QpContext) -> None:
        self.pe, self.peer, self.qpn, self.cq, self.ctx = pe, peer, qpn, cq, ctx
        self.src = self.dst = 0  # slots of max size for sources here and targets at the peer
        self.head = self.tail = ctx.sq_start_index  # program's view
        self.posted = 0
        self.start = ctx.sq_start_index
        self.last_target: tuple[int, int] | None = None
        self.live: deque[Wqe] = deque()  # announced, not retired
        self.unfetched: deque[Wqe] = deque()
        self.unsent: deque[Wqe] = deque()
        self.reads: list[Wqe] = []  # READs and atomics outstanding
        self.state = "RTS"
        self.stopped = False
        self.psn = 0  # packets started
        # responder
        self.expected = 0
        self.msn = 0
        self.va = self.key = 0
        self.table: deque[Held] = deque()
        self.pending_ack: tuple[int, int, int] | None = None  # number, syndrome, msn
        self.unlanded: list[int] = []


@dataclass(eq=False)
class Held:
    """A READ or atomic in the responder's table."""

    number: int
    op: str
    va: int
    length: int
    packets: int
    msn: int
    key: int
    operands: tuple[int, int, int, int] = (0, 0, 0, 0)
    begun: bool = False
    old: int = -1  # atomics: original value, once executed


class Cq:
    """One CQ: producer, consumer as the NIC and as the program know it."""

    def __init__(self, pe: int, cqn: int, ctx: CqContext) -> None:
        self.pe, self.cqn, self.ctx = pe, cqn, ctx
        self.prod = self.ci = self.seen = self.rung = ctx.start_index
        self.qps: list[Qp] = []
        self.busy = False
        self.armed = 0
        self.armed_at = 0


class Stream:
    """Tables and records of a run."""

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
        self.errors: list[tuple[int, int, int, str]] = []  # (PE, address, bytes, "r" or "w") that fail
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
        heap_bytes = 4096 * (2 + -(-2 * k.qps * (k.n_pes - 1) * k.depth * self.slot() // 4096))
        self.heaps = [(1 + pe) * (1 << 40) + rng.randrange(1 << 20) * 4096 for pe in range(k.n_pes)]
        #: the words of each PE
        self.words = [[heap + heap_bytes - 4096 + 8 * i for i in range(k.words)] for heap in self.heaps]
        self.mr_index = [rng.randrange(1, 255) for _ in range(k.n_pes)]
        for pe in range(k.n_pes):
            regions.append([Region(self.heaps[pe], heap_bytes, 0)])
            self.mrs.append(
                {self.mr_index[pe]: MrContext(self.heaps[pe], heap_bytes, ltag=rng.randrange(256),
                                              rtag=rng.randrange(256)),
                 0: MrContext(NOWHERE, 1 << 20, ltag=5, rtag=6)}
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
                ctx = CqContext(place[a], k.cq_depth, stride, k.ignore, start)
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
                max_rd_atomic=k.max_rd, max_dest_rd_atomic=k.max_dest,
            )  # fmt: skip
            place[a] += 0x1000000
            qp = Qp(a, b, qpns[a, b, q], cq, context)
            cq.qps.append(qp)
            self.qps.append(qp)
        for pe in range(k.n_pes):
            regions[pe].append(Region(place[pe], 4096, 0))
        self.cells = place
        self.memory = [Memory(r) for r in regions]
        for qp in self.qps:
            qp.src = self.heaps[qp.pe] + used[qp.pe]
            used[qp.pe] += k.depth * self.slot()
        for qp in self.qps:
            qp.dst = self.heaps[qp.peer] + used[qp.peer]
            used[qp.peer] += k.depth * self.slot()
        self.configs = [
            PeConfig(
                self.macs[pe], self.ips[pe], regions[pe], {q.qpn: q.ctx for q in self.qps if q.pe == pe},
                {c.cqn: c.ctx for c in self.cqs if c.pe == pe}, self.mrs[pe],
            )
            for pe in range(k.n_pes)
        ]  # fmt: skip
        self.by_qpn = {(q.pe, q.qpn): q for q in self.qps}

    def slot(self) -> int:
        """Bytes of a source or target slot."""
        return self.k.sizes[1] + 64 & ~63 or 64

    # ------------------------------------------------------------------ records and events
    def emit(self, kind: Kind, pe: int, raw: bytes = b"", **f: int) -> None:
        """Append a record with its bytes."""
        off = len(self._side)
        self._side += raw
        length = f.get("len", len(raw))
        self._rows.append(
            (self.now, kind, pe, f.get("id", 0), f.get("flags", 0), length, f.get("addr", 0),
             f.get("data", 0), off, f.get("aux0", 0), f.get("aux1", 0), 0)
        )  # fmt: skip

    def at(self, delay: int, fn: Callable[[], None]) -> None:
        """Run fn later, one cycle at the least."""
        self._seq += 1
        heapq.heappush(self._events, (self.now + max(1, delay), self._seq, fn))

    def lat(self) -> int:
        """A random latency."""
        return self.rng.randrange(2, 2 + self.k.latency)

    def in_order(self, pe: int, ident: int, what: str) -> int:
        """Delay that keeps order on an ID: never before the one before it."""
        key = pe, ident, what
        due = max(self.now + self.lat(), self.axi.get(key, 0) + 1)
        self.axi[key] = due
        return due - self.now

    def count(self, pe: int, counter: int) -> None:
        """One up."""
        self.counters[pe][counter] += 1

    def run_on(self) -> None:
        """Serve events until none is left."""
        while self._events:
            self.now, _, fn = heapq.heappop(self._events)
            fn()

    def freeze(self) -> None:
        """Bring `records` and `side` up to date with what was emitted."""
        self.records = np.array(self._rows, RECORD)
        self.side = np.frombuffer(bytearray(bytes(self._side) + bytes(256)), np.uint8)

    # ------------------------------------------------------------------ memory port
    def store(self, pe: int, addr: int, data: bytes) -> None:
        """A store by the program."""
        self.memory[pe].view(addr, len(data))[:] = np.frombuffer(data, np.uint8)
        self.emit(Kind.STORE, pe, data, addr=addr)

    def mmio(self, pe: int, addr: int, data: int, strobe: int = 0xFF) -> None:
        """A register write."""
        self.emit(Kind.MMIO_W, pe, addr=addr, data=data, flags=strobe)

    def burst_written(self, pe: int, ident: int, addr: int, size: int, raw: bytes = b"") -> None:
        """The W record of contiguous bytes."""
        lane = addr & 63
        strobe = ((1 << min(64 - lane, size)) - 1) << lane
        self.emit(
            Kind.AXI_W, pe, raw, id=ident, addr=addr & ~63 if ident != 2 else addr,
            len=(lane + size + 63) // 64, aux0=strobe, aux1=size,
        )  # fmt: skip

    @staticmethod
    def pieces_of(va: int, size: int) -> list[tuple[int, int]]:
        """(offset, bytes) of the bursts of a range: none crosses 4 KiB."""
        out, done = [], 0
        while done < size:
            n = min(size - done, 4096 - (va + done) % 4096)
            out.append((done, n))
            done += n
        return out

    def gathers(
        self, pe: int, va: int, size: int, done: Callable[[bytes, bool], None], since: int | None = None
    ) -> None:
        """Read a range in bursts on ID 1; done(bytes as they were sampled, whether it failed)."""
        addr, end = va & ~63, (va + size + 63) & ~63
        asked, got = self.now if since is None else since, bytearray()
        bad = not self.memory[pe].mapped(va, size)
        while addr < end:
            stop = min(end, (addr | 4095) + 1)

            def read(addr: int = addr, stop: int = stop) -> None:
                self.emit(Kind.AXI_R, pe, id=1, addr=addr, len=(stop - addr) // 64, aux0=asked, flags=3 * bad)
                low, high = max(addr, va), min(stop, va + size)
                if not bad:
                    got.extend(self.memory[pe].view(low, high - low).tobytes())
                if stop == end:
                    done(bytes(got), bad)

            self.at(self.in_order(pe, 1, "r"), read)
            addr = stop

    # ------------------------------------------------------------------ link
    def frame(
        self, qp: Qp, opcode: int, psn: int, ack: bool, ext: bytes, payload: bytes, se: int = 0
    ) -> bytes:
        """A whole frame that a QP sends."""
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
        flags = se << 7 | 0x40 | pad << 4
        bth = struct.pack(">BBHII", opcode, flags, 0xFFFF, qp.ctx.peer_qpn, psn | ack << 31)
        ones = bytearray(ip)
        ones[1] = ones[8] = ones[10] = ones[11] = 255
        crc = zlib.crc32(b"\xff" * 8 + ones + udp[:6] + b"\xff\xff" + bth[:4] + b"\xff" + bth[5:] + body)
        eth = self.macs[qp.peer].to_bytes(6, "big") + self.macs[qp.pe].to_bytes(6, "big") + b"\x08\x00"
        return eth + ip + udp + bth + body + struct.pack("<I", crc)
