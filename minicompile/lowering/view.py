"""Views: operators that compute nothing and only rewrite accesses.

Flips, rolls and repeats copy in eager; here they are accesses as well, copied only if the value leaves the graph. This
module must not emit loops (copies that a layout forces apart).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from minicompile.errors import Unsupported
from minicompile.ir.index import ONE, ZERO, Index, digits, hint, product, row_major, total, upper_bound
from minicompile.lowering.builder import GraphBuilder, Indices
from minicompile.lowering.registry import Rule, UseExtern, lowers_view
from minicompile.lowering.sizes import is_empty, is_one, size_index, size_indices
from minicompile.lowering.values import TensorValue, loop_axes


def wrap(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + max(rank, 1) if dim < 0 else dim


def result_sizes(builder: GraphBuilder) -> Indices:
    """Sizes of the node's result."""
    return size_indices(builder.val.shape)


def reshaped(value: TensorValue, sizes: Indices) -> TensorValue:
    """`value` with other sizes of the same product."""
    if sizes == value.sizes:
        return value

    def source(indices: Indices) -> Sequence[Index]:
        result = [ZERO] * value.rank
        for old, new in matching_groups(value.sizes, sizes):
            flat = row_major([indices[d] for d in new], [sizes[d] for d in new])
            for dim, index in zip(old, digits(flat, [value.sizes[d] for d in old]), strict=True):
                result[dim] = index
        return result

    return value.reindexed(sizes, source)


def matching_groups(old: Indices, new: Indices) -> list[tuple[list[int], list[int]]]:
    """Cut both shapes into the smallest consecutive groups of equal product; sizes of one are left out."""
    lefts = [d for d, s in enumerate(old) if not is_one(s)]
    rights = [d for d, s in enumerate(new) if not is_one(s)]
    groups: list[tuple[list[int], list[int]]] = []
    while lefts or rights:
        group_left, group_right = lefts[:1], rights[:1]
        del lefts[:1], rights[:1]
        while (a := product(old[d] for d in group_left)) is not (b := product(new[d] for d in group_right)):
            smaller_left = hint(a) < hint(b) or not rights
            if smaller_left and lefts:
                group_left.append(lefts.pop(0))
            elif rights:
                group_right.append(rights.pop(0))
            else:
                break
        groups.append((group_left, group_right))
    return groups


def permuted(value: TensorValue, order: Sequence[int]) -> TensorValue:
    """Dimension `d` of the result is dimension `order[d]` of the value."""

    def source(indices: Indices) -> Sequence[Index]:
        result = [ZERO] * value.rank
        for place, dim in enumerate(order):
            result[dim] = indices[place]
        return result

    return value.reindexed(tuple(value.sizes[d] for d in order), source)


@lowers_view("transpose.int t")
def lower_transpose(builder: GraphBuilder, value: TensorValue, first: int = 0, second: int = 1) -> TensorValue:
    """Two dimensions swapped."""
    order = list(range(value.rank))
    if value.rank > 1:
        a, b = wrap(first, value.rank), wrap(second, value.rank)
        order[a], order[b] = order[b], order[a]
    return permuted(value, order)


