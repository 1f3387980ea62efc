"""HCOMM's structs in device memory, byte for byte.

Sizes and offsets: device page, section 7.4. What that page gives by name only is a named constant here. All
fields are little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Final

from pymodel.generation import Generation

CHANNEL_ENTITY_BYTES: Final = 256
REGED_BUFFER_BYTES: Final = 64
QUEUE_CONTEXT_BYTES: Final = 128
"""Of an SqContext and of a CqContext alike."""
_UNION: Final = 8
"""Where the union of a queue context starts; in front of it stands its type."""

# Names without values on the device page: the values are those of HCOMM's public headers.
COMM_ENGINE_AIV: Final = 4
COMM_PROTOCOL_ROCE: Final = 1
REGED_BUFFER_TYPE_RMA: Final = 1
PROTECTION_TYPE_ROCE: Final = 0
QUEUE_TYPE_ROCE: Final = 1
CQ_ATTR_FLAGS_AT: Final = 64
"""Where in the newest CQ union HCOMM repeats the channel's cq_attr_flags: no page says; a choice of ours."""


class ContextForm(Enum):
    """Layout of the union in SqContext and CqContext: it came with the CANN release (device page 7.4)."""

    OLD = "one doorbell"
    SPLIT = "hardware and software doorbell"
    NEWEST = "split, with dbVendorSpecified"


@dataclass(frozen=True, slots=True)
class ChannelEntity:
    """A channel in device memory, 256 bytes; the handle of a channel is its address."""

    engine: int = COMM_ENGINE_AIV
    protocol: int = COMM_PROTOCOL_ROCE
    local_notify_num: int = 0
    remote_notify_num: int = 0
    local_buffer_num: int = 0
    remote_buffer_num: int = 0
    sq_num: int = 0
    cq_num: int = 0
    local_notify_addr: int = 0
    remote_notify_addr: int = 0
    local_buffer_addr: int = 0
    remote_buffer_addr: int = 0
    sq_context_addr: int = 0
    cq_context_addr: int = 0

    def pack(self) -> bytes:
        """Behind a 16-byte header, whose content nobody looks at; 160 reserved bytes follow."""
        return _CHANNEL.pack(*astuple(self))

    @classmethod
    def unpack(cls, raw: bytes) -> ChannelEntity:
        """Take 256 bytes apart."""
        return cls(*_CHANNEL.unpack(raw))


_CHANNEL: Final = struct.Struct("<16x2i6I6Q160x")
assert _CHANNEL.size == CHANNEL_ENTITY_BYTES


@dataclass(frozen=True, slots=True)
class RegedBuffer:
    """A registered region as a channel shows it, 64 bytes. A remote one has no lkey."""

    addr: int
    size: int
    lkey: int
    rkey: int

    def pack(self) -> bytes:
        """The entity's bytes: type RMA, protection RoCE."""
        return _BUFFER.pack(
            REGED_BUFFER_TYPE_RMA, self.addr, self.size, PROTECTION_TYPE_ROCE, self.lkey, self.rkey
        )

    @classmethod
    def unpack(cls, raw: bytes) -> RegedBuffer:
        """Take 64 bytes apart."""
        _, addr, size, _, lkey, rkey = _BUFFER.unpack(raw)
        return cls(addr, size, lkey, rkey)


_BUFFER: Final = struct.Struct("<i4xQQiII28x")
assert _BUFFER.size == REGED_BUFFER_BYTES


