"""Formulas and surroundings of the transport manager: ports, roles, numbers, environment, topology, sizes.

Sweep: all pairs of 40 ranks and drawn ones; every value of both variables; build times around the change of
form; root infos. Stimulus: hypothesis and tables. Checks: formulations of their own (device page 7.1 to 7.4),
descriptors as HCOMM gets them. Timing: none. Does not prove the format of a real root info file.
"""

from __future__ import annotations

import itertools
import json
import logging
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.generation import Generation
from pymodel.host import environment as env
from pymodel.host.driver import SocketRole
from pymodel.host.errors import HostError, HostErrorCode
from pymodel.host.hcomm import ContextForm
from pymodel.host.ranks import channel_index, channel_port, device_port, socket_role
from tests.model.host_bench import G1, G2, G3, Bench, connected

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=100)
RANKS = st.integers(0, 1 << 20)


def test_ports_of_all_pairs() -> None:
    """A square of 16 x 16 ports from 60032 on, row by server; the same at both ends; one end listens."""
    square = {(s, c): 60032 + i for i, (s, c) in enumerate(itertools.product(range(16), range(16)))}
    seen = set()
    for rank, remote in itertools.permutations(range(40), 2):
        server, client = sorted((rank, remote))
        port = channel_port(rank, remote)
        assert port == channel_port(remote, rank) == square[server & 15, client & 15]
        assert socket_role(rank, remote) is (SocketRole.SERVER if rank == server else SocketRole.CLIENT)
        seen.add(port)
    assert (min(seen), max(seen)) == (60032, 60287)
    assert [device_port(rank) for rank in (0, 15, 16, 33)] == [60032, 60047, 60032, 60033]


def test_sixteen_ranks_need_no_port_twice() -> None:
    """Of the ranks behind one address no two channels share a port; with a 17th some would."""
    ports = [channel_port(a, b) for a, b in itertools.combinations(range(16), 2)]
    assert len(set(ports)) == len(ports) == 120
    more = [channel_port(a, b) for a, b in itertools.combinations(range(17), 2)]
    assert len(set(more)) == len(more), "0 with 16 is 60032, which no pair of the first 16 has"
    more = [channel_port(a, b) for a, b in itertools.combinations(range(18), 2)]
    assert len(set(more)) < len(more), "(0, 17) meets (0, 1)"


@SETTINGS
@given(RANKS, RANKS)
def test_ports_of_drawn_ranks(rank: int, remote: int) -> None:
    """In hexadecimal: 0xEA80 with the low digit of the client and the low digit of the server above it."""
    low, high = (rank, remote) if rank <= remote else (remote, rank)
    assert channel_port(rank, remote) - 0xEA80 == int(f"{low & 15:x}{high & 15:x}", 16)
    assert 60032 <= device_port(rank) <= 60047 and (device_port(rank) - rank) % 16 == 0


@SETTINGS
@given(st.integers(2, 64), st.data())
def test_channels_are_numbered_without_the_own_rank(ranks: int, data: st.DataObject) -> None:
    """The list of all other ranks in order, looked up."""
    own = data.draw(st.integers(0, ranks - 1))
    others = [rank for rank in range(ranks) if rank != own]
    assert [channel_index(own, rank) for rank in others] == list(range(ranks - 1))


@pytest.mark.parametrize("generation", [G1, G2, G3])
def test_descriptors(generation: Generation) -> None:
    """What HcommChannelCreate gets, field by field, of the middle one of three ranks."""
    bench = connected(3, generation, env={"HCCL_RDMA_TC": "8", "HCCL_RDMA_SL": "6"})
    first, last = bench.chips[1].descs
    assert (first.remote_rank, str(first.remote_ip), first.role, first.port) == (
        0, "10.0.0.1", SocketRole.CLIENT, 60033,
    )  # fmt: skip
    assert (last.remote_rank, str(last.remote_ip), last.role, last.port) == (
        2, "10.0.0.3", SocketRole.SERVER, 60032 + 18,
    )  # fmt: skip
    for desc in (first, last):
        assert (desc.queue_num, desc.notify_num, desc.exchange_all_mems) == (1, 3, True)
        assert (desc.traffic_class, desc.service_level, desc.cq_attr_flags) == (8, 6, 0)
        retry = (None, None) if generation is G1 else (7, 20)
        assert (desc.retry_count, desc.retry_interval) == retry
    engines = [args[1] for name, args in bench.drivers[1].calls if name == "channel_create"]
    endpoint = next(args[0] for name, args in bench.drivers[1].calls if name == "endpoint_create")
    assert engines == [4] and (endpoint.location, endpoint.protocol) == ("HOST", 1)
    assert (str(endpoint.ip), endpoint.physical_id) == ("10.0.0.2", 1)


