"""All operations mixed between all PEs: what ``make sim`` runs. Sizes of the run: programs page, section 6.

Between each two PEs: QP 0 carries the 14 atomics (some on words of one PE, some on words that all contend
for), signals, small puts and gets, and the barriers; the data QPs carry puts and gets of 0 B to 1 MiB, one QP
per MTU; on the last QPs, after three laps of good puts, one WQE fails on purpose while the data goes on. Both
formats, all driver generations, dirty rings and scratches, counters close to their wraps.

Everything is drawn from the seed, so each PE knows what the others do and checks it: the old value of every
synchronous atomic on a word of its own, bounds of the contended ones and their final sums, every byte that
was got or put, and the code of each error.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from pymodel.device import (
    DeviceTrap,
    Generation,
    Opcode,
    Operands,
    Pe,
    SendWr,
    aclshmemi_roce_fill_wqe,
    aclshmemi_roce_poll_cq,
    aclshmemi_roce_post_send,
    aclshmemi_roce_ring_sq_doorbell,
    aclshmemi_roce_write,
    aclshmemx_roce_qp_get_defer,
    aclshmemx_roce_qp_get_submit,
    aclshmemx_roce_qp_put_defer,
    aclshmemx_roce_qp_put_submit,
)
from pymodel.host.table import FabricConfig

KIB, MIB = 1 << 10, 1 << 20
MTUS = (256, 512, 1024, 2048, 4096)
WINDOW = MIB + 4 * KIB
"""Bytes of the landing window of one QP and direction: the largest message at any offset within a page."""
POOL = MIB + 64 * KIB
"""Bytes of random data of each PE, which puts and gets take their messages from; read-only after start."""
LAPS = 3
DATA_WQES = 8_000
"""Data messages of all PEs, at least."""
WHOLE_MIB = 24
"""Messages of 1 MiB."""
BEYOND = 1 << 40
"""Added to a heap address: where no key reaches."""
TYPES = (np.int32, np.uint32, np.int64, np.uint64)
ERRORS = {
    "key of a put": 0xA5, "key of a get": 0xA5, "key of an atomic": 0xA5, "source": 0xA7, "sink": 0xA7,
    "misaligned": 0x89, "right of a get": 0xA4, "right of an atomic": 0xA4, "too long": 0x9F,
    "malformed": 0xAB, "unsignalled": 0xA5,
}  # fmt: skip
"""Errors provoked, and the code of each; the last takes a batch, so a driver of G3."""


# ---------------------------------------------------------------------- what the seed decides
class Roles(NamedTuple):
    """QPs between two PEs: 0, then the data QPs, then those for errors."""

    data: range
    errors: range

    @classmethod
    def of(cls, n_pes: int) -> Roles:
        """As many as a NIC has QPs for."""
        qps = min(1 + len(MTUS) + 2, 60 // max(n_pes - 1, 1))
        errors = 2 if qps > 4 else 1
        return cls(range(1, qps - errors), range(qps - errors, qps))


def generation_of(seed: int, rank: int) -> Generation:
    """Each PE has a driver of its own."""
    return Generation(1 + (seed + rank) % 3)


def depth_of(seed: int, n_pes: int, key: tuple[int, int, int]) -> int:
    """SQ depth of a QP; short rings where there are many."""
    depths = (16, 16, 16, 32, 32, 32, 64, 128) if n_pes <= 8 else (16, 32)
    if key[2] not in Roles.of(n_pes).data:
        depths = (16, 32)
    return random.Random(f"mixed depth {seed} {key}").choice(depths)


def error_of(seed: int, n_pes: int, low: int, high: int, qp: int) -> tuple[int, str]:
    """Who of two PEs provokes an error on QP ``qp``, and what: each kind in turn over pairs and QPs.

    The other one's direction dies with it.
    """
    errors, kinds = Roles.of(n_pes).errors, list(ERRORS)
    pair = low * (2 * n_pes - low - 1) // 2 + high - low - 1
    kind = kinds[(pair * len(errors) + qp - errors.start + seed) % len(kinds)]
    ends = [low, high]
    if kind == "unsignalled":
        ends = [pe for pe in ends if generation_of(seed, pe) is Generation.G3]
    if not ends:
        ends, kind = [low, high], kinds[0]
    return random.Random(f"mixed provoker {seed} {low} {high} {qp}").choice(ends), kind


def fabric(n_pes: int, seed: int) -> FabricConfig:
    """Both versions, both strides, every MTU, depths 16 to 128, all counters close to a wrap."""
    roles = Roles.of(n_pes)
    qps = roles.errors.stop
    overrides: dict[tuple[int, int, int], dict[str, object]] = {}
    turn = seed
    for low in range(n_pes):
        for high in range(low + 1, n_pes):
            turn += 1
            for qp in range(qps):
                for pe, peer in ((low, high), (high, low)):
                    depth = depth_of(seed, n_pes, (pe, peer, qp))
                    factor = random.Random(f"mixed cq {seed} {pe} {peer} {qp}").choice((1, 2, 4))
                    overrides[pe, peer, qp] = {
                        "mtu": MTUS[(turn + qp) % len(MTUS)], "sq_depth": depth, "cq_depth": depth * factor,
                    }  # fmt: skip
                    if qp == roles.data.start and generation_of(seed, pe) is Generation.G3:
                        overrides[pe, peer, qp]["ignore_overrun"] = True
            for qp in roles.errors:
                mine, kind = error_of(seed, n_pes, low, high, qp)
                if kind.startswith("right"):
                    right = "rem_read" if kind == "right of a get" else "rem_atomic"
                    overrides[low + high - mine, mine, qp][right] = False
    heap = 4 * MIB + 2 * (n_pes - 1) * len(roles.data) * (WINDOW + 4 * KIB)
    return FabricConfig.mixed(
        n_pes,
        qps,
        seed,
        heap_bytes=-(-heap // MIB) * MIB,
        overrides=overrides,
        generation=[generation_of(seed, rank) for rank in range(n_pes)],
        ub_fill="dirty",
    )


def pool(seed: int, rank: int) -> bytes:
    """The data of PE ``rank``."""
    return np.random.default_rng([seed, rank]).bytes(POOL)


class Message(NamedTuple):
    """One put or get: ``size`` bytes from offset ``source`` of a pool to offset ``target`` of a window."""

    get: bool
    size: int
    source: int
    target: int


def messages(seed: int, n_pes: int, key: tuple[int, int, int]) -> list[Message]:
    """What PE key[0] does on data QP key[2] to PE key[1].

    Sizes log-uniform in [1, 64 KiB], one in 32 of zero bytes; some QPs have messages of a whole MiB.
    """
    rng = random.Random(f"mixed data {seed} {key}")
    data = Roles.of(n_pes).data
    rings = n_pes * (n_pes - 1) * len(data)
    count = max(LAPS * depth_of(seed, n_pes, key) + 24, -(-DATA_WQES // rings))
    sizes = [0 if rng.randrange(32) == 0 else int(2 ** rng.uniform(0, 16)) for _ in range(count)]
    pe, peer, qp = key
    place = (pe * (n_pes - 1) + (peer if peer < pe else peer - 1)) * len(data) + qp - data.start
    whole = WHOLE_MIB // rings + (place * WHOLE_MIB % rings < WHOLE_MIB % rings)
    for at in rng.sample(range(count), whole):
        sizes[at] = MIB
    return [
        Message(rng.random() < 0.35, size, rng.randrange(POOL - size), rng.randrange(WINDOW - size))
        for size in sizes
    ]


def landed(content: bytes, taken: list[Message]) -> bytearray:
    """The window after these messages out of pool ``content``."""
    out = bytearray(WINDOW)
    for message in taken:
        out[message.target : message.target + message.size] = content[
            message.source : message.source + message.size
        ]
    return out


# ---------------------------------------------------------------------- data QPs
async def move(pe: Pe, key: tuple[int, int, int], source: int, put_to: int, get_to: int) -> int:
    """All messages of one data QP, in batches now and then where the driver has them, then a quiet."""
    _, peer, qp = key
    todo = messages(pe.seed, pe.n_pes, key)
    rng = random.Random(f"mixed batch {pe.seed} {key}")
    depth = pe.qp(peer, qp).depth
    # a longer batch would take the driver past the point where single posts look for room (device page 4.1)
    most = min(8, 15 if depth == 16 else depth - 16)
    buf = pe.local_tensor(1024 + 2048 * (peer * 8 + qp), 64 + 128 * most) if pe.n_pes <= 8 else None
    at = 0
    while at < len(todo):
        total = rng.randrange(2, most + 1) if buf and pe.driver.by_id and rng.random() < 0.2 else 1
        part = todo[at : at + total]
        for index, (get, size, start, target) in enumerate(part):
            last = index == len(part) - 1
            if len(part) == 1 or buf is None:
                if get:
                    await pe.get_nbi(get_to + target, source + start, size, peer, qp)
                else:
                    await pe.put_nbi(put_to + target, source + start, size, peer, qp)
            elif get:
                call = aclshmemx_roce_qp_get_submit if last else aclshmemx_roce_qp_get_defer
                await call(pe, get_to + target, source + start, buf, size, peer, qp, index)
            else:
                call = aclshmemx_roce_qp_put_submit if last else aclshmemx_roce_qp_put_defer
                await call(pe, put_to + target, source + start, buf, size, peer, qp, index)
        at += len(part)
    await pe.quiet(peer, qp)
    got = landed(pool(pe.seed, peer), [message for message in todo if message.get])
    assert pe.memory(get_to, WINDOW).tobytes() == got, f"{pe}: what QP {qp} got from PE {peer}"
    return len(todo)


# ---------------------------------------------------------------------- QP 0
SLOT = 64
"""Bytes of one source PE's place in the atomics area of a PE."""
OWN_WORDS = dict(zip(TYPES, (0, 8, 16, 24), strict=True))
"""Offset of the word of each type in a source PE's slot; behind them, at 32, its signal."""
SIGNAL = 32
CONTENDED = {"add": 0, "or": 8, "xor": 16, "compare_swap": 24}
"""Offsets of the words that all PEs work on, behind the slots."""


