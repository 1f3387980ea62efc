"""What a fabric consists of: regions, BAR steps, QPs and PEs, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from pymodel.generation import Generation
from pymodel.nic import context as nic

WQE_BYTES: Final = 128
CELL_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that exists: ``size`` bytes from ``base``, all ``fill`` at first."""

    name: str
    base: int
    size: int
    fill: int = 0


@dataclass(frozen=True, slots=True)
class BarOp:
    """One step of bringing a NIC up: a 64-bit write, or waiting until STATUS is idle with code 0."""

    kind: Literal["write", "idle"]
    addr: int = 0
    data: int = 0
    what: str = ""


@dataclass(frozen=True, slots=True)
class QpPlan:
    """One direction of one QP pair: numbers, properties and addresses.

    ``mtu`` in bytes; indices are free-running and of 32 bits.
    """

    pe: int
    peer: int
    qp_idx: int
    qpn: int
    cqn: int
    version: int
    mtu: int
    sq_depth: int
    cq_depth: int
    cq_stride: int
    start_index: int
    sq_psn: int
    rq_psn: int = 0
    peer_qpn: int = 0
    sl: int = 0
    tc: int = 132
    ttl: int = 64
    udp_sport: int = 0
    retry_cnt: int = 7
    rnr_retry: int = 7
    timer: int = 14
    rem_write: bool = True
    rem_read: bool = True
    rem_atomic: bool = True
    max_rd_atomic: int = 16
    """READs and atomics outstanding as requester."""
    max_dest_rd_atomic: int = 16
    """READs and atomics held as responder."""
    ignore_overrun: bool = False
    sq_base: int = 0
    cq_base: int = 0
    sq_head_addr: int = 0
    sq_tail_addr: int = 0
    cq_head_addr: int = 0
    cq_tail_addr: int = 0
    start_cq: int = 0
    """First CQE index (u32). Equal to ``start_index``: G1 counts CQEs against WQEs (device page 2.4)."""
    rq_depth: int = 0
    """Receive WQEs that fit; 0: no receive queue (the driver knows none)."""
    rq_start: int = 0
    """First index of the receive queue."""
    recv_cq_depth: int = 0
    """Of the CQ that receives complete to, with the stride and first index of the other; 0: to that one."""
    rq_base: int = 0
    recv_cqn: int = -1
    """-1: ``cqn``."""
    recv_cq_base: int = 0


@dataclass(slots=True)
class PePlan:
    """Everything of one PE.

    ``contents``: (address, uint8[n]) that stand in memory before programs start. ``mrs``, ``cq_contexts`` and
    ``qp_contexts``: NIC contexts by MR index, CQN and QPN; ``bringup`` programs them.
    """

    rank: int
    mac: int
    ip: int
    heap_base: int
    heap_size: int
    amo_base: int
    amo_size: int
    heap_lkey: int = 0
    heap_rkey: int = 0
    amo_lkey: int = 0
    generation: Generation = Generation.G1
    regions: list[Region] = field(default_factory=list)
    contents: list[tuple[int, NDArray[np.uint8]]] = field(default_factory=list)
    qps: list[QpPlan] = field(default_factory=list)
    mrs: dict[int, nic.MrContext] = field(default_factory=dict)
    cq_contexts: dict[int, nic.CqContext] = field(default_factory=dict)
    qp_contexts: dict[int, nic.QpContext] = field(default_factory=dict)
    bringup: list[BarOp] = field(default_factory=list)
