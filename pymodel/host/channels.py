"""Channels to the peers: their descriptors, and the wait until they are up. Rules: device page, 7.1."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from pymodel.generation import Generation
from pymodel.host.driver import ChannelDesc, ChannelStatus, Driver
from pymodel.host.environment import service_level, traffic_class
from pymodel.host.errors import HcommError, HostError, HostErrorCode
from pymodel.host.ranks import RANKS_PER_NIC, RankInfo, channel_port, socket_role
from pymodel.host.transport_types import OpenedDevice

log = logging.getLogger(__name__)

RETRY_COUNT: Final = 7
RETRY_INTERVAL: Final = 20
POLL_INTERVAL_MS: Final = 10
"""Per channel."""
POLL_LIMIT_MS: Final = 60000
"""Per channel."""

_T = TypeVar("_T")


def quietly(what: str, call: Callable[..., None], *args: object) -> None:
    """Call the driver; an error is logged only."""
    try:
        call(*args)
    except HcommError as error:
        log.warning("%s: %s", what, error)


def checked(code: HostErrorCode, what: str, call: Callable[..., _T], *args: object) -> _T:
    """Call the driver; an error becomes a HostError with ``code``."""
    try:
        return call(*args)
    except HcommError as error:
        raise HostError(code, f"{what}: {error}") from error


def check_ranks_per_nic(device: OpenedDevice, ranks: Mapping[int, RankInfo]) -> None:
    """Raises HostError TOO_MANY_RANKS for more than 16 ranks, the own one counted, with the own address."""
    own = device.options.rank_id
    same = 1 + sum(info.ip == device.ip for rank, info in ranks.items() if rank != own)
    if same > RANKS_PER_NIC:
        raise HostError(HostErrorCode.TOO_MANY_RANKS, f"{same} ranks at {device.ip}, at most {RANKS_PER_NIC}")


def channel_descs(
    device: OpenedDevice, ranks: Mapping[int, RankInfo], generation: Generation, env: Mapping[str, str]
) -> list[ChannelDesc]:
    """One descriptor per peer, by rank. Raises HostError INVALID_PARAM for a peer that is not known."""
    options = device.options
    own, count, later = options.rank_id, options.rank_count, generation is not Generation.G1
    peers = [rank for rank in range(count) if rank != own]
    if count == 1 and options.loopback:
        peers = [own]
    missing = [rank for rank in peers if rank not in ranks]
    if missing:
        raise HostError(HostErrorCode.INVALID_PARAM, f"ranks {missing} are not known")
    tc, sl = traffic_class(env), service_level(env)
    return [
        ChannelDesc(
            remote,
            ranks[remote].ip,
            socket_role(own, remote),
            channel_port(own, remote),
            tc,
            sl,
            options.qp_count,
            retry_count=RETRY_COUNT if later else None,
            retry_interval=RETRY_INTERVAL if later else None,
            cq_attr_flags=options.cq_attr_flags,
        )
        for remote in peers
    ]


def await_channels(driver: Driver, channels: Sequence[int]) -> None:
    """Poll until all are READY (G2 on).

    Every n * 10 ms, for n * 60000 ms. Raises HostError CHANNEL_FAILED for any other end, or none in time.
    """
    count, elapsed, failed = len(channels), 0, HostErrorCode.CHANNEL_FAILED
    while elapsed <= POLL_LIMIT_MS * count:
        status = checked(failed, "channel status", driver.channel_status, channels)
        if len(status) != count:
            raise HostError(failed, f"status of {len(status)} channels of {count}")
        if all(one == ChannelStatus.READY for one in status):
            return
        bad = [(i, one) for i, one in enumerate(status) if one not in (0, ChannelStatus.CONNECTING)]
        if bad:
            raise HostError(failed, f"status of channels: {bad} after {elapsed} ms")
        driver.sleep_ms(POLL_INTERVAL_MS * count)
        elapsed += POLL_INTERVAL_MS * count
    raise HostError(failed, f"channels not ready after {elapsed} ms")
