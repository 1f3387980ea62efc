"""Golden memory of all PEs: one flat array, regions anywhere in 64 bits, error ranges, overwritten bytes."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymodel.faults.memory import MemoryAction, MemoryRule
from pymodel.formats.arrays import I64, U8, U64, Bools

#: address space reserved without memory behind it, so that sparse heaps cost what is touched
_MAP_NORESERVE = 0x4000
_PAGE = 4096


@dataclass(frozen=True)
class Region:
    """A mapped range of one PE's memory and the byte that fills it at first."""

    base: int
    size: int
    fill: int = 0


class GoldenMemory:
    """Memory of all PEs in one flat array; a flat offset names PE and address at once."""

    def __init__(self, pes: Sequence[Sequence[Region]]) -> None:
        self._base: list[list[int]] = []
        self._errors: list[list[tuple[int, int, bool, bool]]] = [[] for _ in pes]
        #: error rules with the keys of their draws
        self._rules: list[tuple[MemoryRule, int]] = []
        self._flat: list[list[int]] = []
        self._size: list[list[int]] = []
        fills: list[tuple[int, int, int]] = []
        at = 0
        for regions in pes:
            ordered = sorted(regions, key=lambda r: r.base)
            self._base.append([r.base for r in ordered])
            self._size.append([r.size for r in ordered])
            flats = []
            for r in ordered:
                # the offset keeps the address' place in a page: aligned rows stay aligned
                at += (r.base - at) % _PAGE
                flats.append(at)
                if r.fill:
                    fills.append((at, r.size, r.fill))
                at += r.size
            self._flat.append(flats)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map = mmap.mmap(-1, max(at, 1) + _PAGE, flags=flags)
        self.bytes: U8 = np.frombuffer(self._map, np.uint8)
        self.view = memoryview(self._map)
        for start, size, fill in fills:
            self.bytes[start : start + size] = fill
        self._dirty = np.zeros((at >> 12) + 2, np.bool_)
        self._tables = [
            (np.array(b, np.uint64), np.array(s, np.int64), np.array(f, np.int64))
            for b, s, f in zip(self._base, self._size, self._flat, strict=True)
        ]

    def flat(self, pe: int, addr: int, length: int) -> int:
        """Flat offset of a range that lies in one region, else -1."""
        i = bisect_right(self._base[pe], addr) - 1
        if i < 0:
            return -1
        into = addr - self._base[pe][i]
        return self._flat[pe][i] + into if into + length <= self._size[pe][i] else -1

    def flats(self, pe: I64, addr: U64, length: I64) -> I64:
        """`flat` of n ranges."""
        out = np.full(addr.size, -1, np.int64)
        for p in np.unique(pe).tolist():
            base, size, start = self._tables[p]
            if not base.size:
                continue
            mine = np.flatnonzero(pe == p)
            region = np.searchsorted(base, addr[mine], side="right") - 1
            region_or_0 = np.maximum(region, 0)
            into = (addr[mine] - base[region_or_0]).view(np.int64)
            good = (region >= 0) & (into >= 0) & (into + length[mine] <= size[region_or_0])
            out[mine] = np.where(good, start[region_or_0] + into, -1)
        return out

    def add_error(self, pe: int, addr: int, length: int, read: bool, write: bool) -> None:
        """NIC accesses that touch the range answer with an error; a write that fails writes nothing."""
        self._errors[pe].append((addr, addr + length, read, write))

    def clear_errors(self, pe: int) -> None:
        """No error ranges any more."""
        self._errors[pe].clear()

    def set_rules(self, rules: Sequence[tuple[MemoryRule, int]]) -> None:
        """These error rules, with the keys of their draws, in place of all others; stalls do not matter."""
        self._rules = [(rule, key) for rule, key in rules if rule.action != MemoryAction.STALL]

    def has_errors(self) -> bool:
        """Whether any PE has an error range, or any error rule is in force."""
        return any(self._errors) or bool(self._rules)

    def _errs(self, pe: int, start: int, end: int, write: bool) -> bool:
        """Whether an error range or rule answers an access to [start, end), where memory is or is not."""
        if any(a < end and start < b and (w if write else r) for a, b, r, w in self._errors[pe]):
            return True
        return any(rule.fails(pe, start, end - start, write, key) for rule, key in self._rules)

    def beats_fault(self, pe: int, addr: int, length: int, write: bool = False) -> bool:
        """Whether a NIC access gets an error: a 64-byte beat without a byte in any region, an error range.

        Both by whole beats, as the memory model does it.
        """
        start, end = addr & ~63, (addr + length + 63) & ~63
        if self._errs(pe, start, end, write):
            return True
        while start < end:
            i = bisect_right(self._base[pe], start + 63) - 1
            if i < 0 or start >= self._base[pe][i] + self._size[pe][i]:
                return True
            start = max(start + 64, (self._base[pe][i] + self._size[pe][i]) & ~63)
        return False

    def narrow_fault(self, pe: int, addr: int, size: int, write: bool) -> bool:
        """`beats_fault` of one narrow beat of `size` bytes, an atomic's (nic.md 5)."""
        start = addr & ~(size - 1)
        if self._errs(pe, start, start + size, write):
            return True
        return not self.clip(pe, start, size)

    def faulty(self, pe: I64, addr: U64, length: I64, write: bool) -> Bools:
        """Which of n accesses touch an error range of their PE; quick where there is none."""
        out = np.zeros(addr.size, np.bool_)
        if self.has_errors():
            for i, (p, a, n) in enumerate(zip(pe.tolist(), addr.tolist(), length.tolist(), strict=True)):
                out[i] = n > 0 and (self._errors[p] or self._rules) and self.beats_fault(p, a, n, write)
        return out

    def touch(self, offset: int, length: int) -> None:
        """Mark the pages of a written range as dirty."""
        if length:
            self._dirty[offset >> 12 : (offset + length - 1 >> 12) + 1] = True

    def touch_many(self, offset: I64, length: I64) -> None:
        """Mark the pages of n written ranges as dirty."""
        some = length > 0
        first, last = offset[some] >> 12, (offset[some] + length[some] - 1) >> 12
        self._dirty[first] = True
        self._dirty[last] = True
        for a, b in zip(*(x[last - first > 1].tolist() for x in (first, last)), strict=True):
            self._dirty[a:b] = True

    def dirty_pages(self, pe: int) -> U64:
        """Addresses of the pages of a PE that the golden model wrote to, ascending."""
        pages: list[U64] = []
        for base, size, start in zip(self._base[pe], self._size[pe], self._flat[pe], strict=True):
            hit = np.flatnonzero(self._dirty[start >> 12 : (start + size - 1 >> 12) + 1])
            pages.append((hit.astype(np.uint64) << np.uint64(12)) + np.uint64(base & ~(_PAGE - 1)))
        return np.unique(np.concatenate(pages)) if pages else np.empty(0, np.uint64)

    def clip(self, pe: int, addr: int, length: int) -> list[tuple[int, int, int]]:
        """Mapped parts of a range: (address, flat offset, length) each."""
        out = []
        for base, size, start in zip(self._base[pe], self._size[pe], self._flat[pe], strict=True):
            a, b = max(addr, base), min(addr + length, base + size)
            if a < b:
                out.append((a, start + a - base, b - a))
        return out
