"""Scalar expressions with Python's operators, so that rules read like formulas.

Operands of one operation have one dtype; Python numbers take the other side's. This module must not know about tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from minicompile.ir.expr import Apply, Constant, Expr, IndexValue, Masked, cast
from minicompile.ir.index import Index, is_nonnegative

Number = int | float | bool


def number(value: Number | Index | Expr, dtype: torch.dtype) -> Expr:
    """A constant (or what sizes give) of `dtype`; kept exact for half precisions, as eager keeps scalar arguments."""
    if isinstance(value, Index):
        value = IndexValue(value, torch.int64) if value.constant is None else int(value)
    if isinstance(value, Expr):
        if dtype not in (torch.float16, torch.bfloat16):
            return cast(value, dtype)
        return Apply("mul", (cast(value, torch.float32), Constant(1.0, torch.float32)), dtype)  # which does not round
    if dtype == torch.bool:
        return Constant(bool(value), dtype)
    if dtype.is_floating_point:
        return Constant(float(value), dtype)
    if isinstance(value, float):
        return Constant(torch.tensor(value).to(dtype).item() if not math.isfinite(value) else int(value), dtype)
    limits = torch.iinfo(dtype)
    width = limits.max - limits.min + 1
    return Constant((int(value) - limits.min) % width + limits.min, dtype)


def stored(value: Number | Index | Expr, dtype: torch.dtype) -> Expr:
    """A constant as memory of `dtype` holds it: half precisions are rounded."""
    if dtype not in (torch.float16, torch.bfloat16):
        return number(value, dtype)
    return cast(number(value, torch.float32), dtype)


def held(value: Number | Index | Expr, dtype: torch.dtype) -> Number | Expr:
    """A number that memory of a floating `dtype` held once; one that is known stays a number."""
    known = isinstance(value, (int, float))
    return torch.tensor(value, dtype=dtype, device="cpu").item() if known else stored(value, dtype)


def _comparison(operation: str) -> Callable[[Scalar, Scalar | Number], Scalar]:
    return lambda self, other: self.call(operation, other, dtype=torch.bool)


class Scalar:
    """An expression under construction."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    @property
    def dtype(self) -> torch.dtype:
        """The expression's dtype."""
        return self.expr.dtype

    def lift(self, value: Scalar | Number | Index) -> Expr:
        """`value` as an operand beside this one."""
        return value.expr if isinstance(value, Scalar) else number(value, self.dtype)

    def call(self, operation: str, *others: Scalar | Number | Index, dtype: torch.dtype | None = None) -> Scalar:
        """`operation` of this and `others`."""
        return Scalar(Apply(operation, (self.expr, *map(self.lift, others)), dtype or self.dtype))

    def reversed_call(self, operation: str, other: Scalar | Number | Index) -> Scalar:
        """`operation` of `other` and this."""
        return Scalar(Apply(operation, (self.lift(other), self.expr), self.dtype))

    def to(self, dtype: torch.dtype) -> Scalar:
        """This, converted."""
        return Scalar(cast(self.expr, dtype))

    def __add__(self, other: Scalar | Number) -> Scalar:
        return self.call("logical_or" if self.dtype == torch.bool else "add", other)

    __radd__ = __add__

    def __sub__(self, other: Scalar | Number) -> Scalar:
        return self.call("sub", other)

    def __rsub__(self, other: Number) -> Scalar:
        return self.reversed_call("sub", other)

    def __mul__(self, other: Scalar | Number) -> Scalar:
        return self.call("logical_and" if self.dtype == torch.bool else "mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Scalar | Number | Index) -> Scalar:
        return self.call("truediv", other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return self.reversed_call("truediv", other)

    def __neg__(self) -> Scalar:
        return self.call("neg")

    def __and__(self, other: Scalar) -> Scalar:
        return self.call("logical_and", other, dtype=torch.bool)

    def __or__(self, other: Scalar) -> Scalar:
        return self.call("logical_or", other, dtype=torch.bool)

    def __invert__(self) -> Scalar:
        return self.call("logical_not", dtype=torch.bool)

    __lt__ = _comparison("lt")
    __le__ = _comparison("le")
    __gt__ = _comparison("gt")
    __ge__ = _comparison("ge")
    equals = _comparison("eq")
    differs = _comparison("ne")

    def is_nan(self) -> Scalar:
        """Whether this is NaN; never for integers."""
        return self.call("isnan", dtype=torch.bool) if self.dtype.is_floating_point else truth(False)


def truth(value: bool) -> Scalar:
    """A boolean constant."""
    return Scalar(Constant(value, torch.bool))


def where(condition: Scalar, then: Scalar | Number, other: Scalar | Number) -> Scalar:
    """`then` where the condition holds, else `other`; at least one of them is a `Scalar`."""
    anchor = then if isinstance(then, Scalar) else other
    assert isinstance(anchor, Scalar)
    arguments = (condition.expr, anchor.lift(then), anchor.lift(other))
    return Scalar(Apply("where", arguments, anchor.dtype))


def index_value(index: Index) -> Scalar:
    """An index as a value."""
    return Scalar(number(index, torch.int64))


def index_below(index: Index, bound: Index) -> bool | Scalar:
    """`index < bound`: as a Python truth value where it can be proven either way."""
    if is_nonnegative(bound - index - 1):
        return True
    if is_nonnegative(index - bound):
        return False
    return index_value(index) < index_value(bound)


def index_at_least(index: Index, bound: Index) -> bool | Scalar:
    """`index >= bound`, likewise."""
    below = index_below(index, bound)
    if isinstance(below, bool):
        return not below
    return index_value(index) >= index_value(bound)


def both(*conditions: bool | Scalar) -> bool | Scalar:
    """The conjunction."""
    if any(condition is False for condition in conditions):
        return False
    unknown = [condition for condition in conditions if isinstance(condition, Scalar)]
    return functools.reduce(Scalar.__and__, unknown) if unknown else True


def masked(condition: bool | Scalar, value: Expr, other: Expr) -> Expr:
    """`value` where the condition holds (nothing is loaded elsewhere), else `other`."""
    if isinstance(condition, bool):
        return value if condition else other
    other = cast(other, value.dtype)
    return value if value is other else Masked(condition.expr, value, other, value.dtype)


