"""Operations of many QPs on one 8-byte word, and whether one serial order explains them.

A round: every issuer (a QP of some PE) posts a few operations on the word of its peer, in doorbells of its
own choice; atomics of all six opcodes on the word and its halves, WRITEs and READs of 1 to 8 bytes in it,
WRITEs that only reach into it. Afterwards `judge_round` gives `serial_order` what each operation returned,
when it was announced and when its CQE was there, and the word before and after. It knows no packets.

A READ stands in its issuer's order only where nothing behind it may overtake its memory reads (nic.md 5): it
is its issuer's last, or a fence or such a READ follows. Otherwise its times alone bind it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from pymodel.device import Pe
from pymodel.formats.wqe import ATOMIC_SIZE, WqeOp
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.serial import WordOp, serial_order
from pymodel.nic.serial.ops import ADDS
from pymodel.platform import now, sleep, store
from tb.sim.platform import Rig
from tests.nic.raw import TARGET, RawQp

DEPTH = 16
ONES = (1 << 64) - 1
ATOMICS = (WqeOp.CAS64, WqeOp.FA64, WqeOp.MCAS64, WqeOp.MFA64, WqeOp.MCAS32, WqeOp.MFA32)
COMPARING = (WqeOp.CAS64, WqeOp.MCAS64, WqeOp.MCAS32)
#: offsets of contended words behind TARGET: in mid-beat, the first and the last of a beat and of a page
WORDS = (0x200, 0x2B8, 0x318, 0x1000, 0x1FF8, 0x3FF8)
#: offset in a QP's window behind TARGET of its results, and behind its own SOURCE of what it writes
RESULTS, SOURCES = 0x8000, 2 << 20
#: memory and link, drawn for each PE and round
KNOBS: dict[str, tuple[int, ...]] = {
    "mem_latency": (1, 20, 150, 600),
    "mem_latency_jitter": (0, 30, 300),
    "mem_ooo": (0, 20000, 60000),
    "mem_stall": (0, 0, 12000),
    "commit_delay": (0, 60, 300),
    "link_latency_jitter": (0, 200),
    "link_stall_rx": (0, 8000),
}


def fabric(n_pes: int, qps: int, seed: int) -> Fabric:
    """Rings of 16, both formats, limits of outstanding READs and atomics from 1 on."""
    rng = random.Random(f"contention {seed}")
    overrides = {
        (pe, peer, qp): {"version": 1 + (pe + qp) % 2, "max_rd_atomic": rng.choice((1, 2, 16, 16))}
        for pe in range(n_pes)
        for peer in range(n_pes)
        if pe != peer
        for qp in range(qps)
    }
    return Fabric.build(
        FabricConfig(
            n_pes=n_pes, qps=qps, seed=seed, mtus=(256, 1024), sq_depths=(DEPTH,), heap_bytes=16 << 20,
            start="wraps", overrides=overrides,
        )
    )  # fmt: skip


def shake(rig: Rig, rng: random.Random) -> None:
    """Other latencies and stalls from now on, for each PE its own."""
    for pe in range(rig.fabric.n_pes):
        for name, values in KNOBS.items():
            rig.lib.set_knob(name, rng.choice(values), pe)


@dataclass
class Planned:
    """One operation: the WQE, what the checker will be told, where the result lands (-1: nowhere)."""

    item: dict[str, Any]
    op: WordOp
    result: int = -1
    source: bytes = b""
    place: int = 0


@dataclass
class Tally:
    """What rounds consisted of: operations by kind, compares by outcome, changes of the issuer in the order
    that was found.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    compares: Counter[tuple[int, bool]] = field(default_factory=Counter)
    switches: int = 0
    ops: int = 0


