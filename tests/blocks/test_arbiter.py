"""Arbiters of the requester (rtl/fetch/wrr_arb.sv, rtl/requester/rr_pick.sv) alone: who is served, how often.

Sweep: random maps of lanes to service levels, random weights with 0 and 255, all lanes asking and random
asking; 64-way pick with all, few and random requests.
Stimulus: request vectors at the blocks' ports, a grant taken in every cycle or at random.
Checks: only requesters are granted; over whole rounds each level has exactly its weight's share, and the
lanes of a level serve in turn; nobody waits longer than one round; a grant that is not taken stays.
Timing: the grant is combinational; one grant a cycle.
Not proved here: that fetch and transmit scheduler ask for the right lanes.
"""

import random
from collections import Counter

import cocotb
from cocotb.triggers import FallingEdge, Timer

BENCH = {
    "top": "arbiter_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/*.sv",
        "rtl/fetch/wrr_arb.sv",
        "tests/blocks/sv/arbiter_bench.sv",
    ],
}
LANES, LEVELS, QPS = 8, 8, 64


async def start(dut) -> random.Random:
    """Reset with all requests low; the test's random source."""
    for name in ("wrr_req_i", "wrr_sl_i", "wrr_weight_i", "wrr_take_i", "pick_req_i", "pick_take_i"):
        getattr(dut, name).value = 0
    dut.rst_ni.value = 0
    await FallingEdge(dut.clk_i)
    dut.rst_ni.value = 1
    await FallingEdge(dut.clk_i)
    return random.Random(cocotb.RANDOM_SEED)


def configure(dut, levels: list[int], weights: list[int]) -> None:
    """Service level of each lane and weight of each level."""
    dut.wrr_sl_i.value = sum(level << 3 * lane for lane, level in enumerate(levels))
    dut.wrr_weight_i.value = sum(weight << 8 * level for level, weight in enumerate(weights))


async def grant(dut, request: int, take: bool = True) -> int | None:
    """One cycle with these requests of the lanes; the granted lane."""
    dut.wrr_req_i.value = request
    dut.wrr_take_i.value = take
    await Timer(100, "ps")
    lane = int(dut.wrr_idx_o.value) if int(dut.wrr_valid_o.value) else None
    await FallingEdge(dut.clk_i)
    return lane


@cocotb.test()
async def test_weighted_shares(dut):
    """With all lanes asking, a whole round gives each level its weight and each lane its turn (nic.md 4)."""
    rng = await start(dut)
    for case in range(12):
        levels = [rng.randrange(LEVELS) for _ in range(LANES)] if case else list(range(LEVELS))
        weights = [rng.choice((0, 1, 2, 3, 7, 20)) for _ in range(LEVELS)]
        if case == 1:
            weights[levels[0]] = 255
        configure(dut, levels, weights)
        share = {level: max(1, weights[level]) for level in set(levels)}
        round_length = sum(share.values())
        for _ in range(2 * 255 + 1):  # the level that was served before the change may use up its credit
            await grant(dut, 0xFF)
        turns: dict[int, list[int]] = {level: [] for level in share}
        served: Counter[int] = Counter()
        rounds = 8
        for _ in range(rounds * round_length):
            lane = await grant(dut, 0xFF)
            assert lane is not None
            served[levels[lane]] += 1
            turns[levels[lane]].append(lane)
        want = {level: rounds * weight for level, weight in share.items()}
        assert dict(served) == want, f"levels {levels} weights {weights}: served {served}, expected {want}"
        for level, order in turns.items():
            lanes = [lane for lane in range(LANES) if levels[lane] == level]
            first = lanes.index(order[0])
            expected = [lanes[(first + i) % len(lanes)] for i in range(len(order))]
            assert order == expected, f"level {level}, lanes {lanes}: served in the order {order}"


@cocotb.test()
async def test_random_requests(dut):
    """Random asking: only requesters are served, an untaken grant stays, nobody waits longer than a round."""
    rng = await start(dut)
    levels = [rng.randrange(3) for _ in range(LANES)]
    weights = [rng.randrange(5) for _ in range(LEVELS)]
    configure(dut, levels, weights)
    bound = LANES * sum(max(1, weight) for weight in weights)
    waiting = [0] * LANES
    request = 0
    for _ in range(6000):
        request |= rng.getrandbits(8) & rng.getrandbits(8)
        take = rng.random() < 0.7
        lane = await grant(dut, request, take)
        if request == 0:
            assert lane is None
            continue
        assert lane is not None and request >> lane & 1, f"requests {request:#04x}: lane {lane} granted"
        again = await grant(dut, request, False) if not take else lane
        assert again == lane, f"requests {request:#04x}: grant moved from {lane} to {again} without a take"
        if take:
            for other in range(LANES):
                waiting[other] = waiting[other] + 1 if request >> other & 1 and other != lane else 0
            assert max(waiting) <= bound, f"a lane waited for more than {bound} grants: {waiting}"
            if rng.random() < 0.6:
                request &= ~(1 << lane)


@cocotb.test()
async def test_idle_level_saves_nothing(dut):
    """A level that did not ask has no more than its weight when it asks again."""
    await start(dut)
    configure(dut, [0, 1] + [7] * 6, [4, 2] + [1] * 6)
    for _ in range(50):
        assert await grant(dut, 0b01) == 0
    lanes = [await grant(dut, 0b11) for _ in range(24)]
    runs = [len(run) for run in "".join(map(str, lanes)).replace("01", "0 1").replace("10", "1 0").split()]
    assert all(
        run == (4 if lane == 0 else 2) for run, lane in zip(runs[1:-1], lane_runs(lanes)[1:-1], strict=True)
    )
    assert runs[0] <= 4, f"first turn after the pause: {lanes}"


def lane_runs(lanes: list[int | None]) -> list[int | None]:
    """The lanes of the successive runs."""
    return [lane for i, lane in enumerate(lanes) if i == 0 or lanes[i - 1] != lane]


@cocotb.test()
async def test_pick(dut):
    """64-way pick: every requester once a round in index order, whoever asks, and an untaken pick stays."""
    rng = await start(dut)

    async def pick(request: int, take: bool) -> int | None:
        dut.pick_req_i.value = request
        dut.pick_take_i.value = take
        await Timer(100, "ps")
        index = int(dut.pick_idx_o.value) if int(dut.pick_valid_o.value) else None
        await FallingEdge(dut.clk_i)
        return index

    assert await pick(0, True) is None
    last = -1
    for request in [(1 << QPS) - 1, 1 << 63, 1, 1 << 63 | 1] + [rng.getrandbits(QPS) for _ in range(40)]:
        asking = [qp for qp in range(QPS) if request >> qp & 1]
        for _ in range(2 * len(asking) + 3):
            take = rng.random() < 0.8
            got = await pick(request, take)
            want = next((qp for qp in asking if qp > last), asking[0])
            assert got == want, f"requests {request:#x} after {last}: {got}, expected {want}"
            if take:
                last = want
