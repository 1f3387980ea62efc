"""The usual way to test such a NIC, measured by `make bench` beside ours: cocotbext-axi, Python per beat.

Sweep: one workload per run, from the environment: CLASSIC_QPS x CLASSIC_WQES WRITEs of CLASSIC_BYTES from
NIC 0 to NIC 1.
Stimulus: cocotb's clock and main; AxiLiteMaster for the BAR, AxiRam for memory, AxiStreamSink to
AxiStreamSource for the link; rings kept full, CQs polled.
Checks: every written byte, one CQE per WQE in order, the ICRC of each frame (zlib), and per-beat Python
monitors on all AXI and AXI-Stream channels: bytes strobed by NIC 1 = payload, beats of the link = of frames.
Timing: CPU time and clock cycles from the first doorbell to the last CQE go to CLASSIC_OUT as JSON.

It shares no line with tb/; contexts and formats come from pymodel as for any driver.
"""

import json
import logging
import os
import time
import zlib
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from cocotb.utils import get_sim_time
from cocotbext.axi import (
    AxiBus,
    AxiLiteBus,
    AxiLiteMaster,
    AxiRam,
    AxiStreamBus,
    AxiStreamSink,
    AxiStreamSource,
)

from pymodel.formats import cqe as cqe_format
from pymodel.formats import doorbell
from pymodel.formats import wqe as wqe_format
from pymodel.host.table import HEAP_SYNC_BYTES, Fabric, FabricConfig, QpPlan
from pymodel.nic import csr_map

PERIOD_NS = 2
POLL_CYCLES = 32
# Bytes of a frame that routers may change count as ones in the ICRC: offset of the IP header + field.
ICRC_ONES = tuple(14 + byte for byte in (1, 8, 10, 11, 26, 27, 32))


class BeatMonitor:
    """Samples one ready/valid channel at every clock edge and keeps each beat's signals."""

    def __init__(self, dut: Any, prefix: str, channel: str, signals: tuple[str, ...]) -> None:
        self.clock = dut.clk_i
        self.valid = getattr(dut, f"{prefix}_{channel}valid")
        self.ready = getattr(dut, f"{prefix}_{channel}ready")
        self.signals = [getattr(dut, f"{prefix}_{channel}{name}") for name in signals]
        self.beats: list[tuple[int, ...]] = []
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        edge = RisingEdge(self.clock)
        while True:
            await edge
            if self.valid.value == 1 and self.ready.value == 1:
                self.beats.append(tuple(int(signal.value) for signal in self.signals))


