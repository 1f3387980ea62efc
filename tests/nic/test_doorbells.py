"""Doorbells through the BAR: bursts over all QPs, and every kind that is ignored or refused, to the count.

Sweep: 64 QPs; SQ doorbells that are equal, stale, with low bits, on wrong pages, to QPs in RESET, with
partial strobes, RQ doorbells, CQ doorbells that are equal, backward, beyond, of foreign CQs, with each
cq_sta; both formats.
Stimulus: doorbells back to back from the mailbox; between the bad ones nothing else, and good work
afterwards.
Checks: exact counters, indices, states and events by figures of the test; no packet by a bad doorbell; the
judge.
Timing: default latencies; the gap between doorbells on the bus is asserted. Does not prove: RQ semantics.
"""

from __future__ import annotations

import random

import cocotb

from pymodel.device import Pe
from pymodel.formats import doorbell
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp
from pymodel.nic.params import Cnt, Csr
from pymodel.platform import mmio_write
from tb.sim.platform import Rig
from tests.nic.raw import Console, RawQp
from tests.nic.trace import Trace, doorbell_counters

PES = 2
PAGES = 0x0800_0000
RTS, ERR = 1, 2


def fabric(qps: int, depth: int = 16, start: int = 0) -> Fabric:
    """QPs from PE 0 to PE 1, V1 and V2 in turn."""
    overrides = {}
    for qp in range(qps):
        overrides[0, 1, qp] = {
            "mtu": 256, "version": 1 + qp % 2, "sq_depth": depth, "cq_depth": depth,
            "start_index": start, "sl": qp % 8,
        }  # fmt: skip
        overrides[1, 0, qp] = {"mtu": 256}
    return Fabric.build(
        FabricConfig(n_pes=2, qps=qps, seed=cocotb.RANDOM_SEED, overrides=overrides, heap_bytes=4 << 20)
    )


