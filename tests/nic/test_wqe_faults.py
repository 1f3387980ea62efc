"""Malformed WQEs of every kind at every place of a fetch burst: the right code, good before, flushes behind.

Sweep: every check of the decode table (nic.md 4) x every opcode, with immediate too: the fetch fails in
either half of the slot; wqe_id off by one slot, by a lap, in each of its bits; opcodes that are none;
with_imm, in_line, each wrong ds_data_num; messages above 2^31; each length, in each of its bits; lkey in
tag and index, range at both ends and around the address space, right. One of these alone, or two at once,
of which the earlier check names the code. Places: alone, first, middle and last WQE of a burst, first of
the next one, in front of and behind the end of the ring and of a 4 KiB page, one doorbell or two. V1 and
V2.
Stimulus: WQEs by hand, 24 QPs at the same time, lap after lap, both ends of all reset and set in between.
Checks: codes, opcodes, lengths and wqe_ids of all CQEs in posting order, none besides, by the table of this
file; bytes of the WQEs before the bad one are in place, those of it and behind it are as they were; the
judge's (no packet, no byte and no CQE but these).
Timing: none. Not proved: errors that the responder finds (test_errors.py, test_read_errors.py); receive WQEs
(test_send.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.formats.wqe import DS_NUM, WqeOp
from pymodel.host.table import WQE_BYTES, Fabric, FabricConfig
from pymodel.nic.context import MrContext
from pymodel.platform import sleep
from tests.nic.raw import FLUSH, POOL, SOURCE, RawQp, renew
from tests.nic.stage import (
    ATOMICS,
    OWN,
    READS,
    WRITES,
    Stage,
    add_region,
    clear_errors,
    error,
    heap_end,
    local,
    remote,
)

PES = 2
QPS = 24
#: slots of a ring: two pages of 4 KiB
DEPTH = 64
PAGE = 4096 // WQE_BYTES
#: opcode, with_imm
OPS = [(int(op), 0) for op in (WqeOp.SEND, WqeOp.WRITE, WqeOp.READ, *ATOMICS)] + [(0, 1), (1, 1)]
#: opcodes that only read local memory
SOURCES = (WqeOp.SEND, WqeOp.WRITE)
#: codes in the order of the checks
FETCH, FORMAT, LENGTH, KEY = 0xAC, 0xAB, 0x9F, 0xA7
#: laps of this file: with 24 QPs each fault comes about twice, each place some 25 times
LAPS = 12
#: bytes of the good WRITEs around the bad WQE
SIZE = 64
#: (slot of the first WQE, WQEs, place of the bad one)
PLACES = [
    (0, 1, 0), (5, 2, 0), (5, 2, 1), (8, 8, 0), (8, 8, 4), (8, 8, 7), (16, 12, 8), (3, 12, 7),
    (DEPTH - 4, 8, 3), (DEPTH - 4, 8, 4), (DEPTH - 1, 6, 0), (DEPTH - 1, 6, 1), (DEPTH - 8, 10, 7),
    (PAGE - 3, 8, 2), (PAGE - 3, 8, 3), (PAGE - 1, 5, 1), (1, 24, 23),
]  # fmt: skip
NO_LOCAL_WRITE = 0xA1


@dataclass(frozen=True)
class Fault:
    """What is wrong: fields, or bytes of the slot that cannot be read; the code by nic.md 4."""

    code: int
    changes: dict[str, Any]
    unread: tuple[int, int] | None = None


def good(qp: RawQp, kind: tuple[int, int]) -> dict[str, Any]:
    """A good WQE of an opcode, in a part of both windows that nothing else touches."""
    op, with_imm = kind
    if op == WqeOp.SEND:
        return qp.send(SIZE, with_imm=with_imm)
    if op == WqeOp.WRITE:
        return qp.fields(SIZE, OWN, with_imm=with_imm)
    if op == WqeOp.READ:
        return qp.read(SIZE, laddr=local(qp, OWN), raddr=remote(qp, OWN))
    return qp.atomic(op, OWN, OWN)


def faults(qp: RawQp, kind: tuple[int, int], rng: random.Random) -> Iterator[Fault]:
    """Every way for a WQE at the head of a QP to fail before it is sent."""
    item, op, bits = good(qp, kind), kind[0], 16 if qp.plan.version == 1 else 20
    for unread in ((0, 64), (64, 64), (0, 128)):
        yield Fault(FETCH, {}, unread)

    def ident(offset: int) -> Fault:
        return Fault(FORMAT, {"wqe_id": offset})

    for offset in (8, -8, 8 * DEPTH, -8 * DEPTH, 1, 7, 1 << bits - 1, 1 << rng.randrange(bits)):
        yield ident(offset)
    known = {int(o) for o in WqeOp}
    for opcode in (3, 25, 28, 30, 35, 255, rng.choice([o for o in range(256) if o not in known])):
        yield Fault(FORMAT, {"msg_opcode": opcode})
    if op not in SOURCES:
        yield Fault(FORMAT, {"with_imm": 1, "opcode_data": rng.getrandbits(32)})
    yield Fault(FORMAT, {"in_line": 1 - item.get("in_line", 0)})
    wrong = [n for n in range(32) if n != DS_NUM[WqeOp(op)]]
    for number in (DS_NUM[WqeOp(op)] - 1, DS_NUM[WqeOp(op)] + 1, 31, rng.choice(wrong)):
        yield Fault(FORMAT, {"ds_data_num": number})
    names = ("msg_len", "l_len") if op == WqeOp.SEND else ("msg_len", "r_len", "l_len")
    for length in ((1 << 31) + 1, (1 << 32) - 1):
        yield Fault(LENGTH, dict.fromkeys(names, length))
    for name in names:
        for value in (item[name] - 1, item[name] + 1, 0, item[name] ^ 1 << rng.randrange(32)):
            yield Fault(LENGTH, {name: value})
    yield from local_keys(qp, item)


def local_keys(qp: RawQp, item: dict[str, Any]) -> Iterator[Fault]:
    """Every way for the local segment of a WQE to fail."""
    mine, key, size = qp.fabric.pes[qp.plan.pe], item["lkey"], item["l_len"]
    for wrong in (key ^ 1, key ^ 0x80, key ^ 0x100, 0, 0xFFFF_FFFF):
        yield Fault(KEY, {"lkey": wrong})
    ends = (mine.heap_base - 1, heap_end(qp, qp.plan.pe) - size + 1, (1 << 64) - size // 2, 0)
    for address in ends:
        yield Fault(KEY, {"laddr": address})
    if item["msg_opcode"] not in SOURCES:
        index = next(i for i, mr in mine.mrs.items() if mr.ltag == NO_LOCAL_WRITE)
        yield Fault(KEY, {"lkey": mine.mrs[index].lkey(index)})


def both(a: Fault, b: Fault) -> Fault | None:
    """Two faults of one WQE: the earlier check decides. None: they change the same field, or may make up for
    each other, as both lengths of a SEND do.
    """
    if a.changes.keys() & b.changes.keys() or (a.unread and b.unread) or a.code == b.code == LENGTH:
        return None
    order = (FETCH, FORMAT, LENGTH, KEY)
    first = min(a.code, b.code, key=order.index)
    return Fault(first, {**a.changes, **b.changes}, a.unread or b.unread)


def fabric(seed: int) -> Fabric:
    """QPs from PE 0 to PE 1, formats in turn, and a region that may not be written locally."""
    ends = {
        (pe, 1 - pe, q): {"sq_depth": DEPTH, "cq_depth": DEPTH, "version": 1 + q % 2}
        for pe in range(PES) for q in range(QPS)
    }  # fmt: skip
    net = Fabric.build(FabricConfig.mixed(PES, QPS, seed, heap_bytes=32 << 20, overrides=ends))
    heap = net.pes[0].heap_base, net.pes[0].heap_size
    rights = dict.fromkeys(("loc_write", "rem_write", "rem_atomic"), False)
    add_region(net, 0, MrContext(*heap, ltag=NO_LOCAL_WRITE, rtag=0xB1, **rights))
    return net


@cocotb.test()
@cocotb.parametrize(number=["one", "two"])
async def test_every_fault_at_every_place(dut, number: str) -> None:
    """All faults of all opcodes, each with the next place; of pairs a random choice."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), ())
    await stage.start()
    rig, rng = stage.rig, random.Random(f"wqe faults {cocotb.RANDOM_SEED}")
    places: list[tuple[int, int, int]] = []
    cases: list[tuple[tuple[int, int], int]] = []
    seen: set[tuple[int, tuple[int, int]]] = set()

    def draw(qp: RawQp) -> tuple[tuple[int, int], Fault]:
        """The next fault of the list, or two at once."""
        if not cases:
            counts = {op: len(list(faults(qp, op, rng))) for op in OPS}
            cases.extend((op, k) for op, count in counts.items() for k in range(count))
            rng.shuffle(cases)
        op, k = cases.pop()
        some = list(faults(qp, op, rng))
        fault = some[k % len(some)]
        while number == "two":
            if (pair := both(fault, rng.choice(some))) is not None:
                return op, pair
        return op, fault

    async def one(
        qp: RawQp, op: tuple[int, int], fault: Fault, place: tuple[int, int, int], lap: int
    ) -> None:
        _, count, bad = place
        at = [WRITES + (lap % 2) * 8192 + SIZE * k for k in range(count)]
        items = [qp.fields(SIZE, at[k], ce=1) for k in range(count)]
        reads = {k for k in range(count) if k != bad and not rng.randrange(4)}
        for k in reads:
            items[k] = qp.read(SIZE, SIZE * k, laddr=local(qp, READS + SIZE * k))
        changes = dict(fault.changes)
        bits = 16 if qp.plan.version == 1 else 20
        own = (qp.head + bad << 3) % (1 << bits)
        if "wqe_id" in changes:
            changes["wqe_id"] = own + changes["wqe_id"] & (1 << bits) - 1
        items[bad] = {**good(qp, op), "ce": rng.randrange(2), **changes}
        first = qp.head
        if fault.unread is not None:
            slot = qp.plan.sq_base + (first + bad) % DEPTH * WQE_BYTES
            error(rig, 0, slot + fault.unread[0], fault.unread[1], "r")
        heap = rig.lib.memory(1, remote(qp, 0), OWN + 4096)
        old = heap.copy()
        await qp.put(*items)
        if rng.randrange(2):
            await qp.ring_sq(first + rng.randrange(bad, count) if bad else first + 1)
            await sleep(rng.randrange(60))
        await qp.ring_sq()
        found = await qp.collect(count)
        what = f"QPN {qp.plan.qpn} V{qp.plan.version} opcode {op} {fault} {place}"
        codes = [0] * bad + [fault.code] + [FLUSH] * (count - bad - 1)
        assert found["error_code"].tolist() == codes, f"{what}: {[hex(c) for c in found['error_code']]}"
        named = 0 if fault.code == FETCH else items[bad]["msg_opcode"]
        assert int(found["msg_opcode"][bad]) == named, what
        assert not found["msg_opcode"][bad + 1 :].any() and not found["msg_len"][bad:].any(), what
        assert found["wqe_id"].tolist() == [(first + k << 3) % (1 << bits) for k in range(count)], what
        sources = rig.lib.memory(0, rig.fabric.pes[0].heap_base + SOURCE, POOL)
        for k in set(range(bad)) - reads:
            old[at[k] : at[k] + SIZE] = sources[at[k] : at[k] + SIZE]
        assert np.array_equal(heap, old), f"{what}: bytes at the peer"
        await qp.ring_cq()
        seen.add((fault.code, op))

    for lap in range(LAPS):
        jobs = []
        for q in range(QPS):
            qp = stage.ends[0, 1, q]
            if not places:
                places += PLACES
                rng.shuffle(places)
            place, (op, fault) = places.pop(), draw(qp)
            qp.plan = replace(qp.plan, start_index=DEPTH * rng.randrange(1 << 10) + place[0])
            psns = rng.getrandbits(24), rng.getrandbits(24)
            await renew(rig, qp, stage.ends[1, 0, q], psns)
            jobs.append((qp, one(qp, op, fault, place, lap)))

        async def main(pe: Pe, jobs: list[Any] = jobs) -> None:
            tasks = [await pe.spawn(job, f"QPN {qp.plan.qpn}") for qp, job in jobs if pe.rank == 0]
            for task in tasks:
                await pe.join(task)

        await rig.run(main, sanitize=False)
        await rig.settle()
        assert not any(qp.visible(1) for qp in stage.ends.values()), "a CQE too many"
        clear_errors(rig)
    assert {code for code, _ in seen} == {FETCH, FORMAT, LENGTH, KEY}
    assert len(seen) > 3 * len(OPS), f"{len(seen)} pairs of code and opcode"
    await stage.events(set())
    await rig.check()
