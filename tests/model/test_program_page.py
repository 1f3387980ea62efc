"""docs/programs.md names what a program may use of its PE, and nothing else.

Sweep: public members of `Pe` and parameters of its waits. Stimulus: the page. Checks: both ways.
Timing: none. Not proved: that what it says of them is right.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from pymodel.device.pe import Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.run import ModelRun

PAGE = (Path(__file__).parents[2] / "docs" / "programs.md").read_text()
#: what the device API and reports use; the docstrings of pe.py have them
INNER = {
    "atomics_checked", "core", "driver", "fabric", "figures", "heap_base", "heap_bases", "heap_size",
    "last_post", "last_wqe", "lkey", "local_tensor", "options", "ptr", "qp", "qps", "rdma_config", "seed",
    "step", "steps", "team_world", "ub", "use", "view", "waits", "words",
}  # fmt: skip


async def _nothing(pe: Pe) -> None:
    pass


def test_the_page_has_all_calls() -> None:
    """`pe.n_pes` and the parameters of `wait_until` were missing once."""
    run = ModelRun(Fabric.build(FabricConfig()), _nothing)
    run.run()
    pe = run.pes[0]
    public = {name for name in dir(pe) if not name.startswith("_")} - INNER
    words = set(re.findall(r"\w+", PAGE))
    assert public <= words, f"not in docs/programs.md: {sorted(public - words)}"
    named = set(re.findall(r"\bpe\.(\w+)\b(?!\.md)", PAGE)) - {"py"}
    assert named <= set(dir(pe)), f"no member of Pe: {sorted(named - set(dir(pe)))}"
    row = next(line for line in PAGE.splitlines() if "wait_until(" in line)
    assert {"peer", "timeout"} <= inspect.signature(Pe.wait_until).parameters.keys()
    assert "peer=" in row and "timeout=" in row
