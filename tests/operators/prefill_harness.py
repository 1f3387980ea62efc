"""Runs prefill (notify, dispatch, experts, combine) on a world of ranks and compares it with the golden.

Inputs are Gaussian and distinct per (rank, token), weights distinct per (token, k); expert e multiplies its
rows by a constant of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from pymodel.host.table import Fabric
from pymodel.operators import prefill_shmem, prefill_window
from pymodel.operators.common import BF16, FP16
from pymodel.operators.heap import HeapLayout
from pymodel.operators.layout import dispatch_layout
from pymodel.operators.prefill_rows import row_stride, staging_offset
from pymodel.operators.prefill_types import Dispatched, Notified
from pymodel.operators.world import Rank, World
from pymodel.platform import Observer, PostInfo
from pymodel.run import ModelRun, RunResult
from pymodel.runner import Task
from tests.operators import golden_prefill as golden
from tests.operators.golden_prefill import Case

DTYPES = {"bf16": BF16, "fp16": FP16}
UNDEFINED = 0xA5


def make_case(
    seed: int,
    ranks: int,
    experts: int,
    top_k: int,
    tokens: Sequence[int],
    hidden: int = 64,
    half: str = "bf16",
    route: Callable[[np.random.Generator, int, int], Any] | None = None,
) -> Case:
    """A case, ``tokens[r]`` tokens on rank r; ``route(rng, rank, tokens)`` gives topk (default: distinct)."""
    rng = np.random.default_rng(seed)
    x, topk, weights = [], [], []
    for rank, count in enumerate(tokens):
        values = rng.standard_normal((count, hidden)) * (rank + 1)
        x.append(golden.from_half(golden.to_half(values, half), half))
        if route is not None:
            chosen = route(rng, rank, count)
        elif top_k <= experts:
            chosen = np.array([rng.permutation(experts)[:top_k] for _ in range(count)])
        else:
            chosen = rng.integers(0, experts, (count, top_k))
        topk.append(np.asarray(chosen, np.int64).reshape(count, top_k))
        weights.append(rng.random((count, top_k), np.float32))
    assert len(tokens) == ranks
    return Case(experts, x, topk, weights, half)


def all_to_one(top_k: int, expert: int) -> Callable[[np.random.Generator, int, int], Any]:
    """Every slot of every token goes to one expert: duplicates within a token."""
    return lambda rng, rank, tokens: np.full((tokens, top_k), expert)


@dataclass
class Outputs:
    """What a rank has after one call of each operator."""

    notified: Notified
    dispatched: Dispatched
    combined: Any


@dataclass
class Counted(Observer):
    """Posts by (rank, operator, opcode); ``phase`` is what each rank is in."""

    phase: dict[int, str] = field(default_factory=dict)
    posts: Counter[tuple[int, str, str]] = field(default_factory=Counter)

    def posted(self, post: PostInfo, task: Task) -> None:
        self.posts[post.pe, self.phase.get(post.pe, ""), post.opcode] += 1


def experts_of(case: Case, rank: int, got: Dispatched, counts: Any, quant: bool) -> Any:
    """The experts' rows from the received ones, in x's type."""
    factor = np.zeros(got.recv_x.shape[0], np.float32)
    starts = np.concatenate(([0], counts))
    for le in range(case.local):
        lo, hi = starts[le * case.ranks], starts[(le + 1) * case.ranks]
        factor[lo:hi] = golden.constant(rank * case.local + le)
    rows = got.recv_x.astype(np.float32)
    if quant:
        rows = rows * got.scales[:, None]
    # what is received where nothing is (0xA5) means nothing
    with np.errstate(all="ignore"):
        return (rows * factor[:, None]).astype(DTYPES[case.half])


def told_by_golden(case: Case, rank: int) -> Notified:
    """What notify gives, without a notify: for calls of dispatch alone."""
    told = golden.notified(case, rank)
    for name in ("send_data", "send_data_offset", "recv_data", "recv_count", "recv_offset"):
        told[name] = np.array(told[name], np.int32)
    return Notified(**told)


async def dispatch(kernels: ModuleType, rank: Rank, case: Case, told: Notified, quant: bool) -> Dispatched:
    """One call of dispatch on one rank."""
    topk = case.topk[rank.rank]
    return await kernels.dispatch(  # type: ignore[no-any-return]
        rank,
        golden.to_half(case.x[rank.rank], case.half).view(DTYPES[case.half]),
        topk.astype(np.int32),
        told.send_data_offset,
        dispatch_layout(topk, case.experts, case.ranks).send_token_idx,
        told.recv_offset,
        told.recv_count,
        quant=quant,
        max_bs=told.max_bs,
    )


async def layer(
    kernels: ModuleType, rank: Rank, case: Case, quant: bool, counted: Counted | None = None
) -> Outputs:
    """notify, dispatch, experts, combine of ``case`` on one rank."""
    phase = {} if counted is None else counted.phase
    me = rank.rank
    topk = case.topk[me]
    phase[me] = "notify"
    counts = dispatch_layout(topk, case.experts, case.ranks).num_tokens_per_expert
    told = await kernels.notify(rank, counts, len(topk))
    phase[me] = "dispatch"
    got = await dispatch(kernels, rank, case, told, quant)
    made = experts_of(case, me, got, told.recv_count, quant)
    phase[me] = "combine"
    out = await kernels.combine(
        rank,
        made,
        got.expand_idx,
        told.recv_count,
        case.weights[me],
        tokens=len(topk),
        max_bs=told.max_bs,
    )
    phase[me] = ""
    return Outputs(told, got, out)


def window_mb(cases: Sequence[Case]) -> int:
    """MB of a window that all calls fit in."""
    most = 0
    for case in cases:
        bs, k, h = max(map(len, case.x)), case.top_k, case.hidden
        half = staging_offset(0, 0, bs, k, h, 2) + bs * k * row_stride(h, 2)
        most = max(most, half)
    return 2 * (-(-most // (1 << 20)))


def make_world(
    cases: Sequence[Case], mode: str, seed: int = 0, *, hccl_buffsize: int | None = None, **options: Any
) -> World:
    """A world in which ``cases`` can run."""
    size = hccl_buffsize or window_mb(cases)
    heap = None
    if mode == "shmem":
        heap = HeapLayout.prepare(
            size,
            tokens=max(len(x) for case in cases for x in case.x),
            top_k=max(case.top_k for case in cases),
            hidden=max(case.hidden for case in cases),
            rows=max(golden.notified(c, r)["total_recv_tokens"] for c in cases for r in range(c.ranks)),
            row_bytes=row_stride(max(case.hidden for case in cases), 2),
        )
    return World(cases[0].ranks, mode, hccl_buffsize=size, heap=heap, seed=seed, **options)  # type: ignore[arg-type]


Program = Callable[[Rank], Any]


def run_shmem(
    world: World, program: Program, *, sanitize: bool = True, observers: Sequence[Observer] = ()
) -> RunResult:
    """Run a program on all ranks over the golden NICs, whatever comes of it."""
    run = ModelRun(
        Fabric.build(world.fabric()),
        lambda pe: program(world.bind(pe)),
        world.schedule,
        seed=world.seed,
        options=world.options,
        sanitize=sanitize,
        observers=observers,
        hang_after=200_000,
    )
    return run.run()


def run_layers(
    cases: Sequence[Case], mode: str, quant: bool, seed: int = 0, **options: Any
) -> tuple[list[list[Outputs]], Counted]:
    """Outputs [rank][call] of consecutive layers, no barrier between, and the posts. Asserts a good run."""
    counted = Counted()
    world = make_world(cases, mode, seed, **options)
    kernels = prefill_shmem if mode == "shmem" else prefill_window

    async def program(rank: Rank) -> list[Outputs]:
        return [await layer(kernels, rank, case, quant, counted) for case in cases]

    if mode == "window":
        return world.run(program), counted
    result = run_shmem(world, program, observers=[counted])
    assert result.good, "\n".join(result.problems)
    return result.returns, counted


def same(name: str, got: Any, expected: Any, dtype: Any) -> None:
    """Equal element by element, with this type."""
    assert got.dtype == dtype, f"{name} has the type {got.dtype}"
    expected = np.asarray(expected)
    assert got.shape == expected.shape, f"{name} has the shape {got.shape}, not {expected.shape}"
    wrong = np.argwhere(got != expected)
    assert not wrong.size, (
        f"{name}{wrong[0].tolist()} differs: {got[tuple(wrong[0])]}, golden {expected[tuple(wrong[0])]}"
    )


def check_notified(case: Case, rank: int, told: Notified) -> None:
    """All outputs of notify on a rank against the golden."""
    expected = golden.notified(case, rank)
    for name in ("send_data", "send_data_offset", "recv_data", "recv_count", "recv_offset"):
        same(name, getattr(told, name), expected[name], np.int32)
    same("recv_tokens_per_expert", told.recv_tokens_per_expert, expected["recv_tokens_per_expert"], np.int64)
    assert (told.total_recv_tokens, told.max_bs) == (expected["total_recv_tokens"], expected["max_bs"])


def check_dispatched(case: Case, rank: int, quant: bool, got: Dispatched) -> None:
    """All outputs of dispatch on a rank against the golden; what is undefined holds 0xA5."""
    rows, scales, triples = golden.dispatched(case, rank, quant)
    count = len(rows)
    size = max(count, 1)
    assert got.recv_x.shape == (size, case.hidden) and got.recv_x.flags.c_contiguous
    assert got.recv_x.dtype == (np.int8 if quant else DTYPES[case.half])
    received = got.recv_x if quant else got.recv_x.view(np.uint16)
    same("recv_x", received[:count], rows, np.int8 if quant else np.uint16)
    assert got.expand_idx.shape == (3 * size,)
    same("expand_idx", got.expand_idx[: 3 * count].reshape(-1, 3), triples, np.int32)
    assert got.scales.shape == (size,) and got.scales.dtype == np.float32
    if quant and count:
        same("scales", got.scales, scales, np.float32)
    else:
        assert set(got.scales.view(np.uint8).tolist()) == {UNDEFINED}
    if not count:
        assert set(got.recv_x.view(np.uint8).ravel().tolist()) == {UNDEFINED}
        assert set(got.expand_idx.view(np.uint8).tolist()) == {UNDEFINED}


def check_layers(cases: Sequence[Case], quant: bool, outputs: Sequence[Sequence[Outputs]]) -> None:
    """Every call of every rank."""
    for number, case in enumerate(cases):
        made = [golden.expert_rows(case, rank, quant) for rank in range(case.ranks)]
        for rank in range(case.ranks):
            out = outputs[rank][number]
            check_notified(case, rank, out.notified)
            check_dispatched(case, rank, quant, out.dispatched)
            assert out.combined.dtype == DTYPES[case.half]
            same("combined", out.combined.view(np.uint16), golden.combined(case, made, rank), np.uint16)


def check_posts(cases: Sequence[Case], atomics: bool, counted: Counted) -> None:
    """WQEs by rank, operator and opcode equal the closed form."""
    expected: Counter[tuple[int, str, str]] = Counter()
    for case in cases:
        for rank in range(case.ranks):
            for operator, opcodes in golden.posts(case, rank, atomics).items():
                for opcode, number in opcodes.items():
                    expected[rank, operator, opcode] += number
    got = +counted.posts
    wrong = {key: (got[key], expected[key]) for key in got | expected if got[key] != expected[key]}
    assert not wrong, f"WQEs (posted, of the closed form): {wrong}"
