"""A command that shows how rules of the link (`pymodel.faults`) are understood."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pymodel.faults import add_arguments


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
