"""Batches: independent pointwise kernels with one body over other buffers and sizes become one launch.

That is what an optimizer's step is made of, one body per parameter. The programs of a batch share its code; each finds by
its number which member's buffers it works on. This module must not change what a kernel computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch

from minicompile.ir.expr import Expr, IndexValue, Load, rewrite
from minicompile.ir.index import Axis, Symbol, as_index, hint
from minicompile.ir.loops import Buffer, ExternKernel
from minicompile.ir.schedule import DeviceProperties, KernelGroup
from minicompile.scheduling.dependencies import bits, find_dependences, is_scatter, overwritten, topological
from minicompile.scheduling.tiling import TileFacts, plan_tile

MAXIMUM_POINTERS = 112
MAXIMUM_DISTANCE = 48
ANY_SIZE = Symbol("size", 16, 1)
Steps = tuple[KernelGroup | ExternKernel, ...]


def batch_steps(steps: Steps, buffers: Mapping[str, Buffer], device: DeviceProperties) -> Steps:
    """The steps with batches in place of kernels that differ only in their buffers and sizes, in a valid order."""
    if device.kind == "cpu" or len(steps) < 2:
        return steps
    dependences = find_dependences(steps)
    before, after = dependences.ancestors(), dependences.descendants()
    masks = [1 << position for position in range(len(steps))]
    open_batches: dict[object, list[int]] = {}
    owner = list(range(len(steps)))
    for position, step in enumerate(steps):
        key = _body(step, buffers)
        if key is None:
            continue
        members = open_batches.setdefault(key, [])
        first = members[0] if members else position
        free = not (before[position] | after[position]) & masks[first]
        if not members or not free or not _has_room(steps, [*members, position]):
            open_batches[key] = [position]
            continue
        members.append(position)
        owner[position] = first
        mask = masks[first] | masks[position]
        above, below = before[first] | before[position], after[first] | after[position]
        for member in members:
            masks[member], before[member], after[member] = mask, above, below
        for other in bits(below):
            before[other] |= above | mask
        for other in bits(above):
            after[other] |= below | mask
    order = topological(owner, dependences.predecessors)
    return tuple(_batch([steps[i] for i in members], buffers, device) for members in order)


def _has_room(steps: Steps, members: Sequence[int]) -> bool:
    """Whether one launch can take the pointers, and no new tensor has to live for long."""
    groups = [group for group in (steps[i] for i in members) if isinstance(group, KernelGroup)]
    pointers = {name for group in groups for name in (*group.reads, *group.writes)}
    in_place = all(len(overwritten(group)) == len(group.writes) for group in groups)
    shared = sum(len(overwritten(group)) for group in groups)
    return len(pointers) - shared <= MAXIMUM_POINTERS and (in_place or members[-1] - members[0] <= MAXIMUM_DISTANCE)


def _body(step: KernelGroup | ExternKernel, buffers: Mapping[str, Buffer]) -> object | None:
    """What members of a batch have in common; `None` for a step that belongs in none."""
    if not isinstance(step, KernelGroup) or step.tile.strategy != "pointwise" or len(step.tile.axes) != 1:
        return None
    axis = step.tile.axes[0].axis
    if not axis.size.constant or any(is_scatter(loop) for loop in step.loops):
        return None
    numbers: dict[str, int] = {}
    anywhere = {axis: as_index(Axis(axis.name, as_index(ANY_SIZE)))}

    def renamed(load: Load) -> Expr:
        return Load(str(numbers.setdefault(load.buffer, len(numbers))), load.index, load.dtype)

    bodies = []
    for loop in step.loops:
        value = rewrite(loop.value, anywhere, renamed)  # type: ignore[arg-type]
        place = rewrite(IndexValue(loop.store, torch.int64), anywhere)  # type: ignore[arg-type]
        number = numbers.setdefault(loop.buffer, len(numbers))
        old = None if loop.overwrites is None else numbers.setdefault(loop.overwrites, len(numbers))
        bodies.append((value, place, number, old, loop.axes == (axis,), loop.buffer in step.stored))
    dtypes = tuple(buffers[name].dtype for name in numbers)
    return tuple(bodies), dtypes, hint(axis.size) % 16 == 0


def _batch(
    members: list[KernelGroup | ExternKernel], buffers: Mapping[str, Buffer], device: DeviceProperties
) -> KernelGroup | ExternKernel:
    """The members as one step, with tiles that suit all of them together."""
    groups = [member for member in members if isinstance(member, KernelGroup)]
    if len(groups) < 2:
        return members[0]
    total = Axis("x", sum(hint(group.tile.axes[0].axis.size) for group in groups))
    itemsize = max(buffers[name].dtype.itemsize for name in (*groups[0].reads, *groups[0].writes))
    plan = plan_tile(TileFacts((total,), None, False, itemsize, 0), device)
    tiles = [dataclasses.replace(g.tile.axes[0], block=plan.axes[0].block) for g in groups]
    plans = [dataclasses.replace(plan, axes=(tile,)) for tile in tiles]
    groups = [dataclasses.replace(group, tile=tile) for group, tile in zip(groups, plans, strict=True)]

    def together(size: Callable[[KernelGroup], int]) -> int:
        return sum(map(size, groups))

    return dataclasses.replace(
        groups[0],
        loops=tuple(loop for group in groups for loop in group.loops),
        stored=frozenset[str]().union(*(group.stored for group in groups)),
        batch=tuple(groups),
        bytes_read=together(lambda g: g.bytes_read),
        bytes_written=together(lambda g: g.bytes_written),
        flops=together(lambda g: g.flops),
    )
