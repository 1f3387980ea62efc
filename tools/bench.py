"""Measure what the testbench costs and how fast the NIC is; print the table, write build/bench/bench.json.

Usage: bench.py [--rounds N] [--scale F] [--no-cold] [--no-operators] [--no-loss] [--only PART] [--strict]

Every ratio is measured interleaved: one round runs each bench once and forms the ratio, the table shows the
median over the rounds. CPU time, not wall time. The benches, on the same NIC and the same work:
  ours      tests/bench_fast: monitors, record ring, judge on every record, all bytes compared
  monitors  the bare C++ loop (sim --bare) on the model with monitors, replaying what ours did
  bare      the same loop on the model without monitors
  classic   tests/bench_classic: cocotb's main and clock, cocotbext-axi, Python monitors per beat
After them the MoE layer over 2 to 16 NICs (bench_operators.py), with a plot in build/bench/operators.png
and .svg, then goodput over a link that loses packets (bench_loss.py), loss.png and .svg. --no-cold leaves
out the builds from nothing. --strict: exit code 1 where a figure is missed.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bench_loss
import bench_operators
from rtl_files import ROOT, rtl_files

from tb.sim import build, run
from tb.sim.workload import run_bare

OUT = ROOT / "build" / "bench"
FAST = "tests.bench_fast.fast_bench"
EMPTY = "tests.bench_fast.empty_bench"
CLASSIC = "tests.bench_classic.classic_bench"
QUIET = ("-Wno-fatal", "-Wno-lint", "-Wno-style")


@dataclass(frozen=True)
class Work:
    """A workload: requests (`op`) of `size` bytes, `wqes` on each of `qps` QPs of each sender."""

    name: str
    pes: int
    qps: int
    wqes: int
    size: int
    depth: int
    latency: int = 20
    one_sender: bool = False
    op: str = "write"

    def scaled(self, scale: float) -> "Work":
        """The same shape, longer or shorter."""
        return Work(**{**asdict(self), "wqes": max(1, round(self.wqes * scale))})


LARGE = Work("4 KiB, 2 NICs", pes=2, qps=1, wqes=20000, size=4096, depth=256)
SMALL = Work("64 B, 2 NICs", pes=2, qps=8, wqes=12000, size=64, depth=4096)
MANY = Work("4 KiB, 16 NICs", pes=16, qps=1, wqes=600, size=4096, depth=512)
ONE_WAY = Work("4 KiB, one way", pes=2, qps=1, wqes=6000, size=4096, depth=256, one_sender=True)
CLASSIC_WORK = Work("classic", pes=2, qps=1, wqes=60, size=4096, depth=256)
LINK_LARGE = Work("link, 4 KiB", pes=2, qps=1, wqes=1000, size=4096, depth=256, latency=200)
LINK_SMALL = Work("link, 64 B", pes=2, qps=8, wqes=1500, size=64, depth=256, latency=200)
LINK_READ = Work(
    "link, 4 KiB READs",
    pes=2,
    qps=1,
    wqes=1000,
    size=4096,
    depth=256,
    latency=200,
    one_sender=True,
    op="read",
)
CONTENDED = Work(
    "contended fetch_add", pes=4, qps=1, wqes=400, size=8, depth=256, latency=200, op="fetch_add"
)
FIRST = Work("first beat", pes=2, qps=1, wqes=1, size=64, depth=16)


@dataclass
class Row:
    """One line of the table: at least (or at most) `bound`; None: only reported."""

    figure: str
    value: float
    unit: str
    bound: float | None
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the figure keeps its bound."""
        if self.bound is None:
            return True
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def say(text: str) -> None:
    """Progress, flushed: a bench takes minutes."""
    print(f"bench: {text}", flush=True)


