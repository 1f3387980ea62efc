"""What tests of errors share: cases, streams of good WQEs of every kind, QPs beside them that never pause.

A window of a QP (`RawQp.window`) has a part for each use, so that no two WQEs on their way touch the same
bytes but atomics, whose words are there to be shared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cocotb

from pymodel.device import Pe
from pymodel.formats.wqe import ATOMIC_SIZE, WqeOp
from pymodel.host.table import WQE_BYTES, Fabric, set_ops
from pymodel.nic.context import CmdObj, MrContext
from pymodel.nic.params import AsyncKind
from tb.sim.platform import Rig
from tests.nic.raw import TARGET, Console, RawQp, fill_sources

#: (WQEs before, WQEs after) the bad one
PLACES = {"alone": (0, 0), "head": (0, 5), "middle": (4, 7), "end": (6, 0)}
BYSTANDERS = 2
#: error responses of memory (AXI)
SLVERR, DECERR = 2, 3
DEPTH = 16
ATOMICS = tuple(ATOMIC_SIZE)
#: offsets in a window: words that the peer's atomics change, targets of WRITEs, sinks of READs, results of
#: atomics, and a part for one WQE of a test's choice, up to the window's end
WORDS, WRITES, READS, RESULTS, OWN = 0, 4 << 10, 36 << 10, 68 << 10, 80 << 10


@dataclass(frozen=True)
class Case:
    """One way to fail.

    ``changes(qp)``: fields of the bad WQE; ``arm(rig, qp, index)``: what to do to the memory before;
    ``nak``: code that the responder sends; ``override``: fields of the responder's QP.
    """

    code: int
    changes: Callable[[RawQp], dict[str, Any]] = lambda qp: {}
    arm: Callable[[Rig, RawQp, int], None] | None = None
    nak: int = 0
    override: dict[str, Any] | None = None


def error(rig: Rig, pe: int, addr: int, length: int, on: str, resp: int = SLVERR) -> None:
    """A range that answers with an error, for memory model and judge alike.

    A write that fails with SLVERR changes nothing, one that fails with DECERR is in memory all the same: the
    standard leaves both open.
    """
    rig.lib.add_error(pe, addr, length, on, resp)
    assert rig.judge is not None
    rig.judge.add_error(pe, addr, length, on)


def clear_errors(rig: Rig) -> None:
    """All memory answers well again."""
    for pe in (0, 1):
        rig.lib.clear_errors(pe)
        assert rig.judge is not None
        rig.judge.clear_errors(pe)


def heap_end(qp: RawQp, pe: int) -> int:
    """First address behind a heap."""
    return qp.fabric.pes[pe].heap_base + qp.fabric.pes[pe].heap_size


def slot_error(rig: Rig, qp: RawQp, index: int, resp: int = SLVERR) -> None:
    """The fetch of WQE ``index`` fails."""
    error(rig, qp.plan.pe, qp.plan.sq_base + index % DEPTH * WQE_BYTES, WQE_BYTES, "r", resp)


def add_region(fabric: Fabric, rank: int, region: MrContext) -> int:
    """One more memory region of a PE, programmed at bring-up; its index."""
    pe = fabric.pes[rank]
    index = next(i for i in range(fabric.config.params.num_mr) if i not in pe.mrs)
    pe.mrs[index] = region
    pe.bringup += set_ops(CmdObj.MR, index, region)
    return index


def local(qp: RawQp, offset: int) -> int:
    """Address of an offset of the QP's window at its own PE."""
    return qp.fabric.pes[qp.plan.pe].heap_base + TARGET + qp.window + offset


def remote(qp: RawQp, offset: int) -> int:
    """The same at the peer."""
    return qp.fabric.pes[qp.plan.peer].heap_base + TARGET + qp.window + offset


