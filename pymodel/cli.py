"""``camhil``: run a device program of one's own on the golden NICs or on the RTL.

Exit codes: 0 the run is good, 1 it is not (the reasons are on stderr), 2 the input is bad (one line on
stderr).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn, TypeAlias

from pymodel.device.pe import POLL_LIMIT
from pymodel.host.table import Fabric
from pymodel.model import SCHEDULES
from pymodel.run import Loaded, ProgramError, RunConfig, load, run_on_model
from pymodel.runner import HangError
from pymodel.sanitizer import RaceError

RtlRunner: TypeAlias = "Callable[[RunConfig], int]"
"""Runs a configuration on the RTL and gives the exit code.

Prints its own summary. `pymodel` has none itself.
"""


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"camhil: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="camhil", description="Hardware-in-the-loop verification of device-initiated RDMA.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    run = commands.add_parser("run", help="run a device program", description="Run PROGRAM on every PE.")
    run.add_argument("program", help="Python file with 'async def main(pe)'")
    run.add_argument("--pes", type=int, default=2, help="number of PEs, 1 to 16 (default 2)")
    run.add_argument("--on", choices=("model", "rtl"), default="model", help="golden NICs alone, or the RTL")
    run.add_argument("--seed", type=int, default=0, help="run seed (default 0)")
    run.add_argument(
        "--schedule",
        choices=(*SCHEDULES, "all"),
        default=None,
        help="when the golden NICs act; a program must be right under all three (default all; model only)",
    )
    run.add_argument("--qps", type=int, default=1, help="QPs per peer (default 1)")
    run.add_argument("--mixed", action="store_true", help="random formats, MTUs, depths and start indices")
    run.add_argument(
        "--format", type=int, choices=(1, 2), default=2, dest="version", help="WQE and CQE version"
    )
    run.add_argument("--mtu", type=int, choices=(256, 512, 1024, 2048, 4096), default=4096, help="path MTU")
    run.add_argument("--depth", type=int, default=64, help="SQ depth (default 64)")
    run.add_argument("--heap", type=int, default=16, metavar="MIB", help="heap size in MiB (default 16)")
    run.add_argument("--poll-limit", type=int, default=POLL_LIMIT, help="tries of poll_cq per CQE")
    run.add_argument("--no-sanitizer", action="store_true", help="do not look for races")
    return parser


def _config(args: argparse.Namespace) -> RunConfig:
    return RunConfig(
        program=args.program,
        pes=args.pes,
        on=args.on,
        seed=args.seed,
        schedule=args.schedule or "eager",
        qps=args.qps,
        mixed=args.mixed,
        version=args.version,
        mtu=args.mtu,
        depth=args.depth,
        heap_mib=args.heap,
        poll_limit=args.poll_limit,
        sanitize=not args.no_sanitizer,
    )


def main(argv: Sequence[str] | None = None, rtl: RtlRunner | None = None) -> int:
    """The command. ``rtl`` runs what asks for the RTL; without it that is bad input."""
    args = _parser().parse_args(argv)
    try:
        config = _config(args)
        _check(args)
        program = load(config.program)
        # building it refuses what no fabric can be, before anything runs or is compiled
        Fabric.build(config.fabric_config(program))
    except (ValueError, ProgramError) as error:
        print(f"camhil: {error}", file=sys.stderr)
        return 2
    if config.on == "rtl":
        if rtl is None:
            print("camhil: the RTL platform is not part of pymodel: use the camhil command", file=sys.stderr)
            return 2
        return rtl(config)
    schedules = SCHEDULES if args.schedule in (None, "all") else (args.schedule,)
    return max(_run(config, schedule, program) for schedule in schedules)


def _check(args: argparse.Namespace) -> None:
    if args.on == "rtl" and args.schedule is not None:
        raise ValueError("--schedule is for --on model: the RTL has its own timing")
    if (
        args.depth < 2
        or args.depth & (args.depth - 1)
        or args.depth > (8192 if args.version == 1 else 131072)
    ):
        raise ValueError(
            f"SQ depth {args.depth}: a power of two from 2 to 8192 (format 1) or 131072 (format 2)"
        )
    if args.poll_limit is not None and args.poll_limit < 1:
        raise ValueError(f"poll limit {args.poll_limit}: at least 1")


def _run(config: RunConfig, schedule: str, program: Loaded) -> int:
    """One schedule on the model; prints one line, or the reasons why the run is not good."""
    config = replace(config, schedule=schedule)
    name = f"{config.pes} PEs on the model, {schedule}, seed {config.seed}"
    try:
        result = run_on_model(config, program)
    except (HangError, RaceError) as error:
        print(f"camhil: {name}: FAILED\n{error}", file=sys.stderr)
        return 1
    except Exception as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        print(f"camhil: {name}: FAILED\n{type(error).__name__}: {error} ({notes})", file=sys.stderr)
        return 1
    if not result.good:
        print(f"camhil: {name}: FAILED", *result.problems, sep="\n", file=sys.stderr)
        return 1
    print(f"{name}: {result.posts} puts, {result.put_bytes} bytes, {result.cycles} cycles: good")
    return 0
