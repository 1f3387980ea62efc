"""Two NICs that flood each other through links which stall completely do not lock up.

Sweep: backpressure phases of 1 to 6000 cycles on each of the four ports (out of and into each NIC), alone and
in all combinations, while memory is quick or slow; small messages (as many ACKs as requests), long ones,
both.
Stimulus: eight QPs in each direction keep their rings full with WRITEs, so that every port always has
something to send, requests and ACKs; software reacts at once.
Checks: the judge's (so nothing is lost, and nothing is left over); every WQE completes, while the stalls go
on; the ports were indeed blocked for a thousand cycles and more.
Timing: no standstill of more than 44,000 cycles. Not proved: more than two NICs (make sim).
"""

from __future__ import annotations

import random

import cocotb
import numpy as np
import pytest

from pymodel.device import DeviceOptions, Pe
from pymodel.host.table import Fabric, FabricConfig
from tb.sim.platform import Rig
from tb.sim.records import Kind
from tests.nic.raw import RawQp, fill_sources

PES = 2
QPS = 8
PORTS = [(pe, knob) for pe in (0, 1) for knob in ("link_stall_tx", "link_stall_rx")]
SIZES = {
    "small": lambda rng: rng.choice((0, 1, 8, 64, 100)),
    "long": lambda rng: rng.choice((4096, 8192, 5000, 20000)),
    "both": lambda rng: rng.choice((0, 8, 64, 64, 300, 4096, 9000)),
}
#: WQEs per QP
COUNTS = {"small": 600, "long": 24, "both": 100}


class Weather:
    """Blocks ports for a while, again and again; a port that is to stall pauses before its very next beat."""

    def __init__(self, rig: Rig, seed: int, longest: int) -> None:
        self.rig, self.rng, self.longest = rig, random.Random(f"weather {seed}"), longest
        self.phases = 0
        self.over = False
        self.task = cocotb.start_soon(self._blow())

    async def _blow(self) -> None:
        lib, rng = self.rig.lib, self.rng
        while not self.over:
            # all four at once in every third phase: that is where a lock-up would start
            every = self.phases % 3 == 1
            blocked = PORTS if every else [p for p in PORTS if rng.randrange(2)]
            most = self.longest if every else int(2 ** rng.uniform(0, np.log2(self.longest)))
            for pe, knob in blocked:
                lib.set_knob("stall_max", most, pe)
                lib.set_knob(knob, 65536, pe)
            # a busy port comes to its next beat in this time, and pauses once
            await lib.cycles(60)
            for pe, knob in PORTS:
                lib.set_knob(knob, 0, pe)
            self.phases += 1
            # the pauses, then time in which all ports are free
            await lib.cycles(most + rng.randrange(200, 3000))

    async def end(self) -> None:
        """No more stalls; waits for the last one."""
        self.over = True
        await self.task


class Gaps:
    """Sink: longest time in which each port carried no packet, while the run is on."""

    def __init__(self) -> None:
        self.last: dict[tuple[int, int], int] = {}
        self.longest: dict[tuple[int, int], int] = {}

    def __call__(self, records: np.ndarray, side: np.ndarray) -> None:
        """Look at one batch."""
        for kind in (Kind.TXPKT, Kind.RXPKT):
            for pe in (0, 1):
                times = records["time"][(records["kind"] == kind) & (records["pe"] == pe)].astype(np.int64)
                if not times.size:
                    continue
                before = self.last.get((pe, kind), int(times[0]))
                gap = int(np.diff(times, prepend=before).max())
                self.longest[pe, kind] = max(self.longest.get((pe, kind), 0), gap)
                self.last[pe, kind] = int(times[-1])


async def keep_full(qp: RawQp, sizes: list[int], rng: random.Random) -> int:
    """Posts a WQE per size, as many outstanding as the ring holds; gives how many were good."""
    left = [qp.fields(size, rng.randrange(1 << 15)) for size in sizes]
    good = outstanding = 0
    while left or outstanding:
        batch, left = left[: qp.plan.sq_depth - outstanding], left[qp.plan.sq_depth - outstanding :]
        if batch:
            await qp.post(*batch)
            outstanding += len(batch)
        await qp.until(1)
        codes = qp.take(qp.visible())["error_code"].tolist()
        await qp.ring_cq()
        outstanding -= len(codes)
        good += codes.count(0)
    return good


async def flood(dut, kind: str, count: int, longest: int, knobs: dict[str, int]) -> None:
    """``count`` WQEs on each of the QPs in both directions, with backpressure of up to ``longest`` cycles."""
    seed = cocotb.RANDOM_SEED
    rig = Rig(dut, Fabric.build(FabricConfig.mixed(2, QPS, seed, sq_depths=(16, 32))), knobs=knobs)
    await rig.start()
    await fill_sources(rig, seed)
    gaps = Gaps()
    rig.sinks.append(gaps)
    qps = {(pe, q): RawQp(rig, pe, 1 - pe, q) for pe in (0, 1) for q in range(QPS)}

    async def main(pe: Pe) -> int:
        tasks = []
        for q in range(QPS):
            rng = random.Random(f"flood {seed} {pe.rank} {q}")
            sizes = [SIZES[kind](rng) for _ in range(count)]
            tasks.append(await pe.spawn(keep_full(qps[pe.rank, q], sizes, rng), f"QP {q}"))
        return sum([await pe.join(task) for task in tasks])

    weather = Weather(rig, seed, longest)
    result = await rig.run(main, options=DeviceOptions(poll_batch=1), hang_after=4 * longest + 20_000)
    await weather.end()
    assert result.returns == [QPS * count] * 2, "every WQE completes well"
    summary = await rig.check(result)
    assert summary.wqes == 2 * QPS * count
    assert weather.phases >= 6, f"only {weather.phases} phases of stalls"
    assert min(gaps.longest.values()) > longest // 6, f"ports were never blocked for long: {gaps.longest}"
    cocotb.log.info("%d phases, %d cycles, longest gaps %s", weather.phases, summary.cycles, gaps.longest)


@cocotb.test()
@cocotb.parametrize(kind=list(SIZES))
async def test_flood_through_stalling_links(dut, kind):
    count = COUNTS[kind]
    # no mem_stall: its pauses would be as long as the link's
    slow = {"mem_latency": 150, "mem_latency_jitter": 100, "commit_delay": 60} if kind == "both" else {}
    await flood(dut, kind, count, 6000, slow)


@cocotb.test()
@cocotb.parametrize(kind=list(SIZES))
@pytest.mark.long
@pytest.mark.sim_timeout(1200)
async def test_flood_for_long(dut, kind):
    await flood(dut, kind, 10 * COUNTS[kind], 12000, {"mem_latency_jitter": 80})
