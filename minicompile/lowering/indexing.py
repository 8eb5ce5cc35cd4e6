"""Gathers and scatters: reads and writes at positions that are themselves read from memory.

An index out of range fails an assertion before it is used, as in eager: nothing outside a tensor is ever touched. A scatter
copies its target first, unless it writes a graph input in place. This module must not order writes: where two hit one place
without adding up, either may win, as in eager.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

import minicompile.gpu as gpu
from minicompile.ir.expr import Expr, cast, indirect_values
from minicompile.ir.index import ONE, ZERO, Index, Indirect, as_index, product
from minicompile.lowering.builder import GraphBuilder, Indices
from minicompile.lowering.reduction import working_dtype
from minicompile.lowering.registry import UseExtern, lowers
from minicompile.lowering.scalar import (
    Scalar,
    both,
    index_at_least,
    index_below,
    index_value,
    masked,
    number,
    stored,
    where,
)
from minicompile.lowering.sizes import is_empty, is_one, size_index, stride_indices
from minicompile.lowering.values import TensorValue, loop_axes
from minicompile.lowering.view import clamped_position, sliced, unsqueezed, wrap

aten = torch.ops.aten
FEW_ROWS, MANY_TO_A_ROW = 32, 64
"""Tables of fewer rows, each named more often, get their gradients row by row. On an H200, 262,144 gradients of 12 columns take
2.4 ms to be added in memory to 32 rows."""
ADDABLE = (torch.float32, torch.float64, torch.int32, torch.int64)


def position(index: Expr, size: Index, negatives: bool = False, check: bool = True) -> Index:
    """An index read from memory, checked against a dimension of `size`, or clamped where eager does not check."""
    if size.constant == 0:
        raise UseExtern("an index into nothing, which is refused")
    value = Scalar(cast(index, torch.int64))
    extent = index_value(size)
    if negatives:
        value = where(value < 0, value + extent, value)
    inside = (value >= 0) & (value < extent)
    value = value.call("checked", inside) if check else value.call("maximum", 0).call("minimum", extent - 1)
    return as_index(Indirect(value.expr, size))


def picked(value: TensorValue, place: Sequence[Index]) -> Expr:
    """The element at `place`."""
    return checked_for(value, place, value.load(place))


def checked_for(value: TensorValue, place: Sequence[Index], element: Expr) -> Expr:
    """`element`; an index that was read for `place` is checked even where it makes no difference (an expanded tensor)."""
    found = Scalar(element)
    used = indirect_values(value.at(place))
    for read in (read for index in place for read in indirect_values(index) if read not in used):
        found = found.call("checked", Scalar(read) >= 0)
    return found.expr


def replaced(indices: Sequence[Index], dim: int, index: Index) -> list[Index]:
    """`indices` with another one at `dim`."""
    return [index if d == dim else i for d, i in enumerate(indices)]


Places = Callable[[Indices], list[Index]]


def places(value: TensorValue, dim: int, load: Callable[[Indices], Expr]) -> Places:
    """Where in `value` an element is whose index along `dim` is read from memory."""
    if not value.rank:
        raise UseExtern("an index into a 0-d tensor")
    return lambda i: replaced(i, dim, position(load(i), value.sizes[dim]))


def slices(value: TensorValue, dim: int, index: TensorValue) -> Places:
    """The same, by a vector that names whole slices."""
    return places(value, dim, lambda i: index.load([i[dim]] if index.rank else []))


@lowers("gather")
def lower_gather(builder: GraphBuilder, value: TensorValue, dim: int, index: TensorValue, **_: Any) -> TensorValue:
    """`value[i, index[i, j]]`."""
    dim = wrap(dim, value.rank)
    if value.rank != index.rank:
        raise UseExtern("gather between 0-d and 1-d tensors")
    place = places(value, dim, index.load)
    return builder.like_node(lambda i: picked(value, place(i)))


@lowers("index_select")
def lower_index_select(builder: GraphBuilder, value: TensorValue, dim: int, index: TensorValue) -> TensorValue:
    """Whole slices at the positions of a vector."""
    place = slices(value, wrap(dim, value.rank), index)
    return builder.like_node(lambda i: picked(value, place(i)))


@lowers("embedding")
def lower_embedding(builder: GraphBuilder, weight: TensorValue, index: TensorValue, *_: Any) -> TensorValue:
    """Rows of a table."""
    return builder.like_node(lambda i: picked(weight, [position(index.load(i[:-1]), weight.sizes[0]), i[-1]]))


class Selection:
    """`tensor[i, :, j]` with index tensors: which dimension of the result feeds which of the tensor."""

    def __init__(self, sizes: Indices, chosen: Sequence[TensorValue | None], operator: Any) -> None:
        self.sizes, self.check = sizes, operator in (aten.index.Tensor, aten.index_put.default)
        self.chosen = [*chosen, *[None] * (len(sizes) - len(chosen))]
        indexed = [d for d, index in enumerate(self.chosen) if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in self.chosen if index is not None):
            raise UseExtern("indexing by a mask")
        self.shared = _broadcast_sizes([index.sizes for index in self.chosen if index is not None])
        adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
        self.first = indexed[0] if adjacent else 0
        kept = [size for size, index in zip(sizes, self.chosen, strict=True) if index is None]
        self.result_sizes = (*kept[: self.first], *self.shared, *kept[self.first :])

    def source(self, indices: Indices) -> list[Index]:
        """Where in the tensor the result's element at `indices` is."""
        end = self.first + len(self.shared)
        shared, kept = indices[self.first : end], iter((*indices[: self.first], *indices[end:]))
        return [
            next(kept) if index is None else position(index.load_broadcast(shared), size, True, self.check)
            for index, size in zip(self.chosen, self.sizes, strict=True)
        ]


