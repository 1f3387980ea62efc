"""Damaged copies of legal streams, and the judge run on them, for the judge's own tests."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pymodel.nic.judge import Check, Judge, Kind
from pymodel.nic.params import Cnt
from tests.model.judge_stream import Knobs, Sim

SMALL = Knobs(seed=5, n_pes=2, qps=2, wqes=40, sizes=(1, 1500), depth=16, cq_depth=16)


def end(judge: Judge, sim: Sim, counters: list[list[int]] | None = None) -> Judge:
    """All comparisons of the end of a test; counters: as they are read, where not those of the stream."""
    for pe in range(sim.k.n_pes):
        judge.check_memory(pe, np.empty(0, np.uint64), lambda pe, a, n: sim.memory[pe].view(a, n))
        values = list((counters or sim.counters)[pe])
        values[Cnt.WQE] = int(judge.expected_counters(pe)[Cnt.WQE])
        judge.check_counters(pe, values)
    judge.finish()
    return judge


def run(sim: Sim, exact: bool = False, splits: list[int] | None = None) -> Judge:
    """Judge a stream, whole or cut at the given records."""
    judge = Judge(sim.configs, exact=exact)
    for error in sim.errors:
        judge.add_error(*error)
    for part in np.split(sim.records, splits or []):
        judge.feed(part, sim.side)
        judge.flush()
    return end(judge, sim)


def simulate(**changes: object) -> Sim:
    """A fresh legal stream; SMALL with changes."""
    return Sim(Knobs(**{**SMALL.__dict__, **changes})).run()  # type: ignore[arg-type]


def columns(judge: Judge) -> dict[str, np.ndarray]:
    """State that both engines must leave alike: every column, and memory."""
    s = judge.state
    out = {k: v for k, v in vars(s).items() if isinstance(v, np.ndarray) and k[:2] in ("q_", "r_", "c_")}
    out["counters"], out["memory"] = s.counters, s.memory.bytes
    out["dirty"] = np.concatenate([s.memory.dirty_pages(pe) for pe in range(len(s.pes))])
    out["inbound"] = np.array([len(q) for q in s.inbound + s.bursts + s.cqe_bursts])
    return out


class Mutant:
    """A private copy of a legal stream with helpers to damage it."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.rec = sim.records.copy()
        self.side = sim.side.copy()
        self.counters = [list(c) for c in sim.counters]

    def rows(self, kind: Kind, ident: int | None = None) -> np.ndarray:
        """Record numbers of a kind."""
        hit = self.rec["kind"] == kind
        if ident is not None:
            hit &= self.rec["id"] == ident
        return np.flatnonzero(hit)

    def middle(self, rows: np.ndarray) -> int:
        """One from the middle of the stream."""
        assert rows.size > 4
        return int(rows[rows.size // 2])

    def packet(self, want: Callable[[np.ndarray], bool], kind: Kind = Kind.TXPKT) -> int:
        """A packet in the middle that fits."""
        fit = [i for i in self.rows(kind) if want(self.frame(i))]
        return self.middle(np.array(fit))

    def frame(self, i: int) -> np.ndarray:
        """Bytes of a packet, writable."""
        at = int(self.rec["off"][i])
        return self.side[at : at + int(self.rec["len"][i])]

    def icrc(self, i: int) -> None:
        """Make the ICRC of a packet right again."""
        f = self.frame(i)
        m = bytearray(b"\xff" * 8 + f[14:-4].tobytes())
        for at in (9, 16, 18, 19, 34, 35, 40):
            m[at] = 255
        f[-4:] = np.frombuffer(struct.pack("<I", zlib.crc32(m)), np.uint8)

    def cqe(self, i: int) -> np.ndarray:
        """Bytes of a CQE from its slot on, writable."""
        strobe = int(self.rec["aux0"][i])
        lane = (strobe & -strobe).bit_length() - 1
        at = int(self.rec["off"][i])
        return self.side[at + lane : at + 64]

    def qp_of_cqe(self, i: int) -> tuple[int, int]:
        """(PE, qp_id) of a CQE."""
        return int(self.rec["pe"][i]), int(self.cqe(i)[:4].view("<u4")[0]) >> 8 & 0x7FFF

    def pair(self) -> tuple[int, int]:
        """Two successive CQEs of one QP in the middle."""
        rows = self.rows(Kind.AXI_W, 4)
        for i in rows[rows.size // 2 :]:
            for j in rows[rows > i]:
                if self.qp_of_cqe(i) == self.qp_of_cqe(j):
                    return int(i), int(j)
        raise AssertionError

    def move(self, i: int, before: int) -> None:
        """Put record i in front of record `before`."""
        order = [*range(self.rec.size)]
        order.remove(i)
        order.insert(order.index(before), i)
        self.rec = self.rec[order]

    def drop(self, *rows: int) -> None:
        """Remove records."""
        self.rec = np.delete(self.rec, rows)

    def insert(self, before: int, **fields: int) -> None:
        """Add a record at the time of its successor."""
        new = np.zeros(1, self.rec.dtype)
        new["time"] = self.rec["time"][min(before, self.rec.size - 1)]
        for name, value in fields.items():
            new[name] = value
        self.rec = np.insert(self.rec, before, new)


def is_request(f: np.ndarray) -> bool:
    """A WRITE Only with payload that needs pad."""
    return bool(f[42] == 0x0A and f[43] >> 4 & 3)


def is_ack(f: np.ndarray) -> bool:
    """An ACK."""
    return bool(f[42] == 0x11)


def flip(
    at: int, bits: int = 1, fix: bool = False, want: Callable[[np.ndarray], bool] = is_request
) -> Callable[[Mutant], None]:
    """Flip bits of a sent frame; fix: with an ICRC that fits."""

    def mutate(m: Mutant) -> None:
        i = m.packet(want)
        m.frame(i)[at] ^= bits
        if fix:
            m.icrc(i)

    return mutate


@dataclass
class Case:
    """A planted fault and the checks that it must turn red: all of `red`, nothing besides."""

    name: str
    mutate: Callable[[Mutant], None]
    red: set[Check]
    also: frozenset[Check] = frozenset()  # consequences that may follow


def run_mutant(m: Mutant, exact: bool) -> Judge:
    """Judge a damaged stream."""
    judge = Judge(m.sim.configs, exact=exact)
    judge.feed(m.rec, m.side)
    return end(judge, m.sim, m.counters)
