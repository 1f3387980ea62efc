"""Context commands through the command window (rtl/context; nic.md sections 2 and 6).

Sweep: every operation on every object; every refusal code; random contexts near every limit; reset with
work left.
Stimulus: AXI4-Lite writes of staging words and CMD; drain answers and errors of the other blocks at their
ports.
Checks: code, broadcast field by field, query, state vectors; a refused command broadcasts nothing and
changes no query.
The random part is compared with pymodel's ContextStore, the tables are written from the spec.
Timing: a reset ends 8 quiet cycles after the last answer; a read of staging words right after a query sees
its result.
Not proved here: what the other blocks do with a context.
"""

import random

import cocotb
from cocotb.triggers import FallingEdge

from pymodel.nic.context import CmdObj, ContextStore
from tests.blocks.csr_driver import (
    CMD,
    CQ,
    MODIFY,
    MR,
    QP,
    QUERY,
    RESET,
    SET,
    STAGE,
    STATUS,
    Host,
    cq_words,
    cycles,
    doorbell_page,
    mr_words,
    qp_words,
)
from tests.blocks.test_csr import (
    BENCH,  # noqa: F401  (the same bench)
    ERR,
    RTS,
)

TOP = 1 << 64


class Broadcast:
    """Watches ctx_o: pulses by kind, with the fields that were on it."""

    def __init__(self, dut) -> None:
        self.dut = dut
        self.seen: list[tuple[str, int, dict[str, int]]] = []
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        dut = self.dut
        names = [n for n in dir(dut) if n.startswith("ctx_") and n.endswith("_o")]
        kinds = {
            "qp_set": ("qp", "qpi"),
            "qp_modify": ("qp", "qpi"),
            "qp_reset": ("qp", "qpi"),
            "cq_set": ("cq", "cqn"),
            "mr_set": ("mr", "mrn"),
        }
        pulses = [f"ctx_{kind}_o" for kind in kinds]
        while True:
            await FallingEdge(dut.clk_i)
            for pulse, (kind, (obj, number)) in zip(pulses, kinds.items(), strict=True):
                if getattr(dut, pulse).value:
                    fields = {
                        n[7:-2]: int(getattr(dut, n).value)
                        for n in names
                        if n.startswith(f"ctx_{obj}_") and n not in pulses
                    }
                    self.seen.append((kind, int(getattr(dut, f"ctx_{number}_o").value), fields))

    def take(self) -> tuple[str, int, dict[str, int]]:
        """The one broadcast since the last call."""
        assert len(self.seen) == 1, self.seen
        return self.seen.pop()


async def bench(dut) -> tuple[Host, Broadcast]:
    """Out of reset, with a driver and a watch of the broadcast."""
    host = Host(dut)
    await host.start()
    return host, Broadcast(dut)


