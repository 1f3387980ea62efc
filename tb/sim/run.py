"""Launches one simulation process with a cocotb test module and reads its verdict.

``python -m tb.sim.run tests/nic/test_write.py::test_one`` is not a thing: tests run through pytest
(tests/conftest.py). This
module is what the plugin, ``make sim`` and the benchmarks call.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

from tb.sim.build import ROOT

#: first lines of a log that name the cause of a failure, most telling first
_CAUSES = (
    r"%Error",
    r"^(error|fatal):",
    r"^\S*(Error|Exception)\b.*:",
    r"(?i)segmentation fault|assertion .* failed",
)
#: exceptions whose text is a report already
_REPORTS = ("HangError", "RaceError", "RunFailed", "UnawaitedError")
#: how long a process that was asked to stop may write waves and coverage, seconds
_GRACE = 20.0
#: how often a process that somebody may stop is asked whether it has ended, seconds
_STOP_POLL = 0.2


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Verdict of one simulation process.

    ``error`` is None for a pass, else why: one line, or a report; ``tests`` counts results in the XML file,
    ``sim_ns`` is the
    simulated time of the last of them and ``wall_s`` the time of the whole process.
    """

    error: str | None
    tests: int
    skipped: bool
    sim_ns: float
    wall_s: float
    returncode: int
    log: Path


@functools.cache
def _libpython() -> str:
    import find_libpython

    path = find_libpython.find_libpython()
    if path is None:
        raise RuntimeError("no shared libpython found: cocotb needs a Python built with --enable-shared")
    return str(path)


def environment(
    module: str, toplevel: str, seed: int, results: Path, test_filter: str | None, path: Sequence[Path] = ()
) -> dict[str, str]:
    """Environment of a simulator process that runs the cocotb tests of ``module`` that match
    ``test_filter``.
    """
    import cocotb_tools.config

    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *map(str, path), *(p for p in sys.path if p)])
    env["PYGPI_PYTHON_BIN"] = sys.executable
    env["GPI_USERS"] = f"{_libpython()};{cocotb_tools.config.pygpi_entry_point()}"
    env["COCOTB_TOPLEVEL"] = toplevel
    env["TOPLEVEL_LANG"] = "verilog"
    env["COCOTB_TEST_MODULES"] = module
    env["COCOTB_RANDOM_SEED"] = str(seed)
    env["COCOTB_RESULTS_FILE"] = str(results)
    # inertial writes are exact in Verilator (and in our main); without this cocotb imitates them in Python
    env["COCOTB_TRUST_INERTIAL_WRITES"] = "1"
    env.setdefault("COCOTB_LOG_LEVEL", "INFO")
    env["COCOTB_ANSI_OUTPUT"] = "0"
    # start-up: no pytest plugins in the simulator, assertions rewritten in test files only
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    env.setdefault("COCOTB_REWRITE_ASSERTION_FILES", "")
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "COCOTB_TESTCASE", "COCOTB_TEST_FILTER"):
        env.pop(name, None)
    if test_filter is not None:
        env["COCOTB_TEST_FILTER"] = test_filter
    return env


def run(
    exe: Path,
    module: str,
    toplevel: str,
    *,
    out: Path,
    seed: int,
    test: str | None = None,
    pes: int = 1,
    timeout: float = 300.0,
    waves: Path | None = None,
    wave_window: tuple[int, int] | None = None,
    path: Sequence[Path] = (),
    own_main: bool = True,
    args: Sequence[str] = (),
    extra_env: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Runs one process to its end and judges it. ``out`` is the directory of sim.log and results.xml.

    ``test`` is the exact name of one cocotb test (with its parameters); None runs all of the module.
    ``wave_window`` is in ns; ``path`` goes in front of PYTHONPATH. A process that exceeds ``timeout`` seconds
    of wall clock, or for which ``stop`` is set, is asked to stop, so that waves are complete, then killed.
    """
    out.mkdir(parents=True, exist_ok=True)
    results, log = out / "results.xml", out / "sim.log"
    results.unlink(missing_ok=True)
    test_filter = None if test is None else rf"^{re.escape(module)}\.{re.escape(test)}$"
    env = environment(module, toplevel, seed, results, test_filter, path)
    env.update(extra_env or {})
    cmd = [str(exe), *(["--seed", str(seed), "--pes", str(pes)] if own_main else [])]
    if waves is not None:
        cmd += ["--trace-file", str(waves)]
        if wave_window is not None:
            cmd += ["--trace-from", str(wave_window[0] * 1000), "--trace-to", str(wave_window[1] * 1000)]
    # registers without a reset start with values drawn from the seed
    cmd += ["+verilator+rand+reset+2", f"+verilator+seed+{seed % (2**31 - 1) + 1}"]
    cmd += [f"+verilator+coverage+file+{out / 'coverage.dat'}", *args]
    start = time.monotonic()
    verdict: str | None = None
    with log.open("w") as sink:
        process = subprocess.Popen(
            cmd, cwd=out, env=env, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            verdict = _wait(process, timeout, stop)
            if verdict is not None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(_GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
    wall = time.monotonic() - start
    return _judge(results, log, process.returncode, verdict, wall)


def _wait(process: subprocess.Popen[bytes], timeout: float, stop: threading.Event | None) -> str | None:
    """Wait for the end of a process; gives why it has to be ended, None where it has."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        try:
            process.wait(left if stop is None else min(left, _STOP_POLL))
            return None
        except subprocess.TimeoutExpired:
            if stop is not None and stop.is_set():
                return "stopped"
    return f"wall-clock time-out of {timeout:g} s"


def _judge(results: Path, log: Path, code: int, verdict: str | None, wall: float) -> Outcome:
    """Verdict from the result file, the exit code and the log, whichever knows of a failure first."""
    tests, skipped, sim_ns, error = 0, False, 0.0, verdict
    try:
        cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        cases = []
        error = error or f"no result file: the simulator {_exit_text(code)}"
    for case in cases:
        tests += 1
        sim_ns = max(sim_ns, float(case.get("sim_time_ns") or 0))
        skipped |= case.find("skipped") is not None
        for kind in ("failure", "error"):
            node = case.find(kind)
            if node is not None and error is None:
                error = _failure(node) or kind
    if not cases and error is None:
        error = "no test ran"
    if error is None and code != 0:
        error = f"the simulator {_exit_text(code)}"
    cause = _cause(log) if error is not None else None
    if error is not None and cause and cause not in error:
        error = f"{cause} ({error})" if cause.startswith(("%Error", "error:")) else f"{error} ({cause})"
    return Outcome(error, tests, skipped, sim_ns, wall, code, log)


def _failure(node: ElementTree.Element) -> str:
    """What a failed test raised, and the notes on it: the first findings, what is outstanding, the task."""
    kind, message, text = node.get("type") or "", node.get("message") or "", (node.text or "").strip()
    _, found, notes = text.rpartition(f"{kind}: {message}" if message else kind)
    if kind not in _REPORTS:
        message = f"{kind}: {message}" if message else kind
    return f"{message}\n{notes.strip()}".strip() if found else message or text


def _exit_text(code: int) -> str:
    if code < 0:
        try:
            return f"died of {signal.Signals(-code).name}"
        except ValueError:
            return f"died of signal {-code}"
    return f"ended with exit code {code}"


def _cause(log: Path) -> str | None:
    text = log.read_text(errors="replace").splitlines()
    for pattern in _CAUSES:
        for line in text:
            if re.search(pattern, line):
                return line.strip()
    return None
