"""Device API, XSCALE G1: post_send, poll_cq, quiet, doorbells, WQE content.

Sweep: versions, ring depths, start indices at every wrap, dirty slots, poll limits. Stimulus: programs on
the golden NICs. Checks: worked vectors, slots and doorbells against the codecs, where drains happen, silent
drops, tries of poll_cq. Timing: the model's clock, for poll limits only. Does not prove: anything about the
RTL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymodel.device import (
    Pe,
    SendWr,
    aclshmem_roce_ptr,
    aclshmemi_qp_info_fetch,
    aclshmemi_roce_fill_wqe,
    aclshmemi_roce_poll_cq,
    aclshmemi_roce_post_send,
    aclshmemi_roce_quiet,
    aclshmemi_roce_ring_cq_doorbell,
    aclshmemi_roce_ring_sq_doorbell,
    aclshmemi_roce_write,
    aclshmemx_roce_put_nbi,
    aclshmemx_roce_qp_put,
    aclshmemx_roce_qp_quiet,
    aclshmemx_roce_quiet,
)
from pymodel.formats import cqe, doorbell, wqe
from pymodel.host.table import QP_INFO_ADDR, START_WRAPS
from pymodel.platform import Observer
from tests.model.model_programs import SCHEDULES, Schedule, model_run, only


def _one(**override: Any) -> dict[str, Any]:
    """Config of a fabric whose QP (0, 1, 0) has these properties."""
    return {"overrides": {(0, 1, 0): override}}


# ------------------------------------------------------------------ WQE content
VECTOR_V2 = "0110000000040000000000000280020000040000a4a3a2a1887766554433221100040000b4b3b2b10080674523010000"
VECTOR_V1 = "01102800000400000000000002000000"


@pytest.mark.parametrize(("version", "vector"), [(2, VECTOR_V2), (1, VECTOR_V1 + VECTOR_V2[32:])])
def test_worked_vector_write(version: int, vector: str) -> None:
    """Device page 1.7: WRITE, head 5, 1024 bytes."""

    async def main(pe: Pe) -> None:
        wr = SendWr(0x0000012345678000, 0x1122334455667788, 1024, lkey=0xB1B2B3B4, rkey=0xA1A2A3A4)
        assert await aclshmemi_roce_fill_wqe(pe, wr, 1, 0, 5) == 128
        raw = pe.memory(pe.qp(1).sq_addr + 5 * 128, 128).tobytes()
        assert raw[:48].hex() == vector
        assert raw[48:] == bytes(80)

    model_run(only(0, main), **_one(version=version)).run()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("dirt", [0x00, 0xFF, None])
def test_unwritten_bits_keep_the_slot(version: int, dirt: int | None) -> None:
    """Device page 1.2 and 1.6: exactly the fields marked as written change, whatever the slot held."""
    rng = np.random.default_rng(version)
    old = rng.integers(0, 256, 128).astype(np.uint8) if dirt is None else np.full(128, dirt, np.uint8)
    head = 0x1_2345

    async def main(pe: Pe) -> None:
        qp = pe.qp(1)
        slot = qp.sq_addr + 128 * (head % qp.depth)
        await pe.store(slot, old)
        wr = SendWr(0x1000_0000_0001, 0x2000_0000_0003, 77, lkey=5, rkey=6)
        await aclshmemi_roce_fill_wqe(pe, wr, 1, 0, head)
        new = pe.memory(slot, 128).copy()
        got, before = wqe.unpack(new, version)[0], wqe.unpack(old, version)[0]
        expected = {
            "msg_opcode": 1, "with_imm": 0, "ds_data_num": 2, "msg_len": 77, "ce": 1, "in_line": 0,
            "r_len": 77, "l_len": 77, "rkey": 6, "lkey": 5, "raddr": 0x2000_0000_0003,
            "laddr": 0x1000_0000_0001, "wqe_id": int(wqe.wqe_id_of(head, version)),
        }  # fmt: skip
        stale = ["csum_en", "opcode_data", "se", "fence_mode", "mask", "rsv"] + ["rsv1"] * (version == 2)
        assert {n: int(got[n]) for n in expected} == expected
        assert {n: int(got[n]) for n in stale} == {n: int(before[n]) for n in stale}
        assert (new[48:] == old[48:]).all()

    model_run(only(0, main), **_one(version=version)).run()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("wrap", START_WRAPS)
def test_doorbells_and_ids_over_every_wrap(version: int, wrap: int) -> None:
    """Device page 3.1 and 3.4: head and tail cells run through 32 bits, doorbells and wqe_id are cut."""
    start = (wrap - 3) & 0xFFFF_FFFF

    async def main(pe: Pe) -> None:
        src, qp = pe.alloc(64), pe.qp(1)
        for step in range(7):
            await pe.put_nbi(src, src, 8, 1)
            head = (start + step) & 0xFFFF_FFFF
            got = wqe.unpack(pe.memory(qp.sq_addr + 128 * (head % qp.depth), 128), version)[0]
            assert int(got["wqe_id"]) == int(wqe.wqe_id_of(head, version))
            assert qp.sq_head == (head + 1) & 0xFFFF_FFFF
            await pe.quiet(1)
            assert qp.cq_tail == qp.sq_head and qp.sq_tail == start

    run = model_run(only(0, main), **_one(version=version, start_index=start, sq_depth=64, cq_depth=128))
    assert run.run().problems == []
    plan = run.fabric.qps[0, 1, 0]
    rings = [data for _, addr, data in run.model.mmio_log if addr & 0xFFF == 0]
    bells = [data for _, addr, data in run.model.mmio_log if addr & 0xFFF == 16]
    heads = [(start + step + 1) & 0xFFFF_FFFF for step in range(7)]
    assert rings == [int(doorbell.sq_encode(head, plan.qpn, version)) for head in heads]
    assert bells == [int(doorbell.cq_encode(head, plan.cqn)) for head in heads]


@pytest.mark.parametrize(
    ("version", "head", "value"),
    [(2, 1, 0x05400008), (2, 6, 0x05400030), (2, 262143, 0x055FFFF8), (2, 262144, 0x05400000),
     (1, 1, 0x00540008), (1, 16383, 0x0055FFF8), (1, 16384, 0x00540000)],
)  # fmt: skip
def test_worked_vectors_of_the_sq_doorbell(version: int, head: int, value: int) -> None:
    """Device page 3.1, QPN 0x2A; the 4-byte head cell stands before the doorbell goes out."""

    async def main(pe: Pe) -> None:
        await aclshmemi_roce_ring_sq_doorbell(pe, 1, 0, head)

    run = model_run(only(0, main), **_one(version=version, qpn=0x2A))
    run.run()
    plan = run.fabric.qps[0, 1, 0]
    assert run.model.mmio_log == [(0, 0x0800_0000 + 4096 * 0x2A, value)]
    assert int.from_bytes(run.model.memory(0, plan.sq_head_addr, 4).tobytes(), "little") == head


def test_worked_vector_of_the_cq_doorbell() -> None:
    """Device page 3.1: CQN 0x15, tail 6."""

    async def main(pe: Pe) -> None:
        await aclshmemi_roce_ring_cq_doorbell(pe, 1, 0, 6)

    run = model_run(only(0, main), **_one(cqn=0x15))
    run.run()
    plan = run.fabric.qps[0, 1, 0]
    assert run.model.mmio_log == [(0, 0x0800_0010 + 4096 * plan.qpn, 0x0A800006)]


# ------------------------------------------------------------------ full test, drains, outstanding
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("depth", "start"), [(32, 0), (64, 0), (128, 100), (64, 0xFFFF_FFF0)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_drains_once_per_lap_at_a_fixed_slot(
    schedule: Schedule, depth: int, start: int, version: int
) -> None:
    """Device page 4.1: only at head = T0 - 16 modulo depth, whatever quiets come between."""
    laps = 4

    async def main(pe: Pe) -> list[int]:
        src = pe.alloc(64)
        for step in range(laps * depth):
            await pe.put_nbi(src, src, 8, 1)
            if step % 23 == 5:
                await pe.quiet(1)
        await pe.quiet(1)
        return pe.qp(1).drains

    run = model_run(only(0, main), schedule,
                    **_one(version=version, sq_depth=depth, cq_depth=depth, start_index=start))  # fmt: skip
    result = run.run()
    assert result.problems == []
    expected = [(start + depth - 16 + lap * depth) & 0xFFFF_FFFF for lap in range(laps)]
    assert result.returns[0] == expected


class _Outstanding(Observer):
    """Most WQEs between a post and the NIC's retirement, seen when a WQE stands in the ring."""

    def __init__(self) -> None:
        self.most = 0
        self.run: Any = None

    def posted(self, post: Any, task: Any) -> None:
        nic = self.run.model.nics[0]
        qp = nic._qps[self.run.fabric.qps[0, 1, 0].qpn]
        self.most = max(self.most, qp.outstanding + 1)


