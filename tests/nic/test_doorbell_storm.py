"""Bad doorbells of every kind among the good ones of QPs that stream: each counted once, nobody disturbed.

Sweep: SQ doorbells that are stale by little and much, with each low bit, of each partial strobe, on pages of
other QPs, of QPs that are none, for QPs that are none, to a QP in RESET; RQ doorbells, own, foreign, partial;
CQ doorbells that are backward, beyond, of foreign and unknown CQs, with each cq_sta; misaligned ones, and
offsets without a register. V1 and V2.
Stimulus: one behind the other from the mailbox, in random order, while four QPs in each direction ring good
doorbells of one to eight WQEs and as many CQEs; some QPs idle, one is in RESET.
Checks: counters of doorbells exactly as given, none else; every WQE of the streams completes well; no event,
no QP leaves its state; the judge's. Timing: none.
Not proved: verdicts that hang on a completion that is on its way (decided by neither).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import cocotb

from pymodel.device import Pe
from pymodel.formats import doorbell
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp
from pymodel.nic.params import Cnt, Csr
from pymodel.platform import sleep
from tests.nic.raw import RawQp
from tests.nic.stage import DEPTH, Stage, any_good
from tests.nic.trace import doorbell_counters

PES = 2
BUSY, IDLE, GONE, QPS = range(4), 4, 5, 6
PAGES, PAGE = 0x0800_0000, 4096
SQ, RQ, CQ = 0, 8, 16
#: bad doorbells for each NIC
COUNT = 1200


class Storm:
    """Bad doorbells of one NIC."""

    def __init__(self, stage: Stage, pe: int, rng: random.Random) -> None:
        self.lib, self.pe, self.rng = stage.rig.lib, pe, rng
        self.ends = {q: stage.ends[pe, 1 - pe, q] for q in range(QPS)}
        self.due: Counter[str] = Counter()
        used, cqs = {e.plan.qpn for e in self.ends.values()}, {e.plan.cqn for e in self.ends.values()}
        #: pages that no QP has; QPNs in range that were never set; CQs that nobody has
        self.none = (0, 1, 66, 67, 1000, 0x7FFF, 0xFFFF)
        self.unset = [n for n in range(2, 66) if n not in used]
        self.others = [n for n in range(64) if n not in cqs]

    def bad(self) -> tuple[int, int, int, str]:
        """(address, data, strobe, counter or nothing) of the next one."""
        rng = self.rng
        qp = self.ends[rng.choice((*BUSY, IDLE))]
        plan, page = qp.plan, PAGES + PAGE * qp.plan.qpn
        foreign = rng.choice([e.plan.qpn for e in self.ends.values() if e is not qp] + self.unset)
        good = int(doorbell.sq_encode(qp.head % (1 << 32), plan.qpn, plan.version))
        half = 1 << (13 if plan.version == 1 else 17)
        # whatever runs now, these are behind what was announced
        behind = (qp.head - rng.choice((DEPTH + 1, DEPTH + 17, half - 2 * DEPTH - 1))) % (1 << 32)
        stale = int(doorbell.sq_encode(behind, plan.qpn, plan.version))
        partial = rng.randrange(0xFF)
        # neither in front of the newest CQE nor behind the oldest
        far = (qp.tail + rng.choice((2 * DEPTH + 1, 1 << 20, (1 << 22) - DEPTH))) % (1 << 23)
        back = (qp.tail - rng.choice((2 * DEPTH + 1, 1 << 20, (1 << 22) - 4 * DEPTH))) % (1 << 23)
        sta = rng.randrange(4)
        gone = self.ends[GONE].plan
        kinds: list[tuple[int, Any, int, str]] = [
            (page + SQ, stale, 0xFF, "DB_STALE"),
            (page + SQ, good | rng.randrange(1, 8), 0xFF, "DB_PID"),
            (page + SQ, good, partial, "DB_PARTIAL"),
            (page + RQ, doorbell.rq_encode(1, plan.qpn), partial, "DB_PARTIAL"),
            (page + CQ, doorbell.cq_encode(far, plan.cqn, sta), partial, "DB_PARTIAL"),
            (page + rng.choice((SQ, RQ, CQ)) + rng.randrange(1, 8), good, 0xFF, "DB_PARTIAL"),
            (PAGES + PAGE * rng.choice(self.none), good, 0xFF, "DB_PAGE"),
            (PAGES + PAGE * rng.choice(self.none) + CQ, doorbell.cq_encode(0, plan.cqn, 2), 0xFF, "DB_PAGE"),
            (page + SQ, doorbell.sq_encode(qp.head % (1 << 32), foreign, plan.version), 0xFF, "DB_PAGE"),
            (page + RQ, doorbell.rq_encode(1, foreign), 0xFF, "DB_PAGE"),
            (page + CQ, doorbell.cq_encode(far, rng.choice(self.others), sta), 0xFF, "DB_PAGE"),
            (page + CQ, doorbell.cq_encode(far, plan.cqn | 64, sta), 0xFF, "DB_PAGE"),
            (PAGES + PAGE * gone.qpn + SQ, doorbell.sq_encode(1, gone.qpn, gone.version), 0xFF, "DB_RESET"),
            (PAGES + PAGE * gone.qpn + CQ, doorbell.cq_encode(1, gone.cqn, sta), 0xFF, "DB_RESET"),
            (PAGES + PAGE * rng.choice(self.unset) + rng.choice((SQ, RQ, CQ)), good, 0xFF, "DB_RESET"),
            (page + CQ, doorbell.cq_encode(far, plan.cqn, sta), 0xFF, "DB_CQ_BEYOND"),
            (page + CQ, doorbell.cq_encode(back, plan.cqn, sta), 0xFF, "DB_CQ_BACKWARD"),
            (page + rng.choice((24, 32, 0x100, PAGE - 8)), good, 0xFF, ""),
        ]  # fmt: skip
        addr, data, strobe, counter = rng.choice(kinds)
        return addr, int(data), strobe, counter

    async def run(self, done: list[int]) -> None:
        """All of them."""
        for _ in range(COUNT):
            addr, data, strobe, counter = self.bad()
            while not self.lib.mmio_write(self.pe, addr, data, strobe):
                await self.lib.cycles(8)
            if counter:
                self.due[counter] += 1
            if self.rng.randrange(2):
                await self.lib.cycles(self.rng.choice((1, 2, 5, 20, 60)))
        done[0] += 1


def fabric(seed: int) -> Fabric:
    """QPs of both directions, formats in turn."""
    ends = {
        (pe, 1 - pe, q): {"sq_depth": DEPTH, "cq_depth": DEPTH, "version": 1 + q % 2}
        for pe in range(PES) for q in range(QPS)
    }  # fmt: skip
    return Fabric.build(FabricConfig.mixed(PES, QPS, seed, heap_bytes=16 << 20, overrides=ends))


@cocotb.test()
async def test_storm(dut) -> None:
    """Both NICs get their bad doorbells at the same time, and stream to each other."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), ())
    await stage.start()
    rig, done, storms, tasks = stage.rig, [0], [], []
    for pe in range(PES):
        assert (
            await stage.console[pe].command(CmdOp.RESET, CmdObj.QP, stage.ends[pe, 1 - pe, GONE].plan.qpn)
            == 0
        )
        storms.append(Storm(stage, pe, random.Random(f"storm {cocotb.RANDOM_SEED} {pe}")))
        tasks.append(cocotb.start_soon(storms[-1].run(done)))

    async def stream(qp: RawQp, rng: random.Random) -> int:
        count = 0
        while done[0] < PES:
            number = rng.randrange(1, 9)
            await qp.post(*[any_good(qp, rng) for _ in range(number)])
            codes = await qp.complete(number)
            assert codes == [0] * number, f"QPN {qp.plan.qpn}: {codes}"
            count += number
        return count

    async def main(pe: Pe) -> int:
        mine = [stage.ends[pe.rank, 1 - pe.rank, q] for q in BUSY]
        jobs = [
            await pe.spawn(stream(qp, random.Random(f"{qp.plan.qpn} {cocotb.RANDOM_SEED}")), "stream")
            for qp in mine
        ]
        while done[0] < PES:
            await sleep(500)
        return min([await pe.join(job) for job in jobs])

    result = await rig.run(main, sanitize=False)
    for task in tasks:
        await task
    assert min(result.returns) > 4 * DEPTH, f"the streams were slow: {result.returns}"
    await rig.settle()
    await stage.events(set())
    for pe, storm in enumerate(storms):
        assert doorbell_counters(await rig.counters(pe)) == dict(storm.due), f"PE {pe}"
        assert not await stage.console[pe].read(Csr.CQ_EVENT)
        assert await stage.console[pe].counter(Cnt.FLUSH) == 0
        bits = sum(1 << stage.ends[pe, 1 - pe, q].plan.qpn - 2 for q in range(QPS) if q != GONE)
        assert await stage.console[pe].read(Csr.QP_STATE_RTS) == bits
    await rig.check(result)
