"""Responses that do not fit the READ or atomic they answer: aa, a8, a NAK, or dropped and nothing else.

Sweep: READs of 0 bytes and of one to four packets, atomics of 8 and 4 bytes; in each place of the answer
every other data opcode (aa), with the right length and with a wrong one; lengths off by one, by a word,
empty, and of a whole MTU (a8); syndromes that data cannot carry; PSNs one behind, one ahead and far off; ACKs
that pass the READ; NAK 1, 2 and 3 at it, NAK 2 behind it.
Stimulus: frames into the requester's port while the true request is still on a slow link: the right answer up
to that place, the strange frame, the rest of the right answer. A WRITE before, a WRITE and a READ behind.
Checks: codes in posting order; the sink holds the bytes of the right packets and none of the strange one;
dropped frames are counted; the judge's (counters, results, CQEs).
Timing: none. Not proved: retries, which a loss would ask for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cocotb

from pymodel.formats import packet
from pymodel.formats.packet import Bth
from pymodel.formats.wqe import WqeOp
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from pymodel.platform import sleep
from tb.sim.platform import Rig
from tests.nic.raw import FLUSH, RawQp, renew
from tests.nic.stage import DEPTH, OWN, READS, Stage, local

PES = 2
QPS = 31
MTU = 256
#: cycles until a request arrives at the responder
SLOW = 9000
DATA = (Bth.READ_FIRST, Bth.READ_MIDDLE, Bth.READ_LAST, Bth.READ_ONLY, Bth.ATOMIC_ACK)
#: of the WRITE in front: one PSN
BEFORE = 1


@dataclass(frozen=True)
class Case:
    """What is asked for, where in the answer a strange frame comes, and how the WQE ends.

    ``place``: packets of the right answer before it. ``code`` 0: the right answer follows and completes it.
    ``psn``: offset of the frame's PSN from that of its place. ``counts``: what counts it, if it is dropped.
    """

    name: str
    op: WqeOp
    length: int
    place: int
    code: int
    opcode: int
    payload: int = 0
    syndrome: int = 0x1F
    psn: int = 0
    counts: Cnt | None = None


def answer(op: WqeOp, length: int) -> list[tuple[int, int]]:
    """(opcode, payload bytes) of each packet of the right answer, from wire.md 2 and 5 alone."""
    if op != WqeOp.READ:
        return [(Bth.ATOMIC_ACK, 0)]
    if length <= MTU:
        return [(Bth.READ_ONLY, length)]
    whole, rest = divmod(length - 1, MTU)
    return [(Bth.READ_FIRST, MTU), *[(Bth.READ_MIDDLE, MTU)] * (whole - 1), (Bth.READ_LAST, rest + 1)]


def cases() -> Iterator[Case]:
    """All of them; shapes: empty, Only, a whole MTU, two packets, three, and four whole ones."""
    shapes = [(WqeOp.READ, n) for n in (0, 5, MTU, MTU + 1, 2 * MTU + 70, 4 * MTU)]
    for op, length in [*shapes, (WqeOp.MCAS64, 8), (WqeOp.MFA32, 4)]:
        right = answer(op, length)
        yield Case("nothing strange", op, length, 0, 0, Bth.ACK, psn=-1)
        for place, (opcode, size) in enumerate(right):
            for wrong in DATA:
                if wrong != opcode:
                    # both the length that the place wants and one that would be wrong there, too
                    lengths = (0,) if wrong == Bth.ATOMIC_ACK else (size, size + 1)
                    for n in lengths:
                        yield Case(f"opcode {wrong:#x}, {n} bytes", op, length, place, 0xAA, wrong, n)
            if op == WqeOp.READ:
                sizes = {size - 1, size + 1, size - 4, size + 4, 0, MTU, MTU + 1, 4096} - {size}
                for n in sorted(n for n in sizes if n >= 0):
                    yield Case(f"{n} bytes for {size}", op, length, place, 0xA8, opcode, n)
            if opcode != Bth.READ_MIDDLE:
                for syndrome in (0x20, 0x3F, 0x40, 0x60, 0x61, 0x62, 0x63, 0x64, 0x7F, 0x80, 0x9F, 0xFF):
                    yield Case(
                        f"syndrome {syndrome:#x}", op, length, place, 0, opcode, size, syndrome,
                        counts=Cnt.DROP_SYNDROME,
                    )  # fmt: skip
            for psn in (-1, 1, -(1 << 22), 1 << 22, 1 << 23):
                yield Case(
                    f"PSN {psn:+}", op, length, place, 0, opcode, size, psn=psn, counts=Cnt.DROP_RESPONSE
                )
            for psn in (0, 1):
                yield Case(f"ACK of PSN {psn:+}", op, length, place, 0, Bth.ACK, psn=psn)
            # a NAK that passes the READ speaks of a packet behind it: the true answers come later
            yield Case("NAK behind it", op, length, place, 0, Bth.ACK, syndrome=0x62, psn=len(right) - place)
            for nak, code in ((1, 0xA4), (2, 0xA5), (3, 0xA6)):
                yield Case(f"NAK {nak}", op, length, place, code, Bth.ACK, syndrome=0x60 | nak)


ALL = list(cases())


def build(seed: int) -> Fabric:
    """QPs of one MTU, both formats and strides."""
    return Fabric.build(
        FabricConfig.mixed(
            2, QPS, seed, mtus=(MTU,), sq_depths=(DEPTH,), cq_factors=(1,), heap_bytes=32 << 20
        )
    )


def frame(qp: RawQp, psn: int, opcode: int, payload: bytes, syndrome: int, orig: int) -> bytes:
    """A response from the peer of ``qp``."""
    mine, peer = qp.fabric.pes[qp.plan.pe], qp.fabric.pes[qp.plan.peer]
    fields: dict[str, Any] = {
        "dst_mac": mine.mac, "src_mac": peer.mac, "dst_ip": mine.ip, "src_ip": peer.ip, "udp_sport": 0xC000,
        "dest_qp": qp.plan.qpn, "psn": psn % (1 << 24), "opcode": opcode,
    }  # fmt: skip
    if opcode != Bth.READ_MIDDLE:
        fields |= {"syndrome": syndrome, "msn": 7}
    if opcode == Bth.ATOMIC_ACK:
        fields["orig"] = orig
    return packet.frame(fields, payload)


async def strange(rig: Rig, qp: RawQp, case: Case, psn: int, rng: random.Random) -> list[int]:
    """Post, answer in the responder's place, and give the codes. ``psn``: of the WRITE in front."""
    size = {"msg_len": case.length, "r_len": case.length, "l_len": case.length}
    sink = local(qp, OWN)
    memory = rig.lib.memory(qp.plan.pe, sink - 64, (12 << 10) + 128)
    rig.lib.store(qp.plan.pe, sink - 64, bytes(len(memory)))
    if case.op == WqeOp.READ:
        item = qp.read(0, **size, laddr=sink)
    else:
        item = qp.atomic(case.op, 0, laddr=sink)
    behind = [qp.fields(40, 4096, ce=rng.randrange(2)), qp.read(40, 0, laddr=local(qp, READS))]
    await qp.post(qp.fields(40, 0), item, *behind)
    await sleep(2000)
    right = answer(case.op, case.length)
    data = rng.randbytes(case.length) if case.op == WqeOp.READ else b""
    value = rng.getrandbits(8 * case.length) if case.op != WqeOp.READ else 0

    def send(k: int) -> None:
        # any credit count is an ACK
        opcode, n = right[k]
        part = data[k * MTU : k * MTU + n]
        rig.lib.inject(qp.plan.pe, frame(qp, psn + BEFORE + k, opcode, part, rng.randrange(32), value))

    for k in range(case.place):
        send(k)
    odd = rng.randbytes(case.payload)
    at = psn + BEFORE + case.place + case.psn
    rig.lib.inject(qp.plan.pe, frame(qp, at, case.opcode, odd, case.syndrome, rng.getrandbits(64)))
    # a WQE that failed by a strange frame takes nothing of what comes after; no peer answers behind a NAK
    for k in range(case.place, len(right) if case.code in (0, 0xA8, 0xAA) else 0):
        send(k)
    await sleep(1500)
    if case.code:
        written = data[: case.place * MTU]
    elif case.op == WqeOp.READ:
        written = data
    else:
        written = value.to_bytes(8, "little") if case.length == 8 else value.to_bytes(4, "big")
    assert bytes(memory[64 : 64 + len(written)]) == written, f"{case}: what was right is there"
    assert not memory[:64].any() and not memory[64 + len(written) :].any(), f"{case}: nothing else is"
    wait = 4 if case.code or behind[0]["ce"] else 3
    found = await qp.collect(wait)
    await qp.ring_cq()
    codes = found["error_code"].tolist()
    return codes if wait == 4 else [*codes[:2], 0, codes[2]]


