"""The two-phase API: what the first phase refuses and keeps, what the second one checks, runs and fills.

Sweep: all operators; wrong sizes and memory; groups, heaps, families, order of calls. Stimulus: kernels are
stand-ins that count and give known results. Checks: texts, calls of the stand-ins, the group's state before
and after. Timing: none. Does not prove: the kernels (`test_umdk` runs them through this API).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pymodel.operators import aclnn
from pymodel.operators.checks import is_nz
from pymodel.operators.common import OperatorError
from pymodel.operators.heap import HeapLayout
from pymodel.operators.prefill_types import Dispatched
from pymodel.operators.world import Rank, World
from tests.operators import fused_refusals as fused
from tests.operators import prefill_refusals as prefill

MB = 1 << 20
RANKS = prefill.RANKS
OPERATORS = (
    "dispatch_layout", "notify_dispatch", "moe_dispatch_normal", "moe_combine_normal", "fused_deep_moe",
    "fused_deep_moe_w4a8",
)  # fmt: skip


@dataclass
class Kernels:
    """Stand-ins for the modules of kernels; ``seen``: what they were called with."""

    seen: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def _call(self, name: str, result: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen.append((name, args, kwargs))

        async def run() -> Any:
            return result

        return run()

    def notify(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("notify", SimpleNamespace(send_data=np.arange(24).reshape(8, 3)), *args, **kwargs)

    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        rows = np.full((5, prefill.H), 3, prefill.BF16)
        got = Dispatched(rows, np.arange(5, dtype=np.float32), np.arange(15, dtype=np.int32))
        return self._call("dispatch", got, *args, **kwargs)

    def combine(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("combine", np.full((prefill.T, prefill.H), 7, prefill.BF16), *args, **kwargs)

    def fused(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("fused", "fused", *args, **kwargs)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    stand_in = Kernels()
    monkeypatch.setattr(aclnn, "kernels", lambda family, rank: stand_in)
    return stand_in


@pytest.fixture
def world() -> Iterator[World]:
    """A group of 4 in window mode; its windows are not touched and cost nothing."""
    one = World(RANKS, "window", hccl_buffsize=1000)
    one.members = [Rank(one, rank) for rank in range(RANKS)]
    yield one


def inputs(operator: str, world: World, rank: int = 0) -> dict[str, Any]:
    """A legal call on the group."""
    if operator.startswith("fused"):
        call = fused.w8a8() if operator == "fused_deep_moe" else fused.w4a8()
        call.update(group_ep=world.group_ep, ep_rank_id=rank)
    else:
        call = prefill.OPERATORS[operator][1]()
        if operator == "notify_dispatch":
            call.update(comm_group=world.group_ep, rank_id=rank)
        elif operator != "dispatch_layout":
            call.update(group_ep=world.group_ep, ep_rank_id=rank)
    call.pop("hccl_buffsize", None)
    call.pop("outputs", None)
    return call


def run(awaitable: Any) -> Any:
    """The result of something that never waits."""
    try:
        awaitable.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def call(operator: str, world: World, rank: int = 0, **change: Any) -> Any:
    """Both phases."""
    size, executor = aclnn.get_workspace_size(operator, **{**inputs(operator, world, rank), **change})
    return run(aclnn.execute(1, size, executor))


def refused(operator: str, world: World, rank: int = 0, **change: Any) -> str:
    """The text of the first phase's refusal."""
    with pytest.raises(OperatorError) as error:
        aclnn.get_workspace_size(operator, **{**inputs(operator, world, rank), **change})
    return error.value.text


@pytest.mark.parametrize("operator", OPERATORS)
def test_phases(operator: str, world: World, kernels: Kernels) -> None:
    """The first phase changes nothing; the second checks its arguments, then runs the kernel once."""
    rank = world.members[0]
    rank.combine_due = operator == "moe_combine_normal"
    size, executor = aclnn.get_workspace_size(operator, **inputs(operator, world))
    assert size == executor.tiling.workspace >= 16 * MB
    assert world.family is None and not rank.state and not rank.calls and not kernels.seen
    for workspace, wrong, text in (
        (1, size - 1, f"workspace size is {size - 1}, but {size} is needed."),
        (1, size + 1, f"workspace size is {size + 1}, but {size} is needed."),
        (0, size, f"workspace must be {size} bytes of memory."),
        (bytearray(size - 1), size, f"workspace must be {size} bytes of memory."),
    ):
        with pytest.raises(OperatorError) as error:
            run(aclnn.execute(workspace, wrong, executor))
        assert error.value.text == text
    assert world.family is None and not rank.state and not kernels.seen
    run(aclnn.execute(bytearray(size), size, executor))
    assert len(kernels.seen) == (operator != "dispatch_layout")
    with pytest.raises(OperatorError, match="has been executed already"):
        run(aclnn.execute(1, size, executor))
    assert len(kernels.seen) == (operator != "dispatch_layout")


