"""Golden NIC: READ and atomics that succeed, and their order among each other and with WRITEs.

Sweep: READ lengths around each MTU x alignments x versions x schedules; all six atomics with random operands
x versions x schedules, results at any address; fence, max_rd_atomic, table size; many random schedules.
Stimulus: raw WQEs and doorbells. Checks: memory byte for byte with guards, results against plain Python,
CQE fields, counters, the responses of each QP in PSN order with the right message numbers. Timing: none.
Does not prove: wire bytes, and what happens after an error (test_golden_errors).
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from pymodel.formats import cqe
from pymodel.formats.packet import Bth
from pymodel.nic.context import QpState
from pymodel.nic.golden import StepKind
from pymodel.nic.params import Cnt, Params
from tests.model.golden_bench import ATOMICS, Bench, every_step

SCHEDULES = ("eager", "lazy", "random")
MTUS = (256, 512, 1024, 2048, 4096)


def run_kind(bench: Bench, kind: StepKind, nic: int) -> None:
    """One step of that kind of a NIC; it must be on offer."""
    target = bench.backend.nics[nic]
    step = next(s for s in target.steps() if s[0] is kind)
    target.run(step)


def offers(bench: Bench, kind: StepKind, nic: int) -> bool:
    """True if the NIC could do such a step now."""
    return any(s[0] is kind for s in bench.backend.nics[nic].steps())


# ------------------------------------------------------------------ READ
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("mtu", MTUS)
def test_reads_of_every_length_and_alignment(mtu: int, version: int, schedule: str) -> None:
    """Bytes, guards, PSNs taken, responses, CQE."""
    bench = Bench(schedule, {"mtus": (mtu,)}, version=version, sq_psn=(1 << 24) - 40)
    lengths = [0, 1, 63, 64, 65, mtu - 1, mtu, mtu + 1, 3 * mtu + 1, 20 * mtu, 33333]
    source = bench.fill(1, bench.dst, 200_000)
    psn = (1 << 24) - 40
    for case, length in enumerate(lengths):
        at, to = case * 37 % 64, case * 13 % 64
        before = bench.backend.memory(0, bench.sink, length + 128).copy()
        sent = bench.peer.counters[Cnt.TX_RESPONSE]
        bench.post(msg_opcode=2, msg_len=length, raddr=bench.dst + at, laddr=bench.sink + to)
        bench.work()
        before[to : to + length] = source[at : at + length]
        assert (bench.backend.memory(0, bench.sink, length + 128) == before).all(), length
        (got,) = bench.cqes()
        assert (int(got["error_code"]), int(got["msg_opcode"]), int(got["msg_len"])) == (0, 2, length)
        psns = max(1, -(-length // mtu))
        assert bench.peer.counters[Cnt.TX_RESPONSE] == sent + psns
        psn = (psn + psns) % (1 << 24)
        qp = bench.nic._qps[bench.plan.qpn]
        assert qp.next_psn == qp.unacked_psn == bench.peer._qps[bench.peer_plan.qpn].epsn == psn
        bench.consume(bench.tail)
    assert bench.peer.counters[Cnt.READ] == bench.nic.counters[Cnt.TX_REQUEST] == len(lengths)
    assert bench.counters() == bench.counters(1) == {}


def test_an_empty_read_needs_no_key_and_touches_nothing() -> None:
    """NIC page 5: neither key nor range is checked at either end, no memory is needed."""
    bench = Bench()
    bench.post(msg_opcode=2, msg_len=0, lkey=0xDEAD00, rkey=0xBEEF00, raddr=1 << 60, laddr=1 << 61)
    (got,) = bench.cqes()
    assert int(got["error_code"]) == 0 and bench.counters() == bench.counters(1) == {}
    assert bench.peer.counters[Cnt.READ] == 1


def test_reads_of_both_directions_and_to_the_top_of_memory() -> None:
    """Both ends are requester and responder at once; the last byte of a region may be read."""
    bench = Bench("random", seed=3)
    back = bench.queue(1, 0)
    mr = bench.heap_mr(1)
    top = bench.fill(1, mr.base + mr.length - 5000, 5000)
    there = bench.fill(0, back.dst, 5000)
    bench.post(msg_opcode=2, msg_len=5000, raddr=mr.base + mr.length - 5000)
    back.post(msg_opcode=2, msg_len=5000)
    bench.work()
    assert bench.codes() == back.codes() == [0]
    assert (bench.backend.memory(0, bench.sink, 5000) == top).all()
    assert (bench.backend.memory(1, back.sink, 5000) == there).all()


def test_results_wake_watches() -> None:
    """Result bytes, and the memory that an atomic writes, are NIC writes like any other."""
    bench = Bench()
    pending = {
        bench.backend.watch(0, bench.sink, 100, 2): "READ result, two beats",
        bench.backend.watch(0, bench.sink + 4096, 8, 1): "atomic result",
        bench.backend.watch(1, bench.dst, 8, 1): "atomic's memory",
    }
    bench.post(msg_opcode=2)
    bench.post(msg_opcode=26, compare=1, laddr=bench.sink + 4096)
    assert [pending[w] for w in bench.backend.fired()] == list(pending.values())[:2], (
        "a failed compare writes nothing"
    )
    bench.post(msg_opcode=27, swap_add=1, laddr=bench.sink + 4096)
    assert [pending[w] for w in bench.backend.fired()] == ["atomic's memory"]


# ------------------------------------------------------------------ atomics
def apply(op: int, old: int, swap_add: int, third: int, s_mask: int, c_mask: int) -> int:
    """device.md 1.5, bit by bit, on one integer."""
    bits = 8 * ATOMICS[op][2]
    ones = (1 << bits) - 1
    if op in (26, 31, 33):
        s_mask, c_mask = (ones, ones) if op == 26 else (s_mask, c_mask)
        return old & ~s_mask | swap_add & s_mask if not (old ^ third) & c_mask & ones else old
    new = carry = 0
    for bit in range(bits):
        total = (old >> bit & 1) + (swap_add >> bit & 1) + carry
        new |= (total & 1) << bit
        carry = 0 if op != 27 and third >> bit & 1 else total >> 1
    return new


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("op", ATOMICS)
def test_atomics(op: int, version: int, schedule: str) -> None:
    """Random operands: memory, neighbours, the old value at any local address, CQE, counters."""
    bench = Bench(schedule, version=version, sq_depth=16)
    rng = random.Random(op)
    size = ATOMICS[op][2]
    bits = 8 * size
    for case in range(40):
        memory = bytearray(bench.fill(1, bench.dst, 64, seed=case).tobytes())
        sink = bytearray(bench.fill(0, bench.sink, 8192, seed=case).tobytes())
        at = rng.randrange(64 // size) * size
        # in the middle of a beat, over a beat's end, over a page's
        to = rng.choice([rng.randrange(4000), 64 * rng.randrange(1, 60) - 3, 4096 - 2])
        old = int.from_bytes(memory[at : at + size], "little")
        words = [
            rng.choice([0, 1, (1 << bits) - 1, rng.getrandbits(bits), 1 << rng.randrange(bits)])
            for _ in range(4)
        ]
        if rng.random() < 0.5 and op in (26, 31, 33):
            words[1] = old
        masks = dict(zip(("swap_mask", "compare_mask"), words[2:], strict=True)) if op in (31, 33) else {}
        bench.post(msg_opcode=op, raddr=bench.dst + at, laddr=bench.sink + to, swap_add=words[0],
                   compare=words[1], **masks)  # fmt: skip
        bench.work()
        (got,) = bench.cqes()
        assert (int(got["error_code"]), int(got["msg_opcode"]), int(got["msg_len"])) == (0, op, size)
        memory[at : at + size] = apply(op, old, *words).to_bytes(size, "little")
        sink[to : to + size] = old.to_bytes(size, "little" if size == 8 else "big")
        assert bench.backend.memory(1, bench.dst, 64).tobytes() == memory
        assert bench.backend.memory(0, bench.sink, 8192).tobytes() == sink
        bench.consume(bench.tail)
    assert bench.peer.counters[Cnt.ATOMIC] == bench.peer.counters[Cnt.TX_RESPONSE] == 40
    assert bench.counters() == bench.counters(1) == {}


@pytest.mark.parametrize("op", [26, 27, 31])
def test_plain_operands_little_endian_is_a_knob(op: int) -> None:
    """K of NIC page 4: opcodes 26 and 27 only."""
    bench = Bench(config={"params": Params(plain_atomics_le=True)})
    bench.backend.store(1, bench.dst, bytes(range(1, 9)))
    value = int.from_bytes(bytes(range(1, 9)), "little")
    # WQE bytes are written big-endian here, so the NIC takes operands of 26 and 27 the other way round
    flipped = int.from_bytes(value.to_bytes(8, "little"), "big") if op != 31 else value
    bench.post(msg_opcode=op, swap_add=1 if op != 27 else 1 << 56, compare=flipped, swap_mask=15,
               compare_mask=(1 << 64) - 1)  # fmt: skip
    want = {26: 1 << 56, 27: value + 1, 31: value & ~15 | 1}[op]
    assert bench.codes() == [0]
    assert int.from_bytes(bench.backend.memory(1, bench.dst, 8).tobytes(), "little") == want


def test_shifted_remote_length_is_a_knob() -> None:
    """K of NIC page 4: masked atomics only."""
    for knob in (False, True):
        for op in ATOMICS:
            bench = Bench(config={"params": Params(shifted_remote_len=knob)})
            bench.post(msg_opcode=op, r_len=ATOMICS[op][2] << 1)
            assert bench.codes() == [0 if knob and op >= 31 else 0x9F], (knob, op)


@pytest.mark.parametrize("op", [2, *ATOMICS])
def test_dirty_bits_change_nothing(op: int) -> None:
    """NIC page 4: csum_en, reserved bits, opcode_data, mask, se, fence of a READ or atomic that is alone."""
    bench = Bench()
    bench.post(
        msg_opcode=op, csum_en=3, rsv=31, rsv1=0xFFFF, opcode_data=0xFFFF_FFFF, mask=3, se=1, fence_mode=1
    )
    (got,) = bench.cqes()
    assert int(got["error_code"]) == int(got["se"]) == int(got["imm_data"]) == 0


def test_ignore_overrun_and_silent_completions() -> None:
    """Slot 0 for every CQE, owner by the WQE's index, none for ce = 0."""
    bench = Bench(config={"generation": 3, "ignore_overrun": True}, ignore_overrun=True)
    expected = None
    for step in range(70):
        op = (1, 2, 27, 34)[step % 4]
        bench.post(msg_opcode=op, ce=step % 3 == 0)
        if step % 3 == 0:
            expected = (step, op, {1: 100, 2: 100, 27: 8, 34: 4}[op], step // 16 & 1)
        got = cqe.unpack(bench.backend.memory(0, bench.plan.cq_base, bench.plan.cq_stride), 2)[0]
        seen = int(got["wqe_id"]) >> 3, int(got["msg_opcode"]), int(got["msg_len"]), int(got["owner"])
        assert seen == expected
    assert (bench.nic.counters[Cnt.WQE], bench.nic.counters[Cnt.CQE]) == (70, 24)


# ------------------------------------------------------------------ limits and fence
@pytest.mark.parametrize("most", [1, 2, 5, 16])
def test_at_most_max_rd_atomic_are_outstanding(most: int) -> None:
    """Wire page 5; WRITEs are not counted. A READ counts until its last byte is in memory."""
    bench = Bench("lazy", {"mtus": (256,)}, max_rd_atomic=most, sq_depth=32, cq_depth=32)
    for op in (2, 27, 33) * 6:
        bench.post(msg_opcode=op, msg_len=ATOMICS[op][1] if op in ATOMICS else 600)
    while offers(bench, StepKind.SEND, 0):
        run_kind(bench, StepKind.SEND, 0)
    qp = bench.nic._qps[bench.plan.qpn]
    started = min(most, 16)
    assert len(qp.reads) == len(bench.nic._requests[bench.plan.qpn]) == started
    run_kind(bench, StepKind.REQUEST, 0)
    for response in range(3):
        run_kind(bench, StepKind.SERVE, 1)
        assert not offers(bench, StepKind.SEND, 0)
        run_kind(bench, StepKind.RESPONSE, 1)
        if started < 16:
            assert offers(bench, StepKind.SEND, 0) is (response == 2), response
    bench.work()
    assert bench.codes() == [0] * 18


def test_fence_waits_for_reads_and_atomics_of_its_own_qp_only() -> None:
    """NIC page 5: until their results are in memory. WRITEs, and other QPs, hold back nothing."""
    for first, fenced, mode in ((f, w, m) for f in (1, 2, 27) for w in (1, 2, 34) for m in range(4)):
        bench = Bench("lazy", {"qps": 2})
        other = bench.queue(0, 1, 1)
        other.post(msg_opcode=2)
        bench.post(msg_opcode=first)
        bench.post(msg_opcode=fenced, fence_mode=mode)
        qp, queue = bench.nic._qps[bench.plan.qpn], bench.nic._requests[bench.plan.qpn]
        while any(s == (StepKind.SEND, bench.plan.qpn) for s in bench.nic.steps()):
            bench.nic.run((StepKind.SEND, bench.plan.qpn))
        held = mode == 1 and first != 1
        assert len(queue) == 2 - held, (first, fenced, mode)
        if held:
            assert qp.waiting is not None and len(qp.reads) == 1
            bench.nic.run((StepKind.REQUEST, bench.plan.qpn))
            if first == 27:
                run_kind(bench, StepKind.ATOMIC, 1)
            run_kind(bench, StepKind.SERVE, 1)
            assert not any(s == (StepKind.SEND, bench.plan.qpn) for s in bench.nic.steps())
            run_kind(bench, StepKind.RESPONSE, 1)
            assert any(s == (StepKind.SEND, bench.plan.qpn) for s in bench.nic.steps())
        bench.work()
        assert bench.codes() == [0, 0] and other.codes() == [0]


def test_a_read_beyond_the_psn_window_goes_alone() -> None:
    """Wire page 5, with a small window: others wait for it, and it waits for everything before."""
    bench = Bench("lazy", {"mtus": (256,), "params": Params(psn_window=40)})
    for op, length in ((1, 100), (2, 256 * 38), (2, 256 * 60), (2, 256 * 39), (27, 8)):
        bench.post(msg_opcode=op, **({"msg_len": length} if op != 27 else {}))
    qp, most = bench.nic._qps[bench.plan.qpn], []
    while steps := list(every_step(bench)):
        nic, step = random.Random(len(most)).choice(steps)
        nic.run(step)
        most.append((len(qp.reads), (qp.next_psn - qp.unacked_psn) % (1 << 24)))
    assert bench.codes() == [0] * 5
    assert {r for r, unacked in most if unacked >= 40} == {1}, "alone"
    assert max(unacked for _, unacked in most) == 60


def test_writes_stay_in_the_psn_window() -> None:
    """Packet by packet: a long WRITE is cut short by the window and goes on with its ACKs."""
    bench = Bench("lazy", {"mtus": (256,), "params": Params(psn_window=40)})
    data = bench.fill(0, bench.src, 256 * 200)
    bench.post(msg_len=256 * 200)
    while offers(bench, StepKind.SEND, 0):
        run_kind(bench, StepKind.SEND, 0)
    assert len(bench.nic._requests[bench.plan.qpn]) == 39
    bench.work()
    assert bench.codes() == [0] and (bench.backend.memory(1, bench.dst, 256 * 200) == data).all()


# ------------------------------------------------------------------ order
def test_responses_leave_in_psn_order_with_their_numbers() -> None:
    """Wire page 3 and 5, over random schedules: READ responses, ATOMIC ACKs and ACKs of one QP."""
    for seed in range(30):
        rng = random.Random(seed)
        bench = Bench("random", {"mtus": (256,)}, seed=seed, sq_depth=64, cq_depth=64)
        got = bench.tap(0)
        wanted: dict[int, int] = {}
        psn, count = bench.plan.sq_psn, 0
        for _ in range(40):
            op = rng.choice([1, 1, 2, 27, 34])
            length = rng.choice([0, 10, 256, 1000])
            bench.post(msg_opcode=op, **({"msg_len": length} if op <= 2 else {}))
            psns = max(1, -(-length // 256)) if op <= 2 else 1
            count += 1
            for n in range(psns):
                # a READ counts at its first response, a WRITE at its last packet
                wanted[(psn + n) % (1 << 24)] = count if op != 1 or n == psns - 1 else count - 1
            psn += psns
        bench.work()
        assert bench.codes() == [0] * 40
        place = -1
        for packet in got:
            offset = (packet.psn - bench.plan.sq_psn) % (1 << 24)
            assert offset >= place, "PSN order"
            assert packet.bth == Bth.READ_MIDDLE or packet.msn == wanted[packet.psn]
            place = offset
        assert place == (psn - 1 - bench.plan.sq_psn) % (1 << 24)


def _overtaking(fence: int, between: Any = None) -> set[bytes]:
    """What READs return that a WRITE to the same bytes follows, over 60 random schedules."""
    seen = set()
    for seed in range(60):
        bench = Bench("random", {"mtus": (256,)}, seed=seed)
        bench.backend.store(1, bench.dst, b"old " * 64)
        bench.backend.store(0, bench.src, b"new " * 64)
        bench.post(ring=False, msg_opcode=2, msg_len=256)
        if between is not None:
            bench.post(ring=False, **between)
        bench.post(msg_len=256, fence_mode=fence)
        bench.work()
        assert set(bench.codes()) == {0}
        seen.add(bench.backend.memory(0, bench.sink, 256).tobytes())
    return seen


def test_a_write_may_overtake_an_unfenced_read() -> None:
    """NIC page 5: both orders occur; with a fence only one."""
    assert _overtaking(0) == {b"old " * 64, b"new " * 64}
    assert _overtaking(1) == {b"old " * 64}


def test_parts_of_a_read_may_be_overtaken() -> None:
    """Response by response: some READ returns old bytes first and new ones behind them, never the reverse."""
    kinds = set()
    for seed in range(80):
        bench = Bench("random", {"mtus": (256,)}, seed=seed)
        bench.backend.store(1, bench.dst, b"o" * 2048)
        bench.backend.store(0, bench.src, b"n" * 2048)
        bench.post(ring=False, msg_opcode=2, msg_len=2048)
        bench.post(msg_len=2048)
        bench.work()
        got = bench.backend.memory(0, bench.sink, 2048).tobytes()
        assert b"o" * 256 in got or got == b"n" * 2048
        kinds.add(b"on" in got)
    assert kinds == {True, False}


def test_a_write_never_overtakes_an_atomic() -> None:
    """Unlike a READ's, an atomic's memory access comes before that of every later WRITE of its QP."""
    for seed in range(40):
        bench = Bench("random", {"mtus": (256,)}, seed=seed)
        bench.backend.store(1, bench.dst, (5).to_bytes(8, "little"))
        bench.backend.store(0, bench.src, (100).to_bytes(8, "little"))
        bench.post(ring=False, msg_opcode=2, msg_len=2000, raddr=bench.dst + 4096, laddr=bench.sink + 64)
        bench.post(ring=False, msg_opcode=27, swap_add=1)
        bench.post(ring=False, msg_len=8)
        bench.post(msg_opcode=27, swap_add=2, laddr=bench.sink + 8)
        bench.work()
        assert bench.codes() == [0] * 4
        results = bench.backend.memory(0, bench.sink, 16).view("<u8").tolist()
        assert results == [5, 100]
        assert bench.backend.memory(1, bench.dst, 8).view("<u8").tolist() == [102]


def test_an_atomic_may_overtake_a_read_but_no_other_atomic() -> None:
    """NIC page 5: its memory access may come before those of an earlier READ; answers keep order."""
    seen = set()
    for seed in range(60):
        bench = Bench("random", {"mtus": (256,)}, seed=seed)
        got = bench.tap(0)
        bench.backend.store(1, bench.dst, (5).to_bytes(8, "little"))
        bench.post(ring=False, msg_opcode=2, msg_len=8)
        bench.post(ring=False, msg_opcode=27, swap_add=1, laddr=bench.sink + 8)
        bench.post(msg_opcode=31, swap_add=50, swap_mask=(1 << 64) - 1, laddr=bench.sink + 16)
        bench.work()
        assert bench.codes() == [0] * 3
        read, *atomics = bench.backend.memory(0, bench.sink, 24).view("<u8").tolist()
        assert atomics == [5, 6]
        assert [p.bth for p in got] == [Bth.READ_ONLY, Bth.ATOMIC_ACK, Bth.ATOMIC_ACK]
        seen.add(read)
    assert seen == {5, 6, 50}


def test_atomics_and_reads_follow_writes_of_their_qp() -> None:
    """A READ or atomic sees every earlier WRITE of its QP."""
    for seed in range(30):
        bench = Bench("random", {"mtus": (256,)}, seed=seed)
        data = bench.fill(0, bench.src, 3000, seed=seed)
        bench.post(ring=False, msg_len=3000)
        bench.post(ring=False, msg_opcode=2, msg_len=3000)
        bench.post(msg_opcode=34, raddr=bench.dst + 2996, laddr=bench.sink + 4096)
        bench.work()
        assert bench.codes() == [0] * 3
        assert (bench.backend.memory(0, bench.sink, 3000) == data).all()
        assert bench.backend.memory(0, bench.sink + 4096, 4).tobytes() == data[2996:].tobytes()[::-1]


def test_responses_of_several_qps_interleave() -> None:
    """Two long READs of two QPs: their responses mix; each QP's come in order."""
    mixed = 0
    for seed in range(10):
        bench = Bench("random", {"mtus": (256,), "qps": 2}, seed=seed)
        other = bench.queue(0, 1, 1)
        data = bench.fill(1, bench.dst, 8192)
        got = bench.tap(0)
        bench.post(msg_opcode=2, msg_len=4096)
        other.post(msg_opcode=2, msg_len=4096, raddr=bench.dst + 4096, laddr=bench.sink + 4096)
        bench.work()
        assert (bench.backend.memory(0, bench.sink, 8192) == data).all()
        order = [p.qpn for p in got]
        mixed += sum(a != b for a, b in zip(order, order[1:], strict=False)) > 2
    assert mixed >= 8


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_random_mix(schedule: str) -> None:
    """300 WQEs of all kinds in each direction, every ring lapped: memory as in posting order.

    Every operation has bytes of its own, so nothing but its own QP's order matters.
    """
    for seed in range(3):
        bench = Bench(schedule, {"mtus": (256, 1024), "start": "wraps", "seed": seed}, seed=seed)
        queues = [bench, bench.queue(1, 0)]
        for queue in queues:
            bench.fill(queue.pe, queue.src, 1 << 16)
        rng = random.Random(f"{schedule} {seed}")
        remote = [
            bytearray(bench.backend.memory(q.peer_pe, q.dst + (1 << 18), 4096).tobytes()) for q in queues
        ]
        for _ in range(300):
            side = rng.randrange(2)
            queue, model = queues[side], remote[side]
            source = bench.backend.memory(queue.pe, queue.src, 1 << 16)
            op = rng.choice([1, 2, 26, 27, 31, 32, 33, 34])
            base = queue.dst + (1 << 18)
            if op <= 2:
                length, at = rng.randrange(1500), rng.randrange(2500)
                local = queue.src + rng.randrange(60000) if op == 1 else queue.sink
                queue.post(msg_opcode=op, msg_len=length, raddr=base + at, laddr=local)
                bench.work()
                if op == 1:
                    start = local - queue.src
                    model[at : at + length] = source[start : start + length].tobytes()
                else:
                    assert (
                        bench.backend.memory(queue.pe, queue.sink, length).tobytes()
                        == model[at : at + length]
                    )
            else:
                size = ATOMICS[op][2]
                at, words = rng.randrange(4096 // size) * size, [rng.getrandbits(8 * size) for _ in range(4)]
                masks = (
                    dict(zip(("swap_mask", "compare_mask"), words[2:], strict=True)) if op in (31, 33) else {}
                )
                queue.post(msg_opcode=op, raddr=base + at, swap_add=words[0], compare=words[1], **masks)
                bench.work()
                old = int.from_bytes(model[at : at + size], "little")
                model[at : at + size] = apply(op, old, *words).to_bytes(size, "little")
                raw = bench.backend.memory(queue.pe, queue.sink, size).tobytes()
                assert int.from_bytes(raw, "little" if size == 8 else "big") == old
            assert queue.codes() == [0]
            queue.consume(queue.tail)
        for queue, model in zip(queues, remote, strict=True):
            assert bench.backend.memory(queue.peer_pe, queue.dst + (1 << 18), 4096).tobytes() == model
        assert bench.counters() == bench.counters(1) == {} and bench.state() is QpState.RTS
