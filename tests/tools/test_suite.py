"""The suite tests itself: whatever goes wrong in a test makes that test, and only that test, fail.

Sweep: failing, crashing, hanging, vanishing and erring tests; empty collections; seeds; xdist. Stimulus:
small test files run
by a pytest of their own with our plugin. Checks: exit code and JUnit report. Timing: none. Does not prove:
that the
tests of the suite check enough (mutation runs).
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tb.sim.run import _failure

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import cocotb, pytest
from cocotb.triggers import *

BENCH = {"top": "error_bench", "sources": ["tests/tools/error_bench.sv"]}

async def start(dut, kind=0):
    dut.kind_i.value = kind
    dut.rst_ni.value = 0
    await Timer(4, "ns")
    dut.rst_ni.value = 1

@cocotb.test()
async def test_good_before(dut):
    await start(dut)
    await ClockCycles(dut.clk_i, 30)
    assert int(dut.count_o.value) >= 29

@cocotb.test()
async def test_good_after(dut):
    await start(dut)
    await ClockCycles(dut.clk_i, 30)
"""


class Run:
    """A finished pytest run: exit code, output, and per test its outcome and properties."""

    def __init__(self, directory: Path, *args: str, env: dict[str, str] | None = None) -> None:
        report = directory / "report.xml"
        (directory / "pytest.ini").write_text("[pytest]\n")
        self.results = directory / "results"
        cmd = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.conftest",
            "--rootdir",
            str(directory),
            "-c",
            str(directory / "pytest.ini"),
        ]
        cmd += ["-p", "no:cacheprovider", f"--junitxml={report}", "-q", *args]
        full = {**os.environ, "PYTHONPATH": str(ROOT), "CAMHIL_RESULTS": str(self.results), **(env or {})}
        full.pop("PYTEST_ADDOPTS", None)
        for name in list(full):
            if name.startswith("PYTEST_XDIST"):
                del full[name]
        done = subprocess.run(
            cmd, cwd=directory, env=full, capture_output=True, text=True, check=False, timeout=240
        )
        self.code = done.returncode
        self.output = done.stdout + done.stderr
        self.outcome: dict[str, str] = {}
        self.message: dict[str, str] = {}
        self.properties: dict[str, dict[str, str]] = {}
        if not report.exists():
            return
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = case.get("name") or ""
            bad = [n for n in case if n.tag in ("failure", "error", "skipped")]
            self.outcome[name] = bad[0].tag if bad else "passed"
            self.message[name] = (bad[0].text or "") + (bad[0].get("message") or "") if bad else ""
            self.properties[name] = {p.get("name") or "": p.get("value") or "" for p in case.iter("property")}


def run(tmp_path: Path, body: str, *args: str, head: str = HEAD, name: str = "test_planted.py") -> Run:
    """Runs one planted test file."""
    (tmp_path / name).write_text(head + body)
    return Run(tmp_path, *args, name)


GOOD = {"test_good_before": "passed", "test_good_after": "passed"}

