"""How time, host time and error are measured; everything else of the benchmark reports what these return."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from minicompile.report.clock import host_microseconds, launches, milliseconds, synchronize

__all__ = ["first_call_seconds", "host_microseconds", "largest_error", "launches", "milliseconds", "synchronize"]


def first_call_seconds(function: Callable[[], Any], device: str) -> float:
    """Wall-clock seconds of one call, compilation included, until its result is there."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def largest_error(values: Iterable[torch.Tensor], references: Iterable[torch.Tensor]) -> float:
    """The largest difference from fp64 references, as a share of each reference's largest magnitude."""
    worst = 0.0
    for value, reference in zip(values, references, strict=True):
        scale = reference.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
        error = float((value.double() - reference).abs().max() / scale)
        worst = max(worst, float("inf") if error != error else error)
    return worst
