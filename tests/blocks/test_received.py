"""Completion of receive WQEs (rtl/completion/recv_pend.sv, comp_eng.sv): receive CQEs beside those of sends.

Sweep: V1 and V2, receive indices over the wraps at 2^13 and 2^17, SEND and WRITE with immediate, SE, up to
sixteen outcomes that wait for room, receive CQs of their own and shared with sends; ERR with messages on
their way that end well or not, doorbells in ERR, reset with outcomes that wait.
Stimulus: outcomes in the order of the receive queue as the responder gives them, RQ doorbells, consumer
indices of the CQs at random times.
Checks: all bytes of every CQE against what the test put in, order per queue, none missing, none twice; the
index that is given back to the doorbell judge not later than the offer of the CQE's data.
Not proved here: that outcomes are right (nic/test_send), room for sixteen (the assertion in recv_pend).
"""

from collections import Counter, deque

import cocotb

from tests.blocks.test_completion import BENCH, CNT_CQE, CNT_FLUSH, CNT_WQE, FIRST_QPN, FLUSH, Bench

__all__ = ["BENCH"]
RECV_MR, RECV_LEN = 0xD6, 0xC0
MOST = 16


class Receiver:
    """Receive queue of one QP: what it was given and what its CQEs have to say."""

    def __init__(self, bench: Bench, qp: int, start: int) -> None:
        self.b, self.qp, self.start = bench, qp, start
        self.posted = self.begun = 0
        self.wanted: deque[tuple[int, ...]] = deque()

    def at(self, offset: int) -> int:
        """Index of the receive WQE `offset` after the first (17 bits)."""
        return (self.start + offset) % (1 << 17)

    async def post(self, count: int) -> None:
        """RQ doorbell."""
        self.posted += count
        await self.b.step(rqdb_valid_i=1, rqdb_qpi_i=self.qp, rqdb_idx_i=self.at(self.posted))

    async def begin(self) -> None:
        """A message is on its way to its CQE."""
        await self.b.step(begins_valid_i=1, begins_qpi_i=self.qp)

    async def end(self, good: bool = True, code: int = 0) -> None:
        """It has its outcome."""
        rng = self.b.rng
        write, imm = rng.getrandbits(1), rng.getrandbits(32)
        with_imm, se, length = write or rng.getrandbits(1), rng.getrandbits(1), rng.getrandbits(32)
        if good:
            self.expect(code, write, with_imm, se, imm if with_imm else 0, length)
        await self.b.step(
            ends_valid_i=1,
            ends_qpi_i=self.qp,
            ends_good_i=good,
            got_code_i=code,
            got_write_i=write,
            got_with_imm_i=with_imm,
            got_se_i=se,
            got_imm_i=imm,
            got_len_i=length,
        )

    def expect(self, code: int, *fields: int) -> None:
        """One more CQE: code, then (write, with_imm, se, imm, length) if it is good."""
        wide = self.b.qps[self.qp].version == 2
        wqe_id = self.at(self.begun) * 8 % (1 << (20 if wide else 16))
        self.wanted.append((wqe_id, code, *(fields if not code else (0,) * 5)))
        self.begun += 1

    def seen(self) -> list[tuple[int, ...]]:
        """The same of the CQEs that were written."""
        return [
            (c.wqe_id, c.code, c.opcode, c.with_imm, c.se, c.imm, c.length)
            for c in self.b.cqes
            if c.qpn == self.qp + FIRST_QPN and c.receive
        ]

    def check(self) -> None:
        """All are there, in order, and all indices are given back."""
        assert self.seen() == list(self.wanted), f"QP {self.qp}"
        back = [index for qp, index in self.b.received if qp == self.qp]
        assert back == [self.at(k + 1) for k in range(len(self.wanted))], f"QP {self.qp}: indices"


