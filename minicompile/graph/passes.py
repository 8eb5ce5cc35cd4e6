"""Simplifications of the joint graph, each a named function from graph module to graph module.

Passes change only how a value is computed, never a value: no algebra on floating point. Each works in place on a graph
nobody else holds. `PASSES` is the order. Dead outputs, splitting and recomputation are not their business.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from minicompile.graph import torch_interface
from minicompile.graph.complex_pairs import complex_as_pairs
from minicompile.graph.convolution_bias import separate_biases
from minicompile.graph.fft_gradients import shorten_transforms
from minicompile.graph.layout import channels_last, factors_as_they_lie, is_returned, tokens_first
from minicompile.graph.operators import is_fusible, is_impure, is_item, is_view, name_of, operand, storage_root
from minicompile.graph.trace import JointGraph

aten = torch.ops.aten
Pass = Callable[[GraphModule], GraphModule]
GRADIENTS_OF_POOLING = ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
                        "avg_pool3d_backward")  # fmt: skip


def remove_dead_code(module: GraphModule) -> GraphModule:
    """Drop nodes that no output needs; random draws of eager stay, since they move the generator."""
    for node in reversed(module.graph.nodes):
        if not node.users and node.op not in ("output", "placeholder"):
            if not is_impure(node) or name_of(node) == "seeds":
                module.graph.erase_node(node)
    return module


def remove_aliases(module: GraphModule) -> GraphModule:
    """`detach`, `alias` and the like matter to autograd alone, which is done."""
    for node in list(module.graph.nodes):
        if name_of(node) in ("detach", "alias", "lift_fresh", "lift_fresh_copy", "lift"):
            replace(node, node.args[0])
        elif name_of(node) == "_conj" and isinstance(node.args[0], complex):
            number = node.args[0].conjugate()
            for user in list(node.users):
                user.args = tuple(number if argument is node else argument for argument in user.args)
            module.graph.erase_node(node)
    return module


def remove_no_op_casts(module: GraphModule) -> GraphModule:
    """Exact round trips (half to fp32 to the same half)."""
    for node in list(module.graph.nodes):
        if name_of(node) != "_to_copy":
            continue
        source = node.args[0]
        if name_of(source) == "_to_copy" and widens(source) and same_layout(node, source.args[0]):
            replace(node, source.args[0])
    return module


def widens(cast: Node) -> bool:
    """Whether a cast loses nothing: a half precision to fp32 or fp64, fp32 to fp64."""
    before, after = operand(cast).meta["val"], cast.meta["val"]
    exact = {torch.bfloat16: (torch.float32, torch.float64), torch.float16: (torch.float32, torch.float64),
             torch.float32: (torch.float64,)}
    return after.dtype in exact.get(before.dtype, ()) and before.device == after.device


def remove_clones(module: GraphModule) -> GraphModule:
    """Copies that leave the layout as it is. Outputs that must not share storage are separated again at the end."""
    for node in list(module.graph.nodes):
        if name_of(node) == "clone" and same_layout(node, node.args[0]) and not keeps_a_value(node):
            replace(node, node.args[0])
    return module


def keeps_a_value(clone: Node) -> bool:
    """Whether a copy of an input is what the backward reads, so that the user may write the input in between."""
    return storage_root(operand(clone)).op == "placeholder" and is_read_in_backward(clone)


def is_read_in_backward(node: Node) -> bool:
    """Whether an operation of the backward reads a value, straight or through views."""
    return any(user.meta.get("stage") == "backward" or ((is_view(user) or is_item(user)) and is_read_in_backward(user))
               for user in node.users)


def write_copies_plainly(module: GraphModule) -> GraphModule:
    """A functional `copy(into, value)` overwrites all of `into`: where both are laid out alike, it is `value`."""
    for node in list(module.graph.nodes):
        if name_of(node) == "copy" and len(node.args) > 1 and same_layout(node, node.args[1]):
            replace(node, node.args[1])
    return module


def merge_common_subexpressions(module: GraphModule) -> GraphModule:
    """Compute equal pure expressions once; `meta["also_backward"]`: the backward, too, computes it, from what eager keeps."""
    seen: dict[Any, Node] = {}
    for node in list(module.graph.nodes):
        if node.op not in ("call_function", "get_attr") or is_impure(node) or name_of(node).startswith("empty"):
            continue
        try:
            key = (node.op, node.target, freeze(node.args), freeze(node.kwargs))
            earlier = seen.setdefault(key, node)
        except TypeError:
            continue
        if earlier is not node and not are_told_apart(earlier, node):
            earlier.meta["also_backward"] = earlier.meta.get("also_backward", False) or node.meta.get("stage") == "backward"
            tied = earlier.meta.pop("together", None), node.meta.get("together")
            if all(tied):  # to gradients without which neither is computed
                earlier.meta["together"] = sorted({*tied[0], *tied[1]})
            replace(node, earlier)
    return module


def are_told_apart(earlier: Node, node: Node) -> bool:
    """Whether one of two equal values is a result, which the user may change before a backward that would read the other."""
    read = is_read_in_backward(earlier) or is_read_in_backward(node)
    return read and not is_fusible(earlier) and is_returned(earlier) != is_returned(node)


def freeze(value: Any) -> Any:
    """A hashable form that tells 1, 1.0 and True, and zeros of either sign, apart."""
    if isinstance(value, Node):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(freeze, value))
    if isinstance(value, dict):
        return tuple((name, freeze(item)) for name, item in value.items())
    return (type(value), repr(value)) if isinstance(value, (float, complex)) else (type(value), value)


def let_go_of_pooled_values(module: GraphModule) -> GraphModule:
    """Gradients of pooling, which take their second argument for its shape alone, take what pointwise work made it from.

    A convolution's result is kept in any case, what batch norm and `relu` make of it only if a convolution reads that too.
    """
    for node in module.graph.nodes:
        if name_of(node) in GRADIENTS_OF_POOLING:
            pooled = made = node.args[1]
            readers = (user for user in pooled.users if user is not node and user.meta.get("stage") == "backward")
            while made is not None and is_fusible(made) and made.op == "call_function":
                same = (a for a in made.all_input_nodes if getattr(a.meta["val"], "shape", None) == pooled.meta["val"].shape)
                made = next(same, None)
            if made is not None and made.op == "call_function" and same_layout(made, pooled) and all(map(is_fusible, readers)):
                node.update_arg(1, made)
    return module


def same_layout(node: Node, other: Any) -> bool:
    """Whether two nodes' values agree in everything but storage."""
    a, b = node.meta.get("val"), other.meta.get("val") if isinstance(other, Node) else None
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if a.dtype != b.dtype or a.device != b.device or a.dim() != b.dim():
        return False
    return all(same_size(x, y) for x, y in zip((*a.shape, *a.stride()), (*b.shape, *b.stride()), strict=True))


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are equal without asking, which would make a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return not isinstance(a, int) and not isinstance(b, int) and a.node.expr == b.node.expr


