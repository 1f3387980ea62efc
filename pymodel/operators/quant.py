"""Dynamic quantisation of rows to int8 (operators page 4.2 and 6.2; programs page, section 5)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

EPSILON: Final = np.float32(1e-12)
"""What prefill adds to a row's maximum (operators page 4.2); fused adds nothing."""


def quantise(rows: NDArray[np.float32], epsilon: bool) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise float32[n, h] row by row: (int8[n, h], float32[n] scales to multiply with).

    s = 127 / max|x|, with ``epsilon`` 127 / (max|x| + 1e-12); q = rint(x s); the scale is 1 / s. Each step is
    one float32 operation. A row whose maximum is 0 or whose s overflows gives q 0 and scale 0. Rows are
    finite: the host layer has refused the others.
    """
    largest = np.abs(rows).max(axis=1, initial=np.float32(0))
    divisor = largest + EPSILON if epsilon else largest
    with np.errstate(divide="ignore", over="ignore"):
        factor = np.float32(127) / divisor
    usable = (largest > 0) & np.isfinite(factor)
    factor = np.where(usable, factor, np.float32(1))
    # int32, fp16 and int8 hold what rint gives exactly: at most 127 (operators page 4.2)
    values = np.rint(rows * factor[:, None]).astype(np.int8)
    values[~usable] = 0
    return values, np.where(usable, np.float32(1) / factor, np.float32(0))
