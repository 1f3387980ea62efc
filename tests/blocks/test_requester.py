"""The whole requester (rtl/requester with fetch and completion): READ, atomics, fence, limits, failures.

Sweep: both versions, all MTUs, READ lengths on both sides of every packet border up to 2^31, the six atomics,
max_rd_atomic 0 to 16, fences behind every kind, windows on both sides of their border, every failure that a
response can bring at every place of a READ, up to 12 QPs on 8 lanes with some that wait; PSNs and indices
across their wraps; ERR, flush, reset and reuse in the middle.
Stimulus: WQEs in a ring as software writes them, doorbells, responses as the data path hands them on.
Checks: every field of every packet job and of what a READ or atomic expects, against the posted WQEs; which
WQEs start when; every CQE.
Timing: a lane that waits costs the others nothing: cycles per packet.
Not proved here: what the data path makes of jobs and responses (tests/nic); retries, which do not exist yet.
"""

from dataclasses import replace

import cocotb

from tests.blocks.requester_driver import (
    ACCESS,
    ACK,
    CNT_DROP_RESPONSE,
    CNT_NAK_RX,
    CNT_RNR,
    DMA,
    FLUSH,
    FORMAT,
    GATHER,
    INV,
    KEY_BAD,
    KEY_READ_ONLY,
    LENGTH,
    LOCAL,
    NAK,
    OK,
    REGION,
    REGION_BYTES,
    REMOTE,
    RNR,
    RSP_LEN,
    RSP_OP,
    SCATTER,
    VA,
    Bench,
    Qp,
)
from tests.blocks.requester_driver import (
    BENCH as BENCH,
)
from tests.blocks.wqe_slot import ATOMICS, CAS64, FA64, MCAS32, MFA32, READ, WRITE

#: cycles after which everything that can happen on its own has happened
QUIET = 120


@cocotb.test()
@cocotb.parametrize(version=[1, 2])
async def test_reads(dut, version):
    """A READ is one packet, takes the PSNs of its responses, and completes with its length after the last."""
    b = await Bench(dut).start()
    top = 1 << (14 if version == 1 else 18)
    for num, mtu in enumerate((256, 512, 1024, 2048, 4096)):
        # PSNs and indices wrap on the way
        qp = await b.qp(num, version=version, mtu=mtu, start=top - 5, psn=(1 << 24) - 9)
        lengths = (0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu - 1, 3 * mtu, 3 * mtu + 1, 17 * mtu)
        wqes = [b.wqe(op, n) for n in lengths for op in (READ, WRITE)]
        for at in range(0, len(wqes), 6):
            await b.post(qp, *wqes[at : at + 6])
            await b.step(QUIET)
            count = len(qp.posted)
            b.check_jobs(qp, count)
            assert len(b.cqes_of(qp)) == at, "a CQE before any response"
            for offset in range(at, count):
                if qp.posted[offset].op == READ:
                    for k in range(qp.psns(offset)):
                        b.data(qp, offset, k)
                else:
                    b.respond(qp, ACK, qp.last(offset))
            await b.step(QUIET)
            b.check_cqes(qp, dict.fromkeys(range(count), OK))
        want = [qp.expect(i) for i, w in enumerate(qp.posted) if w.op == READ]
        assert [e for e in b.expects if e.qp == num] == want
    assert not b.errors and b.counts[CNT_DROP_RESPONSE] == 0


@cocotb.test()
@cocotb.parametrize(version=[1, 2])
async def test_atomics(dut, version):
    """Each atomic: opcode, operands and addresses of its packet, one PSN, what it expects, and its CQE."""
    b = await Bench(dut, stall=0.3).start()
    qp = await b.qp(5, version=version, start=3, psn=(1 << 24) - 7, log=5)
    for _ in range(6):
        at = len(qp.posted)
        ops = [*ATOMICS, b.rng.choice(list(ATOMICS)), WRITE]
        b.rng.shuffle(ops)
        # the result may lie at any address
        await b.post(qp, *(b.wqe(op, laddr=REGION + b.rng.randrange(1 << 20)) for op in ops))
        await b.step(QUIET)
        count = len(qp.posted)
        b.check_jobs(qp, count)
        for offset in range(at, count):
            if qp.posted[offset].op == WRITE:
                b.respond(qp, ACK, qp.last(offset))
            else:
                b.data(qp, offset)
        await b.step(QUIET)
        b.check_cqes(qp, dict.fromkeys(range(count), OK))
    assert b.expects == [qp.expect(i) for i, w in enumerate(qp.posted) if w.op in ATOMICS]


