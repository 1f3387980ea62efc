"""Capture of a run: every packet that left a NIC, with simulation time, as pcapng for Wireshark
(docs/packets.md).

:class:`PcapWriter` is a sink of :class:`tb.sim.platform.Rig`. The format (pcapng: section header, one
interface per NIC, one enhanced packet block per packet) is small enough to be written here, a batch at a
time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tb.sim.lib import PERIOD_NS
from tb.sim.records import Kind

#: bytes after which a capture ends, so that a long run does not fill the disk
DEFAULT_LIMIT: Final = 1 << 30

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_BYTE_ORDER: Final = 0x1A2B3C4D
_ETHERNET: Final = 1
#: options of an interface: its name, the resolution of its times (9: nanoseconds)
_IF_NAME, _IF_TSRESOL = 2, 9
#: bytes of a packet block before and behind the packet: type, length, interface, time, two sizes; length
_HEAD, _TAIL = 28, 4
#: what fills a packet up to whole words, by its length modulo 4
_PAD: Final = (b"", bytes(3), bytes(2), bytes(1))


class PcapWriter:
    """Writes the TXPKT records of all batches that it is called with.

    ``window``: simulation time in ns (from, to) that the capture covers, None for all. A packet's time is
    that of its last beat. Counts: ``packets`` written, ``left_out`` behind the limit. Raises OSError where
    the file cannot be written.
    """

    def __init__(
        self, path: Path, n_pes: int, window: tuple[int, int] | None = None, limit: int = DEFAULT_LIMIT
    ) -> None:
        self.path = path
        self.packets = self.left_out = 0
        self._window, self._limit = window, limit
        self._file = path.open("wb")
        self._write(_block(_SECTION, np.array([_BYTE_ORDER, 1, 0xFFFF_FFFF, 0xFFFF_FFFF], "<u4").tobytes()))
        for pe in range(n_pes):
            options = _option(_IF_NAME, f"NIC {pe}".encode()) + _option(_IF_TSRESOL, b"\x09") + bytes(4)
            self._write(_block(_INTERFACE, np.array([_ETHERNET, 0], "<u4").tobytes() + options))

    def __call__(self, records: npt.NDArray[np.void], side: npt.NDArray[np.uint8]) -> None:
        """Append the packets of one batch: records [n] of RECORD, ``side`` the buffer of their bytes."""
        sent = records[records["kind"] == Kind.TXPKT]
        if self._window is not None:
            ns = sent["time"] * np.uint64(PERIOD_NS)
            sent = sent[(ns >= self._window[0]) & (ns <= self._window[1])]
        length = sent["len"].astype(np.int64)
        blocks = _HEAD + (length + 3 & ~3) + _TAIL
        end = np.cumsum(blocks)
        room = self._limit - self._file.tell()
        # once a packet had to be left out none follows: a capture has no holes
        fit = 0 if self.left_out else int(np.searchsorted(end, room, side="right"))
        self.left_out += len(sent) - fit
        if not fit:
            return
        self.packets += fit
        self._write(_packet_blocks(sent[:fit], length[:fit], blocks[:fit], side))
        # what a killed run leaves is a good capture
        self._file.flush()

    def close(self) -> str:
        """Complete the file; gives one line that says what is in it."""
        self._file.close()
        if not self.left_out:
            return f"{self.packets:,} packets in {self.path}"
        return (
            f"{self.packets:,} packets in {self.path}, which ends at {self._limit >> 20:,} MiB:"
            f" {self.left_out:,} more were sent (WINDOW=from:to in ns captures a part)"
        )

    def _write(self, data: bytes) -> None:
        self._file.write(data)


def _packet_blocks(
    sent: npt.NDArray[np.void],
    length: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    side: npt.NDArray[np.uint8],
) -> bytes:
    """Packet blocks of n packets of ``length`` bytes; ``blocks`` is the size of each block."""
    head = np.empty((len(sent), _HEAD // 4), "<u4")
    ns = sent["time"] * np.uint64(PERIOD_NS)
    head[:, 0] = _PACKET
    head[:, 1] = blocks
    head[:, 2] = sent["pe"]
    head[:, 3] = ns >> np.uint64(32)
    head[:, 4] = ns & np.uint64(0xFFFF_FFFF)
    head[:, 5] = head[:, 6] = length
    start = (sent["off"] % np.uint64(len(side))).astype(np.int64)
    # four slices and one join a packet: about half a microsecond, whatever lengths are mixed
    heads, data = memoryview(head.tobytes()), memoryview(side)
    parts: list[bytes | memoryview] = []
    at = 0
    for first, size in zip(start.tolist(), length.tolist(), strict=True):
        parts += (heads[at : at + _HEAD], data[first : first + size], _PAD[size & 3], heads[at + 4 : at + 8])
        at += _HEAD
    return b"".join(parts)


def _block(kind: int, body: bytes) -> bytes:
    size = len(body) + 12
    return np.array([kind, size], "<u4").tobytes() + body + np.array([size], "<u4").tobytes()


def _option(code: int, value: bytes) -> bytes:
    return np.array([code, len(value)], "<u2").tobytes() + value + bytes(-len(value) % 4)
