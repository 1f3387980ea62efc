"""The two-phase API: `get_workspace_size` checks a call and gives an executor, `execute` runs it.

As operators page 1.1: nothing is posted, stored or counted before `execute`. Inputs have the names of the
host layer's functions. Outputs that are given are checked and filled; all results are returned as well.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from pymodel.operators.checks import Array
from pymodel.operators.checks_fused import (
    W4A8,
    W8A8,
    max_rows,
    per_expert,
    tile_fused,
    tile_fused_w4a8,
)
from pymodel.operators.checks_notify import LAYOUT, NOTIFY, tile_dispatch_layout, tile_notify
from pymodel.operators.checks_prefill import COMBINE, DISPATCH, tile_combine, tile_dispatch
from pymodel.operators.common import OperatorError, Tiling
from pymodel.operators.fused_types import FusedArgs
from pymodel.operators.heap import HeapLayout
from pymodel.operators.layout import dispatch_layout
from pymodel.operators.world import Rank, resolve

Family: TypeAlias = Literal["prefill", "fused"]
Kernel: TypeAlias = "Callable[[], Awaitable[Any]]"
Inputs: TypeAlias = "dict[str, Any]"

_ANY_WINDOW: Final = 1 << 40
"""MB; for a call whose group does not exist, so nobody knows its window."""
MTE: Final = 1
AICPU: Final = 0
"""HCCL server types (operators page 1.1)."""
_PER_EXPERT: Final = (
    "gmm1_weight",
    "gmm1_weight_scale",
    "gmm2_weight",
    "gmm2_weight_scale",
    "gmm1_bias",
    "gmm2_bias",
)


@dataclass
class Executor:
    """A checked call. It runs once, by `execute`."""

    operator: str
    tiling: Tiling
    kernel: Kernel
    server_type: int = MTE
    """HCCL server type that is set before launch."""
    ready: Callable[[], None] = lambda: None
    """Last checks, of what can change between the phases, and claims; then the kernel starts."""
    outputs: Mapping[str, Array] = field(default_factory=dict)
    """Caller's arrays by the result's field names; "" is the result itself."""
    used: bool = False


def get_workspace_size(operator: str, **inputs: Any) -> tuple[int, Executor]:
    """First phase of ``operator``, a directory name such as ``moe_dispatch_normal``: (bytes, executor).

    The group's window size is that of its world. Raises OperatorError for anything that a check refuses.
    """
    plan = _PLANS.get(operator)
    if plan is None:
        raise OperatorError(operator, f"no such operator; there are {', '.join(_PLANS)}.")
    executor = plan(operator, inputs)
    return executor.tiling.workspace, executor


async def execute(workspace: bytearray | int, size: int, executor: Executor) -> Any:
    """Second phase: run the kernel; gives its results.

    ``workspace`` is memory or a device address (not 0), ``size`` what the first phase gave. Raises
    OperatorError for another size, too little memory, or an executor that has run; all of them before
    anything is posted.
    """
    operator, need = executor.operator, executor.tiling.workspace
    if executor.used:
        raise OperatorError(operator, "the executor has been executed already.")
    if size != need:
        raise OperatorError(operator, f"workspace size is {size}, but {need} is needed.")
    if workspace == 0 or (isinstance(workspace, bytearray) and len(workspace) < need):
        raise OperatorError(operator, f"workspace must be {need} bytes of memory.")
    executor.ready()
    executor.used = True
    result = await executor.kernel()
    for name, out in executor.outputs.items():
        values: Array = getattr(result, name) if name else result
        rows = values.reshape(-1, *out.shape[1:])
        out[: rows.shape[0]] = rows
    return result


def kernels(family: Family, rank: Rank) -> Any:
    """The module with the kernels of a family in the rank's mode."""
    return importlib.import_module(f"pymodel.operators.{family}_{rank.world.mode}")


def member(operator: str, group: str, rank_id: int, ranks: int) -> Rank:
    """The rank of a group of ``ranks`` ranks. Raises OperatorError where there is none."""
    rank = resolve(group, rank_id)
    if ranks != rank.ranks:
        raise OperatorError(operator, f"the group has {rank.ranks} ranks, not {ranks}.")
    return rank


