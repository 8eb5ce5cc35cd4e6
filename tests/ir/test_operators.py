"""The reference implementations of the compiler's own operators."""

from __future__ import annotations

import torch

from minicompile.ir import operators  # noqa: F401  (defines the operators)


def test_attention_on_large_scores_is_as_near_to_fp64_as_eager() -> None:
    """exp(score - log-sum-exp) rounds every weight of a row by the same ulp of 100; a softmax does not."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(2, 2, 64, 32, generator=generator) for _ in range(4))
    scale, rest = 100.0 / (4.0 * 32**0.5), (None, None, 0.0, False)
    out, logsumexp = torch.ops.minicompile.attention(q, k, v, *rest, scale, 0)
    gradients = torch.ops.minicompile.attention_backward(
        grad, q, k, v, out, logsumexp, *rest, scale, 0, False
    )[:3]  # fmt: skip
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        written = torch.softmax(leaves[0] @ leaves[1].transpose(-1, -2) * scale, -1) @ leaves[2]
        results.append((written.detach(), *torch.autograd.grad(written, leaves, grad.to(dtype))))
    for got, eager, want in zip((out, *gradients), *results, strict=True):
        error, allowed = ((x.double() - want).abs().max() for x in (got, eager))
        assert error <= 2.0 * allowed + 4 * 2.0**-23 * want.abs().max()
