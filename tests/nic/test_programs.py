"""Every program of programs/ on the RTL, judged.

Sweep: 2 and 4 NICs; each PE with a driver generation of its own, everything else mixed, dirty UB.
Stimulus: the examples as they are; test_programs_mixed.py and test_moe_prefill.py have the others.
Checks: what the programs assert; what some of them return; no problem; the judge's.
Timing: none. Not proved: more than 4 NICs.
"""

from __future__ import annotations

from typing import Any

import cocotb

from pymodel.generation import Generation
from pymodel.host.table import Fabric, FabricConfig
from pymodel.run import RunResult, load
from tb.sim.lib import SimLib
from tb.sim.platform import Rig
from tb.sim.sim import PROGRAMS

PES = [2, 4]
EXAMPLES = [
    "allgather",
    "atomics",
    "barriers",
    "gather_get",
    "hello_put",
    "ping_pong",
    "ring_put",
    "signal_ring",
    "stages",
    "tickets",
]


async def run(dut: Any, name: str, n_pes: int, **constants: int) -> tuple[RunResult, dict[str, Any]]:
    """One program, judged; gives the result and the module's names."""
    seed = cocotb.RANDOM_SEED
    program = load(PROGRAMS / f"{name}.py")
    module = program.main.__globals__
    assert constants.keys() <= module.keys(), f"{name}: no such constant"
    module.update(constants)
    if program.fabric is not None:
        config = program.fabric(n_pes, seed)
    else:
        generations = [Generation(1 + (seed + pe) % 3) for pe in range(n_pes)]
        config = FabricConfig.mixed(n_pes, 2, seed, generation=generations, ub_fill="dirty")
    rig = Rig(dut, Fabric.build(config))
    await rig.start()
    result = await rig.run(program.main)
    await rig.check(result)
    return result, module


def test_every_program_is_here() -> None:
    """A new program must be named above."""
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {
        *EXAMPLES,
        "mixed",
        "moe_prefill",
        "moe_prefill_atomics",
    }


@cocotb.test()
@cocotb.parametrize(name=EXAMPLES)
async def test_examples(dut, name: str) -> None:
    n_pes = SimLib(dut).n_pes
    result, module = await run(dut, name, n_pes)
    assert result.posts > 0
    if name == "gather_get":
        assert result.reads == n_pes * (n_pes - 1)
    if name == "tickets":
        assert sorted(sum(result.returns, [])) == list(range(module["TICKETS"]))
