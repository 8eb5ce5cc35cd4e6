"""Strides as eager gives them, where functionalization or a decomposition gives others.

What eager writes in place keeps its gaps (`x[:, ::2].mul_(2)`); functionalization gives it the dense layout of the functional
result. A decomposition of softmax follows the layout of its input, eager's kernel is contiguous. In both cases the result is
copied into eager's layout, and whoever does not look at the layout reads through that copy. This module must not change
a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from minicompile.graph import torch_interface

aten = torch.ops.aten

CHANGES_STRIDES = frozenset(
    "t_ transpose_ swapaxes_ swapdims_ unsqueeze_ squeeze_ as_strided_ resize_ resize_as_ set_".split())
"""Operators that are asked to change what a tensor says of its memory."""

BATCH_NORMS = frozenset(getattr(aten, name) for name in (
    "native_batch_norm _native_batch_norm_legit_functional _native_batch_norm_legit _native_batch_norm_legit_no_training "
    "_batch_norm_with_update_functional _batch_norm_no_update").split())
"""Eager's result is contiguous or `channels_last`, the fake one's like the input."""

Layouts = list[tuple[torch.Tensor, tuple[Any, ...], tuple[Any, ...]]]


def layouts(values: Iterable[Any]) -> Layouts:
    """Shapes and strides of functional tensors of fixed sizes, and of what they are views of."""
    found: dict[int, torch.Tensor] = {}
    for value in values:
        if isinstance(value, torch.Tensor) and not torch_interface.is_symbolic(value):
            found.update((id(tensor), tensor) for tensor in (value._base, value) if tensor is not None)
    return [(value, tuple(value.shape), value.stride()) for value in found.values()]


def restore(before: Layouts) -> None:
    """Give tensors that an operator has written the strides that they had."""
    for value, shape, strides in before:
        inner = torch_interface.from_functional(value)
        if tuple(inner.shape) != shape or same(shape, inner.stride(), strides):
            continue
        with torch_interface.below_functionalization():
            into = aten.empty_strided.default(shape, strides, dtype=inner.dtype, device=inner.device)
            torch_interface.replace(value, aten.copy.default(into, inner))


def same(shape: Iterable[int], first: Iterable[int], second: Iterable[int]) -> bool:
    """Whether two strides put the elements of a tensor at the same places."""
    sizes = tuple(shape)
    return 0 in sizes or all(n == 1 or one == other for n, one, other in zip(sizes, first, second, strict=True))


def plain_layout(values: Iterable[Any]) -> bool:
    """Whether arguments have fixed sizes and lie in memory in order, so that results do in any implementation."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if torch_interface.is_symbolic(value) or not value.is_contiguous():
                return False
        elif isinstance(value, (list, tuple)) and not plain_layout(value):
            return False
    return True


def of_result(func: Any, args: Any, result: Any) -> Any:
    """What stands for the layout of `func`'s results in eager: fake tensors as `result`, which its fake kernel gave."""
    tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
    if func.overloadpacket in BATCH_NORMS:
        last = tensors[0].dim() == 4 and tensors[0].is_contiguous(memory_format=torch.channels_last)
        laid_out = torch.channels_last if last else torch.contiguous_format
        return (result[0].contiguous(memory_format=laid_out), *result[1:])
    if func is aten.max_unpool2d.default and tensors[0].device.type == "cpu" and tensors[0].dim() == 4:
        return result.contiguous(memory_format=torch._prims_common.suggest_memory_format(tensors[0]))
    return result
