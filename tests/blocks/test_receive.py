"""Slots of receive queues (rtl/receive): read ahead, ready for the responder, one AXI ID with another client.

Sweep: RQ depths 2 to 1024 at every 16-byte base, indices over the wrap at 2^17, one to many slots a doorbell,
takers that are faster and slower than the memory, up to sixteen WQEs taken without CQE, read errors,
latencies of 1 to 60 cycles; QPs in RTS, in ERR, reset while a slot is read.
Stimulus: slots are written just before their doorbell, so a slot that was read before it was announced is
found; the other client asks for bursts of one to sixteen beats all the time.
Checks: each WQE that is shown as loaded against its slot in memory; readiness against posted, taken and
retired; addresses of reads; each beat with the client that asked for it, in order.
Timing: a message waits at most as long as a read and a look at every QP. Not proved: what the responder does.
"""

import random
from collections import deque

import cocotb
from cocotb.triggers import RisingEdge

BENCH = {
    "top": "receive_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/*.sv",
        "rtl/responder/resp_pkg.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/receive/rq_slots.sv",
        "rtl/receive/rd_share.sv",
        "tests/blocks/sv/receive_bench.sv",
    ],
}
WRAP = 1 << 17
MOST = 16


class Rq:
    """A receive queue as software sees it, indices counted from its first WQE on."""

    def __init__(self, base: int, log: int, start: int) -> None:
        self.base, self.depth, self.start = base, 1 << log, start
        self.posted = self.taken = self.retired = 0
        self.slots: dict[int, bytes] = {}

    def index(self, offset: int) -> int:
        """17-bit index of a WQE."""
        return (self.start + offset) % WRAP

    def slot(self, offset: int) -> int:
        """Address of its slot."""
        return self.base + 16 * (self.index(offset) % self.depth)

    @property
    def hull(self) -> tuple[int, int]:
        """The beats of the ring."""
        return self.base & ~63, (self.base + 16 * self.depth + 63) & ~63


