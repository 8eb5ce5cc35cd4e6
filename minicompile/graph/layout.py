"""The layout in memory of values that only the graph sees: of convolutions, and of the results of attention.

Convolutions on a GPU get `channels_last`, the layout that its matrix units read. In the layout of the user's tensors cuDNN
copies every operand of every convolution on the way in and out. Here the operands get the layout once, and it spreads:
results of elementwise operators take the layout of their inputs, so that in a network of convolutions only the images, the
weights and the results are ever copied, by kernels that do other work as well. Attention gets the heads of a token together
where they are merged next, which eager does by a copy. Factors of batched products are copied in the order in which they lie.

Outputs of the graph keep the layout that eager gives them. This module must not change a value.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_iter

import minicompile.gpu as gpu
from minicompile.graph.operators import is_foreign, is_item, is_view, name_of
from minicompile.graph.torch_interface import fake_mode_of
from minicompile.ir.graph import parts_of

aten = torch.ops.aten

LEAST_CHANNELS = 32
"""Fewer channels than this leave the matrix units idle, whatever the layout."""

LEAST_SHARE = 0.5
"""How much of the convolutions' work must gain for all of them to change."""

READ_STRIDES = ("as_strided", "as_strided_scatter", "as_strided_copy", "view_as_real", "view_as_complex", "resize")
"""Operators that mean another element, or fail, in another layout."""

WRONG_IN_CHANNELS_LAST = ("avg_pool2d_backward",)
"""Operators of which PyTorch's kernel for CUDA (seen in 2.11, where windows overlap) is wrong where the second argument, there
for its shape alone, is in `channels_last`."""

HALVES = (torch.float16, torch.bfloat16)


def channels_last(module: GraphModule) -> GraphModule:
    """Give two-dimensional convolutions on a GPU their operands in `channels_last`, but those that lose, if most of their work
    gains."""
    convolutions = {node for node in module.graph.nodes if is_convolution(node)}
    work = [(multiplications(node), gains(node)) for node in convolutions]
    gained = sum(count for count, gain in work if gain)
    if not gained or gained < LEAST_SHARE * sum(count for count, _ in work):
        return module
    if any(name_of(node) in READ_STRIDES or node.target is aten.view.dtype for node in module.graph.nodes):
        return module
    before = {node: node.meta.get("val") for node in module.graph.nodes}
    closing: Any = module.graph.output_node()
    values = [node.meta.get("val") if isinstance(node, Node) else None for node in closing.args[0]]
    wanted = [value if isinstance(value, torch.Tensor) else None for value in values]
    copies: dict[tuple[Node, torch.memory_format], Node] = {}
    changed: set[Node] = set()
    for node in list(module.graph.nodes):
        if node in convolutions:
            wants = torch.contiguous_format if loses(node) else torch.channels_last
            for position, operand in enumerate(operands(node)):
                node.update_arg(position, laid_out_in(wants, module, node, operand, copies))
        if goes_through_memory(node):
            keep_operands(module, node, before)
        if name_of(node) in WRONG_IN_CHANNELS_LAST and not changed.isdisjoint(node.all_input_nodes):
            node.update_arg(1, laid_out_in(torch.contiguous_format, module, node, node.args[1], copies))
        if (node in convolutions or not changed.isdisjoint(node.all_input_nodes)) and propagate(node):
            changed.add(node)
    with module.graph.inserting_before(closing):
        results = [node if old is None else laid_out_as(module, node, old) for node, old in zip(closing.args[0], wanted)]
        closing.args = (tuple(results),)
    return module


def tokens_first(module: GraphModule) -> GraphModule:
    """Let attention write its result token by token where all that reads it copies it into that order."""
    for node in module.graph.nodes:
        if node.target is not torch.ops.minicompile.attention.default:
            continue
        results = [user for user in node.users if user.args[1] == 0]
        swaps = [user for result in results for user in result.users if name_of(user) != "attention_backward"]
        copies = [user for swap in swaps for user in swap.users]
        if not copies or not all(map(swaps_heads, swaps)) or not all(map(copies_in_order, copies)):
            continue
        node.kwargs = {"tokens_first": True}
        for changed in (node, *results, *swaps):
            propagate(changed)
        for copy in copies:
            if copy.args[0].meta["val"].stride() == copy.meta["val"].stride():
                copy.replace_all_uses_with(copy.args[0])
                module.graph.erase_node(copy)
    return module


