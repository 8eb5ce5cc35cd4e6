"""Indices that are 0-d tensors: part of a graph where a copy of what they pick cannot be told from eager's view."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minicompile import compile as minicompile_compile
from tests.capture.support import capture


def path_score(transitions, emissions, tags):
    score = emissions[0, tags[0]]
    for t in range(1, tags.shape[0]):
        score = score + transitions[tags[t - 1], tags[t]] + emissions[t, tags[t]]
    return score


def forward_algorithm(transitions, emissions, tags):
    alpha = emissions[:, tags[0]]
    for tag in tags[1:]:
        alpha = (alpha @ transitions.exp()) * emissions[..., tag]
    return alpha.sum()


def beside_other_indices(transitions, emissions, tags):
    return emissions[tags[0], :, None] + emissions[1:, tags[1] - 3].sum() + emissions[tags[0], tags] + emissions[None, tags[2], 1]


@pytest.mark.parametrize("function", [path_score, forward_algorithm, beside_other_indices])
def test_what_is_picked_stays_in_one_graph(function: Any) -> None:
    compiled = minicompile_compile(function, fullgraph=True)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        tags = torch.randint(3, (4,), generator=generator)
        inputs = [torch.randn(size, generator=generator, dtype=torch.float64) for size in ((3, 3), (4, 4))]
        if function is forward_algorithm:
            inputs[1] = inputs[1][:3, :3].contiguous()
        mine, reference = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
        result, expected = compiled(*mine, tags), function(*reference, tags)
        torch.testing.assert_close(result, expected)
        result.sum().backward()
        expected.sum().backward()
        for left, right in zip(mine, reference, strict=True):
            torch.testing.assert_close(left.grad, right.grad)


def written_behind(x, i):
    row = x[i]
    x.add_(1)
    return row * 2


def written_itself(x, i):
    x[i].mul_(2)
    return x + 1


def written_through_data(x, i):
    alias, row = x.data, x[i]
    alias.add_(1)
    return row * 2


def returned(x, i):
    return x[:, i]




@pytest.mark.parametrize("function", [written_behind, written_itself, written_through_data, returned])
def test_a_view_that_can_be_told_from_a_copy_is_a_break(function: Any) -> None:
    mine, reference = (torch.arange(9.0).view(3, 3) for _ in range(2))
    compiled = capture(function)
    for place in (1, 2, 0):
        i = torch.tensor(place)
        result, expected = compiled(mine, i), function(reference, i)
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()
        assert torch.equal(mine, reference)
        assert result._is_view() == expected._is_view()
    assert compiled.records.graph_breaks


def test_under_inference_mode_it_is_a_break() -> None:
    compiled = capture(path_score)
    transitions, emissions = torch.randn(3, 3), torch.randn(4, 4)
    with torch.inference_mode():
        for tags in (torch.tensor([0, 2, 1, 1]), torch.tensor([2, 2, 0, 1])):
            assert torch.equal(compiled(transitions, emissions, tags), path_score(transitions, emissions, tags))
    assert compiled.records.graph_breaks and not compiled.records.fallbacks


def test_an_index_beyond_the_end_raises_what_eager_raises() -> None:
    compiled = minicompile_compile(lambda x, i: x[i] + 1)
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        compiled(torch.zeros(3, 2), torch.tensor(3))
