"""Scalar expressions: what a loop body computes for one point of its iteration space.

An expression is a hash-consed DAG over loads. Its `dtype` is the one eager would give the value; how wide the arithmetic
is carried out (fp32 for bf16 and fp16) is the code generator's rule, not the expression's. Explicit casts are `cast`
operations and always round. This module must not know about loops, buffers' layouts or Triton.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from minicompile.ir.index import Atom, Index, Indirect, atoms, substitute, substituted
from minicompile.ir.interned import Interned


class Load(Interned):
    """The element of `buffer` at flat element offset `index` (offset from the buffer's first element)."""

    __slots__ = ("buffer", "index", "dtype")
    buffer: str
    index: Index
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.buffer}[{self.index}]"


class Constant(Interned):
    """A Python number of a given dtype."""

    __slots__ = ("value", "dtype")
    value: int | float | bool
    dtype: torch.dtype

    @classmethod
    def _key(cls, *fields: Any) -> tuple[Any, ...]:
        value, dtype = fields
        return (cls, type(value), repr(value), dtype)

    def __str__(self) -> str:
        return str(self.value)


class IndexValue(Interned):
    """An index expression used as a value (`arange`, positions, sizes)."""

    __slots__ = ("index", "dtype")
    index: Index
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"index({self.index})"


