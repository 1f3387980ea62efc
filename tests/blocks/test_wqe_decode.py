"""WQE decode (rtl/fetch/wqe_decode.sv) alone: formats V1 and V2, ignored bits, the checks and their order.

Sweep: both versions; the worked vectors of device.md 1.7; indices on both sides of the wqe_id wrap (2^13,
2^17) and of the index wrap; every opcode 0..255; one defect at a time for each check, and every pair of
defects; random WQEs with random ignored bits.
Stimulus: 64 bytes at the block's port, encoded here by hand.
Checks: every decoded field and the error code against tables written here from nic.md section 4, and for
random WQEs against pymodel.nic.rules.wqe_check; a dirty WQE decodes exactly like the clean one.
Timing: combinational, so none.
Not proved here: local key, right and range (a7), which the transmit scheduler judges; operands of atomics.
"""

import random
from dataclasses import dataclass, field, replace
from itertools import combinations

import cocotb
import numpy as np
from cocotb.triggers import Timer

from pymodel.formats import wqe as fmt
from pymodel.nic import rules

BENCH = {
    "top": "wqe_decode_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/requester/req_pkg.sv",
        "rtl/fetch/wqe_decode.sv",
        "tests/blocks/sv/wqe_decode_bench.sv",
    ],
    "clock": None,
}

OK, LENGTH, FORMAT, BUS = 0x00, 0x9F, 0xAB, 0xAC
WRITE, READ = 1, 2
ATOMICS = {26: (3, 16, 8), 27: (3, 16, 8), 31: (4, 32, 8), 32: (3, 16, 8), 33: (3, 16, 4), 34: (3, 8, 4)}
FIELDS = (
    "opcode",
    "ce",
    "se",
    "with_imm",
    "fence",
    "imm",
    "len",
    "raddr",
    "rkey",
    "laddr",
    "lkey",
    "idx",
    "err",
)


@dataclass
class Wqe:
    """What software posts; `id_error` is added to the right wqe_id."""

    version: int = 2
    index: int = 5
    op: int = WRITE
    ds: int = 2
    msg_len: int = 1024
    r_len: int = 1024
    l_len: int = 1024
    rkey: int = 0xA1A2A3A4
    lkey: int = 0xB1B2B3B4
    raddr: int = 0x1122334455667788
    laddr: int = 0x0000012345678000
    in_line: int = 0
    with_imm: int = 0
    imm: int = 0
    ce: int = 1
    se: int = 0
    fence: int = 0
    id_error: int = 0
    bus: bool = False
    dirt: dict[str, int] = field(default_factory=dict)

    def encode(self) -> int:
        """First 64 bytes as an integer, byte 0 lowest; bit numbers of device.md 1.2, by hand."""
        dirt = self.dirt
        word = self.op | self.with_imm << 8 | dirt.get("csum_en", 0) << 9 | self.ds << 11 | self.msg_len << 32
        word |= (self.imm if self.with_imm else dirt.get("imm", 0)) << 64
        word |= (
            self.se << 96 | self.ce << 97 | self.in_line << 98 | self.fence << 99 | dirt.get("mask", 0) << 101
        )
        wqe_id = self.index * 8 + self.id_error
        if self.version == 1:
            word |= wqe_id % (1 << 16) << 16 | dirt.get("rsv", 0) % (1 << 25) << 103
        else:
            word |= (
                wqe_id % (1 << 20) << 108 | dirt.get("rsv1", 0) << 16 | dirt.get("rsv", 0) % (1 << 5) << 103
            )
        word |= (self.r_len | self.rkey << 32 | self.raddr << 64) << 128
        word |= (self.l_len | self.lkey << 32 | self.laddr << 64) << 256
        return word | dirt.get("tail", 0) << 384


async def decode(dut, word: int, version: int, index: int, bus: bool = False) -> dict[str, int]:
    """Apply one slot; the decoded fields."""
    dut.data_i.value = word
    dut.version2_i.value = version == 2
    dut.idx_i.value = index
    dut.bus_err_i.value = bus
    await Timer(1, "ns")
    return {name: int(getattr(dut, f"{name}_o").value) for name in FIELDS}


async def judge(dut, w: Wqe) -> int:
    """Error code of one WQE."""
    return (await decode(dut, w.encode(), w.version, w.index, w.bus))["err"]


