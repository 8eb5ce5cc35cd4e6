"""What capture hands to the graph stage, and what the graph stage hands to lowering.

`CapturedGraph` holds torch-level operations as the user wrote them (in-place ones included); `PartitionedGraph` holds
functional ATen primitives, split into a forward and a backward part, and the `Binding` that turns plain tensors in and
out of those graphs back into what eager would have returned: aliases, mutated inputs, gradients.

FX modules are mutable, so freezing is shallow: a pass copies before it changes one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch

from minicompile.errors import Location, stack_lines
from minicompile.ir import autocast


class GraphModule(torch.fx.GraphModule):
    """A graph module that writes and compiles its Python only when it is first called."""

    def recompile(self) -> Any:
        """Nothing yet."""
        return None

    def forward(self, *args: Any) -> Any:
        """Run the graph, without the hooks that calling a module runs; if it fails, the modes that it has set are left."""
        kind = type(self)
        if kind.forward is GraphModule.forward:
            with readable_powers(self.graph), functions_not_names(self.graph):
                super().recompile()  # which gives the class, one a graph, a `forward` of its own
        recording, casts, blocks = torch.is_grad_enabled(), autocast.settings(), autocast.open_blocks()
        try:
            return kind.forward(self, *args)
        except BaseException:
            torch.set_grad_enabled(recording)
            autocast.restore(casts, blocks)
            raise


@contextlib.contextmanager
def readable_powers(graph: torch.fx.Graph) -> Iterator[None]:
    """Powers of negative numbers as calls while a graph is written as Python: FX writes `(-2) ** x` as `-2 ** x`."""
    negative = [n for n in graph.nodes if n.target is operator.pow and str(n.args[0]).startswith("-")]
    for node in negative:
        node.target = pow
    yield
    for node in negative:
        node.target = operator.pow


@contextlib.contextmanager
def functions_not_names(graph: torch.fx.Graph) -> Iterator[None]:
    """Functions of torch as objects while a graph is written to be run: FX writes names, and users replace what these name."""
    named = [n for n in graph.nodes if isinstance(n.target, types.FunctionType | types.BuiltinFunctionType)
             and (n.target.__module__ or "").startswith("torch")]
    for node in named:
        node.target = functools.update_wrapper(functools.partial(node.target), node.target, ("__name__",), ())
    yield
    for node in named:
        node.target = node.target.func


def dependencies(graph: torch.fx.Graph) -> dict[torch.fx.Node, int]:
    """The bits of the placeholders that each node depends on, those named in its `meta["together"]` among them."""
    known: dict[torch.fx.Node, int] = {}
    bits: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            bits[node.name] = 1 << len(bits)
        named = [bits.get(name, 0) for name in (node.name, *node.meta.get("together", ()))]
        known[node] = functools.reduce(operator.or_, (*named, *(known[used] for used in node.all_input_nodes)))
    return known


def parts_of(value: Any) -> Sequence[Any]:
    """The values that a result, or an argument, consists of: those of a list or tuple, or it alone."""
    return value if isinstance(value, (list, tuple)) else (value,)


def ancestors(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes and everything that they are computed from."""
    found: set[torch.fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def python_text(graph: torch.fx.Graph) -> tuple[str, dict[str, Any]]:
    """A graph as the Python function `forward(self, ...)`, and the global names in it."""
    with readable_powers(graph):
        code = graph.python_code("self")
    text = re.sub(r";  [\w, =]+= None|(?<=\)) -> \w+(?=:\n)", "", code.src.strip())
    return text, {name: value for name, value in code.globals.items() if re.search(rf"\b{re.escape(name)}\b", text)}


@dataclasses.dataclass(frozen=True)
class GraphInput:
    """One placeholder of a captured graph.

    Attributes:
        name: the placeholder's name in the graph.
        source: Python text by which the user knows the value (`x`, `self.layers[0].weight`).
        kind: a parameter, a buffer, any other tensor, or a number that varies between calls (`size`: a `torch.SymInt`
            or a float passed as a 0-d fp64 tensor).
        example: the fake tensor (or `SymInt`) that stands for the value.
    """

    name: str
    source: str
    kind: Literal["parameter", "buffer", "tensor", "size"]
    example: Any


@dataclasses.dataclass(frozen=True)
class GraphBreak:
    """Why a frame was cut: a registered kind, the reason, a rewrite where one is known, and the user's stack."""

    kind: str
    reason: str
    hint: str
    stack: tuple[Location, ...]

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.reason}", *stack_lines(self.stack, "    ")]
        if self.hint:
            lines.append(f"    what to do: {self.hint}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class GuardRecord:
    """One condition that a compiled variant depends on, as Python text, as a sentence, and who needed it."""

    expression: str
    sentence: str
    location: Location | None = None


@dataclasses.dataclass(frozen=True)
class CapturedGraph:
    """One graph of torch-level operations.

    Attributes:
        module: placeholders in the order of `inputs`; the output node returns a flat tuple of tensors (and sizes).
            Every node has `meta["example_value"]` (fake result) and `meta["location"]` (`Location | None`), and where
            the user's variable name is known `meta["variable"]`. Attributes reached by `get_attr` are only constants.
        inputs: what each placeholder stands for.
        guards: everything this graph depends on.
        graph_break: why the graph ended, if it did not end with the function.
        name: the user's function or module, as a Python identifier.
        grad_enabled: grad mode on entry; changes inside are `torch._C._set_grad_enabled` nodes.
        location: where the captured code starts.
    """

    module: torch.fx.GraphModule
    inputs: tuple[GraphInput, ...]
    guards: tuple[GuardRecord, ...] = ()
    graph_break: GraphBreak | None = None
    name: str = "graph"
    grad_enabled: bool = True
    location: Location | None = None


@dataclasses.dataclass(frozen=True)
class SizeOutput:
    """A size known only when the graph runs: output `index` of the forward graph."""

    index: int


@dataclasses.dataclass(frozen=True)
class FreshOutput:
    """A user output that is output `index` of the forward graph, in storage of its own."""

    index: int
    requires_grad: bool = False


@dataclasses.dataclass(frozen=True)
class InputOutput:
    """A user output that is the very tensor passed as input `index`."""

    index: int


ViewCall = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A view's operator overload, its arguments after the first, and its keyword arguments."""


@dataclasses.dataclass(frozen=True)
class ViewOutput:
    """A user output that shares storage with an input or with another output, rebuilt outside the graph.

    Attributes:
        base: where the storage comes from.
        base_index: index of that input, or of that user output.
        sizes, strides, offset: `as_strided` geometry relative to the base's first element: integers, or `SizeOutput`s,
            as the numbers in `view_calls` are.
        dtype: differs from the base's for `view(dtype)`.
        view_calls: to be applied to the base in order, so that autograd sees the same views as in eager; empty when
            `as_strided` serves.
        requires_grad: whether the view requires a gradient, as one made under `no_grad` does too.
        recorded: whether it is made with gradients recorded.

    A base `hidden` is output `base_index` of the forward graph, a tensor that the user only sees through views.
    """

    base: Literal["input", "output", "hidden"]
    base_index: int
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    view_calls: tuple[ViewCall, ...] = ()
    requires_grad: bool = True
    recorded: bool = True

    @functools.cached_property
    def size_outputs(self) -> tuple[SizeOutput, ...]:
        """The numbers, anywhere in it, that are known only when the graph runs."""
        found: list[SizeOutput] = []
        self.mapped(lambda number: found.append(number) if isinstance(number, SizeOutput) else number)
        return tuple(found)

    def mapped(self, change: Callable[[Any], Any]) -> ViewOutput:
        """The view with all its numbers changed."""
        names = ("sizes", "strides", "offset", "view_calls")
        return dataclasses.replace(self, **{n: torch.fx.node.map_aggregate(getattr(self, n), change) for n in names})


@dataclasses.dataclass(frozen=True)
class RepeatedOutput:
    """A user output that is the very object that user output `index` is."""

    index: int


@dataclasses.dataclass(frozen=True)
class ConstantOutput:
    """A user output that is a Python value known at compile time (`None`, a number)."""

    value: Any


OutputBinding = FreshOutput | InputOutput | ViewOutput | RepeatedOutput | ConstantOutput


@dataclasses.dataclass(frozen=True)
class MutatedInput:
    """An input whose data the user's code changed: forward output `output_index` is copied into it after the run.

    `in_graph` says that the graph already wrote the storage in place and nothing has to be copied; `counted`, that autograd
    is to know, as it does not of writes through `.data`.
    """

    input_index: int
    output_index: int
    in_graph: bool = False
    requires_grad: bool = False
    counted: bool = True


@dataclasses.dataclass(frozen=True)
class ForwardValue:
    """A value of the forward that is saved for the backward, or computed again there, with its size and the reason."""

    name: str
    num_bytes: int
    reason: str
    location: Location | None = None


@dataclasses.dataclass(frozen=True)
class PatternRecord:
    """Code written by hand that was, or was not, replaced by one operator, and why not."""

    pattern: str
    accepted: bool
    reason: str = ""
    location: Location | None = None


@dataclasses.dataclass(frozen=True)
class Connection:
    """Outputs that are computed from other outputs: gradients of `outputs` pass through those of `sources`.

    Both are forward output indices. Whoever watches the gradient of a source must see what the outputs add to it.
    """

    outputs: tuple[int, ...]
    sources: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class History:
    """What eager's backward would free and check. Tangents are bits, in the order of `Binding.differentiable_outputs`.

    Attributes:
        shared: for each tangent those whose backward cannot run after its own, or before it, unless the graph is retained.
        inputs, outputs: positions of inputs and forward outputs that eager saves, with the tangents whose backward reads them.
    """

    shared: tuple[int, ...] = ()
    inputs: tuple[tuple[int, int], ...] = ()
    outputs: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Binding:
    """How the forward graph's flat outputs become the user's outputs.

    Attributes:
        outputs: one entry per user output.
        mutated_inputs: copied back after the forward, before outputs are built.
        differentiable_inputs: input indices that need a gradient, in the order of the backward's outputs.
        differentiable_outputs: forward output indices whose tangents the backward takes, in order.
        saved: forward output indices saved for the backward, tensors first then sizes, in the order of its inputs.
        saved_inputs: input indices that the backward takes as they are, after `saved`.
        connections: between outputs, those that depend on no later connection last.
        history: what autograd would have kept.
    """

    outputs: tuple[OutputBinding, ...]
    mutated_inputs: tuple[MutatedInput, ...] = ()
    differentiable_inputs: tuple[int, ...] = ()
    differentiable_outputs: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    saved_inputs: tuple[int, ...] = ()
    connections: tuple[Connection, ...] = ()
    history: History = History()


@dataclasses.dataclass(frozen=True)
class PartitionedGraph:
    """Functional ATen graphs ready for lowering.

    Attributes:
        forward: takes the captured graph's inputs in order; returns a flat tuple.
        backward: takes saved tensors, saved inputs, then tangents; returns one gradient (or `None`) per differentiable
            input. `None` when nothing needs a gradient.
        to_inputs: as `backward`, but the tangents of connected outputs are all that comes in for them. `None` without
            connections.
        to_sources: beside it, for each source, in order, what others that are computed from it add, behind a `None` for each
            differentiable input.
        binding: how the runtime uses both.
        inputs: the captured graph's inputs.
        joint_text: the joint graph as text, for dumps.
        saved_tensors, recomputed: the min cut's choices, for the report.
        name: as in `CapturedGraph`.
        patterns: attention written by hand, found or refused.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None
    binding: Binding
    inputs: tuple[GraphInput, ...]
    joint_text: str = ""
    saved_tensors: tuple[ForwardValue, ...] = ()
    recomputed: tuple[ForwardValue, ...] = ()
    name: str = "graph"
    patterns: tuple[PatternRecord, ...] = ()
    to_inputs: torch.fx.GraphModule | None = None
    to_sources: torch.fx.GraphModule | None = None
