"""Race sanitizer: each rule red and green, both accesses named, declared ranges.

Sweep: rules x schedules. Stimulus: minimal programs on the golden NICs, and posts made by hand where the
order of two PEs matters. Checks: the exact access raises, the same program with its quiet does not. Timing:
none. Does not prove: absence of races between PEs that no platform can order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymodel.device import Pe, aclshmemi_roce_get_atomic_fetch_data
from pymodel.platform import PostInfo, Watch, wait
from pymodel.runner import Task
from pymodel.sanitizer import RaceError, RaceSanitizer
from tests.model.model_programs import SCHEDULES, Schedule, model_run, only


def _idle() -> Any:
    async def nothing() -> None:
        return None

    return nothing()


@pytest.fixture
def task() -> Any:
    """A task of PE 0 that never runs."""
    program = _idle()
    yield Task(0, "main", program, 0)
    program.close()


def _post(opcode: str = "WRITE", index: int = 0, local: int = 0x1000, remote: int = 0x9000, length: int = 64,
          pe: int = 0, peer: int = 1, qp: int = 0) -> PostInfo:  # fmt: skip
    return PostInfo(pe, peer, qp, index, opcode, length, local, remote, 10)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("at", [-8, -7, 63, 64])
def test_source_changes_only_after_a_quiet(schedule: Schedule, quiet: bool, at: int) -> None:
    """Store of eight bytes round the edges of a 64-byte source; the bytes beside it are free."""

    async def main(pe: Pe) -> None:
        src, other = pe.alloc(256) + 64, pe.alloc(64)
        await pe.put_nbi(other, src, 64, 1)
        await pe.put_nbi(other, other, 8, 2)
        if quiet:
            await pe.quiet(1)
        else:
            await pe.quiet(2)
        await pe.store(src + at, b"12345678")
        await pe.quiet(1)
        await pe.quiet(2)

    run = model_run(only(0, main), schedule, n_pes=3)
    if quiet or at in (-8, 64):
        assert run.run().problems == []
        return
    with pytest.raises(RaceError) as caught:
        run.run()
    text = str(caught.value)
    low = run.fabric.pes[0].heap_base + (1 << 20) + 64 + max(at, 0)
    assert text.startswith(f"race on PE 0, bytes [{low:#x}, ")
    assert (
        f"store of 8 bytes at {low + min(at, 0):#x} by main of PE 0 changes the source of WRITE 0 of PE 0 to"
        in text
    )
    assert text.endswith("no quiet of PE 0 to PE 1 since")


def test_a_drain_is_no_quiet() -> None:
    """The full test of post_send completes WQEs without the program knowing: the source stays in use."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        for _ in range(49):
            await pe.put_nbi(src, src, 8, 1)
        assert pe.qp(1).drains == [48]
        await pe.store(src, b"x")

    with pytest.raises(RaceError, match="changes the source of WRITE 0"):
        model_run(only(0, main)).run()


def test_an_inbound_put_changes_a_source() -> None:
    """PE 1 puts into what PE 0 is sending to PE 2."""

    async def main(pe: Pe) -> None:
        block = pe.alloc(64)
        if pe.rank == 0:
            await pe.put_nbi(block, block, 64, 2)
            await pe.sleep(50)
            await pe.quiet(2)
        elif pe.rank == 1:
            await pe.sleep(10)
            await pe.put_nbi(block + 60, block, 64, 0)
            await pe.quiet(0)

    with pytest.raises(RaceError) as caught:
        model_run(main, "eager", n_pes=3).run()
    assert "WRITE 0 of PE 1 to PE 0" in str(caught.value) and "source of WRITE 0 of PE 0 to PE 2" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("access", "words"),
    [("store", "store of 4 bytes"), ("read", "read of 4 bytes"), ("wait", None)],
)
def test_destination_before_the_put_arrives(access: str, words: str | None) -> None:
    """Where nothing orders it.

    A store or a plain read of the target races; the condition of a wait does not.
    """

    async def main(pe: Pe) -> None:
        src, dst, go = pe.alloc(64), pe.alloc(64), pe.alloc(4)
        if pe.rank == 0:
            await pe.store(src, b"\x01\0\0\0")
            # announced before the data: whoever acts on it races with the data
            await pe.put_nbi(go, src, 4, 1, 1)
            await pe.put_nbi(dst, src, 4, 1, 0)
            await pe.quiet_all()
            return
        await pe.wait_value(go, 1, peer=0)
        if access == "store":
            await pe.store(dst, b"mine")
        elif access == "read":
            pe.memory(dst, 4)
        else:
            await pe.wait_value(dst, 1, peer=0)

    run = model_run(main, "lazy", qps=2)
    if words is None:
        assert run.run().problems == []
        return
    with pytest.raises(RaceError) as caught:
        run.run()
    assert words in str(caught.value) and "the destination of WRITE 0 of PE 0 to PE 1, QP 0" in str(
        caught.value
    )
    assert str(caught.value).endswith("it has not arrived yet")


