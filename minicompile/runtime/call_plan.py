"""What the runtime needs of a partitioned graph once its programs exist: plain data, without the graphs themselves.

This module must not run anything.
"""

import dataclasses
import functools
import operator
from typing import Any

import torch

from minicompile.ir.graph import Binding, CapturedGraph, FreshOutput, PartitionedGraph, ViewOutput, dependencies

LARGEST_COPY = 1 << 14
"""Elements of an input that are copied before it is written, in case that the gradient is differentiated again."""


@dataclasses.dataclass(frozen=True)
class Tangent:
    """What the backward expects of one incoming gradient.

    Where sizes vary between calls, `shape` is `None`, and `strides` are `()` for row-major ones, `None` for the output's.
    """

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
        gradient_sources: the bits of the backward's placeholders that each gradient depends on, if there are several tangents or
            some gradient is missing, which depends on none; one that no tangent is left in (zeros, of an empty batch) counts as
            depending on all of them.
        taken: names of the values that the backward takes.
        grad_enabled: whether gradients were on where the graph starts.
        sizes_vary: whether one program serves several sizes.
        read_and_written: inputs that the graph changes and that differentiable outputs depend on as they were before; `None` if
            one of the inputs that it changes wants a gradient, or one of these is too large to be copied.
    """

    name: str
    binding: Binding
    input_kinds: tuple[str, ...]
    watches_inputs: bool
    tensor_results: tuple[bool, ...]
    tangents: tuple[Tangent, ...] | None
    gradient_sources: tuple[int, ...] = ()
    taken: tuple[str, ...] = ()
    grad_enabled: bool = True
    sizes_vary: bool = False
    read_and_written: tuple[int, ...] | None = ()

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
    closing: Any = partitioned.forward.graph.output_node()
    results = [node.meta["val"] if isinstance(node, torch.fx.Node) else node for node in closing.args[0]]
    return CallPlan(
        name=partitioned.name,
        binding=partitioned.binding,
        input_kinds=tuple(entry.kind for entry in partitioned.inputs),
        watches_inputs=any(getattr(entry.example, "requires_grad", False) for entry in partitioned.inputs),
        tensor_results=tuple(isinstance(value, torch.Tensor) for value in results),
        grad_enabled=captured is None or captured.grad_enabled,
        sizes_vary=any(has_symbols(entry.example) for entry in partitioned.inputs),
        read_and_written=read_and_written(partitioned),
        **facts_of_backward(partitioned.binding, partitioned.backward),
    )


def read_and_written(partitioned: PartitionedGraph) -> tuple[int, ...] | None:
    """As the attribute of the plan."""
    binding, graph = partitioned.binding, partitioned.forward.graph
    written = {entry.input_index: entry.requires_grad for entry in binding.mutated_inputs}
    if not written or partitioned.backward is None:
        return ()
    closing: Any = graph.output_node()
    known = dependencies(graph)
    read = functools.reduce(operator.or_, (known[closing.args[0][i]] for i in binding.differentiable_outputs), 0)
    found = tuple(i for i in written if read >> i & 1)
    examples = [partitioned.inputs[i].example for i in found]
    small = all(not has_symbols(example) and example.numel() <= LARGEST_COPY for example in examples)
    wanted = any(written.values()) or not written.keys().isdisjoint(binding.differentiable_inputs)
    return found if small and not wanted else None


def has_symbols(example: Any) -> bool:
    """Whether an input is a number that varies, or a tensor with such sizes."""
    numbers = (*example.shape, *example.stride()) if isinstance(example, torch.Tensor) else (example,)
    return any(isinstance(number, (torch.SymInt, torch.SymFloat)) for number in numbers)


def facts_of_backward(binding: Binding, backward: torch.fx.GraphModule | None) -> dict[str, Any]:
    """What the plan says of the backward."""
    if backward is None:
        return {"tangents": None}
    closing: Any = backward.graph.output_node()
    placeholders = backward.graph.find_nodes(op="placeholder")
    known = dependencies(backward.graph)
    gradients, outputs = closing.args[0], binding.differentiable_outputs
    incoming = placeholders[len(placeholders) - len(outputs) :]
    arriving = sum(known[node] for node in incoming)
    known |= {node: known[node] | arriving for node in gradients if node is not None and not known[node] & arriving}
    return {
        "tangents": tuple(expected_tangent(at, node.meta["val"]) for at, node in zip(outputs, incoming, strict=True)),
        "gradient_sources": tuple(known.get(node, 0) for node in gradients) if len(outputs) > 1 or None in gradients else (),
        "taken": tuple(node.name for node in placeholders),
    }


def expected_tangent(position: int, value: torch.Tensor) -> Tangent:
    """What the backward takes for a differentiable output."""
    static = all(isinstance(n, int) for n in (*value.shape, *value.stride()))
    shape, strides = (tuple(value.shape), value.stride()) if static else (None, () if is_row_major(value) else None)
    return Tangent(position, shape, strides, value.dtype, value.device)


def is_row_major(value: torch.Tensor) -> bool:
    """Whether a tensor of varying sizes is contiguous, at the sizes seen first."""
    sizes, strides = ([n if isinstance(n, int) else n.node.hint for n in numbers] for numbers in (value.shape, value.stride()))
    return torch.empty_strided(sizes, strides, device="meta").is_contiguous()
