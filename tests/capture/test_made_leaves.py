"""Setting `requires_grad`: part of a graph where nothing outside shows it, a side effect for leaves that it does not read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minicompile import compile as minicompile_compile
from tests.capture.support import capture, kinds


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


def toggled(net, flag):
    for parameter in net.parameters():
        parameter.requires_grad = flag


def only_biases(net, flag):
    for name, parameter in net.named_parameters():
        parameter.requires_grad_("bias" in name and flag)


def by_the_module(net, flag):
    net.requires_grad_(flag)


@pytest.mark.parametrize("switch", [toggled, only_biases, by_the_module])
def test_a_leaf_from_outside_that_no_operation_reads_is_set_behind_the_graph(switch: Any) -> None:
    def function(net, x, flag):
        switch(net, flag)
        seen = [parameter.requires_grad for parameter in net.parameters()]
        return x * sum(seen) + 1, seen

    mine, reference = (torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)) for _ in range(2))
    compiled = capture(function, fullgraph=True)
    for flag in (False, True, True, False):
        result, expected = compiled(mine, torch.ones(3), flag), function(reference, torch.ones(3), flag)
        assert result[1] == expected[1] == [parameter.requires_grad for parameter in mine.parameters()]
        torch.testing.assert_close(result[0], expected[0])


def read_ahead(leaf, x):
    result = leaf * x
    leaf.requires_grad = not leaf.requires_grad
    return result


def read_behind(leaf, x):
    leaf.requires_grad = not leaf.requires_grad
    return leaf * x


@pytest.mark.parametrize("function", [read_ahead, read_behind])
def test_a_leaf_that_an_operation_reads_is_set_between_two_graphs(function: Any) -> None:
    compiled = capture(function)
    mine, reference = torch.ones(3), torch.ones(3)
    for _ in range(3):
        result, expected = compiled(mine, torch.full((3,), 2.0)), function(reference, torch.full((3,), 2.0))
        assert (mine.requires_grad, result.requires_grad) == (reference.requires_grad, expected.requires_grad)
        torch.testing.assert_close(result, expected)
    assert set(kinds(compiled)) <= {"autograd call", "tensor attribute"}


def test_views_of_a_leaf_that_is_set_are_set_with_it() -> None:
    def function(leaf, other, x):
        leaf.requires_grad = False
        return other * x

    compiled = capture(function)
    leaf = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        view = leaf.view(3)
    for other in (torch.ones(3, requires_grad=True), view):
        leaf.requires_grad = True
        assert compiled(leaf, other, torch.ones(3)).requires_grad == (other is not view)
    leaf.requires_grad = True
    assert not capture(function)(leaf, view, torch.ones(3)).requires_grad


def test_the_text_of_a_leaf_shows_what_it_is_there() -> None:
    def function(leaf, x):
        before = f"{leaf}"
        leaf.requires_grad = False
        return before, f"{leaf}", x + 1

    leaf = torch.ones(2, requires_grad=True)
    texts = capture(function)(leaf, torch.ones(2))[:2]
    assert texts == ("tensor([1., 1.], requires_grad=True)", "tensor([1., 1.])")


def test_a_view_and_whole_numbers_refuse_to_be_set_as_in_eager() -> None:
    def function(leaf):
        leaf.requires_grad = True
        return leaf.requires_grad

    with pytest.raises(RuntimeError, match="floating point"):
        capture(function)(torch.ones(2, dtype=torch.int64))
    with torch.no_grad():
        view = torch.ones(2, requires_grad=True)[:1]
    assert capture(function)(view)
