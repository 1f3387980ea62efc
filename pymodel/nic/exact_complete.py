"""Exact engine, completion: every field of every CQE, its place and its time (nic.md 6)."""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import Any

import numpy as np

from pymodel.formats.cqe import CqeError
from pymodel.nic.exact_core import SETTLE, SLVERR, Core, Part, strobes
from pymodel.nic.exact_events import Events
from pymodel.nic.exact_regions import Regions
from pymodel.nic.exact_retry import RNR, SEQ, Retry
from pymodel.nic.judge_records import Check
from pymodel.nic.judge_state import ERR, RESET, RTS, WRITE
from pymodel.nic.params import AsyncKind, Cnt

#: codes of WQEs that were sent too often
_SPENT = {int(CqeError.RTO_REQ): SEQ, int(CqeError.NAK_RNR): RNR}


class Complete(Part):
    """CQEs."""

    def __init__(self, core: Core, events: Events, regions: Regions, retry: Retry) -> None:
        super().__init__(core)
        self.events, self.regions, self.retry = events, regions, retry
        #: cycle of the refused write that ended a CQ
        self._refused: dict[int, int] = {}

    def cqe(self, r: Any) -> None:
        """A CQE is written."""
        s, pe = self.s, int(r["pe"])
        start, count, good = strobes(r)
        s.cqe_slots[pe].append((-1, b"", b""))
        at = s.memory.flat(pe, start, 1)
        i = bisect_right(s.c_sorted, at) - 1 if at >= 0 else -1
        c = int(s.c_order[i]) if i >= 0 else -1
        if c < 0 or s.c_pe[c] != pe or at >= s.c_flat[c] + s.c_depth[c] * s.c_stride[c]:
            s.cqe_bursts[pe].append(-1)
            self.events.written(pe, 0)
            self.find(Check.CQE_SLOT, pe, "address of the CQE", "inside one CQ ring", f"{start:#x}")
            return
        s.cqe_bursts[pe].append(c)
        stride, depth, prod = int(s.c_stride[c]), int(s.c_depth[c]), int(s.c_prod[c])
        lane = start & 63
        beat = self.core.bytes_of(r, 64)
        raw = beat[lane : lane + 32].ljust(32, b"\0")
        w0, imm, msg_len, vni, ts_word, w6, w7 = struct.unpack("<IIIIQII", raw)
        qpn15 = w0 >> 8 & 0x7FFF
        owners = [g for g in np.flatnonzero((s.q_pe == pe) & (s.q_cq == c)).tolist()
                  if int(s.q_qpn[g]) & 0x7FFF == qpn15]  # fmt: skip
        formed = (ts_word & (1 << 48) - 1) + self.core.time_origin
        # a CQE that was formed before the write response that ends its CQ is still written
        if not owners or (s.c_dead[c] and formed > self._refused.get(c, -1)):
            self.events.written(pe, 0)
            due = "none, the CQ is in overrun" if s.c_dead[c] else f"a QP of CQ {int(s.c_cqn[c])}"
            self.find(Check.CQE_UNEXPECTED, pe, "qp_id", due, f"{qpn15}")
            return
        g = owners[0]
        v1 = s.q_version[g] == 1
        wqe_id = ts_word >> 48 if v1 else w6 >> 12
        code = w0 & 0xFF
        self.events.written(pe, code)
        if code == CqeError.FLUSH and s.q_state[g] == RTS:
            self._refused_request(g)
        idx, allowed = self._due(g, wqe_id, code)
        if code == CqeError.LOCAL_MR_REQ and code not in allowed and idx < s.q_pi[g]:
            self.regions.lost(pe, g, idx)
            idx, allowed = self._due(g, wqe_id, code)
        if code in _SPENT and code not in allowed and idx < s.q_pi[g] and s.q_state[g] == RTS:
            if self.retry.exhausted(g, idx, _SPENT[code]):
                self.core.fail(g, idx, code)
                idx, allowed = self._due(g, wqe_id, code)
        elif code == 0 and not allowed and idx < s.q_pi[g]:
            self.retry.revive(g, int(s.q_tx[g]))
            idx, allowed = self._due(g, wqe_id, code)
        named = (
            idx
            + (((wqe_id >> 3) - idx + (1 << (12 if v1 else 16))) % (1 << (13 if v1 else 17)))
            - (1 << (12 if v1 else 16))
        )

        def slot_of(number: int) -> int:
            return int(s.c_base[c]) + (0 if s.c_ignore[c] else number % depth) * stride

        # a reset waits for what completes while its command is taken
        gone = s.q_state[g] == RESET and formed > int(s.q_err_time[g]) + SETTLE
        if gone or idx >= s.q_pi[g] or (named < idx and start != slot_of(prod)):
            due = f"WQE {idx}" if not gone and idx < s.q_pi[g] else "no WQE is outstanding"
            self.find(Check.CQE_UNEXPECTED, pe, "wqe_id", due, f"WQE {named}, code {code:#x}", g, named)
            return
        in_order = named == idx and not wqe_id & 7
        row = s.row(g, idx)
        if not in_order:
            want = idx << 3 & (0xFFFF if v1 else 0xFFFFF)
            self.find(Check.CQE_ORDER, pe, "wqe_id", f"{want:#x} (WQE {idx})", f"{wqe_id:#x}", g, idx)
            if abs(named - idx) < depth and named < s.q_pi[g]:
                # the other fields are those of the WQE that it names
                row = s.row(g, named)
                skipped = int(s.w_ceno[row] - s.w_ceno[s.row(g, idx)])
                if skipped > 0 and start == slot_of(prod + skipped):
                    # the CQEs between are missing
                    prod += skipped
                    idx = named
        if in_order and code not in allowed:
            if code == 0 and not s.w_err[row] and s.q_state[g] == RTS:
                self._early(pe, g, idx, row)
            else:
                names = " or ".join(f"{x:#04x}" for x in sorted(allowed)) or "no CQE yet"
                self.find(Check.CQE_STATUS, pe, "error_code", names, f"{code:#04x}", g, idx)
                code = min(allowed, default=0)
        # ---- place
        slot = slot_of(prod)
        if start != slot:
            self.find(Check.CQE_SLOT, pe, "slot address", f"{slot:#x} (CQE {prod})", f"{start:#x}", g, idx)
        if not good or count != stride or int(r["len"]) != 1:
            self.find(Check.CQE_STROBE, pe, "strobes", f"{stride} bytes in one beat",
                       f"{int(r['aux0']):#018x}, {count} bytes, {int(r['len'])} beats", g, idx)  # fmt: skip
        if not s.c_ignore[c] and prod - int(s.c_ci[c]) >= depth:
            self.find(Check.CQE_ROOM, pe, "CQ room", f"a CQ doorbell beyond {int(s.c_ci[c])} first",
                       f"CQE {prod} in depth {depth}", g, idx)  # fmt: skip
        # ---- content
        # as the driver compares it: by what wqe_id says of the WQE's index (device.md 2.6)
        phase = ((idx & (0x1FFF if v1 else 0x1FFFF) if s.c_ignore[c] else prod) // depth) & 1
        if w7 >> 31 != phase:
            self.find(Check.CQE_OWNER, pe, "owner", f"{phase}", f"{w7 >> 31}", g, idx)
        op = 0 if code in (CqeError.FLUSH, CqeError.SND_WQE_DMA) else int(s.w_op[row])
        with_imm = 0 if code in (CqeError.FLUSH, CqeError.SND_WQE_DMA) else int(s.w_imm[row])
        for name, expected, got in (
            ("msg_opcode", op, w6 & 0xFF),
            ("with_imm", with_imm, w0 >> 27 & 1),
            ("msg_len", 0 if code else int(s.w_len[row]), msg_len),
            ("type", 0, w0 >> 26 & 1),
            ("se, has_pph, csum_err, reserved bit of dword 0", 0, w0 >> 23 & 0x1E7),
            ("imm_data", 0, imm),
            ("vni", 0, vni),
            ("reserved bits of dwords 5, 6", 0, w6 >> 8 if v1 else (w6 >> 8 & 15) | ts_word >> 48 << 4),
            ("reserved bits of dword 7", 0, w7 & 0x7FFFFFFF),
            ("bytes 32 to 63", 0, int.from_bytes(beat[lane + 32 : lane + stride], "little")),
        ):
            if expected != got:
                self.find(Check.CQE_FIELD, pe, name, f"{expected:#x}", f"{got:#x}", g, idx)
        low = max(int(s.w_time[row]), int(s.c_ts[c]))
        if not low <= formed <= self.core.time:
            self.find(Check.CQE_TS, pe, "ts", f"{low} to {self.core.time}", f"{formed}", g, idx)
        # ---- effect
        s.c_ts[c] = max(int(s.c_ts[c]), min(formed, self.core.time))
        at = s.memory.flat(pe, start, min(stride, count))
        if at >= 0:
            size = min(stride, count)
            new = beat[lane : lane + size]
            s.cqe_slots[pe][-1] = at, s.memory.view[at : at + size].tobytes(), new
            s.memory.view[at : at + size] = new
            s.memory.touch(at, stride)
        s.c_prod[c] = prod + 1
        before = int(s.q_ret[g])
        s.q_ret[g] = idx + 1
        s.q_ce_done[g] = s.w_ceno[s.row(g, idx)]
        if code:
            s.w_done[s.row(g, idx)] = self.core.time
        elif g in self.retry.of:
            s.w_done[s.q_row[g] + (np.arange(before, idx + 1) & s.q_mask[g])] = self.core.time
        self.count(pe, Cnt.CQE)
        self.core.watch_room(c, self.core.time)
        if code == CqeError.FLUSH:
            self.count(pe, Cnt.FLUSH)
            s.q_flush[g] = True
        elif code and s.q_state[g] == RTS:
            s.q_state[g] = ERR
            s.q_err_time[g] = self.core.time
            s.q_odd[g] = True
            self.core.stop_results(g)
            self.core.stop_inbound(g)

    def _early(self, pe: int, g: int, idx: int, row: int) -> None:
        """A good CQE before its WQE is complete."""
        s = self.s
        last = self.core.sq_psn(g, int(s.w_first[row] + s.w_np[row]) - 1)
        if s.w_first[row] + s.w_np[row] <= s.q_ack[g]:
            missing = sum(e.length for e in s.results[pe] if e.gq == g and e.wqe == idx)
            self.find(Check.CQE_DATA, pe, "completion", "after the write responses of its result bytes",
                      f"{missing} bytes are on their way", g, idx, last)  # fmt: skip
            return
        what = "ACK" if s.w_kind[row] == WRITE else "response"
        acked = self.core.sq_psn(g, int(s.q_ack[g]))
        self.find(Check.CQE_EARLY, pe, "completion", f"after the {what} of PSN {last:#08x}",
                  f"acknowledged below {acked:#08x}", g, idx, last)  # fmt: skip

    def _refused_request(self, g: int) -> None:
        """A flush tells that a contested request found the responder's table full."""
        for request in self.s.r_reads.get(g, ()):
            if request.contested:
                self.core.roll_back(request)
                return

    def _due(self, g: int, wqe_id: int, code: int) -> tuple[int, set[int]]:
        """The WQE whose CQE is due and the codes that it may carry; empty: it is not complete yet."""
        s = self.s
        idx, pi = int(s.q_ret[g]), int(s.q_pi[g])
        ids = 0x1FFF if s.q_version[g] == 1 else 0x1FFFF
        while idx < pi:
            row = s.row(g, idx)
            err, acked = int(s.w_err[row]), s.complete(row, int(s.q_ack[g]))
            allowed: set[int] = set()
            if not s.q_flush[g] and (s.q_state[g] != ERR or s.q_err_race[g]):
                allowed = {err} if err else {0} if acked else set()
            if s.q_state[g] != RTS and (s.q_err_race[g] or not allowed):
                allowed = allowed | {int(CqeError.FLUSH)}
            silent = 0 in allowed and not s.w_ce[row]
            if not silent or (code and idx & ids == wqe_id >> 3):
                return idx, allowed
            idx += 1
        return idx, set()

    def response(self, pe: int, response: int) -> None:
        """The write response of the oldest CQE."""
        s, bad = self.s, bool(response)
        if not s.cqe_bursts[pe]:
            self.find(Check.WRITE_ORDER, pe, "write response of id 4", "a write before it", "none")
            return
        c = s.cqe_bursts[pe].popleft()
        at, old, new = s.cqe_slots[pe].popleft()
        if response == SLVERR and at >= 0 and s.memory.view[at : at + len(new)] == new:
            s.memory.view[at : at + len(new)] = old
        if c < 0:
            return
        self.events.answered(pe, c, bad)
        if bad:
            self.count(pe, Cnt.BUS_CQE)
            if not s.c_dead[c]:
                # one event for an overrun, however many of its CQEs are refused
                s.asyncs[pe].append((AsyncKind.CQE_BUS_ERR, int(s.c_cqn[c])))
                self.core.cq_overrun(c)
                self._refused[c] = self.core.time

    # ------------------------------------------------------------------ room
    def wait_over(self, c: int, pe: int, moved: bool) -> None:
        """Room comes, or the test ends: whether the CQ went into overrun before."""
        s = self.s
        since, limit = int(s.c_since[c]), s.cq_wait[pe]
        if since < 0 or s.c_dead[c]:
            return
        waited = max(self.core.time, s.cycle) - since
        if waited > limit + SETTLE:
            self.count(pe, Cnt.CQ_OVERRUN)
            s.asyncs[pe].append((AsyncKind.CQ_OVERRUN, int(s.c_cqn[c])))
            self.core.cq_overrun(c)
        elif waited > limit:
            self.find(Check.DB_AMBIGUOUS, pe, f"room in CQ {int(s.c_cqn[c])}",
                       f"well before or after {limit} cycles", f"after {waited} cycles")  # fmt: skip
        elif moved:
            s.c_since[c] = -1

    def overruns(self) -> None:
        """CQs whose completions have waited too long by now."""
        for c in np.flatnonzero(self.s.c_since >= 0).tolist():
            self.wait_over(c, int(self.s.c_pe[c]), False)
