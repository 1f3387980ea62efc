"""tools/fault_matrix.py: a small matrix of its own, run as a user would (`make faults`).

Sweep: all cells pass; one fails with one seed; a selection that leaves nothing, and one that is no
expression; an interrupt. Stimulus: a copy of the tool beside tests of the matrix's name.
Checks: exit codes, the table, the command that reproduces a failure with another NIC's folder in it, one line
for bad input. Timing: none. Not proved: the matrix itself (tests/nic/).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--run-seed", type=int)
"""
SUITE = """
import json, pathlib, time
import pytest

@pytest.mark.parametrize("operation", ["write", "read"])
def test_matrix(operation, request):
    seed = request.config.getoption("--run-seed")
    folder = request.config.rootpath / "build" / "faults"
    folder.mkdir(parents=True, exist_ok=True)
    cells = [[operation, "only", kind, "idle"] for kind in ("drop", "delay")]
    (folder / f"{operation}-{seed}.json").write_text(json.dumps(cells))
    time.sleep(SLEEP)
    assert (operation, seed) != FAILS, "cell: write, only, drop, idle"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the tool and its matrix."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tests" / "nic").mkdir(parents=True)
    for name in ("regress.py", "regress_events.py", "fault_matrix.py"):
        shutil.copy(REPO / "tools" / name, tmp_path / "tools" / name)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    suite(tmp_path)
    return tmp_path


def suite(project: Path, fails: str = "None", sleep: float = 0) -> None:
    """The matrix of the project."""
    text = SUITE.replace("FAILS", fails).replace("SLEEP", str(sleep))
    (project / "tests" / "nic" / "test_fault_matrix.py").write_text(text)


def start(project: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """The tool, started."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV", "CAMHIL"))}
    return subprocess.Popen(
        [sys.executable, "tools/fault_matrix.py", "--jobs", "1", *arguments], cwd=project, text=True,
        env={**kept, "PYTHONPATH": str(REPO), **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def faults(project: Path, *arguments: str, **env: str) -> tuple[int, str, str]:
    """Exit code and what was printed."""
    process = start(project, *arguments, **env)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_all_pass(project: Path) -> None:
    """The table counts cells of all seeds; a part of the matrix is a part."""
    code, out, _ = faults(project, "--seeds", "2")
    assert code == 0 and out.endswith("idle 8\n8 cells passed, with 2 seeds\n")
    assert re.search(r"^write only +2 +2$", out, re.M) and re.search(r"^ +drop +delay$", out, re.M)
    code, out, _ = faults(project, "--seeds", "1", "--select", "read")
    assert code == 0 and out.endswith("2 cells passed, with 1 seeds\n") and "write" not in out


def test_a_red_cell(project: Path) -> None:
    """Exit code 1 and the command that repeats it alone, on the same NIC."""
    suite(project, fails="('write', 2)")
    code, out, _ = faults(project, "--seeds", "2", CAMHIL_RTL="/some/where else")
    failed = [line for line in out.splitlines() if line.startswith("FAILED")]
    assert code == 1 and len(failed) == 1 and "cell: write, only, drop, idle" in failed[0]
    command = failed[0].split(" | ")[2]
    assert command.startswith("CAMHIL_RTL='/some/where else' .venv/bin/python -m pytest ")
    alone = shlex.split(command)
    done = subprocess.run(
        [sys.executable, *alone[2:]], cwd=project, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "1 failed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--select", "nosuch"], "faults: argument --select: 'nosuch': no part of the matrix is called so"),
        (["--select", "two words"], "faults: argument --select: 'two words': ERROR: "),
        (["--seeds", "0"], "faults: argument --seeds: '0' is not a number from 1 on"),
        (["--jobs", "many"], "faults: argument --jobs: 'many' is not a number"),
        (["--first-seed", "-1"], "faults: argument --first-seed: must be 0 or more"),
    ],
)
def test_bad_input(project: Path, arguments: list[str], message: str) -> None:
    """One line, exit code 2, and the cells of the last run stay."""
    kept = project / "build" / "faults" / "write-9.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("[]")
    code, out, err = faults(project, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(message) and kept.exists()


def test_an_interrupt_loses_nothing(project: Path) -> None:
    """The cells that passed are in the table."""
    suite(project, sleep=60)
    process = start(project, "--seeds", "1")
    deadline = time.monotonic() + 60
    while not list((project / "build" / "faults").glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.endswith("2 cells passed, with 1 seeds\nfaults: interrupted\n")
