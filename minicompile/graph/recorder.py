"""Records operators on fake tensors into one FX graph, decomposing them on the way.

The recorder sees each operator after autograd and functionalization have done their part. An operator that was met
before with the same argument metadata is replayed from a template (the nodes that it became) without decomposing or
running fake kernels again: the second of twelve identical layers costs little. This module must not know what autograd,
inputs or outputs are.
"""

import dataclasses
import keyword
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate, map_arg
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from minicompile.errors import Unsupported
from minicompile.graph import eager_errors, eager_strides, torch_interface
from minicompile.graph.operators import is_view
from minicompile.graph.sizes import SizeExpressions
from minicompile.graph.torch_interface import FAKE_DEVICE, FakeMode, FakeTensor
from minicompile.ir.float_input import FloatNeeded, hinted, is_float_input
from minicompile.ir.graph import parts_of
from minicompile.ir.without_dynamo import DispatchMode

Decomposition = Callable[..., Any]
SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)
SCALAR_TYPES = (str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


EMPTY_STRIDED = (torch.ops.aten.empty_strided.default, torch.ops.aten.new_empty_strided.default)
FIXED_NUMBERS: dict[Any, Callable[[torch.Tensor], Any]] = {
    torch.ops.aten.size.default: lambda value: value.shape, torch.ops.aten.stride.default: torch.Tensor.stride,
}  # fmt: skip
"""What C++ asks for where it cannot do with symbolic numbers; no operators of the dispatcher's."""
EAGER_ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default
    for name in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)
"""The operators by which eager computes what is one of ours here."""


class MutationInside(Exception):
    """A decomposition wrote to a tensor in place: it cannot be used in a functional graph."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """A hole of a template: the `index`-th of the operator's tensor arguments, or of the nodes made so far."""

    index: int
    is_argument: bool


@dataclasses.dataclass(frozen=True)
class Template:
    """What one operator became: (target, args, kwargs, value, name) per node, and its result, with slots."""

    nodes: tuple[tuple[Any, Any, Any, Any, str], ...]
    result: Any


