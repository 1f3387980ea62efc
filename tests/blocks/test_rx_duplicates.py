"""Duplicate requests at the responder (rtl/responder): what a requester sends again after a loss.

Sweep: WRITEs, READs and atomics repeated from any earlier PSN (whole runs, single packets, READs resumed at
any packet and cut short), in mid-message too, all MTUs, PSNs across the wrap, several QPs, all ports stalled;
saved results of 1 to 16 atomics and those that gave way; atomics repeated before they are executed; full
table; refused READs; bus errors; invalidation; reset in between.
Stimulus: frames on the link, one at a time or back to back.
Checks, against a responder from wire.md 5 (duplicates_model.py): one at a time the exact answers and counters
of every packet; back to back every answer in its order, with duplicates missing only where they may be;
atomics and WRITEs exactly once in memory; no ACK lost; new requests never refused because of duplicates.
Timing: answers of duplicates wait for earlier write responses.
Not proved here: first-time requests with errors (test_rx_responder.py, test_rx_reads.py), PSNs that come
round (test_resp_saved.py), the requester.
"""

import random
from dataclasses import replace

import cocotb

from tests.blocks import rx_driver
from tests.blocks.duplicates_model import (
    ACK_OP,
    MOD,
    NAK_ACC,
    NAK_OP,
    NO_SAVE,
    REGION,
    Checker,
    Model,
    Traffic,
    header,
)
from tests.blocks.rx_driver import (
    ATOMIC,
    ATOMIC_ACK,
    FA64,
    NAK_TX,
    ONLY,
    RD_TOO_MANY,
    READ,
    READ_LAST,
    READ_ONLY,
    READ_REQ,
    Bench,
    Frame,
    Peer,
    Reply,
    good,
    reth,
)

BENCH = rx_driver.BENCH
MRN = 9
ALL_RIGHTS = 15


async def program(bench: Bench, qpi: int, rkey: int, mtu: int | None = None, **changes: object) -> Model:
    """Programs a QP with a random start PSN, often before the wrap."""
    mtu = random.randrange(1, 6) if mtu is None else mtu
    psn = int(changes.pop("psn", random.choice([0, MOD - 1, MOD - 9, random.randrange(MOD)])))  # type: ignore[call-overload]
    peer = Peer(mtu=mtu, rq_psn=psn, peer_qpn=500 + qpi, sport=0xC000 + qpi, **changes)  # type: ignore[arg-type]
    await bench.set_qp(qpi, peer)
    return Model(bench, qpi, mtu, psn, rkey, peer.max_dest_rd, peer.rem_read)


async def ready(dut, latency: int = 5, stall: int = 0, **knobs: float) -> tuple[Bench, int]:
    """A bench with one region with all rights; its rkey."""
    bench = Bench(dut, **knobs)
    await bench.start(latency=latency, stall=stall)
    return bench, await bench.set_mr(MRN, *REGION, rights=ALL_RIGHTS)


def count(bench: Bench, number: int) -> int:
    """A counter by its number."""
    return bench.counts().get(str(number), 0)


async def exchange(bench: Bench, model: Model, frame: Frame, idle: int = 40) -> None:
    """Sends a packet with everything quiet: exactly its answers, its counters, and no others."""
    before, atomics = bench.counts(), int(bench.dut.atomics_o.value)
    verdict = model.receive(frame)
    bench.send(frame)
    await bench.until(lambda: not bench.wire)
    want = len(verdict.replies)
    await bench.until(lambda: len(bench.frames) >= want, 8000)
    await bench.idle(idle)
    got = bench.replies()
    assert got == verdict.replies, f"{frame}: {got}, want {verdict.replies}"
    moved = {k: v - before.get(k, 0) for k, v in bench.counts().items() if v != before.get(k, 0)}
    expected = verdict.counts | ({"tx_response": want} if want else {})
    assert moved == expected, f"{frame}: counters {moved}, want {expected}"
    executed = verdict.counts.get(str(ATOMIC), 0)
    assert int(bench.dut.atomics_o.value) - atomics == executed, f"{frame}: reads of the atomic unit"


def spoil(frame: Frame, model: Model) -> Frame:
    """A duplicate READ with something wrong."""
    va, rkey, length = header(frame)
    length = length or 1
    base, room = REGION
    behind = (model.psn - frame.psn) % MOD
    ext = random.choice(
        [
            reth(va, rkey ^ 1, length),
            reth(va, rkey ^ 0x100, length),
            reth(base - 1, rkey, length),
            reth(base + room - length + 1, rkey, length),
            reth(base, rkey, behind * model.size + 1),
            reth(base, rkey, (1 << 31) + 1),
        ]
    )
    return replace(frame, ext=ext)


