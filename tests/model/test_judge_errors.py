"""The judge on the edges of errors: CQE writes that are refused, QPs that leave RTS with packets under way.

Stimulus: legal streams, ended by an error that the memory or the host makes.
Checks: what memory must show afterwards, which CQEs are legal then, in both engines.
Timing: none but the order of records. Not proved here: anything about RTL.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from pymodel.nic import judge_frames as frames
from pymodel.nic.context import CmdObj, CmdOp, QpContext, command_writes
from pymodel.nic.judge import RECORD, Check, Judge, Kind
from pymodel.nic.params import CMD_REG, CMD_STAGE, AxiId, Cnt
from tests.model.judge_mutants import end, simulate
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


# ------------------------------------------------------------------ the way to ERR


def to_err(judge: Judge, g: int, time: int) -> np.ndarray:
    """Records of a modify command."""
    new = np.zeros(2, RECORD)
    new["kind"], new["pe"], new["time"], new["flags"] = Kind.MMIO_W, judge.state.q_pe[g], time, 0xFF
    new["addr"], new["data"] = (CMD_STAGE + 64, CMD_REG), (2, 2 | 1 << 4 | int(judge.state.q_qpn[g]) << 8)
    return new


def flush(judge: Judge, sim: Sim, g: int, idx: int, time: int) -> tuple[np.ndarray, np.ndarray]:
    """A flush CQE of a WQE in the next slot: its record, and a side buffer that has its bytes."""
    s, c = judge.state, int(judge.state.q_cq[g])
    number, depth, stride, v1 = int(s.c_prod[c]), int(s.c_depth[c]), int(s.c_stride[c]), s.q_version[g] == 1
    wqe_id = idx << 3
    body = struct.pack(
        "<IIIIQII", 0xFF | int(s.q_qpn[g]) << 8, 0, 0, 0, time | ((wqe_id & 0xFFFF) << 48 if v1 else 0),
        0 if v1 else (wqe_id & 0xFFFFF) << 12, (number // depth & 1) << 31,
    )  # fmt: skip
    addr = int(s.c_base[c]) + number % depth * stride
    lane, row = addr & 63, body.ljust(stride, b"\0")
    new = np.zeros(1, RECORD)
    new["kind"], new["pe"], new["id"], new["time"] = Kind.AXI_W, s.q_pe[g], AxiId.CQE, time
    new["addr"], new["len"], new["aux0"], new["aux1"] = addr, 1, ((1 << stride) - 1) << lane, stride
    new["off"] = sim.side.size
    beat = np.frombuffer((bytes(lane) + row).ljust(64, b"\0"), np.uint8)
    return new, np.concatenate([sim.side, beat])


@pytest.mark.parametrize("how", ["at once", "held", "long after"])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "batch"])
def test_ack_that_waits_in_the_receive_path(exact: bool, how: str) -> None:
    """A QP is sent to ERR behind the ACK of a silent WQE, which may wait in the receive path: it may flush.

    Just behind it, or later with payload in front of it that is not written. Else the WQE is long complete.
    """
    legal = how != "long after"
    sim = simulate(seed=2, ops=("write",), silent=0.7, sizes=(40, 900), wqes=90, one_way=not legal)
    rec, seen = sim.records, 0
    acks = [int(i) for i in np.flatnonzero(rec["kind"] == Kind.RXPKT)
            if sim.side[int(rec["off"][i]) % sim.side.size + 42] == 0x11]  # fmt: skip
    for at in acks:
        judge = feed(sim, rec[: at + 1], exact, at)
        s, pe = judge.state, int(rec["pe"][at])
        if how != "at once" and judge.exact.core.path_holds(pe) != legal:
            continue
        for g in np.flatnonzero(s.q_pe == pe).tolist():
            silent = int(s.q_ret[g])
            if s.q_ack_time[g] != rec["time"][at] or s.retired(g) == silent:
                continue
            time = int(rec["time"][at]) + (3 if how == "at once" else 5000)
            new, side = flush(judge, sim, g, silent, time + 40)
            judge.feed(np.concatenate([to_err(judge, g, time), new]), side)
            judge.flush()
            found = {f.check for f in judge.findings}
            assert found == (set() if legal else {Check.CQE_ORDER}), judge.report()
            seen += 1
        if seen > 6:
            break
    assert seen > 2


# ------------------------------------------------------------------ contexts that change


def commands(judge: Judge, g: int, *steps: tuple[CmdOp, QpContext | None]) -> np.ndarray:
    """Records of commands to a QP; a modify goes to RTS."""
    s, writes = judge.state, []
    for op, ctx in steps:
        words = ctx.stage_words() if ctx else []
        if words and op == CmdOp.MODIFY:
            words[8] = 1
        writes += command_writes(op, CmdObj.QP, int(s.q_qpn[g]), words)
    new = np.zeros(len(writes), RECORD)
    new["kind"], new["pe"], new["time"], new["flags"] = Kind.MMIO_W, s.q_pe[g], s.cycle + 10_000, 0xFF
    new["addr"], new["data"] = [a for a, _ in writes], [d for _, d in writes]
    return new


def write_packet(judge: Judge, sim: Sim, g: int) -> Judge:
    """The peer's next WRITE of 8 bytes arrives."""
    s, peer = judge.state, int(judge.state.q_peer[g])
    pe = int(s.q_pe[g])
    key = s.mrs[pe][sim.mr_index[pe]]
    reth = struct.pack(">QII", key.base + 64, key.rkey(sim.mr_index[pe]), 8)
    psn = int(s.r_exp[g] + s.q_rq_psn[g]) & 0xFFFFFF
    frame = frames.build(s.flows[peer], frames.WRITE_ONLY, psn, 1, reth, bytes(8))
    new = np.zeros(1, RECORD)
    new["kind"], new["pe"], new["time"], new["len"] = Kind.RXPKT, pe, s.cycle + 1, len(frame)
    judge.feed(new, np.frombuffer(frame, np.uint8))
    judge.flush()
    return judge


