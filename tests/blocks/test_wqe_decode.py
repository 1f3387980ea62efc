"""WQE decode (rtl/fetch/wqe_decode.sv) alone: formats, operands, ignored bits, checks and their order.

Sweep: both versions and all four settings of the parameters; the worked vectors of device.md 1.7; indices on
both sides of the wqe_id wrap (2^13, 2^17) and of the index wrap; every opcode 0..255 with and without
immediate; for each opcode that is built every single bit of every checked field, one defect at a time for
each check and every pair of defects; random operands, random WQEs with random ignored bits.
Stimulus: 80 bytes at the block's ports, encoded here by hand.
Checks: every decoded field, the operands as Python integers (device.md 1.5) and the error code against tables
written here from nic.md section 4, and for random WQEs against pymodel.nic.rules.wqe_check; a dirty WQE
decodes exactly like the clean one.
Timing: combinational, so none.
Not proved here: local key, right and range (a7) and READs that max_rd_atomic forbids (ab), which the transmit
scheduler judges.
"""

import random
from dataclasses import replace
from itertools import combinations

import cocotb
import numpy as np
from cocotb.triggers import Timer

from pymodel.formats import wqe as fmt
from pymodel.nic import params as golden
from pymodel.nic import rules
from tests.blocks.wqe_slot import (
    ATOMICS,
    BUILT,
    CAS64,
    FA64,
    MCAS64,
    OPERANDS,
    READ,
    SEND,
    WRITE,
    Wqe,
    dirt,
    legal,
    moved,
)

SOURCES = [
    "rtl/rnic_pkg.sv",
    "rtl/common/dp_pkg.sv",
    "rtl/requester/req_pkg.sv",
    "rtl/fetch/wqe_decode.sv",
    "tests/blocks/sv/wqe_decode_bench.sv",
]
BENCH = {
    name: {
        "top": "wqe_decode_bench",
        "sources": SOURCES,
        "params": {"AmoPlainLittle": plain_little, "AmoShiftedLen": shifted_len},
        "clock": None,
    }
    for name, plain_little, shifted_len in (
        ("plain", 0, 0),
        ("little", 1, 0),
        ("shifted", 0, 1),
        ("both", 1, 1),
    )
}

OK, LENGTH, FORMAT, BUS = 0x00, 0x9F, 0xAB, 0xAC
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
    "swap_add",
    "compare",
    "swap_mask",
    "compare_mask",
)


def knobs(dut) -> tuple[bool, bool]:
    """(little-endian operands of 26 and 27, shifted remote length of masked atomics) of this bench."""
    return bool(int(dut.plain_little_o.value)), bool(int(dut.shifted_len_o.value))


async def decode(dut, word: int, version: int, index: int, bus: bool = False) -> dict[str, int]:
    """Apply one slot; the decoded fields."""
    dut.data_i.value = word % (1 << 512)
    dut.ext_i.value = word >> 512
    dut.version2_i.value = version == 2
    dut.idx_i.value = index
    dut.bus_err_i.value = bus
    await Timer(1, "ns")
    return {name: int(getattr(dut, f"{name}_o").value) for name in FIELDS}


async def judge(dut, w: Wqe) -> int:
    """Error code of one WQE."""
    return (await decode(dut, w.encode(), w.version, w.index, w.bus))["err"]


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
            "swap_add": 0,
            "compare": 0,
            "swap_mask": 0,
            "compare_mask": 0,
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
    """SEND and WRITE with or without immediate, READ and atomics without; others end with a format error."""
    _, shifted = knobs(dut)
    for version in (1, 2):
        for op in range(256):
            for imm in (0, 1):
                w = replace(legal(op, version, 9, shifted), with_imm=imm)
                got = await decode(dut, w.encode(), version, 9)
                assert (got["opcode"], got["with_imm"]) == (op, imm)
                want = OK if op in (SEND, WRITE) or (op in BUILT and not imm) else FORMAT
                assert got["err"] == want, f"V{version} opcode {op} immediate {imm}: {got['err']:#x}"