def test_a_view_taken_inside_a_condition_synchronises() -> None:
    """`Pe.memory` in the condition of a wait is no plain read."""

    async def main(pe: Pe) -> None:
        src, dst = pe.alloc(64), pe.alloc(64)
        if pe.rank == 0:
            await pe.store(src, b"\x01")
            await pe.put_nbi(dst, src, 1, 1)
            await pe.quiet(1)
        else:
            await pe.sleep(1)
            await wait((Watch(dst, 1),), None, lambda: bool(pe.memory(dst, 1)[0]))

    assert model_run(main, "lazy").run().problems == []


def test_after_the_flag_on_the_same_qp_the_data_is_free() -> None:
    """Programs page, section 4: a flag follows its data on the same QP without a quiet between."""

    async def main(pe: Pe) -> None:
        src, dst, flag = pe.alloc(64), pe.alloc(64), pe.alloc(4)
        if pe.rank == 0:
            await pe.store(src, b"\x01\0\0\0")
            await pe.put_nbi(dst, src, 64, 1)
            await pe.put_nbi(flag, src, 4, 1)
            await pe.quiet(1)
        else:
            await pe.wait_value(flag, 1, peer=0)
            assert pe.memory(dst, 64)[0] == 1
            await pe.store(dst, b"mine")

    for schedule in SCHEDULES:
        assert model_run(main, schedule).run().problems == []


def test_two_puts_of_different_qps_to_the_same_bytes() -> None:
    """Of one QP they are ordered; of two they race."""

    async def main(pe: Pe, second: int) -> None:
        src, dst = pe.alloc(64), pe.alloc(64)
        await pe.put_nbi(dst, src, 64, 1, 0)
        await pe.put_nbi(dst + 32, src, 64, 1, second)
        await pe.quiet(1)

    def run(second: int) -> Any:
        async def only0(pe: Pe) -> None:
            if pe.rank == 0:
                await main(pe, second)

        return model_run(only0, "lazy", qps=2).run()

    assert run(0).problems == []
    with pytest.raises(RaceError, match="meets the destination of WRITE 0 of PE 0 to PE 1, QP 0"):
        run(1)


def test_one_qp_has_one_owner() -> None:
    """Two live tasks of a PE on one QP; after the first has ended, or on QPs of their own, it is fine."""

    async def put(pe: Pe, src: int, qp: int) -> None:
        await pe.put_nbi(src, src, 8, 1, qp)
        await pe.quiet(1, qp)

    async def bad(pe: Pe) -> None:
        src = pe.alloc(64)
        await pe.put_nbi(src, src, 8, 1)
        await pe.join(await pe.spawn(put(pe, src, 0), "helper"))

    async def good(pe: Pe) -> None:
        src = pe.alloc(64)
        one, two = await pe.spawn(put(pe, src, 0)), await pe.spawn(put(pe, src, 1))
        await pe.join(one)
        await pe.join(two)
        await put(pe, src, 0)

    with pytest.raises(RaceError, match="QP 0 of PE 0 to PE 1 has two owners: post by helper of PE 0"):
        model_run(only(0, bad), qps=2).run()
    assert model_run(only(0, good), "random", qps=2).run().problems == []


