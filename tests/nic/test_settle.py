"""The end of a run waits for what is under way, however slow memory and link are, and for the transport.

Sweep: one slow thing at a time: memory, link, visibility of writes, pauses of every channel; the last packet
lost in each direction, once and for good. Stimulus: WRITEs, READs and atomics that nobody waits for, a
latency that is lowered at the end, a CQ that nobody consumes. Checks: the judge misses nothing; a lost tail
has recovered, or has failed with a2, when the run ends; what cannot drain is listed with its place; a run in
which nothing is outstanding does not wait for timers. Timing: latencies of 2500 to 4000 cycles, timers.
"""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from pymodel.platform import sleep
from pymodel.runner import HangError
from tb.sim.platform import SETTLE, Rig, RunFailed
from tests.nic.raw import RawQp, fill_sources
from tests.nic.stage import any_good

PES = 2
SLOW = {
    "memory": {"mem_latency": 3000},
    "link": {"link_latency": 4000},
    "jitter": {"mem_latency_jitter": 4000},
    "commit": {"commit_delay": 3000},
    "pauses": {"mem_stall": 20000, "stall_max": 2500},
}
#: what is lost -> (rule, error code of the last WQE)
LOST = {
    "request": ("direction 0->1: drop once", 0),
    "answer": ("direction 1->0: drop once", 0),
    "all": ("direction 0->1: drop", 0xA2),
}
TIMER, RETRIES = 6, 3


async def start(dut: Any, timer: int = 14, **options: Any) -> Rig:
    """Two NICs with two QPs each."""
    every = {(pe, 1 - pe, q): {"timer": timer, "retry_cnt": RETRIES} for pe in range(PES) for q in range(2)}
    config = FabricConfig(n_pes=PES, qps=2, seed=cocotb.RANDOM_SEED, mtus=(1024,), overrides=every)
    rig = Rig(dut, Fabric.build(config), **options)
    await rig.start()
    await fill_sources(rig, cocotb.RANDOM_SEED)
    return rig


@cocotb.test()
@cocotb.parametrize(what=list(SLOW))
async def test_everything_arrives(dut, what):
    rig = await start(dut, knobs=SLOW[what])
    rng = random.Random(f"settle {cocotb.RANDOM_SEED}")

    async def main(pe: Pe) -> None:
        for q in range(2):
            qp = RawQp(rig, pe.rank, 1 - pe.rank, q)
            await qp.post(*[any_good(qp, rng) for _ in range(6)])

    await rig.run(main, sanitize=False)
    for name in SLOW[what]:
        rig.lib.set_knob(name, 8)
    await rig.check()


@cocotb.test()
@cocotb.parametrize(what=list(LOST))
async def test_lost_tail(dut, what: str) -> None:
    """Nobody waits for the last WQE, whose packet or answer is lost: the run ends when its fate is known."""
    rule, code = LOST[what]
    rig = await start(dut, TIMER, faults=rule)
    qp = RawQp(rig, 0, 1, 0)

    async def main(pe: Pe) -> None:
        if pe.rank == 0:
            await qp.post(qp.fields(64))

    await rig.run(main, sanitize=False)
    assert not qp.ready(), "the run ends before the transport has recovered"
    await rig.check()
    assert qp.take(1)["error_code"].tolist() == [code]
    assert rig.total(Cnt.RETRY) == (RETRIES if code else 1)


@cocotb.test()
async def test_no_wait_for_nothing(dut) -> None:
    """Nothing is outstanding: the end comes after latencies, long before a timer of a million cycles."""
    rig = await start(dut)
    qp = RawQp(rig, 0, 1, 0)

    async def main(pe: Pe) -> None:
        if pe.rank == 0:
            await qp.post(qp.fields(64))

    await rig.run(main, sanitize=False)
    begin = rig.lib.cycle
    await rig.settle()
    assert qp.ready() and rig.lib.cycle - begin < SETTLE


def full(rig: Rig) -> tuple[RawQp, Any]:
    """Two WQEs more than the CQ takes, and the program that posts them."""
    qp = RawQp(rig, 0, 1, 0)

    async def main(pe: Pe) -> None:
        if pe.rank == 0:
            await qp.post(*[qp.fields(64) for _ in range(qp.plan.sq_depth)])
            await qp.until(qp.plan.sq_depth)
            qp.take(qp.plan.sq_depth)
            await qp.post(qp.fields(64), qp.fields(100))
            await sleep(2000)

    return qp, main


@cocotb.test()
async def test_what_cannot_drain_is_listed(dut) -> None:
    """The CQ is full and nobody rings it: the run fails, and the lines say which WQEs wait, and for what."""
    rig = await start(dut)
    qp, main = full(rig)
    await rig.run(main, sanitize=False)
    with pytest.raises(RunFailed) as failed:
        await rig.check()
    lines = [line.strip() for line in str(failed.value).splitlines()]
    plan, first = qp.plan, qp.head - 2
    room = f"CQ {plan.cqn} is full ({plan.cq_depth} CQEs, consumer index {plan.start_cq})"
    place = f"pe 0 qp {plan.qpn:#x} wqe"
    assert any(x.startswith(f"{place} {first} WRITE 64 B psn") and x.endswith(room) for x in lines), lines
    assert any(x.startswith(f"{place} {first + 1} WRITE 100 B") for x in lines), lines
    assert any(x.startswith(f"pe 0 cq {plan.cqn}: {plan.cq_depth} CQEs written, no CQ door") for x in lines)


@cocotb.test()
async def test_a_hang_says_where(dut) -> None:
    """A program that forgets the doorbell waits for ever: the error says that the NIC knows of nothing."""
    rig = await start(dut)
    qp = RawQp(rig, 0, 1, 0)

    async def main(pe: Pe) -> None:
        if pe.rank == 0:
            await qp.put(qp.fields(64))
            await qp.until(1)

    with pytest.raises(HangError) as hang:
        await rig.run(main, sanitize=False, hang_after=2000)
    told = f"pe 0 qp {qp.plan.qpn:#x} wqe {qp.head - 1}: in the ring, no doorbell: not outstanding"
    assert any(note.startswith(told) for note in hang.value.__notes__), hang.value.__notes__
