"""The rules that every program between stages must keep, and checks of them that print the fault's neighbourhood.

A check proves what it can from names, dtypes and ranges and says nothing where it cannot prove either way. This module
must not repair anything.
"""

from collections.abc import Sequence
from typing import Any

import torch

from minicompile.errors import VerificationFailed
from minicompile.ir.expr import (
    SCALAR_OPS,
    Apply,
    Expr,
    IndexValue,
    Load,
    Masked,
    Random,
    indirect_values,
    walk,
)
from minicompile.ir.graph import PartitionedGraph, parts_of
from minicompile.ir.index import Axis, Index, Indirect, Symbol, atoms, hint, lower_bound, upper_bound
from minicompile.ir.loops import Buffer, BufferView, ExternKernel, Loop, LoweredGraph, Reduction, Scan, views_in
from minicompile.ir.printer import module_text, operation_text

NEIGHBOURS = 2
aten = torch.ops.aten
WRITES = (aten.copy_.default, aten._foreach_add_.Tensor, aten._foreach_add_.Scalar)
"""What may write inputs in a graph that is functional otherwise."""
BOOLEAN = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit"} | {
    f"logical_{name}" for name in ("and", "or", "xor", "not")
}


# FX graphs


def verify_partitioned(partitioned: PartitionedGraph) -> None:
    """Both halves are functional ATen graphs, and the binding's indices exist."""
    _verify_module(partitioned.forward)
    count = len(_results(partitioned.forward))
    binding = partitioned.binding
    named = [*binding.saved, *binding.differentiable_outputs, *(m.output_index for m in binding.mutated_inputs if not m.in_graph)]
    if any(not 0 <= index < count for index in named):
        raise VerificationFailed(f"the binding names output {max(named)} of {count}", module_text(partitioned.forward))
    if partitioned.backward is not None:
        _verify_module(partitioned.backward)
        given = len(partitioned.backward.graph.find_nodes(op="placeholder"))
        expected = len(binding.saved) + len(binding.saved_inputs) + len(binding.differentiable_outputs)
        if given < expected:
            raise VerificationFailed(
                f"the backward takes {given} inputs and gets {expected}", module_text(partitioned.backward)
            )


def _results(module: torch.fx.GraphModule) -> Sequence[Any]:
    return parts_of(module.graph.output_node().args[0])


def _verify_module(module: torch.fx.GraphModule) -> None:
    try:
        module.graph.lint()
    except RuntimeError as fault:
        raise VerificationFailed(f"not a well-formed graph: {fault}", module_text(module)) from fault
    for node in module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if "val" not in node.meta:
            raise VerificationFailed(f"{node.name} has no fake result", module_text(module))
        written = node.args[0] if isinstance(node.args[0], (list, tuple)) else node.args[:1]
        writes_inputs = node.target in WRITES and all(target.op == "placeholder" for target in written)
        if node.target._schema.is_mutable and not writes_inputs:
            raise VerificationFailed(f"{node.name} writes its argument in a functional graph", module_text(module))


# Lowered graphs


def verify_lowered(graph: LoweredGraph) -> None:
    """Names are defined before use, dtypes agree, axes are known, accesses stay inside, outputs are there."""
    _LoweredCheck(graph).run()


