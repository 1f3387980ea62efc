"""A UB full of noise changes nothing that leaves the NIC: packets, bytes and CQEs as with a clean one.

Sweep: the drivers of G2 and G3, which stage READ and WRITE WQEs over whatever their scratch holds (device.md
1.6), V1 and V2; fresh noise before each post, also in csum_en, se, fence_mode, mask, rsv and opcode_data, and
in the slots of atomics, which are built in place; batches of G3 over a noisy buffer.
Stimulus: two runs of one program, on QPs that differ in their numbers only: puts, gets, atomics on one word,
three laps of the ring; memory of both PEs is put back between the runs.
Checks: of both runs, frames both ways without QPN and ICRC, write bursts at each PE, CQEs without QPN and
time, landed bytes at both PEs are equal one by one; of ACKs only the last, as a fence changes how many become
one; the WQEs of the dirty run were dirty, fences included; the judge's, for whom dirt does not exist.
Timing: fixed latencies, so that bursts may be compared. Not proved: fields dirty one by one (test_dirty.py).
"""

from __future__ import annotations

import random
from typing import NamedTuple

import cocotb
import numpy as np

from pymodel.device import (
    Generation,
    Opcode,
    Operands,
    Pe,
    SendWr,
    aclshmemi_roce_post_send,
    aclshmemx_roce_qp_get_defer,
    aclshmemx_roce_qp_put_submit,
)
from pymodel.formats.packet import Bth
from pymodel.host.table import WQE_BYTES, Fabric, FabricConfig
from pymodel.platform import store
from tb.sim.platform import Rig
from tests.nic.trace import Trace, Write

PES = 2
DEPTH = 16
MTU = 512
SPAN = 16 << 10
#: bytes of a program's memory behind its first allocation: sources, words, what is put, what is got
SOURCE, WORD, PUT, GET, TOTAL = 0, SPAN, SPAN + 4096, 2 * SPAN + 4096, 3 * SPAN + 4096
ATOMICS = (Opcode.FA64, Opcode.MFA64, Opcode.MCAS64, Opcode.CAS64, Opcode.MFA32, Opcode.MCAS32)


def fabric(generation: Generation) -> Fabric:
    """QPs 0 and 1: V1, clean and dirty; QPs 2 and 3: V2. The QPs of a format differ in QPN and CQN only."""
    overrides = {}
    for qp in range(4):
        shared = {
            "mtu": MTU, "version": 1 + qp // 2, "sq_depth": DEPTH, "cq_depth": DEPTH, "sl": 3,
            "udp_sport": 0xC123, "sq_psn": 0xFFFFF0, "start_index": 5,
        }  # fmt: skip
        overrides[0, 1, qp], overrides[1, 0, qp] = shared, shared
    return Fabric.build(
        FabricConfig(
            n_pes=2, qps=4, seed=cocotb.RANDOM_SEED, generation=generation, overrides=overrides,
            heap_bytes=2 << 20,
        )
    )  # fmt: skip


class Seen(NamedTuple):
    """What one run on one QP showed, without the numbers in which two QPs differ."""

    requests: list[bytes]
    responses: list[bytes]
    inbound: list[Write]
    results: list[Write]
    cqes: list[tuple[int, bytes]]
    memory: list[bytes]

    def compare(self, other: Seen) -> None:
        """Assert that both are equal; names the first difference."""
        for what in self._fields:
            mine, its = getattr(self, what), getattr(other, what)
            assert mine, f"no {what} at all"
            for number, pair in enumerate(zip(mine, its, strict=False)):
                assert pair[0] == pair[1], f"{what} {number}: clean {pair[0]!r}, dirty {pair[1]!r}"
            assert len(mine) == len(its), f"{what}: clean {len(mine)}, dirty {len(its)}"


def seen(rig: Rig, trace: Trace, qp: int, first_write: int, places: tuple[int, int]) -> Seen:
    """What QP ``qp`` showed; ``first_write``: write bursts of the runs before it."""
    plan = rig.fabric.qps[0, 1, qp]
    frames = []
    for pe, qpn in ((0, plan.peer_qpn), (1, plan.qpn)):
        # without destination QPN and ICRC
        frames.append([frame[:47] + frame[50:-4] for frame in trace.frames[pe, qpn]])
    acks = [frame for frame in frames[1] if frame[42] == Bth.ACK]
    frames[1] = [frame for frame in frames[1] if frame[42] != Bth.ACK] + acks[-1:]
    writes = [[write for write in trace.writes[first_write:] if write.pe == pe] for pe in (1, 0)]
    cqes = []
    for _, slot, data in trace.cqes[0, plan.qpn]:
        clean = bytearray(data)
        clean[1:3], clean[16:22] = bytes(2), bytes(6)
        cqes.append((slot, bytes(clean)))
    memory = [rig.lib.memory(pe, places[pe], TOTAL).tobytes() for pe in (0, 1)]
    return Seen(*frames, *writes, cqes, memory)


