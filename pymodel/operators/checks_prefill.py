"""Host layer of moe_dispatch_normal and moe_combine_normal: checks, tiling, window demand.

Operators page 1.2, 4.2, 5, 12. Checks run in the page's order; those that the page does not have but the
kernels rely on, and the refusals of the programs page, section 5, come last. E experts on R ranks; T tokens,
K top-k, h hidden.
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
    X_TYPES,
    Array,
    require,
)
from pymodel.operators.checks_bind import bind_combine, bind_dispatch, bind_layout
from pymodel.operators.checks_notify import tile_dispatch_layout, tile_notify
from pymodel.operators.common import AIV_CORES, MB, OperatorError, Tiling, align

__all__ = [
    "bind_combine",
    "bind_dispatch",
    "bind_layout",
    "tile_combine",
    "tile_dispatch",
    "tile_dispatch_layout",
    "tile_notify",
]

DISPATCH: Final = "moe_dispatch_normal"
COMBINE: Final = "moe_combine_normal"
FLAG_SPACE: Final = (4 + 204) * MB
"""What a half of the window holds beside rows: combine flags, and notify's area (operators page 4, 5)."""
SCALE_FIELD: Final = 32
TRIPLE_BYTES: Final = 12


def tsch_block_dim(cores: int = AIV_CORES) -> int:
    """CalcTschBlockDim(aivNum, 0, aivNum): with no cube core in use it gives all the vector cores."""
    return cores


def row_bytes(hidden: int, itemsize: int) -> int:
    """Bytes of a staged row of ``hidden`` elements of ``itemsize`` bytes (operators page 4.2)."""
    return align(align(hidden * itemsize, 32) + SCALE_FIELD + TRIPLE_BYTES, 512)


def dispatch_window(max_bs: int, top_k: int, hidden: int) -> int:
    """Bytes that moe_dispatch_normal demands of the window (operators page 4.2)."""
    return 2 * (max_bs * top_k * (align(2 * hidden, 512) + row_bytes(hidden, 2)) + FLAG_SPACE)


def combine_window(max_bs: int, top_k: int, hidden: int) -> int:
    """Bytes that moe_combine_normal demands of the window (operators page 5)."""
    return 2 * (max_bs * top_k * align(2 * hidden, 512) + FLAG_SPACE)


def _group_attributes(
    operator: str, group_ep: str, ep_world_size: int, ep_rank_id: int, tp_world_size: int, tp_rank_id: int
) -> None:
    checks.group_name(operator, "groupEp", group_ep)
    checks.within(operator, "epWorldSize", ep_world_size, f"[2, {MAX_RANKS}]")
    checks.within(operator, "epRankId", ep_rank_id, f"[0, {ep_world_size})")
    checks.within(operator, "tpWorldSize", tp_world_size, "[0, 2]")
    checks.within(operator, "tpRankId", tp_rank_id, f"[0, {max(tp_world_size, 1)})")


def _no_nz(operator: str, tensors: Mapping[str, Array | None]) -> None:
    for name, array in tensors.items():
        if array is not None and checks.is_nz(array):
            raise OperatorError(operator, f"{name} format must not be FRACTAL_NZ.")


def _experts(operator: str, experts: int, ranks: int) -> None:
    # El x R <= 1280 is checked too in the original; it follows from these two
    checks.within(operator, "moeExpertNum", experts, f"(0, {MAX_EXPERTS}]")
    require(
        experts % ranks == 0,
        operator,
        f"moeExpertNum ({experts}) must be divisible by epWorldSize ({ranks}).",
    )


def _sizes(operator: str, tokens: int, hidden: int, top_k: int, experts: int) -> None:
    checks.within(operator, "bs", tokens, f"[1, {MAX_TOKENS}]")
    checks.within(operator, "h", hidden, "[1024, 7168]")
    checks.within(operator, "k", top_k, f"(0, {min(MAX_TOP_K, experts)}]")


