"""The judge on SEND, WRITE with immediate and receive queues: legal streams, errors, planted faults.

Stimulus: legal streams of simulated NICs with receive queues of every version, stride, MTU, near the wraps of
the RQ index; RNR NAKs; receive WQEs that fail; then the same streams damaged in one place.
Checks: legal streams give no finding under any split, exact and batch engine alike; each fault turns exactly
its check red.
Timing: none but the order of records, and the RNR wait. Not proved here: anything about RTL.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from pymodel.nic.judge import RECORD, Check, Judge, Kind
from pymodel.nic.params import DEFAULT_PARAMS, AsyncKind, AxiId, Cnt, Csr
from tests.model.judge_mutants import SMALL, Mutant, columns, end, run, run_mutant
from tests.model.stream_base import Knobs
from tests.model.stream_send import Buffer, SendSim

C = Check
ALL = ("send", "send_imm", "write_imm", "write", "read", "fa64")
BOTH = pytest.mark.parametrize("exact", [True, False], ids=["exact", "batch"])


def simulate(**changes: object) -> SendSim:
    """A fresh legal stream."""
    sim = SendSim(Knobs(**{**SMALL.__dict__, **changes}))  # type: ignore[arg-type]
    sim.run()
    return sim


def receives(m: Mutant, want: Callable[[int, int, np.ndarray], bool]) -> list[int]:
    """CQE writes of receive WQEs that fit: want(error code, dword 0, the CQE)."""
    out = []
    for i in m.rows(Kind.AXI_W, AxiId.CQE):
        word = int(m.cqe(i)[:4].view("<u4")[0])
        if word >> 26 & 1 and want(word & 0xFF, word, m.cqe(i)):
            out.append(int(i))
    return out


def good(code: int, word: int, cqe: np.ndarray) -> bool:
    """A good one."""
    return not code


def bits(
    at: int, value: int, want: Callable[[int, int, np.ndarray], bool] = good
) -> Callable[[Mutant], None]:
    """Flip bits of a byte of a receive CQE in the middle."""

    def mutate(m: Mutant) -> None:
        fits = receives(m, want)
        m.cqe(fits[len(fits) // 2])[at] ^= value

    return mutate


def packet(at: int, value: int, *ops: int) -> Callable[[Mutant], None]:
    """Flip bits of a byte of a sent frame of these opcodes, with an ICRC that fits."""

    def mutate(m: Mutant) -> None:
        i = m.packet(lambda f: bool(f[42] in ops))
        m.frame(i)[at] ^= value
        m.icrc(i)

    return mutate


def syndrome(want: int, got: int) -> Callable[[Mutant], None]:
    """Another syndrome in the first ACK or NAK of one kind that left."""

    def mutate(m: Mutant) -> None:
        fits = [i for i in m.rows(Kind.TXPKT) if m.frame(i)[42] == 0x11 and m.frame(i)[54] == want]
        m.frame(fits[len(fits) // 2])[54] = got
        m.icrc(fits[len(fits) // 2])

    return mutate


def before(kind: Kind) -> Callable[[Mutant], None]:
    """A receive CQE in front of the arrival, or of the last write response, of its message; of one QP."""

    def mutate(m: Mutant) -> None:
        arrived = [int(i) for i in m.rows(Kind.RXPKT) if m.frame(i)[42] in (2, 3, 4, 5, 9, 11)]
        for i, packet in list(zip(receives(m, good), arrived, strict=True)):
            written = [int(j) for j in m.rows(Kind.AXI_B, AxiId.INBOUND) if packet < j < i]
            at = packet if kind == Kind.RXPKT else written[0] if written else i
            others = [j for j in m.rows(Kind.AXI_W, AxiId.CQE) if at < j < i and m.rec["pe"][j]]
            if at < i and not others:
                stamp = int(m.rec["time"][at]) - (kind == Kind.RXPKT)
                m.cqe(i)[16:20] = np.frombuffer(stamp.to_bytes(4, "little"), np.uint8)
                m.move(i, at)
                return
        raise AssertionError

    return mutate


def too_early(m: Mutant) -> None:
    """A time stamp before the arrival of the message."""
    i = m.middle(np.array(receives(m, good)))
    m.cqe(i)[16:20] = 0


def lost(want: Callable[[int, int, np.ndarray], bool] = good) -> Callable[[Mutant], None]:
    """The last receive CQE of a stream never comes, nor what the program does then."""

    def mutate(m: Mutant) -> None:
        last = receives(m, want)[-1]
        mine = m.rec["pe"] == m.rec["pe"][last]
        kinds = [[int(i) for i in m.rows(kind, AxiId.CQE) if mine[i]]
                 for kind in (Kind.AXI_W, Kind.COMMIT, Kind.AXI_B)]  # fmt: skip
        number = kinds[0].index(last)
        after = [int(i) for i in m.rows(Kind.MMIO_W) if i > last and mine[i]]
        m.drop(*(rows[number] for rows in kinds), *after)

    return mutate


def slot_read(m: Mutant) -> None:
    """A slot is read before its doorbell."""
    i = next(i for i in m.rows(Kind.AXI_R, AxiId.FETCH) if int(m.rec["addr"][i]) >> 44 == 0xA)
    m.rec["aux0"][i] = 1


def far_slot(m: Mutant) -> None:
    """A read of the ring's last beat, which nobody has posted."""
    i = next(i for i in m.rows(Kind.AXI_R, AxiId.FETCH) if int(m.rec["addr"][i]) >> 44 == 0xA)
    qp = next(q for q in m.sim.qps if q.ctx.rq_base >> 24 == int(m.rec["addr"][i]) >> 24)
    first = (qp.ctx.rq_start_index + 60) % 64
    m.rec["addr"][i] = (qp.ctx.rq_base + 16 * first & ~63) - (64 if qp.ctx.rq_base & 63 else 0)


