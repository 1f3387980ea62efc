"""Exact engine, memory port: stores, WQE fetches, gathers, and writes of payload and results with their
responses."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Any

import numpy as np

from pymodel.formats.cqe import CqeError
from pymodel.nic.exact_atomic import Atomics
from pymodel.nic.exact_core import NEVER, SETTLE, SLVERR, Core, Part, strobes
from pymodel.nic.exact_queue import Queue
from pymodel.nic.exact_regions import Regions
from pymodel.nic.exact_retry import LAG, Retry
from pymodel.nic.judge_entries import READ, WRITE, InboundWrite, Request
from pymodel.nic.judge_records import Check
from pymodel.nic.judge_state import ERR, RTS
from pymodel.nic.params import AxiId, Cnt

_LINE = ~63 & (1 << 64) - 1
_QUEUES = (AxiId.INBOUND, AxiId.RESULT)


class Memory(Part):
    """Everything at the memory port but CQEs and the accesses of the atomic unit."""

    def __init__(self, core: Core, atomics: Atomics, regions: Regions, retry: Retry, receives: Queue) -> None:
        super().__init__(core)
        self.atomics, self.regions, self.retry, self.receives = atomics, regions, retry, receives

    def store(self, r: Any) -> None:
        """A store by the program or the host."""
        s, pe, addr, length = self.s, int(r["pe"]), int(r["addr"]), int(r["len"])
        at = s.memory.flat(pe, addr, length)
        if at < 0:
            self.find(Check.STORE_UNMAPPED, pe, f"store of {length} bytes", "a mapped range", f"{addr:#x}")
            return
        self.core.put(pe, at, self.core.bytes_of(r, length))

    def burst(self, r: Any) -> None:
        """INCR bursts of whole aligned beats that do not cross 4 KiB (nic.md 1)."""
        addr, beats = int(r["addr"]), int(r["len"])
        if not beats or (addr & ~63) // 4096 != ((addr & ~63) + 64 * beats - 1) // 4096:
            self.find(Check.AXI_BURST, int(r["pe"]), f"id {int(r['id'])}", "inside 4 KiB",
                      f"{addr:#x}, {beats} beats")  # fmt: skip

    # ------------------------------------------------------------------ reads
    def read(self, r: Any) -> None:
        """A read burst."""
        pe, ident, addr, beats = int(r["pe"]), int(r["id"]), int(r["addr"]), int(r["len"])
        if ident == AxiId.ATOMIC:
            self.atomics.read(pe, addr, beats, int(r["aux0"]), bool(r["flags"]))
            return
        self.burst(r)
        if addr & 63:
            self.find(Check.AXI_BURST, pe, f"read address of id {ident}", "a multiple of 64", f"{addr:#x}")
        fault = self.s.memory.beats_fault(pe, addr, 64 * beats)
        if fault != bool(r["flags"]):
            self.find(
                Check.AXI_RESP, pe, f"read of {addr:#x}", f"fault {fault}", f"response {int(r['flags'])}"
            )
        if ident == AxiId.FETCH:
            if fault:
                self.count(pe, Cnt.BUS_FETCH)
            self._fetch(pe, addr, 64 * beats, int(r["aux0"]))
        elif ident == AxiId.GATHER:
            if fault:
                self.count(pe, Cnt.BUS_GATHER)
            self._gather(pe, addr, 64 * beats, int(r["aux0"]), fault)
        else:
            self.find(Check.AXI_ID, pe, f"read of {addr:#x}", "id 0, 1 or 2", f"id {ident}")

    def _ring_of(self, pe: int, addr: int, length: int) -> int:
        """QP whose SQ ring holds the range, else -1. Rings in unmapped memory are searched one by one."""
        s = self.s
        at = s.memory.flat(pe, addr, length)
        if at >= 0:
            i = bisect_right(s.q_sorted, at) - 1
            g = int(s.q_order[i]) if i >= 0 else -1
            return (
                g if g >= 0 and s.q_flat[g] >= 0 and at + length <= s.q_flat[g] + 128 * s.q_depth[g] else -1
            )
        for g in np.flatnonzero((s.q_pe == pe) & (s.q_flat < 0)).tolist():
            if int(s.q_base[g]) <= addr and addr + length <= int(s.q_base[g]) + 128 * int(s.q_depth[g]):
                return g
        return -1

    def _fetch(self, pe: int, addr: int, length: int, since: int) -> None:
        """Only announced WQEs, in order, no gap (nic.md 4)."""
        s = self.s
        g = self._ring_of(pe, addr, length)
        if g < 0 and self.receives.read(pe, addr, length, since):
            return
        if g < 0:
            self.find(Check.READ_FETCH, pe, "WQE fetch", "inside one SQ ring", f"{addr:#x}, {length} bytes")
            return
        depth, into = int(s.q_depth[g]), addr - int(s.q_base[g])
        slot, slots = into // 128, (into % 128 + length + 127) // 128
        nxt, pi = int(s.q_fetch[g]), int(s.q_pi[g])
        first = nxt + (slot - nxt) % depth
        if first >= pi or (first > nxt and g in self.retry.of):
            first -= depth  # a WQE that is fetched again
        last = first + slots - 1
        # data of a fetch that began before the QP went to ERR may come after the flush of its WQEs
        racing = s.q_state[g] == ERR and since <= int(s.q_err_time[g]) + SETTLE
        # what is sent again is fetched again; an ACK of it may come meanwhile
        racing |= g in self.retry.of and 0 < since <= int(s.w_done[s.row(g, first)]) + LAG
        if (first < int(s.q_ret[g]) and not racing) or first > nxt or last >= pi:
            self.find(Check.READ_FETCH, pe, "WQE fetch",
                      f"from WQE {nxt} on, below the producer index {pi}",
                      f"slot {slot}, {slots} slots", g, nxt)  # fmt: skip
            return
        if since < s.w_time[s.row(g, last)]:
            self.find(Check.READ_FETCH, pe, "cycle of the fetch", f"after {int(s.w_time[s.row(g, last)])}",
                      f"{since}", g, last)  # fmt: skip
        if s.q_state[g] == ERR and since > int(s.q_err_time[g]) + SETTLE:
            self.find(Check.READ_FETCH, pe, "WQE fetch", "none, the QP is in ERR", f"WQE {first}", g, first)
        s.q_fetch[g] = max(nxt, last + 1)
        for early in self.core.early.pop(g, []):
            if early[0] > last:
                self.core.early.setdefault(g, []).append(early)
            elif since >= early[1]:
                self.find(Check.TX_EARLY, pe, "request packet", f"after the fetch of WQE {early[0]}",
                          f"in cycle {early[1]}, fetch from {since} on", g, early[0], early[2])  # fmt: skip

    def _gather(self, pe: int, addr: int, length: int, since: int, fault: bool) -> None:
        """Inside the source of a live WQE, or of a READ that the responder holds (nic.md 1, 4)."""
        requests, soon = self._gather_of_read(pe, addr, length, since)
        failing = [e.gq for e in requests if fault and self._failing(e)]
        if failing:
            # of several at one address each may be the one: the first changes to ERR, all may send their NAK
            self.s.q_err_time[failing[0]] = self.core.time
            self.core.failed.update(failing)
        if any(not self.core.is_gone(pe, e.rkey) for e in requests):
            return
        owner = self._gather_of_wqe(pe, addr, length, since)
        if owner is not None or requests:
            g, key = owner or (requests[0].gq, requests[0].rkey)
            if self.core.is_gone(pe, key):
                self.regions.read_after(pe, f"gather of {addr:#x}", g)
            return
        if soon is not None:
            self.find(Check.READ_EARLY, pe, "READ response gather",
                      "after the write responses of the WRITEs before it", f"{addr:#x} in cycle {since}",
                      soon.gq, psn=self.core.rq_psn(soon.gq, soon.number))  # fmt: skip
            return
        self.find(Check.READ_GATHER, pe, "gather read", "inside the source of an announced WQE or held READ",
                  f"{addr:#x}, {length} bytes")  # fmt: skip

    def _gather_of_wqe(self, pe: int, addr: int, length: int, since: int) -> tuple[int, int] | None:
        """(QP, lkey) of a WQE that explains a gather; one whose region is there goes before another."""
        s = self.s
        found: tuple[int, int] | None = None
        # after an error the CQE does not wait for reads that are under way, or wait for the memory port: WQEs
        # count until then. Their rows last until q_mask later ones were announced; flushes are quick
        # and of packets that are sent again while they are acknowledged
        odd = s.q_state != RTS
        odd[list(self.retry.of)] = True
        back = np.where(odd, np.maximum(s.q_start, s.q_pi - s.q_mask), s.q_ret)
        for g in np.flatnonzero((s.q_pe == pe) & (s.q_pi > back)).tolist():
            idx = np.arange(int(back[g]), int(s.q_pi[g]))
            rows = s.q_row[g] + (idx & s.q_mask[g])
            settle = LAG if g in self.retry.of else SETTLE
            rows = rows[(idx >= s.q_ret[g]) | ((s.w_done[rows] > 0) & (s.w_done[rows] + settle >= since))]
            low = s.w_laddr[rows] & np.uint64(_LINE)
            into = np.uint64(addr) - low  # modulo 2^64
            # bytes of the aligned source range, and where the read ends in it
            size = s.w_laddr[rows] - low + s.w_len[rows].astype(np.uint64) + np.uint64(63)
            size &= np.uint64(_LINE)
            fits = (size >= length) & (into <= size - np.uint64(length)) & (s.w_len[rows] > 0)
            fits &= s.w_kind[rows] == WRITE
            usable = (s.w_err[rows] == 0) | (s.w_err[rows] == CqeError.DATA_DMA_RD_REQ) | ~s.w_local[rows]
            for key in np.unique(s.w_lkey[rows[fits & usable & (s.w_time[rows] <= since)]]).tolist():
                found = g, key
                if not self.core.is_gone(pe, key):
                    return found
        return found

    def _failing(self, request: Request) -> bool:
        """Whether a READ waits for the bus error that its NAK 3 is due for."""
        nak = self.s.r_nak.get(request.gq, (-1, 0))
        waits = nak[1] == 3 and self.s.q_err_time[request.gq] == NEVER
        return waits and request.number <= nak[0] < request.number + request.packets

    def _gather_of_read(
        self, pe: int, addr: int, length: int, since: int
    ) -> tuple[list[Request], Request | None]:
        """(READs that explain a gather, one that would if the WRITEs before it had their responses)."""
        s = self.s
        gone = [e for e, until in self.core.gone if since <= until]
        soon: Request | None = None
        found: list[Request] = []
        for e in [e for q in s.r_reads.values() for e in q] + gone:
            if e.kind != READ or s.q_pe[e.gq] != pe or not e.length:
                continue
            at = e.sent * int(s.q_mtu[e.gq])
            low, high = (e.va + at) & _LINE, (e.va + e.length + 63) & ~63
            if not (low <= addr and addr + length <= high):
                continue
            if since <= e.since:
                soon = e
                continue
            e.gathered |= addr + length == high
            found.append(e)
        return found, soon

    # ------------------------------------------------------------------ writes
    def _queues(self, pe: int, ident: int) -> tuple[deque[InboundWrite], deque[InboundWrite | None]]:
        s = self.s
        if ident == AxiId.INBOUND:
            return s.inbound[pe], s.bursts[pe]
        return s.results[pe], s.result_bursts[pe]

    def land(self, r: Any) -> None:
        """A write of inbound payload (ID 3) or of results (ID 5)."""
        pe, ident = int(r["pe"]), int(r["id"])
        queue, bursts = self._queues(pe, ident)
        start, count, good = strobes(r)
        if not good:
            self.find(Check.WRITE_STROBE, pe, f"strobes of the write to {start:#x}", "one contiguous range",
                      f"{int(r['aux0']):#018x}, {count} bytes, {int(r['len'])} beats")  # fmt: skip
        if ident == AxiId.INBOUND:
            self.atomics.locked(pe, start, count)
        seen: set[int] = set()
        for entry in queue:
            if entry.done >= entry.length:
                continue
            # visible in PSN order per QP: only the first unfinished packet of a QP may be written
            if entry.gq not in seen and entry.va + entry.done == start and count <= entry.length - entry.done:
                self._begin(entry, count, bursts)
                if entry.contested:
                    self.regions.begun(pe, entry)
                if ident == AxiId.INBOUND:
                    self.atomics.overtaken(pe, entry, start, count)
                return
            seen.add(entry.gq)
        taken = self.retry.written if ident == AxiId.RESULT else self.receives.written
        if taken(pe, start):
            self.land(r)
            return
        due = next((e for e in queue if e.done < e.length), None)
        # taken as the due one at a wrong place, so that one fault gives one finding
        meant = due if due is not None and count <= due.length - due.done else None
        what, check = "inbound payload", Check.WRITE_OUTSIDE
        if ident == AxiId.RESULT:
            what, check = "result", Check.RESULT_OUTSIDE
        self.find(check, pe, f"{what} write",
                  f"{due.va + due.done:#x}, up to {due.length - due.done} bytes" if due else "none is due",
                  f"{start:#x}, {count} bytes", due.gq if due else -1, due.wqe if due else -1)  # fmt: skip
        if meant is not None:
            self._begin(meant, count, bursts)
        else:
            bursts.append(None)

    @staticmethod
    def _begin(entry: InboundWrite, count: int, bursts: deque[InboundWrite | None]) -> None:
        entry.pieces.append((entry.done, count))
        entry.open.append((entry.done, count))
        entry.done += count
        entry.unanswered += 1
        bursts.append(entry)

    def commit(self, r: Any) -> None:
        """A burst became visible."""
        pe, ident = int(r["pe"]), int(r["id"])
        if ident == AxiId.ATOMIC:
            self.atomics.commit(pe, int(r["flags"]))
        elif ident in _QUEUES:
            bursts = self._queues(pe, ident)[1]
            n = int(self.s.visible[pe, ident])
            if n < len(bursts):
                self._show(pe, bursts[n], int(r["flags"]))
                self.s.visible[pe, ident] = n + 1

    def _show(self, pe: int, entry: InboundWrite | None, response: int) -> None:
        """The oldest burst of an entry that is not visible goes into golden memory."""
        if entry is None or not entry.pieces:
            return
        start, count = entry.pieces.popleft()
        # the memory drops a whole burst on SLVERR, single beats or bytes where nothing is mapped
        if entry.payload is not None and response != SLVERR:
            self.core.deposit(pe, entry.va + start, entry.payload[start : start + count])

    def landed(self, pe: int, ident: int, response: int) -> None:
        """The write response of the oldest burst."""
        s, bad = self.s, bool(response)
        queue, bursts = self._queues(pe, ident)
        if not bursts:
            self.find(Check.WRITE_ORDER, pe, f"write response of id {ident}", "a write before it", "none")
            return
        if s.visible[pe, ident]:
            s.visible[pe, ident] -= 1
        else:
            self._show(pe, bursts[0], response)
        entry = bursts.popleft()
        if bad:
            self.count(pe, Cnt.BUS_INBOUND if ident == AxiId.INBOUND else Cnt.BUS_RESULT)
        if entry is None:
            return
        start, count = 0, entry.length  # somewhere in the packet, where the burst is not known
        if len(entry.open) == entry.unanswered:
            start, count = entry.open.popleft()
            if ident == AxiId.INBOUND:
                self.atomics.answered(pe, entry.va + start, count)
        entry.unanswered -= 1
        g = entry.gq
        # nothing but an error range, or no memory, in the burst itself explains an error
        if bad and not s.memory.beats_fault(pe, entry.va + start, count, True):
            self.find(Check.AXI_RESP, pe, f"write of {count} bytes at {entry.va + start:#x}",
                      "response 0: nothing there answers with an error", f"{response}", g, entry.wqe,
                      self.core.rq_psn(g, entry.cum) if entry.wqe < 0 else -1)  # fmt: skip
        if bad and entry.wqe < 0 and s.r_nak.get(g) == (entry.cum, 3):
            s.q_err_time[g] = self.core.time
        if bad and entry.wqe >= 0 and not entry.optional:
            self.core.fail(g, entry.wqe, CqeError.DATA_DMA_WR_REQ)
        if entry.done < entry.length or entry.unanswered:
            return
        queue.remove(entry)
        if ident == AxiId.RESULT:
            self.result_landed(g, entry.wqe)
        else:
            self.free_requests(pe, g)
            if g in s.rq:
                self.core.watch_room(int(s.q_rcq[g]), self.core.time)

    def free_requests(self, pe: int, g: int) -> None:
        """READs and atomics may execute when the WRITEs before them have their responses (nic.md 5)."""
        waits = min((e.cum for e in self.s.inbound[pe] if e.gq == g and not e.optional), default=NEVER)
        for request in self.s.r_reads.get(g, ()):
            if request.since == NEVER and request.number < waits:
                request.since, request.position = self.core.time, self.s.position

    def result_landed(self, g: int, idx: int) -> None:
        """All bytes of one more response packet are in memory."""
        s = self.s
        row, reads = s.row(g, idx), s.q_reads.get(g)
        s.w_land[row] += 1
        s.q_ack_time[g] = self.core.time
        if s.w_land[row] >= s.w_np[row] and reads and idx in reads:
            reads.remove(idx)
            self.core.watch_room(int(s.q_cq[g]), self.core.time)
