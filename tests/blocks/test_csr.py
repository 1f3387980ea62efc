"""BAR, registers, counters and events through AXI4-Lite (rtl/csr, host_front; nic.md sections 1, 3, 6, 7).

Sweep: every register, byte strobes, unmapped and read-only addresses; all three sources of asynchronous
events up to and beyond 64; doorbells back to back, with and without waits on every channel.
Stimulus: an AXI4-Lite driver written here, without and with random gaps; pulses at the ports of the other
blocks.
Checks: read data, answers always OKAY, event output, order and loss of events, counters current when B
arrives.
Timing: one SQ doorbell per 4 cycles at least; B only after the doorbell is judged.
Not proved here: the index rules (test_doorbell.py), context checks (test_context.py).
"""

import random
from collections import deque

import cocotb
from cocotb.triggers import FallingEdge

from tests.blocks.csr_driver import (
    CMD,
    CQ,
    MASK64,
    QP,
    SET,
    STAGE,
    STATUS,
    Host,
    cq_words,
    cycles,
    doorbell_page,
    qp_words,
)

BENCH = {
    "top": "csr_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/csr/gen/rnic_csr_pkg.sv",
        "rtl/context/ctx_pkg.sv",
        "rtl/doorbell/db_pkg.sv",
        "rtl/csr/gen/rnic_csr.sv",
        "rtl/csr/axil_bar.sv",
        "rtl/csr/counter_bank.sv",
        "rtl/csr/async_queue.sv",
        "rtl/csr/event_unit.sv",
        "rtl/csr/csr_regs.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/context/stage_ram.sv",
        "rtl/context/qp_state.sv",
        "rtl/context/ctx_cmd.sv",
        "rtl/doorbell/db_index.sv",
        "rtl/doorbell/db_decode.sv",
        "rtl/host_front.sv",
        "tests/blocks/sv/csr_bench.sv",
    ],
}

ID, CONFIG, MAC, IP, TIME, CAUSE, EMASK, POP, CQEV, WEIGHT, WAIT, RTS, ERR = range(0, 0x68, 8)


def byte_mask(strb: int) -> int:
    """Bits that byte strobes cover."""
    return sum(0xFF << 8 * i for i in range(8) if strb >> i & 1)


@cocotb.test()
async def test_registers(dut):
    """Reset values; read-write registers take exactly the strobed bytes; the others take nothing."""
    host = Host(dut, gaps=True)
    await host.start()
    assert await host.read(ID) == 0x43414D48494C0001
    assert await host.read(CONFIG) == 64 | 64 << 16 | 256 << 32
    want = {MAC: 0, IP: 0, EMASK: 0, WEIGHT: 0x0101010101010101, WAIT: 0}
    mask = {MAC: (1 << 48) - 1, IP: (1 << 32) - 1, EMASK: 7, WEIGHT: MASK64, WAIT: (1 << 32) - 1}
    for addr, value in want.items():
        assert await host.read(addr) == value
    for _ in range(200):
        addr = random.choice(list(want) + [ID, CONFIG, RTS, ERR, STATUS, 0x1000, 0x1190])
        data, strb = random.getrandbits(64), random.choice((0xFF, random.getrandbits(8)))
        await host.write(addr, data, strb)
        if addr in want:
            m = byte_mask(strb) & mask[addr]
            want[addr] = want[addr] & ~m | data & m
        for addr, value in want.items():
            assert await host.read(addr) == value
    assert int(dut.mac_o.value) == want[MAC] and int(dut.ip_o.value) == want[IP]
    assert int(dut.cq_wait_o.value) == want[WAIT]
    weights = [want[WEIGHT] >> 8 * i & 255 for i in range(8)]
    assert int(dut.sl_weight_o.value) == sum((w or 1) << 8 * i for i, w in enumerate(weights))
    await host.write(WEIGHT, 0x00FF_0000_0500_0001)
    assert int(dut.sl_weight_o.value) == 0x01FF_0101_0501_0101
    assert await host.read(WEIGHT) == 0x00FF_0000_0500_0001
    assert (
        await host.read(ID) == 0x43414D48494C0001
        and await host.read(RTS) == 0
        and await host.read(STATUS) == 0
    )
    assert await host.counters() == {}


