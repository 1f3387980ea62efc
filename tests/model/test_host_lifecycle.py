"""The transport manager's calls in every state, and every failure of every step (device page 7.1).

Sweep: states x calls; each call of the driver in a whole life x failure, in each generation. Stimulus: legal
and illegal calls; a driver that fails once. Checks: the named error; manager, driver and device memory are
what they were before; closing never fails and leaves nothing behind. Timing: polling by a counted clock. Does
not prove how real HCOMM fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import pytest

from pymodel.generation import Generation
from pymodel.host.driver import MemType, MrAccess
from pymodel.host.errors import HcommError, HostError, HostErrorCode
from pymodel.host.ranks import RankOptions, Role
from pymodel.host.transport import RdmaTransportManagerV2
from pymodel.host.transport_types import MemoryRegion, TransportOptions, TransportState
from tests.model.host_bench import BLOCK, G1, G2, G3, HEAP, HEAP_BYTES, Bench, connected, number

Code = HostErrorCode
Call = Callable[[RdmaTransportManagerV2], Any]
NICS = {rank: RankOptions(f"tcp://10.0.0.{rank + 1}:{60032 + rank}") for rank in range(3)}
SHARED = {rank: RankOptions(f"tcp://10.0.0.1:{60032 + rank % 16}") for rank in range(17)}

STATES: dict[str, Callable[[Bench], Any]] = {
    "closed": lambda b: b.open([1, 2]),
    "open": lambda b: b.open([0], heap=False).open([1, 2]),
    "registered": lambda b: b.open(),
    "prepared": lambda b: b.open().prepare(),
    "connected": lambda b: b.open().prepare().connect(),
    "closed again": lambda b: b.open().prepare().connect().managers[0].close_device(),
}
CALLS: dict[str, Call] = {
    "open": lambda m: m.open_device(TransportOptions(0, 3)),
    "open, rank -1": lambda m: m.open_device(TransportOptions(-1, 3)),
    "open, rank 3 of 3": lambda m: m.open_device(TransportOptions(3, 3)),
    "open, no ranks": lambda m: m.open_device(TransportOptions(0, 0)),
    "open, no QPs": lambda m: m.open_device(TransportOptions(0, 3, qp_count=0)),
    "open, strange attributes": lambda m: m.open_device(TransportOptions(0, 3, cq_attr_flags=4)),
    "nic": lambda m: m.get_nic(),
    "qp info": lambda m: m.get_qp_info(),
    "register": lambda m: m.register_memory_region(MemoryRegion(HEAP + (9 << 42), 8)),
    "register twice": lambda m: m.register_memory_region(MemoryRegion(HEAP, 8)),
    "register nothing": lambda m: m.register_memory_region(MemoryRegion(HEAP + 8, 0)),
    "register -1 bytes": lambda m: m.register_memory_region(MemoryRegion(HEAP + 8, -1)),
    "register at 0": lambda m: m.register_memory_region(MemoryRegion(0, 8)),
    "register past the end": lambda m: m.register_memory_region(MemoryRegion((1 << 64) - 8, 9)),
    "register, access 8": lambda m: m.register_memory_region(MemoryRegion(HEAP + 8, 8, MrAccess(8))),
    "register, flags 4": lambda m: m.register_memory_region(MemoryRegion(HEAP + 8, 8, flags=4)),
    "unregister": lambda m: m.unregister_memory_region(HEAP),
    "unregister unknown": lambda m: m.unregister_memory_region(HEAP + 1),
    "query key": lambda m: m.query_memory_key(HEAP),
    "parse key": lambda m: m.parse_memory_key(bytes(64)),
    "prepare": lambda m: m.prepare(NICS),
    "prepare some": lambda m: m.prepare({0: NICS[0], 2: NICS[2]}),
    "prepare nobody": lambda m: m.prepare({}),
    "prepare without self": lambda m: m.prepare({1: NICS[1]}),
    "prepare too many": lambda m: m.prepare(SHARED),
    "prepare rank 3": lambda m: m.prepare({0: NICS[0], 3: NICS[1]}),
    "prepare rank -1": lambda m: m.prepare({0: NICS[0], -1: NICS[1]}),
    "prepare bad nic": lambda m: m.prepare({0: NICS[0], 1: RankOptions("10.0.0.2:60033")}),
    "prepare bad key": lambda m: m.prepare({0: NICS[0], 1: replace(NICS[1], memory_keys=(bytes(63),))}),
    "connect": lambda m: m.connect(),
    "connect with options": lambda m: m.connect_with_options(NICS),
    "connect with some options": lambda m: m.connect_with_options({0: NICS[0]}),
    "connect with bad options": lambda m: m.connect_with_options({0: RankOptions("tcp://x:1")}),
    "async connect": lambda m: m.async_connect(),
    "wait": lambda m: m.wait_for_connected(5),
    "close": lambda m: m.close_device(),
}
NEVER = {"query key", "parse key"}
ILLEGAL: dict[str, HostErrorCode] = {
    "register nothing": Code.INVALID_PARAM, "register -1 bytes": Code.INVALID_PARAM,
    "register at 0": Code.INVALID_PARAM, "register past the end": Code.INVALID_PARAM,
    "register, access 8": Code.INVALID_PARAM, "register, flags 4": Code.INVALID_PARAM,
    "unregister unknown": Code.UNKNOWN_ADDRESS, "prepare nobody": Code.INVALID_PARAM,
    "prepare without self": Code.INVALID_PARAM, "prepare too many": Code.INVALID_PARAM,
    "prepare rank 3": Code.INVALID_PARAM, "prepare rank -1": Code.INVALID_PARAM,
    "prepare bad nic": Code.INVALID_PARAM, "prepare bad key": Code.INVALID_PARAM,
    "connect with bad options": Code.INVALID_PARAM,
}  # fmt: skip
"""Of an open device, whatever its state."""


def expected(state: str, call: str) -> HostErrorCode | None:
    """The table of states and calls; None: succeeds."""
    if call in NEVER:
        return None
    if state.startswith("closed"):
        if call == "open":
            return None
        return Code.INVALID_PARAM if call.startswith("open") else Code.NOT_OPEN
    if call.startswith("open"):
        return Code.ALREADY_OPEN
    if call in ILLEGAL:
        return ILLEGAL[call]
    if call == "register twice":
        return None if state == "open" else Code.DUPLICATE
    if call == "unregister":
        return Code.UNKNOWN_ADDRESS if state == "open" else None
    if state in ("open", "registered"):
        if call in ("connect", "async connect"):
            return Code.NOT_PREPARED
        if call == "connect with some options":
            return Code.INVALID_PARAM
    if state != "connected" and call in ("wait", "qp info"):
        return Code.NOT_CONNECTED
    return None


@pytest.mark.parametrize("generation", [G1, G2])
@pytest.mark.parametrize("state", STATES)
def test_every_call_in_every_state(state: str, generation: Generation) -> None:
    """A refused call gives its error and changes nothing: manager, driver, device memory, peers."""
    seen: dict[str, HostErrorCode | None] = {}
    for call, run in CALLS.items():
        bench = Bench(3, generation)
        STATES[state](bench)
        manager = bench.managers[0]
        before = [manager.state, *(driver.holds() for driver in bench.drivers)]
        try:
            run(manager)
            seen[call] = None
        except HostError as error:
            seen[call] = error.code
            after = [manager.state, *(driver.holds() for driver in bench.drivers)]
            assert after == before, f"{call}, {state}: refused, but something changed"
    assert seen == {call: expected(state, call) for call in CALLS}


def test_every_error_is_reached() -> None:
    """The enumeration has no member that nothing raises; the last two come from the driver."""
    reached = {expected(state, call) for state in STATES for call in CALLS} - {None}
    rest = {Code.TOO_MANY_RANKS, Code.CHANNEL_FAILED, Code.OUT_OF_MEMORY}
    assert reached == set(Code) - rest and not reached & rest


# ---------------------------------------------------------------------- failures of the driver
def life(bench: Bench) -> list[tuple[str, Callable[[], Any]]]:
    """Every step of the life of rank 0; its peers are up."""
    m = bench.managers[0]
    return [
        ("open", lambda: m.open_device(bench.options(0))),
        ("register", lambda: m.register_memory_region(MemoryRegion(HEAP, HEAP_BYTES))),
        ("register", lambda: m.register_memory_region(MemoryRegion(HEAP + (9 << 42), 4096))),
        ("unregister", lambda: m.unregister_memory_region(HEAP + (9 << 42))),
        ("prepare", lambda: m.prepare(NICS)),
        ("connect", lambda: m.connect()),
        ("close", lambda: m.close_device()),
    ]


CODES = {
    "current_device": Code.INVALID_PARAM, "logic_device": Code.INVALID_PARAM,
    "physical_device": Code.INVALID_PARAM, "root_info": Code.INVALID_PARAM,
    "endpoint_create": Code.CHANNEL_FAILED, "malloc": Code.OUT_OF_MEMORY,
    "mem_register": Code.CHANNEL_FAILED, "mem_unregister": Code.CHANNEL_FAILED,
    "channel_create": Code.CHANNEL_FAILED, "channel_status": Code.CHANNEL_FAILED,
    "copy_to_device": Code.CHANNEL_FAILED,
}  # fmt: skip


@pytest.mark.parametrize("generation", [G1, G2, G3])
def test_every_failure_of_every_step(generation: Generation, caplog: pytest.LogCaptureFixture) -> None:
    """Each driver call of a whole life fails once. After a refusal the same step works and the rest too."""
    whole = Bench(3, generation).open([1, 2])
    for _, step in life(whole):
        step()
    calls = [name for name, _ in whole.drivers[0].calls]
    assert set(CODES) - {"channel_status"} <= set(calls) and (generation is G1) != ("channel_status" in calls)
    for number_, name in enumerate(calls):
        if name in ("sleep_ms", "copy_from_device"):
            continue  # partial tables have their own tests
        bench = Bench(3, generation).open([1, 2])
        driver, manager = bench.drivers[0], bench.managers[0]
        count = {"left": number_}

        def hook(name: str, _: int, __: Any, count: dict[str, int] = count) -> None:
            count["left"] -= 1
            if count["left"] == -1:
                raise MemoryError("none left") if name == "malloc" else HcommError("planted")

        driver.hook = hook
        failed = False
        for what, step in life(bench):
            before = manager.state, driver.holds()
            try:
                step()
            except HostError as error:
                assert what != "close" and error.code is CODES[name], (what, name, error)
                assert (manager.state, driver.holds()) == before, f"{what} with a failing {name}"
                failed = True
                step()
            assert what == "close" or count["left"] >= 0 or failed
        assert failed or calls.index("channel_create") < number_, f"call {number_}, {name}, failed unnoticed"
        assert manager.state == TransportState()
        if not failed:
            assert "planted" in caplog.text
            continue
        assert driver.holds() == ({}, {}, {}, {})


def test_closing_goes_on_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Everything fails: logged, tried to the end, and the manager is closed."""
    bench = connected(2, G2)

    def hook(name: str, _: int, __: Any) -> None:
        raise HcommError(f"no {name}")

    bench.drivers[0].hook = hook
    with caplog.at_level(logging.WARNING):
        bench.managers[0].close_device()
    for name in ("channel_destroy", "mem_unregister", "endpoint_destroy", "free"):
        assert f"no {name}" in caplog.text
    assert bench.managers[0].state == TransportState()
    bench.drivers[0].hook = None
    with pytest.raises(HostError, match="NOT_OPEN"):
        bench.managers[0].close_device()


