"""Sync, barriers, teams and signals do the same on the golden NICs and on the RTL, over many rounds.

Sweep: 2 and 4 PEs, driver generations, signals by atomic and by WRITE, both formats, dirty UB, indices near
their wraps; the model's three schedules, the RTL under stalls.
Stimulus: each round, in which PEs come late at random: a put on QP 1 to the right neighbour, a barrier, data
and a signal behind it on QP 0, a sync, now and then a team of every other PE.
Checks: `tests.nic.equal`: heaps (with the sync pools and their counters), results, doorbells in order; what a
barrier and a signal promise: the data is there and nobody has left before all had come; the judge's.
Timing: none. Not proved: barriers of more than 4 PEs on the RTL.
"""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
import pytest

from pymodel.device import DeviceOptions, Generation, Pe
from pymodel.host.table import FabricConfig
from tb.sim.lib import SimLib
from tests.nic.equal import Outcome, equal

PES = [2, 4]
ROUNDS = 16
SIZE = 700
STALLS = {
    "mem_latency": 40, "mem_latency_jitter": 300, "mem_ooo": 20000, "commit_delay": 200,
    "link_stall_rx": 4000,
}  # fmt: skip


def block(what: str, rank: int, number: int) -> bytes:
    """The bytes that PE ``rank`` sends in a round."""
    seed = [len(what), rank, number]
    return np.random.default_rng(seed).bytes(SIZE)


def program() -> Any:
    """A fresh `main`: its count of who has come belongs to one run."""
    come: dict[int, int] = {}

    async def main(pe: Pe) -> list[int]:
        n, right, left = pe.n_pes, (pe.rank + 1) % pe.n_pes, (pe.rank - 1) % pe.n_pes
        mine, landing = [pe.alloc(SIZE) for _ in range(2)], [pe.alloc(SIZE) for _ in range(2)]
        signal, seen = pe.alloc(4), []
        team = pe.team_split_strided(pe.rank % 2, 2, n // 2) if n > 2 else pe.team_world
        # the numbers of teams are the same on all PEs, so those of even and of odd PEs never meet
        for number in range(ROUNDS):
            if pe.rng.random() < 0.3:
                await pe.sleep(pe.rng.randrange(1, 3000))
            await pe.store(mine[0], block("put", pe.rank, number))
            await pe.put_nbi(landing[0], mine[0], SIZE, right, 1)
            come[number] = come.get(number, 0) + 1
            await pe.barrier_all()
            assert come[number] == n, f"{pe} left barrier {number} early"
            assert pe.memory(landing[0], SIZE).tobytes() == block("put", left, number), f"put {number}"
            await pe.store(mine[1], block("flag", pe.rank, number))
            await pe.put_nbi(landing[1], mine[1], SIZE, right)
            # on the same QP: the flag stays behind its data
            await pe.signal_set(signal, (pe.rank << 16) + number + 1, right)
            await pe.wait_value(signal, (left << 16) + number + 1, peer=left)
            assert pe.memory(landing[1], SIZE).tobytes() == block("flag", left, number), f"flag {number}"
            if number % 3 == 0:
                await pe.barrier(team)
            # nobody overwrites what another still looks at
            await pe.sync_all()
            seen.append(int(pe.memory(signal, 4).view("<u4")[0]))
        await pe.quiet_all()
        return seen

    return main


@cocotb.test()
@cocotb.parametrize(generation=[1, 2, 3])
async def test_rounds(dut, generation: int) -> None:
    """Signals go by WRITE in generation 2, by atomic in the others."""
    n_pes = SimLib(dut).n_pes
    pairs = [(pe, peer) for pe in range(n_pes) for peer in range(n_pes) if pe != peer]
    overrides = {(pe, peer, qp): {"version": 1 + (pe + qp) % 2} for pe, peer in pairs for qp in (0, 1)}
    config = FabricConfig.mixed(
        n_pes, 2, cocotb.RANDOM_SEED, sq_depths=(16, 32), generation=Generation(generation), ub_fill="dirty",
        heap_bytes=2 << 20, overrides=overrides,
    )  # fmt: skip
    options = DeviceOptions(signal_write=generation == 2)
    rtl = await equal(dut, config, program, options, **STALLS)
    assert [len(seen) for seen in rtl.returns] == [ROUNDS] * n_pes


GOOD = Outcome([1, 2], [np.zeros(8, np.uint8), np.zeros(8, np.uint8)], {(0, 1, 0, "SQ"): [8, 16]})
BAD = {
    "PE 1 returns 2 and 3": GOOD._replace(returns=[1, 3]),
    "heap of PE 0, offsets .'0x5'.": GOOD._replace(heaps=[np.eye(8, dtype=np.uint8)[5], GOOD.heaps[1]]),
    "doorbell 1 of": GOOD._replace(doorbells={(0, 1, 0, "SQ"): [8, 24]}),
    "doorbells of .*: 2 and 1": GOOD._replace(doorbells={(0, 1, 0, "SQ"): [8]}),
    "doorbells rung": GOOD._replace(doorbells={(0, 1, 0, "CQ"): [8, 16]}),
}


@pytest.mark.parametrize("text", BAD)
def test_a_difference_is_named(text: str) -> None:
    """Each thing that is compared; nothing where all is equal."""
    GOOD.compare(GOOD, ("one", "two"))
    with pytest.raises(AssertionError, match=text):
        GOOD.compare(BAD[text], ("one", "two"))
