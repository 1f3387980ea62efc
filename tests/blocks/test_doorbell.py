"""Doorbell judge (rtl/doorbell/db_decode.sv) alone, against rules written here from nic.md section 3.

Sweep: V1 and V2; depths 2 to the greatest; start indices on both sides of the index wrap (2^14, 2^18);
forward, equal, stale and overrun distances with their borders; retire in every cycle around the judgement;
all causes of refusal.
Stimulus: one doorbell after the other at the block's port, retire pulses and CQ answers as completion gives
them.
Checks: accepted index, counter, error and asynchronous event of every doorbell, and that nothing else
happens.
Timing: done no later than the cycle after the request (SQ, RQ); for a CQ in the cycle of its answer.
Not proved here: that the bus answer waits for done (test_csr.py), what fetch does with an accepted index.
"""

import random
from dataclasses import dataclass

import cocotb
from cocotb.triggers import FallingEdge, Timer

BENCH = {
    "top": "doorbell_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/doorbell/db_pkg.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/doorbell/db_index.sv",
        "rtl/doorbell/db_decode.sv",
        "tests/blocks/sv/doorbell_bench.sv",
    ],
}

SQ, RQ, CQ = 0, 1, 2
KINDS = {SQ: 1, RQ: 5}  # asynchronous event of an overrun (nic.md 7)
# numbers of the counters (nic.md section 7, in the order of the NIC's list)
STALE, OVERRUN, PID, PAGE, PARTIAL, RESET, BACKWARD, BEYOND, RQ_IGNORED = 20, 21, 22, 23, 24, 25, 26, 27, 28
INDEX_BITS = {1: 14, 2: 18}  # device.md 3.1
PID_BITS = {1: 17, 2: 21}
MAX_LOG = {1: 13, 2: 17}  # nic.md 2: 8192 and 131072


def sq_data(version: int, qpn: int, index: int, low: int = 0) -> int:
    """SQ doorbell: next_pid in 16-byte units (8 per WQE), qp_id above it (device.md 3.1)."""
    bits = PID_BITS[version]
    return (index * 8 + low) % (1 << bits) | qpn << bits


def cq_data(cqn: int, index: int, sta: int = 0) -> int:
    """CQ doorbell: next_cid 22:0, cq_id 38:23, cq_sta 40:39 (device.md 3.1)."""
    return index % (1 << 23) | cqn << 23 | sta << 39


@dataclass
class Effect:
    """What one doorbell did."""

    index: int | None = None  # new producer index
    counts: tuple[int, ...] = ()
    overrun: bool = False
    cycles: int = 0  # from request to done


