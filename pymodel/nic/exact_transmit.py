"""Exact engine, transmit: request packets byte for byte, and whether their WQE was allowed to start."""

from __future__ import annotations

import struct
from collections import deque

from pymodel.formats.wqe import WqeOp
from pymodel.nic import judge_frames as frames
from pymodel.nic import rules
from pymodel.nic.exact_core import Core, Part, signed24
from pymodel.nic.exact_retry import Retry
from pymodel.nic.judge_records import Check
from pymodel.nic.judge_state import READ, WRITE
from pymodel.nic.params import Cnt


class Transmit(Part):
    """Packets of requesters."""

    def __init__(self, core: Core, retry: Retry) -> None:
        super().__init__(core)
        self.retry = retry

    def compare(
        self, pe: int, g: int, wqe: int, psn: int, expected: bytes, got: bytes, head: int, end: int
    ) -> None:
        """Byte for byte; head: end of the headers, end: end of the payload in `expected`."""
        if expected == got:
            return
        if len(expected) != len(got):
            self.find(Check.TX_HEADER, pe, "frame length", f"{len(expected)}", f"{len(got)}", g, wqe, psn)
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
            self.find(check, pe, f"{name} (frame offset {at})", expected[at:stop].hex(" "),
                      got[at:stop].hex(" "), g, wqe, psn)  # fmt: skip
        # over the bytes that were sent, so that a wrong byte is not reported twice
        correct = frames.icrc(got[:-4])
        if got[-4:] != correct and expected[:-4] == got[:-4]:
            self.find(Check.TX_ICRC, pe, "ICRC", correct.hex(" "), got[-4:].hex(" "), g, wqe, psn)

    def request(self, pe: int, g: int, frame: bytes) -> None:
        """A request packet left the NIC."""
        s = self.s
        self.count(pe, Cnt.TX_REQUEST)
        got_psn = int.from_bytes(frame[51:54], "big")
        idx, pi, number = int(s.q_txw[g]), int(s.q_pi[g]), int(s.q_tx[g])
        ahead = signed24(got_psn - number - int(s.q_sq_psn[g]))
        due = self._expected(pe, g, idx, number)
        if ahead < 0 and number + ahead >= 0 and self._again(pe, g, number + ahead, frame, due):
            return
        if ahead and (due is not None or ahead < 0):
            self.find(Check.TX_PSN, pe, "BTH PSN", f"{self.core.sq_psn(g, number):#08x}",
                      f"{got_psn:#08x}", g, idx, got_psn)  # fmt: skip
            if due is None or ahead < 0:
                return  # sent before: nothing moves
            # a gap if the packet is that of its PSN; else it is the due one with a wrong PSN
            there = self._expected(pe, g, idx, number + ahead)
            alike = due[0][:51] == frame[:51] and due[0][54:-4] == frame[54:-4]
            if there is not None and not alike:
                number, due = number + ahead, there
            else:
                frame = frame[:51] + due[0][51:54] + frame[54:-4]
                frame += due[0][-4:] if alike else frames.icrc(frame)
        if due is None:
            while idx < pi and not s.w_err[s.row(g, idx)]:
                idx += 1
            why = (
                "none is announced"
                if idx >= pi
                else f"none, WQE {idx} fails with {int(s.w_err[s.row(g, idx)]):#04x}"
            )
            self.find(
                Check.TX_UNEXPECTED, pe, "request packet", why, f"opcode {frame[42]:#04x}", g, idx, got_psn
            )
            return
        expected, idx, head, size, last = due
        if idx >= s.q_fetch[g]:
            # a burst is recorded at its last beat; a WQE of an earlier beat may be on the wire by then
            self.core.early.setdefault(g, []).append((idx, self.core.time, got_psn))
        self.compare(pe, g, idx, self.core.sq_psn(g, number), expected, frame, head, head + size)
        row = s.row(g, idx)
        if g in self.retry.of:
            self.retry.packet(pe, g, number, 1 if s.w_kind[row] == WRITE else int(s.w_np[row]))
        if number == s.w_first[row]:
            self._may_start(pe, g, idx, number)
        elif s.w_kind[row] == WRITE:
            self._window(pe, g, idx, number, 1)
        s.q_tx[g] = number + (1 if s.w_kind[row] == WRITE else int(s.w_np[row]))
        s.q_txw[g] = idx + last

    def _again(
        self, pe: int, g: int, number: int, frame: bytes, new: tuple[bytes, int, int, int, bool] | None
    ) -> bool:
        """A packet whose PSN was sent before; False: it is the next new one with a wrong PSN."""
        s = self.s
        due = self._expected(pe, g, self.retry.wqe_of(g, number), number, again=True)
        if new is not None and (due is None or due[0][:51] != frame[:51]):
            if new[0][:51] == frame[:51] and new[0][54:-4] == frame[54:-4]:
                return False
        psn = self.core.sq_psn(g, number)
        if due is None:
            return False
        expected, idx, head, size, _ = due
        row = s.row(g, idx)
        k = number - int(s.w_first[row])
        self.retry.packet(pe, g, number, 1 if s.w_kind[row] == WRITE else int(s.w_np[row]) - k)
        if k and s.w_kind[row] != WRITE:
            self.retry.state(g).resumed.add(number)
        if number < s.q_ack[g] and len(frame) == len(expected):
            # acknowledged while it was on its way out: its source may be another one by now
            expected = expected[:head] + frame[head : head + size] + expected[head + size : -4]
            expected += frames.icrc(expected)
        self.compare(pe, g, idx, psn, expected, frame, head, head + size)
        return True

    def _expected(
        self, pe: int, g: int, idx: int, number: int, again: bool = False
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
        k = number - int(s.w_first[row])
        resumes = again and s.w_kind[row] == READ
        if idx >= pi or not 0 <= k < s.w_np[row] or (k and s.w_kind[row] != WRITE and not resumes):
            return None
        length, psn, flow = int(s.w_len[row]), self.core.sq_psn(g, number), s.flows[g]
        va, rkey = int(s.w_raddr[row]), int(s.w_rkey[row])
        if s.w_kind[row] == WRITE:
            return self._expected_write(pe, g, idx, row, k, struct.pack(">QII", va, rkey, length))
        if s.w_kind[row] == READ:
            done = k * int(s.q_mtu[g])
            va, opcode = va + done & (1 << 64) - 1, frames.READ_REQUEST
            ext = struct.pack(">QII", va, rkey, length - done)
        else:
            opcode = int(rules.BTH_OF[int(s.w_op[row])])
            operands = tuple(int(x[row]) for x in (s.w_swap, s.w_cmp, s.w_smask, s.w_cmask))
            ext = frames.atomic_eth(opcode, va, rkey, (operands[0], operands[1], operands[2], operands[3]))
        return frames.build(flow, opcode, psn, 1, ext), idx, frames.BASE + len(ext), 0, True

    def _expected_write(
        self, pe: int, g: int, idx: int, row: int, k: int, reth: bytes
    ) -> tuple[bytes, int, int, int, bool]:
        s = self.s
        mtu, length = int(s.q_mtu[g]), int(s.w_len[row])
        # a WQE that stops in the middle still is cut as a whole
        total = max(1, -(-length // mtu))
        send, last = s.w_op[row] == WqeOp.SEND, k == total - 1
        opcode = (
            frames.WRITE_ONLY if total == 1
            else frames.WRITE_FIRST if k == 0
            else frames.WRITE_LAST if last
            else frames.WRITE_MIDDLE
        )  # fmt: skip
        ack_req = last or (k + 1) % s.params.ack_interval == 0
        ext = reth if k == 0 and not send else b""
        if send:
            opcode -= frames.WRITE_FIRST - frames.SEND_FIRST
        if last and s.w_imm[row]:
            opcode += 1
            ext += struct.pack(">I", int(s.w_data[row]))
        # solicited: only where a receive WQE completes (wire.md 2)
        se = int(last and bool(s.w_se[row]) and (send or bool(s.w_imm[row])))
        size = min(mtu, length - k * mtu)
        payload = self.core.look(pe, int(s.w_laddr[row]) + k * mtu, size)
        psn = self.core.sq_psn(g, int(s.w_first[row]) + k)
        expected = frames.build(s.flows[g], opcode, psn, int(ack_req), ext, payload, se)
        return expected, idx, frames.BASE + len(ext), size, k == s.w_np[row] - 1 and not s.w_local[row]

    # ------------------------------------------------------------------ limits
    def _may_start(self, pe: int, g: int, idx: int, number: int) -> None:
        """Fence, READs and atomics outstanding, WQEs in flight, PSN window at the first packet of a WQE.

        What the NIC saw when it decided can only be less complete than what the judge sees now.
        """
        s = self.s
        row, psn = s.row(g, idx), self.core.sq_psn(g, number)
        if s.w_fence[row] or len(s.q_reads.get(g, ())) >= s.q_max_rd[g]:
            self.retry.revive(g, number)
        reads = s.q_reads.get(g, ())
        if s.w_fence[row] and reads:
            self.find(Check.TX_FENCE, pe, "fenced WQE", f"after the data of WQE {reads[-1]}",
                      f"{len(reads)} READs and atomics are outstanding", g, idx, psn)  # fmt: skip
        asks = 1
        if s.w_kind[row] != WRITE:
            most, asks = int(s.q_max_rd[g]), int(s.w_np[row])
            if len(reads) >= most:
                self.find(Check.TX_RD_LIMIT, pe, "READs and atomics outstanding", f"at most {most}",
                          f"{len(reads) + 1}", g, idx, psn)  # fmt: skip
            s.q_reads.setdefault(g, deque()).append(idx)
        most = s.params.max_inflight
        if idx - int(s.q_ret[g]) >= most and idx - self._oldest(g) >= most:
            self.find(Check.TX_IN_FLIGHT, pe, "WQEs in flight", f"at most {most}",
                      f"{idx - self._oldest(g) + 1}", g, idx, psn)  # fmt: skip
        self._window(pe, g, idx, number, asks)

    def _oldest(self, g: int) -> int:
        """First WQE that cannot have been retired: not complete, or without room in its CQ."""
        s = self.s
        idx, c = int(s.q_ret[g]), int(s.q_cq[g])
        room = 1 << 62
        if c >= 0 and not s.c_ignore[c]:
            room = int(s.c_depth[c] - (s.c_prod[c] - s.c_ci[c]))
        while idx < s.q_pi[g]:
            row = s.row(g, idx)
            room -= int(s.w_ce[row])
            if s.w_err[row] or room < 0 or not s.complete(row, int(s.q_ack[g])):
                break
            idx += 1
        return idx

    def _window(self, pe: int, g: int, idx: int, number: int, asks: int) -> None:
        """Fewer than psn_window unacknowledged PSNs, but for a WQE that is alone (wire.md 5)."""
        s = self.s
        unacked = number - int(s.q_ack[g])
        if unacked and unacked + asks >= s.params.psn_window:
            self.find(Check.TX_WINDOW, pe, "unacknowledged PSNs", f"below {s.params.psn_window}",
                      f"{unacked + asks}", g, idx, self.core.sq_psn(g, number))  # fmt: skip
