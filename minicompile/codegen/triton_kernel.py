"""One kernel group to the text of one Triton kernel.

Pointwise and persistent kernels are straight lines, printed here; `looped_kernel` prints the others. Stores come last
in their scope, so that in-place kernels read before they write. This module must not choose tiles or order.
"""

from collections.abc import Mapping

from minicompile.codegen.expression_writer import ExpressionWriter, Value, index_axes
from minicompile.codegen.folds import FoldWriter, fold_of
from minicompile.codegen.geometry import Geometry, plan_for_device
from minicompile.codegen.group_values import GroupValues, without_final_rounding
from minicompile.codegen.kernel_text import KernelContext, KernelText
from minicompile.codegen.naming import Namer
from minicompile.codegen.triton_text import Text, call, compute_dtype, stored_literal
from minicompile.ir.expr import Constant, Load, Masked, indirect_values, walk
from minicompile.ir.index import Axis, Index
from minicompile.ir.loops import Loop, Reduction, Scan
from minicompile.ir.program import KernelArgument
from minicompile.ir.schedule import KernelGroup

LOADED_BYTES_A_THREAD = 384
"""Of a row and what it is combined with. A layer norm of 16384 x 8192, fp32, gains 3 % by it on an H200."""


class KernelWriter:
    """Prints the kernel of one group; this base class prints straight-line kernels.

    `geometry` and `extents`, the elements of each buffer's memory, are the group's own unless it stands for several.
    """

    def __init__(
        self, group: KernelGroup, name: str, context: KernelContext, geometry: Geometry | None = None,
        extents: Mapping[str, Index] | None = None,
    ) -> None:  # fmt: skip
        self.group, self.name, self.context = group, name, context
        self.values = GroupValues(group, context.buffers)
        plan = plan_for_device(group.tile, context.device)
        self.limits: set[tuple[Index, int]] = set()
        self.row = ""
        if geometry is None:
            limits = self.values.size_limits()
            geometry = Geometry(plan, self.values.needs_wide_indices() or (context.any_size and bool(limits)))
            self.limits = self.values.row_limit() | (set() if geometry.wide else limits)
            self.row = geometry.varying_row()
        self.geometry = geometry
        self.pointers = self.values.pointers()
        namer = Namer()
        self.parameters = {buffer: namer.fresh(f"{context.names[buffer]}_ptr") for buffer in self.pointers}
        for loop in group.loops:
            if loop.overwrites in self.parameters and loop.buffer in self.pointers:
                self.pointers.remove(loop.buffer)
                self.parameters[loop.buffer] = self.parameters[loop.overwrites]
        if extents is None:
            extents = {name: context.buffers[name].extent for name in self.parameters}
        self.writer = ExpressionWriter(self.geometry, self.parameters, context.round_each, extents)
        self._learn()
        self.folds = FoldWriter(self.writer)

    def _learn(self) -> None:
        """Tell the expression writer of fold results, names and use counts before anything is printed."""
        writer, values = self.writer, self.values
        for loop in self.group.loops:
            axes = writer.axes_of(values.values[loop.buffer]) if loop.fold else frozenset()
            if isinstance(loop.fold, Scan):
                writer.known_axes[values.leaf(loop)] = axes | {loop.fold.axis}
            elif isinstance(loop.fold, Reduction):
                writer.known_axes[values.leaf(loop)] = axes - set(loop.fold.axes)
            else:
                writer.names.setdefault(values.values[loop.buffer], self.context.names[loop.buffer])
        writer.count(values.roots(), [loop.store for loop in self.group.loops if loop.buffer in self.group.stored])

    def write(self) -> KernelText:
        """Print everything, then the lines that define the positions and masks that were used."""
        body = self.print_body()
        writer, geometry = self.writer, self.geometry
        symbols = {symbol.name: symbol for symbol in writer.symbols | geometry.symbols()}
        pointers = [KernelArgument(self.parameters[name], self.context.buffers[name].dtype) for name in self.pointers]
        sizes = [KernelArgument(name, None, False, geometry.wide, symbols[name].hint) for name in sorted(symbols)]
        return KernelText(
            name=self.name,
            arguments=(*pointers, *sizes),
            pointers=tuple(self.pointers),
            constants=geometry.constants(),
            setup=tuple(geometry.setup(writer.used, writer.masked)),
            body=tuple(body),
            functions=tuple(sorted(writer.functions)),
            grid=geometry.grid(),
            limits=frozenset(self.limits) if symbols else frozenset(),
            row=self.row,
        )

    def print_body(self) -> list[str]:
        """The kernel's statements."""
        for load in self.loads_ahead():
            self.writer.value(load)
        for loop in self.group.loops:
            if loop.fold is not None and self.values.first_fold(loop) is loop:
                self.fold_block(loop)
            if loop.buffer in self.group.stored:
                self.store(loop)
        return self.writer.outer.lines + self.writer.outer.tail

    def loads_ahead(self) -> list[Load]:
        """What every row is combined with, loaded beside the row and not behind its folds, where registers hold all of it."""
        plan, axes_of = self.geometry.plan, self.writer.axes_of
        row = plan.reduction
        if plan.strategy != "persistent" or row is None or any(tile.block > 1 for tile in plan.axes if tile is not row):
            return []
        roots = self.values.roots()
        along = {load for root in roots for load in self.values.memory_loads(root) if row.axis in axes_of(load)}
        if sum(max(load.dtype.itemsize, 4) for load in along) * row.block > LOADED_BYTES_A_THREAD * 32 * plan.num_warps:
            return []
        always = [root for root in roots if not any(isinstance(part, Masked) for part in walk(root))]
        loads = [load for root in always for load in self.values.memory_loads(root) if not indirect_values(load.index)]
        return [load for load in loads if axes_of(load) == {row.axis}]

    def fold_block(self, loop: Loop) -> None:
        """A reduction or scan over an axis that lies in one block."""
        fold = fold_of(loop)
        lanes = self.writer.shortened("lanes", self.folds.lanes(fold, self.values.values[loop.buffer]))
        if isinstance(loop.fold, Scan):
            self.know(loop, self.folds.scanned(fold, lanes.text))
        elif fold.finds_place:
            here = self.writer.shortened("here", self.folds.places(fold, lanes.axes), 30)
            self.know_place(loop, self.folds.whole(fold, lanes.text, here.text))
        else:
            self.know(loop, self.folds.whole(fold, lanes.text))

    def know(self, loop: Loop, text: Text) -> None:
        """Make the result of a fold available to what reads its buffer."""
        leaf = self.values.leaf(loop)
        result = self.folds.result(fold_of(loop), text, leaf.dtype, self.context.round_each)
        block = len(self.geometry.live) > 1 or isinstance(loop.fold, Scan)
        value = Value(result, self.writer.known_axes[leaf], block, exact=False)
        self.writer.known[leaf] = self.writer.bind(self.context.names[loop.buffer], value)

    def know_place(self, loop: Loop, whole: Text) -> None:
        """The same for a fold that gives a value and its place."""
        place = self.writer.namer.fresh("place")
        self.writer.scope_for(self.writer.known_axes[self.values.leaf(loop)]).lines.append(f"_, {place} = {whole}")
        self.know(loop, Text(place))

    def store(self, loop: Loop) -> None:
        """Queue the store of a loop's result at the end of its scope."""
        writer, dtype = self.writer, self.context.buffers[loop.buffer].dtype
        expression = without_final_rounding(self.values.result(loop), dtype, self.context.round_each)
        value = writer.value(expression)
        text = stored_literal(expression.value, compute_dtype(dtype)) if isinstance(expression, Constant) else value.text
        axes = frozenset(self.loop_axes(loop))
        mask = writer.mask(axes, () if loop.condition is None else (self.values.resolve(loop.condition),))
        offset = writer.offset(self.values.resolve_index(loop.store))
        wanted = value.axes.union(mask.axes if mask else (), axes if loop.accumulate else ())
        block = value.block or (mask is not None and mask.block)
        address, _ = writer.address(self.parameters[loop.buffer], offset, wanted, block)
        arguments: list[Text | str] = [address, text, *([f"mask={mask.text}"] if mask else [])]
        if loop.accumulate:
            line = call("tl.atomic_add", *arguments, 'sem="relaxed"')
        else:
            line = call("tl.store", *arguments)
        writer.scope_for(wanted | offset.axes).tail.append(line.text)

    def loop_axes(self, loop: Loop) -> set[Axis]:
        """The axes along which a loop stores."""
        axes = set(loop.axes) | index_axes(loop.store)
        if isinstance(loop.fold, Scan):
            axes.add(loop.fold.axis)
        return axes & {tile.axis for tile in self.geometry.plan.axes}
