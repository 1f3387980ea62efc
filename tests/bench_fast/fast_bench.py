"""Our bench as `make bench` measures it: all monitors, the judge on every record, rings kept full.

Sweep: one workload per run, from the environment: FAST_QPS x FAST_WQES requests of FAST_BYTES from each
sending PE to the next one (FAST_SENDERS=one: PE 0 alone, the work of tests/bench_classic); FAST_OP of them:
write, read, or fetch_add, where all PEs but the last one add to one word of the last one; FAST_DEPTH of the
rings; FAST_LATENCY of memory and link.
Stimulus: WQEs posted in bulk whenever half a ring is free; Python sleeps in between.
Checks: the judge behind the UVM scoreboards (every packet, byte, CQE, doorbell), final memory, counters,
nothing outstanding.
Timing: CPU time from the reset to the last check, clock cycles, wake-ups, link use go to FAST_OUT as JSON;
FAST_RECORD takes the workload for the bare C++ loop.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from pyuvm import uvm_root

from pymodel.formats import doorbell
from pymodel.formats import wqe as wqe_format
from pymodel.formats.wqe import WqeOp
from pymodel.host.table import HEAP_SYNC_BYTES, Fabric, FabricConfig, QpPlan
from pymodel.nic import csr_map
from pymodel.nic.params import AxiId
from tb.sim.lib import SimLib
from tb.sim.records import Kind
from tb.uvm.base_test import RdmaTest

BEAT_BYTES = 64
OWNER_BYTE = 31
OPS = {"write": WqeOp.WRITE, "read": WqeOp.READ, "fetch_add": WqeOp.FA64}
# Payload of all heaps together: what is stored before the run goes through the side buffer at once
CONTENTS = 8 << 20


class Sender:
    """Keeps one QP's ring full; touched once per half ring."""

    def __init__(
        self, sim: SimLib, fabric: Fabric, plan: QpPlan, op: WqeOp, wqes: int, size: int, span: int
    ) -> None:
        self.sim, self.fabric, self.plan, self.wqes, self.size = sim, fabric, plan, wqes, size
        self.op = op
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
        remote, local = np.uint64(self.target) + offset, np.uint64(self.source) + offset
        fields: dict[str, Any] = {
            "wqe_id": wqe_format.wqe_id_of(index, plan.version),
            "msg_opcode": int(self.op),
            "ds_data_num": 2,
            "ce": 1,
            "msg_len": self.size,
            "r_len": self.size,
            "l_len": self.size,
            "raddr": remote,
            "laddr": local,
            "rkey": self.fabric.pes[plan.peer].heap_rkey,
            "lkey": self.fabric.pes[plan.pe].heap_lkey,
        }
        if self.op is WqeOp.READ:
            # what a WRITE's target would be is the sink, so that results and sources stay apart
            peer, own = self.fabric.pes[plan.peer].heap_base, self.fabric.pes[plan.pe].heap_base
            fields |= {"raddr": local - np.uint64(own) + np.uint64(peer)}
            fields |= {"laddr": remote - np.uint64(peer) + np.uint64(own)}
        elif self.op is WqeOp.FA64:
            word = np.uint64(self.fabric.pes[plan.peer].heap_base + HEAP_SYNC_BYTES)
            fields |= {"ds_data_num": 3, "in_line": 1, "msg_len": 16, "raddr": word, "swap_add": 1}
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
        #: atomics executed, cycle of the first one's read and of the last one's
        self.atomics = self.first_atomic = self.last_atomic = 0

    def add(self, records: Any, side: Any) -> None:
        """Take a batch in."""
        kind, pe = records["kind"], records["pe"]
        if not self.doorbell:
            bells = records[(kind == Kind.MMIO_W) & (pe == self.pe)]
            bells = bells[bells["addr"] >= np.uint64(1 << 27)]
            self.doorbell = int(bells["time"][0]) if bells.size else 0
        sent = np.flatnonzero((kind == Kind.TXPKT) & (pe == self.pe))
        if sent.size:
            self.packets += sent.size
            self.beats += int((-(-records["len"][sent].astype(np.int64) // BEAT_BYTES)).sum())
            self.first = self.first or int(records["aux0"][sent[0]])
            self.last = int(records["time"][sent[-1]])
        done = np.flatnonzero((kind == Kind.AXI_R) & (pe == self.pe) & (records["id"] == AxiId.ATOMIC))
        if done.size:
            self.atomics += done.size
            self.first_atomic = self.first_atomic or int(records["time"][done[0]])
            self.last_atomic = int(records["time"][done[-1]])


class Fast(RdmaTest):
    """The workload in the whole environment: rig, judge, agents' monitors, scoreboards."""

    figures: dict[str, float] = {}

    def config(self) -> FabricConfig:
        """A ring of senders; each QP has a window of its own in the heap, walked round and round."""
        names = ("QPS", "WQES", "BYTES", "DEPTH", "LATENCY")
        self.qps, self.wqes, self.size, depth, latency = (int(os.environ[f"FAST_{name}"]) for name in names)
        self.knobs = {"mem_latency": latency, "link_latency": latency}
        pes = int(os.environ["FAST_PES"])
        window = min(self.wqes * self.size, CONTENTS // (pes * self.qps))
        self.span = -(-max(self.size, window) // 4096) * 4096
        return FabricConfig(
            n_pes=pes,
            qps=self.qps,
            seed=cocotb.RANDOM_SEED,
            heap_bytes=HEAP_SYNC_BYTES + max(HEAP_SYNC_BYTES, 2 * self.qps * self.span),
            sq_depths=(depth,),
        )

    def make_rig(self) -> Any:
        """Random payload in every heap; the recording starts before anything else happens."""
        rng = np.random.default_rng(cocotb.RANDOM_SEED)
        for pe in self.fabric.pes:
            payload = rng.integers(0, 256, self.qps * self.span, np.uint8)
            pe.contents.append((pe.heap_base + HEAP_SYNC_BYTES, payload))
        rig = super().make_rig()
        if os.environ.get("FAST_RECORD"):
            rig.lib.record()
        return rig

    async def run_phase(self) -> None:
        """As always, with the clock running from the first store to the last check."""
        cpu = time.process_time()
        await super().run_phase()
        self.figures["cpu_s"] = time.process_time() - cpu
        self.figures["cycles"] = self.rig.lib.cycle
        if record := os.environ.get("FAST_RECORD"):
            self.rig.lib.end_record().save(Path(record))

    async def traffic(self) -> None:
        """All rings full until everything is done."""
        lib, fabric = self.rig.lib, self.fabric
        op, last = OPS[os.environ.get("FAST_OP", "write")], fabric.n_pes - 1
        ways = [(pe, (pe + 1) % fabric.n_pes) for pe in range(fabric.n_pes)]
        if op is WqeOp.FA64:
            ways = [(pe, last) for pe in range(last)]
        elif os.environ.get("FAST_SENDERS") == "one":
            ways = ways[:1]
        senders = [
            Sender(lib, fabric, fabric.qps[pe, peer, qp], op, self.wqes, self.size, self.span)
            for pe, peer in ways
            for qp in range(self.qps)
        ]
        # the NIC whose link carries the payload, or that executes the atomics
        link = Link(0 if op is WqeOp.WRITE else ways[0][1])
        self.rig.sinks.append(link.add)
        wakeups, start = lib.wakeups, lib.cycle
        for sender in senders:
            sender.step()
        waiting = {sender.watch: sender for sender in senders}
        while waiting:
            await lib.wake()
            for number in lib.fired():
                sender = waiting.pop(number)
                sender.step()
                if sender.tail < sender.wqes:
                    waiting[sender.watch] = sender
            self.rig.drain()
        wakeups, cycles = lib.wakeups - wakeups, lib.cycle - start
        self.rig.drain()
        busy = link.last - link.first + 1
        self.figures |= {
            "traffic_cycles": cycles,
            "wakeups": wakeups,
            "wqes": self.wqes * len(senders),
            "packets": link.packets,
            "link_busy": link.beats / busy,
            "cycles_per_wqe": busy / (self.wqes * self.qps),
            "doorbell_to_link": link.first - link.doorbell,
            "cycles_per_atomic": (link.last_atomic - link.first_atomic) / max(link.atomics - 1, 1),
        }


@cocotb.test()
async def fast(dut: Any) -> None:
    """The workload; its figures are written only where every check passed."""
    await uvm_root().run_test(Fast)
    Path(os.environ["FAST_OUT"]).write_text(json.dumps(Fast.figures), encoding="utf-8")


@cocotb.test()
async def verdict(dut: Any) -> None:
    """The smallest verdict on a NIC model: every NIC answers with its identity."""
    sim = SimLib(dut)
    await sim.reset()
    for pe in range(sim.n_pes):
        assert await sim.read(pe, csr_map.ID) == csr_map.RESET["id"]
