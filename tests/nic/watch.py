"""Where READs and atomics stand at each moment, from the ports alone: requests sent, result bytes in memory.

A sink of `Rig` for streams of WQEs posted by hand: it knows of each QP what was posted (`Flight.posted`),
finds the bytes of results by the QP's own sinks, and says what was outstanding when a request left.
"""

from __future__ import annotations

import bisect
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pymodel.formats.packet import ATOMIC_BTH, Bth
from pymodel.nic.params import AxiId
from tb.sim.records import Kind
from tests.nic.raw import RawQp
from tests.nic.stage import OWN, READS, local

FETCHING = frozenset((Bth.READ_REQUEST, *ATOMIC_BTH))


@dataclass
class Flight:
    """One direction of a QP pair: ``posted``: result bytes of each READ and atomic in posting order."""

    posted: list[int] = field(default_factory=list)
    #: (cycle of the first beat, opcode, PSN, result bytes in memory by then) of each request packet
    sent: list[tuple[int, int, int, int]] = field(default_factory=list)
    #: (cycle, result bytes in memory) after each write response
    landed: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    #: (cycle, opcode, PSN) of each response received
    answers: list[tuple[int, int, int]] = field(default_factory=list)

    def bytes_at(self, cycle: int) -> int:
        """Result bytes that were in memory before a cycle."""
        return self.landed[bisect.bisect_left(self.landed, (cycle,)) - 1][1]

    def outstanding(self) -> list[int]:
        """READs and atomics outstanding beside it when each READ or atomic was sent."""
        ends = np.cumsum([0, *self.posted])
        found = []
        requests = [cycle for cycle, opcode, _, _ in self.sent if opcode in FETCHING]
        for number, cycle in enumerate(requests):
            # empty READs end with their answer and hold nothing here: tests post none
            over = int(np.searchsorted(ends, self.bytes_at(cycle), "right")) - 1
            found.append(number - min(over, number))
        return found


class Watcher:
    """The sink. ``ends``: QPs by (pe, peer, qp); all results lie between READS and OWN of their windows."""

    def __init__(self, ends: Mapping[tuple[int, int, int], RawQp]) -> None:
        self.flights = {key: Flight() for key in ends}
        self._sinks = [(key[0], local(qp, READS), local(qp, OWN), key) for key, qp in ends.items()]
        self._to = {(key[0], qp.plan.peer_qpn): key for key, qp in ends.items()}
        self._from = {(key[0], qp.plan.qpn): key for key, qp in ends.items()}
        self._open: dict[int, deque[tuple[Flight, int]]] = defaultdict(deque)

    def __call__(self, records: npt.NDArray[np.void], side: npt.NDArray[np.uint8]) -> None:
        """Look at one batch."""
        kinds = (Kind.TXPKT, Kind.RXPKT, Kind.AXI_W, Kind.AXI_B)
        for r in records[np.isin(records["kind"], kinds)]:
            kind, pe, time = int(r["kind"]), int(r["pe"]), int(r["time"])
            if kind in (Kind.TXPKT, Kind.RXPKT):
                start = int(r["off"]) % len(side)
                head = side[start : start + 54].tobytes()
                opcode, psn = head[42], int.from_bytes(head[51:54], "big")
                answer = Bth.READ_FIRST <= opcode <= Bth.ATOMIC_ACK
                table = self._to if kind == Kind.TXPKT else self._from
                key = table.get((pe, int.from_bytes(head[47:50], "big")))
                if key is None or answer == (kind == Kind.TXPKT):
                    continue
                flight = self.flights[key]
                if answer:
                    flight.answers.append((time, opcode, psn))
                else:
                    flight.sent.append((int(r["aux0"]), opcode, psn, flight.landed[-1][1]))
            elif r["id"] == AxiId.RESULT and kind == Kind.AXI_W:
                strobe, addr = int(r["aux0"]), int(r["addr"]) & ~63
                first = addr + (strobe & -strobe).bit_length() - 1
                key = next(k for at, low, high, k in self._sinks if at == pe and low <= first < high)
                self._open[pe].append((self.flights[key], int(r["aux1"])))
            elif r["id"] == AxiId.RESULT:
                flight, size = self._open[pe].popleft()
                flight.landed.append((time, flight.landed[-1][1] + size))
