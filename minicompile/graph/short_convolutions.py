"""Convolutions with few products for each result, on a GPU, as sums of shifted products.

Such a convolution moves bytes and hardly computes (the filters along a line of Mamba, Hyena and Conv-TasNet; blurs, gradients
and windows of images; changes of colours), but the library's kernels are several times slower than memory, some read only
inputs that lie in order, and they fuse with nothing. Products past either end are left out, not multiplied by zero, so that
infinite values stay where they are. This module must not choose layouts.
"""

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

import minicompile.gpu as gpu

MOST_TAPS = 8
"""Longer filters along a line stay the library's: each tap is a load."""
MOST_PRODUCTS, MOST_CHANNELS = 25, 8
"""The same of images, in all channels of a group, and for how many results of a place these are loaded. There, the library's
kernels are slow in fp32; in half precision only where it filters nothing (1 x 1)."""
Place = tuple[int, ...]


def convolution(
    value: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """`aten.convolution`."""
    if transposed or not is_short(value, weight, stride, padding, dilation, groups):
        return NotImplemented
    reach = [step * (taps - 1) for step, taps in zip(dilation, weight.shape[2:], strict=True)]
    sizes = [size + 2 * pad - far for size, pad, far in zip(value.shape[2:], padding, reach, strict=True)]
    inputs, filters = in_groups(as_added(value), groups), as_added(weight).unflatten(0, (groups, -1))
    products = (
        (inputs[:, :, None, i] * at_taps(filters[:, :, i], taps), place)
        for i in range(weight.shape[1])
        for taps, place in places(weight, padding, dilation)
    )
    total = sum_of_shifted(products, sizes).flatten(1, 2)
    total = total if bias is None else total + as_added(bias).view(-1, *[1] * len(sizes))
    return total.to(value.dtype)


def convolution_backward(
    grad: Tensor, value: Tensor, weight: Tensor, bias_sizes: list[int] | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int, output_mask: list[bool],
) -> Any:  # fmt: skip
    """`aten.convolution_backward`: of the value, the weight and the bias, those that `output_mask` asks for. The gradient of the
    weight of an image's filter is the library's."""
    alone = value.dim() > 3 and output_mask[1] and not (output_mask[0] or output_mask[2])
    many = math.prod(weight.shape[2:]) * weight.shape[0] > MOST_PRODUCTS * groups
    if transposed or alone or many or not is_short(value, weight, stride, padding, dilation, groups):
        return NotImplemented
    of_value = of_weight = of_bias = None
    wide_grad = as_added(grad)
    if output_mask[0]:
        outputs, filters = in_groups(wide_grad, groups), as_added(weight).unflatten(0, (groups, -1))
        products = (
            (outputs[:, :, o, None] * at_taps(filters[:, o], taps), tuple(-right for right in place))
            for o in range(weight.shape[0] // groups)
            for taps, place in places(weight, padding, dilation)
        )
        of_value = sum_of_shifted(products, value.shape[2:]).flatten(1, 2).to(value.dtype)
    if output_mask[1] and value.dim() == 3:
        wide = as_added(value)
        of_taps = [sum_of_products(wide_grad, wide, right) for _, (right,) in places(weight, padding, dilation)]
        of_weight = torch.stack(of_taps, -1).unsqueeze(1).to(weight.dtype)
    elif output_mask[1]:
        rest = (stride, padding, dilation, transposed, output_padding, groups, [False, True, False])
        of_weight = torch.ops.aten.convolution_backward.default(grad, value, weight, bias_sizes, *rest)[1]
    if output_mask[2]:
        of_bias = wide_grad.sum((0, *range(2, value.dim()))).to(grad.dtype)
    return of_value, of_weight, of_bias


def is_short(
    value: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> bool:
    """Whether each result on a GPU is a sum of few products, of filters that reach less far than the line or the image."""
    sizes = (*value.shape, *weight.shape)
    if value.dim() not in (3, 4) or weight.dim() != value.dim() or not all(type(size) is int for size in sizes) or 0 in sizes:
        return False
    if not gpu.holds(value) or not value.is_floating_point() or value.dtype != weight.dtype:
        return False
    results, width, *taps = weight.shape
    if value.shape[1] != groups * width or results % groups or any(step != 1 for step in stride):
        return False
    if min(padding) < 0 or min(dilation) < 1:  # which the library refuses
        return False
    if any(step * (number - 1) >= size for step, number, size in zip(dilation, taps, value.shape[2:], strict=True)):
        return False
    if value.dim() == 3:
        return results == groups and width == 1 and taps[0] <= MOST_TAPS
    few = max(width, results // groups) <= MOST_CHANNELS and width * math.prod(taps) <= MOST_PRODUCTS
    return few and (value.dtype.itemsize >= 4 or max(taps) == 1)


def in_groups(value: Tensor, groups: int) -> Tensor:
    """A batch of signals or images with its channels in groups."""
    return value.unflatten(1, (groups, -1))


def places(weight: Tensor, padding: list[int], dilation: list[int]) -> Iterable[tuple[Place, Place]]:
    """Each tap of a filter, and how far right of its own place its product is added."""
    for taps in itertools.product(*map(range, weight.shape[2:])):
        yield taps, tuple(pad - tap * step for tap, pad, step in zip(taps, padding, dilation, strict=True))


def at_taps(filters: Tensor, taps: Place) -> Tensor:
    """One tap of (groups, channels, taps ...), as what multiplies a batch."""
    for tap in taps:
        filters = filters.select(2, tap)
    return filters[(..., *[None] * len(taps))]


def as_added(value: Tensor) -> Tensor:
    """Halves in fp32, in which their products are added."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def sum_of_shifted(products: Iterable[tuple[Tensor, Place]], sizes: Iterable[int]) -> Tensor:
    """The sum of products, each moved to its place."""
    wanted = tuple(sizes)
    return functools.reduce(torch.add, (shifted(product, place, wanted) for product, place in products))


def shifted(value: Tensor, place: Place, sizes: tuple[int, ...]) -> Tensor:
    """A line or an image moved, with zeros where nothing comes in, and cut to a size."""
    ends = zip(place, sizes, value.shape[-len(sizes) :], strict=True)
    pads = [pad for right, size, before in reversed(list(ends)) for pad in (right, size - before - right)]
    return torch.ops.aten.constant_pad_nd.default(value, pads) if any(pads) else value


def sum_of_products(grad: Tensor, value: Tensor, right: int) -> Tensor:
    """What a tap's gradient is: the products of all places of `grad` and those of `value` that the tap brings there."""
    first, last = max(0, right), min(grad.shape[2], value.shape[2] + right)
    products = grad[:, :, first:last] * value[:, :, first - right : last - right]
    return shifted(products, (first,), (grad.shape[2],)).sum((0, 2))
