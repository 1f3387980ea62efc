"""Programs that log what each trigger saw. Run by test_triggers.py under our main and under cocotb's own;
not a test file.

Under cocotb's main the clock comes from cocotb's Clock, under ours from C++. The log starts at 4.5 ns, when
both run.
"""

from __future__ import annotations

import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.handle import Immediate
from cocotb.triggers import (
    ClockCycles,
    Combine,
    Event,
    FallingEdge,
    First,
    NextTimeStep,
    ReadOnly,
    ReadWrite,
    RisingEdge,
    Timer,
    ValueChange,
    with_timeout,
)
from cocotb.utils import get_sim_time

SIGNALS = ("clk_i", "rst_ni", "d_i", "q_o", "q2_o", "sum_o", "neg_o", "count_o")


class Log:
    """Event log: simulated time in ps, label, value of every signal of the bench."""

    def __init__(self, dut) -> None:
        self.dut = dut
        self.lines: list[str] = []

    def __call__(self, label: str) -> None:
        values = " ".join(str(int(getattr(self.dut, name).value)) for name in SIGNALS)
        self.lines.append(f"{get_sim_time('ps')} {label} {values}")

    def save(self) -> None:
        with open(os.environ["CAMHIL_EVENT_LOG"], "w") as out:
            out.write("\n".join(self.lines) + "\n")


async def start(dut) -> Log:
    dut.d_i.value = 0
    dut.rst_ni.value = 0
    if os.environ["CAMHIL_CLOCK"] == "python":
        Clock(dut.clk_i, 2, "ns", impl="gpi").start(start_high=False)
    await Timer(4500, "ps")
    dut.rst_ni.value = 1
    return Log(dut)


@cocotb.test()
async def edges(dut) -> None:
    """Rising, falling and any edge of clock, register, wire; each logs, one writes."""
    log = await start(dut)

    async def watch(label: str, make, count: int) -> None:
        for _ in range(count):
            await make()
            log(label)

    async def drive() -> None:
        for i in range(30):
            await RisingEdge(dut.clk_i)
            log("before write")
            dut.d_i.value = (i * 37 + 11) & 0xFF
            log("after write")

    tasks = [
        cocotb.start_soon(watch("rise", lambda: RisingEdge(dut.clk_i), 30)),
        cocotb.start_soon(watch("fall", lambda: FallingEdge(dut.clk_i), 30)),
        cocotb.start_soon(watch("clk", lambda: ValueChange(dut.clk_i), 60)),
        cocotb.start_soon(watch("q", lambda: ValueChange(dut.q_o), 25)),
        cocotb.start_soon(watch("q2", lambda: ValueChange(dut.q2_o), 25)),
        cocotb.start_soon(watch("sum", lambda: ValueChange(dut.sum_o), 50)),
        cocotb.start_soon(watch("neg", lambda: ValueChange(dut.neg_o), 25)),
        cocotb.start_soon(watch("d", lambda: ValueChange(dut.d_i), 25)),
        cocotb.start_soon(drive()),
    ]
    await Combine(*tasks)
    log.save()


@cocotb.test()
async def timers(dut) -> None:
    """Timers between edges, on rising and on falling edges, with writes at each, and many at one time."""
    log = await start(dut)

    async def tick(label: str, ps: int, count: int, write: int | None) -> None:
        for i in range(count):
            await Timer(ps, "ps")
            log(label)
            if write is not None:
                dut.d_i.value = (write + i) & 0xFF

    tasks = [
        cocotb.start_soon(tick("half", 500, 80, None)),  # 5.0, 5.5, ...: rising and falling edges among them
        cocotb.start_soon(tick("one", 1000, 40, 1)),
        cocotb.start_soon(tick("edge", 1500, 26, 100)),
        cocotb.start_soon(tick("odd", 333, 100, None)),
        cocotb.start_soon(tick("step", 1, 50, 50)),
    ]
    await Combine(*tasks)
    log.save()


