"""Batch engine, memory reads: WQE fetches and gathers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, U64
from pymodel.nic.batch_held import Table
from pymodel.nic.batch_rows import ALL_ONES, FAR, Rows, last_of, need, ragged, sums, true
from pymodel.nic.batch_view import Part
from pymodel.nic.judge_state import WRITE
from pymodel.nic.judge_wqe import spans

#: pairs of read and source that one batch may look at one by one
_SEARCH: Final = 1 << 23


@dataclass
class Fetches:
    """Fetch bursts, sorted by QP and position."""

    g: I64
    pos: I64
    after: I64  # WQE index behind the burst, the largest so far
    #: (QP, position, first WQE) of bursts that read WQEs once more
    again: list[tuple[int, int, int]]


class Reads(Part):
    """Fetch bursts and gather bursts."""

    def fetches(self, r: Rows, pi: I64) -> Fetches:
        """Bursts go on where the last one of their QP ended, up to the producer index."""
        s = self.s
        again: list[tuple[int, int, int]] = []
        if not len(r):
            return Fetches(r.pos, r.pos, r.pos, again)
        need((r.addr & np.uint64(127) == 0) & (r.len & 1 == 0) & (r.flags == 0), "fetch burst")
        flat = s.memory.flats(r.pe, r.addr, 64 * r.len)
        at = s.q_flat[s.q_order].searchsorted(flat, side="right") - 1
        need((flat >= 0) & (at >= 0), "fetch outside the rings")
        g = s.q_order[np.maximum(at, 0)]
        self.view.usable(g, "fetch QP")
        order = np.argsort(g, kind="stable")
        r, g, flat = r.take(order), g[order], flat[order]
        start, _ = spans(g)
        count = r.len >> 1
        after = s.q_fetch[g] + sums(count, start)
        first = after - count
        slot = (flat - s.q_flat[g]) >> 7
        for qp in np.unique(g[slot != first % s.q_depth[g]]).tolist():
            again += self._fetched_again(qp, true(g == qp), r.pos, slot, count, first, after)
        need((slot + count <= s.q_depth[g]) & (after <= pi[g]), "fetch order")
        for qp, pos, begin in again:
            # the slot names one WQE only: the one that lies a lap further on was not announced yet
            lap = begin + int(s.q_depth[qp])
            known = lap < pi[qp] and s.w_pos[s.row(qp, lap)] - s.position < pos
            need(not known, "fetch order")
        row = s.q_row[g] + (first + count - 1 & s.q_mask[g])
        need((s.w_time[row] <= r.aux0.astype(np.int64)) & (s.w_pos[row] < r.pos + s.position), "early fetch")
        return Fetches(g, r.pos, after, again)

    def _fetched_again(
        self, qp: int, rows: I64, pos: I64, slot: I64, count: I64, first: I64, after: I64
    ) -> list[tuple[int, int, int]]:
        """Bursts of a QP that do not all go on where the last one ended.

        A lane that gave way drops prefetched WQEs; they are fetched again, from one on that is not sent
        (docs/decisions.md). Mends first and after of ``rows``.
        """
        s = self.s
        depth, nxt = int(s.q_depth[qp]), int(s.q_fetch[qp])
        again = []
        for i in rows.tolist():
            back = (nxt - int(slot[i])) % depth
            begin = nxt - back
            if back:
                need(begin >= int(s.q_txw[qp]), "fetch of a sent WQE")
                again.append((qp, int(pos[i]), begin))
            nxt = max(nxt, begin + int(count[i]))
            first[i], after[i] = begin, nxt
        return again

    def gathers(self, r: Rows, fetched: Fetches, table: Table, responses: tuple[I64, I64, I64]) -> None:
        """Each read lies in the source of a WQE that was announced before and is fetched but not sent.

        Or in a packet of a READ that may execute, whose response has not left.
        responses: table row, number in its READ and position of those that left.
        """
        s = self.s
        if not len(r):
            return
        need((r.addr & np.uint64(63) == 0) & (r.flags == 0), "gather burst")
        until = s.q_fetch.copy()
        end = last_of(fetched.g)
        until[fetched.g[end]] = fetched.after[end]
        live = true(until > s.q_txw)
        source, idx = ragged(s.q_txw[live], (until - s.q_txw)[live])
        g = live[source]
        row = s.q_row[g] + (idx & s.q_mask[g])
        keep = (s.w_len[row] > 0) & (s.w_err[row] == 0) & (s.w_kind[row] == WRITE) & ~s.q_odd[g]
        g, row = g[keep], row[keep]
        low = s.w_laddr[row] & np.uint64(~63 & ALL_ONES)
        # last byte of the aligned source range: never wraps, an MR ends at 2^64 at the most
        high = (s.w_laddr[row] + (s.w_len[row] - 1).astype(np.uint64)) | np.uint64(63)
        time, pe = s.w_time[row], s.q_pe[g]
        known, sent = s.w_pos[row] - s.position, s.w_sent[row] - s.position
        if table.g.size:
            wqes = low, high, time, known, sent, pe
            low, high, time, known, sent, pe = (
                np.concatenate(pair) for pair in zip(wqes, self._held(table, responses), strict=True)
            )
        last = r.addr + (64 * r.len - 1).astype(np.uint64)
        since = r.aux0.astype(np.int64)
        for p in np.unique(r.pe).tolist():
            mine, reads = true(pe == p), true(r.pe == p)
            need(mine.size > 0, "gather without a WQE")
            order = mine[np.argsort(low[mine], kind="stable")]
            if (low[order[1:]] == low[order[:-1]]).any():
                order = mine[np.lexsort((time[mine], low[mine]))]
            lows, highs, times, here, gone = low[order], high[order], time[order], known[order], sent[order]
            # in the order of addresses they are found quicker
            reads = reads[np.argsort(r.addr[reads], kind="stable")]
            begin, end_at, when, now = r.addr[reads], last[reads], since[reads], r.pos[reads]
            # a source that begins where the read does: the last one announced before it
            fresh = np.ones(lows.size, np.bool_)
            fresh[1:] = lows[1:] != lows[:-1]
            rank = np.cumsum(fresh) - 1
            at = lows.searchsorted(begin, side="right") - 1
            need(at >= 0, "gather below every source")
            keys = rank << 44 | times
            latest = np.maximum(keys.searchsorted(rank[at] << 44 | when, side="right") - 1, 0)
            good = (lows[latest] <= begin) & (times[latest] <= when) & (highs[latest] >= end_at)
            good &= (here[latest] < now) & (gone[latest] > now)
            # else the one that reaches farthest of all that begin before
            rest = true(~good)
            if not rest.size:
                continue
            best = np.maximum.accumulate(highs)
            fresh[1:] = best[1:] != best[:-1]
            witness = np.maximum.accumulate(np.where(fresh, np.arange(best.size), 0))[at[rest]]
            missed = (times[witness] > when[rest]) | (highs[witness] < end_at[rest])
            rest = rest[missed | (here[witness] >= now[rest]) | (gone[witness] <= now[rest])]
            # else any: buffers that were used again within the batch
            need(rest.size * lows.size < _SEARCH, "too many gathers to search for")
            some = lows <= begin[rest][:, None]
            some &= highs >= end_at[rest][:, None]
            some &= times <= when[rest][:, None]
            some &= here < now[rest][:, None]
            some &= gone > now[rest][:, None]
            need(some.any(axis=1), "gather outside the sources")

    def _held(self, table: Table, responses: tuple[I64, I64, I64]) -> tuple[U64, U64, I64, I64, I64, I64]:
        """Sources of READ responses, packet by packet.

        First and last byte in beats; cycle and position from which on they may be read; where they end; PE.
        """
        rows = true(table.read & (table.length > 0) & (table.ready < FAR))
        source, k = ragged(table.sent[rows], (table.packets - table.sent)[rows])
        row = rows[source]
        mtu = self.s.q_mtu[table.g[row]]
        begin = table.va[row] + (k * mtu).astype(np.uint64)
        size = np.minimum(table.length[row] - k * mtu, mtu)
        end = np.full(row.size, FAR)
        gone, number, pos = responses
        place = np.zeros(table.g.size, np.int64)
        place[rows] = source.searchsorted(np.arange(rows.size)) - table.sent[rows]
        reads = true(table.read[gone] & (table.length[gone] > 0))
        end[place[gone[reads]] + number[reads]] = pos[reads]
        last = (begin + (size - 1).astype(np.uint64)) | np.uint64(63)
        # the read is asked for after the last write response
        first = begin & np.uint64(~63 & ALL_ONES)
        return first, last, table.since[row] + 1, table.ready[row], end, table.pe[row]
