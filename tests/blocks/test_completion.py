"""Completion (rtl/completion) with outstanding table and failure records: CQEs, CQ rings, doorbells, overrun.

Sweep: V1 and V2, strides 32 and 64, CQ depths 2 to 32768 over more than two changes of the owner bit, CQ and
SQ indices on both sides of their wraps; ce = 0; random stalls of the memory port; all verdicts of CQ
doorbells and their borders; CQ-full waiting for ever and with cq_wait; failures, flush, bus errors, arms,
reset.
Stimulus: announced, acknowledged and failed positions of QPs as the other blocks of the requester report
them; a memory port that answers each write; CQ doorbells as a driver rings them.
Checks: address, strobes and all 64 bytes of every CQE, order per QP, none missing and none twice; retirement
not later than the offer of the CQE's data; verdicts, events, asynchronous events, errors and counters.
Timing: a completion costs at most 4 cycles; cq_wait ends in time.
Not proved here: that positions are right (test_nic), what the host front makes of the results.
"""

import random
from collections import Counter, defaultdict, deque
from dataclasses import dataclass

import cocotb
from cocotb.triggers import RisingEdge

BENCH = {
    "top": "completion_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/*.sv",
        "rtl/requester/req_pkg.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/requester/req_table.sv",
        "rtl/requester/req_fail.sv",
        "rtl/completion/cqe_format.sv",
        "rtl/completion/cq_state.sv",
        "rtl/completion/comp_qp.sv",
        "rtl/completion/comp_pend.sv",
        "rtl/completion/comp_pick.sv",
        "rtl/completion/recv_pend.sv",
        "rtl/completion/comp_eng.sv",
        "rtl/completion/cqe_writer.sv",
        "rtl/completion/cq_event.sv",
        "tests/blocks/sv/completion_bench.sv",
    ],
}

ACCEPTED, BACKWARD, BEYOND = 0, 1, 2
OVERRUN_EVENT, BUS_EVENT = 2, 3
FLUSH = 0xFF
CNT_FLUSH, CNT_OVERRUN, CNT_DISCARD, CNT_BUS, CNT_WQE, CNT_CQE = 38, 39, 40, 44, 49, 50
FIRST_QPN = 2


@dataclass
class Cq:
    """A completion queue as software sees it."""

    base: int
    depth: int
    stride: int = 64
    start: int = 0
    ignore: bool = False
    seen: int = 0  # CQEs written
    consumed: int = 0  # CQEs that doorbells gave back


@dataclass
class Qp:
    """A QP as completion sees it."""

    version: int
    start: int
    cqn: int

    def at(self, offset: int) -> int:
        """Index of the WQE `offset` after the first, 14 bits V1 and 18 bits V2."""
        return (self.start + offset) % (1 << (14 if self.version == 1 else 18))


@dataclass(frozen=True)
class Cqe:
    """One written CQE: ring, position and every field (device.md 2.1)."""

    cqn: int
    slot: int
    owner: int
    code: int
    qpn: int
    with_imm: int
    length: int
    ts: int
    opcode: int
    wqe_id: int
    receive: int = 0
    imm: int = 0
    se: int = 0