class Step(NamedTuple):
    """One operation on QP 0."""

    name: str
    kind: type[np.integer]
    value: int
    cond: int


OWN = (
    "fetch", "set", "compare_swap", "swap", "add", "inc", "fetch_add", "fetch_inc", "and_", "fetch_and",
    "or_", "fetch_or", "xor", "fetch_xor",
)  # fmt: skip
CONTENDING = (
    "contended add",
    "contended fetch_add",
    "contended or",
    "contended fetch_xor",
    "contended compare_swap",
)


def steps(seed: int, n_pes: int, rank: int, peer: int) -> list[Step]:
    """What PE ``rank`` does on QP 0 to PE ``peer``; three laps of its ring at least."""
    rng = random.Random(f"mixed control {seed} {rank} {peer}")
    out = []
    for number in range(LAPS * depth_of(seed, n_pes, (rank, peer, 0)) + 40):
        kind = rng.choice(TYPES)
        info = np.iinfo(kind)
        drawn = rng.random()
        if drawn < 0.6:
            name = OWN[number % len(OWN)]
        elif drawn < 0.75:
            name, kind, info = rng.choice(CONTENDING), np.uint64, np.iinfo(np.uint64)
        else:
            name = rng.choice(("put", "get", "signal"))
        value = rng.choice((0, 1, int(info.min), int(info.max), rng.randint(int(info.min), int(info.max))))
        if name in ("contended add", "contended fetch_add"):
            value = rng.randrange(1, 1 << 20)
        out.append(Step(name, kind, value, rng.randint(int(info.min), int(info.max))))
    return out