@cocotb.test()
@cocotb.parametrize(mtu=[1, 2, 3, 4, 5])
async def test_one_at_a_time(dut, mtu: int) -> None:
    """Fresh packets, repeats, packets ahead, duplicate READs that are refused: the exact effect of each."""
    bench, rkey = await ready(dut)
    users = [
        Traffic(await program(bench, q, rkey, mtu, max_dest_rd=random.choice([1, 3, 16]))) for q in range(3)
    ]
    errs, repeats = 0, 0
    for _ in range(220):
        user = random.choice(users)
        model, way = user.model, random.random()
        if user.sent and way < 0.55:
            frame = user.repeat()
            if frame.opcode == READ_REQ and random.random() < 0.2:
                frame = spoil(frame, model)
            repeats += 1
        elif way < 0.63:
            frame = replace(user.frame(ONLY, b"lost", reth(0x12000, rkey, 4)), psn=(model.psn + 1) % MOD)
        else:
            frame = user.fresh(random.choice(["write", "read", "atomic", "atomic"]))
        await exchange(bench, model, frame)
        if model.dead:
            errs += 1
            assert int(dut.errs_o.value) == int(dut.asyncs_o.value) == errs
            await exchange(bench, model, user.repeat())
            await bench.reset_qp(model.qpi)
            user.model = await program(bench, model.qpi, rkey, mtu, rem_read=random.random() < 0.7)
            user.sent.clear()
            user.again.clear()
            if not user.model.read_right:
                # a READ can only be a duplicate here, of something that never was
                await exchange(bench, user.model, user.fresh("write"))
                wrong = replace(user.sent.pop(), opcode=READ_REQ, payload=b"", ext=reth(0x1000, rkey, 8))
                await exchange(bench, user.model, wrong)
                errs += 1
                await bench.reset_qp(model.qpi)
                user.model = await program(bench, model.qpi, rkey, mtu)
                user.sent.clear()
    assert repeats > 60
    for user in users:
        while user.model.left:
            await exchange(bench, user.model, user.fresh("write"))
        await exchange(bench, user.model, user.fresh("read"))
        await exchange(bench, user.model, spoil(user.sent[-1], user.model))
        errs += 1
        assert int(dut.errs_o.value) == int(dut.asyncs_o.value) == errs
    await bench.compare()


#: (latency, memory stall, gaps on the receive side, stalls of the transmit side)
CASES = [(5, 0, 0.0, 0.0), (200, 0, 0.0, 0.0), (40, 120, 0.2, 0.3), (0, 60, 0.5, 0.8), (10, 0, 0.0, 0.9)]


