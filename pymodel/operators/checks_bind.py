"""Assertions of the torch binding, before any tiling (operators page 1.3)."""

from __future__ import annotations

import numpy as np

from pymodel.operators import checks
from pymodel.operators.checks import MAX_RANKS, Array


def bind_layout(topk_idx: Array, num_experts: int) -> Array:
    """Assertions of get_dispatch_layout; gives topk_idx as int64. Raises TorchBindError."""
    checks.bind_matrix("topk_idx", topk_idx)
    checks.bind(num_experts > 0, "num_experts > 0")
    return checks.bind_cast("topk_idx", topk_idx, np.int64)


def bind_dispatch(
    x: Array,
    topk_idx: Array,
    topk_weights: Array,
    num_tokens_per_expert: Array,
    send_token_idx_small: Array,
    num_ranks: int,
) -> Array:
    """Assertions of moe_dispatch_prefill; gives topk_idx as int32. Raises TorchBindError."""
    counts = num_tokens_per_expert
    checks.bind(counts.dtype == np.int32, "num_tokens_per_expert.scalar_type() == int32")
    checks.bind(counts.ndim == 1, "num_tokens_per_expert.dim() == 1")
    checks.bind(counts.flags.c_contiguous, "num_tokens_per_expert.is_contiguous()")
    # no division by 0: the range check below speaks then
    checks.bind(
        num_ranks == 0 or counts.size % num_ranks == 0, "num_tokens_per_expert.size(0) % num_ranks == 0"
    )
    checks.bind(2 <= num_ranks <= MAX_RANKS, f"num_ranks >= 2 && num_ranks <= {MAX_RANKS}")
    for name, array in (("x", x), ("topk_idx", topk_idx), ("topk_weights", topk_weights)):
        checks.bind_matrix(name, array)
    index = send_token_idx_small
    checks.bind(index.ndim == 2, "send_token_idx_small.dim() == 2")
    checks.bind(x.shape[0] == topk_idx.shape[0], "x.size(0) == topk_idx.size(0)")
    checks.bind(x.shape[0] == index.shape[0], "x.size(0) == send_token_idx_small.size(0)")
    checks.bind(
        topk_weights.shape[1] == index.shape[1], "topk_weights.size(1) == send_token_idx_small.size(1)"
    )
    return checks.bind_cast("topk_idx", topk_idx, np.int32)


def bind_combine(x: Array) -> None:
    """Assertions of moe_combine_prefill. Raises TorchBindError."""
    checks.bind_matrix("x", x)


def bind_fused(x: Array, expert_ids: Array) -> None:
    """Assertions of fused_deep_moe, both variants. Raises TorchBindError.

    The original divides by ep_rank_size here, by 0 too; that is left to tiling, which refuses 0.
    """
    checks.bind(x.ndim == 2, "x.dim() == 2")
    checks.bind(expert_ids.ndim == 2, "expert_ids.dim() == 2")
