"""The batch engine against the exact engine: the same answers and the same state, wherever the stream is cut.

Sweep: random mixes of WRITEs, READs and atomics of all sizes, between 2 to 4 simulated NICs, with fences,
small limits, contended words, unsignalled WQEs; cut at random places.
Stimulus: the synthetic streams of judge_stream, legal ones and such with one fault planted.
Checks: after every cut the state of a judge with both engines equals that of the exact engine alone, column
by column and object by object; regular traffic is judged by the batch engine; every planted fault turns both
red, with the same findings.
Timing: none but the order of records. Not proved here: that the exact engine is right, test_judge does that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymodel.nic.judge import Judge, Kind
from pymodel.nic.judge_entries import READ, Execution, InboundWrite, Request
from pymodel.nic.judge_state import State
from pymodel.nic.params import Cnt
from tests.model.judge_stream import ATOMIC_NAMES, Knobs, Sim

ALL_OPS = ("write", "read", *ATOMIC_NAMES)
MIXED = Knobs(seed=5, n_pes=2, qps=2, wqes=30, sizes=(0, 3000), ops=ALL_OPS, depth=16, cq_depth=16)


def simulate(**changes: object) -> Sim:
    """A fresh legal stream; MIXED with changes."""
    return Sim(Knobs(**{**MIXED.__dict__, **changes})).run()  # type: ignore[arg-type]


# ------------------------------------------------------------------ state, in a form that compares


def request(e: Request) -> tuple[Any, ...]:
    """A READ or atomic of a responder's table."""
    return (
        e.gq, e.number, e.op, e.va, e.rkey, e.length, e.packets, e.msn, e.sent, e.since, e.position,
        e.operands, e.optional, e.contested, e.gathered,
    )  # fmt: skip


def execution(run: Execution | None) -> tuple[Any, ...] | None:
    """An atomic at the memory port; the order of its candidates is of no account."""
    if run is None:
        return None
    of = sorted((e.gq, e.number) for e in run.of)
    return run.addr, run.old, run.asked, run.read, run.new, run.size, run.visible, run.done, run.fault, of


def payload(e: InboundWrite) -> tuple[Any, ...]:
    """Payload on its way; its bytes as far as memory does not have them."""
    shown = e.length if e.payload is None else e.done - sum(n for _, n in e.pieces)
    rest = b"" if e.payload is None else e.payload[shown:]
    return (
        e.gq, e.cum, e.va, e.length, e.done, e.unanswered, list(e.open), list(e.pieces), e.wqe, e.optional,
        e.key, e.contested, rest,
    )  # fmt: skip


def objects(s: State) -> dict[str, Any]:
    """Everything of the state that is no column."""
    out: dict[str, Any] = {}
    for name in ("inbound", "results"):
        out[name] = [[payload(e) for e in queue] for queue in getattr(s, name)]
    for name, queues in (("bursts", s.inbound), ("result_bursts", s.results)):
        place = [{id(e): i for i, e in enumerate(queue)} for queue in queues]
        pairs = zip(getattr(s, name), place, strict=True)
        out[name] = [[where.get(id(e), -1) for e in q] for q, where in pairs]
    out["cqe_bursts"] = [list(q) for q in s.cqe_bursts]
    out["cqe_slots"] = [list(q) for q in s.cqe_slots]
    out["q_reads"] = {g: list(q) for g, q in s.q_reads.items() if q}
    out["r_reads"] = {g: [request(e) for e in q] for g, q in s.r_reads.items() if q}
    out["runs"] = [[execution(run) for run in q] for q in s.runs]
    out["last_run"] = [execution(run) for run in s.last_run]
    for name in ("r_nak", "r_nak_before", "asyncs", "cq_wait"):
        out[name] = getattr(s, name)
    out["r_dup"] = {g: list(q) for g, q in s.r_dup.items() if q}
    # only what a READ that may execute can have read counts; READs of a ring are the exact engine's
    held = [e for q in s.r_reads.values() for e in q if e.kind == READ and e.since < 1 << 62]
    for pe, log in enumerate(s.overwritten):
        first = min((e.position for e in held if s.q_pe[e.gq] == pe), default=1 << 62)
        some = [entry for entry in log if entry[0] > first]
        out[f"overwritten {pe}"] = [
            e for e in some if not s.meets_ring(np.array([e[1]]), np.array([len(e[2])]))
        ]
    out["position"], out["cycle"] = s.position, s.cycle
    return out


