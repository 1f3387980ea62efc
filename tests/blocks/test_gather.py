"""Gather (rtl/memory/gather.sv, gather_issue.sv, realign.sv, axi_rd_mux.sv) against the bytes of a memory.

Sweep: every source offset in a beat with lengths around the beat and page borders, 0 and 4096; random mixes;
memory latency 0 to 300, stalls on AR, R and at both outputs; a rival reader; bus errors in the first, middle
and last beat.
Stimulus: packets of many QPs in order at the block's port, memory in the bench.
Checks: every packet's headers and bytes in order, zeros behind its end, one error pulse with QP and slot,
exactly the packets that have to be missing, nothing left for a reset; the memory model checks the bursts
(aligned, no 4 KiB crossing).
Timing: 24 KiB of reads in flight and full rate for 4 KiB packets at 200 cycles of latency; small packets <= 5
cycles.
Not proved here: framing of the payload (test_rx_loopback.py).
"""

import random
from dataclasses import dataclass

import cocotb
from cocotb.triggers import FallingEdge, Timer

BENCH = {
    "top": "gather_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/*.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/context/mr_fence.sv",
        "rtl/memory/gather.sv",
        "rtl/memory/gather_issue.sv",
        "rtl/memory/realign.sv",
        "rtl/memory/axi_rd_mux.sv",
        "tests/blocks/sv/axi_ram_model.sv",
        "tests/blocks/sv/gather_bench.sv",
    ],
    "args": ["-Wno-PINCONNECTEMPTY"],
}
SIZE = 128 * 1024  # bytes of the memory that hold data
HALF = 1 << 23  # PSN window of wire.md 5


@dataclass
class Job:
    """One packet to gather."""

    qpi: int
    psn: int
    addr: int
    length: int
    slot: int = 0


class Bench:
    """Drives jobs and collects packets; inputs change and outputs are read at falling edges."""

    def __init__(self, dut) -> None:
        self.dut = dut
        self.memory = bytearray(random.randbytes(SIZE))
        self.packets: list[tuple[int, int, int, bytes]] = []
        self.errors: list[tuple[int, int]] = []
        self.open: list[tuple[int, int, int]] = []  # packets whose payload is still to come
        self.data = bytearray()
        self.cycles = 0

    async def start(self, latency: int = 20, stall: int = 0) -> None:
        """Resets and fills the memory."""
        dut = self.dut
        for name in (
            "qp_stopped_i",
            "qp_set_i",
            "drain_valid_i",
            "job_valid_i",
            "pkt_ready_i",
            "pay_ready_i",
            "fault_i",
        ):
            getattr(dut, name).value = 0
        dut.rival_i.value = 0
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

    async def cycle(self, stall: float) -> None:
        """One clock cycle with random readiness; records what leaves."""
        dut = self.dut
        pkt_ready, pay_ready = (random.random() >= stall for _ in range(2))
        dut.pkt_ready_i.value = pkt_ready
        dut.pay_ready_i.value = pay_ready
        await Timer(1, "ps")
        if pkt_ready and dut.pkt_valid_o.value == 1:
            packet = (int(dut.pkt_qpi_o.value), int(dut.pkt_psn_o.value), int(dut.pkt_len_o.value))
            if packet[2]:
                self.open.append(packet)
            else:
                self.packets.append((*packet, b""))
        if pay_ready and dut.pay_valid_o.value == 1:
            assert self.open, "payload before its packet"
            self.data += int(dut.pay_data_o.value).to_bytes(64, "little")
            if dut.pay_last_o.value == 1:
                packet = self.open.pop(0)
                assert len(self.data) == -(-packet[2] // 64) * 64, (
                    f"{packet}: {len(self.data)} bytes in beats"
                )
                assert not any(self.data[packet[2] :]), f"{packet}: bytes behind its end are not zero"
                self.packets.append((*packet, bytes(self.data[: packet[2]])))
                self.data.clear()
        if dut.gerr_valid_o.value == 1:
            self.errors.append((int(dut.gerr_qpi_o.value), int(dut.gerr_slot_o.value)))
        await FallingEdge(dut.clk_i)
        self.cycles += 1

    async def run(
        self, jobs: list[Job], stall: float = 0.0, gap: float = 0.0, expect: int | None = None
    ) -> None:
        """Sends the jobs and waits until `expect` packets (all of them) left, then for silence."""
        dut = self.dut
        want = len(self.packets) + (len(jobs) if expect is None else expect)
        limit = self.cycles + 400 * (len(jobs) + 5)
        queue = list(jobs)
        while queue or len(self.packets) < want:
            offer = bool(queue) and random.random() >= gap
            dut.job_valid_i.value = offer
            if offer:
                job = queue[0]
                dut.job_qpi_i.value = job.qpi
                dut.job_slot_i.value = job.slot
                dut.job_psn_i.value = job.psn
                dut.job_laddr_i.value = job.addr
                dut.job_len_i.value = job.length
                if dut.job_ready_o.value == 1:  # state only, so it holds until the edge
                    queue.pop(0)
            await self.cycle(stall)
            assert self.cycles < limit, (
                f"{len(queue)} jobs not taken, {want - len(self.packets)} packets missing"
            )
        dut.job_valid_i.value = 0

    async def idle(self, cycles: int) -> None:
        """Lets time pass."""
        self.dut.job_valid_i.value = 0
        for _ in range(cycles):
            await self.cycle(0.0)

    def compare(self, jobs: list[Job]) -> None:
        """All packets so far are exactly these, in order (those without payload may run ahead)."""

        def key(packets: list[tuple[int, int, int, bytes]], empty: bool) -> list[tuple[int, int, int, bytes]]:
            return [p for p in packets if (p[2] == 0) == empty]

        want = [(j.qpi, j.psn, j.length, bytes(self.memory[j.addr : j.addr + j.length])) for j in jobs]
        for empty in (False, True):
            for n, (a, b) in enumerate(zip(key(self.packets, empty), key(want, empty), strict=True)):
                assert a == b, f"packet {n}: qp/psn/length {a[:3]}, want {b[:3]}; bytes equal: {a[3] == b[3]}"


