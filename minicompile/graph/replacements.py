"""Functions of torch that the tracer runs as others, which say the same without what a functional graph cannot hold.

Some share memory where functionalization would see copies, some look at the values of tensors, for a check or for a
gradient. This module must not know of captured graphs.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minicompile.graph import torch_interface


def polygamma_(value: Tensor, order: int) -> Tensor:
    """`Tensor.polygamma_`."""
    return value.copy_(torch.polygamma(order, value.clone()))


def one_hot(index: Tensor, num_classes: int = -1) -> Tensor:
    """`one_hot` without eager's look at the values before anything is computed."""
    if num_classes <= 0:
        return torch.nn.functional.one_hot(index, num_classes)
    index = torch.ops.minicompile.checked(index, (index >= 0) & (index < num_classes))
    return (index.unsqueeze(-1) == torch.arange(num_classes, device=index.device)).long()


def index_fill(value: Tensor, dim: int, index: Tensor, fill: Any) -> Tensor:
    """`index_fill`; the gradient of a tensor `fill` would need the unique values of the index, and what PyTorch makes of
    the operator takes no negative ones."""
    length = value.shape[dim] if value.dim() else 1
    index = torch.where(index < 0, index + length, index)
    if not isinstance(fill, Tensor):
        return torch.ops.aten.index_fill(value, dim, index, fill)
    hit = torch.zeros(length, dtype=torch.bool, device=value.device).index_fill(0, index, True)
    hit = hit.view([-1 if d == dim % value.dim() else 1 for d in range(value.dim())])
    return torch.where(hit, fill.to(value), value)


def index_fill_(value: Tensor, dim: int, index: Tensor, fill: Any) -> Tensor:
    """`Tensor.index_fill_`."""
    return value.copy_(index_fill(value, dim, index, fill))


def index_put(value: Tensor, indices: Sequence[Tensor | None], new: Tensor, accumulate: bool = False) -> Tensor:
    """`index_put`; by one mask, with the same values wherever it holds, it is a `where`: no gradient counts the mask."""
    chosen = masked_place(value, indices, new) if not accumulate else None
    if chosen is None:
        return torch.ops.aten.index_put(value, indices, new, accumulate)
    return torch.where(chosen[0], chosen[1], value)


def index_put_(value: Tensor, indices: Sequence[Tensor | None], new: Tensor, accumulate: bool = False) -> Tensor:
    """`Tensor.index_put_`."""
    chosen = masked_place(value, indices, new) if not accumulate else None
    if chosen is None:
        return torch.ops.aten.index_put_(value, indices, new, accumulate)
    return value.copy_(torch.where(chosen[0], chosen[1], value))


def set_item(value: Any, key: Any, new: Any) -> None:
    """`value[key] = new`."""
    masked = isinstance(value, Tensor) and isinstance(key, Tensor) and isinstance(new, Tensor)
    if masked and key.dtype == torch.bool and key.dim() and new.requires_grad:
        index_put_(value, (key,), new.to(value))
    else:
        operator.setitem(value, key, new)


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """`affine_grid` of which the gradient takes sizes that vary, as that of PyTorch's operator does not."""
    made = torch_interface.torch_decompositions()[torch.ops.aten.affine_grid_generator.default]
    return made(theta, list(size), bool(align_corners))


def dropout(function: Any, input: Tensor, p: float = 0.5, *training: bool, **named: Any) -> Tensor:
    """Dropout, which in eager is its argument where nothing is dropped; PyTorch's rule for symbolic sizes copies."""
    active = training[0] if training else named.get("train", named.get("training", True))
    if p == 0 or not active or torch_interface.surely_equal(input.numel(), 0):
        return input
    return function(input, p, *training, **named)


def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *how: Any, **named: Any
) -> Tensor:
    """`interpolate`; eager writes the nearest of a sequence in order, PyTorch's rule for symbolic sizes does not."""
    result = torch.nn.functional.interpolate(input, size, scale_factor, mode, *how, **named)
    return result.contiguous() if input.dim() == 3 and mode.startswith("nearest") else result


def masked_place(value: Tensor, indices: Sequence[Tensor | None], new: Tensor) -> tuple[Tensor, Tensor] | None:
    """A mask over `value` and what goes there, broadcastable; `None` where the values differ from place to place."""
    masks = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(masks) != 1 or masks[0][1].dtype != torch.bool or not new.requires_grad:
        return None
    first, mask = masks[0]
    after = value.dim() - first - mask.dim()
    if new.dim() > after:
        if new.shape[new.dim() - after - 1] != 1:
            return None
        lead = new.shape[: new.dim() - after - 1]
        new = new.reshape(*lead, *[1] * mask.dim(), *new.shape[new.dim() - after :])
    return mask.reshape(*mask.shape, *[1] * after), new


# Results of the unsafe ones share memory with the input in eager, where functionalization would see copies; and it knows
# no in-place polygamma. Some others look at the values of tensors, for a check or for a gradient. `bernoulli` draws by rows,
# whatever the layout; in the graph, the operator with a `p` stands for `bernoulli_`.
REPLACED: dict[Any, Any] = {
    torch.unsafe_chunk: torch.chunk, torch.unsafe_split: torch.split,
    torch.unsafe_split_with_sizes: torch.split_with_sizes,
    torch.Tensor.unsafe_chunk: torch.chunk, torch.Tensor.unsafe_split: torch.split,
    torch.Tensor.unsafe_split_with_sizes: torch.split_with_sizes, torch.Tensor.polygamma_: polygamma_,
    **dict.fromkeys((torch.bernoulli, torch.Tensor.bernoulli),
                    lambda value, *p, **options: torch.bernoulli(value.contiguous(), *p, **options)),
    **{function: functools.partial(dropout, function) for function in (torch.dropout, torch.nn.functional.dropout)},
    torch.nn.functional.interpolate: interpolate,
    torch.nn.functional.one_hot: one_hot, torch.nn.functional.affine_grid: affine_grid,
    torch.index_fill: index_fill, torch.Tensor.index_fill: index_fill, torch.Tensor.index_fill_: index_fill_,
    torch.index_put: index_put, torch.Tensor.index_put: index_put,
    torch.index_put_: index_put_, torch.Tensor.index_put_: index_put_, operator.setitem: set_item,
}  # fmt: skip