@cocotb.test()
async def test_longest_reads(dut):
    """READs up to 2^31 bytes: number of PSNs, CQE length; the next WQE starts behind all of them."""
    b = await Bench(dut).start()
    region = {"mr_base_i": 0, "mr_length_i": 1 << 64, "mr_tag_i": 0x5C, "mr_write_i": 1}
    await b.step(mr_set_i=1, ctx_mrn_i=3, **region)
    for num, (mtu, length) in enumerate(
        ((256, 1 << 31), (4096, 1 << 31), (256, (1 << 31) - 1), (512, 1 << 30))
    ):
        qp = await b.qp(num, mtu=mtu, psn=b.rng.getrandbits(24))
        await b.post(qp, b.wqe(READ, length, laddr=0), b.wqe(WRITE))
        await b.step(QUIET)
        assert b.expects[-1] == qp.expect(0) and qp.psns(0) == -(-length // mtu)
        if qp.psns(0) < 1 << 22:
            b.check_jobs(qp, 2)
        else:
            b.check_jobs(qp, 1)
        b.data(qp, 0)
        await b.step(QUIET)
        b.check_jobs(qp, 2)
        b.respond(qp, ACK, qp.last(1))
        await b.step(QUIET)
        b.check_cqes(qp, {0: OK, 1: OK})


@cocotb.test()
async def test_data_of_a_long_read_moves_the_window(dut):
    """Middle packets of a READ free PSNs: a WQE behind it starts exactly when fewer than 2^22 are out."""
    b = await Bench(dut).start()
    limit = 1 << 22
    for num, (behind, takes) in enumerate(((WRITE, 1), (READ, 3), (CAS64, 1), (READ, 5000))):
        qp = await b.qp(num, mtu=256, psn=b.rng.getrandbits(24))
        await b.post(qp, b.wqe(READ, (limit + 10000) * 256, laddr=REGION), b.wqe(behind, takes * 256))
        await b.step(QUIET)
        b.check_jobs(qp, 1)
        # unacked + takes < 2^22 with unacked = total - free
        free = limit + 10000 + takes - limit + 1
        for upto in (0, free - 2):  # one packet short of it
            b.data(qp, 0, upto)
            await b.step(QUIET)
            b.check_jobs(qp, 1)
        b.data(qp, 0, free - 1)
        await b.step(QUIET)
        b.check_jobs(qp, 2)
        assert not b.cqes_of(qp)


@cocotb.test()
async def test_window_border(dut):
    """A READ starts if unacknowledged PSNs and its own stay below 2^22, or alone."""
    b = await Bench(dut).start()
    limit = 1 << 22
    region = {"mr_base_i": 0, "mr_length_i": 1 << 64, "mr_tag_i": 0x5C, "mr_write_i": 1}
    await b.step(mr_set_i=1, ctx_mrn_i=3, **region)
    for num, (first, psns, goes) in enumerate(
        (
            (1, limit - 2, 1),
            (1, limit - 1, 0),
            (3, limit - 4, 1),
            (3, limit - 3, 0),
            (1, limit, 0),
            (1, 2 * limit, 0),
        )
    ):
        for op in (WRITE, READ):
            qp = await b.qp(2 * num + (op == READ), mtu=256, psn=b.rng.getrandbits(24))
            await b.post(qp, b.wqe(op, 256 * first), b.wqe(READ, 256 * psns, laddr=0))
            await b.step(QUIET)
            b.check_jobs(qp, 1 + goes)
            if op == WRITE:
                b.respond(qp, ACK, qp.last(0))
            else:
                b.data(qp, 0)
            await b.step(QUIET)
            b.check_jobs(qp, 2)
            b.data(qp, 1)
            await b.step(QUIET)
            b.check_cqes(qp, {0: OK, 1: OK})


@cocotb.test()
@cocotb.parametrize(limit=[1, 2, 3, 7, 15, 16])
async def test_rd_limit(dut, limit):
    """At most max_rd_atomic READs and atomics are out; only the last data of one lets the next start."""
    b = await Bench(dut).start()
    qp = await b.qp(9, max_rd=limit, start=11)
    kinds = (READ, CAS64, READ, MFA32, FA64)
    await b.post(qp, *(b.wqe(kinds[i % 5], 3000) for i in range(40)))
    await b.step(2 * QUIET)
    for done in range(40):
        b.check_jobs(qp, min(40, done + limit))
        if qp.psns(done) > 1:
            b.data(qp, done, 0)
            await b.step(40)
            b.check_jobs(qp, min(40, done + limit))
        b.data(qp, done)
        await b.step(60)
        b.check_cqes(qp, dict.fromkeys(range(done + 1), OK))


@cocotb.test()
async def test_limit_lets_writes_pass(dut):
    """A READ that waits for the limit holds what is behind it: order within the QP stays."""
    b = await Bench(dut).start()
    qp = await b.qp(0, max_rd=1)
    await b.post(qp, b.wqe(READ), b.wqe(WRITE), b.wqe(READ), b.wqe(WRITE))
    await b.step(QUIET)
    b.check_jobs(qp, 2)
    b.data(qp, 0)
    await b.step(QUIET)
    b.check_jobs(qp, 4)


@cocotb.test()
@cocotb.parametrize(op=[READ, CAS64, MFA32])
async def test_max_rd_zero(dut, op):
    """max_rd_atomic 0: ab for a READ or atomic, in its turn, never sent; WRITEs work."""
    b = await Bench(dut).start()
    qp = await b.qp(2, max_rd=0, psn=77)
    # a bad local key behind it in the order of the checks changes nothing
    await b.post(qp, b.wqe(WRITE), b.wqe(WRITE), b.wqe(op, lkey=KEY_BAD), b.wqe(WRITE))
    await b.step(QUIET)
    b.check_jobs(qp, 2)
    b.respond(qp, ACK, qp.last(1))
    await b.step(QUIET)
    b.check_cqes(qp, {0: OK, 1: OK, 2: FORMAT, 3: FLUSH})
    assert not b.expects and b.errors == [2]


@cocotb.test()
async def test_fence(dut):
    """fence_mode 1 waits for the READs and atomics before it, for nothing else; 0, 2 and 3 do not wait."""
    b = await Bench(dut).start()
    num = 0
    for before in ((READ,), (CAS64,), (READ, MCAS32), (MFA32, WRITE, READ, WRITE)):
        for behind in (WRITE, READ, FA64):
            for mode in range(4):
                qp = await b.qp(num, start=num, psn=b.rng.getrandbits(24))
                num += 1
                await b.post(qp, b.wqe(WRITE), *(b.wqe(op, 2100) for op in before), b.wqe(behind, fence=mode))
                total = len(before) + 2
                await b.step(QUIET)
                if mode != 1:
                    b.check_jobs(qp, total)
                    continue
                b.check_jobs(qp, total - 1)
                reads = [i for i in range(1, total - 1) if qp.posted[i].op != WRITE]
                for offset in reads:
                    if qp.posted[offset].op == READ:
                        b.data(qp, offset, 0)
                        b.data(qp, offset, 1)
                    await b.step(40)
                    b.check_jobs(qp, total - 1)
                    b.data(qp, offset)
                    await b.step(60)
                    b.check_jobs(qp, total - (offset != reads[-1]))
    # a WRITE alone holds no fence, neither does a READ that has ended
    qp = await b.qp(num, start=5)
    await b.post(qp, b.wqe(READ))
    await b.step(40)
    b.data(qp, 0)
    await b.step(40)
    await b.post(qp, b.wqe(WRITE), b.wqe(WRITE, fence=1), b.wqe(READ, fence=1))
    await b.step(QUIET)
    b.check_jobs(qp, 4)


@cocotb.test()
async def test_release_in_every_cycle(dut):
    """The data that ends a fence, a limit or a full window comes in any cycle around the decision to wait."""
    b = await Bench(dut).start()
    region = {"mr_base_i": 0, "mr_length_i": 1 << 64, "mr_tag_i": 0x5C, "mr_write_i": 1}
    await b.step(mr_set_i=1, ctx_mrn_i=3, **region)
    num = 0
    for kind in ("fence", "limit", "window"):
        for delay in range(40):
            qp = await b.qp(num % 64, max_rd=1 if kind == "limit" else 16, psn=b.rng.getrandbits(24), mtu=256)
            read = b.wqe(READ, 256 << 22, laddr=0) if kind == "window" else b.wqe(READ)
            await b.post(qp, read)
            await b.step(QUIET)
            b.jobs.clear()
            await b.post(qp, b.wqe(WRITE if kind != "limit" else READ, fence=kind == "fence"))
            await b.step(delay)
            b.data(qp, 0)
            await b.step(60)
            b.check_jobs(qp, 0, [1])
            b.respond(qp, ACK, qp.last(1))
            if kind == "limit":
                b.data(qp, 1)
            await b.step(40)
            b.check_cqes(qp, {0: OK, 1: OK})
            b.cqes.clear()
            b.jobs.clear()
            await b.reset(num % 64)
            num += 1


@cocotb.test()
async def test_ack_stops_at_a_read(dut):
    """ACKs, NAKs of code 0 and RNR NAKs that pass an unanswered READ or atomic acknowledge only up to it."""
    b = await Bench(dut).start()
    num = 0
    for op in (READ, CAS64, MFA32):
        for kind in (ACK, NAK, RNR):
            qp = await b.qp(num, start=60, psn=(1 << 24) - 3)
            num += 1
            await b.post(qp, b.wqe(WRITE), b.wqe(WRITE), b.wqe(op, 2500), b.wqe(WRITE), b.wqe(WRITE))
            await b.step(QUIET)
            b.respond(qp, kind, qp.last(4))
            await b.step(QUIET)
            b.check_cqes(qp, {0: OK, 1: OK})
            # what is covered is covered: the same once more counts as dropped
            b.respond(qp, ACK, qp.last(1))
            await b.step(QUIET)
            assert b.counts[CNT_DROP_RESPONSE] == num, b.counts
            if op == READ:  # and so does one for the middle of it
                b.data(qp, 2, 0)
                b.respond(qp, ACK, qp.first(2) + 1)
                await b.step(QUIET)
                b.check_cqes(qp, {0: OK, 1: OK})
            b.data(qp, 2)
            await b.step(QUIET)
            b.check_cqes(qp, {0: OK, 1: OK, 2: OK})
            # what is behind it needs a response of its own: the one before did not count for it
            b.respond(qp, ACK, qp.last(3))
            await b.step(QUIET)
            b.check_cqes(qp, {0: OK, 1: OK, 2: OK, 3: OK})
            b.respond(qp, ACK, qp.last(4))
            await b.step(QUIET)
            b.check_cqes(qp, dict.fromkeys(range(5), OK))
    assert (b.counts[CNT_NAK_RX], b.counts[CNT_RNR], b.counts[CNT_DROP_RESPONSE]) == (3, 3, 9)
    assert not b.errors


@cocotb.test()
async def test_data_acknowledges_what_is_before(dut):
    """The first data of a READ covers all WRITEs before it, and a response that comes behind is dropped."""
    b = await Bench(dut).start()
    for num, op in enumerate((READ, FA64)):
        qp = await b.qp(num, psn=b.rng.getrandbits(24))
        await b.post(qp, *(b.wqe(WRITE, 3000) for _ in range(9)), b.wqe(op, 5000))
        await b.step(2 * QUIET)
        if op == READ:
            b.data(qp, 9, 0)
            await b.step(QUIET)
            b.check_cqes(qp, dict.fromkeys(range(9), OK))
        b.data(qp, 9)
        await b.step(QUIET)
        b.check_cqes(qp, dict.fromkeys(range(10), OK))
        b.respond(qp, ACK, qp.last(8))
        await b.step(QUIET)
        assert b.counts[CNT_DROP_RESPONSE] == num + 1


def _failing(b: Bench, op: int) -> list:
    """Two good WRITEs, the WQE that will fail without ce, and three that will be flushed."""
    return [b.wqe(WRITE), b.wqe(WRITE), b.wqe(op, 3000, ce=0), b.wqe(READ, 3000), b.wqe(WRITE), b.wqe(CAS64)]


@cocotb.test()
async def test_failing_data(dut):
    """a8, aa, b3 and a7 at every place of a READ, and of an atomic: one CQE, the rest is flushed."""
    b = await Bench(dut).start()
    num = 0
    for op in (READ, CAS64, MFA32):
        for code in (RSP_LEN, RSP_OP, SCATTER, LOCAL):
            for place in range(3 if op == READ else 1):
                qp = await b.qp(num % 64, version=1 + num % 2, start=13, psn=(1 << 24) - 3)
                await b.post(qp, *_failing(b, op))
                await b.step(QUIET)
                for k in range(place):
                    b.data(qp, 2, k)
                b.data(qp, 2, place, fail=code)
                await b.step(QUIET)
                # nothing else need acknowledge the WRITEs before it: that it came tells of them
                b.check_cqes(qp, {0: OK, 1: OK, 2: code, 3: FLUSH, 4: FLUSH, 5: FLUSH})
                # what still comes for it changes nothing
                b.data(qp, 2)
                b.data(qp, 3)
                b.respond(qp, ACK, qp.last(4))
                await b.step(QUIET)
                assert b.errors == [qp.num] and len(b.cqes_of(qp)) == 6
                # the ACK counts as dropped; data was counted where it was taken
                assert b.counts[CNT_DROP_RESPONSE] == 1
                b.counts.clear()
                b.check_jobs(qp, 6)
                b.errors.clear()
                b.cqes.clear()
                b.jobs.clear()
                await b.reset(num % 64)
                num += 1


@cocotb.test()
async def test_naks(dut):
    """NAK 1, 2 and 3 on each kind of WQE; NAK 1 is 89 on an atomic whose remote address is misaligned."""
    b = await Bench(dut).start()
    num = 0
    for op in (WRITE, READ, *ATOMICS):
        size = ATOMICS[op][2] if op in ATOMICS else 1
        for code, want in ((1, INV), (2, ACCESS), (3, REMOTE)):
            for odd in range(8):
                qp = await b.qp(num % 64, version=1 + num % 2, start=num, psn=b.rng.getrandbits(24))
                wqes = _failing(b, op)
                wqes[2] = replace(wqes[2], raddr=wqes[2].raddr | odd)
                await b.post(qp, *wqes)
                await b.step(70)
                b.check_jobs(qp, 6)
                b.respond(qp, NAK, qp.first(2), code=code)
                await b.step(70)
                mine = VA if code == 1 and op in ATOMICS and odd % size else want
                b.check_cqes(qp, {0: OK, 1: OK, 2: mine, 3: FLUSH, 4: FLUSH, 5: FLUSH})
                b.cqes.clear()
                b.jobs.clear()
                await b.reset(num % 64)
                num += 1


@cocotb.test()
async def test_nak_in_the_middle_of_a_read(dut):
    """A NAK for a later packet of a READ fails the READ; one beyond it fails nothing."""
    b = await Bench(dut).start()
    num = 0
    for got in range(3):  # data packets before the NAK
        for at in range(got, 3):
            qp = await b.qp(num, psn=(1 << 24) - 2)
            num += 1
            await b.post(qp, *_failing(b, READ))
            await b.step(QUIET)
            for k in range(got):
                b.data(qp, 2, k)
            b.respond(qp, NAK, qp.first(2) + at, code=3)
            await b.step(QUIET)
            b.check_cqes(qp, {0: OK, 1: OK, 2: REMOTE, 3: FLUSH, 4: FLUSH, 5: FLUSH})
    for beyond in (3, 4, 5):
        qp = await b.qp(num)
        num += 1
        await b.post(qp, *_failing(b, READ))
        await b.step(QUIET)
        b.respond(qp, NAK, qp.first(beyond), code=2)
        await b.step(QUIET)
        b.check_cqes(qp, {0: OK, 1: OK})
        b.data(qp, 2)
        await b.step(QUIET)
        assert b.cqes_of(qp)[2:] == [], "a good WQE without ce is silent"


@cocotb.test()
async def test_two_failures(dut):
    """Data fails a READ, then come NAKs of an older WRITE, which that data acknowledged, and of the READ."""
    b = await Bench(dut).start()
    qp = await b.qp(0)
    await b.post(qp, *_failing(b, READ))
    await b.step(QUIET)
    b.data(qp, 2, 0, fail=RSP_LEN)
    b.respond(qp, NAK, qp.first(1), code=2)
    await b.step(QUIET)
    b.check_cqes(qp, {0: OK, 1: OK, 2: RSP_LEN, 3: FLUSH, 4: FLUSH, 5: FLUSH})
    assert b.counts[CNT_DROP_RESPONSE] == 1
    # a NAK and failing data of one WQE: the NAK has the code if it comes in time
    qp = await b.qp(1)
    await b.post(qp, *_failing(b, READ))
    await b.step(QUIET)
    b.data(qp, 2, 0, fail=RSP_LEN)
    b.respond(qp, NAK, qp.first(2), code=3)
    await b.step(QUIET)
    b.check_cqes(qp, {0: OK, 1: OK, 2: REMOTE, 3: FLUSH, 4: FLUSH, 5: FLUSH})


@cocotb.test()
async def test_local_keys(dut):
    """Sinks need a good key, local write and range for every byte: a7, never sent; sources need no right."""
    b = await Bench(dut).start()
    end = REGION + REGION_BYTES
    num = 0
    for op in (WRITE, READ, CAS64, MFA32):
        size = ATOMICS[op][2] if op in ATOMICS else 3000
        for change, sink_only in (
            ({"lkey": KEY_BAD}, False),
            ({"lkey": KEY_READ_ONLY}, True),
            ({"laddr": REGION - 1}, False),
            ({"laddr": end - size + 1}, False),
            ({"laddr": end}, False),
            ({"laddr": (1 << 64) - 1}, False),
            ({"laddr": end - size}, None),
            ({"laddr": REGION}, None),
        ):
            good = sink_only is None or (sink_only and op == WRITE)
            qp = await b.qp(num, start=num)
            num += 1
            await b.post(qp, b.wqe(WRITE), b.wqe(op, 3000, **change), b.wqe(WRITE))
            await b.step(QUIET)
            b.check_jobs(qp, 3 if good else 1)
            b.respond(qp, ACK, qp.last(0))
            await b.step(QUIET)
            b.check_cqes(qp, {0: OK} if good else {0: OK, 1: LOCAL, 2: FLUSH})
    # no byte, no key
    qp = await b.qp(num)
    await b.post(qp, b.wqe(READ, 0, lkey=KEY_BAD), b.wqe(WRITE, 0, lkey=KEY_BAD))
    await b.step(QUIET)
    b.check_jobs(qp, 2)


@cocotb.test()
@cocotb.parametrize(kind=["fence", "limit", "window"])
async def test_key_counts_at_the_start(dut, kind):
    """The local key is judged when the WQE starts: a region made or unmade while it waits counts."""
    b = await Bench(dut).start()
    region = {"mr_base_i": 0, "mr_length_i": 1 << 64, "mr_tag_i": 0x5C, "mr_write_i": 1}
    await b.step(mr_set_i=1, ctx_mrn_i=3, **region)
    for num, (before, after) in enumerate(((0x11, 0x5C), (0x5C, 0x11))):
        await b.step(mr_set_i=1, ctx_mrn_i=9, **(region | {"mr_tag_i": before}))
        qp = await b.qp(num, max_rd=1 if kind == "limit" else 16, mtu=256)
        read = b.wqe(READ, 256 << 22, laddr=0) if kind == "window" else b.wqe(READ)
        behind = b.wqe(WRITE if kind != "limit" else CAS64, lkey=9 << 8 | 0x5C, fence=int(kind == "fence"))
        await b.post(qp, read, behind)
        await b.step(QUIET)
        b.check_jobs(qp, 1)
        await b.step(mr_set_i=1, ctx_mrn_i=9, **(region | {"mr_tag_i": after}))
        await b.step(40)
        b.data(qp, 0)
        await b.step(QUIET)
        b.check_jobs(qp, 2 if after == 0x5C else 1)
        b.check_cqes(qp, {0: OK} if after == 0x5C else {0: OK, 1: LOCAL})


@cocotb.test()
async def test_failing_wqe_has_no_psn(dut):
    """Whatever the length of a failing WQE says, acknowledgements neither complete it nor stop before it."""
    b = await Bench(dut).start()
    num = 0
    for length in (0, 1, 1024, 1025, 1 << 20, 0x80000000, 0x80000001, 0xFFFFFC00, 0xFFFFFFFF):
        for op in (WRITE, READ):
            for change, code in (({"id_error": 8}, FORMAT), ({"bus": True}, DMA), ({"l_len": 7}, LENGTH)):
                # at MTU 256 the longest length has 2^24 packets: PSNs come round to the one before
                qp = await b.qp(num % 64, psn=(1 << 24) - 5, start=num, mtu=256)
                await b.post(qp, b.wqe(WRITE, 2048), b.wqe(WRITE), b.wqe(op, length, **change), b.wqe(WRITE))
                await b.step(50)
                b.check_jobs(qp, 2)
                b.respond(qp, ACK, qp.first(0))
                await b.step(30)
                b.check_cqes(qp, {})
                b.respond(qp, ACK, qp.last(1))
                await b.step(60)
                b.check_cqes(qp, {0: OK, 1: OK, 2: code, 3: FLUSH})
                b.jobs.clear()
                b.cqes.clear()
                await b.reset(num % 64)
                num += 1


@cocotb.test()
async def test_doorbell_and_retirement_around_a_lane_load(dut):
    """A second doorbell in any cycle around the one in which the QP is given its lane is never lost."""
    b = await Bench(dut).start()
    qps = [await b.qp(num, start=num, log=4) for num in range(12)]
    rounds = 0
    for delay in range(24):
        for qp in qps:  # more QPs than lanes: each round loads a lane
            at = len(qp.posted)
            b.write(qp, b.wqe(WRITE), b.wqe(READ))
            await b.ring(qp, at + 1)
            await b.step(delay)
            await b.ring(qp, at + 2)
            await b.step(40)
            b.check_jobs(qp, at + 2)
            b.data(qp, at + 1)
            await b.step(30)
            b.check_cqes(qp, dict.fromkeys(range(at + 2), OK))
            rounds += 1
    assert rounds == 12 * 24


@cocotb.test()
async def test_retirement_around_a_lane_load(dut):
    """A full QP without a lane gets one for retirements in any cycle: 16 WQEs are in flight again."""
    b = await Bench(dut).start()
    qps = [await b.qp(num, start=num, log=6) for num in range(12)]
    for qp in qps:
        b.write(qp, *(b.wqe(WRITE) for _ in range(60)))
        await b.ring(qp)
    await b.step(1500)
    acked = 0
    for delay in range(14):
        for qp in qps:
            b.check_jobs(qp, 16 + acked)
            b.respond(qp, ACK, qp.last(acked))
            await b.step(1 + delay)
            b.respond(qp, ACK, qp.last(acked + 1))
            await b.step(90)
            b.check_jobs(qp, 18 + acked)
        acked += 2
        # all are full again, and the lanes are with others
        await b.step(200)


async def _busy_rate(b: Bench, qp: Qp, count: int) -> float:
    """Cycles per packet of `count` further 64-byte WRITEs of `qp`, acknowledged as they go."""
    at = len(qp.posted)
    assert at == 0
    b.write(qp, *(b.wqe(WRITE) for _ in range(count)))
    await b.ring(qp)
    began, acked = b.cycle, 0
    while acked < count:
        await b.step()
        done = len(b.of(qp))
        if done > acked and not b.responses:
            b.respond(qp, ACK, qp.last(done - 1))
            acked = done
        assert b.cycle - began < 40 * count, f"{done} of {count} packets"
    return (b.cycle - began) / count


@cocotb.test()
@cocotb.parametrize(waiting=[0, 1, 7])
async def test_waiting_lanes_cost_nothing(dut, waiting):
    """Lanes that wait for a fence, a limit or the window take no grants: the busy QP keeps its 4 cycles."""
    b = await Bench(dut).start()
    region = {"mr_base_i": 0, "mr_length_i": 1 << 64, "mr_tag_i": 0x5C, "mr_write_i": 1}
    await b.step(mr_set_i=1, ctx_mrn_i=3, **region)
    held = []
    for k in range(waiting):
        qp = await b.qp(k, max_rd=1, mtu=256)
        if k % 3 == 0:
            await b.post(qp, b.wqe(READ), b.wqe(WRITE, fence=1))
        elif k % 3 == 1:
            await b.post(qp, b.wqe(READ), b.wqe(MCAS32))
        else:
            await b.post(qp, b.wqe(READ, 256 << 22, laddr=0), b.wqe(WRITE))
        held.append(qp)
    await b.step(QUIET)
    busy = await b.qp(40, log=9)
    rate = await _busy_rate(b, busy, 300)
    assert rate < 4.4, f"{rate:.2f} cycles a packet with {waiting} lanes that wait"
    for qp in held:
        b.check_jobs(qp, 1)
        b.data(qp, 0)
        await b.step(30)
        b.check_jobs(qp, 2)


@cocotb.test()
async def test_write_rate(dut):
    """64-byte WRITEs: 3 cycles a packet over several QPs."""
    b = await Bench(dut, latency=20).start()
    qps = [await b.qp(num, log=8) for num in range(8)]
    for qp in qps:
        b.write(qp, *(b.wqe(WRITE) for _ in range(120)))
        await b.ring(qp)
    began, acked = b.cycle, dict.fromkeys(range(8), 0)
    while len(b.jobs) < 8 * 120:
        await b.step()
        if not b.responses:
            seen = [0] * 8
            for job in b.jobs:
                seen[job.qp] += 1
            for qp in qps:
                if seen[qp.num] - acked[qp.num] >= 4:
                    b.respond(qp, ACK, qp.last(seen[qp.num] - 1))
                    acked[qp.num] = seen[qp.num]
        assert b.cycle - began < 10000
    rate = (b.cycle - began) / len(b.jobs)
    assert rate < 3.4, f"{rate:.2f} cycles a packet"


@cocotb.test()
@cocotb.parametrize(kind=["fence", "limit", "window"])
async def test_waiting_qps_leave_their_lanes(dut, kind):
    """Twenty QPs wait: others get lanes; the waiting ones sleep and wake by the right event only."""
    b = await Bench(dut).start()
    region = {"mr_base_i": 0, "mr_length_i": 1 << 64, "mr_tag_i": 0x5C, "mr_write_i": 1}
    await b.step(mr_set_i=1, ctx_mrn_i=3, **region)
    held = []
    for num in range(20):
        qp = await b.qp(num, max_rd=1, mtu=256, psn=b.rng.getrandbits(24), start=num)
        read = b.wqe(READ, 256 << 22, laddr=0) if kind == "window" else b.wqe(READ, 600)
        behind = b.wqe(CAS64) if kind == "limit" else b.wqe(WRITE, fence=kind == "fence")
        await b.post(qp, read, behind)
        held.append(qp)
    await b.step(1500)
    for qp in held:
        b.check_jobs(qp, 1)
    before = sum(b.fetched.values())
    others = [await b.qp(num, log=5) for num in range(40, 52)]
    for qp in others:
        await b.post(qp, *(b.wqe(WRITE) for _ in range(20)))
    for _ in range(12):
        await b.step(QUIET)
        for qp in others:
            sent = len(b.of(qp))
            if sent:
                b.respond(qp, ACK, qp.last(sent - 1))
    for qp in others:
        b.check_jobs(qp, 20)
        assert len(b.cqes_of(qp)) == 20
    again = sum(b.fetched[qp.num] for qp in held) - before
    assert again == 0, f"{again} WQEs fetched again for QPs that wait"
    b.rng.shuffle(held)
    for qp in held[:10]:
        before = b.fetched[qp.num]
        if kind != "window":
            b.data(qp, 0, 0)
            await b.step(40)
            b.check_jobs(qp, 1)
            assert b.fetched[qp.num] == before, f"QP {qp.num} woke by data that ends nothing"
        b.data(qp, 0)
        await b.step(QUIET)
        b.check_jobs(qp, 2)
    # the others end their lives asleep; the next ones know nothing of it
    for old in held[10:]:
        await b.reset(old.num)
        b.jobs = [job for job in b.jobs if job.qp != old.num]
        qp = await b.qp(old.num, max_rd=1)
        await b.post(qp, b.wqe(READ), b.wqe(WRITE))
        await b.step(QUIET)
        b.check_jobs(qp, 2)


@cocotb.test()
async def test_full_cq_does_not_hold_a_fence(dut):
    """A READ that has ended releases the fence even if its CQE waits for CQ room, with and without a lane."""
    b = await Bench(dut).start()
    await b.cq(1, 1)
    qps = [await b.qp(num, cqn=1) for num in range(14)]
    for qp in qps:
        await b.post(qp, b.wqe(READ), b.wqe(WRITE, fence=1))
    await b.step(600)
    for qp in qps:
        b.check_jobs(qp, 1)
        b.data(qp, 0)
    await b.step(900)
    for qp in qps:
        b.check_jobs(qp, 2)
    assert len(b.cqes) == 2, "the CQ has two places"


@cocotb.test()
@cocotb.parametrize(how=["err", "reset"])
async def test_end_in_the_middle(dut, how):
    """ERR or RESET while WQEs wait, are out or half answered: flush or nothing; the QP starts afresh."""
    b = await Bench(dut, latency=30).start()
    other = await b.qp(50, log=9)
    for delay in range(0, 60, 3):
        num = delay % 7
        qp = await b.qp(num, max_rd=2, start=delay, psn=(1 << 24) - 2, version=1 + delay % 2)
        at = len(other.posted)
        await b.post(other, b.wqe(READ, 2000), b.wqe(WRITE))
        await b.post(qp, *(b.wqe(op, 2500) for op in (READ, WRITE, CAS64, READ, READ, WRITE)))
        await b.step(delay)
        if delay > 40:
            b.data(qp, 0, 0)
        if how == "err":
            b.state(num, "err")
            await b.step(QUIET)
            assert b.cqes_of(qp) == [qp.cqe(i, FLUSH) for i in range(6)], b.cqes_of(qp)
            await b.post(qp, b.wqe(READ))
            b.data(qp, 0)
            b.respond(qp, ACK, qp.last(1))
            await b.step(QUIET)
            assert b.cqes_of(qp)[6:] == [qp.cqe(6, FLUSH)]
            assert b.counts[CNT_DROP_RESPONSE] == 1, "an ACK in ERR counts as dropped"
            b.counts.clear()
        await b.reset(num)
        sent, written = len(b.of(qp)), len(b.cqes_of(qp))
        await b.step(60)
        assert (len(b.of(qp)), len(b.cqes_of(qp))) == (sent, written), "work after the reset"
        b.jobs = [job for job in b.jobs if job.qp != num]
        b.cqes = [cqe for cqe in b.cqes if cqe.qp != num]
        # reuse: no outstanding READ and no fence is left over
        qp = await b.qp(num, max_rd=1, start=1000, psn=5)
        await b.post(qp, b.wqe(READ, fence=1), b.wqe(WRITE), b.wqe(FA64))
        await b.step(80)
        b.check_jobs(qp, 2)
        b.data(qp, 0)
        await b.step(60)
        b.check_jobs(qp, 3)
        b.data(qp, 2)
        b.data(other, at)
        b.respond(other, ACK, other.last(at + 1))
        await b.step(60)
        b.check_cqes(qp, dict.fromkeys(range(3), OK))
        b.check_jobs(other, at + 2)
        b.check_cqes(other, dict.fromkeys(range(at + 2), OK))
        await b.reset(num)
        b.jobs = [job for job in b.jobs if job.qp != num]
        b.cqes = [cqe for cqe in b.cqes if cqe.qp != num]
    assert not b.errors


@cocotb.test()
@cocotb.parametrize(source=["decode", "gather", "nak", "data"])
async def test_failure_stops_issue(dut, source):
    """From the record of a failure on nothing leaves, also where the failing WQE waits for its turn."""
    b = await Bench(dut).start()
    qp = await b.qp(3, log=5)
    wqes = [b.wqe(WRITE), b.wqe(READ, 2000), b.wqe(WRITE)]
    if source == "decode":
        wqes[2] = b.wqe(WRITE, id_error=8)
    await b.post(qp, *wqes)
    await b.step(QUIET)
    codes = {"decode": FORMAT, "gather": GATHER, "nak": INV, "data": RSP_OP}
    failing = 1 if source in ("nak", "data") else 2
    if source == "gather":
        await b.step(gerr_valid_i=1, gerr_qpi_i=3, gerr_slot_i=qp.slot(2))
    elif source == "data":
        b.data(qp, 1, 0, fail=RSP_OP)
    elif source == "nak":
        b.data(qp, 1, 0)
        b.respond(qp, NAK, qp.first(1) + 1, code=1)
    await b.step(10)
    await b.post(qp, b.wqe(WRITE), b.wqe(READ))
    await b.step(QUIET)
    b.check_jobs(qp, 2 if source == "decode" else 3)
    # a NAK and data acknowledge what is before their WQE
    if failing == 2:
        assert not b.cqes
        b.respond(qp, ACK, qp.last(0))
    if failing == 2:
        b.data(qp, 1)
    await b.step(QUIET)
    want = {0: OK, 1: OK, 2: OK, 3: FLUSH, 4: FLUSH}
    want |= {failing: codes[source]} | dict.fromkeys(range(failing + 1, 5), FLUSH)
    b.check_cqes(qp, want)
    b.check_jobs(qp, 2 if source == "decode" else 3)


@cocotb.test()
async def test_backpressure(dut):
    """Packets that nobody takes for a while stay in order, none is lost and none is doubled."""
    b = await Bench(dut, stall=0.9).start()
    qps = [await b.qp(num, start=num, mtu=256) for num in range(4)]
    for qp in qps:
        await b.post(qp, *(b.wqe(op, 900) for op in (WRITE, READ, CAS64, WRITE, MFA32, READ, WRITE)))
    b.ready_held = 0
    await b.step(200)
    assert not b.jobs
    b.ready_held = None
    await b.step(1200)
    for qp in qps:
        b.check_jobs(qp, 7)
