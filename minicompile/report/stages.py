"""Every stage's program as text, in order: captured, joint, partitioned, loops, schedule, generated file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from minicompile.ir import printer


class Stages(dict[str, str]):
    """Stage to text, in the order of the pipeline; `print` shows all of them."""

    def __str__(self) -> str:
        return "\n".join(f"==== {name} ====\n{text}" for name, text in self.items())


def stages_of(graphs: Iterable[Any], products: Callable[[Any, str], Any]) -> Stages:
    """The programs of every compiled graph; `products(graph, half)` is the half with what each stage made of it."""
    found = Stages()
    for number, graph in enumerate(graphs):
        name = f"{graph.captured.name}" + (f" ({number + 1})" if number else "")
        found[f"{name}: captured"] = printer.captured_text(graph.captured)
        found[f"{name}: guards"] = printer.guards_text(graph.captured)
        found[f"{name}: joint"] = graph.partitioned.joint_text
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
