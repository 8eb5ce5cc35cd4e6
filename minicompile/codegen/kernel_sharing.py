"""Which kernel groups are the same kernel over other buffers.

This module must not print anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from minicompile.ir.expr import Expr, IndexValue, Load, rewrite
from minicompile.ir.index import Index
from minicompile.ir.loops import Buffer
from minicompile.ir.schedule import KernelGroup


@dataclasses.dataclass(frozen=True)
class KernelShape:
    """A group with its buffers numbered in order of appearance: equal shapes share one kernel.

    Attributes:
        key: everything that the kernel's text depends on but names.
        buffers: the group's buffers by number.
    """

    key: object
    buffers: tuple[str, ...]


def kernel_shape(group: KernelGroup, buffers: Mapping[str, Buffer], storage: Mapping[str, str]) -> KernelShape:
    """The shape of `group`; expressions are interned, so that comparing keys is comparing identities."""
    numbers: dict[str, int] = {}

    def renamed(load: Load) -> Expr:
        return Load(f"buffer{numbers.setdefault(load.buffer, len(numbers))}", load.index, load.dtype)

    def renamed_index(index: Index) -> Index:
        probe = rewrite(IndexValue(index, torch.int64), on_load=renamed)
        assert isinstance(probe, IndexValue)
        return probe.index

    loops = []
    for loop in group.loops:
        value = rewrite(loop.value, on_load=renamed)
        condition = rewrite(loop.condition, on_load=renamed) if loop.condition is not None else None
        number = numbers.setdefault(loop.buffer, len(numbers))
        dtype = buffers[loop.buffer].dtype
        loops.append((number, dtype, loop.axes, value, renamed_index(loop.store), loop.fold, loop.accumulate, condition,
                      loop.buffer in group.stored))  # fmt: skip
    roots: dict[str, int] = {}
    shared = tuple(roots.setdefault(storage.get(name, name), len(roots)) for name in numbers)
    online = tuple((numbers[o.maximum], numbers[o.total]) for o in group.online)
    plan = (group.tile.axes, group.tile.strategy, group.tile.num_warps, group.tile.num_stages)
    return KernelShape((tuple(loops), shared, online, plan), tuple(numbers))
