"""Run tests with waves, or take waveforms, and lay their signals out for GTKWave along the data path.

Usage: waves.py --test NAME [--seed N] [--pes N] [--window FROM:TO]
       waves.py FILE.fst...     only write the save files

NAME is a program of programs/ or a .py file, which runs on PES NICs as in `make sim`, or a pytest -k
expression of tests.
For each waveform a .gtkw save file beside it: one group per NIC, in it one group per station of the data path
(GROUPS), in the order in which a WQE passes them. Enums show their names (the FST carries them), packed
structs their members. Opens GTKWave where DISPLAY is set and gtkwave is installed; prints the paths anyway.
"""

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pywellen
from vcd.gtkw import GTKWFlag, GTKWSave

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pymodel.cli_input import run_seed  # noqa: E402  (needs the path above)
from tb.sim.sim import OneLineParser  # noqa: E402

#: pytest's exit code where it selected no test
NO_TESTS = 5
#: what it says from the moment on when it has found some
STARTED = re.compile(rb"collected (?!.* 0 selected).*\n\s*(?!ERROR|=)\S")
# A scope with these ports in these directions is a NIC, whatever is above it (monitors see them as inputs).
NIC_PORTS = {"s_axil_awvalid": "Input", "m_axis_tvalid": "Output", "m_axi_arvalid": "Output"}
# Station: pattern of its interface, relative to the NIC, and of the blocks whose states and verdicts (signals
# with enum names) stand below it.
GROUPS: tuple[tuple[str, str, str], ...] = (
    ("host port", r"(s_axil_\w+|event_o)", r"i_host_front\.u_(axil_bar|ctx_cmd)"),
    (
        "doorbell",
        r"i_host_front\.(db_\w+|retire_\w+|qp_rts_o|qp_err_o|drain_\w+)",
        r"i_host_front\.u_db_decode",
    ),
    ("fetch", r"i_requester\.(fetch_\w+|db_sq_\w+)", r"i_requester\.i_(fetch_eng|lane_ctl)"),
    (
        "requester",
        r"i_requester\.(job_\w+|rsp_\w+|gerr_\w+|retire_\w+|err_o)",
        r"i_requester\.i_(tx_sched|ack_track)",
    ),
    ("gather", r"i_datapath\.i_gather\.\w+_[io]", r"i_datapath\.i_gather"),
    ("tx link", r"m_axis_\w+", r"i_datapath\.i_frame"),
    ("rx link", r"s_axis_\w+", r"i_datapath\.i_parse"),
    ("responder", r"i_datapath\.i_responder\.\w+_[io]", r"i_datapath\.i_responder"),
    ("scatter", r"i_datapath\.i_scatter\.\w+_[io]", r"i_datapath\.i_scatter"),
    ("completion", r"i_requester\.(cqe_\w+|db_cq_\w+|cq_event_\w+)", r"i_requester\.i_comp_eng"),
    ("memory port", r"m_axi_\w+", r"i_datapath\.i_(rd|wr)_mux"),
)
# 2**15 ps a step: about a hundred clock cycles in a window at first
ZOOM = -15.0
# GTKWave shows a binary value by its name in the FST where trace flag 32, "enum", is set. pyvcd does not know
# it: a flag that is not used otherwise stands in for it until the file is written.
ENUM_STAND_IN = GTKWFlag.fpdecshift
ENUM_LINES = ("\n@40000028\n", "\n@100000028\n")
# Every station has the same two, which stand once, at the top, and the wide broadcast of context commands.
COMMON = re.compile(r"(^|\.)(clk_i|rst_ni|ctx_i\..*)$")


