"""The judge on whole batches: proves that a stretch of the stream is regular, then moves the state over it.

Everything is grouped by kind and QP, and compared as columns; what must come before what is compared by
position in the stream. `judge` answers False, with the state as it was, as soon as anything is not plainly
regular: an error, a refused doorbell, a mismatch. The exact engine then decides. So a wrong False costs time,
never truth. This module has the pass and its order; each data path has a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from pymodel.formats.arrays import U8, Rec
from pymodel.nic.batch_acks import Acks
from pymodel.nic.batch_complete import Complete
from pymodel.nic.batch_doorbells import Doorbells
from pymodel.nic.batch_landing import Land
from pymodel.nic.batch_memory import Memory
from pymodel.nic.batch_reads import Reads
from pymodel.nic.batch_receive import Receive
from pymodel.nic.batch_rows import Odd, Rows, last_of, need
from pymodel.nic.batch_transmit import Transmit
from pymodel.nic.batch_view import View
from pymodel.nic.judge_exact import Exact
from pymodel.nic.judge_records import Finding, Kind
from pymodel.nic.judge_state import State
from pymodel.nic.judge_wqe import settle
from pymodel.nic.params import AxiId, Cnt

#: parts of a batch: kind and AXI ID
_PARTS: Final = (
    (Kind.AXI_R, AxiId.FETCH), (Kind.AXI_R, AxiId.GATHER),
    (Kind.AXI_W, AxiId.INBOUND), (Kind.AXI_W, AxiId.CQE),
    (Kind.AXI_B, AxiId.INBOUND), (Kind.AXI_B, AxiId.CQE), (Kind.STORE, 0), (Kind.MMIO_W, 0), (Kind.TXPKT, 0),
    (Kind.RXPKT, 0),
)  # fmt: skip
_AXI: Final = (Kind.AXI_R, Kind.AXI_W, Kind.AXI_B)
_PART_KEYS: Final = np.array([kind << 8 | ident for kind, ident in _PARTS], np.uint16)


class Batch:
    """Judges batches against `state`."""

    def __init__(self, state: State, exact: Exact, report: Callable[[Finding], None]) -> None:
        self.s = state
        #: why the last batch was not taken
        self.why = ""
        self.view = View(state, exact)
        self.doorbells = Doorbells(self.view)
        self.reads = Reads(self.view)
        self.transmit = Transmit(self.view)
        self.receive = Receive(self.view, self.transmit)
        self.acks = Acks(self.view)
        self.land = Land(self.view)
        self.complete = Complete(self.view)
        self.memory = Memory(self.view, report)

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
    def _parts(records: Rec) -> tuple[Rows, ...]:
        """The records of each of _PARTS, in the order of the stream."""
        kind = records["kind"].astype(np.uint16)
        axi = (kind >= Kind.AXI_R) & (kind <= Kind.AXI_B)
        key = kind << 8 | np.where(axi, records["id"], 0)
        order = np.argsort(key, kind="stable")
        ordered = records.view("V64")[order].view(records.dtype)
        bounds = np.searchsorted(key[order], _PART_KEYS, side="left")
        stops = np.searchsorted(key[order], _PART_KEYS, side="right")
        parts = tuple(
            Rows(ordered[a:b], order[a:b]) for a, b in zip(bounds.tolist(), stops.tolist(), strict=True)
        )
        known = sum(len(part) for part, (k, _) in zip(parts, _PARTS, strict=True) if k in _AXI)
        need(bool(axi.sum() == known), "AXI id")
        return parts

    def _judge(self, records: Rec) -> None:
        s = self.s
        need(records["pe"] < len(s.pes), "PE")
        need(not any(s.cq_wait) or (s.c_prod - s.c_ci < s.c_depth), "full CQ")
        (fetches, gathers, inbound, cqe_rows, in_b, cqe_b, stores, doorbells, tx_rows, rx_rows) = self._parts(
            records
        )
        for burst in (fetches, gathers, inbound, cqe_rows):
            start = burst.addr & np.uint64(0xFC0)
            need((burst.len > 0) & (start.astype(np.int64) + 64 * burst.len <= 4096), "AXI burst")

        # ---- what the program did, and which WQEs that announces
        cqes = self.complete.cqes(cqe_rows)
        sq, cq = self.doorbells.split(doorbells)
        store_flat, ring = self.doorbells.stores(stores)
        new, pi = self.doorbells.announce(sq, cqes, stores, store_flat, ring)
        # ---- what the NICs did with them
        fetched = self.reads.fetches(fetches, pi)
        tx, ack_tx = self.transmit.split(tx_rows)
        rx, ack_rx = self.transmit.split(rx_rows)
        sent = self.transmit.requests(tx, pi, fetched)
        got, state_rx = self.receive.requests(rx, sent)
        self.reads.gathers(gathers, fetched)
        ack_g, ack_pos, acked = self.acks.received(ack_rx, sent)
        landing = self.land.match(got, inbound, in_b)
        responses = self.acks.sent(ack_tx, got, state_rx, landing)
        ring_ci = self.complete.judge(cqes, cq, pi, ack_g, ack_pos, acked)
        self.complete.responses(cqe_rows, cqes, cqe_b)

        # ---- all is regular: move the state
        settle(s, new.g, new.idx)
        end = last_of(fetched.g)
        s.q_fetch[fetched.g[end]] = fetched.after[end]
        self.transmit.commit(sent)
        self.receive.commit(got, state_rx)
        end = last_of(ack_g)
        s.q_ack[ack_g[end]] = acked[end]
        end = last_of(responses[0])
        s.r_sent[responses[0][end]] = responses[1][end]
        self.land.commit(landing)
        self.complete.commit(cqes, cqe_rows, cqe_b, ring_ci)
        n_pes = len(s.pes)
        for counter, pes in (
            (Cnt.TX_REQUEST, tx.pe), (Cnt.TX_RESPONSE, ack_tx.pe), (Cnt.RX_PACKET, rx.pe),
            (Cnt.RX_PACKET, ack_rx.pe), (Cnt.CQE, cqe_rows.pe),
        ):  # fmt: skip
            s.counters[:, counter] += np.bincount(pes, minlength=n_pes)
        self.memory.replay(stores, store_flat, ring, sent, got)
        s.position += records.size
        s.cycle = max(s.cycle, int(records["time"][-1]))
