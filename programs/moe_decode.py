"""Fused MoE decode steps (W8A8): dispatch, experts and combine, rows of other ranks over the NICs.

Completion by ordered flag WRITEs. All results are compared bit for bit with the same calls in window mode.
"""

from functools import cache

from pymodel.device import Pe
from pymodel.host.config import FabricConfig
from pymodel.operators.moe_decode import DecodeLayer, DecodeSizes


@cache
def prepared(n_pes: int, seed: int) -> DecodeLayer:
    """The calls of this run, shared by its PEs."""
    return DecodeLayer(
        DecodeSizes(n_pes, batch=8, hidden=1024, inner=1024, skip=True), "flags", seed, layers=3
    )


def fabric(n_pes: int, seed: int) -> FabricConfig:
    """Heap and rings that the calls need."""
    return prepared(n_pes, seed).world.fabric()


async def main(pe: Pe) -> None:
    """The calls on this rank; raises AssertionError where a result is wrong."""
    await prepared(pe.n_pes, pe.seed).main(pe)
