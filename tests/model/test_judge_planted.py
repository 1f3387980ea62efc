"""Planted faults of READs and atomics in legal record streams.

Stimulus: one legal stream of WRITEs, READs and all atomics per shape, damaged in one place: every header
field of every new packet kind, payload, order, memory accesses, values, limits, completion, events, counters.
Checks: exactly the check of the fault turns red, in both engines.
Timing: none but the order of records. Not proved here: anything about RTL.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from pymodel.nic.judge import Check, Finding, Judge, Kind
from pymodel.nic.judge_exact import Exact
from pymodel.nic.judge_state import State
from pymodel.nic.params import Cnt, Csr, Params
from tests.model.judge_mutants import Case, Mutant, end, run, run_mutant, simulate
from tests.model.judge_stream import ATOMIC_NAMES, OPS, Burst, Knobs, Sim
from tests.model.stream_base import Qp, Wqe
from tests.model.test_judge import CASES as WRITE_CASES

C = Check
MIX = ("write", "read", *ATOMIC_NAMES)
#: names of the streams that faults are planted in
STREAMS: dict[str, dict[str, object]] = {
    # every WQE of its own place; segments of READs
    "mix": {"ops": MIX, "sizes": (40, 6000), "mtus": (1, 2), "words": 4, "wqes": 30},
    # many packets of every kind
    "headers": {"ops": MIX, "sizes": (40, 2000), "mtus": (1, 2), "words": 4, "wqes": 130},
    # WRITE, then READ of the same bytes
    "same": {"ops": ("write", "read"), "sizes": (40, 900), "same_place": 0.9, "wqes": 60},
    # one QP, one atomic at a time
    "single": {"ops": ATOMIC_NAMES, "qps": 1, "one_way": True, "max_rd": 1, "words": 3, "wqes": 60},
    # atomics and WRITEs on one word
    "word": {"ops": (*ATOMIC_NAMES, "write"), "words": 1, "word_writes": 1.0, "wqes": 60},
    "events": {"ops": MIX, "arm": 0.4, "latency": 10, "wqes": 80},
    "ignore": {"ops": MIX, "ignore": True, "cq_depth": 16},
}


@functools.cache
def stream(name: str) -> Sim:
    """A legal stream; damaged in copies only."""
    return simulate(**STREAMS[name])


# ------------------------------------------------------------------ where to damage


def is_op(op: int) -> Callable[[np.ndarray], bool]:
    """Frames with a BTH opcode."""
    return lambda f: bool(f[42] == op)


def flip(at: int, bits: int, op: int) -> Callable[[Mutant], None]:
    """Flip bits of a sent frame of an opcode, with an ICRC that fits."""

    def mutate(m: Mutant) -> None:
        i = m.packet(is_op(op))
        m.frame(i)[at] ^= bits
        m.icrc(i)

    return mutate


@dataclass
class Run:
    """Records of one atomic: read, write, COMMIT, response (-1: none), and the words they touch."""

    pe: int
    addr: int
    read: int
    write: int = -1
    commit: int = -1
    response: int = -1

    @property
    def rows(self) -> list[int]:
        return [i for i in (self.read, self.write, self.commit, self.response) if i >= 0]


def runs(m: Mutant) -> list[Run]:
    """All atomics of a stream in order."""
    out: list[Run] = []
    last: dict[int, Run] = {}
    for i in np.flatnonzero((m.rec["id"] == 2) & np.isin(m.rec["kind"], (6, 7, 8, 9))).tolist():
        pe, kind = int(m.rec["pe"][i]), int(m.rec["kind"][i])
        if kind == Kind.AXI_R:
            last[pe] = Run(pe, int(m.rec["addr"][i]), i)
            out.append(last[pe])
        else:
            setattr(last[pe], {7: "write", 9: "commit", 8: "response"}[kind], i)
    return out


def final(m: Mutant, written: bool = True) -> Run:
    """An atomic on whose word nothing comes after it."""
    every = runs(m)
    for i, run_ in reversed(list(enumerate(every))):
        word = run_.addr & ~7
        if (run_.write >= 0) == written and all(
            r.pe != run_.pe or r.addr & ~7 != word for r in every[i + 1 :]
        ):
            return run_
    raise AssertionError


def data(m: Mutant, row: int) -> np.ndarray:
    """The 64 lanes of an ID-2 write."""
    at = int(m.rec["off"][row])
    return m.side[at : at + 64]


def copy_of(m: Mutant, rows: list[int], time: int) -> np.ndarray:
    """Copies of records, one every 40 cycles from a time on."""
    out = m.rec[rows].copy()
    for i in range(len(rows)):
        out["time"][i] = time + 40 * i + 40
    out["aux0"][out["kind"] == Kind.AXI_R] = time + 20
    return out


def answer_of(m: Mutant, run_: Run) -> int:
    """The ATOMIC ACK behind the last record of an atomic (streams with one atomic at a time)."""
    after = [i for i in m.rows(Kind.TXPKT) if i > run_.rows[-1] and m.rec["pe"][i] == run_.pe]
    return next(i for i in after if m.frame(i)[42] == 0x12)


# ------------------------------------------------------------------ packets


def _read_payload(m: Mutant) -> None:
    i = m.packet(is_op(0x0E))
    m.frame(i)[100] ^= 1
    m.icrc(i)


def _read_icrc(m: Mutant) -> None:
    m.frame(m.packet(is_op(0x10)))[-1] ^= 1


def _atomic_icrc(m: Mutant) -> None:
    m.frame(m.packet(is_op(0x12)))[-2] ^= 1


def _read_pad(m: Mutant) -> None:
    i = next(i for i in m.rows(Kind.TXPKT) if m.frame(i)[42] in (0x0F, 0x10) and m.frame(i)[43] >> 4 & 3)
    m.frame(i)[-5] = 7
    m.icrc(i)


def _response_psn(op: int) -> Callable[[Mutant], None]:
    def mutate(m: Mutant) -> None:
        i = m.packet(is_op(op))
        m.frame(i)[53] ^= 2
        m.icrc(i)

    return mutate


def _response_twice(m: Mutant) -> None:
    """Of a middle packet: the next is due then."""
    i = m.packet(is_op(0x0E))
    m.rec = np.insert(m.rec, i + 1, m.rec[i])


def _response_lost(m: Mutant) -> None:
    m.drop(m.packet(is_op(0x0E)))


def _response_from_nowhere(m: Mutant) -> None:
    """A data response when nothing is held any more."""
    i = m.packet(is_op(0x12))
    m.rec = np.append(m.rec, m.rec[i : i + 1])


def _response_missing(*ops: int) -> Callable[[Mutant], None]:
    """The last data response of the run does not leave."""

    def mutate(m: Mutant) -> None:
        all_ = [i for i in m.rows(Kind.TXPKT) if 0x0D <= m.frame(i)[42] <= 0x12 and m.frame(i)[42] != 0x11]
        lasts: dict[tuple[int, bytes], int] = {}
        for i in all_:
            lasts[int(m.rec["pe"][i]), m.frame(i)[47:50].tobytes()] = i
        m.drop(next(i for i in lasts.values() if m.frame(i)[42] in ops))

    return mutate


def _ack_before_read(m: Mutant) -> None:
    """An ACK overtakes the READ response that stands before it on its QP."""
    tx = m.rows(Kind.TXPKT).tolist()
    for n, i in enumerate(tx):
        if m.frame(i)[42] != 0x11:
            continue
        qp = m.frame(i)[47:50].tobytes()
        before = [j for j in tx[:n] if m.rec["pe"][j] == m.rec["pe"][i] and m.frame(j)[47:50].tobytes() == qp]
        before = [j for j in before if 0x0D <= m.frame(j)[42] <= 0x12]
        if before and m.frame(before[-1])[42] in (0x10, 0x12):
            m.move(i, before[-1])
            return
    raise AssertionError


def _write_answers_before(m: Mutant) -> list[tuple[int, int]]:
    """(gather, last ID-3 response before it) where the gather is asked for right after the response."""
    out = []
    for i in m.rows(Kind.AXI_R, 1).tolist():
        b = [j for j in m.rows(Kind.AXI_B, 3).tolist() if j < i and m.rec["pe"][j] == m.rec["pe"][i]]
        if b and 0 < int(m.rec["aux0"][i]) - int(m.rec["time"][b[-1]]) <= 3:
            out.append((i, b[-1]))
    return out


def _read_before_writes(m: Mutant) -> None:
    """A READ response leaves before the last write response of the WRITE in front of it."""
    for i, b in _write_answers_before(m):
        tx = [j for j in m.rows(Kind.TXPKT) if j > i and m.rec["pe"][j] == m.rec["pe"][i]]
        rec = m.rec
        m.move(b, next(j for j in tx if m.frame(j)[42] == 0x10) + 1)
        if {C.READ_EARLY, C.ACK_EARLY} <= set(run_mutant(m, True).counts):
            return
        m.rec = rec
    raise AssertionError


def _stale_read(m: Mutant) -> None:
    """A READ response carries what its bytes were before the WRITE in front of it."""
    for i in [i for i in m.rows(Kind.TXPKT) if m.frame(i)[42] == 0x10]:
        f = m.frame(i)
        size = len(f) - 62 - (int(f[43]) >> 4 & 3)
        if size > 8 and f[58 : 58 + size].any():
            # the first lap of the targets: all zero before
            f[58 : 58 + size] = 0
            m.icrc(i)
            return
    raise AssertionError


def _gather_early(m: Mutant) -> None:
    """A READ gather is asked for before the write responses of the WRITE in front of it."""
    for i, b in _write_answers_before(m):
        keep = int(m.rec["aux0"][i])
        m.rec["aux0"][i] = m.rec["time"][b] - 1
        if set(run_mutant(m, True).counts) == {C.READ_EARLY}:
            return
        m.rec["aux0"][i] = keep
    raise AssertionError


# ------------------------------------------------------------------ results and completion


def _result_elsewhere(m: Mutant) -> None:
    m.rec["addr"][m.middle(m.rows(Kind.AXI_W, 5))] += 64


def _result_more(m: Mutant) -> None:
    i = m.rows(Kind.AXI_W, 5)[-1]
    m.rec = np.append(m.rec, m.rec[i : i + 1])


def _result_short(m: Mutant) -> None:
    """One byte less than the ATOMIC ACK delivers."""
    i = next(i for i in m.rows(Kind.AXI_W, 5) if m.rec["aux1"][i] == 8 and m.rec["len"][i] == 1)
    strobe = int(m.rec["aux0"][i])
    m.rec["aux1"][i] = 7
    m.rec["aux0"][i] = strobe & ~(1 << strobe.bit_length() - 1)


def _result_strobes(m: Mutant) -> None:
    i = next(i for i in m.rows(Kind.AXI_W, 5) if m.rec["aux1"][i] == 8 and m.rec["len"][i] == 1)
    strobe = int(m.rec["aux0"][i])
    m.rec["aux0"][i] = strobe & ~((strobe & -strobe) << 2) | strobe << 1 & 0xFFFFFFFFFFFFFFFF


def _result_lost(m: Mutant) -> None:
    m.drop(*(int(m.rows(kind, 5)[-1]) for kind in (Kind.AXI_W, Kind.COMMIT, Kind.AXI_B)))


def _result_answered_alone(m: Mutant) -> None:
    m.rec = np.append(m.rec, m.rec[m.rows(Kind.AXI_B, 5)[-1:]])


def _result_fault(m: Mutant) -> None:
    m.rec["flags"][m.rows(Kind.AXI_B, 5)[-1]] = 2


def _cqe_before_data(m: Mutant) -> None:
    """A CQE moves in front of the write response of its result."""
    for i in m.rows(Kind.AXI_W, 4):
        if m.cqe(i)[24] == 1:
            continue
        b = [j for j in m.rows(Kind.AXI_B, 5) if j < i and m.rec["pe"][j] == m.rec["pe"][i]]
        other = m.rows(Kind.AXI_W, 4)
        if not b or ((other > b[-1]) & (other < i) & (m.rec["pe"][other] == m.rec["pe"][i])).any():
            continue
        rec = m.rec
        m.move(int(i), b[-1])
        if C.CQE_DATA in run_mutant(m, True).counts:
            return
        m.rec = rec
    raise AssertionError


def _cqe_before_response(m: Mutant) -> None:
    """A CQE of a READ moves in front of the response that completes it."""
    for i in m.rows(Kind.AXI_W, 4):
        if m.cqe(i)[24] != 2:
            continue
        rx = [
            j
            for j in m.rows(Kind.RXPKT)
            if j < i and m.rec["pe"][j] == m.rec["pe"][i] and m.frame(j)[42] == 0x10
        ]
        rec = m.rec
        if rx:
            m.move(int(i), rx[-1])
            if C.CQE_EARLY in run_mutant(m, True).counts:
                return
            m.rec = rec
    raise AssertionError


def cqe_of(op: int, at: int, bits: int) -> Callable[[Mutant], None]:
    """Flip bits of the last CQE of an operation."""

    def mutate(m: Mutant) -> None:
        i = [i for i in m.rows(Kind.AXI_W, 4) if m.cqe(i)[24] == op][-1]
        m.cqe(i)[at] ^= bits

    return mutate


def _ignored_slot(m: Mutant) -> None:
    """A CQE of an ignore_overrun CQ beyond slot 0."""
    i = m.middle(m.rows(Kind.AXI_W, 4))
    m.rec["addr"][i] += 64


# ------------------------------------------------------------------ atomics at the memory port


def _atomic_elsewhere(m: Mutant) -> None:
    """A read of a word that nobody asks for, with nothing else about."""
    run_ = final(m)
    new = copy_of(m, [run_.read], int(m.rec["time"][-1]))
    new["addr"] += 64
    m.rec = np.append(m.rec, new)


def _atomic_early(m: Mutant) -> None:
    """The first atomic of a PE reads before its request arrived."""
    m.rec["aux0"][runs(m)[0].read] = 1


def _atomic_overlap(m: Mutant) -> None:
    """The next one is asked for before the response of the one before."""
    every = runs(m)
    for a, b in zip(every, every[1:], strict=False):
        if a.pe == b.pe and a.response >= 0:
            keep = int(m.rec["aux0"][b.read])
            m.rec["aux0"][b.read] = m.rec["time"][a.response]
            if set(run_mutant(m, True).counts) == {C.ATOMIC_OVERLAP}:
                return
            m.rec["aux0"][b.read] = keep
    raise AssertionError


def _atomic_beats(m: Mutant) -> None:
    m.rec["len"][runs(m)[0].read] = 2


def _atomic_place(m: Mutant) -> None:
    """The write goes to the word beside."""
    run_ = final(m)
    m.rec["addr"][run_.write] ^= 8
    strobe = int(m.rec["aux0"][run_.write])
    lane = (strobe & -strobe).bit_length() - 1
    moved = lane ^ 8
    m.rec["aux0"][run_.write] = strobe >> lane << moved
    lanes = data(m, run_.write)
    lanes[moved : moved + 8] = lanes[lane : lane + 8].copy()


def _atomic_width(m: Mutant) -> None:
    """8 bytes where 4 are asked for."""
    run_ = next(
        r for r in reversed(runs(m)) if r.write >= 0 and m.rec["aux1"][r.write] == 4 and not r.addr & 7
    )
    strobe = int(m.rec["aux0"][run_.write])
    m.rec["aux0"][run_.write] = strobe | strobe << 4
    m.rec["aux1"][run_.write] = 8


def _atomic_value(m: Mutant) -> None:
    run_ = final(m)
    strobe = int(m.rec["aux0"][run_.write])
    data(m, run_.write)[(strobe & -strobe).bit_length() - 1] ^= 0x10


def _write_after_compare(m: Mutant) -> None:
    """A failed compare writes the old value back."""
    every = runs(m)
    run_ = next(r for r in every if r.write < 0 and r.read > m.rec.size // 3)
    like = next(
        r for r in every if r.write >= 0 and m.rec["aux1"][r.write] == 8 and r.addr & 63 == run_.addr & 63
    )
    old = int.from_bytes(m.frame(answer_of(m, run_))[58:66].tobytes(), "big")
    new = m.rec[[like.write, like.commit, like.response]].copy()
    new["time"], new["pe"] = m.rec["time"][run_.read] + 1, run_.pe
    new["addr"][:2] = run_.addr
    new["off"][0] = m.side.size
    lanes = np.zeros(64, np.uint8)
    lanes[run_.addr & 63 :][:8] = np.frombuffer(old.to_bytes(8, "little"), np.uint8)
    m.side = np.append(m.side, lanes)
    m.rec = np.insert(m.rec, run_.read + 1, new)


def _atomic_write_missing(m: Mutant) -> None:
    run_ = final(m)
    m.drop(run_.write, run_.commit, run_.response)


def _write_without_read(m: Mutant) -> None:
    run_ = final(m)
    m.rec = np.append(m.rec, copy_of(m, [run_.write, run_.response], int(m.rec["time"][-1])))


def _executed_twice(m: Mutant) -> None:
    """An atomic whose compare failed runs a second time before its answer."""
    run_ = next(
        r for r in runs(m) if r.write < 0 and m.rec["time"][answer_of(m, r)] - m.rec["time"][r.read] > 4
    )
    new = m.rec[run_.read : run_.read + 1].copy()
    new["aux0"] = new["time"] + 1
    new["time"] += 2
    at = int(np.searchsorted(m.rec["time"], new["time"][0], side="right"))
    m.rec = np.insert(m.rec, at, new)


def _added_twice(m: Mutant) -> None:
    """A fetch and add runs twice and writes both times."""
    every = [r for r in runs(m) if r.write >= 0]
    run_ = every[len(every) // 2]
    answer = answer_of(m, run_)
    new = m.rec[run_.rows].copy()
    gap = int(m.rec["time"][answer]) - int(m.rec["time"][run_.response])
    assert gap >= 2
    new["time"] = m.rec["time"][run_.response] + 1
    new["aux0"][0] = m.rec["time"][run_.response] + 1
    m.rec = np.insert(m.rec, run_.response + 1, new)


def _locked_word(m: Mutant) -> None:
    """An inbound WRITE to the word between the read and the write response of an atomic."""
    for run_ in runs(m):
        if run_.response < 0:
            continue
        word = run_.addr & ~7
        for i in [i for i in m.rows(Kind.AXI_W, 3) if i > run_.response and m.rec["pe"][i] == run_.pe][:1]:
            strobe = int(m.rec["aux0"][i])
            start = int(m.rec["addr"][i]) + (strobe & -strobe).bit_length() - 1
            if start < word + 8 and word < start + int(m.rec["aux1"][i]):
                rec = m.rec
                m.move(i, run_.response)
                if C.ATOMIC_LOCK in run_mutant(m, True).counts:
                    return
                m.rec = rec
    raise AssertionError


def _read_under_a_write(m: Mutant) -> None:
    """An atomic's read is asked for before the response of an inbound WRITE to its word."""
    every = runs(m)
    ends = [0, 0]
    for run_ in every:
        word, since = run_.addr & ~7, ends[run_.pe]
        ends[run_.pe] = int(m.rec["time"][run_.rows[-1]])
        b = [j for j in m.rows(Kind.AXI_B, 3) if j < run_.read and m.rec["pe"][j] == run_.pe]
        w = [j for j in m.rows(Kind.AXI_W, 3) if m.rec["pe"][j] == run_.pe]
        if not b:
            continue
        strobe = int(m.rec["aux0"][w[len(b) - 1]])
        start = int(m.rec["addr"][w[len(b) - 1]]) + (strobe & -strobe).bit_length() - 1
        if start < word + 8 and word < start + int(m.rec["aux1"][w[len(b) - 1]]):
            keep = int(m.rec["aux0"][run_.read])
            if m.rec["time"][b[-1]] <= since + 1:
                continue
            m.rec["aux0"][run_.read] = m.rec["time"][b[-1]]
            if set(run_mutant(m, True).counts) == {C.ATOMIC_LOCK}:
                return
            m.rec["aux0"][run_.read] = keep
    raise AssertionError


