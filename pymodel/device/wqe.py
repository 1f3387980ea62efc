"""How the driver puts a WQE together: by bit-field writes over what stands at its place (device page 1).

Plain integer arithmetic, one WQE at a time, as the device code does it; the vectorised codecs of
`pymodel.formats` are the judge of it in the tests. Nothing here clears anything: bits that no field covers
keep what they were (1.6).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from pymodel.device.wr import Opcode, Operands, SendWr

U32: Final = 0xFFFF_FFFF
U64: Final = 0xFFFF_FFFF_FFFF_FFFF
WQE_BYTES: Final = 128

_SEGMENTS = struct.Struct("<4I2IQ2IQ")
_BE64X2, _BE64X4 = struct.Struct(">2Q"), struct.Struct(">4Q")
_BE32X2, _BE32X4 = struct.Struct(">2I"), struct.Struct(">4I")

# Bits of the control segment that the driver writes, by version (1.2): with_imm and ds_data_num stand in
# dword 0, ce and in_line in dword 3.
DW0_WRITTEN: Final = {1: 0xFFFF_F9FF, 2: 0x0000_F9FF}
DW3_WRITTEN: Final = {1: 0x0000_0006, 2: 0xFFFF_F006}
_CE, _IN_LINE = 1 << 1, 1 << 2


class _Form(NamedTuple):
    """Row of the table in 1.5, or READ and WRITE, whose length is the request's."""

    ds_data_num: int
    msg_len: int
    nbytes: int
    """Bytes of remote memory: the length in both data segments."""
    operands: Callable[[Operands], bytes]


def _be64x2(o: Operands) -> bytes:
    return _BE64X2.pack(o.swap_add & U64, o.compare & U64)


def _be64x4(o: Operands) -> bytes:
    return _BE64X4.pack(o.swap_add & U64, o.compare & U64, o.swap_mask & U64, o.compare_mask & U64)


def _be32x2(o: Operands) -> bytes:
    return _BE32X2.pack(o.swap_add & U32, o.compare & U32)


def _be32x4(o: Operands) -> bytes:
    return _BE32X4.pack(o.swap_add & U32, o.compare & U32, o.swap_mask & U32, o.compare_mask & U32)


_ATOMIC: Final = {
    Opcode.FA64: _Form(3, 16, 8, _be64x2),
    Opcode.MFA64: _Form(3, 16, 8, _be64x2),
    Opcode.MFA32: _Form(3, 8, 4, _be32x2),  # bytes 56..63 are not written
    Opcode.CAS64: _Form(3, 16, 8, _be64x2),
    Opcode.MCAS64: _Form(4, 32, 8, _be64x4),
    Opcode.MCAS32: _Form(3, 16, 4, _be32x4),
}
ATOMIC_BYTES: Final = {opcode: form.nbytes for opcode, form in _ATOMIC.items()}


def build(wr: SendWr, version: int, head: int, dw0: int, dw2: int, dw3: int, ce: bool = True) -> bytes:
    """The bytes that the driver writes of the WQE with index ``head``, from byte 0 of its place on.

    ``dw0``, ``dw2``, ``dw3``: what stood in these dwords of the control segment before. 48 bytes for READ
    and WRITE, 56, 64 or 80 for atomics (1.5); the rest of the 128 is not touched.
    """
    opcode, length = wr.opcode, wr.length & U32
    tail = b""
    if wr.operands is None:
        low, high, msg_len = opcode | 2 << 11, 0, length
    else:
        form = _ATOMIC[opcode]
        low, high, msg_len, length = opcode | form.ds_data_num << 11, _IN_LINE, form.msg_len, form.nbytes
        tail = form.operands(wr.operands)
    if ce:
        high |= _CE
    if version == 2:
        high |= (head << 3 & 0xF_FFFF) << 12
    else:
        low |= (head << 3 & 0xFFFF) << 16
    low |= dw0 & ~DW0_WRITTEN[version]
    high |= dw3 & ~DW3_WRITTEN[version]
    remote, local = wr.remote & U64, wr.local & U64
    return _SEGMENTS.pack(low, msg_len, dw2, high, length, wr.rkey, remote, length, wr.lkey, local) + tail
