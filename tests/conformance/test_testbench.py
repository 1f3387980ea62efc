"""The testbench around a stub NIC.

Sweep: 1 and 2 PEs, with and without stalls, reordering and commit delay. Stimulus: doorbells that make the
stub read a
packet from memory, send it, receive it and write it. Checks: bytes in memory, each record kind with its
fields, watches,
events, deadlines, dirty pages, routing. Timing: latencies are lower bounds. Does not prove: anything about
the real NIC.
"""

from __future__ import annotations

import random

import cocotb
import numpy as np

from tb.sim.lib import Reason, RecordOverflow, SimLib, SimStalled, UnmappedAccess, seeded
from tb.sim.records import Fault, Kind

PES = [1, 2]
NIC_RTL = ["tests/conformance/stub/rnic.sv"]

DOORBELL = 0x0800_0000
SRC, DST, CQ = 0x1_0000_0000, 0xFFFF_FFFF_FFF0_0000, 0x2_0000_0000
MACS = [0x0200_0000_0001, 0x0200_0000_0002]


def packet(dest: int, target: int, beats: int, cqe: int, rng: np.random.Generator) -> np.ndarray:
    """A packet of the stub's format: MAC, target address, beats, CQE address, random bytes behind."""
    data = rng.integers(0, 256, 64 * beats, dtype=np.uint8)
    data[0:6] = list(MACS[dest].to_bytes(6, "big"))
    data[8:16] = np.frombuffer(target.to_bytes(8, "little"), np.uint8)
    data[16] = beats
    data[24:32] = np.frombuffer(cqe.to_bytes(8, "little"), np.uint8)
    return data


async def start(dut) -> SimLib:
    lib = SimLib(dut)
    for pe in range(lib.n_pes):
        lib.add_region(pe, SRC, 1 << 20)
        lib.add_region(pe, DST, 1 << 20)  # its last byte is the last one of the address space
        lib.add_region(pe, CQ, 1 << 16, fill=0xFF)
        lib.set_mac(pe, MACS[pe])
    await lib.reset()
    return lib


async def until(lib: SimLib, ids: set[int], timeout: int = 100_000) -> None:
    """Sleeps until all watches have fired."""
    lib.set_deadline(lib.cycle + timeout)
    while ids:
        reason = await lib.wake()
        ids -= set(lib.fired())
        assert not (reason & Reason.DEADLINE and ids), f"watches {ids} never fired"
    lib.set_deadline(None)


