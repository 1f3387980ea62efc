"""Exact engine, CQE writes: taken apart, and what holds for those of both sides (nic.md 6)."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pymodel.nic.exact_core import Core, Part, strobes
from pymodel.nic.exact_events import Events
from pymodel.nic.judge_records import Check
from pymodel.nic.params import Cnt


@dataclass(slots=True)
class Written:
    """One CQE write. c: its CQ; fields as the two versions place them."""

    pe: int
    c: int
    start: int
    count: int
    strobe: int
    beats: int
    whole: bool
    lane: int
    beat: bytes
    words: tuple[int, ...]
    formed: int

    @property
    def code(self) -> int:
        """error_code."""
        return self.words[0] & 0xFF

    @property
    def qpn15(self) -> int:
        """qp_id."""
        return self.words[0] >> 8 & 0x7FFF

    @property
    def responder(self) -> bool:
        """type."""
        return bool(self.words[0] >> 26 & 1)

    def wqe_id(self, v1: bool) -> int:
        """wqe_id."""
        return self.words[5] >> 16 if v1 else self.words[6] >> 12

    def named(self, index: int, v1: bool) -> int:
        """The index next to `index` that wqe_id may stand for."""
        half = 1 << (12 if v1 else 16)
        return index + ((self.wqe_id(v1) >> 3) - index + half) % (2 * half) - half


class Cqes(Part):
    """Place, fields, time and effect of CQEs."""

    def __init__(self, core: Core, events: Events) -> None:
        super().__init__(core)
        self.events = events
        #: cycle of the refused write that ended a CQ
        self.refused: dict[int, int] = {}

    def parse(self, r: Any) -> Written | None:
        """A CQE write; None (and a finding) where it lies in no ring."""
        s, pe = self.s, int(r["pe"])
        start, count, good = strobes(r)
        s.cqe_slots[pe].append((-1, b"", b""))
        at = s.memory.flat(pe, start, 1)
        i = bisect_right(s.c_sorted, at) - 1 if at >= 0 else -1
        c = int(s.c_order[i]) if i >= 0 else -1
        if c < 0 or s.c_pe[c] != pe or at >= s.c_flat[c] + s.c_depth[c] * s.c_stride[c]:
            s.cqe_bursts[pe].append(-1)
            self.events.written(pe, False)
            self.find(Check.CQE_SLOT, pe, "address of the CQE", "inside one CQ ring", f"{start:#x}")
            return None
        s.cqe_bursts[pe].append(c)
        lane, beat = start & 63, self.core.bytes_of(r, 64)
        words = struct.unpack("<8I", beat[lane : lane + 32].ljust(32, b"\0"))
        formed = (words[4] | (words[5] & 0xFFFF) << 32) + self.core.time_origin
        return Written(pe, c, start, count, int(r["aux0"]), int(r["len"]), good, lane, beat, words, formed)

    def slot_of(self, c: int, number: int) -> int:
        """Address of a CQE by its number in its CQ."""
        s = self.s
        place = 0 if s.c_ignore[c] else number % int(s.c_depth[c])
        return int(s.c_base[c]) + place * int(s.c_stride[c])

    def place(self, w: Written, g: int, idx: int, prod: int) -> None:
        """Address, strobes, room."""
        s, c, pe = self.s, w.c, w.pe
        slot, stride, depth = self.slot_of(c, prod), int(s.c_stride[c]), int(s.c_depth[c])
        if w.start != slot:
            self.find(Check.CQE_SLOT, pe, "slot address", f"{slot:#x} (CQE {prod})", f"{w.start:#x}", g, idx)
        if not w.whole or w.count != stride or w.beats != 1:
            self.find(Check.CQE_STROBE, pe, "strobes", f"{stride} bytes in one beat",
                       f"{w.strobe:#018x}, {w.count} bytes, {w.beats} beats", g, idx)  # fmt: skip
        if not s.c_ignore[c] and prod - int(s.c_ci[c]) >= depth:
            self.find(Check.CQE_ROOM, pe, "CQ room", f"a CQ doorbell beyond {int(s.c_ci[c])} first",
                       f"CQE {prod} in depth {depth}", g, idx)  # fmt: skip

    def content(
        self, w: Written, g: int, idx: int, prod: int, since: int, own: Iterable[tuple[str, int]]
    ) -> None:
        """Every field. since: cycle before which the CQE cannot have been formed; own: msg_opcode, with_imm,
        msg_len, type, se and imm_data as they must be."""
        s, c, pe, v1 = self.s, w.c, w.pe, bool(self.s.q_version[g] == 1)
        # as the driver compares it: by what wqe_id says of the WQE's index (device.md 2.6)
        number = idx & (0x1FFF if v1 else 0x1FFFF) if s.c_ignore[c] else prod
        phase, (w0, imm, msg_len, vni, _, w5, w6, w7) = (number // int(s.c_depth[c])) & 1, w.words
        if w7 >> 31 != phase:
            self.find(Check.CQE_OWNER, pe, "owner", f"{phase}", f"{w7 >> 31}", g, idx)
        got = {
            "msg_opcode": w6 & 0xFF, "with_imm": w0 >> 27 & 1, "msg_len": msg_len, "type": w0 >> 26 & 1,
            "se": w0 >> 24 & 1, "imm_data": imm,
        }  # fmt: skip
        upper = w.beat[w.lane + 32 : w.lane + int(s.c_stride[c])]
        for name, expected, value in (
            *((name, expected, got[name]) for name, expected in own),
            ("has_pph, csum_err, reserved bit of dword 0", 0, w0 >> 23 & 0x1E5),
            ("vni", 0, vni),
            ("reserved bits of dwords 5, 6", 0, w6 >> 8 if v1 else (w6 >> 8 & 15) | w5 >> 16 << 4),
            ("reserved bits of dword 7", 0, w7 & 0x7FFFFFFF),
            ("bytes 32 to 63", 0, int.from_bytes(upper, "little")),
        ):
            if expected != value:
                self.find(Check.CQE_FIELD, pe, name, f"{expected:#x}", f"{value:#x}", g, idx)
        low = max(since, int(s.c_ts[c]))
        if not low <= w.formed <= self.core.time:
            self.find(Check.CQE_TS, pe, "ts", f"{low} to {self.core.time}", f"{w.formed}", g, idx)

    def stand(self, w: Written, prod: int) -> None:
        """The CQE is in its slot: golden memory, producer index, counter."""
        s, c, pe = self.s, w.c, w.pe
        s.c_ts[c] = max(int(s.c_ts[c]), min(w.formed, self.core.time))
        size = min(int(s.c_stride[c]), w.count)
        at = s.memory.flat(pe, w.start, size)
        if at >= 0:
            new = w.beat[w.lane : w.lane + size]
            s.cqe_slots[pe][-1] = at, s.memory.view[at : at + size].tobytes(), new
            s.memory.view[at : at + size] = new
            s.memory.touch(at, int(s.c_stride[c]))
        s.c_prod[c] = prod + 1
        self.core.count(pe, Cnt.CQE)
