"""SEND, WRITE with immediate and receive queues, end to end.

Sweep: V1 and V2, all MTUs, lengths from 0 to several packets at any alignment, with immediate and without,
SE; RQ depths 2 to 32, indices over the wraps of the RQ (2^17) and of wqe_id in V1 (2^13); receive CQ of its
own and shared with the sends. Receivers that are late (RNR, rnr_retry 0, 2 and 7), buffers too short, bad
keys, bus errors of slot and buffer; RQ doorbells of every verdict; ERR by the host; a receive CQ that is
full; link faults.
Stimulus: WQEs and receive WQEs by hand, both directions at a time, beside WRITEs, READs and atomics.
Checks: each CQE against what the test itself expects, each buffer byte for byte, codes and events of errors,
flushes of both queues, each on its CQ; counters; and the judge's.
Timing: RNR waits by the judge. Not proved: more than 2 NICs.
"""

from __future__ import annotations

import random

import cocotb
import numpy as np

from pymodel.formats import doorbell
from pymodel.nic.context import CmdObj, CmdOp, MrContext, command_writes
from pymodel.nic.params import AsyncKind, Cnt, Csr
from pymodel.platform import mmio_write, sleep, store
from tests.nic.raw import FLUSH, renew
from tests.nic.raw_receive import collect, drain
from tests.nic.send_scene import PATIENCE, Scene, fabric, feed, pour, traffic
from tests.nic.stage import add_region, clear_errors, error

PES = 2


@cocotb.test()
async def test_messages(dut) -> None:
    """Every length, alignment, format; receive WQEs are there in time; more than a lap of every RQ."""
    scene = Scene(dut, fabric(), ())
    await scene.start()
    await traffic(scene, 40, 0, True, (1, 2, 26, 34))
    for pe in (0, 1):
        assert await scene.console[pe].counter(Cnt.RNR_TX) == 0
    await scene.events(set())
    await scene.rig.check()


@cocotb.test()
async def test_late_receivers(dut) -> None:
    """Receivers that post too late: RNR NAKs, and everything comes all the same."""
    scene = Scene(dut, fabric(rnr_retry=7, timer=0), ())
    await scene.start()
    await traffic(scene, 24, 2000, False)
    for pe in (0, 1):
        sent, got = (
            await scene.console[pe].counter(Cnt.RNR_TX),
            await scene.console[1 - pe].counter(Cnt.RNR_RX),
        )
        assert sent == got > 0, (sent, got)
    await scene.rig.check()


@cocotb.test()
@cocotb.parametrize(limit=[0, 2])
async def test_rnr_limit(dut, limit: int) -> None:
    """Nothing is ever posted: so many passes, then a3, and the rest is flushed; the responder lives on."""
    scene = Scene(dut, fabric(rnr_retry=limit, timer=0), ())
    await scene.start()
    pipe = scene.pipe(0, 0)

    async def job() -> None:
        await pipe.sender.post(*[pipe.sender.send(100) for _ in range(4)])
        found = await pipe.sender.collect(4, PATIENCE)
        assert found["error_code"].tolist() == [0xA3, FLUSH, FLUSH, FLUSH], found["error_code"]
        await pipe.sender.ring_cq()

    await scene.both((0, job()))
    assert await scene.console[0].counter(Cnt.RETRY) == limit
    assert await scene.console[1].counter(Cnt.RNR_TX) == limit + 1
    assert await scene.console[1].states(pipe.receiver.plan.qpn) == "RTS"
    await scene.events(set())
    await scene.rig.check()


def no_write(scene: Scene) -> int:
    """lkey of the receiver's region that may not be written."""
    pe = scene.rig.fabric.pes[1]
    index = next(i for i, mr in pe.mrs.items() if mr.ltag == 0xA1)
    return pe.mrs[index].lkey(index)


#: name -> (code at the responder, NAK code, code at the requester)
FAILURES = {
    "too short": (0xC0, 1, 0xA4), "too short in the last": (0xC0, 1, 0xA4), "key": (0xD6, 3, 0xA6),
    "right": (0xD6, 3, 0xA6), "range": (0xD6, 3, 0xA6), "slot": (0xAF, 3, 0xA6), "buffer": (FLUSH, 3, 0xA6),
    "last of a buffer": (FLUSH, 3, 0xA6),
}  # fmt: skip


