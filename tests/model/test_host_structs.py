"""Structs between HCOMM, host and device code, byte for byte.

Sweep: every struct, form and generation. Stimulus: a value of its own in every field. Checks: a mirror in
ctypes of its own, whose sizes and offsets are those of the device page, typed by hand; what a form does not
have stays zero. Timing: none. Does not prove that real HCOMM lays them out so.
"""

from __future__ import annotations

import ctypes as c
from dataclasses import astuple, fields, replace
from typing import Any

import pytest

from pymodel.generation import Generation
from pymodel.host import driver, hcomm, ranks
from pymodel.host import queue_info as table
from pymodel.host.hcomm import ChannelCq, ChannelEntity, ChannelSq, ContextForm, RegedBuffer

U8, U16, U32, U64, I8, I32 = c.c_uint8, c.c_uint16, c.c_uint32, c.c_uint64, c.c_int8, c.c_int32


def mirror(name: str, *members: tuple[str, Any]) -> type[c.LittleEndianStructure]:
    """A struct with the natural alignment of the original's compiler."""
    return type(name, (c.LittleEndianStructure,), {"_fields_": list(members)})


CELLS = (("va", U64), ("head", U64), ("tail", U64))
Channel = mirror(
    "Channel", ("header", U8 * 16), ("engine", I32), ("protocol", I32), ("local_notify_num", U32),
    ("remote_notify_num", U32), ("local_buffer_num", U32), ("remote_buffer_num", U32), ("sq_num", U32),
    ("cq_num", U32), ("local_notify_addr", U64), ("remote_notify_addr", U64), ("local_buffer_addr", U64),
    ("remote_buffer_addr", U64), ("sq_context_addr", U64), ("cq_context_addr", U64), ("reserved", U8 * 160),
)  # fmt: skip
Protection = mirror("Protection", ("type", I32), ("lkey", U32), ("rkey", U32), ("rest", U32 * 4))
Buffer = mirror(
    "Buffer", ("type", I32), ("addr", U64), ("size", U64), ("protection", Protection), ("rest", U8 * 12)
)
OldSq = mirror(
    "OldSq", *CELLS, ("db", U64), ("number", U32), ("entry", U32), ("depth", U32), ("mode", I8), ("sl", U8)
)
OldCq = mirror("OldCq", *CELLS, ("db", U64), ("number", U32), ("entry", U32), ("depth", U32), ("mode", I8))
SPLIT = (*CELLS, ("db", U64), ("db_sw", U64), ("number", U32), ("entry", U32), ("depth", U32))
SplitSq = mirror("SplitSq", *SPLIT, ("sl", U8), ("mtu_shift", U8))
SplitCq = mirror("SplitCq", *SPLIT)
NewestSq = mirror("NewestSq", *SPLIT, ("sl", U8), ("vendor", U64))
NewestCq = mirror("NewestCq", *SPLIT, ("vendor", U64))
WQ = (
    ("wqn", U32), ("buf_addr", U64), ("wqe_size", U32), ("depth", U32), ("head_addr", U64),
    ("tail_addr", U64), ("db_mode", I32), ("db_addr", U64), ("sl", U32), ("amo_addr", U64), ("amo_lkey", U32),
)  # fmt: skip
CQ = (
    ("cqn", U32), ("buf_addr", U64), ("cqe_size", U32), ("depth", U32), ("head_addr", U64),
    ("tail_addr", U64), ("db_mode", I32), ("db_addr", U64),
)  # fmt: skip
WQ_OF = {1: mirror("Wq1", *WQ), 2: mirror("Wq2", *WQ, ("db_sw_addr", U64), ("mtu_shift", U8))}
WQ_OF[3] = mirror("Wq3", *WQ, ("db_sw_addr", U64), ("mtu_shift", U8), ("db_cos", U8))
CQ_OF = {1: mirror("Cq1", *CQ), 2: mirror("Cq2", *CQ, ("db_sw_addr", U64))}
CQ_OF[3] = mirror("Cq3", *CQ, ("cq_attr_flags", U32), ("db_sw_addr", U64))
Info = mirror("Info", ("count", U32), ("sq", U64), ("rq", U64), ("scq", U64), ("rcq", U64), ("mr", U64))
Mr = mirror("Mr", ("size", U64), ("addr", U64), ("lkey", U32), ("rkey", U32))


