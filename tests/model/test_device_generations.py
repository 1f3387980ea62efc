"""What differs between the driver generations: drains, completion, batches, traps, ignore_overrun, dirty UB.

Sweep: G1, G2, G3 x versions x schedules; ring depths, start indices at wraps, batch sizes. Stimulus: programs
on the golden NICs, errors among them. Checks: where drains happen against the page's flow written out by
hand, bytes and stores of batches, doorbell sequences, what an error does, the rebuilt tail, tries of
poll_cq. Timing: the model's clock, for poll limits only. Does not prove: anything about the RTL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymodel import device
from pymodel.device import DeviceAbort, DeviceOptions, DeviceTrap, Generation, Pe, aclshmemi_roce_poll_cq
from pymodel.device.driver import driver_of
from pymodel.device.pe import POLL_LIMIT
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.params import Cnt
from pymodel.platform import Observer, PostInfo
from pymodel.run import ModelRun
from tests.model import wqe_expect as expect
from tests.model.model_programs import SCHEDULES, Schedule, model_run, only

G1, G2, G3 = Generation
U32 = 0xFFFF_FFFF
BEYOND = 1 << 30
"""Added to a remote address: outside the heap."""


def one(**override: Any) -> dict[str, Any]:
    """Config of a fabric whose QP (0, 1, 0) has these properties."""
    return {"overrides": {(0, 1, 0): override}}


def debug_run(main: Any, schedule: Schedule = "lazy", *, debug: bool = True, **config: Any) -> ModelRun:
    """A run of a debug build."""
    fabric = Fabric.build(FabricConfig(**{"seed": 1, **config}))
    return ModelRun(fabric, only(0, main), schedule, options=DeviceOptions(debug=debug))


async def bad_put(pe: Pe, src: int, nbytes: int = 8, qp: int = 0) -> None:
    """A WRITE to an address that no key covers: a5."""
    await device.aclshmemi_roce_write(pe, pe.ptr(src, 1) + BEYOND, src, 1, qp, nbytes)


@pytest.mark.parametrize("generation", [G1, G2, G3])
@pytest.mark.parametrize("action", ["post", "quiet"])
def test_the_own_rank_has_no_queues(action: str, generation: Generation) -> None:
    """7.3: its entry is zero: every use divides by depth 0, and debug builds of G3 assert it."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(8)
        await (pe.put_nbi(src, src, 8, 0) if action == "post" else pe.quiet(0))

    text = f"{action} to PE 0, QP 0, whose SQ depth is 0"
    with pytest.raises(ZeroDivisionError, match=text):
        debug_run(main, debug=False, generation=generation).run()
    with pytest.raises(DeviceAbort if generation is G3 else ZeroDivisionError, match=text):
        debug_run(main, generation=generation).run()


# ------------------------------------------------------------------ drains
@pytest.mark.parametrize("generation", Generation)
@pytest.mark.parametrize(("depth", "start", "version", "schedule"), [
    (16, 0, 1, "lazy"), (32, 7, 2, "eager"), (32, 0, 1, "random"), (64, U32 - 40, 2, "lazy"),
    (128, 99, 1, "eager"),
])  # fmt: skip
def test_where_each_generation_drains(
    depth: int, start: int, version: int, generation: Generation, schedule: Schedule
) -> None:
    """4.1: G1 and G2 once per lap at a fixed slot; G3 16 before full, counted from the last poll."""
    laps = 4
    quiets = {n for n in range(laps * depth) if n % 37 == 11}

    async def main(pe: Pe) -> list[int]:
        src = pe.alloc(64)
        for step in range(laps * depth):
            await pe.put_nbi(src, src, 8, 1)
            if step in quiets:
                await pe.quiet(1)
        await pe.quiet(1)
        return pe.qp(1).drains

    run = model_run(only(0, main), schedule, generation=generation,
                    **one(version=version, sq_depth=depth, cq_depth=depth, start_index=start))  # fmt: skip
    result = run.run()
    assert result.problems == []
    expected, tail = [], start
    for step in range(laps * depth):
        head = start + step & U32
        if (head + 16) % depth == (depth + tail) % depth:
            expected.append(head)
            tail = head if generation is G3 else tail
        if step in quiets and generation is G3:
            tail = head + 1 & U32
    assert result.returns[0] == expected
    if generation is not G3 and depth > 16:
        assert expected == [start + depth - 16 + lap * depth & U32 for lap in range(laps)]
    assert run.model.nics[0].counters[Cnt.DB_OVERRUN] == 0


