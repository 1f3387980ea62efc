"""Posting and polling by hand: what the device API would not do (full rings, bad WQEs, CQs left alone).

A `RawQp` belongs to one direction of one QP pair. Its coroutines run inside device programs
(`pymodel.platform`); its indices outlive a program, so that a test can run several, look at the NIC's
registers between them (`Console`) and go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pymodel.formats import cqe, doorbell, wqe
from pymodel.host.table import WQE_BYTES, Fabric, QpPlan
from pymodel.nic.context import CmdObj, CmdOp, command_writes
from pymodel.nic.params import CMD_STAGE, CMD_STATUS, AsyncKind, Cnt, Csr
from pymodel.platform import Watch, mmio_write, now, store, wait
from tb.sim.platform import COUNTERS, Rig

#: offsets in each heap: what is sent, and where it lands
SOURCE, TARGET = 2 << 20, 8 << 20
#: bytes of random data behind SOURCE
POOL = 64 << 10
FLUSH = 0xFF
U8 = npt.NDArray[np.uint8]
#: NIC cycles in which a CQE must come where nothing stalls for long
PATIENCE = 30_000


class RawCq:
    """One CQ of a QP. ``tail``: next CQE, free-running. ``base``, ``depth``, ``cqn``: of the ring."""

    def __init__(self, rig: Rig, plan: QpPlan, base: int, depth: int, cqn: int) -> None:
        self.plan = plan
        self.fabric: Fabric = rig.fabric
        self.base, self.depth, self.cqn = base, depth, cqn
        self.tail = plan.start_cq
        self.cell = rig.lib.memory(plan.pe, base, depth * plan.cq_stride)
        self.ring = self.cell.reshape(depth, plan.cq_stride)
        #: CQEs that were taken and not asked for yet, of sends (0) and receives (1) (`raw_receive.collect`)
        self.kept: dict[int, list[Any]] = {0: [], 1: []}

    def address(self, doorbell_offset: int) -> int:
        """BAR address of a doorbell of this QP."""
        return self.fabric.config.params.db_address(self.plan.qpn, doorbell_offset)

    # ------------------------------------------------------------------ completions
    def ready(self, index: int | None = None) -> bool:
        """Whether CQE ``index`` (default: the next) is there, by the owner bit."""
        index = self.tail if index is None else index
        depth = self.depth
        return bool(self.ring[index % depth, 31] >> 7 == index // depth & 1)

    def visible(self, most: int | None = None) -> int:
        """CQEs that are there and not consumed; no more than ``most`` are looked at."""
        count, most = 0, self.depth if most is None else most
        while count < most and self.ready(self.tail + count):
            count += 1
        return count

    async def until(self, count: int = 1, timeout: int | None = None) -> bool:
        """Sleep until ``count`` (1 or more) CQEs are there; False after ``timeout`` cycles."""
        deadline = None if timeout is None else await now() + timeout
        last = self.tail + count - 1
        # each CQE is one write: no need to wake up for those before the last
        missing = max(count - self.visible(count), 1)
        return await wait(
            (Watch(self.base, self.cell.size, missing),),
            deadline,
            lambda: self.ready(last),
            what=f"CQE {last} of QPN {self.plan.qpn} (CQN {self.cqn})",
            peer=self.plan.peer,
        )

    def take(self, count: int) -> npt.NDArray[np.void]:
        """Consume ``count`` CQEs that are there, decoded (`cqe.CQE_FIELDS`, [count]); no doorbell."""
        slots = [(self.tail + k) % self.depth for k in range(count)]
        assert all(self.ready(self.tail + k) for k in range(count)), "a CQE is not there"
        self.tail += count
        found = cqe.unpack(self.ring[slots], self.plan.version)
        assert (found["qp_id"] == self.plan.qpn & 0x7FFF).all(), found["qp_id"]
        return found

    async def ring_cq(self, tail: int | None = None, sta: int = 0) -> None:
        """The CQ doorbell."""
        data = doorbell.cq_encode(self.tail if tail is None else tail, self.cqn, sta)
        await mmio_write(self.address(doorbell_offset=16), int(data))

    async def collect(self, count: int, patience: int = PATIENCE) -> npt.NDArray[np.void]:
        """Wait for ``count`` CQEs, at most the CQ's depth, and consume them; no doorbell.

        Raises AssertionError where one does not come within ``patience`` cycles: QPs beside it may go on for
        ever, so that the run as a whole never looks hung.
        """
        assert 0 < count <= self.depth
        there = await self.until(count, patience)
        assert there, f"QPN {self.plan.qpn}: {self.visible()} of {count} CQEs in {patience} cycles"
        return self.take(count)

    async def complete(self, count: int) -> list[int]:
        """Wait for ``count`` CQEs, consume them, ring, by the CQ's depth at a time; gives the error codes."""
        codes: list[int] = []
        while len(codes) < count:
            found = await self.collect(min(count - len(codes), self.depth))
            codes += found["error_code"].tolist()
            await self.ring_cq()
        return codes