@cocotb.test()
async def test_set_qp(dut):
    """Every field of a QP arrives decoded, V1 and V2; query returns the words; the state is RTS."""
    host, seen = await bench(dut)
    assert await host.command(SET, CQ, 5, cq_words(depth=1 << 20)) == 0
    assert await host.command(SET, CQ, 62, cq_words(depth=2)) == 0
    seen.seen.clear()
    for qpn, version in ((2, 1), (65, 2), (33, 1), (34, 2)):
        f = {
            name: random.getrandbits(bits)
            for name, bits in (
                ("sl", 3),
                ("rem_write", 1),
                ("rem_read", 1),
                ("rem_atomic", 1),
                ("tc", 8),
                ("ttl", 8),
                ("udp_sport", 16),
                ("retry_cnt", 3),
                ("rnr_retry", 3),
                ("timer", 5),
                ("peer_qpn", 24),
                ("peer_ip", 32),
                ("peer_mac", 48),
                ("sq_psn", 24),
                ("rq_psn", 24),
            )
        }
        if qpn == 33:
            f["udp_sport"] = 0
        sq_log, rq_log = (
            random.randint(1, 13 if version == 1 else 17),
            random.randint(1, 13 if version == 1 else 16),
        )
        sq_base, rq_base = random.getrandbits(57) << 7, random.getrandbits(60) << 4
        sq_start, rq_start = random.getrandbits(32) | 1 << 17 | 1 << 14, random.getrandbits(32) | 1 << 16
        mtu, rd, dest = random.randint(1, 5), random.randint(0, 16), 16
        words = [
            (version == 2)
            | mtu << 1
            | f["sl"] << 4
            | f["rem_write"] << 7
            | f["rem_read"] << 8
            | f["rem_atomic"] << 9
            | f["tc"] << 16
            | f["ttl"] << 24
            | f["udp_sport"] << 32
            | f["retry_cnt"] << 48
            | f["rnr_retry"] << 51
            | f["timer"] << 54,
            f["peer_qpn"] | f["peer_ip"] << 32,
            f["peer_mac"],
            f["sq_psn"] | f["rq_psn"] << 32,
            sq_base,
            rq_base,
            sq_start | rq_start << 32,
            5 | 62 << 16 | rd << 32 | dest << 40,
            random.getrandbits(64),
            1 << sq_log | 1 << rq_log + 32,
        ]
        assert await host.command(SET, QP, qpn, words) == 0
        kind, qpi, got = seen.take()
        width = 14 if version == 1 else 18
        want = f | {
            "version2": version - 1,
            "mtu": mtu,
            "sq_log": sq_log,
            "rq_log": rq_log,
            "sq_base": sq_base,
            "rq_base": rq_base,
            "sq_start": sq_start % (1 << width),
            "rq_start": rq_start % (1 << 17),
            "send_cq": 5,
            "recv_cq": 62,
            "max_rd": rd,
            "max_dest_rd": dest,
            "udp_sport": f["udp_sport"] or 0xC000 | qpn,
        }
        assert (kind, qpi) == ("qp_set", qpn - 2) and got == want, {
            k: (got[k], want[k]) for k in want if got[k] != want[k]
        }
        assert await host.read(RTS) >> (qpn - 2) & 1
        assert await host.command(QUERY, QP, qpn) == 0
        start = sq_start % (1 << width)
        assert await host.staged() == [*words[:8], 1, words[9], start << 32 | start, 0, 0, 0, 0, 0]
        assert not seen.seen


@cocotb.test()
async def test_set_cq_and_mr(dut):
    """Every field of CQ and MR arrives decoded; query returns the words, zeros before."""
    host, seen = await bench(dut)
    for cqn, log, stride, ignore in ((0, 1, 64, 0), (63, 22, 32, 1), (17, 9, 32, 0)):
        assert await host.command(QUERY, CQ, cqn) == 0
        assert await host.staged() == [0] * 16
        base, start = random.getrandbits(58) * stride % TOP, random.getrandbits(32)
        words = cq_words(base, 1 << log, stride, ignore, start)
        assert await host.command(SET, CQ, cqn, words) == 0
        want = {"base": base, "log": log, "stride32": stride == 32, "ignore_overrun": ignore, "start": start}
        assert seen.take() == ("cq_set", cqn, want)
        assert await host.command(QUERY, CQ, cqn) == 0
        assert await host.staged() == words + [0] * 13
    for mrn, base, length in (
        (0, 0, TOP),
        (255, TOP - 1, 1),
        (128, random.getrandbits(63), 12345),
        (7, 5, TOP - 5),
        (8, 9, 0),
    ):
        assert await host.command(QUERY, MR, mrn) == 0
        assert await host.staged() == [0] * 16
        rights, ltag, rtag = (
            random.choice((0, 1, 3, 5, 4, 9, 15)),
            random.getrandbits(8),
            random.getrandbits(8),
        )
        words = mr_words(base, length, rights, ltag, rtag)
        assert await host.command(SET, MR, mrn, words) == 0
        want = {
            "valid": 1,
            "base": base,
            "length": length,
            "loc_write": rights & 1,
            "rem_write": rights >> 1 & 1,
            "rem_read": rights >> 2 & 1,
            "rem_atomic": rights >> 3,
            "ltag": ltag,
            "rtag": rtag,
        }
        assert seen.take() == ("mr_set", mrn, want)
        assert await host.command(QUERY, MR, mrn) == 0
        assert await host.staged() == words + [0] * 13
        assert await host.command(SET, MR, mrn, mr_words(0, 0, 0, 0, 0, valid=0)) == 0
        kind, number, got = seen.take()
        assert (kind, number, got["valid"]) == ("mr_set", mrn, 0)
        assert await host.command(QUERY, MR, mrn) == 0
        assert await host.staged() == [0] * 16