def not_posted(m: Mutant) -> None:
    """The RQ doorbells are not there that post the receive WQE of the last message and those behind it."""
    start = next(q for q in m.sim.qps if q.pe).ctx.rq_start_index
    last = start + len(receives(m, good)) - 1
    bells = [int(i) for i in m.rows(Kind.MMIO_W) if m.rec["addr"][i] & 0xFFF == 8 and m.rec["pe"][i]]
    m.drop(*(i for i in bells if (int(m.rec["data"][i]) - start & 0x1FFFF) > last - start))


def buffer_missed(m: Mutant) -> None:
    """Payload of a SEND beside its buffer."""
    fit = [i for i in m.rows(Kind.AXI_W, AxiId.INBOUND) if int(m.rec["addr"][i]) >> 44 == 9]
    m.rec["addr"][fit[len(fit) // 2]] += 64


#: (stream, fault, checks that turn red, checks that may)
FAULTS: dict[str, tuple[str, Callable[[Mutant], None], set[Check], set[Check]]] = {
    "SE missing": ("faults", packet(43, 0x80, 4, 5), {C.TX_HEADER}, set()),
    "SE in the middle": ("long", packet(43, 0x80, 0, 1), {C.TX_HEADER}, set()),
    "SE of a WRITE": ("long", packet(43, 0x80, 6, 7, 10), {C.TX_HEADER}, set()),
    "wrong immediate": ("faults", packet(57, 1, 3, 5, 9), {C.TX_HEADER}, set()),
    "wrong immediate behind RETH": ("faults", packet(70, 1, 11), {C.TX_HEADER}, set()),
    "SEND for WRITE": ("long", packet(42, 0x0A, 0x08), {C.TX_HEADER}, set()),
    "First for Middle": ("long", packet(42, 0x01, 0x01), {C.TX_HEADER}, set()),
    "wrong payload": ("faults", packet(60, 1, 4), {C.TX_PAYLOAD}, set()),
    "CQE: error": ("faults", bits(0, 0xC0), {C.CQE_STATUS}, {C.CQE_FIELD, C.CQ_EVENT}),
    "CQE: flush": ("faults", bits(0, 0xFF), {C.CQE_STATUS}, {C.CQE_FIELD, C.CQ_EVENT}),
    "CQE: SE": ("faults", bits(3, 1), {C.CQE_FIELD}, set()),
    "CQE: type": ("faults", bits(3, 4), {C.CQE_FIELD}, set()),
    "CQE: with_imm": ("faults", bits(3, 8), {C.CQE_FIELD}, set()),
    "CQE: imm_data": ("faults", bits(5, 1), {C.CQE_FIELD}, set()),
    "CQE: msg_len": ("faults", bits(8, 1), {C.CQE_FIELD}, set()),
    "CQE: vni": ("faults", bits(12, 1), {C.CQE_FIELD}, set()),
    "CQE: msg_opcode": ("faults", bits(24, 1), {C.CQE_FIELD}, set()),
    "CQE: owner": ("faults", bits(31, 0x80), {C.CQE_OWNER}, set()),
    "CQE: owner, overrun mode": ("ignore", bits(31, 0x80), {C.CQE_OWNER}, set()),
    "CQE: wqe_id V2": ("faults", bits(25, 0x80), {C.CQE_ORDER}, set()),
    "CQE: wqe_id V1": ("version 1", bits(22, 0x08), {C.CQE_ORDER}, set()),
    "CQE: time stamp": ("faults", too_early, {C.CQE_TS}, set()),
    "CQE before the response of its data": ("single", before(Kind.AXI_B), {C.CQE_DATA}, set()),
    "CQE before its message": ("single", before(Kind.RXPKT), {C.CQE_EARLY}, {C.CQE_FIELD}),
    "CQE lost": ("faults", lost(), {C.OUTSTANDING}, {C.CONTENT, C.COUNTER}),
    "RNR NAK though one is posted": ("faults", syndrome(0x1F, 0x21), {C.NAK}, {C.COUNTER, C.ACK_MISSING}),
    "RNR NAK of another time": ("rnr", syndrome(0x21, 0x22), {C.NAK}, {C.COUNTER, C.NAK_MISSING}),
    "slot read before its doorbell": ("faults", slot_read, {C.READ_FETCH}, set()),
    "read of a slot that is not posted": ("deep", far_slot, {C.READ_FETCH}, set()),
    "taken though none is posted": ("lazy", not_posted, {C.WRITE_OUTSIDE},
                                    {C.ACK_PSN, C.NAK_MISSING, C.CQE_UNEXPECTED, C.COUNTER, C.CONTENT,
                                     C.READ_FETCH, C.DB_AMBIGUOUS, C.CQE_EARLY, C.CQE_FIELD, C.CQE_ROOM,
                                     C.WRITE_STROBE, C.OUTSTANDING, C.CQE_DATA, C.ACK_MISSING, C.CQE_ORDER}),
    "payload beside its buffer": ("faults", buffer_missed, {C.WRITE_OUTSIDE}, {C.CONTENT}),
    "another code": ("short", bits(0, 0x01, lambda code, *_: code == 0xC0), {C.CQE_STATUS}, set()),
    "good in place of flush": ("short", bits(0, 0xFF, lambda code, *_: code == 0xFF), {C.CQE_STATUS},
                               {C.COUNTER}),
    "msg_len of a flush": ("short", bits(8, 1, lambda code, *_: code == 0xFF), {C.CQE_FIELD}, set()),
    "flush lost": ("short", lost(lambda code, *_: code == 0xFF), {C.OUTSTANDING}, {C.CONTENT, C.COUNTER}),
    "another NAK": ("short", syndrome(0x61, 0x63), {C.NAK},
                    {C.COUNTER, C.NAK_MISSING, C.ACK_EARLY}),
}  # fmt: skip
_TAKERS = ("send", "send_imm", "write_imm")
STREAMS: dict[str, dict[str, object]] = {
    "faults": {"ops": _TAKERS, "sizes": (40, 250), "mtus": (1,), "own_cq": True, "versions": (2,)},
    "single": {"ops": _TAKERS, "sizes": (40, 250), "mtus": (1,), "own_cq": True, "qps": 1, "one_way": True,
               "burst": 1},
    "lazy": {"ops": ("send",), "sizes": (40, 250), "mtus": (1,), "own_cq": True, "qps": 1, "one_way": True,
             "rq_depth": 2, "wqes": 20},
    "version 1": {"ops": _TAKERS, "sizes": (40, 250), "mtus": (1,), "own_cq": True, "versions": (1,)},
    "long": {"ops": (*_TAKERS, "write"), "sizes": (600, 2000), "mtus": (1,), "own_cq": True},
    "ignore": {"ops": _TAKERS, "ignore": True, "own_cq": True},
    "rnr": {"ops": _TAKERS, "rnr": True, "rq_depth": 2, "sizes": (0, 250), "wqes": 30},
    "deep": {"ops": _TAKERS, "sizes": (40, 250), "rq_depth": 64, "wqes": 8, "near_wrap": False},
    "short": {"ops": ("send", "send_imm"), "sizes": (40, 2000), "own_cq": True, "one_way": True,
              "recv_faults": {(1, 0, 9): "short"}},
}  # fmt: skip


@functools.cache
def stream(name: str) -> SendSim:
    """A legal stream; damaged in copies only."""
    return simulate(**STREAMS[name])


@BOTH
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault(name: str, exact: bool) -> None:
    """Exactly the check of the fault turns red."""
    shape, mutate, red, also = FAULTS[name]
    m = Mutant(stream(shape))
    mutate(m)
    judge = run_mutant(m, exact)
    assert red <= set(judge.counts) <= red | also, judge.report()


@BOTH
def test_sixteen_may_wait(exact: bool) -> None:
    """Sixteen received messages wait for CQ room, one more gets an RNR NAK; no sooner."""
    sim = simulate(
        ops=_TAKERS, rnr=True, rq_depth=64, sizes=(0, 250), wqes=60, own_cq=True, depth=64, cq_depth=64,
        slow_cq=600, recv_cq=2,
    )  # fmt: skip
    assert sum(c[Cnt.RNR_TX] for c in sim.counters) > 5
    judge = run(sim, exact)
    assert not judge.counts, judge.report()
    later = Judge(sim.configs, replace(DEFAULT_PARAMS, max_received=17), exact=exact)
    later.feed(sim.records, sim.side)
    assert set(end(later, sim).counts) >= {C.NAK}
    fewer = Judge(sim.configs, replace(DEFAULT_PARAMS, max_received=15), exact=exact)
    fewer.feed(sim.records, sim.side)
    assert set(end(fewer, sim).counts) & {C.ACK_PSN, C.WRITE_OUTSIDE}, "one too many was taken"


class Unsolicited(SendSim):
    """SE does not fire."""

    def solicits(self, b: Buffer) -> bool:
        return False


@BOTH
def test_solicited_event_missing(exact: bool) -> None:
    """An arm for solicited ones fires on SE; that it does not is seen."""
    shape = {"ops": ("send",), "arm_recv": 0.6, "own_cq": True, "latency": 200}
    knobs = Knobs(**{**SMALL.__dict__, **shape})  # type: ignore[arg-type]
    assert not run(SendSim(knobs).run(), exact).counts
    judge = run(Unsolicited(knobs).run(), exact)
    assert set(judge.counts) == {C.CQ_EVENT}, judge.report()


SHAPES: dict[str, dict[str, object]] = {
    "mixed": {"ops": ALL, "words": 2},
    "four": {"ops": ALL, "n_pes": 4, "qps": 1, "wqes": 20},
    "sends": {"ops": ("send",), "sizes": (1, 5000), "mtus": (1, 2)},
    "empty": {"ops": ("send", "send_imm", "write_imm"), "sizes": (0, 0)},
    "own CQ": {"ops": ALL, "own_cq": True},
    "shared CQ": {"ops": ALL, "shared_cq": True, "cq_depth": 64},
    "shallow": {"ops": ALL, "rq_depth": 2},
    "slow": {"ops": ALL, "latency": 400, "rq_depth": 64, "own_cq": True},
    "silent": {"ops": ALL, "silent": 0.5},
    "ignore": {"ops": ALL, "ignore": True, "own_cq": True},
    "events": {"ops": ALL, "arm": 0.4, "latency": 10},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_legal_stream(shape: str) -> None:
    """No finding; both engines leave the same state."""
    sim = simulate(**SHAPES[shape])
    fast, exact = run(sim), run(sim, exact=True)
    assert not fast.counts, fast.report()
    assert not exact.counts, exact.report()
    a, b = columns(fast), columns(exact)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], name)


@pytest.mark.parametrize("seed", range(6))
def test_any_split(seed: int) -> None:
    """Effects cross batches."""
    sim = simulate(ops=ALL, seed=seed, own_cq=seed % 2 == 1)
    rng = np.random.default_rng(seed)
    splits = np.cumsum(rng.choice([1, 2, 7, 60, 150, 700], 4000))
    judge = run(sim, splits=splits[splits < sim.records.size].tolist())
    assert not judge.counts, judge.report()


def test_qps_without_it_stay_in_the_batch_engine() -> None:
    """A QP that has a receive queue but never posts or gets a message costs nothing."""
    sim = simulate(ops=("write", "read"), rq_depth=0)
    judge = run(sim)
    assert not judge.counts and judge.batch_records == sim.records.size, judge.batch.why


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_rnr(seed: int, exact: bool) -> None:
    """Messages without a receive WQE: RNR NAK, again after its time."""
    sim = simulate(
        ops=("send", "send_imm", "write_imm"), seed=seed, rnr=True, rq_depth=2, sizes=(0, 250), wqes=30
    )
    assert sum(c[Cnt.RNR_TX] for c in sim.counters) > 5
    judge = run(sim, exact)
    assert not judge.counts, judge.report()


@BOTH
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", ["short", "lkey", "slot"])
def test_legal_error(fault: str, seed: int, exact: bool) -> None:
    """A receive WQE that fails: its CQE, the NAK, the flush of both queues at both ends."""
    sim = simulate(
        seed=seed, ops=("send", "send_imm"), sizes=(40, 2000), one_way=True,
        recv_faults={(1, 0, 9 + seed): fault},
    )  # fmt: skip
    judge = run(sim, exact)
    assert not judge.counts, judge.report()
    assert sum(c[Cnt.FLUSH] for c in sim.counters)


@BOTH
@pytest.mark.parametrize("seed", range(6))
def test_region_of_the_buffers_goes(seed: int, exact: bool) -> None:
    """Messages that meet the invalidation of their buffers' region: taken, or NAK 3 and d6."""
    sim = simulate(
        seed=seed, ops=("send", "send_imm"), sizes=(40, 2000), one_way=True, invalidate=250 + 70 * seed,
        own_cq=seed % 2 == 1,
    )  # fmt: skip
    assert sum(c[Cnt.NAK_OP_TX] for c in sim.counters)
    judge = run(sim, exact)
    assert not judge.counts, judge.report()


def ring(sim: SendSim, steps: list[int], reads: Sequence[int] = ()) -> Judge:
    """RQ doorbells of one idle QP, each so many indices from its start; then words read from ASYNC_POP."""
    qp = sim.qps[0]
    records = np.zeros(len(steps) + len(reads), RECORD)
    records["time"], records["pe"] = 1000 + 100 * np.arange(records.size), qp.pe
    for i, step in enumerate(steps):
        data = (qp.ctx.rq_start_index + step & 0x1FFFF) | qp.qpn << 17
        row = (Kind.MMIO_W, 0x08000008 + 4096 * qp.qpn, data, 0xFF)
        records["kind"][i], records["addr"][i], records["data"][i], records["flags"][i] = row
    for i, word in enumerate(reads, len(steps)):
        records["kind"][i], records["addr"][i], records["data"][i] = Kind.MMIO_R, Csr.ASYNC_POP, word
    judge = Judge(sim.configs)
    judge.feed(records, np.zeros(64, np.uint8))
    judge.finish()
    return judge


@pytest.mark.parametrize("steps, due", [
    ([16], {}), ([3, 16, 16], {}), ([-1], {Cnt.DB_STALE: 1}), ([16, 17], {Cnt.DB_OVERRUN: 1}),
    ([1 << 16], {Cnt.DB_OVERRUN: 1}), ([(1 << 16) + 1], {Cnt.DB_STALE: 1}),
    ([4, (1 << 16) + 4, (1 << 16) + 5], {Cnt.DB_OVERRUN: 1, Cnt.DB_STALE: 1}),
])  # fmt: skip
def test_rq_doorbells(steps: list[int], due: dict[Cnt, int]) -> None:
    """Up to depth, no work, overrun to half of the width, stale beyond; an overrun ends the QP."""
    sim = SendSim(Knobs(rq_depth=16))
    judge, qp = ring(sim, steps), sim.qps[0]
    found = judge.expected_counters(qp.pe)
    assert {n: int(found[n]) for n in Cnt if found[n]} == due
    over = Cnt.DB_OVERRUN in due
    posted = max((s for s in steps if 0 <= s <= 16), default=0) if over else 0
    assert judge.counts[C.OUTSTANDING] == posted, "in ERR everything posted must flush"
    assert judge.state.asyncs[qp.pe] == [(AsyncKind.RQ_OVERRUN, qp.qpn)] * over
    told = ring(sim, steps, [1 << 63 | 5 << 32 | qp.qpn])
    assert bool(told.counts[C.ASYNC]) is not over


def test_no_receive_queue() -> None:
    """Its doorbells are ignored and counted; a SEND to it gets RNR NAKs for ever."""
    sim = SendSim(Knobs(rq_depth=0))
    judge = ring(sim, [1, 5])
    assert int(judge.expected_counters(sim.qps[0].pe)[Cnt.DB_RQ]) == 2 and not judge.counts
