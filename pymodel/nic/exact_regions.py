"""Exact engine, regions that go: what races with the command, and that nothing is left when it is answered.

nic.md 2: invalidation acts between packets and completes when no access is left. From the command until
STATUS is read as idle, a packet is judged under the old entry or under the new one; what the NIC does tells
which. From then on no access under the old entry may come.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pymodel.formats.cqe import CqeError
from pymodel.nic import rules
from pymodel.nic.context import MrContext
from pymodel.nic.exact_core import Part
from pymodel.nic.judge_entries import InboundWrite, Message
from pymodel.nic.judge_records import Check
from pymodel.nic.judge_state import RTS, WRITE
from pymodel.nic.params import AsyncKind, Cnt

#: what stands for a NAK code where a region goes: executed, or refused
GOING: Final = -2


class Regions(Part):
    """Set and invalidation of memory regions."""

    def program(self, pe: int, index: int, region: MrContext) -> None:
        """The host sets a region: valid from now on."""
        self.s.set_mr(pe, index, region)
        self.core.going.pop((pe, index), None)
        self.core.went.pop((pe, index), None)

    def invalidate(self, pe: int, index: int) -> None:
        """The command: everything under the region is in doubt until it is answered."""
        s, core, key = self.s, self.core, (pe, index)
        core.going[key] = s.mr_rows[pe, index : index + 1].copy()
        core.went[key] = core.time
        s.drop_mr(pe, index)
        # what a responder holds fails when it is served under the key the next time
        held = [e for q in s.r_reads.values() for e in q if e.length and e.rkey >> 8 == index]
        mine = {e.gq for e in held if s.q_pe[e.gq] == pe}
        core.doubt |= mine
        for queue in (s.inbound[pe], s.results[pe]):
            for entry in queue:
                if entry.key >> 8 == index and not entry.done and not entry.optional:
                    self.contest(entry)
        # their WQEs may fail from now on, and their gathers end
        for g in np.flatnonzero((s.q_pe == pe) & (s.q_pi > s.q_ret)).tolist():
            rows = s.q_row[g] + (np.arange(int(s.q_ret[g]), int(s.q_pi[g])) & s.q_mask[g])
            s.q_odd[g] |= bool((s.w_lkey[rows] >> 8 == index).any())

    def contest(self, entry: InboundWrite) -> None:
        """Payload whose region goes before it is written: written, or refused by its NIC."""
        entry.contested = True
        if entry.wqe < 0:
            entry.optional = True
            self.core.doubt.add(entry.gq)

    def begun(self, pe: int, entry: InboundWrite) -> None:
        """Contested payload is written: it was judged under the old entry."""
        entry.contested = False
        if entry.wqe < 0:
            entry.optional = False
            self._clear(pe, entry.gq)

    def _clear(self, pe: int, g: int) -> None:
        """Whether a responder is in doubt no more: nothing of it is contested."""
        s = self.s
        if not s.r_reads.get(g) and not any(e.contested and e.gq == g for e in s.inbound[pe]):
            self.core.doubt.discard(g)

    def answered(self, pe: int) -> None:
        """STATUS is idle: what was allowed is over, and what is not written by now was refused."""
        s, core = self.s, self.core
        gone = {index for p, index in core.going if p == pe}
        for index in gone:
            del core.going[pe, index]
        if not gone:
            return
        for queue, what in ((s.inbound[pe], "inbound payload"), (s.results[pe], "result")):
            for entry in [e for e in queue if e.done and e.key >> 8 in gone]:
                state = f"{entry.done} of {entry.length} bytes, {entry.unanswered} bursts without response"
                self._left(pe, f"{what} at {entry.va:#x}", state, entry.gq, entry.wqe)
        run = s.last_run[pe]
        if run is not None and run.done < 0 and run.new is not None:
            if run.of and all(e.rkey >> 8 in gone for e in run.of):
                self._left(pe, f"atomic on {run.addr:#x}", "without write response", run.of[0].gq)
        for entry in [e for e in s.results[pe] if e.contested]:
            if entry in s.results[pe]:
                self.reject(entry)
        for entry in [e for e in s.inbound[pe] if e.contested]:
            if entry.contested:
                self._refuse(pe, entry)

    def _left(self, pe: int, what: str, got: str, g: int = -1, wqe: int = -1) -> None:
        self.find(
            Check.READ_GONE, pe, what, "over before the invalidation of its region is answered", got, g, wqe
        )

    # ------------------------------------------------------------------ requester
    def reject(self, entry: InboundWrite) -> None:
        """A contested result was refused: its WQE fails, nothing of its QP is written from it on."""
        s, g, idx = self.s, entry.gq, entry.wqe
        results = s.results[int(s.q_pe[g])]
        for other in [e for e in results if e.gq == g and not e.done and e.cum >= entry.cum]:
            results.remove(other)
            self.core.open_counters(int(s.q_pe[g]), 1, (Cnt.RX_PACKET, Cnt.DROP_RESPONSE))
        row = s.row(g, idx)
        s.w_got[row] = entry.cum - s.w_first[row]
        s.q_ack[g] = min(int(s.q_ack[g]), entry.cum)
        self.core.fail(g, idx, int(CqeError.LOCAL_MR_REQ))

    def lost(self, pe: int, g: int, idx: int) -> None:
        """A CQE says that the local key of a WQE failed: did its region go before it was done?"""
        s = self.s
        row = s.row(g, idx)
        command = self.core.went.get((pe, int(s.w_lkey[row]) >> 8), -1)
        if s.w_err[row] or not s.w_len[row] or command < s.w_time[row]:
            return
        entry = next((e for e in s.results[pe] if e.gq == g and e.wqe == idx and e.contested), None)
        if entry is not None:
            self.reject(entry)
            return
        done = s.q_tx[g] if s.w_kind[row] == WRITE else s.w_first[row] + s.w_got[row]
        if done < s.w_first[row] + s.w_np[row]:
            self.core.fail(g, idx, int(CqeError.LOCAL_MR_REQ))

    def allows(self, pe: int, key: int, remote: bool, right: rules.Right, va: int, size: int) -> int:
        """0: the region allows it, 2: it does not, GOING: it did until a command that is not answered."""
        verdict = rules.mr_check(self.s.mr_rows, key, remote, right, [va], [size], pe)
        if int(verdict[0]) == rules.MrVerdict.OK:
            return 0
        return GOING if self.core.was_allowed(pe, key, remote, right, va, size) else 2

    # ------------------------------------------------------------------ responder
    def refused(self, pe: int, g: int, number: int, code: int) -> bool:
        """Whether a NAK may speak of a packet because its region goes: 2 of a WRITE, 3 of a SEND."""
        mine = (e for e in self.s.inbound[pe] if e.contested and e.gq == g and e.cum == number)
        entry = next(mine, None)
        if entry is None or code != self._nak_of(entry):
            return False
        self._spoil(entry)
        return True

    @staticmethod
    def _nak_of(entry: InboundWrite) -> int:
        return 2 if entry.message is None else 3

    def _spoil(self, entry: InboundWrite) -> None:
        """A packet was refused: its receive WQE says so, later ones flush."""
        queue = self.s.rq.get(entry.gq)
        for message in queue.messages if queue else ():
            if message is entry.message:
                message.code = int(CqeError.LOCAL_MR_RSP)
            elif message.last < 0 or message.last >= entry.cum:
                message.failed = True

    def lost_buffer(self, pe: int, message: Message) -> None:
        """A CQE says that the key of a buffer failed: did its region go before all was written?"""
        entry = next((e for e in self.s.inbound[pe] if e.message is message and e.contested), None)
        if entry is not None:
            self._refuse(pe, entry)

    def _refuse(self, pe: int, entry: InboundWrite) -> None:
        """A contested packet was refused: its NAK is due or has left."""
        s, g = self.s, entry.gq
        self._spoil(entry)
        for other in s.inbound[pe]:
            if other.gq == g and other.cum >= entry.cum:
                other.contested, other.optional = False, True
        if s.q_state[g] == RTS:
            self.core.nak_due(g, entry.cum, self._nak_of(entry))
            s.asyncs[pe].append((AsyncKind.QP_ERR, int(s.q_qpn[g])))
            self.core.to_err(g, self.core.time)

    # ------------------------------------------------------------------ reads
    def read_after(self, pe: int, what: str, g: int) -> None:
        """A read that only a region allowed whose invalidation is answered."""
        self._left(pe, what, "a read", g)
