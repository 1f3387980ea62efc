"""Exact engine, drain report: where each outstanding WQE waits, in lines for people; how long it may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pymodel.formats import cqe, wqe
from pymodel.nic.exact_core import Core, Part
from pymodel.nic.exact_retry import RNR, SEQ, Retry
from pymodel.nic.judge_records import Finding
from pymodel.nic.judge_state import ERR, RESET, RTS, WRITE
from pymodel.nic.params import RNR_UNITS

#: lines of a report, and how many of them may speak of what the NIC does not wait for
_LINES: Final = 10
_NOTES: Final = 3
_NAMES: Final = {int(op): op.name for op in wqe.WqeOp}


class Waits(Part):
    """What outstanding WQEs wait for. A WQE is (global QP index, index)."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._retry = Retry(core)

    def outstanding(self) -> Iterator[tuple[int, int]]:
        """All WQEs that have no completion yet, but for those of an overrun CQ, which are discarded."""
        s = self.s
        for g in np.flatnonzero((s.q_pi > s.q_ret) & (s.q_state != RESET)).tolist():
            c = int(s.q_cq[g])
            if c < 0 or not s.c_dead[c]:
                yield from ((g, idx) for idx in range(s.retired(g), int(s.q_pi[g])))

    # ------------------------------------------------------------------ one WQE
    def name(self, g: int, idx: int) -> str:
        """Opcode and length of a WQE."""
        s = self.s
        row = s.row(g, idx)
        op = int(s.w_op[row])
        return f"{_NAMES.get(op, f'opcode {op}')} {int(s.w_len[row])} B"

    def place(self, g: int, idx: int) -> str:
        """Where a WQE waits."""
        s = self.s
        row = s.row(g, idx)
        first, count, oldest = int(s.w_first[row]), int(s.w_np[row]), s.retired(g)
        if s.q_state[g] == ERR:
            return f"flush CQE not written, the QP is in ERR{self._room(g)}"
        # what its own NIC finds wrong with a WQE shows when its turn comes
        if s.w_err[row] and (not s.w_local[row] or (idx < s.q_fetch[g] and s.q_tx[g] >= first + count)):
            code = f"failed with {int(s.w_err[row]):#04x}"
            return code + (f", behind WQE {oldest}" if idx > oldest else f", CQE not written{self._room(g)}")
        if 0 <= int(s.q_bad[g]) < idx:
            return f"not sent, behind WQE {int(s.q_bad[g])}, which failed with {self._code(g)}"
        if s.q_tx[g] < first + count:
            return self._unsent(g, idx, max(0, int(s.q_tx[g]) - first), count)
        if s.q_ack[g] < first + count:
            return self._unanswered(g, idx, row)
        if not s.complete(row, int(s.q_ack[g])):
            return f"answered, {int(s.w_land[row])} of {count} packets of its data in memory"
        if idx > oldest:
            return f"done, behind WQE {oldest}"
        return f"done, CQE not written{self._room(g)}"

    def _code(self, g: int) -> str:
        return f"{int(self.s.w_err[self.s.row(g, int(self.s.q_bad[g]))]):#04x}"

    def _room(self, g: int) -> str:
        s, c = self.s, int(self.s.q_cq[g])
        if c < 0 or s.c_ignore[c] or s.c_prod[c] - s.c_ci[c] < s.c_depth[c]:
            return ""
        return f": CQ {int(s.c_cqn[c])} is full ({int(s.c_depth[c])} CQEs, consumer index {int(s.c_ci[c])})"

    def _unsent(self, g: int, idx: int, sent: int, count: int) -> str:
        """A WQE of which packets have to leave yet."""
        s = self.s
        if idx >= s.q_fetch[g]:
            return "announced, not fetched"
        row, reads = s.row(g, idx), [i for i in s.q_reads.get(g, ()) if i < idx]
        if sent:
            return f"{sent} of {count} packets sent{self._rnr(g)}"
        earlier = (i for i in range(s.retired(g), idx) if s.q_tx[g] < self._end(g, i))
        behind = next(earlier, -1)
        if behind >= 0:
            return f"not sent, behind WQE {behind}"
        if s.w_fence[row] and reads:
            return f"not sent: fence, {len(reads)} READs and atomics before it have no data (WQE {reads[0]})"
        if s.w_kind[row] != WRITE and len(reads) >= s.q_max_rd[g]:
            return (
                f"not sent: max_rd_atomic, {len(reads)} of {int(s.q_max_rd[g])} READs and atomics outstanding"
            )
        if idx - s.q_ret[g] >= s.params.max_inflight:
            return f"not sent: {s.params.max_inflight} WQEs are in flight"
        return f"fetched, not sent{self._rnr(g)}"

    def _end(self, g: int, idx: int) -> int:
        row = self.s.row(g, idx)
        return int(self.s.w_first[row] + self.s.w_np[row])

    def _unanswered(self, g: int, idx: int, row: int) -> str:
        """A WQE that was sent as a whole."""
        s, peer = self.s, int(self.s.q_peer[g])
        count, got, end = int(s.w_np[row]), int(s.w_got[row]), self._end(g, idx)
        text = "sent, no ACK" if s.w_kind[row] == WRITE else f"sent, {got} of {count} responses arrived"
        if peer >= 0:
            executed = int(s.r_exp[peer]) >= end
            text += ", the peer has executed it" if executed else ", the peer has not executed it"
            if s.q_state[peer] != RTS:
                text += f": its QP is in {'ERR' if s.q_state[peer] == ERR else 'RESET'}"
        if s.w_first[row] > s.q_ack[g]:
            return text
        return text + (self._rnr(g) or f" ({self._timer(g)})")

    def _used(self, g: int, kind: int) -> str:
        """Passes since the oldest unacknowledged packet moved, and their limit."""
        r, ctx = self.core.recovery.get(g), self.s.qp_ctx[g]
        used = 0 if r is None else r.starts.get(int(self.s.q_ack[g]), [0, 0])[kind]
        if kind == RNR and ctx.rnr_retry == 7:
            return f"{used} RNR retries used, no limit"
        most, what = (ctx.rnr_retry, "RNR retries") if kind == RNR else (ctx.retry_cnt, "retries")
        return f"{used} of {most} {what} used"

    def _timer(self, g: int) -> str:
        wait = self._period(g)
        if not wait:
            return f"no timer, {self._used(g, SEQ)}"
        late = self._retry.expired(g, int(self.s.q_ack[g]), self._now() - self.core.time)
        return f"timer {'has expired' if late else 'runs'}, {self._used(g, SEQ)}"

    def _rnr(self, g: int) -> str:
        """The RNR wait of a QP."""
        r = self.core.recovery.get(g)
        times = [time for time, kind in (r.events if r else ()) if kind == RNR and time > self._now()]
        return f", RNR wait until cycle {max(times)} ({self._used(g, RNR)})" if times else ""

    def _now(self) -> int:
        return max(self.core.time, self.s.cycle)

    def _period(self, g: int) -> int:
        """Cycles after which the transport timer of a QP has expired for sure, 0: it has none."""
        timer, unit = int(self.s.qp_ctx[g].timer), self.s.params.timer_unit
        return (unit << timer) + unit if timer else 0

    # ------------------------------------------------------------------ how long
    def patience(self) -> tuple[int, int]:
        """(cycles without any event after which no transport timer acts any more, bound of all retries).

        Both 0 where no timer can run and no RNR wait ends: nothing that was sent is unacknowledged.
        """
        s, quiet, total = self.s, 0, 0
        for g in np.flatnonzero((s.q_state == RTS) & (s.q_tx > s.q_ack) & (s.q_pi > s.q_ret)).tolist():
            ctx, r = s.qp_ctx[g], self.core.recovery.get(g)
            wait, tries = self._period(g), int(ctx.retry_cnt) + 1
            if r is not None and any(kind == RNR for _, kind in r.events):
                wait = max(wait, s.params.rnr_unit * max(RNR_UNITS))
                tries += int(ctx.rnr_retry)
            quiet = max(quiet, wait)
            # each WQE that moves on begins to count anew
            total = max(total, wait * tries * int(s.q_pi[g] - s.q_ret[g]))
        return quiet, total

    # ------------------------------------------------------------------ lines
    def lines(self, others: list[Finding]) -> list[str]:
        """At most ten lines: the oldest WQEs first, others: what is due beside WQEs; and how much is left."""
        groups = self._groups()
        heads = {g: first for g, first, *_ in reversed(groups)}
        age = {g: int(self.s.w_time[self.s.row(g, first)]) for g, first in heads.items()}
        # the oldest WQE of each QP, then what stands behind it
        groups.sort(key=lambda x: (x[1] != heads[x[0]], age[x[0]], x[0], x[1]))
        out = [(last - first + 1, self._line(g, first, last, place)) for g, first, last, place in groups]
        for f in others:
            place = (f" wqe {f.wqe}" if f.wqe >= 0 else "") + (f" psn {f.psn}" if f.psn >= 0 else "")
            out.append((1, f"pe {f.pe} qp {f.qpn:#x}{place}: {f.field}: expected {f.expected}, {f.got}"))
        notes = [*self._unannounced(), *self._unconsumed()]
        kept = min(len(notes), _NOTES)
        shown = out if len(out) + len(notes) <= _LINES else out[: _LINES - kept]
        told = notes[: _LINES - len(shown)]
        left = sum(n for n, _ in out[len(shown) :]) + len(notes) - len(told)
        return [text for _, text in shown] + told + ([f"and {left} more"] if left else [])

    def _groups(self) -> list[tuple[int, int, int, str]]:
        """(QP, first and last WQE, place) of successive WQEs that wait at the same place."""
        out: list[tuple[int, int, int, str]] = []
        for g, idx in self.outstanding():
            place = self.place(g, idx)
            if out and out[-1][0] == g and out[-1][3] == place:
                out[-1] = (g, out[-1][1], idx, place)
            else:
                out.append((g, idx, idx, place))
        return out

    def _line(self, g: int, first: int, last: int, place: str) -> str:
        s = self.s
        what = f"wqe {first} {self.name(g, first)}" if first == last else f"wqe {first}-{last}"
        low, high = int(s.w_first[s.row(g, first)]), self._end(g, last) - 1
        psn = ""
        if low <= high and low < s.q_tx[g]:
            psn = f" psn {self.core.sq_psn(g, low)}"
            psn += f"-{self.core.sq_psn(g, high)}" if high > low else ""
        return f"pe {int(s.q_pe[g])} qp {int(s.q_qpn[g]):#x} {what}{psn}: {place}"

    def _unannounced(self) -> list[str]:
        """WQEs in a ring that no doorbell announced; not in rings that still hold those of a former life."""
        s, out = self.s, []
        for g in np.flatnonzero((s.q_state != RESET) & (s.q_flat >= 0) & (s.q_gone == 0)).tolist():
            v1, pi, depth = s.q_version[g] == 1, int(s.q_pi[g]), int(s.q_depth[g])
            ids = 0x1FFF if v1 else 0x1FFFF
            end = pi
            while depth <= ids and end - s.q_ret[g] < depth:
                at = int(s.q_flat[g]) + end % depth * wqe.WQE_BYTES
                raw = s.memory.bytes[at : at + wqe.WQE_BYTES][None]
                fields = wqe.unpack(raw, int(s.q_version[g]), s.params.plain_atomics_le)
                known = int(fields["msg_opcode"][0]) in _NAMES and fields["ds_data_num"][0]
                if not known or int(fields["wqe_id"][0]) != (end & ids) << 3:
                    break
                end += 1
            if end > pi:
                span = f"wqe {pi}" + (f"-{end - 1}" if end > pi + 1 else "")
                out.append(
                    f"pe {int(s.q_pe[g])} qp {int(s.q_qpn[g]):#x} {span}: in the ring, no doorbell:"
                    " not outstanding, the NIC does not know of it"
                )
        return out

    def _unconsumed(self) -> list[str]:
        """CQEs that no CQ doorbell has passed."""
        s, out = self.s, []
        waits = (s.c_prod > s.c_ci) & ~s.c_ignore & (s.c_flat >= 0)
        for c in np.flatnonzero(waits).tolist():
            count, at = int(s.c_prod[c] - s.c_ci[c]), int(s.c_ci[c]) % int(s.c_depth[c]) * int(s.c_stride[c])
            raw = s.memory.bytes[int(s.c_flat[c]) + at :][: cqe.CQE_BYTES][None]
            owners = np.flatnonzero((s.q_cq == c) | (s.q_rcq == c)).tolist()
            first = cqe.unpack(raw, int(s.q_version[owners[0]]) if owners else 2)[0]
            g = next((g for g in owners if int(s.q_qpn[g]) & 0x7FFF == int(first["qp_id"])), -1)
            what = ""
            if g >= 0 and first["type"]:
                what = f"; the first: a message that qp {int(s.q_qpn[g]):#x} received"
            elif g >= 0:
                ids, newest = 0x1FFF if s.q_version[g] == 1 else 0x1FFFF, int(s.q_ret[g]) - 1
                index = newest - (newest - (int(first["wqe_id"]) >> 3) & ids)
                code = int(first["error_code"])
                what = f"; the first: qp {int(s.q_qpn[g]):#x} wqe {index} code {code:#04x}"
            place = f"pe {int(s.c_pe[c])} cq {int(s.c_cqn[c])}"
            out.append(f"{place}: {count} CQEs written, no CQ doorbell for them{what}")
        return out
