"""Pairs of reductions that one pass can do: a row's maximum, and the sum of `exp(value - maximum)`."""

from __future__ import annotations

from collections.abc import Sequence

from minicompile.ir.expr import Apply, Expr, Load
from minicompile.ir.loops import Loop, Reduction
from minicompile.ir.schedule import OnlineSoftmax


def find_online_softmax(loops: Sequence[Loop]) -> tuple[OnlineSoftmax, ...]:
    """The pairs among loops of one kernel whose values no longer load each other's full-space results."""
    maxima = {loop.buffer: loop for loop in loops if _folds(loop, "max")}
    found: list[OnlineSoftmax] = []
    for loop in loops:
        parts = exponent(loop)
        maximum = None if parts is None else maxima.get(parts[1].buffer)
        if parts is not None and maximum is not None and parts[1].index is maximum.store:
            if without_casts(parts[0]) is without_casts(maximum.value):
                found.append(OnlineSoftmax(maximum.buffer, loop.buffer))
    return tuple(found)


def exponent(loop: Loop) -> tuple[Expr, Load] | None:
    """`(v, m)` if the loop sums `exp(v - m)` with an `m` that is loaded."""
    value = without_casts(loop.value)
    if not _folds(loop, "sum") or not isinstance(value, Apply) or value.operation != "exp":
        return None
    difference = without_casts(value.arguments[0])
    if not isinstance(difference, Apply) or difference.operation != "sub":
        return None
    shift = without_casts(difference.arguments[1])
    return (difference.arguments[0], shift) if isinstance(shift, Load) else None


def _folds(loop: Loop, kind: str) -> bool:
    return isinstance(loop.fold, Reduction) and loop.fold.kind == kind


def without_casts(value: Expr) -> Expr:
    """The value below widening casts between floating types."""
    while (
        isinstance(value, Apply)
        and value.operation == "cast"
        and value.dtype.is_floating_point
        and value.arguments[0].dtype.is_floating_point
        and value.arguments[0].dtype.itemsize <= value.dtype.itemsize
    ):
        value = value.arguments[0]
    return value
