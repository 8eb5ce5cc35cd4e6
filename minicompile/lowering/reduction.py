"""Reductions, and the operators that are a reduction with pointwise work around it.

A loop has no work after its fold, so a mean is a sum into fp32 and a division. Half precisions are folded from fp32
values into fp32 buffers wherever more work follows. This module must not know how a fold is scheduled.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from minicompile.ir.expr import Expr, cast
from minicompile.ir.index import ONE, ZERO, product
from minicompile.lowering.builder import GraphBuilder, Indices
from minicompile.lowering.registry import UseExtern, lowers
from minicompile.lowering.scalar import Scalar, index_value, number
from minicompile.lowering.sizes import is_empty, is_one, size_indices, stride_indices
from minicompile.lowering.values import HALVES, TensorValue
from minicompile.lowering.view import reshaped, wrap


def dims_of(value: TensorValue, dims: Any) -> list[int]:
    """The dimensions to fold; none given means all."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(value.rank))
    if value.rank == 0:
        return []
    return sorted({wrap(d, value.rank) for d in ([dims] if isinstance(dims, int) else dims)})


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """What statistics are kept in."""
    return torch.float32 if dtype in HALVES else dtype


def _node_strides(builder: GraphBuilder) -> Indices:
    return stride_indices(builder.val.stride())


def _fold(
    builder: GraphBuilder, kind: Any, value: TensorValue, dims: list[int], body: Callable[[Scalar], Scalar],
    *, dtype: torch.dtype, keepdim: bool,
) -> TensorValue:  # fmt: skip
    """One fold whose result is the node's."""
    return builder.reduce(
        kind, value.sizes, dims, dtype, lambda i: body(Scalar(value.load(i))).expr,
        keepdim=keepdim, strides=_node_strides(builder),
    )  # fmt: skip


