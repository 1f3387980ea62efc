"""A CQ without room: completions wait, nobody else does; cq_wait and what follows; CQ events and arming.

Sweep: a CQ left alone for thousands of cycles, room given back in several steps, doorbells that give none;
cq_wait reached, and room just in time; arms of both kinds, before and after CQEs.
Stimulus: WQEs by hand on one QP whose CQEs nobody consumes, beside QPs of the same two NICs that never
pause, in both directions, the QP's own responder side included.
Checks: never more CQEs than there is room for, exactly as many as the doorbell made room for, none lost; data
arrives while completions wait; overrun gives one event, ERR, and discarded completions that are counted;
exactly one CQ event for an arm, after the write response; the judge's.
Timing: overrun between cq_wait and cq_wait + 500 cycles. Not proved: the deepest CQs.
"""

from __future__ import annotations

import random
from typing import Any

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import AsyncKind, AxiId, Cnt, Csr
from pymodel.platform import now, sleep
from tb.sim.platform import Rig
from tb.sim.records import Kind
from tests.nic.raw import FLUSH, PATIENCE, TARGET, Console, RawQp, fill_sources, renew

PES = 2
DEPTH = 8
QPS = 4
#: the last two QPs of each direction are bystanders
BYSTANDERS = (2, 3)


def fabric(seed: int, **changes: Any) -> Fabric:
    """CQ and SQ of the same small depth; formats, strides and indices mixed."""
    return Fabric.build(
        FabricConfig.mixed(2, QPS, seed, sq_depths=(DEPTH,), cq_factors=(1,), mtus=(1024,), **changes)
    )


class Scene:
    """Rig, ends, consoles, and programs beside bystanders."""

    def __init__(self, dut: Any, **changes: Any) -> None:
        self.rig = Rig(dut, fabric(cocotb.RANDOM_SEED, **changes))
        self.rng = random.Random(f"cq full {cocotb.RANDOM_SEED}")
        #: (cycle, level) of event_o of PE 0; cycles of CQE write responses of PE 0
        self.levels: list[tuple[int, int]] = []
        self.responses: list[int] = []

    async def start(self) -> None:
        """Bring-up, sources."""
        await self.rig.start()
        await fill_sources(self.rig, cocotb.RANDOM_SEED)
        self.ends = {key: RawQp(self.rig, *key) for key in self.rig.fabric.qps}
        self.console = Console(self.rig, 0)
        self.rig.sinks.append(self._sink)

    def _sink(self, records: np.ndarray, side: np.ndarray) -> None:
        mine = records[records["pe"] == 0]
        for r in mine[mine["kind"] == Kind.EVENT]:
            self.levels.append((int(r["time"]), int(r["flags"])))
        answers = mine[(mine["kind"] == Kind.AXI_B) & (mine["id"] == AxiId.CQE)]
        self.responses.extend(int(t) for t in answers["time"])

    async def busy(self, qp: RawQp, flag: list[bool]) -> int:
        """Good WQEs until the flag falls; how many."""
        done = 0
        while flag[0]:
            count = self.rng.randrange(1, DEPTH + 1)
            await qp.post(
                *[qp.fields(self.rng.randrange(2500), self.rng.randrange(1 << 15)) for _ in range(count)]
            )
            assert await qp.complete(count) == [0] * count
            done += count
        return done

    async def run(self, job: Any, beside: tuple[tuple[int, int], ...] = ()) -> Any:
        """``job`` on PE 0 while the bystanders, and the QPs of ``beside`` (pe, qp), are busy; its answer."""
        flag = [True]

        async def main(pe: Pe) -> Any:
            mine = [(pe.rank, q) for q in BYSTANDERS] + [key for key in beside if key[0] == pe.rank]
            tasks = [await pe.spawn(self.busy(self.ends[p, 1 - p, q], flag), f"busy {q}") for p, q in mine]
            answer = None
            if pe.rank == 0:
                answer = await job
                flag[0] = False
            counts = [await pe.join(task) for task in tasks]
            assert min(counts) > 0
            return answer, counts

        result = await self.rig.run(main)
        assert result.good, result.problems
        self.counts = [counts for _, counts in result.returns]
        return result.returns[0][0]


