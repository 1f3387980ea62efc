"""Sync, barrier, teams and signals over RDMA.

Sweep: 1 to 16 PEs, schedules, driver generations, many rounds with late PEs, counts over the 32-bit wrap,
teams with strides. Stimulus: programs on the golden NICs. Checks: nobody leaves before all have come, puts
have arrived, the exact WQEs and doorbells of a barrier, which counts a wait accepts, who is refused. Timing:
seeded sleeps. Does not prove: that the RTL keeps the order of the slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymodel import device
from pymodel.device import DeviceOptions, Generation, Pe, SignalOp, Team
from pymodel.host.table import Fabric, FabricConfig
from pymodel.platform import Observer, PostInfo
from pymodel.run import ModelRun
from pymodel.runner import HangError
from pymodel.sanitizer import RaceError
from tests.model import wqe_expect as expect
from tests.model.model_programs import SCHEDULES, Schedule, model_run

U32 = 0xFFFF_FFFF
COUNTER = 1024
"""Offset of a team's counter behind its 16 slots of 64 bytes."""


class Meeting:
    """Who has come to which round; asserts that nobody leaves early."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.come: dict[int, int] = {}

    async def hold(self, number: int, barrier: Any) -> None:
        self.come[number] = self.come.get(number, 0) + 1
        await barrier
        assert self.come[number] == self.members, f"left round {number} early"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pes", [1, 2, 3, 4, 5, 7, 8, 11, 16])
def test_nobody_leaves_before_all_have_come(pes: int, schedule: Schedule) -> None:
    """Barriers and syncs in turn, with PEs that come late at random, over many rounds of the same pool."""
    rounds = 12 if pes < 8 else 4
    meeting = Meeting(pes)

    async def main(pe: Pe) -> None:
        for number in range(rounds):
            if pe.rng.random() < 0.4:
                await pe.sleep(pe.rng.randrange(1, 4000))
            await meeting.hold(number, pe.barrier_all() if number % 2 else pe.sync_all())

    run = model_run(main, schedule, seed=pes, n_pes=pes, generation=Generation.G2)
    assert run.run().problems == []
    for pe in run.fabric.pes:
        counter = run.model.memory(pe.rank, pe.heap_base + COUNTER, 4)
        assert int.from_bytes(counter.tobytes(), "little") == rounds


@pytest.mark.parametrize("generation", Generation)
def test_one_pe_far_behind(generation: Generation) -> None:
    """The others wait for it in every round, whoever it is."""
    for late in range(4):
        meeting = Meeting(4)

        async def main(pe: Pe) -> None:
            for number in range(3):
                if pe.rank == late:  # noqa: B023
                    await pe.sleep(20_000)
                await meeting.hold(number, pe.barrier_all())  # noqa: B023

        assert model_run(main, "random", n_pes=4, generation=generation).run().problems == []


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("generation", Generation)
def test_a_barrier_completes_puts_of_every_qp(generation: Generation, schedule: Schedule) -> None:
    """4.5: quiet to every member, all QPs: an all-to-all on QP 1 is there afterwards and may be read."""
    pes = 4

    async def main(pe: Pe) -> None:
        mine, landing = pe.alloc(64), [pe.alloc(64) for _ in range(pes)]
        for number in range(3):
            await pe.store(mine, bytes([pe.rank, number] * 32))
            for peer in range(pes):
                if peer != pe.rank:
                    await pe.put_nbi(landing[pe.rank], mine, 64, peer, 1)
            await pe.barrier_all()
            for peer in range(pes):
                if peer != pe.rank:
                    assert pe.memory(landing[peer], 64).tobytes() == bytes([peer, number] * 32)
            # nobody overwrites what another still reads
            await pe.barrier_all()

    assert model_run(main, schedule, n_pes=pes, qps=2, generation=generation).run().problems == []


def test_a_sync_does_not_complete_puts() -> None:
    """4.5: without the quiets a put of QP 1 is still under way: a race, and old bytes under lazy."""

    async def main(pe: Pe) -> bytes:
        mine, landing = pe.alloc(64), pe.alloc(64)
        await pe.store(mine, b"new!")
        if pe.rank == 0:
            await pe.put_nbi(landing, mine, 4, 1, 1)
        await pe.sync_all()
        seen = pe.memory(landing, 4).tobytes()
        await pe.sync_all()
        await pe.quiet_all()
        return seen

    with pytest.raises(RaceError, match="looks at the destination of WRITE 0 of PE 0 to PE 1, QP 1"):
        model_run(main, "lazy", qps=2).run()
    assert model_run(main, "lazy", qps=2, sanitize=False).run().returns[1] == bytes(4)


class Posts(Observer):
    """All posts."""

    def __init__(self) -> None:
        self.seen: list[PostInfo] = []

    def posted(self, post: PostInfo, task: Any) -> None:
        self.seen.append(post)


@pytest.mark.parametrize("pes", [2, 3, 4, 6, 9])
@pytest.mark.parametrize("generation", Generation)
def test_what_a_barrier_posts(generation: Generation, pes: int) -> None:
    """Dissemination: in round of shift s a 4-byte WRITE from the counter to slot [me] of PE me + s, quieted.

    So ceil(log2 n) WRITEs; their doorbells one after the other, each poll before the next WRITE.
    """

    async def main(pe: Pe) -> None:
        await pe.barrier_all()

    posts = Posts()
    run = model_run(main, "random", n_pes=pes, generation=generation, observers=[posts])
    assert run.run().problems == []
    shifts = [1 << n for n in range((pes - 1).bit_length())]
    for pe in run.fabric.pes:
        me = pe.rank
        mine = [post for post in posts.seen if post.pe == me]
        assert [post.peer for post in mine] == [(me + shift) % pes for shift in shifts]
        log = []
        if generation is not Generation.G3:
            # the quiets before ring although there is nothing to wait for; G3 returns at once
            log = [(me, peer, "cq", 0) for peer in range(pes) if peer != me]
        for post in mine:
            assert (post.msg_opcode, post.length, post.qp) == (1, 4, 0)
            assert post.local == pe.heap_base + COUNTER
            assert post.remote == run.fabric.pes[post.peer].heap_base + 64 * me
            log += [(me, post.peer, "sq", 1), (me, post.peer, "cq", 1)]
        bells = []
        for rank, addr, data in run.model.mmio_log:
            if rank == me:
                plan = run.fabric.by_qpn[me, addr - 0x0800_0000 >> 12]
                kind = "cq" if addr & 0xFFF else "sq"
                value = data & 0x7F_FFFF if kind == "cq" else (data & 0x1F_FFFF) >> 3
                bells.append((me, plan.peer, kind, value))
        assert bells == log


# ------------------------------------------------------------------ counts
def _preset(run: ModelRun, pe: int, offset: int, value: int) -> None:
    heap = run.fabric.pes[pe].heap_base
    run.model.memories[pe].view(heap + offset, 4)[:] = np.frombuffer(
        (value & U32).to_bytes(4, "little"), np.uint8
    )


@pytest.mark.parametrize(("ahead", "passes"), [(-1, False), (0, True), (1, True), (2, False)])
@pytest.mark.parametrize("before", [0, 6, U32 - 1, U32])
def test_which_counts_a_wait_accepts(before: int, ahead: int, passes: bool) -> None:
    """Addenda 6: its own count or one more, over the wrap too; a slot two ahead is waited for for ever."""

    async def main(pe: Pe) -> None:
        if pe.rank == 0:
            await pe.sync_all()

    run = model_run(main, "eager", hang_after=5000)
    _preset(run, 0, COUNTER, before)
    _preset(run, 0, 64, before + 1 + ahead)
    if passes:
        assert run.run().problems == []
        return
    with pytest.raises(HangError, match=rf"barrier {(before + 1) & U32} of team 0, shift 1 from PE 1"):
        run.run()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_counts_wrap_at_32_bits(schedule: Schedule) -> None:
    """Rounds on both sides of the wrap."""
    meeting = Meeting(3)

    async def main(pe: Pe) -> None:
        for number in range(8):
            await meeting.hold(number, pe.barrier_all())

    run = model_run(main, schedule, n_pes=3)
    for pe in range(3):
        _preset(run, pe, COUNTER, U32 - 3)
        for slot in range(3):
            _preset(run, pe, 64 * slot, U32 - 3)
    assert run.run().problems == []


# ------------------------------------------------------------------ teams
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_teams_have_pools_of_their_own(schedule: Schedule) -> None:
    """Evens, odds and the last three in turn, and all PEs between: members only, at different paces."""
    pes = 7
    meetings = {number: Meeting(size) for number, size in ((0, 7), (1, 4), (2, 3), (3, 3))}

    async def main(pe: Pe) -> None:
        evens, odds, last = (pe.team_split_strided(*shape) for shape in ((0, 2, 4), (1, 2, 3), (4, 1, 3)))
        for number in range(4):
            for team in (evens, odds, last, pe.team_world):
                try:
                    team.index(pe.rank)
                except ValueError:
                    continue
                for turn in range(1 + team.number):
                    if pe.rng.random() < 0.3:
                        await pe.sleep(pe.rng.randrange(1, 500))
                    call = device.aclshmemx_roce_team_sync if turn else device.aclshmemx_roce_barrier
                    meeting = meetings[team.number]
                    await meeting.hold(10 * number + turn, _zero(call(pe, team, pe.local_tensor(0, 128), 1)))

    async def _zero(call: Any) -> None:
        assert await call == 0

    assert model_run(main, schedule, n_pes=pes).run().problems == []


@pytest.mark.parametrize("call", [device.aclshmemx_roce_team_sync, device.aclshmemx_roce_barrier])
def test_a_pe_outside_the_team_is_refused(call: Any) -> None:
    """Addenda 7: the original would signal 64 bytes below the pool; here nothing is posted."""

    async def main(pe: Pe) -> None:
        team = pe.team_split_strided(2, 2, 2)
        if pe.rank in (2, 4):
            await call(pe, team)
            return
        with pytest.raises(ValueError, match=f"PE {pe.rank} is not in the team of 2 from PE 2, stride 2"):
            await call(pe, team)
        assert pe.qps() == []

    assert model_run(main, n_pes=7).run().problems == []


def test_teams_that_cannot_be() -> None:
    """Members beyond the last PE, no members, a stride of 0, more teams than pools."""
    for shape in ((-1, 1, 2), (0, 0, 2), (0, 1, 0)):
        with pytest.raises(ValueError, match="team of"):
            Team(1, *shape)

    async def main(pe: Pe) -> None:
        with pytest.raises(ValueError, match="there are 3 PEs"):
            pe.team_split_strided(0, 2, 3)
        numbers = [pe.team_split_strided(0, 1, 2).number for _ in range(31)]
        assert numbers == list(range(1, 32))
        with pytest.raises(ValueError, match="there are 32 sync pools"):
            pe.team_split_strided(0, 1, 2)

    assert model_run(main, n_pes=3).run().good


# ------------------------------------------------------------------ signals
def signal_run(main: Any, schedule: Schedule, write: bool, observers: Any = (), **config: Any) -> ModelRun:
    """A run with one of the two forms of signals."""
    fabric = Fabric.build(FabricConfig(**{"seed": 2, **config}))
    options = DeviceOptions(signal_write=write)
    return ModelRun(fabric, main, schedule, options=options, observers=observers)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("generation", Generation)
def test_signals_round_a_ring(generation: Generation, write: bool, schedule: Schedule) -> None:
    """4 bytes exactly, negative values too; the source word may change at once, as each signal is quieted."""
    pes, rounds = 3, 6

    async def main(pe: Pe) -> None:
        word = pe.alloc(16)
        await pe.store(word, b"\xa5" * 16)
        await pe.barrier_all()
        for number in range(rounds):
            value = -number - 1
            if pe.rank == 0:
                await pe.signal_set(word + 4, value, 1)
            await pe.wait_value(word + 4, value & U32, peer=(pe.rank - 1) % pes)
            if pe.rank:
                await pe.signal_set(word + 4, value, (pe.rank + 1) % pes)
        view = pe.memory(word, 16).tobytes()
        assert view == b"\xa5" * 4 + (-rounds).to_bytes(4, "little", signed=True) + b"\xa5" * 8

    posts = Posts()
    run = signal_run(main, schedule, write, [posts], n_pes=pes, generation=generation)
    assert run.run().problems == []
    signals = [
        post for post in posts.seen if post.remote & 0xFFFFF == run.fabric.pes[0].heap_base & 0xFFFFF | 4
    ]
    assert len(signals) == pes * rounds
    # opcode 33: masked compare-and-swap of 4 bytes, unconditional
    assert {post.msg_opcode for post in signals} == ({1} if write else {33})


def test_the_wqe_of_a_signal() -> None:
    """5.3 set of 4 bytes; the WRITE form sends a word of the sync area."""
    seen = []

    async def main(pe: Pe) -> None:
        word = pe.alloc(16)
        if pe.rank == 0:
            await device.aclshmemx_signal_op(pe, word, -2, SignalOp.SET, 1)
            seen.append((word, pe.memory(pe.qp(1).sq_addr, 128).tobytes()))

    for write in (False, True):
        run = signal_run(main, "lazy", write)
        assert run.run().problems == []
        word, raw = seen.pop()
        mine, peer = run.fabric.pes
        there = word - mine.heap_base + peer.heap_base
        if write:
            source = mine.heap_base + (64 << 10) + 64
            wqe = expect.Wqe(1, 2, 4, 4, peer.heap_rkey, there, mine.heap_lkey, source)
            assert run.model.memory(0, source, 4).tobytes() == b"\xfe\xff\xff\xff"
        else:
            opcode, ds, msg_len, length, atomic = expect.ATOMICS["set"](4, -2, 0)
            cell = mine.amo_base + 1024
            wqe = expect.Wqe(opcode, ds, msg_len, length, peer.heap_rkey, there, mine.amo_lkey, cell, atomic)
        assert raw == wqe.overlay(bytes(128), 0, 2)


def test_signals_that_cannot_be() -> None:
    """ADD does not go over RDMA (addenda 5); 32 bits are 32 bits."""

    async def main(pe: Pe) -> None:
        word = pe.alloc(16)
        with pytest.raises(NotImplementedError, match="ADD does not go over RDMA"):
            await device.aclshmemx_signal_op(pe, word, 1, SignalOp.ADD, 1 - pe.rank)
        for value in (1 << 32, -(1 << 31) - 1):
            with pytest.raises(OverflowError, match="has more than 32 bits"):
                await pe.signal_set(word, value, 1 - pe.rank)
        assert pe.qp(1 - pe.rank).posts == 0

    assert model_run(main).run().good
