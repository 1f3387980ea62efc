"""What `make sim` runs, cut down: the mixed program on 2 NICs of the RTL, judged.

Sweep: that of the program. Stimulus: fewer messages and laps, each provoked error. Checks: what the program
asserts; each error that it announces, no other problem; the judge's.
Timing: none. Not proved: its full size and 4 NICs (make sim).
"""

from __future__ import annotations

import cocotb

from tests.nic.test_programs import run

PES = 2
#: constants of the program that say how much it does
SHORT = {"DATA_WQES": 300, "WHOLE_MIB": 1, "LAPS": 1}


@cocotb.test()
async def test_mixed(dut) -> None:
    """Everything at once, with an error on each QP that is there for it."""
    result, module = await run(dut, "mixed", 2, **SHORT)
    assert result.errors_provoked >= len(module["Roles"].of(2).errors)
    assert result.posts > 500 and min(result.reads, result.atomics, result.atomics_checked) > 10, result
