"""Every PE gets a block from each other PE (allgather by pull). Programs that want data need no flag for it.

A get may not be read before a quiet; and what it reads must not change before its getter's quiet, so the
owners wait at a barrier before they would touch their blocks again.
"""

import numpy as np

from pymodel.device import Pe

BLOCK = 5000
"""Bytes of a block: more than one packet at every MTU."""


def block(seed: int, rank: int) -> bytes:
    """The block of PE ``rank``."""
    return np.random.default_rng([seed, rank]).bytes(BLOCK)


async def main(pe: Pe) -> None:
    """Afterwards slot r holds PE r's block on every PE."""
    mine, slots = pe.alloc(BLOCK), [pe.alloc(BLOCK) for _ in range(pe.n_pes)]
    await pe.store(mine, block(pe.seed, pe.rank))
    await pe.barrier_all()
    others = [peer for peer in range(pe.n_pes) if peer != pe.rank]
    for peer in others:
        await pe.get_nbi(slots[peer], mine, BLOCK, peer)
    for peer in others:
        await pe.quiet(peer)
        assert pe.memory(slots[peer], BLOCK).tobytes() == block(pe.seed, peer), f"block of PE {peer} on {pe}"
    await pe.barrier_all()
    await pe.store(mine, bytes(BLOCK))
