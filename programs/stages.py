"""A pipeline in lockstep: in each stage every PE puts what it has to its right neighbour, then all meet.

The barrier completes the puts of all and makes them visible; without it a fast PE would overwrite what a slow
one has not taken yet. Two landing places in turn, so that a stage never writes what is still being sent.
"""

from pymodel.device import Pe

STAGES = 6
BYTES = 600


async def main(pe: Pe) -> None:
    """After each stage every PE holds the block that started ``stage`` PEs to its left, one up per step."""
    places = [pe.alloc(BYTES), pe.alloc(BYTES)]
    await pe.store(places[0], bytes([pe.rank]) * BYTES)
    right = (pe.rank + 1) % pe.n_pes
    for stage in range(1, STAGES + 1):
        here, there = places[(stage - 1) % 2], places[stage % 2]
        # everybody has taken the last block before the next one is put over it
        await pe.barrier_all()
        if right != pe.rank:
            await pe.put_nbi(there, here, BYTES, right)
        else:
            await pe.store(there, pe.memory(here, BYTES).copy())
        await pe.barrier_all()
        start = (pe.rank - stage) % pe.n_pes
        block = pe.memory(there, BYTES).tobytes()
        assert block == bytes([start + stage - 1]) * BYTES, f"stage {stage} on {pe}"
        await pe.store(there, bytes([start + stage]) * BYTES)
