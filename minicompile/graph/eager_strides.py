"""Strides as eager gives them, where functionalization or a decomposition gives others.

What eager writes in place keeps its gaps (`x[:, ::2].mul_(2)`); functionalization gives it the dense layout of the functional
result. A decomposition of softmax follows the layout of its input, eager's kernel is contiguous. In both cases the result is
copied into eager's layout, and whoever does not look at the layout reads through that copy. This module must not change
a value.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from minicompile.graph import torch_interface
from minicompile.ir.operator_names import BECOMES_A_VIEW

aten = torch.ops.aten

CHANGES_STRIDES = BECOMES_A_VIEW | {"resize_", "resize_as_", "set_"}
"""Operators that are asked to change what a tensor says of its memory."""

Layouts = list[tuple[torch.Tensor, tuple[Any, ...], tuple[Any, ...]]]


def layouts(values: Iterable[Any]) -> Layouts:
    """Shapes and strides of functional tensors, and of what they are views of."""
    found: dict[int, torch.Tensor] = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            found.update((id(tensor), tensor) for tensor in (value._base, value) if tensor is not None)
    return [(value, tuple(value.shape), value.stride()) for value in found.values()]


def restore(before: Layouts) -> None:
    """Give tensors that an operator has written the strides that they had."""
    for value, shape, strides in before:
        inner = torch_interface.from_functional(value)
        if not equal(inner.shape, shape) or same(shape, inner.stride(), strides):
            continue
        with torch_interface.below_functionalization():
            into = aten.empty_strided.default(shape, strides, dtype=inner.dtype, device=inner.device)
            torch_interface.replace(value, aten.copy.default(into, inner))


def equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two shapes are one, in every call of the graph."""
    return len(first) == len(second) and all(map(torch_interface.surely_equal, first, second))


def same(shape: Iterable[Any], first: Iterable[Any], second: Iterable[Any]) -> bool:
    """Whether two strides put the elements of a tensor at the same places, in every call of the graph."""
    known, sizes = torch_interface.surely_equal, tuple(shape)
    places = zip(sizes, first, second, strict=True)
    return any(known(n, 0) for n in sizes) or all(known(n, 1) or known(one, other) for n, one, other in places)


def laid_out_like(value: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """A result of attention in the order that eager's backend chose, heads or tokens first, where that is not the query's."""
    if value.dim() != 4 or same(value.shape, value.stride(), example.stride()):
        return value
    _, heads, tokens, width = value.shape
    if same(value.shape, (heads * tokens * width, tokens * width, width, 1), example.stride()):
        return value.contiguous()
    if same(value.shape, (heads * tokens * width, width, heads * width, 1), example.stride()):
        return value.transpose(1, 2).contiguous().transpose(1, 2)
    return value


def plain_layout(values: Iterable[Any]) -> bool:
    """Whether the arguments and results of an operator lie in memory in order, as results of such arguments do in eager."""
    for value in values:
        if isinstance(value, torch.Tensor):
            inner = [math.prod(value.shape[dim + 1 :]) for dim in range(value.dim())]
            if not same(value.shape, value.stride(), inner) or says_channels_last(value, inner):
                return False
        elif isinstance(value, (list, tuple)) and not plain_layout(value):
            return False
    return True


def says_channels_last(value: torch.Tensor, inner: Sequence[Any]) -> bool:
    """Whether images of one channel, which lie alike in both layouts, are taken for `channels_last`, as their results are."""
    known = torch_interface.surely_equal
    return value.dim() == 4 and known(value.shape[1], 1) and known(value.stride(1), 1) and not known(inner[1], 1)
