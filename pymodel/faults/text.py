"""Rules, of the link and of memory, out of text."""

from __future__ import annotations

from collections.abc import Iterable

from pymodel.faults.memory import MemoryRule
from pymodel.faults.parser import parse_line
from pymodel.faults.rule import Rule

AnyRule = Rule | MemoryRule


def parse(text: str, source: str = "faults") -> list[AnyRule]:
    """The rules of a text, one a line; ``source`` is what errors call it. Raises RuleError."""
    rules = (parse_line(line, source, n) for n, line in enumerate(text.splitlines(), 1))
    return [rule for rule in rules if rule is not None]


def from_sources(sources: Iterable[tuple[str, str]]) -> list[AnyRule]:
    """The rules of several texts, each with what errors call it. Raises RuleError."""
    return [rule for source, text in sources for rule in parse(text, source)]


def as_rules(rules: str | AnyRule | Iterable[str | AnyRule]) -> list[AnyRule]:
    """Rules of a text, one rule, or a sequence of both. Raises RuleError."""
    if isinstance(rules, AnyRule):
        return [rules]
    if isinstance(rules, str):
        return parse(rules)
    return [r for rule in rules for r in ([rule] if isinstance(rule, AnyRule) else parse(rule))]
