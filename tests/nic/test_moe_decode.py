"""Fused MoE decode over the RTL NICs, every packet, byte, CQE and atomic judged.

Sweep: 4 ranks, h 512, N1 1024, ragged batches up to 4 with masked tokens and ids of -1, three calls in a row;
both signalling variants x both format versions, driver generations in turn; two local experts, and one (the
shallow path). Long: h 7168, N1 4096, batch 16.
Stimulus: fused_deep_moe as a device program. Checks: output and counts bit for bit as in window mode; WQEs by
kind against a closed form from the routing alone; the judge's.
Timing: none. Not proved: 16 ranks; shared experts and W4A8, which add nothing to the packets.
"""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
import pytest

from pymodel.host.table import Fabric
from pymodel.operators.moe_decode import DecodeLayer, DecodeSizes
from pymodel.run import RunResult
from tb.sim.platform import Rig

PES = 4


async def run(dut: Any, layer: DecodeLayer, knobs: dict[str, int] | None = None) -> RunResult:
    """The calls on the RTL, judged."""
    rig = Rig(dut, Fabric.build(layer.world.fabric()), knobs=knobs or {})
    await rig.start()
    result = await rig.run(layer.main)
    await rig.check(result)
    return result


def posts(layer: DecodeLayer) -> dict[str, int]:
    """WQEs by kind of all calls, from the routing alone (operators page 6.4, programs page 4)."""
    s, atomics = layer.sizes, layer.signalling == "atomics"
    ranks, local = s.ranks, s.experts // s.ranks
    away = ranks * (ranks - 1)
    want = {"WRITE": 0, "ATOMIC": 0}
    for inputs in layer.inputs:
        rows = np.zeros((ranks, ranks), int)  # [source, destination]
        for rank, mine in enumerate(inputs):
            active = len(mine.x) if mine.mask is None else int(mine.mask.sum())
            ids = mine.expert_ids[:active]
            rows[rank] = np.bincount(ids[ids >= 0] // local, minlength=ranks)
        sent = int(rows.sum() - np.trace(rows))
        pairs = int((rows > 0).sum() - (np.diag(rows) > 0).sum())
        # a row goes out in two pieces (one with a single local expert) and comes back in one
        want["WRITE"] += sent * (2 if local > 1 else 1) + away * local + sent
        if atomics:
            want["ATOMIC"] += 2 * pairs
        else:
            want["WRITE"] += away
    return want


def check_posts(layer: DecodeLayer, result: RunResult) -> None:
    """The WQEs are exactly those; no READ."""
    assert result.reads == 0
    got = {"ATOMIC": result.atomics, "WRITE": result.posts - result.atomics}
    assert got == posts(layer)


@cocotb.test()
@cocotb.parametrize(signalling=["flags", "atomics"], version=[1, 2], experts=[4, 8])
async def test_calls(dut, signalling, version, experts):
    """Three calls of ragged ranks, with small MTUs too."""
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    batch = rng.integers(1, 5, PES).tolist()
    sizes = DecodeSizes(PES, experts, min(4, experts), batch, 512, 1024, skip=True)
    options = {"versions": (version,), "generation": 1 + (version + experts // 4) % 3, "mtus": (256, 4096)}
    layer = DecodeLayer(sizes, signalling, cocotb.RANDOM_SEED & 0xFFFF, 3, options)
    check_posts(layer, await run(dut, layer))


@cocotb.test()
@cocotb.parametrize(signalling=["flags", "atomics"])
@pytest.mark.long
async def test_full_width(dut, signalling):
    """h 7168, N1 4096, 16 experts, batch 16 (programs page, section 6)."""
    layer = DecodeLayer(DecodeSizes(PES), signalling, 9, 2)
    check_posts(layer, await run(dut, layer))