# operation, object, number, words, code
# CQ 0: depth 16, CQ 1: not programmed, CQ 2: ignore_overrun with QP 9 on it
REFUSALS = [
    (0, QP, 10, None, 1),
    (5, QP, 10, None, 1),
    (15, CQ, 0, None, 1),
    (SET, 0, 10, None, 2),
    (SET, 4, 10, None, 2),
    (MODIFY, CQ, 0, None, 2),
    (RESET, MR, 0, None, 2),
    (RESET, CQ, 0, None, 2),
    (SET, QP, 0, qp_words(), 3),
    (SET, QP, 1, qp_words(), 3),
    (SET, QP, 66, qp_words(), 3),
    (RESET, QP, 1, None, 3),
    (SET, QP, 2 + (1 << 8), qp_words(), 3),
    (SET, QP, (1 << 24) - 1, qp_words(), 3),
    (QUERY, QP, 66, None, 3),
    (SET, CQ, 64, cq_words(), 3),
    (SET, MR, 256, mr_words(0, 1), 3),
    (QUERY, MR, 1 << 23, None, 3),
    (SET, QP, 8, qp_words(), 4),
    (MODIFY, QP, 10, [0] * 8 + [1], 4),
    (MODIFY, QP, 10, [0] * 8 + [2], 4),
    (MODIFY, QP, 8, [0] * 8 + [0], 4),
    (MODIFY, QP, 8, [0] * 8 + [3], 4),
    (SET, QP, 10, qp_words(depth=0), 5),
    (SET, QP, 10, qp_words(depth=1), 5),
    (SET, QP, 10, qp_words(depth=3), 5),
    (SET, QP, 10, qp_words(depth=12), 5),
    (SET, QP, 10, qp_words(version=1, depth=16384), 5),
    (SET, QP, 10, qp_words(depth=1 << 18), 5),
    (SET, QP, 10, qp_words(rq_depth=1), 5),
    (SET, QP, 10, qp_words(rq_depth=6), 5),
    (SET, QP, 10, qp_words(rq_depth=1 << 17), 5),
    (SET, QP, 10, qp_words(version=1, rq_depth=1 << 14), 5),
    (SET, CQ, 1, cq_words(depth=1), 5),
    (SET, CQ, 1, cq_words(depth=1 << 23), 5),
    (SET, CQ, 1, cq_words(depth=48), 5),
    (SET, CQ, 1, cq_words(depth=0), 5),
    (SET, QP, 10, qp_words(sq_base=64), 6),
    (SET, QP, 10, qp_words(rq_base=8, rq_depth=2), 6),
    (SET, CQ, 1, cq_words(base=32), 6),
    (SET, CQ, 1, cq_words(base=16, stride=32), 6),
    (SET, CQ, 1, cq_words(base=1), 6),
    (SET, QP, 10, qp_words(mtu=0), 7),
    (SET, QP, 10, qp_words(mtu=6), 7),
    (SET, QP, 10, qp_words(mtu=7), 7),
    (SET, QP, 10, qp_words(cqs=(1, 0)), 8),
    (SET, QP, 10, qp_words(cqs=(0, 1)), 8),
    (SET, QP, 10, qp_words(cqs=(64, 0)), 8),
    (SET, QP, 10, qp_words(cqs=(0, 256)), 8),
    (SET, QP, 10, qp_words(depth=32), 9),
    (SET, QP, 10, qp_words(depth=1 << 17), 9),
    (SET, CQ, 1, cq_words(stride=0), 10),
    (SET, CQ, 1, cq_words(stride=128), 10),
    (SET, CQ, 1, cq_words(stride=96), 10),
    (SET, MR, 3, mr_words(1, TOP), 11),
    (SET, MR, 3, mr_words(TOP - 1, 2), 11),
    (SET, MR, 3, mr_words(TOP - 1, TOP - 1), 11),
    (SET, MR, 3, mr_words(0, TOP + 1), 11),
    (SET, MR, 3, mr_words(TOP - 1, 2 * TOP - 1), 11),
    (SET, MR, 3, mr_words(0, 8, rights=2), 12),
    (SET, MR, 3, mr_words(0, 8, rights=8), 12),
    (SET, MR, 3, mr_words(0, 8, rights=14), 12),
    (SET, QP, 10, qp_words(rd=(17, 0)), 13),
    (SET, QP, 10, qp_words(rd=(0, 17)), 13),
    (SET, QP, 10, qp_words(rd=(16, 255)), 13),
    (SET, CQ, 0, cq_words(), 14),
    (SET, CQ, 2, cq_words(), 14),
    (SET, QP, 10, qp_words(cqs=(2, 2)), 14),
    (SET, QP, 10, qp_words(cqs=(0, 2)), 14),
    (SET, QP, 10, qp_words(cqs=(2, 0)), 14),
    *((SET, QP, 10, qp_words(w0=1 << bit), 15) for bit in (10, 15, 59, 63)),
    *(
        (SET, QP, 10, [*qp_words()[:w], qp_words()[w] | 1 << bit, *qp_words()[w + 1 :]], 15)
        for w, bit in (
            (1, 24),
            (1, 31),
            (2, 48),
            (2, 63),
            (3, 24),
            (3, 56),
            (7, 48),
            (7, 63),
            (9, 24),
            (9, 31),
            (9, 56),
            (9, 63),
        )
    ),
    (SET, CQ, 1, [0, 16 | 64 << 32 | 1 << 41, 0], 15),
    (SET, CQ, 1, [0, 16 | 64 << 32 | 1 << 24, 0], 15),
    (SET, CQ, 1, [0, 16 | 64 << 32, 1 << 32], 15),
    (SET, MR, 3, [0, 8, 1 << 24 | 1 << 5], 15),
    (SET, MR, 3, [0, 8, 1 << 24 | 1 << 25], 15),
    (MODIFY, QP, 8, [1 << 10] + [0] * 7 + [1], 15),
    (MODIFY, QP, 8, [0] * 8 + [1 | 4], 15),
    (SET, CQ, 1 | 1 << 24, cq_words(), 15),
    (RESET, QP, 8 | 1 << 55, None, 15),
    # several at once: the lowest
    (SET, QP, 10, qp_words(depth=3, sq_base=1, mtu=0, cqs=(1, 1), rd=(99, 0), w0=1 << 63), 5),
    (SET, QP, 10, qp_words(sq_base=1, mtu=0, cqs=(1, 1)), 6),
    (SET, CQ, 1, cq_words(depth=3, stride=1), 5),
    (SET, CQ, 0, cq_words(depth=3), 5),
    (SET, MR, 3, mr_words(5, TOP, rights=2), 11),
    (9, 9, 0, None, 1),
    (SET, CQ, 1 | 1 << 24, cq_words(depth=3), 5),
    (SET, QP, 8 | 1 << 24, qp_words(), 4),
]


