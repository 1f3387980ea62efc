"""What the transport manager is told and what it knows; the checks of arguments. Rules: device page, 7.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pymodel.generation import Generation
from pymodel.host.driver import IpAddress, MemType, MrAccess
from pymodel.host.errors import HostError, HostErrorCode
from pymodel.host.queue_info import CQ_IGNORE_OVERRUN
from pymodel.host.ranks import RankInfo, Role

REG_MR_FLAG_DRAM: Final = 1
REG_MR_FLAG_HBM: Final = 2
NPU_VA_BASE: Final = 0x1000_0000_0000
"""Start of the addresses that count as the NPU's: the page gives none."""
NPU_VA_END: Final = 0x1800_0000_0000
"""End of them; the queue-information block lies below it."""
HEAP_TAG: Final = "HcclBuffer"
ATOMIC_TAG: Final = "AtomicBuffer"


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """What OpenDevice is told.

    ``qp_count``: QPs per peer, 1 in the original; more is this project's extension (one channel, as many
    queues). ``cq_attr_flags``: G3. ``loopback``: a single rank makes a channel to itself, without queues, to
    learn its keys from; the original has no channel then and its Connect fails.
    """

    rank_id: int
    rank_count: int
    role: Role = Role.PEER
    qp_count: int = 1
    cq_attr_flags: int = 0
    loopback: bool = False


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """What RegisterMemoryRegion is told: bytes, rights, and where the memory is (`REG_MR_FLAG_*`)."""

    addr: int
    size: int
    access: MrAccess = MrAccess.DEFAULT
    flags: int = REG_MR_FLAG_HBM


@dataclass(frozen=True, slots=True)
class OpenedDevice:
    """What OpenDevice found and made."""

    options: TransportOptions
    physical_id: int
    ip: IpAddress
    port: int
    endpoint: int
    qp_info: int
    qp_info_size: int
    atomic_base: int
    atomic_size: int


@dataclass(frozen=True)
class TransportState:
    """All that a manager knows; never changed in place, so it serves as a snapshot.

    ``regions``: handle and region by address. ``channels``: addresses of channel entities.
    """

    device: OpenedDevice | None = None
    regions: Mapping[int, tuple[int, MemoryRegion]] = field(default_factory=dict)
    ranks: Mapping[int, RankInfo] = field(default_factory=dict)
    atomic_handle: int | None = None
    channels: tuple[int, ...] = ()
    connected: bool = False


def check_options(options: TransportOptions, generation: Generation) -> None:
    """Raises HostError INVALID_PARAM for what OpenDevice cannot take."""
    rank, count = options.rank_id, options.rank_count
    if not 0 <= rank < count:
        raise HostError(HostErrorCode.INVALID_PARAM, f"rank {rank} of {count}")
    if options.qp_count < 1:
        raise HostError(HostErrorCode.INVALID_PARAM, f"{options.qp_count} QPs per peer")
    known = CQ_IGNORE_OVERRUN if generation is Generation.G3 else 0
    if options.cq_attr_flags & ~known:
        raise HostError(HostErrorCode.INVALID_PARAM, f"cq_attr_flags {options.cq_attr_flags:#x}")


def check_region(region: MemoryRegion) -> None:
    """Raises HostError INVALID_PARAM for what RegisterMemoryRegion cannot take."""
    addr, size, access, flags = region.addr, region.size, int(region.access), region.flags
    if not (0 < addr < 1 << 64 and 0 < size <= (1 << 64) - addr):
        raise HostError(HostErrorCode.INVALID_PARAM, f"region of {size} bytes at {addr:#x}")
    if access < 0 or access & ~int(MrAccess.DEFAULT | MrAccess.REDUCE):
        raise HostError(HostErrorCode.INVALID_PARAM, f"access flags {access:#x}")
    if flags < 0 or flags & ~(REG_MR_FLAG_DRAM | REG_MR_FLAG_HBM):
        raise HostError(HostErrorCode.INVALID_PARAM, f"region flags {flags:#x}")


def mem_type(region: MemoryRegion) -> MemType:
    """DEVICE with the HBM flag or at an NPU address, else HOST."""
    on_device = bool(region.flags & REG_MR_FLAG_HBM) or NPU_VA_BASE <= region.addr < NPU_VA_END
    return MemType.DEVICE if on_device else MemType.HOST
