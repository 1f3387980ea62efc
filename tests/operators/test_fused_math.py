"""Routing and numbers of the fused operator, piece by piece.

Sweep: product depths around the block size with extreme values, special rows, masks and -1. Stimulus: arrays.
Checks: int64 products, the page's formulas in float64 with their roundings, loops for the routing. Timing:
none. Does not prove: that the kernels use them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pymodel.operators import fused_math
from pymodel.operators.common import FP16, ProtocolError
from pymodel.operators.fused_math import (
    BLOCK,
    W8A8,
    Route,
    checked_counts,
    int8_product,
    quantised_rows,
    reduced,
    requantise,
    run_expert,
    swiglu,
)
from pymodel.operators.fused_types import Expert, FusedMap, undefined
from pymodel.operators.w4a8 import W4A8, compensation, pack
from tests.operators.fused_runs import arguments
from tests.operators.golden_fused import Case, activated, product, quantised, requantised

F32 = np.float32


@pytest.mark.parametrize("depth", [1, 8, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 7168])
@pytest.mark.parametrize("fill", [None, (-128, -128), (127, -128), (127, 127)])
def test_int8_products_are_exact(depth: int, fill: tuple[int, int] | None) -> None:
    """Every sum, with the largest values too."""
    rng = np.random.default_rng(depth)
    a, b = rng.integers(-128, 128, (5, depth), np.int8), rng.integers(-128, 128, (depth, 9), np.int8)
    if fill is not None:
        a[:], b[:] = fill
    assert np.array_equal(int8_product(a, b), a.astype(np.int64) @ b.astype(np.int64))


def test_a_deeper_block_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the blocks end at 1024: beyond, sums leave what float32 holds exactly."""
    monkeypatch.setattr(fused_math, "BLOCK", 7168)
    a, b = np.full((1, 7168), 127, np.int8), np.random.default_rng(1).integers(100, 128, (7168, 64), np.int8)
    assert not np.array_equal(int8_product(a, b), a.astype(np.int64) @ b.astype(np.int64))


def test_products_of_nothing() -> None:
    """No rows: no conversion, the right shape."""
    assert int8_product(np.zeros((0, 8), np.int8), np.zeros((8, 4), np.int8)).shape == (0, 4)


@pytest.mark.parametrize("int4", [False, True])
def test_the_order_of_the_dequantisation(int4: bool) -> None:
    """Bits: the accumulator times the weight scale, then times the row scale; each step rounded."""
    rng = np.random.default_rng(7)
    q, w = rng.integers(-127, 128, (3, 512), np.int8), rng.integers(-8, 8, (512, 64), np.int8)
    s, token = rng.random(64).astype(F32), rng.random(3).astype(F32)
    expert = Expert(w, s, w, s)
    if int4:
        expert = Expert(pack(w), s, pack(w), s, compensation(w, s), compensation(w, s))
    expect = [product(Case(int4=int4), row, factor, w, s) for row, factor in zip(q, token, strict=True)]
    numerics = W4A8() if int4 else W8A8()
    assert np.array_equal(numerics.first(expert, q, token), expect)
    assert np.array_equal(numerics.second(expert, q, token), expect)


def test_swiglu_and_requantisation_against_the_page() -> None:
    """Bits of the activation; q2 and its scale."""
    d = (np.random.default_rng(1).standard_normal((20, 64)) * np.logspace(-3, 2, 20)[:, None]).astype(F32)
    y = swiglu(d)
    assert y.dtype == F32
    assert np.array_equal(y, [activated(row) for row in d])
    q, scale = requantise(y)
    assert np.abs(q.astype(int)).max(axis=1).tolist() == [127] * 20
    for row, got, factor in zip(y, q, scale, strict=True):
        expect, expect_scale = requantised(row)
        assert np.array_equal(got, expect)
        assert factor == expect_scale


def test_swiglu_at_its_ends() -> None:
    """exp overflows to infinity: the result is -0, not NaN; large positive values pass."""
    left = np.array([-1e30, -200, -89, 0, 89, 200, 1e30], F32)
    y = swiglu(np.concatenate([left, np.ones(7, F32)])[None])[0]
    assert y[0] == 0 and np.signbit(y[0]) and y[3] == 0
    assert y[4:].tolist() == left[4:].tolist()
    assert np.isfinite(y).all()


def test_requantisation_of_rows_without_a_reciprocal() -> None:
    """Maximum 0, and one whose reciprocal overflows: 0 and scale 0; the next larger one is quantised."""
    tiny, small = F32(1e-40), F32(3e-39)
    q, scale = requantise(np.array([[0, 0], [tiny, -tiny], [small, 0]], F32))
    assert q.tolist() == [[0, 0], [0, 0], [127, 0]]
    assert scale[:2].tolist() == [0, 0] and scale[2] > 0


