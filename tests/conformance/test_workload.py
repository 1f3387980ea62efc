"""A recorded run again in the bare C++ loop: the same work in the same cycles; and what our main costs
beside it.

Sweep: 1 and 2 PEs, two seeds. Stimulus: workload_scenario.py on the stub NIC. Checks: cycles, number and
digest of all
records. Timing: exact. Does not prove: speed of the real NIC (`make bench`).
"""

from __future__ import annotations

import json
import statistics
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


def test_main_costs_little(tmp_path: Path) -> None:
    """An idle model under main.cpp runs at 0.9 of the bare loop or better: median of five, interleaved, CPU
    time.
    """
    ratios = []
    for i in range(5):
        out = tmp_path / str(i)
        out.mkdir()
        totals, exe = recorded(out, "idle", 1, 1, "bench", CAMHIL_CYCLES="2000000")
        bare = run_bare(exe, out / "workload.bin")
        ratios.append((bare["cpu_s"] / bare["cycles"]) / (totals["cpu_s"] / totals["cycles"]))
    print(
        "ratios", [f"{r:.2f}" for r in ratios], f"bare {bare['cpu_s'] / bare['cycles'] * 1e9:.0f} ns a cycle"
    )
    assert statistics.median(ratios) >= 0.9
