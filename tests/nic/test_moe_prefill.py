"""Prefill dispatch and combine of an MoE layer over the RTL NICs, every packet, byte, CQE and atomic judged.

Sweep: 4 ranks, 8 experts, 4 a token, ragged 5 to 16 tokens, h 1024 (programs page, section 6), two layers in
a row; both signalling variants x quantised or not x both format versions, the driver generations in turn;
2 ranks with rings of 16 WQEs, which the rows lap.
Stimulus: the torch-like functions as device programs. Checks: every output bit for bit as in window mode; the
result against a plain sum; WQEs by kind against a closed form from the routing alone; the judge's.
Timing: none. Not proved: 16 ranks (long test), decode.
"""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
import pytest

from pymodel.host.table import Fabric
from pymodel.operators.moe_layer import LayerSizes, PrefillLayer
from pymodel.run import RunResult
from tb.sim.platform import Rig

PES = 4
SMALL = {"experts": 8, "top_k": 4, "hidden": 1024, "hccl_buffsize": 420}


async def run(dut: Any, layer: PrefillLayer, knobs: dict[str, int] | None = None) -> RunResult:
    """The layer on the RTL, judged."""
    rig = Rig(dut, Fabric.build(layer.world.fabric()), knobs=knobs or {})
    await rig.start()
    result = await rig.run(layer.main)
    await rig.check(result)
    return result


def posts(layer: PrefillLayer) -> dict[str, int]:
    """WQEs by kind of all layers, counted from the routing alone (programs page, section 4)."""
    s, atomics = layer.sizes, layer.signalling == "atomics"
    ranks, local = s.ranks, s.experts // s.ranks
    want = {"WRITE": 0, "READ": 0, "ATOMIC": 0}
    for inputs in layer.inputs:
        # rows[src, expert]
        rows = np.array([np.bincount(i.topk_idx.ravel(), minlength=s.experts) for i in inputs])
        rows = rows.reshape(ranks, ranks, local)
        away = ~np.eye(ranks, dtype=bool)
        sent = int(rows[away].sum())
        want["READ"] += ranks * (ranks - 1) + int((rows[away] > 0).sum())
        if atomics:
            want["WRITE"] += sent
            # notify and dispatch: one a peer; combine: one for each rank that gets rows back
            want["ATOMIC"] += 2 * ranks * (ranks - 1) + int((rows.sum(axis=2)[away] > 0).sum())
        else:
            want["WRITE"] += ranks * (ranks - 1) + ranks * (ranks - 1) * local + 2 * sent
    return want


def check_posts(layer: PrefillLayer, result: RunResult) -> None:
    """The WQEs are exactly those."""
    want = posts(layer)
    got = {"READ": result.reads, "ATOMIC": result.atomics}
    got["WRITE"] = result.posts - result.reads - result.atomics
    assert got == want
    flags = want["WRITE"] - sum(
        int((i.topk_idx // (layer.sizes.experts // PES) != rank).sum())
        for inputs in layer.inputs
        for rank, i in enumerate(inputs)
    )
    assert result.figures.get("flags", 0) == flags


@cocotb.test()
@cocotb.parametrize(signalling=["flags", "atomics"], quant=[False, True], version=[1, 2])
async def test_layers(dut, signalling, quant, version):
    """Two layers of ragged ranks."""
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    tokens = rng.integers(5, 17, PES).tolist()
    sizes = LayerSizes(PES, tokens=tokens, quant=quant, **SMALL)
    generation = 1 + (2 * quant + version) % 3
    options = {"versions": (version,), "generation": generation, "mtus": (256, 1024, 4096)}
    layer = PrefillLayer(sizes, signalling, cocotb.RANDOM_SEED & 0xFFFF, 2, options)
    check_posts(layer, await run(dut, layer))


@cocotb.test()
@cocotb.parametrize(signalling=["flags", "atomics"])
async def test_small_rings(dut, signalling):
    """Rings that the rows lap, slow memory and link, stalls."""
    sizes = LayerSizes(PES, tokens=[16, 5, 9, 12], **SMALL)
    options = {"depth": 16, "mtus": (512,), "generation": 2}
    layer = PrefillLayer(sizes, signalling, 3, 1, options)
    knobs = {"mem_latency": 150, "link_latency": 200, "mem_latency_jitter": 40, "link_latency_jitter": 30}
    check_posts(layer, await run(dut, layer, knobs))


@cocotb.test()
@cocotb.parametrize(signalling=["flags", "atomics"], quant=[False, True])
@pytest.mark.long
async def test_full_width(dut, signalling, quant):
    """h 7168 on 4 ranks, as `make sim` runs it, also without quantisation."""
    layer = PrefillLayer(LayerSizes(PES, quant=quant, hccl_buffsize=640), signalling, 5, 2)
    check_posts(layer, await run(dut, layer))