def columns(s: State) -> dict[str, np.ndarray]:
    """Every column: of QPs, responders, CQs whole, of WQEs and messages the live rows; memory, counters."""
    out = {k: v for k, v in vars(s).items() if isinstance(v, np.ndarray) and k[:2] in ("q_", "r_", "c_")}
    rows = np.concatenate(
        [s.q_row[g] + (np.arange(s.q_ret[g], s.q_pi[g]) & s.q_mask[g]) for g in range(s.q_pi.size)]
    )
    # w_sent is the batch engine's own
    live = {k: v[rows] for k, v in vars(s).items() if isinstance(v, np.ndarray) and k[:2] == "w_"}
    out |= {k: v for k, v in live.items() if k != "w_sent"}
    ends = [
        [int(s.e_end[g, m % s.e_rows]) for m in range(max(0, int(s.r_msn[g]) - 40), int(s.r_msn[g]))]
        for g in range(s.r_msn.size)
    ]
    out["e_end"] = np.array([x for end in ends for x in end])
    out["counters"], out["visible"], out["memory"] = s.counters, s.visible, s.memory.bytes
    out["dirty"] = np.concatenate([s.memory.dirty_pages(pe) for pe in range(len(s.pes))])
    return out


def assert_same(a: State, b: State, where: str) -> None:
    """State a, of both engines, equals b, of the exact one."""
    left, right = columns(a), columns(b)
    for name, column in left.items():
        np.testing.assert_array_equal(column, right[name], f"{name} {where}")
    mine, its = objects(a), objects(b)
    for name, value in mine.items():
        assert value == its[name], f"{name} {where}"


