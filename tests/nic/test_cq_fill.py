"""What the completion queue holds before the NIC writes it, and what happens when nobody empties it.

Sweep: CQ rings filled with zeros, with ones, with noise whose owner bits are right; both formats and
strides; CQs of one and two times the SQ's depth; start at slot 0 and in mid-ring.
Stimulus: the driver's own posts over three laps; completions that nobody takes.
Checks: a zeroed ring must fail the run with a finding that names the false CQE; every CQE against figures of
the test; completions wait for room one by one and none is lost; the judge.
Timing: a slow link where false CQEs must come before the true ones. Does not prove: cq_wait other than 0.
"""

from __future__ import annotations

import cocotb
import numpy as np
import pytest

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from pymodel.platform import store
from tb.sim.platform import Rig, RunFailed
from tests.nic.raw import RawQp
from tests.nic.trace import Trace, doorbell_counters

PES = 2
DEPTH = 16


def fabric(cq_fill: int, start: int = 0, factor: int = 1) -> Fabric:
    """Both formats x both strides from PE 0 to PE 1."""
    overrides = {}
    for qp in range(4):
        overrides[0, 1, qp] = {
            "mtu": 256, "version": 1 + qp // 2, "cq_stride": 32 << qp % 2, "sq_depth": DEPTH,
            "cq_depth": DEPTH * factor, "start_index": start,
        }  # fmt: skip
        overrides[1, 0, qp] = {"mtu": 256}
    return Fabric.build(
        FabricConfig(
            n_pes=2, qps=4, seed=cocotb.RANDOM_SEED, overrides=overrides, heap_bytes=4 << 20, cq_fill=cq_fill
        )
    )


