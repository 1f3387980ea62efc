"""One round of `make soak`: random traffic of two NICs under random faults of link and memory, judged.

The round's own seed draws fabric, knobs, fault rules and traffic. Behind the traffic on a faulty link come
windows in which memory fails and the link does not: words in the windows of a few QPs answer with SLVERR or
DECERR, any access may be late. These QPs may fail as the pages say, and are set again; no other may notice.
What it did goes to ``round.json`` in the working directory, the log of faults to ``faults.txt``.
tools/soak.py runs rounds and adds them up.
"""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path
from typing import Any

import cocotb

from pymodel.device import Pe
from pymodel.faults.log import counts, memory_counts, text
from pymodel.formats.wqe import WqeOp
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from tests.nic.raw import FLUSH, RawQp, renew
from tests.nic.send_scene import Scene, feed, pour
from tests.nic.stage import OWN, Stage, any_good, local

PES = 2
#: rings that a QP posts through in a round
LAPS = 40
#: windows with errors of memory
WINDOWS = 3
#: messages that the QPs with receive queues send in a round
MESSAGES = 250
#: bytes of the window of a QP in each heap
WINDOW = 96 << 10
#: what a WQE may end with where memory fails: b2, b3 at home, a6 at the peer, a2 where that is gone
BUS_CODES = {0xB2, 0xB3, 0xA6, 0xA2, FLUSH}
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
    """Everything mixed; timers from 2^6 to 2^9 units, limits of READs that the peer keeps.

    The last QP has receive queues.
    """
    overrides: dict[tuple[int, int, int], dict[str, Any]] = {}
    for pe in range(PES):
        for q in range(qps):
            most = rng.choice((1, 2, 4, 16))
            overrides[pe, 1 - pe, q] = {
                "timer": rng.randrange(6, 10), "max_rd_atomic": most, "max_dest_rd_atomic": 16,
            }  # fmt: skip
            if q == qps - 1:
                depth = rng.choice((4, 16, 32))
                overrides[pe, 1 - pe, q] |= {"rq_depth": depth, "recv_cq_depth": 64, "rnr_retry": 7}
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


def memory_rules(stage: Stage, victims: list[int], rng: random.Random) -> list[str]:
    """Random words of the victims' windows fail, and accesses anywhere are late."""
    found = [f"memory every 1/{rng.randrange(30, 150)}: stall {rng.randrange(100, 3000)}ns"]
    for q in victims:
        for pe in range(PES):
            start = local(stage.ends[pe, 1 - pe, q], 0)
            way, kind = rng.choice(("read", "write", "")), rng.choice(("slverr", "decerr"))
            place = f"memory pe {pe} {way} {start:#x}-{start + WINDOW - 1:#x}"
            found.append(f"{place} every 1/{rng.randrange(20, 120)}: {kind}")
    return found


async def failing_memory(stage: Stage, rng: random.Random) -> None:
    """One window: a ring on every QP, some of which meet errors of memory and are set again."""
    rig, ends = stage.rig, stage.ends
    numbers = sorted({q for _, _, q in ends})
    victims = rng.sample(numbers, rng.randrange(1, 1 + len(numbers) // 2))
    await rig.settle()
    rig.set_faults(memory_rules(stage, victims, rng))

    async def ring(qp: RawQp, victim: bool) -> None:
        own = random.Random(rng.getrandbits(64))
        items = [any_good(qp, own) for _ in range(qp.plan.sq_depth)]
        for item in items:
            if victim and item["msg_opcode"] == WqeOp.WRITE and own.random() < 0.5:
                item["laddr"] = local(qp, OWN + own.randrange(1 << 13))
        await qp.post(*items)
        codes = (await qp.collect(len(items), PATIENCE))["error_code"].tolist()
        await qp.ring_cq()
        bad = next((n for n, code in enumerate(codes) if code), len(codes))
        good = not codes[bad:] or (victim and codes[bad] in BUS_CODES and set(codes[bad + 1 :]) <= {FLUSH})
        assert good, f"QPN {qp.plan.qpn}: {codes}"

    async def main(pe: Pe) -> None:
        mine = [(qp, key[2] in victims) for key, qp in ends.items() if key[0] == pe.rank]
        for task in [await pe.spawn(ring(*one), f"QPN {one[0].plan.qpn}") for one in mine]:
            await pe.join(task)

    await rig.run(main, hang_after=PATIENCE)
    await rig.settle()
    rig.set_faults([])
    for q in victims:
        await renew(rig, ends[0, 1, q], ends[1, 0, q], (rng.getrandbits(24), rng.getrandbits(24)), cqs=True)


@cocotb.test()
async def soak(dut: Any) -> None:
    """LAPS rings of each QP."""
    rng = random.Random(f"soak {cocotb.RANDOM_SEED}")
    faults = rules(rng)
    qps = rng.choice((2, 4, 8))
    stage = Scene(dut, fabric(rng, qps), (), knobs=knobs(rng), faults=faults, stall_limit=PATIENCE)
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

    pipes = [stage.pipe(pe, qps - 1) for pe in range(PES)]

    async def main(pe: Pe) -> None:
        mine = [qp for key, qp in stage.ends.items() if key[0] == pe.rank and key[2] != qps - 1]
        jobs = {f"QPN {qp.plan.qpn}": traffic(qp) for qp in mine}
        draws = [random.Random(f"soak messages {stage.seed} {pe.rank} {end}") for end in (0, 1)]
        jobs["messages"] = pour(stage, pipes[pe.rank], MESSAGES, draws[0], False, (1, 2, 26, 34))
        jobs["receives"] = feed(stage, pipes[1 - pe.rank], MESSAGES, draws[1], 2000)
        for task in [await pe.spawn(job, name) for name, job in jobs.items()]:
            await pe.join(task)

    try:
        result = await rig.run(main, hang_after=PATIENCE)
        for _ in range(WINDOWS):
            await failing_memory(stage, rng)
        await rig.check(result)
    finally:
        log, late = rig.fault_log(), rig.memory_log()
        Path("faults.txt").write_text("\n".join([*faults, text(log, rig.lib.fault_rules, late), ""]))
    shown = {counter.name.lower(): rig.total(counter) for counter in SHOWN}
    report = {
        "seed": stage.seed, "cycles": rig.lib.cycle, "packets": rig.summary.packets,
        "bytes": rig.summary.bytes, "faults": counts(log), "counters": shown | memory_counts(late),
        # KiB at the most, after the first half of the laps and at the end
        "memory": [memory[len(memory) // 2], memory[-1]],
    }  # fmt: skip
    Path("round.json").write_text(json.dumps(report))