@lowers("sum sum.dim_IntList prod prod.dim_int")
def lower_total(
    builder: GraphBuilder, value: TensorValue, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    """Integers and booleans add up, or multiply, in int64."""
    result, kind = builder.val.dtype, builder.node.target._opname
    return _fold(builder, kind, value, dims_of(value, dims), lambda x: x.to(result), dtype=result, keepdim=keepdim)


@lowers("amax max amin min")
def lower_extreme(builder: GraphBuilder, value: TensorValue, dims: Any = None, keepdim: bool = False) -> TensorValue:
    """The largest or smallest element."""
    kind = builder.node.target._opname.removeprefix("a")
    return _fold(builder, kind, value, dims_of(value, dims), lambda x: x, dtype=value.dtype, keepdim=keepdim)


@lowers("any any.dim any.dims")
def lower_any(builder: GraphBuilder, value: TensorValue, dims: Any = None, keepdim: bool = False) -> TensorValue:
    """Some element is non-zero."""
    chosen = [] if isinstance(dims, (list, tuple)) and not dims else dims_of(value, dims)
    found = _fold(builder, "any", value, chosen, lambda x: x.to(torch.bool), dtype=torch.bool, keepdim=keepdim)
    return found if builder.val.dtype == torch.bool else builder.like_node(found.load)


def _position(builder: GraphBuilder, kind: Any, value: TensorValue, dims: list[int], keepdim: bool) -> TensorValue:
    """Where the extreme is, in row-major order of the folded dimensions."""
    if is_empty(value.sizes[d] for d in dims):
        raise UseExtern("a position in nothing")
    strides = None if isinstance(builder.val, (tuple, list)) else _node_strides(builder)
    if all(is_one(value.sizes[d]) for d in dims):
        kept = tuple(ONE if d in dims else s for d, s in enumerate(value.sizes) if keepdim or d not in dims)
        return builder.pointwise(kept, torch.int64, lambda _: index_value(ZERO).expr, strides=strides, suffix=kind)
    return builder.reduce(
        kind, value.sizes, dims, torch.int64, value.load, keepdim=keepdim, strides=strides, suffix=kind
    )


@lowers("argmax argmin")
def lower_position(builder: GraphBuilder, value: TensorValue, dim: Any = None, keepdim: bool = False) -> TensorValue:
    """Position of the largest or smallest element."""
    return _position(builder, builder.node.target._opname, value, dims_of(value, dim), keepdim)


@lowers("max.dim min.dim")
def lower_extreme_with_position(builder: GraphBuilder, value: TensorValue, dim: int, keepdim: bool = False) -> Any:
    """The largest or smallest element, and where it is."""
    kind, dims = builder.node.target._opname, dims_of(value, dim)
    if value.dtype == torch.bool:
        raise UseExtern("extreme positions of booleans")
    extreme = builder.reduce(kind, value.sizes, dims, value.dtype, value.load, keepdim=keepdim, suffix="values")
    return extreme, _position(builder, f"arg{kind}", value, dims, keepdim)


def wide_sum(builder: GraphBuilder, value: TensorValue, dims: list[int], wide: torch.dtype, keepdim: bool) -> TensorValue:
    """The sum in a wide dtype."""
    return builder.reduce("sum", value.sizes, dims, wide, lambda i: cast(value.load(i), wide), keepdim=keepdim, suffix="sum")


@lowers("mean mean.dim")
def lower_mean(
    builder: GraphBuilder, value: TensorValue, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    """Sum over count; nothing at all gives NaN."""
    chosen = dims_of(value, dims)
    wide = working_dtype(builder.val.dtype)
    summed = wide_sum(builder, value, chosen, wide, keepdim)
    count = product(value.sizes[d] for d in chosen)
    return builder.like_node(lambda i: (Scalar(summed.load(i)) / count).to(builder.val.dtype).expr)


def moments(
    builder: GraphBuilder, value: TensorValue, dims: list[int], wide: torch.dtype
) -> tuple[TensorValue, TensorValue]:
    """The mean, and the sum of squared distances from it, both with kept dimensions: two passes, no cancellation."""
    count = product(value.sizes[d] for d in dims)
    summed = wide_sum(builder, value, dims, wide, True)
    mean = builder.pointwise(summed.sizes, wide, lambda i: (Scalar(summed.load(i)) / count).expr, suffix="mean")

    def centred_square(indices: Indices) -> Expr:
        centred = Scalar(cast(value.load(indices), wide)) - Scalar(mean.load_broadcast(indices))
        return (centred * centred).expr

    return mean, builder.reduce("sum", value.sizes, dims, wide, centred_square, keepdim=True, suffix="squares")


@lowers("var.correction var_mean.correction")
def lower_variance(
    builder: GraphBuilder, value: TensorValue, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """The variance, and the mean if asked."""
    chosen = dims_of(value, dims)
    with_mean = isinstance(builder.val, (tuple, list))
    result = builder.val[0].dtype if with_mean else builder.val.dtype
    shape = size_indices(builder.val[0].shape if with_mean else builder.val.shape)
    mean, squares = (reshaped(part, shape) for part in moments(builder, value, chosen, working_dtype(result)))
    count = product(value.sizes[d] for d in chosen)
    taken = 1 if correction is None else correction
    if count.constant is not None and isinstance(taken, (int, float)):
        divisor: Any = max(count.constant - taken, 0)
    else:
        divisor = number(count, torch.float64)
        divisor = (Scalar(divisor) - taken).call("maximum", 0).expr if taken else divisor

    def spread(indices: Indices) -> Expr:
        return cast((Scalar(squares.load(indices)) / divisor).expr, result)

    if with_mean:
        return builder.like_node(spread, 0), builder.like_node(lambda i: cast(mean.load(i), result), 1)
    return builder.like_node(spread)


@lowers("linalg_vector_norm")
def lower_vector_norm(
    builder: GraphBuilder, value: TensorValue, order: Any = 2, dims: Any = None, keepdim: bool = False, *,
    dtype: Any = None,
) -> TensorValue:  # fmt: skip
    """The norms that are a sum or an extreme of absolute values."""
    chosen = dims_of(value, dims)
    wide = working_dtype(builder.val.dtype)

    def magnitude(indices: Indices) -> Scalar:
        return Scalar(cast(value.load(indices), wide)).call("abs")

    if order in (math.inf, -math.inf) and is_empty(value.sizes):
        raise UseExtern("an extreme of nothing")
    if not isinstance(order, (int, float)):
        raise UseExtern("a norm whose order varies")
    if order != 0 and all(is_one(value.sizes[dim]) for dim in chosen):
        order = math.inf  # of one element, whose square or power may not be finite
    kind, fold, finish = _norm_parts(order, magnitude)
    folded = builder.reduce(kind, value.sizes, chosen, wide, fold, keepdim=keepdim, suffix="fold")
    return builder.like_node(lambda i: cast(finish(Scalar(folded.load(i))).expr, builder.val.dtype))


def _norm_parts(order: Any, magnitude: Callable[[Indices], Scalar]) -> Any:
    """How and what is folded, and what is done with the result."""
    if order in (1, math.inf, -math.inf):
        return {1: "sum", math.inf: "max", -math.inf: "min"}[order], lambda i: magnitude(i).expr, lambda x: x
    if order == 2:
        return "sum", lambda i: (magnitude(i) * magnitude(i)).expr, lambda x: x.call("sqrt")
    if order == 0:
        return "sum", lambda i: (lambda m: m.differs(0).to(m.dtype).expr)(magnitude(i)), lambda x: x
    return "sum", lambda i: magnitude(i).call("pow", order).expr, lambda x: x.call("pow", 1 / order)


@lowers("cumsum cumprod")
def lower_scan(builder: GraphBuilder, value: TensorValue, dim: int, *, dtype: Any = None) -> TensorValue:
    """A running sum or product; the other scans are called as they are."""
    result = builder.val.dtype
    if value.rank == 0:
        return builder.like_node(lambda _: cast(value.load(()), result))
    kind = builder.node.target._opname
    from_zero = kind == "cumsum" and result.is_floating_point  # eager adds to 0.0, and -0.0 is lost

    def element(indices: Indices) -> Expr:
        loaded = Scalar(cast(value.load(indices), result))
        return (loaded + 0.0 if from_zero else loaded).expr

    return builder.scan(kind, wrap(dim, value.rank), result, element)