class _LoweredCheck:
    def __init__(self, graph: LoweredGraph) -> None:
        self.graph = graph
        self.defined = {name for name, buffer in graph.buffers.items() if buffer.role != "computed"}
        self.overwritten: set[str] = set()
        self.position = 0

    def run(self) -> None:
        """Check everything in order."""
        for name, buffer in self.graph.buffers.items():
            self.require(name == buffer.name, f"{name} is registered for the buffer {buffer.name}")
            self.require(len(buffer.sizes) == len(buffer.strides), f"{name} has {len(buffer.sizes)} sizes, other strides")
            self.require(all(hint(s) >= 0 for s in buffer.strides), f"{name} has a negative stride")
        for self.position, operation in enumerate(self.graph.operations):  # noqa: B020 - what a fault found meanwhile is told with
            for name in operation.reads:
                self.require(name in self.defined, f"{name} is read before it is written")
                self.require(name not in self.overwritten, f"{name} is read after its storage was overwritten")
            if isinstance(operation, Loop):
                self.loop(operation)
            else:
                self.extern(operation)
            for name in operation.writes:
                self.require(name in self.graph.buffers, f"{name} is written but is no buffer")
                self.require(name not in self.defined, f"{name} is written twice")
                self.defined.add(name)
            self.overwritten.update(operation.inherits.values())
        for output in self.graph.outputs:
            if isinstance(output, BufferView):
                self.require(output.buffer in self.defined, f"the output {output.buffer} is never computed")
                self.require(output.buffer not in self.overwritten, f"the output {output.buffer} was overwritten")
                self.view(output)

    def require(self, holds: bool, what: str) -> None:
        """Raise with the operations around the one in hand unless `holds`."""
        if not holds:
            first = max(self.position - NEIGHBOURS, 0)
            around = self.graph.operations[first : self.position + NEIGHBOURS + 1]
            marks = (">>> " if first + n == self.position else "    " for n in range(len(around)))
            texts = (mark + operation_text(o).replace("\n", "\n    ") for mark, o in zip(marks, around, strict=True))
            raise VerificationFailed(f"{self.graph.name}, operation {self.position}: {what}", "\n\n".join(texts))

    def loop(self, loop: Loop) -> None:
        """One loop nest."""
        self.require(loop.buffer in self.graph.buffers, f"{loop.buffer} is no buffer")
        buffer = self.graph.buffers[loop.buffer]
        points = set(loop.axes)
        self.require(len(points) == len(loop.axes), "an axis occurs twice")
        inside = points | set(loop.reduction_axes)
        if isinstance(loop.fold, Reduction):
            self.require(bool(loop.fold.axes), "a reduction over no axes")
            self.require(not points & set(loop.fold.axes), "an axis is both a point and folded")
            if loop.fold.kind in ("argmax", "argmin"):
                self.require(buffer.dtype == torch.int64, f"{loop.fold.kind} into {buffer.dtype}")
            elif loop.fold.kind == "any":
                self.require(buffer.dtype == loop.value.dtype == torch.bool, "any of something not boolean")
        elif isinstance(loop.fold, Scan):
            self.require(loop.fold.axis in points, "a scan along an unknown axis")
        else:
            self.require(loop.value.dtype == buffer.dtype, f"a {loop.value.dtype} value for {buffer.dtype}")
        if loop.overwrites is not None:
            old = self.graph.buffers[loop.overwrites]
            self.require((old.sizes, old.dtype) == (buffer.sizes, buffer.dtype), "the overwritten buffer is another")
        self.expression(loop.value, inside)
        if loop.condition is not None:
            self.require(loop.condition.dtype == torch.bool, "a condition that is not boolean")
            self.expression(loop.condition, points)
        self.index(loop.store, points, buffer, loop.condition is None)

    def expression(self, root: Expr, axes: set[Axis]) -> None:
        """Dtypes, names, axes and bounds of an expression."""
        guarded = {e for masked in walk(root) if isinstance(masked, Masked) for e in walk(masked.value)}
        for expression in walk(root):
            match expression:
                case Load():
                    self.require(expression.buffer in self.graph.buffers, f"{expression.buffer} is no buffer")
                    buffer = self.graph.buffers[expression.buffer]
                    self.require(expression.dtype == buffer.dtype, f"{expression.buffer} is loaded as {expression.dtype}")
                    self.index(expression.index, axes, buffer, expression not in guarded)
                case Apply():
                    fault = _fault_of(expression)
                    self.require(not fault, fault and f"{fault}: {expression}")
                case Masked():
                    self.require(expression.condition.dtype == torch.bool, "a masked value without a boolean condition")
                    self.require(expression.value.dtype == expression.other.dtype == expression.dtype, "masked dtypes")
                case Random():
                    self.require(expression.seed.dtype == torch.int64, "a random number whose seed is not int64")
                    self.index(expression.index, axes, None, False)
                case IndexValue():
                    self.index(expression.index, axes, None, False)

    def index(self, index: Index, axes: set[Axis], buffer: Buffer | None, bounded: bool) -> None:
        """Known axes; and inside the buffer wherever ranges prove the contrary."""
        for atom in atoms(index):
            if isinstance(atom, Axis):
                self.require(atom in axes, f"{index} uses the axis {atom}, which the loop has not")
            elif isinstance(atom, Indirect):
                self.require(not atom.value.dtype.is_floating_point, f"{index} is indexed by {atom.value.dtype}")
        for value in indirect_values(index):
            self.expression(value, axes)
        if buffer is None or not bounded:
            return
        low, high = lower_bound(index), upper_bound(index)
        extent = _extent(buffer)
        if not _has_loose_bounds(index):
            self.require(hint(low) >= 0, f"{buffer.name}[{index}] reaches {low}")
            self.require(hint(high) < extent, f"{buffer.name}[{index}] reaches {high} of {extent} elements")

    def extern(self, kernel: ExternKernel) -> None:
        """Arguments are views of known buffers; outputs are registered."""
        for view in views_in((kernel.args, kernel.kwargs)):
            self.view(view)
        for output in kernel.outputs:
            if output is not None:
                self.require(self.graph.buffers.get(output.name) == output, f"{output.name} is not the graph's buffer")
        if kernel.out_argument:
            self.require(len(kernel.outputs) == 1 and kernel.outputs[0] is not None, "out= for several results")
            written = [output.name for output in kernel.outputs if output is not None]
            dtypes = {self.graph.buffers[name].dtype for name in (*kernel.reads, *written)}
            self.require(len(dtypes) == 1, f"a product of {', '.join(map(str, dtypes))}")

    def view(self, view: BufferView) -> None:
        """A view lies inside its buffer."""
        self.require(view.buffer in self.graph.buffers, f"{view.buffer} is no buffer")
        buffer = self.graph.buffers[view.buffer]
        if 0 in map(hint, view.sizes):
            return
        last = hint(view.offset) + _extent(view) - 1
        extent = _extent(buffer)
        self.require(0 <= hint(view.offset) and last < extent, f"a view of {view.buffer} ends at {last} of {extent}")


