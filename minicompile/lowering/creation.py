"""Tensors from nothing, random ones among them, casts and copies.

Random numbers are functions of a key and of an element's row-major position. Keys are drawn by one call of eager's generator
per run, so that `torch.manual_seed` governs them. This module must not define the generator: see `ir.operators`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from minicompile.ir.expr import Expr, Random, cast
from minicompile.ir.index import Index, row_major
from minicompile.lowering.builder import GraphBuilder, Indices
from minicompile.lowering.registry import Rule, UseExtern, lowers
from minicompile.lowering.scalar import Scalar, index_at_least, index_value, masked, number, stored
from minicompile.lowering.sizes import size_index, size_indices
from minicompile.lowering.values import TensorValue


def _filled(builder: GraphBuilder, value: Any) -> TensorValue:
    if isinstance(value, TensorValue):
        return builder.like_node(lambda i: cast(value.load_broadcast(i), builder.val.dtype))
    return builder.like_node(lambda _: stored(value, builder.val.dtype))


def _uninitialised(dtype: torch.dtype) -> float:
    """What memory holds that nothing has written: zeros, but where eager fills it, for everybody to see."""
    if not (torch.are_deterministic_algorithms_enabled() and torch._C._get_deterministic_fill_uninitialized_memory()):
        return 0
    return math.nan if dtype.is_floating_point else 1 if dtype == torch.bool else torch.iinfo(dtype).max


TABLE: dict[str, Rule] = {
    "full full_like new_full scalar_tensor fill.Scalar fill.Tensor": lambda builder, *given, fill_value=None, **_: _filled(
        builder, given[-1] if fill_value is None else fill_value),
    "ones ones_like new_ones": lambda builder, *_, **__: _filled(builder, 1),
    "zeros zeros_like new_zeros _efficientzerotensor": lambda builder, *_, **__: _filled(builder, 0),
    "empty.memory_format empty_like new_empty empty_strided new_empty_strided empty_permuted":
        lambda builder, *_, **__: _filled(builder, _uninitialised(builder.val.dtype)),
    "copy": lambda builder, _, source, *__: _filled(builder, source),
    "clone lift_fresh_copy alias_copy detach_copy": lambda builder, value, **_: builder.like_node(value.load),
}  # fmt: skip
for _names, _rule in TABLE.items():
    lowers(_names)(_rule)


@lowers("arange.start_step arange.start arange")
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


@lowers("tril triu")
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


@lowers("_to_copy")
def lower_to_copy(builder: GraphBuilder, value: TensorValue, **options: Any) -> TensorValue:
    """Another dtype or memory format; another device needs eager's copy."""
    if builder.val.device != value.device:
        raise UseExtern(f"moves a tensor from {value.device} to {builder.val.device}")
    return builder.like_node(lambda i: cast(value.load(i), builder.val.dtype))


# Random numbers


@lowers("minicompile.seeds.default")
def lower_seeds(builder: GraphBuilder, count: int, *, device: torch.device) -> tuple[TensorValue, ...]:
    """Fresh 64-bit keys, each with a second number: tensors apart, so that kernels that draw alike are alike."""
    drawn = builder.new_buffer((size_index(count), size_index(2)), torch.int64, device=device)
    bounds = torch.iinfo(torch.int64)
    options = (("dtype", torch.int64), ("device", device))
    builder.extern(
        "torch.ops.aten.randint.low", (bounds.min, bounds.max, (count, 2)), options, (drawn,),
        reason="draws the keys of this run", pure=False,
    )  # fmt: skip
    seeds = tuple(builder.new_buffer((size_index(2),), torch.int64, device=device, suffix="seed") for _ in range(count))
    whole = builder.argument((builder.whole(drawn),))
    builder.extern("torch.ops.aten.unbind.int", whole, (), seeds, reason="one key for each operator", unpack=True)
    return tuple(map(builder.whole, seeds))


@lowers("minicompile.random_uniform.default minicompile.random_normal.default")
def lower_random(builder: GraphBuilder, seed: TensorValue, size: Sequence[Any], dtype: torch.dtype) -> TensorValue:
    """Uniform on [0, 1), or standard normal."""
    kind = "uniform" if builder.node.target is torch.ops.minicompile.random_uniform.default else "normal"
    sizes = size_indices(builder.val.shape)
    key = seed.load([size_index(0)])
    return builder.like_node(lambda i: Random(kind, key, row_major(i, sizes), dtype))


@lowers("minicompile.random_randint.default")
def lower_randint(
    builder: GraphBuilder, seed: TensorValue, low: int, high: int, size: Sequence[Any], dtype: torch.dtype
) -> TensorValue:
    """`low + bits mod (high - low)`."""
    sizes = size_indices(builder.val.shape)
    key = seed.load([size_index(0)])

    def body(indices: Indices) -> Expr:
        bits = Scalar(Random("bits", key, row_major(indices, sizes), torch.int64))
        return (bits.call("remainder", high - low) + low).to(dtype).expr

    return builder.like_node(body)
