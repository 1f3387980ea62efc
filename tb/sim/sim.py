"""``make sim`` and ``camhil run --on rtl``: build the model, run a device program on the RTL NICs, show what
was checked.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from pymodel import faults
from pymodel.cli import nothing_sent
from pymodel.cli_input import one_line, run_seed
from pymodel.host.table import FabricConfig
from pymodel.run import ProgramError, RunConfig, load
from tb.sim import build, run

ROOT = build.ROOT
PROGRAMS = ROOT / "programs"
DEFAULT_PROGRAMS = ("moe_prefill", "mixed")
#: seconds between two lines of progress where the output is no terminal
_LINE_EVERY = 5.0
#: where a run says in one line what its capture holds
_CAPTURE = "capture.txt"
#: what the programs of a run print, as they print it
PRINTED = "printed.txt"


@dataclass(frozen=True)
class SimConfig:
    """A run on the RTL in plain values.

    Program and options, testbench knobs, cycles until it counts as hung, the file that takes its packets
    ('': none) with the simulation time in ns that it covers (None: all), and the file for its timeline ('':
    none).
    """

    run: RunConfig
    knobs: Mapping[str, int] = field(default_factory=dict)
    hang_after: int = 200_000
    pcap: str = ""
    pcap_window: tuple[int, int] | None = None
    timeline: str = ""

    def fabric(self) -> FabricConfig:
        """The program's own ``fabric(n_pes, seed)`` where it defines one, else that of the run's options."""
        return self.run.fabric_config(load(self.run.program))

    def to_json(self) -> str:
        """One line of JSON."""
        own = {name: getattr(self, name) for name in ("hang_after", "pcap", "pcap_window", "timeline")}
        return json.dumps({"run": asdict(self.run), "knobs": dict(self.knobs), **own})

    @classmethod
    def from_json(cls, text: str) -> SimConfig:
        """The inverse of :meth:`to_json`."""
        raw = json.loads(text)
        window = raw["pcap_window"] and tuple(raw["pcap_window"])
        return cls(
            RunConfig(**raw["run"]), raw["knobs"], raw["hang_after"], raw["pcap"], window, raw["timeline"]
        )


class _Progress(threading.Thread):
    """Shows what the simulator writes into its progress file: on one line of a terminal, else a line now and
    then. And what the programs print, all of it, as it comes."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path, self._end, self._shown = path, threading.Event(), ""
        self._printed, self._at = path.with_name(PRINTED), 0
        path.unlink(missing_ok=True)
        self._printed.unlink(missing_ok=True)

    def _pass_on(self) -> None:
        try:
            with self._printed.open("rb") as file:
                file.seek(self._at)
                new = file.read()
        except OSError:
            return
        # only whole lines, as other lines come between
        new = new if self._end.is_set() else new[: new.rfind(b"\n") + 1]
        if new:
            self._at += len(new)
            clear = "\r\x1b[K" if self._shown and sys.stderr.isatty() else ""
            print(clear, end="", file=sys.stderr, flush=True)
            print(new.decode(errors="replace"), end="" if new.endswith(b"\n") else "\n", flush=True)

    def run(self) -> None:
        tty = sys.stderr.isatty()
        last = time.monotonic()
        while not self._end.wait(0.3):
            self._pass_on()
            try:
                text = self._path.read_text()
            except OSError:
                continue
            if text == self._shown or (not tty and time.monotonic() - last < _LINE_EVERY):
                continue
            self._shown, last = text, time.monotonic()
            print(f"\r\x1b[K{text}" if tty else text, end="" if tty else "\n", file=sys.stderr, flush=True)

    def stop(self) -> None:
        self._end.set()
        self.join()
        self._pass_on()
        if self._shown and sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def simulate(
    config: SimConfig,
    out: Path,
    *,
    waves: bool = False,
    window: tuple[int, int] | None = None,
    timeout: float = 3600.0,
) -> tuple[int, dict[str, Any], str]:
    """Build what is needed and run; gives (exit code, summary, reason of the failure or '').

    ``out`` takes sim.log, results.xml, summary.json, printed.txt (shown as it comes), for a run with a
    capture capture.txt, and, with ``waves``, waves.fst, of ``window`` (from, to in ns) only where that is
    given. Raises BuildError.
    """
    pes = config.run.pes
    bench = build.nic_bench(pes)
    slow = threading.Timer(
        _LINE_EVERY, print, ["compiling the model: minutes, but once only"], {"flush": True}
    )
    slow.daemon = True
    slow.start()
    try:
        exe = build.build(bench, "debug" if waves else "fast")
    finally:
        slow.cancel()
    out.mkdir(parents=True, exist_ok=True)
    summary_file = out / "summary.json"
    summary_file.unlink(missing_ok=True)
    (out / _CAPTURE).unlink(missing_ok=True)
    progress = _Progress(out / "progress")
    progress.start()
    try:
        outcome = run.run(
            exe, "tb.sim.program_run", bench.top, out=out, seed=config.run.seed, pes=pes, timeout=timeout,
            waves=out / f"waves{build.wave_suffix()}" if waves else None, wave_window=window,
            extra_env={"CAMHIL_RUN": config.to_json(), "CAMHIL_PROGRESS": str(out / "progress")},
        )  # fmt: skip
    finally:
        progress.stop()
    summary = json.loads(summary_file.read_text()) if summary_file.is_file() else {}
    if outcome.error is not None:
        return 1, summary, outcome.error
    if not summary or summary["mismatches"]:
        return 1, summary, "the run left no clean summary"
    return 0, summary, ""