def test_declared_racy_range() -> None:
    """A test may declare a range; what reaches beyond it still counts."""

    async def main(pe: Pe, at: int) -> None:
        src = pe.alloc(64)
        await pe.put_nbi(src, src, 64, 1)
        await pe.store(src + at, b"1234")
        await pe.quiet(1)

    def run(at: int) -> Any:
        async def only0(pe: Pe) -> None:
            if pe.rank == 0:
                await main(pe, at)

        built = model_run(only0)
        assert built.sanitizer is not None
        built.sanitizer.declare_racy(0, built.fabric.pes[0].heap_base + (1 << 20) + 8, 16)
        return built.run()

    assert run(8).problems == run(20).problems == []
    with pytest.raises(RaceError):
        run(21)
    with pytest.raises(RaceError):
        run(7)


def test_switched_off() -> None:
    """On by default; a run may do without."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        await pe.put_nbi(src, src, 64, 1)
        await pe.store(src, b"1234")
        await pe.quiet(1)

    assert model_run(only(0, main), sanitize=False).run().problems == []
    with pytest.raises(RaceError):
        model_run(only(0, main)).run()


# ------------------------------------------------------------------ gets and atomics
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("access", ["read", "store", "put", "other get"])
def test_destination_of_a_get_only_after_a_quiet(access: str, quiet: bool, schedule: Schedule) -> None:
    """Also under eager, where the bytes are there long before."""

    async def main(pe: Pe) -> None:
        dst, other = pe.alloc(64), pe.alloc(64)
        await pe.get_nbi(dst, other, 64, 1)
        if quiet:
            await pe.quiet(1)
        if access == "read":
            pe.memory(dst + 60, 4)
        elif access == "store":
            await pe.store(dst + 60, b"mine")
        elif access == "put":
            await pe.put_nbi(other, dst + 60, 4, 2)
        else:
            await pe.get_nbi(dst + 60, other, 4, 2)
        await pe.quiet_all()

    run = model_run(only(0, main), schedule, n_pes=3)
    if quiet:
        assert run.run().problems == []
        return
    words = {
        "read": "read of 4 bytes at 0x[0-9a-f]+ by main .* looks at the result of READ 0 of PE 0 to PE 1",
        "store": "store of 4 bytes at 0x[0-9a-f]+ by main of PE 0 meets the result of READ 0 of PE 0 to PE 1",
        "put": "WRITE 0 of PE 0 to PE 2, QP 0 .* sends the result of READ 0 of PE 0 to PE 1",
        "other get": "READ 0 of PE 0 to PE 2, QP 0 .* writes over memory of READ 0 of PE 0 to PE 1",
    }
    with pytest.raises(RaceError, match=words[access]) as caught:
        run.run()
    assert str(caught.value).endswith("no quiet of PE 0 to PE 1 since")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("quiet", [True, False])
def test_fetch_cell_only_after_a_quiet(quiet: bool, schedule: Schedule) -> None:
    """The cell of that peer; another peer's is free. A synchronous atomic has its quiet inside."""

    async def main(pe: Pe) -> None:
        word = pe.alloc(8)
        await pe.atomic.add(word, 1, 1)
        await pe.atomic.add(word, 1, 2)
        await pe.quiet(1 if quiet else 2)
        aclshmemi_roce_get_atomic_fetch_data(pe, 1, 0, dtype=np.int64)
        await pe.quiet(2)
        await pe.atomic.fetch_add(word, 1, 1)

    run = model_run(only(0, main), schedule, n_pes=3)
    if quiet:
        assert run.run().problems == []
        return
    with pytest.raises(RaceError, match="read of 8 bytes .* looks at the result of ATOMIC 0 of PE 0 to PE 1"):
        run.run()


def test_a_failed_quiet_says_so() -> None:
    """After an error the rest is not free, and the report tells why."""

    async def main(pe: Pe) -> None:
        word = pe.alloc(16)
        await pe.atomic.add(word + 4, 1, 1)
        await pe.atomic.fetch_add(word, 1, 1)

    with pytest.raises(RaceError, match="since that went so far; one ended with status 0x89"):
        model_run(only(0, main)).run()


