"""Splits the joint graph into a forward and a backward, and writes the binding of both.

What is kept in between is chosen in `recompute.py`. Inputs that the user's code wrote and that need no gradient are
written by the forward itself, last, with `aten.copy_`, or after it where a kernel on a GPU may yet refuse a value. This
module must not change what is computed.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

import minicompile.gpu as gpu
from minicompile.config import Config
from minicompile.graph import torch_interface
from minicompile.graph.host_counts import add_together
from minicompile.graph.operators import is_impure, is_size, is_view, may_refuse_values, num_bytes, storage_root
from minicompile.graph.recompute import Cut, JointView, choose
from minicompile.graph.sizes import numbers_of
from minicompile.graph.trace import JointGraph
from minicompile.ir.graph import (
    Binding,
    CapturedGraph,
    Connection,
    ForwardValue,
    FreshOutput,
    MutatedInput,
    OutputBinding,
    PartitionedGraph,
    SizeOutput,
    ViewOutput,
    ancestors,
)

aten = torch.ops.aten
KEPT_ORIGIN = ("val", "location", "variable", "operator", "stage", "source", "kind", "together")


def partition(joint: JointGraph, captured: CapturedGraph, config: Config) -> PartitionedGraph:
    """The forward and backward graphs of a joint graph."""
    graph = joint.module.graph
    placeholders = graph.find_nodes(op="placeholder")
    inputs, tangents = placeholders[: len(captured.inputs)], placeholders[len(captured.inputs) :]
    closing: Any = graph.output_node()
    outputs = list(closing.args[0])
    forward_outputs, rest = outputs[: joint.forward_outputs], outputs[joint.forward_outputs :]
    gradients, passed_on = rest[: len(joint.differentiable_inputs)], rest[len(joint.differentiable_inputs) :]
    mutated = frozenset(inputs[entry.input_index] for entry in joint.mutated_inputs)
    cut, view = None, None
    if gradients:
        view = JointView(graph, tangents, [node for node in rest if node is not None], mutated)
        cut = choose(view, config.activation_memory_budget)
    forward = _Forward(joint, inputs, forward_outputs, cut)
    backward = _backward(joint, tangents, gradients, forward, view) if view is not None else None
    varies = any(torch_interface.has_symbols(entry.meta["val"]) for entry in inputs)
    unreadable = unreadable_sizes(backward) if backward is not None and varies else set()
    if unreadable and cut is not None and view is not None:
        cut = dataclasses.replace(cut, kept=(*cut.kept, *size_nodes(graph, inputs, unreadable)))
        forward = _Forward(joint, inputs, forward_outputs, cut)
        backward = _backward(joint, tangents, gradients, forward, view)
    to_inputs, to_sources = None, None
    if view is not None and joint.connections:
        count = len(joint.sources)
        totals = dict(zip(passed_on[-count:], (tangents[n] for n in joint.sources), strict=True))
        to_inputs = _backward(joint, tangents, gradients, forward, view, totals)
        to_sources = _backward(joint, tangents, [*[None] * len(gradients), *passed_on[:-count]], forward, view, totals)
    return PartitionedGraph(
        forward=forward.module,
        backward=backward,
        binding=Binding(
            outputs=forward.bindings,
            mutated_inputs=forward.mutated_inputs,
            differentiable_inputs=joint.differentiable_inputs,
            differentiable_outputs=tuple(forward.renumbered[i] for i in joint.differentiable_outputs),
            saved=tuple(forward.saved.values()),
            saved_inputs=tuple(forward.saved_inputs.values()),
            connections=tuple(forward.connection(c, joint.differentiable_outputs) for c in joint.connections),
            history=dataclasses.replace(joint.history, outputs=(
                *((forward.renumbered[i], needing) for i, needing in joint.history.outputs),
                *((i, (1 << len(tangents)) - 1) for i in forward.read_in_parts(forward_outputs)))),
        ),
        inputs=captured.inputs,
        joint_text=joint.module.print_readable(print_output=False) if config.dump_directory else "",
        saved_tensors=tuple(forward.saved_records(cut)) if cut else (),
        recomputed=tuple(recomputed_records(backward)) if backward is not None else (),
        name=captured.name,
        to_inputs=to_inputs,
        to_sources=to_sources,
    )


class _Copier:
    """Copies nodes of one graph into another on demand."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.copies: dict[Node, Node] = {}

    def placeholder(self, node: Node) -> None:
        """A placeholder that stands for `node`."""
        self._add(node, self.graph.placeholder(node.name))

    def copy(self, node: Node) -> Node:
        """The copy of `node`, with everything that it needs ahead of it."""
        stack = [node]
        while stack:
            current = stack[-1]
            if current in self.copies:
                stack.pop()
                continue
            missing = [argument for argument in current.all_input_nodes if argument not in self.copies]
            if missing:
                stack.extend(reversed(missing))
                continue
            self._add(current, self.graph.node_copy(current, self.copies.__getitem__))
            stack.pop()
        return self.copies[node]

    def _add(self, node: Node, made: Node) -> None:
        made.meta = {key: node.meta[key] for key in KEPT_ORIGIN if key in node.meta}
        self.copies[node] = made