def _checked(
    operator: str, tile: Callable[..., Tiling], inputs: Inputs, names: tuple[str, str, str]
) -> tuple[Rank, Tiling]:
    """Tiling with the window of the group; ``names`` are those of group, rank and number of ranks.

    A call that is wrong by itself is refused as such, whether its group exists or not.
    """
    try:
        group, rank_id, ranks = (inputs[name] for name in names)
        rank = member(operator, group, rank_id, ranks)
    except (OperatorError, KeyError):
        tile(**{"hccl_buffsize": _ANY_WINDOW, **inputs})
        raise
    return rank, tile(**{"hccl_buffsize": rank.world.hccl_buffsize, **inputs})


def _outputs(inputs: Inputs, names: Mapping[str, str]) -> dict[str, Array]:
    """Outputs that the caller gave, by field of the result."""
    return {there: inputs[name] for name, there in names.items() if inputs.get(name) is not None}


def _kernel_for(operator: str, key: int, known: tuple[int, ...]) -> None:
    """Keys that tiling gives and no kernel has, such as those of the types and of tensor parallelism."""
    if key not in known:
        raise OperatorError(operator, f"no kernel for tiling key {key}.")


def _plan_layout(operator: str, inputs: Inputs) -> Executor:
    tiling = tile_dispatch_layout(**inputs)

    async def kernel() -> Any:
        return dispatch_layout(inputs["topk_idx"], inputs["num_experts"], inputs["num_ranks"])

    return Executor(operator, tiling, kernel, outputs=inputs.get("outputs") or {})


def _plan_notify(operator: str, inputs: Inputs) -> Executor:
    rank, tiling = _checked(operator, tile_notify, inputs, ("comm_group", "rank_id", "rank_size"))
    _kernel_for(operator, tiling.key, (23, 123))
    counts = inputs["token_per_expert_data"]
    if counts.dtype != np.int32:
        raise OperatorError(operator, f"no kernel for tokenPerExpertData of {counts.dtype.name}.")

    def kernel() -> Awaitable[Any]:
        return kernels("prefill", rank).notify(rank, counts, inputs["num_tokens"])  # type: ignore[no-any-return]

    return Executor(
        operator,
        tiling,
        kernel,
        ready=lambda: rank.world.claim(operator, "prefill"),
        outputs=_outputs(inputs, {"send_data": "send_data"}),
    )


def _plan_dispatch(operator: str, inputs: Inputs) -> Executor:
    rank, tiling = _checked(operator, tile_dispatch, inputs, ("group_ep", "ep_rank_id", "ep_world_size"))
    _kernel_for(operator, tiling.key, (10000, 10002))
    x, topk_idx, recv_count = inputs["x"], inputs["topk_idx"], inputs["recv_count"]
    if recv_count is None or inputs["recv_offset"] is None:
        raise OperatorError(operator, "recvOffset and recvCount of notify are needed.")
    heap = HeapLayout.prepare(
        rank.world.hccl_buffsize,
        tokens=x.shape[0],
        top_k=topk_idx.shape[1],
        hidden=x.shape[1],
        rows=int(recv_count[-1]),
        row_bytes=tiling.data["row_bytes"],
    )

    async def kernel() -> Any:
        result = await kernels("prefill", rank).dispatch(
            rank,
            x,
            topk_idx,
            inputs["send_offset"],
            inputs["send_token_idx"],
            inputs["recv_offset"],
            recv_count,
            quant=inputs.get("quant_mode", 0) == 2,
            max_bs=tiling.data["max_bs"],
        )
        rank.combine_due = True
        return result

    def ready() -> None:
        rank.check_heap(operator, heap)
        rank.world.claim(operator, "prefill")

    names = {"recv_x": "recv_x", "x_scales": "scales", "assist_info": "expand_idx"}
    return Executor(operator, tiling, kernel, ready=ready, outputs=_outputs(inputs, names))


