"""The AXI memory model against a byte array.

Sweep: sizes 1 to 64 bytes, lengths 1 to 16 beats, unaligned starts, random strobes, four IDs with several
bursts open each;
quiet, and with stalls, jitter, reordering and commit delay. Stimulus: random bursts; a read of an ID's
bytes follows the
responses to its writes, writes of one ID overlap. Checks: each byte lane read, each response, order within
an ID, WLAST to B
order of visibility, final memory. Timing: one decision a cycle. Does not prove: behaviour on illegal bursts
(assertions).
"""

from __future__ import annotations

import random
from collections import deque

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge

from tb.sim.lib import SimLib
from tb.sim.records import Kind

BENCH = {
    "top": "mem_bench",
    "sources": [
        "tb/sv/axi_mem.sv",
        "tb/sv/axi4_checker.sv",
        "tb/sv/stable_checker.sv",
        "tests/conformance/mem_bench.sv",
    ],
    "evt": "evt_i",
}

IDS = (0, 3, 7, 15)
#: each ID has two pages of its own; the region ends 1000 bytes into the second one of the last ID
BASE = 0x7000_0000_0000
SPAN = 0x2000
REGION = SPAN * (len(IDS) - 1) + 0x1000 + 1000


def lanes(addr: int, size: int, beat: int) -> range:
    """Byte addresses of a beat of an INCR burst (AXI4 A3.4.1)."""
    width = 1 << size
    aligned = addr & ~(width - 1)
    return range(addr if beat == 0 else aligned + beat * width, aligned + (beat + 1) * width)


class Master:
    """Drives the bench at falling edges; the handshakes of a rising edge are decided beside the falling
    edge before it.
    """

    def __init__(self, dut, lib: SimLib, rng: random.Random, lazy: bool) -> None:
        self.dut, self.rng, self.lib = dut, rng, lib
        self.lazy = lazy
        self.reference = np.zeros(REGION, np.uint8)
        self.aw: deque[tuple] = deque()
        self.w: deque[tuple] = deque()
        self.ar: deque[tuple] = deque()
        self.writes: dict[int, deque[int]] = {i: deque() for i in IDS}
        self.reads: dict[int, deque[tuple]] = {i: deque() for i in IDS}
        self.beat = dict.fromkeys(IDS, 0)
        self.id_order: list[int] = []
        self.now = {"aw": None, "w": None, "ar": None}
        self.checked = 0

    def burst(self, index: int) -> tuple[int, int, int]:
        """Address, size, beats in the ID's pages, not crossing 4 KiB; sometimes outside the region."""
        rng = self.rng
        size, beats = rng.randrange(7), rng.randrange(1, 17)
        page = BASE + index * SPAN + rng.randrange(2) * 0x1000
        addr = page + rng.randrange(0x1000)
        room = (0x1000 - (addr & 0xFFF & ~((1 << size) - 1))) >> size
        return addr, size, min(beats, room)

    def inside(self, addr: int) -> bool:
        return BASE <= addr < BASE + REGION

    def start_write(self, index: int) -> None:
        ident = IDS[index]
        addr, size, beats = self.burst(index)
        self.aw.append((ident, addr, beats - 1, size))
        bad = 0
        for beat in range(beats):
            where = lanes(addr, size, beat)
            if not any(self.inside(a) for a in where):
                bad = 3
            data = self.rng.randbytes(64)
            strb = 0
            for a in where:
                # a strobe outside the region would be a fault of the master
                if self.inside(a) and (self.rng.random() < 0.7):
                    strb |= 1 << (a & 63)
                    self.reference[a - BASE] = data[a & 63]
            self.w.append((int.from_bytes(data, "little"), strb, beat == beats - 1))
        self.writes[ident].append(bad)

    def start_read(self, index: int) -> None:
        ident = IDS[index]
        addr, size, beats = self.burst(index)
        self.ar.append((ident, addr, beats - 1, size))
        self.reads[ident].append((addr, size, beats))

    def check_beat(self) -> None:
        dut = self.dut
        ident = int(dut.rid.value)
        addr, size, beats = self.reads[ident][0]
        beat = self.beat[ident]
        data = int(dut.rdata.value).to_bytes(64, "little")
        where = lanes(addr, size, beat)
        want = bytearray(b"\xee" * 64)
        for a in where:
            if self.inside(a):
                want[a & 63] = self.reference[a - BASE]
        assert data == bytes(want), (
            f"ID {ident} {addr:#x} size {size} beat {beat}: {data.hex()} for {want.hex()}"
        )
        assert int(dut.rresp.value) == (0 if any(self.inside(a) for a in where) else 3)
        assert bool(dut.rlast.value) == (beat == beats - 1)
        self.beat[ident] += 1
        self.checked += 1
        if beat == beats - 1:
            self.beat[ident] = 0
            self.reads[ident].popleft()
            self.id_order.append(ident)

    async def cycle(self) -> None:
        dut, rng = self.dut, self.rng
        await FallingEdge(dut.clk_i)
        ready = {"aw": bool(dut.awready.value), "w": bool(dut.wready.value), "ar": bool(dut.arready.value)}
        for name, queue in (("aw", self.aw), ("w", self.w), ("ar", self.ar)):
            if self.now[name] is None and queue and not (self.lazy and rng.random() < 0.3):
                self.now[name] = item = queue.popleft()
                if name == "w":
                    dut.wdata.value, dut.wstrb.value, dut.wlast.value = item
                else:
                    for field, value in zip(("id", "addr", "len", "size"), item, strict=True):
                        getattr(dut, name + field).value = value
            getattr(dut, f"{name}valid").value = self.now[name] is not None
            if ready[name]:
                self.now[name] = None
        take_r, take_b = (not self.lazy or rng.random() < 0.7 for _ in range(2))
        dut.rready.value, dut.bready.value = take_r, take_b
        if take_r and dut.rvalid.value:
            self.check_beat()
        if take_b and dut.bvalid.value:
            want = self.writes[int(dut.bid.value)].popleft()
            assert int(dut.bresp.value) == want

    def idle(self) -> bool:
        queued = self.aw or self.w or self.ar or any(v is not None for v in self.now.values())
        return not queued and not any(self.writes.values()) and not any(self.reads.values())


