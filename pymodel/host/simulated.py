"""A simulated runtime, HCCP and HCOMM: makes channels and leaves their entities in a device's memory.

`HcommNetwork` holds the devices that see each other, `SimulatedDriver` is one of them. What a real chip and
its driver choose (addresses, keys, queues) comes from a `Chip`. Regions are known by address alone, whatever
their size: the memory here holds entities, atomic buffer and queue-information block only.
"""

from __future__ import annotations

import json
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Final, Protocol

from pymodel.host.driver import (
    ChannelDesc,
    ChannelStatus,
    EndpointDesc,
    IpAddress,
    MemoryDesc,
    QueueRequest,
)
from pymodel.host.errors import HcommError
from pymodel.host.hcomm import (
    CHANNEL_ENTITY_BYTES,
    QUEUE_CONTEXT_BYTES,
    REGED_BUFFER_BYTES,
    ChannelCq,
    ChannelEntity,
    ChannelSq,
    ContextForm,
    RegedBuffer,
)

ENTITY_BASE: Final = 0x1200_0000_0000
"""Where HCOMM's own allocations start in a device's memory; no page says."""
ENTITY_ALIGN: Final = 256


class Chip(Protocol):
    """What chip and driver choose by themselves."""

    def place(self, size: int, align: int) -> int:
        """Address for ``size`` bytes of device memory. Raises MemoryError."""

    def keys(self, desc: MemoryDesc) -> tuple[int, int]:
        """(lkey, rkey) for a region. Raises HcommError."""

    def queues(self, desc: ChannelDesc, request: QueueRequest) -> list[tuple[ChannelSq, ChannelCq]]:
        """``desc.queue_num`` QPs and their CQs. Raises HcommError."""