def show(path: Path) -> str:
    """Path as printed: relative to the repository where it is inside."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def pytest_run(command: Sequence[str], name: str) -> int:
    """Run pytest and show what it says once it has found tests; gives its exit code.

    Raises ValueError where ``name`` selects no test, or is no expression.
    """
    said, shown = b"", False
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert isinstance(process.stdout, io.BufferedReader)
        while chunk := process.stdout.read1():
            said = chunk if shown else said + chunk
            shown = shown or STARTED.search(said) is not None
            if shown:
                sys.stdout.buffer.write(said)
                sys.stdout.flush()
    if process.returncode == NO_TESTS:
        raise ValueError(f"no program and no test is called {name!r}")
    if not shown:
        lines = said.decode(errors="replace").strip().splitlines() or [
            f"pytest: exit code {process.returncode}"
        ]
        raise ValueError(next((line for line in lines if line.startswith("ERROR")), lines[-1]))
    return process.returncode


def run_named(name: str, seed: int, pes: int, window: str) -> tuple[list[Path], int]:
    """Waveforms that the program or the matching tests left, and the exit code.

    A run that fails is worth a look too. Raises ValueError where ``name`` is no program and no test.
    """
    started = time.time()
    if (ROOT / "programs" / f"{name}.py").is_file() or (name.endswith(".py") and Path(name).is_file()):
        command = [sys.executable, "-m", "tb.sim.sim", "--waves", "--test", name]
        command += ["--seed", str(seed), "--pes", str(pes), f"--window={window}"]
        results = ROOT / "build" / "sim"
    else:
        command = [sys.executable, "-m", "pytest", "--waves", "-k", name, f"--run-seed={seed}"]
        command += [f"--wave-window={window}"] if window else []
        results = ROOT / "build" / "results"
    code = pytest_run(command, name) if "pytest" in command else subprocess.run(command, cwd=ROOT).returncode
    found = [path for kind in ("fst", "vcd") for path in results.rglob(f"*.{kind}")]
    return sorted(path for path in found if path.stat().st_mtime >= started - 1), code


def save_file(wave: Path) -> tuple[Path, list[str]]:
    """Write the GTKWave save file beside a waveform.

    Returns its path and the stations of a NIC for which the waveform has no signal (a NIC of somebody else
    has other blocks inside). Raises ValueError where the waveform holds no signal at all.
    """
    missing: list[str] = []
    signals: dict[str, int] = {}
    enums: set[str] = set()
    ports: dict[str, int] = {}
    for var in pywellen.Waveform(str(wave)).all_vars():
        # Verilator shows the top's ports a second time under $rootio
        if var.var_type == "Parameter" or var.full_name.startswith("$rootio."):
            continue
        signals.setdefault(var.full_name, var.bitwidth or 1)
        if var.enum_type:
            enums.add(var.full_name)
        scope, _, name = var.full_name.rpartition(".")
        if NIC_PORTS.get(name) == var.direction:
            ports[scope] = ports.get(scope, 0) + 1
    nics = sorted(scope for scope, count in ports.items() if count == len(NIC_PORTS))
    if not signals:
        raise ValueError(f"{show(wave)} holds no signal")
    target = wave.with_suffix(".gtkw")
    with io.StringIO() as stream:
        save = GTKWSave(stream)
        save.dumpfile(str(wave.resolve()))
        save.zoom_markers(ZOOM)
        save.sst_expanded(True)

        def trace(name: str, scope: str) -> None:
            width = signals[name]
            # GTKWave cuts an alias at its dots
            alias = name.removeprefix(scope + ".").replace(".", "/")
            full = name if width == 1 else f"{name}[{width - 1}:0]"
            if name in enums:
                save.trace(full, alias=alias, datafmt="bin", extraflags=ENUM_STAND_IN)
            else:
                save.trace(full, alias=alias)

        # Block benches have no NIC: everything of their top, in the order of the source.
        if not nics:
            top = min(name.count(".") for name in signals)
            for name in signals:
                if name.count(".") <= top + 1:
                    trace(name, "")
        for nic in nics:
            inside = [name for name in signals if name.startswith(nic + ".")]
            with save.group(nic, closed=nic != nics[0]):
                for name in inside:
                    if COMMON.search(name) and name.count(".") == nic.count(".") + 1:
                        trace(name, nic)
                for title, interface, blocks in GROUPS:
                    # a struct's members are signals below the struct's name
                    wanted = re.compile(rf"{interface}(\.\w+)*$|({blocks})\.(?P<inner>.*)$")
                    members = []
                    for name in inside:
                        match = wanted.match(name[len(nic) + 1 :])
                        if match and (match["inner"] is None or name in enums) and not COMMON.search(name):
                            members.append(name)
                    if not members:
                        missing.append(f"{nic}: {title}")
                        continue
                    with save.group(title, closed=True):
                        for name in members:
                            trace(name, nic)
        target.write_text(stream.getvalue().replace(*ENUM_LINES), encoding="utf-8")
    return target, missing


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code of the tests; 1 where there is nothing to look at, 2 for bad input."""
    parser = OneLineParser(
        prog="waves", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("waves", nargs="*", type=Path, help="waveforms that exist")
    parser.add_argument("--test", default="", help="program, or pytest -k expression of tests")
    parser.add_argument("--seed", type=run_seed, default=1, help="run seed")
    parser.add_argument("--pes", type=int, default=4, help="NICs of a program")
    parser.add_argument("--window", default="", help="FROM:TO in ns of simulated time")
    options = parser.parse_args(argv)
    waves, code = options.waves, 0
    if options.test:
        try:
            found, code = run_named(options.test, options.seed, options.pes, options.window)
        except ValueError as error:
            print(f"waves: {error}", file=sys.stderr)
            return 2
        waves += found
    if not waves:
        text = "waves: no waveform; give TEST=name of a program or of a test that runs a simulation"
        print(text, file=sys.stderr)
        return code or (1 if options.test else 2)
    absent = [str(wave) for wave in waves if not wave.is_file()]
    if absent:
        print(f"waves: no such file: {', '.join(absent)}")
        return 1
    saves = []
    for wave in waves:
        save, missing = save_file(wave)
        saves.append(save)
        print(f"waves: {show(wave)}\n       {show(save)}")
        for station in missing:
            print(f"waves: no signal for {station}")
    viewer = shutil.which("gtkwave")
    if os.environ.get("DISPLAY") and viewer:
        subprocess.Popen([viewer, str(waves[0]), str(saves[0])], start_new_session=True)
    else:
        print(f"waves: look at it with: gtkwave {show(waves[0])} {show(saves[0])}")
    return code


if __name__ == "__main__":
    sys.exit(main())
