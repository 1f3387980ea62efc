"""Golden NIC: every error of READ and atomics, alone and inside a stream, and responses that must be refused.

Sweep: each error code that READs and atomics can meet x causes x schedules x position, signalled and not.
Stimulus: raw WQEs; contexts and regions changed; packets of the test's own making. Checks: CQEs before,
of and after the error, bytes that must not change, counters of both ends (each received frame moves exactly
one), events, states, and that other QPs of the same NICs notice nothing. Timing: none. Does not prove: wire
bytes, retries.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pymodel.formats.packet import Bth
from pymodel.nic.context import CmdObj, CmdOp, QpState, command_writes
from pymodel.nic.golden import StepKind
from pymodel.nic.params import AsyncKind, Cnt
from tests.model.golden_bench import ATOMICS, Bench, every_step

SCHEDULES = ("eager", "lazy", "random")
#: what packets that were on their way when a QP went to ERR may count as
LATE = {Cnt.DROP_QP, Cnt.DROP_RESPONSE}


@dataclass
class Case:
    """One way to fail.

    ``bad``: fields of the WQE, worked out when the bench stands. ``peer``: context of the responder's QP.
    ``nak``: name of the NAK, if the responder refuses. ``extra``: more counters, of requester and responder.
    ``before``: opcodes that still work under these conditions.
    """

    name: str
    code: int
    bad: Callable[[Bench], dict[str, Any]]
    nak: str = ""
    extra: tuple[dict[str, int], dict[str, int]] = ({}, {})
    before: tuple[int, ...] = (1, 2, 27)
    peer: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    touches: bool = False
    """Two packets come back before the error."""
    unequal: bool = False
    """The ends do not agree on PSNs afterwards."""


def _fixed(**fields: Any) -> Callable[[Bench], dict[str, Any]]:
    return lambda bench: fields


def _remote(op: int, **mr: Any) -> Callable[[Bench], dict[str, Any]]:
    return lambda bench: {"msg_opcode": op, "rkey": bench.extra_mr(1, **mr)[1]}


def _local(op: int, **mr: Any) -> Callable[[Bench], dict[str, Any]]:
    return lambda bench: {"msg_opcode": op, "lkey": bench.extra_mr(0, **mr)[0]}


def _beyond(pe: int, op: int, inside: int, **fields: Any) -> Callable[[Bench], dict[str, Any]]:
    """An access whose first ``inside`` bytes have memory; the rest only has a key."""

    def bad(bench: Bench) -> dict[str, Any]:
        at = bench.grow(pe) - inside
        return {"msg_opcode": op, ("raddr", "laddr")[1 - pe]: at, **fields}

    return bad


ANY = (2, 26, 33)
CASES = [
    *(Case(f"remote tag {op}", 0xA5,
           lambda b, op=op: {"msg_opcode": op, "rkey": b.fabric.pes[1].heap_rkey ^ 1}, "ACC")
      for op in (2, *ATOMICS)),
    *(Case(f"remote index {op}", 0xA5, _fixed(msg_opcode=op, rkey=0xFFFFFF00), "ACC") for op in ANY),
    *(Case(f"remote right {op}", 0xA5, _remote(op, **{"rem_read" if op == 2 else "rem_atomic": False}), "ACC")
      for op in (2, *ATOMICS)),
    *(Case(f"remote range {op}", 0xA5,
           lambda b, op=op: {"msg_opcode": op, "raddr": sum(_span(b, 1)) - (96 if op == 2 else 0)}, "ACC")
      for op in ANY),
    Case("QP right of READs", 0xA4, _fixed(msg_opcode=2), "INV", before=(1, 27, 33),
         peer={"rem_read": False}),
    *(Case(f"QP right of atomics {op}", 0xA4, _fixed(msg_opcode=op), "INV", before=(1, 2),
           peer={"rem_atomic": False}) for op in ATOMICS),
    *(Case(f"table of no entries {op}", 0xA4, _fixed(msg_opcode=op), "INV", ({}, {"RD_TOO_MANY": 1}), (1, 1),
           {"max_dest_rd_atomic": 0}) for op in ANY),
    *(Case(f"misaligned {op} by {low}", 0x89,
           lambda b, op=op, low=low: {"msg_opcode": op, "raddr": b.dst + low}, "INV")
      for op in ATOMICS for low in (1, 2, 4) if low % ATOMICS[op][2]),
    *(Case(f"misaligned {op} with a wrong key too", 0x89,
           lambda b, op=op: {"msg_opcode": op, "raddr": b.dst + 3, "rkey": 0}, "INV") for op in (27, 34)),
    Case("READ without memory", 0xA6, _beyond(1, 2, 0), "OP", ({}, {"BUS_GATHER": 1})),
    Case("READ that leaves memory in its third packet", 0xA6, _beyond(1, 2, 512, msg_len=1000), "OP",
         ({}, {"BUS_GATHER": 1}), touches=True),
    *(Case(f"atomic without memory {op}", 0xA6, _beyond(1, op, 0), "OP", ({}, {"BUS_ATOMIC": 1}))
      for op in ATOMICS),
    *(Case(f"local tag {op}", 0xA7,
           lambda b, op=op: {"msg_opcode": op, "lkey": b.fabric.pes[0].heap_lkey ^ 1})
      for op in (2, *ATOMICS)),
    *(Case(f"local right {op}", 0xA7, _local(op, loc_write=False, rem_write=False, rem_atomic=False))
      for op in (2, *ATOMICS)),
    *(Case(f"local range {op}", 0xA7,
           lambda b, op=op: {"msg_opcode": op, "laddr": sum(_span(b, 0)) - 3}) for op in (2, *ATOMICS)),
    Case("sink without memory", 0xB3, _beyond(0, 2, 0), extra=({"BUS_RESULT": 1}, {})),
    Case("sink that leaves memory in its third packet", 0xB3, _beyond(0, 2, 512, msg_len=1000),
         extra=({"BUS_RESULT": 1}, {})),
    *(Case(f"result without memory {op}", 0xB3, _beyond(0, op, 0), extra=({"BUS_RESULT": 1}, {}))
      for op in ATOMICS),
    *(Case(f"no READs allowed {op}", 0xAB, _fixed(msg_opcode=op), before=(1, 1), own={"max_rd_atomic": 0})
      for op in (2, *ATOMICS)),
    Case("longer READ than any", 0x9F, _fixed(msg_opcode=2, msg_len=(1 << 31) + 1)),
    Case("READ response of a wrong opcode", 0xAA, _fixed(msg_opcode=2, msg_len=300), peer={"mtu_code": 2},
         unequal=True),
    Case("READ response of a wrong length", 0xA8, _fixed(msg_opcode=2, msg_len=600), peer={"mtu_code": 2},
         unequal=True),
]  # fmt: skip


def _span(bench: Bench, pe: int) -> tuple[int, int]:
    mr = bench.fabric.pes[pe].mrs[bench.fabric.pes[pe].heap_lkey >> 8]
    return mr.base, mr.length


def _stand(case: Case, schedule: str, seed: int) -> Bench:
    config = {"qps": 2, "mtus": (256,)}
    bench = Bench(schedule, config, seed=seed, peer=case.peer, version=1 + seed % 2, **case.own)
    bench.fill(0, bench.src, 8192)
    bench.fill(1, bench.dst, 8192)
    bench.fill(0, bench.sink, 8192, seed=7)
    return bench


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_alone(case: Case) -> None:
    """One WQE, one CQE, the right counters; nothing is written that must not be."""
    for schedule in SCHEDULES:
        bench = _stand(case, schedule, 1)
        sink = bench.backend.memory(0, bench.sink, 8192).copy()
        target = bench.backend.memory(1, bench.dst, 8192).copy()
        bad = case.bad(bench)
        bench.post(**bad)
        bench.work()
        (got,) = bench.cqes()
        assert int(got["error_code"]) == case.code
        assert int(got["msg_opcode"]) == bad["msg_opcode"] and int(got["msg_len"]) == 0
        # two good packets stand before the third, which fails
        written = 512 if case.touches else 0
        assert (bench.backend.memory(0, bench.sink, 8192)[written:] == sink[written:]).all()
        # a result that cannot be delivered does not undo what the atomic did
        if case.code != 0xB3:
            assert (bench.backend.memory(1, bench.dst, 8192) == target).all()
        assert bench.state(0) is QpState.ERR and bench.asyncs(0) == []
        _check_ends(bench, case, flushed=0)


def _check_ends(bench: Bench, case: Case, flushed: int) -> None:
    """Counters, state and events of both ends of the QP."""
    late = {c.name for c in LATE}
    if case.unequal:
        late |= {"PSN_AHEAD", "DUPLICATE", "NAK_SEQ_TX", "NAK_SEQ_RX"}
    mine = {n: v for n, v in bench.counters(0).items() if n not in late}
    theirs = {n: v for n, v in bench.counters(1).items() if n not in late}
    flush = {"FLUSH": flushed} if flushed else {}
    nak = {f"NAK_{case.nak}_RX": 1} if case.nak else {}
    assert mine == {**flush, **nak, **case.extra[0]}
    assert theirs == {**({f"NAK_{case.nak}_TX": 1} if case.nak else {}), **case.extra[1]}
    if case.nak:
        assert bench.state(1) is QpState.ERR
        assert bench.asyncs(1) == [(AsyncKind.QP_ERR, bench.peer_plan.qpn)]
    else:
        assert bench.state(1) is QpState.RTS and bench.asyncs(1) == []


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_inside_a_stream(case: Case, schedule: str) -> None:
    """Earlier WQEs complete with their data, the bad one has its CQE, later ones are flushed in order.

    The second QP pair between the same NICs works all the while, in both directions.
    """
    for seed in range(2 if schedule != "random" else 4):
        bench = _stand(case, schedule, seed)
        others = [bench.queue(0, 1, 1), bench.queue(1, 0, 1)]
        for queue in others:
            bench.fill(queue.pe, queue.src + 65536, 4096, seed=5)
        bad = case.bad(bench)
        signalled = seed % 2
        area = bench.dst + 16384
        words = [3, 5, 7]
        bench.backend.store(1, area, b"".join(w.to_bytes(8, "little") for w in words))
        for n, op in enumerate(case.before):
            fields = {"msg_len": 8} if op <= 2 else {"swap_add": 1}
            local = bench.src if op == 1 else bench.sink + 4096 + 8 * n
            bench.post(ring=False, msg_opcode=op, raddr=area + 8 * n, laddr=local, ce=signalled, **fields)
        bench.post(ring=False, **bad, ce=signalled)
        for n in range(3):
            bench.post(ring=False, msg_opcode=(1, 2, 27)[(n + seed) % 3], ce=n % 2)
        _others(others, 0)
        bench.ring(bench.head)
        _others(others, 1)
        bench.work()
        _others(others, 2)
        bench.work()
        got = bench.cqes()
        good = len(case.before) if signalled else 0
        assert [int(c["error_code"]) for c in got] == [0] * good + [case.code] + [0xFF] * 3
        first = len(case.before) - good
        assert [int(c["wqe_id"]) >> 3 for c in got] == list(range(first, len(case.before) + 4))
        assert [int(c["msg_opcode"]) for c in got][good:] == [bad["msg_opcode"], 0, 0, 0]
        assert all(int(c["msg_len"]) == 0 for c in got[good:])
        # the earlier ones did their work
        for n, op in enumerate(case.before):
            memory = bench.backend.memory(1, area + 8 * n, 8).tobytes()
            result = bench.backend.memory(0, bench.sink + 4096 + 8 * n, 8).tobytes()
            if op == 1:
                assert memory == bench.backend.memory(0, bench.src, 8).tobytes()
            elif op == 2:
                assert result == words[n].to_bytes(8, "little")
            elif op == 27:
                assert (memory, result) == (
                    (words[n] + 1).to_bytes(8, "little"),
                    words[n].to_bytes(8, "little"),
                )
        _check_ends(bench, case, flushed=3)
        for queue in others:
            assert queue.codes() == [0] * 9
            peer = bench.queue(queue.peer_pe, queue.pe, 1)
            want = bench.backend.memory(queue.pe, queue.src + 65536, 4096)
            assert (bench.backend.memory(queue.pe, queue.sink + 131072, 600) == want[:600]).all()
            assert bench.backend.memory(peer.pe, peer.src + 69632, 8).view("<u8").tolist() == [3]


def _others(queues: list[Any], part: int) -> None:
    """A third of the other QPs' traffic: WRITE there, READ back, count."""
    for queue in queues:
        queue.post(msg_len=600, laddr=queue.src + 65536, raddr=queue.dst + 131072)
        queue.post(
            msg_opcode=2, msg_len=600, raddr=queue.dst + 131072, laddr=queue.sink + 131072, fence_mode=part
        )
        queue.post(msg_opcode=27, swap_add=1, raddr=queue.dst + 69632)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_errors_in_successive_wqes_and_doorbells_in_err(schedule: str) -> None:
    """The second one is flushed like any other; later doorbells lead to flushes."""
    for seed in range(8):
        bench = Bench(schedule, seed=seed)
        bench.post(ring=False, msg_opcode=2, rkey=0)
        bench.post(ring=False, msg_opcode=27, lkey=0)
        bench.post(ring=False, msg_opcode=34, raddr=bench.dst + 2)
        bench.ring(bench.head)
        bench.work()
        assert bench.codes() == [0xA5, 0xFF, 0xFF]
        for op in (2, 27):
            bench.post(msg_opcode=op)
            bench.work()
            assert bench.codes() == [0xFF]
        assert bench.counters() == {"NAK_ACC_RX": 1, "FLUSH": 4}