@pytest.mark.parametrize("depth", [16, 32, 128])
@pytest.mark.parametrize("version", [1, 2])
def test_outstanding_reaches_exactly_depth(depth: int, version: int) -> None:
    """Device page 4.1: between drains depth WQEs are posted; the NIC takes that, full is not empty."""
    seen = _Outstanding()

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        for _ in range(3 * depth):
            await pe.put_nbi(src, src, 8, 1)
        await pe.quiet(1)

    run = model_run(only(0, main), "lazy", observers=[seen],
                    **_one(sq_depth=depth, cq_depth=depth, version=version))  # fmt: skip
    seen.run = run
    assert run.run().problems == []
    assert seen.most == depth
    assert run.model.nics[0].counters[21] == 0, "no overrun"


def test_depth_16_drains_only_when_empty_or_full() -> None:
    """Device page 4.1.

    16 % 16 is 0, so the test fires at every lap's first post, with nothing to drain at first.
    """

    async def main(pe: Pe) -> list[int]:
        src = pe.alloc(64)
        for _ in range(40):
            await pe.put_nbi(src, src, 8, 1)
        await pe.quiet(1)
        return pe.qp(1).drains

    run = model_run(only(0, main), "lazy", **_one(sq_depth=16, cq_depth=16))
    result = run.run()
    assert result.returns[0] == [0, 16, 32] and result.problems == []


