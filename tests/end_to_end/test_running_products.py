"""`cumprod` and its gradient, which PyTorch computes by looking for zeros."""

from __future__ import annotations

import pytest
import torch

import minicompile
from tests.differential import check


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("shape", "dim", "zeros"), [((5, 40), 1, 0), ((5, 40), 1, 1), ((5, 40), 0, 30), ((3, 4, 6), -2, 20), ((7,), 0, 7), ((0, 3), 1, 0)])
def test_the_gradient_of_running_products_has_as_many_steps_as_they(dtype, shape, dim, zeros) -> None:
    """Also where some are zero; PyTorch's own looks at the values, or takes a step for each element."""
    torch.manual_seed(zeros)
    x = torch.randn(shape).to(dtype)
    if zeros:
        x.view(-1)[torch.randperm(x.numel())[:zeros]] = 0
    check(lambda x: torch.cumprod(x, dim) * 2, x.requires_grad_())
    compiled = minicompile.compile(lambda x: x.cumprod(dim, dtype=torch.float64).sin())
    compiled(x).sum().backward()
    assert compiled.stats.kernels <= 8 and compiled.stats.fallbacks == 0
