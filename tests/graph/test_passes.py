"""Each simplification alone: what it removes, and what it must leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minicompile
from minicompile.config import Config
from minicompile.graph import passes
from minicompile.graph.build import build_graph
from minicompile.graph.trace import trace_joint
from tests.graph.programs import Captured, operators


def through(change: passes.Pass, function: Callable[..., Any], *example: Tensor) -> list[str]:
    """The operators that one pass leaves alive; the graph still computes what the function does."""
    module = passes.remove_dead_code(change(trace_joint(Captured(function, example).graph, Config()).module))
    result, expected = module(*example)[0], function(*example)
    torch.testing.assert_close(result, expected)
    module.graph.lint()
    return operators(module)


X = torch.randn(4, 6)


@pytest.mark.parametrize(
    ("change", "function", "left"),
    [
        (lambda module: module, lambda x: (x.sin(), x + 1)[1], ["add"]),
        (passes.remove_aliases, lambda x: x.detach() + 1, ["add"]),
        (passes.remove_no_op_casts, lambda x: x.to(torch.float32).double().float() * 2, ["mul"]),
        (passes.merge_common_subexpressions, lambda x: x.sin() * 2 + x.sin() * 2, ["sin", "mul", "add"]),
        (passes.merge_common_subexpressions, lambda x: (x * 1) + (x * 1.0), ["mul", "mul", "add"]),
        (passes.merge_common_subexpressions, lambda x: x * 0.0 + x * -0.0, ["mul", "mul", "add"]),
        (passes.remove_clones, lambda x: x.clone() + 1, ["add"]),
        (passes.write_copies_plainly, lambda x: x.clone().copy_(x * 2) + 1, ["mul", "add"]),
    ],
    ids=lambda value: getattr(value, "__name__", "-".join(value) if isinstance(value, list) else None),
)  # fmt: skip
def test_one_pass(change: passes.Pass, function: Callable[..., Any], left: list[str]) -> None:
    assert through(change, function, X) == left


def test_random_numbers_are_not_merged() -> None:
    found = operators(build_graph(Captured(lambda x: torch.rand_like(x) + torch.rand_like(x), (X,)).graph, Config()).forward)
    assert found.count("random_uniform") == 2


def test_statistics_that_are_kept_cost_no_kernel() -> None:
    """What batch norm makes of its running statistics, casts to the dtype they have among it, is computed where it is used."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).eval()
    compiled, x = minicompile.compile(model, options={"cache": False}), torch.randn(2, 2, 8, 8)
    torch.testing.assert_close(compiled(x), model(x))
    assert compiled.stats.kernels == 2
