"""Fault rules as tb/cpp/faults.cpp works with them. The rules themselves are `pymodel.faults.rule`'s."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pymodel.faults.rule import CUTS, REGIONS, Rule, opcode_sets

#: TbFaultRule of tb/cpp/tb.h
RULE = np.dtype(
    [
        ("conditions", "<u4"), ("id", "<u4"), ("action", "u1"), ("region", "u1"), ("bytes", "u1"),
        ("cut", "u1"), ("source", "i1"), ("destination", "i1"), ("syndromes", "u1"), ("reserved", "u1"),
        ("qp", "<u4", 2), ("psn", "<u4", 2), ("opcodes", "<u8", 4), ("size", "<u8", 2), ("time", "<u8", 2),
        ("packet", "<u8", 2), ("nth", "<u8", 2), ("every", "<u8"), ("chance", "<u8", 2), ("amount", "<u8"),
        ("within", "<u8"), ("limit", "<u8"),
    ]
)  # fmt: skip
assert RULE.itemsize == 176
#: bits of TbFaultRule.conditions
_IF = {
    "qp": 1,
    "psn": 2,
    "opcode": 4,
    "size": 8,
    "time": 16,
    "packet": 32,
    "nth": 64,
    "every": 128,
    "chance": 256,
}


def compile_rules(rules: Sequence[Rule], first_id: int = 0) -> npt.NDArray[np.void]:
    """RULE[len(rules)]; the log calls them by numbers from ``first_id`` on."""
    table = np.zeros(len(rules), RULE)
    for n, rule in enumerate(rules):
        row = table[n]
        row["id"] = first_id + n
        row["source"] = -1 if rule.source is None else rule.source
        row["destination"] = -1 if rule.destination is None else rule.destination
        for name in ("action", "bytes", "amount", "within"):
            row[name] = getattr(rule, name)
        row["region"], row["cut"] = REGIONS.index(rule.region), CUTS.index(rule.cut)
        row["limit"] = rule.limit or 0
        for name, bit in _IF.items():
            value = getattr(rule, name)
            if value is None or value == ():
                continue
            row["conditions"] |= bit
            if name != "opcode":
                row[name] = value
        opcodes, syndromes = opcode_sets(rule.opcode)
        for opcode in opcodes:
            row["opcodes"][opcode >> 6] |= np.uint64(1 << (opcode & 63))
        row["syndromes"] = sum(1 << s for s in syndromes)
    return table