def factors_as_they_lie(module: GraphModule) -> GraphModule:
    """Copy the factors of batched products along the dimension in which they lie side by side, and let the products read them
    transposed: `einsum` copies `blhd` as `bhdl`, one element of each sector at a time."""
    for node in list(module.graph.nodes):
        if not copies_in_order(node) or len(node.users) != 1 or not is_factor(view := next(iter(node.users))):
            continue
        source, (count, rows, columns) = node.args[0], view.meta["val"].shape
        groups = matrices_of(node.meta["val"].shape, rows, columns)
        if groups is None or not lies_by_columns(source.meta["val"], *groups[1:]):
            continue
        order = [dim for group in (groups[0], groups[2], groups[1]) for dim in group]
        with module.graph.inserting_before(view):
            turned = made(node, aten.permute.default, source, order)
            copy = made(node, aten.clone.default, turned, memory_format=torch.contiguous_format)
            matrices = made(view, aten.view.default, copy, [count, columns, rows])
            view.replace_all_uses_with(made(view, aten.transpose.int, matrices, 1, 2))
    return module


def is_factor(node: Node) -> bool:
    """Whether a node shows a copy on a GPU as matrices of known sizes, which batched products alone read, transposed or not."""
    value = node.meta["val"]
    if name_of(node) not in ("view", "_unsafe_view") or value.dim() != 3 or not gpu.holds(value):
        return False
    turned = [user for user in node.users if user.target is aten.transpose.int and user.args[1:] == (1, 2)]
    readers = {*node.users, *(reader for swap in turned for reader in swap.users)}.difference(turned)
    return all(type(size) is int for size in value.shape) and all(name_of(reader) == "bmm" for reader in readers)


def matrices_of(shape: Sequence[int], rows: int, columns: int) -> tuple[range, range, range] | None:
    """The dimensions of `shape` that count matrices, those of their rows and of their columns, if they are some each."""
    groups, end = [], len(shape)
    for size in (columns, rows):
        start, count = end, 1
        while start and count < size:
            start -= 1
            count *= shape[start]
        if count != size or size == 1:
            return None
        groups.append(range(start, end))
        end = start
    return range(end), groups[1], groups[0]


def lies_by_columns(value: torch.Tensor, rows: range, columns: range) -> bool:
    """Whether the elements of a column lie side by side, not those of a row, and fill whole vectors if those of a row do."""
    last = [next(dim for dim in reversed(group) if value.shape[dim] > 1) for group in (rows, columns)]
    if value.stride(last[0]) != 1 or value.stride(last[1]) == 1:
        return False
    fills = [math.prod(value.shape[dim] for dim in group) * value.dtype.itemsize % 16 == 0 for group in (rows, columns)]
    return fills[0] or not fills[1]


def swaps_heads(node: Node) -> bool:
    """Whether a node is (batch, heads, length, head dim) as (batch, length, heads, head dim)."""
    if name_of(node) == "permute":
        return list(node.args[1]) == [0, 2, 1, 3]  # type: ignore[arg-type]  # a list
    return name_of(node) == "transpose" and node.meta["val"].dim() == 4 and sorted(d % 4 for d in node.args[1:]) == [1, 2]  # type: ignore


def copies_in_order(node: Node) -> bool:
    """Whether a node is a contiguous copy, and not one that the user gets, who may write it before the backward."""
    return (
        name_of(node) == "clone" and node.kwargs.get("memory_format") == torch.contiguous_format and not is_returned(node)
    )


def is_returned(node: Node) -> bool:
    """Whether a value, or a view of it, is an output."""
    return any(user.op == "output" or ((is_view(user) or is_item(user)) and is_returned(user)) for user in node.users)


def is_convolution(node: Node) -> bool:
    """Whether a node is a two-dimensional convolution on a GPU, or the gradient of one, of sizes known by now."""
    if name_of(node) not in ("convolution", "convolution_backward"):
        return False
    tensors = [operand.meta["val"] for operand in operands(node)]
    floats = all(gpu.holds(t) and t.dim() == 4 and t.dtype in (*HALVES, torch.float32) for t in tensors)
    return floats and all(type(size) is int for t in tensors for size in t.shape)


