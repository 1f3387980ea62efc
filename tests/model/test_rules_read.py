"""Rules of READ, and of the order of READs and atomics: start, request, responder's checks, responses.

Sweep: lengths around every MTU, all response opcodes at every position, all request faults alone and in
pairs, all syndromes of all response opcodes, fence and limits around their edges. Stimulus: tables and
hypothesis. Checks: a walk over the bytes, typed-in bytes and a list of causes in the order of the wire page.
Timing: none. Does not prove that a NIC asks these rules at the right moment.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.formats import packet, wqe
from pymodel.formats.cqe import CqeError
from pymodel.formats.packet import Bth, Syndrome
from pymodel.formats.wqe import WqeOp
from pymodel.nic import rules
from pymodel.nic.context import MrContext, QpContext
from pymodel.nic.rules import MrVerdict, RequestFault

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=300)
MTUS = (256, 512, 1024, 2048, 4096)
QP = QpContext(
    peer_qpn=9, peer_mac=0x0A0B0C0D0E0F, peer_ip=0x0A000002, sq_base=0, sq_depth=16, send_cq=0, recv_cq=0,
    mtu_code=1, tc=12, ttl=34,
)  # fmt: skip
ATOMICS = {26: (0x13, 8), 27: (0x14, 8), 31: (0xC0, 8), 32: (0xC1, 8), 33: (0xC2, 4), 34: (0xC3, 4)}


def walk(length: int, mtu: int) -> list[tuple[int, int, int]]:
    """(offset, bytes, opcode) of the responses of a READ."""
    out: list[tuple[int, int, int]] = []
    offset = 0
    while True:
        size = min(length - offset, mtu)
        first, last = offset == 0, offset + size == length
        out.append((offset, size, 0x10 if first and last else 0x0D if first else 0x0F if last else 0x0E))
        offset += size
        if last:
            return out


# ------------------------------------------------------------------------------- requests and responses


@pytest.mark.parametrize("mtu", MTUS)
def test_responses_of_every_length(mtu: int) -> None:
    """Around each multiple of the MTU; as many PSNs as responses."""
    lengths = [n for k in (0, 1, 2, 3, 17) for n in (k * mtu - 1, k * mtu, k * mtu + 1) if n >= 0]
    cut = rules.read_segment(lengths, mtu)
    want = [walk(n, mtu) for n in lengths]
    assert cut.packets.tolist() == [len(w) for w in want] == rules.psn_count(lengths, mtu).tolist()
    got = zip(cut.offset.tolist(), cut.length.tolist(), cut.opcode.tolist(), strict=True)
    assert list(got) == [p for w in want for p in w]
    assert not cut.ackreq.any()


def test_read_request_packets() -> None:
    """Typed in: RETH, AckReq, and a PSN of the whole READ's first response."""
    fields = {"msg_opcode": 2, "msg_len": [600, 0], "raddr": [0x1122334455667788, 1], "rkey": 0xA1A2A3A4}
    recs = wqe.unpack(wqe.pack({**fields, "r_len": [600, 0], "l_len": [600, 0]}, 2), 2)
    head = rules.read_headers(recs, [0xFFFFFE, 1], rules.flow(5, QP, 0x020000000001, 0x0A000001))
    assert [f[42:-4].hex() for f in packet.frames(head, [b"", b""])] == [
        "0c40ffff0000000980fffffe1122334455667788a1a2a3a400000258",
        "0c40ffff00000009800000010000000000000001a1a2a3a400000000",
    ]
    assert set(head["udp_sport"]) == {0xC005} and set(head["tos"]) == {12} and set(head["ttl"]) == {34}


def test_read_response_packets() -> None:
    """Typed in: three responses over the PSN wrap, then the only one of an empty READ."""
    cut = rules.read_segment([600, 0], 256)
    head = rules.read_response_headers([0xFFFFFF, 2], [7, (1 << 24) + 8], rules.flow(5, QP, 1, 2), cut)
    assert head["msn"].tolist() == [7, 0, 7, 8] and head["syndrome"].tolist() == [0x1F, 0, 0x1F, 0x1F]
    data = [bytes([n]) * size for n, size in enumerate([256, 256, 88, 0])]
    frames = packet.frames(head, data)
    assert [f[42:58].hex() for f in (frames[0], frames[2], frames[3])] == [
        "0d40ffff0000000900ffffff1f000007",
        "0f40ffff00000009000000011f000007",
        "1040ffff00000009000000021f000008",
    ]
    assert frames[1][42:56].hex() == "0e40ffff00000009000000000101", "no AETH in a Middle"
    size = np.array([len(f) for f in frames])
    parsed = packet.parse_headers(np.frombuffer(b"".join(frames), np.uint8), np.cumsum(size) - size, size)
    assert not parsed["reason"].any() and parsed["payload_len"].tolist() == [256, 256, 88, 0]