def _old_value(m: Mutant) -> None:
    i = m.packet(is_op(0x12))
    m.frame(i)[65] ^= 1
    m.icrc(i)


def _not_executed(m: Mutant) -> None:
    m.drop(*final(m).rows)


def _answered_early(m: Mutant) -> None:
    """An ATOMIC ACK leaves before the write response."""
    run_ = next(r for r in runs(m) if r.response >= 0 and r.read > m.rec.size // 3)
    m.move(run_.response, answer_of(m, run_) + 1)


def _atomic_fault(m: Mutant) -> None:
    m.rec["flags"][final(m).response] = 2


def _atomic_read_fault(m: Mutant) -> None:
    m.rec["flags"][final(m, written=False).read] = 2


def _response_without_write(m: Mutant) -> None:
    m.rec = np.append(m.rec, copy_of(m, [final(m).response], int(m.rec["time"][-1])))


# ------------------------------------------------------------------ events, counters


def _event_from_nowhere(m: Mutant) -> None:
    """The output rises before any CQ is armed."""
    i = int(np.flatnonzero(m.rec["kind"] == Kind.EVENT)[0])
    first = int(m.rows(Kind.RXPKT)[0])
    m.insert(first, kind=Kind.EVENT, pe=int(m.rec["pe"][i]), flags=1)


def _event_lost(m: Mutant) -> None:
    """A pending bit is missing where CQ_EVENT is read long after."""
    for i in [i for i in m.rows(Kind.MMIO_R)[::-1] if m.rec["addr"][i] == Csr.CQ_EVENT]:
        keep = int(m.rec["data"][i])
        m.rec["data"][i] = 0
        if run_mutant(m, True).counts:
            return
        m.rec["data"][i] = keep
    raise AssertionError


def _event_too_many(m: Mutant) -> None:
    for i in [i for i in m.rows(Kind.MMIO_R)[::-1] if m.rec["addr"][i] == Csr.CQ_EVENT]:
        for cq in [c for c in m.sim.cqs if c.pe == m.rec["pe"][i]]:
            if not int(m.rec["data"][i]) >> cq.cqn & 1:
                m.rec["data"][i] |= np.uint64(1 << cq.cqn)
                if run_mutant(m, True).counts:
                    return
    raise AssertionError


def _event_not_shown(m: Mutant) -> None:
    """Armed, a CQE, and nothing at the output until the end."""
    m.drop(
        *[i for i in range(m.rec.size) if m.rec["kind"][i] == Kind.EVENT],
        *[i for i in range(m.rec.size) if m.rec["addr"][i] == Csr.CQ_EVENT and m.rec["kind"][i] in (4, 5)],
    )
    m.insert(m.rec.size, kind=Kind.NOTE)
    m.rec["time"][-1] += 500


def counted(counter: Cnt) -> Callable[[Mutant], None]:
    """A NIC counts once too often."""

    def mutate(m: Mutant) -> None:
        m.counters[0][counter] += 1

    return mutate


FIELDS = (
    ("destination MAC", 3, 1), ("TOS", 15, 4), ("DF", 20, 0x40), ("source port", 35, 1),
    ("UDP length", 39, 4), ("SE", 43, 0x80), ("MigReq", 43, 0x40), ("P_Key", 45, 1), ("BECN", 46, 0x40),
    ("AckReq", 50, 0x80),
)  # fmt: skip
RETH = (("VA", 60, 1), ("R_Key", 65, 1), ("DMA length", 69, 1))
AETH = (("syndrome", 54, 1), ("MSN", 57, 1))
NEAR = frozenset({C.CONTENT, C.COUNTER})
ATOMICS = frozenset({c for c in Check if c.startswith("atomic.")})


def atomic_fields(name: str) -> tuple[tuple[str, int, int], ...]:
    """Fields of an atomic request; an operand by its last byte and its first."""
    _, _, size, count, _, _ = OPS[name]
    out = [("VA", 59, 1), ("R_Key", 64, 2)]
    for i in range(count):
        out += [(f"operand {i}", 66 + size * i + size - 1, 1), (f"operand {i}", 66 + size * i, 0x80)]
    return tuple(out)


#: BTH opcode -> fields: every header field of every new packet kind
KINDS: dict[str, tuple[int, tuple[tuple[str, int, int], ...]]] = {
    "READ request": (0x0C, FIELDS + RETH),
    "READ First": (0x0D, FIELDS + AETH),
    "READ Middle": (0x0E, FIELDS),
    "READ Last": (0x0F, FIELDS + AETH),
    "READ Only": (0x10, FIELDS + AETH),
    "ATOMIC ACK": (0x12, FIELDS + AETH),
    **{name: (OPS[name][1], FIELDS + atomic_fields(name)) for name in ATOMIC_NAMES},
}


@pytest.mark.parametrize("kind", KINDS)
def test_header_fields(kind: str) -> None:
    """A wrong byte in each header field, each in a packet of its own: one finding each, at that packet."""
    opcode, fields = KINDS[kind]
    m = Mutant(stream("headers"))
    rows = [i for i in m.rows(Kind.TXPKT) if m.frame(i)[42] == opcode]
    assert len(rows) >= len(fields)
    for row, (_, at, bits) in zip(rows, fields, strict=False):
        m.frame(row)[at] ^= bits
        m.icrc(row)
    found: list[Finding] = []
    exact = Exact(State(m.sim.configs), found.append)
    exact.judge(m.rec, m.side)
    assert [(f.check, f.position) for f in found] == [(C.TX_HEADER, i) for i in rows[: len(fields)]]
    for finding, (_, at, _) in zip(found, fields, strict=True):
        assert f"(frame offset {at})" in finding.field or at == 39


CASES: list[tuple[str, Case]] = [
    ("mix", Case("READ response: opcode First as Middle", flip(42, 3, 0x0D), {C.TX_HEADER})),
    ("mix", Case("READ payload", _read_payload, {C.TX_PAYLOAD})),
    ("mix", Case("READ response: ICRC", _read_icrc, {C.TX_ICRC})),
    ("mix", Case("ATOMIC ACK: ICRC", _atomic_icrc, {C.TX_ICRC})),
    ("mix", Case("READ response: pad", _read_pad, {C.TX_PAD})),
    ("mix", Case("READ response: PSN", _response_psn(0x0E), {C.RESPONSE_PSN})),
    ("mix", Case("ATOMIC ACK: PSN", _response_psn(0x12), {C.RESPONSE_PSN})),
    ("mix", Case("READ response twice", _response_twice, {C.RESPONSE_PSN},
                 frozenset({C.TX_HEADER, C.TX_PAYLOAD, C.COUNTER, C.TX_PAD, C.TX_UNEXPECTED}))),
    ("mix", Case("data response from nowhere", _response_from_nowhere, {C.TX_UNEXPECTED}, NEAR)),
    ("same", Case("last READ response missing", _response_missing(0x10, 0x0F), {C.RESPONSE_MISSING},
                  NEAR | {C.RESPONSE_ORDER})),
    ("mix", Case("READ response lost", _response_lost, {C.RESPONSE_PSN}, NEAR)),
    ("mix", Case("ATOMIC ACK missing", _response_missing(0x12), {C.RESPONSE_MISSING},
                 NEAR | {C.RESPONSE_ORDER})),
    ("mix", Case("ACK overtakes a READ response", _ack_before_read, {C.RESPONSE_ORDER},
                 frozenset({C.ACK_PSN}))),
    ("same", Case("READ served before the WRITE in front", _read_before_writes, {C.READ_EARLY, C.ACK_EARLY},
                  frozenset({C.READ_EARLY, C.TX_PAYLOAD}))),
    ("same", Case("READ older than its request", _stale_read, {C.TX_PAYLOAD})),
    ("same", Case("READ gather before the write response", _gather_early, {C.READ_EARLY})),
    ("mix", Case("result elsewhere", _result_elsewhere, {C.RESULT_OUTSIDE})),
    ("mix", Case("result written twice", _result_more, {C.RESULT_OUTSIDE})),
    ("mix", Case("result too short", _result_short, {C.RESULT_OUTSIDE},
                 NEAR | {C.CQE_DATA, C.RESULT_MISSING, C.OUTSTANDING, C.TX_RD_LIMIT, C.WRITE_ORDER})),
    ("mix", Case("result strobes", _result_strobes, {C.WRITE_STROBE})),
    ("mix", Case("result lost", _result_lost, {C.RESULT_MISSING, C.CQE_DATA}, NEAR | {C.OUTSTANDING})),
    ("mix", Case("result answered twice", _result_answered_alone, {C.WRITE_ORDER})),
    ("mix", Case("result write fails where memory is mapped", _result_fault, {C.AXI_RESP, C.CQE_STATUS},
                 NEAR | {C.CQE_FIELD})),
    ("mix", Case("CQE before its data", _cqe_before_data, {C.CQE_DATA}, frozenset({C.CQE_TS}))),
    ("mix", Case("CQE before its response", _cqe_before_response, {C.CQE_EARLY},
                 frozenset({C.CQE_TS, C.CQE_DATA}))),
    ("mix", Case("CQE of a READ: length", cqe_of(2, 8, 1), {C.CQE_FIELD}, NEAR)),
    ("mix", Case("CQE of an atomic: length", cqe_of(27, 8, 0x18), {C.CQE_FIELD}, NEAR)),
    ("mix", Case("CQE of an atomic: opcode", cqe_of(33, 24, 1), {C.CQE_FIELD}, NEAR)),
    ("ignore", Case("ignore_overrun: slot", _ignored_slot, {C.CQE_SLOT}, NEAR)),
    ("ignore", Case("ignore_overrun: owner", cqe_of(2, 31, 0x80), {C.CQE_OWNER}, NEAR)),
    ("mix", Case("atomic on another word", _atomic_elsewhere, {C.ATOMIC_UNEXPECTED})),
    ("single", Case("atomic before its request", _atomic_early, {C.ATOMIC_EARLY})),
    ("mix", Case("two atomics at a time", _atomic_overlap, {C.ATOMIC_OVERLAP}, frozenset({C.ATOMIC_EARLY}))),
    ("mix", Case("atomic read of two beats", _atomic_beats, {C.ATOMIC_PLACE})),
    ("single", Case("atomic writes the word beside", _atomic_place, {C.ATOMIC_PLACE}, NEAR | ATOMICS)),
    ("single", Case("atomic writes 8 bytes for 4", _atomic_width, {C.ATOMIC_PLACE}, NEAR | ATOMICS)),
    ("single", Case("atomic writes a wrong value", _atomic_value, {C.ATOMIC_NEW}, NEAR)),
    ("single", Case("write after a failed compare", _write_after_compare, {C.ATOMIC_COMPARE})),
    ("single", Case("atomic does not write", _atomic_write_missing, {C.ATOMIC_MISSING}, NEAR)),
    ("single", Case("atomic write without a read", _write_without_read, {C.ATOMIC_WRITE}, NEAR)),
    ("single", Case("atomic executed twice", _executed_twice, {C.ATOMIC_TWICE},
                    frozenset({C.ATOMIC_OVERLAP}))),
    ("single", Case("fetch and add executed twice", _added_twice, {C.ATOMIC_TWICE},
                    ATOMICS - {C.ATOMIC_LOCK} | NEAR)),
    ("word", Case("WRITE to the locked word", _locked_word, {C.ATOMIC_LOCK}, ATOMICS | NEAR)),
    ("word", Case("atomic under a WRITE", _read_under_a_write, {C.ATOMIC_LOCK})),
    ("mix", Case("old value", _old_value, {C.ATOMIC_OLD})),
    ("single", Case("answered without execution", _not_executed, {C.ATOMIC_NOT_RUN}, NEAR)),
    ("single", Case("ATOMIC ACK before the write response", _answered_early, {C.ATOMIC_ACK_EARLY},
                    frozenset({C.ATOMIC_OVERLAP, C.ATOMIC_EARLY, C.ATOMIC_UNEXPECTED}))),
    ("single", Case("atomic write fails where memory is mapped", _atomic_fault, {C.AXI_RESP},
                    NEAR | ATOMICS | {C.NAK_MISSING, C.TX_UNEXPECTED, C.CQE_EARLY, C.NAK})),
    ("single", Case("atomic read fails where memory is mapped", _atomic_read_fault, {C.AXI_RESP},
                    NEAR | ATOMICS | {C.NAK_MISSING, C.TX_UNEXPECTED, C.CQE_EARLY, C.NAK})),
    ("single", Case("response of an atomic without a write", _response_without_write, {C.WRITE_ORDER}, NEAR)),
    ("events", Case("event from nowhere", _event_from_nowhere, {C.CQ_EVENT})),
    ("events", Case("event lost", _event_lost, {C.CQ_EVENT})),
    ("events", Case("event of another CQ", _event_too_many, {C.CQ_EVENT})),
    ("events", Case("event not shown", _event_not_shown, {C.CQ_EVENT})),
    *(("mix", Case(f"counter {n.name}", counted(n), {C.COUNTER}))
      for n in (Cnt.READ, Cnt.ATOMIC, Cnt.BUS_ATOMIC, Cnt.BUS_RESULT, Cnt.RD_TOO_MANY)),
]  # fmt: skip


@functools.cache
def damaged(name: str, fault: str) -> Mutant:
    """The stream with a fault in it; made once, as some faults are searched for."""
    m = Mutant(stream(name))
    next(case for n, case in CASES if (n, case.name) == (name, fault)).mutate(m)
    return m


@pytest.mark.parametrize("exact", [False, True], ids=["batch", "exact"])
@pytest.mark.parametrize(
    ("name", "case"), CASES, ids=[f"{n}-{c.name}".replace(" ", "-").replace(":", "") for n, c in CASES]
)
def test_planted_fault(name: str, case: Case, exact: bool) -> None:
    """Exactly the check of the fault turns red, in both engines."""
    m = damaged(name, case.name)
    judge = run_mutant(m, exact)
    red = set(judge.counts)
    assert case.red <= red <= case.red | case.also, judge.report()
    for finding in judge.findings:
        assert finding.expected != finding.got
        assert finding.render().count("\n") == 2


# ------------------------------------------------------------------ NICs that break a rule


class Lawless(Sim):
    """A NIC that does not know one rule: "fence", "limit", "flight", "order" (of WRITEs and atomics)."""

    def __init__(self, knobs: Knobs, rule: str) -> None:
        super().__init__(knobs)
        self.rule = rule

    def may_start(self, qp: Qp, w: Wqe) -> bool:
        """All rules but one."""
        if w.index - qp.live[0].index >= 16 and self.rule != "flight":
            return False
        if w.fence and qp.reads and self.rule != "fence":
            return False
        return w.op == "write" or self.rule == "limit" or len(qp.reads) < qp.ctx.max_rd_atomic

    def waits(self, b: Burst) -> bool:
        """Whether a WRITE keeps behind the atomics of its QP."""
        return self.rule != "order" and super().waits(b)


@pytest.mark.parametrize(
    ("rule", "check", "changes"),
    [
        ("fence", C.TX_FENCE, {"ops": MIX, "fence": 0.3}),
        ("limit", C.TX_RD_LIMIT, {"ops": MIX, "max_rd": 2}),
        ("limit", C.TX_RD_LIMIT, {"ops": ("fa64",), "max_rd": 1, "latency": 100}),
        ("order", C.ATOMIC_OVERTAKEN, {"ops": ("write", "fa64", "mcas32"), "latency": 100}),
        ("flight", C.TX_IN_FLIGHT, {"ops": MIX, "depth": 64, "cq_depth": 64, "latency": 200, "wqes": 60}),
        (
            "flight",
            C.TX_IN_FLIGHT,
            {"ops": ("write",), "depth": 64, "cq_depth": 64, "latency": 200, "wqes": 60},
        ),
    ],
)
def test_broken_rule(rule: str, check: Check, changes: dict[str, object]) -> None:
    """A requester that ignores a fence, max_rd_atomic or the limit of WQEs in flight."""
    knobs = simulate(wqes=1).k
    sim = Lawless(Knobs(**{**knobs.__dict__, "wqes": 40, **changes}), rule).run()  # type: ignore[arg-type]
    assert set(run(sim, exact=True).counts) == {check}
    assert set(run(sim).counts) == {check}


@pytest.mark.parametrize("ops", [("read", "write"), ("write",)])
def test_window_left(ops: tuple[str, ...]) -> None:
    """More unacknowledged PSNs than the window holds; only a READ that is alone may be longer."""
    sim = simulate(ops=ops, sizes=(0, 3000), mtus=(1,), depth=64, cq_depth=64, latency=100)
    judge = Judge(sim.configs, Params(psn_window=12), exact=True)
    judge.feed(sim.records, sim.side)
    assert set(end(judge, sim).counts) == {C.TX_WINDOW}


@pytest.mark.parametrize("syndrome", [0x61, 0x62, 0x63])
@pytest.mark.parametrize("opcode", [0x0D, 0x0E, 0x10, 0x12])
def test_nak_of_a_good_request(opcode: int, syndrome: int) -> None:
    """A READ or atomic that nothing is wrong with is refused when its turn comes."""
    m = Mutant(stream("mix"))
    row = m.packet(is_op(opcode))
    f = m.frame(row)
    qp = next(
        q for q in m.sim.qps
        if q.pe == m.rec["pe"][row] and q.ctx.peer_qpn == int.from_bytes(f[47:50].tobytes(), "big")
    )  # fmt: skip
    psn, msn = (int.from_bytes(f[a:b].tobytes(), "big") for a, b in ((51, 54), (55, 58)))
    frame = m.sim.frame(qp, 0x11, psn, False, (syndrome << 24 | msn).to_bytes(4, "big"), b"")
    m.insert(row, kind=Kind.TXPKT, pe=qp.pe, len=len(frame), off=m.side.size)
    m.side = np.concatenate((m.side, np.frombuffer(frame + bytes(64), np.uint8)))
    red = set(run_mutant(m, True).counts)
    assert red == {C.NAK, C.COUNTER}


#: fault and how far its NAK's count is made wrong
ENDS = [
    ("read:target", 30), ("fa64:target", 1), ("mfa32:misaligned", 1), ("read:rkey", 1), ("write:target", 30),
]  # fmt: skip


def ended(fault: str) -> tuple[Mutant, int]:
    """A stream in which a WQE ends in a NAK, and the NAK."""
    m = Mutant(simulate(one_way=True, qps=1, ops=MIX, faults={(0, 1, 12): fault}))
    assert not run_mutant(m, True).findings
    return m, next(i for i in m.rows(Kind.TXPKT) if m.frame(i)[42] == 0x11 and m.frame(i)[54] > 0x60)


@pytest.mark.parametrize(("fault", "wrong"), ENDS)
def test_answer_behind_a_nak(fault: str, wrong: int) -> None:
    """A NAK that ends a QP is the last thing that its responder says."""
    m, nak = ended(fault)
    m.rec = np.append(m.rec, m.rec[nak : nak + 1])
    assert C.TX_UNEXPECTED in run_mutant(m, True).counts


@pytest.mark.parametrize(("fault", "wrong"), ENDS)
def test_nak_with_a_wrong_count(fault: str, wrong: int) -> None:
    """The MSN of a NAK, for each way in which a request ends in one."""
    m, nak = ended(fault)
    f = m.frame(nak)
    msn = int.from_bytes(f[55:58].tobytes(), "big") - wrong
    f[55:58] = np.frombuffer((msn & 0xFFFFFF).to_bytes(3, "big"), np.uint8)
    m.icrc(nak)
    assert set(run_mutant(m, True).counts) == {C.ACK_MSN}


def test_every_check_has_a_planted_fault() -> None:
    """No check without a fault that turns it red, here or among the WRITEs."""
    elsewhere = {
        C.ASYNC, C.NAK_MISSING, C.DB_AMBIGUOUS, C.TX_FENCE, C.TX_RD_LIMIT, C.TX_IN_FLIGHT, C.TX_WINDOW,
        C.ATOMIC_OVERTAKEN, C.READ_GONE, C.TX_RETRY_LIMIT,
    }  # fmt: skip
    red = set().union(*(c.red for c in WRITE_CASES), *(c.red for _, c in CASES))
    assert red | elsewhere == set(Check)


def test_atomic_checks_have_their_scoreboard() -> None:
    """The scoreboard of atomics reports by the part before the dot."""
    assert len(ATOMICS) >= 12
    assert all(c.value.partition(".")[0] == "atomic" for c in ATOMICS)
