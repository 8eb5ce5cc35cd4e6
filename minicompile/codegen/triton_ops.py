"""Scalar operations as Triton expressions, with eager's semantics.

Values of bf16 and fp16 arrive and leave as fp32 (`triton_text.compute_dtype`). For them the fast forms of functions are
exact enough; fp32 and fp64 use the correctly rounded or libdevice forms that eager uses. This module must not know
about loads, loops or names.
"""

import dataclasses
from collections.abc import Callable

import torch

from minicompile.codegen.triton_text import FLOAT8, LOW_PRECISION, UNARY, Text, call, compute_dtype, convert, infix


@dataclasses.dataclass(frozen=True)
class Operation:
    """One application: its operands' text and eager dtypes, the eager dtype of the result, and whether an operand is a block."""

    name: str
    arguments: tuple[Text, ...]
    sources: tuple[torch.dtype, ...]
    dtype: torch.dtype
    block: bool

    @property
    def source(self) -> torch.dtype:
        """The eager dtype of the first operand."""
        return self.sources[0]

    @property
    def fast(self) -> bool:
        """Whether the result is rounded to 16 bits or fewer anyway."""
        return self.dtype in LOW_PRECISION

    @property
    def floating(self) -> bool:
        """Whether the first operand is a floating-point number."""
        return self.source.is_floating_point


Emit = Callable[[Operation], Text]

UNSIGNED = frozenset({torch.uint8, torch.bool})
WIDER = {torch.int8: torch.int32, torch.int16: torch.int32, torch.uint8: torch.int64}  # by which a float becomes an integer

E4M3FN_SATURATES = torch.tensor(1e4, device="cpu").to(torch.float8_e4m3fn).float().isfinite().item()
"""Whether numbers beyond the largest float8_e4m3fn become it, as in hardware (torch 2.13), or NaN (2.11)."""

NEEDS_ROUNDED_OPERANDS = frozenset({
    "eq", "ne", "lt", "le", "gt", "ge", "floor", "ceil", "trunc", "round", "sign", "isinf", "remainder", "fmod",
    "floordiv", "logical_and", "logical_or", "logical_xor", "logical_not", "nextafter", "bitcast",
})  # fmt: skip
"""Operations that jump: an operand of bf16 or fp16 must be the value that eager would have stored."""

KEEPS_EXACTNESS = frozenset({"neg", "abs", "minimum", "maximum", "fmin", "fmax", "where", "copysign", "sign",
                             "floor", "ceil", "trunc", "round", "cast", "bitcast", "checked"})  # fmt: skip
"""Operations whose result is representable in a 16-bit dtype if the operands are."""


def _infix(operator: str) -> Emit:
    return lambda op: infix(op.arguments[0], operator, op.arguments[1])


def _call(function: str) -> Emit:
    return lambda op: call(function, *op.arguments)


def _fast_or(fast: str, exact: str) -> Emit:
    return lambda op: call(fast if op.fast else exact, *op.arguments)


def _boolean(value: Text, dtype: torch.dtype) -> Text:
    return value if dtype == torch.bool else infix(value, "!=", Text("0"))


def _logical(operator: str) -> Emit:
    def emit(op: Operation) -> Text:
        left, right = (_boolean(a, d) for a, d in zip(op.arguments, op.sources, strict=True))
        return infix(left, operator, right)

    return emit


def cast(value: Text, source: torch.dtype, target: torch.dtype) -> Text:
    """`value` converted as `Tensor.to` does, and brought back to a register dtype."""
    if source in FLOAT8:
        return cast(convert(value, torch.float32), torch.float32, target)
    held = compute_dtype(source)
    if target == torch.bool:
        return _boolean(value, source)
    if target in FLOAT8:
        return _to_float8(value if held == torch.float32 else convert(value, torch.float32), target)
    if target in LOW_PRECISION:
        narrow = value if held == torch.float32 else convert(value, torch.float32)
        return convert(convert(narrow, target), torch.float32)
    if source.is_floating_point and target in WIDER:
        return convert(convert(value, WIDER[target]), target)
    return value if held == target else convert(value, target)


