"""Fault rules of memory on the RTL: the words that fail, bursts that are late, what the NIC makes of them.

Sweep: SLVERR and DECERR at chosen addresses and at random words, for reads, writes and both; stalls of reads
and of write responses, once, at every third access and at random. Stimulus: WRITEs, READs and atomics of
several QPs in both directions; QPs that failed are set again and go on. Checks: time, address and rule of
each fault in the log, only words that the rule says; the specified error codes; the judge's, which is told
the rules; an error that it is not told of is named. Timing: a stalled WQE takes as much longer. Not proved:
errors of CQE writes.
"""

from __future__ import annotations

import random
from typing import Any

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.faults import MemoryRule, parse
from pymodel.faults.log import memory_counts, text
from pymodel.faults.memory import key_of
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.judge import Check
from pymodel.nic.params import AxiId
from tests.nic.raw import FLUSH, RawQp, renew
from tests.nic.stage import DEPTH, OWN, READS, WRITES, Stage, any_good, local, remote

PES, QPS = 2, 3
PATIENCE = 300_000
#: name -> (rule, WQE, error code); places are filled in by `test_chosen_addresses`
CHOSEN = {
    "source slverr": ("memory pe 0 read {own}: slverr", "write", 0xB2),
    "target decerr": ("memory pe 1 write {target}: decerr", "write", 0xA6),
    "sink decerr": ("memory pe 0 {sink}: decerr", "read", 0xB3),
    "far source slverr": ("memory pe 1 read {far}: slverr", "read", 0xA6),
}  # fmt: skip
#: stalls -> accesses that they meet at the most, None: no limit
STALLS = {
    "memory pe 0 read: stall 3us once": 1,
    "memory pe 1 write: stall 3us, 2 times": 2,
    "memory every 3rd: stall 400 cycles": None,
    "memory every 1/5: stall 1us": None,
}


def fabric(seed: int) -> Fabric:
    """Everything mixed; a QP whose peer is gone gives up after three timers of 2^9 units."""
    ends = {
        (pe, 1 - pe, q): {"timer": 9, "retry_cnt": 2, "sq_depth": DEPTH, "cq_depth": DEPTH}
        for pe in range(PES)
        for q in range(QPS)
    }
    return Fabric.build(FabricConfig.mixed(PES, QPS, seed, heap_bytes=32 << 20, overrides=ends))


def spot(addr: int) -> str:
    """The word of an address, as rules name it."""
    return f"{addr & ~63:#x}-{addr | 63:#x}"


async def post(stage: Stage, qp: RawQp, *items: dict[str, Any]) -> list[int]:
    """Error codes of WQEs that PE 0 posts."""

    async def main(pe: Pe) -> None:
        if pe.rank == 0:
            await qp.post(*items)
            await qp.until(len(items), PATIENCE)

    await stage.rig.run(main, sanitize=False, hang_after=PATIENCE)
    await stage.rig.settle()
    codes: list[int] = qp.take(len(items))["error_code"].tolist()
    return codes


