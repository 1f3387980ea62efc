"""One golden NIC: its steps, and what goes between it and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from pymodel.formats.packet import IS_RESPONSE
from pymodel.formats.wqe import WqeOp
from pymodel.nic import rules
from pymodel.nic.context import QpState
from pymodel.nic.golden.core import Packet
from pymodel.nic.golden.front import Front
from pymodel.nic.golden.receive import Receiver
from pymodel.nic.golden.recovery import Recovery
from pymodel.nic.params import Cnt, Params
from pymodel.platform import UnmappedError

if TYPE_CHECKING:
    from pymodel.model import PeMemory


class StepKind(IntEnum):
    """What a step does; the QP of a step belongs to the NIC that offers it."""

    COMPLETE = 0
    """Retire the oldest WQE of the QP."""
    RESPONSE = 1
    """Deliver the oldest response that the QP sent."""
    REQUEST = 2
    """Deliver the oldest request packet that the QP sent."""
    ATOMIC = 3
    """Execute the oldest atomic that the QP holds as responder, whatever is to be answered before it."""
    SERVE = 4
    """Make the next response of the oldest READ or atomic that the QP holds as responder."""
    SEND = 5
    """Fetch and send the next packet of the QP."""
    RECEIVED = 6
    """Complete the oldest receive WQE of the QP."""


Step = tuple[StepKind, int]
"""(kind, QPN)."""

#: what a WQE writes, as far as its segments tell: (opcodes, at the peer, offset of the data segment)
_WRITES: Final = (
    ({WqeOp.WRITE, *rules.ATOMIC_REQUEST}, True, 16),
    ({WqeOp.READ, *rules.ATOMIC_REQUEST}, False, 32),
)


class GoldenNic(Receiver, Front, Recovery):
    """One NIC.

    ``memory``: the PE's memory as the NIC's port reaches it. ``on_write(addr, length)``: called after each
    write. ``now()``: time in cycles, for time stamps and waiting. ``route(mac)``: the NIC with that MAC
    address. ``on_executed(qpn, index)``: the request ``index`` that the peer of QP ``qpn`` sent is executed:
    a WRITE's last byte written, a READ's last byte read, an atomic done.
    """

    def __init__(
        self,
        memory: PeMemory,
        on_write: Callable[[int, int], None],
        now: Callable[[], int],
        params: Params,
    ) -> None:
        super().__init__(memory, on_write, now, params)
        self.route: Callable[[int], GoldenNic | None] = lambda mac: None
        #: takes (this NIC, QPN, packet) in place of the peer: a link that loses packets
        self.link: Callable[[GoldenNic, int, Packet], None] | None = None

    # ------------------------------------------------------------------ steps
    def steps(self) -> Iterator[Step]:
        """Everything that can happen next, in no order that means anything."""
        for qpn in list(self._active):
            offered = False
            qp = self._qps.get(qpn)
            if qp is not None and self._can_complete(qp):
                offered = True
                yield StepKind.COMPLETE, qpn
            if self._responses[qpn]:
                offered = True
                yield StepKind.RESPONSE, qpn
            if self._requests[qpn]:
                offered = True
                yield StepKind.REQUEST, qpn
            if qp is not None and self._due_atomic(qp) is not None:
                offered = True
                yield StepKind.ATOMIC, qpn
            if qp is not None and self._can_serve(qp):
                offered = True
                yield StepKind.SERVE, qpn
            if qp is not None and self._can_send(qp):
                offered = True
                yield StepKind.SEND, qpn
            if qp is not None and self._can_complete_receive(qp):
                offered = True
                yield StepKind.RECEIVED, qpn
            if not offered and (qp is None or (qp.waits_since is None and qp.rq_waits_since is None)):
                self._active.pop(qpn, None)

    def run(self, step: Step) -> int:
        """Do one step that `steps` has just offered; gives the cycles that it takes."""
        kind, qpn = step
        if kind is StepKind.COMPLETE:
            self._complete(self._qps[qpn])
            return 2
        if kind is StepKind.ATOMIC:
            return self._run_atomic(self._qps[qpn])
        if kind is StepKind.SERVE:
            return self._serve(self._qps[qpn])
        if kind is StepKind.RECEIVED:
            self._complete_receive(self._qps[qpn])
            return 2
        if kind is StepKind.SEND:
            return self._send(self._qps[qpn])
        queue = self._responses[qpn] if kind is StepKind.RESPONSE else self._requests[qpn]
        packet = queue.popleft()
        if self.link is not None:
            self.link(self, qpn, packet)
        elif (peer := self.route(packet.dst_mac)) is not None:
            peer.receive(packet)
        return 2 + len(packet.payload) // self.params.data_bytes

    def receive(self, packet: Packet) -> None:
        """Deliver one packet that the link carried to this NIC (wire.md 1); exactly one counter shows it."""
        qp = self._qps.get(packet.qpn)
        if packet.dst_ip != self.ip:
            self.count(Cnt.DROP_IP_DST)
        elif qp is None or qp.state is not QpState.RTS:
            self.count(Cnt.DROP_QP)
        elif packet.src_ip != qp.context.peer_ip:
            self.count(Cnt.DROP_IP_SRC)
        elif IS_RESPONSE[packet.bth]:
            self._response(qp, packet)
        else:
            self._request(qp, packet)

    # ------------------------------------------------------------------ time
    def next_timer(self) -> int | None:
        """Cycle at which something happens that nobody else causes; None where nothing does.

        A completion gives up waiting for CQ room (NIC page 6), a transport timer expires, an RNR wait ends.
        """
        room, lost = super().next_timer(), self.next_retry()
        return lost if room is None else room if lost is None else min(room, lost)

    # ------------------------------------------------------------------ what the lazy schedule asks
    def requester_of(
        self, step: Step, route: Callable[[int], GoldenNic | None]
    ) -> tuple[GoldenNic, int] | None:
        """The NIC and QPN whose WQEs a step moves forward."""
        kind, qpn = step
        if kind in (StepKind.ATOMIC, StepKind.SERVE):
            context = self._qps[qpn].context
            mac, peer_qpn = context.peer_mac, context.peer_qpn
        elif kind is StepKind.RESPONSE:
            packet = self._responses[qpn][0]
            mac, peer_qpn = packet.dst_mac, packet.qpn
        else:
            return self, qpn
        peer = route(mac)
        return None if peer is None or peer_qpn not in peer._qps else (peer, peer_qpn)

    def cq_spans(self, qpn: int) -> list[tuple[int, int]]:
        """(address, bytes) of the ring that the QP's WQEs complete to."""
        qp = self._qps.get(qpn)
        if qp is None:
            return []
        context = self._cqs[qp.context.send_cq].context
        return [(context.base, context.depth * context.stride)]

    def write_spans(self, qpn: int, limit: int) -> Iterator[tuple[int, int, int]]:
        """(MAC of the NIC, address, bytes) that the QP's next ``limit`` uncompleted WQEs will write."""
        qp = self._qps.get(qpn)
        if qp is None:
            return
        for step in range(min(qp.outstanding, limit)):
            try:
                raw = self.memory.nic_read(qp.slot((qp.retired + step) & qp.mask), 48)
            except UnmappedError:
                return
            for opcodes, remote, at in _WRITES:
                if raw[0] in opcodes:
                    yield (
                        qp.context.peer_mac if remote else self.mac,
                        int.from_bytes(raw[at + 8 : at + 16], "little"),
                        int.from_bytes(raw[at : at + 4], "little"),
                    )
