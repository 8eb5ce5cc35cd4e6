"""How time, host time and error are measured; everything else of the benchmark reports what these return."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from minicompile.report.clock import host_microseconds, launches, milliseconds, synchronize

__all__ = [
    "first_call_seconds", "graphed_milliseconds", "host_microseconds", "largest_error", "launches", "milliseconds",
    "synchronize",
]  # fmt: skip


def first_call_seconds(function: Callable[[], Any], device: str) -> float:
    """Wall-clock seconds of one call, compilation included, until its result is there."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def graphed_milliseconds(function: Callable[[], Any], device: str, calls: int = 20) -> float:
    """Time of one call inside a CUDA graph of several: what the GPU alone needs, with a warm L2. On a CPU, of a plain call."""
    if device != "cuda":
        return milliseconds(function, device)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            function()
    synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            function()
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        synchronize(device)
        times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times)


def largest_error(values: Iterable[torch.Tensor], references: Iterable[torch.Tensor]) -> float:
    """The largest difference from fp64 references, as a share of each reference's largest magnitude."""
    worst = 0.0
    for value, reference in zip(values, references, strict=True):
        scale = reference.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
        error = float((value.double() - reference).abs().max() / scale)
        worst = max(worst, float("inf") if error != error else error)
    return worst
