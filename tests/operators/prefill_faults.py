"""Faults planted in prefill: calls that they are put in, and posts of one rank to one other replaced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pymodel.device.pe import Pe
from pymodel.operators import prefill_shmem
from pymodel.operators.common import MB
from pymodel.operators.world import Rank
from tests.operators import golden_prefill as golden
from tests.operators.golden_prefill import Case
from tests.operators.prefill_harness import check_layers, layer, make_case, make_world, run_layers, run_shmem

CASES = [make_case(s, 4, 8, 4, [3, 4, 2, 3]) for s in (9, 10, 12)]
SOURCE, TARGET = 3, 2
ROW = 128
"""Bytes of a row of the combine; dispatched ones have 512."""
NAMED = rf"PE {TARGET}: waits for .*{{}}.* from PE {SOURCE} "


def check(quant: bool = False, mode: str = "shmem", *, sanitize: bool = True, **options: Any) -> None:
    """Three layers against the golden."""
    if mode == "shmem" and not sanitize:
        world = make_world(CASES, mode, **options)

        async def program(rank: Rank) -> list[Any]:
            return [await layer(prefill_shmem, rank, case, quant) for case in CASES]

        outputs = run_shmem(world, program, sanitize=False).returns
    else:
        outputs, _ = run_layers(CASES, mode, quant, **options)
    check_layers(CASES, quant, outputs)


Does = Callable[[list[tuple[int, ...]], Callable[..., Awaitable[None]]], Awaitable[None]]


def replace_puts(
    monkeypatch: pytest.MonkeyPatch, chosen: Callable[[int, int], bool], number: int, does: Does, name: str
) -> None:
    """``number`` posts of `Pe.{name}`, from SOURCE to TARGET, go to ``does(their arguments, post)`` together.

    Those are the first for which ``chosen(bytes, dst's heap offset)`` holds.
    """
    original = getattr(Pe, name)
    held: list[tuple[int, ...]] = []

    async def replaced(self: Pe, dst: int, src: int, nbytes: int, peer: int, qp_idx: int = 0) -> None:
        here = (self.rank, peer) == (SOURCE, TARGET) and chosen(nbytes, dst - self.heap_base)
        if not here or len(held) == number:
            await original(self, dst, src, nbytes, peer, qp_idx)
            return
        held.append((dst, src, nbytes))
        if len(held) == number:

            async def post(*args: int) -> None:
                await original(self, *args, peer, qp_idx)

            await does(held, post)

    monkeypatch.setattr(Pe, name, replaced)


async def drop(held: list[tuple[int, ...]], post: Callable[..., Awaitable[None]]) -> None:
    """Nothing is posted."""


async def swap(held: list[tuple[int, ...]], post: Callable[..., Awaitable[None]]) -> None:
    """Of two long ones each goes where the other belongs; flags follow."""
    (dst0, src0, size), (dst1, src1, _) = (args for args in held if args[2] > 32)
    await post(dst1, src0, size)
    await post(dst0, src1, size)
    for args in held:
        if args[2] == 32:
            await post(*args)


async def flags_first(held: list[tuple[int, ...]], post: Callable[..., Awaitable[None]]) -> None:
    """Short ones before long ones."""
    for args in sorted(held, key=lambda args: args[2]):
        await post(*args)


def rows_back(case: Case) -> int:
    """Rows that SOURCE has for TARGET in the combine."""
    return sum(row[0] // case.local == SOURCE and row[1] == TARGET for row in golden.sent_rows(case))


def in_combine(nbytes: int, at: int) -> bool:
    """A row or its flag."""
    return nbytes == ROW or FLAGS["combine flags"](nbytes, at)


FLAGS: dict[str, Callable[[int, int], bool]] = {
    "notify flag": lambda nbytes, at: nbytes == 8,
    "dispatch statuses": lambda nbytes, at: nbytes == 32 and at < 2 * MB,
    "combine flags": lambda nbytes, at: nbytes == 32 and at >= 2 * MB,
}
