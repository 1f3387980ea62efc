"""Doorbell codecs.

Sweep: indices and numbers over and beyond their widths, both versions; stimulus: hypothesis and the examples
of device.md 3.1. Checks: values equal shifts written here, decoding gives back what was encoded modulo its
width. Timing: none. Does not prove what a doorbell does (test_rules).
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.formats import doorbell

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=300)
U32 = st.integers(0, 2**32 - 1)


def test_examples() -> None:
    """device.md 3.1: QPN 0x2A, CQN 0x15."""
    v2 = doorbell.sq_encode([1, 6, 262143, 262144], 0x2A, 2)
    assert [hex(x) for x in v2] == ["0x5400008", "0x5400030", "0x55ffff8", "0x5400000"]
    v1 = doorbell.sq_encode([1, 16383, 16384], 0x2A, 1)
    assert [hex(x) for x in v1] == ["0x540008", "0x55fff8", "0x540000"]
    assert int(doorbell.cq_encode(6, 0x15)) == 0x0A800006
    assert int(doorbell.cq_encode(6, 0x15, doorbell.CqSta.KEEP)) == 0x800A800006


@SETTINGS
@given(U32, U32, st.sampled_from([1, 2]))
def test_sq(head: int, qpn: int, version: int) -> None:
    """SQ: fields at their places, truncated."""
    width = {1: 17, 2: 21}[version]
    word = int(doorbell.sq_encode(head, qpn, version))
    assert word == (head << 3) % (1 << width) | (qpn & 0xFFFF) << width
    assert tuple(int(x) for x in doorbell.sq_decode(word, version)) == (
        (head << 3) % (1 << width),
        qpn & 0xFFFF,
        0,
    )


@SETTINGS
@given(U32, U32)
def test_rq(head: int, qpn: int) -> None:
    """RQ: one layout, an index is one unit."""
    word = int(doorbell.rq_encode(head, qpn))
    assert word == head % (1 << 17) | (qpn & 0xFFFF) << 17
    assert tuple(int(x) for x in doorbell.rq_decode(word)) == (head % (1 << 17), qpn & 0xFFFF, 0)


@SETTINGS
@given(U32, U32, st.integers(0, 3))
def test_cq(tail: int, cqn: int, sta: int) -> None:
    """CQ: fields at their places, truncated."""
    word = int(doorbell.cq_encode(tail, cqn, sta))
    assert word == tail % (1 << 23) | (cqn & 0xFFFF) << 23 | sta << 39
    assert tuple(int(x) for x in doorbell.cq_decode(word)) == (tail % (1 << 23), cqn & 0xFFFF, sta, 0)


@SETTINGS
@given(st.integers(0, 2**64 - 1), st.sampled_from([1, 2]))
def test_every_bit_of_a_store_is_decoded(word: int, version: int) -> None:
    """Nothing of the 64 bits gets lost, whatever is written."""
    sq, rq, cq = doorbell.sq_decode(word, version), doorbell.rq_decode(word), doorbell.cq_decode(word)
    width = {1: 17, 2: 21}[version]
    assert int(sq.next_pid) | int(sq.qp_id) << width | int(sq.rest) << width + 16 == word
    assert int(rq.next_pid) | int(rq.qp_id) << 17 | int(rq.rest) << 33 == word
    assert int(cq.next_cid) | int(cq.cq_id) << 23 | int(cq.cq_sta) << 39 | int(cq.rest) << 41 == word


def test_arrays_and_versions() -> None:
    """Arrays in, arrays out; refusals."""
    words = doorbell.sq_encode(np.arange(1000), np.arange(1000) % 64, 2)
    assert words.dtype == np.uint64 and (doorbell.sq_decode(words, 2).next_pid == np.arange(1000) * 8).all()
    with pytest.raises(ValueError, match="version"):
        doorbell.sq_encode(0, 0, 0)
    with pytest.raises(OverflowError):
        doorbell.sq_encode(-1, 0, 2)
