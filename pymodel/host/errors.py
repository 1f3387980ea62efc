"""What the host side refuses: one enumeration (programs page, section 7)."""

from __future__ import annotations

from enum import Enum


class HostErrorCode(Enum):
    """Why a call of `pymodel.host.transport.RdmaTransportManagerV2` failed. The value says what it means."""

    NOT_OPEN = "the device is not open"
    ALREADY_OPEN = "the device is open already"
    INVALID_PARAM = "an argument, or what the topology says, is not acceptable"
    NOT_PREPARED = "no ranks have been made known"
    NOT_CONNECTED = "there are no channels yet"
    DUPLICATE = "the address is registered already; the first entry stays"
    UNKNOWN_ADDRESS = "no region is registered at the address"
    TOO_MANY_RANKS = "more than 16 ranks share the own IP address"
    CHANNEL_FAILED = "HCOMM refused a call, or a channel did not come up"
    OUT_OF_MEMORY = "device memory could not be allocated"


class HostError(RuntimeError):
    """A refused call; the manager's state is what it was before. ``code`` is the reason."""

    def __init__(self, code: HostErrorCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code


class HcommError(RuntimeError):
    """What a call of HCOMM, HCCP or the device's runtime gives instead of 0."""
