"""Batch engine, golden memory: stores and payload in stream order, sent bytes against it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pymodel.formats.arrays import I64, Bools
from pymodel.nic.batch_rows import FEW, MASK24, SHORT, Rows, ragged
from pymodel.nic.batch_transmit import Requests
from pymodel.nic.batch_view import Part, View
from pymodel.nic.judge_records import Check, Finding


class Memory(Part):
    """Golden memory of a batch."""

    def __init__(self, view: View, report: Callable[[Finding], None]) -> None:
        super().__init__(view)
        self._report = report
        size = self.s.memory.bytes.size
        self._slots = self.s.memory.bytes[: size // 128 * 128].view("V128")
        pages = (size >> 12) + 2
        self._page_owner, self._page_shared = np.zeros(pages, np.int64), np.zeros(pages, np.bool_)

    def replay(self, stores: Rows, flat: I64, ring: Bools, sent: Requests, got: Requests) -> None:
        """Stores and inbound payload into golden memory, sent payload against it, in stream order."""
        s = self.s
        source = self.view.place(stores.off)
        in_ring = np.flatnonzero(ring)
        if in_ring.size and not ((flat[in_ring] | stores.len[in_ring]) & 127).any():
            # only WQE fetches read a ring, and those were served: all slots at once
            row, place = ragged(flat[in_ring] >> 7, stores.len[in_ring] >> 7)
            row = in_ring[row]
            data = self.view.gather(source[row] + ((place << 7) - flat[row]), 128)
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
        memory, side = s.memory.view, memoryview(self.view.side)  # type: ignore[arg-type]
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
        group = np.where(what == 2, 1, what << 20 | np.minimum(size, SHORT + 1) << 2)
        access, page = ragged(to >> 12, np.where(loop, (to + size - 1 >> 12) - (to >> 12) + 1, 0))
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
            if kind != 1 and kind >> 2 & 0x3FFFF > SHORT:
                continue
            mine = np.flatnonzero(loop & ~meets & (group == kind))
            for n in np.unique(size[mine]).tolist():
                some = mine[size[mine] == n]
                if n > SHORT or some.size < FEW:
                    continue
                # payload comes sorted by QP: of writes of several QPs to one place the last one stands
                some = some[np.argsort(pos[some], kind="stable")]
                window = np.ndarray(
                    (self.s.memory.bytes.size - n + 1,), f"V{n}", self.s.memory.bytes, 0, (1,)
                )
                data = self.view.gather(at[some], n)
                if kind != 1:
                    window[to[some]] = data.reshape(-1).view(f"V{n}")
                elif not np.array_equal(window[to[some]].view(np.uint8).reshape(-1, n), data):
                    continue  # the loop finds out which
                loop[some] = False
        return loop

    def _wrong_payload(self, sent: Requests, i: int) -> None:
        s, size, g = self.s, int(sent.size[i]), int(sent.g[i])
        a, b = int(sent.flat[i]), int(sent.side[i])
        want, got = s.memory.bytes[a : a + size], self.view.side[b : b + size]
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
        self._report(
            Finding(
                Check.TX_PAYLOAD, int(s.q_pe[g]), int(s.q_qpn[g]), index,
                number + int(s.q_sq_psn[g]) & MASK24, int(sent.rows.time[i]),
                f"byte {first} (frame offset {head + first})", want[first:stop].tobytes().hex(" "),
                got[first:stop].tobytes().hex(" "), pos,
            )
        )  # fmt: skip
