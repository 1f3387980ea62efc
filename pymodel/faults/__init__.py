"""Fault rules of the link, in sentences: ``qp 3 psn 50-150: drop once`` (docs/faults.md has the language).

:func:`parse` makes :class:`Rule` objects of text, :func:`add_arguments` gives a command its options. On the
model platform they act in `pymodel.faults.link`, on the RTL in C++; both write the log of
`pymodel.faults.log`.
"""

from __future__ import annotations

from pymodel.faults.options import add_arguments
from pymodel.faults.rule import Action, Rule, RuleError
from pymodel.faults.text import as_rules, from_sources, parse

__all__ = ["Action", "Rule", "RuleError", "add_arguments", "as_rules", "from_sources", "parse"]
