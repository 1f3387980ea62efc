"""Gather (rtl/memory/gather.sv, gather_issue.sv, realign.sv, axi_rd_mux.sv) against the bytes of a memory.

Sweep: every source offset in a beat with lengths around the beat and page borders, 0 and 4096; random mixes;
memory latency 0 to 600, stalls on AR, R and at both outputs, which also stand still until all is full; a
rival reader; bus errors in the first, middle and last beat; requests and READ responses of the same QPs
mixed, with errors on either side, QPs in ERR, a reset, the invalidation of a region under load.
Stimulus: packets of many QPs in order at the block's port, memory in the bench.
Checks: every packet's headers and bytes in order, zeros behind its end, one error pulse with QP and slot (or
PSN and MSN), exactly the packets that have to be missing, one pulse for each READ response that left, not
before it did, nothing left for a reset, no read of before after an invalidation; bursts with errors counted;
the memory model checks the bursts (aligned, no 4 KiB crossing).
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
    rsp: bool = False
    msn: int = 0


#: packet as it leaves: QP, PSN, length, whether it is a READ response, MSN
Head = tuple[int, int, int, bool, int]


class Bench:
    """Drives jobs and collects packets; inputs change and outputs are read at falling edges."""

    def __init__(self, dut) -> None:
        self.dut = dut
        self.memory = bytearray(random.randbytes(SIZE))
        self.packets: list[tuple[Head, bytes]] = []
        self.order: list[Head] = []
        self.errors: list[tuple[int, int]] = []
        self.rsp_errors: list[tuple[int, int, int]] = []
        self.rsp_out: list[tuple[int, int]] = []  # QP, READ responses that had left by then
        self.open: list[Head] = []  # packets whose payload is still to come
        self.data = bytearray()
        self.cycles = 0

    async def start(self, latency: int = 20, stall: int = 0) -> None:
        """Resets and fills the memory."""
        dut = self.dut
        for name in (
            "qp_stopped_i",
            "qp_set_i",
            "qp_reset_i",
            "mr_drain_i",
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
            fields = (dut.pkt_qpi_o, dut.pkt_psn_o, dut.pkt_len_o, dut.pkt_rsp_o, dut.pkt_msn_o)
            qpi, psn, length, rsp, msn = (int(f.value) for f in fields)
            head: Head = (qpi, psn, length, bool(rsp), msn)
            self.order.append(head)
            if length:
                self.open.append(head)
            else:
                self.packets.append((head, b""))
        if pay_ready and dut.pay_valid_o.value == 1:
            assert self.open, "payload before its packet"
            self.data += int(dut.pay_data_o.value).to_bytes(64, "little")
            if dut.pay_last_o.value == 1:
                packet = self.open.pop(0)
                assert len(self.data) == -(-packet[2] // 64) * 64, (
                    f"{packet}: {len(self.data)} bytes in beats"
                )
                assert not any(self.data[packet[2] :]), f"{packet}: bytes behind its end are not zero"
                self.packets.append((packet, bytes(self.data[: packet[2]])))
                self.data.clear()
        if dut.gerr_valid_o.value == 1:
            self.errors.append((int(dut.gerr_qpi_o.value), int(dut.gerr_slot_o.value)))
        if dut.rerr_valid_o.value == 1:
            parts = (dut.rerr_qpi_o, dut.rerr_psn_o, dut.rerr_msn_o)
            self.rsp_errors.append(tuple(int(f.value) for f in parts))
        if dut.rsp_out_valid_o.value == 1:
            self.rsp_out.append((int(dut.rsp_out_qpi_o.value), sum(h[3] for h in self.order)))
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
                self.offer(queue[0])
                if dut.job_ready_o.value == 1:  # state only, so it holds until the edge
                    queue.pop(0)
            await self.cycle(stall)
            assert self.cycles < limit, (
                f"{len(queue)} jobs not taken, {want - len(self.packets)} packets missing"
            )
        dut.job_valid_i.value = 0

    def offer(self, job: Job) -> None:
        """Puts a job on the port."""
        dut = self.dut
        dut.job_qpi_i.value = job.qpi
        dut.job_slot_i.value = job.slot
        dut.job_psn_i.value = job.psn
        dut.job_laddr_i.value = job.addr
        dut.job_len_i.value = job.length
        dut.job_rsp_i.value = job.rsp
        dut.job_msn_i.value = job.msn

    async def idle(self, cycles: int) -> None:
        """Lets time pass."""
        self.dut.job_valid_i.value = 0
        for _ in range(cycles):
            await self.cycle(0.0)

    def compare(self, jobs: list[Job]) -> None:
        """All packets so far are exactly these, in order; payload follows in the same order."""
        heads: list[Head] = [(j.qpi, j.psn, j.length, j.rsp, j.msn) for j in jobs]
        for n, (got, head) in enumerate(zip(self.order, heads, strict=True)):
            assert got == head, f"packet {n}: qp/psn/length/response/msn {got}, want {head}"
        paid = [(head, data) for head, data in self.packets if head[2]]
        sources = [(head, job.addr) for head, job in zip(heads, jobs, strict=True) if job.length]
        for n, ((got, data), (head, addr)) in enumerate(zip(paid, sources, strict=True)):
            assert got == head and data == self.memory[addr : addr + head[2]], (
                f"payload of {head}, number {n}"
            )

    def compare_pulses(self, jobs: list[Job], kept: list[Job]) -> None:
        """One pulse for each READ response of `jobs`, in order; those of `kept` had left by then."""
        left, stays = 0, {id(j) for j in kept}
        for job, (qpi, seen) in zip([j for j in jobs if j.rsp], self.rsp_out, strict=True):
            left += id(job) in stays
            assert qpi == job.qpi, f"pulse of QP {qpi} for {job}"
            assert seen >= left, f"pulse before {job} left"


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
@cocotb.parametrize(length=[8, 100, 256], latency=[0, 600])
async def test_output_stands_still(dut, length: int, latency: int) -> None:
    """Nothing is taken until the block is full and has all its data: every packet comes out all the same."""
    bench = Bench(dut)
    await bench.start(latency=latency)
    # up to 64 bytes: one beat; 100 bytes cross a page: two bursts
    jobs = [Job(n % 64, n, 4096 * (1 + n % 30) - (50 if length == 100 else 0), length) for n in range(160)]
    queue = list(jobs)
    for _ in range(1200):
        dut.job_valid_i.value = 1
        bench.offer(queue[0])
        if dut.job_ready_o.value == 1:
            queue.pop(0)
        await bench.cycle(1.0)
    assert not bench.packets and len(jobs) - len(queue) > 126, f"{len(queue)} jobs are not taken"
    await bench.run(queue, expect=len(jobs))
    bench.compare(jobs)


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
    assert bench.packets[-1][0][:2] == (1, 201), "a new packet of a draining QP is dropped"


def mixed_job(n: int, qps: int = 64) -> Job:
    """A request or READ response with a PSN and MSN of its own."""
    job = random_job(n)
    job.qpi %= qps
    job.rsp, job.msn = random.random() < 0.5, random.getrandbits(24)
    return job


@cocotb.test()
@cocotb.parametrize(latency=[0, 60, 300], stall=[0, 128])
async def test_mixed(dut, latency: int, stall: int) -> None:
    """Requests and READ responses keep their common order; responses leave in ERR too, requests do not."""
    bench = Bench(dut)
    await bench.start(latency, stall)
    stopped = {q for q in range(64) if q % 3 == 1}
    dut.qp_stopped_i.value = sum(1 << q for q in stopped)
    jobs = [mixed_job(n) for n in range(250)]
    kept = [j for j in jobs if j.rsp or j.qpi not in stopped]
    await bench.run(jobs, stall / 256, stall / 512, expect=len(kept))
    await bench.idle(8)
    bench.compare(kept)
    bench.compare_pulses(jobs, kept)
    assert not bench.errors and not bench.rsp_errors


@cocotb.test()
@cocotb.parametrize(side=["response", "request", "both"])
async def test_error_sides(dut, side: str) -> None:
    """A bus error of a response drops all later responses of its QP, whatever their PSN, and no request; that
    of a request drops its PSN and later ones and no response. A new context ends it, a reset as well.
    """
    bench = Bench(dut)
    await bench.start(stall=60)
    dut.fault_i.value = 1
    dut.fault_beat_i.value = 64 + 5
    sent: list[Job] = []
    kept: list[Job] = []
    for turn in range(3):
        bad = []
        if side in ("response", "both"):
            bad.append(Job(5, 1000, 4096, 4096, rsp=True, msn=0xABCDE0 + turn))
        if side in ("request", "both"):
            bad.append(Job(5, 0xFFFFF0, 4096, 600, 9))
        before = [mixed_job(n, 8) for n in range(30)]
        after = [mixed_job(random.choice([0xFFFFEF, 0xFFFFF0, 999, 3, n]), 8) for n in range(60)]
        for job in (*before, *after):
            job.addr = 8192 + job.addr % (SIZE - 16384)
        stays = [*before]
        for job in after:
            behind = (job.psn - 0xFFFFF0) % (1 << 24) < HALF
            fails = side != "request" if job.rsp else side != "response" and behind
            if not (job.qpi == 5 and fails):
                stays.append(job)
        sent += [*before, *bad, *after]
        kept += stays
        await bench.run([*before, *bad, *after], 0.2, expect=len(stays))
        await bench.idle(100)
        bench.compare(kept)
        bench.compare_pulses(sent, kept)
        wrong = turn + 1
        assert bench.errors == [(5, 9)] * (wrong if side != "response" else 0), bench.errors
        want = [(5, 1000, 0xABCDE0 + t) for t in range(wrong)] if side != "request" else []
        assert bench.rsp_errors == want, f"response errors {bench.rsp_errors}"
        assert int(dut.bus_errs_o.value) == wrong * len(bad)
        dut.drain_valid_i.value = 1
        dut.drain_qpi_i.value = 5
        await bench.idle(3)
        assert dut.drain_busy_o.value == 0, "something of the QP is left"
        dut.drain_valid_i.value = 0
        end = dut.qp_reset_i if turn == 0 else dut.qp_set_i
        dut.qp_set_qpi_i.value = 5
        end.value = 1
        await bench.idle(1)
        end.value = 0


@cocotb.test()
async def test_repeated_error(dut) -> None:
    """Several bad packets of a QP under way at once give one error per side; each bad burst counts."""
    bench = Bench(dut)
    await bench.start(latency=100)
    dut.fault_i.value = 1
    dut.fault_beat_i.value = 64
    bad = [Job(7, 50 + n, 4096 - 64 * (n % 2), 128, 3, rsp=n % 3 == 0, msn=n) for n in range(9)]
    await bench.run([*bad, Job(8, 1, 0, 10)], expect=1)
    await bench.idle(20)
    bench.compare([Job(8, 1, 0, 10)])
    bench.compare_pulses(bad, [])
    assert bench.errors == [(7, 3)] and bench.rsp_errors == [(7, 50, 0)]
    assert int(dut.bus_errs_o.value) == len(bad)


@cocotb.test()
async def test_responses_in_reset(dut) -> None:
    """READ responses of a QP under reset: those under way leave, new ones read nothing and only pulse."""
    bench = Bench(dut)
    await bench.start(latency=100)
    first = [Job(2 + n % 2, n, 64 * n, 640, rsp=n % 4 < 2, msn=n) for n in range(16)]
    await bench.run(first, expect=0)
    await bench.idle(4)
    dut.drain_qpi_i.value = 2
    dut.drain_valid_i.value = 1
    reads = int(dut.reads_o.value)
    late = [Job(2, 100 + n, 4096 * n + 4000, n % 2 * 300, rsp=True, msn=n) for n in range(10)]
    await bench.run(late, expect=0)
    await bench.idle(2)
    assert dut.drain_busy_o.value == 1, "the drain ends before everything left"
    await bench.idle(300)
    assert int(dut.reads_o.value) <= reads + 2, "a response under reset reads memory"
    bench.compare(first)
    bench.compare_pulses([*first, *late], first)
    assert dut.drain_busy_o.value == 0, "the drain never ends"


@cocotb.test()
@cocotb.parametrize(latency=[0, 150], load=[0.0, 0.5, 1.0])
async def test_invalidation(dut, latency: int, load: float) -> None:
    """The invalidation of a region waits for everything accepted before, up to eight more of each kind that
    were decided before, and ends although new packets keep coming.
    """
    bench = Bench(dut)
    await bench.start(latency)
    sent: list[Job] = []
    for turn in range(4):
        jobs = [mixed_job(n) for n in range(40)]
        await bench.run(jobs, expect=random.randrange(30))
        # decided under the old region: they come within eight cycles or wait before the port
        queue = [mixed_job(n) for n in range((0, 5, 16, 16)[turn])]
        old = len(sent) + len(jobs) + len(queue)
        sent += jobs + queue
        hold, cycles = random.randrange(9), 0
        dut.mr_drain_i.value = 1
        while cycles < 3 or dut.mr_drain_busy_o.value == 1:
            if cycles >= hold and not queue and random.random() < load:
                queue.append(mixed_job(cycles))
                sent.append(queue[0])
            offer = cycles >= hold and bool(queue)
            dut.job_valid_i.value = offer
            if offer:
                bench.offer(queue[0])
                if dut.job_ready_o.value == 1:
                    queue.pop(0)
            await bench.cycle(0.0)
            cycles += 1
            assert cycles < 8000, "the invalidation never ends"
        assert len(bench.order) >= old, f"ends {old - len(bench.order)} packets too early"
        dut.mr_drain_i.value = 0
        await bench.run(queue, expect=0)
        await bench.idle(400 + latency)
    await bench.idle(4000)
    bench.compare(sent)
    bench.compare_pulses(sent, sent)
