"""Where things stand in the symmetric heap in SHMEM mode (programs page, section 2).

One MR per PE: sync and signal area | windowsExp | windowsIn | transmit stage | receive landing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pymodel.host.config import HEAP_SYNC_BYTES
from pymodel.operators.common import KB, MB, OperatorError, align

EXP_BYTES: Final = MB
COUNTER_BASE: Final = 1000 * KB
"""Offset of the atomic counters in windowsExp (programs page, section 4)."""
COUNTER_STRIDE: Final = 64
COUNTER_KINDS: Final = ("notify", "dispatch", "combine", "fused_dispatch", "fused_combine")


@dataclass(frozen=True)
class HeapLayout:
    """Offsets from the heap's base and sizes, in bytes."""

    win_size: int
    stage_size: int
    landing_size: int

    exp: int = HEAP_SYNC_BYTES

    @property
    def win(self) -> int:
        """windowsIn."""
        return self.exp + EXP_BYTES

    @property
    def stage(self) -> int:
        """Transmit stage: sources of WRITEs."""
        return self.win + self.win_size

    @property
    def landing(self) -> int:
        """Receive landing: destinations of READs."""
        return align(self.stage + self.stage_size, 512)

    @property
    def total(self) -> int:
        """Bytes of the whole heap, whole pages."""
        return align(self.landing + self.landing_size, 4 * KB)

    @classmethod
    def prepare(
        cls, hccl_buffsize: int, *, tokens: int, top_k: int, hidden: int, rows: int, row_bytes: int
    ) -> HeapLayout:
        """Layout for calls of at most ``tokens`` tokens of ``hidden`` elements with ``top_k`` experts each.

        They receive at most ``rows`` rows of ``row_bytes`` bytes; the window has ``hccl_buffsize`` MB. Its
        `total` is the heap that they need (programs page, section 2).
        """
        stage = max(rows * 2 * hidden, tokens * top_k * (hidden + 512))
        return cls(hccl_buffsize * MB, align(stage, 512), align(rows * row_bytes, 512))

    def check(self, operator: str, heap: int) -> None:
        """Raise OperatorError where the heap is too small."""
        if self.total > heap:
            raise OperatorError(operator, f"the heap has {heap} bytes, {self.total} are needed")


def counter_offset(kind: str, parity: int) -> int:
    """Offset in windowsExp of an atomic counter, int64 (programs page, section 4)."""
    return COUNTER_BASE + COUNTER_STRIDE * (2 * COUNTER_KINDS.index(kind) + parity)
