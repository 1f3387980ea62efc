"""Batch engine, landing: writes of inbound payload and their responses."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from pymodel.formats.arrays import I64, U64
from pymodel.nic.batch_rows import ALL_ONES, FAR, Rows, need, sums
from pymodel.nic.batch_transmit import Requests
from pymodel.nic.batch_view import Part
from pymodel.nic.judge_state import InboundWrite
from pymodel.nic.judge_wqe import spans


@dataclass
class Landing:
    """Inbound payload on its way, sorted by PE and order of arrival."""

    pe: I64
    g: I64
    cum: I64
    va: U64
    length: I64
    written: I64  # bytes that writes have covered after the batch
    unanswered: I64
    at: I64  # position of the response that completes it, FAR: not yet
    queue: list[list[int]]  # per PE: rows whose bursts wait for a response


class Land(Part):
    """Bursts of ID 3 against received packets."""

    def match(self, got: Requests, r: Rows, responses: Rows) -> Landing:
        """Match payload writes and their responses with received packets, in order of arrival per PE."""
        s = self.s
        n_pes = len(s.pes)
        entries = [e for queue in s.inbound for e in queue]
        need(all(e.late is None for e in entries), "packet in doubt")
        pay = np.flatnonzero(got.size > 0)
        pay = pay[np.lexsort((got.rows.pos[pay], got.rows.pe[pay]))]
        old_pe = np.repeat(np.arange(n_pes), [len(q) for q in s.inbound])

        def column(old: list[int], new: I64) -> I64:
            return np.concatenate([np.array(old, np.int64), new])

        pe = np.concatenate([old_pe, got.rows.pe[pay]])
        order = np.argsort(pe, kind="stable")
        pe = pe[order]
        g = column([e.gq for e in entries], got.g[pay])[order]
        cum = column([e.cum for e in entries], got.number[pay])[order]
        length = column([e.length for e in entries], got.size[pay])[order]
        done = column([e.done for e in entries], np.zeros(pay.size, np.int64))[order]
        unanswered = column([e.unanswered for e in entries], np.zeros(pay.size, np.int64))[order]
        pos = column([-1] * len(entries), got.rows.pos[pay])[order]
        new_va = got.va[pay]
        va = np.concatenate([np.array([e.va for e in entries], np.uint64), new_va])[order]
        where = np.empty(order.size, np.int64)
        where[order] = np.arange(order.size)
        number = {id(e): int(where[i]) for i, e in enumerate(entries)}

        # ---- bursts: bytes of a PE counted through
        r = r.take(np.argsort(r.pe, kind="stable"))
        count = r.aux1.astype(np.int64)
        need((count > 0) & (count <= 4096), "strobed bytes")
        start, _ = spans(pe)
        left = length - done
        u_end = pe << 44 | sums(left, start)
        b_start_row, _ = spans(r.pe)
        b_sum = sums(count, b_start_row)
        b_start = r.pe << 44 | b_sum - count
        j = np.searchsorted(u_end, b_start, side="right")
        need(j < pe.size, "write without a packet")
        need(
            (pe[j] == r.pe) & ((r.pe << 44 | b_sum) <= u_end[j]) & (pos[j] < r.pos),
            "write outside its packet",
        )
        into = length[j] - (u_end[j] - b_start)
        address = va[j] + into.view(np.uint64)
        lane = (address & np.uint64(63)).astype(np.int64)
        in_first = np.minimum(64 - lane, count)
        ones = np.where(
            in_first == 64,
            np.uint64(ALL_ONES),
            (np.uint64(1) << (in_first & 63).astype(np.uint64)) - np.uint64(1),
        )
        need((r.addr & np.uint64(~63 & ALL_ONES)) == (address & np.uint64(~63 & ALL_ONES)), "write address")
        need(
            (r.aux0 == ones << lane.astype(np.uint64)) & (r.len == (lane + count + 63) >> 6), "write strobes"
        )
        written = done + np.bincount(j, count, pe.size).astype(np.int64)
        completes = into + count == length[j]
        unanswered = unanswered + np.bincount(j, minlength=pe.size)

        # ---- responses, in order
        need(responses.flags == 0, "write response")
        at = np.full(pe.size, FAR, np.int64)
        queue: list[list[int]] = []
        for p in range(n_pes):
            mine = np.flatnonzero(r.pe == p)
            old = [number[id(e)] if e is not None else -1 for e in s.bursts[p]]
            need(-1 not in old, "write that matched nothing")
            last_old = {row: i for i, row in enumerate(old)}
            final = [done[row] == length[row] and last_old[row] == i for i, row in enumerate(old)]
            rows = np.concatenate([np.array(old, np.int64), j[mine]])
            since = np.concatenate([np.full(len(old), -1, np.int64), r.pos[mine]])
            ends = np.concatenate([np.array(final, np.bool_), completes[mine]])
            answers = responses.pos[responses.pe == p]
            n = answers.size
            need(n <= rows.size, "response without a write")
            need(since[:n] < answers, "response before its write")
            at[rows[:n][ends[:n]]] = answers[ends[:n]]
            unanswered -= np.bincount(rows[:n], minlength=pe.size)
            queue.append(rows[n:].tolist())
        # a packet that was written and answered before the batch is not in the lists any more
        return Landing(pe, g, cum, va, length, written, unanswered, at, queue)

    def commit(self, landing: Landing) -> None:
        """Leave what is still on its way."""
        s = self.s
        keep = np.flatnonzero((landing.written < landing.length) | (landing.unanswered > 0))
        objects: dict[int, InboundWrite] = {}
        for queue in s.inbound:
            queue.clear()
        for i in keep.tolist():
            entry = InboundWrite(
                int(landing.g[i]), int(landing.cum[i]), int(landing.va[i]), int(landing.length[i])
            )
            entry.done, entry.unanswered = int(landing.written[i]), int(landing.unanswered[i])
            objects[i] = entry
            s.inbound[int(landing.pe[i])].append(entry)
        for p, rows in enumerate(landing.queue):
            s.bursts[p] = deque(objects[row] for row in rows)