# ------------------------------------------------------------------ errors
@pytest.mark.parametrize("generation", [G1, G2])
def test_posts_after_an_error_are_dropped_in_silence(generation: Generation) -> None:
    """8.1 row 3: the drain fails, the post vanishes, and each further post drains and vanishes again."""
    depth = 32

    async def main(pe: Pe) -> None:
        src, qp = pe.alloc(64), pe.qp(1)
        for step in range(depth - 16):
            await (bad_put(pe, src) if step == 3 else pe.put_nbi(src, src, 8, 1))
        slot, head = qp.sq_addr + 128 * (depth - 16), qp.sq_head
        before = pe.memory(slot, 128).tobytes()
        for lost in (1, 2, 3):
            await pe.put_nbi(src, src, 8, 1)
            await pe.get_nbi(src, src, 8, 1)
            assert (qp.dropped, qp.sq_head, qp.posts) == (2 * lost, head, depth - 16)
        assert pe.memory(slot, 128).tobytes() == before

    run = model_run(only(0, main), "lazy", generation=generation, sanitize=False,
                    **one(sq_depth=depth, cq_depth=depth))  # fmt: skip
    problems = run.run().problems
    # errors first, then what follows from them
    assert "completed with error" in problems[0] and "6 posts dropped silently" in problems[-1]
    assert len([1 for _, addr, _ in run.model.mmio_log if addr & 0xFFF == 0]) == depth - 16


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("start", [0, U32 - 5, (1 << 17) - 5, (1 << 13) - 5])
def test_g3_traps_where_the_others_drop(start: int, version: int, schedule: Schedule) -> None:
    """4.3: the drain raises and names peer, QP, WQE and code; the CQ tail is not published, nothing rings."""
    depth = 32

    async def main(pe: Pe) -> None:
        src, qp = pe.alloc(64), pe.qp(1)
        for step in range(depth - 16):
            await (bad_put(pe, src) if step == 10 else pe.put_nbi(src, src, 8, 1))
        for _ in range(2):
            with pytest.raises(DeviceTrap) as caught:
                await pe.put_nbi(src, src, 8, 1)
            trap = caught.value
            assert (trap.pe, trap.peer, trap.qp_idx, trap.wqe, trap.code) == (0, 1, 0, start + 10 & U32, 0xA5)
        assert qp.cq_tail == qp.sq_tail == start and qp.dropped == 0
        assert qp.sq_head == start + depth - 16 & U32
        with pytest.raises(DeviceTrap):
            await pe.quiet(1)

    run = model_run(only(0, main), schedule, generation=G3,
                    **one(version=version, sq_depth=depth, cq_depth=depth, start_index=start))  # fmt: skip
    problems = run.run().problems
    assert f"WQE {start + 10 & U32} completed with error 0xa5 (NAK_MR): " in problems[0]
    assert sum("completed with error" in problem for problem in problems) == 1, "the same CQE counts once"
    assert not [1 for _, addr, _ in run.model.mmio_log if addr & 0xFFF == 16]


