"""The queue-information block that the device API reads: its structs and where the tables stand.

Host and device of each driver generation declare these structs apart (device page 7.2); here they are
written down once, byte for byte. All fields are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pymodel.generation import Generation

QP_INFO_ADDR: Final = 0x17FF_BE00_0000
"""Queue-information block in device memory (programs page, section 7)."""
CQ_IGNORE_OVERRUN: Final = 2
"""Bit of cq_attr_flags: every CQE goes to slot 0 (device page 2.6)."""

ATOMIC_AT: Final = 64
"""Offset of atomicAddr and atomicLkey in a WQ entry."""
ATOMIC: Final = struct.Struct("<QI")

_INFO = struct.Struct("<I4x5Q")
_MR = struct.Struct("<QQII")
# G3's places of db_cos and cq_attr_flags are known by field order only (device page 7.2)
_WQ = {
    Generation.G1: struct.Struct("<I4xQIIQQi4xQI4xQI4x"),
    Generation.G2: struct.Struct("<I4xQIIQQi4xQI4xQI4xQB7x"),
    Generation.G3: struct.Struct("<I4xQIIQQi4xQI4xQI4xQBB6x"),
}
_CQ = {
    Generation.G1: struct.Struct("<I4xQIIQQi4xQ"),
    Generation.G2: struct.Struct("<I4xQIIQQi4xQQ"),
    Generation.G3: struct.Struct("<I4xQIIQQi4xQI4xQ"),
}

View = Callable[[int, int], NDArray[np.uint8]]
"""``view(address, length)`` of device memory, uint8[length]."""


@dataclass(frozen=True, slots=True)
class SqContext:
    """WQ entry of the device table (device page 7.2): 80 bytes in G1, 96 from G2 on."""

    wqn: int = 0
    buf_addr: int = 0
    wqe_size: int = 0
    depth: int = 0
    head_addr: int = 0
    tail_addr: int = 0
    db_mode: int = 0
    db_addr: int = 0
    sl: int = 0
    amo_addr: int = 0
    amo_lkey: int = 0
    db_sw_addr: int = 0
    """From G2 on."""
    mtu_shift: int = 0
    """From G2 on."""
    db_cos: int = 0
    """G3."""

    @staticmethod
    def size(generation: Generation) -> int:
        """Bytes of one entry."""
        return _WQ[generation].size

    def pack(self, generation: Generation) -> bytes:
        """The entry's bytes; fields that the generation does not have are left out."""
        count = len(fields(self)) - {Generation.G1: 3, Generation.G2: 1, Generation.G3: 0}[generation]
        return _WQ[generation].pack(*astuple(self)[:count])

    @classmethod
    def unpack(cls, raw: bytes, generation: Generation) -> SqContext:
        """Take an entry apart; fields that the generation does not have are 0."""
        return cls(*_WQ[generation].unpack(raw))


@dataclass(frozen=True, slots=True)
class CqContext:
    """CQ entry of the device table (device page 7.2): 56 bytes in G1, 64 in G2, 72 in G3."""

    cqn: int = 0
    buf_addr: int = 0
    cqe_size: int = 0
    depth: int = 0
    head_addr: int = 0
    tail_addr: int = 0
    db_mode: int = 0
    db_addr: int = 0
    db_sw_addr: int = 0
    """From G2 on."""
    cq_attr_flags: int = 0
    """G3; `CQ_IGNORE_OVERRUN` or 0."""

    @staticmethod
    def size(generation: Generation) -> int:
        """Bytes of one entry."""
        return _CQ[generation].size

    def pack(self, generation: Generation) -> bytes:
        """The entry's bytes; fields that the generation does not have are left out."""
        common = astuple(self)[:8]
        if generation is Generation.G1:
            return _CQ[generation].pack(*common)
        if generation is Generation.G2:
            return _CQ[generation].pack(*common, self.db_sw_addr)
        return _CQ[generation].pack(*common, self.cq_attr_flags, self.db_sw_addr)

    @classmethod
    def unpack(cls, raw: bytes, generation: Generation) -> CqContext:
        """Take an entry apart; fields that the generation does not have are 0."""
        values = list(_CQ[generation].unpack(raw))
        if generation is Generation.G3:
            values[8:] = values[9], values[8]
        return cls(*values)


def mr_entry(lkey: int, rkey: int, addr: int = 0, size: int = 0) -> bytes:
    """MR entry, 24 bytes: size and address are 0, as the exchanged memory key is all zero (7.3)."""
    return _MR.pack(size, addr, lkey, rkey)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """Head of the queue-information block, 48 bytes, and access to the tables behind it (device page 7.2)."""

    qp_num: int
    sq_ptr: int
    rq_ptr: int
    scq_ptr: int
    rcq_ptr: int
    mr_ptr: int
    generation: Generation = Generation.G1
    """Which structs the tables hold; known to the code that reads them, not written in the block."""
    mrs: tuple[tuple[int, int], ...] = ()

    SIZE = _INFO.size

    @classmethod
    def layout(cls, addr: int, n_pes: int, qp_num: int, generation: Generation) -> QueueInfo:
        """Pointers of a block at ``addr``: head, sq, rq, scq, rcq and mr tables, one after the other."""
        wq, cq = (kind.size(generation) * n_pes * qp_num for kind in (SqContext, CqContext))
        sq = addr + cls.SIZE
        return cls(qp_num, sq, sq + wq, sq + 2 * wq, sq + 2 * wq + cq, sq + 2 * (wq + cq), generation)

    def total(self, addr: int, n_pes: int) -> int:
        """Bytes of the whole block."""
        return self.mr_ptr + _MR.size * n_pes - addr

    def pack(self) -> bytes:
        """The 48-byte head."""
        return _INFO.pack(self.qp_num, self.sq_ptr, self.rq_ptr, self.scq_ptr, self.rcq_ptr, self.mr_ptr)

    @classmethod
    def read(cls, view: View, addr: int, n_pes: int, generation: Generation) -> QueueInfo:
        """Read head and keys from device memory."""
        head = cls(*_INFO.unpack(view(addr, cls.SIZE).tobytes()))
        raw = view(head.mr_ptr, _MR.size * n_pes).tobytes()
        keys = tuple((lkey, rkey) for _, _, lkey, rkey in _MR.iter_unpack(raw))
        return replace(head, generation=generation, mrs=keys)

    def entry(self, peer: int, qp_idx: int) -> tuple[int, int, int]:
        """Addresses of the SQ, RQ and send-CQ entries number peer * qp_num + qp_idx (device page 4.1)."""
        at = peer * self.qp_num + qp_idx
        wq, cq = SqContext.size(self.generation), CqContext.size(self.generation)
        return self.sq_ptr + at * wq, self.rq_ptr + at * wq, self.scq_ptr + at * cq

    def mr_addr(self, pe: int) -> int:
        """Address of the MR entry of PE ``pe``."""
        return self.mr_ptr + _MR.size * pe

    def contexts(self, view: View, peer: int, qp_idx: int) -> tuple[SqContext, CqContext]:
        """SQ and send-CQ context of (peer, qp_idx)."""
        sq, _, cq = self.entry(peer, qp_idx)
        generation = self.generation
        return (
            SqContext.unpack(view(sq, SqContext.size(generation)).tobytes(), generation),
            CqContext.unpack(view(cq, CqContext.size(generation)).tobytes(), generation),
        )

    def keys(self, pe: int) -> tuple[int, int]:
        """(lkey, rkey) of PE ``pe``'s entry; the lkey means something in the own entry only."""
        return self.mrs[pe]
