"""A compiled graph casts where it did when it was captured, whatever autocast is on when its kernels are called."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import minicompile


def without_autocast_inside(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.autocast("cpu", enabled=False):
        attended = F.scaled_dot_product_attention(x[None], w[None], x[None])
        return x @ w, attended, F.conv2d(x[None, None], w[None, None, :3, :3])


def test_autocast_switched_off_inside_stays_off() -> None:
    torch.manual_seed(0)
    x, w = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    compiled = minicompile.compile(without_autocast_inside, fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = without_autocast_inside(x, w), compiled(x, w)
    weights = [torch.randn_like(value) for value in expected]
    gradients = [torch.autograd.grad(values, (x, w), weights) for values in (expected, got)]
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradients[1], gradients[0])
