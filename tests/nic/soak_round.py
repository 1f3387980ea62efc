"""One round of `make soak`: random traffic of two NICs under random link faults, judged.

The round's own seed draws fabric, knobs, fault rules and traffic. What it did goes to ``round.json`` in the
working directory, the log of faults to ``faults.txt``. tools/soak.py runs rounds and adds them up.
"""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path
from typing import Any

import cocotb

from pymodel.device import Pe
from pymodel.faults.log import counts, text
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from tests.nic.raw import RawQp
from tests.nic.stage import Stage, any_good

PES = 2
#: rings that a QP posts through in a round
LAPS = 40
#: CQEs of a whole ring come within so many cycles, whatever is lost
PATIENCE = 600_000
PARTS = ("anywhere", "header", "bth", "extended", "payload", "icrc")
#: counters that the report shows
SHOWN = (Cnt.RETRY, Cnt.DUPLICATE, Cnt.PSN_AHEAD, Cnt.NAK_SEQ_RX, Cnt.DROP_ICRC, Cnt.WQE)


def rules(rng: random.Random) -> list[str]:
    """One rule of each kind; together they hit 3 to 8 % of all packets."""
    actions = [
        "drop",
        f"duplicate {rng.randrange(1, 4)}",
        f"delay {rng.randrange(100, 3000)}ns",
        f"reorder {rng.randrange(1, 5)} within 4us",
        f"corrupt {rng.randrange(1, 5)} {rng.choice(('bits', 'bytes'))} of {rng.choice(PARTS)}",
        "truncate",
    ]
    rng.shuffle(actions)
    return [f"every 1/{rng.randrange(70, 200)}: {action}" for action in actions]


def fabric(rng: random.Random, qps: int) -> Fabric:
    """Everything mixed; timers from 2^6 to 2^9 units, limits of READs that the peer keeps."""
    overrides = {}
    for pe in range(PES):
        for q in range(qps):
            most = rng.choice((1, 2, 4, 16))
            overrides[pe, 1 - pe, q] = {
                "timer": rng.randrange(6, 10), "max_rd_atomic": most, "max_dest_rd_atomic": 16,
            }  # fmt: skip
    config = FabricConfig.mixed(
        PES, qps, rng.getrandbits(31), heap_bytes=32 << 20, sq_depths=(16, 32, 64), overrides=overrides
    )
    return Fabric.build(config)


def knobs(rng: random.Random) -> dict[str, int]:
    """Latencies and stalls of memory, link and BAR; each off half of the time."""
    drawn = {
        "mem_latency": rng.randrange(20, 300), "mem_latency_jitter": rng.randrange(200),
        "mem_stall": rng.randrange(16000), "mem_ooo": rng.randrange(40000),
        "commit_delay": rng.randrange(150),
        "link_latency": rng.randrange(20, 300), "link_latency_jitter": rng.randrange(100),
        "link_stall_tx": rng.randrange(8000), "link_stall_rx": rng.randrange(8000),
    }  # fmt: skip
    return {name: value for name, value in drawn.items() if rng.random() < 0.5}


@cocotb.test()
async def soak(dut: Any) -> None:
    """LAPS rings of each QP."""
    rng = random.Random(f"soak {cocotb.RANDOM_SEED}")
    faults = rules(rng)
    stage = Stage(
        dut, fabric(rng, rng.choice((2, 4, 8))), (), knobs=knobs(rng), faults=faults, stall_limit=PATIENCE
    )
    await stage.start()
    rig, memory = stage.rig, []

    async def traffic(qp: RawQp) -> None:
        own = random.Random(f"soak {stage.seed} {qp.plan.pe} {qp.plan.qpn}")
        for _ in range(LAPS):
            number = own.randrange(1, qp.plan.sq_depth + 1)
            silent = [own.random() < 0.2 for _ in range(number - 1)] + [False]
            await qp.post(*[any_good(qp, own, ce=int(not quiet)) for quiet in silent])
            found = await qp.collect(silent.count(False), PATIENCE)
            assert not found["error_code"].any(), f"QPN {qp.plan.qpn}: {found['error_code']}"
            await qp.ring_cq()
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    async def main(pe: Pe) -> None:
        mine = [qp for key, qp in stage.ends.items() if key[0] == pe.rank]
        for task in [await pe.spawn(traffic(qp), f"QPN {qp.plan.qpn}") for qp in mine]:
            await pe.join(task)

    try:
        await rig.check(await rig.run(main, hang_after=PATIENCE))
    finally:
        log = rig.fault_log()
        Path("faults.txt").write_text("\n".join([*faults, text(log, rig.lib.fault_rules), ""]))
    shown = {counter.name.lower(): rig.total(counter) for counter in SHOWN}
    report = {
        "seed": stage.seed, "cycles": rig.lib.cycle, "packets": rig.summary.packets,
        "bytes": rig.summary.bytes, "faults": counts(log), "counters": shown,
        # KiB at the most, after the first half of the laps and at the end
        "memory": [memory[len(memory) // 2], memory[-1]],
    }  # fmt: skip
    Path("round.json").write_text(json.dumps(report))