async def start(dut) -> SimLib:
    lib = SimLib(dut)
    lib.add_region(0, BASE, REGION)
    dut.rst_ni.value = 0
    for name in ("awvalid", "wvalid", "arvalid", "bready", "rready", "evt_i"):
        getattr(dut, name).value = 0
    dut.awburst.value = dut.arburst.value = 1
    await lib.cycles(4)
    dut.rst_ni.value = 1
    await lib.cycles(2)
    return lib


@cocotb.test()
@cocotb.parametrize(knobs=["quiet", "stalls", "reorder"])
async def test_random_bursts(dut, knobs: str) -> None:
    lib = await start(dut)
    if knobs != "quiet":
        values = {"mem_latency_jitter": 40, "commit_delay": 60, "mem_stall": 12000}
        if knobs == "reorder":
            values["mem_ooo"] = 50000
        for name, value in values.items():
            lib.set_knob(name, value)
    rng = random.Random(cocotb.RANDOM_SEED)
    master = Master(dut, lib, rng, lazy=knobs != "quiet")
    for _ in range(12):
        for direction in ("write", "read"):
            for _ in range(16):
                index = rng.randrange(len(IDS))
                getattr(master, f"start_{direction}")(index)
            issued = [item[0] for item in master.ar]
            master.id_order.clear()
            budget = 20_000
            while not master.idle():
                await master.cycle()
                budget -= 1
                assert budget, "the memory does not answer"
            if direction == "read" and knobs != "reorder":
                assert master.id_order == issued, (
                    "bursts of different IDs overtook each other without mem_ooo"
                )
            if direction == "read" and knobs == "reorder":
                master.checked += master.id_order != issued
    assert master.checked > 500
    assert np.array_equal(lib.memory(0, BASE, REGION), master.reference)
    assert lib.faults == 0 or all(r["data"] == 5 for r in lib.drain() if r["kind"] == Kind.FAULT)


