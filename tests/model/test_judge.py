"""The judge against synthetic record streams.

Stimulus: legal streams of 2 to 4 simulated NICs with random interleaving, latencies, sizes, MTUs, versions,
strides and counters near their wraps; then the same streams with one planted fault each.
Checks: legal streams give no finding, under any split into batches, and leave the same state in both engines;
each fault gives exactly the findings of its check, in both engines.
Timing: none but the order of records. Not proved here: anything about RTL.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pymodel.nic.judge import Check, Judge, Kind
from pymodel.nic.params import AsyncKind, Cnt
from tests.model.judge_mutants import (
    Case,
    Mutant,
    columns,
    end,
    flip,
    is_ack,
    is_request,
    run,
    run_mutant,
    simulate,
)
from tests.model.judge_stream import Sim

# ------------------------------------------------------------------ legal streams


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_pes": 4, "qps": 1, "wqes": 30},
        {"sizes": (0, 0)},
        {"sizes": (64, 64), "wqes": 150, "lazy_cq": 5},
        {"sizes": (1, 40000), "wqes": 24, "depth": 8, "cq_depth": 8, "mtus": (1,)},
        {"silent": 0.6, "wqes": 100},
        {"shared_cq": True, "cq_depth": 64},
        {"dirty": False, "near_wrap": False, "versions": (1,), "strides": (32,)},
        {"latency": 400, "depth": 64, "cq_depth": 64},
        {"pieces": True, "wqes": 100},
    ],
    ids=["mixed", "four", "empty", "small", "long", "silent", "shared-cq", "plain", "slow", "pieces"],
)
def test_legal_stream(changes: dict[str, object]) -> None:
    """No finding; the batch engine takes all of it; both engines leave the same state."""
    sim = simulate(**changes)
    fast, exact = run(sim), run(sim, exact=True)
    assert not fast.findings, fast.report()
    assert not exact.findings, exact.report()
    assert fast.batch_records == sim.records.size, fast.batch.why
    a, b = columns(fast), columns(exact)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], name)


@pytest.mark.parametrize("seed", range(4))
def test_any_split(seed: int) -> None:
    """Effects cross batches: the stream cut at random, single records included."""
    sim = simulate(seed=seed, n_pes=2 + seed % 2, silent=0.2 * (seed % 2))
    rng = np.random.default_rng(seed)
    sizes = rng.choice([1, 2, 7, 60, 150, 700], 4000)
    splits = np.cumsum(sizes)
    judge = run(sim, splits=splits[splits < sim.records.size].tolist())
    assert not judge.findings, judge.report()
    assert judge.batch_records and judge.exact_records
    whole = columns(run(sim))
    for name, column in columns(judge).items():
        np.testing.assert_array_equal(column, whole[name], name)


@pytest.mark.parametrize("hold", [False, True])
def test_side_ring_wraps(hold: bool) -> None:
    """Bytes of a record at off % size, contiguous, in a ring much smaller than the stream."""
    sim = simulate(sizes=(1, 900))
    judge, ring, at = Judge(sim.configs), np.zeros(1 << 16, np.uint8), 0
    for part in np.array_split(sim.records, sim.records.size // 60):
        part = part.copy()
        for r in part:
            size = int(r["len"]) if r["kind"] in (Kind.STORE, Kind.TXPKT, Kind.RXPKT) else 64
            if at % ring.size + size > ring.size:
                at += ring.size - at % ring.size
            ring[at % ring.size : at % ring.size + size] = sim.side[int(r["off"]) : int(r["off"]) + size]
            r["off"] = at
            at += size
        judge.feed(part, ring)
        if not hold:
            judge.flush()
    assert at > 3 * ring.size
    assert not end(judge, sim).findings, judge.report()


# ------------------------------------------------------------------ error paths that are legal


@pytest.mark.parametrize("exact", [False, True], ids=["batch", "exact"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", ["wqe_id", "opcode", "length", "lkey", "gather", "rkey", "target"])
def test_legal_error(fault: str, seed: int, exact: bool) -> None:
    """An error CQE, the flush behind it and the peer's NAK: no finding, the other QPs go on."""
    sim = simulate(seed=seed, one_way=True, faults={(0, 1, 12 + seed): fault})
    judge = run(sim, exact)
    assert not judge.findings, judge.report()
    flushed = sum(c[Cnt.FLUSH] for c in sim.counters)
    assert flushed and judge.state.counters[:, Cnt.FLUSH].sum() == flushed
    assert judge.state.asyncs == sim.asyncs