@cocotb.test()
async def test_operands(dut):
    """Operands as integers: big-endian in the slot, 4-byte ones in the low halves, others zero."""
    rng = random.Random(cocotb.RANDOM_SEED)
    plain_little, shifted = knobs(dut)
    for version in (1, 2):
        for op, (names, size) in OPERANDS.items():
            for round_ in range(200):
                values = [rng.getrandbits(8 * size) for _ in names]
                if round_ < 8 * size:
                    values = [1 << round_] + [0] * (len(names) - 1)
                    rng.shuffle(values)
                order = "little" if plain_little and op in (CAS64, FA64) else "big"
                tail = b"".join(value.to_bytes(size, order) for value in values)
                w = replace(legal(op, version, 7, shifted), tail=tail, dirt=dirt(rng))
                got = await decode(dut, w.encode(), version, 7)
                want = dict.fromkeys(("swap_add", "compare", "swap_mask", "compare_mask"), 0)
                want |= {name: value for name, value in zip(names, values, strict=True) if name}
                seen = {name: got[name] for name in want}
                assert seen == want, f"V{version} opcode {op} tail {tail.hex()}: {seen}, expected {want}"
                assert (got["err"], got["len"]) == (OK, size), f"V{version} opcode {op}: {got}"


def defects(op: int) -> dict[str, tuple[dict[str, int], int]]:
    """name: (change, code), in the order of the checks (nic.md 4), for a legal WQE of opcode `op`.

    The opcode defect changes what the later checks ask for, which matters to nothing that comes after it.
    """
    long = 0x80000001
    w = legal(op)
    return {
        "bus": ({"bus": True}, BUS),
        "wqe_id": ({"id_error": 8}, FORMAT),
        "opcode": ({"op": 99}, FORMAT),
        **({} if op == WRITE else {"immediate": ({"with_imm": 1}, FORMAT)}),
        "in_line": ({"in_line": 1 - w.in_line}, FORMAT),
        "ds_data_num": ({"ds": 7 - w.ds}, FORMAT),
        "too long": ({"msg_len": long, "r_len": long, "l_len": long}, LENGTH),
        "remote length": ({"r_len": w.r_len ^ 8}, LENGTH),
        "local length": ({"l_len": w.l_len ^ 8}, LENGTH),
    }


@cocotb.test()
async def test_checks(dut):
    """Each defect alone gives its code, and of two the first in the order of the checks wins."""
    _, shifted = knobs(dut)
    for version in (1, 2):
        for op in BUILT:
            base = legal(op, version, shifted=shifted)
            tag = f"V{version} opcode {op}"
            assert await judge(dut, base) == OK, tag
            for name, (change, code) in defects(op).items():
                got = await judge(dut, replace(base, **change))
                assert got == code, f"{tag} {name}: {got:#x}, expected {code:#x}"
            for (name_a, (a, code)), (name_b, (b, _)) in combinations(defects(op).items(), 2):
                got = await judge(dut, replace(base, **(b | a)))
                assert got == code, f"{tag} {name_a} before {name_b}: {got:#x}, expected {code:#x}"
            for ds in range(32):
                got = await judge(dut, replace(base, ds=ds))
                assert got == (OK if ds == base.ds else FORMAT), f"{tag} ds {ds}: {got:#x}"


@cocotb.test()
async def test_lengths(dut):
    """Every wrong bit of every length; READ and WRITE take 0 to 2^31, atomics their own lengths only."""
    _, shifted = knobs(dut)
    for version in (1, 2):
        for op in BUILT:
            base = legal(op, version, shifted=shifted)
            for name in ("msg_len", "r_len", "l_len"):
                for bit in range(32):
                    w = replace(base, **{name: getattr(base, name) ^ 1 << bit})
                    got = await judge(dut, w)
                    # the lowest bit of a shifted length is reserved
                    free = shifted and op >= MCAS64 and name == "r_len" and bit == 0
                    assert got == (OK if free else LENGTH), (
                        f"V{version} opcode {op} {name} bit {bit}: {got:#x}"
                    )
            for length in (0, 1, 4, 8, 16, 32, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF):
                w = replace(base, msg_len=length, r_len=length, l_len=length)
                good = op not in ATOMICS and length <= 0x80000000
                got = await judge(dut, w)
                assert got == (OK if good else LENGTH), f"V{version} opcode {op} length {length:#x}: {got:#x}"


@cocotb.test()
async def test_bus_error_hides_the_wqe(dut):
    """A slot that could not be read gives neither opcode nor with_imm to its CQE (nic.md 6)."""
    for op in BUILT:
        got = await decode(dut, replace(legal(op), with_imm=1, imm=7).encode(), 2, 5, bus=True)
        assert (got["err"], got["opcode"], got["with_imm"]) == (BUS, 0, 0), got