# ------------------------------------------------------------------ errors in the middle
def _half_way(bench: Bench, responses: int) -> None:
    """A READ of 1000 bytes at MTU 256 of which some responses are made and delivered."""
    bench.post(msg_opcode=2, msg_len=1000)
    bench.nic.run((StepKind.SEND, bench.plan.qpn))
    bench.nic.run((StepKind.REQUEST, bench.plan.qpn))
    for _ in range(responses):
        bench.peer.run((StepKind.SERVE, bench.peer_plan.qpn))
        bench.peer.run((StepKind.RESPONSE, bench.peer_plan.qpn))


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_keys_are_judged_at_each_response(done: int) -> None:
    """A region goes while a READ is under way: a5 at the far end, a7 at the near one; the rest stands."""
    for gone, code in ((1, 0xA5), (0, 0xA7)):
        bench = Bench("lazy", {"mtus": (256,)})
        data = bench.fill(1, bench.dst, 1000)
        before = bench.fill(0, bench.sink, 1000, seed=9)
        _half_way(bench, done)
        bench.heap_mr(gone, valid=False)
        bench.work()
        assert bench.codes() == [code]
        got = bench.backend.memory(0, bench.sink, 1000)
        assert (got[: 256 * done] == data[: 256 * done]).all()
        assert (got[256 * done :] == before[256 * done :]).all()
        nak = bench.counters(1).get("NAK_ACC_TX", 0)
        assert nak == gone and bench.state(0) is QpState.ERR


