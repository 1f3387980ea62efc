"""Errors of WRITE end to end: one error CQE in its turn, the rest flushed, nobody disturbed, all reusable.

Sweep: ac, ab, 9f, a7 and b2 found by the requester, a4, a5 and a6 by NAK 1, 2 and 3; each alone, at the head,
in the middle or at the end of a stream of good WQEs; one after the other, and all at once; V1 and V2 mixed.
Change to ERR without a WQE: modify, SQ overrun. Bus error on a CQE write.
Stimulus: WQEs by hand, one QP for each case, and two bystander QPs in each direction that never pause.
Checks: the codes of every CQE in posting order; doorbells to a QP in ERR give flush CQEs; after a reset of
both ends and a set with new PSNs the QP works; asynchronous events exactly as due; the judge's (packets sent
before the fault, NAK, no byte of the refused message, counters).
Timing: none. Not proved: lost packets, retries, SEND; errors of READ and atomics: test_read_errors.py.
"""

from __future__ import annotations

import random
from typing import Any

import cocotb

from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp
from pymodel.nic.params import AsyncKind, AxiId, Cnt, Csr
from pymodel.platform import sleep
from tb.sim.platform import Rig
from tb.sim.records import Kind
from tests.nic.raw import FLUSH, TARGET, RawQp, renew
from tests.nic.stage import BYSTANDERS, DEPTH, PLACES, Case, Stage, clear_errors, error, heap_end, slot_error

PES = 2


def own(qp: RawQp) -> int:
    """Address of a part of the source area that only this QP's bad WQE reads: 4 KiB, page-aligned."""
    return qp.fabric.pes[qp.plan.pe].heap_base + (4 << 20) + qp.window


def own_target(qp: RawQp) -> int:
    """The same at the target."""
    return qp.fabric.pes[qp.plan.peer].heap_base + TARGET + qp.window + (64 << 10)


CASES: dict[str, Case] = {
    "fetch bus error": Case(0xAC, arm=slot_error),
    "wqe_id of the next slot": Case(
        0xAB, lambda qp: {"wqe_id": (qp.head + 1 << 3) & (0xFFFF if qp.plan.version == 1 else 0xFFFFF)}
    ),
    "wqe_id in slots": Case(0xAB, lambda qp: {"wqe_id": (qp.head << 3) + 1 & 0xFFFF}),
    "opcode": Case(0xAB, lambda qp: {"msg_opcode": 99}),
    "inline": Case(0xAB, lambda qp: {"in_line": 1}),
    "ds_data_num": Case(0xAB, lambda qp: {"ds_data_num": 3}),
    "too long": Case(0x9F, lambda qp: dict.fromkeys(("msg_len", "r_len", "l_len"), (1 << 31) + 1)),
    "local length": Case(0x9F, lambda qp: {"l_len": 65}),
    "remote length": Case(0x9F, lambda qp: {"r_len": 63}),
    "local key tag": Case(0xA7, lambda qp: {"lkey": qp.fabric.pes[qp.plan.pe].heap_lkey ^ 1}),
    "local key index": Case(0xA7, lambda qp: {"lkey": qp.fabric.pes[qp.plan.pe].heap_lkey | 0xFFFFFF00}),
    "local end": Case(0xA7, lambda qp: {"laddr": heap_end(qp, qp.plan.pe) - 63}),
    "local start": Case(0xA7, lambda qp: {"laddr": qp.fabric.pes[qp.plan.pe].heap_base - 1}),
    "local wrap": Case(0xA7, lambda qp: {"laddr": (1 << 64) - 32}),
    "gather bus error": Case(
        0xB2, lambda qp: {"laddr": own(qp)}, arm=lambda rig, qp, _: error(rig, qp.plan.pe, own(qp), 64, "r")
    ),
    "gather bus error in mid-message": Case(
        0xB2,
        lambda qp: {"laddr": own(qp), "msg_len": 9000, "l_len": 9000, "r_len": 9000},
        arm=lambda rig, qp, index: error(rig, qp.plan.pe, own(qp) + 4608, 64, "r"),
    ),
    "no right of the QP": Case(0xA4, nak=1, override={"rem_write": False}),
    "remote key tag": Case(0xA5, lambda qp: {"rkey": qp.fabric.pes[qp.plan.peer].heap_rkey ^ 0x80}, nak=2),
    "remote key index": Case(
        0xA5, lambda qp: {"rkey": qp.fabric.pes[qp.plan.peer].heap_rkey | 0x100000}, nak=2
    ),
    "remote end": Case(0xA5, lambda qp: {"raddr": heap_end(qp, qp.plan.peer) - 63}, nak=2),
    "remote start": Case(0xA5, lambda qp: {"raddr": qp.fabric.pes[qp.plan.peer].heap_base - 1}, nak=2),
    "remote wrap": Case(0xA5, lambda qp: {"raddr": (1 << 64) - 32}, nak=2),
    "remote right": Case(
        0xA5, lambda qp: {"raddr": qp.fabric.pes[qp.plan.peer].amo_base, "rkey": amo_rkey(qp)}, nak=2
    ),
    "remote bus error": Case(
        0xA6,
        lambda qp: {"raddr": own_target(qp)},
        arm=lambda rig, qp, index: error(rig, qp.plan.peer, own_target(qp), 64, "w"),
        nak=3,
    ),
}  # fmt: skip
BUSY = range(len(CASES), len(CASES) + BYSTANDERS)


