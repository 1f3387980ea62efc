"""The programs of programs/: they run, they check what they say, and the mixed one is as large as it must be.

Sweep: PEs x schedules x driver generations x seeds. Stimulus: the programs on the golden NICs; the mixed one
whole once, cut down for the rest. Checks: no problem; figures of the mixed program from its own plan
(programs page, section 6); each of its own checks fails on a planted fault. Timing: none. Does not prove: the
RTL.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pymodel.device import Generation
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from pymodel.run import ModelRun, RunResult
from tests.model.model_programs import SCHEDULES, Schedule

PROGRAMS = Path(__file__).parents[2] / "programs"
MIB = 1 << 20
EXAMPLES = ["gather_get", "tickets", "stages", "allgather", "ping_pong", "signal_ring", "barriers", "atomics"]


def load(name: str) -> ModuleType:
    """A fresh copy of a program's module."""
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pes", [1, 2, 5])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str, pes: int, schedule: Schedule) -> None:
    """Good under every schedule and driver generation, with all other choices mixed."""
    program = load(name)
    for generation in Generation:
        config = FabricConfig.mixed(pes, 2, pes, generation=generation, ub_fill="dirty")
        result = ModelRun(Fabric.build(config), program.main, schedule, seed=pes).run()
        assert result.problems == []
        assert pes == 1 or result.posts > 0
        if name == "gather_get":
            assert result.reads == pes * (pes - 1)
        elif name == "tickets":
            drawn = sorted(sum(result.returns, []))
            assert drawn == (list(range(program.TICKETS)) if pes > 1 else [])
            assert result.atomics_checked == len(drawn)
        elif name == "allgather":
            assert result.put_bytes >= pes * (pes - 1) * program.BYTES
        elif name == "ping_pong":
            assert [len(trips) for trips in result.returns] == [
                len(program.SIZES) if rank % 2 == 0 and rank + 1 < pes else 0 for rank in range(pes)
            ]
        elif name == "signal_ring":
            assert result.returns == [program.LAPS if pes > 1 else 0] * pes
        elif name == "barriers":
            even = [rank for rank in range(pes) if rank % 2 == 0]
            teams = 2 * program.ROUNDS
            assert result.returns == [
                teams * (pes - 1) + (teams * (len(even) - 1) if rank in even else 0) for rank in range(pes)
            ]
        elif name == "atomics":
            # 8 of the 14 give their old value, on 4 and on 8 bytes
            assert result.atomics == 2 * 14 * pes * (pes - 1)
            assert result.atomics_checked == 2 * 8 * pes * (pes - 1)


Spoil = Callable[[int, bytes], bytes]


def spoiled(run: ModelRun, pe: int, spoil: Spoil) -> None:
    """Let ``spoil(address, bytes)`` decide what the NIC really writes into the memory of ``pe``."""
    memory = run.model.memories[pe]
    write = memory.nic_write

    def nic_write(addr: int, data: bytes) -> None:
        write(addr, spoil(addr, data))

    memory.nic_write = nic_write  # type: ignore[method-assign]


def flip_once(wanted: Callable[[int, bytes], bool]) -> Spoil:
    """One bit of the first write that is wanted."""
    done: list[int] = []

    def spoil(addr: int, data: bytes) -> bytes:
        if done or not wanted(addr, data):
            return data
        done.append(addr)
        return bytes([data[0] ^ 0x10]) + data[1:]

    return spoil


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [
        ("gather_get", 256),
        ("tickets", 8),
        ("stages", 256),
        ("allgather", 256),
        ("ping_pong", 256),
        ("barriers", 8),
        ("atomics", 8),
    ],
)
def test_examples_notice_wrong_data(name: str, nbytes: int) -> None:
    """One bit of what a NIC writes to the heap: of a got block, of an atomic's word, of a put block."""
    config = FabricConfig(n_pes=3, seed=4, mtus=(256,))
    run = ModelRun(Fabric.build(config), load(name).main, "eager", seed=4)
    start = run.fabric.pes[0].heap_base + MIB
    heap = range(start, start + run.fabric.pes[0].heap_size - MIB)
    spoiled(run, 0, flip_once(lambda addr, data: len(data) == nbytes and addr in heap))
    with pytest.raises(AssertionError):
        run.run()


