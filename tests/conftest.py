"""pytest plugin: one pytest item = one cocotb test = one simulator process.

How to write a simulator test
=============================
A file ``tests/**/test_*.py`` that states ``BENCH`` or ``PES`` at module level and holds ``@cocotb.test()``
functions::

    import cocotb
    from cocotb.triggers import FallingEdge, RisingEdge, Timer

    BENCH = {
        "top": "fifo_bench",                        # top module; all of its ports are public (read and write)
        "sources": ["rtl/rnic_pkg.sv", "rtl/common/fifo.sv", "tests/blocks/fifo_bench.sv"],  # from the
        repo's root
        "params": {"Depth": 8},                     # optional: parameters of the top
        # optional, with their defaults:
        # "clock": "clk_i",     1-bit input that the C++ main drives: low at 0, first rising edge at 1 ns,
        # period 2 ns.
        #                       None: no clock from C++; a test may then start a cocotb Clock on any input
        # "includes": [],       include directories
        # "cpp": [],            further C++ sources (DPI-C of the bench)
        # "args": [],           further Verilator arguments, e.g. ["-Wno-WIDTHEXPAND"] or ["--timing"]
        # "public": [],         further public signals besides the top's ports: ["module.signal", ...]
        # "evt": None,          1-bit input that tb/cpp toggles for attention (a bench with DPI memory, see
        # tb/sim/lib.py)
    }

    @cocotb.test()
    async def test_push(dut):
        dut.rst_ni.value = 0                        # do NOT start a Clock: clk_i already runs
        await Timer(10, "ns")
        dut.rst_ni.value = 1
        await FallingEdge(dut.clk_i)

    @cocotb.test()
    @cocotb.parametrize(n=[1, 2, 64])               # one item, one process and one seed for each value
    async def test_depth(dut, n): ...

``BENCH`` may also be a dict of names to such dicts, ``BENCH = {"d2": {...}, "d8": {...}}``: each test then
runs on each bench.
A NIC test states ``PES = n`` (1..16) or ``PES = [1, 2]`` instead and gets tb_top with at least n NICs; it
talks through
``lib = SimLib(dut)`` of tb/sim/lib.py and never touches the dut itself. ``NIC_RTL = [sources]`` puts
another design with the
ports of rnic in its place.
Ordinary pytest functions may stand in the same file. ``pytest.mark`` marks work on modules and on cocotb
tests
(below ``@cocotb.test()``, next to the function); fixtures do not. Items are named ``test_depth[n-64]``:
``-k "depth and n-64"``.

* Time step 1 ps. Trigger semantics are those of cocotb's own main: at ``RisingEdge(clk)`` a test reads the
  values from before the edge,
  and what it writes there acts after the edge. ``$error``, ``$fatal`` and a failing assertion fail the test.
* Randomness: use ``random`` (seeded by cocotb), or ``cocotb.RANDOM_SEED`` for generators of your own. Each
  test's seed is
  hash(run seed, test id); it is recorded as the JUnit property ``seed`` and printed with the command that
  reproduces the failure alone.
* ``sys.path`` holds the repo's root: ``import pymodel...``, ``import tb.sim...`` and ``import tests...``
  work.
* A simulator crash, a wall-clock time-out (``@pytest.mark.sim_timeout(seconds)``, default 300) or a missing
  result fails that test alone.

Options: ``-k``, ``-n`` as usual; ``--waves`` (debug model, waveform beside the log; ``--wave-window
FROM:TO`` in ns), ``--run-seed N``
(``random`` draws one), ``--variant fast|bench|debug|cov`` (default fast: -O3 with protocol assertions).
Logs: build/results/<test id>/sim.log. A run that collects no test at all fails.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tb.sim import build, run  # noqa: E402  (needs the path above)

#: directory of logs, results, waves and coverage
RESULTS = Path(os.environ.get("CAMHIL_RESULTS", build.BUILD / "results"))
#: wall-clock limit of one simulation process, seconds; @pytest.mark.sim_timeout overrides it
DEFAULT_TIMEOUT = 300.0
#: lines of the simulation log that a failure shows
LOG_TAIL = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options."""
    group = parser.getgroup("simulation")
    group.addoption("--waves", action="store_true", help="debug model, waveform beside each log")
    group.addoption("--wave-window", metavar="FROM:TO", help="ns of simulated time that the waveform covers")
    group.addoption(
        "--run-seed", default="1", metavar="N", help="seed of the whole run (default 1; 'random' draws one)"
    )
    group.addoption("--variant", choices=build.VARIANTS, default=None, help="model variant (default fast)")