def after(name: str, old: int, value: int, cond: int) -> int:
    """The word after an atomic, before it is cut to its type."""
    return {
        "fetch": old, "set": value, "swap": value, "compare_swap": value if old == cond else old,
        "add": old + value, "inc": old + 1, "and": old & value, "or": old | value, "xor": old ^ value,
    }[name.removeprefix("fetch_").rstrip("_")]  # fmt: skip


async def control(pe: Pe, peer: int, area: int, source: int, window: int) -> int:
    """All steps of QP 0 to one PE, then a quiet; gives their number."""
    slot, shared = area + SLOT * pe.rank, area + SLOT * pe.n_pes
    words = dict.fromkeys(TYPES, 0)
    rng = random.Random(f"mixed small {pe.seed} {pe.rank} {peer}")
    seen = least = 0
    plan = steps(pe.seed, pe.n_pes, pe.rank, peer)
    for step in plan:
        name, kind, value, _ = step
        if name in ("put", "get"):
            size = rng.randrange(300)
            start, target = rng.randrange(POOL - size), rng.randrange(4 * KIB - size)
            if name == "put":
                await pe.put_nbi(window + 4 * KIB * pe.rank + target, source + start, size, peer)
            else:
                await pe.get_nbi(window + 4 * KIB * (pe.n_pes + peer) + target, source + start, size, peer)
        elif name == "signal":
            await pe.signal_set(slot + SIGNAL, value & 0xFFFF_FFFF, peer)
        elif name == "contended add":
            await pe.atomic.add(shared + CONTENDED["add"], value, peer, dtype=kind)
            least += value
        elif name == "contended fetch_add":
            old = await pe.atomic.fetch_add(shared + CONTENDED["add"], value, peer, dtype=kind)
            assert old >= max(seen, least), f"{pe}: contended counter of PE {peer} went back"
            seen, least = old, least + value
            pe.atomics_checked += 1
        elif name == "contended or":
            await pe.atomic.or_(shared + CONTENDED["or"], value, peer, dtype=kind)
        elif name == "contended fetch_xor":
            await pe.atomic.fetch_xor(shared + CONTENDED["xor"], value, peer, dtype=kind)
        elif name == "contended compare_swap":
            known, turn = 0, shared + CONTENDED["compare_swap"]
            while True:
                old = await pe.atomic.compare_swap(turn, known, known + 1, peer, dtype=kind)
                if old == known:
                    break
                assert old > known, f"{pe}: compare_swap of PE {peer} refused {known} and shows {old}"
                known = old
            pe.atomics_checked += 1
        else:
            old, args = apply(words, step)
            got = await getattr(pe.atomic, name)(slot + OWN_WORDS[kind], *args, peer, dtype=kind)
            if got is not None:
                assert got == old, f"{pe}: {name} on {np.dtype(kind)} of PE {peer} gave {got}, not {old}"
                pe.atomics_checked += 1
    await pe.quiet(peer, 0)
    return len(plan)


