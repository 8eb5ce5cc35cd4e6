"""Convolutions on a GPU in `channels_last`, the layout that its matrix units read.

In the layout of the user's tensors cuDNN copies every operand of every convolution on the way in and out. Here the operands
get the layout once, and it spreads: results of elementwise operators take the layout of their inputs, so that in a
network of convolutions only the images, the weights and the results are ever copied, by kernels that do other work as well.
Outputs of the graph keep the layout that eager gives them. This module must not change a value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from minicompile.graph.operators import name_of

aten = torch.ops.aten

LEAST_CHANNELS = 32
"""Fewer channels than this leave the matrix units idle, whatever the layout."""

LEAST_SHARE = 0.5
"""How much of the convolutions' work must gain for all of them to change."""

READ_STRIDES = ("as_strided", "as_strided_scatter", "as_strided_copy", "view_as_real", "view_as_complex", "resize")
"""Operators that mean another element, or fail, in another layout."""

HALVES = (torch.float16, torch.bfloat16)


def channels_last(module: GraphModule) -> GraphModule:
    """Give two-dimensional convolutions on a GPU their operands in `channels_last`, if most of their work gains."""
    convolutions = {node for node in module.graph.nodes if is_convolution(node)}
    work = [(multiplications(node), gains(node)) for node in convolutions]
    gained = sum(count for count, gain in work if gain)
    if not gained or gained < LEAST_SHARE * sum(count for count, _ in work):
        return module
    if any(name_of(node) in READ_STRIDES for node in module.graph.nodes):
        return module
    closing = next(iter(reversed(module.graph.nodes)))
    wanted = [node.meta["val"] if is_tensor(node) else None for node in closing.args[0]]
    copies: dict[Node, Node] = {}
    changed: set[Node] = set()
    for node in list(module.graph.nodes):
        if node in convolutions:
            for position, operand in enumerate(operands(node)):
                node.update_arg(position, in_channels_last(module, node, operand, copies))
        if (node in convolutions or not changed.isdisjoint(node.all_input_nodes)) and propagate(node):
            changed.add(node)
    with module.graph.inserting_before(closing):
        results = [node if old is None else laid_out_as(module, node, old) for node, old in zip(closing.args[0], wanted)]
        closing.args = (tuple(results),)
    return module


def is_convolution(node: Node) -> bool:
    """Whether a node is a two-dimensional convolution on a GPU, or the gradient of one, of sizes known by now."""
    if name_of(node) not in ("convolution", "convolution_backward"):
        return False
    tensors = [operand.meta["val"] for operand in operands(node)]
    return all(
        on_gpu(t) and t.dim() == 4 and t.dtype in (*HALVES, torch.float32) and all(type(size) is int for size in t.shape)
        for t in tensors
    )


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies on a GPU."""
    return tensor.device.type == "cuda"


def is_tensor(node: Any) -> bool:
    """Whether an argument is a node whose result is one tensor."""
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def operands(node: Node) -> tuple[Any, ...]:
    """The tensors that a convolution, or the gradient of one, multiplies; the weight is the last."""
    return node.args[:2] if name_of(node) == "convolution" else node.args[:3]


def multiplications(node: Node) -> int:
    """How many products a convolution, or each of its gradients, forms."""
    result: Any = node if name_of(node) == "convolution" else node.args[0]
    weight = operands(node)[-1].meta["val"]
    return result.meta["val"].numel() * weight[0].numel()


def gains(node: Node) -> bool:
    """Whether the layout speeds a convolution up: dense with many channels, or one group a channel in half precision."""
    groups: Any = node.args[8 if name_of(node) == "convolution" else 9]
    weight = operands(node)[-1].meta["val"]
    if groups > 1:
        return groups == weight.shape[0] and weight.dtype in HALVES
    return min(weight.shape[:2]) >= LEAST_CHANNELS


def in_channels_last(module: GraphModule, user: Node, operand: Node, copies: dict[Node, Node]) -> Node:
    """`operand`, or one copy of it for all its users, in `channels_last`."""
    if operand.meta["val"].is_contiguous(memory_format=torch.channels_last):
        return operand
    if operand not in copies:
        with module.graph.inserting_before(user):
            copy = module.graph.call_function(aten.clone.default, (operand,), {"memory_format": torch.channels_last})
        copy.meta = {**user.meta, "val": operand.meta["val"].contiguous(memory_format=torch.channels_last)}
        copies[operand] = copy
    return copies[operand]


def propagate(node: Any) -> bool:
    """Compute a node's fake result again from its inputs' new layouts; whether its own layout changed."""
    if node.op != "call_function":
        return False
    if name_of(node) in ("view", "_unsafe_view"):
        node.target = aten.reshape.default  # a view may not exist in the new layout
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    with torch.no_grad():
        new = node.target(*args, **kwargs)
    changed = layouts(new) != layouts(node.meta["val"])
    node.meta["val"] = new
    return changed


def layouts(value: Any) -> list[Any]:
    """The strides of every tensor in a result."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [item.stride() if isinstance(item, torch.Tensor) else None for item in values]


def laid_out_as(module: GraphModule, node: Node, like: torch.Tensor) -> Node:
    """An output in the layout of `like`, the one it had before."""
    pairs = zip(like.shape, like.stride(), node.meta["val"].stride(), strict=True)
    if all(size == 1 or new == old for size, old, new in pairs):
        return node
    options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
    into = module.graph.call_function(aten.empty_strided.default, (like.shape, like.stride()), options)
    copy = module.graph.call_function(aten.copy.default, (into, node))
    into.meta = copy.meta = {**node.meta, "val": like}
    return copy