@cocotb.test()
@cocotb.parametrize(case=CASES)
async def test_back_to_back(dut, case: tuple[int, int, float, float]) -> None:
    """Repeats at any time, behind unanswered requests too, on six QPs with up to 16 READs and atomics."""
    latency, stall, gap, tx_stall = case
    bench, rkey = await ready(dut, latency, stall, rx_gap=gap, tx_stall=tx_stall)
    depths = [random.choice([1, 2, 5, 16, 16]) for _ in range(6)]
    users = [Traffic(await program(bench, q, rkey, max_dest_rd=d)) for q, d in enumerate(depths)]
    checks = [Checker() for _ in users]
    total: dict[str, int] = {}
    again = {READ_REQ: 0, FA64: 0}  # duplicates that may be answered

    def take() -> None:
        for reply in bench.replies():
            checks[reply.qpi].takes(reply)
            kind = {READ_LAST: READ_REQ, READ_ONLY: READ_REQ, ATOMIC_ACK: FA64}.get(reply.opcode, 0)
            total[f"answers {kind}"] = total.get(f"answers {kind}", 0) + 1

    for _ in range(700):
        q = random.randrange(6)
        user, check = users[q], checks[q]
        model, way = user.model, random.random()
        if user.sent and way < 0.5:
            frame = user.repeat()
        elif way < 0.56:
            frame = replace(user.frame(ONLY, b"lost", reth(0x12000, rkey, 4)), psn=(model.psn + 1) % MOD)
        else:
            kind = random.choice(["write", "read", "atomic"])
            while kind != "write" and check.open() >= model.depth:
                await bench.cycle()
                take()
            frame = user.fresh(kind)
        verdict = check.sends(frame, model)
        for name, n in verdict.counts.items():
            total[name] = total.get(name, 0) + n
        if verdict.may_miss:
            again[READ_REQ if frame.opcode == READ_REQ else FA64] += 1
            if frame.opcode == READ_REQ:
                total[str(READ)] -= 1
        bench.send(frame)
        if random.random() < 0.1:
            await bench.idle(random.randrange(150))
        while len(bench.wire) > 200:
            await bench.cycle()
        take()
    await bench.until(lambda: not bench.wire, 300_000)
    quiet = 0
    while quiet < 3 * latency + 1000:
        seen = len(bench.frames)
        await bench.cycle()
        quiet = quiet + 1 if len(bench.frames) == seen else 0
        if quiet == 0:
            take()
    take()
    for check in checks:
        check.ends()
    found = bench.counts()
    for name in ("duplicate", "rx_packet", "ahead", str(NO_SAVE), str(ATOMIC)):
        assert found.get(name, 0) == total.get(name, 0), f"{name}: {found.get(name)}, want {total.get(name)}"
    assert int(dut.atomics_o.value) == total[str(ATOMIC)], "atomics executed"
    # a duplicate that is dropped says why, but for an atomic whose answer was still to come
    answered = {kind: total.get(f"answers {kind}", 0) for kind in again}
    assert count(bench, READ) == answered[READ_REQ]
    lost_reads = again[READ_REQ] - (answered[READ_REQ] - total[str(READ)])
    lost_atomics = again[FA64] - (answered[FA64] - total[str(ATOMIC)])
    assert 0 <= lost_reads <= count(bench, RD_TOO_MANY) <= lost_reads + lost_atomics
    assert again[READ_REQ] - lost_reads > 20 and again[FA64] - lost_atomics > 10
    assert int(dut.errs_o.value) == 0
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(depth=[1, 2, 5, 16])
async def test_saved_results(dut, depth: int) -> None:
    """The newest atomics have their results, older ones none; READs take none; a reset forgets all."""
    bench, rkey = await ready(dut)
    other = Traffic(await program(bench, 5, rkey))
    for start in ("set", "reset"):
        user = Traffic(await program(bench, 1, rkey, 2, max_dest_rd=depth, psn=MOD - 3))
        for _ in range(depth + 7):
            await exchange(bench, user.model, user.fresh("atomic"))
            await exchange(bench, user.model, user.fresh("read"))
            await exchange(bench, other.model, other.fresh("atomic"))
        before = count(bench, NO_SAVE)
        atomics = [f for f in user.sent if f.opcode != READ_REQ]
        for frame in atomics + atomics[::-1]:
            await exchange(bench, user.model, frame)
        assert count(bench, NO_SAVE) - before == 14
        if start == "reset":
            await bench.reset_qp(1)
        user.model = await program(bench, 1, rkey, 2, max_dest_rd=depth, psn=user.model.psn)
        # none is saved now
        for frame in atomics:
            await exchange(bench, user.model, frame)
        await bench.reset_qp(1)
    for frame in other.sent[-16:]:
        await exchange(bench, other.model, frame)
    await bench.compare()


@cocotb.test()
async def test_not_yet_executed(dut) -> None:
    """A duplicate of an atomic that waits for its execution is dropped: one execution, one answer."""
    bench, rkey = await ready(dut, 300)
    user = Traffic(await program(bench, 1, rkey, 2))
    frames = []
    for n in range(4):
        frames.append(user.fresh("atomic"))
        bench.send(frames[-1])
        verdict = user.model.receive(frames[-1])
        for _ in range(n):
            bench.send(frames[-1])
        frames[-1].trailer = b""
        if n == 0:
            first = verdict.replies[0]
    await bench.until(lambda: not bench.wire)
    await bench.idle(4000)
    replies = bench.replies()
    assert [r.psn for r in replies] == [f.psn for f in frames] and replies[0] == first
    assert bench.counts()["duplicate"] == 6 and count(bench, ATOMIC) == 4
    assert count(bench, NO_SAVE) == 0 and count(bench, RD_TOO_MANY) == 0
    for frame in frames:
        await exchange(bench, user.model, frame, 1500)
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(depth=[1, 4, 16])
async def test_places(dut, depth: int) -> None:
    """Duplicates take what is left of the table, are dropped beyond, and keep no fresh request out."""
    bench, rkey = await ready(dut)
    user = Traffic(await program(bench, 3, rkey, 1, max_dest_rd=depth))
    check = Checker()

    def send(frame: Frame) -> None:
        check.sends(frame, user.model)
        bench.send(frame)

    async def quiet() -> None:
        bench.tx_stall = 0.0
        await bench.until(lambda: not bench.wire, 20_000)
        await bench.idle(3000)
        for reply in bench.replies():
            check.takes(reply)
        check.ends()

    def fresh(n: int, atomics: int) -> Frame:
        if n % depth:
            return user.fresh("atomic" if n % atomics == 1 else "read")
        # a READ that is too long to get past a transmit side that stands still, and all behind it
        user.sent.append(user.frame(READ_REQ, b"", reth(0x1000, rkey, 0x3000)))
        return user.sent[-1]

    for n in range(depth):
        send(fresh(n, 3))
    await quiet()
    old = list(user.sent)
    bench.tx_stall = 1.0
    for n in range(2 * depth + 2):
        send(old[n % depth])
        await bench.idle(30)
    first = count(bench, RD_TOO_MANY)
    assert first == depth + 2
    for n in range(depth):
        send(fresh(n, 4))
    await bench.until(lambda: not bench.wire, 5000)
    await bench.idle(100)
    assert count(bench, NAK_TX + 1) == 0 and int(dut.errs_o.value) == 0
    # no place for any duplicate now
    for frame in old:
        send(frame)
    await bench.until(lambda: not bench.wire, 5000)
    await bench.idle(100)
    assert count(bench, RD_TOO_MANY) == first + depth
    await quiet()
    assert int(dut.errs_o.value) == 0
    # the places are all free again
    for frame in user.sent[-depth:]:
        if frame.opcode == READ_REQ:
            await exchange(bench, user.model, frame, 100)
    bench.tx_stall = 1.0
    for n in range(depth + 1):
        frame = fresh(n, 5)
        user.model.receive(frame)
        bench.send(frame)
    await bench.until(lambda: not bench.wire, 5000)
    await bench.idle(100)
    assert int(dut.errs_o.value) == 1, "one READ more than the QP takes is refused"
    await bench.compare()