@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize(
    "who", ["store of the target", "put of a third", "put of the same QP", "atomic", "get"]
)
def test_what_a_get_reads_stays_until_its_quiet(who: str, track: bool, task: Task) -> None:
    """Nothing orders the NIC's reads with what follows, not even on one QP (NIC page 5)."""
    san = RaceSanitizer(3, track)
    san.posted(_post("READ", local=0x1000, remote=0x9000), task)

    def change(index: int) -> None:
        if who == "store of the target":
            san.stored(1, 0x903C, 4, task)
        elif who == "put of a third":
            san.posted(_post("WRITE", index, 0x5000, 0x903C, 4, pe=2), task)
        elif who == "put of the same QP":
            san.posted(_post("WRITE", index, 0x5000, 0x903C, 4), task)
        elif who == "atomic":
            san.posted(_post("ATOMIC", index, 0x7000, 0x903C, 4, pe=2), task)
        else:
            san.posted(_post("READ", index, 0x903C, 0x5000, 4, pe=1, peer=2), task)

    does = "writes over what is read by" if who == "get" else "changes what is read by"
    with pytest.raises(RaceError, match=f"{does} READ 0 of PE 0 to PE 1, QP 0") as caught:
        change(1)
    assert str(caught.value).endswith("no quiet of PE 0 to PE 1 since")
    # the target may look, and others may read it too
    san.read(1, 0x9000, 64, task)
    san.posted(_post("READ", 7, 0x6000, 0x9000, pe=2), task)
    san.executed(0, 1, 0, 0)
    with pytest.raises(RaceError):
        change(2)
    san.quieted(0, 1, 0, 1, 1, 0)
    san.quieted(2, 1, 0, 8, 8, 0)
    change(3)


@pytest.mark.parametrize("second", ["WRITE", "ATOMIC", "READ"])
@pytest.mark.parametrize("first", ["WRITE", "ATOMIC"])
@pytest.mark.parametrize("same_qp", [True, False])
def test_two_under_way_to_the_same_bytes(first: str, second: str, same_qp: bool, task: Task) -> None:
    """One QP is in order, the NIC orders atomics; the rest races until the first has executed."""
    san = RaceSanitizer(3, True)
    san.posted(_post(first, local=0x1000, length=8), task)
    later = _post(second, 1 if same_qp else 0, 0x2000, 0x9004, 4, pe=0 if same_qp else 2)
    if same_qp or first == second == "ATOMIC":
        san.posted(later, task)
        return
    does = "reads" if second == "READ" else "meets"
    with pytest.raises(RaceError, match=f"{does} the destination of {first} 0 .*: it has not arrived yet"):
        san.posted(later, task)
    san.executed(0, 1, 0, 0)
    san.posted(later, task)


def test_an_atomic_and_the_target(task: Task) -> None:
    """Its own store or plain read meets the atomic until it has executed; what one QP did before has, too."""
    san = RaceSanitizer(2, True)
    san.posted(_post("ATOMIC", 0, length=8), task)
    san.posted(_post("READ", 1, 0x2000, 0xA000), task)
    san.posted(_post("WRITE", 2, 0x3000, 0xB000), task)
    with pytest.raises(RaceError, match="looks at the destination of ATOMIC 0 .* it has not arrived yet"):
        san.read(1, 0x9000, 8, task)
    with pytest.raises(RaceError, match="meets the destination of ATOMIC 0"):
        san.stored(1, 0x9007, 1, task)
    san.executed(0, 1, 0, 2)
    san.read(1, 0x9000, 8, task)
    san.stored(1, 0x9000, 8, task)
    san.stored(1, 0xB000, 8, task)


def test_puts_and_gets_meet_results_and_arrivals_on_the_other_side(task: Task) -> None:
    """A put into, and a get from, what the peer is getting itself; a put of what is arriving here."""
    san = RaceSanitizer(3, True)
    san.posted(_post("READ", 0, 0x9000, 0x1000, pe=1, peer=2), task)
    with pytest.raises(RaceError, match="WRITE 0 of PE 0 .* meets the result of READ 0 of PE 1 to PE 2"):
        san.posted(_post("WRITE", 0, 0x1000, 0x9000), task)
    with pytest.raises(RaceError, match="READ 0 of PE 0 .* reads the result of READ 0 of PE 1 to PE 2"):
        san.posted(_post("READ", 0, 0x2000, 0x9000), task)
    san = RaceSanitizer(3, True)
    san.posted(_post("WRITE"), task)
    with pytest.raises(RaceError, match="WRITE 0 of PE 1 .* sends the destination of WRITE 0 of PE 0"):
        san.posted(_post("WRITE", 0, 0x9000, 0x1000, pe=1, peer=2), task)
    with pytest.raises(RaceError, match="READ 0 of PE 1 .* writes over the destination of WRITE 0 of PE 0"):
        san.posted(_post("READ", 0, 0x9000, 0x2000, pe=1, qp=1), task)


