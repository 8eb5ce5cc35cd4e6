"""Errors that only an operator's kernel finds: raised where eager raises them, after what Python did before, and no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import minicompile


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.calls = 0


def seen(function: Any, x: torch.Tensor) -> tuple[Any, ...]:
    """What a call shows: result or error, and what it did before."""
    counter, log = Counter(), []
    try:
        result: Any = function(x, counter, log).tolist()
    except Exception as error:
        result = type(error), str(error)
    return result, counter.calls, log


def caught(x: torch.Tensor, counter: Counter, log: list[str]) -> torch.Tensor:
    counter.calls += 1
    try:
        log.append("before")
        x = (x * 2) | x
        log.append("not reached")
    except RuntimeError as error:
        log.append(type(error).__name__)
    counter.calls += 1
    return x + 1


def uncaught(x: torch.Tensor, counter: Counter, log: list[str]) -> torch.Tensor:
    counter.calls += 1
    log.append("before")
    x = x | x
    counter.calls += 1
    return x


def after_a_break(x: torch.Tensor, counter: Counter, log: list[str]) -> torch.Tensor:
    log.append("before")
    torch._dynamo.graph_break()
    counter.calls += 1
    return uncaught(x, counter, log)


@pytest.mark.parametrize("function", [caught, uncaught, after_a_break], ids=lambda function: function.__name__)
def test_errors_of_kernels_come_where_eager_raises_them(function: Any) -> None:
    x = torch.arange(3.0)
    compiled = minicompile.compile(function, options={"cache": False})
    for _ in range(2):
        assert seen(compiled, x) == seen(function, x)
    assert seen(compiled, torch.arange(3)) == seen(function, torch.arange(3))
