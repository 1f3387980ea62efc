"""The judge on whole batches: proves that a stretch of the stream is regular, then moves the state over it.

Everything is grouped by kind and QP, and compared as columns; what must come before what is compared by
position in the stream. `judge` answers False, with the state as it was, as soon as anything is not plainly
regular: an error, a refused doorbell, a mismatch. The exact engine then decides. So a wrong False costs time,
never truth. This module has the pass and its order; each data path has a module of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, U8, Rec
from pymodel.nic import judge_frames as frames
from pymodel.nic.batch_atomics import Atomics, Unit
from pymodel.nic.batch_complete import Complete
from pymodel.nic.batch_doorbells import Doorbells
from pymodel.nic.batch_held import GatherEnds, Held, Table
from pymodel.nic.batch_landing import Land, Landing, Payload
from pymodel.nic.batch_link import Frames, Link
from pymodel.nic.batch_memory import COMPARE, DEPOSIT, STORE, Access, Memory
from pymodel.nic.batch_outstanding import Answers
from pymodel.nic.batch_reads import Reads
from pymodel.nic.batch_receive import Receive
from pymodel.nic.batch_respond import Respond, Responses
from pymodel.nic.batch_rows import FAR, Columns, Odd, Rows, last_of, need, true
from pymodel.nic.batch_transmit import Transmit
from pymodel.nic.batch_view import View
from pymodel.nic.judge_exact import Exact
from pymodel.nic.judge_records import Kind
from pymodel.nic.judge_state import State
from pymodel.nic.judge_wqe import settle
from pymodel.nic.params import AxiId, Cnt

#: parts of a batch: kind and AXI ID
Parts = dict[tuple[int, int], Rows]
_PARTS: Final[tuple[tuple[int, int], ...]] = (
    (Kind.AXI_R, AxiId.FETCH), (Kind.AXI_R, AxiId.GATHER), (Kind.AXI_R, AxiId.ATOMIC),
    *((kind, ident) for kind in (Kind.AXI_W, Kind.AXI_B, Kind.COMMIT)
      for ident in (AxiId.ATOMIC, AxiId.INBOUND, AxiId.CQE, AxiId.RESULT)),
    (Kind.STORE, 0), (Kind.MMIO_W, 0), (Kind.MMIO_R, 0), (Kind.EVENT, 0), (Kind.TXPKT, 0), (Kind.RXPKT, 0),
)  # fmt: skip
_AXI: Final = (Kind.AXI_R, Kind.AXI_W, Kind.AXI_B, Kind.COMMIT)
_BURSTS: Final = tuple(p for p in _PARTS if p[0] in (Kind.AXI_R, Kind.AXI_W) and p != (Kind.AXI_R, 2))
_UNIT: Final = tuple((kind, AxiId.ATOMIC) for kind in (Kind.AXI_R, Kind.AXI_W, Kind.COMMIT, Kind.AXI_B))
_ALIEN: Final = len(_PARTS)


def _groups() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Number of the part by kind << 8 | ID; behind them: an access of no known ID, then all other records."""
    table = np.full(1 << 16, len(_PARTS) + 1, np.uint8)
    for axi in _AXI:
        table[axi << 8 : (axi + 1) << 8] = _ALIEN
    for i, (kind, ident) in enumerate(_PARTS):
        if kind in _AXI:
            table[kind << 8 | ident] = i
        else:
            table[kind << 8 : (kind + 1) << 8] = i
    return table


_GROUP: Final = _groups()


