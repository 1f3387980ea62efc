"""Memory region check (rtl/memory/mr_check.sv) against the rule in unbounded integers (nic.md 2, wire.md 5).

Sweep: regions anywhere in 64 bits, at 0, at the end, of exactly 2^64 bytes, of length 0 and 1, invalidated;
accesses at each border and one byte beyond, such that wrap at 2^64, of zero length and of 2^32 - 1; local and
remote key, wrong tag, index beyond the table; each right with and without it.
Stimulus: one request a cycle, gaps now and then; a region changed in the very cycle of a request to it.
Checks: both verdicts of every request. Timing: exactly two cycles after the request, never without one.
Not proved here: what the users do with a verdict (test_rx.py).
"""

import random
from dataclasses import dataclass

import cocotb
from cocotb.triggers import FallingEdge, Timer

BENCH = {
    "top": "mr_check_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/memory/mr_check.sv",
        "tests/blocks/sv/mr_check_bench.sv",
    ],
}
TOP = 1 << 64
NUM_MR = 256
LOC_WRITE, REM_WRITE, REM_READ, REM_ATOMIC = 1, 2, 4, 8


@dataclass
class Region:
    """One MR context."""

    valid: bool
    base: int
    length: int
    rights: int
    ltag: int
    rtag: int


def random_region() -> Region:
    """A region with base and length where the arithmetic may go wrong."""
    base = random.choice([0, 1, random.getrandbits(64), TOP - 1, TOP - 4096, random.getrandbits(32)])
    longest = TOP - base
    length = random.choice([0, 1, longest, longest - 1, min(longest, 4096), random.randrange(longest + 1)])
    tags = random.sample(range(256), 2)
    return Region(random.random() < 0.9, base, max(0, length), random.getrandbits(4), tags[0], tags[1])


def verdict(
    regions: list[Region], key: int, remote: bool, right: int, va: int, length: int
) -> tuple[bool, bool]:
    """(key holds, everything holds)."""
    if length == 0:
        return True, True
    index, tag = key >> 8, key & 0xFF
    if index >= NUM_MR or not regions[index].valid:
        return False, False
    r = regions[index]
    key_ok = tag == (r.rtag if remote else r.ltag)
    need = {0: 0, 1: LOC_WRITE, 2: REM_WRITE, 3: REM_READ, 4: REM_ATOMIC}.get(right)
    right_ok = need is not None and (r.rights & need) == need
    return key_ok, key_ok and right_ok and r.base <= va and va + length <= r.base + r.length


def random_request(regions: list[Region]) -> tuple[int, bool, int, int, int]:
    """A request near the borders of some region."""
    index = random.randrange(len(regions))
    r = regions[index]
    remote = random.random() < 0.5
    tag = (r.rtag if remote else r.ltag) ^ (random.random() < 0.1)
    high = random.choice([0] * 19 + [1 << 16])  # index beyond the table
    va = random.choice(
        [r.base, r.base + r.length, r.base - 1, r.base + r.length // 2, random.getrandbits(64)]
    )
    va = (va + random.randrange(-2, 3)) % TOP
    room = (r.base + r.length - va) % TOP
    length = random.choice([0, 1, room, room + 1, room - 1, 4096, 0xFFFF_FFFF, 0x8000_0000, TOP - va])
    return (index | high) << 8 | tag, remote, random.randrange(6), va, max(0, length) & 0xFFFF_FFFF


@cocotb.test()
async def test_random(dut) -> None:
    """30000 requests, regions changed under way."""
    regions = [Region(False, 0, 0, 0, 0, 0) for _ in range(NUM_MR)]
    few = 8  # most requests go to few regions, so that changes and requests meet
    dut.rst_ni.value = 0
    dut.set_i.value = 0
    dut.req_valid_i.value = 0
    await Timer(10, "ns")
    dut.rst_ni.value = 1
    await FallingEdge(dut.clk_i)
    for name in ("base", "length", "rights", "ltag", "rtag", "mrn", "valid"):
        getattr(dut, f"set_{name}_i").value = 0
    expected: list[tuple[bool, bool] | None] = [None, None]
    seen = {(False, False): 0, (True, False): 0, (True, True): 0}
    for step in range(30000):
        change = step < NUM_MR or random.random() < 0.1
        request = step > 4 and random.random() < 0.9
        if change:
            mrn = step if step < NUM_MR else random.choice([random.randrange(few), random.randrange(NUM_MR)])
            region = random_region()
            regions[mrn] = region
            dut.set_mrn_i.value = mrn
            dut.set_valid_i.value = region.valid
            dut.set_base_i.value = region.base
            dut.set_length_i.value = region.length
            dut.set_rights_i.value = region.rights
            dut.set_ltag_i.value = region.ltag
            dut.set_rtag_i.value = region.rtag
        dut.set_i.value = change
        dut.req_valid_i.value = request
        if request:
            key, remote, right, va, length = random_request(regions[:few])
            dut.key_i.value = key
            dut.is_remote_i.value = remote
            dut.right_i.value = right
            dut.va_i.value = va
            dut.len_i.value = length
            want = verdict(regions, key, remote, right, va, length)
            seen[want] += 1
            expected.append(want)
        else:
            expected.append(None)
        await FallingEdge(dut.clk_i)
        # two rising edges after a request, its verdict is there
        expected.pop(0)
        want = expected[0]
        assert (dut.rsp_valid_o.value == 1) == (want is not None), f"step {step}: answer at the wrong time"
        if want is not None:
            got = (dut.key_ok_o.value == 1, dut.ok_o.value == 1)
            assert got == want, f"step {step}: verdict {got}, want {want}"
    assert min(seen.values()) > 1000, f"a verdict is rare: {seen}"
