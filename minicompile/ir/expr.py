"""Scalar expressions: what a loop body computes for one point of its iteration space.

An expression is a hash-consed DAG over loads. Its `dtype` is the one eager would give the value; how wide the arithmetic
is carried out (fp32 for bf16 and fp16) is the code generator's rule, not the expression's. Explicit casts are `cast`
operations and always round. This module must not know about loops, buffers' layouts or Triton.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from minicompile.ir.index import Atom, Index, Indirect, atoms, substitute, substituted
from minicompile.ir.interned import Interned


class Load(Interned):
    """The element of `buffer` at flat element offset `index` (offset from the buffer's first element)."""

    buffer: str
    index: Index
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.buffer}[{self.index}]"


class Constant(Interned):
    """A Python number of a given dtype."""

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

    index: Index
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"index({self.index})"


class Apply(Interned):
    """A scalar operation of `SCALAR_OPS` applied to expressions."""

    operation: str
    arguments: tuple[Expr, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        extra = f", {str(self.dtype).removeprefix('torch.')}" if self.operation in ("cast", "bitcast") else ""
        return f"{self.operation}({', '.join(map(str, self.arguments))}{extra})"


class Masked(Interned):
    """`value` where `condition` holds, else `other`; loads inside `value` happen only where the condition holds."""

    condition: Expr
    value: Expr
    other: Expr
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"masked({self.condition}, {self.value}, {self.other})"


class Random(Interned):
    """A Philox-4x32-10 draw that depends on `seed` (an int64 expression) and `index`, its counter, alone.

    `kind` is `uniform` (`[0, 1)`), `normal` (mean 0, deviation 1) or `bits` (a non-negative int64 below 2**32).
    """

    kind: str
    seed: Expr
    index: Index
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"random_{self.kind}({self.seed}, {self.index})"


Expr = Load | Constant | IndexValue | Apply | Masked | Random


class ScalarOp(NamedTuple):
    """Arity of a scalar operation, and its cost in units of an addition, for the fusion policy."""

    arity: int
    cost: int


# Operations have torch's meaning for eager's dtype. Those with a twin, or a rule of their own:
# `cast` converts as `Tensor.to`, `bitcast` reads the bits as another dtype of the same width; `mul` and the bitwise ones are
# logical between booleans; `truediv` is of floats, `approximate_truediv` too, but to within two units in the last place, for
# a result that is rounded to 16 bits; `floordiv` rounds to minus infinity, `truncdiv` (of integers) to zero; `remainder` has
# the sign of its second operand, `fmod` that of the first; `minimum` and `maximum` are NaN if either operand is, `fmin` and
# `fmax` if both are; logical ones ask whether operands are non-zero; `sqrt` is correctly rounded; `round` is half to even;
# `where` computes both sides; `checked` is its first operand, and fails an assertion where the second does not hold.
# Rounding, `signbit`, `isnan` and `isinf` are of floats only, `sign` of numbers: lowering writes what is trivial without them.
SCALAR_OPS: dict[str, ScalarOp] = {
    name: ScalarOp(arity, cost)
    for (arity, cost), names in {
        (1, 1): "cast bitcast neg abs sign logical_not bitwise_not floor ceil trunc round isnan isinf signbit",
        (2, 1): "add sub mul minimum maximum fmin fmax eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and "
                "bitwise_or bitwise_xor left_shift right_shift checked",
        (3, 1): "where",
        (2, 2): "approximate_truediv copysign",
        (1, 4): "reciprocal", (2, 4): "truediv",
        (1, 6): "sqrt rsqrt exp2", (2, 6): "floordiv truncdiv remainder fmod",
        (1, 8): "exp log log2 log10",
        (2, 10): "hypot nextafter",
        (1, 12): "sigmoid tanh expm1 log1p", (2, 12): "pow",
        (1, 16): "sin cos sinh cosh erf",
        (1, 20): "tan asin acos atan asinh acosh atanh erfc",
        (1, 24): "erfinv", (2, 24): "atan2",
        (1, 40): "lgamma",
    }.items()
    for name in names.split()
}  # fmt: skip

FP64_COST = 10
"""Of functions in fp64, which are long programs, by what the same cost in fp32."""


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
            return (expression.seed, *indirect_values(expression.index))
        case _:
            return ()


@functools.lru_cache(maxsize=1 << 15)
def indirect_values(index: Index) -> tuple[Expr, ...]:
    """The scalar expressions that an index reads from memory, in a fixed order."""
    found = [atom for atom in atoms(index) if isinstance(atom, Indirect)]
    return tuple(atom.value for atom in sorted(found, key=lambda atom: atom.digest)) if found else ()


@functools.lru_cache(maxsize=1 << 14)
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
        40 if isinstance(e, Random) else SCALAR_OPS[e.operation].cost * (FP64_COST if is_fp64_function(e) else 1)
        for e in walk(expression)
        if isinstance(e, Random) or isinstance(e, Apply) and not (e.operation == "cast" and isinstance(e.arguments[0], Load))
    )


def is_fp64_function(expression: Apply) -> bool:
    """Whether an operation is a sine, a power or the like in fp64."""
    return expression.dtype == torch.float64 and SCALAR_OPS[expression.operation].cost > SCALAR_OPS["truediv"].cost


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
                new = Random(current.kind, done[current.seed], index(current.index), current.dtype)
        done[current] = on_each(new) if on_each else new
    return done[expression]


def rewrite_index(
    index: Index, axes: Mapping[Atom, Index] | None = None, on_load: Callable[[Load], Expr] | None = None,
    on_each: Callable[[Expr], Expr] | None = None,
) -> Index:  # fmt: skip
    """The same for an index and for the values that it reads from memory."""
    return substitute(index, axes or {}, lambda value: rewrite(value, axes, on_load, on_each))