BAD_TESTS = {
    "assertion": (
        """
@cocotb.test()
async def test_bad(dut):
    await start(dut)
    assert int(dut.count_o.value) == 99, "planted"
""",
        "planted",
    ),
    "exception_in_background_task": (
        """
async def background(dut):
    await ClockCycles(dut.clk_i, 5)
    raise ValueError("planted in the background")

@cocotb.test()
async def test_bad(dut):
    await start(dut)
    cocotb.start_soon(background(dut))
    await ClockCycles(dut.clk_i, 50)
""",
        "planted in the background",
    ),
    "crash": (
        """
@cocotb.test()
async def test_bad(dut):
    await start(dut)
    import ctypes
    ctypes.string_at(0)
""",
        "SIGSEGV",
    ),
    "abort": (
        """
@cocotb.test()
async def test_bad(dut):
    await start(dut)
    import os
    os.abort()
""",
        "SIGABRT",
    ),
    "vanishes_with_exit_code_0": (
        """
@cocotb.test()
async def test_bad(dut):
    await start(dut)
    import os
    os._exit(0)
""",
        "no result file",
    ),
    "sys_exit": (
        """
@cocotb.test()
async def test_bad(dut):
    await start(dut)
    raise SystemExit(0)
""",
        "",
    ),
    "hangs": (
        """
@cocotb.test()
@pytest.mark.sim_timeout(3)
async def test_bad(dut):
    await start(dut)
    while True:
        await RisingEdge(dut.clk_i)
""",
        "time-out of 3 s",
    ),
    "sleeps_for_ever": (
        """
@cocotb.test()
@pytest.mark.sim_timeout(3)
async def test_bad(dut):
    await start(dut)
    await Event().wait()
""",
        "time-out of 3 s",
    ),
    "fails_after_passing_check_in_same_step": (
        """
@cocotb.test()
async def test_bad(dut):
    await start(dut)
    await RisingEdge(dut.count_o[2])
    raise RuntimeError("planted")
""",
        "planted",
    ),
    "expect_fail_that_passes": (
        """
@cocotb.test(expect_fail=True)
async def test_bad(dut):
    await start(dut)
""",
        "",
    ),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All bad tests in one file, between two good ones: each may only harm itself."""
    body = "".join(
        text.replace("def test_bad(", f"def test_{kind}(") for kind, (text, _) in BAD_TESTS.items()
    )
    for kind in range(1, 7):
        body += f"""
@cocotb.test()
async def test_error_kind_{kind}(dut):
    await start(dut, {kind})
    await ClockCycles(dut.clk_i, 60)
"""
    return run(tmp_path_factory.mktemp("planted"), body)


def test_good_tests_pass_among_bad_ones(planted: Run) -> None:
    """Exit code 1, nothing lost, nothing passes but what is good."""
    assert planted.code == 1, planted.output
    assert len(planted.outcome) == len(BAD_TESTS) + 6 + len(GOOD)
    assert {n: o for n, o in planted.outcome.items() if o == "passed"} == GOOD


@pytest.mark.parametrize("kind", BAD_TESTS)
def test_bad_test_fails(kind: str, planted: Run) -> None:
    """The planted test fails with its cause and the command to reproduce it."""
    name = f"test_{kind}"
    assert planted.outcome[name] == "failure"
    assert BAD_TESTS[kind][1] in planted.message[name]
    assert f"python -m pytest 'test_planted.py::{name}' --run-seed 1" in planted.message[name]


@pytest.mark.parametrize("kind", range(1, 7))
def test_simulator_errors_fail(kind: int, planted: Run) -> None:
    """$error, $fatal, both kinds of assertion, $stop, and a $finish that the test did not ask for."""
    name = f"test_error_kind_{kind}"
    assert planted.outcome[name] == "failure"
    text = {
        1: "planted error",
        2: "planted fatal",
        3: "planted immediate",
        4: "planted concurrent",
        5: "$stop",
    }
    assert text.get(kind, "ended prematurely") in planted.message[name]


def test_error_in_the_last_step_fails(tmp_path: Path) -> None:
    """A test that ends at the very edge at which the design reports an error does not pass."""
    body = """
@cocotb.test()
async def test_bad(dut):
    await start(dut, 1)
    while int(dut.count_o.value) != 20:
        await FallingEdge(dut.clk_i)
    await RisingEdge(dut.clk_i)
    await ReadOnly()
"""
    done = run(tmp_path, body)
    assert done.code == 1 and done.outcome["test_bad"] == "failure", done.output


def test_good_file_passes(tmp_path: Path) -> None:
    """The yardstick of all the others."""
    done = run(tmp_path, "")
    assert done.code == 0 and done.outcome == GOOD, done.output


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("", ()),
        ("BENCH = {'top': 'error_bench', 'sources': ['tests/tools/error_bench.sv']}\n", ()),
        (
            "import cocotb\nBENCH = {'top': 'error_bench', 'sources': ['tests/tools/error_bench.sv']}\n"
            "async def test_no_decorator(dut): pass\n",
            (),
        ),
        (HEAD, ("-k", "nothing_has_this_name")),
        (HEAD, ("-n", "2", "-k", "nothing_has_this_name")),
        (HEAD + "@pytest.mark.slow\n@cocotb.test()\nasync def test_marked_above(dut): pass\n", ()),
        (HEAD + "@cocotb.test()\n@cocotb.parametrize(n=[])\nasync def test_none(dut, n): pass\n", ()),
    ],
)
def test_nothing_collected_fails(text: str, args: tuple[str, ...], tmp_path: Path) -> None:
    """An empty run, an empty file and an empty parameter list are failures."""
    done = run(tmp_path, "", *args, head=text)
    assert done.code != 0, done.output


@pytest.mark.parametrize(
    ("bench", "text"),
    [
        ("{'top': 'error_bench', 'sources': ['tests/tools/missing.sv']}", "does not exist"),
        (
            "{'top': 'error_bench', 'sources': ['tests/tools/error_bench.sv'], 'parms': {}}",
            "unknown keys ['parms']",
        ),
        ("{'top': 'no_such_top', 'sources': ['tests/tools/error_bench.sv']}", "no_such_top"),
        ("{'top': 'error_bench', 'sources': ['tests/tools/error_bench.sv'], 'params': {'Nope': 1}}", "Nope"),
    ],
)
def test_broken_bench_says_why(bench: str, text: str, tmp_path: Path) -> None:
    """A bench that cannot be built fails with one line."""
    head = HEAD.replace('{"top": "error_bench", "sources": ["tests/tools/error_bench.sv"]}', bench)
    assert head != HEAD
    done = run(tmp_path, "", head=head)
    assert done.code != 0 and text in done.output, done.output


def test_seeds(tmp_path: Path) -> None:
    """Each test has its own seed, the same alone, in company and under xdist; another run seed gives
    others.
    """
    body = """
import random
@cocotb.test()
@cocotb.parametrize(n=list(range(4)))
async def test_draw(dut, n):
    print("DRAW", cocotb.RANDOM_SEED, random.getrandbits(64))
"""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    alone = run(tmp_path / "a", body, "-k", "test_draw and n-2")
    company = run(tmp_path / "b", body, "-n", "2")
    other = run(tmp_path / "c", body, "--run-seed", "2")
    assert alone.code == company.code == other.code == 0, alone.output + company.output + other.output
    seeds = {name: p["seed"] for name, p in company.properties.items()}
    assert len(seeds) == 6 and len(set(seeds.values())) == 6
    assert alone.properties["test_draw[n-2]"]["seed"] == seeds["test_draw[n-2]"]
    assert not {p["seed"] for p in other.properties.values()} & set(seeds.values())

    def drawn(done: Run) -> str:
        text = (next(done.results.glob("*test_draw*n-2*")) / "sim.log").read_text()
        # cocotb makes a seed of its own for each test from the one it gets
        assert f"module with {done.properties['test_draw[n-2]']['seed']}\n" in text
        return next(ln for ln in text.splitlines() if ln.startswith("DRAW"))

    assert drawn(alone) == drawn(company) != drawn(other)
    assert "--run-seed 1" in company.properties["test_draw[n-2]"]["reproduce"]


def test_no_two_tests_of_the_suite_share_a_seed() -> None:
    """All simulator tests of the repo, for several run seeds."""
    from tests.conftest import test_seed as seed_of

    cmd = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests"]
    done = subprocess.run(cmd, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    names = [ln for ln in done.stdout.splitlines() if "::" in ln and not ln.startswith("ERROR")]
    assert len(names) > 50, done.stdout
    for run_seed in (1, 2, 12345):
        assert len({seed_of(run_seed, n) for n in names}) == len(names)


def test_same_run_with_and_without_waves(tmp_path: Path) -> None:
    """The record stream is the same, cycle by cycle, in the fast model and in the debug model with waves;
    waves exist.
    """
    head = """
import json
from tests.conformance.workload_scenario import recorded as _recorded
PES = 2
NIC_RTL = ["tests/conformance/stub/rnic.sv"]
import cocotb
@cocotb.test()
async def test_stream(dut):
    await _recorded.func(dut)
"""
    totals = []
    for i, args in enumerate(((), ("--waves",), ("--waves", "--wave-window", "100:200"))):
        out = tmp_path / str(i)
        out.mkdir()
        (out / "test_planted.py").write_text(head)
        done = Run(out, *args, "test_planted.py", env={"CAMHIL_OUT": str(out), "CAMHIL_BATCHES": "3"})
        assert done.code == 0, done.output
        totals.append((out / "totals.json").read_text())
    assert totals[0] == totals[1] == totals[2]
    sizes = [sum(p.stat().st_size for p in (tmp_path / str(i)).rglob("waves.*")) for i in range(3)]
    assert sizes[0] == 0 < sizes[2] < sizes[1]


def test_coverage_is_written_on_every_way_out(tmp_path: Path) -> None:
    """coverage.dat exists after a pass, a failure, an assertion and a time-out."""
    body = """
@cocotb.test()
async def test_fails(dut):
    await start(dut)
    assert False

@cocotb.test()
async def test_asserts(dut):
    await start(dut, 3)
    await ClockCycles(dut.clk_i, 60)

@cocotb.test()
@pytest.mark.sim_timeout(3)
async def test_hangs(dut):
    await start(dut)
    await Event().wait()
"""
    done = run(tmp_path, body, "--variant", "cov")
    assert done.code == 1, done.output
    assert {n for n, o in done.outcome.items() if o == "passed"} == set(GOOD)
    files = {
        p.parent.name.partition("_test_planted.py_")[2] or p.parent.name
        for p in done.results.rglob("coverage.dat")
    }
    assert len(files) == 5, files
    for path in done.results.rglob("coverage.dat"):
        assert "error_bench" in path.read_text()


@pytest.mark.parametrize(
    ("kind", "message", "notes", "expected"),
    [
        ("KeyError", "'x'", "in main of PE 0", "KeyError: 'x'\nin main of PE 0"),
        ("AssertionError", "", "in main of PE 0", "AssertionError\nin main of PE 0"),
        ("HangError", "hang\nPE 0: b", "icrc: PE 1\nno ACK", "hang\nPE 0: b\nicrc: PE 1\nno ACK"),
        ("RunFailed", "2 findings", "", "2 findings"),
    ],
)  # fmt: skip
def test_a_failure_keeps_its_notes(kind: str, message: str, notes: str, expected: str) -> None:
    """The notes on an exception, where findings and outstanding WQEs stand, belong to what a run reports."""
    node = ElementTree.Element("failure", type=kind, message=message)
    last = f"{kind}: {message}" if message else kind
    node.text = f"Traceback (most recent call last):\n  File ...\npymodel.runner.{last}\n{notes}\n"
    assert _failure(node) == expected