@cocotb.test()
async def test_latch(dut) -> None:
    """NAK 0 once until the expected PSN comes; no duplicate makes it come again."""
    bench, rkey = await ready(dut)
    user = Traffic(await program(bench, 0, rkey, 2))
    for kind in ("write", "read", "atomic", "atomic", "read"):
        await exchange(bench, user.model, user.fresh(kind))
        while user.model.left:
            await exchange(bench, user.model, user.fresh(kind))
    for _ in range(3):
        lost = replace(user.frame(ONLY, b"lost", reth(0x12000, rkey, 4)), psn=(user.model.psn + 3) % MOD)
        await exchange(bench, user.model, lost)
        for frame in user.sent[-5:]:
            await exchange(bench, user.model, frame)
            await exchange(bench, user.model, lost)
        assert user.model.nak_sent
        await exchange(bench, user.model, user.fresh("atomic"))
    assert count(bench, NAK_TX) == 3
    await bench.compare()


@cocotb.test()
async def test_wait_for_writes(dut) -> None:
    """The answer of a duplicate waits for the write responses of what was before it; a READ sees the data."""
    latency = 300
    bench, rkey = await ready(dut, latency)
    user = Traffic(await program(bench, 1, rkey, 3))
    model = user.model
    read = good(1, opcode=READ_REQ, psn=model.psn, ext=reth(0x12000, rkey, 1000), ack_req=True)
    await exchange(bench, model, read, 1000)
    await exchange(bench, model, user.fresh("atomic"), 1000)
    for frame in (read, user.sent[-1], None):
        write = good(
            1, psn=model.psn, payload=random.randbytes(500), ext=reth(0x12000, rkey, 500), ack_req=False
        )
        model.receive(write)
        bench.send(write)
        last = frame or write
        want = model.receive(last).replies
        bench.send(last)
        await bench.until(lambda: not bench.wire)
        start = bench.cycles
        await bench.until(lambda: bool(bench.frames))
        waited = bench.cycles - start
        assert latency < waited < (2 * latency + 120 if frame is read else latency + 80), f"{waited} cycles"
        await bench.idle(1000)
        assert bench.replies() == want
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(kind=["read", "atomic"])
async def test_ack_before_a_duplicate(dut, kind: str) -> None:
    """An ACK that waits for the answers before it is not covered by a duplicate's answer behind it."""
    bench, rkey = await ready(dut, 100)
    user = Traffic(await program(bench, 1, rkey, 1))
    for n in range(20):
        check = Checker()
        await exchange(bench, user.model, user.fresh(kind), 600)
        old = user.sent[-1]
        # answers that stand before the framer, too
        bench.tx_stall = random.choice([0.0, 0.95])
        for step in range(3):
            if step == 0:
                first = user.frame(READ_REQ, b"", reth(0x1000, rkey, 700))
                frame = user.fresh("atomic") if n % 3 == 0 else first
            elif step == 1:
                frame = replace(user.frame(ONLY, b"data", reth(0x12000, rkey, 4)), ack_req=True)
            else:
                frame = old
            check.sends(frame, user.model)
            bench.send(frame)
            await bench.idle(random.choice([0, 0, 30, 80]))
        await bench.until(lambda: not bench.wire)
        await bench.idle(500)
        bench.tx_stall = 0.0
        await bench.idle(700)
        replies = bench.replies()
        for reply in replies:
            check.takes(reply)
        check.ends()
        # nothing was in the way of the duplicate
        assert replies[-1].opcode in (READ_ONLY, READ_LAST, ATOMIC_ACK) and replies[-1].psn != replies[-2].psn
    await bench.compare()


