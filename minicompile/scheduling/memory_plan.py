"""Lifetimes of buffers over the steps of a schedule, reuse of dead storage, and where references can be dropped.

Only storage that the generated code allocates itself is ever reused: what an extern kernel returns may be an alias of
something else, and inputs belong to the caller. This module must not change the order of steps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from minicompile.ir.index import Index
from minicompile.ir.loops import Buffer, ExternKernel, num_bytes
from minicompile.ir.schedule import Allocation, KernelGroup, MemoryPlan

WASTE = 1.25


@dataclasses.dataclass
class _Lives:
    """First and last step of every storage, known by the buffer that created it; `end` is one past the last step."""

    end: int
    root: dict[str, str]
    first: dict[str, int]
    last: dict[str, int]
    last_of_buffer: dict[str, int]


def plan_memory(
    steps: Sequence[KernelGroup | ExternKernel], buffers: Mapping[str, Buffer], outputs: frozenset[str]
) -> MemoryPlan:
    """Allocations for every computed buffer that reaches memory, and what dies after each step."""
    lives = _lifetimes(steps, outputs)
    allocations: dict[str, Allocation] = {}
    free: list[str] = []
    taken: set[str] = set()
    storage: dict[str, Buffer] = {}
    dying: dict[int, list[str]] = {}
    for name in lives.first:
        dying.setdefault(lives.last[name], []).append(name)
    for number, step in enumerate(steps):
        for name in step.writes:
            end = lives.last_of_buffer.get(name, number)
            if lives.root[name] != name:
                older = _overwritten_by(step, name)
                allocations[name] = Allocation(name, older, number, end)
                continue
            donor = None
            if isinstance(step, KernelGroup):
                donor = _donor(step, number, name, buffers, storage, lives, free, taken)
                storage[name] = storage.get(donor or "", buffers[name])
            if donor is not None:
                taken.add(donor)
                if donor in free:
                    free.remove(donor)
            allocations[name] = Allocation(name, donor, number, end)
        free += [name for name in dying.get(number, ()) if name in storage and name not in taken]
    return MemoryPlan(allocations, _freed(lives))


def _lifetimes(steps: Sequence[KernelGroup | ExternKernel], outputs: frozenset[str]) -> _Lives:
    root: dict[str, str] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    last_of_buffer: dict[str, int] = {}
    for number, step in enumerate(steps):
        for name in step.reads:
            last[root.setdefault(name, name)] = number
            last_of_buffer[name] = number
        for name in step.writes:
            older = _overwritten_by(step, name)
            root[name] = name if older is None else root.get(older, older)
            first.setdefault(root[name], number)
            last[root[name]] = number
            last_of_buffer[name] = number
    for name in outputs:
        last[root.get(name, name)] = len(steps)
        last_of_buffer[name] = len(steps)
    return _Lives(len(steps), root, first, last, last_of_buffer)


def _overwritten_by(step: KernelGroup | ExternKernel, name: str) -> str | None:
    """The older buffer whose storage `name` takes."""
    if isinstance(step, ExternKernel):
        return dict(zip(step.writes, step.overwrites, strict=False)).get(name)
    return next((loop.overwrites for loop in step.loops if loop.buffer == name), None)


def _donor(
    group: KernelGroup,
    number: int,
    name: str,
    buffers: Mapping[str, Buffer],
    storage: Mapping[str, Buffer],
    lives: _Lives,
    free: list[str],
    taken: set[str],
) -> str | None:
    """A dead buffer, or one that dies in place here, whose storage `name` can take.

    `storage` has, for each buffer that we allocate, the one that its storage was made for.
    """
    exact = lives.last[name] == lives.end
    for candidate in _dying_in_place(group, number, name, lives):
        if candidate in storage and candidate not in taken and _fits(buffers[name], storage[candidate], exact):
            return candidate
    fitting = [c for c in free if _fits(buffers[name], storage[c], exact)]
    return min(fitting, key=lambda c: (num_bytes(storage[c]), -lives.last[c]), default=None)


def _fits(new: Buffer, old: Buffer, exact: bool) -> bool:
    """Whether `new` can live in the storage made for `old`; `exact` if that must not be larger than `new` needs."""
    if new.dtype != old.dtype or new.device != old.device:
        return False
    if new.sizes == old.sizes and new.strides == old.strides:
        return True
    needed, there = _extent(new.sizes, new.strides), _extent(old.sizes, old.strides)
    if needed is None or there is None:
        return False
    return needed == there or (not exact and needed <= there <= WASTE * needed)


@functools.lru_cache(maxsize=1 << 12)
def _extent(sizes: tuple[Index, ...], strides: tuple[Index, ...]) -> int | None:
    """Elements from the first to the last of a buffer, if that is known."""
    if any(number.constant is None for number in (*sizes, *strides)):
        return None
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in zip(sizes, strides, strict=True))


def _dying_in_place(group: KernelGroup, number: int, name: str, lives: _Lives) -> list[str]:
    """Buffers last read here, by a pointwise kernel over one axis, only where `name` is stored and not after that."""
    if group.tile.strategy != "pointwise" or len(group.tile.axes) != 1 or group.batch:
        return []
    writer = next(number for number, loop in enumerate(group.loops) if loop.buffer == name)
    place = group.loops[writer].store
    reads: dict[str, set[object]] = {}
    for number_in_group, member in enumerate(group.loops):
        if member.accumulate or member.condition is not None:
            return []
        for load in member.loads:
            reads.setdefault(load.buffer, set()).add(load.index if number_in_group <= writer else None)
    excluded = {*group.writes, *(loop.overwrites for loop in group.loops)}
    return [
        other
        for other, indices in reads.items()
        if indices == {place}
        and other not in excluded
        and lives.root.get(other) == other
        and lives.last.get(other) == number
    ]


def _freed(lives: _Lives) -> dict[int, tuple[str, ...]]:
    """Names whose storage is dead after each step; a storage handed on is freed under its new name too."""
    freed: dict[int, list[str]] = {}
    for name, number in lives.last_of_buffer.items():
        if number < lives.end:
            freed.setdefault(number, []).append(name)
    return {number: tuple(sorted(names)) for number, names in sorted(freed.items())}