def test_closing_in_order() -> None:
    """Channels, regions, endpoint, buffers; a second life works."""
    bench = connected(2, G2)
    first = bench.block()
    del bench.drivers[0].calls[:]
    bench.managers[0].close_device()
    assert [name for name, _ in bench.drivers[0].calls] == [
        "channel_destroy", "mem_unregister", "mem_unregister", "endpoint_destroy", "free", "free",
    ]  # fmt: skip
    bench.open([0]).prepare().connect(0)
    assert len(bench.block()) == len(first)


@pytest.mark.parametrize("which", ["current_device", "logic_device", "physical_device"])
def test_negative_ids(which: str) -> None:
    """Any ID below 0 fails the open; nothing is made by then."""
    bench = Bench(2)
    bench.drivers[0].answers[which] = lambda *_: -1
    with pytest.raises(HostError, match="device ID -1") as refused:
        bench.open([0])
    assert refused.value.code is Code.INVALID_PARAM and bench.drivers[0].holds() == ({}, {}, {}, {})


# ---------------------------------------------------------------------- polling
def _statuses(bench: Bench, *answers: list[int]) -> list[int]:
    """Let rank 0's channels answer so, the last for ever; gives what it sleeps."""
    left, slept = list(answers), []

    def status(channels: Any) -> list[int]:
        return left.pop(0) if len(left) > 1 else left[0]

    def sleep(milliseconds: int) -> None:
        slept.append(milliseconds)

    bench.drivers[0].answers |= {"channel_status": status, "sleep_ms": sleep}
    return slept


