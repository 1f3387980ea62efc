"""Contexts: staging words, judgement of commands, and the numbers that model and hardware share.

Sweep: every field, every refusal code, pairs of faults, all state changes; stimulus: tables and hypothesis.
Checks: words built here from the documented bit positions; one code per cause and the lowest of two; a
refused command changes nothing; numbers equal those in the RTL package and the generated register map.
Timing: none. Does not prove that a reset waits for the QP's traffic.
"""

import copy
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.formats.cqe import CqeError
from pymodel.formats.packet import Bth, Syndrome
from pymodel.formats.wqe import WqeOp
from pymodel.nic import csr_map, params
from pymodel.nic.context import (
    CmdObj,
    CmdOp,
    CmdStatus,
    ContextStore,
    CqContext,
    MrContext,
    QpContext,
    QpState,
    command,
    command_writes,
)
from pymodel.nic.rules import Right

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=200)

# (word, lowest bit, width) of every staged field
QP_BITS = {
    "mtu_code": (0, 1, 3), "sl": (0, 4, 3), "rem_write": (0, 7, 1), "rem_read": (0, 8, 1),
    "rem_atomic": (0, 9, 1),
    "tc": (0, 16, 8), "ttl": (0, 24, 8), "udp_sport": (0, 32, 16), "retry_cnt": (0, 48, 3),
    "rnr_retry": (0, 51, 3),
    "timer": (0, 54, 5), "peer_qpn": (1, 0, 24), "peer_ip": (1, 32, 32), "peer_mac": (2, 0, 48),
    "sq_psn": (3, 0, 24), "rq_psn": (3, 32, 24), "sq_base": (4, 0, 64), "rq_base": (5, 0, 64),
    "sq_start_index": (6, 0, 32), "rq_start_index": (6, 32, 32), "send_cq": (7, 0, 16),
    "recv_cq": (7, 16, 16),
    "max_rd_atomic": (7, 32, 8), "max_dest_rd_atomic": (7, 40, 8), "sq_depth": (9, 0, 24),
    "rq_depth": (9, 32, 24),
}  # fmt: skip
CQ_BITS = {
    "base": (0, 0, 64), "depth": (1, 0, 24), "stride": (1, 32, 8), "ignore_overrun": (1, 40, 1),
    "start_index": (2, 0, 32),
}  # fmt: skip
MR_BITS = {
    "base": (0, 0, 64), "loc_write": (2, 1, 1), "rem_write": (2, 2, 1), "rem_read": (2, 3, 1),
    "rem_atomic": (2, 4, 1),
    "ltag": (2, 8, 8), "rtag": (2, 16, 8), "valid": (2, 24, 1),
}  # fmt: skip


def draw_fields(
    data: st.DataObject, bits: dict[str, tuple[int, int, int]]
) -> tuple[dict[str, int], list[int]]:
    """Arbitrary fields and the words that they make."""
    f = {name: data.draw(st.integers(0, (1 << width) - 1)) for name, (_, _, width) in bits.items()}
    words = [0] * 16
    for name, (word, low, _) in bits.items():
        words[word] |= f[name] << low
    return f, words


@SETTINGS
@given(st.data())
def test_staging_words_both_ways(data: st.DataObject) -> None:
    """All three contexts against the bit positions above."""
    f, words = draw_fields(data, QP_BITS)
    version = data.draw(st.sampled_from([1, 2]))
    words[0] |= version == 2
    qp = QpContext(version=version, **f)
    assert qp.stage_words() == words and QpContext.from_words(words) == qp
    f, words = draw_fields(data, CQ_BITS)
    cq = CqContext(**f)
    assert cq.stage_words() == words and CqContext.from_words(words) == cq
    f, words = draw_fields(data, MR_BITS)
    length = data.draw(st.integers(0, 1 << 64) | st.just(1 << 64))
    words[1], words[2] = length % (1 << 64), words[2] | length >> 64
    mr = MrContext(length=length, **f)
    assert mr.stage_words() == words and MrContext.from_words(words) == mr


