"""A responder of one QP in Python, from wire.md 5, with traffic for it and a checker of its answers.

Fresh requests are good ones; duplicates may be anything. Independent of the NIC's golden model.
"""

import random
from dataclasses import dataclass, field, replace

from tests.blocks.rx_driver import ACK as ACK_OP
from tests.blocks.rx_driver import (
    ATOMIC,
    ATOMIC_ACK,
    CAS64,
    FA64,
    FIRST,
    LAST,
    MFA32,
    MIDDLE,
    NAK_TX,
    ONLY,
    READ,
    READ_FIRST,
    READ_LAST,
    READ_MIDDLE,
    READ_ONLY,
    READ_REQ,
    Bench,
    Frame,
    Reply,
    atomic_eth,
    good,
    reth,
)

MOD = 1 << 24
ACK, NAK_SEQ, NAK_INV, NAK_ACC, NAK_OP = 0x1F, 0x60, 0x61, 0x62, 0x63
NO_SAVE = 48  # counter of duplicate atomics whose result is not saved
REGION = (0x400, 0x3F000)  # base and length of the region that QPs use
READS = (0x400, 0x10000)  # part of it that only READs use


def header(frame: Frame) -> tuple[int, int, int]:
    """VA, R_Key and length of a RETH (length of an AtomicETH: anything)."""
    ext = frame.ext
    return int.from_bytes(ext[:8], "big"), int.from_bytes(ext[8:12], "big"), int.from_bytes(ext[12:16], "big")


@dataclass
class Verdict:
    """What one packet leads to: its answers, the counters it moves, whether its answers may be missing."""

    replies: list[Reply] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    may_miss: bool = False


