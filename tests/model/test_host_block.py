"""The queue-information block: bytes, and the traps of how it is filled (device page 7.2, 7.3, 8.1 row 17).

Sweep: generations, forms, 1 to 33 ranks, several QPs, each read that can fail. Stimulus: channels with
numbers that a person can follow. Checks: whole blocks typed by hand, closed forms of every place, what stays
zero, who is left out. Timing: none. Does not prove what real HCOMM leaves in its entities.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from pymodel.generation import Generation
from pymodel.host.errors import HcommError, HostError, HostErrorCode
from pymodel.host.hcomm import ChannelEntity, ContextForm
from pymodel.host.ranks import RankOptions, Role
from pymodel.host.transport_types import MemoryRegion
from tests.model.host_bench import ATOMIC, BLOCK, G1, G2, G3, HEAP, Bench, Faulty, connected, number


def by_hand(size: int, *parts: tuple[int, int, int]) -> bytes:
    """(offset, bytes, value) of everything that is not zero."""
    raw = bytearray(size)
    for at, length, value in parts:
        raw[at : at + length] = value.to_bytes(length, "little")
    return bytes(raw)


HAND_G1 = by_hand(
    640,
    (0, 4, 1), (8, 8, 0x17FFBE000030), (16, 8, 0x17FFBE0000D0), (24, 8, 0x17FFBE000170),
    (32, 8, 0x17FFBE0001E0), (40, 8, 0x17FFBE000250),
    # sq[1]
    (128, 4, 0x10), (136, 8, 0x200010000000), (144, 4, 128), (148, 4, 32), (152, 8, 0x200010100000),
    (160, 8, 0x200010100008), (168, 4, 0), (176, 8, 0x8010000), (184, 4, 3), (192, 8, 0x150000000400),
    (200, 4, 0x1021),
    # rq[1]
    (352, 8, 0x150000000400), (360, 4, 0x1021),
    # scq[1]
    (424, 4, 0x17), (432, 8, 0x200010200000), (440, 4, 64), (444, 4, 64), (448, 8, 0x200010100010),
    (456, 8, 0x200010100018), (464, 4, 1), (472, 8, 0x8010010),
    # mr
    (608, 4, 0x1011), (612, 4, 0x1012), (636, 4, 0x2012),
)  # fmt: skip
G2_COMMON = (
    (0, 4, 1), (8, 8, 0x17FFBE000030), (16, 8, 0x17FFBE0000F0), (24, 8, 0x17FFBE0001B0),
    (32, 8, 0x17FFBE000230), (40, 8, 0x17FFBE0002B0),
    (144, 4, 0x10), (152, 8, 0x200010000000), (160, 4, 128), (164, 4, 32), (168, 8, 0x200010100000),
    (176, 8, 0x200010100008), (192, 8, 0x8010000), (200, 4, 3), (208, 8, 0x150000000400), (216, 4, 0x1021),
    (400, 8, 0x150000000400), (408, 4, 0x1021),
    (496, 4, 0x17), (504, 8, 0x200010200000), (512, 4, 64), (516, 4, 64), (520, 8, 0x200010100010),
    (528, 8, 0x200010100018), (536, 4, 1), (544, 8, 0x8010010),
    (704, 4, 0x1011), (708, 4, 0x1012), (732, 4, 0x2012),
)  # fmt: skip
HAND_G2 = by_hand(
    736, *G2_COMMON, (184, 4, 1), (224, 8, 0x200010300000), (232, 1, 4), (552, 8, 0x200010380000)
)
"""Split doorbells: SW_DB forced, dbSwVa and mtuShift taken over."""


def test_two_ranks_by_hand(tmp_path: Any) -> None:
    """640 bytes in G1, 736 in G2, there with the new and with the old form of HCOMM's contexts."""
    assert connected(2, G1).block() == HAND_G1
    assert connected(2, G2).block() == HAND_G2
    info = tmp_path / "share/info/hcomm/version.info"
    info.parent.mkdir(parents=True)
    info.write_text("Version=9.0\ntimestamp=20260706_235959999\n")
    env = {"ASCEND_HOME_PATH": str(tmp_path)}
    assert connected(2, G2, env=env, form=ContextForm.OLD).block() == by_hand(736, *G2_COMMON)
    assert connected(2, G2, env=env, form=ContextForm.SPLIT).block() != HAND_G2, "the form matters"