def test_values_that_do_not_fit_are_refused() -> None:
    """No silent truncation, but start indices count modulo their width (nic.md 2)."""
    for change in ({"mtu_code": 8}, {"peer_qpn": 1 << 24}, {"sq_base": -1}, {"timer": 32}, {"version": 3}):
        with pytest.raises(ValueError):
            good_qp(**change).stage_words()
    assert good_qp(sq_start_index=-1).stage_words()[6] == 0xFFFF_FFFF
    with pytest.raises(ValueError, match="24"):
        command(CmdOp.SET, CmdObj.QP, 1 << 24)


def test_command_words() -> None:
    """Typed in from the documented layout."""
    assert command(CmdOp.SET, CmdObj.QP, 2) == 0x211 and command(CmdOp.QUERY, CmdObj.MR, 255) == 0xFF34
    writes = command_writes(CmdOp.MODIFY, CmdObj.CQ, 7, [5, 6])
    assert writes == [(0x1_0100, 5), (0x1_0108, 6), (0x1_0000, 0x722)]


def test_derived_values_of_a_context() -> None:
    """MTU, default source port, keys."""
    assert [good_qp(mtu_code=code).mtu for code in range(1, 6)] == [256, 512, 1024, 2048, 4096]
    assert (
        good_qp().sport(0x2A) == 0xC02A
        and good_qp().sport(0x4001) == 0xC001
        and good_qp(udp_sport=7).sport(9) == 7
    )
    mr = MrContext(0, 1, ltag=0x12, rtag=0x34)
    assert (mr.lkey(3), mr.rkey(3)) == (0x312, 0x334)
    with pytest.raises(ValueError, match="MTU"):
        params.mtu_bytes(0)


# ------------------------------------------------------------------------------- judgement


def good_qp(**change: Any) -> QpContext:
    """A QP that is accepted in the store of `store()`."""
    fields = {
        "peer_qpn": 3,
        "peer_mac": 1,
        "peer_ip": 2,
        "sq_base": 0x1000,
        "sq_depth": 16,
        "send_cq": 0,
        "recv_cq": 1,
    }
    return QpContext(**{**fields, **change})


def store() -> ContextStore:
    """CQs 0 and 1 with 16 slots, CQ 2 in overrun mode, and an MR."""
    s = ContextStore()
    for cqn, cq in enumerate(
        (CqContext(0x4000, 16), CqContext(0x8000, 16, 32), CqContext(0x9000, 16, 64, True))
    ):
        assert s.execute(command(CmdOp.SET, CmdObj.CQ, cqn), cq.stage_words()) is CmdStatus.OK
    assert s.execute(command(CmdOp.SET, CmdObj.MR, 9), MrContext(0, 1 << 64).stage_words()) is CmdStatus.OK
    return s


def set_qp(s: ContextStore, qpn: int = 2, flip: dict[int, int] | None = None, **change: Any) -> CmdStatus:
    """Code of set QP; flip: bits to toggle in the staged words."""
    words = good_qp(**change).stage_words()
    for word, bits in (flip or {}).items():
        words[word] ^= bits
    return s.execute(command(CmdOp.SET, CmdObj.QP, qpn), words)


