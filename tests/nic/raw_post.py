"""Posting by hand for the tests of rings and doorbells, and a trace of what the ports showed.

The device API moves its head by one WQE, never rings twice and trusts its tables. `RawQp` does what it
cannot: it stores any number of WQEs, rings any index, and takes CQEs without the API's observers. `Trace`
keeps the records that a test compares with figures of its own, so that the judge is not the only oracle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pymodel.device import Pe
from pymodel.formats import cqe, doorbell, wqe
from pymodel.host.table import Fabric, QpPlan
from pymodel.nic.context import CmdObj, CmdOp, command
from pymodel.nic.params import CMD_REG, CMD_STAGE, CMD_STATUS, Cnt, Csr
from pymodel.platform import Watch, mmio_write, store, wait
from tb.sim.platform import Rig
from tb.sim.records import Kind

U32 = 0xFFFF_FFFF
U8 = npt.NDArray[np.uint8]
DB_COUNTERS = [counter for counter in Cnt if counter.name.startswith("DB_")]


class RawQp:
    """The queues of (pe, peer, qp_idx), posted to and polled by hand; ``head``, ``tail``: 32-bit indices."""

    def __init__(self, pe: Pe, qp_idx: int, peer: int | None = None) -> None:
        self.pe = pe
        peer = 1 - pe.rank if peer is None else peer
        self.plan: QpPlan = pe.fabric.qps[pe.rank, peer, qp_idx]
        self.queues = pe.qp(peer, qp_idx)
        self.keys = {"lkey": pe.lkey, "rkey": self.queues.rkey}
        self.head, self.tail = self.plan.start_index, self.plan.start_cq

    # --------------------------------------------------------------------------------------- send queue
    def slots(self, count: int, base: U8 | None = None, **fields: Any) -> U8:
        """WRITEs for the next indices, uint8[count, 128]; ``length`` stands for its three fields."""
        length = fields.pop("length", 0)
        index = np.arange(count, dtype=np.uint64) + np.uint64(self.head) & np.uint64(U32)
        clean = {
            "msg_opcode": wqe.WqeOp.WRITE, "ds_data_num": 2, "ce": 1,
            "wqe_id": wqe.wqe_id_of(index, self.plan.version),
            "msg_len": length, "r_len": length, "l_len": length, "raddr": 0, "laddr": 0, **self.keys,
        }  # fmt: skip
        return wqe.pack(clean | fields, self.plan.version, base)

    async def put(self, slots: U8) -> None:
        """Store WQEs behind the head, across the ring's end where it lies between; no doorbell yet."""
        depth, base = self.plan.sq_depth, self.plan.sq_base
        first = self.head % depth
        for at, part in ((first, slots[: depth - first]), (0, slots[depth - first :])):
            if len(part):
                await store(base + 128 * at, part.reshape(-1), True)
        self.head = self.head + len(slots) & U32
        await store(self.plan.sq_head_addr, self.head.to_bytes(4, "little"), True)

    async def ring(self, head: int | None = None) -> None:
        """One SQ doorbell, for the head unless another index is named."""
        data = doorbell.sq_encode(self.head if head is None else head & U32, self.plan.qpn, self.plan.version)
        await mmio_write(self.queues.sq_db_addr, int(data))

    async def post(self, count: int, **fields: Any) -> None:
        """``count`` WQEs and one doorbell."""
        await self.put(self.slots(count, **fields))
        await self.ring()

    # --------------------------------------------------------------------------------- completion queue
    def valid(self, index: int | None = None) -> bool:
        """Whether the CQE of a free-running index, by default the next one, is there (device.md 2.3)."""
        index = self.tail if index is None else index
        depth, stride = self.plan.cq_depth, self.plan.cq_stride
        return self.queues.cq_bytes[index % depth * stride + 31] >> 7 == index // depth & 1

    async def ring_cq(self, tail: int | None = None, sta: int = 0) -> None:
        """One CQ doorbell, for the tail unless another index is named."""
        tail = self.tail if tail is None else tail
        await mmio_write(self.queues.cq_db_addr, int(doorbell.cq_encode(tail, self.plan.cqn, sta)))

    async def take(self, count: int, ring: bool = True) -> Any:
        """Wait for ``count`` CQEs (at most the CQ's depth), decoded; with ``ring`` their slots are freed."""
        plan, raw = self.plan, np.empty((count, 32), np.uint8)
        for at in range(count):
            if not self.valid():
                watch = Watch(plan.cq_base, plan.cq_depth * plan.cq_stride, count - at)
                what = f"CQE {self.tail} on QPN {plan.qpn}"
                await wait((watch,), None, self.valid, what=what, peer=plan.peer)
            slot = self.tail % plan.cq_depth * plan.cq_stride
            raw[at] = np.frombuffer(self.queues.cq_bytes, np.uint8, 32, slot)
            self.tail = self.tail + 1 & U32
        if ring:
            await store(plan.cq_tail_addr, self.tail.to_bytes(4, "little"), True)
            await self.ring_cq()
        return cqe.unpack(raw, plan.version)


