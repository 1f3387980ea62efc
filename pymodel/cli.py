"""``camhil``: run a device program on the golden NICs or on the RTL; decode and encode what device and NIC
exchange; select the operators of an SoC.

Exit codes: 0 good, 1 the run is not good (the reasons are on stderr) or the output cannot be written, 2 the
input is bad (one line on stderr).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn, TypeAlias

from pymodel import faults
from pymodel.cli_decode import KINDS, decode
from pymodel.cli_encode import encode
from pymodel.cli_input import InputError, one_line, run_seed
from pymodel.device.pe import POLL_LIMIT
from pymodel.generation import Generation
from pymodel.host.table import Fabric
from pymodel.model import SCHEDULES
from pymodel.operators import select_ops
from pymodel.run import Loaded, ProgramError, RunConfig, load, run_on_model
from pymodel.runner import HangError
from pymodel.sanitizer import RaceError
from pymodel.unawaited import UnawaitedError

MAX_POST_CYCLES = 1_000_000
"""More for one post is no device any more."""

RtlRunner: TypeAlias = "Callable[[RunConfig, str | None], int]"
"""Runs a configuration on the RTL and gives the exit code.

The second argument asks for a capture of all packets: a file, '' for the usual place, None for no capture.
Prints its own summary. `pymodel` has none itself.
"""


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"camhil: {one_line(message)}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="camhil", description="Hardware-in-the-loop verification of device-initiated RDMA.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    run = commands.add_parser("run", help="run a device program", description="Run PROGRAM on every PE.")
    run.add_argument("program", help="Python file with 'async def main(pe)'")
    run.add_argument("--pes", type=int, default=2, help="number of PEs, 1 to 16 (default 2)")
    run.add_argument("--on", choices=("model", "rtl"), default="model", help="golden NICs alone, or the RTL")
    run.add_argument("--seed", type=run_seed, default=0, help="run seed, 0 to 2^63 - 1 (default 0)")
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
    run.add_argument(
        "--generation",
        type=int,
        choices=tuple(int(g) for g in Generation),
        default=1,
        help="driver generation: 1 builds WQEs in place, 2 stages them, 3 completes by wqe_id (default 1)",
    )
    run.add_argument("--dirty-ub", action="store_true", help="staging memory starts with random content")
    run.add_argument(
        "--signal-write", action="store_true", help="signals go as 4-byte WRITEs, not as atomics"
    )
    run.add_argument(
        "--post-cycles", type=int, default=0, metavar="N", help="NIC cycles that a post takes the device"
    )
    run.add_argument("--no-sanitizer", action="store_true", help="do not look for races")
    run.add_argument(
        "--pcap",
        nargs="?",
        const="",
        type=_capture,
        metavar="FILE",
        help="write every packet with its simulation time to FILE (pcapng; RTL only)",
    )
    faults.add_arguments(run, texts=True)
    _codec_parsers(commands)
    text = "print the operators that are compiled for an SoC"
    select = commands.add_parser("select-ops", help=text, description=text[0].upper() + text[1:] + ".")
    select_ops.add_arguments(select)
    return parser


def _codec_parsers(commands: argparse._SubParsersAction[_Parser]) -> None:
    text = "show a WQE, receive WQE, CQE, doorbell or frame in words"
    show = commands.add_parser("decode", help=text, description=text[0].upper() + text[1:] + ".")
    show.add_argument("kind", choices=KINDS, help="what HEX is")
    show.add_argument(
        "hex",
        nargs="+",
        metavar="HEX",
        help="bytes in memory or wire order, for doorbells a number; spaces, line ends, colons and 0x are "
        "skipped; - reads standard input",
    )
    show.add_argument("--version", type=int, choices=(1, 2), default=2, help="format version (default 2)")
    show.add_argument("--json", action="store_true", help="one JSON object instead of text")
    text = "print the WQE and the SQ doorbell that the device posts for each operation"
    make = commands.add_parser("encode", help=text, description=text[0].upper() + text[1:] + ".")
    make.add_argument(
        "--json",
        required=True,
        metavar="FILE",
        help="a list of objects {op, version, head, wqn, rkey, lkey, remote_addr, local_addr, and length "
        "(put, get) or bits, value, cond (atomics)}; - reads standard input",
    )


def _capture(text: str) -> str:
    if text.endswith(".py"):
        raise argparse.ArgumentTypeError(f"{text!r} is no capture file: put --pcap behind the program")
    return text


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
        generation=args.generation,
        dirty_ub=args.dirty_ub,
        signal_write=args.signal_write,
        post_cycles=args.post_cycles,
        faults=tuple(args.faults),
        sanitize=not args.no_sanitizer,
    )


def main(argv: Sequence[str] | None = None, rtl: RtlRunner | None = None) -> int:
    """The command. ``rtl`` runs what asks for the RTL; without it that is bad input."""
    args = _parser().parse_args(argv)
    if args.command == "select-ops":
        return select_ops.run(args)
    if args.command != "run":
        return _codec(args)
    try:
        config = _config(args)
        _check(args)
        program = load(config.program)
        # building it refuses what no fabric can be, before anything runs or is compiled
        Fabric.build(config.fabric_config(program))
    except (ValueError, ProgramError) as error:
        print(f"camhil: {one_line(str(error))}", file=sys.stderr)
        return 2
    if config.on == "rtl":
        if rtl is None:
            print("camhil: the RTL platform is not part of pymodel: use the camhil command", file=sys.stderr)
            return 2
        return rtl(config, args.pcap)
    schedules = SCHEDULES if args.schedule in (None, "all") else (args.schedule,)
    return max(_run(config, schedule, program) for schedule in schedules)


def _codec(args: argparse.Namespace) -> int:
    """``decode`` and ``encode``: all of the output, or one line on stderr and none."""
    try:
        if args.command == "encode":
            text = encode(args.json)
        else:
            report = decode(args.kind, args.hex, args.version)
            text = report.json() if args.json else report.text()
    except InputError as error:
        print(f"camhil: {one_line(str(error))}", file=sys.stderr)
        return 2
    try:
        print(text, flush=True)
    except OSError as error:
        # the reader of a pipe may have seen enough; what is left in the buffer is not tried again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"camhil: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.pcap is not None and args.on != "rtl":
        raise ValueError("--pcap is for --on rtl: the golden NICs have no link to listen to")
    if args.on != "rtl":
        faults.link_only(faults.from_sources(args.faults))
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
    if not 0 <= args.post_cycles <= MAX_POST_CYCLES:
        raise ValueError(f"{args.post_cycles} cycles for a post: 0 to {MAX_POST_CYCLES}")


def nothing_sent(count: int, pes: int) -> str:
    """What the line of a good run adds where no WQE or packet was (``count`` 0): a verdict on nothing."""
    if count:
        return ""
    return ", but nothing was sent: 1 PE has no peer" if pes == 1 else ", but nothing was sent"


def _run(config: RunConfig, schedule: str, program: Loaded) -> int:
    """One schedule on the model; prints one line, or the reasons why the run is not good."""
    config = replace(config, schedule=schedule)
    name = f"{config.pes} PEs on the model, {schedule}, seed {config.seed}"
    try:
        result = run_on_model(config, program)
    except (HangError, RaceError, UnawaitedError) as error:
        print(f"camhil: {name}: FAILED\n{error}", file=sys.stderr)
        return 1
    except Exception as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        print(f"camhil: {name}: FAILED\n{type(error).__name__}: {error} ({notes})", file=sys.stderr)
        return 1
    if not result.good:
        print(f"camhil: {name}: FAILED", *result.problems, sep="\n", file=sys.stderr)
        return 1
    puts = result.posts - result.reads - result.atomics
    done = [f"{puts} puts, {result.put_bytes} bytes"]
    if result.reads:
        done.append(f"{result.reads} gets, {result.get_bytes} bytes")
    if result.atomics:
        done.append(f"{result.atomics} atomics")
    if result.errors_provoked:
        done.append(f"{result.errors_provoked} errors as announced")
    if result.faults:
        kinds = ", ".join(f"{n} {kind}" for kind, n in result.faults.items())
        done.append(f"faults: {kinds} ({result.retries} retries)")
    print(f"{name}: {', '.join(done)}, {result.cycles} cycles: good{nothing_sent(result.posts, config.pes)}")
    return 0
