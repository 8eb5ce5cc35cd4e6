"""Training steps through the whole compiler: what autograd sees between the parts of a step is what eager shows it."""

from __future__ import annotations

import contextlib

import pytest
import torch

from minicompile import compile as minicompile_compile
from tests.conformance.catalogue import PROGRAMS, all_programs
from tests.conformance.compilers import compiler
from tests.conformance.harness import check

all_programs()
STEPS = (
    "gan_step", "projected_gradient_attack", "momentum_contrast_queue", "adversarial_perturbation", "sgd_by_hand_through_data",
    "actor_critic_soft_update", "checkpointed_blocks_in_a_loop", "checkpoint_with_dropout_between", "nested_checkpoints",
    "custom_linear_of_the_documentation", "custom_function_that_returns_its_input", "custom_function_in_place",
    "custom_function_with_an_index_result", "gradient_reversal_layer",
)  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_step_shows_its_caller_what_the_plain_one_shows(name: str) -> None:
    with compiler("full") as compile:
        found = check(PROGRAMS[name], compile)
    assert not found, "\n".join(found)


def test_an_input_that_eager_does_not_keep_may_be_written_before_the_backward() -> None:
    weight, table = torch.randn(4, requires_grad=True), torch.rand(4) - 2
    for function in (lambda: weight * (table * 2), lambda: weight * table.clone(), lambda: (weight * table.exp()).sin()):
        compiled = minicompile_compile(function)
        expected, actual = function(), compiled()
        with torch.no_grad():
            table.add_(1)
        (one,), (two,) = (torch.autograd.grad(value.sum(), weight) for value in (expected, actual))
        torch.testing.assert_close(two, one)


def test_a_parameter_that_eager_does_not_keep_may_be_written_before_the_backward() -> None:
    x = torch.rand(4)
    for function in (lambda w: (w * 2).sin() * x, lambda w: w.clone().sin(), lambda w: (w.softmax(0) + x).tanh().exp()):
        gradients = []
        for called in (function, minicompile_compile(function)):
            for write in (torch.Tensor.add_, lambda w, _: w.data.add_(1)):
                weight = torch.nn.Parameter(torch.arange(4.0))
                value = called(weight).sum()
                with torch.no_grad():
                    write(weight, 1)
                gradients += torch.autograd.grad(value, weight)
        torch.testing.assert_close(gradients[2:], gradients[:2])


def test_a_backward_does_not_run_through_an_input_that_gets_no_gradient() -> None:
    w = torch.randn(3, requires_grad=True)
    before = w.exp()
    loss = minicompile_compile(lambda x, w: (x.detach() * w).sum())(before, w)
    loss.backward()
    before.sum().backward()  # would raise if the first backward had freed what made `before`


def test_gradients_of_two_parameters_never_share_memory() -> None:
    one, two = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    minicompile_compile(lambda x: (one(x) + two(x)).view(-1).sin().sum())(torch.randn(2, 3)).backward()
    assert one.bias.grad.data_ptr() != two.bias.grad.data_ptr()
    torch.testing.assert_close(one.bias.grad, two.bias.grad)


def test_a_detached_output_beside_the_output_needs_no_gradient() -> None:
    def both(x):
        y = x.sin()
        return y, y.detach(), y.detach()[0]

    for output, expected in zip(minicompile_compile(both)(torch.ones(3, requires_grad=True)), (True, False, False), strict=True):
        assert output.requires_grad is expected


def test_a_backward_from_one_output_leaves_what_another_one_needs() -> None:
    generator, critic = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    def step(x):
        fake = (generator * x).tanh()
        return fake, (fake.detach() * critic).exp().sum()

    results = []
    for run in (step, minicompile_compile(step)):
        fake, loss = run(torch.arange(3.0))
        loss.backward()
        with torch.no_grad():
            critic.add_(1).sub_(1)
        seen = critic.grad, generator.grad
        fake.sum().backward()
        results.append((*seen, generator.grad))
        critic.grad = generator.grad = None
    (one, nothing, two), (mine, none, mine_too) = results
    assert nothing is None and none is None
    torch.testing.assert_close(mine, one)
    torch.testing.assert_close(mine_too, two)


def test_an_empty_batch_gives_zeros_to_every_parameter() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6))

    def step(x):
        y = model(x)
        return y, model(x * 2).sum()

    for run in (step, minicompile_compile(step)):
        for parts in ((0, 1), (0,), (1,)):
            outputs = run(torch.randn(0, 4))
            sum(outputs[part].sum() for part in parts).backward()
            assert [p.grad.abs().sum().item() for p in model.parameters()] == [0.0] * 4
            model.zero_grad()


def test_a_backward_from_one_output_does_not_hide_a_second_one_or_a_write() -> None:
    generator, critic, scale = (torch.randn(3, requires_grad=True) for _ in range(3))
    for write in (False, True):
        fake, loss = minicompile_compile(lambda x: ((generator * x) * scale, (critic * x).exp().sum()))(torch.ones(3))
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        with torch.no_grad():
            scale.add_(1) if write else None
        with pytest.raises(RuntimeError, match="modified by an inplace") if write else contextlib.nullcontext():
            fake.sum().backward()
