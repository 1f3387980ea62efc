"""The language of fault rules (docs/faults.md).

Sweep: every condition, action and modifier, every kind of mistake, random rules. Stimulus: text, files,
command lines. Checks: the rule's fields, the place and text of each error, exit codes, text and compiled form
back to the rule. Timing: none. Does not prove: what rules do (test_faults.py).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel import faults
from pymodel.faults.rule import CLASSES, FAR, OPCODES, REGIONS, SYNDROMES, Action, Rule, RuleError
from tb.sim.fault_rule import compile_rules
from tests.conformance.fault_model import Sent, frame, is_opcode

ROOT = Path(__file__).resolve().parents[2]

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("qp 3 psn 50-150: drop once", {"action": 1, "qp": (3, 3), "psn": (50, 150), "limit": 1}),
    ("opcode read_response: delay 2us", {"action": 3, "opcode": ("read_response",), "amount": 1000}),
    ("every 1/200: duplicate", {"action": 2, "chance": (1, 200)}),
    ("direction 0->1: corrupt 1 bit of payload",
     {"action": 5, "source": 0, "destination": 1, "region": "payload"}),
    ("reorder 2", {"action": 4, "amount": 2}),
    ("any: drop", {"action": 1}),
    ("always: drop always", {"action": 1}),
    ("drop # as a comment says", {"action": 1}),
    ("  qp 0x10-0x1F, size > 64 and every 3rd : drop , 4 times",
     {"action": 1, "qp": (16, 31), "size": (65, FAR), "every": 3, "limit": 4}),
    ("psn 16777215-0: drop", {"action": 1, "psn": (0xFFFFFF, 0)}),
    ("opcode 17 or write_only or 0xC0-0xC1: drop", {"action": 1, "opcode": (17, "write_only", 0xC0, 0xC1)}),
    ("class nak: drop", {"action": 1, "opcode": ("nak",)}),
    ("direction *->2: drop", {"action": 1, "destination": 2}),
    ("direction 15->*: drop", {"action": 1, "source": 15}),
    ("every 1st: drop", {"action": 1, "every": 1}),
    ("every 12: drop", {"action": 1, "every": 12}),
    ("packet 7-9 nth 2: drop", {"action": 1, "packet": (7, 9), "nth": (2, 2)}),
    ("size 58: drop", {"action": 1, "size": (58, 58)}),
    ("size < 100: drop", {"action": 1, "size": (0, 99)}),
    ("size <= 100: drop", {"action": 1, "size": (0, 100)}),
    ("size >= 100: drop", {"action": 1, "size": (100, FAR)}),
    ("time 1us-2us: drop", {"action": 1, "time": (500, 1000)}),
    ("time 10-20 us: drop", {"action": 1, "time": (5000, 10000)}),
    ("from 1.5 ms: drop", {"action": 1, "time": (750_000, FAR)}),
    ("until 100 cycles: drop", {"action": 1, "time": (0, 100)}),
    ("delay 3ns", {"action": 3, "amount": 2}),
    ("delay 1 cycle 2 times", {"action": 3, "amount": 1, "limit": 2}),
    ("duplicate 3 times", {"action": 2, "amount": 3}),
    ("duplicate 3 times 2 times", {"action": 2, "amount": 3, "limit": 2}),
    ("duplicate, 3 times", {"action": 2, "amount": 1, "limit": 3}),
    ("duplicate once", {"action": 2, "limit": 1}),
    ("duplicate 2 copies, once", {"action": 2, "amount": 2, "limit": 1}),
    ("reorder 3 within 1us once", {"action": 4, "amount": 3, "within": 500, "limit": 1}),
    ("corrupt 3 bytes of header", {"action": 5, "amount": 3, "bytes": True, "region": "header"}),
    ("corrupt 2 bits anywhere", {"action": 5, "amount": 2}),
    ("corrupt 2 bits of anywhere 7 times", {"action": 5, "amount": 2, "limit": 7}),
    ("corrupt 16 bits in icrc", {"action": 5, "amount": 16, "region": "icrc"}),
    ("truncate", {"action": 6}),
    ("truncate to 60 bytes", {"action": 6, "cut": "to", "amount": 60}),
    ("truncate by 1", {"action": 6, "cut": "by", "amount": 1}),
]  # fmt: skip

#: text, column, part of the message
BAD = [
    ("qq 3: drop", 1, "unknown condition 'qq' (did you mean qp?)"),
    ("3: drop", 1, "expected a condition, found '3'"),
    (": drop", 1, "expected a condition, found ':'"),
    ("qp: drop", 3, "expected a QPN, found ':'"),
    ("qp three: drop", 4, "expected a QPN, found 'three'"),
    ("qp 16777216: drop", 4, "a QPN 16777216 is out of range (0 to 16777215)"),
    ("qp 1.5: drop", 4, "a QPN is a whole number"),
    ("qp 5-3: drop", 4, "range 5-3 is empty"),
    ("psn 0-0x1000000: drop", 7, "out of range"),
    ("qp 3 psn 4 qp 5: drop", 12, "a second condition of this kind: qp"),
    ("opcode ack class nak: drop", 12, "a second condition"),
    ("from 1us until 2us: drop", 10, "a second condition"),
    ("qp 3 opcode reed: drop", 13, "unknown opcode 'reed' (did you mean read?)"),
    ("opcode 256: drop", 8, "out of range (0 to 255)"),
    ("opcode ack or : drop", 15, "expected an opcode, found ':'"),
    ("direction 0: drop", 12, "expected '->', found ':'"),
    ("direction 0->16: drop", 14, "a PE 16 is out of range (0 to 15)"),
    ("direction a->b: drop", 11, "expected a PE, found 'a'"),
    ("every 3/2: drop", 7, "3/2 is more than all"),
    ("every 0: drop", 7, "out of range (at least 1)"),
    ("every 1/0: drop", 9, "out of range"),
    ("packet 0: drop", 8, "out of range"),
    ("nth 9-2: drop", 5, "range 9-2 is empty"),
    ("size < 0: drop", 8, "out of range"),
    ("size: drop", 5, "expected a size, found ':'"),
    ("time 1us: drop", 9, "expected '-' and the end of the time window, found ':'"),
    ("time 2us-1us: drop", 6, "the time window is empty"),
    ("time 1-2: drop", 9, "a time needs a unit (cycles, ns, us, ms), found ':'"),
    ("from now: drop", 6, "expected a time, found 'now'"),
    ("qp 3 drop", 6, "unknown condition 'drop'"),
    ("qp 3", 5, "expected ':' and an action, found the end of the line"),
    ("qp 3:", 6, "expected an action, found the end of the line"),
    ("qp 3: dorp", 7, "unknown action 'dorp' (did you mean drop?)"),
    ("qp 3: release", 7, "unknown action 'release'"),
    ("qp 3: qp 4: drop", 7, "unknown action 'qp'"),
    ("any 3: drop", 5, "expected ':', found '3'"),
    ("delay", 6, "expected a time, found the end of the line"),
    ("delay 2", 8, "a time needs a unit"),
    ("delay 2 hours", 9, "a time needs a unit (cycles, ns, us, ms), found 'hours'"),
    ("delay 0us", 7, "time 0 is out of range"),
    ("duplicate 0 times", 11, "out of range (1 to 1000)"),
    ("reorder", 8, "expected a number of later packets"),
    ("reorder 0", 9, "out of range"),
    ("reorder 1 within", 17, "expected a time"),
    ("corrupt bits", 9, "expected a number of bits or bytes, found 'bits'"),
    ("corrupt 17 bits", 9, "out of range (1 to 16)"),
    ("corrupt 1 nibble", 11, "unknown unit 'nibble'"),
    ("corrupt 1 bit of pay", 18, "unknown part of the frame 'pay'"),
    ("truncate to", 12, "expected a number of bytes"),
    ("drop 3", 7, "expected 'times', found the end of the line"),
    ("drop 0 times", 6, "out of range"),
    ("drop, sometimes", 7, "expected once, N times or always, found 'sometimes'"),
    ("drop once more", 11, "unexpected 'more' behind the rule"),
    ("drop ; duplicate", 6, "';' has no meaning here"),
    ("qp 3 psn 50\u2013150: drop", 12, "'\u2013' has no meaning here"),
]


@pytest.mark.parametrize(("text", "fields"), GOOD)
def test_good(text: str, fields: dict[str, Any]) -> None:
    """The fields, and the rule's own text gives the rule again."""
    (rule,) = faults.parse(text)
    assert rule == Rule(**{**fields, "action": Action(fields["action"])})
    assert faults.parse(str(rule)) == [rule]


