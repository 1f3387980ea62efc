"""Exact engine, receive queues: doorbells, reads of their slots, which message takes which receive WQE
(nic.md 3, 5).

A doorbell and a packet that needs its receive WQE may come so close that the order inside the NIC is open,
and a packet may wait in the receive path until a doorbell has come. So a packet for which nothing is posted,
or not surely, waits here with its RNR NAK due: that the NAK leaves tells that it was refused, and a write of
its payload, its ACK or its CQE that it was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pymodel.formats import doorbell, recv
from pymodel.formats.cqe import CqeError
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.exact_core import RNR_NAK, SETTLE, Core, Part
from pymodel.nic.exact_regions import Regions
from pymodel.nic.judge_entries import Message, ReceiveQueue, Slot
from pymodel.nic.judge_records import Check
from pymodel.nic.judge_state import ERR
from pymodel.nic.params import AsyncKind, Cnt

_LINE: Final = ~63 & (1 << 64) - 1
#: cycles between a record and its effect inside the NIC: what lies closer may come in either order
_NEAR: Final = 64
#: cycles that a packet may come before the doorbell of the receive WQE that it gets
_BEFORE: Final = 32
#: cycles that a packet may take through the receive path until it ends its QP
_PATH: Final = 1024


class Queue(Part):
    """Receive queues of all responders."""

    def __init__(self, core: Core, regions: Regions) -> None:
        super().__init__(core)
        self.regions = regions
        #: the packet that is judged was taken, as something showed
        self.taken = False
        #: code that the CQE of the receive WQE must carry whose packet `refuse` refused, 0: none of its own
        self.cause = 0

    # ------------------------------------------------------------------ host
    def doorbell(self, pe: int, g: int, data: int) -> None:
        """An RQ doorbell, whole, on the page of a QP that is not in RESET."""
        s, queue = self.s, self.s.rq.get(g)
        fields = doorbell.rq_decode(data)
        if int(fields.qp_id) != int(s.q_qpn[g]):
            self.count(pe, Cnt.DB_PAGE)
            return
        if queue is None or not queue.depth:
            self.count(pe, Cnt.DB_RQ)
            return
        pid, depth = int(fields.next_pid), queue.depth
        most, least = queue.pi - queue.done, queue.pi - self.core.receives(g)
        verdict, other = (
            int(rules.rq_doorbell(pid, queue.pi, n, depth, s.params.stale_ignored)) for n in (most, least)
        )
        forward = (pid - queue.pi) % (1 << recv.RQ_INDEX_BITS)
        s.q_odd[g] = True
        if verdict != other:
            self.find(Check.DB_AMBIGUOUS, pe, "RQ doorbell",
                      f"at most {depth - most} receive WQEs, or no completion on its way",
                      f"{forward} receive WQEs", g, queue.pi)  # fmt: skip
        elif verdict == rules.DbVerdict.ACCEPTED:
            self._post(pe, g, queue, queue.pi + forward)
        elif verdict != rules.DbVerdict.NO_WORK:
            self.count(pe, rules.DB_COUNTER[rules.DbVerdict(verdict)])
            if verdict == rules.DbVerdict.OVERRUN:
                s.asyncs[pe].append((AsyncKind.RQ_OVERRUN, int(s.q_qpn[g])))
                self.core.to_err(g, self.core.time)

    def _post(self, pe: int, g: int, queue: ReceiveQueue, new: int) -> None:
        """Receive WQEs as they stand in memory: the NIC may read them from now on."""
        for index in range(queue.pi, new):
            slot = np.frombuffer(self.core.look(pe, queue.address(index), recv.RECV_BYTES), np.uint8)
            row = recv.unpack(slot)[0]
            size, lkey, addr = int(row["length"]), int(row["lkey"]), int(row["addr"])
            queue.slots[index] = Slot(size, lkey, addr, self.core.time)
        queue.pi = new
        if self.s.q_state[g] == ERR:
            self.core.watch_room(int(self.s.q_rcq[g]), self.core.time)

    def read(self, pe: int, addr: int, length: int, since: int) -> bool:
        """A read on ID 0; False: it is that of no receive queue.

        A NIC may read slots ahead and again, but no beat without a slot that is posted and has no CQE.
        """
        s, found = self.s, -1
        for g, queue in s.rq.items():
            low, high = queue.base & _LINE, (queue.base + 16 * queue.depth + 63) & ~63
            if s.q_pe[g] != pe or not queue.depth or addr < low or addr + length > high:
                continue
            found = g
            if self._explained(queue, addr, length, since):
                if 0 <= queue.ended < since - _PATH and s.q_state[g] == ERR:
                    self.find(Check.READ_FETCH, pe, "read of a receive WQE", "none, the QP is in ERR",
                              f"{addr:#x} in cycle {since}", g)  # fmt: skip
                return True
        if found >= 0:
            queue = s.rq[found]
            self.find(Check.READ_FETCH, pe, "read of a receive WQE",
                      f"one that is posted and not completed: {queue.done} to below {queue.pi}",
                      f"{addr:#x}, {length} bytes in cycle {since}", found)  # fmt: skip
        return found >= 0

    def _explained(self, queue: ReceiveQueue, addr: int, length: int, since: int) -> bool:
        """Whether a read touches a slot that is posted, or was when it began."""
        first = max(0, (addr - queue.base) // 16)
        last = min(queue.depth, (addr + length - queue.base + 15) // 16)
        gone = {index: time for index, time in queue.times if time + SETTLE >= since}
        for number in range(first, last):
            index = queue.done + (number - queue.done) % queue.depth
            if index in queue.slots and queue.slots[index].time <= since:
                return True
            if index - queue.depth in gone:
                return True
        return False

    # ------------------------------------------------------------------ messages
    def room(self, g: int) -> bool:
        """Whether a packet that needs a receive WQE gets one: surely, or as something showed."""
        queue = self.s.rq.get(g)
        if self.taken:
            return True
        if queue is None or queue.pi <= queue.take:
            return False
        recent = sum(time + _NEAR >= self.core.time for _, time in queue.times)
        near = self.core.time - queue.slots[queue.take].time <= _NEAR
        return not near and queue.unwritten() + recent < self.s.params.max_received

    def possible(self, g: int) -> bool:
        """Whether the NIC can have taken a packet that seemed to find nothing."""
        s, queue = self.s, self.s.rq.get(g)
        if queue is None or queue.pi <= queue.take:
            return False
        c = int(s.q_rcq[g])
        full = not s.c_ignore[c] and s.c_prod[c] - s.c_ci[c] >= s.c_depth[c]
        return queue.unwritten() < s.params.max_received or not full

    def first_taken(self, g: int, waiting: Sequence[tuple[frames.Received, int, Cnt]]) -> int:
        """Which of the copies of a packet that wait, (packet, cycle of arrival, counter), was taken.

        The first that can have met the receive WQE: those that came before its doorbell were refused.
        """
        queue, psn = self.s.rq[g], waiting[0][0].psn
        since = queue.slots[queue.take].time - _BEFORE
        copies = [i for i, (got, *_) in enumerate(waiting) if got.psn == psn]
        return next((i for i in copies if waiting[i][1] >= since), copies[-1])

    def refuse(self, pe: int, g: int, got: frames.Received) -> int:
        """NAK code of a SEND packet at the expected PSN, 0: execute (wire.md 5, nic.md 5); see `cause`."""
        s, op, size, mtu = self.s, got.opcode, len(got.payload), int(self.s.q_mtu[g])
        start, last = op in frames.STARTS, op in frames.ENDS
        if bool(s.r_open[g]) == start or (not start and not s.r_send[g]):
            return 1
        queue = s.rq.get(g)
        message = queue.open() if queue and not start else None
        if queue and not start and message is None:
            return 1  # its receive WQE is flushed: the QP is in ERR already
        done = message.length if message else 0
        short = size > mtu or (not start and not size) if last else size != mtu
        if short or done + size > rules.MAX_MESSAGE:
            return 1
        if start and not self.room(g):
            return RNR_NAK
        assert queue is not None
        slot = message.slot if message else queue.slots[queue.take]
        if start and s.memory.beats_fault(pe, queue.address(queue.take) & _LINE, 64):
            self.cause = int(CqeError.RCV_WQE_DMA)
            return 3
        if done + size > slot.size:
            self.cause = int(CqeError.RCV_WQE_SIZE_RC)
            return 1
        va = slot.addr + done & (1 << 64) - 1
        verdict = self.regions.allows(pe, slot.lkey, False, rules.Right.LOC_WRITE, va, size)
        if verdict == 2:
            self.cause = int(CqeError.LOCAL_MR_RSP)
            return 3
        return verdict

    def fail(self, g: int, start: bool, late: bool) -> None:
        """A SEND packet was refused because of its receive WQE, which completes with `cause`."""
        queue = self.s.rq[g]
        message = self.take(g, 0) if start else queue.open()
        assert message is not None
        message.code, self.cause = self.cause, 0
        message.maybe |= late

    def take(self, g: int, op: int) -> Message:
        """A message takes the next receive WQE; op: msg_opcode of the sender's WQE."""
        queue = self.s.rq[g]
        message = Message(queue.take, queue.slots[queue.take], op)
        queue.messages.append(message)
        queue.take += 1
        return message

    def end(
        self, g: int, message: Message, got: frames.Received, number: int, length: int, time: int
    ) -> None:
        """The last packet of a message arrived."""
        message.whole, message.last, message.length, message.time = True, number, length, time
        message.imm, message.with_imm, message.se = got.imm, int(got.opcode in frames.IMMEDIATE), got.se
        self.core.watch_room(int(self.s.q_rcq[g]), self.core.time)

    # ------------------------------------------------------------------ packets that wait
    def written(self, pe: int, start: int) -> bool:
        """Whether a write of inbound payload belongs to a packet that waits."""
        for g in list(self.core.waiting):
            queue = self.s.rq.get(g)
            if self.s.q_pe[g] != pe or queue is None or queue.pi <= queue.take:
                continue
            if self._target(g, queue) == start and self.core.accept(g):
                return True
        return False

    def _target(self, g: int, queue: ReceiveQueue) -> int:
        """Where the first payload goes of the packets that wait, -1: nowhere."""
        index = queue.take
        for got, *_ in self.core.waiting[g]:
            if got.payload:
                if got.opcode in frames.WRITES:
                    first = got.opcode in frames.STARTS
                    return int.from_bytes(got.ext[:8], "big") if first else int(self.s.r_va[g])
                return queue.slots[index].addr if index in queue.slots else -1
            index += got.opcode in frames.SENDS or got.opcode in frames.IMMEDIATE
        return -1
