"""Worlds: window sizes, heaps that fit, groups by name, one family a group, waiting and hanging ranks.

Sweep: both modes; HCCL_BUFFSIZE unset, set, beyond 16 bits. Stimulus: worlds of 2 to 5 ranks with programs
that wait for each other. Checks: sizes, refusals with their texts, results in the order of ranks, a hang that
names every waiting rank, what it waits for and from whom. Timing: none. Not proved: operators.
"""

from __future__ import annotations

import pytest

from pymodel.operators.common import KB, MB, OperatorError
from pymodel.operators.heap import COUNTER_KINDS, HeapLayout, counter_offset
from pymodel.operators.window import poll
from pymodel.operators.world import Rank, World, WorldError, resolve
from pymodel.runner import HangError


def heap(size: int = 1, **changes: int) -> HeapLayout:
    """A small layout."""
    sizes = {"tokens": 2, "top_k": 2, "hidden": 64, "rows": 8, "row_bytes": 512, **changes}
    return HeapLayout.prepare(size, **sizes)


@pytest.mark.parametrize(("text", "size"), [(None, 200), ("7", 7), ("65541", 5), ("much", 200)])
def test_default_window(text: str | None, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators page 1.1: HCCL_BUFFSIZE in MB, 16 bits, default 200."""
    monkeypatch.delenv("HCCL_BUFFSIZE", raising=False)
    if text is not None:
        monkeypatch.setenv("HCCL_BUFFSIZE", text)
    world = World(2, "window")
    assert world.hccl_buffsize == size and world.windows[1].win.size == size * MB
    assert World(2, "window", hccl_buffsize=3).windows[0].win.size == 3 * MB


def test_heap_layout() -> None:
    """Programs page 2: sync 1 MiB, windowsExp 1 MiB, windowsIn, stage, landing; the larger demand rules."""
    wide = heap(5, tokens=100)  # T x K x (h + 512) is more than A x 2h
    assert (wide.exp, wide.win, wide.stage) == (MB, 2 * MB, 7 * MB)
    assert wide.stage_size == 100 * 2 * (64 + 512) and wide.stage_size % 512 == 0
    assert wide.landing == 7 * MB + wide.stage_size and wide.total % (4 * KB) == 0
    assert wide.total >= wide.landing + 8 * 512
    deep = heap(5, rows=4000)
    assert deep.stage_size == 4000 * 2 * 64 and deep.landing_size == 4000 * 512
    wide.check("dispatch", wide.total)
    with pytest.raises(
        OperatorError, match=f"dispatch: the heap has {wide.total - 1} bytes, {wide.total} are"
    ):
        wide.check("dispatch", wide.total - 1)


def test_counters() -> None:
    """Programs page 4: at 1000 KiB + 64 x (2 x kind + parity), all different, inside windowsExp."""
    places = [counter_offset(kind, parity) for kind in COUNTER_KINDS for parity in (0, 1)]
    assert places == [1000 * KB + 64 * k for k in range(10)]


def test_refusals() -> None:
    """SHMEM mode needs a heap that fits the window; one program a rank; a known group and rank."""
    with pytest.raises(ValueError, match="needs the heap's layout"):
        World(2)
    with pytest.raises(ValueError, match="a window of 1048576 bytes, not 2 MB"):
        World(2, hccl_buffsize=2, heap=heap(1))
    world = World(3, "window", hccl_buffsize=1)
    with pytest.raises(ValueError, match="2 programs for 3 ranks"):
        world.run([waits_for_all, waits_for_all])
    with pytest.raises(OperatorError, match="no rank 0 in group 'nobody'"):
        resolve("nobody", 0)
    world.claim("dispatch", "prefill")
    world.claim("combine", "prefill")
    with pytest.raises(OperatorError, match="serves prefill operators already"):
        world.claim("fused_deep_moe", "fused")


async def waits_for_all(rank: Rank) -> int:
    """Two barriers; gives the number of the rank that its name resolves to."""
    await rank.barrier()
    assert resolve(rank.world.group_ep, rank.rank) is rank
    await rank.barrier()
    return 10 * resolve(rank.world.group_ep, (rank.rank + 1) % rank.ranks).rank


@pytest.mark.parametrize("mode", ["window", "shmem"])
@pytest.mark.parametrize("ranks", [2, 5])
def test_results_by_rank(mode: str, ranks: int) -> None:
    """The same program in both modes."""
    world = World(ranks, mode, hccl_buffsize=1, heap=heap() if mode == "shmem" else None)  # type: ignore[arg-type]
    assert world.run(waits_for_all) == [10 * ((rank + 1) % ranks) for rank in range(ranks)]


@pytest.mark.parametrize("seed", range(4))
def test_a_hang_names_everybody(seed: int) -> None:
    """Window mode: who still waits, for what, from whom; ranks that ended are not named."""

    async def program(rank: Rank) -> None:
        if rank.rank:
            await poll(lambda: False, f"the flag of rank {rank.rank}", 0)

    with pytest.raises(HangError) as error:
        World(3, "window", hccl_buffsize=1, seed=seed).run(program)
    assert str(error.value).splitlines()[1:] == [
        f"  rank {rank}: waits for the flag of rank {rank}, from rank 0" for rank in (1, 2)
    ]


def test_a_bad_run_is_an_error() -> None:
    """SHMEM mode: a post without a quiet is found by the run and raised by the world."""

    async def program(rank: Rank) -> None:
        pe = rank.device
        if rank.rank == 0:
            stage = pe.heap_base + rank.layout.stage
            await pe.store(stage, bytes(64))
            await pe.put_nbi(pe.heap_base + rank.layout.win, stage, 64, 1)

    with pytest.raises(WorldError, match="missing quiet"):
        World(2, hccl_buffsize=1, heap=heap()).run(program)


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [(0, {}), (-1, {}), (2, {"mode": "windows"}), (2, {"signalling": "atomic"}), (2, {"mode": "SHMEM"})],
)
def test_no_such_world(ranks: int, changes: dict[str, str]) -> None:
    """A word that is none of the modes or variants would be one of them quietly."""
    with pytest.raises(ValueError, match=f"no world of {ranks} ranks, mode '"):
        World(ranks, **{"mode": "window", "hccl_buffsize": 1, **changes})  # type: ignore[arg-type]


async def stumbles(rank: Rank) -> None:
    """A barrier, a byte into the own window, then rank 1 fails while the others wait for it."""
    await rank.barrier()
    if rank.world.mode == "window":
        rank.windows[rank.rank].exp[5] = 7
    if rank.rank == 1:
        raise KeyError("planted")
    await rank.barrier()


def test_failed_run_leaves_nothing() -> None:
    """Window mode: the error names its rank; the next run finds new windows and barriers that hold."""
    world = World(3, "window", hccl_buffsize=1)
    with pytest.raises(KeyError, match="planted") as caught:
        world.run(stumbles)
    assert caught.value.__notes__ == ["in rank 1"]
    assert not any(window.exp.any() for window in world.windows)
    for _ in range(2):
        assert world.run(waits_for_all) == [10, 20, 0]
        with pytest.raises(
            HangError, match=r"rank 0: waits for the barrier(?s:.*)rank 1: waits for the barrier"
        ):
            world.run([waits_for_all, waits_for_all, leaves])


async def leaves(rank: Rank) -> None:
    """Comes to no barrier."""


def test_runs_do_not_meet() -> None:
    """SHMEM mode: the ranks of a run are not those of the run before; nobody is compared with the past."""
    world = World(2, heap=heap(1), hccl_buffsize=1)
    seen: list[set[int]] = []

    async def look(rank: Rank) -> None:
        seen.append({id(one.device.fabric) for one in world.members})
        await rank.barrier()
        assert {one.rank for one in world.members} == {0, 1}

    for _ in range(2):
        world.run(look)
    assert [len(one) for one in seen] == [1, 1, 1, 1] and seen[0] != seen[3]
