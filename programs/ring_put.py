"""Every PE passes a block round the ring until each has seen all blocks (allgather by neighbours).

Data first, then a flag on the same QP: the flag cannot overtake the data. A quiet before the next round
frees the source. The flags carry the round, so nothing has to be reset.
"""

import numpy as np

from pymodel.device import Pe

BLOCK = 5000
"""Bytes of a block: more than one packet at every MTU."""


def block(seed: int, rank: int) -> bytes:
    """The block that PE ``rank`` starts with."""
    return np.random.default_rng([seed, rank]).bytes(BLOCK)


async def main(pe: Pe) -> None:
    """R - 1 rounds; afterwards slot r holds PE r's block on every PE."""
    slots = [pe.alloc(BLOCK) for _ in range(pe.n_pes)]
    flag, flag_source = pe.alloc(4), pe.alloc(4 * pe.n_pes)
    right, left = (pe.rank + 1) % pe.n_pes, (pe.rank - 1) % pe.n_pes
    await pe.store(slots[pe.rank], block(pe.seed, pe.rank))
    await pe.store(flag_source, np.arange(pe.n_pes, dtype="<u4").tobytes())
    for step in range(1, pe.n_pes):
        sent = (pe.rank - step + 1) % pe.n_pes
        await pe.put_nbi(slots[sent], slots[sent], BLOCK, right)
        await pe.put_nbi(flag, flag_source + 4 * step, 4, right)
        await pe.wait_until(
            flag,
            4,
            lambda view, step=step: int(view.view("<u4")[0]) >= step,  # type: ignore[misc]
            peer=left,
            what=f"the flag of round {step}",
        )
        await pe.quiet(right)
    for rank, slot in enumerate(slots):
        assert pe.memory(slot, BLOCK).tobytes() == block(pe.seed, rank), f"block of PE {rank} on PE {pe.rank}"
