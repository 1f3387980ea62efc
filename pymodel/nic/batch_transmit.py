"""Batch engine, requester's sending side: each request packet is the one whose turn it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64
from pymodel.formats.wqe import WqeOp
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.batch_link import Frames, Link
from pymodel.nic.batch_reads import Fetches
from pymodel.nic.batch_rows import MASK24, last_of, latest_of, need, ragged, sums, true
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_state import ATOMIC, WRITE
from pymodel.nic.judge_wqe import spans

#: opcode of a WRITE packet by 2 * first + last
WRITE_OPS: Final = np.array(
    [frames.WRITE_MIDDLE, frames.WRITE_LAST, frames.WRITE_FIRST, frames.WRITE_ONLY], np.int64
)
#: opcode of the request packet of READs and atomics by msg_opcode
_REQUEST_OP: Final = rules.BTH_OF + np.where(np.arange(256) == WqeOp.READ, frames.READ_REQUEST, 0)


@dataclass
class Sent:
    """Request packets as they left, sorted by QP, then position."""

    f: Frames
    w: I64  # row of the WQE
    idx: I64  # its index
    kind: I64  # WRITE, READ, ATOMIC
    number: I64
    after: I64  # number of the packet that follows
    at: I64  # side offset of the payload
    flat: I64  # golden memory: where the payload comes from
    begins: I64  # rows of the first packets
    #: per QP, what the packets leave: (QP, number of the next packet, its WQE)
    next: tuple[I64, I64, I64]


class Transmit(Part):
    """Request packets of requesters."""

    def __init__(self, view: View, link: Link) -> None:
        super().__init__(view)
        self.link = link

    def requests(self, f: Frames, pi: I64, fetched: Fetches) -> Sent:
        """Request packets against the next expected of each QP: everything but the payload."""
        s = self.s
        g, pos = f.g, f.rows.pos
        if not g.size:
            return Sent(f, g, g, g, g, g, g, g, g, (g, g, g))
        start, rank = spans(g)
        # every WQE has at least one packet: as many WQEs as packets are enough to look at
        end = last_of(g)
        qps, packets = g[end], rank[end] + 1
        source, idx = ragged(s.q_txw[qps], np.minimum(packets, pi[qps] - s.q_txw[qps]))
        need(source.size > 0, "packet of no WQE")
        row = s.q_row[qps[source]] + (idx & s.q_mask[qps[source]])
        kind, first = s.w_kind[row], s.w_first[row]
        count = np.where(kind == WRITE, s.w_np[row], 1)
        w_start, _ = spans(source)
        before = sums(count, w_start) - count
        dense = np.cumsum(start == np.arange(g.size)) - 1
        # packets of the first WQE that had left before
        lead = np.zeros(qps.size, np.int64)
        heads = true(w_start == np.arange(source.size))
        lead[source[heads]] = s.q_tx[qps[source[heads]]] - first[heads]
        need((lead >= 0) & (lead < 1 << 30), "packet of no WQE")
        nth = rank + lead[dense]
        at = np.searchsorted(source << 40 | before, dense << 40 | nth, side="right") - 1
        need(at >= 0, "packet of no WQE")
        need(source[at] == dense, "packet of no WQE")
        w, idx, kind, k = row[at], idx[at], kind[at], nth - before[at]
        need((k < count[at]) & (s.w_err[w] == 0), "packet of no WQE")
        need(s.w_pos[w] < pos + s.position, "packet before its doorbell")
        need(
            latest_of(fetched.g, fetched.pos, fetched.after, g, pos, s.q_fetch[g]) > idx,
            "packet before its fetch",
        )
        for qp, where, begin in fetched.again:
            low, high = g.searchsorted([qp, qp + 1])
            need((idx[low:high] < begin) | (pos[low:high] > where), "fetch of a sent WQE")
        # ---- the packet
        number = first[at] + k
        begins, last = k == 0, k == count[at] - 1
        mtu = s.q_mtu[g]
        op = WRITE_OPS[2 * begins + last]
        size = np.minimum(mtu, s.w_len[w] - k * mtu)
        after = number + 1
        others = true(kind)
        if others.size:
            op[others] = _REQUEST_OP[s.w_op[w[others]]]
            size[others] = 0
            after[others] = number[others] + s.w_np[w[others]]
        need((f.op == op) & (f.size == size), "request packet")
        need((f.psn == (number + s.q_sq_psn[g]) & MASK24), "PSN")
        need(f.ack_req == (last | ((k + 1) % s.params.ack_interval == 0)), "AckReq")
        reth = true(begins & (kind != ATOMIC)) if others.size else true(begins)
        if reth.size:
            va, rkey, length = self.link.reth(f, reth)
            who = w[reth]
            need((va == s.w_raddr[who]) & (rkey == s.w_rkey[who]) & (length == s.w_len[who]), "RETH")
        if others.size:
            self._atomics(f, true(kind == ATOMIC), w)
        # a column that only this engine reads, and only between doorbell and here
        s.w_sent[w[last]] = pos[last] + s.position
        flat = s.w_flat[w] + k * mtu
        need(not s.meets_ring(flat, size), "source in a ring")
        left = qps, after[end], idx[end] + last[end]
        return Sent(f, w, idx, kind, number, after, f.side + frames.BASE + f.ext, flat, true(begins), left)

    def _atomics(self, f: Frames, which: I64, w: I64) -> None:
        """AtomicETH of atomic requests; FetchAdd has no boundary and carries 0 (wire.md 2)."""
        s, w = self.s, w[which]
        if not which.size:
            return
        va, rkey, _ = self.link.reth(f, which)
        swap, compare, swap_mask, compare_mask = self.link.operands(f, which)
        op = f.op[which]
        good = (va == s.w_raddr[w]) & (rkey == s.w_rkey[w]) & (swap == s.w_swap[w])
        good &= compare == np.where(op == frames.FETCH_ADD, 0, s.w_cmp[w])
        masked = (op == frames.MCAS64) | (op == frames.MCAS32)
        good &= swap_mask == np.where(masked, s.w_smask[w], 0)
        good &= compare_mask == np.where(masked, s.w_cmask[w], 0)
        need(good, "AtomicETH")

    def commit(self, sent: Sent) -> None:
        """Move the requesters on."""
        qps, number, wqe = sent.next
        self.s.q_tx[qps] = number
        self.s.q_txw[qps] = wqe
