"""Batch engine, acknowledgements: as they leave responders, and at requesters."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymodel.formats.arrays import I64, U8
from pymodel.nic import judge_frames as frames
from pymodel.nic.batch_landing import Landing
from pymodel.nic.batch_rows import MASK24, Rows, be, latest_of, need, previous
from pymodel.nic.batch_transmit import Requests
from pymodel.nic.batch_view import Part
from pymodel.nic.judge_wqe import spans


class Acks(Part):
    """ACKs, sent and received."""

    def _ack_rows(self, r: Rows, flow: I64) -> tuple[I64, I64]:
        """(PSN, MSN) of plain ACKs whose every other byte is as expected."""
        head: U8 = r.head
        side: I64 = r.side
        psn = be(head, 51, 3)
        zero = np.zeros(len(r), np.int64)
        want = self.s.flow_rows.build(flow, zero + frames.ACK, zero, zero, psn, zero + frames.AETH)
        need(r.len == frames.BASE + frames.AETH + frames.ICRC, "ACK length")
        need(want[:, : frames.BASE] == head[:, : frames.BASE], "ACK headers")
        need(head[:, 54] == frames.SYN_ACK, "syndrome")
        stored = self.view.gather(side + frames.BASE + frames.AETH, 4).view("<u4")[:, 0]
        need(self.s.flow_rows.ack_crcs(flow, head) == stored, "ACK ICRC")
        return psn, be(head, 55, 3)

    def received(self, r: Rows, requests: Requests) -> tuple[I64, I64, I64]:
        """(QP, position, acknowledged packets) of received ACKs, sorted by QP and position."""
        s = self.s
        if not len(r):
            return r.pos, r.pos, r.pos
        g = self.view.qp(r.pe, be(r.head, 47, 3))
        self.view.usable(g, "acknowledged QP")
        order = np.argsort(g, kind="stable")
        r, g = r.take(order), g[order]
        need(s.q_peer[g] >= 0, "peer")
        psn, _ = self._ack_rows(r, s.q_peer[g])
        start, _ = spans(g)
        after = s.q_ack[g] + ((psn - s.q_sq_psn[g] - s.q_ack[g]) & MASK24) + 1
        need(after > previous(after, start, s.q_ack[g]), "ACK behind")
        need(
            after <= latest_of(requests.g, requests.rows.pos, requests.number + 1, g, r.pos, s.q_tx[g]),
            "ACK ahead",
        )
        return g, r.pos, after

    def sent(self, r: Rows, got: Requests, after: dict[str, Any], landing: Landing) -> tuple[I64, I64]:
        """ACKs as a legal set (wire.md 6): (QP, packet) sorted by QP and position."""
        s = self.s
        if not len(r):
            return r.pos, r.pos
        g = self.view.tx_qp(r)
        order = np.argsort(g, kind="stable")
        r, g = r.take(order), g[order]
        psn, msn24 = self._ack_rows(r, g)
        start, _ = spans(g)
        c = s.r_exp[g] + ((psn - s.q_rq_psn[g] - s.r_exp[g] + 0x800000) & MASK24) - 0x800000
        executed = latest_of(got.g, got.rows.pos, got.number + 1, g, r.pos, s.r_exp[g])
        need((c >= 0) & (c < executed) & (c >= previous(c, start, s.r_sent[g])), "ACK PSN")
        # the MSN names the messages that end at or before the packet
        now = latest_of(got.g, got.rows.pos, after.get("all_msn", r.pos), g, r.pos, s.r_msn[g])
        msn = now - ((now - msn24) & MASK24)
        final = s.r_msn.copy()
        if after:
            final[after["g"]] = after["msn"]
        need((msn >= 0) & (msn > final[g] - s.e_rows + 1), "MSN far behind")
        ended = (msn == 0) | (s.e_end[g, (msn - 1) % s.e_rows] <= c)
        need(ended & ((msn == now) | (s.e_end[g, msn % s.e_rows] > c)), "MSN")
        # all writes of the QP up to the packet have their responses
        by = np.lexsort((landing.cum, landing.g))
        keys = landing.g[by] << 40 | landing.cum[by]
        if keys.size:
            at = np.searchsorted(keys, g << 40 | c, side="right") - 1
            same = (at >= 0) & (keys[np.maximum(at, 0)] >> 40 == g)
            need(~same | (landing.at[by][np.maximum(at, 0)] < r.pos), "ACK before the write response")
        return g, c
