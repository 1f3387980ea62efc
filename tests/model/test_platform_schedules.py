"""Programs under the three schedules of the model.

Sweep: schedules x seeds x fabrics. Stimulus: good programs, and programs with a missing quiet of each kind.
Checks: good ones pass everywhere; each missing quiet fails under lazy by its consequence alone (sanitizer
off) and under all three with the sanitizer. Timing: none. Does not prove: that the RTL keeps these orders.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from pymodel.run import ModelRun, load_program
from pymodel.runner import HangError
from pymodel.sanitizer import RaceError
from tests.model.model_programs import SCHEDULES, Schedule, model_run

PROGRAMS = Path(__file__).parents[2] / "programs"


def _mixed(pes: int, qps: int, seed: int, **changes: Any) -> Fabric:
    return Fabric.build(FabricConfig.mixed(pes, qps, seed, **changes))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pes", [1, 2, 5])
@pytest.mark.parametrize("name", ["hello_put.py", "ring_put.py"])
def test_example_programs(name: str, pes: int, schedule: Schedule) -> None:
    """Example programs."""
    result = ModelRun(_mixed(pes, 2, pes), load_program(PROGRAMS / name), schedule, seed=pes).run()
    assert result.problems == []
    assert pes == 1 or result.posts > 0


def test_ring_put_notices_wrong_data() -> None:
    """The example's own check can fail: one byte of a block is changed on its way."""
    spec = importlib.util.spec_from_file_location("ring_put", PROGRAMS / "ring_put.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run = ModelRun(_mixed(3, 1, 4), module.main, "eager", seed=4)
    memory = run.model.memories[1]
    write, spoiled = memory.nic_write, []

    def spoil(addr: int, data: bytes) -> None:
        if len(data) > 200 and not spoiled:
            spoiled.append(addr)
            data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
        write(addr, data)

    memory.nic_write = spoil  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="block of PE"):
        run.run()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_lands_byte_for_byte(schedule: Schedule, seed: int) -> None:
    """All pairs, two QPs a pair, all alignments, 0 B to 20 KB, rings lapped several times.

    Counters over their wraps.
    """
    pes, qps, window = 3, 2, 1 << 16

    async def main(pe: Pe) -> list[tuple[int, int, bytes]]:
        src = pe.alloc(window)
        landing = [[pe.alloc(window) for _ in range(qps)] for _ in range(pe.n_pes)]
        data = np.random.default_rng([seed, pe.rank]).bytes(window)
        await pe.store(src, data)
        expected = {}
        for step in range(90):
            peer = pe.rng.choice([p for p in range(pe.n_pes) if p != pe.rank])
            qp = pe.rng.randrange(qps)
            length = pe.rng.choice([0, 1, 3, 64, 65, pe.rng.randrange(1, 300), pe.rng.randrange(1, 20000)])
            at, to = pe.rng.randrange(window - length), pe.rng.randrange(window - length)
            dst = landing[pe.rank][qp] + to
            await pe.put_nbi(dst, src + at, length, peer, qp)
            expected.setdefault((peer, qp), bytearray(window))[to : to + length] = data[at : at + length]
            if step % 17 == 16:
                await pe.quiet(peer, qp)
        await pe.quiet_all()
        return [(peer, landing[pe.rank][qp] - pe.heap_base, bytes(b)) for (peer, qp), b in expected.items()]

    run = ModelRun(_mixed(pes, qps, seed, sq_depths=(16, 32)), main, schedule, seed=seed)
    result = run.run()
    assert result.problems == []
    for returned in result.returns:
        for peer, offset, content in returned:
            base = run.fabric.pes[peer].heap_base
            assert run.model.memory(peer, base + offset, window).tobytes() == content
    assert any(len(qp.drains) >= 2 for pe in run.pes for qp in pe.qps()) or seed != 0
    for nic in run.model.nics:
        counters = {n: c for n, c in enumerate(nic.counters) if c}
        # requests, responses, good packets, WQEs and CQEs: nothing was dropped, ignored or refused
        assert set(counters) <= {0, 1, 2, 49, 50}, counters


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_of_all_operations(schedule: Schedule, seed: int) -> None:
    """Puts, gets and atomics between all pairs, rings lapped, every QP with bytes of its own at the peer."""
    pes, qps, window = 3, 2, 1 << 14

    async def main(pe: Pe) -> None:
        src, sink = pe.alloc(window), pe.alloc(window)
        landing = [[pe.alloc(window) for _ in range(qps)] for _ in range(pe.n_pes)]
        counters = pe.alloc(64 * pe.n_pes)
        data = np.random.default_rng([seed, pe.rank]).bytes(window)
        await pe.store(src, data)
        await pe.barrier_all()
        there: dict[tuple[int, int], bytearray] = {}
        counted = dict.fromkeys(range(pe.n_pes), 0)
        for _ in range(60):
            peer = pe.rng.choice([p for p in range(pe.n_pes) if p != pe.rank])
            qp = pe.rng.randrange(qps)
            known = there.setdefault((peer, qp), bytearray(window))
            mine = landing[pe.rank][qp]
            length = pe.rng.choice([0, 1, 64, 65, pe.rng.randrange(1, 9000)])
            at, to = pe.rng.randrange(window - length), pe.rng.randrange(window - length)
            kind = pe.rng.choice(["put", "put", "get", "add", "fetch_add"])
            if kind == "put":
                await pe.put_nbi(mine + to, src + at, length, peer, qp)
                known[to : to + length] = data[at : at + length]
            elif kind == "get":
                await pe.get_nbi(sink + at, mine + to, length, peer, qp)
                await pe.quiet(peer, qp)
                assert pe.memory(sink + at, length).tobytes() == known[to : to + length]
            elif kind == "add":
                await pe.atomic.add(counters + 64 * pe.rank, 3, peer)
                counted[peer] += 3
            else:
                assert await pe.atomic.fetch_add(counters + 64 * pe.rank, 1, peer) == counted[peer]
                counted[peer] += 1
        await pe.quiet_all()
        for (peer, qp), known in there.items():
            await pe.get_nbi(sink, landing[pe.rank][qp], window, peer, qp)
            await pe.quiet(peer, qp)
            assert pe.memory(sink, window).tobytes() == known

    run = ModelRun(_mixed(pes, qps, seed, sq_depths=(16, 32)), main, schedule, seed=seed)
    assert run.run().problems == []
    for nic in run.model.nics:
        counters = {Cnt(n).name for n, c in enumerate(nic.counters) if c}
        assert counters <= {"TX_REQUEST", "TX_RESPONSE", "RX_PACKET", "WQE", "CQE", "READ", "ATOMIC"}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tickets(schedule: Schedule) -> None:
    """Four PEs draw tickets from a counter of PE 0: each number comes once, in each PE's order."""

    async def main(pe: Pe) -> list[int]:
        counter = pe.alloc(64)
        if pe.rank == 0:
            return []
        return [await pe.atomic.fetch_inc(counter, 0) for _ in range(40)]

    result = model_run(main, schedule, seed=3, n_pes=5).run()
    assert result.problems == []
    drawn = result.returns[1:]
    assert sorted(n for mine in drawn for n in mine) == list(range(160))
    assert all(mine == sorted(mine) for mine in drawn)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["get", "add"])
