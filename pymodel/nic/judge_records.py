"""What the judge reads and what it says: the record stream, the checks by name, and one finding."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np

#: one record of the totally ordered stream that the monitors of all PEs fill, 64 bytes, little-endian.
#: Written by hand here and in the testbench. `off`: absolute offset of the record's bytes in the side buffer,
#: contiguous at `off % size`.
RECORD: Final[np.dtype[np.void]] = np.dtype(
    [
        ("time", "<u8"), ("kind", "u1"), ("pe", "u1"), ("id", "u1"), ("flags", "u1"), ("len", "<u4"),
        ("addr", "<u8"), ("data", "<u8"), ("off", "<u8"), ("aux0", "<u8"), ("aux1", "<u8"), ("spare", "<u8"),
    ]
)  # fmt: skip


class Kind(IntEnum):
    """Record kinds. time: cycle of the event; see the testbench's records page for the other fields."""

    STORE = 1  # addr, len, off
    TXPKT = 2  # len, off; aux0: cycle of the first beat, time: of the last
    RXPKT = 3
    MMIO_W = 4  # addr, data, flags = strobe
    MMIO_R = 5  # addr, data
    AXI_R = 6  # id, addr, len = beats, flags = response, aux0 = cycle of AR
    AXI_W = 7  # id, addr, len = beats, aux0 = strobe of the first beat, aux1 = strobed bytes; ids 2, 4: off
    AXI_B = 8  # id, flags = response
    COMMIT = 9  # id, addr, flags = response to come: a write burst became visible
    EVENT = 10  # flags = level
    NOTE = 11