def test_the_mirror_has_the_offsets_of_the_page() -> None:
    """Device page 7.2 and 7.4, numbers as they stand there."""
    sizes = {Channel: 256, Protection: 28, Buffer: 64, Info: 48, Mr: 24, WQ_OF[1]: 80, WQ_OF[2]: 96}
    sizes |= {CQ_OF[1]: 56, CQ_OF[2]: 64}
    assert {kind: c.sizeof(kind) for kind in sizes} == sizes
    offsets: dict[Any, dict[str, int]] = {
        Info: {"count": 0, "sq": 8, "rq": 16, "scq": 24, "rcq": 32, "mr": 40},
        WQ_OF[2]: {
            "wqn": 0, "buf_addr": 8, "wqe_size": 16, "depth": 20, "head_addr": 24, "tail_addr": 32,
            "db_mode": 40, "db_addr": 48, "sl": 56, "amo_addr": 64, "amo_lkey": 72, "db_sw_addr": 80,
            "mtu_shift": 88,
        },
        CQ_OF[2]: {
            "cqn": 0, "buf_addr": 8, "cqe_size": 16, "depth": 20, "head_addr": 24, "tail_addr": 32,
            "db_mode": 40, "db_addr": 48, "db_sw_addr": 56,
        },
        Mr: {"size": 0, "addr": 8, "lkey": 16, "rkey": 20},
        Buffer: {"type": 0, "addr": 8, "size": 16, "protection": 24},
        Protection: {"type": 0, "lkey": 4, "rkey": 8},
        Channel: {"engine": 16, "local_notify_num": 24, "cq_num": 44, "local_notify_addr": 48,
                  "reserved": 96},
        OldSq: {"va": 0, "head": 8, "tail": 16, "db": 24, "number": 32, "entry": 36, "depth": 40, "mode": 44,
                "sl": 45},
        OldCq: {"va": 0, "head": 8, "tail": 16, "db": 24, "number": 32, "entry": 36, "depth": 40, "mode": 44},
        SplitSq: {"db": 24, "db_sw": 32, "number": 40, "entry": 44, "depth": 48, "sl": 52, "mtu_shift": 53},
        SplitCq: {"db": 24, "db_sw": 32, "number": 40, "entry": 44, "depth": 48},
        NewestSq: {"db": 24, "db_sw": 32, "number": 40, "entry": 44, "depth": 48, "sl": 52, "vendor": 56},
        NewestCq: {"number": 40, "entry": 44, "depth": 48, "vendor": 56},
    }  # fmt: skip
    for kind, wanted in offsets.items():
        assert {name: getattr(kind, name).offset for name in wanted} == wanted, kind.__name__


@pytest.mark.parametrize("generation", Generation)
def test_table_entries(generation: Generation) -> None:
    """WQ, CQ, MR and head: each field where the mirror has it, everything else zero; read back as written."""
    places: list[tuple[Any, Any, Any]] = [
        (table.SqContext, WQ_OF[generation], table.SqContext.size(generation)),
        (table.CqContext, CQ_OF[generation], table.CqContext.size(generation)),
    ]
    for kind, struct, size in places:
        assert c.sizeof(struct) == size
        names = [name for name, _ in struct._fields_]
        values = {name: getattr(struct, name).size * 0x11 + i for i, name in enumerate(names)}
        entry = kind(**values)
        assert entry.pack(generation) == bytes(struct(**values))
        assert kind.unpack(bytes(struct(**values)), generation) == entry
        later = {f.name: 1 for f in fields(kind) if f.name not in names}
        assert replace(entry, **later).pack(generation) == bytes(struct(**values))
    assert table.mr_entry(3, 4, 1, 2) == bytes(Mr(size=2, addr=1, lkey=3, rkey=4))
    assert table.mr_entry(3, 4) == bytes(Mr(lkey=3, rkey=4))
    assert table.QueueInfo(9, 1, 2, 3, 4, 5).pack() == bytes(Info(9, 1, 2, 3, 4, 5))


