"""The torch-like functions end to end: with real kernels, and what they refuse before anything moves.

Sweep: window mode, SHMEM mode with both variants of signalling; with and without quantisation; ragged tokens,
ranks that receive nothing, two layers in a row; refusals in every mode. Stimulus: seeded rows, identity
experts; arguments replaced one at a time. Checks: out = x times the sum of the weights bit for bit, rows and
indices against `golden_prefill`, fused outputs against `golden_fused`; after a refusal no post, no byte and
no word has changed. Timing: none. Does not prove: the RTL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pymodel.operators import umdk
from pymodel.operators.checks import nz
from pymodel.operators.common import BF16, OperatorError, TorchBindError
from pymodel.operators.heap import HeapLayout
from pymodel.operators.world import Rank, World
from pymodel.run import RunResult
from tests.operators import golden_fused, golden_prefill
from tests.operators.fused_runs import arguments
from tests.operators.prefill_harness import make_case

MODES = ("window", "flags", "atomics")
BUFFSIZE = 420
Program = Callable[[Rank], Any]


def world_of(mode: str, ranks: int, heap: HeapLayout | None = None, buffsize: int = BUFFSIZE) -> World:
    """A world; SHMEM mode with a heap for prefill tests unless one is given."""
    if mode == "window":
        return World(ranks, "window", hccl_buffsize=buffsize)
    heap = heap or HeapLayout.prepare(buffsize, tokens=16, top_k=4, hidden=1024, rows=200, row_bytes=2560)
    return World(ranks, "shmem", signalling=mode, hccl_buffsize=buffsize, heap=heap)  # type: ignore[arg-type]


def run(world: World, program: Program) -> tuple[list[Any], RunResult | None]:
    """What the ranks return, and in SHMEM mode the run, which is good."""
    if world.mode == "window":
        return world.run(program), None
    result = world.run_model([program] * world.ranks)
    return result.returns, result


def values_of(case: golden_prefill.Case, rank: int) -> Any:
    """x in its type."""
    return golden_prefill.to_half(case.x[rank], case.half).view(BF16)


async def dispatched(rank: Rank, case: golden_prefill.Case, quant: bool, /, **change: Any) -> Any:
    """Layout and dispatch of a case, arguments replaced by ``change``."""
    topk = case.topk[rank.rank]
    counts, index = await umdk.get_dispatch_layout(topk, case.experts, case.ranks)
    call = {
        "x": values_of(case, rank.rank),
        "topk_idx": topk,
        "topk_weights": case.weights[rank.rank],
        "num_tokens_per_expert": counts,
        "send_token_idx_small": index,
        "group_ep": rank.world.group_ep,
        "rank": rank.rank,
        "num_ranks": case.ranks,
        "use_quant": quant,
    }
    return await umdk.moe_dispatch_prefill(**{**call, **change})


async def combined(rank: Rank, case: golden_prefill.Case, got: Any, /, **change: Any) -> Any:
    """Combine what dispatch gave, experts being the identity."""
    recv_x, scales, expand_idx, recv_count, _ = got
    rows = recv_x
    if recv_x.dtype == np.int8:
        with np.errstate(all="ignore"):  # the row of nothing received
            rows = (recv_x.astype(np.float32) * scales[:, None]).astype(BF16)
    call = {
        "x": rows,
        "topk_idx": case.topk[rank.rank],
        "topk_weights": case.weights[rank.rank],
        "src_idx": expand_idx,
        "send_head": recv_count,
        "group_ep": rank.world.group_ep,
        "rank": rank.rank,
        "num_ranks": case.ranks,
    }
    return await umdk.moe_combine_prefill(**{**call, **change})


def identity(case: golden_prefill.Case, rank: int) -> Any:
    """uint16 patterns of x times the sum over k of the weights, as float32 products and sums."""
    total = np.zeros(case.x[rank].shape, np.float32)
    for k in range(case.top_k):
        total = total + case.weights[rank][:, k : k + 1] * case.x[rank]
    return golden_prefill.to_half(total, case.half)


def check_prefill(case: golden_prefill.Case, rank: int, quant: bool, got: Any, out: Any) -> None:
    """Outputs of both functions on a rank."""
    recv_x, scales, expand_idx, recv_count, per_expert = got
    rows, expect_scales, triples = golden_prefill.dispatched(case, rank, quant)
    told = golden_prefill.notified(case, rank)
    count = len(rows)
    assert recv_x.shape == (max(count, 1), case.hidden) and recv_x.dtype == (np.int8 if quant else BF16)
    assert expand_idx.shape == (3 * max(count, 1),) and scales.shape == (max(count, 1),)
    assert np.array_equal(recv_x[:count] if quant else recv_x[:count].view(np.uint16), rows)
    assert np.array_equal(expand_idx[: 3 * count].reshape(-1, 3), triples)
    if quant:
        assert np.array_equal(scales[:count], np.asarray(expect_scales, np.float32))
    assert np.array_equal(recv_count, told["recv_count"]) and recv_count.dtype == np.int32
    assert np.array_equal(per_expert, told["recv_tokens_per_expert"]) and per_expert.dtype == np.int64
    assert out.dtype == BF16 and out.shape == case.x[rank].shape
    if quant:
        expect = case.x[rank] * case.weights[rank].sum(axis=1, keepdims=True)
        # the vendor's measure and limit (operators page, section 8)
        assert golden_prefill.calc_diff(out.astype(np.float64), expect) < 5e-5
    else:
        assert np.array_equal(out.view(np.uint16), identity(case, rank))


@pytest.mark.parametrize("quant", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_prefill(mode: str, quant: bool) -> None:
    """Two ragged layers; in the second one all goes to one expert, so three ranks receive nothing."""
    cases = [
        make_case(5, 4, 8, 4, (5, 16, 9, 7), 1024),
        make_case(6, 4, 8, 4, (3, 1, 16, 2), 1024, route=lambda rng, rank, tokens: np.full((tokens, 4), 5)),
    ]

    async def program(rank: Rank) -> Any:
        results = []
        for case in cases:
            got = await dispatched(rank, case, quant)
            results.append((got, await combined(rank, case, got)))
        return results

    returns, _ = run(world_of(mode, 4), program)
    for number, case in enumerate(cases):
        for rank in range(4):
            check_prefill(case, rank, quant, *returns[rank][number])


# ---- refusals
CASE = make_case(7, 2, 4, 2, (3, 4), 1024)
ONES = np.ones((3, 1024), BF16)
X_NAN = ONES.copy()
X_NAN[2, 7] = np.nan
TOPK = CASE.topk[0]
MINUS = TOPK.copy()
MINUS[1, 0] = -1
COUNTS = np.bincount(TOPK.ravel(), minlength=4).astype(np.int32)
EMPTY: dict[str, Any] = {
    "x": ONES[:0],
    "topk_idx": TOPK[:0],
    "topk_weights": np.ones((0, 2), np.float32),
    "send_token_idx_small": np.zeros((0, 2), np.int32),
    "num_tokens_per_expert": np.zeros(4, np.int32),
}
DISPATCH_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"x": ONES[0]}, "Assertion error: x.dim() == 2"),
    ({"num_ranks": 1}, "Assertion error: num_ranks >= 2 && num_ranks <= 384"),
    ({"group_ep": "nobody"}, "EZ9999: group: no rank 0 in group 'nobody'"),
    ({"rank": 2}, "EZ9999: group: no rank 2 in group"),
    ({"num_ranks": 4}, "EZ9999: moe_dispatch_normal: the group has 2 ranks, not 4."),
    (EMPTY, "EZ9999: notify_dispatch: numTokens must > 0, but got 0."),
    ({"x": X_NAN}, "EZ9999: moe_dispatch_normal: x holds NaN or infinity."),
    ({"topk_weights": np.full((3, 2), np.inf, np.float32)}, "topkWeights holds NaN or infinity."),
    ({"topk_idx": MINUS}, "EZ9999: moe_dispatch_normal: expertIds holds -1, only support [0, 4)."),
    ({"x": ONES.astype(np.float32)}, "x datatype must be bfloat16 or float16, but got float32."),
    ({"x": np.ones((3, 512), BF16)}, "h is invalid, only support [1024, 7168], but got h=512."),
    ({"num_tokens_per_expert": COUNTS[::-1].copy()}, "do not give every slot a staging row of its own."),
    ({"topk_idx": np.zeros((3, 3), np.int64)}, "sendTokenIdx must have shape (3, 3), but got (3, 2)."),
]
COMBINE_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"x": ONES[0]}, "Assertion error: x.dim() == 2"),
    ({"topk_idx": MINUS}, "EZ9999: moe_combine_normal: topkIdx holds -1, only support [0, 4)."),
    ({"topk_weights": np.ones((3, 2))}, "recvTopkWeights datatype must be float32, but got float64."),
    ({"send_head": np.full(4, 99, np.int32)}, "epSendCounts ends at 99, recvX has"),
    ({"src_idx": np.full(300, 9, np.int32)}, "tokenSrcInfo of row 0 is (9, 9, 9): no (rank, token, k)."),
    ({"num_ranks": 4}, "EZ9999: moe_combine_normal: the group has 2 ranks, not 4."),
    ({"group_ep": "n" * 128}, "groupEp length must be in [1, 127], but got length 128."),
]


def snapshot(rank: Rank) -> Any:
    """All that a call can change on a rank: words, flags and first rows of its memory."""
    window_parts = ((0, 1 << 20), (104 << 20, 1 << 20), (204 << 20, 1 << 20), (208 << 20, 1 << 20))
    if rank.pe is None:
        own = rank.windows[rank.rank]
        memory = [own.exp.tobytes(), *(own.win[at : at + size].tobytes() for at, size in window_parts)]
    else:
        layout = rank.layout
        view = rank.pe.view(rank.pe.heap_base, layout.total)
        parts = ((0, layout.win), (layout.stage, 1 << 16), (layout.landing, 1 << 16))
        parts += tuple((layout.win + at, size) for at, size in window_parts)
        memory = [view[at : at + size].tobytes() for at, size in parts]
    return memory, dict(rank.calls), dict(rank.bases), repr(rank.state), rank.combine_due, rank.world.family


async def refusal(rank: Rank, call: Any) -> str:
    """The text of what ``call`` raises; nothing has changed."""
    before = snapshot(rank)
    with pytest.raises((OperatorError, TorchBindError)) as error:
        await call
    assert snapshot(rank) == before, str(error.value)
    return str(error.value)


@pytest.mark.parametrize("mode", MODES)
def test_refused_dispatch(mode: str) -> None:
    """Rank 0 has every call refused; nothing was posted, and the layer that follows is right."""

    async def refused_only(rank: Rank) -> Any:
        if rank.rank:
            return []
        texts = [
            await refusal(rank, dispatched(rank, CASE, True, **change)) for change, _ in DISPATCH_REFUSED
        ]
        return texts

    async def program(rank: Rank) -> Any:
        texts = await refused_only(rank)
        got = await dispatched(rank, CASE, False)
        return texts, got, await combined(rank, CASE, got)

    world = world_of(mode, 2)
    returns, result = run(world, refused_only)
    assert world.family is None and (result is None or result.posts == 0)
    for text, (_, expected) in zip(returns[0], DISPATCH_REFUSED, strict=True):
        assert expected in text
    returns, _ = run(world_of(mode, 2), program)
    for rank in range(2):
        check_prefill(CASE, rank, False, *returns[rank][1:])


@pytest.mark.parametrize("mode", MODES)
def test_refused_combine(mode: str) -> None:
    """Refused combines between dispatch and combine change nothing; a second combine is refused."""

    async def program(rank: Rank) -> Any:
        with pytest.raises(OperatorError, match="combine needs a dispatch since the last combine"):
            await combined(
                rank,
                CASE,
                (np.ones((1, 1024), BF16), None, np.zeros(3, np.int32), np.zeros(4, np.int32), None),
            )
        got = await dispatched(rank, CASE, False)
        await rank.barrier()  # nobody's flags are on their way while memory is compared
        texts = []
        if rank.rank == 0:
            texts = [
                await refusal(rank, combined(rank, CASE, got, **change)) for change, _ in COMBINE_REFUSED
            ]
        await rank.barrier()
        out = await combined(rank, CASE, got)
        await rank.barrier()
        again = await refusal(rank, combined(rank, CASE, got))
        return texts, got, out, again

    returns, _ = run(world_of(mode, 2), program)
    for text, (_, expected) in zip(returns[0][0], COMBINE_REFUSED, strict=True):
        assert expected in text
    for rank in range(2):
        check_prefill(CASE, rank, False, *returns[rank][1:3])
        assert returns[rank][3].endswith(
            "moe_combine_normal: combine needs a dispatch since the last combine"
        )


@pytest.mark.parametrize("mode", MODES)
def test_window_too_small_for_the_largest_batch(mode: str) -> None:
    """The rank that has it refuses before it posts anything, so the others never get beyond notify."""
    case = make_case(8, 2, 4, 4, (1, 16), 7168)
    need = 2 * (16 * 4 * (14336 + 14848) + (208 << 20))
    buffsize = need >> 20  # one MB less than needed, enough for one token
    heap = HeapLayout.prepare(buffsize, tokens=16, top_k=4, hidden=7168, rows=100, row_bytes=14848)
    text = f"maxBs=16, k=4, h=7168, needs {buffsize + 1}MB, but got HCCL_BUFFSIZE={buffsize}MB."

    async def large_one(rank: Rank) -> str:
        return await refusal(rank, dispatched(rank, case, False)) if rank.rank else ""

    returns, result = run(world_of(mode, 2, heap, buffsize), large_one)
    assert text in returns[1]
    assert result is None or result.posts == 0

    async def both(rank: Rank) -> None:
        try:
            await dispatched(rank, case, False)
        finally:
            assert rank.calls.keys() <= {"notify"} and not rank.combine_due

    with pytest.raises(OperatorError, match=text):
        run(world_of(mode, 2, heap, buffsize), both)


def test_heap_too_small_is_refused_before_notify() -> None:
    """What the own tokens need of the stage is known before anything is posted."""
    heap = HeapLayout.prepare(BUFFSIZE, tokens=3, top_k=1, hidden=1024, rows=1, row_bytes=1 << 20)

    async def program(rank: Rank) -> Any:
        return await refusal(rank, dispatched(rank, CASE, False))

    returns, result = run(world_of("flags", 2, heap), program)
    assert all("the heap was prepared for less" in text for text in returns)
    assert result is not None and result.posts == 0


# ---- fused
FUSED = golden_fused.Case(width=1024, ids="holes", masked=(4, 2, 0, 3), smooth=True, shared=True)
FUSED_INT4 = golden_fused.Case(width=1024, int4=True, shared=True, batches=(2, 3, 0, 1))


def fused_call(case: golden_fused.Case, rank: Rank, as_list: bool = False) -> dict[str, Any]:
    """A rank's call; one tensor for all experts or lists, tagged as the variant wants it."""
    args = arguments(case, rank.rank, as_list)
    call = {name: value for name, value in vars(args).items() if value is not None}
    for name in call:
        if isinstance(call[name], list):
            call[name] = call[name] if as_list else [np.stack(call[name])]
    if not case.int4:
        for name in ("gmm1_weight", "gmm2_weight"):
            call[name] = [nz(one) for one in call[name]]
            if case.shared:
                call[f"share_{name}"] = nz(call[f"share_{name}"])
    return {
        **call,
        "group_ep": rank.world.group_ep,
        "ep_rank_size": case.ranks,
        "ep_rank_id": rank.rank,
        "quant_mode": 0,
    }