@pytest.mark.parametrize("code", [0xAB, 0x9F, 0xA7, 0xB2, 0xA5, 0xA6])
def test_wrong_error_code(code: int) -> None:
    """Each error code where another one is due is found."""
    fault = {0xAB: "length", 0x9F: "lkey", 0xA7: "wqe_id", 0xB2: "rkey", 0xA5: "target", 0xA6: "gather"}[code]
    sim = simulate(one_way=True, faults={(0, 1, 12): fault})
    for r in sim.records[(sim.records["kind"] == Kind.AXI_W) & (sim.records["id"] == 4)]:
        lane = (int(r["aux0"]) & -int(r["aux0"])).bit_length() - 1
        at = int(r["off"]) + lane
        if sim.side[at] not in (0, 0xFF):
            sim.side[at] = code
    assert set(run(sim).counts) in ({Check.CQE_STATUS}, {Check.CQE_STATUS, Check.CONTENT})


def doorbells(sim: Sim, qp: int, words: list[tuple[int, int, int]]) -> None:
    """Append MMIO writes (offset in the page, data, strobe) at the end of a stream."""
    q = sim.qps[qp]
    for offset, data, strobe in words:
        sim.now += 10
        sim.mmio(q.pe, 0x08000000 + 4096 * q.qpn + offset, data, strobe)
    sim.freeze()


def sq_word(sim: Sim, qp: int, head: int, qpn: int | None = None) -> int:
    """SQ doorbell of a QP."""
    q = sim.qps[qp]
    bits = 17 if q.ctx.version == 1 else 21
    return (head << 3 & (1 << bits) - 1) | (q.qpn if qpn is None else qpn) << bits


@pytest.mark.parametrize(
    ("counter", "make"),
    [
        (Cnt.DB_PID, lambda s: [(0, sq_word(s, 0, s.qps[0].head) | 3, 0xFF)]),
        (Cnt.DB_PAGE, lambda s: [(0, sq_word(s, 0, s.qps[0].head, s.qps[0].qpn ^ 1), 0xFF)]),
        (Cnt.DB_PARTIAL, lambda s: [(0, sq_word(s, 0, s.qps[0].head), 0x0F)]),
        (Cnt.DB_STALE, lambda s: [(0, sq_word(s, 0, s.qps[0].head - 1), 0xFF)]),
        (Cnt.DB_OVERRUN, lambda s: [(0, sq_word(s, 0, s.qps[0].head + s.k.depth + 1), 0xFF)]),
        (Cnt.DB_RQ, lambda s: [(8, s.qps[0].qpn << 17 | 1, 0xFF)]),
        (Cnt.DB_PAGE, lambda s: [(8, (s.qps[0].qpn ^ 1) << 17 | 1, 0xFF)]),
        (Cnt.DB_CQ_BEYOND, lambda s: [(16, (s.qps[0].cq.prod + 1 & 0x7FFFFF) | s.qps[0].cq.cqn << 23, 0xFF)]),
        (Cnt.DB_CQ_BACKWARD,
         lambda s: [(16, (s.qps[0].cq.prod - 1 & 0x7FFFFF) | s.qps[0].cq.cqn << 23, 0xFF)]),
        (Cnt.DB_PAGE, lambda s: [(16, s.qps[0].cq.prod & 0x7FFFFF | (s.qps[0].cq.cqn ^ 1) << 23, 0xFF)]),
    ],
)  # fmt: skip
def test_refused_doorbell(counter: Cnt, make: Callable[[Sim], list[tuple[int, int, int]]]) -> None:
    """Each refused doorbell is expected to count once; a NIC that does not count it is found."""
    sim = simulate(wqes=6)
    doorbells(sim, 0, make(sim))
    pe = sim.qps[0].pe
    assert set(run(sim).counts) == {Check.COUNTER}
    sim.counters[pe][counter] += 1
    assert not run(sim).findings, run(sim).report()


@pytest.mark.parametrize("exact", [False, True], ids=["batch", "exact"])
def test_overrun_flushes(exact: bool) -> None:
    """After an overrun the QP is in ERR: new WQEs get flush CQEs, its fetches and packets would be found."""
    sim = simulate(wqes=6, silent=0.0)
    q = sim.qps[0]
    doorbells(sim, 0, [(0, sq_word(sim, 0, q.head + sim.k.depth + 1), 0xFF)])
    sim.counters[q.pe][Cnt.DB_OVERRUN] += 1
    q.state = "ERR"
    sim.now += 400
    q.posted = 0
    sim.k.wqes = 3
    sim.at(5, lambda: sim.program(q))
    sim.run_on()
    sim.freeze()
    judge = run(sim, exact)
    assert not judge.findings, judge.report()
    assert judge.state.counters[q.pe, Cnt.FLUSH] == 3
    assert judge.state.asyncs[q.pe] == [(AsyncKind.SQ_OVERRUN, q.qpn)]