@cocotb.test()
@cocotb.parametrize(name=list(FAILURES), q=[0, 1])
async def test_receive_wqe_fails(dut, name: str, q: int) -> None:
    """Its CQE says why, those before are good, those behind flush; both queues of both ends flush."""
    code, nak, answer = FAILURES[name]
    net = fabric(timer=0)
    heap = net.pes[1]
    region = MrContext(heap.heap_base, heap.heap_size, False, False, True, False, ltag=0xA1, rtag=0xB1)
    add_region(net, 1, region)
    scene = Scene(dut, net, ())
    await scene.start()
    pipe, back = scene.pipe(0, q), scene.pipe(1, q)
    mtu, good, count = pipe.sender.plan.mtu, 3, 6
    length = 2 * mtu + 7

    async def receive() -> None:
        receiver = pipe.receiver
        # the failing one stands in a beat of its own, or the others of its beat fail with it
        index = receiver.head + good
        changes: dict[str, int] = {}
        place = receiver.place(index)
        slot = receiver.slot(index)
        match name:
            case "too short":
                changes = {"length": mtu - 1}
            case "too short in the last":
                changes = {"length": length - 1}
            case "key":
                changes = {"lkey": scene.rig.fabric.pes[1].heap_lkey ^ 1}
            case "right":
                changes = {"lkey": no_write(scene)}
            case "range":
                changes = {"addr": heap.heap_base + heap.heap_size - length + 1}
            case "slot":
                error(scene.rig, 1, slot & ~63, 64, "r")
            case "buffer":
                error(scene.rig, 1, (place + mtu + 64) & ~63, 64, "w")
            case "last of a buffer":
                error(scene.rig, 1, (place + 2 * mtu) & ~63, 64, "w")
        first = good
        if name == "slot":
            first = next(k for k in range(count) if receiver.slot(receiver.head + k) >> 6 == slot >> 6)
        start = receiver.head
        await receiver.post_receive(*[changes if k == good else {} for k in range(count)])
        found = await collect(receiver.cq, 1, count)
        assert [int(c["error_code"]) for c in found] == [0] * first + [code] + [FLUSH] * (count - 1 - first)
        assert [int(c["wqe_id"]) for c in found] == [receiver.wqe_id(start + k) for k in range(count)]
        for c in found:
            told = tuple(int(c[name]) for name in ("msg_len", "with_imm", "imm_data", "se"))
            assert told == ((0,) * 4 if c["error_code"] else (length, 1, 0x1234_5678, 1))
        # its own send queue flushes to the other CQ; a doorbell in ERR leads to flushes
        await receiver.post_receive({}, {})
        await back.sender.post(back.sender.fields(64))
        assert [int(c["error_code"]) for c in await collect(receiver.cq, 1, 2)] == [FLUSH] * 2
        assert [int(c["error_code"]) for c in await collect(back.sender, 0, 1)] == [FLUSH]
        pipe.done = first

    async def send() -> None:
        await back.receiver.post_receive({}, {})
        await sleep(2000)
        # the CQE of a failed message has nothing of it
        extra = {"with_imm": 1, "opcode_data": 0x1234_5678, "se": 1}
        await pipe.sender.post(*[pipe.sender.send(length, 64 * k, **extra) for k in range(count)])
        codes = [int(c["error_code"]) for c in await collect(pipe.sender, 0, count)]
        first = codes.index(answer)
        assert codes == [0] * first + [answer] + [FLUSH] * (count - 1 - first)
        assert [int(c["error_code"]) for c in await collect(back.receiver.cq, 1, 2)] == [FLUSH] * 2

    await scene.both((1, receive()), (0, send()))
    await scene.rig.settle()
    number = (Cnt.NAK_SEQ_TX, Cnt.NAK_INV_TX, Cnt.NAK_ACC_TX, Cnt.NAK_OP_TX)[nak]
    assert await scene.console[1].counter(number) == 1
    await scene.events({(1, AsyncKind.QP_ERR, pipe.receiver.plan.qpn)})
    clear_errors(scene.rig)
    await scene.rig.check()


