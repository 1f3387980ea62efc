"""Bus errors at random places, beside stalls, late responses and reordered reads: the right QPs fail.

Sweep: SQ slot (ac), source of a WRITE (b2), sink of a READ and result of an atomic (b3), target of a WRITE,
source of a READ and word of an atomic at the responder (NAK 3: a6); one to three bad beats each, so first,
middle and last packets of messages; memory quick and even, or slow with stalls, reads out of order between
IDs and late write responses; several rounds, in each two QP pairs meet errors, are set again and go on.
Stimulus: rings of WRITEs, READs and atomics on every QP in both directions, answered by errors in parts of
the victims' windows. Checks: CQEs of victims are good ones, then at most one error that the place explains,
then flushes; all others are good; the judge's (packets, bytes, counters, events). Something fails each round.
Each place answers with SLVERR or DECERR; the same error of both kinds gives the same CQEs, events, counters.
Timing: none. Not proved: transport timers that expire while such an error is answered.
"""

from __future__ import annotations

import random
from typing import Any

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.formats.wqe import WqeOp
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from pymodel.platform import sleep
from tests.nic.raw import FLUSH, RawQp, renew
from tests.nic.stage import (
    DECERR,
    DEPTH,
    OWN,
    READS,
    RESULTS,
    SLVERR,
    WORDS,
    WRITES,
    Stage,
    any_good,
    clear_errors,
    error,
    local,
    remote,
    slot_error,
)  # fmt: skip

PES, QPS, ROUNDS = 2, 6, 5
PATIENCE = 300_000
#: place -> what its requester reports
CODES = {
    "slot": 0xAC, "source": 0xB2, "sink": 0xB3, "result": 0xB3, "target": 0xA6, "read source": 0xA6,
    "word": 0xA6,
}  # fmt: skip
#: what the other end, or a requester whose responder is gone, may end with
GONE = {0xA2, 0xA6}
SLOW = {
    "mem_latency": 150, "mem_latency_jitter": 120, "mem_stall": 12000, "mem_ooo": 30000, "commit_delay": 120,
    "link_latency": 60, "link_stall_rx": 6000,
}  # fmt: skip


def work(qp: RawQp, place: str, rng: random.Random) -> list[dict[str, Any]]:
    """A ring of good WQEs; many of them reach for the place."""
    items = []
    for _ in range(DEPTH):
        item = any_good(qp, rng)
        if rng.random() < 0.6:
            if place == "source":
                item = qp.fields(rng.randrange(1, 3000), WRITES, laddr=local(qp, OWN + rng.randrange(4096)))
            elif place == "target":
                item = qp.fields(rng.randrange(1, 3000), WRITES + rng.randrange(4096))
            elif place == "sink":
                item = qp.read(rng.randrange(1, 3000), 0, laddr=local(qp, READS + rng.randrange(4096)))
            elif place == "read source":
                item = qp.read(rng.randrange(1, 3000), 0, raddr=remote(qp, OWN + rng.randrange(4096)))
                item["laddr"] = local(qp, READS + rng.randrange(4096))
            elif place in ("word", "result"):
                item = qp.atomic(WqeOp.FA64, WORDS + 8 * rng.randrange(8), RESULTS + 8 * rng.randrange(64))
        items.append(item)
    return items


