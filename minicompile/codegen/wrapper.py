"""The host function of a generated file: unpack, allocate, launch, free, return.

This module must not print kernels, and must not decide what lives where: it follows the memory plan.
"""

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from minicompile.codegen.index_text import host, symbols_of
from minicompile.codegen.naming import Namer, identifier, size_symbols
from minicompile.errors import Unsupported
from minicompile.ir.index import ZERO, Index, Symbol, as_index, coefficient_of, hint, is_nonnegative
from minicompile.ir.loops import Buffer, BufferView, ExternKernel, extent, views_in
from minicompile.ir.schedule import KernelGroup, Schedule

# The same operators through torch's own argument parser, which takes half the host time of an overload object.
BOUND_FUNCTIONS = {f"torch.ops.aten.{name}.out": f"torch.{name}" for name in ("mm", "bmm", "addmm", "baddbmm")}

LINEAR_PRODUCTS = ("torch.ops.aten.mm.out", "torch.ops.aten.addmm.out")
FUSED_MATMUL = "kernels.fused_matmul"
Layout = tuple[tuple[Index, ...], tuple[Index, ...]]
"""Sizes and strides."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """How the host starts the kernel of one group.

    Attributes:
        kernel: its name.
        grid: three Python expressions.
        pointers: the buffers to pass, in order.
        symbols: the sizes to pass after them.
    """

    kernel: str
    grid: tuple[str, str, str]
    pointers: tuple[str, ...]
    symbols: tuple[str, ...]


class HostWriter:
    """Prints the statements of `call` for one schedule, and what it needs around it.

    Attributes:
        lines: statements of `call`.
        operators: module-level name of each extern operator to the text that finds it.
        imports: hand-written kernels to import from `minicompile.kernels`.
        fixed: the names that `Program` has as `fixed_calls`, by what is called with which layouts and options.
        helpers: names of the file's own helper functions that are called.
        steps: as in `Program`.
    """

    def __init__(
        self, schedule: Schedule, names: Mapping[str, str], kernel_names: tuple[str, ...], device: torch.device,
        limits: frozenset[tuple[Index, int]],
    ) -> None:  # fmt: skip
        self._schedule, self._graph, self._device = schedule, schedule.graph, device
        self._limits = limits
        self._variables = dict(names)
        self._layouts: dict[str, Layout] = {names[n]: (b.sizes, b.strides) for n, b in self._graph.buffers.items()}
        self._asked = asked_layouts(schedule)
        self._static = not size_symbols(self._graph)
        self.fixed: dict[object, str] = {}
        self.lines: list[str] = []
        self.operators: dict[str, str] = {}
        self.imports: set[str] = set()
        self.helpers: set[str] = set()
        self.steps: list[tuple[str, tuple[str, ...]]] = []
        self._namer = Namer([*names.values(), *kernel_names, *(f"run_{name}" for name in kernel_names)])
        for step in schedule.steps:
            for name, older in step.inherits.items():
                self._variables[name] = self._variables[older]
        self._gone_after = self._find_last_uses()

    def write(self, launches: Mapping[int, Launch | None]) -> None:
        """Print the whole body; `launches` has the launch of every step that is a kernel (`None`: nothing to do)."""
        self._unpack()
        steps = self._schedule.steps
        for number, step in enumerate(steps):
            if isinstance(step, KernelGroup):
                launch = launches[number]
                self._kernel(step, launch)
                self.steps.append(("", ()) if launch is None else (f"run_{launch.kernel}", launch.pointers))
            else:
                self.steps.append((self._extern(step, launches.get(number)), ()))
            if number in self._gone_after and number + 1 < len(steps):
                self.lines.append(f"del {', '.join(self._gone_after[number])}")
        texts = [self._argument(output) for output in self._graph.outputs]
        self.lines.append(f"return {tuple_text(texts)}")

    def _find_last_uses(self) -> dict[float, list[str]]:
        """Maps each step to the variables that it is the last to use: no later step reads their buffers or takes them over."""
        ends = {name: step for step, freed in self._schedule.memory.freed_after.items() for name in freed}
        for allocation in self._schedule.memory.allocations.values():
            if allocation.reuses in ends:
                ends[allocation.reuses] = max(ends[allocation.reuses], allocation.first_step)
        last: dict[str, float] = {}
        for name, variable in sorted(self._variables.items()):
            last[variable] = max(last.get(variable, 0), ends.get(name, math.inf))
        gone: dict[float, list[str]] = {}
        for variable, step in last.items():
            gone.setdefault(step, []).append(variable)
        return gone

    # Inputs

    def _unpack(self) -> None:
        graph, targets, late = self._graph, [], []
        defined: set[str] = set()
        for name in graph.inputs:
            if name in graph.size_inputs:
                atom = _single_symbol(graph.size_inputs[name])
                fresh = atom is not None and atom.name not in defined
                targets.append(atom.name if atom is not None and fresh else "_")
                defined.add(atom.name if atom is not None else "")
            else:
                targets.append(self._variables[name])
        if targets:
            self.lines.append(f"{_targets(targets)} = inputs")
        for symbol in sorted(size_symbols(graph), key=lambda s: s.name):
            if symbol.name not in defined:
                late.append(f"{symbol.name} = {self._size_source(symbol)}")
        self.lines += late + self._limit_check() + (["inputs.clear()"] if targets else [])
        for name in graph.constants:
            self.lines.append(f'{self._variables[name]} = CONSTANTS["{name}"]')

    def _limit_check(self) -> list[str]:
        """Statements that refuse sizes for which some kernel is not made, before anything has happened."""
        conditions = []
        for largest in sorted({limit for _, limit in self._limits}, reverse=True):
            bounds = sorted(_undominated({bound for bound, limit in self._limits if limit == largest}), key=str)
            texts = [host(bound).text for bound in bounds]
            largest_text = texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"
            conditions.append(f"{largest_text} > {largest}")
        if not conditions:
            return []
        return [f"if {' or '.join(conditions)}:", '    raise OverflowError("sizes for which these kernels are not made")']

    def _size_source(self, symbol: Symbol) -> str:
        """Where the value of a symbol that is no input of its own can be read."""
        wanted = as_index(symbol)
        for name in self._graph.inputs:
            buffer = self._graph.buffers.get(name)
            for asked, numbers in (("size", buffer.sizes), ("stride", buffer.strides)) if buffer else ():
                for dimension, number in enumerate(numbers):
                    if number is wanted:
                        return f"{self._variables[name]}.{asked}({dimension})"
        raise Unsupported("generated code", f"no input says what {symbol} is")

    # Buffers

    def _obtain(self, name: str) -> None:
        """Make the variable of a buffer that a step is about to write."""
        buffer = self._graph.buffers[name]
        allocation = self._schedule.memory.allocations.get(name)
        if allocation is None or allocation.reuses is None:
            self._allocate(buffer)
            return
        source, target = self._variables[allocation.reuses], self._variables[name]
        own = self._layouts[source] if self._static else (buffer.sizes, buffer.strides)
        layout = self._layouts[target] = self._asked.get(name, own)
        if layout != self._layouts[source]:
            self.helpers.add("reinterpret")
            source = f"reinterpret({source}, {sizes_text(layout[0])}, {sizes_text(layout[1])})"
        self.lines.append(f"{target} = {source}  # the memory is free again")

    def _allocate(self, buffer: Buffer) -> None:
        target = self._variables[buffer.name]
        sizes, strides = self._layouts[target] = self._asked.get(buffer.name, (buffer.sizes, buffer.strides))
        layout = f"{sizes_text(sizes)}, {sizes_text(strides)}"
        if buffer.device.type == self._device.type:
            self.helpers.add("empty_strided")
            made = f"empty_strided({layout}, {buffer.dtype})"
        else:
            made = f'torch.empty_strided({layout}, dtype={buffer.dtype}, device="{buffer.device}")'
        self.lines.append(f"{target} = {made}")

    # Steps

    def _kernel(self, group: KernelGroup, launch: Launch | None) -> None:
        for loop in group.loops:
            if loop.buffer in group.stored and not loop.inherits:
                self._obtain(loop.buffer)
        if launch is None:
            return
        grid = f"({', '.join(launch.grid)})"
        arguments = [grid, *(self._variables[name] for name in launch.pointers), *launch.symbols]
        line = f"run_{launch.kernel}({', '.join(arguments)})"
        if not all(is_nonnegative(tile.axis.size - 1) for tile in group.tile.parallel):
            counts = " and ".join(text for text in launch.grid if text != "1")
            self.lines += [f"if {counts}:", f"    {line}"] if counts else [line]
            return
        self.lines.append(line)

    def _extern(self, step: ExternKernel, epilogue: Launch | None) -> str:
        """Print one call; gives the module-level name of what is called."""
        if step.target == FUSED_MATMUL:
            return self._fused_matmul(step, epilogue)
        linear = self._linear_arguments(step)
        function = self._operator("torch.nn.functional.linear") if linear else self._function(step)
        arguments = linear or [self._argument(a) for a in step.args]
        arguments += [f"{name}={self._argument(value)}" for name, value in step.kwargs]
        if step.overwrites:
            self.lines.append(f"{function}({', '.join(arguments)})")
            return function
        if step.out_argument:
            buffer = step.outputs[0]
            assert buffer is not None
            self._obtain(buffer.name)
            self.lines.append(f"{function}({', '.join([*arguments, f'out={self.view(whole(buffer))}'])})")
            return function
        targets = ["_" if b is None else self._variables[b.name] for b in step.outputs]
        taken = f"{_targets(targets) if step.unpack else targets[0]} = " if any(step.outputs) else ""
        self.lines.append(f"{taken}{function}({', '.join(arguments)})")
        for buffer in step.outputs:
            if buffer is not None:
                self._check_layout(buffer)
        return function

    def _linear_arguments(self, step: ExternKernel) -> list[str]:
        """Input, weight and bias of a product by a transposed matrix, which one function takes as it lies; else nothing."""
        if step.target not in LINEAR_PRODUCTS or not step.out_argument or step.kwargs:
            return []
        *bias, rows, weight = step.args
        variable = self._variables[weight.buffer]
        if self.view(weight) != f"{variable}.t()" or any(len(view.sizes) != 1 for view in bias):
            return []
        return [self.view(rows), variable, *map(self.view, bias)]

    def _fused_matmul(self, step: ExternKernel, epilogue: Launch | None) -> str:
        """Our product writes into memory of the program's; what its epilogue reads follows the operands."""
        made = [buffer for buffer in step.outputs if buffer is not None]
        for buffer in made:
            self._obtain(buffer.name)
        out = whole(made[0])
        pointers: tuple[str, ...] = ()
        if step.epilogue is not None and epilogue is not None:
            axes = step.epilogue.axes[-len(step.args[1].sizes) :]
            strides = tuple(coefficient_of(step.epilogue.store, axis) or ZERO for axis in axes)
            sizes = tuple(axis.size for axis in axes)
            out = BufferView(made[0].name, sizes, strides, ZERO, made[0].dtype)
            pointers = epilogue.pointers
        arguments = [*map(self._argument, (out, *step.args)), *(self._variables[name] for name in pointers)]
        arguments += [f"{name}={self._argument(value)}" for name, value in step.kwargs]
        arguments += [f"epilogue={epilogue.kernel}"] if epilogue is not None else []
        function = self._function(step, out, epilogue and epilogue.kernel)
        self.lines.append(f"{function}({', '.join(arguments)})")
        return function

    def _check_layout(self, buffer: Buffer) -> None:
        """An operator may lay its result out otherwise than its fake result promised."""
        variable = self._variables[buffer.name]
        allocation = self._schedule.memory.allocations.get(buffer.name)
        if allocation is None or allocation.last_step > allocation.first_step:  # else nobody reads it
            self.helpers.add("with_layout")
            layout = f"{sizes_text(buffer.sizes)}, {sizes_text(buffer.strides)}"
            self.lines.append(f"{variable} = with_layout({variable}, {layout})")

    def _function(self, step: ExternKernel, *more: Any) -> str:
        """The module-level name of what an extern kernel calls; `more` are arguments that are not the step's own."""
        if step.target.startswith("kernels."):
            return self._wrapper(step.target.removeprefix("kernels."), (step.args, step.kwargs, more))
        return self._operator(BOUND_FUNCTIONS.get(step.target, step.target))

    def _wrapper(self, name: str, arguments: Any) -> str:
        """The wrapper of a hand-written kernel; where sizes are fixed, a name for each choice of layouts and options.

        What is called by such a name looks at nothing but addresses from the second call on.
        """
        self.imports.add(name)
        if not self._static:
            return name
        site = name, fixed_form(arguments)
        if site not in self.fixed:
            own = self.fixed[site] = self._namer.fresh(name)
            if own != name:
                self.operators[own] = f"{name}  # for other sizes or options"
        return self.fixed[site]

    def _operator(self, target: str) -> str:
        """The module-level name of a function of PyTorch."""
        for name, known in self.operators.items():
            if known == target:
                return name
        parts = target.removeprefix("torch.").removeprefix("nn.").removeprefix("ops.").split(".")
        wish = "_".join(parts[:-1] if parts[-1] == "default" else parts)
        name = self._namer.fresh(identifier(wish))
        self.operators[name] = target
        return name

    def _argument(self, value: Any) -> str:
        match value:
            case BufferView():
                return self.view(value)
            case Index():
                return host(value).text
            case list():
                return f"[{', '.join(self._argument(v) for v in value)}]"
            case tuple():
                return tuple_text([self._argument(v) for v in value])
            case torch.device():
                return f'torch.device("{value}")'
            case float() if value != value or value in (float("inf"), -float("inf")):
                return f'float("{value}")'
            case complex():
                return f"complex({self._argument(value.real)}, {self._argument(value.imag)})"
            case None | bool() | int() | float() | str() | torch.dtype() | torch.layout():
                return repr(value)
            case torch.memory_format():
                return str(value)
        raise Unsupported("generated code", f"an extern kernel's argument of type {type(value).__name__} has no text")

    def view(self, view: BufferView) -> str:
        """The tensor expression of a strided view."""
        source = variable = self._variables[view.buffer]
        if view.dtype != self._graph.buffers[view.buffer].dtype:
            source = f"{variable}.view({view.dtype})"
        sizes, strides = self._layouts[variable]
        if (view.sizes, view.strides, view.offset) == (sizes, strides, ZERO):
            return source
        if (view.sizes, view.strides, view.offset) == (sizes[::-1], strides[::-1], ZERO) and len(sizes) == 2:
            return f"{source}.t()"
        self.helpers.add("reinterpret")
        arguments = [source, sizes_text(view.sizes), sizes_text(view.strides)]
        arguments += [host(view.offset).text] if view.offset.constant != 0 else []
        return f"reinterpret({', '.join(arguments)})"