S = CmdStatus
QP_FAULTS: list[tuple[CmdStatus, dict[str, Any]]] = [
    (S.BAD_INDEX, {"qpn": 1}), (S.BAD_INDEX, {"qpn": 0}), (S.BAD_INDEX, {"qpn": 66}),
    (S.BAD_DEPTH, {"sq_depth": 1}), (S.BAD_DEPTH, {"sq_depth": 12}), (S.BAD_DEPTH, {"sq_depth": 0}),
    (S.BAD_DEPTH, {"version": 1, "sq_depth": 1 << 14}), (S.BAD_DEPTH, {"sq_depth": 1 << 18}),
    (S.BAD_DEPTH, {"rq_depth": 3}), (S.BAD_DEPTH, {"rq_depth": 1 << 17}),
    (S.BAD_BASE, {"sq_base": 0x1040}), (S.BAD_BASE, {"rq_depth": 16, "rq_base": 8}),
    (S.BAD_MTU, {"mtu_code": 0}), (S.BAD_MTU, {"mtu_code": 6}),
    (S.BAD_CQ, {"send_cq": 3}), (S.BAD_CQ, {"recv_cq": 64}), (S.BAD_CQ, {"send_cq": 256}),
    (S.CQ_TOO_SMALL, {"sq_depth": 32}),
    (S.BAD_RD_ATOMIC, {"max_rd_atomic": 17}), (S.BAD_RD_ATOMIC, {"max_dest_rd_atomic": 17}),
    *[(S.RESERVED, {"flip": {word: 1 << bit}}) for word, bit in (
        (0, 10), (0, 15), (0, 59), (0, 63), (1, 24), (1, 31), (2, 48), (3, 24), (3, 56), (7, 48), (9, 24),
        (9, 63))],
]  # fmt: skip


@pytest.mark.parametrize("fault", range(len(QP_FAULTS)))
def test_each_refusal_of_a_qp(fault: int) -> None:
    """Its own code, and nothing changed; with a second fault the lower code."""
    code, change = QP_FAULTS[fault]
    s = store()
    before = copy.deepcopy(s)
    assert set_qp(s, **change) is code and s == before
    for other, extra in QP_FAULTS:
        if set(extra) & set(change) or {*extra, *change} >= {"sq_depth", "version"}:
            continue
        if code is S.CQ_TOO_SMALL and "send_cq" in extra:
            continue  # a CQ that does not exist has no depth
        assert set_qp(s, **change, **extra) is min(code, other), extra


def test_good_qps() -> None:
    """The edges of what is accepted."""
    for change in ({"version": 1}, {"max_rd_atomic": 0}, {"sq_depth": 2}, {"rq_base": 8}, {"send_cq": 2},
                   {"rq_depth": 16, "rq_base": 16}, {"flip": {8: 3}}, {"qpn": 65},
                   {"mtu_code": 1}):  # fmt: skip
        assert set_qp(store(), **change) is S.OK, change
    s = store()
    s.cqs[0] = CqContext(0, 1 << 22)
    for version, depth in ((1, 1 << 13), (2, 1 << 17)):
        assert set_qp(s, 2 + version, version=version, sq_depth=depth) is S.OK


def test_states_of_a_qp() -> None:
    """RESET -> RTS by set, RTS -> ERR by modify, any -> RESET by reset; the rest is BAD_STATE."""
    s = store()
    words = good_qp(sl=5, tc=1, sq_psn=77).stage_words()
    modify = command(CmdOp.MODIFY, CmdObj.QP, 2)

    def to(state: int) -> CmdStatus:
        words[8] = state
        return s.execute(modify, words)

    assert to(QpState.RTS) is S.BAD_STATE and to(QpState.ERR) is S.BAD_STATE
    assert set_qp(s) is S.OK and s.state(2) is QpState.RTS and set_qp(s) is S.BAD_STATE
    assert to(QpState.RESET) is S.BAD_STATE and to(3) is S.BAD_STATE and s.qps[2].sl == 0
    assert to(QpState.RTS) is S.OK and (s.qps[2].sl, s.qps[2].tc, s.qps[2].sq_psn) == (5, 1, 0)
    assert to(QpState.ERR | 4) is S.RESERVED and s.state(2) is QpState.RTS
    assert to(QpState.ERR) is S.OK and s.state(2) is QpState.ERR
    assert to(QpState.RTS) is S.BAD_STATE and to(QpState.ERR) is S.OK and set_qp(s) is S.BAD_STATE
    for _ in range(2):
        assert s.execute(command(CmdOp.RESET, CmdObj.QP, 2), []) is S.OK and s.state(2) is QpState.RESET
    assert set_qp(s) is S.OK