def expected(net: Fabric, qp: int, index: int, size: int) -> bytes:
    """A good CQE by the bits of device.md 2.1, its time stamp 0."""
    plan = net.qps[0, 1, qp]
    out = bytearray(plan.cq_stride)
    out[1:3] = plan.qpn.to_bytes(2, "little")
    out[8:12] = size.to_bytes(4, "little")
    out[24] = 1
    if plan.version == 1:
        out[22:24] = (index * 8 & 0xFFFF).to_bytes(2, "little")
    else:
        out[25:28] = (index * 8 << 4 & 0xFF_FFF0).to_bytes(3, "little")
    out[31] = (index // plan.cq_depth & 1) << 7
    return bytes(out)


async def laps(pe: Pe, count: int, qp: int, window: int, source: int) -> None:
    for number in range(count):
        await pe.put_nbi(window + 64 * (number % 32), source + number, 1 + number % 50, 1, qp)
    await pe.quiet(1, qp)


@cocotb.test()
async def test_zeroed_ring_is_caught(dut):
    """Negative: on a zeroed ring the first lap seems complete at once (device.md 2.3); the run must fail."""
    net = fabric(0x00)
    rig = Rig(dut, net, knobs={"link_latency": 500})
    await rig.start()

    async def main(pe: Pe) -> int:
        source, window = pe.alloc(4096), pe.alloc(4096)
        if pe.rank == 0:
            for qp in range(4):
                await laps(pe, 5, qp, window, source)
        return await pe.now()

    result = await rig.run(main)
    for qp in range(4):
        plan = net.qps[0, 1, qp]
        mine = [text for text in result.problems if f"PE 0 consumed CQE 0 from PE 1, QP {qp}," in text]
        assert len(mine) == 1 and mine[0].startswith("wrong CQE"), f"QP {qp}: {result.problems}"
        assert f"names QPN 0 and WQE 0 instead of QPN {plan.qpn} and WQE 0" in mine[0]
    assert len(result.problems) == 4 * 5
    with pytest.raises(RunFailed, match="wrong CQE: PE 0 consumed CQE 0 from PE 1, QP 0"):
        await rig.check(result)
    # nothing else is wrong: the NIC refused the consumer index that was ahead of it
    assert rig.judge.findings == []
    assert doorbell_counters(await rig.counters(0)) == {"DB_CQ_BEYOND": 4}


@cocotb.test()
@cocotb.parametrize(fill=["ones", "noise"], start=[0, 37])
async def test_ones_and_owner_bits(dut, fill, start):
    """Rings of ones, and of noise with the owner bits of the lap before: three laps of CQEs, bit for bit."""
    factor = 1 if start else 2
    net = fabric(0xFF, start, factor)
    trace = Trace(net)
    rig = Rig(dut, net, sinks=[trace])
    await rig.start()
    count = 3 * DEPTH * factor + 3

    async def main(pe: Pe) -> None:
        source, window = pe.alloc(4096), pe.alloc(4 * 4096)
        if pe.rank == 1:
            return
        await pe.store(source, pe.rng.randbytes(4096))
        for qp in range(4):
            plan = net.qps[0, 1, qp]
            if fill == "noise":
                size = plan.cq_depth * plan.cq_stride
                ring = np.frombuffer(pe.rng.randbytes(size), np.uint8).reshape(-1, plan.cq_stride).copy()
                old = pe.memory(plan.cq_base, size).reshape(-1, plan.cq_stride)
                ring[:, 31] = ring[:, 31] & 0x7F | old[:, 31] & 0x80
                await store(plan.cq_base, ring.reshape(-1), True)
        for qp in range(4):
            await laps(pe, count, qp, window + 4096 * qp, source)

    await rig.check(await rig.run(main))
    for qp in range(4):
        seen = trace.cqes[0, net.qps[0, 1, qp].qpn]
        assert [slot for _, slot, _ in seen] == [(start + k) % (DEPTH * factor) for k in range(count)]
        stamps = [int.from_bytes(data[16:22], "little") for _, _, data in seen]
        assert stamps == sorted(stamps) and stamps[0] > 0
        for number, (_, _, data) in enumerate(seen):
            assert data[:16] + bytes(6) + data[22:] == expected(net, qp, start + number, 1 + number % 50), (
                f"CQE {number}"
            )


@cocotb.test()
async def test_completions_wait_for_room(dut):
    """A full CQ: completions wait and come as slots are freed, in order; another QP is not held up."""
    net = fabric(0xFF)
    trace = Trace(net)
    rig = Rig(dut, net, sinks=[trace])
    await rig.start()

    async def main(pe: Pe) -> None:
        if pe.rank == 1:
            return
        remote = pe.ptr(pe.heap_base + (1 << 20), 1)
        queues = [RawQp(rig, 0, 1, qp) for qp in range(3)]
        for queue in queues:
            for _ in range(2):
                # the second sixteen are announced when the first are complete, so the SQ has room
                await queue.post(*[queue.fields(8, laddr=pe.heap_base, raddr=remote)] * DEPTH)
                if queue.head == DEPTH:
                    await queue.collect(DEPTH)
        await pe.sleep(3000)
        for queue in queues:
            assert len(trace.cqes[0, queue.plan.qpn]) == DEPTH, "a CQE without room"
        # the fourth QP has room all the time
        free = RawQp(rig, 0, 1, 3)
        for _ in range(4):
            await free.post(*[free.fields(8, laddr=pe.heap_base, raddr=remote)] * DEPTH)
            await free.complete(DEPTH)
        written = DEPTH
        for step in (1, 2, 5, 8):
            written += step
            for queue in queues:
                await queue.ring_cq(written - DEPTH)
            await pe.sleep(400)
            for queue in queues:
                assert len(trace.cqes[0, queue.plan.qpn]) == written, "as many CQEs as slots were freed"
        for queue in queues:
            done = await queue.collect(DEPTH)
            await queue.ring_cq()
            assert (done["wqe_id"] >> 3).tolist() == list(range(DEPTH, 2 * DEPTH))
            assert not done["error_code"].any()

    summary = await rig.check(await rig.run(main))
    counters = await rig.counters(0)
    assert summary.wqes == counters[Cnt.CQE] == 3 * 2 * DEPTH + 4 * DEPTH
    assert counters[Cnt.CQ_OVERRUN] == counters[Cnt.CQE_DISCARD] == 0
    assert doorbell_counters(counters) == {}