def _plan_combine(operator: str, inputs: Inputs) -> Executor:
    rank, tiling = _checked(operator, tile_combine, inputs, ("group_ep", "ep_rank_id", "ep_world_size"))
    if inputs.get("tp_world_size", 0) > 1:
        raise OperatorError(operator, "no kernel for tpWorldSize 2.")
    recv_x, weights = inputs["recv_x"], inputs["recv_topk_weights"]
    experts = inputs["moe_expert_num"]
    heap = HeapLayout.prepare(
        rank.world.hccl_buffsize,
        tokens=weights.shape[0],
        top_k=weights.shape[1],
        hidden=recv_x.shape[1],
        rows=tiling.data["rows"],
        row_bytes=0,
    )

    async def kernel() -> Any:
        rank.combine_due = False
        return await kernels("prefill", rank).combine(
            rank,
            recv_x,
            inputs["token_src_info"],
            inputs["ep_recv_counts"][:experts],
            weights,
            tokens=weights.shape[0],
            max_bs=tiling.data["max_bs"],
        )

    def ready() -> None:
        if not rank.combine_due:
            raise OperatorError(operator, "combine needs a dispatch since the last combine")
        # dispatch has claimed the group
        rank.check_heap(operator, heap)

    return Executor(operator, tiling, kernel, ready=ready, outputs=_outputs(inputs, {"x": ""}))


def _plan_fused(operator: str, inputs: Inputs) -> Executor:
    tile, variant = (tile_fused, W8A8) if operator == W8A8.operator else (tile_fused_w4a8, W4A8)
    rank, tiling = _checked(operator, tile, inputs, ("group_ep", "ep_rank_id", "ep_rank_size"))
    local = inputs["moe_expert_num"] // rank.ranks
    values = {one.name: inputs[one.name] for one in fields(FusedArgs) if one.name in inputs}
    for name in _PER_EXPERT:
        if values.get(name) is not None:
            values[name] = per_expert(values[name], local)
    args = FusedArgs(**{**values, "global_bs": tiling.data["global_bs"]})
    (tokens, hidden), top_k = args.x.shape, args.expert_ids.shape[1]
    heap = HeapLayout.prepare(
        rank.world.hccl_buffsize,
        tokens=tokens,
        top_k=top_k,
        hidden=hidden,
        rows=max_rows(args.global_bs, top_k, local),
        row_bytes=0,
    )
    numerics = importlib.import_module("pymodel.operators.w4a8").W4A8() if variant.packed else None

    def kernel() -> Awaitable[Any]:
        return kernels("fused", rank).fused(rank, args, numerics)  # type: ignore[no-any-return]

    def ready() -> None:
        rank.check_heap(operator, heap)
        rank.world.claim(operator, "fused")
        agree(operator, rank, args.global_bs)

    server = AICPU if inputs.get("soc") == "ascend910b" else MTE
    return Executor(operator, tiling, kernel, server, ready)


def agree(operator: str, rank: Rank, global_bs: int) -> None:
    """Refuse a fused call whose global_bs is not that of the same call on the ranks that are there already.

    The first rank to come decides, so only later ones can be refused here, each before it posts anything;
    `pymodel.operators.umdk.launch_check` sees all ranks before any of them starts. Raises OperatorError.
    """
    mine: list[int] = rank.state.get("fused global_bs", [])
    for other in rank.world.members:
        theirs = other.state.get("fused global_bs", [])
        if len(theirs) > len(mine) and theirs[len(mine)] != global_bs:
            raise OperatorError(
                operator,
                f"globalBs differs: {global_bs} on rank {rank.rank}, "
                f"{theirs[len(mine)]} on rank {other.rank}.",
            )
    rank.state["fused global_bs"] = [*mine, global_bs]


_PLANS: Final[dict[str, Callable[[str, Inputs], Executor]]] = {
    LAYOUT: _plan_layout,
    NOTIFY: _plan_notify,
    DISPATCH: _plan_dispatch,
    COMBINE: _plan_combine,
    W8A8.operator: _plan_fused,
    W4A8.operator: _plan_fused,
}
