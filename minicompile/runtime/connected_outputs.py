"""Outputs of one compiled call that are computed from each other, as autograd must see them.

One autograd node computes all of them, so that plain `backward()` runs one compiled graph. A second node per connection
stands between the outputs and their sources, for callers who look at the gradient of a source: by a hook, `retain_grad`,
or as an argument of `torch.autograd.grad`. Only then gradients really pass through the sources: a backward for each connection
computes what comes to its sources, and one, in the end, all that comes to the inputs.
Nothing here looks into the graphs. Private interfaces, the same in torch 2.11 to 2.15:
`torch._C._will_engine_execute_node`, `torch._C._current_graph_task_id`, `Tensor._backward_hooks` (which can be set),
`_register_hook_dict` of nodes.
"""

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minicompile.ir.graph import Connection
from minicompile.runtime.second_derivatives import DoubleBackward, is_more_than_values


class ConnectedCall:
    """What the connections of one call share.

    Attributes:
        node: the autograd node of the compiled call.
        sources: their places among the results.
        watched: the sources by their index, as the caller has them, weakly, and their versions.
        written: those of them that are inputs, each with the function that gave it its history.
        slots: for each source, the place where the backward to sources has what comes to it.
    """

    def __init__(self, node: Any, connections: Sequence[Connection], gradients: int) -> None:
        self.node = node
        self.sources = {place for connection in connections for place in connection.sources}
        self.slots = {place: slot for slot, place in enumerate(sorted(self.sources), gradients)}
        self.watched: dict[int, tuple[Any, int]] = {}
        self.written: list[tuple[Any, Any]] = []

    def alive(self) -> dict[int, tuple[Any, int]]:
        """The sources that the caller still has."""
        return {index: source for index, source in self.watched.items() if source[0]() is not None}

    def is_watched(self, anchor: Any) -> bool:
        """Whether somebody may see the gradient of a source in the running backward.

        `anchor` is the node of a leaf that nobody asks for: the engine runs it only where it runs everything.
        """
        hooked = self.sources & self.node.hooked
        if torch.is_grad_enabled():  # what is differentiated again depends on them
            if not hooked <= self.alive().keys():
                raise DoubleBackward("a result with hooks is gone")
            return bool(self.alive())
        if hooked or not torch._C._will_engine_execute_node(anchor):
            return True
        if any((source := reference()) is None or source.grad_fn is not function for reference, function in self.written):
            return True  # whether it had hooks, nobody can tell any more
        sources = (reference() for reference, _ in self.watched.values())
        return any(source is not None and (source.retains_grad or source._backward_hooks) for source in sources)


class _Connect(torch.autograd.Function):
    """Identity on outputs, which depend on their sources too, and on what these are computed from: where gradients are
    differentiated again, they pass through a source that is gone to the ones behind it."""

    @staticmethod
    def forward(
        ctx: Any, call: ConnectedCall, connection: Connection, behind: Sequence[int], *tensors: torch.Tensor
    ) -> Any:
        """Tensors are the sources, those behind them, the outputs and an anchor."""
        ctx.call, ctx.connection, ctx.behind = call, connection, behind
        ctx.set_materialize_grads(False)
        # Detached tensors share memory and version counter, but are no views in autograd's eyes.
        return tuple(value.detach() for value in tensors[len(connection.sources) + len(behind) : -1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """To the compiled call, and, if somebody looks, to the sources."""
        call, sources = ctx.call, ctx.connection.sources
        passed: Sequence[Any] = [None] * (len(sources) + len(ctx.behind))
        if any(grad is not None for grad in grads) and call.is_watched(ctx.next_functions[-1][0]):
            alive = call.node.split_tasks.setdefault(torch._C._current_graph_task_id(), call.alive())
            given = dict(zip(ctx.connection.outputs, grads, strict=True))
            found = call.node._forward_cls.differentiate(call.node, given, "to_sources", alive)
            again = torch.is_grad_enabled() or any(map(is_more_than_values, grads))
            further = (found[call.slots[index]] if again else None for index in ctx.behind)
            passed = *(found[call.slots[index]] for index in sources), *further
        return (None, None, None, *passed, *grads, None)


def note_hooks(function: Any, place_of: Callable[[Any, int], tuple[Any, int]]) -> None:
    """Let the node of a call take down which of its results get hooks: when the backward runs, such a tensor may be gone or
    changed in place, with its hooks still in force. `place_of` tells for a node of `function` and the number of an output the
    node of the call and the place among its results."""
    kind = function._backward_cls

    def register(node: Any, tensor: torch.Tensor) -> None:
        call, place = place_of(node, tensor.output_nr)
        call.hooked.add(place)
        hooks: Any = tensor._backward_hooks
        tensor._backward_hooks = {0: functools.partial(call_hooks, hooks)}  # which the node will call
        super(kind, node)._register_hook_dict(tensor)
        tensor._backward_hooks = hooks

    kind._register_hook_dict = register


def call_hooks(hooks: Mapping[int, Callable[..., Any]], gradient: torch.Tensor | None) -> torch.Tensor | None:
    """What the hooks of a result make of its gradient. A result without one does not have them called, as if it had a node of its
    own; but those of `register_multi_grad_hook` count that node's results."""
    result = None
    for hook in list(hooks.values()):
        if gradient is not None or getattr(hook, "__module__", "") == torch.autograd.graph.__name__:
            found = hook(gradient)
            result = gradient = gradient if found is None else found
    return result


note_hooks(_Connect, lambda node, number: (node.call.node, node.connection.outputs[number]))


def connected(
    connections: Sequence[Connection], results: tuple[Any, ...], gradients: int, node: Any, written: Callable[[int, Any], Any]
) -> tuple[Any, ...]:
    """The results of a compiled call, with what is computed from each other connected.

    `gradients` is how many results of a backward come before those of the sources; `node` is that of the call;
    `written` gives for a result, by its index, what the caller has of it: the input that it is the new value of.
    """
    outputs, seen, call = list(results), dict[int, Any](), ConnectedCall(node, connections, gradients)
    reached = dict[int, set[int]]()
    for connection in connections:
        seen.update((i, written(i, outputs[i])) for i in connection.sources if i not in seen)
        all_sources = set(connection.sources).union(*(reached.get(i, ()) for i in connection.sources))
        reached.update(dict.fromkeys(connection.outputs, all_sources))
        behind = sorted(all_sources.difference(connection.sources))
        tensors = [*map(seen.__getitem__, (*connection.sources, *behind)), *map(outputs.__getitem__, connection.outputs)]
        anchor = torch.empty(0, device=tensors[-1].device, requires_grad=True)
        made = _Connect.apply(call, connection, behind, *tensors, anchor)
        for index, value in zip(connection.outputs, made, strict=True):
            outputs[index] = value
    call.watched = {index: (weakref.ref(value), value._version) for index, value in seen.items()}
    call.written = [(weakref.ref(value), value.grad_fn) for index, value in seen.items() if value is not outputs[index]]
    return tuple(outputs)