class Recorder(DispatchMode):
    """The dispatch mode that writes the graph.

    Attributes:
        graph: the graph so far; it has placeholders made by `placeholder` and no output node.
        constants: real tensors that the graph reads by `get_attr`.
        origin: metadata given to every node made while it is set (location, variable, operator).
        policy: what the selective checkpoint asks of every operator that is in force, if one is.
        stage: `forward` or `backward`, written to `meta["stage"]`.
    """

    def __init__(self, fake_mode: FakeMode, decompositions: Mapping[Any, Decomposition]) -> None:
        super().__init__()
        self.graph = Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.origin: dict[str, Any] = {}
        self.policy: Callable[..., Any] | None = None
        self.stage = "forward"
        self.origin_of_backward: Callable[[], dict[str, Any]] | None = None
        self.sizes = SizeExpressions(self.graph, self._annotate)
        self._fake_mode = fake_mode
        self._decompositions = decompositions
        self._nodes: dict[int, tuple[torch.Tensor, Node]] = {}
        self._templates: dict[Any, Template] = {}
        self._made: list[Node] = []
        self._unrepeatable = 0
        self._inside = 0
        self._takes_floats = False

    def placeholder(self, name: str, value: Any) -> Node:
        """A new graph input that `value` stands for."""
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = (value, node)
        self.sizes.learn(node, value)
        self._takes_floats = self._takes_floats or is_float_input(value)
        return node

    def node_of(self, value: torch.Tensor) -> Node:
        """The node that computes a fake tensor; a real tensor becomes a constant of the graph."""
        known = self._nodes.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, FakeTensor):
            raise RuntimeError("a tensor that is neither an input nor computed in the graph was used")
        return self.constant(value)

    def constant(self, value: torch.Tensor, fake: torch.Tensor | None = None) -> Node:
        """A `get_attr` node for a real tensor."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = value
        node = self.graph.get_attr(name)
        self._annotate(node, self._fake_mode.from_tensor(value) if fake is None else fake)
        self._nodes[id(value)] = (value, node)
        self._unrepeatable += 1
        return node

    def register(self, value: torch.Tensor, node: Node) -> None:
        """Say that `node` computes `value`."""
        self._nodes[id(value)] = (value, node)

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Record an operator as it is, without decomposing it, and return its fake result."""
        args = from_the_beginning(*args) if target is torch.ops.aten.as_strided_scatter.default else args
        result = self._outcome(target, args, kwargs)
        refuse_unusual(target, args, result)
        node = self.graph.call_function(target, *map_aggregate((args, kwargs), self._argument))
        self._made.append(node)
        if isinstance(result, torch.Tensor) and not is_view(node) and torch_interface.overlaps(result):
            result = torch.empty_like(result)  # PyTorch's rules (2.11) give scatters into an expanded tensor its strides
        self._annotate(node, result)
        if isinstance(result, torch.Tensor):
            self._nodes[id(result)] = (result, node)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    part = self.graph.call_function(operator.getitem, (node, index))
                    self._made.append(part)
                    self._annotate(part, item)
                    self._nodes[id(item)] = (item, part)
        return result

    def _outcome(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The fake result of an operator; what floats that vary are does not matter to it."""
        args, kwargs = hinted(target, args, kwargs) if self._takes_floats else (args, kwargs)
        return target(*args, **kwargs)

    def fake_empty(self, size: Any, dtype: torch.dtype, device: torch.device) -> FakeTensor:
        """A fake tensor that no recording sees being made."""
        return torch_interface.fake_empty(self._fake_mode, size, dtype, device)

    def mark_unrepeatable(self) -> None:
        """Keep the operator being recorded from becoming a template: each call must be recorded anew."""
        self._unrepeatable += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is FAKE_DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if func in FIXED_NUMBERS:
            return [int(number) for number in FIXED_NUMBERS[func](args[0])]  # a guard
        kwargs = kwargs or {}
        tensors: list[torch.Tensor] = []
        key = template_key(func, args, kwargs, tensors)
        if key is not None:
            template = self._templates.get(key)
            if template is not None:
                return self._replay(template, tensors)
        start, unrepeatable = len(self._made), self._unrepeatable
        self._inside += 1
        try:
            result = self._run(func, args, kwargs)
        finally:
            self._inside -= 1
        if not self._inside and (problem := eager_errors.problem_of(func, args, kwargs, result)):
            raise Unsupported("refused by eager", f"{func} of {problem}")
        if not self._inside and not eager_strides.plain_layout((*args, *kwargs.values(), result)):
            result = self._as_eager(func, args, kwargs, result)
        if key is not None and unrepeatable == self._unrepeatable:
            template = self._template(start, tensors, result)
            if template is not None:
                self._templates[key] = template
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        decomposition = self._decompositions.get(func)
        if decomposition is not None or torch_interface.has_composite_kernel(func):
            start = len(self._made)
            try:
                with self:
                    run = decomposition or func.decompose
                    with torch_interface.no_autocast():
                        result = run(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            except (MutationInside, FloatNeeded):
                pass
            self._drop_after(start)
        if func._schema.is_mutable:
            raise MutationInside(str(func))
        try:
            return self.emit(func, *args, **kwargs)
        except (RuntimeError, ValueError):
            if func is not torch.ops.aten.view.default:
                raise
            # The user's views are possible: this one leads back from a view that was written, whose new layout is another one.
            copy = self.emit(torch.ops.aten.clone.default, args[0], memory_format=torch.contiguous_format)
            return self.emit(func, copy, *args[1:])

    def _as_eager(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """The result in the layout that eager gives it."""
        if getattr(func, "is_view", False):
            return result
        wanted = tensors_of(self._outcome(func, args, kwargs))
        found = tensors_of(result)
        if len(wanted) != len(found):
            return result
        new = {}
        for value, like in zip(found, wanted, strict=True):
            if not eager_strides.equal(value.shape, like.shape) or torch_interface.overlaps(like):
                continue
            if not eager_strides.same(value.shape, value.stride(), like.stride()):
                into = self.emit(EMPTY_STRIDED[0], tuple(value.shape), like.stride(), dtype=value.dtype, device=value.device)
                new[id(value)] = self.emit(torch.ops.aten.copy.default, into, value)
        if isinstance(result, torch.Tensor):
            return new.get(id(result), result)
        return torch.utils._pytree.tree_map(lambda value: new.get(id(value), value), result) if new else result

    def _drop_after(self, start: int) -> None:
        for node in reversed(self._made[start:]):
            self.graph.erase_node(node)
        dropped = set(self._made[start:])
        del self._made[start:]
        self._nodes = {key: entry for key, entry in self._nodes.items() if entry[1] not in dropped}
        self.sizes.forget(dropped)

    def _argument(self, value: Any) -> Any:
        """What stands in the graph for a tensor or a number that varies; anything else as it is."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        return self.sizes.node_or_number(value) if isinstance(value, SYMBOLIC_TYPES) else value

    def _annotate(self, node: Node, value: Any) -> None:
        meta = node.meta
        meta["val"] = value
        meta["stage"] = self.stage
        origin = self.origin
        if self.stage == "backward" and self.origin_of_backward is not None:
            origin = self.origin_of_backward()
        meta.update(origin)
        if self.policy is not None and self.stage == "forward" and isinstance(node.target, torch._ops.OpOverload):
            meta["kept"] = keeps(self.policy, node)

    def _template(self, start: int, tensors: list[torch.Tensor], result: Any) -> Template | None:
        """The nodes made since `start` with their inputs cut out; `None` if they depend on anything else."""
        slots: dict[Node, Slot] = {}
        for index, tensor in enumerate(tensors):
            slots.setdefault(self.node_of(tensor), Slot(index, True))
        made = self._made[start:]
        for index, node in enumerate(made):
            slots[node] = Slot(index, False)
        entries = []
        for node in made:
            value = node.meta["val"]
            lazy = isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())
            if lazy or any(argument not in slots for argument in node.all_input_nodes):
                return None
            args = torch.fx.node.map_arg(node.args, slots.__getitem__)  # type: ignore[arg-type]
            kwargs = torch.fx.node.map_arg(node.kwargs, slots.__getitem__)  # type: ignore[arg-type]
            entries.append((node.target, args, kwargs, value, node.name.rstrip("0123456789_")))
        leaves = parts_of(result)
        if not all(leaf is None or isinstance(leaf, torch.Tensor) and id(leaf) in self._nodes for leaf in leaves):
            return None
        if any(leaf is not None and self.node_of(leaf) not in slots for leaf in leaves):
            return None
        cut = [None if leaf is None else slots[self.node_of(leaf)] for leaf in leaves]
        container = list if isinstance(result, list) else tuple
        return Template(tuple(entries), container(cut) if isinstance(result, (tuple, list)) else cut[0])

    def _replay(self, template: Template, tensors: list[torch.Tensor]) -> Any:
        arguments = [self.node_of(tensor) for tensor in tensors]
        made: list[Node] = []

        def filled(value: Any) -> Any:
            return (arguments if value.is_argument else made)[value.index] if type(value) is Slot else value

        for target, args, kwargs, value, name in template.nodes:
            node = self.graph.create_node("call_function", target, *map_aggregate((args, kwargs), filled), name)
            self._annotate(node, value)
            made.append(node)
        self._made.extend(made)

        def output(slot: Slot | None) -> Any:
            if slot is None:
                return None
            if slot.is_argument:
                return tensors[slot.index]
            fresh = torch_interface.fake_twin(self._fake_mode, made[slot.index].meta["val"])
            self._nodes[id(fresh)] = (fresh, made[slot.index])
            return fresh

        if isinstance(template.result, (tuple, list)):
            return type(template.result)(map(output, template.result))
        return output(template.result)