class Apply(Interned):
    """A scalar operation of `SCALAR_OPS` applied to expressions."""

    __slots__ = ("operation", "arguments", "dtype")
    operation: str
    arguments: tuple[Expr, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        extra = f", {str(self.dtype).removeprefix('torch.')}" if self.operation in ("cast", "bitcast") else ""
        return f"{self.operation}({', '.join(map(str, self.arguments))}{extra})"


class Masked(Interned):
    """`value` where `condition` holds, else `other`; loads inside `value` happen only where the condition holds."""

    __slots__ = ("condition", "value", "other", "dtype")
    condition: Expr
    value: Expr
    other: Expr
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"masked({self.condition}, {self.value}, {self.other})"


class Random(Interned):
    """A Philox-4x32-10 draw that depends on `seed` (an int64 expression) and `counter` (an index) alone.

    `kind` is `uniform` (`[0, 1)`), `normal` (mean 0, deviation 1) or `bits` (a non-negative int64 below 2**32).
    """

    __slots__ = ("kind", "seed", "counter", "dtype")
    kind: str
    seed: Expr
    counter: Index
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"random_{self.kind}({self.seed}, {self.counter})"


Expr = Load | Constant | IndexValue | Apply | Masked | Random


@dataclasses.dataclass(frozen=True)
class ScalarOp:
    """Arity and meaning of a scalar operation. `cost` is in units of an addition, for the fusion policy."""

    arity: int
    meaning: str
    cost: int = 1


SCALAR_OPS: dict[str, ScalarOp] = {
    "cast": ScalarOp(1, "convert to the node's dtype as `Tensor.to` does"),
    "bitcast": ScalarOp(1, "reinterpret the bits as the node's dtype of equal width"),
    "add": ScalarOp(2, "a + b"),
    "sub": ScalarOp(2, "a - b"),
    "mul": ScalarOp(2, "a * b (logical and for booleans)"),
    "truediv": ScalarOp(2, "a / b of floats", 4),
    "approximate_truediv": ScalarOp(2, "a / b to within two units in the last place, for a result that is rounded to 16 bits", 2),
    "floordiv": ScalarOp(2, "a // b rounding to minus infinity, as torch.floor_divide", 6),
    "truncdiv": ScalarOp(2, "a / b of integers rounding to zero", 6),
    "remainder": ScalarOp(2, "a % b with the sign of b, as torch.remainder", 6),
    "fmod": ScalarOp(2, "a % b with the sign of a, as torch.fmod", 6),
    "pow": ScalarOp(2, "a ** b as torch.pow", 12),
    "sign": ScalarOp(1, "-1, 0 or 1; NaN gives what torch.sign gives"),
    "rsqrt": ScalarOp(1, "1 / sqrt(a)", 6),
    "sqrt": ScalarOp(1, "square root, correctly rounded", 6),
    "sigmoid": ScalarOp(1, "1 / (1 + exp(-a))", 12),
    "reciprocal": ScalarOp(1, "1 / a", 4),
    "where": ScalarOp(3, "b if a else c; both are computed"),
    "atan2": ScalarOp(2, "angle of (b, a)", 24),
    "lgamma": ScalarOp(1, "log of |gamma(a)|", 40),
    "copysign": ScalarOp(2, "|a| with the sign of b", 2),
    "hypot": ScalarOp(2, "sqrt(a * a + b * b)", 10),
    "nextafter": ScalarOp(2, "next float after a towards b", 10),
    **dict.fromkeys(("minimum", "maximum"), ScalarOp(2, "smaller, larger; NaN if either is NaN")),
    **dict.fromkeys(("fmin", "fmax"), ScalarOp(2, "smaller, larger; the number if one is NaN")),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), ScalarOp(2, "the comparison of that name")),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), ScalarOp(2, "of whether a and b are non-zero")),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), ScalarOp(2, "of the bits; logical for booleans")),
    **dict.fromkeys(("left_shift", "right_shift"), ScalarOp(2, "a << b, a >> b (arithmetic) as torch")),
    "neg": ScalarOp(1, "-a"),
    "abs": ScalarOp(1, "|a|"),
    "logical_not": ScalarOp(1, "zero"),
    "bitwise_not": ScalarOp(1, "~a (logical not for booleans)"),
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), ScalarOp(1, "round down, up, to zero, half to even")),
    **dict.fromkeys(("isnan", "isinf", "signbit"), ScalarOp(1, "is NaN, is infinite, has the sign bit set")),
    **dict.fromkeys(("exp", "log", "log2", "log10"), ScalarOp(1, "the function of that name", 8)),
    "exp2": ScalarOp(1, "2 ** a", 6),
    "expm1": ScalarOp(1, "e ** a - 1 without cancellation", 12),
    "log1p": ScalarOp(1, "log(1 + a) without cancellation", 12),
    "tanh": ScalarOp(1, "hyperbolic tangent", 12),
    **dict.fromkeys(("sin", "cos", "sinh", "cosh", "erf"), ScalarOp(1, "the function of that name", 16)),
    **dict.fromkeys(("tan", "asin", "acos", "atan", "asinh", "acosh", "atanh"), ScalarOp(1, "the function of that name", 20)),
    "erfc": ScalarOp(1, "1 - erf(a) without cancellation", 20),
    "erfinv": ScalarOp(1, "inverse error function", 24),
    "checked": ScalarOp(2, "a; where b does not hold, eager refuses it, and an assertion fails"),
}


def apply(operation: str, *arguments: Expr, dtype: torch.dtype) -> Expr:
    """`operation` of `arguments`, checked for existence and arity."""
    known = SCALAR_OPS[operation]
    if len(arguments) != known.arity:
        raise ValueError(f"{operation} takes {known.arity} arguments, not {len(arguments)}")
    return Apply(operation, arguments, dtype)


def cast(value: Expr, dtype: torch.dtype) -> Expr:
    """`value` converted to `dtype`; nothing if it has that dtype already, folded for constants."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Constant) and not dtype.is_complex:
        return Constant(torch.tensor(value.value, dtype=value.dtype).to(dtype).item(), dtype)
    return Apply("cast", (value,), dtype)


def children(expression: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions; those inside load indices (`Indirect`) included."""
    match expression:
        case Load() | IndexValue():
            return indirect_values(expression.index)
        case Apply():
            return expression.arguments
        case Masked():
            return (expression.condition, expression.value, expression.other)
        case Random():
            return (expression.seed, *indirect_values(expression.counter))
        case _:
            return ()


