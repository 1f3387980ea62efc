"""The resolver of the operator registry, `pymodel.operators.select_ops` and ``camhil select-ops``.

Sweep: both registries, every message, each pair of neighbouring rules in conflict, random registries and
lists. Stimulus: the rules in process; the two command lines as processes. Checks: stdout, stderr, exit code
against literal texts of the page and against an independent formulation. Timing: none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel import cli
from pymodel.operators import select_ops

ROOT = Path(__file__).parents[2]
M = str(select_ops.registry_path("M"))
F = str(select_ops.registry_path("F"))
SOC = "ascend910_93"
M_OPS = ["dispatch_layout", "fused_deep_moe", "moe_combine_normal", "moe_dispatch_normal", "notify_dispatch"]
F_OPS = [
    "a2e", "all_to_all_detour", "e2a", "fused_deep_moe", "fused_deep_moe_fwk", "fused_deep_moe_w4a8",
    "moe_combine_lowlatency_zb", "moe_combine_normal_zb", "moe_dispatch_layout_zb",
    "moe_dispatch_lowlatency_zb", "moe_dispatch_normal_zb", "moe_notify_dispatch_zb", "reduce_scatter_detour",
]  # fmt: skip
F_SHMEM = {"fused_deep_moe", *(op for op in F_OPS if op.endswith("_zb"))}
W4A8 = "fused_deep_moe_w4a8"
MUTEX_NOTE = f"NOTE: dropping {W4A8} (shares filenames with fused_deep_moe in the same run package)\n"
EMPTY = "ERROR: no operators to compile after filtering (check SHMEM installation or -a selection)\n"
BOTH = f"ERROR: fused_deep_moe and {W4A8} share filenames; select only one, or use -q for {W4A8}\n"
QUANT = f"ERROR: -q selects {W4A8}; remove fused_deep_moe from -a or drop -q\n"


def _dropped(*ops: str) -> str:
    return "".join(f"NOTE: dropping {op} (requires SHMEM, which is not installed)\n" for op in ops)


def _unknown(op: str, ops: list[str]) -> str:
    return f"ERROR: operator '{op}' not in SOC support list; valid: [{', '.join(ops)}]\n"


def _args(registry: str, shmem: int, *more: str, soc: str = SOC) -> list[str]:
    return ["--registry", registry, "--soc", soc, "--shmem", str(shmem), *more]


ZB_F = [op for op in F_OPS if op in F_SHMEM and op != "fused_deep_moe"]
CASES: dict[str, tuple[list[str], list[str], str]] = {
    # name: (arguments, operators, stderr); no operators means exit code 1
    "M all, SHMEM": (_args(M, 1), M_OPS, ""),
    "M all, no SHMEM": (_args(M, 0), M_OPS, ""),
    "F all, SHMEM": (_args(F, 1), [op for op in F_OPS if op != W4A8], MUTEX_NOTE),
    "F all, no SHMEM: mutex before the SHMEM filter, so neither fused operator": (
        _args(F, 0),
        [op for op in F_OPS if op not in F_SHMEM and op != W4A8],
        MUTEX_NOTE + _dropped("fused_deep_moe", *ZB_F),
    ),
    "F all, quant": (_args(F, 1, "--quant"), [op for op in F_OPS if op != "fused_deep_moe"], ""),
    "F all, quant, no SHMEM": (
        _args(F, 0, "--quant"),
        [op for op in F_OPS if op not in F_SHMEM],
        _dropped(*ZB_F),
    ),
    "M all, quant: w4a8 is not listed and vanishes": (
        _args(M, 1, "--quant"),
        [op for op in M_OPS if op != "fused_deep_moe"],
        "",
    ),
    "registry order, duplicates and spaces vanish": (
        _args(M, 1, "--ops", " notify_dispatch;dispatch_layout ;notify_dispatch"),
        ["dispatch_layout", "notify_dispatch"],
        "",
    ),
    "w4a8 alone is kept": (_args(F, 0, "--ops", W4A8), [W4A8], ""),
    "base alone": (_args(F, 1, "--ops", "fused_deep_moe"), ["fused_deep_moe"], ""),
    "fwk stands beside base": (
        _args(F, 1, "--ops", "fused_deep_moe_fwk;fused_deep_moe"),
        ["fused_deep_moe", "fused_deep_moe_fwk"],
        "",
    ),
    "quant adds w4a8 unasked": (_args(F, 1, "--quant", "--ops", "e2a"), ["e2a", W4A8], ""),
    "quant with w4a8 asked for": (_args(F, 1, "--quant", "--ops", f"{W4A8};a2e"), ["a2e", W4A8], ""),
    "quant with the base asked for": (_args(F, 1, "--quant", "--ops", "fused_deep_moe"), [], QUANT),
    "quant with both asked for": (_args(F, 1, "--quant", "--ops", f"{W4A8};fused_deep_moe"), [], QUANT),
    "quant where the base is the only one that M has": (
        _args(M, 1, "--quant", "--ops", "fused_deep_moe"),
        [],
        QUANT,
    ),
    "both asked for": (_args(F, 1, "--ops", f"{W4A8};fused_deep_moe"), [], BOTH),
    "both asked for, no SHMEM: the mutex comes first, no note": (
        _args(F, 0, "--ops", f"fused_deep_moe;{W4A8}"),
        [],
        BOTH,
    ),
    "nothing left": (_args(F, 0, "--ops", "fused_deep_moe"), [], _dropped("fused_deep_moe") + EMPTY),
    "notes in the user's order, one an entry": (
        _args(F, 0, "--ops", "moe_dispatch_normal_zb;a2e;moe_combine_normal_zb;moe_dispatch_normal_zb"),
        ["a2e"],
        _dropped("moe_dispatch_normal_zb", "moe_combine_normal_zb", "moe_dispatch_normal_zb"),
    ),
    "unknown operator": (_args(M, 1, "--ops", "dispatch_layout;nope;worse"), [], _unknown("nope", M_OPS)),
    "unknown before the mutex": (
        _args(F, 1, "--quant", "--ops", "fused_deep_moe;utils"),
        [],
        _unknown("utils", F_OPS),
    ),
    "names are case-sensitive": (
        _args(M, 1, "--ops", "Dispatch_layout"),
        [],
        _unknown("Dispatch_layout", M_OPS),
    ),
    **{
        f"empty entry in {text!r}, found before an unknown one": (
            _args(M, 1, "--ops", text),
            [],
            "ERROR: -a list contains empty entry\n",
        )
        for text in ("", " ", ";dispatch_layout", "dispatch_layout;", "dispatch_layout;;nope", "nope; ;nope")
    },
    "unknown SoC": (
        _args(M, 1, soc="ascend950"),
        [],
        "ERROR: SOC 'ascend950' not registered; supported: [ascend910_93]\n",
    ),
    "unknown SoC before the list": (
        _args(M, 1, "--ops", ";", soc="x"),
        [],
        "ERROR: SOC 'x' not registered; supported: [ascend910_93]\n",
    ),
}


def _call(args: list[str]) -> int:
    try:
        return select_ops.main(args)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize("name", CASES)
def test_rules(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Operators, notes, errors, exit code; the same through ``camhil select-ops``."""
    args, operators, errors = CASES[name]
    for entry in (select_ops.main, lambda a: cli.main(["select-ops", *a])):
        code = entry(args)
        out, err = capsys.readouterr()
        assert (out, err, code) == ("".join(f"{op}\n" for op in operators), errors, 0 if operators else 1)


