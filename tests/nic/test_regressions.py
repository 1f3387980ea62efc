"""Faults that were found once: one test each, named after the fault.

Stimulus: mostly frames injected at PE 0's port, as if PE 1 had sent them, on QPs that carry nothing else.
Checks: counters and memory by figures of the test; the judge, whose own faults are among those tested here.
"""

from __future__ import annotations

import random
from typing import Any

import cocotb

from pymodel.device import Pe
from pymodel.formats import packet
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic import judge_frames
from pymodel.nic.params import Cnt
from tb.sim.platform import Rig
from tests.nic.raw import SOURCE, RawQp, fill_sources, renew
from tests.nic.stage import any_good, clear_errors, error

PES = 2
MTU = 256
#: offset of the targets in PE 0's heap
TARGET = 2 << 20


def fabric(qps: int) -> Fabric:
    """Two PEs, MTU 256."""
    return Fabric.build(FabricConfig(n_pes=2, qps=qps, seed=cocotb.RANDOM_SEED, mtus=(MTU,), start="wraps"))


class Injector:
    """Builds requests of PE 1 to QPs of PE 0 and injects them; keeps the PSN of each QP."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.rng = rig, random.Random(cocotb.RANDOM_SEED)
        self.psn = {qp: rig.fabric.qps[0, 1, qp].rq_psn for qp in range(rig.fabric.config.qps)}

    def request(self, qp: int, opcode: packet.Bth, size: int, ahead: int = 0, **fields: Any) -> bytearray:
        """A right frame; ``ahead``: distance of its PSN from the expected one."""
        mine, peer = self.rig.fabric.pes
        common = {
            "dst_mac": mine.mac, "src_mac": peer.mac, "src_ip": peer.ip, "dst_ip": mine.ip, "opcode": opcode,
            "dest_qp": self.rig.fabric.qps[0, 1, qp].qpn, "psn": self.psn[qp] + ahead & 0xFFFFFF, "ackreq": 1,
            "va": mine.heap_base + TARGET + 4096 * qp, "rkey": mine.heap_rkey, "dma_len": size,
        }  # fmt: skip
        return bytearray(packet.frame({**common, **fields}, self.rng.randbytes(size)))

    def send(self, frame: bytes, executed: bool = False, qp: int = 0) -> None:
        """Inject; an executed frame moves the QP's PSN."""
        self.rig.lib.inject(0, bytes(frame))
        self.psn[qp] = self.psn[qp] + executed & 0xFFFFFF

    async def good(self, qp: int) -> None:
        """A WRITE that must be executed: whatever came before it has left the QP alone."""
        frame = self.request(qp, packet.Bth.WRITE_ONLY, 64)
        self.send(frame, True, qp)
        await self.rig.settle()
        base = self.rig.fabric.pes[0].heap_base + TARGET + 4096 * qp
        assert self.rig.lib.memory(0, base, 64).tobytes() == bytes(frame[70:134]), "not executed"


def resized(frame: bytearray) -> bytes:
    """The frame with IP and UDP lengths, IP checksum and ICRC made right for its size."""
    total = len(frame) - 14
    frame[16:18], frame[38:40] = total.to_bytes(2, "big"), (total - 20).to_bytes(2, "big")
    frame[24:26] = bytes(2)
    frame[24:26] = judge_frames.checksum(bytes(frame[14:34])).to_bytes(2, "big")
    return bytes(frame[:-4]) + judge_frames.icrc(bytes(frame[:-4]))


@cocotb.test()
async def test_judge_knows_every_length_fault(dut):
    """The judge took payload of ACKs and atomics, and more than 4096 bytes, for right lengths."""
    rig = Rig(dut, fabric(1))
    await rig.start()
    wires = Injector(rig)
    for opcode in (packet.Bth.ACK, packet.Bth.READ_REQUEST, packet.Bth.FETCH_ADD, packet.Bth.MCAS64):
        bare = wires.request(0, opcode, 0, syndrome=0x1F)
        wires.send(resized(bare[:-4] + b"more" + bare[-4:]))
    wires.send(wires.request(0, packet.Bth.WRITE_ONLY, 4100))
    await wires.good(0)
    values = await rig.counters(0)
    assert values[Cnt.DROP_LENGTH] == 5 and values[Cnt.RX_PACKET] == 1
    await rig.check()


@cocotb.test()
async def test_judge_accepts_both_zeros_as_checksum(dut):
    """The judge dropped headers whose words sum to 0xffff with checksum 0xffff: it is as right as 0."""
    rig = Rig(dut, fabric(1))
    await rig.start()
    wires = Injector(rig)
    for zero in (b"\0\0", b"\xff\xff"):
        frame = wires.request(0, packet.Bth.WRITE_ONLY, 64)
        frame[18:20] = frame[24:26] = bytes(2)
        # the identification takes up what the other words leave
        frame[18:20] = judge_frames.checksum(bytes(frame[14:34])).to_bytes(2, "big")
        frame[24:26] = zero
        wires.send(bytes(frame[:-4]) + judge_frames.icrc(bytes(frame[:-4])), True)
    await wires.good(0)
    values = await rig.counters(0)
    assert values[Cnt.DROP_IPV4] == 0 and values[Cnt.RX_PACKET] == 3
    await rig.check()