def test_only_the_fields_of_modify_change() -> None:
    """sl, tc, ttl, rights, retries and timer; everything else stays as programmed."""
    other = QpContext(
        peer_qpn=9, peer_mac=9, peer_ip=9, sq_base=0x9000, sq_depth=8, send_cq=1, recv_cq=0, version=1,
        mtu_code=1,
        sl=1, rem_write=False, rem_read=False, rem_atomic=False, tc=9, ttl=9, udp_sport=9, retry_cnt=1,
        rnr_retry=1,
        timer=1, sq_psn=9, rq_psn=9, rq_base=9, rq_depth=4, sq_start_index=9, rq_start_index=9,
        max_rd_atomic=1,
        max_dest_rd_atomic=1,
    )  # fmt: skip
    after, before = good_qp().modified(other), good_qp()
    changed = {name for name in QP_BITS if getattr(after, name) != getattr(before, name)}
    assert changed == {
        "sl",
        "tc",
        "ttl",
        "rem_write",
        "rem_read",
        "rem_atomic",
        "retry_cnt",
        "rnr_retry",
        "timer",
    }
    assert after.version == 2


@pytest.mark.parametrize(
    ("code", "change", "flip"),
    [
        (S.OK, {}, {}), (S.OK, {"depth": 1 << 22}, {}), (S.OK, {"stride": 32, "base": 0x20}, {}),
        (S.BAD_DEPTH, {"depth": 1}, {}), (S.BAD_DEPTH, {"depth": 3}, {}),
        (S.BAD_DEPTH, {"depth": 1 << 23}, {}),
        (S.BAD_BASE, {"base": 0x20}, {}), (S.BAD_BASE, {"base": 0x10, "stride": 32}, {}),
        (S.BAD_STRIDE, {"stride": 48}, {}), (S.BAD_STRIDE, {"stride": 128}, {}),
        (S.RESERVED, {}, {1: 1 << 24}), (S.RESERVED, {}, {1: 1 << 41}), (S.RESERVED, {}, {2: 1 << 32}),
        (S.BAD_DEPTH, {"depth": 3, "stride": 48}, {2: 1 << 63}), (S.BAD_STRIDE, {"stride": 48}, {2: 1 << 63}),
    ],
)  # fmt: skip
def test_each_refusal_of_a_cq(code: CmdStatus, change: dict[str, Any], flip: dict[int, int]) -> None:
    """Codes of set CQ."""
    s = store()
    words = CqContext(**{"base": 0x40, "depth": 4, **change}).stage_words()
    for word, bits in flip.items():
        words[word] ^= bits
    before = copy.deepcopy(s)
    assert s.execute(command(CmdOp.SET, CmdObj.CQ, 63), words) is code
    assert (s == before) is (code is not S.OK)
    assert s.execute(command(CmdOp.SET, CmdObj.CQ, 64), words) is S.BAD_INDEX


def test_a_cq_in_use_is_not_programmed() -> None:
    """Neither as send nor as receive CQ, in RTS or ERR; free again after the reset."""
    s = store()
    assert set_qp(s) is S.OK
    for cqn in (0, 1):
        assert s.execute(command(CmdOp.SET, CmdObj.CQ, cqn), CqContext(0, 4).stage_words()) is S.CQ_IN_USE
    s.states[2] = QpState.ERR
    assert s.execute(command(CmdOp.SET, CmdObj.CQ, 0), CqContext(0, 4).stage_words()) is S.CQ_IN_USE
    assert s.execute(command(CmdOp.RESET, CmdObj.QP, 2), []) is S.OK
    assert s.execute(command(CmdOp.SET, CmdObj.CQ, 0), CqContext(0, 4).stage_words()) is S.OK


