"""The FX graph under construction: records torch operations as nodes and runs them on fake tensors.

Must not know about bytecode or guards; what cannot be a node raises `Break`.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from minicompile.capture.break_kinds import Break, Control, RunEager
from minicompile.capture.kinds import isinstance
from minicompile.capture.shared_memory import refuse_shared_writes
from minicompile.capture.source import PLAIN_VALUE, Source, identifier, plain_value
from minicompile.capture.symbolic_size import concrete, is_symbolic
from minicompile.capture.torch_interface import (
    DATA_DEPENDENT,
    FakeTensor,
    forget_frames,
    lacks_gradient_rule,
    new_fake_mode,
)
from minicompile.errors import Location
from minicompile.ir.fake_mode import python_dispatcher, storage_key
from minicompile.ir.float_input import Hints
from minicompile.ir.graph import GraphInput, GraphModule
from minicompile.ir.replacements import called

PLAIN = (int, float, bool, complex, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout,
         torch.memory_format)
DTYPES_OF_NUMBERS: dict[type, torch.dtype] = {int: torch.int64, float: torch.float64, bool: torch.bool, complex: torch.complex128}
TENSOR_CLASS = type(torch.FloatTensor)


class Traced:
    """A fake tensor (or symbolic number) of the graph: its node, and its source if it came from outside."""

    __slots__ = ("value", "node", "source", "kind", "real", "version", "differentiable")

    def __init__(self, value: Any, node: torch.fx.Node | None, source: Source | None, kind: str, real: Any) -> None:
        self.value, self.node, self.source, self.kind, self.real = value, node, source, kind, real
        self.version = value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0
        self.differentiable = needs_gradient(value)

    def example(self) -> Any:
        """The value as it came in: a write in place may have given it a history."""
        return self.value if self.differentiable == needs_gradient(self.value) else self.value.detach()


def is_of_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor that requires a gradient is a leaf or a view of one, which nothing may change in place."""
    return tensor.is_leaf or tensor._base is not None and tensor._base.is_leaf


class InferenceRegion:
    """The `torch.inference_mode` that a graph runs under from its first operation to its last.

    Attributes:
        allowed: whether there may be one; used: whether there was; scope: it, while it is open.
    """

    def __init__(self) -> None:
        self.allowed, self.used = True, False
        self.scope: torch.inference_mode | None = None

    def enter(self) -> None:
        """Open it."""
        self.scope, self.used = torch.inference_mode(), True
        self.scope.__enter__()

    def leave(self) -> None:
        """Close it, if it is open."""
        scope, self.scope = self.scope, None
        if scope is not None:
            scope.__exit__(None, None, None)


class InnerGraph:
    """A graph apart from the one around it, whose values become placeholders when they are read.

    Attributes:
        read: the values of the outer graph, each with its placeholder.
        transformed: whether it is what a transform of `torch.func` is applied to.
    """

    def __init__(self, outer: OutputGraph, transformed: bool) -> None:
        self.outer, self.graph, self.transformed = outer, torch.fx.Graph(), transformed
        self.last: torch.fx.Node | None = None
        self.read: dict[Any, tuple[Any, torch.fx.Node]] = {}

    def placeholder(self, value: Any) -> Any:
        """Take `value`, which is new, as an argument."""
        self.outer.traced[id(value)] = Traced(value, self.add(value), None, "tensor", None)
        return value

    def add(self, value: Any) -> torch.fx.Node:
        """A placeholder after all others."""
        self.last = placeholder_after(self.graph, self.last, f"value_{len(self.graph.nodes)}", value)
        return self.last

    def node_of(self, value: Any) -> torch.fx.Node:
        """The placeholder of a value of the outer graph."""
        key = str(value) if is_symbolic(value) else id(value)
        if key not in self.read:
            self.read[key] = (value, self.add(value))
        return self.read[key][1]

    def lifted(self) -> list[Any]:
        """What the graph takes after its own placeholders."""
        return [value for value, _ in self.read.values()]

    def finish(self, results: list[Any]) -> torch.fx.GraphModule:
        """Close the graph."""
        self.graph.output(tuple(self.outer.argument(item) for item in results))
        return GraphModule(torch.nn.Module(), self.graph)