@cocotb.test()
async def test_refusals(dut):
    """Each cause of refusal; nothing is broadcast, no state and no query result changes."""
    host, seen = await bench(dut)
    assert await host.command(SET, CQ, 0, cq_words()) == 0
    assert await host.command(SET, CQ, 2, cq_words(ignore=1)) == 0
    assert await host.command(SET, QP, 8, qp_words()) == 0
    assert await host.command(SET, QP, 9, qp_words(cqs=(2, 2))) == 0
    assert await host.command(SET, MR, 3, mr_words(0x100, 0x200)) == 0
    objects = [(QP, 8), (QP, 10), (CQ, 0), (CQ, 1), (CQ, 2), (MR, 3)]

    async def all_queries():
        result = []
        for obj, number in objects:
            assert await host.command(QUERY, obj, number) == 0
            result.append(await host.staged())
        return result

    before = await all_queries()
    state = await host.read(RTS), await host.read(ERR)
    await cycles(dut, 2)
    seen.seen.clear()
    for op, obj, number, words, code in REFUSALS:
        got = await host.command(op, obj, number, words)
        assert got == code, (
            f"op {op} object {obj} number {number:#x} {words and [hex(w) for w in words]}: {got} not {code}"
        )
        assert (await host.read(RTS), await host.read(ERR)) == state
    assert not seen.seen
    assert await all_queries() == before
    assert await host.counters() == {}
    # the limits themselves are good
    good = [
        (SET, CQ, 3, cq_words(depth=1 << 22)),
        (SET, CQ, 4, cq_words(depth=2, stride=32, base=32)),
        (SET, QP, 11, qp_words(depth=1 << 17, cqs=(3, 4), rq_depth=1 << 16)),
        (SET, QP, 12, qp_words(version=1, depth=8192, cqs=(3, 4), rq_depth=8192, rq_base=16)),
        (SET, QP, 13, qp_words(mtu=1, depth=2, cqs=(4, 4), rd=(0, 0), rq_base=1)),  # rq_base of no RQ
        (SET, MR, 4, mr_words(TOP - 8, 8, rights=0)),
        (SET, MR, 5, mr_words(0, TOP, rights=1)),
        (SET, MR, 6, [1, 0, 1 | 3 << 60]),  # not valid: nothing else counts
    ]
    for op, obj, number, words in good:
        assert await host.command(op, obj, number, words) == 0, (obj, number)