@cocotb.test()
async def test_judge_refuses_messages_without_a_last_byte(dut):
    """The judge executed a First or Middle that left nothing for the Last, or announced more than 2^31."""
    rig = Rig(dut, fabric(3))
    await rig.start()
    wires = Injector(rig)
    first, middle = packet.Bth.WRITE_FIRST, packet.Bth.WRITE_MIDDLE
    wires.send(wires.request(0, first, MTU))
    wires.send(wires.request(1, first, MTU, dma_len=2**31 + 1))
    wires.send(wires.request(2, first, MTU, dma_len=2 * MTU), True, 2)
    wires.send(wires.request(2, middle, MTU))
    await rig.settle()
    values = await rig.counters(0)
    assert values[Cnt.NAK_INV_TX] == 3 and values[Cnt.NAK_ACC_TX] == 0
    await rig.check()


@cocotb.test()
async def test_judge_allows_an_ack_per_duplicate(dut):
    """After a NAK 0 the judge took the ACK of a second duplicate for a step back."""
    rig = Rig(dut, fabric(1))
    await rig.start()
    wires = Injector(rig)
    await wires.good(0)
    wires.send(wires.request(0, packet.Bth.WRITE_ONLY, 64, ahead=1))
    await rig.settle()
    for _ in range(100):
        wires.send(wires.request(0, packet.Bth.WRITE_ONLY, 64, ahead=-1))
        await rig.lib.cycles(1 + wires.rng.randrange(24))
    await rig.settle()
    await wires.good(0)
    values = await rig.counters(0)
    assert values[Cnt.DUPLICATE] == 100 and values[Cnt.NAK_SEQ_TX] == 1
    await rig.check()


@cocotb.test()
async def test_judge_keeps_the_order_of_writes_of_several_qps(dut):
    """The judge's batch engine applied short writes of equal size QP by QP: the last one did not stand."""
    rig = Rig(dut, fabric(2))
    await rig.start()
    rounds = 16

    async def main(pe: Pe) -> None:
        source, target = pe.alloc(64 * 64), pe.alloc(128)
        await pe.store(source, pe.rng.randbytes(64 * 64))
        if pe.rank:
            return
        for number in range(2 * rounds):
            # each target is written by both QPs in turn; a different one is the last
            for place in range(2):
                qp = (number + place) % 2
                data = source + 64 * (2 * number + place) % 4096
                await pe.put_nbi(target + 64 * place, data, 64, 1, qp)
                await pe.quiet(1, qp)

    await rig.check(await rig.run(main))
    assert rig.judge is not None and rig.judge.batch_records, "the batch engine saw nothing"


@cocotb.test()
@cocotb.parametrize(errors=[False, True])
async def test_judge_allows_responses_on_their_way(dut, errors):
    """The judge knew the newest NAK 0 and duplicate only; what raced with a NAK 3 had to be counted its way.

    PSNs ahead, behind and right in random order, behind a link that stalls; with ``errors`` some writes meet
    a bus error.
    """
    rig = Rig(dut, fabric(16), knobs={"mem_latency_jitter": 300, "commit_delay": 100, "link_stall_tx": 3000})
    await rig.start()
    wires, mine = Injector(rig), rig.fabric.pes[0]
    bad = mine.heap_base + (8 << 20)
    rig.lib.add_error(0, bad, 4096, "w")
    assert rig.judge is not None
    rig.judge.add_error(0, bad, 4096, "w")
    rng, ahead, behind = wires.rng, 0, 0
    for number in range(1500):
        qp, kind = rng.randrange(16), rng.randrange(100)
        if errors and number > 500 and kind < 3:
            wires.send(wires.request(qp, packet.Bth.WRITE_ONLY, 64, va=bad + 64 * qp), True, qp)
        elif kind < 30:
            wires.send(wires.request(qp, packet.Bth.WRITE_ONLY, 64, ahead=rng.randrange(1, 5)))
            ahead += 1
        elif kind < 50:
            wires.send(wires.request(qp, packet.Bth.WRITE_ONLY, 64, ahead=-rng.randrange(1, 5)))
            behind += 1
        else:
            wires.send(wires.request(qp, packet.Bth.WRITE_ONLY, rng.randrange(MTU + 1)), True, qp)
        if rng.randrange(4) == 0:
            await rig.lib.cycles(1 + rng.randrange(40))
            rig.drain()
    await rig.settle()
    values = await rig.counters(0)
    if errors:
        assert values[Cnt.NAK_OP_TX] and values[Cnt.NAK_SEQ_TX] and values[Cnt.DROP_QP]
    else:
        assert (values[Cnt.PSN_AHEAD], values[Cnt.DUPLICATE]) == (ahead, behind)
    await rig.check()


