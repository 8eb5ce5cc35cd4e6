"""Reductions and scans give eager's values for any shape, dtype and layout."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowering.oracle import check, externs

FOLDS = [
    torch.sum, torch.mean, torch.amax, torch.amin, lambda x, d: x.std(d), lambda x, d: x.var(d, correction=0),
    lambda x, d: torch.var_mean(x, d), lambda x, d: torch.linalg.vector_norm(x, 2, d),
    lambda x, d: torch.linalg.vector_norm(x, 1, d), lambda x, d: torch.linalg.vector_norm(x, math.inf, d),
    lambda x, d: torch.linalg.vector_norm(x, 3, d), torch.logsumexp, lambda x, d: x.sum(d, keepdim=True),
    lambda x, d: x.mean(d, keepdim=True), lambda x, d: (x > 0).sum(d), lambda x, d: (x > 0).any(d), lambda x, d: (x > 2).all(d),
]  # fmt: skip
ONE_DIM = [
    torch.argmax, torch.argmin, torch.max, torch.min, torch.prod, torch.cumsum, torch.cumprod, torch.softmax,
    torch.log_softmax, lambda x, d: torch.logcumsumexp(x, d), lambda x, d: torch.cummax(x, d),
]  # fmt: skip


@pytest.mark.parametrize("function", FOLDS)
def test_folds_over_any_dimensions(function):
    x = torch.randn(5, 1, 7, 3)
    for dims in ([0], [3], [1], [0, 2], [2, -1], [0, 1, 2, 3]):
        assert not externs(check(function, x, dims))
    check(function, x.permute(2, 0, 3, 1), [0, 1])
    check(function, torch.randn(4, 1).expand(4, 6), [0])


@pytest.mark.parametrize("function", ONE_DIM)
def test_one_dimension(function):
    x = torch.randn(5, 6, 3)
    for dim in (0, 1, -1):
        check(function, x, dim)
    check(function, x.transpose(0, 2), 1, strides=function not in (torch.softmax, torch.log_softmax))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_precisions_accumulate_in_fp32(dtype):
    x = (torch.randn(3, 4001) + 1).to(dtype)
    for function in (lambda a: a.sum(1), lambda a: a.mean(1), lambda a: a.softmax(1), lambda a: a.var(1), lambda a: a.logsumexp(1)):
        check(function, x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_integers(dtype):
    x = torch.randint(0, 2 if dtype == torch.bool else 9, (4, 5)).to(dtype)
    for function in (lambda a: a.sum(), lambda a: a.sum(1), lambda a: a.prod(0), lambda a: a.any(), lambda a: a.all(1)):
        check(function, x)
    if dtype != torch.bool:
        check(lambda a: (a.amax(1), a.argmax(0), a.max(1), a.cumsum(1)), x)


def test_nan_wins_and_the_first_of_equals_is_taken():
    x = torch.tensor([[1.0, math.nan, 3.0, math.nan], [2.0, 5.0, 5.0, 1.0], [-math.inf] * 4])
    check(lambda a: (a.amax(1), a.amin(1), a.argmax(1), a.argmin(1), a.max(1), a.argmax(), a.logsumexp(1)), x)


def test_empty_and_scalar_tensors():
    check(lambda a: (a.sum(), a.prod(), a.sum(0), a.any(), a.all(), a.mean()), torch.zeros(0, 3))
    check(lambda a: (a.sum(), a.mean(), a.amax(), a.argmax(), a.softmax(0), a.cumsum(0)), torch.tensor(3.5))


@pytest.mark.parametrize("order", [2, 3, -2, 0.5, 0, math.inf])
def test_the_norm_of_one_element_is_its_absolute_value(order: float) -> None:
    """Also where its square is infinite or zero."""
    for value in (1e30, -1e-30, 0.0, -math.inf, math.nan):
        x = torch.full((3, 1), value)
        check(lambda a: (torch.linalg.vector_norm(a, order, 1), torch.linalg.vector_norm(a[:1], order, keepdim=True)), x)
        check(lambda a: (torch.linalg.vector_norm(a, order), torch.linalg.vector_norm(a[0, 0], order)), torch.full((1, 1), value))


def test_norms_of_the_variance_do_not_cancel():
    x = torch.randn(4, 1000, dtype=torch.float32) + 1e4
    check(lambda a: a.var(1), x, slack=10.0)