@cocotb.test()
async def test_time(dut):
    """TIME counts cycles since reset; time_o is what a read returns at its cycle."""
    host = Host(dut)
    await host.start()
    assert int(dut.time_o.value) < 4
    before, t0 = int(dut.time_o.value), await host.read(TIME)
    t1, after = await host.read(TIME), int(dut.time_o.value)
    assert before < t0 < t1 < after <= before + 12
    a = int(dut.time_o.value)
    for _ in range(100):
        await FallingEdge(dut.clk_i)
    assert int(dut.time_o.value) == a + 100


@cocotb.test()
async def test_unmapped(dut):
    """Unmapped addresses take writes and read 0 with OKAY; nothing is counted and no register changes."""
    host = Host(dut, gaps=True)
    await host.start()
    holes = [
        0x068,
        0x800,
        0xFF8,
        0x1200,
        0x2000,
        0xFFF8,
        0x1_0010,
        0x1_00F8,
        0x1_0180,
        0x1_FFF8,
        0x2_0000,
        0x0100_0010,
        0x07FF_FFF8,
        0x8000_0010,
        0xFFFF_FFF8,
        0x1800_0000 + 0x2000,
        0x2_0010,
        0x0001_0000 + 0x2_0000,
    ]
    pages = [doorbell_page(n) + off for n in (0, 2, 65, 66, 70, 65535) for off in (24, 32, 0x800, 0xFF8)]
    for addr in holes + pages:
        await host.write(addr, MASK64)
        assert await host.read(addr) == 0, hex(addr)
    for n in (0, 2, 70):  # doorbell registers do not read
        for off in (0, 8, 16):
            assert await host.read(doorbell_page(n) + off) == 0
    assert await host.counters() == {}
    assert await host.read(MAC) == 0 and await host.read(STATUS) == 0
    assert await host.read(WEIGHT) == 0x0101010101010101


@cocotb.test()
async def test_counters(dut):
    """Every bit of cnt_i counts in its own counter, several in one cycle and in successive cycles."""
    host = Host(dut)
    await host.start()
    want = [0] * 64
    for _ in range(300):
        bits = random.choice((0, 1 << random.randrange(64), random.getrandbits(64), MASK64))
        dut.cnt_i.value = bits
        want = [w + (bits >> i & 1) for i, w in enumerate(want)]
        await FallingEdge(dut.clk_i)
    dut.cnt_i.value = 0
    for i, value in enumerate(want):
        assert await host.read(0x1000 + 8 * i) == value


@cocotb.test()
async def test_stage_words(dut):
    """Staging words under overlapping reads and writes with byte strobes."""
    host, reader = Host(dut, gaps=True), Host(dut, gaps=True)
    await host.start()
    history = [[random.getrandbits(64)] for _ in range(16)]  # values of each word, from the first write on
    done = [0] * 16  # how many of them are surely in place
    for i in range(16):
        await host.write(STAGE + 8 * i, history[i][0])

    async def reads() -> None:
        for _ in range(300):
            i = random.randrange(16)
            first = done[i]
            got = await reader.read(STAGE + 8 * i)
            assert got in history[i][first:], (
                f"word {i}: {got:#x} not in {[hex(v) for v in history[i][first:]]}"
            )

    task = cocotb.start_soon(reads())
    for _ in range(300):
        i, data, strb = random.randrange(16), random.getrandbits(64), random.getrandbits(8)
        history[i].append(history[i][-1] & ~byte_mask(strb) | data & byte_mask(strb))
        await host.write(STAGE + 8 * i, data, strb)
        done[i] = len(history[i]) - 1
    await task
    assert await host.staged() == [values[-1] for values in history]


