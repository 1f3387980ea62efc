"""What the fused operator takes and gives, and where its words and rows stand (operators page 6.1, 6.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pymodel.operators.common import KB
from pymodel.operators.world import Rank

Array: TypeAlias = "NDArray[Any]"

EXP_HALF: Final = 512 * KB
"""Stride of the two halves of windowsExp (operators page 7)."""
STATE_WORDS: Final = 256 * KB
"""Offset of the "state" words of a half of windowsExp; one a core."""
DATA_STATE: Final = 900 * KB
"""Offset of the dataState words in windowsExp; one a core."""
CORE_STRIDE: Final = 128
SLOT: Final = 512
"""Stride of count status words and of combine flags, skew of a destination rank in windowsIn."""
FLAG_BYTES: Final = 32
"""Bytes of a count status word and of a combine flag."""
F32_ONE: Final = 0x3F80_0000
UNDEFINED: Final = 0xA5
"""Bytes of output elements that the operator leaves alone (programs page, section 4)."""


@dataclass(frozen=True)
class Expert:
    """Weights of one expert: ``w1`` [h, N1], ``s1`` [N1], ``w2`` [N1/2, h], ``s2`` [h].

    W4A8: packed words [h, N1/8] and [N1/2, h/8], and the compensations ``b1`` [N1], ``b2`` [h].
    """

    w1: Array
    s1: Array
    w2: Array
    s2: Array
    b1: Array | None = None
    b2: Array | None = None


@dataclass(frozen=True)
class FusedArgs:
    """Checked inputs of one rank's call, by the schema's names (operators page 1.3, 6.1, 6.6).

    ``x`` bf16 or fp16 [bs, h]; ``expert_ids`` int32 [bs, K], -1 for none; ``expert_scales`` float32 [bs, K].
    The routed weights, scales and biases have one array per local expert, in either weight style.
    ``global_bs`` 0 stands for ranks x bs. ``gmm1_bias`` to ``share_gmm2_bias``: W4A8 only.
    """

    x: Array
    expert_ids: NDArray[np.int32]
    gmm1_weight: Sequence[Array]
    gmm1_weight_scale: Sequence[Array]
    gmm2_weight: Sequence[Array]
    gmm2_weight_scale: Sequence[Array]
    expert_scales: NDArray[np.float32]
    moe_expert_num: int
    global_bs: int = 0
    share_gmm1_weight: Array | None = None
    share_gmm1_weight_scale: Array | None = None
    share_gmm2_weight: Array | None = None
    share_gmm2_weight_scale: Array | None = None
    expert_smooth_scales: Array | None = None
    share_smooth_scales: Array | None = None
    x_active_mask: Array | None = None
    gmm1_bias: Sequence[Array] | None = None
    gmm2_bias: Sequence[Array] | None = None
    share_gmm1_bias: Array | None = None
    share_gmm2_bias: Array | None = None

    @property
    def active(self) -> int:
        """Tokens that take part: trues of the mask, which come first (operators page 6.5)."""
        return self.x.shape[0] if self.x_active_mask is None else int(np.count_nonzero(self.x_active_mask))

    def expert(self, local: int) -> Expert:
        """Weights of local expert ``local``."""
        return Expert(
            _matrix(self.gmm1_weight[local]),
            self.gmm1_weight_scale[local].reshape(-1),
            _matrix(self.gmm2_weight[local]),
            self.gmm2_weight_scale[local].reshape(-1),
            None if self.gmm1_bias is None else self.gmm1_bias[local].reshape(-1),
            None if self.gmm2_bias is None else self.gmm2_bias[local].reshape(-1),
        )

    def shared(self) -> Expert | None:
        """Weights of the shared expert, None without one."""
        w1, s1 = self.share_gmm1_weight, self.share_gmm1_weight_scale
        w2, s2 = self.share_gmm2_weight, self.share_gmm2_weight_scale
        if w1 is None or s1 is None or w2 is None or s2 is None:
            return None
        b1, b2 = self.share_gmm1_bias, self.share_gmm2_bias
        return Expert(
            _matrix(w1),
            s1.reshape(-1),
            _matrix(w2),
            s2.reshape(-1),
            None if b1 is None else b1.reshape(-1),
            None if b2 is None else b2.reshape(-1),
        )


def _matrix(weight: Array) -> Array:
    """Without the leading 1 that the schema allows."""
    return weight.reshape(weight.shape[-2:])


@dataclass(frozen=True)
class Fused:
    """Outputs of one rank: ``output`` and ``share_output`` [bs, h] of x's type, counts int64 [El].

    Rows of ``output`` from the active ones on, and ``share_output`` without a shared expert, are not
    written (operators page 6.1): their bytes are `UNDEFINED`.
    """

    output: Array
    share_output: Array
    expert_token_nums: NDArray[np.int64]


class Numerics(Protocol):
    """The two products of an expert with their dequantisation: W8A8 (6.2) or W4A8 (6.6)."""

    def first(self, expert: Expert, q: NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [n, N1] of int8 rows [n, h] and their scales [n]."""
        ...

    def second(self, expert: Expert, q: NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [n, h] of int8 rows [n, N1/2] and their scales [n]."""
        ...


@dataclass(frozen=True)
class Polarity:
    """What a half's "state" word selects: value of status words and flags, and the token flag."""

    status: int
    """Bits of float32 1.0 or 0.0."""
    token: int

    @classmethod
    def of(cls, state: int) -> Polarity:
        """State 0: 1.0 and 0x55555555; otherwise 0.0 and 0x33333333 (operators page 6.4)."""
        return cls(F32_ONE, 0x5555_5555) if state == 0 else cls(0, 0x3333_3333)


@dataclass(frozen=True)
class FusedMap:
    """Offsets in windowsIn and windowsExp (operators page 6.4), the same on every rank.

    ``max_bs``: tokens of the rank with most, global_bs / ranks.
    """

    ranks: int
    experts: int
    max_bs: int
    hidden: int

    @classmethod
    def of(cls, ranks: int, args: FusedArgs) -> FusedMap:
        """That of a call."""
        tokens, hidden = args.x.shape
        return cls(ranks, args.moe_expert_num, args.global_bs // ranks or tokens, hidden)

    @property
    def local(self) -> int:
        """Experts of a rank."""
        return self.experts // self.ranks

    @property
    def deep(self) -> bool:
        """Deep-fuse path: records with token flags."""
        return self.local > 1

    @property
    def tail(self) -> int:
        """Bytes of a record behind its payload: scale, on the deep path the token flag, pad."""
        return 512 if self.deep else 128

    @property
    def record(self) -> int:
        """Stride of dispatched rows."""
        return self.hidden + self.tail

    @property
    def region(self) -> int:
        """Bytes for the rows of one (source rank, local expert)."""
        return self.max_bs * self.hidden * 2

    def rows(self, half: int, dst: int, src: int, local: int) -> int:
        """In windowsIn of ``dst``: first row between ``src`` and a local expert.

        Dispatch: ``src`` has the token and ``dst`` the expert. Combine: the other way round.
        """
        return (half * self.experts + src * self.local + local) * self.region + dst * SLOT

    def status(self, half: int, src: int, local: int) -> int:
        """In windowsExp: count status word of (source rank, local expert)."""
        return half * EXP_HALF + SLOT * (src + local * self.ranks)

    @staticmethod
    def flag(half: int, src: int) -> int:
        """In windowsExp: combine flag of a rank."""
        return half * EXP_HALF + SLOT * src

    @staticmethod
    def state(half: int) -> int:
        """In windowsExp: first of the "state" words of a half."""
        return half * EXP_HALF + STATE_WORDS


async def settle(rank: Rank, places: FusedMap) -> None:
    """Let all ranks meet where the addresses differ from those of the call before.

    With the same addresses the halves keep calls apart. With others, rows of this call go where a slower
    rank may still read rows of the call before: a larger global_bs makes the first half reach into the
    second one. All ranks see the same change, since global_bs is the same on all of them.
    """
    before = rank.state.get("fused places", places)
    rank.state["fused places"] = places
    if before != places:
        await rank.barrier()


def undefined(like: Array) -> Array:
    """An array of the shape and type of ``like`` whose bytes nobody has written."""
    out = np.empty(like.shape, like.dtype)
    out.view(np.uint8)[...] = UNDEFINED
    return out
