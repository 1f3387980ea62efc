"""Timeline and operator span of a run (tb/sim/timeline.py) against what the run itself counted.

Sweep: 2 NICs; everything in the file, and a limit that is too small. Stimulus: a program with steps, a flag
behind a large put, a READ and an atomic. Checks: events per track equal the summary's packets, CQEs and the
program's posts and waits; each packet arrives at the other PE after it was sent; times lie inside their
steps; the span is that from the first doorbell to the flag's write, found here from the records by hand.
Timing: cycles of the span, exact.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np

from pymodel.run import RunConfig
from tb.sim import sim
from tb.sim.records import RECORD, Kind
from tb.sim.timeline import TRACKS, Span, Timeline

PROGRAM = """
async def main(pe):
    data, flag, word, back = pe.alloc(20000), pe.alloc(8), pe.alloc(8), pe.alloc(3000)
    peer = 1 - pe.rank
    with pe.step("fill"):
        await pe.store(data, bytes(range(250)) * 80)
        await pe.store(word, b"\\1" * 8)
        await pe.sleep(500)
    with pe.step("exchange"):
        if pe.rank == 0:
            await pe.put_nbi(data, data, 20000, 1)
            await pe.put_nbi(flag, word, 8, 1)
        else:
            await pe.wait_until(flag, 8, lambda view: view.any(), peer=0, what="the flag")
        await pe.quiet(peer)
    pe.count("flags")
    await pe.barrier_all()
    await pe.get_nbi(back, data, 3000, peer)
    await pe.atomic.fetch_add(flag, 1, peer)
    await pe.quiet(peer)
"""


def simulate(tmp_path: Path) -> tuple[dict, list[dict]]:
    """Summary and events of the program."""
    program, path = tmp_path / "program.py", tmp_path / "timeline.json"
    program.write_text(PROGRAM)
    config = sim.SimConfig(RunConfig(str(program), pes=2, on="rtl", seed=5), timeline=str(path))
    code, summary, reason = sim.simulate(config, tmp_path / "out")
    assert code == 0, reason
    return summary, json.loads(path.read_text())["traceEvents"]


def test_run(tmp_path: Path) -> None:
    """Every packet, CQE, post, wait and step once, at its time; the program's figures in the summary."""
    summary, events = simulate(tmp_path)
    drawn = [e for e in events if e["ph"] == "X"]
    tracks = Counter(TRACKS[e["tid"]] for e in drawn)
    assert tracks["packets sent"] == tracks["packets received"] == summary["packets"]
    assert tracks["CQEs"] == summary["cqes"]
    assert tracks["posts"] == summary["wqes"]
    steps = {(e["pid"], e["name"]): e for e in drawn if e["tid"] == TRACKS.index("steps")}
    assert set(steps) == {(pe, name) for pe in range(2) for name in ("fill", "exchange")}
    assert all(abs(steps[pe, "fill"]["dur"] - 1.0) < 0.1 for pe in range(2))
    (wait,) = (e for e in drawn if e["name"] == "the flag")
    outer = steps[1, "exchange"]
    assert wait["pid"] == 1 and outer["ts"] <= wait["ts"]
    assert wait["ts"] + wait["dur"] <= outer["ts"] + outer["dur"]
    sent = [e for e in drawn if e["tid"] == TRACKS.index("packets sent") and e["pid"] == 0]
    first = [e["name"] for e in sorted(sent, key=lambda e: e["ts"])]
    assert first[:6] == ["write_first", *["write_middle"] * 3, "write_last", "write_only"]
    for pe in range(2):
        there = [e for e in drawn if e["tid"] == TRACKS.index("packets received") and e["pid"] == 1 - pe]
        here = [e for e in drawn if e["tid"] == TRACKS.index("packets sent") and e["pid"] == pe]
        pairs = list(zip(*(sorted(track, key=lambda e: e["ts"]) for track in (here, there)), strict=True))
        assert all(a["name"] == b["name"] and a["args"] == b["args"] and a["ts"] < b["ts"] for a, b in pairs)
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert names == {"PE 0", "PE 1"}
    assert summary["figures"]["flags"] == 2
    # barrier signals are waits too, so the span ends later than the flag; it is inside the run in any case
    assert 0 < summary["figures"]["cycles_first_doorbell_to_last_flag"] < summary["cycles"]