class RawQp(RawCq):
    """SQ and CQ of (pe, peer, qp). ``head``: next WQE, ``tail``: next CQE, both free-running.

    Made after bring-up. The head and tail cells of the device API stay as they are: the NIC knows none.
    """

    def __init__(self, rig: Rig, pe: int, peer: int, qp: int = 0) -> None:
        plan = rig.fabric.qps[pe, peer, qp]
        super().__init__(rig, plan, plan.cq_base, plan.cq_depth, plan.cqn)
        self.head = plan.start_index
        #: offset of this QP's windows behind SOURCE and TARGET: no two QPs of a PE share one
        self.window = (qp + 1) * (96 << 10)

    # ------------------------------------------------------------------ requester
    def fields(self, length: int = 64, at: int = 0, **changes: Any) -> dict[str, Any]:
        """A good signalled WRITE of ``length`` bytes to offset ``at`` of the QP's window, with changes."""
        mine, peer = self.fabric.pes[self.plan.pe], self.fabric.pes[self.plan.peer]
        good = {
            "msg_opcode": 1, "ds_data_num": 2, "ce": 1, "msg_len": length, "r_len": length, "l_len": length,
            "laddr": mine.heap_base + SOURCE + at % POOL, "lkey": mine.heap_lkey,
            "raddr": peer.heap_base + TARGET + self.window + at, "rkey": peer.heap_rkey,
        }  # fmt: skip
        return {**good, **changes}

    def send(self, length: int = 64, at: int = 0, **changes: Any) -> dict[str, Any]:
        """A good signalled SEND of ``length`` bytes; with_imm, opcode_data and se are among the changes."""
        mine = self.fabric.pes[self.plan.pe]
        good = {
            "msg_opcode": int(wqe.WqeOp.SEND), "ds_data_num": 1, "ce": 1, "msg_len": length, "l_len": length,
            "laddr": mine.heap_base + SOURCE + at % POOL, "lkey": mine.heap_lkey,
        }  # fmt: skip
        return {**good, **changes}

    def read(self, length: int = 64, at: int = 0, **changes: Any) -> dict[str, Any]:
        """A good signalled READ of ``length`` bytes of the peer's sources into the QP's own window."""
        mine, peer = self.fabric.pes[self.plan.pe], self.fabric.pes[self.plan.peer]
        good = self.fields(length, at, msg_opcode=int(wqe.WqeOp.READ))
        good["laddr"] = mine.heap_base + TARGET + self.window + at
        good["raddr"] = peer.heap_base + SOURCE + at % POOL
        return {**good, **changes}

    def atomic(self, opcode: int, at: int = 0, result: int = 0, **changes: Any) -> dict[str, Any]:
        """A good signalled atomic on offset ``at`` of the QP's window at the peer (device.md 1.5).

        The original value lands at offset ``result`` of the QP's own window. Operands, `swap_add`, `compare`,
        `swap_mask` and `compare_mask`, are among the changes (else 0).
        """
        op = wqe.WqeOp(opcode)
        size = wqe.ATOMIC_SIZE[op]
        good = self.fields(
            wqe.ATOMIC_MSG_LEN[op], at, msg_opcode=int(op), in_line=1, r_len=size, l_len=size,
            ds_data_num=4 if op == wqe.WqeOp.MCAS64 else 3,
        )  # fmt: skip
        good["laddr"] = self.fabric.pes[self.plan.pe].heap_base + TARGET + self.window + result
        return {**good, **changes}

    async def put(self, *items: Mapping[str, int], base: U8 | None = None) -> U8:
        """Write WQEs behind the head, across the ring's end where it lies between; no doorbell.

        ``wqe_id`` is that of the slot unless given. ``base``: uint8[n, 128], what the bytes hold that no WQE
        covers (else 0). Gives the bytes written, uint8[n, 128]. At most one store for each side of the end.
        """
        plan = self.plan
        if not items:
            return np.empty((0, WQE_BYTES), np.uint8)
        index = np.arange(self.head, self.head + len(items), dtype=np.uint64)
        columns: dict[str, Any] = {"wqe_id": wqe.wqe_id_of(index, plan.version)}
        for name in {name: None for item in items for name in item}:
            own = columns.get(name, np.zeros(len(items), np.uint64)).tolist()
            values = [item.get(name, value) for item, value in zip(items, own, strict=True)]
            columns[name] = np.array(values, np.uint64)
        slots = wqe.pack(columns, plan.version, base)
        first = self.head % plan.sq_depth
        for at, part in ((first, slots[: plan.sq_depth - first]), (0, slots[plan.sq_depth - first :])):
            if len(part):
                await store(plan.sq_base + at * WQE_BYTES, part.reshape(-1), True)
        self.head += len(items)
        return slots

    async def ring_sq(self, head: int | None = None) -> None:
        """The SQ doorbell."""
        data = doorbell.sq_encode(self.head if head is None else head, self.plan.qpn, self.plan.version)
        await mmio_write(self.address(doorbell_offset=0), int(data))

    async def post(self, *items: Mapping[str, int]) -> None:
        """Write WQEs and announce them with one doorbell."""
        await self.put(*items)
        await self.ring_sq()