@cocotb.test()
async def test_chosen_addresses(dut) -> None:
    """One word of each place fails: its code, and exactly the beats of that word in the log."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), (), stall_limit=PATIENCE)
    await stage.start()
    qp, back, rig = stage.ends[0, 1, 0], stage.ends[1, 0, 0], stage.rig
    good = qp.read(64, 0, laddr=local(qp, READS + 16384))
    places = {"own": local(qp, OWN) + 4100, "target": remote(qp, WRITES) + 4100,
              "sink": local(qp, READS) + 4100, "far": remote(qp, OWN) + 4100}  # fmt: skip
    seen = 0
    for name, (rule, kind, code) in CHOSEN.items():
        rule = rule.format(**{key: spot(addr) for key, addr in places.items()})
        rig.set_faults(rule)
        own = {"laddr": local(qp, OWN)} if "own" in CHOSEN[name][0] else {}
        item = qp.fields(6000, WRITES, **own)
        if kind == "read":
            item = qp.read(6000, 0, laddr=local(qp, READS), raddr=remote(qp, OWN))
        codes = await post(stage, qp, good, item, good)
        assert codes == [0, code, FLUSH], f"{name}: {codes}"
        log, seen = rig.memory_log()[seen:], len(rig.memory_log())
        (parsed,) = parse(rule)
        assert isinstance(parsed, MemoryRule) and parsed.address is not None and log.size
        for entry in log:
            assert parsed.address[0] <= int(entry["addr"]) <= parsed.address[1] and entry["time"] > 0
            assert bool(entry["write"]) <= parsed.write and entry["action"] == parsed.action
            assert rig.lib.fault_rules[int(entry["rule"])] == parsed
        rig.set_faults([])
        await renew(rig, qp, back, (seen, 3 * seen), cqs=True)
    await rig.check()


@cocotb.test()
async def test_random_words(dut) -> None:
    """Random words of the heaps fail for reads, others for writes; QPs fail and go on; the judge agrees."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), (), stall_limit=PATIENCE)
    await stage.start()
    rig, rng = stage.rig, random.Random(f"words {cocotb.RANDOM_SEED}")
    seen, failed, codes = 0, 0, set()
    for _ in range(8):
        rules = []
        for pe in rig.fabric.pes:
            heap = f"{pe.heap_base:#x}-{pe.heap_base + pe.heap_size - 1:#x}"
            for way, share in (("read", 250), ("write", 200)):
                kind = rng.choice(("slverr", "decerr"))
                rules.append(f"memory pe {pe.rank} {way} {heap} every 1/{share}: {kind}")
        first = len(rig.lib.fault_rules)
        rig.set_faults(rules)
        dead: set[int] = set()

        async def traffic(pe: int, q: int, dead: set[int] = dead) -> None:
            qp = stage.ends[pe, 1 - pe, q]
            own = random.Random(rng.getrandbits(64))
            await qp.post(*[any_good(qp, own) for _ in range(DEPTH)])
            found = (await qp.collect(DEPTH, PATIENCE))["error_code"]
            await qp.ring_cq()
            bad = np.flatnonzero(found)
            if bad.size:
                dead.add(q)
                codes.add(int(found[bad[0]]))
                assert (found[bad[0] + 1 :] == FLUSH).all()

        async def main(pe: Pe) -> None:
            for task in [await pe.spawn(traffic(pe.rank, q), f"QP {q}") for q in range(QPS)]:
                await pe.join(task)

        await rig.run(main, hang_after=PATIENCE)
        await rig.settle()
        log, seen = rig.memory_log()[seen:], len(rig.memory_log())
        for entry in log:
            n = int(entry["rule"])
            rule = rig.lib.fault_rules[n]
            assert isinstance(rule, MemoryRule)
            key = key_of(rig.seed, n - first)
            assert rule.fails(int(entry["pe"]), int(entry["addr"]), 1, bool(entry["write"]), key), entry
        failed += len(dead)
        rig.set_faults([])
        for q in dead:
            psns = rng.getrandbits(24), rng.getrandbits(24)
            await renew(rig, stage.ends[0, 1, q], stage.ends[1, 0, q], psns, cqs=True)
    await rig.check()
    assert failed >= 3 and len(codes - {FLUSH}) >= 2, f"{failed} QPs failed with {codes}"


