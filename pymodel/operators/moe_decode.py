"""A fused MoE decode step for runs and benchmarks: dispatch, experts and combine in one call, golden result.

Rows are seeded and Gaussian, distinct per (rank, token), combine weights distinct per (token, k), weights of
an expert from (seed, expert) (programs page, section 6). What the ranks got over RDMA is compared bit for bit
with the same calls in window mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymodel.device.pe import Pe
from pymodel.operators import umdk
from pymodel.operators.checks import nz
from pymodel.operators.checks_fused import fused_window, max_rows
from pymodel.operators.common import BF16, MB
from pymodel.operators.heap import HeapLayout
from pymodel.operators.world import Rank, Signalling, World


@dataclass(frozen=True)
class DecodeSizes:
    """R ranks, E experts, K a token, bs of every rank (or one each), h hidden, N1 of the first product."""

    ranks: int
    experts: int = 16
    top_k: int = 8
    batch: int | Sequence[int] = 16
    hidden: int = 7168
    inner: int = 4096
    skip: bool = False
    """Some expert ids are -1, and the last token of each rank is masked."""

    def __post_init__(self) -> None:
        if self.ranks < 2 or self.experts % self.ranks:
            raise ValueError(f"{self.ranks} PEs cannot share {self.experts} experts: 2, 4, 8 or 16 can")

    def batch_of(self, rank: int) -> int:
        """bs of a rank."""
        return self.batch if isinstance(self.batch, int) else self.batch[rank]

    @property
    def global_bs(self) -> int:
        """R times the largest batch."""
        return self.ranks * max(self.batch_of(rank) for rank in range(self.ranks))


@dataclass(frozen=True)
class DecodeInputs:
    """x bf16[bs, h], expert_ids int32[bs, K], expert_scales float32[bs, K], mask bool[bs] or None."""

    x: NDArray[Any]
    expert_ids: NDArray[np.int32]
    scales: NDArray[np.float32]
    mask: NDArray[np.bool_] | None

    @classmethod
    def draw(cls, sizes: DecodeSizes, seed: int, rank: int) -> DecodeInputs:
        """K different experts a token."""
        rng = np.random.default_rng([seed, rank, 0xDEC0DE])
        batch, top_k = sizes.batch_of(rank), sizes.top_k
        x = rng.standard_normal((batch, sizes.hidden)).astype(np.float32).astype(BF16)
        ids = np.argsort(rng.random((batch, sizes.experts)), axis=1)[:, :top_k].astype(np.int32)
        order = rng.permutation(batch * top_k).reshape(batch, top_k)
        scales = ((order + 1) / np.float32(max(1, batch * top_k * top_k))).astype(np.float32)
        mask = None
        if sizes.skip:
            ids[rng.random((batch, top_k)) < 0.2] = -1
            mask = np.arange(batch) < batch - 1
        return cls(x, ids, scales, mask)


@dataclass
class DecodeLayer:
    """Fused calls as a device program: `world.fabric` for the run, `main` for each PE, golden results."""

    sizes: DecodeSizes
    signalling: Signalling = "flags"
    seed: int = 0
    layers: int = 1
    world_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s = self.sizes
        local = s.experts // s.ranks
        window = -(-fused_window(local, s.global_bs, s.hidden, s.ranks) // MB)
        heap = HeapLayout.prepare(
            window, tokens=s.global_bs // s.ranks, top_k=s.top_k, hidden=s.hidden,
            rows=max_rows(s.global_bs, s.top_k, local), row_bytes=0,
        )  # fmt: skip
        self.buffsize = window
        options = {"seed": self.seed, "hccl_buffsize": window, **self.world_options}
        self.world = World(s.ranks, "shmem", signalling=self.signalling, heap=heap, **options)
        self.inputs = [
            [DecodeInputs.draw(s, self.seed + 1000 * number, rank) for rank in range(s.ranks)]
            for number in range(self.layers)
        ]
        self._weights: dict[int, tuple[list[NDArray[Any]], ...]] = {}

    def weights(self, rank: int) -> tuple[list[NDArray[Any]], ...]:
        """gmm1_weight, gmm1_weight_scale, gmm2_weight, gmm2_weight_scale of a rank, a list of El each."""
        if rank not in self._weights:
            s, local = self.sizes, self.sizes.experts // self.sizes.ranks
            out: tuple[list[NDArray[Any]], ...] = ([], [], [], [])
            for expert in range(rank * local, (rank + 1) * local):
                rng = np.random.default_rng([self.seed, expert, 0x3E19])
                out[0].append(nz(rng.integers(-16, 16, (s.hidden, s.inner), np.int8)))
                out[1].append(rng.uniform(0.0015, 0.0045, s.inner).astype(np.float32))
                out[2].append(nz(rng.integers(-16, 16, (s.inner // 2, s.hidden), np.int8)))
                out[3].append(rng.uniform(0.0015, 0.0045, s.hidden).astype(np.float32))
            self._weights[rank] = out
        return self._weights[rank]

    @cached_property
    def golden(self) -> list[list[tuple[NDArray[Any], NDArray[np.int64]]]]:
        """Results of the calls in window mode, by rank, then call."""
        window = World(self.sizes.ranks, "window", hccl_buffsize=self.buffsize, seed=self.seed)
        result: list[list[tuple[NDArray[Any], NDArray[np.int64]]]] = window.run(self.program)
        return result

    async def program(self, rank: Rank) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
        """All calls on one rank: (active rows of the output, expert_token_nums) of each."""
        s = self.sizes
        w1, s1, w2, s2 = self.weights(rank.rank)
        results = []
        for inputs in self.inputs:
            mine = inputs[rank.rank]
            output, _, counts = await umdk.fused_deep_moe(
                mine.x, mine.expert_ids, w1, s1, w2, s2, mine.scales, x_active_mask=mine.mask,
                group_ep=rank.world.group_ep, ep_rank_size=s.ranks, ep_rank_id=rank.rank,
                moe_expert_num=s.experts, global_bs=s.global_bs,
            )  # fmt: skip
            active = len(mine.x) if mine.mask is None else int(mine.mask.sum())
            results.append((output[:active].copy(), counts))
        return results

    async def main(self, pe: Pe) -> None:
        """The device program: bind, run, compare. Raises AssertionError that names rank and call."""
        results = await self.program(self.world.bind(pe))
        for number, (got, want) in enumerate(zip(results, self.golden[pe.rank], strict=True)):
            assert got[0].tobytes() == want[0].tobytes(), f"rank {pe.rank}, call {number}: output"
            assert got[1].tobytes() == want[1].tobytes(), f"rank {pe.rank}, call {number}: expert_token_nums"
            assert got[0].astype(np.float32).any() or not len(got[0]), f"rank {pe.rank}, call {number}: all 0"
            pe.count("tokens", len(got[0]))
