"""`step()` of PyTorch's optimizers, compiled by itself and inside a training step: parameters and state as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minicompile

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **k),
    "Adam": lambda p, **k: torch.optim.Adam(p, lr=0.01, amsgrad=True, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, lr=0.01, **k),
    "RAdam": lambda p, **k: torch.optim.RAdam(p, lr=0.01, **k),
    "RMSprop": lambda p, **k: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.1, **k),
    "Adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1, **k),
    "Adadelta": lambda p, **k: torch.optim.Adadelta(p, lr=0.5, **k),
    "Adamax": lambda p, **k: torch.optim.Adamax(p, lr=0.01, **k),
}


class Lion(torch.optim.Optimizer):
    """An optimizer of the user's, which counts its steps in an int."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if p.grad is None:
                    continue
                if not state:
                    state["momentum"], state["step"] = torch.zeros_like(p), 0
                state["step"] += 1
                p.sub_(torch.sign(state["momentum"] * 0.9 + p.grad * 0.1), alpha=group["lr"])
                state["momentum"].lerp_(p.grad, 0.01)


def stepped(
    make: Callable[..., torch.optim.Optimizer], wrap: Callable[[Any], Any], missing: bool = False
) -> tuple[list[torch.Tensor], Any, Any]:
    """Parameters, states and the step itself after six steps; the rate falls on the way, and gradients may be missing."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(()))]
    optimizer = make(parameters)
    step = wrap(optimizer.step)
    for turn in range(6):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        if missing and turn % 2:
            parameters[turn // 2].grad = None
        step()
        if turn in (1, 3):
            optimizer.param_groups[0]["lr"] *= 0.5
    return parameters, optimizer.state_dict()["state"], step


def as_in_eager(make: Callable[..., torch.optim.Optimizer], **options: Any) -> Any:
    """Compare the compiled step with the plain one; gives its records."""
    expected, expected_state, _ = stepped(make, lambda step: step, **options)
    found, found_state, step = stepped(make, minicompile.compile, **options)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_state, expected_state)
    return step.stats


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step_is_a_graph_and_changes_what_the_plain_one_changes(name: str, foreach: bool) -> None:
    stats = as_in_eager(lambda parameters: OPTIMIZERS[name](parameters, foreach=foreach))
    assert stats.fallbacks == stats.graph_breaks == 0
    assert 2 <= stats.graphs <= 4, "the first step, the others, a rate that falls, and a branch of RAdam"


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_parameters_without_a_gradient_are_left_alone_and_their_steps_not_counted(name: str) -> None:
    assert as_in_eager(OPTIMIZERS[name], missing=True).graphs > 0


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("counts", [(7.0, 9.0), (0.5, 0.5), (2.0**24, 2.0**24)])
def test_counts_that_somebody_sets_are_those_of_the_next_step(counts: tuple[float, float]) -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2, 2))]
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        step = wrap(optimizer.step)
        for turn in range(6):
            for parameter, count in zip(parameters, counts, strict=True):
                parameter.grad = torch.randn_like(parameter)
                if turn == 3:
                    optimizer.state[parameter]["step"].fill_(count)
            step()
        return [*parameters, *(optimizer.state[parameter]["step"] for parameter in parameters)]

    torch.testing.assert_close(trained(minicompile.compile), trained(lambda step: step))


@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_what_is_changed_between_steps_counts_in_the_next() -> None:
    def trained(wrap: Callable[[Any], Any]) -> tuple[list[torch.Tensor], list[float]]:
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(4, 3).t()), nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2, 2))]
        optimizer, rates = torch.optim.AdamW(parameters[:2], lr=0.05), []
        step = wrap(optimizer.step)
        changes: dict[int, Callable[[], Any]] = {
            2: lambda: optimizer.add_param_group({"params": [parameters[2]], "lr": 0.5, "weight_decay": 0.0}),
            3: lambda: optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"])),
            4: lambda: optimizer.param_groups[0].update(betas=(0.5, 0.9)),
            5: lambda: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
            6: lambda: optimizer.state[parameters[1]].update(step=optimizer.state[parameters[0]]["step"]),
            8: lambda: setattr(parameters[0], "data", parameters[0].data.clone() * 2),
        }
        for turn in range(10):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape[::-1]).T if turn % 3 else torch.randn_like(parameter)
            changes.get(turn, lambda: None)()
            step()
        return [*parameters, *(state["step"] for state in optimizer.state.values())], rates

    torch.testing.assert_close(trained(minicompile.compile), trained(lambda step: step))


def test_the_users_own_optimizer_is_captured() -> None:
    stats = as_in_eager(Lion)
    assert stats.fallbacks == stats.graph_breaks == 0 and stats.graphs


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    lambda p: torch.optim.SGD(p, lr=torch.tensor(0.01)),
    lambda p: torch.optim.NAdam(p, lr=0.01),
])  # fmt: skip
def test_what_a_graph_cannot_hold_runs_as_pytorch_wrote_it(make: Callable[..., Any]) -> None:
    with pytest.warns(UserWarning, match="minicompile runs `step` in eager"):
        stats = as_in_eager(make)
    assert stats.fallbacks and not stats.graphs


def test_a_training_step_breaks_for_the_backward_only_and_a_scheduler_is_no_obstacle() -> None:
    def trained(wrap: Callable[[Any], Any]) -> tuple[list[torch.Tensor], Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)

        def update(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        update = wrap(update)
        losses = []
        for _ in range(5):
            losses.append(update(torch.randn(6, 3)))
            scheduler.step()
        return [*losses, *model.parameters()], update

    expected, _ = trained(lambda function: function)
    found, update = trained(minicompile.compile)
    torch.testing.assert_close(found, expected)
    assert update.stats.fallbacks == 0 and {record.kind for record in update.graph_breaks} == {"autograd call"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("average", [None, torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)])
def test_averages_of_weights_are_one_break_of_a_training_step(average: Any) -> None:
    def trained(wrap: Callable[[Any], Any]) -> tuple[list[torch.Tensor], Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average)

        def update(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            averaged.update_parameters(model)
            return averaged(x).detach()

        update = wrap(update)
        results = [update(torch.randn(6, 3)) for _ in range(3)]
        return [*results, *averaged.parameters(), *averaged.buffers()], update

    expected, _ = trained(lambda function: function)
    found, update = trained(minicompile.compile)
    torch.testing.assert_close(found, expected)
    assert update.stats.fallbacks == 0 and {record.kind for record in update.graph_breaks} == {"autograd call", "optimizer"}


def test_lists_of_tensors_changed_in_place_count_as_changed() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([x], 1.0)
        return y * 2

    base = torch.zeros(4)
    with pytest.warns(UserWarning, match="shares memory"):
        assert minicompile.compile(function)(base[:3], base[1:]).tolist() == [2.0, 2.0, 0.0]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_compiled_step_on_a_gpu_keeps_its_counts_on_the_host(name: str) -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        for parameter in parameters:
            parameter.data = parameter.data.cuda()
        return OPTIMIZERS[name](parameters)

    stats = as_in_eager(make)
    assert stats.fallbacks == stats.graph_breaks == 0 and stats.graphs <= 3
