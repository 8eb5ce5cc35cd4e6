"""Exact accounting: elements and bytes that loops touch, at the hinted sizes. This module must not decide anything."""

import functools
import math
from collections.abc import Iterable

from minicompile.ir.expr import Load, cost
from minicompile.ir.index import Axis, Index, hint
from minicompile.ir.loops import Buffer, Loop, element_count, num_bytes
from minicompile.scheduling.reindexing import axes_in


@functools.lru_cache(maxsize=1 << 14)
def size_of(axis: Axis) -> int:
    """The axis's size at the hints."""
    return hint(axis.size)


def points(axes: Iterable[Axis]) -> int:
    """The number of points of a loop nest over `axes`."""
    return math.prod(map(size_of, axes))


def space_of(loop: Loop) -> tuple[Axis, ...]:
    """All axes of a loop: those of the result and those folded away."""
    return loop.axes + loop.reduction_axes


@functools.lru_cache(maxsize=1 << 14)
def _distinct(index: Index) -> int:
    """The number of points of the axes that an index depends on."""
    return points(axes_in(index))


def access_bytes(buffer: Buffer, index: Index) -> int:
    """The bytes that an access touches over its whole loop nest, each element once."""
    return min(_distinct(index), element_count(buffer.sizes)) * buffer.dtype.itemsize


def read_bytes(buffer: Buffer, indices: Iterable[Index]) -> int:
    """The bytes that several accesses to one buffer touch together (overlaps count twice, up to the whole buffer)."""
    return min(sum(access_bytes(buffer, index) for index in indices), num_bytes(buffer))


def loads_by_buffer(loads: Iterable[Load]) -> dict[str, tuple[Index, ...]]:
    """The distinct indices at which each buffer is read."""
    found: dict[str, dict[Index, None]] = {}
    for load in loads:
        found.setdefault(load.buffer, {})[load.index] = None
    return {name: tuple(indices) for name, indices in found.items()}


def loop_flops(loop: Loop) -> int:
    """Scalar operations of a loop, in additions."""
    per_point = cost(loop.value) + (loop.fold is not None)
    return per_point * points(space_of(loop))