@cocotb.test()
async def test_doorbells(dut) -> None:
    """Exactly depth, no work, stale, partial, foreign; overrun: ERR, event, flush of all that is posted."""
    scene = Scene(dut, fabric(), ())
    await scene.start()
    pipe = scene.pipe(0, 1)
    receiver, depth = pipe.receiver, pipe.receiver.plan.rq_depth
    page = receiver.qp.address(doorbell_offset=8)
    other = scene.receivers[1, 0, 2].plan.qpn

    async def job() -> None:
        await receiver.put_receive(*[{}] * depth)
        await receiver.ring_rq(qpn=other)  # page of another QP
        await mmio_write(page, int(doorbell.rq_encode(receiver.head, receiver.plan.qpn)))
        await receiver.ring_rq()  # no work
        await receiver.ring_rq(receiver.head - 1)  # behind: stale
        await receiver.ring_rq(receiver.head + (1 << 16) + 1)  # beyond half: stale
        await sleep(500)
        await receiver.ring_rq(receiver.head + 1)  # one more than the ring holds
        codes = [int(c["error_code"]) for c in await collect(receiver.cq, 1, depth)]
        assert codes == [FLUSH] * depth, codes

    await scene.both((1, job()))
    await scene.rig.settle()
    for number, due in ((Cnt.DB_PAGE, 1), (Cnt.DB_STALE, 2), (Cnt.DB_OVERRUN, 1), (Cnt.DB_RQ, 0)):
        assert await scene.console[1].counter(number) == due, number
    await scene.events({(1, AsyncKind.RQ_OVERRUN, receiver.plan.qpn)})
    assert await scene.console[1].states(receiver.plan.qpn) == "ERR"
    await scene.rig.check()


@cocotb.test()
async def test_err_reset_and_again(dut) -> None:
    """ERR by the host with a message half received: both queues flush, each onto its CQ; then as new."""
    scene = Scene(dut, fabric(timer=0), (), knobs={"link_latency": 600})
    await scene.start()
    pipe, back = scene.pipe(0, 0), scene.pipe(1, 0)
    receiver, mtu = pipe.receiver, pipe.sender.plan.mtu

    async def receive() -> None:
        await receiver.post_receive(*[{}] * 5)
        await back.sender.post(*[back.sender.fields(64) for _ in range(3)])
        await sleep(900)
        words = scene.rig.fabric.contexts(receiver.plan)[0].stage_words()
        words[8] = 2
        for addr, data in command_writes(CmdOp.MODIFY, CmdObj.QP, receiver.plan.qpn, words):
            await mmio_write(addr, data)
        codes = [int(c["error_code"]) for c in await collect(receiver.cq, 1, 5)]
        assert codes == sorted(codes) and codes[-1] == FLUSH and set(codes) <= {0, FLUSH}, codes
        codes = [int(c["error_code"]) for c in await collect(back.sender, 0, 3)]
        assert codes == sorted(codes) and set(codes) <= {0, FLUSH}, codes

    async def send() -> None:
        await sleep(300)
        await pipe.sender.post(*[pipe.sender.send(min(3 * mtu + 1, 12 << 10), 0) for _ in range(2)])

    await scene.both((1, receive()), (0, send()))
    await scene.rig.settle()
    await scene.both(
        *((end.plan.pe, drain(end)) for one in (pipe, back) for end in (one.sender, one.receiver.cq))
    )
    await renew(scene.rig, pipe.sender, back.sender, (0xFFFFFE, 77))
    for end in (pipe.receiver, back.receiver):
        end.head = end.plan.rq_start
    fresh = [scene.pipe(pe, 0) for pe in (0, 1)]
    jobs = []
    for number, one in enumerate(fresh):
        rng = random.Random(f"again {scene.seed} {number}")
        jobs += [(number, pour(scene, one, 20, rng, True)), (1 - number, feed(scene, one, 20, rng, 0))]
    await scene.both(*jobs)
    await scene.rig.check()


