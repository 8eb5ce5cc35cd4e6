"""CUDA graphs: the same results as without, never a tensor changed that somebody holds."""

from __future__ import annotations

import copy

import pytest
import torch

import minicompile
from minicompile.ir.graph import Binding, FreshOutput, ViewOutput
from minicompile.runtime.cuda_graphs import visible


def test_outputs_that_the_user_sees_through_views_are_visible() -> None:
    view = ViewOutput("hidden", 3, (2,), (1,), 0, torch.float32)
    assert visible(Binding((FreshOutput(1), view), saved=(1, 2))) == {1, 3}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 8)]
    return torch.nn.Sequential(*layers).cuda()


@pytest.mark.gpu
def test_inference_outputs_may_be_kept() -> None:
    module = network()
    compiled = minicompile.compile(module, mode="reduce-overhead")
    inputs = [torch.randn(16, 32, device="cuda") for _ in range(8)]
    with torch.no_grad():
        kept = [compiled(x) for x in inputs]
        for x, y in zip(inputs, kept, strict=True):
            torch.testing.assert_close(y, module(x))


@pytest.mark.gpu
def test_training_with_kept_losses_and_accumulated_gradients() -> None:
    module = network()
    twin = copy.deepcopy(module)
    compiled = minicompile.compile(module, mode="reduce-overhead")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (module, twin)]
    for step in range(8):
        batches = [torch.randn(16, 32, device="cuda") for _ in range(1 + step % 3)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        pending = [compiled(x).square().mean() for x in batches]
        for loss in pending:
            loss.backward()
        for x in batches:
            twin(x).square().mean().backward()
        for ours, eager in zip(module.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, eager.grad)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.gpu
def test_dropout_differs_from_replay_to_replay() -> None:
    compiled = minicompile.compile(lambda x: torch.nn.functional.dropout(x, 0.5), mode="reduce-overhead")
    x = torch.ones(4096, device="cuda")
    draws = [compiled(x) for _ in range(8)]
    for one, other in zip(draws, draws[1:], strict=False):
        assert not torch.equal(one, other)
        assert 0.4 < (one == 0).float().mean().item() < 0.6


@pytest.mark.gpu
def test_gradients_that_are_held_are_not_overwritten() -> None:
    module = network()
    compiled = minicompile.compile(module, mode="reduce-overhead")
    parameters = list(module.parameters())
    x = torch.randn(16, 32, device="cuda")
    held = []
    for number in range(6):
        weight = float(number + 1)
        held.append((weight, torch.autograd.grad((compiled(x) * weight).sum(), parameters)))
    base = torch.autograd.grad(module(x).sum(), parameters)
    for weight, gradients in held:
        for ours, eager in zip(gradients, base, strict=True):
            torch.testing.assert_close(ours, eager * weight, rtol=1e-4, atol=1e-4)
