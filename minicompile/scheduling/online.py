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
        if not _folds(loop, "sum"):
            continue
        exponent = _without_casts(loop.value)
        if not isinstance(exponent, Apply) or exponent.operation != "exp":
            continue
        difference = _without_casts(exponent.arguments[0])
        if not isinstance(difference, Apply) or difference.operation != "sub":
            continue
        value, shift = difference.arguments
        shift = _without_casts(shift)
        if isinstance(shift, Load) and shift.buffer in maxima:
            maximum = maxima[shift.buffer]
            if shift.index is maximum.store and _without_casts(value) is _without_casts(maximum.value):
                found.append(OnlineSoftmax(maximum.buffer, loop.buffer))
    return tuple(found)


def _folds(loop: Loop, kind: str) -> bool:
    return isinstance(loop.fold, Reduction) and loop.fold.kind == kind


def _without_casts(value: Expr) -> Expr:
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