def arm(stage: Stage, qp: RawQp, place: str, rng: random.Random) -> None:
    """One to three beats of the place answer with errors of one kind."""
    rig, plan, beats = stage.rig, qp.plan, 64 * rng.randrange(1, 4)
    part, resp = 64 * rng.randrange(4096 // 64), rng.choice((SLVERR, DECERR))
    if place == "slot":
        slot_error(rig, qp, qp.head + rng.randrange(DEPTH), resp)
    elif place == "source":
        error(rig, plan.pe, local(qp, OWN) + part, beats, "r", resp)
    elif place == "sink":
        error(rig, plan.pe, local(qp, READS) + part, beats, "w", resp)
    elif place == "result":
        error(rig, plan.pe, local(qp, RESULTS), 512, "w", resp)
    elif place == "target":
        error(rig, plan.peer, remote(qp, WRITES) + part, beats, "w", resp)
    elif place == "read source":
        error(rig, plan.peer, remote(qp, OWN) + part, beats, "r", resp)
    else:
        error(rig, plan.peer, remote(qp, WORDS), 64, rng.choice("rw"), resp)


def judge_codes(codes: np.ndarray, allowed: set[int]) -> bool:
    """Whether one failed: good ones, at most one error of those allowed, then flushes only."""
    bad = np.flatnonzero(codes)
    if not bad.size:
        return False
    first, rest = int(codes[bad[0]]), codes[bad[0] + 1 :]
    assert first in allowed | {FLUSH} and (rest == FLUSH).all(), f"{codes}, allowed {allowed}"
    return True


def fabric(seed: int) -> Fabric:
    """Everything mixed; a QP whose peer is gone gives up after three timers of 2^9 units."""
    ends = {
        (pe, 1 - pe, q): {"timer": 9, "retry_cnt": 2, "sq_depth": DEPTH, "cq_depth": DEPTH}
        for pe in range(PES)
        for q in range(QPS)
    }
    return Fabric.build(FabricConfig.mixed(PES, QPS, seed, heap_bytes=32 << 20, overrides=ends))


@cocotb.test()
@cocotb.parametrize(slow=[False, True])
async def test_random_errors(dut, slow: bool) -> None:
    """Rounds of errors on two QP pairs, the other QPs never notice."""
    rng = random.Random(f"bus {cocotb.RANDOM_SEED}")
    stage = Stage(dut, fabric(rng.getrandbits(31)), (), knobs=SLOW if slow else {}, stall_limit=PATIENCE)
    await stage.start()
    places = list(CODES)
    rng.shuffle(places)
    failed = 0
    for number in range(ROUNDS):
        victims = {q: places[(2 * number + n) % len(places)] for n, q in enumerate(rng.sample(range(QPS), 2))}
        for q, place in victims.items():
            arm(stage, stage.ends[0, 1, q], place, rng)
        dead: set[int] = set()

        async def traffic(pe: int, q: int, victims: dict[int, str] = victims, dead: set[int] = dead) -> None:
            qp = stage.ends[pe, 1 - pe, q]
            place = victims.get(q, "") if pe == 0 else ""
            await qp.post(*work(qp, place, random.Random(rng.getrandbits(64))))
            found = await qp.collect(DEPTH, PATIENCE)
            await qp.ring_cq()
            if q not in victims:
                assert not found["error_code"].any(), f"QPN {qp.plan.qpn}: {found['error_code']}"
            elif judge_codes(found["error_code"], GONE | ({CODES[place]} if place else set())):
                dead.add(q)

        async def main(pe: Pe) -> None:
            for task in [await pe.spawn(traffic(pe.rank, q), f"QP {q}") for q in range(QPS)]:
                await pe.join(task)

        await stage.rig.run(main, hang_after=PATIENCE)
        failed += len(dead)
        await stage.rig.settle()
        clear_errors(stage.rig)
        for q in victims:
            psns = rng.getrandbits(24), rng.getrandbits(24)
            await renew(stage.rig, stage.ends[0, 1, q], stage.ends[1, 0, q], psns, cqs=True)
        assert stage.rig.judge is not None
        if stage.rig.judge.findings:
            raise AssertionError(stage.rig.judge.findings[0].render())
    assert failed >= ROUNDS, f"only {failed} QPs met an error"
    await stage.rig.check()


#: place -> (where its error is at, of which PE, how it is met)
PLACES = {
    "source": (OWN, 0, "r"), "sink": (READS, 0, "w"), "result": (RESULTS, 0, "w"),
    "target": (WRITES, 1, "w"), "read source": (OWN, 1, "r"), "word read": (WORDS, 1, "r"),
    "word write": (WORDS, 1, "w"),
}  # fmt: skip
#: counters that an error moves
SHOWN = (
    Cnt.BUS_FETCH, Cnt.BUS_GATHER, Cnt.BUS_INBOUND, Cnt.BUS_CQE, Cnt.BUS_ATOMIC, Cnt.BUS_RESULT,
    Cnt.NAK_OP_TX, Cnt.NAK_OP_RX, Cnt.FLUSH, Cnt.CQE_DISCARD,
)  # fmt: skip


def one(qp: RawQp, place: str) -> dict[str, Any]:
    """A WQE that meets the error, of several packets where it can."""
    if place == "source":
        return qp.fields(5000, WRITES, laddr=local(qp, OWN))
    if place == "sink":
        return qp.read(5000, 0, laddr=local(qp, READS))
    if place == "read source":
        return qp.read(5000, 0, laddr=local(qp, READS), raddr=remote(qp, OWN))
    if place in ("result", "word read", "word write"):
        return qp.atomic(WqeOp.FA64, WORDS, RESULTS)
    return qp.fields(5000, WRITES)


@cocotb.test()
async def test_both_kinds_alike(dut) -> None:
    """Each place once with SLVERR and once with DECERR: CQEs, events and counters are the same."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), (), stall_limit=PATIENCE)
    await stage.start()
    qp, back, rig = stage.ends[0, 1, 0], stage.ends[1, 0, 0], stage.rig
    good = qp.read(64, 0, laddr=local(qp, READS + 8192))
    for place in ("slot", "cqe", *PLACES):
        outcome = []
        for resp in (SLVERR, DECERR):
            before = [await console.counter(n) for console in stage.console for n in SHOWN]
            items = [good, good, one(qp, place), good, good]
            if place == "slot":
                slot_error(rig, qp, qp.head + 2, resp)
            elif place == "cqe":
                error(rig, 0, qp.plan.cq_base + (qp.tail + 2) % DEPTH * qp.plan.cq_stride, 1, "w", resp)
            else:
                offset, pe, on = PLACES[place]
                start = remote(qp, offset) if pe else local(qp, offset)
                error(
                    rig,
                    pe,
                    start + (0 if place in ("result", "word read", "word write") else 4096),
                    8,
                    on,
                    resp,
                )

            async def main(pe: Pe, items: list[dict[str, Any]] = items, place: str = place) -> None:
                if pe.rank == 0:
                    await qp.post(*items)
                    await (sleep(3000) if place == "cqe" else qp.until(len(items), PATIENCE))

            await rig.run(main, sanitize=False, hang_after=PATIENCE)
            await rig.settle()
            clear_errors(rig)
            codes = [] if place == "cqe" else qp.take(len(items))["error_code"].tolist()
            events = [await console.asyncs() for console in stage.console]
            after = [await console.counter(n) for console in stage.console for n in SHOWN]
            outcome.append((codes, events, [b - a for a, b in zip(before, after, strict=True)]))
            await renew(rig, qp, back, (resp, 7 * resp), cqs=True)
        assert outcome[0] == outcome[1], f"{place}: SLVERR {outcome[0]}, DECERR {outcome[1]}"
        codes, _, counted = outcome[0]
        if place == "cqe":
            assert counted[SHOWN.index(Cnt.BUS_CQE)] >= 1
        else:
            due = {"slot": 0xAC, "source": 0xB2, "sink": 0xB3, "result": 0xB3}.get(place, 0xA6)
            assert codes == [0, 0, due, FLUSH, FLUSH], f"{place}: {codes}"
    await rig.check()
