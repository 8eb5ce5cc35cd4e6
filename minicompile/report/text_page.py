"""The sections of an explanation as a page that fits a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from minicompile.report.document import Section, Table

ROWS = 12


def page(sections: Sequence[Section], width: int | None = None) -> str:
    """All sections; the first one's heading is the title."""
    width = max(60, width or shutil.get_terminal_size((80, 24)).columns)
    lines: list[str] = [sections[0].heading, "=" * len(sections[0].heading)]
    for number, section in enumerate(sections):
        if number:
            lines += ["", f"-- {section.title}: {section.heading} ".ljust(width, "-")]
        for block in section.blocks:
            lines += block_lines(block, width)
    return "\n".join(lines) + "\n"


def block_lines(block: Any, width: int) -> list[str]:
    """A paragraph, lines of code, or a table."""
    if isinstance(block, str):
        return textwrap.wrap(block, width, subsequent_indent="  ", break_on_hyphens=False)
    if isinstance(block, Table):
        return list(table_lines(block, width))
    return [f"    {line}" for line in block]


def table_lines(table: Table, width: int) -> Iterator[str]:
    """The first rows, and the columns that fit; the first column is cut where it has to be."""
    rows = [table.header, *(tuple(map(str, row)) for row in table.rows[:ROWS])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header))]
    first, others = min(widths[0], max(24, width // 2)), 0
    while others + 1 < len(widths) and first + sum(widths[1 : others + 2]) + 2 * (others + 1) <= width:
        others += 1
    first = min(widths[0], width - sum(widths[1 : others + 1]) - 2 * others)
    for row in rows:
        name = row[0] if len(row[0]) <= first else row[0][: first - 1] + "…"
        cells = "".join(f"  {cell:>{size}}" for cell, size in zip(row[1 : others + 1], widths[1:]))
        yield f"{name:<{first}}{cells}".rstrip()
    if len(table.rows) > ROWS:
        yield f"… and {len(table.rows) - ROWS} more"