def fused_world(case: golden_fused.Case, mode: str) -> World:
    """A world whose heap holds the most rows that a rank can receive."""
    rows = case.ranks * case.max_bs * min(case.top_k, case.local)
    heap = HeapLayout.prepare(
        1, tokens=case.max_bs, top_k=case.top_k, hidden=case.hidden, rows=rows, row_bytes=0
    )
    return world_of(mode, case.ranks, heap, 1)


def check_fused(case: golden_fused.Case, rank: int, result: golden_fused.Golden, got: Any) -> None:
    """Counts exactly; outputs within what exp and int8 allow (operators page, section 8)."""
    output, share, counts = got
    active = case.active(rank)
    assert np.array_equal(counts, case.counts(rank)) and counts.dtype == np.int64
    pairs = [(output[t], result.output[rank][t]) for t in range(active)]
    pairs += [(share[t], row.out) for t, row in enumerate(result.shared[rank])]
    for one, other in pairs:
        one, other = one.astype(np.float64), other.astype(np.float64)
        assert np.linalg.norm(one - other) <= 1e-2 * np.linalg.norm(other)


@pytest.mark.parametrize("case", [FUSED, FUSED_INT4], ids=["w8a8", "w4a8"])
@pytest.mark.parametrize("mode", MODES)
def test_fused(mode: str, case: golden_fused.Case) -> None:
    """Both variants, both weight styles one after the other, with every option of W8A8."""
    function = umdk.fused_deep_moe_w4a8 if case.int4 else umdk.fused_deep_moe

    async def program(rank: Rank) -> Any:
        return [await function(**fused_call(case, rank, as_list)) for as_list in (False, True)]

    returns, _ = run(fused_world(case, mode), program)
    result = golden_fused.golden(case)
    for rank in range(case.ranks):
        check_fused(case, rank, result, returns[rank][0])
        for one, other in zip(*returns[rank], strict=True):
            assert one.tobytes() == other.tobytes()


