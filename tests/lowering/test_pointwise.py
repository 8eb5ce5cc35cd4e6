"""Pointwise operators give eager's values, dtypes and strides."""

from __future__ import annotations

import functools
import math

import pytest
import torch
import torch.nn.functional as F

import minicompile
from tests.lowering.oracle import check, externs

aten = torch.ops.aten
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.3, -2.7, math.inf, -math.inf, math.nan, 1e-30, 21.0, -21.0, 0.5])
ACTIVATIONS = [
    F.relu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.mish, F.elu, F.celu, F.selu, F.relu6, F.hardtanh,
    F.hardsigmoid, F.hardswish, F.leaky_relu, F.softplus, F.hardshrink, F.softshrink, F.logsigmoid, F.softsign,
    F.tanhshrink, lambda x: F.threshold(x, 0.1, 20.0), torch.sigmoid, torch.tanh,
]  # fmt: skip
UNARY = [
    torch.exp, torch.expm1, torch.log, torch.log1p, torch.sqrt, torch.rsqrt, torch.sin, torch.cos, torch.tan, torch.asin,
    torch.atan, torch.sinh, torch.erf, torch.erfc, torch.floor, torch.ceil, torch.trunc, torch.round, torch.frac, torch.sign,
    torch.abs, torch.neg, torch.reciprocal, torch.isnan, torch.isinf, torch.isfinite, torch.signbit, torch.nan_to_num,
    torch.square, torch.sinc, torch.special.entr, torch.special.ndtr, lambda x: x**2, lambda x: x**3, lambda x: x**-1,
    lambda x: x**0.5, lambda x: x**2.5, lambda x: 2**x, torch.logical_not, lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=0.2),
]  # fmt: skip
ROUNDED = [functools.partial(torch.div, rounding_mode=mode) for mode in ("floor", "trunc")]
BINARY = [
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.atan2,
    torch.eq, torch.ne, torch.lt, torch.ge, torch.logical_and, torch.logical_xor, torch.hypot, torch.copysign,
    torch.logaddexp, torch.xlogy, torch.fmod, torch.remainder, *ROUNDED, lambda a, b: torch.where(a > b, a, b),
    lambda a, b: torch.lerp(a, b, 0.7), lambda a, b: torch.add(a, b, alpha=2), lambda a, b: torch.addcmul(a, a, b, value=0.5),
]  # fmt: skip


@pytest.mark.parametrize("function", ACTIVATIONS + UNARY)
def test_special_values_land_where_eager_puts_them(function):
    # Eager's gelu gives NaN at infinity in its vectorised CPU kernel and infinity in the others.
    values = SPECIAL[SPECIAL.abs() != math.inf] if function is F.gelu else SPECIAL
    assert not externs(check(function, values))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("function", ACTIVATIONS)
def test_activations_of_other_precisions(function, dtype):
    check(function, torch.randn(7, 5).to(dtype))


@pytest.mark.parametrize("function", BINARY)
def test_broadcasting_and_strides(function):
    a, b = torch.randn(5, 1, 3), torch.randn(4, 3)
    check(function, a, b)
    # PyTorch's own meta functions promise other strides than its kernels give for `copysign` and rounded divisions.
    strides = function not in (torch.copysign, *ROUNDED)
    check(function, torch.randn(3, 4).t(), torch.randn(4, 3)[:, ::2].expand(4, 2)[:, :1], strides=strides)
    check(function, torch.randn(()), torch.randn(2, 3))
    check(function, torch.randn(0, 3), torch.randn(3))


@pytest.mark.parametrize("first", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32])
@pytest.mark.parametrize("second", [torch.bool, torch.int8, torch.int64, torch.bfloat16, torch.float64])
def test_type_promotion_is_eagers(first, second):
    a = torch.tensor([0, 1, 3, 5]).to(first)
    b = torch.tensor([1, 2, 1, 4]).to(second)
    for function in (torch.add, torch.mul, torch.div, torch.eq, torch.lt, torch.maximum):
        check(function, a, b)
        check(function, a, b[0])
    check(lambda x: x + 2.5, a)
    check(lambda x: x * 3, a)
    check(lambda x: x > 0.5, a)


