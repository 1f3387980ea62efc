"""Race sanitizer: memory that a put, get or atomic still uses must not be touched. On by default.

The rules (programs page, section 2): a source may change only after a quiet to that peer; the destination
of a get, and a fetch cell, may be read only after it; one QP has one owner. Where the platform tells when a
put has executed (the golden NICs do), two more races are decidable: the target's own store to, or plain
read of, a range for which a put is under way, and two puts of different QPs under way to the same bytes. A
read in the condition of a wait synchronises and is never a race. Every report names both accesses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from pymodel.platform import Observer, PostInfo
from pymodel.runner import Task

_GRANULE = 16
"""Ranges are found through buckets of 2^16 bytes."""


class RaceError(AssertionError):
    """Two accesses without an order between them; the text names both."""


@dataclass(slots=True, eq=False)
class _Span:
    """``[start, end)`` of PE ``pe`` in use by ``post``."""

    pe: int
    start: int
    end: int
    post: PostInfo
    serial: int


class _Spans:
    """Spans of one PE, found by overlap."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, _Span]] = {}

    def add(self, span: _Span) -> None:
        for bucket in range(span.start >> _GRANULE, (span.end - 1 >> _GRANULE) + 1):
            self._buckets.setdefault(bucket, {})[span.serial] = span

    def remove(self, span: _Span) -> None:
        for bucket in range(span.start >> _GRANULE, (span.end - 1 >> _GRANULE) + 1):
            spans = self._buckets.get(bucket)
            if spans is not None:
                spans.pop(span.serial, None)
                if not spans:
                    del self._buckets[bucket]

    def overlapping(self, start: int, end: int) -> Iterator[_Span]:
        buckets = self._buckets
        if not buckets or end <= start:
            return
        for bucket in range(start >> _GRANULE, (end - 1 >> _GRANULE) + 1):
            spans = buckets.get(bucket)
            if spans:
                for span in spans.values():
                    if span.start < end and start < span.end:
                        yield span


_UNDER_WAY = "it has not arrived yet"


def _unquieted(span: _Span) -> str:
    return f"no quiet of PE {span.post.pe} to PE {span.post.peer} since"


@dataclass(slots=True)
class _Use:
    """What one post holds: its source (or sink) on the own PE, its destination on the peer."""

    post: PostInfo
    local: _Span | None
    remote: _Span | None


