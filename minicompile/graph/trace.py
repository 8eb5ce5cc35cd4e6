"""Runs the captured graph on fake tensors, through autograd, into one joint graph of functional ATen.

Forward and, where anything needs a gradient, backward are traced in one go. What autograd, autocast and functionalization
do is PyTorch's own doing: the captured operators run as the user wrote them. This module must not simplify or split.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from minicompile.config import Config
from minicompile.errors import CompileFailed, Location
from minicompile.graph import torch_interface
from minicompile.graph.aliases import OutputAnalysis, TracedInput, has_history
from minicompile.graph.attention import SDPA, attention_or_none, biased_causal_attention, written_attention
from minicompile.graph.decompositions import decomposition_table
from minicompile.graph.eager_strides import CHANGES_STRIDES, laid_out_like, layouts, restore, same
from minicompile.graph.foreach import one_after_the_other
from minicompile.graph.histories import history_of, saved_in_histories
from minicompile.graph.opaque_backward import is_custom, opaque_call
from minicompile.graph.operators import is_item, is_view, name_of, operand
from minicompile.graph.patterns import changes_something
from minicompile.graph.random_numbers import Seeds, eager_decompositions, random_decompositions
from minicompile.graph.recorder import SYMBOLIC_TYPES, Recorder, tensors_of
from minicompile.graph.writing_operators import call_on_copies, written_arguments
from minicompile.ir import autocast
from minicompile.ir.graph import CapturedGraph, Connection, History, MutatedInput, OutputBinding, ancestors, parts_of
from minicompile.ir.operator_names import BECOMES_A_VIEW
from minicompile.ir.replacements import called

# Their kernels change the running statistics without saying so in their schemas; PyTorch's rules for its Python
# dispatcher (too slow for every operator) put honest ones in their place.
BATCH_NORMS = (torch.nn.functional.batch_norm, torch.batch_norm, torch.native_batch_norm,
               torch.nn.functional.instance_norm, torch.instance_norm)  # fmt: skip


LINEAR = {
    **dict.fromkeys("add sub".split(), ([0, 1],)),
    **dict.fromkeys("mul matmul mm bmm".split(), ([0], [1])),
    **dict.fromkeys("""
        truediv div neg clone sum mean view reshape expand transpose permute t unsqueeze squeeze getitem""".split(), ([0],)),
}
"""Operations that give a sum for sums at one of these choices of arguments, all others as they are."""


class Untraceable(Exception):
    """The captured graph does what no functional graph can say; the reason is for the user."""


@dataclasses.dataclass(frozen=True)
class JointGraph:
    """Forward and backward in one graph.

    Attributes:
        module: placeholders are the inputs, then the tangents; returns forward outputs, then gradients, in one tuple.
        forward_outputs: how many of the outputs belong to the forward.
        outputs, mutated_inputs, differentiable_inputs, differentiable_outputs: as in `Binding`.
        history: as in `Binding`.
        connections: as in `Binding`, with tangents by number. After the gradients, the module returns for each source, in
            order of their numbers, what is passed on to it, and then for each its tangent with that added.
    """

    module: GraphModule
    forward_outputs: int
    outputs: tuple[OutputBinding, ...]
    mutated_inputs: tuple[MutatedInput, ...]
    differentiable_inputs: tuple[int, ...]
    differentiable_outputs: tuple[int, ...]
    history: History
    connections: tuple[Connection, ...] = ()

    @property
    def sources(self) -> list[int]:
        """The tangents whose totals are the last outputs, in their order. No graph returns totals: they mark where to cut."""
        return sorted({number for connection in self.connections for number in connection.sources})


def trace_joint(captured: CapturedGraph, config: Config) -> JointGraph:
    """The joint graph of a captured graph; raises `CompileFailed` for what must run eagerly."""
    graph = captured.module.graph
    separable, custom = results_with_users(graph), frozenset(node for node in graph.nodes if is_custom(node.target))
    unwritten = frozenset(node for node in separable if not was_written(node))
    none = frozenset[Node]()
    attempts = [*((nodes, False) for nodes in dict.fromkeys((separable, unwritten, none))), *([(none, True)] if custom else [])]
    failure: Exception = Untraceable("results are cut in place")
    location = None
    # A cut may be the reason of a failure; the next attempt tells.
    while attempts:
        separable, opaque = attempts.pop(0)
        tracer = _Tracer(captured, config, separable, custom if opaque else frozenset())
        try:
            joint = tracer.run()
        except RunsTwice as error:
            raise CompileFailed("graph", error, captured.location) from error
        except Exception as error:  # operators raise errors of all kinds; the last attempt's is told
            failure, location = (failure if opaque else error), tracer.location
            continue
        if not (lost := tracer.lost_cuts()):
            return joint
        attempts.insert(0, (separable - lost, opaque))
    raise CompileFailed("graph", failure, location or captured.location) from failure


def results_with_users(graph: torch.fx.Graph) -> frozenset[Node]:
    """What the caller sees, returned or as an input that was written, and the graph also computes with: a gradient of one
    result may go through it.
    """
    closing, written = graph.output_node(), last_writes(graph)
    last_users = {memory_of(used): user for user in graph.nodes if user is not closing for used in user.all_input_nodes}
    read = {memory for memory, user in last_users.items() if user is not written.get(memory)}  # not only until it is complete
    inputs = {node for node in graph.find_nodes(op="placeholder") if memory_of(node) in written and memory_of(node) in read}
    results = {node for node in closing.all_input_nodes if node.op not in ("placeholder", "get_attr")}
    used = {node for node in results if memory_of(node) in read
            and any(user is not closing and node not in results_of(user) for user in node.users)}
    together = {result for call in graph.nodes if used.intersection(family := results_of(call)) for result in family}
    return frozenset(inputs | used | results & together)


def results_of(call: Node) -> list[Node]:
    """What a call of a custom function or operator gives a history of its own, whose backward runs once for all of it."""
    if hasattr(call.target, "dirty"):
        return written_by(call)
    has_several = is_custom(call.target) and not isinstance(call.meta.get("example_value"), Tensor)
    return [user for user in call.users if is_item(user)] if has_several else []


def last_writes(graph: torch.fx.Graph) -> dict[Any, Node]:
    """By memory, the last node that writes to it in place, or gives what is there the history of a custom function."""
    return {memory_of(written): node for node in graph.nodes for written in written_by(node)}


def shows_part(node: Node) -> bool:
    """Whether a captured tensor is a view: what it is a view of is cut off first."""
    value = node.meta.get("example_value")
    return isinstance(value, Tensor) and value._is_view()


def written_by(node: Node) -> list[Any]:
    """The arguments that a node of a captured graph changes."""
    target: Any = node.target
    if hasattr(target, "dirty"):
        return [node.args[1 + place] for place in target.dirty]
    if not node.args or not (changes_something(node) or is_told_to_write(node)):
        return []
    return [*parts_of(node.kwargs.get("out", node.args[0]))]


def is_told_to_write(node: Node) -> bool:
    """Whether a function was called with `inplace=True`: it gives what it was given."""
    flagged = node.op == "call_function" and any(value is True for value in (*node.args, *node.kwargs.values()))
    return flagged and memory_of(node) == memory_of(node.args[0])


def memory_of(node: Any) -> Any:
    """Equal for captured tensors that share memory."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return torch_interface.storage_key(value) if isinstance(value, Tensor) else node