@pytest.mark.parametrize(("text", "column", "message"), BAD)
def test_bad(text: str, column: int, message: str) -> None:
    """Line, column, message, all on one line."""
    with pytest.raises(RuleError) as caught:
        faults.parse(f"# first\n\n{text}\ndrop", "some.rules")
    assert (caught.value.line, caught.value.column) == (3, column), str(caught.value)
    assert message in caught.value.message
    assert str(caught.value) == f"some.rules:3:{column}: {caught.value.message}: {text.strip()}"
    assert "\n" not in str(caught.value)


def test_file() -> None:
    """Comments and blank lines are nothing; a rule knows its line."""
    rules = faults.parse("\n# loss\nevery 1/100: drop # often\n\n  \t\nreorder 2\n", "a.rules")
    assert [(r.where, str(r)) for r in rules] == [
        ("a.rules:3", "every 1/100: drop"),
        ("a.rules:6", "any: reorder 2"),
    ]
    assert faults.parse("") == faults.parse("# nothing\n") == []
    assert faults.as_rules([rules[0], "drop\nreorder 1"])[1:] == faults.parse("drop\nreorder 1")
    assert faults.as_rules(rules[0]) == rules[:1]


# --------------------------------------------------------------------------------------------------- any rule
def _ranges(top: int, low: int = 0) -> st.SearchStrategy[tuple[int, int] | None]:
    ints = st.integers(low, top)
    return st.none() | st.tuples(ints, ints).map(lambda r: (min(r), max(r)))