# ------------------------------------------------------------------------------- start of a WQE


def may_start(op: int, **change: Any) -> bool:
    """A WQE of one PSN of a QP with nothing on its way, but for the changes."""
    base = {"fence_mode": 0, "unacked": 0, "psns": 1, "rd_outstanding": 0, "max_rd_atomic": 4}
    return bool(rules.may_start(op, **{**base, **change}))


def test_limits_of_reads_and_atomics() -> None:
    """nic.md 2, wire.md 5: at most max_rd_atomic outstanding, which holds back no WRITE."""
    for op in WqeOp:
        waits = op in (WqeOp.READ, *ATOMICS)
        for most in (1, 4, 16):
            got = [may_start(op, rd_outstanding=n, max_rd_atomic=most) for n in range(most + 2)]
            assert got == [True] * most + [not waits] * 2, (op, most)
        assert may_start(op, max_rd_atomic=0), "never waits for what cannot come: it fails"


def test_fence_waits_for_reads_and_atomics_only() -> None:
    """nic.md 4, 5: fence_mode 1; WRITEs on their way hold back nothing."""
    for op, mode, held, unacked in itertools.product(WqeOp, range(4), range(3), (0, 5)):
        want = not (mode == 1 and held)
        assert may_start(op, fence_mode=mode, rd_outstanding=held, unacked=unacked) is want


def test_psn_window() -> None:
    """wire.md 5: fewer than 2^22 unacknowledged; a larger READ goes alone; a WRITE looks packet by packet."""
    window = 1 << 22
    for op in (WqeOp.READ, WqeOp.CAS64):
        for unacked, psns in ((1, window - 2), (window - 2, 1)):
            assert may_start(op, unacked=unacked, psns=psns)
            assert not may_start(op, unacked=unacked, psns=psns + 1)
            assert not may_start(op, unacked=unacked + 1, psns=psns)
        for psns in (window - 1, window, 1 << 23):
            assert may_start(op, psns=psns) and not may_start(op, psns=psns, unacked=1)
    assert may_start(WqeOp.WRITE, unacked=window - 2, psns=1 << 23)
    assert not may_start(WqeOp.WRITE, unacked=window - 1)
    assert may_start(2, unacked=5, psns=4) and not bool(rules.may_start(2, 0, 5, 4, 0, 4, window=9))


def wqe_of(op: int, **change: int) -> Any:
    """A good READ or atomic at index 5."""
    f: dict[str, int] = {"msg_opcode": op, "ce": 1, "wqe_id": 40, "lkey": 0x107, "laddr": 0x1000, "raddr": 0}
    if op in ATOMICS:
        size = ATOMICS[op][1]
        msg = {26: 16, 27: 16, 31: 32, 32: 16, 33: 16, 34: 8}[op]
        f |= {"in_line": 1, "ds_data_num": 4 if op == 31 else 3, "msg_len": msg, "l_len": size, "r_len": size}
    else:
        f |= {"ds_data_num": 2, "msg_len": 100, "l_len": 100, "r_len": 100}
    rec = np.zeros(1, wqe.WQE_FIELDS)
    for name, value in (f | change).items():
        rec[name] = value
    return rec


def test_max_rd_atomic_0_refuses() -> None:
    """A READ or atomic of such a QP is ab, between the lengths and the local key; nothing else is."""
    mrs = rules.mr_table({1: MrContext(0x1000, 0x1000, ltag=7)})
    ab, length = CqeError.SND_WQE_FORMAT, CqeError.SND_WQE_LEN
    for op in (1, 2, *ATOMICS):
        none = ab if op != 1 else CqeError.OK
        for change, with_0, with_1 in (
            ({}, none, CqeError.OK), ({"l_len": 3}, length, length),
            ({"lkey": 0}, none or CqeError.LOCAL_MR_REQ, CqeError.LOCAL_MR_REQ),
        ):  # fmt: skip
            got = [
                CqeError(int(rules.wqe_check(wqe_of(op, **change), 5, 2, mrs=mrs, max_rd_atomic=n)[0]))
                for n in (0, 1)
            ]
            assert got == [with_0, with_1], (op, change)