class Bench:
    """Drives the block, one `step` a cycle, and collects what it does."""

    def __init__(self, dut, stall: float = 0.0, latency: int = 12) -> None:
        self.dut = dut
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.stall, self.latency = stall, latency
        self.cycle = 0
        self.cqs: dict[int, Cq] = {}
        self.qps: dict[int, Qp] = {}
        self.cqes: list[Cqe] = []
        self.retired: list[tuple[int, int]] = []
        self.received: list[tuple[int, int]] = []
        self.errors: list[int] = []
        self.asyncs: list[tuple[int, int, int]] = []
        self.events: list[int] = []
        self.counts: Counter[int] = Counter()
        self.answers: deque[tuple[int, bool]] = deque()
        self.addresses: deque[int] = deque()
        self.beats: deque[tuple[int, int]] = deque()
        self.refuse: set[int] = set()  # ordinals of CQE writes that the memory refuses
        self.writes = 0
        self.rts = 0
        self.err = 0
        self.busy = 0
        self.ready = (1, 1)
        self.stamp: dict[int, int] = defaultdict(int)
        self.retire_count: Counter[int] = Counter()
        self.offered: Counter[int] = Counter()
        self.holding = False

    async def start(self, wait: int = 0) -> "Bench":
        """Reset."""
        dut = self.dut
        for handle in dut:
            name = handle._name
            if name.endswith("_i") and name not in ("clk_i", "rst_ni"):
                handle.value = 0
        dut.cq_wait_i.value = wait
        dut.rst_ni.value = 0
        await RisingEdge(dut.clk_i)
        await RisingEdge(dut.clk_i)
        dut.rst_ni.value = 1
        dut.req_ready_i.value = 1
        dut.beat_ready_i.value = 1
        await self.step()
        return self

    async def step(self, count: int = 1, **pulses: int) -> None:
        """`count` cycles, the first with these inputs set; outputs are taken at the end of each cycle."""
        dut = self.dut
        for name, value in pulses.items():
            getattr(dut, name).value = value
        for number in range(count):
            await RisingEdge(dut.clk_i)
            self.cycle += 1
            self._collect()
            if number == 0:
                for name in pulses:
                    if name.endswith("_valid_i") or name in ("qp_set_i", "cq_set_i", "qp_reset_i"):
                        getattr(dut, name).value = 0
            dut.time_i.value = self.cycle
            self._memory()

    def _collect(self) -> None:
        """Take the outputs of the cycle that ended."""
        dut = self.dut
        if int(dut.any_o.value):
            if int(dut.retire_valid_o.value):
                qp = int(dut.retire_qpi_o.value)
                self.retired.append((qp, int(dut.retire_idx_o.value)))
                self.retire_count[qp] += 1
            if int(dut.rq_retire_valid_o.value):
                qp = int(dut.rq_retire_qpi_o.value)
                self.received.append((qp, int(dut.rq_retire_idx_o.value)))
                self.retire_count[qp] += 1
            if int(dut.err_valid_o.value):
                self.errors.append(int(dut.err_qpi_o.value))
            if int(dut.async_valid_o.value):
                event = (self.cycle, int(dut.async_kind_o.value), int(dut.async_number_o.value))
                self.asyncs.append(event)
            if int(dut.event_valid_o.value):
                self.events.append(int(dut.event_cqn_o.value))
            bits = int(dut.cnt_o.value)
            while bits:
                low = bits & -bits
                self.counts[low.bit_length() - 1] += 1
                bits ^= low
        self.busy = int(dut.drain_busy_o.value) if self.holding else 0
        if int(dut.req_valid_o.value) and self.ready[0]:
            self.addresses.append(int(dut.req_addr_o.value))
        if int(dut.beat_valid_o.value):
            data = int(dut.beat_data_o.value)
            if not self.beats or self.ready[1]:
                self._offered(data)
            if self.ready[1]:
                self.beats.append((data, int(dut.beat_strb_o.value)))
        while self.addresses and self.beats:
            self._write(self.addresses.popleft(), *self.beats.popleft())

    def _offered(self, data: int) -> None:
        """The WQE of the CQE on offer is retired by now (nic.md 3)."""
        half = data >> 256 if data >> 256 else data
        qp = (half >> 8 & 0x7FFF) - FIRST_QPN
        if self.ready[1]:
            self.offered[qp] += 1
        floor = self.offered[qp] + (0 if self.ready[1] else 1)
        assert self.retire_count[qp] >= floor, f"QP {qp}: CQE data offered before its WQE retired"

    def _write(self, address: int, data: int, strobe: int) -> None:
        """One CQE write: find its ring, judge bytes and position."""
        cqn, cq = next((n, c) for n, c in self.cqs.items() if c.base <= address < c.base + c.depth * c.stride)
        position = 0 if cq.ignore else (cq.start + cq.seen) % cq.depth
        place = cq.base + position * cq.stride
        assert address == place & ~63, f"CQ {cqn}: beat at {address:#x}, slot {position} is at {place:#x}"
        if cq.stride == 32:
            shift = place & 32
            assert strobe == 0xFFFFFFFF << shift, f"CQ {cqn}: strobes {strobe:#x} at {place:#x}"
            data >>= 8 * shift
        else:
            assert strobe == (1 << 64) - 1, f"CQ {cqn}: strobes {strobe:#x}"
            assert data >> 256 == 0, f"CQ {cqn}: upper half {data >> 256:#x}"
        data &= (1 << 256) - 1
        qp = self.qps[(data >> 8 & 0x7FFF) - FIRST_QPN]
        v2 = qp.version == 2
        got = Cqe(
            cqn,
            position,
            data >> 255,
            data & 0xFF,
            data >> 8 & 0x7FFF,
            data >> 27 & 1,
            data >> 64 & 0xFFFFFFFF,
            data >> 128 & (1 << 48) - 1,
            data >> 192 & 0xFF,
            data >> 204 & 0xFFFFF if v2 else data >> 176 & 0xFFFF,
            data >> 26 & 1,
            data >> 32 & 0xFFFFFFFF,
            data >> 24 & 1,
        )
        again = (
            got.code
            | got.qpn << 8
            | got.with_imm << 27
            | got.length << 64
            | got.ts << 128
            | got.opcode << 192
        )
        again |= got.se << 24 | got.receive << 26 | got.imm << 32
        again |= got.wqe_id << (204 if v2 else 176) | got.owner << 255
        assert data == again, f"CQ {cqn}: reserved bits {data ^ again:#x}"
        if not cq.ignore:
            owner = (cq.start + cq.seen) // cq.depth & 1
            assert got.owner == owner, f"CQ {cqn} producer {cq.start + cq.seen:#x}: owner {got.owner}"
        assert self.stamp[cqn] <= got.ts <= self.cycle, f"CQ {cqn}: ts {got.ts} after {self.stamp[cqn]}"
        self.stamp[cqn] = got.ts
        cq.seen += 1
        assert cq.ignore or cq.seen - cq.consumed <= cq.depth, f"CQ {cqn}: CQE without room"
        self.cqes.append(got)
        self.answers.append((self.cycle + self.latency, self.writes in self.refuse))
        self.writes += 1

    def _memory(self) -> None:
        """Ready bits and write responses of the next cycle."""
        dut = self.dut
        if self.stall:
            self.ready = (int(self.rng.random() >= self.stall), int(self.rng.random() >= self.stall))
            dut.req_ready_i.value, dut.beat_ready_i.value = self.ready
        if self.answers and self.answers[0][0] <= self.cycle:
            dut.b_valid_i.value = 1
            dut.b_err_i.value = self.answers.popleft()[1]
        else:
            dut.b_valid_i.value = 0

    async def cq(self, cqn: int, depth: int, stride: int = 64, start: int = 0, ignore: bool = False) -> None:
        """Program a CQ; its ring lies at cqn << 32."""
        self.cqs[cqn] = Cq(cqn + 1 << 32, depth, stride, start, ignore)
        await self.step(
            cq_set_i=1,
            ctx_cqn_i=cqn,
            cq_base_i=cqn + 1 << 32,
            cq_log_i=depth.bit_length() - 1,
            cq_stride32_i=stride == 32,
            cq_ignore_i=ignore,
            cq_start_i=start % (1 << 32),
        )

    async def qp(
        self, qp: int, cqn: int, version: int = 2, start: int = 0, recv: int = 63, rq_start: int = 0
    ) -> None:
        """Program a QP, RTS from the next cycle on."""
        self.qps[qp] = Qp(version, start, cqn)
        self.retire_count[qp] = self.offered[qp] = 0
        await self.step(
            qp_set_i=1,
            ctx_qpi_i=qp,
            qp_version2_i=version == 2,
            qp_start_i=start,
            qp_send_cq_i=cqn,
            qp_recv_cq_i=recv,
            qp_rq_start_i=rq_start,
        )
        await self.state(qp, "rts")

    async def state(self, qp: int, name: str) -> None:
        """State vectors as the host front drives them."""
        self.rts = self.rts & ~(1 << qp) | (name == "rts") << qp
        self.err = self.err & ~(1 << qp) | (name == "err") << qp
        await self.step(qp_rts_i=self.rts, qp_err_i=self.err)

    async def entry(
        self, qp: int, offset: int, ce: int = 1, length: int = 64, opcode: int = 1, imm: int = 0
    ) -> None:
        """The WQE `offset` after the first starts."""
        await self.step(
            entry_valid_i=1,
            entry_qpi_i=qp,
            entry_slot_i=self.qps[qp].at(offset) % 16,
            entry_opcode_i=opcode,
            entry_ce_i=ce,
            entry_imm_i=imm,
            entry_len_i=length,
        )

    async def announce(self, qp: int, offset: int) -> None:
        """All WQEs before `offset` are announced."""
        await self.step(db_valid_i=1, db_qpi_i=qp, db_idx_i=self.qps[qp].at(offset))

    async def ack(self, qp: int, offset: int) -> None:
        """All WQEs before `offset` are acknowledged."""
        await self.step(una_valid_i=1, una_qpi_i=qp, una_idx_i=self.qps[qp].at(offset))

    async def fail(self, qp: int, offset: int, code: int, nak: bool = False) -> None:
        """The WQE at `offset` failed."""
        source = {"nak_valid_i": 1} if nak else {"fail_valid_i": 1}
        await self.step(fail_qpi_i=qp, fail_slot_i=self.qps[qp].at(offset) % 16, fail_code_i=code, **source)

    async def doorbell(self, cqn: int, index: int, arm: int = 0) -> int:
        """CQ doorbell with this consumer index; the verdict."""
        dut = self.dut
        dut.dbcq_valid_i.value = 1
        dut.dbcq_cqn_i.value = cqn
        dut.dbcq_ci_i.value = index % (1 << 23)
        dut.dbcq_arm_i.value = arm
        taken = False
        for _ in range(20):
            await RisingEdge(dut.clk_i)
            self.cycle += 1
            answered = int(dut.dbcq_rsp_valid_o.value)
            verdict = int(dut.dbcq_rsp_o.value)
            if not taken and int(dut.dbcq_ready_o.value):
                taken = True
                dut.dbcq_valid_i.value = 0
            self._collect()
            dut.time_i.value = self.cycle
            self._memory()
            if answered:
                return verdict
        raise AssertionError(f"CQ {cqn}: no answer to a doorbell")

    async def consume(self, cqn: int, arm: int = 0) -> None:
        """Give back all CQEs that were written."""
        cq = self.cqs[cqn]
        seen = cq.seen
        before, cq.consumed = cq.consumed, seen
        verdict = await self.doorbell(cqn, cq.start + seen, arm)
        assert verdict == ACCEPTED, f"CQ {cqn}: doorbell from {before} to {seen} refused: {verdict}"

    def ids(self, qp: int) -> list[tuple[int, int]]:
        """(wqe_id, code) of the QP's CQEs."""
        return [(cqe.wqe_id, cqe.code) for cqe in self.cqes if cqe.qpn == qp + FIRST_QPN]

    def want(self, qp: int, codes: dict[int, int]) -> list[tuple[int, int]]:
        """The same from offsets and codes."""
        width = 16 if self.qps[qp].version == 1 else 20
        return [(self.qps[qp].at(offset) * 8 % (1 << width), code) for offset, code in codes.items()]