@pytest.mark.parametrize("generation", [G2, G3])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_polling_until_ready(generation: Generation, channels: int) -> None:
    """Every n * 10 ms; the last answer that still counts comes at n * 60000 ms."""
    bench = Bench(channels + 1, generation).open().prepare()
    slept = _statuses(bench, *[[1] * channels] * 6000, [0] * channels)
    bench.connect(0)
    assert slept == [10 * channels] * 6000
    late = Bench(channels + 1, generation).open().prepare()
    slept = _statuses(late, *[[1] * channels] * 6001, [0] * channels)
    before = late.managers[0].state, late.drivers[0].holds()
    with pytest.raises(HostError, match="not ready after") as refused:
        late.connect(0)
    assert refused.value.code is Code.CHANNEL_FAILED and slept == [10 * channels] * 6001
    assert (late.managers[0].state, late.drivers[0].holds()) == before


@pytest.mark.parametrize("bad", [2, 3, 4, -1, 77])
@pytest.mark.parametrize("place", [0, 1])
def test_any_other_status_is_a_failure(bad: int, place: int) -> None:
    """FAILED, TIMEOUT and unknown numbers, beside READY and CONNECTING; all channels are destroyed."""
    for other in (0, 1):
        bench = Bench(3, G2).open().prepare()
        answer = [bad, other] if place == 0 else [other, bad]
        slept = _statuses(bench, [1, 1], answer)
        with pytest.raises(HostError, match="status of channels"):
            bench.connect(0)
        assert slept == [20] and not bench.drivers[0].driver.channels
        destroyed = [args for name, args in bench.drivers[0].calls if name == "channel_destroy"]
        assert [len(channels) for (channels,) in destroyed] == [2]