def test_an_atomic_is_judged_again_when_it_executes() -> None:
    """Its region goes between acceptance and execution: NAK 2, memory as it was."""
    bench = Bench("lazy")
    before = bench.fill(1, bench.dst, 8)
    bench.post(msg_opcode=27, swap_add=1)
    bench.nic.run((StepKind.SEND, bench.plan.qpn))
    bench.nic.run((StepKind.REQUEST, bench.plan.qpn))
    bench.heap_mr(1, valid=False)
    bench.work()
    assert bench.codes() == [0xA5] and (bench.backend.memory(1, bench.dst, 8) == before).all()
    assert bench.counters(1) == {"NAK_ACC_TX": 1} and bench.peer.counters[Cnt.ATOMIC] == 0


def test_an_atomic_that_fails_behind_a_read() -> None:
    """Executed before the READ is answered: the NAK waits for the answer, later requests are not executed."""
    bench = Bench("lazy", {"mtus": (256,)})
    got = bench.tap(0)
    data, where = bench.fill(1, bench.dst, 600), bench.grow(1)
    bench.post(ring=False, msg_opcode=2, msg_len=600)
    bench.post(ring=False, msg_opcode=27, swap_add=1, raddr=where)
    bench.post(ring=False, msg_opcode=27, swap_add=1)
    bench.post(msg_len=100)
    for kind in [StepKind.SEND] * 4 + [StepKind.REQUEST] * 3:
        bench.nic.run((kind, bench.plan.qpn))
    bench.peer.run((StepKind.ATOMIC, bench.peer_plan.qpn))
    assert bench.state(1) is QpState.ERR and not any(s[0] is StepKind.RESPONSE for s in bench.peer.steps())
    bench.work()
    assert bench.codes() == [0, 0xA6, 0xFF, 0xFF]
    assert (bench.backend.memory(0, bench.sink, 600) == data).all()
    assert (bench.backend.memory(1, bench.dst, 600) == data).all()
    assert [(p.bth, p.psn - bench.plan.sq_psn, p.msn) for p in got if p.bth != Bth.READ_MIDDLE] == [
        (Bth.READ_FIRST, 0, 1), (Bth.READ_LAST, 2, 1), (Bth.ACK, 3, 1),
    ]  # fmt: skip
    assert bench.counters(1) == {"BUS_ATOMIC": 1, "NAK_OP_TX": 1, "DROP_QP": 1}


