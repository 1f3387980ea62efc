"""Kinds of failures that need no NIC of hardware to be shown (docs/failure-kinds.md).

Sweep: one counter for several puts, from several PEs and over several QPs of one. Stimulus: programs on the
golden NICs under all three schedules. Checks: a reader that trusts a count that does not say which put it
stands for is named by the race sanitizer under some schedule; one that waits for all of them reads the right
bytes under every schedule. Timing: none. Does not prove that the sanitizer finds it in a single schedule.
"""

from __future__ import annotations

import numpy as np
import pytest

from pymodel.device import Pe
from pymodel.sanitizer import RaceError
from tests.model.model_programs import SCHEDULES, Main, model_run

SIZE = 3000


def several_senders(count: int) -> Main:
    """PEs 0 and 2 put a chunk into PE 1 and add to its counter; PE 1 reads both chunks at ``count``."""

    async def main(pe: Pe) -> list[bytes] | None:
        chunks, source, counter = [pe.alloc(SIZE) for _ in range(3)], pe.alloc(SIZE), pe.alloc(8)
        if pe.rank == 1:
            await pe.wait_until(counter, 8, lambda view: int(view.view("<u8")[0]) >= count)
            return [pe.memory(chunks[peer], SIZE).tobytes() for peer in (0, 2)]
        await pe.store(source, bytes([pe.rank + 1]) * SIZE)
        await pe.put_nbi(chunks[pe.rank], source, SIZE, 1)
        await pe.atomic.add(counter, 1, 1, dtype=np.uint64)
        await pe.quiet(1)
        return None

    return main


def several_qps(quiet: bool) -> Main:
    """PE 0 puts a chunk on QP 0 and one on QP 1, counts on QP 0, with or without a quiet of QP 1 before."""

    async def main(pe: Pe) -> list[bytes] | None:
        chunks, source, counter = [pe.alloc(SIZE) for _ in range(2)], pe.alloc(SIZE), pe.alloc(8)
        if pe.rank == 1:
            await pe.wait_until(counter, 8, lambda view: int(view.view("<u8")[0]) >= 1)
            return [pe.memory(chunk, SIZE).tobytes() for chunk in chunks]
        if pe.rank == 0:
            await pe.store(source, bytes([1]) * SIZE)
            await pe.put_nbi(chunks[1], source, SIZE, 1, 1)
            await pe.put_nbi(chunks[0], source, SIZE, 1, 0)
            if quiet:
                await pe.quiet(1, 1)
            await pe.atomic.add(counter, 1, 1, dtype=np.uint64)
            await pe.quiet(1)
        return None

    return main


def races(main: Main, want: list[bytes], **config: int) -> int:
    """Under how many schedules the run is a race; under the others the bytes are right."""
    found = 0
    for schedule in SCHEDULES:
        try:
            result = model_run(main, schedule, **config).run()
        except RaceError as error:
            assert "looks at the destination" in str(error)
            found += 1
        else:
            assert result.good and result.returns[1] == want
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_count_does_not_say_which(seed: int) -> None:
    """A count of 1 stands for whichever put came first; only all of them, or a quiet, make the data free."""
    both = [bytes([1]) * SIZE, bytes([3]) * SIZE]
    assert races(several_senders(1), both, n_pes=3, seed=seed) > 0
    assert races(several_senders(2), both, n_pes=3, seed=seed) == 0
    same = [bytes([1]) * SIZE] * 2
    assert races(several_qps(quiet=False), same, n_pes=2, qps=2, seed=seed) > 0
    assert races(several_qps(quiet=True), same, n_pes=2, qps=2, seed=seed) == 0
