"""Context commands under traffic: legal ones on what is idle, illegal ones of every code on what is in use.

Sweep: every status code on QPs, CQs and regions that carry traffic and on idle ones: unknown operations and
objects, indices at both ends, states, depths, bases, MTUs, CQs, strides, ranges, rights, limits, CQs in use,
every reserved bit, a CMD written in part; two causes at once. Between them set, modify, reset and query of
idle QPs, CQs and regions, query and a modify to what it is of those in use.
Stimulus: commands one behind the other through the BAR in random order, while four QPs in each direction
stream WRITEs, READs and atomics without a pause.
Checks: the status code of each command by the table of this file; a query behind a refused command shows
the context as it was; every WQE of the streams completes well; no event, no doorbell counted; the judge's.
Timing: none. Not proved: a CMD while another is busy (blocks/test_context.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import cocotb

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp, MrContext
from pymodel.nic.params import CMD_REG, CMD_STAGE, CMD_STATUS, Cnt
from pymodel.platform import sleep
from tests.nic.raw import RawQp
from tests.nic.stage import ATOMICS, DEPTH, Stage, any_good

PES = 2
#: QPs that stream, QPs that idle, of which the last has its CQ in the mode that ignores overrun
BUSY, IDLE, SINGLE = range(4), (4, 5), 6
QPS = 7
OPS = (1, 2, *ATOMICS)
OK, BAD_OP, BAD_OBJECT, BAD_INDEX, BAD_STATE, BAD_DEPTH, BAD_BASE, BAD_MTU, BAD_CQ = range(9)
CQ_TOO_SMALL, BAD_STRIDE, BAD_RANGE, BAD_RIGHTS, BAD_RD_ATOMIC, CQ_IN_USE, RESERVED = range(9, 16)
Words = list[int]


@dataclass(frozen=True)
class Command:
    """A value of CMD, what is staged before it (None: whatever is there), its code, its strobe."""

    code: int
    value: int
    words: Words | None = None
    strobe: int = 0xFF


def value(op: int, obj: int, index: int, high: int = 0) -> int:
    """CMD."""
    return high << 32 | index << 8 | obj << 4 | op


def put(words: Words, word: int, low: int, width: int, bits: int) -> None:
    """Replace a field."""
    mask = (1 << width) - 1 << low
    words[word] = words[word] & ~mask | bits << low


def field(word: int, low: int, width: int, bits: int) -> Callable[[Words], None]:
    """A change of one field."""
    return lambda words: put(words, word, low, width, bits)


def reserved(masks: dict[int, int]) -> list[tuple[int, Callable[[Words], None]]]:
    """Each reserved bit."""
    return [
        (RESERVED, field(word, bit, 1, 1))
        for word, mask in masks.items() for bit in range(64) if mask >> bit & 1
    ]  # fmt: skip


def qp_faults(deep: int, unset: int, single: int) -> list[tuple[int, Callable[[Words], None]]]:
    """(code, change) of a set of a QP in RESET. deep: beyond its CQ; unset: no CQ; single: taken."""
    found = [(BAD_DEPTH, field(9, 0, 24, depth)) for depth in (0, 1, 3, DEPTH + 1, 1 << 18, 1 << 23)]
    found += [(BAD_DEPTH, field(9, 32, 24, depth)) for depth in (1, 6, 1 << 17)]
    found += [(BAD_BASE, field(4, bit, 1, 1)) for bit in range(7)]
    found += [(BAD_MTU, field(0, 1, 3, code)) for code in (0, 6, 7)]
    found += [(BAD_CQ, field(7, low, 16, cq)) for low in (0, 16) for cq in (unset, 64, 0xFFFF)]
    found += [(CQ_TOO_SMALL, field(9, 0, 24, deep))]
    found += [(BAD_RD_ATOMIC, field(7, low, 8, 17 + over)) for low in (32, 40) for over in (0, 15, 238)]
    found += [(CQ_IN_USE, field(7, low, 16, single)) for low in (0, 16)]
    masks = {
        0: 0xF800_0000_0000_FC00, 1: 0xFF00_0000, 2: 0xFFFF_0000_0000_0000, 3: 0xFF00_0000_FF00_0000,
        7: 0xFFFF_0000_0000_0000, 9: 0xFF00_0000_FF00_0000,
    }  # fmt: skip
    return found + reserved(masks)


def cq_faults(stride: int) -> list[tuple[int, Callable[[Words], None]]]:
    """(code, change) of a set of a CQ that nobody uses."""
    found = [(BAD_DEPTH, field(1, 0, 24, depth)) for depth in (0, 1, 7, (1 << 22) + 1, 1 << 23)]
    found += [(BAD_STRIDE, field(1, 32, 8, wrong)) for wrong in (0, 16, 33, 96, 128, 255)]
    found += [(BAD_BASE, field(0, bit, 1, 1)) for bit in range(stride.bit_length() - 1)]
    return found + reserved({1: 0xFFFF_FE00_FF00_0000, 2: 0xFFFF_FFFF_0000_0000})


def mr_faults() -> list[tuple[int, Callable[[Words], None]]]:
    """(code, change) of a set of a valid region."""

    def far(words: Words) -> None:
        words[1], words[2] = (1 << 64) - words[0] + 1, words[2] & ~1

    def whole(words: Words) -> None:
        words[2] |= 1

    def rights(bit: int) -> Callable[[Words], None]:
        def change(words: Words) -> None:
            put(words, 2, 1, 4, 1 << bit)

        return change

    found = [(BAD_RANGE, far), (BAD_RANGE, whole), (BAD_RIGHTS, rights(1)), (BAD_RIGHTS, rights(3))]
    return found + reserved({2: 0xFFFF_FFFF_FE00_00E0})


class Script:
    """All commands of one NIC, in random order; knows what is idle."""

    def __init__(self, stage: Stage, pe: int, rng: random.Random) -> None:
        self.stage, self.pe, self.rng = stage, pe, rng
        self.net: Fabric = stage.rig.fabric
        self.ends = {q: stage.ends[pe, 1 - pe, q] for q in range(QPS)}
        self.mrs = self.net.pes[pe].mrs
        self.spare = max(self.mrs) + 1
        used = {plan.cqn for plan in self.net.pes[pe].qps}
        self.unset = rng.choice([n for n in range(self.net.config.params.num_cq) if n not in used])

    def words(self, q: int) -> Words:
        """What sets a QP as it is."""
        return self.net.contexts(self.ends[q].plan)[0].stage_words()

    def cq_words(self, q: int) -> Words:
        """The same of its CQ."""
        return self.net.contexts(self.ends[q].plan)[1].stage_words()

    def live(self) -> int:
        """A QP that streams."""
        return self.rng.choice(BUSY)

    def qpn(self, q: int) -> int:
        """Its number."""
        return self.ends[q].plan.qpn

    def illegal(self) -> Iterator[Command]:
        """Commands that are refused, most of them on what is in use."""
        rng, num = self.rng, self.net.config.params
        for op in (0, *range(5, 16)):
            yield Command(BAD_OP, value(op, rng.choice((1, 2, 3)), self.qpn(self.live()), rng.getrandbits(2)))
        for op in CmdOp:
            yield Command(BAD_OP, value(op, 1, self.qpn(self.live())), None, rng.choice((0x0F, 0xF0, 0x7F)))
        for obj in (0, *range(4, 16)):
            yield Command(BAD_OBJECT, value(rng.choice(list(CmdOp)), obj, self.qpn(self.live())))
        for op in (CmdOp.MODIFY, CmdOp.RESET):
            yield Command(BAD_OBJECT, value(op, CmdObj.CQ, self.ends[self.live()].plan.cqn))
            yield Command(BAD_OBJECT, value(op, CmdObj.MR, rng.choice(list(self.mrs))))
        for op in CmdOp:
            for index in (0, 1, 2 + num.num_qp, 0xFF_FFFF, self.qpn(self.live()) + (1 << 16)):
                yield Command(BAD_INDEX, value(op, CmdObj.QP, index), self.words(self.live()))
        for op in (CmdOp.SET, CmdOp.QUERY):
            yield Command(BAD_INDEX, value(op, CmdObj.CQ, num.num_cq))
            yield Command(BAD_INDEX, value(op, CmdObj.MR, num.num_mr))
        # of CMD itself
        for op in (CmdOp.RESET, CmdOp.QUERY, CmdOp.MODIFY):
            words = [*self.words(live := self.live())[:8], 1, 0]
            yield Command(RESERVED, value(op, CmdObj.QP, self.qpn(live), 1 << rng.randrange(32)), words)
        # states
        for live in BUSY:
            yield Command(BAD_STATE, value(CmdOp.SET, CmdObj.QP, self.qpn(live)), self.words(live))
            for target in (0, 3):
                words = [*self.words(live)[:8], target, 0]
                yield Command(BAD_STATE, value(CmdOp.MODIFY, CmdObj.QP, self.qpn(live)), words)
            words = [*self.words(live)[:8], 1 | 1 << rng.randrange(2, 64), 0]
            yield Command(RESERVED, value(CmdOp.MODIFY, CmdObj.QP, self.qpn(live)), words)
            # CQs in use, whatever else is wrong with them
            cqn = self.ends[live].plan.cqn
            yield Command(CQ_IN_USE, value(CmdOp.SET, CmdObj.CQ, cqn), self.cq_words(live))
            code, words = self.wrong(self.cq_words(live), cq_faults(self.ends[live].plan.cq_stride), 1)
            yield Command(min(code, CQ_IN_USE), value(CmdOp.SET, CmdObj.CQ, cqn), words)
        for index, region in self.mrs.items():
            for _ in range(6):
                code, words = self.wrong(region.stage_words(), mr_faults(), rng.choice((1, 2)))
                yield Command(code, value(CmdOp.SET, CmdObj.MR, index), words)
        yield from self.idle_faults()

    def idle_faults(self) -> Iterator[Command]:
        """Refused commands on the first idle QP, which is in RESET, and on its CQ."""
        idle, cqn = IDLE[0], self.ends[IDLE[0]].plan.cqn
        faults = qp_faults(4 * self.ends[idle].plan.cq_depth, self.unset, self.ends[SINGLE].plan.cqn)
        for count in (1, 2):
            for _ in range(40):
                code, words = self.wrong(self.words(idle), faults, count)
                yield Command(code, value(CmdOp.SET, CmdObj.QP, self.qpn(idle)), words)
        for _ in range(20):
            stride = self.ends[idle].plan.cq_stride
            code, words = self.wrong(self.cq_words(idle), cq_faults(stride), self.rng.choice((1, 2)))
            yield Command(code, value(CmdOp.SET, CmdObj.CQ, cqn), words)
        for target in range(4):
            words = [*self.words(idle)[:8], target, 0]
            yield Command(BAD_STATE, value(CmdOp.MODIFY, CmdObj.QP, self.qpn(idle)), words)

    def wrong(self, words: Words, faults: list[Any], count: int) -> tuple[int, Words]:
        """Words with some faults, of different codes, in them, and the code that is lowest."""
        by: dict[int, list[Callable[[Words], None]]] = {}
        for code, change in faults:
            by.setdefault(code, []).append(change)
        codes = self.rng.sample(sorted(by), count)
        for code in sorted(codes, reverse=True):
            self.rng.choice(by[code])(words)
        # where the stride is none, nothing is a multiple of it or not
        return min(set(codes) - ({BAD_BASE} if BAD_STRIDE in codes else set())), words

    def legal(self) -> Iterator[Command]:
        """Commands that change idle things, and nothing of what is in use."""
        rng = self.rng
        for _ in range(12):
            live = self.live()
            yield Command(OK, value(CmdOp.QUERY, CmdObj.QP, self.qpn(live)))
            yield Command(OK, value(CmdOp.QUERY, CmdObj.CQ, self.ends[live].plan.cqn))
            yield Command(OK, value(CmdOp.QUERY, CmdObj.MR, rng.choice(list(self.mrs))))
            yield Command(OK, value(CmdOp.MODIFY, CmdObj.QP, self.qpn(live)), [*self.words(live)[:8], 1, 0])
            region = MrContext(rng.getrandbits(40), rng.getrandbits(40), ltag=rng.randrange(256))
            region = replace(region, valid=bool(rng.randrange(2)))
            yield Command(OK, value(CmdOp.SET, CmdObj.MR, self.spare), region.stage_words())
            yield Command(OK, value(CmdOp.SET, CmdObj.CQ, self.unset), self.cq_words(IDLE[0]))
            yield Command(OK, value(CmdOp.RESET, CmdObj.QP, self.qpn(IDLE[0])))

    def lives(self) -> list[Command]:
        """Short lives of the second idle QP, in this order."""
        idle, qpn, found = IDLE[1], self.qpn(IDLE[1]), []
        for _ in range(8):
            found += [
                Command(OK, value(CmdOp.RESET, CmdObj.QP, qpn)),
                Command(OK, value(CmdOp.SET, CmdObj.CQ, self.ends[idle].plan.cqn), self.cq_words(idle)),
                Command(OK, value(CmdOp.SET, CmdObj.QP, qpn), self.words(idle)),
                Command(OK, value(CmdOp.MODIFY, CmdObj.QP, qpn), [*self.words(idle)[:8], 2, 0]),
                Command(BAD_STATE, value(CmdOp.MODIFY, CmdObj.QP, qpn), [*self.words(idle)[:8], 1, 0]),
            ]
        return found

    def all(self) -> list[Command]:
        """Everything, lives in their order between the others; the unset CQ is set at the end."""
        others = [*self.illegal(), *(c for c in self.legal() if not self._sets_unset(c))]
        self.rng.shuffle(others)
        lives = self.lives()
        places = sorted(self.rng.sample(range(len(others)), len(lives)), reverse=True)
        for at, command in zip(places, reversed(lives), strict=True):
            others.insert(at, command)
        first = [Command(OK, value(CmdOp.RESET, CmdObj.QP, self.qpn(q))) for q in IDLE]
        return first + others + [c for c in self.legal() if self._sets_unset(c)]

    def _sets_unset(self, command: Command) -> bool:
        return command.value == value(CmdOp.SET, CmdObj.CQ, self.unset)

    async def give(self, command: Command) -> int:
        """Stage, command, wait; the code."""
        lib, pe = self.stage.rig.lib, self.pe
        for word, data in enumerate(command.words or ()):
            await lib.write(pe, CMD_STAGE + 8 * word, data)
        await lib.write(pe, CMD_REG, command.value, command.strobe)
        while (status := await lib.read(pe, CMD_STATUS)) & 1:
            pass
        return status >> 8

    async def same(self, live: int) -> None:
        """A query shows QP, CQ and regions in use as they were programmed."""
        plan = self.ends[live].plan
        due: list[tuple[CmdObj, int, Words]] = [
            (CmdObj.QP, plan.qpn, self.words(live)), (CmdObj.CQ, plan.cqn, self.cq_words(live)),
        ]  # fmt: skip
        due += [(CmdObj.MR, index, region.stage_words()) for index, region in self.mrs.items()]
        for obj, index, words in due:
            assert await self.give(Command(OK, value(CmdOp.QUERY, obj, index))) == 0
            for word in (*range(8), 9):
                got = await self.stage.rig.lib.read(self.pe, CMD_STAGE + 8 * word)
                assert got == words[word], f"{obj.name} {index} word {word}: {got:#x}, not {words[word]:#x}"

    async def run(self, done: list[int]) -> None:
        """Give all commands."""
        for number, command in enumerate(self.all()):
            code = await self.give(command)
            assert code == command.code, f"command {number} of PE {self.pe}: code {code}, {command}"
            if not number % 25:
                await self.same(self.live())
        done[0] += 1


def fabric(seed: int) -> Fabric:
    """QPs of both directions."""
    ends: dict[tuple[int, int, int], dict[str, Any]] = {
        (pe, 1 - pe, q): {"sq_depth": DEPTH, "cq_depth": 2 * DEPTH, "ignore_overrun": q == SINGLE}
        for pe in range(PES) for q in range(QPS)
    }  # fmt: skip
    return Fabric.build(FabricConfig.mixed(PES, QPS, seed, heap_bytes=16 << 20, overrides=ends))


@cocotb.test()
async def test_commands_under_traffic(dut) -> None:
    """Both NICs get their commands at the same time, and stream to each other."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), ())
    await stage.start()
    rig, done = stage.rig, [0]
    tasks = []
    for pe in range(PES):
        rng = random.Random(f"commands {cocotb.RANDOM_SEED} {pe}")
        tasks.append(cocotb.start_soon(Script(stage, pe, rng).run(done)))

    async def stream(qp: RawQp, rng: random.Random) -> int:
        count = 0
        while done[0] < PES:
            await qp.post(*[any_good(qp, rng, OPS, ce=1) for _ in range(DEPTH)])
            codes = await qp.complete(DEPTH)
            assert codes == [0] * DEPTH, f"QPN {qp.plan.qpn}: {codes}"
            count += DEPTH
        return count

    async def main(pe: Pe) -> int:
        mine = [stage.ends[pe.rank, 1 - pe.rank, q] for q in BUSY]
        streams = [stream(qp, random.Random(f"stream {qp.plan.qpn} {cocotb.RANDOM_SEED}")) for qp in mine]
        jobs = [await pe.spawn(job, "stream") for job in streams]
        while done[0] < PES:
            await sleep(500)
        return min([await pe.join(job) for job in jobs])

    result = await rig.run(main, sanitize=False)
    for task in tasks:
        await task
    assert min(result.returns) > 4 * DEPTH, f"the streams were slow: {result.returns}"
    await rig.settle()
    await stage.events(set())
    for pe in range(PES):
        for counter in (Cnt.CMD_BUSY, Cnt.DB_RESET, Cnt.DB_PAGE, Cnt.FLUSH, Cnt.CQE_DISCARD):
            assert not await stage.console[pe].counter(counter), counter.name
        for q in BUSY:
            assert await stage.console[pe].states(stage.ends[pe, 1 - pe, q].plan.qpn) == "RTS"
    await rig.check(result)
