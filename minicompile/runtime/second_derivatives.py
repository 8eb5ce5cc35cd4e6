"""Gradients that are differentiated again, or come in batches: what was captured runs once more, under autograd.

A compiled backward has no derivative, and kernels take no batches. This module must not keep inputs alive or compile anything.
"""

import contextlib
import functools
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.utils._python_dispatch import TorchDispatchMode

from minicompile.errors import MinicompileError
from minicompile.ir import autocast
from minicompile.ir.graph import FreshOutput
from minicompile.runtime.call_plan import CallPlan

VERSION = operator.attrgetter("_version")


class Noticed(NamedTuple):
    """What is known of the inputs of a call, without keeping them.

    Attributes:
        tensors: weak references to the tensors that the graph does not change.
        versions: the sum of their versions.
        written: what gives a value of each input that the graph changes: as it was before, if that is read.
        sizes: the numbers among the inputs.
    """

    tensors: list[Any]
    versions: int
    written: list[Callable[[], Any]]
    sizes: list[Any]


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
    """The operations of one captured graph, to be run again on the inputs of a call, with the casts that hold here and now."""

    def __init__(self, plan: CallPlan, operations: Callable[..., Any]) -> None:
        self._operations, self._differentiable = operations, plan.binding.differentiable_inputs
        self._places = {b.index: place for place, b in enumerate(plan.binding.outputs) if isinstance(b, FreshOutput)}
        self._passing = [self._places.get(source) for connection in plan.binding.connections for source in connection.sources]
        self._possible, self._recording = plan.read_and_written is not None, plan.grad_enabled
        self._modes = autocast.settings(), autocast.open_blocks()
        self._written = [entry.input_index for entry in plan.binding.mutated_inputs]
        self._read = plan.read_and_written or ()
        self._sizes = [i for i, kind in enumerate(plan.input_kinds) if kind == "size"]
        self._tensors = [i for i, kind in enumerate(plan.input_kinds) if kind != "size" and i not in self._written]

    def before(self, inputs: Sequence[Any]) -> list[Callable[[], Any]]:
        """What will give a value of each input that the graph is about to change: as it is now, if gradients depend on it."""
        return [functools.partial(torch.Tensor.detach, inputs[i].clone()) if i in self._read else weakref.ref(inputs[i])
                for i in self._written]  # fmt: skip

    def notice(self, inputs: Sequence[Any], written: list[Callable[[], Any]]) -> Noticed | None:
        """The inputs of a call, and how often they have been written."""
        if not self._possible:
            return None
        tensors = [inputs[i] for i in self._tensors]
        try:
            versions = sum(map(VERSION, tensors))
        except RuntimeError:  # inference tensors count no writes
            return None
        return Noticed([*map(weakref.ref, tensors)], versions, written, [inputs[i] for i in self._sizes])

    def gradients(self, noticed: Noticed | None, grads: Mapping[int, Any], half: str) -> tuple[Any, ...]:
        """Gradients of the differentiable inputs that have a history, from those that came in by forward output.

        Of the half `split_backward` nothing passes through results that others are computed from; what comes to them follows.
        """
        given = {self._places.get(position): grad for position, grad in grads.items() if grad is not None}
        if noticed is None:
            raise DoubleBackward("it changes an input that is large or wants a gradient")
        tensors, written = ([reference() for reference in references] for references in (noticed.tensors, noticed.written))
        if any(tensor is None for tensor in (*tensors, *written)) or sum(map(VERSION, tensors)) != noticed.versions:
            raise DoubleBackward("an input is gone or was changed")
        passing = self._passing if half == "split_backward" else []
        if None in given or None in passing:
            raise DoubleBackward("a result is a view of another one, or the new value of an input")
        with torch.enable_grad():  # views, since an input may have been computed from another one
            inputs = dict(zip(self._tensors, (tensor.view_as(tensor) for tensor in tensors), strict=True))
        inputs |= zip(self._written, (tensor.detach().clone() for tensor in written), strict=True)
        inputs |= zip(self._sizes, noticed.sizes, strict=True)
        with autocast.as_before(*self._modes), torch.set_grad_enabled(self._recording), _NoRandomNumbers():
            results = self._operations(*(inputs[place] for place in range(len(inputs))))
        wanted = [inputs[i] for i in self._differentiable]
        with _stopped({place: results[place] for place in passing}, given) as passed:
            found = torch.autograd.grad([results[place] for place in given], wanted, [*given.values()],
                                        create_graph=torch.is_grad_enabled(), allow_unused=True)  # fmt: skip
        return *found, *map(passed.get, passing)


@contextlib.contextmanager
def _stopped(results: Mapping[Any, torch.Tensor], given: Mapping[Any, Any]) -> Iterator[dict[Any, Any]]:
    """Keeps, by result, what comes to it in a backward; only what is given for it goes on."""
    passed = dict[Any, Any]()

    def stop(place: Any, gradient: torch.Tensor) -> torch.Tensor:
        passed[place] = gradient
        return given[place] if place in given else torch.zeros_like(gradient)

    hooks = [result.register_hook(functools.partial(stop, place)) for place, result in results.items() if result.requires_grad]
    try:
        yield passed
    finally:
        for hook in hooks:
            hook.remove()
