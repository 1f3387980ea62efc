"""Receive WQE: one data segment (device.md section 1.3, nic.md section 5).

A slot of a receive queue is 16 bytes: length, local key and address of one buffer, little-endian, in both
format versions. It has no index and no owner bit: the doorbell alone hands it over.
"""

from typing import Final

import numpy as np

from pymodel.formats.arrays import U8, Fields, Rec, to_fields

#: bytes of a slot
RECV_BYTES: Final = 16
#: width of an RQ index, in slots of 16 bytes, in both versions (device.md 3.1)
RQ_INDEX_BITS: Final = 17

#: one receive WQE as it stands in memory
RECV_FIELDS: Final[np.dtype[np.void]] = np.dtype([("length", "<u4"), ("lkey", "<u4"), ("addr", "<u8")])


def pack(fields: Fields) -> U8:
    """Encode receive WQEs: RECV_FIELDS array or mapping (missing names 0) to uint8[n, 16].

    Raises ValueError for a value that does not fit its field.
    """
    rows = np.ascontiguousarray(to_fields(RECV_FIELDS, fields, {}))
    out: U8 = rows.view(np.uint8).reshape(-1, RECV_BYTES).copy()
    return out


def unpack(slots: U8) -> Rec:
    """Decode slots, uint8[n, 16] or one [16], to RECV_FIELDS [n]. Raises ValueError for another width."""
    raw = np.atleast_2d(slots)
    if raw.shape[1] != RECV_BYTES:
        raise ValueError(f"a receive WQE has {RECV_BYTES} bytes, not {raw.shape[1]}")
    out: Rec = np.ascontiguousarray(raw, np.uint8).view(RECV_FIELDS)[:, 0].copy()
    return out