class Driver:
    """Signals of the bench; inputs change at falling edges, outputs are sampled there."""

    def __init__(self, dut) -> None:
        self.dut = dut

    async def start(self) -> None:
        dut = self.dut
        for name in (
            "set_valid_i",
            "set_qpi_i",
            "set_version2_i",
            "set_log_i",
            "set_start_i",
            "set_rq_log_i",
            "set_rq_start_i",
            "set_send_cq_i",
            "set_recv_cq_i",
            "qp_rts_i",
            "qp_err_i",
            "req_valid_i",
            "req_page_i",
            "req_reg_i",
            "req_partial_i",
            "req_data_i",
            "rq_retire_valid_i",
            "rq_retire_qpi_i",
            "rq_retire_idx_i",
            "retire_valid_i",
            "retire_qpi_i",
            "retire_idx_i",
            "cq_ready_i",
            "cq_rsp_valid_i",
            "cq_rsp_i",
            "qry_valid_i",
            "qry_qpi_i",
        ):
            getattr(dut, name).value = 0
        dut.rst_ni.value = 0
        await Timer(10, "ns")
        await FallingEdge(dut.clk_i)
        dut.rst_ni.value = 1
        await FallingEdge(dut.clk_i)

    async def set_qp(
        self,
        qpi: int,
        version: int,
        log: int,
        start: int,
        cqs: tuple[int, int] = (0, 0),
        rq: tuple[int, int] = (0, 0),
    ) -> None:
        """Program a QP and put it into RTS; rq: log2 of the RQ depth (0: no RQ) and its start index."""
        dut = self.dut
        dut.set_valid_i.value = 1
        dut.set_qpi_i.value = qpi
        dut.set_version2_i.value = version == 2
        dut.set_log_i.value = log
        dut.set_start_i.value = start % (1 << INDEX_BITS[version])
        dut.set_rq_log_i.value, dut.set_rq_start_i.value = rq
        dut.set_send_cq_i.value, dut.set_recv_cq_i.value = cqs
        await FallingEdge(dut.clk_i)
        dut.set_valid_i.value = 0
        dut.qp_rts_i.value = int(dut.qp_rts_i.value) | 1 << qpi
        dut.qp_err_i.value = int(dut.qp_err_i.value) & ~(1 << qpi)

    def _retire(self, qpi: int | None, index: int = 0) -> None:
        self.dut.retire_valid_i.value = qpi is not None
        if qpi is not None:
            self.dut.retire_qpi_i.value = qpi
            self.dut.retire_idx_i.value = index

    async def rq_retire(self, qpi: int, index: int) -> None:
        """Move the first receive WQE of a QP that still counts as outstanding."""
        dut = self.dut
        dut.rq_retire_valid_i.value, dut.rq_retire_qpi_i.value, dut.rq_retire_idx_i.value = 1, qpi, index
        await FallingEdge(dut.clk_i)
        dut.rq_retire_valid_i.value = 0

    async def retire(self, qpi: int, index: int) -> None:
        self._retire(qpi, index)
        await FallingEdge(self.dut.clk_i)
        self._retire(None)

    async def ring(
        self,
        page: int,
        reg: int,
        data: int,
        partial: bool = False,
        retires: dict[int, tuple[int, int]] | None = None,
    ) -> Effect:
        """Ring a doorbell, collect what it does; retires: cycle (0: of the request) -> (qpi, index)."""
        dut = self.dut
        effect = Effect()
        dut.req_valid_i.value = 1
        dut.req_page_i.value = page
        dut.req_reg_i.value = reg
        dut.req_partial_i.value = partial
        dut.req_data_i.value = data
        done = None
        for cycle in range(64):
            self._retire(*(retires or {}).get(cycle, (None, 0)))
            await Timer(100, "ps")  # let the outputs of this cycle settle
            if dut.done_o.value and done is None:
                done = effect.cycles = cycle
            if dut.sq_valid_o.value:
                assert effect.index is None and int(dut.sq_qpi_o.value) == page - 2
                assert reg == SQ
                effect.index = int(dut.sq_pi_o.value)
            if dut.rq_valid_o.value:
                assert reg == RQ and effect.index is None and int(dut.rq_qpi_o.value) == page - 2
                effect.index = int(dut.rq_pi_o.value)
            counts = int(dut.cnt_o.value)
            effect.counts += tuple(i for i in range(64) if counts >> i & 1)
            if dut.err_valid_o.value or dut.async_valid_o.value:
                assert dut.err_valid_o.value and dut.async_valid_o.value and not effect.overrun
                assert int(dut.err_qpi_o.value) == page - 2
                assert (int(dut.async_kind_o.value), int(dut.async_number_o.value)) == (KINDS[reg], page)
                effect.overrun = True
            if done is not None and cycle == done + 1:
                break
            await FallingEdge(dut.clk_i)
            dut.req_valid_i.value = 0
        else:
            raise AssertionError("doorbell never judged")
        await FallingEdge(dut.clk_i)
        self._retire(None)
        return effect


class Ring:
    """What the rules say, with indices that never wrap: the modulo is in the encoding only."""

    def __init__(self, version: int, log: int, start: int) -> None:
        self.version, self.depth = version, 1 << log
        self.size = 1 << INDEX_BITS[version]
        self.produced = self.retired = start + self.size  # far from 0, so that stale targets are positive

    def expect(self, target: int) -> Effect:
        """Effect of a doorbell that means the absolute index target, within half the width of produced."""
        ahead = target - self.produced
        assert -self.size // 2 < ahead <= self.size // 2
        if ahead < 0:
            return Effect(counts=(STALE,))
        if ahead == 0:
            return Effect()
        if target - self.retired <= self.depth:
            self.produced = target
            return Effect(index=target % self.size)
        return Effect(counts=(OVERRUN,), overrun=True)


def check(got: Effect, want: Effect, what: str) -> None:
    """Same effect, judged in time."""
    assert (got.index, got.counts, got.overrun) == (want.index, want.counts, want.overrun), (
        f"{what}: {got} not {want}"
    )
    assert got.cycles <= 1, f"{what}: judged after {got.cycles} cycles"


