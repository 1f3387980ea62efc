"""Batch engine, responder's receiving side: PSN, sequence, lengths and rights of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pymodel.formats.arrays import I64, U64
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.batch_landing import Payload
from pymodel.nic.batch_link import Frames, Link
from pymodel.nic.batch_rows import MASK24, last_of, need, previous, sums, true
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_wqe import spans


@dataclass
class Got:
    """Request packets as they arrived, sorted by QP, then position."""

    f: Frames
    number: I64
    after: I64  # number of the packet that follows
    at: I64  # side offset of the payload
    size: I64
    flat: I64  # golden memory: where the payload goes
    va: U64
    keys: I64  # rkey of its message
    msn: I64  # messages executed, this packet included
    #: rows of READs and atomics, their address, key and bytes
    held: I64
    held_va: U64
    held_rkey: I64
    held_length: I64
    #: per QP, what the packets leave
    next: dict[str, Any]

    def payload(self) -> Payload:
        """What has to be written."""
        some = true(self.size > 0)
        f = self.f
        return Payload(
            f.rows.pe[some], f.g[some], self.number[some], self.va[some], self.size[some], self.flat[some],
            self.at[some], f.rows.pos[some], np.full(some.size, -1, np.int64), self.keys[some],
        )  # fmt: skip


class Receive(Part):
    """Request packets at responders."""

    def __init__(self, view: View, link: Link) -> None:
        super().__init__(view)
        self.link = link

    def requests(self, f: Frames) -> Got:
        """Requests at their responders (wire.md 5): all of them are executed."""
        s = self.s
        g, op, size = f.g, f.op, f.size
        if not g.size:
            return Got(f, g, g, g, g, g, g.view(np.uint64), g, g, g, g.view(np.uint64), g, g, {})
        takes = rules.TAKES_ENTRY[op]
        held = true(takes)
        begins = (op == frames.WRITE_FIRST) | (op == frames.WRITE_ONLY)
        ends = (op == frames.WRITE_LAST) | (op == frames.WRITE_ONLY)
        if held.size:
            begins |= takes
            ends |= takes
        need(begins | ends | (op == frames.WRITE_MIDDLE), "request opcode")
        start, rank = spans(g)
        mtu = s.q_mtu[g]
        here = np.arange(g.size)
        # ---- first packets
        check = true(begins)
        va0, rkey0, total0 = self.link.reth(f, check)
        if held.size:
            narrow = rules.OPERAND_BYTES[op[check]]
            total0 = np.where(narrow > 0, narrow, total0)
            need((narrow == 0) | (va0 & (narrow - 1).astype(np.uint64) == 0), "misaligned atomic")
        count = np.ones(g.size, np.int64)
        in_check = np.cumsum(begins) - 1  # row of `check` of each packet's message
        of_held = in_check[held]
        read = true(op[held] == frames.READ_REQUEST)
        count[held[read]] = rules.psn_count(total0[of_held[read]], mtu[held[read]])
        after = s.r_exp[g] + (sums(count, start) if held.size else rank + 1)
        number = after - count
        need(f.psn == (number + s.q_rq_psn[g]) & MASK24, "request PSN")
        # ---- sequence: a message is open unless the packet before ended one
        is_open = previous(~ends, start, s.r_open[g])
        need(begins != is_open, "opcode sequence")
        carried = in_check < 0
        opened = check[in_check] if check.size else in_check
        carried |= opened < start  # goes on with a message of an earlier batch
        opened = np.where(carried, start, opened)
        offset = (here - opened) * mtu
        if check.size:
            base = np.where(carried, s.r_va[g], va0[in_check])
            rkey = np.where(carried, s.r_rkey[g], rkey0[in_check])
            total = np.where(carried, s.r_left[g], total0[in_check])
        else:
            base, rkey, total = s.r_va[g], s.r_rkey[g], s.r_left[g]
        left = total - offset
        whole = (size == mtu) & (left > mtu)
        final = (size == left) & (size <= mtu) & ((size > 0) | (op == frames.WRITE_ONLY))
        lengths = np.where(ends, final, whole)
        lengths[held] = (size[held] == 0) & (total[held] <= rules.MAX_MESSAGE)
        need(lengths & (total <= rules.MAX_MESSAGE), "lengths")
        va = base + offset.view(np.uint64)
        self._rights(f, check, va0, rkey0, total0, true(carried), rkey, va)
        # ---- memory
        flat = s.memory.flats(f.rows.pe, va, size)
        need((flat >= 0) | (size == 0), "target memory")
        need(~s.memory.faulty(f.rows.pe, va, size, True), "target memory")
        need(not s.meets_ring(flat, size), "target in a ring")
        # ---- messages
        msn = s.r_msn[g] + sums(ends.astype(np.int64), start)
        end = last_of(g)
        need(msn[end] - s.r_msn[g[end]] < s.e_rows // 2, "too many messages")
        done = true(ends)
        # a WRITE counts at its last packet, a READ at its first PSN; if the batch is given up, rows beyond
        # r_msn do no harm
        s.e_end[g[done], (msn[done] - 1) % s.e_rows] = number[done]
        # per QP the last one that asks for an ACK, the last WRITE: of READs and atomics nothing is left
        begin = start[end]
        asks = np.maximum.reduceat(np.where((f.ack_req > 0) & ~takes, here, -1), begin)
        write = np.maximum.reduceat(np.where(takes, -1, here), begin) if held.size else end
        old, w = write < begin, np.maximum(write, 0)
        ends_at, rest = va + size.view(np.uint64), left - size
        next_state = {
            "g": g[end], "exp": after[end], "msn": msn[end], "open": ~ends[end],
            "va": np.where(old, s.r_va[g[end]], ends_at[w]), "left": np.where(old, s.r_left[g[end]], rest[w]),
            "rkey": np.where(old, s.r_rkey[g[end]], rkey[w]),
            "len": np.where(old | carried[w], s.r_len[g[end]], total[w]),
            "asks": np.where(asks >= begin, number[np.maximum(asks, 0)], s.r_req[g[end]]),
        }  # fmt: skip
        return Got(
            f, number, after, f.side + frames.BASE + f.ext, size, flat, va, rkey, msn, held, va[held],
            rkey[held], total[held], next_state,
        )  # fmt: skip

    def _rights(
        self, f: Frames, check: I64, va: U64, rkey: I64, total: I64, again: I64, keys: I64, vas: U64
    ) -> None:
        """Rights of QPs; key, right and range at first packets; the key again where a message goes on."""
        s = self.s
        right = rules.REQUEST_RIGHT[f.op].astype(np.int64)
        granted = s.q_write[f.g]
        others = true(right != rules.Right.REM_WRITE)
        if others.size:
            reads = right[others] == rules.Right.REM_READ
            granted[others] = np.where(reads, s.q_read[f.g[others]], s.q_atomic[f.g[others]])
        need(granted, "QP right")
        allowed, pe = s.allowed, f.rows.pe
        need(allowed(rkey, True, right[check], va, total, pe[check]), "MR")
        need(allowed(keys[again], True, right[again], vas[again], f.size[again], pe[again]), "open message")

    def commit(self, got: Got) -> None:
        """Move the responders on."""
        s, after = self.s, got.next
        if not after:
            return
        g = after["g"]
        s.r_exp[g], s.r_msn[g], s.r_open[g] = after["exp"], after["msn"], after["open"]
        s.r_va[g], s.r_left[g], s.r_rkey[g] = after["va"], after["left"], after["rkey"]
        s.r_len[g] = after["len"]
        s.r_req[g] = after["asks"]
        s.r_ahead[g] = False
