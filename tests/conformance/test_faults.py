"""Fault rules on the link, on a stub NIC that sends what memory holds.

Sweep: every action with every condition, random sets of rules, seeds. Stimulus: RoCEv2 frames of all opcodes
and other frames, in all directions between two PEs. Checks: what arrives is what was sent and the log says,
and the log is what the rules say (fault_model.py), statistics of draws, order, delays, pending packets.
Timing: delays and releases to the cycle. Does not prove: anything about the real NIC, the rule language
(test_fault_rules.py).
"""

from __future__ import annotations

from collections import Counter

import cocotb
import numpy as np

from pymodel.faults import parse
from pymodel.faults.log import counts, render, text
from pymodel.faults.rule import Action, Rule
from tb.sim.lib import seeded
from tb.sim.records import Kind
from tests.conformance.fault_bench import (
    ACTIONS,
    CONDITIONS,
    DOORBELL,
    SLOTS,
    SRC,
    Bench,
    conditions,
    random_rules,
    traffic,
)
from tests.conformance.fault_model import check, differences, frame

PES = 2
NIC_RTL = ["tests/conformance/sink/rnic.sv"]


@cocotb.test()
@cocotb.parametrize(part=[0, 1, 2, 3])
async def test_every_action_and_condition(dut, part: int) -> None:
    """Each condition with each action, and none: what arrives, the log, and that some packets were spared."""
    bench = await Bench.start(dut)
    rng = seeded()
    hits: Counter[str] = Counter()
    spared: Counter[str] = Counter()
    for action in ACTIONS[part::4]:
        for condition in ["any", *conditions(bench.lib.cycle)]:
            bench.seed(int(rng.integers(1 << 32)))
            word = condition.split()[0]
            if word in ("time", "from", "until"):
                condition = next(c for c in conditions(bench.lib.cycle) if c.startswith(word))
            rules = parse(f"{condition}: {action}")
            log = await bench.checked(rules, traffic(rng, 50))
            faults = sum(counts(log).values())
            assert counts(log)[rules[0].action.name.lower()] == faults
            name = condition if condition in CONDITIONS else word
            hits[name] += faults
            spared[name] += 50 - faults
    # one action may find nothing to do (an ACK has no payload), all of them not
    assert len(hits) == len(CONDITIONS) + 4 and all(hits.values()), hits
    assert all(count for name, count in spared.items() if name != "any"), spared


@cocotb.test()
@cocotb.parametrize(part=[0, 1])
async def test_random_rules(dut, part: int) -> None:
    """Random sets of rules under random link knobs: the log explains every difference."""
    bench = await Bench.start(dut)
    rng = seeded(part)
    kinds = np.zeros(8, int)
    for _ in range(40):
        bench.seed(int(rng.integers(1 << 32)))
        for knob, top in {"link_latency_jitter": 100, "link_stall_tx": 9000, "link_stall_rx": 9000}.items():
            bench.lib.set_knob(knob, int(rng.integers(2) * rng.integers(top)))
        log = await bench.checked(
            random_rules(rng, bench.lib.cycle), traffic(rng, int(rng.integers(20, 150)))
        )
        kinds += np.bincount(log["action"], minlength=8)
    assert (kinds[1:] > 5).all(), kinds


@cocotb.test()
async def test_log_equals_what_is_found_without_it(dut) -> None:
    """Lost, doubled and changed packets, found by comparing bytes only, are those of the log, to the bit."""
    bench = await Bench.start(dut)
    rng = seeded()
    for seed in range(12):
        bench.seed(seed)
        rules = [
            "drop",
            "duplicate 2 times",
            "corrupt 3 bits of icrc",
            "corrupt 2 bytes of header",
            "reorder 2",
        ]
        bench.lib.set_faults([f"every 1/9: {rule}" for rule in rules])
        sent, got = await bench.run(traffic(rng, 150))
        log = bench.lib.fault_log()
        lost, copies, changed = differences(sent, got)
        by = {a: log[log["action"] == a] for a in Action}
        assert lost == set(by[Action.DROP]["packet"].tolist()) and lost
        assert copies == dict.fromkeys(by[Action.DUPLICATE]["packet"].tolist(), 2) and copies
        logged: dict[int, dict[int, int]] = {}
        for e in by[Action.CORRUPT]:
            one = logged.setdefault(int(e["packet"]), {})
            for edit in e["edit"][: e["edits"]].tolist():
                one[edit >> 8] = one.get(edit >> 8, 0) ^ edit & 255
        assert changed == logged and changed
        assert len(by[Action.RELEASE]) == len(by[Action.REORDER]) > 0


