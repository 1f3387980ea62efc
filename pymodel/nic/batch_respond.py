"""Batch engine, responder's sending side: READ responses, ATOMIC ACKs, ACKs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymodel.formats.arrays import I64
from pymodel.nic import judge_frames as frames
from pymodel.nic.batch_held import Table
from pymodel.nic.batch_landing import Landing
from pymodel.nic.batch_link import Frames, Link
from pymodel.nic.batch_outstanding import READ_OPS
from pymodel.nic.batch_receive import Got
from pymodel.nic.batch_rows import FAR, MASK24, latest_of, need, previous, sums, true
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_wqe import spans


@dataclass
class Responses:
    """Responses as they left, sorted by QP and position."""

    g: I64
    c: I64  # last packet that each names
    # READ payload: rows of the frames, golden memory
    read: I64
    flat: I64
    #: data responses: rows of the frames, rows of the table
    data: I64
    at: I64
    k: I64  # their number in the READ


class Respond(Part):
    """Packets of responders."""

    def __init__(self, view: View, link: Link) -> None:
        super().__init__(view)
        self.link = link

    # ------------------------------------------------------------------ responses
    def judge(self, f: Frames, got: Got, table: Table, inbound: Landing) -> Responses:
        """Data responses in PSN order, all of them; ACKs as a legal set between them (wire.md 6)."""
        s = self.s
        g, pos = f.g, f.rows.pos
        none = np.zeros(0, np.int64)
        if not g.size:
            return Responses(g, g, *[none] * 5)
        is_ack = f.op == frames.ACK
        start, _ = spans(g)
        data = true(~is_ack)
        due, at, k = np.full(g.size, FAR), none, none
        if table.g.size:
            is_data = (~is_ack).astype(np.int64)
            nth = sums(is_data, start) - is_data
            t_start, _ = spans(table.g)
            left = table.packets - table.sent
            before = sums(left, t_start) - left
            at = np.searchsorted(table.g << 40 | before, g << 40 | nth, side="right") - 1
            k = nth - before[at] + table.sent[at]
            there = (at >= 0) & (table.g[at] == g) & (k < table.packets[at])
            due = np.where(there, table.number[at] + k, FAR)
        need(due[data] < FAR, "data response of no READ or atomic")
        # ---- which packets it stands for
        c = s.r_exp[g] + ((f.psn - s.q_rq_psn[g] - s.r_exp[g] + 0x800000) & MASK24) - 0x800000
        executed = latest_of(got.f.g, got.f.rows.pos, got.after, g, pos, s.r_exp[g])
        need((c >= 0) & (c < executed) & (c >= previous(c, start, s.r_sent[g])), "PSN of a response")
        need(np.where(is_ack, c < due, c == due), "order of responses")
        need(f.ack_req == 0, "AckReq in a response")
        self._aeth(f, c, got, true(is_ack))
        # ---- all writes of the QP up to the packet have their responses
        what = inbound.what
        if what.g.size:
            by = np.argsort(what.g << 40 | what.cum)
            keys = what.g[by] << 40 | what.cum[by]
            last = keys.searchsorted(g << 40 | c, side="right") - 1
            same = (last >= 0) & (keys[np.maximum(last, 0)] >> 40 == g)
            need(~same | (inbound.end[by][np.maximum(last, 0)] < pos), "response before the write response")
        if not data.size:
            return Responses(g, c, *[none] * 5)
        at, k = at[data], k[data]
        return self._data(f, c, data, at, k, table)

    def _data(self, f: Frames, c: I64, data: I64, at: I64, k: I64, table: Table) -> Responses:
        """Opcode, length and AETH of data responses."""
        g, pos = f.g[data], f.rows.pos[data]
        need(table.pos[at] < pos, "response before its request")
        read, mtu = table.read[at], self.s.q_mtu[g]
        first, last = k == 0, k == table.packets[at] - 1
        op = np.where(read, READ_OPS[2 * first + last], frames.ATOMIC_ACK)
        size = np.where(read, np.minimum(table.length[at] - k * mtu, mtu), 0)
        need((f.op[data] == op) & (f.size[data] == size), "data response")
        has_aeth = true(op != frames.READ_MIDDLE)
        syndrome, msn = self.link.aeth(f, data[has_aeth])
        need((syndrome == frames.SYN_ACK) & (msn == table.msn[at[has_aeth]] & MASK24), "AETH of a response")
        table.now = table.sent + np.bincount(at, minlength=table.g.size)
        table.end[at[last]] = pos[last]
        payload = true(size)
        return Responses(f.g, c, data[payload], table.flat[at[payload]] + (k * mtu)[payload], data, at, k)

    def _aeth(self, f: Frames, c: I64, got: Got, acks: I64) -> None:
        """Syndrome and MSN of ACKs: it names the messages that count at or before the packet."""
        s = self.s
        g, c, pos = f.g[acks], c[acks], f.rows.pos[acks]
        syndrome, msn24 = self.link.aeth(f, acks)
        need(syndrome == frames.SYN_ACK, "syndrome")
        now = latest_of(got.f.g, got.f.rows.pos, got.msn, g, pos, s.r_msn[g])
        msn = now - ((now - msn24) & MASK24)
        final = s.r_msn.copy()
        if got.next:
            final[got.next["g"]] = got.next["msn"]
        need((msn >= 0) & (msn > final[g] - s.e_rows + 1), "MSN far behind")
        ended = (msn == 0) | (s.e_end[g, (msn - 1) % s.e_rows] <= c)
        need(ended & ((msn == now) | (s.e_end[g, msn % s.e_rows] > c)), "MSN")
