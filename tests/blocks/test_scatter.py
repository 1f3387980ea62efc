"""Scatter (rtl/memory/scatter.sv, realign.sv, axi_wr_mux.sv) against a byte array.

Sweep: every target offset with lengths around the beat and page borders, each place that a payload can have
behind the headers (40, 44, 56, 60); results of atomics (8 and 4 bytes out of one beat); random mixes of
inbound packets, results and skipped packets; write latency 0 to 300, stalls on AW and W; a rival writer; bus
errors; a locked word before, in and behind a packet.
Stimulus: packets in a buffer as the receive side leaves them, headers and tail filled with noise; locks as
the atomic unit sets them.
Checks: the whole memory byte for byte at the end, so that every byte around each target is a guard byte;
bursts counted per ID and judged by the memory model (aligned, no 4 KiB crossing, no empty beat); as many
starts as inbound bursts, none later than its response; a locked word stays as it is once the bursts that
started before have their responses; buffer beats given back; errors reported.
Timing: 66 cycles for 4 KiB at 200 cycles of latency (the pace of the link), 5 for small packets; several
bursts open.
Not proved here: that the order of packets is that of the PSNs (test_rx.py).
"""

import random
from dataclasses import dataclass

import cocotb
from cocotb.triggers import FallingEdge

BENCH = {
    "top": "scatter_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/*.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/memory/scatter.sv",
        "rtl/memory/realign.sv",
        "rtl/memory/axi_wr_mux.sv",
        "tests/blocks/sv/axi_ram_model.sv",
        "tests/blocks/sv/scatter_bench.sv",
    ],
    "args": ["-Wno-PINCONNECTEMPTY"],
}
SIZE = 64 * 1024
DEPTH = 512


@dataclass
class Packet:
    """One packet: payload bytes that lie `off` bytes behind the start of its beats go to `addr`."""

    addr: int
    data: bytes
    off: int
    skip: bool = False
    result: bool = False

    def beats(self) -> list[bytes]:
        """The packet as stored: headers, payload, noise up to the end of the beat."""
        image = random.randbytes(self.off) + self.data
        image += random.randbytes(-len(image) % 64)
        return [image[i : i + 64] for i in range(0, len(image), 64)]

    def bursts(self) -> int:
        """Write bursts: one for each 4 KiB page."""
        return 0 if self.skip else (self.addr + len(self.data) - 1) // 4096 - self.addr // 4096 + 1

    def touches(self, word: int) -> bool:
        """Whether it is an inbound write to a byte of the 8-byte word at this address."""
        inbound = not self.skip and not self.result
        return inbound and self.addr < word + 8 and word < self.addr + len(self.data)


