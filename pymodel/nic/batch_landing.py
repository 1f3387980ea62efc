"""Batch engine, landing: bursts of inbound payload (ID 3) and of results (ID 5), from write to response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, U64
from pymodel.nic.batch_rows import ALL_ONES, FAR, Odd, Rows, by_group, need, sums, true
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_entries import InboundWrite
from pymodel.nic.judge_wqe import spans
from pymodel.nic.params import AxiId

_LINE: Final = np.uint64(~63 & ALL_ONES)


@dataclass
class Payload:
    """Payload that has to be written, one packet a row, in any order."""

    pe: I64
    g: I64
    cum: I64  # number of the packet
    va: U64
    length: I64
    flat: I64
    at: I64  # where its bytes are, see View.take
    pos: I64
    wqe: I64  # results: index of the WQE; else -1
    key: I64  # rkey or lkey that allows it


@dataclass
class Bursts:
    """Write bursts without response at the begin of the batch or in it, sorted by PE and order."""

    pe: I64
    row: I64  # of the payload
    first: I64  # first byte of it
    size: I64
    pos: I64  # where it was written, -1: before the batch
    shown: I64  # where it became visible, -1: before the batch, FAR: not yet
    end: I64  # where its response came, FAR: not yet
    end_time: I64


@dataclass
class Landing:
    """Payload on its way, sorted by PE and order of arrival, and the bursts that carry it."""

    what: Payload
    written: I64  # bytes that writes have covered after the batch
    unanswered: I64
    end: I64  # position of the response that completes it, FAR: not yet
    end_time: I64  # cycle of that response
    bursts: Bursts

    def shown(self) -> I64:
        """Bursts that became visible in the batch."""
        b = self.bursts
        return true((b.shown >= 0) & (b.shown < FAR))

    def flat(self, which: I64) -> I64:
        """Golden memory of bursts."""
        b = self.bursts
        return self.what.flat[b.row[which]] + b.first[which]

    def at(self, which: I64) -> I64:
        """Where the bytes of bursts are."""
        b = self.bursts
        return self.what.at[b.row[which]] + b.first[which]


class Land(Part):
    """Bursts of one ID against the payload that is due."""

    def __init__(self, view: View, ident: AxiId) -> None:
        super().__init__(view)
        self.ident = ident
        s = self.s
        self._queues = s.inbound if ident == AxiId.INBOUND else s.results
        self._bursts = s.bursts if ident == AxiId.INBOUND else s.result_bursts

    def match(self, new: Payload, r: Rows, commits: Rows, responses: Rows) -> Landing:
        """Match writes, COMMIT records and responses with received packets, in order of arrival per PE."""
        entries = [e for queue in self._queues for e in queue]
        if not entries and not new.pe.size and not any(self._bursts):
            need(not (len(r) or len(commits) or len(responses)), "write without a packet")
            none = new.pe
            return Landing(
                new, none, none, none, none, Bursts(none, none, none, none, none, none, none, none)
            )
        what, done, unanswered, number = self._due(entries, new)
        r = r.take(by_group(r.pe))
        j, into = self._place(what, done, r)
        count = r.aux1.astype(np.int64)
        size = what.pe.size
        written = done + np.bincount(j, count, size).astype(np.int64)
        unanswered = unanswered + np.bincount(j, minlength=size)
        bursts = self._bursts_of(number, r, j, into, count)
        landing = Landing(what, written, unanswered, np.full(size, FAR), np.zeros(size, np.int64), bursts)
        self._answers(landing, commits, responses)
        return landing

    def _due(self, entries: list[InboundWrite], new: Payload) -> tuple[Payload, I64, I64, dict[int, int]]:
        """Old and new payload sorted by PE and arrival; bytes covered, bursts open; row of old ones by id."""
        s = self.s
        need(not any(e.optional for e in entries), "packet in doubt")
        order = np.argsort(new.pe << 32 | new.pos)
        old_pe = np.repeat(np.arange(len(s.pes)), [len(q) for q in self._queues])
        old_va = np.array([e.va for e in entries], np.uint64)
        old_length = np.array([e.length for e in entries], np.int64)
        payloads = [e.payload for e in entries if e.payload is not None]
        need(len(payloads) == len(entries), "payload unknown")
        old_at = self.view.keep(payloads)
        old_flat = s.memory.flats(old_pe, old_va, old_length)
        by_pe = by_group(np.concatenate([old_pe, new.pe[order]]))

        def both(old: list[int] | I64 | U64, column: I64) -> I64:
            out: I64 = np.concatenate([np.array(old, column.dtype), column[order]])[by_pe]
            return out

        what = Payload(
            both(old_pe, new.pe),
            both([e.gq for e in entries], new.g),
            both([e.cum for e in entries], new.cum),
            both(old_va, new.va),  # type: ignore[arg-type]
            both(old_length, new.length),
            both(old_flat, new.flat),
            both(old_at, new.at),
            both([-1] * len(entries), new.pos),
            both([e.wqe for e in entries], new.wqe),
            both([e.key for e in entries], new.key),
        )
        zero = np.zeros(new.pe.size, np.int64)
        done = both([e.done for e in entries], zero)
        unanswered = both([e.unanswered for e in entries], zero)
        row = np.empty(by_pe.size, np.int64)
        row[by_pe] = np.arange(by_pe.size)
        return what, done, unanswered, {id(e): n for e, n in zip(entries, row.tolist(), strict=False)}

    def _place(self, what: Payload, done: I64, r: Rows) -> tuple[I64, I64]:
        """(row, first byte) of the payload that each burst carries: bytes of a PE counted through."""
        count = r.aux1.astype(np.int64)
        need((count > 0) & (count <= 4096), "strobed bytes")
        start, _ = spans(what.pe)
        end = what.pe << 44 | sums(what.length - done, start)
        b_start, _ = spans(r.pe)
        total = r.pe << 44 | sums(count, b_start)
        begin = total - count
        j = end.searchsorted(begin, side="right")
        need(j < what.pe.size, "write without a packet")
        need((what.pe[j] == r.pe) & (total <= end[j]) & (what.pos[j] < r.pos), "write outside its packet")
        into = what.length[j] - (end[j] - begin)
        address = what.va[j] + into.view(np.uint64)
        lane = (address & np.uint64(63)).astype(np.int64)
        in_first = np.minimum(64 - lane, count)
        ones = np.uint64(ALL_ONES) >> (64 - in_first).astype(np.uint64) << lane.astype(np.uint64)
        good = (r.addr & _LINE == address & _LINE) & (r.aux0 == ones) & (r.len == (lane + count + 63) >> 6)
        need(good, "write address or strobes")
        return j, into

    def _bursts_of(self, number: dict[int, int], r: Rows, j: I64, into: I64, count: I64) -> Bursts:
        """Old and new bursts."""
        old = []
        for p, queue in enumerate(self._bursts):
            open_of: dict[int, int] = {}
            for e in queue:
                if e is None or id(e) not in number or len(e.open) != e.unanswered:
                    raise Odd("write that matched nothing")
                nth = open_of.get(id(e), 0)
                open_of[id(e)] = nth + 1
                old.append((p, number[id(e)], *e.open[nth], -1))
        pe, row, first, size, pos = r.pe, j, into, count, r.pos
        if old:
            columns = zip(zip(*old, strict=True), (pe, row, first, size, pos), strict=True)
            pe, row, first, size, pos = (np.concatenate([np.array(a, np.int64), b]) for a, b in columns)
            order = by_group(pe)
            pe, row, first, size, pos = pe[order], row[order], first[order], size[order], pos[order]
        return Bursts(pe, row, first, size, pos, pos, pos, pos)

    def _answers(self, landing: Landing, commits: Rows, responses: Rows) -> None:
        """COMMIT records and responses come in the order of the bursts, first one, then the other."""
        s, what, b = self.s, landing.what, landing.bursts
        need(responses.flags == 0, "write response")
        need(commits.flags == 0, "write that fails")
        begin = b.pe.searchsorted(np.arange(len(s.pes)))
        stop = b.pe.searchsorted(np.arange(len(s.pes)), side="right")
        # ---- visible
        commits = commits.take(by_group(commits.pe))
        seen = begin + s.visible[:, self.ident]
        _, rank = spans(commits.pe)
        at = seen[commits.pe] + rank
        need(at < stop[commits.pe], "COMMIT without a write")
        need(b.pos[at] < commits.pos, "COMMIT before its write")
        b.shown = np.where(np.arange(b.pe.size) < seen[b.pe], -1, FAR)
        b.shown[at] = commits.pos
        # ---- answered
        responses = responses.take(by_group(responses.pe))
        _, rank = spans(responses.pe)
        at = begin[responses.pe] + rank
        need(at < stop[responses.pe], "response without a write")
        need(b.shown[at] < responses.pos, "response before its write is visible")
        b.end, b.end_time = np.full(b.pe.size, FAR), np.zeros(b.pe.size, np.int64)
        b.end[at], b.end_time[at] = responses.pos, responses.time
        done = at[(b.first + b.size == what.length[b.row])[at]]
        landing.end[b.row[done]] = b.end[done]
        landing.end_time[b.row[done]] = b.end_time[done]
        landing.unanswered -= np.bincount(b.row[at], minlength=what.pe.size)

    def commit(self, landing: Landing) -> None:
        """Leave what is still on its way."""
        s, what = self.s, landing.what
        for queue in self._queues:
            queue.clear()
        keep = true((landing.written < what.length) | (landing.unanswered > 0))
        objects: dict[int, InboundWrite] = {}
        for i in keep.tolist():
            length = int(what.length[i])
            entry = InboundWrite(
                int(what.g[i]), int(what.cum[i]), int(what.va[i]), length,
                self.view.take(int(what.at[i]), length), int(what.wqe[i]), False, int(what.key[i]),
            )  # fmt: skip
            entry.done, entry.unanswered = int(landing.written[i]), int(landing.unanswered[i])
            objects[i] = entry
            self._queues[int(what.pe[i])].append(entry)
        b = landing.bursts
        for bursts in self._bursts:
            bursts.clear()
        rest = true(b.end == FAR)
        s.visible[:, self.ident] = np.bincount(b.pe[rest[b.shown[rest] < FAR]], minlength=len(s.pes))
        for i in rest.tolist():
            entry, piece = objects[int(b.row[i])], (int(b.first[i]), int(b.size[i]))
            self._bursts[int(b.pe[i])].append(entry)
            entry.open.append(piece)
            if b.shown[i] == FAR:
                entry.pieces.append(piece)
