"""A reset waits for what the NIC holds of its QP, the receive path included; resets under traffic (nic.md 6).

Sweep: 1 to 12 packets of another QP before those of the QP under reset, so that they wait in the queue of
headers, in the registers before it, or at the port; fast and slow memory under traffic.
Stimulus: an atomic of slow memory, a WRITE behind it that holds up the receive path, a WRITE of another QP
behind that; RESET and SET of the other QP, with the PSN that the waiting packet has. And: READs, atomics and
WRITEs of six QPs on their way, both ends of all reset at a random time, then set with other PSNs and used.
And a READ whose responses wait in gather while its QP is reset, and a WRITE behind it.
Checks: the reset takes as long as the packet waits; it is not executed by the QP as it is set again, which
works. Under traffic: no byte of the heap changes behind the resets; later WQEs complete well.
The judge takes part in all. Timing: none. Not proved: packets that arrive while a reset waits.
"""

from __future__ import annotations

import random

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.formats import packet
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp
from pymodel.nic.params import Cnt
from tb.sim.platform import Rig
from tests.nic.raw import Console, RawQp, fill_sources, renew
from tests.nic.stage import any_good
from tests.nic.test_regressions import TARGET, Injector

PES = 2
#: cycles of a memory access, and for the frames to be in the NIC
MEMORY, ARRIVAL = 600, 200


@cocotb.test()
@cocotb.parametrize(before=[1, 6, 7, 8, 12])
async def test_packets_in_the_receive_path(dut, before):
    fabric = Fabric.build(FabricConfig(n_pes=2, qps=2, seed=cocotb.RANDOM_SEED, mtus=(256,)))
    rig = Rig(dut, fabric, knobs={"mem_latency": MEMORY})
    await rig.start()
    wires, console = Injector(rig), Console(rig, 0)
    target = rig.lib.memory(0, fabric.pes[0].heap_base + TARGET + 4096, 64)
    wires.send(wires.request(0, packet.Bth.FETCH_ADD, 0, swap_add=1), True)
    for _ in range(before):
        wires.send(wires.request(0, packet.Bth.WRITE_ONLY, 64, va=fabric.pes[0].heap_base + TARGET), True)
    wires.send(wires.request(1, packet.Bth.WRITE_ONLY, 64))
    await rig.lib.cycles(ARRIVAL)
    assert not target.any(), "nothing holds up the receive path"
    plan = fabric.qps[0, 1, 1]
    start = rig.lib.cycle
    assert await console.command(CmdOp.RESET, CmdObj.QP, plan.qpn) == 0
    if before <= 8:
        assert rig.lib.cycle - start > MEMORY // 2, "the reset did not wait"
    context, _ = fabric.contexts(plan)
    assert await console.command(CmdOp.SET, CmdObj.QP, plan.qpn, context.stage_words()) == 0
    left = target.copy()
    await rig.lib.cycles(4 * MEMORY)
    await rig.settle()
    if before <= 8:
        assert (target == left).all(), "a packet from before the reset was executed after it"
        assert await console.counter(Cnt.DROP_QP) == 1
    await wires.good(1)
    await rig.check()


@cocotb.test()
@cocotb.parametrize(slow=[False, True])
async def test_under_traffic(dut, slow):
    qps, depth, seed = 6, 16, cocotb.RANDOM_SEED
    overrides = {(pe, 1 - pe, q): {"sq_depth": depth, "cq_depth": depth} for pe in (0, 1) for q in range(qps)}
    fabric = Fabric.build(
        FabricConfig(n_pes=2, qps=qps, seed=seed, mtus=(256,), heap_bytes=16 << 20, overrides=overrides)
    )
    knobs = {"mem_latency": 300, "mem_latency_jitter": 600, "commit_delay": 300} if slow else {}
    rig = Rig(dut, fabric, knobs={"link_latency": 60, **knobs})
    await rig.start()
    await fill_sources(rig, seed)
    rng = random.Random(f"reset {seed}")
    ends = {key: RawQp(rig, *key) for key in fabric.qps}
    for _ in range(4):
        delay = rng.randrange(6000 if slow else 1500)

        async def post(pe: Pe, delay: int = delay) -> None:
            for q in range(qps):
                qp = ends[pe.rank, 1 - pe.rank, q]
                await qp.post(*[any_good(qp, rng, ce=rng.randrange(2)) for _ in range(depth)])
            await pe.sleep(delay)

        async def use(qp: RawQp) -> None:
            await qp.post(*[any_good(qp, rng) for _ in range(depth)])
            assert not (await qp.collect(depth, 300_000))["error_code"].any()

        async def again(pe: Pe) -> None:
            tasks = [await pe.spawn(use(ends[pe.rank, 1 - pe.rank, q]), f"QP {q}") for q in range(qps)]
            for task in tasks:
                await pe.join(task)

        await rig.run(post, sanitize=False)
        for qp in ends.values():
            assert await Console(rig, qp.plan.pe).command(CmdOp.RESET, CmdObj.QP, qp.plan.qpn) == 0
        heaps = [rig.lib.memory(pe.rank, pe.heap_base, pe.heap_size) for pe in fabric.pes]
        before = [heap.copy() for heap in heaps]
        await rig.lib.cycles(3000)
        rig.drain()
        assert all(np.array_equal(old, new) for old, new in zip(before, heaps, strict=True)), "written later"
        for q in range(qps):
            psns = rng.getrandbits(24), rng.getrandbits(24)
            await renew(rig, ends[0, 1, q], ends[1, 0, q], psns, cqs=True)
        await rig.run(again, sanitize=False)
    await rig.check()


@cocotb.test()
async def test_answers_behind_a_dropped_read(dut):
    """A reset drops READ responses that wait in gather: no ACK of a WRITE behind them leaves."""
    fabric = Fabric.build(FabricConfig(n_pes=2, qps=2, seed=cocotb.RANDOM_SEED, mtus=(256,)))
    rig = Rig(dut, fabric, knobs={"mem_latency": MEMORY})
    await rig.start()
    wires, console, plan = Injector(rig), Console(rig, 0), fabric.qps[0, 1, 1]
    context, _ = fabric.contexts(plan)
    for delay in range(20, 900, 40):
        # responses of the other QP fill gather
        wires.send(wires.request(0, packet.Bth.READ_REQUEST, 0, dma_len=16 << 10))
        wires.psn[0] += 64
        await rig.lib.cycles(100)
        wires.send(wires.request(1, packet.Bth.READ_REQUEST, 0, dma_len=64), True, 1)
        wires.send(wires.request(1, packet.Bth.WRITE_ONLY, 64), True, 1)
        await rig.lib.cycles(delay)
        assert await console.command(CmdOp.RESET, CmdObj.QP, plan.qpn) == 0
        await rig.lib.cycles(2 * MEMORY)
        assert await console.command(CmdOp.SET, CmdObj.QP, plan.qpn, context.stage_words()) == 0
        wires.psn[1] = plan.rq_psn
    await wires.good(1)
    await rig.check()
