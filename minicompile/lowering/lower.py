"""The walk over an ATen graph that applies the rules.

Every operator must come out right: a rule that does not fit, a dtype, a device or an operator without a rule becomes an
extern kernel with the reason. This module must not know single operators, except for writes of graph inputs.
"""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from minicompile.config import Config
from minicompile.errors import Unsupported
from minicompile.ir.graph import parts_of
from minicompile.ir.index import ONE, ZERO, Index, Symbol, as_index
from minicompile.ir.loops import Buffer, BufferView, LoweredGraph, Origin
from minicompile.ir.operator_names import overloads

# They, and those that they import, register their rules.
from minicompile.lowering import attention, combine, creation, indexing, pointwise, products  # noqa: F401
from minicompile.lowering.builder import GraphBuilder
from minicompile.lowering.extern import call_operator, mutated_arguments
from minicompile.lowering.inputs_in_place import COPY, InputWrites
from minicompile.lowering.registry import RULES, VIEWS, UseExtern
from minicompile.lowering.sizes import float_value, is_empty, is_one, size_index, size_indices, stride_indices
from minicompile.lowering.values import LOOP_DTYPES, FloatInput, TensorValue, changed_tensors, mapped

MOVES = frozenset(overloads("""_to_copy clone copy copy_ cat index.Tensor index_select slice_scatter select_scatter index_put"""))
"""Operators whose rules move elements or convert them, and compute nothing."""
EMPTY_STRIDED = (torch.ops.aten.empty_strided.default, torch.ops.aten.new_empty_strided.default)


def lower_graph(module: GraphModule, config: Config, name: str) -> LoweredGraph:
    """Turn a functional ATen graph into loops and extern kernels."""
    return GraphLowering(module, config, name).run()


def main_device(module: GraphModule) -> torch.device:
    """Where loops run: the first accelerator that a tensor of the graph lives on, else the CPU."""
    for node in module.graph.nodes:
        for tensor in parts_of(node.meta.get("val")):
            if isinstance(tensor, torch.Tensor) and tensor.device.type not in ("cpu", "meta"):
                return tensor.device
    return torch.device("cpu")


def tensors_are_on(device: torch.device, value: Any) -> bool:
    """Whether the result of a node is one or several tensors on `device`; the graph's own results are not."""
    return all(isinstance(part, torch.Tensor) and part.device == device for part in parts_of(value))


