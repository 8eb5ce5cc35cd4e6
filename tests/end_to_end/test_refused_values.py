"""Kernels that refuse a value while a graph runs which writes its inputs: nothing is written, and eager repeats the call."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import minicompile
from minicompile.api import compiled_function
from tests.planned_for_gpu import planned_for_gpu


class Whitened(nn.Module):
    """Values times a factor of a matrix, which not every matrix has; statistics and a buffer are written before that."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(()))
        self.log: list[str] = []

    def forward(self, x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        self.log.append("called")
        self.calls += 1
        x = self.norm(x)
        try:
            factor = torch.linalg.cholesky(matrix)
        except torch.linalg.LinAlgError:
            self.log.append("refused")
            factor = torch.eye(3, device=x.device)
        if len(self.log) > 5:
            factor = torch.linalg.inv(matrix)
        self.log.append("done")
        return x @ factor


def outcome(module: Whitened, called: Any, *args: torch.Tensor) -> tuple[list[str], list[Any]]:
    """What a call gives, or raises, and all that it leaves behind: texts, and tensors or None."""
    raised, result = [], None
    try:
        result = called(*args)
    except torch.linalg.LinAlgError as error:
        raised = [str(error)]
    else:
        result.square().sum().backward()
    grads = [leaf.grad for leaf in (*module.parameters(), *args)]
    return module.log + raised, [result, *(buffer.clone() for buffer in module.buffers()), *grads]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("wanting", [False, True])
def test_a_refused_value_is_seen_by_the_program_as_in_eager(device: str, wanting: bool) -> None:
    good, bad = torch.eye(3, device=device) * 2, torch.ones(3, 3, device=device)
    torch.manual_seed(0)
    eager, ours = Whitened().to(device), Whitened().to(device)
    x = torch.randn(7, 3, device=device)
    with contextlib.nullcontext() if device == "cuda" else planned_for_gpu():
        compiled = minicompile.compile(ours, options={"suppress_errors": False, "cache": False})
        for matrix in (good, bad, good, bad, bad):
            eager.zero_grad(), ours.zero_grad()
            leaves = [(x.clone().requires_grad_(wanting), matrix.clone().requires_grad_(wanting)) for _ in range(2)]
            wanted, found = outcome(eager, eager, *leaves[0]), outcome(ours, compiled, *leaves[1])
            assert found[0] == wanted[0]
            torch.testing.assert_close(found[1], wanted[1], rtol=1e-5, atol=1e-5)
    assert "refused" in ours.log
    graphs = [graph for graph in compiled_function(compiled).compiler.graphs if graph.plan.binding.mutated_inputs]
    assert graphs and all(graph.writes_last and not graph.plan.overwritten for graph in graphs)


def test_what_eager_refuses_draws_its_random_numbers_once() -> None:
    def product(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (x + torch.randn(3)) @ other + torch.rand(2)

    compiled = minicompile.compile(product, options={"fallback_random": True})
    drawn = []
    for called in (product, compiled):
        torch.manual_seed(0)
        for dtype in (torch.float32, torch.float64, torch.float64, torch.float32):
            with pytest.raises(RuntimeError, match="dtype") if dtype == torch.float64 else contextlib.nullcontext():
                called(torch.ones(2, 3), torch.ones(3, 2, dtype=dtype))
            drawn.append(torch.rand(1).item())
    assert drawn[:4] == drawn[4:]


def test_a_step_with_norms_writes_in_place() -> None:
    def step(weight: torch.Tensor, gradient: torch.Tensor) -> None:
        weight.sub_(gradient * (torch.linalg.vector_norm(weight) / gradient.norm()))

    weight, gradient = torch.rand(70, 30), torch.rand(70, 30)
    with planned_for_gpu():
        compiled = minicompile.compile(step, options={"suppress_errors": False, "cache": False})
        torch.testing.assert_close(*(run(each := weight.clone(), gradient) or each for run in (compiled, step)))
    (graph,) = compiled_function(compiled).compiler.graphs
    assert graph.plan.overwritten
