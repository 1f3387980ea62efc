"""Host layer of the prefill operators: each check, its text, its boundary, the order, tiling and window.

Sweep: every check violated alone and in pairs; both sides of every bound; sizes of windows, HCCL_BUFFSIZE.
Stimulus: legal calls of 4 tokens on 4 ranks with single arguments replaced. Checks: texts, which are written
out here, and figures from formulas of this file. Timing: none.
"""

from __future__ import annotations

import re
from itertools import combinations

import ml_dtypes
import numpy as np
import pytest

from pymodel.operators import checks
from pymodel.operators import checks_prefill as host
from pymodel.operators.common import OperatorError, TorchBindError
from tests.operators.prefill_refusals import (
    BF16,
    DISPATCH,
    EXPERTS,
    I32,
    MB,
    ONES,
    OPERATORS,
    RANKS,
    RED,
    TOPK,
    A,
    Call,
    H,
    K,
    T,
    Tile,
    changed,
    combine_call,
    dispatch_call,
    layout_call,
    notify_call,
    triples,
)


def refused(tile: Tile, call: Call) -> str:
    """The text of the refusal."""
    with pytest.raises(OperatorError) as error:
        tile(**call)
    return error.value.text


@pytest.mark.parametrize(
    ("operator", "change", "text"),
    [pytest.param(op, change, text, id=f"{op}-{name}") for op in RED for name, change, text in RED[op]],
)
def test_red(operator: str, change: Call, text: str) -> None:
    """Each violation alone gives its text, with the code and the operator in front."""
    tile, base = OPERATORS[operator]
    with pytest.raises(OperatorError) as error:
        tile(**{**base(), **change})
    assert str(error.value) == f"EZ9999: {operator}: {text}"


MENDED = {
    ("recv_x int8", "recv_x not quantised"),
    ("recv_x not quantised", "h 1023"),
    ("recv_x not quantised", "h 7169"),
    ("tp rank", "tp 2 with El 2"),
}
"""Pairs in which the second change makes the first one legal."""


def _kind(text: str) -> str:
    """A text without its numbers, which depend on the other violation."""
    return re.sub(r"\(?-?[\d, ()]+", "#", text)


@pytest.mark.parametrize("operator", RED)
def test_order(operator: str) -> None:
    """Of any two violations the one that stands first in the page is reported."""
    tile, base = OPERATORS[operator]
    tried = 0
    for (name, first, text), (other_name, second, other) in combinations(RED[operator], 2):
        if first.keys() & second.keys() or "HCCL_BUFFSIZE" in text + other:
            continue  # what a window needs depends on the rest
        if (name, other_name) in MENDED:
            continue
        tried += 1
        assert _kind(refused(tile, {**base(), **second, **first})) == _kind(text), (first, second)
    assert tried > len(RED[operator])


