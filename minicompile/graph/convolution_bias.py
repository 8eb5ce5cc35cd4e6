"""The bias of a convolution on a GPU, apart from it: the library runs one kernel for the sum and one for its gradient, where
kernels of the graph take them in. Both round as the library does. This module must not choose layouts.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

import minicompile.gpu as gpu
from minicompile.graph import layout
from minicompile.graph.operators import name_of

aten = torch.ops.aten


def separate_biases(module: GraphModule) -> GraphModule:
    """Give convolutions no bias, and let an addition behind them, and a sum beside their gradients, stand for it."""
    for node in list(module.graph.nodes):
        if name_of(node) == "convolution" and isinstance(node.args[2], Node) and gpu.holds(node.meta["val"]):
            _add_behind(module, node, node.args[2])
        elif name_of(node) == "convolution_backward" and gpu.holds(node.args[0].meta["val"]) and node.args[-1][2]:
            _sum_beside(module, node)
    return module


def _add_behind(module: GraphModule, convolution: Node, bias: Node) -> None:
    whole = convolution.meta["val"]
    with module.graph.inserting_after(convolution):
        column = module.graph.call_function(aten.view.default, (bias, [-1, *[1] * (whole.dim() - 2)]))
    with module.graph.inserting_after(column):
        total = module.graph.call_function(aten.add.Tensor, (convolution, column))
    convolution.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)
    convolution.update_arg(2, None)
    for made in (column, total):
        made.meta = dict(convolution.meta)
        layout.propagate(made)
    convolution.meta.pop("variable", None)


def _sum_beside(module: GraphModule, gradients: Node) -> None:
    gradient: Any = gradients.args[0]
    dims = [dim for dim in range(gradient.meta["val"].dim()) if dim != 1]
    for result in [user for user in gradients.users if user.args[1] == 2]:
        with module.graph.inserting_before(gradients):
            total = module.graph.call_function(aten.sum.dim_IntList, (gradient, dims))
        total.meta = dict(result.meta)
        result.replace_all_uses_with(total)
        module.graph.erase_node(result)
    mask: Any = gradients.args[-1]
    gradients.update_arg(len(gradients.args) - 1, [*mask[:2], False])
    values = gradients.meta["val"]
    gradients.meta["val"] = (*values[:2], None)