def test_a_trap_that_nobody_catches_ends_the_run() -> None:
    """With task and cycle, as every exception of a program does."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        await bad_put(pe, src)
        await pe.quiet(1)

    with pytest.raises(DeviceTrap, match=r"PE 0: trap: WQE 0 to PE 1, QP 0: 0xa5 \(NAK_MR\)") as caught:
        model_run(only(0, main), generation=G3).run()
    assert "in main of PE 0" in caught.value.__notes__[0]


def test_g3_traps_at_a_timeout_too() -> None:
    """4.3; the code is 0x10000 and the WQE is the one waited for."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        await pe.put_nbi(src, src, 8, 1)
        with pytest.raises(DeviceTrap, match="no CQE in time") as caught:
            await aclshmemi_roce_poll_cq(pe, 1, 0, 5)
        assert (caught.value.wqe, caught.value.code) == (4, 0x10000)
        assert pe.qp(1).cq_tail == 0 and pe.qp(1).timeouts == 1

    problems = model_run(only(0, main), generation=G3, poll_limit=3).run().problems
    assert problems[0].endswith("poll_cq timed out 1 times")


def test_g3_polls_to_the_wqe_that_the_cqe_names() -> None:
    """4.3: a target in mid-stream; nothing at all where the SQ tail is there already."""

    async def main(pe: Pe) -> None:
        src, qp = pe.alloc(64), pe.qp(1)
        for _ in range(6):
            await pe.put_nbi(src, src, 8, 1)
        for target, tail in ((2, 2), (2, 2), (5, 5), (6, 6)):
            assert await aclshmemi_roce_poll_cq(pe, 1, 0, target) == 0
            assert (qp.cq_tail, qp.sq_tail) == (tail, tail)
        await pe.quiet(1)

    run = model_run(only(0, main), "lazy", generation=G3)
    assert run.run().problems == []
    assert [data & 0x7F_FFFF for _, addr, data in run.model.mmio_log if addr & 0xFFF == 16] == [2, 5, 6]


# ------------------------------------------------------------------ announced errors
@pytest.mark.parametrize("generation", Generation)
def test_announced_errors_are_no_problems(generation: Generation) -> None:
    """The codes that a program announces count as provoked, every other one is a problem, none at all too."""

    async def main(pe: Pe, codes: tuple[int, ...], fails: bool) -> None:
        src = pe.alloc(64)
        pe.expect_errors(1, 0, *codes)
        await pe.put_nbi(src, src, 8, 1)
        if fails:
            await bad_put(pe, src)
        try:
            await pe.quiet(1)
        except DeviceTrap:
            pass

    def result(codes: tuple[int, ...], fails: bool) -> Any:
        async def program(pe: Pe) -> None:
            if pe.rank == 0:
                await main(pe, codes, fails)

        return model_run(program, generation=generation).run()

    good = result((0xA5,), True)
    assert good.problems == [] and good.errors_provoked == 1
    other = result((0xA4, 0x89), True)
    assert len(other.problems) == 1 and "WQE 1 completed with error 0xa5" in other.problems[0]
    assert other.errors_provoked == 0
    none = result((0xA5,), False)
    assert len(none.problems) == 1
    assert none.problems[0].endswith("none of the errors announced came: 0xa5 (NAK_MR)")


# ------------------------------------------------------------------ tries of poll_cq
def test_the_try_limit_wraps_in_32_bits() -> None:
    """4.2: 3.0e11 in G1; the product wraps to 3,647,256,576 in G2 and G3; on slower cores 2,115,098,112."""
    assert POLL_LIMIT == 300_000_000_000
    for generation, limit, slow in ((G1, POLL_LIMIT, 15_000_000_000), (G2, 3_647_256_576, 2_115_098_112),
                                    (G3, 3_647_256_576, 2_115_098_112)):  # fmt: skip
        driver = driver_of(generation)
        assert driver.try_limit(POLL_LIMIT) == limit
        assert driver.try_limit(300_000_000 * 50) == slow
        assert driver.try_limit(None) is None