def records(rows: list[dict]) -> np.ndarray:
    """Hand-made records."""
    out = np.zeros(len(rows), RECORD)
    for record, row in zip(out, rows, strict=True):
        for name, value in row.items():
            record[name] = value
    return out


class Waiter:
    """A PE with waits (addr, length, start, end)."""

    def __init__(self, rank: int, *waits: tuple[int, int, int, int]) -> None:
        from pymodel.device.pe import Waited

        self.rank = rank
        self.waits = [Waited(addr, length, "", None, start, end) for addr, length, start, end in waits]


def test_span() -> None:
    """First SQ doorbell to the write that satisfied the last wait, and nothing else."""
    from pymodel.nic.params import DEFAULT_PARAMS, AxiId

    page = DEFAULT_PARAMS.db_base + 3 * DEFAULT_PARAMS.db_page_bytes
    side = np.zeros(64, np.uint8)
    span = Span()
    span(records([{"kind": Kind.MMIO_W, "time": 5, "addr": page + DEFAULT_PARAMS.db_cq}]), side)
    assert span.cycles([Waiter(0, (0x100, 8, 0, 90))]) == 0
    span(
        records(
            [
                {"kind": Kind.MMIO_W, "time": 10, "addr": page + DEFAULT_PARAMS.db_sq},
                {"kind": Kind.MMIO_W, "time": 11, "addr": page + DEFAULT_PARAMS.db_sq},
                {"kind": Kind.COMMIT, "id": AxiId.INBOUND, "time": 40, "pe": 1, "addr": 0xF8, "len": 9},
                {"kind": Kind.COMMIT, "id": AxiId.INBOUND, "time": 50, "pe": 0, "addr": 0x100, "len": 8},
                {"kind": Kind.COMMIT, "id": AxiId.CQE, "time": 51, "pe": 1, "addr": 0x100, "len": 8},
                {"kind": Kind.COMMIT, "id": AxiId.INBOUND, "time": 52, "pe": 1, "addr": 0xF8, "len": 8},
                {"kind": Kind.COMMIT, "id": AxiId.INBOUND, "time": 95, "pe": 1, "addr": 0x100, "len": 8},
            ]
        ),
        side,
    )
    assert span.link_limit == 0
    wire = [(Kind.TXPKT, 0, 1000), (Kind.TXPKT, 0, 600), (Kind.TXPKT, 1, 900), (Kind.RXPKT, 2, 1601)]
    span(records([{"kind": kind, "pe": pe, "len": size} for kind, pe, size in wire]), side)
    assert span.link_limit == 26  # 1601 bytes at 64 a cycle
    assert span.cycles([Waiter(1, (0x100, 8, 0, 90))]) == 30
    assert span.cycles([Waiter(1, (0x100, 8, 0, 90), (0x100, 8, 91, 96))]) == 85
    assert span.cycles([Waiter(0, (0x100, 8, 0, 90)), Waiter(1, (0x100, 8, 0, 90))]) == 40


def test_limit(tmp_path: Path) -> None:
    """A timeline that would be too large says what it leaves out, and is valid all the same."""
    timeline = Timeline(tmp_path / "t.json", 1, limit=20)
    sent = {"kind": Kind.TXPKT, "len": 64, "time": 3, "aux0": 1}
    timeline(records([sent] * 30), np.zeros(1 << 12, np.uint8))
    text = timeline.close([])
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert len(events) == 20 and text.endswith(
        f"{30 - sum(e['ph'] == 'X' for e in events)} more are left out"
    )