@pytest.mark.parametrize("late", [False, True])
def test_cq_wait(late: bool) -> None:
    """With cq_wait a completion without room is lost after that time, counted; not before."""
    sim = simulate(one_way=True, qps=1, wqes=40)
    m = Mutant(sim)
    m.drop(*[i for i in m.rows(Kind.MMIO_W) if m.rec["addr"][i] & 0xFFF == 16])
    cqes = m.rows(Kind.AXI_W, 4)
    m.rec = m.rec[: int(cqes[16])]  # the ring of 16 is full
    m.insert(0, kind=Kind.MMIO_W, addr=0x050, data=1000, flags=0xFF)
    stop = int(m.rec["time"][-1])
    m.insert(m.rec.size, kind=Kind.NOTE)
    m.rec["time"][-1] = stop + (3000 if late else 100)
    judge = Judge(sim.configs)
    judge.feed(m.rec, m.side)
    counters = judge.expected_counters(0)
    q = sim.qps[0]
    assert (counters[Cnt.CQ_OVERRUN], judge.state.asyncs[0]) == (
        (1, [(AsyncKind.CQ_OVERRUN, q.cq.cqn)]) if late else (0, [])
    )
    assert bool(counters[Cnt.CQE_DISCARD]) == late
    judge.finish()
    assert (Check.OUTSTANDING in judge.counts) != late


def test_async_events() -> None:
    """A popped event must be one that is due."""
    sim = simulate(wqes=6)
    q = sim.qps[0]
    doorbells(sim, 0, [(0, sq_word(sim, 0, q.head + sim.k.depth + 1), 0xFF)])
    sim.counters[q.pe][Cnt.DB_OVERRUN] += 1
    sim.emit(Kind.MMIO_R, q.pe, addr=0x038, data=1 << 63 | 1 << 32 | q.qpn)
    sim.freeze()
    assert not run(sim).findings
    sim.emit(Kind.MMIO_R, q.pe, addr=0x038, data=1 << 63 | 1 << 32 | q.qpn)
    sim.freeze()
    assert set(run(sim).counts) == {Check.ASYNC}


# ------------------------------------------------------------------ planted faults


def _pad_byte(m: Mutant) -> None:
    i = m.packet(is_request)
    m.frame(i)[-5] = 1
    m.icrc(i)


def _psn_wrong(m: Mutant) -> None:
    i = m.packet(is_request)
    m.frame(i)[53] ^= 1 if m.frame(i)[53] & 1 == 0 else 3
    m.icrc(i)


def _psn_gap(m: Mutant) -> None:
    m.drop(m.packet(is_request))


def _sent_twice(m: Mutant) -> None:
    i = m.packet(is_request)
    m.rec = np.insert(m.rec, i + 1, m.rec[i])


def _sent_before_fetch(m: Mutant) -> None:
    """A fetch, its address too, moves behind the first packet of its first WQE."""
    depth = m.sim.k.depth
    for fetch in m.rows(Kind.AXI_R, 0)[5:]:
        pe, base = int(m.rec["pe"][fetch]), int(m.rec["addr"][fetch])
        q = next(q for q in m.sim.qps if q.pe == pe and q.ctx.sq_base <= base < q.ctx.sq_base + 128 * depth)
        stores = [
            i for i in m.rows(Kind.STORE) if i < fetch and m.rec["pe"][i] == pe and m.rec["addr"][i] == base
        ]
        # its first packet is the one whose RETH names the target of that WQE
        raddr = m.side[int(m.rec["off"][stores[-1]]) + 24 :][:8].tobytes()[::-1]
        first = next(i for i in m.rows(Kind.TXPKT) if i > fetch and m.rec["pe"][i] == pe
                     and m.frame(i)[54:62].tobytes() == raddr)  # fmt: skip
        between = [i for i in m.rows(Kind.AXI_R, 0) if fetch < i < first and m.rec["pe"][i] == pe
                   and q.ctx.sq_base <= int(m.rec["addr"][i]) < q.ctx.sq_base + 128 * depth]  # fmt: skip
        if not between:
            m.rec["time"][fetch] = m.rec["aux0"][fetch] = m.rec["time"][first]
            m.move(int(fetch), first + 1)
            return
    raise AssertionError


