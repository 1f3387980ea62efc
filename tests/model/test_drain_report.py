"""The drain report of the judge: every place where a WQE can wait is named, in a few lines.

Stimulus: legal streams of one QP, cut where the WQE in question waits at a known place, and streams in which
losses, RNR NAKs and errors are planted. Checks: the line word for word; limits of length; what a run has to
wait for (`patience`). Timing: cycles of transport timers and RNR waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from pymodel.nic.judge import RECORD, Judge, Kind
from pymodel.nic.params import AxiId
from tests.model.judge_mutants import simulate
from tests.model.judge_stream import Sim
from tests.model.test_judge_retry import WAIT, Late

Row = Callable[[np.ndarray], np.ndarray]
QUIET, BOUND = 64 * ((1 << 14) + 1), 8
TIMER = r"\(timer runs, 0 of 7 retries used\)"
BOTH = pytest.mark.parametrize("exact", [True, False], ids=["exact", "batch"])


def rows(kind: Kind, pe: int = 0, ident: int | None = None) -> Row:
    """Records of a kind, at a PE, of an AXI ID."""
    return lambda r: np.flatnonzero(
        (r["kind"] == kind) & (r["pe"] == pe) & ((r["id"] == ident) if ident is not None else True)
    )


def report(sim: Sim, cut: int, exact: bool = False) -> list[str]:
    """The drain report after so many records."""
    judge = Judge(sim.configs, exact=exact)
    for error in sim.errors:
        judge.add_error(*error)
    judge.feed(sim.records[:cut], sim.side)
    return judge.outstanding()


def one_way(**changes: object) -> Sim:
    """WQEs of one QP on PE 0, MTU 256; the PSNs start at 0 and the indices too."""
    return simulate(
        **{"qps": 1, "one_way": True, "mtus": (1,), "near_wrap": False, "dirty": False, "wqes": 1, **changes}
    )


#: name -> (changes of the stream, the record before which it is cut, which of them, the line behind `wqe`)
PLACES: dict[str, tuple[dict[str, object], Row, int, str]] = {
    "no doorbell": ({}, rows(Kind.MMIO_W), 0, "0: in the ring, no doorbell: not outstanding, .*"),
    "fetch": ({}, rows(Kind.AXI_R, 0, AxiId.FETCH), 0, "0 WRITE 1000 B: announced, not fetched"),
    "first packet": ({}, rows(Kind.TXPKT), 0, "0 WRITE 1000 B: fetched, not sent"),
    "packets": ({}, rows(Kind.TXPKT), 3, "0 WRITE 1000 B psn 0-3: 3 of 4 packets sent"),
    "peer": ({}, rows(Kind.RXPKT, 1), 3,
             f"0 WRITE 1000 B psn 0-3: sent, no ACK, the peer has not executed it {TIMER}"),
    "ack": ({}, rows(Kind.RXPKT), 0,
            f"0 WRITE 1000 B psn 0-3: sent, no ACK, the peer has executed it {TIMER}"),
    "responses": ({"ops": ("read",)}, rows(Kind.RXPKT), 1,
                  f"0 READ 1000 B psn 0-3: sent, 1 of 4 responses arrived, the peer has executed it {TIMER}"),
    "data": ({"ops": ("read",)}, rows(Kind.AXI_B, 0, AxiId.RESULT), -1,
             "0 READ 1000 B psn 0-3: answered, [0-3] of 4 packets of its data in memory"),
    "atomic": ({"ops": ("fa64",)}, rows(Kind.RXPKT), 0,
               f"0 FA64 8 B psn 0: sent, 0 of 1 responses arrived, the peer has executed it {TIMER}"),
    "cqe": ({}, rows(Kind.AXI_W, 0, AxiId.CQE), 0, "0 WRITE 1000 B psn 0-3: done, CQE not written"),
    "order": ({"wqes": 2, "seed": 2, "burst": 2}, rows(Kind.AXI_W, 0, AxiId.CQE), 0,
              "1 WRITE 1000 B psn 4-7: (done, behind WQE 0|sent, no ACK, the peer has executed it.*)"),
    "fence": ({"ops": ("read",), "wqes": 2, "burst": 2, "fence": 1.0}, rows(Kind.RXPKT), 0,
              r"1 READ 1000 B: not sent: fence, 1 READs and atomics before it have no data \(WQE 0\)"),
    "max_rd_atomic": ({"ops": ("read",), "wqes": 4, "burst": 4, "max_rd": 2}, rows(Kind.RXPKT), 0,
                      "2 READ 1000 B: not sent: max_rd_atomic, 2 of 2 READs and atomics outstanding"),
    "behind": ({"ops": ("read",), "wqes": 4, "burst": 4, "max_rd": 2}, rows(Kind.RXPKT), 0,
               "3 READ 1000 B: not sent, behind WQE 2"),
    "in flight": ({"wqes": 20, "burst": 20, "depth": 32, "latency": 400, "ops": ("read",), "max_rd": 32,
                   "sizes": (8, 8)}, rows(Kind.RXPKT), 0, "16 READ 8 B: not sent: 16 WQEs are in flight"),
    "failed": ({"faults": {(0, 1, 0): "rkey"}}, rows(Kind.AXI_W, 0, AxiId.CQE), 0,
               "0 WRITE 1000 B psn 0-3: failed with 0xa5, CQE not written"),
    "behind failed": ({"faults": {(0, 1, 0): "rkey"}, "wqes": 3, "burst": 3, "depth": 4},
                      rows(Kind.AXI_W, 0, AxiId.CQE), 0, "1-2.*"),
    "failed at home": ({"faults": {(0, 1, 0): "lkey"}}, rows(Kind.AXI_W, 0, AxiId.CQE), 0,
                       "0 WRITE 1000 B: failed with 0xa7, CQE not written"),
    "flush": ({"faults": {(0, 1, 0): "lkey"}, "wqes": 3, "burst": 3}, rows(Kind.AXI_W, 0, AxiId.CQE), 1,
              "1-2: flush CQE not written, the QP is in ERR"),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", PLACES)
def test_place(name: str, exact: bool) -> None:
    """The stream cut where the WQE waits: exactly one line says so."""
    changes, which, nth, text = PLACES[name]
    sim = one_way(**{"sizes": (1000, 1000), **changes})
    lines = report(sim, int(which(sim.records)[nth]), exact)
    qp = sim.qps[0]
    place = re.compile(f"pe 0 qp {qp.qpn:#x} wqe {text}")
    assert sum(place.fullmatch(line) is not None for line in lines) == 1, "\n".join(lines)


@BOTH
def test_full_cq(exact: bool) -> None:
    """Completions wait for a CQ doorbell: the CQ, how many CQEs it holds, and which nobody has consumed."""
    sim = one_way(sizes=(64, 64), wqes=12, burst=12, depth=16, cq_depth=4, lazy_cq=4)
    q = sim.qps[0]
    is_cq = (sim.records["kind"] == Kind.MMIO_W) & (sim.records["addr"] == 0x08000010 + 4096 * q.qpn)
    found = report(sim, int(np.flatnonzero(is_cq)[0]), exact)
    head = f"pe 0 qp {q.qpn:#x} wqe 4 WRITE 64 B psn 4: done, CQE not written: CQ {q.cq.cqn} is full"
    assert f"{head} (4 CQEs, consumer index 0)" in found, found
    tail = f"pe 0 cq {q.cq.cqn}: 4 CQEs written, no CQ doorbell for them; the first: qp {q.qpn:#x} wqe 0 code"
    assert f"{tail} 0x00" in found, found


def cut_late(m: Late, rows_kept: int) -> list[str]:
    """The drain report of a stream with retries, but for its last records."""
    judge = Judge(m.sim.configs)
    judge.feed(m.rec[:rows_kept], m.side)
    return judge.outstanding()


@pytest.mark.parametrize("passes", [1, 3, 7])
def test_retries_used(passes: int) -> None:
    """So many passes by the timer, and no answer yet."""
    m = Late("write", passes)
    last = int(m.rows(Kind.RXPKT)[-1])
    assert int(m.rec["pe"][last]) == 0
    (line, *_) = cut_late(m, last)
    assert f"sent, no ACK, the peer has executed it (timer runs, {passes} of 7 retries used)" in line


def test_expired_timer_is_named() -> None:
    """A NIC that does not send again although its timer has expired."""
    m = Late("write", 1)
    last = int(m.rows(Kind.RXPKT)[-1])
    idle = np.zeros(1, RECORD)
    idle["time"], idle["kind"] = m.rec["time"][last] + 2 * WAIT, Kind.NOTE
    m.rec = np.concatenate([m.rec[:last], idle])
    (line, *_) = cut_late(m, m.rec.size)
    assert "(timer has expired, 1 of 7 retries used)" in line


def test_rnr_wait_is_named() -> None:
    """An RNR NAK came: until when the QP waits, and how many of its RNR retries are used."""
    m = Late("write", 2, 66_000, cause=0x34)
    naks = [i for i in m.rows(Kind.RXPKT) if m.rec["pe"][i] == 0 and m.frame(i)[54] == 0x34]
    end = int(m.rec["time"][naks[1]]) + 1024 * 64
    (line, *_) = cut_late(m, int(naks[1]) + 1)
    wait = f"sent, no ACK, the peer has executed it, RNR wait until cycle {end}"
    assert f"{wait} (1 RNR retries used, no limit)" in line, line


def test_dead_peer_is_named() -> None:
    """The peer's QP went to ERR: what is sent to it cannot be answered."""
    sim = simulate(qps=1, sizes=(64, 64), mtus=(1,), wqes=30, faults={(1, 0, 4): "lkey"})
    seen = set()
    for cut in range(0, sim.records.size, 5):
        seen |= {line.partition(": ")[2] for line in report(sim, cut)}
    assert any("the peer has not executed it: its QP is in ERR" in text for text in seen)


