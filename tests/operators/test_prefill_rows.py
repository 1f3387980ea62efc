"""Pure parts of prefill: layout, quantisation, row format, offsets, casts, against the golden and the pages.

Sweep: ranks 1 to 384, experts up to 512, top-k 1 to 16, up to 8000 tokens; rows of normal, tiny, huge, zero
and tied values; both types. Stimulus: seeded and generated. Checks: equal to the golden bit for bit; worked
numbers of the operators page. Timing: none. Does not prove: anything about the protocols.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from pymodel.operators import prefill_rows as rows
from pymodel.operators.common import BF16, FP16, KB, MB
from pymodel.operators.layout import dispatch_layout
from pymodel.operators.quant import quantise
from tests.operators import golden_prefill as golden

FEW = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def routings(draw: st.DrawFn) -> tuple[Any, int, int]:
    """(topk_idx, experts, ranks): few or many distinct experts."""
    ranks = draw(st.integers(2, 16))
    experts = ranks * draw(st.integers(1, 8))
    tokens, top_k = draw(st.integers(1, 24)), draw(st.integers(1, 16))
    used = draw(st.integers(1, experts))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    return rng.permutation(experts)[rng.integers(0, used, (tokens, top_k))].astype(np.int64), experts, ranks


def _check_layout(topk: Any, experts: int, ranks: int) -> None:
    got = dispatch_layout(topk, experts, ranks)
    expected = golden.layout(topk, experts, ranks)
    fields = (got.num_tokens_per_rank, got.num_tokens_per_expert, got.is_token_in_rank, got.send_token_idx)
    for value, wanted in zip(fields, expected, strict=True):
        assert value.dtype == np.int32 and value.shape == wanted.shape
        assert (value == wanted).all()


@seed(1)
@FEW
@given(routings())
def test_layout(routing: tuple[Any, int, int]) -> None:
    _check_layout(*routing)


@pytest.mark.parametrize(
    ("ranks", "experts", "tokens", "top_k"),
    [(384, 384, 3, 16), (256, 512, 40, 8), (16, 512, 8000, 1), (2, 512, 500, 16), (1, 1, 1, 1)],
)
def test_layout_at_its_limits(ranks: int, experts: int, tokens: int, top_k: int) -> None:
    rng = np.random.default_rng(ranks)
    _check_layout(rng.integers(0, experts, (tokens, top_k)), experts, ranks)


@st.composite
def matrices(draw: st.DrawFn) -> Any:
    """float32 rows of very different sizes, some zero, some with ties at .5 after scaling."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    count, hidden = draw(st.integers(1, 6)), draw(st.integers(1, 80))
    scale = 2.0 ** rng.integers(-140, 120, (count, 1)).astype(np.float64)
    values = (rng.standard_normal((count, hidden)) * scale).astype(np.float32)
    kind = draw(st.sampled_from(["normal", "zeros", "ties", "sparse"]))
    if kind == "zeros":
        values[rng.integers(count)] = 0
    if kind == "ties":
        values = (rng.integers(-254, 255, (count, hidden)) / 2).astype(np.float32)
        values[:, 0] = 127
    if kind == "sparse":
        values[:, 1:] *= rng.random((count, hidden - 1)) < 0.2
    return values


@seed(2)
@settings(FEW, max_examples=120)
@given(matrices(), st.booleans())
def test_quantise(values: Any, epsilon: bool) -> None:
    got, scales = quantise(values, epsilon)
    assert got.dtype == np.int8 and scales.dtype == np.float32
    for at, row in enumerate(values):
        expected, scale = golden.quantised(row, epsilon)
        assert (got[at] == expected).all() and scales[at] == np.float32(scale)


@pytest.mark.parametrize("epsilon", [True, False])
@pytest.mark.parametrize(
    ("value", "with_epsilon", "without"),
    [
        (0.0, (0, 0.0), (0, 0.0)),
        (-0.0, (0, 0.0), (0, 0.0)),
        # a maximum far below epsilon: s is 127 / 1e-12; without it the reciprocal overflows
        (1e-40, (0, 7.8740158e-15), (0, 0.0)),
        (-127.0, (-127, 1.0), (-127, 1.0)),
    ],
)
def test_quantise_edges(value: float, with_epsilon: Any, without: Any, epsilon: bool) -> None:
    got, scales = quantise(np.array([[value, 0, 0]], np.float32), epsilon)
    number, scale = with_epsilon if epsilon else without
    assert got[0].tolist() == [number, 0, 0]
    assert scales[0] == np.float32(scale)


def test_epsilon_matters_where_it_is_seen() -> None:
    """At 1e-6 the two variants give different scales; each equals its golden."""
    row = np.array([[1e-6, 3e-7]], np.float32)
    (_, one), (_, other) = quantise(row, True), quantise(row, False)
    assert one[0] != other[0]