def tile_dispatch(
    *,
    x: Array,
    topk_idx: Array,
    send_offset: Array,
    send_token_idx: Array,
    recv_offset: Array | None,
    recv_count: Array | None,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    global_bs: int,
    quant_mode: int = 0,
    group_tp: str = "",
    tp_world_size: int = 0,
    tp_rank_id: int = 0,
    recv_x: Array | None = None,
    x_scales: Array | None = None,
    assist_info: Array | None = None,
    wait_recv_cost_stats: Array | None = None,
    hccl_buffsize: int | None = None,
) -> Tiling:
    """moe_dispatch_normal: x [T, h], topk_idx and send_token_idx int32[T, K], the others int32[E].

    Outputs (recv_x, x_scales, assist_info) are checked where they are given. Without recv_offset and
    recv_count, which notify gives, it checks what can be checked before notify. Raises OperatorError.
    """
    _group_attributes(DISPATCH, group_ep, ep_world_size, ep_rank_id, tp_world_size, tp_rank_id)
    checks.within(DISPATCH, "quantMode", quant_mode, "[0, 2]")
    checks.tensor(DISPATCH, "x", x, 2, X_TYPES)
    checks.tensor(DISPATCH, "expertIds", topk_idx, 2, [np.int32])
    tokens, hidden = x.shape
    top_k = topk_idx.shape[1]
    if recv_x is not None:
        checks.tensor(DISPATCH, "recvX", recv_x, 2, [np.int8] if quant_mode else [x.dtype])
        require(recv_x.shape[1] == hidden, DISPATCH, f"recvX dim1 must be h ({hidden}).")
    if x_scales is not None:
        checks.tensor(DISPATCH, "dynamicScales", x_scales, 1, [np.float32])
    if assist_info is not None:
        checks.tensor(DISPATCH, "assistInfo", assist_info, 1, [np.int32])
    _no_nz(
        DISPATCH,
        {
            "x": x,
            "expertIds": topk_idx,
            "recvX": recv_x,
            "dynamicScales": x_scales,
            "assistInfo": assist_info,
        },
    )
    _experts(DISPATCH, moe_expert_num, ep_world_size)
    _sizes(DISPATCH, tokens, hidden, top_k, moe_expert_num)
    require(global_bs > 0, DISPATCH, f"globalBs must > 0, but got {global_bs}.")
    require(topk_idx.shape[0] == tokens, DISPATCH, f"expertIds dim0 must be bs ({tokens}).")
    max_bs = global_bs // ep_world_size
    need = dispatch_window(max_bs, top_k, hidden)
    why = f"maxBs={max_bs}, k={top_k}, h={hidden}"
    checks.fits_window(DISPATCH, need, checks.hccl_buffsize(hccl_buffsize), why)
    require(quant_mode != 1, DISPATCH, "quantMode 1 has no kernel, only 0 and 2 have.")
    require(
        global_bs % ep_world_size == 0 and max_bs >= tokens,
        DISPATCH,
        f"globalBs must be epWorldSize ({ep_world_size}) * maxBs with maxBs >= bs ({tokens}), "
        f"but got {global_bs}.",
    )
    checks.expert_ids(DISPATCH, "expertIds", topk_idx, moe_expert_num, lowest=0)
    checks.table(DISPATCH, "sendOffset", send_offset, (moe_expert_num,))
    checks.table(DISPATCH, "sendTokenIdx", send_token_idx, topk_idx.shape)
    slots = np.sort((send_offset[topk_idx].astype(np.int64) + send_token_idx).ravel())
    require(
        bool(np.array_equal(slots, np.arange(slots.size))),
        DISPATCH,
        "sendOffset and sendTokenIdx do not give every slot a staging row of its own.",
    )
    if recv_offset is not None:
        checks.table(DISPATCH, "recvOffset", recv_offset, (moe_expert_num,))
        require(bool((recv_offset >= 0).all()), DISPATCH, "recvOffset holds a negative offset.")
    if recv_count is not None:
        checks.table(DISPATCH, "recvCount", recv_count, (moe_expert_num,))
        _sums(DISPATCH, "recvCount", recv_count)
        rows = max(int(recv_count[-1]), 1)
        for name, array, size in (
            ("recvX", recv_x, 1),
            ("dynamicScales", x_scales, 1),
            ("assistInfo", assist_info, 3),
        ):
            require(
                array is None or array.shape[0] >= size * rows,
                DISPATCH,
                f"{name} dim0 must be at least {size * rows}.",
            )
    checks.finite(DISPATCH, "x", x)
    return Tiling(
        10000 + quant_mode + (100 if tp_world_size == 2 else 0),
        SYSTEM_WORKSPACE + 512 * AIV_CORES * AIV_CORES,
        tsch_block_dim(),
        need,
        {"schedule_mode": 1, "max_bs": max_bs, "row_bytes": row_bytes(hidden, 1 if quant_mode else 2)},
    )


def _sums(operator: str, name: str, counts: Array) -> None:
    """Inclusive sums: from 0 on, never falling."""
    steps = np.diff(counts.astype(np.int64), prepend=0)
    require(bool((steps >= 0).all()), operator, f"{name} must hold inclusive sums, which never fall.")


