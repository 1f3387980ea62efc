"""`RdmaTransportManagerV2`: from a device ID to the queue-information block in device memory.

Order of calls: ``open_device``, ``register_memory_region`` per region, ``prepare``, ``connect``, and in the
end ``close_device`` (device page 7.1). A refused call raises `HostError` and leaves the manager, and what it
holds of the driver, as they were; a step of ``close_device`` that fails is logged. The methods have the names
of the original in snake case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from pymodel.generation import Generation
from pymodel.host.channels import await_channels, channel_descs, check_ranks_per_nic, checked, quietly
from pymodel.host.driver import Driver, EndpointDesc, MemoryDesc, MemType, MrAccess
from pymodel.host.environment import context_form, nic_text, rdma_address
from pymodel.host.errors import HostError, HostErrorCode
from pymodel.host.fill import AMO_ALIGN, BlockFiller, BlockPlan, amo_bytes
from pymodel.host.hcomm import COMM_ENGINE_AIV
from pymodel.host.ranks import ZERO_KEY, RankOptions, Role, device_port, rank_infos
from pymodel.host.transport_types import (
    ATOMIC_TAG,
    HEAP_TAG,
    MemoryRegion,
    OpenedDevice,
    TransportOptions,
    TransportState,
    check_options,
    check_region,
    mem_type,
)

BLOCK_ALIGN: Final = 64
"""Of the queue-information block: the page gives none."""


class RdmaTransportManagerV2:
    """The transport manager of one rank, over a `Driver`. ``state`` is a snapshot.

    ``env``: environment variables, of which HCCL_RDMA_TC, HCCL_RDMA_SL and ASCEND_HOME_PATH count.
    ``generation``: of the code, one of the compile-time switches of the original.
    """

    def __init__(
        self, driver: Driver, generation: Generation = Generation.G1, env: Mapping[str, str] | None = None
    ) -> None:
        self.driver, self.generation = driver, generation
        self.env: Mapping[str, str] = env or {}
        self.form = context_form(generation, self.env)
        self.state = TransportState()

    # ------------------------------------------------------------------ device
    def open_device(self, options: TransportOptions) -> None:
        """OpenDevice: IDs, address, endpoint, memory for the block and for atomic results.

        Raises HostError ALREADY_OPEN; INVALID_PARAM for IDs below 0, ranks, counts or flags that cannot be, a
        topology without the device's address; CHANNEL_FAILED (endpoint); OUT_OF_MEMORY.
        """
        if self.state.device is not None:
            raise HostError(HostErrorCode.ALREADY_OPEN, "open_device")
        check_options(options, self.generation)
        driver, invalid = self.driver, HostErrorCode.INVALID_PARAM
        user = self._id("user device ID", driver.current_device)
        self._id("logic device ID", driver.logic_device, user)
        physical = self._id("physical device ID", driver.physical_device, user)
        ip = rdma_address(checked(invalid, "topology", driver.root_info, physical), physical)
        plan = self._block_plan(options, 0, 0)
        with ExitStack() as undo:
            endpoint = checked(
                HostErrorCode.CHANNEL_FAILED, "endpoint", driver.endpoint_create, EndpointDesc(ip, physical)
            )
            undo.callback(quietly, "endpoint", driver.endpoint_destroy, endpoint)
            atomic_size = amo_bytes(options.rank_count, self.generation)
            places = []
            for size, align in ((plan.size, BLOCK_ALIGN), (atomic_size, AMO_ALIGN[self.generation])):
                try:
                    places.append(driver.malloc(size, align))
                except MemoryError as error:
                    raise HostError(HostErrorCode.OUT_OF_MEMORY, f"{size} bytes: {error}") from error
                undo.callback(quietly, "device memory", driver.free, places[-1])
            undo.pop_all()
        port = device_port(options.rank_id)
        self.state = TransportState(
            OpenedDevice(options, physical, ip, port, endpoint, places[0], plan.size, places[1], atomic_size)
        )

    def close_device(self) -> None:
        """CloseDevice: channels, regions, endpoint, memory. Raises HostError NOT_OPEN; the rest is logged."""
        device, state, driver = self._device("close_device"), self.state, self.driver
        if state.channels:
            quietly("channels", driver.channel_destroy, state.channels)
        for handle, region in state.regions.values():
            quietly(f"region at {region.addr:#x}", driver.mem_unregister, device.endpoint, handle)
        if state.atomic_handle is not None:
            quietly("atomic buffer", driver.mem_unregister, device.endpoint, state.atomic_handle)
        quietly("endpoint", driver.endpoint_destroy, device.endpoint)
        quietly("atomic buffer", driver.free, device.atomic_base)
        quietly("queue information", driver.free, device.qp_info)
        self.state = TransportState()

    def get_nic(self) -> str:
        """The own nic string, ``tcp://ip:port`` or ``tcp6://[ip]:port``. Raises HostError NOT_OPEN."""
        device = self._device("get_nic")
        return nic_text(device.ip, device.port)

    def get_qp_info(self) -> int:
        """Address of the queue-information block. Raises HostError NOT_OPEN, NOT_CONNECTED."""
        return self._connected("get_qp_info").qp_info

    # ------------------------------------------------------------------ memory regions
    def register_memory_region(self, region: MemoryRegion) -> None:
        """RegisterMemoryRegion.

        Raises HostError NOT_OPEN; INVALID_PARAM for an empty region, one that leaves the address space, or
        unknown rights and flags; DUPLICATE, the map keeps the first entry; CHANNEL_FAILED.
        """
        device = self._device("register_memory_region")
        check_region(region)
        addr = region.addr
        if addr in self.state.regions:
            raise HostError(HostErrorCode.DUPLICATE, f"region at {addr:#x}")
        desc = MemoryDesc(HEAP_TAG, addr, region.size, mem_type(region), region.access)
        handle = checked(
            HostErrorCode.CHANNEL_FAILED, "region", self.driver.mem_register, device.endpoint, desc
        )
        self.state = replace(self.state, regions={**self.state.regions, addr: (handle, region)})

    def unregister_memory_region(self, addr: int) -> None:
        """UnregisterMemoryRegion. Raises HostError NOT_OPEN, UNKNOWN_ADDRESS, CHANNEL_FAILED."""
        device = self._device("unregister_memory_region")
        if addr not in self.state.regions:
            raise HostError(HostErrorCode.UNKNOWN_ADDRESS, f"region at {addr:#x}")
        handle, failed = self.state.regions[addr][0], HostErrorCode.CHANNEL_FAILED
        checked(failed, "region", self.driver.mem_unregister, device.endpoint, handle)
        self.state = replace(self.state, regions={a: r for a, r in self.state.regions.items() if a != addr})

    def query_memory_key(self, addr: int) -> bytes:
        """QueryMemoryKey: succeeds for any address in any state; the exported key is all zero."""
        return ZERO_KEY

    def parse_memory_key(self, key: bytes) -> tuple[int, int]:
        """ParseMemoryKey: succeeds for any key in any state; (address, size) are not looked at and stay 0."""
        return 0, 0

    # ------------------------------------------------------------------ ranks and channels
    def prepare(self, options: Mapping[int, RankOptions]) -> None:
        """Prepare: make ranks known. Called again it adds ranks; those that are known keep their entry.

        Raises HostError NOT_OPEN; INVALID_PARAM for a nic that is none, and for a PEER with more options than
        ranks, without itself, or with a rank that does not exist.
        """
        device = self._device("prepare")
        rank, count = device.options.rank_id, device.options.rank_count
        if device.options.role is Role.PEER:
            strange = sorted(r for r in options if not 0 <= r < count)
            if len(options) > count or rank not in options or strange:
                text = f"{len(options)} options of {count} ranks, own rank {rank}, not ranks: {strange}"
                raise HostError(HostErrorCode.INVALID_PARAM, text)
        self.state = replace(self.state, ranks={**rank_infos(options), **self.state.ranks})

    def connect(self) -> None:
        """Connect: one channel per peer, then the queue-information block. When connected it does nothing.

        Raises HostError NOT_OPEN; NOT_PREPARED; TOO_MANY_RANKS; INVALID_PARAM for a rank that was not made
        known; CHANNEL_FAILED. Channels and the atomic region are gone then.
        """
        device, state, driver = self._device("connect"), self.state, self.driver
        failed = HostErrorCode.CHANNEL_FAILED
        if state.connected:
            return
        if not state.ranks:
            raise HostError(HostErrorCode.NOT_PREPARED, "connect")
        check_ranks_per_nic(device, state.ranks)
        descs = channel_descs(device, state.ranks, self.generation, self.env)
        plan = self._block_plan(device.options, device.qp_info, device.atomic_base)
        # local write alone: nobody but the own NIC writes results (programs page, section 2)
        atomic = MemoryDesc(
            ATOMIC_TAG, device.atomic_base, device.atomic_size, MemType.DEVICE, MrAccess.LOCAL_WRITE
        )
        with ExitStack() as undo:
            handle = checked(failed, "atomic buffer", driver.mem_register, device.endpoint, atomic)
            undo.callback(quietly, "atomic buffer", driver.mem_unregister, device.endpoint, handle)
            channels = tuple(
                checked(failed, "channels", driver.channel_create, device.endpoint, COMM_ENGINE_AIV, descs)
            )
            undo.callback(quietly, "channels", driver.channel_destroy, channels)
            if self.generation is not Generation.G1:
                await_channels(driver, channels)
            block = BlockFiller(driver, plan).build(state.ranks, channels)
            checked(failed, "queue information", driver.copy_to_device, device.qp_info, block)
            undo.pop_all()
        self.state = replace(state, atomic_handle=handle, channels=channels, connected=True)

    def connect_with_options(self, options: Mapping[int, RankOptions]) -> None:
        """ConnectWithOptions: Prepare and Connect. A second call only replaces what is known of the ranks."""
        self._device("connect_with_options")
        if self.state.connected:
            self.state = replace(self.state, ranks=rank_infos(options))
            return
        before = self.state
        try:
            self.prepare(options)
            self.connect()
        except HostError:
            self.state = before
            raise

    def async_connect(self) -> None:
        """AsyncConnect: does nothing. Raises HostError NOT_OPEN, NOT_PREPARED."""
        self._device("async_connect")
        if not self.state.ranks:
            raise HostError(HostErrorCode.NOT_PREPARED, "async_connect")

    def wait_for_connected(self, timeout_ns: int = -1) -> None:
        """WaitForConnected: does nothing; connect has waited. Raises HostError NOT_OPEN, NOT_CONNECTED."""
        self._connected("wait_for_connected")

    # ------------------------------------------------------------------ parts
    def _device(self, call: str) -> OpenedDevice:
        if self.state.device is None:
            raise HostError(HostErrorCode.NOT_OPEN, call)
        return self.state.device

    def _connected(self, call: str) -> OpenedDevice:
        device = self._device(call)
        if not self.state.connected:
            raise HostError(HostErrorCode.NOT_CONNECTED, call)
        return device

    @staticmethod
    def _id(what: str, call: Callable[..., int], *args: int) -> int:
        number = checked(HostErrorCode.INVALID_PARAM, what, call, *args)
        if number < 0:
            raise HostError(HostErrorCode.INVALID_PARAM, f"{what} {number}")
        return number

    def _block_plan(self, options: TransportOptions, address: int, atomic_base: int) -> BlockPlan:
        return BlockPlan(
            options.rank_id,
            options.rank_count,
            options.qp_count,
            address,
            atomic_base,
            self.generation,
            self.form,
        )