def placeholder_after(graph: torch.fx.Graph, last: torch.fx.Node | None, name: str, value: Any) -> torch.fx.Node:
    """A new placeholder after the last one, or before all nodes."""
    first = next(iter(graph.nodes), None)
    with graph.inserting_after(last) if last is not None else graph.inserting_before(first):
        node = graph.placeholder(name)
    node.target = node.name  # which is unique
    node.meta["example_value"], node.meta["location"] = value, None
    return node


OFFSET_OF = {"as_strided": 3, "as_strided_": 3, "as_strided_copy": 3, "as_strided_scatter": 4}
"""Operators that may be given an offset from the start of a storage, and its place among their arguments."""


class OutputGraph:
    """Nodes, inputs and the fake tensors that stand for their results."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.fake_mode = new_fake_mode()
        self.traced: dict[int, Traced] = {}
        self.inputs: list[Traced] = []
        self.last_placeholder: torch.fx.Node | None = None
        self.symbol_node: Callable[[Any], torch.fx.Node]  # of a number, which the attempt knows how to compute
        self.operations = 0
        self.takes_floats = False
        self.region: int | None = None
        self.policy: Any = None
        self.inference = InferenceRegion()
        self.inside: InnerGraph | None = None
        self.data_aliases: dict[int, tuple[Any, Any, int]] = {}
        self.replaced: dict[int, tuple[Any, int]] = {}
        self.picks: list[tuple[Any, Any, int]] = []
        self.made_leaves: list[Any] = []
        self.quiet_leaves: set[int] = set()
        self.switched: set[int] = set()

    def add_input(self, value: Any, source: Source, kind: str, real: Any) -> Traced:
        """Register a value from outside; it becomes a placeholder when an operation first uses it."""
        entry = Traced(value, None, source, kind, real)
        self.traced[id(value)] = entry
        return entry

    def node_of(self, entry: Traced) -> torch.fx.Node:
        """The node of a traced value; makes the placeholder of an input."""
        if self.inside is not None and (entry.node is None or entry.node.graph is not self.graph):
            return self.inside.node_of(entry.value)
        if entry.node is not None and entry.node.graph is not self.graph:
            raise Break("unsupported value", "a tensor of a transformed function is used outside of it")
        if entry.node is None:
            words = entry.source.words() if entry.source else "input"
            entry.node = placeholder_after(self.graph, self.last_placeholder, identifier(words, "argument"), entry.value)
            self.last_placeholder = entry.node
            self.inputs.append(entry)
        return entry.node

    def argument(self, value: Any) -> Any:
        """The FX argument that stands for a value on the symbolic stack."""
        kind = type(value)
        if isinstance(value, FakeTensor):
            entry = self.traced.get(id(value))
            if entry is None:
                raise Break("unsupported value", "a tensor was made outside of the traced operations")
            if id(value) in self.quiet_leaves and torch.is_grad_enabled():
                raise Break("autograd call", "a view of a leaf made without gradients is used with gradients")
            if id(value) in self.switched:
                raise Break("autograd call", "a tensor of which `requires_grad` was set is used")
            return self.node_of(entry)
        if kind in PLAIN:
            return value
        if is_symbolic(value):
            if self.inside is not None:
                return self.inside.node_of(value)
            return self.symbol_node(value)
        if kind is tuple or kind is torch.Size:
            return tuple(self.argument(item) for item in value)
        if kind is list:
            return [self.argument(item) for item in value]
        if kind is dict:
            return {key: self.argument(item) for key, item in value.items()}
        if kind is slice:
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*(self.argument(item) for item in value))
        if isinstance(value, range):
            return list(value)
        if isinstance(value, tuple(PLAIN_VALUE)):
            return plain_value(value)
        if isinstance(value, (np.integer, np.floating)):  # to PyTorch they are Python's numbers, unlike the other ones
            return value.item()
        if isinstance(value, type) and value in DTYPES_OF_NUMBERS:
            return DTYPES_OF_NUMBERS[value]
        if kind is TENSOR_CLASS or value is torch.Tensor:  # as a type it is the default one
            return torch.typename(value)
        raise Break("unsupported argument", f"an argument of type {kind.__name__} cannot be part of a graph")

    def call(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
             location: Location | None) -> Any:
        """Record one operation and return its fake result."""
        node_args = tuple(self.argument(item) for item in args)
        node_kwargs = {key: self.argument(item) for key, item in kwargs.items()}
        if "from" in node_kwargs:  # which the graph's source could not say; it comes first wherever there is one
            node_args = (*node_args, node_kwargs.pop("from"))
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if self.inference.used and self.inference.scope is None:
            raise Break("autograd call", f"`{name}` is behind the `inference_mode` that the graph runs under")
        refuse_shared_writes(name, args)
        if name in SUMS_AND_PRODUCTS or name in QUOTIENTS:
            refuse_widening(name, *args, **kwargs)
        if name in OFFSET_OF and (args[OFFSET_OF[name] :] or kwargs.get("storage_offset") is not None):
            raise Break("real memory", f"`{name}` counts from the start of the storage")
        result = self.run_fake(op, target, args, kwargs)
        if name.startswith("_foreach_") and name.endswith("_"):  # whose fake kernels count no changes
            torch.autograd.graph.increment_version([tensor for tensor in args[0] if not tensor.is_inference()])
        if isinstance(result, FakeTensor) and result.layout is not torch.strided:
            raise Break("sparse tensor", f"`{name}` makes a sparse tensor")
        self.check_leaves(result, name, kwargs.get("requires_grad", False))
        if needs_gradient(result) and lacks_gradient_rule(target):
            raise Break("unknown call", f"`{target}` has no gradient but that of what its kernel calls")
        self.check_data_aliases(args)
        self.check_replaced(result, (args, kwargs))
        if name in ("tensor", "as_tensor", "new_tensor") and holds_numpy_numbers((*args, *kwargs.values())):
            node_kwargs["dtype"] = result.dtype  # these alone look at the type of a NumPy number
        node = self.graph.create_node(op, target, node_args, node_kwargs)
        self.describe(node, result, location)
        self.operations += 1
        if not self.bind(result, node, location) and result is not None:
            self.graph.erase_node(node)
            self.operations -= 1
        return result

    def check_leaves(self, result: Any, name: str, wanted: bool) -> None:
        """A leaf that requires a gradient ends the graph, but for a view made without gradients: that one only if it is
        used with gradients. One that nobody `wanted` shows how PyTorch decomposes `pad`: eager's requires none."""
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, FakeTensor) and id(value) not in self.traced and value.requires_grad and value.is_leaf:
                if value._is_view() and not torch.is_grad_enabled():
                    self.quiet_leaves.add(id(value))
                elif wanted or torch.is_grad_enabled():
                    raise Break("autograd call", f"`{name}` makes a leaf that requires a gradient")
                else:
                    value.requires_grad_(False)

    def run_fake(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on fake tensors; errors of any sort become graph breaks."""
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        hints = Hints() if self.takes_floats else contextlib.nullcontext()
        symbols = getattr(self.fake_mode.shape_env, "bounds_at_first", None)
        dispatcher = python_dispatcher() if symbols else contextlib.nullcontext()
        handled = sys.exception()
        try:
            with self.fake_mode, dispatcher, hints:
                if symbols or name in REFUSED_BY_FAKE_KERNELS:
                    return called(target, args, kwargs)
                if op == "call_method":
                    return getattr(args[0], target)(*args[1:], **kwargs)
                return target(*args, **kwargs)
        except (Control, RecursionError):
            raise
        except DATA_DEPENDENT as error:
            shape_like = "Shape" in type(error).__name__ or name in SHAPE_FROM_VALUES
            kind = "data-dependent shape" if shape_like else "tensor value"
            raise Break(kind, f"`{name}` depends on the values of a tensor") from None
        except Exception as error:  # operators raise errors of all kinds; eager will raise it to the user
            forget_frames(error, handled)
            text = str(error).strip().split("\n")[0][:200]
            raise Break("operation failed", f"`{name}`: {type(error).__name__}: {text}") from None

    def bind(self, result: Any, node: torch.fx.Node, location: Location | None) -> bool:
        """Remember which node computes each tensor of a result; whether there was any."""
        if isinstance(result, FakeTensor):
            if id(result) not in self.traced:
                self.traced[id(result)] = Traced(result, node, None, "tensor", None)
            return True
        if not isinstance(result, (tuple, list)) or isinstance(result, torch.Size):
            return False
        found = False
        for position, item in enumerate(result):
            if isinstance(item, (FakeTensor, tuple, list)):
                part = self.graph.call_function(operator.getitem, (node, position))
                self.describe(part, item, location)
                found = self.bind(item, part, location) or found
        return found

    def data_of(self, owner: Any, location: Location | None) -> Any:
        """`owner.data`: detached, and watched, since in eager changes of it do not count as changes of `owner`."""
        alias = self.call("call_function", getattr, (owner, "data"), {}, location)
        if not alias.is_inference() and id(owner) not in self.replaced:
            self.data_aliases[id(alias)] = (alias, owner, alias._version)
        return alias

    def is_data_of(self, value: Any, owner: Any) -> bool:
        """Whether `value` is what `owner.data` gave: put back (`owner.data *= mask`), it changes nothing."""
        known = None if id(owner) in self.replaced else self.data_aliases.get(id(value))
        return known is not None and known[1] is owner and (value.shape, value.stride()) == (owner.shape, owner.stride())

    def check_data_aliases(self, args: tuple[Any, ...]) -> None:
        """Leave an operation that has changed the `.data` of a tensor to eager if a gradient could tell."""
        for key, (alias, owner, version) in self.data_aliases.items():
            if alias._version != version:
                self.data_aliases[key] = (alias, owner, alias._version)
                if self.is_saved_for_a_gradient(owner) and not self.is_read_by_plain_formulas(owner):
                    reason = "a tensor of which `.data` was taken is changed in place"
                    if self.traced[id(owner)].source is not None and args and args[0] is alias:
                        raise Break("autograd call", reason)
                    raise RunEager(f"{reason}, through a view or where the graph made it", "autograd call")

    def replace_data(self, owner: Any, value: Any, location: Location | None) -> bool:
        """`owner.data = value`: what reads `owner` from here on reads `value`, without gradients. Whether a graph can say so."""
        entry, given = self.traced[id(owner)], self.traced.get(id(value))
        kept = storage_key(owner) not in self.fake_mode.written
        fits = kept and given is not None and not value.requires_grad and self.inside is None and not value.is_inference()
        if not fits or self.is_saved_for_a_gradient(owner) or layout_of(value) != layout_of(owner):
            return False
        node = self.traced[id(self.call("call_method", "detach", (value,), {}, location))].node
        self.traced[id(owner)] = Traced(owner, node, None, entry.kind, None)
        self.replaced[id(owner)] = owner, owner._version
        return True

    def detached_in_place(self, owner: Any, location: Location | None) -> bool:
        """`owner.detach_()` of a result whose history nothing else has read: eager may raise in others' backward. Whether a
        graph can say so."""
        entry = self.traced[id(owner)]
        if entry.source is not None or owner._is_view() or owner.is_inference():
            return False
        if owner.requires_grad:
            others = [each.value for each in self.traced.values() if each is not entry and isinstance(each.value, FakeTensor)]
            shared = any(storage_key(other) == storage_key(owner) for other in others)
            read = entry.node is None or any(needs_gradient(user.meta["example_value"]) for user in entry.node.users)
            if self.inside is not None or owner.is_leaf or shared or read or self.replaced:
                return False
            alias = self.call("call_method", "detach", (owner,), {}, location)
            owner.detach_()
            self.traced[id(owner)] = Traced(owner, self.traced[id(alias)].node, None, entry.kind, None)
        return True

    def check_replaced(self, result: Any, arguments: Any) -> None:
        """End the graph before a tensor whose `.data` was set is written, or gets a gradient: both count for the tensor, which
        its new memory knows nothing of."""
        if not self.replaced:
            return
        used = needs_gradient(result) and any(id(value) in self.replaced for value in tree_leaves(arguments))
        for owner, version in self.replaced.values():
            if used or owner._version != version or storage_key(owner) in self.fake_mode.written:
                raise Break("autograd call", "a tensor of which `.data` was set is written, or used with gradients")

    def is_saved_for_a_gradient(self, owner: Any) -> bool:
        """Whether an operation of the graph may need the value of a tensor for its gradient; what writes a leaf does not."""
        entry = self.traced[id(owner)]
        if not owner.requires_grad:
            return False
        results = [user.meta["example_value"] for user in (entry.node.users if entry.node is not None else ())]
        return entry.source is None or any(needs_gradient(it) and not (it is owner and owner.is_leaf) for it in results)

    def is_read_by_plain_formulas(self, owner: Any) -> bool:
        """Whether the memory of a tensor is the graph's own and only PyTorch's gradients of its operators may read it in the
        backward: traced, these find there what eager's find. Those of attention, of custom functions and of checkpointed regions,
        which the graph computes in its own ways, do not.
        """
        memory = storage_key(owner)
        holders = [node for node in self.graph.nodes if holds_memory(node, memory)]
        touching = {*holders, *(user for node in holders for user in node.users)}
        return self.inside is None and all("checkpoint" not in node.meta and has_plain_formula(node) for node in touching)

    def state_call(self, function: Any, args: tuple[Any, ...], location: Location | None) -> Any:
        """Record a change of thread-local torch state, and make it while tracing."""
        args = tuple(map(concrete, args))
        if function is torch._C._set_grad_enabled and torch.is_inference_mode_enabled() and args[0]:
            return function(*args)  # nothing is differentiated there, and the trace is made outside
        node = self.graph.call_function(function, args)
        result = function(*args)
        self.describe(node, result, location)
        return result

    @contextlib.contextmanager
    def without_gradients(self, location: Location | None) -> Iterator[None]:
        """Record what is called inside as eager runs it under `no_grad`."""
        switch = torch.is_grad_enabled()
        if switch:
            self.state_call(torch._C._set_grad_enabled, (False,), location)
        try:
            yield
        finally:
            if switch:
                self.state_call(torch._C._set_grad_enabled, (True,), location)

    def describe(self, node: torch.fx.Node, value: Any, location: Location | None) -> None:
        """Note on a node what it computes and where the user wrote it."""
        node.meta["example_value"], node.meta["location"] = value, location
        if self.region is not None:
            node.meta["checkpoint"] = self.region
        if self.policy is not None:
            node.meta["policy"] = self.policy

    @contextlib.contextmanager
    def inner(self, transformed: bool = False) -> Iterator[InnerGraph]:
        """Record into a graph apart."""
        before = self.graph, self.inside
        self.inside = InnerGraph(self, transformed)
        self.graph = self.inside.graph
        try:
            yield self.inside
        finally:
            self.graph, self.inside = before

    def is_transformed(self) -> bool:
        """Whether what is recorded now is what a transform of `torch.func` is applied to."""
        return self.inside is not None and self.inside.transformed

    @contextlib.contextmanager
    def checkpointed(self, policy: Any) -> Iterator[None]:
        """Mark the nodes made inside as one region that the backward computes again, but for what a `policy` keeps; an
        outer region includes inner ones."""
        before = self.region, self.policy
        if self.region is None:
            self.region, self.policy = self.operations, policy
        try:
            yield
        finally:
            self.region, self.policy = before

    def is_used(self, value: Any) -> bool:
        """Whether another node of the graph reads the result of an operation."""
        entry = self.traced.get(id(value))
        return entry is not None and entry.source is None and entry.node is not None and bool(entry.node.users)

    def mutated_inputs(self) -> list[Traced]:
        """The inputs whose data some node has changed."""
        return [entry for entry in self.inputs if isinstance(entry.value, torch.Tensor)
                and storage_key(entry.value) in self.fake_mode.written]

    def finish(self, outputs: list[Any]) -> torch.fx.GraphModule:
        """Close the graph with the values in `outputs` (fake tensors or symbolic numbers)."""
        nodes = tuple(self.argument(value) for value in outputs)
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and node.target is operator.getitem and not node.users and node not in nodes:
                if isinstance(node.args[0], torch.fx.Node) and isinstance(node.args[0].meta["example_value"], (tuple, list)):
                    self.graph.erase_node(node)
        for entry in [entry for entry in self.inputs if entry.kind == "size"]:
            if entry.node is not None and not entry.node.users and entry.node not in nodes:
                self.graph.erase_node(entry.node)
                self.inputs.remove(entry)
        closing = self.graph.output(nodes)
        closing.meta["example_value"], closing.meta["location"] = tuple(outputs), None
        return GraphModule(torch.nn.Module(), self.graph)

    def graph_inputs(self) -> tuple[GraphInput, ...]:
        """The placeholders in order."""
        return tuple(GraphInput(str(self.node_of(entry).name), entry.source.words() if entry.source else "",
                                entry.kind, entry.example()) for entry in self.inputs)


def layout_of(value: Any) -> tuple[Any, ...]:
    """What a tensor keeps where its `.data` is set."""
    return value.dtype, value.device, value.layout, tuple(value.shape), value.stride()


def holds_numpy_numbers(value: Any) -> bool:
    """Whether a value is a NumPy number, or a list with one in it."""
    return isinstance(value, np.generic) or isinstance(value, (list, tuple)) and any(map(holds_numpy_numbers, value))


def needs_gradient(value: Any) -> bool:
    """Whether a fake result, or a part of it, requires a gradient."""
    if isinstance(value, (tuple, list)):
        return any(map(needs_gradient, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


def holds_memory(node: torch.fx.Node, memory: int) -> bool:
    """Whether what a node gives, or a part of it, lies in some memory."""
    value = node.meta.get("example_value")
    parts = tree_leaves(value) if isinstance(value, (tuple, list)) else [value]
    return any(isinstance(part, torch.Tensor) and storage_key(part) == memory for part in parts)


def has_plain_formula(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator of PyTorch's that is traced, with its gradient, as it is."""
    module, name = (getattr(node.target, key, None) or "" for key in ("__module__", "__name__"))
    plain = module.startswith(("torch", "_operator", "builtins")) and not module.startswith(("torch._ops", "torch._higher"))
    return node.op == "call_method" or node.op == "call_function" and plain and "attention" not in name


REFUSED_BY_FAKE_KERNELS = frozenset({"where", "istft"})
"""Functions that are taken for their replacements from the start: of conditions in bytes, and of what is looked at."""
SHAPE_FROM_VALUES = frozenset({"nonzero", "unique", "masked_select", "argwhere", "unique_consecutive", "getitem",
                               "repeat_interleave", "bincount", "nonzero_static", "where"})


SUMS_AND_PRODUCTS = frozenset({"iadd", "isub", "imul", "__iadd__", "__isub__", "__imul__", "add_", "sub_", "subtract_",
                               "mul_", "multiply_", "addcmul_", "addcdiv_"})
QUOTIENTS = frozenset({"itruediv", "__itruediv__", "div_", "divide_", "true_divide_"})


def refuse_widening(name: str, target: Any, *others: Any, rounding_mode: str | None = None, **_: Any) -> None:
    """Leave an operation in place to eager where its dtype does not hold the result; the fake kernel does not look."""
    factors = [other for other in others if isinstance(other, (int, float, complex, torch.Tensor))]
    if name in QUOTIENTS and rounding_mode is None:
        factors.append(1.0)
    if isinstance(target, FakeTensor) and not all(torch.can_cast(torch.result_type(target, n), target.dtype) for n in factors):
        raise Break("operation failed", "a result in place does not fit its dtype")
