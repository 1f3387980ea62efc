"""Ranks as the transport manager sees them: ports, roles, channel numbers, and what each rank hands over.

Rules: device page, sections 7.1 and 7.3.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pymodel.host.driver import IpAddress, SocketRole
from pymodel.host.environment import parse_nic
from pymodel.host.errors import HostError, HostErrorCode

PORT_BASE: Final = 60032
RANKS_PER_NIC: Final = 16
"""Ranks with one IP address, at most; it also spreads the ports."""

MEMORY_KEY_BYTES: Final = 64
"""Size of an exchanged memory key: the page gives none."""
_KEY: Final = struct.Struct("<8xQQ40x")
"""Where address and size stand in a key: the page gives no places, and V2 exports zeros only."""
ZERO_KEY: Final = bytes(MEMORY_KEY_BYTES)
"""What QueryMemoryKey exports (device page 7.1)."""


class Role(Enum):
    """What a rank is to the others. Only a PEER has its prepare options checked."""

    PEER = "peer"
    SENDER = "sender"
    RECEIVER = "receiver"


def device_port(rank: int) -> int:
    """Port in the nic string of a rank: 60032..60047."""
    return PORT_BASE + rank % RANKS_PER_NIC


def channel_port(rank: int, remote: int) -> int:
    """Port of the channel between two ranks, the same on both sides: 60032..60287."""
    server, client = min(rank, remote), max(rank, remote)
    return PORT_BASE + server % RANKS_PER_NIC * RANKS_PER_NIC + client % RANKS_PER_NIC


def socket_role(rank: int, remote: int) -> SocketRole:
    """The lower rank is the server."""
    return SocketRole.SERVER if rank < remote else SocketRole.CLIENT


def channel_index(rank: int, remote: int) -> int:
    """Number of the channel to ``remote`` among those of ``rank``; the own rank has none."""
    return remote if remote < rank else remote - 1


@dataclass(frozen=True, slots=True)
class RankOptions:
    """What Prepare is told of a rank: its nic string and its exchanged memory keys, 64 bytes each.

    A rank without keys is left out when the table is filled, as in the original.
    """

    nic: str
    memory_keys: tuple[bytes, ...] = (ZERO_KEY,)
    role: Role = Role.PEER


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What is kept of it. ``memories``: (address, size) of its keys by rising address."""

    ip: IpAddress
    port: int
    memories: tuple[tuple[int, int], ...]
    role: Role = Role.PEER


def rank_infos(options: Mapping[int, RankOptions]) -> dict[int, RankInfo]:
    """Take the options apart. Raises HostError INVALID_PARAM for a nic or key that cannot be."""
    infos = {}
    for rank, option in options.items():
        if any(len(key) != MEMORY_KEY_BYTES for key in option.memory_keys):
            raise HostError(
                HostErrorCode.INVALID_PARAM, f"memory key of rank {rank}: {MEMORY_KEY_BYTES} bytes"
            )
        memories = tuple(sorted(dict(_KEY.unpack(key) for key in reversed(option.memory_keys)).items()))
        infos[rank] = RankInfo(*parse_nic(option.nic), memories, option.role)
    return infos