def test_table_is_full() -> None:
    """One READ or atomic more than max_dest_rd_atomic: NAK 1 behind the answers of those before."""
    for most, op in ((1, 2), (2, 27), (3, 33)):
        bench = Bench("lazy", {"mtus": (256,)}, peer={"max_dest_rd_atomic": most})
        got = bench.tap(0)
        for n in range(most):
            bench.post(ring=False, msg_opcode=2, msg_len=600, laddr=bench.sink + 1024 * n)
        bench.post(ring=False, msg_opcode=op)
        bench.post(ring=False)
        bench.ring(bench.head)
        for _ in range(most + 2):
            bench.nic.run((StepKind.SEND, bench.plan.qpn))
        for _ in range(most + 2):
            bench.nic.run((StepKind.REQUEST, bench.plan.qpn))
        assert not any(s[0] is StepKind.RESPONSE for s in bench.peer.steps()), "the NAK waits"
        bench.work()
        assert bench.codes() == [0] * most + [0xA4, 0xFF]
        assert [p.bth for p in got] == [Bth.READ_FIRST, Bth.READ_MIDDLE, Bth.READ_LAST] * most + [Bth.ACK]
        assert (got[-1].psn - bench.plan.sq_psn, got[-1].msn) == (3 * most, most)
        assert bench.counters(1) == {"NAK_INV_TX": 1, "RD_TOO_MANY": 1, "DROP_QP": 1}


