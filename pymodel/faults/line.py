"""One line of a file of fault rules as tokens: words, numbers, ranges, times, how often (docs/faults.md)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from pymodel.faults.rule import FAR, NS_PER_CYCLE, Range, RuleError

_TOKEN = re.compile(r"\s*(?:(0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?)|([A-Za-z_]\w*)|(->|<=|>=|[-:,*/<>]))")
#: ns in a unit of time
_UNITS = {"cycle": NS_PER_CYCLE, "cycles": NS_PER_CYCLE, "ns": 1, "us": 1000, "ms": 1_000_000}
_ORDINALS = ("st", "nd", "rd", "th")


class _Token(NamedTuple):
    kind: str  # "number", "word", "sign", "end"
    text: str
    column: int


class Line:
    """The tokens of one line, taken one after the other; every error knows its column."""

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

    @property
    def where(self) -> str:
        """Source and line."""
        return f"{self._source}:{self._line}"

    def fail(self, message: str, column: int | None = None) -> NoReturn:
        where = self.next.column if column is None else column
        raise RuleError(message, self._source, self._line, where, self._rule)

    # ------------------------------------------------------------------------------------------------ tokens
    @property
    def next(self) -> _Token:
        return self._tokens[self._at]

    def found(self) -> str:
        """What stands here in place of what was expected."""
        return f"found {self.next.text!r}" if self.next.kind != "end" else "found the end of the line"

    def has(self, sign: str) -> bool:
        """Whether a sign stands anywhere in the line."""
        return any(t.text == sign for t in self._tokens)

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
            self.fail(f"expected {what}, {self.found()}")
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
            self.fail(f"expected {what}, {self.found()}")
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
            self.fail(f"expected a time, {self.found()}")
        self._at += 1
        return float(int(token.text, 0)) if token.text[:2] in ("0x", "0X") else float(token.text), token

    def _cycles(self, value: float, unit: str) -> int:
        return -int(-value * _UNITS[unit] // NS_PER_CYCLE)

    def _unit(self) -> str:
        if self.next.text not in _UNITS:
            self.fail(f"a time needs a unit (cycles, ns, us, ms), {self.found()}")
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
            self.fail(f"expected '-' and the end of the time window, {self.found()}")
        last, _ = self._duration()
        final = self._unit()
        low, high = self._cycles(first, unit or final), self._cycles(last, final)
        if not low <= high < FAR:
            self.fail("the time window is empty", token.column)
        return low, high

    def every(self) -> dict[str, Any]:
        """What follows `every`: each so many-th, or each with a probability."""
        column = self.next.column
        n = self.number("a number", 1)
        if self.take("/"):
            of = self.number("a number", 1)
            if of < n:
                self.fail(f"{n}/{of} is more than all", column)
            return {"chance": (n, of)}
        self.take(*_ORDINALS)
        return {"every": n}

    def limit(self) -> int | None:
        """How often, up to the end of the line; None: always."""
        limit = None
        comma = self.take(",")
        if self.take("once"):
            limit = 1
        elif self.next.kind == "number":
            limit = self.number("a number of times", 1)
            if not self.take("times", "time"):
                self.fail(f"expected 'times', {self.found()}")
        elif not self.take("always") and comma:
            self.fail(f"expected once, N times or always, {self.found()}")
        if self.next.kind != "end":
            self.fail(f"unexpected {self.next.text!r} behind the rule")
        return limit