class Nic:
    """Bus models, monitors and driver of one NIC."""

    def __init__(self, dut: Any, number: int, monitors: bool) -> None:
        ports = {"clock": dut.clk_i, "reset": dut.rst_ni, "reset_active_level": False}
        prefix = f"n{number}"
        self.bar = AxiLiteMaster(AxiLiteBus.from_prefix(dut, f"{prefix}_s_axil"), **ports)
        self.memory = AxiRam(AxiBus.from_prefix(dut, f"{prefix}_m_axi"), **ports, size=2**62)
        self.sink = AxiStreamSink(AxiStreamBus.from_prefix(dut, f"{prefix}_m_axis"), **ports)
        self.source = AxiStreamSource(AxiStreamBus.from_prefix(dut, f"{prefix}_s_axis"), **ports)
        self.channels: dict[str, BeatMonitor] = {}
        if monitors:
            for channel, signals in {
                "aw": ("id", "addr", "len"),
                "w": ("data", "strb", "last"),
                "b": ("id", "resp"),
                "ar": ("id", "addr", "len"),
                "r": ("id", "data", "resp", "last"),
            }.items():
                self.channels[channel] = BeatMonitor(dut, f"{prefix}_m_axi", channel, signals)
            for bus in ("m_axis", "s_axis"):
                signals = ("data", "keep", "last")
                self.channels[bus] = BeatMonitor(dut, f"{prefix}_{bus}", "t", signals)
        self.frames = 0
        self.link_beats = 0

    async def forward(self, other: "Nic") -> None:
        """The link: each frame that this NIC sends arrives at the other one."""
        while True:
            frame = await self.sink.recv()
            data = bytearray(frame.tdata)
            self.frames += 1
            self.link_beats += -(-len(data) // 64)
            icrc = int.from_bytes(data[-4:], "little")
            covered = bytearray(data)
            for offset in ICRC_ONES:
                covered[offset] = 0xFF
            assert zlib.crc32(bytes([0xFF] * 8) + covered[14:-4]) == icrc, f"ICRC of frame {self.frames}"
            await other.source.send(bytes(data))

    async def bring_up(self, fabric: Fabric, rank: int) -> None:
        """Memory content and contexts of one PE."""
        pe = fabric.pes[rank]
        for region in pe.regions:
            if region.fill:
                self.memory.write(region.base, bytes([region.fill]) * region.size)
        for address, content in pe.contents:
            self.memory.write(address, content.tobytes())
        for op in pe.bringup:
            if op.kind == "write":
                await self.bar.write(op.addr, op.data.to_bytes(8, "little"))
                continue
            status = 1
            while status & 1:
                status = int.from_bytes((await self.bar.read(csr_map.STATUS, 8)).data, "little")
            assert status >> 8 & 0xFF == 0, f"{op.what}: refused with code {status >> 8 & 0xFF}"


class Sender:
    """Keeps one QP's ring full until all its WRITEs are completed."""

    def __init__(self, fabric: Fabric, nic: Nic, plan: QpPlan, wqes: int, size: int, place: int) -> None:
        self.fabric, self.nic, self.plan, self.wqes, self.size = fabric, nic, plan, wqes, size
        self.source = fabric.pes[0].heap_base + HEAP_SYNC_BYTES + place
        self.target = fabric.pes[1].heap_base + HEAP_SYNC_BYTES + place
        self.head = self.tail = 0

    def completed(self) -> int:
        """CQEs that are valid by their owner bit."""
        new = 0
        while self.tail + new < self.head:
            index = self.tail + new
            slot = self.plan.cq_base + index % self.plan.cq_depth * self.plan.cq_stride
            raw = np.frombuffer(self.nic.memory.read(slot, 32), np.uint8)
            entry = cqe_format.unpack(raw.reshape(1, 32), self.plan.version)[0]
            if entry["owner"] != index // self.plan.cq_depth & 1:
                break
            assert entry["error_code"] == 0, f"WQE {index}: error {entry['error_code']:#x}"
            expected = wqe_format.wqe_id_of(index, self.plan.version)
            assert entry["wqe_id"] == expected, f"CQE {index}: wqe_id {entry['wqe_id']}"
            new += 1
        return new

    async def step(self) -> bool:
        """Poll, give CQ room back, post what fits. Returns whether all is done."""
        params = self.fabric.config.params
        new = self.completed()
        if new:
            self.tail += new
            word = int(doorbell.cq_encode(self.tail, self.plan.cqn))
            address = params.db_address(self.plan.qpn, params.db_cq)
            await self.nic.bar.write(address, word.to_bytes(8, "little"))
        room = min(self.plan.sq_depth - (self.head - self.tail), self.wqes - self.head)
        if room:
            index = np.arange(self.head, self.head + room)
            slots = wqe_format.pack(
                {
                    "wqe_id": wqe_format.wqe_id_of(index, self.plan.version),
                    "msg_opcode": int(wqe_format.WqeOp.WRITE),
                    "ds_data_num": 2,
                    "ce": 1,
                    "msg_len": self.size,
                    "r_len": self.size,
                    "l_len": self.size,
                    "raddr": self.target + index.astype(np.uint64) * self.size,
                    "laddr": self.source + index.astype(np.uint64) * self.size,
                    "rkey": self.fabric.pes[1].heap_rkey,
                    "lkey": self.fabric.pes[0].heap_lkey,
                },
                self.plan.version,
            )
            for position, slot in zip(index, slots, strict=True):
                address = self.plan.sq_base + int(position) % self.plan.sq_depth * wqe_format.WQE_BYTES
                self.nic.memory.write(address, slot.tobytes())
            self.head += room
            word = int(doorbell.sq_encode(self.head, self.plan.qpn, self.plan.version))
            address = params.db_address(self.plan.qpn, params.db_sq)
            await self.nic.bar.write(address, word.to_bytes(8, "little"))
        return self.tail == self.wqes


async def run_classic(
    dut: Any, qps: int, wqes: int, size: int, *, monitors: bool = True, seed: int = 1
) -> dict[str, float]:
    """The workload and all checks; the measured figures."""
    payload = qps * wqes * size
    heap = -(-(2 * HEAP_SYNC_BYTES + payload) // 4096) * 4096
    fabric = Fabric.build(FabricConfig(n_pes=2, qps=qps, seed=seed, heap_bytes=heap))

    dut.rst_ni.value = 0
    nics = [Nic(dut, number, monitors) for number in (0, 1)]
    logging.getLogger("cocotb.classic_pair").setLevel(logging.WARNING)
    Clock(dut.clk_i, PERIOD_NS, unit="ns").start()
    await ClockCycles(dut.clk_i, 10)
    dut.rst_ni.value = 1
    await ClockCycles(dut.clk_i, 10)
    for rank, nic in enumerate(nics):
        await nic.bring_up(fabric, rank)
        cocotb.start_soon(nic.forward(nics[1 - rank]))
    data = np.random.default_rng(seed).integers(0, 256, payload, np.uint8).tobytes()
    nics[0].memory.write(fabric.pes[0].heap_base + HEAP_SYNC_BYTES, data)
    senders = [
        Sender(fabric, nics[0], fabric.qps[0, 1, qp], wqes, size, qp * wqes * size) for qp in range(qps)
    ]

    cpu, first = time.process_time(), get_sim_time("ns")
    waiting = list(senders)
    while waiting:
        waiting = [sender for sender in waiting if not await sender.step()]
        await ClockCycles(dut.clk_i, POLL_CYCLES)
    cpu, cycles = time.process_time() - cpu, (get_sim_time("ns") - first) / PERIOD_NS

    arrived = nics[1].memory.read(fabric.pes[1].heap_base + HEAP_SYNC_BYTES, payload)
    assert arrived == data, "memory of NIC 1 differs from what NIC 0 sent"
    if monitors:
        await ClockCycles(dut.clk_i, 1000)  # the last ACK may still be under way
        strobes = sum(strobe.bit_count() for _, strobe, _ in nics[1].channels["w"].beats)
        assert strobes == payload, f"NIC 1 wrote {strobes} bytes, the messages have {payload}"
        for nic in nics:
            assert len(nic.channels["m_axis"].beats) == nic.link_beats
    return {"cpu_s": cpu, "cycles": cycles, "frames": nics[0].frames, "payload": payload}


@cocotb.test()
async def classic(dut: Any) -> None:
    """One measured run; the figures are written only where every check passed."""
    qps, wqes, size = (int(os.environ[f"CLASSIC_{name}"]) for name in ("QPS", "WQES", "BYTES"))
    figures = await run_classic(dut, qps, wqes, size)
    Path(os.environ["CLASSIC_OUT"]).write_text(json.dumps(figures), encoding="utf-8")
