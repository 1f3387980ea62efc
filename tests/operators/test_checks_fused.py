"""Host layer of fused_deep_moe and its W4A8 variant: each check, its text, its bound, the order; tiling.

Sweep: every check violated alone and in pairs, in both variants where both have it; weight styles; shared
expert, smooth scales, mask. Stimulus: legal calls of 3 tokens on 4 ranks with arguments replaced. Checks: the
texts of `fused_refusals`; workspace and window from formulas of this file. Timing: none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from pymodel.operators import checks, checks_weights
from pymodel.operators import checks_fused as host
from pymodel.operators.checks import nz
from pymodel.operators.common import OperatorError, TorchBindError
from tests.operators.fused_refusals import (
    BF16,
    EXPERTS,
    F32,
    I8,
    I32,
    IDS,
    KB,
    LISTS,
    LOCAL,
    MB,
    N1,
    RANKS,
    SHARE,
    SHARE_W4A8,
    SMOOTH,
    VARIANTS,
    Call,
    H,
    K,
    T,
    ids,
    w8a8,
    weight,
)


def refused(tile: Callable[..., Any], call: Call) -> str:
    """The text of the refusal."""
    with pytest.raises(OperatorError) as error:
        tile(**call)
    return error.value.text


@pytest.mark.parametrize(
    ("operator", "change", "text"),
    [
        pytest.param(op, change, text, id=f"{op}-{name}")
        for op in VARIANTS
        for name, change, text in VARIANTS[op][2]
    ],
)
def test_red(operator: str, change: Call, text: str) -> None:
    """Each violation alone gives its text, with the code and the operator in front."""
    tile, base, _ = VARIANTS[operator]
    with pytest.raises(OperatorError) as error:
        tile(**{**base(), **change})
    assert str(error.value) == f"EZ9999: {operator}: {text}"


def _kind(text: str) -> str:
    """A text without its numbers, which depend on the other violation."""
    return re.sub(r"\(?\[?-?\d[\d, ()\]]*", "#", text)


def mended(name: str, second: Call) -> bool:
    """The change ``second`` makes the violation ``name`` legal."""
    made_legal = {"share bias alone": "share_gmm1_weight", "share smooth missing": "share_smooth_scales"}
    return made_legal.get(name) in second or (name == "k > E" and second.get("moe_expert_num", 0) > 8)


def pairs(operator: str) -> list[tuple[str, str, str, str]]:
    """Pairs of violations whose report is not that of the first one: names, reported, expected."""
    tile, base, red = VARIANTS[operator]
    wrong, tried = [], 0
    for (name, first, text), (other_name, second, other) in combinations(red, 2):
        if first.keys() & second.keys() or "HCCL_BUFFSIZE" in text + other:
            continue  # what a window needs depends on the rest
        if mended(name, second):
            continue
        tried += 1
        got = refused(tile, {**base(), **second, **first})
        if _kind(got) != _kind(text):
            wrong.append((name, other_name, got, text))
    assert tried > 10 * len(red)
    return wrong


@pytest.mark.parametrize("operator", VARIANTS)
def test_order(operator: str) -> None:
    """Of any two violations the one that stands first in the page is reported."""
    wrong = pairs(operator)
    assert not wrong, "\n".join(map(str, wrong))


ONE: Call = {
    "ep_rank_size": 8,
    "gmm1_weight_scale": [np.ones((1, N1), F32)],
    "gmm2_weight_scale": [np.ones(H, F32)],
}
GREEN_BOTH: list[Call] = [
    {},
    {"ep_rank_id": 3},
    {"global_bs": 12},
    {"global_bs": 16},
    {"quant_mode": 77},
    {"group_ep": "n" * 500},
    {"group_ep": ""},
    {"x": np.ones((T, H), np.float16), "gmm2_weight_scale": [np.ones((LOCAL, H), np.float16)]},
    SMOOTH,
    {"share_smooth_scales": np.ones(H, F32)},
    {"x_active_mask": np.zeros(T, bool)},
    {"x_active_mask": np.ones(T, bool)},
    # beyond the mask nobody looks at the experts
    {"x_active_mask": np.array([True, False, False]), "expert_ids": ids([0, 7], [3, 3], [-9, 99])},
    {"expert_ids": np.full((T, K), -1, I32)},
    {"x": np.ones((0, H), BF16), "expert_ids": np.ones((0, K), I32), "expert_scales": np.ones((0, K), F32)},
    {
        "x": np.ones((256, H), BF16),
        "expert_ids": np.full((256, 8), -1, I32),
        "expert_scales": np.ones((256, 8), F32),
    },
]  # fmt: skip
GREEN: dict[str, list[Call]] = {
    "fused_deep_moe": [
        *GREEN_BOTH,
        LISTS,
        SHARE,
        {**SHARE, "share_gmm1_weight": weight(1, H, N1), "share_gmm2_weight": weight(1, N1 // 2, H)},
        {**SHARE, "share_gmm1_weight_scale": np.ones((1, N1), F32)},
        {**SHARE, **SMOOTH, "share_smooth_scales": np.ones(H, F32)},
        {
            **SHARE,
            "share_gmm1_weight": weight(H, 2048),
            "share_gmm1_weight_scale": np.ones(2048, F32),
            "share_gmm2_weight": weight(1024, H),
        },
        {**ONE, "gmm1_weight": [weight(1, H, N1)], "gmm2_weight": [weight(1, N1 // 2, H)]},
        {**ONE, "gmm1_weight": [weight(H, N1)], "gmm2_weight": [weight(N1 // 2, H)]},
        {
            "gmm1_weight": [weight(LOCAL, H, 6144)],
            "gmm1_weight_scale": [np.ones((LOCAL, 6144), BF16)],
            "gmm2_weight": [weight(LOCAL, 3072, H)],
        },
        {
            "x": np.ones((T, 7168), BF16),
            "gmm1_weight": [weight(LOCAL, 7168, N1)],
            "gmm2_weight": [weight(LOCAL, N1 // 2, 7168)],
            "gmm2_weight_scale": [np.ones((LOCAL, 7168), F32)],
        },
        {
            "moe_expert_num": 512,
            "ep_rank_size": 256,
            "expert_ids": np.arange(36, dtype=I32).reshape(3, 12) + 476,
            "expert_scales": np.ones((3, 12), F32),
        },
    ],
    "fused_deep_moe_w4a8": [
        *GREEN_BOTH,
        SHARE_W4A8,
        {
            **{name: LISTS[name] for name in ("gmm1_weight_scale", "gmm2_weight_scale")},
            "gmm1_weight": [np.zeros((H, N1 // 8), I32)] * 2,
            "gmm2_weight": [np.zeros((N1 // 2, H // 8), I32)] * 2,
            "gmm1_bias": [np.zeros(N1, F32)] * 2,
            "gmm2_bias": [np.zeros(H, F32)] * 2,
        },
        {
            "moe_expert_num": 96,
            "gmm1_weight": [np.zeros((24, H, N1 // 8), I32)],
            "gmm1_weight_scale": [np.ones((24, N1), F32)],
            "gmm1_bias": [np.zeros((24, N1), F32)],
            "gmm2_weight": [np.zeros((24, N1 // 2, H // 8), I32)],
            "gmm2_weight_scale": [np.ones((24, H), F32)],
            "gmm2_bias": [np.zeros((24, H), F32)],
        },
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "change"),
    [pytest.param(op, change, id=f"{op}-{i}") for op in GREEN for i, change in enumerate(GREEN[op])],
)
def test_green(operator: str, change: Call) -> None:
    """Both ends of every bound, both weight styles, every option."""
    tile, base, _ = VARIANTS[operator]
    tile(**{**base(), **change})


def _up(value: int) -> int:
    return (value + 511) // 512 * 512


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("local", [1, 2])
@pytest.mark.parametrize(("global_bs", "k"), [(0, 1), (12, 2), (40, 5)])
def test_tiling(shared: bool, local: int, global_bs: int, k: int) -> None:
    """Workspace of 6.3, window of 6.1 with the skew of 12, cores; all figures of the call."""
    ranks = EXPERTS // local
    call = {
        **w8a8(),
        "ep_rank_size": ranks,
        "global_bs": global_bs and ranks * global_bs // 4,
        "gmm1_weight": [weight(local, H, N1)],
        "gmm2_weight": [weight(local, N1 // 2, H)],
        "gmm1_weight_scale": [np.ones((local, N1), F32)],
        "gmm2_weight_scale": [np.ones((local, H), BF16)],
        "expert_ids": np.arange(T * k, dtype=I32).reshape(T, k) % EXPERTS,
        "expert_scales": np.ones((T, k), F32),
        **(SHARE if shared else {}),
    }
    tiling = host.tile_fused(**call)
    total = call["global_bs"] or ranks * T
    rows = total * min(k, local)
    sh, ns = (T, N1) if shared else (0, 0)
    user = (
        _up(max((sh + rows) * H, sh * ns // 2 + rows * N1 // 2))
        + _up(4 * (sh + rows))
        + _up(max(4 * (rows * N1 + sh * ns), 4 * (rows + sh) * H))
        + (_up(2 * rows * H) if local == 1 else 0)
        + _up(8 * local)
        + _up(4 * T * k)
        + _up(4 * EXPERTS)
        + 256 * KB
    )
    assert tiling.workspace == 16 * MB + user
    assert tiling.window == local * total * H * 4 + ranks * 512
    assert tiling.block_dim == 24
    assert (tiling.data["rows"], tiling.data["global_bs"], tiling.data["active"]) == (rows, total, T)


def test_tiling_key() -> None:
    """Five bools in the page's order, one bit each; every option moves its own bit alone."""
    options: list[Call] = [
        {},
        LISTS,
        {"x_active_mask": np.ones(T, bool)},
        SHARE,
        SMOOTH,
    ]
    assert [host.tile_fused(**{**w8a8(), **change}).key for change in options] == [1, 3, 5, 9, 17]
    one = {**ONE, "gmm1_weight": [weight(1, H, N1)], "gmm2_weight": [weight(1, N1 // 2, H)]}
    assert host.tile_fused(**{**w8a8(), **one}).key == 0
    everything = {**LISTS, **SHARE, **SMOOTH, **options[2], "share_smooth_scales": np.ones(H, F32)}
    everything["share_gmm2_weight_scale"] = np.ones(H, F32)
    tiling = host.tile_fused(**{**w8a8(), **everything})
    assert (tiling.key, tiling.data["arch"]) == (31, 0)


@pytest.mark.parametrize("global_bs", [0, 4 * 512, 4 * 64])
def test_window(global_bs: int) -> None:
    """Refused without the last byte of skew, with global_bs 0 too, which the original lets through."""
    tokens = 64
    hidden = 1024
    total = global_bs or RANKS * tokens
    call = {
        **w8a8(),
        "x": np.ones((tokens, hidden), BF16),
        "expert_ids": np.full((tokens, K), -1, I32),
        "expert_scales": np.ones((tokens, K), F32),
        "gmm1_weight": [weight(LOCAL, hidden, N1)],
        "gmm2_weight": [weight(LOCAL, N1 // 2, hidden)],
        "gmm2_weight_scale": [np.ones((LOCAL, hidden), F32)],
        "global_bs": global_bs,
    }
    exact = LOCAL * total * hidden * 4 // MB
    assert exact * MB == LOCAL * total * hidden * 4
    text = refused(host.tile_fused, {**call, "hccl_buffsize": exact})
    assert f"needs {exact + 1}MB, but got HCCL_BUFFSIZE={exact}MB." in text
    host.tile_fused(**{**call, "hccl_buffsize": exact + 1})


def test_window_beyond_32_bits() -> None:
    """A demand of 4 GiB and more does not wrap."""
    call = {**w8a8(), "global_bs": RANKS * (1 << 18), "hccl_buffsize": 4095}
    assert "needs 4097MB" in refused(host.tile_fused, call)
    host.tile_fused(**{**call, "hccl_buffsize": 4097})


def test_window_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """HCCL_BUFFSIZE counts where nothing is given."""
    call = {**w8a8(), "hccl_buffsize": None}
    monkeypatch.setenv("HCCL_BUFFSIZE", "65536")
    assert "HCCL_BUFFSIZE=0MB" in refused(host.tile_fused, call)
    monkeypatch.setenv("HCCL_BUFFSIZE", "1")
    host.tile_fused(**call)


def test_per_expert() -> None:
    """Either style comes out as one untagged array a local expert."""
    whole = nz(np.arange(24, dtype=I8).reshape(2, 3, 4))
    for tensors in ([whole], [whole[0], whole[1]]):
        out = host.per_expert(tensors, 2)
        assert [checks.is_nz(one) for one in out] == [False, False]
        assert all(np.array_equal(one, whole[i]) for i, one in enumerate(out))
    assert [one.shape for one in host.per_expert([whole[:1]], 1)] == [(1, 3, 4)]
    assert [one.shape for one in host.per_expert([whole[0]], 1)] == [(3, 4)]


@pytest.mark.parametrize(
    ("x", "ids", "condition"),
    [(np.ones(3), IDS, "x.dim() == 2"), (np.ones((3, 4, 5)), IDS[0], "x.dim() == 2"),
     (np.ones((3, 4)), IDS[0], "expert_ids.dim() == 2")],
)  # fmt: skip
def test_bind(x: Any, ids: Any, condition: str) -> None:
    """The two assertions of the binding."""
    host.bind_fused(np.ones((3, 4)), IDS)
    with pytest.raises(TorchBindError) as error:
        host.bind_fused(x, ids)
    assert str(error.value) == f"Assertion error: {condition}"


def test_planted_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out: the skew, the check of the format. Swapped: shared expert before the routed ones."""
    monkeypatch.setattr(host, "SKEW", 0)
    with pytest.raises(pytest.fail.Exception):
        test_window(0)
    monkeypatch.setattr(checks, "is_nz", lambda _: True)
    with pytest.raises(pytest.fail.Exception):
        refused(host.tile_fused, {**w8a8(), "gmm1_weight": [np.zeros((LOCAL, H, N1), I8)]})
    monkeypatch.undo()

    def swapped(*args: Any) -> int:
        host.shared_pair(checks_weights.W8A8, H, (np.dtype(F32), BF16), *SHARED)
        return checks_weights.routed_pair(*args)

    given = {**SHARE, "share_gmm1_weight": weight(H + 1, N1)}
    SHARED = (
        checks_weights.Pair(given["share_gmm1_weight"], given["share_gmm1_weight_scale"]),
        checks_weights.Pair(given["share_gmm2_weight"], given["share_gmm2_weight_scale"]),
    )
    monkeypatch.setattr(host, "routed_pair", swapped)
    assert pairs("fused_deep_moe")
