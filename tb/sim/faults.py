"""Fault rules of the link (`pymodel.faults`; docs/faults.md has the language), and a command that shows them.

The rules act in C++, where :meth:`tb.sim.lib.SimLib.set_faults` puts them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pymodel.faults import Action, Rule, RuleError, add_arguments, as_rules, from_sources, parse

__all__ = ["Action", "Rule", "RuleError", "add_arguments", "as_rules", "from_sources", "parse"]


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
    sys.exit(main())