def _files(tmp_path: Path) -> dict[str, tuple[Path, str, int]]:
    """Registries that are not usual: file, stderr, exit code."""
    texts = {
        "empty": "{}",
        "no socs": '{"soc_versions": {}}',
        "two socs": '{"soc_versions": {"b": ["x"], "a": []}}',
        "no meta": f'{{"soc_versions": {{"{SOC}": ["x"]}}}}',
        "no operators": f'{{"soc_versions": {{"{SOC}": []}}}}',
        "list": "[1]",
    }
    none = f"ERROR: SOC '{SOC}' not registered; supported: [(none)]\n"
    files = {name: tmp_path / f"{name}.json" for name in texts}
    for name, text in texts.items():
        files[name].write_text(text)
    broken, binary = tmp_path / "broken.json", tmp_path / "binary.json"
    broken.write_text("{\n x")
    binary.write_bytes(b'{"\xff": 1}')
    parse = "ERROR: registry JSON parse error: {}: "
    return {
        "empty": (files["empty"], none, 1),
        "no socs": (files["no socs"], none, 1),
        "two socs": (files["two socs"], none.replace("(none)", "b, a"), 1),
        "no meta": (files["no meta"], "", 0),
        "no operators": (files["no operators"], EMPTY, 1),
        "list": (files["list"], parse.format(files["list"]) + "not a JSON object\n", 1),
        "broken": (
            broken,
            parse.format(broken)
            + "Expecting property name enclosed in double quotes: line 2 column 2 (char 3)\n",
            1,
        ),
        "binary": (binary, parse.format(binary) + "'utf-8' codec can't decode byte 0xff", 1),
        "missing": (tmp_path / "none", f"ERROR: registry file not found: {tmp_path / 'none'}\n", 1),
        "directory": (tmp_path, f"ERROR: registry file not found: {tmp_path}\n", 1),
    }


