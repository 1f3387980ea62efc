"""The layer of `moe_prefill`, with completion signalled by remote atomic counters instead of flag WRITEs."""

from functools import cache

from pymodel.device import Pe
from pymodel.host.config import FabricConfig
from pymodel.operators.moe_layer import LayerSizes, PrefillLayer


@cache
def prepared(n_pes: int, seed: int) -> PrefillLayer:
    """The layer of this run, shared by its PEs."""
    return PrefillLayer(LayerSizes(n_pes), "atomics", seed, layers=2)


def fabric(n_pes: int, seed: int) -> FabricConfig:
    """Heap and rings that the layer needs."""
    return prepared(n_pes, seed).world.fabric()


async def main(pe: Pe) -> None:
    """The layers on this rank; raises AssertionError where a result is wrong."""
    await prepared(pe.n_pes, pe.seed).main(pe)