@functools.lru_cache(maxsize=1 << 15)
def indirect_values(index: Index) -> tuple[Expr, ...]:
    """The scalar expressions that an index reads from memory, in a fixed order."""
    found = [atom for atom in atoms(index) if isinstance(atom, Indirect)]
    return tuple(atom.value for atom in sorted(found, key=lambda atom: atom.digest)) if found else ()


@functools.lru_cache(maxsize=1 << 12)
def walk(expression: Expr) -> tuple[Expr, ...]:
    """Every distinct sub-expression once, operands before their users, `expression` last."""
    found: list[Expr] = []
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(expression, False)]
    while stack:
        current, expanded = stack.pop()
        if expanded:
            found.append(current)
        elif current not in seen:
            seen.add(current)
            stack.append((current, True))
            stack.extend((child, False) for child in reversed(children(current)))
    return tuple(found)


@functools.lru_cache(maxsize=1 << 14)
def loads(expression: Expr) -> tuple[Load, ...]:
    """Every distinct load, those inside load indices included, in evaluation order."""
    return tuple(e for e in walk(expression) if isinstance(e, Load))


@functools.lru_cache(maxsize=1 << 14)
def cost(expression: Expr) -> int:
    """Arithmetic per point, in additions; a cast of what is loaded comes with the load."""
    return sum(
        40 if isinstance(e, Random) else SCALAR_OPS[e.operation].cost
        for e in walk(expression)
        if isinstance(e, Random) or isinstance(e, Apply) and not (e.operation == "cast" and isinstance(e.arguments[0], Load))
    )


def without_widening(value: Expr) -> Expr:
    """The value below casts from floating-point dtypes to dtypes at least as wide."""
    while isinstance(value, Apply) and value.operation == "cast":
        inner = value.arguments[0]
        if not (value.dtype.is_floating_point and inner.dtype.is_floating_point and inner.dtype.itemsize <= value.dtype.itemsize):
            break
        value = inner
    return value


def exponential_below(value: Expr) -> tuple[Expr, Expr] | None:
    """`(v, m)` if `value` is `exp(v - m)`, whatever is widened on the way."""
    value = without_widening(value)
    if not isinstance(value, Apply) or value.operation != "exp":
        return None
    difference = without_widening(value.arguments[0])
    if not isinstance(difference, Apply) or difference.operation != "sub":
        return None
    return difference.arguments[0], without_widening(difference.arguments[1])


def rewrite(
    expression: Expr,
    axes: Mapping[Atom, Index] | None = None,
    on_load: Callable[[Load], Expr] | None = None,
    on_each: Callable[[Expr], Expr] | None = None,
) -> Expr:
    """A copy with axes replaced, every (already rewritten) load passed through `on_load`, and then all through `on_each`."""
    replacements = axes or {}
    key = tuple(replacements.items())
    done: dict[Expr, Expr] = {}

    def index(value: Index) -> Index:
        if not indirect_values(value):
            return substituted(value, key)
        return substitute(value, replacements, done.__getitem__)

    for current in walk(expression):
        new = current
        match current:
            case Load():
                new = Load(current.buffer, index(current.index), current.dtype)
                new = on_load(new) if on_load else new
            case IndexValue():
                new = IndexValue(index(current.index), current.dtype)
            case Apply():
                new = Apply(current.operation, tuple(done[a] for a in current.arguments), current.dtype)
            case Masked():
                new = Masked(done[current.condition], done[current.value], done[current.other], current.dtype)
            case Random():
                new = Random(current.kind, done[current.seed], index(current.counter), current.dtype)
        done[current] = on_each(new) if on_each else new
    return done[expression]


def rewrite_index(
    index: Index, axes: Mapping[Atom, Index] | None = None, on_load: Callable[[Load], Expr] | None = None,
    on_each: Callable[[Expr], Expr] | None = None,
) -> Index:  # fmt: skip
    """The same for an index and for the values that it reads from memory."""
    return substitute(index, axes or {}, lambda value: rewrite(value, axes, on_load, on_each))