@cocotb.test()
async def test_dirty(dut):
    """Ignored bits change nothing; se, fence_mode and ce are decoded; fence_mode 2 and 3 do not fence."""
    rng = random.Random(cocotb.RANDOM_SEED)
    plain_little, shifted = knobs(dut)
    for _ in range(2000):
        version, op = rng.choice((1, 2)), rng.choice(BUILT)
        length = rng.getrandbits(31)
        names, size = OPERANDS.get(op, ((), 0))
        values = [rng.getrandbits(8 * size) for _ in names]
        order = "little" if plain_little and op in (CAS64, FA64) else "big"
        index = rng.randrange(1 << (14 if version == 1 else 18))
        w = replace(
            legal(op, version, index, shifted, length),
            rkey=rng.getrandbits(32),
            lkey=rng.getrandbits(32),
            raddr=rng.getrandbits(64),
            laddr=rng.getrandbits(64),
            ce=rng.getrandbits(1),
            se=rng.getrandbits(1),
            fence=rng.getrandbits(2),
            tail=b"".join(value.to_bytes(size, order) for value in values),
        )
        clean = await decode(dut, w.encode(), version, w.index)
        soiled = await decode(dut, replace(w, dirt=dirt(rng)).encode(), version, w.index)
        assert clean == soiled, f"{w}: clean {clean}, dirty {soiled}"
        want = {
            "opcode": op,
            "ce": w.ce,
            "se": w.se,
            "with_imm": 0,
            "fence": int(w.fence == 1),
            "imm": 0,
            "len": moved(op, length),
            "raddr": w.raddr,
            "rkey": w.rkey,
            "laddr": w.laddr,
            "lkey": w.lkey,
            "idx": w.index,
            "err": OK,
            **dict.fromkeys(("swap_add", "compare", "swap_mask", "compare_mask"), 0),
            **{name: value for name, value in zip(names, values, strict=True) if name},
        }
        assert clean == want, f"{w}: {clean}"


@cocotb.test()
async def test_random_against_rules(dut):
    """Random WQEs, right and wrong in every field, have the error code of the golden rules."""
    rng = random.Random(cocotb.RANDOM_SEED)
    plain_little, shifted = knobs(dut)
    params = replace(golden.DEFAULT_PARAMS, shifted_remote_len=shifted)
    seen: set[int] = set()
    for version in (1, 2):
        words, indices, buses = [], [], []
        for _ in range(3000):
            length = rng.choice((0, 8, 16, 64, 0x80000000, 0x80000001, rng.getrandbits(32)))
            op = rng.choice((WRITE, READ, rng.choice(list(ATOMICS)), SEND, rng.getrandbits(8)))
            w = replace(
                legal(op, version, rng.randrange(1 << 14), shifted and rng.random() < 0.8, length),
                with_imm=int(rng.random() < 0.1),
                bus=rng.random() < 0.05,
                dirt=dirt(rng),
            )
            changes = (
                {},
                {},
                {"r_len": w.r_len ^ 4},
                {"l_len": w.l_len ^ 4},
                {"ds": rng.randrange(8)},
                {"in_line": 1 - w.in_line},
                {"msg_len": w.msg_len ^ 8},
                {"msg_len": length, "r_len": length, "l_len": length},
            )
            w = replace(w, **rng.choice(changes), id_error=rng.choice((0, 0, 0, 8)))
            words.append(w.encode())
            indices.append(w.index)
            buses.append(w.bus)
        slots = np.zeros((len(words), fmt.WQE_BYTES), np.uint8)
        slots[:, :80] = [np.frombuffer(word.to_bytes(80, "little"), np.uint8) for word in words]
        rows = fmt.unpack(slots, version, plain_little)
        want = rules.wqe_check(
            rows, np.array(indices), version, np.array(buses), supported=(SEND, *BUILT), params=params
        )
        for word, index, bus, code in zip(words, indices, buses, want, strict=True):
            got = (await decode(dut, word, version, index, bus))["err"]
            assert got == code, f"V{version} index {index} {word:#x}: {got:#x}, golden {int(code):#x}"
            seen.add(got)
    assert seen == {OK, LENGTH, FORMAT, BUS}, f"not all outcomes were reached: {seen}"