def test_integer_division_rounds_as_eager_does():
    a = torch.tensor([7, -7, 7, -7, 0, 9])
    b = torch.tensor([2, 2, -2, -2, 5, 3])
    for mode in ("floor", "trunc"):
        check(lambda x, y: torch.div(x, y, rounding_mode=mode), a, b)
        check(lambda x: torch.div(9, x, rounding_mode=mode), b)
        check(lambda x: torch.div(9.5, x, rounding_mode=mode), b / 3)
    check(torch.remainder, a, b)
    check(torch.fmod, a, b)
    check(lambda x: x // 2, a)
    check(lambda x: x % -3, a)


def test_bits_and_shifts():
    a, b = torch.randint(-50, 50, (11,)), torch.randint(0, 6, (11,))
    for function in (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, lambda x, y: x << y, lambda x, y: x >> y):
        check(function, a, b)
    check(torch.bitwise_not, a)
    check(torch.bitwise_not, a > 0)


def test_gradients_of_activations():
    for function in ACTIVATIONS:
        def gradient(x, function=function):
            x = x.detach().requires_grad_()
            return torch.autograd.grad(function(x).sum(), x)[0]

        check(gradient, torch.randn(6, 7) * 3, slack=5.0, mutates=False)


def test_casts_and_creation():
    x = torch.randn(4, 6)
    check(lambda a: (a.half(), a.double(), a.to(torch.int32), a > 0, a.bool().float()), x)
    check(lambda a: (torch.zeros_like(a), torch.full((3,), 7), torch.full_like(a, 2.5), torch.eye(4, 5)), x)
    check(lambda a: (a.tril(), a.triu(1), a.tril(-2), torch.arange(3, 20, 4), torch.arange(5.0), torch.linspace(0, 1, 7)), x)
    check(lambda a: (a.t().contiguous(), a.t().clone(), a.unsqueeze(0).to(memory_format=torch.preserve_format)), x)
    check(lambda a: a.masked_fill(a > 0, -math.inf), x)


def test_whole_numbers_stay_whole():
    def ranges(a):
        return [torch.linspace(*ends, 5, dtype=torch.int64) for ends in ((a[0], 9.9), (2.7, a[1]), (a[0], a[1]))]

    for found, expected in zip(*(run(torch.tensor([2.7, 9.9])) for run in (minicompile.compile(ranges), ranges)), strict=True):
        assert torch.equal(found, expected)
    for dtype in (torch.int32, torch.int64):
        largest = torch.iinfo(dtype).max
        values = torch.tensor([largest, largest - 1, -largest, 0, 1], dtype=dtype)
        assert torch.equal(minicompile.compile(lambda a: F.threshold(a, 0.5, 0.5))(values), F.threshold(values, 0.5, 0.5))


def test_channels_last_stays():
    x = torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last)
    check(lambda a: (a.relu(), a + 1, a * a.mean((2, 3), keepdim=True)), x)


COMPARED_WITH_NUMBERS = [
    lambda x: (x == 0.1, x != -0.3, x > 0.1, x >= 0.3, x < 0.7, x <= 0.7, torch.full_like(x, 0.1) == 0.1),
    lambda x: (x.clamp(max=0.3) == 0.3, x.masked_fill(x > 1 / 3, 0.7) == 0.7, torch.where(x > 0.5, x, 0.3) == 0.3),
    lambda x: (torch.fmod(x, 0.7), x % 0.7, 0.7 % x, F.pad(x, (1, 1), value=0.1) == 0.1, F.hardshrink(x, 0.3)),
    lambda x: [compare(x * 2560, n) for n in (257, 2561, 100_000) for compare in (torch.eq, torch.ge, torch.lt, torch.fmod)],
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", COMPARED_WITH_NUMBERS)
def test_numbers_are_compared_as_a_tensor_of_halves_holds_them(function, dtype):
    values = torch.tensor([0.1, 0.3, 0.7, -0.3, 1e-3, 1 / 3], dtype=dtype)
    check(function, values, slack=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_quotients_by_numbers_lose_their_fraction_before_they_are_rounded(dtype):
    values = (torch.arange(-999, 1000) * 0.37).to(dtype)
    check(lambda x: (torch.div(x, 0.3, rounding_mode="trunc"), torch.div(x, 7, rounding_mode="floor")), values, slack=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_halves_are_multiplied_and_divided_by_is_not_rounded_where_it_counts_as_a_number(dtype):
    values = (torch.arange(-999, 1000) * 0.037).to(dtype)

    def function(x, factor):
        quotients = [torch.div(x, factor, rounding_mode=mode) for mode in ("trunc", "floor")]
        return *quotients, (x * factor).floor(), (x / factor).floor(), (factor * x).floor()

    for factor in (torch.tensor(0.7), torch.tensor(0.7, dtype=torch.float64), torch.tensor(1e5)):
        check(function, values, factor, slack=0)
    compiled = minicompile.compile(function)
    for factor in (0.3, 0.7, 0.9):
        for found, expected in zip(compiled(values, factor), function(values, factor), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_gpu_divides_by_numbers_and_compares_with_them_as_eager_does(dtype):
    values = (torch.arange(-999, 1000, device="cuda") * 0.37).to(dtype)

    def function(x):
        powers = (x / 0.3, x / 3, x / 1e-30, x / 0.0, x / math.inf, torch.div(x, 0.37, rounding_mode="trunc"))
        return *powers, x == 0.37, x >= -0.74, x % 0.37, torch.fmod(x, 0.7)

    for found, expected in zip(minicompile.compile(function)(values), function(values), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
