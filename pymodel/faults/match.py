"""Which rule a packet of the model's link meets (docs/faults.md)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pymodel.faults.rule import Action, Rule, opcode_sets
from pymodel.nic.judge_frames import ACK, BASE, EXT, ICRC

_PARTS = {"ethernet": range(14), "ip": range(14, 34), "udp": range(34, 42), "bth": range(42, BASE)}


@dataclass(frozen=True, slots=True)
class Sent:
    """A packet as it was sent. ``number``: on the link, from 1; ``nth``: of its source, from 0."""

    time: int
    source: int
    to: int
    opcode: int
    qp: int
    psn: int
    syndrome: int
    payload: int
    size: int
    number: int
    nth: int

    def part(self, region: str) -> range:
        """Offsets of the bytes of a part of its frame."""
        if region in _PARTS:
            return _PARTS[region]
        start = BASE + EXT[self.opcode]
        return {
            "anywhere": range(self.size),
            "header": range(start),
            "extended": range(BASE, start),
            "payload": range(start, start + self.payload),
            "icrc": range(self.size - ICRC, self.size),
        }[region]


class State:
    """A rule in use: how many packets it has counted and taken, and for which destinations it holds one."""

    def __init__(self, rule: Rule, place: int, rng: random.Random) -> None:
        self.rule, self.place, self.rng = rule, place, rng
        self.used = self.seen = 0
        self.holds: set[int] = set()
        self._opcodes, self._syndromes = opcode_sets(rule.opcode)

    def meets(self, p: Sent) -> bool:
        """True if the rule acts on the packet; counts the packet and draws, so ask once per packet."""
        r = self.rule
        if r.limit is not None and self.used >= r.limit:
            return False
        for have, want in ((p.qp, r.qp), (p.size, r.size), (p.time, r.time), (p.number, r.packet)):
            if want is not None and not want[0] <= have <= want[1]:
                return False
        if r.source not in (None, p.source) or r.destination not in (None, p.to):
            return False
        if r.psn is not None:
            low, high = r.psn
            # a range may go over the wrap
            if not (low <= p.psn <= high if low <= high else p.psn >= low or p.psn <= high):
                return False
        if r.opcode:
            kinds = self._syndromes if p.opcode == ACK else self._opcodes
            if (p.syndrome >> 5 if p.opcode == ACK else p.opcode) not in kinds:
                return False
        if not self._possible(p):
            return False
        self.seen += 1
        if r.nth is not None and not r.nth[0] <= self.seen <= r.nth[1]:
            return False
        if r.every is not None and self.seen % r.every:
            return False
        return r.chance is None or self.rng.randrange(r.chance[1]) < r.chance[0]

    def _possible(self, p: Sent) -> bool:
        r = self.rule
        if r.action is Action.CORRUPT:
            return len(p.part(r.region)) > 0
        if r.action is Action.TRUNCATE:
            return p.size > (r.amount if r.cut else 1)
        return r.action is not Action.REORDER or p.to not in self.holds