def tile_combine(
    *,
    recv_x: Array,
    token_src_info: Array,
    ep_recv_counts: Array,
    recv_topk_weights: Array,
    tp_recv_counts: Array,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    global_bs: int,
    group_tp: str = "",
    tp_world_size: int = 0,
    tp_rank_id: int = 0,
    x: Array | None = None,
    combine_send_cost_stats: Array | None = None,
    topk_idx: Array | None = None,
    hccl_buffsize: int | None = None,
) -> Tiling:
    """moe_combine_normal: recv_x [A, h], token_src_info int32[>= 3 A], ep_recv_counts int32[>= E],
    recv_topk_weights float32[T, K], tp_recv_counts int32[any]; ``x`` is the output [T, h].

    ``topk_idx`` [T, K], which only the torch function has, is looked at for -1. Raises OperatorError.
    """
    _group_attributes(COMBINE, group_ep, ep_world_size, ep_rank_id, tp_world_size, tp_rank_id)
    require(isinstance(recv_x, np.ndarray), COMBINE, "recvX is required.")
    require(recv_x.dtype != np.int32, COMBINE, "recvX datatype int32 is not supported.")
    checks.tensor(COMBINE, "recvX", recv_x, 2, X_TYPES)
    checks.tensor(COMBINE, "tokenSrcInfo", token_src_info, 1, [np.int32])
    checks.tensor(COMBINE, "epRecvCounts", ep_recv_counts, 1, [np.int32])
    checks.tensor(COMBINE, "recvTopkWeights", recv_topk_weights, 2, [np.float32])
    checks.tensor(COMBINE, "tpRecvCounts", tp_recv_counts, 1, [np.int32])
    _no_nz(
        COMBINE,
        {
            "recvX": recv_x,
            "tokenSrcInfo": token_src_info,
            "epRecvCounts": ep_recv_counts,
            "recvTopkWeights": recv_topk_weights,
            "x": x,
        },
    )
    _experts(COMBINE, moe_expert_num, ep_world_size)
    local = moe_expert_num // ep_world_size
    require(
        local == 1 or tp_world_size <= 1,
        COMBINE,
        f"tpWorldSize must be at most 1 with {local} local experts, but got {tp_world_size}.",
    )
    (rows, hidden), (tokens, top_k) = recv_x.shape, recv_topk_weights.shape
    _sizes(COMBINE, tokens, hidden, top_k, moe_expert_num)
    require(
        global_bs == 0 or (global_bs >= ep_world_size * tokens and global_bs % ep_world_size == 0),
        COMBINE,
        "globalBS is invalid, only support 0 or maxBs(maxBs is the largest bs on all ranks) * epWorldSize, "
        f"but got globalBS={global_bs}, bs={tokens}, epWorldSize={ep_world_size}.",
    )
    require(
        ep_recv_counts.size >= moe_expert_num,
        COMBINE,
        f"epSendCounts dim0 must be at least {moe_expert_num}, but got {ep_recv_counts.size}.",
    )
    require(
        token_src_info.size >= 3 * rows,
        COMBINE,
        f"tokenSrcInfo dim0 must be at least {3 * rows}, but got {token_src_info.size}.",
    )
    if x is not None:
        checks.tensor(COMBINE, "x", x, 2, [recv_x.dtype])
        require(
            x.shape == (tokens, hidden), COMBINE, f"x must have shape {(tokens, hidden)}, but got {x.shape}."
        )
    max_bs = global_bs // ep_world_size if global_bs else tokens
    need = combine_window(max_bs, top_k, hidden)
    buffsize = checks.hccl_buffsize(hccl_buffsize)
    checks.fits_window(COMBINE, need, buffsize, f"maxBs={max_bs}, k={top_k}, h={hidden}")
    if topk_idx is not None:
        shape = (tokens, top_k)
        require(
            topk_idx.shape == shape, COMBINE, f"topkIdx must have shape {shape}, but got {topk_idx.shape}."
        )
        checks.expert_ids(COMBINE, "topkIdx", topk_idx, moe_expert_num, lowest=0)
    counts = ep_recv_counts[:moe_expert_num]
    _sums(COMBINE, "epSendCounts", counts)
    pushed = int(counts[-1])
    require(pushed <= rows, COMBINE, f"epSendCounts ends at {pushed}, recvX has {rows} rows.")
    _triples(token_src_info[: 3 * pushed].reshape(pushed, 3), ep_world_size, top_k, hidden, buffsize)
    checks.finite(COMBINE, "recvX", recv_x[:pushed])
    checks.finite(COMBINE, "recvTopkWeights", recv_topk_weights)
    return Tiling(
        0, SYSTEM_WORKSPACE, tsch_block_dim(), need, {"schedule_mode": 1, "max_bs": max_bs, "rows": pushed}
    )


def _triples(triples: Array, ranks: int, top_k: int, hidden: int, buffsize: int) -> None:
    """Where rows are pushed: legal, distinct, in the window of a source with more tokens than here too."""
    if not triples.size:
        return
    limit = np.array([ranks, MAX_TOKENS, top_k])
    wrong = ((triples < 0) | (triples >= limit)).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise OperatorError(
            COMBINE, f"tokenSrcInfo of row {row} is {tuple(triples[row].tolist())}: no (rank, token, k)."
        )
    flat = np.ravel_multi_index(tuple(triples.T), tuple(limit))
    require(np.unique(flat).size == flat.size, COMBINE, "tokenSrcInfo names a (rank, token, k) twice.")
    tokens = int(triples[:, 1].max()) + 1
    why = f"a source has at least {tokens} tokens, k={top_k}, h={hidden}"
    checks.fits_window(COMBINE, combine_window(tokens, top_k, hidden), buffsize, why)