def _show_capture(out: Path) -> None:
    """Print what the capture of the run in ``out`` holds, if it has one."""
    file = out / _CAPTURE
    if file.is_file():
        print(file.read_text().replace(f"{ROOT}/", ""))


def run_rtl(config: RunConfig, pcap: str | None = None) -> int:
    """What ``camhil run --on rtl`` does; gives the exit code.

    ``pcap``: the file for a capture of all packets, '' for run.pcapng in the run's folder, None for none.
    """
    out = build.BUILD / "run" / Path(config.program).stem
    capture = ""
    if pcap is not None:
        try:
            # before anything is compiled; the simulator runs in a directory of its own
            out.mkdir(parents=True, exist_ok=True)
            capture = str((Path(pcap) if pcap else out / "run.pcapng").resolve())
            Path(capture).open("wb").close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            print(f"camhil: cannot write {pcap!r}: {reason}", file=sys.stderr)
            return 2
    # the simulator runs in a directory of its own
    config = replace(config, program=str(Path(config.program).resolve()))
    try:
        code, summary, reason = simulate(SimConfig(config, pcap=capture), out)
    except build.BuildError as error:
        print(f"camhil: {error}", file=sys.stderr)
        return 1
    name = f"{config.pes} PEs on the RTL, seed {config.seed}"
    _show_capture(out)
    if code:
        print(f"camhil: {name}: FAILED\n{reason}\nlog: {out / 'sim.log'}", file=sys.stderr)
        return code
    print(
        f"{name}: {summary['wqes']} WQEs, {summary['packets']} packets, {summary['bytes']} bytes,"
        f" {_faults(summary)}{summary['cycles']} cycles: good{nothing_sent(summary['packets'], config.pes)}"
    )
    return 0


def _faults(summary: Mapping[str, Any]) -> str:
    """What rules did to the link of a run, as ``camhil run`` says it of the model; '' where it had none."""
    figures = summary["figures"]
    if "retries" not in figures:
        return ""
    prefix = "faults_"
    kinds = [f"{n} {key.removeprefix(prefix)}" for key, n in figures.items() if key.startswith(prefix)]
    return f"faults: {', '.join(kinds) or 'none'} ({figures['retries']} retries), "


def _table(summary: Mapping[str, Any]) -> str:
    figures = summary["figures"]
    rows = [
        (key.replace("_", " "), value) for key, value in {**summary, **figures}.items() if key != "figures"
    ]
    texts = [(key, f"{value:,}" if isinstance(value, int) else f"{value}") for key, value in rows]
    width = max(len(key) for key, _ in texts)
    return "\n".join(f"  {key:<{width}}  {value:>14}" for key, value in texts)


def _program_path(name: str) -> str:
    path = Path(name) if name.endswith(".py") else PROGRAMS / f"{name}.py"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PROGRAMS.glob("*.py")))
        raise ProgramError(f"no program '{name}': one of {known}, or a .py file")
    return str(path.resolve())


