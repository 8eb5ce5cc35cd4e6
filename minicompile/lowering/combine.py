"""Concatenation, padding and pooling windows: several reads of one or more tensors, some of them masked.

This module must not emit reductions: windows are small and unrolled, larger ones stay extern.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from minicompile.ir.expr import Expr, cast
from minicompile.ir.index import ONE, ZERO, Index, as_index, product, row_major
from minicompile.lowering.builder import GraphBuilder, Indices
from minicompile.lowering.reduction import lower_mean, working_dtype
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
from minicompile.lowering.sizes import size_index
from minicompile.lowering.values import FLOAT8, TensorValue
from minicompile.lowering.view import reshaped, unsqueezed, wrap

MOST_PIECES = 12
MOST_WINDOW_ELEMENTS = 27


@lowers("cat")
def lower_cat(builder: GraphBuilder, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Each element is read from the piece that its position falls into."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 and dtypes & FLOAT8:
        raise UseExtern("8-bit floats beside another dtype, which eager refuses")
    rank = len(builder.val.shape)
    pieces = [t for t in tensors if t.rank == rank and t.sizes[wrap(dim, rank)] is not ZERO]
    return _joined(builder, pieces, wrap(dim, rank))


@lowers("stack")
def lower_stack(builder: GraphBuilder, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Concatenation along a new dimension."""
    dim = wrap(dim, tensors[0].rank + 1)
    return _joined(builder, [unsqueezed(t, dim) for t in tensors], dim)


def _joined(builder: GraphBuilder, pieces: Sequence[TensorValue], dim: int) -> TensorValue:
    if len(pieces) > MOST_PIECES:
        raise UseExtern(f"a concatenation of {len(pieces)} tensors")
    dtype = builder.val.dtype

    def body(indices: Indices) -> Expr:
        starts = [ZERO, *itertools.accumulate(piece.sizes[dim] for piece in pieces)]
        result: Expr | None = None
        for piece, start, end in reversed(list(zip(pieces, starts, starts[1:], strict=False))):
            moved = [*indices[:dim], indices[dim] - start, *indices[dim + 1 :]]
            # Read only from `start` on, also where a select comes around it: its branches are evaluated everywhere.
            element = masked(index_at_least(indices[dim], start), cast(piece.load(moved), dtype), number(0, dtype))
            result = element if result is None else masked(index_below(indices[dim], end), element, result)
        return result if result is not None else number(0, dtype)

    return builder.like_node(body)


@lowers("constant_pad_nd")
def lower_constant_pad(builder: GraphBuilder, value: TensorValue, padding: Sequence[Any], fill: Any = 0) -> TensorValue:
    """A border of one value; negative widths cut."""
    before = [ZERO] * value.rank
    for place, width in enumerate(padding[::2]):
        before[value.rank - 1 - place] = size_index(width)
    outside = stored(fill, value.dtype)

    def body(indices: Indices) -> Expr:
        moved = [index - width for index, width in zip(indices, before, strict=True)]
        return masked(_within(moved, value.sizes), value.load(moved), outside)

    return builder.like_node(body)


@lowers("reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward")
def lower_reflection_gradient(
    builder: GraphBuilder, grad: TensorValue, value: TensorValue, padding: Sequence[Any]
) -> TensorValue:
    """Each element takes the gradients of itself and of its images in the border."""
    if not all(isinstance(width, int) and width >= 0 for width in padding):
        raise UseExtern("a reflected border that cuts, or whose width varies")
    widths = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    wide, lead = working_dtype(grad.dtype), value.rank - len(widths)

    def images(index: Index, size: Index, before: int, after: int) -> list[tuple[Index, bool | Scalar]]:
        last = size - 1
        left = both(index_at_least(index, ONE), index_below(index, as_index(before + 1)))
        right = both(index_at_least(index, last - after), index_below(index, last))
        mirrored = [(as_index(before) - index, left)] * (before > 0) + [(last * 2 + before - index, right)] * (after > 0)
        return [(index + before, True), *mirrored]

    def body(indices: Indices) -> Expr:
        of_dims = [images(*each) for each in zip(indices[lead:], value.sizes[lead:], *zip(*widths, strict=True), strict=True)]
        first, *others = (
            Scalar(masked(both(*(exists for _, exists in found)), cast(grad.load(place), wide), number(0, wide)))
            for found in itertools.product(*of_dims)
            for place in [(*indices[:lead], *(there for there, _ in found))]
        )
        return cast(sum(others, first).expr, grad.dtype)

    return builder.like_node(body)


def _within(indices: Sequence[Index], sizes: Sequence[Index]) -> bool | Scalar:
    """Whether every index is inside its dimension."""
    tests = ((index_at_least(i, ZERO), index_below(i, s)) for i, s in zip(indices, sizes, strict=True))
    return both(*itertools.chain.from_iterable(tests))


