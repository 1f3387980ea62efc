"""Every PE puts its own slot to the same offset on all others, between two barriers (operators page 10.3).

The closing barrier quiets: what was put before it is complete on every PE behind it.
"""

import numpy as np

from pymodel.device import Pe

BYTES = 6000
"""Bytes of a slot: more than one packet at every MTU."""


def slot(seed: int, rank: int) -> bytes:
    """What PE ``rank`` gives to everybody."""
    return np.random.default_rng([seed, rank, 1]).bytes(BYTES)


async def main(pe: Pe) -> None:
    """Afterwards slot r holds PE r's bytes on every PE."""
    slots = [pe.alloc(BYTES) for _ in range(pe.n_pes)]
    await pe.store(slots[pe.rank], slot(pe.seed, pe.rank))
    await pe.barrier_all()
    for peer in range(pe.n_pes):
        if peer != pe.rank:
            await pe.put_nbi(slots[pe.rank], slots[pe.rank], BYTES, peer)
    await pe.barrier_all()
    for rank, at in enumerate(slots):
        assert pe.memory(at, BYTES).tobytes() == slot(pe.seed, rank), f"slot {rank} on {pe}"
