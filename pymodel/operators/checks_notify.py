"""Host layer of dispatch_layout and notify_dispatch: checks and tiling (operators page 1.2, 3, 4.1, 12).

Checks run in the page's order; those that the page does not have but the kernels rely on come last. E experts
on R ranks; T tokens, K top-k.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from pymodel.operators import checks
from pymodel.operators.checks import (
    MAX_EXPERTS,
    MAX_RANKS,
    MAX_TOKENS,
    MAX_TOP_K,
    SYSTEM_WORKSPACE,
    Array,
    Soc,
    require,
)
from pymodel.operators.common import AIV_CORES, MB, Tiling

LAYOUT: Final = "dispatch_layout"
NOTIFY: Final = "notify_dispatch"
NOTIFY_FLAGS: Final = 2 * MB
"""The flags of a half of the window, which stand before its data."""
NOTIFY_KEYS: Final = {"float16": 20, "bfloat16": 21, "float32": 22, "int32": 23}
"""Tiling keys by the type of sendData (operators page 1.2)."""


def tile_dispatch_layout(
    *,
    topk_idx: Array,
    num_tokens: int,
    num_ranks: int,
    num_experts: int,
    num_topk: int,
    local_ranksize: int = 8,
    outputs: Mapping[str, Array] | None = None,
) -> Tiling:
    """dispatch_layout: topk_idx int64[T, K]. ``local_ranksize`` is not used on A3. Raises OperatorError."""
    checks.within(LAYOUT, "rankSize", num_ranks, f"(0, {MAX_RANKS}]")
    checks.within(LAYOUT, "numExperts", num_experts, f"(0, {MAX_EXPERTS}]")
    require(
        num_experts % num_ranks == 0,
        LAYOUT,
        f"numExperts ({num_experts}) not divisible by numRanks ({num_ranks}).",
    )
    checks.within(LAYOUT, "numTopk", num_topk, f"(0, {MAX_TOP_K}]")
    checks.within(LAYOUT, "numTokens", num_tokens, f"(0, {MAX_TOKENS}]")
    require(topk_idx.dtype == np.int64, LAYOUT, f"topkIdx datatype must be int64, not {topk_idx.dtype.name}.")
    require(topk_idx.ndim == 2, LAYOUT, f"topkIdx must be 2-dimension, but got {topk_idx.ndim}.")
    for name, array in (outputs or {}).items():
        require(array.dtype == np.int32, LAYOUT, f"{name} datatype must be int32, not {array.dtype.name}.")
    shape = (num_tokens, num_topk)
    require(topk_idx.shape == shape, LAYOUT, f"topkIdx must have shape {shape}, but got {topk_idx.shape}.")
    checks.expert_ids(LAYOUT, "topkIdx", topk_idx, num_experts, lowest=0)
    return Tiling(23, SYSTEM_WORKSPACE + MB, AIV_CORES)


def tile_notify(
    *,
    send_data: Array,
    token_per_expert_data: Array,
    send_count: int,
    num_tokens: int,
    comm_group: str,
    rank_size: int,
    rank_id: int,
    local_rank_size: int | None = None,
    local_rank_id: int | None = None,
    hccl_buffsize: int | None = None,
    soc: Soc = "ascend910_93",
) -> Tiling:
    """notify_dispatch: send_data [3 E] (scratch), token_per_expert_data [E]. Raises OperatorError.

    ``local_rank_size`` and ``local_rank_id`` are not used on A3.
    """
    checks.within(NOTIFY, "rankSize", rank_size, f"(0, {MAX_RANKS}]")
    checks.within(NOTIFY, "rankId", rank_id, f"[0, {rank_size})")
    require(send_count > 0, NOTIFY, f"sendCount must > 0, but got {send_count}.")
    require(num_tokens > 0, NOTIFY, f"numTokens must > 0, but got {num_tokens}.")
    checks.group_name(NOTIFY, "commGroup", comm_group)
    for name, array in (("sendData", send_data), ("tokenPerExpertData", token_per_expert_data)):
        require(array.dtype.name in NOTIFY_KEYS, NOTIFY, f"{name} datatype {array.dtype.name} is invalid.")
    need = send_data.dtype.itemsize * send_count + NOTIFY_FLAGS
    checks.fits_window(NOTIFY, need, checks.hccl_buffsize(hccl_buffsize), f"sendCount={send_count}")
    experts = token_per_expert_data.size
    require(experts % rank_size == 0, NOTIFY, f"{experts} experts not divisible by rankSize ({rank_size}).")
    require(send_count == 3 * experts, NOTIFY, f"sendCount must be {3 * experts}, but got {send_count}.")
    require(
        send_data.size == 3 * experts,
        NOTIFY,
        f"sendData must have {3 * experts} elements, but got {send_data.size}.",
    )
    counts = token_per_expert_data
    require(bool((counts >= 0).all()), NOTIFY, "tokenPerExpertData holds a negative count.")
    key = NOTIFY_KEYS[send_data.dtype.name] + (100 if soc == "ascend910b" else 0)
    return Tiling(key, SYSTEM_WORKSPACE + 2 * MB, AIV_CORES, need)