def pytest_configure(config: pytest.Config) -> None:
    """Fixes the run seed in the controlling process; xdist workers take it over."""
    config.addinivalue_line("markers", "sim_timeout(seconds): wall-clock limit of the simulation process")
    worker = getattr(config, "workerinput", None)
    text = config.getoption("--run-seed")
    if worker is not None:
        seed = int(worker["camhil_run_seed"])
    elif text == "random":
        seed = secrets.randbits(32)
    else:
        try:
            seed = int(text, 0)
        except ValueError:
            raise pytest.UsageError(f"--run-seed {text}: neither a number nor 'random'") from None
    config.stash[_RUN_SEED] = seed
    if worker is None and config.option.keyword:
        # one line here; with xdist each worker would crash on it
        try:
            Expression.compile(config.option.keyword)
        except SyntaxError as err:
            raise pytest.UsageError(f"-k {config.option.keyword}: {err}") from None
    # test files of different folders may share a name
    if config.getoption("importmode") == "prepend":
        config.option.importmode = "importlib"


_RUN_SEED = pytest.StashKey[int]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hands the run seed to an xdist worker."""
    node.workerinput["camhil_run_seed"] = str(node.config.stash[_RUN_SEED])


def pytest_report_header(config: pytest.Config) -> str:
    """Names the run seed in every log."""
    return f"run seed: {config.stash[_RUN_SEED]}"


# ------------------------------------------------------------------------------------------------- collection
def test_seed(run_seed: int, test_id: str) -> int:
    """Seed of one test, 63 bits: the same for the same run seed and test, different for different tests."""
    digest = hashlib.sha256(f"{run_seed}:{test_id}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


test_seed.__test__ = False  # type: ignore[attr-defined]  # a function of the plugin, not a test


def _benches(module: Any) -> dict[str, build.Bench | int]:
    """Benches of a test module by name: a Bench, or the number of PEs of a NIC model."""
    if hasattr(module, "PES"):
        return {"": module.PES} if isinstance(module.PES, int) else {f"pes{n}": n for n in module.PES}
    desc = getattr(module, "BENCH", None)
    if desc is None:
        raise pytest.Collector.CollectError(
            f"{module.__name__} has cocotb tests but states neither BENCH nor PES"
        )
    try:
        if "top" in desc:
            return {"": build.Bench.from_dict(desc)}
        return {str(name): build.Bench.from_dict(one) for name, one in desc.items()}
    except build.BuildError as err:
        raise pytest.Collector.CollectError(f"{module.__name__}: {err}") from None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> list[pytest.Item] | None:
    """Turns each cocotb test of a module into items, one for each parameter set and bench."""
    from cocotb._decorators import TestGenerator

    if isinstance(obj, pytest.MarkDecorator) and any(isinstance(a, TestGenerator) for a in obj.args):
        # pytest took the test for an argument of the mark: neither pytest nor cocotb would ever see it
        raise pytest.Collector.CollectError(
            f"{name}: put pytest marks below @cocotb.test(), next to the function"
        )
    if not isinstance(obj, TestGenerator) or not isinstance(collector, pytest.Module):
        return None
    if obj.module != collector.obj.__name__:
        return []  # imported from another test module: runs there
    items: list[pytest.Item] = []
    tests = list(obj.generate_tests())
    if not tests:
        raise pytest.Collector.CollectError(f"{name}: its parameters give no test at all")
    for bench_name, bench in _benches(collector.obj).items():
        for test in tests:
            base, _, params = test.name.partition("/")
            suffix = ",".join(filter(None, [bench_name, params.replace("/", ",").replace("=", "-")]))
            item_name = f"{base}[{suffix}]" if suffix else base
            rtl = getattr(collector.obj, "NIC_RTL", None)
            items.append(CocotbItem.from_parent(collector, name=item_name, test=test, bench=bench, rtl=rtl))
    return items


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives every simulation its seed and refuses a run in which two tests share one."""
    seen: dict[int, str] = {}
    for item in items:
        if isinstance(item, CocotbItem):
            other = seen.setdefault(item.seed, item.test_id)
            if other != item.test_id:
                raise pytest.UsageError(
                    f"{item.test_id} and {other} have the same seed {item.seed}: choose another run seed"
                )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """A file that states a bench but yields no test is an error, not an empty success."""
    report = yield
    if isinstance(collector, pytest.Module) and report.outcome == "passed" and not report.result:
        module = collector.obj
        if hasattr(module, "BENCH") or hasattr(module, "PES"):
            report.outcome = "failed"
            report.longrepr = f"{collector.nodeid} states a bench but has no test"
    return report


# --------------------------------------------------------------------------------------------------- one test
class SimulationFailure(Exception):
    """The simulation failed; the text says why in one line."""