def test_a_cq_in_overrun_mode_serves_one_qp() -> None:
    """nic.md 2; the same QP may use it for both directions."""
    s = store()
    assert set_qp(s, 2, send_cq=2, recv_cq=2) is S.OK
    assert set_qp(s, 3, send_cq=2) is S.CQ_IN_USE and set_qp(s, 3, recv_cq=2) is S.CQ_IN_USE
    assert s.execute(command(CmdOp.RESET, CmdObj.QP, 2), []) is S.OK and set_qp(s, 3, send_cq=2) is S.OK


TOP = 1 << 64


@pytest.mark.parametrize(
    ("code", "change", "flip"),
    [
        (S.OK, {"base": 0, "length": TOP}, {}), (S.OK, {"base": TOP - 1, "length": 1}, {}),
        (S.OK, {"base": 5, "length": 0}, {}),
        (S.OK, {"loc_write": False, "rem_write": False, "rem_atomic": False}, {}),
        (S.BAD_RANGE, {"base": 1, "length": TOP}, {}), (S.BAD_RANGE, {"base": TOP - 1, "length": 2}, {}),
        (S.BAD_RANGE, {"base": 0, "length": TOP + 1}, {}),
        (S.BAD_RIGHTS, {"loc_write": False, "rem_atomic": False}, {}),
        (S.BAD_RIGHTS, {"loc_write": False, "rem_write": False}, {}),
        (S.RESERVED, {}, {2: 1 << 5}), (S.RESERVED, {}, {2: 1 << 25}), (S.RESERVED, {}, {2: 1 << 63}),
        (S.OK, {"valid": False, "base": 1, "length": TOP, "loc_write": False}, {2: 1 << 63}),
    ],
)  # fmt: skip
def test_each_refusal_of_an_mr(code: CmdStatus, change: dict[str, Any], flip: dict[int, int]) -> None:
    """Codes of set MR; invalidating one asks for nothing else."""
    words = MrContext(**{"base": 0x1000, "length": 64, **change}).stage_words()
    for word, bits in flip.items():
        words[word] ^= bits
    s = store()
    assert s.execute(command(CmdOp.SET, CmdObj.MR, 255), words) is code
    assert (255 in s.mrs) is (code is S.OK and change.get("valid", True))
    assert s.execute(command(CmdOp.SET, CmdObj.MR, 256), words) is S.BAD_INDEX


def test_an_invalidated_mr_is_gone() -> None:
    """And its index free again."""
    s = store()
    assert s.execute(command(CmdOp.SET, CmdObj.MR, 9), MrContext(0, 1, valid=False).stage_words()) is S.OK
    assert not s.mrs


def test_malformed_commands() -> None:
    """Every op and object code; reserved bits of CMD; the lowest code of several."""
    for op, obj in itertools.product(range(16), range(16)):
        got = store().judge(5 << 8 | obj << 4 | op, good_qp().stage_words())
        if op not in (1, 2, 3, 4):
            assert got is S.BAD_OP
        elif obj not in (1, 2, 3) or (op in (2, 3) and obj != 1):
            assert got is S.BAD_OBJECT
        else:
            assert got not in (S.BAD_OP, S.BAD_OBJECT, S.BAD_INDEX)
    query = command(CmdOp.QUERY, CmdObj.QP, 2)
    assert store().judge(query | 1 << 32, []) is S.RESERVED and store().judge(query, []) is S.OK
    assert store().judge(command(CmdOp.QUERY, CmdObj.QP, 1) | 1 << 63, []) is S.BAD_INDEX


def test_query() -> None:
    """What was set comes back, with state and indices of a QP."""
    s = store()
    assert set_qp(s, sl=3) is S.OK
    want = good_qp(sl=3).stage_words()
    want[8], want[10] = 1, 7 << 32 | 9
    assert s.query_words(CmdObj.QP, 2, producer=9, retired=7) == want
    assert s.query_words(CmdObj.CQ, 1) == CqContext(0x8000, 16, 32).stage_words()
    assert s.query_words(CmdObj.MR, 9) == MrContext(0, 1 << 64).stage_words()
    assert (
        s.query_words(CmdObj.MR, 10) == [0] * 16 == s.query_words(CmdObj.CQ, 9) == s.query_words(CmdObj.QP, 9)
    )