def operands(node: Node) -> tuple[Any, ...]:
    """The tensors that a convolution, or the gradient of one, multiplies; the weight is the last."""
    return node.args[:2] if name_of(node) == "convolution" else node.args[:3]


def groups_of(node: Node) -> int:
    """The number of groups of a convolution, or of one whose gradient it is."""
    groups: Any = node.args[8 if name_of(node) == "convolution" else 9]
    return int(groups)


def multiplications(node: Node) -> int:
    """How many products a convolution, or each of its gradients, forms."""
    result: Any = node if name_of(node) == "convolution" else node.args[0]
    weight = operands(node)[-1].meta["val"]
    return math.prod((*result.meta["val"].shape, *weight.shape[1:]))


def gains(node: Node) -> bool:
    """Whether the layout speeds a convolution up: dense with many channels, or one group a channel in half precision."""
    groups = groups_of(node)
    weight = operands(node)[-1].meta["val"]
    if groups > 1:
        return groups == weight.shape[0] and weight.dtype in HALVES
    return min(weight.shape[:2]) >= LEAST_CHANNELS


def loses(node: Node) -> bool:
    """Whether a convolution is slower in `channels_last` by more than the copies cost. On an H200 groups of 24 channels take
    0.61 ms there, with gradients, and 0.28 in the usual layout (64 x 576 x 14 x 14, bf16), groups of 8, 16 and 32 half."""
    width = operands(node)[-1].meta["val"].shape[1]
    return groups_of(node) > 1 and width & (width - 1) != 0


def laid_out_in(
    wanted: torch.memory_format, module: GraphModule, user: Node, operand: Node,
    copies: dict[tuple[Node, torch.memory_format], Node],
) -> Node:  # fmt: skip
    """`operand`, or one copy of it for all its users, in the layout wanted."""
    if operand.meta["val"].is_contiguous(memory_format=wanted):
        return operand
    if (operand, wanted) not in copies:
        with module.graph.inserting_before(user):
            copy = module.graph.call_function(aten.clone.default, (operand,), {"memory_format": wanted})
        copy.meta = {**user.meta, "val": operand.meta["val"]}
        propagate(copy)
        copies[operand, wanted] = copy
    return copies[operand, wanted]


def goes_through_memory(node: Node) -> bool:
    """Whether an operator may mean elements by their places in memory: somebody else's, or one that draws random numbers."""
    target: Any = node.target
    return is_foreign(target) or torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def keep_operands(module: GraphModule, node: Node, before: Mapping[Node, Any]) -> None:
    """Give an operator what eager gives it, in the same layout."""
    with module.graph.inserting_before(node):
        for operand in node.all_input_nodes:
            if isinstance(before[operand], torch.Tensor):
                node.replace_input_with(operand, laid_out_as(module, operand, before[operand]))


def made(node: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new node, where the graph inserts, that says of itself what `node` does."""
    new = node.graph.call_function(target, args, kwargs)
    new.meta = {key: value for key, value in node.meta.items() if key != "variable"}
    propagate(new)
    return new


def propagate(node: Any) -> bool:
    """Compute a node's fake result again from its inputs' new layouts; whether its own layout changed."""
    if node.op != "call_function":
        return False
    if name_of(node) in ("view", "_unsafe_view"):
        node.target = aten.reshape.default  # a view may not exist in the new layout
    new = result_for(node, {})
    changed = layouts(new) != layouts(node.meta["val"])
    node.meta["val"] = new
    return changed


def result_for(node: Any, values: Mapping[Node, Any]) -> Any:
    """The fake result of a node where some of its inputs have other values."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: values.get(source, source.meta["val"]))
    with torch.no_grad(), fake_mode_of(tree_iter((args, kwargs))):
        return node.target(*args, **kwargs)


def reads_alike(node: Node, old: Node, new: Node) -> bool:
    """Whether a node means the same elements of another node laid out otherwise, and gives them the layout that it gave."""
    if node.op != "call_function" or goes_through_memory(node) or name_of(node) in READ_STRIDES:
        return False
    return layouts(result_for(node, {old: new.meta["val"]})) == layouts(node.meta["val"])


def layouts(value: Any) -> list[Any]:
    """The strides of every tensor in a result."""
    return [item.stride() if isinstance(item, torch.Tensor) else None for item in parts_of(value)]


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