def whole(buffer: Buffer) -> BufferView:
    """A buffer as a view of itself."""
    return BufferView(buffer.name, buffer.sizes, buffer.strides, ZERO, buffer.dtype)


def asked_layouts(schedule: Schedule) -> dict[str, Layout]:
    """In which layout to hold each buffer that calls or the caller see: the one most asked for that fills the same memory.

    Kernels take addresses: what only they read may be held in any layout.
    """
    asked: dict[str, collections.Counter[Layout]] = collections.defaultdict(collections.Counter)
    externs = [step for step in schedule.steps if isinstance(step, ExternKernel)]
    written = [whole(buffer) for step in externs for buffer in step.outputs if buffer is not None]
    read = [(step.args, step.kwargs) for step in externs]
    for view in (*written, *views_in((read, schedule.graph.outputs))):
        own, asking = schedule.graph.buffers[view.buffer], (view.sizes, view.strides)
        memory = extent(*asking)
        if view.offset == ZERO and (asking == (own.sizes, own.strides) or memory and memory == extent(own.sizes, own.strides)):
            asked[view.buffer][asking] += 1
    return {name: max(layouts, key=lambda layout: (layouts[layout], rows_first(layout))) for name, layouts in asked.items()}


def rows_first(layout: Layout) -> bool:
    """Whether no dimension has larger steps than one before it, at the hinted sizes."""
    steps = [hint(stride) for stride in layout[1]]
    return steps == sorted(steps, reverse=True)


def fixed_form(value: Any) -> object:
    """Arguments without what may change between calls of a program of fixed sizes: which memory a tensor lies in."""
    if isinstance(value, BufferView):
        return value.sizes, value.strides, value.dtype
    return tuple(map(fixed_form, value)) if isinstance(value, (tuple, list)) else repr(value)


def _undominated(bounds: set[Index]) -> list[Index]:
    """The expressions that no other is surely at least as large as."""
    kept: list[Index] = []
    for bound in sorted(bounds, key=lambda bound: (-hint(bound), str(bound))):
        if not any(is_nonnegative(other - bound) for other in kept):
            kept.append(bound)
    return kept


def _targets(names: list[str]) -> str:
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)


def sizes_text(sizes: tuple[Index, ...]) -> str:
    """A tuple of sizes as Python text."""
    return tuple_text([host(size).text for size in sizes])


def tuple_text(items: list[str]) -> str:
    """A tuple as Python text."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _single_symbol(index: Index) -> Symbol | None:
    found = symbols_of(index)
    symbol = next(iter(found), None)
    return symbol if symbol is not None and index is as_index(symbol) else None
