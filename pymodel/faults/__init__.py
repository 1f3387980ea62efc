"""Fault rules of link and memory, in sentences: ``qp 3 psn 50-150: drop once`` (language: docs/faults.md).

:func:`parse` makes :class:`Rule` and :class:`MemoryRule` objects of text, :func:`add_arguments` gives a
command its options. On the model platform rules of the link act in `pymodel.faults.link`, on the RTL all act
in C++; both write the log of `pymodel.faults.log`.
"""

from __future__ import annotations

from pymodel.faults.memory import MemoryAction, MemoryRule, link_only
from pymodel.faults.options import add_arguments
from pymodel.faults.rule import Action, Rule, RuleError
from pymodel.faults.text import AnyRule, as_rules, from_sources, parse

__all__ = [
    "Action", "AnyRule", "MemoryAction", "MemoryRule", "Rule", "RuleError", "add_arguments", "as_rules",
    "from_sources", "link_only", "parse",
]  # fmt: skip
