"""Results that a function makes leaves: part of a graph where nothing outside shows it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minicompile import compile as minicompile_compile


def ahead_of_layers(x, weight):
    hidden = x[:, None]
    hidden.requires_grad = True
    return torch.tanh(hidden * weight).sum(1) * weight


def by_the_method(x, weight):
    bias = torch.zeros(3).requires_grad_()
    return (x + bias) @ weight


def beside_a_checkpoint(x, weight):
    hidden = x * 2
    hidden.requires_grad = True
    return torch.utils.checkpoint.checkpoint(lambda h: (h * weight).sin(), hidden, use_reentrant=False)


@pytest.mark.parametrize("function", [ahead_of_layers, by_the_method, beside_a_checkpoint])
def test_a_leaf_inside_stays_in_the_graph(function: Any) -> None:
    compiled = minicompile_compile(function, fullgraph=True)
    x, weight = torch.randn(3, 3), torch.randn(3, requires_grad=True)
    reference = weight.detach().clone().requires_grad_()
    compiled(x, weight).sum().backward()
    function(x, reference).sum().backward()
    torch.testing.assert_close(weight.grad, reference.grad)
    assert not x.requires_grad


def returned(x, weight):
    hidden = x * 2
    hidden.requires_grad = True
    return hidden, hidden * weight


def the_only_reason(x, weight):
    hidden = x * 2
    hidden.requires_grad_()
    return hidden.sin(), hidden * weight


def detached(x, weight):
    hidden = weight.detach()
    hidden.requires_grad = True
    return hidden, x * weight


def written_behind(x, weight):
    hidden = x[:, None]
    hidden.requires_grad = True
    x.add_(1)
    return hidden[:, 0] * weight


def of_an_argument(x, weight):
    x.requires_grad = True
    return x * weight


def not_any_more(x, weight):
    hidden = x * 2
    hidden.requires_grad = True
    hidden.requires_grad = False
    return hidden * 3


@pytest.mark.parametrize("function", [returned, the_only_reason, detached, written_behind, of_an_argument, not_any_more])
def test_a_leaf_that_shows_outside_is_eager_s(function: Any) -> None:
    compiled = minicompile_compile(function)
    weight = torch.randn(3, requires_grad=True)
    mine, reference = (torch.linspace(0, 1, 9).reshape(3, 3) for _ in range(2))
    results, expected = compiled(mine, weight), function(reference, weight)
    assert compiled.stats.graph_breaks or compiled.stats.fallbacks
    torch.testing.assert_close(results, expected)
    assert mine.requires_grad == reference.requires_grad
    assert torch.equal(mine, reference)
    for result, wanted in zip(*(it if isinstance(it, tuple) else (it,) for it in (results, expected)), strict=True):
        assert (result.requires_grad, result.is_leaf) == (wanted.requires_grad, wanted.is_leaf)


def test_a_result_that_requires_a_gradient_refuses_to_be_set() -> None:
    def function(x, weight):
        hidden = weight * 2
        hidden.requires_grad = True
        return hidden * x

    with pytest.raises(RuntimeError, match="requires_grad flags of leaf"):
        minicompile_compile(function)(torch.ones(3), torch.ones(3, requires_grad=True))
