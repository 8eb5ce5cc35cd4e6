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


def test_an_index_out_of_range_is_caught_after_a_write_and_an_append_that_happened_once() -> None:
    def function(x: torch.Tensor, index: torch.Tensor, log: list[int]) -> Any:
        x.add_(1)
        log.append(index.shape[0])
        try:
            picked = x[index]
        except IndexError as error:
            return str(error), x.clone()
        return picked * 2, x

    compiled, values = minicompile.compile(function, options={"cache": False}), torch.randn(8, 10)
    for index in (torch.tensor([1, 2]), torch.tensor([1, 99]), torch.tensor([-8, 7, 0])):
        inputs, logs = (values.clone(), values.clone()), (list[int](), list[int]())
        expected, found = function(inputs[0], index, logs[0]), compiled(inputs[1], index, logs[1])
        assert logs[0] == logs[1] == [index.shape[0]]
        torch.testing.assert_close((inputs[1], found[1]), (inputs[0], expected[1]))
        assert found[0] == expected[0] if isinstance(expected[0], str) else torch.equal(found[0], expected[0])


def test_a_gather_out_of_range_from_a_view_of_a_changed_input_raises_with_the_change_made() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> Any:
        x.mul_(2)
        x = x[::2]
        total = torch.gather(x, 1, index).sum()
        x[:, 0] = total
        return x

    compiled, values = minicompile.compile(function, options={"cache": False}), torch.randn(8, 10)
    torch.testing.assert_close(compiled(values.clone(), torch.tensor([[1], [9]])), function(values.clone(), torch.tensor([[1], [9]])))
    inputs = values.clone(), values.clone()
    for call, given in zip((function, compiled), inputs, strict=True):
        with pytest.raises(RuntimeError, match="out of bounds"):
            call(given, torch.tensor([[1], [30]]))
    torch.testing.assert_close(inputs[1], inputs[0])


def test_a_graph_left_to_eager_that_fails_leaves_no_mode_behind() -> None:
    @minicompile.compile
    def inner(x: torch.Tensor, i: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            out.index_add_(0, i, x @ x)
        return out

    for _ in range(2):
        with pytest.raises(RuntimeError, match="same scalar type"):
            inner(torch.randn(3, 3), torch.arange(3), torch.zeros(3, 3))
        assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