@cocotb.test()
async def phases(dut) -> None:
    """ReadWrite, ReadOnly and NextTimeStep behind every kind of wake-up, with writes where they are
    allowed.
    """
    log = await start(dut)
    for i in range(40):
        await (RisingEdge(dut.clk_i), FallingEdge(dut.clk_i), Timer(700, "ps"), ValueChange(dut.count_o))[
            i % 4
        ]
        log("woke")
        dut.d_i.value = (3 * i) & 0xFF
        await ReadWrite()
        log("rw")
        dut.d_i.value = (3 * i + 1) & 0xFF
        await ReadWrite()
        log("rw again")
        dut.d_i.value = (3 * i + 2) & 0xFF
        await ReadOnly()
        log("ro")
        await NextTimeStep()
        log("next")
        if i % 3 == 0:
            await NextTimeStep()
            log("next again")
        if i % 5 == 0:
            await ReadOnly()
            log("ro after next")
    log.save()


@cocotb.test()
async def immediate(dut) -> None:
    """Immediate writes beside edges: the design sees them before an edge of the same step."""
    log = await start(dut)
    for i in range(20):
        await RisingEdge(dut.clk_i)
        dut.d_i.value = Immediate(2 * i)
        log("immediate at rise")
        await ReadOnly()
        log("ro")
        await FallingEdge(dut.clk_i)
        dut.d_i.value = Immediate(2 * i + 1)
        dut.d_i.value = (2 * i + 100) & 0xFF
        log("both at fall")
        await Timer(300, "ps")
        dut.d_i.value = Immediate(77)
        log("immediate between")
        await ReadWrite()
        log("rw")
    log.save()


@cocotb.test()
async def composed(dut) -> None:
    """First, Combine, ClockCycles, with_timeout, Event, kill and reset in mid-cycle."""
    log = await start(dut)
    event = Event()

    async def setter() -> None:
        for _ in range(6):
            await ClockCycles(dut.clk_i, 3)
            log("set")
            event.set()
            event.clear()

    async def waiter() -> None:
        for _ in range(6):
            await event.wait()
            log("event")

    tasks = [cocotb.start_soon(setter()), cocotb.start_soon(waiter())]
    for i in range(12):
        await First(RisingEdge(dut.clk_i), Timer(900, "ps"))
        log("first")
        dut.d_i.value = i
        await Combine(cocotb.start_soon(_two(dut, log)), FallingEdge(dut.clk_i))
        log("combine")
    try:
        await with_timeout(ValueChange(dut.rst_ni), 5, "ns")
    except Exception as err:
        log(type(err).__name__)
    killed = cocotb.start_soon(_two(dut, log))
    await Timer(100, "ps")
    killed.cancel()
    await Timer(350, "ps")
    dut.rst_ni.value = 0
    await ReadOnly()
    log("reset")
    await Timer(3, "ns")
    dut.rst_ni.value = 1
    await ClockCycles(dut.clk_i, 2)
    log("end")
    await Combine(*tasks)
    log.save()


async def _two(dut, log: Log) -> None:
    await RisingEdge(dut.clk_i)
    log("two")
    await ReadWrite()
    log("two rw")


@cocotb.test()
async def random_programs(dut) -> None:
    """Twelve tasks of random triggers and writes from the test's seed."""
    log = await start(dut)
    seed = cocotb.RANDOM_SEED

    async def program(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        writable = True
        for _ in range(60):
            choice = rng.randrange(9)
            if choice == 0:
                await RisingEdge(dut.clk_i)
            elif choice == 1:
                await FallingEdge(dut.clk_i)
            elif choice == 2:
                await Timer(rng.choice((1, 250, 500, 1000, 1500, 2000, 3000)), "ps")
            elif choice == 3:
                # a value may never change again once the other programs have ended
                await First(
                    ValueChange(getattr(dut, rng.choice(SIGNALS))), Timer(rng.choice((900, 4000)), "ps")
                )
            elif choice == 4:
                await NextTimeStep()
            elif choice == 5 and writable:
                await ReadWrite()
            elif choice == 6 and writable:
                await ReadOnly()
                log(f"{number} ro")
                writable = False
                continue
            elif choice == 7:
                await First(RisingEdge(dut.clk_i), Timer(rng.choice((1, 500, 1000)), "ps"))
            else:
                if not writable:
                    continue
                value = rng.randrange(256)
                dut.d_i.value = Immediate(value) if rng.random() < 0.3 else value
                log(f"{number} wrote")
                continue
            writable = True
            log(f"{number} {choice}")

    await Combine(*(cocotb.start_soon(program(n)) for n in range(12)))
    log.save()
