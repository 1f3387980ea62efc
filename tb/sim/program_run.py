"""cocotb side of ``make sim`` and ``camhil run --on rtl``: one device program over the NICs, judged.

The configuration comes as JSON in ``CAMHIL_RUN`` (:class:`tb.sim.sim.SimConfig`). The summary goes to
``summary.json`` in the working directory, what capture and timeline hold to ``capture.txt``, the log of link
faults to ``faults.txt``, also where the run fails; what the programs print to ``printed.txt``, at once. Where
programs wait for flags, the summary has the cycles from the first doorbell to the last flag.
"""

from __future__ import annotations

import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import cocotb

from pymodel.faults import from_sources
from pymodel.faults.log import counts, memory_counts, text
from pymodel.host.table import Fabric
from pymodel.nic.params import Cnt
from pymodel.run import load
from tb.sim.pcap import PcapWriter
from tb.sim.platform import Rig
from tb.sim.sim import PRINTED, SimConfig
from tb.sim.timeline import Span, Timeline


@cocotb.test()
async def program(dut) -> None:
    """Build the fabric, run the program on every PE, do the closing checks."""
    config = SimConfig.from_json(os.environ["CAMHIL_RUN"])
    loaded = load(config.run.program)
    rules = from_sources(config.run.faults)
    fabric = Fabric.build(config.run.fabric_config(loaded))
    # a QP whose packets are all lost takes eight timer periods to give up (`pymodel.run.FAULT_TIMER`)
    patience = 2 * config.hang_after if rules else config.hang_after
    rig = Rig(dut, fabric, knobs=config.knobs, seed=config.run.seed, faults=rules, stall_limit=patience)
    capture = PcapWriter(Path(config.pcap), config.run.pes, config.pcap_window) if config.pcap else None
    if capture is not None:
        rig.sinks.append(capture)
    timeline = Timeline(Path(config.timeline), config.run.pes) if config.timeline else None
    span = Span()
    rig.sinks += [span] if timeline is None else [span, timeline]
    rig.summary.mismatches = 1  # stands if the run does not reach its end
    try:
        await rig.start()
        # line by line, for whoever started this process
        printed = Path(PRINTED).open("w", buffering=1, encoding="utf-8", errors="backslashreplace")
        with printed as said, redirect_stdout(said), redirect_stderr(said):
            result = await rig.run(
                loaded.main,
                options=config.run.options(),
                sanitize=config.run.sanitize,
                hang_after=patience,
                observers=() if timeline is None else (timeline,),
            )
        await rig.check(result)
        if cycles := span.cycles(rig.pes):
            moved = rig.summary.bytes / (cycles * config.run.pes)
            rig.summary.figures["cycles_first_doorbell_to_last_flag"] = cycles
            rig.summary.figures["bytes_per_cycle_and_NIC"] = round(moved, 1)
            rig.summary.figures["cycles_at_the_limit_of_the_link"] = span.link_limit
        if rules:
            rig.summary.figures["retries"] = rig.total(Cnt.RETRY)
            rig.summary.figures["requests_sent"] = rig.total(Cnt.TX_REQUEST)
    finally:
        if rules:
            log, memory = rig.fault_log(), rig.memory_log()
            Path("faults.txt").write_text(f"{text(log, rig.lib.fault_rules, memory)}\n")
            kinds = counts(log) | memory_counts(memory)
            rig.summary.figures.update({f"faults_{kind}": n for kind, n in kinds.items() if n})
        rig.summary.save(Path("summary.json"))
        said = [] if capture is None else [f"capture: {capture.close()}"]
        said += [] if timeline is None else [f"timeline: {timeline.close(rig.pes)}"]
        if said:
            Path("capture.txt").write_text("\n".join(said))
