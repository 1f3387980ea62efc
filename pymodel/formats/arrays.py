"""Array type names and the few helpers that all codecs share."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
#: structured array; the docstring of each function names the dtype
Rec = npt.NDArray[np.void]
#: anything that numpy takes as an integer array: int, list, array
IntLike = npt.ArrayLike
#: structured array or {field name: scalar or array of n}
Fields = Rec | Mapping[str, Any]


def as_u64(value: IntLike) -> U64:
    """`value` as uint64 array (0-d for a scalar). Raises OverflowError for negative or too wide integers."""
    arr = np.asarray(value)
    if arr.dtype.kind == "i" and arr.size and int(arr.min()) < 0:
        raise OverflowError("negative value in an unsigned field")
    if arr.dtype.kind not in "iub":
        # lists of ints on both sides of 2^63 become float64 or object: go through Python ints
        return np.array(value, dtype=np.uint64)
    return arr.astype(np.uint64)


def to_fields(dtype: np.dtype[np.void], fields: Fields, widths: Mapping[str, int]) -> Rec:
    """Normalise `fields` to a 1-D structured array of `dtype`; names that a mapping leaves out are 0.

    `widths` gives the bits of each field that is narrower than its dtype. Raises KeyError for an unknown
    name, ValueError for a value that does not fit its bits (silent truncation would hide a caller's bug).
    """
    if isinstance(fields, np.ndarray):
        rec: Rec = np.atleast_1d(fields)
        if rec.dtype != dtype:
            raise TypeError(f"expected dtype {dtype}, got {rec.dtype}")
    else:
        arrays = {name: as_u64(value) for name, value in fields.items()}
        shape = np.broadcast_shapes((1,), *(a.shape for a in arrays.values()))
        rec = np.zeros(shape, dtype)
        for name, arr in arrays.items():
            if name not in (dtype.names or ()):
                raise KeyError(f"no field {name!r}")
            bits = 8 * dtype[name].itemsize
            if bits < 64 and arr.size and int(arr.max()) >> bits:
                raise ValueError(f"{name} does not fit {bits} bits")
            rec[name] = arr
    for name, bits in widths.items():
        if rec.size and int(rec[name].max()) >> bits:
            raise ValueError(f"{name} does not fit {bits} bits")
    return rec


def put_bits(word: U64, value: npt.NDArray[Any], low: int) -> None:
    """OR `value` into `word` from bit `low` on, in place."""
    word |= value.astype(np.uint64) << np.uint64(low)


def get_bits(word: U64, low: int, width: int) -> U64:
    """Bits [low+width-1:low] of each word."""
    mask = np.uint64((1 << width) - 1)
    out: U64 = (word >> np.uint64(low)) & mask
    return out


def check_version(version: int) -> None:
    """Raise ValueError unless `version` is 1 or 2 (device.md section 0: XSCALE API version)."""
    if version not in (1, 2):
        raise ValueError(f"format version must be 1 or 2, not {version}")
