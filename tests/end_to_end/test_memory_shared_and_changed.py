"""Strided views written in place, lists that hold one tensor twice, inputs that overlap: as eager, at several shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import minicompile

STATE: dict[str, Any] = {"scale": 1.0, "seen": []}


def writes_a_strided_view(x: torch.Tensor) -> Any:
    view = x[::2, 1:]
    view.mul_(STATE["scale"])
    STATE["seen"].append(STATE["scale"])
    return x, view + x.mean(), view.stride()


def changes_a_list_and_a_dict(tensors: list[torch.Tensor], record: dict[str, int]) -> Any:
    tensors.append(tensors[0] + tensors[1])
    record["n"] = len(tensors)
    tensors[0] = tensors[0] * 2
    return tensors[-1].t().contiguous().view(-1), record


def writes_an_input_that_overlaps_another(x: torch.Tensor, y: torch.Tensor) -> Any:
    y.add_(1)
    return x.sum(-1), y * 2


def strided(data: torch.Tensor) -> tuple[Any, ...]:
    return (data.t() if data.shape[1] % 2 else data,)


def twice(data: torch.Tensor) -> tuple[Any, ...]:
    return [data, data], {}


def overlapping(data: torch.Tensor) -> tuple[Any, ...]:
    return data, data[1:]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (writes_a_strided_view, strided),
        (changes_a_list_and_a_dict, twice),
        (writes_an_input_that_overlaps_another, overlapping),
    ],
)
def test_as_eager(function: Callable[..., Any], arguments: Callable[[torch.Tensor], tuple[Any, ...]]) -> None:
    compiled = minicompile.compile(function)
    for columns in range(5, 9):
        STATE["scale"] = columns / 2
        data = torch.randn(6, columns)
        shown = []
        for run in (function, compiled):
            STATE["seen"] = []
            given = arguments(data.clone())
            shown.append((run(*given), given, STATE["seen"]))
        torch.testing.assert_close(shown[1], shown[0])