class Bench:
    """Memory, the other client and the receive queues; one `step` a cycle."""

    def __init__(self, dut, latency: int = 20, errors: float = 0.0) -> None:
        self.dut, self.latency, self.errors = dut, latency, errors
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.rqs: dict[int, Rq] = {}
        self.memory: dict[int, bytes] = {}
        self.bad: set[int] = set()
        self.cycle = self.others = self.failed = self.counted = self.reads = 0
        self.answers: deque[tuple[int, int, bool, bytes, bool, bool]] = deque()
        self.rts = 0
        self.waits: tuple[int, int] | None = None

    async def start(self) -> "Bench":
        """Reset."""
        for handle in self.dut:
            if handle._name.endswith("_i") and handle._name not in ("clk_i", "rst_ni"):
                handle.value = 0
        self.dut.rst_ni.value = 0
        await RisingEdge(self.dut.clk_i)
        await RisingEdge(self.dut.clk_i)
        self.dut.rst_ni.value = 1
        await self.step()
        return self

    def beat(self, addr: int) -> bytes:
        """64 bytes of memory."""
        return b"".join(self.memory.get(addr + 16 * k, b"\xee" * 16) for k in range(4))

    async def step(self, **pulses: int) -> None:
        """One cycle with these inputs set in it."""
        dut = self.dut
        for name, value in pulses.items():
            getattr(dut, name).value = value
        # a client limits what it has in flight
        if self.waits is None and len(self.answers) < 40 and self.rng.random() < 0.3:
            self.waits = (self.rng.randrange(1 << 40) << 12, self.rng.choice((0, 1, 3, 15)))
            dut.other_addr_i.value, dut.other_len_i.value = self.waits
            dut.other_valid_i.value = 1
        dut.req_ready_i.value = self.rng.random() < 0.7
        answer = self.answers[0] if self.answers and self.answers[0][0] <= self.cycle else None
        dut.beat_valid_i.value = answer is not None
        if answer is not None:
            dut.beat_data_i.value = int.from_bytes(answer[3], "little")
            dut.beat_last_i.value = answer[4]
            dut.beat_err_i.value = answer[5]
        await RisingEdge(dut.clk_i)
        self.cycle += 1
        self.counted += int(dut.cnt_bus_o.value)
        if answer is not None:
            self.answers.popleft()
            assert (int(dut.other_beat_o.value), int(dut.own_beat_o.value)) == (answer[2], not answer[2])
            self.failed += answer[5] and not answer[2]
        if int(dut.req_valid_o.value) and int(dut.req_ready_i.value):
            self._burst(int(dut.req_addr_o.value), int(dut.req_len_o.value))
        for name in pulses:
            if name.endswith("_valid_i") or name == "look_i":
                getattr(dut, name).value = 0

    def _burst(self, addr: int, length: int) -> None:
        other = self.waits is not None and int(self.dut.other_ready_o.value)
        if other:
            assert (addr, length) == self.waits, "the other client's burst"
            self.waits = None
            self.dut.other_valid_i.value = 0
            self.others += 1
        else:
            owner = [q for q, rq in self.rqs.items() if rq.hull[0] <= addr < rq.hull[1]]
            assert len(owner) == 1 and length == 0 and addr % 64 == 0, f"read of {addr:#x}"
            rq = self.rqs[owner[0]]
            posted = {rq.slot(k) & ~63 for k in range(rq.taken, rq.posted)}
            assert addr in posted, f"QP {owner[0]}: a beat without an announced slot"
            assert self.rts >> owner[0] & 1, f"QP {owner[0]}: a slot is read outside of RTS"
            self.reads += 1
        at = max(self.cycle + self.rng.randrange(1, self.latency), self.answers[-1][0] if self.answers else 0)
        for k in range(length + 1):
            self.answers.append(
                (at + k, addr, bool(other), self.beat(addr + 64 * k), k == length, addr + 64 * k in self.bad)
            )

    async def setup(self, qp: int, log: int, start: int, offset: int) -> Rq:
        """Program a QP; its ring begins at this multiple of 16 bytes."""
        rq = self.rqs[qp] = Rq((qp + 1 << 20) + 16 * offset, log, start)
        await self.step(
            set_valid_i=1, ctx_qpi_i=qp, rq_base_i=rq.base, rq_log_i=log, rq_start_i=rq.start % WRAP
        )
        self.rts |= 1 << qp
        self.dut.qp_rts_i.value = self.rts
        await self.step()
        return rq

    async def post(self, qp: int, count: int) -> None:
        """Write receive WQEs, then ring."""
        rq = self.rqs[qp]
        for offset in range(rq.posted, rq.posted + count):
            data = self.rng.randbytes(16)
            self.memory[rq.slot(offset)] = rq.slots[offset] = data
            if self.rng.random() < self.errors:
                self.bad.add(rq.slot(offset) & ~63)
        rq.posted += count
        await self.step(db_valid_i=1, db_qpi_i=qp, db_idx_i=rq.index(rq.posted))

    async def look(self, qp: int) -> bool:
        """What the responder would do with a message now; whether the next WQE was taken."""
        rq, dut = self.rqs[qp], self.dut
        await self.step()  # outputs are those of the cycle that ended
        marked, ready, loaded = (int(h.value) >> qp & 1 for h in (dut.marked_o, dut.ready_o, dut.loaded_o))
        if marked:
            return False
        want = rq.taken < rq.posted and rq.taken - rq.retired < MOST
        assert ready == want, f"QP {qp}: ready {ready}, {rq.posted} {rq.taken} {rq.retired}"
        if not ready or not loaded:
            return False
        await self.step(look_i=1, look_qpi_i=qp)
        await self.step()
        index, err = int(dut.next_idx_o.value), int(dut.next_err_o.value)
        assert index == rq.index(rq.taken), f"QP {qp}: index {index}"
        length, lkey, addr = (int(h.value) for h in (dut.next_len_o, dut.next_lkey_o, dut.next_addr_o))
        got = length.to_bytes(4, "little") + lkey.to_bytes(4, "little") + addr.to_bytes(8, "little")
        if not err:
            assert got == rq.slots[rq.taken], f"QP {qp}: WQE {rq.taken}"
        assert err <= (rq.slot(rq.taken) & ~63 in self.bad), f"QP {qp}: error of WQE {rq.taken}"
        rq.taken += 1
        await self.step(take_valid_i=1, take_qpi_i=qp, take_idx_i=rq.index(rq.taken))
        return True

    async def retire(self, qp: int, count: int) -> None:
        """CQEs were given."""
        rq = self.rqs[qp]
        for _ in range(count):
            rq.retired += 1
            await self.step(retire_valid_i=1, retire_qpi_i=qp, retire_idx_i=rq.index(rq.retired))


