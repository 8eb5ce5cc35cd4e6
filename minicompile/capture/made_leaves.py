"""Results that the function makes leaves: `hidden.requires_grad = True`, as speech models do ahead of their checkpoints.

In a graph such a leaf is only where gradients end. Where it could be seen outside (it is a result, or the only reason for
which one requires a gradient), the call is traced again, and the line is a graph break.
"""

from typing import Any

import torch

from minicompile.capture.output_graph import needs_gradient
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import TraceAgain, Tracer
from minicompile.ir.fake_mode import storage_key


def becomes_leaf(tracer: Tracer, owner: Any, value: Any) -> bool:
    """Whether the graph can hold `owner.requires_grad = value`, as it now does."""
    graph = tracer.graph
    made = graph.inside is None and graph.traced[id(owner)].source is None and not owner.is_inference()
    fits = owner.is_floating_point() and not owner.requires_grad  # what follows from others' gradients refuses to be set
    if value is not True or not (made and fits and tracer.picks):
        return False
    tracer.operation("call_method", "requires_grad_", (owner,))
    graph.made_leaves.append(owner)
    return True


def check_made_leaves(tracer: Tracer, outputs: list[Any]) -> None:
    """Trace again where a result made a leaf could be seen outside, or is written."""
    graph = tracer.graph
    if not graph.made_leaves:
        return
    reached: set[torch.fx.Node] = set()
    for node in graph.graph.nodes:
        value = node.meta["example_value"]
        starts = node.op == "placeholder" or not reached.isdisjoint(node.all_input_nodes)
        if starts and needs_gradient(value) and all(value is not leaf for leaf in graph.made_leaves):
            reached.add(node)
    seen = (value for value in outputs if isinstance(value, FakeTensor) and value.requires_grad)
    written = any(storage_key(leaf) in graph.fake_mode.written for leaf in graph.made_leaves)
    if written or any(graph.node_of(graph.traced[id(value)]) not in reached for value in seen):
        raise TraceAgain(picks=False)