@cocotb.test()
async def test_an_error_without_a_rule_is_named(dut) -> None:
    """The judge is not told: it names the response that nothing explains."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), (), stall_limit=PATIENCE)
    await stage.start()
    qp = stage.ends[0, 1, 0]
    stage.rig.lib.set_faults(f"memory pe 1 write {spot(remote(qp, WRITES) + 100)}: decerr")
    assert (await post(stage, qp, qp.fields(500, WRITES)))[0] == 0xA6
    assert stage.rig.judge is not None and stage.rig.judge.counts[Check.AXI_RESP] == 1
    assert "nothing there answers with an error" in stage.rig.judge.report()


@cocotb.test()
@cocotb.parametrize(rule=list(STALLS))
async def test_stalls(dut, rule: str) -> None:
    """Late data and late responses change nothing but the time; the log has each."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), (), faults=rule, stall_limit=PATIENCE)
    await stage.start()
    rig, limit = stage.rig, STALLS[rule]

    async def traffic(qp: RawQp) -> None:
        own = random.Random(f"stall {stage.seed} {qp.plan.pe} {qp.plan.qpn}")
        for _ in range(2):
            await qp.post(*[any_good(qp, own) for _ in range(DEPTH)])
            assert not (await qp.collect(DEPTH, PATIENCE))["error_code"].any()
            await qp.ring_cq()

    async def main(pe: Pe) -> None:
        mine = [qp for key, qp in stage.ends.items() if key[0] == pe.rank]
        for task in [await pe.spawn(traffic(qp), f"QPN {qp.plan.qpn}") for qp in mine]:
            await pe.join(task)

    await rig.check(await rig.run(main, hang_after=PATIENCE))
    log = rig.memory_log()
    (parsed,) = rig.lib.fault_rules
    assert isinstance(parsed, MemoryRule)
    met = memory_counts(log)["stall"]
    assert met == limit if limit else met > 20, text(rig.fault_log(), rig.lib.fault_rules, log)
    assert (log["amount"] == parsed.amount).all()
    assert set(log["write"].tolist()) <= {w for w, on in ((0, parsed.read), (1, parsed.write)) if on}


@cocotb.test()
async def test_a_stall_is_late_by_its_time(dut) -> None:
    """The same WRITE without and with a stall of its fetch, of its source, of its target's response."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), (), stall_limit=PATIENCE)
    await stage.start()
    qp, rig, amount = stage.ends[0, 1, 0], stage.rig, 1500
    took = []
    rules = ["", "memory pe 0 read", f"memory pe 0 read {spot(local(qp, OWN))}", "memory pe 1 write"]
    for rule in rules:
        rig.set_faults(f"{rule}: stall {amount} cycles once" if rule else [])
        begin = [0, 0]

        async def main(pe: Pe, begin: list[int] = begin) -> None:
            if pe.rank == 0:
                begin[0] = rig.lib.cycle
                await qp.post(qp.fields(64, WRITES, laddr=local(qp, OWN)))
                await qp.until(1, PATIENCE)
                begin[1] = rig.lib.cycle

        await rig.run(main, sanitize=False, hang_after=PATIENCE)
        await rig.settle()
        assert qp.take(1)["error_code"].tolist() == [0]
        took.append(begin[1] - begin[0])
    for rule, cycles in zip(rules[1:], took[1:], strict=True):
        assert amount - 16 <= cycles - took[0] <= amount + 64, f"{rule}: {cycles} instead of {took[0]}"
    ids = rig.memory_log()["id"].tolist()
    assert ids == [AxiId.FETCH, AxiId.GATHER, AxiId.INBOUND]
    await rig.check()


@cocotb.test()
async def test_a_nak_that_waits_behind_a_failing_result(dut) -> None:
    """A NAK 3 stands in the receive path behind READ data whose write fails late: it may be dropped.

    The READ is reported with b3, the WRITE that the NAK was for is flushed.
    """
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), (), stall_limit=PATIENCE)
    await stage.start()
    qp, rig = stage.ends[0, 1, 0], stage.rig
    sink, target = local(qp, READS), remote(qp, WRITES)
    rig.set_faults(
        [
            f"memory pe 0 write {sink:#x}-{sink + 32767:#x}: stall 1us",
            f"memory pe 0 write {spot(sink + 100)}: slverr",
            f"memory pe 1 write {spot(target)}: decerr",
        ]
    )
    codes = await post(stage, qp, qp.read(30000, 0, laddr=sink), qp.fields(64, WRITES))
    assert codes == [0xB3, FLUSH], codes
    await rig.check()
