"""Fault rules as tb/cpp/faults.cpp and memory_faults.cpp work with them. The rules are `pymodel.faults`'s."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pymodel.faults.memory import MemoryRule
from pymodel.faults.rule import CUTS, FAR, MAX_PE, REGIONS, Rule, opcode_sets

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
#: TbMemoryRule of tb/cpp/tb.h
MEMORY_RULE = np.dtype(
    [
        ("conditions", "<u4"), ("id", "<u4"), ("action", "u1"), ("ways", "u1"), ("pe", "u1", 2),
        ("reserved", "<u4"), ("address", "<u8", 2), ("time", "<u8", 2), ("nth", "<u8", 2), ("every", "<u8"),
        ("chance", "<u8", 2), ("key", "<u8"), ("amount", "<u8"), ("limit", "<u8"),
    ]
)  # fmt: skip
assert MEMORY_RULE.itemsize == 112
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


def compile_memory(rules: Sequence[tuple[int, MemoryRule, int]], first_id: int = 0) -> npt.NDArray[np.void]:
    """MEMORY_RULE[len(rules)] of (place, rule, key); the log calls them by first_id + place."""
    table = np.zeros(len(rules), MEMORY_RULE)
    for row, (place, rule, key) in zip(table, rules, strict=True):
        row["id"], row["action"], row["amount"], row["key"] = first_id + place, rule.action, rule.amount, key
        row["ways"], row["limit"] = rule.read | rule.write << 1, rule.limit or 0
        row["pe"], row["address"] = rule.pe or (0, MAX_PE), rule.address or (0, FAR)
        for name in ("time", "nth", "every", "chance"):
            value = getattr(rule, name)
            if value is not None:
                row["conditions"] |= _IF[name]
                row[name] = value
    return table