def random_job(psn: int) -> Job:
    """A packet with a length and an address where borders are likely."""
    length = random.choice(
        [0, 1, 63, 64, 65, 256, 1024, 4095, 4096, random.randrange(4097), random.randrange(130)]
    )
    addr = random.choice(
        [random.randrange(SIZE - 4096), 4096 * random.randrange(30) + random.randrange(-70, 70)]
    )
    return Job(random.randrange(64), psn, max(0, min(addr, SIZE - 4096)), length, random.randrange(16))


@cocotb.test()
async def test_offsets(dut) -> None:
    """Every offset in a beat, lengths around the beat borders, close to a page's end."""
    bench = Bench(dut)
    await bench.start()
    jobs = [
        Job(n % 64, n, page * 4096 - 64 + offset, length)
        for n, (page, offset, length) in enumerate(
            (1 + o % 20, o, n)
            for o in range(64)
            for n in (1, 2, 63 - o % 3, 64, 65, 127 + o % 3, 200, 4096 - o % 2)
        )
    ]
    await bench.run(jobs)
    bench.compare(jobs)
    assert not bench.errors


@cocotb.test()
@cocotb.parametrize(latency=[0, 60, 300], stall=[0, 128])
async def test_random(dut, latency: int, stall: int) -> None:
    """Random packets under stalls everywhere, beside a rival reader."""
    bench = Bench(dut)
    await bench.start(latency, stall)
    dut.rival_i.value = stall != 0
    jobs = [random_job(n) for n in range(250)]
    await bench.run(jobs, stall / 256, stall / 512)
    bench.compare(jobs)
    if stall:
        assert int(dut.rival_beats_o.value) > int(dut.reads_o.value) // 3, "the rival reader starves"


