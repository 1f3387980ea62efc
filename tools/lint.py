"""All static checks of the project in one run; exit code 1 on any finding.

Usage: lint.py [--only NAME[,NAME]] [--rtl DIR] [--top MODULE]

Checks: verilator (-Wall over the whole design), slang (parse, elaboration, driver and latch analysis),
verible (style), headers (a sentence for each port and parameter, file named after its module), ruff, mypy
(--strict pymodel), benches (the sources that each block test names are all that its bench needs), generated
(committed outputs equal what their generators write now). There is no list of exceptions; a generated file
carries its own waivers, a hand-written one has to be clean.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyslang.parsing
import pyslang.syntax
from rtl_files import ROOT, TOP, is_generated, rtl_files

TOOLS = Path(__file__).resolve().parent
AT_LINE = r"^\S+:\d+:\d+"


@dataclass
class Scope:
    """What one run looks at: the RTL folder, its files in compile order and the top module."""

    rtl: Path
    files: list[Path]
    top: str


def show(path: Path) -> str:
    """Path relative to the repository, as printed."""
    return os.path.relpath(path, ROOT)


def run(command: Sequence[str | Path], finding: str) -> list[str]:
    """Run a tool; its findings are the lines that match `finding`, with their details after them.

    A tool that fails without such a line is a finding itself, so a broken tool never reads as clean.
    """
    done = subprocess.run([str(c) for c in command], cwd=ROOT, capture_output=True, text=True, check=False)
    found: list[str] = []
    for line in (done.stdout + done.stderr).splitlines():
        if re.search(finding, line):
            found.append(line)
        elif found and line.startswith((" ", "\t")):
            found[-1] += "\n" + line
    if done.returncode != 0 and not found:
        found = [f"{command[0]} exited with {done.returncode}:\n{done.stdout}{done.stderr}"]
    return found


def package_bin(package: str, name: str) -> Path:
    """A native program inside an installed Python package, never one of the same name on PATH."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"lint: package {package} is not installed; run `make setup`")
    return Path(next(iter(spec.submodule_search_locations))) / "bin" / name


def check_verilator(scope: Scope) -> list[str]:
    """Lint of the whole design from its top."""
    command = [package_bin("verilator", "verilator"), "--lint-only", "-Wall", "--top-module", scope.top]
    found = run([*command, *scope.files], r"^%(Warning|Error)")
    summary = re.compile(r"^%Error: Exiting due to")
    return [f for f in found if not summary.match(f)] or found


def check_slang(scope: Scope) -> list[str]:
    """Parse, elaborate and analyse with slang: a second front end, closer to the standard than Verilator."""
    command = [sys.executable, TOOLS / "slang_check.py", scope.top, *scope.files]
    return run(command, r"^\S+:\d+:\d+: (warning|error)")


def check_verible(scope: Scope) -> list[str]:
    """Style of all hand-written SystemVerilog: the design and the testbench.

    Testbench modules are programs between DPI-C calls, where blocking assignments are the way to work.
    """
    lines = (TOOLS / "verible.rules").read_text(encoding="utf-8").splitlines()
    rules = ",".join(line for line in lines if line and not line.startswith("#"))
    linter = package_bin("verible", "verible-verilog-lint")
    found = run([linter, f"--rules={rules}", *filter(lambda f: not is_generated(f), scope.files)], AT_LINE)
    if scope.rtl == ROOT / "rtl":
        bench = sorted([*ROOT.glob("tb/sv/**/*.sv"), *ROOT.glob("tests/**/*.sv")])
        found += run([linter, f"--rules={rules},-always-ff-non-blocking", *bench], AT_LINE) if bench else []
    return found