class _Forward:
    """The forward graph, and where its results went."""

    def __init__(
        self, joint: JointGraph, inputs: list[Node], outputs: list[Any], cut: Cut | None
    ) -> None:
        self.copier = _Copier()
        for node in inputs:
            self.copier.placeholder(node)
        in_graph = {m.output_index: m for m in joint.mutated_inputs if not m.requires_grad}
        if in_graph and has_to_write_last(joint, inputs):
            in_graph = {}
        wanted = [node for node in outputs if isinstance(node, Node)] + list(cut.kept if cut else ())
        needed = ancestors(wanted)
        for node in joint.module.graph.nodes:
            if node in needed and node not in self.copier.copies:
                self.copier.copy(node)
            elif is_effect(node) and (cut is None or node in cut.forward):
                self.copier.copy(node)
        self.renumbered: dict[int, int] = {}
        self.results: list[Any] = []
        self._index_of: dict[Node, int] = {}
        for index, node in enumerate(outputs):
            if index not in in_graph:
                self.renumbered[index] = self._add(node)
        self.saved: dict[Node, int] = {}
        self.saved_inputs: dict[Node, int] = {}
        read_later = {index for index, _ in joint.history.inputs}
        quiet = {outputs[at]: m.input_index for at, m in in_graph.items() if not m.counted and m.input_index in read_later}
        self._save(cut, inputs, quiet)
        for index, entry in in_graph.items():
            self._write(inputs[entry.input_index], outputs[index])
        self.copier.graph.output(tuple(self.results))
        add_together(self.copier.graph)
        self.module = torch_interface.GraphModule(joint.module, self.copier.graph)
        self.bindings = tuple(self._renumber(binding) for binding in joint.outputs)
        self.mutated_inputs = tuple(self._renumber_mutation(entry, in_graph) for entry in joint.mutated_inputs)

    def _add(self, node: Any) -> int:
        copy = self.copier.copies[node] if isinstance(node, Node) else node
        self.results.append(copy)
        if isinstance(node, Node):
            self._index_of.setdefault(node, len(self.results) - 1)
        return len(self.results) - 1

    def _save(self, cut: Cut | None, inputs: list[Node], quiet: dict[Node, int]) -> None:
        """`quiet`: new values of inputs that eager reads in the backward, where later writes through `.data` show."""
        kept, copied = ((), frozenset()) if cut is None else (cut.kept, cut.copied)
        for node in sorted(kept, key=is_size):
            if node in quiet:
                self.saved_inputs[node] = quiet[node]
            elif node.op == "placeholder" and node not in copied and not is_size(node):
                self.saved_inputs[node] = inputs.index(node)
            elif node in self._index_of and node.op != "placeholder":
                self.saved[node] = self._index_of[node]
            elif node in copied:
                copy = self.copier.graph.call_function(aten.clone.default, (self.copier.copies[node],))
                copy.meta.update(self.copier.copies[node].meta)
                self.results.append(copy)
                self.saved[node] = len(self.results) - 1
            else:
                self.saved[node] = self._add(node)

    def _write(self, into: Node, value: Node) -> None:
        node = self.copier.graph.call_function(
            aten.copy_.default, (self.copier.copies[into], self.copier.copies[value])
        )
        node.meta.update(self.copier.copies[value].meta)
        node.meta["val"] = into.meta["val"]

    def _renumber(self, binding: OutputBinding) -> OutputBinding:
        if isinstance(binding, FreshOutput):
            return dataclasses.replace(binding, index=self.renumbered[binding.index])
        if isinstance(binding, ViewOutput):
            base = self.renumbered[binding.base_index] if binding.base == "hidden" else binding.base_index
            binding = dataclasses.replace(binding, base_index=base)
            return binding.mapped(self._renumber_size) if binding.size_outputs else binding
        return binding

    def _renumber_size(self, value: Any) -> Any:
        return SizeOutput(self.renumbered[value.index]) if isinstance(value, SizeOutput) else value

    def _renumber_mutation(self, entry: MutatedInput, in_graph: dict[int, MutatedInput]) -> MutatedInput:
        if entry.output_index in in_graph:
            return dataclasses.replace(entry, output_index=-1, in_graph=True)
        return dataclasses.replace(entry, output_index=self.renumbered[entry.output_index])

    def connection(self, entry: Connection, outputs: tuple[int, ...]) -> Connection:
        """A connection between tangents, by forward output indices."""
        first, second = (tuple(self.renumbered[outputs[n]] for n in numbers) for numbers in (entry.outputs, entry.sources))
        return Connection(first, second)

    def read_in_parts(self, outputs: list[Any]) -> list[int]:
        """The results whose memory the backward reads by another tensor, which does not count the writes to them."""
        read = {storage_root(node) for node in self.saved}
        return [place for index, place in self.renumbered.items() if isinstance(outputs[index], Node)
                and outputs[index] not in self.saved and storage_root(outputs[index]) in read]

    def saved_records(self, cut: Cut) -> list[ForwardValue]:
        """What is kept, for the report."""
        return [
            ForwardValue(node.name, num_bytes(node), cut.reasons.get(node, ""), node.meta.get("location"))
            for node in self.saved
        ]