class Issuer:
    """One QP that works on the word of its peer."""

    def __init__(self, rig: Rig, pe: int, host: int, qp: int) -> None:
        self.rig, self.pe, self.host = rig, pe, host
        self.qp = RawQp(rig, pe, host, qp)
        self.name = f"PE {pe} QP {qp}"
        mine, peer = rig.fabric.pes[pe], rig.fabric.pes[host]
        self.results = mine.heap_base + TARGET + (256 + 4 * host + qp) * 4096
        self.sources = mine.heap_base + SOURCES + (4 * host + qp) * 4096
        self.area = peer.heap_base + TARGET
        self.plan: list[Planned] = []

    # ------------------------------------------------------------------ plan
    def draw(self, rng: random.Random, count: int, word: int, hot: list[int], few: bool) -> None:
        """``count`` operations on the word at offset ``word`` of the area; hot: values worth a compare.

        few: hardly anything but hot values and whole words, so that compares of 8 bytes succeed.
        """
        self.plan = []
        for number in range(count):
            planned = self._one(rng, number, word, hot, few)
            planned.item["fence_mode"] = int(rng.random() < 0.3)
            self.plan.append(planned)
        in_order = True
        for number in reversed(range(count)):
            planned = self.plan[number]
            if planned.op.kind == "read" and not in_order:
                planned.op = replace(planned.op, issuer=None)
            in_order = bool(planned.item["fence_mode"]) or (planned.op.kind == "read" and in_order)

    def _one(self, rng: random.Random, number: int, word: int, hot: list[int], few: bool) -> Planned:
        name = f"{self.name} no. {number}"
        result = self.results + 64 * number + rng.randrange(56)
        drawn = rng.random()
        if drawn < 0.62:
            op = rng.choice((WqeOp.CAS64, WqeOp.CAS64, WqeOp.MCAS64) if few else ATOMICS)
            size = ATOMIC_SIZE[op]
            offset = rng.choice((0, 4)) if size == 4 else 0
            values = self._operands(rng, op, offset, hot, 0.95 if few else 0.6)
            item = self.qp.atomic(op, **dict(zip(NAMES, values, strict=True)))
            item |= {"raddr": self.area + word + offset, "laddr": result}
            said = WordOp("atomic", self.name, op, values, offset=offset, size=size, name=f"{op.name} {name}")
            return Planned(item, said, result)
        size = 8 if few else rng.choice((1, 2, 3, 4, 5, 7, 8, 8, 8))
        offset = rng.randrange(9 - size)
        if drawn < 0.8:
            item = self.qp.read(size, raddr=self.area + word + offset, laddr=result)
            said = WordOp("read", self.name, offset=offset, size=size, name=f"READ {name}")
            return Planned(item, said, result)
        # some WRITEs reach beyond the word on either side, up to the pages around it
        before, behind = rng.choice(((0, 0), (0, 0), (0, 0), (0, 70), (30, 0), (130, 200)))
        before, behind = before if offset == 0 else 0, behind if offset + size == 8 else 0
        value = (rng.choice(hot) if few or rng.random() < 0.5 else rng.getrandbits(64)) >> 8 * offset
        value &= (1 << 8 * size) - 1
        source = rng.randbytes(before) + value.to_bytes(size, "little") + rng.randbytes(behind)
        place = self.sources + 512 * number + rng.randrange(64)
        item = self.qp.fields(len(source), laddr=place, raddr=self.area + word + offset - before)
        said = WordOp("write", self.name, data=value, offset=offset, size=size, name=f"WRITE {name}")
        return Planned(item, said, source=source, place=place)

    @staticmethod
    def _operands(
        rng: random.Random, op: WqeOp, offset: int, hot: list[int], share: float
    ) -> tuple[int, int, int, int]:
        ones = (1 << 8 * ATOMIC_SIZE[op]) - 1

        def value() -> int:
            return (rng.choice(hot) if rng.random() < share else rng.getrandbits(64)) >> 8 * offset & ones

        if op in ADDS:
            boundary = rng.choice((0, 0, ones, 0x8080_8080, rng.getrandbits(64))) & ones
            return rng.choice((1, 0x0101_0101, value())) & ones, 0 if op == WqeOp.FA64 else boundary, 0, 0
        if op == WqeOp.CAS64:
            return value(), value(), 0, 0
        masks = (ones, 0, 0xFF, 1, 1 << rng.randrange(32), 0xFFFF_0000)
        return value(), value(), rng.choice((ones, ones, 0xF0F0, 0xFF << 16)) & ones, rng.choice(masks) & ones

    # ------------------------------------------------------------------ run
    async def run(self, rng: random.Random) -> None:
        """Post it all, in one doorbell or several, waiting between them or not; collect every CQE."""
        for planned in self.plan:
            if planned.source:
                await store(planned.place, planned.source)
        if rng.random() < 0.5:
            await sleep(rng.randrange(1, 400))
        first, waiting = 0, []
        while first < len(self.plan):
            chunk = self.plan[first : first + rng.randrange(1, len(self.plan) + 1)]
            await self.qp.put(*[planned.item for planned in chunk])
            called = await now()
            for planned in chunk:
                planned.op = replace(planned.op, called=called)
            await self.qp.ring_sq()
            first += len(chunk)
            waiting += chunk
            if rng.random() < 0.4:
                await self._collect(waiting)
        await self._collect(waiting)
        await self.qp.ring_cq()

    async def _collect(self, waiting: list[Planned]) -> None:
        while waiting:
            planned = waiting.pop(0)
            (entry,) = await self.qp.collect(1, 200_000)
            assert not entry["error_code"], f"{planned.op}: code {entry['error_code']:#x}"
            planned.op = replace(planned.op, answered=await now())

    def history(self) -> list[WordOp]:
        """What was done, with the values that came back."""
        done = []
        for planned in self.plan:
            op = planned.op
            if planned.result >= 0:
                raw = self.rig.lib.memory(self.pe, planned.result, op.size).tobytes()
                # 4-byte results of atomics come big-endian (device.md 1.5)
                big = op.kind == "atomic" and op.size == 4
                op = replace(op, returned=int.from_bytes(raw, "big" if big else "little"))
            done.append(op)
        return done