class Bench:
    """Drives packets; inputs change and outputs are read at falling edges."""

    def __init__(self, dut) -> None:
        self.dut = dut
        self.memory = bytearray(random.randbytes(SIZE))
        self.filled = 0
        self.cycles = 0
        self.bursts = [0, 0]  # inbound, results

    async def start(self, latency: int, stall: int) -> None:
        """Resets and fills the memory."""
        dut = self.dut
        for name in ("fill_i", "move_valid_i", "fault_i", "rival_i", "lock_valid_i"):
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
        await FallingEdge(dut.clk_i)

    async def run(self, packets: list[Packet], faulty: bool = False) -> None:
        """Stores and moves all packets, waits for their responses, compares the memory."""
        dut = self.dut
        limit = self.cycles + 600 * (len(packets) + 2)
        for packet in packets:
            await self.move(packet, limit)
        while not self.done():
            await self.step(limit)
        assert int(dut.starts_o.value) == self.bursts[False]
        if not faulty:
            await self.compare()
            assert int(dut.bad_answers_o.value) == 0

    async def move(self, packet: Packet, limit: int) -> None:
        """Stores one packet and hands it over."""
        dut = self.dut
        beats = packet.beats()
        while self.filled + len(beats) - int(dut.released_o.value) > DEPTH or int(dut.move_count_o.value) > 6:
            await self.step(limit)
        for beat in beats:
            dut.fill_i.value = 1
            dut.fill_beat_i.value = self.filled % DEPTH
            dut.fill_data_i.value = int.from_bytes(beat, "little")
            self.filled += 1
            await self.step(limit)
        dut.fill_i.value = 0
        dut.move_valid_i.value = 1
        dut.move_skip_i.value = packet.skip
        dut.move_result_i.value = packet.result
        dut.move_addr_i.value = packet.addr
        dut.move_len_i.value = len(packet.data)
        dut.move_off_i.value = packet.off
        dut.move_beats_i.value = len(beats)
        await self.step(limit)
        dut.move_valid_i.value = 0
        self.bursts[packet.result] += packet.bursts()
        if not packet.skip:
            self.memory[packet.addr : packet.addr + len(packet.data)] = packet.data

    def done(self) -> bool:
        """Every burst of either ID is answered and the buffer is empty."""
        dut = self.dut
        answers = [int(dut.answers_o.value), int(dut.result_answers_o.value)]
        return answers == self.bursts and int(dut.released_o.value) == self.filled

    async def step(self, limit: int) -> None:
        """One clock cycle."""
        await FallingEdge(self.dut.clk_i)
        self.cycles += 1
        assert int(self.dut.starts_o.value) >= int(self.dut.answers_o.value), "answered before it started"
        assert self.cycles < limit, "no progress"

    async def compare(self) -> None:
        """Every byte of the memory, all at once."""
        got = bytearray()
        for beat in range(SIZE // 64):
            self.dut.peek_beat_i.value = beat
            await FallingEdge(self.dut.clk_i)
            got += int(self.dut.peek_data_o.value).to_bytes(64, "little")
        wrong = [i for i in range(SIZE) if got[i] != self.memory[i]]
        assert not wrong, (
            f"{len(wrong)} bytes wrong at {[hex(i) for i in wrong[:8]]}: "
            f"{got[wrong[0]]:#x}, want {self.memory[wrong[0]]:#x}"
        )


def random_packet() -> Packet:
    """Payload with an address where borders are likely."""
    length = random.choice(
        [1, 4, 63, 64, 65, 256, 4095, 4096, random.randrange(1, 4097), random.randrange(1, 130)]
    )
    addr = random.choice([random.randrange(SIZE), 4096 * random.randrange(16) + random.randrange(-70, 70)])
    addr = max(0, min(addr, SIZE - length))
    off, result = random.choice([40, 44, 56, 60]), random.random() < 0.4
    if result and random.random() < 0.4:
        # value of an atomic, out of the one beat of its acknowledge
        length, off = random.choice([(8, 44), (4, 56)])
    data = random.randbytes(length)
    return Packet(min(addr, SIZE - length), data, off, random.random() < 0.15, result)


@cocotb.test()
@cocotb.parametrize(off=[40, 44, 56, 60])
async def test_offsets(dut, off: int) -> None:
    """Every target offset, lengths around the beat borders, far enough apart that each has guard bytes."""
    bench = Bench(dut)
    await bench.start(10, 0)
    for length in (1, 3, 64 - off, 65 - off, 63, 64, 65, 127, 128, 129, 191):
        # 65 bytes apart in address modulo 64, and each run at pages of its own
        packets = [Packet(1024 * i + i, random.randbytes(length), off) for i in range(63)]
        packets.append(Packet(4096 - 1, random.randbytes(length), off))
        await bench.run(packets)


@cocotb.test()
@cocotb.parametrize(latency=[0, 60, 300], stall=[0, 128])
async def test_random(dut, latency: int, stall: int) -> None:
    """Random packets under stalls, beside a rival writer."""
    bench = Bench(dut)
    await bench.start(latency, stall)
    dut.rival_i.value = stall != 0
    for _ in range(4):
        await bench.run([random_packet() for _ in range(60)])
    if stall:
        assert int(dut.rival_answers_o.value) > int(dut.writes_o.value) // 3, "the rival writer starves"


@cocotb.test()
async def test_rate(dut) -> None:
    """4 KiB and small packets at 200 cycles of latency; several bursts open at a time."""
    bench = Bench(dut)
    await bench.start(200, 0)
    packets = [Packet(4096 * (n % 8) + 17 * (n % 4), random.randbytes(4096), 40) for n in range(60)]
    await bench.run(packets)
    assert bench.cycles < 67 * len(packets) + 300, f"{bench.cycles} cycles"
    assert int(dut.most_open_o.value) >= 3, f"only {int(dut.most_open_o.value)} bursts open"
    before = bench.cycles
    small = [Packet(64 * n + n % 3, random.randbytes(60), 56) for n in range(500)]
    await bench.run(small)
    assert bench.cycles - before < 5 * len(small) + 300, f"{bench.cycles - before} cycles"


@cocotb.test()
async def test_bus_error(dut) -> None:
    """Faults: as many bad answers as bursts that touch the beat, and everything goes on."""
    bench = Bench(dut)
    await bench.start(30, 30)
    dut.fault_i.value = 1
    dut.fault_beat_i.value = 4096 * 2 // 64
    hits = [Packet(8192 - 10, random.randbytes(20), 56), Packet(8192, random.randbytes(64), 56)]
    others = [Packet(300 * n, random.randbytes(100), 40) for n in range(20)]
    await bench.run([*others[:10], *hits, *others[10:]], faulty=True)
    assert int(dut.bad_answers_o.value) == 2
    dut.fault_i.value = 0
    await bench.run([Packet(8192 - 10, random.randbytes(100), 56)], faulty=True)
    assert int(dut.bad_answers_o.value) == 2


@cocotb.test()
@cocotb.parametrize(case=[(8, 44), (4, 56)])
async def test_atomic_results(dut, case: tuple[int, int]) -> None:
    """Values out of one beat to every offset, over beat and page borders too; 5 cycles each."""
    length, off = case
    bench = Bench(dut)
    await bench.start(20, 0)
    packets = [Packet(4096 - 64 + 128 * n + n, random.randbytes(length), off, False, True) for n in range(80)]
    packets += [
        Packet(4096 * n - n % length, random.randbytes(length), off, False, True) for n in range(1, 9)
    ]
    await bench.run(packets)
    assert bench.cycles < 5 * len(packets) + 100 + SIZE // 64, f"{bench.cycles} cycles"
    assert bench.bursts[False] == 0 and bench.bursts[True] > len(packets)


@cocotb.test()
async def test_lock_reach(dut) -> None:
    """A lock holds exactly the inbound packets with a byte in its word, also in their second page, and what
    is behind them; released, they go on.
    """
    bench = Bench(dut)
    await bench.start(5, 0)
    words = [0, 4096 - 8, 4096, 8192 - 64, 3 * 4096 + 64 * 7 + 24, SIZE - 8]
    lengths = (1, 2, 7, 8, 9, 64, 300, 4096)
    for word in words:
        dut.lock_addr_i.value = word
        for length in lengths:
            for addr in {word - length, word - length + 1, word, word + 3, word + 7, word + 8, word - 64}:
                if addr < 0 or addr + length > SIZE:
                    continue
                for result in (False, True):
                    packet = Packet(addr, random.randbytes(length), 40, False, result)
                    dut.lock_valid_i.value = 1
                    limit = bench.cycles + 400
                    starts = int(dut.starts_o.value)
                    await bench.move(packet, limit)
                    for _ in range(5):
                        await bench.step(limit)
                    waits = int(dut.released_o.value) == bench.filled - len(packet.beats())
                    assert waits == packet.touches(word), f"{addr:#x} + {length}, word {word:#x}, {result=}"
                    started = int(dut.starts_o.value) - starts
                    assert started == (0 if waits or result else packet.bursts())
                    if waits:
                        await bench.move(Packet(0x8000, b"x" * 8, 44, False, True), limit)
                        for _ in range(5):
                            await bench.step(limit)
                        assert int(dut.move_count_o.value) == 2, "a later packet overtakes"
                        dut.lock_valid_i.value = 0
                    while not bench.done():
                        await bench.step(limit)
    await bench.compare()
    # packets that are only skipped never wait
    dut.lock_valid_i.value = 1
    dut.lock_addr_i.value = 4096
    await bench.run([Packet(4096, random.randbytes(100), 40, True) for _ in range(4)])


@cocotb.test()
@cocotb.parametrize(latency=[0, 40], stall=[0, 128])
async def test_lock_random(dut, latency: int, stall: int) -> None:
    """Locks at any time: once the bursts that started before are answered, nothing changes the word until the
    release; everything lands in the end.
    """
    bench = Bench(dut)
    await bench.start(latency, stall)
    held: list[int] = []

    async def locks() -> None:
        while True:
            for _ in range(random.randrange(30)):
                await FallingEdge(dut.clk_i)
            word = random.choice([4096, 4096 - 8, 4096 + 64 * random.randrange(4) + 8 * random.randrange(8)])
            dut.lock_valid_i.value, dut.lock_addr_i.value = 1, word
            before = int(dut.starts_o.value)
            dut.peek_beat_i.value = word // 64
            while int(dut.answers_o.value) < before:
                await FallingEdge(dut.clk_i)
            await FallingEdge(dut.clk_i)
            shift = word % 64 * 8
            value = int(dut.peek_data_o.value) >> shift & (1 << 64) - 1
            for _ in range(random.randrange(40)):
                await FallingEdge(dut.clk_i)
                assert int(dut.peek_data_o.value) >> shift & (1 << 64) - 1 == value, "written under lock"
            held.append(word)
            dut.lock_valid_i.value = 0

    task = cocotb.start_soon(locks())
    for _ in range(6):
        packets = []
        for _ in range(60):
            length = random.choice([1, 8, 64, 300, random.randrange(1, 4097)])
            addr = 4096 + random.randrange(-length, 300)
            packets.append(Packet(max(0, addr), random.randbytes(length), 40, random.random() < 0.1))
        limit = bench.cycles + 400 * len(packets)
        for packet in packets:
            await bench.move(packet, limit)
        while not bench.done():
            await bench.step(limit)
    task.cancel()
    dut.lock_valid_i.value = 0
    await bench.compare()
    assert len(held) > 20 and int(dut.starts_o.value) == bench.bursts[False]
