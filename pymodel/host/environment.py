"""What the transport manager takes from its surroundings: environment variables, version file, topology.

Rules: device page, sections 7.1 and 7.4. The environment is always handed over, never looked up, so that the
same call gives the same result everywhere.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Final

from pymodel.generation import Generation
from pymodel.host.driver import IpAddress
from pymodel.host.errors import HostError, HostErrorCode
from pymodel.host.hcomm import ContextForm, default_form

log = logging.getLogger(__name__)

DEFAULT_TC: Final = 132
DEFAULT_SL: Final = 4
TC_VARIABLE: Final = "HCCL_RDMA_TC"
SL_VARIABLE: Final = "HCCL_RDMA_SL"
HOME_VARIABLE: Final = "ASCEND_HOME_PATH"
VERSION_FILE: Final = "share/info/hcomm/version.info"
SPLIT_FROM: Final = 2026_07_07_00_00
"""First build time (YYYYMMDDHHMM) of an HCOMM with split doorbells."""

_NIC = re.compile(r"[A-Za-z0-9_]{1,16}://(?:\[(?P<v6>[^\]]*)\]|(?P<v4>[^\[\]:]*)):(?P<port>[0-9]{1,5})")


def _env_number(env: Mapping[str, str], name: str, default: int, most: int, step: int) -> int:
    text = env.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"\s*[+-]?[0-9]+", text) or not 0 <= int(text) <= most or int(text) % step:
        log.warning("%s is %r: the default %d is used", name, text, default)
        return default
    return int(text)


def traffic_class(env: Mapping[str, str]) -> int:
    """HCCL_RDMA_TC: 0 to 255, a multiple of 4; 132 where it is absent or, with a warning, is none."""
    return _env_number(env, TC_VARIABLE, DEFAULT_TC, 255, 4)


def service_level(env: Mapping[str, str]) -> int:
    """HCCL_RDMA_SL: 0 to 7; 4 where it is absent or, with a warning, is none."""
    return _env_number(env, SL_VARIABLE, DEFAULT_SL, 7, 1)


def hcomm_build_time(env: Mapping[str, str]) -> int | None:
    """YYYYMMDDHHMM of the installed HCOMM, from ``timestamp=`` of its version file; None if unknown."""
    home = env.get(HOME_VARIABLE, "")
    if not home:
        return None
    try:
        lines = (Path(home) / VERSION_FILE).read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("timestamp="):
            digits = line.removeprefix("timestamp=").strip().replace("_", "")[:12]
            return int(digits) if re.fullmatch("[0-9]{12}", digits) and int(digits) else None
    return None


def context_form(generation: Generation, env: Mapping[str, str]) -> ContextForm:
    """How SqContext and CqContext are laid out. Only G2 looks at the version file; unknown: split."""
    if generation is Generation.G2:
        built = hcomm_build_time(env)
        if built is not None and built < SPLIT_FROM:
            return ContextForm.OLD
    return default_form(generation)


def nic_text(ip: IpAddress, port: int) -> str:
    """``tcp://ip:port`` or ``tcp6://[ip]:port``."""
    return f"tcp://{ip}:{port}" if isinstance(ip, IPv4Address) else f"tcp6://[{ip}]:{port}"


def parse_nic(text: str) -> tuple[IpAddress, int]:
    """(address, port) of a nic string. Raises HostError INVALID_PARAM for what is none."""
    match = _NIC.fullmatch(text)
    try:
        if match is None:
            raise ValueError("not PROTOCOL://ADDRESS:PORT")
        port = int(match["port"])
        if not 0 < port < 1 << 16:
            raise ValueError(f"port {port}")
        return (IPv4Address(match["v4"]) if match["v6"] is None else IPv6Address(match["v6"])), port
    except (AddressValueError, ValueError) as error:
        raise HostError(HostErrorCode.INVALID_PARAM, f"nic {text!r}: {error}") from None


def rdma_address(root_info: str, physical_id: int) -> IpAddress:
    """RDMA address of a device: the last good IPV4 or IPV6 address of its CLOS levels in the root info.

    Raises HostError INVALID_PARAM for text that is no root info, an unknown device, or one without any.
    """

    def bad(why: str) -> HostError:
        return HostError(HostErrorCode.INVALID_PARAM, f"topology, device {physical_id}: {why}")

    try:
        root: Any = json.loads(root_info)
        devices = [rank for rank in root["rank_list"] if int(rank.get("device_id", -1)) == physical_id]
        if not devices:
            raise bad("not in rank_list")
        found: IpAddress | None = None
        families: set[str] = set()
        for level in devices[0]["level_list"]:
            if level.get("net_type") != "CLOS":
                continue
            for entry in level["rank_addr_list"]:
                family = entry["addr_type"]
                families.add(family)
                try:
                    if family == "IPV4":
                        found = IPv4Address(entry["addr"])
                    elif family == "IPV6":
                        found = IPv6Address(entry["addr"])
                except AddressValueError as error:
                    log.warning("topology, device %d: %s", physical_id, error)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise bad(f"{type(error).__name__}: {error}") from None
    if found is None:
        raise bad(f"no address of a known family among {sorted(families)}")
    return found
