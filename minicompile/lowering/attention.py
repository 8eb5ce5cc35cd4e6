"""Attention, and the loss of a linear head, as operators of the graph stage become calls of the hand-written kernels.

What those do not take (fp64, head dims beyond 256) is called as the reference operator. This module must not know how
the kernels work.
"""

from typing import Any

import torch

import minicompile.gpu as gpu
from minicompile.lowering.builder import GraphBuilder
from minicompile.lowering.extern import call_operator
from minicompile.lowering.registry import lowers
from minicompile.lowering.sizes import size_index
from minicompile.lowering.values import TensorValue

LARGEST_HEAD_DIM = 256
KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHORTEST_BOUNDED = 128
BOUNDS_GROUP = 64  # queries or keys that one row of `kernels.mask_bounds` speaks of


def _outside(tensor: TensorValue) -> str:
    """Why a kernel of ours does not take a tensor."""
    return "outside the kernels' range" if gpu.holds(tensor) else "on the CPU, where PyTorch's own runs"


def _band(is_causal: bool, window: int) -> tuple[int | None, int | None]:
    """How far behind and ahead of itself a query sees; `None` is no limit."""
    return (window - 1 if window > 0 else None), (0 if is_causal else None)


def _taken(query: TensorValue, value: TensorValue, setting: str) -> bool:
    dims = [tensor.sizes[-1].constant for tensor in (query, value)]
    return (
        setting != "aten"
        and query.rank == 4
        and query.dtype in KERNEL_DTYPES
        and gpu.holds(query)
        and all(dim is not None and 1 <= dim <= LARGEST_HEAD_DIM for dim in dims)
    )


def _bounds(
    builder: GraphBuilder, mask: TensorValue | None, query: TensorValue, key: TensorValue, by_keys: bool = False
) -> TensorValue | None:
    """What a long boolean mask shows, found once in a graph for all the calls that read the same mask."""
    queries, keys = query.sizes[-2].constant, key.sizes[-2].constant
    if mask is None or mask.dtype != torch.bool or mask.rank < 2 or queries is None or keys is None:
        return None
    if keys < SHORTEST_BOUNDED or queries <= 1:
        return None
    known = ("mask_bounds", mask, queries, keys, by_keys)
    if known not in builder.shared:
        leading = ((size_index(1),) * 4 + mask.sizes)[-4:-2]
        groups = -(-(keys if by_keys else queries) // BOUNDS_GROUP)
        buffer = builder.new_buffer((*leading, size_index(groups), size_index(4)), torch.int32, suffix="bounds")
        arguments = builder.argument((mask, queries, keys, by_keys))
        reason = "what a mask shows, for attention"
        builder.extern("kernels.mask_bounds", arguments, (), (buffer,), reason=reason, unpack=True)
        builder.shared[known] = builder.whole(buffer)
    return builder.shared[known]


@lowers("minicompile.attention.default minicompile.attention_backward.default")
def lower_attention(builder: GraphBuilder, *args: Any, **named: Any) -> Any:
    """Result and log-sum-exp; or gradients of query, key, value and, if asked, of the mask."""
    target = builder.node.target
    given: dict[str, Any] = {"nan_rows": False, "tokens_first": False}
    given.update(zip((argument.name for argument in target._schema.arguments), args, strict=False), **named)
    query, key, value, mask = (given[name] for name in ("query", "key", "value", "mask"))
    if not _taken(query, value, builder.config.attention):
        return call_operator(builder, target, args, {}, f"attention {_outside(query)}")
    options = (*_band(given["is_causal"], given["window"]), *(given[name] for name in ("scale", "dropout", "seed", "nan_rows")),
               None, _bounds(builder, mask, query, key))  # fmt: skip
    if "grad" not in given:
        layout = given["tokens_first"] or (False if given["nan_rows"] else None)
        arguments = builder.argument((query, key, value, mask, *options, layout))
        return _call(builder, "kernels.attention_forward", arguments, (), "fused attention", 2)
    tensors = (given["grad"], query, key, value, given["out"], given["logsumexp"], mask)
    arguments = builder.argument((*tensors, *options, _bounds(builder, mask, query, key, by_keys=True)))
    asked = (("mask_gradient", given["mask_gradient"]),)
    return _call(builder, "kernels.attention_backward", arguments, asked, "fused attention", 4 if given["mask_gradient"] else 3)


@lowers("minicompile.linear_cross_entropy.default")
def lower_linear_cross_entropy(builder: GraphBuilder, hidden: TensorValue, *rest: Any) -> Any:
    """Losses and gradients, by our kernel on a GPU."""
    if not gpu.holds(hidden) or hidden.dtype not in KERNEL_DTYPES:
        return call_operator(builder, builder.node.target, (hidden, *rest), {}, f"a loss {_outside(hidden)}")
    reason = "logits of a linear head are made and used in chunks"
    return _call(builder, "kernels.linear_cross_entropy", builder.argument((hidden, *rest)), (), reason, 4)


def _call(builder: GraphBuilder, target: str, args: Any, kwargs: Any, reason: str, tensors: int) -> Any:
    """Emit the call; results after the first `tensors` are not tensors."""
    buffers = [builder.buffer_for(result, str(number)) if number < tensors else None
               for number, result in enumerate(builder.val)]  # fmt: skip
    builder.extern(target, args, kwargs, tuple(buffers), reason=reason, unpack=True)
    return tuple(None if buffer is None else builder.whole(buffer) for buffer in buffers)
