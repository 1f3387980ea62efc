"""Work requests: what the driver is asked to post, before it is a WQE."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Opcode(IntEnum):
    """msg_opcode values that the driver posts (device page 1.4)."""

    WRITE = 1
    READ = 2
    CAS64 = 26
    FA64 = 27
    MCAS64 = 31
    MFA64 = 32
    MCAS32 = 33
    MFA32 = 34


#: how observers call them
KIND: Final = {opcode: opcode.name if opcode <= Opcode.READ else "ATOMIC" for opcode in Opcode}


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands of an atomic, each 64 bits wide; a 4-byte atomic uses the low halves (device page 1.5).

    ``swap_add``: swap or add value. ``compare``: compare value, or the field boundaries of an add. The masks
    mean something in masked compare-and-swaps only.
    """

    swap_add: int
    compare: int = 0
    swap_mask: int = 0
    compare_mask: int = 0


@dataclass(slots=True)
class SendWr:
    """One work request.

    Addresses are virtual addresses, ``length`` bytes; the WQE keeps 32 bits of it (4.1). Atomics have
    ``operands``; their length and local address are set when they are posted.
    """

    local: int
    remote: int
    length: int
    opcode: Opcode = Opcode.WRITE
    lkey: int = 0
    rkey: int = 0
    operands: Operands | None = None