def cuts(sim: Sim, seed: int, sizes: list[int]) -> list[np.ndarray]:
    """The stream in pieces of random sizes."""
    rng = np.random.default_rng(seed)
    places = np.cumsum(rng.choice(sizes, sim.records.size // min(sizes) + 1))
    return np.split(sim.records, places[places < sim.records.size])


def both(sim: Sim, parts: list[np.ndarray]) -> tuple[Judge, Judge]:
    """Judge a stream by both engines and by the exact one alone, the state compared after each part."""
    fast, exact = Judge(sim.configs), Judge(sim.configs, exact=True)
    for i, part in enumerate(parts):
        for judge in (fast, exact):
            judge.feed(part, sim.side)
            judge.flush()
        assert_same(fast.state, exact.state, f"after part {i}, record {fast.state.position}")
    assert not fast.findings and not exact.findings, fast.report() + exact.report()
    return fast, exact


# ------------------------------------------------------------------ regular streams

STREAMS: dict[str, dict[str, object]] = {
    "mixed": {},
    "reads": {"ops": ("read",), "mtus": (1, 2)},
    "reads and writes": {"ops": ("read", "write", "write"), "n_pes": 3, "qps": 1},
    "atomics": {"ops": ATOMIC_NAMES, "words": 64, "wqes": 60},
    "contended": {"ops": ("fa64", "fa64", "cas64", "mfa32"), "words": 1, "n_pes": 3, "qps": 1},
    "long reads": {"ops": ("read", "write"), "sizes": (1, 40000), "wqes": 12, "mtus": (1,)},
    "empty": {"sizes": (0, 0)},
    "fences": {"fence": 0.3},
    "limits": {"max_rd": 2, "max_dest": 2},
    "silent": {"silent": 0.6, "wqes": 50},
    "slow": {"latency": 400, "depth": 64, "cq_depth": 64},
    "shared CQ": {"shared_cq": True, "cq_depth": 64},
    "small": {"sizes": (64, 64), "wqes": 60, "lazy_cq": 5},
    "same place": {"ops": ("read", "write"), "same_place": 0.5},
}


@pytest.mark.parametrize("name", STREAMS)
def test_same_state(name: str) -> None:
    """The stream in pieces and whole: no finding, the same state, and the batch engine takes all of it."""
    sim = simulate(**STREAMS[name])
    _, exact = both(sim, cuts(sim, 1, [60, 150, 700]))
    whole = Judge(sim.configs)
    whole.feed(sim.records, sim.side)
    assert not whole.findings, whole.report()
    assert_same(whole.state, exact.state, "at the end")
    assert whole.batch_records == sim.records.size, whole.batch.why


@pytest.mark.parametrize("seed", range(6))
def test_any_mix(seed: int) -> None:
    """Random knobs, random cuts, single records included."""
    rng = np.random.default_rng(seed)
    sim = simulate(
        seed=seed, n_pes=2 + seed % 2, qps=int(rng.integers(1, 3)), wqes=24,
        sizes=(0, int(rng.choice([64, 700, 5000]))), depth=int(rng.choice([4, 16, 32])), cq_depth=32,
        silent=float(rng.choice([0, 0.4])), fence=float(rng.choice([0, 0.2])),
        words=int(rng.choice([1, 4, 40])), max_rd=int(rng.choice([1, 3, 16])),
        latency=int(rng.choice([5, 40, 300])), word_writes=float(rng.choice([0, 0.1])),
        same_place=float(rng.choice([0, 0.3])),
    )  # fmt: skip
    fast, _ = both(sim, cuts(sim, seed + 100, [1, 7, 30, 60, 150, 400]))
    assert fast.batch_records and fast.exact_records


# ------------------------------------------------------------------ damaged streams


def bytes_of(sim: Sim, i: int) -> int:
    """Bytes in the side buffer that belong to a record."""
    r = sim.records[i]
    if r["kind"] in (Kind.STORE, Kind.TXPKT, Kind.RXPKT):
        return int(r["len"])
    return 64 if r["kind"] == Kind.AXI_W and r["id"] in (2, 4) else 0


def damage(sim: Sim, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, str]:
    """(records, side buffer, what was done) with one thing wrong somewhere, or at another place."""
    records, side = sim.records.copy(), sim.side.copy()
    i = int(rng.integers(records.size // 4, records.size))
    how = str(rng.choice(["byte", "field", "drop", "twice", "later", "earlier"]))
    if how == "byte":
        while not bytes_of(sim, i):
            i = (i + 1) % records.size
        at = int(records["off"][i]) + int(rng.integers(bytes_of(sim, i)))
        side[at] ^= 1 << int(rng.integers(8))
    elif how == "field":
        name = str(rng.choice(["addr", "len", "aux0", "aux1", "flags", "data", "id", "time"]))
        change = int(rng.choice([1, 2, 8, 64, 4096]))
        records[name][i] += np.array(change).astype(records.dtype[name])
        how = f"{name} + {change}"
    elif how == "drop":
        records = np.delete(records, i)
    elif how == "twice":
        records = np.insert(records, i, records[i])
    else:
        by = int(rng.choice([1, 3, 20, 200])) * (1 if how == "later" else -1)
        to = int(np.clip(i + by, 0, records.size - 1))
        order = np.insert(np.delete(np.arange(records.size), i), to, i)
        times = records["time"]
        records = records[order]
        records["time"] = times
        how = f"moved by {by}"
    return records, side, f"record {i}: {how}"


def verdict(sim: Sim, records: np.ndarray, side: np.ndarray, exact: bool) -> list[tuple[Any, ...]]:
    """All findings of a stream, those of the end included."""
    judge = Judge(sim.configs, exact=exact)
    judge.feed(records, side)
    judge.flush()
    for pe in range(sim.k.n_pes):
        judge.check_memory(pe, np.empty(0, np.uint64), lambda pe, a, n: sim.memory[pe].view(a, n))
        values = list(sim.counters[pe])
        values[Cnt.WQE] = int(judge.expected_counters(pe)[Cnt.WQE])
        judge.check_counters(pe, values)
    return [
        (f.check, f.pe, f.qpn, f.wqe, f.psn, f.field, f.expected, f.got, f.position) for f in judge.finish()
    ]


@pytest.mark.parametrize("seed", range(3))
def test_damaged_stream(seed: int) -> None:
    """Whatever is wrong, both engines together say what the exact one says, and mostly something."""
    rng = np.random.default_rng(seed)
    sim = simulate(seed=seed, wqes=14, sizes=(0, 700), qps=1, words=2)
    red = 0
    for _ in range(12):
        records, side, what = damage(sim, rng)
        want = verdict(sim, records, side, True)
        assert verdict(sim, records, side, False) == want, what
        red += bool(want)
    assert red >= 4