@cocotb.test()
async def test_waiting_disturbs_nobody(dut):
    scene = Scene(dut)
    await scene.start()
    qp, rng = scene.ends[0, 1, 0], scene.rng
    peer_heap = scene.rig.fabric.pes[1].heap_base + TARGET + qp.window

    async def job() -> list[int]:
        codes: list[int] = []
        await qp.post(*[qp.fields(64, 64 * k) for k in range(DEPTH)])
        assert await qp.until(DEPTH, PATIENCE)
        # the ring of WQEs is free again, the CQ is not: these run, and wait
        await qp.post(*[qp.fields(64, 4096 + 64 * k) for k in range(DEPTH)])
        await sleep(4000)
        assert qp.visible() == DEPTH
        landed = scene.rig.lib.memory(1, peer_heap + 4096, 64 * DEPTH)
        source = scene.rig.lib.memory(0, qp.fields(64, 4096)["laddr"], 64 * DEPTH)
        assert np.array_equal(landed, source), "the data does not wait for CQ room"
        free = 0
        while len(codes) < 2 * DEPTH:
            # consumed and not given back: no room yet
            step = rng.randrange(1, min(DEPTH, 2 * DEPTH - len(codes)) + 1)
            step = min(step, qp.visible())
            codes += qp.take(step)["error_code"].tolist()
            await sleep(rng.randrange(600))
            assert qp.visible() == min(free + DEPTH, 2 * DEPTH) - len(codes)
            # a doorbell behind the consumer index gives nothing
            await qp.ring_cq(qp.tail - step - rng.randrange(1, 4))
            await sleep(300)
            assert qp.visible() == min(free + DEPTH, 2 * DEPTH) - len(codes)
            await qp.ring_cq()
            free = len(codes)
            if free < 2 * DEPTH:
                assert await qp.until(min(DEPTH, 2 * DEPTH - free), PATIENCE)
            await sleep(300)
            assert qp.visible() == min(DEPTH, 2 * DEPTH - free), "as many as the doorbell made room for"
        return codes

    # the peer's QP keeps writing to this one all the while: its responder side does not wait either
    codes = await scene.run(job(), beside=((1, 0), (0, 1), (1, 1)))
    assert codes == [0] * 2 * DEPTH
    assert min(min(counts) for counts in scene.counts) >= 2 * DEPTH, f"others went on: {scene.counts}"
    assert await scene.console.asyncs() == []
    assert await scene.console.counter(Cnt.DB_CQ_BACKWARD) > 0
    await scene.rig.check()


@cocotb.test()
async def test_cq_wait_ends_in_overrun(dut):
    limit = 3000
    scene = Scene(dut, cq_wait=limit)
    await scene.start()
    qp, back, console = scene.ends[0, 1, 0], scene.ends[1, 0, 0], scene.console

    async def in_time() -> None:
        """Room comes before the time is over; the time starts anew each time."""
        await qp.post(*[qp.fields(8) for _ in range(DEPTH)])
        assert await qp.until(DEPTH, PATIENCE)
        await qp.post(*[qp.fields(8) for _ in range(DEPTH)])
        for _ in range(DEPTH):
            await sleep(limit - 700)
            assert qp.visible() == DEPTH
            assert qp.take(1)["error_code"].tolist() == [0]
            await qp.ring_cq()
            assert await qp.until(DEPTH, PATIENCE)
        assert await qp.complete(DEPTH) == [0] * DEPTH

    await scene.run(in_time())
    assert await console.states(qp.plan.qpn) == "RTS"
    assert await console.asyncs() == []
    await console.write(Csr.EVENT_MASK, 2)
    await scene.rig.lib.cycles(50)

    async def too_late() -> int:
        await qp.post(*[qp.fields(8) for _ in range(DEPTH)])
        assert await qp.until(DEPTH, PATIENCE)
        since = await now()
        await qp.post(*[qp.fields(8) for _ in range(3)])
        await sleep(limit + 1500)
        assert qp.visible() == DEPTH
        # room comes too late: no CQE any more; new WQEs are discarded, too
        assert qp.take(DEPTH)["error_code"].tolist() == [0] * DEPTH
        await qp.ring_cq()
        await qp.post(*[qp.fields(8) for _ in range(2)])
        assert not await qp.until(1, 3000)
        return since

    since = await scene.run(too_late())
    await scene.rig.settle()
    (rise,) = [time for time, level in scene.levels if level and time > since]
    assert limit < rise - since < limit + 500, f"event after {rise - since} cycles"
    assert await console.asyncs() == [(AsyncKind.CQ_OVERRUN, qp.plan.cqn)]
    assert await console.states(qp.plan.qpn) == "ERR"
    assert all([await console.states(scene.ends[0, 1, q].plan.qpn) == "RTS" for q in (1, *BYSTANDERS)])
    assert await console.counter(Cnt.CQE_DISCARD) == 5
    assert await console.counter(Cnt.CQ_OVERRUN) == 1
    # programmed again, it is as good as new
    await renew(scene.rig, qp, back, (17, 0xFFFFFE), cqs=True)

    async def again() -> list[int]:
        await qp.post(*[qp.fields(100) for _ in range(DEPTH)])
        return await qp.complete(DEPTH)

    assert await scene.run(again(), beside=((1, 0),)) == [0] * DEPTH
    await scene.rig.check()


