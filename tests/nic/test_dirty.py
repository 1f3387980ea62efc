"""WQE bits that nobody writes change nothing: dirty and clean WQEs give the same packets, bytes and CQEs.

Sweep: csum_en 1 to 3, both reserved fields, opcode_data, se, mask 1 to 3, fence_mode 1 to 3, the 80 bytes
behind the last segment, all of them at once, alone and in random mixtures; V1 and V2; ce 0 and 1; and the
driver over slots full of noise.
Stimulus: the same WQEs on two QPs that differ in their numbers only (equal PSNs and UDP ports), one after
the other.
Checks: frames without QPN and ICRC, payload write bursts, landed bytes and CQEs without QPN and time stamp
are equal one by one; the judge's, for whom dirt does not exist.
Timing: fixed latencies, so that bursts may be compared. Does not prove: fences that delay (no READ or atomic
yet).
"""

from __future__ import annotations

import random
from typing import Any

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.platform import store
from tb.sim.platform import Rig
from tests.nic.raw import RawQp
from tests.nic.trace import U8, Trace

PES = 2
MTU = 512
DEPTH = 64
SPACE = 2048
WINDOW = DEPTH * SPACE
SIZES = (0, 1, 3, 64, 65, 200, 511, 512, 513, 1400)


def fabric() -> Fabric:
    """QPs 0 and 1: V1, clean and dirty; QPs 2 and 3: V2. The QPs of a format differ in QPN and CQN only."""
    overrides = {}
    for qp in range(4):
        shared = {
            "mtu": MTU,
            "version": 1 + qp // 2,
            "sq_depth": DEPTH,
            "cq_depth": DEPTH,
            "sl": 3,
            "udp_sport": 0xC123,
        }
        overrides[0, 1, qp] = {**shared, "sq_psn": 0xABCDE, "start_index": 5}
        overrides[1, 0, qp] = shared
    return Fabric.build(
        FabricConfig(n_pes=2, qps=4, seed=cocotb.RANDOM_SEED, overrides=overrides, heap_bytes=4 << 20)
    )


def dirt(version: int, rng: random.Random) -> list[dict[str, int]]:
    """What to put into the ignored fields of each WQE; "padding": the bytes behind the last segment."""
    values: dict[str, tuple[int, ...]] = {
        "csum_en": (1, 2, 3), "opcode_data": (1, 1 << 31, rng.getrandbits(32)), "se": (1,), "mask": (1, 2, 3),
        "fence_mode": (1, 2, 3), "padding": (1,),
        "rsv": tuple(1 << bit for bit in ((0, 4, 5, 12, 24) if version == 1 else range(5))),
    }  # fmt: skip
    if version == 2:
        values["rsv1"] = (1, 1 << 3, 1 << 15, 0xFFFF)
    one = [{name: value} for name, some in values.items() for value in some]
    everything = {name: some[-1] for name, some in values.items()}
    mixed = [
        {name: rng.choice(some) for name, some in values.items() if rng.random() < 0.5}
        for _ in range(DEPTH - 2 - len(one))
    ]
    rest = 0x1FFFFFF if version == 1 else 0x1F
    return [*one, everything, {**everything, "rsv": rest}, *mixed]


class Seen:
    """What one QP showed, without the numbers in which two QPs may differ."""

    def __init__(self, trace: Trace, net: Fabric, qp: int, window: int, landed: U8) -> None:
        plan = net.qps[0, 1, qp]
        self.frames = []
        for frame in trace.frames[0, plan.peer_qpn]:
            data = bytearray(frame[:-4])
            data[47:50] = bytes(3)
            if data[42] in (0x06, 0x0A):
                va = int.from_bytes(data[54:62], "big") - window
                data[54:62] = va.to_bytes(8, "big")
            self.frames.append(bytes(data))
        self.cqes = []
        for _, slot, data in trace.cqes[0, plan.qpn]:
            clean = bytearray(data)
            clean[1:3] = bytes(2)
            clean[16:22] = bytes(6)
            self.cqes.append((slot, bytes(clean)))
        self.writes = [
            (w.addr - window, w.beats, w.strobe, w.size)
            for w in trace.writes
            if 0 <= w.addr - window < WINDOW and w.pe == 1
        ]
        self.landed = landed.tobytes()

    def compare(self, other: Seen) -> None:
        """Assert that both are equal; names the first difference."""
        for what in ("frames", "writes", "cqes"):
            mine, its = getattr(self, what), getattr(other, what)
            assert mine, f"no {what} at all"
            for number, pair in enumerate(zip(mine, its, strict=False)):
                assert pair[0] == pair[1], f"{what} {number}: clean {pair[0]!r}, dirty {pair[1]!r}"
            assert len(mine) == len(its), f"{what}: clean {len(mine)}, dirty {len(its)}"
        assert self.landed == other.landed and any(self.landed)


