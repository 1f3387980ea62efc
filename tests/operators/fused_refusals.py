"""Legal calls of the fused operators' host layer, and what makes them illegal with the text of the refusal.

The refusals of a variant stand in the order of its checks. Used by `test_checks_fused`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from pymodel.operators import checks_fused as host
from pymodel.operators.checks import nz

BF16 = np.dtype(ml_dtypes.bfloat16)
RANKS, EXPERTS, LOCAL, T, K, H, N1 = 4, 8, 2, 3, 2, 512, 1024
MB, KB = 1 << 20, 1 << 10
I8, I32, F32 = np.int8, np.int32, np.float32
Call = dict[str, Any]
IDS = np.array([[0, 7], [3, -1], [-1, -1]], I32)


def weight(*shape: int) -> Any:
    return nz(np.zeros(shape, I8))


def _common() -> Call:
    return {
        "x": np.ones((T, H), BF16),
        "expert_ids": IDS,
        "expert_scales": np.ones((T, K), F32),
        "gmm1_weight_scale": [np.ones((LOCAL, N1), F32)],
        "gmm2_weight_scale": [np.ones((LOCAL, H), BF16)],
        "group_ep": "g",
        "ep_rank_size": RANKS,
        "ep_rank_id": 0,
        "moe_expert_num": EXPERTS,
        "quant_mode": 0,
        "global_bs": 0,
        "hccl_buffsize": 200,
    }


def w8a8() -> Call:
    """A legal call, one tensor for all local experts."""
    return {**_common(), "gmm1_weight": [weight(LOCAL, H, N1)], "gmm2_weight": [weight(LOCAL, N1 // 2, H)]}


def w4a8() -> Call:
    """A legal call of W4A8."""
    return {
        **_common(),
        "gmm1_weight": [np.zeros((LOCAL, H, N1 // 8), I32)],
        "gmm2_weight": [np.zeros((LOCAL, N1 // 2, H // 8), I32)],
        "gmm1_bias": [np.zeros((LOCAL, N1), F32)],
        "gmm2_bias": [np.zeros((LOCAL, H), F32)],
    }


SHARE: Call = {
    "share_gmm1_weight": weight(H, N1),
    "share_gmm1_weight_scale": np.ones(N1, F32),
    "share_gmm2_weight": weight(N1 // 2, H),
    "share_gmm2_weight_scale": np.ones(H, BF16),
}
SHARE_W4A8: Call = {
    **SHARE,
    "share_gmm1_weight": np.zeros((H, N1 // 8), I32),
    "share_gmm2_weight": np.zeros((N1 // 2, H // 8), I32),
    "share_gmm1_bias": np.zeros(N1, F32),
    "share_gmm2_bias": np.zeros(H, F32),
}
LISTS: Call = {
    "gmm1_weight": [weight(H, N1)] * LOCAL,
    "gmm1_weight_scale": [np.ones(N1, F32)] * LOCAL,
    "gmm2_weight": [weight(N1 // 2, H)] * LOCAL,
    "gmm2_weight_scale": [np.ones(H, F32)] * LOCAL,
}
SMOOTH: Call = {"expert_smooth_scales": np.ones((EXPERTS, H), F32)}


def ids(*rows: list[int]) -> Any:
    return np.array(rows, I32)


def nan_last(array: Any) -> Any:
    array = array.copy()
    array.ravel()[-1] = np.nan
    return array


def _wide(hidden: int) -> Call:
    return {"x": np.ones((T, hidden), BF16)}


Case = tuple[str, Call, str]
_H = "tokenLength(h) is invalid. Only support [512, 7168]."
_RANGE = "gmm1 hidden size is invalid. Only support [1024, 6144], but got "
_BY_1024 = "gmm1 hidden size must be divisible by 1024, but got "

ATTRIBUTES: list[Case] = [
    ("x 1-D", {"x": np.ones(T, BF16)}, "x must be 2-dimension, but got 1."),
    ("x f32", {"x": np.ones((T, H), F32)}, "x datatype must be bfloat16 or float16, but got float32."),
    ("ids 1-D", {"expert_ids": IDS[0]}, "expertIds must be 2-dimension, but got 1."),
    ("ids int64", {"expert_ids": IDS.astype(int)}, "expertIds datatype must be int32, but got int64."),
    ("scales 1-D", {"expert_scales": np.ones(T, F32)}, "expertScales must be 2-dimension, but got 1."),
    (
        "scales f64",
        {"expert_scales": np.ones((T, K))},
        "expertScales datatype must be float32, but got float64.",
    ),
    (
        "ids rows",
        {"expert_ids": ids([0, 1]), "expert_scales": np.ones((1, 2), F32)},
        "expertIds Dim0 must be batchSize(bs) 3.",
    ),
    ("scales", {"expert_scales": np.ones((T, 3), F32)}, "expertScales must have the shape of expertIds."),
    ("no rank", {"ep_rank_size": 0}, "epRankSize must > 0."),
    ("-4 ranks", {"ep_rank_size": -4}, "epRankSize must > 0."),
    ("rank R", {"ep_rank_id": RANKS}, "epRankId must < epRankSize, but got 4."),
    ("rank -1", {"ep_rank_id": -1}, "epRankId must < epRankSize, but got -1."),
    ("513 experts", {"moe_expert_num": 516}, "moeExpertNum must <= 512, but got 516."),
    ("-8 experts", {"moe_expert_num": -8}, "moeExpertNum must <= 512, but got -8."),
    ("no expert", {"moe_expert_num": 0}, "moeExpertNum must > 0."),
    ("10 on 4", {"moe_expert_num": 10}, "moeExpertNum must be divisible by epRankSize."),
    (
        "k 13",
        {"expert_ids": np.zeros((T, 13), I32), "expert_scales": np.ones((T, 13), F32)},
        "topK(k) must <= 12.",
    ),
    (
        "k > E",
        {"expert_ids": np.zeros((T, 9), I32), "expert_scales": np.ones((T, 9), F32)},
        "topK(k) must <= moeExpertNum.",
    ),
    (
        "no k",
        {"expert_ids": np.zeros((T, 0), I32), "expert_scales": np.ones((T, 0), F32)},
        "topK(k) must > 0.",
    ),
    ("global_bs % R", {"global_bs": 14}, "globalBs must be 0 or a multiple of epRankSize, but got 14."),
    ("global_bs < 0", {"global_bs": -12}, "globalBs must be 0 or a multiple of epRankSize, but got -12."),
    (
        "global_bs of less than bs",
        {"global_bs": 8},
        "globalBs must be at least epRankSize * batchSize(bs) 12, but got 8.",
    ),
    (
        "bs 257",
        {
            "x": np.ones((257, H), BF16),
            "expert_ids": np.full((257, K), -1, I32),
            "expert_scales": np.ones((257, K), F32),
        },
        "batchSize(bs) must <= 256.",
    ),
    ("h 511", _wide(511), _H),
    ("h 7169", _wide(7169), _H),
]
"""What both variants have."""

SCALES: list[Case] = [
    (
        "scale 1 style",
        {"gmm1_weight_scale": LISTS["gmm1_weight_scale"]},
        "gmm1WeightScale listFlag does not match gmm1Weight listFlag.",
    ),
    (
        "scale 1 experts",
        {"gmm1_weight_scale": [np.ones((3, N1), F32)]},
        "gmm1WeightScale does not match local expert number per rank.",
    ),
    (
        "scale 1 columns",
        {"gmm1_weight_scale": [np.ones((LOCAL, N1 + 1), F32)]},
        "gmm1WeightScale must have dimensions [1024], but got [1025].",
    ),
    (
        "scale 1 fp16",
        {"gmm1_weight_scale": [np.ones((LOCAL, N1), np.float16)]},
        "gmm1WeightScale datatype must be float32 or bfloat16, but got float16.",
    ),
    (
        "scale 1 NaN",
        {"gmm1_weight_scale": [nan_last(np.ones((LOCAL, N1), F32))]},
        "gmm1WeightScale holds NaN or infinity.",
    ),
]

TAIL: list[Case] = [
    (
        "smooth 1-D",
        {"expert_smooth_scales": np.ones(H, F32)},
        "expertSmoothScales must be 2-dimension, but got 1.",
    ),
    (
        "smooth bf16",
        {"expert_smooth_scales": np.ones((EXPERTS, H), BF16)},
        "expertSmoothScales datatype must be float32, but got bfloat16.",
    ),
    (
        "smooth of El",
        {"expert_smooth_scales": np.ones((LOCAL, H), F32)},
        "expertSmoothScales must have shape (8, 512), not (2, 512).",
    ),
    (
        "smooth NaN",
        {"expert_smooth_scales": nan_last(np.ones((EXPERTS, H), F32))},
        "expertSmoothScales holds NaN or infinity.",
    ),
    (
        "share smooth 2-D",
        {"share_smooth_scales": np.ones((1, H), F32)},
        "shareSmoothScales must be 1-dimension, but got 2.",
    ),
    (
        "share smooth bf16",
        {"share_smooth_scales": np.ones(H, BF16)},
        "shareSmoothScales datatype must be float32, but got bfloat16.",
    ),
    (
        "share smooth h",
        {"share_smooth_scales": np.ones(H + 1, F32)},
        "shareSmoothScales must have shape (512,).",
    ),
    ("share smooth NaN", {"share_smooth_scales": nan_last(np.ones(H, F32))},
     "shareSmoothScales holds NaN or infinity."),
    ("mask 2-D", {"x_active_mask": np.ones((T, 1), bool)}, "xActiveMask must be 1-dimension, but got 2."),
    ("mask int8", {"x_active_mask": np.ones(T, I8)}, "xActiveMask datatype must be bool, but got int8."),
    ("mask rows", {"x_active_mask": np.ones(2, bool)}, "xActiveMask Dim0 must be batchSize(3), but got 2."),
    (
        "mask order",
        {"x_active_mask": np.array([True, False, True])},
        "xActiveMask must hold its trues first.",
    ),
    (
        "window",
        {"hccl_buffsize": 0},
        "HCCL_BUFFSIZE is too SMALL, localExpertNum=2, globalBs=12, h=512, needs 1MB, "
        "but got HCCL_BUFFSIZE=0MB.",
    ),
    ("id -2", {"expert_ids": ids([0, 7], [3, -2], [0, 1])}, "expertIds holds -2, only support [-1, 8)."),
    ("id E", {"expert_ids": ids([0, 8], [3, 1], [0, 1])}, "expertIds holds 8, only support [-1, 8)."),
    ("twice", {"expert_ids": ids([0, 7], [3, 3], [0, 1])}, "expertIds holds an expert twice in token 1."),
    ("x NaN", {"x": nan_last(np.ones((T, H), BF16))}, "x holds NaN or infinity."),
    (
        "scales infinite",
        {"expert_scales": np.full((T, K), np.inf, F32)},
        "expertScales holds NaN or infinity.",
    ),
]  # fmt: skip

_LOCAL = " does not match local expert number per rank."
_FLAG = " listFlag does not match gmm1Weight listFlag."
RED_W8A8: list[Case] = [
    *ATTRIBUTES,
    ("w1 none", {"gmm1_weight": []}, "gmm1Weight" + _LOCAL),
    ("w1 of 3", {"gmm1_weight": [weight(3, H, N1)]}, "gmm1Weight" + _LOCAL),
    ("w1 2-D", {"gmm1_weight": [weight(H, N1)]}, "gmm1Weight" + _LOCAL),
    ("list of 3", {"gmm1_weight": [weight(H, N1)] * 3}, "gmm1Weight" + _LOCAL),
    (
        "list of 3-D",
        {"gmm1_weight": [weight(1, H, N1)] * 2},
        "gmm1Weight must be a list of 2-dimension tensors.",
    ),
    (
        "w1 rows",
        {"gmm1_weight": [weight(LOCAL, H + 1, N1)]},
        "gmm1Weight must have dimensions [512, N], but got [513, 1024].",
    ),
    (
        "w1 of two widths",
        {"gmm1_weight": [weight(H, N1), weight(H, 2 * N1)]},
        "gmm1Weight must have dimensions [512, 1024], but got [512, 2048].",
    ),
    (
        "w1 int32",
        {"gmm1_weight": [np.zeros((LOCAL, H, N1), I32)]},
        "gmm1Weight datatype must be int8, but got int32.",
    ),
    (
        "w1 ND",
        {"gmm1_weight": [np.zeros((LOCAL, H, N1), I8)]},
        "gmm1Weight format must be FRACTAL_NZ.",
    ),
    ("N1 1023", {"gmm1_weight": [weight(LOCAL, H, 1023)]}, _RANGE + "1023."),
    ("N1 6145", {"gmm1_weight": [weight(LOCAL, H, 6145)]}, _RANGE + "6145."),
    ("N1 1280", {"gmm1_weight": [weight(LOCAL, H, 1280)]}, _BY_1024 + "1280."),
    *SCALES,
    (
        "bias",
        {"gmm1_bias": [np.zeros((LOCAL, N1), F32)]},
        "gmm1Bias is not an input.",
    ),
    ("w2 style", {"gmm2_weight": LISTS["gmm2_weight"]}, "gmm2Weight" + _FLAG),
    ("w2 of 1", {"gmm2_weight": [weight(1, N1 // 2, H)]}, "gmm2Weight" + _LOCAL),
    (
        "w2 rows",
        {"gmm2_weight": [weight(LOCAL, N1, H)]},
        "gmm2Weight must have dimensions [512, N], but got [1024, 512].",
    ),
    (
        "w2 int16",
        {"gmm2_weight": [np.zeros((LOCAL, N1 // 2, H), np.int16)]},
        "gmm2Weight datatype must be int8, but got int16.",
    ),
    (
        "w2 ND",
        {"gmm2_weight": [np.zeros((LOCAL, N1 // 2, H), I8)]},
        "gmm2Weight format must be FRACTAL_NZ.",
    ),
    (
        "w2 columns",
        {"gmm2_weight": [weight(LOCAL, N1 // 2, H + 8)]},
        "gmm2Weight must have 512 columns, but got 520.",
    ),
    ("scale 2 style", {"gmm2_weight_scale": LISTS["gmm2_weight_scale"]}, "gmm2WeightScale" + _FLAG),
    ("scale 2 of 1", {"gmm2_weight_scale": [np.ones((1, H), F32)]}, "gmm2WeightScale" + _LOCAL),
    (
        "scale 2 int8",
        {"gmm2_weight_scale": [np.ones((LOCAL, H), I8)]},
        "gmm2WeightScale datatype must be float32 or bfloat16, but got int8.",
    ),
    *[
        (
            f"no {name}",
            {**SHARE, name: None},
            "share weights and scales: all four or none.",
        )
        for name in SHARE
    ],
    ("share bias alone", {"share_gmm1_bias": np.zeros(N1, F32)},
     "share weights and scales: all four or none."),
    (
        "share w1 3-D",
        {**SHARE, "share_gmm1_weight": weight(2, H, N1)},
        "shareGmm1Weight must have 2 dimensions, with or without a leading 1, but got shape (2, 512, 1024).",
    ),
    (
        "share w1 rows",
        {**SHARE, "share_gmm1_weight": weight(H + 1, N1)},
        "shareGmm1Weight must have dimensions [512, N], but got [513, 1024].",
    ),
    (
        "share w1 ND",
        {**SHARE, "share_gmm1_weight": np.zeros((H, N1), I8)},
        "shareGmm1Weight format must be FRACTAL_NZ.",
    ),
    ("Ns 512", {**SHARE, "share_gmm1_weight": weight(H, 512)}, "share " + _RANGE + "512."),
    ("Ns 1280", {**SHARE, "share_gmm1_weight": weight(H, 1280)}, "share " + _BY_1024 + "1280."),
    (
        "share scale 1 type",
        {**SHARE, "share_gmm1_weight_scale": np.ones(N1, BF16)},
        "shareGmm1WeightScale datatype must be float32, but got bfloat16.",
    ),
    (
        "share scale 1 size",
        {**SHARE, "share_gmm1_weight_scale": np.ones(N1 // 2, F32)},
        "shareGmm1WeightScale must have dimensions [1024], but got [512].",
    ),
    (
        "share bias",
        {**SHARE, "share_gmm1_bias": np.zeros(N1, F32)},
        "shareGmm1Bias is not an input.",
    ),
    (
        "share w2 rows",
        {**SHARE, "share_gmm2_weight": weight(N1, H)},
        "shareGmm2Weight must have dimensions [512, 512], but got [1024, 512].",
    ),
    (
        "share w2 columns",
        {**SHARE, "share_gmm2_weight": weight(N1 // 2, H - 8)},
        "shareGmm2Weight must have dimensions [512, 512], but got [512, 504].",
    ),
    (
        "share scale 2 type",
        {**SHARE, "share_gmm2_weight_scale": np.ones(H, F32)},
        "shareGmm2WeightScale datatype must be bfloat16, but got float32.",
    ),
    (
        "share scale 2 NaN",
        {**SHARE, "share_gmm2_weight_scale": nan_last(np.ones(H, BF16))},
        "shareGmm2WeightScale holds NaN or infinity.",
    ),
    (
        "share smooth missing",
        {**SHARE, **SMOOTH},
        "shareSmoothScales is required with expertSmoothScales and a shared expert.",
    ),
    *TAIL,
]  # fmt: skip

RED_W4A8: list[Case] = [
    *ATTRIBUTES,
    (
        "El 25",
        {"moe_expert_num": 100},
        "local expert number per rank must <= 24.",
    ),
    ("w1 of 3", {"gmm1_weight": [np.zeros((3, H, N1 // 8), I32)]}, "gmm1Weight" + _LOCAL),
    (
        "w1 int8",
        {"gmm1_weight": [np.zeros((LOCAL, H, N1 // 8), I8)]},
        "gmm1Weight datatype must be int32, but got int8.",
    ),
    (
        "w1 NZ",
        {"gmm1_weight": [nz(np.zeros((LOCAL, H, N1 // 8), I32))]},
        "gmm1Weight format must be ND.",
    ),
    ("N1 of 127 words", {"gmm1_weight": [np.zeros((LOCAL, H, 127), I32)]}, _RANGE + "1016."),
    ("N1 of 129 words", {"gmm1_weight": [np.zeros((LOCAL, H, 129), I32)]}, _BY_1024 + "1032."),
    *SCALES,
    ("no bias 1", {"gmm1_bias": None}, "gmm1Bias is required."),
    ("bias 1 of 1", {"gmm1_bias": [np.zeros((1, N1), F32)]}, "gmm1Bias" + _LOCAL),
    (
        "bias 1 columns",
        {"gmm1_bias": [np.zeros((LOCAL, H), F32)]},
        "gmm1Bias must have dimensions [1024], but got [512].",
    ),
    (
        "bias 1 bf16",
        {"gmm1_bias": [np.zeros((LOCAL, N1), BF16)]},
        "gmm1Bias datatype must be float32, but got bfloat16.",
    ),
    (
        "bias 1 NaN",
        {"gmm1_bias": [nan_last(np.zeros((LOCAL, N1), F32))]},
        "gmm1Bias holds NaN or infinity.",
    ),
    (
        "w2 columns",
        {"gmm2_weight": [np.zeros((LOCAL, N1 // 2, H // 8 + 1), I32)]},
        "gmm2Weight must have 512 columns, but got 520.",
    ),
    ("no bias 2", {"gmm2_bias": None}, "gmm2Bias is required."),
    (
        "bias 2 of a wrong shape, which passes in the original",
        {"gmm2_bias": [np.zeros((LOCAL, N1), F32)]},
        "gmm2Bias must have dimensions [512], but got [1024].",
    ),
    *[
        (
            f"no {name}",
            {**SHARE_W4A8, name: None},
            "share weights and scales: all six or none.",
        )
        for name in SHARE_W4A8
    ],
    (
        "share w1 NZ",
        {**SHARE_W4A8, "share_gmm1_weight": nz(np.zeros((H, N1 // 8), I32))},
        "shareGmm1Weight format must be ND.",
    ),
    (
        "share bias 2",
        {**SHARE_W4A8, "share_gmm2_bias": np.zeros(N1, F32)},
        "shareGmm2Bias must have dimensions [512], but got [1024].",
    ),
    *TAIL,
]

VARIANTS: dict[str, tuple[Callable[..., Any], Callable[[], Call], list[Case]]] = {
    "fused_deep_moe": (host.tile_fused, w8a8, RED_W8A8),
    "fused_deep_moe_w4a8": (host.tile_fused_w4a8, w4a8, RED_W4A8),
}

ONE_EACH: Call = {
    "ep_rank_size": 8,
    "gmm1_weight": [weight(H, N1)],
    "gmm1_weight_scale": [np.ones(N1, F32)],
    "gmm2_weight": [weight(N1 // 2, H)],
    "gmm2_weight_scale": [np.ones(H, F32)],
}
"""Legal changes for 8 ranks with one expert each."""