def test_channel_and_region_entities() -> None:
    """256 and 64 bytes; the header and all that is reserved is zero."""
    entity = ChannelEntity(*range(1, 15))
    names = [f.name for f in fields(entity)]
    assert entity.pack() == bytes(Channel(**dict(zip(names, range(1, 15), strict=True))))
    assert ChannelEntity.unpack(entity.pack()) == entity
    region = RegedBuffer(0xFFFF_FFFF_FFFF_0000, 1 << 63, 0x8000_0001, 0xFFFF_FFFE)
    raw = bytes(
        Buffer(
            type=1,
            addr=region.addr,
            size=region.size,
            protection=Protection(lkey=region.lkey, rkey=region.rkey),
        )
    )
    assert region.pack() == raw and RegedBuffer.unpack(raw) == region


SQ = ChannelSq(11 << 56, 12, 13, 14, 15, 128, 1 << 17, 7, -1, 16, 5, 6)
SQ_COMMON = {
    "va": 11 << 56,
    "head": 12,
    "tail": 13,
    "db": 14,
    "number": 15,
    "entry": 128,
    "depth": 1 << 17,
    "sl": 7,
}
CQ_ONE = ChannelCq(21 << 56, 22, 23, 24, 25, 64, 1 << 22, -1, 26, 27 << 40, 2)
CQ_COMMON = {"va": 21 << 56, "head": 22, "tail": 23, "db": 24, "number": 25, "entry": 64, "depth": 1 << 22}


@pytest.mark.parametrize(
    ("form", "sq", "cq", "sq_lost", "cq_lost"),
    [
        (
            ContextForm.OLD,
            OldSq(mode=-1, **SQ_COMMON),
            OldCq(mode=-1, **CQ_COMMON),
            {"db_sw_va": 0, "mtu_shift": 0, "cos": 0},
            {"db_sw_va": 0, "db_vendor": 0, "attr_flags": 0},
        ),
        (
            ContextForm.SPLIT,
            SplitSq(db_sw=16, mtu_shift=5, **SQ_COMMON),
            SplitCq(db_sw=26, **CQ_COMMON),
            {"db_mode": 0, "cos": 0},
            {"db_mode": 0, "db_vendor": 0, "attr_flags": 0},
        ),
        (
            ContextForm.NEWEST,
            # cos bits 26:24, mtu_shift bits 52:50
            NewestSq(db_sw=16, vendor=0x0014_0000_0600_0000, **SQ_COMMON),
            NewestCq(db_sw=26, vendor=27 << 40, **CQ_COMMON),
            {"db_mode": 0},
            {"db_mode": 0},
        ),
    ],
)
def test_queue_contexts(
    form: ContextForm, sq: Any, cq: Any, sq_lost: dict[str, int], cq_lost: dict[str, int]
) -> None:
    """128 bytes: type RoCE, the union at 8; fields that a form does not have do not survive."""
    want = bytes(I32(1)) + bytes(4) + bytes(sq)
    assert SQ.pack(form) == want.ljust(128, b"\0")
    want = bytearray((bytes(I32(1)) + bytes(4) + bytes(cq)).ljust(128, b"\0"))
    if form is ContextForm.NEWEST:
        want[8 + hcomm.CQ_ATTR_FLAGS_AT] = 2
    assert CQ_ONE.pack(form) == want
    assert ChannelSq.unpack(SQ.pack(form), form) == replace(SQ, **sq_lost)
    assert ChannelCq.unpack(CQ_ONE.pack(form), form) == replace(CQ_ONE, **cq_lost)


def test_g2_on_newest_hcomm_reads_mtu_shift_from_padding() -> None:
    """Device page 7.4: the split reading of a newest entity has mtuShift 0, all else agrees."""
    raw = SQ.pack(ContextForm.NEWEST)
    assert ChannelSq.unpack(raw, ContextForm.SPLIT) == replace(SQ, db_mode=0, mtu_shift=0, cos=0)


def test_named_numbers() -> None:
    """What the page gives as numbers, and what it gives by name only."""
    access = driver.MrAccess
    assert (access.LOCAL_WRITE, access.REMOTE_WRITE, access.REMOTE_READ, access.DEFAULT) == (1, 2, 4, 7)
    assert access.REDUCE == 256
    assert [int(s) for s in driver.ChannelStatus] == [0, 1, 2, 3]
    assert astuple(driver.QueueRequest()) == (1024, 1024, 64, 1, 32768) and driver.UB_CQ_ENTRIES == 31744
    assert len(ranks.ZERO_KEY) == ranks.MEMORY_KEY_BYTES and not any(ranks.ZERO_KEY)