def apply(words: dict[type[np.integer], int], step: Step) -> tuple[int, tuple[int, ...]]:
    """Do an atomic on the word of its type; gives the old value and the arguments of the call."""
    name, kind, value, cond = step
    old = words[kind]
    cond = old if cond & 1 else cond
    args = {"fetch": (), "inc": (), "fetch_inc": (), "compare_swap": (cond, value)}.get(name, (value,))
    new = after("inc" if name == "fetch_inc" else name, old, value, cond)
    words[kind] = int(np.array(new & (1 << 64) - 1, np.uint64).astype(kind))
    return old, args


def check_area(pe: Pe, area: int) -> None:
    """The words of this PE against what all others did to them."""
    add = bits = parity = turns = 0
    for rank in range(pe.n_pes):
        if rank == pe.rank:
            continue
        words, signal = dict.fromkeys(TYPES, 0), 0
        for step in steps(pe.seed, pe.n_pes, rank, pe.rank):
            name, value = step.name, step.value
            if name in ("contended add", "contended fetch_add"):
                add += value
            elif name == "contended or":
                bits |= value
            elif name == "contended fetch_xor":
                parity ^= value
            elif name == "contended compare_swap":
                turns += 1
            elif name == "signal":
                signal = value & 0xFFFF_FFFF
            elif name in OWN:
                apply(words, step)
        slot = pe.memory(area + SLOT * rank, SLOT)
        for kind, offset in OWN_WORDS.items():
            got = slot[offset : offset + 8].view(kind)[0]
            assert got == words[kind], f"{pe}: atomics of PE {rank} gave {got}, not {words[kind]}"
        got = int(slot[SIGNAL : SIGNAL + 4].view(np.uint32)[0])
        assert got == signal, f"{pe}: signal of PE {rank} is {got:#x}, not {signal:#x}"
    shared = area + SLOT * pe.n_pes
    for name, expected in (("add", add), ("or", bits), ("xor", parity), ("compare_swap", turns)):
        got = int.from_bytes(pe.memory(shared + CONTENDED[name], 8).tobytes(), "little")
        assert got == expected & (1 << 64) - 1, f"{pe}: contended {name} gave {got:#x}, not {expected:#x}"