def _backward(
    joint: JointGraph, tangents: list[Node], gradients: list[Any], forward: _Forward, view: JointView,
    given: Mapping[Node, Node] = MappingProxyType({}),
) -> GraphModule:  # fmt: skip
    """The graph of gradients; values in `given` are not computed, a tangent stands for each."""
    copier = _Copier()
    for node in (*forward.saved, *forward.saved_inputs):
        copier.placeholder(node)
    for node in tangents:
        copier.placeholder(node)
    copier.copies.update((node, copier.copies[tangent]) for node, tangent in given.items())
    needed = ancestors([node for node in gradients if node is not None])
    for node in view.nodes:
        if node in view.backward and (node in needed or is_effect(node)) and not given:
            copier.copy(node)
    results = tuple(None if node is None else copier.copy(node) for node in gradients)
    copier.graph.output(results)
    return torch_interface.GraphModule(joint.module, copier.graph)


def unreadable_sizes(module: GraphModule) -> set[Any]:
    """Symbols in the sizes and strides of a graph that no input has by themselves as a size or stride."""
    used, readable = set(), set()
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for number in torch_interface.symbolic_numbers(value):
            used |= number.node.expr.free_symbols
            if node.op == "placeholder":
                readable.add(number.node.expr)
    return used - readable


def size_nodes(graph: Graph, inputs: list[Node], symbols: set[Any]) -> list[Node]:
    """Nodes of the joint graph that are the symbols, each read from an input."""
    found: dict[Any, Node] = {}
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        for node in inputs:
            for reader, dim, number in numbers_of(node.meta["val"]):
                symbol = number.node.expr if isinstance(number, torch.SymInt) else None
                if symbol in symbols and symbol not in found:
                    found[symbol] = node if reader is None else graph.call_function(reader, (node, dim))
                    found[symbol].meta.setdefault("val", number)
    return list(found.values())


def recomputed_records(backward: GraphModule) -> Iterator[ForwardValue]:
    """Operations of the forward that the backward repeats, for the report."""
    for node in backward.graph.nodes:
        if node.op == "call_function" and node.meta.get("stage") == "forward" and not is_view(node) and not is_size(node):
            yield ForwardValue(node.name, num_bytes(node), "cheaper than keeping it", node.meta.get("location"))


def has_to_write_last(joint: JointGraph, inputs: list[Node]) -> bool:
    """Whether inputs are written after the graph: where a kernel may raise, and nothing undoes what was written, as on a GPU."""
    on_gpu = any(gpu.holds(inputs[entry.input_index].meta["val"]) for entry in joint.mutated_inputs)
    return on_gpu and any(map(may_refuse_values, joint.module.graph.nodes))


def is_effect(node: Node) -> bool:
    """Whether the node must run even if nobody reads it."""
    return node.op == "call_function" and is_impure(node)