def _broadcast_sizes(shapes: Sequence[Indices]) -> Indices:
    rank = max(map(len, shapes))
    result = [ONE] * rank
    for shape in shapes:
        for d, size in enumerate(shape, rank - len(shape)):
            if not is_one(size):
                result[d] = size
    return tuple(result)


@lowers("index.Tensor _unsafe_index.Tensor")
def lower_index(builder: GraphBuilder, value: TensorValue, chosen: Sequence[TensorValue | None]) -> TensorValue:
    """Advanced indexing by integer tensors."""
    if all(index is None for index in chosen):
        return builder.like_node(value.load)
    selection = Selection(value.sizes, chosen, builder.node.target)
    return builder.like_node(lambda i: picked(value, selection.source(i)))


# Scatters


def _target(builder: GraphBuilder, value: TensorValue, dtype: torch.dtype | None = None) -> TensorValue:
    """What a scatter writes: a graph input in place, or a copy in the node's layout."""
    if torch.are_deterministic_algorithms_enabled() and gpu.holds(builder):
        raise UseExtern("deterministic algorithms are asked for")
    if builder.in_place is not None and dtype in (None, value.dtype):
        return builder.in_place
    return builder.copy(value, strides=stride_indices(builder.val.stride()), dtype=dtype, suffix="base")


def _scattered(
    builder: GraphBuilder, value: TensorValue, sizes: Indices, element: Any, source: Any, accumulate: bool
) -> TensorValue:
    """`value` with `element(i)` written (or added) at `source(i)` for every `i` of a space of `sizes`."""
    dtype = working_dtype(value.dtype) if accumulate else value.dtype
    if accumulate and dtype not in ADDABLE:
        raise UseExtern(f"no atomic addition of {value.dtype}")
    target = _target(builder, value, None if dtype == value.dtype else dtype)
    return _written(builder, target, value.dtype, sizes, element, source, accumulate)


def _written(
    builder: GraphBuilder, target: TensorValue, dtype: torch.dtype, sizes: Indices, element: Any, source: Any,
    accumulate: bool, condition: Any = lambda indices: None,
) -> TensorValue:  # fmt: skip
    """`target`, which is written so where `condition(i)` holds, as a tensor of `dtype`."""
    if not is_empty(sizes):
        indices = loop_axes(sizes)
        place = source(indices)
        target = builder.overwrite(
            target, indices, checked_for(target, place, element(indices)), target.at(place), accumulate=accumulate,
            condition=condition(indices), suffix="sum" if dtype != target.dtype else "",
        )  # fmt: skip
    return target if dtype == target.dtype else builder.like_node(lambda i: cast(target.load(i), dtype))


@lowers("scatter.src scatter.value scatter_add")
def lower_scatter(builder: GraphBuilder, value: TensorValue, dim: int, index: TensorValue, source: Any) -> TensorValue:
    """`value[i, index[i, j]] = source[i, j]`, or `+=`."""
    dim = wrap(dim, value.rank)
    if value.rank != index.rank or (isinstance(source, TensorValue) and source.rank != index.rank):
        raise UseExtern("scatter between 0-d and 1-d tensors")
    accumulate = builder.node.target is torch.ops.aten.scatter_add.default

    def element(indices: Indices) -> Expr:
        return source.load(indices) if isinstance(source, TensorValue) else stored(source, value.dtype)

    rows = tuple(replaced(value.sizes, dim, ONE))
    if index.sizes == rows and value.rank and builder.in_place is None and not (accumulate and value.dtype == torch.bool):
        return _chosen_in_each_row(builder, value, dim, index, element, accumulate)
    return _scattered(builder, value, index.sizes, element, places(value, dim, index.load), accumulate)


