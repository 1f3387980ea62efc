"""Timeline of a run as a Chrome trace (JSON), which Perfetto opens (docs/debugging.md).

Per PE it shows the program's steps, the flags it waited for, posts, packets and CQEs. :class:`Timeline` is a
sink of :class:`tb.sim.platform.Rig` and an observer of the run; :class:`Span` takes from the same records how
long the programs took from their first doorbell to their last flag.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pymodel.device.pe import Pe
from pymodel.formats.packet import Bth
from pymodel.nic.params import DEFAULT_PARAMS, AxiId
from pymodel.platform import Observer, PostInfo
from pymodel.runner import Task
from tb.sim.lib import PERIOD_NS
from tb.sim.records import Kind

#: events after which a timeline ends: about 60 MB, which Perfetto still opens in seconds
DEFAULT_LIMIT: Final = 500_000
#: rows of a PE, in the order in which the viewer shows them
TRACKS: Final = ("steps", "waits for flags", "posts", "packets sent", "packets received", "CQEs")
#: bytes that a link moves each cycle, in each direction
LINK_BYTES: Final = 64
#: bytes before the BTH in a frame: Ethernet, IPv4, UDP
_BTH: Final = 14 + 20 + 8
_NAMES: Final = {int(code): code.name.lower() for code in Bth}


class Timeline(Observer):
    """Collects events; :meth:`close` writes the file. ``left_out`` counts those behind the limit."""

    def __init__(self, path: Path, n_pes: int, limit: int = DEFAULT_LIMIT) -> None:
        self.path, self.left_out = path, 0
        self._limit = limit
        self._events: list[dict[str, Any]] = []
        for pe in range(n_pes):
            self._events.append(_meta("process_name", pe, 0, f"PE {pe}"))
            self._events += [_meta("thread_name", pe, tid, name) for tid, name in enumerate(TRACKS)]
            self._events += [_order(pe, tid) for tid in range(len(TRACKS))]

    # ----------------------------------------------------------------------------------- sources
    def posted(self, post: PostInfo, task: Task) -> None:
        """A WQE was posted (observer)."""
        args = {"peer": post.peer, "qp": post.qp, "index": post.index, "bytes": post.length}
        self._add(post.pe, "posts", f"{post.opcode} -> PE {post.peer}", post.time, post.time, args)

    def __call__(self, records: npt.NDArray[np.void], side: npt.NDArray[np.uint8]) -> None:
        """Packets and CQEs of one batch (sink)."""
        for kind, track in ((Kind.TXPKT, "packets sent"), (Kind.RXPKT, "packets received")):
            found = records[records["kind"] == kind]
            found = found[found["len"] >= _BTH + 12]
            start = (found["off"] % np.uint64(len(side))).astype(np.int64) + _BTH
            fields = side[(start[:, None] + np.arange(12)) % len(side)].astype(np.int64)
            qpn = fields[:, 5] << 16 | fields[:, 6] << 8 | fields[:, 7]
            psn = fields[:, 9] << 16 | fields[:, 10] << 8 | fields[:, 11]
            for record, opcode, to, number in zip(
                found, fields[:, 0].tolist(), qpn.tolist(), psn.tolist(), strict=True
            ):
                args = {"qpn": to, "psn": number, "bytes": int(record["len"])}
                name = _NAMES.get(opcode, f"opcode {opcode:#x}")
                self._add(int(record["pe"]), track, name, int(record["aux0"]), int(record["time"]) + 1, args)
        writes = records[(records["kind"] == Kind.COMMIT) & (records["id"] == AxiId.CQE)]
        for record in writes:
            at = int(record["time"])
            self._add(int(record["pe"]), "CQEs", "CQE", at, at, {"address": hex(int(record["addr"]))})

    # ------------------------------------------------------------------------------------- end
    def close(self, pes: Sequence[Pe]) -> str:
        """Add what the programs did, write the file; gives one line that says what is in it."""
        for pe in pes:
            for step in pe.steps:
                self._add(pe.rank, "steps", step.name, step.start, step.end, {}, always=True)
            for wait in pe.waits:
                args = {"address": hex(wait.addr), "bytes": wait.length}
                self._add(pe.rank, "waits for flags", wait.what, wait.start, wait.end, args, always=True)
        trace = {"displayTimeUnit": "ns", "traceEvents": self._events}
        self.path.write_text(json.dumps(trace, separators=(",", ":")))
        text = f"{len(self._events):,} events in {self.path}"
        return text if not self.left_out else f"{text}, {self.left_out:,} more are left out"

    def _add(
        self, pe: int, track: str, name: str, start: int, end: int, args: dict[str, Any], always: bool = False
    ) -> None:
        if len(self._events) >= self._limit and not always:
            self.left_out += 1
            return
        micro = PERIOD_NS / 1000
        # what takes no time is drawn one cycle wide, so that it can be clicked
        length = max(end - start, 1) * micro
        event = {"name": name, "ph": "X", "pid": pe, "tid": TRACKS.index(track), "ts": start * micro}
        self._events.append({**event, "dur": length, "args": args})


def _meta(kind: str, pe: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pe, "tid": tid, "args": {"name": name}}


def _order(pe: int, tid: int) -> dict[str, Any]:
    return {"name": "thread_sort_index", "ph": "M", "pid": pe, "tid": tid, "args": {"sort_index": tid}}


class Span:
    """Sink: the first accepted SQ doorbell, and the writes among which the last flag is (programs.md 6)."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.sent: Counter[int] = Counter()
        """Bytes on the link with headers, by sending PE; ``received`` by receiving PE."""
        self.received: Counter[int] = Counter()
        self._writes: list[npt.NDArray[np.void]] = []

    def __call__(self, records: npt.NDArray[np.void], side: npt.NDArray[np.uint8]) -> None:
        """Take one batch."""
        kind = records["kind"]
        for which, count in ((Kind.TXPKT, self.sent), (Kind.RXPKT, self.received)):
            packets = records[kind == which]
            for pe in np.unique(packets["pe"]).tolist():
                count[pe] += int(packets["len"][packets["pe"] == pe].sum())
        if self.first is None:
            params = DEFAULT_PARAMS
            bells = records[(kind == Kind.MMIO_W) & (records["addr"] >= params.db_base)]
            offset = (bells["addr"] - np.uint64(params.db_base)) % np.uint64(params.db_page_bytes)
            bells = bells[offset == params.db_sq]
            self.first = int(bells["time"][0]) if bells.size else None
        inbound = (kind == Kind.COMMIT) & ((records["id"] == AxiId.INBOUND) | (records["id"] == AxiId.ATOMIC))
        found = records[inbound | (kind == Kind.STORE)]
        if found.size:
            self._writes.append(found[["time", "pe", "addr", "len"]])

    @property
    def link_limit(self) -> int:
        """Cycles that the busiest direction of a link needs for all its bytes (programs.md 6)."""
        most = max([*self.sent.values(), *self.received.values()], default=0)
        return -(-most // LINK_BYTES)

    def cycles(self, pes: Sequence[Pe]) -> int:
        """Cycles from the first accepted doorbell to the memory write that satisfied the last wait.

        0 where nothing was posted or nobody waited.
        """
        if self.first is None or not self._writes:
            return 0
        writes = np.concatenate(self._writes)
        last = 0
        for pe in pes:
            mine = writes[writes["pe"] == pe.rank]
            for wait in sorted(pe.waits, key=lambda w: w.end, reverse=True):
                if wait.end <= last:
                    break
                low, high = np.uint64(wait.addr), np.uint64(wait.addr + wait.length)
                hit = (mine["addr"] < high) & (mine["addr"] + mine["len"] > low) & (mine["time"] <= wait.end)
                if hit.any():
                    last = max(last, int(mine["time"][hit].max()))
        return max(last - self.first, 0)
