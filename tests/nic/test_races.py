"""Races that only the cycle decides: late packets of a former life, doorbells around an error or a reset.

Sweep: WRITEs, READs and atomics of both directions on six QPs, held up on the link by a rule; both ends
reset while they are on their way, set again with start PSNs anywhere, then late packets arrive. A doorbell
in each of 64 successive cycles around the error CQE of a WQE (bad local key; NAK of the responder),
around a modify to ERR, before and behind the command that resets its QP, out of RTS and out of ERR.
Stimulus: full rings, a delay on every request, RESET and SET inside the delay; doorbells after a measured
time.
Checks: late packets do arrive in the new life; no byte of either heap changes by them; no CQE comes of
them; WQEs announced around an error get their flush CQEs, those before a reset none after it; a doorbell of
any kind behind the command is counted as one to a QP in RESET, once, and does nothing; the new life then
completes all its WQEs well; the judge's.
Timing: none. Not proved: PSNs of two lives that lie in the same window, which no receiver can tell apart;
doorbells while a SET is busy (docs/limits.md).
"""

from __future__ import annotations

import random
from dataclasses import replace

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.formats import doorbell
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp, command_writes
from pymodel.nic.params import CMD_STATUS, Cnt, Csr
from pymodel.platform import now, sleep
from tests.nic.raw import FLUSH, RawQp, renew
from tests.nic.stage import DEPTH, Stage, any_good

PES = 2
QPS = 6
LAPS = 3
#: cycles until the NIC has sent what was posted; the link holds it for far longer
SENT = 1500
HELD = "100us"
PATIENCE = 300_000
#: cycles of a sweep
WINDOW = 64


def far(rng: random.Random, old: int) -> int:
    """A PSN whose window lies apart from that of a former life on both sides."""
    return (old + rng.choice((-1, 1)) * rng.randrange(1 << 16, 1 << 22)) % (1 << 24)


@cocotb.test()
async def test_late_packets_of_a_former_life(dut) -> None:
    """Held up requests reach QPs that were reset and set in between."""
    seed = cocotb.RANDOM_SEED
    rng = random.Random(f"races {seed}")
    ends = {(pe, 1 - pe, q): {"sq_depth": DEPTH, "cq_depth": DEPTH, "timer": 0}
            for pe in range(PES) for q in range(QPS)}  # fmt: skip
    config = FabricConfig(n_pes=PES, qps=QPS, seed=seed, mtus=(256,), heap_bytes=16 << 20, overrides=ends)
    stage = Stage(dut, Fabric.build(config), ())
    await stage.start()
    rig = stage.rig
    psns = {q: (stage.ends[0, 1, q].plan.sq_psn, stage.ends[1, 0, q].plan.sq_psn) for q in range(QPS)}
    late = (Cnt.DUPLICATE, Cnt.PSN_AHEAD)

    async def post(pe: Pe) -> None:
        for q in range(QPS):
            qp = stage.ends[pe.rank, 1 - pe.rank, q]
            await qp.post(*[any_good(qp, rng) for _ in range(DEPTH)])
        await sleep(SENT)

    async def use(qp: RawQp) -> None:
        await qp.post(*[any_good(qp, rng) for _ in range(DEPTH)])
        found = await qp.collect(DEPTH, PATIENCE)
        assert not found["error_code"].any(), f"QPN {qp.plan.qpn}: {found['error_code']}"

    async def again(pe: Pe) -> None:
        mine = [qp for key, qp in stage.ends.items() if key[0] == pe.rank]
        for task in [await pe.spawn(use(qp), f"QPN {qp.plan.qpn}") for qp in mine]:
            await pe.join(task)

    for _ in range(LAPS):
        rig.lib.set_faults(f"opcode request: delay {HELD}")
        await rig.run(post, sanitize=False)
        for qp in stage.ends.values():
            assert await stage.console[qp.plan.pe].command(CmdOp.RESET, CmdObj.QP, qp.plan.qpn) == 0
        before = sum([await stage.console[pe].counter(n) for pe in (0, 1) for n in late])
        for q in range(QPS):
            psns[q] = far(rng, psns[q][0]), far(rng, psns[q][1])
            await renew(rig, stage.ends[0, 1, q], stage.ends[1, 0, q], psns[q], cqs=True)
        heaps = [rig.lib.memory(pe.rank, pe.heap_base, pe.heap_size) for pe in rig.fabric.pes]
        old = [heap.copy() for heap in heaps]
        rig.lib.set_faults([])
        await rig.lib.cycles(60_000)
        await rig.settle()
        assert all(np.array_equal(a, b) for a, b in zip(old, heaps, strict=True)), "written by a former life"
        assert not any(qp.visible() for qp in stage.ends.values()), "a CQE of a former life"
        after = sum([await stage.console[pe].counter(n) for pe in (0, 1) for n in late])
        assert after - before >= QPS, f"{after - before} late packets came into the new life"
        await rig.run(again, sanitize=False)
    await rig.check()