@pytest.mark.parametrize("generation", Generation)
def test_a_limit_beyond_32_bits(generation: Generation) -> None:
    """2^32 + 3 tries are 3 from G2 on: the poll gives up after 128 cycles instead of never."""

    async def main(pe: Pe) -> int:
        start = await pe.now()
        try:
            await aclshmemi_roce_poll_cq(pe, 1, 0, 3)
        except DeviceTrap:
            pass
        return await pe.now() - start

    run = model_run(only(0, main), generation=generation, poll_limit=(1 << 32) + 3, hang_after=1 << 40)
    waited = run.run().returns[0]
    assert waited // 64 == (2 if generation is not G1 else (1 << 32) + 2)


# ------------------------------------------------------------------ batches
class Stores(Observer):
    """Stores of the driver and doorbells of PE 0, in order."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.posts: list[PostInfo] = []

    def posted(self, post: PostInfo, task: Any) -> None:
        self.posts.append(post)

    def spy(self, run: ModelRun) -> None:
        """Listen to the backend."""
        backend = run.model
        store, mmio = backend.store, backend.mmio_write

        def seen_store(pe: int, addr: int, data: Any) -> None:
            self.log.append(("store", addr, bytes(data)))
            store(pe, addr, data)

        def seen_mmio(pe: int, addr: int, data: int) -> bool:
            self.log.append(("mmio", addr, data))
            return mmio(pe, addr, data)

        backend.store, backend.mmio_write = seen_store, seen_mmio  # type: ignore[method-assign]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("fill", ["zero", "dirty"])
@pytest.mark.parametrize(
    ("start", "total"), [(0, 1), (0, 10), (25, 10), (31, 2), (22, 10), (U32 - 3, 7), (5, 31)]
)
def test_a_batch_is_one_doorbell(start: int, total: int, fill: str, version: int) -> None:
    """4.4: ce only on the last, all in one copy or two at the ring's end, head, one doorbell, one CQE.

    The buffer is not cleared: what it held reaches the ring.
    """
    depth = 32

    async def main(pe: Pe) -> tuple[int, bytes]:
        src, dst = pe.alloc(64), pe.alloc(64)
        buf = pe.local_tensor(64, 64 + 128 * total)
        dirt = bytes(pe.ub[128 : 128 + 128 * total])
        for index in range(total):
            last = index == total - 1
            if index % 3 == 2:
                call = device.aclshmemx_roce_qp_get_submit if last else device.aclshmemx_roce_qp_get_defer
                await call(pe, src, dst, buf, 4, 1, 0, index, dtype=np.int32)
            else:
                call = device.aclshmemx_roce_qp_put_submit if last else device.aclshmemx_roce_qp_put_defer
                await call(pe, dst, src, buf, index, 1, 0, index)
            assert pe.qp(1).sq_head == (start + total if last else start) & U32
        await pe.quiet(1)
        return src, dirt

    stores = Stores()
    run = model_run(only(0, main), "lazy", generation=G3, ub_fill=fill, observers=[stores], sanitize=False,
                    **one(version=version, sq_depth=depth, cq_depth=depth, start_index=start))  # fmt: skip
    stores.spy(run)
    result = run.run()
    assert result.problems == []
    src, dirt = result.returns[0]
    mine, peer = run.fabric.pes
    plan = run.fabric.qps[0, 1, 0]
    raddr = src + 64 - mine.heap_base + peer.heap_base
    wqes = []
    for index in range(total):
        ce, nbytes, opcode = int(index == total - 1), index, 1
        local = src
        if index % 3 == 2:
            opcode, nbytes = 2, 16
        wqe = expect.Wqe(opcode, 2, nbytes, nbytes, peer.heap_rkey, raddr, mine.heap_lkey, local, ce=ce)
        wqes.append(wqe.overlay(dirt[128 * index : 128 * index + 128], start + index, version))
    assert any(dirt) == (fill == "dirty")
    first = min(total, depth - start % depth)
    log = []
    if total + 16 >= depth:
        # full as the rule counts: head - tail is 0 here, so the poll ends at once
        assert run.pes[0].qp(1).drains == [start]
    log.append(("store", plan.sq_base + 128 * (start % depth), b"".join(wqes[:first])))
    if first < total:
        log.append(("store", plan.sq_base, b"".join(wqes[first:])))
    head = start + total & U32
    page = 0x0800_0000 + 4096 * plan.qpn
    log.append(("store", plan.sq_head_addr, head.to_bytes(4, "little")))
    log.append(("mmio", page, expect.sq_doorbell(head, plan.qpn, version)))
    # the quiet: one CQE for them all
    log.append(("store", plan.sq_tail_addr, head.to_bytes(4, "little")))
    log.append(("store", plan.cq_tail_addr, (start + 1 & U32).to_bytes(4, "little")))
    log.append(("mmio", page + 16, expect.cq_doorbell(start + 1, plan.cqn)))
    assert stores.log == log
    assert [post.index for post in stores.posts] == [start + n & U32 for n in range(total)]
    assert run.model.nics[0].counters[Cnt.CQE] == 1 and run.model.nics[0].counters[Cnt.WQE] == total


async def batch(pe: Pe, src: int, total: int, bad: int = -1, qp: int = 0) -> None:
    """``total`` puts of 8 bytes in one batch; request ``bad`` goes where no key reaches."""
    buf = pe.local_tensor(0, 64 + 128 * total)
    for index in range(total):
        last = index == total - 1
        call = device.aclshmemx_roce_qp_put_submit if last else device.aclshmemx_roce_qp_put_defer
        await call(pe, src + BEYOND if index == bad else src, src, buf, 8, 1, qp, index)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_batches_and_single_posts_mixed(seed: int, version: int, schedule: Schedule) -> None:
    """Drains of both kinds where 4.1 and 4.4 put them, over several laps; CQEs fewer than WQEs."""
    depth, start = 64, U32 - 150

    async def main(pe: Pe) -> tuple[list[int], list[int]]:
        src, qp = pe.alloc(64), pe.qp(1)
        tail, expected = start, []
        for _ in range(50):
            head = qp.sq_head
            kind = pe.rng.random()
            if kind < 0.4:
                total = pe.rng.randrange(1, depth - 16)
                if (head + total - tail + 16 & U32) >= depth:
                    expected.append(head)
                    tail = head
                # a longer one would jump over the equality point of the single posts
                await batch(pe, src, total)
            elif kind < 0.9:
                if (head + 16) % depth == (depth + tail) % depth:
                    expected.append(head)
                    tail = head
                await pe.put_nbi(src, src, 8, 1)
            else:
                await pe.quiet(1)
                tail = head
        await pe.quiet(1)
        return expected, qp.drains

    run = model_run(only(0, main), schedule, seed=seed, generation=G3,
                    **one(version=version, sq_depth=depth, cq_depth=depth, start_index=start))  # fmt: skip
    result = run.run()
    assert result.problems == []
    expected, drains = result.returns[0]
    assert drains == expected and drains
    counters = run.model.nics[0].counters
    assert counters[Cnt.CQE] < counters[Cnt.WQE] and counters[Cnt.DB_OVERRUN] == 0


def test_an_unsignalled_wqe_that_fails_traps() -> None:
    """2.4: the errored WQE of a batch has a CQE although its ce is 0; the trap names it."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        pe.expect_errors(1, 0, 0xA5)
        await batch(pe, src, 9, bad=4)
        with pytest.raises(DeviceTrap) as caught:
            await pe.quiet(1)
        assert (caught.value.wqe, caught.value.code) == (4, 0xA5)

    for schedule in SCHEDULES:
        result = model_run(only(0, main), schedule, generation=G3).run()
        assert result.problems == [] and result.errors_provoked == 1


