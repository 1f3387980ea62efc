"""Work shared out by atomics: every PE draws tickets from a counter on PE 0 until none is left.

Who draws a ticket sets its bit in a map on PE 0 and adds its number to a sum there. fetch_add returns the old
value, so it waits for the NIC; or and add only post, so they need a quiet before anybody relies on them.
"""

import numpy as np

from pymodel.device import Pe

TICKETS = 30


async def main(pe: Pe) -> list[int]:
    """Gives the tickets that this PE drew; PE 0 only keeps the words and checks them."""
    counter, total, drawn = pe.alloc(8), pe.alloc(8), pe.alloc(4)
    mine: list[int] = []
    if pe.rank:
        while (ticket := await pe.atomic.fetch_add(counter, 1, 0)) < TICKETS:
            mine.append(ticket)
            pe.atomics_checked += 1
            await pe.atomic.add(total, ticket, 0)
            await pe.atomic.or_(drawn, 1 << ticket, 0, dtype=np.uint32)
    # quiets every QP, so all posted atomics are done
    await pe.barrier_all()
    if pe.rank == 0 and pe.n_pes > 1:
        words = {name: int.from_bytes(pe.memory(at, 8).tobytes(), "little")
                 for name, at in (("counter", counter), ("total", total), ("drawn", drawn))}  # fmt: skip
        everyone = pe.n_pes - 1
        expected = {"counter": TICKETS + everyone, "total": sum(range(TICKETS)), "drawn": (1 << TICKETS) - 1}
        assert words == expected, f"{words} instead of {expected}"
    return mine
