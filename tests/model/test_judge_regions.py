"""The judge on regions that go: no access is left when their invalidation is answered (nic.md 2).

Stimulus: legal streams of WRITEs, READs and atomics, into which the command and a read of STATUS as idle are
put: where nothing is left, and in the middle, as a NIC that answers at once would do it; and streams whose
NIC refuses what comes behind the command, answered at once or at the end.
Checks: no finding, or memory.access_after_invalidation, the same of both engines.
Timing: none but the order of records. Not proved here: anything about RTL.
"""

from __future__ import annotations

import numpy as np
import pytest

from pymodel.nic.judge import RECORD, Check, Judge, Kind
from pymodel.nic.params import CMD_REG, CMD_STAGE, CMD_STATUS, AxiId, Cnt
from tests.model.judge_mutants import run, simulate
from tests.model.judge_stream import ATOMIC_NAMES, Sim

#: access that is left -> (operations, PE that loses its region, kind and ID of a record in front of which)
LEFT = {
    "inbound payload": (("write",), 1, Kind.AXI_B, AxiId.INBOUND),
    "gather of a WRITE": (("write",), 0, Kind.AXI_R, AxiId.GATHER),
    "gather of a READ": (("read",), 1, Kind.AXI_R, AxiId.GATHER),
    "result of a READ": (("read",), 0, Kind.AXI_B, AxiId.RESULT),
    "result of an atomic": (ATOMIC_NAMES, 0, Kind.AXI_B, AxiId.RESULT),
    "read of an atomic": (ATOMIC_NAMES, 1, Kind.AXI_R, AxiId.ATOMIC),
    "write of an atomic": (ATOMIC_NAMES, 1, Kind.AXI_B, AxiId.ATOMIC),
}


def command(sim: Sim, pe: int, at: int, status: bool = True) -> np.ndarray:
    """Records that invalidate the region of a heap, and find STATUS idle."""
    new = np.zeros(3, RECORD)
    new["pe"], new["time"], new["flags"] = pe, sim.records["time"][max(at - 1, 0)], 0xFF
    new["kind"] = Kind.MMIO_W, Kind.MMIO_W, Kind.MMIO_R
    new["addr"] = CMD_STAGE + 16, CMD_REG, CMD_STATUS
    new["data"][1] = 1 | 3 << 4 | sim.mr_index[pe] << 8
    return new if status else new[:2]


def judged(sim: Sim, exact: bool, *inserted: tuple[int, np.ndarray]) -> Judge:
    """The stream with records put in front of others, to its end but without the closing comparisons."""
    records = sim.records
    for at, new in sorted(inserted, key=lambda x: -x[0]):
        records = np.concatenate([records[:at], new, records[at:]])
    judge = Judge(sim.configs, exact=exact)
    judge.feed(records, sim.side)
    judge.flush()
    return judge


def places(sim: Sim, pe: int, kind: Kind, ident: int) -> np.ndarray:
    rec = sim.records
    return np.flatnonzero((rec["pe"] == pe) & (rec["kind"] == kind) & (rec["id"] == ident))


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "batch"])
@pytest.mark.parametrize("name", LEFT)
def test_answered_too_early(name: str, exact: bool) -> None:
    """STATUS is idle in front of an access under the old entry: found; behind the last one: none."""
    ops, pe, kind, ident = LEFT[name]
    sim = simulate(seed=3, one_way=True, ops=ops, words=4, sizes=(40, 4000), mtus=(1, 2), wqes=60)
    end = sim.records.size
    assert not judged(sim, exact, (end, command(sim, pe, end))).findings
    rows = places(sim, pe, kind, ident)
    for row in rows[[rows.size // 3, rows.size // 2]].tolist():
        judge = judged(sim, exact, (row, command(sim, pe, row)))
        first = judge.findings[0]
        assert first.check is Check.READ_GONE and first.pe == pe, judge.report()
        assert first.position in (row + 2, row + 3), (first.position, row)


@pytest.mark.parametrize("ops", [("write",), ("read",), ("read", "write"), ATOMIC_NAMES], ids=str)
def test_both_engines_agree(ops: tuple[str, ...]) -> None:
    """The command anywhere in a stream that takes no notice: the same findings, in the same order."""
    sim = simulate(seed=6, one_way=True, ops=ops, words=4, sizes=(40, 2000), wqes=60)
    for pe in (0, 1):
        for at in np.linspace(50, sim.records.size - 50, 5).astype(int).tolist():
            new = command(sim, pe, at)
            one, other = (judged(sim, exact, (at, new)) for exact in (True, False))
            assert [f.render() for f in one.findings] == [f.render() for f in other.findings]
            assert one.counts == other.counts


@pytest.mark.parametrize("seed", range(6))
def test_what_races_with_the_command(seed: int) -> None:
    """A NIC that refuses everything behind the command, or only what comes a little later: both are right.

    The judge sees the command earlier than the stream's NIC: as if the NIC needed some time for it.
    """
    sim = simulate(
        seed=seed, one_way=True, ops=(("write",), ("read",), ("read", "write"), ATOMIC_NAMES)[seed % 4],
        words=2, sizes=(2000, 9000) if seed % 2 else (0, 3000), mtus=(1, 2), invalidate=400 + 50 * seed,
        latency=(5, 20, 60)[seed % 3],
    )  # fmt: skip
    assert sum(c[Cnt.NAK_ACC_TX] for c in sim.counters)
    assert not run(sim, exact=True).findings
    at = int(np.flatnonzero((sim.records["addr"] == CMD_REG) & (sim.records["kind"] == Kind.MMIO_W))[0]) - 1
    rest = np.delete(sim.records, [at, at + 1])
    for before in (4, 12, 30):
        early = at - before
        sim.records = np.concatenate([rest[:early], command(sim, 1, early, False), rest[early:]])
        judge = run(sim, exact=True)
        assert not judge.findings, f"{before} records earlier: {judge.report()}"
