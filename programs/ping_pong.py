"""Pairs of PEs play a block back and forth; who waits looks at its last 8 bytes only (operators page 10.3).

That is enough because the bytes of one WRITE become visible in order: with the last 8 bytes of a round the
whole block of that round is there. A PE without a partner looks on.
"""

import numpy as np

from pymodel.device import Pe

SIZES = (8, 64, 1000, 4096, 20000)
ROUNDS = 4


def block(seed: int, size: int, turn: int) -> bytes:
    """Block of ``size`` bytes of this turn; its last 8 bytes are the turn's number, from 1 on."""
    body = np.random.default_rng([seed, size, turn]).bytes(size - 8)
    return body + turn.to_bytes(8, "little")


async def main(pe: Pe) -> list[int]:
    """Gives NIC cycles of a round trip per size, on the PE that serves; an empty list on the others."""
    landing, source = pe.alloc(max(SIZES)), pe.alloc(max(SIZES))
    peer = pe.rank ^ 1
    if peer >= pe.n_pes:
        return []
    serves, trips = pe.rank < peer, []
    turn = 0
    for size in SIZES:
        start = await pe.now()
        for _ in range(2 * ROUNDS):
            turn += 1
            if serves == bool(turn % 2):
                await pe.store(source, block(pe.seed, size, turn))
                await pe.put_nbi(landing, source, size, peer)
                await pe.quiet(peer)
                continue
            await pe.wait_value(landing + size - 8, turn, 8, peer=peer)
            got = pe.memory(landing, size).tobytes()
            assert got == block(pe.seed, size, turn), f"turn {turn} of {size} bytes on {pe}"
        trips.append((await pe.now() - start) // ROUNDS)
    return trips if serves else []
