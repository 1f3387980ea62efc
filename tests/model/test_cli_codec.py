"""`camhil decode` and `camhil encode`.

Sweep: WQE, CQE, doorbells and frames of every kind in both versions, all operations of the device API at
both sizes, each kind of bad input; stimulus: the worked vectors of device.md, hypothesis for values and for
nonsense. Checks: bytes and tables typed in from device.md and wire.md, the effect of each atomic's operands
against plain Python, zlib's CRC, and for every input either an answer or exit code 2 with exactly one line on
stderr. Timing: none. Does not prove that device or NIC use these formats (test_device, test_formats_*).
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel import cli
from pymodel.cli_decode import decode_cqe, decode_recv_wqe, decode_wqe
from pymodel.cli_input import InputError
from pymodel.device import Pe
from pymodel.formats import cqe, packet, wqe
from pymodel.formats.cqe import CqeError
from pymodel.formats.error_codes import ERROR_NAMES, error_name, verbs_class
from pymodel.formats.packet import Bth, RxReason
from pymodel.formats.wqe import WQE_FIELDS, WqeOp
from pymodel.nic import rules
from tests.model.model_programs import model_run, only

ROOT = Path(__file__).parents[2]
SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=200)
ONES = {32: 0xFFFF_FFFF, 64: 0xFFFF_FFFF_FFFF_FFFF}


def call(args: list[str], stdin: bytes = b"") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command in this process."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = cli.main(args)
            except SystemExit as stop:
                code = int(stop.code or 0)
    finally:
        sys.stdin = before
    return code, out.getvalue(), err.getvalue()


def good(args: list[str], stdin: bytes = b"") -> str:
    """What the command prints; it must be good."""
    code, out, err = call(args, stdin)
    assert (code, err) == (0, ""), (args, err)
    return out


def decoded(kind: str, hexa: str, version: int = 2) -> dict[str, Any]:
    """The JSON object that `decode` prints."""
    out: dict[str, Any] = json.loads(good(["decode", kind, hexa, "--version", str(version), "--json"]))
    return out


def encoded(objects: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The JSON list that `encode` prints for these."""
    out: list[dict[str, str]] = json.loads(good(["encode", "--json", "-"], json.dumps(objects).encode()))
    return out


# ---------------------------------------------------------------------------------- worked vectors

