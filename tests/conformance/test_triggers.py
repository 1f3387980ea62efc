"""Our simulation main against cocotb's own: the same programs, the same event logs.

Sweep: every trigger kind, composed triggers, random programs from several seeds. Stimulus:
trigger_scenarios.py on
trigger_bench.sv. Checks: logs with the value of every signal at every wake-up are equal line by line.
Timing: exact, in ps.
Does not prove: equality for models with delays in SystemVerilog (tests run models without).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tb.sim import build, run

BENCH_OWN = build.Bench.from_dict({"top": "trigger_bench", "sources": ["tests/conformance/trigger_bench.sv"]})
BENCH_COCOTB = dataclasses.replace(BENCH_OWN, clock=None, main="cocotb")
MODULE = "tests.conformance.trigger_scenarios"
SCENARIOS = ["edges", "timers", "phases", "immediate", "composed"]


def log_of(bench: build.Bench, scenario: str, seed: int, out: Path) -> list[str]:
    """Runs one scenario under one main and returns its log."""
    out.mkdir()
    own = bench.main == "own"
    env = {"CAMHIL_EVENT_LOG": str(out / "events"), "CAMHIL_CLOCK": "cpp" if own else "python"}
    outcome = run.run(
        build.build(bench),
        MODULE,
        bench.top,
        out=out,
        seed=seed,
        test=scenario,
        extra_env=env,
        own_main=own,
        timeout=60,
    )
    assert outcome.error is None, f"{outcome.error} [{outcome.log}]"
    return (out / "events").read_text().splitlines()


@pytest.mark.parametrize(
    ("scenario", "seed"), [(s, 1) for s in SCENARIOS] + [("random_programs", s) for s in range(1, 9)]
)
def test_logs_equal(scenario: str, seed: int, tmp_path: Path) -> None:
    """The first difference is shown with the lines before it."""
    own = log_of(BENCH_OWN, scenario, seed, tmp_path / "own")
    theirs = log_of(BENCH_COCOTB, scenario, seed, tmp_path / "cocotb")
    assert len(theirs) > 50
    for i, (a, b) in enumerate(zip(own, theirs, strict=False)):
        if a != b:
            before = "\n".join(theirs[max(0, i - 8) : i])
            pytest.fail(f"line {i}\n{before}\n  ours   {a}\n  cocotb {b}")
    assert len(own) == len(theirs)