@cocotb.test()
@cocotb.parametrize(version=[1, 2], depth_log=[1, 4, "max-1", "max"])
async def test_index_at_wrap(dut, version, depth_log):
    """Every border of every distance class while producer and retired index pass the wrap of the index."""
    driver = Driver(dut)
    await driver.start()
    log = depth_log if isinstance(depth_log, int) else MAX_LOG[version] - (depth_log == "max-1")
    size, depth = 1 << INDEX_BITS[version], 1 << log
    half = size // 2
    qpi, seen = 5, {"forward": 0, "equal": 0, "stale": 0, "overrun": 0}
    wraps = 0
    for start in (size - 3, size - 2, size - 1, 0, 1, half - 1, half, size - depth, size - depth + 1):
        await driver.set_qp(qpi, version, log, start)
        ring = Ring(version, log, start % size)
        for _ in range(24):
            room = depth - (ring.produced - ring.retired)
            ahead = {
                0,
                1,
                -1,
                2,
                -2,
                room,
                room + 1,
                room - 1,
                half,
                half - 1,
                1 - half,
                2 - half,
                depth,
                -depth,
                7 - depth,
            }
            # refused ones first: they must leave the index where it is
            for d in sorted(
                (d for d in ahead if -half < d <= half), key=lambda d: (1 <= d <= room, random.random())
            ):
                target = ring.produced + d
                before = ring.produced
                want = ring.expect(target) if -half < d <= half else None
                got = await driver.ring(qpi + 2, SQ, sq_data(version, qpi + 2, target % size))
                check(
                    got,
                    want,
                    f"start {start} depth {depth} at {before % size}+{d}, retired {ring.retired % size}",
                )
                kind = (
                    "forward"
                    if want.index is not None
                    else "overrun"
                    if want.overrun
                    else "stale"
                    if want.counts
                    else "equal"
                )
                seen[kind] += 1
                if want.index is not None:
                    wraps += before // size != ring.produced // size
                    break
            step = random.choice(
                [0, 1, ring.produced - ring.retired, random.randint(0, ring.produced - ring.retired)]
            )
            step = min(step, ring.produced - ring.retired)
            if step:
                ring.retired += step
                await driver.retire(qpi, ring.retired % size)
    assert min(seen.values()) > 5 and wraps >= 3, (seen, wraps)


@cocotb.test()
@cocotb.parametrize(version=[1, 2])
async def test_half_of_the_width(dut, version):
    """d exactly half the width: accepted into an empty ring of that depth, else overrun; half + 1: stale."""
    driver = Driver(dut)
    await driver.start()
    size = 1 << INDEX_BITS[version]
    half, log = size // 2, MAX_LOG[version]
    assert 1 << log == half
    for start in (0, half - 1, half, size - 1):
        await driver.set_qp(0, version, log, start)
        got = await driver.ring(2, SQ, sq_data(version, 2, (start + half + 1) % size))
        check(got, Effect(counts=(STALE,)), "half + 1")
        got = await driver.ring(2, SQ, sq_data(version, 2, (start + half) % size))
        check(got, Effect(index=(start + half) % size), "half into an empty ring")
        # full now: exactly depth outstanding
        got = await driver.ring(2, SQ, sq_data(version, 2, (start + half + 1) % size))
        check(got, Effect(counts=(OVERRUN,), overrun=True), "one more than depth")
        await driver.retire(0, (start + half - 1) % size)
        got = await driver.ring(2, SQ, sq_data(version, 2, start % size))
        check(got, Effect(counts=(OVERRUN,), overrun=True), "half with one outstanding")
        await driver.retire(0, (start + half) % size)
        got = await driver.ring(2, SQ, sq_data(version, 2, start % size))
        check(got, Effect(index=start % size), "half after all retired")


