"""`make sim` and `camhil run --on rtl` as a user meets them: mistakes in programs and in options.

Sweep: a forgotten ``await``; prints; variables of make that say nothing; a run in which nothing is sent;
rules of the link.
Stimulus: `tb.sim.sim` in process, on two NICs or one, and make itself where nothing runs.
Checks: exit codes; what is printed says what was wrong.
Timing: none. Not proved: what the golden model alone says (tests/model/test_cli.py).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from pymodel import cli
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


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (["SEED=-1"], "argument --seed: must be 0 or more"),
        (["SEED=99999999999999999999"], "argument --seed: must be less than 2^63"),
        (["SEED=one"], "argument --seed: invalid int value: 'one'"),
        (["WAVES=yes"], "argument --waves: 'yes' is neither 0 nor 1"),
        (["PCAP=yes"], "argument --pcap: 'yes' is neither 0 nor 1"),
        (["TIMELINE=2"], "argument --timeline: '2' is neither 0 nor 1"),
        (["WINDOW=0:100"], "argument --window: says what waves or capture cover, so give WAVES=1 or PCAP=1"),
        (["WINDOW=0:100", "WAVES=0", "PCAP="], "argument --window: says what waves"),
        (["WINDOW=100:0", "PCAP=1"], "argument --window: '100:0' is not FROM:TO in ns"),
        (["TEST=no_such"], "no program 'no_such'"),
        (["PES=17", "TEST=mixed"], "17 PEs: a fabric has 1 to 16"),
    ],
)
def test_bad_variables(variables: list[str], message: str) -> None:
    """What make hands over: one line, exit code 2, nothing runs."""
    # a make that runs these tests hands nothing on
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "-o", ".venv/.setup-ok", "sim", *variables],
        cwd=build.ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    first, make = done.stderr.splitlines()
    assert done.stdout == "" and first.startswith(f"make sim: {message}") and make.endswith("Error 2")


def test_switches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 and nothing switch off, 1 switches on."""
    base = ["--test", "hello_put", "--pes", "2"]
    assert sim.main([*base, "--waves", "0", "--pcap", "", "--timeline", "0"]) == 0
    assert "capture" not in capsys.readouterr().out
    assert sim.main([*base, "--waves", "", "--pcap", "1", "--timeline", "1"]) == 0
    out = capsys.readouterr().out
    assert "capture: " in out and "timeline: " in out


def test_nothing_sent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A verdict on nothing says so: one PE, or programs that post nothing."""
    assert sim.main(["--test", program(folder, "    pass\n"), "--pes", "2"]) == 0
    assert capsys.readouterr().out.endswith("good, but nothing was sent\n")
    hello = str(sim.PROGRAMS / "hello_put.py")
    assert sim.run_rtl(RunConfig(hello, pes=1, on="rtl")) == 0
    assert capsys.readouterr().out.endswith(": good, but nothing was sent: 1 PE has no peer\n")
    assert sim.run_rtl(RunConfig(hello, pes=2, on="rtl")) == 0
    assert capsys.readouterr().out.endswith(" cycles: good\n")


def test_what_a_program_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows, once, from both commands, also where the run fails or the last line has no end."""
    body = (
        "    print('PE', pe.rank, 'é')\n    await pe.barrier_all()\n"
        "    print('last words', end='')\n    assert pe.rank == 0, 'planted'\n"
    )
    file = program(folder, body)
    assert sim.run_rtl(RunConfig(file, on="rtl")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[:2]) == ["PE 0 é", "PE 1 é"] and lines[2].startswith("last words") and len(lines) == 3
    assert sim.main(["--test", file, "--pes", "2"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "user on 2 NICs, seed 1" and sorted(out[1:3]) == ["PE 0 é", "PE 1 é"]
    # nothing is left over for the next run
    assert sim.main(["--test", "hello_put", "--pes", "2"]) == 0
    assert "PE 0" not in capsys.readouterr().out


LOSSY = "packet 2: drop; packet 4: duplicate"


def test_make_sim_with_faults(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`make sim FAULTS= FAULT_FILE=`: rules act, the table and faults.txt have them, the run is good."""
    rules = folder / "some.rules"
    rules.write_text("# one\npacket 5: reorder 1\n")
    base = ["--test", "gather_get", "--pes", "2", "--seed", "3"]
    assert sim.main([*base, "--faults", LOSSY, "--fault-file", str(rules)]) == 0
    out = capsys.readouterr().out
    kinds = [int(number) for number in re.findall(r"^  faults (?:drop|duplicate|reorder) +(\d+)$", out, re.M)]
    assert len(kinds) == 3 and all(kinds) and re.search(r"^  retries +[1-9]", out, re.M)
    assert out.endswith("good: every packet, byte and CQE as the golden model says\n")
    log = (folder / "sim" / "gather_get" / "faults.txt").read_text()
    assert f"{rules}:2" in log and log.splitlines()[-1].startswith("faults: ")
    # and without rules there are none
    assert sim.main(base) == 0
    assert "faults" not in capsys.readouterr().out


def test_make_sim_with_faults_that_nobody_survives(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error CQE is the first thing said, and the command repeats the rules."""
    assert (
        sim.main(["--test", "ring_put", "--pes", "2", "--faults", "direction 0->1 opcode write: drop"]) == 1
    )
    err = capsys.readouterr().err.splitlines()
    first = next(line for line in err if line.startswith("FAILED: "))
    assert re.match(
        r"FAILED: PE 0 to PE 1, QP 0 \(QPN \d+\): WQE 0 completed with error 0xa2 \(RTO_REQ\): no ", first
    )
    again = next(line for line in err if line.startswith("again: "))
    assert "make sim TEST=ring_put PES=2 SEED=1 FAULTS='direction 0->1 opcode write: drop'" in again


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--faults", "every 1/20: dorp"], "make sim: FAULTS:1:13: "),
        (["--fault-file", "/no/such/file"], "make sim: cannot read '/no/such/file': No such file"),
    ],
)
def test_bad_rules(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    assert sim.main(["--test", "hello_put", "--pes", "2", *options]) == 2
    seen = capsys.readouterr()
    assert seen.out == "" and seen.err.startswith(message) and seen.err.count("\n") == 1


def test_camhil_run_with_faults(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`camhil run --on rtl --fault --fault-file`: the line of the run says what was done to the link."""
    rules = folder / "some.rules"
    rules.write_text("packet 5: reorder 1\n")
    words = ["run", str(sim.PROGRAMS / "gather_get.py"), "--on", "rtl", "--seed", "3"]
    faults = [word for rule in LOSSY.split("; ") for word in ("--fault", rule)]
    assert cli.main([*words, *faults, "--fault-file", str(rules)], rtl=sim.run_rtl) == 0
    out = capsys.readouterr().out
    said = r" faults: 1 drop, 1 duplicate, 1 reorder \([1-9]\d* retries\), \d+ cycles: good\n$"
    assert re.search(said, out), out
    assert cli.main(words, rtl=sim.run_rtl) == 0
    assert "faults" not in capsys.readouterr().out
