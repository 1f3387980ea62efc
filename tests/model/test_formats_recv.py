"""Receive WQE codec.

Sweep: all values of the three fields, several at a time; stimulus: hypothesis and one worked vector.
Checks: bytes against struct, decoding gives back what was encoded, values and lengths that do not fit.
Timing: none. Not proved: what a receive queue does (test_judge_send).
"""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.formats import recv

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=200)
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@SETTINGS
@given(st.lists(st.tuples(U32, U32, U64), min_size=1, max_size=4))
def test_bytes_and_back(rows: list[tuple[int, int, int]]) -> None:
    """Length, key, address, little-endian, in 16 bytes (device.md 1.3)."""
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("length", "lkey", "addr"))}
    slots = recv.pack(columns)
    assert slots.tobytes() == b"".join(struct.pack("<IIQ", *row) for row in rows)
    assert [tuple(int(x) for x in f) for f in recv.unpack(slots)] == rows


def test_what_does_not_fit() -> None:
    """Values wider than their fields, slots of another length."""
    with pytest.raises(ValueError, match="length does not fit 32 bits"):
        recv.pack({"length": 1 << 32})
    with pytest.raises(ValueError, match="a receive WQE has 16 bytes"):
        recv.unpack(np.zeros((1, 32), np.uint8))