def children_cpu() -> float:
    """CPU seconds of all processes that have ended so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def model(pes: int, variant: str) -> Path:
    """A NIC model, built where it has to be."""
    start = time.monotonic()
    exe = build.build(build.nic_bench(pes), variant)
    if time.monotonic() - start > 2:
        say(f"built {variant} model, {pes} NICs: {time.monotonic() - start:.0f} s")
    return exe


def simulate(
    exe: Path, module: str, top: str, test: str, env: Mapping[str, object], **options: Any
) -> run.Outcome:
    """One simulation process; a failing one ends the bench: figures of a wrong run mean nothing."""
    text = {key: str(value) for key, value in env.items()}
    outcome = run.run(exe, module, top, out=OUT / test, seed=1, test=test, extra_env=text, **options)
    if outcome.error is not None:
        raise SystemExit(f"bench: {test} failed: {outcome.error} [log: {outcome.log}]")
    return outcome


def ours(work: Work, record: Path | None = None) -> dict[str, float]:
    """Our bench on a workload."""
    result = OUT / "fast.json"
    result.unlink(missing_ok=True)
    env = {
        "FAST_PES": work.pes,
        "FAST_QPS": work.qps,
        "FAST_WQES": work.wqes,
        "FAST_BYTES": work.size,
        "FAST_DEPTH": work.depth,
        "FAST_LATENCY": work.latency,
        "FAST_SENDERS": "one" if work.one_sender else "all",
        "FAST_OP": work.op,
        "FAST_OUT": result,
        "FAST_RECORD": record or "",
    }
    simulate(model(work.pes, "bench"), FAST, "tb_top", "fast", env, pes=work.pes, timeout=1200)
    figures: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
    return figures


def bare(work: Work, record: Path, variant: str) -> dict[str, float]:
    """The recorded workload in the bare loop."""
    return run_bare(model(work.pes, variant), record, pes=work.pes, seed=1)


def classic(work: Work) -> dict[str, float]:
    """The classic bench: its own top, cocotb's main, our -O3 build (its runner's defaults are slower)."""
    sources = (*map(str, rtl_files()), "tests/bench_classic/classic_pair.sv")
    bench = build.Bench("classic_pair", sources, clock=None, main="cocotb", args=QUIET)
    exe = build.build(bench, "bench")
    result = OUT / "classic.json"
    result.unlink(missing_ok=True)
    env = {
        "CLASSIC_QPS": work.qps,
        "CLASSIC_WQES": work.wqes,
        "CLASSIC_BYTES": work.size,
        "CLASSIC_OUT": result,
    }
    simulate(exe, CLASSIC, "classic_pair", "classic", env, own_main=False, timeout=600)
    figures: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
    return figures


def per_cycle(figures: Mapping[str, float]) -> float:
    """CPU seconds per clock cycle."""
    return figures["cpu_s"] / figures["cycles"]


def interleaved(rounds: int, benches: Mapping[str, Callable[[], dict[str, float]]]) -> list[dict[str, Any]]:
    """`rounds` times all benches, one after the other."""
    results = []
    for number in range(rounds):
        results.append({name: bench() for name, bench in benches.items()})
        costs = {name: per_cycle(figures) * 1e6 for name, figures in results[-1].items()}
        say(f"  round {number + 1}/{rounds}: " + ", ".join(f"{n} {c:.3f} us/cycle" for n, c in costs.items()))
    return results


def median(values: list[float]) -> float:
    """Median, as everything here is noisy."""
    return statistics.median(values)


def compare(work: Work, rounds: int, raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours, monitors and bare on one workload."""
    say(work.name)
    record = OUT / "workload.bin"
    ours(work, record)
    results = interleaved(
        rounds,
        {
            "ours": lambda: ours(work),
            "monitors": lambda: bare(work, record, "bench"),
            "bare": lambda: bare(work, record, "bare"),
        },
    )
    raw[work.name] = results
    return results


