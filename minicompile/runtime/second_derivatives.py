"""Gradients that are differentiated again: what was captured runs once more, operation by operation, under autograd.

A compiled backward has no derivative. This module must not keep inputs alive, nor compile anything.
"""

import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minicompile.errors import MinicompileError
from minicompile.ir import autocast
from minicompile.ir.graph import FreshOutput
from minicompile.runtime.call_plan import CallPlan

VERSION = operator.attrgetter("_version")


class DoubleBackward(MinicompileError):
    """Gradients that can be differentiated again were asked of a compiled graph that cannot be run again."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a compiled function cannot be differentiated twice where {reason}; "
                         "call it uncompiled (minicompile.disable) where create_graph=True is needed")  # fmt: skip


class _NoRandomNumbers(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise DoubleBackward("it draws random numbers")
        return func(*args, **(kwargs or {}))


class Rerun:
    """The operations of one captured graph, to be run again on the inputs of a call."""

    def __init__(self, plan: CallPlan, operations: Callable[..., Any]) -> None:
        self._operations, self._differentiable = operations, plan.binding.differentiable_inputs
        self._places = {b.index: place for place, b in enumerate(plan.binding.outputs) if isinstance(b, FreshOutput)}
        casts = any(enabled for enabled, _ in autocast.settings()[:-1])
        self._possible = plan.grad_enabled and not plan.binding.mutated_inputs and not casts

    def notice(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], int]:
        """The inputs of a call, without keeping them, and how often they have been written; nothing if they are no use."""
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        if not self._possible or any(map(torch.Tensor.is_inference, tensors)):
            return (), -1
        held = [weakref.ref(value) if isinstance(value, torch.Tensor) else lambda value=value: value for value in inputs]
        return held, sum(map(VERSION, tensors))

    def gradients(self, noticed: tuple[Sequence[Any], int], grads: Mapping[int, Any], half: str) -> tuple[Any, ...]:
        """Gradients of the differentiable inputs that have a history, from those that came in by forward output."""
        if half != "backward":
            raise DoubleBackward("one of its results is computed from another one")
        inputs = [held() for held in noticed[0]]
        given = {self._places.get(position): grad for position, grad in grads.items() if grad is not None}
        versions = [VERSION(value) for value in inputs if isinstance(value, torch.Tensor)]
        if None in given or any(value is None for value in inputs) or sum(versions) != noticed[1]:
            raise DoubleBackward("it changes an input, ran under autocast, or an input is gone or was changed")
        # Views, since an input may have been computed from another one.
        inputs = [value.view_as(value) if isinstance(value, torch.Tensor) else value for value in inputs]
        before = autocast.settings(), autocast.open_blocks()
        try:
            with torch.enable_grad(), _NoRandomNumbers():
                results = self._operations(*inputs)
        finally:
            autocast.restore(*before)
        return torch.autograd.grad(
            [results[place] for place in given], [inputs[i] for i in self._differentiable], [*given.values()],
            create_graph=True, allow_unused=True)  # fmt: skip
