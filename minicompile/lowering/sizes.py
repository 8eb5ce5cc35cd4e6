"""Sizes at the boundary: integers and torch's symbolic integers become `Index`.

Symbolic sizes are SymPy expressions of torch's `ShapeEnv`; they are read by class name, so that this module never
imports SymPy and a static graph never pays for it. It must not know about tensors' values or loops.
"""

import fractions
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch

from minicompile.errors import Unsupported
from minicompile.ir.expr import Apply, Constant, Expr, IndexValue, cast
from minicompile.ir.fake_mode import surely_one
from minicompile.ir.index import ONE, ZERO, Index, Symbol, as_index, hint, is_nonnegative, product, total
from minicompile.ir.size_nodes import values_of_symbols


@functools.lru_cache(maxsize=1 << 14)
def _integer(value: int) -> Index:
    return as_index(value)


def size_index(value: Any) -> Index:
    """An `Index` for an `int`, a `torch.SymInt` or an `Index`."""
    if type(value) is int:
        return _integer(value)
    if isinstance(value, Index):
        return value
    if isinstance(value, torch.SymInt):
        return ONE if surely_one(value) else _symbolic(value.node.expr, value.node.shape_env)
    return _integer(int(value))


def size_indices(values: Iterable[Any]) -> tuple[Index, ...]:
    """`size_index` of each."""
    return tuple(size_index(value) for value in values)


def stride_indices(values: Iterable[Any]) -> tuple[Index, ...]:
    """As `size_indices`. `Max(1, n)`, which torch's contiguous strides have so that they are not 0 for an empty tensor,
    is `n`: no element is ever addressed by it when it is 0."""
    return tuple(
        _symbolic(_largest_stride(value.node.expr), value.node.shape_env)
        if isinstance(value, torch.SymInt) else size_index(value)
        for value in values
    )  # fmt: skip


def _largest_stride(expression: Any) -> Any:
    """The expression with every `Max(1, n)` replaced by `n`."""
    if not expression.args:
        return expression
    arguments = [_largest_stride(a) for a in expression.args]
    if type(expression).__name__ == "Max":
        arguments = [a for a in arguments if a != 1]
        if len(arguments) == 1:
            return arguments[0]
    return expression.func(*arguments)


def is_one(size: Index) -> bool:
    """Whether a size is known to be 1."""
    return size is ONE


def is_empty(sizes: Iterable[Index]) -> bool:
    """Whether some size is known to be 0."""
    return any(size is ZERO for size in sizes)


def contiguous_strides(sizes: tuple[Index, ...]) -> tuple[Index, ...]:
    """Row-major strides; like torch's, a size of 0 counts as 1."""
    strides: list[Index] = []
    step = ONE
    for size in reversed(sizes):
        strides.append(step)
        if size is not ZERO:
            step = step * size
    return tuple(reversed(strides))


def overlaps(sizes: tuple[Index, ...], strides: tuple[Index, ...]) -> bool:
    """Whether two positions share an element (as far as the sizes seen at compile time tell)."""
    end = 1
    for stride, size in sorted((hint(stride), hint(size)) for size, stride in zip(sizes, strides, strict=True)):
        if size > 1:
            if stride < end:
                return True
            end = stride * (size - 1) + end
    return False


def over_positive(above: Index, below: Index) -> tuple[Index, Index]:
    """The same fraction over a positive number, the only kind that indices are divided by."""
    if is_nonnegative(below):
        return above, below
    if is_nonnegative(ZERO - below):
        return ZERO - above, ZERO - below
    raise Unsupported("symbolic size", f"a size is divided by {below}, which may be negative or not")


def floor_division(above: Index, below: Index) -> Index:
    """Python's `above // below`."""
    return operator.floordiv(*over_positive(above, below))


def modulo(above: Index, below: Index) -> Index:
    """Python's `above % below`, which has the sign of `below`."""
    rest = operator.mod(*over_positive(above, below))
    return rest if is_nonnegative(below) else ZERO - rest


def outermost(*values: Index, largest: bool) -> Index:
    """The largest or smallest of some values, where it is known which one that is."""
    for value in values:
        if all(is_nonnegative(value - other if largest else other - value) for other in values):
            return value
    kind = "largest" if largest else "smallest"
    raise Unsupported("symbolic size", f"which is the {kind} of {', '.join(map(str, values))} is not known")