NAMES = ("swap_add", "compare", "swap_mask", "compare_mask")


async def rounds(
    rig: Rig, issuers: list[Issuer], number: int, count: tuple[int, int], rng: random.Random, limit: int
) -> Tally:
    """``number`` rounds of ``count`` (least, most) operations of each issuer; each is judged."""
    tally = Tally()
    hosts = sorted({issuer.host for issuer in issuers})
    for turn in range(number):
        shake(rig, rng)
        places = {host: rng.choice(WORDS) for host in hosts}
        at = {host: rig.fabric.pes[host].heap_base + TARGET + places[host] for host in hosts}
        before = {host: _word(rig, host, at[host]) for host in hosts}
        hot = {host: [before[host], 0, rng.getrandbits(64)] for host in hosts}
        for issuer in issuers:
            issuer.draw(rng, rng.randint(*count), places[issuer.host], hot[issuer.host], turn % 3 == 2)

        async def main(pe: Pe, turn: int = turn) -> None:
            tasks = []
            for issuer in issuers:
                if issuer.pe == pe.rank:
                    own = random.Random(f"{pe.seed} {turn} {issuer.name} {issuer.host}")
                    tasks.append(await pe.spawn(issuer.run(own), f"{issuer.name} to {issuer.host}"))
            for task in tasks:
                await pe.join(task)

        result = await rig.run(main, sanitize=False)
        assert result.good, result.problems
        for host in hosts:
            ops = [op for issuer in issuers if issuer.host == host for op in issuer.history()]
            _judge(ops, before[host], _word(rig, host, at[host]), f"round {turn}, PE {host}", tally, limit)
    return tally


def _word(rig: Rig, pe: int, addr: int) -> int:
    return int.from_bytes(rig.lib.memory(pe, addr, 8).tobytes(), "little")


def _judge(ops: list[WordOp], before: int, after: int, where: str, tally: Tally, limit: int) -> None:
    verdict = serial_order(ops, before, after, limit)
    assert verdict.order is not None, f"{where}: {before:#x} to {after:#x}: {verdict.reason}"
    tally.ops += len(ops)
    issuers = [str(ops[n]).rsplit(" no. ", 1)[0].split(" ", 1)[1] for n in verdict.order]
    tally.switches += sum(a != b for a, b in zip(issuers, issuers[1:], strict=False))
    for op in ops:
        kind = WqeOp(op.opcode).name if op.kind == "atomic" else op.kind
        tally.kinds[f"{kind} {op.offset}"] += 1
        if op.kind == "atomic" and op.opcode in COMPARING:
            ones = (1 << 8 * op.size) - 1
            swap, compare, _, mask = op.operands
            mask = ones if op.opcode == WqeOp.CAS64 else mask
            assert op.returned is not None
            tally.compares[op.opcode, not (op.returned ^ compare) & mask & ones] += 1