@cocotb.test()
async def test_failures(dut) -> None:
    """In a duplicate READ: a bus error is NAK 3, a lost region NAK 2, each with the PSN of its packet."""
    bench, rkey = await ready(dut, 20)
    for n, syndrome in enumerate((NAK_OP, NAK_ACC) * 2):
        dut.fault_i.value = 0
        model = await program(bench, 1, rkey, 2)
        other = Traffic(await program(bench, 2, await bench.set_mr(MRN + 1, *REGION, rights=15), 2))
        read = good(1, opcode=READ_REQ, psn=model.psn, ext=reth(0x4000, rkey, 64 * 512), ack_req=True)
        await exchange(bench, model, read, 200)
        skip = 4 * (n // 2)
        again = replace(
            read, psn=(read.psn + skip) % MOD, ext=reth(0x4000 + 512 * skip, rkey, (64 - skip) * 512)
        )
        want = model.receive(again).replies
        dut.fault_i.value = syndrome == NAK_OP
        dut.fault_beat_i.value = (0x4000 + 9 * 512) // 64
        bench.send(again)
        if syndrome == NAK_ACC:
            await bench.until(lambda: len(bench.frames) >= 2)
            await bench.set_mr(MRN, *REGION, rights=ALL_RIGHTS, valid=False)
        bench.send(other.model and other.fresh("read"))
        due = other.model.receive(other.sent[-1]).replies
        await bench.until(lambda: not bench.wire)
        await bench.idle(3000)
        replies = bench.replies()
        mine = [r for r in replies if r.qpi == 1]
        assert [r for r in replies if r.qpi == 2] == due
        good_ones = len(mine) - 1
        assert mine[:-1] == want[:good_ones]
        assert mine[-1] == Reply(1, ACK_OP, want[good_ones].psn, syndrome, model.msn)
        assert syndrome == NAK_ACC or skip + good_ones == 9
        assert int(dut.errs_o.value) == int(dut.asyncs_o.value) == n + 1
        await bench.reset_qp(1)
        await bench.reset_qp(2)
        await bench.set_mr(MRN, *REGION, rights=ALL_RIGHTS)
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(latency=[3, 150])
async def test_reset_in_between(dut, latency: int) -> None:
    """A QP is reset with duplicates under way: it drains, others go on, nothing of before comes later."""
    bench, rkey = await ready(dut, latency)
    other, check = Traffic(await program(bench, 2, rkey, 3)), Checker()
    for _ in range(14):
        bench.tx_stall = random.choice([0.0, 0.8])
        user, before = Traffic(await program(bench, 1, rkey, 1)), Checker()
        for _ in range(6):
            frame = user.fresh(random.choice(["read", "atomic"]))
            before.sends(frame, user.model)
            bench.send(frame)
        await bench.until(lambda: not bench.wire, 5000)
        # all atomics are executed, so that the memory is known
        await bench.idle(200 + 20 * latency)
        for _ in range(random.randrange(1, 14)):
            frame = user.repeat()
            before.sends(frame, user.model)
            bench.send(frame)
            frame = other.repeat() if other.sent and random.random() < 0.5 else other.fresh("write")
            check.sends(frame, other.model)
            bench.send(frame)
        await bench.until(lambda: not bench.wire, 9000)
        await bench.idle(random.randrange(200))
        await bench.reset_qp(1, 20_000)
        again = await program(bench, 1, rkey, 1, psn=user.model.psn)
        for reply in bench.replies():
            (before if reply.qpi == 1 else check).takes(reply)
        for frame in user.sent:
            if frame.opcode != READ_REQ:
                assert not again.receive(frame).replies
                bench.send(frame)
        bench.tx_stall = 0.0
        await bench.until(lambda: not bench.wire, 5000)
        await bench.idle(800 + 4 * latency)
        for reply in bench.replies():
            assert reply.qpi == 2, f"{reply} of a QP that was reset"
            check.takes(reply)
        await bench.reset_qp(1)
    check.ends()
    assert int(dut.errs_o.value) == 0
    await bench.compare()
