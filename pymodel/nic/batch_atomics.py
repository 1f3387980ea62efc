"""Batch engine, atomic unit: ID-2 accesses against the atomics that responders hold (nic.md 5).

What happens at the words of atomics is put into stream order here and replayed by `batch_replay`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pymodel.formats.arrays import I64
from pymodel.nic import batch_replay as replay
from pymodel.nic import judge_frames as frames
from pymodel.nic.batch_held import GatherEnds, Table
from pymodel.nic.batch_landing import Landing
from pymodel.nic.batch_link import Frames
from pymodel.nic.batch_memory import ATOMIC, Access
from pymodel.nic.batch_respond import Responses
from pymodel.nic.batch_rows import FAR, Rows, need, true
from pymodel.nic.batch_view import Part
from pymodel.nic.judge_entries import READ
from pymodel.nic.params import Cnt

_LATE: Final = np.uint64(1 << 62)
#: (position, kind, PE, what)
Event = tuple[int, int, int, Any]


@dataclass
class Unit:
    """ID-2 records of a batch."""

    reads: Rows
    writes: Rows
    commits: Rows
    responses: Rows

    def __len__(self) -> int:
        return len(self.reads) + len(self.writes) + len(self.commits) + len(self.responses)


@dataclass
class Runs:
    """What the atomic units did."""

    visible: Access  # writes that became visible
    units: list[replay.Unit]
    #: inbound bursts on words of atomics: (cycle of the response, PE, address, bytes)
    answered: list[tuple[int, int, int, int]]


class Atomics(Part):
    """The atomic unit of every PE."""

    def judge(
        self,
        a: Unit,
        table: Table,
        f: Frames,
        out: Responses,
        ends: GatherEnds,
        inbound: Landing,
        others: list[Access],
    ) -> Runs:
        """Replay the executions in stream order.

        f, out: the responses of responders. ends: reads of READ sources. inbound: payload of WRITEs. others:
        writes of everybody else that became visible.
        """  # fmt: skip
        s = self.s
        none = np.zeros(0, np.int64)
        objects = enumerate(table.objects)
        atomics = [i for i, e in objects if e is not None and e.kind != READ and not e.dup]
        #: (QP, packet, original value) of those that were answered
        self._answers: list[tuple[int, int, int]] = []
        runs = Runs(Access(ATOMIC, none, none, none, none, none), [], [])
        if not (len(a) or atomics):
            return runs
        last = [run.addr if run else 0 for run in s.last_run]
        busy = s.memory.flats(np.arange(len(last)), np.array(last, np.uint64), np.ones(len(last), np.int64))
        words = np.unique(np.concatenate([table.flat[atomics], busy[busy >= 0]]) & ~7)
        events = self._of_unit(a) + self._of_table(table, f, out, atomics)
        events += self._of_others(words, others) + self._of_inbound(words, inbound, runs)
        events += self._of_order(table, inbound, atomics)
        events.sort(key=lambda event: event[0])
        game = replay.Replay(self.view, table, words.tolist(), int(a.reads.aux0.min(initial=_LATE)))
        for event in events:
            game.step(*event)
        for unit in game.units:
            unit.each_its_own()
        pe, flat, size, pos = (np.array([x[i] for x in game.shown], np.int64) for i in (0, 1, 3, 4))
        runs.visible = Access(ATOMIC, pe, flat, self.view.keep([x[2] for x in game.shown]), size, pos)
        runs.units = game.units
        return runs

    def _of_unit(self, a: Unit) -> list[Event]:
        """Accesses of the unit."""
        view, r = self.view, a.reads
        events: list[Event] = []
        need((r.flags == 0) & (r.len == 1), "atomic read")
        asked = zip(r.addr.tolist(), r.aux0.tolist(), r.time.tolist(), strict=True)
        events += zip(r.pos.tolist(), [replay.ASK] * len(r), r.pe.tolist(), asked, strict=True)
        r = a.writes
        if len(r):
            need(r.len == 1, "atomic write")
            beats = view.gather(view.place(r.off), 64)
            what = zip(r.addr.tolist(), r.aux0.tolist(), r.aux1.tolist(), beats, strict=True)
            events += zip(r.pos.tolist(), [replay.WRITE] * len(r), r.pe.tolist(), what, strict=True)
        for kind, r in ((replay.COMMIT, a.commits), (replay.RESPONSE, a.responses)):
            need(r.flags == 0, "atomic write that fails")
            events += zip(r.pos.tolist(), [kind] * len(r), r.pe.tolist(), r.time.tolist(), strict=True)
        return events

    def _of_table(self, table: Table, f: Frames, out: Responses, atomics: list[int]) -> list[Event]:
        """Requests and their answers."""
        events: list[Event] = [
            (int(table.pos[i]), replay.ARRIVAL, int(table.pe[i]), table.objects[i]) for i in atomics
        ]
        mine = true(~table.read[out.at])
        rows, at = out.data[mine], out.at[mine]
        if rows.size:
            value = self.view.gather(f.side[rows] + frames.BASE + frames.AETH, 8).view(">u8")[:, 0]
            self._answers = [
                (int(table.g[i]), int(table.number[i]), v)
                for i, v in zip(at.tolist(), value.tolist(), strict=True)
            ]
            events += zip(
                f.rows.pos[rows].tolist(), [replay.ANSWER] * rows.size, table.pe[at].tolist(),
                zip([table.objects[i] for i in at.tolist()], value.tolist(), strict=True), strict=True,
            )  # fmt: skip
        return events

    @staticmethod
    def _touch(words: I64, flat: I64, size: I64) -> I64:
        """Ranges that touch one of the 8-byte words."""
        at = words.searchsorted(flat + size) - 1
        return true((at >= 0) & (words[np.maximum(at, 0)] + 8 > flat) & (size > 0))

    def _of_others(self, words: I64, others: list[Access]) -> list[Event]:
        """Bytes of others that became visible in the words."""
        events: list[Event] = []
        for x in others:
            for i in self._touch(words, x.flat, x.size).tolist():
                data = self.view.take(int(x.at[i]), int(x.size[i]))
                events.append((int(x.pos[i]), replay.PATCH, int(x.pe[i]), (int(x.flat[i]), data)))
        return events

    def _of_inbound(self, words: I64, inbound: Landing, runs: Runs) -> list[Event]:
        """Inbound bursts on the words, from write to response: they keep off atomics that are under way."""
        b = inbound.bursts
        flat = inbound.flat(np.arange(b.pe.size))
        events: list[Event] = []
        for i in self._touch(words, flat, b.size).tolist():
            pe, size = int(b.pe[i]), int(b.size[i])
            va = int(inbound.what.va[b.row[i]]) + int(b.first[i])
            events.append((int(b.pos[i]), replay.BURST, pe, (i, va, size)))
            if b.end[i] < FAR:
                events.append((int(b.end[i]), replay.ANSWERED, pe, (i, int(b.end_time[i]))))
                runs.answered.append((int(b.end_time[i]), pe, va, size))
        return events

    @staticmethod
    def _of_order(table: Table, inbound: Landing, atomics: list[int]) -> list[Event]:
        """Inbound bursts behind an unanswered atomic of their QP: it must have been executed."""
        b, rows = inbound.bursts, np.array(atomics, np.int64)
        fresh = np.flatnonzero(b.pos >= 0)
        if not (rows.size and fresh.size):
            return []
        g, cum = inbound.what.g[b.row[fresh]], inbound.what.cum[b.row[fresh]]
        # the last one in front of it: those of a QP execute in order
        at = np.searchsorted(table.g[rows] << 40 | table.number[rows], g << 40 | cum) - 1
        row = rows[np.maximum(at, 0)]
        waits = np.flatnonzero((at >= 0) & (table.g[row] == g) & (table.end[row] > b.pos[fresh]))
        pos, pe = b.pos[fresh[waits]].tolist(), b.pe[fresh[waits]].tolist()
        return list(
            zip(
                pos,
                [replay.PASS] * len(pos),
                pe,
                [table.objects[i] for i in row[waits].tolist()],
                strict=True,
            )
        )

    def commit(self, runs: Runs) -> None:
        """Leave the executions that no answer has named."""
        s, exact = self.s, self.view.exact
        for pe, unit in enumerate(runs.units):
            s.runs[pe], s.last_run[pe] = unit.runs, unit.last
            s.counters[pe, Cnt.ATOMIC] += unit.answers
        for g, number, value in self._answers:
            s.save(g, number, value)
        for time, pe, va, size in sorted(runs.answered):
            exact.core.time = time
            exact.atomics.answered(pe, va, size)