class OneLineParser(argparse.ArgumentParser):
    """argparse whose errors are one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)}\n")


def _window(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    start, colon, end = text.partition(":")
    if not (colon and start.isdecimal() and end.isdecimal() and int(start) <= int(end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO in ns")
    return int(start), int(end)


def _switch(text: str) -> bool:
    if text not in ("", "0", "1"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor 1")
    return text == "1"


def _fault_options(args: argparse.Namespace) -> list[tuple[str, str]]:
    """The options of make that name link faults."""
    options = (("FAULTS", args.faults), ("FAULT_FILE", args.fault_file))
    return [(key, value) for key, value in options if value]


def _fault_sources(args: argparse.Namespace) -> list[tuple[str, str]]:
    """What errors call it, and the rules, one a line. Raises OSError, and ValueError for what is no text."""
    sources = [("FAULTS", args.faults.replace(";", "\n"))] if args.faults else []
    return sources + ([(args.fault_file, Path(args.fault_file).read_text())] if args.fault_file else [])


def _run_one(config: SimConfig, args: argparse.Namespace, out: Path) -> int:
    """One program: its line, its table, the verdict. Gives the exit code."""
    name = Path(config.run.program).stem
    print(f"{name} on {args.pes} NICs, seed {args.seed}", flush=True)
    try:
        code, summary, reason = simulate(config, out, waves=args.waves, window=args.window)
    except build.BuildError as error:
        print(f"make sim: {error}", file=sys.stderr)
        return 1
    if summary:
        print(_table(summary))
    _show_capture(out)
    if args.waves:
        print(f"waves: {out / f'waves{build.wave_suffix()}'}")
    if code:
        again = f"make sim TEST={args.test or name} PES={args.pes} SEED={args.seed}"
        again += "".join(f" {key}={shlex.quote(value)}" for key, value in _fault_options(args))
        if rtl := os.environ.get("CAMHIL_RTL"):
            again += f" RTL={rtl}"
        print(
            f"FAILED: {reason}\nlog: {out / 'sim.log'}\nagain: {again}   (WAVES=1 for waveforms)",
            file=sys.stderr,
        )
    else:
        nothing = nothing_sent(summary["packets"], args.pes)
        print(f"good{nothing or ': every packet, byte and CQE as the golden model says'}", flush=True)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """The command behind ``make sim``."""
    parser = OneLineParser(
        prog="make sim", description="Run device programs on the RTL NICs, everything checked."
    )
    default = ", then ".join(DEFAULT_PROGRAMS)
    parser.add_argument("--test", default="", help=f"a program of programs/ or a .py file; else {default}")
    parser.add_argument("--pes", type=int, default=4)
    parser.add_argument("--seed", type=run_seed, default=1)
    # "" is what make gives where the user says nothing
    for name, text in (
        ("waves", "write waves.fst"),
        ("pcap", "write every packet to run.pcapng"),
        ("timeline", "write timeline.json for Perfetto"),
    ):
        parser.add_argument(
            f"--{name}", nargs="?", const="1", default="", type=_switch, metavar="0|1", help=text
        )
    parser.add_argument("--faults", default="", help="faults on the link: rules, ; between them")
    parser.add_argument("--fault-file", default="", metavar="FILE", help="the same, one rule a line")
    parser.add_argument(
        "--window", type=_window, default=None, metavar="FROM:TO", help="ns that waves and capture cover"
    )
    args = parser.parse_args(argv)
    if args.window is not None and not (args.waves or args.pcap):
        parser.error("argument --window: says what waves or capture cover, so give WAVES=1 or PCAP=1 too")
    todo: list[tuple[SimConfig, Path]] = []
    try:
        rules = _fault_sources(args)
        faults.from_sources(rules)
        for name in [args.test] if args.test else DEFAULT_PROGRAMS:
            program = _program_path(name)
            out = build.BUILD / "sim" / Path(program).stem
            config = SimConfig(
                RunConfig(program, pes=args.pes, on="rtl", seed=args.seed, faults=rules),
                pcap=str(out / "run.pcapng") if args.pcap else "",
                pcap_window=args.window,
                timeline=str(out / "timeline.json") if args.timeline else "",
            )
            config.fabric()
            todo.append((config, out))
        build.nic_bench(args.pes)
    except OSError as error:
        print(f"make sim: cannot read {args.fault_file!r}: {error.strerror}", file=sys.stderr)
        return 2
    except (ValueError, ProgramError, build.BuildError) as error:
        print(f"make sim: {error}", file=sys.stderr)
        return 2
    try:
        for config, out in todo:
            if code := _run_one(config, args, out):
                return code
    except KeyboardInterrupt:
        print("make sim: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
