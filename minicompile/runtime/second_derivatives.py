"""Gradients that are differentiated again, come in batches or have tangents: what was captured runs again, under autograd.

A compiled backward has no derivative, and kernels take no batches. This module must not compile anything, nor keep inputs alive,
but for small ones that were computed: nobody else may hold what one part of a function hands to the next behind a graph break.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from minicompile.errors import MinicompileError
from minicompile.ir import autocast
from minicompile.ir.graph import FreshOutput
from minicompile.ir.operator_names import BECOMES_A_VIEW
from minicompile.runtime.call_plan import LARGEST_COPY, CallPlan

VERSION = operator.attrgetter("_version")


Source = tuple[Any, int]
"""A weak reference to a result, as the caller has it, and its version."""


class Noticed(NamedTuple):
    """What is known of the inputs of a call, without keeping them.

    Attributes:
        tensors: what gives the tensors that the graph does not change: weak references, mostly.
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


def itself(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, as a weak reference to it gives it."""
    return tensor


def is_more_than_values(gradient: torch.Tensor | None) -> bool:
    """Whether a gradient stands for many (`is_grads_batched=True`), belongs to a transform of `torch.func` or has a tangent."""
    if gradient is None:
        return False
    dual = forward_ad._current_level >= 0 and forward_ad.unpack_dual(gradient).tangent is not None
    return dual or is_legacy_batchedtensor(gradient) or is_functorch_wrapped_tensor(gradient)


class _NoRandomNumbers(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise DoubleBackward("it draws random numbers")
        return func(*args, **(kwargs or {}))


class Rerun:
    """The operations of one captured graph, to be run again on the inputs of a call, with the casts that hold here and now."""

    def __init__(self, plan: CallPlan, module: torch.fx.GraphModule) -> None:
        self._module, self._differentiable = module, plan.binding.differentiable_inputs
        self._places = {b.index: place for place, b in enumerate(plan.binding.outputs) if isinstance(b, FreshOutput)}
        self._sources = sorted({source for connection in plan.binding.connections for source in connection.sources})
        self._possible, self._recording = plan.read_and_written is not None, plan.grad_enabled
        self._modes = autocast.settings(), autocast.open_blocks()
        self._written = [entry.input_index for entry in plan.binding.mutated_inputs]
        self._read = plan.read_and_written or ()
        self._sizes = [i for i, kind in enumerate(plan.input_kinds) if kind == "size"]
        self._tensors = [i for i, kind in enumerate(plan.input_kinds) if kind != "size" and i not in self._written]
        # A view of an input that becomes another one in place would give the caller's tensor another history.
        turns = any(getattr(node.target, "__name__", node.target) in BECOMES_A_VIEW for node in module.graph.nodes)
        self._apart: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.clone if turns else lambda value: value.view_as(value)
        self._maybe_computed = [place for place, i in enumerate(self._tensors) if plan.input_kinds[i] == "tensor"]

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
        references: list[Any] = [*map(weakref.ref, tensors)]
        for place in self._maybe_computed:
            if tensors[place].grad_fn is not None and tensors[place].numel() <= LARGEST_COPY:
                references[place] = functools.partial(itself, tensors[place])
        return Noticed(references, versions, written, [inputs[i] for i in self._sizes])

    def gradients(self, noticed: Noticed | None, grads: Mapping[int, Any], sources: Mapping[int, Source]) -> tuple[Any, ...]:
        """Gradients of the differentiable inputs that have a history, from those that came in by forward output.

        With `sources`, gradients end at what the caller has of these results, and those of all sources follow.
        """
        given = {self._places.get(position): grad for position, grad in grads.items() if grad is not None}
        if noticed is None:
            raise DoubleBackward("it changes an input that is large or wants a gradient")
        tensors, written = ([reference() for reference in references] for references in (noticed.tensors, noticed.written))
        outside = {index: reference() for index, (reference, version) in sources.items()}
        present = all(tensor is not None for tensor in (*tensors, *written, *outside.values()))
        if not present or [*map(VERSION, outside.values())] != [version for _, version in sources.values()] or (
            sum(map(VERSION, tensors)) != noticed.versions
        ):
            raise DoubleBackward("an input or a result is gone or was changed")
        if None in given or any(index not in self._places for index in sources):
            raise DoubleBackward("a result is a view of another one, or the new value of an input")
        nodes: Any = self._module.graph.output_node().args[0]
        at = {index: nodes[self._places[index]] for index in sources}
        values = {at[index]: tensor for index, tensor in outside.items()}
        run = _Resumed(self._module, values, {})
        inputs, results = self._again(run, noticed, tensors, written)
        if run.written:
            run = _Resumed(self._module, values, run.written)
            inputs, results = self._again(run, noticed, tensors, written)
        if run.written:
            raise DoubleBackward("a result that another one is computed from is changed in place")
        wanted = [*(inputs[i] for i in self._differentiable), *(run.copies[node] for node in at.values())]
        shown = [run.computed.get(nodes[place], results[place]) for place in given]
        found = torch.autograd.grad(shown, wanted, [*given.values()], create_graph=torch.is_grad_enabled(), allow_unused=True)
        of_inputs = len(self._differentiable)
        passed = dict(zip(at, found[of_inputs:], strict=True))
        return *found[:of_inputs], *map(passed.get, self._sources)

    @temporarily_clear_interpreter_stack()  # the forward ran outside of the transforms that its gradients belong to
    def _again(self, run: _Resumed, noticed: Noticed, tensors: list[Any], written: list[Any]) -> tuple[dict[int, Any], Any]:
        """The inputs and results of another run."""
        with torch.enable_grad():  # views, since an input may have been computed from another one
            inputs = dict(zip(self._tensors, map(self._apart, tensors), strict=True))
        inputs |= zip(self._written, (tensor.detach().clone() for tensor in written), strict=True)
        inputs |= zip(self._sizes, noticed.sizes, strict=True)
        with autocast.as_before(*self._modes), torch.set_grad_enabled(self._recording), _NoRandomNumbers():
            execute = run.run if run.outside else self._module.forward  # the same, faster
            return inputs, execute(*(inputs[place] for place in range(len(inputs))))


class _Resumed(torch.fx.Interpreter):
    """Runs a graph whose values at some nodes are taken from outside, so that gradients end there.

    Attributes:
        outside: those values, by node.
        copies: the same values, of which copies are used.
        computed: what the graph itself computes there.
        written: nodes that change such a value in place after it was taken; it is to be taken after the last of them.
    """

    def __init__(self, module: torch.fx.GraphModule, outside: Mapping[Any, torch.Tensor], after: Mapping[Any, Any]) -> None:
        super().__init__(module)
        self._taken = dict[Any, list[Any]]()
        for node in outside:
            self._taken.setdefault(after.get(node, node), []).append(node)
        self.outside = outside
        self.copies, self.computed, self.written = dict[Any, torch.Tensor](), dict[Any, torch.Tensor](), dict[Any, Any]()
        self._versions = dict[Any, int]()

    def run_node(self, n: torch.fx.Node) -> Any:
        """The value of a node, for its users."""
        value = super().run_node(n)
        for node, copy in self.copies.items():
            if self._versions[node] != (versions := copy._version + self.computed[node]._version):
                self.written[node], self._versions[node] = n, versions
        if n in self.outside:
            self.computed[n] = value
        for node in self._taken.get(n, ()):
            with torch.enable_grad():
                self.copies[node] = copy = self.outside[node].clone()
            computed = self.computed[node]
            self._versions[node] = copy._version + computed._version
            self.env |= {other: copy for other, found in self.env.items() if found is computed}
            value = copy if value is computed else value
        return value
