"""Room in a full CQ, and the end of cq_wait, in every cycle of a window; overrun of a CQ that QPs share.

Sweep: the doorbell that gives room, for one CQE or all, alone or in steps back to back, in each cycle around
the completions that need it; with cq_wait in each cycle around its end, where either is right but nothing in
between; four QPs on one CQ that wait for room together, get it in steps or not at all.
Stimulus: WQEs by hand into full CQs; beside the shared CQ a QP on a CQ of its own and one whose CQ ignores
overrun stream without a pause.
Checks: as many CQEs as there is room for, none lost, none twice, in order for each QP; an overrun gives
one event, one count, every QP with it as send or receive CQ in ERR, each completion that is left discarded
and counted, no CQE any more; all that share no CQ with it go on; the CQ as good as new once it is
programmed again; the judge's.
Timing: default latencies. Not proved: completions of receives (test_send.py).
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.formats import cqe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp
from pymodel.nic.params import AsyncKind, Cnt
from pymodel.platform import Watch, now, sleep, wait
from tests.nic.raw import PATIENCE, RawQp, renew
from tests.nic.stage import Stage, any_good

PES = 2
DEPTH = 8
#: cycles of a sweep
WINDOW = 64
#: completions that find the CQ full
MORE = 3
LIMIT = 900
#: QPs that share a CQ, one beside them, one that ignores overrun, one whose receive CQ is the shared one
SHARED, BESIDE, SINGLE, TAKER = range(4), 4, 5, 6
ROUNDS = 12


def fabric(qps: int, seed: int, **changes: Any) -> Fabric:
    """CQs just as deep as the SQs."""
    return Fabric.build(
        FabricConfig.mixed(PES, qps, seed, sq_depths=(DEPTH,), cq_factors=(1,), mtus=(256,), **changes)
    )


class Full:
    """One QP whose CQ is full when more of its WQEs complete."""

    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self.stage, self.rng = stage, rng
        self.qp: RawQp = stage.ends[0, 1, 0]
        self.took = 0

    async def run(self, job: Any) -> Any:
        """A job on PE 0."""

        async def main(pe: Pe) -> Any:
            return await job if pe.rank == 0 else None

        return (await self.stage.rig.run(main, sanitize=False)).returns[0]

    async def measure(self) -> None:
        """Cycles from the doorbell to the last of some CQEs."""

        async def job() -> None:
            start = await now()
            await self.qp.post(*[self.qp.fields(8) for _ in range(MORE)])
            assert await self.qp.until(MORE, PATIENCE)
            self.took = await now() - start
            assert not self.qp.take(MORE)["error_code"].any()
            await self.qp.ring_cq()

        await self.run(job())

    async def fill(self) -> None:
        """All CQEs of the ring are there and consumed, which the NIC does not know; more WQEs run."""
        qp = self.qp
        await qp.post(*[any_good(qp, self.rng, (1, 2)) for _ in range(DEPTH)])
        assert await qp.until(DEPTH, PATIENCE)
        assert not qp.take(DEPTH)["error_code"].any()
        await qp.post(*[qp.fields(8) for _ in range(MORE)])


@cocotb.test()
@cocotb.parametrize(steps=[False, True])
async def test_room_in_each_cycle(dut, steps: bool) -> None:
    """Room for some or all of the completions, from before the first of them to behind the last."""
    stage = Stage(dut, fabric(1, cocotb.RANDOM_SEED), ())
    await stage.start()
    rng = random.Random(f"room {cocotb.RANDOM_SEED}")
    full = Full(stage, rng)
    qp = full.qp
    await full.measure()

    async def job(offset: int, room: int) -> None:
        await full.fill()
        await sleep(offset)
        first = qp.tail - DEPTH
        for index in range(first + 1 if steps else first + room, first + room + 1):
            await qp.ring_cq(index)
        await sleep(800)
        assert qp.visible() == min(room, MORE), f"{qp.visible()} CQEs, room for {room}, {offset} cycles"
        await qp.ring_cq()
        assert not (await qp.collect(MORE))["error_code"].any()
        await qp.ring_cq()

    for number in range(WINDOW):
        room = 1 + (number + rng.randrange(2)) % (DEPTH - 1)
        await full.run(job(max(full.took - WINDOW * 3 // 4, 1) + number, room))
    await stage.events(set())
    await stage.rig.check()


@cocotb.test()
async def test_end_of_cq_wait_in_each_cycle(dut) -> None:
    """Room comes about when the time is over: overrun as a whole, or not at all."""
    stage = Stage(dut, fabric(1, cocotb.RANDOM_SEED, cq_wait=LIMIT), ())
    await stage.start()
    rng = random.Random(f"end of wait {cocotb.RANDOM_SEED}")
    full = Full(stage, rng)
    qp, back, console, rig = full.qp, stage.ends[1, 0, 0], stage.console[0], stage.rig
    await full.measure()
    overruns = 0

    async def late(offset: int) -> None:
        await full.fill()
        await sleep(full.took + LIMIT + offset)
        await qp.ring_cq()

    async def rest() -> None:
        assert not (await qp.collect(MORE))["error_code"].any()
        await qp.ring_cq()

    for offset in range(-WINDOW * 3 // 4, WINDOW // 2):
        await full.run(late(offset))
        events = await console.asyncs()
        state = await console.states(qp.plan.qpn)
        if events:
            overruns += 1
            assert events == [(AsyncKind.CQ_OVERRUN, qp.plan.cqn)] and state == "ERR", (events, state)
            await rig.settle()
            assert not qp.visible(), f"a CQE after the overrun, {offset} cycles"
            assert await console.asyncs() == []
            await renew(rig, qp, back, (rng.getrandbits(24), rng.getrandbits(24)), cqs=True)
        else:
            await full.run(rest())
            assert await console.states(qp.plan.qpn) == "RTS"
        assert await console.counter(Cnt.CQ_OVERRUN) == overruns
        assert await console.counter(Cnt.CQE_DISCARD) == MORE * overruns
    assert 0 < overruns < WINDOW, f"{overruns} overruns: the window does not hold the end of the time"
    await stage.events(set())
    await rig.check()


class Common:
    """Four QPs on the CQ of the first of them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.rig = stage.rig
        self.ends = [stage.ends[0, 1, q] for q in SHARED]
        self.taker = stage.ends[0, 1, TAKER]
        self.cq = self.ends[0]
        self.left = {qp.plan.qpn: list[int]() for qp in self.ends}

    async def renew(self, rng: random.Random) -> None:
        """Both ends of all are reset, then the CQ is programmed, then all are set."""
        rig, cq = self.rig, self.cq
        for qp in self.ends:
            qp.plan = replace(qp.plan, cqn=cq.plan.cqn)
        for qp in (*self.ends, self.taker):
            back = self.stage.ends[1, 0, qp.plan.qp_idx]
            for end in (qp, back):
                console = self.stage.console[end.plan.pe]
                assert await console.command(CmdOp.RESET, CmdObj.QP, end.plan.qpn) == 0
        heap = rig.fabric.pes[0]
        rig.lib.store(0, cq.plan.cq_base, next(d for addr, d in heap.contents if addr == cq.plan.cq_base))
        _, context = rig.fabric.contexts(cq.plan)
        console = self.stage.console[0]
        assert await console.command(CmdOp.SET, CmdObj.CQ, cq.plan.cqn, context.stage_words()) == 0
        for qp in (*self.ends, self.taker):
            back, psns = self.stage.ends[1, 0, qp.plan.qp_idx], (rng.getrandbits(24), rng.getrandbits(24))
            for end, sq, rq in ((qp, *psns), (back, *psns[::-1])):
                context, _ = rig.fabric.contexts(replace(end.plan, sq_psn=sq, rq_psn=rq))
                if end is qp:
                    context = replace(context, send_cq=qp.plan.cqn, recv_cq=cq.plan.cqn)
                words = context.stage_words()
                assert await self.stage.console[end.plan.pe].command(
                    CmdOp.SET, CmdObj.QP, end.plan.qpn, words
                ) == 0  # fmt: skip
                end.head = end.plan.start_index
        for qp in self.ends:
            self.left[qp.plan.qpn] = []
        cq.tail = cq.plan.start_cq

    async def post(self, qp: RawQp, rng: random.Random, count: int) -> None:
        """WQEs of one of them."""
        self.left[qp.plan.qpn] += [qp.head + k for k in range(count)]
        await qp.post(*[any_good(qp, rng, (1, 2)) for _ in range(count)])

    def take(self, count: int) -> None:
        """Consume CQEs: each is the next of its QP, and good."""
        cq, plan = self.cq, self.cq.plan
        slots = [(cq.tail + k) % plan.cq_depth for k in range(count)]
        assert all(cq.ready(cq.tail + k) for k in range(count))
        cq.tail += count
        mask = (1 << (13 if plan.version == 1 else 17)) - 1
        for entry in cqe.unpack(cq.ring[slots], plan.version):
            qpn = next(n for n in self.left if n & 0x7FFF == int(entry["qp_id"]))
            due = self.left[qpn].pop(0)
            assert int(entry["wqe_id"]) >> 3 == due & mask and not entry["error_code"], f"QPN {qpn}: {entry}"


