"""An MoE layer's prefill dispatch and combine: every row for an expert on another rank crosses the NICs.

Quantised, completion by ordered flag WRITEs; `moe_prefill_atomics` signals by remote atomic counters. All
results are compared bit for bit with the same layer in window mode, and with a plain sum over the experts.
"""

from functools import cache

from pymodel.device import Pe
from pymodel.host.config import FabricConfig
from pymodel.operators.moe_layer import LayerSizes, PrefillLayer


@cache
def prepared(n_pes: int, seed: int) -> PrefillLayer:
    """The layer of this run, shared by its PEs; two in a row use both halves of every window."""
    return PrefillLayer(LayerSizes(n_pes), "flags", seed, layers=2)


def fabric(n_pes: int, seed: int) -> FabricConfig:
    """Heap and rings that the layer needs."""
    return prepared(n_pes, seed).world.fabric()


async def main(pe: Pe) -> None:
    """The layers on this rank; raises AssertionError where a result is wrong."""
    await prepared(pe.n_pes, pe.seed).main(pe)
