"""State of the judge: golden memory of all PEs and the tables of QPs, WQEs, CQs and MRs as flat arrays.

The exact engine reads and writes single elements, the batch engine whole columns; both leave the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pymodel.formats.arrays import I64, U8, U64, Rec
from pymodel.formats.recv import RQ_INDEX_BITS
from pymodel.host.table import PePlan
from pymodel.nic import rules
from pymodel.nic.context import CqContext, MrContext, QpContext
from pymodel.nic.judge_entries import ATOMIC, READ, WRITE, Execution, InboundWrite, ReceiveQueue, Request
from pymodel.nic.judge_frames import Flow, FlowRows
from pymodel.nic.judge_memory import GoldenMemory, Region
from pymodel.nic.params import DEFAULT_PARAMS, Params

__all__ = [
    "ATOMIC", "DUPLICATES", "ERR", "READ", "RESET", "RTS", "WRITE", "Execution", "GoldenMemory",
    "InboundWrite", "PeConfig", "Region", "Request", "State",
]  # fmt: skip


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


RTS, ERR, RESET = 1, 2, 0
#: different keys that are looked up one by one
_KEYS = 16
#: rows of the tables are reused only this many WQEs (messages) later
_MIN_ROWS = 1024
#: timers from this on (64 cycles x 2^timer) are far longer than an answer takes
_SHORT = 11
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
        self.c_arm = np.zeros(nc, np.int64)  # cq_sta of the arm in effect, 0: none
        self.c_arm_time = np.zeros(nc, np.int64)  # cycle of its doorbell
        self.c_arm_open = np.zeros(nc, np.bool_)  # whether it is still there is open
        self.c_event = np.zeros(nc, np.int64)  # pending bit: 0 none, 1 maybe, 2 surely
        self.c_event_time = np.zeros(nc, np.int64)  # cycle of the write response that set it

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
        self.q_read = np.array([x[2].rem_read for x in qps], np.bool_)
        self.q_atomic = np.array([x[2].rem_atomic for x in qps], np.bool_)
        self.q_max_rd = ints([x[2].max_rd_atomic for x in qps])  # READs and atomics outstanding at most
        self.r_max_rd = ints([x[2].max_dest_rd_atomic for x in qps])  # entries of the responder's table
        self.q_cq = ints([int(self.cq_lut[x[0], x[2].send_cq]) for x in qps])
        self.q_rcq = ints([int(self.cq_lut[x[0], x[2].recv_cq]) for x in qps])
        self.q_bits = np.where(self.q_version == 1, 14, 18)
        self.flows = [self._flow(pe, qpn, ctx) for pe, qpn, ctx in qps]
        self._place_rings()
        self._name_flows()
        # ---- QPs: requester. Packets of a QP are numbered from 0: PSN = sq_psn + number
        start = ints([x[2].sq_start_index % (1 << b) for x, b in zip(qps, self.q_bits.tolist(), strict=True)])
        self.q_start = start
        self.q_gone = np.zeros(nq, np.int64)  # WQEs completed before the QP's last reset
        self.q_state = np.full(nq, RTS, np.int64)
        self.q_pi, self.q_ret, self.q_fetch = start.copy(), start.copy(), start.copy()
        # "packets" below are PSNs: the one request packet of a READ counts as many as its responses
        self.q_ann = np.zeros(nq, np.int64)  # packets of all announced WQEs
        self.q_tx = np.zeros(nq, np.int64)  # packets sent
        self.q_txw = start.copy()  # WQE of the next packet
        #: packets acknowledged, moved where the ACK or data response arrives. It stops in front of the first
        #: response of a READ or atomic that has not arrived: an ACK never completes one of these
        self.q_ack = np.zeros(nq, np.int64)
        #: cycle at which the newest ACK or response came, or its last bytes were in memory
        self.q_ack_time = np.full(nq, -1 << 40, np.int64)
        #: g -> WQEs that are READs or atomics and outstanding: sent, not all result bytes in memory (w_land <
        #: w_np); in posting order. Their number is what max_rd_atomic limits and what a fence waits for. The
        #: data response that is due belongs to the first one with w_got < w_np
        self.q_reads: dict[int, deque[int]] = {}
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
        self.r_len = np.zeros(nq, np.int64)  # DMA length of the open WRITE
        self.r_send = np.zeros(nq, np.bool_)  # the open message is a SEND (exact engine)
        #: g -> receive queue of the QPs that have one; only the exact engine looks at it
        self.rq: dict[int, ReceiveQueue] = {}
        for g in range(nq):
            self.set_rq(g)
        self.r_req = np.full(nq, -1, np.int64)  # last packet with AckReq
        self.r_sent = np.full(nq, -1, np.int64)  # last packet that a response named
        self.r_ahead = np.zeros(nq, np.bool_)  # "NAK 0 sent" latch
        self.r_nak: dict[int, tuple[int, int]] = {}  # g -> (packet, code) of the NAK that is due
        #: g -> packet before the expected one at each of the last duplicates, which allows an ACK of it
        self.r_dup: dict[int, deque[int]] = {}
        #: g -> NAKs 0 and RNR NAKs that became due before another response and may be on their way out
        self.r_nak_before: dict[int, set[tuple[int, int]]] = {}
        #: g -> READs and atomics that the responder holds, in order of arrival = of PSNs. One goes when its
        #: last response left the NIC. No response with a PSN behind the first one's may leave
        self.r_reads: dict[int, deque[Request]] = {}
        #: g -> packet -> original value of atomics that were answered, oldest first: for their duplicates
        self.saved: dict[int, dict[int, int]] = {}
        #: QPs that only the exact engine judges: errors, flush, a NAK, loss recovery, duplicates, a timer
        #: that may expire while answers are on their way
        self.q_odd = np.array([self.short_timer(ctx) for ctx in self.qp_ctx], np.bool_)

        # ---- WQEs and message ends, one ring of rows per QP
        rows = [max(_MIN_ROWS, 2 * int(d)) for d in self.q_depth]
        rows = [1 << (r - 1).bit_length() for r in rows]
        self.q_mask = ints(rows) - 1
        self.q_row = np.concatenate([np.zeros(1, np.int64), np.cumsum(ints(rows))])[:nq]
        total = sum(rows)
        self.w_first = np.zeros(total, np.int64)  # number of its first packet
        self.w_np = np.zeros(total, np.int64)  # packets
        self.w_kind = np.zeros(total, np.int64)  # WRITE, READ or ATOMIC
        self.w_len = np.zeros(total, np.int64)  # message bytes; atomics: 8 or 4, as in the CQE
        self.w_raddr = np.zeros(total, np.uint64)
        self.w_laddr = np.zeros(total, np.uint64)
        #: flat offset of the source, for READs and atomics of the sink; -1: not mapped as a whole
        self.w_flat = np.zeros(total, np.int64)
        self.w_rkey = np.zeros(total, np.int64)
        self.w_lkey = np.zeros(total, np.int64)
        self.w_fence = np.zeros(total, np.bool_)  # starts only when no READ or atomic is outstanding
        # operands of atomics as host integers, of 4-byte ones in the low half; else 0. Fetch and add: the
        # number in w_swap, the field boundary in w_cmp
        self.w_swap = np.zeros(total, np.uint64)
        self.w_cmp = np.zeros(total, np.uint64)
        self.w_smask = np.zeros(total, np.uint64)
        self.w_cmask = np.zeros(total, np.uint64)
        self.w_got = np.zeros(total, np.int64)  # READ, atomic: response packets that arrived and were right
        #: of these, packets whose bytes are all in memory (write responses received). A WQE is complete when
        #: q_ack has passed it and w_land == w_np; a WRITE has w_land = w_np from the start
        self.w_land = np.zeros(total, np.int64)
        self.w_op = np.zeros(total, np.int64)
        self.w_imm = np.zeros(total, np.int64)
        self.w_data = np.zeros(total, np.int64)  # immediate
        self.w_se = np.zeros(total, np.bool_)
        self.w_ce = np.zeros(total, np.bool_)
        self.w_ceno = np.zeros(total, np.int64)  # number among the WQEs with ce, counted to here
        self.w_err = np.zeros(total, np.int64)  # code that its CQE must carry, 0: none yet
        self.w_local = np.zeros(total, np.bool_)  # that error was found by the requester itself
        self.w_time = np.zeros(total, np.int64)  # cycle of the doorbell
        self.w_pos = np.zeros(total, np.int64)  # record of the doorbell
        #: cycle of its CQE, where that carries an error or its QP recovers from a loss
        self.w_done = np.zeros(total, np.int64)
        self.w_sent = np.zeros(
            total, np.int64
        )  # record of its last packet, far away: not sent (batch engine)
        self.e_rows = 1 << 12
        self.e_end = np.zeros((nq, self.e_rows), np.int64)  # number of the last packet of message m

        # ---- MRs
        self.mrs = [dict(p.mrs) for p in pes]
        #: MR_ROW [PE, MR index]: base, length, rights, tags, valid
        self.mr_rows: Rec = np.stack([rules.mr_table(m, params.num_mr) for m in self.mrs])

        # ---- per PE
        # Golden memory is what memory shows: bytes of ID 2, 3 and 5 go in where their burst's COMMIT record
        # stands (at the latest at its response), and not where the packet arrived, so that READs and atomics
        # find what they must. `payload` of an entry is None where golden memory has its bytes already.
        #: payload of inbound WRITEs that is not written and answered as a whole, in order of arrival
        self.inbound: list[deque[InboundWrite]] = [deque() for _ in range(n_pes)]
        #: id-3 bursts without response; None: one that matched nothing
        self.bursts: list[deque[InboundWrite | None]] = [deque() for _ in range(n_pes)]
        #: the same for READ and atomic results (ID 5)
        self.results: list[deque[InboundWrite]] = [deque() for _ in range(n_pes)]
        self.result_bursts: list[deque[InboundWrite | None]] = [deque() for _ in range(n_pes)]
        #: [PE, AXI ID] how many of these bursts, from the first on, are visible
        self.visible = np.zeros((n_pes, 8), np.int64)
        #: atomics by order of their ID-2 reads, until an answer named them
        self.runs: list[deque[Execution]] = [deque() for _ in range(n_pes)]
        #: the last one of each PE, answered or not
        self.last_run: list[Execution | None] = [None] * n_pes
        #: CQs of the CQE writes without response, -1: none; and of each its flat offset (-1: none), what
        #: stood there, what was written: a refused write leaves nothing
        self.cqe_bursts: list[deque[int]] = [deque() for _ in range(n_pes)]
        self.cqe_slots: list[deque[tuple[int, bytes, bytes]]] = [deque() for _ in range(n_pes)]
        #: bytes that were overwritten while a READ was held, oldest first: (record, flat offset, old bytes).
        #: For READ payload that is older than golden memory at the packet's departure
        self.overwritten: list[deque[tuple[int, int, bytes]]] = [deque() for _ in range(n_pes)]
        self.counters = np.zeros((n_pes, 64), np.int64)
        self.rx_frames = np.zeros(n_pes, np.int64)  # frames received
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

    # ------------------------------------------------------------------ contexts
    def _place_rings(self) -> None:
        """Where the rings of all QPs and CQs are."""
        self.q_flat = self.memory.flats(self.q_pe, self.q_base, self.q_depth * 128)
        self.q_order = np.argsort(self.q_flat, kind="stable")
        self.c_flat = self.memory.flats(self.c_pe, self.c_base, self.c_depth * self.c_stride)
        self.c_order = np.argsort(self.c_flat, kind="stable")
        #: the same in order, for single look-ups
        self.q_sorted, self.c_sorted = self.q_flat[self.q_order].tolist(), self.c_flat[self.c_order].tolist()
        #: flat ranges of all rings, ascending
        rings = np.concatenate([self.q_flat, self.c_flat])
        ends = np.concatenate([self.q_flat + self.q_depth * 128, self.c_flat + self.c_depth * self.c_stride])
        order = np.argsort(rings, kind="stable")
        order = order[rings[order] >= 0]
        self.ring_start, self.ring_end = rings[order], ends[order]
        self.ring_of_cq = order >= self.q_flat.size

    def _name_flows(self) -> None:
        """Header rows of all QPs, and how a frame names them."""
        self.flow_rows = FlowRows(self.flows)
        owners = self.q_pe.tolist()
        keys = [self.tx_key(pe, f.dst_ip, f.peer_qpn) for pe, f in zip(owners, self.flows, strict=True)]
        self.tx_order = np.argsort(np.array(keys, np.uint64), kind="stable")
        self.tx_keys: U64 = np.array(keys, np.uint64)[self.tx_order]
        self.tx_map = {key: g for g, key in enumerate(keys)}
        peer_of = {p.ip: pe for pe, p in enumerate(self.pes)}
        peers = [self._peer(peer_of.get(f.dst_ip, -1), f.peer_qpn) for f in self.flows]
        self.q_peer: I64 = np.array(peers, np.int64)

    def set_qp(self, g: int, ctx: QpContext) -> None:
        """A QP gets another context; its indices are the caller's."""
        pe, old, self.qp_ctx[g] = int(self.q_pe[g]), self.qp_ctx[g], ctx
        self.q_write[g], self.q_read[g], self.q_atomic[g] = ctx.rem_write, ctx.rem_read, ctx.rem_atomic
        self.q_max_rd[g], self.r_max_rd[g] = ctx.max_rd_atomic, ctx.max_dest_rd_atomic
        self.q_sq_psn[g], self.q_rq_psn[g] = ctx.sq_psn, ctx.rq_psn
        self.q_version[g], self.q_mtu[g], self.q_bits[g] = (
            ctx.version,
            ctx.mtu,
            14 if ctx.version == 1 else 18,
        )
        self.q_cq[g], self.q_rcq[g] = self.cq_lut[pe, ctx.send_cq], self.cq_lut[pe, ctx.recv_cq]
        self.q_start[g] = ctx.sq_start_index % (1 << int(self.q_bits[g]))
        if (ctx.sq_base, ctx.sq_depth) != (old.sq_base, old.sq_depth):
            self.q_base[g], self.q_depth[g] = ctx.sq_base, ctx.sq_depth
            self._more_rows(g)
            self._place_rings()
        flow = self._flow(pe, int(self.q_qpn[g]), ctx)
        if flow != self.flows[g]:
            self.flows[g] = flow
            self._name_flows()

    def set_rq(self, g: int) -> None:
        """A QP is set: its receive queue is empty, at its start index."""
        ctx, old = self.qp_ctx[g], self.rq.pop(g, None)
        gone = old.gone + old.done - old.start if old else 0
        if ctx.rq_depth or old:
            start = ctx.rq_start_index % (1 << RQ_INDEX_BITS)
            self.rq[g] = ReceiveQueue(ctx.rq_base, ctx.rq_depth, start, gone)

    def _more_rows(self, g: int) -> None:
        """A deeper ring needs more rows, behind those of all others."""
        rows, old = 2 * int(self.q_depth[g]), self.w_first.size
        if rows <= self.q_mask[g] + 1:
            return
        for name in [name for name in vars(self) if name.startswith("w_")]:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(rows, column.dtype)]))
        self.q_row[g], self.q_mask[g] = old, rows - 1

    def set_cq(self, c: int, ctx: CqContext) -> None:
        """A CQ gets another context; its indices are the caller's."""
        self.c_base[c], self.c_depth[c], self.c_stride[c] = ctx.base, ctx.depth, ctx.stride
        self.c_ignore[c], self.c_start[c] = ctx.ignore_overrun, ctx.start_index
        self._place_rings()

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

    def allowed(self, key: I64, remote: bool, right: I64, va: U64, length: I64, pe: I64) -> bool:
        """Whether memory regions allow all of these accesses (nic.md 2); zero length is always allowed."""
        name = (pe << 3 | right) << 32 | key
        rest = np.flatnonzero(length)
        # streams use few keys: each is looked up once, ranges are compared many at a time
        for _ in range(_KEYS):
            if not rest.size:
                return True
            first = int(rest[0])
            same = name[rest] == name[first]
            mine, rest = (rest, rest[:0]) if same.all() else (rest[same], rest[~same])
            index = int(key[first]) >> 8
            if index >= self.mr_rows.shape[1]:
                return False
            row = self.mr_rows[int(pe[first]), index]
            tag = row["rtag"] if remote else row["ltag"]
            good = row["valid"] and tag == int(key[first]) & 0xFF and (row["length"] or row["whole"])
            if not good or not int(row["rights"]) >> int(right[first]) & 1:
                return False
            last = row["length"] - np.uint64(1) if row["length"] else np.uint64((1 << 64) - 1)
            size = length[mine].view(np.uint64) - np.uint64(1)
            if not ((size <= last) & (va[mine] - row["base"] <= last - size)).all():
                return False
        verdict = rules.mr_check(self.mr_rows, key, remote, right, va, length, pe)
        return bool((verdict == rules.MrVerdict.OK).all())

    def meets_ring(self, flat: I64, length: I64) -> bool:
        """Whether one of n flat ranges touches an SQ or CQ ring."""
        if not self.ring_start.size or not flat.size:
            return False
        ring = np.searchsorted(self.ring_start, flat + length) - 1
        return bool(((ring >= 0) & (self.ring_end[np.maximum(ring, 0)] > flat) & (length > 0)).any())

    def set_mr(self, pe: int, index: int, region: MrContext) -> None:
        """An MR was programmed."""
        self.mrs[pe][index] = region
        self.mr_rows[pe, index] = rules.mr_table({0: region}, 1)[0]

    def drop_mr(self, pe: int, index: int) -> None:
        """An MR was invalidated."""
        self.mrs[pe].pop(index, None)
        self.mr_rows[pe, index]["valid"] = False

    @staticmethod
    def short_timer(ctx: QpContext) -> bool:
        """Whether the transport timer of a QP is not far above the time that an answer may take."""
        return 0 < ctx.timer < _SHORT

    def save(self, g: int, number: int, value: int) -> None:
        """An atomic was answered: its duplicates get the same value."""
        saved = self.saved.setdefault(g, {})
        saved[number] = value
        while len(saved) > 2 * self.params.max_dest_rd_atomic:
            del saved[next(iter(saved))]

    def retired(self, g: int) -> int:
        """First WQE index that is not complete: silent ones (ce = 0) complete when they are acknowledged.

        Also in ERR, as long as no flush tells that they were not.
        """
        idx, pi = int(self.q_ret[g]), int(self.q_pi[g])
        acked = int(self.q_ack[g])
        good = self.q_state[g] == RTS or (self.q_err_race[g] and not self.q_flush[g])
        while idx < pi and good:
            row = self.row(g, idx)
            if self.w_ce[row] or self.w_err[row] or not self.complete(row, acked):
                break
            idx += 1
        return idx

    def complete(self, row: int, acked: int) -> bool:
        """Whether a WQE without error is complete: acknowledged, its result bytes in memory."""
        return bool(self.w_first[row] + self.w_np[row] <= acked and self.w_land[row] >= self.w_np[row])
