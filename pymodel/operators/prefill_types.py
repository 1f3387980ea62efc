"""What the prefill kernels give (operators page 4.1, 4.2). E = El x R experts; A = received rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.int32]"
Octets: TypeAlias = "NDArray[np.uint8]"
Matrix: TypeAlias = "NDArray[Any]"
"""Rows of bfloat16, float16 or int8."""


@dataclass(frozen=True)
class Notified:
    """Outputs of notify_dispatch on rank r; c[s, e]: counts of rank s, p[s, e]: their exclusive prefix."""

    send_data: Ints
    """int32[E, 3]: (c[r, e], p[r, e], tokens of r)."""
    send_data_offset: Ints
    """int32[E]: p[r, e]."""
    recv_data: Ints
    """int32[R, El, 3]: what every source has for the experts of r."""
    recv_count: Ints
    """int32[E]: inclusive sums of c over (local expert, source)."""
    recv_offset: Ints
    """int32[E]: row of (local expert, source) in the source's staging area."""
    total_recv_tokens: int
    max_bs: int
    """Most tokens of a rank."""
    recv_tokens_per_expert: NDArray[np.int64]
    """int64[El]."""


@dataclass(frozen=True)
class Dispatched:
    """Outputs of moe_dispatch_normal, rows in the order (local expert, source, flat slot of the source).

    n = max(A, 1). Elements that the operator does not define hold 0xA5 in every byte: the row of A = 0, and
    the scales without quantisation.
    """

    recv_x: Matrix
    """[n, h], x's type or int8."""
    scales: NDArray[np.float32]
    """float32[n]."""
    expand_idx: Ints
    """int32[3 n]: (source rank, token, top-k slot)."""