def verdict_seconds(pes: int) -> tuple[float, float]:
    """Wall seconds to a first verdict from nothing, and once more with the model built."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "CAMHIL_BUILD": folder, "CCACHE_DISABLE": "1"}
        command = [sys.executable, __file__, "--verdict", str(pes)]
        times = []
        for _ in range(2):
            start = time.monotonic()
            subprocess.run(command, cwd=ROOT, env=env, check=True)
            times.append(time.monotonic() - start)
    return times[0], times[1]


def verdict(pes: int) -> None:
    """Build the model of the tests and let each NIC answer."""
    exe = build.build(build.nic_bench(pes), "fast")
    out = build.BUILD / "verdict"
    outcome = run.run(exe, FAST, "tb_top", out=out, seed=1, test="verdict", pes=pes)
    if outcome.error is not None:
        raise SystemExit(outcome.error)


def empty_process(rounds: int) -> tuple[float, float]:
    """CPU and wall seconds of a test that does nothing."""
    exe = model(1, "fast")
    cpu, wall = [], []
    for _ in range(rounds):
        before = children_cpu()
        wall.append(simulate(exe, EMPTY, "tb_top", "empty", {}, pes=1).wall_s)
        cpu.append(children_cpu() - before)
    return median(cpu), median(wall)


def measure(rounds: int, scale: float, cold: bool) -> tuple[list[Row], dict[str, Any]]:
    """All rows and the raw numbers behind them."""
    rows: list[Row] = []
    raw: dict[str, Any] = {}
    for work, of_bare in ((LARGE, 0.65), (SMALL, 0.50), (MANY, 0.70)):
        results = compare(work.scaled(scale), rounds, raw)

        def ratio(slow: str, fast: str, results: list[dict[str, Any]] = results) -> float:
            return median([per_cycle(r[fast]) / per_cycle(r[slow]) for r in results])

        if work is not MANY:
            figure = f"whole bench / bare with monitors, {work.name}"
            rows.append(Row(figure, ratio("ours", "monitors"), "", 0.80))
        rows.append(Row(f"whole bench / bare, {work.name}", ratio("ours", "bare"), "", of_bare))
        wakeups = max(1000 * r["ours"]["wakeups"] / r["ours"]["traffic_cycles"] for r in results)
        rows.append(Row(f"Python wake-ups per 1000 cycles, {work.name}", wakeups, "", 1.0, at_most=True))
        speed = median([1e-3 / per_cycle(r["ours"]) for r in results])
        rows.append(Row(f"whole bench, {work.name}", speed, "k cycles/s", None))
        speed = median([1e-3 / per_cycle(r["bare"]) for r in results])
        rows.append(Row(f"bare, {work.name}", speed, "k cycles/s", None))

    work = ONE_WAY.scaled(scale)
    say(f"{work.name}, beside the classic bench")
    record = OUT / "workload.bin"
    ours(work, record)
    results = interleaved(
        rounds,
        {
            "classic": lambda: classic(CLASSIC_WORK),
            "ours": lambda: ours(work),
            "bare": lambda: bare(work, record, "bare"),
        },
    )
    raw["classic"] = results
    costs = [{name: per_cycle(figures) for name, figures in r.items()} for r in results]
    factor = median([(c["classic"] - c["bare"]) / (c["ours"] - c["bare"]) for c in costs])
    rows.append(Row("cost per cycle, (classic - bare) / (ours - bare)", factor, "", 300))
    rows.append(Row("classic bench", median([1e-3 / c["classic"] for c in costs]), "k cycles/s", None))

    if cold:
        for pes, bound in ((1, 45), (4, 120)):
            say(f"cold build to first verdict, {pes} NICs")
            first, again = verdict_seconds(pes)
            rows.append(Row(f"cold build to first verdict, {pes} NICs", first, "s", bound, at_most=True))
            rows.append(Row(f"warm to first verdict, {pes} NICs", again, "s", 3, at_most=True))
    cpu, wall = empty_process(rounds)
    rows.append(Row("one empty test process, CPU", cpu, "s", 0.25, at_most=True))
    raw["empty process, wall"] = wall

    say("speed of the NIC")
    figures = raw["nic, 4 KiB"] = ours(LINK_LARGE)
    rows.append(Row("4 KiB WRITEs, one QP, latency 200: link beats busy", figures["link_busy"], "", 0.85))
    figures = raw["nic, 4 KiB READs"] = ours(LINK_READ)
    rows.append(Row("4 KiB READs, one QP, latency 200: link beats busy", figures["link_busy"], "", 0.70))
    figures = raw["nic, fetch_add"] = ours(CONTENDED)
    # the round trip of the memory is that of a read and that of a write, one after the other
    figure = "contended fetch_add, 3 NICs, latency 200: cycles per operation"
    rows.append(Row(figure, figures["cycles_per_atomic"], "", 420, at_most=True))
    figures = raw["nic, 64 B"] = ours(LINK_SMALL)
    figure = "64 B WRITEs, 8 QPs, latency 200: cycles per WQE"
    rows.append(Row(figure, figures["cycles_per_wqe"], "", 16, at_most=True))
    figures = raw["nic, first beat"] = ours(FIRST)
    rows.append(Row("doorbell to first link beat, latency 20", figures["doorbell_to_link"], "cycles", None))
    return rows, raw


def operators() -> tuple[list[Row], dict[str, Any]]:
    """The MoE layer over the NICs, and its plot."""
    say("MoE layer over the NICs")
    times = bench_operators.measure(OUT, say)
    bench_operators.plot(times, OUT)
    rows: list[Row] = []
    for time_ in times:
        name = f"MoE prefill layer, {time_.ranks} ranks, {time_.signalling}"
        rows.append(Row(f"{name}: cycles", time_.cycles, "cycles", None))
        rows.append(Row(f"{name}: of the link's limit", time_.of_limit, "", None))
    rows.append(Row("device's cycles per post", bench_operators.POST_CYCLES, "cycles", None))
    return rows, {"operators": [asdict(time_) for time_ in times]}


def loss() -> tuple[list[Row], dict[str, Any]]:
    """Goodput over a link that loses packets, and its plot."""
    say("WRITEs over a link that loses packets")
    points = bench_loss.measure(OUT, say)
    bench_loss.plot(points, OUT)
    rows: list[Row] = []
    for point in points:
        if point.loss:
            name = f"goodput, {point.size >> 10} KiB, {point.loss:.1%} of all packets lost"
            rows.append(Row(name, bench_loss.goodput(points, point), "", None))
    return rows, {"loss": [asdict(point) for point in points]}


def main() -> int:
    """The table; exit code 0 where everything ran and, with --strict, every figure is reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison")
    parser.add_argument("--scale", type=float, default=1.0, help="length of the workloads")
    parser.add_argument("--no-cold", action="store_true", help="leave out the cold builds")
    parser.add_argument("--no-operators", action="store_true", help="leave out the MoE layer")
    parser.add_argument("--no-loss", action="store_true", help="leave out the link that loses packets")
    parser.add_argument("--only", choices=("operators", "loss"), help="nothing but this part")
    parser.add_argument("--strict", action="store_true", help="exit code 1 where a figure is missed")
    parser.add_argument("--verdict", type=int, metavar="PES", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.verdict:
        verdict(options.verdict)
        return 0
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        rows, raw = ([], {}) if options.only else measure(options.rounds, options.scale, not options.no_cold)
        for part, leave_out in ((operators, options.no_operators), (loss, options.no_loss)):
            if part.__name__ == options.only or not (options.only or leave_out):
                more, more_raw = part()
                rows += more
                raw |= more_raw
    except build.BuildError as err:
        raise SystemExit(f"bench: {err}") from None
    width = max(len(row.figure) for row in rows)
    print(f"{'figure':<{width}}  {'measured':>10}  {'bound':>10}")
    for row in rows:
        bound = "" if row.bound is None else f"{'<=' if row.at_most else '>='} {row.bound:g}"
        mark = "" if row.reached else "  MISSED"
        print(f"{row.figure:<{width}}  {row.value:>10.3f}  {bound:>10}  {row.unit}{mark}")
    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    table = [{**asdict(row), "reached": row.reached} for row in rows]
    report = {"machine": machine, "rounds": options.rounds, "rows": table, "raw": raw}
    (OUT / "bench.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    missed, bounds = sum(not row.reached for row in rows), sum(row.bound is not None for row in rows)
    print(f"bench: {missed} of {bounds} figures missed; build/bench/bench.json")
    return 1 if options.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