GREEN: dict[str, list[Call]] = {
    "dispatch_layout": [
        {},
        {"outputs": None},
        {"num_ranks": 1},
        {"num_ranks": 384, "num_experts": 384},
        {"num_experts": 512},
        {"topk_idx": np.zeros((T, K), np.int64)},  # duplicates within a token are legal in prefill
        {"topk_idx": np.zeros((1, 16), np.int64), "num_tokens": 1, "num_topk": 16},
        {"topk_idx": np.full((8000, 1), 7, np.int64), "num_tokens": 8000, "num_topk": 1},
    ],
    "notify_dispatch": [
        {},
        {"rank_size": 1},
        {"rank_size": 8, "rank_id": 7},
        {"num_tokens": 1},
        {"comm_group": "n"},
        {"comm_group": "n" * 127},
        {"hccl_buffsize": 3},
        {"token_per_expert_data": np.zeros(EXPERTS, I32)},
    ],
    "moe_dispatch_normal": [
        {},
        {"recv_x": None, "x_scales": None, "assist_info": None, "recv_count": None, "recv_offset": None},
        {"group_ep": "n" * 127},
        {"ep_world_size": 2},
        {"ep_rank_id": 3},
        {"tp_world_size": 0},
        {"tp_world_size": 2, "tp_rank_id": 1},
        {"quant_mode": 2, "recv_x": np.empty((A, H), np.int8)},
        {"x": np.ones((T, H), np.float16), "recv_x": np.empty((A, H), np.float16)},
        {"x": np.ones((T, 7168), BF16), "recv_x": np.empty((A, 7168), BF16)},
        {"hccl_buffsize": 417},
        {"global_bs": 20},
        {"topk_idx": np.zeros((T, K), I32), "send_token_idx": np.arange(8, dtype=I32).reshape(T, K)},
        {"recv_count": np.zeros(EXPERTS, I32), "recv_x": np.empty((1, H), BF16)},
        {"x": changed(ONES, (0, 0), ml_dtypes.finfo(BF16).max)},
    ],
    "moe_combine_normal": [
        {},
        {"x": None, "topk_idx": None},
        {"global_bs": 0},
        {"global_bs": 20},
        {"hccl_buffsize": 417},
        {
            "tp_world_size": 2, "tp_rank_id": 1, "moe_expert_num": 4, "topk_idx": None,
            "ep_recv_counts": np.full(4, A, I32),
        },
        {"token_src_info": np.concatenate((triples(), np.full(9, -5, I32)))},
        {
            "ep_recv_counts": np.array([0, 1, 1, 2, 3, 3, 4, 4, 99], I32),
            "recv_x": changed(np.ones((A, H), BF16), 4, np.nan),
        },
        {
            "ep_recv_counts": np.zeros(8, I32),
            "recv_x": np.full((1, H), np.nan, BF16),
            "token_src_info": np.full(3, -1, I32),
        },
        {"token_src_info": triples((0, 7999, 0)), "hccl_buffsize": 479},
        {"recv_x": np.ones((A, 7168), np.float16), "x": np.empty((T, 7168), np.float16)},
        {"ep_world_size": 8, "global_bs": 32},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "change"),
    [pytest.param(op, change, id=f"{op}-{i}") for op in GREEN for i, change in enumerate(GREEN[op])],
)
def test_green(operator: str, change: Call) -> None:
    """Both ends of every bound are legal."""
    tile, base = OPERATORS[operator]
    tile(**{**base(), **change})


def test_most_experts_and_tokens() -> None:
    """512 experts on 256 ranks, k 16, 8000 tokens: the widest call that the bounds allow."""
    ids = np.arange(8000 * 16, dtype=I32).reshape(8000, 16) % 512
    call = {
        **dispatch_call(),
        "x": np.ones((8000, H), BF16),
        "topk_idx": ids,
        "moe_expert_num": 512,
        "ep_world_size": 256,
        "global_bs": 256 * 8000,
        "send_offset": np.arange(512, dtype=I32) * 250,
        "send_token_idx": np.arange(8000 * 16, dtype=I32).reshape(8000, 16) // 512,
        "recv_offset": np.zeros(512, I32),
        "recv_count": np.zeros(512, I32),
        "hccl_buffsize": 2000,
    }
    host.tile_dispatch(**call)
    assert "k is invalid" in refused(host.tile_dispatch, {**call, "topk_idx": np.zeros((8000, 17), I32)})
    wide = np.ones((8001, H), BF16)
    assert "bs is invalid" in refused(host.tile_dispatch, {**call, "x": wide})


# ---- figures
def _up(value: int, unit: int) -> int:
    return (value + unit - 1) // unit * unit


@pytest.mark.parametrize(
    ("max_bs", "k", "hidden", "megabytes"),
    [
        (1024, 8, 7168, 872),
        (8000, 8, 7168, 3979),
        (1, 1, 1024, 417),
        (5860, 16, 7168, None),
        (7, 3, 1500, None),
    ],
)
def test_window_of_dispatch(max_bs: int, k: int, hidden: int, megabytes: int | None) -> None:
    """The page's worked sizes; legal with exactly so many MB and refused with one less, beyond 4 GiB too."""
    need = 2 * (max_bs * k * (_up(2 * hidden, 512) + _up(_up(2 * hidden, 32) + 44, 512)) + 208 * MB)
    least = _up(need, MB) // MB
    assert megabytes in (None, least)
    ids = np.arange(k, dtype=I32)[None]
    call = {
        **dispatch_call(), "x": np.ones((1, hidden), BF16), "topk_idx": ids, "moe_expert_num": 16,
        "send_offset": np.arange(16, dtype=I32), "send_token_idx": np.zeros((1, k), I32),
        "recv_offset": None, "recv_count": None, "recv_x": None, "global_bs": RANKS * max_bs,
    }  # fmt: skip
    tiling = host.tile_dispatch(**{**call, "hccl_buffsize": least})
    assert (tiling.window, tiling.data["max_bs"]) == (need, max_bs)
    assert f"needs {least}MB" in refused(host.tile_dispatch, {**call, "hccl_buffsize": least - 1})


