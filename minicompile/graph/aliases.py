"""What the traced outputs are: new tensors, inputs, views of inputs, views of each other.

The forward graph returns values only; identity and shared storage are rebuilt outside from the bindings made here. This
module must not record nodes other than reads of current values.
"""

import collections
import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from minicompile.graph import torch_interface
from minicompile.graph.operators import is_view, operand
from minicompile.graph.recorder import Recorder
from minicompile.ir.graph import (
    ConstantOutput,
    FreshOutput,
    InputOutput,
    MutatedInput,
    OutputBinding,
    RepeatedOutput,
    SizeOutput,
    ViewCall,
    ViewOutput,
)

DETACHED = "outputs share memory, with each other or an input, but not its history"
CUT: ViewCall = (torch.ops.aten.detach.default, (), {})


@dataclasses.dataclass(frozen=True)
class TracedInput:
    """An input during the trace.

    Attributes:
        fake: the plain fake tensor (or size) behind the placeholder.
        value: the functional tensor that the captured graph works on; `None` for a size.
        leaf: where its gradient arrives; `None` if it needs none.
        differentiable: whether it requires a gradient on entry.
        version: how often the functional tensor had been written on entry.
    """

    fake: Any
    value: torch.Tensor | None
    leaf: torch.Tensor | None
    differentiable: bool
    version: int = 0


class OutputAnalysis:
    """Binds every user output, and collects the values that the forward graph must return.

    Attributes:
        bindings: one per user output.
        mutated_inputs: inputs to copy back.
        views_by_hand: storages of views whose derivative is the user's own, so that a view made anew would be wrong.
        forward_nodes, forward_values: the forward graph's outputs: nodes, and functional tensors (`None` for sizes).
    """

    def __init__(
        self, recorder: Recorder, inputs: list[TracedInput], results: list[Any], views_by_hand: set[int],
        before_cut: Mapping[int, torch.Tensor],
    ) -> None:
        self.views_by_hand = views_by_hand
        self._before_cut = before_cut
        self.bindings: list[OutputBinding] = []
        self.mutated_inputs: list[MutatedInput] = []
        self.forward_nodes: list[Any] = []
        self.forward_values: list[torch.Tensor | None] = []
        self._recorder = recorder
        self._inputs = inputs
        self._by_identity = {id(t.value): i for i, t in enumerate(inputs) if t.value is not None}
        self._by_storage = {torch_interface.storage_key(t.value): i for i, t in enumerate(inputs) if t.value is not None}
        self._hidden: dict[int, tuple[int, torch.Tensor]] = {}
        self._collect_mutations()
        self._seen: dict[int, int] = {}
        tensors = [(position, value) for position, value in enumerate(results) if isinstance(value, torch.Tensor)]
        distinct = {id(value): value for _, value in tensors}.values()
        self._shared = collections.Counter(map(torch_interface.storage_key, distinct))
        # Among outputs that share storage, the first that is nobody's view can serve the others as base; detached ones last.
        best_last = sorted(tensors, key=lambda entry: (entry[1].requires_grad, -entry[0]))
        self._owners = {torch_interface.storage_key(v): root_of(v) for _, v in best_last}
        roots = {torch_interface.storage_key(v): (place, v) for place, v in best_last if root_of(v) is v}
        self._roots = {key: root for key, root in roots.items() if root[1].requires_grad >= self._owners[key].requires_grad}
        views = [(place, value) for place, value in reversed(tensors) if value._base is not None and function_of(value)]
        self._by_history = {(function_of(value), value.output_nr): (place, value) for place, value in views}
        for position, value in enumerate(results):
            self.bindings.append(self._bind(position, value))

    def _collect_mutations(self) -> None:
        for index, traced in enumerate(self._inputs):
            value = traced.value
            if value is None or not torch_interface.data_was_mutated(value):
                continue
            node = self._recorder.node_of(torch_interface.from_functional(value))
            if node is self._recorder.node_of(traced.fake):
                continue
            requires_grad = value.requires_grad and has_history(value)
            position = self._return(node, value if requires_grad else None)
            # Kept for the backward is what a view is of, not the input: then a later write has to be refused.
            counted = value._version > traced.version or is_view(node)
            self.mutated_inputs.append(MutatedInput(index, position, requires_grad=requires_grad, counted=counted))

    def _return(self, node: Any, value: torch.Tensor | None) -> int:
        self.forward_nodes.append(node)
        self.forward_values.append(value)
        return len(self.forward_nodes) - 1

    def _bind(self, position: int, value: Any) -> OutputBinding:
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return FreshOutput(self._return(self._recorder.sizes.node_or_number(value), None))
        if not isinstance(value, torch.Tensor):
            return ConstantOutput(value)
        if id(value) in self._by_identity:
            return InputOutput(self._by_identity[id(value)])
        if id(value) in self._seen:
            return RepeatedOutput(self._seen[id(value)])
        self._seen[id(value)] = position
        key = torch_interface.storage_key(value)
        if (nearest := self._viewed_result(value)) is not None:
            return self._view("output", *nearest, value, False)
        if key in self._by_storage:
            index = self._by_storage[key]
            traced = self._inputs[index]
            assert traced.value is not None
            base = root_of(value)
            detached = self._before_cut.get(id(base), base) is not traced.value
            if value.requires_grad and detached:
                raise RuntimeError(DETACHED)
            return self._view("input", index, traced.value if detached else base, value, detached)
        root = self._roots.get(key)
        own = function_of(value) is not None or not value.requires_grad  # no view made under `no_grad`
        if self._shared[key] == 1 and own and not self._has_windows(value) or root is not None and root[1] is value:
            return FreshOutput(self._return(self._node(value), value), value.requires_grad)
        if root is None and key not in self._hidden:
            owner = self._owners[key]
            self._hidden[key] = (self._return(self._node(owner), owner), owner)
        base = root_of(value)
        kind, (place, other) = ("output", root) if root is not None else ("hidden", self._hidden[key])
        detached = self._before_cut.get(id(base), base) is not other
        if detached and value.requires_grad:
            raise RuntimeError(DETACHED)
        return self._view(kind, place, other if detached or root is None else base, value, detached)

    def _viewed_result(self, value: torch.Tensor) -> tuple[int, torch.Tensor] | None:
        """The result, itself a view, that autograd says `value` is a view of, and its place."""
        function = function_of(value) if value._base is not None else None
        while function is not None and function.next_functions:
            place, other = self._by_history.get(edge := function.next_functions[0], (0, None))
            if other is not None and torch_interface.storage_key(other) == torch_interface.storage_key(value):
                return (place, other) if view_calls(self._node(value), self._node(other)) is not None else None
            function = edge[0]
        return None

    def _has_windows(self, value: torch.Tensor) -> bool:
        """Whether elements of a view may share memory, so that no memory of its own can be laid out like it."""
        calls = view_calls(self._node(value), self._node(root_of(value))) or ()
        return any(target in WINDOWS for target, *_ in calls)

    def _node(self, value: torch.Tensor) -> Node:
        return self._recorder.node_of(torch_interface.from_functional(value))

    def _view(self, kind: Any, index: int, base: torch.Tensor, value: torch.Tensor, detached: bool) -> ViewOutput:
        if value.requires_grad and torch_interface.storage_key(value) in self.views_by_hand:
            raise RuntimeError("an output is a view with a backward of the user's own")
        base_node, node = self._node(base), self._node(value)
        calls = view_calls(node, base_node)
        if calls is None and value.dtype != base.dtype:
            raise RuntimeError("an output is a view of reinterpreted storage that cannot be rebuilt")
        if calls is None and value.requires_grad and torch_interface.overlaps(base_node.meta["val"]):
            raise RuntimeError("an output is a view by its strides of a tensor whose elements share memory")
        sizes, strides, offset = tuple(value.shape), value.stride(), value.storage_offset() - base.storage_offset()
        if detached:
            if calls is None:
                raise RuntimeError(DETACHED)
            calls = () if node is base_node else calls
            calls = (*calls, CUT) if root_of(value) is value else (CUT, *calls)
        geometry = (sizes, strides, offset) if calls is None else ((), (), 0)
        recorded = not base.requires_grad or function_of(value) is not None
        return ViewOutput(
            kind, index, *geometry, value.dtype, calls or (), value.requires_grad, recorded).mapped(self._size)

    def _size(self, value: Any) -> Any:
        """A number of a view, an output of the forward where it varies."""
        known = self._recorder.sizes.node_or_number(value) if isinstance(value, torch.SymInt) else value
        return SizeOutput(self._return(known, None)) if isinstance(known, Node) else known