def test_a_failed_read_drops_what_the_table_holds_behind_it() -> None:
    """NAK with the PSN of the failing response and the current number; later entries and answers go."""
    bench = Bench("lazy", {"mtus": (256,)})
    got = bench.tap(0)
    at = bench.grow(1) - 512
    bench.post(ring=False, msg_opcode=2, msg_len=600, raddr=at)
    bench.post(ring=False, msg_opcode=27, swap_add=1)
    bench.post(ring=False, msg_len=100)
    bench.ring(bench.head)
    for kind in [StepKind.SEND] * 3 + [StepKind.REQUEST] * 2:
        bench.nic.run((kind, bench.plan.qpn))
    for _ in range(3):
        bench.peer.run((StepKind.SERVE, bench.peer_plan.qpn))
    before = bench.backend.memory(1, bench.dst, 8).copy()
    bench.work()
    assert bench.codes() == [0xA6, 0xFF, 0xFF]
    assert [(p.bth, p.psn - bench.plan.sq_psn, p.syndrome, p.msn) for p in got] == [
        (Bth.READ_FIRST, 0, 0x1F, 1), (Bth.READ_MIDDLE, 1, 0, 1), (Bth.ACK, 2, 0x63, 2),
    ]  # fmt: skip
    assert (bench.backend.memory(1, bench.dst, 8) == before).all(), "the atomic was never executed"
    assert bench.counters(1) == {"BUS_GATHER": 1, "NAK_OP_TX": 1, "DROP_QP": 1}


def test_err_with_reads_outstanding() -> None:
    """The host's modify: all are flushed, responses that come later are dropped; the far end serves on."""
    for done in range(4):
        bench = Bench("lazy", {"mtus": (256,)})
        _half_way(bench, done)
        bench.post(msg_opcode=27)
        bench.nic.run((StepKind.SEND, bench.plan.qpn))
        words = bench.fabric.pes[0].qp_contexts[bench.plan.qpn].stage_words()
        words[8] = QpState.ERR
        for addr, data in command_writes(CmdOp.MODIFY, CmdObj.QP, bench.plan.qpn, words):
            bench.nic.bar_write(addr, data)
        bench.work()
        assert bench.codes() == [0xFF, 0xFF]
        assert bench.counters() == {"FLUSH": 2, "DROP_QP": 5 - done} and bench.counters(1) == {}
        assert bench.state(1) is QpState.RTS and bench.peer.counters[Cnt.ATOMIC] == 1


def test_a_responder_in_err_still_answers_what_it_accepted() -> None:
    """NIC page 6: queued responses leave; a READ that is accepted is one."""
    bench = Bench("lazy", {"mtus": (256,)})
    data = bench.fill(1, bench.dst, 1000)
    _half_way(bench, 1)
    words = bench.fabric.pes[1].qp_contexts[bench.peer_plan.qpn].stage_words()
    words[8] = QpState.ERR
    for addr, value in command_writes(CmdOp.MODIFY, CmdObj.QP, bench.peer_plan.qpn, words):
        bench.peer.bar_write(addr, value)
    bench.work()
    assert bench.codes() == [0] and (bench.backend.memory(0, bench.sink, 1000) == data).all()
    bench.program(1, bench.peer_plan.qpn, rq_psn=(bench.plan.sq_psn + 4) % (1 << 24))
    _half_way(bench, 1)
    bench.program(1, bench.peer_plan.qpn)
    bench.work()
    assert bench.codes() == [], "but a reset forgets them"


