"""The torch-like functions of ``torch.ops.umdk_cam_op_lib`` on numpy arrays (operators page 1.3).

Arguments have the schema's names. A call is refused as a whole before it changes anything: TorchBindError
for the binding's assertions, then OperatorError for everything that tiling, group and heap refuse. A heap too
small for the rows that a rank receives is seen after notify_dispatch only, and refuses dispatch there.

R ranks, E experts, El = E / R; T tokens, K top-k, h hidden; n = max(received rows, 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pymodel.operators import aclnn, checks
from pymodel.operators.checks import Array
from pymodel.operators.checks_bind import bind_combine, bind_dispatch, bind_fused, bind_layout
from pymodel.operators.checks_notify import LAYOUT, NOTIFY, tile_notify
from pymodel.operators.checks_prefill import COMBINE, DISPATCH, tile_dispatch
from pymodel.operators.checks_weights import W4A8, W8A8
from pymodel.operators.common import OperatorError
from pymodel.operators.heap import HeapLayout
from pymodel.operators.prefill_types import Dispatched, Notified
from pymodel.operators.world import World

WORKSPACE: Final = 0x1000_0000
"""Device address that stands for the workspace: the models keep none of their state there."""


async def _call(operator: str, **inputs: Any) -> Any:
    """Both phases."""
    size, executor = aclnn.get_workspace_size(operator, **inputs)
    return await aclnn.execute(WORKSPACE, size, executor)


async def get_dispatch_layout(
    topk_idx: Array, num_experts: int, num_ranks: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """topk_idx [T, K] -> (num_tokens_per_expert int32[E], send_token_idx int32[T, K])."""
    ids = bind_layout(topk_idx, num_experts)
    result = await _call(
        LAYOUT,
        topk_idx=ids,
        num_tokens=ids.shape[0],
        num_ranks=num_ranks,
        num_experts=num_experts,
        num_topk=ids.shape[1],
    )
    return result.num_tokens_per_expert, result.send_token_idx


async def moe_dispatch_prefill(
    x: Array,
    topk_idx: Array,
    topk_weights: Array,
    num_tokens_per_expert: NDArray[np.int32],
    send_token_idx_small: NDArray[np.int32],
    group_ep: str,
    rank: int,
    num_ranks: int,
    use_quant: bool,
) -> tuple[Array, NDArray[np.float32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """notify_dispatch, then moe_dispatch_normal.

    Gives (recv_x [n, h], x's type or int8; dynamic_scales float32[n], undefined without ``use_quant``;
    expand_idx int32[3 n]; recv_count int32[E]; recv_tokens_per_expert int64[El]).
    """
    counts = num_tokens_per_expert
    ids = bind_dispatch(x, topk_idx, topk_weights, counts, send_token_idx_small, num_ranks)
    member = aclnn.member(DISPATCH, group_ep, rank, num_ranks)
    buffsize = member.world.hccl_buffsize
    notify = {
        "send_data": np.zeros(3 * counts.size, np.int32),
        "token_per_expert_data": counts,
        "send_count": 3 * counts.size,
        "num_tokens": x.shape[0],
        "comm_group": group_ep,
        "rank_size": num_ranks,
        "rank_id": rank,
        "local_rank_size": num_ranks,
        "local_rank_id": rank,
    }
    dispatch: dict[str, Any] = {
        "x": x,
        "topk_idx": ids,
        "send_token_idx": send_token_idx_small,
        "group_ep": group_ep,
        "ep_world_size": num_ranks,
        "ep_rank_id": rank,
        "moe_expert_num": counts.size,
        "quant_mode": 2 if use_quant else 0,
        "tp_world_size": 1,
    }
    # whatever dispatch would refuse later is refused before notify tells the peers; the other ranks' batches
    # are not known yet, the own one is the least that dispatch will need
    tile_notify(**notify, hccl_buffsize=buffsize)
    starts = (np.cumsum(counts) - counts).astype(np.int32)
    tile_dispatch(
        **dispatch,
        send_offset=starts,
        recv_offset=None,
        recv_count=None,
        global_bs=x.shape[0] * num_ranks,
        hccl_buffsize=buffsize,
    )
    checks.finite(DISPATCH, "topkWeights", topk_weights)
    member.check_heap(
        DISPATCH,
        HeapLayout.prepare(
            buffsize, tokens=x.shape[0], top_k=ids.shape[1], hidden=x.shape[1], rows=0, row_bytes=0
        ),
    )
    known: Notified = await _call(NOTIFY, **notify)
    rows = max(known.total_recv_tokens, 1)
    outputs = {
        "recv_x": np.empty((rows, x.shape[1]), np.int8 if use_quant else x.dtype),
        "x_scales": np.empty(rows, np.float32),
        "assist_info": np.empty(3 * rows, np.int32),
    }
    done: Dispatched = await _call(
        DISPATCH,
        **dispatch,
        **outputs,
        send_offset=known.send_data_offset,
        recv_offset=known.recv_offset,
        recv_count=known.recv_count,
        global_bs=known.max_bs * num_ranks,
    )
    assert done.recv_x.shape == outputs["recv_x"].shape
    return (
        outputs["recv_x"],
        outputs["x_scales"],
        outputs["assist_info"],
        known.recv_count,
        known.recv_tokens_per_expert,
    )


async def moe_combine_prefill(
    x: Array,
    topk_idx: Array,
    topk_weights: NDArray[np.float32],
    src_idx: NDArray[np.int32],
    send_head: NDArray[np.int32],
    group_ep: str,
    rank: int,
    num_ranks: int,
) -> Array:
    """x [A, h], what the experts made of recv_x; src_idx is expand_idx, send_head recv_count. Gives [T, h].

    global_bs is R x the local T: it sizes the window check only, since no address of combine depends on the
    largest batch (operators page 5). What a source with more tokens needs is checked by its triples.
    """
    bind_combine(x)
    result: Array = await _call(
        COMBINE,
        recv_x=x,
        token_src_info=src_idx,
        ep_recv_counts=send_head,
        recv_topk_weights=topk_weights,
        tp_recv_counts=np.zeros(1, np.int32),
        group_ep=group_ep,
        ep_world_size=num_ranks,
        ep_rank_id=rank,
        moe_expert_num=send_head.size,
        global_bs=topk_weights.shape[0] * num_ranks,
        tp_world_size=1,
        topk_idx=topk_idx,
    )
    return result


async def fused_deep_moe(
    x: Array,
    expert_ids: Array,
    gmm1_weight: Sequence[Array],
    gmm1_weight_scale: Sequence[Array],
    gmm2_weight: Sequence[Array],
    gmm2_weight_scale: Sequence[Array],
    expert_scales: Array,
    share_gmm1_weight: Array | None = None,
    share_gmm1_weight_scale: Array | None = None,
    share_gmm2_weight: Array | None = None,
    share_gmm2_weight_scale: Array | None = None,
    expert_smooth_scales: Array | None = None,
    share_smooth_scales: Array | None = None,
    x_active_mask: Array | None = None,
    group_ep: str = "",
    ep_rank_size: int = 0,
    ep_rank_id: int = 0,
    moe_expert_num: int = 0,
    quant_mode: int = 0,
    global_bs: int = 0,
) -> tuple[Array, Array, NDArray[np.int64]]:
    """W8A8: (output [T, h], share_output [T, h], expert_token_nums int64[El]).

    Weights are tagged FRACTAL_NZ (`pymodel.operators.checks.nz`). ``quant_mode`` is not looked at. The
    defaults of the attributes serve the order of the schema alone: a call without a group is refused.
    """
    bind_fused(x, expert_ids)
    result = await _call(
        W8A8.operator,
        x=x,
        expert_ids=expert_ids,
        gmm1_weight=gmm1_weight,
        gmm1_weight_scale=gmm1_weight_scale,
        gmm2_weight=gmm2_weight,
        gmm2_weight_scale=gmm2_weight_scale,
        expert_scales=expert_scales,
        share_gmm1_weight=share_gmm1_weight,
        share_gmm1_weight_scale=share_gmm1_weight_scale,
        share_gmm2_weight=share_gmm2_weight,
        share_gmm2_weight_scale=share_gmm2_weight_scale,
        expert_smooth_scales=expert_smooth_scales,
        share_smooth_scales=share_smooth_scales,
        x_active_mask=x_active_mask,
        group_ep=group_ep,
        ep_rank_size=ep_rank_size,
        ep_rank_id=ep_rank_id,
        moe_expert_num=moe_expert_num,
        quant_mode=quant_mode,
        global_bs=global_bs,
    )
    return result.output, result.share_output, result.expert_token_nums


async def fused_deep_moe_w4a8(
    x: Array,
    expert_ids: Array,
    gmm1_weight: Sequence[Array],
    gmm1_weight_scale: Sequence[Array],
    gmm1_bias: Sequence[Array],
    gmm2_weight: Sequence[Array],
    gmm2_weight_scale: Sequence[Array],
    gmm2_bias: Sequence[Array],
    expert_scales: Array,
    *,
    group_ep: str,
    ep_rank_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    **optional: Any,
) -> tuple[Array, Array, NDArray[np.int64]]:
    """W4A8: as `fused_deep_moe`; weights are packed int32 words tagged ND, biases the compensations (6.6).

    ``optional``: the optional arguments of `fused_deep_moe`, share_gmm1_bias and share_gmm2_bias.
    """
    bind_fused(x, expert_ids)
    result = await _call(
        W4A8.operator,
        x=x,
        expert_ids=expert_ids,
        gmm1_weight=gmm1_weight,
        gmm1_weight_scale=gmm1_weight_scale,
        gmm1_bias=gmm1_bias,
        gmm2_weight=gmm2_weight,
        gmm2_weight_scale=gmm2_weight_scale,
        gmm2_bias=gmm2_bias,
        expert_scales=expert_scales,
        group_ep=group_ep,
        ep_rank_size=ep_rank_size,
        ep_rank_id=ep_rank_id,
        moe_expert_num=moe_expert_num,
        **optional,
    )
    return result.output, result.share_output, result.expert_token_nums


def launch_check(
    world: World,
    operator: str,
    *,
    batches: Sequence[int] = (),
    global_bs: Sequence[int] = (),
    heap: HeapLayout | None = None,
) -> None:
    """What only the launch of all ranks can see, before any of them starts. Raises OperatorError.

    ``batches``, ``global_bs``: one a rank, for the fused operators; global_bs 0 stands for R x the rank's
    batch, and all must be equal: a ragged call passes R x the largest batch (programs page, section 5).
    ``heap``: what the calls need of the world's heap, in SHMEM mode (programs page, section 2).
    """
    if len(batches) != len(global_bs) or (batches and len(batches) != world.ranks):
        raise ValueError(f"{len(batches)} batches and {len(global_bs)} global_bs for {world.ranks} ranks")
    sizes = [given or world.ranks * batch for batch, given in zip(batches, global_bs, strict=True)]
    if len(set(sizes)) > 1:
        raise OperatorError(operator, f"globalBS differs across ranks: {sizes}.")
    if heap is not None and world.heap is not None:
        heap.check(operator, world.heap.total)
        if heap.stage_size > world.heap.stage_size or heap.landing_size > world.heap.landing_size:
            raise OperatorError(operator, f"the heap was prepared for less: {heap} in {world.heap}")