@pytest.mark.parametrize("total", [15, 16, 17])
def test_a_batch_as_long_as_the_ring(total: int) -> None:
    """4.4: up to depth - 1; more is an abort in debug builds and a silent return in the others."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        await batch(pe, src, total)
        await pe.quiet(1)

    config: dict[str, Any] = {"generation": G3, **one(sq_depth=16, cq_depth=16)}
    if total < 16:
        assert debug_run(main, **config).run().problems == []
        return
    with pytest.raises(DeviceAbort, match=f"batch of {total} WQEs for an SQ of 16"):
        debug_run(main, **config).run()
    run = debug_run(main, debug=False, **config)
    assert run.run().problems[0].endswith(f"{total} posts dropped silently")
    assert run.model.mmio_log == []


def test_single_posts_after_a_batch_may_overrun_the_ring() -> None:
    """4.1: the equality point is jumped over: release builds run into the NIC's check, debug ones abort."""
    depth = 32

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        await pe.put_nbi(src, src, 8, 1)
        # drains (1 + 20 + 16 >= 32), then stands 20 ahead of the tail: past the point 16 before full
        await batch(pe, src, 20)
        for _ in range(13):
            await pe.put_nbi(src, src, 8, 1)

    config: dict[str, Any] = {"generation": G3, **one(sq_depth=depth, cq_depth=depth)}
    with pytest.raises(DeviceAbort, match="SQ of QP 0 to PE 1 is full: 32 WQEs"):
        debug_run(main, **config).run()
    run = debug_run(main, debug=False, **config)
    run.run()
    assert run.pes[0].qp(1).drains == [1]
    assert run.model.nics[0].counters[Cnt.DB_OVERRUN] == 1