def due(judge: Judge) -> set[Check]:
    """What the judge waits for."""
    return {f.check for f in judge.exact.outstanding()}


def test_contexts_as_programmed_again() -> None:
    """Rights, limits, PSNs, MTU and ring of a new context hold; those of a refused command do not."""
    sim = simulate(seed=3, ops=("write",), wqes=20)

    def after(*steps: tuple[CmdOp, QpContext | None]) -> Judge:
        judge = feed(sim, sim.records, True, sim.records.size - 2)
        judge.feed(commands(judge, 0, *steps), sim.side)
        judge.flush()
        assert not judge.findings, judge.report()
        return judge

    old = after().state.qp_ctx[0]
    new = replace(
        old, rem_write=False, rem_read=False, max_rd_atomic=3, max_dest_rd_atomic=5, sq_psn=77, rq_psn=99,
        mtu_code=old.mtu_code % 5 + 1, ttl=9, sq_depth=old.sq_depth // 2,
    )  # fmt: skip
    judge = after((CmdOp.RESET, None), (CmdOp.SET, new))
    s = judge.state
    assert (s.q_write[0], s.q_read[0], s.q_max_rd[0], s.r_max_rd[0]) == (False, False, 3, 5)
    assert (s.q_sq_psn[0], s.q_rq_psn[0], s.q_mtu[0], s.q_depth[0]) == (77, 99, new.mtu, new.sq_depth)
    assert s.flows[0].ttl == 9
    assert due(write_packet(judge, sim, 0)) == {Check.NAK_MISSING}, "a WRITE that has no right any more"
    # set without a reset before it, and a context that is not good: refused
    for steps in (((CmdOp.SET, new),), ((CmdOp.RESET, None), (CmdOp.SET, replace(new, mtu_code=7)))):
        judge = after(*steps)
        assert judge.state.qp_ctx[0] == old and judge.state.q_write[0]
    # modify changes rights and headers, and neither limits nor PSNs
    judge = after((CmdOp.MODIFY, new))
    s = judge.state
    assert not s.q_write[0] and s.flows[0].ttl == 9 and s.r_max_rd[0] == old.max_dest_rd_atomic
    assert s.q_rq_psn[0] == old.rq_psn and s.q_state[0] == 1
    assert due(write_packet(judge, sim, 0)) == {Check.NAK_MISSING}
    assert Check.NAK_MISSING not in due(write_packet(after(), sim, 0)), "the control"


def test_a_deeper_ring() -> None:
    """A context with a deeper ring than any before gets rows of its own."""
    sim = simulate(seed=3, ops=("write",), wqes=20)
    judge = feed(sim, sim.records, True, sim.records.size - 2)
    s, rows = judge.state, judge.state.w_first.size
    s.set_qp(0, replace(s.qp_ctx[0], sq_depth=2048))
    assert s.q_mask[0] + 1 == 4096 and s.q_row[0] == rows and s.w_err.size == rows + 4096
    assert s.q_sorted == sorted(s.q_sorted)


# ------------------------------------------------------------------ counters that a race leaves open


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "batch"])
def test_open_counters_have_bounds(exact: bool) -> None:
    """Packets that meet a change to ERR move one counter or another: so many, and their sum is known."""
    sim = simulate(seed=5, ops=MIX, one_way=True, faults={(0, 1, 20): "read:rkey"}, sizes=(40, 4000))
    judge = feed(sim, sim.records, exact, sim.records.size - 2)
    pe, most = 1, judge.exact.core.open_packets[1]
    assert judge.exact.loose and 0 < most < 100
    assert judge.state.rx_frames[pe] == np.count_nonzero(
        (sim.records["kind"] == Kind.RXPKT) & (sim.records["pe"] == pe)
    )

    def found(**by: int) -> bool:
        counters = [list(c) for c in sim.counters]
        for name, n in by.items():
            counters[pe][Cnt[name]] += n
        judge = feed(sim, sim.records, exact, sim.records.size - 2)
        counts = end(judge, sim, counters).counts
        assert set(counts) <= {Check.COUNTER}
        return bool(counts)

    moved = min(most, sim.counters[pe][Cnt.DROP_QP])
    assert moved and not found() and not found(DROP_QP=-moved, RX_PACKET=moved)
    assert found(DROP_QP=-moved), "their sum"
    assert found(RX_PACKET=3 * most + 200, DROP_QP=-3 * most - 200), "more than there were"
