"""Frames that nobody should send, to QPs in every state: nothing is written that a legal one would not write.

Sweep: all 256 opcodes with a good ICRC, with and without payload; every header field (MAC to BTH and RETH) at
values off by one, zero and all ones; lengths from a runt to beyond the largest MTU; PSNs around the expected
one and half a circle away; random flips in legal frames with IPv4 checksum and ICRC made good again, or not.
QPs idle, in the middle of a message, with a READ outstanding, in ERR, in RESET; unknown QPs by the fields.
Stimulus: frames into the port of NIC 0, one for each of its QPs at a time, at line rate. Checks: the judge's
(answers, counters, memory, QP states); after each storm every QP is set again and carries good traffic.
Timing: none. Not proved: junk between the packets of two NICs that both work (test_flood.py).
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import cocotb
import pytest

from pymodel.device import Pe
from pymodel.formats import packet
from pymodel.formats.packet import Bth
from pymodel.host.table import Fabric, FabricConfig
from pymodel.nic.context import CmdObj, CmdOp
from pymodel.nic.params import Cnt
from tests.nic.raw import RawQp, renew
from tests.nic.stage import DEPTH, READS, WRITES, Stage, any_good, local

PES = 2
QPS = 24
MTU = 256
STATES = ("idle", "message", "reading", "error", "reset")
#: offsets in a frame
IP, UDP, BTH, EXT = 14, 34, 42, 54
#: (offset, bytes) of header fields
FIELDS = {
    "destination MAC": (0, 6), "EtherType": (12, 2), "version and IHL": (IP, 1), "TOS": (IP + 1, 1),
    "IP length": (IP + 2, 2), "fragment": (IP + 6, 2), "TTL": (IP + 8, 1), "protocol": (IP + 9, 1),
    "IP checksum": (IP + 10, 2), "source IP": (IP + 12, 4), "destination IP": (IP + 16, 4),
    "UDP source": (UDP, 2), "UDP port": (UDP + 2, 2), "UDP length": (UDP + 4, 2),
    "UDP checksum": (UDP + 6, 2),
    "opcode": (BTH, 1), "SE, pad, TVer": (BTH + 1, 1), "P_Key": (BTH + 2, 2), "reserved": (BTH + 4, 1),
    "QP": (BTH + 5, 3), "AckReq": (BTH + 8, 1), "PSN": (BTH + 9, 3), "VA": (EXT, 8), "key": (EXT + 8, 4),
    "DMA length": (EXT + 12, 4),
}  # fmt: skip
PATIENCE = 100_000


def seal(frame: bytes, checksum: bool = True) -> bytes:
    """The frame with its ICRC, and IPv4 checksum, made good for what it says (wire pages 1 and 4)."""
    data = bytearray(frame)
    if len(data) < EXT + 4:
        return bytes(data)
    if checksum:
        data[IP + 10 : IP + 12] = bytes(2)
        words = sum(struct.unpack(">10H", data[IP : IP + 20]))
        words = (words & 0xFFFF) + (words >> 16)
        struct.pack_into(">H", data, IP + 10, ~((words & 0xFFFF) + (words >> 16)) & 0xFFFF)
    masked = bytearray(b"\xff" * 8 + data[IP:-4])
    for at in (1, 8, 10, 11, 26, 27, 32):  # TOS, TTL, checksums, the fifth byte of the BTH
        masked[8 + at] = 0xFF
    data[-4:] = struct.pack("<I", zlib.crc32(masked))
    return bytes(data)


class Storm:
    """QPs of both NICs in a chosen state, and frames to those of NIC 0."""

    def __init__(self, dut: Any) -> None:
        self.rng = random.Random(f"fuzz {cocotb.RANDOM_SEED}")
        ends = {
            (pe, 1 - pe, q): {"sq_depth": DEPTH, "cq_depth": DEPTH, "timer": 0}
            for pe in range(PES)
            for q in range(QPS)
        }
        config = FabricConfig.mixed(
            PES, QPS, self.rng.getrandbits(31), heap_bytes=32 << 20, mtus=(MTU,), overrides=ends
        )
        self.stage = Stage(dut, Fabric.build(config), ())
        #: PSN that NIC 0 expects on each QP, as set last
        self.psn: list[int] = []

    async def start(self) -> None:
        """Bring-up."""
        await self.stage.start()
        self.qps = [self.stage.ends[0, 1, q] for q in range(QPS)]
        self.psn = [qp.plan.rq_psn for qp in self.qps]

    def legal(self, q: int, opcode: int, payload: int = 64, **changes: Any) -> bytes:
        """A frame that NIC 1 could have sent to QP q of NIC 0: to the QP's window, at the expected PSN."""
        mine, peer = self.stage.rig.fabric.pes
        qp = self.qps[q]
        fields = {
            "dst_mac": mine.mac, "src_mac": peer.mac, "dst_ip": mine.ip, "src_ip": peer.ip,
            "psn": self.psn[q], "udp_sport": 0xC000, "dest_qp": qp.plan.qpn, "opcode": opcode,
            "ackreq": 1, "syndrome": 0x1F,
            "msn": 0, "va": local(qp, WRITES), "rkey": mine.heap_rkey, "dma_len": payload,
        }  # fmt: skip
        return packet.frame({**fields, **changes}, self.rng.randbytes(payload))

    async def put(self, state: str) -> None:
        """Bring all QPs of NIC 0 into a state."""
        rig = self.stage.rig
        if state == "message":
            for q in range(QPS):
                rig.lib.inject(0, self.legal(q, Bth.WRITE_FIRST, MTU, dma_len=3 * MTU))
                self.psn[q] = (self.psn[q] + 1) & 0xFF_FFFF
        elif state == "error":
            for q in range(QPS):
                rig.lib.inject(0, self.legal(q, Bth.WRITE_MIDDLE, MTU))
        elif state == "reset":
            for qp in self.qps:
                code = await self.stage.console[0].command(CmdOp.RESET, CmdObj.QP, qp.plan.qpn)
                assert code == 0
        elif state == "reading":
            # the requests never arrive: what is forged is all that comes
            rig.lib.set_faults("direction 0->1 opcode read_request: drop")

            async def main(pe: Pe) -> None:
                if pe.rank == 0:
                    for qp in self.qps:
                        await qp.post(qp.read(3 * MTU, 0, laddr=local(qp, READS)))

            await rig.run(main)
        await rig.settle()
        rig.lib.set_faults([])

    async def blow(self, state: str, frames: list[bytes]) -> None:
        """One frame to each QP, in this state; then all QPs are set again."""
        await self.put(state)
        for frame in frames:
            self.stage.rig.lib.inject(0, frame)
        await self.calm()

    async def calm(self) -> None:
        """Nothing moves any more; every QP pair starts a new life; the judge has nothing to say."""
        rig = self.stage.rig
        await rig.settle()
        assert rig.judge is not None
        # after each storm, so that a wrong count is found where it happens
        rig.judge.check_counters(0, await rig.counters(0))
        for q, qp in enumerate(self.qps):
            psns = self.rng.getrandbits(24), self.rng.getrandbits(24)
            await renew(rig, qp, self.stage.ends[1, 0, q], psns, cqs=True)
            self.psn[q] = psns[1]
        if rig.judge.findings:
            raise AssertionError(rig.judge.findings[0].render())

    async def finish(self) -> None:
        """Good traffic both ways on every QP, and the closing checks."""

        async def traffic(qp: RawQp) -> None:
            await qp.post(*[any_good(qp, self.rng) for _ in range(DEPTH // 2)])
            found = await qp.collect(DEPTH // 2, PATIENCE)
            assert not found["error_code"].any(), f"QPN {qp.plan.qpn}: {found['error_code']}"

        async def main(pe: Pe) -> None:
            mine = [qp for key, qp in self.stage.ends.items() if key[0] == pe.rank]
            for task in [await pe.spawn(traffic(qp), f"QPN {qp.plan.qpn}") for qp in mine]:
                await pe.join(task)

        await self.stage.rig.check(await self.stage.rig.run(main))


def batches(items: list[Any]) -> Iterator[list[Any]]:
    """As many at a time as there are QPs."""
    for start in range(0, len(items), QPS):
        yield items[start : start + QPS]


@cocotb.test()
@cocotb.parametrize(state=["idle", "message", "reading", "error", "reset"])
async def test_opcodes(dut, state: str) -> None:
    """Every opcode, once as a frame of a legal kind would look, once with payload where it has none."""
    storm = Storm(dut)
    await storm.start()
    for payload in (0, 64):
        for some in batches(list(range(256))):
            await storm.put(state)
            for q, opcode in enumerate(some):
                base = bytearray(storm.legal(q, Bth.WRITE_ONLY, payload))
                base[BTH] = opcode
                storm.stage.rig.lib.inject(0, seal(bytes(base)))
            await storm.calm()
    await storm.finish()


@cocotb.test()
@cocotb.parametrize(state=["idle", "message", "reading", "error", "reset"])
async def test_fields(dut, state: str) -> None:
    """Every header field at other values, with checksum and ICRC that fit, and ones that do not."""
    storm = Storm(dut)
    await storm.start()
    kinds = [Bth.WRITE_ONLY, Bth.READ_REQUEST, Bth.FETCH_ADD, Bth.ACK, Bth.READ_ONLY]
    cases = [
        (field, value, fits)
        for field in FIELDS
        for value in ("zero", "ones", "more", "less", "top")
        for fits in (True, False)
    ]
    for some in batches(cases):
        await storm.put(state)
        for q, (field, value, fits) in enumerate(some):
            opcode = storm.rng.choice(kinds)
            data = bytearray(storm.legal(q, opcode, 64 if opcode in (Bth.WRITE_ONLY, Bth.READ_ONLY) else 0))
            at, size = FIELDS[field]
            old = int.from_bytes(data[at : at + size], "big")
            new = {"zero": 0, "ones": -1, "more": old + 1, "less": old - 1, "top": old ^ 1 << 8 * size - 1}[
                value
            ]
            data[at : at + size] = (new % (1 << 8 * size)).to_bytes(size, "big")
            frame = seal(bytes(data), checksum=field != "IP checksum") if fits else bytes(data)
            storm.stage.rig.lib.inject(0, frame)
            print("DBG", q, storm.qps[q].plan.qpn, field, value, fits, hex(opcode), frame[42:62].hex())
        print("DBG ----", storm.stage.rig.lib.cycle)
        await storm.calm()
    await storm.finish()


@cocotb.test()
@cocotb.parametrize(state=["idle", "message", "reading"])
async def test_lengths_and_psns(dut, state: str) -> None:
    """Runts, cut and padded frames, payloads beyond MTU and buffer; PSNs all around the circle."""
    storm = Storm(dut)
    await storm.start()
    sizes = [1, 13, 14, 33, 34, 41, 42, 53, 54, 57, 58, 59, 61, 62, 73, 74, 75]
    payloads = [0, 1, 3, MTU - 1, MTU, MTU + 1, 1024, 4095, 4096, 4097, 5000, 8192]
    steps = [-(1 << 23), -(1 << 23) + 1, -17, -2, -1, 1, 2, 17, (1 << 23) - 1, 1 << 22]
    requests = [
        Bth.WRITE_FIRST, Bth.WRITE_MIDDLE, Bth.WRITE_LAST, Bth.WRITE_ONLY, Bth.READ_REQUEST, Bth.FETCH_ADD,
        Bth.CMP_SWAP, Bth.MCAS64,
    ]  # fmt: skip
    frames: list[Any] = [lambda q, n=n: storm.legal(q, Bth.WRITE_ONLY, 64)[:n] for n in sizes]
    frames += [
        lambda q, o=o, n=n: storm.legal(q, o, n)
        for o in (Bth.WRITE_FIRST, Bth.WRITE_MIDDLE, Bth.WRITE_LAST, Bth.WRITE_ONLY, Bth.READ_ONLY)
        for n in payloads
    ]
    frames += [
        lambda q, o=o, s=s: storm.legal(
            q, o, MTU if o in (Bth.WRITE_FIRST, Bth.WRITE_MIDDLE) else 0, psn=(storm.psn[q] + s) % (1 << 24)
        )
        for o in (*requests, Bth.ACK, Bth.ATOMIC_ACK, Bth.READ_FIRST)
        for s in steps
    ]
    for some in batches(frames):
        await storm.put(state)
        for q, make in enumerate(some):
            storm.stage.rig.lib.inject(0, make(q))
        await storm.calm()
    await storm.finish()


@cocotb.test()
async def test_unrequested_responses(dut) -> None:
    """ACKs and data that nobody waits for, back to back: each is counted, also two in the same cycle."""
    storm = Storm(dut)
    await storm.start()
    kinds = [storm.rng.choice((Bth.ACK, Bth.READ_ONLY, Bth.ATOMIC_ACK)) for _ in range(6 * QPS)]
    for number, opcode in enumerate(kinds):
        storm.stage.rig.lib.inject(0, storm.legal(number % QPS, opcode, 0))
    await storm.stage.rig.settle()
    assert await storm.stage.console[0].counter(Cnt.DROP_RESPONSE) == len(kinds)
    await storm.calm()
    await storm.finish()


@cocotb.test()
@cocotb.parametrize(rounds=[8])
async def test_random(dut, rounds: int) -> None:
    """Random flips in legal frames of every kind, made good again or not, to QPs in a random state."""
    await flips(dut, rounds)


@cocotb.test()
@cocotb.parametrize(rounds=[200])
@pytest.mark.long
@pytest.mark.sim_timeout(1200)
async def test_random_long(dut, rounds: int) -> None:
    """The same for longer."""
    await flips(dut, rounds)


async def flips(dut: Any, rounds: int) -> None:
    """So many storms of random frames, several to each QP."""
    storm = Storm(dut)
    await storm.start()
    rng = storm.rng
    for _ in range(rounds):
        await storm.put(rng.choice(STATES))
        for _ in range(3):
            for q in range(QPS):
                opcode = int(rng.choice(list(Bth)))
                data = bytearray(storm.legal(q, opcode, rng.choice((0, 0, 8, 64, MTU))))
                for _ in range(rng.choice((0, 1, 1, 2, 5))):
                    at = rng.randrange(len(data))
                    data[at] ^= 1 << rng.randrange(8)
                if rng.random() < 0.15:
                    del data[rng.randrange(len(data)) :]
                if data:
                    storm.stage.rig.lib.inject(0, seal(bytes(data)) if rng.random() < 0.8 else bytes(data))
        await storm.calm()
    await storm.finish()
