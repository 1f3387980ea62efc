"""Many NICs and QPs on one word: one serial order explains all that they saw.

Sweep: 2 and 4 NICs (16: test_contended_16.py), each PE with a word of its own that several QPs of every other
PE work on; all six opcodes on the word and on its halves, compares that succeed and fail, WRITEs of 1 to 8
bytes in it and longer ones that reach into it, also over a page's end, READs of it, fences; both formats,
limits of 1 to 16 outstanding READs and atomics; memory and link latencies, jitter, other IDs first, stalls
and late visibility drawn anew for each PE and round.
Stimulus: rounds of WQEs posted by hand; then fetch_adds alone, rings kept full.
Checks: `serial_order` finds an order of each round that keeps every issuer's order and all times and explains
each returned value and the final one; of the fetch_adds, the sum is exact and the values are a permutation;
the judge's.
Timing: only in that operations of different issuers do mix. Not proved: errors among contended operations.
"""

from __future__ import annotations

import random
from typing import Any

import cocotb

from pymodel.device import Pe
from pymodel.formats.wqe import WqeOp
from pymodel.nic.params import Cnt
from pymodel.nic.serial import WordOp, serial_order
from pymodel.platform import now
from tb.sim.lib import SimLib
from tb.sim.platform import Rig
from tests.nic.contention import ATOMICS, COMPARING, DEPTH, ONES, Issuer, Tally, fabric, rounds, shake
from tests.nic.raw import TARGET, Console, RawQp

PES = [2, 4]
#: by number of NICs: QPs of each PE to each other, rounds, least and most operations of an issuer in a round
SIZES = {2: (4, 40, (2, 5)), 4: (2, 14, (1, 4))}


def places(n_pes: int, qps: int, hosts: int) -> list[tuple[int, int, int]]:
    """(PE, host of the word, QP) of everybody."""
    return [(pe, host, qp) for host in range(hosts) for pe in range(n_pes) for qp in range(qps) if pe != host]


def check_tally(tally: Tally, executed: int) -> None:
    """Enough of everything, and it did mix."""
    for op in ATOMICS:
        offsets = (0, 4) if op in (WqeOp.MCAS32, WqeOp.MFA32) else (0,)
        assert all(tally.kinds[f"{op.name} {offset}"] >= 5 for offset in offsets), (op, tally.kinds)
    for op in COMPARING:
        assert tally.compares[op, True] >= 3 and tally.compares[op, False] >= 3, tally.compares
    for kind in ("read", "write"):
        assert any(tally.kinds[f"{kind} {at}"] for at in range(1, 8)), tally.kinds
    assert tally.switches > tally.ops / 3, f"{tally.switches} changes of the issuer in {tally.ops} operations"
    assert executed == sum(count for kind, count in tally.kinds.items() if kind[0].isupper())


async def one_serial_order(dut: Any, qps: int, number: int, count: tuple[int, int], hosts: int) -> None:
    """``number`` rounds; ``qps`` QPs of each PE do ``count`` operations each on each of ``hosts`` words."""
    n_pes = SimLib(dut).n_pes
    rig = Rig(dut, fabric(n_pes, qps, cocotb.RANDOM_SEED))
    await rig.start()
    issuers = [Issuer(rig, *place) for place in places(n_pes, qps, hosts)]
    tally = await rounds(rig, issuers, number, count, random.Random(cocotb.RANDOM_SEED), 100_000)
    executed = sum([await Console(rig, pe).counter(Cnt.ATOMIC) for pe in range(n_pes)])
    cocotb.log.info("%s", tally)
    check_tally(tally, executed)
    await rig.check()


@cocotb.test()
async def test_one_serial_order(dut) -> None:
    """Rounds of everything mixed, a word on each PE."""
    n_pes = SimLib(dut).n_pes
    await one_serial_order(dut, *SIZES[n_pes], n_pes)


class Adder:
    """One QP that adds 1 to its peer's word, again and again, its ring full."""

    def __init__(self, rig: Rig, pe: int, host: int, qp: int) -> None:
        self.rig, self.qp, self.host = rig, RawQp(rig, pe, host, qp), host
        self.name = f"PE {pe} QP {qp}"
        self.results = rig.fabric.pes[pe].heap_base + TARGET + (256 + 4 * host + qp) * 4096
        self.ops: list[WordOp] = []

    async def run(self, count: int) -> None:
        """``count`` fetch_adds of 1; each result is taken before its cell is used again."""
        called: list[int] = []
        for number in range(count + DEPTH):
            if number >= DEPTH:
                (entry,) = await self.qp.collect(1, 200_000)
                assert not entry["error_code"]
                cell = self.rig.lib.memory(self.qp.plan.pe, self.results + 8 * (number % DEPTH), 8)
                value = int.from_bytes(cell.tobytes(), "little")
                self.ops.append(
                    WordOp(
                        "atomic", self.name, WqeOp.FA64, (1, 0, 0, 0), value, called=called[number - DEPTH],
                        answered=await now(), name=f"{self.name} no. {number - DEPTH}",
                    )
                )  # fmt: skip
                await self.qp.ring_cq()
            if number < count:
                item = self.qp.atomic(WqeOp.FA64, swap_add=1)
                item |= {
                    "raddr": self.rig.fabric.pes[self.host].heap_base + TARGET,
                    "laddr": self.results + 8 * (number % DEPTH),
                }
                called.append(await now())
                await self.qp.post(item)


async def fetch_adds(dut: Any, qps: int, count: int, hosts: int) -> None:
    """``count`` of each QP; no update is lost, no value is seen twice."""
    n_pes, start = SimLib(dut).n_pes, ONES - 5
    rig = Rig(dut, fabric(n_pes, qps, cocotb.RANDOM_SEED))
    await rig.start()
    shake(rig, random.Random(cocotb.RANDOM_SEED))
    adders = [Adder(rig, *place) for place in places(n_pes, qps, hosts)]
    # over the wrap of the word
    for pe in rig.fabric.pes:
        rig.lib.store(pe.rank, pe.heap_base + TARGET, start.to_bytes(8, "little"))

    async def main(pe: Pe) -> None:
        mine = [adder for adder in adders if adder.qp.plan.pe == pe.rank]
        for task in [await pe.spawn(adder.run(count), adder.name) for adder in mine]:
            await pe.join(task)

    result = await rig.run(main, sanitize=False)
    for pe in rig.fabric.pes[:hosts]:
        ops = [op for adder in adders if adder.host == pe.rank for op in adder.ops]
        assert len(ops) == count * qps * (n_pes - 1)
        word = rig.lib.memory(pe.rank, pe.heap_base + TARGET, 8).tobytes()
        final = start + len(ops) & ONES
        assert int.from_bytes(word, "little") == final, "the sum"
        assert sorted((op.returned or 0) - start & ONES for op in ops) == list(range(len(ops)))
        verdict = serial_order(ops, start, final, 0)
        assert verdict.order is not None, verdict.reason
    await rig.check(result)


@cocotb.test()
async def test_fetch_adds(dut) -> None:
    """Nothing but fetch_add of 1, a word on each PE."""
    n_pes = SimLib(dut).n_pes
    await fetch_adds(dut, *{2: (4, 150), 4: (2, 60)}[n_pes], n_pes)