class Write(NamedTuple):
    """One inbound write burst: address of its first byte, strobe of its first beat, strobed bytes in all."""

    pe: int
    addr: int
    beats: int
    strobe: int
    size: int


def _lane(strobe: int) -> int:
    return (strobe & -strobe).bit_length() - 1


class Trace:
    """A sink of `Rig`: doorbells, CQEs, frames and payload writes in the order of the stream."""

    def __init__(self, fabric: Fabric) -> None:
        self._cqs = [(p.pe, p.cq_base, p.cq_base + p.cq_depth * p.cq_stride, p) for p in fabric.qps.values()]
        #: by (PE, QPN): (record time, pid) of SQ and (record time, cid) of CQ doorbells
        self.sq: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self.cq: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        #: by (PE, QPN): (record time, slot, stride bytes) of its CQEs
        self.cqes: dict[tuple[int, int], list[tuple[int, int, bytes]]] = defaultdict(list)
        #: by (PE, destination QPN)
        self.frames: dict[tuple[int, int], list[bytes]] = defaultdict(list)
        self.writes: list[Write] = []
        #: by (PE, QPN): most WQEs announced without CQE, if each asks for one and every doorbell was accepted
        self.outstanding: Counter[tuple[int, int]] = Counter()
        self._versions = {(p.pe, p.qpn): p.version for p in fabric.qps.values()}
        self._first = {(p.pe, p.qpn): p.start_index for p in fabric.qps.values()}
        self._announced = dict.fromkeys(self._first, 0)

    def __call__(self, records: npt.NDArray[np.void], side: U8) -> None:
        for r in records[np.isin(records["kind"], (Kind.MMIO_W, Kind.AXI_W, Kind.TXPKT))]:
            kind, pe, addr, time = int(r["kind"]), int(r["pe"]), int(r["addr"]), int(r["time"])
            start = int(r["off"]) % len(side)
            if kind == Kind.TXPKT:
                frame = side[start : start + int(r["len"])].tobytes()
                self.frames[pe, int.from_bytes(frame[47:50], "big")].append(frame)
            elif kind == Kind.AXI_W and r["id"] == 4:
                lane = _lane(int(r["aux0"]))
                addr = (addr & ~63) + lane
                plan = next((p for at, low, high, p in self._cqs if at == pe and low <= addr < high), None)
                assert plan is not None, f"PE {pe}: a CQE at {addr:#x}, outside every ring"
                data = side[start + lane : start + lane + plan.cq_stride].tobytes()
                slot = (addr - plan.cq_base) // plan.cq_stride
                self.cqes[pe, plan.qpn].append((time, slot, data))
            elif kind == Kind.AXI_W:
                self.writes.append(
                    Write(
                        pe,
                        (addr & ~63) + _lane(int(r["aux0"])),
                        int(r["len"]),
                        int(r["aux0"]),
                        int(r["aux1"]),
                    )
                )
            elif addr >= 0x0800_0000:
                self._doorbell(pe, addr - 0x0800_0000, int(r["data"]), time)

    def _doorbell(self, pe: int, offset: int, data: int, time: int) -> None:
        key, register = (pe, offset // 4096), offset % 4096
        if register == 16:
            self.cq[key].append((time, data & 0x7F_FFFF))
        elif register == 0:
            bits = 17 if self._versions.get(key) == 1 else 21
            pid = data & (1 << bits) - 1
            self.sq[key].append((time, pid))
            if key in self._first:
                # the nearest index ahead of what was announced last
                now = self._announced[key]
                self._announced[key] = now + (((pid >> 3) - self._first[key] - now) % (1 << bits - 3))
                waiting = self._announced[key] - len(self.cqes[key])
                self.outstanding[key] = max(self.outstanding[key], waiting)


async def query(rig: Rig, pe: int, qpn: int) -> tuple[int, int, int]:
    """State (0 RESET, 1 RTS, 2 ERR), producer and first index not retired, over the BAR."""
    await rig.lib.write(pe, CMD_REG, command(CmdOp.QUERY, CmdObj.QP, qpn))
    while (status := await rig.lib.read(pe, CMD_STATUS)) & 1:
        pass
    assert status == 0, f"query refused with code {status >> 8:#x}"
    indices = await rig.lib.read(pe, CMD_STAGE + 8 * 10)
    state = await rig.lib.read(pe, CMD_STAGE + 8 * 8)
    return state & 3, indices & 0x3_FFFF, indices >> 32 & 0x3_FFFF


async def async_events(rig: Rig, pe: int) -> list[tuple[int, int]]:
    """(kind, number) of all asynchronous events, popped."""
    events = []
    while (event := await rig.lib.read(pe, Csr.ASYNC_POP)) >> 63:
        events.append((event >> 32 & 0xFF, event & 0xFF_FFFF))
    return events


def doorbell_counters(values: list[int]) -> dict[str, int]:
    """Those counters of doorbells that are not 0, by name."""
    return {counter.name: values[counter] for counter in DB_COUNTERS if values[counter]}