@cocotb.test()
async def test_a_wrong_log_is_found(dut) -> None:
    """The checks of this file see a log that lacks an entry, has one too many, or says something else."""
    bench = await Bench.start(dut)
    rules = parse(
        "every 4th: corrupt 2 bits of payload\nevery 5th: drop\nevery 5th: duplicate\nevery 7th: reorder 2"
    )
    bench.lib.set_faults(rules)
    sent, got = await bench.run(traffic(seeded(), 120))
    log = bench.lib.fault_log()
    check(sent, got, log, rules, np.array(bench.times))
    assert {*log["action"].tolist()} == {1, 2, 4, 5, 7}

    def wrong(name: str, changed: np.ndarray, rx: dict[int, list[tuple[int, bytes]]] = got) -> None:
        try:
            check(sent, rx, changed, rules, np.array(bench.times))
        except (AssertionError, KeyError):
            return
        raise AssertionError(f"nothing found: {name}")

    for n in range(len(log)):
        wrong(f"entry {n} is missing", np.delete(log, n))
    at = {a: int(np.flatnonzero(log["action"] == a)[0]) for a in (1, 2, 4, 5, 7)}
    fields = [(1, "packet"), (1, "time"), (1, "rule"), (1, "qp"), (1, "sent"), (1, "size"), (2, "amount")]
    fields += [(2, "psn"), (2, "source"), (4, "amount"), (5, "edit"), (5, "opcode"), (5, "record")]
    for kind, name in [*fields, (7, "amount"), (7, "time")]:
        changed = log.copy()
        if name == "edit":
            changed["edit"][at[kind], 0] ^= 1 << 8
        else:
            changed[name][at[kind]] += 1
        wrong(f"{name} of a {Action(kind).name}", changed)
    wrong("an arrival is missing", log, {**got, 1: got[1][:-1]})
    wrong("one arrival too many", log, {**got, 0: [*got[0], got[0][-1]]})
    wrong("two arrivals have changed places", log, {**got, 0: [got[0][1], got[0][0], *got[0][2:]]})


@cocotb.test()
@cocotb.parametrize(
    rule=["every 1/3: drop", "every 7th: corrupt 4 bits", "every 2nd: corrupt 2 bytes", "truncate"]
)
async def test_seeds(dut, rule: str) -> None:
    """The same seed and packets give the same faults in every field but time; another seed gives others."""
    bench = await Bench.start(dut)
    packets = traffic(seeded(), 150)
    logs = []
    for seed, again in ((5, False), (5, True), (6, False), (5, False)):
        bench.seed(seed)
        if not again:  # else the rule of the last turn stays and begins anew
            bench.lib.set_faults(rule)
        # one PE at a time: with both the order of their packets could differ between runs
        await bench.run([p for p in packets if p[0] == 0])
        await bench.run([p for p in packets if p[0] == 1])
        log = bench.lib.fault_log()
        for name in ("time", "record", "sent", "rule"):
            log[name] = 0
        logs.append(log.tobytes())
    assert logs[0] == logs[1] == logs[3] and len(logs[0]) > 15 * 128
    assert logs[0] != logs[2]


