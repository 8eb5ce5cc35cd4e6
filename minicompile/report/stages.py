"""What was compiled as texts by name: the generated files, or every stage's program in order.

This module must not compile anything.
"""

from collections.abc import Callable, Iterable
from typing import Any

from minicompile.ir import printer


class Listing(dict[str, str]):
    """Texts by name, in the order in which they were made; `print` shows every one under its name."""

    def __str__(self) -> str:
        return "\n".join(f"# ---- {name} ----\n{text}" for name, text in self.items())


def numbered(files: Iterable[tuple[str, str]]) -> Listing:
    """Generated files; names that occur more than once are numbered, so that no file hides another."""
    collected = Listing()
    for name, text in files:
        stem, dot, suffix = name.rpartition(".")
        unique, number = name, 1
        while unique in collected:
            number += 1
            unique = f"{stem}_{number}{dot}{suffix}"
        collected[unique] = text
    return collected


def stages_of(graphs: Iterable[Any], products: Callable[[Any, str], Any], joint: Callable[[Any], str]) -> Listing:
    """The programs of every compiled graph; `products(graph, half)` is the half with what each stage made of it, and
    `joint(graph)` the graph of forward and backward in one."""
    found = Listing()
    for number, graph in enumerate(graphs):
        name = f"{graph.captured.name}" + (f" ({number + 1})" if number else "")
        found[f"{name}: captured"] = printer.captured_text(graph.captured)
        found[f"{name}: guards"] = printer.guards_text(graph.captured)
        found[f"{name}: joint"] = joint(graph)
        found[f"{name}: partitioned"] = printer.partitioned_text(graph.partitioned)
        for half in graph.parts:
            part = products(graph, half)
            if part.fallback:
                found[f"{name}: {half}"] = f"runs its ATen graph eagerly: {part.fallback}"
                continue
            found[f"{name}: {half} loops"] = printer.lowered_text(part.lowered)
            found[f"{name}: {half} schedule"] = printer.schedule_text(part.schedule)
            found[f"{name}: {half} program"] = part.program.text
    return found