def test_local_sinks() -> None:
    """nic.md 4: 8 or 4 bytes of an atomic at any address, a READ as a whole; each needs local write."""
    mrs = rules.mr_table({1: MrContext(0x1000, 0x40, ltag=7), 2: MrContext(0x1000, 0x40, False, False)})
    for op, size in ((2, 100), (2, 64), *((op, size) for op, (_, size) in ATOMICS.items())):
        lengths = {"msg_len": size, "l_len": size, "r_len": size} if op == 2 else {}
        for at in (0xFFF, 0x1000, 0x1001, 0x1040 - size, 0x1041 - size):
            fits = at >= 0x1000 and at + size <= 0x1040
            for lkey in (0x107, 0x200):
                rec = wqe_of(op, laddr=at, lkey=lkey, **lengths)
                want = CqeError.OK if fits and lkey == 0x107 else CqeError.LOCAL_MR_REQ
                assert CqeError(int(rules.wqe_check(rec, 5, 2, mrs=mrs)[0])) is want, (op, at, lkey)
    empty = wqe_of(2, msg_len=0, l_len=0, r_len=0, lkey=0xDEAD00)
    assert int(rules.wqe_check(empty, 5, 2, mrs=mrs)[0]) == CqeError.OK


def test_completion_lengths() -> None:
    """nic.md 6: bytes moved by a READ, 8 or 4 of an atomic, 0 with an error."""
    recs = np.concatenate([wqe_of(op) for op in (2, *ATOMICS)])
    good = rules.requester_cqe(recs, 5, 7, 0, 0, 16, 2)
    assert good["msg_len"].tolist() == [100, 8, 8, 8, 8, 4, 4]
    assert good["msg_opcode"].tolist() == [2, *ATOMICS]
    for code in (0x89, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8, 0xAA, 0xB3):
        bad = rules.requester_cqe(recs, 5, 7, code, 0, 16, 2)
        assert not bad["msg_len"].any() and bad["msg_opcode"].tolist() == [2, *ATOMICS]


def test_owner_of_an_ignore_overrun_cq() -> None:
    """device.md 2.6: as the driver computes it, from the wqe_id of the CQE."""
    rec = wqe_of(2)
    for version, bits in ((1, 13), (2, 17)):
        for depth in (2, 16, 1 << 12, 1 << 13, 1 << 16, 1 << 17):
            for index in (0, 1, depth - 1, depth, depth + 1, (1 << bits) - 1, 1 << bits, (1 << bits + 1) - 1):
                got = rules.requester_cqe(rec, index, 7, 0, 3, depth, version, ignore_overrun=True)[0]
                assert int(got["owner"]) == (index % (1 << bits)) // depth % 2
                assert int(got["owner"]) == (int(got["wqe_id"]) >> 3) // depth % 2


# ------------------------------------------------------------------------------- responder

#: fault -> what brings it about, by kind of request; the order is that of the checks
READ_FAULTS: dict[RequestFault, list[dict[str, Any]]] = {
    RequestFault.OPCODE: [{"supported": frozenset({Bth.WRITE_ONLY})}],
    RequestFault.SEQUENCE: [{"previous": Bth.WRITE_FIRST}, {"previous": Bth.WRITE_MIDDLE}],
    RequestFault.LENGTH: [{"remaining": (1 << 31) + 1}, {"remaining": (1 << 32) - 1}],
    RequestFault.QP_RIGHT: [{"rem_read": False}],
    RequestFault.TOO_MANY: [{"table_full": True}],
    RequestFault.ACCESS: [{"mr": m} for m in (MrVerdict.KEY, MrVerdict.RIGHT, MrVerdict.RANGE)],
}
ATOMIC_FAULTS = {
    **{f: c for f, c in READ_FAULTS.items() if f not in (RequestFault.LENGTH, RequestFault.QP_RIGHT)},
    RequestFault.QP_RIGHT: [{"rem_atomic": False}],
    RequestFault.MISALIGNED: [{"va": 0x1001}, {"va": 0x1002}],
}


def fault(opcode: int, **change: Any) -> RequestFault:
    """What is wrong with a good READ or atomic, but for the changes."""
    base = {"previous": -1, "payload": 0, "mtu": 256, "remaining": 100, "rem_write": True, "rem_read": True,
            "rem_atomic": True, "mr": MrVerdict.OK, "va": 0x1000}  # fmt: skip
    got = RequestFault(int(rules.request_fault(opcode, **{**base, **change})))
    syndrome = Syndrome(int(rules.request_verdict(opcode, **{**base, **change})))
    inv = Syndrome.ACK if got is RequestFault.OK else Syndrome.NAK_INV_REQ
    assert syndrome is (Syndrome.NAK_ACCESS if got is RequestFault.ACCESS else inv)
    return got


@pytest.mark.parametrize("opcode", [Bth.READ_REQUEST, *packet.ATOMIC_BTH])
def test_request_faults_alone_and_in_pairs(opcode: Bth) -> None:
    """The first in the order of the checks wins; what another kind of request needs does not matter."""
    faults = READ_FAULTS if opcode is Bth.READ_REQUEST else ATOMIC_FAULTS
    others = {"rem_write": False, ("rem_atomic" if opcode is Bth.READ_REQUEST else "rem_read"): False}
    assert fault(opcode) is fault(opcode, **others) is RequestFault.OK
    for kind, changes in faults.items():
        for change in changes:
            assert fault(opcode, **change) is fault(opcode, **change, **others) is kind
            for later, more in faults.items():
                if later > kind:
                    assert fault(opcode, **{**more[0], **change}) is kind, (kind, later)


