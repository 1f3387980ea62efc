"""Two stub NICs and the link between them: traffic, rules to try, and a look at all that went over it.

Used by test_faults.py; not a test file.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from pymodel.faults import parse
from pymodel.faults.log import counts
from pymodel.faults.rule import Rule
from tb.sim.lib import SimLib
from tb.sim.records import Kind
from tests.conformance.fault_model import MACS, Sent, check, frame

DOORBELL, SRC, SLOTS = 0x0800_0000, 0x1_0000_0000, 200
OPCODES = [*range(0x15), 0xC0, 0xC1, 0xC2, 0xC3, 0x55]
#: conditions that some packets of :func:`traffic` meet and some do not
CONDITIONS = [
    "qp 3", "qp 2-3", "psn 16777200-10", "psn 3-90", "opcode write_only", "opcode ack", "class nak",
    "opcode rnr_nak or acknowledge", "opcode read_response", "class atomic or 0x55", "opcode request",
    "opcode response or send", "opcode masked_atomic", "class immediate or 12", "opcode read or write",
    "direction 0->1", "direction 1->*", "direction *->1", "every 1/3", "every 2/3", "every 3rd", "nth 2-9",
    "packet 5-20", "size 58-90", "size > 200", "size <= 99", "qp 2 direction 0->* and size >= 70 every 2nd",
]  # fmt: skip
ACTIONS = [
    "drop", "drop once", "duplicate", "duplicate 3 times, 4 times", "delay 300 cycles", "delay 40ns, 2 times",
    "reorder 1", "reorder 3 within 200 cycles", "corrupt 1 bit of payload", "corrupt 16 bits of header",
    "corrupt 3 bytes of bth", "corrupt 5 bytes of icrc", "corrupt 2 bits anywhere",
    "corrupt 9 bytes of extended", "corrupt 1 bit of ethernet", "corrupt 2 bytes of ip",
    "corrupt 8 bits of udp", "truncate", "truncate to 60", "truncate by 4",
]  # fmt: skip


#: conditions of the same kind
KIND = {"opcode": "class", "from": "time", "until": "time"}


def conditions(cycle: int) -> list[str]:
    """Those, and windows of time in a batch of some 50 packets that begins now."""
    window = f"time {cycle + 60}-{cycle + 110} cycles"
    return [*CONDITIONS, window, f"from {2 * (cycle + 90)}ns", f"until {cycle + 90} cycles"]


class Bench:
    """The link between two stub NICs, with all that went over it since the last :meth:`run`."""

    def __init__(self, lib: SimLib) -> None:
        self.lib = lib
        self._packets = 0
        self._nth = [0, 0]
        self.times: list[int] = []

    @classmethod
    async def start(cls, dut: Any) -> Bench:
        lib = SimLib(dut)
        for pe in range(2):
            lib.add_region(pe, SRC, SLOTS * 4096)
            lib.set_mac(pe, MACS[pe])
        await lib.reset()
        bench = cls(lib)
        bench.times += lib.drain()["time"].tolist()
        return bench

    def seed(self, seed: int) -> None:
        self.lib.set_knob("seed", seed)
        self._packets = 0  # packets are counted anew

    async def run(
        self, packets: list[tuple[int, bytes]], before: int = 0
    ) -> tuple[list[Sent], dict[int, list[tuple[int, bytes]]]]:
        """Sends (PE, frame), at most SLOTS a PE, until the link is empty; gives what was sent and arrived.

        ``before``: packets that were sent since the last call in another way.
        """
        lib, slot = self.lib, [0, 0]
        for pe, data in packets:
            lib.store(pe, SRC + slot[pe] * 4096, data)
            assert lib.mmio_write(pe, DOORBELL, len(data) << 48 | (SRC + slot[pe] * 4096))
            slot[pe] += 1
        sent: list[Sent] = []
        got: dict[int, list[tuple[int, bytes]]] = {0: [], 1: []}
        quiet = 0
        while quiet < 2:
            await lib.cycles(100)
            idle = len(sent) == len(packets) + before and not any(lib.link_pending(pe) for pe in range(2))
            quiet = quiet + 1 if idle else 0
            records = lib.drain()
            for r in records:
                if r["kind"] == Kind.TXPKT:
                    pe, data = int(r["pe"]), lib.payload(r).tobytes()
                    sent.append(Sent(int(r["time"]), int(r["aux0"]), pe, data, self._nth[pe]))
                    self._nth[pe] += 1
                elif r["kind"] == Kind.RXPKT:
                    got[int(r["pe"])].append((int(r["aux0"]), lib.payload(r).tobytes()))
            self.times += records["time"].tolist()
        sent.sort(key=lambda p: (p.time, p.source))
        for p in sent:
            self._packets += 1
            p.number = self._packets
        return sent, got

    async def checked(self, rules: list[Rule], packets: list[tuple[int, bytes]]) -> np.ndarray:
        """Sets the rules, sends, checks everything; gives the log."""
        first = len(self.lib.fault_rules)
        before = self.lib.link_faults
        self.lib.set_faults(rules)
        sent, got = await self.run(packets)
        log = self.lib.fault_log()
        check(sent, got, log, rules, np.array(self.times), first)
        assert sum(counts(log).values()) == self.lib.link_faults - before
        return log


def traffic(rng: np.random.Generator, count: int) -> list[tuple[int, bytes]]:
    """Frames of all opcodes, QPs 1 to 4, PSNs around the wrap; some that are no RoCEv2."""
    packets = []
    for n in range(count):
        opcode, to = OPCODES[int(rng.integers(len(OPCODES)))], int(rng.integers(2))
        if rng.integers(4) == 0:
            opcode = 0x11
        payload = rng.bytes(int(rng.choice([0, 1, 2, 3, 4, 50, 200, 300])))
        psn = int(rng.integers(-100, 100)) & 0xFFFFFF
        syndrome = int(rng.choice([0x1F, 0x60, 0x62, 0x25]))
        data = frame(to, opcode, 1 + int(rng.integers(4)), psn, payload, rng, syndrome)
        if n % 11 == 10:  # no RoCEv2: another EtherType, port, protocol or IP header; or short
            at, value = ((12, 0x86), (36, 0x13), (23, 6), (14, 0x46), (57, None))[n // 11 % 5]
            data = data[:at] if value is None else data[:at] + bytes([value]) + data[at + 1 :]
        packets.append((int(rng.integers(2)), data))
    return packets


def random_rules(rng: np.random.Generator, cycle: int) -> list[Rule]:
    """One to five rules with up to three conditions."""
    rules: list[str] = []
    while len(rules) < 1 + rng.integers(5):
        single = [c for c in conditions(cycle) if " and " not in c]
        chosen = rng.permutation(single)[: rng.integers(4)].tolist()
        kinds = {KIND.get(c.split()[0], c.split()[0]) for c in chosen}
        if len(kinds) < len(chosen):
            continue
        name = rng.choice(["drop", "duplicate", "delay", "reorder", "corrupt", "truncate"])
        action = str(rng.choice([a for a in ACTIONS if a.startswith(name)]))
        if not re.search("once|, .* times", action):
            action += str(rng.choice(["", "", ", once", ", 5 times"]))
        rules.append(f"{' '.join(chosen) or 'any'}: {action}")
    return parse("\n".join(rules))