@lowers_view("slice.Tensor")
def lower_slice(
    builder: GraphBuilder, value: TensorValue, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> TensorValue:
    """Every `step`-th element between `start` and `end`."""
    dim = wrap(dim, value.rank)
    first = clamped_position(start, value.sizes[dim]) if start is not None else ZERO
    return sliced(value, dim, first, size_index(step), result_sizes(builder)[dim])


def clamped_position(position: Any, size: Index) -> Index:
    """A slice bound as Python reads it, within `[0, size]` (as the sizes seen at compile time have it)."""
    index = size_index(position)
    if hint(index) < 0:
        index = index + size
    return ZERO if hint(index) < 0 else size if hint(index) > hint(size) else index


def sliced(value: TensorValue, dim: int, start: Index, step: Index, size: Index) -> TensorValue:
    """`size` elements of `dim` from `start`, `step` apart."""
    sizes = value.sizes[:dim] + (size,) + value.sizes[dim + 1 :]
    return value.reindexed(sizes, lambda i: [*i[:dim], start + i[dim] * step, *i[dim + 1 :]])


def selected(value: TensorValue, dim: int, index: Index) -> TensorValue:
    """`value[:, ..., index]` at `dim`."""
    if hint(index) < 0:
        index = index + value.sizes[dim]
    return value.reindexed(value.sizes[:dim] + value.sizes[dim + 1 :], lambda i: [*i[:dim], index, *i[dim:]])


def unsqueezed(value: TensorValue, dim: int) -> TensorValue:
    """A size of one put before `dim`."""
    return reshaped(value, value.sizes[:dim] + (ONE,) + value.sizes[dim:])


@lowers_view("as_strided")
def lower_as_strided(
    builder: GraphBuilder, value: TensorValue, sizes: Any, strides: Any, offset: Any = None
) -> TensorValue:
    """Any strided window of the storage, which must be the buffer's own."""
    buffer = builder.buffers[value.buffer]
    if value.stored != value.dtype or value.copied:
        raise Unsupported("as_strided", "as_strided of a value that has no storage of its own")
    own = builder.node.args[0].meta["val"].storage_offset()
    start = value.offset + (ZERO if offset is None else size_index(offset) - size_index(own))
    new_sizes, steps = size_indices(sizes), size_indices(strides)
    if is_empty(new_sizes):
        return value.with_flat(new_sizes, ZERO)
    flat = start + total(index * step for index, step in zip(loop_axes(new_sizes, "v"), steps, strict=True))
    last = total((size - 1) * stride for size, stride in zip(buffer.sizes, buffer.strides, strict=True))
    if value.strides is None or hint(upper_bound(flat)) > hint(last) or hint(start) < 0:
        raise Unsupported("as_strided", "as_strided reaches beyond the tensor's own elements")
    return value.with_flat(new_sizes, flat)


@lowers_view("diagonal")
def lower_diagonal(
    builder: GraphBuilder, value: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    """A diagonal, as the last dimension."""
    first, second = wrap(dim1, value.rank), wrap(dim2, value.rank)
    others = [d for d in range(value.rank) if d not in (first, second)]

    def source(indices: Indices) -> Sequence[Index]:
        by_dim = dict(zip(others, indices, strict=False))
        by_dim[first] = indices[-1] + max(-offset, 0)
        by_dim[second] = indices[-1] + max(offset, 0)
        return [by_dim[d] for d in range(value.rank)]

    return value.reindexed(result_sizes(builder), source)


@lowers_view("unfold")
def lower_unfold(builder: GraphBuilder, value: TensorValue, dim: int, size: int, step: int) -> TensorValue:
    """Windows along a dimension, each as a new last dimension."""
    dim = wrap(dim, value.rank)
    if value.rank == 0:
        return value.reindexed(result_sizes(builder), lambda i: [])
    return value.reindexed(result_sizes(builder), lambda i: [*i[:dim], i[dim] * step + i[-1], *i[dim + 1 : value.rank]])


@lowers_view("split.Tensor split_with_sizes")
def lower_split(builder: GraphBuilder, value: TensorValue, _how: Any, dim: int = 0) -> tuple[TensorValue, ...]:
    """Consecutive pieces of a dimension."""
    dim = wrap(dim, value.rank)
    pieces, start = [], ZERO
    for piece in builder.val:
        size = size_index(piece.shape[dim])
        pieces.append(sliced(value, dim, start, ONE, size))
        start = start + size
    return tuple(pieces)


@lowers_view("flip")
def lower_flip(builder: GraphBuilder, value: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Some dimensions backwards."""
    flipped = {wrap(d, value.rank) for d in dims}
    return value.reindexed(
        value.sizes,
        lambda i: [s - 1 - x if d in flipped else x for d, (x, s) in enumerate(zip(i, value.sizes, strict=True))],
        copied=True,
    )


@lowers_view("roll")
def lower_roll(builder: GraphBuilder, value: TensorValue, shifts: Any, dims: Any = ()) -> TensorValue:
    """Positions moved around a circle."""
    if not dims:
        flat = reshaped(value, (product(value.sizes),))
        return reshaped(_rolled(flat, {0: size_index(shifts[0])}), value.sizes)
    amounts: dict[int, Index] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        dim = wrap(dim, value.rank)
        amounts[dim] = amounts.get(dim, ZERO) + size_index(shift)
    return _rolled(value, amounts)


def _rolled(value: TensorValue, amounts: dict[int, Index]) -> TensorValue:
    def source(indices: Indices) -> Sequence[Index]:
        result = list(indices)
        for dim, shift in amounts.items():
            size = value.sizes[dim]
            result[dim] = (indices[dim] + (size - shift % size)) % size
        return result

    return value.reindexed(value.sizes, source, copied=True)


@lowers_view("repeat")
def lower_repeat(builder: GraphBuilder, value: TensorValue, *_: Any) -> TensorValue:
    """The tensor tiled."""
    sizes = result_sizes(builder)
    lead = len(sizes) - value.rank

    def source(indices: Indices) -> Sequence[Index]:
        return [index % size for index, size in zip(indices[lead:], value.sizes, strict=True)]

    return value.reindexed(sizes, source, copied=True)


@lowers_view("view.dtype")
def lower_view_dtype(builder: GraphBuilder, value: TensorValue, dtype: torch.dtype) -> TensorValue:
    """The same bits read as another dtype of the same width."""
    if dtype.itemsize != value.dtype.itemsize or not {dtype, value.stored} <= builder.movable:
        raise UseExtern("a view as a dtype of another width")
    if torch.bool in (dtype, value.stored):
        raise UseExtern("a view of booleans as numbers")
    return dataclasses.replace(value, dtype=dtype)


TABLE: dict[str, Rule] = {
    "alias detach lift_fresh lift": lambda builder, value, *_: value,
    "view reshape squeeze squeeze.dim squeeze.dims unsqueeze": lambda builder, value, *_: reshaped(value, result_sizes(builder)),
    "expand": lambda builder, value, *_, **__: value.reindexed(result_sizes(builder), value.own_indices),
    "permute": lambda builder, value, order: permuted(value, [wrap(d, value.rank) for d in order]),
    "select.int": lambda builder, value, dim, index: selected(value, wrap(dim, value.rank), size_index(index)),
    "unbind.int": lambda builder, value, dim=0: tuple(
        selected(value, wrap(dim, value.rank), size_index(i)) for i in range(len(builder.val))),
}  # fmt: skip
for _names, _rule in TABLE.items():
    lowers_view(_names)(_rule)
