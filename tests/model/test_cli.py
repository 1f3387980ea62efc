"""The command: good runs, failing runs, bad input.

Sweep: options and each kind of bad input. Stimulus: `pymodel.cli.main` in process, and the two entry points
as processes. Checks: exit codes 0, 1 and 2; one line on stderr for bad input, never a traceback. Timing:
none. Does not prove: the RTL side, whose hook is replaced here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pymodel import cli
from pymodel.run import RunConfig

ROOT = Path(__file__).parents[2]
HELLO = str(ROOT / "programs" / "hello_put.py")


def _program(tmp_path: Path, body: str) -> str:
    file = tmp_path / "user.py"
    file.write_text(body)
    return str(file)


def _call(args: list[str]) -> int:
    try:
        return cli.main(args)
    except SystemExit as stop:
        return int(stop.code or 0)


def test_good_run_under_all_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --schedule a program runs under all three."""
    assert _call(["run", HELLO, "--pes", "3", "--seed", "5"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split(",")[1].strip() for line in out] == ["eager", "lazy", "random"]
    assert all("3 PEs on the model" in line and "seed 5: 2 puts, 26 bytes" in line for line in out)


@pytest.mark.parametrize(
    "args",
    [["--schedule", "lazy"], ["--mixed", "--qps", "4"], ["--format", "1", "--mtu", "256", "--depth", "16"],
     ["--heap", "2"], ["--no-sanitizer"], ["--generation", "2", "--dirty-ub"],
     ["--generation", "3", "--signal-write"], ["--poll-limit", "1000"], ["--pes", "1"], ["--pes", "16"]],
)  # fmt: skip
def test_options(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each option is accepted and the run is good."""
    assert _call(["run", HELLO, *args]) == 0
    assert capsys.readouterr().err == ""


def test_a_verdict_on_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No WQE at all: not simply good."""
    assert _call(["run", HELLO, "--schedule", "eager", "--pes", "1"]) == 0
    assert capsys.readouterr().out.endswith(" cycles: good, but nothing was sent: 1 PE has no peer\n")
    assert _call(["run", _program(tmp_path, GOOD), "--schedule", "eager"]) == 0
    assert capsys.readouterr().out.endswith(" cycles: good, but nothing was sent\n")
    assert _call(["run", HELLO, "--schedule", "eager"]) == 0
    assert capsys.readouterr().out.endswith(" cycles: good\n")


def test_a_program_may_bring_its_fabric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`fabric(n_pes, seed)` of the file decides instead of the options; a bad one is bad input."""
    body = (
        "from pymodel.host.table import FabricConfig\n"
        "def fabric(n_pes, seed):\n"
        "    return FabricConfig(n_pes=n_pes, seed=seed, qps=3, sq_depths=(32,))\n"
        "async def main(pe):\n"
        "    assert (pe.qp_num, pe.qp(1 - pe.rank, 2).depth) == (3, 32)\n"
    )
    assert _call(["run", _program(tmp_path, body), "--qps", "1"]) == 0
    capsys.readouterr()
    assert _call(["run", _program(tmp_path, body.replace("qps=3", "qps=0"))]) == 2
    assert capsys.readouterr().err == "camhil: 0 QPs per peer: at least 1\n"


GOOD = "async def main(pe):\n    pass\n"
FIXED = "from pymodel.host.table import FabricConfig\ndef fabric(n, seed):\n    return FabricConfig()\n"
BAD = [
    (["run", "no_such_file.py"], None, "program no_such_file.py: no such file"),
    (["run"], None, "the following arguments are required: program"),
    ([], None, "the following arguments are required: command"),
    (["walk", "x.py"], None, "invalid choice: 'walk'"),
    (["run", "{}", "--pes", "0"], GOOD, "0 PEs: a fabric has 1 to 16"),
    (["run", "{}", "--pes", "17"], GOOD, "17 PEs: a fabric has 1 to 16"),
    (["run", "{}", "--pes", "two"], GOOD, "argument --pes: invalid int value: 'two'"),
    (["run", "{}", "--pes", "16", "--qps", "5"], GOOD, "5 QPs to each of 15 peers: a NIC has 64 QPs"),
    (["run", "{}", "--qps", "0"], GOOD, "0 QPs per peer: at least 1"),
    (["run", "{}", "--on", "silicon"], GOOD, "invalid choice: 'silicon'"),
    (["run", "{}", "--seed", str(1 << 63)], GOOD, "argument --seed: must be less than 2^63"),
    (["run", "{}", "--post-cycles", "-1"], GOOD, "-1 cycles for a post: 0 to 1000000"),
    (["run", "{}", "--post-cycles", "1000001"], GOOD, "1000001 cycles for a post: 0 to 1000000"),
    (["run", "{}", "--schedule", "busy"], GOOD, "invalid choice: 'busy'"),
    (["run", "{}", "--seed", "x"], GOOD, "argument --seed: invalid int value"),
    (["run", "{}", "--seed", "-3"], GOOD, "argument --seed: must be 0 or more"),
    (["run", "{}", "--on", "rtl", "--schedule", "lazy"], GOOD, "--schedule is for --on model"),
    (["run", "{}", "--on", "rtl"], GOOD, "the RTL platform is not part of pymodel"),
    (["run", "{}", "--generation", "4"], GOOD, "argument --generation: invalid choice: 4"),
    (["run", "{}", "--pcap"], GOOD, "--pcap is for --on rtl"),
    (["run", "--pcap", "{}"], GOOD, "is no capture file: put --pcap behind the program"),
    (["run", "no\nsuch.py"], None, "program no\\nsuch.py: no such file"),
    (["run", "{}", "--depth", "100"], GOOD, "SQ depth 100: a power of two"),
    (["run", "{}", "--format", "1", "--depth", "16384"], GOOD, "SQ depth 16384"),
    (["run", "{}", "--heap", "1"], GOOD, "heap of 1048576 bytes"),
    (["run", "{}", "--poll-limit", "0"], GOOD, "poll limit 0: at least 1"),
    (["run", "{}"], "def main(pe):\n    pass\n", "no 'async def main(pe)'"),
    (["run", "{}"], "x = 1\n", "no 'async def main(pe)'"),
    (["run", "{}"], "async def main():\n    pass\n", "main must take the PE as its only argument"),
    (["run", "{}"], "async def main(pe:\n", "SyntaxError"),
    (["run", "{}"], "import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
    (["run", "{}"], "raise SystemExit(0)\n", "SystemExit: 0"),
    (["run", "{}"], "def fabric(n):\n    pass\n" + GOOD, "fabric(n_pes, seed): TypeError"),
    (["run", "{}"], "def fabric(n, seed):\n    pass\n" + GOOD, "fabric(n_pes, seed) gives no FabricConfig"),
    (["run", "{}", "--pes", "3"], FIXED + GOOD, "its fabric has 2 PEs where 3 were asked for"),
    (["run", "{}", "--heap", "99999999"], GOOD, "heap of 104857598951424 bytes: at most"),
]


@pytest.mark.parametrize(("args", "body", "message"), BAD, ids=range(len(BAD)))
def test_bad_input(
    args: list[str], body: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and exactly one line that says what is wrong."""
    file = _program(tmp_path, body) if body is not None else ""
    assert _call([arg.replace("{}", file) for arg in args]) == 2
    seen = capsys.readouterr()
    lines = seen.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("camhil: ") and message in lines[0]
    assert seen.out == ""


PUT = "    a, b = pe.alloc(8), pe.alloc(8)\n    await pe.put_nbi(b, a, 8, 1 - pe.rank)\n"
BAD_SOURCE = "    a = pe.alloc(8)\n    await pe.put_nbi(a, a - 2**21, 8, 1 - pe.rank)\n"
BAD_PUT = "    a = pe.alloc(8)\n    if pe.rank == 0:\n" + 2 * "        await pe.put_nbi(a + 2**30, a, 8, 1)\n"
#: what a program does after a WQE that fails, and what is printed before and behind the CQE that says why;
#: in the first nobody has looked into the CQ
AFTER_ERROR = [
    ("await pe.wait_value(a, 9)", "", ", and 1 after it", "hang: nothing moved"),
    ("await pe.quiet(1); await pe.store(a, b'x')", "", ", and 1 after it", "race on PE 0"),
    (
        "await pe.quiet(1); assert False, 'planted'",
        "AssertionError: ",
        ", and 1 after it",
        "planted (in main",
    ),
    (
        "await pe.quiet(1); await pe.quiet(1)",
        "",
        "",
        "PE 0 to PE 1, QP 0 (QPN 59): WQE 1 completed with error 0xff",
    ),
]
OTHER = "\n\nasync def other(pe):\n    "
#: a forgotten ``await``: program, line and name of the call that the one line names
UNAWAITED = [
    ("    pe.put_nbi(pe.alloc(8), pe.alloc(8), 8, 1 - pe.rank)\n", 2, "Pe.put_nbi"),
    # the other PE hangs, which is not the cause
    (
        "    if pe.rank:\n        pe.signal_set(pe.alloc(4), 1, 0)\n"
        "    else:\n        await pe.wait_value(pe.alloc(4), 1)\n",
        3,
        "Pe.signal_set",
    ),
    ("    assert int(pe.atomic.fetch(pe.alloc(8), 1 - pe.rank)) == 0\n", 2, "Atomics.fetch"),
    (PUT + "    return pe.quiet(1 - pe.rank)\n", 4, "Pe.quiet"),
    ("    pe.spawn(other(pe))" + OTHER + "pass\n", 2, "Pe.spawn"),
    ("    await pe.join(await pe.spawn(other(pe)))" + OTHER + "pe.quiet_all()\n", 5, "Pe.quiet_all"),
    ("    await pe.wait_until(pe.alloc(8), 8, lambda view: pe.sync_all())\n", 2, "Pe.sync_all"),
]
FAILING = [
    (
        "    assert pe.rank == 0, 'planted'\n",
        "AssertionError: planted (in main of PE 1, cycle 0, line 2 of user.py)",
    ),
    ("    raise SystemExit(0)\n", "RuntimeError: the program called exit(0) (in main of PE"),
    ("    await pe.wait_until(pe.alloc(8), 8, lambda view: exit(0))\n", "called exit(0) (in a wait of main"),
    ("    await pe.put_nbi(pe.alloc(8), pe.alloc(8), 8, 5)\n", "IndexError: PE 5 of 2 (in main of PE"),
    ("    await pe.wait_value(pe.alloc(4), 1, peer=1 - pe.rank)\n", "PE 1: waits for the 4-byte value at"),
    (PUT, "missing quiet: PE 0 ended without"),
    (PUT + "    await pe.store(a, b'x')\n", "race on PE"),
    (BAD_SOURCE + "    await pe.quiet(1 - pe.rank)\n", "completed with error 0xa7 (LOCAL_MR_REQ)"),
    ("    await pe.store(0, b'x')\n", "no region holds 1 bytes at 0x0"),
    (
        "    await pe.put_nbi(pe.alloc(8), pe.alloc(8), 8, pe.rank)\n",
        ", QP 0, whose SQ depth is 0: no PE has a QP to itself: use pe.store (in main of PE",
    ),
    ("    await pe.quiet(pe.rank)\n", "FAILED\nNoQueueError: PE "),
    *[
        (
            BAD_PUT + f"        {then}\n",
            f"FAILED\n{kind}PE 0 to PE 1, QP 0 (QPN 59): WQE 0 completed with error 0xa5 (NAK_MR): the peer"
            f" refused key, right or address range (NAK 2){more}\n{text}",
        )
        for then, kind, more, text in AFTER_ERROR
    ],
    (BAD_PUT + "        await pe.quiet(1)\n        pe.nothing\n", "FAILED\nAttributeError: 'Pe' object"),
    (
        BAD_PUT + "        await pe.quiet(1)\n        pe.nothing\n",
        "of user.py; PE 0 to PE 1, QP 0 (QPN 59): WQE 0 c",
    ),
    *[
        (body, f"FAILED\nline {line} of user.py: the call of {call} was never awaited, so it did nothing (")
        for body, line, call in UNAWAITED
    ],
    (
        "    v = pe.atomic.fetch(pe.alloc(8), 1 - pe.rank)\n    assert v == 0\n",
        "line 3 of user.py; line 2 of user.py: the call of Atomics.fetch was never awaited",
    ),
]


@pytest.mark.parametrize(("body", "message"), FAILING, ids=range(len(FAILING)))
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_failing_programs(
    body: str, message: str, schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 and the reason."""
    file = _program(tmp_path, "async def main(pe):\n" + body)
    assert _call(["run", file, "--schedule", schedule]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"camhil: 2 PEs on the model, {schedule}, seed 0: FAILED\n") and message in err
    assert "Traceback" not in err and "RuntimeWarning" not in err
    assert "never awaited" not in message or err.count("\n") == 2


def test_what_a_run_did_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Puts, gets and atomics apart."""
    body = (
        "async def main(pe):\n"
        "    a, b = pe.alloc(64), pe.alloc(64)\n"
        "    if pe.rank == 0:\n"
        "        await pe.put_nbi(b, a, 8, 1)\n"
        "        await pe.quiet(1)\n"
        "        await pe.get_nbi(a, b, 24, 1)\n"
        "        await pe.quiet(1)\n"
        "        await pe.atomic.fetch_add(b, 1, 1)\n"
    )
    file = _program(tmp_path, body)
    assert _call(["run", file, "--schedule", "eager"]) == 0
    assert "1 puts, 8 bytes, 1 gets, 24 bytes, 1 atomics, " in capsys.readouterr().out


def test_one_bad_schedule_fails_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Good under eager, wrong under lazy: the command as a whole fails."""
    body = (
        "async def main(pe):\n"
        "    a, f = pe.alloc(8), pe.alloc(8)\n"
        "    if pe.rank == 0:\n"
        "        await pe.store(a, b'AAAAAAAA')\n"
        "        await pe.put_nbi(a, a, 8, 1)\n"
        "        await pe.store(a, b'BBBBBBBB')\n"
        "        await pe.put_nbi(f, a, 8, 1)\n"
        "        await pe.quiet(1)\n"
        "    else:\n"
        "        await pe.wait_until(f, 8, lambda v: bool(v.any()), peer=0)\n"
        "        assert pe.memory(a, 1)[0] == ord('A')\n"
    )
    file = _program(tmp_path, body)
    assert _call(["run", file, "--no-sanitizer"]) == 1
    seen = capsys.readouterr()
    assert "eager" in seen.out and "good" in seen.out and "lazy, seed 0: FAILED" in seen.err


def test_the_rtl_hook_gets_the_configuration() -> None:
    """`--on rtl` hands a RunConfig over and returns the hook's exit code; it survives a trip through JSON."""
    got: list[tuple[RunConfig, str | None]] = []

    def rtl(config: RunConfig, pcap: str | None) -> int:
        got.append((config, pcap))
        return 7

    args = [
        "run",
        HELLO,
        "--on",
        "rtl",
        "--pes",
        "4",
        "--seed",
        "9",
        "--qps",
        "2",
        "--mixed",
        "--poll-limit",
        "50",
    ]
    assert cli.main(args, rtl=rtl) == 7
    for capture in (["--pcap"], ["--pcap", "some.pcapng"]):
        assert cli.main([*args, *capture], rtl=rtl) == 7
    config = RunConfig(HELLO, 4, "rtl", 9, qps=2, mixed=True, poll_limit=50)
    assert got == [(config, None), (config, ""), (config, "some.pcapng")]
    assert RunConfig.from_json(config.to_json()) == config


def test_entry_points() -> None:
    """`python -m pymodel` and the console script; only the script knows of the RTL."""
    for command in ([sys.executable, "-m", "pymodel"], [sys.executable, "camhil_cli.py"]):
        done = subprocess.run(
            [*command, "run", HELLO, "--schedule", "eager"], cwd=ROOT, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("good\n")
    done = subprocess.run(
        [sys.executable, "-m", "pymodel", "run", HELLO, "--on", "rtl"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
