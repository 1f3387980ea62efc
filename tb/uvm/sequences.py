"""Traffic: WRITE WQEs posted through the agents, without the device API between."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyuvm import uvm_sequence

from pymodel.formats import doorbell, wqe
from pymodel.host.table import Fabric
from pymodel.nic.params import DEFAULT_PARAMS
from tb.uvm.items import DoorbellItem, KnobItem, StoreItem


@dataclass
class Post:
    """One WRITE: bytes from the own heap to the peer's; offsets inside the heaps."""

    source: int
    target: int
    length: int
    ce: bool = True


class WriteBurst(uvm_sequence):
    """Posts WRITEs on one QP and rings once; does not wait for completions.

    `head` of the QP's driver moves on. Start it on no sequencer: it is virtual and uses those of `env`.
    """

    def __init__(self, name: str, env: Any, qp: Driver, posts: list[Post]) -> None:
        super().__init__(name)
        self.env, self.qp, self.posts = env, qp, posts

    async def body(self) -> None:
        """Store the WQEs into their slots, then the doorbell."""
        qp, fabric = self.qp, self.qp.fabric
        mine, peer = fabric.pes[qp.plan.pe], fabric.pes[qp.plan.peer]
        count = len(self.posts)
        index = np.arange(qp.head, qp.head + count)
        lengths = [p.length for p in self.posts]
        slots = wqe.pack(
            {
                "msg_opcode": wqe.WqeOp.WRITE, "ds_data_num": 2,
                "wqe_id": wqe.wqe_id_of(index, qp.plan.version),
                "msg_len": lengths, "r_len": lengths, "l_len": lengths, "ce": [p.ce for p in self.posts],
                "raddr": np.array([peer.heap_base + p.target for p in self.posts], np.uint64),
                "laddr": np.array([mine.heap_base + p.source for p in self.posts], np.uint64),
                "rkey": peer.heap_rkey, "lkey": mine.heap_lkey,
            },
            qp.plan.version,
        )  # fmt: skip
        for i, slot in zip(index.tolist(), slots, strict=True):
            addr = qp.plan.sq_base + i % qp.plan.sq_depth * wqe.WQE_BYTES
            await StoreSequence("wqe", qp.plan.pe, addr, slot).start(self.env.memory.sequencer)
        qp.head += count
        word = int(doorbell.sq_encode(qp.head, qp.plan.qpn, qp.plan.version))
        page = DEFAULT_PARAMS.db_address(qp.plan.qpn, DEFAULT_PARAMS.db_sq)
        await DoorbellSequence("ring", qp.plan.pe, page, word).start(self.env.doorbells.sequencer)


class Driver:
    """Software side of one QP: what it posted and consumed, free-running."""

    def __init__(self, fabric: Fabric, key: tuple[int, int, int]) -> None:
        self.fabric = fabric
        self.plan = fabric.qps[key]
        self.head = self.plan.start_index
        self.tail = self.plan.start_index
        self.cq_tail = self.plan.start_cq

    def poll(self, lib: Any) -> int:
        """CQEs that became valid since the last poll, by the owner rule; each is one WQE (all ce = 1)."""
        plan, seen = self.plan, 0
        while True:
            slot = plan.cq_base + self.cq_tail % plan.cq_depth * plan.cq_stride
            owner = int(lib.memory(plan.pe, slot + 31, 1)[0]) >> 7
            if owner != self.cq_tail // plan.cq_depth & 1:
                return seen
            self.cq_tail += 1
            self.tail += 1
            seen += 1

    @property
    def room(self) -> int:
        """WQEs that may be posted."""
        return int(self.plan.sq_depth - (self.head - self.tail))


class StoreSequence(uvm_sequence):
    """One store."""

    def __init__(self, name: str, pe: int, addr: int, data: Any) -> None:
        super().__init__(name)
        self.item = StoreItem(name, pe, addr, data)

    async def body(self) -> None:
        """Send it."""
        await self.start_item(self.item)
        await self.finish_item(self.item)


