"""Pointwise operators: tables from ATen overload to formula, and what promotes their arguments.

Every tensor argument is broadcast and converted to one compute dtype, as eager does, before the formula sees it. This
module must not emit anything but pointwise loops.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal

import torch

from minicompile.ir.expr import Expr, cast
from minicompile.ir.index import Index
from minicompile.lowering import formulas
from minicompile.lowering.builder import GraphBuilder, Indices
from minicompile.lowering.registry import RULES, UseExtern, lowers, overload
from minicompile.lowering.scalar import Scalar, number, where
from minicompile.lowering.values import TensorValue

Promotion = Literal["result", "promoted"]
HALVES = (torch.float16, torch.bfloat16)


def _call(operation: str) -> Callable[..., Scalar]:
    return lambda a, *others: a.call(operation, *others)


def _either_side(operation: str) -> Callable[..., Scalar]:
    """A binary operation whose first argument may be a number."""

    def formula(a: Any, b: Any) -> Scalar:
        return a.call(operation, b) if isinstance(a, Scalar) else b.reversed_call(operation, a)

    return formula


def _truth(operation: str) -> Callable[..., Scalar]:
    return lambda a, *others: a.call(operation, *others, dtype=torch.bool)


# Computed in the result's dtype (integers become floats where the result is one).
IN_RESULT_DTYPE: dict[str, Callable[..., Scalar]] = {
    **{name: _call(name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin",
        "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv",
        "lgamma", "reciprocal", "neg", "bitwise_not", "atan2", "hypot",
    )},
    "nextafter": formulas.next_after,
    "copysign.Tensor": _call("copysign"), "copysign.Scalar": _call("copysign"),
    "ldexp.Tensor": lambda a, b: a * b.call("exp2"),
    **{name: formulas.integral_identity(name) for name in ("floor", "ceil", "trunc", "round")},
    "abs": formulas.absolute, "sign": formulas.sign, "sgn": formulas.sign, "frac": formulas.fraction,
    "round.decimals": formulas.round_decimals,
    "relu": formulas.relu, "sinc": formulas.sinc, "logit": formulas.logit,
    "deg2rad": lambda a: a * 0.017453292519943295, "rad2deg": lambda a: a * 57.29577951308232,
    "special_entr": formulas.entropy, "zero": lambda a: Scalar(a.lift(0)),
    "add.Tensor": formulas.add, "add.Scalar": formulas.add, "sub.Tensor": formulas.subtract,
    "sub.Scalar": formulas.subtract,
    "mul.Tensor": operator.mul, "mul.Scalar": operator.mul,
    "div.Tensor": formulas.divide, "div.Scalar": formulas.divide, "div.Tensor_mode": formulas.divide,
    "div.Scalar_mode": formulas.divide,
    "floor_divide": _either_side("floordiv"), "floor_divide.Scalar": _call("floordiv"),
    "remainder.Tensor": _call("remainder"), "remainder.Scalar": _call("remainder"),
    "remainder.Scalar_Tensor": _either_side("remainder"),
    "fmod.Tensor": _call("fmod"), "fmod.Scalar": _call("fmod"),
    "pow.Tensor_Scalar": formulas.power, "pow.Tensor_Tensor": formulas.power, "pow.Scalar": formulas.power,
    "maximum": _call("maximum"), "minimum": _call("minimum"), "fmax": _call("fmax"), "fmin": _call("fmin"),
    "logaddexp": formulas.log_add_exp, "logaddexp2": functools.partial(formulas.log_add_exp, two=True),
    "heaviside": formulas.heaviside,
    "xlogy.Tensor": formulas.xlogy, "xlogy.Scalar_Other": formulas.xlogy, "xlogy.Scalar_Self": formulas.xlogy,
    "special_xlog1py": functools.partial(formulas.xlogy, logarithm="log1p"),
    "special_xlog1py.other_scalar": functools.partial(formulas.xlogy, logarithm="log1p"),
    "special_xlog1py.self_scalar": functools.partial(formulas.xlogy, logarithm="log1p"),
    **{f"bitwise_{name}{form}": _either_side(f"bitwise_{name}")
       for name in ("and", "or", "xor") for form in (".Tensor", ".Scalar", ".Scalar_Tensor")},
    **{f"{name}{form}": _either_side(operation) for form in (".Tensor", ".Tensor_Scalar", ".Scalar_Tensor")
       for name, operation in (("bitwise_left_shift", "left_shift"), ("bitwise_right_shift", "right_shift"))},
    **{f"{name}{form}": _call(operation) for form in (".Tensor", ".Scalar")
       for name, operation in (("__lshift__", "left_shift"), ("__rshift__", "right_shift"))},
    "addcmul": formulas.add_product, "addcdiv": formulas.add_quotient,
    "lerp.Scalar": formulas.lerp, "lerp.Tensor": formulas.lerp,
    "clamp": formulas.clamp, "clamp.Tensor": formulas.clamp,
    "clamp_min": formulas.clamp, "clamp_min.Tensor": formulas.clamp,
    "clamp_max": lambda a, high: formulas.clamp(a, None, high),
    "clamp_max.Tensor": lambda a, high: formulas.clamp(a, None, high),
    "nan_to_num": formulas.nan_to_num, "threshold": formulas.threshold,
    "threshold_backward": formulas.threshold_backward,
    "gelu": formulas.gelu, "gelu_backward": formulas.gelu_backward,
    "silu": formulas.silu, "silu_backward": formulas.silu_backward,
    "mish": formulas.mish, "mish_backward": formulas.mish_backward,
    "elu": formulas.elu, "elu_backward": formulas.elu_backward,
    "celu": lambda a, alpha=1.0: formulas.elu(a, alpha, 1, 1 / alpha),
    "hardtanh": lambda a, low=-1, high=1: formulas.clamp(a, low, high),
    "hardtanh_backward": formulas.hardtanh_backward,
    "hardsigmoid": formulas.hardsigmoid, "hardsigmoid_backward": formulas.hardsigmoid_backward,
    "hardswish": formulas.hardswish, "hardswish_backward": formulas.hardswish_backward,
    "leaky_relu": formulas.leaky_relu, "leaky_relu_backward": formulas.leaky_relu_backward,
    "_prelu_kernel": formulas.prelu,
    "softplus": formulas.softplus, "softplus_backward": formulas.softplus_backward,
    "hardshrink": formulas.hardshrink, "hardshrink_backward": formulas.hardshrink_backward,
    "softshrink": formulas.softshrink, "softshrink_backward": formulas.hardshrink_backward,
    "logit_backward": formulas.logit_backward,
    "log_sigmoid_backward": lambda grad, a, _: formulas.log_sigmoid_backward(grad, a),  # eager's buffer is not needed
    "sigmoid_backward": formulas.sigmoid_backward, "tanh_backward": formulas.tanh_backward,
}  # fmt: skip

# Computed in the dtype that the arguments promote to; the result is boolean.
COMPARISONS: dict[str, Callable[..., Scalar]] = {
    **{f"{name}{form}": _truth(name) for name in ("eq", "ne", "lt", "le", "gt", "ge") for form in (".Tensor", ".Scalar")},
    **{f"logical_{name}": _truth(f"logical_{name}") for name in ("and", "or", "xor", "not")},
    "isnan": Scalar.is_nan, "isinf": formulas.is_infinite, "signbit": formulas.sign_bit,
    "isposinf": lambda a: a.equals(float("inf")) if a.dtype.is_floating_point else formulas.is_infinite(a),
    "isneginf": lambda a: a.equals(float("-inf")) if a.dtype.is_floating_point else formulas.is_infinite(a),
}  # fmt: skip


def _category(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1


_NUMBER_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float32}


@functools.lru_cache(maxsize=4096)
def _promoted(tensors: tuple[tuple[torch.dtype, bool], ...], numbers: tuple[type, ...], default: torch.dtype) -> torch.dtype:
    """The dtype of an operation: tensors with dimensions first, then 0-d tensors, then numbers, by category."""
    groups = (
        [dtype for dtype, has_dims in tensors if has_dims],
        [dtype for dtype, has_dims in tensors if not has_dims],
        [default if kind is float else _NUMBER_DTYPES[kind] for kind in numbers],
    )
    result: torch.dtype | None = None
    for group in groups:
        if group:
            together = functools.reduce(torch.promote_types, group)
            if result is None or _category(together) > _category(result):
                result = together
    assert result is not None
    return result


def promoted_dtype(*arguments: Any) -> torch.dtype:
    """What `arguments` (tensors and numbers) promote to in eager."""
    tensors = tuple((a.dtype, a.rank > 0) for a in arguments if isinstance(a, TensorValue))
    numbers = tuple({Index: int}.get(type(a), float if isinstance(a, Expr) else type(a)) for a in arguments
                    if isinstance(a, (bool, int, float, Index, Expr)))  # fmt: skip
    return _promoted(tensors, numbers, torch.get_default_dtype())


def _elementwise(formula: Callable[..., Scalar], promotion: Promotion, of_bits: bool) -> Callable[..., TensorValue]:
    def rule(builder: GraphBuilder, *args: Any, **kwargs: Any) -> TensorValue:
        dtype = builder.val.dtype if promotion == "result" else promoted_dtype(*args)
        if of_bits and dtype.is_floating_point:
            raise UseExtern("eager refuses floats, when it runs")
        if formula is formulas.power and isinstance(args[1], Index) and not dtype.is_floating_point:
            raise UseExtern("an integer tensor to a power that varies, which may be negative")
        # Eager rounds the result of an operator, not what it is made of.
        one_rounding = builder.config.emulate_precision_casts and dtype in HALVES and formula is not formulas.next_after
        inside = torch.float32 if one_rounding else dtype

        def body(indices: Indices) -> Expr:
            def operand(argument: Any) -> Any:
                if isinstance(argument, TensorValue):
                    return Scalar(cast(cast(argument.load_broadcast(indices), dtype), inside))
                return Scalar(number(argument, inside)) if isinstance(argument, (Expr, Index)) else argument

            result = formula(*map(operand, args), **{k: operand(v) for k, v in kwargs.items()}).expr
            return cast(result, dtype) if result.dtype == inside else result

        return builder.like_node(body)

    return rule


def _register_tables() -> None:
    tables: tuple[tuple[dict[str, Callable[..., Scalar]], Promotion], ...]
    tables = (IN_RESULT_DTYPE, "result"), (COMPARISONS, "promoted")
    for table, promotion in tables:
        for name, formula in table.items():
            found = overload(f"aten.{name}" if "." in name else f"aten.{name}.default")
            if found is not None:
                RULES[found] = _elementwise(formula, promotion, name.startswith("bitwise"))


_register_tables()


@lowers("aten.where.self")
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
    return Scalar(number(value, dtype))


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def lower_masked_fill(builder: GraphBuilder, value: TensorValue, mask: TensorValue, fill: Any) -> TensorValue:
    """`fill` where the mask holds."""
    return lower_where(builder, mask, fill, value)


@lowers("aten.log_sigmoid_forward.default")
def lower_log_sigmoid(builder: GraphBuilder, value: TensorValue) -> Any:
    """The result, and the `exp(-|x|)` that only eager's CPU kernel keeps."""
    result = builder.like_node(lambda i: formulas.log_sigmoid(Scalar(value.load(i))).expr, 0)
    return result, builder.like_node(lambda i: (-Scalar(value.load(i)).call("abs")).call("exp").expr, 1)

