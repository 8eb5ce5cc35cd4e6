"""The user's own Triton kernels inside a captured function, run by Triton's interpreter: one graph, values and writes of eager."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import nn
from triton.runtime.interpreter import InterpretedFunction

import minicompile
from minicompile.capture.kernel_launch import written_names
from tests.capture.support import capture


@InterpretedFunction
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    total = tl.load(x_ptr + places, mask=mask) + tl.load(y_ptr + places, mask=mask)
    tl.store(out_ptr + places, total, mask=mask)


@InterpretedFunction
def scale_kernel(x_ptr, n, factor, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = x_ptr + places
    tl.store(here, tl.load(here, mask=places < n) * factor, mask=places < n)


def timed_as_equal(function, quantiles):
    function()
    return [1.0, 1.0, 1.0]


tuned_kernel = triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], ["n"], do_bench=timed_as_equal)(
    add_kernel)
sized_kernel = triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["n"])})(add_kernel)


def into_a_new_tensor(x, y):
    doubled = x * 2
    out = torch.empty_like(doubled)
    n = doubled.numel()
    add_kernel[(triton.cdiv(n, 64),)](doubled, y, out, n, BLOCK=64)
    return out.relu() + 1


def into_an_argument(x, y):
    n = x.numel()
    scale_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n, 3.0, BLOCK=32)
    scale_kernel[(1,)](y, n // 2, factor=0.5, BLOCK=256)
    return x + y


def with_an_autotuner(x, y):
    out = x.new_zeros(x.shape)
    n = x.numel()
    tuned_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
    return out * 2


def with_heuristics(x, y):
    out = torch.empty_like(x)
    sized_kernel[(1,)](x, y, out, x.shape[0])
    return out * 2


def onto_itself(x, y):
    add_kernel[(2,)](x, x, x, x.numel(), BLOCK=128)
    return x - y


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        out = x.clone()
        scale_kernel[(triton.cdiv(x.numel(), 64),)](out, x.numel(), factor, BLOCK=64)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = gradient.clone()
        scale_kernel[(triton.cdiv(out.numel(), 64),)](out, out.numel(), ctx.factor, BLOCK=64)
        return out, None


def as_a_custom_function(x, y):
    return Scaled.apply(x.sin(), 3.0) * y


WAYS = [into_a_new_tensor, into_an_argument, with_an_autotuner, with_heuristics, onto_itself, as_a_custom_function]


@pytest.mark.parametrize("compile", [capture, minicompile.compile], ids=["capture", "full"])
@pytest.mark.parametrize("function", WAYS, ids=lambda function: function.__name__)
def test_a_launch_is_part_of_the_graph(function, compile):
    compiled = compile(function)
    for size in (100, 100, 150, 200):
        given = [torch.randn(size, requires_grad=function is as_a_custom_function) for _ in range(2)]
        twins = [item.detach().clone().requires_grad_(item.requires_grad) for item in given]
        expected, found = function(*given), compiled(*twins)
        torch.testing.assert_close(found, expected)
        if expected.requires_grad:
            expected.sum().backward()
            found.sum().backward()
            torch.testing.assert_close(twins[0].grad, given[0].grad)
        for one, other in zip(given, twins, strict=True):
            assert torch.equal(one, other)
    assert not (compiled.records if compile is capture else compiled).graph_breaks


@pytest.mark.parametrize("function", WAYS[:-1], ids=lambda function: function.__name__)
def test_a_launch_is_part_of_a_graph_that_runs_under_inference_mode(function):
    compiled = capture(function)
    with torch.inference_mode():
        for size in (100, 150):
            given = [torch.randn(size) for _ in range(2)]
            twins = [item.clone() for item in given]
            torch.testing.assert_close(compiled(*twins), function(*given))
            for one, other in zip(given, twins, strict=True):
                assert torch.equal(one, other)
    assert not compiled.records.graph_breaks and not compiled.records.fallbacks


def a_part_of_a_tensor(x, y):
    scale_kernel[(1,)](x[4:], 8, 2.0, BLOCK=16)
    return x + 1


def a_parameter(x, y, weight=nn.Parameter(torch.ones(32))):  # a leaf that autograd knows
    with torch.no_grad():
        scale_kernel[(1,)](weight, 32, 2.0, BLOCK=32)
    return x * weight.detach()


def what_autograd_has_saved(x, y):
    product = y.requires_grad_() * x
    scale_kernel[(1,)](x, 32, 2.0, BLOCK=32)
    return product + 1


def a_result_that_is_used(x, y):
    return scale_kernel[(1,)](x, 32, 2.0, BLOCK=32), x + 1


@pytest.mark.parametrize("function", [a_part_of_a_tensor, a_parameter, what_autograd_has_saved, a_result_that_is_used],
                         ids=lambda function: function.__name__)
def test_what_a_copy_cannot_stand_for_is_a_break(function):
    compiled = capture(function)
    x, y = torch.randn(32), torch.randn(32)
    for _ in range(2):
        assert torch.equal(torch.as_tensor(compiled(x.clone(), y.clone())[-1]), function(x.clone(), y.clone())[-1]) or (
            function is a_parameter)
    assert compiled.records.graph_breaks


def test_an_input_that_is_a_part_of_another_tensor_is_told_apart():
    compiled, whole = capture(into_an_argument), torch.ones(64)
    expected = [into_an_argument(torch.ones(32), torch.ones(32)), into_an_argument(torch.ones(32), torch.ones(32))]
    assert torch.equal(compiled(torch.ones(32), torch.ones(32)), expected[0])
    assert torch.equal(compiled(whole[:32], torch.ones(32)), expected[1])
    assert whole.tolist() == [3.0] * 32 + [1.0] * 32


def test_written_are_the_parameters_that_addresses_come_from():
    def kernel(a_ptr, b_ptr, c_ptr, d_ptr, rows_ptr, n, BLOCK: tl.constexpr):
        places = tl.arange(0, BLOCK)
        row = tl.load(rows_ptr)
        for start in range(0, n, BLOCK):
            moved = b_ptr + row * n + start
            tl.atomic_add(moved + places, tl.load(a_ptr + places))
        block = tl.make_block_ptr(c_ptr, (n,), (1,), (0,), (BLOCK,), (0,))
        tl.store(block, tl.load(d_ptr + places).to(tl.float32))

    def calling(a_ptr, b_ptr):
        elsewhere(a_ptr)  # noqa: F821 - another kernel, which nobody has read
        tl.load(b_ptr)

    assert written_names(kernel) >= {"b_ptr", "c_ptr", "rows_ptr"}
    assert written_names(kernel).isdisjoint({"a_ptr", "d_ptr"})
    assert written_names(calling) == {"a_ptr"}
    assert written_names(tuned_kernel) >= {"out_ptr"} and "x_ptr" not in written_names(add_kernel)