def _fault_of(expression: Apply) -> str:
    """What is wrong with one scalar operation; empty if nothing is."""
    operation, arguments = expression.operation, expression.arguments
    if operation not in SCALAR_OPS:
        return f"unknown operation {operation}"
    if len(arguments) != SCALAR_OPS[operation].arity:
        return f"{operation} with {len(arguments)} arguments"
    if operation in ("cast", "bitcast"):
        return ""
    if operation == "where" and arguments[0].dtype != torch.bool:
        return "a select by something not boolean"
    if operation == "checked" and arguments[1].dtype != torch.bool:
        return "a check of something not boolean"
    operands = arguments[1:] if operation == "where" else arguments[:1] if operation == "checked" else arguments
    if len({a.dtype for a in operands}) != 1:
        return f"operands of {', '.join(str(a.dtype) for a in operands)}"
    if expression.dtype in (torch.float16, torch.bfloat16) and operands[0].dtype == torch.float32:
        return ""  # a number beside halves, which is not rounded
    expected = torch.bool if operation in BOOLEAN else operands[0].dtype
    return "" if expression.dtype == expected else f"the result is {expression.dtype}, not {expected}"


def _extent(strided: Buffer | BufferView) -> int:
    """Elements from the first to the last at the hinted sizes."""
    return 1 + sum((hint(size) - 1) * hint(stride) for size, stride in zip(strided.sizes, strided.strides, strict=True))


def _has_loose_bounds(index: Index) -> bool:
    """Whether the range of an index is only an estimate: divisions, correlated or symbolic atoms."""
    found = [atom for monomial, _ in index.terms for atom in monomial]
    return len(found) != len(set(found)) or any(not isinstance(atom, (Axis, Indirect)) for atom in found) or any(
        isinstance(atom, Symbol) for atom in atoms(index)
    )
