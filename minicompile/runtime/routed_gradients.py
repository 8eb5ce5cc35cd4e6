"""Gradients that reach only what they belong to, where an input of a graph matters to some of its results alone.

One autograd node computes all gradients of a call, and the engine goes on from it to every input, also to those that get
none: their hooks are called with `None`, what made them is run and freed. Where that could be seen, each result gets a
node of its own, and so does each set of inputs that the same results depend on. The nodes of results, made last, run first
and leave what came in; the first of the others computes all gradients. Nothing here looks into the graphs.
"""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from minicompile.runtime.call_plan import CallPlan
from minicompile.runtime.connected_outputs import note_hooks

Groups = Mapping[int, tuple[int, ...]]
"""Positions of inputs by the bits of the tangents that their gradients depend on."""


class _Passing:
    """What came in and was not used yet, by result, and what was found and not taken yet, by input, in one backward."""

    def __init__(self) -> None:
        self.tangents, self.found = dict[int, Any](), dict[int, Any]()

    def end(self) -> None:
        """Let go of what nobody took."""
        self.found.clear()


class Routes:
    """What the running backwards of one call share; `node` is the call's own, alive with its `token`."""

    def __init__(self, result: torch.Tensor) -> None:
        self.node: Any = result.grad_fn
        self._token = _Inputs.apply(None, (), result)
        self._running: Any = weakref.WeakValueDictionary[int, _Passing]()

    def _passing(self) -> _Passing:
        """What belongs to the running backward, in whose hooks others may run; the engine holds it as long as that one runs."""
        task = torch._C._current_graph_task_id()
        passing = self._running.get(task)
        if passing is None:
            passing = self._running[task] = _Passing()
            torch.autograd.Variable._execution_engine.queue_callback(passing.end)
        return passing

    def leave(self, position: int, tangent: Any) -> None:
        """Take the gradient of a result."""
        self._passing().tangents[position] = tangent

    def take(self, positions: Sequence[int]) -> list[Any]:
        """The gradients of inputs; all that their results can send has been left."""
        passing = self._passing()
        if passing.tangents:
            tangents, passing.tangents = passing.tangents, {}
            for position, gradient in self.node._forward_cls.gradients(self.node, tangents).items():
                earlier = passing.found.get(position)
                passing.found[position] = gradient if earlier is None else earlier if gradient is None else earlier + gradient
        return [passing.found.pop(position, None) for position in positions]


class _Inputs(torch.autograd.Function):
    """A token for inputs whose gradients depend on the same results."""

    @staticmethod
    def forward(ctx: Any, routes: Routes | None, positions: Sequence[int], *inputs: torch.Tensor) -> Any:
        """Nothing, where the inputs are."""
        ctx.routes, ctx.positions = routes, positions
        return inputs[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, token: Any) -> Any:
        """The gradients."""
        return None, None, *ctx.routes.take(ctx.positions)


class _Result(torch.autograd.Function):
    """A result that depends on the inputs for which there are tokens."""

    @staticmethod
    def forward(ctx: Any, routes: Routes, position: int, value: list[torch.Tensor], *tokens: torch.Tensor) -> Any:
        """`value` in a list, so that its own history ends here."""
        ctx.routes, ctx.position, ctx.tokens = routes, position, tokens
        ctx.set_materialize_grads(False)
        return value[0].detach()

    @staticmethod
    def backward(ctx: Any, tangent: Any) -> Any:
        """Tokens, so that the inputs' nodes run behind those of other results."""
        if tangent is not None:
            ctx.routes.leave(ctx.position, tangent)
        return None, None, None, *(token.detach() for token in ctx.tokens)


note_hooks(_Result, lambda node, number: (node.routes.node, node.position))


def input_groups(plan: CallPlan) -> tuple[Groups, tuple[int, ...]]:
    """The inputs, where some depend on a part of the results only (empty where none does), and those that get no gradient."""
    first, groups = len(plan.taken) - len(plan.tangents or ()), dict[int, tuple[int, ...]]()
    for position, sources in zip(plan.binding.differentiable_inputs, plan.gradient_sources):
        groups[sources >> first] = (*groups.get(sources >> first, ()), position)
    unreached = groups.pop(0, ()) if len(groups) > 1 else ()
    return groups if len(groups) > 1 else {}, unreached


def shows(groups: Groups, inputs: Sequence[Any], results: int) -> bool:
    """Whether somebody could tell that an input was reached without a gradient."""
    partial = [inputs[i] for bits, positions in groups.items() if bits != (1 << results) - 1 for i in positions]
    return any(not tensor.is_leaf or tensor._backward_hooks or tensor._post_accumulate_grad_hooks for tensor in partial)


def routed(groups: Groups, inputs: Sequence[Any], results: Sequence[Any], positions: Sequence[int]) -> tuple[Any, ...]:
    """The results of a call, those at `positions` (one for each tangent) as results of nodes of their own."""
    outputs, routes = list(results), Routes(results[positions[0]])
    tokens = {bits: _Inputs.apply(routes, places, *(inputs[i] for i in places)) for bits, places in groups.items()}
    for number, position in enumerate(positions):
        if reached := [token for bits, token in tokens.items() if bits >> number & 1]:
            outputs[position] = _Result.apply(routes, position, [results[position]], *reached)
    return tuple(outputs)
