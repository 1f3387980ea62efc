"""docs/packets.md: its examples of `camhil decode` and `encode` as they stand.

Sweep: all of them, in the page's order. Stimulus: the page's own text in a shell. Checks: they succeed, and
what is read back is what was made; the frame's ICRC is good. Timing: none. Not proved: Wireshark's part.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = [line[4:] for line in (ROOT / "docs" / "packets.md").read_text().splitlines() if line[:4] == "    "]
COMMANDS = [
    line for line in LINES if "camhil decode" in line or "camhil encode" in line or "> ops.json" in line
]


def test_the_page_can_be_pasted(tmp_path: Path) -> None:
    """Each line alone, in one folder."""
    camhil = shlex.join([sys.executable, str(ROOT / "camhil_cli.py")])
    said = []
    for command in COMMANDS:
        line = re.sub(r"\.venv/bin/camhil\b", lambda _: camhil, command)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-ec", line], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), f"{command}\n{done.stderr}"
        said.append(done.stdout)
    packet, made, doorbells, wqe, cqe, sq, cq = said
    assert made == "" and "good" in packet and '"sq_doorbell": "0x0000000005400040"' in doorbells
    assert "WQE" in wqe and "QP 42, new head 8" in sq and '"cq_id": 21' in cq
    assert re.search(r"qp_id +0x002a +42\b", cqe), cqe
