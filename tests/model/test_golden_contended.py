"""Golden NICs: words that several NICs change at once have a serial history.

Sweep: 2 to 16 NICs, all six atomics and WRITEs of 1 to 8 bytes on one 8-byte word, also both of its halves,
one or two QPs a NIC, many random schedules. Stimulus: raw WQEs, several in flight per QP. Checks: returned
values and the final value fit one serial order in which each QP's operations keep theirs, found by
`pymodel.nic.serial`; planted faults of an atomic unit are refused. Timing: none. Does not prove: the RTL.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from pymodel.nic.golden import GoldenNic
from pymodel.nic.params import Cnt
from pymodel.nic.serial import Verdict, WordOp, serial_order
from tests.model.golden_bench import ATOMICS, Bench, Queue

Maker = Callable[[random.Random, int], WordOp]


def any_op(rng: random.Random, step: int) -> WordOp:
    """Any operation on any part of the word."""
    if rng.random() < 0.2:
        size = rng.choice([8, 8, 4, 2, 1])
        return WordOp(
            "write", data=rng.getrandbits(8 * size), size=size, offset=rng.randrange(0, 9 - size, size)
        )
    opcode = rng.choice(list(ATOMICS))
    few = [0, 1, 2, 0xFFFF_FFFF, (1 << 64) - 1]
    operands = (rng.choice(few), rng.choice(few), rng.choice(few), rng.choice(few))
    return WordOp("atomic", opcode=opcode, operands=operands, offset=rng.choice([0, 8 - ATOMICS[opcode][2]]))


def fetch_add(rng: random.Random, step: int) -> WordOp:
    """Counters."""
    return WordOp("atomic", opcode=27, operands=(1, 0, 0, 0))


def swaps(rng: random.Random, step: int) -> WordOp:
    """Whole words that tell who wrote them, and adds to them."""
    value = rng.getrandbits(48) << 16
    return rng.choice([
        WordOp("write", data=value), WordOp("atomic", opcode=31, operands=(value, 0, (1 << 64) - 1, 0)),
        WordOp("atomic", opcode=27, operands=(1, 0, 0, 0)),
    ])  # fmt: skip


def post(queue: Queue, op: WordOp, step: int) -> None:
    """One operation on the word of PE 0; its result goes to a cell of its own."""
    fields: dict[str, Any] = {"raddr": queue.dst + op.offset}
    if op.kind == "write":
        source = queue.src + 16 * step
        queue.backend.store(queue.pe, source, op.data.to_bytes(op.size, "little"))
        queue.post(ring=False, msg_len=op.size, laddr=source, **fields)
        return
    masks = (
        dict(zip(("swap_mask", "compare_mask"), op.operands[2:], strict=True))
        if op.opcode in (31, 33)
        else {}
    )
    queue.post(ring=False, msg_opcode=op.opcode, laddr=queue.sink + 16 * step, swap_add=op.operands[0],
               compare=op.operands[1], **masks, **fields)  # fmt: skip


def contend(nics: int, qps: int, count: int, make: Maker, seed: int, spoil: Any = None) -> Verdict:
    """All NICs but the first work on one word of the first; the verdict on what they saw."""
    depth = 1 << max(count - 1, 1).bit_length()
    config = {
        "n_pes": nics,
        "qps": qps,
        "mtus": (256,),
        "heap_bytes": 8 << 20,
        "sq_depths": (depth,),
        "seed": seed,
    }
    bench = Bench("random", config, seed=seed, sq_depth=depth, cq_depth=depth)
    rng = random.Random(f"{nics} {seed}")
    word = bench.queue(1, 0).dst
    initial = rng.choice([0, (1 << 64) - 3, rng.getrandbits(64)])
    bench.backend.store(0, word, initial.to_bytes(8, "little"))
    if spoil is not None:
        spoil(bench.nic, word, rng)
    plans = []
    for pe in range(1, nics):
        for qp in range(qps):
            queue = bench.queue(pe, 0, qp)
            queue.src, queue.sink = queue.src + 65536 * qp, queue.sink + 65536 * qp
            plans.append((queue, [make(rng, step) for step in range(count)]))
    for queue, plan in plans:
        for step, op in enumerate(plan):
            post(queue, op, step)
    for queue, _ in plans:
        queue.ring(queue.head)
    bench.work()
    ops = []
    for queue, plan in plans:
        assert queue.codes() == [0] * count
        for step, op in enumerate(plan):
            returned = None
            if op.kind == "atomic":
                size = ATOMICS[op.opcode][2]
                raw = bench.backend.memory(queue.pe, queue.sink + 16 * step, size).tobytes()
                returned = int.from_bytes(raw, "little" if size == 8 else "big")
            ops.append(
                WordOp(op.kind, (queue.pe, queue.plan.qp_idx), op.opcode, op.operands, returned, op.data,
                       op.offset, op.size, name=f"op {step} of PE {queue.pe}")
            )  # fmt: skip
    assert bench.nic.counters[Cnt.ATOMIC] == sum(op.kind == "atomic" for op in ops)
    return serial_order(ops, initial, int.from_bytes(bench.backend.memory(0, word, 8).tobytes(), "little"))


@pytest.mark.parametrize("make", [any_op, fetch_add, swaps])
@pytest.mark.parametrize(
    ("nics", "qps", "count"), [(2, 1, 30), (2, 4, 12), (3, 2, 16), (5, 1, 16), (16, 1, 6)]
)
def test_a_serial_order_explains_everything(nics: int, qps: int, count: int, make: Maker) -> None:
    """And no operation is lost: the atomics executed are as many as those posted."""
    for seed in range(4 if nics < 16 else 2):
        verdict = contend(nics, qps, count, make, seed)
        assert verdict.good, verdict.reason


def _stale(nic: GoldenNic, word: int, rng: random.Random) -> None:
    """Sometimes an atomic works on what the one before it found."""
    read, last = nic.memory.nic_read, [b""]

    def spoiled(addr: int, length: int) -> bytes:
        data = read(addr, length)
        if addr == word and length == 8:
            if last[0] and rng.random() < 0.1:
                return last[0]
            last[0] = data
        return data

    nic.memory.nic_read = spoiled  # type: ignore[method-assign]


def _lost(nic: GoldenNic, word: int, rng: random.Random) -> None:
    """Sometimes a write is lost."""
    write = nic.memory.nic_write

    def spoiled(addr: int, data: bytes) -> None:
        if not (addr == word and rng.random() < 0.05):
            write(addr, data)

    nic.memory.nic_write = spoiled  # type: ignore[method-assign]


def _torn(nic: GoldenNic, word: int, rng: random.Random) -> None:
    """Sometimes only half of a word is written."""
    write = nic.memory.nic_write

    def spoiled(addr: int, data: bytes) -> None:
        half = addr == word and len(data) == 8 and rng.random() < 0.1
        write(addr, data[:4] if half else data)

    nic.memory.nic_write = spoiled  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("spoil", "make", "words"),
    [(_stale, fetch_add, "was there"), (_lost, fetch_add, "was there"), (_lost, swaps, "was there"),
     (_torn, swaps, "was there"), (_stale, swaps, "was there|at best")],
)  # fmt: skip
def test_planted_faults_of_an_atomic_unit_are_refused(spoil: Any, make: Maker, words: str) -> None:
    """Each fault leaves a history without an order, in nearly every run."""
    found = 0
    for seed in range(8):
        verdict = contend(4, 1, 16, make, seed, spoil)
        if not verdict.good:
            found += 1
            assert any(w in verdict.reason for w in words.split("|")), verdict.reason
    assert found >= 6
