"""Random numbers as functions of a key and of an element's row-major position.

Keys are drawn by one call of eager's generator per run, so that `torch.manual_seed` governs them. This module must not
define the generator: see `ir.operators`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from minicompile.ir import operators  # noqa: F401  (defines the operators that the rules below are for)
from minicompile.ir.expr import Expr, Random
from minicompile.lowering.builder import GraphBuilder, Indices
from minicompile.lowering.registry import lowers
from minicompile.lowering.scalar import Scalar
from minicompile.lowering.sizes import size_index, size_indices
from minicompile.lowering.values import TensorValue
from minicompile.lowering.view import row_major


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
def lower_random(
    builder: GraphBuilder, seed: TensorValue, size: Sequence[Any], dtype: torch.dtype
) -> TensorValue:
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
