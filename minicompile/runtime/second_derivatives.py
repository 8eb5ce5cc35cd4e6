"""Gradients that are differentiated again, or come in batches: what was captured runs once more, under autograd.

A compiled backward has no derivative, and kernels take no batches. This module must not keep inputs alive or compile anything.
"""

import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.utils._python_dispatch import TorchDispatchMode

from minicompile.errors import MinicompileError
from minicompile.ir import autocast
from minicompile.ir.graph import FreshOutput
from minicompile.runtime.call_plan import CallPlan

VERSION = operator.attrgetter("_version")


Noticed = tuple[list[Any], int, list[Any]]
"""Weak references to the tensors among the inputs of a call, the sum of their versions, the numbers among the inputs."""


class DoubleBackward(MinicompileError):
    """Gradients that can be differentiated again were asked of a compiled graph that cannot be run again."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a compiled function cannot be differentiated twice, or by batches, where {reason}; call it uncompiled "
                         "(minicompile.disable) where create_graph=True or is_grads_batched=True is needed")  # fmt: skip


def is_batch(gradient: torch.Tensor | None) -> bool:
    """Whether a gradient stands for many, under `is_grads_batched=True` or `torch.func.vmap`."""
    return gradient is not None and (is_legacy_batchedtensor(gradient) or is_functorch_wrapped_tensor(gradient))


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
        casts = any(map(torch.is_autocast_enabled, autocast.KINDS))
        self._possible = plan.grad_enabled and not plan.binding.mutated_inputs and not casts
        self._sizes = [i for i, kind in enumerate(plan.input_kinds) if kind == "size"]
        self._tensors = [i for i, kind in enumerate(plan.input_kinds) if kind != "size"]

    def notice(self, inputs: Sequence[Any]) -> Noticed | None:
        """The inputs of a call, without keeping them, and how often they have been written."""
        if not self._possible:
            return None
        tensors = [inputs[i] for i in self._tensors]
        try:
            versions = sum(map(VERSION, tensors))
        except RuntimeError:  # inference tensors count no writes
            return None
        return [*map(weakref.ref, tensors)], versions, [inputs[i] for i in self._sizes]

    def gradients(self, noticed: Noticed | None, grads: Mapping[int, Any], half: str) -> tuple[Any, ...]:
        """Gradients of the differentiable inputs that have a history, from those that came in by forward output."""
        if half != "backward":
            raise DoubleBackward("one of its results is computed from another one")
        given = {self._places.get(position): grad for position, grad in grads.items() if grad is not None}
        held, versions, sizes = noticed or ([lambda: None], 0, [])
        tensors = [reference() for reference in held]
        if None in given or any(tensor is None for tensor in tensors) or sum(map(VERSION, tensors)) != versions:
            raise DoubleBackward("it changes an input, ran under autocast, or an input is gone or was changed")
        with autocast.as_before(autocast.settings(), autocast.open_blocks()), torch.enable_grad(), _NoRandomNumbers():
            # Views, since an input may have been computed from another one.
            inputs = dict(zip(self._tensors, (tensor.view_as(tensor) for tensor in tensors), strict=True))
            inputs |= zip(self._sizes, sizes, strict=True)
            results = self._operations(*(inputs[place] for place in range(len(inputs))))
        return torch.autograd.grad(
            [results[place] for place in given], [inputs[i] for i in self._differentiable], [*given.values()],
            create_graph=torch.is_grad_enabled(), allow_unused=True)  # fmt: skip
