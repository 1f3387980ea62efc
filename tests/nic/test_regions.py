"""Regions under READ and atomics: every set of rights, and ranges that end with the address space (nic.md 2).

Sweep: all eight sets of remote rights x WRITE, READ, 8- and 4-byte atomic; a region that ends at 2^64 and one
that covers all of it x the last bytes that fit and one byte more, at source, sink and result; READs of 2^31
bytes and one more, which only their keys or their length may stop.
Stimulus: WQEs by hand, one QP for each case, one case at a time.
Checks: the code of each CQE by rights and ranges alone; bytes read, words that changed; the judge's.
Timing: none. Not proved: transfers of 2^31 bytes.
"""

from __future__ import annotations

import itertools
from typing import Any

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.formats.wqe import ATOMIC_SIZE
from pymodel.host.table import Fabric, FabricConfig, Region
from pymodel.nic.context import MrContext
from tb.sim.platform import Rig, RunResult
from tests.nic.raw import RawQp, fill_sources
from tests.nic.stage import ATOMICS, add_region

PES = 2
WRITE, READ, FA64, MFA32 = 1, 2, 27, 34
TOP, SPACE = (1 << 64) - 16384, 1 << 64
LOCAL_MR, REMOTE_MR, ATOMIC_VA, LENGTH = 0xA7, 0xA5, 0x89, 0x9F


def build(qps: int) -> Fabric:
    """Two PEs, MTU 256."""
    return Fabric.build(
        FabricConfig(n_pes=2, qps=qps, seed=cocotb.RANDOM_SEED, mtus=(256,), heap_bytes=32 << 20)
    )


async def codes_of(rig: Rig, items: list[dict[str, Any]]) -> tuple[list[int], RunResult]:
    """Post one WQE on each QP of PE 0, one after the other; their codes."""

    async def main(pe: Pe) -> list[int]:
        found = []
        for number, item in enumerate(items if pe.rank == 0 else ()):
            qp = RawQp(rig, 0, 1, number)
            await qp.post(item)
            found += await qp.complete(1)
        return found

    result = await rig.run(main, sanitize=False)
    return result.returns[0], result


@cocotb.test()
async def test_rights(dut):
    fabric, places = build(32), []
    for number, rights in enumerate(itertools.product((False, True), repeat=3)):
        base = fabric.pes[1].heap_base + (24 << 20) + 4096 * number
        write, read, atomic = rights
        region = MrContext(base, 4096, rem_write=write, rem_read=read, rem_atomic=atomic, rtag=number)
        places.append((rights, base, region.rkey(add_region(fabric, 1, region))))
    rig = Rig(dut, fabric)
    await rig.start()
    await fill_sources(rig, cocotb.RANDOM_SEED)
    items, due = [], []
    for number, ((rights, base, key), op) in enumerate(itertools.product(places, (WRITE, READ, FA64, MFA32))):
        qp, to = RawQp(rig, 0, 1, number), {"raddr": base + 4088, "rkey": key}
        if op == WRITE:
            items.append(qp.fields(8, **to))
        else:
            items.append(qp.read(8, **to) if op == READ else qp.atomic(op, swap_add=1, **to))
        due.append(0 if rights[{WRITE: 0, READ: 1}.get(op, 2)] else REMOTE_MR)
    codes, result = await codes_of(rig, items)
    assert codes == due
    await rig.check(result)


