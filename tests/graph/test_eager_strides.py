"""Results, and what is written in place, have eager's strides; views of inputs have eager's gradients at any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import minicompile
from tests.differential import check

LAST = torch.channels_last


def images() -> torch.Tensor:
    return torch.randn(2, 4, 3, 7).contiguous(memory_format=LAST)


def reversed_in_memory() -> torch.Tensor:
    return torch.randn(5, 6, 3).permute(2, 1, 0)


def strided() -> torch.Tensor:
    return torch.randn(4, 6)[:, ::2]


def written_view(x: torch.Tensor) -> Any:
    y = (x * 1).narrow(3, 0, 1)
    y.zero_()
    return y, y * 2


def written_input(x: torch.Tensor) -> Any:
    x.mul_(2)
    return x + 1, x.sum()


PROGRAMS: list[tuple[Callable[..., Any], Callable[[], torch.Tensor]]] = [
    (lambda x: torch.softmax(x, -1), reversed_in_memory),
    (lambda x: torch.log_softmax(x, 0), reversed_in_memory),
    (lambda x: torch.logical_and(torch.tensor(1.0), x), images),
    (lambda x: torch.copysign(x, torch.tensor(-1.0)), images),
    (lambda x: x // torch.tensor(2.0), reversed_in_memory),
    (lambda x: torch.nn.functional.batch_norm(x, None, None, training=True), reversed_in_memory),
    (lambda x: torch.nn.functional.batch_norm(x, None, None, training=True), images),
    (written_view, images),
    (written_input, strided),
    (written_input, lambda: torch.randn(6, 4).t()),
]


@pytest.mark.parametrize(("function", "made"), PROGRAMS)
def test_strides_are_eagers(function: Callable[..., Any], made: Callable[[], torch.Tensor]) -> None:
    torch.manual_seed(0)
    check(function, made(), calls=1)


def test_a_view_of_an_input_whose_elements_share_memory_has_eagers_gradient_at_every_size() -> None:
    compiled = minicompile.compile(lambda x: x.expand(2, *x.shape), options={"suppress_errors": False})
    for size in (3, 4, 5):
        x = torch.arange(float(size)).unsqueeze(1).expand(size, 6).requires_grad_()
        output = compiled(x)
        weights = torch.randn(2, size, 6)
        (found,) = torch.autograd.grad(output, x, weights)
        torch.testing.assert_close(found, weights.sum(0))