def check_headers(scope: Scope) -> list[str]:
    """A `///` sentence before each parameter and port, file named after its module, nothing from tb/.

    The signals of a standard bus say by their names what they are: one sentence before its first is enough.
    """
    found: list[str] = []
    kinds = pyslang.syntax.SyntaxKind
    for path in scope.files:
        if is_generated(path):
            continue
        text = path.read_text(encoding="utf-8")
        if re.search(r'`include\s+".*\btb/', text):
            found.append(f"{show(path)}: includes from tb/, which is not synthesised")
        root = pyslang.syntax.SyntaxTree.fromFile(str(path)).root
        members = list(root.members) if root.kind == kinds.CompilationUnit else [root]
        for module in (m for m in members if m.kind == kinds.ModuleDeclaration):
            name = module.header.name.valueText
            if name != path.stem:
                found.append(f"{show(path)}: holds module {name}; the file is named after its module")
            parts = list(module.header.parameters.declarations) if module.header.parameters else []
            parts += list(module.header.ports.ports) if module.header.ports else []
            buses: set[str] = set()
            for part in parts:
                if isinstance(part, pyslang.parsing.Token):  # the comma between two
                    continue
                source = str(part)
                code = [line for line in source.splitlines() if not line.strip().startswith("//")]
                item = " ".join(" ".join(code).split())
                bus = re.search(r"\b([sm]_axi[ls]?)_\w+$", item)
                described = re.search(r"^\s*/// \S", source, re.MULTILINE)
                if described and bus:
                    buses.add(bus.group(1))
                if not described and not (bus and bus.group(1) in buses):
                    found.append(f"{show(path)}: no /// sentence for `{item}`")
    return found


def check_ruff(scope: Scope) -> list[str]:
    """Python lint over the whole repository."""
    return run([sys.executable, "-m", "ruff", "check", "--output-format", "concise", "."], AT_LINE)


def check_mypy(scope: Scope) -> list[str]:
    """Types: pymodel under --strict, as pyproject.toml says."""
    return run([sys.executable, "-m", "mypy"], r": error:")


def check_benches(scope: Scope) -> list[str]:
    """Each block bench elaborates from the sources that its test names."""
    return run([sys.executable, "-m", "tools.bench_check"], r"^\S+: ")


def check_generated(scope: Scope) -> list[str]:
    """Each generator says whether its committed outputs are current."""
    found: list[str] = []
    for generator in sorted(TOOLS.glob("gen_*.py")):
        for message in run([sys.executable, generator, "--check"], r"."):
            found.append(f"{show(generator)} --check: {message}")
    return found


CHECKS: dict[str, Callable[[Scope], list[str]]] = {
    "verilator": check_verilator,
    "slang": check_slang,
    "verible": check_verible,
    "headers": check_headers,
    "ruff": check_ruff,
    "mypy": check_mypy,
    "benches": check_benches,
    "generated": check_generated,
}


def timed(name: str, scope: Scope) -> tuple[list[str], float]:
    """Findings of one check and the seconds it took."""
    start = time.monotonic()
    found = CHECKS[name](scope)
    return found, time.monotonic() - start


def main() -> int:
    """Run the chosen checks two at a time, print all findings, then one line a check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="comma-separated names: " + ", ".join(CHECKS))
    parser.add_argument("--rtl", type=Path, default=ROOT / "rtl", help="folder of the design")
    parser.add_argument("--top", default=TOP, help="top module")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        parser.error(f"no such check: {', '.join(unknown)}")
    scope = Scope(options.rtl.resolve(), rtl_files(options.rtl.resolve()), options.top)
    if not scope.files:
        print(f"lint: no SystemVerilog file in {scope.rtl}")
        return 1
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(names, pool.map(lambda name: timed(name, scope), names), strict=True))
    for name in names:
        for message in results[name][0]:
            print(message)
    total = 0
    print(f"lint: {len(scope.files)} design files, top {scope.top}")
    for name in names:
        found, seconds = results[name]
        total += len(found)
        print(f"  {name:<10} {'clean' if not found else f'{len(found)} findings':<14} {seconds:5.1f} s")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
