"""A recorded run again in the bare C++ loop: the same work in the same cycles; and an idle one.

Sweep: 1 and 2 PEs, two seeds. Stimulus: workload_scenario.py on the stub NIC. Checks: cycles, number and
digest of all records, wake-ups. Timing: exact. Does not prove: speed (`make bench`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tb.sim import build, run
from tb.sim.workload import run_bare

MODULE = "tests.conformance.workload_scenario"
STUB = ["tests/conformance/stub/rnic.sv"]


def recorded(
    out: Path, test: str, pes: int, seed: int, variant: str = "fast", **env: str
) -> tuple[dict[str, float], Path]:
    """Runs a scenario; its totals and the executable."""
    exe = build.build(build.nic_bench(pes, STUB), variant)
    outcome = run.run(
        exe,
        MODULE,
        "tb_top",
        out=out,
        seed=seed,
        test=test,
        pes=pes,
        extra_env={"CAMHIL_OUT": str(out), **env},
        timeout=120,
    )
    assert outcome.error is None, f"{outcome.error} [{outcome.log}]"
    return json.loads((out / "totals.json").read_text()), exe


@pytest.mark.parametrize("pes", [1, 2])
@pytest.mark.parametrize("seed", [7, 8])
def test_bare_run_does_the_same_work(pes: int, seed: int, tmp_path: Path) -> None:
    """Cycles, records and digest are equal."""
    totals, exe = recorded(tmp_path, "recorded", pes, seed)
    bare = run_bare(exe, tmp_path / "workload.bin", pes=pes, seed=seed, digest=True)
    assert totals["records"] > 1000
    assert {k: bare[k] for k in ("records", "digest")} == {k: totals[k] for k in ("records", "digest")}
    # the bare loop ends at the falling edge behind the last operation
    assert bare["cycles"] == totals["cycles"]


def test_digest_tells_runs_apart(tmp_path: Path) -> None:
    """Another seed of the testbench gives another digest: the equality above is not that of constants."""
    _, exe = recorded(tmp_path, "recorded", 1, 7)
    one, two = (run_bare(exe, tmp_path / "workload.bin", seed=s, digest=True) for s in (7, 8))
    assert one["digest"] != two["digest"]


def test_idle_wakes_nobody(tmp_path: Path) -> None:
    """200,000 cycles without traffic: Python runs once, at the deadline. (What main costs: `make bench`.)"""
    totals, _ = recorded(tmp_path, "idle", 1, 1, CAMHIL_CYCLES="200000")
    assert totals["cycles"] >= 200_000 and totals["wakeups"] == 1