def test_batches_are_g3s() -> None:
    """The others have none; on the own rank it divides by zero; requests come in order, on one head."""

    async def old(pe: Pe) -> None:
        src, buf = pe.alloc(64), pe.local_tensor(0, 1024)
        with pytest.raises(NotImplementedError, match=f"the driver of {pe.driver.generation.name} has none"):
            await device.aclshmemx_roce_qp_put_defer(pe, src, src, buf, 8, 1, 0, 0)

    for generation in (G1, G2):
        assert model_run(only(0, old), generation=generation).run().good

    async def new(pe: Pe) -> None:
        src, buf = pe.alloc(64), pe.local_tensor(0, 64 + 3 * 128)
        defer, submit = device.aclshmemx_roce_qp_put_defer, device.aclshmemx_roce_qp_put_submit
        with pytest.raises(ZeroDivisionError):
            await defer(pe, src, src, buf, 8, 0, 0, 0)
        await defer(pe, src, src, buf, 8, 1, 0, 0)
        with pytest.raises(ValueError, match="request 2 of a batch"):
            await defer(pe, src, src, buf, 8, 1, 0, 2)
        with pytest.raises(ValueError, match="of a UB tensor of 448"):
            await defer(pe, src, src, buf, 8, 1, 0, 3)
        await pe.put_nbi(src, src, 8, 1)
        with pytest.raises(ValueError, match="begun at head 0 and 1 requests long: the head is 1"):
            await submit(pe, src, src, buf, 8, 1, 0, 1)
        await pe.quiet(1)

    result = model_run(only(0, new), generation=G3).run()
    assert len(result.problems) == 1
    assert result.problems[0].endswith("1 requests deferred and never submitted")


