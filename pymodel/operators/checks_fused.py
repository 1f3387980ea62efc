"""Host layer of fused_deep_moe and fused_deep_moe_w4a8: checks, tiling, window (operators page 1.2, 6, 12).

Order: types and dimensions of x, expert_ids and expert_scales; the attributes as 6.1 orders them; the rows of
6.1's table; the window; then the refusals of section 12 (an expert twice in a token) and of the programs page
(NaN, infinity). What the original has wrong is right here (12): no attribute is cast to uint32, global_bs 0
stands for R x bs before the window is checked, and the window includes the skew of 512 bytes a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pymodel.operators import checks
from pymodel.operators.checks import MAX_EXPERTS, SYSTEM_WORKSPACE, X_TYPES, Array, Soc
from pymodel.operators.checks_bind import bind_fused
from pymodel.operators.checks_weights import (
    W4A8,
    W8A8,
    Pair,
    Variant,
    per_expert,
    routed_pair,
    shared_pair,
)
from pymodel.operators.common import AIC_CORES, AIV_CORES, KB, OperatorError, Tiling, align

__all__ = ["W4A8", "W8A8", "bind_fused", "max_rows", "per_expert", "tile_fused", "tile_fused_w4a8"]

MAX_BATCH: Final = 256
MAX_TOP_K: Final = 12
SKEW: Final = 512
"""Bytes by which the regions of a rank are shifted, per rank (operators page 6.4)."""


@dataclass(frozen=True)
class _Sizes:
    tokens: int
    hidden: int
    top_k: int
    ranks: int
    local: int
    global_bs: int

    @property
    def rows(self) -> int:
        return max_rows(self.global_bs, self.top_k, self.local)


def max_rows(global_bs: int, top_k: int, local: int) -> int:
    """The most rows that a rank with ``local`` experts can receive (maxTok of operators page 6.3)."""
    return global_bs * min(top_k, local)


def fused_window(local: int, global_bs: int, hidden: int, ranks: int) -> int:
    """Bytes that the operator demands of the window (operators page 6.1), with the skew (12)."""
    return local * global_bs * hidden * 2 * 2 + ranks * SKEW


def fused_workspace(sizes: _Sizes, inner: int, share_inner: int | None) -> int:
    """Bytes of workspace, system's part included (operators page 6.3). ``inner``: N1; ``share_inner``: Ns."""
    h, rows, local = sizes.hidden, sizes.rows, sizes.local
    shared, ns = (0, 0) if share_inner is None else (sizes.tokens, share_inner)
    terms = (
        max((shared + rows) * h, shared * ns // 2 + rows * inner // 2),
        4 * (shared + rows),
        max(4 * (rows * inner + shared * ns), 4 * (rows + shared) * h),
        0 if local > 1 else 2 * rows * h,
        8 * local,
        4 * sizes.tokens * sizes.top_k,
        4 * sizes.ranks * local,
        256 * KB,
    )
    return SYSTEM_WORKSPACE + sum(align(term, 512) for term in terms)


def tile_fused(**call: Any) -> Tiling:
    """fused_deep_moe (W8A8), arguments by the schema's names (operators page 1.3). Raises OperatorError."""
    return _tile(W8A8, **call)


def tile_fused_w4a8(**call: Any) -> Tiling:
    """fused_deep_moe_w4a8: as `tile_fused`, with gmm1_bias, gmm2_bias (lists of float32) and, for the shared
    expert, share_gmm1_bias and share_gmm2_bias (operators page 6.6). Raises OperatorError.
    """
    return _tile(W4A8, **call)


def _tile(
    variant: Variant,
    *,
    x: Array,
    expert_ids: Array,
    gmm1_weight: Sequence[Array],
    gmm1_weight_scale: Sequence[Array],
    gmm2_weight: Sequence[Array],
    gmm2_weight_scale: Sequence[Array],
    expert_scales: Array,
    group_ep: str,
    ep_rank_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    quant_mode: int = 0,
    global_bs: int = 0,
    share_gmm1_weight: Array | None = None,
    share_gmm1_weight_scale: Array | None = None,
    share_gmm2_weight: Array | None = None,
    share_gmm2_weight_scale: Array | None = None,
    expert_smooth_scales: Array | None = None,
    share_smooth_scales: Array | None = None,
    x_active_mask: Array | None = None,
    gmm1_bias: Sequence[Array] | None = None,
    gmm2_bias: Sequence[Array] | None = None,
    share_gmm1_bias: Array | None = None,
    share_gmm2_bias: Array | None = None,
    hccl_buffsize: int | None = None,
    soc: Soc = "ascend910_93",
) -> Tiling:
    # group_ep and quant_mode are not checked by the original either (operators page 6.1); soc is for the API
    op = variant.operator
    checks.tensor(op, "x", x, 2, X_TYPES)
    checks.tensor(op, "expertIds", expert_ids, 2, [np.int32])
    checks.tensor(op, "expertScales", expert_scales, 2, [np.float32])
    tokens, hidden = x.shape
    top_k = expert_ids.shape[1]
    _require(op, expert_ids.shape[0] == tokens, f"expertIds Dim0 must be batchSize(bs) {tokens}.")
    _require(op, expert_scales.shape == expert_ids.shape, "expertScales must have the shape of expertIds.")
    global_bs = _attributes(op, ep_rank_size, ep_rank_id, moe_expert_num, global_bs, tokens, top_k)
    local = moe_expert_num // ep_rank_size
    sizes = _Sizes(tokens, hidden, top_k, ep_rank_size, local, global_bs)
    _require(op, tokens <= MAX_BATCH, f"batchSize(bs) must <= {MAX_BATCH}.")
    _require(op, 512 <= hidden <= 7168, "tokenLength(h) is invalid. Only support [512, 7168].")
    if variant.packed:
        # each expert takes two vector cores; hi and lo rows double M (operators page 6.6)
        _require(op, local <= AIV_CORES // 2, f"local expert number per rank must <= {AIV_CORES // 2}.")

    as_list = len(gmm1_weight) > 1
    inner = routed_pair(
        variant, x.dtype, local, hidden, as_list,
        Pair(gmm1_weight, gmm1_weight_scale, gmm1_bias), Pair(gmm2_weight, gmm2_weight_scale, gmm2_bias),
    )  # fmt: skip
    share_inner = shared_pair(
        variant, hidden, (gmm1_weight_scale[0].dtype, gmm2_weight_scale[0].dtype),
        Pair(share_gmm1_weight, share_gmm1_weight_scale, share_gmm1_bias),
        Pair(share_gmm2_weight, share_gmm2_weight_scale, share_gmm2_bias),
    )  # fmt: skip
    _smooth(op, expert_smooth_scales, share_smooth_scales, share_inner is not None, moe_expert_num, hidden)
    active = _active(op, x_active_mask, tokens)

    need = fused_window(local, global_bs, hidden, ep_rank_size)
    why = f"localExpertNum={local}, globalBs={global_bs}, h={hidden}"
    checks.fits_window(op, need, checks.hccl_buffsize(hccl_buffsize), why)
    _values(op, x, expert_ids[:active], expert_scales, moe_expert_num)
    # bits 0 to 4 are the template's bools in the page's order, bits 5 and 6 ARCH, 0 for 910_93
    flags = (
        ("deep_fuse", local != 1),
        ("tensor_list", as_list),
        ("x_active_mask", x_active_mask is not None),
        ("shared_expert", share_inner is not None),
        ("smooth_quant", expert_smooth_scales is not None),
    )
    data = {name: int(value) for name, value in flags}
    return Tiling(
        sum(value << bit for bit, value in enumerate(data.values())),
        fused_workspace(sizes, inner, share_inner),
        AIC_CORES,
        need,
        {**data, "active": active, "global_bs": global_bs, "rows": sizes.rows, "arch": 0},
    )


def _require(operator: str, good: bool, text: str) -> None:
    checks.require(good, operator, text)


def _attributes(op: str, ranks: int, rank: int, experts: int, global_bs: int, tokens: int, top_k: int) -> int:
    """The attributes in the page's order; gives global_bs with its default. Negative values are refused with
    the text that they have in the original, where it has one.
    """
    _require(op, ranks > 0, "epRankSize must > 0.")
    _require(op, 0 <= rank < ranks, f"epRankId must < epRankSize, but got {rank}.")
    _require(op, 0 <= experts <= MAX_EXPERTS, f"moeExpertNum must <= {MAX_EXPERTS}, but got {experts}.")
    # El x R <= 512 is checked here in the original; El x R is at most E
    _require(op, experts > 0, "moeExpertNum must > 0.")
    _require(op, experts % ranks == 0, "moeExpertNum must be divisible by epRankSize.")
    _require(op, top_k <= MAX_TOP_K, f"topK(k) must <= {MAX_TOP_K}.")
    _require(op, top_k <= experts, "topK(k) must <= moeExpertNum.")
    _require(op, top_k > 0, "topK(k) must > 0.")
    _require(
        op,
        global_bs == 0 or (global_bs > 0 and global_bs % ranks == 0),
        f"globalBs must be 0 or a multiple of epRankSize, but got {global_bs}.",
    )
    effective = global_bs or ranks * tokens
    _require(
        op,
        effective >= ranks * tokens,
        f"globalBs must be at least epRankSize * batchSize(bs) {ranks * tokens}, but got {global_bs}.",
    )
    return effective


def _smooth(
    op: str, expert: Array | None, share: Array | None, shared: bool, experts: int, hidden: int
) -> None:
    if expert is not None:
        checks.tensor(op, "expertSmoothScales", expert, 2, [np.float32])
        shape = (experts, hidden)
        _require(
            op, expert.shape == shape, f"expertSmoothScales must have shape {shape}, not {expert.shape}."
        )
        checks.finite(op, "expertSmoothScales", expert)
        _require(
            op,
            share is not None or not shared,
            "shareSmoothScales is required with expertSmoothScales and a shared expert.",
        )
    if share is not None:
        checks.tensor(op, "shareSmoothScales", share, 1, [np.float32])
        _require(op, share.shape == (hidden,), f"shareSmoothScales must have shape ({hidden},).")
        checks.finite(op, "shareSmoothScales", share)


def _active(op: str, mask: Array | None, tokens: int) -> int:
    """Tokens that take part."""
    if mask is None:
        return tokens
    checks.tensor(op, "xActiveMask", mask, 1, [np.bool_])
    _require(
        op,
        mask.shape[0] == tokens,
        f"xActiveMask Dim0 must be batchSize({tokens}), but got {mask.shape[0]}.",
    )
    active = int(np.count_nonzero(mask))
    _require(op, bool(mask[:active].all()), "xActiveMask must hold its trues first.")
    return active


def _values(op: str, x: Array, ids: Array, scales: Array, experts: int) -> None:
    """Experts of the active tokens; NaN and infinity anywhere, since a shared expert takes all tokens."""
    checks.expert_ids(op, "expertIds", ids, experts, lowest=-1)
    ordered = np.sort(ids, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    if twice.any():
        raise OperatorError(op, f"expertIds holds an expert twice in token {int(np.argmax(twice))}.")
    checks.finite(op, "x", x)
    checks.finite(op, "expertScales", scales)