def test_defaults_of_the_descriptor() -> None:
    """Traffic class 132, service level 4."""
    desc = connected(2).chips[0].descs[0]
    assert (desc.traffic_class, desc.service_level) == (132, 4)


@pytest.mark.parametrize("value", [*range(-5, 265), 1 << 40])
def test_numbers_in_the_environment(value: int) -> None:
    """HCCL_RDMA_TC: 0..255 and a multiple of 4; HCCL_RDMA_SL: 0..7; else the default."""
    good_tc = value in range(0, 256, 4)
    assert env.traffic_class({"HCCL_RDMA_TC": str(value)}) == (value if good_tc else 132)
    assert env.service_level({"HCCL_RDMA_SL": str(value)}) == (value if value in range(8) else 4)


@pytest.mark.parametrize("text", ["", "x", "4x", "0x8", "1.0", "8 ", "- 4", "\u0664"])
def test_no_numbers_in_the_environment(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """The default, with a warning; a variable that is absent gives it without."""
    with caplog.at_level(logging.WARNING):
        assert (env.traffic_class({"HCCL_RDMA_TC": text}), env.service_level({"HCCL_RDMA_SL": text})) == (
            132,
            4,
        )
        assert caplog.text.count("the default") == 2
        caplog.clear()
        assert (env.traffic_class({}), env.service_level({})) == (132, 4)
        assert not caplog.text
    assert env.traffic_class({"HCCL_RDMA_TC": " +8"}) == 8


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("timestamp=20260707_000000000", ContextForm.SPLIT),
        ("timestamp=20260706_235999999", ContextForm.OLD),
        ("timestamp=20260707_0000", ContextForm.SPLIT),
        ("timestamp=202607070000", ContextForm.SPLIT),
        ("timestamp=20250324_000012356", ContextForm.OLD),
        ("timestamp=20260706_2359\r\nVersion=1", ContextForm.OLD),
        ("Version=8.5\ninnerversion=V1\ntimestamp=20260101_010101", ContextForm.OLD),
        ("timestamp=20260101_0101\ntimestamp=20270101_0101", ContextForm.OLD),
        ("#timestamp=20260101_0101", ContextForm.SPLIT),
        ("Version=8.5", ContextForm.SPLIT),
        ("timestamp=20260706", ContextForm.SPLIT),
        ("timestamp=2026-07-06_00:00", ContextForm.SPLIT),
        ("timestamp=000000000000", ContextForm.SPLIT),
        ("timestamp=", ContextForm.SPLIT),
        ("", ContextForm.SPLIT),
    ],
)
def test_form_by_build_time(tmp_path: Any, text: str, form: ContextForm) -> None:
    """G2: before 2026-07-07 the old form; what cannot be read counts as new. G1 and G3 do not look."""
    path = tmp_path / "share" / "info" / "hcomm" / "version.info"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    home = {"ASCEND_HOME_PATH": str(tmp_path)}
    assert env.context_form(G2, home) is form
    if text.startswith("timestamp=20250324"):
        assert env.hcomm_build_time(home) == 202503240000
    assert env.context_form(G1, home) is ContextForm.OLD and env.context_form(G3, home) is ContextForm.NEWEST


def test_form_without_a_version_file(tmp_path: Any) -> None:
    """No variable, an empty one, no file, a folder in its place."""
    (tmp_path / "b" / "share" / "info" / "hcomm" / "version.info").mkdir(parents=True)
    for home in (
        {},
        {"ASCEND_HOME_PATH": ""},
        {"ASCEND_HOME_PATH": f"{tmp_path}/a"},
        {"ASCEND_HOME_PATH": f"{tmp_path}/b"},
    ):
        assert env.context_form(G2, home) is ContextForm.SPLIT


# ---------------------------------------------------------------------- addresses
@SETTINGS
@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(1, 65535))
def test_nic_strings(ip: IPv4Address | IPv6Address, port: int) -> None:
    """There and back; the texts are those of the page."""
    text = env.nic_text(ip, port)
    assert text == (f"tcp://{ip}:{port}" if ip.version == 4 else f"tcp6://[{ip}]:{port}")
    assert env.parse_nic(text) == (ip, port)


@pytest.mark.parametrize(
    "text",
    [
        "", "10.0.0.1:1", "tcp:/10.0.0.1:1", "tcp://10.0.0.1", "tcp://10.0.0.1:", "tcp://10.0.0.1:0",
        "tcp://10.0.0.1:65536", "tcp://10.0.0.1:123456", "tcp://10.0.0:1", "tcp://10.0.0.256:1", "tcp://::1:1",
        "tcp6://[::1]", "tcp6://[::1]:", "tcp6://[::1:9", "tcp6://[10.0.0.1]:9", "t-p://10.0.0.1:1",
        "://10.0.0.1:1", "abcdefghijklmnopq://10.0.0.1:1", "tcp://10.0.0.1:1 ", "tcp://10.0.0.1:+1", "tcp://[]:1",
    ],
)  # fmt: skip
def test_bad_nic_strings(text: str) -> None:
    """Each is refused by name."""
    with pytest.raises(HostError, match="nic") as refused:
        env.parse_nic(text)
    assert refused.value.code is HostErrorCode.INVALID_PARAM


