"""The soak tool (tools/soak.py): bad input, failing rounds, faults that came too seldom, growing memory."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tb.sim import build, run
from tools import soak

KINDS = ("corrupt", "delay", "drop", "duplicate", "reorder", "truncate")


def report(seed: int, **changes: Any) -> dict[str, Any]:
    """A good round's."""
    good = {
        "seed": seed, "cycles": 1000, "packets": 100, "bytes": 6400, "faults": dict.fromkeys(KINDS, 2),
        "counters": {"retry": 3, "wqe": 50}, "memory": [100 << 10, 110 << 10],
    }  # fmt: skip
    return {**good, **changes}


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Rounds without a simulator: what one gives stands in the dictionary."""
    told: dict[str, Any] = {"error": None, "report": {}, "seeds": []}

    def fake(exe: Path, module: str, top: str, *, out: Path, seed: int, **rest: Any) -> run.Outcome:
        import json

        told["seeds"].append(seed)
        out.mkdir(parents=True)
        (out / "round.json").write_text(json.dumps(report(seed, **told["report"])))
        return run.Outcome(told["error"], 1, False, 1.0, 0.1, 0, out / "sim.log")

    monkeypatch.setattr(soak, "OUT", tmp_path)
    monkeypatch.setattr(run, "run", fake)
    monkeypatch.setattr(build, "build", lambda bench, kind: tmp_path / "sim")
    return told


@pytest.mark.parametrize(
    "args", [["--minutes", "0"], ["--minutes", "soon"], ["--seed", "-1"], ["--jobs", "0"], ["--round", "x"]]
)
def test_bad_input(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    with pytest.raises(SystemExit) as ended:
        soak.main(args)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_sums(rounds: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Rounds differ, are added up, and leave nothing behind; the same seed gives the same rounds."""
    assert soak.main(["--minutes", "0.005", "--seed", "3"]) == 0
    out, count = capsys.readouterr().out, len(rounds["seeds"])
    assert count == len(set(rounds["seeds"])) > 2
    assert f"{1000 * count:,}" in out and f"{2 * len(KINDS) * count:,} faults survived" in out
    assert out.rstrip().endswith("nothing left over") and not list(tmp_path.iterdir())
    assert sorted(rounds["seeds"])[0] in {soak.round_seed(3, n) for n in range(count)}


@pytest.mark.parametrize("alone", [False, True])
def test_failing_round(rounds: dict[str, Any], capsys: pytest.CaptureFixture[str], alone: bool) -> None:
    """The reason, and the command that repeats that round alone."""
    rounds["error"] = "memory.page: PE 1 wrong byte"
    seed = soak.round_seed(1, 0)
    assert soak.main(["--round", str(seed)] if alone else ["--minutes", "1", "--jobs", "1"]) == 1
    err = capsys.readouterr().err
    assert "memory.page: PE 1 wrong byte" in err and f"again: make soak ROUND={seed}\n" in err
    assert len(rounds["seeds"]) == 1


def test_failing_round_of_another_nic(
    rounds: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that repeats it names the NIC's folder."""
    monkeypatch.setenv("CAMHIL_RTL", "/some/where else")
    monkeypatch.setattr(build, "nic_bench", lambda pes: None)
    rounds["error"] = "planted"
    assert soak.main(["--minutes", "1", "--jobs", "1"]) == 1
    command = f"again: make soak ROUND={soak.round_seed(1, 0)} RTL='/some/where else'\n"
    assert command in capsys.readouterr().err


def test_missing_kind(rounds: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A kind of fault that never came fails the run, with the command that repeats it."""
    rounds["report"] = {"faults": {**dict.fromkeys(KINDS, 1000), "delay": 0}}
    assert soak.main(["--minutes", "0.001"]) == 1
    err = capsys.readouterr().err
    assert "FAILED: only 0 delay of 1 in" in err
    assert "\nagain: make soak MINUTES=0.001 SEED=1 JOBS=2\n" in err


@pytest.mark.parametrize(
    ("minutes", "each", "rest", "said"),
    [
        (10, 100, 2000, ""),
        (10, 99, 2000, "99 drop of 100"),
        (10, 1900, 1620, ""),
        (10, 1899, 1620, "9999 faults of 10000"),
        (1, 10, 198, ""),
        (1, 9, 100, "9 drop of 10, 509 faults of 1000"),
        (0.01, 1, 2, ""),
        (0.01, 0, 2, "0 drop of 1"),
    ],
)
def test_floor(minutes: float, each: int, rest: int, said: str) -> None:
    """100 of each kind and 10,000 in all in ten minutes; in proportion for other times."""
    assert soak.too_few(Counter({**dict.fromkeys(KINDS, rest), "drop": each}), minutes) == said


@pytest.mark.parametrize("interrupt", [False, True])
def test_a_failure_stops_the_rounds_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], interrupt: bool
) -> None:
    """Real processes: one fails at once, the other would take minutes; only the failure leaves a folder."""
    first = soak.round_seed(1, 0)
    sleeper = tmp_path / "sim"
    sleeper.write_text(f"#!/bin/sh\n[ $2 = {first} ] && exit 3\nexec sleep 300\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(soak, "OUT", tmp_path / "out")
    monkeypatch.setattr(build, "build", lambda bench, kind: sleeper)
    if interrupt:
        waited: list[int] = []

        def wait(*args: Any) -> Any:
            waited.append(1)
            raise KeyboardInterrupt

        monkeypatch.setattr(soak, "wait", wait)
    start = time.monotonic()
    assert soak.main(["--minutes", "5", "--jobs", "2"]) == (130 if interrupt else 1)
    assert time.monotonic() - start < 60
    if not interrupt:
        assert f"again: make soak ROUND={first}\n" in capsys.readouterr().err
        assert [path.name for path in (tmp_path / "out").iterdir()] == [f"round-{first}"]


def test_growing_memory(rounds: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A round whose second half takes more memory fails."""
    rounds["report"] = {"memory": [100 << 10, 200 << 10]}
    assert soak.main(["--minutes", "1"]) == 1
    assert "memory grew from 100 to 200 MiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    "seed",
    [
        soak.round_seed(1, 0),
        # a READ response held back, passed by ACKs, then a timer: the judge once called the pass wrong
        232425156,
    ],
)
def test_a_round(seed: int) -> None:
    """Real rounds: faults of every kind, all survived."""
    exe = build.build(build.nic_bench(soak.PES), "fast")
    _, reason, told = soak.one_round(exe, seed)
    assert reason is None, reason
    assert set(told["faults"]) == set(KINDS) and all(told["faults"].values())
    memory = told["counters"]
    assert memory["stall"] and memory["slverr"] + memory["decerr"] > 0
