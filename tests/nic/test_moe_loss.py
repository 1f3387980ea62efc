"""MoE dispatch and combine over a link that loses, doubles and reorders: the operators notice nothing.

Sweep: prefill and decode on 4 ranks, both signalling variants, prefill quantised or not; 1 % of all packets
each lost, doubled and held back behind two later ones, both format versions, MTU 256 to 4096. Long: the same
at h 7168, and 16 ranks.
Stimulus: the operators as device programs, transport timers of 2^9 units. Checks: every output bit for bit as
in window mode, which has no link; WQEs by kind as without faults; each kind of fault was applied, and packets
were sent again; the judge's.
Timing: none.
"""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
import pytest

from pymodel.faults.log import counts
from pymodel.host.table import Fabric
from pymodel.nic.params import Cnt
from pymodel.operators.moe_decode import DecodeLayer, DecodeSizes
from pymodel.operators.moe_layer import LayerSizes, PrefillLayer
from pymodel.run import RunResult, with_fault_timers
from tb.sim.platform import Rig
from tests.nic import test_moe_decode, test_moe_prefill

PES = 4
RULES = ("every 1/100: drop", "every 1/100: duplicate", "every 1/100: reorder 2")
KINDS = ("drop", "duplicate", "reorder")
#: all passes of a QP that loses everything
PATIENCE = 400_000


async def run(dut: Any, layer: PrefillLayer | DecodeLayer, at_least: int) -> RunResult:
    """The layer on the RTL with faults, judged; ``at_least`` so many of each kind were applied."""
    fabric = Fabric.build(with_fault_timers(layer.world.fabric()))
    rig = Rig(dut, fabric, faults=RULES, stall_limit=PATIENCE)
    await rig.start()
    result = await rig.run(layer.main, hang_after=PATIENCE)
    await rig.check(result)
    applied = counts(rig.fault_log())
    assert all(applied[kind] >= at_least for kind in KINDS), applied
    assert rig.total(Cnt.RETRY) > 0
    return result


@cocotb.test()
@cocotb.parametrize(signalling=["flags", "atomics"], quant=[False, True])
async def test_prefill(dut, signalling, quant):
    """Two layers of ragged ranks."""
    tokens = np.random.default_rng(cocotb.RANDOM_SEED).integers(5, 17, PES).tolist()
    sizes = LayerSizes(PES, tokens=tokens, quant=quant, **test_moe_prefill.SMALL)
    options = {"versions": (1, 2), "generation": 3, "mtus": (256, 1024, 4096)}
    layer = PrefillLayer(sizes, signalling, cocotb.RANDOM_SEED & 0xFFFF, 2, options)
    test_moe_prefill.check_posts(layer, await run(dut, layer, 2))


@cocotb.test()
@cocotb.parametrize(signalling=["flags", "atomics"])
async def test_decode(dut, signalling):
    """Three fused calls of ragged batches with masked tokens, two experts a rank."""
    batch = np.random.default_rng(cocotb.RANDOM_SEED).integers(2, 5, PES).tolist()
    sizes = DecodeSizes(PES, 8, 4, batch, 512, 1024, skip=True)
    options = {"versions": (1, 2), "generation": 2, "mtus": (256,)}
    layer = DecodeLayer(sizes, signalling, cocotb.RANDOM_SEED & 0xFFFF, 3, options)
    test_moe_decode.check_posts(layer, await run(dut, layer, 1))


@cocotb.test()
@cocotb.parametrize(signalling=["flags", "atomics"], kind=["prefill", "decode"])
@pytest.mark.long
@pytest.mark.sim_timeout(1800)
async def test_full_width(dut, signalling, kind):
    """h 7168."""
    if kind == "prefill":
        prefill = PrefillLayer(LayerSizes(PES, hccl_buffsize=640), signalling, 5, 2)
        test_moe_prefill.check_posts(prefill, await run(dut, prefill, 50))
    else:
        decode = DecodeLayer(DecodeSizes(PES), signalling, 9, 2)
        test_moe_decode.check_posts(decode, await run(dut, decode, 20))