async def lap(stage: Stage, chosen: list[Case]) -> None:
    """One lap: a QP of PE 0 for each case."""
    rig, rng, jobs = stage.rig, stage.rng, []
    for q, case in enumerate(chosen):
        qp, psn = stage.ends[0, 1, q], rng.choice((rng.randrange(1 << 24), (1 << 24) - rng.randrange(1, 4)))
        await renew(rig, qp, stage.ends[1, 0, q], (psn, rng.randrange(1 << 24)))
        jobs.append((qp, strange(rig, qp, case, psn, random.Random(rng.random()))))
    names = (Cnt.DROP_SYNDROME, Cnt.DROP_RESPONSE)
    before = {counter: await stage.console[0].counter(counter) for counter in names}
    for case, codes in zip(chosen, await stage.beside(*jobs), strict=True):
        due = [0, case.code, FLUSH, FLUSH] if case.code else [0] * 4
        assert codes == due, f"{case}: {[hex(c) for c in codes]}"
    await rig.settle()
    for counter in names:
        seen = await stage.console[0].counter(counter) - before[counter]
        due = sum(case.counts == counter for case in chosen)
        assert seen == due if counter == Cnt.DROP_SYNDROME else seen >= due, f"{counter.name}: {seen}, {due}"


@cocotb.test()
async def test_strange_responses(dut):
    """All cases in random order, a lap of QPs at a time."""
    stage = Stage(dut, build(cocotb.RANDOM_SEED), ())
    await stage.start()
    stage.rig.lib.set_knob("link_latency", SLOW, 1)
    order = ALL[:]
    stage.rng.shuffle(order)
    for first in range(0, len(order), QPS):
        await lap(stage, order[first : first + QPS])
    await stage.rig.check()