def was_written(node: Node) -> bool:
    """Whether a result was written in place, as far as its version tells."""
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and not value.is_inference() and value._version > 0


@dataclasses.dataclass
class TracedBackward:
    """Gradients by leaf, which forward outputs have tangents, the connections, what follows the gradients, the history."""

    gradients: list[Tensor | None] = dataclasses.field(default_factory=list)
    differentiable: list[int] = dataclasses.field(default_factory=list)
    connections: list[Connection] = dataclasses.field(default_factory=list)
    passed_on: list[Tensor] = dataclasses.field(default_factory=list)
    history: History = History()


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where a result was cut off from what is computed with it.

    Attributes:
        node, place: what is cut off, and the node behind which.
        value: its value.
        behind: what stands for it behind the cut, where gradients arrive on their way to `value`.
        inner: the plain value at the cut.
    """

    node: Node
    place: Node
    value: Tensor
    behind: Tensor
    inner: Tensor


class RunsTwice(Untraceable):
    """The backward of a custom function, which must run once, would run for each of its results."""


class _Arriving(torch.autograd.Function):
    """What stands for a result behind a cut: all gradients come through here, together, on their way to the result."""

    @staticmethod
    def forward(ctx: Any, tracer: weakref.ref[_Tracer], result: int, value: Tensor) -> Tensor:
        """`value`, whose identity in the trace is `result`."""
        ctx.tracer, ctx.result = tracer, result
        ctx.set_materialize_grads(False)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """The gradient goes on to the result, with what comes in for that."""
        return None, None, ctx.tracer().arrive(ctx.result, grad)


class _NonLeaf(torch.autograd.Function):
    """Makes a tensor the non-leaf continuation of a leaf, so that in-place operations on it are allowed."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """`value`, as computed from `leaf`."""
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """The gradient goes to the leaf."""
        return grad, None


class _Tracer:
    """One trace.

    Attributes:
        separable: results to be cut off from what is computed with them, where they need a gradient.
        opaque: calls of operators whose backward is not traced.
        cuts: those that were, in order.
        arriving, arrived: by the identity of a result that others are computed from, the gradient that comes in for it; what
            comes from those others, and the sum.
        would_run_twice: whether it is the backward of a custom function that gradients of several groups of results come to.
        group_of: by the node of a gradient that comes in for a result, or of such a sum, the group of the result.
    """

    def __init__(
        self, captured: CapturedGraph, config: Config, separable: frozenset[Node], opaque: frozenset[Node]
    ) -> None:
        self.captured, self.config, self.separable, self.opaque = captured, config, separable, opaque
        self.cuts: list[Cut] = []
        self.arriving: dict[int, Tensor] = {}
        self.arrived: dict[int, tuple[Tensor, Tensor]] = {}
        self.group_of: dict[Node, int] = {}
        self.would_run_twice = False
        self.analysis: OutputAnalysis | None = None
        self.location: Location | None = None
        self.fake_mode = torch_interface.fake_mode_of(entry.example for entry in captured.inputs)
        table = decomposition_table()
        self.recorder = Recorder(self.fake_mode, table)
        self.seeds = None if config.fallback_random else Seeds(self.recorder)
        table.update(eager_decompositions() if self.seeds is None else random_decompositions(self.seeds))
        self.origins: dict[int, dict[str, Any]] = {}
        self.recorder.origin_of_backward = self._origin_of_backward
        self.inputs: list[TracedInput] = []
        self.views_by_hand: set[int] = set()
        self.tangents: list[Node] = []
        self.constants = self._constants()

    def run(self) -> JointGraph:
        """Trace everything."""
        with torch.inference_mode(False):
            fakes = [self._add_input(entry) for entry in self.captured.inputs]
        with self._tracing():
            values = [self._wrap_input(index, fake) for index, fake in enumerate(fakes)]
            with torch.set_grad_enabled(self.captured.grad_enabled), restored_autocast():
                results = self._interpret(values)
            self._refuse_metadata_mutations()
            before_cut = {id(cut.behind): cut.value for cut in self.cuts}
            self.analysis = analysis = OutputAnalysis(self.recorder, self.inputs, results, self.views_by_hand, before_cut)
            backward = self._backward(analysis)
            traced = [*backward.gradients, *backward.passed_on]
            nodes = [None if g is None else self.recorder.node_of(torch_interface.from_functional(g)) for g in traced]
        return self._finish(analysis, backward, nodes)

    def lost_cuts(self) -> frozenset[Node]:
        """What was cut off although it is no result of its own, or was written in place afterwards."""
        assert self.analysis is not None
        returned = {id(value) for value in self.analysis.forward_values}
        return frozenset(cut.node for cut in self.cuts
                         if id(cut.value) not in returned or torch_interface.from_functional(cut.value) is not cut.inner)

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # backward where the modes are
            stack.enter_context(preserved_modes())
            stack.enter_context(torch_interface.functionalization())
            stack.enter_context(self.fake_mode)
            stack.enter_context(self.recorder)
            if any(torch_interface.has_symbols(entry.example) for entry in self.captured.inputs):
                stack.enter_context(torch_interface.python_dispatcher())
            yield

    def _add_input(self, entry: Any) -> Any:
        example = entry.example
        if isinstance(example, torch.Tensor):
            if example.layout != torch.strided or example.is_conj() or example.is_neg():
                raise Untraceable(f"the input {entry.source} is not a plain strided tensor")
            example = torch_interface.fake_copy(self.fake_mode, example)
        node = self.recorder.placeholder(entry.name, example)
        node.meta["source"], node.meta["kind"] = entry.source, entry.kind
        return example

    def _wrap_input(self, index: int, fake: Any) -> Any:
        example = self.captured.inputs[index].example
        if not isinstance(fake, torch.Tensor):
            self.inputs.append(TracedInput(fake, None, None, False))
            return fake
        value = leaf = torch_interface.to_functional(fake)
        differentiable = example.requires_grad
        if differentiable and example.is_leaf:
            value.requires_grad_()
        elif differentiable:
            dummy = self.recorder.fake_empty(tuple(fake.shape), fake.dtype, fake.device)
            leaf = torch_interface.to_functional(dummy).requires_grad_()
            with torch.enable_grad():
                value = _NonLeaf.apply(leaf, value)
        self.inputs.append(TracedInput(fake, value, leaf if differentiable else None, differentiable, value._version))
        return value

    def _interpret(self, values: list[Any]) -> list[Any]:
        """Run the captured graph; returns the flat outputs."""
        environment: dict[Node, Any] = {}
        uncut: dict[int, Any] = {}
        writes = last_writes(self.captured.module.graph)
        nodes = [node for node in self.captured.module.graph.nodes if node in self.separable]
        places = {node: max(node, *results_of(node.args[0] if is_item(node) else node), writes.get(memory_of(node), node))
                  for node in sorted(nodes, key=shows_part)}
        remaining = iter(values)
        last_use = last_uses(self.captured.module)
        for node in self.captured.module.graph.nodes:
            if node.op == "placeholder":
                environment[node] = next(remaining)
            elif node.op == "output":
                flat = torch.fx.node.map_arg(node.args[0], lambda used: uncut.get(id(environment[used]), environment[used]))
                return list(flat) if isinstance(flat, (tuple, list)) else [flat]
            else:
                self._start(node)
                given = [environment[used] for used in node.all_input_nodes]
                before = layouts(given)
                windows = self._windows([environment[used] for used in written_by(node) if isinstance(used, Node)])
                environment[node] = self._execute(node, environment)
                if operator_name(node) in CHANGES_STRIDES:
                    environment = {n: environment[node] if value is given[0] else value for n, value in environment.items()}
                if any(torch_interface.from_functional(value) is not inner for value, inner in windows):
                    raise Untraceable("a view is written whose elements share memory, or that leaves some out")
                if operator_name(node) not in CHANGES_STRIDES:
                    restore(before)
                elif environment[node].requires_grad and not torch.is_grad_enabled():
                    raise Untraceable("a tensor with a history gets another shape in place, unknown to autograd")
                for dead in last_use.get(node, ()):
                    if dead not in places:  # whose views are cut off with it
                        del environment[dead]
                for whole in (n for n, place in places.items() if place is node):
                    if self._can_be_cut(value := environment[whole]):
                        with torch.enable_grad():
                            behind = _Arriving.apply(weakref.ref(self), id(value), value)
                        self.cuts.append(Cut(whole, node, value, behind, torch_interface.from_functional(value)))
                        views = {id(v): v for v in environment.values() if isinstance(v, Tensor) and v._base is value}
                        stands_for = {id(value): behind, **{i: torch_interface.view_of(behind, v) for i, v in views.items()}}
                        uncut |= {id(new): views.get(old, value) for old, new in stands_for.items()}
                        environment = {n: stands_for.get(id(v), v) for n, v in environment.items()}
        raise Untraceable("the captured graph has no output")

    def _can_be_cut(self, value: Any) -> bool:
        """Whether a result may be cut off from what is computed with it; a view of one that was cut off may not."""
        possible = isinstance(value, Tensor) and value.requires_grad and has_history(value)
        possible = possible and (value.is_floating_point() or value.is_complex())  # eager gives truth values a history, too
        return possible and all(cut.behind is not value and cut.behind is not value._base for cut in self.cuts)

    def _windows(self, values: list[Any]) -> list[tuple[Tensor, Tensor]]:
        """Views through which functionalization cannot write, and their plain values as they are now."""
        tensors = [value for value in values if isinstance(value, Tensor)]
        found = [value for value in tensors if is_window(self.recorder.node_of(torch_interface.plain_value(value)))]
        return [(value, torch_interface.from_functional(value)) for value in found]

    def _start(self, node: Node) -> None:
        self.location = node.meta.get("location")
        origin = {name: node.meta[name] for name in ("location", "variable", "checkpoint") if node.meta.get(name) is not None}
        origin["operator"] = operator_name(node)
        self.recorder.origin, self.recorder.policy = origin, node.meta.get("policy")

    def _execute(self, node: Node, environment: dict[Node, Any]) -> Any:
        if node.op == "get_attr":
            return self._attribute(node)
        args: Any = torch.fx.node.map_arg(node.args, environment.__getitem__)
        kwargs: Any = torch.fx.node.map_arg(node.kwargs, environment.__getitem__)
        if node.target in ("cumsum_", "cumprod_") and environment[operand(node)].dtype == torch.bool:
            raise Untraceable("eager has no running sums of truth values in place")
        first = torch_interface.next_sequence_number()
        if node.target in (*SDPA, biased_causal_attention):
            result = self._attention(node, args, kwargs)
        elif node.target is written_attention:
            result = written_attention(self.seeds, *args)
        elif node in self.opaque:
            result = opaque_call(node.target, args, kwargs)
        elif written_arguments(node.target):
            result = call_on_copies(node.target, args, kwargs)
        elif (name := getattr(node.target, "__name__", "")).startswith("_foreach_") and name.endswith("_"):
            result = one_after_the_other(node.target, *args, **kwargs)
        elif operator_name(node) in BECOMES_A_VIEW and args[0]._base is not None:
            # Another view: autograd makes views anew by the operators that it saw, and does not see this one in place.
            result = getattr(args[0], operator_name(node).removesuffix("_"))(*args[1:], **kwargs)
        elif node.target in BATCH_NORMS:
            with torch_interface.python_dispatcher():
                result = node.target(*args, **kwargs)
        else:
            result = called(node.target, args, kwargs)
            if args and isinstance(result, torch.Tensor) and not torch_interface.is_functional(result):
                make = functools.partial(torch.full, ()) if isinstance(args[0], SYMBOLIC_TYPES) else torch.tensor
                result = called(node.target, (make(args[0]), *args[1:]), kwargs)
            if getattr(node.target, "views", False):
                self.views_by_hand.update(torch_interface.storage_key(value) for value in result)
        for number in range(first, torch_interface.next_sequence_number()):
            self.origins[number] = self.recorder.origin
        if hasattr(node.target, "backward") or is_custom(node.target):
            functions = {value.grad_fn for value in tensors_of(result) if value.grad_fn is not None}
            if len(functions) == 1:  # several are those of what a composite operator calls, each with gradients of its own
                functions.pop().register_prehook(functools.partial(self._enter, node.target, self.recorder.origin))
        return result

    def _enter(self, target: Any, origin: dict[str, Any], gradients: Any) -> None:
        """The backward of a custom function begins; it runs whole, whatever of it depends on gradients, or not at all."""
        given = [self.recorder.node_of(torch_interface.from_functional(g)) for g in gradients if g is not None]
        self.would_run_twice |= len(self._groups_before(given)) > 1 and not is_linear(target)
        tied = ((node.name,) if node in self.tangents else node.meta.get("together", ()) for node in ancestors(given))
        origin["together"] = sorted({name for names in tied for name in names})

    def _attention(self, node: Node, args: Any, kwargs: Any) -> Any:
        result = attention_or_none(self.seeds, *args, **kwargs, biased=node.target is biased_causal_attention)
        return called(node.target, args, kwargs) if result is None else laid_out_like(result, node.meta["example_value"])

    def _constants(self) -> dict[str, Any]:
        """What the captured graph reads by `get_attr`, with its fake twin where it is a tensor."""
        found: dict[str, Any] = {}
        for node in self.captured.module.graph.nodes:
            if node.op == "get_attr" and node.target not in found:
                value, fake = operator.attrgetter(node.target)(self.captured.module), None
                if isinstance(value, torch.Tensor):
                    value = value.detach()
                    fake = value if isinstance(value, torch_interface.FakeTensor) else self.fake_mode.from_tensor(value)
                found[node.target] = value, fake
        return found

    def _attribute(self, node: Node) -> Any:
        value, fake = self.constants[str(node.target)]
        if fake is None:
            return value
        self.recorder.register(fake, self.recorder.constant(value, fake))
        return torch_interface.to_functional(fake)

    def _origin_of_backward(self) -> dict[str, Any]:
        number = torch_interface.running_sequence_number()
        return {} if number is None else self.origins.get(number, {})

    def _refuse_metadata_mutations(self) -> None:
        for entry, traced in zip(self.captured.inputs, self.inputs, strict=True):
            value, fake = traced.value, traced.fake
            if value is None:
                continue
            steps = value.stride(), fake.stride()
            same_steps = steps[0] == steps[1] or value.dim() == fake.dim() and same(value.shape, *steps)
            same_shape = value.shape == fake.shape and same_steps and value.dtype == fake.dtype
            if not same_shape or value.storage_offset() != fake.storage_offset():
                raise Untraceable(f"the shape or strides of the input {entry.source} are changed in place")
            if torch_interface.storage_was_changed(value):
                raise Untraceable(f"the storage of the input {entry.source} is replaced or resized")
            if value.requires_grad and value.is_leaf and not traced.differentiable:
                raise Untraceable(f"requires_grad of the input {entry.source} is changed")

    def _groups_before(self, given: list[Node]) -> set[int]:
        """Of which results, by groups, gradients come to nodes of the backward without passing through another result."""
        found, seen, stack = set[int](), set[Node](), list(given)
        while stack:
            node = stack.pop()
            if node in self.group_of:
                found.add(self.group_of[node])
            elif node not in seen:
                seen.add(node)
                stack += node.all_input_nodes
        return found

    def arrive(self, result: int, gradient: Tensor | None) -> Tensor | None:
        """All of the gradient of a result that was cut off, of which what comes from others is given."""
        tangent = self.arriving.get(result)
        if tangent is None or gradient is None:
            return gradient if tangent is None else tangent
        total = tangent + gradient
        self.arrived[result] = gradient, total
        node = self.recorder.node_of(torch_interface.from_functional(total))
        self.group_of[node] = self.group_of[self.recorder.node_of(torch_interface.from_functional(tangent))]
        return total

    def _backward(self, analysis: OutputAnalysis) -> TracedBackward:
        """Trace gradients, in one pass: what comes in for a result that others are computed from is added on the way."""
        differentiable = [i for i, value in enumerate(analysis.forward_values) if value is not None and value.requires_grad]
        leaves: Any = [traced.leaf for traced in self.inputs if traced.leaf is not None]
        if not differentiable or not leaves:
            return TracedBackward()
        self.recorder.stage, self.location = "backward", None
        outs: list[Any] = [analysis.forward_values[i] for i in differentiable]
        tangents = [self._tangent(number, out) for number, out in enumerate(outs)]
        number_of = {id(out): number for number, out in enumerate(outs)}
        cuts = {number_of[id(cut.value)]: cut for cut in self.cuts if id(cut.value) in number_of}
        groups = [[*together] for _, together in itertools.groupby(cuts, lambda number: cuts[number].place)]
        groups.append([number for number in range(len(outs)) if number not in cuts])
        self.group_of = {self.tangents[number]: place for place, group in enumerate(groups) for number in group}
        gates = {cut.behind.grad_fn: number for number, cut in cuts.items()}
        reached = [set().union(*(history_of(outs[number], gates) for number in group)) for group in groups]
        direct = [sorted(number for gate, number in gates.items() if gate in nodes) for nodes in reached]
        behind = set(itertools.chain(*direct))
        self.arriving = {id(outs[number]): tangents[number] for number in behind}
        ends = [number for number in range(len(outs)) if number not in behind]
        history = self._history(analysis, outs)
        with torch_interface.no_autocast():
            found = torch.autograd.grad([outs[n] for n in ends], leaves, [tangents[n] for n in ends], allow_unused=True)
        if self.would_run_twice:
            raise RunsTwice("results are computed from each other and from that of a custom function, which is not returned")
        result = TracedBackward([*found], differentiable, history=history)
        arrived = {number: self.arrived[id(outs[number])] for number in sorted(behind) if id(outs[number]) in self.arrived}
        connections = [(group, [n for n in sources if n in arrived]) for group, sources in zip(groups, direct, strict=True)]
        result.connections = [Connection(tuple(group), tuple(sources)) for group, sources in connections if sources]
        result.passed_on = [*(gradient for gradient, _ in arrived.values()), *(total for _, total in arrived.values())]
        return result

    def _history(self, analysis: OutputAnalysis, outs: list[Tensor]) -> History:
        """What eager's autograd would have kept for the outputs with tangents."""
        shared, storages = saved_in_histories(outs)

        def kept(values: list[Tensor | None]) -> tuple[tuple[int, int], ...]:
            keys = [None if value is None else torch_interface.storage_key(value) for value in values]
            return tuple((place, storages.pop(key)) for place, key in enumerate(keys) if key in storages)

        inputs = kept([traced.value for traced in self.inputs])
        return History(tuple(shared), inputs, kept(analysis.forward_values))

    def _tangent(self, number: int, out: Tensor) -> Tensor:
        """The placeholder of the gradient that comes in for an output."""
        fake = torch_interface.fake_tangent(self.fake_mode, torch_interface.plain_value(out))
        self.tangents.append(self.recorder.placeholder(f"tangent_{number}", fake))
        return torch_interface.to_functional(fake)

    def _finish(self, analysis: OutputAnalysis, backward: TracedBackward, nodes: list[Node | None]) -> JointGraph:
        graph = self.recorder.graph
        if self.seeds is not None:
            self.seeds.close()
        move_placeholders_first(graph)
        graph.output((*analysis.forward_nodes, *nodes))
        graph.lint() if self.config.verify else None
        return JointGraph(
            module=torch_interface.GraphModule(constants_module(self.recorder.constants), graph),
            forward_outputs=len(analysis.forward_nodes),
            outputs=tuple(analysis.bindings),
            mutated_inputs=tuple(analysis.mutated_inputs),
            differentiable_inputs=tuple(
                i for i, traced in enumerate(self.inputs) if backward.gradients and traced.leaf is not None
            ),
            differentiable_outputs=tuple(backward.differentiable),
            history=backward.history,
            connections=tuple(backward.connections),
        )


