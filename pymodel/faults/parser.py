"""The parser of fault rules (docs/faults.md): one line of text to a rule of the link, or of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymodel.faults.line import Line
from pymodel.faults.memory import MemoryLine, MemoryRule
from pymodel.faults.rule import FAR, MAX_24, MAX_EDITS, MAX_PE, NAMES, REGIONS, Action, Rule

_ACTIONS = [a.name.lower() for a in Action if a != Action.RELEASE]


class _LinkLine(Line):
    """A rule of the link, by recursive descent."""

    # -------------------------------------------------------------------------------------------- conditions
    def _opcode(self) -> dict[str, Any]:
        found: list[str | int] = []
        while True:
            if self.next.kind == "number":
                low, high = self.range("an opcode", 0, 255)
                found += range(low, high + 1)
            else:
                found.append(self.word("an opcode", NAMES))
            if not self.take("or"):
                return {"opcode": tuple(found)}

    def _direction(self) -> dict[str, Any]:
        ends: list[int | None] = []
        for n in range(2):
            if n and not self.take("->"):
                self.fail(f"expected '->', {self.found()}")
            ends.append(None if self.take("*") else self.number("a PE", 0, MAX_PE))
        return {"source": ends[0], "destination": ends[1]}

    def _size(self) -> dict[str, Any]:
        sign = self.take("<=", ">=", "<", ">")
        if not sign:
            return {"size": self.range("a size")}
        n = self.number("a size", 1 if sign == "<" else 0, FAR - 1)
        return {"size": {"<": (0, n - 1), "<=": (0, n), ">": (n + 1, FAR), ">=": (n, FAR)}[sign]}

    def conditions(self) -> dict[str, Any]:
        """All up to the colon."""
        read: dict[str, Callable[[], dict[str, Any]]] = {
            "qp": lambda: {"qp": self.range("a QPN", 0, MAX_24)},
            "psn": lambda: {"psn": self.range("a PSN", 0, MAX_24, wrap=True)},
            "opcode": self._opcode,
            "class": self._opcode,
            "direction": self._direction,
            "size": self._size,
            "every": self.every,
            "packet": lambda: {"packet": self.range("a packet number", 1)},
            "nth": lambda: {"nth": self.range("a number", 1)},
            "time": lambda: {"time": self.time_range()},
            "from": lambda: {"time": (self.time(), FAR)},
            "until": lambda: {"time": (0, self.time())},
        }
        if self.take("any", "always"):
            if not self.take(":"):
                self.fail(f"expected ':', {self.found()}")
            return {}
        found: dict[str, Any] = {}
        while True:
            column = self.next.column
            name = self.word("a condition", read)
            new = read[name]()
            if found.keys() & new.keys():
                self.fail(f"a second condition of this kind: {name}", column)
            found.update(new)
            if self.take(":"):
                return found
            if self.next.kind == "end":
                self.fail("expected ':' and an action, found the end of the line")
            self.take(",", "and")

    # ------------------------------------------------------------------------------------------------ actions
    def _duplicate(self) -> dict[str, Any]:
        if self.next.kind != "number":
            return {}
        copies = self.number("a number of copies", 1, 1000)
        self.take("times", "time", "copies", "copy")
        return {"amount": copies}

    def _reorder(self) -> dict[str, Any]:
        found = {"amount": self.number("a number of later packets", 1)}
        return {**found, "within": self.time(1)} if self.take("within") else found

    def _corrupt(self) -> dict[str, Any]:
        amount = self.number("a number of bits or bytes", 1, MAX_EDITS)
        unit = self.word("a unit", ("bit", "bits", "byte", "bytes"))
        found: dict[str, Any] = {"amount": amount, "bytes": unit.startswith("byte")}
        if self.take("of", "in"):
            found["region"] = self.word("a part of the frame", REGIONS)
        else:
            self.take("anywhere")
        return found

    def _truncate(self) -> dict[str, Any]:
        cut = self.take("to", "by")
        if not cut:
            return {}
        found = {"cut": cut, "amount": self.number("a number of bytes", 1)}
        self.take("bytes", "byte")
        return found

    def action(self) -> dict[str, Any]:
        """The action and how often."""
        name = self.word("an action", _ACTIONS)
        found = {
            "drop": dict,
            "duplicate": self._duplicate,
            "delay": lambda: {"amount": self.time(1)},
            "reorder": self._reorder,
            "corrupt": self._corrupt,
            "truncate": self._truncate,
        }[name]()
        found["action"] = Action[name.upper()]
        limit = self.limit()
        if limit is not None:
            found["limit"] = limit
        return found

    def rule(self) -> Rule:
        """The whole line."""
        has_conditions = self.has(":")
        if not has_conditions and self.next.kind == "word" and self.next.text not in _ACTIONS:
            # without a colon it is an action, unless it begins like a condition
            found = self.conditions()
        else:
            found = self.conditions() if has_conditions else {}
        return Rule(**found, **self.action(), where=self.where)


def parse_line(line: str, source: str, number: int) -> Rule | MemoryRule | None:
    """The rule of a line, of the link or of memory; None for an empty one or a comment. Raises RuleError."""
    text = line.partition("#")[0]
    if not text.strip():
        return None
    kind = MemoryLine if text.split()[0].rstrip(":") == "memory" else _LinkLine
    return kind(text, source, number).rule()
