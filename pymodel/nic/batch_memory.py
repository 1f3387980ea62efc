"""Batch engine, golden memory: stores and visible payload in stream order, bytes on the wire against it.

Most accesses of a batch meet no other one: those are done at once. The others are done one by one, in order.
`check` leaves memory as it was where a byte is wrong, so that the exact engine can look at it again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymodel.formats.arrays import I64, Bools
from pymodel.nic.batch_rows import SHORT, Odd, Rows, groups, ragged, true
from pymodel.nic.batch_view import KEPT, Part, View

STORE, DEPOSIT, COMPARE, ATOMIC = range(4)


@dataclass
class Access:
    """Accesses to golden memory of one kind, in any order."""

    what: int
    pe: I64
    flat: I64
    at: I64  # where the bytes are, see View
    size: I64
    pos: I64

    def take(self, rows: I64) -> Access:
        """Some of them."""
        return Access(self.what, *(x[rows] for x in (self.pe, self.flat, self.at, self.size, self.pos)))


class Memory(Part):
    """Golden memory of a batch."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        size = self.s.memory.bytes.size
        self._slots = self.s.memory.bytes[: size // 128 * 128].view("V128")
        pages = (size >> 12) + 2
        self._owner, self._shared = np.zeros(pages, np.int64), np.zeros(pages, np.bool_)

    def check(self, parts: list[Access], since: I64) -> None:
        """Compare what is compared; writes that anything else can see are done.

        since: by PE, the position from which on overwritten bytes stay known, far away: none.
        """
        self._since = since
        self._left: tuple[I64, I64, I64, I64, Bools] | None = None
        self._undo: list[tuple[int, int, int, bytes]] = []
        some = [p for p in parts if p.flat.size]
        if not some:
            return
        what = np.repeat(np.array([p.what for p in some]), [p.flat.size for p in some])
        pe, to, at, size, pos = (
            np.concatenate([getattr(p, name) for p in some]) for name in ("pe", "flat", "at", "size", "pos")
        )
        write, some_bytes = what != COMPARE, size > 0
        logged = write & (pos > since[pe])
        access, page = ragged(to >> 12, np.where(some_bytes, (to + size - 1 >> 12) - (to >> 12) + 1, 0))
        seen = self._meets(write.astype(np.int64), logged, access, page)
        alone = true(some_bytes & ~write & ~seen)
        self._compare(to[alone], at[alone], size[alone])
        self._in_order(true(some_bytes & seen), what, pe, to, at, size, pos)
        # ---- what no comparison sees: writes of one kind and size keep their order among themselves
        rest = write & ~seen
        keep = rest[access]
        group = what << 20 | np.minimum(size, SHORT + 1)
        ordered = self._meets(group, (at >= KEPT) | (what == ATOMIC), access[keep], page[keep])
        rest = true(rest & some_bytes)
        self._left = to[rest], at[rest], size[rest], pos[rest], ordered[rest]
        self._written = to[write], size[write]

    def _meets(self, group: I64, single: Bools, access: I64, page: I64) -> Bools:
        """Accesses that share a page with one of another group, and whatever that takes along.

        access, page: pages that accesses touch. single: accesses that meet everything on their pages.
        """
        owner, shared = self._owner, self._shared
        owner[page] = group[access]
        shared[page[(owner[page] != group[access]) | single[access]]] = True
        meets = np.zeros(group.size, np.bool_)
        while True:
            before = np.count_nonzero(meets)
            meets[access[shared[page]]] = True
            if np.count_nonzero(meets) == before:
                break
            # an access on two pages takes its neighbours on the other page along: order inside a group
            shared[page[meets[access]]] = True
        shared[page] = False
        return meets

    def _compare(self, to: I64, at: I64, size: I64) -> None:
        """Bytes on the wire against memory."""
        memory = self.s.memory
        loop = np.ones(size.size, np.bool_)
        for n, some in groups(size, size <= SHORT):
            loop[some] = False
            if not np.array_equal(
                self._window(n)[to[some]].view(np.uint8).reshape(-1, n), self.view.gather(at[some], n)
            ):
                raise Odd("payload")
        rest = true(loop)
        golden, side = memory.view, memoryview(self.view.side)  # type: ignore[arg-type]
        for a, b, n in zip(to[rest].tolist(), at[rest].tolist(), size[rest].tolist(), strict=True):
            if golden[a : a + n].tobytes() != side[b : b + n].tobytes():
                raise Odd("payload")

    def _window(self, n: int) -> np.ndarray:
        """Every place of golden memory as an item of n bytes."""
        memory = self.s.memory.bytes
        return np.ndarray((memory.size - n + 1,), f"V{n}", memory, 0, (1,))

    def _in_order(self, which: I64, what: I64, pe: I64, to: I64, at: I64, size: I64, pos: I64) -> None:
        """One by one in stream order; undone where a comparison fails."""
        which = which[np.argsort(pos[which])]
        golden, side = self.s.memory.view, memoryview(self.view.side)  # type: ignore[arg-type]
        kept = self.view.kept
        undo = self._undo
        columns = (x[which].tolist() for x in (what, pe, to, at, size, pos))
        for kind, owner, a, b, n, p in zip(*columns, strict=True):
            data = side[b : b + n] if b < KEPT else kept[b - KEPT : b - KEPT + n]
            if kind != COMPARE:
                undo.append((owner, p, a, golden[a : a + n].tobytes()))
                golden[a : a + n] = data
            elif golden[a : a + n].tobytes() != bytes(data):
                for _, _, first, old in reversed(undo):
                    golden[first : first + len(old)] = old
                raise Odd("payload")

    # ------------------------------------------------------------------ all is regular
    def commit(self) -> None:
        """The writes that nothing else of the batch sees; what was overwritten."""
        memory, position = self.s.memory, self.s.position
        for p, since in enumerate(self._since.tolist()):
            log = self.s.overwritten[p]
            while log and log[0][0] <= since + position:
                log.popleft()
            log.extend((i + position, a, old) for owner, i, a, old in self._undo if owner == p and i > since)
        if self._left is None:
            return
        to, at, size, pos, ordered = self._left
        loop = np.ones(size.size, np.bool_)
        for n, some in groups(size, (size <= SHORT) & ~ordered):
            loop[some] = False
            # of writes to one place the last one stands
            some = some[np.argsort(pos[some])]
            self._window(n)[to[some]] = self.view.gather(at[some], n).reshape(-1).view(f"V{n}")
        rest = true(loop)
        rest = rest[np.argsort(pos[rest])]
        golden, side = memory.view, memoryview(self.view.side)  # type: ignore[arg-type]
        kept = self.view.kept
        for a, b, n in zip(to[rest].tolist(), at[rest].tolist(), size[rest].tolist(), strict=True):
            golden[a : a + n] = side[b : b + n] if b < KEPT else kept[b - KEPT : b - KEPT + n]
        memory.touch_many(*self._written)

    def ring_slots(self, stores: Rows, flat: I64) -> None:
        """Stores of whole slots into SQ rings: only fetches read these, and those were served."""
        row, place = ragged(flat >> 7, stores.len >> 7)
        if row.size:
            data = self.view.gather(self.view.place(stores.off)[row] + ((place << 7) - flat[row]), 128)
            self._slots[place] = data.reshape(-1).view("V128")
            self.s.memory.touch_many(flat, stores.len)
