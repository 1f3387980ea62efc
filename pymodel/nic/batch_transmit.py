"""Batch engine, transmit: request packets as they leave their NIC."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from pymodel.formats.arrays import I64, U8, U64
from pymodel.nic import judge_frames as frames
from pymodel.nic.batch_reads import Fetches
from pymodel.nic.batch_rows import FEW, MASK24, SHORT, Rows, last_of, latest_of, need, ragged
from pymodel.nic.batch_view import Part
from pymodel.nic.judge_wqe import spans


@dataclass
class Requests:
    """Request packets, sorted by QP, then position."""

    rows: Rows
    g: I64
    number: I64
    side: I64  # side offset of the payload
    size: I64
    flat: I64  # golden memory: source (transmit) or target (receive)
    va: U64  # target address (receive only)


class Transmit(Part):
    """Request packets of requesters."""

    def split(self, r: Rows) -> tuple[Rows, Rows]:
        """Requests and ACKs, with their first bytes and side offsets."""
        need(r.len >= frames.BASE + frames.ICRC, "short frame")
        at = self.view.place(r.off)
        head = self.view.gather(at, frames.ROW)
        r = Rows(r.part, r.pos, head, at)
        is_ack = head[:, 42] == frames.ACK
        return r.take(~is_ack), r.take(is_ack)

    def received_crcs(self, flow: I64, number: I64, head: U8, side: I64, length: I64, sent: Requests) -> None:
        """ICRC of received frames: good where it is byte for byte a frame that was checked when sent."""
        rest = np.ones(flow.size, np.bool_)
        keys = sent.g << 40 | sent.number
        if keys.size:
            key = flow << 40 | number
            at = np.minimum(np.searchsorted(keys, key), keys.size - 1)
            same = (keys[at] == key) & (sent.rows.len[at] == length) & (length <= SHORT)
            for size in np.unique(length[same]).tolist():
                mine = np.flatnonzero(same & (length == size))
                if mine.size < FEW:
                    continue
                ours, theirs = (
                    self.view.gather(side[mine], size),
                    self.view.gather(sent.rows.side[at[mine]], size),
                )
                if np.array_equal(ours, theirs):
                    rest[mine] = False
        if rest.any():
            self._body_crcs(flow[rest], head[rest], side[rest], length[rest])

    def _body_crcs(self, flow: I64, head: U8, side: I64, length: I64) -> None:
        """ICRC of request frames by zlib over what follows the BTH (wire.md 4)."""
        state = self.s.flow_rows.head_crcs(flow, head).tolist()
        view = memoryview(self.view.side)  # type: ignore[arg-type]
        crc = zlib.crc32
        starts, ends = (side + frames.BASE).tolist(), (side + length - frames.ICRC).tolist()
        computed = [crc(view[a:b], h) for a, b, h in zip(starts, ends, state, strict=True)]
        stored = self.view.gather(side + length - frames.ICRC, 4).view("<u4")[:, 0]
        need(np.array(computed, np.uint32) == stored, "ICRC")

    def requests(self, r: Rows, pi: I64, fetched: Fetches) -> Requests:
        """Request packets against the next expected of each QP: everything but the payload."""
        s = self.s
        none = np.empty(0, np.int64)
        if not len(r):
            return Requests(r, none, none, none, none, none, none.view(np.uint64))
        g = self.view.tx_qp(r)
        order = np.argsort(g, kind="stable")
        r, g = r.take(order), g[order]
        head: U8 = r.head
        side: I64 = r.side
        start, rank = spans(g)
        number = s.q_tx[g] + rank
        # every WQE has at least one packet: as many WQEs as packets are enough to look at
        end = last_of(g)
        qps, packets = g[end], rank[end] + 1
        source, idx = ragged(s.q_txw[qps], np.minimum(packets, pi[qps] - s.q_txw[qps]))
        row = s.q_row[qps[source]] + (idx & s.q_mask[qps[source]])
        dense = np.cumsum(start == np.arange(g.size)) - 1
        keys = source << 40 | s.w_first[row]
        at = np.searchsorted(keys, dense << 40 | number, side="right") - 1
        need((at >= 0) & (keys.size > 0), "packet of no WQE")
        need(source[at] == dense, "packet of no WQE")
        w, idx = row[at], idx[at]
        k = number - s.w_first[w]
        need((k >= 0) & (k < s.w_np[w]) & (s.w_err[w] == 0), "packet of no WQE")
        need(s.w_pos[w] < r.pos + s.position, "packet before its doorbell")
        need(
            latest_of(fetched.g, fetched.pos, fetched.after, g, r.pos, s.q_fetch[g]) > idx,
            "packet before its fetch",
        )
        for qp, pos, begin in fetched.again:
            low, high = np.searchsorted(g, [qp, qp + 1])
            need((idx[low:high] < begin) | (r.pos[low:high] > pos), "fetch of a sent WQE")
        only, last = s.w_np[w] == 1, k == s.w_np[w] - 1
        opcode = np.where(
            only, frames.WRITE_ONLY,
            np.where(k == 0, frames.WRITE_FIRST, np.where(last, frames.WRITE_LAST, frames.WRITE_MIDDLE)),
        )  # fmt: skip
        ack_req = (last | ((k + 1) % s.params.ack_interval == 0)).astype(np.int64)
        mtu = s.q_mtu[g]
        size = np.minimum(mtu, s.w_len[w] - k * mtu)
        pad = -size & 3
        ext = np.where(k == 0, frames.RETH, 0)
        psn = (number + s.q_sq_psn[g]) & MASK24
        want = s.flow_rows.build(g, opcode, pad, ack_req, psn, ext + size + pad)
        first = np.flatnonzero(k == 0)
        frames.fill_reth(
            want, first, s.w_raddr[w[first]].view(np.int64), s.w_rkey[w[first]], s.w_len[w[first]]
        )
        need(r.len == frames.BASE + ext + size + pad + frames.ICRC, "frame length")
        need(want[:, : frames.BASE] == head[:, : frames.BASE], "headers")
        need(want[first, frames.BASE :] == head[first, frames.BASE :], "RETH")
        self._pads(side, r.len, pad)
        self._body_crcs(g, head, side, r.len)
        # a column that only this engine reads, and only between doorbell and here
        s.w_sent[w[last]] = r.pos[last] + s.position
        flat = s.w_flat[w] + k * mtu
        need(not s.meets_ring(flat, size), "source in a ring")
        self._tx_next = qps, number[end] + 1, idx[end] + last[end]
        return Requests(r, g, number, side + frames.BASE + ext, size, flat, s.w_raddr[w])

    def _pads(self, side: I64, length: I64, pad: I64) -> None:
        padded = np.flatnonzero(pad)
        if padded.size:
            tail = self.view.gather(side[padded] + length[padded] - 8, 4)
            inside = np.arange(4) >= 4 - pad[padded][:, None]
            need(~inside | (tail == 0), "pad")

    def commit(self, sent: Requests) -> None:
        """Move the requesters on."""
        if sent.g.size:
            qps, number, wqe = self._tx_next
            self.s.q_tx[qps] = number
            self.s.q_txw[qps] = wqe
