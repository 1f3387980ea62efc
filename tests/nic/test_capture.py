"""The packets of a run, as outside judges see them.

Sweep: every packet kind that the device API brings about: WRITE of one and many packets, READ and its
responses, all atomics, ACK, ATOMIC ACK, NAK 1 and 2; zero length. Stimulus: device programs over
`tb.sim.sim`, the way of `make sim PCAP=1` and `camhil run --pcap`. Checks: tshark (with tools/camhil.lua)
and the golden codec read the same fields from every packet; the ICRC by zlib; the number of packets of each
kind; times and NICs. The runs themselves are judged. Timing: none. Does not prove: NAK 0, NAK 3 and RNR,
which no device program brings about.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pymodel.formats import packet
from pymodel.formats.packet import Bth, RxReason, Syndrome
from pymodel.run import RunConfig
from tb.sim import build, sim
from tests import capture

PROGRAM = """
import numpy as np
from pymodel.host.table import FabricConfig

def fabric(n_pes, seed):
    return FabricConfig(n_pes=n_pes, qps=3, seed=seed, mtus=(256,))

async def main(pe):
    near, far = pe.alloc(8192), pe.alloc(8192)
    await pe.store(near, bytes(range(256)) * 32)
    peer = 1 - pe.rank
    if pe.rank == 0:
        for size in (0, 1, 255, 256, 1025, 5000):
            await pe.put_nbi(far, near, size, peer)
            await pe.quiet(peer)
            await pe.get_nbi(near, far + 3, size, peer)
            await pe.quiet(peer)
        for kind in (np.int32, np.uint64):
            await pe.atomic.fetch(far, peer, dtype=kind)
            await pe.atomic.set(far, 5, peer, dtype=kind)
            await pe.atomic.compare_swap(far, 5, 9, peer, dtype=kind)
            await pe.atomic.swap(far, 3, peer, dtype=kind)
            await pe.atomic.add(far, 3, peer, dtype=kind)
            await pe.atomic.fetch_add(far, 1, peer, dtype=kind)
            await pe.atomic.and_(far, 6, peer, dtype=kind)
            await pe.atomic.xor(far, 1, peer, dtype=kind)
        await pe.quiet(peer)
        # beyond the heap: NAK 2
        pe.expect_errors(peer, 1, 0xa5)
        await pe.put_nbi(far + (1 << 40), near, 100, peer, 1)
        await pe.quiet(peer, 1)
        # not a multiple of 8: NAK 1
        pe.expect_errors(peer, 0, 0x89)
        await pe.atomic.add(far + 4, 1, peer, dtype=np.uint64)
        await pe.quiet(peer, 0)