@cocotb.test()
async def test_rate(dut) -> None:
    """4 KiB packets keep the pace of the link (66 beats a frame) at 200 cycles of latency; small ones 5."""
    bench = Bench(dut)
    await bench.start(latency=200)
    jobs = [Job(0, n, 4096 * (n % 16) + 64 * (n % 2) + n % 3, 4096) for n in range(80)]
    await bench.run(jobs)
    bench.compare(jobs)
    assert bench.cycles < 66 * len(jobs) + 260, f"{bench.cycles} cycles"
    in_flight = 64 * int(dut.most_reads_o.value)
    assert in_flight >= 24 * 1024, f"{in_flight} bytes in flight"
    before = bench.cycles
    jobs2 = [Job(n % 8, n, 64 * (n % 1024) + n % 5, 64) for n in range(600)]
    await bench.run(jobs2)
    bench.compare(jobs + jobs2)
    assert bench.cycles - before < 5 * len(jobs2) + 260, f"{bench.cycles - before} cycles"


@cocotb.test()
@cocotb.parametrize(beat=[0, 31, 63])
async def test_bus_error(dut, beat: int) -> None:
    """A fault drops its packet and the QP's later requests until it is programmed; no other QP suffers."""
    bench = Bench(dut)
    await bench.start(stall=60)
    dut.fault_i.value = 1
    dut.fault_beat_i.value = 64 + beat
    bad = Job(5, 0xFFFFFE, 4096, 4096, 9)
    before = [Job(5, 0xFFFFF0 + n, 64 * n, 300) for n in range(14)]
    after = [
        Job(random.choice([5, 6]), (0xFFFFFF + n) % (1 << 24), 8192 + 64 * n, random.choice([0, 64, 700]))
        for n in range(40)
    ]
    again = [Job(5, 0xFFFFFC, 0, 100), Job(5, 0xFFFFFE, 0, 100), Job(5, 3, 0, 0)]
    kept = [*before, *(j for j in after if j.qpi == 6), again[0]]
    await bench.run([*before, bad, *after, *again], 0.2, expect=len(kept))
    await bench.idle(400)
    bench.compare(kept)
    assert bench.errors == [(5, 9)], f"error pulses {bench.errors}"
    dut.drain_valid_i.value = 1
    dut.drain_qpi_i.value = 5
    await bench.idle(3)
    assert dut.drain_busy_o.value == 0, "something of the QP is left"
    dut.drain_valid_i.value = 0
    dut.qp_set_i.value = 1
    dut.qp_set_qpi_i.value = 5
    await bench.idle(1)
    dut.qp_set_i.value = 0
    more = [Job(5, 0xFFFFFE, 0, 100), Job(5, 1, 64, 4096)]
    dut.fault_i.value = 0
    await bench.run(more)
    bench.compare(kept + more)


@cocotb.test()
async def test_stopped_qp(dut) -> None:
    """Packets of a QP not in RTS or in reset are dropped; the drain ends when its last packet left."""
    bench = Bench(dut)
    await bench.start(latency=100)
    dut.qp_stopped_i.value = 1 << 3
    jobs = [Job(n % 5, n, 64 * n, 64) for n in range(50)]
    await bench.run(jobs, expect=40)
    bench.compare([j for j in jobs if j.qpi != 3])
    # a reset of QP 2 arrives while its packets are under way
    dut.drain_qpi_i.value = 2
    first = [Job(2, 100 + n, 64 * n, 640) for n in range(10)]
    await bench.run(first, expect=0)
    dut.drain_valid_i.value = 1
    left, busy_until = len(bench.packets), 0
    for n in range(300):
        await bench.idle(1)
        if dut.drain_busy_o.value == 1:
            busy_until = n
        if len(bench.packets) > left:
            left = len(bench.packets)
            assert busy_until >= n - 12 or not bench.open, "a packet left after the drain had ended"
    assert len(bench.packets) in (49, 50), "the packets that were taken before leave"
    assert busy_until > 50, "busy while reads are under way"
    assert dut.drain_busy_o.value == 0, "the drain never ends"
    await bench.run([Job(2, 200, 0, 64), Job(1, 201, 0, 64)], expect=1)
    await bench.idle(200)
    assert bench.packets[-1][:2] == (1, 201), "a new packet of a draining QP is dropped"