class Check(StrEnum):
    """Every check of the judge. The part before the dot names the scoreboard that reports it."""

    TX_UNEXPECTED = "packet.unexpected"  # no such packet is due on that QP
    TX_EARLY = "packet.early"  # before the fetch of its WQE
    TX_PSN = "packet.psn"
    TX_HEADER = "packet.header"  # any other byte before the payload, or the length
    TX_PAYLOAD = "packet.payload"
    TX_PAD = "packet.pad"
    TX_ICRC = "packet.icrc"
    ACK_PSN = "packet.ack_psn"  # ahead of what was executed, or decreasing
    ACK_MSN = "packet.ack_msn"
    ACK_EARLY = "packet.ack_before_write_response"
    TX_FENCE = "packet.fence"  # a fenced WQE started while a READ or atomic was outstanding
    TX_RD_LIMIT = "packet.rd_atomic_limit"  # more than max_rd_atomic outstanding
    TX_IN_FLIGHT = "packet.in_flight"  # too many WQEs of a QP in flight
    TX_WINDOW = "packet.psn_window"
    TX_RETRY = "packet.retry"  # sent again without a cause, from another place, or with a gap
    TX_RETRY_LIMIT = "packet.retry_limit"  # sent again more often than retry_cnt or rnr_retry allow
    RESPONSE_PSN = "packet.response_psn"  # of a READ response or ATOMIC ACK: not the one that is due
    RESPONSE_ORDER = "packet.response_order"  # an ACK or NAK overtook an unanswered READ or atomic
    RESPONSE_MISSING = "packet.response_missing"  # end: a READ or atomic without (all of) its answer
    NAK = "packet.nak"  # a NAK that is not due, or the wrong one
    ACK_MISSING = "packet.ack_missing"  # end: an AckReq packet that nothing answers
    NAK_MISSING = "packet.nak_missing"
    CQE_SLOT = "cqe.slot"
    CQE_STROBE = "cqe.strobe"  # strobes, beats
    CQE_FIELD = "cqe.field"
    CQE_OWNER = "cqe.owner"
    CQE_TS = "cqe.ts"
    CQE_ORDER = "cqe.order"  # not the WQE whose turn it is
    CQE_EARLY = "cqe.early"  # before its ACK arrived
    CQE_DATA = "cqe.before_data"  # before the result bytes were in memory
    CQ_EVENT = "cqe.event"  # arming, pending bits, event output
    CQE_ROOM = "cqe.room"
    CQE_STATUS = "cqe.error_code"
    CQE_UNEXPECTED = "cqe.unexpected"
    WRITE_OUTSIDE = "memory.write_outside"  # inbound payload outside the target of a received packet
    WRITE_MISSING = "memory.write_missing"
    RESULT_OUTSIDE = "memory.result_outside"  # result of a READ or atomic outside its sink
    RESULT_MISSING = "memory.result_missing"
    WRITE_STROBE = "memory.write_strobe"
    WRITE_ORDER = "memory.response_without_write"
    READ_FETCH = "memory.fetch"  # WQE fetch that was not announced, out of order or outside the ring
    READ_GATHER = "memory.gather"  # read outside the source ranges and the READs that are held
    READ_EARLY = "memory.read_before_writes"  # for a READ, before the responses of the WRITEs in front of it
    READ_GONE = "memory.access_after_invalidation"  # the command was answered, an access is left
    AXI_ID = "memory.axi_id"  # access with an ID class that nothing asked for
    AXI_BURST = "memory.axi_burst"  # 4 KiB boundary, part of a beat
    AXI_RESP = "memory.axi_response"  # a fault where memory is mapped, or none where it is not
    ATOMIC_UNEXPECTED = "atomic.unexpected"  # a read of the atomic unit that no request asks for
    ATOMIC_EARLY = "atomic.early"  # before the write responses of the WRITEs in front of it
    ATOMIC_OVERLAP = "atomic.overlap"  # before the end of the atomic before it
    ATOMIC_PLACE = "atomic.place"  # not exactly the word, or not one beat
    ATOMIC_NEW = "atomic.new_value"
    ATOMIC_COMPARE = "atomic.write_after_failed_compare"
    ATOMIC_MISSING = "atomic.write_missing"
    ATOMIC_WRITE = "atomic.write_without_read"
    ATOMIC_TWICE = "atomic.executed_twice"
    ATOMIC_LOCK = "atomic.lock"  # an inbound WRITE to the word at the same time
    ATOMIC_OVERTAKEN = "atomic.overtaken"  # by an inbound WRITE behind it on its QP
    ATOMIC_OLD = "atomic.old_value"  # in the ATOMIC ACK
    ATOMIC_NOT_RUN = "atomic.not_executed"  # answered all the same
    ATOMIC_ACK_EARLY = "atomic.ack_before_write_response"
    CONTENT = "memory.content"  # final bytes
    STORE_UNMAPPED = "memory.store_unmapped"  # a program's own store
    DB_AMBIGUOUS = "doorbell.ambiguous"  # stimulus whose verdict depends on a race
    COUNTER = "doorbell.counter"
    ASYNC = "doorbell.async_event"
    OUTSTANDING = "doorbell.outstanding"  # end: WQEs without completion


@dataclass(frozen=True)
class Finding:
    """One violation. Numbers that do not apply are -1."""

    check: Check
    pe: int
    qpn: int
    wqe: int  # WQE index, free-running from the QP's start index
    psn: int
    cycle: int
    field: str
    expected: str
    got: str
    position: int = -1  # number of the record in the stream

    def render(self) -> str:
        """The readable block: one line of place, then both sides one under the other."""
        place = [f"PE {self.pe}"]
        place += [f"QP {self.qpn}"] if self.qpn >= 0 else []
        place += [f"WQE {self.wqe}"] if self.wqe >= 0 else []
        place += [f"PSN {self.psn:#08x}"] if self.psn >= 0 else []
        place += [f"cycle {self.cycle}"] if self.cycle >= 0 else []
        place += [f"record {self.position}"] if self.position >= 0 else []
        return (
            f"{self.check}: {', '.join(place)}: {self.field}\n"
            f"    expected {self.expected}\n"
            f"    got      {self.got}"
        )