@cocotb.test()
async def test_err_while_messages_arrive(dut) -> None:
    """ERR by the host at any time of a window: good ones, then flushes; no byte comes behind those."""
    slow = {"mem_latency": 40, "mem_latency_jitter": 400, "commit_delay": 300}
    scene = Scene(dut, fabric(timer=0), (), knobs=slow)
    await scene.start()
    pipe, back = scene.pipe(0, 0), scene.pipe(1, 0)
    receiver, mtu, count = pipe.receiver, pipe.sender.plan.mtu, 6
    rng = random.Random(f"err {scene.seed}")
    seen = set()

    for wait in range(0, 1600, 16):
        lengths = [rng.choice((1, mtu, 2 * mtu + 1)) for _ in range(count)]

        async def receive(wait: int = wait) -> None:
            await receiver.post_receive(*[{}] * count)
            await sleep(900 + wait)
            words = scene.rig.fabric.contexts(receiver.plan)[0].stage_words()
            words[8] = 2
            for addr, data in command_writes(CmdOp.MODIFY, CmdObj.QP, receiver.plan.qpn, words):
                await mmio_write(addr, data)
            codes = [int(c["error_code"]) for c in await collect(receiver.cq, 1, count)]
            assert codes == sorted(codes) and set(codes) <= {0, FLUSH}, codes
            seen.add(codes.count(0))
            # the buffers are software's again
            for k in range(count):
                start = receiver.place(receiver.head - count + k)
                await store(start, np.full(64, 0xA5, np.uint8))
            await sleep(600)
            for k, code in enumerate(codes):
                start = receiver.place(receiver.head - count + k)
                assert receiver.content(start, 64) == b"\xa5" * 64, (wait, k, code)

        async def send(lengths: list[int] = lengths) -> None:
            await sleep(800)
            await pipe.sender.post(*[pipe.sender.send(length, 0) for length in lengths])

        await scene.both((1, receive()), (0, send()))
        await scene.rig.settle()
        await scene.both(
            *((end.plan.pe, drain(end)) for one in (pipe, back) for end in (one.sender, one.receiver.cq))
        )
        await renew(scene.rig, pipe.sender, back.sender, (rng.getrandbits(24), rng.getrandbits(24)))
        for end in (pipe.receiver, back.receiver):
            end.head = end.plan.rq_start
    assert {0, count} <= seen and len(seen) > 3, seen
    await scene.rig.check()


@cocotb.test()
async def test_full_receive_cq(dut) -> None:
    """No room: completions wait, sixteen at most, then RNR; room comes, and everything with it."""
    scene = Scene(dut, fabric(rnr_retry=7, timer=0, rq_depth=32), ())
    await scene.start()
    pipe = scene.pipe(0, 3)
    depth = pipe.receiver.cq.depth
    total = depth + 16 + 3
    rng = random.Random(f"full {scene.seed}")

    async def receive() -> None:
        receiver = pipe.receiver
        pipe.posted += await receiver.post_receive(*[{}] * depth)
        assert await receiver.cq.until(depth, PATIENCE)
        # consumed, but not told to the NIC; more is posted than may wait
        for cqe in receiver.cq.take(depth):
            scene.arrived(pipe, cqe)
        pipe.posted += await receiver.post_receive(*[{}] * (total - depth))
        await sleep(20_000)
        assert not receiver.cq.ready(), "no CQE without room"
        while pipe.done < total:
            await receiver.cq.ring_cq()
            if await receiver.cq.until(1, 5000):
                for cqe in receiver.cq.take(receiver.cq.visible()):
                    scene.arrived(pipe, cqe)

    async def send() -> None:
        for _ in range(total):
            item, message = scene.message(pipe, rng, short=True)
            pipe.due.append(message)
            await pipe.sender.post(item)
            for cqe in await collect(pipe.sender, 0, 1):
                assert not cqe["error_code"]

    await scene.both((1, receive()), (0, send()))
    assert pipe.done == total
    assert await scene.console[1].counter(Cnt.RNR_TX) > 0
    await scene.rig.check()


