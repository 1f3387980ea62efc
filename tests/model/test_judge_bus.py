"""The judge and error responses of memory: each needs an explanation at the place where it came.

Stimulus: a legal stream whose last packet is written in two bursts; one response is made an error, with
an error range at one of the bursts or without any. Checks: the response is accepted exactly where a range
explains it. Timing: none. Not proved here: what the NIC makes of errors (tests/nic/test_bus_faults.py).
"""

from __future__ import annotations

import pytest

from pymodel.nic.judge import Check, Judge, Kind
from pymodel.nic.params import AxiId
from tests.model.judge_mutants import Mutant, simulate

BOTH = pytest.mark.parametrize("exact", [True, False], ids=["exact", "batch"])


@BOTH
@pytest.mark.parametrize("ident", [AxiId.INBOUND, AxiId.RESULT], ids=["target", "sink"])
@pytest.mark.parametrize("where", ["range", "beside", "nowhere"])
def test_error_response_needs_an_explanation(where: str, ident: AxiId, exact: bool) -> None:
    """An error range at one burst of a packet explains an error of that burst, of no other.

    range: that burst fails; beside: the other burst of the packet; nowhere: there is no range.
    """
    op = "write" if ident == AxiId.INBOUND else "read"
    sim = simulate(ops=(op,), qps=1, one_way=True, wqes=2, sizes=(4000, 4000), mtus=(5,))
    m = Mutant(sim)
    bursts, answers = m.rows(Kind.AXI_W, ident)[-2:], m.rows(Kind.AXI_B, ident)[-2:]
    assert m.rec["addr"][bursts[1]] & 4095 == 0, "the last packet crosses a 4 KiB boundary"
    m.rec["flags"][answers[0 if where == "beside" else 1]] = 2
    judge = Judge(sim.configs, exact=exact)
    if where != "nowhere":
        addr, pe = (int(m.rec[name][bursts[1]]) for name in ("addr", "pe"))
        judge.add_error(pe, addr, 64, "w")
    judge.feed(m.rec, m.side)
    assert (Check.AXI_RESP in judge.counts) == (where != "range"), judge.report()