class DeviceMemory:
    """The pieces of a device's memory that somebody has allocated."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._pieces: dict[int, bytearray] = {}

    def add(self, base: int, size: int) -> None:
        """Allocate ``[base, base + size)``, zero."""
        self._pieces[base] = bytearray(size)
        insort(self._bases, base)

    def drop(self, base: int) -> None:
        """Give a piece back. Raises HcommError where none starts."""
        if self._pieces.pop(base, None) is None:
            raise HcommError(f"nothing is allocated at {base:#x}")
        self._bases.remove(base)

    def _find(self, addr: int, size: int) -> tuple[bytearray, int]:
        at = bisect_right(self._bases, addr) - 1
        if at >= 0:
            base = self._bases[at]
            if addr + size <= base + len(self._pieces[base]):
                return self._pieces[base], addr - base
        raise HcommError(f"no device memory at {addr:#x}, {size} bytes")

    def read(self, addr: int, size: int) -> bytes:
        """Raises HcommError outside of one piece."""
        piece, at = self._find(addr, size)
        return bytes(piece[at : at + size])

    def write(self, addr: int, data: bytes) -> None:
        """Raises HcommError outside of one piece."""
        piece, at = self._find(addr, len(data))
        piece[at : at + len(data)] = data

    def pieces(self) -> dict[int, bytes]:
        """Everything, by address."""
        return {base: bytes(piece) for base, piece in self._pieces.items()}


@dataclass(slots=True)
class _Channel:
    desc: ChannelDesc
    endpoint: int
    pieces: list[int]
    status: ChannelStatus = ChannelStatus.CONNECTING


class HcommNetwork:
    """Devices by rank. A peer is looked for when a channel is made and whenever its status is asked for."""

    def __init__(self) -> None:
        self.drivers: dict[int, SimulatedDriver] = {}


class SimulatedDriver:
    """`Driver` of the device of ``rank``; its IDs are all ``rank``. ``form``: of the installed CANN.

    ``slept_ms``: what the caller has slept. ``memories``, ``channels``, ``endpoints``: what lives, by handle.
    """

    def __init__(
        self, network: HcommNetwork, rank: int, ip: IpAddress, chip: Chip, form: ContextForm
    ) -> None:
        self.network, self.rank, self.ip, self.chip, self.form = network, rank, ip, chip, form
        self.memory = DeviceMemory()
        self.request = QueueRequest()
        self.endpoints: dict[int, EndpointDesc] = {}
        self.memories: dict[int, RegedBuffer] = {}
        self.channels: dict[int, _Channel] = {}
        self.slept_ms = 0
        self._handle = 0
        self._next_entity = ENTITY_BASE
        network.drivers[rank] = self

    # ------------------------------------------------------------------ runtime
    def current_device(self) -> int:
        """The rank."""
        return self.rank

    def logic_device(self, user: int) -> int:
        """The same."""
        return user

    def physical_device(self, logic: int) -> int:
        """The same."""
        return logic

    def root_info(self, physical: int) -> str:
        """One device with one CLOS level and its address."""
        family = "IPV4" if isinstance(self.ip, IPv4Address) else "IPV6"
        level = {"net_type": "CLOS", "rank_addr_list": [{"addr_type": family, "addr": str(self.ip)}]}
        return json.dumps({"rank_list": [{"device_id": physical, "local_id": 0, "level_list": [level]}]})

    def malloc(self, size: int, align: int) -> int:
        """Where the chip says."""
        addr = self.chip.place(size, align)
        self.memory.add(addr, size)
        return addr

    def free(self, addr: int) -> None:
        """Raises HcommError where nothing is allocated."""
        self.memory.drop(addr)

    def copy_to_device(self, addr: int, data: bytes) -> None:
        """Raises HcommError outside of what is allocated."""
        self.memory.write(addr, data)

    def copy_from_device(self, addr: int, size: int) -> bytes:
        """Raises HcommError outside of what is allocated."""
        return self.memory.read(addr, size)

    def sleep_ms(self, milliseconds: int) -> None:
        """Only counts."""
        self.slept_ms += milliseconds

    # ------------------------------------------------------------------ HCOMM
    def endpoint_create(self, desc: EndpointDesc) -> int:
        """A new handle."""
        self._handle += 1
        self.endpoints[self._handle] = desc
        return self._handle

    def endpoint_destroy(self, endpoint: int) -> None:
        """Raises HcommError for no endpoint."""
        if self.endpoints.pop(endpoint, None) is None:
            raise HcommError(f"endpoint {endpoint}")

    def mem_register(self, endpoint: int, desc: MemoryDesc) -> int:
        """A new handle; the keys are the chip's."""
        self._know(endpoint)
        lkey, rkey = self.chip.keys(desc)
        self._handle += 1
        self.memories[self._handle] = RegedBuffer(desc.addr, desc.size, lkey, rkey)
        return self._handle

    def mem_unregister(self, endpoint: int, handle: int) -> None:
        """Raises HcommError for no region."""
        self._know(endpoint)
        if self.memories.pop(handle, None) is None:
            raise HcommError(f"region {handle}")

    def channel_create(self, endpoint: int, engine: int, descs: Sequence[ChannelDesc]) -> list[int]:
        """Entities with queues and local regions; what is the peer's comes when the peer is there."""
        self._know(endpoint)
        local = list(self.memories.values())
        made: list[int] = []
        for desc in descs:
            queues = self.chip.queues(desc, self.request)
            sqs = b"".join(sq.pack(self.form) for sq, _ in queues)
            cqs = b"".join(cq.pack(self.form) for _, cq in queues)
            assert len(sqs) == len(cqs) == QUEUE_CONTEXT_BYTES * len(queues)
            channel = _Channel(desc, endpoint, [])
            entity = ChannelEntity(
                engine=engine,
                local_notify_num=desc.notify_num,
                remote_notify_num=desc.notify_num,
                local_buffer_num=len(local),
                local_buffer_addr=self._leave(channel, b"".join(buffer.pack() for buffer in local)),
                sq_num=len(queues),
                cq_num=len(queues),
                sq_context_addr=self._leave(channel, sqs),
                cq_context_addr=self._leave(channel, cqs),
            )
            made.append(self._leave(channel, entity.pack()))
            self.channels[made[-1]] = channel
            self._meet(made[-1])
        return made

    def channel_status(self, channels: Sequence[int]) -> list[int]:
        """READY once the peer has an endpoint and a region; FAILED where the two ends do not fit."""
        for channel in channels:
            self._meet(channel)
        return [int(self.channels[channel].status) for channel in channels]

    def channel_destroy(self, channels: Sequence[int]) -> None:
        """Their entities are gone from device memory too."""
        for channel in channels:
            if channel not in self.channels:
                raise HcommError(f"channel {channel:#x}")
            for piece in self.channels.pop(channel).pieces:
                self.memory.drop(piece)

    # ------------------------------------------------------------------ inside
    def _know(self, endpoint: int) -> None:
        if endpoint not in self.endpoints:
            raise HcommError(f"endpoint {endpoint}")

    def _leave(self, channel: _Channel, data: bytes) -> int:
        """Put bytes into newly allocated device memory; 0 for none."""
        if not data:
            return 0
        addr = self._next_entity
        self._next_entity += -(-len(data) // ENTITY_ALIGN) * ENTITY_ALIGN
        self.memory.add(addr, len(data))
        self.memory.write(addr, data)
        channel.pieces.append(addr)
        return addr

    def _meet(self, handle: int) -> None:
        """Complete a channel whose peer has come up meanwhile: its regions, without their lkeys."""
        channel = self.channels[handle]
        peer = self.network.drivers.get(channel.desc.remote_rank)
        if channel.status is not ChannelStatus.CONNECTING or peer is None:
            return
        if not any(desc.ip == channel.desc.remote_ip for desc in peer.endpoints.values()):
            return
        if not self._fits(channel.desc, peer):
            channel.status = ChannelStatus.FAILED
        elif peer.memories:
            remote = b"".join(replace(buffer, lkey=0).pack() for buffer in peer.memories.values())
            entity = ChannelEntity.unpack(self.memory.read(handle, CHANNEL_ENTITY_BYTES))
            count = len(remote) // REGED_BUFFER_BYTES
            addr = self._leave(channel, remote)
            complete = replace(entity, remote_buffer_num=count, remote_buffer_addr=addr)
            self.memory.write(handle, complete.pack())
            channel.status = ChannelStatus.READY

    def _fits(self, desc: ChannelDesc, peer: SimulatedDriver) -> bool:
        """Whether the peer's end of the channel, if it is there, has the same port and the other role."""
        ends = [c.desc for c in peer.channels.values() if c.desc.remote_rank == self.rank]
        if peer is self:
            return True
        return all(
            end.port == desc.port and end.role is not desc.role and end.queue_num == desc.queue_num
            for end in ends
        )
