"""The epilogue of a matrix product as a function of a tile, which `minicompile.kernels.matmul` calls before it stores.

The rows and columns of the tile come as blocks that broadcast to it in either order (small products are computed
transposed), so nothing here may name a block's shape. This module must not decide what an epilogue is.
"""

import dataclasses

from minicompile.codegen.expression_writer import ExpressionWriter, Value
from minicompile.codegen.geometry import Geometry
from minicompile.codegen.group_values import folded_integers, without_final_rounding
from minicompile.codegen.kernel_text import KernelContext
from minicompile.codegen.naming import Namer, origin_word
from minicompile.codegen.render import render
from minicompile.codegen.triton_ops import rounded
from minicompile.codegen.triton_text import LOW_PRECISION, Text, call
from minicompile.ir.expr import Expr, Load, cast, rewrite, walk
from minicompile.ir.index import Axis, Index, as_index
from minicompile.ir.loops import PRODUCT, ExternKernel
from minicompile.ir.schedule import TileAxis, TilePlan


@dataclasses.dataclass(frozen=True)
class EpilogueText:
    """The function's source, the buffers to pass as its `extra`, and the device functions that it calls."""

    name: str
    text: str
    pointers: tuple[str, ...]
    functions: frozenset[str]


class TileGeometry(Geometry):
    """The axes of a product: every tile may reach over the end of the result."""

    def is_masked(self, axis: Axis) -> bool:
        """Rows and columns are, batches are not."""
        return axis in self.live


class EpilogueWriter:
    """Prints epilogues; equal ones of several products share a function."""

    def __init__(self, context: KernelContext, namer: Namer) -> None:
        self._context, self._namer = context, namer
        self._written: dict[object, EpilogueText] = {}

    def write(self, step: ExternKernel) -> EpilogueText:
        """The function for one product."""
        loop = step.epilogue
        assert loop is not None
        value = cast(loop.value, self._context.buffers[loop.buffer].dtype)
        order = list(dict.fromkeys(e.buffer for e in walk(value) if isinstance(e, Load) and e.buffer != PRODUCT))
        order += [b.name for b in step.outputs[1:] if b is not None]
        numbers = {name: f"buffer{number}" for number, name in enumerate(order)} | {PRODUCT: PRODUCT}
        renamed = rewrite(value, on_load=lambda load: Load(numbers[load.buffer], load.index, load.dtype))
        key = (renamed, loop.axes, len(order), len(step.outputs))
        if key not in self._written:
            words = "_".join(dict.fromkeys(origin_word(origin) for origin in loop.origins[-2:]))
            name = self._namer.fresh(f"{words}_epilogue")
            self._written[key] = self._print(name, step, value, order)
        return dataclasses.replace(self._written[key], pointers=tuple(order))

    @property
    def written(self) -> list[EpilogueText]:
        """All functions, in order."""
        return list(self._written.values())

    def _print(self, name: str, step: ExternKernel, value: Expr, order: list[str]) -> EpilogueText:
        context, loop = self._context, step.epilogue
        assert loop is not None
        batch, row, col = loop.axes
        tiles = (TileAxis(batch, 1, "parallel"), TileAxis(row, 2, "parallel"), TileAxis(col, 2, "parallel"))
        geometry = TileGeometry(TilePlan(tiles, "pointwise", 4, 1), False)
        namer = Namer(["product", "extra", "in_range", *geometry.names()])
        pointers = {buffer: namer.fresh(f"{context.names[buffer]}_ptr") for buffer in order}
        writer = ExpressionWriter(geometry, pointers, context.round_each)
        writer.namer = namer
        value = rewrite(value, on_each=folded_integers)
        leaf = next(e for e in walk(value) if isinstance(e, Load) and e.buffer == PRODUCT)
        given = Text("product")
        if context.round_each and leaf.dtype in LOW_PRECISION:
            given = rounded(given, leaf.dtype)
        axes = frozenset({row, col})
        writer.known_axes[leaf], writer.known[leaf] = axes, Value(given, axes, True, exact=context.round_each)
        writer.count([value], [])
        result = writer.value(without_final_rounding(value, context.buffers[loop.buffer].dtype, context.round_each))
        lines = writer.outer.lines
        for made in step.outputs[1:]:
            assert made is not None
            offset = writer.offset(_place(made.strides, loop.axes))
            lines.append(call("tl.store", f"{pointers[made.name]} + {offset.text}", "product", "mask=in_range").text)
        masks = [geometry.mask_line(axis) for axis in (row, col) if axis in writer.masked]
        unpacked = [f"{pointer} = extra[{number}]" for number, pointer in enumerate(pointers.values())]
        parameters = "product, batch_index, row_index, col_index, in_range, extra"
        text = render(
            "function", name=name, parameters=parameters, lines=[*unpacked, *masks, *lines, f"return {result.text}"])
        return EpilogueText(name, text.strip(), tuple(order), frozenset(writer.functions))


def _place(strides: tuple[Index, ...], axes: tuple[Axis, ...]) -> Index:
    """Where an element of the product lies in memory."""
    return sum((as_index(a) * s for a, s in zip(axes[-len(strides) :], strides, strict=True)), as_index(0))