def _opt(low: int, high: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(low, high)


_NAMES = sorted([*OPCODES, *CLASSES, *SYNDROMES])
_CONDITIONS = {
    "qp": _ranges(0xFFFFFF),
    "psn": st.none() | st.tuples(st.integers(0, 0xFFFFFF), st.integers(0, 0xFFFFFF)),
    "opcode": st.lists(st.sampled_from(_NAMES) | st.integers(0, 255), max_size=3).map(tuple),
    "source": _opt(0, 15),
    "destination": _opt(0, 15),
    "size": _ranges(9000) | st.integers(0, 9000).map(lambda n: (n, FAR)),
    "time": _ranges(1 << 40) | st.integers(0, 9000).map(lambda n: (n, FAR)),
    "packet": _ranges(1 << 40, 1),
    "nth": _ranges(1 << 40, 1),
    "every": _opt(1, 1000),
    "chance": st.none() | st.tuples(st.integers(1, 50), st.integers(50, 10**6)),
    "limit": _opt(1, 99),
}
_ACTIONS = [
    {"action": st.just(Action.DROP)},
    {"action": st.just(Action.DUPLICATE), "amount": st.integers(1, 1000)},
    {"action": st.just(Action.DELAY), "amount": st.integers(1, 1 << 40)},
    {"action": st.just(Action.REORDER), "amount": st.integers(1, 99), "within": st.integers(1, 10**6)},
    {"action": st.just(Action.CORRUPT), "amount": st.integers(1, 16), "bytes": st.booleans(),
     "region": st.sampled_from(REGIONS)},
    {"action": st.just(Action.TRUNCATE)},
    {"action": st.just(Action.TRUNCATE), "cut": st.sampled_from(["to", "by"]),
     "amount": st.integers(1, 9000)},
]  # fmt: skip
_RULES = st.sampled_from(_ACTIONS).flatmap(lambda a: st.fixed_dictionaries({**_CONDITIONS, **a}))


@settings(max_examples=150, deadline=None)
@given(fields=_RULES)
def test_text_and_back(fields: dict[str, Any]) -> None:
    """Any rule equals what is read from its own text, and what its compiled form holds."""
    rule = Rule(**fields)
    assert faults.parse(str(rule)) == [rule]
    (row,) = compile_rules([rule], 7)
    assert (row["id"], row["action"], row["amount"], row["limit"]) == (
        7,
        rule.action,
        rule.amount,
        rule.limit or 0,
    )
    for n, name in enumerate(("qp", "psn", "opcode", "size", "time", "packet", "nth", "every", "chance")):
        value = fields[name]
        assert bool(row["conditions"] >> n & 1) == (value not in (None, ()))
        if value not in (None, ()) and name != "opcode":
            assert np.array_equal(row[name], value)


@settings(max_examples=100, deadline=None)
@given(text=st.text("qpsn 0123456789-:>*,/#once timesdrop\u00e9\t", max_size=40) | st.text(max_size=20))
def test_no_text_crashes(text: str) -> None:
    """Any text gives rules or a RuleError of one line."""
    try:
        faults.parse(text)
    except RuleError as error:
        assert error.column >= 1 and len(str(error).splitlines()) <= 1


def test_opcodes() -> None:
    """Every name stands for the packets that an independent list gives it, over all opcodes and syndromes."""
    rng = np.random.default_rng(1)
    names = [*CLASSES, *SYNDROMES, "write_only", "acknowledge", "atomic_response", "read_response_middle",
             "cmp_swap", "masked_fetch_add_4"]  # fmt: skip
    rows = {n: compile_rules([Rule(action=Action.DROP, opcode=(n,))])[0] for n in names}
    for opcode in range(256):
        for syndrome in (0x1F, 0x25, 0x45, 0x62, 0x81, 0xE0):
            packet = Sent(0, 0, 0, frame(0, opcode, 1, 1, bytes(64), rng, syndrome), 0)
            for name, row in rows.items():
                if opcode == 0x11:
                    hit = bool(row["syndromes"] >> (syndrome >> 5) & 1)
                else:
                    hit = bool(int(row["opcodes"][opcode >> 6]) >> (opcode & 63) & 1)
                assert hit == is_opcode(name, packet), (name, opcode, syndrome)


_NONE = [
    {"action": Action.RELEASE}, {"amount": 0}, {"qp": (0, 1 << 24)}, {"qp": (2, 1)}, {"source": 16},
    {"every": 0}, {"opcode": ("reed",)}, {"opcode": (256,)}, {"chance": (2, 1)}, {"region": "tail"},
    {"cut": "at"}, {"limit": 0}, {"action": Action.CORRUPT, "amount": 17}, {"within": 0},
]  # fmt: skip


@pytest.mark.parametrize("fields", _NONE)
def test_objects_are_checked(fields: dict[str, Any]) -> None:
    """What no text can say an object cannot be."""
    with pytest.raises(ValueError, match="fault rule"):
        Rule(**{"action": Action.DROP, **fields})


# ----------------------------------------------------------------------------------------------- command line
def _command(*args: str) -> subprocess.CompletedProcess[str]:
    cmd = [sys.executable, "-m", "tb.sim.faults", *args]
    return subprocess.run(cmd, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_command(tmp_path: Path) -> None:
    """Rules in the order of the options; a bad one, or a file that is none, ends with one line and code 2."""
    file = tmp_path / "loss.rules"
    file.write_text("every 1/100: drop\n\nreorder 2 # far\n")
    done = _command("--fault", "qp 3: drop once", "--fault-file", str(file), "--fault", "truncate")
    assert done.returncode == 0 and done.stdout.splitlines() == [
        "rule 0 (--fault:1): qp 3: drop, once",
        f"rule 1 ({file}:1): every 1/100: drop",
        f"rule 2 ({file}:3): any: reorder 2",
        "rule 3 (--fault:1): any: truncate",
    ]
    file.write_text("every 1/100: drop\nqp 3: dropp\n")
    bad = f"faults: {file}:2:7: unknown action 'dropp' (did you mean drop?): qp 3: dropp"
    none = tmp_path / "none"
    for args, line in (
        (("--fault-file", str(file)), bad),
        (("--fault", "qp"), "faults: --fault:1:3: expected a QPN, found the end of the line: qp"),
        (("--fault-file", str(none)), f"faults: cannot read '{none}': No such file or directory"),
        (("--fault-file", str(ROOT)), f"faults: cannot read '{ROOT}': Is a directory"),
    ):
        done = _command(*args)
        assert done.returncode == 2 and not done.stdout and len(done.stderr.splitlines()) == 1, done
        assert done.stderr == line + "\n"
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    done = _command("--fault-file", str(tmp_path / "binary"))
    assert (done.returncode, done.stderr) == (
        2,
        f"faults: cannot read '{tmp_path / 'binary'}': it is no text\n",
    )


def test_arguments_of_any_parser(capsys: pytest.CaptureFixture[str]) -> None:
    """Without options there are no rules, a second parse starts anew, and an error is one line."""
    parser = argparse.ArgumentParser(prog="make soak")
    faults.add_arguments(parser)
    assert parser.parse_args([]).faults == []
    assert len(parser.parse_args(["--fault", "drop\nreorder 2"]).faults) == 2
    assert parser.parse_args([]).faults == []
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--fault", "drop", "--fault", "qp 3: drop twice"])
    assert caught.value.code == 2
    line = "make soak: --fault:1:12: unexpected 'twice' behind the rule: qp 3: drop twice\n"
    assert capsys.readouterr().err == line
