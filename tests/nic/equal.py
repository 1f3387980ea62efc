"""The same program on the golden NICs alone and on the RTL: what must be equal (programs.md 3).

For a program without races: every byte of the heaps of all PEs, what `main` returns on each PE, and the
doorbells of each (PE, peer, QP), SQ and CQ each in their order, all 64 bits of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymodel.device import DeviceOptions
from pymodel.faults import Rule, parse
from pymodel.host.table import Fabric, FabricConfig
from pymodel.model import SCHEDULES, Schedule
from pymodel.run import Main, ModelRun
from tb.sim.platform import Rig
from tb.sim.records import Kind

#: (PE, peer, QP, register)
Place = tuple[int, int, int, str]


class Outcome(NamedTuple):
    """What a run left: results and heaps by PE, doorbells by place."""

    returns: list[Any]
    heaps: list[np.ndarray]
    doorbells: dict[Place, list[int]]

    def compare(self, other: Outcome, names: tuple[str, str]) -> None:
        """Assert that both are equal; names the first difference."""
        both = " and ".join(names)
        for pe, (one, two) in enumerate(zip(self.returns, other.returns, strict=True)):
            assert one == two, f"PE {pe} returns {one!r} and {two!r} on {both}"
        assert self.doorbells.keys() == other.doorbells.keys(), f"doorbells rung on {both}"
        for place, one in self.doorbells.items():
            two = other.doorbells[place]
            for number, pair in enumerate(zip(one, two, strict=False)):
                assert pair[0] == pair[1], f"doorbell {number} of {place} on {both}: {[hex(n) for n in pair]}"
            assert len(one) == len(two), f"doorbells of {place} on {both}: {len(one)} and {len(two)}"
        for pe, (one, two) in enumerate(zip(self.heaps, other.heaps, strict=True)):
            wrong = np.flatnonzero(one != two)
            assert not wrong.size, f"heap of PE {pe}, offsets {[hex(n) for n in wrong[:8]]} on {both}"


def by_place(fabric: Fabric, writes: list[tuple[int, int, int]]) -> dict[Place, list[int]]:
    """BAR writes (PE, address, data) sorted into the doorbells they are; KeyError for anything else."""
    places = {
        (plan.pe, fabric.config.params.db_address(plan.qpn, offset)): (plan.pe, plan.peer, plan.qp_idx, name)
        for plan in fabric.qps.values()
        for offset, name in ((0, "SQ"), (16, "CQ"))
    }
    found: dict[Place, list[int]] = defaultdict(list)
    for pe, addr, data in writes:
        found[places[pe, addr]].append(data)
    return dict(found)


def on_model(
    config: FabricConfig, main: Main, schedule: Schedule, options: DeviceOptions, faults: list[Rule]
) -> Outcome:
    """The program on the golden NICs."""
    run = ModelRun(Fabric.build(config), main, schedule, seed=config.seed, options=options, faults=faults)
    result = run.run()
    assert run.model.link is None or run.model.link.log().size, f"no fault met a packet ({schedule})"
    assert result.good, (schedule, result.problems)
    heaps = [run.model.memory(pe.rank, pe.heap_base, pe.heap_size) for pe in run.fabric.pes]
    return Outcome(result.returns, heaps, by_place(run.fabric, run.model.mmio_log))


async def on_rtl(
    dut: Any, config: FabricConfig, main: Main, options: DeviceOptions, faults: list[Rule], **knobs: int
) -> Outcome:
    """The program on the RTL, judged."""
    fabric = Fabric.build(config)
    base = config.params.db_base
    writes: list[tuple[int, int, int]] = []

    def sink(records: np.ndarray, side: np.ndarray) -> None:
        mine = records[(records["kind"] == Kind.MMIO_W) & (records["addr"] >= base)]
        assert (mine["flags"] == 0xFF).all(), "a doorbell in parts"
        writes.extend(zip(mine["pe"].tolist(), mine["addr"].tolist(), mine["data"].tolist(), strict=True))

    rig = Rig(dut, fabric, knobs=knobs, sinks=[sink], seed=config.seed, faults=faults)
    await rig.start()
    result = await rig.run(main, options=options)
    await rig.check(result)
    assert not faults or rig.fault_log().size, "no fault met a packet on the RTL"
    heaps = [rig.lib.memory(pe.rank, pe.heap_base, pe.heap_size) for pe in fabric.pes]
    return Outcome(result.returns, heaps, by_place(fabric, writes))


async def equal(
    dut: Any,
    config: FabricConfig,
    program: Callable[[], Main],
    options: DeviceOptions | None = None,
    faults: str = "",
    **knobs: int,
) -> Outcome:
    """Run the program on the RTL and under each schedule of the model, compare; gives the RTL's outcome.

    ``program`` makes the `main` of one run: what it keeps outside the PEs' memory starts anew. ``faults``:
    rules of the link on both.
    """
    options = options or DeviceOptions()
    rules = parse(faults)
    rtl = await on_rtl(dut, config, program(), options, rules, **knobs)
    for schedule in SCHEDULES:
        on_model(config, program(), schedule, options, rules).compare(
            rtl, (f"the model ({schedule})", "the RTL")
        )
    return rtl