def constants_module(constants: dict[str, torch.Tensor]) -> torch.nn.Module:
    """A module that holds a graph's constants."""
    root = torch.nn.Module()
    for name, value in constants.items():
        root.register_buffer(name, value)
    return root


def move_placeholders_first(graph: torch.fx.Graph) -> None:
    """Tangents were added late; FX wants all placeholders ahead of the other nodes, in order."""
    placeholders = graph.find_nodes(op="placeholder")
    first = next((node for node in graph.nodes if node.op != "placeholder"), None)
    for node in placeholders if first is not None else ():
        first.prepend(node)  # type: ignore[union-attr]  # there is one


def is_window(node: Node) -> bool:
    """Whether a value is a view whose elements do not stand for those of its base one by one, or those of an input for memory."""
    while is_view(node) or is_item(node) and is_view(operand(node)):
        if name_of(node) in ("expand", "unfold") or name_of(node) == "as_strided" and torch_interface.overlaps(node.meta["val"]):
            return True
        node = operand(node)
    return node.op == "placeholder" and torch_interface.overlaps(node.meta["val"])


def last_uses(module: GraphModule) -> dict[Node, list[Node]]:
    """Which nodes are used by a node for the last time, or by none."""
    found: dict[Node, list[Node]] = {node: [node] for node in module.graph.nodes if not node.users and node.op != "output"}
    seen: set[Node] = set()
    for node in reversed(module.graph.nodes):
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                found.setdefault(node, []).append(used)
    return found


def operator_name(node: Node) -> str:
    """The user's operation by its short name."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def is_linear(target: Any) -> bool:
    """Whether a custom function's backward gives, for a sum of gradients, the sum of what it gives for each."""
    if is_custom(target):  # an operator, whose backward is no graph
        return False
    graph = target.backward.graph
    tied = set(itertools.islice(graph.nodes, len(target.outputs)))
    for node in graph.nodes:
        if node.op != "output" and not tied.isdisjoint(node.all_input_nodes):
            places = [place for place, value in enumerate(node.args) if isinstance(value, Node) and value in tied]
            if places not in LINEAR.get(operator_name(node), ()) or not {"dim", "keepdim"}.issuperset(node.kwargs):
                return False
            tied.add(node)
    return tied.issuperset(graph.output_node().all_input_nodes)


@contextmanager
def restored_autocast() -> Iterator[None]:
    """Whatever autocast does inside, its state is as before outside and no traced cast stays in its cache."""
    torch.clear_autocast_cache()
    try:
        with autocast.as_before(autocast.settings(), autocast.open_blocks()):
            yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def preserved_modes() -> Iterator[None]:
    """Default dtype and grad mode are as before afterwards; nothing outside records gradients of fake tensors."""
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