# ---------------------------------------------------------------------------------------------------- events
@cocotb.test()
async def test_cq_events(dut):
    """One sticky bit per CQ; clearing one never loses another, in any cycle; the output follows the mask."""
    host = Host(dut)
    await host.start()
    pending = 0

    async def raise_cq(cqn: int):
        dut.cq_event_set_valid_i.value, dut.cq_event_set_cqn_i.value = 1, cqn
        await FallingEdge(dut.clk_i)
        dut.cq_event_set_valid_i.value = 0

    for cqn in (0, 5, 63):
        await raise_cq(cqn)
        pending |= 1 << cqn
    assert await host.read(CQEV) == pending
    assert await host.read(CAUSE) == 1 and not dut.event_o.value  # masked
    await host.write(EMASK, 0b110)
    await cycles(dut, 5)
    assert not dut.event_o.value
    await host.write(EMASK, 0b001)
    await cycles(dut, 5)
    assert dut.event_o.value
    await host.write(CQEV, 1 << 5, 0x01)  # byte 0 only: bit 5
    await host.write(CQEV, 1 << 63, 0x7F)  # byte 7 not written
    pending &= ~(1 << 5)
    assert await host.read(CQEV) == pending
    await host.write(CQEV, pending)
    assert await host.read(CQEV) == 0 and await host.read(CAUSE) == 0
    await cycles(dut, 5)
    assert not dut.event_o.value
    # a set around the write that clears another bit and the same bit
    for delay in range(8):
        await raise_cq(10)
        task = cocotb.start_soon(host.write(CQEV, 1 << 10))
        for _ in range(delay):
            await FallingEdge(dut.clk_i)
        await raise_cq(40)
        await task
        assert await host.read(CQEV) == 1 << 40, delay
        await host.write(CQEV, MASK64)
    outcomes = []
    for delay in range(8):
        await raise_cq(10)
        task = cocotb.start_soon(host.write(CQEV, 1 << 10))
        for _ in range(delay):
            await FallingEdge(dut.clk_i)
        await raise_cq(10)
        await task
        outcomes.append(await host.read(CQEV) >> 10 & 1)
        await host.write(CQEV, MASK64)
    # cleared where the second set came before the write, kept from the cycle of the write on
    assert outcomes == sorted(outcomes) and 0 < sum(outcomes) < 8, outcomes


async def pulse(dut, source: str, kind: int, number: int) -> None:
    """Offer an asynchronous event of one source (comp, resp) for the coming edge."""
    getattr(dut, f"async_{source}_valid_i").value = 1
    getattr(dut, f"async_{source}_kind_i").value = kind
    getattr(dut, f"async_{source}_number_i").value = number


def quiet(dut) -> None:
    """No asynchronous event."""
    dut.async_comp_valid_i.value = 0
    dut.async_resp_valid_i.value = 0


@cocotb.test()
async def test_async_events(dut):
    """Events of sources that pulse together come out once each, in order per source; exactly 64 fit."""
    host = Host(dut)
    await host.start()
    await host.write(EMASK, 0b010)
    assert await host.read(POP) == 0
    sent = {2: deque(), 4: deque()}
    for n in range(32):
        for source, kind in (("comp", 2), ("resp", 4)):
            await pulse(dut, source, kind, 0xFFFFC0 + n)
            sent[kind].append(0xFFFFC0 + n)
        await FallingEdge(dut.clk_i)
        quiet(dut)
        for _ in range(2):
            await FallingEdge(dut.clk_i)
    await cycles(dut, 10)
    assert dut.event_o.value
    assert await host.read(CAUSE) == 0b010  # 64 fit
    await pulse(dut, "comp", 3, 9)  # the 65th is lost
    await FallingEdge(dut.clk_i)
    quiet(dut)
    assert await host.read(CAUSE) == 0b110
    await host.write(CAUSE, 0b011)
    assert await host.read(CAUSE) == 0b110  # only bit 2 clears
    await host.write(CAUSE, 0b100)
    assert await host.read(CAUSE) == 0b010
    for _ in range(64):
        event = await host.read(POP)
        assert event >> 63 == 1
        kind, number = event >> 32 & 0xFF, event & 0xFFFFFF
        assert event == 1 << 63 | kind << 32 | number and number == sent[kind].popleft()
    assert await host.read(POP) == 0 and await host.read(CAUSE) == 0
    await cycles(dut, 2)
    assert not dut.event_o.value
    # after a lap: still one at a time, across the wrap of the queue
    for n in range(198):
        await pulse(dut, "resp", 4, n)
        await FallingEdge(dut.clk_i)
        quiet(dut)
        if n % 3 == 2:
            await cycles(dut, 5)
            assert [await host.read(POP) & 0xFFFFFF for _ in range(3)] == [n - 2, n - 1, n]
    assert await host.read(POP) == 0 and await host.read(CAUSE) == 0


