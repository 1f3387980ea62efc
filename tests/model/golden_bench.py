"""What the tests of the golden NIC share: NICs with QPs, raw WQEs and doorbells, no device API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pymodel.formats import cqe, doorbell, wqe
from pymodel.host.table import Fabric, FabricConfig, set_ops
from pymodel.model import ModelBackend
from pymodel.nic.context import CmdObj, CmdOp, MrContext, QpState, command, command_writes
from pymodel.nic.golden import GoldenNic, Packet
from pymodel.nic.params import CMD_REG, CMD_STATUS, Cnt, Csr

HEAP = 1 << 20
#: own memory that results go to, behind that of sources
SINK = 4 << 20
#: counters that good traffic moves
QUIET = {Cnt.TX_REQUEST, Cnt.TX_RESPONSE, Cnt.RX_PACKET, Cnt.WQE, Cnt.CQE, Cnt.READ, Cnt.ATOMIC}

#: typed in from device.md 1.5: segments, msg_len and bytes of each atomic
ATOMICS = {26: (3, 16, 8), 27: (3, 16, 8), 31: (4, 32, 8), 32: (3, 16, 8), 33: (3, 16, 4), 34: (3, 8, 4)}


class Queue:
    """The send queue of one QP and its CQ, as software sees them."""

    def __init__(self, backend: ModelBackend, pe: int, peer: int, qp: int) -> None:
        self.backend, self.pe, self.peer_pe = backend, pe, peer
        self.fabric = backend.fabric
        self.plan = self.fabric.qps[pe, peer, qp]
        self.head = self.plan.start_index
        self.tail = self.plan.start_cq
        self.src = self.fabric.pes[pe].heap_base + HEAP
        self.sink = self.fabric.pes[pe].heap_base + SINK
        self.dst = self.fabric.pes[peer].heap_base + HEAP

    def post(self, ring: bool = True, **fields: Any) -> None:
        """A WQE with ``fields`` changed, in the next slot: a WRITE of 100 bytes, a READ, or an atomic.

        WRITE: src to the peer's dst; READ: the peer's dst to sink; atomic: on dst, old value to sink.
        """
        op = fields.get("msg_opcode", 1)
        segments, msg_len, size = ATOMICS.get(op, (2, fields.get("msg_len", 100), fields.get("msg_len", 100)))
        good = {
            "msg_opcode": op, "ds_data_num": segments, "ce": 1, "msg_len": msg_len, "r_len": size,
            "l_len": size, "in_line": op in ATOMICS, "raddr": self.dst,
            "laddr": self.src if op == 1 else self.sink, "rkey": self.fabric.pes[self.peer_pe].heap_rkey,
            "lkey": self.fabric.pes[self.pe].heap_lkey,
            "wqe_id": int(wqe.wqe_id_of(self.head, self.plan.version)),
        }  # fmt: skip
        raw = wqe.pack({**good, **fields}, self.plan.version)
        slot = self.head % self.plan.sq_depth
        self.backend.store(self.pe, self.plan.sq_base + 128 * slot, raw.reshape(-1))
        self.head = (self.head + 1) & 0xFFFF_FFFF
        if ring:
            self.ring(self.head)

    def ring(self, head: int, qpn: int | None = None, page: int | None = None) -> None:
        """SQ doorbell."""
        qpn = self.plan.qpn if qpn is None else qpn
        data = int(doorbell.sq_encode(head, qpn, self.plan.version))
        self.backend.mmio_write(self.pe, 0x0800_0000 + 4096 * (self.plan.qpn if page is None else page), data)

    def consume(self, tail: int, sta: int = 0, cqn: int | None = None) -> None:
        """CQ doorbell."""
        data = int(doorbell.cq_encode(tail, self.plan.cqn if cqn is None else cqn, sta))
        self.backend.mmio_write(self.pe, 0x0800_0010 + 4096 * self.plan.qpn, data)

    def cqes(self) -> list[Any]:
        """New valid CQEs, in order; consumed without a doorbell."""
        out, plan = [], self.plan
        for _ in range(plan.cq_depth):
            slot = self.tail % plan.cq_depth
            raw = self.backend.memory(self.pe, plan.cq_base + slot * plan.cq_stride, plan.cq_stride)
            got = cqe.unpack(raw, plan.version)[0]
            if int(got["owner"]) != self.tail // plan.cq_depth & 1:
                break
            assert not raw[32:].any()
            out.append(got)
            self.tail = (self.tail + 1) & 0xFFFF_FFFF
        return out

    def codes(self) -> list[int]:
        """error_code of the new CQEs."""
        return [int(got["error_code"]) for got in self.cqes()]


class Bench(Queue):
    """NICs with QPs between all of them; itself the queue of PE 0 to PE 1.

    ``override``: fields of that QP's plan; ``peer``: fields of the context of the QP at its other end.
    """

    def __init__(
        self,
        schedule: Any = "eager",
        config: dict[str, Any] | None = None,
        seed: int = 0,
        peer: Mapping[str, Any] | None = None,
        **override: Any,
    ) -> None:
        over = {"sq_depth": 16, "cq_depth": 16, **override}
        fabric = Fabric.build(FabricConfig(overrides={(0, 1, 0): over}, **(config or {})))
        super().__init__(ModelBackend(fabric, schedule, seed), 0, 1, 0)
        self.peer_plan = fabric.qps[1, 0, 0]
        self.nic, self.peer = self.backend.nics[:2]
        if peer:
            self.program(1, self.peer_plan.qpn, **peer)

    def queue(self, pe: int, peer: int, qp: int = 0) -> Queue:
        """Another QP's queue."""
        return Queue(self.backend, pe, peer, qp)

    def program(self, pe: int, qpn: int, **fields: Any) -> None:
        """Reset a QP and program it again with some fields of its context changed."""
        nic = self.backend.nics[pe]
        context = replace(self.fabric.pes[pe].qp_contexts[qpn], **fields)
        nic.bar_write(CMD_REG, command(CmdOp.RESET, CmdObj.QP, qpn))
        for addr, data in command_writes(CmdOp.SET, CmdObj.QP, qpn, context.stage_words()):
            nic.bar_write(addr, data)
        assert nic.bar_read(CMD_STATUS) == 0

    def heap_mr(self, pe: int, **fields: Any) -> MrContext:
        """Program the heap's region of a PE again with some fields changed; gives it as it was."""
        index = self.fabric.pes[pe].heap_lkey >> 8
        mr = self.fabric.pes[pe].mrs[index]
        self.backend.bring_up(pe, set_ops(CmdObj.MR, index, replace(mr, **fields)))
        return mr

    def extra_mr(self, pe: int, index: int = 77, **fields: Any) -> tuple[int, int]:
        """A second region like the heap's, but for some fields; gives (lkey, rkey)."""
        heap = self.fabric.pes[pe].mrs[self.fabric.pes[pe].heap_lkey >> 8]
        mr = replace(heap, ltag=0x5A, rtag=0xA5, **fields)
        assert index not in self.fabric.pes[pe].mrs
        self.backend.bring_up(pe, set_ops(CmdObj.MR, index, mr))
        return mr.lkey(index), mr.rkey(index)

    def drop_mr(self, pe: int, index: int = 77) -> None:
        """Invalidate a region."""
        self.backend.bring_up(pe, set_ops(CmdObj.MR, index, MrContext(0, 0, valid=False)))

    def grow(self, pe: int, length: int = 1 << 20) -> int:
        """Let the heap's region of a PE reach beyond its memory; gives the first address without memory."""
        mr = self.heap_mr(pe)
        self.heap_mr(pe, length=mr.length + length)
        return mr.base + mr.length

    def fill(self, pe: int, addr: int, length: int, seed: int = 1) -> np.ndarray[Any, Any]:
        """Random bytes in memory, given back."""
        data = np.random.default_rng([seed, pe]).integers(0, 256, length).astype(np.uint8)
        self.backend.store(pe, addr, data)
        return data

    def work(self, cycles: int = 1_000_000) -> None:
        """Let everything happen that can."""
        self.backend.advance(self.backend.now() + cycles)

    def counters(self, nic: int = 0, ignore: set[Cnt] = QUIET) -> dict[str, int]:
        """Non-zero counters as the BAR gives them, by name."""
        read = {c: self.backend.nics[nic].bar_read(Csr.COUNTERS + 8 * c) for c in Cnt}
        return {c.name: n for c, n in read.items() if n and c not in ignore}

    def state(self, nic: int = 0) -> QpState:
        """State of the QP as the BAR gives it."""
        plan = (self.plan, self.peer_plan)[nic]
        bits = [
            self.backend.nics[nic].bar_read(a) >> plan.qpn - 2 & 1
            for a in (Csr.QP_STATE_RTS, Csr.QP_STATE_ERR)
        ]
        return {(0, 0): QpState.RESET, (1, 0): QpState.RTS, (0, 1): QpState.ERR}[bits[0], bits[1]]

    def asyncs(self, nic: int = 0) -> list[tuple[int, int]]:
        """Asynchronous events, popped."""
        out = []
        while (value := self.backend.nics[nic].bar_read(Csr.ASYNC_POP)) >> 63:
            out.append((value >> 32 & 0xFF, value & 0xFF_FFFF))
        return out

    # ------------------------------------------------------------------ packet by packet
    def tap(self, nic: int) -> list[Packet]:
        """Every packet that a NIC receives from here on, in order."""
        target, got = self.backend.nics[nic], []
        receive = target.receive

        def tapped(packet: Packet) -> None:
            got.append(packet)
            receive(packet)

        target.receive = tapped  # type: ignore[method-assign]
        return got

    def raw(self, to: int, bth: int, psn: int, **fields: Any) -> None:
        """Deliver a packet of the test's own making to the QP of PE ``to`` (0 or 1)."""
        plans = self.plan, self.peer_plan
        nics: list[GoldenNic] = self.backend.nics
        packet = Packet(nics[to].mac, nics[to].ip, nics[1 - to].ip, plans[to].qpn, bth, psn % (1 << 24))
        for name, value in fields.items():
            setattr(packet, name, value)
        nics[to].receive(packet)


def every_step(bench: Bench) -> Iterator[tuple[GoldenNic, Any]]:
    """All steps that the NICs offer now."""
    for nic in bench.backend.nics:
        for step in nic.steps():
            yield nic, step
