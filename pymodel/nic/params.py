"""Named parameters (K in spec/nic.md and spec/wire.md), the BAR map and the numbers of counters and events.

Written down here for the model and, by hand and apart, in rtl/rnic_pkg.sv for the hardware.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

RNR_UNITS: Final = (65536, 1, *(units << k for k in range(15) for units in (2, 3)))
"""RNR time codes in units of 10 us; each second code from 2 on doubles (InfiniBand volume 1, 9.7.5.2.8)."""


@dataclass(frozen=True)
class Params:
    """Every K with its default. Times are clock cycles unless the name says otherwise."""

    #: contexts and their numbering (nic.md 2); QPNs 0 and 1 belong to management
    num_qp: int = 64
    first_qpn: int = 2
    num_cq: int = 64
    num_mr: int = 256
    #: clock period in ns (nic.md 1)
    clock_ns: int = 2
    #: data bytes per beat of memory port and link (nic.md 1)
    data_bytes: int = 64
    #: most READs and atomics outstanding as requester, and held as responder (nic.md 2)
    max_rd_atomic: int = 16
    max_dest_rd_atomic: int = 16
    #: doorbell offsets inside a page of page_bytes (nic.md 3)
    db_base: int = 0x0800_0000
    db_page_bytes: int = 4096
    db_sq: int = 0
    db_rq: int = 8
    db_cq: int = 16
    #: an SQ doorbell beyond half of the index width is ignored (False: treated as overrun) (nic.md 3)
    stale_ignored: bool = True
    #: WQEs per fetch burst, active QPs, WQEs in flight per QP (nic.md 4, 5)
    max_fetch: int = 8
    num_lane: int = 8
    max_inflight: int = 16
    #: weights of the eight service levels; 0 counts as 1 (nic.md 4)
    sl_weight: tuple[int, ...] = (1,) * 8
    #: remote segment length of masked atomics is shifted left by one (nic.md 4)
    shifted_remote_len: bool = False
    #: operands of opcodes 26 and 27 are little-endian (nic.md 4)
    plain_atomics_le: bool = False
    #: cycles that a completion waits for CQ room, 0 = for ever (nic.md 6)
    cq_wait: int = 0
    #: entries of the asynchronous event FIFO (nic.md 6)
    async_fifo: int = 64
    #: AckReq on every packet whose index + 1 is a multiple (wire.md 2)
    ack_interval: int = 16
    #: cycles per unit of transport timer and of RNR wait (wire.md 5)
    timer_unit: int = 64
    rnr_unit: int = 64
    #: timer code of RNR NAKs that this NIC sends, in units of 10 us (wire.md 3, 5)
    rnr_timer: int = 1
    #: received messages per QP whose CQE is not written yet; one more gets an RNR NAK (nic.md 5)
    max_received: int = 16
    #: unacknowledged PSNs per QP stay below this (wire.md 5)
    psn_window: int = 1 << 22

    def qp_index(self, qpn: int) -> int:
        """Index of a QP number, 0..num_qp-1. Raises ValueError outside the range (nic.md 2)."""
        if not self.first_qpn <= qpn < self.first_qpn + self.num_qp:
            raise ValueError(f"QPN {qpn} is not one of {self.first_qpn}..{self.first_qpn + self.num_qp - 1}")
        return qpn - self.first_qpn

    def db_address(self, qpn: int, offset: int) -> int:
        """BAR address of a doorbell of QP `qpn`; offset is db_sq, db_rq or db_cq (nic.md 1, 3)."""
        return self.db_base + self.db_page_bytes * qpn + offset


DEFAULT_PARAMS: Final = Params()


class Csr(IntEnum):
    """Byte offsets of the 64-bit CSRs from BAR offset 0."""

    ID = 0x000
    CONFIG = 0x008
    MAC = 0x010
    IP = 0x018
    TIME = 0x020
    EVENT_CAUSE = 0x028
    EVENT_MASK = 0x030
    ASYNC_POP = 0x038
    CQ_EVENT = 0x040
    SL_WEIGHT = 0x048
    CQ_WAIT = 0x050
    QP_STATE_RTS = 0x058
    QP_STATE_ERR = 0x060
    COUNTERS = 0x1000  # + 8 * Cnt


CSR_ID_VALUE: Final = 0x4341_4D48_494C_0001
#: command window (nic.md 1, 2)
CMD_BASE: Final = 0x1_0000
CMD_REG: Final = CMD_BASE
CMD_STATUS: Final = CMD_BASE + 0x008
CMD_STAGE: Final = CMD_BASE + 0x100
STAGE_WORDS: Final = 16


class AxiId(IntEnum):
    """AXI ID classes (nic.md 1)."""

    FETCH = 0
    GATHER = 1
    ATOMIC = 2
    INBOUND = 3
    CQE = 4
    RESULT = 5


class AsyncKind(IntEnum):
    """Kinds of asynchronous events (nic.md 6); the number beside it is a QPN or a CQN."""

    SQ_OVERRUN = 1  # QPN
    CQ_OVERRUN = 2  # CQN
    CQE_BUS_ERR = 3  # CQN
    QP_ERR = 4  # QPN
    RQ_OVERRUN = 5  # QPN


class Cnt(IntEnum):
    """Counter numbers (nic.md 7); counter n is the CSR at COUNTERS + 8 * n."""

    TX_REQUEST = 0
    TX_RESPONSE = 1
    RX_PACKET = 2
    DROP_SHORT = 3
    DROP_MAC = 4
    DROP_ETHERTYPE = 5
    DROP_IPV4 = 6
    DROP_IP_DST = 7
    DROP_UDP_PORT = 8
    DROP_LENGTH = 9
    DROP_ICRC = 10
    DROP_TVER = 11
    DROP_OPCODE = 12
    DROP_PKEY = 13
    DROP_QP = 14
    DROP_IP_SRC = 15
    DROP_SYNDROME = 16
    DROP_RESPONSE = 17
    DUPLICATE = 18
    PSN_AHEAD = 19
    DB_STALE = 20
    DB_OVERRUN = 21
    DB_PID = 22
    DB_PAGE = 23
    DB_PARTIAL = 24
    DB_RESET = 25
    DB_CQ_BACKWARD = 26
    DB_CQ_BEYOND = 27
    DB_RQ = 28
    NAK_SEQ_TX = 29
    NAK_INV_TX = 30
    NAK_ACC_TX = 31
    NAK_OP_TX = 32
    NAK_SEQ_RX = 33
    NAK_INV_RX = 34
    NAK_ACC_RX = 35
    NAK_OP_RX = 36
    RNR_RX = 37
    FLUSH = 38
    CQ_OVERRUN = 39
    CQE_DISCARD = 40
    BUS_FETCH = 41
    BUS_GATHER = 42
    BUS_INBOUND = 43
    BUS_CQE = 44
    CMD_BUSY = 45
    RETRY = 46
    RD_TOO_MANY = 47
    ATOMIC_NO_SAVE = 48
    WQE = 49
    CQE = 50
    BUS_ATOMIC = 51
    BUS_RESULT = 52
    ATOMIC = 53
    READ = 54
    RNR_TX = 55


def mtu_bytes(code: int) -> int:
    """Bytes of an MTU code, 1..5 -> 256..4096 (wire.md 1). Raises ValueError for another code."""
    if not 1 <= code <= 5:
        raise ValueError(f"MTU code {code} is not 1..5")
    return 128 << code
