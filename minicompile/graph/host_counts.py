"""Tensors in the host's memory that a graph for an accelerator adds a number to, such as an optimizer's counts of steps.

Each addition and each copy of its result back would be a call of its own; here all to which the same is added are one call
in place. This module must not know who counts.
"""

import collections
import itertools
from typing import Any

import torch
from torch.fx import Graph, Node

import minicompile.gpu as gpu
from minicompile.graph.passes import freeze

aten = torch.ops.aten


def add_together(graph: Graph) -> None:
    """Change inputs of the host by one `_foreach_add_` for each number that is added; nothing else may read them."""
    copies: Any = graph.find_nodes(op="call_function", target=aten.copy_.default)
    together: dict[Any, list[Any]] = collections.defaultdict(list)
    for copy in copies if any(map(is_on_accelerator, graph.nodes)) else ():
        count, added = copy.args
        if is_sum(added, count) and set(count.users) == {added, copy} and list(added.users) == [copy]:
            together[freeze((added.args[1:], added.kwargs))].append(copy)
    for group in together.values():
        added = group[0].args[1]
        target = aten._foreach_add_.Tensor if isinstance(added.args[1], Node) else aten._foreach_add_.Scalar
        number = added.args[1]
        constant = not isinstance(number, Node) or number.op == "get_attr"
        # Behind the launches, while they run; but before the first write where an input, which may be written, is added.
        with graph.inserting_before(graph.output_node() if constant else copies[0]):
            call = graph.call_function(target, ([copy.args[0] for copy in group], *added.args[1:]), added.kwargs)
        call.meta.update(added.meta, val=None)
    for copy in itertools.chain(*together.values()):
        added = copy.args[1]
        graph.erase_node(copy)
        graph.erase_node(added)


def is_sum(value: Any, count: Node) -> bool:
    """Whether `value` is a tensor of the host plus one number, of the same dtype."""
    if value.target is not aten.add.Tensor or value.args[0] is not count:
        return False
    here, there, number = count.meta["val"], value.meta["val"], value.args[1]
    if (here.device, here.dtype) != (torch.device("cpu"), there.dtype) or there.device != here.device:
        return False
    if isinstance(number, Node):
        return isinstance(number.meta["val"], torch.Tensor) and number.meta["val"].dim() == 0
    return not value.kwargs


def is_on_accelerator(node: Node) -> bool:
    """Whether a node's value is a tensor that is not in the host's memory."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and gpu.holds(value)
