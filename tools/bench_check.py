"""Elaborates the bench of every block test, so that a source that its list lacks shows in seconds.

Usage: python -m tools.bench_check. One line `file: first cause` for each bench that fails; exit code 1 then.
"""

import importlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tb.sim.build import ROOT, Bench, BuildError, elaborate


def benches() -> dict[tuple[str, str], Bench]:
    """Each bench of tests/ by (first file that states it, name where the file states several)."""
    found: dict[tuple[str, str], Bench] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if not re.search(r"^BENCH\b.*=", path.read_text(encoding="utf-8"), re.MULTILINE):
            continue
        file = path.relative_to(ROOT)
        stated = getattr(importlib.import_module(".".join(file.with_suffix("").parts)), "BENCH", None)
        if stated is None:  # the text of a test's own test
            continue
        named = {"": stated} if "top" in stated else stated
        for name, desc in named.items():
            bench = Bench.from_dict(desc)
            if bench not in found.values():
                found[str(file), name] = bench
    return found


def main() -> int:
    """Checks all, two at a time."""

    def one(bench: Bench) -> str:
        try:
            elaborate(bench)
        except (BuildError, subprocess.SubprocessError) as err:
            return str(err)
        return ""

    todo = benches()
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(one, todo.values()))
    for (file, name), text in zip(todo, said, strict=True):
        if text:
            print(f"{Path(file)}: {name + ': ' if name else ''}{text}")
    return 1 if any(said) else 0


if __name__ == "__main__":
    sys.exit(main())