def _to_float8(value: Text, target: torch.dtype) -> Text:
    saturates = target == torch.float8_e4m3fn and E4M3FN_SATURATES
    return convert(value, target) if saturates else call(f"to_{target}".replace("torch.", ""), value)


def rounded(value: Text, dtype: torch.dtype) -> Text:
    """A register value rounded to what memory of `dtype` would hold."""
    return convert(convert(value, dtype), torch.float32)


def _bitcast(op: Operation) -> Text:
    stored = op.arguments[0] if op.source == compute_dtype(op.source) else convert(op.arguments[0], op.source)
    bits = convert(stored, op.dtype, bitcast=True)
    return bits if op.dtype == compute_dtype(op.dtype) else convert(bits, torch.float32)


def _unless_boolean(emit: Emit, operator: str) -> Emit:
    """`emit`, but `operator` between booleans."""
    return lambda op: (_infix(operator) if op.dtype == torch.bool else emit)(op)


def _by_kind(floating: Emit, unsigned: Emit, signed: Emit) -> Emit:
    """One form for every kind of number."""
    return lambda op: (floating if op.floating else unsigned if op.source in UNSIGNED else signed)(op)


def _divided(op: Operation, numerator: Text, denominator: Text) -> Text:
    if op.dtype == torch.float32:
        return call("nearest_quotient" if op.block else "tl.div_rn", numerator, denominator)
    return infix(numerator, "/", denominator)


def _reciprocal(op: Operation) -> Text:
    return _divided(op, Text("1.0"), op.arguments[0])


def _neg(op: Operation) -> Text:
    if op.floating:  # Triton 3.6 prints `-x` as `0 - x`, which loses the sign of zero.
        return infix(Text("-1.0", UNARY), "*", op.arguments[0])
    return Text(f"-{op.arguments[0].at(UNARY + 1)}", UNARY)


def _sign(op: Operation) -> Text:
    held = compute_dtype(op.dtype)
    above, below = (infix(op.arguments[0], sign, Text("0")) for sign in "><")
    return infix(convert(above, held), "-", convert(below, held))


def _extremum(op: Operation) -> Text:
    extra = ("propagate_nan=tl.PropagateNan.ALL",) if op.floating else ()
    return call(f"tl.{op.name}", *op.arguments, *extra)


def _shift(op: Operation) -> Text:
    """As torch: an amount out of range gives 0 (or the sign, to the right)."""
    value, amount = op.arguments
    bits, operator = torch.iinfo(op.dtype).bits, "<<" if op.name == "left_shift" else ">>"
    if amount.text.isdecimal() and int(amount.text) < bits:
        return infix(value, operator, amount)
    inside = infix(amount, "<", Text(str(bits)))
    if op.sources[1] not in UNSIGNED:
        inside = infix(infix(amount, ">=", Text("0")), "&", inside)
    if op.name == "right_shift" and op.dtype not in UNSIGNED:
        return convert(infix(value, ">>", call("tl.where", inside, amount, str(bits - 1))), op.dtype)
    shifted = infix(value, operator, call("tl.where", inside, amount, "0"))
    return convert(call("tl.where", inside, shifted, "0"), op.dtype)


def _sigmoid(op: Operation) -> Text:
    negated = infix(Text("-1.0", UNARY), "*", op.arguments[0])
    below = infix(Text("1.0"), "+", call("tl.exp" if op.fast else "libdevice.exp", negated))
    return _reciprocal(dataclasses.replace(op, arguments=(below,)))


def _signbit(op: Operation) -> Text:
    integer = torch.int64 if op.source == torch.float64 else torch.int32
    return infix(convert(op.arguments[0], integer, bitcast=True), "<", Text("0"))


def _wave(op: Operation) -> Text:
    by_quarters = op.block and op.dtype != torch.float64
    return call(f"{op.name}_by_quarters" if by_quarters else f"libdevice.{op.name}", *op.arguments)


