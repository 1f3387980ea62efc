"""Prefill of an MoE layer over 16 and over 8 RTL NICs at full width, judged (programs page, section 6).

Sweep: 16 ranks, 16 experts, 8 a token, 32 tokens, h 7168; quantised or not, both signalling variants; 8 ranks
once. Stimulus, checks: those of test_moe_prefill. Timing: none. Not proved: several layers in a row.
"""

from __future__ import annotations

import cocotb
import pytest

from pymodel.operators.moe_layer import LayerSizes, PrefillLayer
from tests.nic.test_moe_prefill import check_posts, run

PES = 16


@cocotb.test()
@cocotb.parametrize(signalling=["flags", "atomics"], quant=[False, True], ranks=[8, 16])
@pytest.mark.long
async def test_layer(dut, signalling, quant, ranks):
    """One layer; 8 ranks leave the other NICs in reset."""
    layer = PrefillLayer(LayerSizes(ranks, quant=quant, hccl_buffsize=640), signalling, 7, 1)
    check_posts(layer, await run(dut, layer))