@cocotb.test()
@cocotb.parametrize(knobs=["quiet", "stalls"])
async def test_packets_end_to_end(dut, knobs: str) -> None:
    """64 packets of random length each way; every byte, every record."""
    lib = await start(dut)
    if knobs == "stalls":
        for name, value in {
            "mem_stall": 20000,
            "mem_ooo": 30000,
            "mem_latency_jitter": 60,
            "commit_delay": 50,
            "link_stall_tx": 10000,
            "link_stall_rx": 10000,
            "link_latency_jitter": 300,
            "axil_gap": 20,
            "axil_skew": 30000,
        }.items():
            lib.set_knob(name, value)
    rng = seeded()
    n, count = lib.n_pes, 64
    sent: dict[tuple[int, int], np.ndarray] = {}
    watches = set()
    for pe in range(n):
        to = (pe + 1) % n
        watches.add(lib.watch(to, CQ, 64 * count, hits=count))
        for i in range(count):
            beats = int(rng.integers(1, 65))
            data = packet(to, DST + i * 4096, beats, CQ + 64 * i, rng)
            sent[pe, i] = data
            lib.store(pe, SRC + i * 4096, data)
            assert lib.mmio_write(pe, DOORBELL, beats << 56 | (SRC + i * 4096))
    await until(lib, watches)
    await lib.cycles(300)  # the last responses come after the bytes are visible
    records = lib.drain()
    assert lib.faults == 0 and lib.link_dropped == 0
    for (pe, i), data in sent.items():
        to = (pe + 1) % n
        assert np.array_equal(lib.memory(to, DST + i * 4096, len(data)), data), (pe, i)
        assert (lib.memory(to, CQ + 64 * i, 64).view(np.uint32) == i + 1).all()
    for pe in range(n):
        mine = records[records["pe"] == pe]
        kinds = {k: mine[mine["kind"] == k] for k in Kind}
        frm = (pe - 1) % n
        assert len(kinds[Kind.STORE]) == count
        for rec, i in zip(kinds[Kind.STORE], range(count), strict=True):
            assert rec["addr"] == SRC + i * 4096 and np.array_equal(lib.payload(rec), sent[pe, i])
        for kind, who in ((Kind.TXPKT, pe), (Kind.RXPKT, frm)):
            assert len(kinds[kind]) == count
            for rec, i in zip(kinds[kind], range(count), strict=True):
                assert np.array_equal(lib.payload(rec), sent[who, i])
                assert rec["time"] - rec["aux0"] >= len(sent[who, i]) // 64 - 1
        assert (
            kinds[Kind.RXPKT]["time"]
            > records[(records["kind"] == Kind.TXPKT) & (records["pe"] == frm)]["time"] + 20
        ).all()
        assert kinds[Kind.MMIO_W]["data"].tolist() == [
            len(sent[pe, i]) // 64 << 56 | (SRC + i * 4096) for i in range(count)
        ]
        assert (kinds[Kind.MMIO_W]["addr"] == DOORBELL).all() and (kinds[Kind.MMIO_W]["flags"] == 0xFF).all()
        assert (kinds[Kind.AXI_R]["id"] == 1).all() and len(kinds[Kind.AXI_R]) == count
        assert (kinds[Kind.AXI_R]["time"] - kinds[Kind.AXI_R]["aux0"] >= 20).all()
        for kind in (Kind.AXI_W, Kind.AXI_B, Kind.COMMIT):
            assert kinds[kind]["id"].tolist() == [3, 4] * count
            assert (kinds[kind]["flags"] == 0).all()
        write, commit, resp = (kinds[k] for k in (Kind.AXI_W, Kind.COMMIT, Kind.AXI_B))
        assert (write["aux1"] == [v for i in range(count) for v in (len(sent[frm, i]), 64)]).all()
        assert (write["addr"] == commit["addr"]).all() and (commit["len"] == write["aux1"]).all()
        assert (write["time"] < commit["time"]).all() and (commit["time"] < resp["time"]).all()
        if knobs == "quiet":
            assert (commit["time"] == write["time"] + 1).all()
        else:
            assert len(set((commit["time"] - write["time"]).tolist())) > 10
        for rec, i in zip(write[1::2], range(count), strict=True):
            assert (lib.payload(rec).view(np.uint32) == i + 1).all()
        assert kinds[Kind.EVENT]["flags"].tolist() == [1]
        pages = {DST + 4096 * i for i in range(count)} | {SRC + 4096 * i for i in range(count)} | {CQ}
        assert lib.dirty(pe).tolist() == sorted(pages)


@cocotb.test()
@cocotb.parametrize(knobs=["quiet", "stalls"])
async def test_words(dut, knobs: str) -> None:
    """Reads and writes of 4 and 8 bytes on ID 2 at every place of a beat: memory, neighbours, records."""
    lib = await start(dut)
    if knobs == "stalls":
        knob_values = {"mem_stall": 30000, "mem_ooo": 30000, "mem_latency_jitter": 40, "commit_delay": 40}
        for name, value in knob_values.items():
            lib.set_knob(name, value)
    image = seeded().integers(0, 256, 4096, dtype=np.uint8)
    lib.store(0, SRC, image)
    lib.drain()
    words = [(size, at) for size in (2, 3) for at in range(64, 128, 1 << size)]
    for n, (log, at) in enumerate(words):
        assert lib.mmio_write(0, DOORBELL + 8, log << 60 | SRC + at)
        image[at : at + (1 << log)] += 1
        await lib.cycles(600)
        assert np.array_equal(lib.memory(0, SRC, 4096), image), f"word {n}"
        records = lib.drain()
        (read,) = records[records["kind"] == Kind.AXI_R]
        assert (read["id"], read["addr"], read["len"], read["data"]) == (2, SRC + at, 1, 1 << log)
        (write,) = records[records["kind"] == Kind.AXI_W]
        lanes = slice(at % 64, at % 64 + (1 << log))
        assert (write["id"], write["addr"], write["len"], write["aux1"]) == (2, SRC + at, 1, 1 << log)
        assert write["aux0"] == sum(1 << lane for lane in range(64)[lanes])
        assert np.array_equal(lib.payload(write)[lanes], image[at : at + (1 << log)])
        (commit,) = records[records["kind"] == Kind.COMMIT]
        assert (commit["id"], commit["addr"], commit["len"]) == (2, SRC + at, 1 << log)
    assert lib.faults == 0


