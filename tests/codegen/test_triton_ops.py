"""Every scalar operation gives eager's values, special ones included."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
import triton

import minicompile
from minicompile.codegen.triton_ops import TRITON_OPS
from minicompile.codegen.triton_text import triton_dtype
from minicompile.ir.expr import SCALAR_OPS, Constant, Expr, Load, apply
from minicompile.ir.index import Axis, as_index
from minicompile.ir.loops import Loop
from minicompile.lowering.values import FLOAT8, LOOP_DTYPES
from minicompile.runtime.kernel_binary import TRITON_TYPES
from tests.codegen.build import buffer, group, pointwise_plan, run_both, schedule

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
BOOLEAN = (torch.bool,)

COMPARISONS = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}
LOGIC = {"logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
         "logical_not": torch.logical_not}  # fmt: skip
PREDICATES = {"isnan": torch.isnan, "isinf": torch.isinf, "signbit": torch.signbit}

EVERYWHERE: dict[str, Callable[..., torch.Tensor]] = {
    "maximum": torch.maximum, "minimum": torch.minimum, "where": lambda a, b: torch.where(a != 0, a, b), **COMPARISONS,
    **LOGIC,
}  # fmt: skip
NUMBERS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "abs": torch.abs, "neg": torch.neg,
           "sign": torch.sign}  # fmt: skip
FLOAT_ONLY: dict[str, Callable[..., torch.Tensor]] = {
    "truediv": torch.true_divide, "floordiv": torch.floor_divide, "remainder": torch.remainder, "fmod": torch.fmod,
    "pow": torch.pow, "fmin": torch.fmin, "fmax": torch.fmax, "reciprocal": torch.reciprocal, "atan2": torch.atan2,
    "copysign": torch.copysign, "hypot": torch.hypot, "round": torch.round,
    **{name: getattr(torch, name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sigmoid", "sin", "cos", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma",
        "floor", "ceil", "trunc")},
    **PREDICATES,
}  # fmt: skip
INTEGER_ONLY: dict[str, Callable[..., torch.Tensor]] = {
    "floordiv": torch.floor_divide, "remainder": torch.remainder, "fmod": torch.fmod, "pow": torch.pow,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor, "bitwise_not": torch.bitwise_not,
    "left_shift": torch.bitwise_left_shift, "right_shift": torch.bitwise_right_shift,
}  # fmt: skip
EXACT = {*EVERYWHERE, *NUMBERS, "truediv", "floordiv", "remainder", "fmod", "fmin", "fmax", "reciprocal", "copysign",
         "round", "floor", "ceil", "trunc", "sqrt", *PREDICATES}  # fmt: skip
DIVISIONS = {"floordiv", "remainder", "fmod", "truncdiv"}
BOOLEAN_RESULT = {*COMPARISONS, *LOGIC, *PREDICATES}

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 1e-3, -0.25, 20.0, -30.0, 88.0, 100.0, 6e4,
           1e-7, 5.9e-8, 1e-40, -1e-40, math.pi, math.inf, -math.inf, math.nan]  # fmt: skip


def operations(dtype: torch.dtype) -> dict[str, Callable[..., torch.Tensor]]:
    """The operations that eager has for a dtype."""
    if dtype == torch.bool:
        extra = {"add": torch.add, "mul": torch.mul, **{n: INTEGER_ONLY[n] for n in (
            "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")}}  # fmt: skip
        return {**EVERYWHERE, **extra}
    return {**EVERYWHERE, **NUMBERS, **(FLOAT_ONLY if dtype.is_floating_point else INTEGER_ONLY)}


def values(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of a dtype, the awkward ones among them."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        return torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    bounds = torch.iinfo(dtype)
    return torch.tensor([0, 1, 2, 3, 5, 7, 8, 40, 100, bounds.max, bounds.min, bounds.max - 1,
                         *((-1, -2, -3, -8, -100) if bounds.min else ())], dtype=dtype)  # fmt: skip


def arguments(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every value paired with every other; without the pairs that eager refuses."""
    found = values(dtype)
    a, b = (t.reshape(-1).contiguous() for t in torch.meshgrid(found, found, indexing="ij"))
    return a, b


def arity(name: str) -> int:
    return SCALAR_OPS[name].arity


@functools.cache
def results(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, list[dict[str, torch.Tensor]]]:
    """Both operands, and by operation what the two programs of one kernel of all operations give."""
    a, b = arguments("", dtype)
    position = Axis("x", len(a))
    place = as_index(position)
    left, right = Load("a", place, dtype), Load("b", place, dtype)
    loops, buffers = [], [buffer("a", a.shape, dtype, "input"), buffer("b", b.shape, dtype, "input")]
    for name in operations(dtype):
        result = torch.bool if name in BOOLEAN_RESULT else dtype
        parts: tuple[Expr, ...] = {1: (left,), 2: (left, right), 3: (left, right, left)}[arity(name)]
        if name in DIVISIONS and not dtype.is_floating_point:
            parts = (replaced(left, torch.iinfo(dtype).min), replaced(right, 0))
        if name == "where":
            parts = (apply("ne", left, Constant(0, dtype), dtype=torch.bool), left, right)
        loops.append(Loop(f"{name}_result", (position,), apply(name, *parts, dtype=result), place))
        buffers.append(buffer(f"{name}_result", a.shape, result))
    names = [loop.buffer for loop in loops]
    built = schedule([group("all", loops, pointwise_plan((position, 64)), names)], buffers, names)
    outputs = run_both(built, [a, b])
    return a, b, [dict(zip(operations(dtype), found, strict=True)) for found in outputs]


