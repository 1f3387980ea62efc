"""A whole MoE prefill layer for runs and benchmarks: layout, dispatch, experts, combine, golden result.

The inputs are seeded, distinct per (rank, token), the weights distinct per (token, k); expert e multiplies by
a constant of its own, so an index mix-up cannot cancel out (programs page, section 6). What the ranks got
over RDMA is compared bit for bit with the same layer in window mode, and the result with a plain sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymodel.device.pe import Pe
from pymodel.operators import umdk
from pymodel.operators.common import BF16, align
from pymodel.operators.heap import HeapLayout
from pymodel.operators.world import Rank, Signalling, World


@dataclass(frozen=True)
class LayerSizes:
    """R ranks, E experts, K experts a token, tokens (all ranks, or one number each), h hidden elements."""

    ranks: int
    experts: int = 16
    top_k: int = 8
    tokens: int | Sequence[int] = 32
    hidden: int = 7168
    quant: bool = True
    hccl_buffsize: int = 512
    """MB."""

    def __post_init__(self) -> None:
        if self.ranks < 2 or self.experts % self.ranks:
            raise ValueError(f"{self.ranks} PEs cannot share {self.experts} experts: 2, 4, 8 or 16 can")

    def tokens_of(self, rank: int) -> int:
        """T of a rank."""
        return self.tokens if isinstance(self.tokens, int) else self.tokens[rank]

    @property
    def all_tokens(self) -> int:
        """T of all ranks together."""
        return sum(self.tokens_of(rank) for rank in range(self.ranks))


@dataclass(frozen=True)
class LayerInputs:
    """What rank ``rank`` starts with: x bf16[T, h], topk_idx int64[T, K], weights float32[T, K]."""

    x: NDArray[Any]
    topk_idx: NDArray[np.int64]
    weights: NDArray[np.float32]

    @classmethod
    def draw(cls, sizes: LayerSizes, seed: int, rank: int) -> LayerInputs:
        """Gaussian rows, K different experts a token, weights that are all different."""
        rng = np.random.default_rng([seed, rank, 0x4D6F45])
        tokens, top_k = sizes.tokens_of(rank), sizes.top_k
        x = rng.standard_normal((tokens, sizes.hidden)).astype(np.float32).astype(BF16)
        topk = np.argsort(rng.random((tokens, sizes.experts)), axis=1)[:, :top_k].astype(np.int64)
        steps = rng.permutation(tokens * top_k).reshape(tokens, top_k)
        return cls(x, topk, ((steps + 1) / np.float32(tokens * top_k * top_k)).astype(np.float32))


def expert_factor(expert: NDArray[np.int64] | int) -> Any:
    """The constant that expert e multiplies by: exact in bf16 and different for each."""
    return 1 + np.asarray(expert, np.float32) / 128


@dataclass(frozen=True)
class LayerResult:
    """What the layer gave on one rank; all of it defined, so all of it is compared."""

    counts: NDArray[np.int32]
    recv_x: NDArray[Any]
    scales: NDArray[np.float32] | None
    expand_idx: NDArray[np.int32]
    recv_count: NDArray[np.int32]
    per_expert: NDArray[np.int64]
    output: NDArray[Any]

    def differences(self, other: LayerResult) -> list[str]:
        """Names of the fields that are not equal bit for bit."""
        out = []
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if (mine is None) != (theirs is None):
                out.append(name)
            elif mine is not None and (mine.dtype != theirs.dtype or mine.tobytes() != theirs.tobytes()):
                out.append(name)
        return out


async def layer(rank: Rank, sizes: LayerSizes, inputs: LayerInputs) -> LayerResult:
    """One layer on one rank, in either mode."""
    group, me, ranks = rank.world.group_ep, rank.rank, sizes.ranks
    with _step(rank, "layout"):
        counts, send_idx = await umdk.get_dispatch_layout(inputs.topk_idx, sizes.experts, ranks)
    with _step(rank, "dispatch"):
        recv_x, scales, expand_idx, recv_count, per_expert = await umdk.moe_dispatch_prefill(
            inputs.x, inputs.topk_idx, inputs.weights, counts, send_idx, group, me, ranks, sizes.quant
        )
    total = int(recv_count[-1])
    with _step(rank, "experts"):
        rows = recv_x.astype(np.float32)
        if sizes.quant:
            rows *= scales[: len(rows), None]
        local = sizes.experts // ranks
        expert = me * local + np.searchsorted(recv_count, np.arange(len(rows)), side="right") // ranks
        done = (rows * expert_factor(np.minimum(expert, sizes.experts - 1))[:, None]).astype(BF16)
    with _step(rank, "combine"):
        output = await umdk.moe_combine_prefill(
            done, inputs.topk_idx, inputs.weights, expand_idx, recv_count, group, me, ranks
        )
    return LayerResult(
        counts, recv_x[:total], scales[:total] if sizes.quant else None, expand_idx[: 3 * total], recv_count,
        per_expert, output,
    )  # fmt: skip


def _step(rank: Rank, name: str) -> AbstractContextManager[None]:
    return nullcontext() if rank.pe is None else rank.pe.step(name)


@dataclass
class PrefillLayer:
    """A layer as a device program: `fabric` for the run, `main` for each PE, golden results beside them."""

    sizes: LayerSizes
    signalling: Signalling = "flags"
    seed: int = 0
    layers: int = 1
    """How often; consecutive layers use both halves of the windows."""
    world_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s = self.sizes
        most = max(s.tokens_of(rank) for rank in range(s.ranks))
        row = align(align(s.hidden * (1 if s.quant else 2), 32) + 44, 512)
        rows = s.all_tokens * min(s.top_k, s.experts // s.ranks)
        heap = HeapLayout.prepare(
            s.hccl_buffsize, tokens=most, top_k=s.top_k, hidden=s.hidden, rows=rows, row_bytes=row
        )
        options = {"seed": self.seed, "hccl_buffsize": s.hccl_buffsize, **self.world_options}
        self.world = World(s.ranks, "shmem", signalling=self.signalling, heap=heap, **options)
        self.inputs = [
            [LayerInputs.draw(s, self.seed + 1000 * number, rank) for rank in range(s.ranks)]
            for number in range(self.layers)
        ]
        self._golden: list[list[LayerResult]] | None = None

    @property
    def golden(self) -> list[list[LayerResult]]:
        """Results of the layers in window mode, by rank, then layer."""
        if self._golden is None:
            window = World(self.sizes.ranks, "window", hccl_buffsize=self.sizes.hccl_buffsize, seed=self.seed)
            self._golden = window.run(self.program)
        return self._golden

    async def program(self, rank: Rank) -> list[LayerResult]:
        """All layers on one rank."""
        return [await layer(rank, self.sizes, inputs[rank.rank]) for inputs in self.inputs]

    async def main(self, pe: Pe) -> list[LayerResult]:
        """The device program: bind, run, compare. Raises AssertionError that names rank, layer and fields."""
        rank = self.world.bind(pe)
        results = await self.program(rank)
        for number, (got, want) in enumerate(zip(results, self.golden[pe.rank], strict=True)):
            wrong = got.differences(want)
            assert not wrong, f"rank {pe.rank}, layer {number}: {', '.join(wrong)} not as in window mode"
            self._check_sum(pe.rank, number, got)
            pe.count("tokens", self.sizes.tokens_of(pe.rank))
        return results

    def _check_sum(self, rank: int, number: int, got: LayerResult) -> None:
        """The output is x times the sum over k of weight and the expert's factor, within the rounding.

        bf16 has 8 bits: half a unit for each expert's row and for the output; int8 quantisation adds half a
        step of the row's maximum.
        """
        inputs = self.inputs[number][rank]
        x = inputs.x.astype(np.float64)
        factor = inputs.weights.astype(np.float64) * expert_factor(inputs.topk_idx)
        want = x * factor.sum(axis=1)[:, None]
        step = np.abs(x).max(axis=1, keepdims=True) / 254 if self.sizes.quant else 0.0
        bound = (step + np.abs(x) / 256) * factor.sum(axis=1)[:, None] + np.abs(want) / 256 + 1e-6
        worst = float((np.abs(got.output.astype(np.float64) - want) / bound).max(initial=0))
        assert worst <= 1.01, f"rank {rank}, layer {number}: output {worst:.2f} times its rounding away"
