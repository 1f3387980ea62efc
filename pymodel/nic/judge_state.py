"""State of the judge: golden memory of all PEs and the tables of QPs, WQEs, CQs and MRs as flat arrays.

The exact engine reads and writes single elements, the batch engine whole columns; both leave the same state.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pymodel.formats.arrays import I64, U8, U64, Bools, Rec
from pymodel.host.table import PePlan
from pymodel.nic import rules
from pymodel.nic.context import CqContext, MrContext, QpContext
from pymodel.nic.judge_frames import Flow, FlowRows
from pymodel.nic.params import DEFAULT_PARAMS, Params

#: address space reserved without memory behind it, so that sparse heaps cost what is touched
_MAP_NORESERVE = 0x4000
_PAGE = 4096


@dataclass(frozen=True)
class Region:
    """A mapped range of one PE's memory and the byte that fills it at first."""

    base: int
    size: int
    fill: int = 0


@dataclass
class PeConfig:
    """What the judge must know of one PE: its addresses, memory and contexts by number (MRs by index)."""

    mac: int
    ip: int
    regions: Sequence[Region]
    qps: Mapping[int, QpContext] = field(default_factory=dict)
    cqs: Mapping[int, CqContext] = field(default_factory=dict)
    mrs: Mapping[int, MrContext] = field(default_factory=dict)
    #: (address, bytes) that stand in memory before anything runs
    contents: Sequence[tuple[int, U8]] = ()

    @classmethod
    def of(cls, plan: PePlan) -> PeConfig:
        """The configuration of one PE of a fabric that the table builder made."""
        regions = [Region(r.base, r.size, r.fill) for r in plan.regions]
        return cls(plan.mac, plan.ip, regions, plan.qp_contexts, plan.cq_contexts, plan.mrs, plan.contents)