class DoorbellSequence(uvm_sequence):
    """One BAR write."""

    def __init__(self, name: str, pe: int, addr: int, data: int, strobe: int = 0xFF) -> None:
        super().__init__(name)
        self.item = DoorbellItem(name, pe, addr, data, strobe)

    async def body(self) -> None:
        """Send it."""
        await self.start_item(self.item)
        await self.finish_item(self.item)


class KnobSequence(uvm_sequence):
    """Several knobs at once."""

    def __init__(self, name: str, knobs: dict[str, int], pe: int | None = None) -> None:
        super().__init__(name)
        self.items = [KnobItem(knob, knob, value, pe) for knob, value in knobs.items()]

    async def body(self) -> None:
        """Set them."""
        for item in self.items:
            await self.start_item(item)
            await self.finish_item(item)


class WriteTraffic(uvm_sequence):
    """Random WRITEs over all QPs until each has done `wqes`, with CQ doorbells; virtual.

    Each WQE has a source and a target slot of its own, reused after its completion, so there are no races.
    Raises TimeoutError when nothing completes for `patience` cycles.
    """

    def __init__(
        self, name: str, env: Any, fabric: Fabric, seed: int, wqes: int = 50,
        sizes: tuple[int, int] = (0, 4096), burst: int = 8, patience: int = 100_000,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.env, self.fabric, self.rng = env, fabric, random.Random(f"traffic {seed}")
        self.wqes, self.sizes, self.burst, self.patience = wqes, sizes, burst, patience
        self.drivers = [Driver(fabric, key) for key in fabric.qps]

    async def body(self) -> None:
        """Post while there is room, poll on each wake-up."""
        lib = self.env.rig.lib
        left = dict.fromkeys(self.drivers, self.wqes)
        slot = self.sizes[1] + 63 & ~63
        base, places = 1 << 20, {}  # rings differ in depth
        for qp in self.drivers:
            # sources behind the sync area of the own heap, targets behind the sources at the peer's
            places[qp] = base
            base += 2 * slot * qp.plan.sq_depth
        while any(left.values()) or any(q.head != q.tail for q in self.drivers):
            for qp in self.drivers:
                count = min(qp.room, left[qp], self.rng.randint(1, self.burst))
                if count:
                    await self._post(qp, count, places[qp], slot)
                    left[qp] -= count
            done = await self.env.pump(lambda: sum([self._poll(q) for q in self._busy()]) > 0,
                                       lib.cycle + self.patience)  # fmt: skip
            if not done:
                raise TimeoutError(
                    "\n".join(self.env.rig.judge.outstanding()) if self.env.rig.judge else "no completion"
                )
            for qp in self.drivers:
                await self._consume(qp)

    def _busy(self) -> list[Driver]:
        return [q for q in self.drivers if q.head != q.tail]

    def _poll(self, qp: Driver) -> int:
        return qp.poll(self.env.rig.lib)

    async def _post(self, qp: Driver, count: int, place: int, slot: int) -> None:
        posts, depth = [], qp.plan.sq_depth
        heap = self.fabric.pes[qp.plan.pe].heap_base
        for i in range(count):
            number = (qp.head + i) % depth
            length = self.rng.randint(*self.sizes)
            source = place + number * slot
            posts.append(Post(source, place + (depth + number) * slot, length))
            if length:
                data = np.frombuffer(self.rng.randbytes(length), np.uint8)
                await StoreSequence("source", qp.plan.pe, heap + source, data).start(
                    self.env.memory.sequencer
                )
        await WriteBurst("burst", self.env, qp, posts).start(None)

    async def _consume(self, qp: Driver) -> None:
        if qp.cq_tail == getattr(qp, "rung", qp.plan.start_cq):
            return
        qp.rung = qp.cq_tail  # type: ignore[attr-defined]
        plan = qp.plan
        word = int(doorbell.cq_encode(qp.cq_tail, plan.cqn))
        page = DEFAULT_PARAMS.db_address(plan.qpn, DEFAULT_PARAMS.db_cq)
        await DoorbellSequence("cq", plan.pe, page, word).start(self.env.doorbells.sequencer)
