"""Every size class at every alignment class and MTU, both formats.

Sweep: WRITE, READ, both mixed x message sizes around 0, 1, the beat, the MTU and several MTUs x source and
target offsets in a beat x five MTUs x V1, V2.
Stimulus: two PEs put to and get from each other at the same time, one QP per MTU and format; target windows
do not overlap.
Checks: the judge's: every packet byte, memory byte inside and outside the windows, CQE and counter; nothing
outstanding.
Timing: default latencies. Does not prove: behaviour under stalls (test_stalls.py), more than two NICs (make
sim).
"""

from __future__ import annotations

import random

import cocotb

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from tb.sim.platform import Rig

PES = 2
MTUS = (256, 512, 1024, 2048, 4096)
QPS = 2 * len(MTUS)


def fabric(seed: int, **changes) -> Fabric:
    """One QP per (MTU, format) in each direction."""
    overrides = {}
    for qp in range(QPS):
        for pe in (0, 1):
            overrides[pe, 1 - pe, qp] = {"mtu": MTUS[qp % len(MTUS)], "version": 1 + qp // len(MTUS)}
    return Fabric.build(
        FabricConfig(n_pes=2, qps=QPS, seed=seed, overrides=overrides, heap_bytes=8 << 20, **changes)
    )


def sizes(mtu: int, rng: random.Random) -> list[int]:
    """Sizes at which something changes: pad, beat, packet count."""
    edges = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 63, 64, 65, 127, 128]
    edges += [
        mtu * k + d for k in (1, 2, 3) for d in (-65, -64, -63, -4, -3, -2, -1, 0, 1, 2, 3, 4, 63, 64, 65)
    ]
    rng.shuffle(edges)
    return edges


async def sweep(dut, *ops: str) -> None:
    """All sizes on all QPs, both ways at once; the operation of each message is drawn from `ops`."""
    rig = Rig(dut, fabric(cocotb.RANDOM_SEED))
    await rig.start()
    span = 3 * 4096 + 65 + 64

    async def talk(pe: Pe, qp: int, source: int, window: int) -> int:
        rng = random.Random(f"sizes {pe.seed} {pe.rank} {qp}")
        offsets = list(range(64))
        for number, size in enumerate(sizes(MTUS[qp % len(MTUS)], rng)):
            if number % 64 == 0:
                rng.shuffle(offsets)
            post = pe.put_nbi if rng.choice(ops) == "put" else pe.get_nbi
            # what lands here and what lands there have a window of their own
            target = window + rng.randrange(64) + (0 if post == pe.put_nbi else span + 4096)
            await post(target, source + offsets[number % 64], size, 1 - pe.rank, qp)
        await pe.quiet(1 - pe.rank, qp)
        return number + 1

    async def main(pe: Pe) -> int:
        source = pe.alloc(span)
        windows = [pe.alloc(2 * (span + 4096)) for _ in range(QPS)]
        await pe.store(source, pe.rng.randbytes(span))
        tasks = [await pe.spawn(talk(pe, qp, source, windows[qp]), f"QP {qp}") for qp in range(QPS)]
        return sum([await pe.join(task) for task in tasks])

    result = await rig.run(main)
    summary = await rig.check(result)
    assert summary.wqes == sum(result.returns) == 2 * QPS * 61


@cocotb.test()
async def test_sizes_alignments_mtus(dut):
    await sweep(dut, "put")


@cocotb.test()
async def test_reads_sizes_alignments_mtus(dut):
    await sweep(dut, "get")


@cocotb.test()
async def test_reads_among_writes(dut):
    await sweep(dut, "put", "get")
