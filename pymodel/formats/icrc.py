"""ICRC of RoCEv2 over IPv4 (wire.md section 4), for many packets at once.

CRC-32 is linear: with the initial value folded into the message, the remainder of a message of 32-bit words
w is the sum of Z^(m-i) w_i, where Z advances a register by 32 zero bits. Instead of walking along the
message, whole blocks of words are advanced by the distance to the next block (one table per power of two) and
added to it, until one word is left. That takes one table look-up per two bytes and log2(m) numpy passes,
however many packets there are. Leading zeros change nothing, so packets of different lengths are
right-aligned.
"""

from functools import cache
from typing import Final

import numpy as np

from pymodel.formats.arrays import I64, U8, U32, IntLike

#: CRC-32 polynomial of Ethernet, reflected
_POLY: Final = 0xEDB88320
#: bytes of IPv4 header, UDP header and BTH: the least that an ICRC covers
MIN_COVERED: Final = 40
#: bytes that count as ones, counted from the IPv4 header: TOS, TTL, its checksum, UDP checksum, BTH byte 4
MASKED: Final = (1, 8, 10, 11, 26, 27, 32)
#: of the 8 pseudo bytes of ones, the first 4 cancel against the initial value; 4 stand before the packet
_PREFIX: Final = 4
_PATCH: Final = np.array([*range(-_PREFIX, 0), *MASKED], np.int64)
#: rows are worked on in pieces of this many bytes, to stay inside the cache
_CHUNK: Final = 1 << 18


def icrc_packets(buf: U8, off: IntLike, length: IntLike) -> U32:
    """ICRC of n packets.

    buf: uint8, 1-D. off: int[n], start of each IPv4 header in buf. length: int[n], bytes from there that the
    ICRC covers (up to, not including, the ICRC itself), at least 40. Returns uint32[n]; on the wire
    little-endian. Raises ValueError for a length below 40 or a packet that leaves the buffer.
    """
    start = np.atleast_1d(np.asarray(off, np.int64))
    size = np.broadcast_to(np.asarray(length, np.int64), start.shape)
    out = np.empty(start.shape, np.uint32)
    if not start.size:
        return out
    if int(size.min()) < MIN_COVERED:
        raise ValueError("an ICRC covers at least IPv4, UDP and BTH")
    if int(start.min()) < 0 or int((start + size).max()) > buf.size:
        raise ValueError("packet outside the buffer")
    # Buckets of similar length, so that right-aligning wastes at most a quarter.
    step = np.left_shift(np.int64(1), np.maximum(np.log2(size).astype(np.int64) - 2, 0))
    bucket = (size + step - 1) // step * step
    for key in np.unique(bucket):
        pick = np.nonzero(bucket == key)[0]
        width = int(size[pick].max()) + _PREFIX
        width += -width % 4
        rows_per_chunk = max(1, _CHUNK // width)
        for at in range(0, pick.size, rows_per_chunk):
            part = pick[at : at + rows_per_chunk]
            out[part] = ~_remainder(_aligned_rows(buf, start[part], size[part], width))
    return out


def icrc(packet: bytes | U8) -> bytes:
    """The 4 ICRC bytes, in wire order, of one packet given from its IPv4 header to the end of its pad."""
    raw = np.frombuffer(packet, np.uint8) if isinstance(packet, bytes) else packet
    return int(icrc_packets(raw, 0, raw.size)[0]).to_bytes(4, "little")


def crc32_rows(rows: U8) -> U32:
    """CRC-32 (reflected, init and final XOR all ones) of each row of uint8[n, L >= 4]: uint32[n]."""
    n, size = rows.shape
    if size < 4:
        raise ValueError("rows shorter than the register are not supported")
    lead = -size % 4
    work = np.zeros((n, lead + size), np.uint8)
    work[:, lead:] = rows
    work[:, lead : lead + 4] ^= 0xFF
    return ~_remainder(work)


def _aligned_rows(buf: U8, start: I64, size: I64, width: int) -> U8:
    """uint8[n, width]: each packet at the right end of its row, masked, after its prefix and zeros."""
    first = start + size - width
    missing = int(-min(first.min(), 0))
    if missing:
        # only packets near the start of the buffer need bytes from before it
        near = int((start + size)[first < 0].max())
        head = np.concatenate([np.zeros(missing, np.uint8), buf[:near]])
        rows = np.empty((start.size, width), np.uint8)
        low = first < 0
        rows[low] = _windows(head, width)[first[low] + missing]
        if not low.all():
            rows[~low] = _windows(buf, width)[first[~low]]
    else:
        rows = _windows(buf, width)[first]
    lead = width - size
    spare = int(lead.max())
    rows[:, :spare][np.arange(spare) < lead[:, None]] = 0
    rows[np.arange(start.size)[:, None], lead[:, None] + _PATCH] = 0xFF
    return rows


def _windows(buf: U8, width: int) -> U8:
    """All windows of `width` bytes of a 1-D buffer, without a copy: uint8[len - width + 1, width]."""
    view: U8 = np.lib.stride_tricks.sliding_window_view(buf, width)
    return view


def _remainder(rows: U8) -> U32:
    """Raw CRC register (initial value 0) after each row of uint8[n, multiple of 4]. Destroys `rows`."""
    words: U32 = rows.view("<u4")
    while words.shape[1] > 1:
        count = words.shape[1]
        distance = 1 << (count - 1).bit_length() - 1
        front = count - distance
        words[:, distance:] ^= _advance(words[:, :front], distance)
        words = words[:, front:]
    return _advance(words, 1)[:, 0]


def _advance(words: U32, distance: int) -> U32:
    """Each register value, uint32[n, k], advanced by `distance` zero words."""
    low, high = _tables(distance)
    # clip mode skips numpy's bounds pass; a 16-bit index cannot leave the table
    halves = np.ascontiguousarray(words).view("<u2")
    out: U32 = low.take(halves[:, 0::2], mode="clip")
    out ^= high.take(halves[:, 1::2], mode="clip")
    return out


@cache
def _tables(distance: int) -> tuple[U32, U32]:
    """Images of all low and all high register halves after `distance` (a power of two) zero words."""
    images = _images(distance)
    low, high = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    for bit in range(16):
        low = np.concatenate([low, low ^ images[bit]])
        high = np.concatenate([high, high ^ images[16 + bit]])
    return low, high


@cache
def _images(distance: int) -> U32:
    """Image of each of the 32 register bits after `distance` zero words: uint32[32]."""
    if distance == 1:
        state = np.uint32(1) << np.arange(32, dtype=np.uint32)
        for _ in range(32):
            state = (state >> np.uint32(1)) ^ (state & np.uint32(1)) * np.uint32(_POLY)
        return state
    return _advance(_images(distance // 2)[:, None], distance // 2)[:, 0]
