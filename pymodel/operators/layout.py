"""dispatch_layout: a local count of where the tokens go (operators page, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Layout:
    """What dispatch_layout gives for T tokens with K experts each, E experts on R ranks."""

    num_tokens_per_rank: NDArray[np.int32]
    """int32[R]: tokens with at least one expert on the rank."""
    num_tokens_per_expert: NDArray[np.int32]
    """int32[E]: slots (t, k) of the expert; duplicates within a token count."""
    is_token_in_rank: NDArray[np.int32]
    """int32[T, R]: 1 where a token has an expert on the rank."""
    send_token_idx: NDArray[np.int32]
    """int32[T, K]: earlier flat slots of this rank with the same expert."""


def dispatch_layout(topk_idx: NDArray[np.int64], num_experts: int, num_ranks: int) -> Layout:
    """Count and number the slots of ``topk_idx`` int64[T, K], values 0 to ``num_experts`` - 1.

    Expert e lives on rank e // (num_experts // num_ranks). The host layer has refused what is out of range.
    """
    tokens = topk_idx.shape[0]
    flat = topk_idx.ravel()
    counts = np.bincount(flat, minlength=num_experts)
    # in a stable sort the slots of an expert stand together, in arrival order
    order = np.argsort(flat, kind="stable")
    first = np.cumsum(counts) - counts
    arrival = np.empty(flat.size, np.int32)
    arrival[order] = np.arange(flat.size) - first[flat[order]]
    in_rank = np.zeros((tokens, num_ranks), np.int32)
    in_rank[np.arange(tokens)[:, None], topk_idx // (num_experts // num_ranks)] = 1
    return Layout(
        in_rank.sum(axis=0, dtype=np.int32),
        counts.astype(np.int32),
        in_rank,
        arrival.reshape(topk_idx.shape),
    )