# ------------------------------------------------------------------------------- numbers shared with RTL

PACKAGE = Path(__file__).resolve().parents[2] / "rtl" / "rnic_pkg.sv"


def sv_enum(name: str) -> dict[str, int]:
    """Members of an enum of the RTL package, by name."""
    text = re.sub(r"//.*", "", PACKAGE.read_text())
    body = re.search(r"typedef enum logic \[[^]]*\] \{([^}]*)\} " + name + ";", text)
    assert body, name
    bases = {"d": 10, "h": 16}
    found = re.findall(r"(\w+)\s*=\s*\d+'([dh])(\w+)", body[1])
    assert len(found) == body[1].count("=")
    return {member: int(value, bases[base]) for member, base, value in found}


@pytest.mark.parametrize(
    ("enum", "ours"),
    [("cnt_e", params.Cnt), ("axi_id_e", params.AxiId), ("async_e", params.AsyncKind), ("bth_op_e", Bth),
     ("cqe_err_e", CqeError), ("wqe_op_e", WqeOp), ("right_e", Right), ("qp_state_e", QpState)],
)  # fmt: skip
def test_numbers_written_down_twice_are_the_same(enum: str, ours: Any) -> None:
    """Values as sets; for counters also the names, letter by letter but for case and underscores."""
    theirs = sv_enum(enum)
    assert sorted(theirs.values()) == sorted(int(member) for member in ours)
    if enum == "cnt_e":
        assert {k.removeprefix("Cnt").lower(): v for k, v in theirs.items()} == {
            m.name.replace("_", "").lower(): int(m) for m in ours
        }


def test_sizes_of_the_package() -> None:
    """Parameters that both sides name."""
    text = PACKAGE.read_text()

    def value(name: str) -> int:
        found = re.search(rf"localparam int unsigned {name} = (\d+);", text)
        assert found, name
        return int(found[1])

    p = params.DEFAULT_PARAMS
    names = {
        "NumQp": p.num_qp, "FirstQpn": p.first_qpn, "NumCq": p.num_cq, "NumMr": p.num_mr,
        "NumLane": p.num_lane,
        "MaxInflight": p.max_inflight, "MaxFetch": p.max_fetch, "AckInterval": p.ack_interval,
        "DataBytes": p.data_bytes, "WqeBytes": 128,
    }  # fmt: skip
    assert {name: value(name) for name in names} == names
    syndromes = re.findall(r"localparam logic \[7:0\] Syn\w+ = 8'h(\w+);", text)
    # 001ttttt: RNR NAK (wire.md 5)
    assert sorted(int(x, 16) for x in syndromes) == sorted([*Syndrome, 0x20 | p.rnr_timer])


def test_register_map_is_the_generated_one() -> None:
    """Offsets here, written by hand, against those that come from the register description."""
    for csr in params.Csr:
        theirs = {"CONFIG": "CFG_SIZES", "TIME": "TIME_NOW"}.get(csr.name, csr.name)
        assert getattr(csr_map, theirs) == csr, csr.name
    assert (csr_map.CMD, csr_map.STATUS, csr_map.STAGE) == (
        params.CMD_REG,
        params.CMD_STATUS,
        params.CMD_STAGE,
    )
    assert csr_map.STAGE_ENTRIES == params.STAGE_WORDS and csr_map.COUNTERS_ENTRIES > max(params.Cnt)


def test_qp_numbers_and_doorbell_addresses() -> None:
    """nic.md 1 to 3."""
    p = params.DEFAULT_PARAMS
    assert [p.qp_index(q) for q in (2, 65)] == [0, 63]
    for qpn in (0, 1, 66):
        with pytest.raises(ValueError, match="QPN"):
            p.qp_index(qpn)
    assert [p.db_address(3, off) for off in (p.db_sq, p.db_rq, p.db_cq)] == [
        0x800_3000,
        0x800_3008,
        0x800_3010,
    ]
