"""Batches: independent kernels with one body over other buffers and sizes become one launch.

That is what an optimizer's step is made of: one update, one sum of squares per parameter. The programs of a batch share
its code; each finds by its number which member's buffers it works on. This module must not change what a kernel computes.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from minicompile.ir.expr import IndexValue, Load, Random, walk
from minicompile.ir.index import Atom, Axis, Index, Symbol, as_index, atoms, hint
from minicompile.ir.loops import Buffer, ExternKernel, Loop, Scan, numbered
from minicompile.ir.schedule import DeviceProperties, KernelGroup
from minicompile.scheduling.dependencies import Order, find_dependences, is_scatter
from minicompile.scheduling.tiling import TileFacts, plan_tile

MAXIMUM_POINTERS = 112
MAXIMUM_DISTANCE = 48
SMALL_RESULT = 1 << 16
SHORT_ROW = 1024
ANY_SIZE = Symbol("size", 16, 1)
Steps = tuple[KernelGroup | ExternKernel, ...]


def batch_steps(steps: Steps, buffers: Mapping[str, Buffer], device: DeviceProperties) -> Steps:
    """The steps with batches in place of kernels that differ only in their buffers and sizes, in a valid order."""
    if device.kind == "cpu" or len(steps) < 2:
        return steps
    order = Order(find_dependences(steps))
    open_batches: dict[object, list[int]] = {}
    for position, step in enumerate(steps):
        key = _body(step, buffers)
        if key is None:
            continue
        members = open_batches.setdefault(key, [])
        first = members[0] if members else position
        free = not (order.before[position] | order.after[position]) & order.masks[first]
        if not members or not free or not _has_room(steps, [*members, position]):
            open_batches[key] = [position]
            continue
        members.append(position)
        order.join(first, position)
    return tuple(_batch([steps[i] for i in members], buffers, device) for members in order.groups())


def _has_room(steps: Steps, members: Sequence[int]) -> bool:
    """Whether one launch can take the pointers, and no new tensor has to live for long."""
    groups = [group for group in (steps[i] for i in members) if isinstance(group, KernelGroup)]
    pointers = {name for group in groups for name in (*group.reads, *group.writes)}
    lasting = any(g.bytes_written > SMALL_RESULT and len(g.inherits) < len(g.writes) for g in groups)
    shared = sum(len(group.inherits) for group in groups)
    return len(pointers) - shared <= MAXIMUM_POINTERS and not (lasting and members[-1] - members[0] > MAXIMUM_DISTANCE)


def _body(step: KernelGroup | ExternKernel, buffers: Mapping[str, Buffer]) -> object | None:
    """What members of a batch have in common; `None` for a step that belongs in none."""
    if not isinstance(step, KernelGroup) or step.tile.strategy not in ("pointwise", "persistent"):
        return None
    axes = tuple(tile.axis for tile in step.tile.axes)
    if len(step.tile.parallel) != 1 or not all(axis.size.constant for axis in axes):
        return None
    if any(is_scatter(loop) or isinstance(loop.fold, Scan) or _mentions_sizes(loop) for loop in step.loops):
        return None
    anywhere: dict[Atom, Index] = {axis: as_index(Axis(axis.name, as_index(ANY_SIZE))) for axis in axes}
    loops, names = numbered(step.loops, anywhere)
    numbers = {name: number for number, name in enumerate(names)}
    bodies = []
    for loop, moved in zip(step.loops, loops, strict=True):
        old = None if loop.overwrites is None else numbers.get(loop.overwrites, len(names))
        kind = loop.fold.kind if loop.fold else len(loop.axes)
        bodies.append((moved.value, moved.store, moved.buffer, old, kind, loop.buffer in step.stored))
    dtypes = tuple(buffers[name].dtype for name in names)
    row = step.tile.reduction
    blocks = None if row is None else (step.tile.axes[0].block, max(row.block, SHORT_ROW))
    return tuple(bodies), dtypes, blocks, tuple(hint(axis.size) % 16 == 0 for axis in axes)


def _mentions_sizes(loop: Loop) -> bool:
    """Whether a place or a value is computed from a size that varies."""
    indices = [value.index for value in walk(loop.value) if isinstance(value, (Load, IndexValue, Random))]
    return any(isinstance(atom, Symbol) for index in (loop.store, *indices) for atom in atoms(index))


def _batch(
    members: list[KernelGroup | ExternKernel], buffers: Mapping[str, Buffer], device: DeviceProperties
) -> KernelGroup | ExternKernel:
    """The members as one step, with tiles that suit all of them together."""
    groups = [member for member in members if isinstance(member, KernelGroup)]
    if len(groups) < 2:
        return members[0]
    plan = max((group.tile for group in groups), key=lambda tile: (tile.axes[-1].block, tile.num_warps))
    if plan.strategy == "pointwise":
        total = Axis("x", sum(hint(group.tile.axes[0].axis.size) for group in groups))
        itemsize = max(buffers[name].dtype.itemsize for name in (*groups[0].reads, *groups[0].writes))
        plan = plan_tile(TileFacts((total,), None, False, itemsize, 0), device)
    blocks = [tile.block for tile in plan.axes]
    for number, group in enumerate(groups):
        tiles = [dataclasses.replace(t, block=block) for t, block in zip(group.tile.axes, blocks, strict=True)]
        groups[number] = dataclasses.replace(group, tile=dataclasses.replace(plan, axes=tuple(tiles)))
    return dataclasses.replace(
        groups[0],
        loops=tuple(loop for group in groups for loop in group.loops),
        stored=frozenset[str]().union(*(group.stored for group in groups)),
        batch=tuple(groups),
        bytes_read=sum(group.bytes_read for group in groups),
        bytes_written=sum(group.bytes_written for group in groups),
        flops=sum(group.flops for group in groups),
    )