INTEGER_OPERATIONS: dict[str, Callable[..., Index]] = {
    "Add": lambda *values: total(values), "Mul": lambda *values: product(values),
    "FloorDiv": floor_division, "CleanDiv": floor_division, "Mod": modulo, "PythonMod": modulo,
    "Max": functools.partial(outermost, largest=True), "Min": functools.partial(outermost, largest=False),
    "ModularIndexing": lambda base, divisor, modulus: base // divisor % modulus,
}  # fmt: skip


def _symbolic(expression: Any, shape_env: Any) -> Index:
    """A SymPy integer expression as an `Index`."""
    kind = type(expression).__name__
    if kind == "Symbol":
        return as_index(_symbol(expression, shape_env))
    if expression.is_Integer:
        return _integer(int(expression))
    arguments = expression.args
    if kind in INTEGER_OPERATIONS:
        return INTEGER_OPERATIONS[kind](*(_symbolic(a, shape_env) for a in arguments))
    if kind == "Pow" and arguments[1].is_Integer and int(arguments[1]) >= 0:
        return product([_symbolic(arguments[0], shape_env)] * int(arguments[1]))
    if kind in ("floor", "FloorToInt", "TruncToInt", "CeilToInt"):
        above, below = over_positive(*_ratio(arguments[0], shape_env))
        return (above + below - 1) // below if kind == "CeilToInt" else above // below
    raise Unsupported("symbolic size", f"a size is {expression}, and {kind} has no integer form here")


def _ratio(expression: Any, shape_env: Any) -> tuple[Index, Index]:
    """A fraction of sizes as two integers, the lower one positive if it is known."""
    kind = type(expression).__name__
    if expression.is_number:
        number = fractions.Fraction(float(expression))
        if number.denominator > 1 << 16:
            raise Unsupported("symbolic size", f"a size contains the fraction {expression}")
        return as_index(number.numerator), as_index(number.denominator)
    if kind in ("IntTrueDiv", "FloatTrueDiv"):
        (above, below), (by_above, by_below) = (_ratio(a, shape_env) for a in expression.args)
        sign = -1 if expression.args[1].is_number and expression.args[1] < 0 else 1
        return above * by_below * sign, below * by_above * sign
    if kind in ("Add", "Mul"):
        parts = [_ratio(a, shape_env) for a in expression.args]
        below = product(part for _, part in parts)
        above = product(part for part, _ in parts) if kind == "Mul" else total(part * (below // own) for part, own in parts)
        return above, below
    return _symbolic(expression.args[0] if kind == "ToFloat" else expression, shape_env), ONE


def float_value(value: torch.SymFloat) -> Expr:
    """A float computed from sizes, as an expression in double precision."""
    return _float(value.node.expr, value.node.shape_env)


FLOAT_OPERATIONS = {
    "Add": "add", "Mul": "mul", "IntTrueDiv": "truediv", "FloatTrueDiv": "truediv", "FloatPow": "pow", "Pow": "pow",
    "PowByNatural": "pow", "OpaqueUnaryFn_sqrt": "sqrt", "OpaqueUnaryFn_log": "log", "OpaqueUnaryFn_exp": "exp",
    "Max": "maximum", "Min": "minimum",
}  # fmt: skip


def _float(expression: Any, shape_env: Any) -> Expr:
    kind = type(expression).__name__
    if expression.is_number:
        return Constant(float(expression), torch.float64)
    if expression.is_integer and kind != "Pow":
        return cast(IndexValue(_symbolic(expression, shape_env), torch.int64), torch.float64)
    if kind == "ToFloat":
        return _float(expression.args[0], shape_env)
    if kind not in FLOAT_OPERATIONS:
        raise Unsupported("symbolic number", f"a number is {expression}, and {kind} has no form here")
    parts = [_float(a, shape_env) for a in expression.args]
    if len(parts) == 1:
        return Apply(FLOAT_OPERATIONS[kind], (parts[0],), torch.float64)
    return functools.reduce(lambda a, b: Apply(FLOAT_OPERATIONS[kind], (a, b), torch.float64), parts)


def _symbol(symbol: Any, shape_env: Any) -> Symbol:
    values = values_of_symbols(shape_env)
    if symbol not in values:
        raise Unsupported("data-dependent size", f"the size {symbol} is known only from the data")
    bounds = shape_env.var_to_range.get(symbol)
    lowest = int(bounds.lower) if bounds is not None and math.isfinite(float(bounds.lower)) else 0
    return Symbol(str(symbol), int(values[symbol]), max(lowest, 0))