# -------------------------------------------------------------------------------------------------- doorbells
async def program(host: Host, qpns: range, depth: int = 8192) -> None:
    """QPs in RTS, all on CQ 0."""
    assert await host.command(SET, CQ, 0, cq_words(depth=1 << 17)) == 0
    for qpn in qpns:
        assert await host.command(SET, QP, qpn, qp_words(depth=depth)) == 0


@cocotb.test()
async def test_doorbells_back_to_back(dut):
    """SQ doorbells to all QPs, the bus never idle: each is accepted, at least one per 4 cycles."""
    host = Host(dut)
    await host.start()
    await program(host, range(2, 66))
    writes = deque((qpn, lap) for lap in (1, 2, 3, 4) for qpn in random.sample(range(2, 66), 64))
    want, got = list(writes), []
    answers = spent = 0
    dut.s_axil_bready.value = 1
    dut.s_axil_wstrb.value = 0xFF
    need = {"aw": deque(writes), "w": deque(writes)}
    while answers < len(want):
        for name, queue in need.items():
            valid = bool(queue)
            getattr(dut, f"s_axil_{name}valid").value = valid
            if valid:
                qpn, lap = queue[0]
                if name == "aw":
                    dut.s_axil_awaddr.value = doorbell_page(qpn)
                else:
                    dut.s_axil_wdata.value = qpn << 21 | lap * 8
        taken = [name for name, queue in need.items() if queue and getattr(dut, f"s_axil_{name}ready").value]
        answers += bool(dut.s_axil_bvalid.value)
        if dut.db_sq_valid_o.value:
            got.append((int(dut.db_sq_qpi_o.value) + 2, int(dut.db_sq_pi_o.value)))
        await FallingEdge(dut.clk_i)
        spent += 1
        for name in taken:
            need[name].popleft()
    for _ in range(4):
        if dut.db_sq_valid_o.value:
            got.append((int(dut.db_sq_qpi_o.value) + 2, int(dut.db_sq_pi_o.value)))
        await FallingEdge(dut.clk_i)
    assert got == want
    assert spent <= 4 * len(want), spent / len(want)
    dut._log.info("%.2f cycles per doorbell", spent / len(want))
    dut.s_axil_bready.value = 0
    assert await host.counters() == {}


