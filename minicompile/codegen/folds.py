"""Reductions and scans as Triton text: identities, accumulators, the fold of a block, the combination of two values.

This module must not know in which pass a fold happens.
"""

import dataclasses

import torch

from minicompile.codegen.expression_writer import ExpressionWriter, Value
from minicompile.codegen.triton_ops import rounded
from minicompile.codegen.triton_text import (
    LOW_PRECISION,
    Text,
    call,
    compute_dtype,
    convert,
    infix,
    literal,
    triton_dtype,
    typed_literal,
)
from minicompile.ir.expr import Apply, Constant, Expr, Load
from minicompile.ir.index import Axis, as_index
from minicompile.ir.loops import Loop, Scan, fold_identity

_SMALL_INTEGERS = (torch.int8, torch.int16, torch.uint8, torch.bool)


@dataclasses.dataclass(frozen=True)
class Fold:
    """What a reduction or scan does, without its loop.

    Attributes:
        kind: `sum`, `prod`, `max`, `min`, `any`, `argmax` or `argmin`.
        dtype: the accumulator's.
        axis: what is folded.
    """

    kind: str
    dtype: torch.dtype
    axis: Axis

    @property
    def finds_place(self) -> bool:
        """Whether the result is a position."""
        return self.kind in ("argmax", "argmin")

    @property
    def identity(self) -> Text:
        """What leaves every other value unchanged."""
        return literal(fold_identity(self.kind, self.dtype), self.dtype)

    @property
    def function(self) -> str:
        """The device function that combines two values; empty where Triton has one of its own."""
        names = {"prod": "multiply", "argmax": "first_largest", "argmin": "first_smallest"}
        if self.dtype.is_floating_point:
            names |= {"max": "larger", "min": "smaller"}
        return names.get(self.kind, "")


def fold_of(loop: Loop) -> Fold:
    """The fold of a loop that has one."""
    assert loop.fold is not None
    held = compute_dtype(loop.value.dtype)
    kind: str = loop.fold.kind.removeprefix("cum")
    (axis,) = (loop.fold.axis,) if isinstance(loop.fold, Scan) else loop.fold.axes
    return Fold(kind, _accumulator(kind, held), axis)


def _accumulator(kind: str, held: torch.dtype) -> torch.dtype:
    if held.is_floating_point and kind != "any":
        return held
    if kind in ("sum", "prod"):
        return torch.int64
    return torch.int32 if kind == "any" or held in _SMALL_INTEGERS else held


class FoldWriter:
    """Prints the folds of one kernel."""

    def __init__(self, writer: ExpressionWriter) -> None:
        self._writer = writer
        self._geometry = writer.geometry

    def lanes(self, fold: Fold, expression: Expr) -> Value:
        """The values to fold: in the accumulator's dtype, neutral outside the axis, varying along it."""
        value = self._writer.value(expression)
        text = value.text
        if fold.finds_place and expression.dtype in LOW_PRECISION and not value.exact:
            text = rounded(text, expression.dtype)
        source = compute_dtype(expression.dtype)
        if source != fold.dtype:
            text = convert(text, fold.dtype)
        if isinstance(expression, Constant):
            text = typed_literal(expression.value, fold.dtype)
        axes = value.axes | {fold.axis}
        along = fold.axis in value.axes
        is_neutral = fold.kind in ("sum", "any") and self.is_zero_outside(expression, fold.axis)
        if self._geometry.is_masked(fold.axis) and not is_neutral:
            mask = self._writer.mask([fold.axis])
            assert mask is not None
            text, along = call("tl.where", mask.text, text, fold.identity), True
        if not along:
            text = call("tl.broadcast_to", text, self._geometry.shape(axes))
        return Value(text, axes, True)

    def is_zero_outside(self, expression: Expr, axis: Axis) -> bool:
        """Whether the value is zero where the mask of `axis` is off, because what it loads is."""
        match expression:
            case Load() if expression not in self._writer.known:
                return axis in self._writer.axes_of(expression)
            case Apply(operation="cast" | "neg" | "abs", arguments=(inner,)):
                return self.is_zero_outside(inner, axis)
            case Apply(operation="mul" | "add" | "sub" | "maximum" | "minimum", arguments=(left, right)):
                return self.is_zero_outside(left, axis) and self.is_zero_outside(right, axis)
        return False

    def whole(self, fold: Fold, lanes: Text, places: Text | None = None) -> Text:
        """All lanes of a block folded into one value (a row keeps the dimension, with size one)."""
        if fold.axis not in self._geometry.live:
            return lanes
        dimension = f"{self._geometry.dimension(fold.axis)}"
        keep = ["keep_dims=True"] if len(self._geometry.live) > 1 else []
        if fold.finds_place:
            assert places is not None
            function = self._writer.call_function(fold.function)
            return call("tl.reduce", f"({lanes}, {places})", dimension, function, *keep)
        if fold.function:
            return call("tl.reduce", lanes, dimension, self._writer.call_function(fold.function), *keep)
        return call({"sum": "tl.sum", "min": "tl.min"}.get(fold.kind, "tl.max"), lanes, dimension, *keep)

    def places(self, fold: Fold, axes: frozenset[Axis]) -> Value:
        """The positions along the axis, in the shape of the values that they belong to."""
        position = self._writer.offset(as_index(fold.axis)).text
        if len(self._geometry.live) == 1:
            return Value(position, axes, True)
        return Value(call("tl.broadcast_to", position, self._geometry.shape(axes)), axes, True)

    def combined(self, fold: Fold, left: Text, right: Text) -> Text:
        """Two accumulated values as one."""
        if fold.kind in ("sum", "prod"):
            return infix(left, "+" if fold.kind == "sum" else "*", right)
        if fold.function:
            return call(self._writer.call_function(fold.function), left, right)
        return call("tl.minimum" if fold.kind == "min" else "tl.maximum", left, right)

    def scanned(self, fold: Fold, lanes: Text) -> Text:
        """The running fold of a block."""
        return call(f"tl.cum{fold.kind}", lanes, f"{self._geometry.dimension(fold.axis)}")

    def start(self, fold: Fold, axes: frozenset[Axis]) -> Text:
        """An accumulator before the first value; a single number if it has no dimension."""
        live = [a for a in self._geometry.live if a in axes]
        shape = self._geometry.shape(axes) if live or len(self._geometry.live) > 1 else "[]"
        if fold.identity.text in ("0", "0.0") and shape != "[]":
            return call("tl.zeros", shape, triton_dtype(fold.dtype))
        return call("tl.full", shape, fold.identity, triton_dtype(fold.dtype))

    def result(self, fold: Fold, text: Text, dtype: torch.dtype, round_it: bool) -> Text:
        """The folded value in the register dtype of a buffer of `dtype`."""
        held = compute_dtype(dtype)
        source = torch.int32 if fold.finds_place else fold.dtype
        if held == torch.bool and source != torch.bool:
            return infix(text, "!=", Text("0"))
        converted = text if held == source else convert(text, held)
        return rounded(converted, dtype) if round_it and dtype in LOW_PRECISION else converted

