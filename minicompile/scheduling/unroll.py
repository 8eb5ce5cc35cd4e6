"""Folds of a few elements, such as the channels of an image or the coordinates of a point, written out.

A tile with three elements a row wastes most of its threads; written out, the fold is a pointwise loop, and what follows it
can be computed in the same place. `stays_a_fold` is the policy; the rest is mechanism. This module must not write out what
shares a walk over its rows with other loops.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import torch

from minicompile.ir.expr import Constant, Expr, apply, cast, rewrite
from minicompile.ir.index import ONE, as_index, coefficient_of
from minicompile.ir.loops import Buffer, Loop, Operation, Reduction, element_count
from minicompile.ir.schedule import DeviceProperties
from minicompile.scheduling.dependencies import is_scatter
from minicompile.scheduling.split import accumulator_dtype
from minicompile.scheduling.traffic import points, space_of

LONGEST = 8
LONGEST_SIDE_BY_SIDE = 4
"""Where the elements lie side by side, threads that each read several of them share the cache's lines."""
LEAST_RESULTS = 1 << 14
COMBINING = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "logical_or"}
BEFORE = {"argmax": "gt", "argmin": "lt"}


def write_out_short_folds(
    operations: Sequence[Operation], buffers: Mapping[str, Buffer], device: DeviceProperties
) -> tuple[Operation, ...]:
    """The operations with every short reduction on a GPU whose rows nothing else walks over as a pointwise loop."""
    if device.kind == "cpu":
        return tuple(operations)
    short = {op.buffer for op in operations if isinstance(op, Loop) and is_short(op)}
    walked: dict[int, set[str]] = {}
    for op in operations:
        if isinstance(op, Loop) and op.buffer not in short:
            walked.setdefault(points(space_of(op)), set()).update((op.buffer, *op.reads))
    return tuple(
        _written_out(op, buffers[op.buffer].dtype)
        if isinstance(op, Loop) and op.buffer in short and not stays_a_fold(op, walked, buffers)
        else op
        for op in operations
    )


def is_short(loop: Loop) -> bool:
    """Whether a loop folds few elements into each of many results."""
    fold = loop.fold
    if not isinstance(fold, Reduction) or fold.kind not in (*COMBINING, *BEFORE):
        return False
    if loop.overwrites is not None or is_scatter(loop):
        return False
    if any(axis.size.constant is None for axis in fold.axes) or loop.value.dtype == torch.bool and fold.kind != "any":
        return False
    strides = [coefficient_of(load.index, fold.axes[-1]) for load in loop.loads]
    longest = LONGEST_SIDE_BY_SIDE if any(stride is ONE for stride in strides) else LONGEST
    return points(fold.axes) <= longest and points(loop.axes) >= LEAST_RESULTS


def stays_a_fold(loop: Loop, walked: Mapping[int, set[str]], buffers: Mapping[str, Buffer]) -> bool:
    """Whether another loop over the same rows writes or reads what a fold reads, so that one kernel can do both.

    `walked`: what the loops over a number of points write and read.
    """
    read = (name for name in loop.reads if 2 * element_count(buffers[name].sizes) > points(loop.axes))
    return not walked.get(points(space_of(loop)), set()).isdisjoint(read)


def _written_out(loop: Loop, dtype: torch.dtype) -> Loop:
    """The loop that combines the terms of a fold in their order, in the dtype in which a fold adds up."""
    assert isinstance(loop.fold, Reduction)
    places = itertools.product(*(range(axis.size.constant or 0) for axis in loop.fold.axes))
    terms = [
        rewrite(loop.value, {axis: as_index(number) for axis, number in zip(loop.fold.axes, place, strict=True)})
        for place in places
    ]
    if loop.fold.kind in BEFORE:
        return dataclasses.replace(loop, value=cast(place_of_extreme(terms, BEFORE[loop.fold.kind]), dtype), fold=None)
    wide = accumulator_dtype(terms[0].dtype, loop.fold.kind, terms[0].dtype)
    total = cast(terms[0], wide)
    if loop.fold.kind == "sum" and wide.is_floating_point:
        total = apply("add", total, Constant(0.0, wide), dtype=wide)  # a sum that starts at zero loses the sign of -0.0
    for term in terms[1:]:
        total = apply(COMBINING[loop.fold.kind], total, cast(term, wide), dtype=wide)
    return dataclasses.replace(loop, value=cast(total, dtype), fold=None)


def place_of_extreme(terms: Sequence[Expr], before: str) -> Expr:
    """Which of the terms comes before all others: the first of equal ones, and the first NaN before any number."""
    best, place = terms[0], Constant(0, torch.int64)
    for number, term in enumerate(terms[1:], 1):
        better = apply(before, term, best, dtype=torch.bool)
        if term.dtype.is_floating_point:
            is_nan, is_number = apply("isnan", term, dtype=torch.bool), apply("eq", best, best, dtype=torch.bool)
            better = apply("logical_or", better, apply("logical_and", is_nan, is_number, dtype=torch.bool), dtype=torch.bool)
        place = apply("where", better, Constant(number, torch.int64), place, dtype=torch.int64)
        best = apply("where", better, term, best, dtype=term.dtype)
    return place
