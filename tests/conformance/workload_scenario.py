"""A run of the stub NIC that is recorded as a workload. Run by test_workload.py; not a test file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import cocotb

from tb.sim.lib import Reason, SimLib, seeded
from tb.sim.records import digest
from tests.conformance.test_testbench import CQ, DOORBELL, DST, MACS, SRC, packet


@cocotb.test()
async def recorded(dut) -> None:
    """Batches of doorbells under random latencies, a few sleeps, some MMIO reads; totals go to a JSON
    file.
    """
    lib = SimLib(dut)
    workload = lib.record()
    for pe in range(lib.n_pes):
        lib.add_region(pe, SRC, 1 << 20)
        lib.add_region(pe, DST, 1 << 20)
        lib.add_region(pe, CQ, 1 << 16, fill=0xFF)
        lib.set_mac(pe, MACS[pe])
    for name in ("mem_latency_jitter", "commit_delay", "link_latency_jitter"):
        lib.set_knob(name, 30)
    lib.set_knob("mem_stall", 9000)
    lib.set_knob("mem_ooo", 9000, pe=0)
    await lib.reset()
    rng = seeded()
    total, count = 0, 0
    for _ in range(int(os.environ.get("CAMHIL_BATCHES", "20"))):
        watches = set()
        for pe in range(lib.n_pes):
            watches.add(lib.watch((pe + 1) % lib.n_pes, CQ, 1 << 16, hits=4))
            for i in range(4):
                beats = int(rng.integers(1, 65))
                lib.store(
                    pe, SRC + i * 4096, packet((pe + 1) % lib.n_pes, DST + i * 4096, beats, CQ + 64 * i, rng)
                )
                assert lib.mmio_write(pe, DOORBELL, beats << 56 | (SRC + i * 4096))
        while watches:
            reason = await lib.wake()
            if reason & Reason.EVENT:
                lib.mmio_read(0, 0)
            watches -= set(lib.fired())
        await lib.cycles(int(rng.integers(1, 50)))
        records = lib.drain()
        total = (total + digest(records, count)) % 2**64
        count += len(records)
    workload = lib.end_record()
    records = lib.drain()
    total = (total + digest(records, count)) % 2**64
    count += len(records)
    out = Path(os.environ["CAMHIL_OUT"])
    workload.save(out / "workload.bin")
    (out / "totals.json").write_text(
        json.dumps({"cycles": lib.cycle, "records": count, "digest": total, "wakeups": lib.wakeups})
    )


@cocotb.test()
async def idle(dut) -> None:
    """Nothing but time; cycles and wake-ups go to a JSON file."""
    lib = SimLib(dut)
    await lib.reset()
    cycle, wakeups = lib.cycle, lib.wakeups
    lib.set_deadline(cycle + int(os.environ["CAMHIL_CYCLES"]))
    await lib.wake()
    out = Path(os.environ["CAMHIL_OUT"])
    totals = {"cycles": lib.cycle - cycle, "wakeups": lib.wakeups - wakeups}
    (out / "totals.json").write_text(json.dumps(totals))
