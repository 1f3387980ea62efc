"""ICRC stage of the framer (rtl/wire/tx_icrc.sv, icrc_pkg.sv) against the library's CRC-32.

Sweep: every packet length from headers alone (40 bytes) to the longest (4160), in steps of 4; random bytes;
with and without stalls at the output.
Stimulus: beats that start with the IP header; lanes behind the last byte are zero, as the stage before leaves
them.
Checks: the packet comes out unchanged and zlib's CRC over the bytes that wire.md 4 names follows it, little-
endian; beat borders, first and last.
Timing: one beat a cycle, and one more where the ICRC needs a beat of its own.
Not proved here: the receive side's use of the same function (test_rx.py), that the framer leaves those lanes
zero.
"""

import random
import zlib

import cocotb
from cocotb.triggers import FallingEdge, Timer

BENCH = {
    "top": "icrc_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/dp_pkg.sv",
        "rtl/wire/icrc_pkg.sv",
        "rtl/wire/tx_icrc.sv",
        "tests/blocks/sv/icrc_bench.sv",
    ],
}
#: bytes that count as ones (wire.md 4): TOS, TTL, IP checksum, UDP checksum, fifth byte of the BTH
VARIANT = (1, 8, 10, 11, 26, 27, 32)


def icrc(packet: bytes) -> bytes:
    """The four ICRC bytes behind `packet`, which starts with the IP header."""
    masked = bytearray(packet)
    for at in VARIANT:
        masked[at] = 0xFF
    return zlib.crc32(b"\xff" * 8 + masked).to_bytes(4, "little")


async def run(dut, lengths: list[int], stall: float) -> int:
    """Sends one random packet of each length and compares; returns the cycles it took."""
    packets = [random.randbytes(n) for n in lengths]
    beats = [(i == 0, i + 64 >= len(p), p[i : i + 64]) for p in packets for i in range(0, len(p), 64)]
    dut.rst_ni.value = 0
    dut.in_valid_i.value = 0
    dut.out_ready_i.value = 0
    await Timer(10, "ns")
    dut.rst_ni.value = 1
    await FallingEdge(dut.clk_i)
    sent, got, cycles, done = 0, bytearray(), 0, 0
    while done < len(packets):
        if sent < len(beats):
            first, last, data = beats[sent]
            dut.in_valid_i.value = 1
            dut.in_first_i.value = first
            dut.in_last_i.value = last
            dut.in_bytes_i.value = len(data)
            dut.in_data_i.value = int.from_bytes(data, "little")
        else:
            dut.in_valid_i.value = 0
        ready = random.random() >= stall
        dut.out_ready_i.value = ready
        await Timer(1, "ps")  # the ready of the first stage follows ours
        taken = sent < len(beats) and dut.in_ready_o.value == 1
        if ready and dut.out_valid_o.value == 1:
            n = int(dut.out_bytes_o.value)
            assert bool(dut.out_first_o.value) == (not got), f"packet {done}: first in the wrong place"
            beat = int(dut.out_data_o.value).to_bytes(64, "little")
            assert not any(beat[n:]), f"packet {done}: bytes behind its end"
            got += beat[:n]
            if dut.out_last_o.value == 1:
                want = packets[done] + icrc(packets[done])
                assert bytes(got) == want, (
                    f"length {len(packets[done])}: ICRC {got[-4:].hex()}, want {want[-4:].hex()}"
                )
                got.clear()
                done += 1
            else:
                assert n == 64, f"packet {done}: short beat before its end"
        await FallingEdge(dut.clk_i)
        sent += taken
        cycles += 1
        assert cycles < 10 * len(beats) + 100, "no progress"
    return cycles


@cocotb.test()
async def test_every_length(dut) -> None:
    """All lengths without stalls, at full rate."""
    lengths = list(range(40, 4164, 4))
    cycles = await run(dut, lengths, 0.0)
    expected = sum((n + 4 + 63) // 64 for n in lengths)
    assert cycles <= expected + 2, f"{cycles} cycles for {expected} beats"


@cocotb.test()
async def test_stalls(dut) -> None:
    """Lengths around the beat borders with an output that stalls half of the time."""
    await run(
        dut, [random.choice([40, 56, 60, 64, 68, 120, 124, 128, 132, 4152, 4160]) for _ in range(300)], 0.5
    )