RKEY, RVA, LKEY, AMO_LKEY, LVA = 0xA1A2A3A4, 0x1122334455667788, 0xB1B2B3B4, 0xC1C2C3C4, 0x0000_0123_4567_8000
DATA = {"version": 2, "wqn": 0x2A, "rkey": RKEY, "lkey": LKEY, "remote_addr": RVA, "local_addr": LVA}
ATOMIC = {**DATA, "lkey": AMO_LKEY, "head": 7}
ADD = 0x0102030405060708
SEGMENTS = "{0} a4a3a2a1 88776655 44332211 {0} {1} 00806745 23010000"
# device.md 1.7: object, {byte offset: bytes as printed there}
VECTORS: dict[str, tuple[dict[str, Any], dict[int, str]]] = {
    "write_v2": ({**DATA, "op": "put", "head": 5, "length": 1024},
                 {0: "01100000 00040000 00000000 02800200", 16: SEGMENTS.format("00040000", "b4b3b2b1")}),
    "write_v1": ({**DATA, "op": "put", "version": 1, "head": 5, "length": 1024},
                 {0: "01102800 00040000 00000000 02000000", 16: SEGMENTS.format("00040000", "b4b3b2b1")}),
    "read_131071": ({**DATA, "op": "get", "head": 131071, "length": 64},
                    {0: "02100000 40000000 00000000 0280ffff"}),
    "read_131072": ({**DATA, "op": "get", "head": 131072, "length": 64},
                    {0: "02100000 40000000 00000000 02000000"}),
    "fa64": ({**ATOMIC, "op": "fetch_add", "bits": 64, "value": ADD},
             {0: "1b180000 10000000 00000000 06800300", 16: SEGMENTS.format("08000000", "c4c3c2c1"),
              48: "01020304 05060708 00000000 00000000"}),
    "fa64_masked": ({**ATOMIC, "op": "xor", "bits": 64, "value": ADD},
                    {0: "20180000 10000000 00000000 06800300", 48: "01020304 05060708 ffffffff ffffffff"}),
    "fa32_masked": ({**ATOMIC, "op": "fetch_xor", "bits": 32, "value": 0x01020304},
                    {0: "22180000 08000000 00000000 06800300", 16: SEGMENTS.format("04000000", "c4c3c2c1"),
                     48: "01020304 ffffffff 00000000 00000000"}),
    "cas64": ({**ATOMIC, "op": "compare_swap", "bits": 64, "value": ADD, "cond": 0x1112131415161718},
              {0: "1a180000 10000000 00000000 06800300", 48: "01020304 05060708 11121314 15161718"}),
    "cas64_masked": ({**ATOMIC, "op": "set", "bits": 64, "value": ADD},
                     {0: "1f200000 20000000 00000000 06800300", 48: "01020304 05060708 00000000 00000000",
                      64: "ffffffff ffffffff 00000000 00000000"}),
    "cas32_masked": ({**ATOMIC, "op": "compare_swap", "bits": 32, "value": 0x01020304, "cond": 0x11121314},
                     {0: "21180000 10000000 00000000 06800300", 48: "01020304 11121314 ffffffff ffffffff"}),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_worked_wqes(name: str) -> None:
    """device.md 1.7, both ways; what is not printed there is 0 or follows from the object."""
    item, parts = VECTORS[name]
    (out,) = encoded([item])
    raw = bytes.fromhex(out["wqe"])
    assert len(out["wqe"]) == 256 and len(raw) == 128
    for offset, text in parts.items():
        want = bytes.fromhex(text)
        assert raw[offset : offset + len(want)].hex() == want.hex(), offset
    assert not any(raw[80 if name == "cas64_masked" else 64 :])
    back = decoded("wqe", out["wqe"], item["version"])
    assert back["checks"] == []
    assert (back["rkey"], back["lkey"], back["remote_addr"], back["local_addr"]) == (
        RKEY, item["lkey"], RVA, LVA,
    )  # fmt: skip
    assert back["index"] == item["head"] % (8192 if item["version"] == 1 else 131072)


def test_worked_cqes() -> None:
    """device.md 2.1: the good one and the one with an error on the second pass; V1's own places."""
    v2 = "002a0000 00000000 00040000 00000000 00000000 00000000 01800200 00000000"
    for padding in ("", "00" * 32):
        seen = decoded("cqe", v2 + padding)
        want = {"error_code": 0, "error": "OK", "qp_id": 0x2A, "msg_opcode": 1, "op": "WRITE", "wqe_id": 40}
        want |= {"index": 5, "msg_len": 1024, "owner": 0, "type": 0}
        assert {name: seen[name] for name in want} == want
    seen = decoded("cqe", v2.replace("002a", "a52a", 1)[:-8] + "00000080")
    assert (seen["error"], seen["verbs_class"], seen["owner"]) == ("NAK_MR", "REM_ACCESS", 1)
    v1 = "ff2a0000 00000000 00000000 00000000 efbeadde 34122800 00000000 00000080"
    seen = decoded("cqe", v1, 1)
    assert (seen["wqe_id"], seen["index"], seen["ts"], seen["owner"]) == (40, 5, 0x1234DEADBEEF, 1)
    assert (seen["error"], seen["verbs_class"]) == ("FLUSH", "WR_FLUSH")


@pytest.mark.parametrize(
    ("version", "head", "number"),
    [(2, 1, 0x05400008), (2, 6, 0x05400030), (2, 262143, 0x055FFFF8), (2, 262144, 0x05400000),
     (1, 1, 0x00540008), (1, 16383, 0x0055FFF8), (1, 16384, 0x00540000)],
)  # fmt: skip
def test_worked_sq_doorbells(version: int, head: int, number: int) -> None:
    """device.md 3.1, both ways, in each way a number may be written."""
    (out,) = encoded([{**DATA, "op": "get", "version": version, "head": head - 1, "length": 1}])
    assert out["sq_doorbell"] == f"0x{number:016x}"
    span = 1 << 18 if version == 2 else 1 << 14
    for text in (
        out["sq_doorbell"],
        hex(number),
        f"{number:08x}",
        f"{number >> 16:04X} {number & 0xFFFF:04X}",
    ):
        seen = decoded("sq-doorbell", text, version)
        want = {"qp_id": 0x2A, "head": head % span, "next_pid": head % span * 8, "rest": 0}
        assert {name: seen[name] for name in want} == want


def test_worked_cq_doorbells() -> None:
    """device.md 3.1."""
    for number, sta in ((0x0A800006, 0), (0x800A800006, 1)):
        for version in (1, 2):
            seen = decoded("cq-doorbell", hex(number), version)
            want = {"next_cid": 6, "cq_id": 0x15, "cq_sta": sta, "rest": 0}
            assert {name: seen[name] for name in want} == want
    seen = decoded("cq-doorbell", "f" * 16)
    assert [seen[n] for n in ("next_cid", "cq_id", "cq_sta", "rest")] == [
        (1 << 23) - 1,
        0xFFFF,
        3,
        (1 << 23) - 1,
    ]


# -------------------------------------------------------------------------- the device API's table

# device.md 5.3: operation -> (opcode of 4 bytes, of 8, operands from value v, condition c, all-ones o)
TABLE: dict[str, tuple[int, int, Any]] = {
    "fetch": (34, 32, lambda v, c, o: {"add": 0, "boundary": 0}),
    "set": (33, 31, lambda v, c, o: {"swap": v, "compare": 0, "swap_mask": o, "compare_mask": 0}),
    "swap": (33, 31, lambda v, c, o: {"swap": v, "compare": 0, "swap_mask": o, "compare_mask": 0}),
    "add": (34, 32, lambda v, c, o: {"add": v, "boundary": 0}),
    "inc": (34, 32, lambda v, c, o: {"add": 1, "boundary": 0}),
    "fetch_add": (34, 27, lambda v, c, o: {"add": v, "boundary": 0}),
    "fetch_inc": (34, 27, lambda v, c, o: {"add": 1, "boundary": 0}),
    "and": (33, 31, lambda v, c, o: {"swap": v, "compare": 0, "swap_mask": v ^ o, "compare_mask": 0}),
    "fetch_and": (33, 31, lambda v, c, o: {"swap": v, "compare": 0, "swap_mask": v ^ o, "compare_mask": 0}),
    "or": (33, 31, lambda v, c, o: {"swap": v, "compare": 0, "swap_mask": v, "compare_mask": 0}),
    "fetch_or": (33, 31, lambda v, c, o: {"swap": v, "compare": 0, "swap_mask": v, "compare_mask": 0}),
    "xor": (34, 32, lambda v, c, o: {"add": v, "boundary": o}),
    "fetch_xor": (34, 32, lambda v, c, o: {"add": v, "boundary": o}),
    "compare_swap": (33, 26, lambda v, c, o: {"swap": v, "compare": c, "swap_mask": o, "compare_mask": o}),
}
#: what each operation does to memory
EFFECT: dict[str, Any] = {
    "fetch": lambda old, v, c: old, "set": lambda old, v, c: v, "swap": lambda old, v, c: v,
    "add": lambda old, v, c: old + v, "inc": lambda old, v, c: old + 1,
    "fetch_add": lambda old, v, c: old + v,
    "fetch_inc": lambda old, v, c: old + 1, "and": lambda old, v, c: old & v, "or": lambda old, v, c: old | v,
    "xor": lambda old, v, c: old ^ v, "fetch_and": lambda old, v, c: old & v,
    "fetch_or": lambda old, v, c: old | v, "fetch_xor": lambda old, v, c: old ^ v,
    "compare_swap": lambda old, v, c: v if old == c else old,
}  # fmt: skip


def apply(seen: Mapping[str, Any], old: int, bits: int) -> int:
    """What a NIC makes of the word for a decoded atomic (device.md 1.5), bit by bit."""
    ones = ONES[bits]
    if "add" in seen:
        new = carry = 0
        for i in range(bits):
            total = (old >> i & 1) + (seen["add"] >> i & 1) + carry
            new |= (total & 1) << i
            # a set boundary bit is the top of its field: its carry is dropped
            carry = 0 if seen["boundary"] >> i & 1 else total >> 1
        return new
    if (old ^ seen["compare"]) & seen.get("compare_mask", ones):
        return old
    mask = seen.get("swap_mask", ones)
    return old & ~mask | seen["swap"] & mask


def word(bits: int) -> st.SearchStrategy[int]:
    """A value as an object may give it: signed, unsigned, corners."""
    corners = st.sampled_from([0, 1, -1, -(1 << bits - 1), (1 << bits - 1) - 1, 1 << bits - 1, ONES[bits]])
    return corners | st.integers(-(1 << bits - 1), ONES[bits])


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("op", TABLE)
def test_every_atomic(op: str, bits: int) -> None:
    """Opcode, lengths and operands as the table has them, and the effect that its name promises."""

    @settings(SETTINGS, max_examples=50)
    @given(
        word(bits), word(bits), word(bits), st.integers(0, ONES[32]), st.sampled_from([1, 2]), st.booleans()
    )
    def check(value: int, cond: int, old: int, head: int, version: int, hexadecimal: bool) -> None:
        if bits == 32 and op == "compare_swap" and value % 7 == 0:
            cond = old
        show = hex if hexadecimal else int
        item = {**ATOMIC, "op": op, "version": version, "head": show(head), "bits": bits}
        item |= {"value": show(value), "cond": show(cond)}
        (out,) = encoded([item])
        seen = decoded("wqe", out["wqe"], version)
        v, c, o = value & ONES[bits], cond & ONES[bits], ONES[bits]
        small, large, operands = TABLE[op]
        code = small if bits == 32 else large
        want = {"msg_opcode": code, "in_line": 1, "ce": 1, "with_imm": 0, "fence_mode": 0, "se": 0}
        want |= {"ds_data_num": 4 if code == 31 else 3, "msg_len": {31: 32, 34: 8}.get(code, 16)}
        want |= {"remote_length": bits // 8, "local_length": bits // 8, "checks": []}
        want |= {"wqe_id": (head << 3) & (0xFFFF if version == 1 else 0xFFFFF)}
        want |= operands(v, c, o)
        if code == 26:
            del want["swap_mask"], want["compare_mask"]
        assert {name: seen[name] for name in want} == want
        assert apply(seen, old & o, bits) == EFFECT[op](old & o, v, c) & o
        ring = decoded("sq-doorbell", out["sq_doorbell"], version)
        assert (ring["head"], ring["qp_id"]) == ((head + 1) % (1 << (14 if version == 1 else 18)), 0x2A)
        assert seen["op"] == WqeOp(code).name

    check()


@SETTINGS
@given(
    st.sampled_from(["put", "get"]), st.sampled_from([1, 2]), st.integers(0, ONES[32]),
    st.integers(0, 0xFFFF), st.integers(0, ONES[32]), st.integers(0, ONES[32]),
    st.integers(0, ONES[64]), st.integers(0, ONES[64]), st.integers(0, ONES[32]) | st.just(1 << 31),
)  # fmt: skip
def test_put_and_get(
    op: str, version: int, head: int, wqn: int, rkey: int, lkey: int, raddr: int, laddr: int, length: int
) -> None:
    """Every value of every field comes back."""
    item = {"op": op, "version": version, "head": head, "wqn": wqn, "rkey": rkey, "lkey": lkey,
            "remote_addr": hex(raddr), "local_addr": laddr, "length": length}  # fmt: skip
    (out,) = encoded([item])
    seen = decoded("wqe", out["wqe"], version)
    want = {"rkey": rkey, "lkey": lkey, "remote_addr": raddr, "local_addr": laddr, "msg_len": length}
    want |= {"remote_length": length, "local_length": length, "ds_data_num": 2, "ce": 1, "in_line": 0}
    want |= {"msg_opcode": 1 if op == "put" else 2, "index": head % (8192 if version == 1 else 131072)}
    assert {name: seen[name] for name in want} == want
    assert [check["error_code"] for check in seen["checks"]] == ([0x9F] if length > 1 << 31 else [])
    assert decoded("sq-doorbell", out["sq_doorbell"], version)["qp_id"] == wqn


@pytest.mark.parametrize("version", [1, 2])
def test_the_device_posts_what_encode_prints(version: int) -> None:
    """Every call of the device API over a zeroed ring: the same 128 bytes, the same doorbell."""
    made: list[dict[str, Any]] = []
    posted: list[dict[str, str]] = []
    rings: list[int] = []

    async def main(pe: Pe) -> None:
        block = pe.alloc(256)
        qp = pe.qp(1)
        base = {"version": version, "wqn": qp.wqn, "rkey": qp.rkey, "remote_addr": pe.ptr(block, 1)}

        def note(item: dict[str, Any]) -> None:
            made.append({**base, "head": qp.sq_head - 1, **item})
            slot = pe.view(qp.sq_addr + 128 * ((qp.sq_head - 1) % qp.depth), 128)
            posted.append({"wqe": slot.tobytes().hex(), "sq_doorbell": f"0x{rings[-1]:016x}"})

        for op, size in (("put", 40), ("get", 0), ("get", 129)):
            await (pe.put_nbi if op == "put" else pe.get_nbi)(block, block, size, 1)
            note({"op": op, "length": size, "lkey": pe.lkey, "local_addr": block})
            await pe.quiet(1)
        for kind, bits in ((np.int32, 32), (np.uint64, 64)):
            for op in TABLE:
                value, cond = (-7, 5) if bits == 32 else (ONES[64] - 7, 5)
                args = {"fetch": (), "inc": (), "fetch_inc": (), "compare_swap": (cond, value)}.get(
                    op, (value,)
                )
                name = {"and": "and_", "or": "or_"}.get(op, op)
                await getattr(pe.atomic, name)(block, *args, 1, dtype=kind)
                item = {"op": op, "bits": bits, "value": value, "cond": cond}
                note({**item, "lkey": qp.amo_lkey, "local_addr": qp.amo_addr})
        await pe.quiet(1)

    run = model_run(only(0, main), versions=(version,), sq_depths=(64,))
    write = run.backend.mmio_write

    def listen(pe: int, addr: int, data: int) -> bool:
        done = write(pe, addr, data)
        if done and addr % 4096 == 0:
            rings.append(data)
        return done

    run.backend.mmio_write = listen
    run.run()
    assert len(made) == 3 + 2 * len(TABLE)
    assert encoded(made) == posted


def test_many_objects_of_both_versions_keep_their_order() -> None:
    """Each WQE stands where its object stood; no objects, no WQEs."""
    items = [item for item, _ in VECTORS.values()] * 3
    assert encoded(items) == [encoded([item])[0] for item in items]
    assert encoded([]) == []


def test_a_file_like_standard_input(tmp_path: Path) -> None:
    """FILE and - give the same; a byte order mark does no harm."""
    item = json.dumps([VECTORS["fa64"][0]]).encode()
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + item)
    assert good(["encode", "--json", str(tmp_path / "a.json")]) == good(["encode", "--json", "-"], item)


# -------------------------------------------------------------------------------------- WQE checks

WIDTHS = {"with_imm": 1, "csum_en": 2, "ds_data_num": 5, "se": 1, "ce": 1, "in_line": 1, "fence_mode": 2,
          "mask": 2}  # fmt: skip


@st.composite
def any_wqe(draw: Any) -> tuple[int, dict[str, int]]:
    """A good WQE of some opcode with up to three fields changed to anything."""
    version = draw(st.sampled_from([1, 2]))
    op = draw(st.sampled_from(list(WqeOp)))
    size = wqe.ATOMIC_SIZE.get(op, 256)
    f = dict.fromkeys(WQE_FIELDS.names or (), 0)
    f |= {"msg_opcode": int(op), "ds_data_num": wqe.DS_NUM[op], "ce": 1, "in_line": int(op in wqe.ATOMIC_OPS)}
    f |= {"msg_len": wqe.ATOMIC_MSG_LEN.get(op, size), "l_len": size, "wqe_id": 40}
    f["r_len"] = 0 if op == WqeOp.SEND else size
    wide = {"wqe_id": 16 if version == 1 else 20, "rsv1": 0 if version == 1 else 16, "rsv": 25}
    wide["rsv"] = 25 if version == 1 else 5
    names = [
        "msg_opcode",
        "with_imm",
        "in_line",
        "ds_data_num",
        "msg_len",
        "r_len",
        "l_len",
        "wqe_id",
        "csum_en",
    ]
    for name in draw(st.lists(st.sampled_from(names), max_size=3)):
        bits = {**WIDTHS, **wide}.get(name, 8 * WQE_FIELDS[name].itemsize)
        f[name] = draw(
            st.integers(0, (1 << bits) - 1) | st.sampled_from([0, 4 % (1 << bits), 8 % (1 << bits)])
        )
    if f["msg_opcode"] == WqeOp.SEND:
        f["r_len"] = 0
    return version, f


def test_checks_are_those_of_the_nic() -> None:
    """The first failing check that `decode` names has the code that the golden NIC gives (nic.md 4)."""
    seen: set[int] = set()

    @settings(SETTINGS, max_examples=600)
    @given(any_wqe())
    def check(case: tuple[int, dict[str, int]]) -> None:
        version, f = case
        slot = wqe.pack(f, version)
        rec = wqe.unpack(slot, version)
        want = int(rules.wqe_check(rec, f["wqe_id"] >> 3, version)[0])
        if f["wqe_id"] & 7:
            want = CqeError.SND_WQE_FORMAT
        checks = decoded("wqe", slot.tobytes().hex(), version)["checks"]
        assert (checks[0]["error_code"] if checks else 0) == want, checks
        assert all(c["error"] == error_name(c["error_code"]) and c["reason"] for c in checks)
        seen.add(want)

    check()
    assert seen == {0, 0x9F, 0xAB}


def test_all_failing_checks_are_listed() -> None:
    """In the NIC's order; a SEND has no remote segment to compare lengths with."""
    fields = {"msg_opcode": 0, "ds_data_num": 1, "ce": 1, "msg_len": 64, "l_len": 64, "wqe_id": 8}
    assert not decode_wqe(wqe.pack(fields, 2)[0].tobytes(), 2).extra["checks"]
    assert not decode_wqe(wqe.pack({**fields, "with_imm": 1}, 2)[0].tobytes(), 2).extra["checks"]
    fields = {
        "msg_opcode": 2,
        "ds_data_num": 3,
        "with_imm": 1,
        "in_line": 1,
        "msg_len": (1 << 31) + 1,
        "wqe_id": 9,
    }
    text = decode_wqe(wqe.pack(fields, 2)[0].tobytes(), 2).text()
    lines = [line for line in text.splitlines() if line.startswith(("fails: ", "also:  "))]
    assert lines[0].startswith("fails")
    assert [line[7:] for line in lines] == [
        "ab SND_WQE_FORMAT: wqe_id 0x9 is not a multiple of 8",
        "ab SND_WQE_FORMAT: with_imm does not exist for READ",
        "ab SND_WQE_FORMAT: in_line is 1, READ has 0",
        "ab SND_WQE_FORMAT: ds_data_num is 3, READ has 2",
        "9f SND_WQE_LEN: msg_len 2147483649 is above 2^31",
        "9f SND_WQE_LEN: remote_length 0, msg_len 2147483649",
        "9f SND_WQE_LEN: local_length 0, msg_len 2147483649",
    ]


def test_every_bit_of_a_slot_is_shown() -> None:
    """Each bit of the control segment, and of segments that the opcode has, changes the answer."""
    for name, (item, _) in VECTORS.items():
        version = item["version"]
        raw = bytes.fromhex(encoded([item])[0]["wqe"])
        plain = decode_wqe(raw, version).json()
        meaningful = 80 if name == "cas64_masked" else 64 if item["op"] not in ("put", "get") else 48
        # FA32 leaves the upper half of its segment unwritten (device.md 1.5)
        meaningful = 56 if name == "fa32_masked" else meaningful
        for bit in range(8 * 128):
            dirty = bytearray(raw)
            dirty[bit // 8] ^= 1 << bit % 8
            changed = decode_wqe(bytes(dirty), version).json() != plain
            assert changed == (bit < 8 * meaningful), (name, bit)


def test_misaligned_atomics_are_named() -> None:
    """Not a fault of the WQE: it is sent, and refused at the far side (nic.md 4)."""
    for bits, offset, note in ((64, 4, True), (64, 8, False), (32, 2, True), (32, 4, False)):
        item = {**ATOMIC, "op": "fetch", "bits": bits, "remote_addr": 0x1000 + offset}
        slot = encoded([item])[0]["wqe"]
        assert decoded("wqe", slot)["checks"] == []
        assert (f"not a multiple of {bits // 8}" in good(["decode", "wqe", slot])) == note


# ---------------------------------------------------------------------------------- CQEs and codes


def test_every_error_code_has_name_and_class() -> None:
    """device.md 2.5, all 256 codes; those of this NIC have the name that the codec uses."""
    for code in range(256):
        seen = decoded("cqe", f"{code:02x}" + "00" * 31)
        assert (seen["error"], seen["verbs_class"]) == (error_name(code), verbs_class(code))
    assert {code: error_name(code) for code in CqeError} == {code: code.name for code in CqeError}
    assert len(ERROR_NAMES) == 1 + 63 and error_name(0x40) == "unknown"
    classes = {
        0xA2: "RETRY_EXC", 0xA3: "RNR_RETRY", 0x89: "REM_INV_REQ", 0xA4: "REM_INV_REQ", 0xA5: "REM_ACCESS",
        0xA6: "REM_OP", 0xA7: "LOC_PROT", 0x9F: "LOC_LEN", 0xA8: "LOC_LEN", 0xAA: "BAD_RESP",
        0xAB: "LOC_QP_OP", 0xAC: "LOC_QP_OP", 0xB2: "FATAL", 0xB3: "FATAL", 0xFF: "WR_FLUSH", 0: "SUCCESS",
        0xB7: "GENERAL",
    }  # fmt: skip
    assert {code: verbs_class(code) for code in classes} == classes


@SETTINGS
@given(
    st.sampled_from([1, 2]),
    st.binary(min_size=32, max_size=32),
    st.sampled_from([b"", bytes(32), b"\x01" * 32]),
)
def test_any_cqe(version: int, raw: bytes, rest: bytes) -> None:
    """Every field as the codec has it; the text says when the upper half is not as this NIC writes it."""
    seen = decoded("cqe", (raw + rest).hex(":"), version)
    f = cqe.unpack(np.frombuffer(raw, np.uint8), version)[0]
    names = [n for n in f.dtype.names or () if n != "rsv1" or version == 2]
    assert {n: seen[n] for n in names} == {n: int(f[n]) for n in names}
    text = good(["decode", "cqe", (raw + rest).hex(), "--version", str(version)])
    assert ("bytes 32 to 63" in text) == any(rest)


# ----------------------------------------------------------------------------------------- packets

BASE = {"dst_mac": 0x02AABBCCDDEE, "src_mac": 0x021122334455, "dst_ip": 0x0A000002, "src_ip": 0x0A000001,
        "udp_sport": 0xC02A, "dest_qp": 3}  # fmt: skip
#: names that the command gives to operands, by opcode (wire.md 2, 3)
SHOWN = {
    Bth.CMP_SWAP: {"swap_add": "swap", "compare": "compare"},
    Bth.FETCH_ADD: {"swap_add": "add", "compare": "compare"},
    Bth.MCAS64: {n: n for n in ("compare", "swap_mask", "compare_mask")} | {"swap_add": "swap"},
    Bth.MFA64: {"swap_add": "add", "compare": "boundary"},
    Bth.MCAS32: {n: n for n in ("compare", "swap_mask", "compare_mask")} | {"swap_add": "swap"},
    Bth.MFA32: {"swap_add": "add", "compare": "boundary"},
}
RETH = {"va", "rkey", "dma_len"}
EXT_NAMES: dict[int, set[str]] = {
    0x03: {"imm"}, 0x05: {"imm"}, 0x06: RETH, 0x09: {"imm"}, 0x0A: RETH, 0x0B: RETH | {"imm"}, 0x0C: RETH,
    **{op: {"syndrome", "msn"} for op in (0x0D, 0x0F, 0x10, 0x11)}, 0x12: {"syndrome", "msn", "orig"},
    **{op: {"va", "rkey", *names.values()} for op, names in SHOWN.items()},
}  # fmt: skip
ALL_EXT = set().union(*EXT_NAMES.values())


@pytest.mark.parametrize("op", list(Bth))
def test_every_packet(op: Bth) -> None:
    """Every header field of a frame of each opcode, nothing of headers it has not got, payload and ICRC."""
    rng = np.random.default_rng(int(op))
    narrow = 32 if op in (Bth.MCAS32, Bth.MFA32) else 64
    f: dict[str, int] = {"opcode": int(op), "psn": 0xABCDEF, "ackreq": 1, "se": 1, "rsv8": 0x40, "rsv7": 3}
    f |= {"va": 0x1122334455667700, "rkey": 0xA1A2A3A4, "dma_len": 0x1234, "imm": 7, "msn": 0x123456}
    f |= {"syndrome": 0x1F, "orig": 0xFEDCBA9876543210}
    for i, name in enumerate(("swap_add", "compare", "swap_mask", "compare_mask")):
        f[name] = 0x8182838485868788 + i & (1 << narrow) - 1
    carries = op < 0x0C or 0x0D <= op <= 0x10
    payload = rng.integers(0, 256, 57 if carries else 0, dtype=np.uint8).tobytes()
    raw = packet.frame({**BASE, **f}, payload)
    seen = decoded("packet", raw.hex(" "))
    want: dict[str, Any] = {
        "dst_mac": "02:aa:bb:cc:dd:ee", "src_mac": "02:11:22:33:44:55", "src_ip": "10.0.0.1",
        "dst_ip": "10.0.0.2", "ethertype": 0x0800, "ver_ihl": 0x45, "tos": 132, "ttl": 64, "ip_id": 0,
        "ip_frag": 0x4000, "proto": 17, "udp_dport": 4791, "udp_csum": 0, "udp_sport": 0xC02A, "dest_qp": 3,
        "pkey": 0xFFFF, "tver": 0, "migreq": 1, "ip_len": len(raw) - 14, "udp_len": len(raw) - 34,
        "pad": -len(payload) % 4, "ip_csum": int.from_bytes(raw[24:26], "big"), "ip_csum_good": True,
    }  # fmt: skip
    want |= {name: f[name] for name in ("opcode", "psn", "ackreq", "se", "rsv8", "rsv7")}
    names = SHOWN.get(op, {})
    ext = {names.get(name, name): value for name, value in f.items()}
    want |= {name: ext[name] for name in EXT_NAMES.get(op, set())}
    masked = bytearray(raw[14:-4])
    for i in (1, 8, 10, 11, 26, 27, 32):
        masked[i] = 0xFF
    crc = zlib.crc32(b"\xff" * 8 + masked).to_bytes(4, "little").hex()
    want |= {"payload": payload.hex(), "payload_len": len(payload), "icrc": crc, "icrc_good": True}
    want |= {"first_failing_check": None, "opcode_name": op.name, "icrc_computed": crc}
    assert {name: seen.get(name) for name in want} == want
    assert not (ALL_EXT - EXT_NAMES.get(op, set())) & set(seen)
    text = good(["decode", "packet", raw.hex()])
    assert op.name in text and "receive checks: good" in text and " good" in text
    assert ("AtomicETH of this design" in text) == (op >= 0xC0)
    # one bit of the payload or of the last header: the ICRC of before is bad now
    flipped = bytearray(raw)
    flipped[-5] ^= 1
    seen = decoded("packet", flipped.hex())
    assert (seen["icrc_good"], seen["first_failing_check"]) == (False, "ICRC") or (
        # the last byte of a BTH is its PSN, which changes nothing else
        seen["icrc_good"] is False
    )
    assert seen["icrc_computed"] != crc


@pytest.mark.parametrize(
    ("syndrome", "text"),
    [(0x1F, "ACK"), (0x00, "ACK, credit code 0"), (0x20, "RNR NAK, timer code 0"),
     (0x3F, "RNR NAK, timer code 31"), (0x60, "NAK 0: PSN sequence error"),
     (0x61, "NAK 1: invalid request"), (0x62, "NAK 2: remote access error"),
     (0x63, "NAK 3: remote operational error"), (0x64, "reserved: dropped"), (0x40, "reserved: dropped"),
     (0x80, "reserved: dropped"), (0xFF, "reserved: dropped")],
)  # fmt: skip
def test_syndromes_in_words(syndrome: int, text: str) -> None:
    """wire.md 3."""
    raw = packet.frame({**BASE, "opcode": Bth.ACK, "syndrome": syndrome})
    assert text in good(["decode", "packet", raw.hex()]).splitlines()[0]
    assert decoded("packet", raw.hex())["syndrome_text"].startswith(text)


def changed(**change: int) -> bytes:
    """A WRITE Only with fields changed, the IPv4 checksum made right again."""
    f = packet.derive(packet.new(**{**BASE, "opcode": Bth.WRITE_ONLY, "payload_len": 5}))
    for name, value in change.items():
        f[name] = value
    f["ip_csum"] = 0
    header = packet.build_headers(f)[0][0, 14:34].astype(np.int64)
    total = int((header[0::2] * 256 + header[1::2]).sum())
    f["ip_csum"] = change.get("ip_csum", ~(total + (total >> 16)) & 0xFFFF)
    return packet.frames(f, [b"abcde"])[0]


# what is wrong: frame, first failing check, headers that are still shown
BROKEN: dict[str, tuple[bytes, str | None, str]] = {
    "nothing": (changed(), None, "RETH"),
    "short": (changed()[:57], "SHORT", "BTH"),
    "no BTH": (changed()[:53], "SHORT", "UDP"),
    "no UDP": (changed()[:41], "SHORT", "IPv4"),
    "no IP": (changed()[:33], "SHORT", "Ethernet"),
    "Ethernet only": (changed()[:14], "SHORT", "Ethernet"),
    "VLAN": (changed(ethertype=0x8100), "ETHERTYPE", "Ethernet"),
    "RoCEv1": (changed(ethertype=0x8915), "ETHERTYPE", "Ethernet"),
    "checksum": (changed(ip_csum=1), "IPV4", "RETH"),
    "fragment": (changed(ip_frag=0x2000), "IPV4", "RETH"),
    "options": (changed(ver_ihl=0x46), "IPV4", "IPv4"),
    "IPv5": (changed(ver_ihl=0x55), "IPV4", "IPv4"),
    "TCP": (changed(proto=6), "IPV4", "IPv4"),
    "port": (changed(udp_dport=4790), "UDP_PORT", "UDP"),
    "UDP length": (changed(udp_len=9), "LENGTH", "RETH"),
    "beyond the frame": (changed(ip_len=0xFFFC, udp_len=0xFFE8), "LENGTH", "RETH"),
    "no room for RETH": (changed(ip_len=44, udp_len=24), "LENGTH", "RETH"),
    "pad": (changed(pad=1), "LENGTH", "RETH"),
    "TVer": (changed(tver=1), "TVER", "RETH"),
    "opcode": (packet.frame({**BASE, "opcode": 0x15}, b"abcde"), "OPCODE", "BTH"),
    "P_Key": (changed(pkey=0x7FFF), "PKEY", "RETH"),
    "trailing": (changed() + b"abc", None, "RETH"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_first_failing_check(name: str) -> None:
    """The check is named, and no bytes are named after a header that is not there."""
    raw, check, last = BROKEN[name]
    seen = decoded("packet", raw.hex())
    assert seen["first_failing_check"] == check
    text = good(["decode", "packet", raw.hex()])
    order = ["Ethernet", "IPv4", "UDP", "BTH", "RETH"]
    assert [title for title in order if f"\n{title}:\n" in text] == order[: order.index(last) + 1]
    assert (f"dropped by receive check {check}" in text) == (check is not None)
    if name == "trailing":
        assert "3 bytes behind the ICRC" in text and seen["icrc_good"]
    if check is not None:
        assert RxReason[check].name == check


def test_ip_checksum() -> None:
    """Each wrong checksum is bad."""
    good_one = int(decoded("packet", changed().hex())["ip_csum"])
    for bit in range(16):
        seen = decoded("packet", changed(ip_csum=good_one ^ 1 << bit).hex())
        assert (seen["ip_csum_good"], seen["first_failing_check"]) == (False, "IPV4")


FRAMES = ROOT.parent / "shared" / "data" / "roce_frames.json"


@pytest.mark.skipif(not FRAMES.exists(), reason="captured frames are not part of the repository")
def test_captured_frames() -> None:
    """Real adapters' frames as they were published, VLAN and RoCEv1 included: fields, and the ICRC good."""
    frames = json.loads(FRAMES.read_text())
    assert len(frames) == 65
    for e in frames:
        raw = bytes.fromhex(e["hex"])
        if e["layer"] == "ip":
            raw = bytes(12) + b"\x08\x00" + raw
        if e["vlan"] or e["layer"] == "eth-rocev1-grh":
            assert decoded("packet", raw.hex())["first_failing_check"] == "ETHERTYPE", e["id"]
            if not e["vlan"]:
                continue
            raw = raw[:12] + raw[16:]
        seen = decoded("packet", raw.hex())
        code = int(e["opcode"], 16)
        assert seen["first_failing_check"] == (None if code in list(Bth) else "OPCODE"), e["id"]
        assert (seen["opcode"], seen["dest_qp"], seen["psn"]) == (code, int(e["qpn"], 16), e["psn"]), e["id"]
        assert (seen["icrc_good"], seen["icrc"]) == (True, e["icrc"]), e["id"]


# ------------------------------------------------------------------------------- how it is written


def test_ways_to_write_hex() -> None:
    """Spaces, line ends, colons, 0x, capitals, several arguments, standard input: one meaning."""
    raw = bytes.fromhex(encoded([VECTORS["write_v2"][0]])[0]["wqe"])
    want = good(["decode", "wqe", raw.hex()])
    dump = "\n".join(raw[i : i + 16].hex(" ") for i in range(0, 128, 16)) + "\n"
    prefixed = " ".join(f"0x{b:02X}" for b in raw)
    for text in (raw.hex(":"), dump, prefixed, raw.hex().upper(), "0x" + raw.hex(), "0X" + raw.hex()):
        assert good(["decode", "wqe", text]) == want
        assert good(["decode", "wqe", *text.split()]) == want
        assert good(["decode", "wqe", "-"], text.encode()) == want
    assert good(["decode", "--version", "2", "wqe", raw.hex()]) == want


def test_text_is_aligned() -> None:
    """Names, hexadecimal and decimal values stand in columns."""
    text = good(["decode", "wqe", encoded([VECTORS["cas64_masked"][0]])[0]["wqe"]])
    rows = [line for line in text.splitlines() if line.startswith("  ")]
    assert len(rows) == 24
    for line in rows:
        name, value = line.split()[:2]
        assert line.index(name) == 2 and value.startswith("0x")
        assert int(value, 16) == int(line.split()[2])
    assert len({line.index(line.split()[1]) + len(line.split()[1]) for line in rows}) == 1
    assert "\n  swap           0x0102030405060708     72623859790382856\n" in text


# --------------------------------------------------------------------------------------- bad input

SLOT = "00" * 128
OBJECT = {**DATA, "op": "put", "head": 0, "length": 1}
AMO = {**ATOMIC, "op": "compare_swap", "bits": 32, "value": 1, "cond": 2}
BAD_DECODE = [
    (["decode"], "the following arguments are required: kind, HEX"),
    (["decode", "wqe"], "the following arguments are required: HEX"),
    (["decode", "rqe", "00"], "argument kind: invalid choice: 'rqe'"),
    (["decode", "wqe", SLOT, "--version", "3"], "argument --version: invalid choice: 3"),
    (["decode", "wqe", SLOT, "--version", "two"], "argument --version: invalid int value: 'two'"),
    (["decode", "wqe", SLOT, "--nonsense"], "unrecognized arguments: --nonsense"),
    (["decode", "wqe", SLOT, "--non\nsense"], "unrecognized arguments: --non\\nsense"),
    (["decode", "wqe", SLOT[:-1]], "an odd number of hexadecimal digits"),
    (["decode", "wqe", SLOT[:-2]], "127 bytes: a WQE slot has 128 (256 hexadecimal digits)"),
    (["decode", "wqe", SLOT, "00"], "129 bytes: a WQE slot has 128"),
    (["decode", "wqe", "0g"], "'0g': 'g' is no hexadecimal digit"),
    (["decode", "wqe", "\u0660\u0661"], "is no hexadecimal digit"),
    (["decode", "wqe", "0x"], "'0x': no digits behind it"),
    (["decode", "wqe", ""], "no hexadecimal digits"),
    (["decode", "wqe", "a b c d"], "'a': an odd number of hexadecimal digits"),
    (["decode", "wqe", "--", "-5"], "'-5': '-' is no hexadecimal digit"),
    (["decode", "cqe", "00" * 33], "33 bytes: a CQE slot has 32 or 64"),
    (["decode", "packet", "00" * 13], "13 bytes: a frame begins with an Ethernet header of 14"),
    (["decode", "sq-doorbell", "0" * 18], "18 hexadecimal digits: a doorbell has at most 16"),
    (["decode", "cq-doorbell", "0x" + "0" * 17], "17 hexadecimal digits: a doorbell has at most 16"),
    (["decode", "sq-doorbell", "123"], "an odd number of hexadecimal digits"),
    (["encode"], "the following arguments are required: --json"),
    (["encode", "--json"], "argument --json: expected one argument"),
    (["encode", "--json", "/no/such/file"], "cannot read '/no/such/file': No such file or directory"),
    (["encode", "--json", "/"], "cannot read '/': Is a directory"),
    (["encode", "--json", "a\0b"], "cannot read 'a\\x00b': embedded null byte"),
]
BAD_JSON: list[tuple[Any, str]] = [
    (b"", "standard input: Expecting value at line 1 column 1"),
    (b"[\n {,", "standard input: Expecting property name enclosed in double quotes at line 2 column 3"),
    (b"[1] 2", "standard input: Extra data at line 1 column 5"),
    (b"[\xff]", "standard input: not UTF-8 at byte 1"),
    (b"[" * 100_000, "standard input: "),
    (b'[{"op":"put","op":"get"}]', "field 'op' stands twice in one object"),
    (b"[" + b"1" * 5000 + b"]", "standard input: Exceeds the limit"),
    ({}, "standard input: a list of objects is expected"),
    (None, "standard input: a list of objects is expected"),
    ([1], "object 0: not an object"),
    ([OBJECT, []], "object 1: not an object"),
    ([{}], "object 0: field 'op' is missing"),
    ([OBJECT, {**OBJECT, "op": "push"}], 'object 1: unknown op "push": one of put, get, fetch, set,'),
    ([{**OBJECT, "op": 1}], "object 0: unknown op 1"),
    ([{**OBJECT, "op": ["a"] * 99}], 'object 0: unknown op ["a", "a"'),
    ([{**OBJECT, "op": "write\n"}], 'object 0: unknown op "write\\n"'),
    ([{**OBJECT, "colour": 1}], "object 0 (put): field 'colour' is not one of this operation"),
    ([{**OBJECT, "bits": 64}], "object 0 (put): field 'bits' is not one of this operation"),
    ([{**OBJECT, "value": 1}], "object 0 (put): field 'value' is not one of this operation"),
    ([{**AMO, "length": 8}], "object 0 (compare_swap): field 'length' is not one of this operation"),
    *[([{k: v for k, v in AMO.items() if k != name}], f"field '{name}' is missing") for name in AMO],
    *[([{k: v for k, v in OBJECT.items() if k != name}], f"field '{name}' is missing") for name in OBJECT],
    ([{**OBJECT, "version": 3}], "object 0 (put): version 3: 1 or 2"),
    ([{**OBJECT, "version": True}], "version true is neither an integer nor a 0x string"),
    ([{**AMO, "bits": 8}], "object 0 (compare_swap): bits 8: 32 or 64"),
    *[([{**OBJECT, "head": v}], "is neither an integer nor a 0x string")
      for v in (None, 1.0, "1", "0x", "0xg", "x1", [], {}, True, "", "0x1\n", " 0x1", 1e400)],
    *[([{**OBJECT, name: 1 << bits}], f"object 0 (put): {name} {1 << bits} does not fit {bits} bits")
      for name, bits in (("head", 32), ("wqn", 16), ("rkey", 32), ("lkey", 32), ("remote_addr", 64),
                         ("local_addr", 64), ("length", 32))],
    *[([{**OBJECT, name: -1}], f"object 0 (put): {name} -1 is negative")
      for name in ("head", "wqn", "rkey", "lkey", "remote_addr", "local_addr", "length")],
    ([{**AMO, "value": 1 << 32}], "value 4294967296 does not fit 32 bits"),
    ([{**AMO, "cond": -(1 << 31) - 1}], "cond -2147483649 does not fit 32 bits"),
    ([{**AMO, "bits": 64, "value": -(1 << 63) - 1}], "does not fit 64 bits"),
    ([{**AMO, "bits": 64, "cond": "0x1" + "0" * 16}], "does not fit 64 bits"),
    ([{**AMO, "op": "inc", "value": 1 << 32}], "value 4294967296 does not fit 32 bits"),
    ([{**AMO, "value": "0x" + "f" * 9999}], "does not fit 32 bits"),
]  # fmt: skip


def refused(args: list[str], stdin: bytes = b"") -> str:
    """The one line on stderr; the input must be refused."""
    code, out, err = call(args, stdin)
    assert (code, out) == (2, ""), (args, out)
    assert err.startswith("camhil: ") and err.endswith("\n") and len(err.splitlines()) == 1, err
    return err


@pytest.mark.parametrize(("args", "message"), BAD_DECODE, ids=range(len(BAD_DECODE)))
def test_bad_arguments(args: list[str], message: str) -> None:
    """One line, exit code 2, nothing on stdout."""
    assert message in refused(args)


@pytest.mark.parametrize(("objects", "message"), BAD_JSON, ids=range(len(BAD_JSON)))
def test_bad_objects(objects: Any, message: str) -> None:
    """One line that says which object and which field."""
    raw = objects if isinstance(objects, bytes) else json.dumps(objects).encode()
    line = refused(["encode", "--json", "-"], raw)
    assert message in line and len(line) < 300


HEXISH = st.text("0123456789abcdefABCDEFx: \n-g\u2028\x85", max_size=40) | st.binary(max_size=130).map(
    bytes.hex
)


@settings(SETTINGS, max_examples=500)
@given(
    st.sampled_from(["wqe", "cqe", "sq-doorbell", "cq-doorbell", "packet", "?"]),
    st.lists(HEXISH | st.text(max_size=8), max_size=3),
    st.lists(st.sampled_from(["--json", "--version", "1", "2", "3", "--", "--x"]), max_size=3),
    st.binary(max_size=200),
)
def test_any_decode_input(kind: str, words: list[str], options: list[str], stdin: bytes) -> None:
    """An answer, or one line and exit code 2."""
    code, out, err = call(["decode", kind, *words, *options], stdin)
    if code == 0:
        assert out and not err
    else:
        assert (code, out) == (2, "") and err.startswith("camhil: ") and len(err.splitlines()) == 1


NUMBERS = (
    st.integers(-5, 5) | st.integers(-(1 << 66), 1 << 66) | st.integers(0, 1 << 64).map(hex)
    | st.text(max_size=4) | st.none() | st.floats() | st.booleans() | st.lists(st.integers(), max_size=2)
)  # fmt: skip
OBJECTS = st.fixed_dictionaries(
    {"op": st.sampled_from([*TABLE, "put", "get", "x"]), "version": st.sampled_from([1, 2, 3, "0x2"])},
    optional={name: NUMBERS for name in (*OBJECT, *AMO) if name not in ("op", "version")} | {"\n": NUMBERS},
) | st.sampled_from([OBJECT, AMO]).flatmap(
    lambda base: st.dictionaries(st.sampled_from(list(base)), NUMBERS, max_size=2).map(
        lambda c: {**base, **c}
    )
)


def test_any_objects() -> None:
    """JSON of all shapes, whole and damaged: an answer for each object, or one line and exit code 2."""
    codes: set[int] = set()

    @settings(SETTINGS, max_examples=500)
    @given(
        st.lists(OBJECTS, max_size=3) | OBJECTS | NUMBERS,
        st.none() | st.tuples(st.integers(0, 400), st.binary(max_size=3)),
    )
    def check(objects: Any, damage: tuple[int, bytes] | None) -> None:
        raw = json.dumps(objects).encode()
        if damage is not None:
            raw = raw[: damage[0]] + damage[1] + raw[damage[0] + 1 :]
        code, out, err = call(["encode", "--json", "-"], raw)
        codes.add(code)
        if code == 0:
            assert not err
            for item, made in zip(json.loads(raw), json.loads(out), strict=True):
                assert decoded("wqe", made["wqe"], int(str(item["version"]), 0))["op"] != "unknown"
        else:
            assert (code, out) == (2, "") and err.startswith("camhil: ") and len(err.splitlines()) == 1

    check()
    assert codes == {0, 2}


# ------------------------------------------------------------------------------------ as processes


@pytest.mark.parametrize("command", [["-m", "pymodel"], ["camhil_cli.py"]], ids=["module", "script"])
def test_entry_points(command: list[str]) -> None:
    """Both commands have them; bytes that are no text in an argument are no traceback."""
    base = [sys.executable, *command]
    item = json.dumps([OBJECT]).encode()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(item)
        file.flush()
        done = subprocess.run([*base, "encode", "--json", file.name], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    slot = json.loads(done.stdout)[0]["wqe"]
    done = subprocess.run([*base, "decode", "wqe", "-"], cwd=ROOT, capture_output=True, input=slot.encode())
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.startswith(b"WQE, version 2: WRITE")
    done = subprocess.run([*base, "decode", "wqe", b"\xff\xfe"], cwd=ROOT, capture_output=True)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and not done.stdout


@pytest.mark.parametrize(
    ("shell", "code", "lines"),
    [("decode wqe - <&-", 2, 1), ("decode cqe $(printf %064d 0) > /dev/full", 1, 1),
     ("decode wqe - < /dev/zero", 2, 1)],
)  # fmt: skip
def test_broken_streams(shell: str, code: int, lines: int) -> None:
    """Closed or endless input, a full disk."""
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m pymodel {shell}'], cwd=ROOT, capture_output=True
    )
    assert done.returncode == code and len(done.stderr.splitlines()) == lines and not done.stdout


def test_a_reader_that_stops_early() -> None:
    """A closed pipe gives neither traceback nor complaint."""
    command = f'sleep 1; exec "{sys.executable}" -m pymodel decode cqe $(printf %064d 0)'
    shell = f'({command}) | true; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (1, b"")


def test_receive_side() -> None:
    """Receive WQE, RQ doorbell and the CQE of a responder, against hand-made bytes."""
    slot = "40000000a4a3a2a18877665544332211"
    text = good(["decode", "recv-wqe", slot])
    assert "64 bytes" in text and "0xa1a2a3a4" in text and "0x1122334455667788" in text
    text = good(["decode", "rq-doorbell", f"{0x2A << 17 | 131071:x}"])
    assert "RQ doorbell: QP 42, new head 131071" in text
    text = decode_cqe(bytes.fromhex("002a000c" + "07000000" * 7), 2).text()
    assert "receive WQE index" in text and "responder" in text
    with pytest.raises(InputError, match="a receive WQE has 16"):
        decode_recv_wqe(bytes(15), 2)