def _chosen_in_each_row(
    builder: GraphBuilder, value: TensorValue, dim: int, index: TensorValue, element: Callable[[Indices], Expr], accumulate: bool
) -> TensorValue:
    """One element written (or added) along `dim` in each row: a choice at every element, which fuses with what reads it."""
    wide = working_dtype(value.dtype) if accumulate else value.dtype

    def body(indices: Indices) -> Expr:
        row = tuple(replaced(indices, dim, ZERO))
        (read,) = indirect_values(position(index.load(row), value.sizes[dim]))
        old, new = Scalar(value.load(indices)), Scalar(element(row))
        new = (old.to(wide) + new.to(wide)).to(value.dtype) if accumulate else new
        return where(Scalar(read).equals(index_value(indices[dim])), new, old).expr

    return builder.like_node(body)


@lowers("index_put _unsafe_index_put")
def lower_index_put(
    builder: GraphBuilder, value: TensorValue, chosen: Sequence[TensorValue | None], source: TensorValue,
    accumulate: bool = False,
) -> TensorValue:  # fmt: skip
    """Advanced assignment; by one whole mask and one value it is a `where`."""
    if len(chosen) == 1 and chosen[0] is not None and chosen[0].dtype == torch.bool and not accumulate:
        mask = chosen[0]
        if mask.rank == value.rank and all(map(is_one, source.sizes)) and builder.in_place is None:
            fill = [ZERO] * source.rank
            return builder.like_node(
                lambda i: where(Scalar(mask.load(i)), Scalar(source.load(fill)), Scalar(value.load(i))).expr
            )
    if all(index is None for index in chosen):
        raise UseExtern("an assignment to everything")
    selection = Selection(value.sizes, chosen, builder.node.target)
    return _scattered(builder, value, selection.result_sizes, source.load_broadcast, selection.source, accumulate)


@lowers("index_add index_copy")
def lower_index_add(
    builder: GraphBuilder, value: TensorValue, dim: int, index: TensorValue, source: TensorValue, *, alpha: Any = 1
) -> TensorValue:
    """Slices added or copied to the positions of a vector."""
    dim = wrap(dim, value.rank)
    if source.rank != value.rank:
        raise UseExtern("index_add of a 0-d tensor")

    def element(indices: Indices) -> Expr:
        loaded = Scalar(source.load(indices))
        return loaded.expr if alpha == 1 else (loaded * alpha).expr

    accumulate = builder.node.target is torch.ops.aten.index_add.default
    return _scattered(builder, value, source.sizes, element, slices(value, dim, index), accumulate)


@lowers("embedding_dense_backward")
def lower_embedding_backward(
    builder: GraphBuilder, grad: TensorValue, index: TensorValue, rows: Any, padding: Any, by_frequency: bool
) -> TensorValue:
    """Gradient rows added up by table row, without the padding row."""
    if by_frequency:
        raise UseExtern("gradients scaled by frequency")
    named = product(index.sizes).constant or 0
    if isinstance(rows, int) and 0 < rows <= FEW_ROWS and named >= MANY_TO_A_ROW * rows:
        return _summed_by_row(builder, grad, index, rows, padding)
    if torch.are_deterministic_algorithms_enabled() and gpu.holds(builder):
        raise UseExtern("deterministic algorithms are asked for")
    dtype, sizes = working_dtype(grad.dtype), (size_index(rows), grad.sizes[-1])

    def place(indices: Indices) -> list[Index]:
        return [position(index.load(indices[:-1]), sizes[0]), indices[-1]]

    def kept(indices: Indices) -> Expr | None:
        if isinstance(padding, int) and padding < 0:
            return None
        return Scalar(cast(index.load(indices[:-1]), torch.int64)).differs(padding).expr

    target = builder.pointwise(sizes, dtype, lambda _: number(0, dtype), suffix="zeros")
    return _written(builder, target, grad.dtype, grad.sizes, grad.load, place, True, kept)


