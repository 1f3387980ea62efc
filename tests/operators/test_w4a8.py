"""4-bit weights: packing, the split of activations, the identity behind it, and whole calls.

Sweep: all nibbles at all places, all int8 values, both modes and signalling variants. Stimulus: seeded
weights in [-8, 7]. Checks: shifts in Python integers, int64 products, the third formulation. Timing: none.
Does not prove: the host checks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pymodel.operators import w4a8
from pymodel.operators.fused_math import W8A8, run_expert
from pymodel.operators.fused_types import Expert
from pymodel.operators.w4a8 import W4A8, compensation, pack, split, unpack
from tests.operators.golden_fused import Case
from tests.operators.test_fused_modes import check_all

F32 = np.float32


def test_nibbles_stand_where_the_page_says() -> None:
    """Bits 4j to 4j + 3 of word c: column 8c + j, two's complement."""
    weight = np.random.default_rng(1).integers(-8, 8, (3, 5, 32), np.int8)
    words = pack(weight)
    assert words.dtype == np.int32 and words.shape == (3, 5, 4)
    for place in np.ndindex(3, 5, 32):
        *row, column = place
        bits = int(words[*row, column // 8]) >> 4 * (column % 8) & 15
        assert bits == int(weight[place]) & 15
    assert np.array_equal(unpack(words), weight)


def test_every_nibble_at_every_place() -> None:
    """All 16 values in each of the eight positions, beside zeros and beside ones."""
    for rest in (0, -1):
        for place in range(8):
            weight = np.full((16, 8), rest, np.int8)
            weight[:, place] = np.arange(-8, 8)
            assert np.array_equal(unpack(pack(weight)), weight)


@pytest.mark.parametrize(("shape", "value", "text"), [((2, 12), 0, "12 columns"), ((2, 8), 8, "outside")])
def test_what_cannot_be_packed(shape: tuple[int, int], value: int, text: str) -> None:
    """Columns that fill no word, values of more than four bits."""
    with pytest.raises(ValueError, match=text):
        pack(np.full(shape, value, np.int8))


def test_the_split_of_every_activation() -> None:
    """16 hi + lo + 8 = q, both halves in [-8, 7]; hi row, then lo row."""
    q = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)
    parts = split(q)
    assert parts.dtype == np.int8 and parts.min() == -8 and parts.max() == 7
    assert np.array_equal(parts[0::2], np.floor_divide(q.astype(int), 16))
    assert np.array_equal(16 * parts[0::2].astype(int) + parts[1::2] + 8, q)


def test_the_identity_is_exact() -> None:
    """q W = 16 hi W + lo W + 8 sum W, in integers."""
    rng = np.random.default_rng(2)
    q, weight = rng.integers(-127, 128, (6, 512), np.int8), rng.integers(-8, 8, (512, 64), np.int8)
    wide, parts = weight.astype(np.int64), split(q).astype(np.int64)
    aux = compensation(weight, np.ones(64, F32)).astype(np.int64)
    assert np.array_equal(16 * (parts[0::2] @ wide) + parts[1::2] @ wide + aux, q.astype(np.int64) @ wide)


def test_a_power_of_two_as_scale_keeps_it_exact() -> None:
    """The whole epilogue; then every rounding is the identity."""
    rng = np.random.default_rng(3)
    q, weight = rng.integers(-127, 128, (6, 512), np.int8), rng.integers(-8, 8, (512, 64), np.int8)
    scale = F32(2) ** rng.integers(-6, 3, 64).astype(F32)
    expert = Expert(
        pack(weight), scale, pack(weight), scale, compensation(weight, scale), compensation(weight, scale)
    )
    token = F32(2) ** np.arange(-3, 3).astype(F32)
    exact = (
        (q.astype(np.int64) @ weight.astype(np.int64)) * scale.astype(float) * token.astype(float)[:, None]
    )
    assert np.array_equal(W4A8().first(expert, q, token), exact)
    assert np.array_equal(W4A8().second(expert, q, token), exact)


CASE = Case(int4=True, top_k=3, batches=(3, 0, 2, 3))


@pytest.mark.parametrize("local", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
def test_whole_calls(local: int, shared: bool) -> None:
    """Two calls, in all three ways, against the third formulation."""
    cases = [replace(CASE, local=local, shared=shared, smooth=shared, call=n) for n in range(2)]
    check_all(cases, schedule="random", as_list=shared)


def test_a_compensation_without_its_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias that leaves out the weight scale (as one document says it) turns the numbers red."""
    original = w4a8.compensation
    check_all([CASE])

    def plain(weight: Any, scale: Any) -> Any:
        return original(weight, np.ones_like(scale))

    monkeypatch.setattr(w4a8, "compensation", plain)
    with pytest.raises(AssertionError):
        check_all([CASE])


def test_the_wrong_order_of_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lo rows before hi rows."""
    monkeypatch.setattr(
        w4a8, "split", lambda q: split(q).reshape(-1, 2, q.shape[1])[:, ::-1].reshape(-1, q.shape[1])
    )
    with pytest.raises(AssertionError):
        check_all([CASE])


def test_the_same_weights_in_eight_bits() -> None:
    """W4A8 and W8A8 of one set of int4 weights differ by roundings only."""
    rng = np.random.default_rng(4)
    w1, s1, w2, s2 = replace(CASE).expert(2)
    q, token = rng.integers(-127, 128, (5, CASE.hidden), np.int8), np.full(5, 0.02, F32)
    four = Expert(pack(w1), s1, pack(w2), s2, compensation(w1, s1), compensation(w2, s2))
    outputs = [
        run_expert(numerics, expert, q, token, np.dtype(F32)).astype(float)
        for numerics, expert in ((W8A8(), Expert(w1, s1, w2, s2)), (W4A8(), four))
    ]
    assert 0 < np.linalg.norm(outputs[0] - outputs[1]) < 1e-3 * np.linalg.norm(outputs[0])