def test_waiting_for_what_a_get_or_atomic_writes(kind: str, schedule: Schedule) -> None:
    """The lazy schedule finds who writes there: a get on the own side, an atomic at the peer."""

    async def main(pe: Pe) -> None:
        word, sink = pe.alloc(64), pe.alloc(64)
        await pe.store(word, (pe.rank + 5).to_bytes(4, "little"))
        await pe.barrier_all()
        if kind == "get" and pe.rank == 0:
            await pe.get_nbi(sink, word, 4, 1)
            await pe.wait_value(sink, 6, peer=1)
            await pe.quiet(1)
        elif kind == "add" and pe.rank == 0:
            await pe.atomic.add(word, 10, 1, dtype=np.int32)
            await pe.wait_value(sink, 1, peer=1)
            await pe.quiet(1)
        elif kind == "add":
            await pe.wait_value(word, 16, peer=0)
            await pe.store(sink, b"\x01\0\0\0")
            await pe.put_nbi(sink, sink, 4, 0)
            await pe.quiet(0)

    assert model_run(main, schedule, hang_after=100_000).run().problems == []


# ------------------------------------------------------------------ missing quiets
async def _reuse_source(pe: Pe, quiet: bool) -> None:
    """The source is changed after the put; the target wants the old value."""
    src, dst, flag = pe.alloc(64), pe.alloc(64), pe.alloc(4)
    if pe.rank == 0:
        await pe.store(src, b"A" * 64)
        await pe.put_nbi(dst, src, 64, 1)
        if quiet:
            await pe.quiet(1)
        await pe.store(src, b"B" * 64)
        await pe.store(flag, b"\x01\0\0\0")
        await pe.put_nbi(flag, flag, 4, 1)
        await pe.quiet(1)
    else:
        await pe.wait_value(flag, 1, peer=0)
        assert pe.memory(dst, 64).tobytes() == b"A" * 64, "the value after the change arrived"