def test_g3_adds_cos_and_attributes() -> None:
    """Device page 7.2 by field order: db_cos behind mtuShift; cq_attr_flags in front of dbSwVa. 768 bytes."""
    raw = connected(2, G3).block()
    assert len(raw) == 768
    assert (number(raw, 144 + 80, 8), raw[144 + 88], raw[144 + 89]) == (0x200010300000, 4, 5)
    scq = 48 + 2 * 192 + 72
    assert (number(raw, scq + 56, 4), number(raw, scq + 64, 8)) == (2, 0x200010380000)


@pytest.mark.parametrize(("generation", "wq", "cq"), [(G1, 80, 56), (G2, 96, 64), (G3, 96, 72)])
@pytest.mark.parametrize(("ranks", "qps"), [(2, 1), (3, 3), (16, 1), (33, 2)])
def test_every_place(generation: Generation, wq: int, cq: int, ranks: int, qps: int) -> None:
    """Pointers, entries, keys and cells of each peer; everything else is zero.

    33 ranks have addresses of their own, so the limit of 16 does not apply. Zero: MR sizes and addresses, own
    sq and scq, all of rcq, rq but for its atomic cell, lkeys of others.
    """
    bench = connected(ranks, generation, qps=qps)
    own = ranks // 2
    raw, n = bytearray(bench.block(own)), ranks * qps
    pointers = [number(raw, 8 * i, 8) - BLOCK for i in range(1, 6)]
    assert pointers == [48, 48 + wq * n, 48 + 2 * wq * n, 48 + (2 * wq + cq) * n, 48 + 2 * (wq + cq) * n]
    assert number(raw, 0, 4) == qps and len(raw) == 48 + 2 * (wq + cq) * n + 24 * ranks
    sq, rq, scq, _, mr = pointers
    for peer in range(ranks):
        assert number(raw, mr + 24 * peer + 20, 4) == 0x1000 * (peer + 1) + 0x12
        raw[mr + 24 * peer + 20 : mr + 24 * peer + 24] = bytes(4)
        if peer == own:
            assert number(raw, mr + 24 * peer + 16, 4) == 0x1000 * (own + 1) + 0x11
            raw[mr + 24 * peer + 16 : mr + 24 * peer + 20] = bytes(4)
            continue
        for qp in range(qps):
            at, number_ = peer * qps + qp, 0x100 * own + 0x10 * peer + qp
            assert number(raw, sq + wq * at, 4) == number_ and number(raw, sq + wq * at + 20, 4) == 32 << qp
            assert number(raw, scq + cq * at, 4) == number_ + 7
            for queue in (sq, rq):
                cell = queue + wq * at + 64
                assert number(raw, cell, 8) == ATOMIC + 0x10000 * own + 1024 * peer
                assert number(raw, cell + 8, 4) == 0x1000 * (own + 1) + 0x21
            raw[sq + wq * at : sq + wq * at + wq] = bytes(wq)
            raw[rq + wq * at + 64 : rq + wq * at + 76] = bytes(12)
            raw[scq + cq * at : scq + cq * at + cq] = bytes(cq)
    assert not any(raw[48:])


def test_one_copy_to_the_device() -> None:
    """The block is built on the host and goes down whole; nothing else is written."""
    bench = connected(3, G2)
    copies = [args for name, args in bench.drivers[1].calls if name == "copy_to_device"]
    assert [(addr, len(data)) for addr, data in copies] == [(BLOCK, len(bench.block(1)))]
    assert copies[0][1] == bench.block(1)


def test_second_region_passes_for_the_atomic_buffer() -> None:
    """8.1 row 17: localBuffer[1] is the second heap region if there is one, so atomics get its lkey."""
    bench = Bench(2).open()
    bench.managers[0].register_memory_region(MemoryRegion(HEAP + (5 << 42), 4096))
    raw = bench.prepare().connect().block()
    assert number(raw, 128 + 72, 4) == 0x1021, "lkey of the second heap region; that of the buffer is 0x1031"
    assert [region.tag for region in bench.chips[0].regions] == ["HcclBuffer", "HcclBuffer", "AtomicBuffer"]