# ------------------------------------------------------------------ poll_cq
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_poll_rings_the_cq_doorbell(schedule: Schedule) -> None:
    """Device page 4.2 and 8.1 row 5: once per call, progress or not; the NIC accepts an equal index."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        await pe.quiet(1)
        await pe.put_nbi(src, src, 8, 1)
        await pe.put_nbi(src, src, 8, 1)
        for _ in range(3):
            await pe.quiet(1)

    run = model_run(only(0, main), schedule)
    run.run()
    assert [data & 0x7FFFFF for _, addr, data in run.model.mmio_log if addr & 0xFFF == 16] == [0, 2, 2, 2]
    assert sum(run.model.nics[0].counters[20:29]) == 0


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_poll_limit_counts_tries(limit: int) -> None:
    """Programs page, section 1: one try at entry, one per 64 cycles asleep.

    Then 0x10000, tail and doorbell written.
    """

    async def main(pe: Pe) -> None:
        start = await pe.now()
        status = await aclshmemi_roce_poll_cq(pe, 1, 0, 3)
        assert status == 0x10000
        # the doorbell itself takes one cycle of the model
        assert await pe.now() - start == 64 * (limit - 1) + 1
        assert pe.qp(1).cq_tail == 0 and pe.qp(1).timeouts == 1

    run = model_run(only(0, main), poll_limit=limit)
    assert run.run().problems == [
        f"PE 0 to PE 1, QP 0 (QPN {run.fabric.qps[0, 1, 0].qpn}): poll_cq timed out 1 times"
    ]
    assert len(run.model.mmio_log) == 1


@pytest.mark.parametrize(("delay", "status"), [(64 * 3 - 1, 0), (64 * 3 + 1, 0x10000)])
def test_poll_limit_to_the_cycle(delay: int, status: int) -> None:
    """A CQE that stands at the last try (4 tries.

    192 cycles after entry) counts, one that comes later does not.
    """

    async def side(pe: Pe, slot: int) -> None:
        await pe.sleep(delay)
        await pe.store(slot, bytes(32))

    async def main(pe: Pe) -> None:
        # a CQE made by hand: the NIC's own time is not the point here
        await pe.spawn(side(pe, pe.qp(1).cq_addr))
        await pe.sleep(0)
        assert await aclshmemi_roce_poll_cq(pe, 1, 0, 1) == status

    run = model_run(only(0, main), poll_limit=4)
    run.run()


@pytest.mark.parametrize("cycles", [0, 1, 300])
def test_post_cycles(cycles: int) -> None:
    """Programs page, section 6: a post takes the device this long before its doorbell."""

    async def main(pe: Pe) -> list[int]:
        src, times = pe.alloc(64), [await pe.now()]
        for _ in range(4):
            await pe.put_nbi(src, src, 8, 1)
            times.append(await pe.now())
        await pe.quiet(1)
        return np.diff(times).tolist()

    free = model_run(only(0, main)).run().returns[0]
    slow = model_run(only(0, main), post_cycles=cycles).run().returns[0]
    assert slow == [step + cycles for step in free]


def test_error_cqe_is_consumed_and_ends_the_poll() -> None:
    """Device page 4.2: the error CQE is consumed; later calls consume the flush CQEs; quiet says nothing."""

    async def main(pe: Pe) -> list[int]:
        src = pe.alloc(64)
        bad = pe.ptr(src, 1) + (1 << 30)
        await aclshmemi_roce_write(pe, pe.ptr(src, 1), src, 1, 0, 8)
        await aclshmemi_roce_write(pe, bad, src, 1, 0, 8)
        await aclshmemi_roce_write(pe, pe.ptr(src, 1), src, 1, 0, 8)
        out = [await aclshmemi_roce_poll_cq(pe, 1, 0, 3) for _ in range(2)]
        assert pe.qp(1).cq_tail == 3
        return out + [await aclshmemi_roce_poll_cq(pe, 1, 0, 3)]

    run = model_run(only(0, main), "lazy")
    result = run.run()
    assert result.returns[0] == [0xA5, 0xFF, 0]
    where = f"PE 0 to PE 1, QP 0 (QPN {run.fabric.qps[0, 1, 0].qpn}): WQE"
    assert result.problems[:2] == [
        f"{where} 1 completed with error 0xa5 (NAK_MR): the peer refused key, right or address range (NAK 2)",
        f"{where} 2 completed with error 0xff (FLUSH): flushed, as the QP was in error",
    ]


def test_target_behind_the_tail_spins_to_the_timeout() -> None:
    """Device page 4.2: only equality ends it."""

    async def main(pe: Pe) -> int:
        src = pe.alloc(64)
        await pe.put_nbi(src, src, 8, 1)
        await pe.quiet(1)
        return await aclshmemi_roce_poll_cq(pe, 1, 0, 0)

    assert model_run(only(0, main), poll_limit=3).run().returns[0] == 0x10000


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_poll_batch_changes_wakeups_not_results(batch: int) -> None:
    """A sleeping poll wakes once per batch of CQEs, at the latest when all are there."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        for _ in range(30):
            await pe.put_nbi(src, src, 8, 1)
        await pe.quiet(1)

    run = model_run(only(0, main), "lazy", poll_batch=batch)
    assert run.run().problems == []
    assert run.core.wakeups == {1: 31, 3: 11, 1000: 2}[batch]


