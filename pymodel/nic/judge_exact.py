"""The judge record by record: every rule with every error path. Slow (tens of us a record) and exact.

The batch engine proves long regular stretches at once and hands everything else to this one. This module
hands each record to the data path that it belongs to; each of them has a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pymodel.formats.arrays import U8, Rec
from pymodel.nic import judge_frames as frames
from pymodel.nic.exact_atomic import Atomics
from pymodel.nic.exact_complete import Complete
from pymodel.nic.exact_core import Core, Part
from pymodel.nic.exact_events import Events
from pymodel.nic.exact_host import Host
from pymodel.nic.exact_memory import Memory
from pymodel.nic.exact_queue import Queue
from pymodel.nic.exact_receive import Receive
from pymodel.nic.exact_regions import Regions
from pymodel.nic.exact_requests import Requests
from pymodel.nic.exact_respond import Respond
from pymodel.nic.exact_rest import Rest
from pymodel.nic.exact_retry import Retry
from pymodel.nic.exact_transmit import Transmit
from pymodel.nic.judge_records import Check, Finding, Kind
from pymodel.nic.judge_state import State
from pymodel.nic.params import AxiId, Cnt


class Exact(Part):
    """Judges single records against `state`; findings go to `report`."""

    def __init__(self, state: State, report: Callable[[Finding], None], time_origin: int = 0) -> None:
        super().__init__(Core(state, report, time_origin))
        core = self.core
        self.regions = Regions(core)
        self.atomics = Atomics(core, self.regions)
        self.events = Events(core)
        self.retry = Retry(core)
        self.queue = Queue(core, self.regions)
        self.memory = Memory(core, self.atomics, self.regions, self.retry, self.queue)
        self.complete = Complete(core, self.events, self.regions, self.retry)
        self.host = Host(core, self.complete, self.events, self.regions, self.queue)
        self.transmit = Transmit(core, self.retry)
        self.requests = Requests(core, self.memory, self.atomics, self.regions, self.queue)
        self.receive = Receive(core, self.memory, self.regions, self.retry, self.requests)
        self.respond = Respond(core, self.transmit, self.atomics, self.regions, self.requests.duplicates)
        self.rest = Rest(core)
        self._handlers: dict[int, Callable[[Any], None]] = {
            Kind.STORE: self.memory.store,
            Kind.TXPKT: self._sent,
            Kind.RXPKT: self.receive.packet,
            Kind.MMIO_W: self.host.write,
            Kind.MMIO_R: self.host.read,
            Kind.AXI_R: self.memory.read,
            Kind.AXI_W: self._write,
            Kind.AXI_B: self._response,
            Kind.COMMIT: self.memory.commit,
            Kind.EVENT: self.events.level,
        }

    @property
    def time_origin(self) -> int:
        """Record time at which the NICs' time stamp is 0."""
        return self.core.time_origin

    @property
    def loose(self) -> set[tuple[int, int]]:
        """(PE, counter) whose value a race leaves open."""
        return self.core.loose

    def judge(self, records: Rec, side: U8) -> None:
        """Judge records in order; side: the side buffer they point into."""
        core = self.core
        core.side = side
        for r in records:
            core.time = int(r["time"])
            handler = self._handlers.get(int(r["kind"]))
            if handler is not None:
                handler(r)
            self.s.position += 1
        if records.size:
            self.s.cycle = max(self.s.cycle, core.time)

    def _write(self, r: Any) -> None:
        ident = int(r["id"])
        self.memory.burst(r)
        if ident in (AxiId.INBOUND, AxiId.RESULT):
            self.memory.land(r)
        elif ident == AxiId.CQE:
            self.complete.cqe(r)
        elif ident == AxiId.ATOMIC:
            self.atomics.write(r)
        else:
            self.find(Check.AXI_ID, int(r["pe"]), f"write to {int(r['addr']):#x}", "id 2 to 5", f"id {ident}")

    def _response(self, r: Any) -> None:
        pe, ident = int(r["pe"]), int(r["id"])
        if ident in (AxiId.INBOUND, AxiId.RESULT):
            self.memory.landed(pe, ident, int(r["flags"]))
        elif ident == AxiId.CQE:
            self.complete.response(pe, int(r["flags"]))
        elif ident == AxiId.ATOMIC:
            self.atomics.response(pe, bool(r["flags"]))
        else:
            self.find(Check.WRITE_ORDER, pe, f"write response of id {ident}", "a write before it", "none")

    def _sent(self, r: Any) -> None:
        """A packet left a NIC."""
        s, pe = self.s, int(r["pe"])
        frame = self.core.bytes_of(r, int(r["len"]))
        least = frames.BASE + frames.ICRC
        if len(frame) < least:
            self.find(Check.TX_UNEXPECTED, pe, "frame", f"at least {least} bytes", f"{len(frame)} bytes")
            return
        dst_ip, dst_qpn = int.from_bytes(frame[30:34], "big"), int.from_bytes(frame[47:50], "big")
        g = s.tx_map.get(s.tx_key(pe, dst_ip, dst_qpn), -1)
        if g < 0:
            self.find(Check.TX_UNEXPECTED, pe, "destination", "the peer of one of its QPs",
                      f"address {dst_ip:#010x} QPN {dst_qpn}")  # fmt: skip
        elif frame[42] in frames.RESPONSES:
            self.respond.response(pe, g, frame)
        else:
            self.transmit.request(pe, g, frame)

    # ------------------------------------------------------------------ end of test
    def overruns(self) -> None:
        """CQs whose completions have waited too long by now."""
        self.complete.overruns()

    def finish(self) -> None:
        """The end of the test: what only its end decides."""
        self.atomics.finish()
        self.events.finish()

    def outstanding(self) -> list[Finding]:
        """WQEs, writes and responses that are still due, each with what it waits for."""
        return self.rest.findings()

    def discards(self, pe: int) -> int:
        """Completions of a PE that overrun CQs swallowed; how many of them were flushed is open."""
        s = self.s
        lost = (s.q_pe == pe) & (s.q_cq >= 0) & s.c_dead[s.q_cq]
        taken = [q.pi - q.done for g, q in s.rq.items() if s.q_pe[g] == pe and s.c_dead[s.q_rcq[g]]]
        if lost.any() or sum(taken):
            self.loose.update((pe, int(n)) for n in (Cnt.FLUSH, Cnt.CQ_OVERRUN))
        return int((s.q_pi - s.q_ret)[lost].sum()) + sum(taken)

    def completed(self, pe: int) -> int:
        """Completed WQEs of a PE, receive WQEs, silent ones and errors included."""
        s = self.s
        mine = np.flatnonzero(s.q_pe == pe).tolist()
        received = sum(q.done - q.start + q.gone for g, q in s.rq.items() if s.q_pe[g] == pe)
        return sum(s.retired(g) - int(s.q_start[g]) + int(s.q_gone[g]) for g in mine) + received
