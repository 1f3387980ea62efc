"""Errors of READ and atomics end to end: one error CQE in its turn, the rest flushed, nobody disturbed.

Sweep: all seven opcodes x every code that they can end with. ac, ab, 9f and a7 at the requester: each length
off by one and those of other opcodes, with_imm, in_line, ds_data_num, wqe_id, key in tag and index, both
ends of heap and region, right of the region. 89, a4, a5 and a6 by NAK 1, 2 and 3: all misalignments, rights
of QP and region, keys, ends, bus errors on read and on write, in every packet of a READ. b3: bus errors on
sinks, in every packet, in either half of a result across two beats. Beside them the good neighbours of each
limit.
Each alone, at the head, in the middle or at the end of a stream of READs, atomics and WRITEs, the bad WQE and
those behind it with and without ce; a second bad WQE right behind it; doorbells to the QP in ERR; V1 and V2,
all MTUs, both strides, wraps.
Stimulus: WQEs by hand, a QP for each of 28 cases at the same time, lap after lap, reset in between; two QPs
in each direction that never pause.
Checks: codes, opcodes and lengths of every CQE in posting order and none besides; nothing leaves in ERR;
events and NAK counters exactly as due; the judge's.
Timing: none. Not proved: lost packets and retries (a2, a3); a8 and aa: test_strange_responses.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import cocotb

from pymodel.formats.wqe import ATOMIC_MSG_LEN, ATOMIC_SIZE, WqeOp
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import MrContext
from pymodel.nic.params import AsyncKind, Cnt
from tb.sim.platform import Rig
from tests.nic.raw import FLUSH, RawQp, renew
from tests.nic.stage import (
    ATOMICS,
    BYSTANDERS,
    DEPTH,
    OWN,
    PLACES,
    Case,
    Stage,
    add_region,
    any_good,
    clear_errors,
    error,
    heap_end,
    local,
    remote,
    slot_error,
)

PES = 2
CASE_QPS = 28
#: QPs whose responders lack a right, by the opcode that needs it
LACKING = {0: "rem_read", 1: "rem_atomic", 2: "rem_atomic", 3: "rem_atomic"}
BUSY = range(CASE_QPS, CASE_QPS + BYSTANDERS)
OPS = (WqeOp.READ, *ATOMICS)
#: packets of a READ that fails in one of them
PACKETS = 4
#: a region that begins 4 bytes behind this heap offset and ends 4 bytes before the end of its line
EDGE, EDGE_BYTES = 1 << 20, 56
Change = Callable[[RawQp], dict[str, Any]]


def base(qp: RawQp, op: int) -> dict[str, Any]:
    """A good WQE in a part of both windows that is the case's own."""
    if op == WqeOp.READ:
        return qp.read(64, laddr=local(qp, OWN), raddr=remote(qp, OWN))
    return qp.atomic(op, OWN, OWN)


def length(qp: RawQp) -> int:
    """Of a READ of PACKETS packets, the last of which is short."""
    return PACKETS * qp.plan.mtu - 7


def long(qp: RawQp, **changes: int) -> dict[str, Any]:
    """Fields of such a READ."""
    return {**dict.fromkeys(("msg_len", "r_len", "l_len"), length(qp)), **changes}


def key(region: str, side: str) -> Change:
    """The key of one of the extra regions, which lie at the same index on both PEs."""

    def change(qp: RawQp) -> dict[str, Any]:
        pe = qp.fabric.pes[qp.plan.pe if side == "lkey" else qp.plan.peer]
        index = next(i for i, mr in pe.mrs.items() if mr.ltag == REGIONS[region]["ltag"])
        return {side: pe.mrs[index].lkey(index) if side == "lkey" else pe.mrs[index].rkey(index)}

    return change


#: extra regions, known by their tags, over the whole heap but for the last
REGIONS: dict[str, dict[str, Any]] = {
    "no local write": {
        "ltag": 0xA1,
        "rtag": 0xB1,
        "loc_write": False,
        "rem_write": False,
        "rem_atomic": False,
    },
    "no remote read": {"ltag": 0xA2, "rtag": 0xB2, "rem_read": False},
    "no remote atomic": {"ltag": 0xA3, "rtag": 0xB3, "rem_atomic": False},
    "edge": {"ltag": 0xA4, "rtag": 0xB4},
}


