"""Rules of doorbells, regions, WQE checks, segmentation, completions, PSNs and responder.

Sweep: every boundary of each rule and random values; stimulus: tables and hypothesis. Checks: against
formulations written here with unbounded Python integers or walked one item at a time, never with the module's
own formula. Timing: none. Does not prove that a NIC asks these rules at the right moment.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.formats import packet, wqe
from pymodel.formats.cqe import CQE_FIELDS, CqeError
from pymodel.formats.packet import Bth, Syndrome
from pymodel.formats.wqe import WqeOp
from pymodel.nic import rules
from pymodel.nic.context import MrContext, QpContext
from pymodel.nic.params import Cnt, Params
from pymodel.nic.rules import AckVerdict, CqDbVerdict, DbVerdict, MrVerdict, PsnClass, Right

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=400)
TOP = 1 << 64

# ------------------------------------------------------------------------------- doorbells


def sq_oracle(step: int, room: int, half: int) -> DbVerdict:
    """nic.md 3 for a producer that software moved by `step` (negative: an old doorbell), |step| <= half."""
    if step == 0:
        return DbVerdict.NO_WORK
    if step < 0:
        return DbVerdict.STALE
    return DbVerdict.ACCEPTED if step <= room else DbVerdict.OVERRUN


@SETTINGS
@given(st.data())
def test_sq_doorbell(data: st.DataObject) -> None:
    """Any state and step, both versions."""
    version = data.draw(st.sampled_from([1, 2]))
    width, most = {1: (14, 13), 2: (18, 17)}[version]
    half = 1 << (width - 1)
    depth = 1 << data.draw(st.integers(1, most))
    outstanding = data.draw(st.integers(0, depth))
    current = data.draw(st.integers(0, 1 << 20) | st.sampled_from([half, 2 * half - 1, 2 * half]))
    room = depth - outstanding
    near = st.sampled_from([0, 1, -1, room - 1, room, room + 1, half, half - 1, 1 - half])
    step = min(max(data.draw(st.integers(1 - half, half) | near), 1 - half), half)
    pid = (current + step) * 8 % (1 << width + 3)
    got = rules.sq_doorbell(pid, current, outstanding, depth, version)
    assert DbVerdict(int(got)) is sq_oracle(step, room, half)
    low = data.draw(st.integers(1, 7))
    assert int(rules.sq_doorbell(pid | low, current, outstanding, depth, version)) == DbVerdict.PID


@pytest.mark.parametrize(
    ("pid", "current", "outstanding", "depth", "version", "want"),
    [
        (8, 0, 0, 2, 2, DbVerdict.ACCEPTED),
        (16, 0, 0, 2, 2, DbVerdict.ACCEPTED),  # exactly depth outstanding is legal
        (24, 0, 0, 2, 2, DbVerdict.OVERRUN),
        (16, 1, 1, 2, 2, DbVerdict.ACCEPTED),
        (16, 2, 2, 2, 2, DbVerdict.NO_WORK),
        (24, 2, 2, 2, 2, DbVerdict.OVERRUN),
        (8192 * 8, 0, 0, 8192, 1, DbVerdict.ACCEPTED),  # half of the width of V1
        (8193 * 8, 0, 0, 8192, 1, DbVerdict.STALE),
        (131072 * 8, 0, 0, 131072, 2, DbVerdict.ACCEPTED),  # half of the width of V2
        (131072 * 8, 0, 1, 131072, 2, DbVerdict.OVERRUN),
        (131073 * 8, 0, 0, 131072, 2, DbVerdict.STALE),
        (0, 262143, 0, 16, 2, DbVerdict.ACCEPTED),  # wrap of V2
        (0, 16383, 0, 16, 1, DbVerdict.ACCEPTED),  # wrap of V1
        (16383 * 8, 0, 0, 16, 1, DbVerdict.STALE),
        (16383 * 8, 0, 0, 16, 2, DbVerdict.OVERRUN),
    ],
)
def test_sq_doorbell_boundaries(
    pid: int, current: int, outstanding: int, depth: int, version: int, want: DbVerdict
) -> None:
    """Typed in."""
    assert DbVerdict(int(rules.sq_doorbell(pid, current, outstanding, depth, version))) is want


def test_sq_doorbell_takes_arrays_of_both_versions_and_the_stale_knob() -> None:
    """Versions may be mixed in one call."""
    got = rules.sq_doorbell([8, 8, 16383 * 8, 9], [0, 1, 0, 0], 0, 16, [1, 2, 1, 2])
    assert got.tolist() == [DbVerdict.ACCEPTED, DbVerdict.NO_WORK, DbVerdict.STALE, DbVerdict.PID]
    assert int(rules.sq_doorbell(16383 * 8, 0, 0, 16, 1, stale_ignored=False)) == DbVerdict.OVERRUN


def test_doorbell_gate() -> None:
    """Partial strobe, unknown page, RESET and foreign page, each alone and in this order."""
    go = {"page_qpn": 5, "qp_id": 5, "in_reset": False, "strobe": 0xFF, "known": True}
    faults: list[tuple[dict[str, Any], DbVerdict]] = [
        ({"strobe": 0x0F}, DbVerdict.PARTIAL), ({"known": False}, DbVerdict.PAGE),
        ({"in_reset": True}, DbVerdict.RESET), ({"qp_id": 6}, DbVerdict.PAGE),
    ]  # fmt: skip
    assert int(rules.doorbell_gate(**go)) == DbVerdict.NO_WORK
    for n in range(1, 5):
        for chosen in itertools.combinations(faults, n):
            change: dict[str, Any] = {}
            for extra, _ in chosen:
                change |= extra
            assert int(rules.doorbell_gate(**(go | change))) == chosen[0][1]
    assert rules.doorbell_gate([5, 5], [5, 7], False).tolist() == [DbVerdict.NO_WORK, DbVerdict.PAGE]


@SETTINGS
@given(st.data())
def test_rq_doorbell(data: st.DataObject) -> None:
    """Any state and step: 17 bits in both versions, one slot a unit; depth 0 has no receive queue."""
    depth = data.draw(st.sampled_from([0, *(1 << k for k in range(1, 17))]))
    current = data.draw(st.integers(0, 1 << 20) | st.sampled_from([(1 << 17) - 1, 1 << 16]))
    outstanding = data.draw(st.integers(0, depth))
    near = [0, 1, depth - outstanding, depth - outstanding + 1, 1 << 16, (1 << 16) + 1, (1 << 17) - 1]
    step = data.draw(st.sampled_from(near) | st.integers(0, (1 << 17) - 1)) & 0x1FFFF
    stale = data.draw(st.booleans())
    if not depth:
        want = DbVerdict.RQ
    elif not step:
        want = DbVerdict.NO_WORK
    elif step <= depth - outstanding:
        want = DbVerdict.ACCEPTED
    else:
        want = DbVerdict.STALE if step > 1 << 16 and stale else DbVerdict.OVERRUN
    pid = (current + step) & 0x1FFFF
    assert DbVerdict(int(rules.rq_doorbell(pid, current, outstanding, depth, stale))) is want


def test_each_refused_doorbell_has_a_counter_of_its_own() -> None:
    """nic.md 7."""
    assert set(rules.DB_COUNTER) == set(DbVerdict) - {DbVerdict.NO_WORK, DbVerdict.ACCEPTED}
    for verdict, counter in rules.DB_COUNTER.items():
        assert Cnt(counter).name == f"DB_{verdict.name}"


@SETTINGS
@given(st.data())
def test_cq_doorbell(data: st.DataObject) -> None:
    """Any state and step."""
    depth = 1 << data.draw(st.integers(1, 22))
    ci = data.draw(st.integers(0, 1 << 24) | st.sampled_from([(1 << 23) - 1, 1 << 22]))
    filled = data.draw(st.integers(0, depth) | st.just(depth))
    half = 1 << 22
    last = min(filled + half, (1 << 23) - 1)  # last distance that is refused, not backward
    near = st.sampled_from(
        [0, filled, filled + 1, last - 1, last, min(last + 1, (1 << 23) - 1), (1 << 23) - 1]
    )
    step = data.draw(st.integers(0, (1 << 23) - 1) | near)
    want = (
        CqDbVerdict.ACCEPTED
        if step <= filled
        else CqDbVerdict.BEYOND
        if step <= last
        else CqDbVerdict.BACKWARD
    )
    for producer in (ci + filled, (ci + filled) % (1 << 23)):
        assert CqDbVerdict(int(rules.cq_doorbell((ci + step) % (1 << 23), ci, producer))) is want


def test_cq_doorbell_boundaries() -> None:
    """Typed in."""
    half = 1 << 22
    got = rules.cq_doorbell([0, 4, 5, half + 4, half + 5, (1 << 23) - 1], 0, 4)
    assert [CqDbVerdict(x).name for x in got] == [
        "ACCEPTED",
        "ACCEPTED",
        "BEYOND",
        "BEYOND",
        "BACKWARD",
        "BACKWARD",
    ]
    # a full CQ of 2^22: every other distance lies within 2^22 beyond
    assert CqDbVerdict(int(rules.cq_doorbell((1 << 23) - 1, 0, half))) is CqDbVerdict.BEYOND
    assert rules.cq_arms([0, 1, 2, 3]).tolist() == [False, False, True, True]


# ------------------------------------------------------------------------------- memory regions

EDGE = st.sampled_from(
    [0, 1, 2, 63, 64, 4096, 1 << 31, 1 << 32, 1 << 63, TOP - 4096, TOP - 64, TOP - 2, TOP - 1]
)


@SETTINGS
@given(st.data())
def test_mr_check_with_unbounded_integers(data: st.DataObject) -> None:
    """Any region and access, with a bias to the edges."""
    base = data.draw(EDGE | st.integers(0, TOP - 1))
    room = TOP - base
    length = data.draw(st.sampled_from([0, 1, 64, room - 1, room]) | st.integers(0, room))
    length = min(length, room)
    rights = [data.draw(st.booleans()) for _ in range(4)]
    mr = MrContext(
        base,
        length,
        *rights,
        ltag=0x5A,
        rtag=0xC3,
        valid=data.draw(st.sampled_from([True, True, True, False])),
    )
    index = data.draw(st.integers(0, 255))
    remote, right = data.draw(st.booleans()), data.draw(st.sampled_from(Right))
    key = (mr.rkey(index) if remote else mr.lkey(index)) ^ data.draw(
        st.sampled_from([0, 0, 0, 1, 0x80, 1 << 8, 1 << 31])
    )
    around = st.sampled_from([base, base + length, base + length - 1, base - 1, base + 1])
    va = data.draw(around | EDGE | st.integers(0, TOP - 1)) % TOP
    size = data.draw(
        st.sampled_from([0, 1, 2, 64, 1 << 31, (1 << 32) - 1, length, length + 1, base + length - va])
        | st.integers(0, (1 << 32) - 1)
    )  # fmt: skip
    size = min(max(size, 0), TOP - 1)
    want = MrVerdict.OK
    if size:
        tag = mr.rtag if remote else mr.ltag
        granted = [True, *rights][right]
        if not (mr.valid and key >> 8 == index and key & 0xFF == tag):
            want = MrVerdict.KEY
        elif not granted:
            want = MrVerdict.RIGHT
        elif not (base <= va and va + size <= base + length):
            want = MrVerdict.RANGE
    got = rules.mr_check(rules.mr_table({index: mr}), key, remote, right, va, size)
    assert MrVerdict(int(got)) is want


def test_mr_check_at_the_top_of_the_address_space() -> None:
    """The last byte of 2^64 belongs to a region that ends there."""
    whole = rules.mr_table({0: MrContext(0, TOP)})
    top = rules.mr_table({0: MrContext(TOP - 64, 64)})
    ok, out = MrVerdict.OK, MrVerdict.RANGE
    assert rules.mr_check(whole, 0, 0, 0, [0, TOP - 1, TOP - 1, 1], [1, 1, 2, TOP - 1]).tolist() == [
        ok,
        ok,
        out,
        ok,
    ]
    assert rules.mr_check(top, 0, 0, 0, [TOP - 64, TOP - 64, TOP - 1, 0], [64, 65, 2, 1]).tolist() == [
        ok,
        out,
        out,
        out,
    ]


def test_mr_check_of_several_nics() -> None:
    """One table row a NIC."""
    tables = np.stack([rules.mr_table({3: MrContext(0x1000 * (n + 1), 0x100)}) for n in range(2)])
    got = rules.mr_check(tables, 3 << 8, True, Right.REM_WRITE, [0x1000, 0x1000, 0x2000], 16, bank=[0, 1, 1])
    assert got.tolist() == [MrVerdict.OK, MrVerdict.RANGE, MrVerdict.OK]
    assert int(rules.mr_check(tables[0], 256 << 8, True, Right.REM_WRITE, 0x1000, 16)) == MrVerdict.KEY


# ------------------------------------------------------------------------------- WQE checks

ALL = frozenset(WqeOp)
MRS = rules.mr_table(
    {1: MrContext(0x1000, 0x1000, ltag=7), 2: MrContext(0x1000, 0x1000, False, False, True, False)}
)
MASK_LEN = {26: 16, 27: 16, 31: 32, 32: 16, 33: 16, 34: 8}


def good_wqe(op: int, index: int, version: int, **change: int) -> Any:
    """A WQE that passes every check."""
    f = {"msg_opcode": op, "ce": 1, "wqe_id": index * 8 % (1 << (16 if version == 1 else 20)), "lkey": 0x107,
         "laddr": 0x1000, "raddr": 0x8000}  # fmt: skip
    if op in MASK_LEN:
        size = 4 if op in (33, 34) else 8
        f |= {
            "in_line": 1,
            "ds_data_num": 4 if op == 31 else 3,
            "msg_len": MASK_LEN[op],
            "l_len": size,
            "r_len": size,
        }
    else:
        f |= {"ds_data_num": 1 if op == 0 else 2, "msg_len": 100, "l_len": 100, "r_len": 100 * (op != 0)}
    f |= change
    rec = np.zeros(1, wqe.WQE_FIELDS)
    for name, value in f.items():
        rec[name] = value
    return rec


def check(rec: Any, index: int = 5, version: int = 2, **kwargs: Any) -> CqeError:
    """Code of one WQE; all opcodes built unless said otherwise."""
    kwargs = {"mrs": MRS, "supported": ALL, "imm_supported": True} | kwargs
    return CqeError(int(rules.wqe_check(rec, index, version, **kwargs)[0]))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("op", WqeOp)
def test_good_wqes_pass(op: WqeOp, version: int) -> None:
    """And stay good with every ignored field set."""
    for index in (0, 5, 8191, 8192, 131071, 131072, 262143):
        rec = good_wqe(op, index, version)
        assert check(rec, index, version) is CqeError.OK
        # ignored: csum_en, reserved bits, opcode_data, mask, fence_mode, se, ce (nic.md 4)
        for name in ("csum_en", "rsv", "opcode_data", "mask", "fence_mode", "se", "rsv1"):
            rec[name] = 1
        rec["ce"] = 0
        assert check(rec, index, version) is CqeError.OK


AB, LEN, MR = CqeError.SND_WQE_FORMAT, CqeError.SND_WQE_LEN, CqeError.LOCAL_MR_REQ
# order of nic.md 4: name of the fault, what is changed, code; several entries of one code are one level
FAULTS: list[tuple[str, dict[str, int], CqeError]] = [
    ("wqe_id", {"wqe_id": 6 << 3}, AB),
    ("in_line", {"in_line": 1}, AB),
    ("ds_data_num", {"ds_data_num": 3}, AB),
    ("too_long", {"msg_len": (1 << 31) + 1, "l_len": (1 << 31) + 1, "r_len": (1 << 31) + 1}, LEN),
    ("remote_length", {"r_len": 99}, LEN),
    ("local_length", {"l_len": 101}, LEN),
    ("lkey_tag", {"lkey": 0x106}, MR),
    ("lkey_index", {"lkey": 0x307}, MR),
    ("range", {"laddr": 0x1FA0}, MR),
]


@pytest.mark.parametrize("op", [WqeOp.WRITE, WqeOp.READ])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_each_fault_of_a_wqe(fault: tuple[str, dict[str, int], CqeError], op: WqeOp) -> None:
    """Its code, alone and together with every later fault."""
    name, change, code = fault
    assert check(good_wqe(op, 5, 2, **change)) is code
    assert check(good_wqe(op, 5, 2, **change), bus_error=True) is CqeError.SND_WQE_DMA
    # a later fault of another level never hides it
    for other, extra, _ in FAULTS[FAULTS.index(fault) + 1 :]:
        if not set(extra) & set(change):
            assert check(good_wqe(op, 5, 2, **{**extra, **change})) is code, other


def test_other_checks_of_wqes() -> None:
    """Opcodes, immediate, atomics, rights, zero length."""
    for op in (3, 4, 22, 25, 28, 30, 35, 255):
        assert check(good_wqe(1, 5, 2, msg_opcode=op)) is AB
    for op in (2, 26, 27, 31, 32, 33, 34):
        assert check(good_wqe(op, 5, 2, with_imm=1)) is AB
    for op in (0, 1):
        assert check(good_wqe(op, 5, 2, with_imm=1)) is CqeError.OK
        assert check(good_wqe(op, 5, 2, with_imm=1), imm_supported=False) is AB
    for op in (26, 27, 31, 32, 33, 34):
        assert check(good_wqe(op, 5, 2, in_line=0)) is AB
        for name in ("msg_len", "l_len", "r_len"):
            assert check(good_wqe(op, 5, 2, **{name: int(good_wqe(op, 5, 2)[name][0]) + 4})) is LEN
        assert check(good_wqe(op, 5, 2, ds_data_num=2)) is AB
        assert check(good_wqe(op, 5, 2, raddr=0x8001)) is CqeError.OK  # the responder refuses it
    # rights: a source needs a valid lkey, a sink needs local write
    readonly = {"lkey": 0x200}
    assert (
        check(good_wqe(1, 5, 2, **readonly)) is CqeError.OK
        and check(good_wqe(0, 5, 2, **readonly)) is CqeError.OK
    )
    for op in (2, 26, 27, 31, 32, 33, 34):
        assert check(good_wqe(op, 5, 2, **readonly)) is MR
    # zero length: no key
    assert check(good_wqe(1, 5, 2, msg_len=0, l_len=0, r_len=0, lkey=0xDEAD00)) is CqeError.OK
    most = {"msg_len": 1 << 31, "l_len": 1 << 31, "r_len": 1 << 31}
    assert check(good_wqe(1, 5, 2, **most), mrs=None) is CqeError.OK
    assert check(good_wqe(1, 5, 2, **most)) is MR
    # SEND has no remote segment, whatever a decoder put there
    assert check(good_wqe(0, 5, 2, r_len=7)) is CqeError.OK


def test_what_is_not_built_is_a_format_error() -> None:
    """ab, for a NIC that lacks it, whatever its lengths are; with all built every opcode is good."""
    for op in WqeOp:
        assert CqeError(int(rules.wqe_check(good_wqe(op, 5, 2), 5, 2, mrs=MRS)[0])) is CqeError.OK
        rest = rules.BUILT - {op}
        for length in ({}, {"l_len": 1}):
            rec = good_wqe(op, 5, 2, **length)
            assert CqeError(int(rules.wqe_check(rec, 5, 2, supported=rest)[0])) is AB


def test_wqe_id_is_judged_at_its_width() -> None:
    """And its three low bits are."""
    assert check(good_wqe(1, 8192, 1), 0, 1) is CqeError.OK  # 13 bits of index in V1
    assert check(good_wqe(1, 8192, 2), 0, 2) is AB
    assert check(good_wqe(1, 131072, 2), 0, 2) is CqeError.OK
    assert check(good_wqe(1, 5, 2, wqe_id=41)) is AB


def test_shifted_remote_length_is_a_knob_of_masked_atomics() -> None:
    """K of nic.md 4."""
    knob = Params(shifted_remote_len=True)
    assert check(good_wqe(31, 5, 2, r_len=16), params=knob) is CqeError.OK
    assert check(good_wqe(33, 5, 2, r_len=8), params=knob) is CqeError.OK
    assert check(good_wqe(33, 5, 2), params=knob) is LEN
    assert check(good_wqe(26, 5, 2), params=knob) is CqeError.OK


def test_wqe_check_takes_many() -> None:
    """One code a WQE."""
    recs = np.concatenate([good_wqe(1, i, 2) for i in range(20)])
    recs["l_len"][3] = 1
    got = rules.wqe_check(recs, np.arange(20), 2, bus_error=np.arange(20) == 7, mrs=MRS)
    assert got.tolist() == [0, 0, 0, LEN, 0, 0, 0, CqeError.SND_WQE_DMA, *[0] * 12]


# ------------------------------------------------------------------------------- segmentation and headers


def segment_oracle(length: int, mtu: int, kind: str, imm: bool) -> list[tuple[int, int, int, int]]:
    """(offset, length, opcode, ackreq), walked byte count by byte count."""
    only, first, middle, last = {
        "send": (4, 0, 1, 2), "write": (10, 6, 7, 8), "read_response": (16, 13, 14, 15),
    }[kind]  # fmt: skip
    out: list[tuple[int, int, int, int]] = []
    left, offset = length, 0
    while True:
        size = min(left, mtu)
        end = left <= mtu
        op = (only if end else first) if offset == 0 else (last if end else middle)
        op += 1 if end and imm else 0
        ack = 0 if kind == "read_response" else int(end or (len(out) + 1) % 16 == 0)
        out.append((offset, size, op, ack))
        offset, left = offset + size, left - size
        if end:
            return out


@settings(SETTINGS, max_examples=150)
@given(
    st.lists(st.integers(0, 20000) | st.sampled_from([0, 1, 255, 256, 257, 4096, 8192]), min_size=1,
    max_size=6), st.sampled_from([256, 512, 1024, 2048, 4096]), st.sampled_from(["write", "send",
    "read_response"]), st.booleans(),
)  # fmt: skip
def test_segment(lengths: list[int], mtu: int, kind: str, imm: bool) -> None:
    """Against the walk."""
    imm = imm and kind != "read_response"
    seg = rules.segment(lengths, mtu, kind, imm)
    want = [segment_oracle(n, mtu, kind, imm) for n in lengths]
    assert seg.packets.tolist() == [len(w) for w in want]
    assert seg.message.tolist() == [i for i, w in enumerate(want) for _ in w]
    assert seg.number.tolist() == [k for w in want for k in range(len(w))]
    got = zip(seg.offset.tolist(), seg.length.tolist(), seg.opcode.tolist(), seg.ackreq.tolist(), strict=True)
    assert list(got) == [p for w in want for p in w]
    assert seg.last.tolist() == [k == len(w) - 1 for w in want for k in range(len(w))]


def test_psn_count() -> None:
    """wire.md 5."""
    assert rules.psn_count([0, 1, 256, 257, 1 << 31], 256).tolist() == [1, 1, 1, 2, 1 << 23]


QP = QpContext(
    peer_qpn=9, peer_mac=0x0A0B0C0D0E0F, peer_ip=0x0A000002, sq_base=0, sq_depth=16, send_cq=0, recv_cq=0,
    mtu_code=1, tc=12, ttl=34,
)  # fmt: skip


def test_write_headers() -> None:
    """Typed in: two WRITEs, the first of three packets over the PSN wrap."""
    recs = np.concatenate(
        [good_wqe(1, 0, 2, msg_len=600, rkey=0x333), good_wqe(1, 1, 2, msg_len=0, raddr=0x99)]
    )
    seg = rules.segment(recs["msg_len"], 256)
    head = rules.write_headers(recs, [0xFFFFFE, 1], rules.flow(5, QP, 0x020000000001, 0x0A000001), seg)
    assert head["psn"].tolist() == [0xFFFFFE, 0xFFFFFF, 0, 1]
    assert [Bth(o).name for o in head["opcode"]] == [
        "WRITE_FIRST",
        "WRITE_MIDDLE",
        "WRITE_LAST",
        "WRITE_ONLY",
    ]
    assert head["ackreq"].tolist() == [0, 0, 1, 1] and head["dma_len"].tolist() == [600, 0, 0, 0]
    assert head["va"].tolist() == [0x8000, 0, 0, 0x99] and head["rkey"].tolist() == [0x333, 0, 0, 0]
    assert head["payload_len"].tolist() == [256, 256, 88, 0]
    assert set(head["udp_sport"]) == {0xC005} and set(head["tos"]) == {12} and set(head["ttl"]) == {34}
    assert set(head["dst_mac"]) == {0x0A0B0C0D0E0F} and set(head["src_mac"]) == {0x020000000001}
    assert (
        set(head["dst_ip"]) == {0x0A000002}
        and set(head["src_ip"]) == {0x0A000001}
        and set(head["dest_qp"]) == {9}
    )
    frames = packet.frames(head, [bytes(n) for n in head["payload_len"]])
    size = np.array([len(f) for f in frames])
    parsed = packet.parse_headers(np.frombuffer(b"".join(frames), np.uint8), np.cumsum(size) - size, size)
    assert not parsed["reason"].any()


def test_write_headers_with_immediate() -> None:
    """ImmDt and SE on the last packet only, and only with with_imm."""
    recs = good_wqe(1, 0, 2, msg_len=300, with_imm=1, opcode_data=0xABCD, se=1)
    head = rules.write_headers(recs, 0, rules.flow(5, QP, 1, 2), rules.segment(300, 256, with_imm=True))
    assert head["opcode"].tolist() == [Bth.WRITE_FIRST, Bth.WRITE_LAST_IMM]
    assert head["se"].tolist() == [0, 1] and head["imm"].tolist() == [0, 0xABCD]
    dirty = good_wqe(1, 0, 2, msg_len=300, opcode_data=0xABCD, se=1)
    head = rules.write_headers(dirty, 0, rules.flow(5, QP, 1, 2), rules.segment(300, 256))
    assert not head["se"].any() and not head["imm"].any()


def test_ack_headers() -> None:
    """Bytes typed in from wire.md 2 and 3."""
    head = rules.ack_headers([5, 6], [0x1F, 0x61], [1, 1 << 24], rules.flow(5, QP, 1, 2))
    assert [f[42:58].hex() for f in packet.frames(head, [b"", b""])] == [
        "1140ffff00000009000000051f000001", "1140ffff000000090000000661000000",
    ]  # fmt: skip


# ------------------------------------------------------------------------------- completions


def test_cqe_place_and_owner_lap_by_lap() -> None:
    """The owner flips with each lap."""
    for depth in (2, 16, 1024):
        slot, owner = 0, 0
        for producer in range(3 * depth + 1):
            assert (
                int(rules.cqe_slot(producer, depth)) == slot
                and int(rules.cqe_owner(producer, depth)) == owner
            )
            slot += 1
            if slot == depth:
                slot, owner = 0, 1 - owner
    # device.md 8.2: depth 32768
    assert rules.cqe_owner([3, 32771, 2**32 - 1, 2**32], 32768).tolist() == [0, 1, 1, 0]
    assert rules.cqe_slot([3, 32771, 2**32 - 1, 0], 32768).tolist() == [3, 3, 32767, 0]


def test_cq_room() -> None:
    """Full at exactly depth, over the wrap too."""
    producer, ci = [0, 15, 16, (1 << 23) + 3, 3], [0, 0, 0, (1 << 23) - 5, (1 << 23) - 13]
    assert rules.cq_has_room(producer, ci, 16).tolist() == [True, True, False, True, False]


def test_requester_cqe() -> None:
    """Typed in from nic.md 6: a good WRITE, an error, an atomic, a flush, and a fetch error."""
    recs = np.concatenate(
        [good_wqe(1, 5, 2, msg_len=1024), good_wqe(1, 5, 2, with_imm=1), good_wqe(33, 5, 2), good_wqe(1, 5,
        2),
         good_wqe(1, 5, 2, with_imm=1)]
    )  # fmt: skip
    index, error = [5, 131072, 131071, 7, 8], [0, 0xA5, 0, 0xFF, 0xAC]
    got = rules.requester_cqe(recs, index, 0x1802A, error, [15, 16, 31, 32, 48], 16, 2)
    assert got["error_code"].tolist() == error and set(got["qp_id"]) == {0x2A}
    assert got["msg_opcode"].tolist() == [1, 1, 33, 0, 0] and got["with_imm"].tolist() == [0, 1, 0, 0, 0]
    assert got["wqe_id"].tolist() == [40, 0, 0xFFFF8, 56, 64] and got["msg_len"].tolist() == [
        1024,
        0,
        4,
        0,
        0,
    ]
    assert got["owner"].tolist() == [0, 1, 1, 0, 1]
    told = {"error_code", "qp_id", "msg_opcode", "with_imm", "wqe_id", "msg_len", "owner"}
    assert not any(got[name].any() for name in set(CQE_FIELDS.names or ()) - told)
    v1 = rules.requester_cqe(recs[:1], 8193, 2, 0, 0, 16, 1)
    assert v1["wqe_id"].tolist() == [8]
    # G3's mode, device.md 8.2: wqe_id 9 << 3, depth 8
    g3 = rules.requester_cqe(recs[:1], 9, 2, 0, 0, 8, 2, ignore_overrun=True)
    assert g3["owner"].tolist() == [1]


# ------------------------------------------------------------------------------- PSNs


@SETTINGS
@given(st.integers(0, 1 << 26), st.integers(1 - (1 << 23), (1 << 23) - 1) | st.sampled_from([0, 1, -1]))
def test_psn_arithmetic_and_classes(base: int, step: int) -> None:
    """Any distance within half of the space."""
    mod = 1 << 24
    psn = int(rules.psn_add(base, step))
    assert psn == (base + step) % mod and int(rules.psn_diff(psn, base % mod)) == step
    want = PsnClass.EXPECTED if step == 0 else PsnClass.AHEAD if step > 0 else PsnClass.BEHIND
    assert PsnClass(int(rules.psn_class(psn, base % mod))) is want


def test_psn_limits() -> None:
    """The two ends of each class."""
    half = 1 << 23
    assert rules.psn_class([half - 1, half, half + 1], 0).tolist() == [
        PsnClass.AHEAD,
        PsnClass.BEHIND,
        PsnClass.BEHIND,
    ]
    assert rules.ack_class([9, 10, 12, 13], 10, 13).tolist() == [
        PsnClass.BEHIND, PsnClass.EXPECTED, PsnClass.EXPECTED, PsnClass.AHEAD,
    ]  # fmt: skip
    assert rules.ack_class([0xFFFFFF, 1, 2], 0xFFFFFE, 2).tolist() == [
        PsnClass.EXPECTED, PsnClass.EXPECTED, PsnClass.AHEAD,
    ]  # fmt: skip
    assert int(rules.ack_class(10, 10, 10)) == PsnClass.AHEAD  # nothing outstanding


# ------------------------------------------------------------------------------- responder


def test_opcode_sequence() -> None:
    """All pairs of previous and next opcode against the legal words First Middle* Last and Only."""
    send, write = {0: {1, 2, 3}, 1: {1, 2, 3}}, {6: {7, 8, 9}, 7: {7, 8, 9}}
    inside = send | write
    starts = {0, 4, 5, 6, 10, 11, 12, 19, 20, 0xC0, 0xC1, 0xC2, 0xC3}
    before = [-1, *(int(op) for op in Bth)]
    got = rules.sequence_ok(np.array(before)[:, None], np.arange(256)[None, :])
    for row, prev in zip(got, before, strict=True):
        assert set(np.nonzero(row)[0].tolist()) == inside.get(prev, starts), prev


def test_request_lengths() -> None:
    """Every opcode with payload, sizes around the MTU, DMA lengths around the payload: all of them."""
    big = 1 << 31
    cases = [
        (op, payload, mtu, left)
        for op in Bth
        if op <= Bth.WRITE_ONLY_IMM
        for mtu in (256, 1024)
        for payload in (0, 1, 100, mtu - 1, mtu, mtu + 1, mtu + 4)
        for left in {0, 1, max(payload - 1, 0), payload, payload + 1, 10 * mtu, big, big + 1}
    ]
    assert len(cases) > 1000
    got = rules.length_ok(*np.array(cases).T)
    for (op, payload, mtu, left), ok in zip(cases, got.tolist(), strict=True):
        name = op.name.split("_")[1]
        full = name in ("FIRST", "MIDDLE")
        want = payload == mtu if full else (1 if name == "LAST" else 0) <= payload <= mtu
        if op.name.startswith("WRITE"):
            # the Last has at least one byte, so whatever comes before it must leave one
            want = want and (payload < left <= big if full else payload == left)
        assert ok is want, (op, payload, mtu, left)


def verdict(**change: Any) -> Syndrome:
    """Syndrome of a good WRITE Only of 100 bytes, but for the changes."""
    base = {
        "opcode": Bth.WRITE_ONLY, "previous": -1, "payload": 100, "mtu": 256, "remaining": 100,
        "rem_write": True, "rem_read": True, "rem_atomic": True, "mr": MrVerdict.OK,
        "supported": frozenset(Bth),
    }  # fmt: skip
    return Syndrome(int(rules.request_verdict(**{**base, **change})))


def test_request_verdicts() -> None:
    """Every right of the QP, every outcome of the region check."""
    assert verdict() is Syndrome.ACK
    inv, acc = Syndrome.NAK_INV_REQ, Syndrome.NAK_ACCESS
    assert (
        verdict(previous=Bth.WRITE_FIRST) is inv
        and verdict(remaining=99) is inv
        and verdict(rem_write=False) is inv
    )
    for bad in (MrVerdict.KEY, MrVerdict.RIGHT, MrVerdict.RANGE):
        assert verdict(mr=bad) is acc
        assert verdict(mr=bad, rem_write=False) is inv  # NAK 1 before NAK 2
    read = {"opcode": Bth.READ_REQUEST, "payload": 0, "remaining": 0}
    assert (
        verdict(**read, rem_write=False, rem_atomic=False) is Syndrome.ACK
        and verdict(**read, rem_read=False) is inv
    )
    for op in (Bth.CMP_SWAP, Bth.FETCH_ADD, Bth.MCAS64, Bth.MFA64):
        atomic = {"opcode": op, "payload": 0, "remaining": 0}
        assert verdict(**atomic, va=8) is Syndrome.ACK and verdict(**atomic, va=4) is inv
        assert (
            verdict(**atomic, rem_atomic=False) is inv and verdict(**atomic, rem_write=False) is Syndrome.ACK
        )
    for op in (Bth.MCAS32, Bth.MFA32):
        assert (
            verdict(opcode=op, payload=0, va=4) is Syndrome.ACK and verdict(opcode=op, payload=0, va=2) is inv
        )
    send = {"opcode": Bth.SEND_ONLY, "rem_write": False, "rem_read": False, "rem_atomic": False}
    assert verdict(**send) is Syndrome.ACK


def test_requests_that_are_not_built_are_invalid() -> None:
    """NAK 1, for a NIC that lacks them; of those that are built none is."""
    lacking = {"supported": rules.BUILT_REQUESTS - {*range(Bth.WRITE_FIRST), Bth.WRITE_ONLY_IMM}}
    for op in Bth:
        if packet.IS_REQUEST[op] and rules.sequence_ok(-1, op):
            first = op in (Bth.WRITE_FIRST, Bth.SEND_FIRST)
            sends = op <= Bth.SEND_ONLY_IMM or op is Bth.WRITE_ONLY_IMM
            want = Syndrome.NAK_INV_REQ if sends else Syndrome.ACK
            size = {"payload": 256 if first else 100, "remaining": 300 if first else 100}
            if op not in range(Bth.WRITE_ONLY_IMM + 1):
                size["payload"] = 0
            assert verdict(opcode=op, **size, **lacking) is want, op
            assert verdict(opcode=op, **size, supported=rules.BUILT_REQUESTS) is Syndrome.ACK, op


def test_syndromes() -> None:
    """wire.md 3, all 256."""
    known = {*range(0x20), *range(0x20, 0x40), 0x60, 0x61, 0x62, 0x63}
    assert set(np.nonzero(rules.syndrome_known(np.arange(256)))[0].tolist()) == known


def test_nak_errors() -> None:
    """nic.md 4: 89 only for a misaligned atomic."""
    ops = [1, 2, 27, 27, 33, 33, 34]
    addr = [1, 1, 8, 4, 4, 2, 0]
    assert rules.nak_error(0x61, ops, addr).tolist() == [0xA4, 0xA4, 0xA4, 0x89, 0xA4, 0x89, 0xA4]
    assert rules.nak_error([0x62, 0x63, 0x60, 0x1F, 0x20], 27, 4).tolist() == [0xA5, 0xA6, 0, 0, 0]


# ------------------------------------------------------------------------------- acknowledgements


def test_msn_counts_messages_at_their_last_packet() -> None:
    """wire.md 3."""
    last = [0, 3, 4, 20]
    got = rules.msn_at(range(-1, 22), last).tolist()
    assert got == [sum(1 for x in last if x <= p) for p in range(-1, 22)]


def test_ack_verdicts() -> None:
    """Responder that executed PSNs up to 9 (expected 10), last response for PSN 7, MSN 4."""

    def ack(
        psn: int, syndrome: int = 0x1F, msn: int = 4, previous: int = 7, executed: int = 10
    ) -> AckVerdict:
        return AckVerdict(int(rules.ack_verdict(psn, syndrome, msn, previous, executed, 4)))

    assert [ack(p) for p in (7, 8, 9)] == [AckVerdict.OK] * 3  # equal: an ACK repeated for a duplicate
    assert ack(6) is AckVerdict.BACKWARD and ack(6, previous=-1) is AckVerdict.OK
    assert ack(10) is AckVerdict.AHEAD and ack(9, executed=9) is AckVerdict.AHEAD
    for code in (0x60, 0x61, 0x62):
        assert (
            ack(10, code) is AckVerdict.OK
            and ack(9, code) is AckVerdict.NAK_PSN
            and ack(11, code) is AckVerdict.AHEAD
        )
    assert (
        ack(9, 0x63) is AckVerdict.OK and ack(10, 0x63) is AckVerdict.OK and ack(11, 0x63) is AckVerdict.AHEAD
    )
    assert ack(9, msn=5) is AckVerdict.MSN and ack(9, msn=4 + (1 << 24)) is AckVerdict.OK
    for code in (0x00, 0x1E, 0x20, 0x40, 0x64, 0x9F):
        assert ack(9, code) is AckVerdict.SYNDROME
    # over the wrap
    assert ack(1, previous=0xFFFFFF, executed=2) is AckVerdict.OK
    assert ack(0xFFFFFE, previous=0xFFFFFF, executed=2) is AckVerdict.BACKWARD