async def run(dut: Any, post: Any) -> Trace:
    """Run ``post(rig, pe, qp, source, window)`` on each QP of PE 0 in turn; compare those of each format."""
    net = fabric()
    trace = Trace(net)
    rig = Rig(dut, net, sinks=[trace])
    await rig.start()
    places: list[int] = []

    async def main(pe: Pe) -> None:
        source = pe.alloc(8192)
        windows = [pe.alloc(WINDOW, 4096) for _ in range(4)]
        if pe.rank == 1:
            places.extend(windows)
            return
        await pe.store(source, pe.rng.randbytes(8192))
        for qp in range(4):
            await post(rig, pe, qp, source, windows[qp])

    await rig.check(await rig.run(main))
    seen = [Seen(trace, net, qp, places[qp], rig.lib.memory(1, places[qp], WINDOW)) for qp in range(4)]
    seen[0].compare(seen[1])
    seen[2].compare(seen[3])
    return trace


@cocotb.test()
async def test_dirty_fields(dut):
    """Each ignored field dirty by itself and with others; dirt must not change who asks for a CQE."""

    async def post(rig: Rig, pe: Pe, qp: int, source: int, window: int) -> None:
        queue = RawQp(rig, 0, 1, qp)
        rng = random.Random(f"dirty {cocotb.RANDOM_SEED}")
        fields = dirt(queue.plan.version, rng)
        length = [rng.choice(SIZES) for _ in fields]
        ce = [int(rng.random() < 0.7 or k == len(fields) - 1) for k in range(len(fields))]
        # a WQE starts where none before it wrote, so that each shows in memory
        raddr = [pe.ptr(window, 1) + SPACE * k + rng.randrange(64) for k in range(len(fields))]
        laddr = [source + rng.randrange(256) for _ in fields]
        noise = np.zeros((len(fields), 128), np.uint8)
        items = [
            queue.fields(length[k], laddr=laddr[k], raddr=raddr[k], ce=ce[k]) for k in range(len(fields))
        ]
        if qp % 2:
            for k, one in enumerate(fields):
                if "padding" in one:
                    noise[k] = np.frombuffer(rng.randbytes(128), np.uint8)
                items[k] |= {name: value for name, value in one.items() if name != "padding"}
        slots = await queue.put(*items, base=noise)
        assert (slots[:, 48:].any() and slots[:, 9].any()) == bool(qp % 2)
        await queue.ring_sq()
        assert await queue.complete(sum(ce)) == [0] * sum(ce)

    await run(dut, post)


@cocotb.test()
async def test_stale_slots(dut):
    """The driver builds in place (device.md 1.6): over zeroed slots and over noise."""

    async def post(rig: Rig, pe: Pe, qp: int, source: int, window: int) -> None:
        queue = pe.qp(1, qp)
        if qp % 2:
            await store(queue.sq_addr, pe.rng.randbytes(DEPTH * 128), True)
        rng = random.Random(f"stale {cocotb.RANDOM_SEED}")
        for number in range(DEPTH):
            size = rng.choice(SIZES)
            await pe.put_nbi(
                window + SPACE * number + rng.randrange(64), source + rng.randrange(256), size, 1, qp
            )
        await pe.quiet(1, qp)

    await run(dut, post)
