"""The link of the model platform with faults: what rules do to packets between golden NICs (docs/faults.md).

A packet is on the link from the step that takes it off its NIC. It arrives in the same step unless a rule
delays it or one before it. What is corrupted or truncated is built as a frame, damaged, and judged by the
receive checks of wire.md 1: all that the NIC does with it then is to count.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pymodel.faults.log import LOG
from pymodel.faults.match import Sent, State
from pymodel.faults.rule import Action, Rule
from pymodel.nic import judge_frames as frames
from pymodel.nic.params import Cnt

if TYPE_CHECKING:
    from pymodel.nic.golden import GoldenNic, Packet

_RETH: Final = (0x06, 0x0A, 0x0B, 0x0C)
_IMM: Final = (0x03, 0x05, 0x09, 0x0B)


@dataclass(slots=True)
class _Held:
    """A packet that waits for later ones to pass."""

    sent: Sent
    packet: Packet | Cnt
    state: State
    until: int
    passed: int = 0


@dataclass(slots=True)
class _Way:
    """What is under way to one NIC, in its order."""

    queue: deque[tuple[int, Packet | Cnt]] = field(default_factory=deque)
    """(cycle of arrival, packet or the counter that one that was damaged gets)"""


class FaultyLink:
    """Carries packets between NICs by rules.

    ``seed``: draws come from it and from the place of the rule. ``now()``: cycles.
    """

    def __init__(
        self, rules: Sequence[Rule], nics: Sequence[GoldenNic], now: Callable[[], int], seed: int
    ) -> None:
        self.rules, self._nics, self._now = list(rules), nics, now
        self._states = [
            State(rule, place, random.Random(f"faults {seed} {place}")) for place, rule in enumerate(rules)
        ]
        self._pe = {nic.mac: pe for pe, nic in enumerate(nics)}
        self._place = {id(nic): pe for pe, nic in enumerate(nics)}
        self._ways = [_Way() for _ in nics]
        self._held: list[_Held] = []
        self._waiting = 0
        self._number = 0
        self._sent = [0] * len(nics)
        self._log: list[tuple[Sent, int, Action, int, list[tuple[int, int]], int]] = []

    # ------------------------------------------------------------------ packets
    def send(self, nic: GoldenNic, qpn: int, packet: Packet) -> None:
        """A packet leaves QP `qpn` of `nic`; one without a route is nobody's."""
        to = self._pe.get(packet.dst_mac)
        if to is None:
            return
        self._number += 1
        source = self._place[id(nic)]
        pad = -len(packet.payload) & 3
        size = frames.BASE + frames.EXT[packet.bth] + len(packet.payload) + pad + frames.ICRC
        now = self._now()
        sent = Sent(
            now, source, to, packet.bth, packet.qpn, packet.psn, packet.syndrome, len(packet.payload), size,
            self._number, self._sent[source],
        )  # fmt: skip
        self._sent[source] += 1
        state = next((state for state in self._states if state.meets(sent)), None)
        if state is None:
            self._arrive(sent, packet, now)
            return
        state.used += 1
        rule = state.rule
        if rule.action is Action.DROP:
            self._note(sent, state, 1)
        elif rule.action is Action.REORDER:
            state.holds.add(to)
            self._held.append(_Held(sent, packet, state, now + rule.within))
            self._note(sent, state, rule.amount)
        elif rule.action in (Action.DUPLICATE, Action.DELAY):
            self._note(sent, state, rule.amount)
            copies = rule.amount if rule.action is Action.DUPLICATE else 0
            self._arrive(sent, packet, now + (0 if copies else rule.amount), copies)
        else:
            self._damage(nic, qpn, sent, packet, state)

    def _arrive(self, sent: Sent, packet: Packet | Cnt, at: int, copies: int = 0) -> None:
        """Pass on, behind what is under way to the same NIC; then those that waited for it."""
        way = self._ways[sent.to]
        if not way.queue and at <= self._now():
            for _ in range(1 + copies):
                self._take(sent.to, packet)
        else:
            way.queue.extend([(at, packet)] * (1 + copies))
            self._waiting += 1 + copies
        if self._held:
            self._passed(sent)

    def _take(self, pe: int, what: Packet | Cnt) -> None:
        if isinstance(what, Cnt):
            self._nics[pe].count(what)
        else:
            self._nics[pe].receive(what)

    def _passed(self, sent: Sent) -> None:
        for held in self._held:
            held.passed += held.sent.to == sent.to and held.sent.number < sent.number
        ripe = next((held for held in self._held if held.passed >= held.state.rule.amount), None)
        if ripe is not None:
            self._release(ripe)

    def _release(self, held: _Held) -> None:
        self._held.remove(held)
        held.state.holds.discard(held.sent.to)
        self._note(held.sent, held.state, held.passed, Action.RELEASE)
        self._arrive(held.sent, held.packet, self._now())

    # ------------------------------------------------------------------ damage
    def _frame(self, nic: GoldenNic, qpn: int, packet: Packet) -> bytes:
        bth = packet.bth
        ext = b""
        if bth in _RETH:
            ext = struct.pack(">QII", packet.va, packet.rkey, packet.dma_len)
        elif bth in frames.OPERANDS:
            ext = frames.atomic_eth(bth, packet.va, packet.rkey, packet.operands)
        elif bth in frames.RESPONSES and frames.EXT[bth]:
            ext = frames.aeth(packet.syndrome, packet.msn)
            ext += packet.orig.to_bytes(8, "big") if bth == frames.ATOMIC_ACK else b""
        if bth in _IMM:
            ext += int(getattr(packet, "imm", 0)).to_bytes(4, "big")
        context = nic.contexts.qps.get(qpn)
        tos, ttl, sport = (0, 64, 0) if context is None else (context.tc, context.ttl, context.sport(qpn))
        flow = frames.Flow(nic.mac, packet.dst_mac, packet.src_ip, packet.dst_ip, tos, ttl, sport, packet.qpn)
        return frames.build(flow, bth, packet.psn, int(packet.ack_req), ext, packet.payload)

    def _damage(self, nic: GoldenNic, qpn: int, sent: Sent, packet: Packet, state: State) -> None:
        """Corrupt or truncate: the NIC takes a frame only if nothing that it looks at has changed."""
        rule, rng, data = state.rule, state.rng, bytearray(self._frame(nic, qpn, packet))
        edits: list[tuple[int, int]] = []
        if rule.action is Action.TRUNCATE:
            left = {"to": rule.amount, "by": len(data) - rule.amount}
            amount = left[rule.cut] if rule.cut else rng.randrange(1, len(data))
            del data[amount:]
        else:
            part = sent.part(rule.region)
            if rule.bytes:
                places = rng.sample(part, min(rule.amount, len(part)))
                edits = [(at, rng.randrange(1, 256)) for at in places]
            else:
                bits = rng.sample(range(8 * len(part)), min(rule.amount, 8 * len(part)))
                edits = [(part[bit >> 3], 1 << (bit & 7)) for bit in bits]
            for at, mask in edits:
                data[at] ^= mask
            amount = len(edits)
        self._note(sent, state, amount, edits=edits)
        target = self._nics[sent.to]
        verdict = frames.receive(bytes(data), target.mac, target.ip)
        self._arrive(sent, verdict if isinstance(verdict, Cnt) else packet, self._now())

    # ------------------------------------------------------------------ time
    def next_time(self) -> int | None:
        """Cycle in which the next packet arrives or goes on by itself; None where none waits."""
        times = [way.queue[0][0] for way in self._ways if way.queue] + [held.until for held in self._held]
        return min(times, default=None)

    def deliver(self) -> bool:
        """Let one packet arrive, or go on, whose time has come."""
        if not self._waiting and not self._held:
            return False
        now = self._now()
        for pe, way in enumerate(self._ways):
            if way.queue and way.queue[0][0] <= now:
                self._waiting -= 1
                self._take(pe, way.queue.popleft()[1])
                return True
        due = [held for held in self._held if held.until <= now]
        if due:
            self._release(min(due, key=lambda h: (h.until, h.sent.to, h.sent.number)))
        return bool(due)

    def flush(self) -> None:
        """Everything that waits arrives now."""
        while self._held:
            self._release(self._held[0])
        for pe, way in enumerate(self._ways):
            while way.queue:
                self._take(pe, way.queue.popleft()[1])
        self._waiting = 0

    # ------------------------------------------------------------------ log
    def _note(
        self,
        sent: Sent,
        state: State,
        amount: int,
        action: Action | None = None,
        edits: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._log.append((sent, state.place, action or state.rule.action, amount, list(edits), self._now()))

    def log(self) -> npt.NDArray[np.void]:
        """LOG[n] since the last call; ``record`` is 0, there is no stream of records."""
        out = np.zeros(len(self._log), LOG)
        for row, (sent, place, action, amount, edits, time) in zip(out, self._log, strict=True):
            row["time"], row["packet"], row["sent"], row["amount"] = time, sent.number, sent.nth, amount
            row["rule"], row["size"], row["qp"], row["psn"] = place, sent.size, sent.qp, sent.psn
            row["action"], row["source"], row["destination"] = action, sent.source, sent.to
            row["opcode"], row["roce"], row["edits"] = sent.opcode, 1, len(edits)
            row["edit"][: len(edits)] = [at << 8 | mask for at, mask in edits]
        self._log.clear()
        return out
