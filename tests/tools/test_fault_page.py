"""docs/faults.md: its first rule file, with the commands given for it; how all pages call camhil.

Sweep: both platforms. Stimulus: the page's own text. Checks: the run is good, and each kind of fault that the
file names came up, on the model at least. Timing: none. Not proved: the other examples of the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
RULES = "\n".join(line[4:] for line in re.findall(r"(?:^    .*\n)+", PAGE, re.M)[0].splitlines())
COMMANDS = [
    line[4:] for line in PAGE.splitlines() if re.match(r"    \.venv/bin/camhil run .* lossy\.rules$", line)
]


def test_the_first_rule_file(tmp_path: Path) -> None:
    """As the page says it, in a folder of its own."""
    (tmp_path / "lossy.rules").write_text(RULES)
    assert len(COMMANDS) == 2 and "--on rtl" in COMMANDS[1] and RULES.startswith("#")
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        words[1:2] = [str(ROOT / words[1])]
        done = subprocess.run(
            [sys.executable, str(ROOT / "camhil_cli.py"), *words], cwd=tmp_path, text=True, check=False,
            capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        runs = done.stdout.splitlines()
        assert len(runs) == (1 if "rtl" in command else 3) and all(run.endswith("good") for run in runs)
        assert all(" faults: " in run and "duplicate" in run and "retries)" in run for run in runs)
        # all but the one that needs QPN 3 at that place
        kinds = ("duplicate", "reorder") if "rtl" in command else ("delay", "duplicate", "corrupt", "reorder")
        assert all(kind in runs[0] for kind in kinds), runs


def test_commands_can_be_pasted() -> None:
    """Nobody has ``camhil`` on his path before he has looked for it."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        bare = re.findall(r"(?<!\.venv/bin/)\bcamhil (?:run|decode|encode|select-ops)\b", page.read_text())
        assert not bare, f"{page.name}: {bare}"
