"""Verifier, printer and evaluator of lowered graphs: what is wrong is refused, what is right is readable."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from minicompile.errors import VerificationFailed
from minicompile.ir import printer, verify
from minicompile.ir.expr import Constant, Load, Random, apply
from minicompile.ir.index import ONE, ZERO, Axis, as_index
from minicompile.ir.loops import Buffer, BufferView, ExternKernel, Loop, LoweredGraph, Reduction, Scan
from tests.evaluate import EvaluationFailed, draw, evaluate_graph

CPU = torch.device("cpu")
SIZE = as_index(6)
I, R = Axis("i", 6), Axis("r", 6)


def buffer(name: str, role: str = "computed", dtype: torch.dtype = torch.float32) -> Buffer:
    return Buffer(name, dtype, CPU, (SIZE,), (ONE,), role)


def graph_of(*operations, output: str = "y") -> LoweredGraph:
    buffers = {b.name: b for b in (buffer("x", "input"), buffer("y"), buffer("z"))}
    view = BufferView(output, (SIZE,), (ONE,), ZERO, torch.float32)
    return LoweredGraph(("x",), {}, buffers, {}, operations, (view,))


def load(name: str = "x", at=I) -> Load:
    return Load(name, as_index(at), torch.float32)


GOOD = Loop("y", (I,), apply("sin", load(), dtype=torch.float32), as_index(I))

WRONG = [
    ("read before it is written", Loop("y", (I,), load("z"), as_index(I))),
    ("the loop has not", Loop("y", (I,), load(at=R), as_index(I))),
    ("reaches", Loop("y", (I,), Load("x", as_index(I) + 3, torch.float32), as_index(I))),
    ("reaches", Loop("y", (I,), load(), as_index(I) * 2)),
    ("operands of", Loop("y", (I,), apply("add", load(), Constant(1, torch.int64), dtype=torch.float32), as_index(I))),
    ("the result is", Loop("y", (I,), apply("lt", load(), load(), dtype=torch.float32), as_index(I))),
    ("value for", Loop("y", (I,), Constant(1, torch.int64), as_index(I))),
    ("folded", Loop("y", (I,), load(), as_index(I), Reduction("sum", (I,)))),
    ("unknown axis", Loop("y", (I,), load(), as_index(I), Scan("cumsum", R))),
    ("a view of x ends", ExternKernel("torch.ops.aten.sin.default",
     (BufferView("x", (SIZE,), (ONE,), ONE, torch.float32),), (), (buffer("y"),))),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "operation"), WRONG)
def test_a_broken_rule_is_refused_with_its_neighbourhood(fault, operation):
    with pytest.raises(VerificationFailed, match=fault) as raised:
        verify.verify_lowered(graph_of(operation))
    assert ">>>" in str(raised.value)


def test_missing_and_double_results():
    verify.verify_lowered(graph_of(GOOD))
    with pytest.raises(VerificationFailed, match="never computed"):
        verify.verify_lowered(graph_of())
    with pytest.raises(VerificationFailed, match="written twice"):
        verify.verify_lowered(graph_of(GOOD, GOOD))
    old = dataclasses.replace(GOOD, buffer="z", overwrites="y")
    with pytest.raises(VerificationFailed, match="was overwritten"):
        verify.verify_lowered(graph_of(GOOD, old))


def test_the_evaluator_reads_nothing_outside():
    beyond = Loop("y", (I,), Load("x", as_index(I) + 1, torch.float32), as_index(I))
    with pytest.raises(EvaluationFailed, match="reaches"):
        evaluate_graph(graph_of(beyond), [torch.randn(6)])
    (found,) = evaluate_graph(graph_of(GOOD), [torch.arange(6.0)])
    torch.testing.assert_close(found, torch.arange(6.0).sin())


def test_a_loop_prints_like_a_loop():
    text = printer.lowered_text(graph_of(Loop("y", (I,), apply("mul", load(), load(), dtype=torch.float32), as_index(I))))
    assert "for i in 6:" in text and "y[i] = (t0 * t0)" in text and "x: f32[6] by (1) on cpu, input" in text


def test_draws_agree_with_the_reference_operators():
    seeds = torch.tensor([123456789012345, -5])
    counter = torch.arange(6)
    for kind, operator in (("uniform", torch.ops.minicompile.random_uniform), ("normal", torch.ops.minicompile.random_normal)):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            expected = operator(seeds[1:], [6], dtype)
            torch.testing.assert_close(draw(kind, seeds[1], counter, dtype), expected)
    drawn = Loop("y", (I,), Random("uniform", Constant(7, torch.int64), as_index(I), torch.float32), as_index(I))
    (found,) = evaluate_graph(graph_of(drawn), [torch.zeros(6)])
    torch.testing.assert_close(found, torch.ops.minicompile.random_uniform(torch.tensor([7]), [6], torch.float32))
