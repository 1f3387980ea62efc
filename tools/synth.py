"""Synthesis check of the design with yosys (pyosys, slang front end); exit code 1 on any problem.

Usage: synth.py [--rtl DIR] [--top MODULE] [--out DIR]

Two runs, each with its log under build/synth:
  check   the whole design flat, at word level: no latch, no combinational loop (also not through module
          borders), no net with two drivers, no initial value (the hardware has only its reset)
  blocks  hierarchy kept, mapped to generic gates; memories stay memories. Gives the table of gates,
          flip-flops and memory bits per module and folder, and build/synth/summary.json
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rtl_files import ROOT, TOP, rtl_files

FLIP_FLOP = re.compile(r"^\$_(S|AL)?DFF")
RESET = re.compile(r"^\$_(DFFE?_[PN][PN][01]|DFFSR|ALDFF|SDFF)")
LATCH = re.compile(r"^\$_DLATCH|^\$_SR_")


@dataclass
class Count:
    """Hardware of one module definition, or of several together."""

    instances: int = 0
    gates: int = 0
    flip_flops: int = 0
    without_reset: int = 0
    memory_bits: int = 0
    memories: list[str] = field(default_factory=list)

    def add(self, other: "Count") -> None:
        """Add another count to this one."""
        self.instances += other.instances
        self.gates += other.gates
        self.flip_flops += other.flip_flops
        self.without_reset += other.without_reset
        self.memory_bits += other.memory_bits
        self.memories += other.memories


def passes(stage: str, top: str, files: list[str]) -> list[str]:
    """Yosys commands of one run."""
    hierarchy = "--best-effort-hierarchy" if stage == "blocks" else ""
    common = [
        f"read_slang --top {top} {hierarchy} --ignore-assertions {' '.join(files)}",
        f"hierarchy -check -top {top}",
        "proc",
        "opt_clean",
    ]
    if stage == "check":
        return [*common, "check -assert -noinit -nolatches"]
    return [*common, "opt -fast", "memory -nomap", "opt -fast", "techmap", "opt -fast"]


def child(stage: str, top: str, out: str, files: list[str]) -> int:
    """One run of yosys, in a process of its own since yosys ends the process on an error."""
    from pyosys import libyosys as ys

    design = ys.Design()
    for command in passes(stage, top, files):
        ys.run_pass(command, design)
    modules: dict[str, dict[str, Any]] = {}
    for name, module in design.modules_.items():
        types: dict[str, int] = defaultdict(int)
        memories = []
        for cell in module.cells_.values():
            kind = cell.type.str()
            types[kind] += 1
            if kind in ("$mem", "$mem_v2"):
                size, width = (cell.getParam(ys.IdString(p)).as_int() for p in ("\\SIZE", "\\WIDTH"))
                memories.append((size, width))
        modules[name.str().lstrip("\\")] = {"types": types, "memories": memories}
    Path(out).write_text(json.dumps(modules), encoding="utf-8")
    return 0


def run_stage(stage: str, top: str, files: list[Path], out: Path) -> tuple[dict[str, Any], list[str], float]:
    """Result, problems and seconds of one run."""
    result = out / f"{stage}.json"
    result.unlink(missing_ok=True)
    log = out / f"{stage}.log"
    start = time.monotonic()
    command = [sys.executable, __file__, "--child", stage, "--top", top, "--result", str(result)]
    with log.open("w", encoding="utf-8") as stream:
        done = subprocess.run(
            [*command, *map(str, files)], cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, check=False
        )
    seconds = time.monotonic() - start
    if done.returncode == 0 and result.exists():
        return json.loads(result.read_text(encoding="utf-8")), [], seconds
    text = log.read_text(encoding="utf-8")
    tail = text[text.rfind("Executing CHECK pass") :] if "Executing CHECK pass" in text else text[-4000:]
    problems = [line for line in tail.splitlines() if line.strip()]
    return {}, problems or [f"yosys exited with {done.returncode}, see {log}"], seconds


def count(module: dict[str, Any]) -> Count:
    """Gates, flip-flops and memory bits of one elaborated module."""
    total = Count(instances=1)
    for kind, number in module["types"].items():
        if FLIP_FLOP.match(kind):
            total.flip_flops += number
            if not RESET.match(kind):
                total.without_reset += number
        elif kind.startswith("$_"):
            total.gates += number
    for size, width in module["memories"]:
        total.memory_bits += size * width
        total.memories.append(f"{size} x {width}")
    return total


def main() -> int:
    """Both runs, then the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rtl", type=Path, default=ROOT / "rtl", help="folder of the design")
    parser.add_argument("--top", default=TOP, help="top module")
    parser.add_argument("--out", type=Path, default=ROOT / "build/synth", help="folder of logs and result")
    parser.add_argument("--child", choices=["check", "blocks"], help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child, options.top, options.result, options.files)

    rtl = options.rtl.resolve()
    files = rtl_files(rtl)
    options.out.mkdir(parents=True, exist_ok=True)
    _, problems, seconds = run_stage("check", options.top, files, options.out)
    print(f"synth: check of {options.top}, flat, {seconds:.1f} s: {'FAILED' if problems else 'clean'}")
    if problems:
        print("\n".join(problems))
        return 1
    modules, problems, seconds = run_stage("blocks", options.top, files, options.out)
    print(f"synth: generic gates of {options.top}, {seconds:.1f} s: {'FAILED' if problems else 'done'}")
    if problems:
        print("\n".join(problems))
        return 1

    folder = {path.stem: str(path.parent.relative_to(rtl)) for path in files}
    per_module: dict[str, Count] = defaultdict(Count)
    latches = []
    for name, module in modules.items():
        definition = re.split(r"[$.]", name)[0]
        per_module[definition].add(count(module))
        latches += [f"{name}: {kind}" for kind in module["types"] if LATCH.match(kind)]
    per_folder: dict[str, Count] = defaultdict(Count)
    total = Count()
    for definition, numbers in per_module.items():
        per_folder[folder.get(definition, ".")].add(numbers)
        total.add(numbers)

    row = "  {:<28} {:>9} {:>9} {:>9} {:>9} {:>12}"
    print(row.format("block", "instances", "gates", "flops", "no reset", "memory bits"))

    def show(label: str, c: Count) -> None:
        print(row.format(label, c.instances, c.gates, c.flip_flops, c.without_reset, c.memory_bits))

    for place in sorted(per_folder):
        show("(top)" if place == "." else place + "/", per_folder[place])
        for definition in sorted(d for d in per_module if folder.get(d, ".") == place):
            show("  " + definition, per_module[definition])
    show("total", total)
    summary = {
        "top": options.top,
        "total": asdict(total),
        "folders": {k: asdict(v) for k, v in sorted(per_folder.items())},
        "modules": {k: asdict(v) for k, v in sorted(per_module.items())},
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    if latches:
        print("synth: latches\n" + "\n".join(latches))
        return 1
    unused = sorted(set(folder) - set(per_module) - {p.stem for p in files if p.stem.endswith("_pkg")})
    if unused:
        print(f"synth: modules that the design never uses: {', '.join(unused)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
