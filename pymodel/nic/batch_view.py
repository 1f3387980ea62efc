"""What the parts of the batch engine share: the state of the judge and the bytes of the batch."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pymodel.formats.arrays import I64, U8, U64
from pymodel.nic.batch_rows import Odd, Rows, need, true
from pymodel.nic.judge_exact import Exact
from pymodel.nic.judge_state import RTS, State

#: offsets from here on name bytes that the side buffer does not have
KEPT: Final = 1 << 48


class View:
    """State and side buffer of the batch that is being judged."""

    def __init__(self, state: State, exact: Exact) -> None:
        self.s = state
        self.exact = exact
        self.side: U8 = np.zeros(0, np.uint8)
        self._windows: dict[int, np.ndarray[Any, Any]] = {}
        self.kept = bytearray()

    def open(self, side: U8) -> None:
        """Look at the side buffer of a batch."""
        if side is not self.side:
            self.side = side
            self._windows = {}
        self.kept = bytearray()

    def keep(self, data: list[bytes]) -> I64:
        """Offsets, KEPT and above, of bytes that the side buffer does not have."""
        size = np.array([len(x) for x in data], np.int64)
        at: I64 = KEPT + len(self.kept) + np.cumsum(size) - size
        self.kept += b"".join(data)
        return at

    def take(self, at: int, size: int) -> bytes:
        """Bytes at an offset of the side buffer, or of what was kept."""
        if at >= KEPT:
            return bytes(self.kept[at - KEPT : at - KEPT + size])
        return self.side[at : at + size].tobytes()

    def gather(self, at: I64, width: int) -> U8:
        """uint8[n, width]: the bytes at n side offsets; what would lie beyond the buffer reads as 0."""
        window = self._windows.get(width)
        if window is None:
            count = self.side.size - width + 1
            if count < 1:
                raise Odd("tiny side buffer")
            window = np.ndarray((count,), f"V{width}", self.side, 0, (1,))
            self._windows[width] = window
        beyond = at >= window.size
        if beyond.any():
            out = np.zeros((at.size, width), np.uint8)
            inside = ~beyond
            out[inside] = window[at[inside]].view(np.uint8).reshape(-1, width)
            for i in true(beyond).tolist():
                tail = self.side[at[i] :]
                out[i, : tail.size] = tail
            return out
        got: U8 = window[at].view(np.uint8).reshape(-1, width)
        return got

    def place(self, off: U64) -> I64:
        """Side offsets of absolute ones."""
        out: I64 = (off % np.uint64(max(1, self.side.size))).astype(np.int64)
        return out

    def qp(self, pe: I64, qpn: I64) -> I64:
        """Global QP indices, -1: no such QP."""
        index = qpn - self.s.params.first_qpn
        known = (index >= 0) & (index < self.s.params.num_qp)
        out: I64 = np.where(known, self.s.qp_lut[pe, np.where(known, index, 0)], -1)
        return out

    def usable(self, g: I64, what: str) -> None:
        """QPs that exist, are in RTS and have no error about them."""
        need((g >= 0) & ~self.s.q_odd[g] & (self.s.q_state[g] == RTS), what)

    def page_qp(self, r: Rows) -> I64:
        """QPs of doorbell pages; all of them must be usable."""
        p = self.s.params
        g = self.qp(r.pe, ((r.addr - np.uint64(p.db_base)) // np.uint64(p.db_page_bytes)).astype(np.int64))
        self.usable(g, "doorbell QP")
        return g


class Part:
    """One data path of the batch engine."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.s = view.s
