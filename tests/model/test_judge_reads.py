"""The judge against legal streams with READs and atomics.

Stimulus: simulated NICs that post WRITEs, READs and all six atomics in every mix, contended words among them,
with fences, limits, events and every error that a READ or atomic can meet, alone and among other work.
Checks: no finding, whatever the seed; each error gives its CQE code; both ways of feeding leave one state.
Timing: none but the order of records. Not proved here: anything about RTL.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from pymodel.nic.judge import Check, Judge, Kind
from pymodel.nic.params import Cnt, Params
from tests.model.judge_mutants import columns, end, run, simulate
from tests.model.judge_stream import ATOMIC_NAMES, Sim, new_value

MIX = ("write", "read", *ATOMIC_NAMES)


def codes(sim: Sim) -> set[int]:
    """Error codes of all CQEs of a stream."""
    out = set()
    for r in sim.records[(sim.records["kind"] == Kind.AXI_W) & (sim.records["id"] == 4)]:
        strobe = int(r["aux0"])
        out.add(int(sim.side[int(r["off"]) + (strobe & -strobe).bit_length() - 1]))
    return out


@pytest.mark.parametrize("seed", range(12))
def test_legal_mix(seed: int) -> None:
    """Any mix, any shape; a stream fed in pieces leaves the state of one fed whole."""
    rng = random.Random(seed)
    ops = rng.choice([("read",), ATOMIC_NAMES, MIX, ("write", "read"), ("mfa32", "mfa64", "fa64"), MIX])
    depth = rng.choice((8, 16, 64))
    sim = simulate(
        seed=seed, ops=ops, n_pes=2 + seed % 2, qps=rng.choice((1, 2)), words=rng.choice((1, 2, 4)),
        word_writes=rng.choice((0, 0.3, 0.7)), fence=rng.choice((0, 0.2)), same_place=rng.choice((0, 0.5)),
        silent=rng.choice((0, 0.5)), max_rd=rng.choice((1, 2, 16)), latency=rng.choice((10, 40, 200)),
        depth=depth, cq_depth=depth, sizes=rng.choice(((0, 100), (0, 3000), (1, 20000))), wqes=30,
        ignore=seed % 4 == 1, arm=0.5 * (seed % 4 == 2),
    )  # fmt: skip
    exact = run(sim, exact=True)
    assert not exact.findings, exact.report()
    splits = np.cumsum(np.random.default_rng(seed).choice([1, 30, 150, 700], 4000))
    parts = run(sim, splits=splits[splits < sim.records.size].tolist())
    assert not parts.findings, parts.report()
    whole = columns(exact)
    for name, column in columns(parts).items():
        np.testing.assert_array_equal(column, whole[name], name)


def test_contended_word() -> None:
    """Four NICs on one word with all kinds of atomics, and WRITEs between: the lock decides the order."""
    sim = simulate(seed=3, n_pes=4, qps=1, ops=(*ATOMIC_NAMES, "write"), words=1, word_writes=0.9, wqes=40)
    judge = run(sim, exact=True)
    assert not judge.findings, judge.report()
    atomics = sum(c[Cnt.ATOMIC] for c in sim.counters)
    assert atomics > 80 and judge.state.counters[:, Cnt.ATOMIC].sum() == atomics


ERRORS = [
    ("read:fetch", 0xAC), ("fa64:fetch", 0xAC),
    ("read:wqe_id", 0xAB), ("read:imm", 0xAB), ("read:in_line", 0xAB), ("read:ds", 0xAB),
    ("read:length", 0x9F), ("read:lkey", 0xA7), ("read:rkey", 0xA5), ("read:target", 0xA6),
    ("read:sink", 0xB3), ("read:rsp_opcode", 0xAA), ("read:rsp_length", 0xA8),
    ("cas64:imm", 0xAB), ("mcas64:ds", 0xAB), ("fa64:in_line", 0xAB), ("mfa64:length", 0x9F),
    ("fa64:lkey", 0xA7), ("fa64:misaligned", 0x89), ("mcas32:misaligned", 0x89), ("cas64:rkey", 0xA5),
    ("mfa32:target", 0xA6), ("mcas64:sink", 0xB3), ("cas64:rsp_opcode", 0xAA),
    ("write:rkey", 0xA5), ("write:target", 0xA6), ("write:gather", 0xB2), ("write:in_line", 0xAB),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("fault", "code"), ERRORS, ids=[name for name, _ in ERRORS])
def test_legal_error(fault: str, code: int, seed: int) -> None:
    """An error in a mixed stream: its code, the flush behind it, the other side's NAK; no finding."""
    sim = simulate(
        seed=seed, one_way=True, ops=MIX, faults={(0, 1, 12 + seed): fault}, silent=0.3 * seed, fence=0.1,
        sizes=(0, 3000) if seed else (0, 20000),
    )  # fmt: skip
    judge = run(sim, exact=seed == 0)
    assert not judge.findings, judge.report()
    assert codes(sim) == {0, code, 0xFF}
    assert [sorted(x) for x in judge.state.asyncs] == [sorted(x) for x in sim.asyncs]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_table_is_full(seed: int, limit: int) -> None:
    """A requester that may have more outstanding than its peer holds: one too many gets NAK 1.

    Whether the table was full when a request came may show only in the answer.
    """
    sim = simulate(seed=seed, one_way=True, ops=MIX, max_dest=limit, latency=(5, 20, 60)[seed])
    refused = sum(c[Cnt.RD_TOO_MANY] for c in sim.counters)
    judge = run(sim, exact=True)
    assert not judge.findings, judge.report()
    assert judge.state.counters[:, Cnt.RD_TOO_MANY].sum() == refused
    if limit == 1:
        assert refused and 0xA4 in codes(sim)