async def _flag_on_other_qp(pe: Pe, quiet: bool) -> None:
    """Data on QP 0, flag on QP 1: without a quiet between, the flag may arrive first."""
    src, dst, flag = pe.alloc(9000), pe.alloc(9000), pe.alloc(4)
    if pe.rank == 0:
        await pe.store(src, b"A" * 9000)
        await pe.store(flag, b"\x01\0\0\0")
        await pe.put_nbi(dst, src, 9000, 1, 0)
        if quiet:
            await pe.quiet(1, 0)
        await pe.put_nbi(flag, flag, 4, 1, 1)
        await pe.quiet_all()
    else:
        await pe.wait_value(flag, 1, peer=0)
        assert pe.memory(dst, 9000).tobytes() == b"A" * 9000, "the flag came before its data"


async def _look_at_a_get(pe: Pe, quiet: bool) -> None:
    """The destination of a get is looked at, or used, before its bytes are there."""
    src, dst = pe.alloc(64), pe.alloc(64)
    await pe.store(src, bytes([pe.rank + 1]) * 64)
    await pe.barrier_all()
    if pe.rank == 0:
        await pe.get_nbi(dst, src, 64, 1)
        if quiet:
            await pe.quiet(1)
        assert pe.memory(dst, 64).tobytes() == b"\x02" * 64, "the get has not come"
        await pe.quiet(1)


async def _put_over_a_get(pe: Pe, quiet: bool) -> None:
    """A put to what a get before it reads, on the same QP: the put may overtake the reads (no fence here)."""
    src, dst, new = pe.alloc(9000), pe.alloc(9000), pe.alloc(9000)
    await pe.store(src, b"A" * 9000)
    await pe.store(new, b"B" * 9000)
    await pe.barrier_all()
    if pe.rank == 0:
        await pe.get_nbi(dst, src, 9000, 1)
        if quiet:
            await pe.quiet(1)
        await pe.put_nbi(src, new, 9000, 1)
        await pe.quiet(1)
        assert pe.memory(dst, 9000).tobytes() == b"A" * 9000, "the put overtook the get"


async def _end_without_quiet(pe: Pe, quiet: bool) -> None:
    """The last put of a program is never waited for."""
    src = pe.alloc(64)
    if pe.rank == 0:
        await pe.store(src, b"A" * 64)
        await pe.put_nbi(src, src, 64, 1)
        if quiet:
            await pe.quiet(1)


def _with(program: Any, quiet: bool) -> Any:
    async def main(pe: Pe) -> None:
        await program(pe, quiet)

    return main


KINDS = [_reuse_source, _flag_on_other_qp, _end_without_quiet, _look_at_a_get, _put_over_a_get]