class RaceSanitizer(Observer):
    """Raises `RaceError` at the access that completes a race.

    ``n_pes``: number of PEs. ``track_inbound``: the platform calls ``executed``, so destinations are judged
    too.
    """

    def __init__(self, n_pes: int, track_inbound: bool = False) -> None:
        self.track_inbound = track_inbound
        self._sources = [_Spans() for _ in range(n_pes)]
        self._sinks = [_Spans() for _ in range(n_pes)]
        self._inbound = [_Spans() for _ in range(n_pes)]
        self._uses: dict[tuple[int, int, int], dict[int, _Use]] = {}
        self._pending: dict[tuple[int, int, int], deque[_Use]] = {}
        self._owners: dict[tuple[int, int, int], tuple[Task, str]] = {}
        self._racy: list[tuple[int, int, int]] = []
        self._serial = 0

    def declare_racy(self, pe: int, addr: int, length: int) -> None:
        """Races that lie wholly inside this range are intended."""
        self._racy.append((pe, addr, addr + length))

    def open_posts(self) -> list[PostInfo]:
        """Posts that no quiet has covered, in posting order per QP."""
        return [use.post for uses in self._uses.values() for use in uses.values()]

    # ------------------------------------------------------------------ accesses of the program
    def stored(self, pe: int, addr: int, length: int, task: Task) -> None:
        """A store of the program against sources, sinks and inbound puts."""
        end = addr + length
        access = f"store of {length} bytes at {addr:#x} by {task}"
        for span in self._sources[pe].overlapping(addr, end):
            self._race(pe, addr, end, access, "changes the source of", span, _unquieted(span))
        for span in self._sinks[pe].overlapping(addr, end):
            self._race(pe, addr, end, access, "meets the result of", span, _unquieted(span))
        for span in self._inbound[pe].overlapping(addr, end):
            self._race(pe, addr, end, access, "meets the destination of", span, _UNDER_WAY)

    def read(self, pe: int, addr: int, length: int, task: Task | None) -> None:
        """A plain read of the program; conditions of waits (no task) synchronise."""
        if task is None:
            return
        end = addr + length
        access = f"read of {length} bytes at {addr:#x} by {task}"
        for span in self._sinks[pe].overlapping(addr, end):
            self._race(pe, addr, end, access, "looks at the result of", span, _unquieted(span))
        for span in self._inbound[pe].overlapping(addr, end):
            self._race(pe, addr, end, access, "looks at the destination of", span, _UNDER_WAY)

    # ------------------------------------------------------------------ the device API
    def owned(self, pe: int, peer: int, qp: int, task: Task, action: str) -> None:
        """One QP has one owner: the first task to use it, until that task has ended."""
        key = (pe, peer, qp)
        held = self._owners.get(key)
        if held is None or held[0] is task or held[0].done:
            self._owners[key] = (task, action)
            return
        owner, before = held
        raise RaceError(
            f"QP {qp} of PE {pe} to PE {peer} has two owners: {action} by {task} (task {task.number}),"
            f" {before} by {owner} (task {owner.number}), which has not ended"
        )

    def posted(self, post: PostInfo, task: Task) -> None:
        """From here to the quiet the source (or sink) is in use.

        So is the destination until it has executed.
        """
        pe, peer = post.pe, post.peer
        use = _Use(post, None, None)
        if post.length:
            self._serial += 1
            local = _Span(pe, post.local, post.local + post.length, post, self._serial)
            if post.opcode == "WRITE":
                for span in self._sinks[pe].overlapping(local.start, local.end):
                    self._race(
                        pe, local.start, local.end, str(post), "sends the result of", span, _unquieted(span)
                    )
                self._sources[pe].add(local)
                use.remote = self._post_write(post, peer)
            else:
                for spans in (self._sinks[pe], self._sources[pe]):
                    for span in spans.overlapping(local.start, local.end):
                        # results of one QP land in order, and all atomics of a peer share one cell
                        if span.post.peer == peer and span.post.qp == post.qp and spans is self._sinks[pe]:
                            continue
                        self._race(
                            pe,
                            local.start,
                            local.end,
                            str(post),
                            "writes over memory of",
                            span,
                            _unquieted(span),
                        )
                self._sinks[pe].add(local)
            use.local = local
        self._uses.setdefault((pe, peer, post.qp), {})[post.index] = use
        if self.track_inbound:
            self._pending.setdefault((pe, peer, post.qp), deque()).append(use)

    def _post_write(self, post: PostInfo, peer: int) -> _Span | None:
        if not 0 <= peer < len(self._inbound):
            return None
        start, end = post.remote, post.remote + post.length
        for span in self._sources[peer].overlapping(start, end):
            if span.post is not post:
                self._race(peer, start, end, str(post), "changes the source of", span, _unquieted(span))
        if not self.track_inbound:
            return None
        for span in self._inbound[peer].overlapping(start, end):
            if (span.post.pe, span.post.qp) != (post.pe, post.qp):
                self._race(peer, start, end, str(post), "meets the destination of", span, _UNDER_WAY)
        remote = _Span(peer, start, end, post, self._serial)
        self._inbound[peer].add(remote)
        return remote

    def quieted(self, pe: int, peer: int, qp: int, target: int, tail: int, status: int) -> None:
        """What the quiet consumed is free; after an error or time-out the rest stays in use."""
        uses = self._uses.get((pe, peer, qp))
        if not uses:
            return
        done = [index for index in uses if (tail - 1 - index) & 0xFFFF_FFFF < 1 << 31]
        for index in done:
            use = uses.pop(index)
            if use.local is not None:
                self._sources[pe].remove(use.local)
                self._sinks[pe].remove(use.local)
            if use.remote is not None:
                self._inbound[use.remote.pe].remove(use.remote)
                use.remote = None

    def executed(self, pe: int, peer: int, qp: int, index: int) -> None:
        """The put's bytes are in place: what follows at the target is ordered behind them."""
        pending = self._pending.get((pe, peer, qp))
        if not pending:
            return
        # the NIC's index is the low part of the 32-bit one; V1 keeps 14 bits
        place = next((n for n, use in enumerate(pending) if (use.post.index - index) & 0x3FFF == 0), -1)
        # PSN order: what was posted before it has executed, or never will
        for _ in range(place + 1):
            use = pending.popleft()
            if use.remote is not None:
                self._inbound[use.remote.pe].remove(use.remote)
                use.remote = None

    # ------------------------------------------------------------------ verdict
    def _race(self, pe: int, start: int, end: int, access: str, does: str, span: _Span, why: str) -> None:
        low, high = max(start, span.start), min(end, span.end)
        for racy_pe, racy_low, racy_high in self._racy:
            if racy_pe == pe and racy_low <= low and high <= racy_high:
                return
        raise RaceError(f"race on PE {pe}, bytes [{low:#x}, {high:#x}): {access} {does} {span.post}: {why}")