def has_history(value: torch.Tensor) -> bool:
    """Whether the graph gave a tensor its history; a write under `no_grad` or through `detach()` leaves that of an input."""
    function = function_of(value)
    return function is not None and function.name() != "_NonLeafBackward"


def function_of(value: torch.Tensor) -> Any:
    """The function that gave a tensor its history; none for a view made under `no_grad`, of which autograd tells nothing once
    its memory was written. One of several views of a call is then of no use, which eager says."""
    try:
        return value.grad_fn
    except RuntimeError as refusal:
        if "multiple views" in str(refusal):
            raise
        return None


WINDOWS = (torch.ops.aten.unfold.default, torch.ops.aten.as_strided.default)


def root_of(value: torch.Tensor) -> torch.Tensor:
    """The tensor that autograd says `value` is a view of; itself if it is no view."""
    base = value._base
    return value if base is None else base


def view_calls(node: Node, base: Node) -> tuple[ViewCall, ...] | None:
    """The chain of view operators from `base` to `node`, first to be applied first; `None` if there is no plain one.

    Their arguments may hold nodes of sizes. Written memory is read anew by each of its views, from one value detached.
    """
    calls: list[ViewCall] = []
    current, base = undetached(node), undetached(base)
    while current is not base:
        target = current.target
        if target is not operator.getitem and not getattr(target, "is_view", False):
            return None
        source, *rest = current.args
        if not isinstance(source, Node) or any(isinstance(n.meta["val"], torch.Tensor) for n in current.all_input_nodes[1:]):
            return None
        calls.append((target, tuple(rest), dict(current.kwargs)))
        current = undetached(source)
    return tuple(reversed(calls)) or ((torch.ops.aten.alias.default, (), {}),)


def undetached(node: Node) -> Node:
    """The node whose value, detached from its history, is that of `node`."""
    while node.target is torch.ops.aten.detach.default:
        node = operand(node)
    return node
