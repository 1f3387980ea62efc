"""Goodput of WRITEs over a link that loses packets, against the closed form of go-back-N, with a plot.

Used by bench.py. One QP, MTU 4096, messages of 4 KiB and of 64 KiB, latency of link and memory 200 cycles,
transport timer 2^7 units; 0 to 5 % of all packets, both ways, are dropped. Every run is judged.

The closed form, nothing of it fitted. A packet takes F cycles of the link. A loss, of probability p, is
noticed by the next packet behind it: the NAK is back after T = 2 x latency + F (a packet is stored before
it is judged). Eight packets that are gathered by then go out all the same, while the NIC reads WQE and
payload again. There is one NAK for each gap (wire page 5), so where it is lost, or the packet that closes
the gap is lost again, the timer's 2^7 x 64 cycles come on top: q = 1 - (1 - p)^2 of the times. With

    N = (T + 8 F + q x 8192) / F          goodput / goodput without losses = (1 - p) / (1 - p + p N)

and 1 + (T + q x 8192) / F + 8 packets, but no more than the 16 in flight of single-packet messages, are
sent again for each that is lost in a stream. Lost ACKs cost nothing but at the end. What it leaves out:
further losses in the packets that close a gap, which grow with p squared.
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

LOSSES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
SIZES = (4 << 10, 64 << 10)
LATENCY, TIMER, MTU = 200, 7, 4096
#: payload of a run
TOTAL = 8 << 20
#: beats of a frame with 4096 bytes of payload: 58 bytes of headers and ICRC, and 16 of RETH in the first
FRAME = 65
#: packets of a whole MTU in the buffer of gathered payload, and WQEs in flight
GATHERED, IN_FLIGHT = 8, 16
PROGRAM = '''"""The transfer that the benchmark times."""

from pymodel.host.table import FabricConfig
from pymodel.platform import now

SIZE, TOTAL = {size}, {total}


def fabric(n_pes, seed):
    ends = {{(0, 1, 0): {{"timer": {timer}}}, (1, 0, 0): {{"timer": {timer}}}}}
    return FabricConfig(n_pes, seed=seed, mtus=({mtu},), heap_bytes=16 << 20, overrides=ends)


async def main(pe):
    data = pe.alloc(TOTAL)
    await pe.barrier_all()
    if pe.rank == 0:
        start = await now()
        for at in range(0, TOTAL, SIZE):
            await pe.put_nbi(data + at, data + at, SIZE, 1)
        await pe.quiet(1)
        pe.count("transfer_cycles", await now() - start)
'''


@dataclass(frozen=True)
class LossPoint:
    """One run: bytes a message, share of packets lost, cycles, packets lost, requests sent and needed."""

    size: int
    loss: float
    cycles: int
    lost: int
    sent: int
    needed: int

    @property
    def again(self) -> float:
        """Packets sent again for each that was needed."""
        return (self.sent - self.needed) / self.needed


def closed_form(loss: float) -> float:
    """Goodput relative to that without losses."""
    twice = 1 - (1 - loss) ** 2
    gap = 2 * LATENCY + FRAME + GATHERED * FRAME + twice * (64 << TIMER)
    return (1 - loss) / (1 - loss + loss * gap / FRAME)


def again_closed_form(loss: float, size: int) -> float:
    """Packets sent again for each that is needed."""
    twice = 1 - (1 - loss) ** 2
    behind = 1 + (2 * LATENCY + FRAME + twice * (64 << TIMER)) / FRAME + GATHERED
    return loss / (1 - loss) * (min(behind, IN_FLIGHT) if size == MTU else behind)


def measure(out: Path, say: Callable[[str], None]) -> list[LossPoint]:
    """Run all; a run that is not good ends the benchmark."""
    points: list[LossPoint] = []
    for size in SIZES:
        for loss in LOSSES:
            folder = out / f"loss_{size}_{loss:g}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            program = folder / "transfer.py"
            text = PROGRAM.format(size=size, total=TOTAL, timer=TIMER, mtu=MTU)
            program.write_text(text, encoding="utf-8")
            # a rule that never acts where nothing is lost, so that all runs are judged alike
            rule = f"every {round(loss * 1000)}/1000: drop" if loss else "size 1: drop"
            run = RunConfig(str(program), pes=2, on="rtl", seed=1, faults=(("loss", rule),))
            knobs = {"mem_latency": LATENCY, "link_latency": LATENCY}
            code, summary, reason = sim.simulate(sim.SimConfig(run, knobs), folder / "run")
            if code:
                raise SystemExit(f"bench: {size} bytes, {loss:.1%} lost: {reason}")
            figures = summary["figures"]
            lost = figures.get("faults_drop", 0)
            points.append(
                LossPoint(
                    size, loss, figures["transfer_cycles"], lost, figures["requests_sent"], TOTAL // MTU
                )
            )
            share = goodput(points, points[-1])
            say(f"  {size >> 10} KiB, {loss:.1%} lost: {share:.3f}, closed form {closed_form(loss):.3f}")
    return points


def goodput(points: Sequence[LossPoint], point: LossPoint) -> float:
    """Goodput relative to the same messages without losses."""
    return next(p.cycles for p in points if p.size == point.size and not p.loss) / point.cycles


def plot(points: Sequence[LossPoint], out: Path) -> None:
    """loss.png and loss.svg: goodput, and packets sent again, over the share that is lost."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    percent = [100 * loss for loss in LOSSES]
    for size, mark in zip(SIZES, "os", strict=True):
        mine = [p for p in points if p.size == size]
        label = f"messages of {size >> 10} KiB"
        left.plot(percent, [goodput(points, p) for p in mine], marker=mark, label=label)
        form = [again_closed_form(loss, size) for loss in LOSSES]
        (line,) = right.plot(percent, [p.again for p in mine], marker=mark, label=label)
        right.plot(percent, form, "--", color=line.get_color(), label="closed form")
    left.plot(percent, [closed_form(loss) for loss in LOSSES], "k--", label="closed form")
    left.set_title("goodput, relative", fontsize=10)
    right.set_title("packets sent again for each that is needed", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("packets lost, %")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    for suffix in ("png", "svg"):
        figure.savefig(out / f"loss.{suffix}", metadata={"Date": None} if suffix == "svg" else None)
    plt.close(figure)