@cocotb.test()
async def test_judge_allows_reads_of_flushed_wqes(dut):
    """The judge took reads that came back more than a ring's depth of flushes later for reads of nothing.

    A bus error in one packet of a long message whose other reads are under way, or wait for the port. And an
    empty WRITE may be on the wire while later beats of its fetch are still to come.
    """
    qps, depth = 8, 16
    config = FabricConfig(n_pes=2, qps=qps, seed=cocotb.RANDOM_SEED, mtus=(MTU,), sq_depths=(depth,))
    knobs = {"mem_latency": 60, "mem_latency_jitter": 900, "mem_ooo": 50000, "mem_stall": 20000}
    rig = Rig(dut, Fabric.build(config), knobs=knobs)
    await rig.start()
    mine = rig.fabric.pes[0]
    assert rig.judge is not None
    for qp in range(qps):
        # one beat of one packet, the same for no other message
        beat = mine.heap_base + SOURCE + (32 << 10) * qp + 12 * MTU + 64
        rig.lib.add_error(0, beat, 64, "r")
        rig.judge.add_error(0, beat, 64, "r")

    async def fail(number: int) -> list[int]:
        qp = RawQp(rig, 0, 1, number)
        at = mine.heap_base + SOURCE + (32 << 10) * number
        await qp.post(qp.fields(0), *[qp.fields(20_000, laddr=at)] * (depth - 1))
        codes = await qp.complete(depth)
        for _ in range(4):
            await qp.post(*[qp.fields()] * depth)
            codes += await qp.complete(depth)
        return codes

    async def main(pe: Pe) -> list[list[int]]:
        if pe.rank:
            return []
        tasks = [await pe.spawn(fail(number), f"QP {number}") for number in range(qps)]
        return [await pe.join(task) for task in tasks]

    result = await rig.run(main, sanitize=False)
    assert result.returns[0] == [[0, 0xB2] + [0xFF] * (5 * depth - 2)] * qps
    await rig.check()


@cocotb.test()
async def test_bus_gather_counts_every_burst(dut):
    """A failing beat that two packets share, and a page-crossing packet that fails twice: each burst counts.

    The counter once moved per QP, for its first failing packet only.
    """
    rig = Rig(dut, fabric(2))
    await rig.start()
    heap = rig.fabric.pes[0].heap_base
    assert rig.judge is not None
    # packets of 256 bytes from an address that is not aligned: both read the beat at +512
    shared, crossing = heap + SOURCE + 256 + 8, heap + SOURCE + 8192 - 100
    for addr, length in ((heap + SOURCE + 512, 64), (crossing & ~63, 64), (heap + SOURCE + 8192, 64)):
        rig.lib.add_error(0, addr, length, "r")
        rig.judge.add_error(0, addr, length, "r")

    async def main(pe: Pe) -> None:
        if pe.rank == 0:
            for qp, (source, size) in enumerate(((shared, 512), (crossing, 200))):
                await pe.put_nbi(pe.heap_base + TARGET + 4096 * qp, source, size, 1, qp)
            await pe.sleep(3000)

    await rig.run(main, sanitize=False)
    counters = await rig.counters(0)
    assert counters[Cnt.BUS_GATHER] == 4
    findings = await rig.finish()
    assert not findings, rig.judge.report()


@cocotb.test()
async def test_judge_allows_cqes_formed_before_a_refused_one(dut):
    """The judge knew no CQE behind a refused one, though those already formed are still written."""
    depth = 16
    config = FabricConfig(n_pes=2, qps=3, seed=cocotb.RANDOM_SEED, mtus=(MTU,), sq_depths=(depth,))
    rig = Rig(dut, Fabric.build(config))
    await rig.start()
    await fill_sources(rig, cocotb.RANDOM_SEED)
    ends, rng = [RawQp(rig, 0, 1, q) for q in range(3)], random.Random(cocotb.RANDOM_SEED)
    for q, qp in enumerate(ends):
        error(rig, 0, qp.plan.cq_base + (4 + q) * qp.plan.cq_stride, qp.plan.cq_stride, "w")

    async def main(pe: Pe) -> list[int]:
        if pe.rank:
            return []
        for qp in ends:
            await qp.post(*[any_good(qp, rng, (2, 27)) for _ in range(depth)])
        await pe.sleep(10_000)
        return [qp.visible() for qp in ends]

    result = await rig.run(main, sanitize=False)
    assert result.returns[0] == [4, 5, 6]
    clear_errors(rig)
    for q, qp in enumerate(ends):
        await renew(rig, qp, RawQp(rig, 1, 0, q), (0, 0), cqs=True)  # the judge keeps refused CQEs
    await rig.check()