# ---------------------------------------------------------------------- QPs for errors
async def laps(pe: Pe, peer: int, qp: int, source: int, target: int) -> int:
    """Three laps of small puts that are good."""
    count = LAPS * pe.qp(peer, qp).depth + 24
    for number in range(count):
        await pe.put_nbi(target + number % 64, source + number, number % 48, peer, qp)
    await pe.quiet(peer, qp)
    return count


async def fail(pe: Pe, peer: int, qp: int, kind: str, source: int, target: int, sink: int) -> int:
    """One good put, the WQE that fails, then three that are flushed; gives the number of WQEs."""
    pe.expect_errors(peer, qp, ERRORS[kind], 0xFF)
    remote, there = pe.ptr(target, peer), pe.ptr(source, peer)
    await pe.put_nbi(target, source, 8, peer, qp)
    if kind == "malformed":
        head = pe.qp(peer, qp).sq_head
        await aclshmemi_roce_fill_wqe(pe, SendWr(source, remote, 8), peer, qp, head)
        # no such opcode
        await pe.store(pe.qp(peer, qp).sq_addr + 128 * (head % pe.qp(peer, qp).depth), b"\x63")
        await aclshmemi_roce_ring_sq_doorbell(pe, peer, qp, head + 1 & 0xFFFF_FFFF)
    elif kind == "unsignalled":
        buf = pe.local_tensor(0, 64 + 128 * 3)
        for index, to in enumerate((target, target + BEYOND, target)):
            call = aclshmemx_roce_qp_put_submit if index == 2 else aclshmemx_roce_qp_put_defer
            await call(pe, to, source, buf, 8, peer, qp, index)
    else:
        outside = pe.heap_base + pe.heap_size + 4 * KIB * (8 * peer + qp)
        await aclshmemi_roce_post_send(pe, {
            "key of a put": SendWr(source, remote + BEYOND, 600),
            "key of a get": SendWr(sink, there + BEYOND, 600, Opcode.READ),
            "key of an atomic": SendWr(0, remote + BEYOND, 0, Opcode.MFA64, operands=Operands(1)),
            "source": SendWr(outside, remote, 600),
            "sink": SendWr(outside, there, 600, Opcode.READ),
            "misaligned": SendWr(0, remote + 4, 0, Opcode.FA64, operands=Operands(1)),
            "right of a get": SendWr(sink, there, 600, Opcode.READ),
            "right of an atomic": SendWr(0, remote, 0, Opcode.MCAS32, operands=Operands(1)),
            "too long": SendWr(source, remote, (1 << 31) + 4),
        }[kind], peer, qp)  # fmt: skip
    for _ in range(3):
        await aclshmemi_roce_write(pe, remote, source, peer, qp, 8)
    state = pe.qp(peer, qp)
    codes: list[int] = []
    while state.cq_tail != state.sq_head:
        try:
            status = await aclshmemi_roce_poll_cq(pe, peer, qp, state.sq_head)
        except DeviceTrap as trap:
            # the kernel of a real device would end here; the tail stays before the CQE that failed
            codes.append(trap.code)
            break
        codes.append(status)
    expected = [ERRORS[kind]] if pe.driver.by_id else [ERRORS[kind], 0xFF, 0xFF, 0xFF]
    assert codes == expected, f"{pe}: {kind} on QP {qp} to PE {peer} gave {[hex(code) for code in codes]}"
    return 5


