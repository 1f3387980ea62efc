"""How many READs and atomics are outstanding, and what waits for them: limits, fences, WRITEs behind a limit.

Sweep: max_rd_atomic x max_dest_rd_atomic, each 0, 1, 2, 3 and 16; fence_mode 0 to 3 on WRITE, READ and atomic
behind a READ, an atomic, a WRITE, a READ that a WRITE follows, and nothing; READs at a limit of 1 between
WRITEs; V1 and V2.
Stimulus: streams of twenty READs and atomics at a slow responder, on all 25 pairs of limits; chains of fenced
WQEs over a slow link, in both directions.
Checks: how many are outstanding when each request leaves, from the records alone: never above the requester's
limit, and up to it; NAK 1 exactly where the responder's table is full, none else; requests leave in posting
order; a fenced WQE leaves after the write response of the last result byte, any other before that, and none
waits for an ACK; a WRITE passes a limit that is reached, and no READ that waits for it; the judge's.
Timing: link latency 400, memory latency 900 cycles. Not proved: limits after lost packets.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import cocotb

from pymodel.formats.packet import Bth
from pymodel.formats.wqe import ATOMIC_SIZE, WqeOp
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import AsyncKind, Cnt
from tests.nic.raw import FLUSH, RawQp
from tests.nic.stage import READS, RESULTS, WORDS, WRITES, Stage, local
from tests.nic.watch import Flight, Watcher

PES = 2
LIMITS = (0, 1, 2, 3, 16)
PAIRS = list(itertools.product(LIMITS, LIMITS))
COUNT = 20
#: cycles of memory latency at the responder
SLOW = 900
BTH = {1: Bth.WRITE_ONLY, 2: Bth.READ_REQUEST, 26: Bth.CMP_SWAP, 27: Bth.FETCH_ADD}


def stage_of(dut: Any, qps: int, overrides: dict, knobs: dict[str, int]) -> Stage:
    """A stage without bystanders; one packet holds every message."""
    config = FabricConfig(
        n_pes=2, qps=qps, seed=cocotb.RANDOM_SEED, versions=(1, 2), strides=(32, 64), start="wraps",
        sq_depths=(32,), mtus=(1024,), heap_bytes=32 << 20, overrides=overrides,
    )  # fmt: skip
    return Stage(dut, Fabric.build(config), (), knobs=knobs)


def item(qp: RawQp, op: int, rng: random.Random, **changes: int) -> dict[str, Any]:
    """A good WQE of one packet and at least one byte."""
    length = rng.randrange(1, 1000)
    if op == WqeOp.WRITE:
        good = qp.fields(length, WRITES + rng.randrange(1 << 14))
    elif op == WqeOp.READ:
        good = qp.read(length, rng.randrange(1 << 14), laddr=local(qp, READS + rng.randrange(1 << 14)))
    else:
        good = qp.atomic(op, WORDS + 8 * rng.randrange(8), RESULTS + rng.randrange(4096), swap_add=1)
    return {**good, **changes}


def note(flight: Flight, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tell what is posted, on its way to `RawQp.post`."""
    sizes = [ATOMIC_SIZE.get(i["msg_opcode"], i["msg_len"]) for i in items if i["msg_opcode"] != WqeOp.WRITE]
    flight.posted += sizes
    return items


@cocotb.test()
async def test_limits(dut):
    """Each pair of limits on a QP of its own, all at the same time."""
    overrides: dict[tuple[int, int, int], dict[str, Any]] = {}
    for q, (most, held) in enumerate(PAIRS):
        overrides[0, 1, q] = {"max_rd_atomic": most}
        overrides[1, 0, q] = {"max_dest_rd_atomic": held}
    stage = stage_of(dut, len(PAIRS), overrides, {})
    await stage.start()
    stage.rig.lib.set_knob("mem_latency", SLOW, 1)
    watcher = Watcher(stage.ends)
    stage.rig.sinks.append(watcher)
    due, jobs, full = set(), [], 0

    async def stream(qp: RawQp, flight: Flight, rng: random.Random) -> list[int]:
        # READs first, so that the table is full before anything leaves it
        ops = [2] * 17 + [rng.choice((2, 26, 27)) for _ in range(COUNT - 17)]
        await qp.post(*note(flight, [item(qp, op, rng) for op in ops]))
        # at a limit of one the responder's memory is waited for COUNT times and more
        return (await qp.collect(COUNT, 4 * COUNT * SLOW))["error_code"].tolist()

    for q, (most, held) in enumerate(PAIRS):
        qp = stage.ends[0, 1, q]
        jobs.append((qp, stream(qp, watcher.flights[0, 1, q], random.Random(stage.rng.random()))))
        if most > held:
            due.add((1, AsyncKind.QP_ERR, qp.plan.peer_qpn))
            full += 1
    for q, ((most, held), codes) in enumerate(zip(PAIRS, await stage.beside(*jobs), strict=True)):
        what = f"max_rd_atomic {most}, max_dest_rd_atomic {held}: {[hex(c) for c in codes]}"
        if not most:
            assert codes == [0xAB] + [FLUSH] * (COUNT - 1), what
        elif most > held:
            assert codes == [0] * held + [0xA4] + [FLUSH] * (COUNT - held - 1), what
        else:
            assert codes == [0] * COUNT, what
        flight = watcher.flights[0, 1, q]
        reached = max((n + 1 for n in flight.outstanding()), default=0)
        # up to the limit, unless the NAK of the first one too many comes before all have left
        least = most if most <= held else held + 1
        assert least <= reached <= most, f"{what}: {reached} outstanding"
        # READs that the responder took end before the NAK, and make room for others
        left = range(reached, reached + held + 1) if most > held else (COUNT if most else 0,)
        assert len(flight.sent) in left, f"{what}: {len(flight.sent)} requests"
    await stage.rig.settle()
    await stage.events(due)
    for counter in (Cnt.RD_TOO_MANY, Cnt.NAK_INV_TX):
        assert await stage.console[1].counter(counter) == full, counter.name
    await stage.rig.check()


