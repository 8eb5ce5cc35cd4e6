"""A compiled graph casts where it did when it was captured, whatever autocast is on when its kernels are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minicompile


def without_autocast_inside(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.autocast("cpu", enabled=False):
        attended = F.scaled_dot_product_attention(x[None], w[None], x[None])
        return x @ w, attended, F.conv2d(x[None, None], w[None, None, :3, :3])


def test_autocast_switched_off_inside_stays_off() -> None:
    torch.manual_seed(0)
    x, w = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    compiled = minicompile.compile(without_autocast_inside, fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = without_autocast_inside(x, w), compiled(x, w)
    weights = [torch.randn_like(value) for value in expected]
    gradients = [torch.autograd.grad(values, (x, w), weights) for values in (expected, got)]
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradients[1], gradients[0])


def blocks_and_settings() -> tuple[Any, ...]:
    torch.autocast_increment_nesting()
    kept = torch.is_autocast_cache_enabled()
    return torch.autocast_decrement_nesting(), kept, torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu"), torch.is_anomaly_enabled()


def broken_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        return x @ w * x.sum().item()


def broken_between(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"), torch.autocast("cpu", enabled=False):
        y = x @ w
    scale = y.sum().item()
    with torch.autocast("cpu", dtype=torch.float16):
        return (x @ w).float() * scale


def raising_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", cache_enabled=False):
        raise ValueError((x @ w).sum().item())


def broken_while_anomalies_are_looked_for(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autograd.set_detect_anomaly(True):
        return x @ w * x.sum().item()


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("function", [broken_inside, broken_between, raising_inside, broken_while_anomalies_are_looked_for])
def test_blocks_are_left_as_they_were_entered(function: Callable[..., torch.Tensor], outer: bool) -> None:
    compiled = minicompile.compile(function)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(3):
        with torch.autocast("cpu", enabled=outer):
            before = blocks_and_settings()
            results: list[Any] = []
            for run in (function, compiled):
                try:
                    results.append(run(x, w))
                except ValueError as error:
                    results.append(error.args)
                assert blocks_and_settings() == before
            torch.testing.assert_close(results[1], results[0])


def test_casts_of_parameters_are_forgotten_after_a_graph_break_in_a_block() -> None:
    layer = torch.nn.Linear(4, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x) * x.sum().item()

    compiled = minicompile.compile(step)
    for calls in (1, 1, 2):
        for _ in range(calls):
            compiled(torch.randn(2, 4))
        for _ in range(2):
            x = torch.randn(2, 4)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found = layer(x)
            torch.testing.assert_close(found, F.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16()))
            with torch.no_grad():
                layer.weight.mul_(2)
