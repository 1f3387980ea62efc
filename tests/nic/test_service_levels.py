"""Weights of service levels: shares of the link by packets, with READs and atomics among the WRITEs.

Sweep: weights 1, 1, 1 and 1, 2, 4 and 6, 1, 0 (which counts as 1), on three levels of two QPs each.
Stimulus: rings kept full with WRITEs of two packets, READs and atomics, MTU 4096, all QPs at the same time.
Checks: request packets of each level while all have work, from the records: within a twentieth of the
weights; the two QPs of a level share alike; nobody starves; the judge's.
Timing: none. Not proved: more than eight QPs with long messages, among which only lanes weigh; a share larger
than the QPs of its level can use.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import cocotb
import numpy as np

from pymodel.formats.wqe import WqeOp
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Csr
from tb.sim.records import Kind
from tests.nic.raw import RawQp
from tests.nic.stage import READS, WORDS, WRITES, Stage, local

PES = 2
LEVELS = (0, 3, 7)
QPS = 2 * len(LEVELS)
DEPTH = 32
#: WQEs of the level with the largest share
COUNT = 160
WEIGHTS = {"equal": (1, 1, 1), "one, two, four": (1, 2, 4), "six, one, none": (6, 1, 0)}


@cocotb.test()
@cocotb.parametrize(weights=list(WEIGHTS))
async def test_shares(dut, weights):
    """QP q has level LEVELS[q // 2]."""
    overrides = {(0, 1, q): {"sl": LEVELS[q // 2], "sq_depth": DEPTH, "cq_depth": DEPTH} for q in range(QPS)}
    fabric = Fabric.build(
        FabricConfig(
            n_pes=2, qps=QPS, seed=cocotb.RANDOM_SEED, mtus=(4096,), heap_bytes=32 << 20, overrides=overrides
        )
    )
    stage = Stage(dut, fabric, ())
    await stage.start()
    chosen = WEIGHTS[weights]
    word = sum(w << 8 * level for w, level in zip(chosen, LEVELS, strict=True))
    await stage.console[0].write(Csr.SL_WEIGHT, word)
    sent: list[tuple[int, int]] = []
    to = {stage.ends[0, 1, q].plan.peer_qpn: q for q in range(QPS)}

    def sink(records: np.ndarray, side: np.ndarray) -> None:
        for r in records[(records["kind"] == Kind.TXPKT) & (records["pe"] == 0)]:
            start = int(r["off"]) % len(side)
            head = side[start : start + 54].tobytes()
            sent.append((int(r["time"]), to[int.from_bytes(head[47:50], "big")]))

    stage.rig.sinks.append(sink)
    done: list[int] = []

    async def stream(qp: RawQp) -> None:
        # rings stay full until the first QP has sent all of its own
        items: list[dict[str, Any]] = []
        for k in range(DEPTH):
            item = qp.fields(8192, WRITES + 64 * k)
            if k % 8 == 1:
                item = qp.read(64, laddr=local(qp, READS + 64 * k))
            elif k % 8 == 5:
                item = qp.atomic(WqeOp.FA64, WORDS, laddr=local(qp, READS + 64 * k), swap_add=1)
            items.append(item)
        await qp.post(*items)
        left = COUNT
        while left and not done:
            assert await qp.until(1, 200_000)
            ready = min(qp.visible(), left)
            first = qp.head % DEPTH
            assert not qp.take(ready)["error_code"].any()
            await qp.ring_cq()
            left -= ready
            await qp.post(*[items[(first + k) % DEPTH] for k in range(ready)])
        if not done:
            done.append(stage.rig.lib.cycle)
        assert await qp.complete(DEPTH) == [0] * DEPTH

    jobs = [(stage.ends[0, 1, q], stream(stage.ends[0, 1, q])) for q in range(QPS)]
    begun = stage.rig.lib.cycle
    await stage.beside(*jobs)
    await stage.rig.settle()
    # from the time when every ring is full to the time when the first one is no longer refilled
    window = [q for time, q in sent if begun + 3000 < time < done[0]]
    shares = Counter(q // 2 for q in window)
    total, due = len(window), sum(max(w, 1) for w in chosen)
    assert total > 300, f"only {total} packets"
    for level, weight in enumerate(chosen):
        want = max(weight, 1) / due
        got = shares[level] / total
        assert abs(got - want) < 0.05 * want, f"level {level}: {got:.3f} of the packets for {want:.3f}"
        pair = [window.count(2 * level), window.count(2 * level + 1)]
        assert abs(pair[0] - pair[1]) <= 0.15 * sum(pair) + 4, f"level {level}: QPs {pair}"
    cocotb.log.info("%s: %s of %d packets", weights, dict(shares), total)
    await stage.rig.check()
