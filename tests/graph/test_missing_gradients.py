"""Gradients that do not come in are absent, as in eager: zeros in their place would meet infinite derivatives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import minicompile
from tests.graph.programs import compile_eagerly


class Pair(torch.autograd.Function):
    """Two results; a backward runs as soon as one of their gradients is there, with zeros for the other."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a, b)
        return a * 2, b.sqrt()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        _, b = ctx.saved_tensors
        return first * 2 + second, second / (2 * b.sqrt()) + 1


class Constant(torch.autograd.Function):
    """A backward that does not read the gradient, and yet runs only if there is one."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        return a * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.ones_like(gradient)


def looked_at(x: Tensor, y: Tensor) -> Any:
    return (x * y).sum(), x.sqrt(), y.sqrt()


def parts_of_a_split(x: Tensor, y: Tensor) -> Any:
    first, second = x.sqrt().split(2, 1)
    return first, second, first * y[:, :1]


def slices(x: Tensor, y: Tensor) -> Any:
    root = x.sqrt()
    return root[:, :2], root[:, 2:], root * y


def rows(x: Tensor, y: Tensor) -> Any:
    return (x * y).sqrt().unbind(0)


def two_statistics(x: Tensor, y: Tensor) -> Any:
    deviation, mean = torch.std_mean(x * 0, 1)
    return deviation, mean, x * y


def custom_pair(x: Tensor, y: Tensor) -> Any:
    first, second = Pair.apply(x * 2, y * 3)
    return first, second, (first * second).sqrt()


def constant_gradients(x: Tensor, y: Tensor) -> Any:
    return Constant.apply(x), y * x, Constant.apply(y.sqrt())


def differences(x: Tensor, y: Tensor) -> Any:
    return x - y, (y - x).sqrt(), x + y, y + 0


def results_of_results(x: Tensor, y: Tensor) -> Any:
    product = x * y
    root = product.sqrt()
    return product, root, root.log(), product.t()


def complex_parts(x: Tensor, y: Tensor) -> Any:
    both = torch.complex(x, y)
    return both.abs(), torch.view_as_real(both), x.sqrt()


def attention_and_weights(x: Tensor, y: Tensor) -> Any:
    weights = (x @ y.t()).softmax(-1)
    return weights, (weights @ y).log(), F.layer_norm(x, (4,)), x.norm(dim=1)


PROGRAMS = (looked_at, parts_of_a_split, slices, rows, two_statistics, custom_pair, constant_gradients, differences, results_of_results,
            complex_parts, attention_and_weights)  # fmt: skip


def arguments() -> list[Tensor]:
    x, y = torch.linspace(0.1, 3, 12).reshape(3, 4), torch.linspace(2, 0.5, 12).reshape(3, 4)
    x[0, 1], y[2, 2] = 0, 0
    x[1] = 0
    return [x.requires_grad_(), y.requires_grad_()]


def gradients(function: Callable[..., Any], chosen: tuple[int, ...]) -> list[Tensor | None]:
    given = arguments()
    results = [function(*given)[number] for number in chosen]
    torch.autograd.backward(results, [torch.arange(float(r.numel())).reshape(r.shape) for r in results])
    return [value.grad for value in given]


def compare_all_choices(program: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    numbers = range(len(program(*arguments())))
    for chosen in (c for count in numbers for c in itertools.combinations(numbers, count + 1)):
        torch.testing.assert_close(gradients(compiled, chosen), gradients(program, chosen), equal_nan=True, msg=str(chosen))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_backward_from_some_results_gives_what_it_gives_in_eager(program: Callable[..., Any]) -> None:
    compare_all_choices(program, minicompile.compile(program, dynamic=True))


@pytest.mark.parametrize("program", [slices, results_of_results], ids=lambda program: program.__name__)
def test_the_same_of_fixed_sizes_and_without_kernels(program: Callable[..., Any]) -> None:
    compare_all_choices(program, minicompile.compile(program))
    compare_all_choices(program, compile_eagerly(program, *arguments()))


def test_what_only_missing_gradients_need_is_no_part_of_the_backward() -> None:
    compiled = minicompile.compile(lambda x, w: ((x @ w).exp(), (x * 2).sum()))
    x, w = torch.ones(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True)
    compiled(x, w)[1].backward()
    assert w.grad is None and x.grad is not None
    graph, = compiled.compiler.graphs
    assert list(graph.parts) == ["forward", "backward_of_1"]
    assert not graph.parts["backward_of_1"].program.extern_calls
    compiled(x, w)[1].backward()
    assert list(graph.parts) == ["forward", "backward_of_1"]


def test_two_gradients_that_are_one_value_are_two_tensors() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x.exp()

    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    minicompile.compile(program)(x, y)[0].sum().backward()
    assert x.grad is not None and y.grad is not None
    x.grad.add_(5)
    assert y.grad.tolist() == [1, 1, 1]