# ------------------------------------------------------------------ silent drop
def test_failed_drain_drops_the_post_silently() -> None:
    """Device page 4.1 step 5 and 8.1 row 3.

    No exception, no WQE, no head, no doorbell, only the hidden counter.
    """
    depth = 32

    async def main(pe: Pe) -> None:
        src, qp = pe.alloc(64), pe.qp(1)
        bad = pe.ptr(src, 1) + (1 << 30)
        for step in range(depth - 16):
            await aclshmemi_roce_write(pe, bad if step == 3 else pe.ptr(src, 1), src, 1, 0, 8)
        slot = qp.sq_addr + 128 * (depth - 16)
        before, head = pe.memory(slot, 128).tobytes(), qp.sq_head
        await pe.put_nbi(src, src, 8, 1)
        assert (qp.dropped, qp.sq_head, qp.posts) == (1, head, depth - 16)
        assert pe.memory(slot, 128).tobytes() == before
        # the same post again drains again: the next CQE is a flush, so it is dropped again
        await pe.put_nbi(src, src, 8, 1)
        assert qp.dropped == 2 and qp.drains == [head, head]

    run = model_run(only(0, main), "lazy", **_one(sq_depth=depth, cq_depth=depth))
    result = run.run()
    assert any(p.endswith("2 posts dropped silently") for p in result.problems)
    rings = [addr for _, addr, _ in run.model.mmio_log if addr & 0xFFF == 0]
    assert len(rings) == depth - 16, "no SQ doorbell for a dropped post"