@cocotb.test()
@cocotb.parametrize(version=[1, 2])
async def test_retire_in_the_cycle_of_judgement(dut, version):
    """A full ring gets room by a retire: seen up to the cycle of the judgement, not after it."""
    driver = Driver(dut)
    await driver.start()
    size = 1 << INDEX_BITS[version]
    for start in (size - 4, 100):
        for cycle, other, fits in (
            (0, False, True),
            (1, False, True),
            (2, False, False),
            (0, True, False),
            (1, True, False),
        ):
            await driver.set_qp(9, version, 2, start)
            await driver.set_qp(10, version, 2, start)
            check(
                await driver.ring(11, SQ, sq_data(version, 11, start + 4)),
                Effect(index=(start + 4) % size),
                "fill",
            )
            retires = {cycle: (10 if other else 9, (start + 1) % size)}
            got = await driver.ring(11, SQ, sq_data(version, 11, start + 5), retires=retires)
            want = Effect(index=(start + 5) % size) if fits else Effect(counts=(OVERRUN,), overrun=True)
            check(got, want, f"retire of {'another' if other else 'the'} QP in cycle {cycle}")
            if cycle == 2:  # it counts from the next doorbell on
                got = await driver.ring(11, SQ, sq_data(version, 11, start + 5))
                check(got, Effect(index=(start + 5) % size), "retire just after")


