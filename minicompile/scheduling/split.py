"""Reductions with too few results to fill the chip become two: partial results over chunks, then the fold of those.

`choose_splits` is the policy, a pure function; the rest is mechanism. This module must not split reductions whose
result is a position (argmax), nor anything for the interpreter, where every program costs the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch

from minicompile.ir.expr import Constant, Expr, IndexValue, Load, Masked, apply, cast, loads, rewrite
from minicompile.ir.index import ONE, Axis, Index, as_index, coefficient_of, product
from minicompile.ir.loops import Buffer, Loop, Operation, Reduction
from minicompile.ir.schedule import DeviceProperties
from minicompile.scheduling.reindexing import AxisMap, flatten, identity, unflatten
from minicompile.scheduling.tiling import COLUMN_BYTES, next_power_of_two
from minicompile.scheduling.traffic import points

WORTH_A_LAUNCH = 1 << 18
PROGRAMS_PER_MULTIPROCESSOR = 4
CHUNK_BYTES = 1 << 15
SPLITTABLE = ("sum", "prod", "max", "min", "any")


def choose_splits(results: int, length: int, itemsize: int, columns: bool, device: DeviceProperties) -> int:
    """Into how many parts each of `results` reductions over `length` elements is cut; 1 leaves it whole.

    `columns`: neighbouring elements belong to different results, so that a program computes several at once.
    """
    if device.kind == "cpu":
        return 1
    width = max(1, min(next_power_of_two(results), COLUMN_BYTES // itemsize)) if columns else 1
    programs = -(-results // width)
    per_program = width * length * itemsize
    if programs >= device.multiprocessors or per_program < WORTH_A_LAUNCH:
        return 1
    wanted = -(-PROGRAMS_PER_MULTIPROCESSOR * device.multiprocessors // programs)
    return min(next_power_of_two(wanted), max(1, per_program // CHUNK_BYTES))


def split_reductions(
    operations: Sequence[Operation], buffers: Mapping[str, Buffer], device: DeviceProperties
) -> tuple[tuple[Operation, ...], dict[str, Buffer]]:
    """The operations with long, few reductions in two stages, and all buffers with those of the partial results."""
    known = dict(buffers)
    result: list[Operation] = []
    for operation in operations:
        splits = _splits(operation, buffers, device) if isinstance(operation, Loop) else 1
        if splits > 1:
            assert isinstance(operation, Loop)
            first, second, partial = _in_two_stages(operation, splits, known)
            known[partial.name] = partial
            result += [first, second]
        else:
            result.append(operation)
    return tuple(result), known


def _splits(loop: Loop, buffers: Mapping[str, Buffer], device: DeviceProperties) -> int:
    """How often to split one loop; 1 for what cannot be split."""
    if not isinstance(loop.fold, Reduction) or loop.fold.kind not in SPLITTABLE or loop.overwrites is not None:
        return 1
    if any(axis.size.constant is None for axis in loop.fold.axes):
        return 1
    read = loads(loop.value)
    itemsize = max((buffers[load.buffer].dtype.itemsize for load in read), default=4)
    columns = _neighbours_are_results(loop, read)
    length = points(loop.fold.axes)
    splits = choose_splits(points(loop.axes), length, itemsize, columns, device)
    return splits if 2 * splits <= length else 1


def _neighbours_are_results(loop: Loop, read: Sequence[Load]) -> bool:
    """Whether the loads that vary with the reduction are contiguous along the axes of the result."""
    votes = 0
    for load in read:
        folded = [coefficient_of(load.index, axis) for axis in loop.reduction_axes]
        if ONE in folded:
            votes -= 1
        elif any(coefficient_of(load.index, axis) is ONE for axis in loop.axes):
            votes += any(stride is None or bool(stride.terms) for stride in folded)
    return votes > 0


def _chunks(axes: tuple[Axis, ...], splits: int) -> tuple[Axis, tuple[Axis, ...], AxisMap, Index | None]:
    """A new axis over about `splits` chunks, the axes inside a chunk, the old axes over these, and, where the last
    chunk is not full, the position that must stay below the number of elements."""
    first, rest = axes[0], axes[1:]
    length, size = points(axes), points((first,))
    for number in range(splits, 2 * splits):
        if size % number == 0 and (size > number or rest):
            part, within = Axis("part", number), Axis("within", size // number)
            place = as_index(part) * within.size + as_index(within)
            inside = (within, *rest) if size > number else rest
            changes = ((first, place if size > number else as_index(part)), *identity(rest))
            return part, inside, changes, None
    number = next((n for n in range(splits, 2 * splits) if length % n == 0 and n < length), splits)
    part, within = Axis("part", number), Axis("within", -(-length // number))
    position = flatten((part, within))
    return part, (within,), unflatten(position, axes), None if length % number == 0 else position


def _in_two_stages(loop: Loop, splits: int, buffers: Mapping[str, Buffer]) -> tuple[Loop, Loop, Buffer]:
    """The loop over chunks, the loop over its partial results, and the buffer between them."""
    assert isinstance(loop.fold, Reduction)
    kind = loop.fold.kind
    part, within, changes, position = _chunks(loop.fold.axes, splits)
    dtype = accumulator_dtype(loop.value.dtype, kind, buffers[loop.buffer].dtype)
    value = cast(rewrite(loop.value, dict(changes)), dtype)
    if position is not None:
        length = Constant(points(loop.fold.axes), torch.int64)
        inside = apply("lt", IndexValue(position, torch.int64), length, dtype=torch.bool)
        value = Masked(inside, value, _identity(kind, dtype), dtype)
    sizes = (part.size, *(axis.size for axis in loop.axes))
    strides = tuple(product(sizes[i + 1 :]) for i in range(len(sizes)))
    name = f"{loop.buffer}_partial"
    while name in buffers:
        name += "_"
    partial = Buffer(name, dtype, buffers[loop.buffer].device, sizes, strides)
    place = flatten((part, *loop.axes))
    first = Loop(name, (part, *loop.axes), value, place, Reduction(kind, within), origins=loop.origins)
    second = dataclasses.replace(loop, value=Load(name, place, dtype), fold=Reduction(kind, (part,)))
    return first, second, partial


def accumulator_dtype(value: torch.dtype, kind: str, result: torch.dtype) -> torch.dtype:
    """The dtype that partial results keep, so that nothing is rounded twice."""
    if kind not in ("sum", "prod"):
        return value
    if value.is_floating_point:
        return torch.float32 if value.itemsize < 4 else value
    return torch.int64 if not result.is_floating_point else result


def _identity(kind: str, dtype: torch.dtype) -> Expr:
    """The value that changes nothing."""
    if kind in ("sum", "any"):
        return Constant(False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0, dtype)
    if kind == "prod":
        return Constant(1.0 if dtype.is_floating_point else 1, dtype)
    if dtype.is_floating_point:
        return Constant(-math.inf if kind == "max" else math.inf, dtype)
    if dtype == torch.bool:
        return Constant(kind == "min", dtype)
    limits = torch.iinfo(dtype)
    return Constant(limits.min if kind == "max" else limits.max, dtype)
