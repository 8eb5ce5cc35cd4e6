"""Custom operators that write their arguments are a part of the graph; what only eager can do with them stays eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import minicompile


@torch.library.custom_op("writing_operators::accumulate", mutates_args=("total",))
def accumulate(value: Tensor, total: Tensor) -> None:
    total.add_(value)


@torch.library.custom_op("writing_operators::scale_both", mutates_args=("first", "second"))
def scale_both(first: Tensor, second: Tensor, number: int, factor: float = 2.0) -> Tensor:
    first.add_(number)
    second.mul_(factor)
    return first.sum() + second.sum()


@scale_both.register_fake
def _(first: Tensor, second: Tensor, number: int, factor: float = 2.0) -> Tensor:
    return first.new_empty(())


def writes_an_input(x: Tensor, y: Tensor) -> Any:
    accumulate(x * 2, y)
    return y * 3


def writes_what_it_made(x: Tensor, y: Tensor) -> Any:
    total = torch.zeros_like(x)
    accumulate(x, total)
    accumulate(total, y)
    return total + y


def writes_views_and_returns(x: Tensor, y: Tensor) -> Any:
    made = y * 1
    result = scale_both(x, made[1:3], 3, factor=0.5)
    scale_both(made[::2], y[1:3], 2)
    return result * x, made


def writes_what_it_reads(x: Tensor, y: Tensor) -> Any:
    accumulate(y[:2], y[2:])
    return y + x


def run(function: Callable[..., Any], size: int) -> tuple[Any, ...]:
    x, y = torch.arange(float(size)), torch.linspace(1, 2, size)
    return function(x, y), x, y


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [writes_an_input, writes_what_it_made, writes_views_and_returns])
def test_what_an_operator_writes_is_written_within_the_graph(function: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = minicompile.compile(function, dynamic=dynamic, options={"cache": False, "suppress_errors": False})
    for size in (4, 5, 4):
        torch.testing.assert_close(run(compiled, size), run(function, size))
    assert compiled.stats.fallbacks == compiled.stats.graph_breaks == 0


def differentiated(x: Tensor, y: Tensor) -> Any:
    accumulate(x.requires_grad_() * 2, y)
    return y


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("function", [writes_what_it_reads, differentiated])
def test_writes_that_only_eager_can_do_are_eager(function: Callable[..., Any]) -> None:
    compiled = minicompile.compile(function, options={"cache": False})
    for _ in range(2):
        torch.testing.assert_close(run(compiled, 4), run(function, 4))


def test_a_buffer_is_written_beside_a_gradient() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                accumulate(x.detach(), self.total)
            return x * self.weight + self.total

    plain, module = Counting(), Counting()
    compiled = minicompile.compile(module, fullgraph=True, options={"suppress_errors": False})
    for _ in range(3):
        for each in (plain, compiled):
            each(torch.arange(4.0)).sum().backward()
    torch.testing.assert_close((module.total, module.weight.grad), (plain.total, plain.weight.grad))