def test_unknown_operator() -> None:
    """The names are those of the registry."""
    with pytest.raises(
        OperatorError, match=r"EZ9999: moe_dispatch: no such operator; there are dispatch_lay"
    ):
        aclnn.get_workspace_size("moe_dispatch")


def test_missing_input(world: World) -> None:
    """A call without an input, or with one that the operator does not have, is an error of the caller."""
    good = inputs("moe_dispatch_normal", world)
    for wrong in ({"more": 1, **good}, {k: v for k, v in good.items() if k != "group_ep"}):
        with pytest.raises(TypeError):
            aclnn.get_workspace_size("moe_dispatch_normal", **wrong)


@pytest.mark.parametrize("operator", OPERATORS[1:])
def test_group(operator: str, world: World, kernels: Kernels) -> None:
    """The group must exist and have the ranks of the call; what is wrong by itself is told first."""
    name = "comm_group" if operator == "notify_dispatch" else "group_ep"
    assert refused(operator, world, **{name: "nowhere"}) == "no rank 0 in group 'nowhere'"
    other: dict[str, dict[str, Any]] = {
        "notify_dispatch": {"rank_size": 8},
        "moe_dispatch_normal": {"ep_world_size": 8, "global_bs": 32},
        "moe_combine_normal": {"ep_world_size": 8, "global_bs": 32},
        "fused_deep_moe": fused.ONE_EACH,
        "fused_deep_moe_w4a8": {"ep_rank_size": 2, "moe_expert_num": 4, "expert_ids": fused.IDS // 2},
    }
    ranks = 2 if operator == "fused_deep_moe_w4a8" else 8
    assert refused(operator, world, **other[operator]) == f"the group has 4 ranks, not {ranks}."
    wrong = {"notify_dispatch": {"num_tokens": 0}, "moe_combine_normal": {"global_bs": 3}}.get(
        operator, {"global_bs": -1}
    )
    assert "nowhere" not in refused(operator, world, **{name: "nowhere"}, **wrong)


def test_window_of_the_group(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """The world's window counts, not the environment's."""
    monkeypatch.setenv("HCCL_BUFFSIZE", "1000")
    small = World(RANKS, "window", hccl_buffsize=416)
    small.members = [Rank(small, rank) for rank in range(RANKS)]
    assert "got HCCL_BUFFSIZE=416MB" in refused("moe_dispatch_normal", small)
    assert "got HCCL_BUFFSIZE=416MB" in refused("moe_combine_normal", small)


def test_what_the_kernels_get(world: World, kernels: Kernels) -> None:
    """Names and values of the contract with the kernels."""
    rank = world.members[1]
    given = inputs("moe_dispatch_normal", world, 1)
    call("moe_dispatch_normal", world, 1, global_bs=RANKS * 9, quant_mode=2, recv_x=None)
    assert rank.combine_due
    name, args, keys = kernels.seen.pop()
    assert name == "dispatch" and args[0] is rank and keys == {"quant": True, "max_bs": 9}
    order = ("x", "topk_idx", "send_offset", "send_token_idx", "recv_offset", "recv_count")
    assert all(np.array_equal(got, given[key]) for got, key in zip(args[1:], order, strict=True))

    call("moe_combine_normal", world, 1, ep_recv_counts=np.array([0, 1, 1, 2, 3, 3, 4, 5, 88], np.int32))
    assert not rank.combine_due
    name, args, keys = kernels.seen.pop()
    assert name == "combine" and keys == {"tokens": 4, "max_bs": 4} and args[3].tolist()[-1] == 5

    call("notify_dispatch", world, 1)
    name, args, keys = kernels.seen.pop()
    assert name == "notify" and args[0] is rank and args[2] == 4 and not keys


@pytest.mark.parametrize("as_list", [False, True])
def test_what_the_fused_kernel_gets(as_list: bool, world: World, kernels: Kernels) -> None:
    """One plain array a local expert; global_bs with its default; numerics of the variant."""
    change = {**(fused.LISTS if as_list else {}), **fused.SHARE}
    change["share_gmm2_weight_scale"] = np.ones(
        fused.H, change.get("gmm2_weight_scale", [np.ones(1, fused.BF16)])[0].dtype
    )
    call("fused_deep_moe", world, 2, **change)
    _, (rank, args, numerics), _ = kernels.seen.pop()
    assert rank is world.members[2] and numerics is None
    assert args.global_bs == RANKS * fused.T and args.moe_expert_num == fused.EXPERTS
    assert [w.shape for w in args.gmm1_weight] == [(fused.H, fused.N1)] * 2
    assert [w.shape for w in args.gmm2_weight_scale] == [(fused.H,)] * 2
    assert not any(map(is_nz, args.gmm1_weight))
    assert args.share_gmm1_weight is change["share_gmm1_weight"]
    other = World(RANKS, "window", hccl_buffsize=1000)
    other.members = [Rank(other, r) for r in range(RANKS)]
    call("fused_deep_moe_w4a8", other)
    assert type(kernels.seen[0][1][2]).__name__ == "W4A8"
    assert [b.shape for b in kernels.seen[0][1][1].gmm1_bias] == [(fused.N1,)] * 2


def test_outputs_are_filled(world: World, kernels: Kernels) -> None:
    """Arrays that the caller gives hold the results, longer ones and views too."""
    whole = np.zeros((8, 2 * prefill.H), prefill.BF16)
    recv_x, scales, info = whole[:, : prefill.H], np.full(9, -1, np.float32), np.full(20, -1, np.int32)
    call("moe_dispatch_normal", world, recv_x=recv_x, x_scales=scales, assist_info=info)
    assert (whole[:5, : prefill.H] == 3).all() and not whole[5:].any() and not whole[:, prefill.H :].any()
    assert scales.tolist() == [0, 1, 2, 3, 4, -1, -1, -1, -1]
    assert info.tolist() == [*range(15), *[-1] * 5]
    out = np.zeros((prefill.T, prefill.H), prefill.BF16)
    call("moe_combine_normal", world, x=out)
    assert (out == 7).all()
    send = np.zeros(24, np.int32)
    call("notify_dispatch", world, send_data=send)
    assert send.tolist() == list(range(24))
    per_rank = np.zeros(RANKS, np.int32)
    call("dispatch_layout", world, outputs={"num_tokens_per_rank": per_rank})
    assert per_rank.sum() > 0


def test_no_kernel(world: World) -> None:
    """Keys that tiling gives and nobody implements are refused before anything runs."""
    for dtype, key in ((np.float16, 20), (prefill.BF16, 21), (np.float32, 22)):
        send = np.zeros(24, dtype)
        assert refused("notify_dispatch", world, send_data=send) == f"no kernel for tiling key {key}."
    counts = np.ones(8, np.float32)
    assert "no kernel for tokenPerExpertData of float32" in refused(
        "notify_dispatch", world, token_per_expert_data=counts
    )
    assert refused("moe_dispatch_normal", world, tp_world_size=2) == "no kernel for tiling key 10100."
    one = {"moe_expert_num": 4, "topk_idx": None, "tp_world_size": 2}
    assert refused("moe_combine_normal", world, **one) == "no kernel for tpWorldSize 2."
    assert "of notify are needed" in refused("moe_dispatch_normal", world, recv_offset=None)
    assert "quantMode 1 has no kernel" in refused("moe_dispatch_normal", world, quant_mode=1, recv_x=None)


def test_server_type(world: World) -> None:
    """MTE, but AICPU for the fused operator on a 910B."""
    for operator in OPERATORS:
        assert aclnn.get_workspace_size(operator, **inputs(operator, world))[1].server_type == 1
    call_910b = inputs("fused_deep_moe", world) | {"soc": "ascend910b"}
    assert aclnn.get_workspace_size("fused_deep_moe", **call_910b)[1].server_type == 0


# ---- what the second phase refuses
def not_started(operator: str, world: World, kernels: Kernels, rank: int = 0, **change: Any) -> str:
    """The text of the second phase's refusal, which starts no kernel and changes nothing."""
    member = world.members[rank]
    before = (world.family, member.combine_due, dict(member.calls), repr(member.state), len(kernels.seen))
    size, executor = aclnn.get_workspace_size(operator, **{**inputs(operator, world, rank), **change})
    with pytest.raises(OperatorError) as error:
        run(aclnn.execute(1, size, executor))
    after = (world.family, member.combine_due, dict(member.calls), repr(member.state), len(kernels.seen))
    assert after == before
    assert not executor.used
    return error.value.text


def test_order_of_calls(world: World, kernels: Kernels) -> None:
    """Combine needs a dispatch since the last combine, of the same rank."""
    text = "combine needs a dispatch since the last combine"
    assert not_started("moe_combine_normal", world, kernels) == text
    call("moe_dispatch_normal", world)
    assert not_started("moe_combine_normal", world, kernels, 1) == text
    call("moe_combine_normal", world)
    assert not_started("moe_combine_normal", world, kernels) == text
    for _ in range(2):
        call("moe_dispatch_normal", world)
    call("moe_combine_normal", world)
    assert not_started("moe_combine_normal", world, kernels) == text
    assert [name for name, _, _ in kernels.seen] == ["dispatch", "combine", "dispatch", "dispatch", "combine"]


def test_families(world: World, kernels: Kernels) -> None:
    """Prefill and fused words overlap: a group serves one of them."""
    other = World(RANKS, "window", hccl_buffsize=1000)
    other.members = [Rank(other, rank) for rank in range(RANKS)]
    call("notify_dispatch", world)
    assert "serves prefill operators already" in not_started("fused_deep_moe", world, kernels)
    call("fused_deep_moe", other)
    assert "serves fused operators already" in not_started("notify_dispatch", other, kernels)
    assert "serves fused operators already" in not_started("moe_dispatch_normal", other, kernels)
    call("fused_deep_moe_w4a8", other)


def test_unequal_global_bs(world: World, kernels: Kernels) -> None:
    """Ranks whose global_bs differs from that of the first one are refused; 0 counts as R x bs."""
    call("fused_deep_moe", world, 1, global_bs=16)
    assert not_started("fused_deep_moe", world, kernels, 2) == "globalBs differs: 12 on rank 2, 16 on rank 1."
    call("fused_deep_moe", world, 2, global_bs=16)
    call("fused_deep_moe", world, 1, global_bs=20)  # the next call may differ
    assert "20 on rank 1" in not_started("fused_deep_moe", world, kernels, 2)
    for rank in (2, 3):
        for global_bs in (16, 20)[rank == 2 :]:
            call("fused_deep_moe", world, rank, global_bs=global_bs)


@pytest.mark.parametrize(
    ("operator", "what"),
    [
        ("moe_dispatch_normal", "stage"),
        ("moe_dispatch_normal", "landing"),
        ("moe_dispatch_normal", "heap"),
        ("moe_combine_normal", "stage"),
        ("moe_combine_normal", "heap"),
        ("fused_deep_moe", "stage"),
        ("fused_deep_moe", "heap"),
    ],
)
def test_heap(operator: str, what: str, kernels: Kernels) -> None:
    """SHMEM mode: stage, landing and whole heap must hold the call; what is needed exactly is enough."""
    h, slots, row = prefill.H, prefill.T * prefill.K, 2560  # 2048 + 44, in units of 512
    stage = {
        "moe_dispatch_normal": max(5 * 2 * h, slots * (h + 512)),
        "moe_combine_normal": max(5 * 2 * h, slots * (h + 512)),
        # as many rows as two local experts can get: min(K, El) of 12 tokens
        "fused_deep_moe": max(12 * 2 * 2 * fused.H, fused.T * fused.K * (fused.H + 512)),
    }[operator]
    exact = HeapLayout(1000 * MB, -(-stage // 512) * 512, 5 * row if operator == "moe_dispatch_normal" else 0)
    small = {
        "stage": HeapLayout(exact.win_size, exact.stage_size - 512, exact.landing_size + 4096),
        "landing": HeapLayout(exact.win_size, exact.stage_size + 4096, exact.landing_size - 512),
        "heap": exact,
    }[what]
    for heap, good in ((exact, True), (small, False)):
        world = World(RANKS, "shmem", hccl_buffsize=1000, heap=heap)
        size = heap.total - (what == "heap" and not good)
        world.members = [
            Rank(world, rank, cast(Any, SimpleNamespace(heap_size=size)), heap, combine_due=True)
            for rank in range(RANKS)
        ]
        if good:
            call(operator, world)
        else:
            text = not_started(operator, world, kernels)
            assert ("the heap was prepared for less" in text) if what != "heap" else ("are needed" in text)
    assert len(kernels.seen) == 1
