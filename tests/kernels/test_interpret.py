"""Triton kernels on CPU tensors through the interpreter, and Triton as it was afterwards."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from minicompile.kernels.interpret import interpreting, launch


@triton.jit
def double(x, factor: tl.constexpr):
    """A helper that kernels call."""
    return x * factor


@triton.jit
def rowwise_kernel(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """exp(2 x) - max, summed, with the library's own @jit functions and the method form."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    in_range = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * columns + column, mask=in_range, other=float("-inf")).to(tl.float32)
    values = tl.exp(double(x, 2.0) - tl.max(double(x, 2.0), 1, keep_dims=True))
    total = tl.zeros([ROWS, 1], tl.float32) + values.sum(1, keep_dims=True) + tl.cdiv(columns, columns) - 1
    tl.store(out_ptr + row * columns + column, (values / total).to(out_ptr.dtype.element_ty), mask=in_range)


@triton.jit
def functions_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    """The functions that generated code uses most."""
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, tl.erf(x) + libdevice.tanh(x) + libdevice.pow(y, x) + libdevice.log1p(y) + tl.sigmoid(x))


@triton.jit
def number_kernel(out_ptr, number):
    """A whole number as it was given."""
    tl.store(out_ptr, tl.cast(number, tl.int64))


@triton.jit
def power_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """A scalar first argument meets a block."""
    i = tl.arange(0, N)
    tl.store(out_ptr + i, libdevice.pow(tl.full([], 10.0, tl.float32), tl.load(x_ptr + i)))


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """One whole product."""
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    a, b = tl.load(a_ptr + m * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + n)
    tl.store(c_ptr + m * N + n, tl.dot(a, b).to(c_ptr.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_softmax_with_tiles_of_any_size(dtype: torch.dtype) -> None:
    x = torch.randn(37, 100).to(dtype)
    out = torch.empty_like(x)
    launch(rowwise_kernel, (1,), x, out, 37, 100, ROWS=37, COLUMNS=100, num_warps=4)
    torch.testing.assert_close(out, torch.softmax(2 * x.float(), -1).to(dtype))


def test_library_functions() -> None:
    x, y = torch.randn(50), torch.rand(50) + 0.1
    out = torch.empty(50)
    launch(functions_kernel, (1,), x, y, out, N=50)
    torch.testing.assert_close(out, torch.erf(x) + torch.tanh(x) + y**x + torch.log1p(y) + torch.sigmoid(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_products(dtype: torch.dtype) -> None:
    a, b = (torch.randint(-100, 100, shape).to(dtype) for shape in ((20, 30), (30, 10)))
    out = torch.empty(20, 10, dtype=torch.int32 if dtype == torch.int8 else torch.float32)
    launch(product_kernel, (1,), a, b, out, M=20, N=10, K=30)
    assert torch.equal(out.double(), a.double() @ b.double())


def test_bfloat16_rounds_to_nearest_even() -> None:
    x = torch.randn(1000, 1)
    out = torch.empty(1000, 1, dtype=torch.bfloat16)
    launch(product_kernel, (1,), x, torch.ones(1, 1), out, M=1000, N=1, K=1)
    assert torch.equal(out, x.bfloat16())


def test_triton_is_as_it_was_afterwards() -> None:
    before = {name: getattr(tl, name) for name in dir(tl)} | {
        f"core.{name}": getattr(tl.core, name) for name in dir(tl.core)
    }
    with interpreting():
        assert tl.load is not before["load"]
    after = {name: getattr(tl, name) for name in dir(tl)} | {
        f"core.{name}": getattr(tl.core, name) for name in dir(tl.core)
    }
    assert before == after
    with pytest.raises(RuntimeError):
        double(1.0, 2.0)


def test_an_error_in_a_kernel_is_raised_and_undone() -> None:
    with pytest.raises(Exception, match="unsupported operand"):
        launch(product_kernel, (1,), torch.ones(4), torch.ones(4), torch.ones(2), M=(1, 2), N=2, K=3)
    with pytest.raises(RuntimeError):
        double(1.0, 2.0)


def test_the_grid_may_be_a_function() -> None:
    x, out = torch.randn(4, 8), torch.empty(4, 8)
    launch(rowwise_kernel, lambda meta: (triton.cdiv(meta["rows"], meta["ROWS"]),), x, out, 4, 8, ROWS=4, COLUMNS=8)
    torch.testing.assert_close(out, torch.softmax(2 * x, -1))


def test_arguments_of_libdevice_functions_broadcast() -> None:
    x, out = torch.tensor([0.0, -3.0, 2.0]), torch.empty(3)
    launch(power_kernel, (1,), x, out, N=3)
    torch.testing.assert_close(out, torch.tensor([1.0, 1e-3, 100.0]))


@pytest.mark.parametrize("number", [-(2**40), -1, 0, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1])
def test_numbers_of_any_width(number: int) -> None:
    out = torch.zeros(1, dtype=torch.int64)
    launch(number_kernel, (1,), out, number)
    assert out.item() == number
