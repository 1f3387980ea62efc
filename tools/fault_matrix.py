"""The matrix of link faults over several seeds: ``make faults SEEDS=3`` (tests/nic/test_fault_matrix.py).

Runs the tests through tools/regress.py, which shows progress and prints the command that repeats a failure,
then a table: for each packet of each operation and each kind of fault how many cells passed, over the states
of the QP. Exit code 1 where one failed or none ran.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: where the tests leave the cells that passed: a list of [operation, position, kind, state] each
CELLS = ROOT / "build" / "faults"


def table(cells: Sequence[Sequence[str]]) -> str:
    """Cells that passed: a row for each packet, a column for each kind of fault, the states below."""
    count = Counter((f"{operation} {position}", kind) for operation, position, kind, _ in cells)
    states = Counter(state for *_, state in cells)
    rows = list(dict.fromkeys(row for row, _ in count))
    kinds = list(dict.fromkeys(kind for _, kind in count))
    width = max((len(row) for row in rows), default=0)
    lines = [" " * width + "".join(f"{kind:>11}" for kind in kinds)]
    lines += [f"{row:<{width}}" + "".join(f"{count[row, kind]:>11}" for kind in kinds) for row in rows]
    lines.append(", ".join(f"{state} {number}" for state, number in states.items()))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command behind ``make faults``."""
    parser = argparse.ArgumentParser(prog="faults", description="The matrix of link faults.")
    for name, value in (("--seeds", "3"), ("--first-seed", "1"), ("--jobs", "2")):
        parser.add_argument(name, default=value)
    parser.add_argument("--select", default="", help="a part of it, as pytest -k")
    args = parser.parse_args(argv)
    shutil.rmtree(CELLS, ignore_errors=True)
    select = f"test_fault_matrix and ({args.select})" if args.select else "test_fault_matrix"
    command = [sys.executable, str(ROOT / "tools" / "regress.py"), "--seeds", args.seeds]
    command += ["--first-seed", args.first_seed, "--jobs", args.jobs, "--select", select]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    cells = [cell for file in sorted(CELLS.glob("*.json")) for cell in json.loads(file.read_text())]
    print(f"{table(cells)}\n{len(cells)} cells passed, with {args.seeds} seeds")
    return code


if __name__ == "__main__":
    sys.exit(main())
