"""The formulas of pointwise operators over scalar expressions, as eager's kernels compute them.

Each function takes `Scalar`s of one dtype and Python numbers. Half precisions are computed in fp32 by every reader of
the expression. This module must not know about tensors, dtype promotion or ATen.
"""

import math
from collections.abc import Callable

import torch

from minicompile.lowering.registry import UseExtern
from minicompile.lowering.scalar import Number, Scalar, truth, where

SQRT_HALF = math.sqrt(0.5)
SINGLE_NAN_BOUND_COUNTS = bool(torch.zeros((), device="cpu").clamp(min=math.nan).isnan())  # not in torch 2.11
TWO_BY_SQRT_PI = 2 / math.sqrt(math.pi)
SQRT_TWO_BY_PI = math.sqrt(2 / math.pi)


def add(a: Scalar, b: Scalar | Number, alpha: Number = 1) -> Scalar:
    """`a + alpha * b`."""
    return a + b if alpha == 1 else a + b * alpha


def subtract(a: Scalar, b: Scalar | Number, alpha: Number = 1) -> Scalar:
    """`a - alpha * b`."""
    return a - b if alpha == 1 else a - b * alpha


def divide(a: Scalar | Number, b: Scalar | Number, rounding_mode: str | None = None) -> Scalar:
    """`a / b`, rounded as asked."""
    if not isinstance(a, Scalar):
        assert isinstance(b, Scalar)
        a = Scalar(b.lift(a))
    if rounding_mode is None:
        return a / b
    if rounding_mode == "floor":
        return a.call("floordiv", b)
    if not a.dtype.is_floating_point:
        return a.call("truncdiv", b)
    return (a / b).call("trunc") if isinstance(b, Scalar) else truncated(a, lambda wide: wide / b)


def multiply_by_reciprocal(a: Scalar, b: float, rounding_mode: str | None = None) -> Scalar:
    """`a / b` as eager's kernels on a GPU divide by a number, which may differ by a rounding from the quotient."""
    if rounding_mode == "floor":
        return divide(a, b, rounding_mode)
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    reciprocal = torch.tensor(b, dtype=wide, device="cpu").reciprocal().item()
    return a * reciprocal if rounding_mode is None else truncated(a, lambda wide: wide * reciprocal)


def truncated(a: Scalar, quotient: Callable[[Scalar], Scalar]) -> Scalar:
    """A quotient by a number without its fraction; that of halves is not rounded before, which would carry some to the next."""
    wide = a.to(torch.float32) if a.dtype.itemsize == 2 else a
    return quotient(wide).call("trunc").to(a.dtype)


def round_decimals(a: Scalar, decimals: int) -> Scalar:
    """Round to a number of decimals."""
    if not a.dtype.is_floating_point or decimals == 0:
        return a.call("round") if a.dtype.is_floating_point else a
    power = 10 ** abs(decimals)
    return (a * power).call("round") / power if decimals > 0 else (a / power).call("round") * power


def next_after(a: Scalar, b: Scalar | Number) -> Scalar:
    """The next float after `a` towards `b`."""
    if a.expr.dtype.itemsize < 4:
        raise UseExtern("nextafter of 16-bit numbers")
    return a.call("nextafter", b)


def power(a: Scalar | Number, b: Scalar | Number) -> Scalar:
    """`a ** b`, with the special exponents that eager also treats apart."""
    if not isinstance(a, Scalar):
        assert isinstance(b, Scalar)
        if a == 2 and b.dtype.is_floating_point:
            return b.call("exp2")
        return b.reversed_call("pow", a)
    if isinstance(b, Scalar):
        return a.call("pow", b)
    if a.dtype.is_floating_point:
        special = {0.5: lambda: a.call("sqrt"), -0.5: lambda: a.call("rsqrt"), -1.0: lambda: 1 / a,
                   -2.0: lambda: 1 / (a * a)}  # fmt: skip
        if b in special:
            return special[b]()
    elif isinstance(b, float) or b < 0:
        raise UseExtern("an integer tensor to a negative or fractional power")
    if b == 0:
        return Scalar(a.lift(1))
    if b in (1, 2, 3, 4):
        square = a * a if b > 1 else a
        return {1: a, 2: square, 3: square * a, 4: square * square}[int(b)]
    return a.call("pow", b)


def power_rounded_once(a: Scalar | Number, b: Scalar | Number) -> Scalar:
    """`a ** b`, in fp64 between a number and fp32: `1 - beta**step` and angles of positions multiply its error."""
    if isinstance(a, Scalar) or a == 2 or not isinstance(b, Scalar) or b.dtype != torch.float32:
        return power(a, b)
    base = torch.tensor(a, dtype=torch.float32, device="cpu").item()
    return b.to(torch.float64).reversed_call("pow", base).to(torch.float32)


def clamp(a: Scalar, low: Scalar | Number | None = None, high: Scalar | Number | None = None) -> Scalar:
    """`min(max(a, low), high)`, NaN propagating."""
    if low is not None:
        a = a.call("maximum", low)
    return a if high is None else a.call("minimum", high)