def replace(node: Node, by: Any) -> None:
    """Let `by` stand for `node` everywhere; the variable's name goes with it when `by` has none."""
    node.replace_all_uses_with(by)
    if "variable" in node.meta and by.op != "placeholder":
        by.meta.setdefault("variable", node.meta["variable"])
    node.graph.erase_node(node)


PASSES: tuple[Pass, ...] = (
    remove_dead_code,
    remove_aliases,
    write_copies_plainly,
    remove_no_op_casts,
    shorten_transforms,
    remove_dead_code,
    complex_as_pairs,
    remove_dead_code,
    merge_common_subexpressions,
    remove_clones,
    merge_common_subexpressions,
    let_go_of_pooled_values,
    tokens_first,
    factors_as_they_lie,
    channels_last,
    separate_biases,
    remove_dead_code,
)


def simplify(joint: JointGraph) -> JointGraph:
    """Run every pass over the joint graph, then give outputs that need it storage of their own."""
    module = functools.reduce(lambda module, change: change(module), PASSES, joint.module)
    separate_outputs(module, joint.forward_outputs, len(joint.sources))
    return dataclasses.replace(joint, module=module)


def copied(graph: Graph, node: Node, keep_strides: bool) -> Node:
    """A copy of a value, or of what it is expanded from, expanded again."""
    value = node.meta["val"]
    overlaps = not isinstance(value, torch.Tensor) or torch_interface.overlaps(value)
    if keep_strides and overlaps and storage_root(node) is not node:
        source = copied(graph, operand(node), keep_strides)
        return graph.node_copy(node, lambda argument: source if argument is operand(node) else argument)
    copy = graph.call_function(aten.clone.default, (node,))
    with value.fake_mode:
        keep = keep_strides and not overlaps
        new = value.new_empty_strided(value.shape, value.stride()) if keep else torch.empty_like(value)
    copy.meta = {**node.meta, "val": new}
    return copy


def separate_outputs(module: GraphModule, forward_outputs: int, totals: int) -> None:
    """Forward outputs share storage with no input, no constant and no other output: aliases are rebuilt outside.

    Nor do gradients share it with each other: autograd keeps each as the `.grad` of a parameter, which is written in place.
    The `totals` at the end are no results but places in the graph, which a copy of them is not.
    """
    closing: Any = module.graph.output_node()
    outputs = list(closing.args[0])
    claimed: set[Node] = set()
    for index, node in enumerate(outputs[: len(outputs) - totals]):
        if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        root, forward = storage_root(node), index < forward_outputs
        if not forward and not torch.ops.aten.is_non_overlapping_and_dense(node.meta["val"]):
            continue  # autograd keeps a copy of such a gradient by itself
        if root in claimed or (forward and root.op in ("placeholder", "get_attr")):
            with module.graph.inserting_before(closing):
                outputs[index] = copied(module.graph, node, forward)
        claimed.add(root)
    closing.args = (tuple(outputs),)



