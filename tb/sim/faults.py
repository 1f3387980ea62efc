"""Fault rules of the link, in sentences: ``qp 3 psn 50-150: drop once`` (docs/faults.md has the language).

:func:`parse` makes :class:`Rule` objects of text, :func:`add_arguments` gives a command its options. The
rules act in C++, where :meth:`tb.sim.lib.SimLib.set_faults` puts them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tb.sim.fault_parser import parse_line
from tb.sim.fault_rule import Action, Rule, RuleError

__all__ = ["Action", "Rule", "RuleError", "add_arguments", "as_rules", "from_sources", "parse"]


def parse(text: str, source: str = "faults") -> list[Rule]:
    """The rules of a text, one a line; ``source`` is what errors call it. Raises RuleError."""
    rules = (parse_line(line, source, n) for n, line in enumerate(text.splitlines(), 1))
    return [rule for rule in rules if rule is not None]


def from_sources(sources: Iterable[tuple[str, str]]) -> list[Rule]:
    """The rules of several texts, each with what errors call it. Raises RuleError."""
    return [rule for source, text in sources for rule in parse(text, source)]


def as_rules(rules: str | Rule | Iterable[str | Rule]) -> list[Rule]:
    """Rules of a text, one rule, or a sequence of both. Raises RuleError."""
    if isinstance(rules, Rule):
        return [rules]
    if isinstance(rules, str):
        return parse(rules)
    return [r for rule in rules for r in ([rule] if isinstance(rule, Rule) else parse(rule))]


# ------------------------------------------------------------------------------------------ command lines
class _Add(argparse.Action):
    """Parses at once; a bad rule ends the command with one line and exit code 2, whatever the parser is."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option: str | None = None,
    ) -> None:
        try:
            if option == "--fault-file":
                rules = parse(Path(value).read_text(), value)
            else:
                rules = parse(value, "--fault")
        except RuleError as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            parser.exit(2, f"{parser.prog}: cannot read {value!r}: {reason}\n")
        namespace.faults = [*namespace.faults, *rules]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--fault RULE`` and ``--fault-file FILE``, each as often as wanted; ``args.faults`` lists the rules.

    They stand in the order of the command line, which decides where several match.
    """
    help_rule = "a fault on the link, such as 'every 1/200: drop' (docs/faults.md); repeatable"
    parser.add_argument("--fault", action=_Add, dest="faults", default=[], metavar="RULE", help=help_rule)
    parser.add_argument(
        "--fault-file",
        action=_Add,
        dest="faults",
        default=[],
        metavar="FILE",
        help="rules, one a line; repeatable",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Checks rules and shows them as they are understood: ``python -m tb.sim.faults --fault-file FILE``."""
    parser = argparse.ArgumentParser(
        prog="faults", description="Check fault rules of the link (docs/faults.md)."
    )
    add_arguments(parser)
    for n, rule in enumerate(parser.parse_args(argv).faults):
        print(f"rule {n} ({rule.where}): {rule}")
    return 0


if __name__ == "__main__":
    from tb.sim import faults  # not this second copy, whose RuleError is another class

    sys.exit(faults.main())
