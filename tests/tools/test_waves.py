"""tools/waves.py: the save file that GTKWave reads.

Sweep: a wrapper, a monitor and a NIC with ports of the same names; enums, structs, parameters; no NIC at all.
Stimulus: a waveform's list of signals, as pywellen gives it for an FST.
Checks: groups in the order of the data path, which signals stand in which, enums marked, what is missing is
named; one line for what is no name of anything.
Timing: none. That GTKWave itself shows it was looked at by eye, not here.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools import waves


@dataclass
class Var:
    """One signal as pywellen describes it."""

    full_name: str
    bitwidth: int = 1
    direction: str = "Implicit"
    var_type: str = "Wire"
    enum_type: tuple[str, list[tuple[str, str]]] | None = None


NIC = "tb_top.gen_nic[0].u_nic.u_rnic"
STATE = ("tx_sched.state_e", [("00", "StIdle")])
SIGNALS = [
    Var("$rootio.clk_i"),
    Var("tb_top.gen_nic[0].u_nic.m_axis_tvalid"),
    Var("tb_top.gen_nic[0].u_nic.u_monitor.s_axil_awvalid", direction="Input"),
    Var("tb_top.gen_nic[0].u_nic.u_monitor.m_axis_tvalid", direction="Input"),
    Var("tb_top.gen_nic[0].u_nic.u_monitor.m_axi_arvalid", direction="Input"),
    Var(f"{NIC}.clk_i", direction="Input"),
    Var(f"{NIC}.s_axil_awvalid", direction="Input"),
    Var(f"{NIC}.m_axis_tvalid", direction="Output"),
    Var(f"{NIC}.m_axi_arvalid", direction="Output"),
    Var(f"{NIC}.m_axi_araddr", 64, "Output"),
    Var(f"{NIC}.i_requester.clk_i", direction="Input"),
    Var(f"{NIC}.i_requester.job_o.psn", 24, "Output"),
    Var(f"{NIC}.i_requester.i_tx_sched.state_q", 2, "Implicit", "Logic", STATE),
    Var(f"{NIC}.i_requester.i_tx_sched.count_q", 8, "Implicit", "Logic"),
    Var(f"{NIC}.i_requester.Depth", 32, "Implicit", "Parameter"),
]


def save(monkeypatch: pytest.MonkeyPatch, folder: Path, signals: list[Var]) -> tuple[list[str], list[str]]:
    """Lines of the save file and the missing stations."""

    class Waveform:
        def __init__(self, path: str) -> None:
            pass

        def all_vars(self) -> list[Any]:
            return list(signals)

    monkeypatch.setattr(waves.pywellen, "Waveform", Waveform)
    path, missing = waves.save_file(folder / "waves.fst")
    assert path == folder / "waves.gtkw"
    return path.read_text().splitlines(), missing


def test_groups_follow_the_data_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the NIC itself is a group; stations stand in order, each with its own signals."""
    lines, missing = save(monkeypatch, tmp_path, SIGNALS)
    opened = [line[1:] for line in lines if line.startswith("-")]
    assert opened[0] == opened[-1] == NIC
    stations = list(dict.fromkeys(opened[1:-1]))
    assert stations == ["host port", "requester", "tx link", "memory port"]
    assert missing == [f"{NIC}: {title}" for title, *_ in waves.GROUPS if title not in stations]
    requester = lines[lines.index("-requester") : len(lines) - lines[::-1].index("-requester")]
    assert [line for line in requester if line[0] in "@+"] == [
        "@22",
        f"+{{i_requester/job_o/psn}} {NIC}.i_requester.job_o.psn[23:0]",
        "@100000028",
        f"+{{i_requester/i_tx_sched/state_q}} {NIC}.i_requester.i_tx_sched.state_q[1:0]",
        "@1401200",
    ]
    assert not any("u_monitor" in line or "count_q" in line or "Depth" in line for line in lines)
    assert sum("clk_i" in line for line in lines) == 1


def test_block_bench_shows_its_top(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a NIC the signals of the top stand there."""
    signals = [Var("fifo.clk_i"), Var("fifo.count_o", 4), Var("fifo.i_x.y.z")]
    lines, missing = save(monkeypatch, tmp_path, signals)
    assert lines[-2:] == ["+{fifo/clk_i} fifo.clk_i", "+{fifo/count_o} fifo.count_o[3:0]"] and not missing


def test_an_empty_waveform_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing to show is an error, not an empty window."""
    with pytest.raises(ValueError, match="holds no signal"):
        save(monkeypatch, tmp_path, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--test", "nosuch"], "waves: no program and no test is called 'nosuch'"),
        (["--test", "two words"], "waves: ERROR: "),
        (["--test", "test_there", "--seed", "-1"], "waves: argument --seed: must be 0 or more"),
        ([], "waves: no waveform; give TEST=name"),
    ],
)
def test_bad_input(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One line, exit code 2, also where pytest has more to say."""
    small_suite(monkeypatch, tmp_path)
    try:
        code: int | str | None = waves.main(arguments)
    except SystemExit as stop:
        code = stop.code
    seen = capfd.readouterr()
    assert code == 2 and seen.out == "" and seen.err.count("\n") == 1 and seen.err.startswith(message)


def small_suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A repository with one test, which passes and leaves no waveform."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text("def test_there(): pass\n")
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--run-seed', type=int)\n    parser.addoption('--waves', action='store_true')\n"
    )
    monkeypatch.setattr(waves, "ROOT", tmp_path)
    for name in list(os.environ):
        if name.startswith("PYTEST"):
            monkeypatch.delenv(name)


def test_what_pytest_says_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once there are tests."""
    small_suite(monkeypatch, tmp_path)
    assert waves.main(["--test", "test_there"]) == 1
    seen = capfd.readouterr()
    assert "1 passed" in seen.out and seen.err.startswith("waves: no waveform; ")
