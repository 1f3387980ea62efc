"""The short program that planted RTL faults must turn red (tools/plant.py runs it).

Mixed WRITEs by the device API and by hand in both directions under light stalls, rings exactly full,
doorbells that must be ignored, and frames from outside: a flipped payload bit, a wrong IP checksum, a
duplicate, one from the future. All judged.
"""

from __future__ import annotations

import random
import struct
import zlib

import cocotb
import numpy as np

from pymodel.device import DeviceOptions, Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.platform import sleep
from tb.sim.platform import Rig
from tb.sim.records import Kind
from tests.nic.raw import RawQp, fill_sources

API, RAW = 4, 4
KNOBS = {
    "mem_latency": 40,
    "mem_latency_jitter": 120,
    "commit_delay": 120,
    "mem_ooo": 8000,
    "link_stall_rx": 1500,
}


def fabric(seed: int) -> Fabric:
    """Small rings near their wraps, four MTUs, both formats; QPs that are posted to by hand have 8 WQEs."""
    overrides = {}
    for pe in (0, 1):
        for qp in range(API + RAW):
            overrides[pe, 1 - pe, qp] = {"mtu": (256, 512, 1024, 4096)[qp % 4]}
            if qp >= API:
                overrides[pe, 1 - pe, qp] |= {"sq_depth": 8, "cq_depth": 8, "version": 1 + qp % 2}
    return Fabric.build(FabricConfig.mixed(2, API + RAW, seed, sq_depths=(32,), overrides=overrides))


class Frames:
    """Sink: the last request without further headers than its own that PE 1 received."""

    def __init__(self) -> None:
        self.last = b""

    def __call__(self, records: np.ndarray, side: np.ndarray) -> None:
        """Look at one batch."""
        for r in records[(records["kind"] == Kind.RXPKT) & (records["pe"] == 1) & (records["len"] > 120)]:
            at = int(r["off"]) % side.size
            frame = side[at : at + int(r["len"])].tobytes()
            if frame[42] == 0x0A:
                self.last = frame


def with_icrc(frame: bytes) -> bytes:
    """A frame with the ICRC that its bytes ask for (wire page, section 4), by a library's CRC."""
    body = bytearray(frame[14:-4])
    body[1] = body[8] = body[10] = body[11] = body[26] = body[27] = body[32] = 0xFF
    return frame[:-4] + struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(body)))


def next_psn(rig: Rig, frame: bytes) -> int:
    """PSN that PE 1 expects next on the QP that a frame names."""
    assert rig.judge is not None
    rig.judge.flush()
    state = rig.judge.state
    qp = int(state.qp_lut[1, int.from_bytes(frame[47:50], "big") - state.params.first_qpn])
    return int(state.q_rq_psn[qp] + state.r_exp[qp]) & 0xFFFFFF


