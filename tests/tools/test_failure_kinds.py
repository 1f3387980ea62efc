"""docs/failure-kinds.md: the table says of every kind what covers it, and what it names exists.

Sweep: all rows of the ten areas. Checks: each ID has exactly one line; a line names tests, assertions or
planted faults, or says why its kind does not apply; every name is that of a test function, of an assertion
or of a planted fault. Where the collection of kinds lies beside the repository, its IDs are those of the
table.
Timing: none. Does not prove that a test covers its kind: that is for the reader.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import plant

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "failure-kinds.md"
KINDS = ROOT.parent / "shared" / "failure-kinds.md"
#: area: numbers of its rows
ROWS = {
    "A": range(1, 16, 2), "B": range(1, 14, 2), "C": range(2, 25, 2), "D": range(2, 17, 2),
    "E": range(1, 22, 2), "F": range(2, 15, 2),
    "G": range(2, 15, 2), "H": range(2, 11, 2), "I": range(2, 17, 2), "L": range(2, 9, 2),
}  # fmt: skip
IDS = [f"{area}{number:02}" for area, numbers in ROWS.items() for number in numbers]
NO = "does not apply: "


def lines(text: str) -> Iterator[tuple[str, str, str]]:
    """(ID, kind, what covers it) of each row, whatever area it claims to be of."""
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| ID "):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            assert len(cells) == 3 and all(cells), line
            yield cells[0], cells[1], cells[2]


@functools.cache
def functions_of(file: Path) -> frozenset[str] | None:
    """Names of the test functions of a file, None where there is no such file."""
    if not file.is_file():
        return None
    nodes = ast.parse(file.read_text()).body
    names = (n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return frozenset(name for name in names if name.startswith("test_"))


def missing(name: str) -> str | None:
    """Why a name of the table is none, or None."""
    if name.startswith("plant:"):
        return None if name[6:] in {fault.name for fault in plant.FAULTS} else "no such planted fault"
    if found := re.fullmatch(r"(tb/sv/\w+\.sv):(\w+)", name):
        file = ROOT / found[1]
        label = rf"^\s*{found[2]} : assert\b"
        return None if file.is_file() and re.search(label, file.read_text(), re.M) else "no such assertion"
    if found := re.fullmatch(r"([\w/]+\.py)::(\w+)", name):
        tests = functions_of(ROOT / "tests" / found[1])
        return "no such file" if tests is None else None if found[2] in tests else "no such test"
    return "neither test, assertion nor planted fault"


def faults(text: str) -> list[str]:
    """What is wrong with a table, one line each."""
    found = []
    rows = list(lines(text))
    for row in IDS:
        count = sum(row == ident for ident, _, _ in rows)
        if count != 1:
            found.append(f"{row}: {count} lines")
    for ident, _, cover in rows:
        if ident not in IDS:
            found.append(f"{ident}: no row of these areas")
        names = re.findall("`([^`]+)`", cover)
        if not names and len(cover) <= len(NO) + 10 or not (cover.startswith((NO, "`"))):
            found.append(f"{ident}: neither a test nor a reason")
        found += [f"{ident}: {name}: {why}" for name in names if (why := missing(name))]
    return found


def test_every_kind_has_its_line() -> None:
    """The table as it stands."""
    assert faults(TABLE.read_text()) == []


@pytest.mark.skipif(not KINDS.exists(), reason="the collection of kinds is not part of the repository")
def test_the_rows_are_those_of_the_collection() -> None:
    """No row of these areas that the table does not know."""
    found = re.findall(r"^\| ([A-IL]\d\d) \|", KINDS.read_text(), re.M)
    assert sorted(found) == sorted(IDS)


GOOD = "`nic/test_rings.py::test_every_depth`"
BAD = [
    ("| A01 | a | " + GOOD + " |\n", "A01: 2 lines"),
    ("| A02 | a | " + GOOD + " |\n", "A02: no row of these areas"),
    (
        "| A03 | a | `nic/test_rings.py::test_no_depth` |\n",
        "A03: nic/test_rings.py::test_no_depth: no such test",
    ),
    ("| A03 | a | `nic/test_ringos.py::test_every_depth` |\n", "no such file"),
    ("| A03 | a | `nic/test_rings.py::fabric` |\n", "no such test"),
    ("| A03 | a | `plant:nothing` |\n", "A03: plant:nothing: no such planted fault"),
    ("| A03 | a | `tb/sv/axi4_checker.sv:aw_5k` |\n", "A03: tb/sv/axi4_checker.sv:aw_5k: no such assertion"),
    ("| A03 | a | `make sim` |\n", "neither test, assertion nor planted fault"),
    ("| A03 | a | later |\n", "A03: neither a test nor a reason"),
    ("| A03 | a | does not apply: no |\n", "A03: neither a test nor a reason"),
]


@pytest.mark.parametrize(("row", "fault"), BAD, ids=range(len(BAD)))
def test_a_wrong_table_is_found(row: str, fault: str) -> None:
    """Each way in which the table may be wrong."""
    text = TABLE.read_text()
    row_id = row[2:5]
    if "2 lines" not in fault:
        text = "".join(line for line in text.splitlines(True) if not line.startswith(f"| {row_id} "))
    got = faults(text + row)
    assert any(fault in line for line in got), got


def test_a_missing_line_is_found() -> None:
    """Each row in turn."""
    text = TABLE.read_text()
    for row in IDS:
        less = "".join(line for line in text.splitlines(True) if not line.startswith(f"| {row} "))
        assert faults(less) == [f"{row}: 0 lines"]
