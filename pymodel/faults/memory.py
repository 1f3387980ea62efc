"""Fault rules of memory: ``memory pe 1 read 0x1000-0x1fff: slverr`` (docs/faults.md has the language).

Errors are properties of 64-byte words, so whoever judges a run knows beforehand which access fails; stalls
meet single bursts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pymodel.faults.line import Line
from pymodel.faults.rule import FAR, MAX_PE, Range, ordinal

#: bytes that fail together: a beat of the memory port (nic.md 1)
WORD = 64
_M64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class MemoryAction(enum.IntEnum):
    """What memory does to an access; errors have the number of their AXI response (tb/cpp/tb.h)."""

    STALL = 1
    SLVERR = 2
    DECERR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRule:
    """One rule. Conditions that are None do not count; ranges include both ends.

    An error rule holds for 64-byte words of ``address`` (any byte of a word counts), or for each of them with
    probability ``chance``; a rule with STALL for bursts that touch ``address``, ``amount`` cycles each.
    ``str()`` gives a sentence that :func:`pymodel.faults.parse` reads back. Raises ValueError where the rule
    cannot be.
    """

    action: MemoryAction
    amount: int = 1
    pe: Range | None = None
    read: bool = True
    write: bool = True
    address: Range | None = None
    chance: tuple[int, int] | None = None
    time: Range | None = None
    nth: Range | None = None
    every: int | None = None
    limit: int | None = None
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        def need(good: bool, what: str) -> None:
            if not good:
                raise ValueError(f"memory rule: {what}")

        need(self.read or self.write, "neither reads nor writes")
        need(1 <= self.amount <= FAR, f"stall {self.amount}")
        for name, top in (("pe", MAX_PE), ("address", FAR), ("time", FAR), ("nth", FAR)):
            value = getattr(self, name)
            need(value is None or 0 <= value[0] <= value[1] <= top, f"{name} {value}")
        need(self.chance is None or 1 <= self.chance[0] <= self.chance[1], f"every {self.chance}")
        need(self.every is None or self.every >= 1, f"every {self.every}")
        need(self.limit is None or self.limit >= 1, "limit must be positive")
        fixed = (self.time, self.nth, self.every, self.limit) == (None, None, None, None)
        need(self.action == MemoryAction.STALL or fixed, "an error has no time and no count")

    def __str__(self) -> str:
        words = ["memory"]
        if self.pe is not None:
            words.append(f"pe {_range(self.pe)}")
        if not (self.read and self.write):
            words.append("read" if self.read else "write")
        if self.address is not None:
            words.append("-".join(f"{a:#x}" for a in self.address))
        if self.time is not None:
            low, high = self.time
            words.append(f"from {low} cycles" if high == FAR else f"time {low}-{high} cycles")
        if self.nth is not None:
            words.append(f"nth {_range(self.nth)}")
        if self.every is not None:
            words.append(f"every {self.every}{ordinal(self.every)}")
        if self.chance is not None:
            words.append(f"every {self.chance[0]}/{self.chance[1]}")
        deed = self.action.name.lower() + (
            f" {self.amount} cycles" if self.action == MemoryAction.STALL else ""
        )
        limit = {None: "", 1: ", once"}.get(self.limit, f", {self.limit} times")
        return f"{' '.join(words)}: {deed}{limit}"

    def fails(self, pe: int, addr: int, size: int, write: bool, key: int) -> bool:
        """Whether an access to [addr, addr + size) meets a word that this rule makes fail; key: its draws."""
        if self.action == MemoryAction.STALL or not (self.write if write else self.read) or not size:
            return False
        if self.pe is not None and not self.pe[0] <= pe <= self.pe[1]:
            return False
        low, high = (0, FAR) if self.address is None else self.address
        first, last = max(addr, low & -WORD) // WORD, min(addr + size - 1, high | WORD - 1) // WORD
        if first > last:
            return False
        words = np.arange(first, last + 1, dtype=np.uint64)
        return self.chance is None or bool(drawn(words, self.chance, key).any())


def key_of(seed: int, place: int) -> int:
    """Key of the draws of the rule at a place among those that were set together; seed: of the run."""
    return _mix((seed * _GOLDEN + place) & _M64)


def drawn(words: npt.NDArray[np.uint64], chance: tuple[int, int], key: int) -> npt.NDArray[np.bool_]:
    """Which words fail, each with probability chance[0] / chance[1]; words: addresses / 64."""
    z = words * np.uint64(_GOLDEN) + np.uint64(key)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    hit: npt.NDArray[np.bool_] = (z ^ z >> np.uint64(31)) % np.uint64(chance[1]) < np.uint64(chance[0])
    return hit


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _M64
    return z ^ z >> 31


def _range(r: Range) -> str:
    return str(r[0]) if r[0] == r[1] else f"{r[0]}-{r[1]}"


class MemoryLine(Line):
    """A rule of memory, by recursive descent."""

    def rule(self) -> MemoryRule:
        """The whole line."""
        self.take("memory")
        found = self._conditions()
        name = self.word("an action", [a.name.lower() for a in MemoryAction])
        column = self._columns.get("count", 0)
        if name == "stall":
            found["amount"] = self.time(1)
        elif column:
            self.fail(f"{name} holds for addresses: times and counts are for stall", column)
        at = self.next.column
        limit = self.limit()
        if limit is not None and name != "stall":
            self.fail(f"an address with {name} fails as long as the rule stands: once is for stall", at)
        return MemoryRule(**found, action=MemoryAction[name.upper()], limit=limit, where=self.where)

    def _conditions(self) -> dict[str, Any]:
        """All up to the colon."""
        found: dict[str, Any] = {}
        self._columns: dict[str, int] = {}
        while not self.take(":"):
            if self.next.kind == "end":
                self.fail("expected ':' and an action, found the end of the line")
            column = self.next.column
            new = self._condition()
            if found.keys() & new.keys():
                self.fail("a second condition of this kind", column)
            if new.keys() & {"time", "nth", "every"}:
                self._columns.setdefault("count", column)
            found.update(new)
            self.take(",", "and")
        for way, other in (("read", "write"), ("write", "read")):
            if way in found and other not in found:
                return {**found, other: False}
        return found

    def _condition(self) -> dict[str, Any]:
        if self.next.kind == "number":
            return {"address": self.range("an address")}
        names = ("pe", "read", "write", "address", "time", "from", "until", "nth", "every")
        match self.word("a condition of memory", names):
            case "pe":
                return {"pe": self.range("a PE", 0, MAX_PE)}
            case "read":
                return {"read": True}
            case "write":
                return {"write": True}
            case "address":
                return {"address": self.range("an address")}
            case "time":
                return {"time": self.time_range()}
            case "from":
                return {"time": (self.time(), FAR)}
            case "until":
                return {"time": (0, self.time())}
            case "nth":
                return {"nth": self.range("a number", 1)}
        return self.every()


def link_only(rules: Iterable[Any]) -> None:
    """Raises ValueError, one line, where a rule of memory is among them: golden NICs have no bus."""
    for rule in rules:
        if isinstance(rule, MemoryRule):
            raise ValueError(f"{rule.where or rule}: memory rules need --on rtl: golden NICs have no bus")


def keyed(rules: Sequence[Any], seed: int) -> list[tuple[int, MemoryRule, int]]:
    """(place, rule, key) of the rules of memory among rules that are set together."""
    return [(n, r, key_of(seed, n)) for n, r in enumerate(rules) if isinstance(r, MemoryRule)]
