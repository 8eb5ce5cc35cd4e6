"""A sum with one term that is not zero becomes that term; every other sum stays a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from minicompile.ir.expr import Constant, Expr, IndexValue
from minicompile.ir.index import Index
from minicompile.ir.loops import Loop, LoweredGraph
from minicompile.scheduling.one_hot import without_one_hot_sums
from tests.scheduling.evaluator import run_graph
from tests.scheduling.hand_made import F32, I64, GraphMaker, op

BOOL = torch.bool
ROWS, CLASSES = 7, 5
TARGETS = np.array([0, 4, 2, 5, -1, -100, 3])


def graph(
    term: str = "own", place: str = "target", kind: str = "sum", other: float = 0.0, turned: bool = False,
    position: torch.dtype = I64,
) -> LoweredGraph:  # fmt: skip
    """`sum(where((r == target) & wanted, gradient, 0))` over classes, or what differs from that in one point."""
    maker = GraphMaker()
    maker.input("target", ROWS, dtype=position)
    maker.input("targets", ROWS, CLASSES, dtype=I64)
    maker.input("wanted", ROWS, dtype=I64)
    maker.input("gradient", ROWS)
    maker.input("gradients", ROWS, CLASSES)

    def body(i: Index, r: Index) -> Expr:
        wants = {"target": maker.load("target", i), "targets": maker.load("targets", i, r), "row": IndexValue(i, I64)}[place]
        sides = (wants, IndexValue(r, position)) if turned else (IndexValue(r, position), wants)
        here = op("eq", *sides, dtype=BOOL)
        wanted = op("eq", maker.load("wanted", i), Constant(1, I64), dtype=BOOL)
        value = maker.load("gradient", i) if term == "own" else maker.load("gradients", i, r)
        return op("where", op("logical_and", here, wanted, dtype=BOOL), value, Constant(other, F32))

    maker.reduce("total", kind, (ROWS, CLASSES), (1,), body)
    return maker.graph("total")


def given() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "target": TARGETS, "targets": rng.integers(0, CLASSES, ROWS * CLASSES), "wanted": np.array([1, 1, 0, 1, 1, 1, 1]),
        "gradient": rng.normal(size=ROWS), "gradients": rng.normal(size=ROWS * CLASSES),
    }  # fmt: skip


def changed(lowered: LoweredGraph) -> tuple[LoweredGraph, bool]:
    """The graph without one-hot sums, and whether no sum is left."""
    operations = without_one_hot_sums(lowered.operations, lowered.buffers)
    (loop,) = operations
    assert isinstance(loop, Loop)
    return LoweredGraph(lowered.inputs, {}, lowered.buffers, {}, operations, lowered.outputs), loop.fold is None


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("place", ["target", "row"])
def test_the_only_term_takes_the_place_of_the_sum(place: str, turned: bool) -> None:
    """Also where the target is no class: then every term is zero."""
    lowered = graph(place=place, turned=turned)
    simple, replaced = changed(lowered)
    assert replaced
    np.testing.assert_array_equal(run_graph(simple, given())[0], run_graph(lowered, given())[0])


@pytest.mark.parametrize("difference", [{"term": "each"}, {"place": "targets"}, {"kind": "max"}, {"other": 1.0}, {"position": torch.uint8}])
def test_other_folds_stay(difference: dict[str, Any]) -> None:
    """Positions in 8 bits come again after 256 of them."""
    lowered = graph(**difference)
    simple, replaced = changed(lowered)
    assert not replaced and simple.operations == lowered.operations