@cocotb.test()
@cocotb.parametrize(version=[1, 2], stride=[32, 64])
async def test_laps(dut, version, stride):
    """Slot, owner bit and order over at least two changes of the owner bit, every depth from 2 to 32768."""
    b = await Bench(dut).start()
    for cqn, log in enumerate(range(1, 16)):
        depth = 1 << log
        if depth < 512:
            total = 2 * depth + depth // 2 + 3
            start = b.rng.choice((0, (1 << 32) - depth - 1, (1 << 23) - 3, b.rng.getrandbits(32)))
        else:  # one lap with a border on both sides; one of them may be the wrap of the index
            total = depth + 16
            start = depth * b.rng.choice((1, 2, (1 << 23) // depth, (1 << 32) // depth)) - 8
        await b.cq(cqn, depth, stride, start)
        first = b.rng.choice(
            (0, b.rng.randrange(1 << 14), (1 << 14) - 5, (1 << 18) - 5 if version == 2 else 0)
        )
        await b.qp(cqn, cqn, version, first)
        for slot in range(16):
            await b.entry(cqn, slot)
        began, posted = b.cycle, 0
        cq = b.cqs[cqn]
        while cq.seen < total:
            if posted - cq.seen < 64 and posted < total:
                posted = min(total, cq.seen + 4096)  # far enough ahead that the engine never idles
                await b.announce(cqn, posted)
                await b.ack(cqn, posted)
            if cq.seen - cq.consumed >= max(1, depth // 2):
                await b.consume(cqn)
            await b.step()
            assert b.cycle - began < 12 * total + 500, f"depth {depth}: {cq.seen} of {total} CQEs"
        assert b.ids(cqn) == b.want(cqn, dict.fromkeys(range(total), 0)), f"depth {depth}: order"
        if depth >= 64:
            assert b.cycle - began <= 4 * total, (
                f"depth {depth}: {(b.cycle - began) / total:.2f} cycles a CQE"
            )
        b.cqes.clear()


@cocotb.test()
async def test_fields_and_silent_completions(dut):
    """Fields of good CQEs; ce = 0 completes silently; a WQE retires once, in order, before its CQE's data."""
    b = await Bench(dut, stall=0.4).start()
    await b.cq(0, 256, 32, 100)
    await b.cq(1, 256, 64, 250)
    posted: dict[int, list[tuple[int, int, int, int]]] = {}
    for qp in range(4):
        await b.qp(qp, qp % 2, 1 + qp // 2, b.rng.randrange(1 << 14))
        posted[qp] = []
    for _ in range(60):
        qp = b.rng.randrange(4)
        count = b.rng.randrange(1, 9)
        for _ in range(count):
            row = (b.rng.getrandbits(1), b.rng.getrandbits(32), b.rng.choice((1, 2)), b.rng.getrandbits(1))
            await b.entry(qp, len(posted[qp]), *row)
            posted[qp].append(row)
        await b.announce(qp, len(posted[qp]))
        await b.ack(qp, len(posted[qp]))
        while len([1 for got, _ in b.retired if got == qp]) < len(posted[qp]):
            await b.step()
        await b.consume(qp % 2)
    await b.step(60)
    for qp, rows in posted.items():
        indices = [index for got, index in b.retired if got == qp]
        assert indices == [b.qps[qp].at(i + 1) for i in range(len(rows))], f"QP {qp}: retired {indices}"
        want = [(length, op, imm) for ce, length, op, imm in rows if ce]
        got = [(c.length, c.opcode, c.with_imm) for c in b.cqes if c.qpn == qp + FIRST_QPN]
        assert got == want, f"QP {qp}: {got}, expected {want}"
        assert b.ids(qp) == b.want(qp, {i: 0 for i, row in enumerate(rows) if row[0]})
    total = sum(len(rows) for rows in posted.values())
    assert (b.counts[CNT_WQE], b.counts[CNT_CQE]) == (total, len(b.cqes)), b.counts


@cocotb.test()
async def test_full_cq_blocks_nobody(dut):
    """Completions wait for ever for a full CQ; another CQ goes on; room brings them in order, none lost."""
    b = await Bench(dut).start()
    await b.cq(0, 4)
    await b.cq(1, 64)
    for qp, cqn in ((0, 0), (1, 0), (2, 1)):
        await b.qp(qp, cqn)
        for slot in range(16):
            await b.entry(qp, slot)
        await b.announce(qp, 16)
        await b.ack(qp, 16)
    await b.step(2000)
    assert (b.cqs[0].seen, b.cqs[1].seen) == (4, 16), "a full CQ stops its own QPs and no other"
    assert not b.asyncs and not b.errors
    while b.cqs[0].seen < 32:
        before = b.cqs[0].seen
        await b.consume(0)
        await b.step(60)
        assert b.cqs[0].seen == min(32, before + 4), "as many CQEs as there is room"
    for qp in range(3):
        assert b.ids(qp) == b.want(qp, dict.fromkeys(range(16), 0)), f"QP {qp}: {b.ids(qp)}"


@cocotb.test()
async def test_doorbell_verdicts(dut):
    """d up to producer - CI accepted, 2^22 beyond refused, else backward; refusals arm nothing (nic.md 3)."""
    b = await Bench(dut).start()
    half = 1 << 22
    for cqn, start in enumerate((0, (1 << 23) - 3, 12345)):
        await b.cq(cqn, 16, start=start)
        await b.qp(cqn, cqn)
        for slot in range(16):
            await b.entry(cqn, slot)
        await b.announce(cqn, 7)
        await b.ack(cqn, 7)
        await b.step(60)
        for distance, verdict in (
            (8, BEYOND),
            (7 + half, BEYOND),
            (8 + half, BACKWARD),
            (-1, BACKWARD),
            (0, ACCEPTED),
            (3, ACCEPTED),
        ):
            got = await b.doorbell(cqn, start + distance, 0 if verdict == ACCEPTED else 2)
            assert got == verdict, f"start {start} distance {distance}: {got}, expected {verdict}"
        for distance, verdict in (
            (2, BACKWARD),
            (8, BEYOND),
            (7 + half, BEYOND),
            (8 + half, BACKWARD),
            (3, ACCEPTED),
            (7, ACCEPTED),
            (6, BACKWARD),
            (8, BEYOND),
        ):
            got = await b.doorbell(cqn, start + distance, 0 if verdict == ACCEPTED else 2)
            assert got == verdict, f"start {start} CI + 3, distance {distance}: {got}, expected {verdict}"
        b.cqs[cqn].consumed = 7
        await b.announce(cqn, 8)
        await b.ack(cqn, 8)
        await b.step(60)
        assert not b.events, "a refused doorbell armed its CQ"


@cocotb.test()
async def test_events(dut):
    """Arms 2 and 3: fire once, at the response of a CQE that is younger than the doorbell (nic.md 6)."""
    b = await Bench(dut, latency=40).start()
    await b.cq(0, 64)
    await b.qp(0, 0)
    for slot in range(16):
        await b.entry(0, slot)
    done = 0

    async def complete() -> None:
        nonlocal done
        done += 1
        await b.announce(0, done)
        await b.ack(0, done)

    for sta, fires in ((0, 0), (1, 0), (2, 1), (3, 0), (2, 1)):
        b.events.clear()
        await b.consume(0, sta)
        for _ in range(3):
            await complete()
            await b.step(10)
        assert not b.events, "an event before the write response"
        await b.step(80)
        assert b.events == [0] * fires, f"cq_sta {sta}: events {b.events}"
    # a response that comes after the arm counts, even of a CQE that was written before it
    b.events.clear()
    await complete()
    await b.step(15)
    await b.consume(0, 2)
    await b.step(80)
    assert b.events == [0]
    # an arm of kind 3 fires on an error CQE
    b.events.clear()
    await b.consume(0, 3)
    await complete()
    await b.step(80)
    assert not b.events
    await b.announce(0, done + 1)
    await b.fail(0, done, 0xA5)
    await b.step(80)
    assert b.events == [0] and b.errors == [0]


@cocotb.test()
async def test_cq_wait(dut):
    """After cq_wait cycles without room: one event, the CQ's QPs to ERR, completions discarded, counted."""
    wait = 700
    b = await Bench(dut).start(wait)
    await b.cq(5, 2)
    await b.cq(6, 64)
    await b.qp(0, 5)
    await b.qp(1, 5, start=100)
    await b.qp(2, 6, recv=5)
    await b.qp(3, 6)
    for qp in range(4):
        for slot in range(16):
            await b.entry(qp, slot)
    await b.announce(0, 6)
    await b.ack(0, 2)
    await b.step(2 * wait)
    assert not b.asyncs, "a full CQ that nobody waits for is not in overrun"
    began = b.cycle
    await b.ack(0, 4)
    await b.step(wait - 5)
    assert not b.asyncs, "overrun before cq_wait"
    await b.step(200)
    assert [event[1:] for event in b.asyncs] == [(OVERRUN_EVENT, 5)], b.asyncs
    assert wait <= b.asyncs[0][0] - began <= wait + 100, f"overrun after {b.asyncs[0][0] - began} cycles"
    # QP 0 hears of it by the completion that it lost, all of them by the walk
    assert set(b.errors) == {0, 1, 2}, f"errors {b.errors}"
    for qp in set(b.errors):
        await b.state(qp, "err")
    await b.step(100)
    assert b.cqs[5].seen == 2 and b.ids(0) == b.want(0, {0: 0, 1: 0})
    assert b.retired[-1] == (0, 6), "discarded completions retire their WQEs"
    assert b.counts[CNT_OVERRUN] == 1 and b.counts[CNT_DISCARD] == 4, b.counts
    # the other CQ works, and the CQ itself once it is programmed again
    await b.announce(3, 3)
    await b.ack(3, 3)
    await b.step(60)
    assert b.ids(3) == b.want(3, dict.fromkeys(range(3), 0))
    await b.cq(5, 4)
    await b.qp(4, 5)
    for slot in range(16):
        await b.entry(4, slot)
    await b.announce(4, 3)
    await b.ack(4, 3)
    await b.step(60)
    assert b.ids(4) == b.want(4, dict.fromkeys(range(3), 0))
    assert len(b.asyncs) == 1


@cocotb.test()
async def test_cq_wait_restarts(dut):
    """Room for a waiting completion starts the time anew; a doorbell that gives no room does not."""
    wait = 600
    b = await Bench(dut).start(wait)
    await b.cq(0, 2)
    await b.qp(0, 0)
    for slot in range(16):
        await b.entry(0, slot)
    await b.announce(0, 8)
    await b.ack(0, 4)
    await b.step(wait * 2 // 3)
    assert b.cqs[0].seen == 2
    b.cqs[0].consumed = 1
    assert await b.doorbell(0, 1) == ACCEPTED
    began = b.cycle
    await b.step(wait * 2 // 3)
    assert b.cqs[0].seen == 3 and not b.asyncs, "the first wait had ended"
    assert await b.doorbell(0, 1) == ACCEPTED
    await b.step(wait // 3 + 100)
    assert [event[1:] for event in b.asyncs] == [(OVERRUN_EVENT, 0)], b.asyncs
    assert wait <= b.asyncs[0][0] - began <= wait + 100, f"overrun after {b.asyncs[0][0] - began} cycles"


@cocotb.test()
async def test_cqe_bus_error(dut):
    """A CQE write that the memory refuses: asynchronous event, QPs to ERR, no CQE after it (nic.md 5)."""
    b = await Bench(dut).start()
    await b.cq(9, 64)
    await b.qp(7, 9)
    for slot in range(16):
        await b.entry(7, slot)
    b.refuse = {1, 2}
    await b.announce(7, 1)
    await b.ack(7, 1)
    await b.step(60)
    await b.consume(9, 2)
    await b.announce(7, 3)
    await b.ack(7, 3)
    await b.step(120)
    assert [event[1:] for event in b.asyncs] == [(BUS_EVENT, 9)], b.asyncs
    assert b.errors == [7] and b.counts[CNT_BUS] == 2 and b.counts[CNT_OVERRUN] == 0
    assert not b.events, "a CQE that nobody can see fired the arm"
    await b.state(7, "err")
    await b.announce(7, 5)
    await b.step(60)
    assert b.cqs[9].seen == 3 and b.retired[-1] == (7, 5) and b.counts[CNT_DISCARD] == 2


@cocotb.test()
@cocotb.parametrize(nak=[False, True])
async def test_failure_and_flush(dut, nak):
    """WQEs before a failed one complete, it reports its code as the oldest, later ones are flushed."""
    b = await Bench(dut, stall=0.3).start()
    await b.cq(0, 64)
    await b.qp(0, 0, version=1, start=(1 << 14) - 4)
    for offset in range(8):
        await b.entry(0, offset, ce=int(offset != 2), length=100 + offset, opcode=1, imm=int(offset == 5))
    await b.announce(0, 9)
    await b.fail(0, 5, 0xA6, nak)
    await b.step(50)
    assert not b.cqes and not b.errors, "a failed WQE that is not the oldest waits"
    await b.ack(0, 3)
    await b.step(50)
    assert b.ids(0) == b.want(0, {0: 0, 1: 0}) and not b.errors
    if not nak:  # an older WQE fails at the responder: its code counts, the first failure is flushed
        await b.fail(0, 4, 0xA5, True)
    await b.ack(0, 4 if not nak else 5)
    await b.step(120)
    assert b.errors == [0], "one change to ERR"
    failed, code = (5, 0xA6) if nak else (4, 0xA5)
    codes = {0: 0, 1: 0, 3: 0} | ({4: 0} if nak else {}) | {failed: code}
    codes |= dict.fromkeys(range(failed + 1, 9), FLUSH)
    assert b.ids(0) == b.want(0, codes), b.ids(0)
    await b.state(0, "err")
    await b.announce(0, 12)
    await b.step(60)
    codes |= dict.fromkeys(range(9, 12), FLUSH)
    assert b.ids(0) == b.want(0, codes), "doorbells in ERR are flushed"
    for cqe in b.cqes:
        if cqe.code:
            assert cqe.length == 0
            assert (cqe.opcode, cqe.with_imm) == ((0, 0) if cqe.code == FLUSH else (1, int(nak)))
    assert b.counts[CNT_FLUSH] == list(codes.values()).count(FLUSH)
    assert b.counts[CNT_WQE] == 12


@cocotb.test()
async def test_error_state_from_outside(dut):
    """ERR that no WQE caused: acknowledged WQEs complete, all others are flushed; later ACKs are ignored."""
    b = await Bench(dut).start()
    await b.cq(0, 4)
    await b.qp(3, 0)
    for offset in range(10):
        await b.entry(3, offset)
    await b.announce(3, 10)
    await b.ack(3, 6)
    await b.step(60)
    assert b.cqs[0].seen == 4
    await b.fail(3, 8, 0xA7)
    await b.state(3, "err")
    await b.step(30)
    while b.cqs[0].seen < 10:
        await b.consume(0)
        await b.step(40)
        if b.cqs[0].seen == 8:
            await b.ack(3, 10)
    assert b.ids(3) == b.want(3, dict.fromkeys(range(6), 0) | dict.fromkeys(range(6, 10), FLUSH)), b.ids(3)
    assert not b.errors


@cocotb.test()
async def test_ignore_overrun(dut):
    """All CQEs go to slot 0 without room, the owner bit follows the WQE's index (nic.md 2, device.md 2.6)."""
    b = await Bench(dut).start()
    for qp, (version, depth) in enumerate(((2, 8), (1, 8), (2, 1 << 15), (2, 1 << 17), (1, 1 << 13))):
        await b.cq(qp, depth, ignore=True)
        start = b.rng.choice((0, depth - 5, 2 * depth - 5)) % (1 << (14 if version == 1 else 18))
        await b.qp(qp, qp, version, start)
        for slot in range(16):
            await b.entry(qp, slot)
        await b.announce(qp, 40)
        await b.ack(qp, 40)
        await b.step(140)
        got = [cqe for cqe in b.cqes if cqe.qpn == qp + FIRST_QPN]
        assert len(got) == 40 and {cqe.slot for cqe in got} == {0}
        for offset, cqe in enumerate(got):
            owner = (cqe.wqe_id >> 3) // depth & 1
            assert cqe.owner == owner, f"V{version} depth {depth} index {b.qps[qp].at(offset)}: {cqe.owner}"


@cocotb.test()
async def test_reset(dut):
    """A reset waits for the QP's CQEs under way, whatever others do; none follows; then all starts afresh."""
    b = await Bench(dut, latency=200).start()
    await b.cq(0, 64)
    await b.cq(1, 512)
    await b.qp(0, 0, start=3)
    await b.qp(1, 1)
    for qp in range(2):
        for slot in range(16):
            await b.entry(qp, slot)
    await b.announce(0, 10)
    await b.ack(0, 3)
    await b.step(8)
    b.holding = True
    await b.state(0, "reset")
    b.dut.drain_valid_i.value = 1
    b.dut.drain_qpi_i.value = 0
    await b.ack(0, 10)
    began, last_busy, posted = b.cycle, 0, 0
    for _ in range(60):
        posted += 4
        await b.announce(1, posted)
        await b.ack(1, posted)
        for _ in range(8):
            await b.step()
            last_busy = b.cycle if b.busy else last_busy
    written = b.cqs[0].seen
    assert written <= 3, "no completion starts while the reset waits"
    assert 190 <= last_busy - began <= 230, f"busy for {last_busy - began} cycles, the responses take 200"
    b.dut.drain_valid_i.value = 0
    await b.step(qp_reset_i=1, ctx_qpi_i=0)
    await b.step(50)
    assert b.cqs[0].seen == written, "a CQE after the reset"
    b.cqes.clear()
    await b.qp(0, 0, start=77)
    await b.step(20)
    await b.announce(0, 2)
    await b.ack(0, 2)
    await b.step(60)
    assert b.ids(0) == b.want(0, {0: 0, 1: 0}), b.ids(0)
