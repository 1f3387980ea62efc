"""Memory port (rtl/memory/axi_rd_mux.sv, axi_wr_mux.sv) with three clients on each side.

Sweep: bursts of whole beats and single narrow beats (4 and 8 bytes) of all clients at once, writers that use
several IDs; stalls on AR, AW and W, address and data in any distance; read data and responses of any ID, with
errors, back to back and with gaps.
Stimulus: bursts at the clients' ports; the test is the memory.
Checks: every burst comes out once, unchanged, under its client's or its own ID, in its client's order; W
follows AW burst by burst; what waits does not change; each read beat reaches its client and no other; each
response shows its ID and its error.
Timing: a burst a cycle on AR and AW, a beat a cycle on W without stalls; no client starves.
Not proved here: what the clients do with it (test_gather.py, test_scatter.py).
"""

import random
from collections import deque
from dataclasses import dataclass, field

import cocotb
from cocotb.triggers import FallingEdge, Timer

BENCH = {
    "top": "memport_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/fifo.sv",
        "rtl/common/rr_arb.sv",
        "rtl/common/stream_reg.sv",
        "rtl/memory/axi_rd_mux.sv",
        "rtl/memory/axi_wr_mux.sv",
        "tests/blocks/sv/memport_bench.sv",
    ],
}
#: IDs of the read clients, and those that each write client draws from
READ_IDS = (0, 1, 2)
WRITE_IDS = ((3, 5), (4,), (2,))


@dataclass
class Burst:
    """One burst; `beats` are (data, strobes) of a write."""

    addr: int
    len: int
    size: int
    id: int
    beats: list[tuple[int, int]] = field(default_factory=list)


def burst(ident: int, longest: int) -> Burst:
    """A burst as its ID makes them: atomics one narrow beat, the others whole beats."""
    if ident == 2:
        size = random.choice([2, 3])
        found = Burst(random.getrandbits(64 - size) << size, 0, size, ident)
    else:
        found = Burst(random.getrandbits(58) << 6, random.randrange(longest), 6, ident)
    found.beats = [(random.getrandbits(512), random.getrandbits(64)) for _ in range(found.len + 1)]
    return found


async def start(dut) -> None:
    """Resets."""
    for name in ("rd_valid_i", "wr_valid_i", "wd_valid_i", "arready_i", "rvalid_i", "awready_i", "wready_i"):
        getattr(dut, name).value = 0
    dut.bvalid_i.value = 0
    dut.rst_ni.value = 0
    await Timer(10, "ns")
    dut.rst_ni.value = 1
    await FallingEdge(dut.clk_i)


def address(dut, prefix: str) -> Burst:
    """What stands on AR or AW."""
    addr, length, size, ident = (
        int(getattr(dut, f"{prefix}{n}_o").value) for n in ("addr", "len", "size", "id")
    )
    assert int(getattr(dut, f"{prefix}burst_o").value) == 1, "not INCR"
    return Burst(addr, length, size, ident)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5], gap=[0.0, 0.6])
async def test_read_bursts(dut, stall: float, gap: float) -> None:
    """Bursts of three clients."""
    await start(dut)
    queues = [deque(burst(i, 64) for _ in range(200)) for i in READ_IDS]
    want = [list(q) for q in queues]
    got: list[Burst] = []
    held, cycles, offered = None, 0, [False] * 3
    while len(got) < 600:
        valid = 0
        for n, queue in enumerate(queues):
            offered[n] = bool(queue) and (offered[n] or random.random() >= gap)
            if offered[n]:
                valid |= 1 << n
                head = queue[0]
                dut.rd_addr_i[n].value, dut.rd_len_i[n].value = head.addr, head.len
                dut.rd_size_i[n].value = head.size
        dut.rd_valid_i.value = valid
        ready = random.random() >= stall
        dut.arready_i.value = ready
        await Timer(1, "ps")
        for n in range(3):
            if valid & int(dut.rd_ready_o.value) & 1 << n:
                queues[n].popleft()
                offered[n] = False
        if dut.arvalid_o.value == 1:
            now = address(dut, "ar")
            assert held is None or held == now, "AR changes while it waits"
            held = None if ready else now
            if ready:
                got.append(now)
        else:
            assert held is None, "AR falls while it waits"
        await FallingEdge(dut.clk_i)
        cycles += 1
        assert cycles < 5000, "no progress"
    for n, ident in enumerate(READ_IDS):
        mine = [(b.addr, b.len, b.size) for b in got if b.id == ident]
        assert mine == [(b.addr, b.len, b.size) for b in want[n]], f"client {n}"
        assert sum(b.id == ident for b in got[:150]) > 25, f"client {n} starves"
    if not stall and not gap:
        assert cycles <= 604, f"{cycles} cycles for 600 bursts"


