"""Batch statistics are at least as exact as eager's."""

from __future__ import annotations

import pytest
import torch

from tests.differential import check


@pytest.mark.parametrize("mean", [0.0, 100.0, 3000.0])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 7), (2, 5, 9, 8), (2, 3, 2, 4, 5)])
def test_batch_norm_far_from_zero(shape: tuple[int, ...], mean: float) -> None:
    kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
    torch.manual_seed(3)
    check(kind[len(shape)](shape[1]), torch.randn(shape) * 0.3 + mean)
