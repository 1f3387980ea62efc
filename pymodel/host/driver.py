"""Runtime, HCCP and HCOMM as the transport manager calls them: descriptors, and the calls themselves.

Rules: device page, sections 7.1 and 7.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Protocol

from pymodel.host.hcomm import COMM_PROTOCOL_ROCE

IpAddress = IPv4Address | IPv6Address


class MrAccess(IntFlag):
    """Rights of a memory region (device page 7.4). ``REDUCE`` is HCCP's."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    DEFAULT = 7
    REDUCE = 1 << 8


class MemType(Enum):
    """Where a registered region lies."""

    DEVICE = 0
    HOST = 1


class SocketRole(Enum):
    """Who listens when a channel is made: the lower rank."""

    SERVER = 0
    CLIENT = 1


class ChannelStatus(IntEnum):
    """What HcommChannelGetStatus says of a channel; any other number is a failure (device page 7.1)."""

    READY = 0
    CONNECTING = 1
    FAILED = 2
    TIMEOUT = 3


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """What HCOMM asks HCCP for; the NDA driver answers with its own entry_cnt and entry_size (7.4)."""

    send_wrs: int = 1024
    recv_wrs: int = 1024
    inline_bytes: int = 64
    sges: int = 1
    cq_entries: int = 32768
    """One CQ for both directions; 31 * 1024 on a UB NIC."""


UB_CQ_ENTRIES: Final = 31 * 1024


@dataclass(frozen=True, slots=True)
class EndpointDesc:
    """What HcommEndpointCreate is given: protocol RoCE, location HOST (device page 7.1)."""

    ip: IpAddress
    physical_id: int
    protocol: int = COMM_PROTOCOL_ROCE
    location: str = "HOST"


@dataclass(frozen=True, slots=True)
class MemoryDesc:
    """What HcommMemReg is given. ``tag``: HcclBuffer or AtomicBuffer."""

    tag: str
    addr: int
    size: int
    kind: MemType
    access: MrAccess = MrAccess.DEFAULT


@dataclass(frozen=True, slots=True)
class ChannelDesc:
    """What HcommChannelCreate is given per peer (device page 7.1).

    ``remote_rank`` is not in the original's struct: there, address and port find the peer.
    ``retry_count`` and ``retry_interval``: from G2 on, else None. ``cq_attr_flags``: G3.
    """

    remote_rank: int
    remote_ip: IpAddress
    role: SocketRole
    port: int
    traffic_class: int
    service_level: int
    queue_num: int = 1
    notify_num: int = 3
    exchange_all_mems: bool = True
    retry_count: int | None = None
    retry_interval: int | None = None
    cq_attr_flags: int = 0


class Driver(Protocol):
    """Runtime, HCCP and HCOMM of one device, as the transport manager calls them.

    All calls raise `HcommError` where the original gives anything but 0; ``malloc`` raises MemoryError.
    """

    def current_device(self) -> int:
        """Device ID as the user counts."""

    def logic_device(self, user: int) -> int:
        """Device ID as the process counts."""

    def physical_device(self, logic: int) -> int:
        """Device ID as the server counts."""

    def root_info(self, physical: int) -> str:
        """Topology of the server, JSON (`pymodel.host.environment.rdma_address`)."""

    def malloc(self, size: int, align: int) -> int:
        """Reserve device memory; gives its address."""

    def free(self, addr: int) -> None:
        """Give it back."""

    def copy_to_device(self, addr: int, data: bytes) -> None:
        """Host to device."""

    def copy_from_device(self, addr: int, size: int) -> bytes:
        """Device to host."""

    def endpoint_create(self, desc: EndpointDesc) -> int:
        """HcommEndpointCreate; gives the handle."""

    def endpoint_destroy(self, endpoint: int) -> None:
        """HcommEndpointDestroy."""

    def mem_register(self, endpoint: int, desc: MemoryDesc) -> int:
        """HcommMemReg; gives the handle."""

    def mem_unregister(self, endpoint: int, handle: int) -> None:
        """HcommMemUnreg."""

    def channel_create(self, endpoint: int, engine: int, descs: Sequence[ChannelDesc]) -> list[int]:
        """HcommChannelCreate; gives the addresses of the `ChannelEntity` structs, in order."""

    def channel_status(self, channels: Sequence[int]) -> list[int]:
        """HcommChannelGetStatus: a `ChannelStatus` or another number per channel."""

    def channel_destroy(self, channels: Sequence[int]) -> None:
        """HcommChannelDestroy."""

    def sleep_ms(self, milliseconds: int) -> None:
        """Let time pass."""
