"""Mixed WRITE traffic under every combination class of stalls; no torn CQE, no false overrun.

Sweep: memory stalls, latency with jitter, out-of-order responses, delayed commits, link stalls out of and
into the NIC, MMIO gaps: each on or off, in nine phases in which every pair of them takes all four settings
(all 128 settings in the long test); V1 and V2, both strides, depths 2 to 32, indices and PSNs near wraps.
Stimulus: in each direction four QPs driven by the device API with random sizes, alignments and quiets, and
four whose ring is kept exactly full by hand: the next WQE is announced in the cycle in which a CQE becomes
visible.
Checks: the judge's; from the records, that each CQE is one write beat with all of its bytes, which becomes
visible at once; no doorbell is taken for an overrun; the stalls cost time.
Timing: none. Not proved: progress under stalls that last for thousands of cycles (test_flood.py).
"""

from __future__ import annotations

import itertools
import random

import cocotb
import numpy as np
import pytest

from pymodel.device import DeviceOptions, Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import AxiId, Cnt
from tb.sim.platform import Rig
from tb.sim.records import Kind
from tests.nic.raw import Console, RawQp, fill_sources

PES = 2
#: knob settings: off, on
KNOBS = {
    "mem_stall": (0, 16000),
    "mem_latency": (20, 220),
    "mem_ooo": (0, 40000),
    "commit_delay": (0, 150),
    "link_stall_tx": (0, 10000),
    "link_stall_rx": (0, 10000),
    "axil_gap": (0, 60),
}
#: comes on together with the knob
WITH = {"mem_latency": {"mem_latency_jitter": 180}, "axil_gap": {"axil_skew": 20000}}
API_QPS, FULL_QPS = 4, 4
FULL_DEPTHS = (2, 4, 8, 32)


def pairwise() -> list[dict[str, bool]]:
    """The orthogonal array L8 (in any two columns each pair of levels stands twice), all on in its first row;
    all off as the yardstick.
    """
    rows = []
    for a, b, c in itertools.product((1, 0), repeat=3):
        levels = (a, b, c, 1 ^ a ^ b, 1 ^ a ^ c, 1 ^ b ^ c, a ^ b ^ c)
        rows.append(dict(zip(KNOBS, map(bool, levels), strict=True)))
    return [*rows, dict.fromkeys(KNOBS, False)]


def fabric(seed: int) -> Fabric:
    """Four QPs for the device API (depths 32, 64), then four of small depths for exactly full rings."""
    rng = random.Random(f"stalls {seed}")
    overrides = {}
    for pe, qp in itertools.product((0, 1), range(API_QPS + FULL_QPS)):
        depth = rng.choice((32, 64)) if qp < API_QPS else FULL_DEPTHS[qp - API_QPS]
        overrides[pe, 1 - pe, qp] = {"sq_depth": depth, "cq_depth": depth}
    return Fabric.build(
        FabricConfig.mixed(2, API_QPS + FULL_QPS, seed, heap_bytes=16 << 20, overrides=overrides)
    )


class CqeWatch:
    """Sink: each CQE is one write of one beat with all of its bytes, committed whole."""

    def __init__(self, fabric: Fabric) -> None:
        self.rings = {
            pe.rank: sorted((q.cq_base, q.cq_base + q.cq_depth * q.cq_stride, q.cq_stride) for q in pe.qps)
            for pe in fabric.pes
        }
        self.written = self.committed = 0
        self.torn: list[str] = []

    def __call__(self, records: np.ndarray, side: np.ndarray) -> None:
        """Look at one batch."""
        mine = records[records["id"] == AxiId.CQE]
        for r in mine[mine["kind"] == Kind.AXI_W]:
            self.written += 1
            strobe, stride = int(r["aux0"]), self._stride(r, int(r["addr"]))
            lane = (strobe & -strobe).bit_length() - 1
            whole = ((1 << stride) - 1) << lane
            if not (r["len"] == 1 and strobe == whole and r["aux1"] == stride and lane % stride == 0):
                self.torn.append(f"write {r}")
        for r in mine[mine["kind"] == Kind.COMMIT]:
            self.committed += 1
            if r["len"] != self._stride(r, int(r["addr"])):
                self.torn.append(f"commit {r}")

    def _stride(self, r: np.void, addr: int) -> int:
        # 64-byte beats: an address in the same beat as a ring of stride 32 belongs to it
        return next((s for low, high, s in self.rings[int(r["pe"])] if low & ~63 <= addr < high), -1)