# ------------------------------------------------------------------ responses of the test's own making
def _waiting(*ops: int, mtu: int = 256, length: int = 600) -> Bench:
    """WQEs whose requests are sent and lost."""
    bench = Bench("lazy", {"mtus": (mtu,)})
    bench.fill(0, bench.sink, 4096, seed=4)
    for op in ops:
        bench.post(ring=False, msg_opcode=op, **({"msg_len": length} if op <= 2 else {}))
    bench.ring(bench.head)
    while any(s[0] is StepKind.SEND for s in bench.nic.steps()):
        bench.nic.run((StepKind.SEND, bench.plan.qpn))
    bench.nic._requests[bench.plan.qpn].clear()
    return bench


@pytest.mark.parametrize("at", [0, 1, 2])
def test_wrong_responses_at_the_expected_psn(at: int) -> None:
    """aa and a8 at each place of a READ of three responses: nothing of them is written."""
    right = [(Bth.READ_FIRST, 256), (Bth.READ_MIDDLE, 256), (Bth.READ_LAST, 88)]
    for bth in (*range(0x0D, 0x11), 0x12):
        for size in (0, 87, 88, 256, 512):
            if (bth, size) == right[at]:
                continue
            bench = _waiting(2)
            first = bench.plan.sq_psn
            for n, (good, length) in enumerate(right[:at]):
                bench.raw(0, good, first + n, payload=bytes(length), syndrome=0x1F)
            before = bench.backend.memory(0, bench.sink, 1024).copy()
            bench.raw(
                0, bth, first + at, payload=bytes([1]) * size, syndrome=0 if bth == 0x0E else 0x1F, orig=3
            )
            bench.work()
            assert bench.codes() == [0xA8 if bth == right[at][0] else 0xAA], (bth, size)
            assert (bench.backend.memory(0, bench.sink, 1024) == before).all()
            assert bench.counters() == {} and bench.nic.counters[Cnt.RX_PACKET] == at + 1


def _stay(bench: Bench) -> None:
    """Let the requester send nothing again: what answers of the test's making do by themselves."""
    bench.nic._go_back = lambda qp: None  # type: ignore[method-assign]


@pytest.mark.parametrize("op", ATOMICS)
def test_atomics_answered_by_read_responses(op: int) -> None:
    """aa; and what an ACK says about it is no answer."""
    for bth in range(0x0D, 0x11):
        bench = _waiting(op)
        _stay(bench)
        bench.raw(0, Bth.ACK, bench.plan.sq_psn, syndrome=0x1F)
        bench.work()
        assert bench.codes() == []
        bench.raw(0, bth, bench.plan.sq_psn, syndrome=0x1F if bth != 0x0E else 0)
        bench.work()
        assert bench.codes() == [0xAA]


def test_data_responses_that_are_not_due_are_dropped() -> None:
    """Behind, ahead, unrequested, after a failure; each counted once, nothing moves."""
    bench = _waiting(1, 2, 27, length=300)
    _stay(bench)
    first = bench.plan.sq_psn  # WRITE takes two PSNs, READ two, the atomic one
    before = bench.backend.memory(0, bench.sink, 4096).copy()
    qp = bench.nic._qps[bench.plan.qpn]
    wrong = [(0x0F, 3), (0x12, 4), (0x0D, 1), (0x10, 0), (0x0D, -1), (0x10, 5), (0x12, 99), (0x0E, 1 << 23)]
    for n, (bth, offset) in enumerate(wrong):
        bench.raw(0, bth, first + offset, payload=bytes(44), syndrome=0x1F)
        assert bench.counters() == {"DROP_RESPONSE": n + 1} and qp.unacked_psn == first
    assert (bench.backend.memory(0, bench.sink, 4096) == before).all()
    bench.raw(0, 0x0D, first + 2, payload=b"\x01" * 256, syndrome=0x1F)
    assert qp.unacked_psn == first + 3, "which also acknowledges the WRITE"
    bench.raw(0, 0x0D, first + 2, payload=b"\x02" * 256, syndrome=0x1F)
    bench.raw(0, 0x12, first + 4, syndrome=0x1F)
    bench.raw(0, 0x0F, first + 3, payload=b"\x03" * 44, syndrome=0x0A)
    bench.raw(0, 0x12, first + 4, syndrome=0, orig=9)
    bench.work()
    assert bench.codes() == [0] * 3 and bench.counters() == {"DROP_RESPONSE": len(wrong) + 2}
    sink = bench.backend.memory(0, bench.sink, 300).tobytes()
    assert sink[8:] == (b"\x01" * 256 + b"\x03" * 44)[8:] and sink[:8] == (9).to_bytes(8, "little")
    bench.raw(0, 0x12, first + 4, syndrome=0x1F)
    assert bench.counters() == {"DROP_RESPONSE": len(wrong) + 3}