def keeps(policy: Callable[..., Any], node: Node) -> bool:
    """Whether the policy of a selective checkpoint keeps the result of an operator, by an eager name, for the backward."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    context = SelectiveCheckpointContext(is_recompute=False)
    context.op_output = node.meta["val"]
    names = EAGER_ATTENTION if node.target is torch.ops.minicompile.attention.default else (node.target,)
    left = (False, CheckpointPolicy.PREFER_RECOMPUTE, CheckpointPolicy.MUST_RECOMPUTE)
    return any(policy(context, name, *args, **kwargs) not in left for name in names)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in nested arguments or results."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def from_the_beginning(value: torch.Tensor, source: Any, sizes: Any, strides: Any, offset: Any = None) -> tuple[Any, ...]:
    """Where `as_strided_scatter` writes, without an offset: an input lies anywhere in its storage, among other elements."""
    if offset not in (None, value.storage_offset()) or not torch.ops.aten.is_non_overlapping_and_dense(value):
        raise RuntimeError("a tensor is written by strides that may leave its elements")
    return value, source, sizes, strides


def refuse_unusual(target: Any, args: Any, result: Any) -> None:
    """Raise for what a graph of plain strided tensors cannot hold."""
    for item in parts_of(result):
        if isinstance(item, torch.Tensor) and item.layout != torch.strided:
            raise RuntimeError(f"{target} makes a sparse tensor")
        if target in EMPTY_STRIDED and torch_interface.overlaps(item):
            raise Unsupported("overlapping tensor", f"{target} makes a tensor whose elements share memory")
    if keyword.iskeyword(target._overloadname):
        raise Unsupported("operator without a name", f"{target} cannot be written in Python")
    if target is torch.ops.aten.view_as_real.default and args[0].is_conj():
        raise RuntimeError("a lazily conjugated tensor is viewed as real")


def template_key(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
    """What an operator's recording depends on, and by the way its tensor arguments; `None` if it cannot be told."""
    positions: dict[int, int] = {}

    def describe(value: Any) -> Any:
        if isinstance(value, FakeTensor):
            lazy = value.is_conj() or value.is_neg() or value.constant is not None  # on which the result's depends
            if lazy or torch_interface.is_symbolic(value) or value.layout != torch.strided:
                raise TypeError
            position = positions.setdefault(id(value), len(tensors))
            if position == len(tensors):
                tensors.append(value)
            return (position, tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device)
        if isinstance(value, (list, tuple)):
            return (type(value), tuple(map(describe, value)))
        if isinstance(value, (bool, int, float, complex)):
            return (type(value), repr(value)) if type(value) in (float, complex) else (type(value), value)
        if isinstance(value, SCALAR_TYPES):
            return value
        raise TypeError

    if torch.Tag.nondeterministic_seeded in func.tags:
        return None
    try:
        described = (func, describe(tuple(args)), tuple((name, describe(item)) for name, item in kwargs.items()))
    except TypeError:
        tensors.clear()
        return None
    return described
