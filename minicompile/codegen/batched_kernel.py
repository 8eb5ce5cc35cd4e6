"""Kernels that do several independent pointwise kernels of one body: each program finds its member by its number.

The body is printed once, over the pointers and the size that the choice of the member has set. This module must not decide
what belongs together.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import torch

from minicompile.codegen.geometry import Geometry, plan_for_device
from minicompile.codegen.kernel_text import KernelContext, KernelText
from minicompile.codegen.naming import Namer
from minicompile.codegen.triton_kernel import KernelWriter
from minicompile.ir.expr import IndexValue, rewrite
from minicompile.ir.index import Axis, Index, Symbol, as_index, hint
from minicompile.ir.loops import Loop
from minicompile.ir.schedule import KernelGroup

SIZE = Symbol("size", 1 << 20, 1)


def write_batched_kernel(group: KernelGroup, name: str, context: KernelContext) -> KernelText:
    """The text of the kernel for all members of `group`."""
    members = group.batch
    model = _of_any_size(members[0])
    geometry = Geometry(plan_for_device(model.tile, context.device), _is_wide(group), "block")
    alike = {row[0]: row for row in zip(*map(_in_order, members), strict=True)}
    names = {buffer: _common_name([context.names[other] for other in row]) for buffer, row in alike.items()}
    inner = dataclasses.replace(context, names={**context.names, **names})
    text = KernelWriter(model, name, inner, geometry).write()
    namer = Namer([*text.parameters, "block", "program", "size"])
    parameters: list[str] = []
    pointers: list[str] = []
    chosen_names: list[str] = []
    chosen: list[list[str]] = [[] for _ in members]
    for local, pointer in zip(text.parameters, text.pointers, strict=False):
        if len(set(alike[pointer])) == 1:
            parameters.append(local)
            pointers.append(pointer)
            continue
        chosen_names.append(local)
        for number, buffer in enumerate(alike[pointer]):
            parameters.append(namer.fresh(f"{local.removesuffix('_ptr')}_{number}_ptr"))
            pointers.append(buffer)
            chosen[number].append(parameters[-1])
    block = geometry.plan.axes[0].block
    programs = [-(-hint(member.tile.axes[0].axis.size) // block) for member in members]
    return dataclasses.replace(
        text,
        parameters=tuple(parameters),
        pointers=tuple(pointers),
        symbols=(),
        setup=(*_choice(members, programs, chosen_names, chosen), *text.setup),
        grid=(str(sum(programs)), "1", "1"),
    )


def _choice(
    members: tuple[KernelGroup, ...], programs: list[int], names: list[str], chosen: list[list[str]]
) -> Iterator[str]:
    """The lines that set the pointers, the size and the number of the block within its member."""
    yield "program = tl.program_id(0)"
    first = 0
    for number, member in enumerate(members):
        end = first + programs[number]
        yield "else:" if number == len(members) - 1 else f"{'elif' if number else 'if'} program < {end}:"
        yield f"    block, size = program{f' - {first}' if first else ''}, {hint(member.tile.axes[0].axis.size)}"
        yield f"    {', '.join(names)} = {', '.join(chosen[number])}"
        first = end


def _common_name(names: list[str]) -> str:
    """What the names have in common, without numbers at the end."""
    return os.path.commonprefix(names).rstrip("_0123456789") or names[0]


def _in_order(group: KernelGroup) -> dict[str, None]:
    """The buffers of a kernel in order of appearance."""
    found: dict[str, None] = {}
    for loop in group.loops:
        found.update(dict.fromkeys([load.buffer for load in loop.loads] + [loop.buffer]))
    return found


def _of_any_size(member: KernelGroup) -> KernelGroup:
    """The kernel with a size that is known only at run time."""
    tile = member.tile.axes[0]
    axis = Axis(tile.axis.name, as_index(SIZE))

    def moved(index: Index) -> Index:
        probe = rewrite(IndexValue(index, torch.int64), {tile.axis: as_index(axis)})
        assert isinstance(probe, IndexValue)
        return probe.index

    def resized(loop: Loop) -> Loop:
        axes = tuple(axis if a is tile.axis else a for a in loop.axes)
        value = rewrite(loop.value, {tile.axis: as_index(axis)})
        return dataclasses.replace(loop, axes=axes, value=value, store=moved(loop.store))

    plan = dataclasses.replace(member.tile, axes=(dataclasses.replace(tile, axis=axis),))
    return dataclasses.replace(member, loops=tuple(map(resized, member.loops)), tile=plan)


def _is_wide(group: KernelGroup) -> bool:
    return any(hint(member.tile.axes[0].axis.size) >= 1 << 31 for member in group.batch)