def dirt(rng: random.Random) -> dict[str, int]:
    """Random values for everything that the NIC ignores (nic.md 4, device.md 1.6)."""
    bits = {"csum_en": 2, "imm": 32, "mask": 2, "rsv": 25, "rsv1": 16, "tail": 128}
    return {name: rng.getrandbits(width) for name, width in bits.items()}


@cocotb.test()
async def test_worked_vectors(dut):
    """The bytes of device.md 1.7 decode to the fields that they were made from."""
    write2 = (
        "01100000 00040000 00000000 02800200 00040000 a4a3a2a1 88776655 44332211 "
        "00040000 b4b3b2b1 00806745 23010000"
    )
    write1 = write2.replace("01100000", "01102800", 1).replace("02800200", "02000000", 1)
    for version, text in ((2, write2), (1, write1)):
        got = await decode(dut, int.from_bytes(bytes.fromhex(text.replace(" ", "")), "little"), version, 5)
        assert got == {
            "opcode": 1,
            "ce": 1,
            "se": 0,
            "with_imm": 0,
            "fence": 0,
            "imm": 0,
            "len": 1024,
            "raddr": 0x1122334455667788,
            "rkey": 0xA1A2A3A4,
            "laddr": 0x12345678000,
            "lkey": 0xB1B2B3B4,
            "idx": 5,
            "err": OK,
        }, f"V{version}: {got}"


@cocotb.test()
async def test_index(dut):
    """wqe_id is the index times 8 in 16 or 20 bits; any other value is a format error."""
    rng = random.Random(cocotb.RANDOM_SEED)
    for version, width, id_width in ((1, 14, 16), (2, 18, 20)):
        edges = {0, 1, (1 << id_width - 3) - 1, 1 << id_width - 3, (1 << width) - 1}
        for index in edges | {rng.randrange(1 << width) for _ in range(20)}:
            got = await decode(dut, Wqe(version, index).encode(), version, index)
            assert (got["err"], got["idx"]) == (OK, index), f"V{version} index {index}: {got}"
            for bit in range(id_width):
                code = await judge(dut, Wqe(version, index, id_error=1 << bit))
                assert code == FORMAT, f"V{version} index {index}: wqe_id off by 2^{bit} gave {code:#x}"


@cocotb.test()
async def test_opcodes(dut):
    """Of all opcodes only the WRITE is executed; the others end with a format error and keep their opcode."""
    for version in (1, 2):
        for op in range(256):
            ds, msg, size = ATOMICS.get(op, (1 if op == 0 else 2, 64, 64))
            w = Wqe(version, 9, op, ds, msg, size, size, in_line=op in ATOMICS)
            got = await decode(dut, w.encode(), version, 9)
            assert got["opcode"] == op
            assert got["err"] == (OK if op == WRITE else FORMAT), f"V{version} opcode {op}: {got['err']:#x}"


DEFECTS = {
    # name: (change, code), in the order of the checks (nic.md 4)
    "bus": ({"bus": True}, BUS),
    "wqe_id": ({"id_error": 8}, FORMAT),
    "opcode": ({"op": 99}, FORMAT),
    "immediate": ({"with_imm": 1}, FORMAT),
    "in_line": ({"in_line": 1}, FORMAT),
    "ds_data_num": ({"ds": 3}, FORMAT),
    "too long": ({"msg_len": 0x80000001, "r_len": 0x80000001, "l_len": 0x80000001}, LENGTH),
    "remote length": ({"r_len": 1023}, LENGTH),
    "local length": ({"l_len": 1025}, LENGTH),
}


@cocotb.test()
async def test_checks(dut):
    """Each defect alone gives its code, and of two the first in the order of the checks wins."""
    for version in (1, 2):
        assert await judge(dut, Wqe(version)) == OK
        for name, (change, code) in DEFECTS.items():
            got = await judge(dut, replace(Wqe(version), **change))
            assert got == code, f"V{version} {name}: {got:#x}, expected {code:#x}"
        for (name_a, (a, code)), (name_b, (b, _)) in combinations(DEFECTS.items(), 2):
            got = await judge(dut, replace(Wqe(version), **(b | a)))
            assert got == code, f"V{version} {name_a} before {name_b}: {got:#x}, expected {code:#x}"
        for length in (0, 1, 0x7FFFFFFF, 0x80000000):
            w = Wqe(version, msg_len=length, r_len=length, l_len=length)
            assert await judge(dut, w) == OK, f"V{version} length {length:#x}"
        for ds in range(32):
            assert await judge(dut, Wqe(version, ds=ds)) == (OK if ds == 2 else FORMAT), f"V{version} ds {ds}"