@cocotb.test()
@cocotb.parametrize(gaps=[False, True])
async def test_effects_are_there_when_b_arrives(dut, gaps):
    """Every refused doorbell is in its counter, overruns also in state and queue, by the read after B."""
    host = Host(dut, gaps=gaps)
    await host.start()
    await program(host, range(2, 64), depth=4)
    sq = {"stale": (20, -1), "overrun": (21, 5), "low bits": (22, None)}
    counts = dict.fromkeys(range(20, 29), 0)

    async def ring(addr: int, data: int, counter: int, strb: int = 0xFF) -> None:
        await host.write(addr, data, strb)
        counts[counter] += 1
        assert await host.read(0x1000 + 8 * counter) == counts[counter], counter

    for qpn in range(2, 60):
        page = doorbell_page(qpn)
        name, (counter, target) = random.choice(list(sq.items()))
        data = qpn << 21 | (3 if target is None else target * 8 % (1 << 21))
        await host.write(page, data)
        counts[counter] += 1
        if name == "overrun":  # the queue first: it is the longest way
            assert await host.read(POP) == 1 << 63 | 1 << 32 | qpn
            assert await host.read(ERR) >> (qpn - 2) & 1 and not await host.read(RTS) >> (qpn - 2) & 1
        assert await host.read(0x1000 + 8 * counter) == counts[counter]
        await ring(page, qpn + 1 << 21 | 8, 23)
        await ring(doorbell_page(65), 65 << 21 | 8, 25)
        await ring(doorbell_page(70), 70 << 21 | 8, 23)
        await ring(page, qpn << 21 | 8, 24, random.choice((0x0F, 0xF0, 0x7F, 0xFE, 0)))
        await ring(page + random.choice((1, 2, 4, 7, 12, 20)), qpn << 21 | 8, 24)
        await ring(page + 8, qpn << 17 | 1, 28)
    assert await host.read(POP) == 0


@cocotb.test()
async def test_b_waits_for_completion(dut):
    """B of a CQ doorbell comes after completion's answer, and its counter with it; reads go on meanwhile."""
    host = Host(dut)
    await host.start()
    await program(host, range(2, 3))
    for wait in (0, 1, 30):
        for rsp, counter in ((0, None), (1, 26), (2, 27)):
            before = await host.counters()
            task = cocotb.start_soon(host.write(doorbell_page(2) + 16, 77 | 1 << 39))
            while not dut.db_cq_valid_o.value:
                await FallingEdge(dut.clk_i)
            assert (int(dut.db_cq_cqn_o.value), int(dut.db_cq_ci_o.value), int(dut.db_cq_arm_o.value)) == (
                0,
                77,
                1,
            )
            dut.db_cq_ready_i.value = 1
            await FallingEdge(dut.clk_i)
            dut.db_cq_ready_i.value = 0
            for _ in range(wait):
                assert not dut.s_axil_bvalid.value and not task.done()
                await FallingEdge(dut.clk_i)
            if wait > 20:
                assert await Host(dut).read(ID) == 0x43414D48494C0001
            dut.db_cq_rsp_valid_i.value, dut.db_cq_rsp_i.value = 1, rsp
            await FallingEdge(dut.clk_i)
            dut.db_cq_rsp_valid_i.value = 0
            await task
            want = dict(before)
            if counter is not None:
                want[counter] = want.get(counter, 0) + 1
            assert await host.counters() == want


@cocotb.test()
async def test_command_while_busy_and_in_part(dut):
    """A command while one runs is counted and changes nothing; one written in part is refused."""
    host = Host(dut)
    await host.start()
    await program(host, range(2, 4))
    assert await host.counters() == {}
    dut.drain_busy_i.value = 1
    await host.write(CMD, 2 << 8 | QP << 4 | 3)
    assert await host.read(STATUS) == 1
    await host.write(CMD, 3 << 8 | QP << 4 | 3)
    assert await host.read(0x1000 + 8 * 45) == 1
    await host.write(CMD, 99 << 8, 0x01)
    assert await host.read(0x1000 + 8 * 45) == 2
    assert await host.read(STATUS) == 1 and await host.read(RTS) == 0b10
    dut.drain_busy_i.value = 0
    await cycles(dut, 30)
    assert await host.read(STATUS) == 0 and await host.read(RTS) == 0b10
    for strb in (0x7F, 0x0F, 0x01, 0x00):
        await host.write(CMD, 3 << 8 | QP << 4 | 3, strb)
        assert await host.read(STATUS) == 1 << 8, strb
    assert await host.read(RTS) == 0b10
