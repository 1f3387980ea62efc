"""The fused operator in window mode: plain stores into the peers' windows (operators page 6.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymodel.operators.common import AIV_CORES
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
from pymodel.operators.window import poll
from pymodel.operators.world import Rank, own


async def fused(rank: Rank, args: FusedArgs, numerics: Numerics | None = None) -> Fused:
    """One call on one rank. ``numerics``: W8A8 unless given. Raises ProtocolError for impossible counts."""
    call = _Call(rank, args, FusedMap.of(rank.ranks, args), Route.of(args), numerics or W8A8())
    await settle(rank, call.places)
    half = call.take_half()
    polarity = call.use_half(half)
    call.send_rows(half, polarity)
    counts = await call.receive_counts(half, polarity)
    answers = [await call.run_local(half, polarity, counts, local) for local in range(call.places.local)]

    half = call.take_half()
    polarity = call.use_half(half)
    call.send_answers(half, polarity, counts, answers)
    rows = await call.receive_answers(half, polarity)
    return Fused(reduced(args, call.route, rows), shared_output(args, call.numerics), counts.sum(axis=1))


@dataclass
class _Call:
    rank: Rank
    args: FusedArgs
    places: FusedMap
    route: Route
    numerics: Numerics

    # ------------------------------------------------------------------ state words
    def _exchange(self, offset: int, update: dict[int, int] | None = None) -> int:
        """Value of the state word of core 0; the words of all cores change from it to the next one."""
        exp = self.rank.windows[self.rank.rank].exp
        value = int(exp[offset : offset + 4].view(np.uint32)[0])
        words = core_words(flipped(value) if update is None else update[value], AIV_CORES)
        own(exp, offset, words.size)[:] = words
        return value

    def take_half(self) -> int:
        """dataState before this use, which toggles it: dispatch and combine take one half each."""
        return self._exchange(DATA_STATE, {0: 1, 1: 0})

    def use_half(self, half: int) -> Polarity:
        """Polarity of this use of a half; the next one has the other."""
        return Polarity.of(self._exchange(self.places.state(half)))

    # ------------------------------------------------------------------ dispatch
    def send_rows(self, half: int, polarity: Polarity) -> None:
        """Payload before tail, rows before counts (operators page 6.4)."""
        places, route, me = self.places, self.route, self.rank.rank
        q, scale = quantised_rows(self.args, route)
        raw = records(places, q, scale, polarity.token if places.deep else 0)
        for expert in np.flatnonzero(route.counts).tolist():
            dst, local = divmod(expert, places.local)
            first, count = int(route.starts[expert]), int(route.counts[expert])
            there = self._rows(dst, places.rows(half, dst, me, local), count, places.record)
            mine = raw[first : first + count]
            there[:, : places.hidden] = mine[:, : places.hidden]
            there[:, places.hidden :] = mine[:, places.hidden :]
        self._send_counts(half, polarity)

    def _send_counts(self, half: int, polarity: Polarity) -> None:
        places, me = self.places, self.rank.rank
        words = status_words(self.route.counts, polarity.status)
        for expert in range(places.experts):
            dst, local = divmod(expert, places.local)
            window = self.rank.windows[dst].exp
            own(window, places.status(half, me, local), FLAG_BYTES)[:] = words[expert]

    async def receive_counts(self, half: int, polarity: Polarity) -> NDArray[np.int64]:
        """Rows [El, R] that come from each rank for each local expert."""
        places, ranks = self.places, self.rank.ranks
        slots = own(self.rank.windows[self.rank.rank].exp, half * EXP_HALF, places.experts * SLOT)
        words = slots.view(np.uint32).reshape(places.local, ranks, SLOT // 4)
        for src in range(ranks):
            mine = words[:, src, 0]
            await poll(
                lambda mine=mine: bool((mine == polarity.status).all()),  # type: ignore[misc]
                f"its {places.local} count words",
                src,
            )
        return checked_counts(places, words[:, :, 1])

    async def run_local(self, half: int, polarity: Polarity, counts: NDArray[np.int64], local: int) -> Array:
        """Rows [n, h] that a local expert makes of what all ranks sent it, by source rank, then arrival."""
        places, me = self.places, self.rank.rank
        q, scales = [], []
        for src in np.flatnonzero(counts[local]).tolist():
            raw = self._rows(me, places.rows(half, me, src, local), int(counts[local, src]), places.record)
            if places.deep:
                flags = raw[:, places.hidden + 4 : places.hidden + 8]
                expect = np.frombuffer(polarity.token.to_bytes(4, "little"), np.uint8)
                await poll(
                    lambda flags=flags, expect=expect: bool((flags == expect).all()),  # type: ignore[misc]
                    f"{len(raw)} rows for local expert {local}",
                    src,
                )
                flags[:] = 0
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

    # ------------------------------------------------------------------ combine
    def send_answers(
        self, half: int, polarity: Polarity, counts: NDArray[np.int64], answers: list[Array]
    ) -> None:
        """Every row to the window of its token's owner, then a flag to every rank."""
        places, me, hidden = self.places, self.rank.rank, self.places.hidden
        for local, rows in enumerate(answers):
            raw, first = rows.view(np.uint8).reshape(len(rows), 2 * hidden), 0
            for dst, count in enumerate(counts[local].tolist()):
                there = self._rows(dst, places.rows(half, dst, me, local), count, 2 * hidden)
                there[:] = raw[first : first + count]
                first += count
        flag = status_words(np.zeros(1, np.int32), polarity.status)[0]
        for window in self.rank.windows:
            own(window.exp, places.flag(half, me), FLAG_BYTES)[:] = flag

    async def receive_answers(self, half: int, polarity: Polarity) -> Array:
        """Rows [n, h] for the own slots, in the order of the route."""
        places, me, route = self.places, self.rank.rank, self.route
        exp = self.rank.windows[me].exp
        for src in range(self.rank.ranks):
            flag = own(exp, places.flag(half, src), 4).view(np.uint32)
            await poll(lambda flag=flag: int(flag[0]) == polarity.status, "its combine flag", src)  # type: ignore[misc]
        out = np.empty((len(route.token), 2 * places.hidden), np.uint8)
        for expert in np.flatnonzero(route.counts).tolist():
            src, local = divmod(expert, places.local)
            first, count = int(route.starts[expert]), int(route.counts[expert])
            out[first : first + count] = self._rows(
                me, places.rows(half, me, src, local), count, 2 * places.hidden
            )
        return out.view(self.args.x.dtype)

    def _rows(self, dst: int, offset: int, count: int, stride: int) -> NDArray[np.uint8]:
        """Writable uint8 [count, stride] in windowsIn of ``dst``."""
        window: NDArray[np.uint8] = own(self.rank.windows[dst].win, offset, count * stride)
        return window.reshape(count, stride)