@cocotb.test()
async def test_events_and_arming(dut):
    scene = Scene(dut)
    await scene.start()
    rig, console, qp, other = scene.rig, scene.console, scene.ends[0, 1, 0], scene.ends[0, 1, 1]
    bit = 1 << qp.plan.cqn
    await console.write(Csr.EVENT_MASK, 1)

    async def cqes(count: int, **changes: Any) -> list[int]:
        await qp.post(*[qp.fields(64, **changes) for _ in range(count)])
        await qp.until(count)
        return qp.take(count)["error_code"].tolist()

    async def once(job: Any) -> Any:
        """A job alone on PE 0."""

        async def main(pe: Pe) -> Any:
            return await job if pe.rank == 0 else None

        result = await rig.run(main)
        await rig.lib.cycles(300)
        rig.drain()
        return result.returns[0]

    async def fired() -> bool:
        """Whether the CQ event is pending; nothing else is, cause and output agree."""
        pending = await console.read(Csr.CQ_EVENT)
        cause = await console.read(Csr.EVENT_CAUSE)
        assert pending in (0, bit) and cause == (pending != 0)
        assert (scene.levels[-1][1] if scene.levels else 0) == (pending != 0)
        return pending != 0

    # not armed when programmed; 0 and 1 do not arm
    await once(cqes(2))
    await once(qp.ring_cq(sta=0))
    await once(cqes(1))
    await once(qp.ring_cq(sta=1))
    await once(cqes(1))
    assert not await fired()

    # CQEs from before the arm do not count
    await once(qp.ring_cq(sta=2))
    assert not await fired()
    # the next one does, once; the event comes after its write response
    before = rig.lib.cycle
    await once(cqes(1))
    assert await fired()
    rise = scene.levels[-1][0]
    first = next(t for t in scene.responses if t > before)
    assert first < rise < first + 50, (before, first, rise)
    await console.write(Csr.CQ_EVENT, (1 << 64) - 1 ^ bit)
    assert await fired(), "only a 1 clears"
    await console.write(Csr.CQ_EVENT, bit)
    assert not await fired()
    await once(cqes(2))
    assert not await fired(), "one event for an arm"
    await once(qp.ring_cq(sta=0))

    # a doorbell that is ignored or refused arms nothing; nor does another CQ's
    await once(qp.ring_cq(qp.tail - 1, sta=2))
    await once(qp.ring_cq(qp.tail + 1, sta=2))
    await once(other.ring_cq(sta=2))
    await once(cqes(1))
    assert not await fired()
    assert await console.counter(Cnt.DB_CQ_BACKWARD) == 1
    assert await console.counter(Cnt.DB_CQ_BEYOND) == 1

    # a newer arm replaces the older; "solicited" leaves good requester CQEs alone and fires on an error
    await once(qp.ring_cq(sta=2))
    await once(qp.ring_cq(sta=3))
    await once(cqes(2))
    assert not await fired()
    await once(qp.ring_cq(sta=3))
    assert await once(cqes(1, rkey=0xFFFF_FF00)) == [0xA5]
    assert await fired()
    await console.write(Csr.CQ_EVENT, bit)
    # flush CQEs are errors, too; the mask holds the output back, not the bit
    await console.write(Csr.EVENT_MASK, 0)
    await once(qp.ring_cq(sta=3))
    assert await once(cqes(2)) == [FLUSH] * 2
    assert await console.read(Csr.CQ_EVENT) == bit and scene.levels[-1][1] == 0
    await console.write(Csr.EVENT_MASK, 1)
    await rig.lib.cycles(20)
    rig.drain()
    assert await fired()
    await rig.check()
