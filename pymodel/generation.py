"""The driver generations that the device API can stand for: one switch (device page, sections 0 and 4).

`FabricConfig.generation` says which one a PE's driver is of; the tables in its memory have that generation's
layout (`pymodel.host.queue_info`) and its driver that generation's flow (`pymodel.device.driver`).
"""

from __future__ import annotations

from enum import IntEnum


class Generation(IntEnum):
    """A tree of driver code.

    G1: every WQE is built in place in the ring, completion is a count of CQEs. G2: READ and WRITE are staged
    in the caller's UB scratch, uncleared, and 128 bytes copied; else as G1. G3: completion by wqe_id, the SQ
    tail cell is kept, posts come in batches too, an error traps; staging as in G2.
    """

    G1 = 1
    G2 = 2
    G3 = 3
