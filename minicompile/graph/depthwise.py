"""Short one-dimensional convolutions of each channel by itself, on a GPU, as sums of shifted products.

Such a convolution (those of Mamba, Hyena, Conv-TasNet) moves bytes and hardly computes, but the library's kernel is several
times slower than memory, reads only inputs that lie in order, and fuses with nothing. Products past either end are left
out, not multiplied by zero, so that infinite values stay where they are. This module must not choose layouts.
"""

import functools
from typing import Any

import torch
from torch import Tensor

import minicompile.gpu as gpu

MOST_TAPS = 8
"""Longer filters stay the library's: each tap is a load."""


def convolution(
    value: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """`aten.convolution`."""
    if transposed or not is_short(value, weight, stride, padding, dilation, groups):
        return NotImplemented
    length = value.shape[2] + 2 * padding[0] - dilation[0] * (weight.shape[2] - 1)
    total = filtered(as_added(value), as_added(weight), offsets(weight, padding, dilation), length)
    total = total if bias is None else total + as_added(bias).unsqueeze(-1)
    return total.to(value.dtype)


def convolution_backward(
    grad: Tensor, value: Tensor, weight: Tensor, bias_sizes: list[int] | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int, output_mask: list[bool],
) -> Any:  # fmt: skip
    """`aten.convolution_backward`: of the value, the weight and the bias, those that `output_mask` asks for."""
    if transposed or not is_short(value, weight, stride, padding, dilation, groups):
        return NotImplemented
    wide, wide_grad, places = as_added(value), as_added(grad), offsets(weight, padding, dilation)
    of_value = of_weight = of_bias = None
    if output_mask[0]:
        back = [-place for place in places]
        of_value = filtered(wide_grad, as_added(weight), back, value.shape[2]).to(value.dtype)
    if output_mask[1]:
        of_taps = [sum_of_products(wide_grad, wide, place) for place in places]
        of_weight = torch.stack(of_taps, -1).unsqueeze(1).to(weight.dtype)
    if output_mask[2]:
        of_bias = wide_grad.sum((0, 2)).to(grad.dtype)
    return of_value, of_weight, of_bias


def is_short(
    value: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> bool:
    """Whether each channel of a line on a GPU has a filter of its own, of few taps, that reaches less far than the line."""
    if weight.dim() != 3 or not gpu.holds(value) or not value.is_floating_point() or value.dtype != weight.dtype:
        return False
    channels, width, taps = weight.shape
    sizes = (*value.shape, *weight.shape)
    if not all(type(size) is int for size in sizes) or 0 in sizes or value.dim() != 3 or value.shape[1] != channels:
        return False
    depthwise = groups == channels and width == 1 and taps <= MOST_TAPS and stride[0] == 1
    return depthwise and padding[0] >= 0 and dilation[0] * (taps - 1) < value.shape[2]


def offsets(weight: Tensor, padding: list[int], dilation: list[int]) -> list[int]:
    """How far right of its own place each tap's product is added."""
    return [padding[0] - tap * dilation[0] for tap in range(weight.shape[2])]


def as_added(value: Tensor) -> Tensor:
    """Halves in fp32, in which their products are added."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def filtered(value: Tensor, weight: Tensor, places: list[int], length: int) -> Tensor:
    """The sum of each tap's products, moved to its place."""
    products = [shifted(value * weight[:, :, tap], place, length) for tap, place in enumerate(places)]
    return functools.reduce(torch.add, products)


def shifted(value: Tensor, right: int, length: int) -> Tensor:
    """A line moved, with zeros where nothing comes in, and cut to a length."""
    return torch.ops.aten.constant_pad_nd.default(value, [right, length - value.shape[2] - right])


def sum_of_products(grad: Tensor, value: Tensor, right: int) -> Tensor:
    """What a tap's gradient is: the products of all places of `grad` and those of `value` that the tap brings there."""
    first, last = max(0, right), min(grad.shape[2], value.shape[2] + right)
    products = grad[:, :, first:last] * value[:, :, first - right : last - right]
    return shifted(products, first, grad.shape[2]).sum((0, 2))