# Pooling


class Windows:
    """The windows of a pooling operator over the last dimensions of a tensor."""

    def __init__(
        self, builder: GraphBuilder, value: TensorValue, kernel: Any, stride: Any, padding: Any, dilation: Any = 1
    ) -> None:
        self.value, dims = value, 3 if "3d" in builder.node.target._opname else 2
        self.kernel = _per_dimension(kernel, dims)
        self.stride = _per_dimension(stride, dims) if stride != [] and stride is not None else self.kernel
        self.padding = _per_dimension(padding, dims)
        self.dilation = _per_dimension(dilation, dims)
        self.lead = value.rank - dims
        if math.prod(self.kernel) > MOST_WINDOW_ELEMENTS:
            raise UseExtern(f"a pooling window of {math.prod(self.kernel)} elements")
        if any(size is ZERO for size in value.sizes):
            raise UseExtern("pooling of nothing")

    def elements(self, indices: Indices) -> list[tuple[list[Index], bool | Scalar]]:
        """Each element of the window at `indices`, in row-major order: its place and whether it exists."""
        here = zip(indices[self.lead :], self.stride, self.padding, strict=True)
        starts = [index * step - pad for index, step, pad in here]
        found = []
        for offsets in itertools.product(*map(range, self.kernel)):
            inner = [s + o * d for s, o, d in zip(starts, offsets, self.dilation, strict=True)]
            found.append(([*indices[: self.lead], *inner], _within(inner, self.value.sizes[self.lead :])))
        return found


    def around(self, indices: Indices, counts: Indices) -> list[tuple[Indices, bool | Scalar]]:
        """Each window, of `counts` along every dimension, that the element at `indices` may lie in: its place, and whether the
        element does."""
        inner = [index + pad for index, pad in zip(indices[self.lead :], self.padding, strict=True)]
        found = []
        for back in itertools.product(*(range((k - 1) // s, -1, -1) for k, s in zip(self.kernel, self.stride, strict=True))):
            place = [index // step - steps for index, step, steps in zip(inner, self.stride, back, strict=True)]
            within = (
                index_below(index % step + steps * step, as_index(size))
                for index, step, steps, size in zip(inner, self.stride, back, self.kernel, strict=True)
            )
            found.append(((*indices[: self.lead], *place), both(_within(place, counts[self.lead :]), *within)))
        return found

    def count_inside(self, place: Indices) -> Scalar:
        """How many elements of the tensor the window at `place` holds."""
        count = index_value(ONE)
        for index, size, step, pad, length in zip(
            place[self.lead :], self.value.sizes[self.lead :], self.stride, self.padding, self.kernel, strict=True
        ):
            start = index_value(index * step - pad)
            end = (start + length).call("minimum", index_value(size))
            count = count * (end - start.call("maximum", 0))
        return count


def _per_dimension(given: Any, dims: int) -> list[int]:
    values = [given] if isinstance(given, int) else list(given)
    return values * dims if len(values) == 1 else values


@lowers("max_pool2d_with_indices max_pool3d_with_indices")
def lower_max_pool(
    builder: GraphBuilder, value: TensorValue, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """The largest element of every window, and where it is."""
    windows = Windows(builder, value, kernel, list(stride), padding, dilation)
    lowest = -math.inf if value.dtype.is_floating_point else torch.iinfo(value.dtype).min

    def best(indices: Indices) -> tuple[Scalar, Scalar]:
        found = windows.elements(indices)
        elements = [Scalar(masked(exists, value.load(at), number(lowest, value.dtype))) for at, exists in found]
        places = [index_value(row_major(at[windows.lead :], value.sizes[windows.lead :])) for at, _ in found]
        largest, place = elements[0], places[-1]
        for first, (_, exists) in reversed(list(zip(places, found, strict=True))):  # that exists, if no element is larger
            place = where(exists, first, place) if isinstance(exists, Scalar) else first if exists else place
        for element, there in zip(elements[1:], places[1:], strict=True):
            better = (element > largest) | element.is_nan()
            largest, place = where(better, element, largest), where(better, there, place)
        return largest, place

    return builder.like_node(lambda i: best(i)[0].expr, 0), builder.like_node(lambda i: best(i)[1].expr, 1)


@lowers("avg_pool2d avg_pool3d")
def lower_average_pool(
    builder: GraphBuilder, value: TensorValue, kernel: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> TensorValue:  # fmt: skip
    """The mean of every window."""
    windows = Windows(builder, value, kernel, list(stride), padding)
    if ceil_mode and count_include_pad and divisor_override is None:
        raise UseExtern("average pooling whose windows may leave the padding")
    wide = working_dtype(value.dtype)
    if not wide.is_floating_point:
        raise UseExtern("average pooling of integers")

    def body(indices: Indices) -> Expr:
        found = windows.elements(indices)
        first, *others = (Scalar(masked(exists, cast(value.load(at), wide), number(0, wide))) for at, exists in found)
        divisor: Any = divisor_override or math.prod(windows.kernel)
        if divisor_override is None and not count_include_pad:
            divisor = sum(int(exists) if isinstance(exists, bool) else exists.to(wide) for _, exists in found)
        return cast((sum(others, first) / divisor).expr, value.dtype)

    return builder.like_node(body)


@lowers("avg_pool2d_backward avg_pool3d_backward")
def lower_average_pool_gradient(
    builder: GraphBuilder, grad: TensorValue, value: TensorValue, kernel: Any, stride: Any, padding: Any,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> TensorValue:  # fmt: skip
    """Each element takes its share of the gradients of the windows that it lies in."""
    windows = Windows(builder, value, kernel, list(stride), padding)
    if ceil_mode:
        raise UseExtern("average pooling whose last windows are cut")
    wide = working_dtype(grad.dtype)

    def share(place: Indices) -> Scalar:
        divisor: Any = divisor_override or math.prod(windows.kernel)
        if divisor_override is None and not count_include_pad and any(windows.padding):
            divisor = windows.count_inside(place).to(wide)
        return Scalar(cast(grad.load(place), wide)) / divisor

    def body(indices: Indices) -> Expr:
        found = windows.around(indices, grad.sizes)
        first, *others = (Scalar(masked(exists, share(place).expr, number(0, wide))) for place, exists in found)
        return cast(sum(others, first).expr, grad.dtype)

    return builder.like_node(body)


@lowers("_adaptive_avg_pool2d")
def lower_adaptive_average(builder: GraphBuilder, value: TensorValue, sizes: Sequence[int]) -> TensorValue:
    """A mean over equal blocks where the sizes divide."""
    return lower_mean(builder, *equal_blocks(value, sizes))


@lowers("_adaptive_avg_pool2d_backward")
def lower_adaptive_average_gradient(builder: GraphBuilder, grad: TensorValue, value: TensorValue) -> TensorValue:
    """Each element takes its share of the gradient of its block, where the sizes divide."""
    blocks, dims = equal_blocks(value, grad.sizes[-2:])
    sides = [blocks.sizes[dim] for dim in dims]
    wide = working_dtype(grad.dtype)

    def body(indices: Indices) -> Expr:
        place = (*indices[:-2], *(index // side for index, side in zip(indices[-2:], sides, strict=True)))
        return (Scalar(cast(grad.load(place), wide)) / product(sides)).to(grad.dtype).expr

    return builder.like_node(body)


@lowers("adaptive_max_pool2d")
def lower_adaptive_maximum(builder: GraphBuilder, value: TensorValue, sizes: Sequence[int]) -> Any:
    """The largest elements of equal blocks; where somebody asks for their places, the library's, which tells NaNs apart."""
    if any(user.args[1] == 1 for user in builder.node.users):
        raise UseExtern("places of largest elements")
    blocks, dims = equal_blocks(value, sizes)
    largest = builder.reduce("max", blocks.sizes, dims, value.dtype, blocks.load, suffix="values")
    return builder.like_node(largest.load, 0), None


def equal_blocks(value: TensorValue, sizes: Sequence[Any]) -> tuple[TensorValue, list[int]]:
    """The last dimensions cut into a number of blocks each, and the dimensions along which the elements of these lie."""
    counts = [size_index(size) for size in sizes]
    lead, cut = value.sizes[: -len(counts)], value.sizes[-len(counts) :]
    if any(size.constant in (None, 0) for size in (*cut, *counts)) or any(
        size % count != ZERO for size, count in zip(cut, counts, strict=True)
    ):
        raise UseExtern("blocks that are not equal")
    parts = itertools.chain.from_iterable((count, size // count) for size, count in zip(cut, counts, strict=True))
    return reshaped(value, (*lead, *parts)), [len(lead) + 1 + 2 * dim for dim in range(len(counts))]


@lowers(
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
    "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward"
)
def lower_nearest_gradient(
    builder: GraphBuilder, grad: TensorValue, output_size: Sequence[int], input_size: Sequence[int], *scales: float | None
) -> TensorValue:
    """The sum of each block that an element was repeated to, if the sides are powers of two: floats divide by those exactly."""
    blocks, dims = equal_blocks(grad, input_size[2:])
    for side, scale in itertools.zip_longest((blocks.sizes[dim].constant or 0 for dim in dims), scales):
        if side & (side - 1) or scale not in (None, side):
            raise UseExtern("resizing by another scale than a power of two")
    wide = working_dtype(grad.dtype)
    total = builder.reduce("sum", blocks.sizes, dims, wide, lambda i: cast(blocks.load(i), wide), suffix="sum")
    return builder.like_node(lambda i: cast(total.load(i), grad.dtype))
