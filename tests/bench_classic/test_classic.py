"""The NIC under cocotbext-axi: a judge of NIC and bus models that shares no line with tb/.

Sweep: one and several QPs; message sizes from 0 over one byte and unaligned lengths to several packets.
Stimulus, checks: classic_bench.py, with per-beat Python monitors.
Timing: none. Left out of `make test`: Python per beat is slow, and the model is one more build.
"""

import random
from typing import Any

import cocotb
import pytest

from tests.bench_classic.classic_bench import run_classic

pytestmark = pytest.mark.long

BENCH = {
    "top": "classic_pair",
    "sources": ["rtl/rnic_pkg.sv", "rtl/**/*.sv", "tests/bench_classic/classic_pair.sv"],
    "clock": None,
    "main": "cocotb",
    "args": ["-Wno-fatal", "-Wno-lint", "-Wno-style"],
}


@cocotb.test()
@cocotb.parametrize(work=[(2, 30, 0), (2, 40, 1), (4, 40, 63), (8, 64, 64), (2, 20, 1500), (3, 10, 10000)])
async def test_writes(dut: Any, work: tuple[int, int, int]) -> None:
    """QPs x WQEs x bytes."""
    figures = await run_classic(dut, *work, seed=random.getrandbits(32))
    assert figures["payload"] == work[0] * work[1] * work[2]
