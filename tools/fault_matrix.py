"""The matrix of link faults over several seeds: ``make faults SEEDS=3`` (tests/nic/test_fault_matrix.py).

Runs the tests through tools/regress.py, which shows progress and prints the command that repeats a failure,
then a table: for each packet of each operation and each kind of fault how many cells passed, over the states
of the QP. The tests write down each cell as it passes, so an interrupted run has its table too.
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
sys.path.insert(0, str(ROOT))

from pymodel.cli_input import run_seed  # noqa: E402  (needs the path above)
from tb.sim.sim import OneLineParser  # noqa: E402

MATRIX = "tests/nic/test_fault_matrix.py"
#: pytest's exit code where it selected no test
NO_TESTS = 5
#: where the tests leave the cells that passed, each at once: lists of [operation, position, kind, state]
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


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def nothing_to_run(select: str) -> str:
    """Why ``select`` leaves no test of the matrix to run, in one line; '' where it leaves some."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-k", select, MATRIX]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode == NO_TESTS:
        return "no part of the matrix is called so"
    lines = (done.stdout + done.stderr).strip().splitlines()
    error = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no output")
    return error if done.returncode else ""


def report(seeds: int) -> str:
    """The table of the cells that have passed so far."""
    cells = [cell for file in sorted(CELLS.glob("*.json")) for cell in json.loads(file.read_text())]
    return f"{table(cells)}\n{len(cells)} cells passed, with {seeds} seeds"


def main(argv: Sequence[str] | None = None) -> int:
    """The command behind ``make faults``: 0 good, 1 a failure, 2 bad input, 130 interrupted."""
    parser = OneLineParser(prog="faults", description="The matrix of link faults.")
    parser.add_argument("--seeds", type=_positive, default=3)
    parser.add_argument("--first-seed", type=run_seed, default=1)
    parser.add_argument("--jobs", type=_positive, default=2)
    parser.add_argument("--select", default="", help="a part of it, as pytest -k")
    args = parser.parse_args(argv)
    select = f"test_fault_matrix and ({args.select})" if args.select else "test_fault_matrix"
    if args.select and (why := nothing_to_run(select)):
        parser.error(f"argument --select: {args.select!r}: {why}")
    shutil.rmtree(CELLS, ignore_errors=True)
    command = [sys.executable, str(ROOT / "tools" / "regress.py"), "--seeds", f"{args.seeds}"]
    command += ["--first-seed", f"{args.first_seed}", "--jobs", f"{args.jobs}", "--select", select]
    try:
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
    except KeyboardInterrupt:
        print(f"\n{report(args.seeds)}\nfaults: interrupted", file=sys.stderr)
        return 130
    print(report(args.seeds))
    return code


if __name__ == "__main__":
    sys.exit(main())