# ------------------------------------------------------------------ ignore_overrun
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("start", [0, 13, (1 << 13) - 20, (1 << 17) - 20, U32 - 19])
def test_overrun_mode_rebuilds_the_tail(start: int, version: int, schedule: Schedule) -> None:
    """2.6: every CQE in slot 0, the 32-bit tail from the logical index, no CQ doorbell, the SQ tail stays.

    Batches skip CQEs, and under eager and random ones are overwritten unseen; quiets twice in a row find
    the CQE of before and wait for nothing.
    """
    depth = 32

    async def main(pe: Pe) -> None:
        src, qp = pe.alloc(64), pe.qp(1)
        for step in range(4 * depth // 8):
            if step % 3:
                await batch(pe, src, 8)
            else:
                for _ in range(8):
                    await pe.put_nbi(src, src, 8, 1)
            if step % 2:
                await pe.quiet(1)
                assert qp.cq_tail == qp.sq_head
                await pe.quiet(1)
                assert qp.cq_tail == qp.sq_head
        await pe.quiet(1)
        assert qp.sq_tail == start

    run = model_run(only(0, main), schedule, generation=G3, ignore_overrun=True, poll_limit=1000,
                    **one(version=version, sq_depth=depth, cq_depth=depth, start_index=start))  # fmt: skip
    assert run.run().problems == []
    assert not [1 for _, addr, _ in run.model.mmio_log if addr & 0xFFF == 16]
    assert run.model.nics[0].counters[Cnt.DB_OVERRUN] == 0
    plan = run.fabric.qps[0, 1, 0]
    ring = run.model.memory(0, plan.cq_base, plan.cq_depth * plan.cq_stride).reshape(plan.cq_depth, -1)
    untouched = 0x7F if ring[1, 31] < 0x80 else 0xFF
    assert (ring[1:, :31] == 0xFF).all() and (ring[1:, 31] == untouched).all()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_overrun_mode_over_many_generations(schedule: Schedule, version: int) -> None:
    """The upper bits of the tail count laps of the logical index; here each run starts next to a wrap."""
    span = 1 << (13 if version == 1 else 17)

    for lap in (1, 2, 5, (1 << 32) // span):
        start = lap * span - 3 & U32

        async def main(pe: Pe) -> None:
            src, qp = pe.alloc(64), pe.qp(1)
            for _ in range(7):
                await pe.put_nbi(src, src, 8, 1)
                await pe.quiet(1)
                assert qp.cq_tail == qp.sq_head
                await pe.quiet(1)
            assert qp.cq_tail == start + 7 & U32  # noqa: B023

        run = model_run(only(0, main), schedule, generation=G3, ignore_overrun=True, poll_limit=100,
                        **one(version=version, start_index=start))  # fmt: skip
        assert run.run().problems == []


@pytest.mark.parametrize("version", [1, 2])
def test_overrun_mode_traps_on_an_error(version: int) -> None:
    """The CQE in slot 0 may be that of a later, flushed WQE: whatever the driver sees is what it names."""

    async def main(pe: Pe, waits: bool) -> tuple[int, int]:
        src = pe.alloc(64)
        await pe.put_nbi(src, src, 8, 1)
        await bad_put(pe, src)
        if not waits:
            await pe.put_nbi(src, src, 8, 1)
        with pytest.raises(DeviceTrap) as caught:
            await pe.quiet(1)
        assert pe.qp(1).cq_tail == 0
        return caught.value.wqe, caught.value.code

    for waits, seen in ((True, (1, 0xA5)), (False, (2, 0xFF))):

        async def program(pe: Pe) -> Any:
            return await main(pe, waits)  # noqa: B023

        run = model_run(only(0, program), "eager", generation=G3, ignore_overrun=True, **one(version=version))
        assert run.run().returns[0] == seen


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("depth", [8, 64, 4096])
def test_overrun_ring_starts_invalid(depth: int, version: int) -> None:
    """2.3 and 2.6: plain 0xFF would be a flush CQE of the last index, zeros a good CQE of WQE 0."""

    async def main(pe: Pe) -> int:
        src = pe.alloc(64)
        await pe.put_nbi(src, src, 8, 1)
        await pe.quiet(1)
        return pe.qp(1).cq_tail

    config = {"generation": G3, "ignore_overrun": True, **one(version=version, sq_depth=8, cq_depth=depth)}
    assert model_run(only(0, main), "lazy", **config).run().problems == []
    problems = model_run(only(0, main), "lazy", cq_fill=0x00, **config).run().problems
    assert problems[0].startswith("false completion: PE 0 consumed the CQE of WQE 0")


def test_only_g3_knows_overrun_mode() -> None:
    """Refused when the fabric is built."""
    for generation in (G1, G2, (G3, G1)):
        with pytest.raises(ValueError, match="only the driver of G3 knows it"):
            FabricConfig(ignore_overrun=True, generation=generation)
    FabricConfig(ignore_overrun=True, generation=(G3, G3))


# ------------------------------------------------------------------ dirty UB, generations mixed
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("generation", [G2, G3])
@pytest.mark.parametrize("version", [1, 2])
def test_a_dirty_ub_has_the_same_effects(version: int, generation: Generation, schedule: Schedule) -> None:
    """1.6: stale se, fence, mask, opcode_data, csum_en and padding change no byte, no result, no doorbell."""

    async def main(pe: Pe) -> list[int]:
        src, dst, got = pe.alloc(8192), pe.alloc(8192), pe.alloc(8192)
        word = pe.alloc(64)
        if pe.rank:
            return []
        await pe.store(src, pe.rng.randbytes(8192))
        olds = []
        for step in range(20):
            nbytes = pe.rng.randrange(3000)
            at = pe.rng.randrange(8192 - nbytes)
            await pe.put_nbi(dst + at, src + at, nbytes, 1)
            if step % 3 == 0:
                await pe.get_nbi(got, word, 64, 1)
            if step % 5 == 0:
                await pe.quiet(1)
                olds.append(await pe.atomic.fetch_add(word, step, 1))
        await pe.quiet(1)
        return olds

    def outcome(fill: str, seed: int) -> tuple[Any, ...]:
        fabric = Fabric.build(
            FabricConfig(seed=5, generation=generation, ub_fill=fill, **one(version=version))
        )
        run = ModelRun(fabric, main, schedule, seed=seed)
        if fill == "dirty":
            # other garbage each time, with a fence among it
            run.pes[0].ub[:] = np.random.default_rng(seed).bytes(len(run.pes[0].ub))
        result = run.run()
        assert result.problems == []
        heaps = [run.model.memory(pe.rank, pe.heap_base, 1 << 21).tobytes() for pe in fabric.pes]
        per_qp = [entry for entry in run.model.mmio_log if entry[0] == 0]
        return heaps, result.returns, per_qp

    clean = outcome("zero", 0)
    for seed in range(3):
        assert outcome("dirty", seed) == clean


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_generations_side_by_side(schedule: Schedule) -> None:
    """One generation per PE: tables and flow are each PE's own, what goes over the wire is the same."""

    async def main(pe: Pe) -> Any:
        word, block, got = pe.alloc(64), pe.alloc(100), pe.alloc(300)
        await pe.store(block, bytes([pe.rank]) * 100)
        await pe.barrier_all()
        for peer in range(3):
            if peer != pe.rank:
                for _ in range(70):
                    await pe.atomic.add(word, pe.rank + 1, peer)
                await pe.get_nbi(got + 100 * peer, block, 100, peer)
        await pe.barrier_all()
        for peer in range(3):
            assert (
                pe.memory(got + 100 * peer, 100).tobytes() == bytes([peer] if peer != pe.rank else [0]) * 100
            )
        return pe.driver.generation, int.from_bytes(pe.memory(word, 8).tobytes(), "little")

    run = model_run(main, schedule, n_pes=3, generation=(G1, G2, G3), ub_fill="dirty")
    result = run.run()
    assert result.problems == []
    assert result.returns == [(G1, 70 * 5), (G2, 70 * 4), (G3, 70 * 3)]
    with pytest.raises(ValueError, match="2 driver generations for 3 PEs"):
        FabricConfig(n_pes=3, generation=(G1, G2))
    with pytest.raises(ValueError, match="4 is not a valid Generation"):
        FabricConfig(generation=4).generation_of(0)  # type: ignore[arg-type]
