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


@torch.library.custom_op("writing_operators::count", mutates_args=("total",))
def count(total: Tensor) -> int:
    total.add_(1)
    return len(total)


@count.register_fake
def _(total: Tensor) -> int:
    return len(total)


@torch.library.custom_op("writing_operators::accumulate_half", mutates_args=("total",))
def accumulate_half(value: Tensor, total: Tensor) -> Tensor:
    total.add_(value)
    return value + 1


@accumulate_half.register_fake
def _(value: Tensor, total: Tensor) -> Tensor:
    return torch.empty_like(value)


accumulate_half.register_autocast("cpu", torch.bfloat16)


LIBRARY = torch.library.Library("writing_operators_by_schema", "DEF")
LIBRARY.define("store(Tensor x, *, Tensor(a!) out, float scale=2.0) -> ()")
LIBRARY.impl("store", lambda x, *, out, scale=2.0: [out.copy_(x * scale), None][1], "CompositeExplicitAutograd")
LIBRARY.define("double(Tensor x, Tensor(a!)? out=None) -> Tensor")
LIBRARY.impl("double", lambda x, out=None: (x if out is None else out.add_(x)) * 2, "CompositeExplicitAutograd")
for kind in ("Tensor", "Scalar"):
    LIBRARY.define(f"add.{kind}(Tensor(a!) x, {kind} y) -> ()")
    LIBRARY.impl(f"add.{kind}", lambda x, y: [x.add_(y), None][1], "CompositeExplicitAutograd")
by_schema = torch.ops.writing_operators_by_schema


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


def writes_by_keyword(x: Tensor, y: Tensor) -> Any:
    by_schema.store(x + 1, out=y, scale=3.0)
    by_schema.store(out=x, x=y)
    return x * y


def writes_where_there_is_something(x: Tensor, y: Tensor) -> Any:
    return by_schema.double(x, out=y) + by_schema.double(x) + by_schema.double(x, None)


def writes_by_overloads(x: Tensor, y: Tensor) -> Any:
    by_schema.add(x, y)
    by_schema.add(y, 2)
    return x * y


def writes_what_it_reads(x: Tensor, y: Tensor) -> Any:
    accumulate(y[:2], y[2:])
    return y + x


WITHIN_THE_GRAPH = [writes_an_input, writes_what_it_made, writes_views_and_returns, writes_by_keyword,
                    writes_where_there_is_something, writes_by_overloads]  # fmt: skip


def run(function: Callable[..., Any], size: int) -> tuple[Any, ...]:
    x, y = torch.arange(float(size)), torch.linspace(1, 2, size)
    return function(x, y), x, y


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", WITHIN_THE_GRAPH)
def test_what_an_operator_writes_is_written_within_the_graph(function: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = minicompile.compile(function, dynamic=dynamic, options={"cache": False, "suppress_errors": False})
    for size in (4, 5, 4):
        torch.testing.assert_close(run(compiled, size), run(function, size))
    assert compiled.stats.fallbacks == compiled.stats.graph_breaks == 0


def differentiated(x: Tensor, y: Tensor) -> Any:
    accumulate(x.requires_grad_() * 2, y)
    return y


def casts(x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return accumulate_half(x, y) + y


def gives_a_number(x: Tensor, y: Tensor) -> Any:
    return x * count(y)


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("function", [writes_what_it_reads, differentiated, casts, gives_a_number])
def test_writes_that_only_eager_can_do_are_eager(function: Callable[..., Any]) -> None:
    compiled = minicompile.compile(function, options={"cache": False})
    for _ in range(2):
        torch.testing.assert_close(run(compiled, 4), run(function, 4))


@pytest.mark.filterwarnings("error:minicompile runs")
def test_an_operator_defined_anew_under_its_name_is_the_new_one() -> None:
    for factor in (2, 3):

        @torch.library.custom_op("writing_operators::again", mutates_args=("total",))
        def again(total: Tensor, factor: int = factor) -> None:
            total.mul_(factor)

        total = torch.ones(4)
        minicompile.compile(lambda total, again=again: again(total))(total)
        torch.testing.assert_close(total, torch.full((4,), float(factor)))


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