@cocotb.test()
async def test_bus_error_hides_the_wqe(dut):
    """A slot that could not be read gives neither opcode nor with_imm to its CQE (nic.md 6)."""
    got = await decode(dut, Wqe(2, 5, READ, with_imm=1, imm=7).encode(), 2, 5, bus=True)
    assert (got["err"], got["opcode"], got["with_imm"]) == (BUS, 0, 0), got


@cocotb.test()
async def test_dirty(dut):
    """Ignored bits change nothing; se, fence_mode and ce are decoded; fence_mode 2 and 3 do not fence."""
    rng = random.Random(cocotb.RANDOM_SEED)
    for _ in range(2000):
        version = rng.choice((1, 2))
        length = rng.getrandbits(31)
        w = Wqe(
            version,
            rng.randrange(1 << (14 if version == 1 else 18)),
            msg_len=length,
            r_len=length,
            l_len=length,
            rkey=rng.getrandbits(32),
            lkey=rng.getrandbits(32),
            raddr=rng.getrandbits(64),
            laddr=rng.getrandbits(64),
            ce=rng.getrandbits(1),
            se=rng.getrandbits(1),
            fence=rng.getrandbits(2),
        )
        clean = await decode(dut, w.encode(), version, w.index)
        soiled = await decode(dut, replace(w, dirt=dirt(rng)).encode(), version, w.index)
        assert clean == soiled, f"{w}: clean {clean}, dirty {soiled}"
        want = {
            "opcode": WRITE,
            "ce": w.ce,
            "se": w.se,
            "with_imm": 0,
            "fence": int(w.fence == 1),
            "imm": 0,
            "len": length,
            "raddr": w.raddr,
            "rkey": w.rkey,
            "laddr": w.laddr,
            "lkey": w.lkey,
            "idx": w.index,
            "err": OK,
        }
        assert clean == want, f"{w}: {clean}"


@cocotb.test()
async def test_random_against_rules(dut):
    """Random WQEs, right and wrong in every field, have the error code of the golden rules."""
    rng = random.Random(cocotb.RANDOM_SEED)
    seen: set[int] = set()
    for version in (1, 2):
        words, indices, buses = [], [], []
        for _ in range(3000):
            length = rng.choice((0, 8, 16, 64, 0x80000000, 0x80000001, rng.getrandbits(32)))
            op = rng.choice((WRITE, WRITE, WRITE, READ, 0, rng.choice(list(ATOMICS)), rng.getrandbits(8)))
            w = Wqe(
                version,
                rng.randrange(1 << 14),
                op,
                2,
                length,
                length,
                length,
                with_imm=int(rng.random() < 0.1),
                in_line=int((op in ATOMICS) ^ (rng.random() < 0.1)),
                bus=rng.random() < 0.05,
                dirt=dirt(rng),
            )
            if op in ATOMICS and rng.random() < 0.5:
                ds, message, size = ATOMICS[op]
                w = replace(w, ds=ds, msg_len=message, r_len=size, l_len=size)
            change = rng.choice(
                ({}, {}, {"r_len": length ^ 4}, {"l_len": length ^ 4}, {"ds": rng.randrange(8)})
            )
            w = replace(w, **change, id_error=rng.choice((0, 0, 0, 8)))
            words.append(w.encode())
            indices.append(w.index)
            buses.append(w.bus)
        slots = np.zeros((len(words), fmt.WQE_BYTES), np.uint8)
        slots[:, :64] = [np.frombuffer(word.to_bytes(64, "little"), np.uint8) for word in words]
        want = rules.wqe_check(fmt.unpack(slots, version), np.array(indices), version, np.array(buses))
        for word, index, bus, code in zip(words, indices, buses, want, strict=True):
            got = (await decode(dut, word, version, index, bus))["err"]
            assert got == code, f"V{version} index {index} {word:#x}: {got:#x}, golden {int(code):#x}"
            seen.add(got)
    assert seen == {OK, LENGTH, FORMAT, BUS}, f"not all outcomes were reached: {seen}"
