"""What sizes that vary cost: a workload compiled for its own sizes and compiled for any, timed at the same sizes.

Knows compilers only as functions that compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minicompile.bench.timing import milliseconds

Compile = Callable[..., Any]


def varying_sizes(compile_for: Compile, function: Any, inputs: tuple[Any, ...], step: Callable[[Any], None],
                  dims: tuple[tuple[int, int], ...], device: str) -> dict[str, Any]:  # fmt: skip
    """Figures of one workload; `step` calls a compiled function once, `dims` are (input, dimension) pairs that vary."""
    fixed = compile_for(function, dynamic=False)
    step(fixed)
    figures: dict[str, Any] = {"static_ms": milliseconds(lambda: step(fixed), device)}
    for index, dim in dims:
        torch._dynamo.mark_dynamic(inputs[index], dim)
    try:
        varying = compile_for(function, dynamic=None)
        step(varying)
        figures["dynamic_ms"] = milliseconds(lambda: step(varying), device)
    finally:
        for value in inputs:
            for name in ("_dynamo_dynamic_indices", "_dynamo_dynamic_range"):
                if hasattr(value, name):
                    delattr(value, name)
    figures["dynamic/static"] = figures["dynamic_ms"] / figures["static_ms"]
    return figures
