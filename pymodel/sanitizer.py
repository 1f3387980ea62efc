"""Race sanitizer: memory that a put, get or atomic still uses must not be touched. On by default.

The rules (programs page, section 2): a source may change only after a quiet to that peer; the destination
of a get, and a fetch cell, may be read only after it; one QP has one owner. What a get reads on the peer may
not change before it either: nothing orders the NIC's reads with what follows, not even on the same QP (NIC
page, section 5). Where the platform tells when a put or an atomic has executed (the golden NICs do), more is
decidable: the target's own store to, or plain read of, a range for which one is under way, and two of them,
or one and a get, of different QPs under way to the same bytes; atomics among themselves are ordered by the
NIC. A read in the condition of a wait synchronises and is never a race. Every report names both accesses.
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
_MAX_MESSAGE = 1 << 31
"""A NIC refuses what is longer, so it touches nothing (NIC page 4)."""

_Key = tuple[int, int, int]
"""(pe, peer, qp)."""


@dataclass(slots=True)
class _Use:
    """What one post holds: its source (or sink) on the own PE, its range on the peer."""

    post: PostInfo
    local: _Span | None = None
    remote: _Span | None = None
    """Destination of a put or an atomic, until it has executed."""
    reads: _Span | None = None
    """What a get reads there, until a quiet."""
    over: bool = False


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
        self._gets = [_Spans() for _ in range(n_pes)]
        self._uses: dict[_Key, dict[int, _Use]] = {}
        self._pending: dict[_Key, deque[_Use]] = {}
        self._owners: dict[_Key, tuple[Task, str]] = {}
        self._failed: dict[_Key, int] = {}
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
        """A store of the program against sources, sinks, gets from here and inbound puts and atomics."""
        end = addr + length
        access = f"store of {length} bytes at {addr:#x} by {task}"
        self._meet(self._sources[pe], addr, end, access, "changes the source of")
        self._meet(self._sinks[pe], addr, end, access, "meets the result of")
        self._meet(self._gets[pe], addr, end, access, "changes what is read by")
        self._meet(self._inbound[pe], addr, end, access, "meets the destination of", _UNDER_WAY)

    def read(self, pe: int, addr: int, length: int, task: Task | None) -> None:
        """A plain read of the program; conditions of waits (no task) synchronise."""
        if task is None:
            return
        end = addr + length
        access = f"read of {length} bytes at {addr:#x} by {task}"
        self._meet(self._sinks[pe], addr, end, access, "looks at the result of")
        self._meet(self._inbound[pe], addr, end, access, "looks at the destination of", _UNDER_WAY)

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
        """From here to the quiet both ends are in use; a destination until what goes there has executed."""
        pe, peer = post.pe, post.peer
        use = _Use(post)
        length = post.length & 0xFFFF_FFFF
        if 0 < length <= _MAX_MESSAGE:
            self._serial += 1
            use.local = _Span(pe, post.local, post.local + length, post, self._serial)
            there = _Span(peer, post.remote, post.remote + length, post, self._serial)
            if post.opcode == "WRITE":
                self._post_source(use.local)
            else:
                self._post_sink(use.local)
            if 0 <= peer < len(self._inbound):
                if post.opcode == "READ":
                    use.reads = self._post_get(there)
                else:
                    use.remote = self._post_destination(there)
        self._uses.setdefault((pe, peer, post.qp), {})[post.index] = use
        if self.track_inbound:
            self._pending.setdefault((pe, peer, post.qp), deque()).append(use)

    def _post_source(self, span: _Span) -> None:
        pe, low, high, access = span.pe, span.start, span.end, span.post
        self._meet(self._sinks[pe], low, high, access, "sends the result of")
        self._meet(self._inbound[pe], low, high, access, "sends the destination of", _UNDER_WAY)
        self._sources[pe].add(span)

    def _post_sink(self, span: _Span) -> None:
        pe, low, high, post = span.pe, span.start, span.end, span.post
        for other in self._sinks[pe].overlapping(low, high):
            # results of one QP land in order, and all atomics of a peer share one cell
            if (other.post.peer, other.post.qp) != (post.peer, post.qp):
                self._race(pe, low, high, post, "writes over memory of", other, self._unquieted(other))
        self._meet(self._sources[pe], low, high, post, "writes over memory of")
        self._meet(self._gets[pe], low, high, post, "writes over what is read by")
        self._meet(self._inbound[pe], low, high, post, "writes over the destination of", _UNDER_WAY)
        self._sinks[pe].add(span)

    def _post_get(self, span: _Span) -> _Span:
        peer, low, high, post = span.pe, span.start, span.end, span.post
        self._meet(self._sinks[peer], low, high, post, "reads the result of")
        for other in self._inbound[peer].overlapping(low, high):
            # a READ waits for what came before it on its QP
            if (other.post.pe, other.post.qp) != (post.pe, post.qp):
                self._race(peer, low, high, post, "reads the destination of", other, _UNDER_WAY)
        self._gets[peer].add(span)
        return span

    def _post_destination(self, span: _Span) -> _Span | None:
        peer, low, high, post = span.pe, span.start, span.end, span.post
        self._meet(self._sources[peer], low, high, post, "changes the source of")
        self._meet(self._sinks[peer], low, high, post, "meets the result of")
        self._meet(self._gets[peer], low, high, post, "changes what is read by")
        if not self.track_inbound:
            return None
        for other in self._inbound[peer].overlapping(low, high):
            # what one QP brings becomes visible in its order
            same_qp = (other.post.pe, other.post.qp) == (post.pe, post.qp)
            atomics = other.post.opcode == post.opcode == "ATOMIC"
            if not same_qp and not atomics:
                self._race(peer, low, high, post, "meets the destination of", other, _UNDER_WAY)
        self._inbound[peer].add(span)
        return span

    def quieted(self, pe: int, peer: int, qp: int, target: int, tail: int, status: int) -> None:
        """What the quiet found complete is free; after an error or time-out the rest stays in use."""
        key = (pe, peer, qp)
        if status:
            self._failed[key] = status
        uses = self._uses.get(key)
        if not uses:
            return
        done = [index for index in uses if (tail - 1 - index) & 0xFFFF_FFFF < 1 << 31]
        for index in done:
            use = uses.pop(index)
            use.over = True
            if use.local is not None:
                self._sources[pe].remove(use.local)
                self._sinks[pe].remove(use.local)
            if use.reads is not None:
                self._gets[peer].remove(use.reads)
            self._arrived(use)
        pending = self._pending.get(key)
        while pending and pending[0].over:
            pending.popleft()

    def executed(self, pe: int, peer: int, qp: int, index: int) -> None:
        """What the put or atomic does there is done: what follows at the target is ordered behind it.

        And behind everything that was posted before it on that QP (NIC page, section 5).
        """
        pending = self._pending.get((pe, peer, qp))
        # the NIC's index is the low part of the 32-bit one; V1 keeps 14 bits
        if not pending or all((use.post.index - index) & 0x3FFF for use in pending):
            return
        while True:
            use = pending.popleft()
            self._arrived(use)
            if (use.post.index - index) & 0x3FFF == 0:
                return

    def _arrived(self, use: _Use) -> None:
        if use.remote is not None:
            self._inbound[use.remote.pe].remove(use.remote)
            use.remote = None

    # ------------------------------------------------------------------ verdict
    def _unquieted(self, span: _Span) -> str:
        post = span.post
        text = f"no quiet of PE {post.pe} to PE {post.peer} since"
        status = self._failed.get((post.pe, post.peer, post.qp))
        return text if status is None else f"{text} that went so far; one ended with status {status:#x}"

    def _meet(self, spans: _Spans, start: int, end: int, access: object, does: str, why: str = "") -> None:
        for span in spans.overlapping(start, end):
            self._race(span.pe, start, end, access, does, span, why or self._unquieted(span))

    def _race(self, pe: int, start: int, end: int, access: object, does: str, span: _Span, why: str) -> None:
        low, high = max(start, span.start), min(end, span.end)
        for racy_pe, racy_low, racy_high in self._racy:
            if racy_pe == pe and racy_low <= low and high <= racy_high:
                return
        raise RaceError(f"race on PE {pe}, bytes [{low:#x}, {high:#x}): {access} {does} {span.post}: {why}")
