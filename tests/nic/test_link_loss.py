"""A link that loses, doubles, delays, reorders and damages packets: everything still happens exactly once.

Sweep: each kind of fault at 1 % of all packets, all kinds together at 3 %; each class of packet hit once by
each kind, at a planned place, under every kind of WQE. V1 and V2, all MTUs, wraps of PSN and ring.
Stimulus: WRITEs, READs and atomics of random lengths in random order on several QPs in both directions.
Checks: every CQE good and in order; final memory and every packet by the judge; retransmissions only where
something explains them; damaged frames counted as the fault log says.
Timing: timers and RNR waits are not shorter than they must be. Not proved: more than 2 NICs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import cocotb
import numpy as np

from pymodel.device import Pe
from pymodel.faults.log import counts, text
from pymodel.faults.rule import Action
from pymodel.formats import packet
from pymodel.formats.packet import Bth
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from pymodel.platform import sleep
from tests.nic.raw import FLUSH, RawQp
from tests.nic.stage import DEPTH, READS, RESULTS, WORDS, WRITES, Stage, any_good, local

PES = 2
QPS = 4
#: 2^6 units of 64 cycles
TIMER = 6
KINDS = {"drop": "drop", "duplicate": "duplicate", "delay": "delay 2us", "reorder": "reorder 2",
         "corrupt": "corrupt 1 bit"}  # fmt: skip
CLASSES = ("write", "write_middle", "write_last", "read", "atomic", "read_response_first",
           "read_response_middle", "read_response_last", "read_response_only", "ack", "nak",
           "atomic_response")  # fmt: skip
#: counters of frames that were damaged on the way
DAMAGE = (
    Cnt.DROP_SHORT, Cnt.DROP_MAC, Cnt.DROP_ETHERTYPE, Cnt.DROP_IPV4, Cnt.DROP_IP_DST, Cnt.DROP_UDP_PORT,
    Cnt.DROP_LENGTH, Cnt.DROP_ICRC, Cnt.DROP_TVER, Cnt.DROP_OPCODE, Cnt.DROP_PKEY,
)  # fmt: skip
PATIENCE = 300_000


def fabric(**override: Any) -> Fabric:
    """Several QPs each way, everything mixed, short timers."""
    seed = cocotb.RANDOM_SEED
    fields = {"timer": TIMER, **override}
    every = {(pe, 1 - pe, q): fields for pe in (0, 1) for q in range(QPS)}
    config = FabricConfig.mixed(2, QPS, seed, sq_depths=(DEPTH,), heap_bytes=32 << 20, overrides=every)
    return Fabric.build(config)


async def lossy(dut: Any, rules: Sequence[str], laps: int, **override: Any) -> tuple[Stage, Any]:
    """Traffic over a link with these rules, judged; gives the stage and the fault log."""
    stage = Stage(dut, fabric(**override), (), faults=list(rules))
    await stage.start()

    async def traffic(qp: RawQp) -> None:
        rng = random.Random(f"loss {stage.seed} {qp.plan.pe} {qp.plan.qpn}")
        for _ in range(laps):
            await qp.post(*[any_good(qp, rng) for _ in range(DEPTH)])
            found = await qp.collect(DEPTH, PATIENCE)
            assert not found["error_code"].any(), f"QPN {qp.plan.qpn}: {found['error_code']}"
            await qp.ring_cq()

    async def main(pe: Pe) -> None:
        mine = [qp for key, qp in stage.ends.items() if key[0] == pe.rank]
        for task in [await pe.spawn(traffic(qp), f"QPN {qp.plan.qpn}") for qp in mine]:
            await pe.join(task)

    result = await stage.rig.run(main, hang_after=PATIENCE)
    await stage.rig.check(result)
    log = stage.rig.fault_log()
    copies = int(log["amount"][log["action"] == Action.DUPLICATE].sum())
    arrived = stage.rig.summary.packets + copies - counts(log)["drop"]
    assert stage.rig.judge is not None and int(stage.rig.judge.state.rx_frames.sum()) == arrived
    return stage, log


async def damage(stage: Stage, log: np.ndarray) -> None:
    """Frames that were dropped as damaged: no more than were corrupted."""
    corrupted = int(np.count_nonzero(log["action"] == Action.CORRUPT))
    seen = [await stage.console[pe].counter(n) for pe in (0, 1) for n in DAMAGE]
    assert corrupted // 2 <= sum(seen) <= corrupted, f"{sum(seen)} of {corrupted} corrupted frames"


@cocotb.test()
@cocotb.parametrize(kind=[*KINDS, "all"])
async def test_one_percent(dut, kind: str) -> None:
    """A hundredth of all packets, each with the same fault; or each of them with any of five."""
    rules = [f"every 1/{160 if kind == 'all' else 100}: {KINDS[k]}" for k in KINDS if kind in (k, "all")]
    stage, log = await lossy(dut, rules, 12)
    seen = counts(log)
    assert all(seen[k] > 3 for k in KINDS if kind in (k, "all")), seen
    await damage(stage, log)
    retries = sum([await stage.console[pe].counter(Cnt.RETRY) for pe in (0, 1)])
    assert retries > 0 or kind in ("duplicate", "delay"), text(log, stage.rig.lib.fault_rules)


@cocotb.test()
@cocotb.parametrize(kind=list(KINDS))
async def test_planned_packets(dut, kind: str) -> None:
    """One packet of each class, each at a random place, one after the other."""
    rng = random.Random(f"planned {cocotb.RANDOM_SEED}")
    rules = [f"opcode {name} nth {rng.randrange(1, 7)}: {KINDS[kind]} once" for name in CLASSES]
    stage, log = await lossy(dut, rules, 6)
    # a NAK comes only where something was lost, and rules in front take some of the packets
    assert len(set(log["rule"].tolist())) >= len(CLASSES) - 3, text(log, stage.rig.lib.fault_rules)
    await damage(stage, log)


@cocotb.test()
@cocotb.parametrize(timer=[3, 4, 5])
async def test_short_timers(dut, timer: int) -> None:
    """Timers that expire while answers are on their way: what is sent again was mostly not lost."""
    rules = [f"every 1/150: {KINDS[k]}" for k in KINDS]
    stage, log = await lossy(dut, rules, 8, timer=timer)
    await damage(stage, log)
    assert sum([await stage.console[pe].counter(Cnt.DUPLICATE) for pe in (0, 1)]) > 20


@cocotb.test()
@cocotb.parametrize(lost=["request", "response_middle", "response_only", "atomic_response"])
async def test_without_a_timer(dut, lost: str) -> None:
    """Timer 0: NAK 0, data ahead, and an ACK that passes an unanswered READ or atomic suffice."""
    stage = Stage(dut, fabric(timer=0, mtu=256), ())
    await stage.start()
    qp, lib = stage.ends[0, 1, 0], stage.rig.lib
    name = {"request": "write_only", "atomic_response": "atomic_response"}.get(lost, f"read_{lost}")
    lib.set_faults(f"opcode {name}: drop once")
    first = {
        "request": qp.fields(64, WRITES), "response_middle": qp.read(900, 0, laddr=local(qp, READS)),
        "response_only": qp.read(100, 0, laddr=local(qp, READS)),
        "atomic_response": qp.atomic(27, WORDS, RESULTS),
    }[lost]  # fmt: skip

    async def main(pe: Pe) -> None:
        if pe.rank == 0:
            await qp.post(first, qp.fields(300, WRITES + 1024))
            found = await qp.collect(2, PATIENCE)
            assert not found["error_code"].any(), found["error_code"]
            await qp.ring_cq()

    result = await stage.rig.run(main, hang_after=PATIENCE)
    assert counts(stage.rig.fault_log())["drop"] == 1
    assert await stage.console[0].counter(Cnt.RETRY) == 1
    await stage.rig.check(result)


@cocotb.test()
@cocotb.parametrize(limit=[0, 1, 3])
async def test_retry_limit(dut, limit: int) -> None:
    """A packet that never arrives: so many passes, then a2, and the rest is flushed."""
    stage = Stage(dut, fabric(retry_cnt=limit), ())
    await stage.start()
    qp = stage.ends[0, 1, 1]
    stage.rig.lib.set_faults(f"direction 0->1 qp {qp.plan.peer_qpn} opcode request: drop")
    rng = random.Random(f"limit {stage.seed}")

    async def main(pe: Pe) -> None:
        if pe.rank:
            return
        await qp.post(*[any_good(qp, rng, ce=1) for _ in range(4)])
        found = await qp.collect(4, PATIENCE)
        assert found["error_code"].tolist() == [0xA2, FLUSH, FLUSH, FLUSH], found["error_code"]
        await qp.ring_cq()

    result = await stage.rig.run(main, hang_after=PATIENCE)
    assert await stage.console[0].counter(Cnt.RETRY) == limit
    await stage.rig.check(result)


@cocotb.test()
@cocotb.parametrize(limit=[0, 2, 7])
async def test_rnr(dut, limit: int) -> None:
    """A responder that is not ready: again after its time, at most rnr_retry times (7: for ever), then a3."""
    stage = Stage(dut, fabric(rnr_retry=limit, timer=0), ())
    await stage.start()
    qp, lib = stage.ends[0, 1, 2], stage.rig.lib
    mine, peer = stage.rig.fabric.pes
    lib.set_faults(f"direction 0->1 qp {qp.plan.peer_qpn} opcode request: drop")
    rng = random.Random(f"rnr {stage.seed}")
    times = 9 if limit == 7 else limit + 1

    async def main(pe: Pe) -> None:
        if pe.rank:
            return
        await qp.post(*[any_good(qp, rng, (1, 2), ce=1) for _ in range(3)])
        await sleep(2000)
        for number in range(times):
            code = rng.randrange(1, 8)
            fields = {
                "dst_mac": mine.mac, "src_mac": peer.mac, "dst_ip": mine.ip, "src_ip": peer.ip,
                "psn": qp.plan.sq_psn, "udp_sport": 0xC000, "dest_qp": qp.plan.qpn, "opcode": Bth.ACK,
                "syndrome": 0x20 | code, "msn": 0,
            }  # fmt: skip
            if number == times - 1 and limit == 7:
                lib.set_faults([])
            lib.inject(0, packet.frame(fields, b""))
            await sleep(2500)
        found = await qp.collect(3, PATIENCE)
        due = [0] * 3 if limit == 7 else [0xA3, FLUSH, FLUSH]
        assert found["error_code"].tolist() == due, found["error_code"]
        await qp.ring_cq()

    result = await stage.rig.run(main, hang_after=PATIENCE)
    assert await stage.console[0].counter(Cnt.RETRY) == (times if limit == 7 else limit)
    assert await stage.console[0].counter(Cnt.RNR_RX) == times
    await stage.rig.check(result)