@cocotb.test()
@cocotb.parametrize(whole=[False, True])
async def test_end_of_the_address_space(dut, whole):
    fabric = build(32)
    for pe in fabric.pes:
        pe.regions.append(Region("top", TOP, SPACE - TOP))
        content = np.random.default_rng([cocotb.RANDOM_SEED, pe.rank]).integers(0, 256, SPACE - TOP, np.uint8)
        pe.contents.append((TOP, content))
    region = MrContext(0, SPACE, ltag=7, rtag=9) if whole else MrContext(TOP, SPACE - TOP, ltag=7, rtag=9)
    lkey, rkey = region.lkey(add_region(fabric, 0, region)), region.rkey(add_region(fabric, 1, region))
    rig = Rig(dut, fabric)
    await rig.start()
    await fill_sources(rig, cocotb.RANDOM_SEED)
    mine, theirs = rig.lib.memory(0, TOP, SPACE - TOP), rig.lib.memory(1, TOP, SPACE - TOP)
    qps = [RawQp(rig, 0, 1, number) for number in range(32)]
    items, due = [], []

    def case(code: int, item: dict[str, Any]) -> None:
        items.append(item)
        due.append(code)

    for op in ATOMICS:
        size, to = ATOMIC_SIZE[op], {"rkey": rkey, "lkey": lkey, "swap_add": 5}
        case(0, qps[len(items)].atomic(op, raddr=SPACE - size, laddr=SPACE - 64 * int(op), **to))
        case(LOCAL_MR, qps[len(items)].atomic(op, raddr=SPACE - 64, laddr=SPACE - size + 1, **to))
        if size == 8:
            case(ATOMIC_VA, qps[len(items)].atomic(op, raddr=SPACE - 4, laddr=TOP, **to))
    case(0, qps[len(items)].read(1, raddr=SPACE - 1, rkey=rkey, laddr=SPACE - 8001, lkey=lkey))
    case(0, qps[len(items)].read(777, raddr=SPACE - 777, rkey=rkey, laddr=TOP, lkey=lkey))
    case(REMOTE_MR, qps[len(items)].read(778, raddr=SPACE - 777, rkey=rkey, laddr=TOP, lkey=lkey))
    case(0, qps[len(items)].read(600, raddr=TOP + 99, rkey=rkey, laddr=SPACE - 600, lkey=lkey))
    case(LOCAL_MR, qps[len(items)].read(601, laddr=SPACE - 600, lkey=lkey))
    case(0, qps[len(items)].read(0, raddr=SPACE - 1, rkey=rkey ^ 1, laddr=SPACE - 1, lkey=lkey ^ 1))
    before = theirs.copy()
    codes, result = await codes_of(rig, items)
    assert codes == due
    last = np.flatnonzero(before != theirs)
    assert last.size and last.min() >= SPACE - TOP - 8, "words that an atomic changes: the last only"
    assert mine[SPACE - 8001 - TOP] == theirs[-1] and np.array_equal(mine[:777], theirs[-777:])
    assert np.array_equal(mine[-600:], theirs[99:699])
    await rig.check(result)


@cocotb.test()
async def test_reads_of_two_gibibytes(dut):
    fabric, most = build(6), 1 << 31
    region = MrContext(0, SPACE, ltag=7, rtag=9)
    lkey, rkey = region.lkey(add_region(fabric, 0, region)), region.rkey(add_region(fabric, 1, region))
    rig = Rig(dut, fabric)
    await rig.start()
    qps, heap = [RawQp(rig, 0, 1, number) for number in range(6)], fabric.pes[1]
    to = {"laddr": 4096, "lkey": lkey}
    items = [
        qps[0].read(most, **{**to, "lkey": lkey ^ 1}, raddr=0, rkey=rkey),
        qps[1].read(most, **to, raddr=0, rkey=rkey ^ 1),
        qps[2].read(most, **to, raddr=heap.heap_base + heap.heap_size - most + 1),
        qps[3].read(most, **to, raddr=SPACE - most + 1, rkey=rkey),
        qps[4].read(most + 1, **to, raddr=0, rkey=rkey),
        qps[5].read(most, laddr=SPACE - most + 1, lkey=lkey, raddr=0, rkey=rkey),
    ]
    codes, result = await codes_of(rig, items)
    assert codes == [LOCAL_MR, REMOTE_MR, REMOTE_MR, REMOTE_MR, LENGTH, LOCAL_MR]
    await rig.check(result)