@cocotb.test()
async def test_receive_cqes(dut):
    """Outcomes of many QPs, CQs that are small and slow, sends to the same CQs; every field, every order."""
    b = await Bench(dut, stall=0.3).start()
    await b.cq(0, 8, 64, (1 << 32) - 3)
    await b.cq(1, 2, 32)
    await b.cq(2, 4)
    queues = []
    for qp, (version, start) in enumerate(((2, (1 << 17) - 20), (1, (1 << 13) - 20), (2, 0), (1, 99))):
        await b.qp(qp, 0, version, recv=qp % 3, rq_start=start)
        queues.append(Receiver(b, qp, start))
        for slot in range(16):
            await b.entry(qp, slot)
    sends, total = Counter(), 60
    cycles = 0
    while any(queue.begun < total for queue in queues):
        cycles += 1
        assert cycles < 20_000, [queue.begun for queue in queues]
        queue = b.rng.choice(queues)
        if queue.begun < total and queue.begun - len(queue.seen()) < MOST:
            if queue.posted == queue.begun:
                await queue.post(b.rng.randrange(1, 8))
            await queue.begin()
            await b.step(b.rng.randrange(1, 4))
            await queue.end()
        if b.rng.random() < 0.2 and sends[queue.qp] < 30:
            sends[queue.qp] += 1
            await b.announce(queue.qp, sends[queue.qp])
            await b.ack(queue.qp, sends[queue.qp])
        if b.rng.random() < 0.4:
            await b.consume(b.rng.randrange(3))
    for _ in range(200):
        await b.consume(b.rng.randrange(3))
        await b.step(20)
    for queue in queues:
        queue.check()
        own = [c for c in b.cqes if c.qpn == queue.qp + FIRST_QPN and not c.receive]
        assert [(c.wqe_id, c.code) for c in own] == b.want(queue.qp, dict.fromkeys(range(sends[queue.qp]), 0))
        assert {c.cqn for c in b.cqes if c.qpn == queue.qp + FIRST_QPN and c.receive} == {queue.qp % 3}
    done = sum(sends.values()) + total * len(queues)
    assert b.counts[CNT_WQE] == b.counts[CNT_CQE] == done


@cocotb.test()
async def test_flush_waits_for_messages(dut):
    """In ERR a receive WQE is flushed when no message is on its way any more, and those end as they end."""
    b = await Bench(dut).start()
    await b.cq(0, 64)
    for qp, late in enumerate((True, False)):
        await b.qp(qp, 0, recv=0)
        queue = Receiver(b, qp, 0)
        await queue.post(8)
        for _ in range(3):
            await queue.begin()
            await queue.end()
        await queue.begin()
        await queue.begin()
        await b.state(qp, "err")
        await b.step(100)
        assert len(queue.seen()) == 3, "flushed in front of a message on its way"
        await queue.end(late)
        await b.step(100)
        assert len(queue.seen()) == 3 + late
        await queue.end(False)
        for _ in range(8 - queue.begun):
            queue.expect(FLUSH)
        await b.step(100)
        queue.check()
        await queue.post(3)
        for _ in range(3):
            queue.expect(FLUSH)
        await b.step(100)
        queue.check()
    assert b.counts[CNT_FLUSH] == (8 - 4 + 3) + (8 - 3 + 3)


@cocotb.test()
async def test_failed_receive(dut):
    """The receive WQE of a message that its buffer refuses has its code and nothing of the message."""
    b = await Bench(dut).start()
    await b.cq(0, 64)
    for qp, code in enumerate((RECV_MR, RECV_LEN)):
        await b.qp(qp, 0, recv=0)
        queue = Receiver(b, qp, 0)
        await queue.post(5)
        await queue.begin()
        await queue.end()
        await queue.begin()
        await queue.end(code=code)
        await b.state(qp, "err")
        for _ in range(3):
            queue.expect(FLUSH)
        await b.step(200)
        queue.check()


@cocotb.test()
async def test_reset_drops_outcomes(dut):
    """Outcomes that wait for room when their QP is reset have no CQE, and the QP starts anew."""
    b = await Bench(dut).start()
    await b.cq(0, 2)
    await b.qp(0, 0, recv=0)
    queue = Receiver(b, 0, 0)
    await queue.post(10)
    for _ in range(10):
        await queue.begin()
        await queue.end()
    await b.step(100)
    assert len(queue.seen()) == 2
    b.holding = True
    await b.step(drain_valid_i=1, drain_qpi_i=0)
    dut.drain_valid_i.value = 1
    for _ in range(100):
        await b.step()
        if not b.busy:
            break
    await b.step(qp_reset_i=1, ctx_qpi_i=0)
    dut.drain_valid_i.value = 0
    await b.state(0, "reset")
    await b.consume(0)
    await b.step(100)
    assert len(queue.seen()) == 2, "a CQE of a QP in RESET"
    b.cqes.clear()
    b.received.clear()
    await b.qp(0, 0, recv=0, rq_start=50)
    queue = Receiver(b, 0, 50)
    await queue.post(1)
    await queue.begin()
    await queue.end()
    await b.step(50)
    queue.check()