def test_without_a_heap_region_the_atomic_buffer_passes_for_it() -> None:
    """The other side of the same assumption: own keys are those of the atomic buffer, its lkey is 0."""
    bench = Bench(2).open([0], heap=False).open([1])
    bench.prepare().connect(0)
    raw = bench.block()
    assert (number(raw, 592 + 16, 4), number(raw, 592 + 20, 4)) == (0x1011, 0x1012)
    assert [region.tag for region in bench.chips[0].regions] == ["AtomicBuffer"]
    assert (number(raw, 128 + 64, 8), number(raw, 128 + 72, 4)) == (ATOMIC + 1024, 0)


def test_exchanged_keys() -> None:
    """The exported key is all zero, hence size and address 0; another would be believed; none skips the rank.

    Of several keys the one with the lowest address counts, of equal addresses the first.
    """
    bench = Bench(3).open()
    assert bench.managers[0].query_memory_key(HEAP) == bytes(64)
    nics = bench.nics()
    keys = [
        bytes(8) + addr.to_bytes(8, "little") + size.to_bytes(8, "little") + bytes(40)
        for addr, size in ((0x1235, 1), (0x1234, 0x5678), (0x1234, 2))
    ]
    nics[1] = replace(nics[1], memory_keys=tuple(keys))
    nics[2] = replace(nics[2], memory_keys=())
    bench.managers[0].prepare(nics)
    raw = bench.connect(0).block()
    mr = 48 + 272 * 3
    assert (number(raw, mr + 24, 8), number(raw, mr + 32, 8)) == (0x5678, 0x1234)
    assert number(raw, mr + 24 + 20, 4) == 0x2012
    assert not any(raw[mr + 48 : mr + 72]) and not any(raw[48 + 160 : 48 + 240]), "rank 2 has no key"
    assert bench.managers[0].parse_memory_key(keys[0]) == (0, 0)


def test_a_rank_that_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:
    """Prepare lets it pass for a role that is no PEER; the block has no room for it."""
    bench = Bench(2)
    bench.managers[0].open_device(bench.options(0, role=Role.SENDER))
    bench.managers[0].register_memory_region(MemoryRegion(HEAP, 4096))
    bench.open([1])
    bench.managers[0].prepare(
        {**bench.nics(), 2: RankOptions("tcp://10.0.0.3:1"), -1: RankOptions("tcp://1.1.1.1:1")}
    )
    assert bench.connect(0).block() == HAND_G1
    assert "there is no rank 2 of 2" in caplog.text and "there is no rank -1 of 2" in caplog.text


# ---------------------------------------------------------------------- partial tables
def _unreadable(driver: Faulty, *pieces: int) -> None:
    """Reads of device memory that start at one of these addresses fail."""

    def hook(name: str, number_: int, args: tuple[Any, ...]) -> None:
        if name == "copy_from_device" and args[0] in pieces:
            raise HcommError("unreadable")

    driver.hook = hook


def _prepared() -> tuple[Bench, Bench]:
    """The bench to spoil, and a whole one like it: their channel entities have the same addresses."""
    return Bench(3).open().prepare(), connected(3)


def _entity(whole: Bench, peer: int) -> tuple[int, ChannelEntity]:
    channel = whole.managers[0].state.channels[peer - 1]
    return channel, ChannelEntity.unpack(whole.drivers[0].driver.memory.read(channel, 256))


def _without(whole: bytes, *spans: tuple[int, int]) -> bytes:
    raw = bytearray(whole)
    for at, size in spans:
        raw[at : at + size] = bytes(size)
    return bytes(raw)


SQ2, RQ2, SCQ2, MR2 = (48 + 160, 80), (48 + 240 + 160, 80), (48 + 480 + 112, 56), (48 + 816 + 48, 24)


