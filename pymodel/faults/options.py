"""``--fault RULE`` and ``--fault-file FILE`` of a command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pymodel.faults.rule import RuleError
from pymodel.faults.text import parse


class _Add(argparse.Action):
    """Parses at once; a bad rule ends the command with one line and exit code 2, whatever the parser is."""

    texts = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option: str | None = None,
    ) -> None:
        source, text = "--fault", value
        try:
            if option == "--fault-file":
                source, text = value, Path(value).read_text()
            rules: list[Any] = list(parse(text, source))
        except RuleError as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            parser.exit(2, f"{parser.prog}: cannot read {value!r}: {reason}\n")
        namespace.faults = [*namespace.faults, *([(source, text)] if self.texts else rules)]


class _AddText(_Add):
    """Keeps (what errors call it, text), which can be handed to another process."""

    texts = True


def add_arguments(parser: argparse.ArgumentParser, texts: bool = False) -> None:
    """``--fault RULE`` and ``--fault-file FILE``, each as often as wanted; ``args.faults`` lists the rules.

    They stand in the order of the command line, which decides where several match. ``texts``: the list has
    (source, text) for `pymodel.faults.from_sources` in place of rules.
    """
    action = _AddText if texts else _Add
    help_rule = "a fault of link or memory, such as 'every 1/200: drop' (docs/faults.md); repeatable"
    parser.add_argument("--fault", action=action, dest="faults", default=[], metavar="RULE", help=help_rule)
    parser.add_argument(
        "--fault-file",
        action=action,
        dest="faults",
        default=[],
        metavar="FILE",
        help="rules, one a line; repeatable",
    )
