"""Ranks with transport managers over the simulated HCOMM, for the tests of the host.

`Faulty` stands between a manager and its driver: it records the calls and lets some fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any

from pymodel.generation import Generation
from pymodel.host.driver import ChannelDesc, IpAddress, MemoryDesc, QueueRequest
from pymodel.host.hcomm import ChannelCq, ChannelSq, ContextForm, default_form
from pymodel.host.ranks import RankOptions
from pymodel.host.simulated import HcommNetwork, SimulatedDriver
from pymodel.host.transport import RdmaTransportManagerV2
from pymodel.host.transport_types import MemoryRegion, TransportOptions

G1, G2, G3 = Generation
BLOCK, ATOMIC = 0x17FF_BE00_0000, 0x1500_0000_0000
HEAP, HEAP_BYTES = 0x1300_0000_0000, 1 << 40
"""A TiB: nothing may allocate a heap."""


@dataclass
class PlainChip:
    """Numbers that a person can follow: rank r's QP to peer p is QPN 0x100 r + 0x10 p + index, and so on."""

    rank: int
    regions: list[MemoryDesc] = field(default_factory=list)
    descs: list[ChannelDesc] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def place(self, size: int, align: int) -> int:
        self.asked.append((size, align))
        return BLOCK if align == 64 else ATOMIC + 0x1_0000 * self.rank

    def keys(self, desc: MemoryDesc) -> tuple[int, int]:
        self.regions.append(desc)
        number = 0x1000 * (self.rank + 1) + 0x10 * len(self.regions)
        return number + 1, number + 2

    def queues(self, desc: ChannelDesc, request: QueueRequest) -> list[tuple[ChannelSq, ChannelCq]]:
        self.descs.append(desc)
        if desc.remote_rank == self.rank:
            return []
        return [self.queue(desc.remote_rank, index) for index in range(desc.queue_num)]

    def queue(self, peer: int, index: int) -> tuple[ChannelSq, ChannelCq]:
        n = 0x100 * self.rank + 0x10 * peer + index
        base = 0x2000_0000_0000 + (n << 24)
        sq = ChannelSq(
            base, base + 0x10_0000, base + 0x10_0008, 0x800_0000 + 0x1000 * n, n, 128, 1 << 5 + index,
            (n + 3) % 8, db_mode=0, db_sw_va=base + 0x30_0000, mtu_shift=4, cos=5,
        )  # fmt: skip
        cq = ChannelCq(
            base + 0x20_0000, base + 0x10_0010, base + 0x10_0018, 0x800_0010 + 0x1000 * n, n + 7, 64,
            64 << index, db_mode=1, db_sw_va=base + 0x38_0000, db_vendor=1 << 40, attr_flags=2,
        )  # fmt: skip
        return sq, cq


class Faulty:
    """A driver whose calls are recorded as (name, arguments); ``hook(name, number, args)`` may raise."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.counts: Counter[str] = Counter()
        self.hook: Callable[[str, int, tuple[Any, ...]], None] | None = None
        self.answers: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:
        real = self.answers.get(name) or getattr(self.driver, name)

        def call(*args: Any) -> Any:
            number = self.counts[name]
            self.counts[name] += 1
            self.calls.append((name, args))
            if self.hook is not None:
                self.hook(name, number, args)
            return real(*args)

        return call

    def holds(self) -> Any:
        """Everything that the driver keeps for the manager, device memory included."""
        d = self.driver
        channels = {h: (c.desc, c.endpoint, tuple(c.pieces), c.status) for h, c in d.channels.items()}
        return dict(d.endpoints), dict(d.memories), channels, d.memory.pieces()


class Bench:
    """``managers[r]`` over ``drivers[r]``; nothing is called yet."""

    def __init__(
        self,
        ranks: int = 2,
        generation: Generation = G1,
        *,
        env: dict[str, str] | None = None,
        form: ContextForm | None = None,
        ip: Callable[[int], IpAddress] = lambda rank: IPv4Address(f"10.0.0.{rank + 1}"),
        qps: int = 1,
    ) -> None:
        self.ranks, self.generation, self.qps = ranks, generation, qps
        self.network = HcommNetwork()
        self.chips = [PlainChip(rank) for rank in range(ranks)]
        form = form or default_form(generation)
        self.drivers = [
            Faulty(SimulatedDriver(self.network, rank, ip(rank), chip, form))
            for rank, chip in enumerate(self.chips)
        ]
        self.managers = [RdmaTransportManagerV2(d, generation, env) for d in self.drivers]  # type: ignore[arg-type]

    def options(self, rank: int, **changes: Any) -> TransportOptions:
        return TransportOptions(rank, self.ranks, qp_count=self.qps, **changes)

    def open(self, ranks: Sequence[int] | None = None, heap: bool = True) -> Bench:
        """Open devices and register heaps."""
        for rank in range(self.ranks) if ranks is None else ranks:
            self.managers[rank].open_device(self.options(rank))
            if heap:
                self.managers[rank].register_memory_region(MemoryRegion(HEAP + (rank << 42), HEAP_BYTES))
        return self

    def nics(self) -> dict[int, RankOptions]:
        """Prepare options of all ranks that are open."""
        opened = [r for r, m in enumerate(self.managers) if m.state.device is not None]
        return {rank: RankOptions(self.managers[rank].get_nic()) for rank in opened}

    def prepare(self) -> Bench:
        for manager in self.managers:
            if manager.state.device is not None:
                manager.prepare(self.nics())
        return self

    def connect(self, *ranks: int) -> Bench:
        for rank in ranks or range(self.ranks):
            self.managers[rank].connect()
        return self

    def block(self, rank: int = 0) -> bytes:
        """The queue-information block in the memory of a rank's device."""
        device = self.managers[rank].state.device
        assert device is not None
        return self.drivers[rank].driver.memory.read(BLOCK, device.qp_info_size)


def connected(ranks: int = 2, generation: Generation = G1, **more: Any) -> Bench:
    """All ranks connected."""
    return Bench(ranks, generation, **more).open().prepare().connect()


def number(raw: bytes, at: int, size: int) -> int:
    """Little-endian field of a block."""
    return int.from_bytes(raw[at : at + size], "little")
