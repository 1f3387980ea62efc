"""Our bench as `make bench` measures it: all monitors, the judge on every record, rings kept full.

Sweep: one workload per run, from the environment: FAST_QPS x FAST_WQES WRITEs of FAST_BYTES from each sending
PE to the next one (FAST_SENDERS=one: PE 0 alone, the work of tests/bench_classic); FAST_DEPTH of the rings;
FAST_LATENCY of memory and link.
Stimulus: WQEs posted in bulk whenever half a ring is free; Python sleeps in between.
Checks: the judge (every packet, byte, CQE, doorbell), final memory, counters, nothing outstanding.
Timing: CPU time from the reset to the last check, clock cycles, wake-ups, link use go to FAST_OUT as JSON;
FAST_RECORD takes the workload for the bare C++ loop.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cocotb
import numpy as np

from pymodel.formats import doorbell
from pymodel.formats import wqe as wqe_format
from pymodel.host.table import HEAP_SYNC_BYTES, Fabric, FabricConfig, QpPlan
from pymodel.nic import csr_map
from pymodel.nic.judge import Judge, Kind, PeConfig
from tb.sim.lib import Reason, SimLib

BEAT_BYTES = 64
OWNER_BYTE = 31
STATUS_BUSY = 1


async def bring_up(sim: SimLib, fabric: Fabric) -> None:
    """Contexts of all PEs; a refused command fails."""
    for pe in fabric.pes:
        for op in pe.bringup:
            if op.kind == "write":
                await sim.write(pe.rank, op.addr, op.data)
                continue
            while (status := await sim.read(pe.rank, csr_map.STATUS)) & STATUS_BUSY:
                pass
            assert status >> 8 & 0xFF == 0, f"{op.what}: refused with code {status >> 8 & 0xFF}"


class Sender:
    """Keeps one QP's ring full; touched once per half ring."""

    def __init__(self, sim: SimLib, fabric: Fabric, plan: QpPlan, wqes: int, size: int, span: int) -> None:
        self.sim, self.fabric, self.plan, self.wqes, self.size = sim, fabric, plan, wqes, size
        place = HEAP_SYNC_BYTES + plan.qp_idx * span
        self.source = fabric.pes[plan.pe].heap_base + place
        self.target = fabric.pes[plan.peer].heap_base + span * fabric.config.qps + place
        self.slots = max(1, span // size) if size else 1
        self.head = self.tail = 0
        ring = sim.memory(plan.pe, plan.cq_base, plan.cq_depth * plan.cq_stride)
        self.owner = ring.reshape(plan.cq_depth, plan.cq_stride)[:, OWNER_BYTE]

    def completed(self) -> int:
        """CQEs beyond the tail that are valid by their owner bit."""
        depth = self.plan.cq_depth
        index = np.arange(self.tail, self.head)
        valid = self.owner[index % depth] >> 7 == (index // depth & 1)
        return int(valid.argmin()) if not valid.all() else valid.size

    def step(self) -> None:
        """Take completions, give CQ room back, post what fits, arm the next watch."""
        plan, params = self.plan, self.fabric.config.params
        new = self.completed()
        if new:
            self.tail += new
            word = int(doorbell.cq_encode(self.tail, plan.cqn))
            assert self.sim.mmio_write(plan.pe, params.db_address(plan.qpn, params.db_cq), word)
        room = min(plan.sq_depth - (self.head - self.tail), self.wqes - self.head)
        if room:
            self.post(room)
        if self.tail < self.wqes:
            hits = min(max(1, plan.sq_depth // 2), self.head - self.tail)
            ring = plan.cq_depth * plan.cq_stride
            self.watch = self.sim.watch(plan.pe, plan.cq_base, ring, hits)

    def post(self, count: int) -> None:
        """Write `count` WQEs, at most two stores, and one doorbell."""
        plan, params = self.plan, self.fabric.config.params
        index = np.arange(self.head, self.head + count)
        offset = (index % self.slots * self.size).astype(np.uint64)
        fields: Mapping[str, Any] = {
            "wqe_id": wqe_format.wqe_id_of(index, plan.version),
            "msg_opcode": int(wqe_format.WqeOp.WRITE),
            "ds_data_num": 2,
            "ce": 1,
            "msg_len": self.size,
            "r_len": self.size,
            "l_len": self.size,
            "raddr": np.uint64(self.target) + offset,
            "laddr": np.uint64(self.source) + offset,
            "rkey": self.fabric.pes[plan.peer].heap_rkey,
            "lkey": self.fabric.pes[plan.pe].heap_lkey,
        }
        slots = wqe_format.pack(fields, plan.version)
        first = self.head % plan.sq_depth
        before_end = min(count, plan.sq_depth - first)
        place = plan.sq_base + first * wqe_format.WQE_BYTES
        self.sim.store(plan.pe, place, slots[:before_end].reshape(-1))
        if before_end < count:
            self.sim.store(plan.pe, plan.sq_base, slots[before_end:].reshape(-1))
        self.head += count
        word = int(doorbell.sq_encode(self.head, plan.qpn, plan.version))
        assert self.sim.mmio_write(plan.pe, params.db_address(plan.qpn, params.db_sq), word)


class Link:
    """First and last beat, beats and packets of one NIC's transmit side, from the records."""

    def __init__(self, pe: int) -> None:
        self.pe = pe
        self.packets = self.beats = 0
        self.first = self.last = self.doorbell = 0

    def add(self, records: Any) -> None:
        """Take a batch in."""
        mine = records[records["pe"] == self.pe]
        bells = mine[mine["kind"] == Kind.MMIO_W]
        if not self.doorbell and bells.size:
            bells = bells[bells["addr"] >= np.uint64(1 << 27)]
            self.doorbell = int(bells["time"][0]) if bells.size else 0
        sent = mine[mine["kind"] == Kind.TXPKT]
        if sent.size:
            self.packets += sent.size
            self.beats += int((-(-sent["len"].astype(np.int64) // BEAT_BYTES)).sum())
            self.first = self.first or int(sent["aux0"][0])
            self.last = int(sent["time"][-1])


@cocotb.test()
async def fast(dut: Any) -> None:
    """The workload, all checks, the measured figures."""
    qps, wqes, size, depth = (int(os.environ[f"FAST_{name}"]) for name in ("QPS", "WQES", "BYTES", "DEPTH"))
    latency = int(os.environ.get("FAST_LATENCY", "20"))
    sim = SimLib(dut)
    workload = sim.record() if os.environ.get("FAST_RECORD") else None
    # a window of each QP's own in the heap, walked round and round
    span = -(-max(size, min(wqes * size, 1 << 20)) // 4096) * 4096
    heap = HEAP_SYNC_BYTES + max(HEAP_SYNC_BYTES, 2 * qps * span)
    config = FabricConfig(
        n_pes=sim.n_pes, qps=qps, seed=cocotb.RANDOM_SEED, heap_bytes=heap, sq_depths=(depth,)
    )
    fabric = Fabric.build(config)
    sim.set_knob("mem_latency", latency)
    sim.set_knob("link_latency", latency)
    sim.stall_limit = 100_000
    contents = np.random.default_rng(cocotb.RANDOM_SEED).integers(0, 256, qps * span, np.uint8)
    for pe in fabric.pes:
        sim.set_mac(pe.rank, pe.mac)
        for region in pe.regions:
            sim.add_region(pe.rank, region.base, region.size, region.fill)
        pe.contents.append((pe.heap_base + HEAP_SYNC_BYTES, contents))
        for address, data in pe.contents:
            sim.store(pe.rank, address, data)
    sim.drain()
    judge = Judge([PeConfig.of(pe) for pe in fabric.pes])

    cpu = time.process_time()
    start = sim.cycle
    await sim.reset()
    await bring_up(sim, fabric)
    pes = [0] if os.environ.get("FAST_SENDERS") == "one" else range(sim.n_pes)
    senders = [
        Sender(sim, fabric, fabric.qps[pe, (pe + 1) % sim.n_pes, qp], wqes, size, span)
        for pe in pes
        for qp in range(qps)
    ]
    link = Link(0)

    def check() -> None:
        records = sim.drain()
        link.add(records)
        judge.feed(records, sim.side)

    wakeups, traffic = sim.wakeups, sim.cycle
    for sender in senders:
        sender.step()
    waiting = {sender.watch: sender for sender in senders}
    while waiting:
        reasons = await sim.wake()
        for number in sim.fired():
            sender = waiting.pop(number)
            sender.step()
            if sender.tail < sender.wqes:
                waiting[sender.watch] = sender
        if reasons & Reason.RING:
            check()
    wakeups, traffic = sim.wakeups - wakeups, sim.cycle - traffic
    await sim.cycles(4 * latency + 400)
    check()
    cycles = sim.cycle - start
    if workload is not None:
        sim.end_record().save(Path(os.environ["FAST_RECORD"]))
    for pe in fabric.pes:
        judge.check_memory(pe.rank, sim.dirty(pe.rank), sim.memory)
    cpu = time.process_time() - cpu
    for pe in fabric.pes:
        addresses = [csr_map.COUNTERS + 8 * n for n in range(csr_map.COUNTERS_ENTRIES)]
        judge.check_counters(pe.rank, [await sim.read(pe.rank, address) for address in addresses])
    check()
    judge.finish()
    assert not judge.findings, judge.report()
    assert sim.faults == 0
    if out := os.environ.get("FAST_OUT"):
        figures = {
            "cpu_s": cpu,
            "cycles": cycles,
            "traffic_cycles": traffic,
            "wakeups": wakeups,
            "wqes": wqes * len(senders),
            "payload": wqes * len(senders) * size,
            "packets": link.packets,
            "link_busy": link.beats / (link.last - link.first + 1),
            "cycles_per_wqe": (link.last - link.first + 1) / (wqes * qps),
            "doorbell_to_link": link.first - link.doorbell,
            "batch_records": judge.batch_records,
            "exact_records": judge.exact_records,
        }
        Path(out).write_text(json.dumps(figures), encoding="utf-8")


@cocotb.test()
async def verdict(dut: Any) -> None:
    """The smallest verdict on a NIC model: every NIC answers with its identity."""
    sim = SimLib(dut)
    await sim.reset()
    for pe in range(sim.n_pes):
        assert await sim.read(pe, csr_map.ID) == csr_map.RESET["id"]


@cocotb.test()
async def empty(dut: Any) -> None:
    """Nothing: the price of a process."""
