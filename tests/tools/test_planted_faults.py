"""Planted RTL faults turn runs red (tools/plant.py): the proof that the judgement judges.

Sweep: in `make test` one fault of each of three kinds (a check left out, a wrong byte enable, a missing
wrap); all of the table, in every block of the design, in the long test. Stimulus: the short program of
plant_program.py, then the tests of errors and of full CQs until one fails. Checks: the same model without a
fault passes; with a fault the program fails with its cause, and the command ends with an exit code other than
0 where a fault is missed.
Timing: none. Not proved: that faults of other kinds are found (the table is a sample).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import plant

#: what `make test` plants; each is found by the short program
SAMPLE = ("icrc-ignored", "strobe-end-off-by-one", "fetch-ring-wrap-missing")
SEED = 1


@pytest.fixture(scope="module")
def exe() -> Path:
    """The model with all faults."""
    return plant.model()


def test_table_fits_the_design(tmp_path: Path) -> None:
    """Every place is found exactly once, in every block; a place that is not there is an error."""
    assert len({fault.name for fault in plant.FAULTS}) == len(plant.FAULTS) >= 20
    plant.mutate(out=tmp_path)
    blocks = {
        "atomic", "common", "completion", "context", "csr", "doorbell", "fetch", "memory", "receive",
        "requester", "responder", "wire",
    }  # fmt: skip
    assert {fault.block for fault in plant.FAULTS} == blocks
    stale = plant.Fault("stale", "wire/tx_header.sv", "assign pad = «3»;", "4")
    with pytest.raises(plant.PlantError, match="stale: 0 places"):
        plant.mutate([stale], out=tmp_path)


def test_planted_faults_are_caught(exe: Path) -> None:
    """Green without a fault, red with each of three, for a reason that names the trouble."""
    control = plant.attempt(exe, 0, SEED, plant.PROGRAMS[:1])
    assert not control.program, control.cause
    numbers = {fault.name: number for number, fault in enumerate(plant.FAULTS, 1)}
    for name in SAMPLE:
        verdict = plant.attempt(exe, numbers[name], SEED, plant.PROGRAMS[:1])
        assert verdict.program == "program", f"{name} was not noticed"
        assert verdict.cause


def test_a_missed_fault_is_reported(
    exe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command's exit code: 0 only where all that was planted was caught."""
    monkeypatch.setattr(plant, "model", lambda: exe)
    monkeypatch.setattr(plant, "PROGRAMS", plant.PROGRAMS[:1])
    assert plant.main(["--seed", str(SEED), SAMPLE[0]]) == 0
    assert "1 of 1 planted faults caught" in capsys.readouterr().out
    # no program at all: nothing can be caught
    monkeypatch.setattr(plant, "PROGRAMS", [])
    assert plant.main([SAMPLE[0]]) == 1
    assert "MISSED" in capsys.readouterr().out


@pytest.mark.long
def test_every_planted_fault_is_caught(exe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole table."""
    assert plant.main(["--all", "--seed", str(SEED)]) == 0, capsys.readouterr().out