def test_a_status_list_of_another_length() -> None:
    """Two channels, one READY: not taken for both."""
    bench = Bench(3, G2).open().prepare()
    _statuses(bench, [0])
    with pytest.raises(HostError, match="status of 1 channels of 2"):
        bench.connect(0)


def test_g1_does_not_poll() -> None:
    """Whatever the status would be."""
    bench = Bench(2, G1).open().prepare()
    slept = _statuses(bench, [2])
    bench.connect()
    assert not slept and "channel_status" not in [name for name, _ in bench.drivers[0].calls]


def test_a_peer_that_comes_up_meanwhile() -> None:
    """CONNECTING until the peer has an endpoint and a region."""
    bench = Bench(2, G2).open([0])
    manager = bench.managers[0]
    manager.prepare({rank: NICS[rank] for rank in (0, 1)})
    sleeps: list[int] = []

    def sleep(milliseconds: int) -> None:
        sleeps.append(milliseconds)
        if len(sleeps) == 7:
            bench.open([1])

    bench.drivers[0].answers["sleep_ms"] = sleep
    manager.connect()
    assert len(sleeps) == 7 and number(bench.block(), 732, 4) == 0x2012


def test_ends_that_do_not_fit_fail() -> None:
    """The simulated HCOMM refuses a channel whose other end has another number of queues."""
    bench = Bench(2, G2)
    bench.managers[1].open_device(TransportOptions(1, 2, qp_count=2))
    bench.managers[1].register_memory_region(MemoryRegion(HEAP, 4096))
    bench.open([0]).prepare().connect(1)
    with pytest.raises(HostError, match=r"status of channels: \[\(0, 2\)\]"):
        bench.connect(0)


# ---------------------------------------------------------------------- single rules
def test_sixteen_ranks_share_an_address() -> None:
    """The own rank counts, whatever its nic says; 17 fail before anything is made."""
    bench = Bench(17, G2, ip=lambda rank: IPv4Address("10.0.0.1")).open()
    others = {rank: RankOptions(f"tcp://10.0.0.1:{60032 + rank % 16}") for rank in range(1, 17)}
    spare = RankOptions("tcp://10.0.0.99:60032")
    bench.managers[0].prepare({0: spare, **others})
    before = bench.managers[0].state, bench.drivers[0].holds()
    with pytest.raises(HostError, match="17 ranks at 10.0.0.1, at most 16") as refused:
        bench.managers[0].connect()
    assert refused.value.code is Code.TOO_MANY_RANKS
    assert (bench.managers[0].state, bench.drivers[0].holds()) == before
    sixteen = Bench(16, G2, ip=lambda rank: IPv4Address("10.0.0.1")).open().prepare().connect()
    assert all(manager.state.connected for manager in sixteen.managers)
    apart = Bench(17, G2, ip=lambda rank: IPv4Address(f"10.0.0.{1 + rank // 16}")).open().prepare().connect()
    assert all(manager.state.connected for manager in apart.managers)


