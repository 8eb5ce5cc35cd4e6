"""Ranges with the user's names in profiles: `blocks.0.attention / softmax_kernel` around every step.

The compiled code itself marks nothing, so that calls cost nothing more; steps are wrapped while a profile is taken.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minicompile.report.collect import step_record
from minicompile.report.watch import Watched, watching


@contextlib.contextmanager
def named_ranges(graphs: Sequence[Any]) -> Iterator[None]:
    """Mark every step of the graphs for `torch.profiler` and, on a GPU, as an NVTX range."""
    labels: dict[tuple[int, str, int], str] = {}

    def around(which: Watched, step: Callable[[], Any]) -> Any:
        key = (which.graph, which.half, which.number)
        if key not in labels:
            graph = graphs[which.graph]
            labels[key] = label(graph, which.half, which.number)
        with torch.profiler.record_function(labels[key]), nvtx(labels[key]):
            return step()

    with watching(graphs, around):
        yield


def label(graph: Any, half: str, number: int) -> str:
    """The module, and the kernel in it."""
    part = graph.parts[half]
    if part.schedule is None:
        return f"{graph.captured.name} / {part.program.steps[number][0].removeprefix('run_')}"
    step = step_record(graph.captured.name, half, number, part)
    return f"{step.module or step.graph} / {step.name}" + (" (backward)" if half == "backward" else "")


def nvtx(name: str) -> contextlib.AbstractContextManager[Any]:
    """An NVTX range where there is a GPU."""
    return torch.cuda.nvtx.range(name) if torch.cuda.is_available() else contextlib.nullcontext()


@contextlib.contextmanager
def profile(graphs: Sequence[Any], path: str | pathlib.Path | None) -> Iterator[torch.profiler.profile]:
    """A `torch.profiler` profile with named steps; written as a Chrome trace to `path`."""
    with named_ranges(graphs), torch.profiler.profile() as taken:
        yield taken
    if path is not None:
        taken.export_chrome_trace(str(path))