@dataclass
class Model:
    """Responder of one QP (wire.md 5). Fresh requests are good ones; duplicates may be anything."""

    bench: Bench
    qpi: int
    mtu: int  # code, 1..5
    psn: int
    rkey: int
    depth: int = 16
    read_right: bool = True
    msn: int = 0
    nak_sent: bool = False
    dead: bool = False
    left: int = 0
    addr: int = 0
    atomics: list[tuple[int, int]] = field(default_factory=list)  # PSN and original value, oldest first

    @property
    def size(self) -> int:
        """MTU in bytes."""
        return 128 << self.mtu

    def receive(self, frame: Frame) -> Verdict:
        """Takes a packet."""
        if self.dead:
            return Verdict(counts={"qp": 1})
        ahead = (frame.psn - self.psn) % MOD
        if ahead >= MOD // 2:
            verdict = self.again(frame, MOD - ahead)
            verdict.counts["duplicate"] = 1
            return verdict
        if ahead:
            first, self.nak_sent = not self.nak_sent, True
            naks = [Reply(self.qpi, ACK_OP, self.psn, NAK_SEQ, self.msn)] if first else []
            return Verdict(naks, {"ahead": 1, str(NAK_TX): 1} if first else {"ahead": 1})
        self.nak_sent = False
        verdict = self.fresh(frame)
        verdict.counts["rx_packet"] = 1
        return verdict

    def fresh(self, frame: Frame) -> Verdict:
        """The expected packet."""
        memory = self.bench.memory
        if frame.opcode == READ_REQ:
            self.msn = (self.msn + 1) % MOD
            replies = self.data(frame)
            self.psn = (self.psn + len(replies)) % MOD
            return Verdict(replies, {str(READ): 1})
        if frame.opcode > ONLY:
            va, _, _ = header(frame)
            size = 4 if frame.opcode == MFA32 else 8
            old = int.from_bytes(memory[va : va + size], "little")
            operand = int.from_bytes(frame.ext[12 : 12 + size], "big")
            if frame.opcode == CAS64:
                new = operand if old == int.from_bytes(frame.ext[20:28], "big") else old
            else:
                new = old + operand & (1 << 8 * size) - 1
            memory[va : va + size] = new.to_bytes(size, "little")
            self.msn = (self.msn + 1) % MOD
            self.atomics.append((frame.psn, old))
            self.psn = (self.psn + 1) % MOD
            return Verdict([self.value(frame.psn, old)], {str(ATOMIC): 1})
        if frame.opcode in (FIRST, ONLY):
            self.addr, _, self.left = header(frame)
        memory[self.addr : self.addr + len(frame.payload)] = frame.payload
        self.addr += len(frame.payload)
        self.left -= len(frame.payload)
        self.psn = (self.psn + 1) % MOD
        self.msn = (self.msn + (self.left == 0)) % MOD
        return Verdict([self.ack()] if frame.ack_req else [])

    def again(self, frame: Frame, behind: int) -> Verdict:
        """A packet `behind` PSNs behind the expected one: nothing of the QP's state changes."""
        if frame.opcode <= 0x0B:
            return Verdict([self.ack()])
        if frame.opcode == READ_REQ:
            va, rkey, length = header(frame)
            base, room = REGION
            if not self.read_right or length > 1 << 31 or max(1, -(-length // self.size)) > behind:
                return self.refuse(frame.psn, NAK_INV)
            if length and (rkey != self.rkey or va < base or va + length > base + room):
                return self.refuse(frame.psn, NAK_ACC)
            return Verdict(self.data(frame), {str(READ): 1}, may_miss=True)
        kept = dict(self.atomics[-self.depth :])
        if frame.psn in kept:
            return Verdict([self.value(frame.psn, kept[frame.psn])], may_miss=True)
        return Verdict(counts={str(NO_SAVE): 1})

    def refuse(self, psn: int, syndrome: int) -> Verdict:
        """A NAK that takes the QP to ERR."""
        self.dead = True
        return Verdict(
            [Reply(self.qpi, ACK_OP, psn, syndrome, self.msn)], {str(NAK_TX + syndrome - NAK_SEQ): 1}
        )

    def ack(self) -> Reply:
        """ACK of everything before the expected PSN."""
        return Reply(self.qpi, ACK_OP, (self.psn - 1) % MOD, ACK, self.msn)

    def value(self, psn: int, old: int) -> Reply:
        """ATOMIC acknowledge."""
        return Reply(self.qpi, ATOMIC_ACK, psn, ACK, self.msn, old.to_bytes(8, "big"))

    def data(self, frame: Frame) -> list[Reply]:
        """Responses of a READ with what the memory holds now."""
        va, _, length = header(frame)
        count = max(1, -(-length // self.size))
        replies = []
        for k in range(count):
            part = bytes(self.bench.memory[va + k * self.size : va + min(length, (k + 1) * self.size)])
            opcode = READ_MIDDLE
            if k in (0, count - 1):
                opcode = READ_ONLY if count == 1 else READ_LAST if k else READ_FIRST
            head = (-1, -1) if opcode == READ_MIDDLE else (ACK, self.msn)
            replies.append(Reply(self.qpi, opcode, (frame.psn + k) % MOD, *head, part))
        return replies


@dataclass
class Traffic:
    """Good requests of one QP and repeats of what it sent."""

    model: Model
    sent: list[Frame] = field(default_factory=list)
    again: list[Frame] = field(default_factory=list)  # rest of a run that is repeated

    def fresh(self, kind: str) -> Frame:
        """The next request (kind: write, read, atomic), or the next packet of a WRITE under way."""
        model, size = self.model, self.model.size
        if model.left:
            part = min(size, model.left)
            frame = self.frame(MIDDLE if model.left > size else LAST, random.randbytes(part))
        elif kind == "write":
            length = random.choice([0, 1, 60, size, size + 1, 2 * size + 5, random.randrange(3 * size)])
            length = min(length, 0x1800)
            va = 0x12000 + 0x2000 * model.qpi + random.randrange(0x2000 - length)
            part = random.randbytes(min(size, length))
            frame = self.frame(FIRST if length > size else ONLY, part, reth(va, model.rkey, length))
        elif kind == "read":
            length = random.choice([0, 1, size, size + 1, 4 * size, random.randrange(5 * size)])
            length = min(length, 0x3000)
            va = random.randrange(READS[0], READS[0] + READS[1] - length)
            frame = self.frame(READ_REQ, b"", reth(va, model.rkey, length))
        else:
            opcode = random.choice([FA64, CAS64, MFA32])
            va = 0x30000 + 32 * model.qpi + 8 * random.randrange(2)
            old = int.from_bytes(model.bench.memory[va : va + 8], "little")
            compare = random.choice([old, 0]) if opcode == CAS64 else 0
            operand = random.getrandbits(32 if opcode == MFA32 else 64)
            frame = self.frame(opcode, b"", atomic_eth(opcode, va, model.rkey, operand, compare))
        self.sent.append(frame)
        return frame

    def frame(self, opcode: int, payload: bytes, ext: bytes = b"") -> Frame:
        """A packet with the expected PSN."""
        ack_req = opcode > ONLY or random.random() < 0.6
        return good(
            self.model.qpi, opcode=opcode, psn=self.model.psn, payload=payload, ext=ext, ack_req=ack_req
        )

    def repeat(self) -> Frame:
        """A packet that was sent before: one of a run from some earlier PSN on, a READ whole or in part."""
        if not self.again:
            at = random.randrange(max(0, len(self.sent) - 24), len(self.sent))
            self.again = self.sent[at : at + random.choice([1, 1, 3, 24])]
        frame = self.again.pop(0)
        if frame.opcode == READ_REQ and random.random() < 0.6:
            va, rkey, length = header(frame)
            size = self.model.size
            skip = random.randrange(max(1, -(-length // size)))
            left = length - skip * size
            if random.random() < 0.3:
                left = random.randint(min(1, left), left)
            psn = (frame.psn + skip) % MOD
            return replace(frame, psn=psn, ext=reth(va + skip * size, rkey, left))
        if frame.opcode > ONLY and random.random() < 0.15:
            # a request that never was; an atomic, perhaps at the PSN of another one
            return replace(frame, psn=(frame.psn - random.choice([1, 2, 256])) % MOD)
        return replace(frame, payload=frame.payload and random.randbytes(len(frame.payload)))


@dataclass
class Item:
    """Answers of one request, in their order."""

    replies: list[Reply]
    sure: bool
    fresh: bool


@dataclass
class Checker:
    """Holds the responses of one QP against what its packets lead to."""

    items: list[Item] = field(default_factory=list)
    states: set[tuple[int, int]] = field(default_factory=lambda: {(0, 0)})  # item, its replies that came
    msns: dict[int, int] = field(default_factory=dict)  # PSN -> MSN of its ACK
    need: int | None = None  # PSN that something still has to acknowledge
    newest: int | None = None
    nak: Item | None = None
    fresh: int = 0

    def sends(self, frame: Frame, model: Model) -> Verdict:
        """Takes a packet that goes out next."""
        expected = frame.psn == model.psn
        verdict = model.receive(frame)
        self.msns[(model.psn - 1) % MOD] = model.msn
        reply = verdict.replies[0] if verdict.replies else None
        if reply and reply.opcode == ACK_OP and reply.syndrome == ACK:
            self.need = reply.psn
        elif reply:
            item = Item(verdict.replies, not verdict.may_miss, expected)
            if reply.opcode == ACK_OP:
                # a NAK that still waits gives way to a newer one
                if self.nak:
                    self.nak.sure = False
                self.nak = item
            if item.sure:
                self.need = None
            self.fresh += expected
            self.items.append(item)
        return verdict

    def takes(self, reply: Reply) -> None:
        """Takes a response."""
        if reply.opcode == ACK_OP and reply.syndrome == ACK:
            assert self.msns.get(reply.psn) == reply.msn, f"{reply}, MSN there {self.msns.get(reply.psn)}"
            assert self.newest is None or (reply.psn - self.newest) % MOD < MOD // 2, f"{reply} goes back"
            self.newest = reply.psn
            return
        found = set()
        for at, come in self.states:
            for n in range(at, len(self.items)):
                item, k = self.items[n], come if n == at else 0
                if item.replies[k] == reply:
                    found.add((n, k + 1) if k + 1 < len(item.replies) else (n + 1, 0))
                if k or item.sure:
                    break
        assert found, (
            f"{reply}; next {[self.items[n].replies[k:][:1] for n, k in self.states if n < len(self.items)]}"
        )
        self.states = found

    def open(self) -> int:
        """READs and atomics sent for the first time whose answers are not all here."""
        at = min(n for n, _ in self.states)
        return sum(item.fresh for item in self.items[at:])

    def ends(self) -> None:
        """Nothing may be missing."""
        assert any(k == 0 and not any(item.sure for item in self.items[n:]) for n, k in self.states), (
            f"answers missing, first {[self.items[n].replies[k] for n, k in self.states if self.items[n:]]}"
        )
        assert self.need in (None, self.newest), f"no ACK of {self.need:#x}, newest {self.newest}"
