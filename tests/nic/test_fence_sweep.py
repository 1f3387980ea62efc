"""A region is invalidated in every cycle around the accesses under its keys (nic.md 2).

Sweep: target and source of WRITEs, source and sink of READs, word and result of atomics; the command in each
cycle from before the doorbell's first effect to behind the last CQE, in steps of a few cycles with a random
start for `make test`, each of them in the long variant.
Stimulus: three WQEs by one doorbell, the command so many cycles later; then both ends are reset where one of
them failed, and the region is set with other tags.
Checks: when STATUS is idle no access under the old entry comes any more: bytes of the region stay, none of it
is read; codes: good ones, then a5 (own side: a7), then flushes; bytes of good ones are in place; in the sweep
all numbers of good WQEs occur, and a WQE of several packets fails in its middle; the judge's.
Timing: slow memory without jitter, so that the sweep is one of the NIC's own cycles.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import cocotb
import numpy as np
import pytest

from pymodel.device import Pe
from pymodel.formats.wqe import WqeOp
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp, MrContext, command
from pymodel.nic.params import CMD_REG, CMD_STAGE, CMD_STATUS, AxiId
from tb.sim.records import Kind
from tests.nic.raw import FLUSH, SOURCE, RawQp, renew
from tests.nic.stage import Stage, add_region

PES = 2
WQES = 3
#: bytes of a WRITE or READ: three packets
SIZE = 700
PART = 4096
#: cycles between two commands of the sweep in `make test`
STEP = 6


@dataclass(frozen=True)
class Victim:
    """Whose region goes, under which opcode, and what must have ended: records of this kind and AXI ID."""

    own: bool
    op: WqeOp
    kind: Kind
    ident: AxiId


VICTIMS = {
    "target of WRITEs": Victim(False, WqeOp.WRITE, Kind.COMMIT, AxiId.INBOUND),
    "source of WRITEs": Victim(True, WqeOp.WRITE, Kind.AXI_R, AxiId.GATHER),
    "source of READs": Victim(False, WqeOp.READ, Kind.AXI_R, AxiId.GATHER),
    "sink of READs": Victim(True, WqeOp.READ, Kind.COMMIT, AxiId.RESULT),
    "word of atomics": Victim(False, WqeOp.FA64, Kind.AXI_R, AxiId.ATOMIC),
    "result of atomics": Victim(True, WqeOp.FA64, Kind.COMMIT, AxiId.RESULT),
}


class Sweep:
    """One victim, command after command."""

    def __init__(self, dut: Any, victim: Victim) -> None:
        self.victim, seed = victim, cocotb.RANDOM_SEED
        self.rng = random.Random(f"fence {seed}")
        fabric = Fabric.build(FabricConfig.mixed(PES, 1, seed, mtus=(256,), heap_bytes=16 << 20))
        self.pe = 0 if victim.own else 1
        heap = fabric.pes[self.pe]
        self.base = heap.heap_base + (12 << 20)
        self.region = MrContext(self.base, PART, ltag=1, rtag=2)
        self.index = add_region(fabric, self.pe, self.region)
        # what the command must wait for takes longer than the test takes to see that it did not
        self.stage = Stage(dut, fabric, (), knobs={"mem_latency": 60, "commit_delay": 100})
        self.batches: list[np.ndarray] = []

    async def start(self) -> None:
        """Bring-up."""
        await self.stage.start()
        self.rig, self.lib = self.stage.rig, self.stage.rig.lib
        self.qp: RawQp = self.stage.ends[0, 1, 0]
        self.back: RawQp = self.stage.ends[1, 0, 0]
        self.rig.sinks.append(lambda records, _side: self.batches.append(records))

    def items(self) -> list[dict[str, Any]]:
        """The WQEs, their part of the victim's region one behind the other."""
        qp, op, found = self.qp, self.victim.op, []
        key = self.region.lkey(self.index) if self.victim.own else self.region.rkey(self.index)
        side = "l" if self.victim.own else "r"
        for k in range(WQES):
            if op == WqeOp.WRITE:
                item = qp.fields(SIZE, 1024 * k)
            elif op == WqeOp.READ:
                item = qp.read(SIZE, 1024 * k)
            else:
                item = qp.atomic(op, 64 * k, 64 * k, swap_add=self.rng.getrandbits(32) | 1)
            found.append({**item, f"{side}addr": self.base + 1024 * k, f"{side}key": key})
        return found

    async def once(self, offset: int | None) -> tuple[int, int]:
        """Post, invalidate `offset` cycles later (None: not at all); good WQEs, cycles until the last CQE."""
        lib, rig, pe = self.lib, self.rig, self.pe
        if offset is not None:
            for word, data in enumerate(replace(self.region, valid=False).stage_words()[:3]):
                await lib.write(pe, CMD_STAGE + 8 * word, data)
        items = self.items()

        async def post(me: Pe) -> None:
            if me.rank == 0:
                await self.qp.post(*items)

        async def take(me: Pe) -> list[int]:
            return (await self.qp.collect(WQES))["error_code"].tolist() if me.rank == 0 else []

        await rig.run(post, sanitize=False)
        begun = lib.cycle
        if offset is not None:
            await lib.cycles(offset + 1)
            assert lib.mmio_write(pe, CMD_REG, command(CmdOp.SET, CmdObj.MR, self.index))
            while await lib.read(pe, CMD_STATUS) & 1:
                pass
        ended, memory = lib.cycle, lib.memory(pe, self.base, PART)
        left = memory.copy()
        codes = (await rig.run(take, sanitize=False)).returns[0]
        took = lib.cycle - begun
        await rig.settle()
        good = codes.count(0)
        bad = 0xA7 if self.victim.own else 0xA5
        assert codes == ([0] * good + [bad] + [FLUSH] * WQES)[:WQES], f"{codes}, {offset} cycles"
        if offset is not None:
            assert np.array_equal(memory, left), f"{offset} cycles: written after the command had ended"
            self.late(ended, offset)
        self.in_place(items[:good])
        return good, took

    def late(self, ended: int, offset: int) -> None:
        """No access under the old entry after a cycle."""
        records = np.concatenate(self.batches)
        self.batches = self.batches[-4:]
        of = (records["pe"] == self.pe) & (records["kind"] == self.victim.kind)
        mine = records[of & (records["id"] == self.victim.ident) & (records["time"] > ended)]
        mine = mine[(mine["addr"] >= self.base & ~63) & (mine["addr"] < self.base + PART)]
        assert not mine.size, f"{offset} cycles: {mine.size} accesses after the command had ended"

    def in_place(self, items: list[dict[str, Any]]) -> None:
        """Bytes of good WRITEs and READs are where they belong."""
        if self.victim.op == WqeOp.FA64:
            return
        reads = self.victim.op == WqeOp.READ
        for item in items:
            mine = self.lib.memory(0, item["laddr"], SIZE)
            assert np.array_equal(mine, self.lib.memory(1, item["raddr"], SIZE)), f"bytes, READ: {reads}"

    async def again(self, failed: bool) -> None:
        """The region is set with other tags, the QPs live again."""
        self.region = replace(self.region, ltag=self.rng.randrange(256), rtag=self.rng.randrange(256))
        words = self.region.stage_words()
        assert await self.stage.console[self.pe].command(CmdOp.SET, CmdObj.MR, self.index, words) == 0
        for console in self.stage.console:
            await console.asyncs()
        if failed:
            await renew(self.rig, self.qp, self.back, (self.rng.getrandbits(24), self.rng.getrandbits(24)))

        async def ring(me: Pe) -> None:
            if me.rank == 0:
                await self.qp.ring_cq()

        await self.rig.run(ring, sanitize=False)
        # what the next WQEs move differs from what is there
        noise = np.random.default_rng(self.rng.getrandbits(32)).integers(0, 256, PART, np.uint8)
        source = self.base
        if self.victim.own == (self.victim.op == WqeOp.READ):
            pe = 1 - self.pe
            source = self.rig.fabric.pes[pe].heap_base + SOURCE
            self.lib.store(pe, source, noise)
        else:
            self.lib.store(self.pe, source, noise)

    async def all(self, step: int) -> None:
        """The whole life of the WQEs, from the doorbell to the last CQE."""
        good, took = await self.once(None)
        assert good == WQES
        await self.again(False)
        seen = dict.fromkeys(range(WQES + 1), 0)
        for offset in range(self.rng.randrange(step), took + 2 * step, step):
            good, _ = await self.once(offset)
            seen[good] += 1
            await self.again(good < WQES)
        assert all(seen.values()), f"good WQEs and how often: {seen}"
        await self.rig.check()


@cocotb.test()
@cocotb.parametrize(victim=list(VICTIMS))
async def test_fence(dut, victim: str) -> None:
    """Some cycles."""
    sweep = Sweep(dut, VICTIMS[victim])
    await sweep.start()
    await sweep.all(STEP)


@cocotb.test()
@cocotb.parametrize(victim=list(VICTIMS))
@pytest.mark.long
async def test_fence_in_each_cycle(dut, victim: str) -> None:
    """Each cycle."""
    sweep = Sweep(dut, VICTIMS[victim])
    await sweep.start()
    await sweep.all(1)