def replaced(value: Expr, refused: int) -> Expr:
    """`value`, or 5 where it is a number that stops the processor in a division."""
    is_refused = apply("eq", value, Constant(refused, value.dtype), dtype=torch.bool)
    return apply("where", is_refused, Constant(5, value.dtype), value, dtype=value.dtype)


def expected(name: str, dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if name in DIVISIONS and not dtype.is_floating_point:
        a = torch.where(a == torch.iinfo(dtype).min, torch.full_like(a, 5), a)
        b = torch.where(b == 0, torch.full_like(b, 5), b)
    function = operations(dtype)[name]
    if name == "pow" and not dtype.is_floating_point:
        return function(a, b)
    if dtype in (torch.bfloat16, torch.float16) and name == "floordiv":
        return function(a.float(), b.float()).to(dtype)
    if dtype.is_floating_point and name in ("fmod", "remainder", "erf"):  # eager's CPU kernels lose tiny numbers here
        return (function(a.double(), b.double()) if arity(name) == 2 else function(a.double())).to(dtype)
    return function(a, b) if arity(name) > 1 or name == "where" else function(a)


CASES = [(name, dtype) for dtype in (*FLOATS, *INTEGERS, *BOOLEAN) for name in operations(dtype)]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=[f"{n}-{str(d)[6:]}" for n, d in CASES])
def test_an_operation_gives_eagers_values(name: str, dtype: torch.dtype) -> None:
    a, b, runs = results(dtype)
    wanted = expected(name, dtype, a, b)
    for found in runs:
        assert found[name].dtype == wanted.dtype
        if not dtype.is_floating_point or wanted.dtype == torch.bool:
            same = found[name] == wanted
            assert same.all(), [(x.item(), y.item(), f.item(), w.item()) for x, y, f, w in
                                zip(a, b, found[name], wanted, strict=True) if f != w][:5]  # fmt: skip
            continue
        tight = name in EXACT and (name, dtype) != ("sqrt", torch.float64)
        scale = torch.finfo(dtype).eps
        torch.testing.assert_close(
            found[name], wanted, rtol=0 if tight else 8 * scale, atol=0 if tight else 4 * torch.finfo(dtype).tiny,
            equal_nan=True,
        )  # fmt: skip
        if name in ("neg", "copysign", "abs", "floor", "ceil", "trunc", "round", "mul", "truediv"):
            finite = wanted == wanted
            assert torch.equal(torch.signbit(found[name])[finite], torch.signbit(wanted)[finite])


def test_all_that_lowering_may_put_into_a_loop_has_text() -> None:
    assert TRITON_OPS.keys() == SCALAR_OPS.keys()
    assert TRITON_TYPES.keys() == LOOP_DTYPES | FLOAT8
    for dtype in LOOP_DTYPES:
        named = getattr(triton.language, triton_dtype(dtype).removeprefix("tl."))
        assert named.primitive_bitwidth == (1 if dtype == torch.bool else 8 * dtype.itemsize), dtype


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_constant_keeps_the_sign_of_zero(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        padded = torch.nn.functional.pad(x, (1, 1), value=-0.0)
        return [torch.full_like(x, -0.0), x / -0.0, x.sum() / -0.0, torch.where(x > 1, x, -0.0), padded, x * 0 + -0.0]

    x = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)
    for found, expected in zip(minicompile.compile(function)(x), function(x), strict=True):
        assert torch.equal(found, expected)
        assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("turns", [0.25, 16.0, 15_000.0, 1e9])
def test_sines_are_as_near_to_fp64_as_libdevices(name: str, turns: float) -> None:
    """Within 1.6 ulp, below the largest number that one branch reduces for a whole block, and beyond it."""
    function = getattr(torch, name)
    x = torch.cat([torch.linspace(-turns, turns, 9_973), torch.randn(999) * turns / 4]) * 2 * math.pi
    exact = function(x.double())
    ulp = torch.exp2(torch.floor(torch.log2(exact.abs())) - 23)
    assert ((minicompile.compile(function)(x).double() - exact).abs() <= 1.6 * ulp).all()


def test_the_sine_of_negative_zero_is_one() -> None:
    zeros = torch.tensor([0.0, -0.0, 1.0, math.nan])
    assert torch.equal(torch.signbit(minicompile.compile(torch.sin)(zeros))[:3], torch.tensor([False, True, False]))
