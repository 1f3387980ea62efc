"""Every counter across its wrap, with rings that are lapped at least three times on the way.

Sweep: PSN 2^24; next_pid 2^14 (V1) and 2^18 (V2); wqe_id 2^13 (V1) and 2^17 (V2); next_cid 2^23; 32-bit head
2^32; both formats at each of them; rings of 16 and 32 slots, CQs of one and two times that.
Stimulus: the driver's own posts, one QP per wrap; messages of one and of several packets that straddle the
PSN's wrap.
Checks: doorbells, CQEs (slot, owner, wqe_id) and PSNs against plain arithmetic of the test; the judge's for
everything else.
Timing: default latencies. Does not prove: full rings at the wrap (test_rings.py).
"""

from __future__ import annotations

import cocotb

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from tb.sim.platform import Rig
from tests.nic.trace import Trace, doorbell_counters

PES = 2
#: indices at which something wraps: wqe_id V1, next_pid V1, wqe_id V2, next_pid V2, next_cid, 32-bit head
WRAPS = (1 << 13, 1 << 14, 1 << 17, 1 << 18, 1 << 23, 1 << 32)
MTU = 256


def config(seed: int) -> tuple[FabricConfig, list[int]]:
    """One QP per wrap and format, from PE 0 to PE 1; the number of posts of each."""
    overrides, posts = {}, []
    for qp in range(2 * len(WRAPS)):
        wrap, depth = WRAPS[qp // 2], 16 << qp % 2
        before = depth + 7 + qp
        overrides[0, 1, qp] = {
            "version": 1 + (qp + qp // 2) % 2, "mtu": MTU, "sq_depth": depth,
            "cq_depth": depth << qp // 4 % 2, "cq_stride": 32 << qp // 2 % 2,
            "start_index": wrap - before, "sq_psn": (1 << 24) - before - qp,
        }  # fmt: skip
        overrides[1, 0, qp] = {"mtu": MTU}
        posts.append(before + 2 * depth + 9)
    versions = [{overrides[0, 1, 2 * k + v]["version"] for v in (0, 1)} for k in range(len(WRAPS))]
    assert versions == [{1, 2}] * len(WRAPS)
    return FabricConfig(n_pes=2, qps=len(posts), seed=seed, overrides=overrides, heap_bytes=4 << 20), posts


def size(qp: int, number: int) -> int:
    """Short messages; on most QPs every fifth has three packets."""
    return 2 * MTU + 1 + number if qp % 3 and number % 5 == 4 else number % 64


@cocotb.test()
async def test_every_wrap(dut):
    """Each QP passes its wrap in mid-lap and goes on for two laps."""
    settings, posts = config(cocotb.RANDOM_SEED)
    net = Fabric.build(settings)
    trace = Trace(net)
    rig = Rig(dut, net, sinks=[trace])
    await rig.start()

    async def talk(pe: Pe, qp: int, source: int, window: int) -> None:
        for number in range(posts[qp]):
            await pe.put_nbi(window + 3 * number, source + number, size(qp, number), 1, qp)
        await pe.quiet(1, qp)

    async def main(pe: Pe) -> None:
        source, window = pe.alloc(4096), [pe.alloc(2048) for _ in posts]
        if pe.rank == 1:
            return
        await pe.store(source, pe.rng.randbytes(4096))
        for task in [
            await pe.spawn(talk(pe, qp, source, window[qp]), f"QP {qp}") for qp in range(len(posts))
        ]:
            await pe.join(task)

    summary = await rig.check(await rig.run(main))
    assert summary.wqes == sum(posts)
    for qp, count in enumerate(posts):
        plan = net.qps[0, 1, qp]
        key, start = (0, plan.qpn), plan.start_index
        index = [start + k for k in range(count)]
        assert index[0] < WRAPS[qp // 2] <= index[-1], "the wrap does not lie between"
        assert count >= 3 * plan.sq_depth
        wide = plan.version == 2
        # device.md 3.1: next_pid is 8 x the producer index in 21 or 17 bits
        assert [pid for _, pid in trace.sq[key]] == [(i + 1) * 8 % (1 << (21 if wide else 17)) for i in index]
        # device.md 3.1: next_cid has 23 bits; the last doorbell is the quiet's
        assert trace.cq[key][-1][1] == (index[-1] + 1) % (1 << 23)
        # device.md 2.1 to 2.3
        seen = [data for _, _, data in trace.cqes[key]]
        assert [slot for _, slot, _ in trace.cqes[key]] == [i % plan.cq_depth for i in index]
        # the free-running index has 32 bits in software
        assert [data[31] >> 7 for data in seen] == [i % (1 << 32) // plan.cq_depth % 2 for i in index]
        at = (lambda d: int.from_bytes(d[24:28], "little") >> 12) if wide else (lambda d: d[22] | d[23] << 8)
        assert [at(data) for data in seen] == [i * 8 % (1 << (20 if wide else 16)) for i in index]
        # wire.md: one PSN a packet
        psns = [int.from_bytes(frame[51:54], "big") for frame in trace.frames[0, plan.peer_qpn]]
        packets = sum(max(1, -(-size(qp, number) // MTU)) for number in range(count))
        assert psns == [(plan.sq_psn + k) % (1 << 24) for k in range(packets)]
        assert 0xFF_FFFF in psns[:-1], "the PSN does not wrap"
    assert doorbell_counters(await rig.counters(0)) == {}


@cocotb.test()
async def test_psn_wraps_inside_a_message(dut):
    """A message of five packets at every place of the PSN's wrap, and its acknowledgement."""
    overrides = {}
    for qp in range(8):
        overrides[0, 1, qp] = {"mtu": MTU, "sq_psn": -qp % (1 << 24), "version": 1 + qp % 2}
        overrides[1, 0, qp] = {"mtu": MTU}
    net = Fabric.build(
        FabricConfig(n_pes=2, qps=8, seed=cocotb.RANDOM_SEED, overrides=overrides, heap_bytes=4 << 20)
    )
    trace = Trace(net)
    rig = Rig(dut, net, sinks=[trace])
    await rig.start()

    async def main(pe: Pe) -> None:
        source, window = pe.alloc(8192), pe.alloc(8 * 2048)
        if pe.rank == 1:
            return
        await pe.store(source, pe.rng.randbytes(8192))
        for qp in range(8):
            await pe.put_nbi(window + 2048 * qp, source + qp, 5 * MTU - qp, 1, qp)
            await pe.put_nbi(window + 2048 * qp + 5 * MTU, source, 2 * MTU, 1, qp)
        for qp in range(8):
            await pe.quiet(1, qp)

    await rig.check(await rig.run(main))
    for qp in range(8):
        plan = net.qps[0, 1, qp]
        psns = [int.from_bytes(frame[51:54], "big") for frame in trace.frames[0, plan.peer_qpn]]
        assert psns == [((1 << 24) - qp + k) % (1 << 24) for k in range(7)]
