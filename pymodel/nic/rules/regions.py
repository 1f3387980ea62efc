"""Memory regions: keys, rights, ranges (nic.md section 2)."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import numpy as np

from pymodel.formats.arrays import U8, IntLike, Rec, as_u64
from pymodel.nic.context import MrContext
from pymodel.nic.params import DEFAULT_PARAMS
from pymodel.nic.rules.common import as_i64


class Right(IntEnum):
    """Right that an access needs (nic.md 2, 4)."""

    NONE = 0  # local source: a valid lkey is enough
    LOC_WRITE = 1
    REM_WRITE = 2
    REM_READ = 3
    REM_ATOMIC = 4


class MrVerdict(IntEnum):
    """Outcome of an access check; the first that fails."""

    OK = 0
    KEY = 1  # index, valid bit or tag
    RIGHT = 2
    RANGE = 3


#: one MR. length is 65 bits: whole = it is exactly 2^64 and `length` is 0. rights: bit r = Right r is given
MR_ROW: Final[np.dtype[np.void]] = np.dtype(
    [("base", "<u8"), ("length", "<u8"), ("whole", "?"), ("valid", "?"), ("rights", "u1"), ("ltag", "u1"),
     ("rtag", "u1")]
)  # fmt: skip


def mr_table(mrs: Mapping[int, MrContext], num_mr: int = DEFAULT_PARAMS.num_mr) -> Rec:
    """MRs by index as an MR_ROW array [num_mr]; indices that are missing are invalid."""
    table: Rec = np.zeros(num_mr, MR_ROW)
    for index, mr in mrs.items():
        rights = 1 << Right.NONE | mr.loc_write << Right.LOC_WRITE | mr.rem_write << Right.REM_WRITE
        rights |= mr.rem_read << Right.REM_READ | mr.rem_atomic << Right.REM_ATOMIC
        length = mr.length & ((1 << 64) - 1)
        table[index] = (mr.base, length, bool(mr.length >> 64), mr.valid, rights, mr.ltag, mr.rtag)
    return table


def mr_check(
    mrs: Rec, key: IntLike, remote: IntLike, right: IntLike, va: IntLike, length: IntLike, bank: IntLike = 0
) -> U8:
    """MrVerdict of accesses (nic.md 2, wire.md 5). Zero length: OK without looking (nic.md 5).

    mrs: MR_ROW [num_mr], or [n_bank, num_mr] with `bank` = the row of each access (several NICs at once).
    key: lkey or rkey. remote: True compares the rkey tag. right: Right. va: 64-bit. length: bytes, < 2^64.
    Exact at the top of the address space: nothing here is computed beyond 64 bits.
    """
    rows = np.atleast_2d(mrs)
    k, address, size = as_u64(key), as_u64(va), as_u64(length)
    index = (k >> np.uint64(8)).astype(np.int64)
    inside = index < rows.shape[1]
    row = rows[as_i64(bank), np.where(inside, index, 0)]
    tag = np.where(np.asarray(remote, np.bool_), row["rtag"], row["ltag"])
    key_ok = inside & row["valid"] & (tag == k & np.uint64(0xFF))
    right_ok = (row["rights"] >> np.asarray(right, np.uint8)) & 1 != 0
    fits = np.where(row["whole"], True, size <= row["length"])
    # A region never goes beyond 2^64, so modulo 2^64 will do: an address below base wraps to an offset behind
    # every legal one, and 2^64 - size is 0 - size. The difference is not used where size does not fit.
    with np.errstate(over="ignore"):
        range_ok = fits & (address - row["base"] <= row["length"] - size)
    return np.select(
        [size == 0, ~key_ok, ~right_ok, ~range_ok],
        [MrVerdict.OK, MrVerdict.KEY, MrVerdict.RIGHT, MrVerdict.RANGE],
        MrVerdict.OK,
    ).astype(np.uint8)


def mr_check_one(
    mrs: Mapping[int, MrContext], key: int, remote: bool, right: Right, va: int, length: int
) -> MrVerdict:
    """`mr_check` of one access, in plain integers: for who asks packet by packet. mrs: contexts by index."""
    if length == 0:
        return MrVerdict.OK
    mr = mrs.get(key >> 8)
    if mr is None or not mr.valid or (mr.rtag if remote else mr.ltag) != key & 0xFF:
        return MrVerdict.KEY
    given = {
        Right.NONE: True, Right.LOC_WRITE: mr.loc_write, Right.REM_WRITE: mr.rem_write,
        Right.REM_READ: mr.rem_read, Right.REM_ATOMIC: mr.rem_atomic,
    }  # fmt: skip
    if not given[right]:
        return MrVerdict.RIGHT
    inside = mr.base <= va and va + length <= mr.base + mr.length
    return MrVerdict.OK if inside else MrVerdict.RANGE
