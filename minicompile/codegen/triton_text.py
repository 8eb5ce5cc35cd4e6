"""Pieces of Triton source: text that knows how tightly it binds, dtype names, and literals.

This module must not know what an expression is.
"""

import dataclasses
import math

import torch

NEGATIVE_ZEROS = {torch.float64: -(2**63), torch.float32: -(2**31), torch.float16: -(2**15), torch.bfloat16: -(2**15)}
"""The bits of a negative zero, as a number."""
LOW_PRECISION = frozenset({torch.float16, torch.bfloat16})
FLOAT8 = {torch.float8_e4m3fn: "tl.float8e4nv", torch.float8_e5m2: "tl.float8e5"}

CALL, UNARY, COMPARE = 100, 50, 10
LEVELS = {
    **dict.fromkeys(("*", "/", "//", "%"), 40), **dict.fromkeys("+-", 30), **dict.fromkeys(("<<", ">>"), 25),
    "&": 20, "^": 18, "|": 16, **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), COMPARE),
}  # fmt: skip
"""How tightly operators bind."""


@dataclasses.dataclass(frozen=True)
class Text:
    """Source of an expression and the precedence of its outermost operator."""

    text: str
    level: int = CALL

    def at(self, level: int) -> str:
        """The source, in parentheses if its operator binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"

    def __str__(self) -> str:
        return self.text


def infix(left: Text, operator: str, right: Text) -> Text:
    """`left operator right`; the right operand gets parentheses at equal precedence."""
    level = LEVELS[operator]
    return Text(f"{left.at(level + (level == COMPARE))} {operator} {right.at(level + 1)}", level)


def call(function: str, *arguments: Text | str) -> Text:
    """`function(arguments)`."""
    return Text(f"{function}({', '.join(map(str, arguments))})")


def convert(value: Text, dtype: torch.dtype, bitcast: bool = False) -> Text:
    """`value.to(dtype)`."""
    extra = ", bitcast=True" if bitcast else ""
    return Text(f"{value.at(CALL)}.to({triton_dtype(dtype)}{extra})")


def triton_dtype(dtype: torch.dtype) -> str:
    """Triton's name of a dtype."""
    own = {torch.bool: "tl.int1"} | FLOAT8
    return own.get(dtype) or str(dtype).replace("torch", "tl")


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a value of `dtype` is held in registers."""
    return torch.float32 if dtype in LOW_PRECISION else dtype


def literal(value: int | float | bool, dtype: torch.dtype) -> Text:
    """A bare Python literal."""
    if dtype == torch.bool:
        return Text(str(bool(value)))
    if not dtype.is_floating_point:
        return Text(str(int(value)), CALL if value >= 0 else UNARY)
    value = float(value)
    if math.isnan(value):
        return Text('float("nan")')
    if math.isinf(value):
        return Text('float("inf")') if value > 0 else Text('-float("inf")', UNARY)
    if value == 0 and math.copysign(1, value) < 0:  # Triton 3.6 takes -0.0 for 0.0
        return convert(call("tl.full", "[]", str(NEGATIVE_ZEROS[dtype]), f"tl.int{8 * dtype.itemsize}"), dtype, bitcast=True)
    return Text(repr(value), CALL if value >= 0 else UNARY)


def stored_literal(value: int | float | bool, dtype: torch.dtype) -> Text:
    """A constant among values in memory: there, a bare number is an fp32."""
    return (typed_literal if dtype == torch.float64 else literal)(value, dtype)


def typed_literal(value: int | float | bool, dtype: torch.dtype) -> Text:
    """A constant that keeps its dtype wherever it is used."""
    return call("tl.full", "[]", literal(value, dtype), triton_dtype(dtype))