@pytest.mark.parametrize("seed", range(12))
def test_region_is_invalidated(seed: int) -> None:
    """The target's region goes while READs and atomics are held: NAK 2 at the packet that meets it."""
    sim = simulate(
        seed=seed, one_way=True, ops=(("read",), ("read", "write"), ATOMIC_NAMES, MIX)[seed % 4], words=2,
        latency=(5, 20, 60)[seed % 3], sizes=(2000, 20000) if seed % 2 else (0, 3000), mtus=(1, 2),
        invalidate=300 + 60 * seed,
    )  # fmt: skip
    judge = run(sim, exact=seed % 3 > 0)
    assert not judge.findings, judge.report()
    assert sum(c[Cnt.NAK_ACC_TX] for c in sim.counters) and 0xA5 in codes(sim)
    assert [sorted(x) for x in judge.state.asyncs] == [sorted(x) for x in sim.asyncs]


def test_error_code_of_the_nak() -> None:
    """NAK 1 for an aligned atomic is a4, and 89 only for one that is not."""
    for fault, code in (("fa64:misaligned", 0x89), ("mfa32:misaligned", 0x89)):
        assert code in codes(simulate(one_way=True, ops=MIX, faults={(0, 1, 9): fault}))
    assert 0x89 not in codes(simulate(one_way=True, ops=ATOMIC_NAMES, max_dest=1))


def test_dirty_fence_only_delays() -> None:
    """fence_mode 0, 2 and 3 do not fence: unfenced WQEs overtake READs in the stream, nobody minds."""
    sim = simulate(ops=("read", "write"), dirty=True, fence=0.0, latency=100)
    assert not run(sim, exact=True).findings


def test_unlimited_window_is_legal() -> None:
    """A window as large as what is ever unacknowledged is never reached."""
    sim = simulate(ops=("read", "write"), sizes=(0, 3000))
    judge = Judge(sim.configs, Params(psn_window=1 << 12), exact=True)
    judge.feed(sim.records, sim.side)
    assert not end(judge, sim).findings


def test_counters_of_reads_and_atomics() -> None:
    """READ and ATOMIC at the responder; a NIC that does not count them is found."""
    sim = simulate(ops=MIX)
    assert sum(c[Cnt.READ] for c in sim.counters) and sum(c[Cnt.ATOMIC] for c in sim.counters)
    for counter in (Cnt.READ, Cnt.ATOMIC, Cnt.BUS_ATOMIC, Cnt.BUS_RESULT, Cnt.RD_TOO_MANY):
        sim.counters[1][counter] += 1
        assert set(run(sim, exact=True).counts) == {Check.COUNTER}
        sim.counters[1][counter] -= 1


def test_the_streams_own_arithmetic() -> None:
    """Atomics of the generator against plain Python, so that judge and stream are not wrong together."""
    rng = random.Random(1)
    for _ in range(300):
        for name, bits in (
            ("cas64", 64),
            ("fa64", 64),
            ("mcas64", 64),
            ("mfa64", 64),
            ("mcas32", 32),
            ("mfa32", 32),
        ):
            old, a, b, c, d = (rng.getrandbits(bits) for _ in range(5))
            top = (1 << bits) - 1
            if name == "cas64":
                assert (
                    new_value(name, old, (a, old, 0, 0)) == a
                    and new_value(name, old, (a, ~old & top, 0, 0)) is None
                )
            elif name == "fa64":
                assert new_value(name, old, (a, b, 0, 0)) == (old + a) & top
            elif "mcas" in name:
                want = (old & ~c | a & c) & top if (old ^ b) & d == 0 else None
                assert new_value(name, old, (a, b, c, d)) == want
                assert new_value(name, old, (a, b, c, 0)) == (old & ~c | a & c) & top
            else:
                assert new_value(name, old, (a, 0, 0, 0)) == (old + a) & top
                assert new_value(name, old, (a, top, 0, 0)) == old ^ a
                half = 1 << bits // 2 - 1
                low = (1 << bits // 2) - 1
                fields = (old + a) & low | ((old >> bits // 2) + (a >> bits // 2) << bits // 2) & top & ~low
                assert new_value(name, old, (a, half, 0, 0)) == fields