@cocotb.test()
async def program(dut) -> None:
    """The whole program."""
    seed = cocotb.RANDOM_SEED
    rig = Rig(dut, fabric(seed), knobs=KNOBS, stall_limit=60_000)
    await rig.start()
    await fill_sources(rig, seed)
    frames = Frames()
    rig.sinks.append(frames)
    raws = {(pe, q): RawQp(rig, pe, 1 - pe, API + q) for pe in (0, 1) for q in range(RAW)}

    async def api(pe: Pe, qp: int, source: int, window: int) -> None:
        rng = random.Random(f"plant {seed} {pe.rank} {qp}")
        mtu = rig.fabric.qps[pe.rank, 1 - pe.rank, qp].mtu
        edges = [0, 1, 3, 64, 65, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu - 60, 17 * 256, 4096, 9000]
        for size in edges * 4:
            await pe.put_nbi(window + rng.randrange(4096), source + rng.randrange(64), size, 1 - pe.rank, qp)
        await pe.quiet(1 - pe.rank, qp)

    async def raw(qp: RawQp) -> None:
        rng = random.Random(f"plant raw {seed} {qp.plan.pe} {qp.plan.qpn}")
        await qp.post(*[qp.fields(8 * k, 100 * k) for k in range(8)])
        for number in range(60):
            await qp.until(1)
            assert qp.take(1)["error_code"].tolist() == [0]
            # the ring is full again before the CQ hears of it
            await qp.post(qp.fields(rng.choice((0, 5, 64, 300, 2000)), rng.randrange(1 << 14), ce=1))
            if number % 10 == 3:
                await qp.ring_sq(qp.head - 3)
                await qp.ring_cq(qp.tail - 2)
            if number % 10 == 7:
                await qp.ring_sq(qp.head)
            await qp.ring_cq()
        assert await qp.complete(8) == [0] * 8
        # silent WQEs in front of one that asks
        await qp.post(*[qp.fields(16, 64 * k, ce=int(k == 7)) for k in range(8)])
        assert await qp.complete(1) == [0]
        await sleep(3000)
        # nothing is there to be consumed
        await qp.ring_cq(qp.tail + 1)

    async def end(pe: Pe) -> None:
        # what the dropped frames left behind shows in good ones
        tasks = []
        for q in range(RAW):
            qp = raws[pe.rank, q]
            tasks.append(await pe.spawn(again(qp), f"QP {q}"))
        for task in tasks:
            await pe.join(task)

    async def again(qp: RawQp) -> None:
        await qp.post(*[qp.fields(300 * k, 1000 * k) for k in range(8)])
        assert await qp.complete(8) == [0] * 8

    async def main(pe: Pe) -> None:
        source = pe.alloc(16 << 10)
        windows = [pe.alloc(32 << 10) for _ in range(API)]
        await pe.store(source, pe.rng.randbytes(16 << 10))
        jobs = [api(pe, q, source, windows[q]) for q in range(API)]
        jobs += [raw(raws[pe.rank, q]) for q in range(RAW)]
        for task in [await pe.spawn(job, f"job {n}") for n, job in enumerate(jobs)]:
            await pe.join(task)

    result = await rig.run(main, options=DeviceOptions(poll_batch=1), hang_after=40_000)
    await rig.settle()

    frame = frames.last
    assert frame, "no frame to play with"
    flipped = frame[:80] + bytes([frame[80] ^ 0x10]) + frame[81:]
    wrong_sum = with_icrc(frame[:24] + bytes([frame[24] ^ 1]) + frame[25:])
    psn = int.from_bytes(frame[51:54], "big")
    future = with_icrc(frame[:51] + (psn + 5000 & 0xFFFFFF).to_bytes(3, "big") + frame[54:])
    assert with_icrc(frame) == frame
    for bad in (flipped, wrong_sum, frame, flipped, frame, future):
        rig.lib.inject(1, bad)
        await rig.settle()
    await rig.run(end, options=DeviceOptions(poll_batch=1), hang_after=40_000)
    await rig.settle()

    # two from the future give one NAK; the expected one is executed then. Its sender never hears of it, so
    # this comes last
    frame = frames.last
    expected = next_psn(rig, frame)
    for psn in (expected + 9, expected + 10, expected):
        ack_req = bytes([frame[50] | 0x80])
        moved = frame[:50] + ack_req + (psn & 0xFFFFFF).to_bytes(3, "big") + frame[54:]
        rig.lib.inject(1, with_icrc(moved))
    await rig.settle()
    # a key that is refused, and good ones at its heels: they must not be executed any more, although the NAK,
    # and with it the change to ERR, waits for the write response of the one before
    rig.lib.set_knob("mem_latency", 600, 1)
    for step, flip in ((1, 0), (2, 1), (3, 0), (4, 0)):
        psn = (expected + step & 0xFFFFFF).to_bytes(3, "big")
        rig.lib.inject(1, with_icrc(frame[:51] + psn + frame[54:62] + bytes([frame[62] ^ flip]) + frame[63:]))
    await rig.check(result)