def at_edge(side: str, offset: int) -> Change:
    """The remote or local address at an offset from EDGE, under the key of the region there."""

    def change(qp: RawQp) -> dict[str, Any]:
        pe = qp.fabric.pes[qp.plan.pe if side == "l" else qp.plan.peer]
        return {f"{side}addr": pe.heap_base + EDGE + offset, **key("edge", f"{side}key")(qp)}

    return change


def fixed(**changes: Any) -> Change:
    """Fields that do not depend on the QP."""
    return lambda qp: changes


def armed(pe: str, offset: Callable[[RawQp], int], size: int, on: str) -> Callable[[Rig, RawQp, int], None]:
    """A bus error in the case's part of the QP's window at its own PE or its peer."""

    def arm(rig: Rig, qp: RawQp, _: int) -> None:
        where = (local if pe == "local" else remote)(qp, OWN)
        error(rig, qp.plan.pe if pe == "local" else qp.plan.peer, where + offset(qp), size, on)

    return arm


def cases(op: WqeOp) -> Iterator[tuple[str, Case]]:
    """Every way in which a WQE of this opcode fails, and those in which it only just does not."""
    read = op == WqeOp.READ
    size = 64 if read else ATOMIC_SIZE[op]
    message = 64 if read else ATOMIC_MSG_LEN[op]
    segments = 2 if read else 4 if op == WqeOp.MCAS64 else 3
    # ---- at the requester
    yield "good", Case(0)
    yield "fetch bus error", Case(0xAC, arm=slot_error)
    yield (
        "wqe_id of the next slot",
        Case(0xAB, lambda qp: {"wqe_id": (qp.head + 1 << 3) & (0xFFFF if qp.plan.version == 1 else 0xFFFFF)}),
    )
    yield "with_imm", Case(0xAB, fixed(with_imm=1))
    yield "in_line", Case(0xAB, fixed(in_line=int(read)))
    for wrong in {1, 2, 3, 4, 5} - {segments}:
        yield f"{wrong} segments", Case(0xAB, fixed(ds_data_num=wrong))
    wrongs = {"msg_len": message, "r_len": size, "l_len": size}
    for name, right in wrongs.items():
        others = {right - 1, right + 1} if read else {right - 1, right + 1, 0, 4, 8, 16, 32} - {right}
        for wrong in sorted(others):
            yield f"{name} {wrong} for {right}", Case(0x9F, fixed(**{name: wrong}))
    if read:
        yield "too long", Case(0x9F, fixed(**dict.fromkeys(wrongs, (1 << 31) + 1)))
    yield "local key tag", Case(0xA7, lambda qp: {"lkey": qp.fabric.pes[qp.plan.pe].heap_lkey ^ 1})
    for bit in (8, 15, 16, 31):
        yield (
            f"local key bit {bit}",
            Case(0xA7, lambda qp, bit=bit: {"lkey": qp.fabric.pes[qp.plan.pe].heap_lkey ^ 1 << bit}),
        )
    yield "local start", Case(0xA7, lambda qp: {"laddr": qp.fabric.pes[qp.plan.pe].heap_base - 1})
    yield "local end", Case(0xA7, lambda qp: {"laddr": heap_end(qp, qp.plan.pe) - size + 1})
    yield "local wrap", Case(0xA7, fixed(laddr=(1 << 64) - size // 2))
    yield "local right", Case(0xA7, key("no local write", "lkey"))
    # ---- by NAK
    yield (
        "remote key tag",
        Case(0xA5, lambda qp: {"rkey": qp.fabric.pes[qp.plan.peer].heap_rkey ^ 0x80}, nak=2),
    )
    for bit in (8, 15, 16, 31):
        yield (
            f"remote key bit {bit}",
            Case(0xA5, lambda qp, bit=bit: {"rkey": qp.fabric.pes[qp.plan.peer].heap_rkey ^ 1 << bit}, nak=2),
        )
    yield (
        "remote start",
        Case(0xA5, lambda qp: {"raddr": qp.fabric.pes[qp.plan.peer].heap_base - size}, nak=2),
    )
    yield "remote end", Case(0xA5, lambda qp: {"raddr": heap_end(qp, qp.plan.peer)}, nak=2)
    yield "remote wrap", Case(0xA5, fixed(raddr=(1 << 64) - (32 if read else size)), nak=2)
    right = "no remote read" if read else "no remote atomic"
    yield "remote right", Case(0xA5, key(right, "rkey"), nak=2)
    lacking = {"rem_read": False} if read else {"rem_atomic": False}
    yield "right of the QP", Case(0xA4, nak=1, override=lacking)
    yield "right of the QP before the key", Case(0xA4, fixed(rkey=0xFFFF_FF00), nak=1, override=lacking)
    # ---- both ends of a region: the last that fits, the first that does not
    if read:
        whole = dict.fromkeys(wrongs, EDGE_BYTES)
        over = dict.fromkeys(wrongs, EDGE_BYTES + 1)
        for side, code, nak in (("r", 0xA5, 2), ("l", 0xA7, 0)):
            yield f"{side} whole region", Case(0, lambda qp, s=side: at_edge(s, 4)(qp) | whole)
            yield f"{side} region start", Case(code, lambda qp, s=side: at_edge(s, 3)(qp) | whole, nak=nak)
            yield f"{side} region end", Case(code, lambda qp, s=side: at_edge(s, 4)(qp) | over, nak=nak)
        yield (
            "empty, no key, no place",
            Case(0, fixed(msg_len=0, r_len=0, l_len=0, rkey=0, lkey=0, raddr=0, laddr=(1 << 64) - 1)),
        )
    else:
        first, last = (8, 48) if size == 8 else (4, 56)
        for side, code, nak in (("r", 0xA5, 2), ("l", 0xA7, 0)):
            yield f"{side} region's first", Case(0, at_edge(side, first))
            yield f"{side} region's last", Case(0, at_edge(side, last))
            yield f"{side} region start", Case(code, at_edge(side, first - size), nak=nak)
            yield f"{side} region end", Case(code, at_edge(side, last + size), nak=nak)
        yield "region's last for the result", Case(0, at_edge("l", 4 + EDGE_BYTES - size))
        yield "result one byte out", Case(0xA7, at_edge("l", 5 + EDGE_BYTES - size))
        for off in range(1, 8):
            bad = off % size != 0
            place = lambda qp, off=off: {"raddr": remote(qp, OWN + off)}  # noqa: E731
            yield f"misaligned by {off}", Case(0x89 if bad else 0, place, nak=int(bad))
        yield (
            "misaligned before the key",
            Case(0x89, lambda qp: {"raddr": remote(qp, OWN + 1), "rkey": 0xFFFF_FF00}, nak=1),
        )
        yield (
            "misaligned, and no right of the QP",
            Case(0x89, lambda qp: {"raddr": remote(qp, OWN + size - 1)}, nak=1, override=lacking),
        )
    # ---- bus errors
    if read:
        yield "remote bus error", Case(0xA6, arm=armed("remote", lambda qp: 0, 64, "r"), nak=3)
        yield "sink bus error", Case(0xB3, arm=armed("local", lambda qp: 0, 64, "w"))
        for packet in range(PACKETS):
            for at in (0, -1):
                where = lambda qp, p=packet, at=at: min((p - at) * qp.plan.mtu, length(qp)) + at  # noqa: E731
                what = f"{'first' if at == 0 else 'last'} byte of packet {packet}"
                yield f"remote bus error, {what}", Case(0xA6, long, armed("remote", where, 1, "r"), nak=3)
                yield f"sink bus error, {what}", Case(0xB3, long, armed("local", where, 1, "w"))
        yield "bus errors beside a READ", Case(
            0, arm=lambda rig, qp, i: [
                armed(pe, lambda qp, at=at: at, 64, on)(rig, qp, i)
                for pe, on in (("remote", "w"), ("local", "r")) for at in (0,)
            ]
        )  # fmt: skip
    else:
        yield "word cannot be read", Case(0xA6, arm=armed("remote", lambda qp: 0, size, "r"), nak=3)
        if op in (WqeOp.FA64, WqeOp.MFA64, WqeOp.MFA32):
            yield "word cannot be written", Case(0xA6, arm=armed("remote", lambda qp: 0, size, "w"), nak=3)
        else:
            masks = {"compare_mask": 1, "swap_mask": 1} if op != WqeOp.CAS64 else {}
            yield (
                "word cannot be written",
                Case(
                    0xA6,
                    fixed(compare=0, swap_add=1, **masks),
                    armed("remote", lambda qp: 0, size, "w"),
                    nak=3,
                ),
            )
            yield (
                "word cannot be written, need not be",
                Case(0, fixed(compare=1, swap_add=1, **masks), armed("remote", lambda qp: 0, size, "w")),
            )
        yield "sink bus error", Case(0xB3, arm=armed("local", lambda qp: 0, size, "w"))
        for half, at in (("first", 4096 - 64), ("second", 4096)):
            yield f"{half} half of the result", Case(
                0xB3, lambda qp: {"laddr": local(qp, OWN + 4096 - size // 2)},
                armed("local", lambda qp, at=at: at, 64, "w"),
            )  # fmt: skip


ALL = [(op, name, case) for op in OPS for name, case in cases(op)]


def fabric(seed: int) -> Fabric:
    """QPs of a lap's cases, in both directions alternately, then the bystanders; extra regions."""
    overrides: dict[tuple[int, int, int], dict[str, Any]] = {
        (pe, 1 - pe, q): {"sq_depth": DEPTH, "cq_depth": DEPTH}
        for q in range(CASE_QPS + BYSTANDERS)
        for pe in (0, 1)
    }
    for q, right in LACKING.items():
        overrides[1 - q % 2, q % 2, q][right] = False
    config = FabricConfig.mixed(2, CASE_QPS + BYSTANDERS, seed, heap_bytes=32 << 20, overrides=overrides)
    built = Fabric.build(config)
    for pe in built.pes:
        for name, changes in REGIONS.items():
            at, size = (EDGE + 4, EDGE_BYTES) if name == "edge" else (0, pe.heap_size)
            add_region(built, pe.rank, MrContext(pe.heap_base + at, size, **changes))
    return built


async def fail(
    rig: Rig, qp: RawQp, op: int, case: Case, place: tuple[int, int], second: Case | None, seed: float
) -> list[tuple[int, int, int]]:
    """A stream with the bad WQE in it, by one or two doorbells; (code, opcode, length) of each CQE.

    The bad WQE and those behind it need not ask for a CQE: errors and flushes give one all the same.
    """
    rng = random.Random(seed)
    before, after = place
    kinds = [1, 2, *ATOMICS]
    if case.override:
        kinds = [1, *ATOMICS] if op == WqeOp.READ else [1, 2]
    items = [any_good(qp, rng, kinds) for _ in range(before)]
    await qp.put(*items)
    if before and rng.randrange(2):
        await qp.ring_sq()
    ce = rng.randrange(2) if case.code else 1
    items = [{**base(qp, op), "ce": ce, **case.changes(qp)}]
    await qp.put(*items)
    if second is not None:
        await qp.put({**base(qp, op), "ce": ce, **second.changes(qp)})
    behind = [any_good(qp, rng, kinds, ce=rng.randrange(2) if case.code else 1) for _ in range(after)]
    await qp.put(*behind[second is not None :])
    await qp.ring_sq()
    found = await qp.collect(before + 1 + after)
    await qp.ring_cq()
    return list(zip(*(found[name].tolist() for name in ("error_code", "msg_opcode", "msg_len")), strict=True))


async def lap(
    stage: Stage, chosen: dict[int, tuple[WqeOp, str, Case]], naks: dict[tuple[int, int], int]
) -> None:
    """One lap: cases by QP pair, set anew; then doorbells in ERR."""
    rig, rng = stage.rig, stage.rng
    jobs, plans, due = [], [], set()
    for q, (op, name, case) in chosen.items():
        qp, back = stage.ends[q % 2, 1 - q % 2, q], stage.ends[1 - q % 2, q % 2, q]
        await renew(rig, qp, back, (rng.randrange(1 << 24), rng.randrange(1 << 24)))
        place = rng.choice(list(PLACES.values()))
        second = None
        if case.code and place[1] and case.arm is None:
            # right behind it one that fails in another way, and must not be heard of
            others = [c for o, _, c in ALL if o == op and c.code and c.arm is None and c.override is None]
            second = rng.choice([*others, None])
        if case.arm is not None:
            case.arm(rig, qp, qp.head + place[0])
        jobs.append((qp, fail(rig, qp, op, case, place, second, rng.random())))
        plans.append((f"{op.name}: {name}, {place}, QPN {qp.plan.qpn}", op, qp, case, place))
        if case.nak:
            due.add((qp.plan.peer, AsyncKind.QP_ERR, qp.plan.peer_qpn))
            naks[qp.plan.peer, case.nak] += 1
    answers = await stage.beside(*jobs)
    for (name, op, _, case, (before, after)), found in zip(plans, answers, strict=True):
        codes = [code for code, _, _ in found]
        assert codes == [0] * before + [case.code] + [FLUSH if case.code else 0] * after, (
            f"{name}: {[hex(c) for c in codes]} for {case.code:#x}"
        )
        if case.code:
            opcode = 0 if case.code == 0xAC else op
            assert found[before:] == [(case.code, opcode, 0)] + [(FLUSH, 0, 0)] * after, f"{name}: {found}"
    await rig.settle()
    await stage.events(due)
    for pe in (0, 1):
        for number, counter in ((1, Cnt.NAK_INV_TX), (2, Cnt.NAK_ACC_TX), (3, Cnt.NAK_OP_TX)):
            assert await stage.console[pe].counter(counter) == naks[pe, number], f"PE {pe}: {counter.name}"
    sent = [await stage.console[pe].counter(Cnt.TX_REQUEST) for pe in (0, 1)]

    # ---- a doorbell in ERR: flush CQEs for the new WQEs, and nothing leaves
    async def more(qp: RawQp, seed: float) -> list[int]:
        rng = random.Random(seed)
        count = rng.randrange(1, DEPTH)
        await qp.post(*[any_good(qp, rng, ce=rng.randrange(2)) for _ in range(count)])
        return await qp.complete(count)

    dead = [qp for _, _, qp, case, _ in plans if case.code]
    # the responders that went to ERR flush as requesters, too
    dead += [stage.ends[qp.plan.peer, qp.plan.pe, qp.plan.qp_idx] for _, _, qp, case, _ in plans if case.nak]
    busy, stage.busy = stage.busy, ()
    answers = await stage.beside(*[(qp, more(qp, rng.random())) for qp in dead])
    stage.busy = busy
    assert all(set(codes) == {FLUSH} for codes in answers), answers
    await rig.settle()
    assert sent == [await stage.console[pe].counter(Cnt.TX_REQUEST) for pe in (0, 1)], "sent in ERR"
    assert not any(qp.ready() for qp in stage.ends.values()), "a CQE for nothing"
    clear_errors(rig)


@cocotb.test()
async def test_error_codes(dut):
    """All cases, CASE_QPS at a time in random order."""
    stage = Stage(dut, fabric(cocotb.RANDOM_SEED), BUSY, (1, 2, *ATOMICS))
    await stage.start()
    # a responder that lacks a right takes the cases about it and no others
    queues = {right: [c for c in ALL if c[2].override == {right: False}] for right in LACKING.values()}
    rest = [c for c in ALL if c[2].override is None]
    stage.rng.shuffle(rest)
    order = []
    while rest or any(queues.values()):
        taken = {q: queues.get(LACKING.get(q, ""), rest) for q in range(CASE_QPS)}
        order.append({q: queue.pop() for q, queue in taken.items() if queue})
    naks = {(pe, number): 0 for pe in (0, 1) for number in (1, 2, 3)}
    for chosen in order:
        await lap(stage, chosen, naks)
    assert min(naks.values()) > 0
    await stage.rig.check()
