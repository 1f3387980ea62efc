"""Random traffic under random faults until the time is up: ``make soak MINUTES=10 SEED=1``.

Rounds (tests/nic/soak_round.py) run side by side in processes of their own; the seed of each comes from the
run's seed and its number. A failure ends the run, with the rounds beside it, its reason and the command that
repeats that round. At the end a table adds up what was survived; the run fails too where fewer faults came
than its minutes promise (PER_MINUTE), or a round's memory grew after its first half. Each round is a process
of its own, so nothing can grow from round to round. Exit codes: 0 good, 1 a failure, 2 bad input, 130
interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pymodel.cli_input import run_seed  # noqa: E402  (needs the path above)
from tb.sim import build, run  # noqa: E402
from tb.sim.sim import OneLineParser  # noqa: E402

OUT = build.BUILD / "soak"
MODULE = "tests.nic.soak_round"
PES = 2
#: wall-clock seconds of one round at the most, on a machine that does much else
ROUND_SECONDS = 900.0
#: what a round's memory may grow by between its half and its end, in KiB: rings of records and logs breathe
GROWTH_KIB = 48 << 10
STATUS_SECONDS = 5.0
#: faults that a minute brings at least, of all kinds together and of each: a third of what two rounds side by
#: side do on a machine with two slow cores
PER_MINUTE = (1000, 10)


def round_seed(seed: int, number: int) -> int:
    """Seed of round ``number``."""
    return zlib.crc32(f"soak {seed} {number}".encode())


def one_round(
    exe: Path, seed: int, stop: threading.Event | None = None
) -> tuple[int, str | None, dict[str, Any]]:
    """Run a round; gives its seed, why it failed or None, and its report. Only failures leave a folder.

    A round that ``stop`` ended is none.
    """
    out = OUT / f"round-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    outcome = run.run(exe, MODULE, "tb_top", out=out, seed=seed, pes=PES, timeout=ROUND_SECONDS, stop=stop)
    if stop is not None and stop.is_set():
        shutil.rmtree(out, ignore_errors=True)
        return seed, None, {}
    if outcome.error is not None:
        return seed, outcome.error, {}
    report: dict[str, Any] = json.loads((out / "round.json").read_text())
    first, last = report["memory"]
    if last - first > GROWTH_KIB:
        return seed, f"memory grew from {first >> 10} to {last >> 10} MiB in the second half", report
    shutil.rmtree(out, ignore_errors=True)
    return seed, None, report


class Totals:
    """What all rounds did so far."""

    def __init__(self) -> None:
        self.rounds, self.sums, self.faults = 0, Counter[str](), Counter[str]()
        self.start = time.monotonic()

    def add(self, report: dict[str, Any]) -> None:
        """One more round."""
        self.rounds += 1
        for name in ("cycles", "packets", "bytes"):
            self.sums[name] += report[name]
        self.sums.update(report["counters"])
        self.faults.update(report["faults"])

    def line(self) -> str:
        """Progress in one line."""
        took = max(time.monotonic() - self.start, 0.001)
        return (
            f"soak: {took:,.0f} s, {self.rounds} rounds, {self.sums['cycles'] / took / 1000:,.0f} k cycles/s,"
            f" {self.sums['wqe']:,} WQEs, {self.sums['packets']:,} packets,"
            f" {self.faults.total():,} faults survived"
        )

    def table(self) -> str:
        """Everything, one a line."""
        rows: list[tuple[str, int]] = [
            ("rounds", self.rounds),
            *self.sums.items(),
            ("faults", self.faults.total()),
        ]
        rows += [(f"  {kind}", number) for kind, number in sorted(self.faults.items())]
        return "\n".join(f"  {name:<16} {number:>16,}" for name, number in rows)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def too_few(faults: Counter[str], minutes: float) -> str:
    """Which faults came too seldom for a run of so many minutes, in one line; '' where all are enough."""
    floors = [max(1, math.ceil(minutes * number)) for number in PER_MINUTE]
    few = [f"{times} {kind} of {floors[1]}" for kind, times in sorted(faults.items()) if times < floors[1]]
    if faults.total() < floors[0]:
        few.append(f"{faults.total()} faults of {floors[0]}")
    return ", ".join(few)


def _nic() -> str:
    """What the command needs that repeats a round of somebody else's NIC."""
    rtl = os.environ.get("CAMHIL_RTL")
    return f" RTL={shlex.quote(rtl)}" if rtl else ""


def _fail(totals: Totals, seed: int, reason: str) -> int:
    print(
        f"{totals.line()}\nFAILED: {reason}\nlog: {OUT / f'round-{seed}' / 'sim.log'}, faults.txt beside it\n"
        f"again: make soak ROUND={seed}{_nic()}",
        file=sys.stderr,
    )
    return 1


def soak(exe: Path, seconds: float, seed: int, jobs: int) -> int:
    """Rounds until the time is up; gives the exit code."""
    totals, number, shown = Totals(), 0, time.monotonic()
    deadline = time.monotonic() + seconds
    stop = threading.Event()
    with ThreadPoolExecutor(jobs) as pool:
        running: set[Future[tuple[int, str | None, dict[str, Any]]]] = set()
        try:
            while running or time.monotonic() < deadline:
                while len(running) < jobs and time.monotonic() < deadline:
                    running.add(pool.submit(one_round, exe, round_seed(seed, number), stop))
                    number += 1
                done, running = wait(running, STATUS_SECONDS, FIRST_COMPLETED)
                for future in done:
                    which, reason, report = future.result()
                    if reason is not None:
                        return _fail(totals, which, reason)
                    totals.add(report)
                if time.monotonic() - shown >= STATUS_SECONDS:
                    shown = time.monotonic()
                    print(totals.line(), flush=True)
        finally:
            # after a failure or an interrupt nobody wants the rounds beside it any more
            stop.set()
    print(totals.line())
    print(totals.table())
    if few := too_few(totals.faults, seconds / 60):
        again = f"make soak MINUTES={seconds / 60:g} SEED={seed} JOBS={jobs}{_nic()}"
        print(f"FAILED: only {few} in {totals.rounds} rounds\nagain: {again}", file=sys.stderr)
        return 1
    print("good: every packet, byte and CQE as the golden model says, nothing left over")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command behind ``make soak``."""
    parser = OneLineParser(
        prog="soak", description="Random traffic under random faults until the time is up."
    )
    parser.add_argument("--minutes", type=_positive, default=10.0)
    parser.add_argument("--seed", type=run_seed, default=1)
    parser.add_argument("--jobs", type=_count, default=2, help="rounds side by side")
    parser.add_argument("--round", type=run_seed, help="one round alone, by its own seed")
    args = parser.parse_args(argv)
    try:
        exe = build.build(build.nic_bench(PES), "fast")
    except build.BuildError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    try:
        if args.round is None:
            return soak(exe, 60 * args.minutes, args.seed, args.jobs)
        totals = Totals()
        seed, reason, report = one_round(exe, args.round)
        if reason is not None:
            return _fail(totals, seed, reason)
        totals.add(report)
        print(f"{totals.table()}\ngood")
        return 0
    except KeyboardInterrupt:
        print("soak: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