@cocotb.test()
async def test_mmio_reads_and_order(dut) -> None:
    """A read comes after all earlier writes; a full mailbox refuses and wakes; answers belong to their
    tickets.
    """
    lib = await start(dut)
    posted = 0
    while lib.mmio_write(0, 0x100, posted):
        posted += 1
    assert posted == 256
    assert not lib.mmio_read(0, 0)
    lib.set_deadline(lib.cycle + 100_000)
    assert await lib.wake() == Reason.MAILBOX
    tickets = [lib.mmio_read(0, 8 * i) for i in range(16)]
    assert all(tickets)
    got: dict[int, int] = {}
    while len(got) < 16:
        assert await lib.wake() & Reason.READ
        got.update({t: v for t in tickets if t not in got and (v := lib.result(t)) is not None})
    for i, t in enumerate(tickets):
        assert got[t] == (~(8 * i) & 0xFFFF_FFFF) << 32 | 8 * i
    assert lib.result(tickets[0]) is None
    records = lib.drain()
    writes, reads = (np.flatnonzero(records["kind"] == k) for k in (Kind.MMIO_W, Kind.MMIO_R))
    assert records[writes]["data"].tolist() == list(range(256)) and writes.max() < reads.min()
    assert records[reads]["addr"].tolist() == [8 * i for i in range(16)]
    assert lib.mmio_pending(0) == 0 and lib.mmio_bad_responses(0) == 0


@cocotb.test()
async def test_watches(dut) -> None:
    """Hits are counted per beat and only inside the range; unwatch disarms; a fired watch is gone."""
    lib = await start(dut)
    rng = seeded()
    inside = lib.watch(0, DST + 64, 128, hits=2)
    beyond = lib.watch(0, DST + 4 * 64, 64)
    dropped = lib.watch(0, DST, 64)
    assert lib.unwatch(dropped) and not lib.unwatch(dropped)
    await _send(lib, packet(0, DST, 4, CQ, rng))
    assert lib.fired() == [inside]
    await _send(lib, packet(0, DST, 5, CQ, rng))
    assert lib.fired() == [beyond]
    await _send(lib, packet(0, DST, 5, CQ, rng))
    assert lib.fired() == []
    # strobes decide, not beats: 36 bytes of the second beat are written
    strobed, unstrobed = lib.watch(0, DST + 64 + 35, 1), lib.watch(0, DST + 64 + 36, 28)
    lib.inject(0, packet(0, DST, 2, 0, rng)[:100].tobytes())
    await lib.cycles(300)
    await lib.wake()
    assert lib.fired() == [strobed]
    assert lib.unwatch(unstrobed)
    last_byte = lib.watch(0, DST + 63, 1)
    top = lib.watch(0, 2**64 - 1, 1)
    await _send(lib, packet(0, 2**64 - 64, 1, CQ, rng))
    assert lib.fired() == [top]
    await _send(lib, packet(0, DST, 1, CQ, rng))
    assert lib.fired() == [last_byte]


