"""Saturation of the event counters (rtl/csr/counter_bank.sv; nic.md section 7), with counters of 4 bits.

Sweep: every counter, up to and beyond its greatest value.
Stimulus: random event bits in every cycle.
Checks: each counter equals min(events, 15); a read returns the value of the cycle of its request.
Timing: read data one cycle after the request. Not proved here: the width of 32 (a parameter) and the
address map (test_csr.py).
"""

import random

import cocotb
from cocotb.triggers import FallingEdge, Timer

BENCH = {
    "top": "counter_bank",
    "sources": ["rtl/rnic_pkg.sv", "rtl/csr/counter_bank.sv"],
    "params": {"Width": 4},
    "args": ["-Wno-UNUSEDPARAM"],
}


@cocotb.test()
async def test_saturation(dut):
    """No counter wraps."""
    dut.rst_ni.value = 0
    dut.cnt_i.value = 0
    dut.rd_req_i.value = 0
    dut.rd_addr_i.value = 0
    await Timer(10, "ns")
    await FallingEdge(dut.clk_i)
    dut.rst_ni.value = 1
    await FallingEdge(dut.clk_i)
    want = [0] * 64
    saturated = 0
    for cycle in range(400):
        bits = random.getrandbits(64) & (MASKS[cycle // 100])
        number = random.randrange(64)
        dut.cnt_i.value = bits
        dut.rd_req_i.value = 1
        dut.rd_addr_i.value = number
        await FallingEdge(dut.clk_i)
        assert dut.rd_ack_o.value
        assert int(dut.rd_data_o.value) == want[number], number
        saturated += want[number] == 15
        want = [min(15, w + (bits >> i & 1)) for i, w in enumerate(want)]
    assert want == [15] * 64 and saturated > 100
    dut.rd_req_i.value = 0
    await FallingEdge(dut.clk_i)
    assert not dut.rd_ack_o.value


MASKS = (0x0101010101010101, 0x00000000FFFFFFFF, (1 << 64) - 1, (1 << 64) - 1)