@cocotb.test()
async def test_shared_cq(dut) -> None:
    """Four QPs wait for room in one CQ: steps of room serve all of them, an overrun ends all of them."""
    seed = cocotb.RANDOM_SEED
    version = 1 + seed % 2
    single = {(pe, 1 - pe, SINGLE): {"ignore_overrun": True} for pe in range(PES)}
    stage = Stage(dut, fabric(7, seed, cq_wait=6000, overrides=single, versions=(version,)), ())
    await stage.start()
    rig, console, rng = stage.rig, stage.console[0], random.Random(f"shared {seed}")
    common, flag = Common(stage), [True]
    await common.renew(rng)
    cq, overruns, discarded = common.cq, 0, 0

    async def beside(qp: RawQp) -> int:
        done = 0
        while flag[0]:
            await qp.post(*[any_good(qp, rng) for _ in range(DEPTH)])
            assert await qp.complete(DEPTH) == [0] * DEPTH
            done += 1
        return done

    async def alone(qp: RawQp) -> int:
        done = 0
        ids = 0xFFFF if qp.plan.version == 1 else 0xFFFFF
        window = (Watch(qp.plan.cq_base, qp.plan.cq_stride, 1),)
        while flag[0]:
            due = qp.head << 3 & ids

            def there(due: int = due) -> bool:
                return int(cqe.unpack(qp.ring[:1], qp.plan.version)["wqe_id"][0]) == due

            await qp.post(any_good(qp, rng))
            assert await wait(window, None, there, what="slot 0", peer=1)
            done += 1
        return done

    async def fill() -> None:
        """The CQ is full, and two QPs have WQEs that complete beyond it."""
        for qp in common.ends:
            await common.post(qp, rng, DEPTH // 4)
        assert await cq.until(DEPTH, PATIENCE)
        common.take(DEPTH)
        # an overrun ends those that wait for nothing, too
        for qp in rng.sample(common.ends, 2):
            await common.post(qp, rng, rng.randrange(1, DEPTH))
            await sleep(rng.randrange(60))

    async def steps() -> None:
        await fill()
        told, turns = cq.tail - DEPTH, 0
        while any(common.left.values()) or told < cq.tail:
            turns += 1
            assert turns < 200, f"completions that never come: {common.left}"
            told = min(told + rng.randrange(1, 5), cq.tail)
            await cq.ring_cq(told)
            await sleep(rng.randrange(1, 300))
            common.take(cq.visible())
        await sleep(400)
        assert not cq.visible(), "a CQE too many"

    async def expire() -> None:
        await fill()
        await sleep(6000 + 1000)

    async def after() -> None:
        for qp in rng.sample(common.ends, 2):
            await common.post(qp, rng, 1)
        await cq.ring_cq()
        await sleep(800)

    async def job(turn: Any) -> None:
        await turn
        flag[0] = False

    async def run(turn: Any) -> None:
        flag[0] = True

        async def main(pe: Pe) -> list[int]:
            if pe.rank:
                return [1]
            tasks = [
                await pe.spawn(beside(stage.ends[0, 1, BESIDE]), "beside"),
                await pe.spawn(alone(stage.ends[0, 1, SINGLE]), "alone"),
            ]
            await job(turn)
            return [await pe.join(task) for task in tasks]

        result = await rig.run(main, sanitize=False)
        assert min(result.returns[0]) > 0, "those beside did not go on"

    for number in range(ROUNDS):
        if number % 3:
            await run(steps())
            continue
        await run(expire())
        overruns += 1
        ring = cq.cell.copy()
        assert await console.asyncs() == [(AsyncKind.CQ_OVERRUN, cq.plan.cqn)], f"round {number}"
        states = [await console.states(qp.plan.qpn) for qp in (*common.ends, common.taker)]
        assert states == ["ERR"] * (len(SHARED) + 1), f"round {number}: {states}"
        await run(after())
        await rig.settle()
        discarded += sum(map(len, common.left.values()))
        assert await console.asyncs() == [] and np.array_equal(cq.cell, ring), f"round {number}"
        assert await console.counter(Cnt.CQ_OVERRUN) == overruns
        assert await console.counter(Cnt.CQE_DISCARD) == discarded
        await common.renew(rng)
    for q in (BESIDE, SINGLE):
        assert await console.states(stage.ends[0, 1, q].plan.qpn) == "RTS"
    await stage.events(set())
    await rig.check()
