"""Legal and illegal traffic for the protocol checkers, which stand here as tops. Run by test_protocol.py;
not a test file.
"""

from __future__ import annotations

import os

import cocotb
from cocotb.triggers import FallingEdge

ALL = (1 << 64) - 1

#: per checker: cycles of input values; what is not named keeps its value
AXIS = {
    "legal": [
        {"tvalid": 1, "tkeep": ALL, "tdata": 5, "tready": 0},
        {"tready": 1},
        {"tlast": 1, "tkeep": 1, "tdata": 6},
        {"tvalid": 0, "tkeep": 0, "tdata": 7},
    ],
    "valid fell": [{"tvalid": 1, "tkeep": ALL, "tlast": 1}, {"tvalid": 0}],
    "payload changed": [{"tvalid": 1, "tkeep": ALL, "tlast": 1, "tdata": 1}, {"tdata": 1 << 511}],
    "not contiguous": [{"tvalid": 1, "tkeep": 0b1011, "tlast": 1, "tready": 1}],
    "not contiguous from lane 0": [{"tvalid": 1, "tkeep": 0, "tlast": 1, "tready": 1}],
    "not full before tlast": [{"tvalid": 1, "tkeep": 0xFF, "tlast": 0, "tready": 1}],
}
AXIL = {
    "legal": [
        {"awvalid": 1, "awready": 1, "wvalid": 1, "wready": 0, "arvalid": 1, "arready": 1},
        {"awvalid": 0, "wready": 1, "arvalid": 0, "rvalid": 1, "rready": 1},
        {"wvalid": 0, "bvalid": 1, "bready": 1, "rvalid": 0},
        {"bvalid": 0},
    ],
    "AXI-Lite AW: payload changed": [{"awvalid": 1, "awaddr": 8}, {"awaddr": 16}],
    "AXI-Lite W: payload changed": [{"wvalid": 1, "wstrb": 1}, {"wstrb": 2}],
    "AXI-Lite AR: valid fell": [{"arvalid": 1}, {"arvalid": 0}],
    "AXI-Lite R: payload changed": [
        {"arvalid": 1, "arready": 1},
        {"arvalid": 0, "rvalid": 1, "rdata": 1},
        {"rdata": 3},
    ],
    "write response before": [{"awvalid": 1, "awready": 1}, {"awvalid": 0, "bvalid": 1, "bready": 1}],
    "read data before": [{"rvalid": 1, "rready": 1}],
}
_AW = {"awvalid": 1, "awready": 1, "awburst": 1, "awsize": 6, "awid": 3, "awaddr": 0x1000}
_AR = {"arvalid": 1, "arready": 1, "arburst": 1, "arsize": 6, "arid": 1, "araddr": 0x1000}
_W = {"awvalid": 0, "wvalid": 1, "wready": 1, "wstrb": ALL}
AXI4 = {
    "legal": [
        {**_AW, **_AR, "awaddr": 0x1FC0, "araddr": 0x1F80, "arlen": 1},
        {**_W, "wlast": 1, "arvalid": 0, "rvalid": 1, "rready": 1, "rid": 1},
        {"wvalid": 0, "bvalid": 1, "bready": 1, "bid": 3, "rlast": 1},
        {"bvalid": 0, "rvalid": 0},
        {**_AR, "arid": 2, "arsize": 2, "araddr": 0x1004, "arlen": 0},
        {**_AW, "awid": 2, "awsize": 3, "awaddr": 0x1008, "arvalid": 0},
        {**_W, "wlast": 1, "wstrb": 0xFF00},
        {**_AW, "awid": 2, "awsize": 2, "awaddr": 0x103C, "wvalid": 0},
        {**_W, "wlast": 1, "wstrb": 0xF << 60},
        {**_AR, "arid": 2, "arsize": 3, "araddr": 0x1038, "arlen": 0, "wvalid": 0},
        {**_AW, "arvalid": 0},
        {**_W, "wlast": 1, "wstrb": 1},
    ],
    "AW burst type 0": [{**_AW, "awburst": 0}],
    "AR burst type 2": [{**_AR, "arburst": 2}],
    "size 7": [{**_AW, "awsize": 7}],
    "write burst at 0000000000001fc0, 2 beats crosses": [{**_AW, "awaddr": 0x1FC0, "awlen": 1}],
    "read burst at 0000000000001000, 65 beats crosses": [{**_AR, "arlen": 64}],
    "write with ID 1": [{**_AW, "awid": 1}],
    "write with ID 6": [{**_AW, "awid": 6}],
    "read with ID 3": [{**_AR, "arid": 3}],
    "read at 0000000000001008, size 6 is not of whole aligned beats": [{**_AR, "araddr": 0x1008}],
    "read at 0000000000001000, size 3 is not of whole aligned beats": [{**_AR, "arsize": 3}],
    "write at 0000000000001008, size 6, ID 3 is not of whole": [{**_AW, "awaddr": 0x1008}],
    "write at 0000000000001000, size 3, ID 4 is not of whole": [{**_AW, "awid": 4, "awsize": 3}],
    "write at 0000000000001000, size 2, ID 5 is not of whole": [{**_AW, "awid": 5, "awsize": 2}],
    "atomic read at 0000000000001004, size 3": [{**_AR, "arid": 2, "arsize": 3, "araddr": 0x1004}],
    "atomic read at 0000000000001000, size 6": [{**_AR, "arid": 2}],
    "atomic read at 0000000000001000, size 3": [{**_AR, "arid": 2, "arsize": 3, "arlen": 1}],
    "atomic read at 0000000000001000, size 1": [{**_AR, "arid": 2, "arsize": 1}],
    "atomic write at 0000000000001002, size 2": [{**_AW, "awid": 2, "awsize": 2, "awaddr": 0x1002}],
    "atomic write at 0000000000001000, size 6": [{**_AW, "awid": 2}],
    "atomic write at 0000000000001000, size 2": [{**_AW, "awid": 2, "awsize": 2, "awlen": 1}],
    "not all bytes of its word": [
        {**_AW, "awid": 2, "awsize": 3, "awaddr": 0x1008},
        {**_W, "wlast": 1, "wstrb": 0x7F00},
    ],
    "AXI AW: payload changed": [{**_AW, "awready": 0}, {"awlen": 1}],
    "AXI AR: valid fell": [{**_AR, "arready": 0}, {"arvalid": 0}],
    "AXI W: payload changed": [_AW, {**_W, "wready": 0, "wdata": 1}, {"wdata": 2}],
    "AXI R: payload changed": [_AR, {"arvalid": 0, "rvalid": 1, "rid": 1, "rlast": 1}, {"rdata": 9}],
    "AXI B: payload changed": [_AW, {**_W, "wlast": 1}, {"wvalid": 0, "bvalid": 1, "bid": 3}, {"bresp": 2}],
    "write data without an address": [{**_W, "wlast": 1}],
    "WLAST 1 at beat 0 of 2": [{**_AW, "awlen": 1}, {**_W, "wlast": 1}],
    "WLAST 0 at beat 0 of 1": [_AW, {**_W, "wlast": 0}],
    "outside the lanes of beat 0": [
        {**_AW, "awid": 2, "awsize": 2, "awaddr": 0x1004},
        {**_W, "wlast": 1, "wstrb": 0x0F},
    ],
    "outside the lanes of beat 1": [
        {**_AW, "awsize": 3, "awaddr": 0x1004, "awlen": 1},
        {**_W, "wstrb": 0xF0},
        {"wstrb": 0x1FF00, "wlast": 1},
    ],
    "write response for ID 3": [_AW, {"awvalid": 0, "bvalid": 1, "bid": 3}],
    "write response for ID 4": [_AW, {**_W, "wlast": 1}, {"wvalid": 0, "bvalid": 1, "bid": 4}],
    "read data for ID 0": [_AR, {"arvalid": 0, "rvalid": 1, "rready": 1, "rid": 0, "rlast": 1}],
    "RLAST 1 at beat 0": [
        {**_AR, "arlen": 1},
        {"arvalid": 0, "rvalid": 1, "rready": 1, "rid": 1, "rlast": 1},
    ],
    "RLAST 0 at beat 0": [_AR, {"arvalid": 0, "rvalid": 1, "rready": 1, "rid": 1, "rlast": 0}],
}
#: rules that only a manager without the NIC's own rules can break
GENERAL = {"outside the lanes of beat 1"}
SCENARIOS = {"axis_checker": AXIS, "axil_checker": AXIL, "axi4_checker": AXI4}
RESET = "valid is high in reset"


@cocotb.test()
async def traffic(dut) -> None:
    """Plays one scenario; the assertions of the checker end the run or do not."""
    name = os.environ["CAMHIL_SCENARIO"]
    inputs = [n for n in dir(dut) if n.endswith("_i") and n != "clk_i"]
    for signal in inputs:
        getattr(dut, signal).value = 0
    dut.rst_ni.value = 0
    await FallingEdge(dut.clk_i)
    if name == RESET:
        signal = "tvalid_i" if hasattr(dut, "tvalid_i") else "arvalid_i"
        getattr(dut, signal).value = 1
    for _ in range(3):
        await FallingEdge(dut.clk_i)
    dut.rst_ni.value = 1
    for cycle in SCENARIOS[dut._name].get(name, []):
        for signal, value in cycle.items():
            getattr(dut, f"{signal}_i").value = value
        await FallingEdge(dut.clk_i)
    for signal in inputs:
        if signal.endswith("valid_i"):
            getattr(dut, signal).value = 0
        if signal.endswith("ready_i"):
            getattr(dut, signal).value = 1
    for _ in range(2):
        await FallingEdge(dut.clk_i)