def test_positional_arguments() -> None:
    """The order of the schema."""
    names = (
        "x expert_ids gmm1_weight gmm1_weight_scale gmm2_weight gmm2_weight_scale expert_scales "
        "share_gmm1_weight share_gmm1_weight_scale share_gmm2_weight share_gmm2_weight_scale "
        "expert_smooth_scales share_smooth_scales x_active_mask group_ep ep_rank_size ep_rank_id "
        "moe_expert_num quant_mode global_bs"
    ).split()
    assert umdk.fused_deep_moe.__code__.co_varnames[:20] == tuple(names)
    assert umdk.fused_deep_moe.__code__.co_argcount == 20


FUSED_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"x": np.ones(4, BF16)}, "Assertion error: x.dim() == 2"),
    ({"expert_ids": np.zeros(4, np.int32)}, "Assertion error: expert_ids.dim() == 2"),
    ({"ep_rank_size": 0}, "EZ9999: fused_deep_moe: epRankSize must > 0."),
    ({"ep_rank_id": -1}, "EZ9999: fused_deep_moe: epRankId must < epRankSize, but got -1."),
    ({"group_ep": "nobody"}, "no rank 0 in group 'nobody'"),
    ({"global_bs": 4000}, "HCCL_BUFFSIZE is too SMALL, localExpertNum=2, globalBs=4000, h=512"),
    ({"expert_ids": np.zeros((4, 4), np.int32)}, "expertIds holds an expert twice in token 0."),
    ({"x": np.full((4, 512), np.inf, BF16)}, "x holds NaN or infinity."),
    ({"share_gmm1_weight": None}, "share weights and scales: all four or none."),
    ({"global_bs": 20}, "the heap has 3178496 bytes, 3186688 are needed"),
]