@pytest.mark.parametrize(
    ("what", "lost"),
    [
        ("entity", (SQ2, RQ2, SCQ2, MR2)),
        ("remote_buffer_addr", (SQ2, RQ2, SCQ2, MR2)),
        ("sq_context_addr", (SQ2, RQ2, SCQ2)),
        ("cq_context_addr", (RQ2, SCQ2, (48 + 160 + 64, 12))),
    ],
)
def test_what_cannot_be_read_of_a_peer_is_skipped(
    what: str, lost: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Connect succeeds, logs, and leaves the peer's entries as they were by then: sq[2].depth is 0."""
    bench, whole = _prepared()
    channel, entity = _entity(whole, 2)
    _unreadable(bench.drivers[0], channel if what == "entity" else getattr(entity, what))
    with caplog.at_level(logging.ERROR):
        bench.connect(0)
    assert bench.block() == _without(whole.block(), *lost) and bench.managers[0].state.connected
    assert "rank 2: unreadable" in caplog.text


@pytest.mark.parametrize("what", ["sq", "cq", "remote_buffer"])
@pytest.mark.parametrize("how", ["num", "addr"])
def test_what_an_entity_does_not_have_is_skipped(
    what: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Absent queues do not keep the rest out: without an SQ the depth is 0, but the atomic cell is there."""
    bench, whole = _prepared()
    channel, entity = _entity(whole, 2)
    name = f"{what}_{how}" if what == "remote_buffer" or how == "num" else f"{what}_context_addr"
    spoilt = replace(entity, **{name: 0})

    def read(addr: int, size: int) -> bytes:
        return spoilt.pack() if addr == channel else bench.drivers[0].driver.copy_from_device(addr, size)

    bench.drivers[0].answers["copy_from_device"] = read
    with caplog.at_level(logging.ERROR):
        bench.connect(0)
    lost: Any = {"sq": ((SQ2[0], 60),), "cq": (SCQ2,), "remote_buffer": (SQ2, RQ2, SCQ2, MR2)}[what]
    assert bench.block() == _without(whole.block(), *lost)
    assert "rank 2" in caplog.text


def test_local_keys_come_from_the_first_channel_that_can_be_read() -> None:
    """An unreadable first entity costs its peer; an unreadable own region costs the connection."""
    bench, whole = _prepared()
    channel, entity = _entity(whole, 1)
    _unreadable(bench.drivers[0], channel)
    raw = bench.connect(0).block()
    assert number(raw, 48 + 816 + 16, 4) == 0x1011 and number(raw, 48 + 160 + 72, 4) == 0x1021
    assert not any(raw[48 + 80 : 48 + 160])
    bench, _ = _prepared()
    _unreadable(bench.drivers[0], entity.local_buffer_addr)
    before = bench.managers[0].state, bench.drivers[0].holds()
    with pytest.raises(HostError, match="no local buffer") as refused:
        bench.connect(0)
    assert refused.value.code is HostErrorCode.CHANNEL_FAILED
    assert (bench.managers[0].state, bench.drivers[0].holds()) == before
    bench, _ = _prepared()
    _unreadable(bench.drivers[0], entity.local_buffer_addr + 64)
    assert number(bench.connect(0).block(), 48 + 160 + 72, 4) == 0, "no atomic lkey, no error"


def test_no_remote_keys_at_all() -> None:
    """Connect fails only when not one peer could be read."""
    bench, whole = _prepared()
    _unreadable(bench.drivers[0], *(_entity(whole, peer)[1].remote_buffer_addr for peer in (1, 2)))
    before = bench.managers[0].state, bench.drivers[0].holds()
    with pytest.raises(HostError, match="no remote buffer") as refused:
        bench.connect(0)
    assert refused.value.code is HostErrorCode.CHANNEL_FAILED
    assert (bench.managers[0].state, bench.drivers[0].holds()) == before


def test_a_single_rank() -> None:
    """No channel, so no local keys: Connect fails. A loopback channel, not in the original, helps."""
    for generation in (G1, G2):
        bench = Bench(1, generation).open().prepare()
        with pytest.raises(HostError, match="no local buffer"):
            bench.connect()
        bench.managers[0].close_device()
        bench.managers[0].open_device(bench.options(0, loopback=True))
        bench.managers[0].register_memory_region(MemoryRegion(HEAP, 4096))
        raw = bench.prepare().connect().block()
        mr = len(raw) - 24
        assert number(raw, mr + 16, 4) and not any(raw[48 : mr + 16])
        assert [desc.remote_rank for desc in bench.chips[0].descs] == [0]


def test_an_older_host_skips_a_peer_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    """G1 does not poll: a channel without its peer yet has no remote regions."""
    bench = Bench(3).open([0, 1])
    nics = bench.nics() | {2: RankOptions("tcp://10.0.0.3:60034")}
    bench.managers[0].prepare(nics)
    with caplog.at_level(logging.ERROR):
        bench.connect(0)
    assert "channel to rank 2: no remote buffers" in caplog.text
    assert number(bench.block(), 48 + 160 + 20, 4) == 0 and number(bench.block(), 48 + 80 + 20, 4) == 32
