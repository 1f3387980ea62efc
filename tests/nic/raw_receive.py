"""Receiving by hand: receive WQEs, RQ doorbells, CQEs of receives, for one end of a QP pair (`RawQp`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pymodel.formats import doorbell, recv
from pymodel.platform import mmio_write, store
from tb.sim.platform import Rig
from tests.nic.raw import RawCq, RawQp

#: offset of the buffers in each heap, bytes between two of them, slots that have one
BUFFERS, ROOM, SLOTS = 16 << 20, 16 << 10, 32
U8 = npt.NDArray[np.uint8]


class Receiver:
    """RQ of the QP that ``qp`` is the sender of. ``head``: next receive WQE, free-running.

    ``cq``: where its CQEs come, ``qp`` itself where both queues share one.
    """

    def __init__(self, rig: Rig, qp: RawQp) -> None:
        plan = self.plan = qp.plan
        assert plan.rq_depth, "the fabric gave it no receive queue"
        self.qp, self.lib = qp, rig.lib
        self.cq: RawCq = qp
        if plan.recv_cq_depth:
            self.cq = RawCq(rig, plan, plan.recv_cq_base, plan.recv_cq_depth, plan.recv_cqn)
        self.head = plan.rq_start
        self.pe = rig.fabric.pes[plan.pe]

    def place(self, index: int) -> int:
        """Address of the buffer that a receive WQE has unless another is asked for."""
        slot = plan_slot(self.plan.qp_idx, index)
        return self.pe.heap_base + BUFFERS + slot * ROOM

    def slot(self, index: int) -> int:
        """Address of a receive WQE."""
        return self.plan.rq_base + 16 * (index % self.plan.rq_depth)

    def content(self, addr: int, length: int) -> bytes:
        """Bytes of a buffer."""
        return self.lib.memory(self.plan.pe, addr, length).tobytes()

    async def put_receive(self, *items: Mapping[str, int]) -> list[dict[str, int]]:
        """Write receive WQEs behind the head, no doorbell; {} is a good one. Gives their fields."""
        out = []
        for item in items:
            good = {"length": ROOM - 64, "lkey": self.pe.heap_lkey, "addr": self.place(self.head)}
            fields = {**good, **item}
            slot = recv.pack({name: [value] for name, value in fields.items()})
            await store(self.slot(self.head), slot.reshape(-1), True)
            self.head += 1
            out.append(fields)
        return out

    async def ring_rq(self, head: int | None = None, qpn: int | None = None) -> None:
        """The RQ doorbell."""
        qpn = self.plan.qpn if qpn is None else qpn
        data = doorbell.rq_encode(self.head if head is None else head, qpn)
        await mmio_write(self.qp.address(doorbell_offset=8), int(data))

    async def post_receive(self, *items: Mapping[str, int]) -> list[dict[str, int]]:
        """Write receive WQEs and announce them with one doorbell."""
        out = await self.put_receive(*items)
        await self.ring_rq()
        return out

    def wqe_id(self, index: int) -> int:
        """wqe_id in the CQE of a receive WQE: 13 (V1) or 17 bits of its index."""
        return index << 3 & (0xFFFF if self.plan.version == 1 else 0xFFFFF)


def plan_slot(qp_idx: int, index: int) -> int:
    """Number of a buffer among all of a PE."""
    return qp_idx * SLOTS + index % SLOTS


async def collect(cq: RawCq, side: int, count: int, patience: int = 300_000) -> list[Any]:
    """So many CQEs of sends (side 0) or receives (1) of a CQ that both may share; those of the other side are
    kept for who asks for them."""
    kept = cq.kept
    while len(kept[side]) < count:
        before = len(kept[side])
        there = await cq.until(1, patience)
        assert there or len(kept[side]) > before, (
            f"QPN {cq.plan.qpn}: {before} of {count} CQEs of side {side}"
        )
        for one in cq.take(cq.visible()):
            kept[int(one["type"])].append(one)
        await cq.ring_cq()
    out, kept[side] = kept[side][:count], kept[side][count:]
    return out


async def drain(cq: RawCq) -> None:
    """Consume whatever is there."""
    cq.take(cq.visible())
    cq.kept = {0: [], 1: []}
    await cq.ring_cq()


def fields_of(cqe: Any) -> dict[str, int]:
    """What a CQE says, but for time stamp, owner and reserved bits."""
    names = ("error_code", "type", "msg_opcode", "with_imm", "imm_data", "msg_len", "wqe_id", "se")
    return {name: int(cqe[name]) for name in names}