class Console:
    """Registers of one NIC, read and written over its BAR outside programs."""

    def __init__(self, rig: Rig, pe: int) -> None:
        self.rig, self.pe = rig, pe

    async def read(self, addr: int) -> int:
        """One register."""
        value = await self.rig.lib.read(self.pe, addr)
        self.rig.drain()
        return value

    async def write(self, addr: int, data: int) -> None:
        """One register; returns when answered."""
        await self.rig.lib.write(self.pe, addr, data)

    async def counter(self, number: Cnt) -> int:
        """One counter."""
        return await self.read(COUNTERS + 8 * number)

    async def asyncs(self) -> list[tuple[AsyncKind, int]]:
        """All asynchronous events that wait: (kind, QPN or CQN)."""
        found = []
        while (word := await self.read(Csr.ASYNC_POP)) >> 63:
            found.append((AsyncKind(word >> 32 & 0xFF), word & 0xFF_FFFF))
        return found

    async def command(self, op: CmdOp, obj: CmdObj, index: int, words: Sequence[int] = ()) -> int:
        """A context command; waits for it and gives its status code."""
        for addr, data in command_writes(op, obj, index, words):
            await self.write(addr, data)
        while (status := await self.read(CMD_STATUS)) & 1:
            await self.rig.lib.cycles(16)
        assert not status & ~0xFF00, f"status {status:#x}"
        return status >> 8

    async def query(self, qpn: int) -> tuple[int, int, int]:
        """State (0 RESET, 1 RTS, 2 ERR), producer and first index not retired of a QP, by a query."""
        code = await self.command(CmdOp.QUERY, CmdObj.QP, qpn)
        assert code == 0, f"query of QPN {qpn}: code {code}"
        indices = await self.read(CMD_STAGE + 8 * 10)
        state = await self.read(CMD_STAGE + 8 * 8)
        return state & 3, indices & 0x3_FFFF, indices >> 32 & 0x3_FFFF

    async def states(self, qpn: int) -> str:
        """State of a QP by the state registers."""
        bit = qpn - self.rig.fabric.config.params.first_qpn
        if await self.read(Csr.QP_STATE_ERR) >> bit & 1:
            return "ERR"
        return "RTS" if await self.read(Csr.QP_STATE_RTS) >> bit & 1 else "RESET"


async def fill_sources(rig: Rig, seed: int) -> None:
    """Random bytes behind SOURCE on every PE."""
    rng = np.random.default_rng([seed, 0x50])
    for pe in rig.fabric.pes:
        rig.lib.store(pe.rank, pe.heap_base + SOURCE, rng.integers(0, 256, POOL + 65536, np.uint8))


async def renew(rig: Rig, qp: RawQp, back: RawQp, psns: tuple[int, int], cqs: bool = False) -> None:
    """Reset both ends of a QP pair and set them again, with start PSNs (qp to back, back to qp).

    The CQs go on where they are unless ``cqs``: then they are programmed again, their rings refilled.
    """
    ends = ((qp, psns), (back, psns[::-1]))
    for end, _ in ends:
        code = await Console(rig, end.plan.pe).command(CmdOp.RESET, CmdObj.QP, end.plan.qpn)
        assert code == 0, f"reset of QPN {end.plan.qpn}: code {code}"
    for end, (sq_psn, rq_psn) in ends:
        plan, console = end.plan, Console(rig, end.plan.pe)
        context, cq = rig.fabric.contexts(replace(plan, sq_psn=sq_psn, rq_psn=rq_psn))
        if cqs:
            first = next(data for addr, data in rig.fabric.pes[plan.pe].contents if addr == plan.cq_base)
            rig.lib.store(plan.pe, plan.cq_base, first)
            code = await console.command(CmdOp.SET, CmdObj.CQ, plan.cqn, cq.stage_words())
            assert code == 0, f"set of CQN {plan.cqn}: code {code}"
            end.tail = plan.start_cq
        code = await console.command(CmdOp.SET, CmdObj.QP, plan.qpn, context.stage_words())
        assert code == 0, f"set of QPN {plan.qpn}: code {code}"
        end.head = plan.start_index