def _root(*levels: Any, device: Any = 3) -> str:
    others = {"device_id": 9, "local_id": 0, "level_list": [_clos(("IPV4", "9.9.9.9"))]}
    return json.dumps(
        {"rank_list": [others, {"device_id": device, "local_id": 1, "level_list": list(levels)}]}
    )


def _clos(*addresses: tuple[str, str], kind: str = "CLOS") -> dict[str, Any]:
    return {"net_type": kind, "rank_addr_list": [{"addr_type": t, "addr": a} for t, a in addresses]}


@pytest.mark.parametrize(
    ("root", "ip"),
    [
        (_root(_clos(("IPV4", "10.1.2.3"))), "10.1.2.3"),
        (_root(_clos(("IPV6", "fe80::1"))), "fe80::1"),
        (_root(_clos(("IPV4", "10.1.2.3")), device="3"), "10.1.2.3"),
        (
            _root(_clos(("EID", "00")), _clos(("IPV4", "1.2.3.4"), kind="TOPO"), _clos(("IPV4", "10.1.2.3"))),
            "10.1.2.3",
        ),
        (_root(_clos(("IPV4", "10.1.2.3"), ("IPV4", "10.1.2.300"))), "10.1.2.3"),
        (_root(_clos(("IPV4", "10.1.2.3"), ("IPV4", "10.1.2.4")), _clos(("IPV6", "::5"))), "::5"),
    ],
)
def test_address_from_the_topology(root: str, ip: str) -> None:
    """By physical ID; the last good one of the CLOS levels, as the original's loop leaves it."""
    assert str(env.rdma_address(root, 3)) == ip


@pytest.mark.parametrize(
    "root",
    [
        "", "[]", "{}", "null", '{"rank_list": 5}', '{"rank_list": [5]}', _root(device=4), _root(),
        _root(_clos()), _root(_clos(("EID", "00"))), _root(_clos(("IPV4", "::1"))),
        _root(_clos(("IPV5", "10.0.0.1"))),
        _root(_clos(("IPV4", "10.0.0.1"), kind="TOPO")), _root({"net_type": "CLOS"}),
        _root({"net_type": "CLOS", "rank_addr_list": [{"addr": "10.0.0.1"}]}),
    ],
)  # fmt: skip
def test_no_address_in_the_topology(root: str) -> None:
    """The device fails to open with INVALID_PARAM, and nothing is left of the attempt."""
    bench = Bench(4)
    bench.drivers[3].answers["root_info"] = lambda physical: root
    with pytest.raises(HostError) as refused:
        bench.open([3])
    assert refused.value.code is HostErrorCode.INVALID_PARAM
    assert bench.drivers[3].holds() == ({}, {}, {}, {})


def test_both_families() -> None:
    """Ranks with IPv4 and IPv6 addresses side by side."""
    bench = connected(
        3, G2, ip=lambda r: IPv6Address(f"fd00::{r}") if r % 2 else IPv4Address(f"10.0.0.{r + 1}")
    )
    assert bench.managers[1].get_nic() == "tcp6://[fd00::1]:60033"
    assert bench.managers[2].get_nic() == "tcp://10.0.0.3:60034"
    assert str(bench.chips[0].descs[0].remote_ip) == "fd00::1"


# ---------------------------------------------------------------------- sizes
@pytest.mark.parametrize(("generation", "align"), [(G1, 512), (G2, 4096), (G3, 4096)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 15, 16, 17, 33])
def test_atomic_buffer(generation: Generation, align: int, ranks: int) -> None:
    """1024 bytes a rank, the smallest multiple of 512 (G1) or 4096 that holds them; registered as it is."""
    bench = Bench(ranks, generation).open([0])
    (block, block_align), (atomic, atomic_align) = bench.chips[0].asked
    assert atomic == next(size for size in itertools.count(0, align) if size >= 1024 * ranks)
    assert atomic_align == align and block_align == 64
    per_rank = {G1: 296, G2: 344, G3: 360}[generation]
    assert block == 48 + per_rank * ranks, "device page 7.2"
    if ranks > 1:
        bench.open(range(1, ranks)).prepare().connect()
        region = bench.chips[0].regions[-1]
        assert (region.tag, region.size, int(region.access)) == ("AtomicBuffer", atomic, 1)