class GoldenMemory:
    """Memory of all PEs in one flat array; a flat offset names PE and address at once."""

    def __init__(self, pes: Sequence[Sequence[Region]]) -> None:
        self._base: list[list[int]] = []
        self._errors: list[list[tuple[int, int, bool, bool]]] = [[] for _ in pes]
        self._flat: list[list[int]] = []
        self._size: list[list[int]] = []
        fills: list[tuple[int, int, int]] = []
        at = 0
        for regions in pes:
            ordered = sorted(regions, key=lambda r: r.base)
            self._base.append([r.base for r in ordered])
            self._size.append([r.size for r in ordered])
            flats = []
            for r in ordered:
                # the offset keeps the address' place in a page: aligned rows stay aligned
                at += (r.base - at) % _PAGE
                flats.append(at)
                if r.fill:
                    fills.append((at, r.size, r.fill))
                at += r.size
            self._flat.append(flats)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map = mmap.mmap(-1, max(at, 1) + _PAGE, flags=flags)
        self.bytes: U8 = np.frombuffer(self._map, np.uint8)
        self.view = memoryview(self._map)
        for start, size, fill in fills:
            self.bytes[start : start + size] = fill
        self._dirty = np.zeros((at >> 12) + 2, np.bool_)
        self._tables = [
            (np.array(b, np.uint64), np.array(s, np.int64), np.array(f, np.int64))
            for b, s, f in zip(self._base, self._size, self._flat, strict=True)
        ]

    def flat(self, pe: int, addr: int, length: int) -> int:
        """Flat offset of a range that lies in one region, else -1."""
        i = bisect_right(self._base[pe], addr) - 1
        if i < 0:
            return -1
        into = addr - self._base[pe][i]
        return self._flat[pe][i] + into if into + length <= self._size[pe][i] else -1

    def flats(self, pe: I64, addr: U64, length: I64) -> I64:
        """`flat` of n ranges."""
        out = np.full(addr.size, -1, np.int64)
        for p in np.unique(pe).tolist():
            base, size, start = self._tables[p]
            if not base.size:
                continue
            mine = np.flatnonzero(pe == p)
            region = np.searchsorted(base, addr[mine], side="right") - 1
            region_or_0 = np.maximum(region, 0)
            into = (addr[mine] - base[region_or_0]).view(np.int64)
            good = (region >= 0) & (into >= 0) & (into + length[mine] <= size[region_or_0])
            out[mine] = np.where(good, start[region_or_0] + into, -1)
        return out

    def add_error(self, pe: int, addr: int, length: int, read: bool, write: bool) -> None:
        """NIC accesses that touch the range answer with an error; a write that fails writes nothing."""
        self._errors[pe].append((addr, addr + length, read, write))

    def clear_errors(self, pe: int) -> None:
        """No error ranges any more."""
        self._errors[pe].clear()

    def has_errors(self) -> bool:
        """Whether any PE has an error range."""
        return any(self._errors)

    def beats_fault(self, pe: int, addr: int, length: int, write: bool = False) -> bool:
        """Whether a NIC access gets an error: a 64-byte beat without a byte in any region, an error range.

        Both by whole beats, as the memory model does it.
        """
        start, end = addr & ~63, (addr + length + 63) & ~63
        if any(a < end and start < b and (w if write else r) for a, b, r, w in self._errors[pe]):
            return True
        while start < end:
            i = bisect_right(self._base[pe], start + 63) - 1
            if i < 0 or start >= self._base[pe][i] + self._size[pe][i]:
                return True
            start = max(start + 64, (self._base[pe][i] + self._size[pe][i]) & ~63)
        return False

    def faulty(self, pe: I64, addr: U64, length: I64, write: bool) -> Bools:
        """Which of n accesses touch an error range of their PE; quick where there is none."""
        out = np.zeros(addr.size, np.bool_)
        if self.has_errors():
            for i, (p, a, n) in enumerate(zip(pe.tolist(), addr.tolist(), length.tolist(), strict=True)):
                out[i] = bool(self._errors[p]) and n > 0 and self.beats_fault(p, a, n, write)
        return out

    def touch(self, offset: int, length: int) -> None:
        """Mark the pages of a written range as dirty."""
        if length:
            self._dirty[offset >> 12 : (offset + length - 1 >> 12) + 1] = True

    def touch_many(self, offset: I64, length: I64) -> None:
        """Mark the pages of n written ranges as dirty."""
        some = length > 0
        first, last = offset[some] >> 12, (offset[some] + length[some] - 1) >> 12
        self._dirty[first] = True
        self._dirty[last] = True
        for a, b in zip(*(x[last - first > 1].tolist() for x in (first, last)), strict=True):
            self._dirty[a:b] = True

    def dirty_pages(self, pe: int) -> U64:
        """Addresses of the pages of a PE that the golden model wrote to, ascending."""
        pages: list[U64] = []
        for base, size, start in zip(self._base[pe], self._size[pe], self._flat[pe], strict=True):
            hit = np.flatnonzero(self._dirty[start >> 12 : (start + size - 1 >> 12) + 1])
            pages.append((hit.astype(np.uint64) << np.uint64(12)) + np.uint64(base & ~(_PAGE - 1)))
        return np.unique(np.concatenate(pages)) if pages else np.empty(0, np.uint64)

    def clip(self, pe: int, addr: int, length: int) -> list[tuple[int, int, int]]:
        """Mapped parts of a range: (address, flat offset, length) each."""
        out = []
        for base, size, start in zip(self._base[pe], self._size[pe], self._flat[pe], strict=True):
            a, b = max(addr, base), min(addr + length, base + size)
            if a < b:
                out.append((a, start + a - base, b - a))
        return out


class InboundWrite:
    """Payload of one executed WRITE packet on its way to memory."""

    __slots__ = ("cum", "done", "gq", "late", "length", "pieces", "unanswered", "va")

    def __init__(self, gq: int, cum: int, va: int, length: int, late: bytes | None = None) -> None:
        self.gq = gq  # QP (global index) that received it
        self.cum = cum  # number of the packet on that QP
        self.va = va
        self.length = length
        self.done = 0  # bytes that AXI writes have covered
        self.unanswered = 0  # bursts without response
        #: payload of a packet whose execution is open: memory takes each burst when answered OKAY
        self.late = late
        self.pieces: deque[tuple[int, int]] = (
            deque()
        )  # of `late`: (offset, bytes) of the bursts without response


