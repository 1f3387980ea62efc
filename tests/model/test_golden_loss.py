"""Golden NICs recover from losses by themselves (wire.md 5), on the model's link with faults.

Stimulus: planned losses at every packet of a WRITE, READ and atomic, duplicates, results beyond the saved
ones, a link that loses everything, RNR NAKs by hand; random rules over programs and over atomic counters.
Checks: final memory, CQE codes, counters of both sides, time; exactly-once sums.
Not proved: the same timing as the RTL; a NIC under a lossy SEND.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.faults import parse
from pymodel.formats.packet import Bth
from pymodel.nic.params import Cnt
from pymodel.run import RunConfig, run_on_model
from tests.model.golden_bench import Bench

PROGRAMS = Path(__file__).parents[2] / "programs"


def bench(rules: str, schedule: str = "eager", **over: Any) -> Bench:
    """NICs with MTU 256 and a short timer."""
    out = Bench(schedule, {"mtus": (256,)}, **{"timer": 2, **over})
    out.backend.set_faults(parse(rules))
    return out


def three(b: Bench) -> tuple[np.ndarray, np.ndarray]:
    """A WRITE, a READ and an atomic of 4, 4 and 1 packets; what they must leave at the peer and at home."""
    there = b.fill(1, b.dst, 4096, 2)
    data = b.fill(0, b.src, 1000, 3)
    b.post(msg_opcode=1, msg_len=1000)
    b.post(msg_opcode=2, msg_len=1000, raddr=b.dst + 1024, laddr=b.sink)
    b.post(msg_opcode=27, swap_add=5, raddr=b.dst + 2048, laddr=b.sink + 2048)
    b.work()
    there = there.copy()
    read, there[:1000] = there[1024:2024].copy(), data
    there[2048:2056] = (there[2048:2056].copy().view(np.uint64) + np.uint64(5)).view(np.uint8)
    return there, read


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("lost", range(1, 13))
def test_each_packet_lost_once(lost: int, schedule: str) -> None:
    """Requests and responses, First to Last: the same memory and CQEs, one loss, at least one retry."""
    b = bench(f"packet {lost}: drop", schedule)
    there, read = three(b)
    assert b.codes() == [0, 0, 0]
    assert (b.backend.memory(1, b.dst, 4096) == there).all()
    assert (b.backend.memory(0, b.sink, 1000) == read).all()
    assert b.peer.counters[Cnt.ATOMIC] == b.peer.counters[Cnt.READ] == 1
    assert b.backend.link is not None and len(b.backend.link.log()) <= 1


def test_sequence_error() -> None:
    """NAK 0 once; the WRITE goes on in its middle."""
    b = bench("opcode write_middle: drop once")
    got = b.tap(1)
    b.post(msg_len=1000)
    b.work(1000)
    assert b.codes() == [0] and b.nic.counters[Cnt.RETRY] == b.nic.counters[Cnt.NAK_SEQ_RX] == 1
    assert b.peer.counters[Cnt.NAK_SEQ_TX] == 1 and b.peer.counters[Cnt.PSN_AHEAD] == 2
    first = b.plan.sq_psn
    assert [(p.psn - first) % (1 << 24) for p in got] == [0, 2, 3, 1, 2, 3]
    assert got[3].bth == Bth.WRITE_MIDDLE, "not from its First"


def test_time_out_of_a_lost_tail() -> None:
    """Only the timer tells: after 2^2 units of 64 cycles."""
    b = bench("opcode write_only: drop once")
    b.post()
    start = b.backend.now()
    b.work(2000)
    assert b.codes() == [0] and b.nic.counters[Cnt.RETRY] == 1 and b.nic.counters[Cnt.NAK_SEQ_RX] == 0
    assert b.backend.link is not None and b.backend.now() >= start + 256


def test_a_lost_acknowledgement() -> None:
    """The duplicate is answered and not written again."""
    b = bench("opcode ack: drop once")
    b.post()
    mark = b.fill(1, b.dst, 100, 9)
    b.work(2000)
    assert b.codes() == [0] and (b.backend.memory(1, b.dst, 100) == mark).all()
    assert b.peer.counters[Cnt.DUPLICATE] == b.nic.counters[Cnt.RETRY] == 1


def test_a_read_resumes_where_its_response_is_missing() -> None:
    """VA, length and PSN of the rest; data ahead tells once."""
    b = bench("opcode read_response_middle: drop once")
    got = b.tap(1)
    data = b.fill(1, b.dst, 1000)
    b.post(msg_opcode=2, msg_len=1000)
    b.work(1000)
    requests = [(p.psn - b.plan.sq_psn, p.va - b.dst, p.dma_len) for p in got if p.bth == Bth.READ_REQUEST]
    assert requests == [(0, 0, 1000), (1, 256, 744)]
    assert b.codes() == [0] and (b.backend.memory(0, b.sink, 1000) == data).all()
    assert b.nic.counters[Cnt.RETRY] == 1 and b.peer.counters[Cnt.DUPLICATE] == 1


def test_an_acknowledgement_that_passes_a_read_tells_of_its_loss() -> None:
    """Without a timer."""
    b = bench("opcode read_response: drop once", timer=0)
    b.post(msg_opcode=2, ring=False)
    b.post()
    b.work(4000)
    assert b.codes() == [0, 0] and b.nic.counters[Cnt.RETRY] == 1


@pytest.mark.parametrize("limit", [0, 1, 3, 7])
def test_retry_limit(limit: int) -> None:
    """So many passes more, then a2 and flush, the QP in ERR."""
    b = bench("direction 0->1: drop", retry_cnt=limit)
    got = b.backend.link
    for _ in range(3):
        b.post()
    b.work(8000)
    assert b.codes() == [0xA2, 0xFF, 0xFF] and b.nic.counters[Cnt.RETRY] == limit
    assert got is not None and len(got.log()) == 3 * (limit + 1)


def test_nested_losses() -> None:
    """What is sent again is lost again; within the limit."""
    b = bench("opcode write_last: drop 3 times", retry_cnt=3)
    b.post(msg_len=2000)
    b.work(8000)
    assert b.codes() == [0] and b.nic.counters[Cnt.RETRY] == 3


@pytest.mark.parametrize("limit", [2, 7])
def test_rnr_wait_and_limit(limit: int) -> None:
    """The wait is that of the code (1: 64 cycles); behind the limit a3, 7 is for ever."""
    b = bench("direction 0->1: drop", rnr_retry=limit, timer=0)
    b.post()
    for _ in range(4):
        sent = b.nic.counters[Cnt.TX_REQUEST]
        b.raw(0, Bth.ACK, b.plan.sq_psn, syndrome=0x21)
        b.work(60)
        assert b.nic.counters[Cnt.TX_REQUEST] == sent
        b.work(20)
    assert b.codes() == ([0xA3] if limit == 2 else []) and b.nic.counters[Cnt.RETRY] == min(limit, 4)


@pytest.mark.parametrize("op", ["write", "read", "atomic", "ack", "read_response", "atomic_response"])
def test_duplicates(op: str) -> None:
    """Of every kind: nothing is executed twice."""
    b = bench(f"opcode {op}: duplicate 2 times")
    there, read = three(b)
    assert b.codes() == [0, 0, 0] and (b.backend.memory(1, b.dst, 4096) == there).all()
    assert (b.backend.memory(0, b.sink, 1000) == read).all()
    assert b.peer.counters[Cnt.ATOMIC] == b.peer.counters[Cnt.READ] == 1


def test_saved_results_are_as_many_as_the_table() -> None:
    """The newest two answer, the one before is dropped and counted; none is executed."""
    b = Bench("eager", peer={"max_dest_rd_atomic": 2}, max_rd_atomic=2)
    for n in range(3):
        b.post(msg_opcode=27, swap_add=1 << n)
    b.work()
    answers = b.tap(0)
    common = {"va": b.dst, "rkey": b.fabric.pes[1].heap_rkey, "operands": (99, 0, 0, 0)}
    for n in range(3):
        b.raw(1, Bth.FETCH_ADD, b.plan.sq_psn + n, **common)
    b.work()
    assert [p.orig for p in answers] == [1, 3]
    assert b.counters(1) == {"DUPLICATE": 3, "ATOMIC_NO_SAVE": 1}
    assert int.from_bytes(b.backend.memory(1, b.dst, 8).tobytes(), "little") == 7


@pytest.mark.parametrize("damage", ["corrupt 1 bit of payload", "corrupt 1 byte of icrc", "truncate by 4"])
def test_damaged_packets_are_lost_and_counted(damage: str) -> None:
    """One counter of the receive checks each."""
    b = bench(f"opcode write_first: {damage}, once")
    b.post(msg_len=1000)
    b.work(1000)
    name = "DROP_LENGTH" if damage[0] == "t" else "DROP_ICRC"
    assert b.codes() == [0] and b.counters(1, {*Cnt} - {Cnt[name]}) == {name: 1}


RULE = st.builds(
    "{} {}: {}".format,
    st.sampled_from(["direction 0->1", "direction 1->0", "opcode atomic", "opcode atomic_response"]),
    st.sampled_from(["every 1/3", "every 1/5", "nth 2-4", "every 7"]),
    st.sampled_from(["drop", "duplicate", "delay 600 cycles", "reorder 2", "corrupt 3 bits", "truncate"]),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(RULE, min_size=1, max_size=3), st.sampled_from(["eager", "lazy", "random"]))
def test_atomics_are_executed_exactly_once(rules: list[str], schedule: str) -> None:
    """Old values are 0, 1, 2 and so on; the sum is right."""
    b = bench("\n".join(rules), schedule, retry_cnt=7, timer=3)
    for n in range(12):
        b.post(msg_opcode=27, swap_add=1, laddr=b.sink + 8 * n)
        b.work(20)
    b.work(4_000_000)
    codes = b.codes()
    total = int.from_bytes(b.backend.memory(1, b.dst, 8).tobytes(), "little")
    assert total == b.peer.counters[Cnt.ATOMIC]
    good = codes.count(0)
    olds = b.backend.memory(0, b.sink, 96).view(np.uint64)[:good]
    assert len(codes) == 12 and good <= total and [int(x) for x in olds] == list(range(good)), rules
    assert good == total == 12 or 0xA2 in codes


@pytest.mark.parametrize("rules", ["every 1/20: drop", "every 7: duplicate\nevery 1/20: reorder 2"])
@pytest.mark.parametrize("name", ["allgather", "ping_pong", "signal_ring", "barriers", "atomics"])
def test_programs_under_random_faults(name: str, rules: str) -> None:
    """As without: the programs check their own results."""
    config = RunConfig(str(PROGRAMS / f"{name}.py"), mtu=256, faults=(("test", rules),))
    result = run_on_model(config)
    assert result.good, result.problems
    assert sum(result.faults.values()) > 0
