"""Results before their CQE, and inbound data in PSN order, whatever memory and links do.

Sweep: the stalls of test_stalls.py in nine phases in which every pair of them takes all four settings; READs
of 1 byte to 40 KiB (160 packets of MTU 256), FetchAdds of 8 and 4 bytes, WRITEs between them, over every MTU.
On one QP: WRITEs that an atomic follows as a flag, and atomics that a WRITE follows, with other IDs first,
late visibility and jitter.
Stimulus: WQEs by hand, QPs in both directions.
Checks: from the records, when a CQE is written, every result byte up to its WQE has its write response; the
bytes read and the original values, compared in the cycle in which the CQE becomes visible; at the responder,
what becomes visible comes in posting order, WRITEs and atomics alike; the judge's.
Timing: none. Not proved: order between QPs, which there is not.
"""

from __future__ import annotations

import bisect
import random
from typing import Any

import cocotb
import numpy as np

from pymodel.formats.wqe import ATOMIC_SIZE, WqeOp
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import AxiId
from tb.sim.records import Kind
from tests.nic.raw import POOL, SOURCE, RawQp
from tests.nic.stage import OWN, READS, WORDS, WRITES, Stage, local
from tests.nic.test_stalls import KNOBS, WITH, pairwise
from tests.nic.trace import Trace
from tests.nic.watch import Watcher

PES = 2
MTUS = (256, 512, 1024, 4096)
DEPTH = 16
ROUNDS = 2
#: of 32 bytes at least: no READ of a round is longer than what is left of the sinks
LONGEST = 40 << 10


def fabric(seed: int) -> Fabric:
    """A QP for each MTU in both directions."""
    overrides = {(pe, 1 - pe, q): {"mtu": mtu} for q, mtu in enumerate(MTUS) for pe in (0, 1)}
    return Fabric.build(
        FabricConfig.mixed(
            2, len(MTUS), seed, sq_depths=(DEPTH,), cq_factors=(1,), heap_bytes=32 << 20, overrides=overrides
        )
    )


def set_knobs(stage: Stage, phase: dict[str, bool]) -> None:
    """The stalls of a phase."""
    for name, on in phase.items():
        stage.rig.lib.set_knob(name, KNOBS[name][on])
        for other, value in WITH.get(name, {}).items():
            stage.rig.lib.set_knob(other, value if on else 0)


async def traffic(stage: Stage, qp: RawQp, posted: list[int], words: dict[int, int], seed: float) -> int:
    """Rounds of up to DEPTH WQEs; each result is compared as soon as its CQE is there."""
    rng, lib, plan = random.Random(seed), stage.rig.lib, qp.plan
    source = lib.memory(plan.peer, qp.fabric.pes[plan.peer].heap_base + SOURCE, POOL + 65536)
    sinks = lib.memory(plan.pe, local(qp, READS), OWN - READS)
    wrong = 0
    for _ in range(ROUNDS):
        items, checks, at = [], [], 0
        for _ in range(rng.randrange(4, DEPTH + 1)):
            op = rng.choice((1, 2, 2, 2, WqeOp.FA64, WqeOp.MFA32))
            left = len(sinks) - at - 512
            if op == WqeOp.WRITE:
                items.append(qp.fields(rng.randrange(3000), WRITES + rng.randrange(1 << 14)))
                checks.append((0, b""))
                continue
            if op == WqeOp.READ:
                longest = min(left, rng.choice((64, 1500, 9000, LONGEST)))
                length, start = rng.randrange(1, max(2, longest)), rng.randrange(1 << 14)
                items.append(qp.read(length, start, laddr=local(qp, READS + at)))
                checks.append((at, bytes(source[start : start + length])))
            else:
                word, add, length = 8 * rng.randrange(4), rng.getrandbits(20), ATOMIC_SIZE[WqeOp(op)]
                old = words.get(word, 0)
                ones = (1 << 8 * length) - 1
                words[word] = old & ~ones | (old & ones) + add & ones
                items.append(qp.atomic(op, WORDS + word, laddr=local(qp, READS + at), swap_add=add))
                checks.append((at, (old & ones).to_bytes(length, "little" if length == 8 else "big")))
            posted.append(length)
            at += length + rng.randrange(30)
        await qp.post(*items)
        for place, data in checks:
            assert await qp.until(1, 200_000), f"QPN {plan.qpn}: no CQE"
            wrong += bytes(sinks[place : place + len(data)]) != data
            assert not qp.take(1)["error_code"].any()
            await qp.ring_cq()
    return wrong