def test_timeout_of_the_drain_drops_too() -> None:
    """Device page 4.2: status 0x10000 counts as failure of the drain."""

    async def main(pe: Pe) -> None:
        src, qp = pe.alloc(64), pe.qp(1)
        for _ in range(17):
            await aclshmemi_roce_post_send(pe, SendWr(src, pe.ptr(src, 1), 8), 1, 0)
        assert (qp.dropped, qp.timeouts, qp.posts) == (1, 1, 16)

    run = model_run(only(0, main), "lazy", poll_limit=1, **_one(sq_depth=32, cq_depth=32))
    assert any("dropped silently" in p for p in run.run().problems)


# ------------------------------------------------------------------ zero-filled CQ
@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_zero_filled_cq_is_caught_as_false_completion(schedule: Schedule) -> None:
    """Device page 2.3.

    Zeros look like good CQEs of the first lap, so quiet returns while the put is not done.
    """

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        for _ in range(5):
            await pe.put_nbi(src, src, 64, 1)
        await pe.quiet(1)

    problems = model_run(only(0, main), schedule, cq_fill=0x00).run().problems
    assert any(
        p.startswith("false completion: PE 0 consumed the CQE of WQE 4 to PE 1, QP 0") for p in problems
    )
    # and by what the CQE says, which needs no golden NIC
    assert any(
        p.startswith("wrong CQE: PE 0 consumed CQE 4 from PE 1, QP 0, which names QPN 0") for p in problems
    )
    assert model_run(only(0, main), schedule, cq_fill=0xFF).run().problems == []


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("field", ["wqe_id", "qp_id"])
def test_a_cqe_of_another_wqe_or_qp_is_noticed(field: str, version: int) -> None:
    """Device page 8.1 row 6: the driver only counts, the run's own check looks."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        for _ in range(5):
            await pe.put_nbi(src, src, 64, 1)
        await pe.quiet(1)

    run = model_run(only(0, main), "lazy", **_one(version=version, start_index=0xFFFF_FFFE))
    memory, plan = run.model.memories[0], run.fabric.qps[0, 1, 0]
    write = memory.nic_write

    def spoil(addr: int, data: bytes) -> None:
        if addr == plan.cq_base + 2 * plan.cq_stride:
            got = cqe.unpack(np.frombuffer(data, np.uint8), version)
            got[field] += 8
            data = cqe.to_slots(cqe.pack(got, version), plan.cq_stride).tobytes()
        write(addr, data)

    memory.nic_write = spoil  # type: ignore[method-assign]
    problems = run.run().problems
    assert len(problems) == 1 and problems[0].startswith("wrong CQE: PE 0 consumed CQE 2 from PE 1, QP 0")


# ------------------------------------------------------------------ the rest of the API
def test_names_that_programmers_know() -> None:
    """Coarse and fine calls do the same thing: five ways to put eight bytes."""

    async def main(pe: Pe) -> None:
        src, dst = pe.alloc(64), pe.alloc(64)
        assert aclshmemi_qp_info_fetch(pe) == QP_INFO_ADDR
        assert aclshmem_roce_ptr(pe, dst, 1) - pe.heap_bases[1] == dst - pe.heap_base
        if pe.rank:
            return
        await pe.store(src, bytes(range(40)))
        await aclshmemx_roce_put_nbi(pe, dst, src, None, 2, 1, dtype=np.uint32)
        await aclshmemx_roce_qp_put(pe, dst + 8, src + 8, None, 8, 1, 1)
        await aclshmemi_roce_write(pe, pe.ptr(dst + 16, 1), src + 16, 1, 1, 8)
        await pe.put_nbi(dst + 24, src + 24, 8, 1, 0)
        await aclshmemi_roce_post_send(pe, SendWr(src + 32, pe.ptr(dst + 32, 1), 8), 1, 0)
        await aclshmemx_roce_qp_quiet(pe, 1, 1)
        await aclshmemx_roce_quiet(pe, 1)

    run = model_run(main, "lazy", qps=2)
    assert run.run().problems == []
    at = run.fabric.pes[1].heap_base + (1 << 20) + 64
    assert run.model.memory(1, at, 40).tobytes() == bytes(range(40))


def test_coarse_quiet_visits_every_qp() -> None:
    """Device page 4.5 and 5.2: quiet(pe) loops over qp_idx in both of its forms; with a QP it is that one."""

    async def main(pe: Pe) -> None:
        await pe.quiet(1)
        assert [pe.qp(1, q).quiets for q in range(3)] == [1, 1, 1]
        await aclshmemi_roce_quiet(pe, 1)
        await aclshmemi_roce_quiet(pe, 1, 2)
        assert [pe.qp(1, q).quiets for q in range(3)] == [2, 2, 3]

    model_run(only(0, main), qps=3).run()


def test_put_to_the_own_rank_divides_by_zero() -> None:
    """Device page 7.3: the own entry of the table is zero; a clear error instead of undefined."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(8)
        await pe.put_nbi(src, src, 8, pe.rank)

    with pytest.raises(ZeroDivisionError, match="post to PE 0, QP 0, whose SQ depth is 0"):
        model_run(only(0, main)).run()


