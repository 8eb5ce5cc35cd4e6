"""Branches on tensors of which one way raises: the error is eager's, and nothing else shows that it was found late."""

from __future__ import annotations

import torch
from torch import distributions, nn

from tests.conformance.catalogue import call, normal, positive, program


@program(raises=AssertionError, core=True)
def assert_on_values():
    seen = []

    def outer(x):
        seen.append(x.shape[0])
        y = x * 2 + torch.rand(3)
        assert torch.isfinite(y).all(), f"not finite: {y.isnan().sum()} of {x.shape}"
        seen.append("passed")
        return y

    bad = torch.tensor([1.0, float("nan"), 2.0])
    return outer, [call(normal(3)), call(bad), call(normal(3)), call(bad)], seen


@program
def raise_that_is_caught_inside():
    def outer(x):
        try:
            if (x < 0).any():
                raise ValueError("negative")
            return x.sqrt(), "root"
        except ValueError as error:
            return -x, str(error)

    return outer, [call(positive(3)), call(-positive(3)), call(positive(3)), call(-positive(3)), call(positive(3))]


@program(raises=ValueError)
def raise_after_an_input_has_changed():
    def outer(x, y):
        x.add_(1)
        if not (y > 0).all():
            raise ValueError("y")
        return x * y

    return outer, [call(normal(3), positive(3)), call(normal(3), -positive(3)), call(normal(3), positive(3))]


@program(raises=ValueError)
def raise_after_a_buffer_has_changed():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    def outer(x):
        y = net(x)
        if y.abs().max() > 5 or torch.isnan(y).any():
            raise ValueError("far out")
        return y

    return outer, [call(normal(4, 3)), call(normal(4, 3) * float("nan")), call(normal(4, 3))], net


@program(raises=RuntimeError)
def raise_in_a_loop_with_values_in_the_message():
    def outer(x):
        for step in range(3):
            if x.sum() > 100:
                raise RuntimeError(f"diverged at {step}: {x.tolist()}")
            x = x * x
        return x

    return outer, [call(torch.ones(3)), call(torch.full((3,), 4.0)), call(torch.ones(3))]


@program(raises=KeyError)
def one_of_two_errors():
    def outer(x):
        if x.max() > 1:
            if x.min() < 0:
                raise KeyError("both")
            else:
                raise KeyError("high")
        return x + 1

    return outer, [call(torch.zeros(3)), call(torch.full((3,), 3.0)), call(torch.tensor([-1.0, 2.0])), call(torch.zeros(3))]


@program(raises=ValueError)
def raise_without_gradients():
    def outer(x):
        torch.set_grad_enabled(False)
        y = x * 2
        if not (y > 0).all():
            raise ValueError("negative")
        torch.set_grad_enabled(True)
        return y

    def both(x):
        try:
            return outer(x)
        finally:
            torch.set_grad_enabled(True)

    return both, [call(positive(3)), call(-positive(3)), call(positive(3))]


@program(raises=RuntimeError)
def assert_on_more_than_one_value():
    def outer(x):
        assert x > 0
        return x

    return outer, [call(positive(3))]


@program(raises=ValueError, core=True)
def arguments_of_distributions():
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Linear(3, 2)
            self.spread = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            chosen = distributions.Normal(self.mean(x), self.spread.exp(), validate_args=True)
            action = chosen.rsample()
            kind = distributions.Categorical(logits=action, validate_args=True)
            other = distributions.Normal(torch.zeros(2), torch.ones(2), validate_args=True)
            divergence = distributions.kl_divergence(chosen, other)
            return chosen.log_prob(action).sum(-1), kind.log_prob(kind.sample()), kind.entropy(), divergence

    policy = Policy()
    return policy.forward, [call(normal(4, 3)), call(normal(4, 3) * float("nan")), call(normal(5, 3))], policy


@program(raises=ValueError)
def samples_outside_of_the_support():
    def outer(chances, taken):
        return distributions.Categorical(probs=chances, validate_args=True).log_prob(taken)

    chances = torch.full((2, 3), 1 / 3)
    return outer, [call(chances, torch.tensor([0, 2])), call(chances, torch.tensor([2, 5])), call(chances, torch.tensor([1, 1]))]


@program
def cumulative_statistics_of_many_batches():
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, momentum=None), nn.ReLU())

    def outer(x):
        return net(x)

    return outer, [call(normal(2, 2, 4, 4)) for _ in range(12)], net
