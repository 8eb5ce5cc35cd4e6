"""Python floats that vary from call to call: eager's results to the bit, at most as many compiles as `torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import minicompile
from tests.capture.support import capture
from tests.end_to_end.float_programs import PROGRAMS, FloatProgram

STRICT = {"suppress_errors": False, "cache": False}


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    """What every program takes before the float."""
    torch.manual_seed(0)
    return torch.randn(3, 5), torch.arange(15).view(3, 5)


def same(left: Any, right: Any, exact: bool) -> None:
    """Require equal results; Python's numbers always to the bit."""
    assert type(left) is type(right)
    if isinstance(right, torch.Tensor):
        assert left.dtype == right.dtype and left.shape == right.shape
        loose = {"rtol": 2e-3, "atol": 2e-3} if right.dtype in (torch.float16, torch.bfloat16) else {}
        tolerance = {"rtol": 0, "atol": 0} if exact else loose
        torch.testing.assert_close(left, right, equal_nan=True, **tolerance)
    elif isinstance(right, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            same(one, other, exact)
    elif isinstance(right, dict):
        assert list(left) == list(right)
        same(list(left.values()), list(right.values()), exact)
    elif isinstance(right, float):
        assert left.hex() == right.hex()
    else:
        assert left == right


def run(program: FloatProgram, compiled: Any, exact: bool) -> None:
    """Call a program with each of its floats, twice, beside eager."""
    x, i = arguments()
    for number in program.numbers * 2:
        same(compiled(x, i, number), program.function(x, i, number), exact)
    assert not compiled.records.fallbacks, compiled.records.fallbacks


def compiles(compiled: Any) -> int:
    """How often the entry was compiled."""
    return len(compiled.cache.entries)


@pytest.mark.parametrize("name", PROGRAMS)
def test_captured_floats_are_exact_and_compile_little(name: str) -> None:
    program = PROGRAMS[name]
    compiled = capture(program.function)
    run(program, compiled, True)
    assert compiles(compiled) <= program.compiles, [each.sentence for each in compiled.records.recompiles]


ONE_FOR_EACH_WHOLE_NUMBER = {"whole_part", "as_a_size", "other_types"}
LEFT_BY_DYNAMO = {"an_error_of_python"}  # by that of torch 2.15, which runs it eagerly from the first zero on


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - ONE_FOR_EACH_WHOLE_NUMBER - LEFT_BY_DYNAMO))
def test_no_more_graphs_than_torch_compile(name: str) -> None:
    program = PROGRAMS[name]
    torch._dynamo.reset()
    counter = CompileCounter()
    theirs, ours = torch.compile(program.function, backend=counter), capture(program.function)
    x, i = arguments()
    for number in program.numbers:
        ours(x, i, number)
        try:
            theirs(x, i, number)
        except (torch._dynamo.exc.TorchRuntimeError, ZeroDivisionError):
            counter.frame_count += 1  # it cannot compile this one at all
    assert len(ours.records.graphs) <= max(counter.frame_count, 2)


IN_PYTHON_ONLY = {"python_arithmetic", "branch", "truth", "clipped_in_python", "whole_part", "text", "functions_of_math",
                  "questions_of_math", "asked_for_its_type", "methods_of_floats", "as_a_size", "as_a_key", "returned",
                  "an_error_of_python", "a_power_that_may_be_complex", "containers", "closures", "temperature"}


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - IN_PYTHON_ONLY))
def test_floats_through_the_whole_compiler(name: str) -> None:
    program = PROGRAMS[name]
    run(program, minicompile.compile(program.function, options=STRICT), False)


DIFFERENTIABLE = ("product", "reflected", "python_arithmetic", "division_and_power", "clamped", "weighted_sums", "fused_products",
                  "powers", "where", "blended", "activations", "norm_by_hand", "temperature", "matrix_products",
                  "a_break_between", "functions_of_math")


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_with_varying_floats(name: str) -> None:
    function = PROGRAMS[name].function

    def loss(x: torch.Tensor, i: torch.Tensor, s: float) -> torch.Tensor:
        values = function(x, i, s)
        values = values if isinstance(values, tuple) else (values,)
        return sum((v.float().sin().sum() for v in values if isinstance(v, torch.Tensor)), torch.zeros(()))

    compiled = minicompile.compile(loss, options={"cache": False})
    x, i = arguments()
    for number in (0.5, 0.7, 0.25, 1.5):
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(mine, i, number).backward()
        loss(theirs, i, number).backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert compiled.stats.fallbacks == 0


@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_a_graph_that_does_not_compile_is_given_up_though_it_takes_a_float_computed_from_a_size() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.unfold(1, 2, 2).mul_(2)  # left to eager
        return y * (x.shape[0] / 2)

    compiled = minicompile.compile(function)
    for rows in (4, 5, 6):
        x = torch.randn(rows, 6)
        assert torch.equal(compiled(x), function(x))
    assert len(compiled.recompiles) == 2