def test_a_second_connect_with_options_only_replaces_what_is_known() -> None:
    """No new channels, no new block, no check of the ranks."""
    bench = Bench(3).open()
    manager = bench.managers[0]
    manager.connect_with_options(NICS)
    before, holds = manager.state, bench.drivers[0].holds()
    manager.connect_with_options({7: RankOptions("tcp6://[::1]:9", (), Role.SENDER)})
    assert list(manager.state.ranks) == [7]
    assert replace(manager.state, ranks=before.ranks) == before and bench.drivers[0].holds() == holds
    del bench.drivers[0].calls[:]
    manager.connect()
    assert not bench.drivers[0].calls, "a second Connect is ignored"


def test_a_failed_first_connect_with_options_forgets_them() -> None:
    """Prepare succeeds, Connect does not: the ranks are unknown again."""
    bench = Bench(3, G2).open()
    _statuses(bench, [2, 2])
    with pytest.raises(HostError, match="CHANNEL_FAILED"):
        bench.managers[0].connect_with_options(NICS)
    assert not bench.managers[0].state.ranks


def test_prepare_again_keeps_known_ranks() -> None:
    """It adds; the first entry of a rank stays."""
    manager = Bench(3).open().managers[0]
    manager.prepare({0: NICS[0]})
    manager.prepare({0: NICS[1], 1: NICS[1]})
    assert {rank: str(info.ip) for rank, info in manager.state.ranks.items()} == {
        0: "10.0.0.1",
        1: "10.0.0.2",
    }


@pytest.mark.parametrize("role", [Role.SENDER, Role.RECEIVER])
def test_only_a_peer_is_checked(role: Role) -> None:
    """Other roles may prepare what they like, but for nics that are none."""
    manager = Bench(3).managers[0]
    manager.open_device(TransportOptions(0, 3, role))
    manager.prepare({5: NICS[1]})
    with pytest.raises(HostError, match="INVALID_PARAM"):
        manager.prepare({6: RankOptions("")})
    assert list(manager.state.ranks) == [5]


def test_regions_as_hcomm_sees_them() -> None:
    """DEVICE with the HBM flag or at an NPU address, else HOST; tag, rights and size go down as they are."""
    bench = Bench(1).open(heap=False)
    manager, chip = bench.managers[0], bench.chips[0]
    cases = [
        (MemoryRegion(1, 1, flags=2), MemType.DEVICE),
        (MemoryRegion(2, 1, flags=1), MemType.HOST),
        (MemoryRegion(3, 1, flags=0), MemType.HOST),
        (MemoryRegion(4, 1, flags=3), MemType.DEVICE),
        (MemoryRegion(0xFFF_FFFF_FFFF, 1, flags=1), MemType.HOST),
        (MemoryRegion(0x1000_0000_0000, 1, flags=1), MemType.DEVICE),
        (MemoryRegion(BLOCK, 1, flags=0), MemType.DEVICE),
        (MemoryRegion(0x17FF_FFFF_FFFF, 1, MrAccess.REDUCE, flags=1), MemType.DEVICE),
        (MemoryRegion(0x1800_0000_0000, 1 << 40, MrAccess.REMOTE_READ, flags=1), MemType.HOST),
        (MemoryRegion((1 << 64) - 8, 8, flags=1), MemType.HOST),
    ]
    for region, kind in cases:
        manager.register_memory_region(region)
        desc = chip.regions[-1]
        assert (desc.tag, desc.addr, desc.size, desc.kind, desc.access) == (
            "HcclBuffer", region.addr, region.size, kind, region.access,
        )  # fmt: skip
    assert MemoryRegion(1, 1).access == 7


def test_a_duplicate_keeps_the_first_entry() -> None:
    """The map has one entry per address; HCOMM is not asked again."""
    bench = Bench(1).open()
    manager = bench.managers[0]
    with pytest.raises(HostError, match="DUPLICATE"):
        manager.register_memory_region(MemoryRegion(HEAP, 77))
    assert manager.state.regions[HEAP][1].size == HEAP_BYTES and len(bench.chips[0].regions) == 1
    manager.unregister_memory_region(HEAP)
    with pytest.raises(HostError, match="UNKNOWN_ADDRESS"):
        manager.unregister_memory_region(HEAP)
    manager.register_memory_region(MemoryRegion(HEAP, 77))
