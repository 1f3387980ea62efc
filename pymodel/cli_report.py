"""A decoded object as the command shows it: rows in sections, as aligned text or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One field. bits: its width, for the digits shown (ignored for a str). text: what the value means."""

    name: str
    value: int | str
    bits: int = 0
    text: str = ""


@dataclass
class Report:
    """What `decode` shows.

    Row names are unique over all sections: they are the keys of the JSON object, with `extra` beside them.
    notes: whole lines below the fields, in the text only.
    """

    title: str
    sections: list[tuple[str, list[Row]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def add(self, title: str, rows: Iterable[Row]) -> None:
        """Append a section."""
        self.sections.append((title, list(rows)))

    def json(self) -> str:
        """One JSON object; fields are integers, addresses of the link strings."""
        values = {row.name: row.value for _, rows in self.sections for row in rows}
        return json.dumps({**values, **self.extra}, indent=1)

    def text(self) -> str:
        """Title, sections, notes: name, hexadecimal, decimal and meaning in columns."""
        rows = [row for _, section in self.sections for row in section]
        name_width = max(len(row.name) for row in rows)
        hex_width = max(len(_hex(row)) for row in rows)
        decimal_width = max(len(_decimal(row)) for row in rows)
        lines = [self.title]
        for title, section in self.sections:
            lines.append(f"{title}:")
            for row in section:
                line = f"  {row.name:<{name_width}}  {_hex(row):>{hex_width}}"
                line += f"  {_decimal(row):>{decimal_width}}  {row.text}"
                lines.append(line.rstrip())
        return "\n".join(lines + self.notes)


def _hex(row: Row) -> str:
    return row.value if isinstance(row.value, str) else f"0x{row.value:0{-(-row.bits // 4)}x}"


def _decimal(row: Row) -> str:
    return "" if isinstance(row.value, str) else str(row.value)