@pytest.mark.parametrize(
    "name",
    [
        "empty",
        "no socs",
        "two socs",
        "no meta",
        "no operators",
        "list",
        "broken",
        "binary",
        "missing",
        "directory",
    ],
)
def test_registry_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that are missing, broken or poor."""
    path, error, code = _files(tmp_path)[name]
    assert _call(_args(str(path), 0)) == code
    out, err = capsys.readouterr()
    assert err.startswith(error) and bool(err) == bool(code)
    assert out == ("x\n" if code == 0 else "")


BAD_LINES = [
    [],
    ["--registry", M, "--soc", SOC],
    ["--registry", M, "--shmem", "1"],
    ["--soc", SOC, "--shmem", "1"],
    ["--registry", M, "--soc", SOC, "--shmem", "2"],
    ["--registry", M, "--soc", SOC, "--shmem", "1", "--ops"],
    ["--registry", M, "--soc", SOC, "--shmem", "1", "--more"],
]


@pytest.mark.parametrize("args", BAD_LINES)
def test_bad_command_lines(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse refuses them: exit code 2, nothing on stdout."""
    assert _call(args) == 2
    with pytest.raises(SystemExit) as stop:
        cli.main(["select-ops", *args])
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and err != ""


@pytest.mark.parametrize(
    ("args", "operators", "error", "code"),
    [
        (
            _args(F, 0, "--quant", "--ops", "e2a;moe_combine_normal_zb"),
            ["e2a", W4A8],
            _dropped("moe_combine_normal_zb"),
            0,
        ),
        (_args(F, 1, "--ops", f"fused_deep_moe;{W4A8}"), [], BOTH, 1),
        (["--soc", SOC], [], None, 2),
    ],
)
@pytest.mark.parametrize("entry", [["-m", "pymodel.operators.select_ops"], ["camhil_cli.py", "select-ops"]])
def test_processes(
    entry: list[str], args: list[str], operators: list[str], error: str | None, code: int
) -> None:
    """The two commands as a user starts them."""
    done = subprocess.run(
        [sys.executable, *entry, *args], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "".join(f"{op}\n" for op in operators))
    assert done.stderr == error if error is not None else "--registry" in done.stderr
    assert "Traceback" not in done.stderr


