"""Attention written by hand is found in what capture hands over, and the result stays the same."""

from __future__ import annotations

import math

import torch

import minicompile


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.where(mask, q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), float("-inf"))
    return torch.softmax(scores.to(v.dtype), -1).to(v.dtype) @ v


def test_a_cast_to_the_same_dtype_does_not_hide_attention() -> None:
    q, k, v = (torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    compiled = minicompile.compile(attention, options={"suppress_errors": False})
    output, expected = compiled(q, k, v, mask), attention(q, k, v, mask)
    torch.testing.assert_close(output, expected)
    weight = torch.randn_like(output)
    for ours, eager in zip(
        torch.autograd.grad(output, (q, k, v), weight), torch.autograd.grad(expected, (q, k, v), weight), strict=True
    ):
        torch.testing.assert_close(ours, eager)
    (record,) = compiled.compiler.graphs[0].partitioned.patterns
    assert record.accepted


def test_the_result_of_attention_may_be_written_in_place() -> None:
    def added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        result = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        result += 2 * v
        return result

    q, k, v = (torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    compiled = minicompile.compile(added, options={"suppress_errors": False})
    ours, eager = (torch.autograd.grad(run(q, k, v).square().sum(), (q, k, v)) for run in (compiled, added))
    for one, other in zip(ours, eager, strict=True):
        torch.testing.assert_close(one, other)
    (record,) = compiled.compiler.graphs[0].partitioned.patterns
    assert record.accepted
