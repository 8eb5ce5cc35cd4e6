"""How time, host time and error are measured; everything else of the benchmark reports what these return."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch


def milliseconds(function: Callable[[], Any], device: str, budget_ms: float = 100.0) -> float:
    """Median time of one call: CUDA events with a cold L2 on a GPU, wall clock on the CPU."""
    if device == "cuda":
        from triton.testing import do_bench  # only needed, and only sure to be there, with a GPU

        return float(do_bench(function, warmup=25, rep=budget_ms, return_mode="median"))
    function()
    samples: list[float] = []
    end = time.perf_counter() + budget_ms / 1e3
    while len(samples) < 3 or (time.perf_counter() < end and len(samples) < 100):
        start = time.perf_counter()
        function()
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)


def host_microseconds(function: Callable[[], Any], device: str, calls: int = 3000) -> float:
    """Host time of one call in a loop that never waits for the device."""
    for _ in range(max(calls // 15, 2)):
        function()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        function()
    elapsed = time.perf_counter() - start
    synchronize(device)
    return elapsed / calls * 1e6


def first_call_seconds(function: Callable[[], Any], device: str) -> float:
    """Wall-clock seconds of one call, compilation included, until its result is there."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def largest_error(values: Iterable[torch.Tensor], references: Iterable[torch.Tensor]) -> float:
    """The largest difference from fp64 references, as a share of each reference's largest magnitude."""
    worst = 0.0
    for value, reference in zip(values, references, strict=True):
        scale = reference.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
        error = float((value.double() - reference).abs().max() / scale)
        worst = max(worst, float("inf") if error != error else error)
    return worst