@cocotb.test()
@cocotb.parametrize(latency=[3, 60], errors=[0.0, 0.05])
async def test_every_slot(dut, latency, errors):
    """All WQEs of many queues, each taken once and as it stands in memory; several laps, every alignment."""
    b = await Bench(dut, latency, errors).start()
    queues = (
        (0, 1, WRAP - 3, 0), (1, 2, 7, 1), (5, 3, WRAP - 9, 2), (17, 4, 0, 3), (40, 6, WRAP - 40, 5),
        (63, 10, 1, 0),
    )  # fmt: skip
    for setup in queues:
        await b.setup(*setup)
    total = 90
    while any(rq.retired < total for rq in b.rqs.values()):
        assert b.cycle < 60_000, {q: (rq.posted, rq.taken, rq.retired) for q, rq in b.rqs.items()}
        qp = b.rng.choice(list(b.rqs))
        rq = b.rqs[qp]
        room = min(rq.depth - (rq.posted - rq.retired), total - rq.posted)
        if room and b.rng.random() < 0.3:
            await b.post(qp, b.rng.randrange(1, room + 1))
        if rq.retired < rq.taken and b.rng.random() < 0.4:
            await b.retire(qp, b.rng.randrange(1, rq.taken - rq.retired + 1))
        await b.look(qp)
    assert b.others > 100 and b.reads >= 6 * total // 4
    assert b.counted == b.failed and bool(b.failed) == bool(errors)


@cocotb.test()
async def test_sixteen_at_most(dut):
    """The seventeenth message is refused until a CQE is given, and then exactly one is let in."""
    b = await Bench(dut, 5).start()
    await b.setup(3, 6, 100, 0)
    await b.post(3, 40)
    for _ in range(600):
        await b.look(3)
        await b.step()
    assert b.rqs[3].taken == MOST
    for expected in range(MOST + 1, MOST + 9):
        await b.retire(3, 1)
        for _ in range(100):
            await b.look(3)
            await b.step()
        assert b.rqs[3].taken == expected


@cocotb.test()
async def test_reset_while_a_slot_is_read(dut):
    """The reset waits for the read; the QP's next life starts with nothing of the former one."""
    b = await Bench(dut, 60).start()
    for life in range(12):
        await b.setup(9, 3, WRAP - 2 + 5 * life, life % 4)
        await b.post(9, 5)
        for _ in range(b.rng.randrange(0, 70)):
            await b.look(9)
            await b.step()
        dut.drain_valid_i.value, dut.drain_qpi_i.value = 1, 9
        for _ in range(200):
            await b.step()
            if not int(dut.drain_busy_o.value):
                break
        else:
            raise AssertionError("the reset never ends")
        await b.step(reset_valid_i=1, ctx_qpi_i=9)
        dut.drain_valid_i.value = 0
        await b.step()
        assert not (int(dut.ready_o.value) | int(dut.marked_o.value)) >> 9 & 1


@cocotb.test()
async def test_err_reads_nothing(dut):
    """Doorbells of a QP in ERR lead to no read of its slots."""
    b = await Bench(dut, 10).start()
    await b.setup(2, 4, 0, 1)
    b.rts = 0
    dut.qp_rts_i.value = 0
    await b.post(2, 9)
    for _ in range(100):
        await b.step()
    assert b.reads == 0
