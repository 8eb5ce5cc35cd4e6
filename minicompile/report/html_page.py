"""The explanation as one self-contained HTML file: no network, dark and light, by keyboard and on a phone.

What the page shows is prepared here, in `document` and in `pictures`; the templates only lay it out.
"""

import dataclasses
import functools
from typing import Any

import jinja2

from minicompile.report import document, pictures

CONTEXT = 3
MANY_ROWS = 400


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
    loader = jinja2.PackageLoader("minicompile.report", "templates")
    made = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    made.tests.update(cell=lambda value: isinstance(value, document.Cell), lines=lambda value: isinstance(value, list))
    return made


def page(explanation: Any) -> str:
    """The whole file."""
    steps, kernels = explanation.steps, document.kernels_of(explanation.steps)
    return environment().get_template("page.html.jinja").render(
        it=explanation,
        sections=document.sections(explanation),
        kernels=[kernel for kernel in kernels if kernel.first.source],
        place=document.place,
        most=MANY_ROWS,
        sources={name: source_lines(explanation, name, content) for name, content in explanation.files.items()},
        graph=pictures.graph(steps),
        pictures={"Kernels": pictures.roofline(kernels, explanation.roofs), "Memory": pictures.memory(steps)},
    )  # fmt: skip


def source_lines(explanation: Any, file: str, content: str) -> list[SourceLine]:
    """The lines of one file that became steps or breaks, with a few around them."""
    kernels: dict[int, dict[str, None]] = {}
    breaks: dict[int, list[Any]] = {}
    for step in explanation.steps:
        for place in step.lines:
            if place.file == file:
                kernels.setdefault(place.line, {})[step.name] = None
    for record in explanation.breaks:
        if record.location is not None and record.location.file == file:
            breaks.setdefault(record.location.line, []).append(record)
    wanted = {near for line in (*kernels, *breaks) for near in range(line - CONTEXT, line + CONTEXT + 1)}
    lines = content.splitlines()
    return [
        SourceLine(
            number, lines[number - 1], tuple(kernels.get(number, ())), tuple(breaks.get(number, ())),
            number > min(wanted) and number - 1 not in wanted,
        )
        for number in sorted(wanted) if 1 <= number <= len(lines)
    ]  # fmt: skip
