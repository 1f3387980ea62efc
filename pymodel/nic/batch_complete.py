"""Batch engine, completion: CQE writes, CQ doorbells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymodel.formats.arrays import I64, U32
from pymodel.nic.batch_rows import ALL_ONES, Rows, last_of, latest_of, need, previous, sums
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_wqe import spans


@dataclass
class Cqes:
    """CQE writes, sorted by QP, then position."""

    rows: Rows
    g: I64
    idx: I64
    c: I64
    words: U32
    at: I64  # side offset of the payload


class Complete(Part):
    """CQEs with every field, place and time."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        size = self.s.memory.bytes.size
        self._half = self.s.memory.bytes[: size // 32 * 32].view("V32")

    def cqes(self, r: Rows) -> Cqes:
        """CQE writes with their QP and the WQE that each names, sorted by QP and position."""
        s = self.s
        none = np.empty(0, np.int64)
        if not len(r):
            return Cqes(r, none, none, none, np.empty((0, 8), np.uint32), none)
        upper = r.aux0 == np.uint64(0xFFFFFFFF << 32)
        lane = np.where(upper, 32, 0)
        at = self.view.place(r.off) + lane
        words: U32 = self.view.gather(at, 32).view("<u4").reshape(-1, 8)
        g = self.view.qp(r.pe, (words[:, 0] >> 8 & 0x7FFF).astype(np.int64))
        self.view.usable(g, "completing QP")
        order = np.argsort(g, kind="stable")
        r, g, words, at = r.take(order), g[order], words[order], at[order]
        v1 = s.q_version[g] == 1
        named = np.where(v1, words[:, 5] >> 19, words[:, 6] >> 15).astype(np.int64)
        start, _ = spans(g)
        mask = np.where(v1, 0x1FFF, 0x1FFFF)
        step = (named - previous(named, start, s.q_ret[g] - 1)) & mask
        idx = s.q_ret[g] - 1 + sums(step, start)
        return Cqes(r, g, idx, s.q_cq[g], words, at)

    def judge(self, q: Cqes, cq: Rows, pi: I64, ack_g: I64, ack_pos: I64, acked: I64) -> tuple[I64, I64]:
        """Every field of every CQE, its place and time; CQ doorbells: (CQ, consumer index after each)."""
        s, r, g, idx, c = self.s, q.rows, q.g, q.idx, q.c
        # ---- CQ doorbells by CQ
        page = self.view.page_qp(cq)
        order = np.argsort(s.q_cq[page], kind="stable")
        cq, dc = cq.take(order), s.q_cq[page][order]
        by_c = np.argsort(c, kind="stable")
        by_c = by_c[np.lexsort((r.pos[by_c], c[by_c]))]
        ec, epos = c[by_c], r.pos[by_c]
        c_start, c_rank = spans(ec)
        prod = s.c_prod[ec] + c_rank
        need(
            (dc >= 0) & ((cq.data >> np.uint64(23) & np.uint64(0xFFFF)).astype(np.int64) == s.c_cqn[dc]),
            "CQ number",
        )
        cid = (cq.data & np.uint64(0x7FFFFF)).astype(np.int64)
        d_start, _ = spans(dc)
        ci = s.c_ci[dc] + sums((cid - previous(cid, d_start, s.c_ci[dc])) & 0x7FFFFF, d_start)
        need(ci <= latest_of(ec, epos, prod + 1, dc, cq.pos, s.c_prod[dc]), "CQ doorbell")
        if not len(r):
            return dc, ci
        # ---- the WQE
        need((idx >= s.q_ret[g]) & (idx < pi[g]), "CQE of no WQE")
        row = s.q_row[g] + (idx & s.q_mask[g])
        _, rank = spans(g)
        need(s.w_ce[row] & (s.w_ceno[row] == s.q_ce_done[g] + rank + 1) & (s.w_err[row] == 0), "CQE order")
        need(s.w_pos[row] < r.pos + s.position, "CQE before its doorbell")
        done = s.w_first[row] + s.w_np[row]
        need(latest_of(ack_g, ack_pos, acked, g, r.pos, s.q_ack[g]) >= done, "CQE before its ACK")
        # ---- place
        need(c >= 0, "CQ")
        need(~s.c_dead[c] & ~s.c_ignore[c] & (s.c_flat[c] >= 0), "CQ")
        number = np.empty(c.size, np.int64)
        number[by_c] = prod
        stride, depth = s.c_stride[c], s.c_depth[c]
        address = s.c_base[c] + (number % depth * stride).astype(np.uint64)
        lane = (address & np.uint64(63)).astype(np.int64)
        need((r.addr & np.uint64(~63 & ALL_ONES)) + lane.astype(np.uint64) == address, "slot")
        ones = np.where(stride == 64, np.uint64(ALL_ONES), np.uint64(0xFFFFFFFF) << lane.astype(np.uint64))
        need((r.aux0 == ones) & (r.aux1 == stride.astype(np.uint64)) & (r.len == 1), "CQE strobes")
        used = number - latest_of(dc, cq.pos, ci, c, r.pos, s.c_ci[c])
        need(used < depth, "CQ room")
        if any(s.cq_wait):
            limited = np.array(s.cq_wait) > 0
            need(~limited[r.pe] | (used + 1 < depth), "full CQ with a limit of waiting")
        # ---- content
        v1 = s.q_version[g] == 1
        w = q.words.astype(np.int64)
        wqe_id = idx << 3 & np.where(v1, 0xFFFF, 0xFFFFF)
        op = s.w_op[row]
        fields = w[:, 0] == (s.q_qpn[g] & 0x7FFF) << 8 | s.w_imm[row] << 27
        fields &= (w[:, 1] == 0) & (w[:, 2] == s.w_len[row]) & (w[:, 3] == 0)
        fields &= w[:, 5] >> 16 == np.where(v1, wqe_id, 0)
        fields &= w[:, 6] == np.where(v1, op, op | wqe_id << 12)
        fields &= w[:, 7] == (number // depth & 1) << 31
        need(fields, "CQE fields")
        wide = np.flatnonzero(stride == 64)
        if wide.size:
            need(self.view.gather(q.at[wide] + 32, 32) == 0, "CQE upper half")
        ts = w[:, 4] | (w[:, 5] & 0xFFFF) << 32
        ts += self.view.exact.time_origin
        need((ts >= s.w_time[row]) & (ts <= r.time), "ts")
        ordered = ts[by_c]
        need(ordered >= previous(ordered, c_start, s.c_ts[ec]), "ts order")
        self._place = address, number, ts, by_c
        return dc, ci

    def responses(self, writes: Rows, q: Cqes, responses: Rows) -> None:
        """Responses of CQE writes come after them."""
        need(responses.flags == 0, "CQE response")
        for p in np.unique(responses.pe).tolist():
            before = len(self.s.cqe_bursts[p])
            at = responses.pos[responses.pe == p]
            seen = before + np.searchsorted(writes.pos[writes.pe == p], at)
            need(np.arange(at.size) < seen, "CQE response without a write")

    def commit(self, q: Cqes, writes: Rows, responses: Rows, ring_ci: tuple[I64, I64]) -> None:
        """CQEs into their slots; indices of CQs and QPs move on."""
        s = self.s
        end = last_of(ring_ci[0])
        s.c_ci[ring_ci[0][end]] = ring_ci[1][end]
        if q.g.size:
            end = last_of(q.g)
            s.q_ret[q.g[end]] = q.idx[end] + 1
            row = s.q_row[q.g[end]] + (q.idx[end] & s.q_mask[q.g[end]])
            s.q_ce_done[q.g[end]] = s.w_ceno[row]
            address, number, ts, by_c = self._place
            end = by_c[last_of(q.c[by_c])]
            s.c_prod[q.c[end]] = number[end] + 1
            s.c_ts[q.c[end]] = ts[end]
            # nothing in the batch reads a ring, so all CQEs go in at once; of one slot the last stays
            slot = s.c_flat[q.c] + number % s.c_depth[q.c] * s.c_stride[q.c]
            order = np.argsort(q.rows.pos, kind="stable")
            slot, at = slot[order], q.at[order]
            self._half[slot >> 5] = self.view.gather(at, 32).reshape(-1).view("V32")
            wide = s.c_stride[q.c[order]] == 64
            self._half[(slot[wide] >> 5) + 1] = np.zeros(1, "V32")[0]
            s.memory.touch_many(slot, s.c_stride[q.c[order]])
            by_pos = q.c[order]
            pe = s.c_pe[by_pos]
            for p in np.unique(pe).tolist():
                s.cqe_bursts[p].extend(by_pos[pe == p].tolist())
        for p, n in enumerate(np.bincount(responses.pe, minlength=len(s.pes)).tolist()):
            for _ in range(n):
                s.cqe_bursts[p].popleft()