async def _send(lib: SimLib, data: np.ndarray) -> None:
    """One packet from memory of PE 0; returns well after its completion."""
    lib.store(0, SRC, data)
    assert lib.mmio_write(0, DOORBELL, len(data) // 64 << 56 | SRC)
    await lib.cycles(300)
    # a watch that has fired must not make a later wake() return at once
    if lib._ctl[2]:
        await lib.wake()


@cocotb.test()
async def test_deadline_and_event(dut) -> None:
    """A deadline wakes in its very cycle; a rising event wakes, or does not where it is switched off."""
    lib = await start(dut)
    target = lib.cycle + 1000
    lib.set_deadline(target)
    assert await lib.wake() == Reason.DEADLINE
    assert lib.cycle == target
    await _send_event(lib, Reason.EVENT)
    await lib.read(0, 0)  # clears the stub's event
    await lib.wake()
    lib.set_event_wakes(False)
    await _send_event(lib, Reason.DEADLINE)
    assert [r["flags"] for r in lib.drain() if r["kind"] == Kind.EVENT] == [1, 0, 1]


async def _send_event(lib: SimLib, expected: Reason) -> None:
    lib.store(0, SRC, packet(0, DST, 1, CQ, seeded()))
    lib.mmio_write(0, DOORBELL, 1 << 56 | SRC)
    lib.set_deadline(lib.cycle + 2000)
    assert await lib.wake() == expected


@cocotb.test()
async def test_errors_and_faults(dut) -> None:
    """Unmapped accesses, partial beats, error ranges, unknown MACs: responses and FAULT records."""
    lib = await start(dut)
    rng = seeded()
    await _send(lib, packet(0, 0x5_0000_0000, 2, 0, rng))
    records = lib.drain()
    assert records[records["kind"] == Kind.AXI_B]["flags"].tolist() == [3]
    faults = records[records["kind"] == Kind.FAULT]
    assert faults["data"].tolist() == [Fault.WILD_WRITE] * 2 and faults["addr"].tolist() == [
        0x5_0000_0000,
        0x5_0000_0040,
    ]

    # a region that ends in mid-beat: bytes inside are written, the response is OKAY, the rest is a fault
    lib.add_region(0, 0x5_0000_0000, 100)
    data = packet(0, 0x5_0000_0000, 2, 0, rng)
    await _send(lib, data)
    records = lib.drain()
    assert records[records["kind"] == Kind.AXI_B]["flags"].tolist() == [0]
    fault = records[records["kind"] == Kind.FAULT]
    assert fault["data"].tolist() == [Fault.PARTIAL_WRITE]
    assert int(fault["aux0"][0]) == (2**64 - 1) >> 36 << 36
    assert np.array_equal(lib.memory(0, 0x5_0000_0000, 100), data[:100])

    lib.add_error(0, DST + 64, 1, on="w", resp=2)
    before = lib.memory(0, DST, 192).copy()
    await _send(lib, packet(0, DST, 3, 0, rng))
    records = lib.drain()
    assert records[records["kind"] == Kind.AXI_B]["flags"].tolist() == [2]
    assert np.array_equal(lib.memory(0, DST, 192), before)
    lib.clear_errors(0)

    lib.mmio_write(
        0, DOORBELL, 1 << 56 | 0x7_0000_0000
    )  # reads nowhere: poison goes out as a packet without a route
    await lib.cycles(200)
    records = lib.drain()
    reads = records[records["kind"] == Kind.AXI_R]
    assert reads["flags"].tolist() == [3]
    tx = records[records["kind"] == Kind.TXPKT]
    assert (lib.payload(tx[0]) == 0xEE).all()
    assert records[records["kind"] == Kind.FAULT]["data"].tolist() == [Fault.WILD_READ, Fault.NO_ROUTE]
    assert lib.link_dropped == 1

    for bad in (lambda: lib.memory(0, SRC - 1, 2), lambda: lib.store(0, SRC + (1 << 20) - 1, b"ab")):
        try:
            bad()
        except UnmappedAccess:
            continue
        raise AssertionError("access outside a region was accepted")
    try:
        lib.memory(0, SRC, 1)[0] = 1
    except ValueError:
        pass
    else:
        raise AssertionError("a memory view is writable")


@cocotb.test()
async def test_injected_packets(dut) -> None:
    """A frame from outside reaches the port whatever its MAC is; lengths that are no multiple of 64."""
    lib = await start(dut)
    rng = seeded()
    for length in (1, 63, 64, 65, 1000):
        data = rng.integers(0, 256, length, dtype=np.uint8)
        data[8:17] = 0
        if length >= 17:
            data[8:16] = np.frombuffer(DST.to_bytes(8, "little"), np.uint8)
            data[16] = -(-length // 64)
            data[24:32] = 0
        else:
            continue  # the stub needs its header
        lib.inject(lib.n_pes - 1, data.tobytes())
        assert lib.link_pending(lib.n_pes - 1) == 1
        await lib.cycles(300)
        rx = [r for r in lib.drain() if r["kind"] == Kind.RXPKT]
        assert len(rx) == 1 and np.array_equal(lib.payload(rx[0]), data)
        assert np.array_equal(lib.memory(lib.n_pes - 1, DST, length), data)


@cocotb.test()
async def test_record_overflow_is_an_error(dut) -> None:
    """What is not drained in time is missed loudly; attention comes at three quarters."""
    lib = await start(dut)
    lib.drain()
    lib.drain()
    for i in range((1 << 15) * 3 // 4 - 1):
        lib.note(0, i)
    assert lib._ctl[1] == 0
    lib.note(0, 0)
    assert lib._ctl[1] == Reason.RING
    for i in range(1 << 13):
        lib.note(0, i)
    assert lib._ctl[9] == 0
    lib.note(0, 0)
    try:
        lib.drain()
    except RecordOverflow:
        return
    raise AssertionError("lost records went unnoticed")


@cocotb.test()
async def test_side_buffer_wraps(dut) -> None:
    """Bytes of records stay contiguous and right across the end of the side buffer, and valid until the
    next drain.
    """
    lib = await start(dut)
    rng = seeded()
    lib.drain()
    held = []
    for _ in range(60):
        data = rng.integers(0, 256, random.randrange(1, 1 << 20), dtype=np.uint8)
        lib.store(0, SRC, data)
        for rec, want in held:
            assert np.array_equal(lib.payload(rec), want)
        rec = lib.drain()
        assert len(rec) == 1
        held = [(rec[0], data)]


@cocotb.test()
async def test_watchdog(dut) -> None:
    """A bench in which nothing happens raises in the sleeping program."""
    lib = await start(dut)
    lib.stall_limit = 20_000
    begin = lib.cycle
    try:
        await lib.wake()
    except SimStalled:
        assert 20_000 <= lib.cycle - begin < 40_000
        return
    raise AssertionError("the watchdog slept as well")
