"""Tensors from outside whose `.data` is set."""

import pytest
import torch

from tests.capture.support import capture


def test_an_average_of_parameters_is_one_graph() -> None:
    average, learned = (torch.nn.Linear(3, 3) for _ in range(2))
    average.requires_grad_(False)

    def update(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for own, other in zip(average.parameters(), learned.parameters(), strict=True):
                own.data = own.data * 0.5 + other.data * 0.5
            return average(x)

    captured = capture(update)
    for _ in range(3):
        expected = [0.5 * (own + other) for own, other in zip(average.parameters(), learned.parameters(), strict=True)]
        before = [parameter.data for parameter in average.parameters()]
        kept = [value.clone() for value in before]
        x = torch.randn(2, 3)
        assert torch.allclose(captured(x), torch.nn.functional.linear(x, *expected), atol=1e-6)
        assert all(map(torch.equal, before, kept))  # whoever holds the old memory
    assert len(captured.records.graphs) == 1 and not captured.records.graph_breaks


def test_a_later_change_of_the_tensor_is_seen_by_autograd() -> None:
    weight, x = torch.ones(3), torch.randn(3, requires_grad=True)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        weight.data = weight * 2
        return x * weight

    result = capture(scaled)(x)
    weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
