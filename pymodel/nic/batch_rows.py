"""Tools of the batch engine: records by column, groups of rows, and the way out of a batch."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np

from pymodel.formats.arrays import I64, U8, U64, Bools, Rec

MASK24: Final = 0xFFFFFF
ALL_ONES: Final = (1 << 64) - 1
#: a position or number behind every other
FAR: Final = 1 << 62
#: bytes up to which equal lengths are worth doing at once, and how many make a group
SHORT: Final = 1024
FEW: Final = 16
#: fields that the judge reckons with
_SIGNED: Final = ("kind", "id", "time", "pe", "len")

_Col = TypeVar("_Col", I64, Bools)


def nothing() -> I64:
    """An empty column."""
    return np.zeros(0, np.int64)


class Odd(Exception):
    """Something in the batch is not regular; the argument says what, for those who tune the judge."""


def need(condition: bool | np.bool_ | Bools, what: str) -> None:
    """Raise Odd unless the condition, or all of its elements, hold."""
    if not (condition.all() if isinstance(condition, np.ndarray) else condition):
        raise Odd(what)


def true(mask: Bools) -> I64:
    """Rows where a column holds."""
    rows: I64 = mask.nonzero()[0]
    return rows


def ragged(start: I64, count: I64) -> tuple[I64, I64]:
    """(source row, value) of the concatenated ranges start[i] .. start[i] + count[i] - 1."""
    source = np.repeat(np.arange(count.size), count)
    return source, start[source] + np.arange(source.size) - (np.cumsum(count) - count)[source]


def last_before(event_group: I64, event_pos: I64, group: I64, pos: I64) -> tuple[I64, Bools]:
    """Of each query the last event of its group before its position: (row of the event, found).

    The events are sorted by (group, position).
    """
    keys = event_group << 32 | event_pos
    if not keys.size:
        return np.zeros(group.size, np.int64), np.zeros(group.size, np.bool_)
    at = keys.searchsorted(group << 32 | pos) - 1
    found = at >= 0
    at = np.maximum(at, 0)
    return at, found & (event_group[at] == group)


def latest_of(event_group: I64, event_pos: I64, values: I64, group: I64, pos: I64, default: I64) -> I64:
    """Value of the last event before each query, else the default (per query)."""
    at, found = last_before(event_group, event_pos, group, pos)
    if not values.size:
        return default
    out: I64 = np.where(found, values[at], default)
    return out


def previous(values: _Col, start: I64, first: _Col) -> _Col:
    """values shifted by one inside each group; `first` (per row) where a group begins."""
    out = np.empty_like(values)
    out[1:] = values[:-1]
    begins = start == np.arange(values.size)
    out[begins] = first[begins]
    return out


def sums(values: I64, start: I64) -> I64:
    """Inclusive running sum inside each group."""
    total = np.cumsum(values)
    out: I64 = total - (total - values)[start] if values.size else total
    return out


def last_of(group: I64) -> I64:
    """Rows of a sorted group column that end their group."""
    end = np.ones(group.size, np.bool_)
    end[:-1] = group[1:] != group[:-1]
    return true(end)


def by_group(group: I64) -> I64:
    """Stable order by group number; these are below 2^15."""
    # 16 bits are sorted by their digits, in linear time
    return np.argsort(group.astype(np.uint16), kind="stable")


def groups(size: I64, eligible: Bools) -> list[tuple[int, I64]]:
    """(size, rows) of the sizes that many rows share."""
    if not size.size:
        return []
    low = int(size[0])
    if eligible.all() and (size == low).all():
        return [(low, np.arange(size.size))] if low > 0 and size.size >= FEW else []
    some = true(eligible & (size > 0))
    values, counts = np.unique(size[some], return_counts=True)
    return [
        (n, some[size[some] == n])
        for n, count in zip(values.tolist(), counts.tolist(), strict=True)
        if count >= FEW
    ]


class Columns:
    """The fields of the records of a batch, each made contiguous when it is asked for."""

    kind: I64
    id: I64
    time: I64
    pe: I64
    len: I64  # bytes or beats
    addr: U64
    flags: U8  # response or strobe
    data: U64
    off: U64
    aux0: U64
    aux1: U64

    def __init__(self, records: Rec) -> None:
        self._records = records

    def __getattr__(self, name: str) -> Any:
        # only asked where the column is not there yet
        values = self._records[name]
        values = values.astype(np.int64) if name in _SIGNED else np.ascontiguousarray(values)
        self.__dict__[name] = values
        return values


class Rows:
    """Some records in some order, column by column.

    pos: number of each record in the batch.
    """

    time: I64
    pe: I64
    len: I64
    addr: U64
    flags: U8
    data: U64
    off: U64
    aux0: U64
    aux1: U64

    def __init__(self, columns: Columns, pos: I64) -> None:
        self._columns, self.pos = columns, pos

    def __getattr__(self, name: str) -> Any:
        values = getattr(self._columns, name)[self.pos]
        self.__dict__[name] = values
        return values

    def __len__(self) -> int:
        return int(self.pos.size)

    def take(self, rows: I64 | Bools) -> Rows:
        """A subset or another order."""
        return Rows(self._columns, self.pos[rows])

    def cut(self, start: int, stop: int) -> Rows:
        """Neighbouring rows, without a copy."""
        out = Rows(self._columns, self.pos[start:stop])
        for name in ("pe", "len"):
            if name in self.__dict__:
                out.__dict__[name] = self.__dict__[name][start:stop]
        return out
