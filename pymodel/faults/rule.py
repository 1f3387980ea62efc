"""A fault rule of the link as an object (language: docs/faults.md); both platforms act by it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

#: ns per clock cycle (nic.md 1)
NS_PER_CYCLE = 2
#: last number of QPNs and PSNs, PEs; the largest number of bits or bytes that one fault changes (tb/cpp/tb.h)
MAX_24, MAX_PE, MAX_EDITS = (1 << 24) - 1, 15, 16
#: no upper end
FAR = (1 << 64) - 1
#: reorder: the packet goes on after so many cycles in any case
WITHIN = 5000

#: opcodes by name (wire.md 2)
OPCODES: dict[str, int] = {
    **dict(zip(("send_first", "send_middle", "send_last", "send_last_imm", "send_only", "send_only_imm",
                "write_first", "write_middle", "write_last", "write_last_imm", "write_only", "write_only_imm",
                "read_request", "read_response_first", "read_response_middle", "read_response_last",
                "read_response_only", "acknowledge", "atomic_response", "cmp_swap", "fetch_add"),
               range(21), strict=True)),
    "masked_cmp_swap_8": 0xC0, "masked_fetch_add_8": 0xC1,
    "masked_cmp_swap_4": 0xC2, "masked_fetch_add_4": 0xC3,
}  # fmt: skip
_ACKNOWLEDGE = 0x11
_MASKED = tuple(range(0xC0, 0xC4))
_REQUEST = (*range(0x0D), 0x13, 0x14, *_MASKED)
#: classes of opcodes
CLASSES: dict[str, tuple[int, ...]] = {
    "request": _REQUEST,
    "response": tuple(range(0x0D, 0x13)),
    "send": tuple(range(0x06)),
    "write": tuple(range(0x06, 0x0C)),
    "read": (0x0C,),
    "read_response": tuple(range(0x0D, 0x11)),
    "atomic": (0x13, 0x14, *_MASKED),
    "masked_atomic": _MASKED,
    "immediate": (0x03, 0x05, 0x09, 0x0B),
}
#: classes of Acknowledge packets: upper three bits of the AETH syndrome (wire.md 3)
SYNDROMES: dict[str, tuple[int, ...]] = {"ack": (0,), "rnr_nak": (1,), "nak": (3,)}
NAMES = {*OPCODES, *CLASSES, *SYNDROMES}


class Action(enum.IntEnum):
    """What happens to a packet; tb/cpp/tb.h has the same numbers."""

    DROP = 1
    DUPLICATE = 2
    DELAY = 3
    REORDER = 4
    CORRUPT = 5
    TRUNCATE = 6
    #: in the log only: a packet that was held back goes on
    RELEASE = 7


#: parts of a frame that can be corrupted, in the numbering of tb/cpp/tb.h
REGIONS = ("anywhere", "header", "ethernet", "ip", "udp", "bth", "extended", "payload", "icrc")
#: ways to truncate: at a random place, to so many bytes, by so many bytes
CUTS = ("", "to", "by")

Range = tuple[int, int]


class RuleError(ValueError):
    """A rule that cannot be: one line, ``source:line:column: what is wrong: the rule``."""

    def __init__(self, message: str, source: str, line: int, column: int, text: str) -> None:
        self.message, self.source, self.line, self.column, self.text = message, source, line, column, text
        super().__init__(f"{source}:{line}:{column}: {message}: {text.strip()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. Conditions that are None (``opcode``: empty) do not count; ranges include both ends.

    ``amount``: duplicate: copies; delay: cycles; reorder: later packets; corrupt: bits or bytes; truncate:
    bytes to keep or to cut. ``time`` and ``within`` are cycles. ``str()`` gives a sentence that
    :func:`pymodel.faults.parse` reads back to an equal rule. Raises ValueError where the rule cannot be.
    """

    action: Action
    amount: int = 1
    qp: Range | None = None
    psn: Range | None = None
    opcode: tuple[str | int, ...] = ()
    source: int | None = None
    destination: int | None = None
    size: Range | None = None
    time: Range | None = None
    packet: Range | None = None
    nth: Range | None = None
    every: int | None = None
    chance: tuple[int, int] | None = None
    region: str = "anywhere"
    bytes: bool = False
    cut: str = ""
    within: int = WITHIN
    limit: int | None = None
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        def need(good: bool, what: str) -> None:
            if not good:
                raise ValueError(f"fault rule: {what}")

        need(self.action in Action and self.action != Action.RELEASE, f"no action {self.action}")
        need(1 <= self.amount <= FAR, f"{self.action.name.lower()} {self.amount}")
        corrupt = self.action == Action.CORRUPT
        need(not corrupt or self.amount <= MAX_EDITS, f"more than {MAX_EDITS} bits or bytes")
        need(self.region in REGIONS and self.cut in CUTS, f"region {self.region!r} or cut {self.cut!r}")
        for name in ("qp", "psn", "size", "time", "packet", "nth"):
            value = getattr(self, name)
            top = MAX_24 if name in ("qp", "psn") else FAR
            good = value is None or (
                all(0 <= v <= top for v in value) and (name == "psn" or value[0] <= value[1])
            )
            need(good, f"{name} {value}")
        for pe in (self.source, self.destination):
            need(pe is None or 0 <= pe <= MAX_PE, f"PE {pe}")
        for op in self.opcode:
            need(op in NAMES if isinstance(op, str) else 0 <= op <= 255, f"opcode {op!r}")
        need(self.every is None or self.every >= 1, f"every {self.every}")
        need(self.chance is None or 1 <= self.chance[0] <= self.chance[1], f"every {self.chance}")
        need(
            self.within >= 1 and (self.limit is None or self.limit >= 1), "within and limit must be positive"
        )

    def __str__(self) -> str:
        words = [f"{n} {_range(r)}" for n in ("qp", "psn") if (r := getattr(self, n)) is not None]
        if self.opcode:
            words.append(
                "opcode " + " or ".join(o if isinstance(o, str) else f"{o:#04x}" for o in self.opcode)
            )
        if self.source is not None or self.destination is not None:
            ends = ("*" if pe is None else str(pe) for pe in (self.source, self.destination))
            words.append("direction " + "->".join(ends))
        if self.size is not None:
            words.append(f"size >= {self.size[0]}" if self.size[1] == FAR else f"size {_range(self.size)}")
        if self.time is not None:
            low, high = self.time
            words.append(f"from {low} cycles" if high == FAR else f"time {low}-{high} cycles")
        words += [f"{n} {_range(r)}" for n in ("packet", "nth") if (r := getattr(self, n)) is not None]
        if self.every is not None:
            words.append(f"every {self.every}{ordinal(self.every)}")
        if self.chance is not None:
            words.append(f"every {self.chance[0]}/{self.chance[1]}")
        limit = {None: "", 1: ", once"}.get(self.limit, f", {self.limit} times")
        return f"{' '.join(words) or 'any'}: {self._deed()}{limit}"

    def _deed(self) -> str:
        n, name = self.amount, self.action.name.lower()
        if self.action == Action.DUPLICATE:
            return name if n == 1 else f"{name} {n} times"
        if self.action == Action.DELAY:
            return f"{name} {n} cycles"
        if self.action == Action.REORDER:
            return f"{name} {n}" + ("" if self.within == WITHIN else f" within {self.within} cycles")
        if self.action == Action.CORRUPT:
            where = self.region if self.region == "anywhere" else f"of {self.region}"
            return f"{name} {n} {'byte' if self.bytes else 'bit'}{'s' if n > 1 else ''} {where}"
        return f"{name} {self.cut} {n} bytes" if self.action == Action.TRUNCATE and self.cut else name


def _range(r: Range) -> str:
    return str(r[0]) if r[0] == r[1] else f"{r[0]}-{r[1]}"


def ordinal(n: int) -> str:
    """What stands behind a number: 1st, 2nd, 3rd, 4th."""
    return "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")


def opcode_sets(names: Iterable[str | int]) -> tuple[set[int], set[int]]:
    """Opcodes other than Acknowledge, and syndrome classes of Acknowledge, that the names stand for."""
    opcodes: set[int] = set()
    syndromes: set[int] = set()
    for name in names:
        if name in SYNDROMES:
            syndromes |= {*SYNDROMES[str(name)]}
        elif isinstance(name, str):
            opcodes |= {*CLASSES.get(name, ())} or {OPCODES[name]}
        else:
            opcodes.add(name)
    if _ACKNOWLEDGE in opcodes:
        syndromes = set(range(8))
    return opcodes - {_ACKNOWLEDGE}, syndromes
