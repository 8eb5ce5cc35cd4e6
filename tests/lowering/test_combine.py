"""Concatenation, padding and pooling."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tests.lowering.oracle import check, externs


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


def test_upsampling():
    x = torch.randn(1, 2, 4, 5)
    check(lambda a: (F.interpolate(a, scale_factor=2), F.interpolate(a, size=(7, 9), mode="bilinear")), x)
