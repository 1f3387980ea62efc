"""cocotb side of ``make sim`` and ``camhil run --on rtl``: one device program over the NICs, judged.

The configuration comes as JSON in ``CAMHIL_RUN`` (:class:`tb.sim.sim.SimConfig`); the summary goes to
``summary.json`` in the working directory, what a capture holds to ``capture.txt``, also where the run fails.
"""

from __future__ import annotations

import os
from pathlib import Path

import cocotb

from pymodel.host.table import Fabric
from pymodel.run import load
from tb.sim.pcap import PcapWriter
from tb.sim.platform import Rig
from tb.sim.sim import SimConfig


@cocotb.test()
async def program(dut) -> None:
    """Build the fabric, run the program on every PE, do the closing checks."""
    config = SimConfig.from_json(os.environ["CAMHIL_RUN"])
    loaded = load(config.run.program)
    rig = Rig(dut, Fabric.build(config.run.fabric_config(loaded)), knobs=config.knobs, seed=config.run.seed)
    capture = PcapWriter(Path(config.pcap), config.run.pes, config.pcap_window) if config.pcap else None
    if capture is not None:
        rig.sinks.append(capture)
    rig.summary.mismatches = 1  # stands if the run does not reach its end
    try:
        await rig.start()
        result = await rig.run(
            loaded.main,
            options=config.run.options(),
            sanitize=config.run.sanitize,
            hang_after=config.hang_after,
        )
        await rig.check(result)
    finally:
        rig.summary.save(Path("summary.json"))
        if capture is not None:
            Path("capture.txt").write_text(capture.close())