def amo_rkey(qp: RawQp) -> int:
    """rkey of the peer's atomic buffer, which nobody may write from outside."""
    peer = qp.fabric.pes[qp.plan.peer]
    index, mr = next((i, m) for i, m in peer.mrs.items() if m.base == peer.amo_base)
    return mr.rkey(index)


def fabric(seed: int) -> Fabric:
    """A QP for each case, in both directions alternately, then the bystanders."""
    overrides: dict[tuple[int, int, int], dict[str, Any]] = {}
    for q in range(len(CASES) + BYSTANDERS):
        for pe in (0, 1):
            overrides[pe, 1 - pe, q] = {"sq_depth": DEPTH, "cq_depth": DEPTH}
    for q, case in enumerate(CASES.values()):
        peer = 1 - q % 2
        overrides[peer, 1 - peer, q] |= case.override or {}
    config = FabricConfig.mixed(2, len(CASES) + BYSTANDERS, seed, heap_bytes=32 << 20, overrides=overrides)
    return Fabric.build(config)


async def fail(rig: Rig, qp: RawQp, case: Case, before: int, after: int, rng: random.Random) -> list[int]:
    """A stream with the bad WQE in it, by one or two doorbells; gives the codes.

    The bad WQE and those behind it need not ask for a CQE: errors and flushes give one all the same.
    """

    def good(**changes: int) -> dict:
        return qp.fields(rng.choice((0, 8, 64, rng.randrange(1, 2000))), rng.randrange(1 << 14), **changes)

    await qp.put(*[good() for _ in range(before)])
    if rng.randrange(2):
        await qp.ring_sq()
    bad = {**qp.fields(64, 1 << 15, ce=rng.randrange(2)), **case.changes(qp)}
    await qp.put(bad, *[good(ce=rng.randrange(2)) for _ in range(after)])
    await qp.ring_sq()
    return await qp.complete(before + 1 + after)


@cocotb.test()
@cocotb.parametrize(order=["in turn", "at once"])
async def test_error_codes(dut, order):
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), BUSY)
    await stage.start()
    rig, rng = stage.rig, stage.rng
    places = list(PLACES.values())
    rng.shuffle(places)
    jobs, plans, due = [], [], set()
    for q, case in enumerate(CASES.values()):
        qp = stage.ends[q % 2, 1 - q % 2, q]
        before, after = places[q % len(places)]
        if case.nak == 1:
            before = 0  # that QP refuses all of them
        if case.arm is not None:
            case.arm(rig, qp, qp.head + before)
        jobs.append((qp, fail(rig, qp, case, before, after, random.Random(rng.random()))))
        plans.append((qp, case, [0] * before + [case.code] + [FLUSH] * after))
        if case.nak:
            due.add((qp.plan.peer, AsyncKind.QP_ERR, qp.plan.peer_qpn))
    if order == "at once":
        answers = await stage.beside(*jobs)
    else:
        answers = [(await stage.beside(job))[0] for job in jobs]
    for name, (_, _, codes), got in zip(CASES, plans, answers, strict=True):
        assert got == codes, f"{name}: {[hex(c) for c in got]}"
    await rig.settle()
    await stage.events(due)
    for pe in (0, 1):
        console = stage.console[pe]
        for number, counter in ((1, Cnt.NAK_INV_TX), (2, Cnt.NAK_ACC_TX), (3, Cnt.NAK_OP_TX)):
            assert await console.counter(counter) == sum(
                case.nak == number and qp.plan.peer == pe for qp, case, _ in plans
            )
    for qp, case, _ in plans:
        assert await stage.console[qp.plan.pe].states(qp.plan.qpn) == "ERR"
        state = await stage.console[qp.plan.peer].states(qp.plan.peer_qpn)
        assert state == ("ERR" if case.nak else "RTS"), f"peer of QPN {qp.plan.qpn}: {state}"

    # ---- a doorbell in ERR: flush CQEs for the new WQEs, and nothing leaves
    async def more(qp: RawQp) -> list[int]:
        count = rng.randrange(1, DEPTH)
        await qp.post(*[qp.fields(8) for _ in range(count)])
        return await qp.complete(count)

    answers = await stage.beside(*[(qp, more(qp)) for qp, _, _ in plans])
    assert all(set(codes) == {FLUSH} for codes in answers), answers
    # the responders that went to ERR flush as requesters, too
    backs = [stage.ends[qp.plan.peer, qp.plan.pe, qp.plan.qp_idx] for qp, case, _ in plans if case.nak]
    answers = await stage.beside(*[(qp, more(qp)) for qp in backs])
    assert all(set(codes) == {FLUSH} for codes in answers), answers

    # ---- reset, set with other PSNs, use
    clear_errors(rig)

    async def again(qp: RawQp) -> list[int]:
        await qp.post(*[qp.fields(rng.randrange(3000), rng.randrange(1 << 14)) for _ in range(DEPTH)])
        return await qp.complete(DEPTH)

    reused = []
    for qp, case, _ in plans:
        back = stage.ends[qp.plan.peer, qp.plan.pe, qp.plan.qp_idx]
        await renew(rig, qp, back, (rng.randrange(1 << 24), rng.randrange(1 << 24)))
        reused += [end for end in (qp, back) if not (case.nak == 1 and end is qp)]
    answers = await stage.beside(*[(qp, again(qp)) for qp in reused])
    assert all(codes == [0] * DEPTH for codes in answers), answers
    await stage.events(set())
    await rig.check()