@cocotb.test()
@cocotb.parametrize(lazy=[False, True])
async def test_words(dut, lazy: bool) -> None:
    """One beat of 4 or 8 bytes at each place of a bus word, as atomics use them, beside bursts of other IDs:
    exactly the strobed bytes change, the data of a read stands in the lanes of its address.
    """
    lib = await start(dut)
    if lazy:
        for name, value in {"mem_latency_jitter": 40, "commit_delay": 60, "mem_stall": 12000}.items():
            lib.set_knob(name, value)
    rng = random.Random(cocotb.RANDOM_SEED)
    master = Master(dut, lib, rng, lazy)
    image = np.frombuffer(rng.randbytes(4096), np.uint8)
    lib.store(0, BASE, image)
    master.reference[:4096] = image
    words = [(size, at) for size in (2, 3) for at in range(0, 64, 1 << size)]
    for direction in ("write", "read"):
        for n, (size, at) in enumerate(rng.sample(words, len(words))):
            # reads find words that were written before and some that were not
            addr = BASE + 64 * n + at
            getattr(master, f"start_{direction}")(1 + n % 3)
            if direction == "read":
                master.ar.append((IDS[0], addr, 0, size))
                master.reads[IDS[0]].append((addr, size, 1))
                continue
            data = rng.randbytes(64)
            strobe = ((1 << (1 << size)) - 1) << at
            master.aw.append((IDS[0], addr, 0, size))
            master.w.append((int.from_bytes(data, "little"), strobe, True))
            master.reference[addr - BASE :][: 1 << size] = list(data[at : at + (1 << size)])
            master.writes[IDS[0]].append(0)
        budget = 20_000
        while not master.idle():
            await master.cycle()
            budget -= 1
            assert budget, "the memory does not answer"
    assert master.checked > len(words)
    assert np.array_equal(lib.memory(0, BASE, REGION), master.reference)


@cocotb.test()
async def test_reordering_happens(dut) -> None:
    """With mem_ooo the order between IDs changes, without it it does not: the knob is not decoration."""
    lib = await start(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    lib.set_knob("mem_latency_jitter", 100)
    orders = []
    for ooo in (0, 65536):
        lib.set_knob("mem_ooo", ooo)
        master = Master(dut, lib, rng, lazy=False)
        for i in range(32):
            master.start_read(i % len(IDS))
        issued = [item[0] for item in master.ar]
        while not master.idle():
            await master.cycle()
        orders.append(master.id_order == issued)
    assert orders == [True, False]


@cocotb.test()
async def test_visibility_between_wlast_and_b(dut) -> None:
    """A write becomes visible as a whole, after WLAST and before B, at different distances from both."""
    lib = await start(dut)
    lib.set_knob("commit_delay", 40)
    rng = random.Random(cocotb.RANDOM_SEED)
    distances = set()
    for i in range(40):
        master = Master(dut, lib, rng, lazy=False)
        master.aw.append((3, BASE, 3, 6))
        value = i + 1
        for beat in range(4):
            master.w.append((int.from_bytes(bytes([value]) * 64, "little"), 2**64 - 1, beat == 3))
        master.writes[3].append(0)
        view = lib.memory(0, BASE, 256)
        visible = None
        while not master.idle():
            await master.cycle()
            seen = set(view.tolist())
            assert len(seen) == 1, "half a burst is visible"
            if seen == {value} and visible is None:
                visible = lib.cycle
        assert visible is not None
        commit = [r for r in lib.drain() if r["kind"] == Kind.COMMIT]
        assert len(commit) == 1 and commit[0]["time"] == visible
        distances.add(lib.cycle - visible)
    assert len(distances) > 5