def test_sizes_and_offsets_of_the_page() -> None:
    """Operators page 4.2, 5, 7 and 10.5."""
    assert rows.row_stride(7168, 2) == 14848 and rows.row_stride(7168, 1) == 7680
    assert rows.slot_stride(7168, 2) == 14336
    assert rows.scale_offset(130) == 160
    assert [rows.notify_half(magic) for magic in (1, 2, 3)] == [102 * MB, 0, 102 * MB]
    assert rows.half_offset(1, 872 * MB) == (436 + 204) * MB
    assert rows.staging_offset(1, 872 * MB, 1024, 8, 7168, 2) == (436 + 208) * MB + 1024 * 8 * 14336
    assert (rows.NOTIFY_MAGIC, rows.DISPATCH_TOGGLE, rows.COMBINE_TOGGLE) == (900 * KB, 950 * KB, 975 * KB)
    assert rows.DISPATCH_STATUS.tobytes() == bytes.fromhex("0000803f" + "00" * 28)
    assert rows.COMBINE_FLAG.tobytes() == bytes.fromhex("0000803f") * 8


@pytest.mark.parametrize(
    ("seen", "magic", "here"),
    [(0, 1, False), (3, 1, True), (5, 1, True), (3, 2, False), (3 + (1 << 32), 1, False), (2, 1, False)],
)
def test_notify_flag(seen: int, magic: int, here: bool) -> None:
    """Equal high words and at least magic x 2 + 1."""
    assert rows.notify_here(seen, magic) is here


@pytest.mark.parametrize("quant", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_row_bytes(quant: bool, dtype: Any) -> None:
    """The staged bytes one by one: payload, scale, triple, in the order of the experts' arrivals."""
    x = (np.arange(2 * 33, dtype=np.float32).reshape(2, 33) - 30).astype(dtype)
    topk = np.array([[1, 0], [1, 1]], np.int32)
    staged = rows.pack_rows(
        x, topk, np.array([0, 1], np.int32), np.array([[0, 0], [1, 2]], np.int32), 5, quant
    )
    size = 33 if quant else 66
    field = 64 if quant else 96
    assert staged.shape == (4, 512)
    for row, (token, k) in zip(staged, [(0, 1), (0, 0), (1, 0), (1, 1)], strict=True):
        values, scale = golden.quantised(x[token].astype(np.float32), True)
        assert row[:size].tobytes() == (values.tobytes() if quant else x[token].tobytes())
        scale_bytes = np.float32(scale).tobytes() if quant else b"\xa5" * 4
        assert row[field : field + 4].tobytes() == scale_bytes
        assert row[field + 32 : field + 44].tobytes() == np.array([5, token, k], np.int32).tobytes()
        rest = np.concatenate((row[size:field], row[field + 4 : field + 32], row[field + 44 :]))
        assert set(rest.tolist()) == {0xA5}


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_weighted_sum(half: str) -> None:
    """k ascending, product and sum rounded apart, one cast at the end; overflow becomes infinity."""
    rng = np.random.default_rng(5)
    dtype = BF16 if half == "bf16" else FP16
    values = (rng.standard_normal((7, 5, 40)) * 2.0 ** rng.integers(-9, 9, (7, 5, 40))).astype(np.float32)
    patterns = golden.to_half(values, half)
    weights = (rng.standard_normal((7, 5)) * 50).astype(np.float32)
    data = np.full((35, 512), 0xA5, np.uint8)
    data[:, :80] = patterns.view(np.uint8).reshape(35, 80)
    got = rows.combine_rows(data.ravel(), weights, 40, dtype)
    exact = golden.from_half(patterns, half).astype(np.float64)
    total = np.zeros((7, 40))
    for k in range(5):
        product = (exact[:, k] * weights[:, k, None]).astype(np.float32).astype(np.float64)
        total = (total + product).astype(np.float32).astype(np.float64)
    assert (got.view(np.uint16) == golden.to_half(total, half)).all()
    # what a fused multiply-add or another order of k would give is something else
    backwards = np.zeros((7, 40), np.float32)
    for k in reversed(range(5)):
        backwards = backwards + exact[:, k].astype(np.float32) * weights[:, k, None]
    assert (backwards != total).any()


def test_casts_of_the_golden() -> None:
    """The golden's bfloat16 equals ml_dtypes on every upper half with every kind of lower half."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (upper | np.uint32(lower)).view(np.float32)
        finite = values[np.isfinite(values)]
        assert (golden.to_half(finite, "bf16") == finite.astype(BF16).view(np.uint16)).all()
