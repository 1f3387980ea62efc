"""Exact engine, loss recovery of requesters: what is sent again, and what explains it (wire.md 5).

A pass is a step back to the oldest unacknowledged packet. It needs a cause: NAK 0, RNR NAK, data ahead of the
expected, an answer that was passed, or the transport timer. Between a cause and the packets of its pass the
NIC forgets what its READs and atomics expect, at a time that no record shows. Data that comes then is taken
here as a guess; what is asked for again tells that it was dropped, and a write or CQE that it was taken after
all. Each data packet is taken once in the end, so that counters do not depend on guesses.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pymodel.nic.exact_core import NEVER, Core, Part
from pymodel.nic.judge_entries import InboundWrite
from pymodel.nic.judge_records import Check
from pymodel.nic.params import RNR_UNITS, Cnt

#: cycles that a packet, a response or a write may need on its way through the NIC
LAG: Final = 8192
#: cycles that a response may wait in the receive path before it counts
PATH: Final = 1024
#: kinds of causes; they are also the places of their counts in `Recovery.starts`
SEQ, RNR = 0, 1


class Recovery:
    """What is known of a QP that has met a fault. Packets are numbered as in `q_tx`."""

    __slots__ = (
        "base", "came", "events", "fresh", "ghosts", "guess", "heard", "low", "marks", "pos", "resumed",
        "starts",
    )  # fmt: skip

    def __init__(self, pos: int, acked: int, since: int) -> None:
        #: next packet in sequence; that behind the last one that was ever sent: no pass is under way
        self.pos = pos
        #: (oldest unacknowledged packet, cycle since when), ascending
        self.marks: deque[tuple[int, int]] = deque([(acked, since)], maxlen=256)
        #: packet -> passes that began there: by NAK 0, data ahead, passed answers and timer; by RNR NAK
        self.starts: dict[int, list[int]] = {}
        #: (cycle from which it may act, kind) of causes without a pass yet
        self.events: list[tuple[int, int]] = []
        #: no earlier start of the timer than this; -1: nothing is known
        self.base = -1
        #: packet -> (WQE, whether it has bytes) of data that may have been dropped
        self.guess: dict[int, tuple[int, bool]] = {}
        #: packet -> cycle in which such data came
        self.came: dict[int, int] = {}
        #: packet -> (WQE, what has to be written) of such data that was asked for again: it may
        #: have been taken after that was decided
        self.ghosts: dict[int, tuple[int, InboundWrite | None]] = {}
        #: what an ACK that came since would acknowledge if they had been taken
        self.heard = 0
        #: from here on that is open until the next answer
        self.low = NEVER
        #: packets in which a READ was resumed
        self.resumed: set[int] = set()
        #: nothing is known of what came before
        self.fresh = True


class Retry(Part):
    """Recovery of all requesters."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.of = core.recovery

    def state(self, g: int) -> Recovery:
        """Recovery state of a QP, from now on the exact engine's alone."""
        r = self.of.get(g)
        if r is None:
            s = self.s
            r = self.of[g] = Recovery(int(s.q_tx[g]), int(s.q_ack[g]), int(s.q_ack_time[g]))
            s.q_odd[g] = True
        return r

    # ------------------------------------------------------------------ causes
    def event(self, g: int, code: int = -1) -> None:
        """A response asks to send again; code: RNR time code of an RNR NAK."""
        wait = 0 if code < 0 else RNR_UNITS[code] * self.s.params.rnr_unit
        self.state(g).events.append((self.core.time + wait, SEQ if code < 0 else RNR))
        self.core.retry_open[int(self.s.q_pe[g])] += 1

    def _timer(self, g: int) -> int:
        """Cycles after which the transport timer expires at the earliest, 0: never."""
        timer = int(self.s.qp_ctx[g].timer)
        return self.s.params.timer_unit << timer if timer else 0

    def _ran_from(self, g: int, number: int) -> int:
        """No earlier start of the timer than this, with `number` the oldest unacknowledged packet."""
        s, r = self.s, self.of.get(g)
        row = s.row(g, self.wqe_of(g, number))
        since = int(s.q_ack_time[g]) if r is None else r.base
        if r is not None:
            since = max([since, *(time for mark, time in r.marks if mark == number)])
        return max(since, int(s.w_time[row]))

    def expired(self, g: int, number: int, later: int = 0) -> bool:
        """Whether the timer may have expired by now, or `later` cycles later."""
        wait = self._timer(g)
        return bool(wait) and self.core.time + later >= self._ran_from(g, number) + wait

    def wqe_of(self, g: int, number: int) -> int:
        """WQE that a packet which was sent belongs to."""
        s = self.s
        idx = min(int(s.q_txw[g]), int(s.q_pi[g]) - 1)
        low = max(int(s.q_start[g]), idx - int(s.q_mask[g]))
        while idx > low and s.w_first[s.row(g, idx)] > number:
            idx -= 1
        return idx

    def before_advance(self, g: int) -> None:
        """An answer comes: a timer that expires before it counts begins a pass after it, or one unseen."""
        if self.s.q_ack[g] < self.s.q_tx[g] and self.expired(g, int(self.s.q_ack[g]), PATH):
            self.event(g)

    def advanced(self, g: int) -> None:
        """The oldest unacknowledged packet may have moved."""
        r, acked = self.of.get(g), int(self.s.q_ack[g])
        if r is None:
            return
        r.low = NEVER
        if r.marks[-1][0] == acked:
            return
        r.marks.append((acked, self.core.time))
        for number in [n for n in r.starts if n < acked - 512]:
            del r.starts[number]
        r.resumed = {n for n in r.resumed if n >= acked - 512}

    # ------------------------------------------------------------------ what is sent
    def packet(self, pe: int, g: int, number: int, size: int) -> None:
        """A request packet leaves: in sequence, from the oldest unacknowledged one on, or a finding.

        size: PSNs that it takes.
        """
        s, r, now = self.s, self.state(g), self.core.time
        if number > s.q_ack[g]:
            self.revive(g, number)
        if number < r.pos:
            self._pass(pe, g, r, number)
        elif number > r.pos and not self._current(g, r, number):
            self.find(Check.TX_RETRY, pe, "packet sent again", f"PSN {self.core.sq_psn(g, r.pos):#08x}",
                      "those between are left out", g, self.wqe_of(g, number),
                      self.core.sq_psn(g, number))  # fmt: skip
        if number < s.q_tx[g]:
            self._forget(pe, g, r, number)
        r.pos = number + size
        # a cause holds a QP back at once: what has not acted by now was one of those before
        r.events = [e for e in r.events if e[0] + LAG >= now]

    def _current(self, g: int, r: Recovery, number: int) -> bool:
        """Whether a packet is, or was for the NIC a while ago, the oldest unacknowledged one."""
        if number == self.s.q_ack[g] or number in r.guess:
            return True
        if number - 1 in r.guess:
            # that data may have been taken when it came again, behind ACKs that passed it and told nothing
            return True
        left = [b for (a, _), (_, b) in zip(r.marks, list(r.marks)[1:], strict=False) if a == number]
        if left:
            return self.core.time - left[-1] <= LAG
        first, since = r.marks[0]
        return r.fresh and first - 64 <= number < first and self.core.time - since <= LAG

    def _pass(self, pe: int, g: int, r: Recovery, number: int) -> None:
        s, now, psn = self.s, self.core.time, self.core.sq_psn(g, number)
        idx = self.wqe_of(g, number)
        if not self._current(g, r, number):
            self.find(Check.TX_RETRY, pe, "packet sent again",
                      f"from PSN {self.core.sq_psn(g, int(s.q_ack[g])):#08x} on, the oldest unacknowledged",
                      f"PSN {psn:#08x}", g, idx, psn)  # fmt: skip
        # what waits in the receive path may meet the request that goes out now as well
        r.came = {n: time for n, time in r.came.items() if time + LAG >= now}
        r.ghosts = {n: x for n, x in r.ghosts.items() if n < number or n in r.came}
        self.count(pe, Cnt.RETRY)
        ready = [e for e in r.events if e[0] <= now]
        kind = SEQ
        if ready:
            cause = min(ready)
            r.events.remove(cause)
            r.base, kind = max(r.base, cause[0]), cause[1]
            self.core.retry_open[pe] -= 1
        elif self.expired(g, number):
            r.base = self._ran_from(g, number) + self._timer(g)
        elif r.fresh and self._timer(g) and now >= s.w_time[s.row(g, idx)] + self._timer(g):
            pass  # it may have expired before an answer that the batch engine saw
        else:
            why = "a NAK 0, data ahead, a passed answer or a timer that has expired"
            if r.events:
                why = f"nothing before cycle {min(r.events)[0]}, the end of the RNR wait"
            self.find(Check.TX_RETRY, pe, "cause of sending again", why, f"none in cycle {now}", g, idx, psn)
            return
        r.fresh = False
        done = r.starts.setdefault(number, [0, 0])
        done[kind] += 1
        most = self._most(g, kind)
        if done[kind] > most:
            what = "RNR retries" if kind == RNR else "retries"
            self.find(Check.TX_RETRY_LIMIT, pe, what, f"at most {most}", f"{done[kind]}", g, idx, psn)

    def _most(self, g: int, kind: int) -> int:
        """Limit of a retry counter."""
        ctx = self.s.qp_ctx[g]
        if kind == SEQ:
            return int(ctx.retry_cnt)
        return 1 << 30 if ctx.rnr_retry == 7 else int(ctx.rnr_retry)

    def exhausted(self, g: int, idx: int, kind: int) -> bool:
        """Whether a WQE may fail now because it was sent too often."""
        s, r, now = self.s, self.state(g), self.core.time
        row = s.row(g, idx)
        first, stop = int(s.w_first[row]), int(s.w_first[row] + s.w_np[row])
        for number in {int(s.q_ack[g]), *r.guess, *(mark for mark, _ in r.marks)}:
            if not first <= number < stop or not self._current(g, r, number):
                continue
            due = any(e[1] == kind and (kind == RNR or e[0] <= now) for e in r.events)
            due |= kind == SEQ and self.expired(g, number)
            if due and r.starts.get(number, [0, 0])[kind] >= self._most(g, kind):
                return True
        return False

    # ------------------------------------------------------------------ data that may have been dropped
    def unsure(self, g: int, number: int) -> bool:
        """Whether the NIC may have forgotten that it expects a data packet."""
        r = self.of.get(g)
        if self.expired(g, int(self.s.q_ack[g]), PATH):
            r = self.state(g)
        return r is not None and bool(r.events or r.guess or r.pos <= number < self.s.q_tx[g])

    def take(self, g: int, number: int, idx: int, some: bool, unsure: bool) -> None:
        """A data packet was taken; some: it has bytes."""
        r = self.of.get(g)
        if r is None:
            return
        r.ghosts = {n: x for n, x in r.ghosts.items() if n > number}
        if unsure:
            r.guess[number] = idx, some
            r.came[number] = self.core.time
        else:
            r.guess.clear()  # those before it were taken, too

    def _forget(self, pe: int, g: int, r: Recovery, number: int) -> None:
        """A packet is sent again: data from it on was not taken before, but perhaps since."""
        s = self.s
        rolled: dict[int, tuple[int, InboundWrite | None]] = {}
        for n in sorted(n for n in r.guess if n >= number):
            idx, some = r.guess.pop(n)
            entry = next((e for e in s.results[pe] if e.gq == g and e.cum == n), None)
            if idx < s.q_ret[g] or (some and (entry is None or entry.done)):
                continue  # written, or complete
            rolled[n] = idx, entry
            row = s.row(g, idx)
            s.w_got[row] -= 1
            if entry is not None:
                s.results[pe].remove(entry)
            else:
                s.w_land[row] -= 1
                reads = s.q_reads.setdefault(g, deque())
                if idx not in reads:
                    s.q_reads[g] = deque(sorted([*reads, idx]))
            self.count(pe, Cnt.RX_PACKET, -1)
            self.count(pe, Cnt.DROP_RESPONSE)
        if rolled:
            first, r.heard = min(rolled), max(r.heard, int(s.q_ack[g]))
            s.q_ack[g] = min(int(s.q_ack[g]), first)
            while len(r.marks) > 1 and r.marks[-1][0] > first:
                r.marks.pop()
            r.ghosts |= rolled

    def revive(self, g: int, upto: int) -> bool:
        """Something shows that data below packet `upto` was taken, which was asked for again before."""
        r = self.of.get(g)
        if r is None or not r.ghosts:
            return False
        s, pe, found = self.s, int(self.s.q_pe[g]), False
        for n in sorted(r.ghosts):
            idx, entry = r.ghosts[n]
            row = s.row(g, idx)
            if n >= upto or n != s.w_first[row] + s.w_got[row]:
                break
            del r.ghosts[n]
            s.w_got[row] += 1
            s.q_ack[g] = max(int(s.q_ack[g]), n + 1)
            r.guess[n] = idx, entry is not None
            if entry is not None:
                s.results[pe].append(entry)
            else:
                s.w_land[row] += 1
                if s.w_land[row] >= s.w_np[row] and idx in s.q_reads.get(g, ()):
                    s.q_reads[g].remove(idx)
            self.count(pe, Cnt.RX_PACKET)
            self.count(pe, Cnt.DROP_RESPONSE, -1)
            found = True
            self.advanced(g)
        if found:
            low = int(s.q_ack[g])
            s.q_ack[g] = max(low, min(r.heard, self.answer_due(g)[1]))
            self.advanced(g)
            r.low = low
        return found

    def answer_due(self, g: int) -> tuple[int, int]:
        """(WQE, packet) of the data response that is due, (-1, far away) if none is."""
        s = self.s
        for idx in s.q_reads.get(g, ()):
            row = s.row(g, idx)
            if s.w_got[row] < s.w_np[row]:
                return idx, int(s.w_first[row] + s.w_got[row])
        return -1, NEVER

    def written(self, pe: int, start: int) -> bool:
        """Whether a result write belongs to data that seemed to be dropped."""
        for g, r in self.of.items():
            if not r.ghosts or self.s.q_pe[g] != pe:
                continue
            for n, (_, entry) in sorted(r.ghosts.items(), key=lambda x: x[0]):
                if entry is not None:
                    if entry.va == start and self.revive(g, n + 1):
                        return n not in r.ghosts
                    break
        return False