"""
#: what the program brings about: requests, and the answers that cannot be coalesced
ATOMICS = {Bth.MFA32: 4, Bth.MCAS32: 4, Bth.MFA64: 4, Bth.MCAS64: 3, Bth.FETCH_ADD: 1, Bth.CMP_SWAP: 1}


def test_every_packet_of_a_run(tmp_path: Path) -> None:
    """Golden codec, tshark and zlib agree on all packets; the program's requests are all there."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = tmp_path / "run.pcapng"
    config = sim.SimConfig(RunConfig(str(program), pes=2, on="rtl", seed=3), pcap=str(path))
    code, summary, reason = sim.simulate(config, tmp_path / "out")
    assert code == 0, reason
    names, packets = capture.read_pcapng(path)
    assert names == ["NIC 0", "NIC 1"]
    assert (tmp_path / "out" / "capture.txt").read_text() == (
        f"capture: {summary['packets']:,} packets in {path}"
    )
    assert len(packets) == summary["packets"]
    times = [p.ns for p in packets]
    assert times == sorted(times) and not any(t % 2 for t in times)

    raw = [p.raw for p in packets]
    size = np.array([len(r) for r in raw])
    parsed = packet.parse_headers(np.frombuffer(b"".join(raw), np.uint8), np.cumsum(size) - size, size)
    assert not parsed["reason"].any() and RxReason.OK == 0
    for p, golden, seen in zip(packets, parsed, capture.headers(path), strict=True):
        assert capture.icrc(p.raw) == p.raw[-4:]
        crc = int.from_bytes(p.raw[-4:], "big")
        assert seen.pop("crc") == crc and seen.pop("ip_csum_good") == 1
        assert seen == {name: int(golden[name]) for name in seen}
        # what tshark does not show is 0 in the golden codec too: the opcode has it not
        shown = set(seen)
        hidden = {*capture.FIELDS.values(), *capture.LUA_FIELDS.values()} - shown
        assert not any(int(golden[name]) for name in hidden)
    kinds = Counter((p.interface, int(op)) for p, op in zip(packets, parsed["opcode"], strict=True))
    of = {Bth(op): count for (nic, op), count in kinds.items() if nic == 0}
    packets_of = [max(1, -(-n // 256)) for n in (0, 1, 255, 256, 1025, 5000)]
    writes = sum(count for op, count in of.items() if Bth.WRITE_FIRST <= op <= Bth.WRITE_ONLY)
    assert writes == sum(packets_of) + 1 and of[Bth.READ_REQUEST] == 6
    assert {op: of.get(op, 0) for op in ATOMICS} == ATOMICS
    back = {Bth(op): count for (nic, op), count in kinds.items() if nic == 1}
    responses = {
        op: back.get(op, 0) for op in (Bth.READ_FIRST, Bth.READ_MIDDLE, Bth.READ_LAST, Bth.READ_ONLY)
    }
    assert sum(responses.values()) == sum(packets_of) and all(responses.values())
    assert back[Bth.ATOMIC_ACK] == sum(ATOMICS.values()) - 1
    assert not set(back) - {*responses, Bth.ATOMIC_ACK, Bth.ACK}
    acks = parsed[parsed["opcode"] == Bth.ACK]["syndrome"]
    assert sorted(int(s) for s in acks if s != Syndrome.ACK) == [Syndrome.NAK_INV_REQ, Syndrome.NAK_ACCESS]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands write goes here; models stay where they are."""
    monkeypatch.setattr(sim, "build", SimpleNamespace(**{**vars(build), "BUILD": tmp_path}))
    return tmp_path


def test_make_sim(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`make sim PCAP=1`: the file of the whole run, of a window, and the line that names it."""
    base = ["--test", "hello_put", "--pes", "2"]
    assert sim.main(base) == 0
    assert not (folder / "sim" / "hello_put" / "run.pcapng").exists()
    assert "capture" not in capsys.readouterr().out
    base.append("--pcap")
    assert sim.main(base) == 0
    path = folder / "sim" / "hello_put" / "run.pcapng"
    _, packets = capture.read_pcapng(path)
    assert [p.interface for p in packets] == [0, 1]
    assert f"\ncapture: 2 packets in {path}\n" in capsys.readouterr().out
    first, last = (p.ns for p in packets)
    for window, count in ((f"0:{first}", 1), (f"{first + 1}:{last}", 1), (f"0:{first - 1}", 0)):
        assert sim.main([*base, "--window", window]) == 0
        assert len(capture.read_pcapng(path)[1]) == count
        assert f"\ncapture: {count} packets in {path}\n" in capsys.readouterr().out
    # without one, the next run says nothing of it
    assert sim.main(base[:-1]) == 0
    assert "capture" not in capsys.readouterr().out


def test_camhil_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`camhil run --on rtl --pcap [FILE]`; a file that cannot be written is one line before anything runs."""
    config = RunConfig(str(sim.PROGRAMS / "hello_put.py"), pes=2, on="rtl", seed=1)
    for pcap, path in (("", folder / "run" / "hello_put" / "run.pcapng"), (str(folder / "a"), folder / "a")):
        assert sim.run_rtl(config, pcap) == 0
        assert len(capture.read_pcapng(path)[1]) == 2
        assert f"capture: 2 packets in {path}\n" in capsys.readouterr().out
    assert sim.run_rtl(config, str(folder / "no" / "such")) == 2
    seen = capsys.readouterr()
    assert (
        seen.out == "" and seen.err == f"camhil: cannot write '{folder}/no/such': No such file or directory\n"
    )


def test_a_failed_run_leaves_its_capture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The packets up to the failure are what one wants to see then."""
    program = folder / "bad.py"
    program.write_text(
        "async def main(pe):\n"
        "    a, b = pe.alloc(64), pe.alloc(64)\n"
        "    await pe.put_nbi(b, a, 64, 1 - pe.rank)\n"
        "    await pe.quiet(1 - pe.rank)\n"
        "    assert pe.rank == 0, 'planted'\n"
    )
    assert sim.run_rtl(RunConfig(str(program), pes=2, on="rtl", seed=1), "") == 1
    path = folder / "run" / "bad" / "run.pcapng"
    count = len(capture.read_pcapng(path)[1])
    assert 2 <= count <= 4
    seen = capsys.readouterr()
    assert f"capture: {count} packets in {path}\n" in seen.out and "planted" in seen.err