def any_good(qp: RawQp, rng: random.Random, ops: Sequence[int] = (1, 2, *ATOMICS), **changes: Any) -> dict:
    """A good WQE of one of ``ops``, of a random length below 2000 bytes, in the window's parts."""
    op = rng.choice((*(op for op in (1, 2) if op in ops), rng.choice(ops)))
    length = rng.choice((0, 8, 64, rng.randrange(1, 2000)))
    if op == WqeOp.WRITE:
        item = qp.fields(length, WRITES + rng.randrange(1 << 14))
    elif op == WqeOp.READ:
        item = qp.read(length, rng.randrange(1 << 14), laddr=local(qp, READS + rng.randrange(1 << 14)))
    else:
        ones = (1 << 8 * ATOMIC_SIZE[WqeOp(op)]) - 1
        names = ("swap_add", "compare", "swap_mask", "compare_mask")
        values = {name: rng.getrandbits(64) & ones for name in names}
        if op not in (WqeOp.MCAS64, WqeOp.MCAS32):
            del values["swap_mask"], values["compare_mask"]
        item = qp.atomic(op, WORDS + 8 * rng.randrange(8), RESULTS + rng.randrange(4096), **values)
    return {**item, **changes}


class Stage:
    """Rig, both ends of every QP, and what the checks of all tests here share.

    ``busy``: QP numbers of the bystanders, ``ops``: opcodes of their WQEs.
    """

    def __init__(
        self, dut: Any, fabric: Fabric, busy: Sequence[int], ops: Sequence[int] = (1,), **options: Any
    ) -> None:
        self.rig = Rig(dut, fabric, **options)
        self.seed = cocotb.RANDOM_SEED
        self.rng = random.Random(f"errors {self.seed}")
        self.busy, self.ops = busy, ops

    async def start(self) -> None:
        """Bring-up, sources."""
        await self.rig.start()
        await fill_sources(self.rig, self.seed)
        self.ends = {key: RawQp(self.rig, *key) for key in self.rig.fabric.qps}
        self.console = [Console(self.rig, pe) for pe in (0, 1)]

    async def bystander(self, qp: RawQp, flag: list[bool]) -> int:
        """Good WQEs until the flag falls; all complete well."""
        rng, done = random.Random(f"bystander {self.seed} {qp.plan.qpn}"), 0
        while flag[0]:
            await qp.post(*[any_good(qp, rng, self.ops) for _ in range(DEPTH)])
            codes = await qp.complete(DEPTH)
            assert codes == [0] * DEPTH, f"bystander QPN {qp.plan.qpn}: {codes}"
            done += DEPTH
        return done

    async def beside(self, *jobs: tuple[RawQp, Any]) -> list[Any]:
        """Run jobs on the PEs of their QPs while all bystanders are busy; the jobs' answers."""
        flag, waiting, answers = [True], [len(jobs)], [None] * len(jobs)

        async def one(number: int, job: Any) -> None:
            answers[number] = await job
            waiting[0] -= 1
            flag[0] = waiting[0] > 0

        async def main(pe: Pe) -> int:
            tasks = []
            for number, (qp, job) in enumerate(jobs):
                if qp.plan.pe == pe.rank:
                    tasks.append(await pe.spawn(one(number, job), f"QPN {qp.plan.qpn}"))
            others = []
            for q in self.busy:
                others.append(
                    await pe.spawn(self.bystander(self.ends[pe.rank, 1 - pe.rank, q], flag), "bystander")
                )
            for task in tasks:
                await pe.join(task)
            return sum([await pe.join(task) for task in others])

        result = await self.rig.run(main)
        assert result.good, result.problems
        assert not self.busy or min(result.returns) >= DEPTH, "the bystanders were there"
        return answers

    async def events(self, due: set[tuple[int, AsyncKind, int]]) -> None:
        """Exactly these asynchronous events wait: (PE, kind, number)."""
        found = [(pe, kind, number) for pe in (0, 1) for kind, number in await self.console[pe].asyncs()]
        assert sorted(found) == sorted(due)
