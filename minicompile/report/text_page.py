"""The sections of an explanation as a page that fits a terminal."""

import itertools
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from minicompile.report.document import Cell, Section, Table

ROWS, LINES, NARROW = 12, 3, 16


def page(sections: Sequence[Section], width: int | None = None) -> str:
    """All sections; the first one's heading is the title."""
    width = max(60, width or shutil.get_terminal_size((80, 24)).columns)
    lines: list[str] = [sections[0].heading, "=" * len(sections[0].heading)]
    for number, section in enumerate(sections):
        if number:
            lines += ["", shortened(f"-- {section.title}: {section.heading} ".ljust(width, "-"), width)]
        for block in section.blocks:
            lines += block_lines(block, width)
    return "\n".join(lines) + "\n"


def block_lines(block: Any, width: int) -> list[str]:
    """A paragraph, lines of code, or a table."""
    if isinstance(block, str):
        return textwrap.wrap(block, width, subsequent_indent="  ", break_on_hyphens=False)
    if isinstance(block, Table):
        return list(table_lines(block, width))
    return [f"    {line}".rstrip() for line in block]


def table_lines(table: Table, width: int) -> Iterator[str]:
    """The first rows, and the columns that fit and say anything; the first and the last of them are wrapped if need be."""
    rows = [table.header, *(tuple(map(str, row)) for row in table.rows[:ROWS])]
    telling = [n for n in range(len(table.header)) if not table.rows or any(str(row[n]) not in ("", "-") for row in table.rows)]
    figures = [bool(table.rows) and isinstance(table.rows[0][column], Cell) for column in telling]
    rows = [tuple(row[column] for column in telling) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(telling))]
    widths[0] = min(widths[0], width // 2)
    shown = 1
    while shown < len(widths) and sum(widths[:shown]) + 2 * shown + min(widths[shown], NARROW) <= width:
        shown += 1
    widths[shown - 1] = min(widths[shown - 1], width - sum(widths[: shown - 1]) - 2 * (shown - 1))
    for row in rows:
        cells = [textwrap.wrap(cell, size, break_on_hyphens=False, max_lines=LINES, placeholder="…")
                 for cell, size in zip(row[:shown], widths)]  # fmt: skip
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            texts = (f"{part:>{size}}" if figure else f"{part:<{size}}" for part, size, figure in zip(parts, widths, figures))
            yield "  ".join(texts).rstrip()
    if len(table.rows) > ROWS:
        yield f"… and {len(table.rows) - ROWS} more"


def shortened(text: str, size: int) -> str:
    """A text that fits."""
    return text if len(text) <= size else text[: size - 1] + "…"