def small(rng: random.Random) -> Fabric:
    """One QP pair."""
    ends = {(pe, 1 - pe, 0): {"sq_depth": DEPTH, "cq_depth": DEPTH} for pe in range(PES)}
    return Fabric.build(FabricConfig.mixed(PES, 1, rng.getrandbits(31), heap_bytes=16 << 20, overrides=ends))


@cocotb.test()
@cocotb.parametrize(cause=["local", "remote"])
async def test_doorbells_around_an_error(dut, cause: str) -> None:
    """Two more WQEs are announced just before, while and after their QP goes to ERR."""
    rng = random.Random(f"around an error {cocotb.RANDOM_SEED}")
    stage = Stage(dut, small(rng), ())
    await stage.start()
    rig, qp, back = stage.rig, stage.ends[0, 1, 0], stage.ends[1, 0, 0]
    bad, code = ({"lkey": 0}, 0xA7) if cause == "local" else ({"rkey": 0}, 0xA5)
    took: list[int] = []

    async def main(pe: Pe, offset: int) -> None:
        if pe.rank:
            return
        await qp.put(qp.fields(64, **bad), any_good(qp, rng), any_good(qp, rng))
        await qp.ring_sq(qp.head - 2)
        start = await now()
        if not offset:
            assert await qp.until(1, PATIENCE)
            took.append(await now() - start)
        else:
            await sleep(offset)
        await qp.ring_sq()
        found = await qp.collect(3, PATIENCE)
        assert found["error_code"].tolist() == [code, FLUSH, FLUSH], f"{found['error_code']}, {offset} cycles"

    for number in range(WINDOW + 1):
        offset = took[0] - WINDOW * 3 // 4 + number if took else 0
        await rig.run(lambda pe, offset=offset: main(pe, offset), sanitize=False)
        await rig.settle()
        await renew(rig, qp, back, (rng.getrandbits(24), rng.getrandbits(24)), cqs=True)
    await rig.check()


