"""The unified buffer (UB) of a core as far as the device API uses it, and the tensor forms of its arguments.

The driver writes head, tail and doorbell through two scratch words in UB, and from G2 on builds READ and
WRITE WQEs there without clearing them, so what stands in the scratch reaches the NIC (device page 1.6, 4.6).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

UB_BYTES: Final = 192 << 10
SCRATCH_OFFSET: Final = 190 << 10
"""UB offset of the default scratch (device page 4.6)."""
SCRATCH_BYTES: Final = 128
"""Bytes of the default scratch, and what G2 stages a WQE in."""
MIN_SCRATCH: Final = 64
"""Least scratch of a call: scratch[0..31] is the 32-bit workspace, scratch[32..63] the 64-bit one."""


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """``nbytes`` bytes of a core's UB from ``offset`` on. Raises ValueError outside the UB."""

    offset: int
    nbytes: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.nbytes < 0 or self.offset + self.nbytes > UB_BYTES:
            raise ValueError(f"UB [{self.offset}, {self.offset + self.nbytes}): the UB has {UB_BYTES} bytes")

    def part(self, start: int, nbytes: int) -> LocalTensor:
        """``nbytes`` bytes from byte ``start`` of this tensor on."""
        if start < 0 or start + nbytes > self.nbytes:
            raise ValueError(f"bytes [{start}, {start + nbytes}) of a UB tensor of {self.nbytes}")
        return LocalTensor(self.offset + start, nbytes)


@dataclass(frozen=True, slots=True)
class GlobalTensor:
    """A tensor in device memory, for the tensor forms of the calls: its address and its element type."""

    addr: int
    dtype: DTypeLike = np.uint8

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize


Pointer = int
"""Address in device memory, for the pointer forms of the calls; the element type comes beside it."""


class Words(NamedTuple):
    """UB offsets of the two scratch words of a call; from G2 on WQEs are staged from ``ub32`` on."""

    ub64: int
    ub32: int


@dataclass(slots=True)
class RdmaConfig:
    """`rdma_config` of the device state: what calls without a scratch or without a sync_id use.

    ``sync_id`` names the hardware event between scalar unit and copy engine. Here every store is complete
    before the next starts, as the original's brackets make it (device page 3.2), so it changes nothing.
    """

    aclshmem_ub: LocalTensor = field(default_factory=lambda: LocalTensor(SCRATCH_OFFSET, SCRATCH_BYTES))
    sync_id: int = 0


def scratch_words(buf: LocalTensor, staged: bool) -> Words:
    """The words of a public call's scratch ``buf``.

    Raises ValueError where it is smaller than what the driver needs: 64 bytes, or 128 if it stages WQEs
    there (device page 4.6).
    """
    need = SCRATCH_BYTES if staged else MIN_SCRATCH
    if buf.nbytes < need:
        raise ValueError(f"scratch of {buf.nbytes} bytes: this driver generation needs {need}")
    return Words(buf.offset + 32, buf.offset)