@cocotb.test()
async def test_modify(dut):
    """modify changes its own fields only, keeps indices and PSNs, and moves RTS to ERR but not back."""
    host, seen = await bench(dut)
    assert await host.command(SET, CQ, 0, cq_words()) == 0
    words = qp_words(version=1, mtu=3, start=7 << 32 | 16380, rq_depth=4)
    assert await host.command(SET, QP, 5, words) == 0
    fields = seen.seen[-1][2]
    seen.seen.clear()
    w0 = 5 << 4 | 1 << 7 | 1 << 9 | 0x77 << 16 | 0x3C << 24 | 3 << 48 | 6 << 51 | 21 << 54
    other = 1 | 5 << 1 | 0xBEEF << 32  # version, MTU, port: as programmed, whatever is staged
    for target in (1, 2, 2):
        assert (
            await host.command(
                MODIFY, QP, 5, [w0 | other, *[random.getrandbits(64) for _ in range(7)], target]
            )
            == 0
        )
        kind, qpi, got = seen.take()
        assert (kind, qpi) == ("qp_modify", 3)
        assert got == fields | {
            "sl": 5,
            "rem_write": 1,
            "rem_read": 0,
            "rem_atomic": 1,
            "tc": 0x77,
            "ttl": 0x3C,
            "retry_cnt": 3,
            "rnr_retry": 6,
            "timer": 21,
        }
        assert (await host.read(RTS), await host.read(ERR)) == ((8, 0) if target == 1 else (0, 8))
        assert await host.command(QUERY, QP, 5) == 0
        assert await host.staged() == [
            words[0] | w0,
            *words[1:8],
            target,
            words[9],
            16380 << 32 | 16380,
            0,
            0,
            0,
            0,
            0,
        ]
    assert await host.command(MODIFY, QP, 5, [w0] + [0] * 7 + [1]) == 4  # ERR -> RTS
    assert (await host.read(RTS), await host.read(ERR)) == (0, 8)


@cocotb.test()
@cocotb.parametrize(from_state=["RTS", "ERR", "RESET"])
async def test_reset_drains(dut, from_state):
    """reset: the state changes at once, the broadcast waits for 8 quiet cycles, the CQ is free afterwards."""
    host, seen = await bench(dut)
    assert await host.command(SET, CQ, 0, cq_words()) == 0
    assert await host.command(SET, CQ, 1, cq_words()) == 0
    for qpn in (20, 21):
        assert await host.command(SET, QP, qpn, qp_words(cqs=(0, 1))) == 0
    await host.write(doorbell_page(20), 20 << 21 | 3 * 8)
    if from_state == "ERR":
        assert await host.command(MODIFY, QP, 20, [0] * 8 + [2]) == 0
    if from_state == "RESET":
        assert await host.command(RESET, QP, 20) == 0
    seen.seen.clear()
    for busy_for in (0, 1, 50):
        if busy_for == 0:  # a block that answers late, and lets go for less than 8 cycles in between
            pattern = [0] * 5 + [1] * 3 + [0] * 6 + [1] + [0] * 40
        else:
            pattern = [1] * busy_for + [0] * 40
        # the context is read first, while the QP drains already
        pattern = [0] * 12 + pattern
        await host.write(CMD, 20 << 8 | QP << 4 | RESET)
        while not dut.drain_valid_o.value:
            await FallingEdge(dut.clk_i)
        assert int(dut.drain_qpi_o.value) == 18
        assert not int(dut.qp_rts_o.value) >> 18 & 1 and not int(dut.qp_err_o.value) >> 18 & 1
        dut.err_comp_valid_i.value, dut.err_comp_qpi_i.value = 1, 18  # too late to mean anything
        ended = last_busy = None
        for cycle, busy in enumerate(pattern):
            dut.drain_busy_i.value = busy
            if busy:
                last_busy = cycle
            if seen.seen:
                ended = cycle if ended is None else ended
                assert busy == 0
            else:
                assert dut.drain_valid_o.value and int(dut.drain_qpi_o.value) == 18
            await FallingEdge(dut.clk_i)
            dut.err_comp_valid_i.value = 0
        assert 8 < ended - last_busy <= 16, (ended, last_busy)
        assert not dut.drain_valid_o.value
        kind, qpi, _ = seen.take()
        assert (kind, qpi) == ("qp_reset", 18)
        assert await host.read(STATUS) == 0 and await host.read(ERR) == 0 and await host.read(RTS) == 1 << 19
        assert await host.command(QUERY, QP, 20) == 0
        words = await host.staged()
        assert words[8] == 0 and words[10] == 0
    # doorbells of a QP in RESET, and CQs that are free as soon as their last QP is gone
    await host.write(doorbell_page(20), 20 << 21 | 4 * 8)
    assert (await host.counters()) == {25: 1}
    for cqn in (0, 1):
        assert await host.command(SET, CQ, cqn, cq_words(depth=32)) == 14
    assert await host.command(RESET, QP, 21) == 0
    for cqn in (0, 1):
        assert await host.command(SET, CQ, cqn, cq_words(depth=32)) == 0
    assert await host.command(SET, QP, 20, qp_words(depth=32, cqs=(0, 0), start=11)) == 0
    assert await host.command(SET, CQ, 0, cq_words()) == 14
    assert await host.command(RESET, QP, 20) == 0
    assert await host.command(SET, CQ, 0, cq_words()) == 0


