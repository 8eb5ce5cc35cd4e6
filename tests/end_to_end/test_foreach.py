"""Operators over lists of tensors compute what they compute in eager, also in place, and become loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import minicompile

Lists = list[list[torch.Tensor]]


def lists(dtype: torch.dtype = torch.float32) -> Lists:
    generator = torch.Generator().manual_seed(0)
    return [[torch.rand(size, generator=generator).add(0.5).to(dtype) for size in ((3, 5), (7,), (), (2, 0))]
            for _ in range(3)]  # fmt: skip


FUNCTIONS: dict[str, Callable[[Lists], Any]] = {
    "add": lambda x: torch._foreach_add(x[0], x[1], alpha=2),
    "add_scalar": lambda x: torch._foreach_add(x[0], 3),
    "sub_scalars": lambda x: torch._foreach_sub(x[0], [1.0, 2.0, 3.0, 4.0]),
    "mul_tensor": lambda x: torch._foreach_mul(x[0], x[1][2]),
    "div": lambda x: torch._foreach_div(x[0], x[1]),
    "addcmul": lambda x: torch._foreach_addcmul(x[0], x[1], x[2], 0.5),
    "addcdiv_scalars": lambda x: torch._foreach_addcdiv(x[0], x[1], x[2], [1.0, 2.0, 3.0, 4.0]),
    "lerp": lambda x: torch._foreach_lerp(x[0], x[1], 0.25),
    "lerp_lists": lambda x: torch._foreach_lerp(x[0], x[1], x[2]),
    "pow": lambda x: torch._foreach_pow(x[0], 2),
    "power_of_a_number": lambda x: torch._foreach_pow(2.0, x[0]),
    "maximum_scalar": lambda x: torch._foreach_maximum(x[0], 0.9),
    "minimum": lambda x: torch._foreach_minimum(x[0], x[1]),
    "clamp_max": lambda x: torch._foreach_clamp_max(x[0], 0.8),
    "sqrt": lambda x: torch._foreach_sqrt(x[0]),
    "sign": lambda x: torch._foreach_sign(x[0]),
    "norm": lambda x: torch._foreach_norm(x[0]),
    "norm_1": lambda x: torch._foreach_norm(x[0], 1),
    "norm_in_fp64": lambda x: torch._foreach_norm(x[0], 1, dtype=torch.float64),
    "in_place": lambda x: (torch._foreach_mul_(x[0], 0.9), torch._foreach_add_(x[0], x[1], alpha=0.1), x[0])[2],
    "zero": lambda x: (torch._foreach_zero_(x[0]), x[0])[1],
    "copy": lambda x: (torch._foreach_copy_(x[0], x[1]), x[0])[1],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_list_operator_is_compiled(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    compiled = minicompile.compile(function, fullgraph=True, options={"suppress_errors": False})
    expected_inputs, inputs = lists(dtype), lists(dtype)
    expected, found = function(expected_inputs), compiled(inputs)
    for want, have in zip([*expected, *expected_inputs[0]], [*found, *inputs[0]], strict=True):
        assert have.dtype == want.dtype and have.shape == want.shape
        torch.testing.assert_close(have, want)
    assert compiled.stats.extern_calls <= 1  # the tensor without elements


SHARED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "twice": lambda x, y: torch._foreach_add_([x, x], 1),
    "a part": lambda x, y: torch._foreach_mul_([x, x[:1]], [2.0, 3.0]),
    "each other": lambda x, y: torch._foreach_add_([x, y], [y, x]),
    "parts of one": lambda x, y: torch._foreach_sub_([x[:1], x[1:2]], [x[1:2], x[:1]], alpha=3),
    "itself": lambda x, y: torch._foreach_mul_([x, y], [x, y]),
    "one for all": lambda x, y: torch._foreach_mul_([x, one := y.sum(), y], one),
    "one for all, at the end": lambda x, y: torch._foreach_add_([x, y, one := y.sum()], one, alpha=2),
    "numbers read first": lambda x, y: torch._foreach_addcmul_([x[:1], x[1:], y], [y[:1], y[1:], x], [y[:1], y[1:], x], x),
    "weighed": lambda x, y: torch._foreach_lerp_([x, x], [y, y], 0.5),
}


@pytest.mark.parametrize("name", SHARED)
def test_tensors_that_are_written_and_read_again_in_a_list(name: str) -> None:
    shown = []
    left_to_eager = name == "numbers read first"  # with torch 2.15: docs/limits.md
    for run in (SHARED[name], minicompile.compile(SHARED[name], options={"suppress_errors": left_to_eager})):
        x, y = torch.arange(3.0) + 1, torch.arange(3.0) + 5
        run(x, y)
        shown.append((x, y))
    torch.testing.assert_close(shown[1], shown[0])


def test_what_a_list_operator_changes_is_not_used_by_an_older_backward() -> None:
    weight, average = torch.ones(3, requires_grad=True), torch.ones(3)
    product = weight * average
    minicompile.compile(lambda tensors: torch._foreach_mul_(tensors, 0.9))([average, torch.ones(2)])
    assert average._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