def test_report_is_short_and_complete() -> None:
    """Many QPs hang: eleven lines at the most, the oldest WQE of a QP first, and nothing is left out."""
    sim = simulate(qps=6, sizes=(40, 6000), wqes=30, depth=16)
    for cut in range(sim.records.size // 10, sim.records.size, sim.records.size // 10):
        judge = Judge(sim.configs)
        judge.feed(sim.records[:cut], sim.side)
        lines, left, told = judge.outstanding(), 0, 0
        assert 0 < len(lines) <= 11
        if lines[-1].startswith("and "):
            left = int(lines.pop().split()[1])
        heads = set()
        for line in lines:
            span = re.match(r"(pe \d+ qp \S+) wqe (\d+)(?:-(\d+))?", line)
            if span is not None and "in the ring" not in line:
                told += int(span[3] or span[2]) - int(span[2]) + 1
                heads.add(span[1])
        due = judge.exact.outstanding()
        assert told <= len(due) <= told + left and (left or told == len(due))
        assert len(heads) >= min(len({(f.pe, f.qpn) for f in due}), 7)


def test_patience() -> None:
    """How long a run waits for the transport: while something is unacknowledged, and not longer."""
    sim = one_way(sizes=(1000, 1000))
    first, *_, sent = rows(Kind.TXPKT)(sim.records).tolist()
    answered = int(rows(Kind.RXPKT)(sim.records)[-1]) + 1
    for cut, due in ((first, (0, 0)), (sent + 1, (QUIET, BOUND * QUIET)), (answered, (0, 0))):
        judge = Judge(sim.configs)
        judge.feed(sim.records[:cut], sim.side)
        assert judge.patience() == due, cut
