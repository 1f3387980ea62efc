"""What fault rules must do, written a second time from docs/faults.md: frames, rules, the link, the log.

:func:`check` takes what NICs sent, what the log says and what arrived, and holds each against the others. It
shares nothing with tb/cpp/faults.cpp and, of the rule language, only the parsed fields. Not a test file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from pymodel.faults.log import edits
from pymodel.faults.rule import FAR, Action, Rule

#: bytes between BTH and payload
EXTENDED = {0x06: 16, 0x0A: 16, 0x0C: 16, 0x0B: 20, 0x03: 4, 0x05: 4, 0x09: 4, 0x0D: 4, 0x0F: 4, 0x10: 4,
            0x11: 4, 0x12: 12, 0x13: 28, 0x14: 28, 0xC0: 44, 0xC1: 28, 0xC2: 28, 0xC3: 20}  # fmt: skip
MACS = [0x0200_0000_0001, 0x0200_0000_0002]


def frame(
    to: int, opcode: int, qp: int, psn: int, payload: bytes, rng: np.random.Generator, syndrome: int = 0x1F
) -> bytes:
    """A RoCEv2 frame whose unchecked fields are random, so that no two are alike."""
    pad = -len(payload) % 4
    extended = bytearray(rng.bytes(EXTENDED.get(opcode, 0)))
    if opcode in (0x0D, 0x0F, 0x10, 0x11, 0x12):
        extended[0] = syndrome
    bth = (
        bytes([opcode, 0x40 | pad << 4])
        + b"\xff\xff\0"
        + qp.to_bytes(3, "big")
        + b"\0"
        + psn.to_bytes(3, "big")
    )
    behind = bth + extended + payload + bytes(pad) + rng.bytes(4)
    udp = rng.bytes(2) + (4791).to_bytes(2, "big") + (8 + len(behind)).to_bytes(2, "big") + b"\0\0"
    total = (20 + len(udp + behind)).to_bytes(2, "big")
    ip = b"\x45\x84" + total + b"\0\0\x40\0\x40\x11" + rng.bytes(10)
    return MACS[to].to_bytes(6, "big") + rng.bytes(6) + b"\x08\0" + ip + udp + behind


@dataclass
class Sent:
    """A TXPKT record."""

    time: int
    first: int
    source: int
    data: bytes
    nth: int  # of its source
    number: int = 0

    @property
    def to(self) -> int:
        """PE that the MAC names."""
        return MACS.index(int.from_bytes(self.data[:6], "big"))

    @property
    def roce(self) -> bool:
        """Whether it is a RoCEv2 frame."""
        d = self.data
        return len(d) >= 58 and d[12:15] == b"\x08\0\x45" and d[23] == 17 and d[36:38] == b"\x12\xb7"

    @property
    def fields(self) -> tuple[int, int, int]:
        """Opcode, QPN, PSN; zeros where it is no RoCEv2 frame."""
        if not self.roce:
            return 0, 0, 0
        return self.data[42], int.from_bytes(self.data[47:50], "big"), int.from_bytes(self.data[51:54], "big")

    def part(self, region: str) -> range:
        """Offsets of the bytes of a part."""
        if region == "anywhere":
            return range(len(self.data))
        if not self.roce:
            return range(0)
        icrc = len(self.data) - 4
        payload = 54 + EXTENDED.get(self.data[42], 0)
        return {
            "header": range(payload), "ethernet": range(14), "ip": range(14, 34), "udp": range(34, 42),
            "bth": range(42, 54), "extended": range(54, payload),
            "payload": range(payload, icrc - (self.data[43] >> 4 & 3)), "icrc": range(icrc, icrc + 4),
        }[region]  # fmt: skip


def is_opcode(name: str | int, p: Sent) -> bool:
    """Whether the packet is what the name in a rule says."""
    op, syndrome = p.data[42], p.data[54] >> 5
    atomic = op in (0x13, 0x14) or 0xC0 <= op <= 0xC3
    classes = {
        "request": op <= 0x0C or atomic, "response": 0x0D <= op <= 0x12, "send": op <= 5,
        "write": 6 <= op <= 0x0B, "read": op == 0x0C, "read_response": 0x0D <= op <= 0x10, "atomic": atomic,
        "masked_atomic": 0xC0 <= op <= 0xC3,
        "ack": op == 0x11 and syndrome == 0, "nak": op == 0x11 and syndrome == 3,
        "rnr_nak": op == 0x11 and syndrome == 1, "immediate": op in (3, 5, 9, 11), "write_only": op == 0x0A,
        "acknowledge": op == 0x11, "atomic_response": op == 0x12, "read_response_middle": op == 0x0E,
        "cmp_swap": op == 0x13, "masked_fetch_add_4": op == 0xC3,
    }  # fmt: skip
    return op == name if isinstance(name, int) else classes[name]


@dataclass
class _State:
    rule: Rule
    seen: int = 0
    used: int = 0
    holds: set[int] = field(default_factory=set)

    def meets(self, p: Sent) -> bool:
        """All but the draw; counts the packet."""
        r, (_, qp, psn) = self.rule, p.fields
        if r.limit is not None and self.used >= r.limit:
            return False
        if (r.qp, r.psn, r.opcode) != (None, None, ()) and not p.roce:
            return False
        within = [(r.qp, qp), (r.size, len(p.data)), (r.time, p.time), (r.packet, p.number)]
        ok = all(want is None or want[0] <= have <= want[1] for want, have in within)
        if r.psn is not None:
            low, high = r.psn
            ok &= low <= psn <= high if low <= high else psn >= low or psn <= high
        ok &= not r.opcode or any(is_opcode(name, p) for name in r.opcode)
        ok &= r.source in (None, p.source) and r.destination in (None, p.to)
        if r.action == Action.CORRUPT:
            ok &= len(p.part(r.region)) > 0
        if r.action == Action.TRUNCATE:
            ok &= len(p.data) > (r.amount if r.cut else 1)
        ok &= not (r.action == Action.REORDER and p.to in self.holds)
        if not ok:
            return False
        self.seen += 1
        return (r.nth is None or r.nth[0] <= self.seen <= r.nth[1]) and (
            r.every is None or self.seen % r.every == 0
        )


@dataclass
class _Held:
    sent: Sent
    state: _State
    until: int
    passed: int = 0


class Link:
    """The link with rules: what must arrive at each PE, as (bytes, sent, earliest first beat)."""

    def __init__(self, rules: list[Rule], first_id: int, latency: int) -> None:
        self._states = [_State(rule) for rule in rules]
        self._first, self._latency = first_id, latency
        self._held: list[_Held] = []
        self.queue: dict[int, list[tuple[bytes, Sent, int]]] = defaultdict(list)
        self.released: list[tuple[int, int, int]] = []  # (packet, cycle, later packets that had passed)

    def _queue(self, data: bytes, p: Sent, delay: int = 0) -> None:
        self.queue[p.to].append((data, p, p.first + self._latency + delay))

    def _pass(self, p: Sent, now: int) -> None:
        """Packet p is behind those that wait and goes on before them."""
        for held in self._held:
            held.passed += held.sent.to == p.to and held.sent.number < p.number
        for held in self._held:
            if held.passed >= held.state.rule.amount:
                self._release(held, now)
                return

    def _release(self, held: _Held, now: int) -> None:
        self._held.remove(held)
        held.state.holds.discard(held.sent.to)
        self.released.append((held.sent.number, now, held.passed))
        self._queue(held.sent.data, held.sent)
        self._pass(held.sent, now)

    def until(self, cycle: int) -> None:
        """Releases what has waited long enough."""
        while due := [h for h in self._held if h.until <= cycle]:
            first = min(due, key=lambda h: (h.until, h.sent.to, h.sent.number))
            self._release(first, first.until)

    def send(self, p: Sent, entry: np.void | None) -> None:
        """A packet and what the log says of it; AssertionError where that is not what the rules say."""
        self.until(p.time)
        what = f"packet {p.number} ({p.source}->{p.to}, {len(p.data)} bytes, {p.fields})"
        hit = None
        for n, state in enumerate(self._states):
            if not state.meets(p):
                continue
            if state.rule.chance is None or (entry is not None and entry["rule"] == self._first + n):
                hit = state
                break
        if hit is None:
            assert entry is None, f"{what}: a fault that no rule explains: {entry}"
            self._queue(p.data, p)
            self._pass(p, p.time)
            return
        r = hit.rule
        assert entry is not None, f"{what}: '{r}' must have acted"
        assert entry["rule"] == self._first + self._states.index(hit), (
            f"{what}: rule {entry['rule']}, not '{r}'"
        )
        assert entry["action"] == r.action, f"{what}: action"
        hit.used += 1
        amount, data = int(entry["amount"]), p.data
        if r.action == Action.DROP:
            return
        if r.action == Action.REORDER:
            assert amount == r.amount
            hit.holds.add(p.to)
            self._held.append(_Held(p, hit, p.time + r.within))
            return
        if r.action == Action.CORRUPT:
            data = self._corrupted(p, r, entry)
        elif r.action == Action.TRUNCATE:
            want = {"to": r.amount, "by": len(data) - r.amount}.get(r.cut, amount)
            assert 0 < amount == want < len(data), f"{what}: truncated to {amount}, not {want}"
            data = data[:amount]
        else:
            assert amount == r.amount
        for _ in range(r.amount + 1 if r.action == Action.DUPLICATE else 1):
            self._queue(data, p, r.amount if r.action == Action.DELAY else 0)
        self._pass(p, p.time)

    @staticmethod
    def _corrupted(p: Sent, r: Rule, entry: np.void) -> bytes:
        done, data = edits(entry), bytearray(p.data)
        part = p.part(r.region)
        places = len(part) * (1 if r.bytes else 8)
        assert len(done) == entry["amount"] == min(r.amount, places), f"packet {p.number}: {done}"
        for at, mask in done:
            assert at in part and mask and (r.bytes or mask.bit_count() == 1), (
                f"packet {p.number}: {at} ^ {mask:#x}"
            )
            data[at] ^= mask
        one = {at for at, _ in done} if r.bytes else set(done)
        assert len(one) == len(done), f"packet {p.number}: a place twice in {done}"
        return bytes(data)


def check(
    sent: list[Sent],
    received: dict[int, list[tuple[int, bytes]]],
    log: np.ndarray,
    rules: list[Rule],
    times: np.ndarray,
    first_id: int = 0,
    latency: int = 20,
) -> None:
    """Everything at once; AssertionError says what is wrong.

    ``received``: by PE, (cycle of the first beat, bytes); ``times``: of all records since the start.
    """
    faults = {int(e["packet"]): e for e in log if e["action"] != Action.RELEASE}
    assert len(faults) == np.count_nonzero(log["action"] != Action.RELEASE), "two faults of one packet"
    link = Link(rules, first_id, latency)
    by_number = {p.number: p for p in sent}
    for e in log:
        p = by_number[int(e["packet"])]
        known = (e["source"], e["destination"], e["size"], e["sent"], bool(e["roce"]))
        assert known == (p.source, p.to, len(p.data), p.nth, p.roce), f"{e}: not {p}"
        assert (e["opcode"], e["qp"], e["psn"]) == p.fields, f"{e}: not {p.fields}"
        if e["action"] != Action.RELEASE:
            assert e["time"] == p.time, f"{e}: not {p.time}"
        at = int(e["record"])
        assert (times[:at] <= e["time"]).all() and (times[at:] >= e["time"]).all(), (
            f"{e}: place in the stream"
        )
    for p in sent:
        link.send(p, faults.get(p.number))
    link.until(FAR)
    released = [
        (int(e["packet"]), int(e["time"]), int(e["amount"])) for e in log if e["action"] == Action.RELEASE
    ]
    assert sorted(released) == sorted(link.released), f"released {released}, not {link.released}"
    for pe in range(len(MACS)):
        want, have = link.queue[pe], received.get(pe, [])
        for n, ((data, p, earliest), (first, got)) in enumerate(zip(want, have, strict=False)):
            assert data == got, f"PE {pe}, arrival {n}: not packet {p.number}"
            assert first > earliest, f"PE {pe}, packet {p.number}: at {first}, not after {earliest}"
        assert len(want) == len(have), f"PE {pe}: {len(have)} packets, not {len(want)}"


def differences(
    sent: list[Sent], received: dict[int, list[tuple[int, bytes]]]
) -> tuple[set[int], dict[int, int], dict[int, dict[int, int]]]:
    """Lost packets, copies of others, and {offset: XOR} of changed ones, found without rules and log.

    An arrival belongs to the packet of the same size that it differs least from.
    """
    lost, copies, changed = {p.number for p in sent}, Counter[int](), {}
    by_bytes = {p.data: p.number for p in sent}
    assert len(by_bytes) == len(sent)
    for pe, packets in received.items():
        for _, data in packets:
            number = by_bytes.get(data)
            if number is None:
                alike = [p for p in sent if len(p.data) == len(data) and p.to == pe]
                near = [np.frombuffer(p.data, np.uint8) ^ np.frombuffer(data, np.uint8) for p in alike]
                n = int(np.argmin([np.count_nonzero(x) for x in near]))
                number = alike[n].number
                changed[number] = {int(at): int(near[n][at]) for at in np.flatnonzero(near[n])}
            copies[number] += number not in lost
            lost.discard(number)
    return lost, {n: c for n, c in copies.items() if c}, changed