@pytest.mark.parametrize("mode", MODES)
def test_refused_fused(mode: str) -> None:
    """As `test_refused_dispatch`; windows are too small for nothing but the heap in the last case."""
    todo = FUSED_REFUSED if mode != "window" else FUSED_REFUSED[:-1]

    async def refused_only(rank: Rank) -> Any:
        if rank.rank:
            return []
        call = fused_call(FUSED, rank)
        return [await refusal(rank, umdk.fused_deep_moe(**{**call, **change})) for change, _ in todo]

    returns, result = run(fused_world(FUSED, mode), refused_only)
    assert result is None or result.posts == 0
    for text, (_, expected) in zip(returns[0], todo, strict=True):
        assert expected in text


def test_unequal_global_bs() -> None:
    """Ranks that come later are refused; `launch_check` refuses before any comes."""
    world = fused_world(FUSED, "window")

    async def program(rank: Rank) -> Any:
        call = fused_call(FUSED, rank) | {"global_bs": 16 if rank.rank < 3 else 20}
        return await umdk.fused_deep_moe(**call)

    with pytest.raises(OperatorError, match="globalBs differs"):
        world.run(program)
    check = umdk.launch_check
    with pytest.raises(OperatorError, match=r"globalBS differs across ranks: \[16, 16, 16, 20\]"):
        check(world, "fused_deep_moe", batches=(4, 3, 2, 4), global_bs=(16, 16, 16, 20))
    with pytest.raises(OperatorError, match=r"globalBS differs across ranks: \[16, 12, 8, 16\]"):
        check(world, "fused_deep_moe", batches=(4, 3, 2, 4), global_bs=(0, 0, 0, 0))
    check(world, "fused_deep_moe", batches=(4, 3, 2, 4), global_bs=(0, 16, 16, 16))
    check(world, "fused_deep_moe", batches=(0, 0, 0, 0), global_bs=(0, 0, 0, 0))
    with pytest.raises(ValueError, match="3 batches and 4 global_bs for 4 ranks"):
        check(world, "fused_deep_moe", batches=(4, 3, 2), global_bs=(0, 0, 0, 0))