async def api_traffic(pe: Pe, qp: int, count: int, rng: random.Random, source: int, target: int) -> int:
    """Random puts with a quiet now and then, as programs do it."""
    for _ in range(count):
        size = rng.choice((0, rng.randrange(1, 65), rng.randrange(1, 1500), rng.randrange(1, 9000)))
        await pe.put_nbi(target + rng.randrange(64), source + rng.randrange(64), size, 1 - pe.rank, qp)
        if rng.randrange(20) == 0:
            await pe.quiet(1 - pe.rank, qp)
    await pe.quiet(1 - pe.rank, qp)
    return count


async def full_traffic(qp: RawQp, count: int, rng: random.Random) -> int:
    """Keeps exactly depth WQEs outstanding; the next follows in the cycle in which a CQE becomes visible."""

    def one() -> dict:
        return qp.fields(rng.choice((0, 1, 8, 64, 200, rng.randrange(1, 1200))), rng.randrange(1 << 14))

    depth = qp.plan.sq_depth
    await qp.post(*[one() for _ in range(depth)])
    done = 0
    while done < count:
        await qp.until(1)
        # one doorbell for each CQE: each of them fills the ring to the brim
        for _ in range(qp.visible()):
            (entry,) = qp.take(1)
            code = entry["error_code"]
            assert code == 0, f"WQE {entry['wqe_id'] >> 3}: code {code:#x}"
            done += 1
            if done + depth <= count:
                # SQ first: the CQ doorbell must not be what makes room in the SQ
                await qp.post(one())
            await qp.ring_cq()
        if done + depth > count and done == max(count, depth):
            break
    return max(count, depth)


async def stalls(dut, phases: list[dict[str, bool]], api: int, full: int) -> None:
    """All phases in one run; API QPs post ``api`` WQEs a phase, full rings ``full``."""
    rig = Rig(dut, fabric(cocotb.RANDOM_SEED))
    await rig.start()
    watch = CqeWatch(rig.fabric)
    rig.sinks.append(watch)
    await fill_sources(rig, cocotb.RANDOM_SEED)
    qps = {(pe, q): RawQp(rig, pe, 1 - pe, API_QPS + q) for pe in (0, 1) for q in range(FULL_QPS)}
    posted, before = 0, rig.lib.cycle
    times = []
    for number, phase in enumerate(phases):
        for name, on in phase.items():
            rig.lib.set_knob(name, KNOBS[name][on])
            for other, value in WITH.get(name, {}).items():
                rig.lib.set_knob(other, value if on else 0)

        async def main(pe: Pe, number: int = number) -> int:
            def rng(*what: int) -> random.Random:
                return random.Random(f"stalls {pe.seed} {number} {pe.rank} {what}")

            source = pe.alloc(16 << 10)
            windows = [pe.alloc(16 << 10) for _ in range(API_QPS)]
            await pe.store(source, rng().randbytes(16 << 10))
            jobs = [api_traffic(pe, q, api, rng(0, q), source, windows[q]) for q in range(API_QPS)]
            jobs += [full_traffic(qps[pe.rank, q], full, rng(1, q)) for q in range(FULL_QPS)]
            tasks = [await pe.spawn(job, f"QP {q}") for q, job in enumerate(jobs)]
            return sum([await pe.join(task) for task in tasks])

        result = await rig.run(main, options=DeviceOptions(poll_batch=1))
        assert result.good, result.problems
        posted += sum(result.returns)
        times.append(rig.lib.cycle - before)
        before = rig.lib.cycle
    await rig.settle()
    for pe in (0, 1):
        assert await Console(rig, pe).counter(Cnt.DB_OVERRUN) == 0
    summary = await rig.check(result)
    assert not watch.torn, watch.torn[:4]
    assert summary.wqes == posted
    assert watch.written == watch.committed == posted, "each WQE has one CQE"
    still = next(t for t, phase in zip(times, phases, strict=True) if not any(phase.values()))
    stormy = next(t for t, phase in zip(times, phases, strict=True) if all(phase.values()))
    assert stormy > 2 * still, f"{stormy} cycles with every stall, {still} without: where were they?"
    cocotb.log.info("cycles per phase: %s", times)


@cocotb.test()
async def test_stalls_pairwise(dut):
    await stalls(dut, pairwise(), 20, 60)


@cocotb.test()
@pytest.mark.long
@pytest.mark.sim_timeout(1200)
async def test_stalls_all_combinations(dut):
    rows = [dict(zip(KNOBS, row, strict=True)) for row in itertools.product((False, True), repeat=len(KNOBS))]
    random.shuffle(rows)
    await stalls(dut, rows, 20, 60)
