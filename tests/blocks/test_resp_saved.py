"""Saved results of atomics (rtl/responder/resp_saved.sv) against a list in Python.

Sweep: all QPs or two, 0 to 31 results kept, atomics executed up to 16 late, PSNs of a small set, so that one
comes again as after a round of all PSNs; set and reset at any time.
Stimulus: random; an atomic is accepted, executed and asked for in the same cycles, also those of one QP.
Checks: found, executed and value of every question; the newest of two with the same PSN wins.
Timing: the answer comes in the cycle after the read, the value one cycle later.
Not proved here: the way of the answers (test_rx_duplicates.py).
"""

import random

import cocotb
from cocotb.triggers import FallingEdge, Timer

BENCH = {
    "top": "resp_saved_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/responder/resp_pkg.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/responder/resp_saved.sv",
        "tests/blocks/sv/resp_saved_bench.sv",
    ],
}


@cocotb.test()
@cocotb.parametrize(qps=[1, 2, 64])
async def test_random(dut, qps: int) -> None:
    """Found, executed, value: what a list of all atomics says."""
    for name in ("set_i", "reset_i", "accept_i", "save_i"):
        getattr(dut, name).value = 0
    dut.rst_ni.value = 0
    await FallingEdge(dut.clk_i)
    dut.rst_ni.value = 1
    atomics: dict[int, list[list[int]]] = {q: [] for q in range(qps)}  # PSN and value, oldest first
    done = dict.fromkeys(atomics, 0)
    asked: int | None = None  # QP that was read in the cycle before
    value: int | None = None  # due now
    seen = {"missing": 0, "open": 0, "value": 0, "twice": 0}
    for _ in range(6000):
        # the state before this cycle's edge answers
        if asked is not None:
            mine, depth = atomics[asked], random.choice([0, 1, 2, 7, 16, 16, 31])
            psn = (
                random.choice(mine[-20:])[0] if mine and random.random() < 0.8 else random.randrange(1 << 24)
            )
            left = len(mine) - done[asked]
            dut.ask_qpi_i.value, dut.ask_psn_i.value = asked, psn
            dut.ask_depth_i.value, dut.left_i.value = depth, left
            kept = [n for n in range(len(mine)) if n >= len(mine) - min(depth, 16) and mine[n][0] == psn]
        save_q = random.randrange(qps)
        save = done[save_q] < len(atomics[save_q]) and random.random() < 0.4
        accept_q = random.randrange(qps)
        full = len(atomics[accept_q]) - done[accept_q] >= 16
        # a QP that is asked for has no other packet behind
        accept = not full and accept_q != asked and random.random() < 0.5
        dut.save_i.value, dut.save_qpi_i.value = save, save_q
        dut.save_left_i.value = len(atomics[save_q]) - done[save_q]
        result = random.getrandbits(64)
        dut.save_value_i.value = result
        number = random.choice([random.randrange(1 << 24), 0x800000, 0xFFFFFF])
        dut.accept_i.value, dut.accept_qpi_i.value, dut.accept_psn_i.value = accept, accept_q, number
        again = random.random() < 0.004
        victim = random.randrange(qps)
        again = (
            again
            and victim != asked
            and not (save and save_q == victim)
            and not (accept and accept_q == victim)
        )
        dut.set_i.value, dut.reset_i.value, dut.ctx_qpi_i.value = again, 0, victim
        if again and random.random() < 0.5:
            dut.set_i.value, dut.reset_i.value = 0, 1
        read = random.randrange(qps)
        dut.read_qpi_i.value = read
        await Timer(1, "ps")
        if value is not None:
            assert int(dut.value_o.value) == value, f"{int(dut.value_o.value):#x}, want {value:#x}"
        value = None
        if asked is not None:
            found, executed = bool(kept), bool(kept) and kept[-1] < done[asked]
            got = (int(dut.found_o.value), int(dut.ready_o.value))
            assert got == (found, executed), f"QP {asked} PSN {psn:#x}: {got}, want {(found, executed)}"
            value = mine[kept[-1]][1] if executed else None
            seen["value" if executed else "open" if found else "missing"] += 1
            seen["twice"] += executed and len(kept) > 1
        if save:
            atomics[save_q][done[save_q]][1] = result
            done[save_q] += 1
        if accept:
            atomics[accept_q].append([number, 0])
        if again:
            atomics[victim], done[victim] = [], 0
        changed = (accept and accept_q == read) or (again and victim == read)
        asked = read if not changed and random.random() < 0.7 else None
        await FallingEdge(dut.clk_i)
    assert min(seen.values()) > 60, f"{seen}"