def test_edges_of_the_request_checks() -> None:
    """Longest READ, alignment by size, a full table refuses no WRITE, what may follow what."""
    assert (
        fault(Bth.READ_REQUEST, remaining=1 << 31) is fault(Bth.READ_REQUEST, remaining=0) is RequestFault.OK
    )
    for opcode, size in ATOMICS.values():
        for low in range(16):
            want = RequestFault.MISALIGNED if low % size else RequestFault.OK
            assert fault(opcode, va=0x1000 + low) is want
    write = {"payload": 100, "remaining": 100}
    assert fault(Bth.WRITE_ONLY, table_full=True, **write) is RequestFault.OK
    for before in (Bth.WRITE_LAST, Bth.WRITE_ONLY, Bth.READ_REQUEST, *packet.ATOMIC_BTH):
        assert fault(Bth.READ_REQUEST, previous=before) is RequestFault.OK
        assert fault(Bth.WRITE_ONLY, previous=before, **write) is RequestFault.OK


def test_rights_of_requests() -> None:
    """nic.md 2: which right of the region each request needs, and which requests take an entry."""
    right = rules.REQUEST_RIGHT
    assert right[Bth.READ_REQUEST] == rules.Right.REM_READ
    assert {int(right[op]) for op in packet.ATOMIC_BTH} == {rules.Right.REM_ATOMIC}
    assert set(right[Bth.WRITE_FIRST : Bth.WRITE_ONLY_IMM + 1].tolist()) == {rules.Right.REM_WRITE}
    assert not right[: Bth.WRITE_FIRST].any()
    assert set(np.nonzero(rules.TAKES_ENTRY)[0].tolist()) == {0x0C, 0x13, 0x14, 0xC0, 0xC1, 0xC2, 0xC3}


# ------------------------------------------------------------------------------- requester


def response(
    opcode: int, payload: int, atomic: bool, remaining: int, first: bool, mtu: int = 256
) -> CqeError:
    """Code of one response."""
    return CqeError(int(rules.response_error(opcode, payload, mtu, atomic, remaining, first)))


@pytest.mark.parametrize("mtu", MTUS)
@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 4095, 4096, 4097, 8192, 20000])
def test_responses_are_judged_by_their_place(mtu: int, length: int) -> None:
    """Every opcode at every place, with the right and with wrong lengths."""
    for offset, size, opcode in walk(length, mtu):
        for got in (0x0D, 0x0E, 0x0F, 0x10, 0x12):
            for payload in {size, 0, size + 1, max(size - 1, 0), mtu, mtu + 4}:
                want = CqeError.READ_RSP_OPCODE if got != opcode else CqeError.OK
                if want is CqeError.OK and payload != size:
                    want = CqeError.READ_RSP_LEN
                assert response(got, payload, False, length - offset, offset == 0, mtu) is want


def test_atomics_take_an_atomic_acknowledge_only() -> None:
    """And a READ takes none."""
    for opcode in (0x0D, 0x0E, 0x0F, 0x10):
        assert response(opcode, 0, True, 16, True) is CqeError.READ_RSP_OPCODE
    assert response(0x12, 0, True, 16, True) is CqeError.OK
    assert response(0x12, 0, False, 0, True) is CqeError.READ_RSP_OPCODE


@SETTINGS
@given(st.sampled_from([0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12]), st.integers(0, 255))
def test_syndromes_of_responses(opcode: int, syndrome: int) -> None:
    """Only an Acknowledge may carry NAK and RNR; a Middle carries nothing."""
    ack, rnr, nak = syndrome < 0x20, 0x20 <= syndrome < 0x40, 0x60 <= syndrome <= 0x63
    want = {0x11: ack or rnr or nak, 0x0E: True}.get(opcode, ack)
    assert bool(rules.response_syndrome_ok(opcode, syndrome)) is want


def test_naks_behind_reads() -> None:
    """A NAK 2 names the expected PSN, or one of a READ or atomic that was accepted before."""
    late = {"executed": 10, "msn_expected": 4, "previous": 7}
    verdict = rules.AckVerdict
    for code, psn, flag, want in (
        (0x62, 9, False, verdict.NAK_PSN), (0x62, 9, True, verdict.OK), (0x62, 10, True, verdict.OK),
        (0x62, 11, True, verdict.AHEAD), (0x61, 9, True, verdict.NAK_PSN), (0x62, 6, True, verdict.BACKWARD),
    ):  # fmt: skip
        assert int(rules.ack_verdict(psn, code, 4, **late, late_access=flag)) == want, (code, psn)
