"""Tensors from nothing, casts and copies.

This module must not emit anything but pointwise loops.
"""

from __future__ import annotations

from typing import Any

import torch

from minicompile.ir.expr import Expr, cast
from minicompile.ir.index import Index
from minicompile.lowering.builder import GraphBuilder, Indices
from minicompile.lowering.registry import UseExtern, lowers
from minicompile.lowering.scalar import index_at_least, index_value, masked, number
from minicompile.lowering.sizes import size_index
from minicompile.lowering.values import TensorValue


def _filled(builder: GraphBuilder, value: Any) -> TensorValue:
    if isinstance(value, TensorValue):
        return builder.like_node(lambda i: cast(value.load_broadcast(i), builder.val.dtype))
    return builder.like_node(lambda _: number(value, builder.val.dtype))


@lowers(
    "aten.full.default", "aten.full_like.default", "aten.new_full.default", "aten.scalar_tensor.default",
    "aten.fill.Scalar", "aten.fill.Tensor",
)  # fmt: skip
def lower_full(builder: GraphBuilder, *given: Any, fill_value: Any = None, **_: Any) -> TensorValue:
    """One value everywhere, in the sizes and layout of the result."""
    return _filled(builder, given[-1] if fill_value is None else fill_value)


@lowers(
    "aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", "aten.empty.memory_format",
    "aten.empty_like.default", "aten.new_empty.default", "aten.empty_strided.default", "aten.new_empty_strided.default",
    "aten.empty_permuted.default", "aten._efficientzerotensor.default",
)  # fmt: skip
def lower_zeros(builder: GraphBuilder, *_: Any, **__: Any) -> TensorValue:
    """Zeros; memory that eager leaves uninitialised as well."""
    return _filled(builder, 0)


@lowers("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def lower_ones(builder: GraphBuilder, *_: Any, **__: Any) -> TensorValue:
    """Ones."""
    return _filled(builder, 1)


@lowers("aten.copy.default")
def lower_copy(builder: GraphBuilder, _target: TensorValue, source: TensorValue, *_: Any) -> TensorValue:
    """`source` in the first argument's sizes and dtype."""
    return _filled(builder, source)


@lowers("aten.arange.start_step", "aten.arange.start", "aten.arange.default")
def lower_arange(builder: GraphBuilder, *bounds: Any, **_: Any) -> TensorValue:
    """`start + i * step`."""
    start = bounds[0] if len(bounds) > 1 else 0
    step = bounds[2] if len(bounds) > 2 else 1
    dtype = builder.val.dtype
    exact = not any(isinstance(bound, float) for bound in (start, step))

    def body(indices: Indices) -> Expr:
        if exact:
            return index_value(size_index(start) + indices[0] * size_index(step)).to(dtype).expr
        if not dtype.is_floating_point:
            raise UseExtern("an integer range with fractional bounds")
        wide = torch.float64 if dtype == torch.float64 or builder.device.type == "cpu" else torch.float32
        value = index_value(indices[0]).to(wide) * _as_number(step) + _as_number(start)
        return value.to(dtype).expr

    return builder.like_node(body)


def _as_number(value: Any) -> Any:
    return value if not isinstance(value, Index) or value.constant is None else value.constant


@lowers("prims.iota.default")
def lower_iota(
    builder: GraphBuilder, _length: Any, *, start: Any, step: Any, dtype: torch.dtype, **_: Any
) -> TensorValue:
    """`start + i * step` of integers."""
    first, each = size_index(start), size_index(step)
    return builder.like_node(lambda i: index_value(first + i[0] * each).to(dtype).expr)


@lowers("aten.tril.default", "aten.triu.default")
def lower_triangle(builder: GraphBuilder, value: TensorValue, diagonal: int = 0) -> TensorValue:
    """Zeros on one side of a diagonal."""
    upper = builder.node.target is torch.ops.aten.triu.default
    zero = number(0, value.dtype)

    def body(indices: Indices) -> Expr:
        row, column = indices[-2], indices[-1]
        inside = index_at_least(column - row, size_index(diagonal if upper else diagonal + 1))
        if isinstance(inside, bool):
            return value.load(indices) if inside == upper else zero
        return masked(inside if upper else ~inside, value.load(indices), zero)

    return builder.like_node(body)


@lowers("aten._to_copy.default")
def lower_to_copy(builder: GraphBuilder, value: TensorValue, **options: Any) -> TensorValue:
    """Another dtype or memory format; another device needs eager's copy."""
    if builder.val.device != value.device:
        raise UseExtern(f"moves a tensor from {value.device} to {builder.val.device}")
    return builder.like_node(lambda i: cast(value.load(i), builder.val.dtype))


@lowers("prims.convert_element_type.default")
def lower_convert(builder: GraphBuilder, value: TensorValue, dtype: torch.dtype) -> TensorValue:
    """Another dtype."""
    return builder.like_node(lambda i: cast(value.load(i), dtype))


@lowers("aten.clone.default", "aten.lift_fresh_copy.default", "aten.alias_copy.default", "aten.detach_copy.default")
def lower_clone(builder: GraphBuilder, value: TensorValue, **_: Any) -> TensorValue:
    """A copy in the layout that eager gives it."""
    return builder.like_node(value.load)
