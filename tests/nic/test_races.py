"""Packets of a QP's former life that a slow link brings into the next one (wire.md 5, nic.md 6).

Sweep: WRITEs, READs and atomics of both directions on six QPs, held up on the link by a rule; both ends reset
while they are on their way, set again with start PSNs anywhere, then late packets arrive.
Stimulus: full rings, a delay on every request, RESET and SET inside the delay.
Checks: late packets do arrive in the new life; no byte of either heap changes by them; no CQE comes of them;
the new life then completes all its WQEs well; the judge's.
Timing: none. Not proved: PSNs of two lives that lie in the same window, which no receiver can tell apart.
"""

from __future__ import annotations

import random

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp
from pymodel.nic.params import Cnt
from pymodel.platform import sleep
from tests.nic.raw import RawQp, renew
from tests.nic.stage import DEPTH, Stage, any_good

PES = 2
QPS = 6
LAPS = 3
#: cycles until the NIC has sent what was posted; the link holds it for far longer
SENT = 1500
HELD = "100us"
PATIENCE = 300_000


def far(rng: random.Random, old: int) -> int:
    """A PSN whose window lies apart from that of a former life on both sides."""
    return (old + rng.choice((-1, 1)) * rng.randrange(1 << 16, 1 << 22)) % (1 << 24)


@cocotb.test()
async def test_late_packets_of_a_former_life(dut) -> None:
    """Held up requests reach QPs that were reset and set in between."""
    seed = cocotb.RANDOM_SEED
    rng = random.Random(f"races {seed}")
    ends = {(pe, 1 - pe, q): {"sq_depth": DEPTH, "cq_depth": DEPTH, "timer": 0}
            for pe in range(PES) for q in range(QPS)}  # fmt: skip
    config = FabricConfig(n_pes=PES, qps=QPS, seed=seed, mtus=(256,), heap_bytes=16 << 20, overrides=ends)
    stage = Stage(dut, Fabric.build(config), ())
    await stage.start()
    rig = stage.rig
    psns = {q: (stage.ends[0, 1, q].plan.sq_psn, stage.ends[1, 0, q].plan.sq_psn) for q in range(QPS)}
    late = (Cnt.DUPLICATE, Cnt.PSN_AHEAD)

    async def post(pe: Pe) -> None:
        for q in range(QPS):
            qp = stage.ends[pe.rank, 1 - pe.rank, q]
            await qp.post(*[any_good(qp, rng) for _ in range(DEPTH)])
        await sleep(SENT)

    async def use(qp: RawQp) -> None:
        await qp.post(*[any_good(qp, rng) for _ in range(DEPTH)])
        found = await qp.collect(DEPTH, PATIENCE)
        assert not found["error_code"].any(), f"QPN {qp.plan.qpn}: {found['error_code']}"

    async def again(pe: Pe) -> None:
        mine = [qp for key, qp in stage.ends.items() if key[0] == pe.rank]
        for task in [await pe.spawn(use(qp), f"QPN {qp.plan.qpn}") for qp in mine]:
            await pe.join(task)

    for _ in range(LAPS):
        rig.lib.set_faults(f"opcode request: delay {HELD}")
        await rig.run(post, sanitize=False)
        for qp in stage.ends.values():
            assert await stage.console[qp.plan.pe].command(CmdOp.RESET, CmdObj.QP, qp.plan.qpn) == 0
        before = sum([await stage.console[pe].counter(n) for pe in (0, 1) for n in late])
        for q in range(QPS):
            psns[q] = far(rng, psns[q][0]), far(rng, psns[q][1])
            await renew(rig, stage.ends[0, 1, q], stage.ends[1, 0, q], psns[q], cqs=True)
        heaps = [rig.lib.memory(pe.rank, pe.heap_base, pe.heap_size) for pe in rig.fabric.pes]
        old = [heap.copy() for heap in heaps]
        rig.lib.set_faults([])
        await rig.lib.cycles(60_000)
        await rig.settle()
        assert all(np.array_equal(a, b) for a, b in zip(old, heaps, strict=True)), "written by a former life"
        assert not any(qp.visible() for qp in stage.ends.values()), "a CQE of a former life"
        after = sum([await stage.console[pe].counter(n) for pe in (0, 1) for n in late])
        assert after - before >= QPS, f"{after - before} late packets came into the new life"
        await rig.run(again, sanitize=False)
    await rig.check()