@cocotb.test()
async def test_results_before_cqes(dut):
    """All phases in one run."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), ())
    await stage.start()
    watcher, trace = Watcher(stage.ends), Trace(stage.rig.fabric)
    stage.rig.sinks += [watcher, trace]
    words: dict[Any, dict[int, int]] = {key: {} for key in stage.ends}
    for phase in pairwise():
        set_knobs(stage, phase)
        jobs = [
            (qp, traffic(stage, qp, watcher.flights[key].posted, words[key], stage.rng.random()))
            for key, qp in stage.ends.items()
        ]
        assert not any(await stage.beside(*jobs)), "a CQE came before its data"
    await stage.rig.settle()
    results = 0
    for key, qp in stage.ends.items():
        flight, sizes, due, early = watcher.flights[key], iter(watcher.flights[key].posted), 0, []
        cqes = trace.cqes[qp.plan.pe, qp.plan.qpn]
        for time, slot, data in cqes:
            # byte 24, msg_opcode, tells which WQE was a READ or an atomic (device.md 2.1)
            due += 0 if data[24] == WqeOp.WRITE else next(sizes)
            if flight.bytes_at(time) < due:
                early.append((slot, time))
        assert not early, f"QPN {qp.plan.qpn}: CQEs before their results: {early[:4]}"
        assert next(sizes, None) is None and flight.landed[-1][1] == due, "the test lost count"
        results += len(flight.posted)
    assert results > 300
    await stage.rig.check()


class Visible:
    """Sink: at the responder, numbers of the WQEs whose bytes became visible, by QP, in that order."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, int, Any, int]] = []
        self.seen: dict[Any, list[int]] = {}

    def add(self, pe: int, addr: int, key: Any, number: int) -> None:
        """The bytes from an address on belong to a WQE."""
        bisect.insort(self.starts, (pe, addr, key, number))

    def __call__(self, records: np.ndarray, side: np.ndarray) -> None:
        """Look at one batch."""
        mine = records["kind"] == Kind.COMMIT
        mine &= np.isin(records["id"], (AxiId.INBOUND, AxiId.ATOMIC))
        for r in records[mine]:
            at = bisect.bisect_right(self.starts, (int(r["pe"]), int(r["addr"]), (9,), 0)) - 1
            _, _, key, number = self.starts[at]
            self.seen.setdefault(key, []).append(number)


@cocotb.test()
async def test_visible_in_posting_order(dut):
    """Data and flag by WRITE and atomic in turn, with bytes of its own for each WQE."""
    knobs = {"mem_ooo": 50000, "commit_delay": 400, "mem_latency_jitter": 300, "mem_stall": 4000}
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), (), knobs=knobs)
    await stage.start()
    visible = Visible()
    stage.rig.sinks.append(visible)
    numbers: dict[Any, int] = dict.fromkeys(stage.ends, 0)

    async def stream(qp: RawQp, key: Any, rng: random.Random) -> None:
        peer = qp.fabric.pes[qp.plan.peer].heap_base + (12 << 20) + key[2] * (4 << 20)
        at = 0
        for _ in range(6):
            items = []
            for _ in range(DEPTH):
                at = (at + 63 & ~63) + 64
                if rng.randrange(2):
                    length = rng.choice((1, 8, 64, rng.randrange(1, 1000), rng.randrange(1, 5000)))
                    items.append(qp.fields(length, rng.randrange(1 << 14), raddr=peer + at))
                else:
                    length, op = 8, rng.choice((WqeOp.FA64, WqeOp.MFA32))
                    items.append(qp.atomic(op, 0, READS, raddr=peer + at, swap_add=1))
                visible.add(qp.plan.peer, peer + at, key, numbers[key])
                numbers[key] += 1
                at += length
            await qp.post(*items)
            # one atomic at a time on each NIC
            assert not (await qp.collect(DEPTH, 200_000))["error_code"].any()
            await qp.ring_cq()

    await stage.beside(
        *[(qp, stream(qp, key, random.Random(stage.rng.random()))) for key, qp in stage.ends.items()]
    )
    await stage.rig.settle()
    for key, seen in visible.seen.items():
        assert sorted(set(seen)) == list(range(numbers[key])), f"{key}: not all became visible"
        later = [(a, b) for a, b in zip(seen, seen[1:], strict=False) if b < a]
        assert not later, f"{key}: visible before what was posted before it: {later[:4]}"
    assert len(visible.seen) == len(stage.ends)
    await stage.rig.check()
