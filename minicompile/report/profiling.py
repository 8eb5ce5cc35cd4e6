"""Ranges with the user's names in profiles: `blocks.0.attention / softmax_kernel` around every step.

The compiled code itself marks nothing, so that calls cost nothing more; steps are wrapped while a profile is taken.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minicompile.report.collect import step_record
from minicompile.report.watch import Watched, watching

Profiled = Sequence[tuple[Any, Callable[[Any, str], Any]]]
"""Compiled graphs, each with what gives a half of it with every stage's product."""


@contextlib.contextmanager
def profile(graphs: Profiled, path: str | pathlib.Path | None) -> Iterator[torch.profiler.profile]:
    """A `torch.profiler` profile in which every step of the graphs is a range (on a GPU an NVTX range too); written as a
    Chrome trace to `path`."""
    labels = {
        (place, half): [label(graph, half, number, part) for number in range(len(part.program.steps))]
        for place, (graph, products) in enumerate(graphs)
        for half in graph.parts
        if (part := products(graph, half)).program is not None
    }

    def around(which: Watched, step: Callable[[], Any]) -> Any:
        name = labels[which.graph, which.half][which.number]
        nvtx = torch.cuda.nvtx.range(name) if torch.cuda.is_available() else contextlib.nullcontext()
        with torch.profiler.record_function(name), nvtx:
            return step()

    with watching([graph for graph, _ in graphs], around), torch.profiler.profile() as taken:
        yield taken
    if path is not None:
        taken.export_chrome_trace(str(path))


def label(graph: Any, half: str, number: int, part: Any) -> str:
    """The module, and the kernel in it."""
    step = step_record(graph.captured.name, half, number, part)
    return f"{step.module or step.graph} / {step.name}" + (" (backward)" if half != "forward" else "")