@dataclass(frozen=True, slots=True)
class ChannelSq:
    """Send queue of a channel, an SqContext. ``db_mode``: old form only; ``mtu_shift``: not in it."""

    sq_va: int
    head_addr: int
    tail_addr: int
    db_hw_va: int
    qpn: int
    wqe_size: int
    depth: int
    sl: int
    db_mode: int = 0
    db_sw_va: int = 0
    mtu_shift: int = 0
    cos: int = 0
    """Newest form."""

    def pack(self, form: ContextForm) -> bytes:
        """128 bytes; what the form does not have is left out."""
        cells = (self.sq_va, self.head_addr, self.tail_addr, self.db_hw_va)
        sizes = (self.qpn, self.wqe_size, self.depth)
        if form is ContextForm.OLD:
            return _OLD_SQ.pack(QUEUE_TYPE_ROCE, *cells, *sizes, self.db_mode, self.sl)
        if form is ContextForm.SPLIT:
            return _SPLIT_SQ.pack(QUEUE_TYPE_ROCE, *cells, self.db_sw_va, *sizes, self.sl, self.mtu_shift)
        vendor = self.cos << _COS_BIT | self.mtu_shift << _MTU_SHIFT_BIT
        return _NEWEST_SQ.pack(QUEUE_TYPE_ROCE, *cells, self.db_sw_va, *sizes, self.sl, vendor)

    @classmethod
    def unpack(cls, raw: bytes, form: ContextForm) -> ChannelSq:
        """Take 128 bytes apart; fields that the form does not have are 0."""
        if form is ContextForm.OLD:
            _, va, hd, tl, hw, qpn, size, depth, mode, sl = _OLD_SQ.unpack(raw)
            return cls(va, hd, tl, hw, qpn, size, depth, sl, mode)
        if form is ContextForm.SPLIT:
            _, va, hd, tl, hw, sw, qpn, size, depth, sl, shift = _SPLIT_SQ.unpack(raw)
            return cls(va, hd, tl, hw, qpn, size, depth, sl, 0, sw, shift)
        _, va, hd, tl, hw, sw, qpn, size, depth, sl, vendor = _NEWEST_SQ.unpack(raw)
        shift, cos = vendor >> _MTU_SHIFT_BIT & 7, vendor >> _COS_BIT & 7
        return cls(va, hd, tl, hw, qpn, size, depth, sl, 0, sw, shift, cos)


_OLD_SQ: Final = struct.Struct("<i4x4Q3IbB74x")
_SPLIT_SQ: Final = struct.Struct("<i4x5Q3IBB66x")
_NEWEST_SQ: Final = struct.Struct("<i4x5Q3IB3xQ56x")
_COS_BIT: Final = 24
"""Bits 26:24 of dbVendorSpecified."""
_MTU_SHIFT_BIT: Final = 50
"""Bits 52:50 of dbVendorSpecified."""


@dataclass(frozen=True, slots=True)
class ChannelCq:
    """Completion queue of a channel, a CqContext. ``db_mode``: old form only."""

    cq_va: int
    head_addr: int
    tail_addr: int
    db_hw_va: int
    cqn: int
    cqe_size: int
    depth: int
    db_mode: int = 0
    db_sw_va: int = 0
    db_vendor: int = 0
    """dbVendorSpecified of the newest form; nobody reads it."""
    attr_flags: int = 0
    """Newest form, at `CQ_ATTR_FLAGS_AT`."""

    def pack(self, form: ContextForm) -> bytes:
        """128 bytes; what the form does not have is left out."""
        cells = (self.cq_va, self.head_addr, self.tail_addr, self.db_hw_va)
        sizes = (self.cqn, self.cqe_size, self.depth)
        if form is ContextForm.OLD:
            return _OLD_CQ.pack(QUEUE_TYPE_ROCE, *cells, *sizes, self.db_mode)
        if form is ContextForm.SPLIT:
            return _SPLIT_CQ.pack(QUEUE_TYPE_ROCE, *cells, self.db_sw_va, *sizes)
        return _NEWEST_CQ.pack(
            QUEUE_TYPE_ROCE, *cells, self.db_sw_va, *sizes, self.db_vendor, self.attr_flags
        )

    @classmethod
    def unpack(cls, raw: bytes, form: ContextForm) -> ChannelCq:
        """Take 128 bytes apart; fields that the form does not have are 0."""
        if form is ContextForm.OLD:
            return cls(*_OLD_CQ.unpack(raw)[1:])
        if form is ContextForm.SPLIT:
            _, va, hd, tl, hw, sw, cqn, size, depth = _SPLIT_CQ.unpack(raw)
            return cls(va, hd, tl, hw, cqn, size, depth, 0, sw)
        _, va, hd, tl, hw, sw, cqn, size, depth, vendor, flags = _NEWEST_CQ.unpack(raw)
        return cls(va, hd, tl, hw, cqn, size, depth, 0, sw, vendor, flags)


_OLD_CQ: Final = struct.Struct("<i4x4Q3Ib75x")
_SPLIT_CQ: Final = struct.Struct("<i4x5Q3I68x")
_NEWEST_CQ: Final = struct.Struct("<i4x5Q3I4xQI52x")
assert _UNION + CQ_ATTR_FLAGS_AT + 4 + 52 == QUEUE_CONTEXT_BYTES


def default_form(generation: Generation) -> ContextForm:
    """The form that goes with a generation where nothing says otherwise (device page 7.4)."""
    return {
        Generation.G1: ContextForm.OLD,
        Generation.G2: ContextForm.SPLIT,
        Generation.G3: ContextForm.NEWEST,
    }[generation]
