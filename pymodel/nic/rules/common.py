"""What the rules of all topics share."""

from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, IntLike

#: longest message (nic.md 4)
MAX_MESSAGE: Final = 1 << 31
PSN_MOD: Final = 1 << 24
CID_MOD: Final = 1 << 23


def as_i64(value: IntLike) -> I64:
    """`value` as an int64 array (0-d for a scalar)."""
    return np.asarray(value).astype(np.int64)
