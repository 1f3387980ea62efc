"""The log of faults: what rules of the link did to which packet, rules of memory to which access."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pymodel.faults.memory import MemoryAction
from pymodel.faults.rule import OPCODES, Action
from pymodel.faults.text import AnyRule
from pymodel.nic.params import AxiId

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
#: TbMemoryEntry of tb/cpp/tb.h. ``addr`` of the beat that failed, or of the burst that was stalled;
#: ``amount`` cycles of a stall; ``write`` 0: a read; ``id`` AXI ID
MEMORY_LOG = np.dtype(
    [
        ("time", "<u8"), ("record", "<u8"), ("addr", "<u8"), ("amount", "<u8"), ("rule", "<u4"),
        ("action", "u1"), ("pe", "u1"), ("write", "u1"), ("id", "u1"),
    ]
)  # fmt: skip
assert MEMORY_LOG.itemsize == 40
_OPCODE_NAMES = {number: name for name, number in OPCODES.items()}


def counts(log: npt.NDArray[np.void]) -> dict[str, int]:
    """Applied faults by kind, all six kinds; releases of held packets are no faults of their own."""
    kinds = np.bincount(log["action"], minlength=max(Action) + 1)
    return {a.name.lower(): int(kinds[a]) for a in Action if a != Action.RELEASE}


def memory_counts(log: npt.NDArray[np.void]) -> dict[str, int]:
    """Beats that failed and bursts that were stalled, by kind, all three kinds."""
    kinds = np.bincount(log["action"], minlength=max(MemoryAction) + 1)
    return {a.name.lower(): int(kinds[a]) for a in MemoryAction}


def edits(entry: np.void) -> list[tuple[int, int]]:
    """(offset, XOR mask) of each change that a CORRUPT entry made."""
    return [(int(e) >> 8, int(e) & 255) for e in entry["edit"][: entry["edits"]]]


def render(entry: np.void, rules: Sequence[AnyRule] = ()) -> str:
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
    packet = (
        f"{entry['source']}->{entry['destination']} packet {entry['packet']} {what} {entry['size']} bytes"
    )
    return f"cycle {entry['time']} {packet}: {deed}, {_rule(entry, rules)}"


def _rule(entry: np.void, rules: Sequence[AnyRule]) -> str:
    number = int(entry["rule"])
    return f"rule {number}" + (f" ({rules[number].where or rules[number]})" if number < len(rules) else "")


def render_memory(entry: np.void, rules: Sequence[AnyRule] = ()) -> str:
    """One line: time, access, what memory did, by which rule."""
    action, ident = MemoryAction(int(entry["action"])), int(entry["id"])
    kind = AxiId(ident).name.lower() if ident in set(AxiId) else f"id {ident}"
    access = f"pe {entry['pe']} {kind} {'write' if entry['write'] else 'read'} {int(entry['addr']):#x}"
    stalled = action == MemoryAction.STALL
    deed = f"stalled by {entry['amount']} cycles" if stalled else f"answered {action.name}"
    return f"cycle {entry['time']} {access}: {deed}, {_rule(entry, rules)}"


def text(
    log: npt.NDArray[np.void], rules: Sequence[AnyRule] = (), memory: npt.NDArray[np.void] | None = None
) -> str:
    """All entries of the link and of memory in the order of time, one a line, then the counts."""
    timed = [(int(entry["time"]), render(entry, rules)) for entry in log]
    kinds = counts(log)
    if memory is not None:
        timed += [(int(entry["time"]), render_memory(entry, rules)) for entry in memory]
        kinds |= memory_counts(memory)
    lines = [line for _, line in sorted(timed, key=lambda x: x[0])]
    total = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    return "\n".join([*lines, f"faults: {total or 'none'}"])
