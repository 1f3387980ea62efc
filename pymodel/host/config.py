"""What a fabric is to be: sizes, choices, driver generations, and the layout of the heap's sync area."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from pymodel.generation import Generation
from pymodel.nic.params import DEFAULT_PARAMS, Params

HEAP_SYNC_BYTES: Final = 1 << 20
"""Sync and signal area at the start of the heap (programs page, section 2); `Pe.alloc` starts behind it."""
SYNC_SLOT_BYTES: Final = 64
"""One slot of a sync pool: of one source PE (programs page, section 7)."""
SYNC_TEAM_BYTES: Final = 2048
"""One team's part of the sync area: its pool of 16 slots, then its counter."""
SYNC_COUNTER_OFFSET: Final = 1024
"""Of a team's barrier counter within its part."""
MAX_TEAMS: Final = 32
SIGNAL_OFFSET: Final = MAX_TEAMS * SYNC_TEAM_BYTES
"""Heap offset of the words that signals are sent from, 64 bytes per target PE."""
MAX_HEAP_BYTES: Final = 1 << 36
"""Of one PE; far below the windows that heaps are placed in."""
MAX_QPS: Final = 32
"""QPs to one peer that the device API reaches (device page 5.1); the NIC itself does not care."""


@dataclass(frozen=True)
class FabricConfig:
    """What to build. A sequence offers choices; each QP (MTU: each pair) draws one with the seed.

    ``start``: free-running indices and PSNs start at 0 ("zero"), close before a wrap ("wraps") or anywhere
    ("random"). ``cq_factors``: CQ depth over SQ depth. ``cq_fill``: content of the CQ rings; 0xFF stands
    for "owner bits so that no slot is valid" (device page 2.3), 0x00 is the negative test of device page
    8.1 row 7. ``sq_fill``: "dirty" leaves random bytes in the SQ slots, ``ub_fill``: in the UB scratch that
    the driver of G2 and G3 stages WQEs in (device page 1.6). ``generation``: of the driver, one for all PEs
    or one each. ``ignore_overrun``: every CQE of every QP goes to slot 0 (device page 2.6, G3 only).
    ``overrides``: fields of single QPs by (pe, peer, qp_idx). Raises ValueError for what no NIC accepts.
    """

    n_pes: int = 2
    qps: int = 1
    seed: int = 0
    heap_bytes: int = 16 << 20
    versions: Sequence[int] = (2,)
    mtus: Sequence[int] = (4096,)
    sq_depths: Sequence[int] = (64,)
    cq_factors: Sequence[int] = (1,)
    strides: Sequence[int] = (64,)
    sls: Sequence[int] = (4,)
    start: Literal["zero", "wraps", "random"] = "zero"
    sq_fill: Literal["zero", "dirty"] = "zero"
    ub_fill: Literal["zero", "dirty"] = "zero"
    cq_fill: int = 0xFF
    high_addresses: bool = False
    cq_wait: int = 0
    generation: Generation | Sequence[Generation] = Generation.G1
    ignore_overrun: bool = False
    overrides: Mapping[tuple[int, int, int], Mapping[str, Any]] = field(default_factory=dict)
    params: Params = DEFAULT_PARAMS

    def __post_init__(self) -> None:
        if not 1 <= self.n_pes <= 16:
            raise ValueError(f"{self.n_pes} PEs: a fabric has 1 to 16")
        if self.qps < 1:
            raise ValueError(f"{self.qps} QPs per peer: at least 1")
        if self.qps * (self.n_pes - 1) > self.params.num_qp:
            raise ValueError(
                f"{self.qps} QPs to each of {self.n_pes - 1} peers: a NIC has {self.params.num_qp} QPs"
            )
        if self.heap_bytes < 2 * HEAP_SYNC_BYTES or self.heap_bytes % 4096:
            raise ValueError(
                f"heap of {self.heap_bytes} bytes: at least {2 * HEAP_SYNC_BYTES}, whole 4 KiB pages"
            )
        if self.heap_bytes > MAX_HEAP_BYTES:
            raise ValueError(f"heap of {self.heap_bytes} bytes: at most {MAX_HEAP_BYTES}")
        if self.cq_fill not in (0x00, 0xFF):
            raise ValueError(f"CQ fill {self.cq_fill:#x}: 0x00 or 0xff")
        if not isinstance(self.generation, int) and len(self.generation) != self.n_pes:
            raise ValueError(f"{len(self.generation)} driver generations for {self.n_pes} PEs")
        if self.ignore_overrun and any(self.generation_of(pe) < Generation.G3 for pe in range(self.n_pes)):
            raise ValueError("ignore_overrun: only the driver of G3 knows it")

    def generation_of(self, pe: int) -> Generation:
        """Driver generation of PE ``pe``. Raises ValueError for a number that is none."""
        return Generation(self.generation if isinstance(self.generation, int) else self.generation[pe])

    @classmethod
    def mixed(cls, n_pes: int, qps: int, seed: int, **changes: Any) -> FabricConfig:
        """A random fabric.

        Both versions, every MTU, ring depths 16 to 128, both strides, indices near wraps.
        """
        mixed = cls(
            n_pes=n_pes,
            qps=qps,
            seed=seed,
            versions=(1, 2),
            mtus=(256, 512, 1024, 2048, 4096),
            sq_depths=(16, 32, 64, 128),
            cq_factors=(1, 2, 4),
            strides=(32, 64),
            sls=tuple(range(8)),
            start="wraps",
            sq_fill="dirty",
        )
        return replace(mixed, **changes)
