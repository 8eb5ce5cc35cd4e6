"""Results of a graph that are views of its inputs and that it computes with: made ahead of it, they become inputs.

So autograd sees where such a view comes from and what is computed from it, as in eager: its gradient can be asked for, hooked
and retained. Must not be used on memory that the graph writes.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node

from minicompile.capture.kinds import isinstance
from minicompile.capture.output_graph import OutputGraph, Traced
from minicompile.capture.torch_interface import FakeTensor
from minicompile.ir.fake_mode import storage_key
from minicompile.ir.replacements import called


def take_views_as_inputs(graph: OutputGraph, results: Iterable[Any]) -> list[tuple[Any, Any, Callable[..., Any]]]:
    """Make inputs of the results that are such views.

    What makes them, in order: each time a key for what is made, the key of what it is made of, and how. Keys are the inputs, and
    nodes for what comes in between.
    """
    steps: list[tuple[Any, Any, Callable[..., Any]]] = []
    known: dict[Any, Any] = {entry.node: entry for entry in graph.inputs}
    seen = {id(graph.traced[id(value)].node): value for value in results if is_known_view(graph, value)}
    for node in list(graph.graph.nodes):
        value = seen.get(id(node))
        chain = [] if value is None or not is_computed_with(node) else chain_of_views(node, known)
        for step in chain:
            made: Any = step if step is not node else Traced(value, None, None, "tensor", None)
            steps.append((made, known[step.args[0]], functools.partial(repeated, step.target, step.args[1:], step.kwargs)))
            known[step] = made
        if chain:
            node.replace_all_uses_with(graph.node_of(made))
            graph.traced[id(value)] = known[made.node] = made
            graph.graph.erase_node(node)
    return steps


def is_known_view(graph: OutputGraph, value: Any) -> bool:
    """Whether a result is a view with a history, of memory that the graph does not write."""
    if not isinstance(value, FakeTensor) or value.grad_fn is None or not value._is_view():
        return False
    return storage_key(value) not in graph.fake_mode.written and id(value) not in graph.data_aliases


def is_computed_with(node: Node) -> bool:
    """Whether anything but views is computed from a view, or from its views."""
    return any(not is_view_of(user, node) or is_computed_with(user) for user in node.users)


def chain_of_views(node: Node, known: Any) -> list[Node]:
    """The operators that make a view of what is known, first to be applied first; none if there are no plain ones."""
    chain = [node]
    while (source := chain[-1].args[0] if chain[-1].args else None) not in known:
        if not isinstance(source, Node) or source.op == "placeholder":
            return []
        chain.append(source)
    plain = all(is_view_of(step, step.args[0]) and step.all_input_nodes == [step.args[0]] for step in chain)
    return chain[::-1] if plain else []


def is_view_of(node: Node, source: Any) -> bool:
    """Whether a node gives a view, or several, of the value of another one, or one of these."""
    owner, made = (it.meta.get("example_value") for it in (source, node))
    if isinstance(owner, (tuple, list)):
        return isinstance(made, FakeTensor) and made._is_view()
    parts = made if isinstance(made, (tuple, list)) else (made,)
    return bool(parts) and isinstance(owner, FakeTensor) and all(
        isinstance(part, FakeTensor) and part is not owner and part._is_view() and part.grad_fn is not None
        and storage_key(part) == storage_key(owner) for part in parts)


def repeated(target: Any, args: Any, keywords: Any, value: torch.Tensor) -> Any:
    """What an operator makes of a tensor and its further arguments."""
    return called(target, (value, *args), keywords)
