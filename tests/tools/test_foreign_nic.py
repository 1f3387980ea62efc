"""Another NIC behind the same ports: `make sim RTL=folder` (docs/bring-your-own-nic.md).

Sweep: a folder with a NIC that does nothing with WQEs, the design's own folder, folders without a NIC.
Stimulus: `make sim` with the environment that `make RTL=` sets. Checks: the foreign design is what runs, the
failure says what is missing and repeats the folder; one line and exit code 2 where there is no NIC.
Timing: none. Not proved: a complete foreign NIC.
"""

from __future__ import annotations

import pytest

from tb.sim import build, sim

STUB = build.ROOT / "tests" / "conformance" / "stub"


def test_foreign_nic_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A NIC that never fetches: red, for that reason, with the command that repeats it."""
    monkeypatch.setenv("CAMHIL_RTL", str(STUB))
    assert sim.main(["--test", "hello_put", "--pes", "2"]) == 1
    said = capsys.readouterr().err
    assert "wqe 0 WRITE 13 B: announced, not fetched" in said and f"RTL={STUB}" in said


def test_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The design's folder by name is the design: the same model."""
    own = build.nic_bench(2)
    monkeypatch.setenv("CAMHIL_RTL", str(build.ROOT / "rtl"))
    assert build.nic_bench(2) == own
    monkeypatch.setenv("CAMHIL_RTL", "")
    assert build.nic_bench(2) == own


@pytest.mark.parametrize("folder", ["docs", "no/such/folder"])
def test_no_nic(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    monkeypatch.setenv("CAMHIL_RTL", folder)
    assert sim.main(["--test", "hello_put", "--pes", "2"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "no rnic.sv in it" in said[0]
