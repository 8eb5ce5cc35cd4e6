"""Kernels that do several independent kernels of one body: each program finds its member by its number.

The body is printed once, over the pointers and sizes that the choice of the member has set. This module must not decide
what belongs together.
"""

import dataclasses
import os
import re
from collections.abc import Iterator

from minicompile.codegen.geometry import Geometry, plan_for_device
from minicompile.codegen.group_values import GroupValues
from minicompile.codegen.kernel_text import KernelContext, KernelText
from minicompile.codegen.naming import Namer
from minicompile.codegen.triton_kernel import KernelWriter
from minicompile.ir.index import Atom, Axis, Index, Symbol, as_index, hint
from minicompile.ir.loops import Loop, Reduction, rewrite_loop
from minicompile.ir.program import KernelArgument
from minicompile.ir.schedule import KernelGroup

SIZES = ("size", "length")
"""Names for the extent of the parallel and of the folded axis."""


def write_batched_kernel(group: KernelGroup, name: str, context: KernelContext) -> KernelText:
    """The text of the kernel for all members of `group`."""
    members = group.batch
    model = _of_any_size(members)
    wide = any(GroupValues(member, context.buffers).needs_wide_indices() for member in group.batch)
    geometry = Geometry(plan_for_device(model.tile, context.device), wide, "block")
    alike = {row[0]: row for row in zip(*map(_in_order, members), strict=True)}
    common = Namer(["block", "program", *SIZES])
    names = {
        buffer: common.fresh(_common_name([context.names[other] for other in row])) for buffer, row in alike.items()
    }
    inner = dataclasses.replace(context, names={**context.names, **names})
    extents = {buffer: extent for buffer, row in alike.items() if (extent := _least_extent(row, context)) is not None}
    text = KernelWriter(model, name, inner, geometry, extents).write()
    namer = Namer([*(argument.name for argument in text.arguments), *SIZES, "block", "program"])
    arguments: list[KernelArgument] = []
    pointers: list[str] = []
    chosen_names: list[str] = []
    chosen: list[list[str]] = [[] for _ in members]
    for argument, pointer in zip(text.arguments, text.pointers, strict=False):
        if len(set(alike[pointer])) == 1:
            arguments.append(argument)
            pointers.append(pointer)
            continue
        chosen_names.append(argument.name)
        for number, buffer in enumerate(alike[pointer]):
            chosen[number].append(namer.fresh(f"{argument.name.removesuffix('_ptr')}_{number}_ptr"))
            arguments.append(dataclasses.replace(argument, name=chosen[number][-1]))
            pointers.append(buffer)
    block = geometry.plan.axes[0].block
    programs = [-(-hint(member.tile.axes[0].axis.size) // block) for member in members]
    varying = {argument.name for argument in text.arguments if argument.dtype is None}
    sizes = [[hint(tile.axis.size) for tile, name in zip(member.tile.axes, SIZES, strict=False) if name in varying]
             for member in members]  # fmt: skip
    targets = [name for name in SIZES if name in varying] + chosen_names
    values = [[*map(str, own), *names] for own, names in zip(sizes, chosen, strict=True)]
    return dataclasses.replace(
        text,
        arguments=tuple(arguments),
        pointers=tuple(pointers),
        setup=(*_choice(programs, targets, values, any("block" in line for line in text.setup)), *text.setup),
        grid=(str(sum(programs)), "1", "1"),
    )


def _choice(programs: list[int], targets: list[str], values: list[list[str]], in_blocks: bool) -> Iterator[str]:
    """The lines that set the member's sizes and pointers, and `in_blocks` the number of the block within it."""
    yield "program = tl.program_id(0)"
    first = 0
    for number, (count, own) in enumerate(zip(programs, values, strict=True)):
        end = first + count
        yield "else:" if end == sum(programs) else f"{'elif' if number else 'if'} program < {end}:"
        if in_blocks:
            yield f"    block = program - {first}" if first else "    block = program"
        yield f"    {', '.join(targets)} = {', '.join(own)}"
        first = end


def _least_extent(row: tuple[str, ...], context: KernelContext) -> Index | None:
    """The elements of memory that each of some buffers has at least, if they are known."""
    extents = [context.buffers[buffer].extent.constant for buffer in row]
    return as_index(min(filter(None, extents))) if all(extents) else None


def _common_name(names: list[str]) -> str:
    """What the names have in common, without numbers at the end."""
    return re.sub(r"_?\d*$", "", os.path.commonprefix(names)) or names[0]


def _in_order(group: KernelGroup) -> dict[str, None]:
    """The buffers of a kernel in order of appearance."""
    found: dict[str, None] = {}
    for loop in group.loops:
        found.update(dict.fromkeys([load.buffer for load in loop.loads] + [loop.buffer]))
    return found


def _of_any_size(members: tuple[KernelGroup, ...]) -> KernelGroup:
    """The first kernel, with sizes that are known only at run time where the members' differ."""
    member = members[0]
    tiles = member.tile.axes
    moved = {tile.axis: tile.axis for tile in tiles}
    for number, (tile, name) in enumerate(zip(tiles, SIZES, strict=False)):
        if any(other.tile.axes[number].axis is not tile.axis for other in members):
            moved[tile.axis] = Axis(tile.axis.name, as_index(Symbol(name, hint(tile.axis.size), 1)))
    changes: dict[Atom, Index] = {old: as_index(new) for old, new in moved.items()}

    def resized(loop: Loop) -> Loop:
        fold = loop.fold
        if isinstance(fold, Reduction):
            fold = Reduction(fold.kind, tuple(moved[axis] for axis in fold.axes))
        axes = tuple(moved[axis] for axis in loop.axes)
        return dataclasses.replace(rewrite_loop(loop, changes), axes=axes, fold=fold)

    plan = dataclasses.replace(member.tile, axes=tuple(dataclasses.replace(t, axis=moved[t.axis]) for t in tiles))
    return dataclasses.replace(member, loops=tuple(map(resized, member.loops)), tile=plan)
