"""Pointwise operators: tables from ATen overload to formula, and what promotes their arguments.

Every tensor argument is broadcast and converted to one compute dtype, as eager does, before the formula sees it. This
module must not emit anything but pointwise loops.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

import minicompile.gpu as gpu
from minicompile.ir.expr import Expr, cast
from minicompile.ir.index import Index, hint, product
from minicompile.lowering import formulas
from minicompile.lowering.builder import GraphBuilder, Indices
from minicompile.lowering.registry import UseExtern, lowers
from minicompile.lowering.scalar import Scalar, held, number, stored, where
from minicompile.lowering.sizes import size_indices
from minicompile.lowering.values import HALVES, TensorValue


def _call(operation: str) -> Callable[..., Scalar]:
    return lambda a, *others: a.call(operation, *others)


def _either_side(operation: str) -> Callable[..., Scalar]:
    """A binary operation whose first argument may be a number."""

    def formula(a: Any, b: Any) -> Scalar:
        return a.call(operation, b) if isinstance(a, Scalar) else b.reversed_call(operation, a)

    return formula


def _truth(operation: str) -> Callable[..., Scalar]:
    return lambda a, *others: a.call(operation, *others, dtype=torch.bool)


FMOD, FLOOR_DIVIDE, REMAINDER = _call("fmod"), _either_side("floordiv"), _either_side("remainder")
DIVISIONS = (FMOD, FLOOR_DIVIDE, REMAINDER, formulas.divide)

# Computed in the result's dtype (integers become floats where the result is one).
# Forms of one operator that share a formula are named together.
IN_RESULT_DTYPE: dict[str, Callable[..., Scalar]] = {
    **{name: _call(name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin",
        "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv",
        "lgamma", "reciprocal", "neg", "bitwise_not", "atan2", "hypot", "maximum", "minimum", "fmax", "fmin",
    )},
    **formulas.BY_NAME,
    "nextafter": formulas.next_after, "round.decimals": formulas.round_decimals,
    "copysign.Tensor|Scalar": _call("copysign"), "fmod.Tensor|Scalar": FMOD,
    "add.Tensor|Scalar": formulas.add, "sub.Tensor|Scalar": formulas.subtract, "mul.Tensor|Scalar": operator.mul,
    "div.Tensor|Scalar|Tensor_mode|Scalar_mode": formulas.divide,
    "floor_divide.default|Scalar": FLOOR_DIVIDE,
    "remainder.Tensor|Scalar|Scalar_Tensor": REMAINDER,
    "pow.Tensor_Scalar|Tensor_Tensor|Scalar": formulas.power,
    "xlogy.Tensor|Scalar_Other|Scalar_Self": formulas.xlogy,
    "special_xlog1py.default|other_scalar|self_scalar": functools.partial(formulas.xlogy, logarithm="log1p"),
    **{f"bitwise_{name}.Tensor|Scalar|Scalar_Tensor": _either_side(f"bitwise_{name}") for name in ("and", "or", "xor")},
    **{f"bitwise_{name}.Tensor|Tensor_Scalar|Scalar_Tensor": _either_side(name) for name in ("left_shift", "right_shift")},
    "__lshift__.Tensor|Scalar": _call("left_shift"), "__rshift__.Tensor|Scalar": _call("right_shift"),
    "lerp.Scalar|Tensor": formulas.lerp, "elu": formulas.elu,
    "clamp.default": formulas.clamp_to_numbers, "clamp.Tensor": formulas.clamp, "clamp_min.default|Tensor": formulas.clamp,
    "clamp_max.default|Tensor": lambda a, high: formulas.clamp(a, None, high),
    "gelu": formulas.gelu, "gelu_backward": formulas.gelu_backward, "silu_backward": formulas.silu_backward,
}  # fmt: skip

ROUNDING_NUMBERS = frozenset("fmod remainder pow xlogy special_xlog1py hardshrink_backward softshrink_backward".split())
"""Operators, beside comparisons, whose kernels round a number to the tensor's half precision; others compute with it as it is."""

FEW_ELEMENTS = 1 << 16

KEEPING_NUMBERS = (operator.mul, formulas.divide, FLOOR_DIVIDE)
"""Formulas whose kernels take a 0-d tensor on the CPU, as the second operand, for a number: it is not rounded either."""