@cocotb.test()
async def test_read_data(dut) -> None:
    """Beats of all IDs, of nobody too, in any mix: each reaches its client one cycle later, and no other."""
    await start(dut)
    before: tuple[int, int, int, int] | None = None
    for _ in range(1000):
        valid = random.random() < 0.7
        beat = (
            random.randrange(5),
            random.getrandbits(512),
            random.choice([0, 0, 2, 3]),
            random.getrandbits(1),
        )
        dut.rvalid_i.value = valid
        dut.rid_i.value, dut.rdata_i.value, dut.rresp_i.value, dut.rlast_i.value = beat
        assert dut.rready_o.value == 1
        await FallingEdge(dut.clk_i)
        before = beat if valid else None
        if before is None or before[0] not in READ_IDS:
            assert dut.rd_beat_valid_o.value == 0
            continue
        assert int(dut.rd_beat_valid_o.value) == 1 << READ_IDS.index(before[0])
        shown = (dut.rd_beat_data_o, dut.rd_beat_err_o, dut.rd_beat_last_o)
        assert tuple(int(s.value) for s in shown) == (before[1], before[2] >> 1, before[3])


@cocotb.test()
@cocotb.parametrize(stalls=[(0.0, 0.0), (0.6, 0.0), (0.0, 0.6), (0.4, 0.4)], gap=[0.0, 0.5])
async def test_writes(dut, stalls: tuple[float, float], gap: float) -> None:
    """Bursts and their data, which a client may have ready before its burst is taken or bring later."""
    await start(dut)
    bursts = [deque(burst(random.choice(ids), 8) for _ in range(120)) for ids in WRITE_IDS]
    want = [list(q) for q in bursts]
    data = [deque((d, s, k == b.len) for b in q for k, (d, s) in enumerate(b.beats)) for q in bursts]
    total = sum(map(len, data))
    taken: list[Burst] = []
    beats: list[tuple[int, int, bool]] = []
    held_aw: Burst | None = None
    held_w: tuple[int, int, bool] | None = None
    asks, brings = [False] * 3, [False] * 3
    cycles = 0
    while len(taken) < 360 or len(beats) < total:
        valid = wvalid = 0
        for n in range(3):
            asks[n] = bool(bursts[n]) and (asks[n] or random.random() >= gap)
            brings[n] = bool(data[n]) and (brings[n] or random.random() >= gap)
            if asks[n]:
                valid |= 1 << n
                head = bursts[n][0]
                dut.wr_addr_i[n].value, dut.wr_len_i[n].value = head.addr, head.len
                dut.wr_size_i[n].value, dut.wr_id_i[n].value = head.size, head.id
            if brings[n]:
                wvalid |= 1 << n
                dut.wd_data_i[n].value, dut.wd_strb_i[n].value = data[n][0][:2]
        dut.wr_valid_i.value, dut.wd_valid_i.value = valid, wvalid
        dut.wd_last_i.value = sum(int(data[n][0][2]) << n for n in range(3) if data[n])
        aw_ready, w_ready = (random.random() >= s for s in stalls)
        dut.awready_i.value, dut.wready_i.value = aw_ready, w_ready
        await Timer(1, "ps")
        for n in range(3):
            if valid & int(dut.wr_ready_o.value) & 1 << n:
                bursts[n].popleft()
                asks[n] = False
            if wvalid & int(dut.wd_ready_o.value) & 1 << n:
                data[n].popleft()
                brings[n] = False
        if dut.awvalid_o.value == 1:
            now = address(dut, "aw")
            assert held_aw is None or held_aw == now, "AW changes while it waits"
            held_aw = None if aw_ready else now
            if aw_ready:
                taken.append(now)
        else:
            assert held_aw is None, "AW falls while it waits"
        if dut.wvalid_o.value == 1:
            beat = (int(dut.wdata_o.value), int(dut.wstrb_o.value), dut.wlast_o.value == 1)
            assert held_w is None or held_w == beat, "W changes while it waits"
            held_w = None if w_ready else beat
            if w_ready:
                beats.append(beat)
        else:
            assert held_w is None, "W falls while it waits"
        await FallingEdge(dut.clk_i)
        cycles += 1
        assert cycles < 20000, f"no progress: {len(taken)} bursts, {len(beats)} beats of {total}"
    # data follows in the order of the addresses
    queues = [deque(q) for q in want]
    stream = deque(beats)
    for found in taken:
        (n,) = (n for n, ids in enumerate(WRITE_IDS) if found.id in ids)
        asked = queues[n].popleft()
        assert (found.addr, found.len, found.size, found.id) == (asked.addr, asked.len, asked.size, asked.id)
        for k, (value, strobes) in enumerate(asked.beats):
            assert stream.popleft() == (value, strobes, k == asked.len), f"data of {found.addr:#x}, beat {k}"
    for ids in WRITE_IDS:
        assert sum(b.id in ids for b in taken[:150]) > 25, f"the client of IDs {ids} starves"
    if stalls == (0.0, 0.0) and not gap:
        assert cycles <= total + 10, f"{cycles} cycles for {total} beats"


@cocotb.test()
async def test_responses(dut) -> None:
    """Responses of all IDs back to back: each shows one cycle later with its ID and its error."""
    await start(dut)
    for _ in range(1000):
        valid = random.random() < 0.8
        ident, resp = random.choice([2, 3, 4, 5]), random.choice([0, 0, 2, 3])
        dut.bvalid_i.value, dut.bid_i.value, dut.bresp_i.value = valid, ident, resp
        assert dut.bready_o.value == 1
        await FallingEdge(dut.clk_i)
        assert dut.b_valid_o.value == valid
        if valid:
            assert (int(dut.b_id_o.value), int(dut.b_err_o.value)) == (ident, resp >> 1)