# ---------------------------------------------------------------------- all together
async def meet(pe: Pe) -> None:
    """Wait for all PEs. In a task of its own, which owns QP 0 for that long only."""
    await pe.join(await pe.spawn(pe.sync_all(), "sync"))


async def main(pe: Pe) -> int:
    """Fill the pool, run one task per QP; gives the number of WQEs that this PE meant to post."""
    n, roles = pe.n_pes, Roles.of(pe.n_pes)
    source, area, small = pe.alloc(POOL), pe.alloc(SLOT * n + 64), pe.alloc(8 * KIB * n)
    peers = [peer for peer in range(n) if peer != pe.rank]
    # symmetric windows: put_to[r, qp] takes what PE r puts here, get_to[r, qp] what this PE gets from PE r
    others = range(n - 1)
    put_to = {(other, qp): pe.alloc(WINDOW) for other in others for qp in roles.data}
    get_to = {(other, qp): pe.alloc(WINDOW) for other in others for qp in roles.data}
    # per QP for errors: 1 KiB that each PE puts to, then 1 KiB per peer that is got into
    scrap = {qp: pe.alloc(2 * KIB * n) for qp in roles.errors}
    await pe.store(source, pool(pe.seed, pe.rank))
    await meet(pe)

    def window_of(owner: int, other: int) -> int:
        """Number of PE ``other`` among the peers of ``owner``."""
        return other if other < owner else other - 1

    bulk, brief = [], []
    for peer in peers:
        for qp in roles.data:
            target = put_to[window_of(peer, pe.rank), qp]
            program = move(pe, (pe.rank, peer, qp), source, target, get_to[window_of(pe.rank, peer), qp])
            bulk.append(await pe.spawn(program, f"QP {qp} to PE {peer}"))
        brief.append(await pe.spawn(control(pe, peer, area, source, small), f"QP 0 to PE {peer}"))
        for qp in roles.errors:
            program = laps(pe, peer, qp, source, scrap[qp] + KIB * pe.rank)
            brief.append(await pe.spawn(program, f"laps of QP {qp} to PE {peer}"))
    wqes = sum([await pe.join(task) for task in brief])
    # where one end fails the other has nothing under way on that QP; the data QPs go on
    await meet(pe)
    for peer in peers:
        low, high = min(pe.rank, peer), max(pe.rank, peer)
        for qp in roles.errors:
            mine, kind = error_of(pe.seed, n, low, high, qp)
            if mine == pe.rank:
                target, sink = scrap[qp] + KIB * pe.rank, scrap[qp] + KIB * (n + peer)
                program = fail(pe, peer, qp, kind, source, target, sink)
                bulk.append(await pe.spawn(program, f"error on QP {qp} to PE {peer}"))
    wqes += sum([await pe.join(task) for task in bulk])
    await meet(pe)
    for peer in peers:
        for qp in roles.data:
            sent = [message for message in messages(pe.seed, n, (peer, pe.rank, qp)) if not message.get]
            got = pe.memory(put_to[window_of(pe.rank, peer), qp], WINDOW).tobytes()
            assert got == landed(pool(pe.seed, peer), sent), f"{pe}: what PE {peer} put on QP {qp}"
    check_area(pe, area)
    return wqes
