"""What all operators share: errors, tiling results, byte units, alignment (operators page, section 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import ml_dtypes
import numpy as np

KB: Final = 1 << 10
MB: Final = 1 << 20
BF16: Final = np.dtype(ml_dtypes.bfloat16)
FP16: Final = np.dtype(np.float16)
AIV_CORES: Final = 48
"""Vector cores of a die (operators page 1.2)."""
AIC_CORES: Final = 24
"""Cube cores of a die (operators page 1.2)."""


class OperatorError(RuntimeError):
    """A tiling check failed: the host layer refuses the call before anything is posted (operators page 1.1).

    The text is ``EZ9999: operator: what is wrong``, in one line.
    """

    def __init__(self, operator: str, text: str) -> None:
        super().__init__(f"EZ9999: {operator}: {text}")
        self.operator, self.text = operator, text


class TorchBindError(RuntimeError):
    """An assertion of the torch binding failed (operators page 1.1, 1.3): ``Assertion error: condition``."""

    def __init__(self, condition: str) -> None:
        super().__init__(f"Assertion error: {condition}")
        self.condition = condition


class ProtocolError(RuntimeError):
    """What a kernel received cannot be: a counter beyond its base, an old value out of range."""


@dataclass(frozen=True)
class Tiling:
    """What tiling gives (operators page 1.2): key, workspace in bytes, cores, and the data for the kernel."""

    key: int
    workspace: int
    block_dim: int
    window: int = 0
    """Bytes that the call demands of the window; compared with HCCL_BUFFSIZE."""
    data: Mapping[str, int] = field(default_factory=dict)


def align(value: int, unit: int) -> int:
    """``value`` rounded up to a multiple of ``unit``."""
    return -(-value // unit) * unit
