"""`cumprod` with a gradient that does not look at values.

PyTorch's own asks whether there are zeros, and where nobody can say, as in a traced graph, it multiplies again from each
element on. Behind the first zero every product is zero, so only that element and those before it have a gradient: before it
the running sum, from behind, of gradient times product over the element; at it the same with the zero left out. This module
must not trace.
"""

from typing import Any

import torch
from torch import Tensor


class RunningProduct(torch.autograd.Function):
    """The running products of real numbers along a dim."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, dim: int) -> Tensor:
        """What `cumprod` gives."""
        return torch.cumprod(value, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep what the gradient reads."""
        value, ctx.dim = inputs
        ctx.save_for_backward(value, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The gradient of the value."""
        value, products = ctx.saved_tensors
        return running_product_gradient(grad, value, products, ctx.dim), None


def running_product_gradient(grad: Tensor, value: Tensor, products: Tensor, dim: int) -> Tensor:
    """The gradient of `value` whose running products along `dim` are `products`, zeros included."""
    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    factors, is_zero = value.to(wide), value == 0
    zeros = is_zero.cumsum(dim, dtype=torch.int32)
    is_first = is_zero & (zeros == 1)
    without_first = torch.cumprod(torch.where(is_first, 1.0, factors), dim)
    before, at = (sums_from_behind(grad.to(wide) * each, dim) for each in (products.to(wide), without_first))
    return torch.where(zeros == 0, before / factors, torch.where(is_first, at, 0.0)).to(value.dtype)


def sums_from_behind(value: Tensor, dim: int) -> Tensor:
    """At each element the sum of it and all behind it."""
    return value.flip(dim).cumsum(dim).flip(dim)
