"""Batch engine, READs and atomics at the requester: what is outstanding, its answers, limits and fences."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, Bools
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.batch_landing import Landing, Payload
from pymodel.nic.batch_link import Frames, Link
from pymodel.nic.batch_rows import FAR, MASK24, latest_of, need, previous, ragged, sums, true
from pymodel.nic.batch_transmit import Sent
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_state import ATOMIC, WRITE
from pymodel.nic.judge_wqe import spans

#: opcode of a READ response by 2 * first + last
READ_OPS: Final = np.array(
    [frames.READ_MIDDLE, frames.READ_LAST, frames.READ_FIRST, frames.READ_ONLY], np.int64
)


@dataclass
class Outstanding:
    """READs and atomics that are or were outstanding in the batch, sorted by QP and index."""

    g: I64
    idx: I64
    w: I64
    pos: I64  # where they started, -1: before the batch
    #: response packets that arrived: before the batch, after it
    got: I64
    now: I64
    #: of these, in memory after the batch
    land: I64
    #: position at which all result bytes were in memory, FAR: not yet
    end: I64
    #: sorted keys (QP << 32 | position) of starts, of ends
    started: I64
    ended: I64


@dataclass
class Answered:
    """Responses at their requesters, sorted by QP and position."""

    g: I64
    pos: I64
    after: I64  # packets acknowledged


class Answers(Part):
    """Responses as they arrive, and what they allow."""

    def __init__(self, view: View, link: Link) -> None:
        super().__init__(view)
        self.link = link

    def outstanding(self, sent: Sent) -> Outstanding:
        """READs and atomics from before, and those that start in the batch."""
        s = self.s
        old = [(g, idx) for g, queue in s.q_reads.items() for idx in queue]
        # nothing else may wait for data: a request that was never seen
        live = true((s.q_txw > s.q_ret) & ~s.q_odd)
        source, idx = ragged(s.q_ret[live], (s.q_txw - s.q_ret)[live])
        row = s.q_row[live[source]] + (idx & s.q_mask[live[source]])
        waits = np.count_nonzero(s.w_land[row] < s.w_np[row])
        need(waits == sum(not s.q_odd[g] for g, _ in old), "data that nobody asked for")
        new = sent.begins[sent.kind[sent.begins] != WRITE] if sent.f.g.size else sent.begins
        none = np.zeros(0, np.int64)
        if not old and not new.size:
            return Outstanding(*[none] * 10)
        pairs = np.array(old, np.int64).reshape(-1, 2)
        g = np.concatenate([pairs[:, 0], sent.f.g[new]])
        idx = np.concatenate([pairs[:, 1], sent.idx[new]])
        pos = np.concatenate([np.full(len(old), -1, np.int64), sent.f.rows.pos[new]])
        order = np.lexsort((idx, g))
        g, idx, pos = g[order], idx[order], pos[order]
        w = s.q_row[g] + (idx & s.q_mask[g])
        got = s.w_got[w]
        return Outstanding(g, idx, w, pos, got, got, got, np.full(g.size, FAR), got, got)

    def judge(self, f: Frames, sent: Sent, out: Outstanding) -> tuple[Answered, Payload]:
        """ACKs and data responses: what they acknowledge; results that have to be written."""
        s = self.s
        g, pos = f.g, f.rows.pos
        none = np.zeros(0, np.int64)
        payload = Payload(none, none, none, none.view(np.uint64), none, none, none, none, none, none)
        if not g.size:
            return Answered(g, pos, g), payload
        data = true(f.op != frames.ACK)
        start, _ = spans(g)
        due = np.full(g.size, FAR)
        if out.g.size:
            # response packets of a QP counted through: those before the row, and the one that is due
            is_data = (f.op != frames.ACK).astype(np.int64)
            nth = sums(is_data, start) - is_data
            packets = s.w_np[out.w]
            o_start, _ = spans(out.g)
            left = packets - out.got
            before = sums(left, o_start) - left
            at = np.searchsorted(out.g << 40 | before, g << 40 | nth, side="right") - 1
            k = nth - before[at] + out.got[at]
            there = (at >= 0) & (out.g[at] == g) & (k < packets[at])
            due = np.where(there, s.w_first[out.w[at]] + k, FAR)
        need(due[data] < FAR, "data response of no READ or atomic")
        acks = true(f.op == frames.ACK)
        after = due + 1
        distance = (f.psn[acks] - s.q_sq_psn[g[acks]] - s.q_ack[g[acks]]) & MASK24
        after[acks] = s.q_ack[g[acks]] + distance + 1
        need(after <= np.where(f.op == frames.ACK, due, FAR), "ACK passes a READ or atomic")
        need(after > previous(after, start, s.q_ack[g]), "ACK behind")
        need(after <= latest_of(sent.f.g, sent.f.rows.pos, sent.after, g, pos, s.q_tx[g]), "ACK ahead")
        has_aeth = true(f.op != frames.READ_MIDDLE)
        need(self.link.aeth(f, has_aeth)[0] == frames.SYN_ACK, "syndrome")
        if data.size:
            need(f.psn[data] == (due[data] + s.q_sq_psn[g[data]]) & MASK24, "PSN of a data response")
            need(out.pos[at[data]] < pos[data], "response before its request")
            payload = self._data(f, data, out, at[data], k[data], due[data])
            out.now = out.got + np.bincount(at[data], minlength=out.g.size)
        return Answered(g, pos, after), payload

    def _data(self, f: Frames, data: I64, out: Outstanding, at: I64, k: I64, number: I64) -> Payload:
        """Opcode, length and sink of data responses; their bytes."""
        s = self.s
        g, w = f.g[data], out.w[at]
        atomic, mtu = s.w_kind[w] == ATOMIC, s.q_mtu[g]
        first, last = k == 0, k == s.w_np[w] - 1
        op = np.where(atomic, frames.ATOMIC_ACK, READ_OPS[2 * first + last])
        size = np.where(atomic, 0, np.minimum(s.w_len[w] - k * mtu, mtu))
        need((f.op[data] == op) & (f.size[data] == size), "data response")
        length = np.where(atomic, s.w_len[w], size)
        va = s.w_laddr[w] + (k * mtu).view(np.uint64)
        pe = f.rows.pe[data]
        right = np.full(w.size, int(rules.Right.LOC_WRITE))
        need(s.allowed(s.w_lkey[w], False, right, va, length, pe), "sink of a response")
        flat = s.memory.flats(pe, va, length)
        need((flat >= 0) | (length == 0), "sink memory")
        need(~s.memory.faulty(pe, va, length, True), "sink memory")
        need(not s.meets_ring(flat, length), "sink in a ring")
        side = f.side[data] + frames.BASE + f.ext[data]
        # 8-byte results land little-endian; 4-byte ones as on the wire, from the low half (device.md 1.5)
        narrow, wide = true(atomic & (length == 4)), true(atomic & (length == 8))
        side[narrow] -= 4
        if wide.size:
            value = self.view.gather(side[wide] - 8, 8)[:, ::-1]
            side[wide] = self.view.keep([x.tobytes() for x in value])
        some = true(length)
        # nothing to write: in memory where it arrives
        empty = true(length == 0)
        out.end[at[empty]] = f.rows.pos[data][empty]
        return Payload(
            pe[some], g[some], number[some], va[some], length[some], flat[some], side[some],
            f.rows.pos[data][some], out.idx[at[some]], s.w_lkey[out.w[at[some]]],
        )  # fmt: skip

    # ------------------------------------------------------------------ results in memory
    def landed(self, out: Outstanding, results: Landing) -> None:
        """When all result bytes of a WQE are in memory."""
        s, what = self.s, results.what
        if not out.g.size:
            return
        rows = true(results.end < FAR)
        at = np.searchsorted(out.g << 40 | out.idx, what.g[rows] << 40 | what.wqe[rows])
        packets = s.w_np[out.w]
        # responses without bytes are there when they arrive
        out.land = s.w_land[out.w] + np.bincount(at, minlength=out.g.size) + (out.end < FAR)
        last = np.full(out.g.size, FAR)
        last[at] = results.end[rows]
        out.end = np.where((out.end == FAR) & (out.land == packets), last, out.end)
        order = np.lexsort((out.end, out.g))
        order = order[out.end[order] < FAR]
        out.ended = out.g[order] << 32 | out.end[order]
        out.started = out.g << 32 | out.pos + 1

    @staticmethod
    def _count(keys: I64, g: I64, pos: I64) -> I64:
        """Events of a QP before a position; keys sorted."""
        found: I64 = keys.searchsorted(g << 32 | pos) - keys.searchsorted(g << 32)
        return found

    def done(self, out: Outstanding, g: I64, idx: I64, pos: I64) -> Bools:
        """Whether at a position all READs and atomics of a QP up to an index had their bytes in memory."""
        if not out.g.size:
            return np.ones(g.size, np.bool_)
        up_to = np.searchsorted(out.g << 40 | out.idx, g << 40 | idx, side="right")
        up_to -= np.searchsorted(out.g << 40, g << 40)
        over: Bools = self._count(out.ended, g, pos) >= up_to
        return over

    # ------------------------------------------------------------------ limits
    def may_start(self, sent: Sent, out: Outstanding, answered: Answered, room: I64) -> None:
        """Fence, READs and atomics outstanding, WQEs in flight, PSN window.

        room: CQ room at the begin of each WQE, seen from its QP.
        """
        s, b = self.s, sent.begins
        g, pos, w, idx = sent.f.g[b], sent.f.rows.pos[b], sent.w[b], sent.idx[b]
        need(sent.after - s.q_ack[sent.f.g] < s.params.psn_window, "PSN window")
        if out.g.size:
            under_way = self._count(out.started, g, pos) - self._count(out.ended, g, pos)
            need(~s.w_fence[w] | (under_way == 0), "fence")
            need((sent.kind[b] == WRITE) | (under_way < s.q_max_rd[g]), "READs and atomics outstanding")
        # the WQE so many places before must have been retired
        before = idx - s.params.max_inflight
        some = true(before >= s.q_ret[g])
        g, pos, before = g[some], pos[some], before[some]
        row = s.q_row[g] + (before & s.q_mask[g])
        acked = latest_of(answered.g, answered.pos, answered.after, g, pos, s.q_ack[g])
        need(acked >= s.w_first[row] + s.w_np[row], "WQEs in flight")
        need(self.done(out, g, before, pos), "WQEs in flight")
        need(s.w_ceno[row] <= room[some], "WQEs in flight")

    def commit(self, out: Outstanding) -> None:
        """Leave what is outstanding."""
        s = self.s
        s.w_got[out.w], s.w_land[out.w] = out.now, out.land
        for g in np.unique(out.g).tolist():
            s.q_reads[g] = deque(out.idx[(out.g == g) & (out.end == FAR)].tolist())