def test_a_failed_read_takes_nothing_more() -> None:
    """Nor does what stands behind it, while it waits for the WQEs before it."""
    bench = _waiting(1, 2, 27, length=300)
    first = bench.plan.sq_psn
    before = bench.backend.memory(0, bench.sink, 4096).copy()
    bench.raw(0, 0x10, first + 2, payload=bytes(256), syndrome=0x1F)
    for bth, offset, size in ((0x0D, 2, 256), (0x0F, 3, 44), (0x12, 4, 0)):
        bench.raw(0, bth, first + offset, payload=bytes(size), syndrome=0x1F)
    bench.raw(0, Bth.ACK, first + 4, syndrome=0x1F)
    assert bench.counters() == {"DROP_RESPONSE": 3} and bench.state() is QpState.RTS
    bench.work()
    assert bench.codes() == [0, 0xAA, 0xFF]
    assert (bench.backend.memory(0, bench.sink, 4096) == before).all()


def test_syndromes_of_data_responses() -> None:
    """Only an Acknowledge may carry a NAK: dropped before anything else is looked at."""
    for bth in (0x0D, 0x0F, 0x10, 0x12):
        for syndrome in (0x20, 0x3F, 0x40, 0x60, 0x63, 0x64, 0x80, 0xFF):
            bench = _waiting(2 if bth != 0x12 else 27, length=100)
            bench.raw(0, bth, bench.plan.sq_psn, payload=bytes(100), syndrome=syndrome)
            bench.work()
            assert bench.counters() == {"DROP_SYNDROME": 1} and bench.codes() == []
    for syndrome in (0x40, 0x5F, 0x64, 0x7F, 0x80, 0x9F):
        bench = _waiting(1)
        bench.raw(0, Bth.ACK, bench.plan.sq_psn + 2, syndrome=syndrome)
        assert bench.counters() == {"DROP_SYNDROME": 1}


def test_acks_and_naks_that_pass_an_unanswered_read() -> None:
    """They acknowledge up to it and say no more: the WQE behind does not complete, fail or flush."""
    for syndrome, name in (
        (0x1F, ""),
        (0x60, "NAK_SEQ_RX"),
        (0x61, "NAK_INV_RX"),
        (0x63, "NAK_OP_RX"),
        (0x25, "RNR_RX"),
    ):
        bench = _waiting(1, 2, 1, length=300)
        _stay(bench)
        first = bench.plan.sq_psn
        qp = bench.nic._qps[bench.plan.qpn]
        bench.raw(0, Bth.ACK, first + 5, syndrome=syndrome)
        bench.work()
        assert qp.unacked_psn == first + 2 and bench.codes() == [0] and bench.state() is QpState.RTS
        assert bench.counters() == ({name: 1} if name else {})
        bench.raw(0, 0x0D, first + 2, payload=bytes(256), syndrome=0x1F)
        bench.raw(0, Bth.ACK, first + 5, syndrome=syndrome)
        assert qp.unacked_psn == first + 3
        bench.raw(0, 0x0F, first + 3, payload=bytes(44), syndrome=0x1F)
        bench.raw(0, Bth.ACK, first + 5, syndrome=0x1F)
        bench.work()
        assert bench.codes() == [0, 0]


@pytest.mark.parametrize(("syndrome", "code"), [(0x61, 0xA4), (0x62, 0xA5), (0x63, 0xA6)])
def test_naks_for_each_response_of_a_read(syndrome: int, code: int) -> None:
    """Whichever of its PSNs is due: the READ fails, what was before is complete."""
    for at in range(3):
        bench = _waiting(1, 2, 27, length=600)
        first = bench.plan.sq_psn + 3
        for n in range(at):
            bench.raw(0, (0x0D, 0x0E)[n], first + n, payload=bytes(256), syndrome=0x1F if n == 0 else 0)
        bench.raw(0, Bth.ACK, first + at, syndrome=syndrome)
        bench.work()
        assert bench.codes() == [0, code, 0xFF]