@cocotb.test()
async def test_qps_do_not_share(dut):
    """All 64 QPs, random mix of versions, depths and starts: each keeps its own indices."""
    driver = Driver(dut)
    await driver.start()
    rings = []
    for qpi in range(64):
        version = random.choice((1, 2))
        log = random.randint(1, MAX_LOG[version])
        start = random.choice((0, (1 << INDEX_BITS[version]) - random.randint(1, 5), random.getrandbits(14)))
        await driver.set_qp(qpi, version, log, start)
        rings.append(Ring(version, log, start))
    for _ in range(3000):
        qpi = random.randrange(64)
        ring = rings[qpi]
        if random.random() < 0.4 and ring.produced > ring.retired:
            ring.retired = random.randint(ring.retired + 1, ring.produced)
            await driver.retire(qpi, ring.retired % ring.size)
            continue
        room = ring.depth - (ring.produced - ring.retired)
        d = random.choice((1, room, room + 1, -1, 0, random.randint(-ring.size // 2 + 1, ring.size // 2)))
        d = min(d, ring.size // 2)
        target = ring.produced + d
        want = ring.expect(target)
        got = await driver.ring(qpi + 2, SQ, sq_data(ring.version, qpi + 2, target % ring.size))
        check(got, want, f"QP {qpi + 2} +{d}")


@cocotb.test()
async def test_receive_queues(dut):
    """RQ rules beside the SQ of a QP: 17-bit index, each distance class, wraps; neither moves the other."""
    driver = Driver(dut)
    await driver.start()
    size = 1 << 17
    seen = {"forward": 0, "equal": 0, "stale": 0, "overrun": 0}
    for qpi, version, log in ((0, 1, 1), (1, 2, 1), (2, 1, 13), (3, 2, 16), (63, 2, 4)):
        for start in (0, size - 1, size - 3, size // 2):
            await driver.set_qp(qpi, version, 4, 0, rq=(log, start))
            ring = Ring(2, log, start)
            ring.size, ring.produced, ring.retired = size, start + size, start + size
            for _ in range(20):
                room = ring.depth - (ring.produced - ring.retired)
                for d in (-1, 0, room + 1, 1 - size // 2, size // 2, random.randint(1, ring.depth), room):
                    if d > size // 2:
                        continue  # an empty queue of half the width cannot be overrun
                    target = ring.produced + d
                    want = ring.expect(target)
                    got = await driver.ring(qpi + 2, RQ, target % size | (qpi + 2) << 17)
                    check(got, want, f"RQ of QP {qpi + 2} start {start} depth {ring.depth} {d:+}")
                    forward = want.index is not None
                    kind = "overrun" if want.overrun else "stale" if want.counts else ""
                    kind = "forward" if forward else kind
                    seen[kind or "equal"] += 1
                step = random.randint(0, ring.produced - ring.retired)
                if step:
                    ring.retired += step
                    await driver.rq_retire(qpi, ring.retired % size)
            got = await driver.ring(qpi + 2, SQ, sq_data(version, qpi + 2, 16))
            check(got, Effect(index=16), "the SQ is empty as ever")
    assert min(seen.values()) > 20, seen


@cocotb.test()
async def test_refusals_and_their_order(dut):
    """Each cause alone and each with all later ones: exactly one counter, nothing moves."""
    driver = Driver(dut)
    await driver.start()
    await driver.set_qp(3, 2, 4, 0, (7, 8))
    await driver.set_qp(4, 1, 4, 0, (7, 9))
    await driver.set_qp(6, 2, 4, 0, (1, 1))
    dut.qp_rts_i.value = 1 << 3 | 1 << 4  # QP 8 (index 6) is in RESET
    cases = [
        ("good V2", 5, SQ, sq_data(2, 5, 1), False, Effect(index=1)),
        ("good V1", 6, SQ, sq_data(1, 6, 1), False, Effect(index=1)),
        ("partial", 5, SQ, sq_data(2, 5, 2), True, Effect(counts=(PARTIAL,))),
        ("partial on no page", 1, SQ, sq_data(2, 9, 2, 1), True, Effect(counts=(PARTIAL,))),
        ("page 0", 0, SQ, sq_data(2, 0, 2), False, Effect(counts=(PAGE,))),
        ("page 1", 1, SQ, sq_data(2, 1, 2), False, Effect(counts=(PAGE,))),
        ("page 66", 66, SQ, sq_data(2, 66, 2), False, Effect(counts=(PAGE,))),
        ("page 5 + 64", 69, SQ, sq_data(2, 69, 2), False, Effect(counts=(PAGE,))),
        ("RESET", 8, SQ, sq_data(2, 8, 2), False, Effect(counts=(RESET,))),
        ("RESET and foreign", 8, SQ, sq_data(2, 5, 2), False, Effect(counts=(RESET,))),
        ("RQ in RESET", 8, RQ, sq_data(1, 8, 2), False, Effect(counts=(RESET,))),
        ("CQ in RESET", 8, CQ, cq_data(1, 2), False, Effect(counts=(RESET,))),
        ("foreign QP", 5, SQ, sq_data(2, 6, 2), False, Effect(counts=(PAGE,))),
        ("foreign by its top bit", 5, SQ, sq_data(2, 5 | 1 << 15, 2), False, Effect(counts=(PAGE,))),
        ("V1 format on a V2 page", 5, SQ, sq_data(1, 5, 2), False, Effect(counts=(PAGE,))),
        ("V2 format on a V1 page", 6, SQ, sq_data(2, 6, 2), False, Effect(counts=(PAGE,))),
        ("foreign and low bits", 5, SQ, sq_data(2, 6, 2, 4), False, Effect(counts=(PAGE,))),
        ("low bit 0", 5, SQ, sq_data(2, 5, 2, 1), False, Effect(counts=(PID,))),
        ("low bit 1", 5, SQ, sq_data(2, 5, 2, 2), False, Effect(counts=(PID,))),
        ("low bit 2", 6, SQ, sq_data(1, 6, 2, 4), False, Effect(counts=(PID,))),
        ("low bit and overrun", 5, SQ, sq_data(2, 5, 200, 4), False, Effect(counts=(PID,))),
        ("RQ", 5, RQ, sq_data(1, 5, 2, 3), False, Effect(counts=(RQ_IGNORED,))),
        ("foreign RQ", 5, RQ, sq_data(1, 6, 2), False, Effect(counts=(PAGE,))),
        ("foreign CQ", 5, CQ, cq_data(9, 2), False, Effect(counts=(PAGE,))),
        ("CQ beyond all", 5, CQ, cq_data(7 + 64, 2), False, Effect(counts=(PAGE,))),
        ("bits above", 5, SQ, sq_data(2, 5, 2) | 1 << 37 | 1 << 63, False, Effect(index=2)),
        ("bits above V1", 6, SQ, sq_data(1, 6, 2) | 1 << 33 | 1 << 63, False, Effect(index=2)),
    ]
    for what, page, reg, data, partial, want in cases:
        check(await driver.ring(page, reg, data, partial), want, what)
        assert not dut.cq_valid_o.value, what


@cocotb.test()
@cocotb.parametrize(version=[1, 2])
async def test_state_err_and_programming_again(dut, version):
    """In ERR the index moves and overruns count; a QP that is set again starts from its start index."""
    driver = Driver(dut)
    await driver.start()
    size = 1 << INDEX_BITS[version]
    await driver.set_qp(0, version, 3, size - 2)
    check(await driver.ring(2, SQ, sq_data(version, 2, 2)), Effect(index=2), "RTS")
    dut.qp_rts_i.value, dut.qp_err_i.value = 0, 1
    check(await driver.ring(2, SQ, sq_data(version, 2, 4)), Effect(index=4), "ERR")
    check(
        await driver.ring(2, SQ, sq_data(version, 2, 7)),
        Effect(counts=(OVERRUN,), overrun=True),
        "overrun in ERR",
    )
    await driver.retire(0, 3)
    check(await driver.ring(2, SQ, sq_data(version, 2, 7)), Effect(index=7), "ERR after a flush")
    dut.qp_err_i.value = 0
    check(await driver.ring(2, SQ, sq_data(version, 2, 8)), Effect(counts=(RESET,)), "RESET")
    await driver.set_qp(0, version, 1, 500)
    check(await driver.ring(2, SQ, sq_data(version, 2, 499)), Effect(counts=(STALE,)), "before the new start")
    check(await driver.ring(2, SQ, sq_data(version, 2, 502)), Effect(index=502), "new ring full")
    check(
        await driver.ring(2, SQ, sq_data(version, 2, 503)),
        Effect(counts=(OVERRUN,), overrun=True),
        "new depth",
    )


@cocotb.test()
@cocotb.parametrize(ready_after=[0, 1, 3], rsp_after=[0, 1, 4])
async def test_cq_doorbell(dut, ready_after, rsp_after):
    """CQ doorbells reach completion once, unchanged while they wait; done comes with the answer."""
    driver = Driver(dut)
    await driver.start()
    await driver.set_qp(1, 2, 4, 0, (11, 63))
    for rsp, counts in ((0, ()), (1, (BACKWARD,)), (2, (BEYOND,))):
        for cqn in (11, 63):
            index, sta = random.getrandbits(23), random.getrandbits(2)
            taken = []

            async def completion(rsp=rsp, cqn=cqn, index=index, sta=sta, taken=taken):
                while not dut.cq_valid_o.value:
                    await FallingEdge(dut.clk_i)
                    await Timer(50, "ps")
                for _ in range(ready_after):
                    seen = (int(dut.cq_cqn_o.value), int(dut.cq_ci_o.value), int(dut.cq_arm_o.value))
                    assert dut.cq_valid_o.value and seen == (cqn, index, sta)
                    assert not dut.done_o.value
                    await FallingEdge(dut.clk_i)
                    await Timer(50, "ps")
                dut.cq_ready_i.value = 1
                taken.append((int(dut.cq_cqn_o.value), int(dut.cq_ci_o.value), int(dut.cq_arm_o.value)))
                for _ in range(rsp_after):
                    await FallingEdge(dut.clk_i)
                    dut.cq_ready_i.value = 0
                    await Timer(50, "ps")
                    assert not dut.cq_valid_o.value and not dut.done_o.value
                dut.cq_rsp_valid_i.value = 1
                dut.cq_rsp_i.value = rsp
                await Timer(1, "ps")
                assert dut.done_o.value
                await FallingEdge(dut.clk_i)
                dut.cq_ready_i.value = 0
                dut.cq_rsp_valid_i.value = 0

            task = cocotb.start_soon(completion())
            got = await driver.ring(3, CQ, cq_data(cqn, index, sta))
            await task
            assert got.counts == counts and got.index is None and not got.overrun, got
            assert got.cycles == 1 + ready_after + rsp_after
            assert taken == [(cqn, index, sta)]


@cocotb.test()
async def test_query(dut):
    """A query tells producer and retired index, and waits while doorbells are judged."""
    driver = Driver(dut)
    await driver.start()
    await driver.set_qp(20, 1, 4, 16383)
    await driver.set_qp(21, 2, 4, 262143)

    async def query(qpi: int) -> tuple[int, int]:
        dut.qry_valid_i.value, dut.qry_qpi_i.value = 1, qpi
        await Timer(1, "ps")
        while not dut.qry_ready_o.value:
            await FallingEdge(dut.clk_i)
            await Timer(1, "ps")
        await FallingEdge(dut.clk_i)
        dut.qry_valid_i.value = 0
        return int(dut.qry_prod_o.value), int(dut.qry_retired_o.value)

    assert await query(20) == (16383, 16383)
    assert await query(21) == (262143, 262143)
    await driver.ring(22, SQ, sq_data(1, 22, 5))
    await driver.ring(23, SQ, sq_data(2, 23, 262144 + 9))
    await driver.retire(20, 2)
    await driver.retire(21, 3)
    assert await query(20) == (5, 2)
    assert await query(21) == (9, 3)
    task = cocotb.start_soon(driver.ring(23, SQ, sq_data(2, 23, 10)))
    await Timer(1, "ps")
    assert await query(20) == (5, 2)
    assert (await task).index == 10
    assert await query(21) == (10, 3)