def _doorbell_lost(m: Mutant) -> None:
    db = [i for i in m.rows(Kind.MMIO_W) if m.rec["addr"][i] & 0xFFF == 0]
    m.drop(int(db[-1]))


def _ack_psn_ahead(m: Mutant) -> None:
    i = m.packet(is_ack)
    f = m.frame(i)
    psn = int.from_bytes(f[51:54].tobytes(), "big") + 200
    f[51:54] = np.frombuffer((psn & 0xFFFFFF).to_bytes(3, "big"), np.uint8)
    m.icrc(i)


def _ack_psn_back(m: Mutant) -> None:
    """The second of two ACKs of a QP names an older PSN than the first."""
    acks = [i for i in m.rows(Kind.TXPKT) if is_ack(m.frame(i))]
    for i in acks[len(acks) // 2 :]:
        f = m.frame(i)
        before = [
            j
            for j in acks
            if j < i and m.rec["pe"][j] == m.rec["pe"][i] and (m.frame(j)[47:50] == f[47:50]).all()
        ]
        if len(before) > 2:
            f[51:58] = m.frame(before[0])[51:58]
            m.icrc(i)
            return
    raise AssertionError


def _ack_msn(m: Mutant) -> None:
    i = m.packet(is_ack)
    m.frame(i)[57] ^= 1
    m.icrc(i)


def _nak_from_nowhere(m: Mutant) -> None:
    i = m.packet(is_ack)
    m.frame(i)[54] = 0x62
    m.icrc(i)


def _ack_before_response(m: Mutant) -> None:
    """The last write response before an ACK comes behind it."""
    for i in m.rows(Kind.TXPKT)[m.rows(Kind.TXPKT).size // 2 :]:
        if not is_ack(m.frame(i)):
            continue
        pe = m.rec["pe"][i]
        b = [j for j in m.rows(Kind.AXI_B, 3) if j < i and m.rec["pe"][j] == pe][-1]
        between = m.rec[b + 1 : i]
        # right behind its response, so that it is the response of the acknowledged packet
        if not ((between["kind"] == Kind.TXPKT) & (between["pe"] == pe)).any():
            m.move(int(b), int(i) + 1)
            if run_mutant(m, False).counts:
                return
            raise AssertionError("the response was not the one that the ACK waits for")
    raise AssertionError


def _ack_missing(m: Mutant) -> None:
    acks = [i for i in m.rows(Kind.TXPKT) if is_ack(m.frame(i))]
    m.drop(int(acks[-1]))


def cqe_field(at: int, bits: int = 1) -> Callable[[Mutant], None]:
    def mutate(m: Mutant) -> None:
        m.cqe(m.middle(m.rows(Kind.AXI_W, 4)))[at] ^= bits

    return mutate


def _cqe_upper_half(m: Mutant) -> None:
    wide = [i for i in m.rows(Kind.AXI_W, 4) if m.rec["aux1"][i] == 64]
    m.cqe(m.middle(np.array(wide)))[40] = 1


def _cqe_swapped(m: Mutant) -> None:
    """Two CQEs of a QP name each other's WQE; place, owner and time stamps stay right."""
    i, j = m.pair()
    a, b = m.cqe(i), m.cqe(j)
    for part in (slice(0, 16), slice(22, 28)):
        a[part], b[part] = b[part].copy(), a[part].copy()


def _cqe_slot(m: Mutant) -> None:
    i = m.middle(np.array([i for i in m.rows(Kind.AXI_W, 4) if m.rec["aux1"][i] == 64]))
    m.rec["addr"][i] += 64 if m.rec["addr"][i] & 64 == 0 else -64 & (1 << 64) - 1


def _cqe_strobe(m: Mutant) -> None:
    i = m.middle(np.array([i for i in m.rows(Kind.AXI_W, 4) if m.rec["aux1"][i] == 64]))
    m.rec["aux0"][i] = (1 << 63) - 1
    m.rec["aux1"][i] = 63


def _cqe_ts_future(m: Mutant) -> None:
    i = m.middle(m.rows(Kind.AXI_W, 4))
    ts = m.cqe(i)[16:20].view("<u4")
    ts[0] = int(m.rec["time"][i]) + 1


def _cqe_ts_early(m: Mutant) -> None:
    """Stamped before its doorbell."""
    m.cqe(m.middle(m.rows(Kind.AXI_W, 4)))[16:20] = 0


def _cqe_ts_decreases(m: Mutant) -> None:
    i, j = m.pair()
    a, b = m.cqe(i)[16:20].view("<u4"), m.cqe(j)[16:20].view("<u4")
    assert b[0] > a[0]
    b[0] = a[0] - 1


def _cqe_before_ack(m: Mutant) -> None:
    """A CQE moves in front of the ACK that completes its WQE."""
    cqes = m.rows(Kind.AXI_W, 4)
    for i in cqes[cqes.size // 2 :].tolist():
        pe, qpn = m.qp_of_cqe(i)
        own = [j for j in cqes[cqes < i] if m.qp_of_cqe(j) == (pe, qpn)]
        psn = m.sim.last_psn[pe, qpn, m.sim.by_qpn[pe, qpn].ctx.sq_start_index + len(own)]
        acks = [j for j in m.rows(Kind.RXPKT) if is_ack(m.frame(j)) and m.rec["pe"][j] == pe
                and int.from_bytes(m.frame(j)[47:50].tobytes(), "big") == qpn]  # fmt: skip
        named = {j: int.from_bytes(m.frame(j)[51:54].tobytes(), "big") for j in acks}
        ack = next(j for j in acks if (named[j] - psn) % (1 << 24) < 1 << 23)
        if not own or own[-1] < ack:
            m.move(i, int(ack))
            return
    raise AssertionError


def _cqe_twice(m: Mutant) -> None:
    i = m.middle(m.rows(Kind.AXI_W, 4))
    m.rec = np.insert(m.rec, i + 1, m.rec[i])


def _cqe_missing(m: Mutant) -> None:
    """One in the middle: found at the next CQE of the QP."""
    i, _ = m.pair()
    m.drop(i)


def _cqe_missing_at_end(m: Mutant) -> None:
    i = int(m.rows(Kind.AXI_W, 4)[-1])
    ring = (m.rec["kind"] == Kind.MMIO_W) & (m.rec["addr"] & 0xFFF == 16)
    later = np.flatnonzero((m.rec["pe"] == m.rec["pe"][i]) & ((m.rec["id"] == 4) | ring))
    later = later[later > i].tolist()
    m.drop(i, *later)


def _cqe_no_room(m: Mutant) -> None:
    cq = [i for i in m.rows(Kind.MMIO_W) if m.rec["addr"][i] & 0xFFF == 16]
    m.drop(*cq)


def _cqe_of_other_qp(m: Mutant) -> None:
    m.cqe(m.rows(Kind.AXI_W, 4)[-1])[1] ^= 0x55


def _write_elsewhere(m: Mutant) -> None:
    m.rec["addr"][m.middle(m.rows(Kind.AXI_W, 3))] += 4096


def _write_too_much(m: Mutant) -> None:
    i = m.middle(m.rows(Kind.AXI_W, 3))
    m.rec["aux1"][i] += 4096 - m.rec["aux1"][i]
    m.rec["aux0"][i] = (1 << 64) - 1
    m.rec["len"][i] = 64
    m.rec["addr"][i] = m.rec["addr"][i] & ~np.uint64(4095)


def _write_more(m: Mutant) -> None:
    """A guard byte: one write that no packet asked for."""
    m.insert(m.rec.size, kind=Kind.AXI_W, id=3, addr=m.sim.heaps[0], len=1, aux0=1, aux1=1)
    m.insert(m.rec.size, kind=Kind.AXI_B, id=3)


def _write_strobes(m: Mutant) -> None:
    one = [i for i in m.rows(Kind.AXI_W, 3) if m.rec["len"][i] == 1 and m.rec["aux1"][i] > 8]
    m.rec["aux0"][one[0]] ^= int(m.rec["aux0"][one[0]]) & -int(m.rec["aux0"][one[0]]) << 3


def _write_lost(m: Mutant) -> None:
    m.drop(int(m.rows(Kind.AXI_W, 3)[-1]), int(m.rows(Kind.AXI_B, 3)[-1]))


def _response_alone(m: Mutant) -> None:
    m.insert(m.rec.size, kind=Kind.AXI_B, id=3)


def _fetch_ahead(m: Mutant) -> None:
    q = m.sim.qps[0]
    addr = q.ctx.sq_base + q.head % m.sim.k.depth * 128
    m.insert(m.rec.size, kind=Kind.AXI_R, id=0, pe=q.pe, addr=addr, len=2, aux0=m.sim.now)


def _fetch_before_doorbell(m: Mutant) -> None:
    m.rec["aux0"][m.middle(m.rows(Kind.AXI_R, 0))] = 1


def _fetch_outside(m: Mutant) -> None:
    m.insert(m.rec.size, kind=Kind.AXI_R, id=0, addr=m.sim.heaps[0], len=2, aux0=m.sim.now)


def _gather_outside(m: Mutant) -> None:
    m.insert(m.rec.size // 2, kind=Kind.AXI_R, id=1, addr=m.sim.heaps[0] & ~63, len=64, aux0=m.sim.now)


def _gather_before_doorbell(m: Mutant) -> None:
    m.rec["aux0"][m.middle(m.rows(Kind.AXI_R, 1))] = 1


def _read_unaligned(m: Mutant) -> None:
    i = m.middle(np.array([i for i in m.rows(Kind.AXI_R, 1) if m.rec["len"][i] > 1]))
    m.rec["addr"][i] += 8
    m.rec["len"][i] -= 1


def _read_across_4k(m: Mutant) -> None:
    """A burst that covers two pages of one source."""
    i = next(i for i in m.rows(Kind.AXI_R, 1) if (m.rec["addr"][i] + 64 * m.rec["len"][i]) % 4096 == 0
             and m.rec["addr"][m.rows(Kind.AXI_R, 1)[list(m.rows(Kind.AXI_R, 1)).index(i) + 1]]
             == m.rec["addr"][i] + 64 * m.rec["len"][i])  # fmt: skip
    m.rec["len"][i] += 1


def _read_faults(m: Mutant) -> None:
    m.rec["flags"][m.middle(m.rows(Kind.AXI_R, 1))] = 2


def _foreign_id(m: Mutant) -> None:
    m.insert(m.rec.size, kind=Kind.AXI_R, id=7, addr=m.sim.heaps[0], len=1)


def _store_nowhere(m: Mutant) -> None:
    m.insert(m.rec.size, kind=Kind.STORE, addr=0x10, len=4)


def _byte_changed(m: Mutant) -> None:
    m.sim.memory[1].parts[0][1][77] ^= 1


def _counter_wrong(m: Mutant) -> None:
    m.counters[1][Cnt.TX_REQUEST] += 1


C = Check
CASES = [
    Case("payload byte", flip(80), {C.TX_PAYLOAD}),
    Case("payload byte with its ICRC", flip(80, fix=True), {C.TX_PAYLOAD}),
    *(
        Case(f"header: {name}", flip(at, bits, True, want), {C.TX_HEADER})
        for name, at, bits, want in (
            ("destination MAC", 0, 1, is_request), ("source MAC", 11, 1, is_request),
            ("EtherType", 12, 1, is_request),
            ("TOS", 15, 4, is_request), ("identification", 18, 1, is_request), ("DF", 20, 0x40, is_request),
            ("TTL", 22, 1, is_request), ("IPv4 checksum", 24, 1, is_request),
            ("source address", 26, 1, is_request),
            ("source port", 34, 1, is_request), ("destination port", 36, 1, is_request),
            ("UDP length", 39, 4, is_request), ("UDP checksum", 40, 1, is_request),
            ("SE", 43, 0x80, is_request),
            ("MigReq", 43, 0x40, is_request), ("PadCnt", 43, 0x10, is_request), ("TVer", 43, 1, is_request),
            ("P_Key", 44, 1, is_request), ("FECN", 46, 0x80, is_request), ("AckReq", 50, 0x80, is_request),
            ("opcode", 42, 1, is_request), ("VA", 61, 1, is_request), ("R_Key", 64, 1, is_request),
            ("DMA length", 69, 1, is_request), ("ACK: TOS", 15, 4, is_ack), ("ACK: AckReq", 50, 0x80, is_ack),
        )
    ),
    Case("destination address", flip(33, 1, True), {C.TX_UNEXPECTED},
         frozenset({C.TX_PSN, C.COUNTER, C.CQE_EARLY})),
    Case("DestQP", flip(48, 1, True), {C.TX_UNEXPECTED}, frozenset({C.TX_PSN, C.COUNTER, C.CQE_EARLY})),
    Case("ICRC", flip(-1), {C.TX_ICRC}),
    Case("ICRC of an ACK", flip(-1, want=is_ack), {C.TX_ICRC}),
    Case("pad byte", _pad_byte, {C.TX_PAD}),
    Case("wrong PSN", _psn_wrong, {C.TX_PSN}),
    Case("PSN gap", _psn_gap, {C.TX_PSN}, frozenset({C.COUNTER, C.CQE_EARLY})),
    Case("sent twice", _sent_twice, {C.TX_RETRY}, frozenset({C.COUNTER})),
    Case("sent before its fetch", _sent_before_fetch, {C.TX_EARLY}),
    Case("doorbell lost", _doorbell_lost, {C.TX_UNEXPECTED, C.READ_FETCH, C.READ_GATHER, C.CQE_UNEXPECTED},
         frozenset({C.COUNTER, C.CONTENT, C.CQE_ORDER, C.CQE_EARLY})),
    Case("ACK ahead", _ack_psn_ahead, {C.ACK_PSN}),
    Case("ACK goes back", _ack_psn_back, {C.ACK_PSN}),
    Case("ACK with a wrong MSN", _ack_msn, {C.ACK_MSN}),
    Case("NAK from nowhere", _nak_from_nowhere, {C.NAK}),
    Case("ACK before the write response", _ack_before_response, {C.ACK_EARLY}),
    Case("ACK missing", _ack_missing, {C.ACK_MISSING}, frozenset({C.COUNTER})),
    Case("CQE opcode", cqe_field(24, 2), {C.CQE_FIELD}, frozenset({C.CONTENT})),
    Case("CQE length", cqe_field(9, 2), {C.CQE_FIELD}, frozenset({C.CONTENT})),
    Case("CQE imm_data", cqe_field(4), {C.CQE_FIELD}, frozenset({C.CONTENT})),
    Case("CQE vni", cqe_field(13), {C.CQE_FIELD}, frozenset({C.CONTENT})),
    Case("CQE type", cqe_field(3, 4), {C.CQE_FIELD}, frozenset({C.CONTENT})),
    Case("CQE with_imm", cqe_field(3, 8), {C.CQE_FIELD}, frozenset({C.CONTENT})),
    Case("CQE reserved", cqe_field(29), {C.CQE_FIELD}, frozenset({C.CONTENT})),
    Case("CQE upper half", _cqe_upper_half, {C.CQE_FIELD}, frozenset({C.CONTENT})),
    Case("CQE owner", cqe_field(31, 0x80), {C.CQE_OWNER}, frozenset({C.CONTENT})),
    Case("CQE error code", cqe_field(0, 0xA5), {C.CQE_STATUS}, frozenset({C.CONTENT})),
    Case("CQEs swapped", _cqe_swapped, {C.CQE_ORDER}, frozenset({C.CONTENT})),
    Case("CQE slot", _cqe_slot, {C.CQE_SLOT}, frozenset({C.CONTENT})),
    Case("CQE strobes", _cqe_strobe, {C.CQE_STROBE}, frozenset({C.CONTENT})),
    Case("CQE time stamp in the future", _cqe_ts_future, {C.CQE_TS}, frozenset({C.CONTENT})),
    Case("CQE time stamp before the doorbell", _cqe_ts_early, {C.CQE_TS}, frozenset({C.CONTENT})),
    Case("CQE time stamps decrease", _cqe_ts_decreases, {C.CQE_TS}, frozenset({C.CONTENT})),
    Case("CQE before its ACK", _cqe_before_ack, {C.CQE_EARLY}, frozenset({C.CQE_TS})),
    Case("CQE twice", _cqe_twice, {C.CQE_UNEXPECTED}),
    Case("CQE missing", _cqe_missing, {C.CQE_ORDER},
         frozenset({C.COUNTER, C.CONTENT, C.DB_AMBIGUOUS, C.WRITE_ORDER, C.CQE_ROOM})),
    Case("last CQE missing", _cqe_missing_at_end, {C.OUTSTANDING}, frozenset({C.COUNTER, C.CONTENT})),
    Case("CQE without room", _cqe_no_room, {C.CQE_ROOM}),
    Case("CQE of another QP", _cqe_of_other_qp, {C.CQE_UNEXPECTED, C.OUTSTANDING},
         frozenset({C.COUNTER, C.CONTENT, C.DB_AMBIGUOUS})),
    Case("write elsewhere", _write_elsewhere, {C.WRITE_OUTSIDE}),
    Case("write of too many bytes", _write_too_much, {C.WRITE_OUTSIDE},
         frozenset({C.ACK_EARLY, C.WRITE_MISSING, C.CONTENT})),
    Case("write that nobody asked for", _write_more, {C.WRITE_OUTSIDE}),
    Case("write strobes", _write_strobes, {C.WRITE_STROBE}),
    Case("write lost", _write_lost, {C.WRITE_MISSING}, frozenset({C.ACK_EARLY, C.CONTENT})),
    Case("response alone", _response_alone, {C.WRITE_ORDER}),
    Case("fetch ahead of the producer", _fetch_ahead, {C.READ_FETCH}),
    Case("fetch before the doorbell", _fetch_before_doorbell, {C.READ_FETCH}),
    Case("fetch outside the rings", _fetch_outside, {C.READ_FETCH}),
    Case("gather outside", _gather_outside, {C.READ_GATHER}),
    Case("gather before the doorbell", _gather_before_doorbell, {C.READ_GATHER}),
    Case("unaligned read", _read_unaligned, {C.AXI_BURST}),
    Case("read across 4 KiB", _read_across_4k, {C.AXI_BURST}),
    Case("read fault", _read_faults, {C.AXI_RESP}),
    Case("foreign AXI ID", _foreign_id, {C.AXI_ID}),
    Case("store nowhere", _store_nowhere, {C.STORE_UNMAPPED}),
    Case("a byte of memory", _byte_changed, {C.CONTENT}),
    Case("counter", _counter_wrong, {C.COUNTER}),
]  # fmt: skip


@pytest.mark.parametrize("exact", [False, True], ids=["batch", "exact"])
@pytest.mark.parametrize("case", CASES, ids=[c.name.replace(" ", "-") for c in CASES])
def test_planted_fault(case: Case, exact: bool) -> None:
    """Exactly the check of the fault turns red."""
    m = Mutant(simulate(sizes=(40, 6000), wqes=30))
    case.mutate(m)
    judge = run_mutant(m, exact)
    red = set(judge.counts)
    assert case.red <= red <= case.red | case.also, judge.report()
    for finding in judge.findings:
        assert finding.expected != finding.got
        assert finding.render().count("\n") == 2


def test_nak_missing() -> None:
    """A refused request that nobody answers."""
    sim = simulate(one_way=True, faults={(0, 1, 12): "rkey"})
    m = Mutant(sim)
    naks = [i for i in m.rows(Kind.TXPKT) if m.frame(i)[42] == 0x11 and m.frame(i)[54] != 0x1F]
    m.drop(*naks)
    red = set(run_mutant(m, False).counts)
    assert Check.NAK_MISSING in red and red <= {Check.NAK_MISSING, Check.COUNTER}


def test_ambiguous_doorbell() -> None:
    """A doorbell whose verdict depends on a completion that may or may not have been counted."""
    sim = simulate(sizes=(64, 64))
    m = Mutant(sim)
    i = m.rows(Kind.AXI_W, 4)[0]
    pe, qpn = m.qp_of_cqe(i)
    q = sim.by_qpn[pe, qpn]
    rung = (m.rec["addr"] == 0x08000000 + 4096 * qpn) & (m.rec["pe"] == pe) & (m.rec["kind"] == Kind.MMIO_W)
    db = np.flatnonzero(rung[:i])
    data = int(m.rec["data"][db[-1]])
    bits = 17 if q.ctx.version == 1 else 21
    start = q.ctx.sq_start_index
    word = ((start + sim.k.depth + 1) << 3 & (1 << bits) - 1) | data >> bits << bits
    m.insert(int(i), kind=Kind.MMIO_W, pe=pe, addr=0x08000000 + 4096 * qpn, data=word, flags=0xFF)
    assert Check.DB_AMBIGUOUS in run_mutant(m, False).counts


def test_good_traffic_stays_in_the_batch_engine() -> None:
    """64-byte WQEs over 8 QPs, in small parts: no record falls back to the exact (slow) engine."""
    sim = simulate(qps=4, wqes=250, sizes=(64, 64), depth=64, cq_depth=64, mtus=(5,), burst=8)
    judge = Judge(sim.configs)
    for part in np.array_split(sim.records, 60):
        judge.feed(part, sim.side)
    judge.flush()
    assert judge.batch_records == sim.records.size, judge.batch.why


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_wqes_fetched_again(exact: bool, late: bool) -> None:
    """A burst repeated before its WQEs are sent is legal and regular; once they are retired, not."""
    sim = simulate(qps=2, wqes=120, sizes=(64, 64), depth=64, cq_depth=64, mtus=(5,), burst=8)
    records = sim.records
    fetches = np.flatnonzero((records["kind"] == Kind.AXI_R) & (records["id"] == 0))
    chosen = fetches[fetches.size // 2]
    place = records.size if late else chosen + 1
    again = records[chosen : chosen + 1].copy()
    if late:
        again["time"] = again["aux0"] = records["time"][-1]
    stream = np.concatenate((records[:place], again, records[place:]))
    judge = Judge(sim.configs, exact=exact)
    judge.feed(stream, sim.side)
    judge.flush()
    if late:
        assert set(judge.counts) == {Check.READ_FETCH}, judge.report()
    else:
        assert not judge.findings, judge.report()
        assert exact or judge.batch_records == stream.size, judge.batch.why