@cocotb.test()
async def test_doorbells_around_a_modify(dut) -> None:
    """Two more WQEs are announced around the command that moves their QP to ERR: each WQE gets one CQE."""
    rng = random.Random(f"around a modify {cocotb.RANDOM_SEED}")
    stage = Stage(dut, small(rng), ())
    await stage.start()
    rig, qp, back = stage.rig, stage.ends[0, 1, 0], stage.ends[1, 0, 0]
    words = rig.fabric.contexts(qp.plan)[0].stage_words()
    words[8] = 2
    *staged, (register, command) = command_writes(CmdOp.MODIFY, CmdObj.QP, qp.plan.qpn, words)
    flushed = 0

    async def post(pe: Pe) -> None:
        if pe.rank == 0:
            await qp.put(*[qp.fields(64, 64 * k) for k in range(4)])
            await qp.ring_sq(qp.head - 2)

    async def take(pe: Pe) -> list[int]:
        return (await qp.collect(4, PATIENCE))["error_code"].tolist() if pe.rank == 0 else []

    for number in range(WINDOW):
        for addr, word in staged:
            await rig.lib.write(0, addr, word)
        await rig.run(post, sanitize=False)
        # the command takes some 40 cycles
        ring = doorbell.sq_encode(qp.head, qp.plan.qpn, qp.plan.version)
        writes = [(0, register, command), (number, qp.address(0), int(ring))]
        if number % 4 == 3:
            writes = [(0, qp.address(0), int(ring)), (number // 2, register, command)]
        await rig.lib.cycles(rng.randrange(1, 200))
        for wait, addr, word in writes:
            await rig.lib.cycles(wait + 1)
            assert rig.lib.mmio_write(0, addr, word)
        while await stage.console[0].read(CMD_STATUS) & 1:
            pass
        codes = (await rig.run(take, sanitize=False)).returns[0]
        good = codes.count(0)
        flushed += len(codes) - good
        assert codes == [0] * good + [FLUSH] * (4 - good), f"{codes}, {writes}"
        await rig.settle()
        assert not qp.visible(), f"a CQE too many, {writes}"
        assert await stage.console[0].states(qp.plan.qpn) == "ERR"
        await renew(rig, qp, back, (rng.getrandbits(24), rng.getrandbits(24)), cqs=True)
    assert flushed >= 2 * WINDOW, f"{flushed} flush CQEs"
    await stage.events(set())
    await rig.check()


@cocotb.test()
async def test_doorbells_before_a_reset(dut) -> None:
    """Two more WQEs are announced, and so many cycles later their QP is reset."""
    rng = random.Random(f"before a reset {cocotb.RANDOM_SEED}")
    # CQEs are visible long after their writes have left the NIC
    stage = Stage(dut, small(rng), (), knobs={"mem_latency": 100, "commit_delay": 400})
    await stage.start()
    rig, qp, back = stage.rig, stage.ends[0, 1, 0], stage.ends[1, 0, 0]

    async def post(pe: Pe) -> None:
        if pe.rank == 0:
            await qp.put(*[any_good(qp, rng) for _ in range(6)])
            await qp.ring_sq(qp.head - 2)

    async def use(pe: Pe) -> None:
        if pe.rank == 0:
            await qp.post(*[any_good(qp, rng) for _ in range(4)])
            found = await qp.collect(4, PATIENCE)
            assert not found["error_code"].any(), found["error_code"]

    for offset in range(1, WINDOW + 1):
        await rig.run(post, sanitize=False)
        await rig.lib.cycles(rng.randrange(1, 1200))
        assert rig.lib.mmio_write(
            0, qp.address(0), int(doorbell.sq_encode(qp.head, qp.plan.qpn, qp.plan.version))
        )
        await rig.lib.cycles(offset)
        for addr, data in command_writes(CmdOp.RESET, CmdObj.QP, qp.plan.qpn):
            assert rig.lib.mmio_write(0, addr, data)
        while await stage.console[0].read(CMD_STATUS) & 1:
            pass
        seen = qp.visible()
        await rig.settle()
        assert qp.visible() == seen, f"a CQE after the reset, {offset} cycles"
        await renew(rig, qp, back, (rng.getrandbits(24), rng.getrandbits(24)), cqs=True)
        await rig.run(use, sanitize=False)
        await renew(rig, qp, back, (rng.getrandbits(24), rng.getrandbits(24)), cqs=True)
    await rig.check()


#: doorbells behind a RESET: register of the page, indices from the head or tail
DOORBELLS = {
    "new": (0, 2), "none": (0, 0), "overrun": (0, DEPTH + 1), "stale": (0, -1), "receive": (8, 1),
    "consumed": (16, 0), "beyond": (16, DEPTH + 1), "backward": (16, -1),
}  # fmt: skip


@cocotb.test()
@cocotb.parametrize(state=["RTS", "ERR"])
async def test_doorbells_behind_a_reset(dut, state: str) -> None:
    """The command is on the bus before the doorbell, so its QP is in RESET, however long it takes."""
    rng = random.Random(f"behind a reset {cocotb.RANDOM_SEED}")
    stage = Stage(dut, small(rng), (), knobs={"mem_latency": 100, "commit_delay": 300})
    await stage.start()
    rig, qp, back, console = stage.rig, stage.ends[0, 1, 0], stage.ends[1, 0, 0], stage.console[0]
    busy = 0

    async def post(pe: Pe) -> None:
        if pe.rank == 0:
            bad = [qp.fields(64, lkey=0)] if state == "ERR" else []
            await qp.post(*bad, *[any_good(qp, rng) for _ in range(6)])
            if bad:
                assert await qp.until(1, PATIENCE)
            # the doorbell below announces these
            await qp.put(any_good(qp, rng), any_good(qp, rng))

    async def use(pe: Pe) -> None:
        if pe.rank == 0:
            await qp.post(*[any_good(qp, rng) for _ in range(4)])
            found = await qp.collect(4, PATIENCE)
            assert not found["error_code"].any(), found["error_code"]
            await qp.ring_cq()

    due = dict.fromkeys((Cnt.DB_RESET, Cnt.DB_OVERRUN, Cnt.DB_STALE, Cnt.DB_RQ, Cnt.DB_CQ_BEYOND), 0)
    kinds = list(DOORBELLS.items())
    rng.shuffle(kinds)
    for offset in range(WINDOW):
        name, (register, ahead) = kinds[offset % len(kinds)]
        await rig.run(post, sanitize=False)
        await rig.lib.cycles(rng.randrange(1, 700))
        # consumed, but not told
        qp.tail += qp.visible()
        index = (qp.tail if register == 16 else qp.head - 2) + ahead
        data = {
            0: doorbell.sq_encode(index % (1 << 32), qp.plan.qpn, qp.plan.version),
            8: doorbell.rq_encode(1, qp.plan.qpn),
            16: doorbell.cq_encode(index % (1 << 32), qp.plan.cqn, rng.randrange(4)),
        }[register]
        for addr, word in command_writes(CmdOp.RESET, CmdObj.QP, qp.plan.qpn):
            assert rig.lib.mmio_write(0, addr, word)
        await rig.lib.cycles(offset + 1)
        assert rig.lib.mmio_write(0, qp.address(register), int(data))
        if await console.read(CMD_STATUS) & 1:
            busy += 1
        while await console.read(CMD_STATUS) & 1:
            pass
        due[Cnt.DB_RESET] += 1
        seen = qp.visible()
        await rig.settle()
        where = f"{name} doorbell {offset} cycles behind the reset"
        assert qp.visible() == seen, f"a CQE after the {where}"
        found = {number: await console.counter(number) for number in due}
        assert found == due, where
        assert await console.states(qp.plan.qpn) == "RESET" and not await console.asyncs(), where
        assert not await console.read(Csr.CQ_EVENT), where
        # other indices, other PSNs
        qp.plan = replace(qp.plan, start_index=rng.getrandbits(17))
        await renew(rig, qp, back, (rng.getrandbits(24), rng.getrandbits(24)), cqs=True)
        await rig.run(use, sanitize=False)
        await rig.run(use, sanitize=False)
        await renew(rig, qp, back, (rng.getrandbits(24), rng.getrandbits(24)), cqs=True)
    assert busy > WINDOW // 4, f"the reset was busy at {busy} doorbells only"
    await rig.check()