def test_duplicates_are_answered_and_not_executed() -> None:
    """Wire page 5: counted; a READ is made again, an atomic answered as saved, a WRITE gets an ACK."""
    bench = Bench()
    for op in (1, 2, 27):
        bench.post(msg_opcode=op, swap_add=1, msg_len=16)
    assert bench.codes() == [0] * 3
    first, sent = bench.plan.sq_psn, bench.peer.counters[Cnt.TX_RESPONSE]
    common = {"va": bench.dst, "rkey": bench.fabric.pes[1].heap_rkey, "dma_len": 100}
    before = bench.backend.memory(1, bench.dst, 64).copy()
    bench.raw(1, Bth.READ_REQUEST, first + 1, **common)
    bench.raw(1, Bth.FETCH_ADD, first + 2, operands=(1, 0, 0, 0), **common)
    bench.work()
    assert bench.counters(1) == {"DUPLICATE": 2} and bench.peer.counters[Cnt.TX_RESPONSE] == sent + 2
    bench.raw(1, Bth.WRITE_ONLY, first, payload=bytes(100), **common)
    bench.work()
    assert bench.counters(1) == {"DUPLICATE": 3} and bench.peer.counters[Cnt.TX_RESPONSE] == sent + 3
    assert (bench.backend.memory(1, bench.dst, 64) == before).all()
    assert bench.peer.counters[Cnt.ATOMIC] == bench.peer.counters[Cnt.READ] == 1


def test_a_read_in_the_middle_of_a_write_is_a_sequence_error() -> None:
    """And so is an atomic: NAK 1, nothing executed."""
    for bth in (Bth.READ_REQUEST, Bth.FETCH_ADD, Bth.MCAS32):
        bench = Bench("eager", {"mtus": (256,)})
        common = {"va": bench.dst, "rkey": bench.fabric.pes[1].heap_rkey, "dma_len": 600}
        bench.raw(1, Bth.WRITE_FIRST, bench.plan.sq_psn, payload=bytes(256), **common)
        bench.raw(1, bth, bench.plan.sq_psn + 1, **common)
        assert bench.counters(1) == {"NAK_INV_TX": 1} and bench.state(1) is QpState.ERR
        assert not bench.peer.counters[Cnt.READ] and not bench.peer.counters[Cnt.ATOMIC]


def test_ahead_is_answered_once_and_behind_the_reads() -> None:
    """NAK 0 waits for the responses of earlier READs, and is not repeated."""
    bench = Bench("lazy", {"mtus": (256,)})
    got = bench.tap(0)
    _half_way(bench, 1)
    for offset in (5, 6, 7):
        bench.raw(1, Bth.READ_REQUEST, bench.plan.sq_psn + offset, dma_len=1)
    bench.work()
    assert [p.bth for p in got] == [0x0D, 0x0E, 0x0E, 0x0F, 0x11]
    assert (got[-1].psn - bench.plan.sq_psn, got[-1].syndrome) == (4, 0x60)
    assert bench.counters(1) == {"NAK_SEQ_TX": 1, "PSN_AHEAD": 3} and bench.codes() == [0]


def test_every_received_frame_moves_exactly_one_counter() -> None:
    """NIC page 7, with random packets of any kind at any state."""
    taken = {Cnt.RX_PACKET, Cnt.DUPLICATE, Cnt.PSN_AHEAD, *range(Cnt.DROP_SHORT, Cnt.DROP_RESPONSE + 1)}
    seen = set()
    for seed in range(60):
        rng = random.Random(seed)
        bench = Bench("lazy", {"mtus": (256,)})
        for _ in range(4):
            bench.post(ring=False, msg_opcode=rng.choice([1, 2, 27, 33]))
        bench.ring(bench.head)
        for _ in range(40):
            if rng.random() < 0.5:
                steps = list(every_step(bench))
                if steps:
                    nic, step = rng.choice(steps)
                    nic.run(step)
                continue
            to = rng.randrange(2)
            nic = bench.backend.nics[to]
            before = list(nic.counters)
            plan = (bench.peer_plan, bench.plan)[to]
            bench.raw(
                to, rng.choice([*range(0x06, 0x0B), *range(0x0C, 0x15), 0xC0, 0xC3]),
                plan.sq_psn + rng.randrange(-2, 6), payload=bytes(rng.choice([0, 8, 100, 256])),
                syndrome=rng.choice([0, 0x1F, 0x25, 0x60, 0x61, 0x62, 0x63, 0x80]),
                dma_len=rng.choice([0, 100, 300]), va=bench.src + rng.choice([0, 4, 8]),
                rkey=bench.fabric.pes[to].heap_rkey,
            )  # fmt: skip
            moved = {c: nic.counters[c] - before[c] for c in taken if nic.counters[c] != before[c]}
            assert list(moved.values()) == [1], moved
            seen |= set(moved)
    assert seen >= {
        Cnt.RX_PACKET,
        Cnt.DUPLICATE,
        Cnt.PSN_AHEAD,
        Cnt.DROP_QP,
        Cnt.DROP_SYNDROME,
        Cnt.DROP_RESPONSE,
    }