# Computed in the dtype that the arguments promote to; the result is boolean.
COMPARISONS: dict[str, Callable[..., Scalar]] = {
    **{f"{name}.Tensor|Scalar": _truth(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"logical_{name}": _truth(f"logical_{name}") for name in ("and", "or", "xor", "not")},
    "isnan": Scalar.is_nan, "isinf": formulas.is_infinite, "signbit": formulas.sign_bit,
}  # fmt: skip


def promoted_dtype(*arguments: Any) -> torch.dtype:
    """What one or two arguments (tensors and numbers) promote to in eager."""
    first, second = map(_example, (arguments[0], arguments[-1]))
    return torch.result_type(first, second)


def _example(argument: Any) -> Any:
    """What promotes as an argument does."""
    if isinstance(argument, TensorValue):
        return torch.empty((1,) * min(argument.rank, 1), dtype=argument.dtype, device="meta")
    return 1 if isinstance(argument, Index) else 1.0 if isinstance(argument, Expr) else argument


def is_short(result: torch.Tensor) -> bool:
    """Whether a result has so few elements that each may cost some hundred operations."""
    return hint(product(size_indices(result.shape))) <= FEW_ELEMENTS


def _varies_as_number(argument: Any) -> bool:
    """Whether kernels get an argument as a number whose value is not known here."""
    if isinstance(argument, TensorValue):
        return argument.rank == 0 and argument.device.type == "cpu"
    return isinstance(argument, (Expr, Index))


def _elementwise(
    formula: Callable[..., Scalar], compares: bool, of_bits: bool, rounds: bool
) -> Callable[..., TensorValue]:
    def rule(builder: GraphBuilder, *args: Any, **kwargs: Any) -> TensorValue:
        dtype = promoted_dtype(*args) if compares else builder.val.dtype
        if of_bits and dtype.is_floating_point:
            raise UseExtern("eager refuses floats, when it runs")
        if rounds and dtype in HALVES:
            args = tuple(each if isinstance(each, TensorValue) else held(each, dtype) for each in args)
        if formula is formulas.power and isinstance(args[1], Index) and not dtype.is_floating_point:
            raise UseExtern("an integer tensor to a power that varies, which may be negative")
        # Eager rounds the result of an operator, not what it is made of; to decimals its GPU kernel does.
        wide = builder.config.emulate_precision_casts and formula is not formulas.next_after
        wide = wide or formula is formulas.round_decimals and builder.device.type == "cpu"
        kept = args[1] if formula in KEEPING_NUMBERS and _varies_as_number(args[1]) else None
        wide = wide or kept is not None
        inside = torch.float32 if wide and dtype in HALVES else dtype
        divides = formula in DIVISIONS and not dtype.is_floating_point and builder.device.type == "cpu"  # where eager looks
        by_number = formula is formulas.divide and dtype.is_floating_point and isinstance(args[1], (int, float))
        chosen = formulas.multiply_by_reciprocal if by_number and builder.device.type == "cuda" else formula
        if formula is formulas.power and (not gpu.holds(builder) or is_short(builder.val)):
            chosen = formulas.power_rounded_once

        def body(indices: Indices) -> Expr:
            def operand(argument: Any) -> Any:
                if isinstance(argument, TensorValue):
                    loaded = argument.load_broadcast(indices)
                    return Scalar(cast(loaded if argument is kept else cast(loaded, dtype), inside))
                return Scalar(number(argument, inside)) if isinstance(argument, (Expr, Index)) else argument

            operands = list(map(operand, args))
            if divides and isinstance(operands[1], Scalar):
                operands[1] = operands[1].call("checked", operands[1].differs(0))
            result = chosen(*operands, **{k: operand(v) for k, v in kwargs.items()}).expr
            return cast(result, dtype) if result.dtype == inside else result

        return builder.like_node(body)

    return rule


for _name, _formula in (IN_RESULT_DTYPE | COMPARISONS).items():
    _base, _, _forms = _name.partition(".")
    _names = " ".join(f"{_base}.{_form or 'default'}" for _form in _forms.split("|"))
    _compares = _name in COMPARISONS
    lowers(_names)(_elementwise(_formula, _compares, _base.startswith("bitwise"), _compares or _base in ROUNDING_NUMBERS))


@lowers("minicompile.checked.default")
def lower_checked(builder: GraphBuilder, value: TensorValue, valid: TensorValue) -> TensorValue:
    """`value`, where the condition holds."""
    return builder.like_node(lambda i: Scalar(value.load(i)).call("checked", Scalar(valid.load(i))).expr)


@lowers("where.self")
def lower_where(builder: GraphBuilder, condition: TensorValue, then: Any, other: Any) -> TensorValue:
    """`then` where the condition holds."""
    dtype = builder.val.dtype

    def body(indices: Indices) -> Expr:
        test = Scalar(cast(condition.load_broadcast(indices), torch.bool))
        return where(test, _operand(then, indices, dtype), _operand(other, indices, dtype)).expr

    return builder.like_node(body)


def _operand(value: Any, indices: Indices, dtype: torch.dtype) -> Scalar:
    if isinstance(value, TensorValue):
        return Scalar(cast(value.load_broadcast(indices), dtype))
    return Scalar(stored(value, dtype))


lowers("masked_fill.Scalar masked_fill.Tensor")(lambda builder, value, mask, fill: lower_where(builder, mask, fill, value))


@lowers("log_sigmoid_forward")
def lower_log_sigmoid(builder: GraphBuilder, value: TensorValue) -> Any:
    """The result, and the `exp(-|x|)` that only eager's CPU kernel keeps."""
    result = builder.like_node(lambda i: formulas.log_sigmoid(Scalar(value.load(i))).expr, 0)
    return result, builder.like_node(lambda i: (-Scalar(value.load(i)).call("abs")).call("exp").expr, 1)