#: what is in front of the WQE with the fence
FRONT = {"nothing": (), "READ": (2,), "atomic": (27,), "WRITE": (1,), "READ, WRITE": (2, 1), "two": (26, 2)}
SCENES = list(itertools.product(FRONT, (1, 2, 26), range(4)))
#: at a limit of one: WRITEs pass the READ in front, and not the one that waits
AT_LIMIT = (2, 1, 1, 27, 1, 2, 1)
QPS = 5


@cocotb.test()
async def test_fences(dut):
    """Scenes one after the other on four QPs of each direction; a fifth has a limit of one."""
    overrides = {(pe, 1 - pe, QPS - 1): {"max_rd_atomic": 1} for pe in (0, 1)}
    stage = stage_of(dut, QPS, overrides, {"link_latency": 400, "mem_latency": 60})
    await stage.start()
    watcher = Watcher(stage.ends)
    stage.rig.sinks.append(watcher)
    order = SCENES[:]
    stage.rng.shuffle(order)
    scenes = {key: order[n::8] for n, key in enumerate(k for k in stage.ends if k[2] < QPS - 1)}
    posted: dict[tuple[int, int, int], list[int]] = {key: [] for key in stage.ends}

    async def chain(qp: RawQp, key: tuple[int, int, int], rng: random.Random) -> None:
        for front, op, mode in scenes.get(key, [(None, 0, 0)] * 4):
            ops = [*FRONT[front], op] if front is not None else list(AT_LIMIT)
            items = [item(qp, op, rng, fence_mode=rng.choice((0, 2, 3))) for op in ops]
            if front is not None:
                items[-1]["fence_mode"] = mode
            posted[key] += ops
            await qp.post(*note(watcher.flights[key], items))
            assert await qp.complete(len(items)) == [0] * len(items)

    await stage.beside(
        *[(qp, chain(qp, key, random.Random(stage.rng.random()))) for key, qp in stage.ends.items()]
    )
    await stage.rig.settle()
    for key, flight in watcher.flights.items():
        assert [op for _, op, _, _ in flight.sent] == [BTH[op] for op in posted[key]], "order of posting"
        at, bytes_due = 0, [0]
        sizes = iter(flight.posted)
        for op in posted[key]:
            bytes_due.append(bytes_due[-1] + (0 if op == 1 else next(sizes)))
        seen = [flight.bytes_at(cycle) for cycle, *_ in flight.sent]
        for front, op, mode in scenes.get(key, ()):
            fenced = at + len(FRONT[front])
            what = f"{WqeOp(op).name} with fence_mode {mode} behind {front}"
            before = bytes_due[fenced]
            waits = mode == 1 and before > bytes_due[at]
            if before > bytes_due[at]:
                assert (seen[fenced] >= before) == waits, f"{what}: {seen[fenced]} of {before} bytes there"
            cycle, _, psn, _ = flight.sent[fenced]
            if front == "WRITE" or (front == "READ, WRITE" and not waits):
                early = [a for a in flight.answers if a[0] < cycle and (psn - 1 - a[2]) % (1 << 24) == 0]
                assert not early, f"{what}: it waited for the ACK"
            at = fenced + 1
        if key not in scenes:
            for first in range(0, len(posted[key]), len(AT_LIMIT)):
                for k, op in enumerate(AT_LIMIT):
                    n = first + k
                    # of the READs and atomics of this chain, all but the last one posted before it are over
                    fetched = [m for m in range(first, n) if posted[key][m] != 1]
                    if op != 1 and fetched:
                        assert seen[n] >= bytes_due[n], f"{k}: more than one outstanding"
                    elif op == 1:
                        assert seen[n] < bytes_due[n], f"{k}: a WRITE waited at the limit"
    await stage.rig.check()
