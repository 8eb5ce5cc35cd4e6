"""Concatenation, padding and pooling."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.oracle import check, externs

aten = torch.ops.aten


def test_concatenation():
    a, b, c = torch.randn(2, 3), torch.randn(2, 1), torch.randn(2, 4)
    assert not externs(check(lambda x, y, z: (torch.cat([x, y, z], 1), torch.cat([y, x], -1) * 2), a, b, c))
    check(lambda x, y: (torch.stack([x, y]), torch.stack([x, y], -1), torch.hstack([x, y])), a, a.clone())
    check(lambda x, y: torch.cat([x, y.half()]), a, a.clone())
    check(lambda x: torch.cat([x, torch.zeros(0), x]), a)
    check(lambda x: torch.cat([x] * 20), a)


def test_padding():
    x = torch.randn(2, 3, 4)
    check(lambda a: (F.pad(a, (1, 2)), F.pad(a, (1, 0, 2, 1), value=3.0), F.pad(a, (-1, 2)), F.pad(a, (-1, -1))), x)
    check(lambda a: (F.pad(a, (1, 2), mode="reflect"), F.pad(a, (2, 1), mode="replicate")), x)


def test_pooling():
    x = torch.randn(2, 3, 8, 9)
    assert not externs(check(lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True), x))
    check(lambda a: F.max_pool2d(a, 2, 2, ceil_mode=True, return_indices=True), x)
    check(lambda a: F.max_pool2d(a, 2, 1, dilation=2, return_indices=True), x)
    check(lambda a: (F.avg_pool2d(a, 2), F.avg_pool2d(a, 3, 2, 1), F.avg_pool2d(a, 3, 2, 1, count_include_pad=False)), x)
    check(lambda a: F.adaptive_avg_pool2d(a, (4, 3)), x)
    special = x.clone()
    special[0, 0, :3, :3] = -math.inf
    special[1, 1, 4, 4] = math.nan
    check(lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True), special)
    check(lambda a: F.max_pool2d(a, 2).to(torch.float32), x.bfloat16())
    assert not externs(check(lambda a: (F.adaptive_max_pool2d(a, (4, 3)), F.adaptive_max_pool1d(a[0], 1)), special))
    assert externs(check(lambda a: F.adaptive_max_pool2d(a, (4, 3), return_indices=True), special))
    assert externs(check(lambda a: F.adaptive_max_pool2d(a, (3, 2)), special))


WINDOWS = [([2], [2], [0]), ([3], [2], [1]), ([3], [1], [1]), ([2], [3], [0]), ([5], [2], [2]), ([3, 2], [2, 1], [1, 0])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kernel", "stride", "padding"), WINDOWS)
@pytest.mark.parametrize(("counted", "divisor"), [(True, None), (False, None), (False, 5)])
def test_gradients_of_averages(kernel: Any, stride: Any, padding: Any, counted: bool, divisor: Any, dtype: torch.dtype) -> None:
    """Of windows that overlap, leave gaps, or hang over the border; where the last one is cut they are the library's."""
    x = torch.randn(2, 3, 8, 9, dtype=dtype)
    for cut in (False, True):
        settings = kernel, stride, padding, cut, counted, divisor
        grad = torch.randn_like(F.avg_pool2d(x, *settings))
        assert bool(externs(check(lambda g, a: aten.avg_pool2d_backward(g, a, *settings), grad, x))) == cut


def test_gradients_of_averages_over_blocks_and_volumes() -> None:
    x, volume = torch.randn(2, 3, 8, 9), torch.randn(2, 5, 6, 7)
    assert not externs(check(aten._adaptive_avg_pool2d_backward, torch.randn(2, 3, 4, 3), x))
    assert externs(check(aten._adaptive_avg_pool2d_backward, torch.randn(2, 3, 5, 3), x))
    settings = [3], [2], [1], False, False, None
    grad = torch.randn_like(F.avg_pool3d(volume, *settings))
    assert not externs(check(lambda g, a: aten.avg_pool3d_backward(g, a, *settings), grad, volume))


NEAREST = [
    (aten.upsample_nearest1d_backward, [6], [3]),
    (aten.upsample_nearest2d_backward, [6, 16], [3, 4]),
    (aten.upsample_nearest3d_backward, [2, 6, 8], [2, 3, 4]),
    (aten._upsample_nearest_exact2d_backward, [6, 8], [3, 4]),
]


@pytest.mark.parametrize(("operator", "large", "small"), NEAREST)
def test_gradients_of_nearest_neighbours(operator: Any, large: list[int], small: list[int]) -> None:
    """Sums of blocks where each side is a power of two, which floats divide by exactly; else they are the library's."""
    scales = [float(size // old) for size, old in zip(large, small, strict=True)]
    for dtype in (torch.float32, torch.bfloat16):
        grad = torch.randn(2, 3, *large, dtype=dtype)
        assert not externs(check(lambda g: operator(g, large, [2, 3, *small]), grad))
        assert not externs(check(lambda g: operator(g, large, [2, 3, *small], *scales), grad))
    other = [size * 3 for size in small]
    assert externs(check(lambda g: operator(g, other, [2, 3, *small]), torch.randn(2, 3, *other)))
    scales[-1] *= 1.01
    assert externs(check(lambda g: operator(g, large, [2, 3, *small], *scales), torch.randn(2, 3, *large)))


def test_upsampling():
    x = torch.randn(1, 2, 4, 5)
    check(lambda a: (F.interpolate(a, scale_factor=2), F.interpolate(a, size=(7, 9), mode="bilinear")), x)


@pytest.mark.parametrize(("shape", "padding"), [
    ((2, 3, 7), (2, 1)), ((3, 7), (6, 6)), ((2, 3, 5, 6), (1, 2, 3, 4)), ((2, 3, 5, 6), (0, 2, 4, 0)), ((3, 5, 6), (5, 5, 4, 4)),
    ((2, 2, 4, 5, 6), (1, 2, 3, 4, 2, 3)), ((2, 1, 2, 2), (1, 1, 1, 1)),
])  # fmt: skip
def test_gradients_of_reflected_borders_come_back_to_what_they_are_images_of(shape, padding):
    x = torch.randn(shape)
    gradient = getattr(aten, f"reflection_pad{len(padding) // 2}d_backward")
    grad = torch.randn_like(F.pad(x, padding, mode="reflect"))
    assert not externs(check(lambda g, a: gradient(g, a, padding), grad, x))
