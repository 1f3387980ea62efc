"""The judge on the edges of errors: CQE writes that are refused, QPs that leave RTS with packets on their way.

Stimulus: legal streams, ended by an error that the memory or the host makes.
Checks: what memory must show afterwards, which CQEs are legal then, in both engines.
Timing: none but the order of records. Not proved here: anything about RTL.
"""

from __future__ import annotations

import numpy as np
import pytest

from pymodel.nic.judge import Check, Judge, Kind
from pymodel.nic.params import AxiId
from tests.model.judge_mutants import simulate
from tests.model.judge_stream import ATOMIC_NAMES, Sim

MIX = ("write", "read", *ATOMIC_NAMES)


def rows_of(sim: Sim, kind: Kind, ident: int) -> np.ndarray:
    rec = sim.records
    return np.flatnonzero((rec["kind"] == kind) & (rec["id"] == ident))


def content(judge: Judge, sim: Sim) -> int:
    """Findings of the comparison of memory."""
    for pe in range(sim.k.n_pes):
        judge.check_memory(pe, np.empty(0, np.uint64), lambda pe, a, n: sim.memory[pe].view(a, n))
    return judge.counts[Check.CONTENT]


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "batch"])
@pytest.mark.parametrize("lap", [False, True], ids=["first lap", "later lap"])
@pytest.mark.parametrize("depth", [16, 256])
def test_refused_cqe_leaves_its_slot(depth: int, lap: bool, exact: bool) -> None:
    """A CQE write that is answered by an error is not in memory; what stood there before is."""
    sim = simulate(seed=4, ops=MIX, sizes=(40, 900), words=4, wqes=70 if lap else 12, cq_depth=depth)
    rec = sim.records.copy()
    writes, answers = rows_of(sim, Kind.AXI_W, AxiId.CQE), rows_of(sim, Kind.AXI_B, AxiId.CQE)
    last = int(writes[-1])
    pe, addr = int(rec["pe"][last]), int(rec["addr"][last]) + 0
    lane = (int(rec["aux0"][last]) & -int(rec["aux0"][last])).bit_length() - 1
    slot, size = (addr & ~63) + lane, int(rec["aux1"][last])
    same = [
        int(i) for i in writes[:-1]
        if rec["pe"][i] == pe and rec["addr"][i] == rec["addr"][last] and rec["aux0"][i] == rec["aux0"][last]
    ]  # fmt: skip
    here = sim.memory[pe].view(slot, size)
    old = np.full(size, 0xFF, np.uint8)
    if same:
        at = int(rec["off"][same[-1]]) % sim.side.size + lane
        old = sim.side[at : at + size]
    assert content(feed(sim, rec, exact, last), sim) == 0
    here[:] = old
    assert content(feed(sim, rec, exact, last), sim) == 1, "written and answered well"
    rec["flags"][int(answers[rec["pe"][answers] == pe][-1])] = 2
    assert content(feed(sim, rec, exact, last), sim) == 0


def feed(sim: Sim, rec: np.ndarray, exact: bool, cut: int) -> Judge:
    """Judge a stream; what is behind the record `cut` on its own."""
    judge = Judge(sim.configs, exact=exact)
    for part in (rec[: cut + 1], rec[cut + 1 :]):
        judge.feed(part, sim.side)
        judge.flush()
    return judge
