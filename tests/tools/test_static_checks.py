"""tools/lint.py and tools/synth.py: each kind of fault planted in a small design turns them red.

Sweep: the faults below, one design file each, and a clean one.
Stimulus: a folder with one module, given to the tools with --rtl and --top.
Checks: exit code, and that the check that is meant to find the fault is the one that names it.
Timing: none. It does not prove that the real design is clean: `make lint` and `make synth` do.
"""

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"

HEAD = """module block (
  /// clock
  input  logic       clk_i,
  /// reset, active low
  input  logic       rst_ni,
  /// operand
  input  logic [3:0] a_i,
  /// result
  output logic [3:0] q_o
);
"""
RESET = """always_ff @(posedge clk_i or negedge rst_ni) begin
  if (!rst_ni) q_o <= '0;
  else q_o <= {};
end
"""
CLEAN = HEAD + RESET.format("a_i") + "endmodule\n"

LINT_FAULTS = {
    "verilator": HEAD + "logic [3:0] x;\n" + RESET.format("a_i + x") + "endmodule\n",  # x has no driver
    "slang": HEAD + RESET.format("a_i + undeclared") + "endmodule\n",
    "verible": HEAD + "\tlogic x;\nassign x = a_i[0];\n" + RESET.format("{3'b0, x}") + "endmodule\n",
    "headers": CLEAN.replace("  /// operand\n", ""),
}
SYNTH_FAULTS = {
    "logic loop": HEAD
    + "logic x, y;\nassign x = y ^ a_i[0];\nassign y = !x;\n"
    + RESET.format("{3'b0, x}")
    + "endmodule\n",
    "$dlatch": HEAD
    + "logic [3:0] x;\nalways_latch if (a_i[0]) x = a_i;\n"
    + RESET.format("x")
    + "endmodule\n",
    "init": HEAD
    + "logic x = 1'b1;\nalways_ff @(posedge clk_i) x <= a_i[0];\n"
    + RESET.format("{3'b0, x}")
    + "endmodule\n",
    "multiple": HEAD + "assign q_o = a_i;\nassign q_o[0] = a_i[1];\n" + "endmodule\n",
}


def run(tool: str, folder: Path, text: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a tool on a design of one module."""
    (folder / "block.sv").write_text(text)
    command = [sys.executable, TOOLS / tool, "--rtl", folder, "--top", "block", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_clean_design_passes(tmp_path: Path) -> None:
    """No finding without a fault, so the faults below are what turns the tools red."""
    code, out = run("lint.py", tmp_path, CLEAN, "--only", ",".join(LINT_FAULTS))
    assert code == 0, out
    code, out = run("synth.py", tmp_path, CLEAN, "--out", str(tmp_path / "out"))
    assert code == 0, out
    total = [line for line in out.splitlines() if line.split()[:1] == ["total"]]
    assert total and total[0].split()[1:] == ["1", "0", "4", "0", "0"], out


@pytest.mark.parametrize("check", LINT_FAULTS)
def test_lint_finds(tmp_path: Path, check: str) -> None:
    """Each check alone finds its fault."""
    code, out = run("lint.py", tmp_path, LINT_FAULTS[check], "--only", check)
    assert code == 1 and f"{check:<10} clean" not in out, out


@pytest.mark.parametrize("problem", SYNTH_FAULTS)
def test_synth_finds(tmp_path: Path, problem: str) -> None:
    """The flat check names the problem."""
    code, out = run("synth.py", tmp_path, SYNTH_FAULTS[problem], "--out", str(tmp_path / "out"))
    assert code == 1 and problem in out, out


def test_synth_names_a_module_that_nothing_uses(tmp_path: Path) -> None:
    """A file that the top never reaches is dead, or its user is missing."""
    (tmp_path / "orphan.sv").write_text(CLEAN.replace("module block", "module orphan"))
    code, out = run("synth.py", tmp_path, CLEAN, "--out", str(tmp_path / "out"))
    assert code == 1 and "never uses: orphan" in out, out


def test_lint_without_a_design_fails(tmp_path: Path) -> None:
    """An empty folder is not clean."""
    done = subprocess.run([sys.executable, TOOLS / "lint.py", "--rtl", tmp_path], check=False, timeout=60)
    assert done.returncode == 1