class GraphLowering:
    """One run of `lower_graph`."""

    def __init__(self, module: GraphModule, config: Config, name: str) -> None:
        self.module = module
        self.builder = GraphBuilder(name, config, main_device(module))
        self.writes = InputWrites(module.graph)
        self.values: dict[Any, Any] = {}
        self.inputs: list[str] = []
        self.size_inputs: dict[str, Index] = {}
        self.outputs: tuple[Any, ...] = ()

    def run(self) -> LoweredGraph:
        """Lower every node in order."""
        for node in self.module.graph.nodes:
            self.builder.node = node
            self.builder.origin = origin_of(node) if node.op == "call_function" else None
            target = self.writes.direct.get(node)
            self.builder.in_place = None if target is None else self.values[target]
            self.values[node] = self._lower(node)
        return self.builder.finish(tuple(self.inputs), self.size_inputs, self.outputs)

    def _lower(self, node: Node) -> Any:
        match node.op:
            case "placeholder":
                return self._placeholder(node)
            case "get_attr":
                return self._constant(node)
            case "call_function":
                return self._call(node)
            case "output":
                results = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
                self.outputs = tuple(map(self._output, results))
                return None
        raise Unsupported("graph node", f"a graph cannot hold a {node.op} node ({node.name})")

    # Inputs and constants

    def _placeholder(self, node: Node) -> Any:
        name = self.builder.unique_name(node.name)
        self.inputs.append(name)
        example = node.meta.get("val")
        if isinstance(example, torch.Tensor):
            return self._known_tensor(name, example, "input")
        if isinstance(example, (torch.SymInt, int)) and not isinstance(example, bool):
            self.size_inputs[name] = size_index(example)
            return self.size_inputs[name]
        if isinstance(example, torch.SymFloat):
            self.size_inputs[name] = as_index(Symbol(name, 1, 0))
            return FloatInput(self.size_inputs[name])
        if example is None:
            return None
        raise Unsupported("graph input", f"{node.name} is a {type(example).__name__}")

    def _constant(self, node: Node) -> Any:
        value = operator.attrgetter(str(node.target))(self.module)
        if not isinstance(value, torch.Tensor):
            return value
        name = self.builder.unique_name(node.name)
        self.builder.constants[name] = value.detach()
        moves = all(tensors_are_on(self.builder.device, user.meta.get("val")) for user in node.users)
        return self._known_tensor(name, value, "constant", self.builder.device if moves else value.device)

    def _known_tensor(
        self, name: str, example: torch.Tensor, role: Any, device: torch.device | None = None
    ) -> TensorValue:
        if example.layout != torch.strided:
            raise Unsupported("sparse tensor", f"{name} is a {example.layout} tensor")
        sizes, strides = size_indices(example.shape), stride_indices(example.stride())
        buffer = self.builder.buffers[name] = Buffer(name, example.dtype, device or example.device, sizes, strides, role)
        return self.builder.whole(buffer)

    # Operators

    def _call(self, node: Node) -> Any:
        target = node.target
        if target is operator.getitem:
            container, position = node.args
            return self.values[container][position]
        value: Any = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            try:
                return size_index(value)
            except Unsupported as problem:
                return problem  # raised where the number is needed, which strides of new tensors are not
        if isinstance(value, torch.SymFloat):
            return float_value(value)
        if isinstance(value, (int, float, bool)) and not isinstance(target, torch._ops.OpOverload):
            return value
        if not isinstance(target, torch._ops.OpOverload):
            raise Unsupported("graph function", f"{node.name} calls {target}, which is not an ATen operator")
        if target is COPY:
            if node.args[0].op != "placeholder":  # type: ignore[union-attr]  # a node
                raise Unsupported("in-place operator", f"{node.name} writes something other than an input of the graph")
            self._save_old_contents(node)
        new = target in EMPTY_STRIDED and value.dtype in LOOP_DTYPES and value.device == self.builder.device
        args = self._arguments(node.args[:1] if new else node.args)
        kwargs = {key: self._arguments(argument) for key, argument in node.kwargs.items()}
        return self._apply(node, target, args, kwargs)

    def _arguments(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            value = self.values[argument]
            if isinstance(value, Unsupported):
                raise value
            return value
        if isinstance(argument, (tuple, list)):
            return tuple(map(self._arguments, argument)) if type(argument) is tuple else [*map(self._arguments, argument)]
        if isinstance(argument, slice):
            raise Unsupported("graph argument", f"{argument} in {self.builder.node.name}")
        return argument

    def _apply(self, node: Node, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        rule = RULES.get(target)
        reason = "no rule for this operator"
        if rule is not None:
            point = self.builder.checkpoint()
            try:
                if target in VIEWS:
                    return self._checked_view(rule(self.builder, *args, **kwargs))
                self._require_loops(target, args, kwargs)
                here = {name: self._on_main_device(argument) for name, argument in kwargs.items()}
                return rule(self.builder, *self._on_main_device(args), **here)
            except UseExtern as refusal:
                self.builder.roll_back(point)
                reason = str(refusal)
        self._make_promised_copies({value.buffer for value in mutated_arguments(target, args, kwargs)})
        for argument in node.all_input_nodes:
            self._lay_out_as_promised(argument)
        args, kwargs = self._arguments(node.args), {key: self._arguments(value) for key, value in node.kwargs.items()}
        result = call_operator(self.builder, target, args, kwargs, reason)
        self._rename({old: new for new, old in self.builder.operations[-1].inherits.items()})
        return result

    def _checked_view(self, result: Any) -> Any:
        """Accesses that are not linear can only be copied by a loop."""
        for value in parts_of(result):
            if value.strides is None and (value.dtype not in self.builder.movable or value.device != self.builder.device):
                raise UseExtern(f"a view that is not strided, of {value.dtype} on {value.device}")
        return result

    def _require_loops(self, target: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Refuse what loops cannot hold: other dtypes, and results on other devices."""
        known = self.builder.movable if target in MOVES else LOOP_DTYPES
        for result in parts_of(self.builder.val):
            if isinstance(result, torch.Tensor):
                if result.dtype not in known:
                    raise UseExtern(f"loops do not compute {result.dtype}")
                if result.device != self.builder.device:
                    raise UseExtern(f"the result is on {result.device}, the graph runs on {self.builder.device}")
        for argument in tensors_in((args, tuple(kwargs.values()))):
            if argument.dtype not in known:
                raise UseExtern(f"loops do not read {argument.dtype}")

    def _on_main_device(self, argument: Any) -> Any:
        def leaf(part: Any) -> Any:
            if isinstance(part, TensorValue):
                return self.builder.moved_to(part, self.builder.device)
            return self.builder.in_memory(part) if isinstance(part, FloatInput) else part

        return mapped(argument, leaf)

    # Writes in place

    def _save_old_contents(self, copy: Node) -> None:
        """Before an input changes: copy its old contents if later nodes read them, or the write itself does at other places."""
        target, source = self.values[copy.args[0]], self.values[copy.args[1]]
        for node, value in self.values.items():
            stale = [v for v in tensors_in(value) if v.buffer == target.buffer]
            if not stale or not self.writes.order:
                continue
            askew = node is copy.args[1] and (source.strides, source.offset) != (target.strides, target.offset)
            if askew or self.writes.read_after(node, copy):
                self._keep(node, stale.__contains__)

    def _make_promised_copies(self, written: set[str]) -> None:
        """Before a call writes buffers: accesses that eager would have copied must keep the old contents."""
        for node in self.values if written else ():
            self._keep(node, lambda value: value.copied and value.buffer in written)

    def _lay_out_as_promised(self, node: Node) -> None:
        """What eager would have copied lies in memory as that copy does: kernels may know no other layout."""
        if isinstance(promised := node.meta.get("val"), torch.Tensor):
            steps = stride_indices(promised.stride())
            self._keep(node, lambda value: value.copied and not _has_strides(value, steps))

    def _keep(self, node: Node, chosen: Callable[[TensorValue], bool]) -> None:
        """Copy the chosen ones of a node's tensors; what eager would have computed lies in memory as promised."""
        promised = node.meta["val"]

        def kept(value: TensorValue) -> TensorValue:
            if not chosen(value):
                return value
            as_promised = value.copied and isinstance(promised, torch.Tensor)
            return self._copy_as(promised, value) if as_promised else self.builder.copy(value)

        self.values[node] = changed_tensors(self.values[node], kept)

    def _copy_as(self, promised: torch.Tensor, value: TensorValue, suffix: str = "") -> TensorValue:
        """A copy that lies in memory as `promised`, also with gaps; what is expanded lies there once."""
        sizes, strides = size_indices(promised.shape), stride_indices(promised.stride())
        expands = [step is ZERO and not is_empty(sizes) for step in strides]
        once = tuple(ONE if expanded else size for size, expanded in zip(sizes, expands, strict=True))
        kept = self.builder.copy(value.reindexed(once, lambda indices: indices), strides=strides, suffix=suffix)
        return dataclasses.replace(kept, sizes=sizes)

    def _rename(self, renamed: dict[str, str]) -> None:
        """After a call that wrote its arguments, every value that shares their storage is of the new version."""
        if renamed:
            for node, value in self.values.items():
                self.values[node] = changed_tensors(
                    value, lambda v: dataclasses.replace(v, buffer=renamed[v.buffer]) if v.buffer in renamed else v
                )

    # Outputs

    def _output(self, result: Any) -> Any:
        if not isinstance(result, Node):
            return size_index(result) if isinstance(result, torch.SymInt) else result
        value = self.values[result]
        if not isinstance(value, TensorValue):
            return value.symbol if isinstance(value, FloatInput) else value
        example = result.meta["val"]
        sizes, strides = size_indices(example.shape), stride_indices(example.stride())
        self.builder.node = result
        if value.strides is None or value.copied:
            value = self._copy_as(example, value, "out")
        assert value.strides is not None
        own = strides if is_empty(sizes) else value.strides
        shown = tuple(eager if is_one(size) else step for size, step, eager in zip(sizes, own, strides, strict=True))
        return BufferView(value.buffer, sizes, shown, value.offset, value.dtype)


def _has_strides(value: TensorValue, steps: tuple[Index, ...]) -> bool:
    own = value.strides or steps[:0]
    return len(own) == len(steps) and all(is_one(n) or one == other for n, one, other in zip(value.sizes, own, steps))


def origin_of(node: Node) -> Origin:
    """Where a node comes from, for names, comments and reports."""
    meta = node.meta
    written = meta.get("operator") or getattr(getattr(node.target, "overloadpacket", node.target), "__name__", node.op)
    return Origin(node.name, str(written), meta.get("variable") or "", meta.get("location"))


def tensors_in(value: Any) -> list[TensorValue]:
    """Every tensor in nested lists and tuples."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, TensorValue)]
