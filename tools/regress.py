"""Run every test, the long ones too, over several seeds; exit code 1 on a failure or where no test ran.

Usage: regress.py [--seeds N] [--first-seed N] [--jobs N] [--rerun failed] [--select EXPRESSION]

Results: build/regress/seed-N/{junit.xml, pytest.log, logs/} (of a rerun: build/regress/rerun/seed-N) and
build/regress/failures.json. The run ends with one line a failure: its cause (numbers replaced by #, so that
like causes read alike and stand together), its seed, and the command that reproduces it alone.
`--rerun failed` repeats exactly what failed in the last run, each with its seed.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "regress"
STATUS_SECONDS = 10.0


@dataclass
class Failure:
    """One test that failed with one seed; `test` is empty where pytest itself failed."""

    seed: int
    test: str
    cause: str


@dataclass
class Progress:
    """What is known of one seed's run while it runs."""

    total: int = 0
    done: int = 0
    skipped: int = 0
    failures: list[Failure] = field(default_factory=list)


def normalise(cause: str) -> str:
    """First line of a failure without what changes from run to run, so that like causes compare equal."""
    text = cause.strip().splitlines()[0] if cause.strip() else "no message"
    text = re.sub(r"0x[0-9a-fA-F_]+", "0x#", text)
    text = re.sub(r"\b\d[\d_.,]*\b", "#", text)
    text = " ".join(text.split())
    return text if len(text) <= 140 else text[:137] + "..."


def seed_options(seed: int) -> list[str]:
    """Everything of pytest that the seed decides."""
    return [f"--run-seed={seed}", f"--hypothesis-seed={seed}"]


def reproduce(failure: Failure) -> str:
    """A command for the repository's root that runs one failing test alone."""
    test = [shlex.quote(failure.test)] if failure.test else []
    # the NIC of make RTL=folder
    rtl = os.environ.get("CAMHIL_RTL")
    nic = [f"CAMHIL_RTL={shlex.quote(rtl)}"] if rtl else []
    return " ".join([*nic, ".venv/bin/python -m pytest", *test, *seed_options(failure.seed)])


def read_events(path: Path, offset: int, seed: int, progress: Progress) -> int:
    """Add the events that were written since `offset`; returns the new offset."""
    if not path.exists():
        return offset
    with path.open("rb") as stream:
        stream.seek(offset)
        data = stream.read()
    end = data.rfind(b"\n") + 1
    for line in data[:end].splitlines():
        event: dict[str, Any] = json.loads(line)
        if "total" in event:
            progress.total = event["total"]
            continue
        progress.done += event["when"] != "teardown"
        progress.skipped += event["outcome"] == "skipped"
        if event["outcome"] == "failed":
            progress.failures.append(Failure(seed, event["id"], normalise(event["cause"])))
    return offset + end


def keep_logs(failures: Sequence[Failure], folder: Path) -> None:
    """Copy what the simulations of failed tests left (tests/conftest.py), which the next seed overwrites."""
    for failure in failures:
        name = re.sub(r"[^A-Za-z0-9._=\[\],-]+", "_", failure.test)
        source = ROOT / "build" / "results" / name
        if failure.test and source.is_dir():
            shutil.copytree(source, folder / "logs" / name, dirs_exist_ok=True)


def run_seed(seed: int, label: str, tests: Sequence[str], options: argparse.Namespace) -> Progress:
    """One pytest run; shows progress and new failures while it goes."""
    folder = OUT / "rerun" / f"seed-{seed}" if options.rerun else OUT / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    events = folder / "events.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "tools.regress_events", *seed_options(seed)]
    command += ["-n", str(options.jobs), f"--junitxml={folder / 'junit.xml'}"]
    if options.select:
        command += ["-k", options.select]
    command += tests
    env = {**os.environ, "CAMHIL_REGRESS_EVENTS": str(events)}
    progress = Progress()
    offset = shown = 0
    started = time.time()
    next_status = started
    interactive = sys.stdout.isatty()
    with (folder / "pytest.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            running = True
            while running:
                try:
                    process.wait(0.5)
                    running = False
                except subprocess.TimeoutExpired:
                    pass
                offset = read_events(events, offset, seed, progress)
                clear = "\r\033[K" if interactive else ""
                for failure in progress.failures[shown:]:
                    print(f"{clear}  failed: {failure.test}", flush=True)
                shown = len(progress.failures)
                now = time.time()
                if interactive or now >= next_status or not running:
                    next_status = now + STATUS_SECONDS
                    text = f"{label}: {progress.done}/{progress.total or '?'} tests, {shown} failed, "
                    text += f"{now - started:.0f} s"
                    print(clear + text, end="" if interactive and running else "\n", flush=True)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    # 0 and 1 are pytest's own verdicts on the tests; anything else means that the run itself broke.
    code = process.returncode
    log_name = os.path.relpath(folder / "pytest.log", ROOT)
    if code == 5 or (code == 0 and progress.done == progress.skipped):
        progress.failures.append(Failure(seed, "", f"no test ran, see {log_name}"))
    elif code not in (0, 1) or (code == 1 and not progress.failures):
        progress.failures.append(Failure(seed, "", f"pytest exited with code {code}, see {log_name}"))
    keep_logs(progress.failures, folder)
    return progress


def main() -> int:
    """All seeds, then the list of failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=1, help="first seed; the others follow it")
    parser.add_argument("--jobs", type=int, default=2, help="tests at the same time")
    parser.add_argument("--rerun", choices=["", "failed"], default="", help="repeat the last run's failures")
    parser.add_argument("--select", default="", help="pytest -k expression")
    options = parser.parse_args()
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs are at least 1")
    record = OUT / "failures.json"
    plan: dict[int, list[str]] = {}
    if options.rerun:
        if not record.exists():
            print("regress: nothing to repeat: there was no run before")
            return 1
        for entry in json.loads(record.read_text(encoding="utf-8")):
            tests = plan.setdefault(entry["seed"], [])
            tests += [entry["test"]] if entry["test"] else []
        if not plan:
            print("regress: nothing to repeat: the last run had no failure")
            return 0
    else:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            plan[seed] = []
    OUT.mkdir(parents=True, exist_ok=True)
    failures: list[Failure] = []
    ran = skipped = 0
    start = time.monotonic()
    for number, (seed, tests) in enumerate(plan.items(), 1):
        progress = run_seed(seed, f"regress: seed {seed} ({number}/{len(plan)})", tests, options)
        failures += progress.failures
        ran += progress.done - progress.skipped
        skipped += progress.skipped
    record.write_text(json.dumps([asdict(f) for f in failures], indent=1), encoding="utf-8")
    failures.sort(key=lambda f: (f.cause, f.test, f.seed))
    print(f"regress: {len(plan)} seeds, {ran} tests ran, {skipped} skipped, {time.monotonic() - start:.0f} s")
    for failure in failures:
        print(f"FAILED {failure.cause} | seed {failure.seed} | {reproduce(failure)}")
    causes = len({failure.cause for failure in failures})
    print(f"regress: {len(failures)} failures, {causes} causes" if failures else "regress: all passed")
    return 1 if failures or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
