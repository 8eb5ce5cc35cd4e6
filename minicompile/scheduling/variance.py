"""Reductions of what an earlier one gives, in the same pass: squared deviations from a mean, exponentials below a maximum.

For any `m`, the sum of `(v - m)**2` over a chunk of `n` elements with mean `c` is the sum of `(v - c)**2` plus
`n * (c - m)**2` (Chan, Golub and LeVeque, 1979). So when a reduction is cut into chunks that stay in registers, the
squares need no second pass over memory, and nothing cancels as it would in `E[v**2] - E[v]**2`. Likewise the sum of
`exp(v - m)` over a chunk with maximum `c` is that of `exp(v - c)` times `exp(c - m)`. This module must not decide how many
chunks there are.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import torch

from minicompile.ir.expr import Apply, Constant, Expr, Load, apply, cast, exponential_below, rewrite, without_widening
from minicompile.ir.index import Axis, Index
from minicompile.ir.loops import Buffer, Loop, Operation, Reduction
from minicompile.scheduling.reindexing import AxisMap, axes_in_value
from minicompile.scheduling.traffic import points


@dataclasses.dataclass(frozen=True)
class Chunks:
    """A reduction cut into equal chunks: the axes over these and in one, the change to them, and where partial results are."""

    parts: tuple[Axis, ...]
    within: tuple[Axis, ...]
    changes: AxisMap
    place: Index
    partial: Buffer


def find_squares(operations: Sequence[Operation]) -> dict[int, int]:
    """Positions of sums of squared deviations, each with that of the sum over the same values."""
    sums: dict[tuple[Expr, tuple[Axis, ...], tuple[Axis, ...]], int] = {}
    found: dict[int, int] = {}
    for position, loop in enumerate(operations):
        if not isinstance(loop, Loop) or not isinstance(loop.fold, Reduction) or loop.fold.kind != "sum":
            continue
        value = deviation(loop)
        key = (loop.value if value is None else value[0], loop.axes, loop.fold.axes)
        if value is None:
            sums.setdefault(key, position)
        elif key in sums:
            found[position] = sums[key]
    return found


def find_exponentials(operations: Sequence[Operation]) -> dict[int, int]:
    """Positions of sums of exponentials, each with that of the maximum of the same values that is subtracted."""
    maxima: dict[str, int] = {}
    found: dict[int, int] = {}
    for position, loop in enumerate(operations):
        if not isinstance(loop, Loop) or not isinstance(loop.fold, Reduction):
            continue
        parts = exponent(loop)
        if loop.fold.kind == "max":
            maxima[loop.buffer] = position
        elif parts is not None and parts[1].buffer in maxima:
            maximum = operations[maxima[parts[1].buffer]]
            assert isinstance(maximum, Loop)
            same_rows = (maximum.axes, maximum.fold, maximum.store) == (
                loop.axes, Reduction("max", loop.fold.axes), parts[1].index)  # fmt: skip
            if same_rows and without_widening(parts[0]) is without_widening(maximum.value):
                found[position] = maxima[maximum.buffer]
    return found


def exponent(loop: Loop) -> tuple[Expr, Load] | None:
    """`(v, m)` if the loop sums `exp(v - m)` with an `m` that is loaded."""
    parts = exponential_below(loop.value) if isinstance(loop.fold, Reduction) and loop.fold.kind == "sum" else None
    return (parts[0], parts[1]) if parts is not None and isinstance(parts[1], Load) else None


def deviation(loop: Loop) -> tuple[Expr, Expr] | None:
    """`(v, m)` if the loop sums `(v - m) * (v - m)` with an `m` that does not vary in the sum."""
    value = loop.value
    if not isinstance(value, Apply) or value.operation != "mul" or value.arguments[0] is not value.arguments[1]:
        return None
    difference = value.arguments[0]
    if not isinstance(difference, Apply) or difference.operation != "sub":
        return None
    v, m = difference.arguments
    if v.dtype not in (torch.float32, torch.float64) or difference.dtype != v.dtype or value.dtype != v.dtype:
        return None
    return None if axes_in_value(m) & frozenset(loop.reduction_axes) else (v, m)


def partial_name(loop: Loop, buffers: Mapping[str, Buffer]) -> str:
    """A free name for partial results."""
    name = f"{loop.buffer}_partial"
    while name in buffers:
        name += "_"
    return name


def in_chunks(loop: Loop, chunks: Chunks, buffers: Mapping[str, Buffer]) -> tuple[Loop, Loop, Buffer]:
    """The loop within each chunk, the loop that combines the chunks, and the buffer between."""
    name = partial_name(loop, buffers)
    value, between, dtype = _squares(loop, chunks) or _exponentials(loop, chunks)
    partial = dataclasses.replace(chunks.partial, name=name, dtype=dtype)
    first = Loop(name, (*chunks.parts, *loop.axes), value, chunks.place, Reduction("sum", chunks.within),
                 origins=loop.origins)  # fmt: skip
    combined = between(Load(name, chunks.place, dtype))
    return first, dataclasses.replace(loop, value=combined, fold=Reduction("sum", chunks.parts)), partial


Parts = tuple[Expr, Callable[[Expr], Expr], torch.dtype]


def _squares(loop: Loop, chunks: Chunks) -> Parts | None:
    """What to sum in a chunk, and the sum of the whole in terms of a chunk's sum: squared deviations."""
    found = deviation(loop)
    if found is None:
        return None
    value, center = found
    dtype = value.dtype
    count = Constant(float(points(chunks.within)), dtype)
    mean = apply("truediv", Load(chunks.partial.name, chunks.place, dtype), count, dtype=dtype)
    inside = apply("sub", rewrite(value, dict(chunks.changes)), mean, dtype=dtype)
    between = apply("sub", mean, center, dtype=dtype)
    shifted = apply("mul", count, apply("mul", between, between, dtype=dtype), dtype=dtype)
    return apply("mul", inside, inside, dtype=dtype), lambda sum_: apply("add", sum_, shifted, dtype=dtype), dtype


def _exponentials(loop: Loop, chunks: Chunks) -> Parts:
    """The same for exponentials below a maximum; a chunk of nothing but minus infinity adds nothing."""
    found = exponent(loop)
    assert found is not None
    value, highest = found
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    maximum = cast(Load(chunks.partial.name, chunks.place, chunks.partial.dtype), dtype)
    nothing = apply("eq", maximum, Constant(-math.inf, dtype), dtype=torch.bool)
    shift = apply("where", nothing, Constant(0.0, dtype), maximum, dtype=dtype)
    inside = apply("sub", cast(rewrite(value, dict(chunks.changes)), dtype), shift, dtype=dtype)
    rest = apply("exp", apply("sub", maximum, cast(highest, dtype), dtype=dtype), dtype=dtype)
    return apply("exp", inside, dtype=dtype), lambda sum_: apply("mul", sum_, rest, dtype=dtype), dtype
