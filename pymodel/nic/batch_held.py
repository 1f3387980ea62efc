"""Batch engine, responder's table of READs and atomics: what is held, from when on it may execute."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from pymodel.formats.arrays import I64, U64, Bools
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.batch_landing import Landing
from pymodel.nic.batch_link import Link
from pymodel.nic.batch_receive import Got
from pymodel.nic.batch_rows import ALL_ONES, FAR, Rows, need, true
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_entries import Request
from pymodel.nic.judge_wqe import spans
from pymodel.nic.params import Cnt

_LINE = ~63 & ALL_ONES


@dataclass
class Table:
    """READs and atomics that responders hold or held in the batch, sorted by QP and order of arrival."""

    g: I64
    pe: I64
    number: I64
    packets: I64
    va: U64
    length: I64
    op: I64
    rkey: I64
    msn: I64
    flat: I64
    pos: I64  # arrival, -1: before the batch
    #: cycle and position from which it may execute, FAR: not all WRITEs before it have their responses
    since: I64
    ready: I64
    #: responses that left: before the batch, after it; position of the last one of all, FAR: not yet
    sent: I64
    now: I64
    end: I64
    #: one object a row, None for READs that arrived in the batch; and by the ids of those that they stand for
    objects: list[Request | None] = field(default_factory=list)
    copies: dict[int, Request] = field(default_factory=dict)

    @property
    def read(self) -> Bools:
        """Whether it is a READ."""
        out: Bools = self.op == frames.READ_REQUEST
        return out


class Held(Part):
    """The tables of all responders."""

    def __init__(self, view: View, link: Link) -> None:
        super().__init__(view)
        self.link = link

    def table(self, got: Got, inbound: Landing) -> Table:
        """What the responders hold, and from when on it may execute."""
        s = self.s
        old = [e for queue in s.r_reads.values() for e in queue]
        held, f = got.held, got.f
        none = np.zeros(0, np.int64)
        if not old and not held.size:
            u64 = none.view(np.uint64)
            return Table(
                none, none, none, none, u64, none, none, none, none, none, none, none, none, none, none, none
            )
        need(not any(e.optional or e.contested for e in old), "request in doubt")
        g = np.concatenate([np.array([e.gq for e in old], np.int64), f.g[held]])
        # both parts keep the order of arrival inside a QP
        order = np.argsort(g, kind="stable")
        g = g[order]

        def both(values: list[int], column: I64 | U64) -> I64:
            out: I64 = np.concatenate([np.array(values, column.dtype), column])[order]
            return out

        va: U64 = both([e.va for e in old], got.held_va)  # type: ignore[assignment]
        length, pe = both([e.length for e in old], got.held_length), s.q_pe[g]
        flat = s.memory.flats(pe, va, length)
        need((flat >= 0) | (length == 0), "memory of a request")
        need(~s.memory.faulty(pe, va, length, False), "memory of a request")
        need(not s.meets_ring(flat, length), "request on a ring")
        sent = both([e.sent for e in old], np.zeros(held.size, np.int64))
        table = Table(
            g, pe, both([e.number for e in old], got.number[held]),
            both([e.packets for e in old], got.after[held] - got.number[held]), va, length,
            both([e.op for e in old], f.op[held]), both([e.rkey for e in old], got.held_rkey),
            both([e.msn for e in old], got.msn[held]), flat, both([-1] * len(old), f.rows.pos[held]),
            both([e.since for e in old], f.rows.time[held]), both([-1] * len(old), f.rows.pos[held]),
            sent, sent, np.full(g.size, FAR),
        )  # fmt: skip
        later = self._ready(table, inbound)
        self._keys_again(table)
        self._objects(table, old, order, later, got)
        return table

    def _ready(self, table: Table, inbound: Landing) -> Bools:
        """An entry may execute when it has arrived and all WRITEs before it have their responses (nic.md 5).

        Returns which ones waited for a response of this batch or still wait.
        """
        what = inbound.what
        if not what.g.size:
            return np.zeros(table.g.size, np.bool_)
        by = np.argsort(what.g << 40 | what.cum)
        at = np.searchsorted(what.g[by] << 40 | what.cum[by], table.g << 40 | table.number) - 1
        last = by[np.maximum(at, 0)]
        end = inbound.end[last]
        later: Bools = (at >= 0) & (what.g[last] == table.g) & (end > table.ready)
        table.ready = np.where(later, end, table.ready)
        table.since = np.where(later, np.where(end == FAR, FAR, inbound.end_time[last]), table.since)
        return later

    def _keys_again(self, table: Table) -> None:
        """The key is judged again when a response is made; of new entries it was judged in this batch."""
        old = true(table.pos < 0)
        if old.size:
            right = rules.REQUEST_RIGHT[table.op[old]].astype(np.int64)
            what = table.va[old], table.length[old], table.pe[old]
            need(self.s.allowed(table.rkey[old], True, right, *what), "MR of a held request")

    def _objects(self, table: Table, old: list[Request], order: I64, later: Bools, got: Got) -> None:
        """Objects of the old entries, copied, and of the atomics that are new."""
        objects: list[Request | None] = [None] * table.g.size
        for i in true(table.pos < 0).tolist():
            e = old[order[i]]
            objects[i] = table.copies[id(e)] = request = _copy(e)
            if later[i]:
                request.since = int(table.since[i])
                request.position = int(table.ready[i]) + self.s.position if table.ready[i] < FAR else 0
        fresh = true((table.pos >= 0) & ~table.read)
        if fresh.size:
            rows = got.held[order[fresh] - len(old)]
            operands = self.link.operands(got.f, rows)
            ready = np.where(table.ready < FAR, table.ready + self.s.position, 0)
            columns = (
                table.g, table.number, table.op, table.va, table.rkey, table.length, table.packets, table.msn,
                table.since, ready,
            )  # fmt: skip
            fields = zip(*(x[fresh].tolist() for x in columns), strict=True)
            for i, (*of, since, position), values in zip(
                fresh.tolist(), fields, operands.T.tolist(), strict=True
            ):
                objects[i] = request = Request(*of)
                request.since, request.position, request.operands = since, position, tuple(values)
        table.objects = objects

    def _object(self, table: Table, i: int) -> Request:
        """A new entry as the exact engine knows it."""
        request = Request(
            int(table.g[i]), int(table.number[i]), int(table.op[i]), int(table.va[i]), int(table.rkey[i]),
            int(table.length[i]), int(table.packets[i]), int(table.msn[i]),
        )  # fmt: skip
        ready = int(table.ready[i])
        request.since = int(table.since[i])
        request.position = ready + self.s.position if ready < FAR else 0
        return request

    def has_room(self, table: Table) -> None:
        """No entry came to a full table, as far as responses on the link tell."""
        fresh = true(table.pos >= 0)
        if not fresh.size:
            return
        g, pos = table.g[fresh], table.pos[fresh]
        _, rank = spans(table.g)
        ended = np.sort((table.g << 32 | table.end)[table.end < FAR])
        gone = ended.searchsorted(g << 32 | pos) - ended.searchsorted(g << 32)
        need(rank[fresh] - gone < self.s.r_max_rd[g], "table of READs and atomics full")

    def commit(self, table: Table, ends: GatherEnds) -> None:
        """Leave what is still held."""
        s = self.s
        if not table.g.size:
            return
        for g in np.unique(table.g).tolist():
            s.r_reads.pop(g, None)
        for i in true(table.end == FAR).tolist():
            request = table.objects[i] or self._object(table, i)
            request.sent = int(table.now[i])
            if table.read[i] and table.length[i]:
                request.gathered = ends.seen(i) < FAR
            s.r_reads.setdefault(request.gq, deque()).append(request)
        fresh = table.pos >= 0
        s.counters[:, Cnt.READ] += np.bincount(table.pe[fresh & table.read], minlength=len(s.pes))


def _copy(e: Request) -> Request:
    out = Request(e.gq, e.number, e.op, e.va, e.rkey, e.length, e.packets, e.msn)
    for name in (
        "sent", "since", "position", "operands", "optional", "contested", "contested_key", "dup", "gathered",
    ):  # fmt: skip
        setattr(out, name, getattr(e, name))
    return out


class GatherEnds:
    """Where the read of the last beat of each READ's source was seen first; looked up one by one."""

    def __init__(self, table: Table, gathers: Rows, mtu: I64, row: I64, pos: I64) -> None:
        """mtu: by QP. row, pos: table rows and positions of the data responses that left."""
        self.table, self.r, self.mtu = table, gathers, mtu
        self._row, self._pos = row, pos
        self._seen: dict[int, int] = {}
        self._sorted: tuple[I64, I64] | None = None

    def seen(self, row: int) -> int:
        """Position in the batch, -1: before it, FAR: not yet."""
        found = self._seen.get(row)
        if found is None:
            found = self._seen[row] = self._find(row)
        return found

    def _find(self, row: int) -> int:
        table, r, request = self.table, self.r, self.table.objects[row]
        if request is not None and request.gathered:
            return -1
        if self._sorted is None:
            ends = (r.addr + (64 * r.len).astype(np.uint64)).view(np.int64)
            order = np.argsort(ends, kind="stable")
            self._sorted = ends[order], order
        ends, order = self._sorted
        va = int(table.va[row])
        high = np.uint64((va + int(table.length[row]) + 63) & _LINE).view(np.int64)
        answers = self._pos[self._row == row]
        low, stop = ends.searchsorted(high, side="left"), ends.searchsorted(high, side="right")
        for i in order[low:stop].tolist():
            pos = int(r.pos[i])
            sent = int(table.sent[row]) + int(answers.searchsorted(pos))
            if (
                r.pe[i] == table.pe[row]
                and table.pos[row] < pos < table.end[row]
                and r.aux0[i] > table.since[row]
                and r.addr[i] >= (va + sent * int(self.mtu[table.g[row]])) & _LINE
            ):
                return pos
        return FAR