def _arrived(run: ModelRun) -> bool:
    base = run.fabric.pes[1].heap_base + (1 << 20)
    return run.model.memory(1, base, 64).tobytes() == b"A" * 64


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("program", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_with_the_quiet_all_is_well(program: Any, schedule: Schedule, seed: int) -> None:
    """With the quiet all is well."""
    run = model_run(_with(program, True), schedule, seed=seed, qps=2)
    assert run.run().problems == []
    assert program is not _end_without_quiet or _arrived(run)


@pytest.mark.parametrize("program", [_reuse_source, _flag_on_other_qp, _look_at_a_get])
def test_missing_quiet_fails_under_lazy_by_its_consequence(program: Any) -> None:
    """Missing quiet fails under lazy by its consequence."""
    with pytest.raises(AssertionError, match="the value after|the flag came before|the get has not come"):
        model_run(_with(program, False), "lazy", qps=2, sanitize=False).run()
    assert model_run(_with(program, False), "eager", qps=2, sanitize=False).run().good, "eager hides it"


def test_missing_last_quiet_leaves_old_bytes_under_lazy() -> None:
    """Missing last quiet leaves old bytes under lazy."""
    lazy, eager = (model_run(_with(_end_without_quiet, False), s, sanitize=False) for s in ("lazy", "eager"))
    lazy.run()
    eager.run()
    assert not _arrived(lazy) and _arrived(eager)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_missing_quiet_before_reuse_is_a_race_under_every_schedule(schedule: Schedule) -> None:
    """Missing quiet before reuse is a race under every schedule."""
    with pytest.raises(RaceError, match="changes the source of WRITE 0 of PE 0 to PE 1"):
        model_run(_with(_reuse_source, False), schedule, qps=2).run()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_missing_last_quiet_is_a_problem_under_every_schedule(schedule: Schedule) -> None:
    """Missing last quiet is a problem under every schedule."""
    result = model_run(_with(_end_without_quiet, False), schedule).run()
    assert len(result.problems) == 1 and result.problems[0].startswith(
        "missing quiet: PE 0 ended without a quiet after WRITE 0 of PE 0 to PE 1, QP 0 (64 bytes"
    )


def test_flag_on_other_qp_is_a_race_under_lazy() -> None:
    """Flag on other qp is a race under lazy."""
    with pytest.raises(RaceError, match="looks at the destination of WRITE 0 of PE 0"):
        model_run(_with(_flag_on_other_qp, False), "lazy", qps=2).run()


def test_some_random_schedule_shows_the_overtaking_flag() -> None:
    """Some random schedule shows the overtaking flag."""
    seen = set()
    for seed in range(40):
        try:
            seen.add(
                model_run(_with(_flag_on_other_qp, False), "random", seed=seed, qps=2, sanitize=False)
                .run()
                .good
            )
        except AssertionError:
            seen.add("overtaken")
    assert seen == {True, "overtaken"}


def test_some_random_schedule_shows_the_put_that_overtakes_a_get() -> None:
    """And some does not: NIC page 5 leaves both orders open, the sanitizer refuses either."""
    seen = set()
    for seed in range(40):
        try:
            seen.add(
                model_run(_with(_put_over_a_get, False), "random", seed=seed, mtus=(1024,), sanitize=False)
                .run()
                .good
            )
        except AssertionError as error:
            assert "the put overtook" in str(error)
            seen.add("overtaken")
    assert seen == {True, "overtaken"}
    for schedule in SCHEDULES:
        with pytest.raises(RaceError):
            model_run(_with(_put_over_a_get, False), schedule).run()


def test_looking_at_a_get_without_a_quiet_is_a_race_under_every_schedule() -> None:
    """Even where the bytes happen to be there."""
    for schedule in SCHEDULES:
        with pytest.raises(RaceError, match="looks at the result of READ"):
            model_run(_with(_look_at_a_get, False), schedule).run()


def test_lazy_moves_nothing_before_somebody_waits() -> None:
    """Lazy moves nothing before somebody waits."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        if pe.rank == 0:
            await pe.put_nbi(src, src, 64, 1)
            await pe.put_nbi(src, src, 64, 2)
            assert counters() == [0, 0], "before any wait"
            await pe.quiet(1)
            assert counters() == [1, 1], "the put that nobody waits for is still to come"
            await pe.quiet(2)
            assert counters() == [2, 2]

    run = model_run(main, "lazy", n_pes=3)

    def counters() -> list[int]:
        return [run.model.nics[0].counters[0], run.model.nics[0].counters[50]]

    assert run.run().good


def test_same_seed_same_run() -> None:
    """Same seed same run."""

    def log(seed: int) -> list[tuple[int, int, int]]:
        run = ModelRun(_mixed(4, 1, 9), load_program(PROGRAMS / "ring_put.py"), "random", seed=seed)
        run.run()
        return run.model.mmio_log

    assert log(3) == log(3)
    assert log(3) != log(4)


def test_deadlock_is_reported_not_endless() -> None:
    """Deadlock is reported not endless."""

    async def main(pe: Pe) -> None:
        await pe.wait_value(pe.alloc(4), 1, peer=1 - pe.rank)

    with pytest.raises(HangError):
        model_run(main, "random").run()