def _summed_by_row(
    builder: GraphBuilder, grad: TensorValue, index: TensorValue, rows: int, padding: Any
) -> TensorValue:
    """For every row of a small table the sum of what names it: additions in memory would wait for each other."""
    dtype = working_dtype(grad.dtype)

    def of_row(indices: Indices) -> Expr:
        row, *place, column = indices
        named = Scalar(cast(index.load(place), torch.int64))
        wanted = named.equals(index_value(row)) & index_value(row).differs(padding)
        return masked(wanted, cast(grad.load((*place, column)), dtype), number(0, dtype))

    sizes = (size_index(rows), *grad.sizes)
    total = builder.reduce("sum", sizes, range(1, len(sizes) - 1), dtype, of_row, suffix="sum")
    return builder.like_node(lambda i: cast(total.load(i), grad.dtype))


def _with_region(
    builder: GraphBuilder, value: TensorValue, region: TensorValue, source: TensorValue, inside: Any, element: Any
) -> TensorValue:
    """`value` with `source` in a strided region of it: a select per element, or a write of just the region in place."""
    same_place = (source.sizes, source.strides, source.offset) == (region.sizes, region.strides, region.offset)
    if builder.in_place is not None and same_place and builder.same_storage(source.buffer, builder.in_place.buffer):
        return dataclasses.replace(builder.in_place, buffer=source.buffer)  # the region was written where it is
    if builder.in_place is None or builder.same_storage(source.buffer, builder.in_place.buffer):
        return builder.like_node(lambda i: masked(inside(i), cast(element(i), value.dtype), value.load(i)))
    indices = loop_axes(region.sizes)
    return builder.overwrite(builder.in_place, indices, source.load_broadcast(indices), region.at(indices))


@lowers("slice_scatter")
def lower_slice_scatter(
    builder: GraphBuilder, value: TensorValue, source: TensorValue, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> TensorValue:  # fmt: skip
    """`value[start:end:step] = source`."""
    dim = wrap(dim, value.rank)
    first = ZERO if start is None else clamped_position(start, value.sizes[dim])
    count = source.sizes[dim]
    if is_empty(source.sizes):
        return builder.in_place or builder.like_node(value.load)

    known = first.constant
    steps, rest = (0, 0) if known is None else divmod(known, step)  # places are counted from a whole number of steps

    def inside(indices: Indices) -> Any:
        distance = indices[dim] - first
        from_first = known == rest or index_at_least(distance, ZERO)
        within = both(from_first, index_below(distance, count * step))
        if step == 1 or within is False:
            return within
        return both(within, index_value((distance if known is None else indices[dim]) % step).equals(rest))

    def element(indices: Indices) -> Expr:
        distance = indices[dim] - first
        if step > 1:
            distance = distance // step if known is None else indices[dim] // step - steps
        return source.load(replaced(indices, dim, distance))

    region = sliced(value, dim, first, size_index(step), count)
    return _with_region(builder, value, region, source, inside, element)


@lowers("select_scatter")
def lower_select_scatter(
    builder: GraphBuilder, value: TensorValue, source: TensorValue, dim: int, index: Any
) -> TensorValue:
    """`value[index] = source`: a slice of one."""
    return lower_slice_scatter(builder, value, unsqueezed(source, wrap(dim, value.rank)), dim, index)


@lowers("diagonal_scatter")
def lower_diagonal_scatter(
    builder: GraphBuilder, value: TensorValue, source: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    """`value.diagonal(...) = source`: a select per element."""
    row, column = wrap(dim1, value.rank), wrap(dim2, value.rank)

    def body(indices: Indices) -> Expr:
        on_diagonal = index_value(indices[column] - indices[row]).equals(offset)
        others = [index for dim, index in enumerate(indices) if dim not in (row, column)]
        element = source.load((*others, indices[row if offset >= 0 else column]))
        return masked(on_diagonal, cast(element, value.dtype), value.load(indices))

    return builder.like_node(body)


@lowers("copy_")
def lower_copy_into(builder: GraphBuilder, target: TensorValue, source: TensorValue, *_: Any) -> TensorValue:
    """Writes a graph input."""
    same_place = (source.sizes, source.strides, source.offset) == (target.sizes, target.strides, target.offset)
    if is_empty(target.sizes):
        return target
    if same_place and builder.same_storage(source.buffer, target.buffer):
        return source
    indices = loop_axes(target.sizes)
    value = cast(source.load_broadcast(indices), target.dtype)
    return builder.overwrite(target, indices, value, target.at(indices))
