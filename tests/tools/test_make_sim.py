"""`make sim` and `camhil run --on rtl` as a user meets them: mistakes in programs and in options.

Sweep: a forgotten ``await``.
Stimulus: `tb.sim.sim` in process, on two NICs. Checks: exit codes; what is printed says what was wrong.
Timing: none. Not proved: what the golden model alone says (tests/model/test_cli.py).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pymodel.run import RunConfig
from tb.sim import build, sim


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands write goes here; models stay where they are."""
    monkeypatch.setattr(sim, "build", SimpleNamespace(**{**vars(build), "BUILD": tmp_path}))
    return tmp_path


def program(folder: Path, body: str) -> str:
    """A program file."""
    file = folder / "user.py"
    file.write_text("async def main(pe):\n" + body)
    return str(file)


def test_a_forgotten_await(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program's line, in one line, from both commands, though nothing but the await is missing."""
    file = program(folder, "    pe.put_nbi(pe.alloc(8), pe.alloc(8), 8, 1 - pe.rank)\n")
    said = "line 2 of user.py: the call of Pe.put_nbi was never awaited, so it did nothing (main of PE "
    assert sim.run_rtl(RunConfig(file, on="rtl")) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("FAILED") and lines[1].startswith(said) and lines[2].startswith("log: ")
    assert sim.main(["--test", file, "--pes", "2"]) == 1
    assert f"FAILED: {said}" in capsys.readouterr().err
