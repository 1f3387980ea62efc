"""The parser of fault rules (docs/faults.md): one line of text to a :class:`pymodel.faults.rule.Rule`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from pymodel.faults.rule import (
    FAR,
    MAX_24,
    MAX_EDITS,
    MAX_PE,
    NAMES,
    NS_PER_CYCLE,
    REGIONS,
    Action,
    Range,
    Rule,
    RuleError,
)

_TOKEN = re.compile(r"\s*(?:(0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?)|([A-Za-z_]\w*)|(->|<=|>=|[-:,*/<>]))")
#: ns in a unit of time
_UNITS = {"cycle": NS_PER_CYCLE, "cycles": NS_PER_CYCLE, "ns": 1, "us": 1000, "ms": 1_000_000}
_ORDINALS = ("st", "nd", "rd", "th")
_ACTIONS = [a.name.lower() for a in Action if a != Action.RELEASE]


class _Token(NamedTuple):
    kind: str  # "number", "word", "sign", "end"
    text: str
    column: int


class _Parser:
    """Recursive descent over the tokens of one line; every error knows its column."""

    def __init__(self, text: str, source: str, line: int) -> None:
        self._rule, self._source, self._line = text, source, line
        self._tokens: list[_Token] = []
        self._at = 0
        pos, end = 0, len(text.rstrip())
        while pos < end:
            match = _TOKEN.match(text, pos)
            if match is None:
                column = pos + len(text[pos:]) - len(text[pos:].lstrip()) + 1
                self.fail(f"{text[column - 1]!r} has no meaning here", column)
            kind = ("number", "word", "sign")[(match.lastindex or 1) - 1]
            self._tokens.append(
                _Token(kind, match[match.lastindex or 1], match.start(match.lastindex or 1) + 1)
            )
            pos = match.end()
        self._tokens.append(_Token("end", "", end + 1))

    def fail(self, message: str, column: int | None = None) -> NoReturn:
        where = self.next.column if column is None else column
        raise RuleError(message, self._source, self._line, where, self._rule)

    # ------------------------------------------------------------------------------------------------ tokens
    @property
    def next(self) -> _Token:
        return self._tokens[self._at]

    def _found(self) -> str:
        return f"found {self.next.text!r}" if self.next.kind != "end" else "found the end of the line"

    def take(self, *texts: str) -> str:
        """The next token if it is one of these, else ''."""
        if self.next.kind in ("word", "sign") and self.next.text in texts:
            self._at += 1
            return self._tokens[self._at - 1].text
        return ""

    def word(self, what: str, known: Iterable[str]) -> str:
        """A word out of a list."""
        token, names = self.next, sorted(known)
        if token.kind != "word":
            self.fail(f"expected {what}, {self._found()}")
        if token.text not in names:
            near = difflib.get_close_matches(token.text, names, 1, 0.5)
            self.fail(
                f"unknown {what.split(' ', 1)[-1]} '{token.text}'"
                + (f" (did you mean {near[0]}?)" if near else "")
            )
        self._at += 1
        return token.text

    def number(self, what: str, low: int = 0, high: int = FAR) -> int:
        token = self.next
        if token.kind != "number":
            self.fail(f"expected {what}, {self._found()}")
        if "." in token.text:
            self.fail(f"{what} is a whole number")
        value = int(token.text, 0) if token.text[:2] in ("0x", "0X") else int(token.text)
        if not low <= value <= high:
            limits = f"{low} to {high}" if high < FAR else f"at least {low}"
            self.fail(f"{what} {token.text} is out of range ({limits})")
        self._at += 1
        return value

    def range(self, what: str, low: int = 0, high: int = FAR, wrap: bool = False) -> Range:
        column = self.next.column
        first = self.number(what, low, high)
        last = self.number(what, low, high) if self.take("-") else first
        if last < first and not wrap:
            self.fail(f"range {first}-{last} is empty", column)
        return first, last

    def _duration(self) -> tuple[float, _Token]:
        token = self.next
        if token.kind != "number":
            self.fail(f"expected a time, {self._found()}")
        self._at += 1
        return float(int(token.text, 0)) if token.text[:2] in ("0x", "0X") else float(token.text), token

    def _cycles(self, value: float, unit: str) -> int:
        return -int(-value * _UNITS[unit] // NS_PER_CYCLE)

    def _unit(self) -> str:
        if self.next.text not in _UNITS:
            self.fail(f"a time needs a unit (cycles, ns, us, ms), {self._found()}")
        self._at += 1
        return self._tokens[self._at - 1].text

    def time(self, low: int = 0) -> int:
        """A time in cycles, rounded up."""
        value, token = self._duration()
        cycles = self._cycles(value, self._unit())
        if not low <= cycles < FAR:
            self.fail(f"time {token.text} is out of range", token.column)
        return cycles

    def time_range(self) -> Range:
        """``10us-20us``; the first may leave its unit to the second."""
        first, token = self._duration()
        unit = self._unit() if self.next.kind == "word" else ""
        if not self.take("-"):
            self.fail(f"expected '-' and the end of the time window, {self._found()}")
        last, _ = self._duration()
        final = self._unit()
        low, high = self._cycles(first, unit or final), self._cycles(last, final)
        if not low <= high < FAR:
            self.fail("the time window is empty", token.column)
        return low, high

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
                self.fail(f"expected '->', {self._found()}")
            ends.append(None if self.take("*") else self.number("a PE", 0, MAX_PE))
        return {"source": ends[0], "destination": ends[1]}

    def _size(self) -> dict[str, Any]:
        sign = self.take("<=", ">=", "<", ">")
        if not sign:
            return {"size": self.range("a size")}
        n = self.number("a size", 1 if sign == "<" else 0, FAR - 1)
        return {"size": {"<": (0, n - 1), "<=": (0, n), ">": (n + 1, FAR), ">=": (n, FAR)}[sign]}

    def _every(self) -> dict[str, Any]:
        column = self.next.column
        n = self.number("a number", 1)
        if self.take("/"):
            of = self.number("a number", 1)
            if of < n:
                self.fail(f"{n}/{of} is more than all", column)
            return {"chance": (n, of)}
        self.take(*_ORDINALS)
        return {"every": n}

    def conditions(self) -> dict[str, Any]:
        """All up to the colon."""
        read: dict[str, Callable[[], dict[str, Any]]] = {
            "qp": lambda: {"qp": self.range("a QPN", 0, MAX_24)},
            "psn": lambda: {"psn": self.range("a PSN", 0, MAX_24, wrap=True)},
            "opcode": self._opcode,
            "class": self._opcode,
            "direction": self._direction,
            "size": self._size,
            "every": self._every,
            "packet": lambda: {"packet": self.range("a packet number", 1)},
            "nth": lambda: {"nth": self.range("a number", 1)},
            "time": lambda: {"time": self.time_range()},
            "from": lambda: {"time": (self.time(), FAR)},
            "until": lambda: {"time": (0, self.time())},
        }
        if self.take("any", "always"):
            if not self.take(":"):
                self.fail(f"expected ':', {self._found()}")
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
        comma = self.take(",")
        if self.take("once"):
            found["limit"] = 1
        elif self.next.kind == "number":
            found["limit"] = self.number("a number of times", 1)
            if not self.take("times", "time"):
                self.fail(f"expected 'times', {self._found()}")
        elif not self.take("always") and comma:
            self.fail(f"expected once, N times or always, {self._found()}")
        if self.next.kind != "end":
            self.fail(f"unexpected {self.next.text!r} behind the rule")
        return found

    def rule(self) -> Rule:
        """The whole line."""
        has_conditions = any(t.text == ":" for t in self._tokens)
        if not has_conditions and self.next.kind == "word" and self.next.text not in _ACTIONS:
            # without a colon it is an action, unless it begins like a condition
            found = self.conditions()
        else:
            found = self.conditions() if has_conditions else {}
        return Rule(**found, **self.action(), where=f"{self._source}:{self._line}")


def parse_line(line: str, source: str, number: int) -> Rule | None:
    """The rule of a line; None for an empty one or a comment. Raises RuleError."""
    text = line.partition("#")[0]
    return _Parser(text, source, number).rule() if text.strip() else None