# ------------------------------------------------------------------ the mixed program: its plan
@pytest.mark.parametrize("seed", range(6))
def test_size_of_the_mixed_program(seed: int) -> None:
    """Programs page, section 6, for the four PEs of ``make sim``, from the plan alone."""
    mixed, n = load("mixed"), 4
    roles = mixed.Roles.of(n)
    fabric = Fabric.build(mixed.fabric(n, seed))
    plans = fabric.qps
    sizes: list[int] = []
    by_mtu: Counter[int] = Counter()
    wqes: Counter[tuple[int, int, int]] = Counter()
    reads = 0
    for key, plan in plans.items():
        if key[2] in roles.data:
            planned = mixed.messages(seed, n, key)
            sizes += [message.size for message in planned]
            reads += sum(message.get for message in planned)
            wqes[key] = len(planned)
        elif key[2] == 0:
            wqes[key] = len(mixed.steps(seed, n, key[0], key[1]))
        else:
            wqes[key] = mixed.LAPS * plan.sq_depth + 24
        by_mtu[plan.mtu] += wqes[key]
    total = sum(wqes.values())
    assert total >= 10_000
    assert all(count >= 3 * plans[key].sq_depth for key, count in wqes.items()), (
        "every ring lapped three times"
    )
    assert {plan.sq_depth for plan in plans.values()} == {16, 32, 64, 128}
    assert len({(plan.pe, plan.cqn) for plan in plans.values()}) == len(plans), "one CQ per QP"
    assert sizes.count(MIB) >= 20
    assert sum(4096 <= size <= 65536 for size in sizes) >= 500
    assert 64 * MIB <= sum(sizes) <= 256 * MIB
    assert set(by_mtu) == {256, 512, 1024, 2048, 4096}
    assert all(count >= total / 10 for count in by_mtu.values())
    assert {plan.version for plan in plans.values()} == {1, 2}
    assert {plan.cq_stride for plan in plans.values()} == {32, 64}
    assert total / 6 < reads < total / 2 and sizes.count(0) > 50
    kinds = Counter(
        mixed.error_of(seed, n, low, high, qp)[1]
        for low in range(n)
        for high in range(low + 1, n)
        for qp in roles.errors
    )
    # all but perhaps the one that takes a driver of G3 at either end
    assert set(kinds) >= set(mixed.ERRORS) - {"unsignalled"}
    assert {pe.generation for pe in fabric.pes} == set(Generation)
    # log-uniform: each octave of sizes is as likely as any other
    octaves = Counter(size.bit_length() for size in sizes if 0 < size < 65536)
    assert max(octaves.values()) < 1.5 * min(octaves[bits] for bits in range(1, 17))


@pytest.mark.parametrize("pes", [1, 2, 3, 8, 16])
def test_the_mixed_program_fits_other_sizes(pes: int) -> None:
    """A fabric that a NIC has QPs for, every ring three laps, every MTU from three PEs on."""
    mixed = load("mixed")
    fabric = Fabric.build(mixed.fabric(pes, 1))
    roles = mixed.Roles.of(pes)
    assert len(roles.data) >= 2 and len(roles.errors) >= 1
    for key, plan in fabric.qps.items():
        if key[2] in roles.data:
            assert len(mixed.messages(1, pes, key)) >= 3 * plan.sq_depth
    assert pes == 1 or {plan.mtu for plan in fabric.qps.values()} == {256, 512, 1024, 2048, 4096}


# ------------------------------------------------------------------ the mixed program: runs
def small() -> ModuleType:
    """The mixed program cut down."""
    mixed = load("mixed")
    mixed.DATA_WQES, mixed.WHOLE_MIB, mixed.LAPS = 0, 2, 0
    return mixed


def run_of(mixed: ModuleType, pes: int, schedule: Schedule, seed: int) -> ModelRun:
    """A run of it that is ready to start."""
    return ModelRun(Fabric.build(mixed.fabric(pes, seed)), mixed.main, schedule, seed=seed)


def test_mixed_program_whole() -> None:
    """What ``make sim`` runs, on the golden NICs: nothing wrong, nothing dropped, ignored or refused."""
    run = run_of(load("mixed"), 4, "eager", 1)
    result = run.run()
    assert result.problems == []
    assert result.posts >= 10_000 and result.reads > 2000 and result.atomics > 700
    assert result.atomics_checked > 300 and result.errors_provoked >= 24
    assert 64 * MIB <= result.put_bytes + result.get_bytes <= 256 * MIB
    for nic in run.model.nics:
        for counter in (
            Cnt.DB_STALE,
            Cnt.DB_OVERRUN,
            Cnt.DB_PID,
            Cnt.DB_PAGE,
            Cnt.DB_PARTIAL,
            Cnt.CQ_OVERRUN,
        ):
            assert nic.counters[counter] == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(3))
