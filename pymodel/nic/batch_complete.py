"""Batch engine, completion: CQE writes, CQ doorbells."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from pymodel.formats.arrays import I64, U32, Bools
from pymodel.nic.batch_outstanding import Answered
from pymodel.nic.batch_rows import (
    ALL_ONES,
    FAR,
    Rows,
    by_group,
    last_of,
    latest_of,
    need,
    previous,
    sums,
    true,
)
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


@dataclass
class Rings:
    """CQ doorbells and CQEs, each sorted by CQ and position."""

    c: I64
    pos: I64
    ci: I64  # consumer index after the doorbell
    by_c: I64  # rows of Cqes
    ec: I64
    epos: I64
    prod: I64  # number of the CQE in its CQ


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

    def doorbells(self, q: Cqes, cq: Rows) -> Rings:
        """CQ doorbells against the CQEs before them."""
        s, r = self.s, q.rows
        page = self.view.page_qp(cq)
        order = np.argsort(s.q_cq[page], kind="stable")
        cq, dc = cq.take(order), s.q_cq[page][order]
        by_c = np.argsort(q.c << 32 | r.pos)
        ec, epos = q.c[by_c], r.pos[by_c]
        _, c_rank = spans(ec)
        prod = s.c_prod[ec] + c_rank
        need(
            (dc >= 0) & ((cq.data >> np.uint64(23) & np.uint64(0xFFFF)).astype(np.int64) == s.c_cqn[dc]),
            "CQ number",
        )
        cid = (cq.data & np.uint64(0x7FFFFF)).astype(np.int64)
        d_start, _ = spans(dc)
        ci = s.c_ci[dc] + sums((cid - previous(cid, d_start, s.c_ci[dc])) & 0x7FFFFF, d_start)
        need(ci <= latest_of(ec, epos, prod + 1, dc, cq.pos, s.c_prod[dc]), "CQ doorbell")
        return Rings(dc, cq.pos, ci, by_c, ec, epos, prod)

    def room(self, q: Cqes, rings: Rings, g: I64, pos: I64) -> I64:
        """Number of the last WQE with ce (as in w_ceno) whose CQE fits at a position, by QP."""
        s = self.s
        c = s.q_cq[g]
        bounded = (c >= 0) & ~s.c_ignore[c]
        row = s.q_row[q.g] + (q.idx & s.q_mask[q.g])
        done = latest_of(q.g, q.rows.pos, s.w_ceno[row], g, pos, s.q_ce_done[g])
        prod = latest_of(rings.ec, rings.epos, rings.prod + 1, c, pos, s.c_prod[c])
        ci = latest_of(rings.c, rings.pos, rings.ci, c, pos, s.c_ci[c])
        out: I64 = np.where(bounded, done + s.c_depth[c] - (prod - ci), FAR)
        return out

    def judge(self, q: Cqes, rings: Rings, pi: I64, answered: Answered, over: Bools) -> None:
        """Every field of every CQE, its place and time; over: the data of READs and atomics is in memory."""
        s, r, g, idx, c = self.s, q.rows, q.g, q.idx, q.c
        if not len(r):
            return
        # ---- the WQE
        need((idx >= s.q_ret[g]) & (idx < pi[g]), "CQE of no WQE")
        row = s.q_row[g] + (idx & s.q_mask[g])
        _, rank = spans(g)
        need(s.w_ce[row] & (s.w_ceno[row] == s.q_ce_done[g] + rank + 1) & (s.w_err[row] == 0), "CQE order")
        need(s.w_pos[row] < r.pos + s.position, "CQE before its doorbell")
        done = s.w_first[row] + s.w_np[row]
        acked = latest_of(answered.g, answered.pos, answered.after, g, r.pos, s.q_ack[g])
        need((acked >= done) & over, "CQE before its ACK or its data")
        # ---- place
        need(c >= 0, "CQ")
        need(~s.c_dead[c] & (s.c_flat[c] >= 0), "CQ")
        number = np.empty(c.size, np.int64)
        number[rings.by_c] = rings.prod
        stride, depth = s.c_stride[c], s.c_depth[c]
        # ignore_overrun: always slot 0, owner by the WQE's index (device.md 2.6)
        ignore = s.c_ignore[c]
        address = s.c_base[c] + np.where(ignore, 0, number % depth * stride).astype(np.uint64)
        lane = (address & np.uint64(63)).astype(np.int64)
        need((r.addr & np.uint64(~63 & ALL_ONES)) + lane.astype(np.uint64) == address, "slot")
        ones = np.where(stride == 64, np.uint64(ALL_ONES), np.uint64(0xFFFFFFFF) << lane.astype(np.uint64))
        need((r.aux0 == ones) & (r.aux1 == stride.astype(np.uint64)) & (r.len == 1), "CQE strobes")
        used = number - latest_of(rings.c, rings.pos, rings.ci, c, r.pos, s.c_ci[c])
        need((used < depth) | ignore, "CQ room")
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
        phase = np.where(ignore, idx & np.where(v1, 0x1FFF, 0x1FFFF), number) // depth & 1
        fields &= w[:, 7] == phase << 31
        need(fields, "CQE fields")
        wide = true(stride == 64)
        if wide.size:
            need(self.view.gather(q.at[wide] + 32, 32) == 0, "CQE upper half")
        ts = w[:, 4] | (w[:, 5] & 0xFFFF) << 32
        ts += self.view.exact.time_origin
        need((ts >= s.w_time[row]) & (ts <= r.time), "ts")
        ordered = ts[rings.by_c]
        c_start, _ = spans(rings.ec)
        need(ordered >= previous(ordered, c_start, s.c_ts[rings.ec]), "ts order")
        self._place = number, ts

    def responses(self, writes: Rows, q: Cqes, responses: Rows) -> None:
        """Responses of CQE writes come after them; those that fire an arm are the exact engine's."""
        s = self.s
        need(responses.flags == 0, "CQE response")
        # bursts by PE in order: CQ and position
        old = [(p, c) for p, queue in enumerate(s.cqe_bursts) for c in queue]
        pairs = np.array(old, np.int64).reshape(-1, 2)
        order = np.argsort(q.rows.pos)
        pe, c = np.concatenate([pairs[:, 0], writes.pe]), np.concatenate([pairs[:, 1], q.c[order]])
        pos = np.concatenate([np.full(len(old), -1, np.int64), writes.pos])
        by = by_group(pe)
        pe, c, pos = pe[by], c[by], pos[by]
        need(c >= 0, "CQE of no CQ")
        begin = pe.searchsorted(np.arange(len(s.pes)))
        stop = pe.searchsorted(np.arange(len(s.pes)), side="right")
        responses = responses.take(by_group(responses.pe))
        _, rank = spans(responses.pe)
        at = begin[responses.pe] + rank
        need(at < stop[responses.pe], "CQE response without a write")
        need((pos[at] < responses.pos) & (s.c_arm[c[at]] == 0), "CQE response without a write, or an event")
        begin += np.bincount(responses.pe, minlength=begin.size)
        self._bursts = [deque(c[a:b].tolist()) for a, b in zip(begin.tolist(), stop.tolist(), strict=True)]

    def commit(self, q: Cqes, writes: Rows, responses: Rows, rings: Rings) -> None:
        """CQEs into their slots; indices of CQs and QPs move on."""
        s = self.s
        end = last_of(rings.c)
        s.c_ci[rings.c[end]] = rings.ci[end]
        if q.g.size:
            end = last_of(q.g)
            s.q_ret[q.g[end]] = q.idx[end] + 1
            row = s.q_row[q.g[end]] + (q.idx[end] & s.q_mask[q.g[end]])
            s.q_ce_done[q.g[end]] = s.w_ceno[row]
            number, ts = self._place
            end = rings.by_c[last_of(rings.ec)]
            s.c_prod[q.c[end]] = number[end] + 1
            s.c_ts[q.c[end]] = ts[end]
            # nothing in the batch reads a ring, so all CQEs go in at once; of one slot the last stays
            place: I64 = np.where(s.c_ignore[q.c], 0, number % s.c_depth[q.c])
            slot = s.c_flat[q.c] + place * s.c_stride[q.c]
            order = np.argsort(q.rows.pos, kind="stable")
            slot, at = slot[order], q.at[order]
            self._open(q.rows.pe[order], slot, at, s.c_stride[q.c[order]])
            self._half[slot >> 5] = self.view.gather(at, 32).reshape(-1).view("V32")
            wide = s.c_stride[q.c[order]] == 64
            self._half[(slot[wide] >> 5) + 1] = np.zeros(1, "V32")[0]
            s.memory.touch_many(slot, s.c_stride[q.c[order]])
        else:
            self._open(q.g, q.g, q.g, q.g)
        n_pes = len(s.pes)
        new, gone = (np.bincount(rows.pe, minlength=n_pes).tolist() for rows in (writes, responses))
        for p, bursts in enumerate(self._bursts):
            s.cqe_bursts[p] = bursts
            self.view.exact.events.passed(p, new[p], gone[p])

    def _open(self, pe: I64, slot: I64, at: I64, stride: I64) -> None:
        """What stood in the slots of CQEs that have no response yet; all in the order of the stream."""
        s = self.s
        for p, bursts in enumerate(self._bursts):
            kept, mine = s.cqe_slots[p], true(pe == p)
            answered = len(kept) + mine.size - len(bursts)
            left = max(answered - len(kept), 0)
            for _ in range(answered - left):
                kept.popleft()
            for i in mine[left:].tolist():
                flat, size = int(slot[i]), int(stride[i])
                lap = true(slot[:i] == flat)
                old = self._bytes(int(at[lap[-1]]), size) if lap.size else s.memory.view[flat : flat + size]
                kept.append((flat, bytes(old), self._bytes(int(at[i]), size)))

    def _bytes(self, at: int, size: int) -> bytes:
        """A CQE; its upper half is zero."""
        return self.view.take(at, 32).ljust(size, b"\0")