@cocotb.test()
async def test_errors_of_the_blocks(dut):
    """Errors move RTS to ERR, in any combination of sources in one cycle; QPs in RESET stay there."""
    host, _ = await bench(dut)
    assert await host.command(SET, CQ, 0, cq_words()) == 0
    for qpn in range(2, 34):
        assert await host.command(SET, QP, qpn, qp_words()) == 0
    rts, err = (1 << 32) - 1, 0
    for _ in range(60):
        comp, resp = random.randrange(64), random.randrange(64)
        dut.err_comp_valid_i.value, dut.err_comp_qpi_i.value = 1, comp
        both = random.getrandbits(1)
        dut.err_resp_valid_i.value, dut.err_resp_qpi_i.value = both, resp
        hit = 1 << comp | both << resp
        await FallingEdge(dut.clk_i)
        dut.err_comp_valid_i.value = dut.err_resp_valid_i.value = 0
        err |= rts & hit
        rts &= ~hit
        assert (int(dut.qp_rts_o.value), int(dut.qp_err_o.value)) == (rts, err)
        await FallingEdge(dut.clk_i)
    assert (await host.read(RTS), await host.read(ERR)) == (rts, err)


@cocotb.test()
async def test_mr_waits_for_accesses(dut):
    """A valid MR that changes: the broadcast comes at once, the command ends when no access is left."""
    host, seen = await bench(dut)
    assert await host.command(SET, MR, 200, mr_words(0, 64)) == 0
    seen.seen.clear()
    for words in (mr_words(0, 128), mr_words(0, 0, 0, valid=0)):
        dut.mr_drain_busy_i.value = 1
        await host.stage(words)
        await host.write(CMD, 200 << 8 | MR << 4 | SET)
        await cycles(dut, 60)
        assert seen.take()[:2] == ("mr_set", 200)
        assert await host.read(STATUS) == 1 and dut.mr_drain_valid_o.value
        await host.stage([1, 2, 3])  # the window is free meanwhile
        assert (await host.staged())[:3] == [1, 2, 3]
        dut.mr_drain_busy_i.value = 0
        await cycles(dut, 12)
        assert await host.read(STATUS) == 0 and not dut.mr_drain_valid_o.value
    dut.mr_drain_busy_i.value = 1  # nothing to wait for: it was not valid
    assert await host.command(SET, MR, 200, mr_words(0, 64)) == 0


