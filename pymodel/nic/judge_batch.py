"""The judge on whole batches: proves that a stretch of the stream is regular, then moves the state over it.

Everything is grouped by kind and QP, and compared as columns; what must come before what is compared by
position in the stream. `judge` answers False, with the state as it was, as soon as anything is not plainly
regular: an error, a refused doorbell, a mismatch. The exact engine then decides. So a wrong False costs time,
never truth.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from pymodel.formats.arrays import I64, U8, U32, U64, Bools, Rec
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.judge_exact import Exact
from pymodel.nic.judge_records import Check, Finding, Kind
from pymodel.nic.judge_state import RTS, InboundWrite, State
from pymodel.nic.judge_wqe import announce, settle, spans
from pymodel.nic.params import AxiId, Cnt, Csr

_MASK24: Final = 0xFFFFFF
_FAR: Final = 1 << 62
#: CSR writes that change nothing the judge looks at
_HARMLESS: Final = (Csr.EVENT_CAUSE, Csr.EVENT_MASK, Csr.CQ_EVENT, Csr.SL_WEIGHT)
_HEAD: Final = f"V{frames.ROW}"
_ALL_ONES: Final = (1 << 64) - 1
#: parts of a batch: kind and AXI ID
_PARTS: Final = (
    (Kind.AXI_R, AxiId.FETCH), (Kind.AXI_R, AxiId.GATHER),
    (Kind.AXI_W, AxiId.INBOUND), (Kind.AXI_W, AxiId.CQE),
    (Kind.AXI_B, AxiId.INBOUND), (Kind.AXI_B, AxiId.CQE), (Kind.STORE, 0), (Kind.MMIO_W, 0), (Kind.TXPKT, 0),
    (Kind.RXPKT, 0),
)  # fmt: skip
_PART_KEYS: Final = np.array([kind << 8 | ident for kind, ident in _PARTS], np.uint16)
#: bytes up to which equal lengths are worth doing at once, and how many make a group
_SHORT: Final = 1024
_FEW: Final = 16
#: pairs of read and source that one batch may look at one by one
_SEARCH: Final = 1 << 23


class _Odd(Exception):
    """Something in the batch is not regular; the argument says what, for those who tune the judge."""


def _need(condition: bool | np.bool_ | Bools, what: str) -> None:
    if not (condition.all() if isinstance(condition, np.ndarray) else condition):
        raise _Odd(what)


def _ragged(start: I64, count: I64) -> tuple[I64, I64]:
    """(source row, value) of the concatenated ranges start[i] .. start[i] + count[i] - 1."""
    source = np.repeat(np.arange(count.size), count)
    return source, start[source] + np.arange(source.size) - (np.cumsum(count) - count)[source]


def _before(event_group: I64, event_pos: I64, group: I64, pos: I64) -> tuple[I64, Bools]:
    """Of each query the last event of its group before its position: (row of the event, found).

    The events are sorted by (group, position).
    """
    keys = event_group << 32 | event_pos
    if not keys.size:
        return np.zeros(group.size, np.int64), np.zeros(group.size, np.bool_)
    at = np.searchsorted(keys, group << 32 | pos) - 1
    found = at >= 0
    at = np.maximum(at, 0)
    return at, found & (event_group[at] == group)


def _latest(event_group: I64, event_pos: I64, values: I64, group: I64, pos: I64, default: I64) -> I64:
    """Value of the last event before each query, else the default (per query)."""
    at, found = _before(event_group, event_pos, group, pos)
    if not values.size:
        return default
    out: I64 = np.where(found, values[at], default)
    return out


def _previous(values: I64, start: I64, first: I64) -> I64:
    """values shifted by one inside each group; `first` (per row) where a group begins."""
    out = np.empty_like(values)
    out[1:] = values[:-1]
    begins = start == np.arange(values.size)
    out[begins] = first[begins]
    return out


def _sums(values: I64, start: I64) -> I64:
    """Inclusive running sum inside each group."""
    total = np.cumsum(values)
    out: I64 = total - (total - values)[start] if values.size else total
    return out


def _last_of(group: I64) -> I64:
    """Rows of a sorted group column that end their group."""
    end = np.ones(group.size, np.bool_)
    end[:-1] = group[1:] != group[:-1]
    return np.flatnonzero(end)


class _Rows:
    """The records of one kind, in the order that `take` gives them; columns are made when asked for.

    pos: number of each record in the batch. head, side: of packets, their first ROW bytes and side offset.
    """

    def __init__(self, part: Rec, pos: I64, head: U8 | None = None, side: I64 | None = None) -> None:
        self.part, self.pos = part, pos
        self._head, self._side = head, side

    def __len__(self) -> int:
        return int(self.pos.size)

    def take(self, rows: I64 | Bools) -> _Rows:
        """A subset or another order."""
        # as plain bytes: much faster than field by field
        part = self.part.view("V64")[rows].view(self.part.dtype)
        head = None if self._head is None else self._head.view(_HEAD)[rows].view(np.uint8)
        side = None if self._side is None else self._side[rows]
        return _Rows(part, self.pos[rows], head, side)

    @property
    def head(self) -> U8:
        """uint8[n, ROW]."""
        assert self._head is not None
        return self._head

    @property
    def side(self) -> I64:
        """Side offsets of the packets."""
        assert self._side is not None
        return self._side

    @cached_property
    def time(self) -> I64:
        """Cycle."""
        return self.part["time"].astype(np.int64)

    @cached_property
    def pe(self) -> I64:
        """PE."""
        return self.part["pe"].astype(np.int64)

    @cached_property
    def len(self) -> I64:
        """Bytes or beats."""
        return self.part["len"].astype(np.int64)

    @cached_property
    def addr(self) -> U64:
        """Address."""
        return np.ascontiguousarray(self.part["addr"])

    @cached_property
    def flags(self) -> U8:
        """Response or strobe."""
        return np.ascontiguousarray(self.part["flags"])

    @cached_property
    def data(self) -> U64:
        """Data of an MMIO access."""
        return np.ascontiguousarray(self.part["data"])

    @cached_property
    def off(self) -> U64:
        """Absolute side offset."""
        return np.ascontiguousarray(self.part["off"])

    @cached_property
    def aux0(self) -> U64:
        """Cycle of AR, or first strobe."""
        return np.ascontiguousarray(self.part["aux0"])

    @cached_property
    def aux1(self) -> U64:
        """Strobed bytes."""
        return np.ascontiguousarray(self.part["aux1"])


@dataclass
class _Cqes:
    rows: _Rows  # sorted by QP, then position
    g: I64
    idx: I64
    c: I64
    words: U32
    at: I64  # side offset of the payload


@dataclass
class _New:
    g: I64
    idx: I64


@dataclass
class _Requests:
    rows: _Rows  # sorted by QP, then position
    g: I64
    number: I64
    side: I64  # side offset of the payload
    size: I64
    flat: I64  # golden memory: source (transmit) or target (receive)
    va: U64  # target address (receive only)


@dataclass
class _Landing:
    """Inbound payload on its way, sorted by PE and order of arrival."""

    pe: I64
    g: I64
    cum: I64
    va: U64
    length: I64
    written: I64  # bytes that writes have covered after the batch
    unanswered: I64
    at: I64  # position of the response that completes it, _FAR: not yet
    queue: list[list[int]]  # per PE: rows whose bursts wait for a response


class Batch:
    """Judges batches against `state`."""

    def __init__(self, state: State, exact: Exact, report: Callable[[Finding], None]) -> None:
        self.s = state
        self.exact = exact
        self.report = report
        #: why the last batch was not taken
        self.why = ""
        size = state.memory.bytes.size
        self._slots = state.memory.bytes[: size // 128 * 128].view("V128")
        pages = (size >> 12) + 2
        self._page_owner, self._page_shared = np.zeros(pages, np.int64), np.zeros(pages, np.bool_)
        self._half = state.memory.bytes[: size // 32 * 32].view("V32")
        self._side: U8 = np.zeros(0, np.uint8)
        self._windows: dict[int, np.ndarray[Any, Any]] = {}

    # ------------------------------------------------------------------ side buffer
    def _open(self, side: U8) -> None:
        if side is not self._side:
            self._side = side
            self._windows = {}

    def _gather(self, at: I64, width: int) -> U8:
        """uint8[n, width]: the bytes at n side offsets; what would lie beyond the buffer reads as 0."""
        window = self._windows.get(width)
        if window is None:
            count = self._side.size - width + 1
            if count < 1:
                raise _Odd("tiny side buffer")
            window = np.ndarray((count,), f"V{width}", self._side, 0, (1,))
            self._windows[width] = window
        beyond = at >= window.size
        if beyond.any():
            out = np.zeros((at.size, width), np.uint8)
            inside = ~beyond
            out[inside] = window[at[inside]].view(np.uint8).reshape(-1, width)
            for i in np.flatnonzero(beyond).tolist():
                tail = self._side[at[i] :]
                out[i, : tail.size] = tail
            return out
        got: U8 = window[at].view(np.uint8).reshape(-1, width)
        return got

    # ------------------------------------------------------------------ one batch
    def judge(self, records: Rec, side: U8) -> bool:
        """Judge a batch if it is regular throughout; False: nothing has been done."""
        self._open(side)
        try:
            self._judge(records)
        except _Odd as odd:
            self.why = str(odd)
            return False
        return True

    def _judge(self, records: Rec) -> None:
        s = self.s
        _need(records["pe"] < len(s.pes), "PE")
        _need(not any(s.cq_wait) or (s.c_prod - s.c_ci < s.c_depth), "full CQ")
        # by kind, and by ID where it is an AXI record; stable, so each part stays in the order of the stream
        kind = records["kind"].astype(np.uint16)
        axi = (kind >= Kind.AXI_R) & (kind <= Kind.AXI_B)
        key = kind << 8 | np.where(axi, records["id"], 0)
        order = np.argsort(key, kind="stable")
        ordered = records.view("V64")[order].view(records.dtype)
        bounds = np.searchsorted(key[order], _PART_KEYS, side="left")
        stops = np.searchsorted(key[order], _PART_KEYS, side="right")
        (fetches, gathers, inbound, cqe_rows, in_b, cqe_b, stores, doorbells, tx_rows, rx_rows) = (
            _Rows(ordered[a:b], order[a:b]) for a, b in zip(bounds.tolist(), stops.tolist(), strict=True)
        )
        known = sum(len(x) for x in (fetches, gathers, inbound, cqe_rows, in_b, cqe_b))
        _need(bool(axi.sum() == known), "AXI id")
        for burst in (fetches, gathers, inbound, cqe_rows):
            start = burst.addr & np.uint64(0xFC0)
            _need((burst.len > 0) & (start.astype(np.int64) + 64 * burst.len <= 4096), "AXI burst")

        # ---- what the program did, and which WQEs that announces
        cqes = self._cqes(cqe_rows)
        sq, cq = self._doorbells(doorbells)
        store_flat, ring = self._stores(stores)
        new, pi = self._announce(sq, cqes, stores, store_flat, ring)
        # ---- what the NICs did with them
        fetch_g, fetch_pos, fetched = self._fetches(fetches, pi)
        tx, ack_tx = self._split(tx_rows)
        rx, ack_rx = self._split(rx_rows)
        sent = self._transmit(tx, pi, fetch_g, fetch_pos, fetched)
        got, state_rx = self._receive(rx, sent)
        self._gathers(gathers, fetch_g, fetched)
        ack_g, ack_pos, acked = self._acks_in(ack_rx, sent)
        landing = self._land(got, inbound, in_b)
        responses = self._acks_out(ack_tx, got, state_rx, landing)
        ring_ci = self._complete(cqes, cq, pi, ack_g, ack_pos, acked)
        self._cqe_responses(cqe_rows, cqes, cqe_b)

        # ---- all is regular: move the state
        settle(s, new.g, new.idx)
        end = _last_of(fetch_g)
        s.q_fetch[fetch_g[end]] = fetched[end]
        self._commit_tx(sent)
        self._commit_rx(got, state_rx)
        end = _last_of(ack_g)
        s.q_ack[ack_g[end]] = acked[end]
        end = _last_of(responses[0])
        s.r_sent[responses[0][end]] = responses[1][end]
        self._commit_landing(landing)
        self._commit_cqes(cqes, cqe_rows, cqe_b, ring_ci)
        n_pes = len(s.pes)
        for counter, pes in (
            (Cnt.TX_REQUEST, tx.pe), (Cnt.TX_RESPONSE, ack_tx.pe), (Cnt.RX_PACKET, rx.pe),
            (Cnt.RX_PACKET, ack_rx.pe), (Cnt.CQE, cqe_rows.pe),
        ):  # fmt: skip
            s.counters[:, counter] += np.bincount(pes, minlength=n_pes)
        self._memory(stores, store_flat, ring, sent, got)
        s.position += records.size
        s.cycle = max(s.cycle, int(records["time"][-1]))

    def _usable(self, g: I64, what: str) -> None:
        _need((g >= 0) & ~self.s.q_odd[g] & (self.s.q_state[g] == RTS), what)

    def _qp(self, pe: I64, qpn: I64) -> I64:
        index = qpn - self.s.params.first_qpn
        known = (index >= 0) & (index < self.s.params.num_qp)
        out: I64 = np.where(known, self.s.qp_lut[pe, np.where(known, index, 0)], -1)
        return out

    def _side_at(self, off: U64) -> I64:
        out: I64 = (off % np.uint64(max(1, self._side.size))).astype(np.int64)
        return out

    # ------------------------------------------------------------------ program side
    def _doorbells(self, r: _Rows) -> tuple[_Rows, _Rows]:
        p = self.s.params
        low = r.addr < p.db_base
        if low.any():
            _need(np.isin(r.addr[low], _HARMLESS), "CSR write")
            r = r.take(~low)
        _need(r.flags == 0xFF, "doorbell strobe")
        offset = (r.addr - np.uint64(p.db_base)) % np.uint64(p.db_page_bytes)
        is_sq = offset == p.db_sq
        _need(is_sq | (offset == p.db_cq), "doorbell offset")
        return r.take(is_sq), r.take(~is_sq)

    def _page_qp(self, r: _Rows) -> I64:
        p = self.s.params
        g = self._qp(r.pe, ((r.addr - np.uint64(p.db_base)) // np.uint64(p.db_page_bytes)).astype(np.int64))
        self._usable(g, "doorbell QP")
        return g

    def _stores(self, r: _Rows) -> tuple[I64, Bools]:
        """Flat offsets of the stores, and which of them write into a ring."""
        s = self.s
        flat = s.memory.flats(r.pe, r.addr, r.len)
        _need(flat >= 0, "store")
        if not s.ring_start.size:
            return flat, np.zeros(flat.size, np.bool_)
        at = np.searchsorted(s.ring_start, flat + np.maximum(r.len, 1)) - 1
        ring = (at >= 0) & (s.ring_end[np.maximum(at, 0)] > flat) & (r.len > 0)
        base = s.ring_start[np.maximum(at, 0)]
        inside = (flat >= base) & (flat + r.len <= s.ring_end[np.maximum(at, 0)])
        _need(~ring | inside, "store across a ring's end")
        # the CQEs of a batch are committed before its stores
        _need(~(ring & s.ring_of_cq[np.maximum(at, 0)]), "store into a CQ ring")
        return flat, ring

    def _announce(
        self, sq: _Rows, cqes: _Cqes, stores: _Rows, store_flat: I64, ring: Bools
    ) -> tuple[_New, I64]:
        """Judge SQ doorbells, read the announced WQEs as they stood; all producer indices after the batch."""
        s = self.s
        pi = s.q_pi.copy()
        none = np.empty(0, np.int64)
        if not len(sq):
            return _New(none, none), pi
        g = self._page_qp(sq)
        order = np.argsort(g, kind="stable")
        sq, g = sq.take(order), g[order]
        pid_bits = np.where(s.q_version[g] == 1, 17, 21).astype(np.uint64)
        pid = (sq.data & ((np.uint64(1) << pid_bits) - np.uint64(1))).astype(np.int64)
        qp_id = (sq.data >> pid_bits & np.uint64(0xFFFF)).astype(np.int64)
        _need((qp_id == s.q_qpn[g] & 0xFFFF) & (pid & 7 == 0), "SQ doorbell")
        start, _ = spans(g)
        mask = (np.int64(1) << s.q_bits[g]) - 1
        step = ((pid >> 3) - _previous(pid >> 3, start, s.q_pi[g])) & mask
        after = s.q_pi[g] + _sums(step, start)
        retired = _latest(cqes.g, cqes.rows.pos, cqes.idx + 1, g, sq.pos, s.q_ret[g])
        _need(after - retired <= s.q_depth[g], "SQ room")
        end = _last_of(g)
        pi[g[end]] = after[end]
        _need(pi - s.q_ret <= s.q_mask, "table rows")
        source, idx = _ragged(after - step, step)
        group = g[source]
        if not idx.size:
            return _New(none, none), pi
        # each slot as the last store before the doorbell left it
        slot = s.q_flat[group] + idx % s.q_depth[group] * 128
        _need(s.q_flat[group] >= 0, "unmapped ring")
        if s.memory.has_errors():
            where = s.q_base[group] + (idx % s.q_depth[group] * 128).astype(np.uint64)
            _need(~s.memory.faulty(s.q_pe[group], where, np.full(idx.size, 128), False), "fetch error")
        raw: U8 = self._slots[slot >> 7].view(np.uint8).reshape(-1, 128)
        in_ring = np.flatnonzero(ring)
        if in_ring.size:
            self._slots_before(raw, slot >> 7, sq.pos[source], stores.take(in_ring), store_flat[in_ring])
        mapped = np.ones(idx.size, np.bool_)
        good = announce(
            s, group, idx, raw, mapped, sq.time[source], sq.pos[source] + s.position, known_regular=True
        )
        _need(good, "WQE with an error")
        return _New(group, idx), pi

    def _slots_before(self, raw: U8, slot: I64, pos: I64, stores: _Rows, flat: I64) -> None:
        """Bring slots raw[n, 128] from the start of the batch to n positions, by the stores between."""
        first, last = flat >> 7, (flat + stores.len - 1) >> 7
        row, place = _ragged(first, last - first + 1)
        low = np.maximum(flat[row], place << 7)
        size = np.minimum((flat + stores.len)[row], (place + 1) << 7) - low
        at = self._side_at(stores.off)[row] + (low - flat[row])
        key = place << 16 | stores.pos[row]
        by = np.argsort(key, kind="stable")
        key, at, size, low = key[by], at[by], size[by], low[by] & 127
        begin, end = np.searchsorted(key, slot << 16), np.searchsorted(key, slot << 16 | pos)
        # nothing before the last store of the whole slot matters
        whole = np.maximum.accumulate(np.where(size == 128, np.arange(size.size), -1))
        begin = np.maximum(begin, np.where(end > 0, whole[np.maximum(end - 1, 0)], 0))
        shape = low << 8 | size
        while True:
            todo = np.flatnonzero(begin < end)
            if not todo.size:
                return
            which = begin[todo]
            for kind in np.unique(shape[which]).tolist():
                mine = shape[which] == kind
                a, n = kind >> 8, kind & 255
                raw[todo[mine], a : a + n] = self._gather(at[which[mine]], n)
            begin[todo] += 1

    # ------------------------------------------------------------------ reads
    def _fetches(self, r: _Rows, pi: I64) -> tuple[I64, I64, I64]:
        """(QP, position, WQE index after the burst) of the fetch bursts, sorted by QP and position."""
        s = self.s
        self._again: list[tuple[int, int, int]] = []
        if not len(r):
            return r.pos, r.pos, r.pos
        _need((r.addr & np.uint64(127) == 0) & (r.len & 1 == 0) & (r.flags == 0), "fetch burst")
        flat = s.memory.flats(r.pe, r.addr, 64 * r.len)
        at = np.searchsorted(s.q_flat[s.q_order], flat, side="right") - 1
        _need((flat >= 0) & (at >= 0), "fetch outside the rings")
        g = s.q_order[np.maximum(at, 0)]
        self._usable(g, "fetch QP")
        order = np.argsort(g, kind="stable")
        r, g, flat = r.take(order), g[order], flat[order]
        start, _ = spans(g)
        count = r.len >> 1
        after = s.q_fetch[g] + _sums(count, start)
        first = after - count
        slot = (flat - s.q_flat[g]) >> 7
        for qp in np.unique(g[slot != first % s.q_depth[g]]).tolist():
            self._fetched_again(qp, np.flatnonzero(g == qp), r.pos, slot, count, first, after)
        _need((slot + count <= s.q_depth[g]) & (after <= pi[g]), "fetch order")
        # the slot names one WQE only: no announced one lies a lap further on
        _need(all(begin + s.q_depth[qp] >= pi[qp] for qp, _, begin in self._again), "fetch order")
        row = s.q_row[g] + (first + count - 1 & s.q_mask[g])
        _need((s.w_time[row] <= r.aux0.astype(np.int64)) & (s.w_pos[row] < r.pos + s.position), "early fetch")
        return g, r.pos, after

    def _fetched_again(
        self, qp: int, rows: I64, pos: I64, slot: I64, count: I64, first: I64, after: I64
    ) -> None:
        """Bursts of a QP that do not all go on where the last one ended.

        A lane that gave way drops prefetched WQEs; they are fetched again, from one on that is not sent
        (docs/decisions.md). Mends first and after of ``rows``.
        """
        s = self.s
        depth, nxt = int(s.q_depth[qp]), int(s.q_fetch[qp])
        for i in rows.tolist():
            back = (nxt - int(slot[i])) % depth
            begin = nxt - back
            if back:
                _need(begin >= int(s.q_txw[qp]), "fetch of a sent WQE")
                self._again.append((qp, int(pos[i]), begin))
            nxt = max(nxt, begin + int(count[i]))
            first[i], after[i] = begin, nxt

    def _gathers(self, r: _Rows, fetch_g: I64, fetched: I64) -> None:
        """Each read lies in the source of a WQE that was announced before and is fetched but not sent."""
        s = self.s
        if not len(r):
            return
        _need((r.addr & np.uint64(63) == 0) & (r.flags == 0), "gather burst")
        until = s.q_fetch.copy()
        end = _last_of(fetch_g)
        until[fetch_g[end]] = fetched[end]
        live = np.flatnonzero(until > s.q_txw)
        source, idx = _ragged(s.q_txw[live], (until - s.q_txw)[live])
        g = live[source]
        row = s.q_row[g] + (idx & s.q_mask[g])
        keep = (s.w_len[row] > 0) & (s.w_err[row] == 0)
        g, row = g[keep], row[keep]
        low = s.w_laddr[row] & np.uint64(~63 & _ALL_ONES)
        # last byte of the aligned source range: never wraps, an MR ends at 2^64 at the most
        high = (s.w_laddr[row] + (s.w_len[row] - 1).astype(np.uint64)) | np.uint64(63)
        time, sent, pe = s.w_time[row], s.w_sent[row] - s.position, s.q_pe[g]
        last = r.addr + (64 * r.len - 1).astype(np.uint64)
        since = r.aux0.astype(np.int64)
        for p in np.unique(r.pe).tolist():
            mine, reads = np.flatnonzero(pe == p), np.flatnonzero(r.pe == p)
            _need(mine.size > 0, "gather without a WQE")
            order = mine[np.lexsort((time[mine], low[mine]))]
            lows, highs, times, gone = low[order], high[order], time[order], sent[order]
            begin, end_at, when, now = r.addr[reads], last[reads], since[reads], r.pos[reads]
            # a source that begins where the read does: the last one announced before it
            fresh = np.ones(lows.size, np.bool_)
            fresh[1:] = lows[1:] != lows[:-1]
            rank = np.cumsum(fresh) - 1
            at = np.searchsorted(lows, begin, side="right") - 1
            _need(at >= 0, "gather below every source")
            keys = rank << 44 | times
            latest = np.maximum(np.searchsorted(keys, rank[at] << 44 | when, side="right") - 1, 0)
            good = (lows[latest] <= begin) & (times[latest] <= when) & (highs[latest] >= end_at)
            good &= gone[latest] > now
            # else the one that reaches farthest of all that begin before
            rest = np.flatnonzero(~good)
            if not rest.size:
                continue
            best = np.maximum.accumulate(highs)
            fresh[1:] = best[1:] != best[:-1]
            witness = np.maximum.accumulate(np.where(fresh, np.arange(best.size), 0))[at[rest]]
            missed = (times[witness] > when[rest]) | (highs[witness] < end_at[rest])
            rest = rest[missed | (gone[witness] <= now[rest])]
            # else any: buffers that were used again within the batch
            _need(rest.size * lows.size < _SEARCH, "too many gathers to search for")
            some = lows <= begin[rest][:, None]
            some &= highs >= end_at[rest][:, None]
            some &= times <= when[rest][:, None]
            some &= gone > now[rest][:, None]
            _need(some.any(axis=1), "gather outside the sources")

    # ------------------------------------------------------------------ link
    def _split(self, r: _Rows) -> tuple[_Rows, _Rows]:
        """Requests and ACKs, with their first bytes and side offsets."""
        _need(r.len >= frames.BASE + frames.ICRC, "short frame")
        at = self._side_at(r.off)
        head = self._gather(at, frames.ROW)
        r = _Rows(r.part, r.pos, head, at)
        is_ack = head[:, 42] == frames.ACK
        return r.take(~is_ack), r.take(is_ack)

    @staticmethod
    def _be(head: U8, column: int, count: int) -> I64:
        out = head[:, column].astype(np.int64)
        for i in range(1, count):
            out = out << 8 | head[:, column + i]
        return out

    def _received_crcs(
        self, flow: I64, number: I64, head: U8, side: I64, length: I64, sent: _Requests
    ) -> None:
        """ICRC of received frames: good where it is byte for byte a frame that was checked when sent."""
        rest = np.ones(flow.size, np.bool_)
        keys = sent.g << 40 | sent.number
        if keys.size:
            key = flow << 40 | number
            at = np.minimum(np.searchsorted(keys, key), keys.size - 1)
            same = (keys[at] == key) & (sent.rows.len[at] == length) & (length <= _SHORT)
            for size in np.unique(length[same]).tolist():
                mine = np.flatnonzero(same & (length == size))
                if mine.size < _FEW:
                    continue
                ours, theirs = self._gather(side[mine], size), self._gather(sent.rows.side[at[mine]], size)
                if np.array_equal(ours, theirs):
                    rest[mine] = False
        if rest.any():
            self._body_crcs(flow[rest], head[rest], side[rest], length[rest])

    def _body_crcs(self, flow: I64, head: U8, side: I64, length: I64) -> None:
        """ICRC of request frames by zlib over what follows the BTH (wire.md 4)."""
        state = self.s.flow_rows.head_crcs(flow, head).tolist()
        view = memoryview(self._side)  # type: ignore[arg-type]
        crc = zlib.crc32
        starts, ends = (side + frames.BASE).tolist(), (side + length - frames.ICRC).tolist()
        computed = [crc(view[a:b], h) for a, b, h in zip(starts, ends, state, strict=True)]
        stored = self._gather(side + length - frames.ICRC, 4).view("<u4")[:, 0]
        _need(np.array(computed, np.uint32) == stored, "ICRC")

    def _tx_qp(self, r: _Rows) -> I64:
        s = self.s
        head: U8 = r.head
        key = r.pe << 56 | self._be(head, 30, 4) << 24 | self._be(head, 47, 3)
        at = np.searchsorted(s.tx_keys, key.view(np.uint64))
        _need(at < s.tx_keys.size, "destination")
        _need(s.tx_keys[at] == key.view(np.uint64), "destination")
        g = s.tx_order[at]
        self._usable(g, "transmitting QP")
        return g

    def _transmit(self, r: _Rows, pi: I64, fetch_g: I64, fetch_pos: I64, fetched: I64) -> _Requests:
        """Request packets against the next expected of each QP: everything but the payload."""
        s = self.s
        none = np.empty(0, np.int64)
        if not len(r):
            return _Requests(r, none, none, none, none, none, none.view(np.uint64))
        g = self._tx_qp(r)
        order = np.argsort(g, kind="stable")
        r, g = r.take(order), g[order]
        head: U8 = r.head
        side: I64 = r.side
        start, rank = spans(g)
        number = s.q_tx[g] + rank
        # every WQE has at least one packet: as many WQEs as packets are enough to look at
        end = _last_of(g)
        qps, packets = g[end], rank[end] + 1
        source, idx = _ragged(s.q_txw[qps], np.minimum(packets, pi[qps] - s.q_txw[qps]))
        row = s.q_row[qps[source]] + (idx & s.q_mask[qps[source]])
        dense = np.cumsum(start == np.arange(g.size)) - 1
        keys = source << 40 | s.w_first[row]
        at = np.searchsorted(keys, dense << 40 | number, side="right") - 1
        _need((at >= 0) & (keys.size > 0), "packet of no WQE")
        _need(source[at] == dense, "packet of no WQE")
        w, idx = row[at], idx[at]
        k = number - s.w_first[w]
        _need((k >= 0) & (k < s.w_np[w]) & (s.w_err[w] == 0), "packet of no WQE")
        _need(s.w_pos[w] < r.pos + s.position, "packet before its doorbell")
        _need(_latest(fetch_g, fetch_pos, fetched, g, r.pos, s.q_fetch[g]) > idx, "packet before its fetch")
        for qp, pos, begin in self._again:
            low, high = np.searchsorted(g, [qp, qp + 1])
            _need((idx[low:high] < begin) | (r.pos[low:high] > pos), "fetch of a sent WQE")
        only, last = s.w_np[w] == 1, k == s.w_np[w] - 1
        opcode = np.where(
            only, frames.WRITE_ONLY,
            np.where(k == 0, frames.WRITE_FIRST, np.where(last, frames.WRITE_LAST, frames.WRITE_MIDDLE)),
        )  # fmt: skip
        ack_req = (last | ((k + 1) % s.params.ack_interval == 0)).astype(np.int64)
        mtu = s.q_mtu[g]
        size = np.minimum(mtu, s.w_len[w] - k * mtu)
        pad = -size & 3
        ext = np.where(k == 0, frames.RETH, 0)
        psn = (number + s.q_sq_psn[g]) & _MASK24
        want = s.flow_rows.build(g, opcode, pad, ack_req, psn, ext + size + pad)
        first = np.flatnonzero(k == 0)
        frames.fill_reth(
            want, first, s.w_raddr[w[first]].view(np.int64), s.w_rkey[w[first]], s.w_len[w[first]]
        )
        _need(r.len == frames.BASE + ext + size + pad + frames.ICRC, "frame length")
        _need(want[:, : frames.BASE] == head[:, : frames.BASE], "headers")
        _need(want[first, frames.BASE :] == head[first, frames.BASE :], "RETH")
        self._pads(side, r.len, pad)
        self._body_crcs(g, head, side, r.len)
        # a column that only this engine reads, and only between doorbell and here
        s.w_sent[w[last]] = r.pos[last] + s.position
        flat = s.w_flat[w] + k * mtu
        _need(not s.meets_ring(flat, size), "source in a ring")
        self._tx_next = qps, number[end] + 1, idx[end] + last[end]
        return _Requests(r, g, number, side + frames.BASE + ext, size, flat, s.w_raddr[w])

    def _pads(self, side: I64, length: I64, pad: I64) -> None:
        padded = np.flatnonzero(pad)
        if padded.size:
            tail = self._gather(side[padded] + length[padded] - 8, 4)
            inside = np.arange(4) >= 4 - pad[padded][:, None]
            _need(~inside | (tail == 0), "pad")

    def _receive(self, r: _Rows, sent: _Requests) -> tuple[_Requests, dict[str, Any]]:
        """Requests at their responders: PSN, sequence, lengths, rights (wire.md 5); what they leave."""
        s = self.s
        none = np.empty(0, np.int64)
        if not len(r):
            return _Requests(r, none, none, none, none, none, none.view(np.uint64)), {}
        head: U8 = r.head
        g = self._qp(r.pe, self._be(head, 47, 3))
        self._usable(g, "receiving QP")
        order = np.argsort(g, kind="stable")
        r, g, head = r.take(order), g[order], head[order]
        side: I64 = r.side
        flow = s.q_peer[g]
        _need(flow >= 0, "peer")
        opcode = head[:, 42].astype(np.int64)
        begins = (opcode == frames.WRITE_FIRST) | (opcode == frames.WRITE_ONLY)
        ends = (opcode == frames.WRITE_LAST) | (opcode == frames.WRITE_ONLY)
        _need(begins | ends | (opcode == frames.WRITE_MIDDLE), "request opcode")
        ext = np.where(begins, frames.RETH, 0)
        pad = head[:, 43].astype(np.int64) >> 4 & 3
        size = r.len - frames.BASE - frames.ICRC - ext - pad
        start, rank = spans(g)
        number = s.r_exp[g] + rank
        psn = (number + s.q_rq_psn[g]) & _MASK24
        ack_req = head[:, 50].astype(np.int64) >> 7
        want = s.flow_rows.build(flow, opcode, pad, ack_req, psn, ext + size + pad)
        _need((size >= 0) & (pad == -size & 3), "pad count")
        _need(want[:, : frames.BASE] == head[:, : frames.BASE], "received headers")
        self._received_crcs(flow, number, head, side, r.len, sent)
        # ---- sequence: a message is open unless the packet before ended one
        is_open = _previous((~ends).astype(np.int64), start, s.r_open[g].astype(np.int64))
        _need(begins != (is_open != 0), "opcode sequence")
        here = np.arange(g.size)
        opened = np.maximum.accumulate(np.where(begins, here, -1))
        carried = opened < start  # goes on with a message of an earlier batch
        opened = np.where(carried, start, opened)
        mtu = s.q_mtu[g]
        offset = (here - opened) * mtu
        va0 = self._be(head, 54, 8).view(np.uint64)
        base = np.where(carried, s.r_va[g], va0[opened])
        rkey = np.where(carried, s.r_rkey[g], self._be(head, 62, 4)[opened])
        total = np.where(carried, s.r_left[g], self._be(head, 66, 4)[opened])
        left = total - offset
        whole = (size == mtu) & (left > mtu)
        final = (size == left) & (size <= mtu) & ((size > 0) | (opcode == frames.WRITE_ONLY))
        _need(np.where(ends, final, whole), "lengths")
        va = base + offset.view(np.uint64)
        _need(s.q_write[g], "QP right")
        # ---- key, right and range at the first packet; the key again where a message goes on
        check = np.flatnonzero(begins)
        verdict = rules.mr_check(
            s.mr_rows, rkey[check], True, rules.Right.REM_WRITE, base[check], total[check], r.pe[check]
        )
        _need(verdict == rules.MrVerdict.OK, "MR")
        again = np.flatnonzero(carried)
        if again.size:
            verdict = rules.mr_check(
                s.mr_rows, rkey[again], True, rules.Right.REM_WRITE, va[again], size[again], r.pe[again]
            )
            _need(verdict == rules.MrVerdict.OK, "MR of an open message")
        flat = s.memory.flats(r.pe, va, size)
        _need((flat >= 0) | (size == 0), "target memory")
        _need(~s.memory.faulty(r.pe, va, size, True), "target memory")
        _need(not s.meets_ring(flat, size), "target in a ring")
        # ---- messages
        msn = s.r_msn[g] + _sums(ends.astype(np.int64), start)
        end = _last_of(g)
        _need(msn[end] - s.r_msn[g[end]] < s.e_rows // 2, "too many messages")
        done = np.flatnonzero(ends)
        # rows beyond r_msn: no harm if the batch is given up
        s.e_end[g[done], (msn[done] - 1) % s.e_rows] = number[done]
        asks = np.maximum.accumulate(np.where(ack_req > 0, here, -1))
        after = {
            "g": g[end], "exp": number[end] + 1, "msn": msn[end], "open": ~ends[end],
            "va": (va + size.view(np.uint64))[end], "left": (left - size)[end], "rkey": rkey[end],
            "asks": np.where(asks[end] >= start[end], number[np.maximum(asks[end], 0)], s.r_req[g[end]]),
            "all_msn": msn,
        }  # fmt: skip
        return _Requests(r, g, number, side + frames.BASE + ext, size, flat, va), after

    def _ack_rows(self, r: _Rows, flow: I64) -> tuple[I64, I64]:
        """(PSN, MSN) of plain ACKs whose every other byte is as expected."""
        head: U8 = r.head
        side: I64 = r.side
        psn = self._be(head, 51, 3)
        zero = np.zeros(len(r), np.int64)
        want = self.s.flow_rows.build(flow, zero + frames.ACK, zero, zero, psn, zero + frames.AETH)
        _need(r.len == frames.BASE + frames.AETH + frames.ICRC, "ACK length")
        _need(want[:, : frames.BASE] == head[:, : frames.BASE], "ACK headers")
        _need(head[:, 54] == frames.SYN_ACK, "syndrome")
        stored = self._gather(side + frames.BASE + frames.AETH, 4).view("<u4")[:, 0]
        _need(self.s.flow_rows.ack_crcs(flow, head) == stored, "ACK ICRC")
        return psn, self._be(head, 55, 3)

    def _acks_in(self, r: _Rows, sent: _Requests) -> tuple[I64, I64, I64]:
        """(QP, position, acknowledged packets) of received ACKs, sorted by QP and position."""
        s = self.s
        if not len(r):
            return r.pos, r.pos, r.pos
        g = self._qp(r.pe, self._be(r.head, 47, 3))
        self._usable(g, "acknowledged QP")
        order = np.argsort(g, kind="stable")
        r, g = r.take(order), g[order]
        _need(s.q_peer[g] >= 0, "peer")
        psn, _ = self._ack_rows(r, s.q_peer[g])
        start, _ = spans(g)
        after = s.q_ack[g] + ((psn - s.q_sq_psn[g] - s.q_ack[g]) & _MASK24) + 1
        _need(after > _previous(after, start, s.q_ack[g]), "ACK behind")
        _need(after <= _latest(sent.g, sent.rows.pos, sent.number + 1, g, r.pos, s.q_tx[g]), "ACK ahead")
        return g, r.pos, after

    def _acks_out(
        self, r: _Rows, got: _Requests, after: dict[str, Any], landing: _Landing
    ) -> tuple[I64, I64]:
        """ACKs as a legal set (wire.md 6): (QP, packet) sorted by QP and position."""
        s = self.s
        if not len(r):
            return r.pos, r.pos
        g = self._tx_qp(r)
        order = np.argsort(g, kind="stable")
        r, g = r.take(order), g[order]
        psn, msn24 = self._ack_rows(r, g)
        start, _ = spans(g)
        c = s.r_exp[g] + ((psn - s.q_rq_psn[g] - s.r_exp[g] + 0x800000) & _MASK24) - 0x800000
        executed = _latest(got.g, got.rows.pos, got.number + 1, g, r.pos, s.r_exp[g])
        _need((c >= 0) & (c < executed) & (c >= _previous(c, start, s.r_sent[g])), "ACK PSN")
        # the MSN names the messages that end at or before the packet
        now = _latest(got.g, got.rows.pos, after.get("all_msn", r.pos), g, r.pos, s.r_msn[g])
        msn = now - ((now - msn24) & _MASK24)
        final = s.r_msn.copy()
        if after:
            final[after["g"]] = after["msn"]
        _need((msn >= 0) & (msn > final[g] - s.e_rows + 1), "MSN far behind")
        ended = (msn == 0) | (s.e_end[g, (msn - 1) % s.e_rows] <= c)
        _need(ended & ((msn == now) | (s.e_end[g, msn % s.e_rows] > c)), "MSN")
        # all writes of the QP up to the packet have their responses
        by = np.lexsort((landing.cum, landing.g))
        keys = landing.g[by] << 40 | landing.cum[by]
        if keys.size:
            at = np.searchsorted(keys, g << 40 | c, side="right") - 1
            same = (at >= 0) & (keys[np.maximum(at, 0)] >> 40 == g)
            _need(~same | (landing.at[by][np.maximum(at, 0)] < r.pos), "ACK before the write response")
        return g, c

    # ------------------------------------------------------------------ inbound payload
    def _land(self, got: _Requests, r: _Rows, responses: _Rows) -> _Landing:
        """Match payload writes and their responses with received packets, in order of arrival per PE."""
        s = self.s
        n_pes = len(s.pes)
        entries = [e for queue in s.inbound for e in queue]
        _need(all(e.late is None for e in entries), "packet in doubt")
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
        _need((count > 0) & (count <= 4096), "strobed bytes")
        start, _ = spans(pe)
        left = length - done
        u_end = pe << 44 | _sums(left, start)
        b_start_row, _ = spans(r.pe)
        b_sum = _sums(count, b_start_row)
        b_start = r.pe << 44 | b_sum - count
        j = np.searchsorted(u_end, b_start, side="right")
        _need(j < pe.size, "write without a packet")
        _need(
            (pe[j] == r.pe) & ((r.pe << 44 | b_sum) <= u_end[j]) & (pos[j] < r.pos),
            "write outside its packet",
        )
        into = length[j] - (u_end[j] - b_start)
        address = va[j] + into.view(np.uint64)
        lane = (address & np.uint64(63)).astype(np.int64)
        in_first = np.minimum(64 - lane, count)
        ones = np.where(
            in_first == 64,
            np.uint64(_ALL_ONES),
            (np.uint64(1) << (in_first & 63).astype(np.uint64)) - np.uint64(1),
        )
        _need(
            (r.addr & np.uint64(~63 & _ALL_ONES)) == (address & np.uint64(~63 & _ALL_ONES)), "write address"
        )
        _need(
            (r.aux0 == ones << lane.astype(np.uint64)) & (r.len == (lane + count + 63) >> 6), "write strobes"
        )
        written = done + np.bincount(j, count, pe.size).astype(np.int64)
        completes = into + count == length[j]
        unanswered = unanswered + np.bincount(j, minlength=pe.size)

        # ---- responses, in order
        _need(responses.flags == 0, "write response")
        at = np.full(pe.size, _FAR, np.int64)
        queue: list[list[int]] = []
        for p in range(n_pes):
            mine = np.flatnonzero(r.pe == p)
            old = [number[id(e)] if e is not None else -1 for e in s.bursts[p]]
            _need(-1 not in old, "write that matched nothing")
            last_old = {row: i for i, row in enumerate(old)}
            final = [done[row] == length[row] and last_old[row] == i for i, row in enumerate(old)]
            rows = np.concatenate([np.array(old, np.int64), j[mine]])
            since = np.concatenate([np.full(len(old), -1, np.int64), r.pos[mine]])
            ends = np.concatenate([np.array(final, np.bool_), completes[mine]])
            answers = responses.pos[responses.pe == p]
            n = answers.size
            _need(n <= rows.size, "response without a write")
            _need(since[:n] < answers, "response before its write")
            at[rows[:n][ends[:n]]] = answers[ends[:n]]
            unanswered -= np.bincount(rows[:n], minlength=pe.size)
            queue.append(rows[n:].tolist())
        # a packet that was written and answered before the batch is not in the lists any more
        return _Landing(pe, g, cum, va, length, written, unanswered, at, queue)

    def _commit_landing(self, landing: _Landing) -> None:
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

    # ------------------------------------------------------------------ CQEs
    def _cqes(self, r: _Rows) -> _Cqes:
        """CQE writes with their QP and the WQE that each names, sorted by QP and position."""
        s = self.s
        none = np.empty(0, np.int64)
        if not len(r):
            return _Cqes(r, none, none, none, np.empty((0, 8), np.uint32), none)
        upper = r.aux0 == np.uint64(0xFFFFFFFF << 32)
        lane = np.where(upper, 32, 0)
        at = self._side_at(r.off) + lane
        words: U32 = self._gather(at, 32).view("<u4").reshape(-1, 8)
        g = self._qp(r.pe, (words[:, 0] >> 8 & 0x7FFF).astype(np.int64))
        self._usable(g, "completing QP")
        order = np.argsort(g, kind="stable")
        r, g, words, at = r.take(order), g[order], words[order], at[order]
        v1 = s.q_version[g] == 1
        named = np.where(v1, words[:, 5] >> 19, words[:, 6] >> 15).astype(np.int64)
        start, _ = spans(g)
        mask = np.where(v1, 0x1FFF, 0x1FFFF)
        step = (named - _previous(named, start, s.q_ret[g] - 1)) & mask
        idx = s.q_ret[g] - 1 + _sums(step, start)
        return _Cqes(r, g, idx, s.q_cq[g], words, at)

    def _complete(
        self, q: _Cqes, cq: _Rows, pi: I64, ack_g: I64, ack_pos: I64, acked: I64
    ) -> tuple[I64, I64]:
        """Every field of every CQE, its place and time; CQ doorbells: (CQ, consumer index after each)."""
        s, r, g, idx, c = self.s, q.rows, q.g, q.idx, q.c
        # ---- CQ doorbells by CQ
        page = self._page_qp(cq)
        order = np.argsort(s.q_cq[page], kind="stable")
        cq, dc = cq.take(order), s.q_cq[page][order]
        by_c = np.argsort(c, kind="stable")
        by_c = by_c[np.lexsort((r.pos[by_c], c[by_c]))]
        ec, epos = c[by_c], r.pos[by_c]
        c_start, c_rank = spans(ec)
        prod = s.c_prod[ec] + c_rank
        _need(
            (dc >= 0) & ((cq.data >> np.uint64(23) & np.uint64(0xFFFF)).astype(np.int64) == s.c_cqn[dc]),
            "CQ number",
        )
        cid = (cq.data & np.uint64(0x7FFFFF)).astype(np.int64)
        d_start, _ = spans(dc)
        ci = s.c_ci[dc] + _sums((cid - _previous(cid, d_start, s.c_ci[dc])) & 0x7FFFFF, d_start)
        _need(ci <= _latest(ec, epos, prod + 1, dc, cq.pos, s.c_prod[dc]), "CQ doorbell")
        if not len(r):
            return dc, ci
        # ---- the WQE
        _need((idx >= s.q_ret[g]) & (idx < pi[g]), "CQE of no WQE")
        row = s.q_row[g] + (idx & s.q_mask[g])
        _, rank = spans(g)
        _need(s.w_ce[row] & (s.w_ceno[row] == s.q_ce_done[g] + rank + 1) & (s.w_err[row] == 0), "CQE order")
        _need(s.w_pos[row] < r.pos + s.position, "CQE before its doorbell")
        done = s.w_first[row] + s.w_np[row]
        _need(_latest(ack_g, ack_pos, acked, g, r.pos, s.q_ack[g]) >= done, "CQE before its ACK")
        # ---- place
        _need(c >= 0, "CQ")
        _need(~s.c_dead[c] & ~s.c_ignore[c] & (s.c_flat[c] >= 0), "CQ")
        number = np.empty(c.size, np.int64)
        number[by_c] = prod
        stride, depth = s.c_stride[c], s.c_depth[c]
        address = s.c_base[c] + (number % depth * stride).astype(np.uint64)
        lane = (address & np.uint64(63)).astype(np.int64)
        _need((r.addr & np.uint64(~63 & _ALL_ONES)) + lane.astype(np.uint64) == address, "slot")
        ones = np.where(stride == 64, np.uint64(_ALL_ONES), np.uint64(0xFFFFFFFF) << lane.astype(np.uint64))
        _need((r.aux0 == ones) & (r.aux1 == stride.astype(np.uint64)) & (r.len == 1), "CQE strobes")
        used = number - _latest(dc, cq.pos, ci, c, r.pos, s.c_ci[c])
        _need(used < depth, "CQ room")
        if any(s.cq_wait):
            limited = np.array(s.cq_wait) > 0
            _need(~limited[r.pe] | (used + 1 < depth), "full CQ with a limit of waiting")
        # ---- content
        v1 = s.q_version[g] == 1
        w = q.words.astype(np.int64)
        wqe_id = idx << 3 & np.where(v1, 0xFFFF, 0xFFFFF)
        op = s.w_op[row]
        fields = w[:, 0] == (s.q_qpn[g] & 0x7FFF) << 8 | s.w_imm[row] << 27
        fields &= (w[:, 1] == 0) & (w[:, 2] == s.w_len[row]) & (w[:, 3] == 0)
        fields &= w[:, 5] >> 16 == np.where(v1, wqe_id, 0)
        fields &= w[:, 6] == np.where(v1, op, op | wqe_id << 12)
        fields &= w[:, 7] == (number // depth & 1) << 31
        _need(fields, "CQE fields")
        wide = np.flatnonzero(stride == 64)
        if wide.size:
            _need(self._gather(q.at[wide] + 32, 32) == 0, "CQE upper half")
        ts = w[:, 4] | (w[:, 5] & 0xFFFF) << 32
        ts += self.exact.time_origin
        _need((ts >= s.w_time[row]) & (ts <= r.time), "ts")
        ordered = ts[by_c]
        _need(ordered >= _previous(ordered, c_start, s.c_ts[ec]), "ts order")
        self._cqe_place = address, number, ts, by_c
        return dc, ci

    def _cqe_responses(self, writes: _Rows, q: _Cqes, responses: _Rows) -> None:
        """Responses of CQE writes come after them."""
        _need(responses.flags == 0, "CQE response")
        for p in np.unique(responses.pe).tolist():
            before = len(self.s.cqe_bursts[p])
            at = responses.pos[responses.pe == p]
            seen = before + np.searchsorted(writes.pos[writes.pe == p], at)
            _need(np.arange(at.size) < seen, "CQE response without a write")

    def _commit_cqes(self, q: _Cqes, writes: _Rows, responses: _Rows, ring_ci: tuple[I64, I64]) -> None:
        s = self.s
        end = _last_of(ring_ci[0])
        s.c_ci[ring_ci[0][end]] = ring_ci[1][end]
        if q.g.size:
            end = _last_of(q.g)
            s.q_ret[q.g[end]] = q.idx[end] + 1
            row = s.q_row[q.g[end]] + (q.idx[end] & s.q_mask[q.g[end]])
            s.q_ce_done[q.g[end]] = s.w_ceno[row]
            address, number, ts, by_c = self._cqe_place
            end = by_c[_last_of(q.c[by_c])]
            s.c_prod[q.c[end]] = number[end] + 1
            s.c_ts[q.c[end]] = ts[end]
            # nothing in the batch reads a ring, so all CQEs go in at once; of one slot the last stays
            slot = s.c_flat[q.c] + number % s.c_depth[q.c] * s.c_stride[q.c]
            order = np.argsort(q.rows.pos, kind="stable")
            slot, at = slot[order], q.at[order]
            self._half[slot >> 5] = self._gather(at, 32).reshape(-1).view("V32")
            wide = s.c_stride[q.c[order]] == 64
            self._half[(slot[wide] >> 5) + 1] = np.zeros(1, "V32")[0]
            s.memory.touch_many(slot, s.c_stride[q.c[order]])
            by_pos = q.c[order]
            pe = s.c_pe[by_pos]
            for p in np.unique(pe).tolist():
                s.cqe_bursts[p].extend(by_pos[pe == p].tolist())
        for p, n in enumerate(np.bincount(responses.pe, minlength=len(s.pes)).tolist()):
            for _ in range(n):
                s.cqe_bursts[p].popleft()

    # ------------------------------------------------------------------ state and memory
    def _commit_tx(self, sent: _Requests) -> None:
        if sent.g.size:
            qps, number, wqe = self._tx_next
            self.s.q_tx[qps] = number
            self.s.q_txw[qps] = wqe

    def _commit_rx(self, got: _Requests, after: dict[str, Any]) -> None:
        s = self.s
        if not after:
            return
        g = after["g"]
        s.r_exp[g], s.r_msn[g], s.r_open[g] = after["exp"], after["msn"], after["open"]
        s.r_va[g], s.r_left[g], s.r_rkey[g] = after["va"], after["left"], after["rkey"]
        s.r_req[g] = after["asks"]
        s.r_ahead[g] = False

    def _memory(self, stores: _Rows, flat: I64, ring: Bools, sent: _Requests, got: _Requests) -> None:
        """Stores and inbound payload into golden memory, sent payload against it, in stream order."""
        s = self.s
        source = self._side_at(stores.off)
        in_ring = np.flatnonzero(ring)
        if in_ring.size and not ((flat[in_ring] | stores.len[in_ring]) & 127).any():
            # only WQE fetches read a ring, and those were served: all slots at once
            row, place = _ragged(flat[in_ring] >> 7, stores.len[in_ring] >> 7)
            row = in_ring[row]
            data = self._gather(source[row] + ((place << 7) - flat[row]), 128)
            self._slots[place] = data.reshape(-1).view("V128")
        else:
            ring = np.zeros(ring.size, np.bool_)
        plain = np.flatnonzero(~ring)
        pay, out = np.flatnonzero(got.size > 0), np.flatnonzero(sent.size > 0)
        pos = np.concatenate([stores.pos[plain], got.rows.pos[pay], sent.rows.pos[out]])
        to = np.concatenate([flat[plain], got.flat[pay], sent.flat[out]])
        at = np.concatenate([source[plain], got.side[pay], sent.side[out]])
        size = np.concatenate([stores.len[plain], got.size[pay], sent.size[out]])
        # 0: stores, 1: inbound payload, 2: sent payload, which is only looked at
        what = np.repeat(np.arange(3), [plain.size, pay.size, out.size])
        loop = self._bulk(what, to, at, size, pos)
        order = np.flatnonzero(loop)
        order = order[np.argsort(pos[order], kind="stable")]
        compare = what[order] == 2
        memory, side = s.memory.view, memoryview(self._side)  # type: ignore[arg-type]
        to, at, size = to[order], at[order], size[order]
        for look, a, b, c, d, i in zip(
            compare.tolist(), to.tolist(), (to + size).tolist(), at.tolist(), (at + size).tolist(),
            order.tolist(), strict=True,
        ):  # fmt: skip
            if look:
                if memory[a:b].tobytes() != side[c:d].tobytes():
                    self._wrong_payload(sent, int(out[i - plain.size - pay.size]))
            else:
                memory[a:b] = side[c:d]
        s.memory.touch_many(flat, stores.len)
        s.memory.touch_many(got.flat[pay], got.size[pay])

    def _bulk(self, what: I64, to: I64, at: I64, size: I64, pos: I64) -> Bools:
        """Do at once what no other access of the batch can meet; which accesses are left for the loop.

        Accesses of one kind and size keep their order among themselves. A page that a second kind or size of
        write touches, or a write and a read, is left to the loop.
        """
        loop = size > 0
        group = np.where(what == 2, 1, what << 20 | np.minimum(size, _SHORT + 1) << 2)
        access, page = _ragged(to >> 12, np.where(loop, (to + size - 1 >> 12) - (to >> 12) + 1, 0))
        owner, shared = self._page_owner, self._page_shared
        owner[page] = group[access]
        shared[page[owner[page] != group[access]]] = True
        meets = np.zeros(size.size, np.bool_)
        while True:
            before = np.count_nonzero(meets)
            meets[access[shared[page]]] = True
            if np.count_nonzero(meets) == before:
                break
            # an access on two pages takes its neighbours on the other page along: order inside a kind
            shared[page[meets[access]]] = True
        shared[page] = False
        for kind in np.unique(group[loop & ~meets]).tolist():
            if kind != 1 and kind >> 2 & 0x3FFFF > _SHORT:
                continue
            mine = np.flatnonzero(loop & ~meets & (group == kind))
            for n in np.unique(size[mine]).tolist():
                some = mine[size[mine] == n]
                if n > _SHORT or some.size < _FEW:
                    continue
                # payload comes sorted by QP: of writes of several QPs to one place the last one stands
                some = some[np.argsort(pos[some], kind="stable")]
                window = np.ndarray(
                    (self.s.memory.bytes.size - n + 1,), f"V{n}", self.s.memory.bytes, 0, (1,)
                )
                data = self._gather(at[some], n)
                if kind != 1:
                    window[to[some]] = data.reshape(-1).view(f"V{n}")
                elif not np.array_equal(window[to[some]].view(np.uint8).reshape(-1, n), data):
                    continue  # the loop finds out which
                loop[some] = False
        return loop

    def _wrong_payload(self, sent: _Requests, i: int) -> None:
        s, size, g = self.s, int(sent.size[i]), int(sent.g[i])
        a, b = int(sent.flat[i]), int(sent.side[i])
        want, got = s.memory.bytes[a : a + size], self._side[b : b + size]
        first = int(np.flatnonzero(want != got)[0])
        stop = min(first + 16, size)
        number = int(sent.number[i])
        rows = s.q_row[g] + np.arange(s.q_mask[g] + 1)
        wqe = rows[(s.w_first[rows] <= number) & (number < s.w_first[rows] + s.w_np[rows])]
        pos = int(sent.rows.pos[i]) + s.position
        wqe = wqe[np.argmax(s.w_pos[wqe])] if wqe.size else -1
        index = -1
        if wqe >= 0:
            low = int(wqe - s.q_row[g])
            top = int(s.q_pi[g]) - 1
            index = top - ((top - low) & int(s.q_mask[g]))
        head = b - int(sent.rows.side[i])
        self.report(
            Finding(
                Check.TX_PAYLOAD, int(s.q_pe[g]), int(s.q_qpn[g]), index,
                number + int(s.q_sq_psn[g]) & _MASK24, int(sent.rows.time[i]),
                f"byte {first} (frame offset {head + first})", want[first:stop].tobytes().hex(" "),
                got[first:stop].tobytes().hex(" "), pos,
            )
        )  # fmt: skip
