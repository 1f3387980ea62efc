"""Legal calls of the prefill operators' host layer, and what makes them illegal with the text of the refusal.

The refusals of an operator stand in the order of the page. Used by `test_checks_prefill`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from pymodel.operators import checks
from pymodel.operators import checks_prefill as host

BF16 = np.dtype(ml_dtypes.bfloat16)
RANKS, EXPERTS, T, K, H, A = 4, 8, 4, 2, 1024, 5
MB = 1 << 20
Call = dict[str, Any]
TOPK = (np.arange(T * K).reshape(T, K) * 3) % EXPERTS
I32 = np.int32


def layout_call() -> Call:
    return {
        "topk_idx": TOPK.astype(np.int64),
        "num_tokens": T,
        "num_ranks": RANKS,
        "num_experts": EXPERTS,
        "num_topk": K,
        "outputs": {"isTokenInRank": np.zeros((T, RANKS), I32)},
    }


def notify_call() -> Call:
    return {
        "send_data": np.zeros(3 * EXPERTS, I32),
        "token_per_expert_data": np.ones(EXPERTS, I32),
        "send_count": 3 * EXPERTS,
        "num_tokens": T,
        "comm_group": "g",
        "rank_size": RANKS,
        "rank_id": 0,
        "hccl_buffsize": 200,
    }


def _group() -> Call:
    return {
        "group_ep": "g",
        "ep_world_size": RANKS,
        "ep_rank_id": 0,
        "moe_expert_num": EXPERTS,
        "tp_world_size": 1,
        "tp_rank_id": 0,
        "hccl_buffsize": 1000,
    }


def dispatch_call() -> Call:
    return {
        **_group(),
        "x": np.ones((T, H), BF16),
        "topk_idx": TOPK.astype(I32),
        "send_offset": np.arange(EXPERTS, dtype=I32),  # every expert has one slot here
        "send_token_idx": np.zeros((T, K), I32),
        "recv_offset": np.zeros(EXPERTS, I32),
        "recv_count": np.array([0, 1, 1, 2, 3, 3, 4, A], I32),
        "global_bs": RANKS * T,
        "quant_mode": 0,
        "recv_x": np.empty((A, H), BF16),
        "x_scales": np.empty(A, np.float32),
        "assist_info": np.empty(3 * A, I32),
    }


def triples(*rows: tuple[int, int, int]) -> Any:
    good = [(0, 0, 0), (1, 3, 1), (2, 0, 1), (3, 2, 0), (0, 1, 0)]
    return np.array([*rows, *good[len(rows) :]], I32).ravel()


def combine_call() -> Call:
    return {
        **_group(),
        "recv_x": np.ones((A, H), BF16),
        "token_src_info": triples(),
        "ep_recv_counts": np.array([0, 1, 1, 2, 3, 3, 4, A], I32),
        "recv_topk_weights": np.ones((T, K), np.float32),
        "tp_recv_counts": np.zeros(1, I32),
        "global_bs": RANKS * T,
        "topk_idx": TOPK,
        "x": np.empty((T, H), BF16),
    }


def changed(array: Any, place: Any, value: Any) -> Any:
    array = array.copy()
    array[place] = value
    return array


Tile = Callable[..., Any]
OPERATORS: dict[str, tuple[Tile, Callable[[], Call]]] = {
    "dispatch_layout": (host.tile_dispatch_layout, layout_call),
    "notify_dispatch": (host.tile_notify, notify_call),
    "moe_dispatch_normal": (host.tile_dispatch, dispatch_call),
    "moe_combine_normal": (host.tile_combine, combine_call),
}
ONES = np.ones((T, H), BF16)
Case = tuple[str, Call, str]

LAYOUT: list[Case] = [
    ("no rank", {"num_ranks": 0}, "rankSize is invalid, only support (0, 384], but got rankSize=0."),
    ("385 ranks", {"num_ranks": 385}, "rankSize is invalid, only support (0, 384], but got rankSize=385."),
    ("-1 ranks", {"num_ranks": -1}, "rankSize is invalid, only support (0, 384], but got rankSize=-1."),
    ("no expert", {"num_experts": 0}, "numExperts is invalid, only support (0, 512], but got numExperts=0."),
    ("513", {"num_experts": 513}, "numExperts is invalid, only support (0, 512], but got numExperts=513."),
    ("10 on 4", {"num_experts": 10}, "numExperts (10) not divisible by numRanks (4)."),
    ("no k", {"num_topk": 0}, "numTopk is invalid, only support (0, 16], but got numTopk=0."),
    ("k 17", {"num_topk": 17}, "numTopk is invalid, only support (0, 16], but got numTopk=17."),
    ("no token", {"num_tokens": 0}, "numTokens is invalid, only support (0, 8000], but got numTokens=0."),
    ("8001", {"num_tokens": 8001}, "numTokens is invalid, only support (0, 8000], but got numTokens=8001."),
    ("int32", {"topk_idx": TOPK.astype(I32)}, "topkIdx datatype must be int64, not int32."),
    ("1-D", {"topk_idx": TOPK.ravel()}, "topkIdx must be 2-dimension, but got 1."),
    ("output", {"outputs": {"o": np.zeros(1, np.int64)}}, "o datatype must be int32, not int64."),
    ("shape", {"topk_idx": TOPK.T.copy()}, "topkIdx must have shape (4, 2), but got (2, 4)."),
    ("-1", {"topk_idx": changed(TOPK, (1, 1), -1)}, "topkIdx holds -1, only support [0, 8)."),
    ("expert E", {"topk_idx": changed(TOPK, (3, 1), 8)}, "topkIdx holds 8, only support [0, 8)."),
]

NOTIFY: list[Case] = [
    ("no rank", {"rank_size": 0}, "rankSize is invalid, only support (0, 384], but got rankSize=0."),
    ("385 ranks", {"rank_size": 385}, "rankSize is invalid, only support (0, 384], but got rankSize=385."),
    ("rank -1", {"rank_id": -1}, "rankId is invalid, only support [0, 4), but got rankId=-1."),
    ("rank R", {"rank_id": 4}, "rankId is invalid, only support [0, 4), but got rankId=4."),
    ("nothing to send", {"send_count": 0}, "sendCount must > 0, but got 0."),
    ("no token", {"num_tokens": 0}, "numTokens must > 0, but got 0."),
    ("no name", {"comm_group": ""}, "commGroup length must be in [1, 127], but got length 0."),
    ("name 128", {"comm_group": "n" * 128}, "commGroup length must be in [1, 127], but got length 128."),
    ("int64", {"send_data": np.zeros(3 * EXPERTS, np.int64)}, "sendData datatype int64 is invalid."),
    (
        "counts int8",
        {"token_per_expert_data": np.ones(EXPERTS, np.int8)},
        "tokenPerExpertData datatype int8 is invalid.",
    ),
    (
        "window",
        {"hccl_buffsize": 2},
        "HCCL_BUFFSIZE is too SMALL, sendCount=24, needs 3MB, but got HCCL_BUFFSIZE=2MB.",
    ),
    (
        "9 experts",
        {"token_per_expert_data": np.ones(9, I32)},
        "9 experts not divisible by rankSize (4).",
    ),
    ("send count", {"send_count": 25}, "sendCount must be 24, but got 25."),
    ("send data", {"send_data": np.zeros(8, I32)}, "sendData must have 24 elements, but got 8."),
    (
        "negative count",
        {"token_per_expert_data": changed(np.ones(EXPERTS, I32), 3, -1)},
        "tokenPerExpertData holds a negative count.",
    ),
]

GROUP: list[Case] = [
    ("no name", {"group_ep": ""}, "groupEp length must be in [1, 127], but got length 0."),
    ("name 128", {"group_ep": "n" * 128}, "groupEp length must be in [1, 127], but got length 128."),
    ("1 rank", {"ep_world_size": 1}, "epWorldSize is invalid, only support [2, 384], but got epWorldSize=1."),
    (
        "385",
        {"ep_world_size": 385},
        "epWorldSize is invalid, only support [2, 384], but got epWorldSize=385.",
    ),
    ("rank -1", {"ep_rank_id": -1}, "epRankId is invalid, only support [0, 4), but got epRankId=-1."),
    ("rank R", {"ep_rank_id": 4}, "epRankId is invalid, only support [0, 4), but got epRankId=4."),
    ("tp -1", {"tp_world_size": -1}, "tpWorldSize is invalid, only support [0, 2], but got tpWorldSize=-1."),
    ("tp 3", {"tp_world_size": 3}, "tpWorldSize is invalid, only support [0, 2], but got tpWorldSize=3."),
    ("tp rank", {"tp_rank_id": 1}, "tpRankId is invalid, only support [0, 1), but got tpRankId=1."),
]

EXPERT_NUMBER: list[Case] = [
    (
        "no expert",
        {"moe_expert_num": 0},
        "moeExpertNum is invalid, only support (0, 512], but got moeExpertNum=0.",
    ),
    (
        "513 experts",
        {"moe_expert_num": 513},
        "moeExpertNum is invalid, only support (0, 512], but got moeExpertNum=513.",
    ),
    ("10 on 4", {"moe_expert_num": 10}, "moeExpertNum (10) must be divisible by epWorldSize (4)."),
]

DISPATCH: list[Case] = [
    *GROUP,
    ("quant -1", {"quant_mode": -1}, "quantMode is invalid, only support [0, 2], but got quantMode=-1."),
    ("quant 3", {"quant_mode": 3}, "quantMode is invalid, only support [0, 2], but got quantMode=3."),
    ("x 3-D", {"x": np.ones((1, T, H), BF16)}, "x must be 2-dimension, but got 3."),
    (
        "x f32",
        {"x": np.ones((T, H), np.float32)},
        "x datatype must be bfloat16 or float16, but got float32.",
    ),
    ("ids 1-D", {"topk_idx": TOPK.astype(I32).ravel()}, "expertIds must be 2-dimension, but got 1."),
    ("ids int64", {"topk_idx": TOPK}, "expertIds datatype must be int32, but got int64."),
    ("recv_x 1-D", {"recv_x": np.empty(A, BF16)}, "recvX must be 2-dimension, but got 1."),
    (
        "recv_x int8",
        {"recv_x": np.empty((A, H), np.int8)},
        "recvX datatype must be bfloat16, but got int8.",
    ),
    (
        "recv_x not quantised",
        {"quant_mode": 2},
        "recvX datatype must be int8, but got bfloat16.",
    ),
    ("recv_x h", {"recv_x": np.empty((A, H + 1), BF16)}, "recvX dim1 must be h (1024)."),
    ("scales 2-D", {"x_scales": np.empty((A, 1))}, "dynamicScales must be 1-dimension, but got 2."),
    (
        "scales f64",
        {"x_scales": np.empty(A)},
        "dynamicScales datatype must be float32, but got float64.",
    ),
    ("assist 2-D", {"assist_info": np.empty((A, 3), I32)}, "assistInfo must be 1-dimension, but got 2."),
    (
        "assist int64",
        {"assist_info": np.empty(3 * A, np.int64)},
        "assistInfo datatype must be int32, but got int64.",
    ),
    ("x NZ", {"x": checks.nz(ONES)}, "x format must not be FRACTAL_NZ."),
    (
        "ids NZ",
        {"topk_idx": checks.nz(TOPK.astype(I32))},
        "expertIds format must not be FRACTAL_NZ.",
    ),
    (
        "recv_x NZ",
        {"recv_x": checks.nz(np.empty((A, H), BF16))},
        "recvX format must not be FRACTAL_NZ.",
    ),
    *EXPERT_NUMBER,
    ("no token", {"x": np.ones((0, H), BF16)}, "bs is invalid, only support [1, 8000], but got bs=0."),
    ("h 1023", {"x": np.ones((T, 1023), BF16), "recv_x": None},
     "h is invalid, only support [1024, 7168], but got h=1023."),
    ("h 7169", {"x": np.ones((T, 7169), BF16), "recv_x": None},
     "h is invalid, only support [1024, 7168], but got h=7169."),
    ("no k", {"topk_idx": np.ones((T, 0), I32)}, "k is invalid, only support (0, 8], but got k=0."),
    ("k > E", {"topk_idx": np.ones((T, 9), I32)}, "k is invalid, only support (0, 8], but got k=9."),
    ("no global_bs", {"global_bs": 0}, "globalBs must > 0, but got 0."),
    ("ids dim0", {"topk_idx": np.ones((T + 1, K), I32)}, "expertIds dim0 must be bs (4)."),
    (
        "window",
        {"hccl_buffsize": 416},
        "HCCL_BUFFSIZE is too SMALL, maxBs=4, k=2, h=1024, needs 417MB, but got HCCL_BUFFSIZE=416MB.",
    ),
    (
        "mode without a kernel",
        {"quant_mode": 1, "recv_x": np.empty((A, H), np.int8)},
        "quantMode 1 has no kernel, only 0 and 2 have.",
    ),
    (
        "global_bs of less than bs",
        {"global_bs": 12},
        "globalBs must be epWorldSize (4) * maxBs with maxBs >= bs (4), but got 12.",
    ),
    (
        "global_bs % R",
        {"global_bs": 17},
        "globalBs must be epWorldSize (4) * maxBs with maxBs >= bs (4), but got 17.",
    ),
    (
        "-1",
        {"topk_idx": changed(TOPK.astype(I32), (1, 1), -1)},
        "expertIds holds -1, only support [0, 8).",
    ),
    ("expert E", {"topk_idx": changed(TOPK.astype(I32), 0, 8)}, "expertIds holds 8, only support [0, 8)."),
    ("offsets", {"send_offset": np.zeros(7, I32)}, "sendOffset must have shape (8,), but got (7,)."),
    (
        "offsets int64",
        {"send_offset": np.arange(EXPERTS)},
        "sendOffset datatype must be int32, but got int64.",
    ),
    (
        "index",
        {"send_token_idx": np.zeros((T, K + 1), I32)},
        "sendTokenIdx must have shape (4, 2), but got (4, 3).",
    ),
    (
        "two slots in a row",
        {"send_token_idx": changed(np.zeros((T, K), I32), (0, 0), 1)},
        "sendOffset and sendTokenIdx do not give every slot a staging row of its own.",
    ),
    (
        "a slot behind the last row",
        {"send_offset": changed(np.arange(EXPERTS, dtype=I32), 7, 8)},
        "sendOffset and sendTokenIdx do not give every slot a staging row of its own.",
    ),
    ("recv_offset", {"recv_offset": np.zeros(9, I32)}, "recvOffset must have shape (8,), but got (9,)."),
    (
        "recv_offset -1",
        {"recv_offset": changed(np.zeros(EXPERTS, I32), 2, -1)},
        "recvOffset holds a negative offset.",
    ),
    ("recv_count", {"recv_count": np.zeros(9, I32)}, "recvCount must have shape (8,), but got (9,)."),
    (
        "recv_count falls",
        {"recv_count": np.array([0, 2, 1, 2, 3, 3, 4, A], I32)},
        "recvCount must hold inclusive sums, which never fall.",
    ),
    ("recv_x rows", {"recv_x": np.empty((A - 1, H), BF16)}, "recvX dim0 must be at least 5."),
    ("scales rows", {"x_scales": np.empty(A - 1, np.float32)}, "dynamicScales dim0 must be at least 5."),
    ("assist rows", {"assist_info": np.empty(3 * A - 1, I32)}, "assistInfo dim0 must be at least 15."),
    ("NaN", {"x": changed(ONES, (3, 9), np.nan)}, "x holds NaN or infinity."),
    ("infinity", {"x": changed(ONES, (0, 0), -np.inf)}, "x holds NaN or infinity."),
]  # fmt: skip

_BS = "globalBS is invalid, only support 0 or maxBs(maxBs is the largest bs on all ranks) * epWorldSize, "
COMBINE: list[Case] = [
    *GROUP,
    ("int32", {"recv_x": np.ones((A, H), I32)}, "recvX datatype int32 is not supported."),
    ("1-D", {"recv_x": np.ones(A, BF16)}, "recvX must be 2-dimension, but got 1."),
    (
        "f32",
        {"recv_x": np.ones((A, H), np.float32)},
        "recvX datatype must be bfloat16 or float16, but got float32.",
    ),
    (
        "info 2-D",
        {"token_src_info": triples().reshape(A, 3)},
        "tokenSrcInfo must be 1-dimension, but got 2.",
    ),
    (
        "info int64",
        {"token_src_info": triples().astype(np.int64)},
        "tokenSrcInfo datatype must be int32, but got int64.",
    ),
    (
        "counts 2-D",
        {"ep_recv_counts": np.zeros((1, 8), I32)},
        "epRecvCounts must be 1-dimension, but got 2.",
    ),
    (
        "counts int64",
        {"ep_recv_counts": np.zeros(8, np.int64)},
        "epRecvCounts datatype must be int32, but got int64.",
    ),
    (
        "weights 1-D",
        {"recv_topk_weights": np.ones(T, np.float32)},
        "recvTopkWeights must be 2-dimension, but got 1.",
    ),
    (
        "weights f64",
        {"recv_topk_weights": np.ones((T, K))},
        "recvTopkWeights datatype must be float32, but got float64.",
    ),
    (
        "dummy 2-D",
        {"tp_recv_counts": np.zeros((1, 1), I32)},
        "tpRecvCounts must be 1-dimension, but got 2.",
    ),
    (
        "dummy int64",
        {"tp_recv_counts": np.zeros(1, np.int64)},
        "tpRecvCounts datatype must be int32, but got int64.",
    ),
    ("NZ", {"recv_x": checks.nz(np.ones((A, H), BF16))}, "recvX format must not be FRACTAL_NZ."),
    *EXPERT_NUMBER,
    (
        "tp 2 with El 2",
        {"tp_world_size": 2},
        "tpWorldSize must be at most 1 with 2 local experts, but got 2.",
    ),
    (
        "no token",
        {"recv_topk_weights": np.ones((0, K), np.float32)},
        "bs is invalid, only support [1, 8000], but got bs=0.",
    ),
    (
        "8001 tokens",
        {"recv_topk_weights": np.ones((8001, K), np.float32)},
        "bs is invalid, only support [1, 8000], but got bs=8001.",
    ),
    (
        "h 1023",
        {"recv_x": np.ones((A, 1023), BF16)},
        "h is invalid, only support [1024, 7168], but got h=1023.",
    ),
    (
        "h 7169",
        {"recv_x": np.ones((A, 7169), BF16)},
        "h is invalid, only support [1024, 7168], but got h=7169.",
    ),
    (
        "no k",
        {"recv_topk_weights": np.ones((T, 0), np.float32)},
        "k is invalid, only support (0, 8], but got k=0.",
    ),
    (
        "k > E",
        {"recv_topk_weights": np.ones((T, 9), np.float32)},
        "k is invalid, only support (0, 8], but got k=9.",
    ),
    ("global_bs < R bs", {"global_bs": 12}, _BS + "but got globalBS=12, bs=4, epWorldSize=4."),
    ("global_bs % R", {"global_bs": 18}, _BS + "but got globalBS=18, bs=4, epWorldSize=4."),
    ("global_bs < 0", {"global_bs": -4}, _BS + "but got globalBS=-4, bs=4, epWorldSize=4."),
    (
        "counts of 7",
        {"ep_recv_counts": np.zeros(7, I32)},
        "epSendCounts dim0 must be at least 8, but got 7.",
    ),
    (
        "info of 14",
        {"token_src_info": triples()[:-1]},
        "tokenSrcInfo dim0 must be at least 15, but got 14.",
    ),
    ("output fp16", {"x": np.empty((T, H), np.float16)}, "x datatype must be bfloat16, but got float16."),
    ("output shape", {"x": np.empty((A, H), BF16)}, "x must have shape (4, 1024), but got (5, 1024)."),
    (
        "window",
        {"hccl_buffsize": 416},
        "HCCL_BUFFSIZE is too SMALL, maxBs=4, k=2, h=1024, needs 417MB, but got HCCL_BUFFSIZE=416MB.",
    ),
    ("topk shape", {"topk_idx": TOPK.T}, "topkIdx must have shape (4, 2), but got (2, 4)."),
    ("-1", {"topk_idx": changed(TOPK, (2, 1), -1)}, "topkIdx holds -1, only support [0, 8)."),
    (
        "counts fall",
        {"ep_recv_counts": np.array([3, 2, 2, 2, 3, 3, 4, A], I32)},
        "epSendCounts must hold inclusive sums, which never fall.",
    ),
    (
        "counts < 0",
        {"ep_recv_counts": np.array([-1, 0, 0, 0, 0, 0, 0, 0], I32)},
        "epSendCounts must hold inclusive sums, which never fall.",
    ),
    (
        "more than A",
        {"ep_recv_counts": np.full(8, A + 1, I32)},
        "epSendCounts ends at 6, recvX has 5 rows.",
    ),
    *[
        (
            f"triple {triple}",
            {"token_src_info": triples((0, 0, 0), triple)},
            f"tokenSrcInfo of row 1 is {triple}: no (rank, token, k).",
        )
        for triple in ((4, 0, 0), (-1, 0, 0), (0, 8000, 0), (0, -1, 0), (0, 0, 2), (0, 0, -1))
    ],
    (
        "triple twice",
        {"token_src_info": triples((0, 0, 0), (0, 1, 0))},
        "tokenSrcInfo names a (rank, token, k) twice.",
    ),
    (
        "window of a source with more tokens",
        {"token_src_info": triples((0, 7999, 0)), "hccl_buffsize": 450},
        "HCCL_BUFFSIZE is too SMALL, a source has at least 8000 tokens, k=2, h=1024, needs 479MB, "
        "but got HCCL_BUFFSIZE=450MB.",
    ),
    ("NaN", {"recv_x": changed(np.ones((A, H), BF16), (4, 1), np.nan)}, "recvX holds NaN or infinity."),
    (
        "infinity",
        {"recv_topk_weights": changed(np.ones((T, K), np.float32), (0, 1), np.inf)},
        "recvTopkWeights holds NaN or infinity.",
    ),
]

RED = {
    "dispatch_layout": LAYOUT,
    "notify_dispatch": NOTIFY,
    "moe_dispatch_normal": DISPATCH,
    "moe_combine_normal": COMBINE,
}