RTS, ERR, RESET = 1, 2, 0
#: rows of the tables are reused only this many WQEs (messages) later
_MIN_ROWS = 1024
#: duplicates per QP whose ACK may still be on its way out
DUPLICATES = 256


class State:
    """Everything that the judge carries from record to record. g: global QP index, c: global CQ index."""

    def __init__(self, pes: Sequence[PeConfig], params: Params = DEFAULT_PARAMS) -> None:
        self.params = params
        self.pes = list(pes)
        self.memory = GoldenMemory([p.regions for p in pes])
        n_pes = len(pes)
        qps = [(pe, qpn, ctx) for pe, p in enumerate(pes) for qpn, ctx in sorted(p.qps.items())]
        cqs = [(pe, cqn, ctx) for pe, p in enumerate(pes) for cqn, ctx in sorted(p.cqs.items())]
        self.qp_ctx = [ctx for _, _, ctx in qps]
        nq, nc = len(qps), len(cqs)

        def ints(values: list[int]) -> I64:
            return np.array(values, np.int64)

        # ---- CQs
        self.cq_lut = np.full((n_pes, params.num_cq), -1, np.int64)
        for c, (pe, cqn, _) in enumerate(cqs):
            self.cq_lut[pe, cqn] = c
        self.c_pe, self.c_cqn = ints([x[0] for x in cqs]), ints([x[1] for x in cqs])
        self.c_base = np.array([x[2].base for x in cqs], np.uint64)
        self.c_depth = ints([x[2].depth for x in cqs])
        self.c_stride = ints([x[2].stride for x in cqs])
        self.c_ignore = np.array([x[2].ignore_overrun for x in cqs], np.bool_)
        self.c_prod = ints([x[2].start_index for x in cqs])
        self.c_start = self.c_prod.copy()
        self.c_ci = self.c_prod.copy()
        self.c_ts = np.zeros(nc, np.int64)  # time stamp of the last CQE
        self.c_dead = np.zeros(nc, np.bool_)  # overrun: takes no CQE
        self.c_since = np.full(
            nc, -1, np.int64
        )  # cycle since which a completion waits for room (cq_wait only)
        self.c_flat = self.memory.flats(self.c_pe, self.c_base, self.c_depth * self.c_stride)
        self.c_order = np.argsort(self.c_flat, kind="stable")

        # ---- QPs: contexts
        self.qp_lut = np.full((n_pes, params.num_qp), -1, np.int64)
        for g, (pe, qpn, _) in enumerate(qps):
            self.qp_lut[pe, params.qp_index(qpn)] = g
        self.q_pe, self.q_qpn = ints([x[0] for x in qps]), ints([x[1] for x in qps])
        self.q_version = ints([x[2].version for x in qps])
        self.q_mtu = ints([x[2].mtu for x in qps])
        self.q_depth = ints([x[2].sq_depth for x in qps])
        self.q_base = np.array([x[2].sq_base for x in qps], np.uint64)
        self.q_sq_psn, self.q_rq_psn = ints([x[2].sq_psn for x in qps]), ints([x[2].rq_psn for x in qps])
        self.q_write = np.array([x[2].rem_write for x in qps], np.bool_)
        self.q_cq = ints([int(self.cq_lut[x[0], x[2].send_cq]) for x in qps])
        self.q_flat = self.memory.flats(self.q_pe, self.q_base, self.q_depth * 128)
        self.q_order = np.argsort(self.q_flat, kind="stable")
        self.q_bits = np.where(self.q_version == 1, 14, 18)
        self.flows = [self._flow(pe, qpn, ctx) for pe, qpn, ctx in qps]
        self.flow_rows = FlowRows(self.flows)
        keys = [self.tx_key(pe, f.dst_ip, f.peer_qpn) for (pe, _, _), f in zip(qps, self.flows, strict=True)]
        self.tx_order = np.argsort(np.array(keys, np.uint64), kind="stable")
        self.tx_keys: U64 = np.array(keys, np.uint64)[self.tx_order]
        self.tx_map = {key: g for g, key in enumerate(keys)}
        peer_of = {p.ip: pe for pe, p in enumerate(pes)}
        self.q_peer = ints([self._peer(peer_of.get(f.dst_ip, -1), f.peer_qpn) for f in self.flows])

        #: flat ranges of all rings, ascending
        rings = np.concatenate([self.q_flat, self.c_flat])
        ends = np.concatenate([self.q_flat + self.q_depth * 128, self.c_flat + self.c_depth * self.c_stride])
        order = np.argsort(rings, kind="stable")
        order = order[rings[order] >= 0]
        self.ring_start, self.ring_end = rings[order], ends[order]
        self.ring_of_cq = order >= nq
        # ---- QPs: requester. Packets of a QP are numbered from 0: PSN = sq_psn + number
        start = ints([x[2].sq_start_index % (1 << b) for x, b in zip(qps, self.q_bits.tolist(), strict=True)])
        self.q_start = start
        self.q_gone = np.zeros(nq, np.int64)  # WQEs completed before the QP's last reset
        self.q_state = np.full(nq, RTS, np.int64)
        self.q_pi, self.q_ret, self.q_fetch = start.copy(), start.copy(), start.copy()
        self.q_ann = np.zeros(nq, np.int64)  # packets of all announced WQEs
        self.q_tx = np.zeros(nq, np.int64)  # packets sent
        self.q_txw = start.copy()  # WQE of the next packet
        self.q_ack = np.zeros(nq, np.int64)  # packets acknowledged
        self.q_ce = np.zeros(nq, np.int64)  # announced WQEs that ask for a CQE
        self.q_ce_done = np.zeros(nq, np.int64)  # CQEs of these
        self.q_bad = np.full(nq, -1, np.int64)  # first WQE with an error of its own
        self.q_flush = np.zeros(nq, np.bool_)  # a flush CQE has been written
        self.q_err_time = np.full(nq, -1, np.int64)  # cycle of the cause of ERR
        self.q_err_race = np.zeros(nq, np.bool_)  # ERR that no WQE caused
        # ---- QPs: responder
        self.r_exp = np.zeros(nq, np.int64)  # packets executed: the next expected
        self.r_msn = np.zeros(nq, np.int64)
        self.r_open = np.zeros(nq, np.bool_)  # in the middle of a message
        self.r_va = np.zeros(nq, np.uint64)  # next address of the open message
        self.r_left = np.zeros(nq, np.int64)
        self.r_rkey = np.zeros(nq, np.int64)
        self.r_req = np.full(nq, -1, np.int64)  # last packet with AckReq
        self.r_sent = np.full(nq, -1, np.int64)  # last packet that a response named
        self.r_ahead = np.zeros(nq, np.bool_)  # "NAK 0 sent" latch
        self.r_nak: dict[int, tuple[int, int]] = {}  # g -> (packet, code) of the NAK that is due
        #: g -> packet before the expected one at each of the last duplicates, which allows an ACK of it
        self.r_dup: dict[int, deque[int]] = {}
        #: g -> packets of NAKs of code 0 that became due before another response and may be on their way out
        self.r_nak_before: dict[int, set[int]] = {}
        #: QPs that only the exact engine judges: errors, flush, a NAK
        self.q_odd = np.zeros(nq, np.bool_)

        # ---- WQEs and message ends, one ring of rows per QP
        rows = [max(_MIN_ROWS, 2 * int(d)) for d in self.q_depth]
        rows = [1 << (r - 1).bit_length() for r in rows]
        self.q_mask = ints(rows) - 1
        self.q_row = np.concatenate([np.zeros(1, np.int64), np.cumsum(ints(rows))])[:nq]
        total = sum(rows)
        self.w_first = np.zeros(total, np.int64)  # number of its first packet
        self.w_np = np.zeros(total, np.int64)  # packets
        self.w_len = np.zeros(total, np.int64)
        self.w_raddr = np.zeros(total, np.uint64)
        self.w_laddr = np.zeros(total, np.uint64)
        self.w_flat = np.zeros(total, np.int64)  # flat offset of the source, -1: not mapped as a whole
        self.w_rkey = np.zeros(total, np.int64)
        self.w_op = np.zeros(total, np.int64)
        self.w_imm = np.zeros(total, np.int64)
        self.w_ce = np.zeros(total, np.bool_)
        self.w_ceno = np.zeros(total, np.int64)  # number among the WQEs with ce, counted to here
        self.w_err = np.zeros(total, np.int64)  # code that its CQE must carry, 0: none yet
        self.w_local = np.zeros(total, np.bool_)  # that error was found by the requester itself
        self.w_time = np.zeros(total, np.int64)  # cycle of the doorbell
        self.w_pos = np.zeros(total, np.int64)  # record of the doorbell
        self.w_done = np.zeros(total, np.int64)  # cycle of its CQE, where that carries an error
        self.w_sent = np.zeros(
            total, np.int64
        )  # record of its last packet, far away: not sent (batch engine)
        self.e_rows = 1 << 12
        self.e_end = np.zeros((nq, self.e_rows), np.int64)  # number of the last packet of message m

        # ---- MRs
        self.mrs = [dict(p.mrs) for p in pes]
        #: MR_ROW [PE, MR index]
        self.mr_rows: Rec = np.stack([rules.mr_table(m, params.num_mr) for m in self.mrs])

        # ---- per PE
        self.inbound: list[deque[InboundWrite]] = [deque() for _ in range(n_pes)]
        #: id-3 bursts without response; None: one that matched nothing
        self.bursts: list[deque[InboundWrite | None]] = [deque() for _ in range(n_pes)]
        self.cqe_bursts: list[deque[int]] = [deque() for _ in range(n_pes)]
        self.counters = np.zeros((n_pes, 64), np.int64)
        self.asyncs: list[list[tuple[int, int]]] = [[] for _ in range(n_pes)]
        self.cq_wait = [params.cq_wait] * n_pes
        self.stage = np.zeros((n_pes, 16), np.uint64)
        for pe, p in enumerate(pes):
            for addr, data in p.contents:
                at = self.memory.flat(pe, addr, len(data))
                if at < 0:
                    raise ValueError(f"PE {pe}: initial content at {addr:#x} lies outside its regions")
                self.memory.bytes[at : at + len(data)] = data
        self.position = 0  # records judged
        self.cycle = 0

    def _peer(self, pe: int, qpn: int) -> int:
        index = qpn - self.params.first_qpn
        return int(self.qp_lut[pe, index]) if pe >= 0 and 0 <= index < self.params.num_qp else -1

    def _flow(self, pe: int, qpn: int, ctx: QpContext) -> Flow:
        return Flow(
            self.pes[pe].mac, ctx.peer_mac, self.pes[pe].ip, ctx.peer_ip, ctx.tc, ctx.ttl,
            ctx.sport(qpn), ctx.peer_qpn,
        )  # fmt: skip

    @staticmethod
    def tx_key(pe: int, dst_ip: int, dst_qpn: int) -> int:
        """Key that finds the sending QP of a frame: source PE, destination address, destination QPN."""
        return pe << 56 | dst_ip << 24 | dst_qpn

    def row(self, g: int, idx: int) -> int:
        """Table row of a WQE."""
        return int(self.q_row[g]) + (idx & int(self.q_mask[g]))

    def meets_ring(self, flat: I64, length: I64) -> bool:
        """Whether one of n flat ranges touches an SQ or CQ ring."""
        if not self.ring_start.size or not flat.size:
            return False
        ring = np.searchsorted(self.ring_start, flat + length) - 1
        return bool(((ring >= 0) & (self.ring_end[np.maximum(ring, 0)] > flat) & (length > 0)).any())

    def drop_mr(self, pe: int, index: int) -> None:
        """An MR was invalidated."""
        self.mrs[pe].pop(index, None)
        self.mr_rows[pe, index]["valid"] = False

    def retired(self, g: int) -> int:
        """First WQE index that is not complete: silent ones (ce = 0) complete when they are acknowledged."""
        idx, pi = int(self.q_ret[g]), int(self.q_pi[g])
        acked = int(self.q_ack[g])
        while idx < pi and self.q_state[g] == RTS:
            row = self.row(g, idx)
            if self.w_ce[row] or self.w_err[row] or self.w_first[row] + self.w_np[row] > acked:
                break
            idx += 1
        return idx
