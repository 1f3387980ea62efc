"""The protocol assertions: each is seen to fail on its violation, and all are silent on legal traffic.

Sweep: every assertion of the three checkers. Stimulus: protocol_scenarios.py, checkers as tops. Checks: the
run fails with
that assertion's message, or passes where the traffic is legal. Timing: none. Does not prove: completeness
of the rules.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tb.sim import build, run
from tests.conformance.protocol_scenarios import GENERAL, RESET, SCENARIOS

CASES = [(top, name) for top, scenarios in SCENARIOS.items() for name in (*scenarios, RESET)]


@pytest.mark.parametrize(("top", "name"), CASES)
def test_assertion(top: str, name: str, tmp_path: Path) -> None:
    """One scenario, one process."""
    what = {"top": top, "sources": [f"tb/sv/{top}.sv", "tb/sv/stable_checker.sv"], "args": ["-Wno-UNUSED"]}
    if name in GENERAL:
        what["params"] = {"NicRules": 0}
    bench = build.Bench.from_dict(what)
    outcome = run.run(
        build.build(bench),
        "tests.conformance.protocol_scenarios",
        top,
        out=tmp_path,
        seed=1,
        test="traffic",
        timeout=60,
        extra_env={"CAMHIL_SCENARIO": name},
    )
    if name == "legal":
        assert outcome.error is None, outcome.error
        return
    assert outcome.error is not None and outcome.returncode != 0, f"no assertion saw '{name}'"
    text = outcome.log.read_text()
    assert "Assertion failed" in text and name in text, outcome.error
