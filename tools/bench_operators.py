"""Time of an MoE prefill layer over the RTL NICs against the link's limit: table rows and a plot.

Used by bench.py. R 2 to 16, T 32, K 8, h 7168, E 16, quantised (programs page, section 6), both signalling
variants. Time runs from the first accepted doorbell to the memory write that satisfies the last wait; the
limit is what the busiest direction of a link needs for its bytes, headers included, at 64 bytes a cycle.
Every run is judged.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from pymodel.run import RunConfig
from tb.sim import sim

RANKS = (2, 4, 8, 16)
SIGNALLING = ("flags", "atomics")
#: cycles of link and memory, as in the other figures of the NIC
LATENCY = 200
#: cycles that a post takes the device (K of the programs page, section 6)
POST_CYCLES = 0
PROGRAM = '''"""The layer that the benchmark times."""

from functools import cache

from pymodel.operators.moe_layer import LayerSizes, PrefillLayer


@cache
def prepared(n_pes, seed):
    return PrefillLayer(LayerSizes(n_pes), "{signalling}", seed)


def fabric(n_pes, seed):
    return prepared(n_pes, seed).world.fabric()


async def main(pe):
    await prepared(pe.n_pes, pe.seed).main(pe)
'''


@dataclass(frozen=True)
class LayerTime:
    """One run: cycles, cycles at the limit, WQEs and payload bytes per cycle and NIC."""

    ranks: int
    signalling: str
    cycles: int
    limit: int
    wqes: int
    bytes_per_cycle: float

    @property
    def of_limit(self) -> float:
        """Share of the limit that was reached."""
        return self.limit / self.cycles


def measure(out: Path, say: Callable[[str], None], ranks: Sequence[int] = RANKS) -> list[LayerTime]:
    """Run all; a run that is not good ends the benchmark."""
    times = []
    for signalling in SIGNALLING:
        folder = out / f"moe_{signalling}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        program = folder / "layer.py"
        program.write_text(PROGRAM.format(signalling=signalling), encoding="utf-8")
        for count in ranks:
            run = RunConfig(str(program), pes=count, on="rtl", seed=1, post_cycles=POST_CYCLES)
            knobs = {"mem_latency": LATENCY, "link_latency": LATENCY}
            code, summary, reason = sim.simulate(sim.SimConfig(run, knobs), folder / f"r{count}")
            if code:
                raise SystemExit(f"bench: MoE layer, {count} ranks, {signalling}: {reason}")
            figures = summary["figures"]
            times.append(
                LayerTime(
                    count,
                    signalling,
                    figures["cycles_first_doorbell_to_last_flag"],
                    figures["cycles_at_the_limit_of_the_link"],
                    summary["wqes"],
                    figures["bytes_per_cycle_and_NIC"],
                )
            )
            last = times[-1]
            say(f"  R {count}, {signalling}: {last.cycles:,} cycles, {last.of_limit:.3f} of the link's limit")
    return times


def plot(times: Sequence[LayerTime], out: Path) -> None:
    """operators.png and operators.svg: cycles of both variants and the limit over the number of ranks."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for signalling, mark in zip(SIGNALLING, "os", strict=True):
        mine = [t for t in times if t.signalling == signalling]
        label = "ordered flag WRITEs" if signalling == "flags" else "atomic counters"
        axes.plot([t.ranks for t in mine], [t.cycles for t in mine], marker=mark, label=label)
    limits = [t for t in times if t.signalling == SIGNALLING[0]]
    axes.plot([t.ranks for t in limits], [t.limit for t in limits], "k--", label="limit of the link")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({t.ranks for t in times}), [str(r) for r in sorted({t.ranks for t in times})])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ranks")
    axes.set_ylabel("NIC cycles")
    axes.set_title(
        "MoE prefill dispatch and combine over RDMA\n"
        f"16 experts, 32 tokens a rank, top 8, h 7168, int8; latency {LATENCY}; {POST_CYCLES} cycles a post",
        fontsize=10,
    )
    axes.grid(alpha=0.3)
    axes.legend()
    for suffix in ("png", "svg"):
        figure.savefig(out / f"operators.{suffix}", metadata={"Date": None} if suffix == "svg" else None)
    plt.close(figure)
