"""The record stream of the testbench: one totally ordered sequence for all PEs, 64 bytes a record.

Written by tb/cpp/records.cpp; ``off`` is an absolute offset into the side buffer, which holds a record's
bytes contiguously
at ``off % size``. Times are cycles: rising clock edges since the start of the simulation.

===========  ================================================================================================
STORE        ``addr``, ``len``, bytes: a store by a program or the host (long ones are split)
TXPKT        ``len``, bytes: packet sent by the NIC; ``aux0`` cycle of its first beat, ``time`` of its last
RXPKT        the same for a packet received
MMIO_W       ``addr``, ``data``, ``flags`` strobe; pushed when address and data are both accepted
MMIO_R       ``addr``, ``data``, ``flags`` response
AXI_R        ``id``, ``addr``, ``len`` beats, ``data`` bytes a beat, ``flags`` worst response, ``aux0`` cycle
             of AR; pushed at RLAST
AXI_W        ``id``, ``addr``, ``len`` beats, ``aux0`` strobe of the first beat, ``aux1`` strobed bytes in
             all; IDs 2 and 4 have the 64 bytes (lanes) of beat 0 at ``off``; pushed at WLAST
AXI_B        ``id``, ``flags`` response
COMMIT       ``id``, ``addr``, ``len`` bytes written, ``flags`` response to come: a write burst became
             visible in memory
EVENT        ``flags`` new level of event_o
NOTE         ``data``, ``aux0``, ``aux1``: from Python
FAULT        ``data`` a code of :class:`Fault`, ``addr``, ``id``, ``aux0``: what no correct NIC or test does
===========  ================================================================================================

In one cycle the order is: what became visible in memory, then responses, then requests, then packets sent.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

RECORD = np.dtype(
    [
        ("time", "<u8"),
        ("kind", "u1"),
        ("pe", "u1"),
        ("id", "u1"),
        ("flags", "u1"),
        ("len", "<u4"),
        ("addr", "<u8"),
        ("data", "<u8"),
        ("off", "<u8"),
        ("aux0", "<u8"),
        ("aux1", "<u8"),
        ("spare", "<u8"),
    ]
)
assert RECORD.itemsize == 64


class Kind(enum.IntEnum):
    """Record kinds; tb/cpp/tb.h has the same numbers."""

    STORE = 1
    TXPKT = 2
    RXPKT = 3
    MMIO_W = 4
    MMIO_R = 5
    AXI_R = 6
    AXI_W = 7
    AXI_B = 8
    COMMIT = 9
    EVENT = 10
    NOTE = 11
    FAULT = 12


class Fault(enum.IntEnum):
    """Codes of FAULT records (field ``data``)."""

    #: strobed byte outside every region, in a beat that is partly inside; ``aux0`` the strobes concerned
    PARTIAL_WRITE = 1
    #: strobed bytes in a beat wholly outside every region (answered DECERR)
    WILD_WRITE = 2
    #: packet to a MAC that no port has; ``aux0`` the MAC
    NO_ROUTE = 3
    #: packet longer than any port may send; ``aux0`` bytes so far
    OVERSIZE = 4
    #: read beat wholly outside every region (answered DECERR)
    WILD_READ = 5


def digest(records: npt.NDArray[np.void], start: int = 0) -> int:
    """Order-dependent 64-bit sum over records, the first of which is number ``start`` of the run.

    Sums of consecutive batches add up modulo 2**64; tb/cpp/main.cpp computes the same for bare runs.
    """
    words = np.ascontiguousarray(records).view(np.uint64).reshape(-1, 8)
    weights = np.arange(1, 17, 2, dtype=np.uint64)
    index = np.arange(start, start + len(words), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    with np.errstate(over="ignore"):
        rows = (words * weights).sum(axis=1, dtype=np.uint64)
        return int((rows * index).sum(dtype=np.uint64))
