"""Batch engine, receive: request packets at their responders."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymodel.formats.arrays import I64, U8
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.batch_rows import MASK24, Rows, be, last_of, need, previous, sums
from pymodel.nic.batch_transmit import Requests, Transmit
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_wqe import spans


class Receive(Part):
    """Request packets at responders."""

    def __init__(self, view: View, transmit: Transmit) -> None:
        super().__init__(view)
        self.transmit = transmit

    def requests(self, r: Rows, sent: Requests) -> tuple[Requests, dict[str, Any]]:
        """Requests at their responders: PSN, sequence, lengths, rights (wire.md 5); what they leave."""
        s = self.s
        none = np.empty(0, np.int64)
        if not len(r):
            return Requests(r, none, none, none, none, none, none.view(np.uint64)), {}
        head: U8 = r.head
        g = self.view.qp(r.pe, be(head, 47, 3))
        self.view.usable(g, "receiving QP")
        order = np.argsort(g, kind="stable")
        r, g, head = r.take(order), g[order], head[order]
        side: I64 = r.side
        flow = s.q_peer[g]
        need(flow >= 0, "peer")
        opcode = head[:, 42].astype(np.int64)
        begins = (opcode == frames.WRITE_FIRST) | (opcode == frames.WRITE_ONLY)
        ends = (opcode == frames.WRITE_LAST) | (opcode == frames.WRITE_ONLY)
        need(begins | ends | (opcode == frames.WRITE_MIDDLE), "request opcode")
        ext = np.where(begins, frames.RETH, 0)
        pad = head[:, 43].astype(np.int64) >> 4 & 3
        size = r.len - frames.BASE - frames.ICRC - ext - pad
        start, rank = spans(g)
        number = s.r_exp[g] + rank
        psn = (number + s.q_rq_psn[g]) & MASK24
        ack_req = head[:, 50].astype(np.int64) >> 7
        want = s.flow_rows.build(flow, opcode, pad, ack_req, psn, ext + size + pad)
        need((size >= 0) & (pad == -size & 3), "pad count")
        need(want[:, : frames.BASE] == head[:, : frames.BASE], "received headers")
        self.transmit.received_crcs(flow, number, head, side, r.len, sent)
        # ---- sequence: a message is open unless the packet before ended one
        is_open = previous((~ends).astype(np.int64), start, s.r_open[g].astype(np.int64))
        need(begins != (is_open != 0), "opcode sequence")
        here = np.arange(g.size)
        opened = np.maximum.accumulate(np.where(begins, here, -1))
        carried = opened < start  # goes on with a message of an earlier batch
        opened = np.where(carried, start, opened)
        mtu = s.q_mtu[g]
        offset = (here - opened) * mtu
        va0 = be(head, 54, 8).view(np.uint64)
        base = np.where(carried, s.r_va[g], va0[opened])
        rkey = np.where(carried, s.r_rkey[g], be(head, 62, 4)[opened])
        total = np.where(carried, s.r_left[g], be(head, 66, 4)[opened])
        left = total - offset
        whole = (size == mtu) & (left > mtu)
        final = (size == left) & (size <= mtu) & ((size > 0) | (opcode == frames.WRITE_ONLY))
        need(np.where(ends, final, whole), "lengths")
        va = base + offset.view(np.uint64)
        need(s.q_write[g], "QP right")
        # ---- key, right and range at the first packet; the key again where a message goes on
        check = np.flatnonzero(begins)
        verdict = rules.mr_check(
            s.mr_rows, rkey[check], True, rules.Right.REM_WRITE, base[check], total[check], r.pe[check]
        )
        need(verdict == rules.MrVerdict.OK, "MR")
        again = np.flatnonzero(carried)
        if again.size:
            verdict = rules.mr_check(
                s.mr_rows, rkey[again], True, rules.Right.REM_WRITE, va[again], size[again], r.pe[again]
            )
            need(verdict == rules.MrVerdict.OK, "MR of an open message")
        flat = s.memory.flats(r.pe, va, size)
        need((flat >= 0) | (size == 0), "target memory")
        need(~s.memory.faulty(r.pe, va, size, True), "target memory")
        need(not s.meets_ring(flat, size), "target in a ring")
        # ---- messages
        msn = s.r_msn[g] + sums(ends.astype(np.int64), start)
        end = last_of(g)
        need(msn[end] - s.r_msn[g[end]] < s.e_rows // 2, "too many messages")
        done = np.flatnonzero(ends)
        # rows beyond r_msn: no harm if the batch is given up
        s.e_end[g[done], (msn[done] - 1) % s.e_rows] = number[done]
        asks = np.maximum.accumulate(np.where(ack_req > 0, here, -1))
        after = {
            "g": g[end], "exp": number[end] + 1, "msn": msn[end], "open": ~ends[end],
            "va": (va + size.view(np.uint64))[end], "left": (left - size)[end], "rkey": rkey[end],
            "asks": np.where(asks[end] >= start[end], number[np.maximum(asks[end], 0)], s.r_req[g[end]]),
            "all_msn": msn,
        }  # fmt: skip
        return Requests(r, g, number, side + frames.BASE + ext, size, flat, va), after

    def commit(self, got: Requests, after: dict[str, Any]) -> None:
        """Move the responders on."""
        s = self.s
        if not after:
            return
        g = after["g"]
        s.r_exp[g], s.r_msn[g], s.r_open[g] = after["exp"], after["msn"], after["open"]
        s.r_va[g], s.r_left[g], s.r_rkey[g] = after["va"], after["left"], after["rkey"]
        s.r_req[g] = after["asks"]
        s.r_ahead[g] = False