@cocotb.test()
async def test_query_at_once(dut):
    """Indices in a query, and staging words read or written right behind a command: in order."""
    host, _ = await bench(dut)
    assert await host.command(SET, CQ, 0, cq_words()) == 0
    assert await host.command(SET, QP, 7, qp_words(start=262140)) == 0
    await host.write(doorbell_page(7), 7 << 21 | 6 * 8)
    dut.retire_valid_i.value, dut.retire_qpi_i.value, dut.retire_idx_i.value = 1, 5, 262143
    await FallingEdge(dut.clk_i)
    dut.retire_valid_i.value = 0
    await host.write(CMD, 7 << 8 | QP << 4 | QUERY)
    assert await host.read(STAGE + 80) == 262143 << 32 | 6
    assert await host.read(STAGE + 64) == 1
    words = qp_words(start=5)
    await host.stage(words)
    await host.write(CMD, 8 << 8 | QP << 4 | SET)

    async def other_reads() -> None:  # the first staging word waits for the engine, and these for it
        for _ in range(8):
            assert await Host(dut).read(0) == 0x43414D48494C0001

    task = cocotb.start_soon(other_reads())
    for i in range(16):  # must not disturb the command
        await host.write(STAGE + 8 * i, 0xFFFF_FFFF_FFFF_FFFF)
    await task
    assert await host.read(STATUS) == 0
    assert await host.command(QUERY, QP, 8) == 0
    assert (await host.staged())[:10] == [*words[:8], 1, words[9]]


@cocotb.test()
async def test_random_against_the_model(dut):
    """Random commands with contexts near the limits: code, state and query as pymodel's ContextStore says."""
    host, _ = await bench(dut)
    model = ContextStore()
    codes: dict[int, int] = {}

    def pick(*values: int) -> int:
        return random.choice(values)

    def flip(words: list[int]) -> list[int]:
        words = words + [random.getrandbits(64) for _ in range(16 - len(words))]
        if random.random() < 0.15:
            i = random.randrange(10)
            words[i] ^= 1 << random.randrange(64)
        return words

    for _ in range(600):
        op, obj = pick(SET, SET, SET, MODIFY, RESET, QUERY), pick(QP, QP, CQ, MR)
        if random.random() < 0.03:
            op, obj = random.getrandbits(4), random.getrandbits(4)
        number = {QP: random.randint(2, 6), CQ: random.randint(0, 3), MR: random.randint(0, 3)}.get(obj, 0)
        if random.random() < 0.05:
            number = pick(0, 1, 63, 64, 65, 66, 255, 256, random.getrandbits(24))
        if obj == QP:
            words = qp_words(
                pick(1, 2),
                pick(1, 2, 3, 4, 5, 5, 0, 6),
                1 << pick(1, 2, 4, 4, 4, 13, 14, 17, 18, 0),
                (pick(0, 0, 1, 2, 3, 70), pick(0, 1, 2, 3)),
                random.getrandbits(64),
                pick(0, 128, 4096, 64),
                pick(0, 16, 8),
                pick(0, 0, 2, 4, 3, 1 << 13, 1 << 14, 1 << 16, 1 << 17),
                random.getrandbits(64) & 0x07FF_FFFF_FFFF_03F0,
                (pick(0, 16, 17), pick(0, 16, 16, 200)),
            )
            words = words[:8] + [pick(1, 2, 2, 0, 3)] + words[9:]
        elif obj == CQ:
            words = cq_words(
                32 * random.getrandbits(8),
                1 << pick(1, 4, 13, 17, 22, 23, 0),
                pick(32, 64, 64, 16),
                pick(0, 0, 1),
                random.getrandbits(32),
            )
        else:
            base = pick(0, 1, TOP - 1, random.getrandbits(64))
            words = mr_words(
                base, pick(0, TOP - base, TOP - base + 1, 17, TOP), random.getrandbits(4), valid=pick(0, 1, 1)
            )
        words = flip(words)
        cmd = number << 8 | obj << 4 | op | (1 << random.randrange(32, 64) if random.random() < 0.02 else 0)
        await host.stage(words)
        want = model.execute(cmd, words)
        got = await host.command(cmd & 15, cmd >> 4 & 15, cmd >> 8)
        assert got == want, f"{cmd:#x} {[hex(w) for w in words]}: {got} not {want!r}"
        codes[got] = codes.get(got, 0) + 1
        if got == 0 and op == QUERY:
            start = model.qps[number].sq_start_index if obj == QP and number in model.qps else 0
            width = 14 if obj == QP and number in model.qps and model.qps[number].version == 1 else 18
            index = start % (1 << width) if obj == QP and model.state(number) else 0
            assert await host.staged() == model.query_words(CmdObj(obj), number, index, index)
        rts = sum(1 << (n - 2) for n, s in model.states.items() if s == 1)
        err = sum(1 << (n - 2) for n, s in model.states.items() if s == 2)
        assert (int(dut.qp_rts_o.value), int(dut.qp_err_o.value)) == (rts, err)
    assert len(codes) >= 14, codes
