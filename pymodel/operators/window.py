"""Windows of HCCL window mode as plain memory (operators page 1.4, 7); the loop that runs its programs."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymodel.operators.common import MB
from pymodel.operators.heap import EXP_BYTES
from pymodel.platform import Wait, wait
from pymodel.runner import HangError


class Window:
    """windowsIn and windowsExp of one rank for one group: uint8 arrays, zero at first.

    Peers store into them and load from them directly; offsets are the same on all ranks.
    """

    def __init__(self, rank: int, size_mb: int) -> None:
        self.rank, self.size = rank, size_mb * MB
        self.win: NDArray[np.uint8] = np.zeros(self.size, np.uint8)
        self.exp: NDArray[np.uint8] = np.zeros(EXP_BYTES, np.uint8)


async def poll(until: Callable[[], bool], what: str, peer: int | None = None) -> None:
    """Wait in window mode until ``until()`` holds; stores of peers are seen at once."""
    await wait((), None, until, what=what, peer=peer)


def run_window(programs: Sequence[Callable[[], Awaitable[Any]]], seed: int) -> list[Any]:
    """Run one program per rank to their ends, in an order drawn from ``seed``; gives what they return.

    Raises what they raise, and HangError with a line per waiting rank when nobody can go on.
    """
    rng = random.Random(f"window mode {seed}")
    steps: dict[int, Generator[Any, Any, Any]] = {
        rank: _started(program()) for rank, program in enumerate(programs)
    }
    waits: dict[int, Wait | None] = dict.fromkeys(steps)
    results: list[Any] = [None] * len(programs)
    try:
        while steps:
            moved = False
            for rank in rng.sample(sorted(steps), len(steps)):
                waiting = waits[rank]
                if waiting is not None and waiting.until is not None and not waiting.until():
                    continue
                moved = True
                try:
                    request = steps[rank].send(None if waiting is None else True)
                except StopIteration as end:
                    results[rank] = end.value
                    del steps[rank]
                    continue
                except BaseException as error:
                    error.add_note(f"in rank {rank}")
                    raise
                if not isinstance(request, Wait):
                    raise TypeError(f"rank {rank}: {request!r} in window mode, where programs can only poll")
                waits[rank] = request
            if not moved:
                lines = [_line(rank, waits[rank]) for rank in sorted(steps)]
                raise HangError("nothing moves any more:\n" + "\n".join(lines))
    finally:
        for step in steps.values():
            step.close()
    return results


def _started(program: Awaitable[Any]) -> Generator[Any, Any, Any]:
    return program.__await__()


def _line(rank: int, waiting: Wait | None) -> str:
    if waiting is None:
        return f"  rank {rank}: not started"
    source = "" if waiting.peer is None else f", from rank {waiting.peer}"
    return f"  rank {rank}: waits for {waiting.what}{source}"
