"""The explanation as one self-contained HTML file: no network, dark and light, by keyboard and on a phone.

What the page shows is prepared here and in `pictures`; the templates only lay it out.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jinja2

from minicompile.report import pictures, text_page

CONTEXT = 3


@dataclasses.dataclass(frozen=True)
class SourceLine:
    """A line of the user's file: its number, text, the kernels that come from it, the breaks at it; `gap` precedes it."""

    number: int
    text: str
    kernels: tuple[str, ...]
    breaks: tuple[Any, ...]
    gap: bool


@functools.cache
def environment() -> jinja2.Environment:
    """The templates, with every value escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("minicompile.report", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(amount=text_page.amount, duration=text_page.duration, place=text_page.place)
    return made


def page(explanation: Any) -> str:
    """The whole file."""
    kernels = text_page.kernel_rows(explanation.steps)
    return environment().get_template("page.html.jinja").render(
        it=explanation,
        kernels=kernels,
        buckets=text_page.BUCKETS,
        sources={name: source_lines(explanation, name, content) for name, content in explanation.files.items()},
        graph=pictures.graph(explanation.steps),
        roofline=pictures.roofline(kernels, explanation.roofs),
        memory=pictures.memory(explanation.memory),
        summary=list(text_page.Page(explanation, 10_000).verdict()),
    )  # fmt: skip


def source_lines(explanation: Any, file: str, content: str) -> list[SourceLine]:
    """The lines of one file that became steps or breaks, with a few around them."""
    kernels: dict[int, dict[str, None]] = {}
    for step in explanation.steps:
        for place in step.lines:
            if place.file == file:
                kernels.setdefault(place.line, {})[step.name] = None
    breaks: dict[int, list[Any]] = {}
    for record in explanation.breaks:
        if record.location is not None and record.location.file == file:
            breaks.setdefault(record.location.line, []).append(record)
    wanted = {near for line in (*kernels, *breaks) for near in range(line - CONTEXT, line + CONTEXT + 1)}
    lines = content.splitlines()
    shown = [number for number in sorted(wanted) if 1 <= number <= len(lines)]
    return [
        SourceLine(
            number, lines[number - 1], tuple(kernels.get(number, ())), tuple(breaks.get(number, ())),
            place > 0 and shown[place - 1] != number - 1,
        )
        for place, number in enumerate(shown)
    ]  # fmt: skip