@cocotb.test()
async def test_receive_cq_in_overrun(dut) -> None:
    """A receive CQ without room for longer than cq_wait: one event, ERR, what comes is lost and counted."""
    limit = 2000
    scene = Scene(dut, fabric(rnr_retry=7, timer=0, rq_depth=32), ())
    await scene.start()
    pipe, console = scene.pipe(0, 3), scene.console[1]
    await console.write(Csr.CQ_WAIT, limit)
    receiver, qpn = pipe.receiver, pipe.receiver.plan.qpn
    depth = receiver.cq.depth

    async def receive() -> None:
        await receiver.post_receive(*[{}] * (depth + 9))
        assert await receiver.cq.until(depth, PATIENCE)
        await sleep(limit + 3000)
        found = receiver.cq.take(receiver.cq.visible())
        assert found["error_code"].tolist() == [0] * depth, "no CQE comes without room"
        await receiver.cq.ring_cq()
        assert not await receiver.cq.until(1, 2000), "none comes after the overrun"

    async def send() -> None:
        await sleep(500)
        for count in (depth, 3):
            await pipe.sender.post(*[pipe.sender.send(64) for _ in range(count)])
            found = await collect(pipe.sender, 0, count)
            assert [int(c["error_code"]) for c in found] == [0] * count

    await scene.both((1, receive()), (0, send()))
    await scene.rig.settle()
    assert await console.asyncs() == [(AsyncKind.CQ_OVERRUN, receiver.cq.cqn)]
    assert await console.states(qpn) == "ERR"
    # three messages and six receive WQEs that flush
    assert await console.counter(Cnt.CQE_DISCARD) == 9
    assert await console.counter(Cnt.CQ_OVERRUN) == 1 and await console.counter(Cnt.FLUSH) == 6
    await scene.rig.check()


@cocotb.test()
async def test_solicited_events(dut) -> None:
    """An arm for solicited ones fires on SE and on nothing else that is good."""
    scene = Scene(dut, fabric(), ())
    await scene.start()
    pipe, console = scene.pipe(0, 0), scene.console[1]
    receiver = pipe.receiver
    bit = 1 << receiver.cq.cqn
    await console.write(Csr.EVENT_MASK, 1)

    async def receive() -> None:
        await receiver.post_receive({}, {}, {})
        await receiver.cq.ring_cq(sta=3)
        await collect(receiver.cq, 1, 2)
        await sleep(400)

    async def send(**changes: int) -> None:
        await sleep(1000)
        for _ in range(2):
            await pipe.sender.post(pipe.sender.send(64, with_imm=1, opcode_data=9, **changes))
        await collect(pipe.sender, 0, 2)

    async def third() -> None:
        await receiver.cq.ring_cq(sta=3)
        await collect(receiver.cq, 1, 1)
        await sleep(400)

    async def last() -> None:
        await sleep(1000)
        await pipe.sender.post(pipe.sender.send(0, se=1))
        await collect(pipe.sender, 0, 1)

    await scene.both((1, receive()), (0, send()))
    scene.rig.drain()
    assert not await console.read(Csr.CQ_EVENT) & bit
    await scene.both((1, third()), (0, last()))
    scene.rig.drain()
    assert await console.read(Csr.CQ_EVENT) & bit
    await console.write(Csr.CQ_EVENT, bit)
    await scene.rig.check()


@cocotb.test()
@cocotb.parametrize(kind=["drop", "duplicate", "reorder 2", "all"])
async def test_link_faults(dut, kind: str) -> None:
    """Lost, doubled and reordered packets of messages: each message comes once, in order."""
    kinds = ("drop", "duplicate", "reorder 2", "corrupt 1 bit")
    rules = [f"every 1/{160 if kind == 'all' else 60}: {k}" for k in kinds if kind in (k, "all")]
    rules += [f"opcode send_middle nth 3: {k} once" for k in kinds if kind in (k, "all")]
    scene = Scene(dut, fabric(timer=6, rnr_retry=7), (), faults=rules)
    await scene.start()
    await traffic(scene, 20, 0, True)
    await scene.rig.check()
