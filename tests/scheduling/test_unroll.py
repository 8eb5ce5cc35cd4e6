"""Folds of a few elements are written out on a GPU, but for those whose rows another loop walks over."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minicompile
from minicompile.api import compiled_function
from minicompile.ir.schedule import KernelGroup
from tests.differential import check, leaf
from tests.planned_for_gpu import planned_for_gpu, thresholds_lowered

SPECIAL = torch.tensor([[0.0, -0.0, 1.0], [-0.0, -0.0, -0.0], [math.nan, 1.0, -1.0], [math.inf, -math.inf, 0.3]])
WHOLE = torch.arange(24).reshape(4, 2, 3)
WRITTEN_OUT: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "sums and means": (lambda x: (x.sum(1) * 2, x.mean(0)), (leaf(4, 3, 5),)),
    "extremes": (lambda x: x.amax(-1) - x.amin(-1), (leaf(6, 3),)),
    "norms": (lambda x: torch.linalg.vector_norm(x, dim=-1).exp(), (leaf(6, 3),)),
    "halves": (lambda x: x.sum(0), (leaf(8, 6, dtype=torch.bfloat16),)),
    "spread strides": (lambda x: x.amax(1) - x.sum(1) / 3, (leaf(2, 3, 4, 1).detach().expand(2, 3, 4, 5),)),
    "two axes": (lambda x: (x * x).sum((1, 3)), (leaf(3, 2, 5, 2),)),
    "positions": (lambda x: (x.max(-1).values * 2, x.argmin(0), torch.cat([x.sum(-1), x.argmax(-1)])), (leaf(6, 3),)),
    "positions in two axes": (lambda x: x.flatten(1).argmax(1), (torch.randint(0, 3, (5, 2, 2)),)),
    "short products": (lambda a, b: torch.einsum("nij,kj->nki", a, b), (leaf(5, 4, 3), leaf(2, 3))),
}


def folds(compiled: Any) -> int:
    """How many loops of the forward fold."""
    (graph,) = compiled_function(compiled).compiler.graphs
    steps = graph.parts["forward"].schedule.steps
    return sum(loop.fold is not None for step in steps if isinstance(step, KernelGroup) for loop in step.loops)


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_values_and_gradients_of_folds_that_are_written_out(name: str) -> None:
    function, inputs = WRITTEN_OUT[name]
    with planned_for_gpu(), thresholds_lowered():
        check(function, *inputs)
        compiled = minicompile.compile(function)
        with torch.no_grad():
            compiled(*inputs)
    assert folds(compiled) == 0


def test_special_values_fold_as_in_eager() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(1), x.amax(1), x.amin(1), x.prod(1), n.sum(1), n.prod(2), n.amin(1), (n > 20).any(1), (n > 3).sum(2), *(
            value for x in (x, x.flip(0, 1), n, n % 4, x.bfloat16()) for value in (x.argmax(1), x.argmin(-1), *x.max(1), *x.min(0)))

    with planned_for_gpu(), thresholds_lowered():
        found = minicompile.compile(function)(SPECIAL, WHOLE)
    for one, other in zip(found, function(SPECIAL, WHOLE), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0, equal_nan=True)
        if one.is_floating_point():
            assert torch.equal(one.signbit() & (one == 0), other.signbit() & (other == 0))


@pytest.mark.parametrize("function", [
    lambda x: x / x.norm(dim=-1, keepdim=True), lambda x: x.softmax(-1), lambda x: (x.exp(), x.sum(-1)),
    lambda x: F.layer_norm(x, (3,)), lambda x: (x.exp(), x.argmax(-1)),
])  # fmt: skip
def test_folds_that_share_a_walk_over_their_rows_stay(function: Any) -> None:
    with planned_for_gpu(), thresholds_lowered(), torch.no_grad():
        compiled = minicompile.compile(function)
        compiled(torch.randn(6, 3))
    assert folds(compiled) > 0
