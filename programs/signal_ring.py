"""A signal goes round the ring: each PE waits for its left neighbour's and sets its right one's.

Operators page 10.3. PE 0 starts each lap, so a lap is over when the signal has come back to it. The signals
count laps; nothing is reset. A single PE has nobody to signal.
"""

from pymodel.device import Pe

LAPS = 5


async def main(pe: Pe) -> int:
    """Gives the number of signals that came."""
    word = pe.alloc(4)
    right, left = (pe.rank + 1) % pe.n_pes, (pe.rank - 1) % pe.n_pes
    if pe.n_pes == 1:
        return 0
    came = 0
    for lap in range(1, LAPS + 1):
        if pe.rank == 0:
            await pe.signal_set(word, lap, right)
        await pe.wait_value(word, lap, peer=left)
        came += 1
        if pe.rank != 0:
            await pe.signal_set(word, lap, right)
    return came
