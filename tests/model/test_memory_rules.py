"""Fault rules of memory: language, errors with their position, which words fail, the log.

Sweep: every condition and action; random rules against a bit-by-bit restatement of which access fails.
Checks: a rule reads back from its sentence; a bad rule gives one line with source, line and column, and exit
code 2; shares of random words; lines of the log in the order of time. Timing: none. Not proved here: what the
testbench does with rules (tests/nic/test_memory_faults.py).
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from pymodel import cli, faults
from pymodel.faults import MemoryAction, MemoryRule, RuleError, parse
from pymodel.faults.log import LOG, MEMORY_LOG, memory_counts, text
from pymodel.faults.memory import drawn, key_of

FAR = (1 << 64) - 1
GOOD = {
    "memory pe 1 read 0x1000-0x1fff: slverr": {
        "pe": (1, 1), "write": False, "address": (0x1000, 0x1FFF), "action": MemoryAction.SLVERR,
    },
    "memory write every 1/500: decerr": {"read": False, "chance": (1, 500), "action": MemoryAction.DECERR},
    "memory read: stall 3us once": {
        "write": False, "action": MemoryAction.STALL, "amount": 1500, "limit": 1,
    },
    "memory pe 0-3, read and write address 64: slverr": {
        "pe": (0, 3), "address": (64, 64), "action": MemoryAction.SLVERR,
    },
    "memory: stall 7 cycles, 3 times": {"action": MemoryAction.STALL, "amount": 7, "limit": 3},
    "memory write nth 5-9 from 1us: stall 2ns": {
        "read": False, "nth": (5, 9), "time": (500, FAR), "action": MemoryAction.STALL, "amount": 1,
    },
    "memory every 3rd until 20 cycles: stall 1us always": {
        "every": 3, "time": (0, 20), "action": MemoryAction.STALL, "amount": 500,
    },
}  # fmt: skip
#: rule -> (column, part of the message)
BAD = {
    "memory read: slverr once": (21, "fails as long as the rule stands"),
    "memory read nth 2: decerr": (13, "holds for addresses"),
    "memory from 1us write: decerr": (8, "holds for addresses"),
    "memory pe 16: slverr": (11, "out of range"),
    "memory red: decerr": (8, "did you mean read?"),
    "memory read": (12, "expected ':'"),
    "memory qp 3: slverr": (8, "unknown condition of memory 'qp'"),
    "memory read: drop": (14, "unknown action 'drop'"),
    "memory read: slver": (14, "did you mean slverr?"),
    "memory 0x2000-0x1000: slverr": (8, "is empty"),
    "memory read read: decerr": (13, "a second condition"),
    "memory write: stall": (20, "expected a time"),
    "memory write: stall 3": (22, "needs a unit"),
    "memory write: stall 3us now": (25, "unexpected 'now'"),
    "memory every 3/2: slverr": (14, "more than all"),
    "qp 3 memory: drop": (6, "unknown condition 'memory'"),
}  # fmt: skip


@pytest.mark.parametrize("line", GOOD)
def test_sentences(line: str) -> None:
    """Each means what it says, and its own sentence means the same."""
    (rule,) = parse(line)
    assert rule == MemoryRule(**GOOD[line])
    assert parse(str(rule)) == [rule]


@pytest.mark.parametrize("line", BAD)
def test_bad_rules(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names source, line and column; a command ends with exit code 2."""
    column, part = BAD[line]
    with pytest.raises(RuleError) as caught:
        parse(f"\n# before\n{line}", "my.rules")
    error = caught.value
    assert (error.source, error.line, error.column) == ("my.rules", 3, column), str(error)
    assert part in error.message and "\n" not in str(error)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "programs/hello_put.py", "--fault", line])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_link_and_memory_in_one_file() -> None:
    """Both kinds stand in one text, in their order."""
    rules = parse("drop once\nmemory read: stall 1us  # slow\nqp 3: duplicate\n")
    assert [isinstance(rule, MemoryRule) for rule in rules] == [False, True, False]
    assert [rule.where for rule in rules] == ["faults:1", "faults:2", "faults:3"]


def test_the_model_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """Golden NICs have no bus: one line, exit code 2."""
    assert cli.main(["run", "programs/hello_put.py", "--fault", "memory read: slverr"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "memory rules need --on rtl" in lines[0]


def test_which_access_fails() -> None:
    """One of the 64-byte words that it touches must hold an address of the rule, and be drawn."""
    rng = random.Random(5)
    for _ in range(400):
        low = rng.choice((0, 1, 63, 64, 4096, FAR - 200, rng.getrandbits(64)))
        high = min(FAR, low + rng.choice((0, 1, 63, 64, 500)))
        key, chance = rng.getrandbits(64), rng.choice((None, (1, 2), (1, 7)))
        rule = MemoryRule(
            action=MemoryAction.DECERR, address=(low, high), chance=chance, pe=rng.choice((None, (1, 2))),
            read=True, write=rng.random() < 0.5,
        )  # fmt: skip
        pe, write = rng.randrange(4), rng.random() < 0.5
        addr = min(FAR - 400, max(0, low + rng.randrange(-300, 600)))
        size = rng.choice((0, 1, 8, 64, 300))
        words = {a >> 6 for a in range(addr, addr + size)} & {a >> 6 for a in range(low, high + 1)}
        if chance is not None:
            words = {w for w in words if drawn(np.array([w], np.uint64), chance, key)[0]}
        due = bool(words) and (rule.pe is None or 1 <= pe <= 2) and (rule.write or not write)
        assert rule.fails(pe, addr, size, write, key) == due, (rule, pe, hex(addr), size, write)


@pytest.mark.parametrize("chance", [(1, 3), (1, 50), (7, 500)])
def test_share_of_words(chance: tuple[int, int]) -> None:
    """About as many words as asked for, others under another seed and for another rule."""
    words = np.arange(1 << 16, dtype=np.uint64) + np.uint64(1 << 40)
    hits = [drawn(words, chance, key_of(seed, place)) for seed, place in ((1, 0), (1, 1), (2, 0))]
    for hit in hits:
        assert 0.9 < hit.mean() / (chance[0] / chance[1]) < 1.1
    expected = (chance[0] / chance[1]) ** 2
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (hits[a] & hits[b]).mean() < 2 * expected + 0.001


def test_log() -> None:
    """Entries of link and memory in the order of time, each with access, deed and rule; counts by kind."""
    rules = faults.parse("memory read: slverr\nevery 1/2: drop\nmemory write: stall 4 cycles", "f")
    link, memory = np.zeros(1, LOG), np.zeros(2, MEMORY_LOG)
    link["time"], link["action"], link["rule"], link["destination"] = 15, 1, 1, 1
    memory["time"], memory["rule"], memory["addr"] = [20, 10], [2, 0], [0x4000, 0x1040]
    memory["action"], memory["write"], memory["id"], memory["amount"] = [1, 2], [1, 0], [3, 1], [4, 0]
    lines = text(link, rules, memory).splitlines()
    assert lines[0] == "cycle 10 pe 0 gather read 0x1040: answered SLVERR, rule 0 (f:1)"
    assert lines[1].startswith("cycle 15 0->1 packet 0 no RoCEv2 frame")
    assert lines[2] == "cycle 20 pe 0 inbound write 0x4000: stalled by 4 cycles, rule 2 (f:3)"
    assert lines[3] == "faults: 1 drop, 1 stall, 1 slverr"
    assert memory_counts(memory) == {"stall": 1, "slverr": 1, "decerr": 0}
