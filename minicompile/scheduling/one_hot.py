"""Sums in which at most one term is not zero: the term is computed in place of the sum.

The gradient of a cross-entropy adds up, along the classes, what is nowhere but at the target's: `sum(where(r == target, v, 0))`
is `v` if the target is one of the classes. This module must not look at sums of which terms depend on their place.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from minicompile.ir.expr import Apply, Constant, Expr, IndexValue, apply, cast
from minicompile.ir.index import Axis, as_index
from minicompile.ir.loops import Buffer, Loop, Operation, Reduction
from minicompile.scheduling.reindexing import axes_in_value

CONJUNCTIONS = ("bitwise_and", "logical_and")


def without_one_hot_sums(operations: Sequence[Operation], buffers: Mapping[str, Buffer]) -> tuple[Operation, ...]:
    """The operations with every such sum replaced by a loop over its results."""
    return tuple(_replaced(each, buffers[each.buffer].dtype) if isinstance(each, Loop) else each for each in operations)


def _replaced(loop: Loop, dtype: torch.dtype) -> Loop:
    if not isinstance(loop.fold, Reduction) or loop.fold.kind != "sum" or len(loop.fold.axes) != 1:
        return loop
    (axis,) = loop.fold.axes
    term = _the_only_term(loop.value, axis)
    return loop if term is None else dataclasses.replace(loop, value=cast(term, dtype), fold=None)


def _the_only_term(value: Expr, axis: Axis) -> Expr | None:
    """What `value` adds up to along `axis`, if all but one of its terms are zero for certain."""
    if not isinstance(value, Apply) or value.operation != "where":
        return None
    condition, term, nothing = value.arguments
    if not isinstance(nothing, Constant) or nothing.value != 0:
        return None
    parts = _conjuncts(condition)
    places = {part: place for part in parts if (place := _place_of(part, axis)) is not None}
    if len(places) != 1 or any(axis in axes_in_value(part) for part in (term, *parts) if part not in places):
        return None
    (part, place), *_ = places.items()
    if axis in axes_in_value(place):
        return None
    inside = apply("ge", place, Constant(0, place.dtype), dtype=torch.bool)
    for other in (apply("lt", place, IndexValue(axis.size, place.dtype), dtype=torch.bool), *parts):
        inside = inside if other is part else apply("bitwise_and", inside, other, dtype=torch.bool)
    return apply("where", inside, term, nothing, dtype=value.dtype)


def _conjuncts(condition: Expr) -> tuple[Expr, ...]:
    if isinstance(condition, Apply) and condition.operation in CONJUNCTIONS and condition.dtype == torch.bool:
        return tuple(part for argument in condition.arguments for part in _conjuncts(argument))
    return (condition,)


def _place_of(condition: Expr, axis: Axis) -> Expr | None:
    """The integer, of a dtype that holds every position, that a condition wants the position along `axis` to be."""
    if not isinstance(condition, Apply) or condition.operation != "eq":
        return None
    for position, place in (condition.arguments, condition.arguments[::-1]):
        if isinstance(position, IndexValue) and position.index is as_index(axis) and place.dtype == torch.int64:
            return place
    return None