def test_length_is_cut_to_32_bits() -> None:
    """Device page 4.1 step 7: 4 GiB + 8 becomes 8."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        await aclshmemi_roce_write(pe, pe.ptr(src, 1), src, 1, 0, (1 << 32) + 8)
        got = wqe.unpack(pe.memory(pe.qp(1).sq_addr, 128), 2)[0]
        assert int(got["msg_len"]) == int(got["r_len"]) == int(got["l_len"]) == 8
        await pe.quiet(1)

    assert model_run(only(0, main)).run().problems == []


def test_no_such_peer_or_qp() -> None:
    """Addressing outside the tables is refused, not computed."""

    async def main(pe: Pe) -> None:
        for peer, qp in ((2, 0), (-1, 0), (1, 1)):
            with pytest.raises(IndexError):
                pe.qp(peer, qp)

    assert model_run(main).run().good


def test_heap_is_symmetric_and_bounded() -> None:
    """Equal offsets on every PE, alignment kept, no allocation beyond the heap."""

    async def main(pe: Pe) -> list[int]:
        got = [pe.alloc(3), pe.alloc(1, 4096), pe.alloc(64)]
        assert got[1] % 4096 == 0
        with pytest.raises(MemoryError, match="is full"):
            pe.alloc(pe.heap_size)
        with pytest.raises(ValueError, match="power of two"):
            pe.alloc(1, 3)
        return [addr - pe.heap_base for addr in got]

    run = model_run(main, n_pes=3)
    offsets = run.run().returns
    assert offsets[0] == offsets[1] == offsets[2]
    assert len({pe.heap_base for pe in run.fabric.pes}) == 3
