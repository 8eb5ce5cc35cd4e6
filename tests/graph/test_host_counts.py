"""Counts of steps in the host's memory, changed by a graph whose parameters are on a GPU: one call for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import minicompile
from minicompile import compiler
from minicompile.compiler import Compiler
from minicompile.config import Config
from minicompile.graph import host_counts
from minicompile.graph.build import build_graph
from minicompile.ir import verify
from minicompile.ir.graph import CapturedGraph, GraphInput
from minicompile.ir.loops import ExternKernel
from minicompile.lowering.lower import lower_graph
from tests.end_to_end.test_optimizers import OPTIMIZERS, as_in_eager


def on_gpu(entry: GraphInput) -> GraphInput:
    """An input as if it lay on a GPU, but for numbers."""
    old = entry.example
    if not isinstance(old, torch.Tensor) or not old.dim():
        return entry
    with old.fake_mode:
        new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device="cuda", requires_grad=old.requires_grad)
    return dataclasses.replace(entry, example=new)


def calls_on_the_host(step: Callable[[], Any]) -> list[str]:
    """What the compiled step calls on tensors in the host's memory, once it is planned for parameters on a GPU."""
    with mock.patch.object(Compiler, "backend", autospec=True, side_effect=Compiler.backend) as backend:
        minicompile.compile(step)()
    captured: CapturedGraph = backend.call_args.args[1]
    partitioned = build_graph(dataclasses.replace(captured, inputs=tuple(map(on_gpu, captured.inputs))), Config())
    verify.verify_partitioned(partitioned)
    lowered = lower_graph(partitioned.forward, Config(), "step")
    verify.verify_lowered(lowered)
    assert lowered.device.type == "cuda"
    externs = [operation for operation in lowered.operations if isinstance(operation, ExternKernel)]
    return [step.target for step in externs if any(made is not None and made.device.type == "cpu" for made in step.outputs)]


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of CPU tensors change them as a graph for a GPU does; the disk's do not."""
    monkeypatch.setattr(host_counts, "is_on_accelerator", lambda node: True)
    monkeypatch.setattr(compiler, "graph_key", lambda captured, config: None)


def stepped_once(make: Callable[..., torch.optim.Optimizer], count: int = 12, **options: Any) -> torch.optim.Optimizer:
    """An optimizer with a state."""
    parameters = [nn.Parameter(torch.randn(2 + number % 2)) for number in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = make(parameters, **options)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_counts_of_an_optimizer_are_one_call(name: str) -> None:
    optimizer = stepped_once(OPTIMIZERS[name], foreach=True)
    counted = name != "SGD"
    assert calls_on_the_host(optimizer.step) == ["torch.ops.aten._foreach_add_.Tensor"] * counted


def test_counts_of_parameters_changed_one_by_one_are_one_call() -> None:
    optimizer = stepped_once(OPTIMIZERS["AdamW"], foreach=False)
    assert calls_on_the_host(optimizer.step) == ["torch.ops.aten._foreach_add_.Scalar"]


def test_each_group_of_parameters_is_one_call() -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW([{"params": parameters[:5]}, {"params": parameters[5:], "lr": 0.5}], foreach=True)

    assert calls_on_the_host(stepped_once(make).step) == ["torch.ops.aten._foreach_add_.Tensor"] * 2


def shared_number(x: torch.Tensor, counts: list[torch.Tensor]) -> torch.Tensor:
    """Adds a tensor that is changed as well, other numbers, and what another dtype would round."""
    first, second, third, fourth, fifth = counts
    first += second
    second += 1
    third.add_(1.5)
    third.add_(2)
    fourth += 1
    before = fifth + 1
    fifth += 1
    return x * 2 + before


def returned_sum(x: torch.Tensor, counts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The old value of a count is read after it is changed, and two names stand for another."""
    old = counts[0].clone()
    counts[0].add_(1)
    counts[1].add_(1)
    counts[1].add_(1)
    counts[2] += counts[3]
    torch._foreach_add_(counts[3:], 2)
    return x + old, counts[1].view(1)


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("function", [shared_number, returned_sum])
def test_additions_that_are_more_than_counting_are_as_in_eager(function: Callable[..., Any]) -> None:
    def ran(wrap: Callable[[Any], Any]) -> Any:
        counts = [torch.tensor(float(n)) for n in range(3)] + [torch.tensor(3), torch.tensor(4.0, dtype=torch.float64)]
        return wrap(function)(torch.ones(3), counts), counts

    found, expected = ran(minicompile.compile), ran(lambda function: function)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_that_counts_in_one_call_is_as_in_eager(name: str, foreach: bool, missing: bool) -> None:
    stats = as_in_eager(lambda parameters: OPTIMIZERS[name](parameters, foreach=foreach), missing=missing)
    assert stats.graphs > 0 and stats.fallbacks == 0


@pytest.mark.usefixtures("as_on_gpu")
def test_a_count_that_a_backward_keeps_is_seen_to_have_changed() -> None:
    count, x = torch.tensor(1.0), torch.ones(3, requires_grad=True)
    kept = x * count
    minicompile.compile(lambda count, x: (count.add_(1), x * 2))(count, x)
    assert count == 2 and count._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.usefixtures("as_on_gpu")
def test_one_count_of_two_parameters_is_as_in_eager() -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        optimizer = stepped_once(torch.optim.AdamW, 3, foreach=True)
        first, second, _ = optimizer.param_groups[0]["params"]
        optimizer.state[second]["step"] = optimizer.state[first]["step"]
        step = wrap(optimizer.step)
        for _ in range(3):
            step()
        return [*optimizer.param_groups[0]["params"], *(state["step"] for state in optimizer.state.values())]

    torch.testing.assert_close(trained(minicompile.compile), trained(lambda step: step))