def test_what_a_nic_refuses_for_its_length_touches_nothing(task: Task) -> None:
    """Beyond 2^31 bytes; of a length beyond 32 bits only the low ones count."""
    san = RaceSanitizer(2, True)
    san.posted(_post(length=(1 << 31) + 1), task)
    san.posted(_post(index=1, length=(1 << 32) + 4), task)
    san.stored(0, 0x1004, 64, task)
    with pytest.raises(RaceError, match="changes the source of WRITE 1"):
        san.stored(0, 0x1000, 4, task)


# ------------------------------------------------------------------ posts by hand
@pytest.mark.parametrize("opcode", ["READ", "ATOMIC"])
def test_destination_of_a_get_and_fetch_cell(opcode: str, task: Task) -> None:
    """Neither read nor written nor sent on before the quiet; conditions of waits (no task) may look."""
    san = RaceSanitizer(2)
    san.posted(_post(opcode), task)
    san.read(0, 0x0FC0, 64, task)
    san.read(0, 0x1000, 8, None)
    with pytest.raises(RaceError, match=f"looks at the result of {opcode} 0"):
        san.read(0, 0x1038, 8, task)
    with pytest.raises(RaceError, match=f"meets the result of {opcode} 0"):
        san.stored(0, 0x1038, 16, task)
    with pytest.raises(RaceError, match=f"sends the result of {opcode} 0"):
        san.posted(_post("WRITE", 1, local=0x1030), task)
    san.quieted(0, 1, 0, 1, 1, 0)
    san.read(0, 0x1038, 8, task)
    san.stored(0, 0x1038, 16, task)


def test_a_get_over_the_source_of_a_put(task: Task) -> None:
    """The get's result changes a source in use.

    Two gets of one QP to one cell are ordered, of two QPs not.
    """
    san = RaceSanitizer(2)
    san.posted(_post("WRITE"), task)
    with pytest.raises(RaceError, match="writes over memory of WRITE 0"):
        san.posted(_post("READ", 1), task)
    san = RaceSanitizer(2)
    san.posted(_post("ATOMIC"), task)
    san.posted(_post("ATOMIC", 1), task)
    with pytest.raises(RaceError, match="writes over memory of ATOMIC 0"):
        san.posted(_post("ATOMIC", 0, qp=1), task)


@pytest.mark.parametrize("head", [0, 5, 0xFFFF_FFFE])
def test_a_quiet_frees_what_it_consumed_and_no_more(head: int, task: Task) -> None:
    """After an error or time-out the tail says how far it came, over the wrap of the 32-bit head too."""
    san = RaceSanitizer(2)
    indices = [(head + n) & 0xFFFF_FFFF for n in range(4)]
    for n, index in enumerate(indices):
        san.posted(_post(index=index, local=0x1000 + 0x100 * n), task)
    san.quieted(0, 1, 0, indices[3] + 1 & 0xFFFF_FFFF, indices[2], 0xA5)
    assert [post.index for post in san.open_posts()] == indices[2:]
    san.stored(0, 0x1100, 64, task)
    with pytest.raises(RaceError):
        san.stored(0, 0x1200, 64, task)


def test_big_ranges_are_found_by_their_middle(task: Task) -> None:
    """Ranges span many buckets; removal leaves nothing behind."""
    san = RaceSanitizer(2)
    san.posted(_post(local=0xFFF0, length=5 << 16), task)
    with pytest.raises(RaceError):
        san.stored(0, 0x3_0000, 1, task)
    san.quieted(0, 1, 0, 1, 1, 0)
    san.stored(0, 0x3_0000, 1, task)
    assert not san._sources[0]._buckets and san.open_posts() == []


def test_zero_length_puts_use_nothing(task: Task) -> None:
    """They still need a quiet at the end."""
    san = RaceSanitizer(2)
    san.posted(_post(length=0), task)
    san.stored(0, 0x1000, 64, task)
    assert len(san.open_posts()) == 1
