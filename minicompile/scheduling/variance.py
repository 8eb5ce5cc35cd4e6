"""Sums of squared deviations in the pass that sums: each chunk has its own mean, and the chunks are combined exactly.

For any `m`, the sum of `(v - m)**2` over a chunk of `n` elements with mean `c` is the sum of `(v - c)**2` plus
`n * (c - m)**2` (Chan, Golub and LeVeque, 1979). So when a reduction is cut into chunks that stay in registers, the
squares need no second pass over memory, and nothing cancels as it would in `E[v**2] - E[v]**2`. This module must not
decide how many chunks there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from minicompile.ir.expr import Apply, Constant, Expr, Load, apply, rewrite
from minicompile.ir.index import Axis, Index
from minicompile.ir.loops import Buffer, Loop, Operation, Reduction
from minicompile.scheduling.reindexing import AxisMap, axes_in_value
from minicompile.scheduling.traffic import points


@dataclasses.dataclass(frozen=True)
class ChunkedSum:
    """A sum cut into equal chunks: the axes, the change to them, and where the partial sums are."""

    part: Axis
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


def squares_in_chunks(loop: Loop, chunks: ChunkedSum, buffers: Mapping[str, Buffer]) -> tuple[Loop, Loop, Buffer]:
    """The squares within each chunk, the loop that combines them, and the buffer between."""
    found = deviation(loop)
    assert found is not None
    value, center = found
    dtype = value.dtype
    count = Constant(float(points(chunks.within)), dtype)
    mean = apply("truediv", Load(chunks.partial.name, chunks.place, dtype), count, dtype=dtype)
    inside = apply("sub", rewrite(value, dict(chunks.changes)), mean, dtype=dtype)
    name = f"{loop.buffer}_partial"
    while name in buffers:
        name += "_"
    partial = dataclasses.replace(chunks.partial, name=name)
    first = Loop(
        name, (chunks.part, *loop.axes), apply("mul", inside, inside, dtype=dtype), chunks.place,
        Reduction("sum", chunks.within), origins=loop.origins,
    )  # fmt: skip
    between = apply("sub", mean, center, dtype=dtype)
    shifted = apply("mul", count, apply("mul", between, between, dtype=dtype), dtype=dtype)
    combined = apply("add", Load(name, chunks.place, dtype), shifted, dtype=dtype)
    return first, dataclasses.replace(loop, value=combined, fold=Reduction("sum", (chunks.part,))), partial
