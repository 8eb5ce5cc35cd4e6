"""Floats that vary between calls: Python computes with them anew at every call, and operators take them as inputs.

What a program computes from such floats is fetched like any other value, by the same expression in plain Python, so that
it is exact to the bit; comparisons become guards. Whatever else asks for the number gets it, and the number is guarded.
Must not decide which floats vary.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch

from minicompile.capture.source import Baked, Computed, Source, literal


class SymbolicFloat:
    """The stand-in for a float that is another one at each call.

    Attributes:
        real: the value in the call that is captured; source: where it comes from; tracer: who captures.
        fixed: whether the variant is for this value only.
        number: what operators take for it, once one did.
    """

    __slots__ = ("tracer", "source", "real", "fixed", "number")

    def __init__(self, tracer: Any, source: Source, real: float) -> None:
        self.tracer, self.source, self.real = tracer, source, real
        self.fixed = False
        self.number: Any = None

    def fix(self) -> float:
        """The value, which the variant is for from now on."""
        if not self.fixed:
            self.fixed = True
            self.tracer.guards.constant(self.source, self.real)
        return self.real

    def compared(self, symbol: str, other: Any) -> Any:
        """A comparison: a guard, and how it comes out now."""
        other = in_python(self.tracer, other)
        if type(other) not in OPERANDS:
            return NotImplemented
        result = COMPARISONS[symbol](self.real, real_of(other))
        source = source_of(self.tracer, other)
        words = f"`{{0}} {symbol} {literal(other) if source is None else source.words()}` is {result}"
        text = f"{'' if result else 'not '}{{0}} {symbol} {literal(other) if source is None else '{others[0]}'}"
        self.tracer.guards.test(self.source, text, (), words, "constant", self.real, () if source is None else (source,))
        return result

    def __bool__(self) -> bool:
        return bool(self.compared("!=", 0))


OPERANDS = (int, float, bool, SymbolicFloat, torch.SymInt)


def in_python(tracer: Any, value: Any) -> Any:
    """A float made of sizes as one that Python computes: algebra over sizes regroups sums, and has no zeros with signs."""
    if type(value) is not torch.SymFloat:
        return value
    source, real = tracer.dynamic.source_of(tracer, value), float(value.node.hint)
    tracer.floats = True
    return SymbolicFloat(tracer, source, real)


def has_rounded_numbers(value: torch.SymFloat) -> bool:
    """Whether an expression has floats like 0.3, which are no fractions of small integers, so that kernels cannot floor it."""
    return any(not (float(part) * 2**16).is_integer() for part in value.node.expr.atoms(sympy.Float))


def summed(start: Any, *numbers: Any) -> Any:
    """`sum(numbers, start)`, whose rounding depends on Python's version."""
    return sum(numbers, start)


def real_of(value: Any) -> Any:
    """The value in the call that is captured."""
    if type(value) is SymbolicFloat:
        return value.real
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat)) else value


def source_of(tracer: Any, operand: Any) -> Source | None:
    """Where an operand comes from, unless it is a constant."""
    if type(operand) is SymbolicFloat:
        return operand.source
    source: Source | None = tracer.dynamic.source_of(tracer, operand) if type(operand) is torch.SymInt else None
    return source


def fixed(value: Any) -> Any:
    """The value itself, guarded if it may vary."""
    return value.fix() if type(value) is SymbolicFloat else int(value) if type(value) is torch.SymInt else value


def computed(tracer: Any, function: Callable[..., Any], operands: tuple[Any, ...], text: str = "") -> Any:
    """`function(*operands)` of numbers that vary and plain ones; `text` says it with `{0}`, `{1}`, ... for the operands.

    A result that is no float is a constant: it is guarded, or the operands are.
    """
    try:
        real = function(*map(real_of, operands))
    except Exception:  # which one depends on the values, so these are fixed
        for operand in operands:
            fixed(operand)
        raise
    texts: list[str] = []
    parts: list[Source] = []
    for operand in operands:
        source = source_of(tracer, operand)
        texts.append(f"({literal(operand)})" if source is None else f"{{{len(parts)}}}")
        parts.extend([] if source is None else [source])
    if text:
        source = Computed(text.format(*texts), tuple(parts))
    else:
        called = Baked(function, getattr(function, "__name__", "a function"))
        source = Computed(f"{{{len(parts)}}}({', '.join(texts)})", (*parts, called))
    if type(real) is tuple:
        return tuple(computed(tracer, part(function, place), operands) for place in range(len(real)))
    if type(real) is not float:
        if type(real) not in (int, bool, str):
            return function(*map(fixed, operands))
        number = tracer.dynamic.number(tracer, real, source) if type(real) is int else None
        if number is not None:
            return number
        tracer.guards.constant(source, real)
        return real
    same = (source.text, *(id(part.value if type(part) is Baked else part) for part in source.parts))
    if same not in tracer.computed_floats:
        if function not in CLOSED:
            tracer.guards.test(source, "type({0}) is float", (), "`{0}` is a float", "type")
        tracer.floats = True
        tracer.computed_floats[same] = SymbolicFloat(tracer, source, real)
    return tracer.computed_floats[same]


def part(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """A function that gives one part of what another gives."""
    return functools.wraps(function)(lambda *operands: function(*operands)[place])


def binary_method(function: Callable[..., Any], text: str, reflected: bool) -> Callable[[Any, Any], Any]:
    """The special method of an operator that `text` writes."""

    def method(self: SymbolicFloat, other: Any) -> Any:
        other = in_python(self.tracer, other)
        operands = (other, self) if reflected else (self, other)
        return computed(self.tracer, function, operands, text) if type(other) in OPERANDS else NotImplemented

    return method


def unary_method(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """The special method of an operator or a builtin with one operand."""
    return lambda self: computed(self.tracer, function, (self,))


COMPARISONS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge}
CLOSED = (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.neg,
          operator.pos, abs)
for _symbol, _function in (("+", operator.add), ("-", operator.sub), ("*", operator.mul), ("/", operator.truediv),
                           ("//", operator.floordiv), ("%", operator.mod), ("**", operator.pow)):
    for _prefix in ("", "r"):
        setattr(SymbolicFloat, f"__{_prefix}{_function.__name__}__",
                binary_method(_function, f"({{0}} {_symbol} {{1}})", _prefix == "r"))
for _name, _function in (("neg", operator.neg), ("pos", operator.pos), ("abs", abs), ("round", round), ("trunc", math.trunc),
                         ("floor", math.floor), ("ceil", math.ceil), ("int", int)):
    setattr(SymbolicFloat, f"__{_name}__", unary_method(_function))
for _symbol, _function in COMPARISONS.items():
    setattr(SymbolicFloat, f"__{_function.__name__}__", lambda self, other, symbol=_symbol: self.compared(symbol, other))
for _function in (float, hash, repr, format):
    setattr(SymbolicFloat, f"__{_function.__name__}__", lambda self, *given, function=_function: function(self.fix(), *given))