@pytest.mark.parametrize(("max_bs", "k", "hidden"), [(1024, 8, 7168), (8000, 16, 7168), (9, 3, 1500)])
def test_window_of_combine(max_bs: int, k: int, hidden: int) -> None:
    """As `test_window_of_dispatch`."""
    need = 2 * (max_bs * k * _up(2 * hidden, 512) + 208 * MB)
    least = _up(need, MB) // MB
    call = {
        **combine_call(), "recv_x": np.ones((1, hidden), BF16),
        "recv_topk_weights": np.ones((1, k), np.float32),
        "ep_recv_counts": np.zeros(16, I32), "moe_expert_num": 16, "global_bs": RANKS * max_bs,
        "topk_idx": None, "x": None,
    }  # fmt: skip
    assert host.tile_combine(**{**call, "hccl_buffsize": least}).window == need
    assert f"needs {least}MB" in refused(host.tile_combine, {**call, "hccl_buffsize": least - 1})


def test_tiling() -> None:
    """Keys, workspaces and cores of operators page 1.2; row sizes of 10.5."""
    tiling = host.tile_dispatch_layout(**layout_call())
    assert (tiling.key, tiling.workspace, tiling.block_dim, tiling.window) == (23, 17 * MB, 48, 0)
    for dtype, key in (("float16", 20), (BF16, 21), ("float32", 22), ("int32", 23)):
        call = {**notify_call(), "send_data": np.zeros(3 * EXPERTS, dtype)}
        tiling = host.tile_notify(**call)
        assert (tiling.key, tiling.workspace, tiling.block_dim) == (key, 18 * MB, 48)
        assert tiling.window == 3 * EXPERTS * np.dtype(dtype).itemsize + 2 * MB
        assert host.tile_notify(**call, soc="ascend910b").key == key + 100
    for quant in (0, 2):
        for tp in (0, 1, 2):
            recv_x = np.empty((A, H), np.int8 if quant else BF16)
            tiling = host.tile_dispatch(
                **{**dispatch_call(), "quant_mode": quant, "tp_world_size": tp, "recv_x": recv_x}
            )
            assert tiling.key == 10000 + quant + 100 * (tp == 2)
            assert (tiling.workspace, tiling.block_dim) == (16 * MB + 512 * 48 * 48, 48)
            assert tiling.data["schedule_mode"] == 1
    tiling = host.tile_combine(**combine_call())
    assert (tiling.key, tiling.workspace, tiling.block_dim) == (0, 16 * MB, 48)
    assert tiling.data["schedule_mode"] == 1
    assert (host.row_bytes(7168, 2), host.row_bytes(7168, 1)) == (14848, 7680)


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [
        (None, 200),
        ("4096", 4096),
        ("0", 0),
        ("65535", 65535),
        ("65536", 0),
        ("65537", 1),
        (" 17 ", 17),
        ("-1", 65535),
        ("", 200),
        ("4GB", 200),
        ("1e3", 200),
        ("0x10", 200),
        ("\u0663", 200),
    ],
)
def test_hccl_buffsize(text: str | None, megabytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 bits of the environment's number, 200 where it is none; an explicit size goes first."""
    monkeypatch.delenv("HCCL_BUFFSIZE", raising=False)
    if text is not None:
        monkeypatch.setenv("HCCL_BUFFSIZE", text)
    assert checks.hccl_buffsize() == megabytes
    assert checks.hccl_buffsize(65536) == 65536
    call = {name: value for name, value in dispatch_call().items() if name != "hccl_buffsize"}
    if megabytes < 417:
        assert f"got HCCL_BUFFSIZE={megabytes}MB." in refused(host.tile_dispatch, call)
    else:
        host.tile_dispatch(**call)


# ---- torch binding
F32 = np.float32
NOT_C = np.zeros((H, T), BF16).T
BIND_DISPATCH: list[tuple[Call, str]] = [
    ({"num_tokens_per_expert": np.ones(8, np.int64)}, "num_tokens_per_expert.scalar_type() == int32"),
    ({"num_tokens_per_expert": np.ones((8, 1), I32)}, "num_tokens_per_expert.dim() == 1"),
    ({"num_tokens_per_expert": np.ones(16, I32)[::2]}, "num_tokens_per_expert.is_contiguous()"),
    ({"num_tokens_per_expert": np.ones(9, I32)}, "num_tokens_per_expert.size(0) % num_ranks == 0"),
    ({"num_ranks": 1}, "num_ranks >= 2 && num_ranks <= 384"),
    ({"num_ranks": 0}, "num_ranks >= 2 && num_ranks <= 384"),
    ({"num_ranks": 400, "num_tokens_per_expert": np.ones(400, I32)}, "num_ranks >= 2 && num_ranks <= 384"),
    ({"x": np.ones(T, BF16)}, "x.dim() == 2"),
    ({"x": NOT_C}, "x.is_contiguous()"),
    ({"topk_idx": TOPK[0]}, "topk_idx.dim() == 2"),
    ({"topk_idx": TOPK.T}, "topk_idx.is_contiguous()"),
    ({"topk_weights": np.ones(T, F32)}, "topk_weights.dim() == 2"),
    ({"topk_weights": np.ones((K, T), F32).T}, "topk_weights.is_contiguous()"),
    ({"send_token_idx_small": np.zeros(T, I32)}, "send_token_idx_small.dim() == 2"),
    ({"topk_idx": np.zeros((3, K), I32)}, "x.size(0) == topk_idx.size(0)"),
    ({"send_token_idx_small": np.zeros((3, K), I32)}, "x.size(0) == send_token_idx_small.size(0)"),
    ({"topk_weights": np.ones((T, 3), F32)}, "topk_weights.size(1) == send_token_idx_small.size(1)"),
    ({"topk_idx": TOPK + (1 << 32)}, "topk_idx fits int32"),
]


def _bind_dispatch() -> Call:
    return {
        "x": ONES,
        "topk_idx": TOPK,
        "topk_weights": np.ones((T, K), F32),
        "num_tokens_per_expert": np.ones(EXPERTS, I32),
        "send_token_idx_small": np.zeros((T, K), I32),
        "num_ranks": RANKS,
    }


@pytest.mark.parametrize(("change", "condition"), BIND_DISPATCH)
def test_bind_dispatch(change: Call, condition: str) -> None:
    """Assertions of the binding of moe_dispatch_prefill."""
    assert host.bind_dispatch(**_bind_dispatch()).dtype == I32
    with pytest.raises(TorchBindError) as error:
        host.bind_dispatch(**{**_bind_dispatch(), **change})
    assert str(error.value) == f"Assertion error: {condition}"


def test_order_of_bind_dispatch() -> None:
    """Of two failing assertions the first one speaks."""
    for (first, text), (second, _) in combinations(BIND_DISPATCH, 2):
        if "num_ranks" in second and "% num_ranks" in text:
            continue  # the second change makes the first one legal
        if not first.keys() & second.keys():
            with pytest.raises(TorchBindError) as error:
                host.bind_dispatch(**{**_bind_dispatch(), **second, **first})
            assert error.value.condition == text, (first, second)


def test_bind_layout_and_combine() -> None:
    """The two small bindings, in their order."""
    assert host.bind_layout(TOPK.astype(np.int16), 1).dtype == np.int64
    for ids, experts, condition in (
        (TOPK[0][::2], 0, "topk_idx.dim() == 2"),
        (TOPK.T, 0, "topk_idx.is_contiguous()"),
        (TOPK, 0, "num_experts > 0"),
        (TOPK, -1, "num_experts > 0"),
    ):
        with pytest.raises(TorchBindError) as error:
            host.bind_layout(ids, experts)
        assert error.value.condition == condition
    host.bind_combine(ONES)
    for x, condition in ((ONES[0], "x.dim() == 2"), (NOT_C, "x.is_contiguous()")):
        with pytest.raises(TorchBindError) as error:
            host.bind_combine(x)
        assert error.value.condition == condition


def test_planted_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that is left out, and a window computed without its combine part, are seen."""
    monkeypatch.setattr(checks, "finite", lambda *_: None)
    with pytest.raises(pytest.fail.Exception):
        test_red("moe_dispatch_normal", *DISPATCH[-1][1:])
    monkeypatch.setattr(host, "dispatch_window", lambda bs, k, h: 2 * (bs * k * 2 * h + 208 * MB))
    with pytest.raises(AssertionError):
        test_window_of_dispatch(1024, 8, 7168, 872)