@cocotb.test()
async def test_err_without_a_wqe(dut):
    """ERR by modify and by SQ overrun: all that is not complete is flushed; an overrun announces nothing."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), BUSY, knobs={"link_latency": 600})
    await stage.start()
    modified, overrun = stage.ends[0, 1, 0], stage.ends[0, 1, 1]

    async def flight(qp: RawQp, end: Any) -> list[int]:
        await qp.post(*[qp.fields(64) for _ in range(DEPTH // 2)])
        await sleep(300)
        await end
        return await qp.complete(DEPTH // 2)

    async def too_many() -> None:
        # one more than the ring holds
        await overrun.ring_sq(overrun.head + DEPTH // 2 + 1)

    async def to_err() -> None:
        from pymodel.nic.context import command_writes
        from pymodel.platform import mmio_write

        words = stage.rig.fabric.contexts(modified.plan)[0].stage_words()
        words[8] = 2
        for addr, data in command_writes(CmdOp.MODIFY, CmdObj.QP, modified.plan.qpn, words):
            await mmio_write(addr, data)

    answers = await stage.beside(
        (modified, flight(modified, to_err())), (overrun, flight(overrun, too_many()))
    )
    assert answers == [[FLUSH] * (DEPTH // 2)] * 2, answers
    await stage.rig.settle()
    await stage.events({(0, AsyncKind.SQ_OVERRUN, overrun.plan.qpn)})
    assert await stage.console[0].counter(Cnt.DB_OVERRUN) == 1
    await stage.rig.check()


@cocotb.test()
async def test_cqe_write_bus_error(dut):
    """The CQ counts as overrun: an event, QP in ERR, no further CQE; set again after a reset, it works."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), BUSY)
    await stage.start()
    rig, qp, back = stage.rig, stage.ends[0, 1, 0], stage.ends[1, 0, 0]
    written: list[int] = []

    def sink(records: Any, side: Any) -> None:
        mine = records[(records["kind"] == Kind.AXI_W) & (records["id"] == AxiId.CQE) & (records["pe"] == 0)]
        low, high = qp.plan.cq_base & ~63, qp.plan.cq_base + qp.plan.cq_depth * qp.plan.cq_stride
        written.extend(int(a) for a in mine["addr"] if low <= a < high)

    rig.sinks.append(sink)
    # beats are 64 bytes: with stride 32 the neighbour fails, too
    bad = next(
        i for i in range(4, 8) if (qp.plan.start_cq + i) * qp.plan.cq_stride + qp.plan.cq_base & 63 == 0
    )
    slot = (qp.plan.start_cq + bad) % qp.plan.cq_depth
    error(rig, 0, qp.plan.cq_base + slot * qp.plan.cq_stride, 64, "w")

    async def stream() -> tuple[list[int], bool]:
        await qp.post(*[qp.fields(64) for _ in range(bad)])
        codes = await qp.complete(bad)
        await qp.post(qp.fields(64))
        more = await qp.until(1, 5000)
        # in ERR, and its completions go nowhere
        await qp.post(*[qp.fields(64) for _ in range(3)])
        return codes, more or await qp.until(1, 5000)

    (answer,) = await stage.beside((qp, stream()))
    assert answer == ([0] * bad, False), answer
    assert len(written) == bad + 1, "no CQE after the failed one"
    await stage.events({(0, AsyncKind.CQE_BUS_ERR, qp.plan.cqn)})
    console = stage.console[0]
    assert await console.states(qp.plan.qpn) == "ERR"
    assert await console.counter(Cnt.BUS_CQE) == 1
    assert await console.counter(Cnt.CQE_DISCARD) == 3
    clear_errors(rig)
    await renew(rig, qp, back, (5, 6), cqs=True)

    async def again(end: RawQp) -> list[int]:
        await end.post(*[end.fields(100) for _ in range(DEPTH)])
        return await end.complete(DEPTH)

    answers = await stage.beside((qp, again(qp)), (back, again(back)))
    assert answers == [[0] * DEPTH] * 2, answers
    assert not (await console.read(Csr.QP_STATE_ERR))
    await rig.check()
