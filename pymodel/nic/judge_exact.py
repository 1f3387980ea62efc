"""The judge record by record: every rule with every error path. Slow (tens of us a record) and exact.

The batch engine proves long regular stretches at once and hands everything else to this one.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from pymodel.formats import doorbell
from pymodel.formats.arrays import U8, Rec
from pymodel.formats.cqe import CqeError
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.judge_records import Check, Finding, Kind
from pymodel.nic.judge_state import DUPLICATES, ERR, RESET, RTS, InboundWrite, State
from pymodel.nic.judge_wqe import announce, settle
from pymodel.nic.params import CMD_REG, CMD_STAGE, STAGE_WORDS, AsyncKind, AxiId, Cnt, Csr

_MASK24 = 0xFFFFFF
#: CQE error code by NAK code, for a WRITE (nic.md 4)
_NAK_CODE = {1: CqeError.NAK_INV_REQ, 2: CqeError.NAK_MR, 3: CqeError.NAK_REMOTE_OPER_ERR}
_NAK_TX = {0: Cnt.NAK_SEQ_TX, 1: Cnt.NAK_INV_TX, 2: Cnt.NAK_ACC_TX, 3: Cnt.NAK_OP_TX}
_NAK_RX = {0: Cnt.NAK_SEQ_RX, 1: Cnt.NAK_INV_RX, 2: Cnt.NAK_ACC_RX, 3: Cnt.NAK_OP_RX}
#: cycles in which a change to ERR that came from elsewhere may still race with a packet on its way in
SETTLE = 256
_NEVER = 1 << 62


def signed24(value: int) -> int:
    """Difference of two PSNs as -2^23..2^23-1."""
    return (value + 0x800000 & _MASK24) - 0x800000


class Exact:
    """Judges single records against `state`; findings go to `report`."""

    def __init__(self, state: State, report: Callable[[Finding], None], time_origin: int = 0) -> None:
        self.s = state
        self.report = report
        #: record time at which the NICs' time stamp is 0
        self.time_origin = time_origin
        #: (PE, counter) whose value a race leaves open
        self.loose: set[tuple[int, int]] = set()
        #: g -> (WQE, cycle, PSN) of packets whose WQE's fetch has not been recorded yet
        self._early: dict[int, list[tuple[int, int, int]]] = {}
        self._time = 0
        self._cq_flat = state.c_flat[state.c_order].tolist()
        self._sq_flat = state.q_flat[state.q_order].tolist()
        self._side: U8 = np.zeros(1, np.uint8)
        self._handlers: dict[int, Callable[[Any], None]] = {
            Kind.STORE: self._store,
            Kind.TXPKT: self._tx,
            Kind.RXPKT: self._rx,
            Kind.MMIO_W: self._mmio_write,
            Kind.MMIO_R: self._mmio_read,
            Kind.AXI_R: self._read,
            Kind.AXI_W: self._write,
            Kind.AXI_B: self._response,
        }

    def judge(self, records: Rec, side: U8) -> None:
        """Judge records in order; side: the side buffer they point into."""
        self._side = side
        for r in records:
            self._time = int(r["time"])
            handler = self._handlers.get(int(r["kind"]))
            if handler is not None:
                handler(r)
            self.s.position += 1
        if records.size:
            self.s.cycle = max(self.s.cycle, self._time)

    # ------------------------------------------------------------------ help
    def _bytes(self, r: Any, length: int) -> bytes:
        at = int(r["off"]) % self._side.size
        return self._side[at : at + length].tobytes()

    def _find(
        self,
        check: Check,
        pe: int,
        field: str,
        expected: str,
        got: str,
        g: int = -1,
        wqe: int = -1,
        psn: int = -1,
    ) -> None:
        qpn = int(self.s.q_qpn[g]) if g >= 0 else -1
        self.report(Finding(check, pe, qpn, wqe, psn, self._time, field, expected, got, self.s.position))

    def _count(self, pe: int, counter: int, by: int = 1) -> None:
        self.s.counters[pe, counter] += by

    # ------------------------------------------------------------------ memory
    def _store(self, r: Any) -> None:
        s, pe, addr, length = self.s, int(r["pe"]), int(r["addr"]), int(r["len"])
        at = s.memory.flat(pe, addr, length)
        if at < 0:
            self._find(Check.STORE_UNMAPPED, pe, f"store of {length} bytes", "a mapped range", f"{addr:#x}")
            return
        s.memory.view[at : at + length] = self._bytes(r, length)
        s.memory.touch(at, length)

    def _burst(self, r: Any) -> None:
        """INCR bursts of whole aligned beats that do not cross 4 KiB (nic.md 1)."""
        addr, beats = int(r["addr"]), int(r["len"])
        if not beats or (addr & ~63) // 4096 != ((addr & ~63) + 64 * beats - 1) // 4096:
            self._find(Check.AXI_BURST, int(r["pe"]), f"id {int(r['id'])}", "inside 4 KiB",
                       f"{addr:#x}, {beats} beats")  # fmt: skip

    def _read(self, r: Any) -> None:
        pe, ident, addr, beats = int(r["pe"]), int(r["id"]), int(r["addr"]), int(r["len"])
        self._burst(r)
        if addr & 63:
            self._find(Check.AXI_BURST, pe, f"read address of id {ident}", "a multiple of 64", f"{addr:#x}")
        fault = self.s.memory.beats_fault(pe, addr, 64 * beats)
        if fault != bool(r["flags"]):
            self._find(
                Check.AXI_RESP, pe, f"read of {addr:#x}", f"fault {fault}", f"response {int(r['flags'])}"
            )
        if ident == AxiId.FETCH:
            if fault:
                self._count(pe, Cnt.BUS_FETCH)
            self._fetch(pe, addr, 64 * beats, int(r["aux0"]))
        elif ident == AxiId.GATHER:
            if fault:
                self._count(pe, Cnt.BUS_GATHER)
            self._gather(pe, addr, 64 * beats, int(r["aux0"]))
        else:
            self._find(Check.AXI_ID, pe, f"read of {addr:#x}", "id 0 or 1", f"id {ident}")

    def ring_of(self, pe: int, addr: int, length: int) -> int:
        """QP whose SQ ring holds the range, else -1. Rings in unmapped memory are searched one by one."""
        s = self.s
        at = s.memory.flat(pe, addr, length)
        if at >= 0:
            i = bisect_right(self._sq_flat, at) - 1
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
        g = self.ring_of(pe, addr, length)
        if g < 0:
            self._find(Check.READ_FETCH, pe, "WQE fetch", "inside one SQ ring", f"{addr:#x}, {length} bytes")
            return
        depth, into = int(s.q_depth[g]), addr - int(s.q_base[g])
        slot, slots = into // 128, (into % 128 + length + 127) // 128
        nxt, pi = int(s.q_fetch[g]), int(s.q_pi[g])
        first = nxt + (slot - nxt) % depth
        if first >= pi:
            first -= depth  # a WQE that is fetched again
        last = first + slots - 1
        # data of a fetch that began before the QP went to ERR may come after the flush of its WQEs
        racing = s.q_state[g] == ERR and since <= int(s.q_err_time[g]) + SETTLE
        if (first < int(s.q_ret[g]) and not racing) or first > nxt or last >= pi:
            self._find(Check.READ_FETCH, pe, "WQE fetch",
                       f"from WQE {nxt} on, below the producer index {pi}",
                       f"slot {slot}, {slots} slots", g, nxt)  # fmt: skip
            return
        if since < s.w_time[s.row(g, last)]:
            self._find(Check.READ_FETCH, pe, "cycle of the fetch", f"after {int(s.w_time[s.row(g, last)])}",
                       f"{since}", g, last)  # fmt: skip
        if s.q_state[g] == ERR and since > int(s.q_err_time[g]) + SETTLE:
            self._find(Check.READ_FETCH, pe, "WQE fetch", "none, the QP is in ERR", f"WQE {first}", g, first)
        s.q_fetch[g] = max(nxt, last + 1)
        for early in self._early.pop(g, []):
            if early[0] > last:
                self._early.setdefault(g, []).append(early)
            elif since >= early[1]:
                self._find(Check.TX_EARLY, pe, "request packet", f"after the fetch of WQE {early[0]}",
                           f"in cycle {early[1]}, fetch from {since} on", g, early[0], early[2])  # fmt: skip

    def _gather(self, pe: int, addr: int, length: int, since: int) -> None:
        """Whole aligned beats inside the source range of a live WQE (nic.md 1, 4)."""
        s = self.s
        # after an error the CQE does not wait for reads that are under way, or wait for the memory port: WQEs
        # count until then. Their rows last until q_mask later ones were announced; flushes are quick
        back = np.where(s.q_state == ERR, np.maximum(s.q_start, s.q_pi - s.q_mask), s.q_ret)
        for g in np.flatnonzero((s.q_pe == pe) & (s.q_pi > back)).tolist():
            idx = np.arange(int(back[g]), int(s.q_pi[g]))
            rows = s.q_row[g] + (idx & s.q_mask[g])
            rows = rows[(idx >= s.q_ret[g]) | ((s.w_done[rows] > 0) & (s.w_done[rows] + SETTLE >= since))]
            low = s.w_laddr[rows] & np.uint64(~63 & (1 << 64) - 1)
            into = np.uint64(addr) - low  # modulo 2^64
            # bytes of the aligned source range, and where the read ends in it
            size = (s.w_laddr[rows] - low + s.w_len[rows].astype(np.uint64) + np.uint64(63)) & np.uint64(
                ~63 & (1 << 64) - 1
            )
            fits = (size >= length) & (into <= size - np.uint64(length)) & (s.w_len[rows] > 0)
            usable = (s.w_err[rows] == 0) | (s.w_err[rows] == CqeError.DATA_DMA_RD_REQ) | ~s.w_local[rows]
            if (fits & usable & (s.w_time[rows] <= since)).any():
                return
        self._find(Check.READ_GATHER, pe, "gather read", "inside the source of an announced WQE",
                   f"{addr:#x}, {length} bytes")  # fmt: skip

    def _write(self, r: Any) -> None:
        pe, ident = int(r["pe"]), int(r["id"])
        self._burst(r)
        if ident == AxiId.INBOUND:
            self._inbound(r)
        elif ident == AxiId.CQE:
            self._cqe(r)
        else:
            self._find(Check.AXI_ID, pe, f"write to {int(r['addr']):#x}", "id 3 or 4", f"id {ident}")

    @staticmethod
    def _strobes(r: Any) -> tuple[int, int, bool]:
        """(address of the first strobed byte, bytes, whether strobe and count fit one contiguous range)."""
        strobe, count, beats = int(r["aux0"]), int(r["aux1"]), int(r["len"])
        lane = (strobe & -strobe).bit_length() - 1 if strobe else 0
        in_first = min(64 - lane, count)
        good = strobe == ((1 << in_first) - 1) << lane and count > 0 and beats == (lane + count + 63) // 64
        return (int(r["addr"]) & ~63) + lane, count, good

    def _inbound(self, r: Any) -> None:
        s, pe = self.s, int(r["pe"])
        start, count, good = self._strobes(r)
        if not good:
            self._find(Check.WRITE_STROBE, pe, f"strobes of the write to {start:#x}", "one contiguous range",
                       f"{int(r['aux0']):#018x}, {count} bytes, {int(r['len'])} beats")  # fmt: skip
        seen: set[int] = set()
        for entry in s.inbound[pe]:
            if entry.done >= entry.length:
                continue
            # visible in PSN order per QP: only the first unfinished packet of a QP may be written
            if entry.gq not in seen and entry.va + entry.done == start and count <= entry.length - entry.done:
                entry.done += count
                entry.unanswered += 1
                s.bursts[pe].append(entry)
                entry.pieces.append((entry.done - count, count))
                return
            seen.add(entry.gq)
        due = next((e for e in s.inbound[pe] if e.done < e.length), None)
        # taken as the due one at a wrong place, so that one fault gives one finding
        taken = due if due is not None and count <= due.length - due.done else None
        s.bursts[pe].append(taken)
        self._find(Check.WRITE_OUTSIDE, pe, "inbound payload write",
                   f"{due.va + due.done:#x}, up to {due.length - due.done} bytes" if due else "none is due",
                   f"{start:#x}, {count} bytes", due.gq if due else -1)  # fmt: skip
        if taken is not None:
            taken.done += count
            taken.unanswered += 1

    def _deposit(self, pe: int, va: int, data: bytes) -> None:
        for addr, at, length in self.s.memory.clip(pe, va, len(data)):
            self.s.memory.view[at : at + length] = data[addr - va : addr - va + length]
            self.s.memory.touch(at, length)

    def _response(self, r: Any) -> None:
        s, pe, ident, bad = self.s, int(r["pe"]), int(r["id"]), bool(r["flags"])
        if ident == AxiId.INBOUND and s.bursts[pe]:
            entry = s.bursts[pe].popleft()
            if bad:
                self._count(pe, Cnt.BUS_INBOUND)
            if entry is None:
                return
            entry.unanswered -= 1
            g = entry.gq
            if entry.pieces:
                start, count = entry.pieces.popleft()
                if entry.late is not None and not bad:
                    self._deposit(pe, entry.va + start, entry.late[start : start + count])
            if bad and s.r_nak.get(g) == (entry.cum, 3):
                s.q_err_time[g] = self._time
            elif bad and not s.memory.beats_fault(pe, entry.va, entry.length, True):
                self._find(
                    Check.AXI_RESP, pe, f"write at {entry.va:#x}", "response 0", f"{int(r['flags'])}", g
                )
            if entry.done >= entry.length and not entry.unanswered:
                s.inbound[pe].remove(entry)
        elif ident == AxiId.CQE and s.cqe_bursts[pe]:
            c = s.cqe_bursts[pe].popleft()
            if bad:
                self._count(pe, Cnt.BUS_CQE)
                s.asyncs[pe].append((AsyncKind.CQE_BUS_ERR, int(s.c_cqn[c])))
                self._cq_overrun(c)
        else:
            self._find(Check.WRITE_ORDER, pe, f"write response of id {ident}", "a write before it", "none")

    def _cq_overrun(self, c: int) -> None:
        """The CQ takes no CQE until programmed again; its QPs go to ERR (nic.md 6)."""
        s = self.s
        s.c_dead[c] = True
        for g in np.flatnonzero(s.q_cq == c).tolist():
            self._to_err(g, self._time)

    def _to_err(self, g: int, since: int) -> None:
        """A change to ERR that no WQE of the QP caused."""
        s = self.s
        if s.q_state[g] == RTS:
            s.q_ret[g] = s.retired(g)
            s.q_state[g] = ERR
            s.q_err_time[g] = since
            s.q_err_race[g] = True
            s.q_odd[g] = True

    # ------------------------------------------------------------------ CQE
    def _cqe(self, r: Any) -> None:
        s, pe = self.s, int(r["pe"])
        start, count, good = self._strobes(r)
        at = s.memory.flat(pe, start, 1)
        i = bisect_right(self._cq_flat, at) - 1 if at >= 0 else -1
        c = int(s.c_order[i]) if i >= 0 else -1
        if c < 0 or s.c_pe[c] != pe or at >= s.c_flat[c] + s.c_depth[c] * s.c_stride[c]:
            s.cqe_bursts[pe].append(0)
            self._find(Check.CQE_SLOT, pe, "address of the CQE", "inside one CQ ring", f"{start:#x}")
            return
        s.cqe_bursts[pe].append(c)
        stride, depth, prod = int(s.c_stride[c]), int(s.c_depth[c]), int(s.c_prod[c])
        lane = start & 63
        beat = self._bytes(r, 64)
        raw = beat[lane : lane + 32].ljust(32, b"\0")
        w0, imm, msg_len, vni, ts_word, w6, w7 = struct.unpack("<IIIIQII", raw)
        qpn15 = w0 >> 8 & 0x7FFF
        owners = [g for g in np.flatnonzero((s.q_pe == pe) & (s.q_cq == c)).tolist()
                  if int(s.q_qpn[g]) & 0x7FFF == qpn15]  # fmt: skip
        if not owners or s.c_dead[c]:
            due = "none, the CQ is in overrun" if s.c_dead[c] else f"a QP of CQ {int(s.c_cqn[c])}"
            self._find(Check.CQE_UNEXPECTED, pe, "qp_id", due, f"{qpn15}")
            return
        g = owners[0]
        v1 = s.q_version[g] == 1
        wqe_id = ts_word >> 48 if v1 else w6 >> 12
        code = w0 & 0xFF
        idx, allowed = self._due(g, wqe_id, code)
        named = (
            idx
            + (((wqe_id >> 3) - idx + (1 << (12 if v1 else 16))) % (1 << (13 if v1 else 17)))
            - (1 << (12 if v1 else 16))
        )

        def slot_of(number: int) -> int:
            return int(s.c_base[c]) + (0 if s.c_ignore[c] else number % depth) * stride

        if idx >= s.q_pi[g] or (named < idx and start != slot_of(prod)):
            self._find(Check.CQE_UNEXPECTED, pe, "wqe_id",
                       f"WQE {idx}" if idx < s.q_pi[g] else "no WQE is outstanding",
                       f"WQE {named}, code {code:#x}", g, named)  # fmt: skip
            return
        in_order = named == idx and not wqe_id & 7
        row = s.row(g, idx)
        if not in_order:
            want = idx << 3 & (0xFFFF if v1 else 0xFFFFF)
            self._find(Check.CQE_ORDER, pe, "wqe_id", f"{want:#x} (WQE {idx})", f"{wqe_id:#x}", g, idx)
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
                last = int(s.w_first[row] + s.w_np[row]) - 1 + int(s.q_sq_psn[g]) & _MASK24
                self._find(Check.CQE_EARLY, pe, "completion", f"after the ACK of PSN {last:#08x}",
                           f"acknowledged below {int(s.q_ack[g]) + int(s.q_sq_psn[g]) & _MASK24:#08x}",
                           g, idx, last)  # fmt: skip
            else:
                names = " or ".join(f"{x:#04x}" for x in sorted(allowed)) or "no CQE yet"
                self._find(Check.CQE_STATUS, pe, "error_code", names, f"{code:#04x}", g, idx)
                code = min(allowed, default=0)
        # ---- place
        slot = slot_of(prod)
        if start != slot:
            self._find(Check.CQE_SLOT, pe, "slot address", f"{slot:#x} (CQE {prod})", f"{start:#x}", g, idx)
        if not good or count != stride or int(r["len"]) != 1:
            self._find(Check.CQE_STROBE, pe, "strobes", f"{stride} bytes in one beat",
                       f"{int(r['aux0']):#018x}, {count} bytes, {int(r['len'])} beats", g, idx)  # fmt: skip
        if not s.c_ignore[c] and prod - int(s.c_ci[c]) >= depth:
            self._find(Check.CQE_ROOM, pe, "CQ room", f"a CQ doorbell beyond {int(s.c_ci[c])} first",
                       f"CQE {prod} in depth {depth}", g, idx)  # fmt: skip
        # ---- content
        phase = ((idx if s.c_ignore[c] else prod) // depth) & 1
        if w7 >> 31 != phase:
            self._find(Check.CQE_OWNER, pe, "owner", f"{phase}", f"{w7 >> 31}", g, idx)
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
                self._find(Check.CQE_FIELD, pe, name, f"{expected:#x}", f"{got:#x}", g, idx)
        ts = (ts_word & (1 << 48) - 1) + self.time_origin
        low = max(int(s.w_time[row]), int(s.c_ts[c]))
        if not low <= ts <= self._time:
            self._find(Check.CQE_TS, pe, "ts", f"{low} to {self._time}", f"{ts}", g, idx)
        # ---- effect
        s.c_ts[c] = max(int(s.c_ts[c]), min(ts, self._time))
        at = s.memory.flat(pe, start, min(stride, count))
        if at >= 0:
            s.memory.view[at : at + min(stride, count)] = beat[lane : lane + min(stride, count)]
            s.memory.touch(at, stride)
        s.c_prod[c] = prod + 1
        s.q_ret[g] = idx + 1
        s.q_ce_done[g] = s.w_ceno[s.row(g, idx)]
        if code:
            s.w_done[s.row(g, idx)] = self._time
        self._count(pe, Cnt.CQE)
        self._watch_room(c, self._time)
        if code == CqeError.FLUSH:
            self._count(pe, Cnt.FLUSH)
            s.q_flush[g] = True
        elif code and s.q_state[g] == RTS:
            s.q_state[g] = ERR
            s.q_err_time[g] = self._time
            s.q_odd[g] = True

    def _due(self, g: int, wqe_id: int, code: int) -> tuple[int, set[int]]:
        """The WQE whose CQE is due and the codes that it may carry; empty: it is not complete yet."""
        s = self.s
        idx, pi = int(s.q_ret[g]), int(s.q_pi[g])
        ids = 0x1FFF if s.q_version[g] == 1 else 0x1FFFF
        while idx < pi:
            row = s.row(g, idx)
            err, acked = int(s.w_err[row]), s.w_first[row] + s.w_np[row] <= s.q_ack[g]
            allowed: set[int] = set()
            if not s.q_flush[g] and (s.q_state[g] == RTS or s.q_err_race[g]):
                allowed = {err} if err else {0} if acked else set()
            if s.q_state[g] == ERR and (s.q_err_race[g] or not allowed):
                allowed = allowed | {int(CqeError.FLUSH)}
            silent = 0 in allowed and not s.w_ce[row]
            if not silent or (code and idx & ids == wqe_id >> 3):
                return idx, allowed
            idx += 1
        return idx, set()

    # ------------------------------------------------------------------ doorbells, commands
    def _mmio_write(self, r: Any) -> None:
        s, p, pe, addr, data = self.s, self.s.params, int(r["pe"]), int(r["addr"]), int(r["data"])
        if addr < p.db_base:
            self._csr(pe, addr, data, int(r["flags"]))
            return
        qpn, offset = divmod(addr - p.db_base, p.db_page_bytes)
        if offset & ~7 not in (p.db_sq, p.db_rq, p.db_cq):
            return
        index = qpn - p.first_qpn
        known = 0 <= index < p.num_qp
        g = int(s.qp_lut[pe, index]) if known else -1
        if int(r["flags"]) != 0xFF or offset & 7:
            self._count(pe, Cnt.DB_PARTIAL)
        elif not known:
            self._count(pe, Cnt.DB_PAGE)
        elif g < 0 or s.q_state[g] == RESET:
            self._count(pe, Cnt.DB_RESET)
        elif offset == p.db_sq:
            self._sq_doorbell(pe, g, data)
        elif offset == p.db_rq:
            own = int(doorbell.rq_decode(data).qp_id) == int(s.q_qpn[g])
            self._count(pe, Cnt.DB_RQ if own else Cnt.DB_PAGE)
        else:
            self._cq_doorbell(pe, g, data)

    def _sq_doorbell(self, pe: int, g: int, data: int) -> None:
        s = self.s
        version, depth, pi = int(s.q_version[g]), int(s.q_depth[g]), int(s.q_pi[g])
        fields = doorbell.sq_decode(data, version)
        if int(fields.qp_id) != int(s.q_qpn[g]):
            self._count(pe, Cnt.DB_PAGE)
            return
        pid = int(fields.next_pid)
        # completions on their way may or may not have been counted by the NIC
        most, least = pi - s.retired(g), pi - self._completing(g)
        verdict, other = (
            int(rules.sq_doorbell(pid, pi, n, depth, version, s.params.stale_ignored)) for n in (most, least)
        )
        forward = ((pid >> 3) - pi) % (1 << int(s.q_bits[g]))
        if verdict != other:
            self._find(Check.DB_AMBIGUOUS, pe, "SQ doorbell",
                       f"at most {depth - most} WQEs, or no completion on its way",
                       f"{forward} WQEs", g, pi)  # fmt: skip
        elif verdict == rules.DbVerdict.ACCEPTED:
            self._announce(pe, g, pi + forward)
        elif verdict != rules.DbVerdict.NO_WORK:
            self._count(pe, rules.DB_COUNTER[rules.DbVerdict(verdict)])
            if verdict == rules.DbVerdict.OVERRUN:
                s.asyncs[pe].append((AsyncKind.SQ_OVERRUN, int(s.q_qpn[g])))
                self._to_err(g, self._time)

    def _completing(self, g: int) -> int:
        """First WQE that cannot have completed yet inside the NIC."""
        s = self.s
        idx, pi = int(s.q_ret[g]), int(s.q_pi[g])
        if s.q_state[g] == ERR:
            return pi
        while idx < pi:
            row = s.row(g, idx)
            if not s.w_err[row] and s.w_first[row] + s.w_np[row] > s.q_ack[g]:
                break
            idx += 1
        return idx

    def _announce(self, pe: int, g: int, new: int) -> None:
        s = self.s
        idx = np.arange(int(s.q_pi[g]), new, dtype=np.int64)
        raw = np.zeros((idx.size, 128), np.uint8)
        mapped = np.ones(idx.size, np.bool_)
        for k, i in enumerate(idx.tolist()):
            addr = int(s.q_base[g]) + i % int(s.q_depth[g]) * 128
            at = s.memory.flat(pe, addr, 128)
            mapped[k] = not s.memory.beats_fault(pe, addr, 128)
            if at >= 0:
                raw[k] = s.memory.bytes[at : at + 128]
        group = np.full(idx.size, g, np.int64)
        time = np.full(idx.size, self._time, np.int64)
        good = announce(s, group, idx, raw, mapped, time, np.full(idx.size, s.position, np.int64))
        settle(s, group, idx)
        if not good:
            s.q_odd[g] = True
            if s.q_bad[g] < 0:
                rows = s.q_row[g] + (idx & s.q_mask[g])
                s.q_bad[g] = int(idx[np.flatnonzero(s.w_err[rows])[0]])

    def _cq_doorbell(self, pe: int, g: int, data: int) -> None:
        s = self.s
        fields = doorbell.cq_decode(data)
        c = int(s.q_cq[g])
        cqn = int(fields.cq_id)
        if c < 0 or cqn not in (int(s.c_cqn[c]), s.qp_ctx[g].recv_cq):
            self._count(pe, Cnt.DB_PAGE)
            return
        if cqn != int(s.c_cqn[c]):
            c = int(s.cq_lut[pe, cqn])
        prod, ci = int(s.c_prod[c]), int(s.c_ci[c])
        cid = int(fields.next_cid)
        ahead = sum(self._completing(q) - int(s.q_ret[q]) for q in np.flatnonzero(s.q_cq == c).tolist())
        verdict, other = (int(rules.cq_doorbell(cid, ci, n)) for n in (prod, prod + ahead))
        if verdict != other:
            self._find(Check.DB_AMBIGUOUS, pe, "CQ doorbell",
                       f"at most CQE {prod}, or no completion on its way", f"next_cid {cid}", g)  # fmt: skip
        elif verdict == rules.CqDbVerdict.ACCEPTED:
            self._wait_over(c, pe, cid != ci)
            s.c_ci[c] = ci + (cid - ci) % (1 << 23)
        else:
            beyond = verdict == rules.CqDbVerdict.BEYOND
            self._count(pe, Cnt.DB_CQ_BEYOND if beyond else Cnt.DB_CQ_BACKWARD)

    def _watch_room(self, c: int, now: int) -> None:
        """With cq_wait: note since when a completion waits for room in a CQ (nic.md 6)."""
        s = self.s
        if not s.cq_wait[int(s.c_pe[c])] or s.c_ignore[c] or s.c_since[c] >= 0:
            return
        full = s.c_prod[c] - s.c_ci[c] >= s.c_depth[c]
        if full and any(self._completing(q) > s.q_ret[q] for q in np.flatnonzero(s.q_cq == c).tolist()):
            s.c_since[c] = now

    def _wait_over(self, c: int, pe: int, moved: bool) -> None:
        """Room comes, or the test ends: whether the CQ went into overrun before."""
        s = self.s
        since, limit = int(s.c_since[c]), s.cq_wait[pe]
        if since < 0 or s.c_dead[c]:
            return
        waited = max(self._time, s.cycle) - since
        if waited > limit + SETTLE:
            self._count(pe, Cnt.CQ_OVERRUN)
            s.asyncs[pe].append((AsyncKind.CQ_OVERRUN, int(s.c_cqn[c])))
            self._cq_overrun(c)
        elif waited > limit:
            self._find(Check.DB_AMBIGUOUS, pe, f"room in CQ {int(s.c_cqn[c])}",
                       f"well before or after {limit} cycles", f"after {waited} cycles")  # fmt: skip
        elif moved:
            s.c_since[c] = -1

    def overruns(self) -> None:
        """CQs whose completions have waited too long by now."""
        for c in np.flatnonzero(self.s.c_since >= 0).tolist():
            self._wait_over(c, int(self.s.c_pe[c]), False)

    def discards(self, pe: int) -> int:
        """Completions of a PE that overrun CQs swallowed; how many of them were flushed is open."""
        s = self.s
        lost = (s.q_pe == pe) & (s.q_cq >= 0) & s.c_dead[s.q_cq]
        if lost.any():
            self.loose |= {(pe, int(n)) for n in (Cnt.FLUSH, Cnt.CQ_OVERRUN)}
        return int((s.q_pi - s.q_ret)[lost].sum())

    def _csr(self, pe: int, addr: int, data: int, strobe: int) -> None:
        s = self.s
        word = addr - CMD_STAGE >> 3
        if addr >= CMD_STAGE and word < STAGE_WORDS:
            keep = sum(0xFF << 8 * i for i in range(8) if strobe >> i & 1)
            s.stage[pe, word] = np.uint64((int(s.stage[pe, word]) & ~keep) | (data & keep))
        elif addr == Csr.CQ_WAIT:
            s.cq_wait[pe] = data & 0xFFFFFFFF
        elif addr == CMD_REG and strobe == 0xFF:
            self._command(pe, data & 15, data >> 4 & 15, data >> 8 & 0xFFFFFF)

    def _command(self, pe: int, op: int, obj: int, index: int) -> None:
        """Commands that change what the judge expects; contexts as first programmed are configuration."""
        s, first = self.s, self.s.params.first_qpn
        if obj == 1 and 0 <= index - first < s.params.num_qp:
            g = int(s.qp_lut[pe, index - first])
            if g >= 0 and op == 2 and int(s.stage[pe, 8]) & 3 == ERR:
                self._to_err(g, self._time)
            elif g >= 0 and op == 3:
                self._reset(pe, g)
            elif g >= 0 and op == 1 and s.q_state[g] == RESET:
                s.q_state[g] = RTS
                # of a QP that is set again the PSNs may be new
                word = int(s.stage[pe, 3])
                s.q_sq_psn[g], s.q_rq_psn[g] = word & _MASK24, word >> 32 & _MASK24
                # packets that met its change to ERR and were not executed after all
                gone = [e for e in s.inbound[pe] if e.gq == g and e.late is not None and not e.done]
                for entry in gone:
                    s.inbound[pe].remove(entry)
        elif obj == 2 and op == 1 and index < s.params.num_cq:
            c = int(s.cq_lut[pe, index])
            if c >= 0 and (s.q_state[s.q_cq == c] == RESET).all():
                s.c_dead[c] = False
                s.c_since[c] = -1
                s.c_prod[c] = s.c_ci[c] = s.c_start[c]
        elif obj == 3 and op == 1 and index in s.mrs[pe] and not int(s.stage[pe, 2]) >> 24 & 1:
            s.drop_mr(pe, index)

    def _reset(self, pe: int, g: int) -> None:
        """RESET: indices, MSN and saved state are 0 again (nic.md 6)."""
        s = self.s
        start, c = s.q_start[g], int(s.q_cq[g])
        s.q_gone[g] += s.retired(g) - start
        if c >= 0 and s.c_dead[c]:
            lost = int(s.q_pi[g] - s.retired(g))
            s.q_gone[g] += lost
            self._count(pe, Cnt.CQE_DISCARD, lost)
            self.loose |= {(pe, int(n)) for n in (Cnt.FLUSH, Cnt.CQ_OVERRUN)}
        for column in (s.q_pi, s.q_ret, s.q_fetch, s.q_txw):
            column[g] = start
        for column in (s.q_ann, s.q_tx, s.q_ack, s.q_ce, s.q_ce_done, s.r_exp, s.r_msn, s.r_left):
            column[g] = 0
        for flags in (s.q_flush, s.q_err_race, s.r_open, s.r_ahead, s.q_odd):
            flags[g] = False
        for column in (s.q_bad, s.q_err_time, s.r_req, s.r_sent):
            column[g] = -1
        for due in (s.r_nak, s.r_nak_before, s.r_dup, self._early):
            due.pop(g, None)
        s.q_state[g] = RESET

    def _mmio_read(self, r: Any) -> None:
        pe, data = int(r["pe"]), int(r["data"])
        if int(r["addr"]) == Csr.ASYNC_POP and data >> 63:
            event = (data >> 32 & 0xFF, data & _MASK24)
            if event in self.s.asyncs[pe]:
                self.s.asyncs[pe].remove(event)
            else:
                due = ", ".join(f"kind {k} number {n}" for k, n in self.s.asyncs[pe]) or "none"
                self._find(Check.ASYNC, pe, "asynchronous event", due, f"kind {event[0]} number {event[1]}")

    # ------------------------------------------------------------------ link, transmit
    def _tx(self, r: Any) -> None:
        s, pe = self.s, int(r["pe"])
        frame = self._bytes(r, int(r["len"]))
        if len(frame) < frames.BASE + frames.ICRC:
            self._find(Check.TX_UNEXPECTED, pe, "frame", f"at least {frames.BASE + frames.ICRC} bytes",
                       f"{len(frame)} bytes")  # fmt: skip
            return
        dst_ip, dst_qpn = int.from_bytes(frame[30:34], "big"), int.from_bytes(frame[47:50], "big")
        g = s.tx_map.get(s.tx_key(pe, dst_ip, dst_qpn), -1)
        if g < 0:
            self._find(Check.TX_UNEXPECTED, pe, "destination", "the peer of one of its QPs",
                       f"address {dst_ip:#010x} QPN {dst_qpn}")  # fmt: skip
        elif frame[42] in frames.RESPONSES:
            self._tx_response(pe, g, frame)
        else:
            self._tx_request(pe, g, frame)

    def _compare(
        self, pe: int, g: int, wqe: int, psn: int, expected: bytes, got: bytes, head: int, end: int
    ) -> None:
        """Byte for byte; head: end of the headers, end: end of the payload in `expected`."""
        if expected == got:
            return
        if len(expected) != len(got):
            self._find(Check.TX_HEADER, pe, "frame length", f"{len(expected)}", f"{len(got)}", g, wqe, psn)
            return
        for low, high, check in (
            (0, head, Check.TX_HEADER),
            (head, end, Check.TX_PAYLOAD),
            (end, len(got) - 4, Check.TX_PAD),
        ):
            if expected[low:high] == got[low:high]:
                continue
            at = next(i for i in range(low, high) if expected[i] != got[i])
            name = frames.byte_name(at, expected[42]) if check is Check.TX_HEADER else f"byte {at - low}"
            stop = min(at + 16, high)
            self._find(check, pe, f"{name} (frame offset {at})", expected[at:stop].hex(" "),
                       got[at:stop].hex(" "), g, wqe, psn)  # fmt: skip
        # over the bytes that were sent, so that a wrong byte is not reported twice
        correct = frames.icrc(got[:-4])
        if got[-4:] != correct and expected[:-4] == got[:-4]:
            self._find(Check.TX_ICRC, pe, "ICRC", correct.hex(" "), got[-4:].hex(" "), g, wqe, psn)

    def _tx_request(self, pe: int, g: int, frame: bytes) -> None:
        s = self.s
        self._count(pe, Cnt.TX_REQUEST)
        got_psn = int.from_bytes(frame[51:54], "big")
        idx, pi, number = int(s.q_txw[g]), int(s.q_pi[g]), int(s.q_tx[g])
        ahead = signed24(got_psn - number - int(s.q_sq_psn[g]))
        if ahead and number + ahead < int(s.q_ann[g]):
            self._find(Check.TX_PSN, pe, "BTH PSN", f"{number + int(s.q_sq_psn[g]) & _MASK24:#08x}",
                       f"{got_psn:#08x}", g, idx, got_psn)  # fmt: skip
            if ahead < 0:
                return  # sent before: nothing moves
            # a gap if the packet is that of its PSN; else it is the due one with a wrong PSN
            here = self._expected_request(pe, g, idx, number)
            if here is None or here[0][:51] != frame[:51] or here[0][54:-4] != frame[54:-4]:
                number += ahead
            else:
                frame = frame[:51] + here[0][51:54] + frame[54:-4] + here[0][-4:]
        due = self._expected_request(pe, g, idx, number)
        if due is None:
            while idx < pi and not s.w_err[s.row(g, idx)]:
                idx += 1
            why = (
                "none is announced"
                if idx >= pi
                else f"none, WQE {idx} fails with {int(s.w_err[s.row(g, idx)]):#04x}"
            )
            self._find(
                Check.TX_UNEXPECTED, pe, "request packet", why, f"opcode {frame[42]:#04x}", g, idx, got_psn
            )
            return
        expected, idx, head, size, last = due
        if idx >= s.q_fetch[g]:
            # a burst is recorded at its last beat; a WQE of an earlier beat may be on the wire by then
            self._early.setdefault(g, []).append((idx, self._time, got_psn))
        psn = number + int(s.q_sq_psn[g]) & _MASK24
        self._compare(pe, g, idx, psn, expected, frame, head, head + size)
        s.q_tx[g] = number + 1
        s.q_txw[g] = idx + last

    def _expected_request(
        self, pe: int, g: int, idx: int, number: int
    ) -> tuple[bytes, int, int, int, bool] | None:
        """(frame, WQE, end of headers, payload bytes, last of its WQE) of a packet, from WQE idx on."""
        s = self.s
        pi = int(s.q_pi[g])
        while (
            idx < pi
            and number >= s.w_first[s.row(g, idx)] + s.w_np[s.row(g, idx)]
            and not (s.w_err[s.row(g, idx)] and s.w_local[s.row(g, idx)])
        ):
            idx += 1
        row = s.row(g, idx)
        if idx >= pi or number >= s.w_first[row] + s.w_np[row]:
            return None
        mtu, length = int(s.q_mtu[g]), int(s.w_len[row])
        # a WQE that stops in the middle still is cut as a whole
        total = max(1, -(-length // mtu))
        k = number - int(s.w_first[row])
        opcode = (
            frames.WRITE_ONLY if total == 1
            else frames.WRITE_FIRST if k == 0
            else frames.WRITE_LAST if k == total - 1
            else frames.WRITE_MIDDLE
        )  # fmt: skip
        ack_req = k == total - 1 or (k + 1) % s.params.ack_interval == 0
        ext = struct.pack(">QII", int(s.w_raddr[row]), int(s.w_rkey[row]), length) if k == 0 else b""
        size = min(mtu, length - k * mtu)
        at = s.memory.flat(pe, int(s.w_laddr[row]) + k * mtu, size) if size else 0
        payload = (
            s.memory.view[at : at + size].tobytes() if at >= 0 else self._clipped(pe, g, row, k * mtu, size)
        )
        psn = number + int(s.q_sq_psn[g]) & _MASK24
        expected = frames.request(s.flows[g], opcode, psn, int(ack_req), ext, payload)
        return expected, idx, frames.BASE + len(ext), size, k == s.w_np[row] - 1 and not s.w_local[row]

    def _clipped(self, pe: int, g: int, row: int, offset: int, size: int) -> bytes:
        """Source bytes where part of the range is unmapped inside a mapped beat: those read as 0."""
        va = int(self.s.w_laddr[row]) + offset
        out = bytearray(size)
        for addr, at, length in self.s.memory.clip(pe, va, size):
            out[addr - va : addr - va + length] = self.s.memory.view[at : at + length]
        return bytes(out)

    def _tx_response(self, pe: int, g: int, frame: bytes) -> None:
        """ACKs as a legal set (wire.md 6), NAKs when due (wire.md 5)."""
        s = self.s
        self._count(pe, Cnt.TX_RESPONSE)
        psn, syndrome = int.from_bytes(frame[51:54], "big"), frame[54]
        msn = int.from_bytes(frame[55:58], "big")
        expected = frames.acknowledge(s.flows[g], psn, syndrome, msn)
        self._compare(pe, g, -1, psn, expected, frame, len(expected) - 4, len(expected) - 4)
        executed = int(s.r_exp[g])
        c = executed + signed24(psn - executed - int(s.q_rq_psn[g]))
        due = s.r_nak.get(g)
        if syndrome == frames.SYN_ACK:
            if due and not due[1] and due[0] <= c < executed:
                # the expected packet came before the NAK 0 left: the newest response wins
                s.r_nak_before.setdefault(g, set()).add(due[0])
                del s.r_nak[g]
                due = None
            limit = due[0] if due and due[1] else executed
            if c >= limit:
                self._find(Check.ACK_PSN, pe, "ACK", f"below {limit + int(s.q_rq_psn[g]) & _MASK24:#08x}",
                           f"{psn:#08x}", g, psn=psn)  # fmt: skip
                return
            if (c < int(s.r_sent[g]) or c < 0) and not self._duplicate(g, c):
                least = int(s.r_sent[g]) + int(s.q_rq_psn[g]) & _MASK24
                self._find(Check.ACK_PSN, pe, "ACK", f"not below {least:#08x}", f"{psn:#08x}", g, psn=psn)
        else:
            code = syndrome & 31 if syndrome >> 5 == 3 else -1
            before = s.r_nak_before.get(g, set())
            if (due is None or (c, code) != due) and (code or c not in before):
                want = (
                    f"code {due[1]} at PSN {due[0] + int(s.q_rq_psn[g]) & _MASK24:#08x}"
                    if due
                    else "none is due"
                )
                self._find(
                    Check.NAK, pe, f"NAK, syndrome {syndrome:#04x}", want, f"PSN {psn:#08x}", g, psn=psn
                )
                return
            if code == 3 and s.q_err_time[g] == _NEVER:
                self._find(Check.ACK_EARLY, pe, "NAK 3", "after the write response with the error", "before",
                           g, psn=psn)  # fmt: skip
            if (c, code) == due:
                del s.r_nak[g]
            before.discard(c)
            self._count(pe, _NAK_TX[code])
            c -= 1  # what a NAK acknowledges
        want_msn = self._msn_at(g, c)
        # a bus error comes back when the request, and others after it, may have been counted
        most = int(s.r_msn[g]) + 1 if syndrome == 0x63 else want_msn
        if not 0 <= signed24(msn - want_msn) <= most - want_msn:
            self._find(Check.ACK_MSN, pe, "MSN", f"{want_msn & _MASK24}", f"{msn}", g, psn=psn)
        wait = next((e for e in s.inbound[pe] if e.gq == g and e.cum <= c and e.late is None), None)
        if wait is not None:
            state = f"{wait.done} of {wait.length} bytes written, {wait.unanswered} bursts without response"
            first = wait.cum + int(s.q_rq_psn[g]) & _MASK24
            self._find(Check.ACK_EARLY, pe, "acknowledge", f"after the write responses of PSN {first:#08x}",
                       state, g, psn=psn)  # fmt: skip
        s.r_sent[g] = max(int(s.r_sent[g]), c if syndrome == frames.SYN_ACK else c + 1)

    def _duplicate(self, g: int, c: int) -> bool:
        """Whether a duplicate allows an ACK of packet `c` that goes back behind a response before it."""
        allowed = self.s.r_dup.get(g)
        if not allowed or c not in allowed:
            return False
        # ACKs leave in order, and one may stand for several
        while allowed.popleft() != c:
            pass
        return True

    def _nak_due(self, g: int, number: int, code: int) -> None:
        """A NAK becomes due; one of code 0 that was due before may be on its way out."""
        s = self.s
        due = s.r_nak.get(g)
        if due and not due[1]:
            s.r_nak_before.setdefault(g, set()).add(due[0])
        s.r_nak[g] = (number, code)

    def _msn_at(self, g: int, c: int) -> int:
        """Messages whose last packet is packet `c` or an earlier one."""
        s = self.s
        msn = int(s.r_msn[g])
        floor = max(0, msn - s.e_rows)
        while msn > floor and s.e_end[g, (msn - 1) % s.e_rows] > c:
            msn -= 1
        return msn

    # ------------------------------------------------------------------ link, receive
    def _rx(self, r: Any) -> None:
        s, pe = self.s, int(r["pe"])
        got = frames.receive(self._bytes(r, int(r["len"])), s.pes[pe].mac, s.pes[pe].ip)
        if isinstance(got, Cnt):
            self._count(pe, got)
            return
        index = got.dst_qpn - s.params.first_qpn
        g = int(s.qp_lut[pe, index]) if 0 <= index < s.params.num_qp else -1
        if g < 0 or s.q_state[g] == RESET:
            self._count(pe, Cnt.DROP_QP)
            return
        if s.q_state[g] == ERR and self._time - int(s.q_err_time[g]) >= SETTLE:
            self._count(pe, Cnt.DROP_QP)
            return
        # whether the change to ERR comes first is open: memory tells what was executed
        late = bool(s.q_state[g] == ERR or (s.q_bad[g] >= 0 and s.retired(g) >= s.q_bad[g]))
        if late:
            self.loose |= {
                (pe, int(n))
                for n in (
                    Cnt.DROP_QP,
                    Cnt.RX_PACKET,
                    Cnt.DROP_IP_SRC,
                    Cnt.DROP_RESPONSE,
                    Cnt.DUPLICATE,
                    Cnt.PSN_AHEAD,
                )  # fmt: skip
            }
            if got.opcode in frames.RESPONSES:
                self._late_response(g, got)
                return
        if got.src_ip != s.flows[g].dst_ip:
            self._count(pe, Cnt.DROP_IP_SRC)
            return
        if got.opcode in frames.RESPONSES:
            self._rx_response(pe, g, got)
        else:
            self._rx_request(pe, g, got, late)

    def _late_response(self, g: int, got: frames.Received) -> None:
        """A response that races with a change to ERR that no WQE caused: its WQEs flush or end well."""
        s = self.s
        c = int(s.q_ack[g]) + signed24(got.psn - int(s.q_ack[g]) - int(s.q_sq_psn[g]))
        if (
            s.q_err_race[g]
            and got.opcode == frames.ACK
            and got.ext[0] >> 5 == 0
            and s.q_ack[g] <= c < s.q_tx[g]
        ):
            s.q_ack[g] = c + 1

    def _rx_response(self, pe: int, g: int, got: frames.Received) -> None:
        s = self.s
        if got.opcode != frames.ACK:
            self._count(pe, Cnt.RX_PACKET)
            self._count(pe, Cnt.DROP_RESPONSE)
            return
        syndrome = got.ext[0]
        kind, code = syndrome >> 5, syndrome & 31
        if kind not in (0, 1, 3) or (kind == 3 and code > 3) or syndrome >> 7:
            self._count(pe, Cnt.DROP_SYNDROME)
            return
        self._count(pe, Cnt.RX_PACKET)
        acked, sent = int(s.q_ack[g]), int(s.q_tx[g])
        c = acked + signed24(got.psn - acked - int(s.q_sq_psn[g]))
        if c < acked or c >= sent:
            self._count(pe, Cnt.DROP_RESPONSE)
            return
        if kind == 0:
            s.q_ack[g] = c + 1
            self._watch_room(int(s.q_cq[g]), self._time)
            return
        s.q_ack[g] = c
        if kind == 1:
            self._count(pe, Cnt.RNR_RX)
            return
        self._count(pe, _NAK_RX[code])
        if not code:
            return
        for idx in range(int(s.q_ret[g]), int(s.q_pi[g])):
            row = s.row(g, idx)
            if s.w_first[row] <= c < s.w_first[row] + s.w_np[row]:
                s.w_err[row] = int(_NAK_CODE[code])
                s.w_local[row] = False
                s.q_odd[g] = True
                if s.q_bad[g] < 0 or s.q_bad[g] > idx:
                    s.q_bad[g] = idx
                break

    def _rx_request(self, pe: int, g: int, got: frames.Received, late: bool) -> None:
        s = self.s
        number = int(s.r_exp[g])
        ahead = signed24(got.psn - number - int(s.q_rq_psn[g]))
        if ahead > 0:
            self._count(pe, Cnt.PSN_AHEAD)
            if not s.r_ahead[g] and not late:
                s.r_ahead[g] = True
                self._nak_due(g, number, 0)
                s.q_odd[g] = True
            return
        if ahead < 0:
            self._count(pe, Cnt.DUPLICATE)
            s.r_dup.setdefault(g, deque(maxlen=DUPLICATES)).append(number - 1)
            return
        # duplicates and packets from ahead have counters of their own, and only those (nic.md 7)
        self._count(pe, Cnt.RX_PACKET)
        code = self._refuse(pe, g, got)
        if code:
            if not late:
                self._nak_due(g, number, code)
                s.asyncs[pe].append((AsyncKind.QP_ERR, int(s.q_qpn[g])))
                self._to_err(g, -SETTLE)  # in the receive path itself: no race
            return
        size = len(got.payload)
        start = got.opcode in (frames.WRITE_FIRST, frames.WRITE_ONLY)
        last = got.opcode in (frames.WRITE_LAST, frames.WRITE_ONLY)
        if start:
            s.r_va[g] = np.uint64(int.from_bytes(got.ext[:8], "big"))
            s.r_rkey[g] = int.from_bytes(got.ext[8:12], "big")
            s.r_left[g] = int.from_bytes(got.ext[12:16], "big")
        va = int(s.r_va[g])
        s.r_va[g] = np.uint64(va + size & (1 << 64) - 1)
        s.r_left[g] -= size
        s.r_open[g] = not last
        fault = size > 0 and s.memory.beats_fault(pe, va, size, True)
        if size:
            s.inbound[pe].append(InboundWrite(g, number, va, size, got.payload if late or fault else None))
            if not (late or fault):
                self._deposit(pe, va, got.payload)
        if fault and not late:
            self._nak_due(g, number, 3)
            s.asyncs[pe].append((AsyncKind.QP_ERR, int(s.q_qpn[g])))
            self._to_err(g, _NEVER)
            s.r_exp[g] = number + 1
            return
        s.r_exp[g] = number + 1
        s.r_ahead[g] = False
        if got.ack_req and not late:
            s.r_req[g] = number
        if last:
            s.e_end[g, int(s.r_msn[g]) % s.e_rows] = number
            s.r_msn[g] += 1

    def _refuse(self, pe: int, g: int, got: frames.Received) -> int:
        """NAK code of a request at the expected PSN, 0: execute (wire.md 5)."""
        s, op, size = self.s, got.opcode, len(got.payload)
        if op not in (frames.WRITE_FIRST, frames.WRITE_MIDDLE, frames.WRITE_LAST, frames.WRITE_ONLY):
            return 1
        start = op in (frames.WRITE_FIRST, frames.WRITE_ONLY)
        last = op in (frames.WRITE_LAST, frames.WRITE_ONLY)
        if bool(s.r_open[g]) == start or not s.qp_ctx[g].rem_write:
            return 1
        mtu = int(s.q_mtu[g])
        va, key = int.from_bytes(got.ext[:8], "big"), int.from_bytes(got.ext[8:12], "big")
        length = int.from_bytes(got.ext[12:16], "big")
        left = length if start else int(s.r_left[g])
        if last and (size != left or size > mtu or (op == frames.WRITE_LAST and not size)):
            return 1
        # a First or Middle leaves a byte for the Last; a message has at most 2^31 bytes
        if not last and (size != mtu or left <= size or left > 1 << 31):
            return 1
        if not start:
            row = s.mr_rows[pe, min(int(s.r_rkey[g]) >> 8, s.params.num_mr - 1)]
            known = s.r_rkey[g] >> 8 < s.params.num_mr and row["valid"] and row["rtag"] == s.r_rkey[g] & 0xFF
            return 0 if known or not size else 2
        verdict = rules.mr_check(s.mr_rows, key, True, rules.Right.REM_WRITE, [va], [length], pe)
        return 0 if int(verdict[0]) == rules.MrVerdict.OK else 2

    # ------------------------------------------------------------------ end of test
    def outstanding(self) -> list[Finding]:
        """WQEs, writes and responses that are still due, each with what it waits for."""
        s = self.s
        out: list[Finding] = []

        def add(check: Check, g: int, wqe: int, psn: int, field: str, expected: str, got: str) -> None:
            out.append(
                Finding(check, int(s.q_pe[g]), int(s.q_qpn[g]), wqe, psn, s.cycle, field, expected, got)
            )

        for g in np.flatnonzero((s.q_pi > s.q_ret) & (s.q_state != RESET)).tolist():
            c = int(s.q_cq[g])
            if c >= 0 and s.c_dead[c]:
                continue  # its completions are discarded and counted
            for idx in range(s.retired(g), int(s.q_pi[g])):
                row = s.row(g, idx)
                add(Check.OUTSTANDING, g, idx, int(s.w_first[row]) + int(s.q_sq_psn[g]) & _MASK24,
                    "completion", "a CQE" if s.w_ce[row] else "an ACK", self._waits_for(g, idx))  # fmt: skip
        for g, packets in self._early.items():
            for idx, cycle, psn in packets:
                add(Check.TX_EARLY, g, idx, psn, "request packet", f"after the fetch of WQE {idx}",
                    f"in cycle {cycle}, no fetch")  # fmt: skip
        for pe, queue in enumerate(s.inbound):
            for e in queue:
                if e.late is None:
                    what = f"{e.done} of {e.length} bytes, {e.unanswered} bursts without response"
                    add(Check.WRITE_MISSING, e.gq, -1, e.cum + int(s.q_rq_psn[e.gq]) & _MASK24,
                        f"inbound payload of PE {pe}", f"written to {e.va:#x}", what)  # fmt: skip
        for g in np.flatnonzero((s.r_req > s.r_sent) & (s.q_state == RTS)).tolist():
            add(Check.ACK_MISSING, g, -1, int(s.r_req[g]) + int(s.q_rq_psn[g]) & _MASK24, "AckReq",
                "a response", "none")  # fmt: skip
        for g, (number, code) in s.r_nak.items():
            add(
                Check.NAK_MISSING, g, -1, number + int(s.q_rq_psn[g]) & _MASK24, "NAK", f"code {code}", "none"
            )
        return out

    def _waits_for(self, g: int, idx: int) -> str:
        s = self.s
        row = s.row(g, idx)
        first, count = int(s.w_first[row]), int(s.w_np[row])
        if s.q_state[g] == ERR:
            return "a flush CQE: the QP is in ERR"
        if s.w_err[row]:
            return f"its error CQE {int(s.w_err[row]):#04x}"
        if 0 <= int(s.q_bad[g]) < idx:
            return f"WQE {int(s.q_bad[g])} before it, which failed"
        if idx >= s.q_fetch[g]:
            return "its fetch: announced, not read"
        if s.q_tx[g] < first + count:
            return f"transmission: {max(0, int(s.q_tx[g]) - first)} of {count} packets sent"
        if s.q_ack[g] < first + count:
            peer = int(s.q_peer[g])
            done = peer >= 0 and int(s.r_exp[peer]) >= first + count
            return "an ACK: all packets sent, " + (
                "executed by the peer" if done else "not executed by the peer"
            )
        c = int(s.q_cq[g])
        if not s.c_ignore[c] and s.c_prod[c] - s.c_ci[c] >= s.c_depth[c]:
            return f"room in CQ {int(s.c_cqn[c])}: acknowledged, CQ full at consumer index {int(s.c_ci[c])}"
        return "its CQE: acknowledged"

    def completed(self, pe: int) -> int:
        """Completed WQEs of a PE, silent ones and errors included."""
        s = self.s
        mine = np.flatnonzero(s.q_pe == pe).tolist()
        return sum(s.retired(g) - int(s.q_start[g]) + int(s.q_gone[g]) for g in mine)