def clamp_to_numbers(a: Scalar, low: Scalar | Number | None = None, high: Scalar | Number | None = None) -> Scalar:
    """`clamp` between numbers, of which torch 2.11 leaves a single one out that is NaN."""
    bound = high if low is None else low
    if SINGLE_NAN_BOUND_COUNTS or None not in (low, high):
        return clamp(a, low, high)
    if isinstance(bound, Scalar):
        return where(bound.is_nan(), a, clamp(a, low, high))
    return a if bound != bound else clamp(a, low, high)


def is_infinite(a: Scalar) -> Scalar:
    """Infinite."""
    return a.call("isinf", dtype=torch.bool) if a.dtype.is_floating_point else truth(False)


def sign_bit(a: Scalar) -> Scalar:
    """The sign bit is set."""
    if a.dtype == torch.bool:
        return truth(False)
    return a.call("signbit", dtype=torch.bool) if a.dtype.is_floating_point else a < 0


def xlogy(a: Scalar | Number, b: Scalar | Number, logarithm: str = "log") -> Scalar:
    """`a * log(b)`, 0 where `a` is 0, NaN where `b` is."""
    anchor = b if isinstance(b, Scalar) else a
    assert isinstance(anchor, Scalar)
    left, right = Scalar(anchor.lift(a)), Scalar(anchor.lift(b))
    return where(right.is_nan(), math.nan, where(left.equals(0), 0, left * right.call(logarithm)))


def lerp(a: Scalar, b: Scalar, weight: Scalar | Number) -> Scalar:
    """Linear interpolation, exact at both ends."""
    low, high = a + weight * (b - a), b - (b - a) * (1 - weight)
    if isinstance(weight, Scalar):
        return where(weight.call("abs") < 0.5, low, high)
    return low if abs(weight) < 0.5 else high


def gelu(a: Scalar, approximate: str = "none") -> Scalar:
    """Gaussian error linear unit."""
    if approximate == "tanh":
        inner = SQRT_TWO_BY_PI * (a + 0.044715 * (a * a * a))
        return 0.5 * a * (1 + inner.call("tanh"))
    return a * 0.5 * (1 + (a * SQRT_HALF).call("erf"))


def gelu_backward(grad: Scalar, a: Scalar, approximate: str = "none") -> Scalar:
    """Gradient of `gelu`."""
    if approximate == "tanh":
        tangent = (SQRT_TWO_BY_PI * (a + 0.044715 * (a * a * a))).call("tanh")
        slope = SQRT_TWO_BY_PI * (1 + 3 * 0.044715 * (a * a))
        return grad * (0.5 * (1 + tangent) + 0.5 * a * (1 - tangent * tangent) * slope)
    density = (a * a * -0.5).call("exp") * (TWO_BY_SQRT_PI * SQRT_HALF * 0.5)
    return grad * (0.5 * (1 + (a * SQRT_HALF).call("erf")) + a * density)


def silu_backward(grad: Scalar, a: Scalar) -> Scalar:
    """Gradient of `silu`."""
    gate = a.call("sigmoid")
    return grad * gate * (1 + a * (1 - gate))


def elu(a: Scalar, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Scalar:
    """Exponential linear unit; also celu and selu."""
    negative = (a * input_scale).call("expm1") * (alpha * scale)
    return where(a <= 0, negative, a * scale)


def log_sigmoid(a: Scalar) -> Scalar:
    """`log(sigmoid(a))` without overflow."""
    return a.call("minimum", 0) - (-a.call("abs")).call("exp").call("log1p")


# Operators whose formula is one expression.
BY_NAME: dict[str, Callable[..., Scalar]] = {
    **{name: lambda a, name=name: a.call(name) if a.dtype.is_floating_point else a
       for name in ("floor", "ceil", "trunc", "round")},
    "abs": lambda a: a if a.dtype in (torch.bool, torch.uint8) else a.call("abs"),
    **dict.fromkeys(("sign", "sgn"), lambda a: a if a.dtype == torch.bool else a.call("sign")),
    "zero": lambda a: Scalar(a.lift(0)),
    "addcmul": lambda a, b, c, value=1: a + (b * c if value == 1 else b * value * c),
    "addcdiv": lambda a, b, c, value=1: a + (b / c if value == 1 else b * value / c),
    "threshold": lambda a, limit, value: where(a <= limit, value, a),
    "threshold_backward": lambda grad, a, limit: where(a <= limit, 0, grad),
    "relu": lambda a: a.call("maximum", 0),  # NaN stays NaN
    "silu": lambda a: a / (1 + (-a).call("exp")),
    "hardtanh": lambda a, low=-1, high=1: clamp(a, low, high),
    "leaky_relu": lambda a, slope=0.01: where(a > 0, a, a * slope),
    "_prelu_kernel": lambda a, weight: where(a > 0, a, weight * a),
    **dict.fromkeys(("hardshrink_backward", "softshrink_backward"),
                    lambda grad, a, limit: where((a >= -limit) & (a <= limit), 0, grad)),
    "logit_backward": lambda grad, a, eps=None: where(
        (a < (eps or 0)) | (a > 1 - (eps or 0)), math.nan if eps is None else 0, grad / (a * (1 - a))),
    "sigmoid_backward": lambda grad, result: grad * (1 - result) * result,
    "tanh_backward": lambda grad, result: grad * (1 - result * result),
}  # fmt: skip
