"""Attention written by hand becomes one operator where that is safe, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.differential import leaf
from tests.graph.programs import check, compile_eagerly, operators
from tests.planned_for_gpu import planned_for_gpu


def causal_tril(q, k, v):
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(8))
    scores = scores.masked_fill(torch.tril(scores.new_ones(6, 6)) == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def causal_large_negative(q, k, v):
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(8)
    hidden = scores.new_ones(6, 6, dtype=torch.bool).triu(1)
    return torch.matmul(scores.masked_fill(hidden, -1e9).softmax(-1), v)


def half_with_wide_softmax(q, k, v):
    scores = q @ k.transpose(-1, -2) / 3.0
    return torch.softmax(scores.float(), -1).to(v.dtype) @ v


def by_einsum(q, k, v):
    weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * 0.3, dim=-1)
    return torch.einsum("bhij,bhjd->bihd", weights, v)


def seeds_form(q, k, v):
    s = torch.einsum("bqd,bkd->bqk", q, k) / math.sqrt(8)
    return torch.softmax(s, dim=-1) @ v


FOUR = [leaf(2, 3, 6, 8) for _ in range(3)]
HALF = [leaf(2, 3, 6, 8, dtype=torch.bfloat16) for _ in range(3)]


@pytest.mark.parametrize(
    ("function", "inputs", "causal"),
    [
        (causal_tril, FOUR, True), (causal_large_negative, FOUR, True),
        (half_with_wide_softmax, HALF, False), (by_einsum, FOUR, False),
        (seeds_form, [leaf(2, 6, 8) for _ in range(3)], False),
    ],
)  # fmt: skip
def test_the_usual_ways_are_found(function: Callable[..., Any], inputs: list[torch.Tensor], causal: bool) -> None:
    tolerance = 2e-2 if inputs[0].dtype == torch.bfloat16 else 1e-5
    compiled = check(function, *inputs, tolerance=tolerance)
    assert "attention" in operators(compiled.partitioned.forward) and not {"bmm", "exp"} & set(operators(compiled.partitioned.forward))
    node = next(n for n in compiled.partitioned.forward.graph.nodes if "attention" in str(n.target))
    assert node.args[6] is causal
    assert compiled.partitioned.patterns[0].accepted


def test_masks_that_are_inputs() -> None:
    mask = torch.rand(2, 1, 6, 6) > 0.3
    mask[..., 0] = True

    def boolean(q, k, v, m):
        return torch.softmax(torch.where(m, q @ k.transpose(-1, -2) / 2.0, float("-inf")), -1) @ v

    def additive(q, k, v, m):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.5 + m, -1) @ v

    assert "attention" in operators(check(boolean, *FOUR, mask).partitioned.forward)
    assert "attention" in operators(check(additive, *FOUR, leaf(1, 3, 6, 6)).partitioned.forward)
    mask[0, 0, 2] = False
    check(boolean, *FOUR, mask)


def test_dropout_of_the_weights_is_taken_in() -> None:
    def attend(q, k, v):
        return F.dropout(torch.softmax(q @ k.mT, -1), 0.5, True) @ v

    assert "attention" in operators(compile_eagerly(attend, *FOUR).partitioned.forward)
    twice = compile_eagerly(lambda q, k, v: F.dropout(F.dropout(torch.softmax(q @ k.mT, -1), 0.5), 0.1) @ v, *FOUR)
    assert "attention" not in operators(twice.partitioned.forward)
    without_training = check(lambda q, k, v: F.dropout(torch.softmax(q @ k.mT, -1), 0.5, False) @ v, *FOUR)
    assert "attention" in operators(without_training.partitioned.forward)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda q, k, v: (lambda w: (w @ v, w))(torch.softmax(q @ k.mT, -1)), "used elsewhere"),
        (lambda q, k, v: (lambda s: torch.softmax(s, -1) @ v + s.sum())(q @ k.mT), "used elsewhere"),
        (lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v, None),
        (lambda q, k, v: torch.softmax(torch.tanh(q @ k.mT), -1) @ v, "tanh"),
        (lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(q[:, :, :, :6] > 0, -5.0), -1) @ v, "-5.0"),
        (lambda q, k, v: torch.softmax((q @ k.mT + v[..., :6]) * 2.0, -1) @ v, "before the scale"),
    ],
)
def test_what_would_change_the_result_is_refused_with_a_reason(function: Callable[..., Any], reason: str | None) -> None:
    compiled = check(function, *FOUR)
    assert "attention" not in operators(compiled.partitioned.forward)
    records = compiled.partitioned.patterns
    assert (not records) if reason is None else reason in records[0].reason


@pytest.mark.parametrize(
    ("heads", "queries", "keys", "options", "replaced"),
    [
        (2, 48, 2048, {}, False), (2, 2048, 48, {}, False), (96, 48, 2048, {}, True), (2, 1, 2048, {}, True), (2, 48, 512, {}, True),
        (2, 2048, 48, {"requires_grad": False}, True), (2, 48, 2048, {"requires_grad": False}, False),
        (2, 48, 2048, {"dtype": torch.bfloat16}, True),
    ],
)  # fmt: skip
def test_few_programs_do_not_walk_along_many_keys(heads: int, queries: int, keys: int, options: dict[str, Any], replaced: bool) -> None:
    few, many = ((torch.randn(heads, length, 8, **({"requires_grad": True} | options))) for length in (queries, keys))
    with planned_for_gpu():
        partitioned = compile_eagerly(seeds_form, few, many, many).partitioned
    assert ("attention" in operators(partitioned.forward)) == replaced
    assert replaced or "programs" in partitioned.patterns[0].reason