class CocotbItem(pytest.Item):
    """One cocotb test on one bench: builds the model if needed, runs one process, reads its result."""

    def __init__(
        self, *, test: Any, bench: build.Bench | int, rtl: list[str] | None = None, **kw: Any
    ) -> None:
        super().__init__(**kw)
        self.rtl = rtl
        self.test = test
        self.bench = bench
        self.outcome: run.Outcome | None = None
        func = test.func
        self.obj = func
        self.own_markers.extend(getattr(func, "pytestmark", []))
        self.keywords.update({mark.name: mark for mark in self.own_markers})

    @property
    def test_id(self) -> str:
        """Path from the repo's root and name: independent of the directory that pytest was started in."""
        path = self.path.resolve()
        for base in (ROOT, self.config.rootpath):
            if path.is_relative_to(base):
                return f"{path.relative_to(base)}::{self.name}"
        return f"{path.name}::{self.name}"

    @property
    def seed(self) -> int:
        """Seed of this test in this run."""
        return test_seed(self.config.stash[_RUN_SEED], self.test_id)

    @property
    def out(self) -> Path:
        """Directory of log, results, waves and coverage."""
        return RESULTS / re.sub(r"[^A-Za-z0-9._=\[\],-]+", "_", self.test_id)

    def command(self) -> str:
        """The command that runs this test alone with the same seed."""
        rtl = os.environ.get("CAMHIL_RTL")
        nic = f"CAMHIL_RTL='{rtl}' " if rtl else ""
        return f"{nic}python -m pytest '{self.test_id}' --run-seed {self.config.stash[_RUN_SEED]}"

    def runtest(self) -> None:
        """Builds and runs; raises SimulationFailure."""
        if self.test.skip:
            pytest.skip("skipped by @cocotb.test(skip=True)")
        self.user_properties += [
            ("seed", self.seed),
            ("reproduce", self.command()),
            ("log", str(self.out / "sim.log")),
        ]
        waves = self.config.getoption("--waves")
        variant = self.config.getoption("--variant") or ("debug" if waves else "fast")
        if waves and variant != "debug":
            raise SimulationFailure(f"--waves needs the debug variant, not {variant}")
        pes = self.bench if isinstance(self.bench, int) else 1
        try:
            bench = build.nic_bench(pes, self.rtl) if isinstance(self.bench, int) else self.bench
            exe = build.build(bench, variant)
        except build.BuildError as err:
            raise SimulationFailure(f"build: {err}") from None
        window = self.config.getoption("--wave-window")
        mark = self.get_closest_marker("sim_timeout")
        self.outcome = run.run(
            exe,
            _module_name(self.path),
            bench.top,
            path=[] if self.path.resolve().is_relative_to(ROOT) else [self.path.parent],
            out=self.out,
            seed=self.seed,
            test=self.test.name,
            pes=pes,
            timeout=float(mark.args[0]) if mark else DEFAULT_TIMEOUT,
            waves=self.out / f"waves{build.wave_suffix()}" if waves else None,
            wave_window=_window(window) if window else None,
            # cocotb's own main knows none of our options
            own_main=bench.main == "own",
        )
        self.user_properties += [("sim_ns", self.outcome.sim_ns)]
        if self.outcome.error is not None:
            raise SimulationFailure(self.outcome.error)
        if self.outcome.tests != 1:
            raise SimulationFailure(f"{self.outcome.tests} results in place of one")
        if self.outcome.skipped:
            pytest.skip("skipped inside the simulation")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Cause, command to reproduce, end of the log."""
        if not isinstance(excinfo.value, SimulationFailure):
            return super().repr_failure(excinfo, style)
        lines = [str(excinfo.value), f"reproduce: {self.command()}", f"seed: {self.seed}"]
        log = self.out / "sim.log"
        if self.outcome is not None and log.exists():
            text = log.read_text(errors="replace").splitlines()
            lines += [f"--- {log} (last {min(LOG_TAIL, len(text))} of {len(text)} lines)", *text[-LOG_TAIL:]]
        return "\n".join(lines)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the test is defined."""
        return self.path, self.test.func.__code__.co_firstlineno - 1, self.name


def _window(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or int(match[1]) > int(match[2]):
        raise SimulationFailure(f"--wave-window {text}: FROM:TO in ns expected")
    return int(match[1]), int(match[2])


def _module_name(path: Path) -> str:
    """Import name of a test file inside the simulator: dotted from the repo's root, or its stem beside
    PYTHONPATH.
    """
    path = path.resolve()
    if path.is_relative_to(ROOT):
        return ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return path.stem