class Batch:
    """Judges batches against `state`."""

    def __init__(self, state: State, exact: Exact) -> None:
        self.s = state
        #: why the last batch was not taken
        self.why = ""
        self.view = view = View(state, exact)
        self.link = link = Link(view)
        self.doorbells, self.reads = Doorbells(view), Reads(view)
        self.transmit, self.receive = Transmit(view, link), Receive(view, link)
        self.inbound, self.results = Land(view, AxiId.INBOUND), Land(view, AxiId.RESULT)
        self.answers, self.held, self.respond = Answers(view, link), Held(view, link), Respond(view, link)
        self.atomics, self.complete, self.memory = Atomics(view), Complete(view), Memory(view)

    def judge(self, records: Rec, side: U8) -> bool:
        """Judge a batch if it is regular throughout; False: nothing has been done."""
        self.view.open(side)
        try:
            self._judge(records)
        except Odd as odd:
            self.why = str(odd)
            return False
        return True

    @staticmethod
    def _parts(columns: Columns) -> Parts:
        """The records of each of _PARTS, in the order of the stream."""
        key = _GROUP[columns.kind << 8 | columns.id]
        need(key != _ALIEN, "AXI id")
        order = np.argsort(key, kind="stable")
        count = np.bincount(key, minlength=len(_PARTS) + 2)
        stop = np.cumsum(count)
        bounds = zip((stop - count).tolist(), stop.tolist(), strict=True)
        return {part: Rows(columns, order[a:b]) for part, (a, b) in zip(_PARTS, bounds, strict=False)}

    def _judge(self, records: Rec) -> None:
        s, core = self.s, self.view.exact.core
        columns = Columns(records)
        need(columns.pe < len(s.pes), "PE")
        need(not any(s.cq_wait) or (s.c_prod - s.c_ci < s.c_depth), "full CQ")
        need(not (core.early or core.doubt or core.going or core.overdue), "open question")
        part = self._parts(columns)
        need(not len(part[Kind.EVENT, 0]) and self.doorbells.quiet(part[Kind.MMIO_R, 0]), "event")
        for key in _BURSTS:
            burst = part[key]
            start = burst.addr & np.uint64(0xFC0)
            need((burst.len > 0) & (start.astype(np.int64) + 64 * burst.len <= 4096), "AXI burst")

        # ---- what the program did, and which WQEs that announces
        cqe_rows, cqe_b = part[Kind.AXI_W, AxiId.CQE], part[Kind.AXI_B, AxiId.CQE]
        cqes = self.complete.cqes(cqe_rows)
        sq, cq = self.doorbells.split(part[Kind.MMIO_W, 0])
        rings = self.complete.doorbells(cqes, cq)
        stores = part[Kind.STORE, 0]
        store_flat, ring = self.doorbells.stores(stores)
        new, pi = self.doorbells.announce(sq, cqes, stores, store_flat, ring)
        fetched = self.reads.fetches(part[Kind.AXI_R, AxiId.FETCH], pi)
        # ---- packets: requests, then what comes back
        tx, tx_back = self.link.sent(part[Kind.TXPKT, 0])
        rx, rx_back = self.link.received(part[Kind.RXPKT, 0])
        sent = self.transmit.requests(tx, pi, fetched)
        got = self.receive.requests(rx)
        inbound = self._land(self.inbound, got.payload(), part)
        table = self.held.table(got, inbound)
        responses = self.respond.judge(tx_back, got, table, inbound)
        self.held.has_room(table)
        out = self.answers.outstanding(sent)
        answered, payload = self.answers.judge(rx_back, sent, out)
        results = self._land(self.results, payload, part)
        self.answers.landed(out, results)
        # ---- memory of the responders
        gathers, left = part[Kind.AXI_R, AxiId.GATHER], tx_back.rows.pos[responses.data]
        self.reads.gathers(gathers, fetched, table, (responses.at, responses.k, left))
        ends = GatherEnds(table, gathers, s.q_mtu, responses.at, left)
        written = Access(STORE, stores.pe, store_flat, self.view.place(stores.off), stores.len, stores.pos)
        deposits = [self._deposit(landing) for landing in (inbound, results)]
        runs = self.atomics.judge(
            Unit(*(part[key] for key in _UNIT)), table, tx_back, responses, ends, inbound,
            [written, *deposits],
        )  # fmt: skip
        # ---- limits and completions
        room = self.complete.room(cqes, rings, tx.g[sent.begins], tx.rows.pos[sent.begins])
        self.answers.may_start(sent, out, answered, room)
        over = self.answers.done(out, cqes.g, cqes.idx, cqes.rows.pos)
        self.complete.judge(cqes, rings, pi, answered, over)
        self.complete.responses(cqe_rows, cqes, cqe_b)
        # ---- bytes
        whole = bool(((store_flat | stores.len)[ring] & 127 == 0).all())
        plain = true(~ring) if whole else np.arange(len(stores))
        accesses = [
            written.take(plain),
            *deposits,
            runs.visible,
            Access(COMPARE, tx.rows.pe, sent.flat, sent.at, tx.size, tx.rows.pos),
            self._read_payload(tx_back, responses),
        ]
        self.memory.check(accesses, self._known_from(table))

        # ---- all is regular: move the state
        settle(s, new.g, new.idx)
        s.rx_frames += np.bincount(part[Kind.RXPKT, 0].pe, minlength=len(s.pes))
        end = last_of(fetched.g)
        s.q_fetch[fetched.g[end]] = fetched.after[end]
        self.transmit.commit(sent)
        self.receive.commit(got)
        end = last_of(answered.g)
        s.q_ack[answered.g[end]] = answered.after[end]
        s.q_ack_time[answered.g[end]] = columns.time[answered.pos[end]]
        landed = true(results.end < FAR)
        np.maximum.at(s.q_ack_time, results.what.g[landed], results.end_time[landed])
        end = last_of(responses.g)
        s.r_sent[responses.g[end]] = responses.c[end]
        self.answers.commit(out)
        self.inbound.commit(inbound)
        self.results.commit(results)
        self.held.commit(table, ends)
        self.atomics.commit(runs)
        self.complete.commit(cqes, cqe_rows, cqe_b, rings)
        for counter, rows in (
            (Cnt.TX_REQUEST, tx.rows), (Cnt.TX_RESPONSE, tx_back.rows), (Cnt.RX_PACKET, rx.rows),
            (Cnt.RX_PACKET, rx_back.rows), (Cnt.CQE, cqe_rows),
        ):  # fmt: skip
            s.counters[:, counter] += np.bincount(rows.pe, minlength=len(s.pes))
        if whole:
            self.memory.ring_slots(stores.take(ring), store_flat[ring])
        self.memory.commit()
        s.position += records.size
        s.cycle = max(s.cycle, int(records["time"][-1]))

    # ------------------------------------------------------------------ between the parts
    @staticmethod
    def _land(land: Land, new: Payload, part: Parts) -> Landing:
        i = land.ident
        return land.match(new, part[Kind.AXI_W, i], part[Kind.COMMIT, i], part[Kind.AXI_B, i])

    @staticmethod
    def _deposit(landing: Landing) -> Access:
        """Bursts that became visible."""
        which = landing.shown()
        b = landing.bursts
        return Access(
            DEPOSIT, b.pe[which], landing.flat(which), landing.at(which), b.size[which], b.shown[which]
        )

    @staticmethod
    def _read_payload(f: Frames, responses: Responses) -> Access:
        """Payload of READ responses against memory."""
        rows = responses.read
        at = f.side[rows] + frames.BASE + f.ext[rows]
        return Access(COMPARE, f.rows.pe[rows], responses.flat, at, f.size[rows], f.rows.pos[rows])

    def _known_from(self, table: Table) -> I64:
        """By PE, the position from which on overwritten bytes may be those of a READ that is still held."""
        out = np.full(len(self.s.pes), FAR)
        held = true(table.read & (table.end == FAR) & (table.ready < FAR))
        for i in held.tolist():
            request, p = table.objects[i], int(table.pe[i])
            since = int(table.ready[i]) if request is None else request.position - self.s.position
            out[p] = min(int(out[p]), since)
        return out