@cocotb.test()
async def test_all_qps_back_to_back(dut):
    """64 QPs rung one behind the other, five rounds: none is lost, several to one QP coalesce."""
    net = fabric(64)
    trace = Trace(net)
    rig = Rig(dut, net, sinks=[trace])
    await rig.start()
    rounds = (1, 2, 3, 5, 8)

    async def main(pe: Pe) -> None:
        if pe.rank == 1:
            return
        source = pe.alloc(4096)
        await pe.store(source, pe.rng.randbytes(4096))
        remote = pe.ptr(pe.heap_base + (1 << 20), 1)
        queues = [RawQp(rig, 0, 1, qp) for qp in range(64)]
        for number, queue in enumerate(queues):
            places = [64 * number + k for k in range(rounds[-1])]
            await queue.put(*[queue.fields(1, laddr=source + p, raddr=remote + p) for p in places])
        for count in rounds:
            order = list(queues)
            random.shuffle(order)
            for queue in order:
                await queue.ring_sq(count)
        for queue in queues:
            done = await queue.collect(rounds[-1])
            await queue.ring_cq()
            assert not done["error_code"].any()
            assert (done["wqe_id"] >> 3).tolist() == list(range(rounds[-1]))

    summary = await rig.check(await rig.run(main))
    assert summary.wqes == 64 * rounds[-1]
    rung = sorted(time for plan in net.pes[0].qps for time, _ in trace.sq[0, plan.qpn])
    assert len(rung) == 64 * len(rounds)
    gaps = [b - a for a, b in zip(rung, rung[1:], strict=False)]
    assert sorted(gaps)[len(gaps) * 3 // 4] <= 4, f"the doorbells did not come back to back: {gaps}"
    assert doorbell_counters(await rig.counters(0)) == {}


@cocotb.test()
async def test_ignored_and_refused(dut):
    """Bad doorbells of every kind to idle QPs: each counted once under its name, nothing moves."""
    start = 21
    net = fabric(4, start=start)
    trace = Trace(net)
    rig = Rig(dut, net, sinks=[trace])
    await rig.start()
    queues = [RawQp(rig, 0, 1, qp) for qp in range(4)]
    plans = [queue.plan for queue in queues]
    used = {plan.qpn for plan in plans}
    unused = next(qpn for qpn in range(2, 66) if qpn not in used)
    free_cqn = next(cqn for cqn in range(64) if cqn not in {plan.cqn for plan in plans})
    count = dict.fromkeys(
        (
            "DB_STALE",
            "DB_PID",
            "DB_PAGE",
            "DB_PARTIAL",
            "DB_RESET",
            "DB_CQ_BACKWARD",
            "DB_CQ_BEYOND",
            "DB_RQ",
        ),
        0,
    )
    step, done = 3, 0

    async def bad(addr: int, data: int, counter: str | None, strobe: int = 0xFF) -> None:
        await rig.lib.write(0, addr, int(data), strobe)
        if counter is not None:
            count[counter] += 1

    async def work(pe: Pe) -> None:
        remote = pe.ptr(pe.heap_base + (1 << 20), 1)
        for queue in queues:
            await queue.post(*[queue.fields(5, laddr=pe.heap_base, raddr=remote)] * step)
            assert await queue.complete(step) == [0] * step

    async def bad_sq() -> None:
        head = start + done
        for plan in plans:
            page = PAGES + 4096 * plan.qpn
            half = 1 << (13 if plan.version == 1 else 17)
            good = int(doorbell.sq_encode(head + 1, plan.qpn, plan.version))
            await bad(page, doorbell.sq_encode(head, plan.qpn, plan.version), None)
            for index in (head - 1, head - step, head + half + 1, head - 16):
                await bad(page, doorbell.sq_encode(index & 0xFFFF_FFFF, plan.qpn, plan.version), "DB_STALE")
            for low in (1, 2, 4, 7):
                await bad(page, good | low, "DB_PID")
            for strobe in (0x0F, 0xF0, 0x7F, 0xFE, 0x01, 0x00):
                await bad(page, good, "DB_PARTIAL", strobe)
            # a doorbell of this QP on other pages, and of other QPs on this page
            for other in (*(used - {plan.qpn}), 0, 1, 66, 1000):
                await bad(PAGES + 4096 * other, good, "DB_PAGE")
            for other in (*(used - {plan.qpn}), unused, 0, plan.qpn + 64, plan.qpn | 1 << 15):
                await bad(page, doorbell.sq_encode(head + 1, other, plan.version), "DB_PAGE")
            await bad(page + 8, doorbell.rq_encode(1, plan.qpn), "DB_RQ")
            await bad(page + 8, doorbell.rq_encode(1, unused), "DB_PAGE")
            await bad(page + 8, doorbell.rq_encode(1, plan.qpn), "DB_PARTIAL", 0x0F)
            # no register: OKAY, and nothing at all (nic.md 1)
            for offset in (24, 32, 0x800, 0xFF8):
                await bad(page + offset, good, None)
            for offset in (0, 8, 16):
                await bad(PAGES + 4096 * unused + offset, good, "DB_RESET")

    async def bad_cq() -> None:
        tail = start + done
        for plan in plans:
            page, half = PAGES + 4096 * plan.qpn + 16, 1 << 22
            for sta in range(2):
                await bad(page, doorbell.cq_encode(tail, plan.cqn, sta), None)
            for sta in range(4):
                await bad(page, doorbell.cq_encode(tail - 1, plan.cqn, sta), "DB_CQ_BACKWARD")
                await bad(page, doorbell.cq_encode(tail + 1, plan.cqn, sta), "DB_CQ_BEYOND")
                await bad(
                    page, doorbell.cq_encode(tail + half, plan.cqn, sta), "DB_CQ_BEYOND"
                )  # half of the width
                await bad(page, doorbell.cq_encode(tail + half + 1, plan.cqn, sta), "DB_CQ_BACKWARD")
                await bad(page, doorbell.cq_encode(tail, free_cqn, sta), "DB_PAGE")
            await bad(page, doorbell.cq_encode(tail, plan.cqn | 1 << 15), "DB_PAGE")
            await bad(page, doorbell.cq_encode(tail, plan.cqn, 2), "DB_PARTIAL", 0xF0)

    async def still() -> None:
        """Nothing moved: counters, packets, indices, arms."""
        counters = await rig.counters(0)
        rig.drain()
        assert doorbell_counters(counters) == {name: number for name, number in count.items() if number}
        for plan in plans:
            width = (1 << 14) - 1 if plan.version == 1 else (1 << 18) - 1
            assert await Console(rig, 0).query(plan.qpn) == (RTS, start + done & width, start + done & width)
            assert len(trace.frames[0, plan.peer_qpn]) == done
        assert counters[Cnt.WQE] == 4 * done

    first = await rig.run([work, None])
    done = step
    await bad_sq()
    await still()
    await bad_cq()
    await still()
    assert first.problems == []
    assert (await rig.run([work, None])).problems == []
    done = 2 * step
    await rig.settle()
    await still()
    # no arm took effect: the CQEs since raised nothing
    assert await rig.lib.read(0, Csr.CQ_EVENT) == 0
    # and one that is accepted does arm
    armed = plans[2]
    data = doorbell.cq_encode(start + done, armed.cqn, 2)
    await bad(PAGES + 4096 * armed.qpn + 16, data, None)
    third = await rig.run([work, None])
    done = 3 * step
    await rig.settle()
    assert await rig.lib.read(0, Csr.CQ_EVENT) == 1 << armed.cqn
    await rig.check(third)


@cocotb.test()
async def test_consumer_index_with_waiting_cqes(dut):
    """A CQ that holds five CQEs: up to five are accepted, 2^22 beyond that are refused, else backward."""
    net = fabric(2, start=(1 << 23) - 3)
    rig = Rig(dut, net)
    await rig.start()

    async def main(pe: Pe) -> None:
        if pe.rank == 1:
            return
        for qp in range(2):
            queue = RawQp(rig, 0, 1, qp)
            await queue.post(*[queue.fields(0, laddr=0, raddr=0)] * 5)
            await queue.collect(5)
            ci, half = queue.plan.start_cq, 1 << 22
            for ahead in (6, 7, half - 1, half, half + 1, half + 5, half + 6, (1 << 23) - 1):
                await queue.ring_cq(ci + ahead & 0xFFFF_FFFF)
            for ahead in (0, 2, 2, 5, 5):
                await queue.ring_cq(ci + ahead & 0xFFFF_FFFF)
            # two is behind now
            await queue.ring_cq(ci + 2 & 0xFFFF_FFFF)
            await queue.post(*[queue.fields(0, laddr=0, raddr=0)] * 16)
            assert not (await queue.collect(16))["error_code"].any()

    result = await rig.run(main)
    await rig.settle()
    assert doorbell_counters(await rig.counters(0)) == {"DB_CQ_BEYOND": 2 * 6, "DB_CQ_BACKWARD": 2 * 3}
    await rig.check(result)


@cocotb.test()
async def test_reset_qp(dut):
    """Doorbells to a QP in RESET are ignored and counted, on all three registers; its neighbour works."""
    net = fabric(2)
    trace = Trace(net)
    rig = Rig(dut, net, sinks=[trace])
    await rig.start()
    gone, other = net.qps[0, 1, 0], net.qps[0, 1, 1]

    async def work(pe: Pe) -> None:
        if pe.rank == 1:
            return
        queues = [RawQp(rig, 0, 1, qp) for qp in range(2)]
        remote = pe.ptr(pe.heap_base + (1 << 20), 1)
        for queue in queues:
            await queue.put(*[queue.fields(9, laddr=pe.heap_base, raddr=remote)] * 4)
        for queue in queues:
            await queue.ring_sq()
        for sta in range(4):
            await mmio_write(PAGES + 4096 * gone.qpn + 16, int(doorbell.cq_encode(0, gone.cqn, sta)))
        await mmio_write(PAGES + 4096 * gone.qpn + 8, int(doorbell.rq_encode(1, gone.qpn)))
        await queues[0].ring_sq(0)
        assert await queues[1].complete(4) == [0] * 4

    assert await Console(rig, 0).command(CmdOp.RESET, CmdObj.QP, gone.qpn) == 0
    result = await rig.run(work)
    await rig.settle()
    assert doorbell_counters(await rig.counters(0)) == {"DB_RESET": 7}
    assert await rig.lib.read(0, Csr.QP_STATE_RTS) == 1 << other.qpn - 2
    assert trace.frames[0, gone.peer_qpn] == [] and len(trace.frames[0, other.peer_qpn]) == 4
    await rig.check(result)
