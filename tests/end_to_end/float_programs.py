"""Programs that take a Python float, as a table: each is called with several floats and has a bound on its compiles.

A table only: `test_varying_floats.py` runs it. A function takes a tensor of small numbers, one of integers, and the float.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

FLOATS = (0.5, 0.75, 0.3, 1.7, 0.1)
SPECIAL = (0.5, -0.7, math.inf, -math.inf, math.nan, -0.0, 0.0, 1e30, 1e-40)
PROGRAMS: dict[str, FloatProgram] = {}


@dataclasses.dataclass(frozen=True)
class FloatProgram:
    """A function, the floats that it is called with, and how often it may be compiled."""

    function: Callable[..., Any]
    numbers: tuple[Any, ...]
    compiles: int


def program(numbers: tuple[Any, ...] = FLOATS, compiles: int = 2) -> Any:
    """Register the decorated function."""

    def register(function: Any) -> Any:
        PROGRAMS[function.__name__] = FloatProgram(function, numbers, compiles)
        return function

    return register


@program(SPECIAL)
def product(x, i, s):
    return x * s


@program(SPECIAL)
def reflected(x, i, s):
    return s - x, s / (x * x + 1), s + x


@program(SPECIAL)
def integers_become_floats(x, i, s):
    return i * s, i + s, i > s, torch.where(i > 3, i, s)


@program(SPECIAL)
def kept_precision(x, i, s):
    return x.double() * s, x.bfloat16() * s, x.half() + s, torch.where(x > 0, x.double(), s)


@program(SPECIAL)
def python_arithmetic(x, i, s):
    return x * (s * 3 - 1) + (2 - s) / 7, (s + 1) * 2 - s, -s, +s, abs(s), s * s * 0


@program()
def division_and_power(x, i, s):
    return x * (1 / s) + s**2 + 2**s, s // 0.3, s % 0.3, 7 // s, -2 % s


@program(SPECIAL)
def comparisons_of_tensors(x, i, s):
    return x > s, x <= s, x == s, x != s, s < x


@program((0.5, 0.7, -0.3, -0.2, 0.9), compiles=3)
def branch(x, i, s):
    return x + s if s > 0 else x - s


@program((0.5, math.nan, 0.3, 0.0, -0.0, 4.0, math.inf), compiles=4)
def truth(x, i, s):
    return x * 2 if s else x, not s


@program((0.5, 0.7, 2.5, 0.2, 0.9), compiles=3)
def clipped_in_python(x, i, s):
    return x * min(s, 1.0), max(s, 0.0)


@program((0.5, 0.7, 2.5, 0.2, 2.9), compiles=4)
def whole_part(x, i, s):
    return x * int(s) + round(s - 0.3), x.sum() * s


@program(compiles=5)
def text(x, i, s):
    return x, f"{s:.2f} {s}", str(s), repr(s)


@program()
def functions_of_math(x, i, s):
    return x * math.sqrt(s) + math.exp(-s), math.sin(s), math.pow(s, 2), x + math.cos(s) * math.atan2(s, 2)


@program((0.5, 0.7, math.nan, 0.1, math.inf), compiles=4)
def questions_of_math(x, i, s):
    return x if math.isnan(s) or math.isinf(s) else x * s


@program()
def asked_for_its_type(x, i, s):
    return x * float(s) if isinstance(s, float) and type(s) is float and not isinstance(s, int) else x, s is None


@program((0.5, 0.75, 2.0, 0.3, 3.0, 1.7, 7.0), compiles=4)  # one more for a whole number
def methods_of_floats(x, i, s):
    return (x * s if s.is_integer() else x - s.conjugate() * s.real, s.__round__(1), s.__add__(1), s.__lt__(9), (s / 4).is_integer(),
            math.isclose(s, 9, rel_tol=0.01))


@program()
def several_numbers_of_one(x, i, s):
    fraction, whole = math.modf(s + 5)
    quotient, rest = divmod(s + 5, 0.25)
    return x * fraction, quotient + rest, math.frexp(s / 1024)[0], whole >= 5


@program(compiles=5)
def as_a_size(x, i, s):
    return x.new_zeros(int(s * 100)).shape[0], x


@program(SPECIAL)
def clamped(x, i, s):
    return x.clamp(min=s), torch.clamp(x, -2.0, s), x.clamp_max(s)


@program()
def weighted_sums(x, i, s):
    return torch.add(x, x.sin(), alpha=s), torch.sub(x, x.sin(), alpha=-s)


@program()
def fused_products(x, i, s):
    return torch.addcmul(x, x, x.cos(), value=s), torch.addcdiv(x, x, x * x + 1, value=s)


@program()
def powers(x, i, s):
    return x.abs() ** s, torch.pow(x.abs() + 1, s), s ** x


@program()
def filled(x, i, s):
    return torch.full((3,), s), torch.full_like(x, s), x.masked_fill(x > 0, s), x.new_full((2,), s)


@program()
def filled_in_place(x, i, s):
    y = x.clone()
    y[0] = s
    y[1] += s
    y[2].fill_(s)
    return y.mul_(s).add_(s)


@program()
def where(x, i, s):
    return torch.where(x > 0, x, s), torch.where(x > 0, s, 0.0), torch.where(x > 0, s, x)


@program()
def blended(x, i, s):
    return torch.lerp(x, x.sin(), s)


@program()
def activations(x, i, s):
    return F.leaky_relu(x, s), F.elu(x, s), F.softplus(x, s), F.threshold(x, s, 0.0), F.softshrink(x, s)


@program(compiles=5)
def norms(x, i, s):
    return F.layer_norm(x, (5,), eps=s)


@program()
def norm_by_hand(x, i, s):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s)


@program()
def temperature(x, i, s):
    return torch.softmax(x / s, -1)


@program((0.0, 0.5, 0.25), compiles=3)
def dropout_that_is_off(x, i, s):
    return F.dropout(x, s, training=False)


@program(compiles=5)
def losses(x, i, s):
    return F.huber_loss(x, x.sin(), delta=s), F.smooth_l1_loss(x, x.sin(), beta=s)


@program(compiles=5)
def smoothed_labels(x, i, s):
    return F.cross_entropy(x, i[:3, 0] % 5, label_smoothing=min(s, 1.0))


@program()
def descent(x, i, s):
    with torch.no_grad():
        p, m = x.clone(), x.sin()
        m.mul_(0.9).add_(p, alpha=1 - 0.9)
        p.mul_(1 - s * 0.01).addcdiv_(m, m.abs().sqrt().add_(1e-8), value=-s)
    return p, m


@program()
def matrix_products(x, i, s):
    return torch.addmm(x[:, :3], x, x.t(), alpha=s), (x * s) @ x.t(), x @ x.t() * s


@program()
def attention(x, i, s):
    q = x.view(1, 1, 3, 5)
    return torch.softmax(q @ q.transpose(-1, -2) * s, -1) @ q


@program(compiles=5)
def attention_called(x, i, s):
    q = x.view(1, 1, 3, 5)
    return F.scaled_dot_product_attention(q, q, q, scale=s)


@program()
def containers(x, i, s):
    table = {"rate": s, "rates": [s, s * 2]}
    table["rates"].append(s / 2)
    return sum(x * rate for rate in table["rates"]), table


@program()
def closures(x, i, s):
    def inner(y):
        return y * s + scale

    scale = s * 0.5
    return inner(x) + inner(x.sin())


@program()
def a_break_between(x, i, s):
    y = x * s
    torch._dynamo.graph_break()
    return y + s, s * 2


@program(compiles=5)
def as_a_key(x, i, s):
    return x * {0.5: 1.0}.get(s, 2.0), s in (0.5, 0.75)


@program()
def made_a_tensor(x, i, s):
    return x * torch.tensor(s), torch.tensor(s, dtype=torch.float64), torch.tensor(s)


@program((0.5, 0.7, 1, 2, True, False, 3.5, 7), compiles=7)
def other_types(x, i, s):
    return x * s, i * s, s * 2


@program((0.5, 0.0, 0.25, 0.0), compiles=3)
def an_error_of_python(x, i, s):
    try:
        return x / (1 / s)
    except ZeroDivisionError:
        return x - 1


@program((0.5, -0.5, 0.25, -0.25), compiles=4)
def a_power_that_may_be_complex(x, i, s):
    return x * abs(s**0.5)


@program(SPECIAL)
def returned(x, i, s):
    return s, (s, [s]), {"s": s}, x
