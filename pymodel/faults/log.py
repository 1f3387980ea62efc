"""The log of faults on the link: what rules (pymodel/faults/rule.py) did to which packet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pymodel.faults.rule import OPCODES, Action, Rule

#: TbFaultEntry of tb/cpp/tb.h. ``time`` cycle; ``record`` records of the stream that came before; ``packet``
#: number on the link, from 1; ``sent`` index among the TXPKT records of PE ``source``; ``amount`` copies,
#: cycles of delay, later packets to wait for (RELEASE: that have passed), edits, bytes left; ``size``,
#: ``opcode``, ``qp``, ``psn`` as sent; ``roce`` 0: no RoCEv2 frame; ``edit[:edits]`` offset << 8 | XOR mask
LOG = np.dtype(
    [
        ("time", "<u8"), ("record", "<u8"), ("packet", "<u8"), ("sent", "<u8"), ("amount", "<u8"),
        ("rule", "<u4"), ("size", "<u4"), ("qp", "<u4"), ("psn", "<u4"), ("action", "u1"), ("source", "u1"),
        ("destination", "u1"), ("opcode", "u1"), ("roce", "u1"), ("edits", "u1"), ("reserved", "u1", 2),
        ("edit", "<u4", 16),
    ]
)  # fmt: skip
assert LOG.itemsize == 128
_OPCODE_NAMES = {number: name for name, number in OPCODES.items()}


def counts(log: npt.NDArray[np.void]) -> dict[str, int]:
    """Applied faults by kind, all six kinds; releases of held packets are no faults of their own."""
    kinds = np.bincount(log["action"], minlength=max(Action) + 1)
    return {a.name.lower(): int(kinds[a]) for a in Action if a != Action.RELEASE}


def edits(entry: np.void) -> list[tuple[int, int]]:
    """(offset, XOR mask) of each change that a CORRUPT entry made."""
    return [(int(e) >> 8, int(e) & 255) for e in entry["edit"][: entry["edits"]]]


def render(entry: np.void, rules: Sequence[Rule] = ()) -> str:
    """One line: time, packet, what was done, by which rule (``SimLib.fault_rules``)."""
    action, amount = Action(int(entry["action"])), int(entry["amount"])
    if entry["roce"]:
        opcode = int(entry["opcode"])
        name = _OPCODE_NAMES.get(opcode, f"opcode {opcode:#04x}")
        what = f"{name} qp {entry['qp']} psn {entry['psn']}"
    else:
        what = "no RoCEv2 frame"
    deed = {
        Action.DROP: "dropped",
        Action.DUPLICATE: "duplicated" if amount == 1 else f"duplicated {amount} times",
        Action.DELAY: f"delayed by {amount} cycles",
        Action.REORDER: f"held back behind {amount} later",
        Action.CORRUPT: "corrupted " + ", ".join(f"byte {at} ^ {mask:#04x}" for at, mask in edits(entry)),
        Action.TRUNCATE: f"truncated to {amount} bytes",
        Action.RELEASE: f"goes on behind {amount} later",
    }[action]
    number = int(entry["rule"])
    rule = f"rule {number}" + (f" ({rules[number].where or rules[number]})" if number < len(rules) else "")
    packet = (
        f"{entry['source']}->{entry['destination']} packet {entry['packet']} {what} {entry['size']} bytes"
    )
    return f"cycle {entry['time']} {packet}: {deed}, {rule}"


def text(log: npt.NDArray[np.void], rules: Sequence[Rule] = ()) -> str:
    """All entries, one a line, then the counts."""
    lines = [render(entry, rules) for entry in log]
    total = ", ".join(f"{count} {kind}" for kind, count in counts(log).items() if count)
    return "\n".join([*lines, f"faults: {total or 'none'}"])