def test_zero_rows_stay_zero_through_an_expert() -> None:
    """A zero row among others."""
    rng = np.random.default_rng(3)
    expert = Expert(
        rng.integers(-16, 17, (64, 32), np.int8),
        np.full(32, 0.01, F32),
        rng.integers(-16, 17, (16, 64), np.int8),
        np.full(64, 0.01, F32),
    )
    q = rng.integers(-127, 128, (3, 64), np.int8)
    q[1] = 0
    out = run_expert(W8A8(), expert, q, np.array([0.1, 0, 0.1], F32), FP16)
    assert out.dtype == FP16 and not out[1].any() and out[0].any() and out[2].any()


@pytest.mark.parametrize("masked", [None, (2, 0, 1, 4)])
@pytest.mark.parametrize("smooth", [False, True])
def test_route_and_rows(masked: Any, smooth: bool) -> None:
    """Order by expert, then flat slot; each row quantised with its expert's smooth scale."""
    case = Case(batches=(4, 3, 2, 4), masked=masked, smooth=smooth, ids="holes")
    for rank in range(case.ranks):
        args = arguments(case, rank)
        route = Route.of(args)
        expect = sorted(case.slots(rank), key=lambda slot: slot[2])
        assert list(zip(route.token, route.slot, route.expert, strict=True)) == expect
        assert route.counts.tolist() == [sum(e == x for _, _, x in expect) for e in range(case.experts)]
        q, scale = quantised_rows(args, route)
        for (t, _, expert), row, factor in zip(expect, q, scale, strict=True):
            x = case.x[rank][t].astype(F32)
            good, good_scale = quantised(x if case.smooth_scales is None else x * case.smooth_scales[expert])
            assert np.array_equal(row, good) and factor == good_scale


def test_small_rows_are_quantised_without_an_epsilon() -> None:
    """Where the epsilon of prefill would halve the values."""
    case = Case(smooth=True)
    for args in (arguments(case, 0), arguments(Case(), 0)):
        args = replace(args, x=(args.x.astype(F32) * F32(1e-12)).astype(args.x.dtype))
        q, _ = quantised_rows(args, Route.of(args))
        assert np.abs(q.astype(int)).max(axis=1).tolist() == [127] * len(q)


def test_the_sum_goes_by_k_with_two_roundings() -> None:
    """Weights that make the order, and a fused multiply-add, visible."""
    case = Case(ranks=2, local=2, top_k=3, batches=(40, 1))
    args = arguments(case, 0)
    route = Route.of(args)
    # an output type that hides nothing
    args = replace(args, x=args.x.astype(F32))
    rows = (np.random.default_rng(5).standard_normal((len(route.token), 512)) * 100).astype(F32)
    out = reduced(args, route, rows)
    place = {slot: n for n, slot in enumerate(zip(route.token.tolist(), route.slot.tolist(), strict=True))}
    for t in range(40):
        acc = np.zeros(512, F32)
        for k in range(3):
            acc = acc + (rows[place[t, k]] * case.weights[0][t, k]).astype(F32)
        assert out[t].tobytes() == acc.tobytes()


def test_rows_that_nobody_writes() -> None:
    """Undefined elements are 0xA5; tokens without an expert are defined: 0."""
    case = Case(batches=(4, 3, 2, 4), masked=(2, 0, 0, 0), ids="none")
    args = arguments(case, 0)
    out = reduced(args, Route.of(args), np.empty((0, 512), case.dtype))
    assert not out[:2].astype(F32).any()
    assert out[2:].tobytes() == undefined(out[2:]).tobytes() == b"\xa5" * (2 * 512 * 2)


def test_counts_beyond_a_ranks_tokens() -> None:
    """The text names rank and expert."""
    places = FusedMap(2, 4, 3, 512)
    assert checked_counts(places, np.array([[3, 0], [1, 2]], np.uint32)).dtype == np.int64
    with pytest.raises(ProtocolError, match="rank 1 has 4 rows for local expert 0"):
        checked_counts(places, np.array([[3, 4], [1, 2]], np.uint32))


def test_regions_do_not_meet() -> None:
    """All rows of all (source, expert), in both halves, are disjoint and inside two halves plus the skew."""
    for local in (1, 2, 3):
        places = FusedMap(3, 3 * local, 4, 512)
        for dst in range(3):
            spans = []
            for half in (0, 1):
                stride = places.record if half == 0 else 1024
                for src in range(3):
                    for le in range(local):
                        low = places.rows(half, dst, src, le)
                        spans.append((low, low + 4 * stride))
            spans.sort()
            assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
            assert spans[-1][1] <= 2 * places.experts * places.region + 3 * 512


def test_global_bs_zero_stands_for_equal_batches() -> None:
    """The default of the attribute."""
    args = arguments(Case(), 0)
    assert FusedMap.of(4, replace(args, global_bs=0)) == FusedMap(4, 8, 4, 512)
