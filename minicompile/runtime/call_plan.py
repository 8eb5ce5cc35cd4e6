"""What the runtime needs of a partitioned graph once its programs exist: plain data, without the graphs themselves.

This module must not run anything.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from minicompile.ir.graph import Binding, CapturedGraph, FreshOutput, PartitionedGraph, ViewOutput


@dataclasses.dataclass(frozen=True)
class Tangent:
    """What the backward expects of one incoming gradient; sizes are `None` where they vary between calls."""

    position: int
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device


@dataclasses.dataclass(frozen=True)
class CallPlan:
    """How a forward and a backward program become one call.

    Attributes:
        name: the graph's name.
        binding: how flat outputs become the user's.
        input_kinds: as in `GraphInput.kind`, in order.
        watches_inputs: whether an input requires a gradient.
        tensor_results: of each output of the forward, whether it is a tensor.
        tangents: what the backward takes for each differentiable output; `None` if there is no backward.
        gradient_sources: by number, which tangents each gradient depends on.
        unreached: positions of inputs that require a gradient and get none from any output.
        grad_enabled: whether gradients were on where the graph starts.
        sizes_vary: whether one program serves several sizes.
    """

    name: str
    binding: Binding
    input_kinds: tuple[str, ...]
    watches_inputs: bool
    tensor_results: tuple[bool, ...]
    tangents: tuple[Tangent, ...] | None
    gradient_sources: tuple[tuple[int, ...], ...] = ()
    unreached: tuple[int, ...] = ()
    grad_enabled: bool = True
    sizes_vary: bool = False

    @property
    def halves(self) -> tuple[str, ...]:
        """The programs that there are."""
        return ("forward",) if self.tangents is None else ("forward", "backward")

    @property
    def overwritten(self) -> tuple[int, ...]:
        """Positions of inputs whose memory the forward changes."""
        return tuple(mutated.input_index for mutated in self.binding.mutated_inputs if mutated.in_graph)

    @property
    def user_results(self) -> int:
        """How many of the forward's outputs, counted from the first, are more than saved tensors."""
        indices = [b.index for b in self.binding.outputs if isinstance(b, FreshOutput)]
        indices += [b.base_index for b in self.binding.outputs if isinstance(b, ViewOutput) and b.base == "hidden"]
        indices += [entry.output_index for entry in self.binding.mutated_inputs if not entry.in_graph]
        views = [b for b in self.binding.outputs if isinstance(b, ViewOutput)]
        indices += [number.index for view in views for number in view.size_outputs]
        return max(indices, default=-1) + 1


def call_plan(partitioned: PartitionedGraph, captured: CapturedGraph | None = None) -> CallPlan:
    """The plan of a graph."""
    closing = next(iter(reversed(partitioned.forward.graph.nodes)))
    results = [node.meta["val"] if isinstance(node, torch.fx.Node) else node for node in closing.args[0]]  # type: ignore
    return CallPlan(
        name=partitioned.name,
        binding=partitioned.binding,
        input_kinds=tuple(entry.kind for entry in partitioned.inputs),
        watches_inputs=any(getattr(entry.example, "requires_grad", False) for entry in partitioned.inputs),
        tensor_results=tuple(isinstance(value, torch.Tensor) for value in results),
        tangents=None if partitioned.backward is None else expected_tangents(partitioned.binding, partitioned.backward),
        gradient_sources=() if partitioned.backward is None else gradient_sources(partitioned.binding, partitioned.backward),
        unreached=() if partitioned.backward is None else unreached_inputs(partitioned.binding, partitioned.backward),
        grad_enabled=captured is None or captured.grad_enabled,
        sizes_vary=any(has_symbols(entry.example) for entry in partitioned.inputs),
    )


def has_symbols(example: Any) -> bool:
    """Whether an input is a number that varies, or a tensor with such sizes."""
    numbers = (*example.shape, *example.stride()) if isinstance(example, torch.Tensor) else (example,)
    return any(isinstance(number, (torch.SymInt, torch.SymFloat)) for number in numbers)


def expected_tangents(binding: Binding, backward: torch.fx.GraphModule) -> tuple[Tangent, ...]:
    """What the backward takes for each differentiable output: its last placeholders."""
    indices = binding.differentiable_outputs
    placeholders: list[Any] = [node for node in backward.graph.nodes if node.op == "placeholder"]
    found = []
    for index, node in zip(indices, placeholders[len(placeholders) - len(indices) :], strict=True):
        value = node.meta["val"]
        static = all(isinstance(n, int) for n in (*value.shape, *value.stride()))
        shape, strides = (tuple(value.shape), value.stride()) if static else (None, None)
        found.append(Tangent(index, shape, strides, value.dtype, value.device))
    return tuple(found)


def unreached_inputs(binding: Binding, backward: torch.fx.GraphModule) -> tuple[int, ...]:
    """The inputs for which the backward returns nothing."""
    closing: Any = next(iter(reversed(backward.graph.nodes)))
    return tuple(slot for slot, node in zip(binding.differentiable_inputs, closing.args[0], strict=False) if node is None)


def gradient_sources(binding: Binding, backward: torch.fx.GraphModule) -> tuple[tuple[int, ...], ...]:
    """Which tangents each gradient depends on: where none of them came in, eager gives no gradient at all."""
    if len(binding.differentiable_outputs) == 1:
        return ((0,),) * len(binding.differentiable_inputs)
    placeholders = [node for node in backward.graph.nodes if node.op == "placeholder"]
    first = len(placeholders) - len(binding.differentiable_outputs)
    known: dict[Any, frozenset[int]] = {node: frozenset((number,)) for number, node in enumerate(placeholders[first:])}
    closing = None
    for node in backward.graph.nodes:
        if node not in known:
            known[node] = frozenset().union(*(known[used] for used in node.all_input_nodes))
        closing = node
    assert closing is not None
    return tuple(tuple(sorted(known.get(node, ()))) for node in closing.args[0])
