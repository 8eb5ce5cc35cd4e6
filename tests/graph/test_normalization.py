"""Statistics and gradients of norms are at least as exact as eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import minicompile
from tests.differential import check


@pytest.mark.parametrize("mean", [0.0, 100.0, 3000.0])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 7), (2, 5, 9, 8), (2, 3, 2, 4, 5)])
def test_batch_norm_far_from_zero(shape: tuple[int, ...], mean: float) -> None:
    kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
    torch.manual_seed(3)
    check(kind[len(shape)](shape[1]), torch.randn(shape) * 0.3 + mean)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.LayerNorm(6), nn.InstanceNorm2d(8, affine=True)], ids=lambda norm: type(norm).__name__)
def test_parameters_of_fp32_over_halves_have_gradients_of_fp32(norm: nn.Module, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm, exact = copy.deepcopy(norm), copy.deepcopy(norm).double()
    x, grad = (torch.randn(3, 8, 5, 6) + 2).to(dtype), torch.randn(3, 8, 5, 6).to(dtype)
    for function, value, incoming in ((minicompile.compile(norm), x, grad), (exact, x.double(), grad.double())):
        function(value).backward(incoming)
    for parameter, reference in zip(norm.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, reference.grad.float(), rtol=1e-5, atol=1e-4)
