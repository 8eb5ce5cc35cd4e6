"""The backward for where some gradients do not come in: what depends on those alone is not computed, as in eager.

A zero in place of a gradient would not do, since a derivative that it is multiplied by may be infinite. Where a live
operation reads such a value beside others, as the backward of `split` does, eager makes zeros, and so does this. This
module must not decide which gradients are missing.
"""

import functools
import operator
from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from minicompile.graph import torch_interface
from minicompile.graph.operators import is_size
from minicompile.graph.passes import remove_dead_code, same_layout, same_size, separate_outputs
from minicompile.graph.sizes import SizeExpressions
from minicompile.ir.graph import Binding, dependencies

aten = torch.ops.aten


def backward_without(backward: GraphModule, binding: Binding, given: Collection[int]) -> GraphModule:
    """The backward that takes the tangents numbered in `given` only, and those of varying sizes, which come as zeros."""
    placeholders = backward.graph.find_nodes(op="placeholder")
    tangents = placeholders[len(placeholders) - len(binding.differentiable_outputs) :]
    missing = {node for number, node in enumerate(tangents) if number not in given}
    module = torch_interface.GraphModule(backward, _Reduced(backward.graph, set(tangents) - missing, missing).graph)
    separate_outputs(module, 0, 0)
    return remove_dead_code(module)


class _Reduced:
    """A copy of a graph without what depends on missing tangents alone."""

    def __init__(self, original: Graph, given: set[Node], missing: set[Node]) -> None:
        self.graph = Graph()
        self.copies: dict[Node, Any] = {}
        self.sizes = SizeExpressions(self.graph, lambda node, value: node.meta.update(val=value))
        known = dependencies(original)
        came, absent = (functools.reduce(operator.or_, map(known.__getitem__, nodes), 0) for nodes in (given, missing))
        self.dead = {n for n in original.nodes if known[n] & absent and not known[n] & came and not is_size(n)}
        for node in original.nodes:
            if node.op == "output":
                self.graph.output(tuple(None if used in self.dead else self.copies.get(used) for used in node.args[0]))
            elif node.op != "placeholder":
                if node not in self.dead:
                    self._copy(node)
            elif node not in self.dead or not is_static(node):
                self.sizes.learn(self._copy(node), node.meta["val"])

    def _copy(self, node: Node) -> Node:
        remaining = [used for used in node.all_input_nodes if used not in self.dead]
        adds = node.target in (aten.add.Tensor, aten.sub.Tensor) and len(node.all_input_nodes) == 2 and not node.kwargs
        if adds and len(remaining) == 1 and is_sum_alone(node, remaining[0]):
            copy = self.copies[remaining[0]]
            if node.target is aten.sub.Tensor and node.args[1] is remaining[0]:
                copy = self._made(aten.neg.default, (copy,), node)
            elif not same_layout(node, remaining[0]):
                copy = self._made(aten.clone.default, (copy,), node, {"memory_format": torch.contiguous_format})
        else:
            copy = self.graph.node_copy(node, self._argument)
        self.copies[node] = copy
        return copy

    def _argument(self, node: Node) -> Node:
        """What stands for a node; zeros for one that is not computed."""
        if node not in self.copies:
            value = node.meta["val"]
            geometry = map_aggregate((tuple(value.shape), value.stride()), self._number)
            memory = self._made(aten.empty_strided.default, geometry, node, {"dtype": value.dtype, "device": value.device})
            self.copies[node] = self._made(aten.fill.Scalar, (memory, 0), node)
        return self.copies[node]

    def _number(self, number: Any) -> Any:
        return number if isinstance(number, int) else self.sizes.node_or_number(number)

    def _made(self, target: Any, args: tuple[Any, ...], like: Node, kwargs: Any = None) -> Node:
        made = self.graph.call_function(target, args, kwargs)
        made.meta = dict(like.meta)
        return made


def is_sum_alone(node: Node, part: Node) -> bool:
    """Whether one part of a sum is a value like the sum; its layout can be made the sum's."""
    whole, value = node.meta["val"], part.meta["val"]
    alike = whole.dtype == value.dtype and len(whole.shape) == len(value.shape) and all(map(same_size, whole.shape, value.shape))
    return alike and (same_layout(node, part) or not is_static(node) or whole.is_contiguous())


def is_static(node: Node) -> bool:
    """Whether shape and strides are plain numbers."""
    value = node.meta["val"]
    return all(isinstance(n, int) for n in (*value.shape, *value.stride()))
