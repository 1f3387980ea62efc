"""The end of a run waits for what is under way, however slow memory and link are.

Sweep: one slow thing at a time: memory, link, visibility of writes, pauses of every channel.
Stimulus: WRITEs, READs and atomics that nobody waits for, and a latency that is lowered at the end.
Checks: the judge misses nothing.
Timing: latencies of 2500 to 4000 cycles.
"""

from __future__ import annotations

import random

import cocotb

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from tb.sim.platform import Rig
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


@cocotb.test()
@cocotb.parametrize(what=list(SLOW))
async def test_everything_arrives(dut, what):
    fabric = Fabric.build(FabricConfig(n_pes=2, qps=2, seed=cocotb.RANDOM_SEED, mtus=(1024,)))
    rig = Rig(dut, fabric, knobs=SLOW[what])
    await rig.start()
    await fill_sources(rig, cocotb.RANDOM_SEED)
    rng = random.Random(f"settle {cocotb.RANDOM_SEED}")

    async def main(pe: Pe) -> None:
        for q in range(2):
            qp = RawQp(rig, pe.rank, 1 - pe.rank, q)
            await qp.post(*[any_good(qp, rng) for _ in range(6)])

    await rig.run(main, sanitize=False)
    for name in SLOW[what]:
        rig.lib.set_knob(name, 8)
    await rig.check()
