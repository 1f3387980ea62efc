"""tools/regress.py: a small suite of its own, run as a user would.

Sweep: seeds that pass and fail, a test that only fails with one seed, an error in collection, no test at all.
Stimulus: a copy of the tool beside a tests/ folder whose conftest knows --run-seed.
Checks: exit codes, one line a failure with cause, seed and command; the command fails alone; a rerun repeats
only those.
Timing: not looked at. It does not prove anything about simulator tests.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--run-seed", type=int)
"""
SUITE = """
def test_good():
    pass

def test_bad_with_seed_2(request):
    seed = request.config.getoption("--run-seed")
    log = request.config.rootpath / "build/results/tests_test_suite.py_test_bad_with_seed_2/sim.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"seed {seed}")
    assert seed != 2, f"psn 0x{seed * 4096:x} differs at time {seed * 1000}"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the tool and one test file."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tests").mkdir()
    for name in ("regress.py", "regress_events.py"):
        shutil.copy(REPO / "tools" / name, tmp_path / "tools" / name)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "test_suite.py").write_text(SUITE)
    return tmp_path


def regress(project: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and printed lines."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))}
    done = subprocess.run(
        [sys.executable, project / "tools" / "regress.py", "--jobs", "1", *arguments],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout.splitlines()


def test_one_failure_is_one_line_with_cause_seed_and_command(project: Path) -> None:
    """Three seeds, of which the second fails one test."""
    code, lines = regress(project, "--seeds", "3")
    failed = [line for line in lines if line.startswith("FAILED")]
    assert code == 1
    assert len(failed) == 1, lines
    cause, seed, command = failed[0].split(" | ")
    assert cause == "FAILED AssertionError: psn 0x# differs at time #"
    assert seed == "seed 2"
    assert "--run-seed=2" in command and "tests/test_suite.py::test_bad_with_seed_2" in command
    assert (project / "build/regress/seed-1/junit.xml").exists()
    logs = project / "build/regress/seed-2/logs"
    assert [log.read_text() for log in logs.rglob("sim.log")] == ["seed 2"]
    assert "1 failed" not in (project / "build/regress/seed-3/pytest.log").read_text()
    # the printed command, run alone, fails the same way
    alone = shlex.split(re.sub(r"^\.venv/bin/python", shlex.quote(sys.executable), command))
    done = subprocess.run(alone, cwd=project, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "1 failed" in done.stdout and "psn 0x2000" in done.stdout


def test_rerun_repeats_only_what_failed(project: Path) -> None:
    """After the fault is mended a rerun is green and ran one test."""
    assert regress(project, "--seeds", "2")[0] == 1
    code, lines = regress(project, "--rerun", "failed")
    assert code == 1 and any("1/1 tests, 1 failed" in line for line in lines), lines
    suite = project / "tests" / "test_suite.py"
    suite.write_text(SUITE.replace("seed != 2", "seed"))
    code, lines = regress(project, "--rerun", "failed")
    assert code == 0 and any("1/1 tests, 0 failed" in line for line in lines), lines
    assert json.loads((project / "build/regress/failures.json").read_text()) == []


@pytest.mark.parametrize(
    ("suite", "cause"),
    [
        ("", "no test ran"),
        ("import pytest\n@pytest.mark.skip\ndef test_a():\n    pass\n", "no test ran"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import os\ndef test_a():\n    os._exit(3)\n", "worker 'gw0' crashed"),
    ],
    ids=["empty", "all_skipped", "import_error", "crash"],
)
def test_a_run_without_a_verdict_is_a_failure(project: Path, suite: str, cause: str) -> None:
    """Nothing ran, or not what was asked for: never green."""
    (project / "tests" / "test_suite.py").write_text(suite)
    code, lines = regress(project, "--seeds", "1")
    assert code == 1
    assert any(line.startswith("FAILED") and cause in line and "seed 1" in line for line in lines), lines


def test_all_green(project: Path) -> None:
    """Exit code 0 only where everything passed."""
    code, lines = regress(project, "--seeds", "1", "--first-seed", "7")
    assert code == 0 and lines[-1] == "regress: all passed", lines
