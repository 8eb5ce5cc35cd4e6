"""Setting `requires_grad`: of results, which become leaves, and of leaves from outside.

Speech models make leaves ahead of their checkpoints. In a graph a result made a leaf is only where gradients end. Where it
could be seen outside (it is a result, or the only reason for which one requires a gradient), the call is traced again, and
the line is a graph break.

A leaf from outside is set behind the graph, with the other side effects, so no operation of the graph may read it: one
ahead of the line makes that a graph break, one behind it is a graph break itself.
"""

from collections.abc import Sequence
from typing import Any

import torch

from minicompile.capture.break_kinds import RunEager
from minicompile.capture.output_graph import needs_gradient
from minicompile.capture.source import Attribute
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import TraceAgain, Tracer
from minicompile.ir.fake_mode import storage_key


def becomes_leaf(tracer: Tracer, owner: Any, value: Any) -> bool:
    """Whether the graph can hold `owner.requires_grad = value`, as it now does."""
    graph = tracer.graph
    if id(owner) in tracer.reals:
        return is_switched(tracer, owner, value)
    made = graph.inside is None and graph.traced[id(owner)].source is None and not owner.is_inference()
    fits = owner.is_floating_point() and not owner.requires_grad  # what follows from others' gradients refuses to be set
    if value is not True or not (made and fits and tracer.picks):
        return False
    tracer.operation("call_method", "requires_grad_", (owner,))
    graph.made_leaves.append(owner)
    return True


def is_switched(tracer: Tracer, owner: Any, value: Any) -> bool:
    """Whether `requires_grad` of a tensor from outside, a leaf that no operation has read, can be set behind the graph."""
    graph, real = tracer.graph, tracer.reals[id(owner)]
    unread = graph.inside is None and graph.traced[id(owner)].node is None
    fits = (owner.is_floating_point() or owner.is_complex()) and real.is_leaf and real._base is None
    if type(value) is not bool or not (unread and fits) or real.is_inference():
        return False
    if real.requires_grad:  # of a tensor that does not the guard of its kind says enough
        tracer.wrapped_once((id(owner), "is_leaf"), True, Attribute(tracer.sources[id(owner)], "is_leaf"))
    owner.requires_grad = value
    graph.switched.add(id(owner))
    tracer.effects.attributes[(id(owner), "requires_grad")] = (owner, value)
    return True


def check_switched(tracer: Tracer) -> None:
    """Guard that no tensor that the function looks at is a view of one that it sets: it would be set with it."""
    switched = tracer.graph.switched
    if not switched:
        return
    entries = [entry for entry in tracer.graph.traced.values() if isinstance(entry.real, torch.Tensor)]
    entries.sort(key=lambda entry: id(entry.value) not in switched)  # those that are set come first
    if not are_apart([entry.real for entry in entries], len(switched)):
        raise RunEager("`requires_grad` is set of a tensor beside a view of it", "autograd call")
    sources = tuple(tracer.sources[id(entry.value)] for entry in entries)
    row = "".join(f"{{others[{place}]}}, " for place in range(len(sources)))
    tracer.guards.test(sources[0], "{1}((" + row + "), {2})", (are_apart, len(switched)),
                       "`{0}` and others of which `requires_grad` is set are no views, nor is another tensor a view of them",
                       "overlap", others=sources)


def are_apart(tensors: Sequence[torch.Tensor], count: int) -> bool:
    """Whether the first `count` of some tensors are no views, and the others are no views of them."""
    known = set(map(id, tensors[:count]))
    return all(tensor._base is None for tensor in tensors[:count]) and all(id(other._base) not in known for other in tensors)


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
