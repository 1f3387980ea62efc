"""A trace of what the ports showed, which a test compares with figures of its own.

So the judge is not the only oracle: doorbells, CQEs, frames and payload writes by QP, and the counters of
doorbells by name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pymodel.host.table import Fabric
from pymodel.nic.params import Cnt
from tb.sim.records import Kind

U8 = npt.NDArray[np.uint8]
DB_COUNTERS = [counter for counter in Cnt if counter.name.startswith("DB_")]


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
        plans = list(fabric.qps.values())
        # a receive CQ of its own counts as the QP's, too
        plans += [
            replace(p, cq_base=p.recv_cq_base, cq_depth=p.recv_cq_depth) for p in plans if p.recv_cq_depth
        ]
        self._cqs = [(p.pe, p.cq_base, p.cq_base + p.cq_depth * p.cq_stride, p) for p in plans]
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


def doorbell_counters(values: list[int]) -> dict[str, int]:
    """Those counters of doorbells that are not 0, by name."""
    return {counter.name: values[counter] for counter in DB_COUNTERS if values[counter]}
