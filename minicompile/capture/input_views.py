"""Results of a graph that are views of its inputs and that it computes with: made ahead of it, they become inputs.

So autograd sees where such a view comes from and what is computed from it, as in eager: its gradient can be asked for, hooked
and retained. Must not be used on memory that the graph writes.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg

from minicompile.capture.kinds import isinstance
from minicompile.capture.output_graph import OutputGraph, Traced
from minicompile.capture.torch_interface import FakeTensor
from minicompile.ir.fake_mode import storage_key
from minicompile.ir.replacements import called

Step = tuple[Any, tuple[Any, ...], Callable[..., Any]]
"""A key for what is made, the keys of what it is made of, and how. Keys are the inputs, and nodes for what comes in between."""


def take_views_as_inputs(graph: OutputGraph, results: Iterable[Any]) -> list[Step]:
    """Make inputs of the results that are such views; what makes them, in order."""
    steps: list[Step] = []
    known: dict[Node, Any] = {entry.node: entry for entry in graph.inputs if entry.node is not None}
    seen = {id(graph.traced[id(value)].node): value for value in results if is_known_view(graph, value)}
    for node in list(graph.graph.nodes):
        value = seen.get(id(node))
        for step in [] if value is None or not is_computed_with(node) else steps_to(node, known):
            made: Any = step if step is not node else Traced(value, None, None, "tensor", None)
            steps.append((made, tuple(known[source] for source in step.all_input_nodes), repeating(step)))
            known[step] = made
        if node in known and value is not None:
            known[graph.node_of(made)] = graph.traced[id(value)] = made
            node.replace_all_uses_with(made.node)
            graph.graph.erase_node(node)
    return steps


def is_known_view(graph: OutputGraph, value: Any) -> bool:
    """Whether a result is a view with a history, of memory that the graph does not write."""
    if not isinstance(value, FakeTensor) or value.grad_fn is None or not value._is_view():
        return False
    return storage_key(value) not in graph.fake_mode.written and id(value) not in graph.data_aliases


def is_computed_with(node: Node) -> bool:
    """Whether anything but views is computed from a view, or from its views."""
    return any(not is_view(user) or is_computed_with(user) for user in node.users)


def steps_to(node: Node, known: Mapping[Node, Any]) -> list[Node]:
    """The operators that make a view of what is known, each after those that it takes; none if others are needed too."""
    order: dict[Node, None] = {}

    def visit(step: Node) -> bool:
        if step in known or step in order:
            return True
        sources = step.all_input_nodes
        made = step.op != "placeholder" and (is_number(step) or is_view(step))
        if not made or not all(map(visit, sources)):
            return False
        order[step] = None
        return True

    return list(order) if visit(node) else []


def is_number(node: Node) -> bool:
    """Whether a node computes a size."""
    return isinstance(node.meta.get("example_value"), torch.SymInt)


def is_view(node: Node) -> bool:
    """Whether a node gives nothing but views of what it takes, with a history as under recorded gradients."""
    taken = [source.meta.get("example_value") for source in node.all_input_nodes]
    if any(isinstance(value, (tuple, list)) for value in taken):  # one of several that an operator gives
        return is_view(node.all_input_nodes[0])
    owners, made = [value for value in taken if isinstance(value, FakeTensor)], node.meta.get("example_value")
    parts = made if isinstance(made, (tuple, list)) else (made,)  # what has its size already comes back as one of several
    new = [part for part in parts if part is made or not any(part is owner for owner in owners)]
    return bool(new) and all(isinstance(part, FakeTensor) and any(views(part, owner) for owner in owners) for part in new)


def views(part: torch.Tensor, owner: torch.Tensor) -> bool:
    """Whether a tensor is a view of another one."""
    recorded = part.grad_fn is not None or not owner.requires_grad
    return part is not owner and part._is_view() and recorded and storage_key(part) == storage_key(owner)


class Slot(int):
    """The place, among what an operator takes from a graph, of what stands here in its arguments."""


def repeating(node: Node) -> Callable[..., Any]:
    """The operator of a node, as a function of what it takes from the graph."""
    slots = {source: Slot(place) for place, source in enumerate(node.all_input_nodes)}
    return functools.partial(repeated, node.target, *(map_arg(it, slots.__getitem__) for it in (node.args, node.kwargs)))


def repeated(target: Any, args: Any, keywords: Any, *sources: Any) -> Any:
    """What an operator makes of its arguments, with values in the slots."""

    def filled(item: Any) -> Any:
        return sources[item] if type(item) is Slot else item

    return called(target, map_aggregate(args, filled), map_aggregate(keywords, filled))