def test_launch_check_of_the_heap() -> None:
    """What calls need of the heap, against what the world has."""
    world = world_of("flags", 2)
    assert world.heap is not None
    umdk.launch_check(world, "moe_dispatch_normal", heap=world.heap)
    for change, text in (
        ((512, 0), "are needed"),
        ((0, 512), "are needed"),
        ((512, -4096), "prepared for less"),
    ):
        heap = HeapLayout(
            world.heap.win_size, world.heap.stage_size + change[0], world.heap.landing_size + change[1]
        )
        with pytest.raises(OperatorError, match=text):
            umdk.launch_check(world, "moe_dispatch_normal", heap=heap)


def test_families() -> None:
    """Prefill after fused on one group is refused, and posts nothing."""
    world = world_of("window", 2)
    world.family = "fused"

    async def program(rank: Rank) -> Any:
        return await refusal(rank, dispatched(rank, CASE, False))

    returns = world.run(program)
    assert all("serves fused operators already" in text for text in returns)


def test_planted_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checks before notify, a refused dispatch has told its peers, and that is seen."""
    monkeypatch.setattr(umdk, "tile_dispatch", lambda **_: None)

    async def program(rank: Rank) -> Any:
        if rank.rank:
            return await dispatched(rank, CASE, False)
        return await refusal(rank, dispatched(rank, CASE, False, x=X_NAN))

    with pytest.raises(AssertionError):
        run(world_of("window", 2), program)