@cocotb.test()
async def test_rules_draw_apart(dut) -> None:
    """Equal rules at two places do not choose the same of equal packets, nor change the same bits."""
    bench = await Bench.start(dut)
    bench.lib.set_faults("qp 1 every 1/2: corrupt 1 bit\nqp 2 every 1/2: corrupt 1 bit")
    rng = seeded()
    packets = [(0, frame(1, 0x0A, 1 + n % 2, n // 2, bytes(100), rng)) for n in range(SLOTS)]
    await bench.run(packets)
    log = bench.lib.fault_log()
    one, two = (log[log["qp"] == qp] for qp in (1, 2))
    same = len(set(one["psn"].tolist()) & set(two["psn"].tolist()))
    assert 8 < same < 42 and min(len(one), len(two)) > 30  # of 100: 25 and 50 on the average
    assert one["edit"][:20, 0].tolist() != two["edit"][:20, 0].tolist()


@cocotb.test()
async def test_draws(dut) -> None:
    """Draws come as often as they should, independently of one another; `every Nth` is exact."""
    bench = await Bench.start(dut)
    rng = seeded()
    bench.lib.set_faults("qp 3 every 1/16: delay 1 cycle\nqp 3 every 3/7: duplicate\nqp 2 every 5th: drop")
    hits: dict[int, list[int]] = {0: [], 1: [], 2: []}
    seen: list[tuple[int, int]] = []
    for _ in range(20):
        packets = [(n & 1, frame(1, 0x0A, 2 + int(rng.integers(2)), n, b"", rng)) for n in range(2 * SLOTS)]
        sent, _ = await bench.run(packets)
        seen += [(p.number, p.fields[1]) for p in sent]
        for e in bench.lib.fault_log():
            hits[int(e["rule"])].append(int(e["packet"]))
    threes = [n for n, qp in seen if qp == 3]
    rest = [n for n in threes if n not in set(hits[0])]  # what the first rule let pass
    for rule, among, chance in ((0, threes, 1 / 16), (1, rest, 3 / 7)):
        n, mean = len(among), len(among) * chance
        assert abs(len(hits[rule]) - mean) < 4.5 * (mean * (1 - chance)) ** 0.5, (rule, len(hits[rule]), mean)
        # neighbours are hit together as often as chance has it
        mine = set(hits[rule])
        pairs, both = (
            sum(a in mine and b in mine for a, b in zip(among, among[1:], strict=False)),
            n * chance**2,
        )
        assert abs(pairs - both) < 5 * both**0.5, (rule, pairs, both)
    assert hits[2] == [n for n, qp in seen if qp == 2][4::5]


@cocotb.test()
async def test_delay_to_the_cycle(dut) -> None:
    """A lone packet comes later by the rule's time; one behind it waits, one to another PE does not."""
    bench = await Bench.start(dut)
    rng = seeded()

    async def flight(rule: str) -> int:
        bench.lib.set_faults(rule)
        sent, got = await bench.run([(0, frame(1, 0x0A, 1, 0, bytes(40), rng))])
        return got[1][0][0] - sent[0].first

    plain = await flight("")
    for rule, cycles in (
        ("1 cycle", 1),
        ("99 cycles", 99),
        ("2us", 1000),
        ("1.5 us", 750),
        ("3ns", 2),
        ("0.01ms", 5000),
    ):
        assert await flight(f"delay {rule}") == plain + cycles, rule
    bench.lib.set_faults("qp 7: delay 1us")
    ends = [(1, 7), (1, 1), (0, 1)]
    sent, got = await bench.run([(0, frame(to, 0x0A, qp, 0, b"", rng)) for to, qp in ends])
    late, behind, other = got[1][0][0], got[1][1][0], got[0][0][0]
    assert late == sent[0].first + plain + 500, (late, sent)
    # two beats each; the queue goes on at once
    assert behind == late + 2 and other == sent[2].first + plain, (late, behind, other)


@cocotb.test()
async def test_held_packets(dut) -> None:
    """A packet that no other passes goes on after the bound and is pending until then."""
    bench = await Bench.start(dut)
    lib, rng = bench.lib, seeded()
    for rule, within in (("reorder 2", 5000), ("reorder 1 within 1us", 500)):
        lib.set_faults(f"qp 9: {rule}")
        data = frame(1, 0x0A, 9, 1, b"", rng)
        lib.store(0, SRC, data)
        lib.mmio_write(0, DOORBELL, len(data) << 48 | SRC)
        await lib.cycles(150)
        assert (lib.link_pending(0), lib.link_pending(1)) == (0, 1)
        lib.set_faults([])  # the rule is gone, the packet is not
        await lib.cycles(within - 250)
        assert lib.link_pending(1) == 1
        await lib.cycles(300)
        assert lib.link_pending(1) == 0
        records = lib.drain()
        (hold, goes) = lib.fault_log()
        (arrived,) = records[records["kind"] == Kind.RXPKT]
        assert (hold["action"], goes["action"], goes["amount"]) == (Action.REORDER, Action.RELEASE, 0)
        assert goes["time"] == hold["time"] + within and goes["time"] < arrived["aux0"] <= goes["time"] + 3
    # without rules, later packets still count
    lib.set_faults("qp 9: reorder 2 within 1ms")
    lib.store(0, SRC, data)
    lib.mmio_write(0, DOORBELL, len(data) << 48 | SRC)
    await lib.cycles(150)
    lib.set_faults([])
    others = [(0, frame(1, 0x0A, 1, n, b"", rng)) for n in range(3)]
    got = (await bench.run(others, before=1))[1][1]
    assert [d for _, d in got] == [others[0][1], others[1][1], data, others[2][1]]


@cocotb.test()
async def test_order_of_reorder(dut) -> None:
    """The examples of docs/faults.md, packet by packet."""
    bench = await Bench.start(dut)
    rng = seeded()
    for rules, want in (
        ("reorder 2", [2, 3, 1, 5, 6, 4, 7, 8]),
        ("nth 2: reorder 1", [1, 3, 2, 4, 5, 6, 7, 8]),
        ("psn 2: reorder 2\npsn 3: reorder 2", [1, 4, 5, 2, 3, 6, 7, 8]),
        ("psn 2: reorder 3\npsn 3: drop\npsn 4: duplicate", [1, 4, 4, 5, 6, 2, 7, 8]),
        ("psn 2: reorder 3\npsn 3: reorder 1", [1, 4, 3, 5, 2, 6, 7, 8]),
    ):
        bench.seed(1)
        bench.lib.set_faults(rules)
        _, got = await bench.run([(0, frame(1, 0x0A, 1, n, b"", rng)) for n in range(1, 9)])
        order = [data[53] for _, data in got[1]]
        # the seventh and eighth of the first example: 7 waits for two packets that do not come
        if rules == "reorder 2":
            assert order == [2, 3, 1, 5, 6, 4, 8, 7]
        else:
            assert order == want, rules


@cocotb.test()
async def test_api(dut) -> None:
    """Injected frames pass; packets are counted without rules too; text and objects; text of a log."""
    bench = await Bench.start(dut)
    lib, rng = bench.lib, seeded()
    lib.set_faults("drop")
    data = frame(0, 0x0A, 1, 1, b"", rng)
    lib.inject(1, data)
    _, got = await bench.run([])
    assert [d for _, d in got[1]] == [data] and lib.link_faults == 0
    lib.set_faults(())
    await bench.run([(0, frame(1, 0x0A, 1, n, b"", rng)) for n in range(3)])
    lib.set_faults(
        [
            Rule(action=Action.DROP, packet=(5, 5)),
            "qp 1 psn 9: duplicate\n# a comment\nqp 2: corrupt 1 byte of bth",
        ]
    )
    _, got = await bench.run([(0, frame(1, 0x0A, 1, n, b"", rng)) for n in (7, 8, 9)])
    assert [d[53] for _, d in got[1]] == [7, 9, 9]
    log = lib.fault_log()
    assert counts(log) == {"drop": 1, "duplicate": 1, "delay": 0, "reorder": 0, "corrupt": 0, "truncate": 0}
    assert lib.fault_log().size == 0 and lib.link_faults == 2
    # rule 0 was the "drop" above
    assert log["rule"].tolist() == [1, 2] and len(lib.fault_rules) == 4
    line = (
        f"cycle {log['time'][1]} 0->1 packet 6 write_only qp 1 psn 9 74 bytes: duplicated, rule 2 (faults:1)"
    )
    assert render(log[1], lib.fault_rules) == line
    assert text(log, lib.fault_rules).splitlines()[1:] == [line, "faults: 1 drop, 1 duplicate"]
    lib.record()
    try:
        lib.set_faults("drop")
    except RuntimeError:
        return
    raise AssertionError("a workload took rules")
