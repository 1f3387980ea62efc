"""Room that comes to a full CQ about when cq_wait is over: the judge takes either outcome, told by the NIC.

Stimulus: a synthetic stream of one QP whose CQ of 16 is full, cq_wait in front of it; a CQ doorbell so many
cycles later, then what the NIC did: the next CQE, the event of an overrun, both or neither.
Checks: either alone is legal in the 256 cycles behind cq_wait, in which the NIC may be either; before and
after them only one is; both and neither are findings; counters as of the outcome.
Timing: none. Not proved: the NIC (nic/test_cq_races.py).
"""

from __future__ import annotations

import pytest

from pymodel.nic.judge import Check, Judge, Kind
from pymodel.nic.params import AsyncKind, Cnt, Csr
from tests.model.judge_mutants import Mutant, simulate

LIMIT, FULL = 1000, 16


def judged(waited: int, cqe: bool, event: bool, room: bool = True) -> Judge:
    """The judge behind a doorbell after so many cycles of waiting, with a CQE or event behind it.

    room: whether that doorbell comes.
    """
    sim = simulate(one_way=True, qps=1, wqes=40)
    m, q = Mutant(sim), sim.qps[0]
    m.drop(*[i for i in m.rows(Kind.MMIO_W) if m.rec["addr"][i] & 0xFFF == 16])
    cqes = m.rows(Kind.AXI_W, 4)
    later = m.rec[int(cqes[FULL])].copy()
    m.rec = m.rec[: int(cqes[FULL])]
    m.insert(0, kind=Kind.MMIO_W, addr=int(Csr.CQ_WAIT), data=LIMIT, flags=0xFF)
    judge = Judge(sim.configs, exact=True)
    judge.feed(m.rec, m.side)
    judge.flush()
    since = int(judge.state.c_since[judge.state.q_cq[0]])
    assert since >= 0, "nothing waits for room"
    ci = int(judge.state.c_ci[judge.state.q_cq[0]])
    address = 0x0800_0000 + 4096 * q.qpn + 16
    data = (ci + FULL & 0x7FFFFF) | q.cq.cqn << 23
    if room:
        m.insert(m.rec.size, kind=Kind.MMIO_W, pe=q.pe, addr=address, data=data, flags=0xFF)
        m.rec["time"][-1] = since + waited
    if event:
        word = 1 << 63 | int(AsyncKind.CQ_OVERRUN) << 32 | q.cq.cqn
        m.insert(m.rec.size, kind=Kind.MMIO_R, pe=q.pe, addr=int(Csr.ASYNC_POP), data=word)
        m.rec["time"][-1] = since + waited + 40
    if cqe:
        m.insert(m.rec.size, kind=Kind.NOTE)
        m.rec[-1] = later
        m.rec["time"][-1] = since + waited + 50
    judge = Judge(sim.configs, exact=True)
    judge.feed(m.rec, m.side)
    judge.flush()
    return judge


@pytest.mark.parametrize("waited", [LIMIT - 1, LIMIT + 1, LIMIT + 255, LIMIT + 300])
@pytest.mark.parametrize(("cqe", "event"), [(True, False), (False, True), (True, True), (False, False)])
def test_either(waited: int, cqe: bool, event: bool) -> None:
    """A CQE is right up to the end of the doubt, an event from its start on; never both."""
    judge = judged(waited, cqe, event)
    open_ = LIMIT < waited <= LIMIT + 256
    found = set(judge.counts) - {Check.CQE_TS, Check.CQE_FIELD}
    due = set()
    if event and waited <= LIMIT:
        due.add(Check.ASYNC)
    if cqe and ((event and open_) or waited > LIMIT + 256):
        due.add(Check.CQE_UNEXPECTED)
    assert found == due, judge.report()
    lost = waited > LIMIT + 256 or (open_ and event)
    assert judge.expected_counters(0)[Cnt.CQ_OVERRUN] == lost
    assert (Check.DB_AMBIGUOUS in judge.counts) == (open_ and not cqe and not event)


@pytest.mark.parametrize("waited", [LIMIT // 2, LIMIT - 41, LIMIT - 39, LIMIT + 300])
def test_event_without_room(waited: int) -> None:
    """The event is read 40 cycles later, before anything else tells: right as soon as the time is over."""
    judge = judged(waited, False, True, room=False)
    early = waited + 40 <= LIMIT
    assert set(judge.counts) == ({Check.ASYNC} if early else set()), judge.report()
    assert judge.expected_counters(0)[Cnt.CQ_OVERRUN] == (not early)
