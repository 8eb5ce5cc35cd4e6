"""Factors of matrix products are padded without changing them, once for all products, and only where it pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minicompile
from minicompile.ir.loops import ExternKernel, LoweredGraph
from minicompile.lowering import products
from tests.lowering.oracle import check, lower

BF16 = torch.bfloat16


def matrix(*sizes: int, turned: bool = False) -> torch.Tensor:
    return torch.randn(*reversed(sizes), dtype=BF16).t() if turned else torch.randn(*sizes, dtype=BF16)


def multiplied_sizes(graph: LoweredGraph) -> list[list[int]]:
    """The sizes of both factors of every product."""
    calls = [op for op in graph.operations if isinstance(op, ExternKernel) and "mm" in op.target]
    return [[int(size) for view in call.args[-2:] for size in view.sizes] for call in calls]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "DEVICES", ("cpu",))
    monkeypatch.setattr(products, "LEAST_OPERATIONS_A_BYTE", 0)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("a", "b", "sizes"),
    [
        (matrix(5, 16), matrix(16, 9, turned=True), [5, 16, 16, 16]),
        (matrix(5, 9), matrix(9, 16), [5, 16, 16, 16]),
        (matrix(9, 5, turned=True), matrix(5, 16), [16, 5, 5, 16]),
        (matrix(9, 5, turned=True), matrix(5, 3, turned=True), [16, 8, 8, 8]),
        (matrix(8, 16), matrix(16, 24), [8, 16, 16, 24]),
        (matrix(5, 0), matrix(0, 9), [5, 0, 0, 9]),
    ],
)
def test_products_of_padded_factors(a: torch.Tensor, b: torch.Tensor, sizes: list[int]) -> None:
    assert multiplied_sizes(check(torch.mm, a, b)) == [sizes]
    check(lambda bias, x, y: torch.addmm(bias, x, y, beta=0.5, alpha=2), matrix(1, b.shape[1])[0], a, b)
    check(lambda x, y: (torch.relu(x) @ y).t() + 1, a, b)


@pytest.mark.usefixtures("always")
def test_a_factor_of_two_products_is_padded_once() -> None:
    graph = lower(lambda g, w, x: (g @ w, g.t() @ x), (matrix(5, 9), matrix(9, 16), matrix(5, 16)))
    assert multiplied_sizes(graph) == [[5, 16, 16, 16], [16, 5, 5, 16]]
    assert len({op.args[0].buffer for op in graph.operations if isinstance(op, ExternKernel)}) == 1


def gradients(run: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[Any]:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    loss = run(*leaves)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.usefixtures("always")
def test_a_head_and_its_loss_train_as_in_eager() -> None:
    target = torch.tensor([0, 3, 10, 2, 2])

    def loss(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(torch.relu(x), weight, bias).float(), target)

    tensors = matrix(5, 7), matrix(11, 7), matrix(1, 11)[0]
    compiled = minicompile.compile(loss, options={"suppress_errors": False, "cache": False})
    exact = gradients(loss, *(tensor.double() for tensor in tensors))
    for ours, eager, true in zip(gradients(compiled, *tensors), gradients(loss, *tensors), exact, strict=True):
        assert ours.stride() == eager.stride()
        assert (ours - true).abs().max() <= 2 * (eager - true).abs().max() + 0.01 * true.abs().max()


def test_small_products_and_other_dtypes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "DEVICES", ("cpu",))
    assert multiplied_sizes(lower(torch.mm, (matrix(5, 9), matrix(9, 3)))) == [[5, 9, 9, 3]]
    assert multiplied_sizes(lower(torch.mm, (torch.randn(2000, 4001), torch.randn(4001, 2001)))) == [[2000, 4001, 4001, 2001]]
    head = torch.empty(2048, 768, dtype=BF16), torch.empty(50257, 768, dtype=BF16)
    assert multiplied_sizes(lower(lambda x, w: x @ w.t(), head)) == [[2048, 768, 768, 50264]]