def test_registries() -> None:
    """Both generations are as the page lists them; the schema's fields and no others."""
    for path, ops, shmem in ((M, M_OPS, set[str]()), (F, F_OPS, F_SHMEM)):
        registry = json.loads(Path(path).read_text())
        assert set(registry) <= {"_comment", "soc_versions", "operator_meta"}
        assert registry["soc_versions"] == {SOC: ops}
        meta = registry["operator_meta"]
        assert set(meta) <= set(ops)
        assert {op for op in meta if meta[op]["requires_shmem"]} == shmem
        assert all(set(m) <= {"requires_shmem", "family", "variant", "_note"} for m in meta.values())
    assert not {"a2e", "e2a", "all_to_all_detour", "reduce_scatter_detour"} & set(meta)
    assert meta["fused_deep_moe"]["variant"] == "base" and meta[W4A8]["variant"] == "w4a8"
    assert set(json.loads(Path(M).read_text())["operator_meta"]) == set(M_OPS)


NAMES = ["a", "b", "fused_deep_moe", W4A8, "c"]


def _page(listed: list[str], needs: set[str], shmem: bool, quant: bool, ops: str | None) -> Any:
    """The outcome as a membership rule per operator: an error's first words, or (operators, notes)."""
    base, w4 = "fused_deep_moe", W4A8
    words = None if ops is None else [w.strip() for w in ops.split(";")]
    if words is not None:
        if not all(words):
            return "-a list"
        for word in words:
            if listed.count(word) == 0:
                return f"operator '{word}'"
        if base in words and quant:
            return "-q selects"
        if base in words and w4 in words:
            return f"{base} and {w4}"
    chosen = listed if words is None else words
    clash = words is None and not quant and {base, w4} <= set(listed)

    def kept_by_mutex(op: str) -> bool:
        return not (op == base and quant or op == w4 and clash)

    order = [op for op in chosen if kept_by_mutex(op)] + ([w4] if quant and w4 not in chosen else [])
    notes = [f"dropping {w4} (shares"] * clash + [
        f"dropping {op} (requires" for op in order if op in needs and not shmem
    ]
    return [op for op in listed if op in order and (shmem or op not in needs)], notes


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    listed=st.lists(st.sampled_from(NAMES), unique=True),
    needs=st.sets(st.sampled_from(NAMES)),
    shmem=st.booleans(),
    quant=st.booleans(),
    words=st.none() | st.lists(st.sampled_from([*NAMES, *NAMES, " a ", "", "z"]), min_size=1, max_size=5),
)
def test_against_the_page(
    listed: list[str], needs: set[str], shmem: bool, quant: bool, words: list[str] | None
) -> None:
    """Random registries and lists against a formulation of the page's rules in this file."""
    registry = {
        "soc_versions": {"soc": listed},
        "operator_meta": {op: {"requires_shmem": op in needs} for op in NAMES if op in needs or op == "a"},
    }
    ops = None if words is None else ";".join(words)
    expected = _page(listed, needs, shmem, quant, ops)
    try:
        selected, notes = select_ops.resolve(registry, "soc", shmem, quant, ops)
    except select_ops.SelectionError as error:
        assert isinstance(expected, str) and str(error).startswith(expected)
        return
    assert isinstance(expected, tuple)
    assert selected == expected[0]
    assert len(notes) == len(expected[1])
    assert all(note.startswith(start) for note, start in zip(notes, expected[1], strict=True))


def _filter_first(
    registry: Any, soc: str, shmem: bool, quant: bool = False, ops: str | None = None
) -> tuple[list[str], list[str]]:
    """A planted fault: the SHMEM filter before the mutex."""
    meta = registry["operator_meta"]
    listed = [
        op
        for op in registry["soc_versions"][soc]
        if shmem or not meta.get(op, {}).get("requires_shmem", False)
    ]
    return RESOLVE({**registry, "soc_versions": {soc: listed}}, soc, True, quant, ops)


RESOLVE = select_ops.resolve


@pytest.mark.parametrize("fault", [_filter_first])
def test_planted_fault(
    fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The order of mutex and SHMEM filter is seen: the swapped order keeps w4a8."""
    monkeypatch.setattr(select_ops, "resolve", fault)
    name = "F all, no SHMEM: mutex before the SHMEM filter, so neither fused operator"
    with pytest.raises(AssertionError):
        test_rules(name, capsys)
