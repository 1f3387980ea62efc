"""Batch engine, program side: doorbells, stores, and the WQEs that they announce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, U8, Bools
from pymodel.nic.batch_complete import Cqes
from pymodel.nic.batch_rows import Rows, last_of, latest_of, need, previous, ragged, sums, true
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_wqe import announce, spans
from pymodel.nic.params import Csr

#: CSR writes that change nothing the judge looks at
_HARMLESS: Final = (Csr.EVENT_CAUSE, Csr.SL_WEIGHT)


@dataclass
class New:
    """Announced WQEs, sorted by QP and index."""

    g: I64
    idx: I64


class Doorbells(Part):
    """SQ doorbells, stores, announced WQEs."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        size = self.s.memory.bytes.size
        self._slots = self.s.memory.bytes[: size // 128 * 128].view("V128")

    def split(self, r: Rows) -> tuple[Rows, Rows]:
        """(SQ doorbells, CQ doorbells) of the register writes."""
        p = self.s.params
        low = r.addr < p.db_base
        if low.any():
            need(np.isin(r.addr[low], _HARMLESS), "CSR write")
            r = r.take(~low)
        need(r.flags == 0xFF, "doorbell strobe")
        offset = (r.addr - np.uint64(p.db_base)) % np.uint64(p.db_page_bytes)
        is_sq = offset == p.db_sq
        need(is_sq | (offset == p.db_cq), "doorbell offset")
        # cq_sta 2 and 3 arm
        need(is_sq | (r.data >> np.uint64(40) & np.uint64(1) == 0), "arm")
        return r.take(is_sq), r.take(~is_sq)

    @staticmethod
    def quiet(r: Rows) -> bool:
        """Whether register reads tell nothing of events."""
        told = (r.addr == Csr.CQ_EVENT) | ((r.addr == Csr.ASYNC_POP) & (r.data >> np.uint64(63) != 0))
        return not told.any()

    def stores(self, r: Rows) -> tuple[I64, Bools]:
        """Flat offsets of the stores, and which of them write into a ring."""
        s = self.s
        flat = s.memory.flats(r.pe, r.addr, r.len)
        need(flat >= 0, "store")
        if not s.ring_start.size:
            return flat, np.zeros(flat.size, np.bool_)
        at = s.ring_start.searchsorted(flat + np.maximum(r.len, 1)) - 1
        ring = (at >= 0) & (s.ring_end[np.maximum(at, 0)] > flat) & (r.len > 0)
        base = s.ring_start[np.maximum(at, 0)]
        inside = (flat >= base) & (flat + r.len <= s.ring_end[np.maximum(at, 0)])
        need(~ring | inside, "store across a ring's end")
        # the CQEs of a batch are committed before its stores
        need(~(ring & s.ring_of_cq[np.maximum(at, 0)]), "store into a CQ ring")
        return flat, ring

    def announce(self, sq: Rows, cqes: Cqes, stores: Rows, store_flat: I64, ring: Bools) -> tuple[New, I64]:
        """Judge SQ doorbells, read the announced WQEs as they stood; all producer indices after the batch."""
        s = self.s
        pi = s.q_pi.copy()
        none = np.empty(0, np.int64)
        if not len(sq):
            return New(none, none), pi
        g = self.view.page_qp(sq)
        order = np.argsort(g, kind="stable")
        sq, g = sq.take(order), g[order]
        pid_bits = np.where(s.q_version[g] == 1, 17, 21).astype(np.uint64)
        pid = (sq.data & ((np.uint64(1) << pid_bits) - np.uint64(1))).astype(np.int64)
        qp_id = (sq.data >> pid_bits & np.uint64(0xFFFF)).astype(np.int64)
        need((qp_id == s.q_qpn[g] & 0xFFFF) & (pid & 7 == 0), "SQ doorbell")
        start, _ = spans(g)
        mask = (np.int64(1) << s.q_bits[g]) - 1
        step = ((pid >> 3) - previous(pid >> 3, start, s.q_pi[g])) & mask
        after = s.q_pi[g] + sums(step, start)
        retired = latest_of(cqes.g, cqes.rows.pos, cqes.idx + 1, g, sq.pos, s.q_ret[g])
        need(after - retired <= s.q_depth[g], "SQ room")
        end = last_of(g)
        pi[g[end]] = after[end]
        need(pi - s.q_ret <= s.q_mask, "table rows")
        source, idx = ragged(after - step, step)
        group = g[source]
        if not idx.size:
            return New(none, none), pi
        # each slot as the last store before the doorbell left it
        slot = s.q_flat[group] + idx % s.q_depth[group] * 128
        need(s.q_flat[group] >= 0, "unmapped ring")
        if s.memory.has_errors():
            where = s.q_base[group] + (idx % s.q_depth[group] * 128).astype(np.uint64)
            need(~s.memory.faulty(s.q_pe[group], where, np.full(idx.size, 128), False), "fetch error")
        in_ring = true(ring)
        raw = self._slots_at(slot >> 7, sq.pos[source], stores.take(in_ring), store_flat[in_ring])
        mapped = np.ones(idx.size, np.bool_)
        good = announce(
            s, group, idx, raw, mapped, sq.time[source], sq.pos[source] + s.position, known_regular=True
        )
        need(good, "WQE with an error")
        return New(group, idx), pi

    def _slots_at(self, slot: I64, pos: I64, stores: Rows, flat: I64) -> U8:
        """Slots uint8[n, 128] as they stand at n positions, by the stores of the batch before them."""
        if not flat.size:
            raw: U8 = self._slots[slot].view(np.uint8).reshape(-1, 128)
            return raw
        first, last = flat >> 7, (flat + stores.len - 1) >> 7
        row, place = ragged(first, last - first + 1)
        low = np.maximum(flat[row], place << 7)
        size = np.minimum((flat + stores.len)[row], (place + 1) << 7) - low
        at = self.view.place(stores.off)[row] + (low - flat[row])
        key = place << 20 | stores.pos[row]
        by = np.argsort(key)
        key, at, size, low = key[by], at[by], size[by], low[by] & 127
        begin, end = key.searchsorted(slot << 20), key.searchsorted(slot << 20 | pos)
        # nothing before the last store of the whole slot matters
        whole = np.maximum.accumulate(np.where(size == 128, np.arange(size.size), -1))
        begin = np.maximum(begin, np.where(end > 0, whole[np.maximum(end - 1, 0)], 0))
        fresh = (begin < end) & (size[np.minimum(begin, size.size - 1)] == 128)
        if fresh.all():
            raw = self.view.gather(at[begin], 128)
        else:
            raw = self._slots[slot].view(np.uint8).reshape(-1, 128)
            raw[fresh] = self.view.gather(at[begin[fresh]], 128)
        begin += fresh
        shape = low << 8 | size
        while True:
            todo = true(begin < end)
            if not todo.size:
                return raw
            which = begin[todo]
            for kind in np.unique(shape[which]).tolist():
                mine = shape[which] == kind
                a, n = kind >> 8, kind & 255
                raw[todo[mine], a : a + n] = self.view.gather(at[which[mine]], n)
            begin[todo] += 1
