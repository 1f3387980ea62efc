"""What is under way inside a NIC, one small object each: payload on its way to memory, READs and atomics,
receive queues and the messages that they take."""

from __future__ import annotations

from collections import deque
from typing import Final

#: kinds of WQEs and of requests in the responder's table
WRITE: Final = 0
READ: Final = 1
ATOMIC: Final = 2


class InboundWrite:
    """Payload of one packet on its way to memory: of an executed WRITE (ID 3), or a result (ID 5).

    A result is the payload of a READ response or the old value of an ATOMIC ACK at the requester. Bytes go
    into golden memory burst by burst, where the COMMIT record says that the burst became visible.
    """

    __slots__ = (
        "contested", "cum", "done", "gq", "key", "length", "message", "open", "optional", "payload", "pieces",
        "unanswered", "va", "wqe",
    )  # fmt: skip

    def __init__(
        self,
        gq: int,
        cum: int,
        va: int,
        length: int,
        payload: bytes | None = None,
        wqe: int = -1,
        optional: bool = False,
        key: int = -1,
    ) -> None:
        self.gq = gq  # QP (global index) that received it
        self.cum = cum  # number of the packet on that QP (results: of the response's PSN)
        self.va = va
        self.length = length
        #: the bytes; None: golden memory has them already
        self.payload = payload
        self.wqe = wqe  # results: index of the WQE; else -1
        #: whether it was executed is open, or its QP went to ERR: it may be written, or not
        self.optional = optional
        self.key = key  # rkey or lkey that allows it
        #: its region goes: the NIC may have judged it after the command, and then it is not written
        self.contested = False
        #: SEND: the message, whose receive WQE's lkey allows it
        self.message: Message | None = None
        self.done = 0  # bytes that AXI writes have covered
        self.unanswered = 0  # bursts without response
        #: (offset, bytes) of the bursts that are not visible yet, in order
        self.pieces: deque[tuple[int, int]] = deque()
        #: the same of the bursts without response; shorter than `unanswered` where some are not known
        self.open: deque[tuple[int, int]] = deque()


class Request:
    """One READ or atomic that a responder accepted, until its last response left the NIC (wire.md 5)."""

    __slots__ = (
        "contested", "contested_key", "dup", "gathered", "gq", "kind", "length", "msn", "number", "op",
        "operands", "optional", "packets", "position", "rkey", "sent", "since", "va",
    )  # fmt: skip

    def __init__(
        self, gq: int, number: int, op: int, va: int, rkey: int, length: int, packets: int, msn: int
    ) -> None:
        self.gq = gq  # QP (global index) that received it
        self.number = number  # of its first PSN, as in r_exp
        self.op = op  # BTH opcode
        self.kind = READ if op == 0x0C else ATOMIC
        self.va = va
        self.rkey = rkey
        self.length = length  # READ: DMA length; atomics: 8 or 4
        self.packets = packets  # its PSNs
        self.msn = msn  # count that its responses carry, free-running
        self.sent = 0  # response packets that left the NIC
        #: cycle and record from which it may execute: its arrival, or the last write response of the inbound
        #: WRITEs before it on its QP, whichever is later (cycle far away: not all are there)
        self.since = 0
        self.position = 0
        #: of atomics: swap or add, compare or boundary, swap mask, compare mask; 4-byte ones in the low half
        self.operands = (0, 0, 0, 0)
        #: it met its QP's way to ERR: may be served, or not
        self.optional = False
        #: the table may have been full when it came: a NAK 1 would tell
        self.contested = False
        #: its region was about to go when it came: it may have been refused before it counted
        self.contested_key = False
        #: a duplicate: a READ is executed again, an atomic answered from the saved result
        self.dup = False
        #: READ: a read of its last beat was seen, so its last response may be on its way out
        self.gathered = False


class Execution:
    """One atomic as the memory port shows it: an ID-2 read, and the write unless a compare failed.

    Contended words have several requests that may be the one executed; the answer's value tells later.
    """

    __slots__ = ("addr", "asked", "done", "fault", "new", "of", "old", "read", "size", "visible")

    def __init__(self, addr: int, old: int, asked: int, read: int) -> None:
        self.addr = addr
        self.old = old  # 8 bytes from the address as golden memory had them, little-endian
        self.asked = asked  # cycle of AR
        self.read = read  # cycle of the data
        self.new: int | None = None  # what was written; None: nothing (yet)
        self.size = 0  # bytes written; 0: nothing
        self.visible = False  # golden memory has the new value
        self.done = -1  # cycle of the write response; -1: none yet
        self.fault = False  # an error response
        #: requests that it can be the execution of, in order of arrival
        self.of: list[Request] = []


class Slot:
    """One posted receive WQE, as its slot stood at the doorbell."""

    __slots__ = ("addr", "lkey", "size", "time")

    def __init__(self, size: int, lkey: int, addr: int, time: int) -> None:
        self.size, self.lkey, self.addr = size, lkey, addr
        self.time = time  # cycle of the doorbell


class Message:
    """A SEND, or a WRITE with immediate, that has taken a receive WQE (nic.md 5)."""

    __slots__ = (
        "code", "failed", "imm", "index", "last", "length", "maybe", "op", "se", "slot", "time", "whole",
        "with_imm",
    )  # fmt: skip

    def __init__(self, index: int, slot: Slot, op: int) -> None:
        self.index, self.slot = index, slot
        self.op = op  # msg_opcode of the sender's WQE
        self.length = 0  # bytes, so far
        self.imm = self.with_imm = self.se = 0
        self.last = -1  # number of its last packet
        self.time = 0  # cycle at which that arrived
        self.whole = False  # it arrived
        self.code = 0  # what its CQE must say; 0: no error of its own
        self.failed = False  # its payload met a bus error: no code of its own, it flushes
        self.maybe = False  # it met its QP's way to ERR: executed or flushed


class ReceiveQueue:
    """The receive queue of one QP. Indices run free from the start index; the NIC keeps 17 bits of them."""

    __slots__ = (
        "base", "depth", "done", "ended", "flushed", "gone", "messages", "pi", "slots", "start", "take",
        "times",
    )  # fmt: skip

    def __init__(self, base: int, depth: int, start: int, gone: int = 0) -> None:
        self.base, self.depth, self.start = base, depth, start
        self.pi = self.take = self.done = start  # posted, taken by messages, with CQE
        self.slots: dict[int, Slot] = {}  # posted WQEs without CQE
        self.messages: deque[Message] = deque()  # messages without CQE, in order
        self.times: deque[tuple[int, int]] = deque(maxlen=64)  # (index, cycle) of the last CQEs
        self.flushed = False  # a flush CQE was written
        self.ended = -1  # cycle of what sent the QP to ERR, -1: nothing
        self.gone = gone  # receive WQEs completed before the last reset

    def open(self) -> Message | None:
        """The message that is being received."""
        return self.messages[-1] if self.messages and not self.messages[-1].whole else None

    def address(self, index: int) -> int:
        """Of a slot."""
        return self.base + 16 * (index % self.depth)

    def unwritten(self) -> int:
        """Messages that arrived and have no CQE."""
        return sum(m.whole for m in self.messages)