def noise(pe: Pe, rng: random.Random) -> None:
    """Fill all of the UB anew."""
    pe.ub[:] = rng.randbytes(len(pe.ub))


async def requests(pe: Pe, qp: int, base: int, dirty: bool) -> None:
    """The program: drawn from the seed alone, so the same whatever the UB holds."""
    rng, dirt = random.Random(f"dirty UB {pe.seed}"), random.Random(f"dirt {pe.seed} {qp}")
    buf = pe.local_tensor(0, 64 + 128 * 2)
    if dirty:
        await store(pe.qp(1, qp).sq_addr, dirt.randbytes(DEPTH * WQE_BYTES), True)
    for number in range(3 * DEPTH + 3):
        if dirty:
            noise(pe, dirt)
        size = rng.choice((0, 1, 3, 64, 65, 200, MTU - 1, MTU, MTU + 1, 1400))
        start, at, op = rng.randrange(SPAN - size), rng.randrange(SPAN - size), rng.choice(ATOMICS)
        operands = Operands(*[rng.getrandbits(64) for _ in range(4)])
        if number % 3 == 0:
            await pe.put_nbi(base + PUT + at, base + SOURCE + start, size, 1, qp)
        elif number % 3 == 1:
            await pe.get_nbi(base + GET + at, base + SOURCE + start, size, 1, qp)
        elif number % 2 or not pe.driver.by_id:
            wr = SendWr(0, pe.ptr(base + WORD, 1) + 4 * (number % 4 // 2) * (op in (33, 34)), 0, op)
            wr.operands = operands
            await aclshmemi_roce_post_send(pe, wr, 1, qp)
        else:
            source, target = base + SOURCE + start, base + GET + at
            await aclshmemx_roce_qp_get_defer(pe, target, source, buf, size, 1, qp, 0)
            await aclshmemx_roce_qp_put_submit(pe, base + PUT + at, source, buf, size, 1, qp, 1)
    await pe.quiet(1, qp)


def dirt_in(rig: Rig, qp: int) -> list[int]:
    """WQEs in the ring with a fence, se, csum_en, opcode_data, and bytes behind their last segment."""
    plan = rig.fabric.qps[0, 1, qp]
    slots = rig.lib.memory(0, plan.sq_base, DEPTH * WQE_BYTES).reshape(-1, WQE_BYTES)
    fields = slots[:, 12] & 0x18, slots[:, 12] & 1, slots[:, 1] & 6, slots[:, 8:12].T, slots[:, 80:].T
    return [int(np.atleast_2d(field).any(axis=0).sum()) for field in fields]


@cocotb.test()
@cocotb.parametrize(generation=[2, 3])
async def test_same_packets_bytes_and_cqes(dut, generation: int) -> None:
    """Clean and dirty, V1 and V2."""
    net = fabric(Generation(generation))
    trace = Trace(net)
    rig = Rig(dut, net, sinks=[trace])
    await rig.start()
    content = [random.Random(f"content {net.config.seed} {pe}").randbytes(TOTAL) for pe in (0, 1)]
    found: list[Seen] = []
    for qp in range(4):
        places = tuple(pe.heap_base + (1 << 20) for pe in net.pes)
        for pe in (0, 1):
            rig.lib.store(pe, places[pe], content[pe])
        first = len(trace.writes)

        async def main(pe: Pe, qp: int = qp) -> None:
            base = pe.alloc(TOTAL)
            assert base == pe.heap_base + (1 << 20)
            if pe.rank == 0:
                await requests(pe, qp, base, bool(qp % 2))

        result = await rig.run(main)
        await rig.settle()
        assert result.good, result.problems
        found.append(seen(rig, trace, qp, first, places))
        dirt = dirt_in(rig, qp)
        assert all(dirt) if qp % 2 else not any(dirt), dirt
    found[0].compare(found[1])
    found[2].compare(found[3])
    await rig.check(result)