def _bitwise_not(op: Operation) -> Text:
    if op.dtype == torch.bool:
        return infix(op.arguments[0], "==", Text("False"))
    if op.dtype in UNSIGNED:
        return infix(op.arguments[0], "^", Text(str(torch.iinfo(op.dtype).max)))
    return Text(f"~{op.arguments[0].at(UNARY)}", UNARY)


_LIBDEVICE = ("expm1", "log1p", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh",
              "acosh", "atanh", "erfc", "erfinv", "lgamma", "copysign", "hypot", "nextafter")  # fmt: skip

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

TRITON_OPS: dict[str, Emit] = {
    "checked": _call("checked"),
    "cast": lambda op: cast(op.arguments[0], op.source, op.dtype),
    "bitcast": _bitcast,
    "add": _unless_boolean(_infix("+"), "|"),
    "sub": _infix("-"),
    "mul": _unless_boolean(_infix("*"), "&"),
    "truediv": lambda op: _divided(op, *op.arguments),
    "approximate_truediv": _infix("/"),
    "floordiv": _by_kind(_call("float_floor_divide"), _infix("//"), _call("integer_floor_divide")),
    "truncdiv": _infix("//"),
    "remainder": _by_kind(_call("float_remainder"), _infix("%"), _call("integer_remainder")),
    "fmod": _by_kind(_call("libdevice.fmod"), _infix("%"), _infix("%")),
    "pow": _by_kind(_call("libdevice.pow"), _call("unsigned_power"), _call("integer_power")),
    "neg": _neg,
    "abs": lambda op: op.arguments[0] if op.source in UNSIGNED else call("tl.abs", op.arguments[0]),
    "sign": _sign,
    "reciprocal": _reciprocal,
    "minimum": _unless_boolean(_extremum, "&"),
    "maximum": _unless_boolean(_extremum, "|"),
    "fmin": _call("smaller_number"),  # Triton's own leave NaN to the interpreter's version
    "fmax": _call("larger_number"),
    **{name: _infix(sign) for name, sign in _COMPARISONS.items()},
    "logical_and": _logical("&"),
    "logical_or": _logical("|"),
    "logical_xor": _logical("!="),
    "logical_not": lambda op: infix(op.arguments[0], "==", Text("False" if op.source == torch.bool else "0")),
    "bitwise_and": _infix("&"),
    "bitwise_or": _infix("|"),
    "bitwise_xor": _infix("^"),
    "bitwise_not": _bitwise_not,
    "left_shift": _shift,
    "right_shift": _shift,
    "where": _call("tl.where"),
    "exp": _fast_or("tl.exp", "libdevice.exp"),
    "exp2": _fast_or("tl.exp2", "libdevice.exp2"),
    "log": _fast_or("tl.log", "libdevice.log"),
    "log2": _fast_or("tl.log2", "libdevice.log2"),
    "log10": _call("libdevice.log10"),
    "sqrt": lambda op: call("tl.sqrt_rn" if op.dtype == torch.float32 else "tl.sqrt", op.arguments[0]),
    "rsqrt": _call("tl.rsqrt"),
    "sigmoid": _sigmoid,
    "erf": _call("tl.erf"),
    "floor": _call("tl.floor"),
    "ceil": _call("tl.ceil"),
    "trunc": _call("libdevice.trunc"),
    "round": _call("libdevice.rint"),
    "isnan": lambda op: infix(op.arguments[0], "!=", op.arguments[0]),
    "isinf": lambda op: infix(call("tl.abs", op.arguments[0]), "==", Text('float("inf")')),
    "signbit": _signbit,
    "sin": _wave,
    "cos": _wave,
    **{name: _call(f"libdevice.{name}") for name in _LIBDEVICE},
}


def operation_text(op: Operation) -> Text:
    """The Triton expression of one operation."""
    return TRITON_OPS[op.name](op)

