"""Atomic unit (rtl/atomic) alone, against Python integers that follow device.md 1.5.

Sweep: ALU: all six opcodes, random and corner operands, swap and compare masks, all field boundaries with
one, two and three bits set for 8 and 4 bytes; unit: aligned addresses and both sizes, memory latency 0 to
200, stalls, bus errors on read and on write, inbound WRITE bursts before and during the lock.
Stimulus: operations at the unit's port; the inbound WRITEs are only announced, as scatter does it.
Checks: returned value, written value, every byte of the memory; accesses are single beats of exactly the
operand's size under ID 2 (judged by the memory model), a failed compare writes nothing, the read waits for
the responses of earlier WRITEs and the lock covers read to response; results in order; what a reset and an
invalidation wait for.
Timing: an operation costs at most 8 cycles more than its read and its write.
Not proved here: that scatter keeps WRITEs out of the locked word (test_scatter.py, test_rx_responder.py).
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import cocotb
from cocotb.triggers import FallingEdge

BENCH = {
    "top": "atomic_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/*.sv",
        "rtl/context/mr_fence.sv",
        "rtl/memory/axi_rd_mux.sv",
        "rtl/memory/axi_wr_mux.sv",
        "rtl/atomic/*.sv",
        "tests/blocks/sv/axi_ram_model.sv",
        "tests/blocks/sv/atomic_bench.sv",
    ],
    "args": ["-Wno-PINCONNECTEMPTY"],
}
CAS64, FA64, MCAS64, MFA64, MCAS32, MFA32 = 0x13, 0x14, 0xC0, 0xC1, 0xC2, 0xC3
OPCODES = (CAS64, FA64, MCAS64, MFA64, MCAS32, MFA32)
SIZE = 4096  # bytes of memory that tests fill and compare
ONES = (1 << 64) - 1


@dataclass
class Op:
    """One atomic with operands as integers."""

    bth: int
    addr: int = 0
    swap_add: int = 0
    compare: int = 0
    swap_mask: int = 0
    compare_mask: int = 0
    qpi: int = 0
    psn: int = 0
    msn: int = 0

    @property
    def size(self) -> int:
        """Bytes of the operand."""
        return 4 if self.bth in (MCAS32, MFA32) else 8

    def apply(self, old: int) -> int | None:
        """New value, None where the compare fails (device.md 1.5)."""
        bits = 8 * self.size
        if self.bth in (CAS64, MCAS64, MCAS32):
            plain = self.bth == CAS64
            compare_mask, swap_mask = (ONES, ONES) if plain else (self.compare_mask, self.swap_mask)
            for bit in range(bits):
                if compare_mask >> bit & 1 and (old ^ self.compare) >> bit & 1:
                    return None
            keep = old & ~swap_mask
            return (keep | self.swap_add & swap_mask) % (1 << bits)
        # field by field, from the lowest; a boundary bit is the top bit of its field
        boundary = 0 if self.bth == FA64 else self.compare
        new, low = 0, 0
        for bit in range(bits):
            if boundary >> bit & 1 or bit == bits - 1:
                width = bit - low + 1
                field = (old >> low) + (self.swap_add >> low)
                new |= field % (1 << width) << low
                low = bit + 1
        return new


CORNERS = (0, 1, ONES, ONES - 1, 1 << 63, (1 << 63) - 1, 0xFFFF_FFFF, 1 << 32, 0x8000_0000, 0x7FFF_FFFF)


def operand() -> int:
    """A random or corner value."""
    return random.choice(CORNERS) if random.random() < 0.3 else random.getrandbits(64)


def random_op(bth: int, old: int, **fields: int) -> Op:
    """Operands such that compares succeed and fail equally often."""
    half = bth in (MCAS32, MFA32)
    cut = 0xFFFF_FFFF if half else ONES
    compare = operand()
    if bth in (CAS64, MCAS64, MCAS32) and random.random() < 0.5:
        compare = old
    masks = [random.choice((0, ONES, 1 << random.randrange(64), random.getrandbits(64))) for _ in range(2)]
    if bth in (MCAS64, MCAS32) and random.random() < 0.3:
        compare = old ^ ~masks[1] & random.getrandbits(64)  # differs only where the mask does not look
    return Op(bth, 0, operand() & cut, compare & cut, masks[0] & cut, masks[1] & cut, **fields)


class Bench:
    """Inputs change and outputs are read at falling edges."""

    def __init__(self, dut) -> None:
        self.dut = dut
        self.memory = bytearray(random.randbytes(SIZE))
        self.cycles = 0

    async def start(self, latency: int = 0, stall: int = 0) -> None:
        """Resets and fills the memory."""
        dut = self.dut
        for name in (
            "alu_valid_i op_valid_i done_ready_i start_i inbound_b_i qp_set_i drain_valid_i mr_drain_i "
            "fault_i fault_writes_i"
        ).split():
            getattr(dut, name).value = 0
        dut.latency_i.value = latency
        dut.stall_i.value = stall
        dut.seed_i.value = random.getrandbits(32)
        dut.rst_ni.value = 0
        await FallingEdge(dut.clk_i)
        dut.poke_i.value = 1
        for beat in range(SIZE // 64):
            dut.poke_beat_i.value = beat
            dut.poke_data_i.value = int.from_bytes(self.memory[64 * beat : 64 * beat + 64], "little")
            await FallingEdge(dut.clk_i)
        dut.poke_i.value = 0
        dut.rst_ni.value = 1
        await self.cycle()

    async def cycle(self) -> None:
        """One clock cycle."""
        await FallingEdge(self.dut.clk_i)
        self.cycles += 1

    def drive(self, op: Op) -> None:
        """Puts the operation's fields on the ports."""
        dut = self.dut
        dut.qpi_i.value = op.qpi
        dut.psn_i.value = op.psn
        dut.msn_i.value = op.msn
        dut.bth_i.value = op.bth
        dut.addr_i.value = op.addr
        dut.swap_add_i.value = op.swap_add
        dut.compare_i.value = op.compare
        dut.swap_mask_i.value = op.swap_mask
        dut.compare_mask_i.value = op.compare_mask

    async def give(self, op: Op) -> None:
        """Hands an operation over."""
        self.drive(op)
        self.dut.op_valid_i.value = 1
        while self.dut.op_ready_o.value == 0:
            await self.cycle()
        await self.cycle()
        self.dut.op_valid_i.value = 0

    async def result(self, limit: int = 3000) -> tuple[int, int, int, int, int, int]:
        """Takes the next result: QP, PSN, MSN, error, skipped, value."""
        dut = self.dut
        await self.until(lambda: dut.done_valid_o.value == 1, limit)
        fields = (
            dut.done_qpi_o,
            dut.done_psn_o,
            dut.done_msn_o,
            dut.done_err_o,
            dut.done_skipped_o,
            dut.done_value_o,
        )
        found = tuple(int(f.value) for f in fields)
        dut.done_ready_i.value = 1
        await self.cycle()
        dut.done_ready_i.value = 0
        return found

    async def until(self, condition: Callable[[], bool], limit: int = 3000) -> None:
        """Cycles until the condition holds."""
        for _ in range(limit):
            if condition():
                return
            await self.cycle()
        raise AssertionError(f"nothing happened in {limit} cycles")

    def old(self, op: Op) -> int:
        """The value that the operation finds."""
        return int.from_bytes(self.memory[op.addr : op.addr + op.size], "little")

    def execute(self, op: Op) -> int:
        """Executes on the test's memory; the original value."""
        old = self.old(op)
        new = op.apply(old)
        if new is not None:
            self.memory[op.addr : op.addr + op.size] = new.to_bytes(op.size, "little")
        return old

    async def compare(self) -> None:
        """Every byte of the memory."""
        got = bytearray()
        for beat in range(SIZE // 64):
            self.dut.peek_beat_i.value = beat
            await self.cycle()
            got += int(self.dut.peek_data_o.value).to_bytes(64, "little")
        wrong = [i for i in range(SIZE) if got[i] != self.memory[i]]
        assert not wrong, f"{len(wrong)} bytes wrong, first at {[hex(i) for i in wrong[:8]]}"


async def alu(bench: Bench, op: Op, old: int) -> None:
    """One calculation of the ALU alone."""
    dut = bench.dut
    bench.drive(op)
    dut.alu_old_i.value = old
    dut.alu_valid_i.value = 1
    await bench.cycle()
    want = op.apply(old)
    assert (dut.alu_write_o.value == 1) == (want is not None), f"{op} on {old:#x}: writes or not"
    if want is not None:
        got = int(dut.alu_new_o.value)
        assert got == want, f"{op} on {old:#x}: {got:#x}, want {want:#x}"


@cocotb.test()
async def test_alu_operands(dut) -> None:
    """All opcodes on random and corner operands, masks and old values."""
    bench = Bench(dut)
    await bench.start()
    outcomes = dict.fromkeys(OPCODES, (0, 0))
    for bth in OPCODES:
        cut = 0xFFFF_FFFF if bth in (MCAS32, MFA32) else ONES
        for _ in range(6000):
            old = operand() & cut
            op = random_op(bth, old)
            await alu(bench, op, old)
            done, failed = outcomes[bth]
            outcomes[bth] = (done + (op.apply(old) is not None), failed + (op.apply(old) is None))
    for bth in (CAS64, MCAS64, MCAS32):
        assert min(outcomes[bth]) > 1000, f"{bth:#x}: {outcomes[bth]} compares succeed, fail"


@cocotb.test()
async def test_alu_boundaries(dut) -> None:
    """Masked fetch-and-add with every boundary of one, two and three bits, of no and of all bits."""
    bench = Bench(dut)
    await bench.start()
    for bth, bits in ((MFA64, 64), (MFA32, 32)):
        cut = (1 << bits) - 1
        masks = [0, cut]
        for count in (1, 2, 3):
            masks += [sum(1 << b for b in places) for places in itertools.combinations(range(bits), count)]
        for mask in masks:
            # a carry into and out of every field, and a random pair
            pairs = [(cut, 1 | mask << 1 & cut)] if random.random() < 0.5 else []
            pairs.append((operand() & cut, operand() & cut))
            for old, add in pairs:
                await alu(bench, Op(bth, swap_add=add, compare=mask), old)


@cocotb.test()
async def test_alu_documented_vectors(dut) -> None:
    """No boundary is an ordinary add, all bits are XOR, no compare mask is unconditional (device.md 1.5)."""
    bench = Bench(dut)
    await bench.start()
    for _ in range(300):
        old, value = random.getrandbits(64), random.getrandbits(64)
        cases = [
            (Op(MFA64, swap_add=value, compare=0), (old + value) & ONES),
            (Op(MFA64, swap_add=value, compare=ONES), old ^ value),
            (Op(FA64, swap_add=value, compare=random.getrandbits(64)), (old + value) & ONES),
            (Op(MCAS64, swap_add=value, swap_mask=ONES), value),
            (Op(MCAS64, swap_add=value, swap_mask=~value & ONES), old & value),
            (Op(MCAS64, swap_add=value, swap_mask=value), old | value),
        ]
        for op, want in cases:
            assert op.apply(old) == want
            await alu(bench, op, old)


@cocotb.test()
@cocotb.parametrize(latency=[0, 40], stall=[0, 60, 160])
async def test_unit(dut, latency: int, stall: int) -> None:
    """Random operations on few words, back to back: results, memory, order, sizes on the bus."""
    bench = Bench(dut)
    await bench.start(latency, stall)
    addresses = [random.randrange(SIZE // 64) * 64 + 4 * n for n in range(16)]
    expected, count = [], 400
    bus = {"reads": [], "writes": []}

    async def watch() -> None:
        while True:
            if dut.read_o.value == 1:
                bus["reads"].append(tuple(int(s.value) for s in (dut.araddr_o, dut.arsize_o, dut.arid_o)))
            if dut.write_o.value == 1:
                bus["writes"].append(tuple(int(s.value) for s in (dut.awaddr_o, dut.awsize_o, dut.awid_o)))
            await FallingEdge(dut.clk_i)

    reads, writes = [], []

    async def feed() -> None:
        for n in range(count):
            bth = random.choice(OPCODES)
            addr = random.choice(addresses)
            if bth not in (MCAS32, MFA32):
                addr -= addr % 8
            probe = Op(bth, addr)
            op = random_op(bth, bench.old(probe), qpi=random.randrange(64), psn=n, msn=n + 7)
            op.addr = addr
            writes.extend([(addr, op.size.bit_length() - 1, 2)] * (op.apply(bench.old(op)) is not None))
            reads.append((addr, op.size.bit_length() - 1, 2))
            expected.append((op.qpi, n, n + 7, 0, 0, bench.execute(op)))
            await bench.give(op)
            if random.random() < 0.2:
                for _ in range(random.randrange(60)):
                    await bench.cycle()

    watcher = cocotb.start_soon(watch())
    feeder = cocotb.start_soon(feed())
    for n in range(count):
        if random.random() < 0.1:
            for _ in range(random.randrange(150)):
                await FallingEdge(dut.clk_i)
        while dut.done_valid_o.value == 0:
            await FallingEdge(dut.clk_i)
        got = await bench.result()
        assert got == expected[n], f"operation {n}: {got}, want {expected[n]}"
    await feeder
    watcher.cancel()
    assert bus == {"reads": reads, "writes": writes}, "accesses differ from one exact read and write each"
    assert int(dut.atomics_o.value) == count and int(dut.bus_o.value) == 0
    assert dut.lock_valid_o.value == 0
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(latency=[0, 20, 200])
async def test_pace(dut, latency: int) -> None:
    """Contended fetch_add: an operation takes its read, its write and at most eight cycles."""
    bench = Bench(dut)
    await bench.start(latency)
    reads = []

    async def watch() -> None:
        cycle = 0
        while True:
            if dut.read_o.value == 1:
                reads.append(cycle)
            cycle += 1
            await FallingEdge(dut.clk_i)

    cocotb.start_soon(watch())
    op = Op(FA64, addr=64, swap_add=3)
    count = 20

    async def feed() -> None:
        for n in range(count):
            op.psn = n
            bench.execute(op)
            await bench.give(op)

    cocotb.start_soon(feed())
    dut.done_ready_i.value = 1
    seen = 0
    while seen < count:
        seen += dut.done_valid_o.value == 1
        await FallingEdge(dut.clk_i)
    period = (reads[-1] - reads[1]) / (count - 2)
    # from an address to its data, and from data to response, at the port
    round_trip = 2 * max(latency, 2)
    dut._log.info(f"latency {latency}: {period} cycles an operation, round trips {round_trip}")
    assert period <= round_trip + 8, f"{period} cycles an operation at {round_trip} cycles of round trips"
    dut.done_ready_i.value = 0
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(stall=[0, 90])
async def test_bus_errors(dut, stall: int) -> None:
    """An error is reported and writes nothing; later atomics of that QP are skipped, others go on."""
    bench = Bench(dut)
    await bench.start(10, stall)
    dut.fault_i.value = 1
    dut.fault_beat_i.value = 5
    errors = atomics = 0
    for on_write in (False, True):
        dut.fault_writes_i.value = on_write
        ops = [
            Op(MFA32, 5 * 64 + 12, 9, qpi=3, psn=0),
            Op(FA64, 64, 9, qpi=3, psn=1),
            Op(FA64, 128, 9, qpi=4, psn=2),
            Op(MFA64, 192, 9, qpi=3, psn=3),
        ]
        want = []
        for op in ops:
            bad = op.psn == 0
            value = bench.old(op)
            skipped = op.qpi == 3 and not bad
            if not bad and not skipped:
                bench.execute(op)
            want.append((op.qpi, op.psn, 0, int(bad), int(skipped), None if bad or skipped else value))

        async def feed(ops=ops) -> None:
            for op in ops:
                await bench.give(op)

        feeder = cocotb.start_soon(feed())
        for entry in want:
            got = await bench.result()
            assert got[:5] == entry[:5], f"{got}, want {entry}"
            assert entry[5] is None or got[5] == entry[5]
        await feeder
        errors += 1
        atomics += 1
        assert int(dut.bus_o.value) == errors and int(dut.atomics_o.value) == atomics
        # programmed again, the QP's atomics are executed again
        dut.qp_set_i.value = 1
        dut.set_qpi_i.value = 3
        await bench.cycle()
        dut.qp_set_i.value = 0
        again = Op(FA64, 256, 5, qpi=3, psn=9)
        value = bench.execute(again)
        await bench.give(again)
        assert await bench.result() == (3, 9, 0, 0, 0, value)
        atomics += 1
    # a compare that fails writes nothing, so a write error cannot meet it
    failing = Op(CAS64, 5 * 64, 1, bench.old(Op(CAS64, 5 * 64)) ^ 1, qpi=8)
    await bench.give(failing)
    assert (await bench.result())[3:5] == (0, 0)
    await bench.compare()


@cocotb.test()
async def test_lock(dut) -> None:
    """The lock lasts from before the read to the response; WRITE bursts before it come first."""
    bench = Bench(dut)
    await bench.start(15)
    reads = 0

    async def watch() -> None:
        nonlocal reads
        while True:
            reads += dut.read_o.value == 1
            await FallingEdge(dut.clk_i)

    cocotb.start_soon(watch())
    for before, during in itertools.product(range(5), range(3)):
        op, seen = Op(FA64, 8 * random.randrange(SIZE // 8), 1), reads
        for n in range(before):
            dut.start_i.value = 2 if before == 4 and n == 0 else 1
            await bench.cycle()
        dut.start_i.value = 0
        waiting = before + (before == 4)
        bench.execute(op)
        feeder = cocotb.start_soon(bench.give(op))
        await bench.until(lambda: dut.lock_valid_o.value == 1)
        assert int(dut.lock_addr_o.value) == op.addr >> 3
        # bursts that start under the lock go elsewhere: the atomic does not wait for them
        for _ in range(during):
            dut.start_i.value = 1
            await bench.cycle()
        dut.start_i.value = 0
        for n in range(waiting):
            for _ in range(random.choice([0, 5, 30])):
                assert reads == seen, f"read with {waiting - n} WRITE bursts unanswered"
                await bench.cycle()
            dut.inbound_b_i.value = 1
            await bench.cycle()
            dut.inbound_b_i.value = 0
        await bench.until(lambda seen=seen: reads > seen, 8)
        while dut.b_o.value == 0:
            assert dut.lock_valid_o.value == 1, "the lock opened before the write response"
            await bench.cycle()
        await bench.result()
        assert dut.lock_valid_o.value == 0
        await feeder
        for _ in range(during):
            dut.inbound_b_i.value = 1
            await bench.cycle()
        dut.inbound_b_i.value = 0
    await bench.compare()


@cocotb.test()
async def test_lock_opens_between(dut) -> None:
    """Between atomics on one word a WRITE that waits can start; the next atomic waits for it."""
    bench = Bench(dut)
    await bench.start(10)
    op = Op(FA64, 640, 1)
    dut.done_ready_i.value = 1
    count = 12

    async def feed() -> None:
        for _ in range(count):
            bench.execute(op)
            await bench.give(op)

    cocotb.start_soon(feed())
    opened = 0
    await bench.until(lambda: dut.lock_valid_o.value == 1)
    for _ in range(count - 1):
        await bench.until(lambda: dut.lock_valid_o.value == 0)
        # the WRITE starts in the open cycle, as scatter does it
        opened += 1
        dut.start_i.value = 1
        await bench.cycle()
        dut.start_i.value = 0
        for _ in range(random.randrange(20)):
            assert dut.read_o.value == 0, "read under a WRITE"
            await bench.cycle()
        dut.inbound_b_i.value = 1
        await bench.cycle()
        dut.inbound_b_i.value = 0
        await bench.until(lambda: dut.lock_valid_o.value == 1, 5)
    await bench.until(lambda: int(dut.atomics_o.value) == count)
    assert opened == count - 1
    await bench.compare()


@cocotb.test()
async def test_results_stall(dut) -> None:
    """Nobody takes results: the unit stops without holding its lock; a reset waits for its QP until then."""
    bench = Bench(dut)
    await bench.start(5)
    ops = [Op(FA64, 8 * n, n, qpi=n % 2, psn=n) for n in range(4)]
    for op in ops:
        await bench.give(op)
    for _ in range(200):
        await bench.cycle()
    assert dut.lock_valid_o.value == 0 and int(dut.atomics_o.value) == 2, "two results have a place"
    dut.drain_valid_i.value = 1
    dut.mr_drain_i.value = 1
    for n in range(4):
        dut.drain_qpi_i.value = n % 2
        for _ in range(12):
            await bench.cycle()
        assert dut.drain_busy_o.value == 1
        await bench.result()
    for _ in range(100):
        await bench.cycle()
    assert dut.drain_busy_o.value == 0 and dut.mr_drain_busy_o.value == 0


@cocotb.test()
async def test_fence(dut) -> None:
    """An invalidation waits for the atomics that were let in before it, not for later ones."""
    bench = Bench(dut)
    await bench.start(100)
    dut.done_ready_i.value = 1
    await bench.give(Op(FA64, 8, 1))
    await bench.give(Op(FA64, 16, 1))
    dut.mr_drain_i.value = 1
    for _ in range(20):
        await bench.cycle()
    late = cocotb.start_soon(bench.give(Op(FA64, 24, 1)))
    for _ in range(100):
        await bench.cycle()
    while dut.mr_drain_busy_o.value == 1:
        await bench.cycle()
    assert int(dut.atomics_o.value) in (1, 2), "two were there before (the counter is a cycle late)"
    await bench.until(lambda: int(dut.atomics_o.value) == 2, 3)
    assert dut.lock_valid_o.value == 1 and int(dut.lock_addr_o.value) == 3, "the third is under way"
    await late