def test_mixed_program_under_every_schedule(seed: int, schedule: Schedule) -> None:
    """Cut down: no race, no wrong byte, every error as announced."""
    result: RunResult = run_of(small(), 3, schedule, seed).run()
    assert result.problems == []
    assert result.errors_provoked > 6 and result.atomics_checked > 60


def test_mixed_program_posts_what_its_plan_says() -> None:
    """WQEs of each QP, by the heads; more than its plan only where swaps were tried again or all met."""
    mixed = small()
    run = run_of(mixed, 3, "random", 2)
    assert run.run().problems == []
    for pe in run.pes:
        for qp in pe.qps():
            key = pe.rank, qp.peer, qp.qp_idx
            posted = qp.sq_head - run.fabric.qps[key].start_index & 0xFFFF_FFFF
            if qp.qp_idx in mixed.Roles.of(3).data:
                assert posted == len(mixed.messages(2, 3, key))
            elif qp.qp_idx == 0:
                assert posted >= len(mixed.steps(2, 3, pe.rank, qp.peer))


def always(wanted: Callable[[int, bytes], bool]) -> Spoil:
    """One bit of each write that is wanted: a single one may be written over before anybody looks."""
    return lambda addr, data: bytes([data[0] ^ 0x10]) + data[1:] if wanted(addr, data) else data


FAULTS: dict[str, tuple[str, Callable[[ModuleType, ModelRun], Spoil]]] = {
    "put": (
        "what PE . put on QP",
        lambda m, run: always(lambda a, d: _in(run, m, "put", a)),
    ),
    "get": (
        "what QP . got from PE",
        lambda m, run: always(lambda a, d: _in(run, m, "get", a)),
    ),
    "result": (" of PE . gave", lambda m, run: always(lambda a, d: _in(run, m, "cell", a))),
    "word": (" of PE . gave", lambda m, run: always(lambda a, d: _in(run, m, "words", a) and a % 64 < 32)),
    "signal": (
        "signal of PE .",
        lambda m, run: always(lambda a, d: _in(run, m, "words", a) and a % 64 == 32),
    ),
    "shared": ("contended", lambda m, run: always(lambda a, d: _in(run, m, "shared", a))),
}


def _in(run: ModelRun, mixed: ModuleType, what: str, addr: int) -> bool:
    """Whether ``addr`` on PE 1 is in a part of its memory, by the program's order of allocation."""
    pe, n = run.fabric.pes[1], run.fabric.n_pes
    data = len(mixed.Roles.of(n).data)
    area = pe.heap_base + MIB + mixed.POOL
    windows = area + -(-(64 * n + 64) // 64) * 64 + 8192 * n
    size = mixed.WINDOW * (n - 1) * data
    places = {
        "cell": (pe.amo_base, pe.amo_size), "words": (area, 64 * n), "shared": (area + 64 * n, 32),
        "put": (windows, size), "get": (windows + size, size),
    }  # fmt: skip
    base, length = places[what]
    return base <= addr < base + length


@pytest.mark.parametrize("fault", FAULTS)
def test_mixed_program_notices(fault: str) -> None:
    """One bit of one write of a NIC on PE 1: each of the program's own checks turns red."""
    mixed = small()
    run = run_of(mixed, 3, "eager", 5)
    message, spoil = FAULTS[fault]
    spoiled(run, 1, spoil(mixed, run))
    with pytest.raises(AssertionError, match=message):
        run.run()


def test_mixed_program_notices_a_missing_error() -> None:
    """A QP that should refuse and does not: the code is not the one announced."""
    mixed = small()
    fabric = mixed.fabric

    def lenient(n_pes: int, seed: int) -> FabricConfig:
        config = fabric(n_pes, seed)
        for changes in config.overrides.values():
            changes.pop("rem_read", None)
            changes.pop("rem_atomic", None)
        return config  # type: ignore[no-any-return]

    seed = next(s for s in range(20) if "right" in str([mixed.error_of(s, 2, 0, 1, q) for q in (6, 7)]))
    run = ModelRun(Fabric.build(lenient(2, seed)), mixed.main, "eager", seed=seed)
    with pytest.raises(AssertionError, match="right of an? .* on QP . to PE . gave"):
        run.run()


def test_np_is_seeded() -> None:
    """The pools of two PEs and of two seeds differ."""
    mixed: Any = load("mixed")
    pools = {mixed.pool(seed, rank) for seed in (1, 2) for rank in (0, 1)}
    assert len(pools) == 4 and np.frombuffer(mixed.pool(1, 0), np.uint8).std() > 70
