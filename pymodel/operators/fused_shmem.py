"""The fused operator in SHMEM mode, over RDMA (programs page, section 4; operators page 6.4, 10.5).

Words and rows stand where window mode has them. All posts to a peer go over one QP, so a flag or an add
arrives behind the rows it stands for without a quiet between. Count words follow the rows: a token flag
stands near the start of its 512-byte tail, which may take several packets, so it alone does not say that
the NIC is done with the record and that the flag may be cleared. The transmit stage serves dispatch, then
combine; between them, and at the end, every peer is quieted, since both reuse its bytes.

With atomic counters the add is what comes last, and no combine flags are sent, so a rank that got no rows
back from a peer does not wait for it and can be one call ahead of it. Count words of odd calls therefore
stand in the other half of windowsExp, which is free: counts are never written over before they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pymodel.device.pe import Pe
from pymodel.operators.common import AIV_CORES, KB, ProtocolError
from pymodel.operators.fused_math import (
    W8A8,
    Route,
    checked_counts,
    core_words,
    flipped,
    quantised_rows,
    records,
    reduced,
    run_expert,
    shared_output,
    status_words,
    unpack_records,
)
from pymodel.operators.fused_types import (
    DATA_STATE,
    EXP_HALF,
    F32_ONE,
    FLAG_BYTES,
    SLOT,
    Array,
    Fused,
    FusedArgs,
    FusedMap,
    Numerics,
    Polarity,
    settle,
)
from pymodel.operators.world import Rank

CONSTANTS: Final = 512 * KB
"""In the sync area: the two combine flags, 0.0 and 1.0, read-only from the first call on."""
COUNT_SOURCES: Final = 516 * KB
"""In the sync area: sources of the count words, 32 bytes per expert, of even calls, then of odd ones."""
_EXPERTS: Final = 512
"""The most that a group has (operators page 6.1)."""


async def fused(rank: Rank, args: FusedArgs, numerics: Numerics | None = None) -> Fused:
    """One call on one rank. ``numerics``: W8A8 unless given.

    Raises ProtocolError for impossible counts and for a counter beyond what the counts allow.
    """
    places = FusedMap.of(rank.ranks, args)
    call = _Call(rank, rank.device, args, places, Route.of(args), numerics or W8A8(), rank.call("fused"))
    await settle(rank, places)
    await call.store_constants()
    half = await call.take_half()
    words = count_half(rank, call.number, half)
    polarity = await call.use_half(words)
    await call.send_rows(half, words, polarity)
    counts = await call.receive_counts(words, polarity)
    if rank.atomics:
        await call.await_counter("fused_dispatch", counts.sum(axis=0))
    answers = [await call.run_local(half, polarity, counts, local) for local in range(places.local)]

    half = await call.take_half()
    if not rank.atomics:
        polarity = await call.use_half(half)
    await call.quiet()
    await call.send_answers(half, polarity, counts, answers)
    if rank.atomics:
        await call.await_counter("fused_combine", call.route.counts.reshape(rank.ranks, -1).sum(axis=1))
    else:
        await call.await_flags(half, polarity)
    rows = call.take_answers(half)
    await call.quiet()
    return Fused(reduced(args, call.route, rows), shared_output(args, call.numerics), counts.sum(axis=1))


def count_half(rank: Rank, number: int, half: int) -> int:
    """Half of windowsExp for the count words of a call that dispatches to ``half``; see the top."""
    return number & 1 if rank.atomics else half


@dataclass
class _Call:
    rank: Rank
    pe: Pe
    args: FusedArgs
    places: FusedMap
    route: Route
    numerics: Numerics
    number: int

    def __post_init__(self) -> None:
        layout, base = self.rank.layout, self.pe.heap_base
        self.win, self.exp, self.stage = base + layout.win, base + layout.exp, base + layout.stage
        self.sync = base

    @property
    def parity(self) -> int:
        """Of the call: selects counters, and the slots that count words are sent from."""
        return self.number & 1

    def ranks(self) -> Iterator[int]:
        """All ranks from the next one on, the own one last: no two ranks send to one peer at first."""
        me, ranks = self.rank.rank, self.rank.ranks
        return ((me + step) % ranks for step in range(1, ranks + 1))

    async def quiet(self) -> None:
        """Everything posted to anybody has arrived, so its sources may change."""
        for peer in self.ranks():
            if peer != self.rank.rank:
                await self.pe.quiet(peer)

    # ------------------------------------------------------------------ words of the own rank
    async def store_constants(self) -> None:
        """Once: later calls must not change what an earlier one may be sending."""
        if not self.rank.state.setdefault("fused constants", False):
            self.rank.state["fused constants"] = True
            flags = np.concatenate([status_words(np.zeros(1, np.int32), value)[0] for value in (0, F32_ONE)])
            await self.pe.store(self.sync + CONSTANTS, flags)

    async def _exchange(self, offset: int, update: dict[int, int] | None = None) -> int:
        """Value of the state word of core 0; the words of all cores change from it to the next one."""
        value = int(self.pe.memory(self.exp + offset, 4).view(np.uint32)[0])
        words = core_words(flipped(value) if update is None else update[value], AIV_CORES)
        await self.pe.store(self.exp + offset, words)
        return value

    async def take_half(self) -> int:
        """dataState before this use, which toggles it: dispatch and combine take one half each."""
        return await self._exchange(DATA_STATE, {0: 1, 1: 0})

    async def use_half(self, half: int) -> Polarity:
        """Polarity of this use of a half of windowsExp; the next one has the other."""
        return Polarity.of(await self._exchange(self.places.state(half)))

    # ------------------------------------------------------------------ dispatch
    async def send_rows(self, half: int, words: int, polarity: Polarity) -> None:
        """Per rank payload and tail of each row, then the counts; with El = 1 a row is one WRITE.

        Atomic counters: the counts, the rows, and one add of their number, none for no rows.
        """
        places, route, pe, me = self.places, self.route, self.pe, self.rank.rank
        q, scale = quantised_rows(self.args, route)
        token_flag = polarity.token if places.deep and not self.rank.atomics else 0
        raw = records(places, q, scale, token_flag)
        sources = self.sync + COUNT_SOURCES + self.parity * _EXPERTS * FLAG_BYTES
        count_words = status_words(route.counts, polarity.status)
        await pe.store(sources, count_words.reshape(-1))
        for dst in self.ranks():
            if self.rank.atomics:
                await self._send_counts(dst, words, sources, count_words)
            first, last = self._span(dst)
            if dst == me:
                for row, there in zip(raw[first:last], self._targets(half, first, last), strict=True):
                    await pe.store(there, row[: places.hidden])
                    await pe.store(there + places.hidden, row[places.hidden :])
            elif last > first:
                await self._put_rows(dst, half, raw, first, last)
                if self.rank.atomics:
                    await pe.atomic.add(self.rank.counter("fused_dispatch", self.parity), last - first, dst)
            if not self.rank.atomics:
                await self._send_counts(dst, words, sources, count_words)

    async def _put_rows(self, dst: int, half: int, raw: NDArray[np.uint8], first: int, last: int) -> None:
        places, put, hidden = self.places, self.pe.put_nbi, self.places.hidden
        source = self.stage + first * places.record
        await self.pe.store(source, raw[first:last].reshape(-1))
        for there in self._targets(half, first, last):
            if places.deep:
                await put(there, source, hidden, dst)
                await put(there + hidden, source + hidden, places.tail, dst)
            else:
                # counts or add come behind all rows, so payload and scale need no order between them
                await put(there, source, places.record, dst)
            source += places.record

    def _span(self, dst: int) -> tuple[int, int]:
        """Rows of the route that go to ``dst``."""
        low, high = dst * self.places.local, (dst + 1) * self.places.local
        first = int(self.route.starts[low])
        return first, first + int(self.route.counts[low:high].sum())

    def _targets(self, half: int, first: int, last: int) -> list[int]:
        """Local (symmetric) addresses of rows [first, last) of the route in the window of their rank."""
        places, me = self.places, self.rank.rank
        out: list[int] = []
        for expert in np.unique(self.route.expert[first:last]).tolist():
            dst, local = divmod(expert, places.local)
            base = self.win + places.rows(half, dst, me, local)
            out += [base + places.record * index for index in range(int(self.route.counts[expert]))]
        return out

    async def _send_counts(self, dst: int, words: int, sources: int, count_words: NDArray[np.uint8]) -> None:
        places, me = self.places, self.rank.rank
        for local in range(places.local):
            expert = dst * places.local + local
            there = self.exp + places.status(words, me, local)
            if dst == me:
                await self.pe.store(there, count_words[expert])
            else:
                await self.pe.put_nbi(there, sources + expert * FLAG_BYTES, FLAG_BYTES, dst)
                self.pe.count("flags")

    async def receive_counts(self, words: int, polarity: Polarity) -> NDArray[np.int64]:
        """Rows [El, R] that come from each rank for each local expert."""
        places, ranks, me = self.places, self.rank.ranks, self.rank.rank
        base, length = self.exp + words * EXP_HALF, places.experts * SLOT
        shape = places.local, ranks, SLOT // 4
        slots = self.pe.view(base, length).view(np.uint32).reshape(shape)
        for src in self.ranks():
            if src != me:
                mine = slots[:, src, 0]
                await self.pe.wait_until(
                    # the last one: they come in order
                    self.exp + places.status(words, src, places.local - 1),
                    FLAG_BYTES,
                    lambda _, mine=mine: bool((mine == polarity.status).all()),  # type: ignore[misc]
                    what=f"its {places.local} count words",
                    peer=src,
                )
        counts = self.pe.memory(base, length).view(np.uint32).reshape(shape)[:, :, 1]
        return checked_counts(places, counts)

    async def await_counter(self, kind: str, rows: NDArray[np.int64]) -> None:
        """Rows [R] by rank: all of the other ranks' have come. Raises ProtocolError for more than that."""
        parity, me = self.parity, self.rank.rank
        remote = {peer: int(count) for peer, count in enumerate(rows) if count and peer != me}
        base = self.rank.bases.get((kind, parity), 0) + sum(remote.values())
        self.rank.bases[kind, parity] = base
        address = self.rank.counter(kind, parity)
        counter = self.pe.view(address, 8).view(np.int64)
        await self.pe.wait_until(
            address,
            8,
            lambda _: int(counter[0]) >= base,
            what=f"counter {kind}, parity {parity}, to reach {base} (rows by rank: {remote})",
            peer=next(iter(remote)) if len(remote) == 1 else None,
        )
        if int(counter[0]) > base:
            raise ProtocolError(
                f"rank {me}: counter {kind}, parity {parity}: {counter[0]} where {base} is all"
            )

    async def run_local(self, half: int, polarity: Polarity, counts: NDArray[np.int64], local: int) -> Array:
        """Rows [n, h] that a local expert makes of what all ranks sent it, by source rank, then arrival."""
        places, me = self.places, self.rank.rank
        q, scales = [], []
        for src in np.flatnonzero(counts[local]).tolist():
            base, count = self.win + places.rows(half, me, src, local), int(counts[local, src])
            if places.deep and not self.rank.atomics:
                await self._await_tokens(base, count, polarity.token, src, local)
            raw = self.pe.memory(base, count * places.record).reshape(count, places.record)
            payload, scale = unpack_records(places, raw)
            q.append(payload)
            scales.append(scale)
        if not q:
            return np.empty((0, places.hidden), self.args.x.dtype)
        return run_expert(
            self.numerics,
            self.args.expert(local),
            np.concatenate(q),
            np.concatenate(scales),
            self.args.x.dtype,
        )

    async def _await_tokens(self, base: int, count: int, token: int, src: int, local: int) -> None:
        """Wait for the token flags of rows from ``src``, and clear them."""
        record, hidden = self.places.record, self.places.hidden
        raw = self.pe.view(base, count * record).reshape(count, record)
        flags, expect = raw[:, hidden + 4 : hidden + 8], token.to_bytes(4, "little")
        want = np.frombuffer(expect, np.uint8)
        if src != self.rank.rank:
            await self.pe.wait_until(
                # the tail of the last row: rows come in order
                base + (count - 1) * record + hidden,
                SLOT,
                lambda _: bool((flags == want).all()),
                what=f"{count} rows for local expert {local}",
                peer=src,
            )
        for index in range(count):
            await self.pe.store(base + index * record + hidden + 4, bytes(4))

    # ------------------------------------------------------------------ combine
    async def send_answers(
        self, half: int, polarity: Polarity, counts: NDArray[np.int64], answers: list[Array]
    ) -> None:
        """Per rank its rows, then the flag, or one add of their number."""
        places, pe, me = self.places, self.pe, self.rank.rank
        size, source = 2 * places.hidden, self.stage
        ends = np.cumsum(counts, axis=1)
        raw = [rows.view(np.uint8).reshape(len(rows), size) for rows in answers]
        flag = self.sync + CONSTANTS + (FLAG_BYTES if polarity.status else 0)
        for dst in self.ranks():
            sent = 0
            for local in range(places.local):
                count, end = int(counts[local, dst]), int(ends[local, dst])
                if not count:
                    continue
                there = self.win + places.rows(half, dst, me, local)
                rows = raw[local][end - count : end].reshape(-1)
                if dst == me:
                    await pe.store(there, rows)
                    continue
                await pe.store(source, rows)
                for _ in range(count):
                    await pe.put_nbi(there, source, size, dst)
                    there, source = there + size, source + size
                sent += count
            if self.rank.atomics:
                if sent:
                    await pe.atomic.add(self.rank.counter("fused_combine", self.parity), sent, dst)
            elif dst == me:
                await pe.store(self.exp + places.flag(half, me), pe.memory(flag, FLAG_BYTES))
            else:
                await pe.put_nbi(self.exp + places.flag(half, me), flag, FLAG_BYTES, dst)
                pe.count("flags")

    async def await_flags(self, half: int, polarity: Polarity) -> None:
        """The other ranks' combine flags have come."""
        expect = polarity.status.to_bytes(4, "little")
        for src in self.ranks():
            if src != self.rank.rank:
                await self.pe.wait_until(
                    self.exp + self.places.flag(half, src),
                    FLAG_BYTES,
                    lambda view: view[:4].tobytes() == expect,
                    what="its combine flag",
                    peer=src,
                )

    def take_answers(self, half: int) -> Array:
        """Rows [n, h] for the own slots, in the order of the route."""
        places, me, route, size = self.places, self.rank.rank, self.route, 2 * self.places.hidden
        out = np.empty((len(route.token), size), np.uint8)
        for expert in np.flatnonzero(route.counts).tolist():
            src, local = divmod(expert, places.local)
            first, count = int(route.starts[expert]), int(route.counts[expert])
            raw = self.pe.memory(self.win + places.rows(half, me, src, local), count * size)
            out[first : first + count] = raw.reshape(count, size)
        return out.view(self.args.x.dtype)
